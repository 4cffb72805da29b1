"""Tosses coins (Bernoulli draws) of a rational probability or of probability exp(-x), and draws subsets that
keep each index by a coin.

In proofs U is a uniform number on [0, 1), whose bits are drawn as they are needed; a prefix is its first bits
as an integer. How many coins share a call (`_CHUNK`) and the order of draws change what a seed gives, not the
distribution.

Draws many sparse Poisson subsets at once: instead of tossing a coin for each index, it draws the gaps
between the indices that are kept. U is a uniform number on [0, 1), a prefix its first bits as an integer.

Draws exactly from binomial distributions: trials are split into blocks, whose numbers of successes are
drawn from certified tables and added up.

The draws are exact because `_weights` rounds outwards; its rounding must not change. Sizes of blocks and
chunks change the speed and what a seed gives, not the distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _require
from . import _entropy
from ._entropy import Entropy, draws, stream
from ._uniform import Table, WeightIntervals, Weights, integers

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
               (`_entropy.below`).
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> bernoulli(1, 3, SeededEntropy(0)).tolist()
    [True, True, True]
    """
    exact = _probability(p, "p")
    return _coins(_entropy.rational(exact), draws(n, entropy), entropy)


def bernoulli_exp(x: Any, n: int, entropy: Entropy) -> Bools:
    """Toss `n` independent coins, each True with probability exactly exp(-x).

    Guarantee: independent Bernoulli(exp(-x)) for every rational x >= 0; no rounding enters.
    Proof:     as `bernoulli`, with proved bounds on the binary digits of exp(-x) (`_entropy.exp_neg`).
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> bernoulli_exp(0, 2, SeededEntropy(0)).tolist()
    [True, True]
    """
    exact = _require.exact(x, "x")
    _require.non_negative(x=exact)
    return _coins(_entropy.exponential(exact), draws(n, entropy), entropy)


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
        result[i] = _entropy.below(int(prefixes[i]), 53, _entropy.rational(Fraction(float(ps[i]))), entropy)
    return result


def bernoulli_exp_each(numerators: Any, denominator: int, entropy: Entropy) -> Bools:
    """Return one coin for each integer numerator, True with probability exactly
    exp(-numerator / denominator).

    Guarantee: independent; no rounding enters.
    Proof:     U < exp(-x) is decided in floats where the two are further apart than the error of numpy's exp
               and of the 53 bits of U that are known; elsewhere by `_entropy.below`, with proved bounds on
               the digits of exp(-x) and more bits of U.
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
    _require.must(not (xs < 0).any(), "numerators", f"{len(xs)} of them", "zero or above")
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
        result[i] = _entropy.below(int(prefixes[i]), 53, _entropy.exponential(exact(i)), entropy)
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
    digits = _entropy.rational(_probability(rate, "rate"))
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
    digits: _entropy.Digits, low: int, high: int, start: int, n: int, entropy: Entropy
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
            mask[i] = _entropy.below(low, 16, digits, entropy)
    kept = np.flatnonzero(mask)
    kept += start
    return kept


def _coins(digits: _entropy.Digits, n: int, entropy: Entropy) -> Bools:
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
            part[i] = _entropy.below(int(prefixes[i]), 16, digits, entropy)
    return result


def _probability(p: Any, name: str) -> Fraction:
    exact = _require.exact(p, name)
    _require.probability(**{name: exact})
    return exact


Indices = npt.NDArray[np.int64]

# Gaps are drawn at rates between these two. Above, a coin for each index is as cheap; below, gaps are so long
# that floats do not decide them.
_SPARSE = Fraction(1, 1 << 40), Fraction(1, 16)
# The largest number of gaps drawn at once. Changes speed and what a seed gives, not the distribution.
_GAPS = 1 << 14
# The largest relative error that is assumed of numpy's log (2**-48, see docs/proofs/sampling.md) and of the
# few operations around it.
_SKIP_ERROR = 2.0**-44


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
    return float(Fraction(1 << bits, -_entropy.log(1 - rate, bits)[0]))


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
        lower = upper * (1 - _SKIP_ERROR)
        lower -= (1.01 * slope) / real
        upper *= 1 + _SKIP_ERROR
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
        ends, (low, high) = _entropy.minus_log(prefix, length, bits), _entropy.log(1 - rate, bits)
        if ends is not None and ends[0] // -low == ends[1] // -high:
            return ends[0] // -low
        prefix = prefix << 64 | entropy.integer(64)
        length += 64


# Trials per table. A table of the smaller block has some ten thousand outcomes that are not negligible; the
# larger block is used for more than 2**26 trials, so that fewer blocks are drawn.
_BLOCKS = (1 << 20, 1 << 26)
# More trials are refused: their blocks, which are drawn one after the other, would take too long.
_MAX_TRIALS = 1 << 40
# Outcomes of a smaller weight, in units of the last bit of a weight, are not listed one by one but bounded
# together.
_NEGLIGIBLE = 1 << 8
# Outcomes drawn at once: few calls, and arrays that stay in the processor's caches.
_BINOMIAL_CHUNK = 1 << 13


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
    _require.must(trials <= _MAX_TRIALS, "trials", trials, f"at most {_MAX_TRIALS}")
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
        for start in range(0, len(successes), _BINOMIAL_CHUNK):
            part = successes[start : start + _BINOMIAL_CHUNK]
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
