"""Tosses coins (Bernoulli draws) of a rational probability or of probability exp(-x), and draws subsets that
keep each index by a coin.

In proofs U is a uniform number on [0, 1), whose bits are drawn as they are needed; a prefix is its first bits
as an integer. How many coins share a call (`_CHUNK`) and the order of draws change what a seed gives, not the
distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _require
from . import _bounds
from ._entropy import Entropy, draws, stream
from ._uniform import integers

Bools = npt.NDArray[np.bool_]

# Coins tossed at once: few calls, and arrays that stay in the processor's caches.
_CHUNK = 1 << 15
# The largest error that is assumed of the difference exp(-x) - U, where numpy computes exp(-x) and a prefix
# stands for U; see `exp_coins`. Tests compare numpy with mpmath.
_FLOAT_ERROR = 2.0**-46


def bernoulli(p: Any, n: int, entropy: Entropy) -> Bools:
    """Toss `n` independent coins, each True with probability exactly `p` (a float is taken at its binary
    value).

    Guarantee: independent Bernoulli(p) for every rational p in [0, 1].
    Proof:     U < p, decided by the first 16 bits of U unless they equal those of p; then by more bits
               (`_bounds.below`).
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> bernoulli(1, 3, SeededEntropy(0)).tolist()
    [True, True, True]
    """
    exact = _probability(p, "p")
    return _coins(_bounds.rational(exact), draws(n, entropy), entropy)


def bernoulli_exp(x: Any, n: int, entropy: Entropy) -> Bools:
    """Toss `n` independent coins, each True with probability exactly exp(-x).

    Guarantee: independent Bernoulli(exp(-x)) for every rational x >= 0; no rounding enters.
    Proof:     as `bernoulli`, with proved bounds on the binary digits of exp(-x) (`_bounds.exp_neg`).
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> bernoulli_exp(0, 2, SeededEntropy(0)).tolist()
    [True, True]
    """
    exact = _require.exact(x, "x")
    _require.non_negative(x=exact)
    return _coins(_bounds.exponential(exact), draws(n, entropy), entropy)


def bernoulli_each(ps: Any, entropy: Entropy) -> Bools:
    """Return one coin for each probability in the float array `ps`, each taken at its binary value.

    Guarantee: independent; entry i is True with probability exactly ps[i].
    Proof:     53 bits of U are a float u with u <= U < u + 2**-53, both exact. If u + 2**-53 <= p, True; if u
               >= p, False; else more bits are drawn.
    Assumes:   `entropy` yields independent uniform bits.
    """
    ps = np.asarray(ps)
    # A long double would be rounded by the conversion to 64 bits below.
    numbers = ps.dtype.kind in "fiu" and ps.dtype.itemsize <= 8
    if not numbers or ps.ndim != 1 or not ((ps >= 0) & (ps <= 1)).all():
        raise _require.fail(
            "ps", f"an array of {ps.dtype}", "a one-dimensional array of numbers between 0 and 1"
        )
    ps = ps.astype(np.float64, copy=False)
    prefixes = stream(entropy).words(len(ps)) >> np.uint64(11)
    u = prefixes.astype(np.float64) * 2.0**-53
    result: Bools = u < ps
    for i in np.flatnonzero(result & (u + 2.0**-53 > ps)).tolist():
        result[i] = _bounds.below(int(prefixes[i]), 53, _bounds.rational(Fraction(float(ps[i]))), entropy)
    return result


def bernoulli_exp_each(numerators: Any, denominator: int, entropy: Entropy) -> Bools:
    """Return one coin for each integer numerator, True with probability exactly
    exp(-numerator / denominator).

    Guarantee: independent; no rounding enters.
    Proof:     U < exp(-x) is decided in floats where the two are further apart than the error of numpy's exp
               and of the 53 bits of U that are known; elsewhere by `_bounds.below`, with proved bounds on the
               digits of exp(-x) and more bits of U.
    Assumes:   `entropy` yields independent uniform bits; numpy's exp is right to 2**-48 (checked by the
               tests).
    """
    _require.integer(denominator=denominator, at_least=1)
    divisor = int(denominator)
    # a larger divisor might overflow as a float
    if (
        isinstance(numerators, np.ndarray)
        and numerators.dtype.kind in "iu"
        and numerators.ndim == 1
        and divisor >> 1000 == 0
    ):
        values: Any = numerators
        xs = numerators.astype(np.float64) / float(divisor)
    else:
        values = integers(numerators, "numerators", may_be_empty=True)
        xs = np.array([_require.float_or_inf(Fraction(v, divisor)) for v in values], dtype=np.float64)
    if (xs < 0).any():
        raise _require.fail("numerators", f"{len(xs)} of them", "zero or above")
    prefixes = stream(entropy).words(len(xs)) >> np.uint64(11)
    return exp_coins(xs, lambda i: Fraction(int(values[i]), divisor), prefixes, entropy)


def exp_coins(
    xs: npt.NDArray[np.float64],
    exact: Callable[[int], Fraction],
    prefixes: npt.NDArray[np.uint64],
    entropy: Entropy,
    error: float = _FLOAT_ERROR,
) -> Bools:
    """Toss coins that fall heads if U < exp(-exact(i)), from `xs`, where xs[i] is within a factor 1 + 2**-49
    of exact(i), and `prefixes`, the first 53 bits of each U.

    Proof: that factor moves exp(-x) by at most x exp(-x) 2**-49 < 2**-50; numpy's own error is at most
           2**-48, and 2**-53 of U is unknown. Together they are below _FLOAT_ERROR, the least `error` that
           may be given, so that a computed difference of exp(-x) and U that exceeds `error` has the right
           sign.
    """
    margin = np.exp(-xs)
    margin -= prefixes.astype(np.float64) * 2.0**-53
    result: Bools = margin > 0
    for i in np.flatnonzero(np.abs(margin) <= error).tolist():
        result[i] = _bounds.below(int(prefixes[i]), 53, _bounds.exponential(exact(i)), entropy)
    return result


def poisson_subset(size: int, rate: Any, entropy: Entropy) -> npt.NDArray[np.int64]:
    """Return the sorted indices below `size` that a coin of probability exactly `rate` keeps, independently.

    Guarantee: each index is kept independently with probability exactly `rate`.
    Proof:     `bernoulli` for each index.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> poisson_subset(3, 1, SeededEntropy(0)).tolist()
    [0, 1, 2]
    """
    digits = _bounds.rational(_probability(rate, "rate"))
    _require.integer(size=size, at_least=0)
    size = draws(size, entropy)
    low, high = digits(16)
    # probability 1 or 0
    if low == 1 << 16 or high == 0:
        return np.arange(size if high else 0, dtype=np.int64)
    parts = (
        _kept_indices(digits, low, high, start, min(_CHUNK, size - start), entropy)
        for start in range(0, size, _CHUNK)
    )
    if 2 * low < 1 << 16:
        return np.concatenate([np.empty(0, np.int64), *parts])
    # Most are kept: write them into one array instead of joining parts.
    result, count = np.empty(size, np.int64), 0
    for part in parts:
        result[count : count + len(part)] = part
        count += len(part)
    return result[:count]


def _kept_indices(
    digits: _bounds.Digits, low: int, high: int, start: int, n: int, entropy: Entropy
) -> npt.NDArray[np.int64]:
    """Return which of n coins are True, as indices counted from `start`: decided by the first 16 bits of each
    coin's U, and by more bits where these do not decide.

    `low` and `high` are 2**16 times the probability, rounded down and up. The mask is made before any 64-bit
    index, as at high rates nearly all indices are kept.
    """
    prefixes = entropy.shorts(n)
    mask: Bools = prefixes < low
    # if low == high, a prefix equal to low means U >= the probability
    if low < high:
        for i in np.flatnonzero(prefixes == low).tolist():
            mask[i] = _bounds.below(low, 16, digits, entropy)
    kept = np.flatnonzero(mask)
    kept += start
    return kept


def _coins(digits: _bounds.Digits, n: int, entropy: Entropy) -> Bools:
    """Toss n coins of the probability that `digits` describes: digits(b) are integers not above and not below
    2**b times the probability."""
    low, high = digits(16)
    # probability 1 or 0
    if low == 1 << 16 or high == 0:
        return np.full(n, high > 0)
    result = np.empty(n, bool)
    for start in range(0, n, _CHUNK):
        prefixes = entropy.shorts(min(_CHUNK, n - start))
        part = result[start : start + _CHUNK]
        np.less(prefixes, low, out=part)
        for i in np.flatnonzero((prefixes >= low) & (prefixes < high)).tolist():
            part[i] = _bounds.below(int(prefixes[i]), 16, digits, entropy)
    return result


def _probability(p: Any, name: str) -> Fraction:
    exact = _require.exact(p, name)
    _require.probability(**{name: exact})
    return exact
