"""Checks and writes the output files of all commands: never over a ledger, a key or data, and over another
file that exists only with --force."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import typer

from ..._errors import InvalidInput

FORCE = typer.Option(
    False, "--force", help="Overwrite an output that exists. A ledger, a key or data never is."
)

# (offset, bytes at that offset) of files that are never overwritten: SQLite files such as ledgers, keys,
# Parquet, DuckDB
_PRECIOUS = ((0, b"SQLite format 3\0"), (0, b"discreet ledger key"), (0, b"PAR1"), (8, b"DUCK"))
# Suffixes of pictures that matplotlib draws without further packages.
_PICTURES = (".png", ".svg", ".pdf", ".jpg")
# Suffixes of files that belong to a ledger of the same name. A text in the place of its journal would
# destroy the ledger.
_COMPANIONS = (".key", "-journal", "-wal", "-shm", "-lock")


def check(
    path: Path | None, *, force: bool = False, data: Iterable[str | Path] = (), makes_folder: bool = False
) -> None:
    """Refuse a path that the command must not write to; called before anything is charged, run or read.

    `data` are the input files of the command, which are never overwritten. With `makes_folder` the command
    makes the folder of `path` itself. None and "-" (standard output) pass.
    """
    if path is None or str(path) == "-":
        return
    nothing = "Nothing was charged, run or written."
    if not makes_folder and not path.absolute().parent.is_dir():
        raise InvalidInput(f"there is no folder {str(path.parent)!r} to write to. {nothing}")
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder. {nothing}")
    if precious(path) or any(belongs_to(path, item) for item in data):
        raise InvalidInput(
            f"{path} is a ledger, a key or data, or belongs to one, and is never overwritten. "
            f"{nothing} Give another name."
        )
    if path.is_symlink() and not path.exists():
        raise InvalidInput(f"{path} is a link that leads nowhere. {nothing}")
    if path.exists() and not force:
        raise InvalidInput(f"{path} exists already. {nothing} Give another name, or --force.")
    # Found out before the charge: a folder that is to be made has no rights yet.
    target = path if path.exists() else path.absolute().parent
    if target.exists() and not os.access(target, os.W_OK):
        raise InvalidInput(f"{path} cannot be written: no permission. {nothing} Give another name.")


def check_distinct(*paths: Path | None) -> None:
    """Refuse two outputs of one command at the same path: the second would overwrite the first."""
    real_paths = [os.path.realpath(path) for path in paths if path is not None]
    for path in real_paths:
        if real_paths.count(path) > 1:
            raise InvalidInput(
                f"{path} is named for two outputs. Nothing was charged, run or written. Give them "
                f"different names."
            )


def picture(path: Path | None) -> Path | None:
    """Return the path under which a picture is saved: with .png added if it has no suffix. Refuse a suffix
    that matplotlib cannot draw, before anything is charged. What must not be overwritten is left to `check`,
    which names the reason."""
    if path is None or path.suffix.lower() in _PICTURES or precious(path):
        return path
    if path.suffix:
        raise InvalidInput(
            f"a picture is saved as {', '.join(_PICTURES)}, got {path.name!r}. Nothing was charged, run or "
            f"written."
        )
    return path.with_name(path.name + ".png")


def precious(path: Path) -> bool:
    """Return whether a file is a ledger, a key or a data file by its first bytes, belongs to a ledger by its
    name, or is data or a schema file that a ledger lies beside."""
    real_path = os.path.realpath(path)
    owners = [real_path.removesuffix(end) for end in _COMPANIONS if real_path.endswith(end)]
    # A text such as a CSV file has no first bytes of its own: its ledger tells that it is data.
    ledger = real_path.removesuffix(".schema.toml") + ".ledger"
    beside = os.path.exists(real_path) and _starts_like_precious(ledger)
    return beside or any(_starts_like_precious(owner) for owner in (real_path, *owners))


def write(path: Path, text: str, *, force: bool = False) -> None:
    """Write a text to a path that `check` has admitted before; `check` is repeated, as a file may have been
    made there in the meantime."""
    check(path, force=force)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from None


def belongs_to(path: Path, data: str | Path) -> bool:
    """Return whether a path is the data file or one of its files, where `data` is a folder or a pattern."""
    text = str(data).partition("::")[0]
    if path.exists() and (os.path.isdir(text) or not os.path.exists(text)):
        # imported late: commands without data need no engine
        from ...tables.engines.spark_files import is_several
        from ...tables.files import several as files_of

        files = files_of(text) if is_several(text) else None
        return files is not None and any(same(path, file) for file in files.paths)
    return same(path, Path(text))


def _starts_like_precious(path: str) -> bool:
    """Return whether a file begins like those that are never overwritten; a file that cannot be read does
    not."""
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError:
        return False
    return any(start[offset:].startswith(mark) for offset, mark in _PRECIOUS)


def same(first: Path, second: Path) -> bool:
    """Return whether two paths lead to the same file; no if either does not exist."""
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False
