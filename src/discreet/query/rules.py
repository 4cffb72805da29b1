"""The domain rules of operators: what is known of a result from what is known of the arguments; and what an operator is not for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Any

from .domain import Domain, Kind, boolean, corners, number, text, union
from .errors import Refusal

Rule = Callable[..., Domain]
LONGEST = 10_000  # characters that SUBSTRING and || can make, so that no text of anyone's is too much for the engine


def any_null(*args: Domain) -> bool:
    return any(arg.nullable for arg in args)


def numbers(what: str, *args: Domain) -> None:
    for arg in args:
        arg.need(Kind.NUMBER, what)


def arithmetic(op: Callable[[float, float], float], what: str) -> Rule:
    def rule(a: Domain, b: Domain) -> Domain:
        if Kind.DATE in (a.kind, b.kind):
            raise Refusal(
                "to dates days can be added; they can be subtracted, compared, truncated and taken apart, nothing else"
            )
        numbers(what, a, b)
        low, high = corners(a, b, op)
        result = number(low, high, whole=a.whole and b.whole, nullable=any_null(a, b))
        return replace(result, values=few(a, b, op))

    return rule


def few(a: Domain, b: Domain, op: Callable[[float, float], float]) -> tuple[Any, ...] | None:
    """The values of an operation on few whole numbers: FLOOR(age / 10) * 10 is 0, 10, 20, ..."""
    if not (a.whole and b.whole):
        return None
    left, right = a.members(4096), b.members(4096)
    if left is None or right is None or len(left) * len(right) > 4096:
        return None
    return tuple(sorted({op(x, y) for x in left for y in right}))


def days(a: Domain, b: Domain) -> Domain:
    a.need(Kind.DATE, "a difference in days")
    b.need(Kind.DATE, "a difference in days")
    return number(a.low - b.high, a.high - b.low, whole=True, nullable=any_null(a, b))


def later(a: Domain, n: Domain) -> Domain:
    """A date some fixed number of days later, or earlier, within the years that both Python and the engine know."""
    a.need(Kind.DATE, "adding days")
    if not (n.kind is Kind.NUMBER and n.low == n.high and n.whole and not n.nullable):
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


def floor_divide(a: Domain, b: Domain) -> Domain:
    part = divide(a, b)
    low, high = (math.floor(end) if math.isfinite(end) else end for end in (part.low, part.high))
    return number(low, high, whole=True, nullable=part.nullable)


def modulo(a: Domain, b: Domain) -> Domain:
    numbers("%", a, b)
    most = max(abs(b.low), abs(b.high))
    whole = a.whole and b.whole
    edge = most - 1 if whole and most >= 1 else most
    low = 0.0 if a.low >= 0 else -edge
    return number(low, 0.0 if a.high <= 0 else edge, whole=whole, nullable=True)


def monotone(op: Callable[[float], float], what: str, *, whole: bool | None = None) -> Rule:
    def rule(a: Domain) -> Domain:
        numbers(what, a)
        low, high = (op(end) if math.isfinite(end) else end for end in (a.low, a.high))
        return number(low, high, whole=a.whole if whole is None else whole, nullable=a.nullable)

    return rule


def absolute(a: Domain) -> Domain:
    numbers("ABS", a)
    ends = sorted((abs(a.low), abs(a.high)))
    low = 0.0 if a.low <= 0 <= a.high else ends[0]
    return number(low, ends[1], whole=a.whole, nullable=a.nullable)


def root(a: Domain) -> Domain:
    numbers("SQRT", a)
    return number(math.sqrt(max(a.low, 0.0)), math.sqrt(max(a.high, 0.0)), nullable=a.nullable or a.low < 0)


def logarithm(a: Domain) -> Domain:
    numbers("LN", a)
    low = math.log(a.low) if a.low > 0 else -math.inf
    return number(low, math.log(a.high) if a.high > 0 else 0.0, nullable=a.nullable or a.low <= 0)


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
    return number(low, max(ends), whole=a.whole, nullable=a.nullable)


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
        max(a.low, low.low), min(a.high, high.low), whole=a.whole and low.whole and high.whole, nullable=a.nullable
    )
    if inner.low > inner.high:  # all of it lies beyond one end
        end = low.low if a.high < low.low else high.low
        return replace(inner, low=end, high=end)
    return inner


def extreme(pick: Callable[..., float]) -> Rule:
    def rule(*args: Domain) -> Domain:
        nullable = all(arg.nullable for arg in args)
        joined = union(list(args), nullable=nullable)
        if joined.kind not in (Kind.NUMBER, Kind.DATE):
            raise Refusal("LEAST and GREATEST are for numbers and dates")
        if any_null(*args):  # a missing one is skipped, so another's far end can come through
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
    """Arguments: condition, value, condition, value, ..., default."""
    for condition in args[:-1:2]:
        condition.need(Kind.BOOLEAN, "WHEN")
    branches = [*args[1:-1:2], args[-1]]
    absent = [b.nullable for b in branches]
    filled = [b for b in branches if not is_null(b)]
    return union(filled or branches, nullable=any(absent))


def is_null(domain: Domain) -> bool:
    """The literal NULL fits any kind: its domain is the empty one."""
    return domain.nullable and domain.low == domain.high == 0.0 and domain.whole and domain.values is None


def coalesce(*args: Domain) -> Domain:
    filled = [arg for arg in args if not is_null(arg)] or list(args)
    return union(filled, nullable=all(arg.nullable for arg in args))


def nullif(a: Domain, b: Domain) -> Domain:
    comparison(a, b)
    return replace(a, nullable=True)


def mapped(function: Callable[..., Any], what: str) -> Rule:
    """Text functions: on declared categories the results are known as well."""

    def rule(a: Domain, *rest: Domain) -> Domain:
        a.need(Kind.TEXT, what)
        fixed = []
        for arg in rest:
            if arg.kind is Kind.NUMBER and arg.low == arg.high:
                fixed.append(int(arg.low))
            if not fixed or not 0 <= fixed[-1] <= LONGEST or fixed[0] < 1 or not arg.whole:
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
        return number(0, math.inf, whole=True, nullable=a.nullable)
    sizes = [len(value) for value in a.values]
    return number(min(sizes), max(sizes), whole=True, nullable=a.nullable)


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
        return number(low, high, whole=True, nullable=a.nullable)

    return rule


def start_of(unit: str, day: date) -> date:
    """The first day of the year, quarter, month or week that a day is in."""
    if unit == "week":
        return date.fromordinal(day.toordinal() - day.weekday())
    month = {"year": 1, "quarter": 3 * ((day.month - 1) // 3) + 1, "month": day.month}.get(unit)
    return day if month is None else date(day.year, month, 1)


def truncated(unit: str) -> Rule:
    def rule(a: Domain) -> Domain:
        a.need(Kind.DATE, "DATE_TRUNC")
        if not a.bounded or a.high - a.low > 400_000:
            raise Refusal("DATE_TRUNC needs a date with declared bounds")
        days = range(int(a.low), int(a.high) + 1)
        starts = tuple(dict.fromkeys(start_of(unit, date.fromordinal(day)) for day in days))
        return replace(a, low=float(starts[0].toordinal()), values=starts)

    return rule


def to_number(a: Domain) -> Domain:
    if a.kind is Kind.TEXT:
        return number(-math.inf, math.inf)
    if a.kind is Kind.BOOLEAN:
        return number(0, 1, whole=True, nullable=a.nullable)
    a.need(Kind.NUMBER, "CAST to a number")
    return a


def away(x: float) -> float:
    """The nearest whole number, halves away from zero, as DuckDB rounds."""
    return math.copysign(math.floor(abs(x) + 0.5), x) if math.isfinite(x) else x


def to_whole(a: Domain) -> Domain:
    b = to_number(a)
    if b.values is not None:
        return b
    return number(away(b.low), away(b.high), whole=True, nullable=b.nullable)


def round_rule(a: Domain, digits: Domain | None = None) -> Domain:
    numbers("ROUND", a)
    places = 0 if digits is None else digits.low
    if digits is not None and not (digits.low == digits.high and -12 <= places <= 12 and digits.whole):
        raise Refusal("ROUND needs a fixed number of digits between -12 and 12")
    half = 0.5 * 10.0**-places
    if a.whole and places >= 0:
        return replace(a, values=None)
    ends = (away(a.low), away(a.high)) if places == 0 else (a.low - half, a.high + half)
    result = number(*ends, whole=places <= 0, nullable=a.nullable)
    return result if places >= 0 or not a.bounded else _tens(a, result, 10 ** int(-places))


def _tens(a: Domain, rounded: Domain, unit: int) -> Domain:
    """Rounded to tens, hundreds, ...: only multiples of these, as a list where they are few."""
    first, last = int(away(a.low / unit)), int(away(a.high / unit))
    few = last - first < 4096
    values = tuple(k * unit for k in range(first, last + 1)) if few else None
    return replace(rounded, low=float(first * unit), high=float(last * unit), values=values)
