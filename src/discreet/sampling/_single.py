"""A few draws at once, without the tables that many draws share: slower a draw, nothing to prepare."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from . import _bounds
from ._entropy import Entropy


def geometric(x: Fraction, entropy: Entropy) -> int:
    """One draw with P(G >= k) = exp(-k x).

    Proof: G = floor(-ln(U) / x) >= k exactly when U <= exp(-k x). U is drawn bit by bit until its enclosure decides the
           floor; -ln(U) / x is whole with probability zero.
    """
    length = 64 + int(1 / x).bit_length()
    prefix = entropy.integer(length)
    while True:
        bits = length + 8
        found = _bounds.minus_log(prefix, length, bits)
        if found is not None:
            low, high = (Fraction(end, 1 << bits) // x for end in found)
            if low == high:
                return low
        prefix = prefix << 64 | entropy.integer(64)
        length += 64


def laplace(rate: Fraction, entropy: Entropy) -> int:
    """One draw with weights exp(-rate |k|).

    Proof: Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Algorithm 2: a geometric size and a fair sign, with
           (0, minus) refused so that 0 is not counted twice.
    """
    while True:
        size = geometric(rate, entropy)
        if not entropy.integer(1):
            return size
        if size:
            return -size


def gaussian(variance: Fraction, entropy: Entropy) -> int:
    """One draw with weights exp(-k² / (2 variance)).

    Proof: Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Algorithm 3: a discrete Laplace Y of scale t =
           floor(sigma) + 1, accepted with probability exp(-(|Y| - variance / t)² / (2 variance)).
    """
    scale = isqrt(int(variance)) + 1
    while True:
        proposal = laplace(Fraction(1, scale), entropy)
        cost = (abs(proposal) - variance / scale) ** 2 / (2 * variance)
        if _bounds.below(entropy.integer(64), 64, _bounds.exponential(cost), entropy):
            return proposal
