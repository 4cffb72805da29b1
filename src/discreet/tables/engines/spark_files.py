"""Recognizes Spark's DataFrames, and lists the Parquet files that a path, a folder or a pattern means. This
module imports neither Spark nor Java."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any


def is_frame(data: Any) -> bool:
    """Return whether `data` is a Spark DataFrame. It must be tested before any test by `hasattr`, because a
    DataFrame has an attribute for each of its columns."""
    kind = type(data)
    return kind.__module__.startswith("pyspark.sql.") and kind.__name__ == "DataFrame"


def frame_name(data: Any) -> str | None:
    """Return the name of the stored table that a DataFrame reads, or its alias; None if it has neither."""
    if not is_frame(data) or not hasattr(data, "_jdf"):
        return None
    plan = data._jdf.queryExecution().analyzed()
    return str(plan.alias()) if plan.nodeName() == "SubqueryAlias" else None


def is_several(data: Any) -> bool:
    """Return whether a path is a folder, or a pattern that matches some file."""
    if not isinstance(data, str | Path) or "://" in str(data):
        return False
    # os.path, unlike Path, returns False for a name that is too long for the system, where Path raises an
    # error.
    return os.path.isdir(data) or (not os.path.exists(data) and bool(glob.glob(str(data))))


def files_of(data: str | Path) -> list[Path]:
    """Return the Parquet files that the path of a file, a folder or a pattern means, sorted by path."""
    roots = [Path(data)] if Path(data).exists() else [Path(match) for match in glob.glob(str(data))]
    return sorted(path for root in roots for path in (root.rglob("*.parquet") if root.is_dir() else [root]))


def files_stamp(data: Any) -> tuple[Any, ...] | None:
    """Return the path, inode, times of the last write and last change, and length of each file that a path on
    this machine means; None for DataFrames and addresses elsewhere ("s3://...")."""
    if not isinstance(data, str | Path) or "://" in str(data):
        return None
    states = [(path, path.stat()) for path in files_of(data)]
    return tuple((str(p), s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for p, s in states)
