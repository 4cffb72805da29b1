"""Defines the domain rules of operators: what is known of a result from what is known of the arguments; and
what an operator is not for."""

from __future__ import annotations

import math
from calendar import monthrange
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Any

from .._errors import InvalidInput
from ..tables import engine_values
from .domain import Domain, Kind, boolean, corners, number, text, union
from .errors import Refusal

Rule = Callable[..., Domain]
# characters that SUBSTRING and || can make, so that no text of anyone's is too much for the engine
LONGEST = 10_000
# characters of what REPLACE puts in: a text of LONGEST characters grows to a megabyte at most
LONGEST_REPLACEMENT = 100
# between the declared bounds of a date whose months or texts are listed
MOST_DAYS = 400_000


def any_null(*args: Domain) -> bool:
    return any(arg.nullable for arg in args)


def numbers(what: str, *args: Domain) -> None:
    for arg in args:
        arg.need(Kind.NUMBER, what)


def arithmetic(op: Callable[[float, float], float], what: str) -> Rule:
    def rule(a: Domain, b: Domain) -> Domain:
        if Kind.DATE in (a.kind, b.kind):
            raise Refusal(
                "to dates days can be added; they can be subtracted, compared, truncated and taken "
                "apart, nothing else"
            )
        numbers(what, a, b)
        low, high = corners(a, b, op)
        result = number(low, high, integral=a.integral and b.integral, nullable=any_null(a, b))
        return replace(result, values=few(a, b, op))

    return rule


def few(a: Domain, b: Domain, op: Callable[[float, float], float]) -> tuple[Any, ...] | None:
    """Return the values of an operation on few integers: FLOOR(age / 10) * 10 is 0, 10, 20, ..."""
    if not (a.integral and b.integral):
        return None
    left, right = a.members(4096), b.members(4096)
    if left is None or right is None or len(left) * len(right) > 4096:
        return None
    return tuple(sorted({op(x, y) for x in left for y in right}))


def days(a: Domain, b: Domain) -> Domain:
    a.need(Kind.DATE, "a difference in days")
    b.need(Kind.DATE, "a difference in days")
    return number(a.low - b.high, a.high - b.low, integral=True, nullable=any_null(a, b))


def later(a: Domain, n: Domain) -> Domain:
    """Return a date some fixed number of days later, or earlier, within the years that both Python and the
    engine know."""
    a.need(Kind.DATE, "adding days")
    if not (n.kind is Kind.NUMBER and n.low == n.high and n.integral and not n.nullable):
        raise Refusal("to a date a fixed whole number of days can be added")
    low, high = a.low + n.low, a.high + n.low
    if not date.min.toordinal() <= low <= high <= date.max.toordinal():
        raise Refusal("this goes beyond the years 1 to 9999")
    return Domain(kind=Kind.DATE, low=low, high=high, nullable=a.nullable)


def divide(a: Domain, b: Domain) -> Domain:
    numbers("/", a, b)
    if b.low > 0 or b.high < 0:
        low, high = corners(a, b, lambda x, y: x / y)
        return number(low, high, nullable=any_null(a, b))
    return number(-math.inf, math.inf)


def integer_divide(a: Domain, b: Domain) -> Domain:
    """Return the domain of `//` of what DuckDB would hold as integers: cut off towards zero."""
    return monotone(math.trunc, "//", integral=True)(divide(a, b))


def exactly_whole(a: Domain) -> Domain:
    """Return a number where it is whole, missing where it is not: the key of groups by a number that was
    declared with whole bounds."""
    numbers("GROUP BY", a)
    return number(a.low, a.high, integral=True)


def sign(a: Domain) -> Domain:
    numbers("SIGN", a)
    low, high = (float((end > 0) - (end < 0)) for end in (a.low, a.high))
    return number(low, high, integral=True, nullable=a.nullable)


def modulo(a: Domain, b: Domain) -> Domain:
    numbers("%", a, b)
    largest = max(abs(b.low), abs(b.high))
    integral = a.integral and b.integral
    edge = largest - 1 if integral and largest >= 1 else largest
    low = 0.0 if a.low >= 0 else -edge
    return number(low, 0.0 if a.high <= 0 else edge, integral=integral, nullable=True)


