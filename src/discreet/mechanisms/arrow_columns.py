"""Reads columns of Arrow batches as numpy arrays: which values are missing, how they are clipped and rounded,
which category a row belongs to.

Every function treats each row by itself, so a row never changes what another contributes, however the table
is cut into batches. A missing number is NULL, NaN or infinite; a column's type counts as part of its public
schema.

Bounds how far one change can move a median, now and after k changes, for every neighbor relation at once.

Let x_1 <= ... <= x_n be the values (of a column, or the answers of `sample_aggregate`'s parts) on an integer
grid from `low` to `high`, x_i = low for i < 1 and high for i > n, and let the median be x_m with
m = ceil(n/2). Write A_k(x) for the largest x_j - x_i over windows i <= m <= j with j - i = k + 1.

Lemma. Let a change be the addition, the removal or the replacement of one value.
(1) |median(z) - median(z')| <= A_k(x) whenever z is at most k changes away from x and z' one change away from
    z.
(2) A_k(x) <= A_{k+1}(x') whenever x' is one change away from x.

Proof. (1) Say the two medians are u < v. For a table y let s(y) = #{y <= u} - #{y > u} and
s'(y) = #{y < v} - #{y >= v}. The median of y is at most u iff s(y) >= 0, and at least v iff s'(y) <= -1.
One change moves either by at most 2, additions and removals by 1; and s' - s is twice the number of values
in (u, v). If median(z) = u, then s(z) >= 0 and s'(z) <= s'(z') + 2 <= 1; if median(z) = v, then
s'(z) <= -1 and s(z) >= s(z') - 2 >= -2. In both cases s'(z) - s(z) <= 1, so z has no value in (u, v), and
x has at most k. Let a = #{x <= u}, b = #{x < v}, so x_a <= u, x_{b+1} >= v, b - a <= k. From
s(x) >= -2 - 2k follows a >= n/2 - 1 - k, hence m <= a + k + 1; from s'(x) <= 1 + 2k follows
b <= n/2 + 1/2 + k, hence b <= m + k. The window that starts at i = min(a, m) and ends at i + k + 1
contains m, starts at a value of at most u, and ends at one of at least v.
(2) Take the best window (i, j) of x. An addition: x'_i <= x_i, x'_{j+1} >= x_j, and m grows by at most 1:
(i, j + 1) is a window of x'. A removal: x'_{i-1} <= x_i,
x'_j >= x_j, m shrinks by at most 1: (i - 1, j). A replacement by a larger value: x'_{i-1} <= x_i,
x'_j >= x_j: (i - 1, j); by a smaller one: (i, j + 1). Each is one longer and at least as wide.

So A_0 bounds the local sensitivity; min{k : A_k > B} changes are needed, at least, before the local
sensitivity may exceed B, and this number moves by at most 1 between neighbors; and max_k exp(-beta k) A_k is
a beta-smooth upper bound of the local sensitivity. For odd n under `replace` these are the exact values of
Nissim, Raskhodnikova & Smith 2007 (Section 3.1); the lemma covers the other relations and missing values,
too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import Bounds, Public
from ..tables import Source

Ints = NDArray[np.int64]
# The contribution of one row, in grid units, stays below this, so that int64 never wraps.
LIMIT = 1 << 62


def one_name_each(names: Any) -> Any:
    """Return an Arrow array of the names of units in which every unit has one name.

    0.0 and -0.0 are the name of one unit, and so are all bit patterns of NaN, as in SQL. A dictionary is
    unpacked, because it may list a name twice.
    """
    # slow to load
    import pyarrow.compute as pc

    if pa.types.is_dictionary(names.type):
        names = names.dictionary_decode()
    if not pa.types.is_floating(names.type):
        return names
    # Adding 0.0 makes 0.0 of -0.0.
    numbers = pc.add(names.cast(pa.float64()), 0.0)
    return pc.if_else(pc.is_nan(numbers), pa.scalar(float("nan")), numbers)


def each(source: Source, column: str) -> Iterator[Any]:
    """Yield the column, one Arrow array per batch, `unpacked`."""
    for batch in source.batches([column]):
        yield unpacked(batch.column(0))


def unpacked(array: Any) -> Any:
    """Return dictionaries as their values, booleans as 0 and 1, half floats as floats."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    return array.cast(pa.int8()) if pa.types.is_boolean(array.type) else array


def present(array: Any) -> NDArray[np.bool_]:
    """Return True where there is a value: not NULL, and for floats neither NaN nor infinite."""
    # slow to load
    import pyarrow.compute as pc

    valid = pc.is_valid(array)
    if pa.types.is_floating(array.type):
        valid = pc.fill_null(pc.and_(valid, pc.is_finite(array)), False)
    return np.asarray(valid.to_numpy(zero_copy_only=False), dtype=bool)


