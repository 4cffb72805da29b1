"""Computes expressions from released values: SELECT, HAVING and ORDER BY over the noisy numbers of a
question, which costs no privacy. Results agree with those of the engine.

Values are numpy arrays with one entry per group; NULL is NaN among numbers and None among texts.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from datetime import date
from functools import reduce
from typing import Any

import numpy as np

from ..core.nodes import Call, Column, Expr, Literal, OutputReference, walk
from ..core.operators import LONGEST, PARTS, start_of, substring
from ..tables.semantics import INTEGERS, engine_values


def value(node: Expr, keys: list[Any], aggregates: list[Any]) -> Any:
    """Compute an expression after aggregation from the released `keys` and `aggregates`, arrays with one
    entry per group; NULL is NaN among numbers and None among texts."""
    if isinstance(node, OutputReference):
        return (keys if node.kind == "key" else aggregates)[node.index]
    if isinstance(node, Literal):
        return _plain(node.content)
    assert isinstance(node, Call)
    # `computable` has checked that it is there
    return VALUES[node.op](*(value(arg, keys, aggregates) for arg in node.args))


def _plain(content: Any) -> Any:
    """Return a literal as numpy computes with it: NULL as NaN, dates and texts as objects."""
    if content is None:
        return np.float64(np.nan)
    if isinstance(content, bool | int | float):
        return np.float64(content)
    if isinstance(content, date):
        return np.array(content.isoformat(), dtype=object)
    return np.array(content, dtype=object)


def computable(node: Expr) -> bool:
    """Return whether `value` can compute an expression after aggregation: it reads no column of the table,
    and all its operators have a computation on released values."""
    return all(not isinstance(n, Call) or n.op in VALUES for n in walk(node)) and not any(
        isinstance(n, Column) for n in walk(node)
    )


# A text that every engine reads as a finite number, unless it is too large.
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


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


def _start_value(unit: str) -> Callable[[str], str]:
    return lambda value: start_of(unit, date.fromisoformat(value)).isoformat()


# The computation of each operator on released values; without one it is computed by the engine only.
VALUES: dict[str, Callable[..., Any]] = {
    "+": _quiet(np.add),
    "-": _quiet(np.subtract),
    "*": _quiet(np.multiply),
    "/": _quiet(np.divide),
    "//": _quiet(lambda a, b: np.trunc(a / b)),
    "%": _quiet(np.fmod),
    "floor": _quiet(np.floor),
    "ceil": _quiet(np.ceil),
    "round": _quiet(_half_away),
    "trunc": _quiet(_truncate),
    "sign": _quiet(np.sign),
    "abs": _quiet(np.abs),
    "sqrt": _quiet(np.sqrt),
    "ln": _quiet(np.log),
    "log2": _quiet(np.log2),
    "log10": _quiet(np.log10),
    "finite": _quiet(np.copy),
    "exactly whole": _quiet(lambda a: np.where(a == np.trunc(a), a, np.nan)),
    "exp": _quiet(np.exp),
    "power": _quiet(np.power),
    "clamp": _quiet(np.clip),
    "least": _extreme(np.fmin, min),
    "greatest": _extreme(np.fmax, max),
    "=": _truth(operator.eq),
    "<>": _truth(operator.ne),
    "<": _truth(operator.lt),
    "<=": _truth(operator.le),
    ">": _truth(operator.gt),
    ">=": _truth(operator.ge),
    "and": _and,
    "or": _or,
    "not": lambda a: 1.0 - _truths(a),
    "same": _alike,
    "null?": lambda a: _missing(a) * 1.0,
    "in": _in,
    "case": _case_value,
    "coalesce": _first_value,
    "nullif": _null_if,
    **{name: _engine_text(name) for name in ("upper", "lower", "trim")},
    "substring": _texts(lambda v, *at: substring(v, *map(int, at))),
    "replace": _engine_text("replace"),
    "||": _concat_values,
    "length": _texts(len, number=True),
    "number": _numbers,
    "float": _quiet(lambda a: np.float32(_numbers(a))),
    "decimal": _quiet(_decimals),
    **{f"whole:{name}": _within(*ends) for name, ends in INTEGERS.items()},
    "strftime": _engine_text("strftime", days=True),
    **{name: _engine_text(name, days=True) for name in ("dayname", "monthname")},
    **{f"part:{name}": _texts(_part_value(name), number=True) for name in PARTS},
    **{f"start:{unit}": _texts(_start_value(unit)) for unit in ("year", "quarter", "month", "week", "day")},
}
