"""Attacks the sensitivity of sums in machine arithmetic: one person moves a computed sum further than the
exact sum.

Noise is scaled to how far one row can move the *true* sum. Machine integers wrap, floats round, and both can
move a computed sum by thousands of times that (Casacuberta, Shoemate, Vadhan & Wagaman 2022). Each attack is
a pair of neighboring tables, bounded as declared, with the sensitivity that a textbook would claim.

>>> in_order = lambda values: np.cumsum(values, dtype=values.dtype)[-1]
>>> [(round(attempt(kind, in_order).factor), attempt_on_ours(kind).succeeded) for kind in KINDS]
[(64, False), (512, False), (8, False)]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from discreet import REPLACE, Bounds, Public, _require
from discreet.mechanisms import Sum
from discreet.tables import Memory


@dataclass(frozen=True, eq=False)
class NeighboringColumns:
    """Holds two columns that differ in one row. All values are within [lower, upper]; `claimed`, the width of
    that interval, is how far replacing one row can move the exact sum.
    """

    kind: str
    first: Any
    second: Any
    lower: Fraction
    upper: Fraction

    @property
    def claimed(self) -> Fraction:
        return self.upper - self.lower


@dataclass(frozen=True, slots=True, kw_only=True)
class SumAttack:
    """Says how far one row moved a sum, and how far it was claimed to be able to."""

    kind: str
    claimed: float
    observed: float

    @property
    def succeeded(self) -> bool:
        return self.observed > self.claimed

    @property
    def factor(self) -> float:
        """Return the factor by which epsilon is larger than claimed, if noise is scaled to the claimed
        sensitivity.
        """
        return self.observed / self.claimed


def overflow(rows: int = 64) -> NeighboringColumns:
    """Return 32-bit integers that add up to the largest one; with one more, the sum wraps to the smallest
    one."""
    top = (1 << 31) - 1
    each = top // rows
    first = np.full(rows, each, np.int32)
    first[0] += top - each * rows
    second = first.copy()
    second[0] += 1
    return NeighboringColumns("overflow", first, second, Fraction(0), Fraction(2 * each))


def rounding(rows: int = 1024) -> NeighboringColumns:
    """Return doubles just above 1, all within 2^-51 of each other: the last addition rounds down in one table
    and up in the other.

    A table has `rows` + 1 rows, `rows` a power of two. Every row is 1 + h - 2^-52, except that the last row
    of the second table is 1 + h + 2^-52. The sum of the first `rows` is the same; h is chosen so that the
    two sums, before they are rounded, lie on either side of a midpoint between two doubles. They round to
    different doubles, one unit in the last place apart: 2^-52 `rows`, where 2^-51 is claimed.
    """
    lower, upper = _straddle(rows)
    first = np.full(rows + 1, lower)
    second = first.copy()
    second[-1] = upper
    return NeighboringColumns("rounding", first, second, Fraction(lower), Fraction(upper))


def _straddle(rows: int) -> tuple[float, float]:
    """Return two doubles near 1, two units in the last place apart: the sum of `rows` times the lower one,
    plus the lower or the upper one, rounds to different doubles."""
    for k in range(1, 4 * rows):
        lower, upper = 1 + k * 2.0**-52, 1 + (k + 2) * 2.0**-52
        base = float(np.cumsum(np.full(rows, lower))[-1])
        if base + upper - (base + lower) >= 2.0**-52 * rows / 2:
            return lower, upper
    raise _require.fail("rows", rows, "a number of rows for which rounding matters")


def repeated_rounding(pairs: int = 1 << 16) -> NeighboringColumns:
    """Return 32-bit floats: while the running sum is just below a power of two, a pair of rows adds nothing
    to it; at the power of two or above, each pair adds two units in the last place.

    The difference of the two sums grows with the number of rows.

    Here u = 2^-14 is the unit in the last place of 32-bit floats just below 1024. A pair is +1.25u, -0.75u.
    From 1024 - 2u it leads back to 1024 - 2u (rounding to multiples of u); from 1024 it leads to 1024 + 2u
    (rounding to multiples of 2u). One row, which is 1 - 2u or 1, decides where the pairs start.
    """
    u = 2.0**-14
    alternating = np.tile(np.array([1.25 * u, -0.75 * u], np.float32), pairs)
    first = np.concatenate([np.ones(1023, np.float32), np.array([1 - 2 * u], np.float32), alternating])
    second = first.copy()
    second[1023] = 1.0
    return NeighboringColumns("repeated rounding", first, second, Fraction(-0.75 * u), Fraction(1))


KINDS: dict[str, Callable[[], NeighboringColumns]] = {
    "overflow": overflow,
    "rounding": rounding,
    "repeated rounding": repeated_rounding,
}


def attempt(kind: str, total: Callable[[Any], Any]) -> SumAttack:
    """Run the attack of this kind on a function that adds up an array."""
    if kind not in KINDS:
        raise _require.fail("kind", kind, f"one of {', '.join(KINDS)}")
    pair = KINDS[kind]()
    with np.errstate(over="ignore"):
        difference = abs(_exact(total(pair.first)) - _exact(total(pair.second)))
    return SumAttack(kind=kind, claimed=float(pair.claimed), observed=float(difference))


def attempt_on_ours(kind: str, step: Fraction = Fraction(1, 1 << 52)) -> SumAttack:
    """Run the same attack on `mechanisms.Sum`, which rounds each row to a multiple of `step` (of 1 for
    "overflow", whose rows are integers) and adds in integers; its claim is the sensitivity it is priced for.
    """
    if kind not in KINDS:
        raise _require.fail("kind", kind, f"one of {', '.join(KINDS)}")
    pair = KINDS[kind]()
    grid = Fraction(1) if kind == "overflow" else step
    public = Public(
        schema=(("x", Bounds(pair.lower, pair.upper, nullable=False)),),
        neighbors=REPLACE,
        size=len(pair.first),
    )
    statistic = Sum("x", grid)
    first, second = (int(statistic(Memory({"x": column}, public))) for column in (pair.first, pair.second))
    claimed = statistic.sensitivity(public).linf * grid
    return SumAttack(kind=kind, claimed=float(claimed), observed=float(abs(first - second) * grid))


def _exact(value: Any) -> Fraction:
    return Fraction(int(value)) if isinstance(value, int | np.integer) else Fraction(float(value))
