"""Defines the statistic of one tick from whose continual sum the number of distinct units is computed.

Selects the rows of a batch that count: those of the tick that is being closed, of units that may still
take part.

The record of units is a table with a keyed hash of each unit, the number of steps that it took part in, and
the last of these steps. It is as secret as the data, and the curator's vault seals it. It has no limit,
because a tick that fails when a limit is reached would tell how many units came. Its size, which only the
steward's own disk shows, tells about how many there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from .._errors import InvalidInput
from .._public import REPLACE, Bounds, Categories, Dates, Public
from .._registry import described
from ..mechanisms.protocols import Integers, Sensitivity
from ..tables import Memory, Source

# The name of the record in the vault, and the bytes of each of its blobs but the last (half of what a blob
# may have): a stored record is read by them, so they must not change; nor may the layout of an entry.
BLOB, PIECE = "units", 1 << 29
_INFINITY = float("inf")
_ENTRY = np.dtype([("unit", "S16"), ("count", "<u4"), ("last", "<u4")])


def read_record(drawer: Any) -> bytes:
    """Return the record of units from its blobs, the last of which is the first that is not full."""
    pieces = [drawer.get(BLOB)]
    while len(pieces[-1]) == PIECE:
        pieces.append(drawer.get(f"{BLOB} {len(pieces)}"))
    return b"".join(pieces)


def write_record(drawer: Any, record: bytes) -> None:
    """Put the record of units into as many blobs as it takes."""
    for start in range(0, len(record) + 1, PIECE):
        drawer.put(f"{BLOB} {start // PIECE}" if start else BLOB, record[start : start + PIECE])


def ticks_of(public: Public, clock: str) -> int:
    """Return how many ticks the clock's column has, from its declared dates, categories or bounds."""
    fact = public.fact(clock)
    if isinstance(fact, Categories):
        return len(fact.values)
    if isinstance(fact, Dates):
        return (date.fromisoformat(fact.upper) - date.fromisoformat(fact.lower)).days + 1
    if isinstance(fact, Bounds) and int(fact.lower) == fact.lower and int(fact.upper) == fact.upper:
        return int(fact.upper) - int(fact.lower) + 1
    raise InvalidInput(
        f"column {clock!r} cannot be a clock: its ticks are declared dates, categories in order, or whole "
        "numbers."
    )


def tick_value(public: Public, clock: str, step: int) -> Any:
    """Return the value of the clock's column in step 1, 2, ..."""
    fact = public.fact(clock)
    if isinstance(fact, Categories):
        return fact.values[step - 1]
    if isinstance(fact, Dates):
        return date.fromisoformat(fact.lower) + timedelta(days=step - 1)
    assert isinstance(fact, Bounds)
    return int(fact.lower) + step - 1


def columns_of(statistic: Any) -> Iterator[str]:
    """Yield the columns that a statistic, or a part of it, names as its own, declared or not."""
    if isinstance(column := getattr(statistic, "column", None), str):
        yield column
    for part in getattr(statistic, "parts", ()):
        yield from columns_of(part)


def rows_of(
    source: Source, columns: Sequence[str], *, clock: str | None, tick: Any, allowed: Any = None
) -> Memory:
    """Return the rows that count at a tick, held in memory: with a clock those of the tick, without one all.

    `allowed`, where units are a column, takes the unit of each row (None for rows of other ticks), and
    returns for each whether it counts.
    """
    batches = list(source.batches(list(columns)))
    unit = source.public.unit.column
    if batches:
        table = pa.Table.from_batches(batches)
    else:
        table = pa.table({name: pa.array([], pa.null()) for name in columns})
    keep = np.ones(table.num_rows, dtype=bool)
    if clock is not None:
        keep &= np.array([_is_tick(v, tick) for v in table.column(clock).to_pylist()], dtype=bool).reshape(-1)
    if allowed is not None and unit is not None:
        units = table.column(unit).to_pylist()
        keep &= allowed([u if k else None for u, k in zip(units, keep, strict=True)])
    return Memory(table.filter(pa.array(keep, pa.bool_())), source.public)


