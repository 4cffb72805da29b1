"""Engines: tables that answer aggregate SQL by themselves, so that rows stay where they are.

`connect(data, public)` makes one from a Parquet or CSV file, a table of a DuckDB database, a data frame or an Arrow table. The
query room writes the SQL (DuckDB's dialect); only its aggregated result comes back, as Arrow. DuckDB runs embedded, through
Ibis, with no access to files or network beyond the table itself. That lock is a second line: queries are rebuilt from checked plans.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from .._errors import DiscreetError, InvalidInput, PublicMismatch
from .._public import ADD_REMOVE, Boolean, Bounds, Categories, Dates, Public
from .schema import drafted
from .source import Memory, Source

ROW = "__discreet_row"  # a number for each row that does not change when other rows come or go
_KINDS = {"BOOLEAN": "boolean", "DATE": "date", "VARCHAR": "text"}
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")


class EngineError(DiscreetError, RuntimeError):
    """The engine failed. What it said is kept back: it may speak of the data."""


@runtime_checkable
class Engine(Source, Protocol):
    """A source that runs SQL by itself. `kinds` says of each table's columns "integer", "number", "text", "boolean" or "date"."""

    def answer(self, sql: str) -> pa.Table: ...

    @property
    def kinds(self) -> Mapping[str, Mapping[str, str]]: ...


