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
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ... import _require
from ..._errors import InvalidInput
from ..._public import Public
from ..columns import without_codes
from ..engine import EngineError, quoted
from .postgres_arrow import DATE, SERVER, arrow_table, csv_batches, day_loader
from .postgres_connection import Address, Pool, driver
from .postgres_tables import PostgresTable, check, definitions, look, resolve
from .refusals import (
    check_columns,
    check_declared,
    check_size,
    not_unique,
    repeated_keys,
    stopwatch,
    too_late,
    unplanned,
    withheld,
)

if TYPE_CHECKING:
    from ..dialect import Dialect

# The oldest server that is opened, as libpq numbers versions: PostgreSQL 14.
OLDEST = 140000
# SQLSTATE of a statement that was cancelled.
_CANCELED = "57014"


class PostgreSQL:
    """Answers queries about a table, and the tables related to it, in a PostgreSQL database. Made by
    `connect_postgres`.

    `tables` maps the names that queries use to the names in the database.
    """

    def __init__(
        self, address: Address, tables: Mapping[str, str], public: Public, *, seconds: float | None = None
    ) -> None:
        if seconds is not None:
            _require.positive(seconds=seconds)
        self._public, self._seconds = public, seconds
        self._pool = Pool(address)
        weakref.finalize(self, self._pool.close)
        # Per thread: the connection of the snapshot that is open, if there is one.
        self._local = threading.local()
        with self._errors(), self._pool.transaction(seconds) as connection:
            self._tables = _open_tables(connection, address, tables, public)
        self._kinds = {name: table.kinds for name, table in self._tables.items()}
        self._check()

    @property
    def public(self) -> Public:
        return self._public

    @property
    def kinds(self) -> Mapping[str, Mapping[str, str]]:
        return self._kinds

    @property
    def id_kinds(self) -> Mapping[str, Mapping[str, str]]:
        return {name: table.id_kinds for name, table in self._tables.items()}

    @property
    def dialect(self) -> Dialect:
        # Imported late: the SQL library is slow to load, and is not needed before the first query.
        from .postgres_dialect import dialect

        kinds = self._kinds.values()
        return dialect(frozenset(c for columns in kinds for c, kind in columns.items() if kind == "boolean"))

    def ready(self) -> None:
        """Raise `EngineError` if no query can be answered: the server is gone, or the columns of a table have
        changed."""
        with self.snapshot():
            pass

    def stopwatch(self) -> Callable[[], None]:
        """Start a clock and return a function that raises `TimeLimit` once the public limit of time has
        passed."""
        return stopwatch(self._seconds)

    def interrupt(self) -> None:
        """Stop all queries that run now, from any thread: each fails with an `EngineError`."""
        self._pool.cancel()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all answers of this thread inside the block see the same rows. A block inside another one uses
        the outer snapshot."""
        if getattr(self._local, "connection", None) is not None:
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
        """Return the result of one aggregate query that `discreet.query` has built.

        It fails with `TimeLimit` after the `seconds` that the engine was opened with.
        """
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
        kinds = self._kinds[self._public.table]
        check_columns(columns, kinds)
        names = ", ".join(self._typed(table, name) for name in columns) or "1"
        schema = table.arrow(columns) if columns else pa.schema([("one", pa.int64())])
        sql = (
            f"COPY (WITH {table.definition} SELECT {names} FROM {quoted(table.name)}) TO STDOUT (FORMAT csv)"
        )
        with self._errors(), self._pool.transaction(None) as connection:
            self._compare(connection)
            with connection.cursor().copy(sql) as copy:
                for batch in csv_batches(copy, schema):
                    if columns:
                        yield without_codes(batch, self._public.schema)
                    else:
                        yield pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))

    def _typed(self, table: PostgresTable, name: str) -> str:
        """Return the SQL that selects a column as its declared kind; a value that does not convert is
        NULL."""
        # Imported late, as in `dialect`.
        from sqlglot import exp

        from .. import semantics

        to = table.converted(name)
        column = exp.column(exp.to_identifier(name, quoted=True))
        kinds = {"number": "double", "boolean": "boolean", "date": "date"}
        if to is None:
            return quoted(name)
        node = (
            semantics.canonical_text(column, table.id_kinds[name])
            if to == "text"
            else semantics.SafeCast(this=column, to=kinds[to])
        )
        return f"{self.dialect.write(node)} AS {quoted(name)}"

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
            if getattr(error, "sqlstate", None) == _CANCELED:
                raise
            same = False
        if not same:
            raise EngineError(
                f"a table of {self._public.table!r} is not what it was when it was opened (its columns, "
                f"their types, or who may read it), or is gone. Nothing was read. Open it again."
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Replace errors of the server by ours, because their texts may quote a value."""
        psycopg = driver()
        try:
            yield
        except psycopg.Error as error:
            # A statement that `interrupt` cancelled has this code too: with a limit, it counts as late.
            late = getattr(error, "sqlstate", None) == _CANCELED and self._seconds is not None
            raise (too_late(self._seconds) if late else withheld(SERVER)) from None

    def _check(self) -> None:
        check_declared(self._public, self._kinds)
        rows = f"SELECT COUNT(*) AS n FROM {quoted(self._public.table)}"
        check_size(self._public, lambda: int(self._first(rows)[0]))
        self._check_keys()

    def _check_keys(self) -> None:
        """Require that a declared key of a public table is unique, because joins rely on it. The table is
        public, so that a refusal tells nothing private."""
        for table in self._public.tables:
            if not table.key:
                continue
            if self._first(repeated_keys(table, self.id_kinds[table.name], self.dialect))[0]:
                raise not_unique(table.name, table.key)

    def _first(self, sql: str) -> list[Any]:
        """Return the first row of an answer."""
        return [column[0].as_py() for column in self.answer(sql).columns]

    def __repr__(self) -> str:
        return f"PostgreSQL(table={self._public.table!r}, columns={list(self._kinds[self._public.table])})"


