"""The three draws that every client randomizer is made of, on uniform random words, and the integer odds that
they take.

What a device draws must be the same in Python and in a browser, so this is all there is: an integer below a
bound, a coin with a rational probability, and many coins of 32 bits. Each reads whole little-endian words of
its stream and refuses what is too large; nothing is compared in floating point. For one report at a time the
order of the words is part of the contract with js/discreet-local.mjs (docs/local.md), and tests feed both the
same bytes.
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

# no bound is larger: a browser counts exactly up to 2**53
LIMIT = 1 << 52
# the denominator of `coins`
COIN = 1 << 32
Codes = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Bits of exp(-epsilon) that odds are computed from: at the largest epsilon, 60, 73 of them are significant,
# more than the 52 of LIMIT.
_DIGITS = 160
# A larger epsilon is priced as asked and drawn with the odds of this one: no odds within LIMIT come near its
# exp(epsilon), and smaller odds are more private.
_LARGEST = 60


def below(bound: int, n: int, entropy: Entropy) -> Codes:
    """Draw `n` independent integers, uniform on 0, ..., bound - 1. A bound of 1 takes no word.

    Guarantee: each value has probability exactly 1 / bound, for every bound up to 2**52.
    Proof:     the first bits of a 64-bit word, as many as bound - 1 has, are uniform; a word whose bits are
               not below the bound is thrown away and another is drawn.
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
    """Draw one integer below each bound, independent and uniform: `below(bound, 1, entropy)` for one bound
    after the other, from the same words.

    Guarantee: that of `below`.
    Proof:     each word is given to the first number that still needs one, as there; words are read together
               only as far as the numbers that are left surely take.
    """
    drawn: list[int] = []
    while len(drawn) < len(bounds):
        left = len(bounds) - len(drawn) - sum(bound == 1 for bound in bounds[len(drawn) :])
        words = iter(entropy.words(left).tolist())
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
    """Toss `n` independent coins, each True with probability exactly numerator / denominator; one word each,
    or more."""
    return np.asarray(below(denominator, n, entropy) < numerators)


def coins(thresholds: NDArray[np.int64], entropy: Entropy) -> Bools:
    """Toss one coin for each threshold, True with probability exactly threshold / 2**32; two coins to a word,
    the low half first."""
    words = entropy.words((thresholds.size + 1) // 2).view(np.dtype("<u4"))[: thresholds.size]
    return np.asarray(words.reshape(thresholds.shape) < thresholds)


def choose(ends: Sequence[int], n: int, entropy: Entropy) -> Codes:
    """Draw `n` independent indices, i with probability (ends[i] - ends[i-1]) / ends[-1]: `ends` are cumulated
    integer weights."""
    drawn = below(int(ends[-1]), n, entropy)
    return np.searchsorted(np.asarray(ends, dtype=np.int64), drawn, side="right").astype(np.int64, copy=False)


def odds(epsilon: Any, truth: int = 1, other: int = 1) -> tuple[int, int]:
    """Return integers (a, b), a > b, with a / b <= exp(epsilon) and truth * a + other * b <= 2**52; b is a
    power of two, as large as fits.

    Guarantee: a / b never exceeds exp(epsilon), and misses it by less than one part in b.
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
            f"larger for {truth + other} different reports: as integers its odds would be even",
        )
    return a, b


def small_share(epsilon: Any, bits: int = 1) -> int:
    """Return the least integer q with (2**32 - q) / q <= exp(epsilon / bits): the chance q / 2**32 >= 1 / (1
    + exp(epsilon / bits)), for reports in which two values differ by so many `bits`.
    """
    q = _small_share(positive_epsilon(epsilon) / bits)
    if 2 * q >= COIN:
        raise _require.fail("epsilon", epsilon, "larger: the coins of 32 bits would be fair, and say nothing")
    return q


@lru_cache(maxsize=1024)
def _odds(exact: Fraction, truth: int, other: int) -> tuple[int, int]:
    """Return the odds of `odds`, cached; even ones are refused by the caller."""
    exp_epsilon = Fraction(1 << _DIGITS, exp_neg(min(exact, Fraction(_LARGEST)), _DIGITS)[1])
    room = LIMIT / (truth * exp_epsilon + other)
    b = 1 << max(int(room).bit_length() - 1, 0)
    return min(int(b * exp_epsilon), (LIMIT - other * b) // truth), b


@lru_cache(maxsize=1024)
def _small_share(exact: Fraction) -> int:
    """Return ceil(2**32 c) for c = e^-x / (1 + e^-x), rounded up."""
    low, high = exp_neg(min(exact, Fraction(_LARGEST)), _DIGITS)
    return -(-(high << 32) // ((1 << _DIGITS) + low))


def positive_epsilon(epsilon: Any) -> Fraction:
    """Return the epsilon as an exact rational, refused unless it is above zero."""
    _require.positive(epsilon=epsilon)
    return _require.exact(epsilon, "epsilon")


def within(ratio: Fraction, epsilon: Any) -> bool:
    """Return whether ratio <= exp(epsilon), certified: False also where 160 bits cannot tell."""
    exact = _require.exact(epsilon, "epsilon")
    # exp(-epsilon) in two factors, so that large ones keep their digits
    exponent = int(exact)
    first, rest = (
        exp_neg(Fraction(1), _DIGITS)[1] if exponent else 1 << _DIGITS,
        exp_neg(exact - exponent, _DIGITS)[1],
    )
    return ratio * Fraction(first, 1 << _DIGITS) ** exponent * Fraction(rest, 1 << _DIGITS) <= 1
