"""Encloses the numbers with which samplers compare a uniform U, certified, between integers.

A number y in [0, 1] is described by a function `digits(bits)` that returns integers (low, high) with
low <= 2**bits * y <= high and high - low at most a few units. `below` then decides U < y exactly, for a
uniform U of which only the first bits are known (its prefix, as an integer), by drawing more bits of U until
the interval of U and the interval of y are disjoint.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from mpmath import libmp

from ._entropy import Entropy

# From a number of bits to (low, high); see above.
Digits = Callable[[int], tuple[int, int]]

# How many more bits mpmath computes with than are used. Its last 30 bits are assumed to be wrong (2**30 units
# in the last place, far more than mpmath's errors).
_SPARE = 40


def exp_neg(x: Fraction, bits: int) -> tuple[int, int]:
    """Return integers (low, high) with low <= 2**bits * exp(-x) <= high and high - low <= 3, for x >= 0.

    Proof:   the argument is at most `bits`, so rounding it to `working` bits moves exp(-x) by less than
             2**-(bits+38); 2**30 units in the last of `working` bits are less than 2**-(bits+9). Together
             they move 2**bits * exp(-x) by less than 1, and `to_fixed` rounds to an integer by less than 1.
    Assumes: mpmath's exp is right to within 2**30 units in the last place.
    """
    if x == 0:
        return 1 << bits, 1 << bits
    # exp(-x) < 2**-bits
    if x > bits:
        return 0, 1
    working = bits + _SPARE + bits.bit_length()
    argument = libmp.from_rational(-x.numerator, x.denominator, working)
    value = int(libmp.to_fixed(libmp.mpf_exp(argument, working), bits))
    return max(value - 1, 0), min(value + 2, 1 << bits)


def log(x: Fraction, bits: int) -> tuple[int, int]:
    """Return integers (low, high) with low <= 2**bits * ln(x) <= high and high - low <= 3, for x > 0.

    Proof:   rounding the argument to `working` bits moves ln(x) by less than 2**-(bits+38); and |ln(x)| is
             below `magnitude`, so 2**30 units in the last of `working` bits are less than 2**-(bits+13).
    Assumes: mpmath's log is right to within 2**30 units in the last place.
    """
    magnitude = max(x.numerator.bit_length(), x.denominator.bit_length())
    working = bits + _SPARE + magnitude.bit_length() + 4
    argument = libmp.from_rational(x.numerator, x.denominator, working)
    value = int(libmp.to_fixed(libmp.mpf_log(argument, working), bits))
    return value - 1, value + 2


def minus_log(prefix: int, length: int, bits: int) -> tuple[int, int] | None:
    """Return integers around 2**bits * -ln(U) for all U in [prefix, prefix + 1) / 2**length; None if U may be
    zero."""
    if prefix == 0:
        return None
    low = -log(Fraction(prefix + 1, 1 << length), bits)[1]
    high = -log(Fraction(prefix, 1 << length), bits)[0]
    return max(low, 0), high


def rational(p: Fraction) -> Digits:
    """Return the digits of a rational number."""

    def digits(bits: int) -> tuple[int, int]:
        low, rest = divmod(p.numerator << bits, p.denominator)
        return low, low + (rest > 0)

    return digits


def exponential(x: Fraction) -> Digits:
    """Return the digits of exp(-x)."""
    return lambda bits: exp_neg(x, bits)


def below(prefix: int, bits: int, digits: Digits, entropy: Entropy) -> bool:
    """Return whether U < y, for U uniform on [0, 1) whose first `bits` bits are `prefix`.

    Proof: U lies in [prefix, prefix + 1) / 2**bits. If prefix + 1 <= low then U < y; if prefix >= high then U
           >= y; otherwise 64 more bits are appended. A further round is needed with probability about 2**-62.
    """
    while True:
        low, high = digits(bits)
        if prefix + 1 <= low:
            return True
        if prefix >= high:
            return False
        prefix = prefix << 64 | entropy.integer(64)
        bits += 64
