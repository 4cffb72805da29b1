"""Cases for private tests and the private Benjamini-Hochberg procedure."""

from __future__ import annotations

from typing import Any

from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Boolean, Bounds, Categories, Neighbors, Public
from discreet.adaptive import Binomial, Hypothesis
from discreet.adaptive.private_bh import PrivateBenjaminiHochberg
from discreet.adaptive.significance import (
    GoodnessOfFitTest,
    IndependenceTest,
    ProportionTest,
    TwoSampleMeanTest,
)
from discreet.mechanisms import CountsBelow
from discreet.tables import Memory

from .case import Case

KINDS = {
    "age": Bounds(0, 8),
    "pay": Bounds(0, 8),
    "city": Categories(["bern", "rome"]),
    "sex": Categories(["f", "m"]),
    "ill": Boolean(),
}
ROWS: dict[str, list[Any]] = {
    "age": [8, 0, 3, 5, 1, 2],
    "pay": [8, 1, 3, 6, 0, 2],
    "city": ["bern", "rome", "bern", "rome", "bern", "rome"],
    "sex": ["f", "m", "m", "m", "f", "f"],
    "ill": [True, False, False, True, False, True],
}
OTHER = {"age": 0, "pay": 8, "city": "rome", "sex": "m", "ill": False}


def facts(neighbors: Neighbors) -> Public:
    return Public(schema=KINDS, neighbors=neighbors, size=6)


def pair(public: Public) -> dict[str, Memory]:
    """The first row removed, replaced, or blanked."""
    gone: dict[Neighbors, Any] = {
        ADD_REMOVE: lambda name: [],
        REPLACE: lambda name: [OTHER[name]],
        ZERO_OUT: lambda name: [None],
    }
    first = gone[public.neighbors]
    return {
        "source": Memory(ROWS, public),
        "neighbor": Memory({name: first(name) + values[1:] for name, values in ROWS.items()}, public),
    }


def numbers(release: Any) -> Any:
    """A coarse look at the statistic, and at the people where they were bought."""
    value = release.value
    people = None if value.people is None else max(0, min(value.people, 9)) // 2
    return round(max(-40, min(value.statistic, 40)) / 4), people


def case(name: str, mechanism: Any, **more: Any) -> Case:
    facts_of = pair(mechanism.public)
    return Case(name=name, mechanism=mechanism, **({"outcome": numbers} | facts_of | more))


FREE, SWAP, BLANK = facts(ADD_REMOVE), facts(REPLACE), facts(ZERO_OUT)

ASKED = tuple(
    Hypothesis(statistic=CountsBelow(column=name, thresholds=(4,)), null=Binomial(trials=6, chance=0.5))
    for name in ("age", "pay")
)

CASES = [
    case(
        "proportion, trials known",
        ProportionTest(public=SWAP, column="ill", chance=0.5, epsilon=1.5, trials=6),
        outcome=lambda release: int(release.value.pvalue * 5),
    ),
    case(
        "proportion, counts bought",
        ProportionTest(public=FREE, column="city", success="bern", chance=0.5, epsilon=1.5),
        outcome=lambda release: (release.value.people, release.value.statistic > 0.5),
    ),
    case(
        "proportion, replace",
        ProportionTest(public=SWAP, column="age", success=4, chance=0.3, epsilon=1.5),
        outcome=lambda release: (release.value.people, release.value.statistic > 0.5),
    ),
    case(
        "goodness of fit",
        GoodnessOfFitTest(public=FREE, column="city", shares=(0.5, 0.5), epsilon=1.5, runs=99),
    ),
    case("independence", IndependenceTest(public=SWAP, first="city", second="sex", epsilon=1.5, runs=99)),
    case(
        "two-sample mean",
        TwoSampleMeanTest(public=FREE, column="age", group="city", epsilon=1.5, step=1, runs=99),
    ),
    case(
        "two-sample mean, replace",
        TwoSampleMeanTest(public=SWAP, column="age", group="city", epsilon=1.5, step=1, runs=99),
    ),
    case(
        "two-sample mean, zero out",
        TwoSampleMeanTest(public=BLANK, column="age", group="city", epsilon=1.5, step=1, runs=99),
    ),
    case(
        "private Benjamini-Hochberg",
        PrivateBenjaminiHochberg(public=FREE, hypotheses=ASKED, alpha=0.5, epsilon=1.5, candidates=1),
        outcome=lambda release: (release.value.peeled, release.value.rejected),
    ),
    case(
        "private Benjamini-Hochberg, with a delta",
        PrivateBenjaminiHochberg(
            public=SWAP,
            hypotheses=ASKED,
            alpha=0.5,
            epsilon=1.5,
            delta=1e-3,
            candidates=2,
            score="log p",
            strict=False,
        ),
        outcome=lambda release: release.value.rejected,
        claim=(1.5, 1e-3),
    ),
]
