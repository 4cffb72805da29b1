"""Draws from a discrete distribution by exact inversion, with a table of certified thresholds.

U is a uniform number on [0, 1), a prefix its first bits as an integer. Outcome i is chosen when F(i-1) <= U <
F(i), with F the cumulative distribution in some order of the outcomes. The table holds floor(2**64 * F(i)),
certified by interval arithmetic. Sixteen bits of U decide most draws by one look-up (the guide); sixty-four
decide all but a 2**-50 fraction; for the remaining draws the thresholds are computed again with more digits,
until they are decided.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._entropy import Entropy

# The largest 64-bit prefix: copies of it fill the table up to one less than a power of two, for bisection.
_LAST = (1 << 64) - 1


class Weights(NamedTuple):
    """Holds unnormalised weights in units of 2**-bits, as intervals, and a bound on the sum of all weights
    that are not listed."""

    low: list[int]
    high: list[int]
    tail: int
    # whether the listed outcomes are all there are
    ends: bool


# From a number of bits to weights of this accuracy: more bits make narrower intervals and a smaller tail.
WeightIntervals = Callable[[int], Weights]


class Table:
    """Chooses outcome numbers 0, 1, 2, ... with probabilities proportional to the weights of
    `weight_intervals`.

    Guarantee: the outcome number has exactly the normalised distribution, for every finite or infinite list
               of weights.
    Proof:     inversion: the number is how many F(i) are at most U. With U in [p, p + 1) / 2**bits and
               certified low <= floor(2**bits * F(i)) <= high: p < low means U < F(i), p > high means U >=
               F(i). Between, 64 more bits of U are drawn and all is compared again.
    Assumes:   `weight_intervals` returns true intervals; `entropy` yields independent uniform bits.
    """

    def __init__(self, weight_intervals: WeightIntervals) -> None:
        self._weight_intervals = weight_intervals
        lows, highs = _thresholds(weight_intervals, 64)
        self.lows, self.highs = np.array(lows, dtype=np.uint64), np.array(highs, dtype=np.uint64)
        steps = [1 << k for k in reversed(range(len(lows).bit_length()))]
        filled = np.array(lows + [_LAST] * (sum(steps) - len(lows)), dtype=np.uint64)
        self._steps = [(np.int64(step), filled[step - 1 :]) for step in steps]
        # by outcome number: the high of the last threshold whose low was counted
        self._last = np.array([0, *highs], dtype=np.uint64)

    def guide(self) -> npt.NDArray[np.int64]:
        """Return, for each pattern of the first 16 bits, the outcome number it decides, or -1 where a
        threshold may lie inside."""
        low_bins = np.bincount((self.lows >> np.uint64(48)).astype(np.int64), minlength=1 << 16)
        high_bins = np.bincount((self.highs >> np.uint64(48)).astype(np.int64), minlength=1 << 16)
        return np.where(low_bins + high_bins == 0, np.cumsum(low_bins), -1).astype(np.int64)

    def resolve(self, prefixes: npt.NDArray[np.uint64], entropy: Entropy) -> npt.NDArray[np.int64]:
        """Return the outcome numbers for uniforms of which `prefixes` are the first 64 bits. A number that
        takes more bits (`_refine`) may lie beyond the outcomes of the table.

        Bisection takes the same number of steps for each, so that the time does not depend on the outcomes.
        Proof: the number is how many lows are at most the prefix, if the highs of these are all below the
               prefix; highs ascend, so that the last of them decides.
        """
        outcomes = np.zeros(len(prefixes), np.int64)
        for step, thresholds in self._steps:
            outcomes += (thresholds.take(outcomes, mode="clip") <= prefixes) * step
        np.minimum(outcomes, len(self.lows), out=outcomes)
        for i in np.flatnonzero((self._last.take(outcomes) >= prefixes) & (outcomes > 0)).tolist():
            outcomes[i] = self._refine(int(prefixes[i]), 64, entropy)
        return outcomes

    def _refine(self, prefix: int, bits: int, entropy: Entropy) -> int:
        """Return the outcome number for one uniform, drawing as many more bits as it takes."""
        while True:
            prefix = prefix << 64 | entropy.integer(64)
            bits += 64
            lows, highs = _thresholds(self._weight_intervals, bits)
            upper, lower = bisect_right(lows, prefix), bisect_left(highs, prefix)
            if upper == lower:
                return upper


def _thresholds(weight_intervals: WeightIntervals, bits: int) -> tuple[list[int], list[int]]:
    """Return (lows, highs) around floor(2**bits * F(i)) for the listed outcomes, no more than one apart.

    Proof: with S the cumulated weight up to i and Z the sum of all weights, F(i) lies in [S_low / Z_high,
           S_high / Z_low], which narrows with more digits. F(i) < 1 when outcomes follow, so its floor is at
           most 2**bits - 1. The last outcome of a finite list has F = 1: no uniform reaches it, and it needs
           no threshold. An infinite list is cut only where the floor of 2**bits * F is 2**bits - 1, the
           largest prefix.
    """
    guard, ones = 64, (1 << bits) - 1
    while True:
        weights = weight_intervals(bits + guard)
        z_low, z_high = sum(weights.low), sum(weights.high) + weights.tail
        lows = [(s << bits) // z_high for s in accumulate(weights.low)]
        highs = [min((s << bits) // z_low, ones) for s in accumulate(weights.high)]
        if weights.ends:
            del lows[-1], highs[-1]
        complete = weights.ends or lows[-1] == ones
        if complete and all(high - low <= 1 for low, high in zip(lows, highs, strict=True)):
            return lows, highs
        guard *= 2
