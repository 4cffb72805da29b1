"""Defines statistics of one tick from whose continual sums quantiles, heavy hitters and the number of
distinct units are computed.

Each is a vector of counts, a sum over rows, so that a `ContinualCounter` can release its running sum at every
tick; `quantile` and `heavy_hitters` post-process the released vector.

Selects the rows of a batch that count: those of the tick that is being closed, of units that may still
take part.

The record of units is a table with a keyed hash of each unit, the number of steps that it took part in, and
the last of these steps. It is as secret as the data, and the curator's vault seals it. It has no limit,
because a tick that fails when a limit is reached would tell how many units came. Its size, which only the
steward's own disk shows, tells about how many there are.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import REPLACE, ZERO_OUT, Bounds, Categories, Dates, Public, Unit
from .._registry import described
from .._require import at_least, instance_of
from ..mechanisms import arrow_columns
from ..mechanisms.protocols import Integers, Sensitivity
from ..mechanisms.statistics import Histogram, require_rows
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
    for part in (*getattr(statistic, "parts", ()), getattr(statistic, "statistic", None)):
        if part is not None:
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


Floats = NDArray[np.float64]


@described("streaming.DyadicCounts")
class DyadicCounts:
    """Counts the rows in all aligned intervals of 2^i bins between public `edges`, level i = 0 (single bins)
    first: quantiles are computed from these counts.

    Guarantee: one row moves one entry of each level by 1 (add_remove; twice that under replace, and under
               zero_out where a missing value is in a bin).
    Proof:     every row is in at most one bin, and a bin in one interval of each level.
    """

    column: str
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", Histogram(column=self.column, edges=self.edges).edges)

    @property
    def levels(self) -> int:
        return (len(self.edges) - 2).bit_length() + 1

    def _intervals_per_level(self) -> list[int]:
        """Return the number of intervals of each level; the last interval of a level may have fewer bins."""
        bins = len(self.edges) - 1
        return [-(-bins // (1 << level)) for level in range(self.levels)]

    def length(self, public: Public) -> int:
        return sum(self._intervals_per_level())

    def sensitivity(self, public: Public) -> Sensitivity:
        each = Histogram(column=self.column, edges=self.edges).sensitivity(public)
        return Sensitivity(linf=1, l0=self.levels * each.l0)

    def __call__(self, source: Source) -> Integers:
        bins = Histogram(column=self.column, edges=self.edges)(source)
        parts = []
        for level, intervals in enumerate(self._intervals_per_level()):
            padded = np.zeros(intervals << level, np.int64)
            padded[: len(bins)] = bins
            parts.append(padded.reshape(intervals, 1 << level).sum(axis=1))
        return np.concatenate(parts)

    def cumulative(self, released: Any) -> Floats:
        """Return the noisy number of rows in the first k bins, for k = 1, 2, ..., as a sum of at most one
        interval of each level; made non-negative and non-decreasing."""
        values, intervals = np.asarray(released, dtype=np.float64), self._intervals_per_level()
        starts = np.concatenate([[0], np.cumsum(intervals)])
        out = np.zeros(intervals[0])
        for k in range(1, intervals[0] + 1):
            covered = 0
            for level in range(self.levels - 1, -1, -1):
                if k - covered >= 1 << level:
                    out[k - 1] += values[starts[level] + (covered >> level)]
                    covered += 1 << level
        return np.maximum.accumulate(np.maximum(out, 0.0))

    def quantile(self, released: Any, *shares: float) -> list[float]:
        """Return the upper edges of the bins in which these shares of the released counts are reached."""
        for share in shares:
            _require.probability(share=share)
        counts = self.cumulative(released)
        bins = [int(np.searchsorted(counts, share * counts[-1])) for share in shares]
        return [float(self.edges[min(bin_index, len(counts) - 1) + 1]) for bin_index in bins]


@described("streaming.HashedBits")
class HashedBits:
    """Sketches the texts of a column, for heavy hitters among values that nobody declared: each row is hashed
    to one of `buckets` buckets in each of `repetitions` repetitions. A bucket counts its rows and, for each
    bit of the text's first `characters` bytes, its rows in which that bit is 1.

    Guarantee: one row moves at most repetitions (8 characters + 1) entries, each by 1 (add_remove; twice as
               many under replace and zero_out).
    Proof:     a row is in one bucket of each repetition. The hashes are fixed public functions, which do not
               depend on the data.
    """

    column: str
    buckets: Annotated[int, at_least(1)] = 64
    repetitions: Annotated[int, at_least(1)] = 3
    characters: Annotated[int, at_least(1)] = 8

    @property
    def _width(self) -> int:
        """The number of entries of a bucket."""
        return 8 * self.characters + 1

    def length(self, public: Public) -> int:
        return self.repetitions * self.buckets * self._width

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        public.fact(self.column)
        rows = 2 if public.neighbors in (REPLACE, ZERO_OUT) else 1
        return Sensitivity(linf=1, l0=min(rows * self.repetitions * self._width, self.length(public)))

    def __call__(self, source: Source) -> Integers:
        require_rows(source.public)
        sketch = np.zeros((self.repetitions, self.buckets, self._width), np.int64)
        for array in arrow_columns.each(source, self.column):
            texts, counts = np.unique(
                np.array([str(v) for v in array.to_pylist() if v is not None], dtype=object),
                return_counts=True,
            )
            for text, count in zip(texts.tolist(), counts.tolist(), strict=True):
                raw = self._bytes(text)
                bits = np.unpackbits(np.frombuffer(raw, np.uint8)).astype(np.int64)
                for r in range(self.repetitions):
                    sketch[r, self._bucket(raw, r), 0] += count
                    sketch[r, self._bucket(raw, r), 1:] += count * bits
        return sketch.ravel()

    def _bytes(self, text: str) -> bytes:
        return text.encode("utf-8", "replace")[: self.characters].ljust(self.characters, b"\0")

    def _bucket(self, raw: bytes, repetition: int) -> int:
        digest = hashlib.blake2b(raw, digest_size=8, person=b"hh%d" % repetition).digest()
        return int.from_bytes(digest, "little") % self.buckets

    def heavy_hitters(self, released: Any, *, above: float) -> dict[str, float]:
        """Return the texts (their first `characters` bytes) whose noisy count is above the threshold `above`,
        most common first.

        The majority of each bit in a bucket gives a candidate, which is dropped unless it hashes to that
        bucket; its count is the smallest over all repetitions.
        """
        sketch = np.asarray(released, dtype=np.float64).reshape(self.repetitions, self.buckets, self._width)
        candidates = set()
        for r, b in np.argwhere(sketch[:, :, 0] > above).tolist():
            bits = sketch[r, b, 1:] > sketch[r, b, 0] / 2
            raw = np.packbits(bits).tobytes()
            if self._bucket(raw, r) == b:
                candidates.add(raw)
        counts = {
            raw.rstrip(b"\0").decode("utf-8", "replace"): min(
                float(sketch[r, self._bucket(raw, r), 0]) for r in range(self.repetitions)
            )
            for raw in candidates
        }
        return {k: v for k, v in sorted(counts.items(), key=lambda kv: (-kv[1], kv[0])) if v > above}


RowStatistic = DyadicCounts | HashedBits | Histogram


@described("streaming.PerUnit")
class PerUnit:
    """Computes a statistic of rows where units are a column: at most `rows` rows of each unit count in a
    batch.

    Guarantee: one unit moves it by at most `rows` times what a row does.
    Proof:     which values of a unit count is a function of that unit's own rows as a multiset: the `rows`
               rows with the smallest public hashes of (unit, value, running number among the unit's equal
               values). The order in which the engine returns rows, which may depend on the rows of others,
               does not matter, because equal values are interchangeable. Each row moves `statistic` by at
               most its sensitivity for a row. Rows whose id names no unit do not count.
    """

    statistic: Annotated[RowStatistic, instance_of(RowStatistic, "DyadicCounts, HashedBits or Histogram")]
    rows: Annotated[int, at_least(1)] = 1

    def length(self, public: Public) -> int:
        return self.statistic.length(self._by_row(public))

    def sensitivity(self, public: Public) -> Sensitivity:
        each = self.statistic.sensitivity(self._by_row(public))
        return Sensitivity(
            linf=self.rows * each.linf,
            l0=min(self.rows * each.l0, self.length(public)),
            l1=self.rows * int(each.l1 or 0),
            l2_squared=self.rows**2 * int(each.l2_squared or 0),
        )

    def __call__(self, source: Source) -> Integers:
        unit = source.public.unit.column
        columns = list(dict.fromkeys([self.statistic.column, *([] if unit is None else [unit])]))
        batches = list(source.batches(columns))
        if not batches:
            return np.zeros(self.length(source.public), np.int64)
        table = pa.Table.from_batches(batches)
        if unit is not None:
            values = table.column(self.statistic.column).to_pylist()
            keep = np.zeros(table.num_rows, dtype=bool)
            keep[self._counted_rows(table.column(unit).to_pylist(), values)] = True
            table = table.filter(pa.array(keep))
        return self.statistic(Memory(table, self._by_row(source.public)))

    def _counted_rows(self, units: list[Any], values: list[Any]) -> list[int]:
        """Return the positions of the rows that count: at most `rows` of each unit."""
        rows_by_unit: dict[Any, list[int]] = {}
        for i, unit in enumerate(units):
            if names_unit(unit):
                rows_by_unit.setdefault(unit, []).append(i)
        return [
            i
            for unit, positions in rows_by_unit.items()
            for i in (
                positions if len(positions) <= self.rows else self._choose_rows(unit, positions, values)
            )
        ]

    def _choose_rows(self, unit: Any, positions: list[int], values: list[Any]) -> list[int]:
        """Return the `rows` positions with the smallest hashes, of one unit's positions."""
        # -0.0 and 0.0 are the same unit, whichever of them comes first, and so must have the same hash.
        name = unit + 0.0 if isinstance(unit, float) else unit
        equals: Counter[str] = Counter()
        hashes = []
        for i in positions:
            value = repr(values[i])
            equals[value] += 1
            text = repr((name, value, equals[value])).encode("utf-8", "surrogatepass")
            hashes.append((hashlib.blake2b(text, digest_size=16, person=b"rows of a unit").digest(), i))
        return [i for _, i in heapq.nsmallest(self.rows, hashes)]

    def _by_row(self, public: Public) -> Public:
        """Return `public` with the statistic's column alone, and with rows as units."""
        column = self.statistic.column
        return replace(public, schema=((column, public.fact(column)),), unit=Unit())


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
