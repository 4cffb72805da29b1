"""Describes what is public about the value of an expression before any row is read: its kind, its range, and
its possible values.

Ranges follow from the declared facts by interval arithmetic, so that `SUM(visits * price)` needs no further
bounds. The range of a date is one of ordinals (`date.toordinal`). Ends are rounded to nearest, so that a
value may be outside its range by a rounding error; every value is clipped to its range again before it is
added up (`scan.clean`), and sensitivities hold whatever the rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from typing import Any

from .._public import Boolean, Bounds, Categories, Dates, Fact
from .errors import Refusal

# Ends of ranges beyond this count as infinite, so that the product of two finite ends is finite in floats.
HUGE = 1e150
# Below this magnitude every integer is a float of its own; beyond, two integers may be one float.
EXACT = 2**53


class Kind(StrEnum):
    """Names the four kinds of values; error messages show these words."""

    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "true or false"
    DATE = "date"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDomain:
    """Describes which values an expression can have: its kind, its range, and whether it may be NULL.

    `low` and `high`: the range of a number, or of a date's ordinal. `values`: all values except NULL, where
    these are few and public.

    Two fields are about whole numbers. `integral` is about values: no row can have a fraction. `integer` is
    about the engine's type: DuckDB would store it as an integer, judging by how the bounds are declared
    (`Bounds(0, 99)`, not `Bounds(0.0, 99.0)`). `integer` decides what `//` means, and which numbers can be
    group keys; it does not make a declared column `integral`, because its rows may still hold fractions.

    `finite`: False where a row may overflow to an infinity or NaN, which counts as missing in every
    aggregate. `null`: True for the literal NULL alone, which may be compared with any kind. An expression
    that may be NULL has a type in the engine, where comparing a text with a number would fail.

    For the result of an operator, its rule (`operators`) computes the domain, and `nodes.make` then sets
    `integer` and `finite`.
    """

    kind: Kind
    low: float = -math.inf
    high: float = math.inf
    integral: bool = False
    values: tuple[Any, ...] | None = None
    nullable: bool = True
    integer: bool = False
    finite: bool = True
    null: bool = False

    def __post_init__(self) -> None:
        if not -HUGE <= self.low <= HUGE:
            object.__setattr__(self, "low", -math.inf)
        if not -HUGE <= self.high <= HUGE:
            object.__setattr__(self, "high", math.inf)

    @property
    def never_missing(self) -> bool:
        """Return whether no row can lack a value: only then is the count of values the count of rows."""
        return self.finite and not self.nullable

    @property
    def bounded(self) -> bool:
        """Return whether both ends of the range are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def covers(self, other: ValueDomain) -> bool:
        """Return whether all that is said here of values is true of every value of `other`."""
        return (
            self.kind is other.kind
            and self.low <= other.low <= other.high <= self.high
            and (self.values is None or self.values == other.values)
            and self.integer is other.integer
            and (other.integral or not self.integral)
            and (other.finite or not self.finite)
            and (self.nullable or not other.nullable)
            and not self.null
        )

    def members(self, limit: int) -> tuple[Any, ...] | None:
        """Return the possible values (of a range of integers or dates in order); None if they are unknown,
        more than `limit`, or integers so large that two of them may be one double: a row must never be in two
        groups."""
        if self.values is not None:
            return self.values if len(self.values) <= limit and all(map(exactly_one, self.values)) else None
        if self.kind is Kind.BOOLEAN:
            return (False, True)
        if not (self.bounded and (self.integral or self.kind is Kind.DATE)) or self.high - self.low >= limit:
            return None
        first, last = math.ceil(self.low), math.floor(self.high)
        if not (exactly_one(first) and exactly_one(last)):
            return None
        if self.kind is Kind.DATE:
            return tuple(date.fromordinal(day) for day in range(first, last + 1))
        return tuple(range(first, last + 1))

    def need(self, kind: Kind, what: str) -> None:
        """Refuse values of another kind; `what` is the operation that the message names."""
        if self.kind is not kind:
            raise Refusal(f"{what} needs a {kind}, and this is a {self.kind}")


def is_plain(value: Any) -> bool:
    """Return whether a value can be a constant: NULL, a text, a day, a truth value, or a number that is
    finite as a DOUBLE."""
    if type(value) in (int, float):
        try:
            return math.isfinite(float(value))
        except OverflowError:
            return False
    return value is None or type(value) in (bool, str, date)


