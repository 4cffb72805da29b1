"""Runs queries on DuckDB, embedded: the engine for files, data frames and Arrow.

`connect(data, public)` makes one from a Parquet or CSV file, a table of a DuckDB database, a data frame or an
Arrow table. `discreet.query` builds each query as a tree of the nodes of `tables.semantics` (the closed set),
and `duckdb_dialect` writes the tree as SQL; only the aggregated result comes back, as Arrow. DuckDB is locked
so that it can open no file but those of its tables, and no network connection. The lock is a second line of
defense: no text of an analyst reaches DuckDB, as every query is written anew from a checked plan.

Makes stamps (times and lengths) of a table's files, by which a file that changed after the table was
opened is noticed.

A stamp only ever refuses to read a file that is no longer the one that was checked. It decides neither what
is served from the store nor what is charged. That a file was written while it is open does show:
docs/promise.md says how to replace a table.

Answers any SQL about rows that are not private, such as synthetic ones. Because no value is secret, the
text of an engine's error is shown.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ... import _require, _system
from ..._errors import InvalidInput
from ..._public import Bounds, Public
from ..columns import engine_types, id_kind_of, kind_of
from ..files import Codebook, Csv, Files, several
from ..source import Engine, EngineError, Memory, Source, literal, quoted
from .duckdb_reading import EMPTY, WIDE, Database, TableReader, connection, file_kind, lock
from .table_engine import TableEngine, too_late, unplanned, withheld

if TYPE_CHECKING:
    from ..dialect import Dialect


def paths_of(data: Any) -> tuple[Path, ...]:
    """Return the files that a table is in; none for a table in memory."""
    if isinstance(data, Files):
        return data.paths
    path = data.path if isinstance(data, Database | Csv) else data
    return (Path(path),) if isinstance(path, str | Path) and Path(path).is_file() else ()


def file_stamp(data: Any) -> tuple[Any, ...] | None:
    """Return for each file of a table its device and inode, the times of its last write and last change, and
    its length. It is None for a table in memory, and for a table whose only file is gone; ("gone",) if one of
    several files is gone."""
    # The time of the last change (ctime) is here because a program can set that of the last write (mtime).
    try:
        states = [path.stat() for path in paths_of(data)]
    except OSError:
        return ("gone",)
    return tuple((s.st_dev, s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for s in states) or None


@dataclass(frozen=True, slots=True)
class _Planned:
    """Holds the statements that an engine has planned on one cursor of a connection: their names by text."""

    engine: weakref.ref[DuckDB]
    con: Any
    cursor: Any
    names: dict[str, str]


class DuckDB(TableEngine):
    """Answers queries about a table, and the tables related to it, in an embedded DuckDB. Made by `connect`.

    >>> people = connect({"age": [31, 45, 27]}, Public(table="people"))
    >>> people.answer('SELECT COUNT(*) AS n FROM "people"').column("n").to_pylist()
    [3]
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        public: Public,
        *,
        threads: int | None = None,
        memory: str | None = None,
        seconds: float | None = None,
        codebooks: Mapping[str, Mapping[str, Codebook]] = MappingProxyType({}),
    ) -> None:
        super().__init__(public, seconds)
        self._running: set[Any] = set()
        # For each thread, the statements that it has planned last (`_Planned`).
        self._local = threading.local()
        self._opened = _Opened(tables, _declared_columns(public), threads, memory, codebooks)
        self._kinds = self._opened.kinds
        self._check()
        self._opened.lock()

    @property
    def _con(self) -> Any:
        return self._opened.con

    def ready(self) -> None:
        """Raise `EngineError` if no query can be answered. It is called before a charge, so that nobody pays
        for a query that the engine cannot run."""
        self._opened.renew()

    @property
    def id_kinds(self) -> Mapping[str, Mapping[str, str]]:
        return self._opened.id_kinds

    @property
    def dialect(self) -> Dialect:
        from .duckdb_dialect import DUCKDB

        return DUCKDB

    def answer(self, sql: str) -> pa.Table:
        planned, statement = self._planned(sql)
        with self._cancellable(planned) as cursor:
            late = threading.Event()
            timer = self._timer(cursor, late)
            try:
                # `sql`, not `execute`: from DuckDB 2 on, Arrow from `execute` is a copy, with a warning.
                return cursor.sql(statement).to_arrow_table()
            except Exception:
                # The text of DuckDB's error could quote a value of a row, so that it is not shown.
                error = too_late(self._seconds) if late.is_set() else withheld()
                self._opened.try_renew()
                raise error from None
            finally:
                timer.cancel()

    def plan(self, texts: Sequence[str]) -> None:
        """Have DuckDB plan the queries `texts`, which reads no row, so that a query that it cannot plan is
        refused before a charge. Only optimizers that look at no value are on (`JUDGED`).

        If `answer` is called with one of these texts next, in the same thread, it runs the plan.
        """
        last = self._last_planned()
        with self._cancellable(last and last.cursor) as cursor:
            names = {sql: f"planned{number}" for number, sql in enumerate(texts)}
            for sql, name in names.items():
                try:
                    # EXPLAIN would plan as well, and then draw the plan, which takes as long again.
                    cursor.execute(f"PREPARE {name} AS {sql}")
                except Exception:
                    # After an internal error DuckDB would refuse every further statement.
                    self._opened.try_renew()
                    raise unplanned("DuckDB") from None
            self._local.planned = _Planned(weakref.ref(self), self._con, cursor, names)

    def _planned(self, sql: str) -> tuple[Any, str]:
        """Return the cursor on which this thread has planned a query, and the statement that runs the plan,
        which is used once; None and the query itself where it was not planned, or is planned no more."""
        planned = self._last_planned()
        name = planned and planned.names.pop(sql, None)
        return (planned.cursor, f"EXECUTE {name}") if planned and name else (None, sql)

    def _last_planned(self) -> _Planned | None:
        """Return what this thread has planned last, if it was planned on this engine's present connection."""
        planned: _Planned | None = getattr(self._local, "planned", None)
        # `tables.fit.Within` shares the attributes of another engine, whose rows are not its own.
        if planned is None or planned.engine() is not self or planned.con is not self._con:
            return None
        return planned

    def interrupt(self) -> None:
        """Stop all queries that run now, from any thread: each fails with an `EngineError`."""
        for cursor in list(self._running):
            cursor.interrupt()

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the named columns of the main table, batch by batch.

        Without columns, each batch has only a number of rows. There is no limit of time: the caller may take
        as long as it needs between two batches.
        """
        names = ", ".join(self._select_list(columns))
        with self._cancellable() as cursor:
            try:
                reader = cursor.sql(f"SELECT {names} FROM {quoted(self._public.table)}").to_arrow_reader(
                    1 << 16
                )
            except Exception:
                raise withheld() from None
            while (batch := _next(reader)) is not None:
                # Days and times outside the years 1 to 9999, which Python's calendar lacks, become NULL.
                for part in engine_types(pa.Table.from_batches([batch])).to_batches():
                    yield self._batch(part, columns)

    def _converted(self, column: str) -> str | None:
        to = super()._converted(column)
        if to is None and column in self._opened.wide.get(self._public.table, ()):
            # A whole number of 128 bits: as a text it keeps all of its digits, which an id needs.
            return "number" if isinstance(dict(self._public.schema).get(column), Bounds) else "text"
        return to

    @contextmanager
    def _cancellable(self, planned: Any = None) -> Iterator[Any]:
        """Yield a cursor that `interrupt` can stop: the one on which a query was `planned`, or a new one."""
        cursor = self._cursor() if planned is None else planned
        self._running.add(cursor)
        try:
            yield cursor
        finally:
            self._running.discard(cursor)

    def _timer(self, cursor: Any, late: threading.Event) -> threading.Timer:
        """Return a timer that sets `late` and interrupts the cursor when the limit of time has passed; it is
        not started where there is no limit."""

        def stop() -> None:
            late.set()
            cursor.interrupt()

        timer = threading.Timer(threading.TIMEOUT_MAX if self._seconds is None else self._seconds, stop)
        timer.daemon = True
        if self._seconds is not None:
            timer.start()
        return timer

    def current(self) -> None:
        """Raise `EngineError` if the files of the table have changed since it was opened."""
        self._opened.current()

    def _cursor(self) -> Any:
        return self._opened.cursor()

    def _first(self, sql: str) -> int:
        return int(self._con.execute(sql).fetchall()[0][0])


# A table with codebooks is stored under a name that begins so; a view has its own name.
_PLAIN_PREFIX = "__discreet_plain_"
# All open connections of this process.
_OPEN: weakref.WeakSet[_Opened] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Keep inherited connections open for ever: their threads live in the parent only, and closing one here,
    as the garbage collector would, ends the process. A thread that never ends refers to them."""
    inherited = list(_OPEN)
    if inherited:
        threading.Thread(target=lambda _: threading.Event().wait(), args=(inherited,), daemon=True).start()


