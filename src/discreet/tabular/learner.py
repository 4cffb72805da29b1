"""Defines the base class of learners that release noisy sums and counts: fields, checks, and exact noise for
a declared sensitivity.

Naive Bayes, k-means, additive boosting and trees read a table as coordinates in [-1, 1] (`Design` with clip
"never" and no intercept), round them to a grid, and add discrete noise to sums of whole numbers.

Preprocesses privately: steps that release narrower bounds of columns, and then a learner that uses them.

A step replaces declared bounds by narrower ones: two noisy quantiles (`QuantileBounds`), or three noisy
standard deviations on both sides of the noisy mean (`PrivateScaler`). Learners clip columns to their bounds
and scale these to [-1, 1], so that the steps have the effect of quantile clipping and of standardization.
Declared bounds that are close to the data cost nothing, and are better.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import _require
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Boolean, Bounds, Categories, Public
from .._registry import described
from .._require import LISTED, NON_EMPTY, POSITIVE, Limit, at_least, instance_of
from ..accounting import Event, compose
from ..mechanisms.additive import laplace_noise
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.noise_scales import zcdp_rho
from ..mechanisms.protocols import Mechanism, Release, Sensitivity, check_source, release
from ..mechanisms.quantiles import ApproximateQuantiles
from ..sampling import Entropy
from ..tables import Source
from .erm import Delta, Epsilon, LinearERM
from .linear_model import target_classes
from .rows import Design, Rows
from .scaler import PrivateScaler
from .second_moments import SecondMoments

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def _thousandths(**named: Any) -> Fraction:
    """Return the order of a quantile, rounded to a fraction whose denominator is at most 1000."""
    return _require.exactly(**named).limit_denominator(1000)


Thousandths = Annotated[Fraction, Limit(_thousandths)]
# Coordinates are rounded to multiples of 1 / CELLS before they are added, so that sums are exact integers.
# Chosen by hand, not tuned; the proof of `clusters._nearest` holds up to this value.
CELLS = 1 << 10


@dataclass(frozen=True, kw_only=True)
class TableLearner(Mechanism):
    """Shares fields, checks and the call among learners that release noisy sums and counts of rows.

    `rows`: the declared number of units, by default `public.size`.
    """

    public: Public
    design: Design
    epsilon: Epsilon
    delta: Delta = 0.0
    rows: Annotated[int, at_least(1)] | None = None

    def __post_init__(self) -> None:
        _require.that(
            not self.design.intercept and self.design.clip == "never",
            f"{type(self).__name__} needs rows without an intercept that are not scaled down. Give "
            'Design(..., intercept=False, clip="never").',
        )
        self.design.check(self.public)
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Refuse fields for which no price can be computed."""

    @property
    @abstractmethod
    def event(self) -> Event: ...

    @abstractmethod
    def fit_rows(self, x: Rows, targets: Array, entropy: Entropy) -> Any:
        """Return the private model of rows that `design` has read, for the price of `event`.

        Not a release: callers account for it.
        """

    @abstractmethod
    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on the noise, which holds with this probability."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """Return how many numbers its model holds."""

    @property
    def asked(self) -> tuple[float, float]:
        """Return the epsilon and the delta that the caller declared; `event` may cost less."""
        return self.epsilon, self.delta

    @property
    def changes(self) -> int:
        """Return how many rows' summands differ between neighbors: a replaced row is one removed and one
        added."""
        return 1 if self.public.neighbors is ADD_REMOVE else 2

    @property
    def size(self) -> int:
        """Return the declared number of units."""
        return self.public.declared_size(type(self).__name__) if self.rows is None else self.rows

    @property
    def layout(self) -> CoordinateLayout:
        return CoordinateLayout.of(self.design, self.public)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        value = self.fit_rows(*self.design.read(source, entropy), entropy)
        # `error_in_scores`: the error is that of noisy sums and counts, not of the model.
        return release(value, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)


class Classifying(TableLearner):
    """Shares the classes of a target, and their check, among classifiers."""

    def _check(self) -> None:
        self.design.require_target()
        self.classes  # noqa: B018 - refuse a target without classes now

    @property
    def classes(self) -> tuple[Any, ...]:
        assert self.design.target is not None
        return target_classes(self.public, self.design.target, classifies=True)


@dataclass(frozen=True)
class CoordinateLayout:
    """Says which coordinates belong to numbers, to booleans (`flags`), and to the indicators of categories
    (`groups`)."""

    numbers: tuple[int, ...]
    flags: tuple[int, ...]
    # for each category its first coordinate and its number of declared values
    groups: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, design: Design, public: Public) -> CoordinateLayout:
        """Return the layout of a design's coordinates."""
        numbers, flags, groups, column = [], [], [], 0
        for name in design.features:
            fact: Any = public.fact(name)
            if isinstance(fact, Categories):
                groups.append((column, len(fact.values)))
            elif isinstance(fact, Boolean):
                flags.append(column)
            else:
                assert isinstance(fact, Bounds)
                numbers.append(column)
            column += len(fact.values) if isinstance(fact, Categories) else 1
        return cls(tuple(numbers), tuple(flags), tuple(groups))


