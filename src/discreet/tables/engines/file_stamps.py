"""Tells one state of a table's files from another, so that a file that changes under an open table is
noticed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ..files import Files
from ..formats import Csv
from .duckdb_reading import Database

# How many bytes at either end of a file are compared when questions are looked up.
_END = 1 << 16


def paths_of(data: Any) -> tuple[Path, ...]:
    """Return the files that a table is in; none for what is in memory."""
    if isinstance(data, Files):
        return data.paths
    path = data.path if isinstance(data, Database | Csv) else data
    return (Path(path),) if isinstance(path, str | Path) and Path(path).is_file() else ()


def content_mark(data: Any) -> bytes | None:
    """Return a hash of what tells one version of a file from another without reading all of it.

    Never shown: `fingerprint` puts it under a key.
    """
    marks = []
    for path in paths_of(data):
        state = path.stat()
        with path.open("rb") as file:
            ends = file.read(_END)
            # The end of a Parquet file says where everything is and which values it has.
            file.seek(max(0, state.st_size - _END))
            ends += file.read(_END)
        marks.append(hashlib.blake2b(f"{state.st_mtime_ns} {state.st_size} ".encode() + ends).digest())
    return b"".join(marks) or None


def file_stamp(data: Any) -> tuple[Any, ...] | None:
    """Return which file it is, when it was last written or moved, and how long it is; None for what is in
    memory."""
    # The time of the last change of anything beside that of the last write, which whoever writes can set.
    try:
        states = [path.stat() for path in paths_of(data)]
    except OSError:
        return ("gone",)
    return tuple((s.st_dev, s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for s in states) or None
