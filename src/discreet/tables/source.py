"""Holds the data that mechanisms read: tables as Arrow batches of named columns, with their public facts.

Defines the protocol of engines: a source that answers aggregate SQL by itself, so that no rows are copied
out of it.

The engines are in `tables.engines`, each with a `Dialect` that writes the closed set of nodes
(`tables.dialect`) as its SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from .._errors import DiscreetError, InvalidInput, PublicMismatch
from .._public import ADD_REMOVE, Public
from .columns import (
    arrow_kind,
    check_columns,
    check_names,
    converted_to,
    engine_types,
    to_arrow,
    without_codes,
)

if TYPE_CHECKING:
    from .dialect import Dialect


@runtime_checkable
class Source(Protocol):
    """Represents one version of a table, with the public facts it is protected under.

    Mechanisms read it in batches of the columns they name, and no row leaves a mechanism. Engines
    (`tables.source`) also answer aggregate queries by themselves.
    """

    @property
    def public(self) -> Public: ...

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]: ...


class Memory:
    """Holds a table in memory, as Arrow.

    `data` is an Arrow table, or a mapping from column name to a one-dimensional array. A batch has at most
    `batch_rows` rows.

    >>> people = Memory({"age": [31, 45, 27]}, Public(table="people"))
    >>> people
    Memory(table='people', columns=['age'])
    """

    def __init__(
        self, data: pa.Table | Mapping[str, Any], public: Public | None = None, *, batch_rows: int = 1 << 16
    ) -> None:
        table = data if isinstance(data, pa.Table) else _arrow(data)
        self._public = Public() if public is None else public
        # Before `engine_types`, which would keep only one of several columns with the same name.
        check_names(self._public.table, table.column_names)
        self._table = engine_types(table)
        self._batch_rows = batch_rows
        # The engine of this table, which `engine_of` creates at the first query.
        self._discreet_engine: Any = None
        self._kinds = {field.name: arrow_kind(field.type) for field in self._table.schema}
        check_columns(self._public.table, self._public.schema, self._public.unit.column, self._kinds)
        check_size(self._public, lambda: self._table.num_rows)

    @property
    def public(self) -> Public:
        return self._public

    @property
    def column_names(self) -> list[str]:
        """Return the names of all columns, declared or not: they are public."""
        return list(self._table.column_names)

    @property
    def column_kinds(self) -> dict[str, str]:
        """Return the kind of every column ("number", "text", ...): a column's type is public."""
        return dict(self._kinds)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the named columns, a batch at a time."""
        unknown = [name for name in columns if name not in self._table.column_names]
        if unknown:
            raise InvalidInput(
                f"there is no column {unknown[0]!r}; the table has {self._table.column_names}."
            )
        facts = dict(self._public.schema)
        if any(name in facts and converted_to(facts[name], self._kinds[name]) for name in columns):
            # imported here: the engine is built from this module
            from .engines.duckdb import engine_of

            yield from engine_of(self).batches(columns)
        else:
            for batch in self._table.select(list(columns)).to_batches(max_chunksize=self._batch_rows):
                yield without_codes(batch, self._public.schema)

    def ready(self) -> None:
        """Open the engine that answers queries about this table. It is called before a charge, so that nobody
        pays where no engine can be opened."""
        # imported here: the engine is built from this module
        from .engines.duckdb import engine_of

        engine_of(self).ready()

    # Shows no values, and no number of rows: under add_remove the size is private.
    def __repr__(self) -> str:
        return f"Memory(table={self._public.table!r}, columns={self._table.column_names})"


def _arrow(data: Mapping[str, Any]) -> pa.Table:
    """Return columns in memory as an Arrow table; they must have one length."""
    for name, column in data.items():
        try:
            shape = f"{np.ndim(column)} dimensions"
        except ValueError:
            shape = "lists of different lengths"
        if shape != "1 dimensions":
            raise InvalidInput(f"column {name!r} must be one-dimensional, got {shape}.")
    lengths = {len(column) for column in data.values()}
    if len(lengths) > 1:
        raise InvalidInput(f"all columns must have one length; {list(data)} do not.")
    return pa.table({name: to_arrow(name, column) for name, column in data.items()})


def check_size(public: Public, rows: Callable[[], int]) -> None:
    """Require that the declared size is the number of rows, where neighbors have the same size and a row is
    the unit: mechanisms scale by it. `rows` counts the rows, and is called only then.

    The message may show the number of rows, because the size is public there.
    """
    if public.neighbors is ADD_REMOVE or public.size is None or public.unit.column is not None:
        return
    if (actual := rows()) != public.size:
        raise PublicMismatch(
            f"under {public.neighbors} the size is public and must be true: declared {public.size}, but the "
            f"table has {actual} rows."
        )


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
