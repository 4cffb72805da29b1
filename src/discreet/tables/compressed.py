"""Opens CSV files that may be compressed, by the last ending of their name: .gz, .zst, or neither.

DuckDB decompresses the same files by itself. Here they are read before that, for what it must not guess: the
names of columns, quotes and line endings.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from .._errors import InvalidInput


class _Decompressed(io.RawIOBase):
    """Reads a decompressor's bytes; one that fails on its file, by whatever error, raises InvalidInput."""

    def __init__(self, source: Any, name: str) -> None:
        self._source, self._name = source, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._source.read(len(buffer))
        except (OSError, EOFError, zlib.error):
            raise InvalidInput(
                f"{Path(self._name).name!r} is damaged, was cut off, or is not compressed as its name says. "
                "Nothing was opened or charged. Compress or copy the file again, or correct its name."
            ) from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._source.close()
        super().close()


def open_bytes(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file to read its decompressed bytes. One that is damaged or not compressed as its name says is
    refused while it is read."""
    name = os.fspath(path)
    if name.endswith(".zst"):
        return io.BufferedReader(_Decompressed(pa.CompressedInputStream(name, "zstd"), name))
    if name.endswith(".gz"):
        return io.BufferedReader(_Decompressed(gzip.open(name, "rb"), name))
    return open(name, "rb")


def open_text(path: str | os.PathLike[str], *, errors: str) -> IO[str]:
    """Open a file as text in UTF-8, with or without a byte-order mark, its line endings as they are."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", errors=errors, newline="")
