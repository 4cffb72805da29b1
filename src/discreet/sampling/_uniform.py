"""Draws uniform integers below a bound, permutations and subsets, and categories with integer weights.

Draws from a discrete distribution by exact inversion, with a table of certified thresholds.

U is a uniform number on [0, 1), a prefix its first bits as an integer. Outcome i is chosen when F(i-1) <= U <
F(i), with F the cumulative distribution in some order of the outcomes. The table holds floor(2**64 * F(i)),
certified by interval arithmetic. Sixteen bits of U decide most draws by one look-up (the guide); sixty-four
decide all but a 2**-50 fraction; for the remaining draws the thresholds are computed again with more digits,
until they are decided.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _require
from ._entropy import Entropy, draws, stream

Integers = npt.NDArray[Any]

# Integers drawn at once: few calls, and arrays that stay in the processor's caches.
_CHUNK = 1 << 13


def uniform_below(bound: int, n: int, entropy: Entropy) -> Integers:
    """Draw `n` independent integers, uniform on 0, 1, ..., bound - 1; an object array if bound > 2**63.

    Guarantee: each value has probability exactly 1 / bound.
    Proof:     bound <= 2**32: floor(w * bound / 2**32) for a uniform 32-bit w, rejected when the low half of
               the product is below 2**32 mod bound; every value then has floor(2**32 / bound) accepted w
               (Lemire 2019, arXiv:1805.10941). Otherwise as many bits as bound - 1 has are drawn, again until
               the number is below bound.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> uniform_below(1, 3, SeededEntropy(0)).tolist()
    [0, 0, 0]
    """
    _require.integer(bound=bound, at_least=1)
    bound, n = int(bound), draws(n, entropy)
    if bound > 1 << 63:
        return np.fromiter((_big_below(bound, entropy) for _ in range(n)), dtype=object, count=n)
    out = np.empty(n, np.int64)
    propose = _propose_lemire if bound <= 1 << 32 else _propose_bits
    for start in range(0, n, _CHUNK):
        part = out[start : start + _CHUNK]
        unfilled: Any = slice(None)
        missing = len(part)
        while missing:
            values, kept = propose(bound, missing, entropy)
            part[unfilled] = values
            unfilled = np.flatnonzero(~kept) if isinstance(unfilled, slice) else unfilled[~kept]
            missing = len(unfilled)
    return out


def permutation(n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    """Return the numbers 0, 1, ..., n - 1 in uniformly random order.

    Guarantee: each of the n! orders has probability exactly 1 / n!.
    Proof:     the order of independent uniform keys, given that all differ; renaming positions maps that
               event to itself, so every order is equally likely. If two keys collide, all are drawn again.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> sorted(permutation(4, SeededEntropy(0)).tolist())
    [0, 1, 2, 3]
    """
    n = draws(n, entropy)
    while True:
        keys = entropy.words(n)
        order = np.argsort(keys)
        sorted_keys = keys[order]
        if not (sorted_keys[1:] == sorted_keys[:-1]).any():
            return order.astype(np.int64, copy=False)


def subset(size: int, k: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    """Return a uniform subset of `k` of the numbers 0, ..., size - 1, sorted.

    Guarantee: each of the C(size, k) subsets has the same probability.
    Proof:     numbers are drawn until k are distinct, never more at once than are missing. Renaming the
               numbers leaves the distribution of this process unchanged, so it is uniform. For k > size / 2
               the complement is drawn.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> subset(3, 3, SeededEntropy(0)).tolist()
    [0, 1, 2]
    """
    _require.integer(size=size, k=k, at_least=0)
    _require.must(k <= size and size <= 1 << 62, "k, size", (k, size), "such that k <= size <= 2**62")
    size, k = int(size), int(k)
    stream(entropy)
    if 2 * k > size:
        keep = np.ones(size, bool)
        keep[subset(size, size - k, entropy)] = False
        return np.flatnonzero(keep).astype(np.int64, copy=False)
    chosen = np.empty(0, np.int64)
    while len(chosen) < k:
        chosen = np.concatenate((chosen, uniform_below(size, k - len(chosen), entropy)))
        chosen.sort()
        chosen = chosen[np.concatenate(([True], chosen[1:] != chosen[:-1]))]
    return chosen


def categorical(weights: Sequence[int] | Integers, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    """Draw `n` independent indices, i with probability weights[i] / sum(weights), for integer weights of any
    size.

    Guarantee: exactly this distribution; an index of weight 0 never occurs.
    Proof:     a uniform integer below the sum falls in i's interval of the cumulated weights, which holds
               weights[i] integers.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> categorical([0, 5, 0], 3, SeededEntropy(0)).tolist()
    [1, 1, 1]
    """
    n = draws(n, entropy)
    exact = integers(weights, "weights")
    if any(w < 0 for w in exact) or not sum(exact):
        raise _require.fail("weights", f"{len(exact)} of them", "zero or above, and not all zero")
    cumulated = np.cumsum(np.array(exact, dtype=object))
    total = int(cumulated[-1])
    ends = cumulated.astype(np.int64) if total <= 1 << 62 else cumulated
    indices = np.searchsorted(ends, uniform_below(total, n, entropy).astype(ends.dtype), side="right")
    return indices.astype(np.int64, copy=False)


def integers(values: Any, name: str, may_be_empty: bool = False) -> list[int]:
    """Return a one-dimensional sequence of integers as Python integers; raise an error that shows none of
    them otherwise, as they may be data."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "iuO":
            raise _require.fail(
                name, f"an array of {values.dtype} with {values.ndim} dimensions", "a list of integers"
            )
        values = values.tolist()
    values = _require.listed(**{name: values})
    if not may_be_empty:
        _require.non_empty(**{name: values})
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise _require.fail(name, f"a {type(value).__name__} among them", "a list of integers")
    return [int(value) for value in values]


def _propose_lemire(bound: int, n: int, entropy: Entropy) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return n proposals by Lemire's method for a bound of at most 2**32, and which of them are accepted."""
    low_half = np.uint64(0xFFFFFFFF)
    product = (entropy.words((n + 1) // 2).view(np.uint32)[:n]).astype(np.uint64)
    product *= np.uint64(bound)
    kept = (product & low_half) >= np.uint64((1 << 32) % bound)
    return (product >> np.uint64(32)).view(np.int64), kept


def _propose_bits(bound: int, n: int, entropy: Entropy) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return n proposals of as many bits as bound - 1 has, and which of them are accepted."""
    values = (entropy.words(n) >> np.uint64(64 - (bound - 1).bit_length())).view(np.int64)
    return values, values < bound


def _big_below(bound: int, entropy: Entropy) -> int:
    """Return one uniform Python integer below a bound of any size."""
    bits = (bound - 1).bit_length()
    while (value := entropy.integer(bits)) >= bound:
        pass
    return value


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
