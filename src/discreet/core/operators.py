"""Defines the operators of expressions, a closed list: for each the rule of its domain (what is public about
its value), its SQL for the engine, and its computation on released values.

Every operator is total: no division, cast, root or logarithm can fail on any row, because an error would
reveal something about that row. Numbers are computed as DOUBLE. Where plain SQL would raise an error, the
result is NULL.

Defines the domain rules of operators: which values a result can have, given which values its arguments can
have.

A rule takes the domains of the arguments (`domain.ValueDomain`) and returns the domain of the result, or
raises a `Refusal` for arguments that the operator is not for. A domain may be too wide, never too narrow: it
decides the sensitivity of sums, and which groups are public. A value that is NULL is called missing; values
of `domain.number(...)` may be missing unless nullable=False is given. `ValueDomain.integral` says that all
values are whole numbers, and `integer` that the engine's type is an integer type, for which // truncates.

Computes the domains (`domain.ValueDomain`) of functions of dates from those of their arguments:
differences, sums with days and months, parts, DATE_TRUNC and STRFTIME.

A function that does this for one operator is its rule (`Rule`). In a domain, `low` and `high` of a date
are ordinals (`date.toordinal`).

Defines the domain rules of text functions: which texts a result can be. If the argument is a column of
declared categories, all results are computed beforehand and listed, so that groups of them are public;
otherwise the result is any text.
"""

from __future__ import annotations

import math
import operator
import re
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from typing import Any

import numpy as np
from sqlglot import exp

from .._errors import InvalidInput
from ..tables import semantics
from ..tables.semantics import INTEGERS, engine_values
from .domain import Kind, ValueDomain, boolean, corners, number, text, union
from .errors import Node, Refusal

Rule = Callable[..., ValueDomain]
# The most values of a domain of whole numbers that are listed one by one, so that groups can be formed of
# them; of more values only the bounds are known. Not tuned.
_MAX_LISTED = 4096
# The largest exponent of POWER. Not tuned: a range beyond `domain.HUGE` counts as unbounded anyway.
_LARGEST_EXPONENT = 8
# The bounds at which EXP is evaluated lie between these: e^-745 is the smallest double above zero, and e^340,
# about 5e147, is below `domain.HUGE`, beyond which a range counts as unbounded.
_EXP_ENDS = -745.0, 340.0


def any_null(*args: ValueDomain) -> bool:
    """Return whether one of the arguments may be NULL."""
    return any(arg.nullable for arg in args)


def is_fixed(a: ValueDomain) -> bool:
    """Return whether this is the same number in every row, and never NULL."""
    return a.kind is Kind.NUMBER and a.low == a.high and not a.nullable


def numbers(what: str, *args: ValueDomain) -> None:
    """Refuse arguments that are not numbers; `what` names the operator in the refusal."""
    for arg in args:
        arg.need(Kind.NUMBER, what)


def arithmetic(op: Callable[[float, float], float], what: str) -> Rule:
    """Return the rule of +, - or *: the extremes lie at the corners of the arguments' bounds."""

    def rule(a: ValueDomain, b: ValueDomain) -> ValueDomain:
        if Kind.DATE in (a.kind, b.kind):
            raise Refusal(
                "dates can have days added, be subtracted, compared, truncated and taken apart into year, "
                "month and the like; no other arithmetic is possible"
            )
        numbers(what, a, b)
        low, high = corners(a, b, op)
        result = number(low, high, integral=a.integral and b.integral, nullable=any_null(a, b))
        return replace(result, values=_listed_results(a, b, op))

    return rule


def _listed_results(
    a: ValueDomain, b: ValueDomain, op: Callable[[float, float], float]
) -> tuple[Any, ...] | None:
    """Return all results of an operation on whole numbers, or None where they are too many to list: those of
    FLOOR(age / 10) * 10 are 0, 10, 20, ..."""
    if not (a.integral and b.integral):
        return None
    left, right = a.members(_MAX_LISTED), b.members(_MAX_LISTED)
    if left is None or right is None or len(left) * len(right) > _MAX_LISTED:
        return None
    return tuple(sorted({op(x, y) for x in left for y in right}))


def divide(a: ValueDomain, b: ValueDomain) -> ValueDomain:
    """Return the domain of /: unbounded, and possibly missing, where the divisor can be zero."""
    numbers("/", a, b)
    if b.low > 0 or b.high < 0:
        low, high = corners(a, b, lambda x, y: x / y)
        return number(low, high, nullable=any_null(a, b))
    return number(-math.inf, math.inf)


def integer_divide(a: ValueDomain, b: ValueDomain) -> ValueDomain:
    """Return the domain of `//` on integers (`ValueDomain.integer`): the quotient, cut off towards zero."""
    return monotone(math.trunc, "//", integral=True)(divide(a, b))


def exactly_whole(a: ValueDomain) -> ValueDomain:
    """Return the domain of the operator that keeps whole numbers and makes all others missing: GROUP BY
    applies it to a number that is declared with integer bounds."""
    numbers("GROUP BY", a)
    return number(a.low, a.high, integral=True)


def sign(a: ValueDomain) -> ValueDomain:
    """Return the domain of SIGN."""
    numbers("SIGN", a)
    low, high = (float((end > 0) - (end < 0)) for end in (a.low, a.high))
    return number(low, high, integral=True, nullable=a.nullable)


def modulo(a: ValueDomain, b: ValueDomain) -> ValueDomain:
    """Return the domain of %: the sign is the dividend's, as in DuckDB; missing where the divisor is 0."""
    numbers("%", a, b)
    divisor = max(abs(b.low), abs(b.high))
    integral = a.integral and b.integral
    largest = divisor - 1 if integral and divisor >= 1 else divisor
    low = 0.0 if a.low >= 0 else -largest
    return number(low, 0.0 if a.high <= 0 else largest, integral=integral, nullable=True)


