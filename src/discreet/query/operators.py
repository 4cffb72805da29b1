"""The closed list of what an expression may do: for each operator its range, its SQL and its value on released numbers.

Every operator is total: no division, cast, root or logarithm can fail on any row, because a failure would tell of that row.
Numbers are computed as DOUBLE. Where plain SQL would stop, the result is NULL.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from typing import Any

import numpy as np
from sqlglot import exp

from .domain import Domain, Kind, boolean, corners, number, text, union
from .errors import Node, Refusal

Rule = Callable[..., Domain]


@dataclass(frozen=True, slots=True)
class Operator:
    domain: Rule
    sql: Callable[..., Node]
    value: Callable[..., Any] | None = None  # on numpy arrays of released numbers; NaN is NULL


def cast(node: Node, to: str) -> Node:
    return exp.Cast(this=node, to=exp.DataType.build(to, dialect="duckdb"))


def double(value: float) -> Node:
    return cast(exp.Literal.number(repr(float(value))), "DOUBLE")


def call(name: str, *args: Node) -> Node:
    return exp.Anonymous(this=name, expressions=list(args))


def paren(node: Node) -> Node:
    return exp.Paren(this=node)


def if_(condition: Node, then: Node, other: Node | None = None) -> Node:
    return exp.Case(ifs=[exp.If(this=condition, true=then)], default=other)


def _binary(cls: type[exp.Binary]) -> Callable[[Node, Node], Node]:
    return lambda a, b: paren(cls(this=a, expression=b))


def _nullable(*args: Domain) -> bool:
    return any(arg.nullable for arg in args)


def _numbers(what: str, *args: Domain) -> None:
    for arg in args:
        arg.need(Kind.NUMBER, what)


def _arithmetic(op: Callable[[float, float], float], what: str) -> Rule:
    def rule(a: Domain, b: Domain) -> Domain:
        if Kind.DATE in (a.kind, b.kind):
            raise Refusal("dates can be subtracted from each other, compared, truncated and taken apart, nothing else")
        _numbers(what, a, b)
        low, high = corners(a, b, op)
        result = number(low, high, whole=a.whole and b.whole, nullable=_nullable(a, b))
        return replace(result, values=_few(a, b, op))

    return rule


def _few(a: Domain, b: Domain, op: Callable[[float, float], float]) -> tuple[Any, ...] | None:
    """The values of an operation on few whole numbers: FLOOR(age / 10) * 10 is 0, 10, 20, ..."""
    if not (a.whole and b.whole):
        return None
    left, right = a.members(4096), b.members(4096)
    if left is None or right is None or len(left) * len(right) > 4096:
        return None
    return tuple(sorted({op(x, y) for x in left for y in right}))


def _days(a: Domain, b: Domain) -> Domain:
    a.need(Kind.DATE, "a difference in days")
    b.need(Kind.DATE, "a difference in days")
    return number(a.low - b.high, a.high - b.low, whole=True, nullable=_nullable(a, b))


def _divide(a: Domain, b: Domain) -> Domain:
    _numbers("/", a, b)
    if b.low > 0 or b.high < 0:
        low, high = corners(a, b, lambda x, y: x / y)
        return number(low, high, nullable=_nullable(a, b))
    return number(-math.inf, math.inf)


def _floor_divide(a: Domain, b: Domain) -> Domain:
    part = _divide(a, b)
    low, high = (math.floor(end) if math.isfinite(end) else end for end in (part.low, part.high))
    return number(low, high, whole=True, nullable=part.nullable)


def _modulo(a: Domain, b: Domain) -> Domain:
    _numbers("%", a, b)
    most = max(abs(b.low), abs(b.high))
    whole = a.whole and b.whole
    edge = most - 1 if whole and most >= 1 else most
    low = 0.0 if a.low >= 0 else -edge
    return number(low, 0.0 if a.high <= 0 else edge, whole=whole, nullable=True)


def _monotone(op: Callable[[float], float], what: str, *, whole: bool | None = None) -> Rule:
    def rule(a: Domain) -> Domain:
        _numbers(what, a)
        low, high = (op(end) if math.isfinite(end) else end for end in (a.low, a.high))
        return number(low, high, whole=a.whole if whole is None else whole, nullable=a.nullable)

    return rule


def _absolute(a: Domain) -> Domain:
    _numbers("ABS", a)
    ends = sorted((abs(a.low), abs(a.high)))
    low = 0.0 if a.low <= 0 <= a.high else ends[0]
    return number(low, ends[1], whole=a.whole, nullable=a.nullable)


def _root(a: Domain) -> Domain:
    _numbers("SQRT", a)
    return number(math.sqrt(max(a.low, 0.0)), math.sqrt(max(a.high, 0.0)), nullable=a.nullable or a.low < 0)


def _logarithm(a: Domain) -> Domain:
    _numbers("LN", a)
    low = math.log(a.low) if a.low > 0 else -math.inf
    return number(low, math.log(a.high) if a.high > 0 else 0.0, nullable=a.nullable or a.low <= 0)


def _exponential(a: Domain) -> Domain:
    _numbers("EXP", a)
    return number(
        math.exp(max(-745.0, min(a.low, 700.0))), math.exp(a.high) if a.high < 340 else math.inf, nullable=a.nullable
    )


def _power(a: Domain, b: Domain) -> Domain:
    _numbers("POWER", a, b)
    if b.low != b.high or b.low != int(b.low) or not 0 <= b.low <= 8:
        raise Refusal("POWER needs a fixed whole exponent between 0 and 8")
    n = int(b.low)
    ends = [_capped(end, n) for end in (a.low, a.high)]
    low = 0.0 if n % 2 == 0 and n > 0 and a.low <= 0 <= a.high else min(ends)
    return number(low, max(ends), whole=a.whole, nullable=a.nullable)


def _capped(end: float, n: int) -> float:
    if n == 0:
        return 1.0
    try:
        return float(end**n)
    except OverflowError:
        return -math.inf if end < 0 and n % 2 else math.inf


def _clamp(a: Domain, low: Domain, high: Domain) -> Domain:
    _numbers("CLAMP", a, low, high)
    if not (low.low == low.high < high.low == high.high):
        raise Refusal("CLAMP(x, low, high) needs two fixed numbers, low below high")
    inner = number(
        max(a.low, low.low), min(a.high, high.low), whole=a.whole and low.whole and high.whole, nullable=a.nullable
    )
    if inner.low > inner.high:  # all of it lies beyond one end
        end = low.low if a.high < low.low else high.low
        return replace(inner, low=end, high=end)
    return inner


def _extreme(pick: Callable[..., float]) -> Rule:
    def rule(*args: Domain) -> Domain:
        nullable = all(arg.nullable for arg in args)
        joined = union(list(args), nullable=nullable)
        if joined.kind not in (Kind.NUMBER, Kind.DATE):
            raise Refusal("LEAST and GREATEST are for numbers and dates")
        if _nullable(*args):  # a missing one is skipped, so another's far end can come through
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


def _comparison(*args: Domain) -> Domain:
    kinds = {arg.kind for arg in args}
    if len(kinds) > 1:
        raise Refusal(f"a {args[0].kind} cannot be compared with a {args[1].kind}")
    return boolean(_nullable(*args))


def _member(a: Domain, *items: Domain) -> Domain:
    for item in items:
        _comparison(a, item)
    return boolean(_nullable(a, *items))


def _logic(*args: Domain) -> Domain:
    for arg in args:
        arg.need(Kind.BOOLEAN, "AND, OR, NOT, WHERE")
    return boolean(_nullable(*args))


def _like(a: Domain, pattern: Domain) -> Domain:
    a.need(Kind.TEXT, "LIKE")
    if pattern.values is None or len(pattern.values) != 1:
        raise Refusal("LIKE needs a fixed pattern")
    return boolean(a.nullable)


def _case(*args: Domain) -> Domain:
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


def _coalesce(*args: Domain) -> Domain:
    filled = [arg for arg in args if not is_null(arg)] or list(args)
    return union(filled, nullable=all(arg.nullable for arg in args))


def _nullif(a: Domain, b: Domain) -> Domain:
    _comparison(a, b)
    return replace(a, nullable=True)


def _mapped(function: Callable[..., Any], what: str) -> Rule:
    """Text functions: on declared categories the results are known as well."""

    def rule(a: Domain, *rest: Domain) -> Domain:
        a.need(Kind.TEXT, what)
        fixed = []
        for arg in rest:
            if arg.kind is Kind.NUMBER and arg.low == arg.high:
                fixed.append(int(arg.low))
            if not fixed or fixed[-1] < 0 or fixed[0] < 1 or not arg.whole:
                raise Refusal(f"{what} needs fixed whole numbers, a start of at least 1")
        if a.values is None:
            return text(nullable=a.nullable)
        return text(tuple(dict.fromkeys(function(value, *fixed) for value in a.values)), nullable=a.nullable)

    return rule


def _concat(*args: Domain) -> Domain:
    for arg in args:
        arg.need(Kind.TEXT, "||")
    total: tuple[str, ...] | None = ("",)
    for arg in args:
        if total is None or arg.values is None or len(total) * len(arg.values) > 10_000:
            total = None
        else:
            total = tuple(dict.fromkeys(a + b for a in total for b in arg.values))
    return text(total, nullable=_nullable(*args))


def _length(a: Domain) -> Domain:
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
    "doy": (1, 366),
}


def _part(name: str) -> Rule:
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


def _truncated(unit: str) -> Rule:
    def rule(a: Domain) -> Domain:
        a.need(Kind.DATE, "DATE_TRUNC")
        if not a.bounded or a.high - a.low > 400_000:
            raise Refusal("DATE_TRUNC needs a date with declared bounds")
        days = range(int(a.low), int(a.high) + 1)
        starts = tuple(dict.fromkeys(start_of(unit, date.fromordinal(day)) for day in days))
        return replace(a, low=float(starts[0].toordinal()), values=starts)

    return rule


def _to_number(a: Domain) -> Domain:
    if a.kind is Kind.TEXT:
        return number(-math.inf, math.inf)
    if a.kind is Kind.BOOLEAN:
        return number(0, 1, whole=True, nullable=a.nullable)
    a.need(Kind.NUMBER, "CAST to a number")
    return a


def _away(x: float) -> float:
    """The nearest whole number, halves away from zero, as DuckDB rounds."""
    return math.copysign(math.floor(abs(x) + 0.5), x) if math.isfinite(x) else x


def _to_whole(a: Domain) -> Domain:
    b = _to_number(a)
    if b.values is not None:
        return b
    return number(_away(b.low), _away(b.high), whole=True, nullable=b.nullable)


def _round_sql(a: Node, digits: Node | None = None) -> Node:
    return call("ROUND", a) if digits is None else call("ROUND", a, cast(digits, "INTEGER"))


def _round(a: Domain, digits: Domain | None = None) -> Domain:
    _numbers("ROUND", a)
    places = 0 if digits is None else digits.low
    if digits is not None and not (digits.low == digits.high and -12 <= places <= 12 and digits.whole):
        raise Refusal("ROUND needs a fixed number of digits between -12 and 12")
    half = 0.5 * 10.0**-places
    if a.whole and places >= 0:
        return replace(a, values=None)
    ends = (_away(a.low), _away(a.high)) if places == 0 else (a.low - half, a.high + half)
    return number(*ends, whole=places <= 0, nullable=a.nullable)


def _truth(function: Callable[..., Any]) -> Callable[..., Any]:
    """A comparison on released numbers as 1.0, 0.0 or NaN."""

    def value(a: Any, b: Any) -> Any:
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype == object or b.dtype == object:
            return np.where(a == None, np.nan, np.vectorize(function, otypes=[float])(a, b))  # noqa: E711
        return np.where(np.isnan(a) | np.isnan(b), np.nan, function(a, b).astype(float))

    return value


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Arithmetic on released numbers: what is not finite becomes NaN, and no warning says so."""

    def value(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            result = np.asarray(function(*args), dtype=float)
        return np.where(np.isfinite(result), result, np.nan)

    return value


def _case_value(*args: Any) -> Any:
    result = args[-1]
    for condition, then in reversed(list(zip(args[:-1:2], args[1:-1:2], strict=True))):
        result = np.where(np.asarray(condition) == 1.0, then, result)
    return result


def _first_value(*args: Any) -> Any:
    result = args[-1]
    for arg in reversed(args[:-1]):
        result = np.where(_missing(arg), result, arg)
    return result


def _missing(a: Any) -> Any:
    a = np.asarray(a)
    return np.array([v is None for v in a.ravel()]).reshape(a.shape) if a.dtype == object else np.isnan(a)


def _and(a: Any, b: Any) -> Any:
    return np.where((a == 0) | (b == 0), 0.0, np.where(np.isnan(a) | np.isnan(b), np.nan, 1.0))


def _or(a: Any, b: Any) -> Any:
    return np.where((a == 1) | (b == 1), 1.0, np.where(np.isnan(a) | np.isnan(b), np.nan, 0.0))


def _in(a: Any, *items: Any) -> Any:
    equal = _truth(operator.eq)
    result = equal(a, items[0])
    for item in items[1:]:
        result = _or(result, equal(a, item))
    return result


def _guarded(name: str, above: float, *, strictly: bool) -> Callable[[Node], Node]:
    cls = exp.GT if strictly else exp.GTE
    return lambda a: call(name, if_(cls(this=a.copy(), expression=double(above)), a))  # the argument itself is safe


def _case_sql(*args: Node) -> Node:
    ifs = [exp.If(this=c, true=v) for c, v in zip(args[:-1:2], args[1:-1:2], strict=True)]
    return exp.Case(ifs=ifs, default=args[-1])


def _clamp_sql(a: Node, low: Node, high: Node) -> Node:
    """What is not finite is missing, not large."""
    below, above = exp.LT(this=a.copy(), expression=low), exp.GT(this=a.copy(), expression=high)
    ifs = [(below, low.copy()), (above, high.copy())]
    inner = exp.Case(ifs=[exp.If(this=c, true=v) for c, v in ifs], default=a.copy())
    return if_(call("isfinite", a), inner)


def _like_sql(cls: type[exp.Binary]) -> Callable[[Node, Node], Node]:
    return lambda a, b: paren(cls(this=a, expression=b))


def _divided(a: Node, b: Node) -> Node:
    return paren(exp.Div(this=a, expression=call("NULLIF", b, double(0)), typed=False, safe=False))


def _part_sql(name: str) -> Callable[[Node], Node]:
    return lambda a: cast(call("date_part", exp.Literal.string(name), a), "DOUBLE")


def _trunc_sql(unit: str) -> Callable[[Node], Node]:
    return lambda a: cast(call("date_trunc", exp.Literal.string(unit), a), "DATE")


def _try(to: str) -> Callable[[Node], Node]:
    return lambda a: exp.TryCast(this=a, to=exp.DataType.build(to, dialect="duckdb"))


def _to_double(a: Node) -> Node:
    return _try("DOUBLE")(a)


def _substring(value: str, start: int, length: int | None = None) -> str:
    begin = max(start - 1, 0)
    return value[begin:] if length is None else value[begin : max(begin, start - 1 + length)]


def _sub_sql(a: Node, *rest: Node) -> Node:
    return call("substring", a, *(cast(arg, "BIGINT") for arg in rest))


def _joined(*args: Node) -> Node:
    result = args[0]
    for arg in args[1:]:
        result = paren(exp.DPipe(this=result, expression=arg, safe=False))
    return result


OPERATORS: dict[str, Operator] = {
    "+": Operator(_arithmetic(operator.add, "+"), _binary(exp.Add), _quiet(np.add)),
    "-": Operator(_arithmetic(operator.sub, "-"), _binary(exp.Sub), _quiet(np.subtract)),
    "days": Operator(_days, lambda a, b: cast(call("datediff", exp.Literal.string("day"), b, a), "DOUBLE")),
    "*": Operator(_arithmetic(operator.mul, "*"), _binary(exp.Mul), _quiet(np.multiply)),
    "/": Operator(_divide, _divided, _quiet(np.divide)),
    "//": Operator(_floor_divide, lambda a, b: call("FLOOR", _divided(a, b)), _quiet(lambda a, b: np.floor(a / b))),
    "%": Operator(
        _modulo, lambda a, b: paren(exp.Mod(this=a, expression=call("NULLIF", b, double(0)))), _quiet(np.fmod)
    ),
    "floor": Operator(_monotone(math.floor, "FLOOR", whole=True), lambda a: call("FLOOR", a), _quiet(np.floor)),
    "ceil": Operator(_monotone(math.ceil, "CEIL", whole=True), lambda a: call("CEIL", a), _quiet(np.ceil)),
    "round": Operator(_round, _round_sql, _quiet(lambda a, d=0: np.round(a, int(np.ravel(d)[0])))),
    "abs": Operator(_absolute, lambda a: call("ABS", a), _quiet(np.abs)),
    "sqrt": Operator(_root, _guarded("SQRT", 0.0, strictly=False), _quiet(np.sqrt)),
    "ln": Operator(_logarithm, _guarded("LN", 0.0, strictly=True), _quiet(np.log)),
    "exp": Operator(_exponential, lambda a: call("EXP", a), _quiet(np.exp)),
    "power": Operator(_power, lambda a, b: call("POW", a, b), _quiet(np.power)),
    "clamp": Operator(_clamp, _clamp_sql, _quiet(np.clip)),
    "least": Operator(_extreme(min), lambda *a: call("LEAST", *a), lambda *a: reduce(np.fmin, a)),
    "greatest": Operator(_extreme(max), lambda *a: call("GREATEST", *a), lambda *a: reduce(np.fmax, a)),
    "=": Operator(_comparison, _binary(exp.EQ), _truth(operator.eq)),
    "<>": Operator(_comparison, _binary(exp.NEQ), _truth(operator.ne)),
    "<": Operator(_comparison, _binary(exp.LT), _truth(operator.lt)),
    "<=": Operator(_comparison, _binary(exp.LTE), _truth(operator.le)),
    ">": Operator(_comparison, _binary(exp.GT), _truth(operator.gt)),
    ">=": Operator(_comparison, _binary(exp.GTE), _truth(operator.ge)),
    "and": Operator(_logic, _binary(exp.And), _and),
    "or": Operator(_logic, _binary(exp.Or), _or),
    "not": Operator(_logic, lambda a: paren(exp.Not(this=a)), lambda a: 1.0 - a),
    "null?": Operator(
        lambda a: boolean(False), lambda a: paren(exp.Is(this=a, expression=exp.Null())), lambda a: _missing(a) * 1.0
    ),
    "in": Operator(_member, lambda a, *items: paren(exp.In(this=a, expressions=list(items))), _in),
    "like": Operator(_like, _like_sql(exp.Like)),
    "ilike": Operator(_like, _like_sql(exp.ILike)),
    "case": Operator(_case, _case_sql, _case_value),
    "coalesce": Operator(_coalesce, lambda *a: call("COALESCE", *a), _first_value),
    "nullif": Operator(
        _nullif, lambda a, b: call("NULLIF", a, b), lambda a, b: np.where(np.asarray(a) == b, np.nan, a)
    ),
    "upper": Operator(_mapped(str.upper, "UPPER"), lambda a: call("upper", a)),
    "lower": Operator(_mapped(str.lower, "LOWER"), lambda a: call("lower", a)),
    "trim": Operator(_mapped(lambda v: v.strip(" "), "TRIM"), lambda a: call("trim", a)),
    "substring": Operator(_mapped(_substring, "SUBSTRING"), _sub_sql),
    "||": Operator(_concat, _joined),
    "length": Operator(_length, lambda a: cast(call("length", a), "DOUBLE")),
    "number": Operator(_to_number, _to_double, lambda a: np.asarray(a, dtype=float)),
    "whole": Operator(_to_whole, lambda a: call("ROUND", _to_double(a)), _quiet(np.round)),
    **{f"part:{name}": Operator(_part(name), _part_sql(name)) for name in PARTS},
    **{
        f"start:{unit}": Operator(_truncated(unit), _trunc_sql(unit))
        for unit in ("year", "quarter", "month", "week", "day")
    },
}