def exact_noise(
    epsilon: float, delta: float, sensitivity: Sensitivity, public: Public, times: int = 1
) -> IntegerLaplace | IntegerGaussian:
    """Return the exact noise for `times` releases of this sensitivity within (epsilon, delta): Laplace, or
    with a delta Gaussian where that has the smaller variance.

    Guarantee: `times` of its events are within (epsilon, delta).
    Proof:     basic composition of pure events; zCDP adds up (Bun & Steinke 2016, Lemma 1.7), and `zcdp_rho`
               is the rho that (epsilon, delta) allows. Which distribution it is depends on public facts
               alone.
    """
    # the factor 1 - 1e-12 leaves room for the rounding of the division and of the sum over `times`
    laplace = laplace_noise(public, epsilon / times * (1 - 1e-12), sensitivity)
    if delta == 0:
        return laplace
    rho = zcdp_rho(epsilon, delta) / times * (1 - 1e-12)
    gaussian = IntegerGaussian.for_rho(rho, sensitivity=sensitivity, neighbors=public.neighbors)
    return laplace if laplace.mean_squared_error <= gaussian.mean_squared_error else gaussian


def on_grid(x: Any) -> Integers:
    """Return coordinates rounded to whole multiples of 1 / CELLS, as these integers."""
    return np.asarray(np.rint(np.asarray(x, np.float64) * CELLS), dtype=np.int64)


def by_group(values: Integers, groups: Any, count: int) -> Integers:
    """Return one row for each of `count` groups: the exact sum of the rows of `values` in that group.

    `groups` has the number of each row's group.
    """
    result = np.zeros((count, values.shape[1]), dtype=np.int64)
    for group in range(count):
        result[group] = values[groups == group].sum(axis=0)
    return result


# Quantiles are searched on a grid of so many steps across the declared bounds. Chosen by hand, not tuned.
_POINTS = 1 << 12


