"""Opens CSV files that may be compressed, by the last ending of their name: .gz, .zst, or neither.

DuckDB decompresses the same files by itself. Here they are read before that, for what it must not guess: the
names of columns, quotes and line endings.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from typing import IO, Any

import pyarrow as pa

from .._errors import InvalidInput

# How many decompressed bytes are read at once. A convention.
_BUFFER = 2**16


def open_bytes(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file to read its decompressed bytes. One that was cut off, is damaged or is not compressed as
    its name says is refused, here or while it is read."""
    name = os.fspath(path)
    if name.endswith(".zst"):
        return io.BufferedReader(_Decompressed(pa.CompressedInputStream(name, "zstd"), name), _BUFFER)
    if name.endswith(".gz"):
        return io.BufferedReader(_Decompressed(gzip.open(name, "rb"), name), _BUFFER)
    return open(name, "rb")


class _Decompressed(io.RawIOBase):
    """Reads a stream that decompresses, whose many errors become one refusal that names the file."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._file = stream, os.path.basename(name)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            # One with a number is the disk's, not of the decompression.
            if getattr(error, "errno", None) is not None:
                raise
            raise InvalidInput(
                f"{self._file!r} cannot be decompressed: it was cut off or damaged, or is not compressed as "
                f"its name says. Nothing was opened or charged. Copy or compress the file again."
            ) from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def open_text(path: str | os.PathLike[str], *, errors: str) -> IO[str]:
    """Open a file as text in UTF-8, with or without a byte-order mark, its line endings as they are."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", errors=errors, newline="")