def monotone(op: Callable[[float], float], what: str, *, integral: bool | None = None) -> Rule:
    def rule(a: Domain) -> Domain:
        numbers(what, a)
        low, high = (op(end) if math.isfinite(end) else end for end in (a.low, a.high))
        return number(low, high, integral=a.integral if integral is None else integral, nullable=a.nullable)

    return rule


def absolute(a: Domain) -> Domain:
    numbers("ABS", a)
    ends = sorted((abs(a.low), abs(a.high)))
    low = 0.0 if a.low <= 0 <= a.high else ends[0]
    return number(low, ends[1], integral=a.integral, nullable=a.nullable)


def root(a: Domain) -> Domain:
    numbers("SQRT", a)
    return number(math.sqrt(max(a.low, 0.0)), math.sqrt(max(a.high, 0.0)), nullable=a.nullable or a.low < 0)


def logarithm(log: Callable[[float], float], what: str) -> Rule:
    def rule(a: Domain) -> Domain:
        numbers(what, a)
        low = log(a.low) if a.low > 0 else -math.inf
        return number(low, log(a.high) if a.high > 0 else 0.0, nullable=a.nullable or a.low <= 0)

    return rule


def exponential(a: Domain) -> Domain:
    numbers("EXP", a)
    low, high = (math.exp(max(-745.0, min(end, 340.0))) for end in (a.low, a.high))
    return number(low, high if a.high < 340 else math.inf, nullable=a.nullable)


def power(a: Domain, b: Domain) -> Domain:
    numbers("POWER", a, b)
    if b.low != b.high or b.low != int(b.low) or not 0 <= b.low <= 8:
        raise Refusal("POWER needs a fixed whole exponent between 0 and 8")
    n = int(b.low)
    ends = [capped(end, n) for end in (a.low, a.high)]
    low = 0.0 if n % 2 == 0 and n > 0 and a.low <= 0 <= a.high else min(ends)
    return number(low, max(ends), integral=a.integral, nullable=a.nullable)


def capped(end: float, n: int) -> float:
    if n == 0:
        return 1.0
    try:
        return float(end**n)
    except OverflowError:
        return -math.inf if end < 0 and n % 2 else math.inf


def clamp(a: Domain, low: Domain, high: Domain) -> Domain:
    numbers("CLAMP", a, low, high)
    if not (low.low == low.high < high.low == high.high):
        raise Refusal("CLAMP(x, low, high) needs two fixed numbers, low below high")
    inner = number(
        max(a.low, low.low),
        min(a.high, high.low),
        integral=a.integral and low.integral and high.integral,
        nullable=a.nullable or not a.finite,
    )
    # all of it lies beyond one end
    if inner.low > inner.high:
        end = low.low if a.high < low.low else high.low
        return replace(inner, low=end, high=end)
    return inner


def extreme(pick: Callable[..., float]) -> Rule:
    def rule(*args: Domain) -> Domain:
        nullable = all(arg.nullable for arg in args)
        joined = union(list(args), nullable=nullable)
        if joined.kind not in (Kind.NUMBER, Kind.DATE):
            raise Refusal("LEAST and GREATEST are for numbers and dates")
        # a missing one is skipped, so another's far end can come through
        if any_null(*args):
            low, high = min(a.low for a in args), max(a.high for a in args)
            sure = [a for a in args if not a.nullable]
            if pick is min and sure:
                high = min(a.high for a in sure)
            if pick is max and sure:
                low = max(a.low for a in sure)
        else:
            low, high = pick(a.low for a in args), pick(a.high for a in args)
        return replace(joined, low=low, high=high, values=None)

    return rule


def comparison(*args: Domain) -> Domain:
    kinds = {arg.kind for arg in args}
    if len(kinds) > 1:
        quotes = ": write numbers without quotes" if kinds == {Kind.NUMBER, Kind.TEXT} else ""
        raise Refusal(f"a {args[0].kind} cannot be compared with a {args[1].kind}{quotes}")
    return boolean(any_null(*args))


