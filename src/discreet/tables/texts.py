"""What the engine makes of public texts and days, so that a list of groups holds exactly what the engine will
find.

Python and DuckDB do not agree on letter case (`upper('ß')`, `lower('İ')`), on what a blank is, or on names of
days. Public values are therefore put through the engine's own functions, in a database of its own that holds
nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import date
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa

from .._errors import InvalidInput

_FUNCTIONS = {"upper", "lower", "trim", "replace", "strftime", "dayname", "monthname"}
_LOCK = threading.Lock()


def engine_values(function: str, values: Sequence[str | date | None], *rest: str) -> tuple[Any, ...]:
    """Return the results of one of the engine's functions of text or dates, value by value.

    >>> engine_values("upper", ("Straße", "ǆ"))
    ('STRAẞE', 'Ǆ')
    """
    if function not in _FUNCTIONS:
        raise InvalidInput(f"{function!r} is not a function of public texts; these are {sorted(_FUNCTIONS)}.")
    return _compute(function, tuple(values), rest)


@lru_cache(maxsize=256)
def _compute(function: str, values: tuple[Any, ...], rest: tuple[str, ...]) -> tuple[Any, ...]:
    import duckdb

    days = any(isinstance(value, date) for value in values)
    listed = pa.table({"v": pa.array(values, pa.date32() if days else pa.string())})
    marks = "".join(", ?" for _ in rest)
    with _LOCK:
        cursor = _database().cursor()
        cursor.register("listed", listed)
        try:
            query = f"SELECT {function}(v{marks}) AS r FROM listed"
            result = cursor.sql(query, params=list(rest)).to_arrow_table()
        except duckdb.Error:
            raise InvalidInput(
                f"{function} cannot be computed with {list(rest)!r}. Nothing was read or charged."
            ) from None
    return tuple(result.column("r").to_pylist())


@cache
def letter_cases(*, upper: bool) -> tuple[str, str]:
    """Return all characters whose capital (or small) letter is another one, and these, as the engine has
    them: each is one character, whatever stands beside it."""
    name = "upper" if upper else "lower"
    characters = "range(1, 1114112) AS t(i) WHERE i NOT BETWEEN 55296 AND 57343"
    with _LOCK:
        rows = (
            _database()
            .cursor()
            .execute(f"SELECT chr(i::INT) AS c, {name}(c) AS o FROM {characters} AND c <> o ORDER BY i")
            .fetchall()
        )
    return "".join(old for old, _ in rows), "".join(new for _, new in rows)


@cache
def _database() -> Any:
    import duckdb

    return duckdb.connect(":memory:", config={"threads": 1, "enable_external_access": "false"})
