"""Releases quantiles privately: a point of a public grid, likelier the closer its rank is to the one asked
for.

Values are clipped to their declared bounds and put on a grid of `step`; every grid point is a candidate of
one exponential mechanism, and all points between two consecutive values share one score, so the time grows
with the number of distinct values and not with the number of grid points, which may be 2**60. Errors are in
ranks: how many rows lie between the answer and a true quantile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _require, _round, sampling
from .._public import REPLACE, ZERO_OUT, Public
from .._registry import described
from .._require import EXACT, POSITIVE, Limit, Real, at_least, at_most
from ..accounting import Event
from ..sampling import Entropy, weighted_softmax
from ..tables import Source
from . import arrow_columns
from .algebra import split as split_confidence
from .protocols import Mechanism, Release, check_source, release
from .selectors import ExponentialMechanism
from .statistics import ROWS

# The largest denominator of a quantile: costs are ranks times the denominator, and must stay in 64 bits.
_MAX_DENOMINATOR = 10**6


class _Runs(NamedTuple):
    """Holds runs of grid points with the same ranks. Entry i is about run i: its first point, its number of
    points, and how many rows lie below, at, and above each of its points."""

    first: NDArray[Any]
    points: NDArray[Any]
    below: NDArray[Any]
    equal: NDArray[Any]
    above: NDArray[Any]


def as_quantile(**named: Any) -> Fraction:
    """Return a rational in [0, 1]; a float is read as it is written."""
    _require.probability(**named)
    ((name, q),) = named.items()
    exact = Fraction(repr(float(q))) if isinstance(q, float) else _require.exact(q, name)
    wanted = f"a fraction with a denominator of at most {_MAX_DENOMINATOR}"
    _require.must(exact.denominator <= _MAX_DENOMINATOR, name, q, wanted)
    return exact


def as_quantiles(*, qs: Any) -> tuple[Fraction, ...]:
    """Return the quantiles as a tuple; refused unless they are increasing and strictly between 0 and 1."""
    exact = tuple(as_quantile(**{f"qs[{i}]": q}) for i, q in enumerate(_require.entries(qs=qs)))
    fits = all(a < b for a, b in pairwise((Fraction(0), *exact, Fraction(1))))
    _require.must(fits, "qs", qs, "increasing and strictly between 0 and 1")
    return exact


@described("mechanisms.Quantile")
class Quantile(Mechanism):
    """Chooses the grid point below which about a fraction `q` of the rows lie, by the exponential mechanism.

    A float `q` is read as it is written: 0.9 is 9/10.

    The distance of a point with B rows below, E at, and A above it is how far q n is from [B, B + E], where n
    = B + E + A; it is computed from these counts alone, never from a declared size. At q = 0 every point up
    to the minimum is equally good; for a usable smallest value take a small `q` above 0.

    Guarantee: one exponential mechanism of bounded range epsilon (so epsilon-DP). With probability
               `confidence` the distance is at most `error` ranks; some grid point has distance 0.
    Proof:     the exponential mechanism (`selection.ExponentialMechanism`) over all grid points, drawn
               exactly: first a run of equal score with its number of points as weight, then a point of it,
               uniformly (Smith 2011, on a grid). Distance = max(0, (1-q) B - q (E + A), q A - (1-q) (B + E)).
               A row that appears or disappears moves each term, hence the maximum, by at most max(q, 1-q). A
               row that is replaced moves B and B + E by at most 1 at fixed n, hence the distance by at most
               1; or its value is missing before or after, which is the first case. For q = 0 the distance is
               B, for q = 1 it is A, and one row moves it the same way at all points (monotone). All scores
               are multiplied by the denominator of q.
    """

    error_in_scores: ClassVar[bool] = True
    public: Annotated[Public, ROWS]
    column: str
    q: Annotated[Real, Limit(as_quantile)]
    epsilon: Real
    step: Annotated[Real, EXACT, POSITIVE]

    def __post_init__(self) -> None:
        grid_of(self)
        self._exponential_mechanism()

    def _exponential_mechanism(self) -> ExponentialMechanism:
        return _exponential_mechanism(self.public, self.column, Fraction(self.q), self.epsilon)

    @property
    def event(self) -> Event:
        return self._exponential_mechanism().event

    def error(self, confidence: float = 0.95) -> float:
        """Return an upper bound, which holds with probability `confidence`, on the number of ranks between
        the answer and a true quantile."""
        return _rank_error(
            self._exponential_mechanism(), _points(grid_of(self)), Fraction(self.q), confidence
        )

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        grid, selector = grid_of(self), self._exponential_mechanism()
        runs = _runs(indices(source, self.column, grid), grid.low, grid.high)
        position = _draw(runs, quantile_costs(runs, Fraction(self.q)), selector.rate, entropy)
        return release(
            number(position * grid.step),
            event=self.event,
            entropy=entropy,
            error=self.error,
            error_in_scores=True,
        )


def Median(*, public: Public, column: str, epsilon: Real, step: Real) -> Quantile:
    """Return the quantile 1/2."""
    return Quantile(public=public, column=column, q=Fraction(1, 2), epsilon=epsilon, step=step)


@described("mechanisms.ApproximateQuantiles")
class ApproximateQuantiles(Mechanism):
    """Chooses many quantiles by recursive splitting: the middle quantile first, then the quantiles on either
    side of it, each with the rows on that side.

    `jitter_bits` random bits are appended to each row's grid point, because the splitting needs rows with
    different values; they are dropped from the answers.

    Guarantee: for m quantiles, the composition of `levels` = floor(log2(m)) + 1 exponential mechanisms of
               bounded range epsilon / levels. With probability `confidence` all distances (`Quantile`) are at
               most `error` ranks, if no two rows agree in grid point and jitter.
    Proof:     Kaplan, Schnapp & Stemmer 2022, arXiv:2110.05429, Algorithm 1. Given the jitter, and given the
               answers so far, a level chooses one quantile in each of disjoint parts, and a row is in one of
               them; the distributions on the other parts are the same for both neighbors. Sizes of parts are
               never used, so within a part the relation is add_remove. A row that is replaced may leave one
               part and enter another; for these two changes each choice gets half the epsilon. Jitter is
               drawn for each row by itself, so averaging over it raises no divergence between neighbors.
               Error: a split that is off by g ranks moves the targets on both sides by at most g, so along a
               path the errors add; a row at the split adds 1.
    """

    error_in_scores: ClassVar[bool] = True
    public: Annotated[Public, ROWS]
    column: str
    qs: Annotated[tuple[Real, ...], Limit(as_quantiles)]
    epsilon: Annotated[Real, POSITIVE]
    step: Annotated[Real, EXACT, POSITIVE]
    jitter_bits: Annotated[int, at_least(0), at_most(62)] = 16

    def __post_init__(self) -> None:
        # The quantiles of a part (`split`) have denominators of at most `common`, too.
        _require.must(
            (common := math.lcm(*(q.denominator for q in self._exact()))) <= _MAX_DENOMINATOR,
            "qs",
            self.qs,
            f"fractions with a common denominator of at most {_MAX_DENOMINATOR}, not {common}",
        )
        low, high = self._ends()
        _require.that(
            max(abs(low), abs(high)) < arrow_columns.LIMIT,
            f"the bounds, in steps and with {self.jitter_bits} bits of jitter, exceed 2**62. Use a "
            "larger step or less jitter.",
        )

    @property
    def levels(self) -> int:
        """The number of levels of the recursion: floor(log2(m)) + 1 for m quantiles."""
        return len(self.qs).bit_length()

    @property
    def event(self) -> Event:
        level = ExponentialMechanism(
            epsilon=_require.exact(self.epsilon, "epsilon") / self.levels, neighbors=self.public.neighbors
        )
        return level.event.repeated(self.levels)

    def error(self, confidence: float = 0.95) -> tuple[float, ...]:
        """Return, for each quantile, an upper bound on the number of ranks between the answer and a true
        quantile; all bounds hold together with probability `confidence`."""
        low, high = self._ends()
        choice_confidence = split_confidence(confidence, len(self.qs))

        def walk(qs: Sequence[Fraction], inherited: float) -> Iterator[float]:
            if not qs:
                return
            middle, left, right = split(qs)
            own_error = _rank_error(self._choice(middle), high - low + 1, middle, choice_confidence)
            rank_error = inherited + own_error
            yield from walk(left, rank_error + 1)
            yield _round.up(rank_error)
            yield from walk(right, rank_error + 1)

        return tuple(walk(self._exact(), 0.0))

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        grid = grid_of(self)
        row_points = indices(source, self.column, grid)
        jittered = (row_points << self.jitter_bits) + sampling.uniform_below(
            1 << self.jitter_bits, len(row_points), entropy
        )
        quantiles = self._recurse(np.sort(jittered), self._exact(), *self._ends(), entropy)
        value = tuple(number((quantile >> self.jitter_bits) * grid.step) for quantile in quantiles)
        return release(value, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)

    def _recurse(
        self, row_points: NDArray[Any], qs: Sequence[Fraction], low: int, high: int, entropy: Entropy
    ) -> list[int]:
        """Return one point of low..high for each of `qs`, quantiles of `row_points`, the sorted points of
        some rows. Where the split leaves no points on one side, the quantiles there are the split point."""
        if not qs:
            return []
        middle, left, right = split(qs)
        runs = _runs(row_points, low, high)
        position = _draw(runs, quantile_costs(runs, middle), self._choice(middle).rate, entropy)
        smaller = row_points[: np.searchsorted(row_points, position, side="left")]
        larger = row_points[np.searchsorted(row_points, position, side="right") :]
        before = (
            [position] * len(left)
            if position == low
            else self._recurse(smaller, left, low, position - 1, entropy)
        )
        after = (
            [position] * len(right)
            if position == high
            else self._recurse(larger, right, position + 1, high, entropy)
        )
        return [*before, position, *after]

    def _choice(self, q: Fraction) -> ExponentialMechanism:
        """Return the exponential mechanism that chooses the quantile q of one part, under add_remove; it gets
        half the epsilon where a replaced row may change two parts."""
        moves = 2 if value_can_change(self.public, self.column) else 1
        epsilon = _require.exact(self.epsilon, "epsilon") / (self.levels * moves)
        return ExponentialMechanism(
            epsilon=epsilon, sensitivity=max(q.numerator, q.denominator - q.numerator)
        )

    def _exact(self) -> tuple[Fraction, ...]:
        return tuple(Fraction(q) for q in self.qs)

    def _ends(self) -> tuple[int, int]:
        """Return the first and the last grid point with jitter."""
        grid = grid_of(self)
        return grid.low << self.jitter_bits, ((grid.high + 1) << self.jitter_bits) - 1


def split(qs: Sequence[Fraction]) -> tuple[Fraction, list[Fraction], list[Fraction]]:
    """Return the middle quantile, and the quantiles on either side of it as quantiles of the rows there.

    >>> split([Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)])
    (Fraction(1, 2), [Fraction(1, 2)], [Fraction(1, 2)])
    """
    middle = (len(qs) + 1) // 2 - 1
    p = qs[middle]
    return p, [q / p for q in qs[:middle]], [(q - p) / (1 - p) for q in qs[middle + 1 :]]


def quantile_costs(runs: _Runs, q: Fraction) -> NDArray[Any]:
    """Return the distance of q n from [B, B + E] (see `Quantile`) for each run, times the denominator of
    q."""
    a, b = q.numerator, q.denominator
    over = (b - a) * runs.below - a * (runs.equal + runs.above)
    under = a * runs.above - (b - a) * (runs.below + runs.equal)
    return np.asarray(np.maximum(np.maximum(over, under), 0))


def _exponential_mechanism(public: Public, column: str, q: Fraction, epsilon: Real) -> ExponentialMechanism:
    """Return the exponential mechanism for the quantile q, with the sensitivity of its score."""
    a, b = q.numerator, q.denominator
    sensitivity = b if value_can_change(public, column) else max(a, b - a)
    return ExponentialMechanism(
        epsilon=epsilon, sensitivity=sensitivity, monotone=q in (0, 1), neighbors=public.neighbors
    )


def value_can_change(public: Public, column: str) -> bool:
    """Return whether one value can become another: under replace, and under zero_out where a blank counts as
    the lower bound."""
    blank_counts = public.neighbors is ZERO_OUT and not public.bounds(column).nullable
    return public.neighbors is REPLACE or blank_counts


def grid_of(mechanism: Any) -> arrow_columns.ColumnGrid:
    """Return the public grid of a mechanism's column."""
    return arrow_columns.ColumnGrid(
        mechanism.public.bounds(mechanism.column), Fraction(mechanism.step), mechanism.column
    )


