"""Releases the mean and the variance of a bounded column privately: noisy sums divided by a noisy (or public)
count.

Every value is clipped to its declared bounds and becomes the number of `step`s by which it exceeds the lower
bound. Sums are of the distances of these integers from the middle of the range, which halves the sensitivity
under add_remove. Where the size is private it is measured too, and paid for. Error bounds are computed from
the noisy sums alone.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from .. import _require, _round
from .._public import ADD_REMOVE, COLUMN, Bounds, Public
from .._registry import described
from .._require import EXACT, POSITIVE, Limit, Real, at_least, at_most, instance_of
from ..accounting import Event, compose
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns
from .additive import laplace_noise
from .algebra import split
from .bounds import HistogramBounds
from .noise import IntegerLaplace
from .protocols import Mechanism, Release, check_source, release
from .statistics import ROWS, row_contribution

# the largest float
_LARGEST = Fraction(sys.float_info.max)
# The largest number of steps of a range: their squares stay below 2**60.
_MAX_CELLS = 1 << 30
# an interval: its lower and its upper end
Span = tuple[Fraction, Fraction]


class Scale(NamedTuple):
    """Describes the integers that a column becomes: 0 to `cells`, one per `step`, where 0 stands for `lower`.
    Sums are of distances from `middle`."""

    lower: Fraction
    step: Fraction
    cells: int

    @property
    def upper(self) -> Fraction:
        return self.lower + self.step * self.cells

    @property
    def middle(self) -> int:
        return self.cells // 2

    @property
    def largest_square(self) -> int:
        return (self.cells - self.middle) ** 2

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges (least, most) of what one row can add to the count, to the sum of signed
        distances from the middle, and to the sum of centered squares: squared distances, less half of the
        largest."""
        half_square = self.largest_square // 2
        return (
            (1, 1),
            (-self.middle, self.cells - self.middle),
            (-half_square, self.largest_square - half_square),
        )


class Noisy(NamedTuple):
    """Holds count, sum and, for a variance, sum of centered squares (`Scale.ranges`) after noise, with the
    noise that each was given (None where it is exact, because public)."""

    values: tuple[int, ...]
    noises: tuple[IntegerLaplace | None, ...]

    def span(self, entry: int, confidence: float) -> tuple[int, int]:
        """Return an interval for the true number of one entry. The intervals of all noisy entries hold
        together with probability `confidence`.

        Proof: a union bound over the entries' own exact tails.
        """
        noise, value = self.noises[entry], self.values[entry]
        noisy_entries = sum(n is not None for n in self.noises)
        width = 0 if noise is None else noise.error(split(confidence, noisy_entries))
        return value - width, value + width


def noises_for(
    public: Public, nullable: bool, scale: Scale, epsilon: Real, shares: Sequence[int]
) -> tuple[IntegerLaplace | None, ...]:
    """Return noise for the count and each sum; `epsilon` is split by `shares` among those that are not
    public.

    Guarantee: each noise covers `row_contribution` of what one row can add to its entry. The count gets no
               noise only where it is public: a declared size, not add_remove, and no missing values.
    """
    public_count = public.neighbors is not ADD_REMOVE and not nullable and public.size is not None
    ranges = scale.ranges()[: len(shares)]
    total_shares = sum(share for i, share in enumerate(shares) if i or not public_count)
    noises: list[IntegerLaplace | None] = []
    for i, ((low, high), share) in enumerate(zip(ranges, shares, strict=True)):
        if public_count and i == 0:
            noises.append(None)
            continue
        # Under replace the count may have a sensitivity of 0; noise needs at least 1.
        sensitivity = max(1, row_contribution(public.neighbors, low, high, nullable=nullable))
        entry_epsilon = _require.exact(epsilon, "epsilon") * share / total_shares
        noises.append(laplace_noise(public, entry_epsilon, sensitivity))
    return tuple(noises)