def numbers(array: Any, column: str) -> NDArray[Any]:
    """Return int64, uint64 or float64 with an arbitrary finite value where nothing is present."""
    # slow to load
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.int64)
    if pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        filled = array.cast(pa.float64(), safe=False)
    elif pa.types.is_integer(kind):
        filled = array.cast(pa.uint64() if pa.types.is_uint64(kind) else pa.int64())
    else:
        raise InvalidInput(
            f"column {column!r} holds {kind}, and a number is needed. Convert it, or declare Categories."
        )
    values: NDArray[Any] = pc.fill_null(filled, 0).to_numpy(zero_copy_only=False)
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0) if values.dtype.kind == "f" else values


def categories(array: Any, values: tuple[str | int, ...], column: str) -> Ints:
    """Return, for each row, the number of its category in `values`, or -1 if it has none of them."""
    # slow to load
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), -1, np.int64)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not (text or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InvalidInput(f"column {column!r} holds {kind}, and categories are strings or integers.")
    if text:
        array, kind = array.cast(pa.large_string()), pa.large_string()
    if pa.types.is_floating(kind):
        # makes 0.0 of -0.0: they are one number, as in SQL
        array = pc.add(array, pa.scalar(0, kind))
    fitting = [i for i, value in enumerate(values) if _fits(value, kind, text)]
    _require.that(
        fitting, f"column {column!r} holds {kind}, and none of its declared categories is of that type."
    )
    value_set = pa.array([values[i] for i in fitting], type=kind)
    codes = (
        pc.fill_null(pc.index_in(array, value_set=value_set), -1)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64)
    )
    # The code -1 picks the last entry, which is -1.
    numbered: Ints = np.append(np.array(fitting, np.int64), -1)[codes]
    return numbered


def _fits(value: str | int, kind: Any, text: bool) -> bool:
    """Return whether a category can be a value of an Arrow type."""
    if text or isinstance(value, str):
        return text and isinstance(value, str)
    try:
        pa.scalar(value, type=kind)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


