"""Makes one table of several files: a folder, a pattern or a list of Parquet or CSV files.

The list of files is fixed when the table is opened: a file that is added later is not part of it, and a
Parquet file that changes or is removed is noticed before a charge (CSV files are read as a whole when they
are opened). Files of one table have the same columns, of the same types.

Paths are tested by os.path, for which a name that is too long for the system does not exist; pathlib would
raise an error.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .._errors import InvalidInput
from .formats import Csv

# The characters that make a path a pattern (`glob`).
_WILDCARDS = "*?["


@dataclass(frozen=True)
class Files:
    """Lists the files of one table, in order: at least one, all Parquet or all CSV.

    `parts` are paths, or CSV files with their format. `named_by`: the folder, pattern or list that was given
    for them, by which `complete` looks for files that came later.
    """

    parts: tuple[Path | Csv, ...]
    named_by: Any = field(default=None, compare=False)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(part.path if isinstance(part, Csv) else part for part in self.parts)

    @property
    def kind(self) -> str:
        return kind_of_file(self.paths[0])

    def complete(self) -> bool:
        """Return whether the folder or pattern still stands for these files and no others. A folder that is
        gone counts as complete here; the engine notices its missing files (`file_stamp`)."""
        try:
            now = None if self.named_by is None else several(self.named_by)
        except InvalidInput:
            return False
        return now is None or now.paths == self.paths

    def written_as(self, format: Any, numbers: tuple[str, ...], days: tuple[str, ...]) -> Files:
        """Return the same CSV files with the format in which they are written; `numbers` and `days` are the
        columns whose text it parses (`formats.Csv`)."""
        return replace(self, parts=tuple(Csv(path, format, numbers, days) for path in self.paths))


def kind_of_file(path: Path) -> str:
    """Return "parquet", "csv" (compressed or not), or "" for anything else: a copy "1.csv.bak" that an editor
    kept, a ledger "1.csv.ledger"."""
    suffixes = path.suffixes
    if len(suffixes) > 1 and suffixes[-1] in (".gz", ".zst"):
        return "csv" if suffixes[-2] in (".csv", ".tsv") else ""
    return {".parquet": "parquet", ".csv": "csv", ".tsv": "csv"}.get(path.suffix, "")


def several(data: Any) -> Files | None:
    """Return the files that a folder, a pattern or a list of paths stands for; None for anything else, such
    as a single file, a data frame or an address."""
    if isinstance(data, Files):
        return data
    if isinstance(data, list | tuple):
        if not data or not all(isinstance(part, str | Path) for part in data):
            return None
        return _check_files([Path(part) for part in data], "the list", list(data))
    if not isinstance(data, str | Path) or "://" in str(data) or "::" in str(data):
        return None
    refuse_empty(data)
    path = Path(data)
    if os.path.isdir(path):
        data_files = [p for p in _walk(path) if os.path.isfile(p) and kind_of_file(p)]
        return _check_files(sorted(data_files), repr(str(data)), data)
    if not os.path.exists(path) and any(mark in str(data) for mark in _WILDCARDS):
        matches = [Path(match) for match in glob.glob(str(data), recursive=True)]
        return _check_files(sorted(p for p in matches if p.is_file()), repr(str(data)), data)
    return None


def refuse_empty(data: Any) -> None:
    """Refuse the empty text as the path of data: to the system it is the current folder, which nobody meant.
    To be called before a text becomes a `Path`, in which the two cannot be told apart."""
    if isinstance(data, str) and data == "":
        raise InvalidInput("the name of the file is empty. Nothing was opened.")


def _walk(folder: Path) -> list[Path]:
    """Return everything below a folder that is neither a folder nor hidden; refuse a folder with a part that
    cannot be listed, as the table would lack its rows."""

    def refuse(error: OSError) -> None:
        raise InvalidInput(
            f"the folder {str(error.filename)!r} cannot be listed: {error.strerror}. Nothing was opened."
        ) from None

    paths = []
    for current, folders, names in os.walk(folder, onerror=refuse):
        # Changed in place: `os.walk` goes on into the folders that are left.
        folders[:] = [name for name in folders if not _hidden(name)]
        paths += [Path(current, name) for name in names if not _hidden(name)]
    return paths


def stand_in(data: Any) -> Path | None:
    """Return the path from which the table and its ledger get their names where `data` is a folder or a
    pattern: the folder that holds the files; where wildcards begin in the current folder or in the name of
    a folder, the text before the first wildcard ("visits" of "visits-*.parquet").

    A pattern with one wildcard, in the name of a folder ("data/*/x.parquet"), was named after that folder
    before ("data/*"). Where a ledger lies there, it goes on: a new one would be a fresh budget.
    """
    if not isinstance(data, str | Path):
        return None
    path = Path(data)
    if not any(mark in str(data) for mark in _WILDCARDS) or os.path.exists(path):
        return path if path.name else path.resolve()
    wild_parts = [part for part in path.parts if any(mark in part for mark in _WILDCARDS)]
    first = wild_parts[0]
    in_one_folder = len(wild_parts) == 1 and first == path.name
    has_older_ledger = len(wild_parts) == 1 and os.path.exists(f"{path.parent}.ledger")
    if path.parent != Path() and path.parent.name and (in_one_folder or has_older_ledger):
        return path.parent
    prefix = first[: min(first.index(mark) for mark in _WILDCARDS if mark in first)].rstrip("-_. ")
    folder = Path(*path.parts[: path.parts.index(first)])
    return folder / prefix if prefix else folder.resolve()


def _hidden(name: str) -> bool:
    """Return whether a file or folder is one that a program keeps for itself (_SUCCESS,
    .ipynb_checkpoints)."""
    return name.startswith((".", "_"))


def _check_files(paths: Iterable[Path], what: str, named_by: Any) -> Files:
    """Return the files of a table; refuse any that is not there, is named twice, or is of another kind."""
    files = tuple(paths)
    if not files:
        raise InvalidInput(f"there is no Parquet or CSV file in {what}. Nothing was opened.")
    if gone := [path for path in files if not os.path.isfile(path)]:
        raise InvalidInput(f"there is no file {str(gone[0])!r}. Nothing was opened.")
    # Compared by device and inode: symbolic and hard links are the same file.
    stats = [path.stat() for path in files]
    if len({(stat.st_dev, stat.st_ino) for stat in stats}) < len(files):
        raise InvalidInput(
            f"a file is named twice in {what}: its rows would count twice. Nothing was opened."
        )
    kinds = {kind_of_file(path) for path in files}
    if kinds not in ({"parquet"}, {"csv"}):
        raise InvalidInput(
            f"the files of {what} are not all Parquet, nor all CSV. Nothing was opened. Give a pattern that "
            f"means one kind, such as 'visits/*.parquet'."
        )
    return Files(files, named_by)