_system.at_fork(after_in_child=_after_fork_in_child)


class _Opened:
    """Holds the connection with the tables in it.

    After an internal error DuckDB refuses every further statement; then the connection is replaced by a new
    one with the same tables (`renew`). A changed file is noticed by its stamp (`file_stamp`).
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        declared: Mapping[str, Sequence[str]],
        threads: int | None,
        memory: str | None,
        codebooks: Mapping[str, Mapping[str, Codebook]],
    ) -> None:
        self._limits, self._declared_columns = (threads, memory), declared
        # For tables with codebooks, the names under which their texts are stored as they are.
        self.codebooks, self.plain = codebooks, dict[str, str]()
        self._renewing = threading.Lock()
        self._stamps = {name: file_stamp(data) for name, data in tables.items()}
        self._data, self._original_data = dict(tables), dict(tables)
        self._open()
        # the tables that queries read in place
        self._parquet = {
            name: data
            for name, data in self._data.items()
            if (isinstance(data, Files) and data.kind == "parquet")
            or (isinstance(data, str | Path) and file_kind(str(data)) == "parquet")
        }
        _OPEN.add(self)
        # From now on the tables in memory are Arrow tables: the host may change its data frame, but a renewed
        # connection must hold the same rows.
        self._data |= self._reader.arrow

    def _open(self) -> None:
        """Connect, read all tables, and set `kinds` and `id_kinds` (the kinds of each column, by table) and
        `wide` (the columns of 128-bit numbers, by table)."""
        self.con, folder = connection(*self._limits)
        self._reader = TableReader(self.con, folder, self._declared_columns)
        for name, data in self._data.items():
            self._reader(name, data)
        for number, (name, books) in enumerate(self.codebooks.items()):
            self._apply_codebooks(name, books, f"{_PLAIN_PREFIX}{number}")
        unreadable = self._reader.unreadable
        types = {name: self._describe(name) for name in self._data}
        self.kinds, self.id_kinds = (
            {
                name: {
                    **{column: kind_of_type(type_) for column, type_ in types[name].items()},
                    **unreadable.get(name, {}),
                }
                for name in self._data
            }
            for kind_of_type in (kind_of, id_kind_of)
        )
        self.wide = {name: {c for c, type_ in types[name].items() if type_ in WIDE} for name in self._data}

    def _apply_codebooks(self, name: str, books: Mapping[str, Codebook], plain: str) -> None:
        """Rename a table to `plain`, and put a view in its place that rewrites the texts of some columns."""
        # Imported late, as in `TableEngine.dialect`.
        from ..codebook import select_list
        from .duckdb_dialect import DUCKDB

        kinds = {column: kind_of(type_) for column, type_ in self._describe(name).items()}
        columns = select_list(list(kinds), books, kinds, DUCKDB)
        is_table = self.con.execute(f"SELECT 1 FROM duckdb_tables() WHERE table_name = {literal(name)}")
        what = "TABLE" if is_table.fetchall() else "VIEW"
        self.plain[name] = plain
        self.con.execute(f"ALTER {what} {quoted(name)} RENAME TO {plain}")
        self.con.execute(f"CREATE VIEW {quoted(name)} AS SELECT {', '.join(columns)} FROM {plain}")

    def lock(self) -> None:
        lock(self.con, self._reader.paths)

    def cursor(self) -> Any:
        """Return a new cursor, which is a connection of its own, so that threads do not disturb each other.
        Arrow tables are registered on every cursor anew, as DuckDB does not pass them on."""
        try:
            return self._registered()
        except Exception:
            self.renew()
            return self._registered()

    def _registered(self) -> Any:
        cursor = self.con.cursor()
        for raw, table in self._reader.held.items():
            cursor.register(raw, table)
        return cursor

    def renew(self) -> None:
        """Replace the connection if it no longer answers; raise `EngineError` if that fails, or if a file of
        a table is not the one that was opened."""
        with self._renewing:
            if self._answers():
                self._check_files()
                return
            if any(
                file_stamp(self._data[name]) != stamp
                for name, stamp in self._stamps.items()
                if stamp is not None
            ):
                raise EngineError(
                    "the engine stopped, and a file of the table has changed since it was opened. Open the "
                    "table again."
                )
            try:
                self._open()
                self.lock()
            except Exception:
                raise EngineError("the engine stopped and cannot be started again.") from None

    def _check_files(self) -> None:
        """Refuse a Parquet file that has changed since it was opened.

        Queries read Parquet files in place. Only of the file that was opened is it known that every value can
        be read; in another one a single row could decide whether queries fail.
        """
        for name, data in self._parquet.items():
            if (stamp := self._stamps[name]) is not None and file_stamp(data) != stamp:
                raise EngineError(
                    f"the file of table {name!r} has changed since it was opened, or is gone. Open the table "
                    "again."
                )

    def current(self) -> None:
        """Raise `EngineError` if files of a table were written, added or removed since it was opened, because
        their new rows would not be read."""
        for name, data in self._original_data.items():
            complete = not isinstance(data, Files) or data.complete()
            if not complete or file_stamp(data) != self._stamps[name]:
                raise EngineError(
                    f"the files of table {name!r} have changed since it was opened, and new rows would not "
                    f"be seen. Open the table again."
                )

    def try_renew(self) -> None:
        """Replace a connection that no longer answers, if that is possible; the next query reports it if
        not."""
        with suppress(EngineError):
            self.renew()

    def _answers(self) -> bool:
        try:
            return bool(self.con.execute("SELECT 1").fetchall() == [(1,)])
        except Exception:
            return False

    def _describe(self, name: str) -> dict[str, str]:
        rows = self.con.execute(f"DESCRIBE {quoted(name)}").fetchall()
        return {column: type_ for column, type_, *_ in rows if column != EMPTY}


def _declared_columns(public: Public) -> dict[str, list[str]]:
    """Return the columns of each table that queries may read."""
    tables = [
        (public.table, public.schema, public.unit.column),
        *((t.name, t.schema, t.unit_column) for t in public.tables),
    ]
    return {
        name: list(dict.fromkeys([*(c for c, _ in schema), *([unit] if unit else [])]))
        for name, schema, unit in tables
    }


def _next(reader: Any) -> pa.RecordBatch | None:
    """Return the next batch, or None at the end. The text of the engine's error is not shown."""
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None
    except Exception:
        raise withheld() from None


