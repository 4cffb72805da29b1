"""Computes Rényi divergences of single events, one theorem per entry of `RULES`.

The *moment* of an event at an order is (order - 1) times its Rényi divergence, that is ln of the sum of
p^order q^{1 - order} over outputs, for the worst pair of output distributions p and q. A `Moment` is that
function of the order, as an upper bound.

Where some relabeling of outputs swaps p and q, and no simpler formula is known (as it is for Gaussian noise),
moments are computed as ln(1 + x), where x = sum p^a q^{1-a} - 1 = sum sqrt(p q) (cosh((a - 1/2) L) - cosh(L /
2)), with a the order and L = ln(p / q) the privacy loss. The last sum has only positive terms, so nothing
cancels: a tiny loss keeps its digits, also when it is repeated ten million times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from .. import _require
from . import choice_events as ce
from . import events as ev
from . import pure, shuffling
from . import rdp_sampled as sampled
from . import sampled_events as se
from .conversion import minimum, rdp_to_delta
from .events import Event
from .normal import normal
from .refusal import refuse

Moment = Callable[[float], float]
# Covers the rounding of each closed form: a few hundred units in the last place.
_UP = 1 + 1e-13


def _ratio(value: Any, other: Any) -> float:
    """Return value / other as a float, computed with fractions: infinite where it overflows, and the smallest
    float instead of an underflow to 0."""
    ratio = _require.exact(value, "parameter") / _require.exact(other, "parameter")
    return max(_require.float_or_inf(ratio), 5e-324) if ratio else 0.0


def gap(order: float, loss: float) -> float:
    """Return cosh((order - 1/2) loss) - cosh(loss / 2), the summand of the module's docstring, without
    cancellation; infinite where it overflows."""
    a, b = order * loss / 2, (order - 1) * loss / 2
    return 2 * math.sinh(a) * math.sinh(b) if a + b < 700 else math.inf


def _log1p(value: float) -> float:
    """Return ln(1 + value), rounded up."""
    return math.log1p(value) * _UP


def gaussian(mu_squared: float) -> Moment:
    """Return the moment order (order - 1) mu² / 2 of Gaussian noise, mu being the sensitivity divided by
    the standard deviation (Mironov 2017, arXiv:1702.07476, Prop. 7)."""
    return lambda order: order * (order - 1) / 2 * mu_squared * _UP


def pure_dp(epsilon: float) -> Moment:
    """Return the moments of binary randomized response, which dominates every epsilon-DP mechanism (Kairouz,
    Oh & Viswanath 2015, arXiv:1311.0776, in the proof of Theorem 3.3)."""
    return randomized_response(epsilon, 2)


def randomized_response(epsilon: float, categories: int) -> Moment:
    """Return the moments of randomized response: two answers have loss +-epsilon, the others have loss 0."""

    def moment(order: float) -> float:
        if order * epsilon > 350:
            # `gap` would soon overflow. The divergence never exceeds epsilon. The same holds in the functions
            # below.
            return (order - 1) * epsilon * _UP
        # sqrt(p q), summed over the two answers
        weight = 2 * math.exp(epsilon / 2) / (math.exp(epsilon) + categories - 1)
        return _log1p(weight * gap(order, epsilon))

    return moment


def laplace(epsilon: float) -> Moment:
    """Return the moments of Laplace noise (Mironov 2017, arXiv:1702.07476, Table II, its terms regrouped).

    The first summand is for outputs outside the interval between the two means, where the loss is +-epsilon;
    the second for outputs between them, where the loss is linear.
    """

    def moment(order: float) -> float:
        if order * epsilon > 350:
            return (order - 1) * epsilon * _UP
        decay = math.exp(-epsilon / 2)
        return _log1p(decay * gap(order, epsilon) + decay / 2 * _integral_between(order - 0.5, epsilon))

    return moment


def _integral_between(c: float, epsilon: float) -> float:
    """Return sinh(c eps) / c - 2 sinh(eps / 2) with c = order - 1/2: the integral over losses L in [0, eps]
    of cosh(c L) - cosh(L / 2); for small c eps by its power series, whose terms are positive."""
    if c < _NEAR_ORDER_1:
        return _integral_near_order_1(c, epsilon)
    if c * epsilon > 1:
        return math.sinh(c * epsilon) / c - 2 * math.sinh(epsilon / 2)
    # The j-th term is (c^{2j} - (1/2)^{2j}) eps^{2j+1} / (2j + 1)!. The factor at the end covers the terms
    # left out.
    total, term, powers, quarters = 0.0, epsilon, 1.0, 1.0
    for j in range(1, 12):
        term *= epsilon * epsilon / ((2 * j) * (2 * j + 1))
        powers, quarters = powers * c * c, quarters * 0.25
        total += (powers - quarters) * term
    return total * (1 + 1e-12)


# Below this c, at orders under 1.001, the two terms of `_integral_between` are almost equal and their
# difference loses digits.
_NEAR_ORDER_1 = 0.501


def _integral_near_order_1(c: float, epsilon: float) -> float:
    """Return the same as `_integral_between`, without differences of almost equal numbers."""
    above = c - 0.5
    if c * epsilon > 1:
        rise = math.cosh((c + 0.5) * epsilon / 2) * math.sinh(above * epsilon / 2)
        return 2 * (rise - above * math.sinh(epsilon / 2)) / c
    # `difference` is c^{2j} - (1/2)^{2j} and `quarters` is (1/2)^{2j}, each computed from those of j - 1.
    total, term, difference, quarters = 0.0, epsilon, 0.0, 1.0
    for j in range(1, 12):
        term *= epsilon * epsilon / ((2 * j) * (2 * j + 1))
        difference, quarters = c * c * difference + above * (c + 0.5) * quarters, quarters * 0.25
        total += difference * term
    return total * (1 + 1e-12)


def discrete_laplace(e: ev.DiscreteLaplace) -> Moment:
    """Return the moments of discrete Laplace noise on two integers that differ by the sensitivity.

    The sum over the integers is regrouped as in `laplace`: outside the interval between the two integers
    (ends included) the loss is +-epsilon, with probability 1/(1+a) on each side, a = e^{-1/scale}; between
    them sqrt(p q) is the constant (1-a)/(1+a) e^{-epsilon/2}.
    """
    epsilon = pure.epsilon_of(e)
    if epsilon is None:
        # So little noise that the sensitivity divided by the scale overflows.
        return _infinite
    shift, scale = e.sensitivity, float(e.scale)
    a = math.exp(-1 / scale)
    # the probability (1 - a) / (1 + a) of the noise 0
    at_zero = -math.expm1(-1 / scale) / (1 + a)

    def moment(order: float) -> float:
        if order * epsilon > 350:
            return (order - 1) * epsilon * _UP
        decay = math.exp(-epsilon / 2)
        ends = 2 / (1 + a) * decay * gap(order, epsilon)
        return _log1p(ends + at_zero * decay * _sum_between(order, shift, scale))

    return moment


def _sum_between(order: float, shift: int, scale: float) -> float:
    """Return the sum of `gap` over the losses (shift - 2x) / scale, x = 1 .. shift - 1.

    Losses of opposite sign have the same gap, so half of them are summed, twice. Long sums are bounded by
    2048 blocks, each with the gap of its largest loss.
    """
    middle = shift // 2
    if middle <= 2048:
        losses = [(shift - 2 * x) / scale for x in range(1, middle + (shift % 2))]
        return 2 * math.fsum(gap(order, loss) for loss in losses)
    edges = [1 + (middle * i) // 2048 for i in range(2049)]
    blocks = itertools.pairwise(edges)
    return 2 * math.fsum((b - a) * gap(order, (shift - 2 * a) / scale) for a, b in blocks)


def bounded_range(epsilon: float) -> Moment:
    """Return the moments of the worst pair of an epsilon-bounded-range mechanism, in closed form (Dong,
    Durfee & Rogers 2020, arXiv:1909.13830).

    The worst pair has only two losses, t and t - eps. With a the order, u = e^t, A = (1 - e^{-a eps}) / (1 -
    e^{-eps}) and B = e^{-eps} (1 - e^{-(a-1) eps}) / (1 - e^{-eps}), sum p^a q^{1-a} = u^{a-1} (A - u B), and
    the u of the worst pair is (1 - 1/a) A / B. The divergence is never above order * epsilon² / 8 (Cesar &
    Rogers 2021, arXiv:2004.07223, Lemma 3.4: zCDP), which is used where the closed form would lose digits. In
    the code, `top` and e^log_drop are A and B without their denominators.
    """

    def moment(order: float) -> float:
        zcdp_moment = order * (order - 1) * epsilon * epsilon / 8 * _UP
        if order * epsilon < 1e-2 or zcdp_moment == 0:
            return zcdp_moment
        top = -math.expm1(-order * epsilon)
        log_drop = -epsilon + math.log(-math.expm1(-(order - 1) * epsilon))
        log_u = min(max(math.log1p(-1 / order) + math.log(top) - log_drop, 0.0), epsilon)
        difference = top - math.exp(log_u + log_drop)
        if difference <= 0:
            # The difference was lost to rounding, which happens only at very large order times epsilon.
            return min(zcdp_moment, (order - 1) * epsilon * _UP)
        value = (order - 1) * log_u + math.log(difference) - math.log(-math.expm1(-epsilon))
        return min(zcdp_moment, (value + 1e-13 * (1 + order * epsilon)) * _UP, (order - 1) * epsilon * _UP)

    return moment


def point(e: ce.RDPPoint) -> Moment:
    """Return the moments of a mechanism whose divergence is known at one order only. Divergences do not fall
    with the order, so its value holds at lower orders too; at higher ones nothing is known."""
    order0, value = float(e.order), float(e.epsilon)
    return lambda order: (order - 1) * value * _UP if order <= order0 else math.inf


def group(e: ev.Group) -> Moment:
    """Return the moments of a group: for a group of 2^c units, the divergence at order a >= 2 is at most 3^c
    times that of one unit at order a 2^c (Mironov 2017, arXiv:1702.07476, Prop. 2). Below order 2 they are
    infinite."""
    doublings = (e.size - 1).bit_length()
    inner = moments(e.event)

    def moment(order: float) -> float:
        unit_order = order * 2**doublings
        return (
            (order - 1) * 3**doublings * inner(unit_order) / (unit_order - 1) * _UP
            if order >= 2
            else math.inf
        )

    return moment


def repeat_and_select(e: ce.RepeatAndSelect) -> Moment:
    """Return the moments of the best of a random number of trials, from the moments of one of them."""
    return of_trials(moments(e.event), e.trials)


def of_trials(inner: Moment, trials: ce.Trials) -> Moment:
    """Return the moments of the best of a random number of runs with distribution `trials`; `inner` are the
    moments of one run.

    Guarantee: an upper bound of (order - 1) times the Rényi divergence, in both directions if that holds for
               `inner`.
    Proof:     Papernot & Steinke 2022, arXiv:2110.03620, Theorem 2 (truncated negative binomial: there is
               always a trial, so the outputs are all outcomes) and Theorem 6 (Poisson, see
               `_poisson_trials`).
    """
    if isinstance(trials, ce.PoissonTrials):
        return _poisson_trials(inner, float(trials.mean))
    assert isinstance(trials, ce.NegativeBinomialTrials)
    shape, gamma = float(trials.shape), float(trials.gamma)
    log_mean = _log_mean(shape, gamma)

    # The theorem has a second order, any a >= 1, at which it charges (1 - 1/a) rdp(a) + ln(1/gamma) / a,
    # where (1 - 1/a) rdp(a) = inner(a) / a. The best a = 1 + e^t is searched.
    def second_order_price(t: float) -> float:
        second_order = 1 + math.exp(t)
        return (inner(second_order) - math.log(gamma)) / second_order

    grid = [k / 2 for k in range(-12, 28)]
    start = min(grid, key=second_order_price)
    # ln(1/gamma) is the price at a = 1.
    second_price = min(_minimum_near(second_order_price, start), -math.log(gamma))

    def moment(order: float) -> float:
        return (inner(order) + (order - 1) * (1 + shape) * second_price + log_mean) * _UP

    return moment


def _minimum_near(price: Callable[[float], float], start: float) -> float:
    """Return the least price found within 1/2 of `start`."""
    return min(price(start), minimum(price, start - 0.5, start + 0.5, 24)[1])


def _log_mean(shape: float, gamma: float) -> float:
    """Return ln E[K] for K with the truncated negative binomial distribution, rounded up: E[K] = shape (1 -
    gamma) / (gamma (1 - gamma^shape)). It is never negative, because there is at least one trial."""
    log_gamma = math.log(gamma)
    log_odds = math.log1p(-gamma) - log_gamma
    # `quotient` is (1 - gamma^shape) / shape, with its limit ln(1/gamma) at shape 0.
    exponent = shape * log_gamma
    quotient = -log_gamma * (math.expm1(exponent) / exponent if abs(exponent) > 1e-18 else 1.0)
    return max(0.0, log_odds - math.log(quotient)) + 1e-13 * (1 + abs(log_odds) + abs(math.log(quotient)))


def _poisson_trials(inner: Moment, mean: float) -> Moment:
    """Return ln(e^{-mean} + mean e^{x}), x = (order - 1) (rdp + mean delta'), where one trial has Rényi
    divergence rdp at the order, and is (ln(1 + 1/(order-1)), delta')-DP.

    Guarantee: an upper bound of (order - 1) times the Rényi divergence of the best of a Poisson number of
               trials, never negative.
    Proof:     Papernot & Steinke 2022, arXiv:2110.03620, Theorem 6 and the lemma on generating functions
               before it. Let f(u) = e^{mean (u - 1)}, and let u and v be the probabilities, on the two
               tables, that a trial is no better than y. The best trial is no better than y with probability
               f(u), so all outputs y together add at most e^{(order-1) rdp} max f'(u)^order f'(v)^{1-order}
               <= mean e^x to the sum of p^order q^{1-order} (the module's docstring). "No trial" is an
               outcome too: its probability e^{-mean} is the same on both tables, and is the first summand.
               The theorem as stated leaves it out; for means below 1 its bound is too small, and can be
               negative.
    """
    # e^-m + m e^x = 1 + (e^-m - 1 + m) + m (e^x - 1), where both brackets are positive, so that tiny means
    # keep their digits. `idle` is the first bracket.
    idle = max(0.0, math.expm1(-mean) + mean) if mean > 1e-3 else mean * mean / 2

    def moment(order: float) -> float:
        epsilon = math.log1p(1 / (order - 1)) * (1 - 1e-14)
        x = (inner(order) + (order - 1) * mean * best_delta(inner, epsilon)) * _UP
        if x + math.log(mean) > 30:
            # e^x may overflow. The first summand e^-m is replaced by 1.
            return sampled.log1p_exp(x + math.log(mean)) * _UP
        return _log1p((idle + mean * math.expm1(x)) * _UP)

    return moment


def best_delta(moment: Moment, epsilon: float) -> float:
    """Return the least delta at an epsilon, over a grid of orders, of an event with these moments."""
    orders = [1 + math.exp(k / 3) for k in range(-12, 31)]
    return min(rdp_to_delta(order, moment(order) / (order - 1), epsilon) for order in orders)


def _sampled_poisson(e: ev.PoissonSampled) -> Moment:
    """Return the moments of an event on a Poisson sample."""
    # A rate that is too small for a float is taken as the smallest float.
    rate = float(e.rate) or 5e-324
    inner = e.event
    if isinstance(inner, ev.Gaussian):
        return sampled.gaussian(rate, float(inner.noise_multiplier))
    mirrored = type(inner) in _MIRRORED_ALONE or all(type(part) in _MIRRORED for part in ev.leaves(inner))
    return sampled.poisson(rate, moments(inner), mirrored=mirrored)


# Each of these events has one dominating pair, and some relabeling of outputs swaps its two distributions (x
# -> s - x for noise that is shifted by s). In a composition the outputs of all such pairs are relabeled. For
# them `rdp_sampled.poisson` leaves out the factor 3 of Zhu & Wang's bound: an event that does not belong here
# would be charged too little.
_MIRRORED = {
    ev.Gaussian,
    ev.Laplace,
    ev.DiscreteLaplace,
    ev.RandomizedResponse,
    ev.PureDP,
    ev.DiscreteGaussian,
}
# This event has no single dominating pair. For a given shift s, x -> s - x in every entry swaps its two
# distributions. In a composition s may depend on earlier answers, which the relabeling changes, so the
# argument holds for the event alone only.
_MIRRORED_ALONE = {ev.VectorDiscreteGaussian}


def _sampled_without_replacement(e: Any) -> Moment:
    if isinstance(e.event, ev.Gaussian):
        return sampled.gaussian_without_replacement(float(e.rate), float(e.event.noise_multiplier))
    return sampled.without_replacement(float(e.rate), moments(e.event), pure.epsilon_of(e.event))


def _shuffled_moment(e: Any) -> Moment:
    return shuffling.moment(float(e.epsilon), e.reports)


def _gaussian(e: Any) -> Moment:
    if e.noise_multiplier == 0:
        return lambda order: math.inf
    return gaussian(_ratio(1, _require.exact(e.noise_multiplier, "noise") ** 2))


def _infinite(order: float) -> float:
    return math.inf


# The moments of each kind of event in normal form (`normal`), which rewrites others first: a random
# allocation, for example, has `selected` 1 here. Those of the discrete Gaussian are those of the continuous
# one: exact at orders where order times sensitivity is an integer, an upper bound at others, because a theta
# function is largest at its center (the proof of Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Theorem
# 14).
RULES: dict[type[Event], Callable[[Any], Moment]] = {
    ev.NoOp: lambda e: lambda order: 0.0,
    ev.NonPrivate: lambda e: _infinite,
    ev.Gaussian: _gaussian,
    ev.DiscreteGaussian: lambda e: gaussian(_ratio(e.sensitivity**2, e.variance)),
    # the same Theorem 14
    ev.VectorDiscreteGaussian: lambda e: gaussian(_ratio(e.l2_squared, e.variance)),
    ev.Laplace: lambda e: laplace(float(1 / e.noise_multiplier)) if e.noise_multiplier else _infinite,
    ev.DiscreteLaplace: discrete_laplace,
    ev.RandomizedResponse: lambda e: randomized_response(float(e.epsilon), e.categories),
    ev.PureDP: lambda e: pure_dp(float(e.epsilon)),
    ev.ExponentialMechanism: lambda e: bounded_range(float(e.epsilon)),
    # Bun & Steinke 2016, Definition 1.1
    ev.ZCDP: lambda e: gaussian(2 * float(e.rho)),
    ce.RDPPoint: point,
    ev.PoissonSampled: _sampled_poisson,
    se.SampledWithoutReplacement: _sampled_without_replacement,
    se.RandomAllocation: lambda e: sampled.allocation(e.steps, float(e.event.noise_multiplier)),
    se.Shuffled: _shuffled_moment,
    ev.Group: group,
    ce.RepeatAndSelect: repeat_and_select,
}


def moments(event: Event) -> Moment:
    """Return the moments of a whole event that cannot fail (own delta 0) and is priced as what it is, not as
    something at a distance in total variation from it (see `normal`); an event without a rule is refused by
    name."""
    form = normal(event)
    if form.delta > 0 or form.distance > 0:
        raise refuse(
            event,
            "rdp",
            "an event that can fail with some probability has no Rényi bound inside another event",
        )
    return of_parts(form.parts)


def of_parts(parts: dict[Event, int]) -> Moment:
    """Return the moments of a composition of parts with counts: the sum of the parts' moments, also where
    events are chosen adaptively (Mironov 2017, arXiv:1702.07476, Prop. 1)."""
    terms: list[tuple[Moment, int]] = []
    for part, times in parts.items():
        rule = RULES.get(type(part))
        if rule is None:
            raise refuse(part, "rdp", "no Rényi bound is known here")
        terms.append((rule(part), times))

    def total(order: float) -> float:
        return math.fsum(times * moment(order) for moment, times in terms)

    return total