def _is_tick(value: Any, tick: Any) -> bool:
    """Return whether a value of the clock's column is this tick; a time counts as its day."""
    if isinstance(value, datetime):
        value = value.date()
    if isinstance(tick, date) and isinstance(value, str):
        return value[:10] == tick.isoformat()
    if isinstance(tick, str) != isinstance(value, str):
        return value is not None and str(value) == str(tick)
    return bool(value == tick)


def names_unit(unit: Any) -> bool:
    """Return whether an id names a unit: NULL, NaN and infinity do not."""
    return unit is not None and bool(unit == unit) and unit not in (_INFINITY, -_INFINITY)


def _plain_number(number: float | Decimal) -> str:
    """Return a number in plain digits, without trailing zeros: equal numbers have the same text."""
    if number == int(number):
        return str(int(number))
    return format(number if isinstance(number, Decimal) else Decimal(repr(number)), "f").rstrip("0")


class UnitRecord:
    """Counts how often each unit took part, and when last.

    Guarantee: `admit` lets no unit take part in more than `times` steps, nor in two that are less than
               `separation` apart; whether a unit is admitted depends on its own earlier rows alone.
    Proof:     an entry is looked up by a keyed 127-bit hash of the unit, and is changed by its own unit only
               (two units share a hash with probability below units² / 2^128).
    """

    def __init__(self, raw: bytes, key: bytes) -> None:
        self._key = key
        table = np.frombuffer(raw, dtype=_ENTRY)
        self._entries = {bytes(u): (int(c), int(t)) for u, c, t in table.tolist()}

    def admit(self, units: Sequence[Any], step: int, *, times: int, separation: int) -> Integers:
        """Return for each row whether it counts, and enter the units that take part now.

        Rows of no unit (NULL, NaN, infinity) do not count."""
        decided: dict[bytes, bool] = {}
        out = np.zeros(len(units), dtype=bool)
        for i, unit in enumerate(units):
            if not names_unit(unit):
                continue
            name = self._name(unit)
            if name not in decided:
                count, last = self._entries.get(name, (0, 0))
                decided[name] = count < times and (count == 0 or step - last >= separation)
                if decided[name]:
                    self._entries[name] = (count + 1, step)
            out[i] = decided[name]
        return out

    def dump(self) -> bytes:
        table = np.array([(u, c, t) for u, (c, t) in sorted(self._entries.items())], dtype=_ENTRY)
        return table.tobytes()

    def _name(self, unit: Any) -> bytes:
        """Return the hash that names a unit. Another batch may have the ids as integers, floats, decimals or
        text: 7, 7.0 and "7" are one unit, as are the decimals 7.5 and 7.50."""
        text = _plain_number(unit) if isinstance(unit, float | Decimal | bool) else str(unit)
        encoded = text.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(encoded, key=self._key, digest_size=16).digest()
        # Numpy's byte strings drop trailing zero bytes, so the last byte is made odd: 127 bits are left.
        return digest[:15] + bytes([digest[15] | 1])


@described("streaming.Presence")
class Presence:
    """Counts the units in a batch: with `participations=1` its continual sum is the number of distinct units
    so far, each counted on its first tick.

    Guarantee: one unit moves it by at most 1 (where units are rows, not at all under replace).
    Proof:     by definition. Ids that are NULL, NaN or infinite name no unit and do not count (NaN, which
               equals nothing, would otherwise count once for every row).
    """

    def sensitivity(self, public: Public) -> Sensitivity:
        return Sensitivity(linf=0 if public.neighbors is REPLACE and public.unit.column is None else 1)

    def __call__(self, source: Source) -> Integers:
        column = source.public.unit.column
        if column is None:
            return np.array(sum(batch.num_rows for batch in source.batches([])))
        units = {v for batch in source.batches([column]) for v in batch.column(0).to_pylist()}
        return np.array(sum(map(names_unit, units)))