def connect(
    data: Any,
    public: Public,
    *,
    related: Mapping[str, Any] | None = None,
    threads: int | None = None,
    memory: str | None = None,
    seconds: float | None = None,
    codebooks: Mapping[str, Mapping[str, Codebook]] = MappingProxyType({}),
) -> DuckDB:
    """Return an engine for a file path (.parquet, .csv), a folder, a pattern ("visits-*.parquet") or a list
    of these, a `Database`, a data frame (pandas, polars), an Arrow table, or a mapping of names to columns.

    `related` maps the names of the tables that `public.tables` declares to their data. `threads` and `memory`
    ("4GB") are what the engine may use, by default as many threads as the machine has cores and four fifths
    of its memory; larger intermediate results go to a private folder on disk. `seconds`: a query that takes
    longer fails with `TimeLimit`. `codebooks`: by table and column, how texts are read (`files.Codebook`).
    """
    # `several` is None for a single file and for tables in memory.
    tables = {name: several(of) or of for name, of in {public.table: data, **(related or {})}.items()}
    return DuckDB(tables, public, threads=threads, memory=memory, seconds=seconds, codebooks=codebooks)


def engine_of(source: Source) -> Engine:
    """Return the source itself if it is an engine, else a DuckDB engine that holds the source's rows.

    A `Memory` source keeps its engine, so that it is made once.
    """
    if isinstance(source, Memory) and source._discreet_engine is not None:
        engine: Engine = source._discreet_engine
        return engine
    # The first needs no look at every method, as a protocol does.
    if isinstance(source, DuckDB | Engine):
        return source
    columns = [name for name, _ in source.public.schema]
    unit = source.public.unit.column
    names = list(dict.fromkeys([*columns, *([unit] if unit else [])]))
    if isinstance(source, Memory):
        table = source._table.select(names)
    else:
        # Without a batch the types are unknown; columns without rows may have any type.
        batches = list(source.batches(names))
        table = pa.Table.from_batches(batches) if batches else pa.table({name: pa.nulls(0) for name in names})
    memory_engine = connect(table, source.public)
    if isinstance(source, Memory):
        source._discreet_engine = memory_engine
    return memory_engine


