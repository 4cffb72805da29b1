"""Decides how the price of a query is divided among its parts, and which noise each part gets.

Parts are measures (noise on integers), choices (exponential mechanism, once for every group a unit can be in)
and, where the groups are not public, their selection. Each gets a share of epsilon by weight. Measures get
Laplace noise, or together Gaussian noise where that is smaller: the more groups one unit is in, the sooner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .. import _require, _round
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors
from ..accounting import ApproximateDP, Event, compose
from ..accounting.conversion import zcdp_to_epsilon
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.protocols import Sensitivity
from ..mechanisms.selectors import ExponentialMechanism, TopK
from .measures import Bounding, Choice, Recipes
from .plan import Plan

# What is divided of the price, so that float totals, which round up, stay within what was asked.
DIVISIBLE_SHARE = 1 - Fraction(1, 1 << 48)

Noise = IntegerLaplace | IntegerGaussian
Selector = ExponentialMechanism | TopK


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTarget:
    """Says what may be spent: epsilon with delta, or zCDP's rho."""

    epsilon: Fraction | None = None
    delta: float = 0.0
    rho: Fraction | None = None
    noise: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Holds the noise of each measure, the selector of each choice (for one group), and the selection of
    groups, with their events."""

    noises: tuple[Noise, ...]
    selectors: tuple[Selector, ...]
    # epsilon and delta of the decision about one group
    selection: tuple[Fraction, Fraction] | None
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedShape:
    """Holds all that pricing needs to know of a query: sensitivities, choices, weights, how many groups one
    unit can move."""

    sensitivities: tuple[Sensitivity, ...]
    choices: tuple[Choice, ...]
    # measures, then choices, then selection
    weights: tuple[Fraction, ...]
    changed_groups: int
    bounding: Bounding
    known_keys: bool
    neighbors: Neighbors


def shape_of(
    plan: Plan,
    recipes: Recipes,
    bounding: Bounding,
    neighbors: Neighbors,
    weights: list[Fraction],
    other: bool,
) -> PricedShape:
    """Return what pricing needs to know of a plan; `other` says that small groups are added up into one
    bucket."""
    sensitivities = [m.sensitivity(bounding, neighbors, plan.groups) for m in recipes.measures]
    # all groups of a unit may fall into the one bucket
    if other:
        sensitivities = [_gather(s) for s in sensitivities]
    changed_groups = bounding.groups if neighbors is ADD_REMOVE else 2 * bounding.groups
    if plan.groups is not None:
        changed_groups = min(changed_groups, plan.groups)
    return PricedShape(
        sensitivities=tuple(sensitivities),
        choices=tuple(recipes.choices),
        weights=tuple(weights),
        changed_groups=changed_groups,
        bounding=bounding,
        known_keys=plan.known_keys,
        neighbors=neighbors,
    )


def _gather(s: Sensitivity) -> Sensitivity:
    """Return what a unit moves if its groups may be added up into one: l1 stays, and all of it may be in one
    entry."""
    assert s.l1 is not None
    return Sensitivity(linf=s.l1, l0=s.l0, l1=s.l1, l2_squared=s.l1**2)


def allocate(shape: PricedShape, target: PriceTarget) -> Allocation:
    """Return the cheapest way, in error, to spend the target on this query."""
    _require_target(shape, target)
    if target.rho is not None:
        return _by_rho(shape, target.rho)
    may_be_gaussian = bool(shape.sensitivities) and target.noise in ("auto", "gaussian") and target.delta > 0
    if not may_be_gaussian:
        return _by_epsilon(shape, target, gaussian=False)
    if target.noise == "gaussian":
        return _by_epsilon(shape, target, gaussian=True)
    laplace = _by_epsilon(shape, target, gaussian=False)
    low, high = _bound_gaussian_error(shape, target)
    # Calibrating a Gaussian takes a thousand times longer than these bounds of its error; most counts are far
    # from a tie.
    if _squared_error(shape, laplace) < low:
        return laplace
    gaussian = _by_epsilon(shape, target, gaussian=True)
    if _squared_error(shape, laplace) > high:
        return gaussian
    return min((laplace, gaussian), key=lambda option: _squared_error(shape, option))


def _bound_gaussian_error(shape: PricedShape, target: PriceTarget) -> tuple[float, float]:
    """Bound, in closed form, the error that calibrated Gaussian noise will have.

    Below: no noise is smaller than that of the continuous Gaussian with the same (epsilon, delta) (Balle &
    Wang 2018), less a twentieth for the discrete one, and nothing is claimed where that is small enough for
    single steps to matter. Above: the textbook conversion rho + 2 sqrt(rho ln(1 / delta)). The bounds decide
    only which noise is calibrated: a wrong one costs accuracy, never privacy.
    """
    count = len(shape.sensitivities)
    assert target.epsilon is not None
    epsilon = float(target.epsilon * sum(shape.weights[:count]) / sum(shape.weights))
    delta = target.delta if shape.known_keys else target.delta / 2
    # half of the smallest float is 0, for which no Gaussian noise is enough
    if delta == 0:
        return math.inf, math.inf
    log = math.log(1 / delta)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    weights = [float(w / sum(shape.weights[:count])) for w in shape.weights[:count]]
    pairs = [
        (_norm(s.l2_squared) / w, max(s.linf, 1) ** 2)
        for s, w in zip(shape.sensitivities, weights, strict=True)
    ]
    high = sum(squared / (2 * rho) / unit for squared, unit in pairs) if rho > 0 else math.inf
    multiplier = _gaussian_multiplier(epsilon, delta)
    variances = [0.9 * multiplier**2 * squared for squared, _ in pairs]
    low = sum(v / unit for v, (_, unit) in zip(variances, pairs, strict=True)) if min(variances) > 4 else 0.0
    return low, high


def _gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the deviation over the sensitivity at which continuous Gaussian noise is (epsilon, delta)-DP,
    from below, to one in 1,000."""
    low, high = 0.0, 1.0
    while _gaussian_delta(epsilon, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _gaussian_delta(epsilon, middle) > delta else (low, middle)
    return low


def _gaussian_delta(epsilon: float, multiplier: float) -> float:
    a, b = 1 / (2 * multiplier), epsilon * multiplier
    tail = _upper_tail(b + a)
    # beyond the range of floats the second term is smaller than the first by a factor that no comparison here
    # can see
    return _upper_tail(b - a) - (math.exp(epsilon + math.log(tail)) if tail > 0 else 0.0)


def _upper_tail(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2))


