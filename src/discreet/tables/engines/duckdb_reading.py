"""Brings tables into DuckDB: files, databases, data frames and Arrow, each as a table or view.

Nothing is guessed from rows, and a table that cannot be read is refused by name before anything is charged.
No query may fail on a row. A CSV file is copied into DuckDB as text. Of a Parquet file or a database the
declared columns are read once when it is opened. Where that finds a value that cannot be read (text that is
not UTF-8, a time outside the engine's years), queries read a copy in which such values are NULL
(`columns.engine_types`). The copy is in the connection's private folder (`spill`), into which DuckDB also
writes intermediate results above its limit on memory. The connection is locked once its tables are open
(`lock`).

Reads Parquet and CSV files for DuckDB: the schema and the batches of Parquet, and a `read_csv` call that
leaves DuckDB nothing to guess.

Messages name files and columns, which are public, and never quote a value.
"""

from __future__ import annotations

import csv
import re
import shlex
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

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
from ..files import Csv, Files, Spill, multiline, open_bytes, open_text
from ..source import Memory, literal, quoted

# Bytes of a file that `_line_end` reads at a time. Chosen by hand, not tuned.
_CHUNK = 1 << 24


def file_kind(path: str) -> str:
    """Return "parquet", "csv" or "sheet" by the endings of a file's name; others are refused."""
    suffixes = Path(path).suffixes
    if suffixes and suffixes[-1] in (".xlsx", ".sav", ".dta"):
        return "sheet"
    if suffixes and suffixes[-1] == ".parquet":
        return "parquet"
    if any(s in (".csv", ".tsv") for s in suffixes):
        return "csv"
    if suffixes and suffixes[-1] in (".xls", ".xlsm", ".ods", ".numbers"):
        way_out = "Save it as .xlsx or as CSV in UTF-8, in the program that made it, and give that file."
    elif suffixes and suffixes[-1] in (".duckdb", ".ddb", ".db"):
        way_out = "Say which table of the database: tables.Database(path, table), in the shell FILE::TABLE."
    else:
        way_out = "Convert it to one of these, and give that file."
    raise InvalidInput(
        f"{Path(path).name!r} is neither .parquet nor .csv (.tsv, .csv.gz, .csv.zst), nor .xlsx, .sav or "
        f".dta. {way_out}"
    )


def rewritten(csv_file: Csv) -> str:
    """Return the REPLACE clause of a SELECT that rewrites the numbers of a CSV file with a decimal point and
    its dates in ISO format, by functions that cannot fail; empty if nothing has to be rewritten.

    A date in no known format gets a "?" before it and is then no date: queries take it as NULL, while
    `discreet check` can tell it from an empty field. Two such texts that differ, not only in blanks at their
    ends, stay different, because the column may hold the ids of units.

    A declared code of a missing value, such as "k.A.", stays as it is: without its points it would be none.
    No such code is a number or a day in the file's notation and another one by itself (`files.formatted`).
    """
    format, parts = csv_file.format, []
    if format.decimal != "." or format.thousands:
        for column in csv_file.numbers:
            numeric = (
                f"replace({quoted(column)}, {literal(format.thousands)}, '')"
                if format.thousands
                else quoted(column)
            )
            number = f"replace({numeric}, {literal(format.decimal)}, '.')"
            parts.append(f"{_unless_code(csv_file, column, number)} AS {quoted(column)}")
    if format.dates:
        for column in csv_file.days:
            text = f"trim({quoted(column)})"
            days = ", ".join(_day(text, form) for form in format.dates)
            day = f"CASE WHEN {text} <> '' THEN COALESCE({days}, '?' || {text}) END"
            parts.append(f"{_unless_code(csv_file, column, day)} AS {quoted(column)}")
    return f"REPLACE ({', '.join(parts)})" if parts else ""


def _unless_code(csv_file: Csv, column: str, value: str) -> str:
    """Return the SQL of a rewritten `value` that leaves the declared codes of its column as they are."""
    codes = ", ".join(map(literal, csv_file.codes.get(column, ())))
    return (
        f"CASE WHEN {quoted(column)} IN ({codes}) THEN {quoted(column)} ELSE {value} END" if codes else value
    )


