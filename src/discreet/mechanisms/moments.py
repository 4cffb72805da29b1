"""Private mean and variance of a bounded column: noisy sums over a noisy (or public) count.

Every value is clipped to its declared bounds and becomes the number of `step`s it lies above the lower one;
sums are of these integers, measured from the middle of the range, which halves what one row can move under
add_remove. Where the size is private it is measured too, and paid for. What is released beside the answer
follows from the noisy sums alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from .. import _require, _round
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Bounds, Public
from .._registry import described
from .._require import Real
from ..accounting import Event, compose
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns
from .algebra import split
from .arrow_columns import as_step
from .bounds import BinarySearchBounds, HistogramBounds
from .noise import IntegerLaplace
from .protocols import Release, check_source, release
from .statistics import require_rows, row_contribution

_LARGEST = Fraction(sys.float_info.max)
# squares stay below 2**60
_MAX_CELLS = 1 << 30
Span = tuple[Fraction, Fraction]


class Scale(NamedTuple):
    """Describes the integers a column becomes: 0 to `cells`, one per `step`, from `lower` up; sums are taken
    from `middle`."""

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
        """Return what one row can add to the count, to the sum of distances from the middle, and to that of
        centered squares."""
        half = self.largest_square // 2
        return (1, 1), (-self.middle, self.cells - self.middle), (-half, self.largest_square - half)


class Noisy(NamedTuple):
    """Holds count, sum and centered squares after noise, with the noise each was given (None: exact, because
    public)."""

    values: tuple[int, ...]
    noises: tuple[IntegerLaplace | None, ...]

    def span(self, entry: int, confidence: float) -> tuple[int, int]:
        """Return where the true number lies; for all noisy entries together with probability `confidence`.

        Proof: a union bound over the entries' own exact tails.
        """
        noise, value = self.noises[entry], self.values[entry]
        noisy = sum(n is not None for n in self.noises)
        width = 0 if noise is None else noise.error(split(confidence, noisy))
        return value - width, value + width


def noises_for(
    public: Public, nullable: bool, scale: Scale, epsilon: Real, shares: Sequence[int]
) -> tuple[IntegerLaplace | None, ...]:
    """Return noise for the count and each sum; `epsilon` is split by `shares` among those that are not
    public.

    Guarantee: one row moves an entry by at most `row_contribution` of the range it can add; the count is
               exact only where it is public: a declared size, not add_remove, and no missing values.
    """
    public_count = public.neighbors is not ADD_REMOVE and not nullable and public.size is not None
    ranges = scale.ranges()[: len(shares)]
    paid = sum(share for i, share in enumerate(shares) if i or not public_count)
    noises: list[IntegerLaplace | None] = []
    for i, ((low, high), share) in enumerate(zip(ranges, shares, strict=True)):
        if public_count and i == 0:
            noises.append(None)
            continue
        sensitivity = max(1, row_contribution(public.neighbors, low, high, nullable=nullable))
        part = _require.exact(epsilon, "epsilon") * share / paid
        noises.append(IntegerLaplace.for_epsilon(part, sensitivity=sensitivity, neighbors=public.neighbors))
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
    for true, noise in zip(exact, noises, strict=False):
        values.append(
            int(source.public.size or 0) if noise is None else int(noise(_box(true), entropy=entropy)[0])
        )
    return Noisy(tuple(values), noises)


def _sums(source: Source, column: str, nullable: bool, scale: Scale, squares: bool) -> list[int]:
    """Return the count, the sum and the sum of squares of a column, around the middle of its range."""
    count, total, square = 0, 0, 0
    half = scale.largest_square // 2
    for array in arrow_columns.each(source, column):
        here, cell = arrow_columns.present(array), _cells(arrow_columns.numbers(array, column), scale)
        cell = cell[here] if nullable else np.where(here, cell, 0)
        apart = cell - scale.middle
        count, total = count + len(apart), total + arrow_columns.exact_sum(apart)
        square += arrow_columns.exact_sum(apart * apart - half) if squares else 0
    return [count, total, square]


def _cells(values: Any, scale: Scale) -> Any:
    """Return how many steps above the lower bound each value lies, clipped and rounded: 0 to `cells`, for any
    finite values and any range, found ones of the smallest floats included."""
    lower, upper = float(scale.lower), float(scale.upper)
    # a warning would tell of the data; what is infinite is clipped below
    with np.errstate(over="ignore"):
        above = np.clip(values.astype(np.float64), lower, upper) - lower
    per_step = _require.float_or_inf(1 / scale.step)
    if math.isfinite(per_step):
        steps = above * per_step
    else:
        # A step too small for its inverse: by the share of the range, which is 0 where no float is above it.
        steps = above / ((upper - lower) or 1.0) * scale.cells
    return np.clip(np.floor(steps + 0.5), 0, scale.cells).astype(np.int64)


@described("mechanisms.Mean")
@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """Releases the mean of a bounded column, of values clipped and rounded to `step`.

    `shares` splits epsilon between count and sum.

    Guarantee: the composition of `event`'s discrete Laplace noises, so epsilon-DP. With probability
               `confidence` the answer is within `release.error(confidence)` of the mean of the values on
               their grid, if there is any.
    Proof:     sums are exact integers (`noises_for`). All of the rest is computed from the noisy sums, which
               are what is paid for: the interval is where a quotient lies whose terms lie where exact noise
               tails put them, cut to the bounds.
    """

    public: Public
    column: str
    epsilon: Real
    step: Real
    shares: tuple[int, int] = (1, 3)

    def __post_init__(self) -> None:
        _settle(self, 2)

    @property
    def event(self) -> Event:
        return _event(self)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        return _run(self, mean_span, source, entropy)


@described("mechanisms.Variance")
@dataclass(frozen=True, slots=True, kw_only=True)
class Variance:
    """Releases the variance (mean squared distance from the mean) of a bounded column.

    `shares`: of count, sum and squares.

    Squares of distances from the middle are themselves taken from the middle of their range: again half the
    sensitivity.

    Guarantee: as `Mean`, with three sums.
    Proof:     as `Mean`; the variance is mean square minus squared mean, both about the middle, each in its
               interval; no variance exceeds a quarter of the squared width.
    """

    public: Public
    column: str
    epsilon: Real
    step: Real
    shares: tuple[int, int, int] = (1, 2, 2)

    def __post_init__(self) -> None:
        _settle(self, 3)

    @property
    def event(self) -> Event:
        return _event(self)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        return _run(self, variance_span, source, entropy)


def _run(mechanism: Mean | Variance, spans: Spans, source: Source, entropy: Entropy) -> Release:
    """Measure on the mechanism's own grid, and answer with the middle of where `spans` put it."""
    check_source(mechanism.public, source)
    scale, bounds = _scale(mechanism), mechanism.public.bounds(mechanism.column)
    noisy = measure(source, mechanism.column, bounds.nullable, scale, _noises(mechanism), entropy)
    return _answer(noisy, spans, scale, event=mechanism.event, entropy=entropy)


