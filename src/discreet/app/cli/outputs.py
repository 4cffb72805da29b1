"""The one way in which the shell writes a file: never over a ledger, a key or data, and over nothing that
exists unless told to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import typer

from ..._errors import InvalidInput

FORCE = typer.Option(
    False, "--force", help="Overwrite an output that exists. A ledger, a key or data never is."
)

# what a file begins with, and where: ledgers and other SQLite files, keys, Parquet, DuckDB
_PRECIOUS = ((0, b"SQLite format 3\0"), (0, b"discreet ledger key"), (0, b"PAR1"), (8, b"DUCK"))
# files that belong to a ledger of the same name: a text in the place of its journal would destroy it
_COMPANIONS = (".key", "-journal", "-wal", "-shm", "-lock")


def check(
    path: Path | None, *, force: bool = False, data: Iterable[str | Path] = (), makes_folder: bool = False
) -> None:
    """Refuse an output that must not be written there; before anything is charged, run or read.

    `data` are inputs of the command.
    """
    if path is None or str(path) == "-":
        return
    nothing = "Nothing was charged, run or written."
    if not makes_folder and not path.absolute().parent.is_dir():
        raise InvalidInput(f"there is no folder {str(path.parent)!r} to write to. {nothing}")
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder. {nothing}")
    if precious(path) or any(same(path, Path(str(item).partition("::")[0])) for item in data):
        raise InvalidInput(
            f"{path} is a ledger, a key or data, or belongs to one, and is never overwritten. "
            f"{nothing} Give another name."
        )
    if path.is_symlink() and not path.exists():
        raise InvalidInput(f"{path} is a link that leads nowhere. {nothing}")
    if path.exists() and not force:
        raise InvalidInput(f"{path} exists already. {nothing} Give another name, or --force.")


def picture(path: Path | None) -> Path | None:
    """Return the name under which a picture is saved: PNG where it does not say."""
    return path if path is None or path.suffix else path.with_name(path.name + ".png")


def precious(path: Path) -> bool:
    """Whether a file is a ledger, a key or a data file by its first bytes, or belongs to a ledger by its
    name."""
    real_path = os.path.realpath(path)
    owners = [real_path.removesuffix(end) for end in _COMPANIONS if real_path.endswith(end)]
    return _starts_like_precious(real_path) or any(_starts_like_precious(owner) for owner in owners)


def write(path: Path, text: str, *, force: bool = False) -> None:
    """Write what `check` has admitted; what came to be there in the meantime is refused as well."""
    check(path, force=force)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from None


def _starts_like_precious(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError:
        return False
    return any(start[offset:].startswith(mark) for offset, mark in _PRECIOUS)


def same(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False
