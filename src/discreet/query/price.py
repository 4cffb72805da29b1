"""Decides how the price of a query is divided among its parts, and which noise each part gets.

Parts are measures (integers that get noise), choices (exponential mechanism, in every group) and, where the
groups are not public, their selection. Each gets a share of epsilon by weight. All measures get Laplace
noise, or all get Gaussian noise: by default the kind with the smaller error. Gaussian noise depends on l2
sensitivities, so that it wins where a unit (a person, or a row) is in many groups. A price in rho always
means Gaussian noise.

A unit changes the choices and the selection in at most `changed_groups` groups, each of which therefore gets
its share divided by that number.

Partition selection: where nobody declared which groups exist, that is private too. Each group is shown
with a probability that grows with its number of units (a unit is who is protected: a person, or a row).

>>> [float(p) for p in show_probabilities(epsilon=Fraction(1), delta=Fraction(1, 100))[:2]]
[0.0, 0.01]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import compress
from typing import Any

import numpy as np

from .. import _require, _round, sampling
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors
from ..accounting import ApproximateDP, Event, compose
from ..accounting.conversion import zcdp_to_epsilon
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.protocols import Sensitivity
from ..mechanisms.selection import ExponentialMechanism, TopK
from ..sampling import Entropy
from .measures import Bounding, Choice, Recipes
from .plan import Plan, PublicSize

# The share of the price that is divided among several parts: the sum of their prices, in floats that are
# rounded up, then stays within what was asked for. Any margin far above 2**-53 will do.
DIVISIBLE_SHARE = 1 - Fraction(1, 1 << 48)

Noise = IntegerLaplace | IntegerGaussian | PublicSize
Selector = ExponentialMechanism | TopK
# the sensitivity of what is public
_NONE = Sensitivity(linf=0, l0=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTarget:
    """Says what may be spent, epsilon with delta or zCDP's rho, and on which noise: "laplace", "gaussian", or
    "auto" for the smaller error. With rho it is Gaussian, and "laplace" is refused."""

    epsilon: Fraction | None = None
    delta: float = 0.0
    rho: Fraction | None = None
    noise: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Holds the noise of each measure, the selector of each choice, and the event of the complete query.

    A selector is for one group. `selection`: epsilon and delta of the decision whether to show one group;
    None where the groups are public.
    """

    noises: tuple[Noise, ...]
    selectors: tuple[Selector, ...]
    selection: tuple[Fraction, Fraction] | None
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedShape:
    """Holds all that pricing needs to know of a query.

    `weights`: of the measures, then of the choices, then of the selection, if there is one. `changed_groups`:
    the most groups in which two neighboring tables differ. `known_keys`: whether the groups are public.
    `public_rows`: the number of rows, if it is public: their count then has a sensitivity of 0, and gets
    neither noise nor a share of the price.
    """

    sensitivities: tuple[Sensitivity, ...]
    choices: tuple[Choice, ...]
    weights: tuple[Fraction, ...]
    changed_groups: int
    bounding: Bounding
    known_keys: bool
    neighbors: Neighbors
    public_rows: int | None = None


def shape_of(
    plan: Plan,
    recipes: Recipes,
    bounding: Bounding,
    neighbors: Neighbors,
    weights: list[Fraction],
    other: bool,
    public_rows: int | None = None,
) -> PricedShape:
    """Return what pricing needs to know of a plan; `other` says that groups that are not shown are added
    up into one."""
    sensitivities = [
        _NONE
        if m.kind == "rows" and public_rows is not None
        else m.sensitivity(bounding, neighbors, plan.groups)
        for m in recipes.measures
    ]
    # all groups of a unit may be among those that are added up
    if other:
        sensitivities = [_gather(s) for s in sensitivities]
    # a unit that is replaced leaves some groups and enters others
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
        public_rows=public_rows,
    )


def _gather(s: Sensitivity) -> Sensitivity:
    """Return the sensitivity if some groups of a unit may be added up into one: the l1 norm stays, and all of
    it may be in one entry."""
    assert s.l1 is not None
    return Sensitivity(linf=s.l1, l0=s.l0, l1=s.l1, l2_squared=s.l1**2)


