"""Adds noise to integers: the building block inside mechanisms, with its price (an accounting `event`) and
its error.

Noise on reals is in `mechanisms.additive`, which puts them on a grid first.

Every entry gets its own exact integer draw, so the last digits of a release reveal nothing, as those of
floats can. The price is that of the discrete distribution itself: the continuous one would undercharge.
Choose noise by its target (`for_epsilon`, `for_rho`, `for_privacy`) or give the scale yourself.

>>> from discreet.sampling import SeededEntropy
>>> noise = IntegerLaplace.for_epsilon(1, sensitivity=2)
>>> noise.event
DiscreteLaplace(scale=Fraction(2, 1), sensitivity=2, neighbors=<Neighbors.ADD_REMOVE: 'add_remove'>)
>>> noise.error(0.95)
6
>>> noise([10, 20, 30], entropy=SeededEntropy(1)).shape
(3,)

Computes variances and tail bounds of discrete Laplace and Gaussian noise, and square roots that are
rounded in a stated direction.

Most variances (to the nearest float) and tail bounds (never too small) decide only the errors that are
reported. p-values of `adaptive.significance` rest on `laplace_error` and `laplace_sum_error`. Privacy depends
on `sqrt_down` and `sqrt_up` where a mechanism takes its noise or its epsilon from them. Their directions must
stay.

Computes certified bounds: exponentials, logarithms and discrete Laplace tails whose rounding has a proved
direction. Thresholds, odds of randomized response and failure probabilities are computed with them.

Everything is integer arithmetic on enclosures, so a claim such as "the noise exceeds T with probability at
most delta" is a comparison of rationals and not a matter of floating point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import Annotated, Any, Protocol, runtime_checkable

import mpmath
import numpy as np

from .. import _require, sampling
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors
from .._registry import described
from .._require import EXACT, POSITIVE, PROBABILITY, Real, at_least
from ..accounting import DiscreteGaussian, DiscreteLaplace, Event, VectorDiscreteGaussian
from ..sampling import Entropy
from .protocols import Integers, Sensitivity, integers

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
    exponent = terms * Fraction(log_above(_laplace_mgf_above(scale, theta)))
    exponent += Fraction(log_above(2 / Fraction(failure)))
    return math.ceil(exponent * scale / theta)


def _laplace_mgf_above(scale: Fraction, theta: Fraction) -> Fraction:
    """Return a rational that is at least E exp(l X), for discrete Laplace noise X and l = theta / scale.

    Proof: with p = exp(-1 / scale), E exp(l X) = (1-p)² / ((1 - p e^l)(1 - p e^-l)) = (C - 1) / (C - c), for
           C = cosh(1 / scale) and c = cosh(l). It falls with C and grows with c, which are bounded from below
           and from above. It is also 1 / (1 - r²) with r = sinh(l / 2) / sinh(1 / (2 scale)) <= theta, since
           sinh(x) / x grows with x; for a large scale that bound is the closer one.
    """
    bound = 1 / (1 - theta**2)
    low, high = exp_bounds(1 / scale)
    l_low, l_high = exp_bounds(theta / scale)
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


@runtime_checkable
class Noise(Protocol):
    """Declares what the mechanism `AddNoise` (`mechanisms.additive`) needs of noise."""

    @property
    def neighbors(self) -> Neighbors: ...

    @property
    def event(self) -> Event: ...

    def covers(self, sensitivity: Sensitivity) -> bool: ...

    def error(self, confidence: float = 0.95, *, entries: int = 1) -> Any: ...

    def __call__(self, values: Any, /, *, entropy: Entropy) -> Any: ...


def draw(scale: Fraction, entropy: Entropy) -> int:
    """Return one draw of discrete Laplace noise, for mechanisms that compare a single number."""
    return int(sampling.discrete_laplace(scale, 1, entropy)[0])


def add(values: Integers, noise: Integers) -> Integers:
    """Return the sum of values and noise: int64 where all entries of the sum are within 2**62 of zero, Python
    integers otherwise.

    The type depends on the sum alone. If it depended on the values before noise, it would reveal on which
    side of 2**62 they are.
    """
    if values.dtype != object and _short(values) and noise.dtype != object and _short(noise):
        total = np.asarray(values + noise)
    else:
        total = np.asarray(values.astype(object) + noise.astype(object), dtype=object)
    return total.astype(np.int64 if _short(total) else object, copy=False)


def _short(values: Integers) -> bool:
    """Return whether all values are within 2**62 of zero, so that the sum of two such arrays fits 64 bits.

    The array is compared as a whole, not one value after the other until one is too large: the time would
    then depend on the values.
    """
    return bool(((values > -(1 << 62)) & (values < 1 << 62)).all())


@described("mechanisms.IntegerLaplace")
@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerLaplace:
    """Adds discrete Laplace noise, P(x) proportional to exp(-|x| / scale), to integers; `sensitivity` is in
    l1.

    Guarantee: the event `DiscreteLaplace(scale, sensitivity)`; in particular (sensitivity / scale)-DP, for
               scalars and vectors.
    Proof:     Ghosh, Roughgarden & Sundararajan 2009 (arXiv:0811.2841); the event's docstring for vectors.
    Assumes:   one unit moves the values by at most `sensitivity` in l1 under `neighbors`.
    """

    scale: Annotated[Fraction, EXACT, POSITIVE]
    sensitivity: Annotated[int, at_least(0)] = 1
    neighbors: Neighbors = ADD_REMOVE

    @classmethod
    @_require.check_options
    def for_epsilon(
        cls, epsilon: Real, *, sensitivity: int | Sensitivity = 1, neighbors: Neighbors = ADD_REMOVE
    ) -> IntegerLaplace:
        """Return noise that is exactly epsilon-DP: scale = sensitivity / epsilon as a rational (a float
        epsilon is taken at its binary value)."""
        # imported, here and below, where a scale is chosen: a question that comes with its noise needs none
        from . import noise_scales

        l1 = _require_sensitive(as_sensitivity(sensitivity).l1)
        return cls(scale=noise_scales.discrete_laplace(epsilon, l1), sensitivity=l1, neighbors=neighbors)

    @classmethod
    @_require.check_options
    def for_rho(
        cls,
        rho: Annotated[Real, POSITIVE],
        *,
        sensitivity: int | Sensitivity = 1,
        neighbors: Neighbors = ADD_REMOVE,
    ) -> IntegerLaplace:
        """Return noise that is rho-zCDP through epsilon² / 2 <= rho (Bun & Steinke 2016, Prop. 1.4); epsilon
        is rounded down."""
        epsilon = sqrt_down(2 * _require.exact(rho, "rho"))
        return cls.for_epsilon(epsilon, sensitivity=sensitivity, neighbors=neighbors)

    @classmethod
    @_require.check_options
    def for_privacy(
        cls,
        *,
        epsilon: Real,
        delta: Annotated[float, PROBABILITY] = 0.0,
        sensitivity: int | Sensitivity = 1,
        neighbors: Neighbors = ADD_REMOVE,
    ) -> IntegerLaplace:
        """Return noise that is (epsilon, delta)-DP; Laplace noise needs no delta and uses none."""
        return cls.for_epsilon(epsilon, sensitivity=sensitivity, neighbors=neighbors)

    @property
    def event(self) -> Event:
        return DiscreteLaplace(scale=self.scale, sensitivity=self.sensitivity, neighbors=self.neighbors)

    def covers(self, sensitivity: Sensitivity) -> bool:
        """Return whether the event is a right price for a statistic of this sensitivity."""
        return _norm(sensitivity.l1) <= self.sensitivity

    @property
    def mean_squared_error(self) -> float:
        """The exact variance of the noise, 2p / (1 - p)² with p = exp(-1 / scale), to the last bits of a
        float."""
        return laplace_variance(self.scale)

    @property
    def standard_deviation(self) -> float:
        return math.sqrt(self.mean_squared_error)

    def error(self, confidence: float = 0.95, *, entries: int = 1) -> int:
        """Return the smallest t such that all of `entries` draws stay within t with probability `confidence`:
        exact.

        Proof: P(|X| > t) = 2 p^(t+1) / (1 + p) with p = exp(-1 / scale), and the draws are independent.
        """
        return laplace_error(self.scale, failure_per_draw(confidence, entries))

    def combined_width(self, confidence: float = 0.95) -> float:
        """Return by how many of its standard deviations a linear combination of draws is off at most, with
        probability `confidence`; see `laplace_width`."""
        _require.open_probability(confidence=confidence)
        return laplace_width(self.scale, confidence)

    def __call__(self, values: Any, /, *, entropy: Entropy) -> Integers:
        exact = integers(values)
        return add(exact, sampling.discrete_laplace(self.scale, exact.size, entropy).reshape(exact.shape))


@described("mechanisms.IntegerGaussian")
@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerGaussian:
    """Adds discrete Gaussian noise, P(x) proportional to exp(-x² / (2 variance)), to integers.

    One unit moves at most `l0` entries, each by at most `linf`. `l2_squared` is the square of the l2
    sensitivity, given where a tighter bound than l0 linf² is known. `variance` is the parameter sigma²; the
    true variance of the noise is `mean_squared_error`, which is never larger.

    Guarantee: the event is `DiscreteGaussian` if l0 is 1; `DiscreteGaussian(sensitivity=linf)`, l0 times, if
               l2_squared is l0 linf²; and `VectorDiscreteGaussian` if l2_squared is less, for which rho-zCDP
               with rho = l2_squared / (2 variance) is proved.
    Proof:     Canonne, Kamath & Steinke 2020 (arXiv:2004.00010v4), Theorems 7 and 14; the events' docstrings.
    Assumes:   the stated sensitivities, under `neighbors`.
    """

    variance: Annotated[Fraction, EXACT, POSITIVE]
    linf: int = 1
    l0: int = 1
    l2_squared: int | None = None
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        bound = Sensitivity(linf=self.linf, l0=self.l0, l2_squared=self.l2_squared)
        object.__setattr__(self, "l2_squared", bound.l2_squared)

    @classmethod
    @_require.check_options
    def for_rho(
        cls,
        rho: Annotated[Real, POSITIVE],
        *,
        sensitivity: int | Sensitivity = 1,
        neighbors: Neighbors = ADD_REMOVE,
    ) -> IntegerGaussian:
        """Return noise that is exactly rho-zCDP: variance = l2_squared / (2 rho) as a rational."""
        s = as_sensitivity(sensitivity)
        variance = Fraction(_require_sensitive(s.l2_squared)) / (2 * _require.exact(rho, "rho"))
        return cls(variance=variance, linf=s.linf, l0=s.l0, l2_squared=s.l2_squared, neighbors=neighbors)

    @classmethod
    @_require.check_options
    def for_privacy(
        cls,
        *,
        epsilon: Real,
        delta: float,
        sensitivity: int | Sensitivity = 1,
        neighbors: Neighbors = ADD_REMOVE,
    ) -> IntegerGaussian:
        """Return noise that is (epsilon, delta)-DP with the least variance that `noise_scales` can prove,
        from the discrete distribution itself."""
        from . import noise_scales

        s = as_sensitivity(sensitivity)
        _require_sensitive(s.l2_squared)
        variance = noise_scales.discrete_gaussian(
            epsilon, delta, linf=s.linf, l0=s.l0, l2_squared=_norm(s.l2_squared)
        )
        return cls(variance=variance, linf=s.linf, l0=s.l0, l2_squared=s.l2_squared, neighbors=neighbors)

    @property
    def event(self) -> Event:
        l2_squared = _norm(self.l2_squared)
        if self.l0 == 1:
            linf = min(self.linf, math.isqrt(l2_squared))
            return DiscreteGaussian(variance=self.variance, sensitivity=linf, neighbors=self.neighbors)
        if l2_squared == self.l0 * self.linf**2:
            entry_event = DiscreteGaussian(
                variance=self.variance, sensitivity=self.linf, neighbors=self.neighbors
            )
            return entry_event.repeated(self.l0)
        return VectorDiscreteGaussian(variance=self.variance, l2_squared=l2_squared, neighbors=self.neighbors)

    def covers(self, sensitivity: Sensitivity) -> bool:
        """Return whether the event is a right price for a statistic of this sensitivity."""
        if _norm(sensitivity.l2_squared) > _norm(self.l2_squared):
            return False
        # the other events are proved for l0 entries that each move by at most linf, not for every vector of
        # the same l2 norm
        only_l2 = isinstance(self.event, VectorDiscreteGaussian)
        return only_l2 or (sensitivity.l0 <= self.l0 and sensitivity.linf <= self.linf)

    @property
    def mean_squared_error(self) -> float:
        """The exact variance of the noise, to the last bits of a float; at most `variance` (Canonne, Kamath &
        Steinke 2020)."""
        return gaussian_variance(self.variance)

    @property
    def standard_deviation(self) -> float:
        return math.sqrt(self.mean_squared_error)

    def error(self, confidence: float = 0.95, *, entries: int = 1) -> int:
        """Return a t such that all of `entries` draws stay within t with probability `confidence`; see
        `gaussian_tail`."""
        return gaussian_error(self.variance, failure_per_draw(confidence, entries))

    def combined_width(self, confidence: float = 0.95) -> float:
        """Return by how many of its standard deviations a linear combination of draws is off at most, with
        probability `confidence`; see `gaussian_width`."""
        _require.open_probability(confidence=confidence)
        return gaussian_width(self.variance, confidence)

    def __call__(self, values: Any, /, *, entropy: Entropy) -> Integers:
        exact = integers(values)
        draws = sampling.discrete_gaussian(sigma_squared=self.variance, n=exact.size, entropy=entropy)
        return add(exact, draws.reshape(exact.shape))


def as_sensitivity(sensitivity: int | Sensitivity) -> Sensitivity:
    """Return an integer as the sensitivity of a single number; a `Sensitivity` stays as it is."""
    return sensitivity if isinstance(sensitivity, Sensitivity) else Sensitivity(linf=sensitivity)


def _norm(norm: int | None) -> int:
    # `Sensitivity` computes every norm that was not given
    assert norm is not None
    return norm


def _require_sensitive(norm: int | None) -> int:
    """Return a sensitivity above zero; refuse zero, for which no noise is needed."""
    if not norm:
        raise InvalidInput(
            "the sensitivity is 0: under this relation nobody's row moves the value, so it is public and "
            "needs no noise."
        )
    return norm
