"""Makes many decisions of online false discovery rate control in one call: a convolution whose input depends
on its own earlier output.

The spending sequence gamma has a running position, `used`: the number of its terms that tests have used up.
The level of a test is a sum over earlier discoveries of amount * gamma[used - position of the discovery]: a
convolution of the amounts that discoveries earn with gamma. Positions are cut into blocks. What the
discoveries of finished blocks add to later blocks is computed by fast Fourier transform, in blocks of
doubling length (semi-relaxed multiplication, van der Hoeven 2002: time n log² n in total); what a discovery
adds within its own block is added at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from .spending import Levels

# Positions per block. It changes the time, not the result. Chosen by hand, not tuned.
BLOCK = 256


class _EarnedLevels:
    """Sums spending sequences that start at the positions of discoveries.

    Invariant: `sums[:end]` holds the complete sums for all discoveries so far; positions from `end` on lack
    what the discoveries of the last blocks add. The initial `wealth` is spent from position 0 on.
    """

    def __init__(self, gamma: Levels, wealth: float) -> None:
        self._gamma = gamma
        self._spectra: dict[int, NDArray[np.complex128]] = {}
        self._paid = np.zeros(len(gamma) + BLOCK)
        self.sums = np.zeros(len(gamma) + BLOCK)
        self.sums[: len(gamma)] = wealth * gamma
        self.end = BLOCK

    def pay(self, index: int, amount: float) -> None:
        """Record a discovery: from position `index` on, it adds `amount` times the spending sequence.

        It is added up to the end of the current block only; later blocks get theirs in `close`.
        """
        self._paid[index] += amount
        end = min(self.end, index + len(self._gamma))
        self.sums[index:end] += amount * self._gamma[: end - index]

    def close(self) -> None:
        """End the current block and begin the next: add what the last 2^k blocks contribute to the next 2^k,
        for the largest k such that 2^k divides the number of finished blocks."""
        blocks = self.end // BLOCK
        size = (blocks & -blocks) * BLOCK
        paid = self._paid[self.end - size : self.end]
        if np.any(paid):
            length = min(size, len(self.sums) - self.end)
            self.sums[self.end : self.end + length] += self._convolve(paid, size)[:length]
        self.end += BLOCK

    def _convolve(self, paid: Levels, size: int) -> Levels:
        """Return what `size` positions of paid amounts add to the `size` positions after them."""
        if size not in self._spectra:
            self._spectra[size] = fft.rfft(self._gamma[: 2 * size], 2 * size)
        levels: Levels = fft.irfft(fft.rfft(paid, 2 * size) * self._spectra[size], 2 * size)[size:]
        # the transform may round a zero to slightly below zero
        return np.maximum(levels, 0)


def decide(
    values: Levels,
    uses_term: NDArray[np.bool_] | None,
    gamma: Levels,
    level_from: Callable[[Any], Any],
    *,
    wealth: float,
    alpha: float,
) -> tuple[Levels, NDArray[np.bool_]]:
    """Return the levels and rejections for a stream of p-values `values`.

    `uses_term` says of each test whether it uses up a term of the spending sequence `gamma`; None: every test
    does that is not rejected. `level_from` turns the sums of what was earned into levels. `wealth` is the
    initial wealth; each discovery earns `alpha`, the first one alpha - wealth.
    """
    earned = _EarnedLevels(gamma, wealth)
    levels, rejected = np.empty(len(values)), np.zeros(len(values), dtype=np.bool_)
    index = used = 0
    payout = alpha - wealth
    while index < len(values):
        if used >= earned.end:
            earned.close()
            continue
        end = min(len(values), index + BLOCK)
        # terms that the next tests will have used up before each of them, as long as none is rejected
        used_before = (
            np.arange(end - index + 1)
            if uses_term is None
            else np.concatenate([[0], np.cumsum(uses_term[index:end])])
        )
        # how many of these tests have their position in the current block, where the sums are complete
        in_block = int(np.searchsorted(used_before[:-1], earned.end - used))
        positions = used + used_before[:in_block]
        thresholds = level_from(earned.sums[positions])
        levels[index : index + in_block] = thresholds
        hits = values[index : index + in_block] <= thresholds
        first = int(hits.argmax())
        if not hits[first]:
            index, used = index + in_block, used + int(used_before[in_block])
            continue
        # the first rejection changes all later levels: go on behind it
        rejected[index + first] = True
        used += int(used_before[first] if uses_term is None else used_before[first + 1])
        index += first + 1
        while used >= earned.end:
            earned.close()
        earned.pay(used, payout)
        payout = alpha
    return levels, rejected