def _day(text: str, form: str) -> str:
    """Return the day that a text is in one format, in ISO format; NULL where it is none.

    DuckDB's %Y also takes one to three digits: 31.01.20 would be a day of the year 20, and count as the lower
    bound of the column. So a year below 1000 is none, and the next format is tried.
    """
    day = f"CAST(try_strptime({text}, {literal(form)}) AS DATE)"
    return f"CASE WHEN {day} >= DATE '1000-01-01' THEN CAST({day} AS VARCHAR) END"


def csv_reader(path: str, table: str, delimiter: str | None = None, declared: Sequence[str] = ()) -> str:
    """Return the `read_csv` call for a file: the names of columns come from the first line, and every column
    is text, so that DuckDB guesses nothing from the rows and fails on none.

    `table` is the table's name for messages. Queries convert texts to the declared types, and a text that
    does not convert is NULL. A `declared` column that the first line does not name is refused here, because
    DuckDB could run no statement about it.

    The line ending is given as well (`new_line`). Left to guess, DuckDB would take CR LF as one ending. Then
    in a line that ends in CR CR LF the LF becomes part of the next line, and in a file with CR endings a
    single LF shifts all lines. With `new_line` LF, DuckDB ends a line at each CR, too. Between CR and LF it
    then sees an empty line, which is not a row where there are several columns; `_line_end` decides for one
    column.
    """
    mark = delimiter or ("\t" if ".tsv" in Path(path).suffixes else ",")
    try:
        # Only the first line must be UTF-8: DuckDB leaves out a later line that is not, like other broken
        # ones.
        with open_text(path, errors="surrogateescape") as file:
            names = next(csv.reader(file, delimiter=mark), [])
        # Raises ValueError if a name is not UTF-8.
        "".join(names).encode()
        with open_bytes(path) as binary:
            # Whether a quoted field spans lines; None if quotes do not pair up.
            spans = multiline(binary, mark)
        with open_bytes(path) as binary:
            end = "\\n" if len(names) > 1 else _line_end(binary)
    except InvalidInput:
        # what was refused already, such as a file that cannot be decompressed
        raise
    except (OSError, ValueError, csv.Error):
        raise InvalidInput(
            f"{Path(path).name!r} cannot be read as text in UTF-8. Convert the file{_conversion(path)}."
        ) from None
    if spans is None:
        raise InvalidInput(_unpaired(Path(path).name))
    if end is None:
        raise InvalidInput(_mixed_ends(Path(path).name))
    if not names or "" in names or len(set(names)) < len(names):
        raise InvalidInput(_ambiguous(Path(path).name, names))
    check_names(table, names)
    if absent := [name for name in declared if name not in names]:
        raise InvalidInput(_absent(Path(path).name, absent[0], names, mark))
    columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in names)
    return (
        f"read_csv({literal(path)}, columns={{{columns}}}, delim={literal(mark)}, quote='\"', "
        f"escape='\"', header=true, new_line='{end}', "
        f"auto_detect=false, hive_partitioning=false, ignore_errors=true, null_padding=true, "
        f"strict_mode=false{', parallel=false' if spans else ''})"
    )


def _line_end(file: IO[bytes]) -> str | None:
    """Return the line ending of a file with one column, as `read_csv` writes it.

    It is that of the first line, because in such a file an empty line is a row. The result is None where the
    first line ends in CR LF and some other CR has no LF after it.
    """
    chunk = file.read(_CHUNK)
    first = re.match(rb'(?:"(?:[^"]|"")*"|[^"\r\n])*(\r\n)', chunk)
    while first is not None and chunk:
        following = file.read(_CHUNK)
        if re.search(rb"\r(?!\n)", chunk + following[:1]):
            return None
        chunk = following
    return "\\n" if first is None else "\\r\\n"


def _conversion(path: str) -> str:
    """Return the end of a sentence that says how a file becomes UTF-8."""
    if path.endswith((".gz", ".zst")):
        return ""
    name = shlex.quote(Path(path).name)
    return (
        f': in Excel, save it as "CSV UTF-8"; on Linux or macOS, if it is from Windows or in Latin-1, run '
        f"iconv -f cp1252 -t utf-8 {name} > new.csv"
    )


def _unpaired(file: str) -> str:
    """Return the message for a file whose quotes do not pair up."""
    return (
        f"the quotes of {file!r} do not pair up: an unclosed one would swallow the lines after it. Put "
        'fields that hold quotes between quotes, and write "" for each inside.'
    )


