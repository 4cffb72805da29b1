"""Unsampled Gaussians in closed form: they compose to one Gaussian, whose curve is known.

delta(epsilon) = Phi(m/2 - epsilon/m) - e^epsilon Phi(-m/2 - epsilon/m), with Phi the standard normal
distribution function and m² the sum of 1/s² over all releases, s their noise multipliers (Balle & Wang 2018,
arXiv:1805.06530, Theorem 8; composition: Dong, Roth & Su 2022, arXiv:1905.02383, Corollary 3.3).

Symbols: a = epsilon/m - m/2 and b = epsilon/m + m/2, so that delta = Phi(-a) - e^epsilon Phi(-b), "first" and
"second" term; U is the unit roundoff 2^-53. The Mills ratio at x is Phi(-x) divided by the normal density at
x; it is erfcx(x / sqrt(2)) up to a constant factor.
"""

from __future__ import annotations

import math

from scipy.special import erfcx, ndtr

from .arrays import U

# Phi(-x) = erfc(x / sqrt(2)) / 2 = e^(-x²/2) erfcx(x / sqrt(2)) / 2.
_SQRT2 = math.sqrt(2)
# For a larger b delta is bounded by a normal tail alone: at 1e6 the rounding error of b² is 1e-4, and the
# second term is a millionth of the first.
_CANCELLED = 1e6


def gaussian_delta(shift: float, epsilon: float) -> tuple[float, float]:
    """Return a lower and an upper bound on delta of a Gaussian with shift m = sensitivity / noise.

    Both terms are the normal density at a times a Mills ratio, at a and at b. The difference of the ratios is
    taken first, so that a tiny delta keeps its relative accuracy. The bounds are as far apart as the special
    functions may err, with a margin.
    """
    if shift == 0:
        return 0.0, 0.0
    a, b = epsilon / shift - shift / 2, epsilon / shift + shift / 2
    if b > _CANCELLED:
        return _nearly_normal(a, b)
    if a < -1:
        # At a <= -30 the second term and 1 - Phi(-a) are below 1e-190, and their errors do not count.
        first, second = float(ndtr(-a)), math.exp(_log_tail(b) + epsilon)
        error = U * (
            64 * (first + second)
            + 32 * (first * a * a + second * (b * b + epsilon)) * (1 if abs(a) < 30 else 0)
            + 1e-300
        )
        return max(0.0, first - second - error), min(1.0, first - second + error)
    density = math.exp(-0.5 * a * a) / 2
    first, second = float(erfcx(a / _SQRT2)), float(erfcx(b / _SQRT2))
    error = 64 * U * (first * (1 + a * a) + second * (1 + b * b))
    low, high = density * (first - second - error), density * (first - second + error)
    return max(0.0, low * (1 - 1e-12)), min(1.0, high * (1 + 1e-12) + 1e-320)


def _nearly_normal(a: float, b: float) -> tuple[float, float]:
    """Return bounds on delta where b is large: a, the difference of two numbers of up to the size of b, has
    lost digits, and the second term of delta is tiny.

    Proof: the rounding error of a is at most 4 U b; Phi(-a) falls with a; and the second term, the normal
           density at a times the Mills ratio at b, lies between 0 and that density divided by b.
    """
    moved = 4 * U * b
    least, largest = (_tail_bounds(x) for x in (a + moved, a - moved))
    second = math.exp(-0.5 * max(abs(a) - moved, 0.0) ** 2) / b if abs(a) < 1e3 + moved else 0.0
    return max(0.0, least[0] - second), largest[1]


def _tail_bounds(z: float) -> tuple[float, float]:
    """Return a lower and an upper bound on Phi(-z)."""
    tail = float(ndtr(-z))
    error = U * (64 + 32 * min(z * z, 1600.0)) * tail + 1e-300
    return max(0.0, tail - error), min(1.0, tail + error)


def _log_tail(z: float) -> float:
    """Return log Phi(-z) for z >= 0."""
    return -0.5 * z * z + math.log(float(erfcx(z / _SQRT2)) / 2)


def gaussian_epsilon(shift: float, delta: float) -> tuple[float, float]:
    """Return a lower and an upper bound on epsilon, by bisection on the bounds of delta."""
    return _root(shift, delta, 0), _root(shift, delta, 1)


def _root(shift: float, delta: float, side: int) -> float:
    """Return about the largest epsilon at which the lower bound on its delta exceeds `delta` (side 0), or the
    smallest at which the upper bound does not (side 1); exact in the safe direction."""
    if gaussian_delta(shift, 0.0)[side] <= delta:
        return 0.0
    low, high = 0.0, shift
    while gaussian_delta(shift, high)[side] > delta:
        # The bounds never fall below their allowance for rounding: for a smaller delta nothing is proved.
        if math.isinf(high):
            return high
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if gaussian_delta(shift, middle)[side] > delta:
            low = middle
        else:
            high = middle
    return low if side == 0 else high