@described("mechanisms.MeanWithFoundBounds")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanWithFoundBounds:
    """Releases the mean of a column whose bounds nobody declared: `finder` buys them, `epsilon` more pays for
    the mean inside them.

    The found range is cut into `cells` steps, so that the price is known before the range is. None if no
    bounds were found.

    Guarantee: the composition of the finder's event and the mean's. The error is about the mean of values
               clipped to the found bounds.
    Proof:     `Mean` on bounds that are a released value, so public by then; its sensitivities depend on
               `cells` only.
    """

    public: Public
    column: str
    finder: HistogramBounds | BinarySearchBounds
    epsilon: Real
    cells: int = 1 << 16
    shares: tuple[int, int] = (1, 3)

    def __post_init__(self) -> None:
        require_rows(self.public)
        if not isinstance(self.column, str):
            raise _require.fail("column", self.column, "the name of a column")
        _require.positive(epsilon=self.epsilon)
        _require.integer(cells=self.cells, at_least=1)
        object.__setattr__(self, "shares", _checked_shares(self.shares, 2))
        if not isinstance(self.finder, HistogramBounds | BinarySearchBounds):
            raise _require.fail("finder", self.finder, "HistogramBounds(...) or BinarySearchBounds(...)")
        if (self.finder.public, self.finder.column) != (self.public, self.column):
            raise InvalidInput(
                "the finder is for another column or other public facts. Nothing was computed or released."
            )
        _checked_cells(self.cells)

    def _noises(self) -> tuple[IntegerLaplace | None, ...]:
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


Spans = Callable[[Span, Span, Span | None, Scale], Span]


def mean_span(count: Span, total: Span, squares: Span | None, scale: Scale) -> Span:
    """Return where the mean lies, in the column's own unit, if count and total lie where they are said to."""
    low, high = _quotient(total, count, -scale.middle, scale.cells - scale.middle)
    return scale.lower + scale.step * (scale.middle + low), scale.lower + scale.step * (scale.middle + high)


