"""Drafts schema files from the names and types of columns; and reads the version of a data file, which is the
time when it was last written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .._errors import InvalidInput
from .._public import Public
from .draft_text import draft_text
from .engines.duckdb import DuckDB
from .engines.duckdb_files import file_kind
from .engines.duckdb_reading import Database
from .files import refuse_empty
from .formats import Csv, Format
from .look import delimiter_of, look


def draft(
    file: str | Path,
    *,
    table: str | None = None,
    related: Sequence[str] = (),
    delimiter: str | None = None,
    looking: bool = False,
) -> str:
    """Return a schema file for a table, with questions to the steward. It is made from the names and types of
    columns, and depends on no value unless `looking` is set.

    `related`: files, or "database.duckdb::table", of tables that queries may join. `delimiter`: the character
    between the fields of a CSV file; by default the one between the names in its first line. `looking`: take
    the kinds of columns and the format of a CSV file from its values, which is not private and is marked in
    the draft.
    """
    refuse_empty(file)
    csv = any(suffix in (".csv", ".tsv") for suffix in Path(file).suffixes)
    if looking and not csv:
        raise InvalidInput(
            f"{Path(file).name!r} has types already: there is nothing to look for. Nothing was "
            f"drafted. Leave --look out."
        )
    if csv and delimiter is None:
        delimiter = delimiter_of(Path(file))
    name, kinds = _columns_of_file(Path(file), table, delimiter)
    file_format = Format(delimiter=delimiter) if csv else None
    if looking:
        observed_kinds, file_format = look(Path(file), delimiter)
        kinds = {column: observed_kinds.get(column, "any") for column in kinds}
    others = {}
    for data in related:
        path, _, table_in_file = data.partition("::")
        refuse_empty(path)
        other, other_kinds = _columns_of_file(Path(path), table_in_file or None)
        others[other] = (data, other_kinds)
    return draft_text(name, kinds, others, written=file_format, looked=looking)


def _columns_of_file(
    path: Path, table: str | None, delimiter: str | None = None
) -> tuple[str, dict[str, str]]:
    """Return the name of a table and the kind of each column, "any" for the columns of a CSV file."""
    name = table or path.name.split(".")[0]
    data: Any = Database(path, name) if path.suffix in (".duckdb", ".db", ".ddb") else path
    source = data if delimiter is None else Csv(data, Format(delimiter=delimiter))
    kinds = dict(DuckDB({name: source}, Public(table=name)).kinds[name])
    untyped = isinstance(data, Path) and file_kind(str(data)) == "csv"
    return name, dict.fromkeys(kinds, "any") if untyped else kinds


def version_of(file: str | Path) -> str:
    """Return the time when a file was last written, for `dp.open(..., version=version_of(file))`: right where
    that time is public, because the file is written on a schedule and not when somebody comes.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file: version_of(file.name)[:2]
    '20'
    """
    return datetime.fromtimestamp(Path(file).stat().st_mtime, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
