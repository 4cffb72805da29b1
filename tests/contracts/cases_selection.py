"""Cases for choices, quantiles, moments and found bounds."""

from __future__ import annotations

from typing import Any

from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Categories, Neighbors, Public
from discreet.mechanisms.bounds import HistogramBounds
from discreet.mechanisms.means import Mean, MeanWithFoundBounds, Variance
from discreet.mechanisms.protocols import Sensitivity
from discreet.mechanisms.quantiles import ApproximateQuantiles, Quantile
from discreet.mechanisms.selection import CellCounts, CellDistances, RealScores, Select
from discreet.mechanisms.selectors import ExponentialMechanism, PermuteAndFlip, ReportNoisyMax, TopK
from discreet.mechanisms.statistics import Histogram, Trusted
from discreet.tables import Memory

from .case import Case

CITIES = ("bern", "paris", "rome")
KINDS = {"city": Categories(CITIES), "v": Bounds(0, 8), "w": Bounds(0, 8)}
MORE = {"city": "rome", "v": 8, "w": 8}
OTHER = {"city": "bern", "v": 0, "w": 0}


def table(rows: list[dict[str, Any]], public: Public) -> Memory:
    return Memory({name: [row[name] for row in rows] for name in KINDS}, public)


ROWS = [{"city": CITIES[i % 2], "v": 2 + i % 5, "w": 1 + i % 3} for i in range(8)]


def pair(neighbors: Neighbors = ADD_REMOVE) -> tuple[Memory, Memory, Public]:
    """Eight ordinary rows and one that is added, replaced or blanked."""
    public = Public(
        schema=KINDS, neighbors=neighbors, size=None if neighbors is ADD_REMOVE else len(ROWS) + 1
    )
    last = {ADD_REMOVE: [], REPLACE: [OTHER], ZERO_OUT: [dict.fromkeys(MORE)]}[neighbors]
    return table([*ROWS, MORE], public), table([*ROWS, *last], public), public


def case(name: str, build: Any, outcome: Any, neighbors: Neighbors = ADD_REMOVE, **more: Any) -> Case:
    source, neighbor, public = pair(neighbors)
    return Case(
        name=name,
        mechanism=build(public),
        source=source,
        neighbor=neighbor,
        outcome=outcome,
        **more,
    )


def choice(chooser: Any) -> Any:
    return lambda public: Select(
        public=public, scores=Histogram(column="city"), candidates=CITIES, chooser=chooser
    )


def cells(scores: Any, epsilon: float, sensitivity: int) -> Any:
    chooser = ExponentialMechanism(epsilon=epsilon, sensitivity=sensitivity, monotone=True)
    return lambda public: Select(
        public=public, scores=scores, candidates=scores.candidates(), chooser=chooser
    )


def trusted(public: Public) -> Select:
    scores = Trusted(
        function=lambda source: Histogram(column="city")(source), claimed=Sensitivity(linf=1), name="cities"
    )
    return Select(
        public=public, scores=scores, candidates=CITIES, chooser=PermuteAndFlip(epsilon=1, monotone=True)
    )


def halves(public: Public) -> Select:
    def function(source: Any) -> Any:
        return Histogram(column="city")(source) / 2

    scores = RealScores(function=function, claimed=0.5, step=0.25, name="half the city")
    return Select(
        public=public,
        scores=scores,
        candidates=CITIES,
        chooser=ExponentialMechanism(epsilon=1, sensitivity=2),
    )


def value(release: Any) -> Any:
    return release.value


def above(limit: float) -> Any:
    return lambda release: release.value > limit


COLUMN = {"column": "v", "step": 1}
FINDER = {"column": "v", "smallest": 1, "levels": 4}

CASES = [
    case("choice by exponential mechanism", choice(ExponentialMechanism(epsilon=1, monotone=True)), value),
    case("choice by permute and flip", choice(PermuteAndFlip(epsilon=1)), value),
    case(
        "choice by permute and flip, replace",
        choice(PermuteAndFlip(epsilon=1, neighbors=REPLACE)),
        value,
        REPLACE,
    ),
    case("choice by laplace noise", choice(ReportNoisyMax(epsilon=2, monotone=True)), value),
    case("choice by gumbel noise", choice(ReportNoisyMax(epsilon=1, noise="gumbel")), value),
    case("top two", choice(TopK(epsilon=2, k=2)), value),
    case("top two by peeling", choice(TopK(epsilon=2, k=2, one_shot=False, monotone=True)), value),
    case("cell by count", cells(CellCounts(x="v", y="w", cells=2), 1.0, 1), value),
    case("cell by distance", cells(CellDistances(x="v", y="w", cells=3), 1.0, 4), value),
    case("trusted scores", trusted, value, describable=False),
    case("real scores", halves, value, describable=False),
    case("median", lambda p: Quantile(public=p, q=0.5, epsilon=1, **COLUMN), above(4)),
    case("minimum", lambda p: Quantile(public=p, q=0, epsilon=1, **COLUMN), above(2)),
    case("median, replace", lambda p: Quantile(public=p, q=0.5, epsilon=1, **COLUMN), above(4), REPLACE),
    case(
        "ninth decile, zero out", lambda p: Quantile(public=p, q=0.9, epsilon=1, **COLUMN), above(5), ZERO_OUT
    ),
    case(
        "quartiles",
        lambda p: ApproximateQuantiles(public=p, qs=(0.25, 0.5, 0.75), epsilon=2, jitter_bits=4, **COLUMN),
        lambda r: tuple(v > 4 for v in r.value),
        runs=670,
    ),
    case(
        "quartiles, replace",
        lambda p: ApproximateQuantiles(public=p, qs=(0.25, 0.5, 0.75), epsilon=2, jitter_bits=4, **COLUMN),
        lambda r: tuple(v > 4 for v in r.value),
        REPLACE,
        runs=670,
    ),
    case("mean", lambda p: Mean(public=p, epsilon=2, **COLUMN), above(4.2), runs=1340),
    case("mean, replace", lambda p: Mean(public=p, epsilon=2, **COLUMN), above(4), REPLACE),
    case("mean, zero out", lambda p: Mean(public=p, epsilon=2, **COLUMN), above(4), ZERO_OUT),
    case("variance", lambda p: Variance(public=p, epsilon=2, **COLUMN), above(3), runs=670),
    case(
        "bounds by histogram", lambda p: HistogramBounds(public=p, epsilon=2, confidence=0.5, **FINDER), value
    ),
    case(
        "bounds by histogram, replace",
        lambda p: HistogramBounds(public=p, epsilon=2, confidence=0.5, **FINDER),
        value,
        REPLACE,
    ),
    case(
        "mean inside found bounds",
        lambda p: MeanWithFoundBounds(
            public=p,
            column="v",
            finder=HistogramBounds(public=p, epsilon=1, confidence=0.5, **FINDER),
            epsilon=1,
        ),
        lambda r: None if r.value is None else r.value > 4,
        runs=340,
    ),
]
