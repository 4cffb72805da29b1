"""Counts how often each candidate occurs in each group, kept only where that is not zero.

A million groups of two thousand candidates would take 16 GB; what the engine returns is what the rows hold,
and choices are made a few groups at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# Counts that are spelled out at a time: within the caches. A median of 1,281 candidates took 0.20 ms per
# group, with 2**20 0.39 ms.
CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class SparseCounts:
    """A matrix of `shape` (groups, candidates): entry number i is `count[i]`, at `group[i]` and
    `candidate[i]`, in the order of groups."""

    group: Any
    candidate: Any
    count: Any
    shape: tuple[int, int]

    @staticmethod
    def of(group: Any, candidate: Any, count: Any, shape: tuple[int, int]) -> SparseCounts:
        order = np.argsort(group, kind="stable")
        return SparseCounts(group[order], candidate[order], count[order], shape)

    @property
    def rows_at_once(self) -> int:
        return max(1, CELLS // max(1, self.shape[1]))

    def dense(self, start: int, stop: int) -> Any:
        """Return the rows of some groups, spelled out."""
        stop = min(stop, self.shape[0])
        matrix = np.zeros((stop - start, self.shape[1]), self.count.dtype)
        here = slice(*np.searchsorted(self.group, [start, stop]))
        matrix[self.group[here] - start, self.candidate[here]] = self.count[here]
        return matrix

    def __getitem__(self, row: int) -> Any:
        return self.dense(row, row + 1)[0]

    def take(self, rows: Any) -> SparseCounts:
        """Return only some groups, in another order."""
        index_of = np.full(self.shape[0], -1, np.int64)
        index_of[rows] = np.arange(len(rows))
        group = index_of[self.group]
        kept = group >= 0
        return SparseCounts.of(
            group[kept], self.candidate[kept], self.count[kept], (len(rows), self.shape[1])
        )
