"""Draws single values of integer noise, without the tables that many draws share: slower per draw, but
nothing to prepare.

The time of a draw must not depend on its value, which would be a timing side channel. Each attempt takes the
same steps on integers of the same lengths (see `_exponential`), and the draw is returned as a constant
(`lift`) plus its value, so that small values are not shorter integers. The number of rejected proposals tells
nothing: attempts are independent, so that it is independent of the one that is accepted. What remains: an
attempt that its first bits do not decide (one in about 2**55) takes longer, and for a draw beyond 20 scales,
which has probability 2**-28, the prefix of U is a digit shorter (Python stores an integer in digits of
`DIGIT` = 30 bits).

The argument `lifted` is this constant, 0 for none; `Logarithm.lift` is another such constant, for -ln(U).

U is a uniform number on [0, 1), a prefix its first bits as an integer.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt

from ._entropy import Entropy
from ._exponential import DIGIT, MARGIN, Logarithm, logarithm, round_up


def lift(scale: int) -> int:
    """Return the constant that is added to values of about this scale: so much larger than the values that
    all sums are integers of the same length."""
    return 1 << max(2 * DIGIT, round_up(scale.bit_length() + 9)) + 2


@dataclass(frozen=True, slots=True)
class _Floor:
    """Computes floor(-ln(U) / x) + lifted from the first bits of U, as (log * slope + offset) >> shift with
    log the bounds on -ln(U) of `Logarithm.enclose`; the offsets subtract its lift and add `lifted`."""

    log: Logarithm
    # slope <= 2**(shift - bits) / x <= slope + 1, with bits those of `log`
    slope: int
    shift: int
    low_offset: int
    high_offset: int

    def __call__(self, prefix: int) -> tuple[int, int]:
        """Return a lower and an upper bound on floor(-ln(U) / x) + lifted, for U in [prefix, prefix + 1) /
        2**(bits - MARGIN).

        Proof: -ln(U) > 0 lies between the ends of `enclose` minus their lift; 1/x lies between slope and
               slope + 1, in units of 2**(bits - shift); so -ln(U) / x lies between the two products.
        """
        low, high = self.log.enclose(prefix)
        return (
            (low * self.slope + self.low_offset) >> self.shift,
            (high * (self.slope + 1) + self.high_offset) >> self.shift,
        )


@lru_cache(maxsize=64)
def _floor(numerator: int, denominator: int, bits: int, lifted: int) -> _Floor:
    """Return the `_Floor` for x = numerator / denominator, with so many bits of `slope` that products have
    the same length for all U."""
    log = logarithm(bits)
    slope_bits = bits + 2 * DIGIT
    slope_bits += _to_middle(log.lift * ((denominator << slope_bits) // numerator))
    slope, shift = (denominator << slope_bits) // numerator, bits + slope_bits
    return _Floor(
        log, slope, shift, (lifted << shift) - log.lift * slope, (lifted << shift) - log.lift * (slope + 1)
    )


def _to_middle(number: int) -> int:
    """Return by how many bits to lengthen a number so that half and twice the result have as many digits of
    `DIGIT` bits as the result."""
    return (DIGIT // 3 - number.bit_length()) % DIGIT


def geometric(x: Fraction, entropy: Entropy, lifted: int = 0) -> int:
    """Return one draw with P(G >= k) = exp(-k x), plus `lifted`.

    Proof: G = floor(-ln(U) / x) >= k exactly when U <= exp(-k x). U is drawn bit by bit until its enclosure
           decides the floor; -ln(U) / x is whole with probability zero.
    """
    bits = working_bits(x)
    prefix = entropy.integer(bits - MARGIN)
    while True:
        if prefix:
            low, high = _floor(x.numerator, x.denominator, bits, lifted)(prefix)
            if low == high:
                return low
        prefix = prefix << 2 * DIGIT | entropy.integer(2 * DIGIT)
        bits += 2 * DIGIT


def working_bits(x: Fraction) -> int:
    """Return with how many bits -ln(U) is computed at first: about 64 more than the integer part of
    -ln(U) / x has, so that they nearly always decide."""
    return round_up(66 + (x.denominator // x.numerator).bit_length())


def _draw_laplace_size(rate: Fraction, entropy: Entropy, lifted: int) -> tuple[int, int]:
    """Return (size + lifted, minus) of a discrete Laplace draw: a geometric size, and 1 for a negative sign
    or 0, with equal probability; size 0 with a negative sign is rejected."""
    while True:
        size, minus = geometric(rate, entropy, lifted), entropy.integer(1)
        # `&`, not `and`, and below an index, not an `if`: the same steps for all sizes and signs
        if not (size == lifted) & minus:
            return size, minus


def laplace(rate: Fraction, entropy: Entropy, lifted: int = 0) -> int:
    """Return one draw with weights exp(-rate |k|), plus `lifted`.

    Proof: Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Algorithm 2: a geometric size and a fair sign,
           where 0 with a negative sign is rejected so that 0 is not counted twice.
    """
    size, minus = _draw_laplace_size(rate, entropy, lifted)
    return (size, 2 * lifted - size)[minus]


def gaussian(variance: Fraction, entropy: Entropy, lifted: int = 0) -> int:
    """Return one draw with weights exp(-k² / (2 variance)), plus `lifted`.

    Proof: Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Algorithm 3: a discrete Laplace Y of scale t =
           floor(sigma) + 1, accepted with probability exp(-(|Y| - variance / t)² / (2 variance)).
    """
    scale = isqrt(int(variance)) + 1
    rate = Fraction(1, scale)
    while True:
        size, minus = _draw_laplace_size(rate, entropy, lifted)
        if _accept(size, scale, variance, entropy, lifted):
            return (size, 2 * lifted - size)[minus]


@dataclass(frozen=True, slots=True)
class _Coin:
    """Decides whether -ln(U) is at least (|Y| - variance / scale)² / (2 variance), by integers whose lengths
    do not depend on Y and U: the acceptance step of `gaussian`.

    Y is accepted if log * factor + linear * size >= square * size² + constant, with log the bounds of
    `Logarithm.enclose` and size = |Y| + lifted.
    """

    log: Logarithm
    factor: int
    linear: int
    square: int
    constant: int

    def __call__(self, prefix: int, size: int) -> tuple[bool, bool]:
        """Return whether acceptance is certain, and whether it is possible, for all U in
        [prefix, prefix + 1) / 2**(bits - MARGIN).

        Proof: with variance = v / w, a = w scale and b = lifted a + v, size = |Y| + lifted, the bound is
               (a size - b)² / (2 v w scale²). Multiplied by the denominator and expanded, with the negative
               terms on the other side, it is the inequality above.
        """
        low, high = self.log.enclose(prefix)
        right = self.square * (size * size) + self.constant
        left = self.linear * size
        return low * self.factor + left >= right, high * self.factor + left >= right


@lru_cache(maxsize=64)
def _coin(v: int, w: int, scale: int, bits: int, lifted: int) -> _Coin:
    """Return the coin for the variance v / w, with the integers that do not depend on the draw."""
    log, a = logarithm(bits), w * scale
    b, factor = lifted * a + v, 2 * v * w * scale * scale
    more = _to_middle(log.lift * factor)
    factor, bits = factor << more, bits + more
    return _Coin(log, factor, 2 * a * b << bits, a * a << bits, (b * b << bits) + log.lift * factor)


def _accept(size: int, scale: int, variance: Fraction, entropy: Entropy, lifted: int) -> bool:
    """Toss a coin of probability exp(-c), c = (|Y| - variance / scale)² / (2 variance), where `size` is |Y| +
    lifted: U <= exp(-c) exactly when -ln(U) >= c."""
    bits = round_up(66)
    prefix = entropy.integer(bits - MARGIN)
    while True:
        if prefix:
            certain, possible = _coin(variance.numerator, variance.denominator, scale, bits, lifted)(
                prefix, size
            )
            if certain == possible:
                return certain
        prefix = prefix << 2 * DIGIT | entropy.integer(2 * DIGIT)
        bits += 2 * DIGIT
