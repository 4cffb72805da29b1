"""A part of a table, as an engine of its own: the rows whose value in one column lies in given stretches of
time, or is a given value.

Which rows belong to a part is a function of the row alone, and different values and stretches that do not
overlap never share a row. A missing value, and one that does not convert, belongs to no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from .._errors import InvalidInput, Unsupported
from .._public import Public
from .engine import literal, quoted
from .engines.duckdb import DuckDB, engine_of
from .source import Source

# days from the first up to, not including, the second; or one value
Part = tuple[date, date] | str | int


class Within(DuckDB):
    """Reads a part of a table: the same engine, limits and lock, and every connection sees the part only."""

    def __init__(self, table: DuckDB, public: Public, condition: str) -> None:
        self.__dict__.update(table.__dict__)
        self._public = public
        self._condition = condition

    def _cursor(self) -> Any:
        """Return a connection with a temporary view of the table's name: it comes before the table, and
        exists for this one connection."""
        cursor, name = super()._cursor(), quoted(self._public.table)
        cursor.execute(
            f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT * FROM memory.main.{name} WHERE {self._condition}"
        )
        return cursor


def within(source: Source, column: str, parts: Sequence[Part], *, called: str) -> Within:
    """Return the rows of `source` whose `column` is in one of `parts`.

    `called` is what tells its version from the whole table's.

    The declared size is that of the whole table, so the part has none.
    """
    engine = engine_of(source)
    if not isinstance(engine, DuckDB) or isinstance(engine, Within):
        raise Unsupported(
            f"{type(engine).__name__} cannot be restricted to a part of its rows. Nothing was read."
        )
    public = source.public
    if column not in engine.kinds[public.table]:
        raise InvalidInput(
            f"there is no column {column!r}; the table has {list(engine.kinds[public.table])}."
        )
    condition = " OR ".join(_condition(quoted(column), part) for part in parts)
    return Within(engine, replace(public, size=None, version=f"{public.version} {called}"), condition)


def _condition(column: str, part: Part) -> str:
    """Write the condition for the engine, so that it cannot fail on a row."""
    if isinstance(part, tuple):
        day = f"TRY_CAST({column} AS DATE)"
        return f"({day} >= DATE '{part[0].isoformat()}' AND {day} < DATE '{part[1].isoformat()}')"
    if isinstance(part, int):
        return f"(TRY_CAST({column} AS DOUBLE) = {part})"
    return f"(CAST({column} AS VARCHAR) = {literal(part)})"
