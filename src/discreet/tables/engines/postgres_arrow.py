"""From what a PostgreSQL server sends to Arrow: small results by value, whole columns as a stream of text.

What does not fit is withheld: the text of an error could quote a value.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ..columns import LONGEST_TEXT
from .postgres_connection import driver
from .refusals import withheld

SERVER = "the PostgreSQL server"

_ARROW = {
    16: pa.bool_(),
    20: pa.int64(),
    21: pa.int64(),
    23: pa.int64(),
    25: pa.string(),
    700: pa.float64(),
    701: pa.float64(),
    1082: pa.date32(),
    1700: pa.decimal128(38, 0),
}
# The object identifier of the type date.
DATE = 1082
# Days from 1970 to PostgreSQL's first day, 2000-01-01.
_EPOCH = 10957
# Bytes of text that are read before the next batch is made, or more for long rows.
_BATCH = 1 << 22


def day_loader() -> Any:
    """Return a loader of days as numbers from 1970, since PostgreSQL knows days that Python does not."""
    psycopg = driver()

    class DayLoader(psycopg.adapt.Loader):  # type: ignore[misc, name-defined]
        format = psycopg.pq.Format.BINARY

        def load(self, data: Any) -> int:
            return int.from_bytes(bytes(data), "big", signed=True) + _EPOCH

    return DayLoader


def arrow_table(cursor: Any) -> pa.Table:
    columns, rows = cursor.description, cursor.fetchall()
    try:
        arrays = [_column([row[i] for row in rows], column.type_code) for i, column in enumerate(columns)]
    except (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError):
        # Its text could quote a value.
        raise withheld(SERVER) from None
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def _column(values: list[Any], code: int) -> pa.Array:
    type_ = _ARROW[code]
    return pa.array(values, pa.int32()).view(type_) if code == DATE else pa.array(values, type_)


class _Stream(io.RawIOBase):
    """What the server sends, as a file that can be read once."""

    def __init__(self, copy: Any) -> None:
        self._copy, self._rest = iter(copy), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        parts, size = [self._rest], len(self._rest)
        while size < len(buffer):
            block = next(self._copy, None)
            if block is None:
                break
            parts.append(bytes(block))
            size += len(parts[-1])
        data = b"".join(parts)
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        self._rest = data[count:]
        return count


def csv_batches(copy: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches of the CSV text that the server writes row by row; only an empty field without quotes is
    NULL."""
    import pyarrow.csv as csv

    # No row is longer than a block: a text is, with every character of it a quote that is doubled, twice as
    # long as the longest; 64 bytes are enough for anything else.
    texts = sum(pa.types.is_string(type_) for type_ in schema.types)
    block = max(_BATCH, texts * (2 * LONGEST_TEXT + 64) + 64 * len(schema.types))
    stream = io.BufferedReader(_Stream(copy), _BATCH)
    if not stream.peek(1):
        return
    reader = csv.open_csv(
        stream,
        read_options=csv.ReadOptions(column_names=schema.names, block_size=block, use_threads=False),
        # one column that is missing is an empty line
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    while (batch := _next(reader)) is not None:
        yield batch


def _next(reader: Any) -> pa.RecordBatch | None:
    """Return the next batch, or None at the end; what cannot be read is not quoted."""
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None
    except pa.ArrowException:
        raise withheld(SERVER) from None
