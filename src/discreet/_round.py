"""Directed rounding: what is reported may be pessimistic by an ulp, never optimistic."""

from __future__ import annotations

import math
from fractions import Fraction


def up(value: int | Fraction | float) -> float:
    """Return the smallest float that is not below `value`.

    >>> up(Fraction(1, 3)) >= Fraction(1, 3)
    True
    """
    return _nearest_beyond(value, math.inf)


def down(value: int | Fraction | float) -> float:
    """Return the largest float that is not above `value`."""
    return _nearest_beyond(value, -math.inf)


def _nearest_beyond(value: int | Fraction | float, direction: float) -> float:
    try:
        near = float(value)
    except OverflowError:
        huge = math.inf if value > 0 else -math.inf
        return huge if huge == direction else math.nextafter(huge, -huge)
    if math.isinf(near) or math.isnan(near):
        return near
    short = Fraction(near) < value if direction > 0 else Fraction(near) > value
    return math.nextafter(near, direction) if short else near


def sum_up(values: list[float]) -> float:
    """Return an upper bound of the sum: `math.fsum` is correctly rounded, so one ulp up covers it."""
    total = math.fsum(values)
    return total if total == 0 or math.isinf(total) else math.nextafter(total, math.inf)


def ceil_div(a: int | Fraction, b: int | Fraction) -> int:
    """Return the smallest integer that is not below a / b, exactly."""
    return -((-Fraction(a)) // Fraction(b))