def _open_tables(
    connection: Any, address: Address, names: Mapping[str, str], public: Public
) -> dict[str, PostgresTable]:
    """Return the tables as they are now, by the names that queries use. `names` maps these names to those in
    the database."""
    if connection.info.server_version < OLDEST:
        raise InvalidInput(
            f"the server at {address.label} is older than PostgreSQL {OLDEST // 10000}. Nothing was opened."
        )
    (encoding,) = connection.execute("SHOW server_encoding").fetchone()
    if encoding != "UTF8":
        raise InvalidInput(
            f"the database at {address.label} keeps its texts as {encoding}, not UTF8, and some of them "
            f"might not be readable. Nothing was opened."
        )
    declared = {public.table: (public.schema, public.unit.column)}
    declared |= {t.name: (t.schema, t.unit) for t in public.tables}
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
                f"this role may not read {names[name]!r}. Nothing was opened. GRANT SELECT on all of the "
                f"table: it is locked against changes of its columns while it is read."
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
) -> PostgreSQL:
    """Return an engine for a table of a PostgreSQL database: "postgresql://user@host/database".

    `table`: its name in the database, with or without its schema ("clinic.visits"); by default the name in
    `public`. `related` maps the names of the tables that `public.tables` declares to their names in the same
    database. `seconds`: a statement that takes longer fails with `TimeLimit`. The password comes from
    PGPASSWORD, ~/.pgpass or a service file.
    """
    names = {public.table: table or public.table, **{t.name: t.name for t in public.tables}}
    for name, relation in (related or {}).items():
        if not isinstance(relation, str):
            raise InvalidInput(
                f"table {name!r} must be in the same database: give its name there, such as 'clinic.{name}'. "
                f"Nothing was opened."
            )
        names[name] = relation
    return PostgreSQL(Address(address), names, public, seconds=seconds)