class DuckDB:
    """A table, and those related to it, in an embedded DuckDB. Made by `connect`.

    >>> people = connect({"age": [31, 45, 27]}, Public(table="people"))
    >>> people.answer('SELECT COUNT(*) AS n FROM "people"').column("n").to_pylist()
    [3]
    """

    def __init__(self, tables: Mapping[str, Any], public: Public, *, threads: int | None = None) -> None:
        self._public = public
        self._con = _connection(threads)
        self._held: dict[str, pa.Table] = {}  # DuckDB does not own the Arrow memory that it scans
        self._attached: list[str] = []
        paths: list[str] = []
        for name, data in tables.items():
            self._register(name, data, paths)
        self._kinds = {name: self._describe(name) for name in tables}
        self._check()
        self._check_keys()
        _lock(self._con, paths)

    @property
    def public(self) -> Public:
        return self._public

    @property
    def kinds(self) -> Mapping[str, Mapping[str, str]]:
        return self._kinds

    def answer(self, sql: str) -> pa.Table:
        """The result of one aggregate query that the query room has built."""
        try:
            return self._cursor().execute(sql).to_arrow_table()
        except Exception:  # its text could quote a value
            raise _withheld() from None

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The named columns of the main table, a batch at a time."""
        known = self._kinds[self._public.table]
        if unknown := [name for name in columns if name not in known]:
            raise InvalidInput(f"there is no column {unknown[0]!r}; the table has {list(known)}.")
        names = ", ".join(self._typed(name, known[name]) for name in columns) if columns else quoted(ROW)
        try:
            reader = (
                self._cursor().execute(f"SELECT {names} FROM {quoted(self._public.table)}").to_arrow_reader(1 << 16)
            )
        except Exception:
            raise _withheld() from None
        while (batch := _next(reader)) is not None:
            yield batch if columns else pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))

    def _typed(self, column: str, kind: str) -> str:
        """A column as its declared type: a CSV file holds text only, and what does not convert is missing."""
        fact = next((fact for name, fact in self._public.schema if name == column), None)
        whole = isinstance(fact, Categories) and all(isinstance(value, int) for value in fact.values)
        to = "BIGINT" if whole else {Bounds: "DOUBLE", Boolean: "BOOLEAN", Dates: "DATE"}.get(type(fact))
        if kind != "text" or to is None:
            return quoted(column)
        return f"TRY_CAST({quoted(column)} AS {to}) AS {quoted(column)}"

    def _register(self, name: str, data: Any, paths: list[str]) -> None:
        con, view = self._con.con, f"CREATE VIEW {quoted(name)} AS SELECT "
        if isinstance(data, str | Path):
            path = str(Path(data).resolve())
            kind = _file_kind(path)
            if kind == "parquet":
                con.execute(
                    f"{view}* RENAME (file_row_number AS {ROW}) FROM read_parquet({literal(path)}, file_row_number=true)"
                )
                paths.append(path)
            else:
                con.execute(f"CREATE TABLE {quoted(name)} AS SELECT *, row_number() OVER () AS {ROW} FROM {_csv(path)}")
        elif isinstance(data, Database):
            inner = f"__discreet_db_{len(self._attached)}"
            self._attached.append(inner)
            con.execute(f"ATTACH {literal(str(Path(data.path).resolve()))} AS {inner} (READ_ONLY)")
            con.execute(f"{view}*, rowid AS {ROW} FROM {inner}.{quoted(data.table)}")
        else:
            table = as_arrow(data)
            numbered = (
                table
                if ROW in table.column_names
                else table.append_column(ROW, pa.array(range(table.num_rows), pa.int64()))
            )
            raw = f"__discreet_raw_{len(self._held)}"
            self._held[raw] = numbered
            con.register(raw, numbered)
            con.execute(f"{view}* FROM {raw}")

    def _cursor(self) -> Any:
        """A connection of its own, so that threads do not disturb each other; what is registered must be so for each."""
        cursor = self._con.con.cursor()
        for raw, table in self._held.items():
            cursor.register(raw, table)
        return cursor

    def _describe(self, name: str) -> dict[str, str]:
        rows = self._con.con.execute(f"DESCRIBE {quoted(name)}").fetchall()
        return {column: _kind(type_) for column, type_, *_ in rows if column != ROW}

    def _check(self) -> None:
        public = self._public
        wanted = [(public.table, public.schema, public.unit.column)]
        wanted += [(t.name, t.schema, t.unit) for t in public.tables]
        for name, schema, unit in wanted:
            if name not in self._kinds:
                raise InvalidInput(f"table {name!r} is declared, and none of that name was given: {list(self._kinds)}.")
            columns = self._kinds[name]
            missing = [c for c in [*(c for c, _ in schema), *([unit] if unit else [])] if c not in columns]
            if missing:
                raise InvalidInput(f"{missing} declared for table {name!r}, which has only {list(columns)}.")
        self._check_size()

    def _check_size(self) -> None:
        """Where the size is public, what is declared must be true: mechanisms scale by it."""
        public = self._public
        if public.neighbors is ADD_REMOVE or public.size is None or public.unit.column is not None:
            return
        (rows,) = self._con.con.execute(f"SELECT COUNT(*) FROM {quoted(public.table)}").fetchone()
        if rows != public.size:
            raise PublicMismatch(
                f"under {public.neighbors} the size is public and must be true: declared {public.size}, but the table has {rows} rows."
            )

    def _check_keys(self) -> None:
        """A declared key of a public table must be unique: joins rely on it, and anybody may know it."""
        for table in self._public.tables:
            if not table.key:
                continue
            texts = ", ".join(f"CAST({quoted(column)} AS VARCHAR)" for column in table.key)
            repeated = f"SELECT COUNT(*) FROM (SELECT 1 FROM {quoted(table.name)} GROUP BY {texts} HAVING COUNT(*) > 1)"
            if self._con.con.execute(repeated).fetchone()[0]:
                raise InvalidInput(
                    f"the key {list(table.key)} of the public table {table.name!r} is not unique: leave key out."
                )

    def __repr__(self) -> str:
        return f"DuckDB(table={self._public.table!r}, columns={list(self._kinds[self._public.table])})"


def _withheld() -> EngineError:
    return EngineError(
        "the engine could not compute this query; its message is withheld, as it may speak of the data. Nothing was released."
    )


def _next(reader: Any) -> pa.RecordBatch | None:
    """The next batch, or None at the end; what the engine says in between is kept back."""
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None
    except Exception:
        raise _withheld() from None


class Database:
    """One table of a DuckDB database file; opened read-only."""

    def __init__(self, path: str | Path, table: str) -> None:
        self.path, self.table = path, table


def connect(
    data: Any, public: Public, *, related: Mapping[str, Any] | None = None, threads: int | None = None
) -> DuckDB:
    """An engine for a file path (.parquet, .csv), a `Database`, a data frame (pandas, polars), an Arrow table, or a mapping.

    `related` holds the data of the tables that `public.tables` declares.
    """
    return DuckDB({public.table: data, **(related or {})}, public, threads=threads)


def engine_of(source: Source) -> Engine:
    """The source itself if it is an engine; else one that holds its batches."""
    if isinstance(source, Engine):
        return source
    if isinstance(source, Memory) and source._discreet_engine is not None:
        made: Engine = source._discreet_engine
        return made
    columns = [name for name, _ in source.public.schema]
    unit = source.public.unit.column
    wanted = list(dict.fromkeys([*columns, *([unit] if unit else [])]))
    if isinstance(source, Memory):
        table = source._table.select(wanted)
    else:  # no batch at all has no types either: nothing to count, whatever they are
        batches = list(source.batches(wanted))
        table = pa.Table.from_batches(batches) if batches else pa.table({name: pa.nulls(0) for name in wanted})
    held = connect(table, source.public)
    if isinstance(source, Memory):
        source._discreet_engine = held
    return held


def draft(file: str | Path, *, table: str | None = None) -> str:
    """A schema file for a table, with questions to the steward: from the names and types of its columns, never a value."""
    path = Path(file)
    name = table or path.stem
    data: Any = Database(path, name) if path.suffix in (".duckdb", ".db", ".ddb") else path
    kinds = dict(DuckDB({name: data}, Public(table=name)).kinds[name])
    untyped = isinstance(data, Path) and _file_kind(str(data)) == "csv"
    return drafted(name, dict.fromkeys(kinds, "any") if untyped else kinds)


def version_of(file: str | Path) -> str:
    """A version for a file that changes when the file does: when it was last written. Never anything computed from its contents.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file: version_of(file.name)[:2]
    '20'
    """
    return datetime.fromtimestamp(Path(file).stat().st_mtime, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def as_arrow(data: Any) -> pa.Table:
    """Arrow from whatever holds columns."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, Mapping):
        return Memory(data)._table
    if hasattr(data, "to_arrow"):  # polars
        return data.to_arrow()
    if type(data).__module__.split(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "batches") and hasattr(data, "public"):
        return pa.Table.from_batches(data.batches([name for name, _ in data.public.schema]))
    raise InvalidInput(
        f"{type(data).__name__} is not a table. Give a path to a .parquet or .csv file, Database(path, table), a pandas or polars "
        f"data frame, or an Arrow table."
    )


