"""Tells whether the quotes of a CSV file pair up: an unclosed one would swallow the lines after it, so that
one row hides others.

The whole file is read once, when the steward opens it. Analysts, who do not open files, do not see the
result.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

# The quote character, and the bytes of a file that are read at once.
_QUOTE, _CHUNK = ord('"'), 1 << 24


def multiline(file: IO[bytes], mark: str) -> bool | None:
    """Return whether some quoted text spans lines; None if quotes do not pair up as in RFC 4180. `mark` is
    the delimiter of fields.

    A quote opens a text at the start of a field and closes it at its end; two in a row inside stand for one.
    So the first, third, fifth, ... quote of a file comes after a delimiter, a line end or another quote, and
    the second, fourth, ... comes before one of these.

    >>> import io
    >>> multiline(io.BytesIO(b'a,b\\n1,"x ""y"" z"\\n'), ",")
    False
    >>> print(multiline(io.BytesIO(b'a,b\\n1,"x\\n2,y\\n'), ","))
    None
    """
    ends = np.array([ord(mark), ord("\n"), ord("\r")], np.uint8)
    count, before, spans = 0, ord("\n"), False
    for chunk, after in _chunks(file):
        positions = np.flatnonzero(chunk == _QUOTE)
        bordered = np.concatenate([[before], chunk, [after]]).astype(np.uint8)
        opening = (count + np.arange(len(positions))) % 2 == 0
        # The byte at a position of `chunk` is one further in `bordered`: this is the byte before an opening
        # quote, and the byte after a closing one.
        outside = np.where(opening, bordered[positions], bordered[positions + 2])
        if not (np.isin(outside, ends) | (outside == _QUOTE)).all():
            return None
        if len(positions) or count % 2:
            lines = np.flatnonzero((chunk == ends[1]) | (chunk == ends[2]))
            spans |= bool(((count + np.searchsorted(positions, lines)) % 2).any())
        count, before = count + len(positions), int(chunk[-1])
    return None if count % 2 else spans


def _chunks(file: IO[bytes]) -> Iterator[tuple[Any, int]]:
    """Yield the bytes of a file in chunks, each with the byte that follows it (a line feed after the
    last)."""
    part = file.read(_CHUNK).removeprefix(codecs.BOM_UTF8)
    while part:
        following = file.read(_CHUNK)
        yield np.frombuffer(part, np.uint8), following[0] if following else ord("\n")
        part = following
