"""Computes functions of public texts and dates in DuckDB, so that the groups listed for GROUP BY are spelled
exactly as the engine will find them in the data. Other engines' dialects follow DuckDB's functions.

Python and DuckDB do not agree on letter case (`upper('ß')`, `lower('İ')`), on what a blank is, or on names of
days. Public values are therefore put through DuckDB's own functions, in an in-memory database apart from the
data; no private value ever comes here.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import date
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa

from .._errors import InvalidInput

# The only functions whose name is written into SQL.
_FUNCTIONS = {"upper", "lower", "trim", "replace", "strftime", "dayname", "monthname"}
# Held while the database is used, so that one thread at a time uses it.
_LOCK = threading.Lock()


def engine_values(function: str, values: Sequence[str | date | None], *arguments: str) -> tuple[Any, ...]:
    """Return the result of the engine's `function(value, *arguments)` for each of the public `values`.

    >>> engine_values("upper", ("Straße", "ǆ"))
    ('STRAẞE', 'Ǆ')
    """
    if function not in _FUNCTIONS:
        raise InvalidInput(f"{function!r} is not a function of public texts; these are {sorted(_FUNCTIONS)}.")
    return _compute(function, tuple(values), arguments)


@lru_cache(maxsize=256)
def _compute(function: str, values: tuple[Any, ...], arguments: tuple[str, ...]) -> tuple[Any, ...]:
    """Return what `engine_values` does, for checked and hashable arguments; the latest results are cached."""
    # Imported late because it is slow to load.
    import duckdb

    has_days = any(isinstance(value, date) for value in values)
    values_table = pa.table({"v": pa.array(values, pa.date32() if has_days else pa.string())})
    placeholders = "".join(", ?" for _ in arguments)
    with _LOCK:
        cursor = _database().cursor()
        cursor.register("listed", values_table)
        try:
            sql = f"SELECT {function}(v{placeholders}) AS r FROM listed"
            result = cursor.sql(sql, params=list(arguments)).to_arrow_table()
        except duckdb.Error:
            raise InvalidInput(
                f"{function} cannot be computed with {list(arguments)!r}. Nothing was read or charged."
            ) from None
    return tuple(result.column("r").to_pylist())


@cache
def letter_cases(*, upper: bool) -> tuple[str, str]:
    """Return two strings of equal length: every character that the engine's UPPER (or LOWER) changes, and at
    the same position the character that it becomes. Each becomes one character, whatever its neighbors
    are."""
    name = "upper" if upper else "lower"
    # all of Unicode but the surrogates, which are no characters
    all_characters = "range(1, 1114112) AS t(i) WHERE i NOT BETWEEN 55296 AND 57343"
    with _LOCK:
        rows = (
            _database()
            .cursor()
            .execute(f"SELECT chr(i::INT) AS c, {name}(c) AS o FROM {all_characters} AND c <> o ORDER BY i")
            .fetchall()
        )
    return "".join(old for old, _ in rows), "".join(new for _, new in rows)


@cache
def _database() -> Any:
    import duckdb

    return duckdb.connect(":memory:", config={"threads": 1, "enable_external_access": "false"})
