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
from functools import partial, reduce
from typing import Any

import numpy as np
from sqlglot import exp

from ..tables import engine_values
from . import rules
from .domain import Domain, boolean
from .errors import Node

Rule = Callable[..., Domain]
# Integer types that can be cast to, by DuckDB's names.
INTEGERS = {
    **{
        name: (-(1 << bits - 1), (1 << bits - 1) - 1)
        for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32))
    },
    **{name: (-(1 << bits - 1), (1 << bits - 1) - 1) for name, bits in (("BIGINT", 64), ("HUGEINT", 128))},
    **{
        name: (0, (1 << bits) - 1)
        for name, bits in (("UTINYINT", 8), ("USMALLINT", 16), ("UINTEGER", 32), ("UBIGINT", 64))
    },
}
_SPECIAL = set(r"\.+*?()|[]{}^$")


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


def _round_sql(a: Node, digits: Node | None = None) -> Node:
    return call("ROUND", a) if digits is None else call("ROUND", a, cast(digits, "INTEGER"))


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


def clipped(x: Node, low: Node, high: Node, *, may_be_nan: bool = True) -> Node:
    """A number inside [low, high]; what is not finite is missing, not large.

    Almost all rows pass the first test, which looks at signs of differences: these are exact, and take the engine a third of the time of
    its comparisons, which have to put NaN in order. -0.0 may fail the first test, and is then left as it is by the second.
    """
    minus = _binary(exp.Sub)
    outside = [call("signbit", minus(x.copy(), low)), call("signbit", minus(high, x.copy()))]
    outside += [call("isnan", x.copy())] if may_be_nan else []
    below, above = exp.LT(this=x.copy(), expression=low.copy()), exp.GT(this=x.copy(), expression=high.copy())
    exactly = exp.Case(
        ifs=[exp.If(this=below, true=low.copy()), exp.If(this=above, true=high.copy())], default=x.copy()
    )
    cases = [(exp.Not(this=paren(exp.or_(*outside))), x.copy()), (call("isfinite", x.copy()), exactly)]
    return exp.Case(ifs=[exp.If(this=c, true=v) for c, v in cases])


def _like_sql(a: Node, pattern: Node) -> Node:
    """In time that grows with the text's length and no faster: the engine's own LIKE tries all ways to fit `_`, which takes hours
    on some texts, and would tell who has one."""
    if "_" not in pattern.name:
        return paren(exp.Like(this=a, expression=pattern))
    parts = {"%": ".*", "_": "."}
    regex = "".join(parts.get(c) or (f"\\{c}" if c in _SPECIAL else c) for c in pattern.name)
    return call("regexp_full_match", a, exp.Literal.string(regex), exp.Literal.string("s"))


def _ilike_sql(a: Node, pattern: Node) -> Node:
    """Both in the engine's own lower case, which is not Python's."""
    return _like_sql(call("lower", a), exp.Literal.string(engine_values("lower", (pattern.name,))[0]))


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


def _to_integer(name: str) -> Callable[[Node], Node]:
    """By way of a wider integer: DuckDB's cast of a number at the edge of a narrow type turns it around."""
    return lambda a: cast(_try(name)(_try("HUGEINT")(a)), "DOUBLE")


def _to_decimal(a: Node, width: Node, scale: Node) -> Node:
    to = f"DECIMAL({int(float(width.this.name))}, {int(float(scale.this.name))})"
    return cast(_try(to)(a), "DOUBLE")


def _half_away(a: Any, digits: Any = 0) -> Any:
    """ROUND as DuckDB computes it on a DOUBLE."""
    places = int(np.ravel(digits)[0])
    unit = 10.0 ** abs(places)
    scaled = a * unit if places >= 0 else a / unit
    cut = np.trunc(scaled)
    whole = cut + np.where(np.abs(scaled - cut) >= 0.5, np.sign(scaled), 0.0)
    result = whole / unit if places >= 0 else whole * unit
    return np.where(np.isfinite(result), result, a)


def _cut(a: Any, digits: Any = 0) -> Any:
    unit = 10.0 ** int(np.ravel(digits)[0])
    return np.trunc(a * unit) / unit


def _within(least: int, most: int) -> Callable[..., Any]:
    def value(a: Any) -> Any:
        whole = np.rint(np.asarray(a, dtype=float))
        return np.where((whole >= least) & (whole <= most), whole, np.nan)

    return value


def _texts(function: Callable[[str], Any], *, number: bool = False) -> Callable[..., Any]:
    """A function of texts (or of days as text) on released keys; None stays None."""

    def value(a: Any, *rest: Any) -> Any:
        array = np.asarray(a, dtype=object)
        plain = [None if v is None else function(v, *(np.ravel(r)[0] for r in rest)) for v in array.ravel()]
        if number:
            return np.array([np.nan if v is None else v for v in plain], dtype=float).reshape(array.shape)
        made = np.empty(len(plain), dtype=object)
        made[:] = plain
        return made.reshape(array.shape)

    return value


