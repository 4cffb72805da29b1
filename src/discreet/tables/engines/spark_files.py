"""Says what can be said of a table for Spark without Spark: whether a value is one of its DataFrames, and
which files of this machine a folder or a pattern means. Loads neither Spark nor Java."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any


def is_frame(data: Any) -> bool:
    """Return whether this is a Spark DataFrame; asked before anything else, as a DataFrame has attributes of
    the names of its columns."""
    kind = type(data)
    return kind.__module__.startswith("pyspark.sql.") and kind.__name__ == "DataFrame"


def frame_name(data: Any) -> str | None:
    """Return the name of the stored table that a DataFrame is of, where it has one."""
    if not is_frame(data) or not hasattr(data, "_jdf"):
        return None
    plan = data._jdf.queryExecution().analyzed()
    return str(plan.alias()) if plan.nodeName() == "SubqueryAlias" else None


def is_several(data: Any) -> bool:
    """Return whether a path is a folder, or a pattern that some file fits."""
    if not isinstance(data, str | Path) or "://" in str(data):
        return False
    # os.path, unlike Path, takes a name that is too long for the system as one that is not there.
    return os.path.isdir(data) or (not os.path.exists(data) and bool(glob.glob(str(data))))


def files_of(data: str | Path) -> list[Path]:
    """Return the Parquet files that a file, a folder or a pattern means, in order."""
    roots = [Path(data)] if Path(data).exists() else [Path(match) for match in glob.glob(str(data))]
    return sorted(path for root in roots for path in (root.rglob("*.parquet") if root.is_dir() else [root]))


def files_stamp(data: Any) -> tuple[Any, ...] | None:
    """Return which files of this machine a path means, when they were last written, and how long they are;
    None for what is elsewhere."""
    if not isinstance(data, str | Path) or "://" in str(data):
        return None
    states = [(path, path.stat()) for path in files_of(data)]
    return tuple((str(p), s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for p, s in states)