# Cached, as the same sums are often asked for at the same price, with other constants in WHERE. All that
# decides is public, and is in the key.
@lru_cache(maxsize=64)
def allocate(shape: PricedShape, target: PriceTarget) -> Allocation:
    """Return the allocation that spends the target on this query, or nothing if all of it is public."""
    _require_target(shape, target)
    noisy = [s is not _NONE for s in shape.sensitivities]
    if all(noisy):
        return _allocate(shape, target)
    assert shape.public_rows is not None
    rest = replace(
        shape,
        sensitivities=tuple(compress(shape.sensitivities, noisy)),
        weights=(*compress(shape.weights, noisy), *shape.weights[len(noisy) :]),
    )
    size = PublicSize(value=shape.public_rows, neighbors=shape.neighbors)
    spent = _allocate(rest, target) if rest.weights else _allocation(rest, [size], [], None)
    others = iter(spent.noises)
    return replace(spent, noises=tuple(next(others) if is_noisy else size for is_noisy in noisy))


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
        (_not_none(s.l2_squared) / w, max(s.linf, 1) ** 2)
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


def _not_none(value: int | None) -> int:
    assert value is not None
    return value


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
        _selector(shape, c, Fraction(_round.down(e / shape.changed_groups)))
        for c, e in zip(shape.choices, shares[count:], strict=False)
    ]
    selection = None
    if not shape.known_keys:
        per_group = Fraction(_round.down(shares[-1] / shape.changed_groups))
        selection = (per_group, Fraction(_round.down(Fraction(delta) / shape.changed_groups)))
    return _allocation(shape, noises, selectors, selection)


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
    for choice, share in zip(shape.choices, shares[count:], strict=False):
        # A mechanism of bounded range epsilon is epsilon²/8-zCDP (Cesar & Rogers 2021, Lemma 3.4), so that k
        # picks of epsilon/k each are epsilon²/(8k)-zCDP. This is set to the share of one group, and
        # solved for epsilon, with a margin for the rounding of the square root.
        picks = int(choice.parameter) if choice.kind == "top" else 1
        epsilon = Fraction(math.sqrt(8 * picks * share / shape.changed_groups) * (1 - 1e-12))
        selectors.append(_selector(shape, choice, epsilon))
    return _allocation(shape, noises, selectors, None)


def _selector(shape: PricedShape, choice: Choice, epsilon: Fraction) -> Selector:
    """Return the mechanism that chooses in one group, where one unit adds, removes or replaces at most
    `bounding.rows` rows: of the group for a quantile, of each value for the most common values.

    Quantile q = a/b: of n rows, `below` are below a candidate and `at` equal it; its score is
    -max(b below - a n, a n - b (below + at), 0), an integer (`mechanism.scores`). A row that is added or
    removed moves it by at most max(a, b - a); a row that is replaced does both. Most common values: the score
    is the count of a candidate, which moves by at most 1 per row; under add_remove all counts move in the
    same direction (`monotone`).
    """
    add_remove = shape.neighbors is ADD_REMOVE
    rows = shape.bounding.rows
    if choice.kind == "quantile":
        a, b = choice.parameter.numerator, choice.parameter.denominator
        sensitivity = rows * max(a, b - a) * (1 if add_remove else 2)
        return ExponentialMechanism(epsilon=epsilon, sensitivity=sensitivity, neighbors=shape.neighbors)
    if choice.kind == "top":
        k = int(choice.parameter)
        return TopK(epsilon=epsilon, sensitivity=rows, monotone=add_remove, k=k, neighbors=shape.neighbors)
    return ExponentialMechanism(
        epsilon=epsilon, sensitivity=rows, monotone=add_remove, neighbors=shape.neighbors
    )


def _allocation(
    shape: PricedShape,
    noises: list[Any],
    selectors: list[Selector],
    selection: tuple[Fraction, Fraction] | None,
) -> Allocation:
    """Return the allocation with the event that composes those of its parts. A selector, and the selection,
    run in all groups and are charged `changed_groups` times: in all other groups neighboring tables agree."""
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
    """Return the sum of the variances of all noises, each relative to the square of the most that one unit
    changes in one group."""
    pairs = zip(option.noises, shape.sensitivities, strict=True)
    return sum((noise.standard_deviation / max(s.linf, 1)) ** 2 for noise, s in pairs)


# probabilities are multiples of 2**-128
_BITS = 128
# A larger epsilon is computed as this one, which bounds the time of `exp_below`. Any number from 89 on would
# do: there e^epsilon is above 2**128, and the table depends on delta alone (below 1/2, a group of one unit is
# shown with probability delta, of two units with 1 - 2**-128, of three with 1).
_LARGEST_EPSILON = 200
# The most entries of the table of probabilities: epsilon and delta are refused if a group would need more
# units to be shown with probability 1. Not tuned; a table of this length takes about a second and 50 MB.
LONGEST = 1_000_000


