"""Defines what all engines share: the checks when a table is opened, the errors, in which no message quotes a
value of a row, and how columns are read in batches."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ... import _require
from ..._errors import InvalidInput, Unsupported
from ..._public import Public, Related
from ..columns import check_columns, converted_to, without_codes
from ..source import EngineError, TimeLimit, check_size, quoted

if TYPE_CHECKING:
    from ..dialect import Dialect


def withheld(who: str = "the engine") -> EngineError:
    """Return the error for a query on which the engine failed. It does not show the engine's own message."""
    return EngineError(
        f"{who} could not compute this query. Its message is withheld because it may reveal something about "
        "the data."
    )


def unplanned(who: str) -> Unsupported:
    """Return the error for a query that an engine cannot plan: it is refused before it is charged."""
    return Unsupported(f"{who} cannot plan this query. Ask it in smaller parts.")


def too_late(seconds: float | None) -> TimeLimit:
    """Return the error for a query that took longer than the public limit."""
    return TimeLimit(
        f"the query took longer than the public limit of {seconds:g} seconds and was stopped. Ask for less, "
        "or have the steward raise the limit."
    )


def check_declared(public: Public, kinds: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse a declaration of a table or column that does not exist, or whose kind does not fit. `kinds` has
    the kinds of columns by table. Only names and types are compared."""
    declarations = [(public.table, public.schema, public.unit.column)]
    declarations += [(t.name, t.schema, t.unit_column) for t in public.tables]
    for name, schema, unit in declarations:
        if name not in kinds:
            raise InvalidInput(f"table {name!r} is declared, and none of that name was given: {list(kinds)}.")
        check_columns(name, schema, unit, kinds[name])


def repeated_keys(table: Related, kinds: Mapping[str, str], dialect: Dialect) -> str:
    """Return SQL for the number of keys of a public table that several rows have. Keys are compared as joins
    compare them: by their canonical texts, because joins rely only on keys that are declared as text
    (`query.relation`). `kinds` has the id kind of each column."""
    # Imported late: the SQL library is slow to load.
    from sqlglot import exp

    from ..semantics import canonical_text

    columns = [(exp.column(exp.to_identifier(name, quoted=True)), kinds[name]) for name in table.key]
    texts = ", ".join(dialect.write(canonical_text(column, kind)) for column, kind in columns)
    rows = f"SELECT 1 AS one FROM {quoted(table.name)} GROUP BY {texts} HAVING COUNT(*) > 1"
    return f"SELECT COUNT(*) AS n FROM ({rows}) AS r"


def not_unique(table: str, columns: Sequence[str]) -> InvalidInput:
    """Return the error for a declared key that is not unique. Joins with a public table rely on the key; for
    the main table (Spark's `key`) the privacy guarantee does, as two rows with one key would be taken for
    one."""
    return InvalidInput(
        f"the key {list(columns)} of table {table!r} is not unique: two rows agree in it, or a row has none. "
        "Leave it out, or declare another."
    )


class TableEngine(ABC):
    """Holds what is public about a table and the tables related to it, and the limit of time of a query: the
    base class of the three engines."""

    # What is at the ends of an identifier in the engine's SQL, doubled inside.
    _quote = '"'

    def __init__(self, public: Public, seconds: float | None) -> None:
        if seconds is not None:
            _require.positive(seconds=seconds)
        self._public, self._seconds = public, seconds
        self._kinds: Mapping[str, Mapping[str, str]] = {}

    @property
    def public(self) -> Public:
        return self._public

    @property
    def kinds(self) -> Mapping[str, Mapping[str, str]]:
        return self._kinds

    @property
    @abstractmethod
    def id_kinds(self) -> Mapping[str, Mapping[str, str]]:
        """Return the kinds of columns as ids (`columns.ID_KINDS`), by table."""

    @property
    @abstractmethod
    def dialect(self) -> Dialect:
        """Return the dialect. It is imported late: the SQL library is slow to load, and is not needed before
        the first query."""

    @abstractmethod
    def answer(self, sql: str) -> pa.Table:
        """Return the result of one aggregate query that `discreet.query` has built.

        It fails with `TimeLimit` after the `seconds` that the engine was opened with.
        """

    def stopwatch(self) -> Callable[[], None]:
        """Start a clock and return a function that raises `TimeLimit` once the public limit of time has
        passed."""
        start = time.monotonic()

        def check() -> None:
            if self._seconds is not None and time.monotonic() - start > self._seconds:
                raise too_late(self._seconds)

        return check

    def _check(self) -> None:
        """Refuse declared columns that the tables do not have or that do not suit their facts, a declared
        size that is wrong where it must be exact, and a declared key of a public table that is not unique,
        because joins rely on it. Such a table is public, so that the refusal tells nothing private."""
        check_declared(self._public, self._kinds)
        check_size(self._public, self._count)
        for table in self._public.tables:
            if table.key and not self._is_unique(table):
                raise not_unique(table.name, table.key)

    def _count(self) -> int:
        """Return the number of rows of the main table."""
        return self._first(f"SELECT COUNT(*) AS n FROM {quoted(self._public.table)}")

    def _is_unique(self, table: Related) -> bool:
        """Return whether no two rows of a public table agree in its key."""
        return not self._first(repeated_keys(table, self.id_kinds[table.name], self.dialect))

    def _first(self, sql: str) -> int:
        """Return the one number of an answer."""
        return int(self.answer(sql).column(0)[0].as_py())

    def _quoted(self, name: str) -> str:
        return f"{self._quote}{name.replace(self._quote, 2 * self._quote)}{self._quote}"

    def _converted(self, column: str) -> str | None:
        """Return the kind to which a column of the main table is converted in batches; None where it keeps
        its own."""
        fact = dict(self._public.schema).get(column)
        return None if fact is None else converted_to(fact, self._kinds[self._public.table][column])

    def _select_list(self, columns: Sequence[str]) -> list[str]:
        """Return the SQL that selects the named columns of the main table, each as its declared kind: a value
        that does not convert becomes NULL. Without columns, it selects a number for each row."""
        kinds = self._kinds[self._public.table]
        if unknown := [name for name in columns if name not in kinds]:
            raise InvalidInput(f"there is no column {unknown[0]!r}; the table has {list(kinds)}.")
        return [self._typed(name) for name in columns] or [f"1 AS {self._quoted('n')}"]

    def _typed(self, column: str) -> str:
        to = self._converted(column)
        if to is None:
            return self._quoted(column)
        # Imported late, as in `dialect`.
        from sqlglot import exp

        from .. import semantics

        stored: Any = exp.column(exp.to_identifier(column, quoted=True))
        node = (
            semantics.canonical_text(stored, self.id_kinds[self._public.table][column])
            if to == "text"
            else semantics.SafeCast(this=stored, to="double" if to == "number" else to)
        )
        return f"{self.dialect.write(node)} AS {self._quoted(column)}"

    def _batch(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Return a batch of the named columns without codes of missing values; without columns, a batch with
        only its number of rows."""
        if columns:
            return without_codes(batch, self._public.schema)
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))

    def __repr__(self) -> str:
        columns = list(self._kinds[self._public.table])
        return f"{type(self).__name__}(table={self._public.table!r}, columns={columns})"