def _engine_text(name: str, *, days: bool = False) -> Callable[..., Any]:
    def one(value: str, *rest: str) -> Any:
        return engine_values(name, (date.fromisoformat(value) if days else value,), *map(str, rest))[0]

    return _texts(one)


def _pasted(*args: Any) -> Any:
    arrays = np.broadcast_arrays(*(np.asarray(a, dtype=object) for a in args))
    made = np.empty(arrays[0].shape, dtype=object)
    for at in np.ndindex(made.shape):
        parts: list[Any] = [array[at] for array in arrays]
        made[at] = None if any(part is None for part in parts) else "".join(parts)[: rules.LONGEST]
    return made


def _alike(a: Any, b: Any) -> Any:
    """IS NOT DISTINCT FROM on released values."""
    absent_a, absent_b = np.broadcast_arrays(_missing(a), _missing(b))
    return np.where(absent_a | absent_b, (absent_a & absent_b) * 1.0, _truth(operator.eq)(a, b))


def _part_value(name: str) -> Callable[[str], float]:
    def one(value: str) -> float:
        day = date.fromisoformat(value)
        iso = day.isocalendar()
        parts = {"year": day.year, "quarter": (day.month + 2) // 3, "month": day.month, "day": day.day, "week": iso[1]}
        parts |= {"dow": day.isoweekday() % 7, "isodow": day.isoweekday(), "doy": day.timetuple().tm_yday}
        return float(parts[name])

    return one


def _substring(value: str, start: int, length: int | None = None) -> str:
    begin = max(start - 1, 0)
    return value[begin:] if length is None else value[begin : max(begin, start - 1 + length)]


def _sub_sql(a: Node, *rest: Node) -> Node:
    return call("substring", a, *(cast(arg, "BIGINT") for arg in rest))


def _joined(*args: Node) -> Node:
    result = args[0]
    for arg in args[1:]:
        both = exp.DPipe(this=result, expression=arg, safe=False)
        result = call("substring", both, exp.Literal.number(1), exp.Literal.number(rules.LONGEST))
    return result


def _trunc_number_sql(a: Node, digits: Node | None = None) -> Node:
    return call("TRUNC", a) if digits is None else call("TRUNC", a, cast(digits, "INTEGER"))


def _replace_sql(a: Node, old: Node, new: Node) -> Node:
    """Cut before and after, so that no text grows beyond measure."""
    first, last = exp.Literal.number(1), exp.Literal.number(rules.LONGEST)
    made = call("replace", call("substring", a, first, last), old, new)
    return call("substring", made, first.copy(), last.copy())


def _months_sql(a: Node, n: Node) -> Node:
    return cast(paren(exp.Add(this=a, expression=call("to_months", cast(n, "INTEGER")))), "DATE")


def _start_value(unit: str) -> Callable[[str], str]:
    return lambda value: rules.start_of(unit, date.fromisoformat(value)).isoformat()


OPERATORS: dict[str, Operator] = {
    "+": Operator(rules.arithmetic(operator.add, "+"), _binary(exp.Add), _quiet(np.add)),
    "-": Operator(rules.arithmetic(operator.sub, "-"), _binary(exp.Sub), _quiet(np.subtract)),
    "days": Operator(rules.days, lambda a, b: cast(call("datediff", exp.Literal.string("day"), b, a), "DOUBLE")),
    "later": Operator(rules.later, lambda a, n: cast(paren(exp.Add(this=a, expression=cast(n, "INTEGER"))), "DATE")),
    "*": Operator(rules.arithmetic(operator.mul, "*"), _binary(exp.Mul), _quiet(np.multiply)),
    "/": Operator(rules.divide, _divided, _quiet(np.divide)),
    "//": Operator(
        rules.integer_divide, lambda a, b: call("TRUNC", _divided(a, b)), _quiet(lambda a, b: np.trunc(a / b))
    ),
    "%": Operator(
        rules.modulo, lambda a, b: paren(exp.Mod(this=a, expression=call("NULLIF", b, double(0)))), _quiet(np.fmod)
    ),
    "floor": Operator(rules.monotone(math.floor, "FLOOR", whole=True), lambda a: call("FLOOR", a), _quiet(np.floor)),
    "ceil": Operator(rules.monotone(math.ceil, "CEIL", whole=True), lambda a: call("CEIL", a), _quiet(np.ceil)),
    "round": Operator(rules.round_rule, _round_sql, _quiet(_half_away)),
    "trunc": Operator(rules.truncated_number, _trunc_number_sql, _quiet(_cut)),
    "sign": Operator(rules.sign, lambda a: cast(call("SIGN", a), "DOUBLE"), _quiet(np.sign)),
    "abs": Operator(rules.absolute, lambda a: call("ABS", a), _quiet(np.abs)),
    "sqrt": Operator(rules.root, _guarded("SQRT", 0.0, strictly=False), _quiet(np.sqrt)),
    "ln": Operator(rules.logarithm(math.log, "LN"), _guarded("LN", 0.0, strictly=True), _quiet(np.log)),
    "log2": Operator(rules.logarithm(math.log2, "LOG2"), _guarded("LOG2", 0.0, strictly=True), _quiet(np.log2)),
    "log10": Operator(rules.logarithm(math.log10, "LOG10"), _guarded("LOG10", 0.0, strictly=True), _quiet(np.log10)),
    "finite": Operator(
        lambda a: replace(a, nullable=True), lambda a: if_(call("isfinite", a.copy()), a), _quiet(np.copy)
    ),
    "exactly whole": Operator(
        rules.exactly_whole,
        lambda a: if_(exp.EQ(this=a.copy(), expression=call("TRUNC", a.copy())), a),
        _quiet(lambda a: np.where(a == np.trunc(a), a, np.nan)),
    ),
    "exp": Operator(rules.exponential, lambda a: call("EXP", a), _quiet(np.exp)),
    "power": Operator(rules.power, lambda a, b: call("POW", a, b), _quiet(np.power)),
    "clamp": Operator(rules.clamp, clipped, _quiet(np.clip)),
    "least": Operator(rules.extreme(min), lambda *a: call("LEAST", *a), lambda *a: reduce(np.fmin, a)),
    "greatest": Operator(rules.extreme(max), lambda *a: call("GREATEST", *a), lambda *a: reduce(np.fmax, a)),
    "=": Operator(rules.comparison, _binary(exp.EQ), _truth(operator.eq)),
    "<>": Operator(rules.comparison, _binary(exp.NEQ), _truth(operator.ne)),
    "<": Operator(rules.comparison, _binary(exp.LT), _truth(operator.lt)),
    "<=": Operator(rules.comparison, _binary(exp.LTE), _truth(operator.le)),
    ">": Operator(rules.comparison, _binary(exp.GT), _truth(operator.gt)),
    ">=": Operator(rules.comparison, _binary(exp.GTE), _truth(operator.ge)),
    "and": Operator(rules.logic, _binary(exp.And), _and),
    "or": Operator(rules.logic, _binary(exp.Or), _or),
    "not": Operator(rules.logic, lambda a: paren(exp.Not(this=a)), lambda a: 1.0 - a),
    "same": Operator(rules.same, lambda a, b: paren(exp.NullSafeEQ(this=a, expression=b)), _alike),
    "null?": Operator(
        lambda a: boolean(False), lambda a: paren(exp.Is(this=a, expression=exp.Null())), lambda a: _missing(a) * 1.0
    ),
    "in": Operator(rules.member, lambda a, *items: paren(exp.In(this=a, expressions=list(items))), _in),
    "like": Operator(rules.like, _like_sql),
    "ilike": Operator(rules.like, _ilike_sql),
    "case": Operator(rules.case, _case_sql, _case_value),
    "coalesce": Operator(rules.coalesce, lambda *a: call("COALESCE", *a), _first_value),
    "nullif": Operator(
        rules.nullif, lambda a, b: call("NULLIF", a, b), lambda a, b: np.where(np.asarray(a) == b, np.nan, a)
    ),
    **{
        name: Operator(rules.by_engine(name), partial(call, name), _engine_text(name))
        for name in ("upper", "lower", "trim")
    },
    "substring": Operator(
        rules.mapped(_substring, "SUBSTRING"), _sub_sql, _texts(lambda v, *at: _substring(v, *map(int, at)))
    ),
    "replace": Operator(rules.replaced, _replace_sql, _engine_text("replace")),
    "||": Operator(rules.concat, _joined, _pasted),
    "length": Operator(rules.length, lambda a: cast(call("length", a), "DOUBLE"), _texts(len, number=True)),
    "number": Operator(rules.to_number, _to_double, lambda a: np.asarray(a, dtype=float)),
    "float": Operator(
        rules.to_float, lambda a: cast(_try("FLOAT")(a), "DOUBLE"), _quiet(lambda a: np.float32(a) * 1.0)
    ),
    "decimal": Operator(rules.to_decimal, _to_decimal, _quiet(lambda a, width, scale: _half_away(a, scale))),
    **{
        f"whole:{name}": Operator(rules.to_integer(*ends), _to_integer(name), _within(*ends))
        for name, ends in INTEGERS.items()
    },
    "months": Operator(rules.months_later, _months_sql),
    "strftime": Operator(rules.formatted, partial(call, "strftime"), _engine_text("strftime", days=True)),
    **{
        name: Operator(rules.day_name(name), partial(call, name), _engine_text(name, days=True))
        for name in ("dayname", "monthname")
    },
    **{
        f"part:{name}": Operator(rules.part(name), _part_sql(name), _texts(_part_value(name), number=True))
        for name in rules.PARTS
    },
    **{
        f"start:{unit}": Operator(rules.truncated(unit), _trunc_sql(unit), _texts(_start_value(unit)))
        for unit in ("year", "quarter", "month", "week", "day")
    },
}