def exp_below(x: Fraction, bits: int = _BITS) -> Fraction:
    """Return a rational between exp(x) (1 - 2**-100) and exp(x), for 0 <= x <= 200.

    The Taylor series of exp has positive terms only, so that a partial sum of terms that are rounded down is
    below exp. x is halved until it is at most 1, and the result squared as often.

    >>> 2.718281828 < float(exp_below(Fraction(1))) <= 2.718281829
    True
    """
    halvings = 0
    while x > 1:
        x, halvings = x / 2, halvings + 1
    term, total, n = Fraction(1), Fraction(1), 1
    while term > Fraction(1, 1 << (bits + 20)):
        term = _round_down(term * x / n, bits + 40)
        total, n = total + term, n + 1
    for _ in range(halvings):
        total = _round_down(total * total, bits + 40)
    return total


def _round_down(x: Fraction, bits: int) -> Fraction:
    """Return the largest multiple of 2**-bits that is at most x."""
    return Fraction((x.numerator << bits) // x.denominator, 1 << bits)


# few, as a table may have a million entries
@lru_cache(maxsize=8)
def _table(epsilon: Fraction, delta: Fraction) -> tuple[int, ...]:
    """Return `show_probabilities` as multiples of 2**-128."""
    if not (epsilon > 0 and 0 < delta < 1):
        raise InvalidInput("groups that nobody declared need an epsilon and a delta above zero.")
    one = 1 << _BITS
    # e^epsilon and delta as multiples of 2**-128, rounded down: rounded up, the guarantee would be lost
    factor, step = int(exp_below(min(epsilon, Fraction(_LARGEST_EPSILON))) * one), int(delta * one)
    entries = [0]
    while entries[-1] < one:
        p = entries[-1]
        # the most that "shown" allows: e^epsilon p + delta, rounded down
        by_shown = (factor * p >> _BITS) + step
        # the most that "not shown" allows: 1 - (1 - p - delta) / e^epsilon, rounded down
        by_hidden = one + ((p + step - one) << _BITS) // factor
        entries.append(min(by_shown, by_hidden, one))
        # An entry that does not grow would never reach 1: delta is below 2**-128.
        if len(entries) > LONGEST or entries[-1] <= p:
            raise InvalidInput(
                f"with epsilon {float(epsilon):.3g} and delta {float(delta):.3g} a group would need more "
                f"than {LONGEST} units to be shown surely. Ask with more epsilon, or fewer groups per unit."
            )
    return tuple(entries)


def show_probabilities(*, epsilon: Fraction, delta: Fraction) -> tuple[Fraction, ...]:
    """Return the largest probabilities to show a group of 0, 1, 2, ... units such that showing it or not is
    (epsilon, delta)-DP; the last is 1.

    Guarantee: for neighbors in which the group has n and n + 1 units, "shown" and "not shown" are both
               (epsilon, delta)-indistinguishable, and an empty group is never shown. No strategy with
               this guarantee shows any group more often, up to 2**-90 or so.
    Proof:     Desfontaines, Voss & Gipson 2022, arXiv:2006.03684, Theorem 1: with p(n) the probability for n
               units and p(0) = 0, p(n+1) is the least of e^epsilon p(n) + delta,
               1 - e^-epsilon (1 - p(n) - delta), and 1. `_table` computes with a rational that is at most
               e^epsilon, and rounds delta and the probabilities down, so that both inequalities hold exactly.
    """
    return tuple(Fraction(p, 1 << _BITS) for p in _table(epsilon, delta))


def units_always_shown(epsilon: Fraction, delta: Fraction) -> int:
    """Return the least number of units with which a group is shown with probability 1."""
    return len(_table(epsilon, delta)) - 1


def select(units: Any, *, epsilon: Fraction, delta: Fraction, entropy: Entropy) -> Any:
    """Return, for each group's exact number of units, whether to show it: independent draws with exactly
    `show_probabilities`."""
    _require.positive(epsilon=epsilon)
    table = _table(epsilon, delta)
    sizes = np.minimum(np.asarray(units, dtype=np.int64), len(table) - 1)
    is_shown = sizes == len(table) - 1
    for size in np.unique(sizes[~is_shown]).tolist():
        groups = np.flatnonzero(sizes == size)
        is_shown[groups] = sampling.bernoulli(Fraction(table[size], 1 << _BITS), len(groups), entropy)
    return is_shown