@described("learning.QuantileBounds")
class QuantileBounds(Mechanism):
    """Releases the quantiles of order `low` and `high` of each column, as its new bounds: triples of column,
    lower and upper bound.

    Guarantee: `event`, the composition of one `ApproximateQuantiles` for each column.
    Proof:     `ApproximateQuantiles`, and basic composition.
    """

    public: Public
    columns: Annotated[tuple[str, ...], NON_EMPTY]
    epsilon: Annotated[float, POSITIVE]
    low: Thousandths = Fraction(1, 100)
    high: Thousandths = Fraction(99, 100)

    def __post_init__(self) -> None:
        _require.that(
            0 < self.low < self.high < 1,
            f"0 < low < high < 1 is needed, got {float(self.low):g} and {float(self.high):g} (rounded to "
            "fractions with denominators up to 1000).",
        )
        self._quantile_mechanisms()

    def _quantile_mechanisms(self) -> list[ApproximateQuantiles]:
        # 1e-12 less, so that the rounded sum over several columns is not above epsilon
        share = Fraction(1) if len(self.columns) == 1 else (1 - Fraction(1, 10**12)) / len(self.columns)
        column_epsilon = Fraction(self.epsilon) * share
        return [
            ApproximateQuantiles(
                public=self.public,
                column=name,
                qs=(self.low, self.high),
                epsilon=column_epsilon,
                step=self._step(name),
            )
            for name in self.columns
        ]

    def _step(self, name: str) -> Fraction:
        """Return the distance of two points of the grid on which a column's quantiles are searched."""
        bounds = self.public.bounds(name)
        width = _require.exact(bounds.upper, "upper") - _require.exact(bounds.lower, "lower")
        return width / _POINTS

    @property
    def event(self) -> Event:
        return compose([mechanism.event for mechanism in self._quantile_mechanisms()])

    @property
    def asked(self) -> tuple[float, float]:
        return self.epsilon, 0.0

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        pairs = [
            tuple(float(v) for v in mechanism(source, entropy=entropy).value)
            for mechanism in self._quantile_mechanisms()
        ]
        value = tuple((name, *pair) for name, pair in zip(self.columns, pairs, strict=True))
        return release(value, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on the rank error of all quantiles, which holds with this probability."""
        column_confidence = 1 - (1 - confidence) / len(self.columns)
        return max(max(mechanism.error(column_confidence)) for mechanism in self._quantile_mechanisms())


@dataclass(frozen=True)
class NarrowedSource:
    """Reads a source with other public facts: bounds that were released before."""

    source: Source
    public: Public

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return self.source.batches(columns)


@described("learning.Piped")
class Piped(Mechanism):
    """Runs steps that narrow bounds, one after the other, and then the learner with the bounds they released.

    `epsilon` and `delta` are the price that the caller declared; `event` is what is charged.

    Guarantee: `event`: the composition of the steps' events and the learner's.
    Proof:     steps and learner compose adaptively: each may depend on the releases before it. The learner's
               event does not depend on the bounds of columns, which it scales to [-1, 1]. That it is the same
               with the new bounds is checked before the learner reads a row.
    """

    public: Public
    steps: Annotated[tuple[QuantileBounds | PrivateScaler, ...], LISTED]
    learner: Annotated[
        LinearERM | TableLearner | SecondMoments,
        instance_of(LinearERM | TableLearner | SecondMoments, "a learner of a table, not a search"),
    ]
    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        for mechanism in (*self.steps, self.learner):
            if mechanism.public != self.public:
                raise InvalidInput("all steps and the learner must be priced for the same table.")

    @property
    def design(self) -> Any:
        return self.learner.design

    @property
    def event(self) -> Event:
        return compose([*(step.event for step in self.steps), self.learner.event])

    @property
    def asked(self) -> tuple[float, float]:
        return self.epsilon, self.delta

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        public = self.public
        for step in self.steps:
            value = step(source, entropy=entropy).value
            public = narrow_bounds(
                public, value if isinstance(step, QuantileBounds) else _bounds_around_mean(value)
            )
        learner = replace(self.learner, public=public)
        # An internal check, which every learner of this package passes.
        if learner.event != self.learner.event:
            raise ValueError("the price of a learner depends on bounds")
        value = learner(NarrowedSource(source, public), entropy=entropy).value
        return release(value, event=self.event, entropy=entropy, error=learner.error, error_in_scores=True)


def _bounds_around_mean(scaling: Any) -> tuple[tuple[str, float, float], ...]:
    """Return, for each column, the bounds three standard deviations below and above its mean."""
    return tuple(
        (name, mean - 3 * deviation, mean + 3 * deviation)
        for name, mean, deviation in zip(scaling.columns, scaling.means, scaling.deviations, strict=True)
    )


def narrow_bounds(public: Public, bounds: Sequence[tuple[str, float, float]]) -> Public:
    """Return the facts with new bounds of some columns, given as triples of column, lower and upper bound.

    New bounds stay within the declared ones. Where they would be empty, the declared ones stay.
    """
    facts: dict[str, Any] = dict(public.schema)
    for name, lower, upper in bounds:
        declared = public.bounds(name)
        declared_lower, declared_upper = float(declared.lower), float(declared.upper)
        # the new bounds of a nearly constant column have at least about a thousandth of the declared width
        margin = max(0.0, (declared_upper - declared_lower) / 1000 - (upper - lower)) / 2
        new_lower, new_upper = max(declared_lower, lower - margin), min(declared_upper, upper + margin)
        if math.isfinite(new_lower) and math.isfinite(new_upper) and new_lower < new_upper:
            facts[name] = replace(declared, lower=new_lower, upper=new_upper)
    assert all(isinstance(facts[name], Bounds) for name, *_ in bounds)
    return replace(public, schema=tuple(facts.items()))
