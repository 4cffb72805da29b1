"""What an engine is: a table that answers aggregate SQL by itself, so that rows stay where they are.

The engines are in `tables.engines`, each with a `Dialect` that writes the closed set of nodes
(`tables.dialect`) in its words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from .._errors import DiscreetError
from .source import Source

if TYPE_CHECKING:
    from .dialect import Dialect

# A number for each row of one reading of a table: it tells rows apart, and says nothing else. It moves when
# other rows come or go, so nothing may be chosen, drawn or ordered by it (`query.scan` has an identity that
# stays).
ROW = "__discreet_row"


class EngineError(DiscreetError, RuntimeError):
    """The engine failed. What it said is kept back: it may speak of the data."""


class TimeLimit(EngineError):
    """The query took longer than the public limit, and was stopped."""


@runtime_checkable
class Engine(Source, Protocol):
    """A source that runs SQL by itself.

    `dialect` writes a tree of the closed set of nodes as this engine's SQL, and `answer` runs that text; only
    aggregates come back. `kinds` says of each table's columns "integer", "number", "text", "boolean" or
    "date". `ready` raises `EngineError` if nothing can be answered, before anybody is charged. `stopwatch`
    starts a clock; calling what it returns fails with `TimeLimit` after the public limit.
    """

    def answer(self, sql: str) -> pa.Table: ...

    def ready(self) -> None: ...

    def stopwatch(self) -> Callable[[], None]: ...

    @property
    def kinds(self) -> Mapping[str, Mapping[str, str]]: ...

    @property
    def dialect(self) -> Dialect: ...


@contextmanager
def one_snapshot(source: object) -> Iterator[None]:
    """Let all that is asked of an engine inside the block see the same rows, where a table can change at
    all."""
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