def variance_span(count: Span, total: Span, squares: Span | None, scale: Scale) -> Span:
    """Return where the variance lies: mean square about the middle less squared distance of the mean from
    it."""
    # the variance is always measured with squares
    assert squares is not None
    half, top = scale.largest_square // 2, scale.largest_square
    square_low, square_high = (half + end for end in _quotient(squares, count, -half, top - half))
    low, high = _quotient(total, count, -scale.middle, scale.cells - scale.middle)
    nearest = Fraction(0) if low <= 0 <= high else min(low**2, high**2)
    farthest = max(low**2, high**2)
    limit = Fraction(scale.cells**2, 4)
    low, high = _cut((square_low - farthest, square_high - nearest), Fraction(0), limit)
    return low * scale.step**2, high * scale.step**2


def _quotient(over: Span, under: Span, lower: int, upper: int) -> Span:
    """Return all values of a / b for a in `over`, b in `under` and b >= 1, cut to [lower, upper]."""
    smallest, largest = max(under[0], Fraction(1)), max(under[1], Fraction(1))
    ends = [Fraction(a) / b for a in over for b in (smallest, largest)]
    return _cut((min(ends), max(ends)), Fraction(lower), Fraction(upper))


def _cut(span: Span, lower: Fraction, upper: Fraction) -> Span:
    """Return the part of the span inside [lower, upper]; a point goes to the nearest end.

    A span that misses it says nothing: all of it.
    """
    if span[0] < span[1] and (span[1] < lower or span[0] > upper):
        return lower, upper
    return min(max(span[0], lower), upper), min(max(span[1], lower), upper)


def _answer(noisy: Noisy, spans: Spans, scale: Scale, *, event: Event, entropy: Entropy) -> Release:
    """Return the value at the noisy sums, and the largest distance to the ends of its interval."""

    def span_at(confidence: float | None) -> Span:
        parts = []
        for i, v in enumerate(noisy.values):
            low, high = (v, v) if confidence is None else noisy.span(i, confidence)
            parts.append((Fraction(low), Fraction(high)))
        return spans(parts[0], parts[1], parts[2] if len(parts) > 2 else None, scale)

    # bounds near the end of floats have squares beyond it: no answer may fail because of its noise
    value = float(min(span_at(None)[0], _LARGEST))

    def error(confidence: float) -> float:
        low, high = span_at(confidence)
        # about the float that is released, which may be rounded by more than the noise is wide
        return _round.up(max(Fraction(value) - low, high - Fraction(value)))

    return release(value, event=event, entropy=entropy, error=error)


def _settle(mechanism: Any, entries: int) -> None:
    """Check the options of a mechanism, and store them in exact form."""
    require_rows(mechanism.public)
    _require.positive(epsilon=mechanism.epsilon)
    object.__setattr__(mechanism, "step", as_step(mechanism.step))
    object.__setattr__(mechanism, "shares", _checked_shares(mechanism.shares, entries))
    _scale(mechanism)


def _checked_shares(shares: Sequence[int], entries: int) -> tuple[int, ...]:
    """Return the shares of epsilon, one positive integer for each released number."""
    shares = _require.listed(shares=shares)
    if len(shares) != entries:
        raise _require.fail("shares", shares, f"{entries} positive integers")
    for share in shares:
        _require.integer(shares=share, at_least=1)
    return tuple(int(share) for share in shares)


def _checked_cells(cells: int) -> int:
    """Return the number of steps of the range; refuse one that sums could not hold."""
    if not 1 <= cells <= _MAX_CELLS:
        raise InvalidInput(
            f"the range is {cells} steps wide; this needs 1 to 2**30. Nothing was computed or "
            f"released. Choose another step."
        )
    return cells


def _scale(mechanism: Any) -> Scale:
    bounds: Bounds = mechanism.public.bounds(mechanism.column)
    lower, upper = _require.exact(bounds.lower, "lower"), _require.exact(bounds.upper, "upper")
    cells = arrow_columns.nearest((upper - lower) / mechanism.step)
    return Scale(lower, mechanism.step, _checked_cells(cells))


def _noises(mechanism: Any) -> tuple[IntegerLaplace | None, ...]:
    nullable = mechanism.public.bounds(mechanism.column).nullable
    return noises_for(mechanism.public, nullable, _scale(mechanism), mechanism.epsilon, mechanism.shares)


def _event(mechanism: Any) -> Event:
    return compose([noise.event for noise in _noises(mechanism) if noise is not None])


def _box(value: int) -> Any:
    return arrow_columns.as_integers([value])


def with_bounds(public: Public, column: str, bounds: Bounds) -> Public:
    """Return the same public facts with a column's bounds declared anew, for later mechanisms on bounds that
    were bought."""
    others = tuple((name, fact) for name, fact in public.schema if name != column)
    return replace(public, schema=(*others, (column, bounds)))


__all__ = ["Mean", "MeanWithFoundBounds", "Variance", "with_bounds"]