def member(a: Domain, *items: Domain) -> Domain:
    for item in items:
        comparison(a, item)
    return boolean(any_null(a, *items))


def logic(*args: Domain) -> Domain:
    for arg in args:
        arg.need(Kind.BOOLEAN, "AND, OR, NOT, WHERE")
    return boolean(any_null(*args))


def like(a: Domain, pattern: Domain) -> Domain:
    a.need(Kind.TEXT, "LIKE")
    pattern.need(Kind.TEXT, "LIKE")
    return boolean(a.nullable)


def case(*args: Domain) -> Domain:
    """Return the domain of CASE; arguments: condition, value, condition, value, ..., default."""
    for condition in args[:-1:2]:
        condition.need(Kind.BOOLEAN, "WHEN")
    branches = [*args[1:-1:2], args[-1]]
    absent = [b.nullable for b in branches]
    filled = [b for b in branches if not is_null(b)]
    return union(filled or branches, nullable=any(absent))


def is_null(domain: Domain) -> bool:
    """Return whether this is the literal NULL, which fits any kind."""
    return domain.null


def coalesce(*args: Domain) -> Domain:
    filled = [arg for arg in args if not is_null(arg)] or list(args)
    return union(filled, nullable=all(arg.nullable for arg in args))


def nullif(a: Domain, b: Domain) -> Domain:
    comparison(a, b)
    return replace(a, nullable=True)


def same(a: Domain, b: Domain) -> Domain:
    """Return the domain of IS NOT DISTINCT FROM: never NULL; a missing value is like another."""
    if not (is_null(a) or is_null(b)):
        comparison(a, b)
    return boolean(False)


def by_engine(function: str) -> Rule:
    """Return the rule of text functions of one argument: the results on declared categories are the engine's
    own, or groups would lose rows."""

    def rule(a: Domain) -> Domain:
        a.need(Kind.TEXT, function.upper())
        if a.values is None:
            return text(nullable=a.nullable)
        return text(tuple(dict.fromkeys(engine_values(function, a.values))), nullable=a.nullable)

    return rule


def fixed_text(a: Domain, what: str, longest: int = LONGEST) -> str:
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


def replaced(a: Domain, old: Domain, new: Domain) -> Domain:
    a.need(Kind.TEXT, "REPLACE")
    parts = fixed_text(old, "REPLACE", LONGEST_REPLACEMENT), fixed_text(new, "REPLACE", LONGEST_REPLACEMENT)
    if a.values is None:
        return text(nullable=a.nullable)
    cut = tuple(value[:LONGEST] for value in a.values)
    texts = (value[:LONGEST] for value in engine_values("replace", cut, *parts))
    return text(tuple(dict.fromkeys(texts)), nullable=a.nullable)


def formatted(a: Domain, pattern: Domain) -> Domain:
    """Return the domain of STRFTIME: all texts that the days between the declared bounds give, in the order
    of these days."""
    a.need(Kind.DATE, "STRFTIME")
    layout = fixed_text(pattern, "STRFTIME", LONGEST_REPLACEMENT)
    try:
        return text(
            tuple(dict.fromkeys(engine_values("strftime", _days(a, "STRFTIME"), layout))), nullable=a.nullable
        )
    except InvalidInput:
        raise Refusal(f"{layout!r} is not a format that the engine knows, such as '%Y-%m'") from None


def day_name(function: str) -> Rule:
    """Return the domain of DAYNAME and MONTHNAME, Monday and January first."""

    def rule(a: Domain) -> Domain:
        a.need(Kind.DATE, function.upper())
        step, count = (1, 7) if function == "dayname" else (31, 12)
        monday = date(2001, 1, 1).toordinal()
        days = tuple(date.fromordinal(monday + step * i) for i in range(count))
        return text(tuple(engine_values(function, days)), nullable=a.nullable)

    return rule


