"""Several files as one table: a folder, a pattern or a list of Parquet or CSV files.

Which files these are is settled when the table is opened: one that comes later is not part of it, and a
Parquet file that changes or goes is noticed before a charge (CSV files are read as a whole when they are
opened). Files of one table have the same columns, of the same types.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .._errors import InvalidInput
from .formats import Csv

_MARKS = "*?["


@dataclass(frozen=True)
class Files:
    """The files of one table, in order; `parts` are paths, or CSV files with their format. `meant`: the
    folder, pattern or list that named them."""

    parts: tuple[Path | Csv, ...]
    meant: Any = field(default=None, compare=False)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(part.path if isinstance(part, Csv) else part for part in self.parts)

    @property
    def kind(self) -> str:
        return kind_of_file(self.paths[0])

    @property
    def version(self) -> str:
        """When the last one was written, and how many there are: changes when one is written, added or
        taken away."""
        newest = max(path.stat().st_mtime for path in self.paths)
        return f"{datetime.fromtimestamp(newest, tz=UTC):%Y-%m-%dT%H:%M:%S.%fZ} ({len(self.paths)} files)"

    def complete(self) -> bool:
        """Return whether the folder or pattern still means these files and no others."""
        try:
            now = None if self.meant is None else several(self.meant)
        except InvalidInput:
            return False
        return now is None or now.paths == self.paths

    def written_as(self, format: Any, numbers: tuple[str, ...], days: tuple[str, ...]) -> Files:
        return replace(self, parts=tuple(Csv(path, format, numbers, days) for path in self.paths))


def kind_of_file(path: Path) -> str:
    """Return "parquet", "csv" (compressed or not), or "" for anything else: a copy "1.csv.bak" that an editor
    kept, a ledger "1.csv.ledger"."""
    suffixes = path.suffixes
    if len(suffixes) > 1 and suffixes[-1] in (".gz", ".zst"):
        return "csv" if suffixes[-2] in (".csv", ".tsv") else ""
    return {".parquet": "parquet", ".csv": "csv", ".tsv": "csv"}.get(path.suffix, "")


def several(data: Any) -> Files | None:
    """Return the files that a folder, a pattern or a list of paths means; None for anything else, a single
    file among them."""
    if isinstance(data, Files):
        return data
    if isinstance(data, list | tuple):
        if not data or not all(isinstance(part, str | Path) for part in data):
            return None
        return _check_files([Path(part) for part in data], "the list", list(data))
    if not isinstance(data, str | Path) or "://" in str(data) or "::" in str(data):
        return None
    if data == "":
        # To the system it is the current folder, which nobody meant.
        raise InvalidInput("the name of the file is empty. Nothing was opened.")
    path = Path(data)
    if path.is_dir():
        try:
            inside = [p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path))]
        except OSError as error:
            raise InvalidInput(
                f"the folder {str(data)!r} cannot be listed: {error.strerror}. Nothing was opened."
            ) from None
        return _check_files(sorted(p for p in inside if kind_of_file(p)), repr(str(data)), data)
    if not path.exists() and any(mark in str(data) for mark in _MARKS):
        matches = [Path(match) for match in glob.glob(str(data), recursive=True)]
        return _check_files(sorted(p for p in matches if p.is_file()), repr(str(data)), data)
    return None


def stand_in(data: Any) -> Path | None:
    """Return the path that a folder or a pattern is named after, its table and its ledger too: the folder;
    for a pattern in the folder one is in, what it begins with ("visits" of "visits-*.parquet")."""
    if not isinstance(data, str | Path):
        return None
    path = Path(data)
    if not any(mark in str(data) for mark in _MARKS) or path.exists():
        return path if path.name else path.resolve()
    folders = [part for part in path.parts if not any(mark in part for mark in _MARKS)]
    if path.parent != Path() and path.parent.name and len(folders) == len(path.parts) - 1:
        return path.parent
    first = next(part for part in path.parts if any(mark in part for mark in _MARKS))
    begins = first[: min(first.index(mark) for mark in _MARKS if mark in first)].rstrip("-_. ")
    folder = Path(*path.parts[: path.parts.index(first)])
    return folder / begins if begins else folder.resolve()


def _hidden(path: Path) -> bool:
    """Return whether a file or its folder begins with . or _, as what programs keep for themselves does."""
    return any(part.startswith((".", "_")) for part in path.parts)


def _check_files(paths: Iterable[Path], what: str, meant: Any) -> Files:
    """Return the files of a table, which exist, differ, and are all Parquet or all CSV."""
    files = tuple(paths)
    if not files:
        raise InvalidInput(f"there is no Parquet or CSV file in {what}. Nothing was opened.")
    if gone := [path for path in files if not path.is_file()]:
        raise InvalidInput(f"there is no file {str(gone[0])!r}. Nothing was opened.")
    # By what they are on the disk: links, hard ones too, are the same file.
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
    return Files(files, meant)
