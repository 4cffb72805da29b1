"""Defines the domain rules of operators: which values a result can have, given which values its arguments can
have.

A rule takes the domains of the arguments (`domain.ValueDomain`) and returns the domain of the result, or
raises a `Refusal` for arguments that the operator is not for. A domain may be too wide, never too narrow: it
decides the sensitivity of sums, and which groups are public. A value that is NULL is called missing; values
of `domain.number(...)` may be missing unless nullable=False is given. `ValueDomain.integral` says that all
values are whole numbers, and `integer` that the engine's type is an integer type, for which // truncates. The
rules of dates and texts are in `date_rules` and `text_rules`; the operators themselves are in `operators`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .domain import Kind, ValueDomain, boolean, corners, number, union
from .errors import Refusal

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