def _days(a: Domain, what: str) -> tuple[date, ...]:
    if a.values is not None:
        return a.values
    if not a.bounded or a.high - a.low > MOST_DAYS:
        raise Refusal(f"{what} needs a date with declared bounds")
    return tuple(date.fromordinal(day) for day in range(int(a.low), int(a.high) + 1))


def mapped(function: Callable[..., Any], what: str) -> Rule:
    """Return the rule of text functions: on declared categories the results are known as well."""

    def rule(a: Domain, *rest: Domain) -> Domain:
        a.need(Kind.TEXT, what)
        fixed = []
        for arg in rest:
            if arg.kind is Kind.NUMBER and arg.low == arg.high:
                fixed.append(int(arg.low))
            if not fixed or not 0 <= fixed[-1] <= LONGEST or fixed[0] < 1 or not arg.integral:
                raise Refusal(f"{what} needs fixed whole numbers up to {LONGEST:,}, a start of at least 1")
        if a.values is None:
            return text(nullable=a.nullable)
        return text(tuple(dict.fromkeys(function(value, *fixed) for value in a.values)), nullable=a.nullable)

    return rule


def concat(*args: Domain) -> Domain:
    for arg in args:
        arg.need(Kind.TEXT, "||")
    total: tuple[str, ...] | None = ("",)
    for arg in args:
        if total is None or arg.values is None or len(total) * len(arg.values) > 10_000:
            total = None
        else:
            total = tuple(dict.fromkeys((a + b)[:LONGEST] for a in total for b in arg.values))
    return text(total, nullable=any_null(*args))


def length(a: Domain) -> Domain:
    a.need(Kind.TEXT, "LENGTH")
    if a.values is None:
        return number(0, math.inf, integral=True, nullable=a.nullable)
    sizes = [len(value) for value in a.values]
    return number(min(sizes), max(sizes), integral=True, nullable=a.nullable)


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
    def rule(a: Domain) -> Domain:
        a.need(Kind.DATE, name.upper())
        low, high = PARTS[name]
        if name == "year" and a.bounded:
            low, high = date.fromordinal(int(a.low)).year, date.fromordinal(int(a.high)).year
        return number(low, high, integral=True, nullable=a.nullable)

    return rule


