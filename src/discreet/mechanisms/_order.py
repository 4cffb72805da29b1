"""Bounds how far one change can move a median, now and after k changes, for every neighbor relation at once.

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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._public import Public
from ..tables import Source
from . import arrow_columns

Ints = NDArray[np.int64]
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
        `smooth._ROUNDING` allows for.

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


def read(source: Source, public: Public, column: str, grid: arrow_columns.ColumnGrid) -> Ordered:
    """Return the values of a column on its grid, sorted.

    A missing value is left out, or counts as the lower bound where the column is not nullable.
    """
    nullable = public.bounds(column).nullable
    parts = [np.empty(0, np.int64)]
    for array in arrow_columns.each(source, column):
        is_present = arrow_columns.present(array)
        codes = grid(arrow_columns.numbers(array, column))
        parts.append(codes[is_present] if nullable else np.where(is_present, codes, grid.low))
    return Ordered(np.sort(np.concatenate(parts)), grid.low, grid.high)
