"""Reads Parquet and CSV files for DuckDB: the schema and the batches of Parquet, and a `read_csv` call that
leaves DuckDB nothing to guess.

Messages name files and columns, which are public, and never quote a value.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa

from ... import _require
from ..._errors import InvalidInput
from ..columns import check_names, engine_types
from ..compressed import open_bytes, open_text
from ..engine import ROW, literal, quoted
from ..formats import Csv
from ..quotes import multiline

# Bytes of a file that `_line_end` reads at a time. Chosen by hand, not tuned.
_CHUNK = 1 << 24


def file_kind(path: str) -> str:
    """Return "parquet" or "csv" by the endings of a file's name; others are refused."""
    suffixes = Path(path).suffixes
    if suffixes and suffixes[-1] == ".parquet":
        return "parquet"
    if any(s in (".csv", ".tsv") for s in suffixes):
        return "csv"
    if suffixes and suffixes[-1] in (".xlsx", ".xls", ".xlsm", ".ods", ".numbers"):
        way_out = (
            "Save the sheet as CSV in UTF-8, in the program that made it or with "
            "pandas.read_excel(...).to_csv(..., index=False), and give that file."
        )
    elif suffixes and suffixes[-1] in (".duckdb", ".ddb", ".db"):
        way_out = "Say which table of the database: tables.Database(path, table), in the shell FILE::TABLE."
    else:
        way_out = "Convert it to one of these, and give that file."
    raise InvalidInput(
        f"{Path(path).name!r} is neither .parquet nor .csv (.tsv, .csv.gz, .csv.zst). Nothing was opened. "
        f"{way_out}"
    )


def rewritten(csv_file: Csv) -> str:
    """Return the REPLACE clause of a SELECT that rewrites the numbers of a CSV file with a decimal point and
    its dates in ISO format, by functions that cannot fail; empty if nothing has to be rewritten.

    A date in no known format gets a "?" before it and is then no date: queries take it as NULL, while
    `discreet check` can tell it from an empty field. Two such texts that differ, not only in blanks at their
    ends, stay different, because the column may hold the ids of units.
    """
    format, parts = csv_file.format, []
    if format.decimal != "." or format.thousands:
        for column in csv_file.numbers:
            numeric = (
                f"replace({quoted(column)}, {literal(format.thousands)}, '')"
                if format.thousands
                else quoted(column)
            )
            parts.append(f"replace({numeric}, {literal(format.decimal)}, '.') AS {quoted(column)}")
    if format.dates:
        for column in csv_file.days:
            text = f"trim({quoted(column)})"
            days = ", ".join(_day(text, form) for form in format.dates)
            parts.append(
                f"CASE WHEN {text} <> '' THEN COALESCE({days}, '?' || {text}) END AS {quoted(column)}"
            )
    return f"REPLACE ({', '.join(parts)})" if parts else ""


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
            f"{Path(path).name!r} cannot be read as text in UTF-8. Nothing was opened or charged. "
            f"Convert the file{_conversion(path)}."
        ) from None
    if spans is None:
        raise InvalidInput(_unpaired(Path(path).name))
    if end is None:
        raise InvalidInput(_mixed_ends(Path(path).name))
    if not names or "" in names or len(set(names)) < len(names):
        raise InvalidInput(_ambiguous(Path(path).name, names))
    check_names(table, [*names, ROW])
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
    """Return the end of a sentence that names the command by which a file becomes UTF-8."""
    if path.endswith((".gz", ".zst")):
        return ""
    name = shlex.quote(Path(path).name)
    return f", if it is from Windows or in Latin-1 with: iconv -f cp1252 -t utf-8 {name} > new.csv"


def _unpaired(file: str) -> str:
    """Return the message for a file whose quotes do not pair up."""
    return (
        f"the quotes of {file!r} do not pair up: an unclosed one would swallow the lines after it. Nothing "
        f'was opened or charged. Put fields that hold quotes between quotes, and write "" for each inside.'
    )


def _mixed_ends(file: str) -> str:
    """Return the message for a file whose lines end in different ways."""
    return (
        f"lines of {file!r} end in different ways: some in CR and LF, and there are CRs without LF, which "
        f"would become part of another line. Nothing was opened or charged. Write the file anew."
    )


def _ambiguous(file: str, names: Sequence[str]) -> str:
    """Return the message for a first line that does not name each column exactly once."""
    nothing = "Nothing was opened or charged."
    if not names:
        return f"the first line of {file!r} is empty: it must name the columns, each once. {nothing}"
    if "" in names:
        return (
            f"the first line of {file!r} must name the columns, each once: column {names.index('') + 1} has "
            f"no name (the index that pandas writes, or a mark behind the last column). {nothing} Give it "
            f"one there; a column that nobody will ask about needs no declaration."
        )
    name = next(name for name in names if names.count(name) > 1)
    positions = " and ".join(str(i) for i, other in enumerate(names, start=1) if other == name)
    return (
        f"the first line of {file!r} must name the columns, each once: {name!r} stands in columns "
        f"{positions}. {nothing} Give them different names there; those that nobody will ask about need no "
        f"declaration."
    )


def _absent(file: str, column: str, names: Sequence[str], mark: str) -> str:
    """Return the message for a declared column that the first line of a file does not name; it suggests
    another delimiter than `mark` where the first line seems to use one."""
    problem = f"the schema declares {column!r}, and {file!r} has no such column."
    nothing = "Nothing was opened or charged."
    other = next((m for m in (";", "\t", "|", ",") if m != mark and m in names[0]), None)
    if len(names) == 1 and other is not None:
        return (
            f"{problem} Split at {mark!r}, its first line is one name that holds {other!r}. {nothing} If "
            f"that separates its fields, write delimiter = {_toml(other)} under [format] in the schema file."
        )
    return f"{problem}{_require.did_you_mean(column, names)} It has: {', '.join(names)}. {nothing}"


def _toml(mark: str) -> str:
    return '"\\t"' if mark == "\t" else f'"{mark}"'


def parquet_schema(path: str) -> pa.Schema:
    """Return the schema of a Parquet file; its rows are not read."""
    # Imported late, here and below: it is slow to load, and only Parquet files need it.
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError):
        raise InvalidInput(
            f"{Path(path).name!r}, as Parquet, cannot be read. Nothing was opened or charged. Check the file."
        ) from None


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
        f"differs. Nothing was opened or charged. Write the files anew with one schema."
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
