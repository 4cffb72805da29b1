"""Draws uniform integers below a bound, permutations and subsets, and categories with integer weights."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

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
    if k > size or size > 1 << 62:
        raise _require.fail("k, size", (k, size), "such that k <= size <= 2**62")
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
