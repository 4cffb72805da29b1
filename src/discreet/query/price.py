"""Decides how the price of a query is divided among its parts, and which noise each part gets.

Parts are measures (integers that get noise), choices (exponential mechanism, in every group) and, where the
groups are not public, their selection. Each gets a share of epsilon by weight. All measures get Laplace
noise, or all get Gaussian noise: by default the kind with the smaller error. Gaussian noise depends on l2
sensitivities, so that it wins where a unit (a person, or a row) is in many groups. A price in rho always
means Gaussian noise.

A unit changes the choices and the selection in at most `changed_groups` groups, each of which therefore gets
its share divided by that number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import compress
from typing import Any, NamedTuple

from .. import _require, _round
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors
from ..accounting.conversion import zcdp_to_epsilon
from ..core.choosing import Selector
from ..core.form import NONE, Form, norm
from ..core.question import Noise, PublicSize
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.protocols import Sensitivity
from ..mechanisms.selectors import ExponentialMechanism, TopK

# The share of the price that is divided among several parts: the sum of their prices, in floats that are
# rounded up, then stays within what was asked for. Any margin far above 2**-53 will do.
DIVISIBLE_SHARE = 1 - Fraction(1, 1 << 48)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTarget:
    """Says what may be spent, epsilon with delta or zCDP's rho, and on which noise: "laplace", "gaussian", or
    "auto" for the smaller error. With rho it is Gaussian, and "laplace" is refused."""

    epsilon: Fraction | None = None
    delta: float = 0.0
    rho: Fraction | None = None
    noise: str = "auto"


class Allocation(NamedTuple):
    """Holds the noise of each measure, and the selector of each choice, for one group. `selection`: epsilon
    and delta of the decision whether to show one group; None where the groups are public."""

    noises: tuple[Noise, ...]
    selectors: tuple[Selector, ...]
    selection: tuple[Fraction, Fraction] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedShape:
    """Holds all that pricing needs to know of a form.

    `weights`: of the measures, then of the choices, then of the selection, if there is one. `changed_groups`:
    the most groups in which two neighboring tables differ. `picks`: for each choice the sensitivity of its
    scores, how many candidates it picks, and its kind. `public_rows`: the number of rows, if it is public:
    their count then has a sensitivity of 0, and gets neither noise nor a share of the price.
    """

    sensitivities: tuple[Sensitivity, ...]
    picks: tuple[tuple[int, int, str], ...]
    weights: tuple[Fraction, ...]
    changed_groups: int
    known_keys: bool
    neighbors: Neighbors
    public_rows: int | None = None


def shape_of(form: Form, weights: list[Fraction]) -> PricedShape:
    """Return what pricing needs to know of a form."""
    return PricedShape(
        sensitivities=form.sensitivities,
        picks=tuple((form.score_sensitivity(c), c.picks, c.kind) for c in form.choices),
        weights=tuple(weights),
        changed_groups=form.changed_groups,
        known_keys=form.known_keys,
        neighbors=form.public.neighbors,
        public_rows=form.public_rows,
    )


# Cached, as the same sums are often asked for at the same price, with other constants in WHERE. All that
# decides is public, and is in the key.
@lru_cache(maxsize=64)
def allocate(shape: PricedShape, target: PriceTarget) -> Allocation:
    """Return the allocation that spends the target on this query, or nothing if all of it is public."""
    _require_target(shape, target)
    noisy = [s != NONE for s in shape.sensitivities]
    if all(noisy):
        return _allocate(shape, target)
    assert shape.public_rows is not None
    rest = replace(
        shape,
        sensitivities=tuple(compress(shape.sensitivities, noisy)),
        weights=(*compress(shape.weights, noisy), *shape.weights[len(noisy) :]),
    )
    size = PublicSize(value=shape.public_rows, neighbors=shape.neighbors)
    spent = _allocate(rest, target) if rest.weights else Allocation((), (), None)
    others = iter(spent.noises)
    return spent._replace(noises=tuple(next(others) if is_noisy else size for is_noisy in noisy))


def _allocate(shape: PricedShape, target: PriceTarget) -> Allocation:
    """Return the allocation with the noise that the target names, or for "auto" with the one of Laplace and
    Gaussian noise that has the smaller `_squared_error`."""
    if target.rho is not None:
        return _by_rho(shape, target.rho)
    may_be_gaussian = bool(shape.sensitivities) and target.noise in ("auto", "gaussian") and target.delta > 0
    if not may_be_gaussian:
        return _by_epsilon(shape, target, gaussian=False)
    if target.noise == "gaussian":
        return _by_epsilon(shape, target, gaussian=True)
    laplace = _by_epsilon(shape, target, gaussian=False)
    low, high = _bound_gaussian_error(shape, target)
    # Calibrating a Gaussian takes a thousand times longer than these bounds of its error, and for most counts
    # the two errors differ by far.
    if _squared_error(shape, laplace) < low:
        return laplace
    gaussian = _by_epsilon(shape, target, gaussian=True)
    if _squared_error(shape, laplace) > high:
        return gaussian
    return min((laplace, gaussian), key=lambda option: _squared_error(shape, option))


def _bound_gaussian_error(shape: PricedShape, target: PriceTarget) -> tuple[float, float]:
    """Return a lower and an upper bound of the `_squared_error` that calibrated Gaussian noise will have.

    Lower: calibrated discrete noise is taken to have at least 0.9 times the variance of the continuous
    Gaussian with the same (epsilon, delta) (Balle & Wang 2018); the bound is 0 where a variance is below 4,
    as discrete and continuous noise differ there. Upper: the error of Gaussian noise at the rho for which the
    textbook conversion rho + 2 sqrt(rho ln(1 / delta)) is epsilon. Neither is proved for discrete noise,
    and need not be: they decide only which noise is calibrated, so that a wrong one costs accuracy, never
    privacy.
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
    # per measure: the squared l2 sensitivity divided by its weight, and what `_squared_error` divides by
    pairs = [
        (norm(s.l2_squared) / w, max(s.linf, 1) ** 2)
        for s, w in zip(shape.sensitivities, weights, strict=True)
    ]
    # rho-zCDP needs a variance of l2² / (2 rho)
    high = sum(squared / (2 * rho) / scale for squared, scale in pairs) if rho > 0 else math.inf
    multiplier = _gaussian_multiplier(epsilon, delta)
    variances = [0.9 * multiplier**2 * squared for squared, _ in pairs]
    low = (
        sum(v / scale for v, (_, scale) in zip(variances, pairs, strict=True)) if min(variances) > 4 else 0.0
    )
    return low, high


