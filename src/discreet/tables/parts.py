"""Makes an engine for a part of a table: the rows whose value in one column lies in given periods of time,
or is a given value.

Whether a row belongs to a part depends on that row alone. Parts of different values of one type, or of
periods that do not overlap, never share a row. A row whose value is missing, or does not convert, belongs to
no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from .. import _require
from .._errors import InvalidInput, Unsupported
from .._public import Public
from .engine import literal, quoted
from .engines.duckdb import DuckDB, engine_of
from .source import Source

# Days from the first up to, not including, the second; or one value. Integers are compared as doubles, so
# they must be below 2^53 in size.
Part = tuple[date, date] | str | int


class Within(DuckDB):
    """Reads a part of a table. It shares the engine, its limits and its lock; its connections see the part
    only."""

    def __init__(self, table: DuckDB, public: Public, condition: str) -> None:
        self.__dict__.update(table.__dict__)
        self._public = public
        self._condition = condition

    def _cursor(self) -> Any:
        """Return a connection with a temporary view of the table's name, which takes precedence over the
        table (`memory.main` is the schema that holds it) and exists on this connection only."""
        cursor, name = super()._cursor(), quoted(self._public.table)
        cursor.execute(
            f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT * FROM memory.main.{name} WHERE {self._condition}"
        )
        return cursor


def within(source: Source, column: str, parts: Sequence[Part], *, called: str) -> Within:
    """Return the rows of `source` whose `column` is in one of `parts`, of which there is at least one.

    `called` is appended to the version of the table, so that versions of different parts differ. The declared
    size is that of the whole table, so the part has none.
    """
    _require.non_empty(parts=_require.listed(parts=parts))
    for part in parts:
        if isinstance(part, int) and abs(part) >= 1 << 53:
            raise _require.fail("a part", part, "within 2**53 of zero, so that a double holds it exactly")
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
    """Return the SQL condition of a part, which cannot fail on any row."""
    if isinstance(part, tuple):
        day = f"TRY_CAST({column} AS DATE)"
        return f"({day} >= DATE '{part[0].isoformat()}' AND {day} < DATE '{part[1].isoformat()}')"
    if isinstance(part, int):
        return f"(TRY_CAST({column} AS DOUBLE) = {part})"
    return f"(CAST({column} AS VARCHAR) = {literal(part)})"
