"""Cases for statistics with noise, the algebra, and input perturbation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Categories, Neighbors, Public
from discreet.mechanisms import (
    Clamp,
    Count,
    CountNonNull,
    CountsBelow,
    GroupPrivate,
    Histogram,
    InputPerturbation,
    Parallel,
    PostProcessed,
    Sensitivity,
    Sequential,
    Stack,
    Sum,
    SumOfSquares,
    Trusted,
    gaussian,
    laplace,
    noisy_count,
    noisy_histogram,
    noisy_sum,
    part_public,
)
from discreet.tables import Memory

from .case import Case

SIZE = 6
KINDS = {"age": Bounds(0, 8), "city": Categories(["bern", "paris", "rome"])}


def facts(neighbors: Neighbors = ADD_REMOVE, **changed: Any) -> Public:
    return Public(schema=KINDS | changed, neighbors=neighbors, size=None if neighbors is ADD_REMOVE else SIZE)


def table(public: Public, ages: list[Any], cities: list[Any]) -> Memory:
    return Memory({"age": ages, "city": cities}, public)


def pair(public: Public) -> tuple[Memory, Memory]:
    """Neighbors that move a sum, a histogram and a count as far as their relation allows."""
    ages, cities = [8, 0, 3, 5, 1, 2], ["bern", "rome", "bern", "paris", "rome", "bern"]
    if public.neighbors is ADD_REMOVE:
        return table(public, ages, cities), table(public, ages[1:], cities[1:])
    blank = (None, None) if public.neighbors is ZERO_OUT else (0, "rome")
    return table(public, ages, cities), table(public, [blank[0], *ages[1:]], [blank[1], *cities[1:]])


def case(name: str, mechanism: Any, outcome: Any, **more: Any) -> Case:
    source, neighbor = pair(mechanism.public)
    return Case(
        name=name,
        mechanism=mechanism,
        source=source,
        neighbor=neighbor,
        outcome=outcome,
        **({"runs": 1340} | more),
    )


def at_least(threshold: float) -> Any:
    return lambda release: release.value >= threshold


def entries(*thresholds: float) -> Any:
    return lambda release: tuple(
        bool(v >= t) for v, t in zip(np.ravel(release.value), thresholds, strict=False)
    )


def _parallel(neighbors: Neighbors, epsilons: tuple[Fraction, ...]) -> Parallel:
    public = facts(neighbors)
    parts = tuple(
        (city, laplace(part_public(public, "city", city), Sum("age"), epsilon=epsilon))
        for city, epsilon in zip(("bern", "rome"), epsilons, strict=True)
    )
    return Parallel(public=public, column="city", parts=parts)


def parallel_case(name: str, mechanism: Any, **more: Any) -> Case:
    """Under replace somebody moves to Rome, so that two parts change by as much as one row can change
    them."""
    source, neighbor = pair(mechanism.public)
    if mechanism.public.neighbors is REPLACE:
        cities = ["rome", "rome", "bern", "paris", "rome", "bern"]
        neighbor = table(mechanism.public, [8, 0, 3, 5, 1, 2], cities)

    def outcome(release: Any) -> tuple[bool, bool]:
        return release.value["bern"] >= 9, release.value["rome"] >= 5

    runs = more.pop("runs", 540)
    return Case(
        name=name, mechanism=mechanism, source=source, neighbor=neighbor, outcome=outcome, runs=runs, **more
    )


def _group() -> Case:
    public = facts()
    mechanism = GroupPrivate(mechanism=noisy_count(public, epsilon=Fraction(1, 3)), size=3)
    source, _ = pair(public)
    fewer = table(public, [5, 1, 2], ["paris", "rome", "bern"])
    return Case(
        name="group of three",
        mechanism=mechanism,
        source=source,
        neighbor=fewer,
        outcome=at_least(5),
        runs=1340,
    )


def _total(source: Any) -> int:
    return int(Sum("age")(source))


_ADD, _REPLACE, _ZERO = facts(ADD_REMOVE), facts(REPLACE), facts(ZERO_OUT)
_BOTH_SIGNS = facts(REPLACE, age=Bounds(-8, 8))

CASES = [
    case("count", noisy_count(_ADD, epsilon=1), at_least(6)),
    case("count, zero_out", laplace(_ZERO, CountNonNull(column="age"), epsilon=1), at_least(6)),
    *(
        case(f"sum, {p.neighbors}", noisy_sum(p, "age", epsilon=1), at_least(15))
        for p in (_ADD, _REPLACE, _ZERO)
    ),
    case("sum of fractions", noisy_sum(_ADD, "age", epsilon=1, step=Fraction(1, 4)), at_least(15)),
    case("sum, both signs", noisy_sum(_BOTH_SIGNS, "age", epsilon=1), at_least(15)),
    case("sum of squares", laplace(_ADD, SumOfSquares("age", 1, 2), epsilon=1), at_least(30)),
    *(
        case(f"histogram, {p.neighbors}", noisy_histogram(p, "city", epsilon=1), entries(3, 100, 3))
        for p in (_ADD, _REPLACE, _ZERO)
    ),
    case("histogram by edges", noisy_histogram(_REPLACE, "age", epsilon=1, edges=(0, 4, 8)), entries(5, 2)),
    case("gaussian sum", gaussian(_ADD, Sum("age"), epsilon=1, delta=0.05), at_least(15), claim=(1, 0.05)),
    case(
        "gaussian histogram",
        gaussian(_REPLACE, Histogram(column="city"), rho=Fraction(1, 2)),
        entries(3, 100, 3),
    ),
    case(
        "gaussian cumulative",
        gaussian(_ADD, CountsBelow(column="age", thresholds=(2, 4, 9)), epsilon=1, delta=0.05),
        lambda release: bool(np.sum(release.value) >= 11),
        claim=(1, 0.05),
    ),
    case(
        "stacked",
        laplace(_ADD, Stack(parts=(Count(), Sum("age"))), epsilon=1),
        entries(6, 15),
    ),
    case(
        "trusted",
        laplace(_ADD, Trusted(function=_total, claimed=Sensitivity(linf=8), name="total"), epsilon=1),
        at_least(15),
        describable=False,
    ),
    case(
        "clamped",
        PostProcessed(mechanism=noisy_count(_ADD, epsilon=1), function=Clamp(lower=0, upper=7)),
        at_least(6),
    ),
    case(
        "sequential",
        Sequential(
            mechanisms=(
                noisy_count(_ADD, epsilon=Fraction(1, 2)),
                noisy_sum(_ADD, "age", epsilon=Fraction(1, 2)),
            )
        ),
        lambda release: (release.value[0] >= 6, release.value[1] >= 15),
    ),
    *(parallel_case(f"parallel, {n}", _parallel(n, (Fraction(1, 2), Fraction(1, 2)))) for n in Neighbors),
    parallel_case("parallel, unequal", _parallel(REPLACE, (Fraction(1), Fraction(1, 2)))),
    _group(),
    case(
        "input perturbation",
        InputPerturbation.for_epsilon(1, public=_REPLACE, column="age", release_as="mean"),
        at_least(2.5),
    ),
]