def measure(
    source: Source,
    column: str,
    nullable: bool,
    scale: Scale,
    noises: tuple[IntegerLaplace | None, ...],
    entropy: Entropy,
) -> Noisy:
    """Return the sums of one pass over the column, each with its noise."""
    exact = _sums(source, column, nullable, scale, squares=len(noises) > 2)
    values = []
    # not strict: `_sums` always returns three numbers, of which a mean needs two
    for true, noise in zip(exact, noises, strict=False):
        values.append(
            int(source.public.size or 0) if noise is None else int(noise(_box(true), entropy=entropy)[0])
        )
    return Noisy(tuple(values), noises)


def _sums(source: Source, column: str, nullable: bool, scale: Scale, squares: bool) -> list[int]:
    """Return the exact count, sum and, if `squares`, sum of centered squares of a column, as in
    `Scale.ranges`. A missing value is left out, or counts as the lower bound where the column is not
    nullable."""
    count, total, square_total = 0, 0, 0
    half_square = scale.largest_square // 2
    for array in arrow_columns.each(source, column):
        is_present, cell = arrow_columns.present(array), _cells(arrow_columns.numbers(array, column), scale)
        cell = cell[is_present] if nullable else np.where(is_present, cell, 0)
        distances = cell - scale.middle
        count, total = count + len(distances), total + arrow_columns.exact_sum(distances)
        square_total += arrow_columns.exact_sum(distances * distances - half_square) if squares else 0
    return [count, total, square_total]


def _cells(values: Any, scale: Scale) -> Any:
    """Return how many steps above the lower bound each value lies, clipped and rounded: 0 to `cells`, for any
    finite values and any range, also one that was found near the smallest floats."""
    lower, upper = float(scale.lower), float(scale.upper)
    # NumPy's warning would depend on the data; an infinite distance is clipped below
    with np.errstate(over="ignore"):
        above = np.clip(values.astype(np.float64), lower, upper) - lower
    per_step = _require.float_or_inf(1 / scale.step)
    if math.isfinite(per_step):
        steps = above * per_step
    else:
        # The inverse of the step is beyond floats. So the share of the range is multiplied by `cells`; where
        # the range is 0 as a float, so is every distance, and 1.0 avoids 0 / 0.
        steps = above / ((upper - lower) or 1.0) * scale.cells
    return np.clip(np.floor(steps + 0.5), 0, scale.cells).astype(np.int64)


def _shares(entries: int) -> Limit:
    """Return the limit of the shares of epsilon: a positive integer for each of `entries` numbers."""
    return Limit(partial(_checked_shares, entries))


