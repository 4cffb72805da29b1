"""Unsampled Gaussians in closed form: they compose to one Gaussian, whose curve Balle & Wang gave.

delta(epsilon) = Phi(m/2 - epsilon/m) - e^epsilon Phi(-m/2 - epsilon/m), with m² the sum of 1/s² over all
releases (Balle & Wang 2018, arXiv:1805.06530, Theorem 8; composition: Dong, Roth & Su 2022, Corollary 3.3).
"""

from __future__ import annotations

import math

from scipy.special import erfcx, ndtr

from .arrays import U

# erfcx takes its argument over the root of two.
_SQRT2 = math.sqrt(2)
# The b from which on delta is taken as a tail of the normal distribution: at 1e6 its square, rounded, is off
# by 1e-4, and the second term is a millionth of the first.
_CANCELLED = 1e6


def gaussian_delta(shift: float, epsilon: float) -> tuple[float, float]:
    """Return a lower and an upper bound on delta of a Gaussian with shift m = sensitivity over noise.

    Both terms are the normal density at the same point times Mills ratios: their difference is taken there,
    so that a tiny delta keeps its relative accuracy. The width of the bracket is what the special functions
    may be off by.
    """
    if shift == 0:
        return 0.0, 0.0
    a, b = epsilon / shift - shift / 2, epsilon / shift + shift / 2
    if b > _CANCELLED:
        return _nearly_normal(a, b)
    if a < -1:
        near, far = float(ndtr(-a)), math.exp(_log_tail(b) + epsilon)
        error = U * (
            64 * (near + far)
            + 32 * (near * a * a + far * (b * b + epsilon)) * (1 if abs(a) < 30 else 0)
            + 1e-300
        )
        return max(0.0, near - far - error), min(1.0, near - far + error)
    density = math.exp(-0.5 * a * a) / 2
    near, far = float(erfcx(a / _SQRT2)), float(erfcx(b / _SQRT2))
    error = 64 * U * (near * (1 + a * a) + far * (1 + b * b))
    low, high = density * (near - far - error), density * (near - far + error)
    return max(0.0, low * (1 - 1e-12)), min(1.0, high * (1 + 1e-12) + 1e-320)


def _nearly_normal(a: float, b: float) -> tuple[float, float]:
    """Return bounds on delta where b is so large that a, the difference of two numbers of its size, is not
    known to all digits, and the second term of delta hardly counts.

    Proof: a is off by at most 4 u b; Phi(-a) falls with a; and the second term, the normal density at a times
           the Mills ratio at b, lies between 0 and that density over b.
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
    """Return a lower and an upper bound on epsilon, by bisection on the bracket of delta."""
    return _root(shift, delta, 0), _root(shift, delta, 1)


def _root(shift: float, delta: float, side: int) -> float:
    """Return the largest epsilon whose lower bound still exceeds delta (side 0), or smallest whose upper
    bound does not (side 1)."""
    if gaussian_delta(shift, 0.0)[side] <= delta:
        return 0.0
    low, high = 0.0, shift
    while gaussian_delta(shift, high)[side] > delta:
        # Below what the bracket allows for rounding, no epsilon is proved for such a delta.
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