def _norm(value: int | None) -> int:
    assert value is not None
    return value


def _require_target(shape: PricedShape, target: PriceTarget) -> None:
    if target.noise not in ("auto", "laplace", "gaussian"):
        raise _require.fail("noise", target.noise, "'auto', 'laplace' or 'gaussian'")
    if (target.epsilon is None) == (target.rho is None):
        raise InvalidInput("give either epsilon (with delta) or rho. Nothing was read or charged.")
    if target.noise == "gaussian" and target.rho is None and target.delta == 0:
        raise InvalidInput("Gaussian noise needs a delta above zero. Nothing was read or charged.")
    if not shape.known_keys and (target.delta == 0 or target.rho is not None):
        raise InvalidInput(
            "the groups of this query are not public, so showing any needs epsilon and a delta above "
            "zero. Nothing was read or "
            "charged. Give delta=..., or have the key declared as categories."
        )


def _by_epsilon(shape: PricedShape, target: PriceTarget, *, gaussian: bool) -> Allocation:
    """Divide epsilon among the parts by weight, with Laplace or Gaussian noise for the measures."""
    assert target.epsilon is not None
    total, count = sum(shape.weights), len(shape.sensitivities)
    room = 1 if len(shape.weights) == 1 else DIVISIBLE_SHARE
    shares = [Fraction(_round.down(target.epsilon * room * w / total)) for w in shape.weights]
    delta = target.delta if shape.known_keys or not gaussian else target.delta / 2
    if gaussian:
        noises = _gaussians(shape, sum(shares[:count], Fraction(0)), delta)
    else:
        pairs = zip(shares, shape.sensitivities, strict=False)
        noises = [IntegerLaplace.for_epsilon(e, sensitivity=s, neighbors=shape.neighbors) for e, s in pairs]
    selectors = [
        _selector(shape, c, Fraction(_round.down(e / shape.changed_groups)))
        for c, e in zip(shape.choices, shares[count:], strict=False)
    ]
    selection = None
    if not shape.known_keys:
        each = Fraction(_round.down(shares[-1] / shape.changed_groups))
        selection = (each, Fraction(_round.down(Fraction(delta) / shape.changed_groups)))
    return _allocation(shape, noises, selectors, selection)