def _checked_shares(entries: int, *, shares: Sequence[int]) -> tuple[int, ...]:
    values = _require.listed(shares=shares)
    _require.must(len(values) == entries, "shares", shares, f"{entries} positive integers")
    for i, share in enumerate(values):
        _require.integer(**{f"shares[{i}]": share}, at_least=1)
    return tuple(int(share) for share in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FromSums(Mechanism):
    """Releases a number that follows from noisy sums over a bounded column; a subclass says which, and how
    `epsilon` is split."""

    public: Annotated[Public, ROWS]
    column: str
    epsilon: Annotated[Real, POSITIVE]
    step: Annotated[Real, EXACT, POSITIVE]
    shares: tuple[int, ...]

    def __post_init__(self) -> None:
        self._scale()

    @abstractmethod
    def _spans(self) -> Spans:
        """Return the function that turns the noisy sums into the answer and its interval."""

    def _scale(self) -> Scale:
        bounds = self.public.bounds(self.column)
        lower, upper = _require.exact(bounds.lower, "lower"), _require.exact(bounds.upper, "upper")
        cells = arrow_columns.nearest((upper - lower) / Fraction(self.step))
        _require.that(
            1 <= cells <= _MAX_CELLS,
            f"the range is {cells} steps wide; this needs 1 to 2**30. Choose another step.",
        )
        return Scale(lower, Fraction(self.step), cells)

    def _noises(self) -> tuple[IntegerLaplace | None, ...]:
        nullable = self.public.bounds(self.column).nullable
        return noises_for(self.public, nullable, self._scale(), self.epsilon, self.shares)

    @property
    def event(self) -> Event:
        return compose([noise.event for noise in self._noises() if noise is not None])

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        scale, nullable = self._scale(), self.public.bounds(self.column).nullable
        noisy = measure(source, self.column, nullable, scale, self._noises(), entropy)
        return _answer(noisy, self._spans(), scale, event=self.event, entropy=entropy)


@described("mechanisms.Mean")
class Mean(_FromSums):
    """Releases the mean of a bounded column, of values clipped and rounded to `step`.

    `shares` splits epsilon between count and sum; the default was not tuned. Where the count is public, the
    sum gets all of epsilon.

    Guarantee: the composition of `event`'s discrete Laplace noises, so epsilon-DP. With probability
               `confidence` the answer is within `release.error(confidence)` of the mean of the values on
               their grid, if there are any values.
    Proof:     sums are exact integers, whose noise is paid for (`noises_for`). Everything else is
               post-processing of the noisy sums: the interval holds all quotients of a sum and a count that
               lie in their own intervals (`Noisy.span`), cut to the bounds.
    """

    shares: Annotated[tuple[int, ...], _shares(2)] = (1, 3)

    def _spans(self) -> Spans:
        return mean_span


@described("mechanisms.Variance")
class Variance(_FromSums):
    """Releases the variance (mean squared distance from the mean) of a bounded column.

    `shares` splits epsilon between count, sum and squares; the default was not tuned. Where the count is
    public, its share goes to the other two. From the square of each distance half of the largest square is
    subtracted, which again halves the sensitivity under add_remove.

    Guarantee: as `Mean`, with three sums.
    Proof:     as `Mean`; the variance is mean square minus squared mean, both of distances from the middle,
               each in its interval; no variance exceeds a quarter of the squared width of the range.
    """

    shares: Annotated[tuple[int, ...], _shares(3)] = (1, 2, 2)

    def _spans(self) -> Spans:
        return variance_span


@described("mechanisms.MeanWithFoundBounds")
class MeanWithFoundBounds(Mechanism):
    """Releases the mean of a column whose bounds nobody declared: `finder` finds them at its own price, and
    `epsilon` more pays for the mean inside them.

    The found range is cut into `cells` steps (the default was not tuned), so that the price is known before
    the range is. None is released if no bounds were found.

    Guarantee: the composition of the finder's event and the mean's. The error is about the mean of values
               clipped to the found bounds.
    Proof:     `Mean` on bounds that have been released, so that they are public; its sensitivities depend on
               `cells` only.
    """

    public: Annotated[Public, ROWS]
    column: Annotated[str, COLUMN]
    finder: Annotated[HistogramBounds, instance_of(HistogramBounds, "HistogramBounds(...)")]
    epsilon: Annotated[Real, POSITIVE]
    cells: Annotated[int, at_least(1), at_most(_MAX_CELLS)] = 1 << 16
    shares: Annotated[tuple[int, ...], _shares(2)] = (1, 3)

    def __post_init__(self) -> None:
        same = (self.finder.public, self.finder.column) == (self.public, self.column)
        _require.that(same, "the finder is for another column or other public facts.")

    def _noises(self) -> tuple[IntegerLaplace | None, ...]:
        # Noise depends on `cells` only. Missing values are left out (`nullable` is True), as there
        # is no declared lower bound for them to count as.
        scale = Scale(Fraction(0), Fraction(1), self.cells)
        return noises_for(self.public, True, scale, self.epsilon, self.shares)

    @property
    def event(self) -> Event:
        return compose([self.finder.event, *(noise.event for noise in self._noises() if noise is not None)])

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        bounds = self.finder(source, entropy=entropy).value
        if bounds is None:
            return release(None, event=self.event, entropy=entropy)
        lower, upper = _require.exact(bounds.lower, "lower"), _require.exact(bounds.upper, "upper")
        scale = Scale(lower, (upper - lower) / self.cells, self.cells)
        noisy = measure(source, self.column, True, scale, self._noises(), entropy)
        return _answer(noisy, mean_span, scale, event=self.event, entropy=entropy)


# A function that computes the interval of the answer from those of the count, the sum and, for a variance,
# the centered squares (otherwise None).
Spans = Callable[[Span, Span, Span | None, Scale], Span]


def mean_span(count: Span, total: Span, squares: Span | None, scale: Scale) -> Span:
    """Return where the mean lies, in the column's own unit, if count and total lie in these intervals."""
    low, _, high = _quotient(total, count, -scale.middle, scale.cells - scale.middle)
    return scale.lower + scale.step * (scale.middle + low), scale.lower + scale.step * (scale.middle + high)


def variance_span(count: Span, total: Span, squares: Span | None, scale: Scale) -> Span:
    """Return where the variance lies: the mean square of distances from the middle, less the squared distance
    of the mean from the middle."""
    # the variance is always measured with squares
    assert squares is not None
    half_square = scale.largest_square // 2
    centered = _quotient(squares, count, -half_square, scale.largest_square - half_square)
    square_low, square, square_high = (half_square + x for x in centered)
    mean_low, mean, mean_high = _quotient(total, count, -scale.middle, scale.cells - scale.middle)
    nearest = Fraction(0) if mean_low <= 0 <= mean_high else min(mean_low**2, mean_high**2)
    farthest = max(mean_low**2, mean_high**2)
    limit = Fraction(scale.cells**2, 4)
    low, _, high = _cut((square_low - farthest, square - mean**2, square_high - nearest), Fraction(0), limit)
    return low * scale.step**2, high * scale.step**2


# (lower end, noisy value, upper end) of an interval
_Around = tuple[Fraction, Fraction, Fraction]


def _quotient(numerator: Span, denominator: Span, lower: int, upper: int) -> _Around:
    """Return the interval of all a / b with a in `numerator`, b in `denominator` and b >= 1, cut to [lower,
    upper]. The noisy values are the middles of the two intervals."""
    smallest, largest = max(denominator[0], Fraction(1)), max(denominator[1], Fraction(1))
    ends = [Fraction(a) / b for a in numerator for b in (smallest, largest)]
    value = sum(numerator) / max(Fraction(sum(denominator)), Fraction(2))
    return _cut((min(ends), value, max(ends)), Fraction(lower), Fraction(upper))


def _cut(around: _Around, lower: Fraction, upper: Fraction) -> _Around:
    """Return the interval inside [lower, upper], moved so that it is around the noisy value's nearest number
    there, which is what is released.

    Guarantee: a true value that lies in the interval and in [lower, upper] lies in the result; a longer
               interval around the same value has a longer result, so that errors grow with the confidence.
    Proof:     a noisy value above `upper` is moved down to it, and the interval with it: the lower end only
               falls, and the upper end, which was not below the noisy value, is cut at `upper`. The same
               holds below `lower`. The distance moved does not depend on the length.
    """
    low, value, high = around
    nearest = min(max(value, lower), upper)
    return max(low + nearest - value, lower), nearest, min(high + nearest - value, upper)


def _answer(noisy: Noisy, spans: Spans, scale: Scale, *, event: Event, entropy: Entropy) -> Release:
    """Return the value at the noisy sums, and the largest distance to the ends of its interval."""

    def span_at(confidence: float | None) -> Span:
        parts = []
        for i, v in enumerate(noisy.values):
            low, high = (v, v) if confidence is None else noisy.span(i, confidence)
            parts.append((Fraction(low), Fraction(high)))
        return spans(parts[0], parts[1], parts[2] if len(parts) > 2 else None, scale)

    # Without a confidence both ends of the span are the value. The variance of a column with huge bounds may
    # be beyond floats: no answer may fail because of its noise.
    value = float(min(span_at(None)[0], _LARGEST))

    def error(confidence: float) -> float:
        low, high = span_at(confidence)
        # The error is that of the released float, which may be rounded by more than the noise.
        return _round.up(max(Fraction(value) - low, high - Fraction(value)))

    return release(value, event=event, entropy=entropy, error=error)


def _box(value: int) -> Any:
    """Return one integer as an array of length 1, which noise takes."""
    return arrow_columns.as_integers([value])


def with_bounds(public: Public, column: str, bounds: Bounds) -> Public:
    """Return the same public facts with other bounds for one column, for later mechanisms on bounds that were
    found at a price."""
    others = tuple((name, fact) for name, fact in public.schema if name != column)
    return replace(public, schema=(*others, (column, bounds)))
