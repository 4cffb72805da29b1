"""Files as DuckDB reads them: Parquet with its schema and batches, CSV so that nothing is guessed."""

from __future__ import annotations

import csv
import gzip
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from ... import _require
from ..._errors import InvalidInput
from ..columns import check_names, engine_types
from ..engine import ROW, literal, quoted
from ..formats import Csv
from ..quotes import multiline

# Bytes of a file that are looked through at once.
_CHUNK = 1 << 24


def file_kind(path: str) -> str:
    suffixes = Path(path).suffixes
    if suffixes and suffixes[-1] == ".parquet":
        return "parquet"
    if any(s in (".csv", ".tsv") for s in suffixes):
        return "csv"
    raise InvalidInput(
        f"{Path(path).name!r} is neither .parquet nor .csv (.tsv, .csv.gz). For a DuckDB database "
        f"give tables.Database(path, table)."
    )


def rewritten(csv_file: Csv) -> str:
    """Return numbers with a decimal point and dates in ISO format, by functions that cannot fail.

    A date in no known format gets a mark before it, so that it is none: queries take it for missing, and
    `discreet check` tells it from an empty field. Such texts stay different, but for blanks at their ends, in
    case they are units.
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
        formats = ", ".join(literal(text) for text in format.dates)
        for column in csv_file.days:
            text = f"trim({quoted(column)})"
            day = f"CAST(CAST(try_strptime({text}, [{formats}]) AS DATE) AS VARCHAR)"
            parts.append(
                f"CASE WHEN {text} <> '' THEN COALESCE({day}, '?' || {text}) END AS {quoted(column)}"
            )
    return f"REPLACE ({', '.join(parts)})" if parts else ""


def csv_reader(path: str, table: str, delimiter: str | None = None, declared: Sequence[str] = ()) -> str:
    """Return how to read a CSV file so that nothing about its rows is guessed or can fail: names from the
    first line, all else text.

    Queries convert text to the declared type, and what does not convert is missing. A `declared` column that
    the first line does not name is refused here: no statement about it could be run.

    What ends a line is said as well. The engine would guess, and take CR and LF for one end: then a line with
    another CR before them hands its LF to the line after it, and in a file of CRs one LF shifts every line.
    Told that LF ends a line, it ends one at each CR, too; between CR and LF it sees an empty line, which is
    no row where there are several columns.
    """
    mark = delimiter or ("\t" if ".tsv" in Path(path).suffixes else ",")
    opener: Any = gzip.open if path.endswith(".gz") else open
    try:
        # Only the names must be text: a line that is not is left out, like others that are broken.
        with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            names = next(csv.reader(file, delimiter=mark), [])
        "".join(names).encode()
        with opener(path, "rb") as file:
            spans = multiline(file, mark)
        with opener(path, "rb") as file:
            end = "\\n" if len(names) > 1 else _line_end(file)
    except (OSError, EOFError, ValueError, csv.Error):
        raise InvalidInput(
            f"{Path(path).name!r} cannot be read as text in UTF-8. Nothing was opened or charged. "
            f"Convert the file{_conversion(path)}."
        ) from None
    if spans is None:
        raise InvalidInput(_unpaired(Path(path).name))
    if end is None:
        raise InvalidInput(_mixed_ends(Path(path).name))
    if not names or len(set(names)) < len(names):
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
    """Return what ends the lines of a file with one column, in which an empty line is a row, as the engine
    writes it: what ends the first; None where that is CR and LF, and some CR has no LF after it."""
    chunk = file.read(_CHUNK)
    first = re.match(rb'(?:"(?:[^"]|"")*"|[^"\r\n])*(\r\n)', chunk)
    while first is not None and chunk:
        following = file.read(_CHUNK)
        if re.search(rb"\r(?!\n)", chunk + following[:1]):
            return None
        chunk = following
    return "\\n" if first is None else "\\r\\n"


def _conversion(path: str) -> str:
    """Return the command that makes UTF-8 of a file from Windows or of Latin-1, in words."""
    if path.endswith(".gz"):
        return ""
    name = shlex.quote(Path(path).name)
    return f", if it is from Windows or in Latin-1 with: iconv -f cp1252 -t utf-8 {name} > new.csv"


def _unpaired(file: str) -> str:
    """Say that the quotes of a file do not pair up."""
    return (
        f"the quotes of {file!r} do not pair up: an unclosed one would swallow the lines after it. Nothing "
        f'was opened or charged. Put fields that hold quotes between quotes, and write "" for each inside.'
    )


def _mixed_ends(file: str) -> str:
    """Say that the lines of a file do not end alike."""
    return (
        f"lines of {file!r} end in different ways: some in CR and LF, and there are CRs without LF, which "
        f"would become part of another line. Nothing was opened or charged. Write the file anew."
    )


def _ambiguous(file: str, names: Sequence[str]) -> str:
    """Say that the first line of a file does not name each column once: names only, which are public."""
    nothing = "Nothing was opened or charged."
    if not names:
        return f"the first line of {file!r} is empty: it must name the columns, each once. {nothing}"
    name = next(name for name in names if names.count(name) > 1)
    places = " and ".join(str(place) for place, other in enumerate(names, start=1) if other == name)
    return (
        f"the first line of {file!r} must name the columns, each once: {name!r} stands in columns {places}. "
        f"{nothing} Give them different names there; those that nobody will ask about need no declaration."
    )


def _absent(file: str, column: str, names: Sequence[str], mark: str) -> str:
    """Say that a declared column is not in the first line of a file: names only, which are public."""
    fact = f"the schema declares {column!r}, and {file!r} has no such column."
    nothing = "Nothing was opened or charged."
    other = next((m for m in (";", "\t", "|", ",") if m != mark and m in names[0]), None)
    if len(names) == 1 and other is not None:
        return (
            f"{fact} Parted by {mark!r}, its first line is one name that holds {other!r}. {nothing} If that "
            f"parts its fields, write delimiter = {_toml(other)} under [format] in the schema file."
        )
    return f"{fact}{_require.did_you_mean(column, names)} It has: {', '.join(names)}. {nothing}"


def _toml(mark: str) -> str:
    return '"\\t"' if mark == "\t" else f'"{mark}"'


def parquet_schema(path: str) -> pa.Schema:
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError):
        raise InvalidInput(
            f"{Path(path).name!r}, as Parquet, cannot be read. Nothing was opened or charged. Check the file."
        ) from None


def check_same(first: str, schema: pa.Schema, path: str, other: pa.Schema) -> None:
    """Refuse a file with other columns, or other types, than the first: what is missing or converted in one
    file and not in another is for the steward to see."""
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
    import pyarrow.parquet as pq

    for path in paths:
        # With this binary type dictionaries come as their values; pyarrow would refuse one that has an entry
        # which is no text. Times of 96 bits are microseconds to the engine: as nanoseconds, those outside
        # 1677 to 2262 would wrap around.
        with pq.ParquetFile(path, binary_type=pa.large_binary(), coerce_int96_timestamp_unit="us") as file:
            yield from file.iter_batches(1 << 16, columns=list(columns), use_threads=False)


def write_parquet(path: str, batches: Iterator[pa.RecordBatch]) -> None:
    """Write what can be read of some batches to a Parquet file, one row group after the other."""
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