def _mixed_ends(file: str) -> str:
    """Return the message for a file whose lines end in different ways."""
    return (
        f"lines of {file!r} end in different ways: some in CR and LF, and there are CRs without LF, which "
        "would become part of another line. Write the file anew."
    )


def _ambiguous(file: str, names: Sequence[str]) -> str:
    """Return the message for a first line that does not name each column exactly once."""
    if not names:
        return f"the first line of {file!r} is empty: it must name the columns, each once."
    if "" in names:
        return (
            f"the first line of {file!r} must name the columns, each once: column {names.index('') + 1} has "
            f"no name (the index that pandas writes, or a mark behind the last column). Give it "
            f"one there; a column that nobody will ask about needs no declaration."
        )
    name = next(name for name in names if names.count(name) > 1)
    positions = " and ".join(str(i) for i, other in enumerate(names, start=1) if other == name)
    return (
        f"the first line of {file!r} must name the columns, each once: {name!r} stands in columns "
        f"{positions}. Give them different names there; those that nobody will ask about need no "
        f"declaration."
    )


def _absent(file: str, column: str, names: Sequence[str], mark: str) -> str:
    """Return the message for a declared column that the first line of a file does not name; it suggests
    another delimiter than `mark` where the first line seems to use one."""
    problem = f"the schema declares {column!r}, and {file!r} has no such column."
    other = next((m for m in (";", "\t", "|", ",") if m != mark and m in names[0]), None)
    if len(names) == 1 and other is not None:
        return (
            f"{problem} Split at {mark!r}, its first line is one name that holds {other!r}. If "
            f"that separates its fields, write delimiter = {_toml(other)} under [format] in the schema file."
        )
    return f"{problem}{_require.did_you_mean(column, names)} It has: {', '.join(names)}."


def _toml(mark: str) -> str:
    return '"\\t"' if mark == "\t" else f'"{mark}"'


def parquet_schema(path: str) -> pa.Schema:
    """Return the schema of a Parquet file; its rows are not read."""
    # Imported late, here and below: it is slow to load, and only Parquet files need it.
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError):
        raise InvalidInput(f"{Path(path).name!r}, as Parquet, cannot be read. Check the file.") from None


def check_same(first: str, schema: pa.Schema, path: str, other: pa.Schema) -> None:
    """Refuse a file of a table whose columns or types differ from those of the first file.

    DuckDB would fill in NULL or convert values, and the steward would not notice.
    """
    if other.equals(schema, check_metadata=False):
        return
    differ = [
        name
        for name in dict.fromkeys([*schema.names, *other.names])
        if name not in schema.names or name not in other.names or schema.field(name) != other.field(name)
    ]
    column = f"column {differ[0]!r}" if differ else "the order of columns"
    raise InvalidInput(
        f"{Path(path).name!r} and {Path(first).name!r} do not have the same columns and types: {column} "
        "differs. Write the files anew with one schema."
    )


