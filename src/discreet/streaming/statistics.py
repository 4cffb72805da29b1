"""Defines statistics of one tick from whose continual sums quantiles, heavy hitters and the number of
distinct units are computed.

Each is a vector of counts, a sum over rows, so that a `ContinualCounter` can release its running sum at every
tick; `quantile` and `heavy_hitters` post-process the released vector.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .. import _require
from .._public import REPLACE, ZERO_OUT, Public, Unit
from .._registry import described
from ..mechanisms import arrow_columns
from ..mechanisms.protocols import Integers, Sensitivity
from ..mechanisms.statistics import Histogram, require_rows
from ..tables import Memory, Source
from .records import names_unit

Floats = NDArray[np.float64]


@described("streaming.DyadicCounts")
@dataclass(frozen=True, slots=True, kw_only=True)
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
@dataclass(frozen=True, slots=True, kw_only=True)
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
    buckets: int = 64
    repetitions: int = 3
    characters: int = 8

    def __post_init__(self) -> None:
        for name in ("buckets", "repetitions", "characters"):
            _require.integer(**{name: getattr(self, name)}, at_least=1)

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


@described("streaming.PerUnit")
@dataclass(frozen=True, slots=True, kw_only=True)
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

    statistic: DyadicCounts | HashedBits | Histogram
    rows: int = 1

    def __post_init__(self) -> None:
        _require.integer(rows=self.rows, at_least=1)
        if not isinstance(self.statistic, DyadicCounts | HashedBits | Histogram):
            raise _require.fail(
                "statistic", type(self.statistic).__name__, "DyadicCounts, HashedBits or Histogram"
            )

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
@dataclass(frozen=True, slots=True, kw_only=True)
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