def start_of(unit: str, day: date) -> date:
    """Return the first day of the year, quarter, month or week that a day is in."""
    if unit == "week":
        return date.fromordinal(day.toordinal() - day.weekday())
    month = {"year": 1, "quarter": 3 * ((day.month - 1) // 3) + 1, "month": day.month}.get(unit)
    return day if month is None else date(day.year, month, 1)


def truncated(unit: str) -> Rule:
    def rule(a: Domain) -> Domain:
        a.need(Kind.DATE, "DATE_TRUNC")
        starts = tuple(dict.fromkeys(start_of(unit, day) for day in _days(a, "DATE_TRUNC")))
        return replace(a, low=float(starts[0].toordinal()), values=starts)

    return rule


def to_number(a: Domain) -> Domain:
    if a.kind is Kind.TEXT:
        return number(-math.inf, math.inf)
    if a.kind is Kind.BOOLEAN:
        return number(0, 1, integral=True, nullable=a.nullable)
    a.need(Kind.NUMBER, "CAST to a number")
    return a


def away(x: float) -> float:
    """Return the nearest whole number, halves away from zero: ROUND in DuckDB."""
    if not math.isfinite(x):
        return x
    cut = math.trunc(x)
    return float(cut + math.copysign(1, x) if abs(x - cut) >= 0.5 else cut)


def to_integer(lower: int, upper: int) -> Rule:
    """Return the rule of CAST to an integer type: halves to the even neighbor, as DuckDB casts a DOUBLE; what
    does not fit is missing."""

    def rule(a: Domain) -> Domain:
        b = to_number(a)
        # texts such as '2.5' are rounded by DuckDB another way; their range is that of the type
        low, high = (float(round(end)) if math.isfinite(end) else end for end in (b.low, b.high))
        fits = lower <= low and high <= upper and a.kind is not Kind.TEXT
        low, high = min(max(low, lower), upper), max(min(high, upper), lower)
        domain = number(low, high, integral=True, nullable=b.nullable or not fits)
        return replace(domain, values=b.values if fits else None)

    return rule


def to_decimal(a: Domain, width: Domain, scale: Domain) -> Domain:
    """Return the domain of CAST to DECIMAL(width, scale): halves away from zero; what does not fit is
    missing."""
    b, digits = to_number(a), int(scale.low)
    half, limit = 0.5 * 10.0**-digits, 10.0 ** (int(width.low) - digits)
    domain = number(max(b.low - half, -limit), min(b.high + half, limit), integral=digits == 0)
    if b.integral and -limit < b.low and b.high < limit and a.kind is not Kind.TEXT:
        return replace(b, integer=False)
    return domain


def to_float(a: Domain) -> Domain:
    """Return the domain of CAST to FLOAT: the nearest number of 24 bits."""
    b = to_number(a)
    slack = max(abs(b.low), abs(b.high)) * 2.0**-23
    exact = b.integral and max(abs(b.low), abs(b.high)) <= 1 << 24
    return replace(b, integer=False) if exact else number(b.low - slack, b.high + slack)


def truncated_number(a: Domain, digits: Domain | None = None) -> Domain:
    """Return the domain of TRUNC: towards zero."""
    numbers("TRUNC", a)
    decimals = 0 if digits is None else digits.low
    if digits is not None and not (digits.low == digits.high and 0 <= decimals <= 12 and digits.integral):
        raise Refusal("TRUNC needs a fixed number of digits between 0 and 12")
    if decimals == 0:
        return monotone(math.trunc, "TRUNC", integral=True)(a)
    return number(
        min(a.low, 0.0) if a.low < 0 else max(0.0, a.low - 10.0**-decimals),
        max(a.high, 0.0),
        nullable=a.nullable,
    )


def months_later(a: Domain, n: Domain) -> Domain:
    """Return a date some fixed number of months later: the same day, or the month's last."""
    a.need(Kind.DATE, "adding months")
    if not (n.kind is Kind.NUMBER and n.low == n.high and n.integral and not n.nullable):
        raise Refusal("to a date a fixed whole number of months can be added")
    ends = [add_months(date.fromordinal(int(end)), int(n.low)) for end in (a.low, a.high)]
    low, high = (float(end.toordinal()) for end in ends)
    months = (
        None if a.values is None else tuple(dict.fromkeys(add_months(day, int(n.low)) for day in a.values))
    )
    return Domain(kind=Kind.DATE, low=low, high=high, values=months, nullable=a.nullable)


def add_months(day: date, n: int) -> date:
    year, month = divmod(day.year * 12 + day.month - 1 + n, 12)
    if not date.min.year <= year <= date.max.year:
        raise Refusal("this goes beyond the years 1 to 9999")
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))


def round_rule(a: Domain, digits: Domain | None = None) -> Domain:
    numbers("ROUND", a)
    decimals = 0 if digits is None else digits.low
    if digits is not None and not (digits.low == digits.high and -12 <= decimals <= 12 and digits.integral):
        raise Refusal("ROUND needs a fixed number of digits between -12 and 12")
    half = 0.5 * 10.0**-decimals
    if a.integral and decimals >= 0:
        return replace(a, values=None)
    ends = (away(a.low), away(a.high)) if decimals == 0 else (a.low - half, a.high + half)
    result = number(*ends, integral=decimals <= 0, nullable=a.nullable)
    return result if decimals >= 0 or not a.bounded else _tens(a, result, 10 ** int(-decimals))


def _tens(a: Domain, rounded: Domain, unit: int) -> Domain:
    """Return the domain of rounding to tens, hundreds, ...: only multiples of these, as a list where they are
    few."""
    first, last = int(away(a.low / unit)), int(away(a.high / unit))
    few = last - first < 4096
    values = tuple(k * unit for k in range(first, last + 1)) if few else None
    return replace(rounded, low=float(first * unit), high=float(last * unit), values=values)