def _gaussians(shape: PricedShape, epsilon: Fraction, delta: float) -> list[Any]:
    """Return the Gaussian noise of each measure: of a single one, the least variance that is proved for it;
    of several, shares of the rho that (epsilon, delta) allows."""
    if len(shape.sensitivities) == 1:
        (s,) = shape.sensitivities
        return [
            IntegerGaussian.for_privacy(
                epsilon=epsilon, delta=delta, sensitivity=s, neighbors=shape.neighbors
            )
        ]
    rho = rho_for(float(epsilon), delta)
    weights = shape.weights[: len(shape.sensitivities)]
    shares = [rho * w / sum(weights) for w in weights]
    pairs = zip(shares, shape.sensitivities, strict=True)
    return [IntegerGaussian.for_rho(r, sensitivity=s, neighbors=shape.neighbors) for r, s in pairs]


def rho_for(epsilon: float, delta: float) -> Fraction:
    """Return the largest rho (to 1e-6) whose zCDP implies (epsilon, delta)-DP, rounded down.

    Guarantee: zcdp_to_epsilon(rho, delta) <= epsilon for the result.
    Proof:     the conversion is increasing in rho; the lower end of a bisection is returned.
    """
    low, high = 0.0, max(epsilon, epsilon**2)
    while zcdp_to_epsilon(high, delta) <= epsilon:
        high *= 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if zcdp_to_epsilon(middle, delta) <= epsilon else (low, middle)
    if low == 0:
        raise InvalidInput(f"epsilon = {epsilon:g} with delta = {delta:g} is too little for Gaussian noise.")
    return Fraction(low)


def _by_rho(shape: PricedShape, rho: Fraction) -> Allocation:
    """Divide rho among the parts by weight, with Gaussian noise."""
    total, count = sum(shape.weights), len(shape.sensitivities)
    shares = [rho * w / total for w in shape.weights]
    pairs = zip(shares, shape.sensitivities, strict=False)
    noises: list[Noise] = [
        IntegerGaussian.for_rho(r, sensitivity=s, neighbors=shape.neighbors) for r, s in pairs
    ]
    selectors = []
    for choice, share in zip(shape.choices, shares[count:], strict=False):
        # bounded range epsilon is epsilon²/8-zCDP (Cesar & Rogers 2021, Lemma 3.4); k picks of epsilon/k
        # each: epsilon²/8k
        picks = int(choice.parameter) if choice.kind == "top" else 1
        epsilon = Fraction(math.sqrt(8 * picks * share / shape.changed_groups) * (1 - 1e-12))
        selectors.append(_selector(shape, choice, epsilon))
    return _allocation(shape, noises, selectors, None)


def _selector(shape: PricedShape, choice: Choice, epsilon: Fraction) -> Selector:
    """Return the mechanism that chooses in one group, where one unit adds, takes or swaps at most `rows`
    rows.

    Quantile q = a/b: score -max(b below - a n, a n - b (below + at), 0), an integer. A row that comes or goes
    moves it by at most max(a, b - a); a swap is one of each. Most common value: the count itself moves by at
    most 1 per row, and under add_remove all counts move the same way.
    """
    added = shape.neighbors is ADD_REMOVE
    rows = shape.bounding.rows
    if choice.kind == "quantile":
        a, b = choice.parameter.numerator, choice.parameter.denominator
        sensitivity = rows * max(a, b - a) * (1 if added else 2)
        return ExponentialMechanism(epsilon=epsilon, sensitivity=sensitivity, neighbors=shape.neighbors)
    if choice.kind == "top":
        k = int(choice.parameter)
        return TopK(epsilon=epsilon, sensitivity=rows, monotone=added, k=k, neighbors=shape.neighbors)
    return ExponentialMechanism(epsilon=epsilon, sensitivity=rows, monotone=added, neighbors=shape.neighbors)


def _allocation(
    shape: PricedShape,
    noises: list[Any],
    selectors: list[Selector],
    selection: tuple[Fraction, Fraction] | None,
) -> Allocation:
    """Return the parts with the event that composes theirs."""
    events = [n.event for n in noises] + [c.event.repeated(shape.changed_groups) for c in selectors]
    if selection is not None:
        selection_event = ApproximateDP(
            epsilon=selection[0], delta=float(selection[1]), neighbors=shape.neighbors
        )
        events.append(selection_event.repeated(shape.changed_groups))
    return Allocation(
        noises=tuple(noises), selectors=tuple(selectors), selection=selection, event=compose(events)
    )


def _squared_error(shape: PricedShape, option: Allocation) -> float:
    """Return the sum of squared errors, each relative to what one unit adds."""
    pairs = zip(option.noises, shape.sensitivities, strict=True)
    return sum((noise.standard_deviation / max(s.linf, 1)) ** 2 for noise, s in pairs)