def monotone(op: Callable[[float], float], what: str, *, integral: bool | None = None) -> Rule:
    """Return the rule of a non-decreasing function: the bounds of the result are its values at the bounds of
    the argument. `integral`: whether results are whole numbers; by default as the argument."""

    def rule(a: ValueDomain) -> ValueDomain:
        numbers(what, a)
        low, high = (op(end) if math.isfinite(end) else end for end in (a.low, a.high))
        return number(low, high, integral=a.integral if integral is None else integral, nullable=a.nullable)

    return rule


def absolute(a: ValueDomain) -> ValueDomain:
    """Return the domain of ABS."""
    numbers("ABS", a)
    ends = sorted((abs(a.low), abs(a.high)))
    low = 0.0 if a.low <= 0 <= a.high else ends[0]
    return number(low, ends[1], integral=a.integral, nullable=a.nullable)


def square_root(a: ValueDomain) -> ValueDomain:
    """Return the domain of SQRT, which is missing below zero."""
    numbers("SQRT", a)
    return number(math.sqrt(max(a.low, 0.0)), math.sqrt(max(a.high, 0.0)), nullable=a.nullable or a.low < 0)


def logarithm(log: Callable[[float], float], what: str) -> Rule:
    """Return the rule of a logarithm, which is missing at zero and below."""

    def rule(a: ValueDomain) -> ValueDomain:
        numbers(what, a)
        low = log(a.low) if a.low > 0 else -math.inf
        return number(low, log(a.high) if a.high > 0 else 0.0, nullable=a.nullable or a.low <= 0)

    return rule


def exponential(a: ValueDomain) -> ValueDomain:
    """Return the domain of EXP."""
    numbers("EXP", a)
    least, largest = _EXP_ENDS
    low, high = (math.exp(max(least, min(end, largest))) for end in (a.low, a.high))
    # Engines round e^x to zero below about -745.
    low = low if a.low > least else 0.0
    return number(low, high if a.high < largest else math.inf, nullable=a.nullable)


def power(a: ValueDomain, b: ValueDomain) -> ValueDomain:
    """Return the domain of POWER with a fixed exponent."""
    numbers("POWER", a, b)
    if not is_fixed(b) or b.low != int(b.low) or not 0 <= b.low <= _LARGEST_EXPONENT:
        raise Refusal(f"POWER needs a fixed whole exponent between 0 and {_LARGEST_EXPONENT}")
    n = int(b.low)
    ends = [_power_of_bound(end, n) for end in (a.low, a.high)]
    low = 0.0 if n % 2 == 0 and n > 0 and a.low <= 0 <= a.high else min(ends)
    return number(low, max(ends), integral=a.integral, nullable=a.nullable)


def _power_of_bound(end: float, n: int) -> float:
    """Return `end**n`, infinite where it overflows."""
    if n == 0:
        return 1.0
    try:
        return float(end**n)
    except OverflowError:
        return -math.inf if end < 0 and n % 2 else math.inf


def clamp(a: ValueDomain, low: ValueDomain, high: ValueDomain) -> ValueDomain:
    """Return the domain of CLAMP(x, low, high): missing where x is no finite number."""
    numbers("CLAMP", a, low, high)
    if not (is_fixed(low) and is_fixed(high) and low.low < high.low):
        raise Refusal("CLAMP(x, low, high) needs two fixed numbers, low below high")
    inner = number(
        max(a.low, low.low),
        min(a.high, high.low),
        integral=a.integral and low.integral and high.integral,
        nullable=a.nullable or not a.finite,
    )
    # the range of x lies beyond one end, so that every value becomes that end
    if inner.low > inner.high:
        end = low.low if a.high < low.low else high.low
        return replace(inner, low=end, high=end)
    return inner


def least_or_greatest(pick: Callable[..., float]) -> Rule:
    """Return the rule of LEAST (`pick` is min) or GREATEST (max)."""

    def rule(*args: ValueDomain) -> ValueDomain:
        nullable = all(arg.nullable for arg in args)
        joined = union(list(args), nullable=nullable)
        if joined.kind not in (Kind.NUMBER, Kind.DATE):
            raise Refusal("LEAST and GREATEST are for numbers and dates")
        # LEAST and GREATEST skip NULL: where all other arguments are NULL, the result is the remaining one,
        # so that its largest value bounds LEAST, and its smallest GREATEST. Arguments that are never NULL
        # (`present`) always take part.
        if any_null(*args):
            low, high = min(a.low for a in args), max(a.high for a in args)
            present = [a for a in args if not a.nullable]
            if pick is min and present:
                high = min(a.high for a in present)
            if pick is max and present:
                low = max(a.low for a in present)
        else:
            low, high = pick(a.low for a in args), pick(a.high for a in args)
        return replace(joined, low=low, high=high, values=None)

    return rule


def comparison(*args: ValueDomain) -> ValueDomain:
    """Return the domain of = and the like; refuse to compare values of two kinds."""
    kinds = {arg.kind for arg in args}
    if len(kinds) > 1:
        quotes = ": write numbers without quotes" if kinds == {Kind.NUMBER, Kind.TEXT} else ""
        raise Refusal(f"a {args[0].kind} cannot be compared with a {args[1].kind}{quotes}")
    return boolean(any_null(*args))


def member(a: ValueDomain, *items: ValueDomain) -> ValueDomain:
    """Return the domain of IN."""
    for item in items:
        comparison(a, item)
    return boolean(any_null(a, *items))


def logic(*args: ValueDomain) -> ValueDomain:
    """Return the domain of AND, OR and NOT."""
    for arg in args:
        arg.need(Kind.BOOLEAN, "AND, OR, NOT, WHERE")
    return boolean(any_null(*args))


def case(*args: ValueDomain) -> ValueDomain:
    """Return the domain of CASE; arguments: condition, value, condition, value, ..., default."""
    for condition in args[:-1:2]:
        condition.need(Kind.BOOLEAN, "WHEN")
    branches = [*args[1:-1:2], args[-1]]
    filled = [b for b in branches if not is_null(b)]
    return union(filled or branches, nullable=any_null(*branches))


