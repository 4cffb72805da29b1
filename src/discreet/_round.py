"""Directed rounding: `up` and `down` are exact. The text of an amount, such as an epsilon that was spent, is
rounded to the safe side. Before that, the amount is rounded to fourteen significant digits, to nearest: later
digits are taken for rounding errors of a sum."""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import ClassVar

# The number of significant digits of a shown amount, and the number of digits in which a sum of floats is
# taken to be right. Both are conventions; `curator.accounts.legible` cuts amounts to ten digits itself, and
# with fewer digits here their text would differ from their value.
_DIGITS, _SUM_DIGITS = 10, 14
_GENERAL = re.compile(r"\.(\d+)g")


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
    """Return the float nearest to `value` that is not before it in the direction (inf: not below, -inf: not
    above). Infinities and NaN stay."""
    try:
        near = float(value)
    except OverflowError:
        huge = math.inf if value > 0 else -math.inf
        return huge if huge == direction else math.nextafter(huge, -huge)
    if math.isinf(near) or math.isnan(near):
        return near
    short = Fraction(near) < value if direction > 0 else Fraction(near) > value
    return math.nextafter(near, direction) if short else near


def significant(value: float, digits: int, rounding: str) -> float:
    """Return a float rounded to `digits` significant digits; `rounding` is a mode of the module `decimal`.

    Digits beyond the fourteenth are taken for the rounding error of a sum of floats: they are first rounded
    to nearest, so that they do not move the result.

    >>> significant(1.0999999999999965, 10, ROUND_CEILING), significant(1.1000000000000003, 4, ROUND_CEILING)
    (1.1, 1.1)
    """
    if value == 0 or not math.isfinite(value):
        return float(value)
    exact = Decimal(float(value))
    # the value is 0.d1d2d3... times 10**exponent, with d1 not 0
    exponent = exact.adjusted() + 1
    near = exact.quantize(Decimal(1).scaleb(exponent - _SUM_DIGITS))
    # `near` has at most 14 digits, and `quantize` raises an error above 28, the default precision of
    # `decimal`.
    digits = min(digits, _SUM_DIGITS)
    return float(near.quantize(Decimal(1).scaleb(exponent - digits), rounding=rounding))


class UpperAmount(float):
    """Shows a float rounded up, for amounts that were spent: by repr, str and the format ".<digits>g" (other
    formats round as floats do). The value is not rounded, and arithmetic gives plain floats.

    >>> spent = UpperAmount(1.0999999999999965)
    >>> spent, f"{spent} {UpperAmount(1.00004):.4g}", spent == 1.0999999999999965
    (1.1, '1.1 1.001', True)
    """

    __slots__ = ()
    _rounding: ClassVar[str] = ROUND_CEILING

    def __repr__(self) -> str:
        return repr(significant(self, _DIGITS, self._rounding))

    def __format__(self, spec: str) -> str:
        if not spec:
            return repr(self)
        general = _GENERAL.fullmatch(spec)
        if general is None or int(general[1]) == 0:
            return float.__format__(self, spec)
        return format(significant(self, int(general[1]), self._rounding), spec)


class LowerAmount(UpperAmount):
    """Shows a float rounded down, for amounts that are left; otherwise as `UpperAmount`."""

    __slots__ = ()
    _rounding = ROUND_FLOOR


def ceil_div(a: int | Fraction, b: int | Fraction) -> int:
    """Return the smallest integer that is not below a / b, exactly."""
    return -((-Fraction(a)) // Fraction(b))
