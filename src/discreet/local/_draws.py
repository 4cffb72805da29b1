"""Makes the draws of which every client randomizer is made, from uniform random 64-bit words, and computes
the integer odds that they use.

Given the same random bytes, a device must draw the same in Python and in a browser. So there are only three
kinds of draws: an integer below a bound, a coin with a rational probability, and many coins with a resolution
of 2**-32. Each reads complete little-endian words from the entropy; a word that gives a too large integer is
thrown away; nothing is compared in floating point. For one report at a time the order of the words is part of
the contract with js/discreet-local.mjs (docs/local.md), and tests feed both the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from ..sampling import Entropy, exp_neg

# The largest bound of a draw: numbers of a browser are exact up to 2**53.
LIMIT = 1 << 52
# The denominator of the probabilities of `coins`, and of rounding to a grid. Like LIMIT, it is a contract
# with js/discreet-local.mjs.
COIN = 1 << 32
Codes = NDArray[np.int64]
Bools = NDArray[np.bool_]

# The bits after the point of exp(-epsilon), from which odds are computed. At the largest epsilon, 60, 73 of
# them are significant, more than the 52 of LIMIT.
_BITS = 160
# A larger epsilon is charged in full, and drawn with the odds of epsilon 60. Odds within LIMIT are below
# 2**52, which is less than exp(60) already, and smaller odds are more private.
_LARGEST = 60


def below(bound: int, n: int, entropy: Entropy) -> Codes:
    """Draw `n` independent integers, uniform on 0, ..., bound - 1. A bound of 1 uses no random word.

    Guarantee: each value has probability exactly 1 / bound, for every bound up to 2**52.
    Proof:     the highest bits of a 64-bit word, as many as bound - 1 has, are a uniform integer; where it is
               not below the bound, the word is thrown away and another is drawn.
    Assumes:   `entropy` yields independent uniform bits.
    """
    if not 1 <= bound <= LIMIT:
        raise _require.fail("bound", bound, f"between 1 and {LIMIT}")
    if bound == 1:
        return np.zeros(n, np.int64)
    shift = np.uint64(64 - (bound - 1).bit_length())
    values = (entropy.words(n) >> shift).view(np.int64)
    rejected = np.flatnonzero(values >= bound)
    while len(rejected):
        values[rejected] = (entropy.words(len(rejected)) >> shift).view(np.int64)
        rejected = rejected[values[rejected] >= bound]
    return values


def below_each(bounds: Sequence[int], entropy: Entropy) -> list[int]:
    """Draw one integer below each bound, independent and uniform. It returns what `below(bound, 1, entropy)`
    returns for one bound after the other, and uses the same words, but reads many words at once.

    Guarantee: that of `below`.
    Proof:     as in `below`, each word is used for the first bound that has no integer yet. Only as many
               words are read at once as the remaining bounds need at least, one per bound above 1.
    """
    drawn: list[int] = []
    while len(drawn) < len(bounds):
        least_words = sum(bound > 1 for bound in bounds[len(drawn) :])
        words = iter(entropy.words(least_words).tolist())
        while len(drawn) < len(bounds):
            bound = bounds[len(drawn)]
            word = 0 if bound == 1 else next(words, None)
            if word is None:
                break
            value = word >> (64 - (bound - 1).bit_length())
            if value < bound:
                drawn.append(value)
    return drawn


def coin(numerators: int | Codes, denominator: int, n: int, entropy: Entropy) -> Bools:
    """Toss `n` independent coins, each True with probability exactly numerator / denominator; `numerators` is
    one integer for all, or one per coin. Each coin is one draw of `below`."""
    return np.asarray(below(denominator, n, entropy) < numerators)


def coins(thresholds: NDArray[np.int64], entropy: Entropy) -> Bools:
    """Toss one coin per threshold, True with probability exactly threshold / 2**32. Each word gives two
    coins, from its low half first."""
    words = entropy.words((thresholds.size + 1) // 2).view(np.dtype("<u4"))[: thresholds.size]
    return np.asarray(words.reshape(thresholds.shape) < thresholds)


def choose(ends: Sequence[int], n: int, entropy: Entropy) -> Codes:
    """Draw `n` independent indices, index i with probability (ends[i] - ends[i-1]) / ends[-1], and index 0
    with probability ends[0] / ends[-1]: `ends` are cumulative sums of integer weights."""
    drawn = below(int(ends[-1]), n, entropy)
    return np.searchsorted(np.asarray(ends, dtype=np.int64), drawn, side="right").astype(np.int64, copy=False)


def kary_response(values: Codes, domain: int, weights: tuple[int, int], entropy: Entropy) -> Codes:
    """Draw k-ary randomized response: `weights` are (a, b), those of the true value and of each other value
    below `domain`. The order of draws: which reports are true, then the other values of the rest."""
    a, b = weights
    is_true = coin(a, a + (domain - 1) * b, len(values), entropy)
    changed = np.flatnonzero(~is_true)
    data = values.copy()
    others = below(domain - 1, len(changed), entropy)
    # values from the true one on are raised by one, so that the true value is skipped
    data[changed] = others + (others >= values[changed])
    return data


def odds(epsilon: Any, truth: int = 1, other: int = 1) -> tuple[int, int]:
    """Return integer weights (a, b), a > b, with a / b <= exp(epsilon) and truth * a + other * b <= 2**52.

    A randomizer gives weight a to `truth` of its reports and weight b to `other` reports. b is a power of
    two, as large as fits.

    Guarantee: a / b never exceeds exp(epsilon). It is above exp(epsilon) - 1 / b where weights of that ratio
               fit below 2**52; for larger epsilon it is smaller, which is more private.
    Proof:     `exp_neg` returns an integer that is not below 2**160 exp(-epsilon); dividing by it rounds
               down.

    >>> odds(1.0, 1, 1)[0] / odds(1.0, 1, 1)[1]
    2.7182818284590446
    """
    a, b = _odds(positive_epsilon(epsilon), truth, other)
    if a <= b:
        raise _require.fail(
            "epsilon",
            epsilon,
            f"larger for {truth + other} different reports: rounded to integers, their odds would be 1 : 1",
        )
    return a, b


def small_share(epsilon: Any, bits: int = 1) -> int:
    """Return the least integer q with (2**32 - q) / q <= exp(epsilon / bits), so that q / 2**32 is the
    probability 1 / (1 + exp(epsilon / bits)) rounded up.

    `bits` is the number of bits in which the reports of two values differ before they are flipped with this
    probability.
    """
    q = _small_share(positive_epsilon(epsilon) / bits)
    if 2 * q >= COIN:
        raise _require.fail("epsilon", epsilon, "larger: coins with a resolution of 2**-32 would be fair")
    return q


@lru_cache(maxsize=1024)
def _odds(exact: Fraction, truth: int, other: int) -> tuple[int, int]:
    """Return the weights of `odds`, cached. They may be 1 : 1, which the caller refuses."""
    exp_epsilon = Fraction(1 << _BITS, exp_neg(min(exact, Fraction(_LARGEST)), _BITS)[1])
    largest_b = LIMIT / (truth * exp_epsilon + other)
    b = 1 << max(int(largest_b).bit_length() - 1, 0)
    return min(int(b * exp_epsilon), (LIMIT - other * b) // truth), b


@lru_cache(maxsize=1024)
def _small_share(x: Fraction) -> int:
    """Return exp(-x) / (1 + exp(-x)) in units of 2**-32, rounded up."""
    # exp_neg returns a lower and an upper bound on exp(-x), in units of 2**-160
    low, high = exp_neg(min(x, Fraction(_LARGEST)), _BITS)
    return -(-(high << 32) // ((1 << _BITS) + low))


def positive_epsilon(epsilon: Any) -> Fraction:
    """Return the epsilon as an exact rational, refused unless it is above zero."""
    _require.positive(epsilon=epsilon)
    return _require.exact(epsilon, "epsilon")


def within(ratio: Fraction, epsilon: Any) -> bool:
    """Return True only if ratio <= exp(epsilon); False also where 160 bits cannot decide it."""
    exact = _require.exact(epsilon, "epsilon")
    whole = int(exact)
    # ratio < 2**whole < exp(whole): decided without powers, which for epsilon = 100,000 would take seconds
    if whole >= ratio.numerator.bit_length():
        return True
    # Upper bounds on exp(-1) and on exp(-(epsilon - whole)), in units of 2**-160. Their powers keep their
    # bits for a large epsilon, where exp(-epsilon) itself would have few.
    exp_neg_one, exp_neg_rest = (
        exp_neg(Fraction(1), _BITS)[1] if whole else 1 << _BITS,
        exp_neg(exact - whole, _BITS)[1],
    )
    return ratio * Fraction(exp_neg_one, 1 << _BITS) ** whole * Fraction(exp_neg_rest, 1 << _BITS) <= 1
