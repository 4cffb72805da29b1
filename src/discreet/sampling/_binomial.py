"""Draws exactly from binomial distributions: trials are split into blocks, whose numbers of successes are
drawn from certified tables and added up.

The draws are exact because `_weights` rounds outwards; its rounding must not change. Sizes of blocks and
chunks change the speed and what a seed gives, not the distribution.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _require
from ._entropy import Entropy, draws
from ._table import Table, WeightIntervals, Weights

# Trials per table. A table of the smaller block has some ten thousand outcomes that are not negligible; the
# larger block is used for more than 2**26 trials, so that fewer blocks are drawn.
_BLOCKS = (1 << 20, 1 << 26)
# More trials are refused: their blocks, which are drawn one after the other, would take too long.
_MAX_TRIALS = 1 << 40
# Outcomes of a smaller weight, in units of the last bit of a weight, are not listed one by one but bounded
# together.
_NEGLIGIBLE = 1 << 8
# Outcomes drawn at once: few calls, and arrays that stay in the processor's caches.
_CHUNK = 1 << 13


def binomial(trials: int, p: Any, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    """Draw `n` times the number of successes in `trials` independent trials of probability exactly `p`.

    Guarantee: independent, with exactly the distribution Binomial(trials, p), for every rational p in [0, 1].
    Proof:     a sum of independent binomials with the same p over blocks of trials; each block by a certified
               table.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> binomial(5, 1, 2, SeededEntropy(0)).tolist()
    [5, 5]
    """
    _require.integer(trials=trials, at_least=0)
    exact = _require.exact(p, "p")
    _require.probability(p=exact)
    trials, n = int(trials), draws(n, entropy)
    if trials > _MAX_TRIALS:
        raise _require.fail("trials", trials, f"at most {_MAX_TRIALS}")
    if exact in (0, 1) or trials == 0:
        return np.full(n, trials * int(exact), np.int64)
    block_size = _BLOCKS[1] if trials > _BLOCKS[1] else _BLOCKS[0]
    blocks, rest = divmod(trials, block_size)
    successes = np.zeros(n, np.int64)
    for block_trials, repeats in ((block_size, blocks), (rest, 1 if rest else 0)):
        for _ in range(repeats):
            _block(block_trials, exact).add_to(successes, entropy)
    return successes


class _Block:
    """Draws the successes in one block by inversion, in the order mode, mode + 1, mode - 1, ...: the first
    `paired` distances from the mode have an outcome on either side, larger ones on one `side` only."""

    def __init__(self, trials: int, p: Fraction) -> None:
        mode = int((trials + 1) * p)
        self.mode = min(mode, trials)
        self.table = Table(_weights(trials, p, self.mode))
        upper, lower = trials - self.mode, self.mode
        self.paired = min(upper, lower)
        self.side = 1 if upper > lower else -1

    def _outcome(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of successes at an index of the table."""
        distance = (index + 1) >> 1
        offset = np.where(index & 1 == 1, distance, -distance)
        beyond = index > 2 * self.paired
        return self.mode + np.where(beyond, self.side * (index - self.paired), offset)

    def add_to(self, successes: npt.NDArray[np.int64], entropy: Entropy) -> None:
        """Add one draw to each number of successes, in place."""
        for start in range(0, len(successes), _CHUNK):
            part = successes[start : start + _CHUNK]
            words = entropy.words(len(part))
            part += self._outcome(self.table.resolve(words, entropy))


_block = lru_cache(maxsize=16)(_Block)


def _weights(trials: int, p: Fraction, mode: int) -> WeightIntervals:
    """Return the weights of all outcomes relative to that of the mode, in the order of `_Block`: alternately
    above and below the mode, then on the longer side alone.

    Proof: with f(k) the probability of k successes, f(k+1) / f(k) = (trials - k) p / ((k + 1) (1 - p)), a
           rational at most 1 from the mode upwards, and likewise downwards; products are rounded outwards. On
           each side no weight exceeds the one before it, so that all weights that a side does not list are
           together at most the first of them times their number, and each alone is at most _NEGLIGIBLE.
    """
    # p / (1 - p) = a / b
    a, b = p.numerator, p.denominator - p.numerator

    def side(bits: int, up: bool) -> tuple[list[tuple[int, int]], int, bool]:
        """Return the listed weights above (`up`) or below the mode as (low, high), a bound on the sum of the
        others, and whether all are listed."""
        low = high = 1 << bits
        listed: list[tuple[int, int]] = []
        k = mode
        while k != (trials if up else 0):
            numerator, denominator = ((trials - k) * a, (k + 1) * b) if up else (k * b, (trials - k + 1) * a)
            low, high = low * numerator // denominator, -(-high * numerator // denominator)
            k += 1 if up else -1
            remaining = (trials - k) if up else k
            if high < _NEGLIGIBLE:
                return listed, high * (remaining + 1), False
            listed.append((low, high))
        return listed, 0, True

    def weights(bits: int) -> Weights:
        upper, tail_up, done_up = side(bits, True)
        lower, tail_down, done_down = side(bits, False)
        one = 1 << bits
        order = [(one, one)]
        paired = min(trials - mode, mode)
        longer = upper if trials - mode > mode else lower
        for j in range(max(len(upper), len(lower))):
            if j < paired:
                order.append(upper[j] if j < len(upper) else (0, _NEGLIGIBLE))
                order.append(lower[j] if j < len(lower) else (0, _NEGLIGIBLE))
            elif j < len(longer):
                order.append(longer[j])
        return Weights(
            [w[0] for w in order], [w[1] for w in order], tail_up + tail_down, done_up and done_down
        )

    return weights