def _gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the noise multiplier (standard deviation divided by sensitivity) from which on continuous
    Gaussian noise is (epsilon, delta)-DP, rounded down by at most one in 1,000."""
    low, high = 0.0, 1.0
    while _gaussian_delta(epsilon, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _gaussian_delta(epsilon, middle) > delta else (low, middle)
    return low


def _gaussian_delta(epsilon: float, multiplier: float) -> float:
    """Return the delta of continuous Gaussian noise at epsilon (Balle & Wang 2018, Theorem 8), for s the
    multiplier: Q(epsilon s - 1 / (2 s)) - e^epsilon Q(epsilon s + 1 / (2 s)), Q being `_upper_tail`."""
    a, b = 1 / (2 * multiplier), epsilon * multiplier
    tail = _upper_tail(b + a)
    # Where the tail is 0 in floats, the second term is so much smaller than the first that no comparison here
    # would change.
    return _upper_tail(b - a) - (math.exp(epsilon + math.log(tail)) if tail > 0 else 0.0)


def _upper_tail(x: float) -> float:
    """Return the probability that a standard normal variable is above x."""
    return 0.5 * math.erfc(x / math.sqrt(2))


def _require_target(shape: PricedShape, target: PriceTarget) -> None:
    if target.noise not in ("auto", "laplace", "gaussian"):
        raise _require.fail("noise", target.noise, "'auto', 'laplace' or 'gaussian'")
    if (target.epsilon is None) == (target.rho is None):
        raise InvalidInput("give either epsilon (with delta) or rho.")
    if target.noise == "laplace" and target.rho is not None:
        raise InvalidInput(
            "a price in rho is for Gaussian noise, and noise='laplace' was given beside it. Leave noise out, "
            "or give the price as epsilon."
        )
    if target.noise == "gaussian" and target.rho is None and target.delta == 0:
        raise InvalidInput("Gaussian noise needs a delta above zero.")
    if not shape.known_keys and (target.delta == 0 or target.rho is not None):
        raise InvalidInput(
            "the groups of this query are not public, so showing any needs epsilon and a delta above zero. "
            "Give delta=..., or have the key declared as categories."
        )


def _by_epsilon(shape: PricedShape, target: PriceTarget, *, gaussian: bool) -> Allocation:
    """Divide epsilon among the parts by weight, with Laplace or Gaussian noise for the measures."""
    assert target.epsilon is not None
    total, count = sum(shape.weights), len(shape.sensitivities)
    divisible = 1 if len(shape.weights) == 1 else DIVISIBLE_SHARE
    # In the order of the weights: measures, choices, selection. The `zip`s below stop after their own part.
    # Shares are rounded down, so that their sum stays within epsilon.
    shares = [Fraction(_round.down(target.epsilon * divisible * w / total)) for w in shape.weights]
    # Gaussian noise and the selection of groups get half of delta each; where only one of them is there, it
    # gets all of delta.
    delta = target.delta if shape.known_keys or not gaussian else target.delta / 2
    if gaussian:
        noises = _gaussians(shape, sum(shares[:count], Fraction(0)), delta)
    else:
        pairs = zip(shares, shape.sensitivities, strict=False)
        noises = [IntegerLaplace.for_epsilon(e, sensitivity=s, neighbors=shape.neighbors) for e, s in pairs]
    selectors = [
        _selector(shape, *pick, Fraction(_round.down(e / shape.changed_groups)))
        for pick, e in zip(shape.picks, shares[count:], strict=False)
    ]
    selection = None
    if not shape.known_keys:
        per_group = Fraction(_round.down(shares[-1] / shape.changed_groups))
        selection = (per_group, Fraction(_round.down(Fraction(delta) / shape.changed_groups)))
    return Allocation(tuple(noises), tuple(selectors), selection)


def _gaussians(shape: PricedShape, epsilon: Fraction, delta: float) -> list[Any]:
    """Return the Gaussian noise of each measure. A single measure gets the least variance that is proved to
    be (epsilon, delta)-DP; several get shares, by weight, of the rho whose zCDP implies (epsilon,
    delta)-DP."""
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
    """Return the largest rho whose zCDP implies (epsilon, delta)-DP, rounded down by about one in 1e6.

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
        raise InvalidInput(
            f"epsilon = {epsilon:g} with delta = {delta:g} is too little for Gaussian noise. Give more of "
            f"either, or ask for Laplace noise."
        )
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
    for pick, share in zip(shape.picks, shares[count:], strict=False):
        # A mechanism of bounded range epsilon is epsilon²/8-zCDP (Cesar & Rogers 2021, Lemma 3.4), so that k
        # picks of epsilon/k each are epsilon²/(8k)-zCDP. This is set to the share of one group, and
        # solved for epsilon, with a margin for the rounding of the square root.
        epsilon = Fraction(math.sqrt(8 * pick[1] * share / shape.changed_groups) * (1 - 1e-12))
        selectors.append(_selector(shape, *pick, epsilon))
    return Allocation(tuple(noises), tuple(selectors), None)


def _selector(shape: PricedShape, sensitivity: int, picks: int, kind: str, epsilon: Fraction) -> Selector:
    """Return the mechanism that chooses in one group."""
    monotone = kind != "quantile" and shape.neighbors is ADD_REMOVE
    if kind == "top":
        return TopK(
            epsilon=epsilon, sensitivity=sensitivity, monotone=monotone, k=picks, neighbors=shape.neighbors
        )
    return ExponentialMechanism(
        epsilon=epsilon, sensitivity=sensitivity, monotone=monotone, neighbors=shape.neighbors
    )


def _squared_error(shape: PricedShape, option: Allocation) -> float:
    """Return the sum of the variances of all noises, each relative to the square of the most that one unit
    changes in one group."""
    pairs = zip(option.noises, shape.sensitivities, strict=True)
    return sum((noise.standard_deviation / max(s.linf, 1)) ** 2 for noise, s in pairs)


def confidence_of_each(confidence: float, noises: Iterable[Any]) -> float:
    """Return the confidence with which each noise must be within its error, so that all are with `confidence`
    (a union bound)."""
    count = sum(not isinstance(noise, PublicSize) for noise in noises)
    return 1 - (1 - confidence) / max(count, 1)
