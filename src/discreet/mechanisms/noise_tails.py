"""Computes variances and tail bounds of discrete Laplace and Gaussian noise, and square roots that are
rounded in a stated direction.

Most variances (to the nearest float) and tail bounds (never too small) decide only the errors that are
reported. p-values of `adaptive.significance` rest on `laplace_error` and `laplace_sum_error`. Privacy depends
on `sqrt_down` and `sqrt_up` where a mechanism takes its noise or its epsilon from them. Their directions must
stay.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

import mpmath
import numpy as np

from .. import _require
from . import certified

# Decimal digits of mpmath: far more than the 17 of a float, to which results are rounded.
_DIGITS = 50
# Up to this sigma the discrete Gaussian's tail is summed term by term; beyond, it is bounded by the normal
# tail, which is close there. Not tuned: either way is a bound for every sigma.
_LARGEST_SUMMED_SIGMA = 64


def failure_per_draw(confidence: float, entries: int) -> mpmath.mpf:
    """Return the failure probability of each of `entries` independent draws, so that all hold with
    probability `confidence` (the Šidák correction)."""
    _require.open_probability(confidence=confidence)
    _require.integer(entries=entries, at_least=1)
    with mpmath.workdps(_DIGITS):
        return -mpmath.expm1(mpmath.log(mpmath.mpf(float(confidence))) / int(entries))


@lru_cache(maxsize=4096)
def laplace_error(scale: Fraction, failure: mpmath.mpf) -> int:
    """Return the smallest t >= 0 with P(|X| > t) <= failure for discrete Laplace noise X: that probability is
    2 p^(t+1) / (1 + p), p = exp(-1 / scale)."""
    with mpmath.workdps(_DIGITS):
        s = _mpf(scale)
        p = mpmath.exp(-1 / s)
        return max(0, int(mpmath.ceil(s * mpmath.log(2 / ((1 + p) * failure)))) - 1)


@lru_cache(maxsize=4096)
def laplace_variance(scale: Fraction) -> float:
    """Return the variance of discrete Laplace noise: 2p / (1 - p)² = 1 / (2 sinh²(1 / (2 scale))) with
    p = exp(-1 / scale)."""
    with mpmath.workdps(_DIGITS):
        return float(1 / (2 * mpmath.sinh(1 / (2 * _mpf(scale))) ** 2))


@lru_cache(maxsize=4096)
def laplace_sum_error(scale: Fraction, terms: int, failure: float) -> int:
    """Return a t with P(|X1 + ... + Xn| > t) <= failure, for n = `terms` independent discrete Laplace draws.

    Guarantee: holds exactly; no rounding can make t too small.
    Proof:     by Markov's inequality in both directions, P(|S| >= t) <= 2 exp(n ln E exp(l X) - l t) for the
               sum S and every 0 < l < 1 / scale. l is theta / scale. Floats choose theta from a grid, which
               decides only how small t is; for this theta t is computed from certified upper bounds of both
               logarithms. A scale below 1/20000 is raised to it: wider noise has the larger E exp(l X).
    """
    scale = max(scale, Fraction(1, 20_000))
    log_inverse_failure, s = math.log(2 / failure), float(scale)

    def estimate(theta: float) -> float:
        # sinh(l / 2) / sinh(1 / (2 scale)), of which ln E exp(l X) is -ln(1 - ratio²), without cancellation
        ratio = math.exp((theta - 1) / s / 2) * math.expm1(-theta / s) / math.expm1(-1 / s)
        return (log_inverse_failure - terms * math.log1p(-(ratio**2))) / theta

    # From 0.95 down by 5% each (not tuned): whatever the number of terms, one is close to the best.
    theta = Fraction(min((0.95**i for i in range(1, 600)), key=estimate))
    exponent = terms * Fraction(certified.log_above(_laplace_mgf_above(scale, theta)))
    exponent += Fraction(certified.log_above(2 / Fraction(failure)))
    return math.ceil(exponent * scale / theta)


def _laplace_mgf_above(scale: Fraction, theta: Fraction) -> Fraction:
    """Return a rational that is at least E exp(l X), for discrete Laplace noise X and l = theta / scale.

    Proof: with p = exp(-1 / scale), E exp(l X) = (1-p)² / ((1 - p e^l)(1 - p e^-l)) = (C - 1) / (C - c), for
           C = cosh(1 / scale) and c = cosh(l). It falls with C and grows with c, which are bounded from below
           and from above. It is also 1 / (1 - r²) with r = sinh(l / 2) / sinh(1 / (2 scale)) <= theta, since
           sinh(x) / x grows with x; for a large scale that bound is the closer one.
    """
    bound = 1 / (1 - theta**2)
    low, high = certified.exp_bounds(1 / scale)
    l_low, l_high = certified.exp_bounds(theta / scale)
    large_cosh, small_cosh = (low + 1 / high) / 2, (l_high + 1 / l_low) / 2
    if large_cosh > small_cosh:
        bound = min(bound, (large_cosh - 1) / (large_cosh - small_cosh))
    # At least 1 + 2**-60: closer to 1, certified logarithms take long.
    return max(bound, 1 + Fraction(1, 1 << 60))


@lru_cache(maxsize=4096)
def gaussian_error(sigma_squared: Fraction, failure: mpmath.mpf) -> int:
    """Return the smallest t for which `gaussian_tail` proves P(|X| > t) <= failure."""
    low, high = -1, 1
    while gaussian_tail(sigma_squared, high) > failure:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if gaussian_tail(sigma_squared, middle) > failure:
            low = middle
        else:
            high = middle
    return high


def laplace_width(scale: Fraction, confidence: float) -> float:
    """Return the half-width of the interval of a linear combination of independent discrete Laplace draws, in
    standard deviations of the combination; `_combined_width` says how.

    One continuous draw has the quantile ln(1 / failure) scales, many have the normal one, and no combination
    that was tried exceeds the larger of the two more often than it should.
    """
    laplace = -math.log1p(-confidence) / math.sqrt(2)
    quantile = max(NormalDist().inv_cdf((1 + confidence) / 2), laplace)
    return _combined_width(quantile * math.sqrt(2) * float(scale), laplace_variance(scale), confidence)


def gaussian_width(sigma_squared: Fraction, confidence: float) -> float:
    """Return `laplace_width` for discrete Gaussian draws.

    The noise is sub-Gaussian with parameter sigma (Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4,
    Corollary 17), and so is every combination: it exceeds sigma sqrt(2 ln(2 / failure)) with at most that
    probability. For narrow noise this is the smaller bound.
    """
    sigma = math.sqrt(sigma_squared)
    variance = gaussian_variance(sigma_squared)
    if not variance:
        return 1 / math.sqrt(1 - confidence)
    quantile = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(sigma**2 + 1 / 12)
    sub_gaussian = sigma * math.sqrt(2 * math.log(2 / (1 - confidence)) / variance)
    return min(sub_gaussian, _combined_width(quantile, variance, confidence))


def _combined_width(quantile: float, variance: float, confidence: float) -> float:
    """Return the half-width, in standard deviations, from the `quantile` of one continuous noise.

    A combination S with largest coefficient a becomes nearly continuous if a uniform number between -a / 2
    and a / 2 is added to it, and moves by at most a / 2: so it is within the continuous quantile plus a / 2,
    and a is at most the length of all coefficients. Chebyshev's bound is smaller for very narrow noise.
    Exact distributions of many combinations are covered with at least the confidence
    (tests/mechanisms/test_noise_tails.py); the wider the noise, the closer.
    """
    chebyshev = 1 / math.sqrt(1 - confidence)
    # the variance of noise that is nearly always 0 may be 0 in floats
    return min(chebyshev, (quantile + 1 / 2) / math.sqrt(variance)) if variance else chebyshev


def gaussian_tail(sigma_squared: Fraction, t: int) -> float:
    """Return an upper bound of P(|X| > t) for the discrete Gaussian with parameter sigma² = `sigma_squared`
    (its variance, `gaussian_variance`, is a little smaller).

    Proof: narrow distributions are summed, with slack for rounding. For wide ones let f(x) = exp(-x² / (2
           sigma²)), m = t + 1, and Q the normal tail. By Poisson summation the normalizer is at least the
           integral sigma sqrt(2 pi). Beyond sigma f is convex, so f(k) is at most its mean over [k - 1/2,
           k + 1/2], which gives P(|X| >= m) <= 2 Q((m - 1/2) / sigma) once m - 1/2 >= sigma. For a smaller m
           f still decreases, so f(k) is at most its mean over [k - 1, k], which gives 2 Q((m - 1) / sigma).
    """
    if t < 0:
        return 1.0
    if sigma_squared <= _LARGEST_SUMMED_SIGMA**2:
        # A parameter that a float would take for zero is raised: a wider distribution has the larger tail.
        return _summed_tail(max(float(sigma_squared), 1e-300), t)
    with mpmath.workdps(_DIGITS):
        sigma, m = mpmath.sqrt(_mpf(sigma_squared)), t + 1
        edge = m - mpmath.mpf(1) / 2 if m - mpmath.mpf(1) / 2 >= sigma else mpmath.mpf(m - 1)
        return min(1.0, math.nextafter(float(mpmath.erfc(edge / (sigma * mpmath.sqrt(2)))), 1.0))


def _summed_tail(sigma_squared: float, t: int) -> float:
    """Return P(|X| > t) as a sum of positive floats, enlarged by a factor 1 + 1e-12 for their rounding.

    The sum of f(x) = exp(-x² / (2 sigma²)) is cut off at `last`, 40 sigma or further out. The summands from
    there on are bounded by a geometric series with ratio f(last + 1) / f(last) <= exp(-(2 last + 1) / (2
    sigma²)) <= exp(-40 / sigma) < 0.54 for sigma up to 64, so they add up to at most 3 f(last). The
    normalizer is cut off at `reach`, which only enlarges the result.
    """
    reach = 40 * (math.isqrt(int(sigma_squared)) + 1)
    weights = np.exp(-(np.arange(1, reach, dtype=np.float64) ** 2) / (2 * sigma_squared))
    last = max(t + 2, reach)
    beyond = np.exp(-(np.arange(t + 1, last, dtype=np.float64) ** 2) / (2 * sigma_squared))
    beyond_last = 3 * math.exp(-(last**2) / (2 * sigma_squared))
    return min(1.0, 2 * (math.fsum(beyond) + beyond_last) / (1 + 2 * math.fsum(weights)) * (1 + 1e-12))


def gaussian_variance(sigma_squared: Fraction) -> float:
    """Return the variance of the discrete Gaussian with parameter sigma² = `sigma_squared`: the sum of
    k² exp(-k² / (2 sigma²)) divided by the sum of exp(-k² / (2 sigma²)).

    For sigma² > 16 it equals sigma² to more than 100 digits (the correction is of order exp(-2 pi² sigma²)).
    """
    if sigma_squared > 16:
        return float(sigma_squared)
    with mpmath.workdps(_DIGITS):
        weights = [mpmath.exp(-mpmath.mpf(k * k) / (2 * _mpf(sigma_squared))) for k in range(1, 100)]
        second = 2 * mpmath.fsum(k * k * w for k, w in enumerate(weights, start=1))
        return float(second / (1 + 2 * mpmath.fsum(weights)))


def sqrt_up(x: Fraction) -> Fraction:
    """Return a rational at least sqrt(x), too large by at most 2**-63 (absolute)."""
    return Fraction(math.isqrt(math.ceil(x * (1 << 128))) + 1, 1 << 64)


def sqrt_down(x: Fraction) -> Fraction:
    """Return a rational at most sqrt(x), too small by at most 2**-64 of it (relative)."""
    shift = max(0, x.denominator.bit_length() - x.numerator.bit_length()) + 130
    shift += shift % 2
    return Fraction(math.isqrt(math.floor(x * (1 << shift))), 1 << shift // 2)


def _mpf(x: Fraction) -> mpmath.mpf:
    return mpmath.mpf(x.numerator) / x.denominator