def is_null(domain: ValueDomain) -> bool:
    """Return whether this is the literal NULL, which fits any kind."""
    return domain.null


def coalesce(*args: ValueDomain) -> ValueDomain:
    """Return the domain of COALESCE: missing only where every argument may be."""
    filled = [arg for arg in args if not is_null(arg)] or list(args)
    return union(filled, nullable=all(arg.nullable for arg in args))


def nullif(a: ValueDomain, b: ValueDomain) -> ValueDomain:
    """Return the domain of NULLIF."""
    comparison(a, b)
    return replace(a, nullable=True)


def not_distinct(a: ValueDomain, b: ValueDomain) -> ValueDomain:
    """Return the domain of IS NOT DISTINCT FROM: never NULL, as NULL equals NULL there."""
    if not (is_null(a) or is_null(b)):
        comparison(a, b)
    return boolean(False)


def to_number(a: ValueDomain) -> ValueDomain:
    """Return the domain of CAST to DOUBLE."""
    if a.kind is Kind.TEXT:
        return number(-math.inf, math.inf)
    if a.kind is Kind.BOOLEAN:
        return number(0, 1, integral=True, nullable=a.nullable)
    a.need(Kind.NUMBER, "CAST to a number")
    return a


def round_half_away(x: float) -> float:
    """Return the nearest whole number, halves away from zero: ROUND in DuckDB."""
    if not math.isfinite(x):
        return x
    truncated = math.trunc(x)
    return float(truncated + math.copysign(1, x) if abs(x - truncated) >= 0.5 else truncated)


def to_integer(lower: int, upper: int) -> Rule:
    """Return the rule of CAST to the integer type with the values from `lower` to `upper`. Halves are rounded
    to the even neighbor, as DuckDB casts a DOUBLE; a number that does not fit the type is missing."""

    def rule(a: ValueDomain) -> ValueDomain:
        numeric = to_number(a)
        # A text gets the range of the type, so that it does not matter that DuckDB rounds '2.5' to 3.
        low, high = (float(round(end)) if math.isfinite(end) else end for end in (numeric.low, numeric.high))
        fits = lower <= low and high <= upper and a.kind is not Kind.TEXT
        low, high = min(max(low, lower), upper), max(min(high, upper), lower)
        domain = number(low, high, integral=True, nullable=numeric.nullable or not fits)
        return replace(domain, values=numeric.values if fits else None)

    return rule


def to_decimal(a: ValueDomain, width: ValueDomain, scale: ValueDomain) -> ValueDomain:
    """Return the domain of CAST to DECIMAL(width, scale): `width` digits, the last `scale` of them decimals.
    Halves are rounded away from zero; a number that does not fit the type is missing."""
    b, digits = to_number(a), int(scale.low)
    # `rounding` is the largest rounding error; numbers from `limit` on do not fit
    rounding, limit = 0.5 * 10.0**-digits, 10.0 ** (int(width.low) - digits)
    ends = (
        (round_half_away(b.low), round_half_away(b.high))
        if digits == 0
        else (b.low - rounding, b.high + rounding)
    )
    # A range that lies beyond the type, where every row is missing, shrinks to one end of the type.
    low, high = (min(max(end, -limit), limit) for end in ends)
    domain = number(low, high, integral=digits == 0)
    # whole numbers that all fit stay as they are
    if b.integral and -limit < b.low and b.high < limit and a.kind is not Kind.TEXT:
        return replace(b, integer=False)
    return domain


def to_float(a: ValueDomain) -> ValueDomain:
    """Return the domain of CAST to FLOAT, which has 24 bits of precision."""
    b = to_number(a)
    # twice the largest rounding error
    rounding = max(abs(b.low), abs(b.high)) * 2.0**-23
    exact = b.integral and max(abs(b.low), abs(b.high)) <= 1 << 24
    return replace(b, integer=False) if exact else number(b.low - rounding, b.high + rounding)


def truncate_number(a: ValueDomain, digits: ValueDomain | None = None) -> ValueDomain:
    """Return the domain of TRUNC, which cuts off towards zero after `digits` decimals."""
    numbers("TRUNC", a)
    decimals = 0 if digits is None else digits.low
    if digits is not None and not (is_fixed(digits) and digits.integral and 0 <= decimals <= 12):
        raise Refusal("TRUNC needs a fixed number of digits between 0 and 12")
    if decimals == 0:
        return monotone(math.trunc, "TRUNC", integral=True)(a)
    return number(
        a.low if a.low < 0 else max(0.0, a.low - 10.0**-decimals),
        max(a.high, 0.0),
        nullable=a.nullable,
    )


def round_to_digits(a: ValueDomain, digits: ValueDomain | None = None) -> ValueDomain:
    """Return the domain of ROUND to `digits` decimals, to tens for -1: halves are rounded away from zero."""
    numbers("ROUND", a)
    decimals = 0 if digits is None else digits.low
    if digits is not None and not (is_fixed(digits) and digits.integral and -12 <= decimals <= 12):
        raise Refusal("ROUND needs a fixed number of digits between -12 and 12")
    rounding = 0.5 * 10.0**-decimals
    if a.integral and decimals >= 0:
        return replace(a, values=None)
    ends = (
        (round_half_away(a.low), round_half_away(a.high))
        if decimals == 0
        else (a.low - rounding, a.high + rounding)
    )
    result = number(*ends, integral=decimals <= 0, nullable=a.nullable)
    return result if decimals >= 0 or not a.bounded else _multiples(a, result, 10 ** int(-decimals))


