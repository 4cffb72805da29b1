"""Computes certified bounds: exponentials, logarithms and discrete Laplace tails whose rounding has a proved
direction. Thresholds, odds of randomized response and failure probabilities are computed with them.

Everything is integer arithmetic on enclosures, so a claim such as "the noise exceeds T with probability at
most delta" is a comparison of rationals and not a matter of floating point.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from .. import _require

# Bits of the certified bounds: their ratio is below 1 + 2**-100.
_BITS = 128
# The largest exponent. The least positive float is about exp(-745), so no probability that is a float needs a
# tail further out; the rest is room, chosen by hand.
_LARGEST = 20_000


@lru_cache(maxsize=1024)
def exp_bounds(x: Fraction) -> tuple[Fraction, Fraction]:
    """Return rationals (low, high) with low <= exp(x) <= high and high / low < 1 + 2**-100, for
    0 <= x <= 20000.

    Proof: with y = x / 2**s <= 1/2 (s is `halvings`), the Taylor sum of exp(y) is taken in integers, each
           term rounded down (up for `high`). All terms after the last one, t, add up to less than t, because
           each is less than half the one before; `high` gets this t once more. Squaring s times keeps the
           direction.
    """
    if not 0 <= x <= _LARGEST:
        raise _require.fail("the exponent", float(x), f"between 0 and {_LARGEST}")
    halvings = math.ceil(x).bit_length() + 1
    bits = _BITS + 2 * halvings
    y = x / 2**halvings
    low = high = low_term = high_term = 1 << bits
    for n in range(1, bits):
        low_term = low_term * y.numerator // (y.denominator * n)
        high_term = -(-high_term * y.numerator // (y.denominator * n))
        low, high = low + low_term, high + high_term
        if high_term <= 1:
            break
    high += high_term
    for _ in range(halvings):
        low, high = low * low >> bits, (high * high >> bits) + 1
    return Fraction(low, 1 << bits), Fraction(high, 1 << bits)


def exp_below(x: Fraction) -> Fraction:
    """Return a rational of at most 64 significant bits that is not above exp(x), and smaller by less than
    1e-18 of exp(x).

    >>> float(exp_below(Fraction(1)))
    2.718281828459045
    """
    low, _ = exp_bounds(x)
    shift = 64 - math.floor(low).bit_length()
    return Fraction(math.floor(low * Fraction(2) ** shift)) / Fraction(2) ** shift


def log_above(x: Fraction) -> float:
    """Return a float that is not below ln(x), for x >= 1; a few ulps above it at most where x >= 1 + 1e-20.

    Proof: the float returned has a certified lower bound of its exponential that is not below x.
    """
    candidate, steps = max(math.nextafter(_log(x), 0.0), 0.0), 0
    while exp_bounds(Fraction(candidate))[0] < x:
        steps += 1
        # The guess is a few ulps off at most. For x closer to 1 than 1e-20 the certified bounds are wider
        # than an ulp, so after 20 steps of one ulp each step is twice the one before.
        candidate += math.ulp(candidate) * max(1, 2 ** (steps - 20))
    return candidate


def laplace_tail(scale: Fraction, m: int) -> Fraction:
    """Return an upper bound of P(X >= m) for discrete Laplace noise X and m >= 1. Where m <= 20000 scale, it
    is less than 1 + 2**-98 times the probability; further out it stays near exp(-20000).

    Proof: with q = exp(-1/scale) the probability is q**m / (1 + q), the geometric sum of (1-q)/(1+q) q**x
           over x >= m.
    """
    return 1 / (exp_bounds(min(m / scale, Fraction(_LARGEST)))[0] * (1 + _ratio_below(scale)))


@lru_cache(maxsize=1024)
def laplace_quantile(scale: Fraction, probability: Fraction) -> int:
    """Return the smallest m >= 1 for which `laplace_tail(scale, m)` certifies P(X >= m) <= probability.

    >>> laplace_quantile(Fraction(1), Fraction(1, 10**6))
    14
    """
    if laplace_tail(scale, 1) <= probability:
        return 1
    if not probability > laplace_tail(scale, math.ceil(scale * _LARGEST)):
        raise _require.fail("a probability", float(probability), f"above exp(-{_LARGEST})")
    guess = scale * Fraction(_log(1 / probability) - math.log1p(float(_ratio_below(scale))))
    margin = guess / 10**9
    low, high = max(1, int(guess - margin) - 2), max(2, int(guess + margin) + 3)
    while laplace_tail(scale, high) > probability:
        high *= 2
    while laplace_tail(scale, low) <= probability:
        low //= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if laplace_tail(scale, middle) <= probability else (middle, high)
    return high


def _ratio_below(scale: Fraction) -> Fraction:
    """Return a lower bound of exp(-1/scale), the ratio of one discrete Laplace probability to the one
    before."""
    return 1 / exp_bounds(1 / scale)[1] if 1 / scale <= _LARGEST else Fraction(0)


def _log(x: Fraction) -> float:
    """Return ln(x), also where x or 1/x is no float; a first guess that certified bounds correct."""
    if max(x, 1 / x) > 2**500:
        return math.log(x.numerator) - math.log(x.denominator)
    # near 1 a float of x has lost the digits of its logarithm
    return math.log1p(x - 1) if 1 / 2 < x < 2 else math.log(x)