def ask_open_rows(tables: Mapping[str, pa.Table], sql: str) -> pa.Table:
    """Return the rows of one SQL query about `tables`, which maps names to rows. The query can reach neither
    files nor the network.

    >>> ask_open_rows({"t": pa.table({"a": [1, 2]})}, "SELECT MAX(a) AS s FROM t")["s"].to_pylist()
    [2]
    """
    # Imported late because it is slow to load.
    import duckdb

    if not isinstance(sql, str) or not sql.strip():
        # Users call the methods `sql` of synthetic copies, in which this argument is called `text`.
        raise _require.fail("text", sql, "a query in SQL")
    # Arrow tables are registered under names that none of the tables has: DuckDB finds a registered table
    # before a view of the same name, in any letter case, and would read another table's rows.
    prefix = "rows_"
    while any(name.lower().startswith(prefix) for name in tables):
        prefix += "_"
    with duckdb.connect(":memory:") as con:
        for number, (name, table) in enumerate(tables.items()):
            con.register(f"{prefix}{number}", table)
            con.execute(f"CREATE VIEW {quoted(name)} AS SELECT * FROM {prefix}{number}")
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
        try:
            answer = con.sql(sql)
            if answer is None:
                raise InvalidInput("the text is not a query: it returns no rows.")
            return answer.to_arrow_table()
        except duckdb.CatalogException:
            # DuckDB would propose tables of its own
            raise InvalidInput(
                f"the query names a table or function that is not there. The tables are: {', '.join(tables)}."
            ) from None
        except duckdb.Error as error:
            raise InvalidInput(f"the query cannot be answered: {error}") from None
