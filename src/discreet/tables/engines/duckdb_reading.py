"""How tables come into the engine: files, databases, data frames and Arrow, each under a view with a number
for every row.

Nothing about rows is guessed, and what cannot be read is refused by name before anything is charged. No query
may fail on a row: the declared columns of a file are read once when it is opened, and where a value cannot be
(text that is not UTF-8, a time beyond the engine's years), queries read a copy in the private folder in which
it is missing (`columns.engine_types`). The connection has a limit on memory, spills what is larger into a
private folder, and is locked once its tables are in.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from ... import _require
from ..._errors import InvalidInput
from ..columns import (
    KINDS,
    LONGEST_TEXT,
    arrow_kind,
    check_names,
    engine_holds,
    engine_types,
    kind_of,
    probing,
    safe,
    to_arrow,
)
from ..engine import ROW, literal, quoted
from ..files import Files
from ..formats import Csv
from ..source import Memory
from ..spill import Spill
from .duckdb_files import (
    check_same,
    csv_reader,
    file_kind,
    parquet_batches,
    parquet_schema,
    rewritten,
    write_parquet,
)

# Shortcuts that the engine takes when a column's least and largest value, in the whole file or a part of it,
# allow them. One row can move these: with it, a query on ten million rows took a third longer.
DATA_DEPENDENT = ("statistics_propagation", "filter_pushdown", "join_filter_pushdown")


# Columns of a CSV file that one statement looks at for texts that are too long: each statement costs time in
# proportion to all columns of the table, so that one per column took 77 CPU-seconds for 5,000 columns.
_CHUNK = 1000
# Bits of a row's number within its file, where a table is in several.
_FILE = 40
_PART = "__discreet_part_"
# Whole numbers that Arrow does not hold: what it makes of them is missing, or another number.
WIDE = ("HUGEINT", "UHUGEINT")


class Database:
    """One table of a DuckDB database file; opened read-only."""

    def __init__(self, path: str | Path, table: str) -> None:
        self.path, self.table = path, table


def as_arrow(data: Any) -> pa.Table:
    """Return a frame of any library as an Arrow table."""
    if isinstance(data, Mapping):
        return Memory(data)._table
    if isinstance(data, pa.Table):
        return _columns(data.column_names, data.columns)
    if type(data).__module__.split(".")[0] == "pandas":
        return _columns(data.columns, (data.iloc[:, i] for i in range(data.shape[1])))
    if type(data).__module__.split(".")[0] == "polars" and type(data).__name__ == "LazyFrame":
        return as_arrow(data.collect())
    if type(data).__module__.split(".")[0] == "polars" and hasattr(data, "get_columns"):
        series = data.get_columns()
        return _columns([s.name for s in series], (_series(s) for s in series))
    if hasattr(data, "batches") and hasattr(data, "public"):
        return engine_types(pa.Table.from_batches(data.batches([name for name, _ in data.public.schema])))
    if hasattr(data, "__arrow_c_stream__"):
        return as_arrow(pa.table(data))
    if isinstance(data, list | tuple):
        return as_arrow(_by_column(data))
    raise InvalidInput(
        f"{type(data).__name__} is not a table. Give a path to a .parquet or .csv file, "
        f"Database(path, table), a pandas or polars "
        f"data frame, or an Arrow table."
    )


def _by_column(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the columns of a list of rows, each a mapping; what a row does not name is missing."""
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise InvalidInput(
            "a list is taken where each of its entries is a row, {'age': 34, 'ward': 'A'}, and there "
            "is one at least. Nothing was opened. Give a "
            "path to a .parquet or .csv file, a data frame, an Arrow table, or a mapping of columns, "
            "{'age': [34, 51], ...}."
        )
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _columns(names: Any, columns: Any) -> pa.Table:
    texts = [str(name) for name in names]
    check_names("the table", texts)
    return engine_types(
        pa.table({name: to_arrow(name, column) for name, column in zip(texts, columns, strict=True)})
    )


def _series(series: Any) -> Any:
    try:
        return series.to_arrow()
    except BaseException:
        # Polars panics on what Arrow has no type for.
        raise InvalidInput(
            f"column {series.name!r} is of a type that Arrow does not have. Nothing was opened. Cast "
            f"or drop it."
        ) from None