def _multiples(a: ValueDomain, rounded: ValueDomain, unit: int) -> ValueDomain:
    """Return the domain of `a` rounded to tens, hundreds, ... (`unit`): multiples of the unit, listed where
    they are few."""
    first, last = int(round_half_away(a.low / unit)), int(round_half_away(a.high / unit))
    listed = last - first < _MAX_LISTED
    values = tuple(k * unit for k in range(first, last + 1)) if listed else None
    return replace(rounded, low=float(first * unit), high=float(last * unit), values=values)


# The most characters of a result of || and REPLACE: without a limit, one row's text could be too long for the
# engine, and the query would fail on it. It is also the largest number in SUBSTRING. Not tuned.
LONGEST = 10_000
# The most characters of what REPLACE looks for, and of what it puts in: a text of LONGEST characters grows to
# a megabyte at most, before it is cut off.
LONGEST_FIXED_TEXT = 100
# The most results of || that are listed; if there are more, the result is any text. Not tuned.
_MAX_TEXTS = 10_000


def like(a: ValueDomain, pattern: ValueDomain) -> ValueDomain:
    """Return the domain of LIKE and ILIKE: true or false, and NULL where the text is NULL."""
    a.need(Kind.TEXT, "LIKE")
    pattern.need(Kind.TEXT, "LIKE")
    return boolean(a.nullable)


def engine_function(function: str) -> Rule:
    """Return the rule of a text function of one argument, which the engine itself evaluates on the declared
    categories: Python's result could differ (UPPER of a German ß), and the group would lose its rows.
    """

    def rule(a: ValueDomain) -> ValueDomain:
        a.need(Kind.TEXT, function.upper())
        if a.values is None:
            return text(nullable=a.nullable)
        return text(tuple(dict.fromkeys(engine_values(function, a.values))), nullable=a.nullable)

    return rule


def fixed_text(a: ValueDomain, what: str, longest: int = LONGEST) -> str:
    """Return the text of a literal; refuse any other expression, and a text of more than `longest`
    characters."""
    if (
        a.kind is not Kind.TEXT
        or a.values is None
        or len(a.values) != 1
        or a.nullable
        or len(a.values[0]) > longest
    ):
        raise Refusal(f"{what} needs fixed texts of at most {longest:,} characters")
    value: str = a.values[0]
    return value


def replace_text(a: ValueDomain, old: ValueDomain, new: ValueDomain) -> ValueDomain:
    """Return the domain of REPLACE(a, old, new) with fixed texts; `a` and the result are cut off at
    LONGEST."""
    a.need(Kind.TEXT, "REPLACE")
    parts = fixed_text(old, "REPLACE", LONGEST_FIXED_TEXT), fixed_text(new, "REPLACE", LONGEST_FIXED_TEXT)
    if a.values is None:
        return text(nullable=a.nullable)
    cut = tuple(value[:LONGEST] for value in a.values)
    texts = (value[:LONGEST] for value in engine_values("replace", cut, *parts))
    return text(tuple(dict.fromkeys(texts)), nullable=a.nullable)


def python_function(function: Callable[..., Any], what: str) -> Rule:
    """Return the rule of a text function whose further arguments are fixed whole numbers, the first of them a
    start of at least 1; `function` evaluates it in Python on the declared categories."""

    def rule(a: ValueDomain, *numbers: ValueDomain) -> ValueDomain:
        a.need(Kind.TEXT, what)
        if not all(is_fixed(arg) and arg.integral and 0 <= arg.low <= LONGEST for arg in numbers) or any(
            start.low < 1 for start in numbers[:1]
        ):
            raise Refusal(f"{what} needs fixed whole numbers up to {LONGEST:,}, a start of at least 1")
        fixed = [int(arg.low) for arg in numbers]
        if a.values is None:
            return text(nullable=a.nullable)
        return text(tuple(dict.fromkeys(function(value, *fixed) for value in a.values)), nullable=a.nullable)

    return rule


def concat(*args: ValueDomain) -> ValueDomain:
    """Return the domain of ||: all combinations of declared categories, if they are at most _MAX_TEXTS."""
    for arg in args:
        arg.need(Kind.TEXT, "||")
    results: tuple[str, ...] | None = ("",)
    for arg in args:
        if results is None or arg.values is None or len(results) * len(arg.values) > _MAX_TEXTS:
            results = None
        else:
            results = tuple(dict.fromkeys((a + b)[:LONGEST] for a in results for b in arg.values))
    return text(results, nullable=any_null(*args))


def length(a: ValueDomain) -> ValueDomain:
    """Return the domain of LENGTH."""
    a.need(Kind.TEXT, "LENGTH")
    if a.values is None:
        return number(0, math.inf, integral=True, nullable=a.nullable)
    sizes = [len(value) for value in a.values]
    return number(min(sizes), max(sizes), integral=True, nullable=a.nullable)


# The most days between the declared bounds of a date for which DATE_TRUNC and STRFTIME list all results:
# about 1,100 years. Not tuned.
MAX_DAYS = 400_000
# The directives of strftime that are about the time of day: DuckDB would write midnight's for every row.
_OF_TIMES = "cfgHIMnpSXzZ"


def days_between(a: ValueDomain, b: ValueDomain) -> ValueDomain:
    """Return the domain of the difference of two dates, in days."""
    a.need(Kind.DATE, "a difference in days")
    b.need(Kind.DATE, "a difference in days")
    return number(a.low - b.high, a.high - b.low, integral=True, nullable=any_null(a, b))


def add_days(a: ValueDomain, n: ValueDomain) -> ValueDomain:
    """Return the domain of a date plus a fixed number of days, within the years that both Python and the
    engine know."""
    a.need(Kind.DATE, "adding days")
    if not (n.kind is Kind.NUMBER and n.low == n.high and n.integral and not n.nullable):
        raise Refusal("to a date a fixed whole number of days can be added")
    low, high = a.low + n.low, a.high + n.low
    if not date.min.toordinal() <= low <= high <= date.max.toordinal():
        raise Refusal("this goes beyond the years 1 to 9999")
    return ValueDomain(kind=Kind.DATE, low=low, high=high, nullable=a.nullable)


