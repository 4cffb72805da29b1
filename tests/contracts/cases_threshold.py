"""Cases for randomized response, thresholds and stability."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Categories, Neighbors, Public, Unit
from discreet.mechanisms import (
    AboveThreshold,
    Channel,
    Component,
    Count,
    CountsBelow,
    DistanceToInstability,
    Histogram,
    Kary,
    PartMean,
    ProposeTestRelease,
    RandomizedResponse,
    RedrawnSparseVector,
    SampleAndAggregate,
    Sensitivity,
    SmoothSensitivityMedian,
    SparseVector,
    StableMedian,
    StableMode,
    StableSparseVector,
    SubsampleAggregateStable,
    Trusted,
    TrustedStable,
    two_coins,
)
from discreet.mechanisms.sample_aggregate import PartMode
from discreet.tables import Memory

from .case import Case

KINDS = {"age": Bounds(0, 8), "city": Categories(["bern", "rome"])}
AGES, CITIES = [8, 0, 3, 5, 1], ["bern", "rome", "bern", "rome", "bern"]


def facts(neighbors: Neighbors) -> Public:
    return Public(schema=KINDS, neighbors=neighbors, size=5)


def pair(public: Public) -> dict[str, Memory]:
    """The first row removed, replaced, or blanked."""
    gone: dict[Neighbors, tuple[list[Any], list[Any]]] = {
        ADD_REMOVE: ([], []),
        REPLACE: ([0], ["rome"]),
        ZERO_OUT: ([None], [None]),
    }
    ages, cities = gone[public.neighbors]
    return {
        "source": Memory({"age": AGES, "city": CITIES}, public),
        "neighbor": Memory({"age": ages + AGES[1:], "city": cities + CITIES[1:]}, public),
    }


def case(name: str, mechanism: Any, outcome: Any, **more: Any) -> Case:
    return Case(name=name, mechanism=mechanism, outcome=outcome, **(pair(mechanism.public) | more))


BERN = Component(statistic=Histogram(column="city"), index=0)
YOUNG = CountsBelow(column="age", thresholds=(4,))
FREE = facts(ADD_REMOVE)


def counts(release: Any) -> Any:
    return release.value.counts


def said(answers: list[Any]) -> Any:
    return tuple(answer.value.above for answer in answers)


def gaps(answers: list[Any]) -> Any:
    return tuple(min(answer.value.gap, 5) if answer.value.above else -1 for answer in answers)


def numbers(answers: list[Any]) -> Any:
    return tuple(
        max(-2, min(answer.value.value, 8)) // 3 if answer.value.above else None for answer in answers
    )


def told(output: Any) -> Any:
    return tuple(a.value for a in output) if isinstance(output, list) else output.value


LOTTERIES = [
    case(
        "randomized response",
        RandomizedResponse(public=facts(REPLACE), column="city", epsilon=1),
        counts,
        runs=670,
    ),
    case(
        "randomized response, zero out",
        RandomizedResponse(public=facts(ZERO_OUT), column="city", epsilon=1),
        counts,
    ),
    case(
        "randomized response, missing is a category",
        RandomizedResponse(
            public=facts(ZERO_OUT), column="city", lottery=Kary(categories=3, odds=3), missing=True
        ),
        counts,
    ),
    case("two coins", RandomizedResponse(public=facts(REPLACE), column="city", lottery=two_coins()), counts),
    case(
        "a design with a third report",
        RandomizedResponse(
            public=facts(REPLACE),
            column="city",
            lottery=Channel(
                rows=(
                    (Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)),
                    (Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)),
                )
            ),
        ),
        counts,
    ),
]

THRESHOLDS = [
    case(
        "above threshold",
        AboveThreshold(public=FREE, threshold=3, epsilon=2, questions=6),
        lambda answers: len(answers),
        questions=[BERN, Count(), YOUNG] * 3,
    ),
    case(
        "sparse vector",
        SparseVector(public=FREE, threshold=4, epsilon=2, positives=2, questions=6),
        said,
        questions=[BERN, YOUNG, Count()] * 3,
    ),
    case(
        "sparse vector, monotone, with gap",
        SparseVector(public=FREE, threshold=4, epsilon=2, monotone=True, gap=True, questions=4),
        gaps,
        questions=[BERN, Count()] * 3,
    ),
    case(
        "sparse vector, numeric",
        SparseVector(public=FREE, threshold=3, epsilon=2, numeric=True, questions=4),
        numbers,
        questions=[BERN, Count()] * 3,
    ),
    case(
        "sparse vector, replace, trusted question",
        SparseVector(public=facts(REPLACE), threshold=9, epsilon=2, sensitivity=8, questions=3),
        said,
        questions=[
            Trusted(
                function=lambda source: sum(sum(b.column(0).to_pylist()) for b in source.batches(["age"])),
                claimed=Sensitivity(linf=8),
            )
        ]
        * 4,
    ),
    case(
        "redrawn sparse vector",
        RedrawnSparseVector(public=FREE, threshold=3, epsilon=2, delta=0.01, positives=2, questions=5),
        said,
        questions=[Count(), BERN, Count()] * 2,
        claim=(2, 0.01),
    ),
    case(
        "redrawn sparse vector, textbook, zero out",
        RedrawnSparseVector(
            public=facts(ZERO_OUT),
            threshold=3,
            epsilon=2,
            delta=0.01,
            positives=2,
            constants="dwork-roth",
            questions=5,
        ),
        said,
        questions=[BERN] * 6,
    ),
]


def lead(source: Any, bound: int = 0) -> int:
    return StableMode(column="city").distance(source, bound)


MODE, MEDIAN = StableMode(column="city"), StableMedian(column="age")
PERSONS = Public(schema={"age": Bounds(0, 8)}, unit=Unit("who"))
PEOPLE = {
    "source": Memory({"age": [8, 8, 1, 0, 2, 5, 3], "who": [0, 0, 1, 1, 2, 3, 4]}, PERSONS),
    "neighbor": Memory({"age": [1, 0, 2, 5, 3], "who": [1, 1, 2, 3, 4]}, PERSONS),
}
PARTS: dict[str, Any] = {"columns": ("age",), "function": PartMean(column="age"), "bounds": Bounds(0, 8)}

STABILITY = [
    case(
        "distance to instability",
        DistanceToInstability(public=FREE, function=MODE, epsilon=1, delta=0.05),
        told,
    ),
    case(
        "distance to instability, values differ",
        DistanceToInstability(public=FREE, function=MODE, epsilon=1, delta=0.05),
        told,
        source=Memory({"age": [1, 1, 1], "city": ["bern", "rome", "rome"]}, FREE),
        neighbor=Memory({"age": [1, 1], "city": ["bern", "rome"]}, FREE),
    ),
    case(
        "distance to instability, replace",
        DistanceToInstability(public=facts(REPLACE), function=MODE, epsilon=1, delta=0.05),
        told,
    ),
    case(
        "distance to instability, trusted",
        DistanceToInstability(
            public=FREE, function=TrustedStable(function=MODE.value, how_far=lead), epsilon=1, delta=0.05
        ),
        told,
        describable=False,
    ),
    case(
        "propose, test, release",
        ProposeTestRelease(public=FREE, function=MEDIAN, bound=3, epsilon=2, delta=0.1),
        lambda release: None if release.value is None else release.value // 2,
    ),
    case(
        "propose, test, release, zero out",
        ProposeTestRelease(public=facts(ZERO_OUT), function=MEDIAN, bound=3, epsilon=2, delta=0.1),
        lambda release: None if release.value is None else release.value // 2,
    ),
    *(
        case(f"smooth median, {n}", SmoothSensitivityMedian(public=facts(n), column="age", epsilon=2), told)
        for n in Neighbors
    ),
    case(
        "smooth median, approximate",
        SmoothSensitivityMedian(public=FREE, column="age", epsilon=2, delta=0.05),
        told,
    ),
    case(
        "stable sparse vector",
        StableSparseVector(public=FREE, epsilon=2, delta=0.1, failures=2, questions=4),
        told,
        questions=[MODE] * 5,
    ),
    case(
        "stable sparse vector, redrawn",
        StableSparseVector(public=FREE, epsilon=2, delta=0.1, failures=2, questions=4, constants="zcdp"),
        told,
        questions=[MODE] * 5,
    ),
    case(
        "sample and aggregate, mean",
        SampleAndAggregate(public=FREE, **PARTS, parts=3, epsilon=2),
        lambda release: int(release.value),
        runs=340,
    ),
    Case(
        name="sample and aggregate, median, persons",
        mechanism=SampleAndAggregate(public=PERSONS, **PARTS, parts=3, epsilon=2, aggregate="median"),
        outcome=lambda release: int(release.value),  # type: ignore[union-attr]
        runs=340,
        **PEOPLE,
    ),
    case(
        "sample and aggregate, trusted function",
        SampleAndAggregate(
            public=FREE,
            columns=("age",),
            function=lambda part: part.num_rows,
            parts=1,
            bounds=Bounds(0, 8),
            epsilon=1,
        ),
        lambda release: int(release.value),
        describable=False,
        runs=340,
    ),
    case(
        "subsample and aggregate with stability",
        SubsampleAggregateStable(
            public=FREE,
            columns=("city",),
            function=PartMode(column="city"),
            epsilon=1,
            delta=0.3,
            rate=Fraction(1, 4),
            subsamples=20,
        ),
        told,
    ),
]

CASES = [*LOTTERIES, *THRESHOLDS, *STABILITY]