class TableReader:
    """Brings tables into one connection, and remembers what has to be kept and what may still be read."""

    def __init__(
        self, con: Any, folder: str, declared: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> None:
        self.con, self.folder, self.declared = con, folder, declared
        # DuckDB does not own the Arrow memory that it scans.
        self.held: dict[str, pa.Table] = {}
        self.arrow: dict[str, pa.Table] = {}
        self.paths: list[str] = []
        self.attached = 0
        # Columns whose type the engine would get wrong, by table.
        self.unreadable: dict[str, dict[str, str]] = {}

    def __call__(self, name: str, data: Any) -> None:
        if isinstance(data, Files):
            if data.kind == "parquet":
                self._parquet(name, *(str(path.resolve()) for path in data.paths))
            else:
                self._several_csv(name, data)
        elif isinstance(data, str | Path):
            if not Path(data).is_file():
                raise InvalidInput(f"there is no file {str(data)!r}. Nothing was opened or charged.")
            path = str(Path(data).resolve())
            (self._parquet if file_kind(path) == "parquet" else self._csv)(name, path)
        elif isinstance(data, Csv):
            self._csv(name, str(data.path.resolve()), data)
        elif isinstance(data, Database):
            self._database(name, data)
        else:
            self._arrow(name, as_arrow(data))

    def _run(self, sql: str, what: str) -> Any:
        try:
            return self.con.execute(sql)
        except Exception:
            # Its text may quote the file.
            raise InvalidInput(
                f"{what} cannot be read. Nothing was opened or charged. Check the file."
            ) from None

    def _parquet(self, name: str, *paths: str) -> None:
        what = f"{Path(paths[0]).name!r}, as Parquet," if len(paths) == 1 else f"table {name!r}"
        schema = parquet_schema(paths[0])
        for path in paths[1:]:
            check_same(paths[0], schema, path, parquet_schema(path))
        check_names(name, [*schema.names, ROW])
        wide = {field.name: "decimal" for field in schema if arrow_kind(field.type) == "decimal"}
        self.unreadable[name] = wide
        files = ", ".join(literal(path) for path in paths)
        reader = f"read_parquet([{files}], file_row_number=true, hive_partitioning=false)"
        # A number for each row: of the file in the high bits, of the row in the low ones.
        number = (
            ""
            if len(paths) == 1
            else f"REPLACE (file_row_number + (file_index << {_FILE}) AS file_row_number) "
        )
        empty = {f.name: "CAST(NULL AS VARCHAR)" for f in schema if pa.types.is_null(f.type)}
        source = f"(SELECT * {number}FROM {reader})" if number else reader
        columns = f"* {self._replace_clause(reader, what, empty)}RENAME (file_row_number AS {ROW})"
        self._run(f"CREATE VIEW {quoted(name)} AS SELECT {columns} FROM {source}", what)
        self.paths.extend(paths)
        self._replace_unreadable(name, what, lambda columns: parquet_batches(paths, columns))

    def _several_csv(self, name: str, data: Files) -> None:
        """Read several CSV files, each as it would be read alone; their header lines must be the same."""
        first: list[str] = []
        for number, part in enumerate(data.parts):
            file = f"{_PART}{number}"
            csv_file = part if isinstance(part, Csv) else None
            path = data.paths[number]
            self._csv(file, str(path.resolve()), csv_file)
            columns = [column for column, *_ in self.con.execute(f"DESCRIBE {file}").fetchall()]
            first = first or columns
            if columns != first:
                raise InvalidInput(
                    f"the columns of {path.name!r} are not those of {data.paths[0].name!r}, in their order. "
                    f"Nothing was opened or charged. Files of one table have the same first line."
                )
            rows = f"SELECT * REPLACE ({ROW} + (CAST({number} AS BIGINT) << {_FILE}) AS {ROW}) FROM {file}"
            make = f"CREATE TABLE {quoted(name)} AS" if number == 0 else f"INSERT INTO {quoted(name)}"
            self._run(f"{make} {rows}; DROP TABLE {file}", f"{path.name!r}, as text in UTF-8,")

    def _csv(self, name: str, path: str, csv_file: Csv | None = None) -> None:
        format_columns = () if csv_file is None else (*csv_file.numbers, *csv_file.days)
        mark = None if csv_file is None else csv_file.format.delimiter
        reader = csv_reader(path, name, mark, (*self.declared.get(name, ()), *format_columns))
        replacements = "" if csv_file is None else rewritten(csv_file)
        columns = f"* {replacements}, row_number() OVER () AS {ROW} FROM {reader}"
        what = f"{Path(path).name!r}, as text in UTF-8,"
        self._run(f"CREATE TABLE {quoted(name)} AS SELECT {columns}", what)
        described = self._run(f"DESCRIBE {quoted(name)}", what).fetchall()
        texts = [quoted(column) for column, *_ in described if column != ROW]
        for chunk in (texts[i : i + _CHUNK] for i in range(0, len(texts), _CHUNK)):
            # GREATEST passes over NULLs; for one column it wants a second argument
            longest = f"GREATEST(0, {', '.join(f'STRLEN({column})' for column in chunk)})"
            assignments = ", ".join(
                f"{c} = CASE WHEN STRLEN({c}) <= {LONGEST_TEXT} THEN {c} END" for c in chunk
            )
            self._run(f"UPDATE {quoted(name)} SET {assignments} WHERE {longest} > {LONGEST_TEXT}", what)

    def _database(self, name: str, data: Database) -> None:
        """Attach a DuckDB database, and make a view of one table of it."""
        inner, path = f"__discreet_db_{self.attached}", str(Path(data.path).resolve())
        self.attached += 1
        self._run(
            f"ATTACH {literal(path)} AS {inner} (READ_ONLY)", f"{Path(path).name!r}, as a DuckDB database,"
        )
        table, what = f"{inner}.{quoted(data.table)}", f"table {data.table!r} of {Path(path).name!r}"
        columns = f"* {self._replace_clause(table, what, collated=True)}, rowid AS {ROW}"
        self._run(f"CREATE VIEW {quoted(name)} AS SELECT {columns} FROM {table}", what)
        self._replace_unreadable(name, what, lambda columns: self._batches(table, columns))

    def _batches(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches of some columns, as types that Arrow holds."""
        described = {column: type_ for column, type_, *_ in self.con.execute(f"DESCRIBE {table}").fetchall()}
        safe_columns = [
            (quoted(column), safe(quoted(column), described[column], collated=True)) for column in columns
        ]
        select_list = ", ".join(
            _export_expression(described[name], *pair)
            for name, pair in zip(columns, safe_columns, strict=True)
        )
        yield from self.con.execute(f"SELECT {select_list} FROM {table}").to_arrow_reader(1 << 16)

    def _replace_unreadable(
        self, name: str, what: str, batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    ) -> None:
        """Put a copy that can be read in the place of declared columns that cannot.

        The copy has the types that the view had: one row decides whether there is a copy, and must not decide
        what other rows say, nor whether queries fail on them.
        """
        columns = list(dict.fromkeys(self.declared.get(name, ())))
        described = {
            column: type_ for column, type_, *_ in self.con.execute(f"DESCRIBE {quoted(name)}").fetchall()
        }
        columns = [column for column in columns if kind_of(described.get(column, "BLOB")) in KINDS]
        if self._reads(name, columns, described):
            return
        path = str(Path(self.folder) / f"{len(self.paths)}.parquet")
        try:
            write_parquet(path, batches(columns))
            reader = f"read_parquet({literal(path)}, file_row_number=true)"
            wide = [column for column in columns if described[column] in WIDE]
            back = {c: f"CAST({quoted(c)} AS {described[c]})" for c in wide}
            selection = f"* {self._replace_clause(reader, what, back)}RENAME (file_row_number AS {ROW})"
            self.con.execute(f"CREATE OR REPLACE VIEW {quoted(name)} AS SELECT {selection} FROM {reader}")
            copied = {
                column: type_ for column, type_, *_ in self.con.execute(f"DESCRIBE {quoted(name)}").fetchall()
            }
            same_types = all(copied[column] == described[column] for column in columns)
            mended = same_types and self._reads(name, columns, copied)
        except Exception:
            # Its text may quote the file.
            mended = False
        if not mended:
            raise InvalidInput(
                f"{what} holds values that cannot be read. Nothing was opened or charged. Check the file."
            )
        self.paths.append(path)

    def _reads(self, name: str, columns: Sequence[str], types: Mapping[str, str]) -> bool:
        """Return whether every value of these columns can be read, and converted to what queries may make of
        it."""
        probes = [probe for column in columns for probe in probing(quoted(column), types[column])]
        if not probes:
            return True
        hashes = ", ".join(f"bit_xor(hash({probe}))" for probe in probes)
        try:
            self.con.execute(f"SELECT {hashes} FROM {quoted(name)}").fetchall()
        except Exception:
            return False
        return True

    def _replace_clause(
        self,
        source: str,
        what: str,
        expressions: Mapping[str, str] = MappingProxyType({}),
        *,
        collated: bool = False,
    ) -> str:
        """Return what a view says of columns that queries could fail on, or take two values of for one."""
        described = self._run(f"DESCRIBE SELECT * FROM {source}", what).fetchall()
        columns = {column: safe(quoted(column), type_, collated=collated) for column, type_, *_ in described}
        replacements = ", ".join(
            f"{new} AS {quoted(column)}"
            for column, new in {**columns, **expressions}.items()
            if new is not None
        )
        return f"REPLACE ({replacements}) " if replacements else ""

    def _arrow(self, name: str, table: pa.Table) -> None:
        """Register an Arrow table, without columns that the engine cannot hold."""
        supported = [column for column in table.column_names if engine_holds(table.schema.field(column).type)]
        self.unreadable[name] = {
            column: arrow_kind(table.schema.field(column).type)
            for column in table.column_names
            if column not in supported
        }
        selection = table.select(supported)
        if ROW not in supported:
            selection = selection.append_column(ROW, pa.array(range(table.num_rows), pa.int64()))
        raw = f"__discreet_raw_{len(self.held)}"
        self.held[raw] = self.arrow[name] = selection
        self.con.register(raw, selection)
        self._run(f"CREATE VIEW {quoted(name)} AS SELECT * FROM {raw}", f"table {name!r}")


def _export_expression(type_: str, column: str, new: str | None) -> str:
    """Return how a column of a database leaves for a copy. Days and times as they are: converting those of a
    coarse unit is what fails. Whole numbers of 128 bits as texts, as Arrow has no such numbers."""
    if type_ in WIDE:
        return f"CAST({column} AS VARCHAR) AS {column}"
    return column if new is None or kind_of(type_) == "date" else f"{new} AS {column}"


def _amount(memory: Any) -> str:
    """Return an amount of memory that an engine can start with, as it writes it."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?) ?([MGT])i?B", memory) if isinstance(memory, str) else None
    if match is None or float(match[1]) * {"M": 1, "G": 1000, "T": 10**6}[match[2]] < 50:
        raise _require.fail("memory", memory, "an amount of at least 50MB, such as '4GB'")
    return str(memory)


def connection(threads: int | None, memory: str | None) -> tuple[Any, str]:
    """Return an embedded DuckDB, and its private folder.

    `memory`: its limit, such as "4GB"; by default four fifths of the machine's. What is larger goes to disk.
    """
    # slow to load: nobody who asks no query should wait for it
    import duckdb

    con = duckdb.connect(":memory:")
    con.execute("SET autoinstall_known_extensions=false; SET autoload_known_extensions=false;")
    con.execute("SET enable_progress_bar=false; SET preserve_insertion_order=false; SET TimeZone='UTC';")
    con.execute(f"SET disabled_optimizers={literal(','.join(DATA_DEPENDENT))}")
    # Not encrypted: DuckDB 1.5 writes encrypted files only with its network extension (httpfs) loaded, and
    # every spill fails without it.
    spill = Spill()
    weakref.finalize(con, spill.remove)
    con.execute(f"SET temp_directory={literal(str(spill.path))}")
    if threads is not None:
        _require.integer(threads=threads, at_least=1)
        con.execute(f"SET threads={threads}")
    if memory is not None:
        con.execute(f"SET memory_limit={literal(_amount(memory))}")
    return con, str(spill.path)


def lock(con: Any, paths: list[str]) -> None:
    """Lock a connection down for good: no file but the table's own, no network, no extension."""
    if paths:
        con.execute(f"SET allowed_paths=[{', '.join(literal(path) for path in paths)}]")
    con.execute("SET enable_external_access=false; SET lock_configuration=true;")
