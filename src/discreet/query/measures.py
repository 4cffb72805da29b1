"""Defines what is measured: exact integers, one per group, and how much one unit (who is protected: a person,
or a row) can change them.

An aggregate is computed from a few measures; aggregates share the measures that they have in common, so that
`COUNT(x)` and `AVG(x)` pay for one count. Values are rounded to multiples of a step before they are added,
and the amount of one unit in one group is limited, so that a sum is an exact integer with a known sensitivity
whatever the table holds.

Holds how often each candidate occurs in each group, as a sparse matrix: zeros take no memory.

Candidates are the values among which a quantile or mode is chosen privately (`measures.Choice`). A dense
matrix of a million groups and two thousand candidates would take 16 GB. The engine returns only counts that
are not zero, and choices are made from a few dense rows at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors
from ..mechanisms.protocols import Sensitivity
from .aggregates import MAX_LISTED, Aggregate
from .domain import HUGE, ValueDomain, number
from .nodes import Expr, Literal, make
from .plan import Plan

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
# aggregates with two arguments
PAIRED = ("covar_pop", "covar_samp", "corr")
# The most rows, and the most groups, that one unit may contribute: the engine holds lists of this length for
# each unit. Not tuned.
MAX_ROWS = 100_000
# The longest range whose whole numbers are all candidates of a quantile. Not tuned.
MAX_WHOLE_CANDIDATES = 4096
# The least number of intervals between the candidates of any other quantile. Not tuned.
MIN_INTERVALS = 1024

# The smallest step whose square is still a normal floating-point number, with a margin.
_LEAST_STEP = 1e-150


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounding:
    """Limits what one unit contributes: at most `rows` rows in a group, and at most `groups` groups."""

    rows: int
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Describes one exact integer for every group.

    `kind`: rows, present (rows where `expression` is not NULL), units, distinct (different values), sum, or
    square (a sum of squares). `step`: values are rounded to multiples of it (`grid`). One row adds an integer
    in [low, high]: its value in steps minus `center`, or the square of that. One unit adds at most
    `Bounding.rows` times as much to a group, and to a count of units 1.

    `scaled`: the rows of a unit that has more than `Bounding.rows` count less each (for averages), instead of
    the unit's total being clipped (for sums). A scaled amount is rounded down to an integer, in whole steps
    far too coarsely for zeros and ones: so it is counted in parts of a step, `parts_per_step` to a step.
    """

    kind: str
    expression: Expr | None = None
    step: Fraction = Fraction(1)
    center: int = 0
    low: int = 0
    high: int = 1
    scaled: bool = False

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

    `kind` quantile: the candidates are `first` + i `step` for i below `points`, and `parameter` is its level
    q. `kind` mode or top: the candidates are `values`, and `parameter` says how many of the most common are
    chosen.
    """

    kind: str
    expression: Expr
    parameter: Fraction
    first: Fraction = Fraction(0)
    step: Fraction = Fraction(1)
    points: int = 0
    values: tuple[object, ...] = ()

    @property
    def width(self) -> int:
        """How many candidates there are."""
        return self.points if self.kind == "quantile" else len(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Describes how an aggregate is computed: as `function` of some measures (positions in
    `Recipes.measures`), or as the result of a choice (position in `Recipes.choices`)."""

    function: str
    measures: tuple[int, ...] = ()
    choice: int | None = None


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


