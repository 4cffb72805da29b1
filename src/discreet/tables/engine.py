"""Defines the protocol of engines: a source that answers aggregate SQL by itself, so that no rows are copied
out of it.

The engines are in `tables.engines`, each with a `Dialect` that writes the closed set of nodes
(`tables.dialect`) as its SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from .._errors import DiscreetError
from .source import Source

if TYPE_CHECKING:
    from .dialect import Dialect

# The name of a column that numbers the rows of one scan of a table, only to tell them apart. A row's number
# changes when other rows are added or removed, so nothing may be chosen, drawn or ordered by it (`query.scan`
# has an identity of rows that does not).
ROW = "__discreet_row"


class EngineError(DiscreetError, RuntimeError):
    """The engine failed. Its own message is not passed on, because it may quote data."""


class TimeLimit(EngineError):
    """The query took longer than the public limit, and was stopped."""


@runtime_checkable
class Engine(Source, Protocol):
    """A source that runs SQL by itself.

    `dialect` writes a tree of the closed set of nodes as this engine's SQL, and `answer` runs that text; only
    aggregates come back. `kinds` says of each table's columns "integer", "number", "text", "boolean" or
    "date" (`columns.KINDS`), or another word for columns that no query can use; `id_kinds` has the kinds of
    `columns.ID_KINDS`, which tell decimals from floating-point numbers, and times from days. Two methods are
    called before anybody is charged: `ready` raises `EngineError` if nothing can be answered, and `plan` has
    the engine prepare the texts that `answer` will run, without reading a row, and raises if it cannot.
    `stopwatch` starts a clock; calling what it returns fails with `TimeLimit` after the public limit.
    """

    def answer(self, sql: str) -> pa.Table: ...

    def ready(self) -> None: ...

    def plan(self, texts: Sequence[str]) -> None: ...

    def stopwatch(self) -> Callable[[], None]: ...

    @property
    def kinds(self) -> Mapping[str, Mapping[str, str]]: ...

    @property
    def id_kinds(self) -> Mapping[str, Mapping[str, str]]: ...

    @property
    def dialect(self) -> Dialect: ...


@contextmanager
def one_snapshot(source: object) -> Iterator[None]:
    """Make all queries to an engine inside the block see the same rows; does nothing for engines whose tables
    cannot change (those without a method `snapshot`)."""
    snapshot = getattr(source, "snapshot", None)
    if snapshot is None:
        yield
    else:
        with snapshot():
            yield


def quoted(name: str) -> str:
    """Return an identifier between double quotes, as standard SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text between single quotes, as standard SQL has it."""
    return "'" + text.replace("'", "''") + "'"
