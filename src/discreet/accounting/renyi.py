"""Computes Rényi divergences of events, one theorem per entry of `RULES`.

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
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from .. import _require
from . import events as ev
from . import pure
from .events import Event, covered, rule_for
from .normal import Normal, normal

Moment = Callable[[float], float]
# Covers the rounding of each closed form: a few hundred units in the last place.
UP = 1 + 1e-13


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


def log1p_up(value: float) -> float:
    """Return ln(1 + value), rounded up."""
    return math.log1p(value) * UP


def gaussian(mu_squared: float) -> Moment:
    """Return the moment order (order - 1) mu² / 2 of Gaussian noise, mu being the sensitivity divided by
    the standard deviation (Mironov 2017, arXiv:1702.07476, Prop. 7)."""
    return lambda order: order * (order - 1) / 2 * mu_squared * UP


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
            return (order - 1) * epsilon * UP
        # sqrt(p q), summed over the two answers
        weight = 2 * math.exp(epsilon / 2) / (math.exp(epsilon) + categories - 1)
        return log1p_up(weight * gap(order, epsilon))

    return moment


def laplace(epsilon: float) -> Moment:
    """Return the moments of Laplace noise (Mironov 2017, arXiv:1702.07476, Table II, its terms regrouped).

    The first summand is for outputs outside the interval between the two means, where the loss is +-epsilon;
    the second for outputs between them, where the loss is linear.
    """

    def moment(order: float) -> float:
        if order * epsilon > 350:
            return (order - 1) * epsilon * UP
        decay = math.exp(-epsilon / 2)
        return log1p_up(decay * gap(order, epsilon) + decay / 2 * _integral_between(order - 0.5, epsilon))

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
            return (order - 1) * epsilon * UP
        decay = math.exp(-epsilon / 2)
        ends = 2 / (1 + a) * decay * gap(order, epsilon)
        return log1p_up(ends + at_zero * decay * _sum_between(order, shift, scale))

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
        zcdp_moment = order * (order - 1) * epsilon * epsilon / 8 * UP
        if order * epsilon < 1e-2 or zcdp_moment == 0:
            return zcdp_moment
        top = -math.expm1(-order * epsilon)
        log_drop = -epsilon + math.log(-math.expm1(-(order - 1) * epsilon))
        log_u = min(max(math.log1p(-1 / order) + math.log(top) - log_drop, 0.0), epsilon)
        difference = top - math.exp(log_u + log_drop)
        if difference <= 0:
            # The difference was lost to rounding, which happens only at very large order times epsilon.
            return min(zcdp_moment, (order - 1) * epsilon * UP)
        value = (order - 1) * log_u + math.log(difference) - math.log(-math.expm1(-epsilon))
        return min(zcdp_moment, (value + 1e-13 * (1 + order * epsilon)) * UP, (order - 1) * epsilon * UP)

    return moment


def point(e: ev.RDPPoint) -> Moment:
    """Return the moments of a mechanism whose divergence is known at one order only. Divergences do not fall
    with the order, so its value holds at lower orders too; at higher ones nothing is known."""
    order0, value = float(e.order), float(e.epsilon)
    return lambda order: (order - 1) * value * UP if order <= order0 else math.inf


def group(e: ev.Group) -> Moment:
    """Return the moments of a group: for a group of 2^c units, the divergence at order a >= 2 is at most 3^c
    times that of one unit at order a 2^c (Mironov 2017, arXiv:1702.07476, Prop. 2). Below order 2 they are
    infinite."""
    doublings = (e.size - 1).bit_length()
    inner = moments(e.event)

    def moment(order: float) -> float:
        unit_order = order * 2**doublings
        return (
            (order - 1) * 3**doublings * inner(unit_order) / (unit_order - 1) * UP if order >= 2 else math.inf
        )

    return moment


def _gaussian(e: Any) -> Moment:
    if e.noise_multiplier == 0:
        return lambda order: math.inf
    return gaussian(_ratio(1, _require.exact(e.noise_multiplier, "noise") ** 2))


def _infinite(order: float) -> float:
    return math.inf


def _later(module: str, rule: str) -> Callable[[Any], Moment]:
    """Return a rule of a module that is imported when the first event needs it: no question in SQL does."""
    return lambda e: getattr(import_module(f".{module}", __package__), rule)(e)


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
    ev.RDPPoint: point,
    ev.PoissonSampled: _later("sampled_renyi", "poisson_sample"),
    ev.SampledWithoutReplacement: _later("sampled_renyi", "sample_without_replacement"),
    ev.RandomAllocation: _later("sampled_renyi", "random_allocation"),
    ev.Shuffled: _later("shuffling", "moment_of"),
    ev.Group: group,
    ev.RepeatAndSelect: _later("sampled_renyi", "repeat_and_select"),
}


def moments(event: Event) -> Moment:
    """Return the moments of a whole event that cannot fail (own delta 0) and is priced as what it is, not as
    something at a distance in total variation from it (see `normal`); an event without a rule is refused by
    name."""
    form = normal(event)
    why = "an event that can fail with some probability has no Rényi bound inside another event"
    covered(form.delta == form.distance == 0, event, "rdp", why)
    return of_parts(form.parts)


def of_parts(parts: dict[Event, int]) -> Moment:
    """Return the moments of a composition of parts with counts: the sum of the parts' moments, also where
    events are chosen adaptively (Mironov 2017, arXiv:1702.07476, Prop. 1)."""
    terms: list[tuple[Moment, int]] = []
    for part, times in parts.items():
        rule = rule_for(RULES, part, "rdp", "no Rényi bound is known here")
        terms.append((rule(part), times))

    def total(order: float) -> float:
        return math.fsum(times * moment(order) for moment, times in terms)

    return total


def curve(event: Event, orders: Iterable[float]) -> list[float]:
    """Return the Rényi divergence of the whole event at each order, rounded up.

    An event that can fail with some probability (own delta, see `normal`) is refused, because its divergence
    is infinite; `epsilon` prices it.

    >>> from .events import Gaussian
    >>> [round(r, 9) for r in curve(Gaussian(noise_multiplier=2.0).repeated(4), [2, 8.5])]
    [1.0, 4.25]
    """
    form = normal(event)
    why = "it can fail with some probability, so its Rényi divergence is infinite"
    covered(form.delta == form.distance == 0, event, "rdp", why)
    moment = of_parts(form.parts)
    divergences = []
    for order in orders:
        _require.must(order > 1, "order", order, "above 1")
        divergences.append(pure_epsilon(form) if math.isinf(order) else moment(float(order)) / (order - 1))
    return divergences


def pure_epsilon(form: Normal) -> float:
    """Return the pure epsilon of the parts, which is the divergence at order infinity; infinite if none."""
    total = pure.epsilon_of(form.event)
    return math.inf if total is None else total