def parquet_batches(paths: Sequence[str], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield batches of the named columns of Parquet files."""
    import pyarrow.parquet as pq

    for path in paths:
        # large_binary: dictionaries are then read as plain values; otherwise pyarrow refuses a dictionary of
        # which one entry is not UTF-8. Microseconds, as DuckDB reads INT96 times: as nanoseconds, times
        # outside the years 1677 to 2262 would wrap around.
        with pq.ParquetFile(path, binary_type=pa.large_binary(), coerce_int96_timestamp_unit="us") as file:
            yield from file.iter_batches(1 << 16, columns=list(columns), use_threads=False)


def write_parquet(path: str, batches: Iterator[pa.RecordBatch]) -> None:
    """Write batches to a Parquet file, one row group per batch, with NULL for values that queries could fail
    on (`engine_types`)."""
    import pyarrow.parquet as pq

    writer = None
    try:
        for batch in batches:
            table = engine_types(pa.Table.from_batches([batch]))
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


# Optimizers of DuckDB that look at the query alone, or whose effect on a plan tests compare between
# neighbors. All others are switched off. `statistics_propagation`, `filter_pushdown` and
# `join_filter_pushdown` depend on the least and the largest value of a column, in the file or in one of its
# row groups, which one row can change: a query on ten million rows took a third longer with such a row. Those
# that a newer DuckDB adds were judged by nobody.
_JUDGED = """
    expression_rewriter filter_pullup empty_result_pullup cte_filter_pusher regex_range in_clause join_order
    deliminator unnest_rewriter unused_columns common_subexpressions common_aggregate column_lifetime
    limit_pushdown row_group_pruner top_n top_n_window_elimination build_side_probe_side
    compressed_materialization duplicate_groups reorder_filter sampling_pushdown extension materialized_cte
    sum_rewriter late_materialization cte_inlining common_subplan join_elimination window_self_join
"""
JUDGED = frozenset(_JUDGED.split())

# How many columns of a CSV file one UPDATE searches for texts that are too long. Each statement takes time in
# proportion to all columns of the table: with one statement per column, 5,000 columns took 77 CPU-seconds.
_COLUMNS_PER_UPDATE = 1000
# The column of a table of which DuckDB holds no column: its rows can still be counted.
EMPTY = "__discreet_empty"
# While a table of several CSV files is read, each file is in a table whose name begins so.
_PART_PREFIX = "__discreet_part_"
# Types of whole numbers that Arrow lacks. DuckDB exports them as decimals of 38 digits, in which a longer
# number would become NULL (`engine_types`) or another number.
WIDE = ("HUGEINT", "UHUGEINT")


class Database:
    """Names one table of a DuckDB database file, which is opened read-only."""

    def __init__(self, path: str | Path, table: str) -> None:
        self.path, self.table = path, table


def as_arrow(data: Any) -> pa.Table:
    """Return a data frame of pandas or polars, a mapping, a list of rows or another source as an Arrow
    table."""
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
    """Return the columns of a list of rows, each a mapping; a column that a row does not name is None
    there."""
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise InvalidInput(
            "a list must have at least one entry, and each entry must be a row such as "
            "{'age': 34, 'ward': 'A'}. Give a path to a .parquet or .csv file, a data frame, an Arrow table, "
            "or a mapping of columns, {'age': [34, 51], ...}."
        )
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _columns(names: Any, columns: Any) -> pa.Table:
    """Return named columns of any library as one Arrow table, in types that DuckDB holds."""
    texts = [str(name) for name in names]
    check_names("the table", texts)
    return engine_types(
        pa.table({name: to_arrow(name, column) for name, column in zip(texts, columns, strict=True)})
    )


def _series(series: Any) -> Any:
    """Return a column of polars as Arrow."""
    try:
        return series.to_arrow()
    except BaseException:
        # BaseException: where Arrow has no type, polars raises a PanicException, which is no Exception.
        raise InvalidInput(
            f"column {series.name!r} is of a type that Arrow does not have. Cast or drop it."
        ) from None


class TableReader:
    """Brings tables into one connection: `reader(name, data)`.

    `folder`: the private folder. `declared`: by table, the columns that queries may read. `held`: the Arrow
    tables by the name under which they are registered. `arrow`: the same by table. `paths`: the files that
    queries read, which `lock` allows. `unreadable`: by table, the columns whose types DuckDB does not hold,
    with their kinds.
    """

    def __init__(
        self, con: Any, folder: str, declared: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> None:
        self.con, self.folder, self.declared = con, folder, declared
        # Kept alive here, because DuckDB does not own the Arrow memory that it scans.
        self.held: dict[str, pa.Table] = {}
        self.arrow: dict[str, pa.Table] = {}
        self.paths: list[str] = []
        self.attached = 0
        self.unreadable: dict[str, dict[str, str]] = {}

    def __call__(self, name: str, data: Any) -> None:
        if isinstance(data, Files):
            if data.kind == "parquet":
                self._parquet(name, *(str(path.resolve()) for path in data.paths))
            else:
                self._several_csv(name, data)
        elif isinstance(data, str | Path):
            if not Path(data).is_file():
                raise InvalidInput(f"there is no file {str(data)!r}.")
            path = str(Path(data).resolve())
            readers: dict[str, Any] = {"parquet": self._parquet, "csv": self._csv, "sheet": self._sheet}
            readers[file_kind(path)](name, path)
        elif isinstance(data, Csv):
            self._csv(name, str(data.path.resolve()), data)
        elif isinstance(data, Database):
            self._database(name, data)
        else:
            self._arrow(name, as_arrow(data))

    def _run(self, sql: str, what: str) -> Any:
        """Run a statement; the error says that `what` cannot be read."""
        try:
            return self.con.execute(sql)
        except Exception:
            # DuckDB's error is not shown, as it may quote the file.
            raise InvalidInput(f"{what} cannot be read. Check the file.") from None

    def _parquet(self, name: str, *paths: str) -> None:
        what = f"{Path(paths[0]).name!r}, as Parquet," if len(paths) == 1 else f"table {name!r}"
        schema = parquet_schema(paths[0])
        for path in paths[1:]:
            check_same(paths[0], schema, path, parquet_schema(path))
        check_names(name, schema.names)
        # This kind is that of decimals with more digits than DuckDB holds.
        long_decimals = {field.name: "decimal" for field in schema if arrow_kind(field.type) == "decimal"}
        self.unreadable[name] = long_decimals
        files = ", ".join(literal(path) for path in paths)
        reader = f"read_parquet([{files}], hive_partitioning=false)"
        empty = {f.name: "CAST(NULL AS VARCHAR)" for f in schema if pa.types.is_null(f.type)}
        columns = f"* {self._replace_clause(reader, what, empty)}"
        self._run(f"CREATE VIEW {quoted(name)} AS SELECT {columns} FROM {reader}", what)
        self.paths.extend(paths)
        self._replace_unreadable(name, what, lambda columns: parquet_batches(paths, columns))

    def _sheet(self, name: str, path: str) -> None:
        # imported for sheets alone
        from .. import sheets

        self._arrow(name, engine_types(sheets.read(Path(path))))

    def _several_csv(self, name: str, data: Files) -> None:
        """Read several CSV files, each as it would be read alone; their header lines must be the same."""
        first_columns: list[str] = []
        for number, part in enumerate(data.parts):
            file = f"{_PART_PREFIX}{number}"
            csv_file = part if isinstance(part, Csv) else None
            path = data.paths[number]
            self._csv(file, str(path.resolve()), csv_file)
            columns = [column for column, *_ in self.con.execute(f"DESCRIBE {file}").fetchall()]
            first_columns = first_columns or columns
            if columns != first_columns:
                raise InvalidInput(
                    f"the columns of {path.name!r} are not those of {data.paths[0].name!r}, in their order. "
                    "Files of one table have the same first line."
                )
            make = f"CREATE TABLE {quoted(name)} AS" if number == 0 else f"INSERT INTO {quoted(name)}"
            self._run(f"{make} SELECT * FROM {file}; DROP TABLE {file}", f"{path.name!r}, as text in UTF-8,")

    def _csv(self, name: str, path: str, csv_file: Csv | None = None) -> None:
        """Copy a CSV file into a table of texts, in which texts that are too long are NULL."""
        if csv_file is not None and csv_file.format.encoding is not None:
            path = self._in_utf8(path, csv_file.format.encoding)
        format_columns = () if csv_file is None else (*csv_file.numbers, *csv_file.days)
        delimiter = None if csv_file is None else csv_file.format.delimiter
        reader = csv_reader(path, name, delimiter, (*self.declared.get(name, ()), *format_columns))
        self._check_dates(() if csv_file is None else csv_file.format.dates)
        replacements = "" if csv_file is None else rewritten(csv_file)
        columns = f"* {replacements} FROM {reader}"
        what = f"{Path(path).name!r}, as text in UTF-8,"
        self._run(f"CREATE TABLE {quoted(name)} AS SELECT {columns}", what)
        described = self._run(f"DESCRIBE {quoted(name)}", what).fetchall()
        texts = [quoted(column) for column, *_ in described]
        for chunk in (texts[i : i + _COLUMNS_PER_UPDATE] for i in range(0, len(texts), _COLUMNS_PER_UPDATE)):
            # GREATEST ignores NULLs. The 0 gives it a second argument where the file has only one column.
            longest = f"GREATEST(0, {', '.join(f'STRLEN({column})' for column in chunk)})"
            assignments = ", ".join(
                f"{c} = CASE WHEN STRLEN({c}) <= {LONGEST_TEXT} THEN {c} END" for c in chunk
            )
            self._run(f"UPDATE {quoted(name)} SET {assignments} WHERE {longest} > {LONGEST_TEXT}", what)

    def _in_utf8(self, path: str, encoding: str) -> str:
        """Return the path of a copy of a text file in UTF-8, in the private folder. A byte that stands for no
        character becomes U+FFFD."""
        name = Path(path).name.removesuffix(".gz").removesuffix(".zst")
        copy = Path(tempfile.mkdtemp(dir=self.folder), name)
        with open_bytes(path) as file, copy.open("w", encoding="utf-8", newline="") as into:
            for chunk in iter(lambda: file.read(_CHUNK), b""):
                into.write(chunk.decode(encoding, "replace"))
        return str(copy)

    def _check_dates(self, formats: Sequence[str]) -> None:
        """Refuse a format of dates that DuckDB does not know, which would look like a file that cannot be
        read."""
        for text in formats:
            try:
                self.con.execute(f"SELECT try_strptime('', {literal(text)})")
            except Exception:
                raise _require.fail(
                    "dates", text, "formats of strptime: %d, %m, %Y and the like, %% for a %"
                ) from None

    def _database(self, name: str, data: Database) -> None:
        """Attach a DuckDB database, and make a view of one of its tables."""
        database, path = f"__discreet_db_{self.attached}", str(Path(data.path).resolve())
        self.attached += 1
        self._run(
            f"ATTACH {literal(path)} AS {database} (READ_ONLY)", f"{Path(path).name!r}, as a DuckDB database,"
        )
        table, what = f"{database}.{quoted(data.table)}", f"table {data.table!r} of {Path(path).name!r}"
        views = f"SELECT 1 FROM duckdb_views() WHERE database_name = '{database}' AND lower(view_name) = "
        if self._run(f"{views}{literal(data.table.lower())}", what).fetchall():
            # It could read any file of this account.
            raise InvalidInput(
                f"{data.table!r} of {Path(path).name!r} is a view, and only tables are opened: what a view "
                "reads is not in its file. Make a table of it with CREATE TABLE ... AS."
            )
        described = self._run(f"DESCRIBE {table}", what).fetchall()
        check_names(name, [column for column, *_ in described])
        columns = f"* {self._replace_clause(table, what, collated=True)}"
        self._run(f"CREATE VIEW {quoted(name)} AS SELECT {columns} FROM {table}", what)
        self._replace_unreadable(name, what, lambda columns: self._batches(table, columns))

    def _batches(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches of some columns of a table of a database, in types that Arrow has."""
        described = {column: type_ for column, type_, *_ in self.con.execute(f"DESCRIBE {table}").fetchall()}
        safe_columns = [
            (quoted(column), safe(quoted(column), described[column], collated=True)) for column in columns
        ]
        select_list = ", ".join(
            _export_expression(described[name], *pair)
            for name, pair in zip(columns, safe_columns, strict=True)
        )
        yield from self.con.sql(f"SELECT {select_list} FROM {table}").to_arrow_reader(1 << 16)

    def _replace_unreadable(
        self, name: str, what: str, batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    ) -> None:
        """Replace the view of a table by a view of a readable copy, if a declared column has values that
        cannot be read. `batches` reads the named columns of the original.

        The copy must have the same types as the view: one row decides whether there is a copy, and it must
        decide neither what other rows' values are nor whether queries fail on them.
        """
        columns = list(dict.fromkeys(self.declared.get(name, ())))
        described = {
            column: type_ for column, type_, *_ in self.con.execute(f"DESCRIBE {quoted(name)}").fetchall()
        }
        # BLOB stands for a column that the table does not have: its kind is not in KINDS.
        columns = [column for column in columns if kind_of(described.get(column, "BLOB")) in KINDS]
        if self._reads(name, columns, described):
            return
        path = str(Path(self.folder) / f"{len(self.paths)}.parquet")
        try:
            write_parquet(path, batches(columns))
            reader = f"read_parquet({literal(path)})"
            wide = [column for column in columns if described[column] in WIDE]
            # Wide numbers were copied as texts (`_export_expression`).
            as_numbers = {c: f"CAST({quoted(c)} AS {described[c]})" for c in wide}
            selection = f"* {self._replace_clause(reader, what, as_numbers)}"
            self.con.execute(f"CREATE OR REPLACE VIEW {quoted(name)} AS SELECT {selection} FROM {reader}")
            copied = {
                column: type_ for column, type_, *_ in self.con.execute(f"DESCRIBE {quoted(name)}").fetchall()
            }
            same_types = all(copied[column] == described[column] for column in columns)
            readable = same_types and self._reads(name, columns, copied)
        except Exception:
            # The error is not shown, as it may quote the file.
            readable = False
        if not readable:
            raise InvalidInput(f"{what} holds values that cannot be read. Check the file.")
        self.paths.append(path)

    def _reads(self, name: str, columns: Sequence[str], types: Mapping[str, str]) -> bool:
        """Return whether every value of these columns can be read and converted as queries may convert it
        (`columns.probing`)."""
        probes = [probe for column in columns for probe in probing(quoted(column), types[column])]
        if not probes:
            return True
        # The hashes are thrown away; they only make DuckDB compute every value.
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
        """Return the REPLACE clause of a view's SELECT, or an empty text.

        A column in `expressions` is replaced by its expression there. Another column is replaced by its safe
        form (`columns.safe`), if queries could fail on its values or take two different values as equal.
        `collated`: whether text may have a collation.
        """
        described = self._run(f"DESCRIBE SELECT * FROM {source}", what).fetchall()
        columns = {column: safe(quoted(column), type_, collated=collated) for column, type_, *_ in described}
        replacements = ", ".join(
            f"{new} AS {quoted(column)}"
            for column, new in {**columns, **expressions}.items()
            if new is not None
        )
        return f"REPLACE ({replacements}) " if replacements else ""

    def _arrow(self, name: str, table: pa.Table) -> None:
        """Register an Arrow table, without the columns whose types DuckDB does not hold."""
        check_names(name, table.column_names)
        supported = [column for column in table.column_names if engine_holds(table.schema.field(column).type)]
        self.unreadable[name] = {
            column: arrow_kind(table.schema.field(column).type)
            for column in table.column_names
            if column not in supported
        }
        selection = table.select(supported)
        if not supported:
            selection = pa.table({EMPTY: pa.nulls(table.num_rows, pa.int8())})
        raw = f"__discreet_raw_{len(self.held)}"
        self.held[raw] = self.arrow[name] = selection
        self.con.register(raw, selection)
        self._run(f"CREATE VIEW {quoted(name)} AS SELECT * FROM {raw}", f"table {name!r}")


def _export_expression(type_: str, column: str, new: str | None) -> str:
    """Return the SQL that selects a column of a database for a copy; `new` is its safe form, if it needs one.

    Texts, days and times are selected as they are: the safe form of a text fails on one that is not UTF-8,
    and in that of a timestamp in seconds or milliseconds even TRY_CAST may fail. Whole numbers of 128 bits
    become texts, as Arrow has no such numbers.
    """
    if type_ in WIDE:
        return f"CAST({column} AS VARCHAR) AS {column}"
    return column if new is None or type_ == "VARCHAR" or kind_of(type_) == "date" else f"{new} AS {column}"


def _amount(memory: Any) -> str:
    """Return an amount of memory in DuckDB's notation, or refuse one below 50MB or in another notation.

    The least amount with which DuckDB can open a table was not measured; 50MB is meant to be above it.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?) ?([MGT])i?B", memory) if isinstance(memory, str) else None
    if match is None or float(match[1]) * {"M": 1, "G": 1000, "T": 10**6}[match[2]] < 50:
        raise _require.fail("memory", memory, "an amount of at least 50MB, such as '4GB'")
    return str(memory)


def connection(threads: int | None, memory: str | None) -> tuple[Any, str]:
    """Return a new connection to an embedded DuckDB, and the path of its private folder.

    `memory`: DuckDB's limit, such as "4GB"; by default four fifths of the machine's memory. Larger
    intermediate results go to the private folder, which is removed with the connection.
    """
    # Imported late because it is slow to load.
    import duckdb

    con = duckdb.connect(":memory:")
    con.execute("SET autoinstall_known_extensions=false; SET autoload_known_extensions=false;")
    # In a Jupyter kernel without ipywidgets there is no bar, and DuckDB refuses to switch it off.
    if con.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(True,)]:
        con.execute("PRAGMA disable_progress_bar")
    con.execute("SET preserve_insertion_order=false; SET TimeZone='UTC';")
    optimizers = {name for (name,) in con.execute("SELECT name FROM duckdb_optimizers()").fetchall()}
    con.execute(f"SET disabled_optimizers={literal(','.join(sorted(optimizers - JUDGED)))}")
    # The files in the private folder are not encrypted: DuckDB 1.5 can encrypt them only with its network
    # extension (httpfs) loaded; without it every write of such a file fails.
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
    """Lock a connection so that it can open no file but those in `paths`, no network connection and no
    extension. Nothing can undo that: the settings themselves are locked.
    """
    if paths:
        con.execute(f"SET allowed_paths=[{', '.join(literal(path) for path in paths)}]")
    con.execute("SET enable_external_access=false; SET lock_configuration=true;")
