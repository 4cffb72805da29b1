"""Defines what is measured: exact integers, one per group, and how much one unit (who is protected: a person,
or a row) can change them.

Values are rounded to multiples of a step before they are added, and the amount of one unit in one group is
limited, so that a sum is an exact integer with a known sensitivity whatever the table holds. Whoever asks
says what is added up; the step, the range and the sensitivity are computed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Annotated

from .. import _require
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors
from .._require import at_least, at_most
from ..mechanisms.protocols import Sensitivity
from .domain import Kind, ValueDomain, number
from .errors import QueryError
from .nodes import Call, Column, Expr, Literal

# A range has between this many and half as many steps on the larger side of zero or, if it is narrow and lies
# far from zero, from end to end; whole numbers have steps of at least 1. Rounding changes a value by at most
# 2**-30 of that length, so that the sum of a billion values is off by one length at most: with 2**20, sums
# and averages of a million values of one decimal were off by more than their noise. The square of a value
# counted from the middle of the range fits 64 bits. DuckDB takes the same time with 2**20 and 2**30.
STEPS = 1 << 30
# The most steps between zero and the end of a narrow range far from it: the rows of one unit (`MAX_ROWS`) add
# up to less than 2**63.
MAX_END = 1 << 40
# The exponent of the smallest step: the reciprocal of 2**-1000 is still a float.
FINEST = -1000
# Sums of one unit's rows (`decimal_places`) keep at least this many decimals, ...
DECIMALS = 6
# ... in a narrow range so many more that its larger end has this many digits in all, ...
DIGITS = 12
# ... and in a wide one fewer: doubles tell numbers of up to this many digits apart.
MAX_DIGITS = 15
# The largest power of ten that is a double: 5**22 is below 2**53.
MAX_DECIMALS = 22
# The most rows, and the most groups, that one unit may contribute: the engine holds lists of this length for
# each unit. Not tuned.
MAX_ROWS = 100_000
# The longest public list of values that a mode is chosen from. Not tuned.
MAX_LISTED = 1 << 16
# The longest range whose whole numbers are all candidates of a quantile. Not tuned.
MAX_WHOLE_CANDIDATES = 4096
# The least number of intervals between the candidates of any other quantile. Not tuned.
MIN_INTERVALS = 1024

# The smallest step whose square is still a normal floating-point number, with a margin.
_LEAST_STEP = 1e-150


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounding:
    """Limits what one unit contributes: at most `rows` rows in a group, and at most `groups` groups."""

    rows: Annotated[int, at_least(1), at_most(MAX_ROWS)]
    groups: Annotated[int, at_least(1), at_most(MAX_ROWS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Describes one exact integer for every group.

    `kind`: rows, present (rows where `expression` is not NULL), units, distinct (different values), sum, or
    square (a sum of squares). `centered`: the middle of the range is subtracted from every value. `scaled`:
    the rows of a unit that has more than `Bounding.rows` count less each (for averages), instead of the
    unit's total being clipped (for sums). A scaled amount is rounded down to an integer, in whole steps far
    too coarsely for zeros and ones: so it is counted in parts of a step, `parts_per_step` to a step.

    All else follows from these. `step`: values are rounded to multiples of it (`grid`). One row adds an
    integer in [low, high]: its value in steps minus `center`, or the square of that. One unit adds at most
    `Bounding.rows` times as much to a group, and to a count of units 1.
    """

    kind: str
    expression: Expr | None = None
    centered: bool = False
    scaled: bool = False
    step: Fraction = field(init=False, compare=False)
    center: int = field(init=False, compare=False)
    low: int = field(init=False, compare=False)
    high: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in ("rows", "present", "units", "distinct", "sum", "square"):
            raise QueryError(f"{self.kind!r} is nothing that is measured.")
        if (self.expression is None) is not (self.kind == "rows") and self.kind != "units":
            raise QueryError(f"a measure of {self.kind} with expression {self.expression!r}.")
        if (self.centered or self.scaled) and self.kind not in ("sum", "square"):
            raise QueryError(f"a measure of {self.kind} has no middle, and is not scaled.")
        for name, value in zip(("step", "center", "low", "high"), self._range(), strict=True):
            object.__setattr__(self, name, value)

    def _range(self) -> tuple[Fraction, int, int, int]:
        """Return `step`, `center`, `low` and `high`."""
        if self.kind not in ("sum", "square") or self.expression is None:
            return Fraction(1), 0, 0, 1
        if not isinstance(self.expression, Column | Literal | Call):
            raise QueryError(f"{type(self.expression).__name__} is no expression over rows.")
        domain = self.expression.domain
        if domain.kind is not Kind.NUMBER or not domain.bounded:
            raise QueryError("only numbers with a known range are added up.")
        step, low, high = grid(domain)
        center = (low + high) // 2 if self.centered else 0
        low, high = low - center, high - center
        if self.kind == "sum":
            return step, center, low, high
        if float(step) < _LEAST_STEP:
            raise InvalidInput(
                "the declared range of what VARIANCE, STDDEV or CORR is asked of is so narrow that its "
                "squares are no floating-point numbers. Declare the column in a smaller unit, such as 0 to "
                "100 instead of 0 to 1e-300."
            )
        return step, center, 0, max(low**2, high**2)

    @property
    def parts_per_step(self) -> int:
        """Into how many parts a step of the grid is divided: 1 unless `scaled`, else the largest power of two
        with which one row adds at most `STEPS` parts, and 1 if there is none."""
        return 1 << max(0, (STEPS // max(-self.low, self.high, 1)).bit_length() - 1) if self.scaled else 1

    @property
    def resolution(self) -> Fraction:
        """The amount that an integer of 1 stands for, in the unit of the expression (or of its square)."""
        return (self.step**2 if self.kind == "square" else self.step) / self.parts_per_step

    def limits(self, bounding: Bounding) -> tuple[int, int]:
        """Return the least and the most that one unit can add to one group. The least is at most 0 and the
        most at least 0, because a unit may have no row in a group."""
        times = self.parts_per_step * (1 if self.kind == "units" else bounding.rows)
        return times * min(self.low, 0), times * max(self.high, 0)

    def sensitivity(self, bounding: Bounding, neighbors: Neighbors, groups: int | None) -> Sensitivity:
        """Return how much one unit can change the vector of this measure in all groups; `groups` is the
        number of public groups, or None where they are not public.

        Guarantee: the change between any two neighbors is within the returned norms.
        Proof:     a unit's own vector v has at most L0 = min(`bounding.groups`, `groups`) entries that are
                   not 0, each in [lo, hi] = `limits` with lo <= 0 <= hi, and no other unit's vector depends
                   on it (`compile`). Under add_remove the sum changes by v. Under replace, and under zero_out
                   (the blanked unit may be in any groups), it changes by v - w for two such vectors: an entry
                   changes by at most hi - lo, and at most 2 L0 entries change; |v - w|_1 <= |v|_1 + |w|_1 <=
                   2 L0 max(-lo, hi); |v - w|_2² is at most (hi - lo)² for each entry where both are not 0,
                   plus max(lo², hi²) for each other one. With s such shared entries that is
                   s (hi - lo)² + 2 (L0 - s) max(lo², hi²), linear in s, so its maximum is at s = 0 or s = L0.
                   Distinct counts are not sums, but adding a unit raises each entry by 0 to hi in at most L0
                   groups, and removing it lowers them by as much.
        """
        lo, hi = self.limits(bounding)
        largest, span = max(-lo, hi), hi - lo
        l0 = bounding.groups if groups is None else min(bounding.groups, groups)
        if neighbors is ADD_REMOVE:
            return Sensitivity(linf=largest, l0=l0)
        changed_groups = 2 * l0 if groups is None else min(2 * l0, groups)
        l2_squared = max(l0 * span**2, 2 * l0 * largest**2)
        return Sensitivity(linf=span, l0=changed_groups, l1=2 * l0 * largest, l2_squared=l2_squared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Describes a value that is chosen privately in every group.

    `kind` quantile: `parameter` is its level q, and the candidates are `first` + i `step` for i below
    `points` (`candidates`). `kind` mode or top: the candidates are `values`, all that the expression can
    have, and `parameter` says how many of the most common are chosen.
    """

    kind: str
    expression: Expr
    parameter: Fraction
    first: Fraction = field(init=False, compare=False, default=Fraction(0))
    step: Fraction = field(init=False, compare=False, default=Fraction(1))
    points: int = field(init=False, compare=False, default=0)
    values: tuple[object, ...] = field(init=False, compare=False, default=())

    def __post_init__(self) -> None:
        if not (isinstance(self.expression, Column | Literal | Call) and type(self.parameter) is Fraction):
            raise QueryError("a choice has an expression over rows, and a fraction.")
        domain, set_field = self.expression.domain, object.__setattr__
        if (
            self.kind == "quantile"
            and domain.kind is Kind.NUMBER
            and domain.bounded
            and 0 < self.parameter < 1
        ):
            for name, value in zip(("first", "step", "points"), candidates(domain), strict=True):
                set_field(self, name, value)
        elif self.kind in ("mode", "top"):
            set_field(self, "values", domain.members(MAX_LISTED) or ())
        if not self.width or not 1 <= self.picks <= self.width:
            raise QueryError(f"a {self.kind} cannot be chosen from these values.")

    @property
    def width(self) -> int:
        """How many candidates there are."""
        return self.points if self.kind == "quantile" else len(self.values)

    @property
    def picks(self) -> int:
        """How many of the candidates are chosen."""
        return int(self.parameter) if self.kind == "top" else 1


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Holds a key of GROUP BY. `values`: all values it can have, None if these are not public; `written`: the
    key as SQL, for messages."""

    expression: Expr
    values: tuple[object, ...] | None
    written: str = field(default="", compare=False)


def grid(domain: ValueDomain) -> tuple[Fraction, int, int]:
    """Return the step of the grid for a range, and the range's ends in steps, rounded outwards. The step is 1
    for whole numbers up to 2**30, else a power of two, so that multiplying by it is exact."""
    magnitude, width = max(abs(domain.low), abs(domain.high)), domain.high - domain.low
    bits = STEPS.bit_length() - 1
    # up to this magnitude, the square of a whole number fits 64 bits
    if domain.integral and magnitude <= 1 << 30:
        step = Fraction(1)
    else:
        # not frexp(magnitude / STEPS), which may underflow to 0, whose exponent is 0
        exponent = math.frexp(magnitude)[1]
        # A narrow range far from zero has steps for its width, as long as its ends are at most MAX_END steps.
        if width > 0:
            exponent = min(
                exponent, max(math.frexp(width)[1], exponent - (MAX_END // STEPS).bit_length() + 1)
            )
        step = Fraction(2) ** max(exponent - bits, 0 if domain.integral else FINEST)
    return step, math.floor(Fraction(domain.low) / step), math.ceil(Fraction(domain.high) / step)


def decimal_places(domain: ValueDomain) -> int | None:
    """Return how many decimals the values of a range are rounded to before the rows of one unit are added up;
    None where the range is so wide or so narrow that it takes the steps of `grid`.

    Guarantee: for |x| within the range, a number of that many decimals (k) is recovered from its double as
               the integer nearest to x * 10**k, at most 10**15, and the double nearest to a sum n / 10**k is
               the quotient of the doubles n and 10**k, for |n| <= 2**53. So a sum is the same double as the
               number that an analyst writes, and comparisons with it are those of decimals.
    Proof:     x and its product with 10**k, which is a double, are each off by 2**-53 of it at most: by less
               than 0.25 together. n and 10**k are doubles, and a quotient of doubles is rounded correctly.
    """
    magnitude = Decimal(max(abs(domain.low), abs(domain.high)))
    # the least exponent with magnitude <= 10**exponent
    exponent = magnitude.adjusted() + (magnitude > Decimal(10) ** magnitude.adjusted())
    places = min(MAX_DIGITS - exponent, 0 if domain.integral else max(DECIMALS, DIGITS - exponent))
    return places if 0 <= places <= MAX_DECIMALS else None


def rounding_of(low: float, high: float) -> Fraction:
    """Return a bound on how far rounding to the grid moves a value of the range [low, high], and so the
    average of such values: a step, twice what is needed, as `low` and `high` may themselves be rounded."""
    return grid(number(low, high))[0]


def candidates(domain: ValueDomain) -> tuple[Fraction, Fraction, int]:
    """Return the candidates for a quantile: the first, the step between them, and their number.

    They are all whole numbers of the range if it is at most `MAX_WHOLE_CANDIDATES` long, else about
    `MIN_INTERVALS` to twice as many points, whose step is a power of two.
    """
    low, high = Fraction(domain.low), Fraction(domain.high)
    if domain.integral and high - low <= MAX_WHOLE_CANDIDATES:
        return low, Fraction(1), int(high - low) + 1
    step = Fraction(2) ** (math.frexp(float(high - low) / MIN_INTERVALS)[1] - 1)
    if domain.integral:
        step = max(step, Fraction(1))
    first = (low / step).__floor__() * step
    return first, step, int((high - first) / step) + 1
