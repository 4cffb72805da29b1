"""Answers queries in a PostgreSQL database: the table stays on its server, and only aggregates come back.

`connect_postgres(address, public)` makes an engine over a table of a database. `postgres_dialect` writes each
query, a tree of the nodes of `tables.semantics` (the closed set), as SQL. Each statement reads the tables
through common table expressions in which no value can make a query fail (`postgres_tables`), in a read-only
transaction. Nothing is created on the server: a role that may only SELECT is enough.

Guarantee: all statements of one answer see the same rows.
Proof:     they run in one REPEATABLE READ transaction (`snapshot`), whose snapshot is taken after the tables
           are locked against changes of their columns; their columns are then compared with those at
           opening (`_compare`).
Assumes:   the server is PostgreSQL 14 or later and keeps to its documented isolation levels.

Makes Arrow data of what a PostgreSQL server sends: answers value by value (`arrow_table`), columns of a
table from a stream of CSV text (`csv_batches`).

The error for a value that does not convert does not quote it (`withheld`).
"""

from __future__ import annotations

import io
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..._errors import InvalidInput
from ..._public import Public
from ..columns import LONGEST_TEXT
from ..files import Codebook
from ..source import EngineError, quoted
from .postgres_tables import Address, Pool, PostgresTable, check, definitions, driver, look, resolve
from .table_engine import TableEngine, too_late, unplanned, withheld

if TYPE_CHECKING:
    from ..dialect import Dialect

SERVER = "the PostgreSQL server"

# The Arrow type for each type that an answer can have, by PostgreSQL's fixed object identifier: bool, int8,
# int2, int4, text, float4, float8, date, numeric. A numeric in an answer is a whole number (`WideSum`).
_ARROW = {
    16: pa.bool_(),
    20: pa.int64(),
    21: pa.int64(),
    23: pa.int64(),
    25: pa.string(),
    700: pa.float64(),
    701: pa.float64(),
    1082: pa.date32(),
    1700: pa.decimal128(38, 0),
}
# The object identifier of the type date.
DATE = 1082
# Days from 1970-01-01 to 2000-01-01, from which PostgreSQL counts.
_EPOCH = 10957
# Bytes of CSV text that make one batch, or more where a row can be longer; chosen by hand, not tuned.
_BATCH = 1 << 22
# The most bytes of a row as CSV text: PostgreSQL fails on a longer one itself (its MaxAllocSize).
_LONGEST_ROW = 1 << 30


def day_loader() -> Any:
    """Return a psycopg loader that reads a date as its number of days from 1970-01-01. psycopg's own makes
    Python dates, which fail on PostgreSQL's dates outside the years 1 to 9999."""
    psycopg = driver()

    class DayLoader(psycopg.adapt.Loader):  # type: ignore[misc, name-defined]
        format = psycopg.pq.Format.BINARY

        def load(self, data: Any) -> int:
            return int.from_bytes(bytes(data), "big", signed=True) + _EPOCH

    return DayLoader


def arrow_table(cursor: Any) -> pa.Table:
    """Return the rows of a cursor, whose dates are read by `day_loader`, as an Arrow table."""
    columns, rows = cursor.description, cursor.fetchall()
    try:
        arrays = [_column([row[i] for row in rows], column.type_code) for i, column in enumerate(columns)]
    except (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError):
        # The error is not shown, as its text could quote a value.
        raise withheld(SERVER) from None
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def _column(values: list[Any], code: int) -> pa.Array:
    type_ = _ARROW[code]
    return pa.array(values, pa.int32()).view(type_) if code == DATE else pa.array(values, type_)


class _Stream(io.RawIOBase):
    """Reads the blocks that the server sends, an iterator of bytes, as one file from its beginning to its
    end."""

    def __init__(self, copy: Any) -> None:
        # `_unread`: the end of the blocks that did not fit into the buffer of the last read.
        self._copy, self._unread = iter(copy), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        parts, size = [self._unread], len(self._unread)
        while size < len(buffer):
            block = next(self._copy, None)
            if block is None:
                break
            parts.append(bytes(block))
            size += len(parts[-1])
        data = b"".join(parts)
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        self._unread = data[count:]
        return count