def strftime(a: ValueDomain, pattern: ValueDomain) -> ValueDomain:
    """Return the domain of STRFTIME: its text for each day between the declared bounds, each text once, in
    the order of the days."""
    a.need(Kind.DATE, "STRFTIME")
    layout = fixed_text(pattern, "STRFTIME", LONGEST_FIXED_TEXT)
    for directive in re.findall(r"%-?.", layout):
        if directive[-1] in _OF_TIMES:
            raise Refusal(
                f"{directive} is about the time of day, and of a date or timestamp only its day is read"
            )
    try:
        return text(
            tuple(dict.fromkeys(engine_values("strftime", _listed_days(a, "STRFTIME"), layout))),
            nullable=a.nullable,
        )
    except InvalidInput:
        raise Refusal(f"{layout!r} is not a format that the engine knows, such as '%Y-%m'") from None


def day_name(function: str) -> Rule:
    """Return the rule of DAYNAME or MONTHNAME: all names as the engine writes them, Monday and January
    first."""

    def rule(a: ValueDomain) -> ValueDomain:
        a.need(Kind.DATE, function.upper())
        # 1 January 2001 was a Monday, and steps of 31 days from it meet the twelve months of 2001 in order.
        step, count = (1, 7) if function == "dayname" else (31, 12)
        monday = date(2001, 1, 1).toordinal()
        days = tuple(date.fromordinal(monday + step * i) for i in range(count))
        return text(tuple(engine_values(function, days)), nullable=a.nullable)

    return rule


def _listed_days(a: ValueDomain, what: str) -> tuple[date, ...]:
    """Return every day that a date can be, by its listed values or its bounds; `what` is the function that
    the refusal names."""
    if a.values is not None:
        return a.values
    if not a.bounded or a.high - a.low > MAX_DAYS:
        raise Refusal(f"{what} needs a date whose declared bounds are at most {MAX_DAYS:,} days apart")
    return tuple(date.fromordinal(day) for day in range(int(a.low), int(a.high) + 1))


# The least and the largest value of each part of a date, as DuckDB has them; years are those of Python.
PARTS = {
    "year": (1, 9999),
    "quarter": (1, 4),
    "month": (1, 12),
    "day": (1, 31),
    "week": (1, 53),
    "dow": (0, 6),
    "isodow": (1, 7),
    "doy": (1, 366),
}


def part(name: str) -> Rule:
    """Return the rule of EXTRACT of one part of a date."""

    def rule(a: ValueDomain) -> ValueDomain:
        a.need(Kind.DATE, name.upper())
        low, high = PARTS[name]
        if name == "year" and a.bounded:
            low, high = date.fromordinal(int(a.low)).year, date.fromordinal(int(a.high)).year
        return number(low, high, integral=True, nullable=a.nullable)

    return rule


def start_of(unit: str, day: date) -> date:
    """Return the first day of the year, quarter, month or week that a day is in; for "day" the day itself."""
    if unit == "week":
        return date.fromordinal(day.toordinal() - day.weekday())
    month = {"year": 1, "quarter": 3 * ((day.month - 1) // 3) + 1, "month": day.month}.get(unit)
    return day if month is None else date(day.year, month, 1)


def truncate(unit: str) -> Rule:
    """Return the rule of DATE_TRUNC to a unit."""

    def rule(a: ValueDomain) -> ValueDomain:
        a.need(Kind.DATE, "DATE_TRUNC")
        starts = tuple(dict.fromkeys(start_of(unit, day) for day in _listed_days(a, "DATE_TRUNC")))
        # the days of a CASE come branch by branch, so that the first need not be the earliest
        return replace(a, low=float(min(starts).toordinal()), values=starts)

    return rule


def add_months(a: ValueDomain, n: ValueDomain) -> ValueDomain:
    """Return the domain of a date plus a fixed number of months."""
    a.need(Kind.DATE, "adding months")
    if not (n.kind is Kind.NUMBER and n.low == n.high and n.integral and not n.nullable):
        raise Refusal("to a date a fixed whole number of months can be added")
    ends = [_month_later(date.fromordinal(int(end)), int(n.low)) for end in (a.low, a.high)]
    low, high = (float(end.toordinal()) for end in ends)
    values = (
        None if a.values is None else tuple(dict.fromkeys(_month_later(day, int(n.low)) for day in a.values))
    )
    return ValueDomain(kind=Kind.DATE, low=low, high=high, values=values, nullable=a.nullable)


def _month_later(day: date, n: int) -> date:
    """Return the same day `n` months later, or that month's last day where it has no such day."""
    year, month = divmod(day.year * 12 + day.month - 1 + n, 12)
    if not date.min.year <= year <= date.max.year:
        raise Refusal("this goes beyond the years 1 to 9999")
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))


# A text that every engine reads as a finite number, unless it is too large.
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Operator:
    """Holds three functions of an operator's arguments: of their domains, of their SQL nodes, and of their
    released values (numpy arrays; NULL is NaN among numbers and None among texts). `value` is None for an
    operator that is computed by the engine only."""

    domain: Rule
    sql: Callable[..., Node]
    value: Callable[..., Any] | None = None


def double(value: float) -> Node:
    return semantics.Number(this=repr(float(value)))


def paren(node: Node) -> Node:
    return exp.Paren(this=node)


def if_(condition: Node, then: Node, other: Node | None = None) -> Node:
    return exp.Case(ifs=[exp.If(this=condition, true=then)], default=other)


def _binary(cls: type[exp.Binary]) -> Callable[[Node, Node], Node]:
    return lambda a, b: paren(cls(this=a, expression=b))


def _unary(cls: type[semantics.Semantic]) -> Callable[[Node], Node]:
    return lambda a: cls(this=a)


def _of_two(cls: type[semantics.Semantic]) -> Callable[[Node, Node], Node]:
    return lambda a, b: cls(this=a, expression=b)