class Recipes:
    """Collects the measures and choices that a plan's aggregates need, each once; `recipes` has one entry per
    aggregate of the plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.measures: list[Measure] = []
        self.choices: list[Choice] = []
        self.recipes = [self._recipe(aggregate) for aggregate in plan.aggregates]
        # a cache of `exact.statements`, the engine's queries
        self.written: dict[Any, Any] = {}

    def _recipe(self, aggregate: Aggregate) -> Recipe:
        """Return how an aggregate is computed, and add the measures that it needs."""
        function, x = aggregate.function, aggregate.argument
        if function == "count":
            return Recipe(function="count", measures=(self._count(x),))
        if function in ("units", "distinct"):
            return Recipe(function="count", measures=(self._add(Measure(kind=function, expression=x)),))
        assert x is not None
        if function == "sum":
            return Recipe(function="sum", measures=(self._add(self._sum(x, centered=False)),))
        if function in ("quantile", "mode", "top"):
            return Recipe(function=function, choice=self._choice(aggregate, x))
        if function in PAIRED:
            return self._pair_measures(function, x, aggregate.second)
        # An average beside SUM(x) shares the measure of that sum, which is not centered. Where units may have
        # several rows (`many`) it cannot: the average needs a scaled measure, and the sum a clipped one.
        if function == "avg" and not self.plan.many and Aggregate("sum", x) in self.plan.aggregates:
            return Recipe(function="avg", measures=(self._count(x), self._add(self._sum(x, centered=False))))
        moments = [self._count(x), self._add(self._sum(x, centered=True))]
        if function != "avg":
            moments.append(self._add(self._square(x)))
        return Recipe(function=function, measures=tuple(moments))

    def _pair_measures(self, function: str, x: Expr, y: Expr | None) -> Recipe:
        """Return the recipe of a covariance: the count, both sums and the sum of products, with the middles
        of both ranges subtracted from the values; a correlation needs both sums of squares too."""
        assert y is not None
        first, second = self._sum(x, centered=True), self._sum(y, centered=True)
        centered = [make("-", e, Literal(float(m.center * m.step))) for e, m in ((x, first), (y, second))]
        both = make("*", *centered)
        if not both.domain.bounded:
            raise InvalidInput(
                "the declared ranges of the two numbers of a covariance are so wide that their product may "
                f"be beyond {HUGE:g}. Declare narrower bounds, or write CLAMP(x, low, high)."
            )
        product = self._sum(both, centered=True)
        parts = [self._count(x), self._add(first), self._add(second), self._add(product)]
        if function == "corr":
            parts += [self._add(self._square(x)), self._add(self._square(y))]
        return Recipe(function=function, measures=tuple(parts))

    def _count(self, x: Expr | None) -> int:
        """Add the count of rows where `x` is not NULL, and return its position."""
        if x is None or x.domain.never_missing:
            return self._add(Measure(kind="rows"))
        return self._add(Measure(kind="present", expression=x))

    def _sum(self, x: Expr, *, centered: bool) -> Measure:
        """Return the measure of a sum; `centered` subtracts the middle of the range from every value."""
        step, low, high = grid(x.domain)
        center = (low + high) // 2 if centered else 0
        return Measure(
            kind="sum",
            expression=x,
            step=step,
            center=center,
            low=low - center,
            high=high - center,
            scaled=centered and self.plan.many,
        )

    def _square(self, x: Expr) -> Measure:
        """Return the measure of a sum of squares, with the middle of the range subtracted from every
        value."""
        base = self._sum(x, centered=True)
        if float(base.step) < _LEAST_STEP:
            raise InvalidInput(
                "the declared range of what VARIANCE, STDDEV or CORR is asked of is so narrow that its "
                "squares are no floating-point numbers. Declare the column in a smaller unit, such as 0 to "
                "100 instead of 0 to 1e-300."
            )
        largest = max(base.low**2, base.high**2)
        return Measure(
            kind="square",
            expression=x,
            step=base.step,
            center=base.center,
            low=0,
            high=largest,
            scaled=base.scaled,
        )

    def _choice(self, aggregate: Aggregate, x: Expr) -> int:
        """Add the choice of a quantile, mode or top, and return its position."""
        assert aggregate.parameter is not None
        if aggregate.function == "quantile":
            first, step, points = candidates(x.domain)
            choice = Choice(
                kind="quantile",
                expression=x,
                parameter=aggregate.parameter,
                first=first,
                step=step,
                points=points,
            )
        else:
            values = x.domain.members(MAX_LISTED) or ()
            choice = Choice(
                kind=aggregate.function, expression=x, parameter=aggregate.parameter, values=values
            )
        if choice not in self.choices:
            self.choices.append(choice)
        return self.choices.index(choice)

    def _add(self, measure: Measure) -> int:
        """Add a measure if it is new, and return its position."""
        if measure not in self.measures:
            self.measures.append(measure)
        return self.measures.index(measure)


def bounding_of(plan: Plan, unit_rows: int | None, unit_groups: int | None) -> Bounding:
    """Return the limits for one unit in this plan. `unit_rows`, `unit_groups`: what the analyst asked for, or
    else what the steward of the data declared; None without either. A query that needs a limit on rows is
    refused without one; the limit on groups is that on rows by default."""
    if not plan.many:
        return Bounding(rows=1, groups=1)
    # "units" counts a unit once in a group; mode and top count up to `unit_rows` of its rows, by default one
    once_by_default = all(a.function in ("units", "mode", "top") for a in plan.aggregates)
    if unit_rows is None and not once_by_default:
        raise InvalidInput(
            "one person may have several rows here, and it is not declared how many of them may count. Ask "
            "with rows=... (most rows of one person that count in one group), have the steward declare it, "
            "or count people with COUNT(DISTINCT ...)."
        )
    rows = 1 if unit_rows is None else unit_rows
    if max(rows, unit_groups or 1) > MAX_ROWS:
        raise InvalidInput(f"rows and groups must be at most {MAX_ROWS}, got {rows} and {unit_groups}.")
    if not plan.keys:
        return Bounding(rows=rows, groups=1)
    public_groups = plan.groups
    groups = rows if unit_groups is None else unit_groups
    return Bounding(rows=rows, groups=groups if public_groups is None else min(groups, public_groups))


# Entries of the dense rows that are made at a time, few enough for the processor's caches: a median of 1,281
# candidates took 0.20 ms per group, and 0.39 ms with 2**20 entries.
CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class SparseCounts:
    """A sparse matrix of `shape` (groups, candidates): the entry in row `group[i]` and column `candidate[i]`
    is `count[i]`, and all others are 0. `group` is sorted, which `dense` relies on."""

    group: Any
    candidate: Any
    count: Any
    shape: tuple[int, int]

    @staticmethod
    def of(group: Any, candidate: Any, count: Any, shape: tuple[int, int]) -> SparseCounts:
        """Return the matrix with these entries, given in any order."""
        order = np.argsort(group, kind="stable")
        return SparseCounts(group[order], candidate[order], count[order], shape)

    @property
    def rows_at_once(self) -> int:
        """How many dense rows have about `CELLS` entries; at least 1."""
        return max(1, CELLS // max(1, self.shape[1]))

    def dense(self, start: int, stop: int) -> Any:
        """Return the rows `start` to `stop` (exclusive) as a dense array."""
        stop = min(stop, self.shape[0])
        matrix = np.zeros((stop - start, self.shape[1]), self.count.dtype)
        entries = slice(*np.searchsorted(self.group, [start, stop]))
        matrix[self.group[entries] - start, self.candidate[entries]] = self.count[entries]
        return matrix

    def __getitem__(self, row: int) -> Any:
        return self.dense(row, row + 1)[0]

    def take(self, rows: Any) -> SparseCounts:
        """Return the matrix of the groups `rows`, in this order."""
        index_of = np.full(self.shape[0], -1, np.int64)
        index_of[rows] = np.arange(len(rows))
        group = index_of[self.group]
        kept = group >= 0
        return SparseCounts.of(
            group[kept], self.candidate[kept], self.count[kept], (len(rows), self.shape[1])
        )