def quoted(name: str) -> str:
    """An identifier, quoted for DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string, quoted for DuckDB."""
    return "'" + text.replace("'", "''") + "'"


def _csv(path: str) -> str:
    """How to read a CSV file so that nothing about its rows is guessed or can fail: names from the first line, all else text.

    Queries convert text to the declared type, and what does not convert is missing.
    """
    mark = "\t" if ".tsv" in Path(path).suffixes else ","
    opener: Any = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file, delimiter=mark), [])
    if not names or len(set(names)) < len(names):
        raise InvalidInput(f"the first line of {Path(path).name!r} must name the columns, each once.")
    columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in names)
    return (
        f"read_csv({literal(path)}, columns={{{columns}}}, delim={literal(mark)}, quote='\"', escape='\"', header=true, "
        f"auto_detect=false, ignore_errors=true, null_padding=true, strict_mode=false)"
    )


def _file_kind(path: str) -> str:
    suffixes = Path(path).suffixes
    if suffixes and suffixes[-1] == ".parquet":
        return "parquet"
    if any(s in (".csv", ".tsv") for s in suffixes):
        return "csv"
    raise InvalidInput(
        f"{Path(path).name!r} is neither .parquet nor .csv. For a DuckDB database give tables.Database(path, table)."
    )


def _kind(type_: str) -> str:
    if type_.startswith(_WHOLE):
        return "integer"
    if type_.startswith(_NUMBERS) or type_ in ("UBIGINT", "UHUGEINT"):
        return "number"
    if type_.startswith("TIMESTAMP"):
        return "date"
    return _KINDS.get(type_, "text")


def _connection(threads: int | None) -> Any:
    import ibis  # type: ignore[import-untyped]  # slow to load; nobody who does no queries should wait for it

    con = ibis.duckdb.connect(":memory:")
    con.con.execute("SET autoinstall_known_extensions=false; SET autoload_known_extensions=false;")
    con.con.execute("SET enable_progress_bar=false; SET preserve_insertion_order=false;")
    if threads is not None:
        con.con.execute(f"SET threads={int(threads)}")
    return con


def _lock(con: Any, paths: list[str]) -> None:
    """No file but the table's own, no network, no extension, and no way back."""
    if paths:
        con.con.execute(f"SET allowed_paths=[{', '.join(literal(path) for path in paths)}]")
    con.con.execute("SET enable_external_access=false; SET lock_configuration=true;")