def _points(grid: arrow_columns.ColumnGrid) -> int:
    """Return the number of grid points."""
    return grid.high - grid.low + 1


def indices(source: Source, column: str, grid: arrow_columns.ColumnGrid) -> NDArray[np.int64]:
    """Return the grid point of every row; a missing value is left out, or counts as the lower bound where the
    column is not nullable."""
    nullable = source.public.bounds(column).nullable
    parts = [np.empty(0, np.int64)]
    for array in arrow_columns.each(source, column):
        is_present, on_grid = arrow_columns.present(array), grid(arrow_columns.numbers(array, column))
        parts.append(on_grid[is_present] if nullable else np.where(is_present, on_grid, grid.low))
    return np.concatenate(parts)


def _runs(row_points: NDArray[np.int64], low: int, high: int) -> _Runs:
    """Return the runs of the grid low..high, given the point of each row: the points below the first value,
    that value, the points between it and the next, and so on; 2 d + 1 runs for d distinct values, less the
    empty ones."""
    values, counts = np.unique(row_points, return_counts=True)
    first, points, equal = (np.empty(2 * len(values) + 1, np.int64) for _ in range(3))
    first[0], first[1::2], first[2::2] = low, values, values + 1
    points[1::2], equal[1::2], equal[::2] = 1, counts, 0
    points[::2] = np.append(values, high + 1) - first[::2]
    below = np.concatenate(([0], np.cumsum(equal)[:-1]))
    above = len(row_points) - below - equal
    kept = points > 0
    return _Runs(first[kept], points[kept], below[kept], equal[kept], above[kept])


def _draw(runs: _Runs, costs: NDArray[Any], rate: Fraction, entropy: Entropy) -> int:
    """Return a grid point with probability proportional to exp(-rate * cost), exactly."""
    run = weighted_softmax(costs, runs.points, rate, entropy)
    return int(runs.first[run]) + int(sampling.uniform_below(int(runs.points[run]), 1, entropy)[0])


def _rank_error(selector: ExponentialMechanism, points: int, q: Fraction, confidence: float) -> float:
    """Return the error of a choice among `points` in ranks: its scores are ranks times q's denominator."""
    return _round.up(Fraction(selector.error(points, confidence), q.denominator))


def number(value: Fraction) -> int | float:
    """Return an integer where the value is one, a float otherwise."""
    return int(value) if value.denominator == 1 else float(value)
