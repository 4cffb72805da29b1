"""Makes stamps (times and lengths) and hashes of a table's files, by which a file that changed after the
table was opened is noticed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ..files import Files
from ..formats import Csv
from .duckdb_reading import Database

# How many bytes at the beginning and at the end of a file `content_mark` hashes; chosen by hand, not tuned.
_END = 1 << 16


def paths_of(data: Any) -> tuple[Path, ...]:
    """Return the files that a table is in; none for a table in memory."""
    if isinstance(data, Files):
        return data.paths
    path = data.path if isinstance(data, Database | Csv) else data
    return (Path(path),) if isinstance(path, str | Path) and Path(path).is_file() else ()


def content_mark(data: Any) -> bytes | None:
    """Return a hash of each file's time of writing, length, first and last bytes, one after the other; None
    for a table in memory. It tells versions of a file apart without reading all of it.

    The hash depends on private rows and is never shown: `DuckDB._fingerprint` hashes it under a secret key.
    """
    marks = []
    for path in paths_of(data):
        state = path.stat()
        with path.open("rb") as file:
            ends = file.read(_END)
            # A Parquet file ends with its metadata: the positions of all columns, and their statistics.
            file.seek(max(0, state.st_size - _END))
            ends += file.read(_END)
        marks.append(hashlib.blake2b(f"{state.st_mtime_ns} {state.st_size} ".encode() + ends).digest())
    return b"".join(marks) or None


def file_stamp(data: Any) -> tuple[Any, ...] | None:
    """Return for each file of a table its device and inode, the times of its last write and last change, and
    its length. It is None for a table in memory, and for a table whose only file is gone; ("gone",) if one of
    several files is gone."""
    # The time of the last change (ctime) is here because a program can set that of the last write (mtime).
    try:
        states = [path.stat() for path in paths_of(data)]
    except OSError:
        return ("gone",)
    return tuple((s.st_dev, s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for s in states) or None
