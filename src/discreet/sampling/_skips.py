"""Draws many sparse Poisson subsets at once: instead of tossing a coin for each index, it draws the gaps
between the indices that are kept. U is a uniform number on [0, 1), a prefix its first bits as an integer."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _require
from . import _bounds
from ._bernoulli import _probability, poisson_subset
from ._entropy import Entropy, draws

Indices = npt.NDArray[np.int64]

# Gaps are drawn at rates between these two. Above, a coin for each index is as cheap; below, gaps are so long
# that floats do not decide them.
_SPARSE = Fraction(1, 1 << 40), Fraction(1, 16)
# The largest number of gaps drawn at once. Changes speed and what a seed gives, not the distribution.
_GAPS = 1 << 14
# The largest relative error that is assumed of numpy's log (2**-48, see docs/sampling.md) and of the few
# operations around it.
_FLOAT_ERROR = 2.0**-44


def poisson_subsets(size: int, rate: Any, n: int, entropy: Entropy) -> list[Indices]:
    """Draw `n` independent subsets of the indices below `size`, each index kept by a coin of probability
    exactly `rate`; sorted.

    Guarantee: n times `poisson_subset`: all size * n coins are independent, each True with probability
               exactly `rate`.
    Proof:     all coins of all subsets stand in one line. The number of coins that are False before the next
               True one is geometric, independently of all before. It is floor(-ln U / -ln(1 - rate)),
               computed in floats where their errors leave one answer, and by certified digits of both
               logarithms elsewhere (`_exact_gap`).
    Assumes:   `entropy` yields independent uniform bits; numpy's log is right to 2**-48 (checked by the
               tests).

    >>> from discreet.sampling import SeededEntropy
    >>> [len(kept) for kept in poisson_subsets(1000, 0.01, 3, SeededEntropy(0))]
    [12, 4, 12]
    """
    exact = _probability(rate, "rate")
    _require.integer(size=size, n=n, at_least=0)
    # as Python integers: numpy integers could wrap
    size, n = int(size), int(n)
    coins = draws(size * n, entropy)
    if not _SPARSE[0] <= exact <= _SPARSE[1]:
        return [poisson_subset(size, exact, entropy) for _ in range(n)]
    kept = _kept_positions(coins, exact, entropy)
    edges = np.searchsorted(kept, np.arange(n + 1) * size).tolist()
    return [kept[edges[i] : edges[i + 1]] - i * size for i in range(n)]


def _kept_positions(coins: int, rate: Fraction, entropy: Entropy) -> Indices:
    """Return the positions of the True ones among `coins` coins, ascending."""
    parts, last, slope = [np.empty(0, np.int64)], -1, _slope(rate)
    while last < coins:
        expected = (coins - last) * float(rate)
        # four standard deviations more than expected, so that few gaps rarely need a second pass
        wanted = min(_GAPS, math.ceil(expected + 4 * math.sqrt(expected)) + 1)
        positions = np.cumsum(_gaps(wanted, coins, rate, slope, entropy) + 1) + last
        parts.append(positions)
        last = int(positions[-1])
    positions = np.concatenate(parts)
    return positions[: np.searchsorted(positions, coins)]


def _slope(rate: Fraction) -> float:
    """Return -1 / ln(1 - rate) with a relative error below 2**-51.

    Proof: -ln(1 - rate) >= rate >= 1 / denominator, so that at least 63 of the computed bits follow its
           leading bit.
    """
    bits = 64 + rate.denominator.bit_length()
    return float(Fraction(1 << bits, -_bounds.log(1 - rate, bits)[0]))


def _gaps(n: int, limit: int, rate: Fraction, slope: float, entropy: Entropy) -> Indices:
    """Draw n gaps, each limited to `limit`; `slope` is -1 / ln(1 - rate). 53 bits of U are drawn at first: U
    lies in [prefix, prefix + 1) 2**-53.

    Proof: -ln U is at most -ln of the lower end, and at least this minus ln(1 + 1 / prefix) <= 1 / prefix.
    """
    prefixes = entropy.words(n) >> np.uint64(11)
    # A prefix of zero makes `lower` NaN, which differs from `upper`: the gap is computed exactly then.
    with np.errstate(divide="ignore", invalid="ignore"):
        real = prefixes.astype(np.float64)
        upper = np.log(real * 2.0**-53) * -slope
        lower = upper * (1 - _FLOAT_ERROR)
        lower -= (1.01 * slope) / real
        upper *= 1 + _FLOAT_ERROR
        np.minimum(np.floor(upper, out=upper), limit, out=upper)
        np.minimum(np.floor(lower, out=lower), limit, out=lower)
    result = upper.astype(np.int64)
    for i in np.flatnonzero(upper != lower).tolist():
        result[i] = min(limit, _exact_gap(int(prefixes[i]), rate, entropy))
    return result


def _exact_gap(prefix: int, rate: Fraction, entropy: Entropy) -> int:
    """Return floor(-ln U / -ln(1 - rate)), for U uniform on [0, 1) whose first 53 bits are `prefix`: more are
    drawn until there is one answer."""
    length = 53
    while True:
        bits = length + 64 + rate.denominator.bit_length()
        ends, (low, high) = _bounds.minus_log(prefix, length, bits), _bounds.log(1 - rate, bits)
        if ends is not None and ends[0] // -low == ends[1] // -high:
            return ends[0] // -low
        prefix = prefix << 64 | entropy.integer(64)
        length += 64
