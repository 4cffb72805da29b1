"""Defines the operators of expressions, a closed list: for each the rule of its domain (what is public about
its value), its SQL for the engine, and its computation on released values.

Every operator is total: no division, cast, root or logarithm can fail on any row, because an error would
reveal something about that row. Numbers are computed as DOUBLE. Where plain SQL would raise an error, the
result is NULL.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from typing import Any

import numpy as np
from sqlglot import exp

from ..tables import semantics
from ..tables.semantics import INTEGERS
from ..tables.texts import engine_values
from . import date_rules, rules, text_rules
from .domain import ValueDomain, boolean
from .errors import Node

Rule = Callable[..., ValueDomain]
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
        texts[index] = None if any(part is None for part in parts) else "".join(parts)[: text_rules.LONGEST]
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
    return reduce(lambda a, b: semantics.Concat(this=a, expression=b, max_length=text_rules.LONGEST), args)


def _replace_sql(a: Node, old: Node, new: Node) -> Node:
    """Write REPLACE, with texts cut to `LONGEST` characters before and after, so that none grows without
    limit."""
    return semantics.Replace(this=a, old=old, new=new, max_length=text_rules.LONGEST)


def _day_text(a: Node, format: Node) -> Node:
    return semantics.DayText(this=a, format=format)


def _part_sql(name: str) -> Callable[[Node], Node]:
    return lambda a: semantics.DatePart(this=a, part=name)


def _start_sql(unit: str) -> Callable[[Node], Node]:
    return lambda a: semantics.StartOf(this=a, unit=unit)


def _to_integer(name: str) -> Callable[[Node], Node]:
    return lambda a: semantics.AsInteger(this=a, type=name)


def _start_value(unit: str) -> Callable[[str], str]:
    return lambda value: date_rules.start_of(unit, date.fromisoformat(value)).isoformat()


# These names are part of `nodes.key`, by which stored answers are found: they must not change. Some are not
# SQL: "days" is a difference of dates, "later" and "months" add days and months, "same" is IS NOT DISTINCT
# FROM, "null?" IS NULL; "finite" and "exactly whole" are NULL for other numbers; "number", "float", "decimal"
# and "whole:INTEGER" are casts, "part:year" is EXTRACT, and "start:month" DATE_TRUNC.
OPERATORS: dict[str, Operator] = {
    "+": Operator(rules.arithmetic(operator.add, "+"), _of_two(semantics.Plus), _quiet(np.add)),
    "-": Operator(rules.arithmetic(operator.sub, "-"), _of_two(semantics.Minus), _quiet(np.subtract)),
    "days": Operator(date_rules.days_between, _of_two(semantics.DaysBetween)),
    "later": Operator(date_rules.add_days, _of_two(semantics.AddDays)),
    "*": Operator(rules.arithmetic(operator.mul, "*"), _of_two(semantics.Times), _quiet(np.multiply)),
    "/": Operator(rules.divide, _of_two(semantics.Divide), _quiet(np.divide)),
    # on integers, as in DuckDB: truncated towards zero, unlike Python's //
    "//": Operator(
        rules.integer_divide,
        lambda a, b: semantics.TruncateNumber(this=semantics.Divide(this=a, expression=b)),
        _quiet(lambda a, b: np.trunc(a / b)),
    ),
    "%": Operator(rules.modulo, _of_two(semantics.Remainder), _quiet(np.fmod)),
    "floor": Operator(
        rules.monotone(math.floor, "FLOOR", integral=True), _unary(semantics.Floor), _quiet(np.floor)
    ),
    "ceil": Operator(
        rules.monotone(math.ceil, "CEIL", integral=True), _unary(semantics.Ceil), _quiet(np.ceil)
    ),
    "round": Operator(rules.round_to_digits, _to_digits(semantics.RoundHalfAway), _quiet(_half_away)),
    "trunc": Operator(rules.truncate_number, _to_digits(semantics.TruncateNumber), _quiet(_truncate)),
    "sign": Operator(rules.sign, _unary(semantics.Sign), _quiet(np.sign)),
    "abs": Operator(rules.absolute, _unary(semantics.Absolute), _quiet(np.abs)),
    "sqrt": Operator(rules.square_root, _unary(semantics.SquareRoot), _quiet(np.sqrt)),
    "ln": Operator(rules.logarithm(math.log, "LN"), _unary(semantics.Ln), _quiet(np.log)),
    "log2": Operator(rules.logarithm(math.log2, "LOG2"), _unary(semantics.Log2), _quiet(np.log2)),
    "log10": Operator(rules.logarithm(math.log10, "LOG10"), _unary(semantics.Log10), _quiet(np.log10)),
    "finite": Operator(
        lambda a: replace(a, nullable=True),
        lambda a: if_(semantics.IsFinite(this=a.copy()), a),
        _quiet(np.copy),
    ),
    "exactly whole": Operator(
        rules.exactly_whole,
        lambda a: if_(exp.EQ(this=a.copy(), expression=semantics.TruncateNumber(this=a.copy())), a),
        _quiet(lambda a: np.where(a == np.trunc(a), a, np.nan)),
    ),
    "exp": Operator(rules.exponential, _unary(semantics.Exponential), _quiet(np.exp)),
    "power": Operator(rules.power, _of_two(semantics.Power), _quiet(np.power)),
    "clamp": Operator(rules.clamp, clipped, _quiet(np.clip)),
    "least": Operator(rules.least_or_greatest(min), _of_many(semantics.Least), _extreme(np.fmin, min)),
    "greatest": Operator(rules.least_or_greatest(max), _of_many(semantics.Greatest), _extreme(np.fmax, max)),
    "=": Operator(rules.comparison, _binary(exp.EQ), _truth(operator.eq)),
    "<>": Operator(rules.comparison, _binary(exp.NEQ), _truth(operator.ne)),
    "<": Operator(rules.comparison, _binary(exp.LT), _truth(operator.lt)),
    "<=": Operator(rules.comparison, _binary(exp.LTE), _truth(operator.le)),
    ">": Operator(rules.comparison, _binary(exp.GT), _truth(operator.gt)),
    ">=": Operator(rules.comparison, _binary(exp.GTE), _truth(operator.ge)),
    "and": Operator(rules.logic, _binary(exp.And), _and),
    "or": Operator(rules.logic, _binary(exp.Or), _or),
    "not": Operator(rules.logic, lambda a: paren(exp.Not(this=a)), lambda a: 1.0 - _truths(a)),
    "same": Operator(rules.not_distinct, _of_two(semantics.Same), _alike),
    "null?": Operator(
        lambda a: boolean(False),
        lambda a: paren(exp.Is(this=a, expression=exp.Null())),
        lambda a: _missing(a) * 1.0,
    ),
    "in": Operator(rules.member, lambda a, *items: paren(exp.In(this=a, expressions=list(items))), _in),
    "like": Operator(text_rules.like, _like_sql),
    "ilike": Operator(text_rules.like, _ilike_sql),
    "case": Operator(rules.case, _case_sql, _case_value),
    "coalesce": Operator(
        rules.coalesce, lambda a, *others: exp.Coalesce(this=a, expressions=list(others)), _first_value
    ),
    "nullif": Operator(rules.nullif, lambda a, b: exp.Nullif(this=a, expression=b), _null_if),
    **{
        name: Operator(text_rules.engine_function(name), _unary(cls), _engine_text(name))
        for name, cls in (
            ("upper", semantics.UpperCase),
            ("lower", semantics.LowerCase),
            ("trim", semantics.Trim),
        )
    },
    "substring": Operator(
        text_rules.python_function(_substring, "SUBSTRING"),
        lambda a, start, length=None: semantics.Substring(this=a, start=start, length=length),
        _texts(lambda v, *at: _substring(v, *map(int, at))),
    ),
    "replace": Operator(text_rules.replace_text, _replace_sql, _engine_text("replace")),
    "||": Operator(text_rules.concat, _concat_nodes, _concat_values),
    "length": Operator(text_rules.length, _unary(semantics.Length), _texts(len, number=True)),
    "number": Operator(rules.to_number, lambda a: semantics.SafeCast(this=a, to="double"), _numbers),
    "float": Operator(rules.to_float, _unary(semantics.AsFloat), _quiet(lambda a: np.float32(_numbers(a)))),
    "decimal": Operator(rules.to_decimal, _to_decimal, _quiet(_decimals)),
    **{
        f"whole:{name}": Operator(rules.to_integer(*ends), _to_integer(name), _within(*ends))
        for name, ends in INTEGERS.items()
    },
    "months": Operator(date_rules.add_months, _of_two(semantics.AddMonths)),
    "strftime": Operator(date_rules.strftime, _day_text, _engine_text("strftime", days=True)),
    **{
        name: Operator(date_rules.day_name(name), _unary(cls), _engine_text(name, days=True))
        for name, cls in (("dayname", semantics.DayName), ("monthname", semantics.MonthName))
    },
    **{
        f"part:{name}": Operator(
            date_rules.part(name), _part_sql(name), _texts(_part_value(name), number=True)
        )
        for name in date_rules.PARTS
    },
    **{
        f"start:{unit}": Operator(date_rules.truncate(unit), _start_sql(unit), _texts(_start_value(unit)))
        for unit in ("year", "quarter", "month", "week", "day")
    },
}
