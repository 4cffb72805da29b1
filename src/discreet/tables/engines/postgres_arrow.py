"""Makes Arrow data of what a PostgreSQL server sends: answers value by value (`arrow_table`), columns of a
table from a stream of CSV text (`csv_batches`).

The error for a value that does not convert does not quote it (`withheld`).
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

# The Arrow type for each type that an answer can have, by PostgreSQL's fixed object identifier: bool, int8,
# int2, int4, text, float4, float8, date, numeric. A numeric in an answer is a whole number (`WideSum`).
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
# Days from 1970-01-01 to 2000-01-01, from which PostgreSQL counts.
_EPOCH = 10957
# Bytes of CSV text that make one batch, or more where a row can be longer; chosen by hand, not tuned.
_BATCH = 1 << 22
# The most bytes of a row as CSV text: PostgreSQL fails on a longer one itself (its MaxAllocSize).
_LONGEST_ROW = 1 << 30


def day_loader() -> Any:
    """Return a psycopg loader that reads a date as its number of days from 1970-01-01. psycopg's own makes
    Python dates, which fail on PostgreSQL's dates outside the years 1 to 9999."""
    psycopg = driver()

    class DayLoader(psycopg.adapt.Loader):  # type: ignore[misc, name-defined]
        format = psycopg.pq.Format.BINARY

        def load(self, data: Any) -> int:
            return int.from_bytes(bytes(data), "big", signed=True) + _EPOCH

    return DayLoader


def arrow_table(cursor: Any) -> pa.Table:
    """Return the rows of a cursor, whose dates are read by `day_loader`, as an Arrow table."""
    columns, rows = cursor.description, cursor.fetchall()
    try:
        arrays = [_column([row[i] for row in rows], column.type_code) for i, column in enumerate(columns)]
    except (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError):
        # The error is not shown, as its text could quote a value.
        raise withheld(SERVER) from None
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def _column(values: list[Any], code: int) -> pa.Array:
    type_ = _ARROW[code]
    return pa.array(values, pa.int32()).view(type_) if code == DATE else pa.array(values, type_)


class _Stream(io.RawIOBase):
    """Reads the blocks that the server sends, an iterator of bytes, as one file from its beginning to its
    end."""

    def __init__(self, copy: Any) -> None:
        # `_unread`: the end of the blocks that did not fit into the buffer of the last read.
        self._copy, self._unread = iter(copy), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        parts, size = [self._unread], len(self._unread)
        while size < len(buffer):
            block = next(self._copy, None)
            if block is None:
                break
            parts.append(bytes(block))
            size += len(parts[-1])
        data = b"".join(parts)
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        self._unread = data[count:]
        return count


def csv_batches(copy: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches of the CSV text that the server writes. Only an empty field without quotes is NULL; an
    empty text has quotes."""
    # Imported late because queries, which return aggregates, do not need it.
    import pyarrow.csv as csv

    # pyarrow fails on a row that is longer than a block. A text field is longest where every character is a
    # quote, which CSV doubles; 64 bytes are enough for a field of another type, and for quotes and commas.
    text_columns = sum(pa.types.is_string(type_) for type_ in schema.types)
    block = min(max(_BATCH, text_columns * (2 * LONGEST_TEXT + 64) + 64 * len(schema.types)), _LONGEST_ROW)
    stream = io.BufferedReader(_Stream(copy), _BATCH)
    # The text of a table without rows is empty, and pyarrow refuses it.
    if not stream.peek(1):
        return
    reader = csv.open_csv(
        stream,
        read_options=csv.ReadOptions(column_names=schema.names, block_size=block, use_threads=False),
        # In a table of one column, an empty line is a row with NULL.
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
    """Return the next batch, or None at the end. An error does not quote what could not be read."""
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None
    except pa.ArrowException:
        raise withheld(SERVER) from None