def csv_batches(copy: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches of the CSV text that the server writes. Only an empty field without quotes is NULL; an
    empty text has quotes."""
    # Imported late because queries, which return aggregates, do not need it.
    import pyarrow.csv as csv

    # pyarrow fails on a row that is longer than a block. A text field is longest where every character is a
    # quote, which CSV doubles; 64 bytes are enough for a field of another type, and for quotes and commas.
    text_columns = sum(pa.types.is_string(type_) for type_ in schema.types)
    block = min(max(_BATCH, text_columns * (2 * LONGEST_TEXT + 64) + 64 * len(schema.types)), _LONGEST_ROW)
    stream = io.BufferedReader(_Stream(copy), _BATCH)
    # The text of a table without rows is empty, and pyarrow refuses it.
    if not stream.peek(1):
        return
    reader = csv.open_csv(
        stream,
        read_options=csv.ReadOptions(column_names=schema.names, block_size=block, use_threads=False),
        # In a table of one column, an empty line is a row with NULL.
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    while (batch := _next(reader)) is not None:
        yield batch


def _next(reader: Any) -> pa.RecordBatch | None:
    """Return the next batch, or None at the end. An error does not quote what could not be read."""
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None
    except pa.ArrowException:
        raise withheld(SERVER) from None


# The oldest server that is opened, as libpq numbers versions: PostgreSQL 14.
OLDEST = 140000
# SQLSTATE of a statement that was cancelled.
_CANCELED = "57014"


class _Thread(threading.local):
    """Holds the connection of a thread's open snapshot."""

    connection: Any = None


class PostgreSQL(TableEngine):
    """Answers queries about a table, and the tables related to it, in a PostgreSQL database. Made by
    `connect_postgres`.

    `tables` maps the names that queries use to the names in the database.
    """

    def __init__(
        self,
        address: Address,
        tables: Mapping[str, str],
        public: Public,
        *,
        seconds: float | None = None,
        codebooks: Mapping[str, Mapping[str, Codebook]] = MappingProxyType({}),
    ) -> None:
        super().__init__(public, seconds)
        self._pool = Pool(address)
        weakref.finalize(self, self._pool.close)
        # Per thread: the connection of the snapshot that is open, if there is one.
        self._local = _Thread()
        with self._errors(), self._pool.transaction(seconds) as connection:
            opened = _open_tables(connection, address, tables, public)
            self._tables = {name: replace(t, books=codebooks.get(name, {})) for name, t in opened.items()}
        self._kinds = {name: table.kinds for name, table in self._tables.items()}
        self._check()

    @property
    def id_kinds(self) -> Mapping[str, Mapping[str, str]]:
        return {name: table.id_kinds for name, table in self._tables.items()}

    @property
    def dialect(self) -> Dialect:
        from .postgres_dialect import dialect

        kinds = self._kinds.values()
        return dialect(frozenset(c for columns in kinds for c, kind in columns.items() if kind == "boolean"))

    def ready(self) -> None:
        """Raise `EngineError` if no query can be answered: the server is gone, or the columns of a table have
        changed."""
        with self.snapshot():
            pass

    def interrupt(self) -> None:
        """Stop all queries that run now, from any thread: each fails with an `EngineError`."""
        self._pool.cancel()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all answers of this thread inside the block see the same rows. A block inside another one uses
        the outer snapshot."""
        if self._local.connection is not None:
            yield
            return
        with self._errors(), self._pool.transaction(self._seconds) as connection:
            self._compare(connection)
            self._local.connection = connection
            try:
                yield
            finally:
                self._local.connection = None

    def plan(self, texts: Sequence[str]) -> None:
        """Have the server plan the queries `texts`, which reads no row, so that a query that it cannot plan
        is refused before a charge."""
        psycopg = driver()
        with self.snapshot():
            for sql in texts:
                try:
                    self._local.connection.execute(f"EXPLAIN {self._with_definitions(sql)}")
                except psycopg.errors.QueryCanceled:
                    raise
                except psycopg.Error:
                    raise unplanned("the PostgreSQL server") from None

    def _with_definitions(self, sql: str) -> str:
        """Return a query together with the common table expressions that define its tables
        (`PostgresTable.definition`)."""
        return f"WITH {definitions(self._tables)} SELECT * FROM ({sql}) AS answer"

    def answer(self, sql: str) -> pa.Table:
        with self.snapshot(), self._errors():
            cursor = self._local.connection.cursor(binary=True)
            cursor.adapters.register_loader(DATE, day_loader())
            cursor.execute(self._with_definitions(sql))
            return arrow_table(cursor)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the named columns of the main table, batch by batch, as the server sends them.

        Without columns, each batch has only a number of rows. All batches come from one statement, and so
        from one snapshot. The engine's limit of time does not apply: the caller may take as long as it needs
        between two batches.
        """
        table = self._tables[self._public.table]
        names = ", ".join(self._select_list(columns))
        schema = table.arrow(columns) if columns else pa.schema([("one", pa.int64())])
        sql = (
            f"COPY (WITH {table.definition} SELECT {names} FROM {quoted(table.name)}) TO STDOUT (FORMAT csv)"
        )
        with self._errors(), self._pool.transaction(None) as connection:
            self._compare(connection)
            with connection.cursor().copy(sql) as copy:
                for batch in csv_batches(copy, schema):
                    yield self._batch(batch, columns)

    def _converted(self, column: str) -> str | None:
        return self._tables[self._public.table].converted(column)

    def _compare(self, connection: Any) -> None:
        """Lock the tables against changes of their columns, and raise `EngineError` if one has changed.

        The common table expressions were written for the columns at opening; on another type, a value could
        make a query fail. LOCK must come before any SELECT of the transaction, because the first SELECT takes
        the snapshot.
        """
        psycopg = driver()
        names = ", ".join(table.text for table in self._tables.values())
        try:
            connection.execute(f"LOCK TABLE {names} IN ACCESS SHARE MODE")
            same = all(look(connection, table.relation) == table.shape for table in self._tables.values())
        except psycopg.Error as error:
            if error.sqlstate == _CANCELED:
                raise
            same = False
        if not same:
            raise EngineError(
                f"a table of {self._public.table!r} is not what it was when it was opened (its columns, "
                "their types, or who may read it), or is gone. Open it again."
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Replace errors of the server by ours, because their texts may quote a value."""
        psycopg = driver()
        try:
            yield
        except psycopg.Error as error:
            # A statement that `interrupt` cancelled has this code too: with a limit, it counts as late.
            late = error.sqlstate == _CANCELED and self._seconds is not None
            raise (too_late(self._seconds) if late else withheld(SERVER)) from None


def _open_tables(
    connection: Any, address: Address, names: Mapping[str, str], public: Public
) -> dict[str, PostgresTable]:
    """Return the tables as they are now, by the names that queries use. `names` maps these names to those in
    the database."""
    if connection.info.server_version < OLDEST:
        raise InvalidInput(f"the server at {address.label} is older than PostgreSQL {OLDEST // 10000}.")
    (encoding,) = connection.execute("SHOW server_encoding").fetchone()
    if encoding != "UTF8":
        raise InvalidInput(
            f"the database at {address.label} keeps its texts as {encoding}, not UTF8, and some of them "
            "might not be readable."
        )
    declared = {public.table: (public.schema, public.unit.column)}
    declared |= {t.name: (t.schema, t.unit_column) for t in public.tables}
    tables = {}
    for name, (schema, unit) in declared.items():
        if name not in names:
            raise InvalidInput(f"table {name!r} is declared, and none of that name was given: {list(names)}.")
        # Only `resolve`, which looks for the table's name, runs with the role's own search path. Everything
        # else runs without it, so that a function's name means the built-in one.
        connection.execute("SET LOCAL search_path = DEFAULT")
        relation = resolve(connection, names[name])
        connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        shape = check(names[name], look(connection, relation))
        (readable,) = connection.execute(f"SELECT has_table_privilege({shape.oid}, 'SELECT')").fetchone()
        if not readable:
            raise InvalidInput(
                f"this role may not read {names[name]!r}. GRANT SELECT on all of the table: it is locked "
                "against changes of its columns while it is read."
            )
        tables[name] = PostgresTable(name, relation, shape, tuple(schema), unit)
    return tables


def connect_postgres(
    address: str,
    public: Public,
    *,
    table: str | None = None,
    related: Mapping[str, str] | None = None,
    seconds: float | None = None,
    codebooks: Mapping[str, Mapping[str, Codebook]] = MappingProxyType({}),
) -> PostgreSQL:
    """Return an engine for a table of a PostgreSQL database: "postgresql://user@host/database".

    `table`: its name in the database, with or without its schema ("clinic.visits"); by default the name in
    `public`. `related` maps the names of the tables that `public.tables` declares to their names in the same
    database. `seconds`: a statement that takes longer fails with `TimeLimit`. The password comes from
    PGPASSWORD, ~/.pgpass or a service file. `codebooks`: by table and column, how texts are read.
    """
    names = {public.table: table or public.table, **{t.name: t.name for t in public.tables}}
    for name, relation in (related or {}).items():
        if not isinstance(relation, str):
            raise InvalidInput(
                f"table {name!r} must be in the same database: give its name there, such as 'clinic.{name}'."
            )
        names[name] = relation
    return PostgreSQL(Address(address), names, public, seconds=seconds, codebooks=codebooks)
