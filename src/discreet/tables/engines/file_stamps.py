"""Makes stamps (times and lengths) of a table's files, by which a file that changed after the table was
opened is noticed.

A stamp only ever refuses to read a file that is no longer the one that was checked. It decides neither what
is served from the store nor what is charged. That a file was written while it is open does show:
docs/sharp-edges.md says how to replace a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import Files
from ..formats import Csv
from .duckdb_reading import Database


def paths_of(data: Any) -> tuple[Path, ...]:
    """Return the files that a table is in; none for a table in memory."""
    if isinstance(data, Files):
        return data.paths
    path = data.path if isinstance(data, Database | Csv) else data
    return (Path(path),) if isinstance(path, str | Path) and Path(path).is_file() else ()


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
