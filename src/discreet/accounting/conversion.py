"""Converts between definitions of privacy: Rényi DP, zero-concentrated DP, Gaussian DP and (epsilon,
delta)-DP.

Every epsilon, every delta and the probability of `bad_outcome` is rounded up; `normal_tail` and `mills` are
not, and say how accurate they are. Where papers and lectures state a simpler formula than the tightest known
one, that is the function with the suffix `_classic`, for comparison; the tight one should be charged.

Defines the two oldest accountants, in closed form: basic composition of (epsilon, delta), and
zero-concentrated DP.

Basic composition uses the pure epsilons of `pure`; zCDP has a table from the class of an event to its rule,
one theorem per entry. An event without a rule is refused by name.

Solves for epsilon when part of delta is taken by own deltas, and a part that grows with epsilon by a
distance in total variation (both as defined in `normal`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from .. import _require, _round
from . import events as ev
from . import pure
from .events import Event, covered, refuse
from .normal import Normal, normal

# Covers the rounding of the few operations in each formula: 4e-15 is 18 units in the last place.
_UP = 1 + 4e-15


def _check_order(order: float) -> None:
    """Refuse an order of Rényi divergence that is not above 1."""
    _require.must(not isinstance(order, bool) and order > 1, "order", order, "above 1")


def _check_rdp(rdp: float) -> None:
    """Refuse a Rényi divergence that is NaN, not a number or negative; infinity is allowed."""
    _require.number(rdp=rdp)
    _require.must(rdp >= 0, "rdp", rdp, "zero or above")


def rdp_to_epsilon(order: float, rdp: float, delta: float) -> float:
    """Return the tight conversion: epsilon = rdp + ln(1 - 1/order) + (ln(1/delta) - ln(order)) / (order - 1).

    Guarantee: (order, rdp)-RDP implies (epsilon, delta)-DP.
    Proof:     Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Prop. 12; Balle et al. 2020,
               arXiv:1905.09982, Theorem 21.
    """
    _check_order(order)
    _check_rdp(rdp)
    _require.open_probability(delta=delta)
    return _rdp_to_epsilon(order, rdp, math.log(delta))


def _rdp_to_epsilon(order: float, rdp: float, log_delta: float) -> float:
    """Return what `rdp_to_epsilon` returns, without its checks and with ln(delta) given, for searches over
    many orders."""
    if math.isinf(rdp) or math.isinf(order):
        return rdp
    gain = math.log1p(-1 / order)
    delta_term = (-log_delta - math.log(order)) / (order - 1)
    # The last summand covers the rounding of the others.
    return max(
        0.0, rdp + gain + delta_term + 4e-16 * (abs(rdp) + abs(gain) + 4 * (1 + abs(log_delta)) / (order - 1))
    )


def rdp_to_epsilon_classic(order: float, rdp: float, delta: float) -> float:
    """Return epsilon = rdp + ln(1/delta) / (order - 1) (Mironov 2017, arXiv:1702.07476, Prop. 3).

    >>> round(rdp_to_epsilon_classic(11.0, 0.5, 1e-5), 6)
    1.651293
    """
    _check_order(order)
    _check_rdp(rdp)
    _require.open_probability(delta=delta)
    return rdp if math.isinf(order) else (rdp - math.log(delta) / (order - 1)) * _UP


def rdp_to_delta(order: float, rdp: float, epsilon: float) -> float:
    """Return delta = e^{(order-1)(rdp - epsilon)} (1 - 1/order)^order / (order - 1): the tight conversion,
    solved for delta."""
    _check_order(order)
    _check_rdp(rdp)
    if math.isinf(order):
        return 0.0 if rdp <= epsilon else 1.0
    if math.isinf(rdp):
        return 1.0
    # ln(1 - 1/order). Near order 1, 1 - 1/order would cancel, so it is written as -ln(1 + 1/(order - 1)).
    gain = math.log1p(-1 / order) if order > 1.2 else -math.log1p(1 / (order - 1))
    # A bound on the sum of the magnitudes of the summands of `exponent`: their rounding is a multiple of it.
    size = (order - 1) * (abs(rdp) + abs(epsilon)) + 2 + abs(math.log(order - 1))
    exponent = (order - 1) * (rdp - epsilon) - math.log(order - 1) + order * gain
    exponent += (4e-16 if order > 1.2 else 2e-15) * size
    # The smallest float is added because the exponential may underflow to 0: a delta of 0 would claim pure
    # DP.
    return 1.0 if exponent >= 0 else math.exp(exponent) + 5e-324


def bad_outcome(order: float, rdp: float, probability: float) -> float:
    """Return an upper bound of the probability of an outcome on one table, given its `probability` on a
    neighboring table (probability preservation).

    For an (order, rdp)-RDP mechanism M, neighbors D and D', and a set S of outputs, P[M(D) in S] <=
    (e^rdp P[M(D') in S])^{1 - 1/order} (Mironov 2017, arXiv:1702.07476, Prop. 10).

    >>> round(bad_outcome(2.0, 0.0, 0.01), 6)
    0.1
    """
    _check_order(order)
    _check_rdp(rdp)
    _require.probability(probability=probability)
    if probability == 0:
        return 0.0
    power = 1.0 if math.isinf(order) else (order - 1) / order
    log_probability = math.log(probability)
    # The last summand covers the rounding of the first.
    exponent = power * (rdp + log_probability) + 1e-15 * (rdp - log_probability)
    return min(1.0, math.exp(min(0.0, exponent)) * _UP)


def zcdp_to_epsilon_classic(rho: float, delta: float) -> float:
    """Return epsilon = rho + 2 sqrt(rho ln(1/delta)) (Bun & Steinke 2016, arXiv:1605.02065, Prop. 1.3).

    >>> round(zcdp_to_epsilon_classic(0.1, 1e-6), 4)
    2.4508
    """
    _require.non_negative(rho=rho)
    _require.open_probability(delta=delta)
    return (rho + 2 * math.sqrt(-rho * math.log(delta))) * _UP


# A smaller rho is replaced by this one (for a delta at epsilon, by (1 + epsilon) times this one), because the
# search for its best order would leave the range of floats.
_LEAST_RHO = 1e-150


def _check_rho(rho: float) -> None:
    """Refuse a rho that is NaN, not a number or negative; infinity is allowed."""
    _require.number(rho=rho)
    _require.must(rho >= 0, "rho", rho, "zero or above")


def zcdp_to_epsilon(rho: float, delta: float) -> float:
    """Return the tight conversion of rho-zCDP: the best order of `rdp_to_epsilon` with rdp = order * rho.

    >>> round(zcdp_to_epsilon(0.1, 1e-6), 4)
    2.1419
    """
    _check_rho(rho)
    _require.open_probability(delta=delta)
    if math.isinf(rho) or rho == 0:
        return rho
    rho, log_delta = max(rho, _LEAST_RHO), math.log(delta)
    return _best(lambda order: _rdp_to_epsilon(order, order * rho * _UP, log_delta), -log_delta / rho)


def zcdp_to_delta(rho: float, epsilon: float) -> float:
    """Return the delta of rho-zCDP at an epsilon: the best order of `rdp_to_delta` with rdp = order * rho."""
    _check_rho(rho)
    _require.non_negative(epsilon=epsilon)
    if math.isinf(rho):
        return 1.0
    if rho == 0:
        return 0.0
    rho = max(rho, _LEAST_RHO * (1 + epsilon))
    return _best(lambda order: rdp_to_delta(order, order * rho * _UP, epsilon), (1 + epsilon / rho) ** 2)


def _best(price: Callable[[float], float], scale: float) -> float:
    """Return the least price(order) over the orders 1 + r sqrt(scale), r from about 1/1000 to 100.

    Every order gives a valid bound, so a search that misses the best order is still valid.
    """
    low, high = math.log(max(1e-6, 1e-3 * math.sqrt(scale))), math.log(10 + 1e2 * math.sqrt(scale))
    return float(minimum(lambda t: price(1 + math.exp(t)), low, high)[1])


def minimum(price: Callable[[float], float], low: float, high: float, steps: int = 64) -> tuple[float, float]:
    """Return (x, price(x)) at the minimum of a unimodal function on [low, high], by golden-section search.

    The value returned was evaluated at the x returned, also where the function is not unimodal.
    """
    golden = (math.sqrt(5) - 1) / 2
    a, b = low, high
    c, d = b - golden * (b - a), a + golden * (b - a)
    at_c, at_d = price(c), price(d)
    for _ in range(steps):
        if at_c <= at_d:
            b, d, at_d = d, c, at_c
            c = b - golden * (b - a)
            at_c = price(c)
        else:
            a, c, at_c = c, d, at_d
            d = a + golden * (b - a)
            at_d = price(d)
    return (c, at_c) if at_c <= at_d else (d, at_d)


def normal_tail(x: float) -> float:
    """Return P[N(0, 1) > x], with a relative error, of either sign, of about 1 + x² ulps at most."""
    # The constant is 1 / sqrt(2).
    return 0.5 * math.erfc(x * 0.7071067811865476)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the delta of mu-GDP at epsilon: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), rounded up.

    Proof: Balle & Wang 2018, arXiv:1805.06530, Theorem 8; Dong, Roth & Su 2022, arXiv:1905.02383, Corollary
           2.13.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    # The formula is P[N > x] - e^eps P[N > y]. The constant is 1 / sqrt(2 pi), so `density` is phi(x).
    x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    first, density = normal_tail(x), math.exp(-x * x / 2) * 0.3989422804014327
    if first == 0.0:
        return 5e-324
    # e^eps phi(y) = phi(x), so the second term is phi(x) times Mills' ratio at y, which cannot overflow. For
    # larger x it is written as a multiple of the first, so that both have the same rounding error.
    second = density * mills(y) if x < -5 else first * (mills(y) / mills(x))
    # The summands after the difference cover its rounding.
    return min(
        1.0, max(0.0, first - second) + first * (2e-15 * (4 + x * x) + 1e-15 * y * (1 + abs(x))) + 5e-324
    )


def mills(x: float) -> float:
    """Return Mills' ratio (1 - Phi(x)) / phi(x); Phi and phi are the standard normal distribution and
    density. The relative error is as in `normal_tail` for x below 12, and above that a few ulps."""
    # The constant is sqrt(2 pi).
    if x < 12:
        return normal_tail(x) * math.exp(x * x / 2) * 2.5066282746310002
    # Laplace's continued fraction, 40 levels, from the innermost outwards.
    value = x
    for k in range(40, 0, -1):
        value = x + k / value
    return 1 / value


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of mu-GDP at delta, as in the analytic Gaussian mechanism; never below the exact
    value.

    >>> round(gaussian_epsilon(1.0, 1e-5), 6)
    4.377178
    """
    _require.open_probability(delta=delta)
    if mu == 0 or math.isinf(mu):
        return mu
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # `high` is a valid epsilon: the privacy loss N(mu²/2, mu²) exceeds it with a probability of at most
    # delta.
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta)) + 1e-300
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high or high - low <= 1e-15 * high:
            break
        low, high = (low, middle) if gaussian_delta(mu, middle) <= delta else (middle, high)
    return high


class Cost(NamedTuple):
    """A price, rounded up: `value` is epsilon of (epsilon, delta)-DP, or rho of delta-approximate
    rho-zCDP."""

    value: float
    delta: float


def _exact(value: Any) -> Fraction:
    """Return a parameter as an exact fraction."""
    return _require.exact(value, "parameter")


def _gaussian(e: ev.Gaussian) -> float:
    return math.inf if e.noise_multiplier == 0 else _round.up(1 / (2 * _exact(e.noise_multiplier) ** 2))


# The rho of each kind of event, rounded up; others with a pure epsilon get epsilon² / 2 (`_rho`).
_ZCDP: dict[type[Event], Callable[[Any], float]] = {
    # Bun & Steinke 2016, arXiv:1605.02065, Prop. 1.6
    ev.Gaussian: _gaussian,
    # as the next entry, for a vector with one entry
    ev.DiscreteGaussian: lambda e: _round.up(e.sensitivity**2 / (2 * _exact(e.variance))),
    # Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Theorem 14
    ev.VectorDiscreteGaussian: lambda e: _round.up(e.l2_squared / (2 * _exact(e.variance))),
    # Cesar & Rogers 2021, arXiv:2004.07223, Lemma 3.4
    ev.ExponentialMechanism: lambda e: _round.up(_exact(e.epsilon) ** 2 / 8),
    ev.ZCDP: lambda e: _round.up(e.rho),
}


def basic(event: Event) -> Cost:
    """Return the sums of the epsilons and of the deltas (Dwork et al. 2006; Dwork & Roth 2014, Theorem 3.16),
    for events with one fixed epsilon and delta, which a Gaussian does not have.

    >>> basic(ev.PureDP(epsilon=1).repeated(3))
    Cost(value=3.0, delta=0.0)
    """
    form = normal(event)
    if any(isinstance(part, ev.NonPrivate) for part in form.parts):
        return Cost(math.inf, 1.0)
    why = "its delta depends on epsilon; use composition.basic with the delta you want"
    covered(form.distance == 0, event, "basic", why)
    total = 0.0
    for part, times in form.parts.items():
        part_epsilon = pure.epsilon_of(part)
        if part_epsilon is None:
            raise refuse(part, "basic", "it is not (epsilon, delta)-DP for one fixed pair")
        # Infinite from where the sum is beyond the range of floats.
        if not math.isinf(total):
            total = _round.up(_exact(total) + times * _exact(part_epsilon))
    return Cost(total, form.delta)


def zcdp(event: Event) -> Cost:
    """Return the sum of the zCDP parameters rho (Bun & Steinke 2016, arXiv:1605.02065, Lemma 1.7), and the
    own delta of the event (see `normal`): it is delta-approximately rho-zCDP.

    >>> zcdp(ev.Gaussian(noise_multiplier=1.0).repeated(4)).value
    2.0
    """
    form = normal(event)
    covered(form.distance == 0, event, "zcdp", "a truncated sample has no concentrated bound")
    total = Fraction(0)
    for part, times in form.parts.items():
        part_rho = _rho(part)
        if math.isinf(part_rho):
            return Cost(math.inf, 1.0)
        total += times * Fraction(part_rho)
    return Cost(_round.up(total), form.delta)


def _rho(part: Event) -> float:
    """Return the rho of one part: by its rule, or from its pure epsilon."""
    if isinstance(part, ev.NonPrivate):
        return math.inf
    rule = _ZCDP.get(type(part))
    if rule is not None:
        return rule(part)
    epsilon = pure.epsilon_of(part)
    if epsilon is not None:
        # Bun & Steinke 2016, Prop. 1.4
        return _round.up(_exact(epsilon) ** 2 / 2)
    if isinstance(part, ev.Laplace):
        # Laplace noise of scale 0, or so small that its epsilon overflows.
        return math.inf
    raise refuse(part, "zcdp", "its Rényi divergence is not bounded by a multiple of the order")


def zcdp_epsilon(event: Event, delta: float) -> float:
    """Return the epsilon at delta of the event's zCDP bound by the tight conversion (Canonne, Kamath &
    Steinke 2020, arXiv:2004.00010v4, Prop. 12); the own delta is taken out of delta first."""
    rho, own_delta = zcdp(event)
    if math.isinf(rho) or rho == 0:
        return rho if own_delta <= delta else math.inf
    remaining = Normal({}, own_delta, 0.0, event.neighbors).remaining_delta(delta, 0.0)
    return zcdp_to_epsilon(rho, remaining) if remaining > 0 else math.inf


def zcdp_delta(event: Event, epsilon: float) -> float:
    """Return the delta at an epsilon, by the same conversion."""
    rho, own_delta = zcdp(event)
    return Normal({}, own_delta, 0.0, event.neighbors).total_delta(zcdp_to_delta(rho, epsilon), epsilon)


def least_epsilon(form: Normal, delta: float, price: Callable[[float], float], pure: float) -> float:
    """Return an epsilon with price(form.remaining_delta(delta, epsilon)) <= epsilon, close to the least one.

    `price` maps the delta of the parts to their epsilon; `pure` is their pure epsilon, or infinity. Without a
    distance the remaining delta does not depend on epsilon, and one call of `price` is enough. With a
    distance it shrinks as epsilon grows: the iteration starts at epsilon 0 and rises towards the smallest
    solution, and each value is raised by 1e-9 of itself, so that it ends at one that satisfies the
    inequality.
    """
    if not form.parts:
        return 0.0 if form.remaining_delta(delta, 0.0) >= 0 else math.inf
    if form.remaining_delta(delta, 0.0) < 0:
        return math.inf
    if form.distance == 0:
        remaining = form.remaining_delta(delta, 0.0)
        return price(remaining) if remaining > 0 else pure
    value = 0.0
    for _ in range(200):
        remaining = form.remaining_delta(delta, value)
        if remaining <= 0:
            return pure if form.remaining_delta(delta, pure) >= 0 else math.inf
        needed = price(remaining)
        if needed <= value or math.isinf(needed):
            return max(needed, value)
        value = needed * (1 + 1e-9)
    return math.inf
