"""Many decisions of online false discovery rate control at once: a convolution whose input follows from its
own output.

The level of a test is a sum, over earlier discoveries, of spending terms at the distance since: a convolution
of discoveries with the spending sequence. What finished blocks of discoveries add to later blocks goes by
fast Fourier transform in blocks of doubling length (semi-relaxed multiplication, van der Hoeven 2002: n log²
n in all); within a block each discovery is added by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from .spending import Levels

# Tests that are decided one by one before what was earned is convolved at once: it sets time alone. No
# measurement on record.
BLOCK = 256


class _EarnedLevels:
    """Sums shifted spending sequences; `sums` is complete, for the discoveries so far, before `end`."""

    def __init__(self, gamma: Levels, first: float) -> None:
        self._gamma = gamma
        self._spectra: dict[int, NDArray[np.complex128]] = {}
        self._paid = np.zeros(len(gamma) + BLOCK)
        self.sums = np.zeros(len(gamma) + BLOCK)
        self.sums[: len(gamma)] = first * gamma
        self.end = BLOCK

    def pay(self, index: int, amount: float) -> None:
        """Record a discovery: from summand `index` on, `amount` of the sequence is earned.

        Terms after the block come when it closes.
        """
        self._paid[index] += amount
        end = min(self.end, index + len(self._gamma))
        self.sums[index:end] += amount * self._gamma[: end - index]

    def close(self) -> None:
        """Take up the next block: what the last 2^k blocks add to the next 2^k, for the largest k that
        fits."""
        blocks = self.end // BLOCK
        size = (blocks & -blocks) * BLOCK
        block = self._paid[self.end - size : self.end]
        if np.any(block):
            length = min(size, len(self.sums) - self.end)
            self.sums[self.end : self.end + length] += self._convolve(block, size)[:length]
        self.end += BLOCK

    def _convolve(self, paid: Levels, size: int) -> Levels:
        if size not in self._spectra:
            self._spectra[size] = fft.rfft(self._gamma[: 2 * size], 2 * size)
        levels: Levels = fft.irfft(fft.rfft(paid, 2 * size) * self._spectra[size], 2 * size)[size:]
        # rounding of the transform
        return np.maximum(levels, 0)


def decide(
    values: Levels,
    steps: NDArray[np.bool_] | None,
    gamma: Levels,
    finish: Callable[[Any], Any],
    wealth_and_payout: tuple[float, float],
) -> tuple[Levels, NDArray[np.bool_]]:
    """Return the levels and rejections of a stream of p-values.

    `steps` says which tests use up a term of the spending sequence `gamma`; None: all that are not
    rejected. `finish` turns what was earned into the level. `wealth_and_payout` is the initial wealth, and
    what a discovery earns.
    """
    wealth, alpha = wealth_and_payout
    earned = _EarnedLevels(gamma, wealth)
    levels, rejected = np.empty(len(values)), np.zeros(len(values), dtype=np.bool_)
    index = used = 0
    # the first discovery earns less by the wealth that was there at the start
    payout = alpha - wealth
    while index < len(values):
        if used >= earned.end:
            earned.close()
            continue
        end = min(len(values), index + BLOCK)
        steps_before = (
            np.arange(end - index + 1)
            if steps is None
            else np.concatenate([[0], np.cumsum(steps[index:end])])
        )
        inside = int(np.searchsorted(steps_before[:-1], earned.end - used))
        positions = used + steps_before[:inside]
        thresholds = finish(earned.sums[positions])
        levels[index : index + inside] = thresholds
        hits = values[index : index + inside] <= thresholds
        first = int(hits.argmax())
        if not hits[first]:
            index, used = index + inside, used + int(steps_before[inside])
            continue
        rejected[index + first] = True
        used += int(steps_before[first] if steps is None else steps_before[first + 1])
        index += first + 1
        while used >= earned.end:
            earned.close()
        earned.pay(used, payout)
        payout = alpha
    return levels, rejected
