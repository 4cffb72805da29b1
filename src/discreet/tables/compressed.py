"""Opens CSV files that may be compressed, by the last ending of their name: .gz, .zst, or neither.

DuckDB decompresses the same files by itself. Here they are read before that, for what it must not guess: the
names of columns, quotes and line endings.
"""

from __future__ import annotations

import gzip
import io
import os
from typing import IO

import pyarrow as pa


def open_bytes(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file to read its decompressed bytes. One that was cut off or is not compressed as its name says
    raises OSError or EOFError, here or while it is read."""
    name = os.fspath(path)
    if name.endswith(".zst"):
        return io.BufferedReader(pa.CompressedInputStream(name, "zstd"))
    return gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb")  # type: ignore[return-value]


def open_text(path: str | os.PathLike[str], *, errors: str) -> IO[str]:
    """Open a file as text in UTF-8, with or without a byte-order mark, its line endings as they are."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", errors=errors, newline="")