def exactly_one(value: Any) -> bool:
    """Return whether no other integer is the same double as this value."""
    return not isinstance(value, int | float) or abs(value) < EXACT


def number(low: float, high: float, *, integral: bool = False, nullable: bool = True) -> ValueDomain:
    """Return the domain of a number in a range."""
    return ValueDomain(kind=Kind.NUMBER, low=low, high=high, integral=integral, nullable=nullable)


def boolean(nullable: bool) -> ValueDomain:
    """Return the domain of a condition."""
    return ValueDomain(kind=Kind.BOOLEAN, nullable=nullable)


def text(values: tuple[str, ...] | None = None, *, nullable: bool = True) -> ValueDomain:
    """Return the domain of a text: one of these values, or any."""
    return ValueDomain(kind=Kind.TEXT, values=values, nullable=nullable)


def constant(value: Any) -> ValueDomain:
    """Return the domain of a literal."""
    if value is None:
        return ValueDomain(kind=Kind.NUMBER, low=0.0, high=0.0, integral=True, null=True)
    if isinstance(value, bool):
        return boolean(nullable=False)
    if isinstance(value, str):
        return text((value,), nullable=False)
    if isinstance(value, date):
        day = float(value.toordinal())
        return ValueDomain(kind=Kind.DATE, low=day, high=day, nullable=False)
    fixed = number(float(value), float(value), integral=float(value).is_integer(), nullable=False)
    return replace(fixed, integer=isinstance(value, int))


def declared(fact: Fact) -> ValueDomain:
    """Return the domain of a column with this declared fact."""
    if isinstance(fact, Bounds):
        span = number(float(fact.lower), float(fact.upper), nullable=fact.nullable)
        return replace(span, integer=isinstance(fact.lower, int) and isinstance(fact.upper, int))
    if isinstance(fact, Dates):
        low, high = (float(date.fromisoformat(end).toordinal()) for end in (fact.lower, fact.upper))
        return ValueDomain(kind=Kind.DATE, low=low, high=high, nullable=fact.nullable)
    if isinstance(fact, Boolean):
        return boolean(fact.nullable)
    if isinstance(fact, Categories):
        if all(isinstance(value, int) for value in fact.values):
            numbers = [int(value) for value in fact.values]
            span = number(float(min(numbers)), float(max(numbers)), integral=True)
            return replace(span, values=fact.values, integer=True)
        return text(tuple(str(value) for value in fact.values))
    return text()


def union(parts: list[ValueDomain], *, nullable: bool) -> ValueDomain:
    """Return the smallest domain that covers all of these domains, for the result of CASE, COALESCE or LEAST.
    Its listed `values` are in the order of `parts`, not sorted. `nodes.make` sets `integer` and `finite`."""
    kinds = {part.kind for part in parts}
    if len(kinds) > 1:
        raise Refusal(f"all branches must be of one kind, and these are {', '.join(sorted(kinds))}")
    kind = kinds.pop()
    values: tuple[Any, ...] | None = ()
    for part in parts:
        listed = part.values if part.values is not None else _only_value(part)
        values = None if listed is None or values is None else tuple(dict.fromkeys(values + listed))
    low, high = min(part.low for part in parts), max(part.high for part in parts)
    integral = all(part.integral for part in parts)
    return ValueDomain(kind=kind, low=low, high=high, integral=integral, values=values, nullable=nullable)


def _only_value(part: ValueDomain) -> tuple[Any, ...] | None:
    """Return the one value of a number whose range is a single integer; None for any other domain."""
    return (int(part.low),) if part.kind is Kind.NUMBER and part.integral and part.low == part.high else None


def corners(a: ValueDomain, b: ValueDomain, op: Any) -> tuple[float, float]:
    """Return the range of `op` over two ranges (interval arithmetic), for an operation that is monotone in
    each argument while the other is fixed: its extremes are at the four corners."""
    points = [_corner(op, x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(points), max(points)


def _corner(op: Any, x: float, y: float) -> float:
    """Return `op` at a corner; 0 where it is undefined (0 times infinity, a difference or quotient of
    infinities). This is safe because the other corners then cover the values near that corner."""
    result = float(op(x, y))
    return 0.0 if math.isnan(result) else result
