"""Computes how much noise (epsilon, delta)-DP needs: the classical rule, the analytic one, and the exact
discrete counterparts.

Each result is rounded towards more noise. `classical_gaussian` is for teaching: it holds below epsilon 1 only
and wastes noise.

>>> round(classical_gaussian(0.5, 1e-5), 3), round(analytic_gaussian(0.5, 1e-5), 3)
(9.69, 7.032)
>>> round(math.sqrt(discrete_gaussian(0.5, 1e-5)), 3)
7.031
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np

from .. import _require, _round
from .._require import Real

# Decimal digits of mpmath: a result is rounded to a float once, at the end, towards more noise.
_DIGITS = 50
# The relative width of the bracket in which a variance is searched; `discrete_gaussian` promises 1e-6.
_TOLERANCE = 1e-7
# Below this variance, which a float may round to zero, no sum is taken: delta is bounded by 1.
_LEAST_VARIANCE = Fraction(1, 10**300)
# Beyond this sigma the sum over integers, which would be long, is bounded by an integral. Chosen by hand.
_WIDEST_SUM = 1 << 12


def classical_gaussian(epsilon: Real, delta: float, sensitivity: Real = 1) -> float:
    """Return sigma = sensitivity sqrt(2 ln(1.25 / delta)) / epsilon, as in lectures and textbooks; refused
    for epsilon >= 1.

    Guarantee: continuous noise N(0, sigma²) is (epsilon, delta)-DP for 0 < epsilon < 1.
    Proof:     Dwork & Roth 2014, Theorem 3.22 / A.1. Beyond 1 it is false (Balle & Wang 2018, section 2).
    """
    _check(epsilon, delta)
    _require.positive(sensitivity=sensitivity)
    _require.that(
        epsilon < 1,
        "the classical formula sqrt(2 ln(1.25/delta)) is proved for epsilon below 1, got "
        f"{float(epsilon):g}. Use analytic_gaussian, which is right for every epsilon and needs less "
        "noise.",
    )
    with mpmath.workdps(_DIGITS):
        sigma = _mpf(sensitivity) * mpmath.sqrt(2 * mpmath.log(1.25 / _mpf(delta))) / _mpf(epsilon)
        return _up(sigma)


def gaussian_delta(epsilon: Real, noise_multiplier: Real) -> float:
    """Return the smallest delta of continuous Gaussian noise at epsilon, rounded up.

    Proof: Balle & Wang 2018, arXiv:1805.06530v2, Theorem 8: delta = Phi(1/(2s) - eps s) - e^eps Phi(-1/(2s) -
           eps s), where s is the noise multiplier.
    """
    _require.non_negative(epsilon=epsilon)
    _require.positive(noise_multiplier=noise_multiplier)
    with mpmath.workdps(_DIGITS):
        return min(1.0, _up(_gaussian_delta(_mpf(epsilon), _mpf(noise_multiplier))))


def analytic_gaussian(epsilon: Real, delta: float, sensitivity: Real = 1) -> float:
    """Return the least sigma for which continuous noise N(0, sigma²) is (epsilon, delta)-DP, to 1e-12
    relative, rounded up.

    Guarantee: (epsilon, delta)-DP for every epsilon > 0 and 0 < delta < 1.
    Proof:     Balle & Wang 2018, arXiv:1805.06530v2, Theorem 8 and Algorithm 1: delta decreases in sigma; the
               upper end of the bisection, evaluated to 50 digits, is returned.
    """
    _check(epsilon, delta)
    _require.positive(sensitivity=sensitivity)
    with mpmath.workdps(_DIGITS):
        exact_epsilon, exact_delta = _mpf(epsilon), _mpf(delta)
        sigma = _least(lambda s: _gaussian_delta(exact_epsilon, mpmath.mpf(s)) <= exact_delta, 1e-13)
        return _up(mpmath.mpf(sigma) * _mpf(sensitivity))


def discrete_laplace(epsilon: Real, sensitivity: int = 1) -> Fraction:
    """Return the scale for which discrete Laplace noise on integers is epsilon-DP: sensitivity / epsilon,
    exactly."""
    _require.positive(epsilon=epsilon)
    _require.integer(sensitivity=sensitivity, at_least=1)
    return Fraction(int(sensitivity)) / _require.exact(epsilon, "epsilon")


def discrete_gaussian_delta(epsilon: Real, variance: Real, sensitivity: int = 1) -> float:
    """Return an upper bound on the exact delta of discrete Gaussian noise at epsilon, for an integer that
    moves by `sensitivity`.

    Proof: Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Theorem 7: with Y the noise, D the sensitivity
           and sigma² the variance, delta = P(Y > y0) - e^eps P(Y > y0 + D), y0 = eps sigma² / D - D / 2.
           Written as one sum of the terms f(y) (1 - exp(-(y - y0) D / sigma²)) over integers y > y0, with
           f(y) = exp(-y² / 2 sigma²), and divided by the normaliser (the sum of f over all integers), no term
           is negative and nothing cancels. Wide noise: with g(y) that term (0 up to y0), the sum and the
           integral of g differ by at most an eighth of the total variation of g' (Peano kernel of the
           midpoint rule; see `_integrated_delta`), and the normaliser is at least sigma sqrt(2 pi).
    """
    _require.non_negative(epsilon=epsilon)
    _require.positive(variance=variance)
    _require.integer(sensitivity=sensitivity, at_least=1)
    v, d = _require.exact(variance, "variance"), int(sensitivity)
    y0 = _require.exact(epsilon, "epsilon") * v / d - Fraction(d, 2)
    if v <= _WIDEST_SUM**2:
        return _summed_delta(v, d, y0)
    return _integrated_delta(_require.exact(epsilon, "epsilon"), v, d, y0)


def discrete_gaussian(
    epsilon: Real, delta: float, *, linf: int = 1, l0: int = 1, l2_squared: int | None = None
) -> Fraction:
    """Return the least sigma² (to 1e-6 relative) for which discrete Gaussian noise on integers is provably
    (epsilon, delta)-DP.

    One unit moves at most `l0` entries by at most `linf` each, and by `l2_squared` in squared l2 if that is
    tighter.

    Guarantee: (epsilon, delta)-DP for the returned variance, the smaller one of two proofs. Where l0 > 1 and
               l2_squared is below l0 linf², only (b) is used, as (a) does not know l2_squared.
    Proof:     (a) `_product_delta` for (l0, linf); for one entry it is `discrete_gaussian_delta` itself.
               (b) zCDP with rho = l2_squared / (2 sigma²) (Canonne, Kamath & Steinke 2020, Theorem 14) and
                   `zcdp_delta`.
    """
    _check(epsilon, delta)
    _require.integer(linf=linf, l0=l0, at_least=1)
    # numpy's integers would wrap in the squares below
    linf, l0 = int(linf), int(l0)
    full_l2_squared = l0 * linf**2
    if l2_squared is not None:
        _require.integer(l2_squared=l2_squared, at_least=1)
    tight_l2_squared = full_l2_squared if l2_squared is None else min(full_l2_squared, int(l2_squared))
    if l0 == 1:
        # A single entry moves by at most its l2 norm, rounded down.
        linf = min(linf, math.isqrt(tight_l2_squared))
    rho = zcdp_rho(epsilon, delta)
    by_rho = Fraction(tight_l2_squared) / (2 * Fraction(rho))
    if l0 > 1 and tight_l2_squared < full_l2_squared:
        return by_rho
    unit = _least(lambda v: _product_delta(epsilon, Fraction(v) * linf**2, linf, l0) <= delta, _TOLERANCE)
    return min(by_rho, Fraction(unit) * linf**2)


def zcdp_delta(rho: Real, epsilon: Real) -> float:
    """Return the delta at epsilon that rho-zCDP implies, rounded up.

    Proof: Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Proposition 12, with Rényi divergence a rho:
           for every order a > 1, delta = (exp((a - 1)(a rho - eps)) / (a - 1)) (1 - 1/a)^a is enough; the
           order found by search need not be the best one.
    """
    _require.positive(rho=rho)
    _require.non_negative(epsilon=epsilon)
    rho_above, epsilon_below = _round.up(rho), _round.down(epsilon)

    def log_delta(x: float) -> float:
        """Return the logarithm of delta at the order a = 1 + exp(x), written so that nothing cancels."""
        above_one = math.exp(x)
        order = 1 + above_one
        return above_one * (order * rho_above - epsilon_below) - x - order * math.log1p(1 / above_one)

    low, high = math.log(1e-6), math.log(max(10.0, 10 * (epsilon_below + 1) / rho_above))
    # golden section; convex in the order, so unimodal in its logarithm
    for _ in range(200):
        left, right = low + 0.382 * (high - low), low + 0.618 * (high - low)
        low, high = (low, right) if log_delta(left) <= log_delta(right) else (left, high)
    best = log_delta((low + high) / 2)
    # Slack for the rounding of `log_delta`: of its sum, and of the products in it, where above_one is at most
    # exp(high).
    product_slack = 1e-13 * math.exp(high) * (epsilon_below + rho_above * math.exp(high))
    return _probability(best + 1e-12 * (1 + abs(best)) + product_slack)


def zcdp_rho(epsilon: Real, delta: float) -> float:
    """Return the largest rho (to 1e-7 relative) for which rho-zCDP implies (epsilon, delta)-DP by
    `zcdp_delta`."""
    _check(epsilon, delta)
    return 1 / _least(
        lambda inverse: zcdp_delta(_round.up(1 / Fraction(inverse)), epsilon) <= delta, _TOLERANCE
    )


def _product_delta(epsilon: Real, variance: Fraction, linf: int, l0: int) -> float:
    """Return an upper bound of delta when l0 entries, each with its own discrete Gaussian, all move by linf.

    Proof: the privacy loss is (l0 linf² + 2 linf S) / 2 sigma², a function of S, the sum of the l0 draws, so
           delta = P(S > t) - e^eps P(S > t + l0 linf). S is nearly a discrete Gaussian T with parameter l0
           sigma²: adding a draw to a discrete Gaussian with parameter j sigma² gives weights exp(-s² / (2
           (j+1) sigma²)) times sum_x exp(-(x - mu)² / 2c), c = sigma² j / (j+1) >= sigma² / 2, which by
           Poisson summation is constant up to factors 1 +- 2h, h = sum_(k >= 1) exp(-2 pi² c k²). Over l0 - 1
           additions the logarithms of probabilities of S and T differ by at most tau = (l0 - 1) ln((1 + 2h) /
           (1 - 2h)), hence delta <= e^tau delta_T(eps - 2 tau), which is that of one entry with parameter l0
           sigma² that moves by l0 linf. Smaller moves and fewer entries are dominated (log-concave noise).
    """
    if l0 == 1:
        return discrete_gaussian_delta(epsilon, variance, linf)
    q = math.exp(-(math.pi**2) * float(variance)) * (1 + 1e-12)
    h = q / (1 - q) if q < 0.1 else 1.0
    if 2 * h >= 1:
        return 1.0
    tau = (l0 - 1) * (math.log1p(2 * h) - math.log1p(-2 * h)) * (1 + 1e-9)
    if 2 * tau >= epsilon:
        return 1.0
    remaining_epsilon = _require.exact(epsilon, "epsilon") - 2 * Fraction(tau)
    single_delta = discrete_gaussian_delta(remaining_epsilon, l0 * variance, l0 * linf)
    return min(1.0, math.exp(tau) * single_delta * (1 + 1e-12))


def _summed_delta(v: Fraction, d: int, y0: Fraction) -> float:
    """Return the sum of `discrete_gaussian_delta`, for variance v, sensitivity d and its y0.

    All that follows the last summand is bounded by a geometric series, and rounding by one part in 1e11.
    """
    first = math.floor(y0) + 1
    # nearly all such noise is zero; 1 is a bound of any delta
    if v < _LEAST_VARIANCE:
        return 1.0
    sigma = math.sqrt(v)
    # the sum would be long, and delta is 1 to more than 30 digits
    if -first > 12 * sigma + 40:
        return 1.0
    # exponents are taken relative to the largest weight in the sum
    base = max(first, 0)
    # the whole sum is below the least positive float, which is therefore a bound
    if base * base > 2000 * v:
        return math.ulp(0.0)
    start = float(first - y0)
    count = int(12 * sigma + 40) + max(0, -first)
    k = np.arange(count, dtype=np.float64)
    y = first + k
    exponents = -(y - base) * (y + base) / (2 * float(v))
    terms = np.exp(exponents) * -np.expm1(-(start + k) * d / float(v))
    last = first + count
    beyond_last = math.exp(-float(Fraction((last - base) * (last + base)) / (2 * v))) / -math.expm1(
        -float(last) / float(v)
    )
    total = math.fsum(terms) + beyond_last
    log_weight = math.log(total) - float(Fraction(base * base) / (2 * v)) - math.log(_normaliser(sigma))
    return _probability(log_weight + 1e-11 + 1e-15 * abs(log_weight))


def _normaliser(sigma: float) -> float:
    """Return the sum of exp(-k² / 2 sigma²) over all integers, to a few ulps; for wide distributions the
    integral, a lower bound."""
    if sigma > 50:
        return sigma * math.sqrt(2 * math.pi)
    k = np.arange(1, int(40 * sigma) + 40, dtype=np.float64)
    return 1 + 2 * math.fsum(np.exp(-(k**2) / (2 * sigma**2)))


def _integrated_delta(epsilon: Fraction, v: Fraction, d: int, y0: Fraction) -> float:
    """Return the integral of g plus an eighth of the total variation of g', divided by the integral of f: the
    wide case of `discrete_gaussian_delta`, for variance v, sensitivity d and its f, g and y0.

    Proof: g = f h with h(y) = 1 - exp(-(y - y0) d / v). g' jumps by f(y0) d / v at y0, and the integral of
           |g''| is at most that of |f''| h + 2 |f'| h' + f |h''|. As |f''| <= f'' + 2 f / v,
           int |f''| h <= int f'' h + (2 / v) int g, and by parts int f'' h = -int f' h' <= int |f'| h'.
           With z = y + d, f h' = (d / v) e^eps f(z), |y| <= |z| + d, and |z| f(z) / v integrates to f(z0)
           from z0 = y0 + d = eps v / d + d / 2 on, which is positive.
    """
    with mpmath.workdps(_DIGITS):
        exp_epsilon, var, z0 = mpmath.exp(_mpf(epsilon)), _mpf(v), _mpf(y0 + d)
        sigma = mpmath.sqrt(var)
        width = sigma * mpmath.sqrt(2 * mpmath.pi)
        integral = _gaussian_delta(_mpf(epsilon), sigma / d)
        slope, tail = d / var, exp_epsilon * width * mpmath.ncdf(-z0 / sigma)
        moment = exp_epsilon * mpmath.exp(-(z0**2) / (2 * var))
        jump = slope * mpmath.exp(-(_mpf(y0) ** 2) / (2 * var))
        variation = jump + 3 * slope * (moment + slope * tail) + 2 / var * width * integral + slope**2 * tail
        return min(1.0, _up(integral + variation / (8 * width)))


def _gaussian_delta(epsilon: mpmath.mpf, noise_multiplier: mpmath.mpf) -> mpmath.mpf:
    """Return the formula of `gaussian_delta`, to about `_DIGITS` digits.

    Its two terms agree in about as many bits as noise_multiplier and epsilon * noise_multiplier have together
    before their points: by Mills' ratio the relative difference is about 1 / (epsilon * noise_multiplier²).
    """
    lost = sum(max(0, mpmath.mag(x)) for x in (noise_multiplier, epsilon * noise_multiplier))
    with mpmath.extraprec(lost):
        half_shift = 1 / (2 * noise_multiplier)
        offset = epsilon * noise_multiplier
        return mpmath.ncdf(half_shift - offset) - mpmath.exp(epsilon) * mpmath.ncdf(-half_shift - offset)


def _least(enough: Callable[[float], bool], tolerance: float) -> float:
    """Return the upper end of a bracket of relative width `tolerance` around where `enough` begins to hold;
    refuse where no float is enough."""
    high = 1.0
    while not enough(high):
        high *= 2
        _require.that(
            not math.isinf(high),
            "the noise for this epsilon and delta is wider than floats reach. Ask with a larger epsilon "
            "or delta.",
        )
    low = high / 2
    while enough(low):
        low, high = low / 2, low
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high) if 1e-150 < low < 1e150 else math.sqrt(low) * math.sqrt(high)
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _probability(log: float) -> float:
    """Return exp(log) as a probability; never rounded to zero, which would claim too much."""
    return max(math.exp(min(log, 0.0)), math.ulp(0.0))


def _check(epsilon: Real, delta: float) -> None:
    _require.positive(epsilon=epsilon)
    _require.a_float(epsilon=epsilon, delta=delta)
    _require.open_probability(delta=float(delta))


def _mpf(x: Real) -> mpmath.mpf:
    exact = _require.exact(x, "parameter")
    return mpmath.mpf(exact.numerator) / exact.denominator


def _up(x: mpmath.mpf) -> float:
    """Return a float that is not below x, even where the last digits of x are wrong."""
    return math.nextafter(float(x), math.inf)
