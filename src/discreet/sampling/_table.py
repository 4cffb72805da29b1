"""Exact inversion of a discrete law with a table of certified thresholds.

Outcome i is chosen when F(i-1) <= U < F(i), F the cumulative law in some order of the outcomes. The table holds
floor(2**64 * F(i)), each certified by interval arithmetic. Sixteen bits of U decide most draws by one look-up (the
guide); sixty-four decide all but a 2**-50 fraction; the rest recompute the law with more digits until it is decided.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._entropy import Entropy


class Weights(NamedTuple):
    """Unnormalised weights in units of 2**-bits, as intervals, and a bound of all that is not listed."""

    low: list[int]
    high: list[int]
    tail: int
    ends: bool  # whether the listed outcomes are all there are


Law = Callable[[int], Weights]  # more bits: narrower intervals, smaller tail


class Table:
    """Chooses outcome numbers 0, 1, 2, ... with probabilities proportional to the weights of `law`.

    Guarantee: the outcome number has exactly the normalised law, for every finite or infinite list of weights.
    Proof:     inversion (F(i-1) <= U < F(i)); each comparison is made with a floor of 2**bits * F(i) that its
               interval certifies, and is repeated with 64 more bits of U while U's prefix equals a floor.
    Assumes:   `law` returns true intervals; `entropy` yields independent uniform bits.
    """

    def __init__(self, law: Law) -> None:
        self._law = law
        self.thresholds = np.array(_floors(law, 64), dtype=np.uint64)

    def guide(self) -> npt.NDArray[np.int64]:
        """For each pattern of the first 16 bits the outcome number it decides, or -1 where a threshold lies inside."""
        inside = np.bincount((self.thresholds >> np.uint64(48)).astype(np.int64), minlength=1 << 16)
        return np.where(inside == 0, np.cumsum(inside), -1).astype(np.int64)

    def resolve(self, prefixes: npt.NDArray[np.uint64], entropy: Entropy) -> npt.NDArray[np.int64]:
        """Outcome numbers for uniforms whose first 64 bits are given. An undecided one may exceed the table."""
        index = np.searchsorted(self.thresholds, prefixes, side="right")
        edge = self.thresholds[np.maximum(index, 1) - 1] == prefixes
        for i in np.flatnonzero(edge).tolist():
            index[i] = self.refine(int(prefixes[i]), 64, entropy)
        return index.astype(np.int64, copy=False)

    def refine(self, prefix: int, bits: int, entropy: Entropy) -> int:
        """The outcome number for one uniform, drawing as many more bits as it takes."""
        while True:
            floors = _floors(self._law, bits)
            index = bisect_right(floors, prefix)
            if bisect_left(floors, prefix) == index:
                return index
            prefix = prefix << 64 | entropy.integer(64)
            bits += 64


def _floors(law: Law, bits: int) -> list[int]:
    """floor(2**bits * F(i)) for every listed outcome, certified.

    Proof: F(i) lies in [S_low / Z_high, S_high / Z_low]; when both ends have the same floor it is F's. Otherwise more
           digits are asked for. F(i) < 1 when outcomes follow, so its floor is at most 2**bits - 1. The last of a
           finite list has F = 1: no threshold is needed for it. An endless list is cut only where F's floor is
           2**bits - 1, above which no prefix lies.
    """
    guard = 64
    while True:
        weights = law(bits + guard)
        ones = (1 << bits) - 1
        z_low, z_high = sum(weights.low), sum(weights.high) + weights.tail
        floors: list[int] = []
        low = high = 0
        for w_low, w_high in zip(weights.low, weights.high, strict=True):
            low += w_low
            high += w_high
            floor = (low << bits) // z_high
            if floor != min((high << bits) // z_low, ones):
                break
            floors.append(floor)
        else:
            if not weights.ends and floors[-1] == ones:
                return floors
        if weights.ends and len(floors) >= len(weights.low) - 1:
            return floors[: len(weights.low) - 1]
        guard *= 2