def _of_many(cls: type[semantics.Semantic]) -> Callable[..., Node]:
    return lambda *args: cls(expressions=list(args))


def _to_digits(cls: type[semantics.Semantic]) -> Callable[..., Node]:
    return lambda a, digits=None: cls(this=a, digits=digits)


def _truth(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a comparison on released values as 1.0, 0.0, or NaN for NULL."""

    def of_present(x: Any, y: Any) -> float:
        return math.nan if _is_missing(x) or _is_missing(y) else float(function(x, y))

    def value(a: Any, b: Any) -> Any:
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype == object or b.dtype == object:
            return np.vectorize(of_present, otypes=[float])(a, b)
        return np.where(np.isnan(a) | np.isnan(b), np.nan, function(a, b).astype(float))

    return value


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap arithmetic on released numbers: a result that is not finite becomes NaN, without a warning."""

    def value(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            result = np.asarray(function(*args), dtype=float)
        return np.where(np.isfinite(result), result, np.nan)

    return value


def _case_value(*args: Any) -> Any:
    """Compute CASE; arguments: condition, value, condition, value, ..., default."""
    result = args[-1]
    for condition, then in reversed(list(zip(args[:-1:2], args[1:-1:2], strict=True))):
        result = np.where(np.asarray(condition) == 1.0, then, result)
    return _none_for_nan(result)


def _first_value(*args: Any) -> Any:
    """Compute COALESCE."""
    result = args[-1]
    for arg in reversed(args[:-1]):
        result = np.where(_missing(arg), result, arg)
    return _none_for_nan(result)


def _null_if(a: Any, b: Any) -> Any:
    return _none_for_nan(np.where(np.asarray(a) == b, np.nan, a))


def _none_for_nan(a: Any) -> Any:
    """Return texts with None for NULL, where a literal NULL came in as NaN."""
    a = np.asarray(a)
    return np.where(_missing(a), None, a) if a.dtype == object else a


def _missing(a: Any) -> Any:
    a = np.asarray(a)
    return np.vectorize(_is_missing, otypes=[bool])(a) if a.dtype == object else np.isnan(a)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _and(a: Any, b: Any) -> Any:
    a, b = _truths(a), _truths(b)
    return np.where((a == 0) | (b == 0), 0.0, np.where(np.isnan(a) | np.isnan(b), np.nan, 1.0))


def _or(a: Any, b: Any) -> Any:
    a, b = _truths(a), _truths(b)
    return np.where((a == 1) | (b == 1), 1.0, np.where(np.isnan(a) | np.isnan(b), np.nan, 0.0))


def _truths(a: Any) -> Any:
    """Return conditions as 1.0, 0.0 and NaN; group keys come as True and False."""
    return np.asarray(a, dtype=float)


def _in(a: Any, *items: Any) -> Any:
    """Compute IN with the three-valued logic of SQL."""
    equal = _truth(operator.eq)
    result = equal(a, items[0])
    for item in items[1:]:
        result = _or(result, equal(a, item))
    return result


def _case_sql(*args: Node) -> Node:
    ifs = [exp.If(this=c, true=v) for c, v in zip(args[:-1:2], args[1:-1:2], strict=True)]
    return exp.Case(ifs=ifs, default=args[-1])


def clipped(x: Node, low: Node, high: Node, *, may_be_nan: bool = True) -> Node:
    """Return SQL that clips a number to [low, high]; an infinity or NaN becomes NULL. With
    `may_be_nan` false, for integers, the test for NaN is left out."""
    return semantics.Clip(this=x, low=low, high=high, may_be_nan=may_be_nan)


def _like_sql(a: Node, pattern: Node) -> Node:
    return semantics.Matches(this=a, pattern=pattern)


def _ilike_sql(a: Node, pattern: Node) -> Node:
    """Write ILIKE as LIKE of both arguments in the engine's lower case, which differs from Python's."""
    return _like_sql(
        semantics.LowerCase(this=a), exp.Literal.string(engine_values("lower", (pattern.name,))[0])
    )


def _to_decimal(a: Node, width: Node, scale: Node) -> Node:
    return semantics.AsDecimal(this=a, width=int(float(width.this)), scale=int(float(scale.this)))


def _half_away(a: Any, digits: Any = 0) -> Any:
    """Round halves away from zero, as DuckDB computes ROUND on a DOUBLE."""
    decimals = int(np.ravel(digits)[0])
    power = 10.0 ** abs(decimals)
    scaled = a * power if decimals >= 0 else a / power
    truncated = np.trunc(scaled)
    rounded = truncated + np.where(np.abs(scaled - truncated) >= 0.5, np.sign(scaled), 0.0)
    result = rounded / power if decimals >= 0 else rounded * power
    # where scaling overflows, the number itself: it is so large that it has no decimals
    return np.where(np.isfinite(result), result, a)


def _truncate(a: Any, digits: Any = 0) -> Any:
    """Compute TRUNC."""
    power = 10.0 ** int(np.ravel(digits)[0])
    return np.trunc(a * power) / power


def _numbers(a: Any) -> Any:
    """Return released values as numbers; a text that is no number becomes NaN, as the engine's NULL."""
    a = np.asarray(a)
    return np.vectorize(_read_number, otypes=[float])(a) if a.dtype == object else a.astype(float)


def _read_number(value: Any) -> float:
    if value is None or (isinstance(value, str) and not _NUMBER.fullmatch(value)):
        return math.nan
    number = float(value)
    return number if math.isfinite(number) else math.nan


def _extreme(of_numbers: Callable[..., Any], pick: Callable[..., Any]) -> Callable[..., Any]:
    """Return LEAST or GREATEST of released numbers, or of days as ISO texts; NULL is skipped."""

    def of_days(*days: Any) -> Any:
        return pick((day for day in days if not _is_missing(day)), default=None)

    def value(*args: Any) -> Any:
        if any(np.asarray(a).dtype == object for a in args):
            return np.vectorize(of_days, otypes=[object])(*args)
        return reduce(of_numbers, args)

    return value


def _within(lower: int, upper: int) -> Callable[..., Any]:
    """Return the cast of released values to an integer type: NaN outside [lower, upper]."""

    def value(a: Any) -> Any:
        # DuckDB casts a DOUBLE with halves to the even neighbor, and a text with halves away from zero
        rounded = (_half_away if np.asarray(a).dtype == object else np.rint)(_numbers(a))
        return np.where((rounded >= lower) & (rounded <= upper), rounded, np.nan)

    return value


def _decimals(a: Any, width: Any, scale: Any) -> Any:
    """Compute the cast of released values to DECIMAL(width, scale): NaN for a number that does not fit."""
    limit = 10.0 ** (int(np.ravel(width)[0]) - int(np.ravel(scale)[0]))
    rounded = _half_away(_numbers(a), scale)
    return np.where(np.abs(rounded) < limit, rounded, np.nan)


def _texts(function: Callable[[str], Any], *, number: bool = False) -> Callable[..., Any]:
    """Return `function` applied to each text (or day as text) of an array, with further arguments that are
    constants; None stays None. `number`: the results are numbers."""

    def value(a: Any, *constants: Any) -> Any:
        array = np.asarray(a, dtype=object)
        fixed = [np.ravel(constant)[0] for constant in constants]
        results = [None if v is None else function(v, *fixed) for v in array.ravel()]
        if number:
            return np.array([np.nan if v is None else v for v in results], dtype=float).reshape(array.shape)
        texts = np.empty(len(results), dtype=object)
        texts[:] = results
        return texts.reshape(array.shape)

    return value


def _engine_text(name: str, *, days: bool = False) -> Callable[..., Any]:
    """Return a function of texts (with `days`: of days) that DuckDB itself computes, so that results
    agree."""

    def engine_value(value: str, *constants: str) -> Any:
        return engine_values(name, (date.fromisoformat(value) if days else value,), *map(str, constants))[0]

    return _texts(engine_value)


def _concat_values(*args: Any) -> Any:
    """Compute || on released texts."""
    arrays = np.broadcast_arrays(*(np.asarray(a, dtype=object) for a in args))
    texts = np.empty(arrays[0].shape, dtype=object)
    for index in np.ndindex(texts.shape):
        parts: list[Any] = [array[index] for array in arrays]
        texts[index] = None if any(part is None for part in parts) else "".join(parts)[:LONGEST]
    return texts


def _alike(a: Any, b: Any) -> Any:
    """Compute IS NOT DISTINCT FROM on released values."""
    absent_a, absent_b = np.broadcast_arrays(_missing(a), _missing(b))
    return np.where(absent_a | absent_b, (absent_a & absent_b) * 1.0, _truth(operator.eq)(a, b))


def _part_value(name: str) -> Callable[[str], float]:
    """Return the function that computes one part of a day that is given as ISO text."""

    def part(value: str) -> float:
        day = date.fromisoformat(value)
        parts = {"year": day.year, "quarter": (day.month + 2) // 3, "month": day.month, "day": day.day}
        parts |= {"week": day.isocalendar()[1], "doy": day.timetuple().tm_yday}
        # Sunday is day 0 of DOW and day 7 of ISODOW
        parts |= {"dow": day.isoweekday() % 7, "isodow": day.isoweekday()}
        return float(parts[name])

    return part


def _substring(value: str, start: int, length: int | None = None) -> str:
    """Compute SUBSTRING, which counts from 1; positions before the text use up `length`."""
    begin = max(start - 1, 0)
    return value[begin:] if length is None else value[begin : max(begin, start - 1 + length)]


def _concat_nodes(*args: Node) -> Node:
    return reduce(lambda a, b: semantics.Concat(this=a, expression=b, max_length=LONGEST), args)


def _replace_sql(a: Node, old: Node, new: Node) -> Node:
    """Write REPLACE, with texts cut to `LONGEST` characters before and after, so that none grows without
    limit."""
    return semantics.Replace(this=a, old=old, new=new, max_length=LONGEST)


def _day_text(a: Node, format: Node) -> Node:
    return semantics.DayText(this=a, format=format)


def _part_sql(name: str) -> Callable[[Node], Node]:
    return lambda a: semantics.DatePart(this=a, part=name)


def _start_sql(unit: str) -> Callable[[Node], Node]:
    return lambda a: semantics.StartOf(this=a, unit=unit)


def _to_integer(name: str) -> Callable[[Node], Node]:
    return lambda a: semantics.AsInteger(this=a, type=name)


def _start_value(unit: str) -> Callable[[str], str]:
    return lambda value: start_of(unit, date.fromisoformat(value)).isoformat()


# These names are part of `nodes.key`, by which stored answers are found: they must not change. Some are not
# SQL: "days" is a difference of dates, "later" and "months" add days and months, "same" is IS NOT DISTINCT
# FROM, "null?" IS NULL; "finite" and "exactly whole" are NULL for other numbers; "number", "float", "decimal"
# and "whole:INTEGER" are casts, "part:year" is EXTRACT, and "start:month" DATE_TRUNC.
OPERATORS: dict[str, Operator] = {
    "+": Operator(arithmetic(operator.add, "+"), _of_two(semantics.Plus), _quiet(np.add)),
    "-": Operator(arithmetic(operator.sub, "-"), _of_two(semantics.Minus), _quiet(np.subtract)),
    "days": Operator(days_between, _of_two(semantics.DaysBetween)),
    "later": Operator(add_days, _of_two(semantics.AddDays)),
    "*": Operator(arithmetic(operator.mul, "*"), _of_two(semantics.Times), _quiet(np.multiply)),
    "/": Operator(divide, _of_two(semantics.Divide), _quiet(np.divide)),
    # on integers, as in DuckDB: truncated towards zero, unlike Python's //
    "//": Operator(
        integer_divide,
        lambda a, b: semantics.TruncateNumber(this=semantics.Divide(this=a, expression=b)),
        _quiet(lambda a, b: np.trunc(a / b)),
    ),
    "%": Operator(modulo, _of_two(semantics.Remainder), _quiet(np.fmod)),
    "floor": Operator(
        monotone(math.floor, "FLOOR", integral=True), _unary(semantics.Floor), _quiet(np.floor)
    ),
    "ceil": Operator(monotone(math.ceil, "CEIL", integral=True), _unary(semantics.Ceil), _quiet(np.ceil)),
    "round": Operator(round_to_digits, _to_digits(semantics.RoundHalfAway), _quiet(_half_away)),
    "trunc": Operator(truncate_number, _to_digits(semantics.TruncateNumber), _quiet(_truncate)),
    "sign": Operator(sign, _unary(semantics.Sign), _quiet(np.sign)),
    "abs": Operator(absolute, _unary(semantics.Absolute), _quiet(np.abs)),
    "sqrt": Operator(square_root, _unary(semantics.SquareRoot), _quiet(np.sqrt)),
    "ln": Operator(logarithm(math.log, "LN"), _unary(semantics.Ln), _quiet(np.log)),
    "log2": Operator(logarithm(math.log2, "LOG2"), _unary(semantics.Log2), _quiet(np.log2)),
    "log10": Operator(logarithm(math.log10, "LOG10"), _unary(semantics.Log10), _quiet(np.log10)),
    "finite": Operator(
        lambda a: replace(a, nullable=True),
        lambda a: if_(semantics.IsFinite(this=a.copy()), a),
        _quiet(np.copy),
    ),
    "exactly whole": Operator(
        exactly_whole,
        lambda a: if_(exp.EQ(this=a.copy(), expression=semantics.TruncateNumber(this=a.copy())), a),
        _quiet(lambda a: np.where(a == np.trunc(a), a, np.nan)),
    ),
    "exp": Operator(exponential, _unary(semantics.Exponential), _quiet(np.exp)),
    "power": Operator(power, _of_two(semantics.Power), _quiet(np.power)),
    "clamp": Operator(clamp, clipped, _quiet(np.clip)),
    "least": Operator(least_or_greatest(min), _of_many(semantics.Least), _extreme(np.fmin, min)),
    "greatest": Operator(least_or_greatest(max), _of_many(semantics.Greatest), _extreme(np.fmax, max)),
    "=": Operator(comparison, _binary(exp.EQ), _truth(operator.eq)),
    "<>": Operator(comparison, _binary(exp.NEQ), _truth(operator.ne)),
    "<": Operator(comparison, _binary(exp.LT), _truth(operator.lt)),
    "<=": Operator(comparison, _binary(exp.LTE), _truth(operator.le)),
    ">": Operator(comparison, _binary(exp.GT), _truth(operator.gt)),
    ">=": Operator(comparison, _binary(exp.GTE), _truth(operator.ge)),
    "and": Operator(logic, _binary(exp.And), _and),
    "or": Operator(logic, _binary(exp.Or), _or),
    "not": Operator(logic, lambda a: paren(exp.Not(this=a)), lambda a: 1.0 - _truths(a)),
    "same": Operator(not_distinct, _of_two(semantics.Same), _alike),
    "null?": Operator(
        lambda a: boolean(False),
        lambda a: paren(exp.Is(this=a, expression=exp.Null())),
        lambda a: _missing(a) * 1.0,
    ),
    "in": Operator(member, lambda a, *items: paren(exp.In(this=a, expressions=list(items))), _in),
    "like": Operator(like, _like_sql),
    "ilike": Operator(like, _ilike_sql),
    "case": Operator(case, _case_sql, _case_value),
    "coalesce": Operator(
        coalesce, lambda a, *others: exp.Coalesce(this=a, expressions=list(others)), _first_value
    ),
    "nullif": Operator(nullif, lambda a, b: exp.Nullif(this=a, expression=b), _null_if),
    **{
        name: Operator(engine_function(name), _unary(cls), _engine_text(name))
        for name, cls in (
            ("upper", semantics.UpperCase),
            ("lower", semantics.LowerCase),
            ("trim", semantics.Trim),
        )
    },
    "substring": Operator(
        python_function(_substring, "SUBSTRING"),
        lambda a, start, length=None: semantics.Substring(this=a, start=start, length=length),
        _texts(lambda v, *at: _substring(v, *map(int, at))),
    ),
    "replace": Operator(replace_text, _replace_sql, _engine_text("replace")),
    "||": Operator(concat, _concat_nodes, _concat_values),
    "length": Operator(length, _unary(semantics.Length), _texts(len, number=True)),
    "number": Operator(to_number, lambda a: semantics.SafeCast(this=a, to="double"), _numbers),
    "float": Operator(to_float, _unary(semantics.AsFloat), _quiet(lambda a: np.float32(_numbers(a)))),
    "decimal": Operator(to_decimal, _to_decimal, _quiet(_decimals)),
    **{
        f"whole:{name}": Operator(to_integer(*ends), _to_integer(name), _within(*ends))
        for name, ends in INTEGERS.items()
    },
    "months": Operator(add_months, _of_two(semantics.AddMonths)),
    "strftime": Operator(strftime, _day_text, _engine_text("strftime", days=True)),
    **{
        name: Operator(day_name(name), _unary(cls), _engine_text(name, days=True))
        for name, cls in (("dayname", semantics.DayName), ("monthname", semantics.MonthName))
    },
    **{
        f"part:{name}": Operator(part(name), _part_sql(name), _texts(_part_value(name), number=True))
        for name in PARTS
    },
    **{
        f"start:{unit}": Operator(truncate(unit), _start_sql(unit), _texts(_start_value(unit)))
        for unit in ("year", "quarter", "month", "week", "day")
    },
}
