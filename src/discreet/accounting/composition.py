"""Composition of (epsilon, delta) guarantees: basic, advanced, and optimal.

These accountants see of each event only one point of its privacy curve: it is (epsilon_i, delta_i)-DP. The
delta that was asked for is divided: own failures first, then a share for every event that has no pure
epsilon, and the rest is the delta that the composition theorem itself adds. `totals.basic` adds up fixed
pairs; here the pairs are chosen to fit a delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from .. import _require, _round
from .._errors import Unsupported
from . import choice_events as ce
from . import events as ev
from . import pure, rdp
from . import sampled_events as se
from .conversion import gaussian_epsilon, zcdp_to_epsilon
from .events import Event
from .normal import Normal, group_delta, normal
from .refusal import refuse
from .solve import least_epsilon

# epsilon, how often
Pairs = list[tuple[float, int]]
# Covers the rounding of each closed form: a few hundred units in the last place.
_UP = 1 + 1e-13
# Shares of delta that go to the parts themselves, the rest to composition: each gives a valid epsilon, the
# least counts.
_SHARES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)


# --- one event at one delta ---------------------------------------------------------------------------------


def point(event: Event, delta: float) -> float:
    """Return an epsilon for which a single normal-form event is (epsilon, delta)-DP."""
    exact = pure.epsilon_of(event)
    if exact is not None and not isinstance(event, se.Shuffled):
        return exact
    if delta <= 0:
        return math.inf if exact is None else exact
    rule = _POINTS.get(type(event))
    if rule is None:
        raise refuse(event, "basic", "no theorem here gives it an (epsilon, delta)")
    return rule(event, min(delta, 1 - 1e-12))


def _gaussian_point(e: ev.Gaussian, delta: float) -> float:
    """Return the epsilon of one Gaussian at delta."""
    return (
        gaussian_epsilon(_round.up(1 / _require.exact(e.noise_multiplier, "noise")), delta)
        if e.noise_multiplier
        else math.inf
    )


def _zcdp_point(e: Any, delta: float) -> float:
    from .totals import zcdp

    return zcdp_to_epsilon(zcdp(e).value, delta)


def _sampled_point(e: Any, delta: float) -> float:
    """Return (ln(1 + q (e^eps - 1)), q delta) (Balle, Barthe & Gaboardi 2018, arXiv:1807.01647, Theorems 8
    and 9)."""
    rate = float(e.rate) or 5e-324
    inside = min(delta / rate * (1 - 1e-14), 1 - 1e-12)
    return pure.amplified(basic(e.event, inside), rate)


def _group_point(e: ev.Group, delta: float) -> float:
    """Return the epsilon of a group at the largest inner delta, over a grid, whose k-fold growth still fits
    (`normal.group_delta`)."""
    for step in range(60):
        inner_delta = delta * math.exp(-step)
        inner = basic(e.event, inner_delta)
        if math.isfinite(inner) and group_delta(inner, inner_delta, e.size) <= delta:
            return _round.up(_require.exact(inner, "epsilon") * e.size)
    return math.inf


def _rdp_point(e: Event, delta: float) -> float:
    return rdp.epsilon(e, delta)


def _allocation_point(e: se.RandomAllocation, delta: float) -> float:
    """Return the epsilon of a random allocation: by the exact curve where a grid can hold it, else by the
    Rényi bound."""
    from .allocation import curve as curve_of

    fallback = rdp.epsilon(e, delta)
    noise = float(getattr(e.event, "noise_multiplier", 0.0))
    if noise == 0:
        return fallback
    try:
        curve = curve_of(e.steps, noise, min(1e-3 * delta, 1e-9))
    except Unsupported:
        return fallback
    low, high = 0.0, fallback
    if curve.delta(high) > delta:
        return fallback
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if curve.delta(middle) <= delta else (middle, high)
    return high


def _shuffled_point(e: se.Shuffled, delta: float) -> float:
    from . import shuffling

    return shuffling.epsilon(float(e.epsilon), e.reports, delta)


_POINTS: dict[type[Event], Callable[[Any, float], float]] = {
    ev.NonPrivate: lambda e, delta: math.inf,
    # Balle & Wang 2018, arXiv:1805.06530, Theorem 8
    ev.Gaussian: _gaussian_point,
    # Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Theorem 14 and Prop. 12
    ev.DiscreteGaussian: _zcdp_point,
    ev.VectorDiscreteGaussian: _zcdp_point,
    ev.ZCDP: _zcdp_point,
    ev.PoissonSampled: _sampled_point,
    se.SampledWithoutReplacement: _sampled_point,
    ev.Group: _group_point,
    # Feldman, McMillan & Talwar 2021, arXiv:2012.12803
    se.Shuffled: _shuffled_point,
    # Feldman & Shenfeld 2025, arXiv:2502.08202
    se.RandomAllocation: _allocation_point,
    ce.RDPPoint: _rdp_point,
    ce.RepeatAndSelect: _rdp_point,
}


def _pairs(form: Normal, delta: float) -> Pairs:
    """Return the (epsilon, delta) of every part at its share of delta; parts with a pure epsilon need
    none."""
    needy = sum(
        n for part, n in form.parts.items() if pure.epsilon_of(part) is None or isinstance(part, se.Shuffled)
    )
    share = delta / needy * (1 - 1e-14) if needy else 0.0
    return [(point(part, share), n) for part, n in form.parts.items()]


def _is_pure(form: Normal) -> bool:
    return pure.epsilon_of(form.event) is not None


def _total_pure(form: Normal) -> float:
    total = pure.epsilon_of(form.event)
    return math.inf if total is None else total


# --- the three accountants ----------------------------------------------------------------------------------


def basic(event: Event, delta: float) -> float:
    """Return the epsilon of basic composition: epsilons add up, deltas add up (Dwork & Roth 2014, Theorem
    3.16).

    >>> basic(ev.PureDP(epsilon=1).repeated(3), 1e-6)
    3.0
    """
    form = normal(event)
    return least_epsilon(
        form, delta, lambda remaining_delta: _sum(_pairs(form, remaining_delta)), _total_pure(form)
    )


def _sum(pairs: Pairs) -> float:
    if any(math.isinf(epsilon) for epsilon, _ in pairs):
        return math.inf
    return _round.up(sum(n * _require.exact(epsilon, "epsilon") for epsilon, n in pairs))


def advanced(event: Event, delta: float) -> float:
    """Return the epsilon of advanced composition, by Kairouz, Oh & Viswanath's closed form for different
    epsilons; never above basic composition."""
    return _with_shares(event, delta, kairouz)


def optimal(event: Event, delta: float) -> float:
    """Return the epsilon of optimal composition: exact over everything that is (epsilon_i, delta_i)-DP;
    different epsilons are first rounded up to a grid.

    Guarantee: the composition is (epsilon, delta)-DP.
    Proof:     Kairouz, Oh & Viswanath 2015, arXiv:1311.0776, Theorem 3.3 (equal epsilons); Murtagh & Vadhan
               2016, arXiv:1507.03113, Theorem 1.5 (any), with their rounding: `rounding` states by how much
               epsilons were raised in all.
    """
    return _with_shares(event, delta, optimal_pairs)


def _with_shares(event: Event, delta: float, compose: Callable[[Pairs, float], float]) -> float:
    """Return the least epsilon over some ways to divide delta between events and their composition."""
    form = normal(event)
    single = sum(form.parts.values()) == 1

    def price(remaining_delta: float) -> float:
        alone = _sum(_pairs(form, remaining_delta))
        if single:
            return alone
        if _is_pure(form) and not any(isinstance(part, se.Shuffled) for part in form.parts):
            return min(alone, compose(_pairs(form, 0.0), remaining_delta))
        shared = [
            compose(_pairs(form, remaining_delta * share), remaining_delta * (1 - share) * (1 - 1e-14))
            for share in _SHARES
        ]
        return min(alone, *shared)

    return least_epsilon(form, delta, price, _total_pure(form))


# --- the theorems, on bare numbers --------------------------------------------------------------------------


def dwork_roth(epsilon: float, times: int, delta: float) -> float:
    """Return sqrt(2 k ln(1/delta)) eps + k eps (e^eps - 1): the advanced composition that textbooks state,
    which adds `delta` to those of the steps.

    Proof: Dwork, Rothblum & Vadhan 2010; Dwork & Roth 2014, Theorem 3.20. Lectures often drop the second
           term.

    >>> round(dwork_roth(0.1, 100, 1e-6), 3)
    6.308
    """
    _require.non_negative(epsilon=epsilon)
    _require.integer(times=times, at_least=1)
    _require.open_probability(delta=delta)
    # beyond, e^epsilon is near the largest float or above it
    if epsilon > 700:
        return math.inf
    return (math.sqrt(-2 * times * math.log(delta)) * epsilon + times * epsilon * math.expm1(epsilon)) * _UP


def kairouz(pairs: Iterable[tuple[float, int]], delta: float) -> float:
    """Return the least of three closed forms (Kairouz, Oh & Viswanath 2015, arXiv:1311.0776, Theorem 3.5).

    >>> round(kairouz([(0.1, 100)], 1e-6), 3)
    5.756
    """
    _require.probability(delta=delta)
    terms = list(pairs)
    plain = _sum(terms)
    if math.isinf(plain) or delta <= 0:
        return plain
    drift = math.fsum(n * math.tanh(epsilon / 2) * epsilon for epsilon, n in terms)
    squares = math.fsum(n * epsilon * epsilon for epsilon, n in terms)
    first = math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / delta))
    second = math.sqrt(-2 * squares * math.log(delta))
    return min(plain, (drift + min(first, second)) * _UP)


def optimal_pairs(pairs: Iterable[tuple[float, int]], delta: float) -> float:
    """Return the optimum for pure epsilons with their counts: the total loss is a sum of independent signs.

    Different epsilons more than 50,000 times in all, and equal ones more than a billion times, are left to
    the closed form, which is an upper bound.
    """
    _require.probability(delta=delta)
    terms = [(epsilon, n) for epsilon, n in pairs if epsilon > 0 and n > 0]
    plain = _sum(terms)
    if not terms or math.isinf(plain) or delta <= 0:
        return plain
    if sum(n for _, n in terms) > (_MANY if len(terms) > 1 else _MANY_EQUAL):
        return kairouz(terms, delta)
    losses, weights = _losses(*_grid(terms))
    low, high = 0.0, plain
    if _delta(losses, weights, 0.0) <= delta:
        return 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _delta(losses, weights, middle) <= delta else (middle, high)
    return high


def optimal_delta(epsilon: float, times: int, total: float) -> float:
    """Return the delta at which `times` mechanisms that are epsilon-DP are (total, delta)-DP: the exact
    optimum, rounded up.

    Guarantee: their composition, adaptive too, is (total, delta)-DP.
    Proof:     Kairouz, Oh & Viswanath 2015, arXiv:1311.0776, Theorem 3.3: the total loss of randomized
               response, a sum of signs.

    >>> optimal_delta(0.5, 2, 1.0)
    0.0
    """
    _require.non_negative(epsilon=epsilon, total=total)
    _require.integer(times=times, at_least=1)
    if times > _MANY_EQUAL:
        raise _require.fail("times", times, f"at most {_MANY_EQUAL}: the sum over signs takes memory")
    if epsilon == 0 or _require.exact(epsilon, "epsilon") * times <= _require.exact(total, "epsilon"):
        return 0.0
    return min(1.0, _delta(*_losses(*_grid([(epsilon, times)])), total))


def rounding(pairs: Iterable[tuple[float, int]]) -> float:
    """Return by how much the grid of `optimal_pairs` raises the sum of epsilons: an upper bound of its error
    in epsilon."""
    terms = [(epsilon, n) for epsilon, n in pairs if epsilon > 0 and n > 0]
    if not terms:
        return 0.0
    mesh, steps = _grid(terms)
    return max(
        0.0, math.fsum(n * (k * mesh - epsilon) for (epsilon, n), (k, _) in zip(terms, steps, strict=True))
    )


# Cells of the grid of the total loss, and mechanisms up to which different epsilons are composed on it: both
# bound time and memory; a coarser grid only raises the bound.
_CELLS, _MANY = 1 << 17, 50_000
# Mechanisms of one epsilon up to which their signs are summed: about 40 times the root of it in cells.
_MANY_EQUAL = 10**9


def _grid(terms: Pairs) -> tuple[float, list[tuple[int, int]]]:
    """Return a mesh such that every epsilon, rounded up, is a multiple of it: the one that raises the sum
    least, within memory."""
    largest = max(epsilon for epsilon, _ in terms)

    def steps(mesh: float) -> list[tuple[int, int]]:
        return [(_nearest_multiple(epsilon, mesh), n) for epsilon, n in terms]

    def raised(mesh: float) -> float:
        return math.fsum(
            n * (k * mesh - epsilon) for (epsilon, n), (k, _) in zip(terms, steps(mesh), strict=True)
        )

    if len(terms) == 1:
        return largest * (1 + 1e-13), [(1, terms[0][1])]
    count = math.fsum(n * epsilon / largest for epsilon, n in terms)
    finest = max(1, min(4096, int(_CELLS / (2 * count + 2))))
    tried = sorted({max(1, finest - i) for i in range(64)} | {min(finest, i) for i in range(1, 65)})
    mesh = min((largest / k * (1 + 1e-12) for k in tried), key=raised)
    return mesh, [(_multiple(epsilon, mesh), n) for epsilon, n in terms]


def _nearest_multiple(epsilon: float, mesh: float) -> int:
    """Return how many meshes make epsilon, rounded up, but for the rounding of the quotient."""
    return max(1, math.ceil(epsilon / mesh * (1 - 1e-13)))


def _multiple(epsilon: float, mesh: float) -> int:
    """Return a number of meshes that is not below epsilon, exactly."""
    near = _nearest_multiple(epsilon, mesh)
    return near if Fraction(near) * Fraction(mesh) >= Fraction(epsilon) else near + 1


def _losses(mesh: float, steps: list[tuple[int, int]]) -> tuple[Any, Any]:
    """Return the distribution of the total loss when the answers come from the first table.

    All weights positive, at most a hair too large.
    """
    low, weights, error = 0, np.ones(1), 0.0
    for k, n in steps:
        first, binomial_weights, binomial_error = _binomial(n, k * mesh)
        error += binomial_error
        convolved = np.zeros(len(weights) + 2 * k * (len(binomial_weights) - 1))
        if len(weights) == 1:
            convolved[:: 2 * k] = binomial_weights * weights
        else:
            for i, weight in enumerate(binomial_weights):
                convolved[2 * k * i : 2 * k * i + len(weights)] += weight * weights
        low, weights = low + k * (2 * first - n), convolved
    return mesh * (low + np.arange(len(weights), dtype=np.float64)), weights * (1 + max(1e-9, error))


def _binomial(n: int, log_odds: float) -> tuple[int, Any, float]:
    """Return binomial weights, success being e^log_odds times as likely as failure, within 20 sqrt(n) of the
    mean (Hoeffding: what is left out is below e^{-799}), scaled to total one, after the number of successes
    of the first and before a bound of their relative rounding error."""
    center, reach = round(n / (1 + math.exp(-log_odds))), int(20 * math.sqrt(n)) + 2
    first, last = max(0, center - reach), min(n, center + reach)
    k = np.arange(first, last, dtype=np.float64)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - k) / (k + 1)) + log_odds)])
    weights = np.exp(logs - logs.max())
    # every addition errs by half an ulp of the partial sum, every logarithm by a few; scaling doubles it
    error = 2.0**-52 * len(logs) * (5 + float(np.abs(logs).max()))
    return first, weights / weights.sum(), error


def _delta(losses: Any, weights: Any, epsilon: float) -> float:
    start = int(np.searchsorted(losses, epsilon, side="right"))
    return float(np.sum(weights[start:] * -np.expm1(epsilon - losses[start:])))
