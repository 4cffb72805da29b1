"""Holds the data that mechanisms read: tables as Arrow batches of named columns, with their public facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from .. import _require
from .._errors import InvalidInput, PublicMismatch
from .._public import ADD_REMOVE, Public
from .columns import (
    arrow_kind,
    check_facts,
    check_names,
    converted_to,
    engine_types,
    to_arrow,
    without_codes,
)


@runtime_checkable
class Source(Protocol):
    """Represents one version of a table, with the public facts it is protected under.

    Mechanisms read it in batches of the columns they name, and no row leaves a mechanism. Engines
    (`tables.engine`) also answer aggregate queries by themselves.
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
        missing = [name for name, _ in self._public.schema if name not in self._table.column_names]
        if missing:
            near = _require.did_you_mean(missing[0], self._table.column_names)
            raise InvalidInput(
                f"the schema declares {missing[0]!r}, and the table has no such column.{near} It "
                f"has: {', '.join(self._table.column_names)}."
            )
        unit = self._public.unit.column
        if unit is not None and unit not in self._table.column_names:
            near = _require.did_you_mean(unit, self._table.column_names)
            raise InvalidInput(
                f"the unit's column {unit!r} is not in the table.{near} It has: "
                f"{', '.join(self._table.column_names)}."
            )
        self._kinds = {field.name: arrow_kind(field.type) for field in self._table.schema}
        check_facts(self._public.table, self._public.schema, unit, self._kinds)
        self._check_size()

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

    def _check_size(self) -> None:
        """Check the declared size where it is public: mechanisms scale by it."""
        declared, by_rows = self._public.size, self._public.unit.column is None
        if self._public.neighbors is ADD_REMOVE or declared is None or not by_rows:
            return
        if declared != self._table.num_rows:
            raise PublicMismatch(
                f"under {self._public.neighbors} the size is public and must be true: declared {declared}, "
                f"but the table has {self._table.num_rows} rows."
            )

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