class ColumnGrid:
    """Turns the values of one column into integers: v is clipped to its bounds and rounded to a multiple of
    `step`.

    Guarantee: every result lies in [low, high], the two bounds rounded exactly by floor(v / step + 1/2).
    Proof:     that rounding is monotone, so a clipped v lands between the rounded bounds; whatever floating
               point makes of v / step, the integer is clipped once more to exactly these.
    """

    def __init__(self, bounds: Bounds, step: Fraction, column: str) -> None:
        _require.must(
            isinstance(bounds, Bounds), f"the bounds of column {column!r}", bounds, "Bounds(lower, upper)"
        )
        self.step = step
        self.low, self.high = (
            nearest(_require.exact(v, "bound") / step) for v in (bounds.lower, bounds.upper)
        )
        _require.that(
            max(abs(self.low), abs(self.high)) < LIMIT,
            f"the bounds of column {column!r} reach further than 2**62 steps of {step} from zero. Choose "
            "a larger step.",
        )

    def __call__(self, values: NDArray[Any]) -> Ints:
        num, den = self.step.numerator, self.step.denominator
        # in steps; values further from zero are clipped anyway
        reach = max(abs(self.low), abs(self.high)) + 1
        if values.dtype.kind != "f" and (reach + 1) * num + den < 1 << 63:
            limit = reach * num // den + 1
            # num // 2 serves as num / 2, because the other summand is a whole number.
            rounded_steps = (den * np.clip(_as_signed(values), -limit, limit) + num // 2) // num
        else:
            # NumPy's warning would depend on the data; infinities are clipped below
            with np.errstate(over="ignore"):
                rounded = np.floor(values.astype(np.float64) * _float(1 / self.step) + 0.5)
            rounded_steps = np.clip(rounded, float(self.low), float(self.high)).astype(np.int64)
        return np.clip(rounded_steps, self.low, self.high)


def nearest(x: Fraction) -> int:
    """Return the integer nearest to x, halves up, exactly."""
    return (x + Fraction(1, 2)).__floor__()


def _as_signed(values: NDArray[Any]) -> Ints:
    """Return integers as int64; those of uint64 beyond its range become the largest int64."""
    top = np.iinfo(np.int64).max
    return np.minimum(values, top).astype(np.int64) if values.dtype == np.uint64 else values


def _float(x: Fraction) -> float:
    """Return x > 0 as a float, at most the largest finite one."""
    return min(_require.float_or_inf(x), np.finfo(np.float64).max)


def exact_sum(values: Ints) -> int:
    """Return the sum as a Python integer. The upper and lower 32 bits are added separately, so that nothing
    wraps below 2**31 rows per batch."""
    low = int(np.sum(values & 0xFFFFFFFF, dtype=np.int64))
    high = int(np.sum(values >> 32, dtype=np.int64))
    return (high << 32) + low


def as_integers(values: list[int]) -> NDArray[Any]:
    """Return int64 where all values fit, Python integers otherwise."""
    fits = all(-LIMIT < v < LIMIT for v in values)
    return np.array(values, dtype=np.int64 if fits else object)


def as_step(step: Any) -> Fraction:
    """Return the step of a grid as an exact, positive fraction."""
    exact = _require.exact(step, "step")
    _require.positive(step=exact)
    return exact


# Up to this many starts of windows are compared with all ends at once, without splitting. Not tuned: the
# result is the same for every number.
_BLOCK = 8


@dataclass(frozen=True, slots=True)
class Ordered:
    """Holds sorted values on an integer grid from `low` to `high`: the x_i of the module's text."""

    values: Ints
    low: int
    high: int

    @property
    def rank(self) -> int:
        """Return m, the rank of the median; 0 for an empty table."""
        return -(-len(self.values) // 2)

    def at(self, i: int) -> int:
        """Return x_i, counted from 1, with the bounds beyond the ends."""
        if i < 1:
            return self.low
        return int(self.values[i - 1]) if i <= len(self.values) else self.high

    @property
    def median(self) -> int:
        return self.at(self.rank)

    def widest(self, k: int) -> int:
        """Return A_k."""
        return int(np.max(self._right(k) - self._left(k)[::-1]))

    def distance(self, bound: int) -> int:
        """Return min{k : A_k > bound}, for a bound below high - low.

        A_k does not fall as k grows, and is high - low at k = n.
        """
        # Bisection: A_k is at most the bound for k up to `stable`, and above it from `unstable` on.
        stable, unstable = -1, len(self.values)
        while unstable - stable > 1:
            k = (stable + unstable) // 2
            stable, unstable = (stable, k) if self.widest(k) > bound else (k, unstable)
        return unstable

    def smooth(self, beta: float, floor: float) -> float:
        """Return max(floor, max_k exp(-beta k) A_k), to a relative error of 1e-12, which
        `stability._ROUNDING` allows for.

        Terms with k > ln((high - low) / floor) / beta are below the floor, so only that many values around
        the median matter.
        """
        steps = math.log(max((self.high - self.low) / floor, 1.0)) / beta
        last = min(len(self.values), math.floor(min(steps, 1e18)) + 1)
        return max(floor, _largest_discounted_width(self._left(last), self._right(last), beta))

    def _right(self, k: int) -> Ints:
        """Return x_m, ..., x_{m+k+1}."""
        window = self.values[max(self.rank - 1, 0) : self.rank + k + 1]
        # In an empty table x_m is x_0, the lower bound.
        return _pad(window, k + 2, before=self.low if self.rank == 0 else None, after=self.high)

    def _left(self, k: int) -> Ints:
        """Return x_m, x_{m-1}, ..., x_{m-k-1}."""
        window = self.values[max(self.rank - k - 2, 0) : self.rank][::-1]
        return _pad(window, k + 2, before=None, after=self.low)


def _largest_discounted_width(left: Ints, right: Ints, beta: float) -> float:
    """Return the maximum over s, t of (right[t] - left[s]) exp(-beta (s + t - 1)): the windows that begin s
    values below the median and end t values above it.

    Proof: ln(x_j - x_i) has increasing differences in (x_i, x_j), so the best j does not fall as i grows: as
           s grows, the (first) best t does not grow. Find it for the middle s, and split (Nissim,
           Raskhodnikova & Smith 2007, Section 3.1): O(n log n). If rounding makes a nearly best t look
           best, the same inequality bounds the loss by that rounding error.
    """
    best = 0.0
    tasks = [(0, len(left), 0, len(right))]
    while tasks:
        s_low, s_high, t_low, t_high = tasks.pop()
        middle = (s_low + s_high) // 2
        rows = slice(s_low, s_high) if s_high - s_low <= _BLOCK else slice(middle, middle + 1)
        s, t = np.arange(rows.start, rows.stop)[:, None], np.arange(t_low, t_high)[None, :]
        # s = t = 0 is no window: its width is 0, and its weight must not be infinite
        discounted = (right[t] - left[s]) * np.exp(-beta * np.maximum(s + t - 1.0, 0.0))
        best = max(best, float(discounted.max()))
        if s_high - s_low > _BLOCK:
            chosen = t_low + int(np.argmax(discounted[0]))
            tasks += [(s_low, middle, chosen, t_high), (middle + 1, s_high, t_low, chosen + 1)]
    return best


def _pad(values: Ints, length: int, *, before: int | None, after: int) -> Ints:
    """Return an array of `length`: `before` (if it is not None), `values`, and `after` as often as needed."""
    first = [] if before is None else [before]
    padded = np.full(length, after, np.int64)
    joined = np.concatenate([np.array(first, np.int64), values])[:length]
    padded[: len(joined)] = joined
    return padded


def read(source: Source, public: Public, column: str, grid: ColumnGrid) -> Ordered:
    """Return the values of a column on its grid, sorted.

    A missing value is left out, or counts as the lower bound where the column is not nullable.
    """
    nullable = public.bounds(column).nullable
    parts = [np.empty(0, np.int64)]
    for array in each(source, column):
        is_present = present(array)
        codes = grid(numbers(array, column))
        parts.append(codes[is_present] if nullable else np.where(is_present, codes, grid.low))
    return Ordered(np.sort(np.concatenate(parts)), grid.low, grid.high)
