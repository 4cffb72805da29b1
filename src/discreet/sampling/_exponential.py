"""Computes -ln(U) for a uniform U, as integers that are proved to enclose it, by the same steps on numbers of
the same lengths whatever U is.

An observer who can time a draw must not learn its size. So nothing here branches on U, and every number is
kept at a length that does not depend on U: Python stores integers in digits of 30 bits (or 15), drops leading
zeros, and takes longer for more digits. Lengths are therefore multiples of 30 bits, and a constant (`lift`)
is added to every number that may come near zero.

Changing an operation here, even to a faster one, may make its time depend on U again.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from . import _bounds

# Bits of a digit of a Python integer: lengths are whole digits, so that no operation takes longer for some U.
DIGIT = 30
# Leading bits of a number that stay zero, so that a sum has no more digits than its terms.
MARGIN = 2
# The series of the logarithm is around c = 1 - 2**-8, not around 1: its variable z is then never so small
# that its leading digit would be zero.
_CENTER_BITS = 8
# A bound on the error of the series, in units of 2**-bits; see `enclose`.
_SERIES_ERROR = 7


def round_up(bits: int) -> int:
    """Return a number of bits rounded up to whole digits."""
    return -(-bits // DIGIT) * DIGIT


@dataclass(frozen=True, slots=True)
class Logarithm:
    """Holds the constants with which `enclose` computes -ln(U) from the first (bits - `MARGIN`) bits of U;
    all but `bits` and `turns` are in units of 2**-bits."""

    bits: int
    # c / 4 for c = 1 - 2**-8
    center: int
    # ln(2), rounded down
    log_two: int
    # how often `lift` holds ln(2): a power of two above `bits`
    turns: int
    # -ln(c), rounded up, plus a bound on the error of log_two times at most `turns`
    top: int
    # a bound on the errors of log_two, `top` and the series together
    spread: int
    # 1/(2i + 1), the last i first
    coefficients: tuple[int, ...]

    @property
    def lift(self) -> int:
        """The constant that `enclose` adds to -ln(U)."""
        return self.turns * self.log_two

    def enclose(self, prefix: int) -> tuple[int, int]:
        """Return (low, high) with low <= 2**bits * -ln(U) + lift <= high for all U in [prefix, prefix + 1) /
        2**(bits - 2), prefix > 0.

        Proof: with j = bits - 1 - the length of prefix, U = 2**-j m at the lower end, for m in [1, 2); and
               ln(m) = ln(c) + 2 artanh(z) with z = (m - c) / (m + c) in (0.0019, 0.3351), z² < 0.1124. In
               units: rounding down costs z at most 1, z² at most 1 + 2 z < 1.68, and a step s' = 1/(2i + 1) +
               z² s of Horner's rule 2, another 0.4 * 1.68 for the error of z² (for s < 0.4) and 0.1124 of the
               error of s: together below 2.68 / (1 - 0.1124) < 3.1. What the series leaves out is below 1
               unit, for it has more than bits / 3.15 terms and 0.1124 < 2**-3.15. So 2 z s is off by at most
               2 (1.05 + 0.336 * 4.1) + 1 < 7 units, downwards. ln(c) and ln(2) are at most 3 above what is
               stored, and ln(2) is taken j <= turns times. Finally ln(prefix + 1) - ln(prefix) <= 1 / prefix
               <= 2**(j + 2 - bits): 2**(j + 2) units, written below as the difference of two numbers of full
               length.
        """
        shift = self.bits - 1 - prefix.bit_length()
        # m / 4
        mantissa = prefix << shift
        lower, upper = prefix << shift + MARGIN, (prefix + 1) << shift + MARGIN
        z = ((mantissa - self.center) << self.bits) // (mantissa + self.center)
        square = z * z >> self.bits
        total = 0
        for coefficient in self.coefficients:
            total = coefficient + (total * square >> self.bits)
        high = (self.turns + shift) * self.log_two + self.top - (z * total >> self.bits - 1)
        return high - self.spread + lower - upper, high


@lru_cache(maxsize=64)
def logarithm(bits: int) -> Logarithm:
    """Return the constants for `bits` bits, a multiple of `DIGIT`."""
    center = (1 << bits - MARGIN) - (1 << bits - MARGIN - _CENTER_BITS)
    turns = 1 << bits.bit_length()
    return Logarithm(
        bits=bits,
        center=center,
        log_two=_bounds.log(Fraction(2), bits)[0],
        turns=turns,
        top=3 * turns - _bounds.log(Fraction(center, 1 << bits - MARGIN), bits)[0],
        spread=3 * turns + 3 + _SERIES_ERROR,
        coefficients=tuple((1 << bits) // (2 * i + 1) for i in range(bits * 100 // 315 + 1, -1, -1)),
    )
