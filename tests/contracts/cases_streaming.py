"""Cases for continual counters: the ticks of a clock are closed one after the other, until the horizon."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from discreet._public import Bounds, Categories, Public
from discreet.mechanisms import Count, Histogram
from discreet.streaming import (
    Advance,
    LinearLoss,
    LogisticLoss,
    SquaredDistance,
    SquaredLoss,
    counter,
    learner,
)
from discreet.tables import Memory

from .case import Case

PUBLIC = Public(
    schema={
        "day": Categories(["mo", "tu", "we", "th"]),
        "city": Categories(["bern", "rome"]),
        "age": Bounds(0, 1),
    }
)
ROWS: dict[str, list[Any]] = {
    "day": ["mo", "mo", "tu", "th", "we"],
    "city": ["bern", "rome", "bern", "rome", "rome"],
    "age": [1.0, 0.0, 0.25, 0.5, 0.0],
}


def case(name: str, **options: Any) -> Case:
    statistic = options.pop("statistic", Count())
    coarse = options.pop("coarse", 1.0)
    mechanism = counter(PUBLIC, statistic, clock="day", **options)
    return Case(
        name=name,
        mechanism=mechanism,
        source=Memory(ROWS, PUBLIC),
        neighbor=Memory({column: values[1:] for column, values in ROWS.items()}, PUBLIC),
        outcome=lambda answers: tuple(round(float(a.value.ravel()[0]) / coarse) for a in answers[:2]),
        questions=[Advance()] * 6,
    )


def learning(name: str, loss: Any, **options: Any) -> Case:
    public = replace(PUBLIC, schema=(*PUBLIC.schema, ("height", Bounds(-1, 1))))
    rows = {**ROWS, "height": [-1.0, 0.5, 0.25, -0.5, 0.0]}
    return Case(
        name=name,
        mechanism=learner(public, loss, clock="day", **options),
        source=Memory(rows, public),
        neighbor=Memory({column: values[1:] for column, values in rows.items()}, public),
        outcome=lambda answers: tuple(bool(a.value[0] > 0) + bool(a.value[0] > 0.4) for a in answers[:2]),
        questions=[Advance()] * 6,
    )


CASES = [
    *(
        case(f"continual count, {strategy}", strategy=strategy, epsilon=1)
        for strategy in ("tree", "honaker", "fresh")
    ),
    *(
        case(f"continual count, Gaussian, {strategy}", strategy=strategy, rho=0.125)
        for strategy in ("square_root", "blt", "optimal")
    ),
    case("continual histogram", statistic=Histogram(column="city"), strategy="blt", rho=0.125),
    case("continual count, window", strategy="square_root", rho=0.125, window=2),
    case("continual count, decayed", strategy="square_root", rho=0.125, decay=0.5),
    case("continual count, restarted", strategy="tree", epsilon=1, restart=2),
    learning("online leader", SquaredDistance(columns=("age", "height")), epsilon=1, strategy="tree", clip=2),
    learning("online mirror descent", SquaredLoss(target="age", features=("height",)), rho=0.125, clip=1),
    learning(
        "online leader, logistic", LogisticLoss(target="city", features=("age",)), rho=0.125, clip=1, ridge=1
    ),
    learning("expert advice", LinearLoss(columns=("age", "height")), epsilon=1, strategy="honaker"),
]
