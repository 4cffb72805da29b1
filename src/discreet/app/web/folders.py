"""Keeps the server inside its folders: every file that it opens for a dataset passes `Folders`.

The processes that open files ask here right before they do: a path that was checked when the dataset was
added may have become a link since. Paths come from requests (`path`), and from schema files that a steward
sends (`data =` of a related table).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import tables
from ..._errors import InvalidInput
from ...tables.schema import data_of
from .. import requests

# Endings of database files, which hold several tables.
DATABASES = (".duckdb", ".db", ".ddb")
# Endings of files in the folders of data that are no data.
_OTHER = (".key", ".ledger", ".toml", ".part", "-journal", "-lock", "-wal", "-shm", "-vault")


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders whose files a server may open, and that of its own state, which is never data."""

    roots: tuple[Path, ...]
    state: Path

    def inside(self, path: str | Path) -> Path:
        """Return the real path of what may not exist yet; refused if it is in no root, or in the state's.

        Links and ".." are followed before the comparison, so that none leads out. A relative path is looked
        for in each root. Wildcards are refused: an engine would expand them, perhaps to a link.
        """
        text = str(path)
        if "\0" not in text and "://" not in text:
            for root in map(os.path.realpath, self.roots):
                real = os.path.realpath(os.path.join(root, text))
                is_inside = _is_below(real, root) and not _is_below(real, os.path.realpath(self.state))
                is_missing_here = not os.path.isabs(text) and not os.path.exists(real)
                if is_inside and not is_missing_here and not set(os.path.relpath(real, root)) & set("*?["):
                    return Path(real)
        raise _refusal(path)

    def file(self, path: str | Path) -> Path:
        """Return the real path of a file inside a root. One that does not exist and one outside give the same
        error."""
        real = self.inside(path)
        if not real.is_file():
            raise _refusal(path)
        return real

    def data(self, text: str) -> str:
        """Return FILE or FILE::TABLE with the real path of the file, which must be inside a root."""
        path, separator, table = text.partition("::")
        real = str(self.file(path))
        if real.endswith(_OTHER):
            raise InvalidInput(f"{text!r} is not a data file. Nothing was opened.")
        # The names of the schema and ledger files are made from the table's name.
        leads_elsewhere = bool(set(table) & set("/\\\0")) or ".." in table
        if separator and (not real.endswith(DATABASES) or not table or leads_elsewhere):
            raise InvalidInput(
                f"{text!r} names no table of a database (FILE{DATABASES[0]}::TABLE). Nothing was opened."
            )
        return real + separator + table

    def dataset(self, facts: Mapping[str, str]) -> dict[str, Any]:
        """Return what `session.open` takes for a dataset (`store.Dataset.to_json`): its data, schema and
        ledger, and the data of the related tables that its schema names, all of them inside."""
        schema = self.file(facts["schema"])
        related = {
            name: requests.data_of(self.data(str(where.path) + "::" + where.table))
            if isinstance(where, tables.Database)
            else Path(self.data(str(where)))
            for name, where in data_of(schema).items()
        }
        return {
            "data": requests.data_of(self.data(facts["data"])),
            "schema": schema,
            "ledger": self.inside(facts["ledger"]),
            "related": related,
        }


def _is_below(path: str, folder: str) -> bool:
    """Return whether a real path is a folder's, or that of something in it."""
    return os.path.commonpath([path, folder]) == folder


def _refusal(path: str | Path) -> InvalidInput:
    return InvalidInput(
        f"{str(path)!r} is no file in a folder that this server may read. Nothing was opened. "
        f"Folders are given at its start: discreet serve --root FOLDER."
    )
