"""Says which pair of distributions (P, Q) dominates which event: one row of `RULES` per type of event, with
its theorem. Events without a row are refused by name.

Events come in normal form (`..normal`): an event with the price of another has become that other event, and
the delta of events that can fail has been split off. `merged` then makes one Gaussian of all unsampled ones,
and adds up the rho of all events that are priced by zero-concentrated privacy alone.

In all rules `tail` is the P-mass that may be cut off and counted as infinite loss: a larger one is looser and
never wrong. Parameters are rounded so that upper pairs cost more and lower pairs less. The exception is the
Gaussian, whose noise `merged` rounds down by less than 2e-15: a lower pair of its own would double the work,
and the lower ends leave out more (`ROUNDED`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from ... import _require, _round
from ..._errors import DiscreetError
from .. import composition, renyi, shuffling
from .. import events as ev
from ..events import Event, covered, rule_for
from ..normal import Normal, is_noiseless, normal
from .lattice.convolution import joint
from .pairs import basic_pairs, families
from .pairs import families as choices_module
from .pairs.attained_pairs import Seen, two_candidates
from .pairs.basic_pairs import (
    Atoms,
    DominatingPair,
    FixedSizeSampledPair,
    PoissonSampledPair,
    bounded_range,
    laplace,
    missing_q_mass,
)
from .pairs.families import SampledGaussian, discrete_gaussian, discrete_laplace, randomized_response
from .solve import Composition

# Up to this many exponential mechanisms are priced both ways, one by one and by the block (one joint pair for
# several of them: `pairs.choices`), as either may be tighter; more of them are priced by the block alone. The
# number changes tightness and time only; it was chosen by hand, not tuned.
_FEW = 16
# The largest epsilon of an exponential mechanism that is priced by the block. It changes tightness and time
# only; it was chosen by hand, not tuned.
_LARGE = 8
# The P-mass that the grid of a random allocation may count as infinite loss, in units of `tail` (and limited
# to between 1e-20 and 1e-6). Both are tried in this order: a larger one makes the grid smaller and the bound
# looser.
_INFINITE_SHARES = 1e3, 1e5
# The largest P-mass that may be cut off the pair of an event before it is sampled: it counts `rate` times, so
# that at tiny rates a larger one would be allowed, but would make the pair no smaller.
_LARGEST_TAIL = 1e-3
# The largest number of atoms of a discrete Gaussian pair; an event that needs more is priced by its rho.
_GAUSSIAN_ATOMS = 2_000_000


class EventPairs(NamedTuple):
    """Holds the pairs of an event.

    `upper` dominate it: one pair for both directions, or one for removing a unit and one for adding it.
    `infinite` is the P-mass at infinite loss that comes with each of them and that they do not list. `lower`
    are attained by mechanisms with this event, possibly several for one direction (`_nth` says which is for
    which); None if no such pair is known here (`pairs.attained_pairs` may have replaced the event by another
    that has one). The pairs of a `Seen` event are both `upper` and `lower`.
    """

    upper: tuple[DominatingPair, ...]
    lower: tuple[DominatingPair, ...] | None
    infinite: float = 0.0


def _symmetric(pair: DominatingPair, lower: DominatingPair | None = None) -> EventPairs:
    """Return the pairs of an event with one `pair` for both directions, which is also the lower pair unless
    another `lower` is given."""
    return EventPairs((pair,), (lower if lower is not None else pair,))


def _directed(pair_of: Callable[[float], DominatingPair], epsilon: Any) -> EventPairs:
    """Return the pair at epsilon rounded up, and for lower bounds at epsilon rounded down."""
    upper, down = pair_of(_round.up(epsilon)), _round.down(epsilon)
    return _symmetric(upper, upper if down == epsilon else pair_of(down))


def _laplace(event: Event, tail: float) -> EventPairs:
    assert isinstance(event, ev.Laplace)
    return _directed(laplace, 1 / _require.exact(event.noise_multiplier, "noise"))


def _discrete_laplace(event: Event, tail: float) -> EventPairs:
    assert isinstance(event, ev.DiscreteLaplace)
    upper, lower = discrete_laplace(_require.exact(event.scale, "scale"), event.sensitivity)
    return _symmetric(upper, lower)


def _discrete_gaussian(event: Event, tail: float) -> EventPairs:
    assert isinstance(event, ev.DiscreteGaussian)
    pair = discrete_gaussian(_require.exact(event.variance, "variance"), event.sensitivity)
    # the P-mass beyond 14 standard deviations, which `discrete_gaussian` leaves out
    return EventPairs((pair,), (pair,), 1e-42)


def _zcdp(event: Event, tail: float) -> EventPairs:
    """Return the pair of the largest curve that zCDP allows; for lower bounds, the Gaussian with this rho."""
    assert isinstance(event, ev.ZCDP)
    rho = _round.up(event.rho)
    atoms, infinite = families.zcdp_atoms(rho, tail)
    return EventPairs(
        (atoms,), (SampledGaussian(_round.up(1 / math.sqrt(2 * rho)) * (1 + 1e-12), 1.0),), infinite
    )


def _renyi(event: Event, tail: float) -> EventPairs:
    """Return the pair that the Rényi bound at many orders implies."""
    atoms, infinite = families.renyi_atoms(renyi.of_parts({event: 1}), tail)
    return EventPairs((atoms,), None, infinite)


def _allocation(event: Event, tail: float) -> EventPairs:
    """Return the pair of a random allocation: at each epsilon the lower of its exact curve and its Rényi
    bound, or the Rényi bound alone where the grid of the exact curve would be too large."""
    assert isinstance(event, ev.RandomAllocation)
    # The normal form of an allocation has one selected step only.
    assert isinstance(event.event, ev.Gaussian)
    moment, noise = renyi.of_parts({event: 1}), float(event.event.noise_multiplier)
    for share in _INFINITE_SHARES:
        try:
            exact = composition.allocation_curve(event.steps, noise, min(max(share * tail, 1e-20), 1e-6))
        except DiscreetError:
            continue
        atoms, infinite = families.renyi_atoms(moment, tail, exact.delta)
        return EventPairs((atoms,), None, infinite)
    atoms, infinite = families.renyi_atoms(moment, tail)
    return EventPairs((atoms,), None, infinite)


def _shuffled(event: Event, tail: float) -> EventPairs:
    assert isinstance(event, ev.Shuffled)
    # `tail` is not used: losses are at most the local epsilon, and no tail is cut off
    atoms, infinite = _clones(_round.up(event.epsilon), event.reports)
    return EventPairs((atoms,), None, infinite)


@lru_cache(maxsize=16)
def _clones(local_epsilon: float, reports: int) -> tuple[Atoms, float]:
    """Return the pair of shuffled reports by the bound of Feldman, McMillan & Talwar 2021 ("hiding among the
    clones", `shuffling.delta_at`), and its P-mass at infinite loss."""
    return families.curve_atoms(lambda x: shuffling.delta_at(local_epsilon, reports, x), local_epsilon)


def _exponential(event: Event, tail: float) -> EventPairs:
    """Return the pair of the exponential mechanism; for lower bounds, those of choices between two candidates
    at several odds, each of which serves both directions."""
    epsilon: Any = event.epsilon  # type: ignore[attr-defined]
    two = tuple(two_candidates(_round.down(epsilon), share) for share in (0.5, 0.6, 0.75, 0.9, 0.98))
    return EventPairs((bounded_range(_round.up(epsilon)),), two)


def _response(event: Event, tail: float) -> EventPairs:
    assert isinstance(event, ev.RandomizedResponse)
    return _directed(lambda epsilon: randomized_response(epsilon, event.categories), event.epsilon)


def _pure(event: Event, tail: float) -> EventPairs:
    assert isinstance(event, ev.PureDP)
    return _directed(randomized_response, event.epsilon)


def _gaussian(event: Event, tail: float) -> EventPairs:
    assert isinstance(event, ev.Gaussian)
    return _symmetric(SampledGaussian(float(event.noise_multiplier), 1.0))


def _inner(event: Event, sampled_event: Event, tail: float) -> EventPairs:
    """Return the pairs of the event inside a sample: those of its only part, or its composition as one pair.

    `sampled_event` is the event around it, which a refusal names.
    """
    form = normal(event)
    parts = merged(form)
    covered(
        form.delta == form.distance == 0 and bool(parts),
        sampled_event,
        "pld",
        "an event with a failure probability or a total-variation distance of its own "
        "has no pair that could be sampled",
    )
    if sum(parts.values()) == 1:
        return pairs_of(next(iter(parts)), tail)
    components = [(pairs_of(part, tail / n), n) for part, n in parts.items()]
    infinite = inherited = math.fsum(n * component.infinite for component, n in components)
    upper, lower = [], list[DominatingPair | None]()
    for i in range(max(len(component.upper) for component, _ in components)):
        above = [(component.upper[min(i, len(component.upper) - 1)], n) for component, n in components]
        below = [
            (component.lower[min(i, len(component.lower) - 1)], n)
            for component, n in components
            if component.lower is not None
        ]
        both = joint(above, below if len(below) == len(components) else None, tail)
        upper.append(both.upper)
        infinite = max(infinite, inherited + both.infinite)
        lower.append(both.lower)
    # lower pairs of all directions or none: the pair of one direction cannot stand in for the other's
    known = tuple(pair for pair in lower if pair is not None)
    return EventPairs(tuple(upper), known if len(known) == len(lower) else None, infinite * (1 + 1e-12))


def _poisson(event: Event, tail: float) -> EventPairs:
    """Return the mixtures of both directions: with the rate rounded up, and for lower bounds rounded down."""
    assert isinstance(event, ev.PoissonSampled)
    rate = min(1.0, _round.up(event.rate))
    # the P-mass that is cut off the inner pair counts `rate` times
    inner = _inner(event.event, event, min(tail / rate, _LARGEST_TAIL))
    upper = tuple(_poisson_sampled(inner.upper, rate, removing, inner.infinite) for removing in (True, False))
    if inner.lower is None:
        return EventPairs(upper, None, min(1.0, rate * inner.infinite * (1 + 1e-15)))
    down = _round.down(event.rate)
    return EventPairs(
        upper,
        tuple(_poisson_sampled(inner.lower, down, removing) for removing in (True, False)),
        rate * inner.infinite,
    )


def _poisson_sampled(
    pairs: tuple[DominatingPair, ...], rate: float, removing: bool, infinite: float | None = None
) -> DominatingPair:
    """Return one direction of a sampled event, from the `pairs` of the inner event: the first is sampled for
    removing, the last for adding.

    `infinite` is the P-mass at infinite loss that dominating pairs leave out; None for a lower bound.
    """
    pair = pairs[0] if removing else pairs[-1]
    if isinstance(pair, SampledGaussian) and pair.rate == 1:
        return SampledGaussian(pair.sigma, rate, removing)
    if infinite is None:
        return PoissonSampledPair(pair, rate, removing)
    return PoissonSampledPair(pair, rate, removing, missing_q_mass(pair) if removing else infinite)


def _fixed_size(event: Event, tail: float) -> EventPairs:
    """Return the pair of sampling without replacement.

    The lower pair is that of a mechanism on a table in which all other units are zero: its output is drawn
    from P if the replaced unit is in the sample with the first of its two values, and from Q otherwise, so
    that its pair is that of Poisson sampling when removing a unit.
    """
    assert isinstance(event, ev.SampledWithoutReplacement)
    inner = _inner(event.event, event, tail)
    rate = _round.up(event.rate)
    covered(len(inner.upper) == 1, event, "pld", "its inner event has no symmetric pair")
    lower = inner.lower and (PoissonSampledPair(inner.lower[0], _round.down(event.rate), True),)
    pair = inner.upper[0]
    if sum(merged(normal(event.event)).values()) == 1:
        return EventPairs((FixedSizeSampledPair(pair, rate),), lower, inner.infinite)
    # The atoms of a composition (`joint`) are not symmetric: its curve of delta is sampled instead.
    largest_loss = float(pair.nodes(tail).loss[-1])
    atoms, infinite = families.fixed_size_atoms(
        lambda x: basic_pairs.delta(pair, x)[1] + inner.infinite, rate, largest_loss
    )
    return EventPairs((atoms,), lower, infinite)


class Rule(NamedTuple):
    """Holds how the pairs of one type of event are built (from an event and a tail mass), and the theorem
    that says they dominate."""

    pairs_of: Callable[[Event, float], EventPairs]
    theorem: str


_RENYI = "Rényi bound at all orders, as the convex curve it implies (Zhu, Dong & Wang 2022)"
RULES: dict[type[Event], Rule] = {
    ev.Gaussian: Rule(
        _gaussian, "N(1, s²) against N(0, s²); unsampled ones in closed form (Balle & Wang 2018, Theorem 8)"
    ),
    ev.Laplace: Rule(_laplace, "shift by the sensitivity (Dwork et al. 2006)"),
    ev.DiscreteLaplace: Rule(_discrete_laplace, "its own lattice of losses; vectors as in the event's proof"),
    ev.DiscreteGaussian: Rule(_discrete_gaussian, "its own lattice of losses, by direct summation"),
    ev.RandomizedResponse: Rule(_response, "the two answers swapped, the others at loss 0"),
    ev.ExponentialMechanism: Rule(
        _exponential, "largest curve of bounded range (Dong, Durfee & Rogers 2020)"
    ),
    ev.PureDP: Rule(_pure, "binary randomized response (Kairouz, Oh & Viswanath 2015)"),
    ev.ZCDP: Rule(
        _zcdp,
        "best order at each epsilon, convex minorant (Canonne, Kamath & Steinke 2020; Zhu, Dong & Wang 2022)",
    ),
    ev.PoissonSampled: Rule(_poisson, "mixture in either direction (Zhu, Dong & Wang 2022, Theorem 11)"),
    ev.SampledWithoutReplacement: Rule(
        _fixed_size, "mixture above 0, mirrored below (Balle, Barthe & Gaboardi 2018, Theorem 9)"
    ),
    ev.Shuffled: Rule(_shuffled, "curve of the clones (Feldman, McMillan & Talwar 2021)"),
    ev.RandomAllocation: Rule(
        _allocation,
        "exact curve of the pass in both directions (Feldman & Shenfeld 2025; Chua et al. 2024), as a pair",
    ),
    ev.RDPPoint: Rule(_renyi, _RENYI),
    ev.RepeatAndSelect: Rule(_renyi, _RENYI),
    ev.Group: Rule(_renyi, _RENYI),
}


def pairs_of(event: Event, tail: float) -> EventPairs:
    """Return the pairs of one part; `tail` is the P-mass that may be cut off and counted as infinite loss."""
    if isinstance(event, Seen):
        return EventPairs(event.pairs, event.pairs)
    return rule_for(RULES, event, "pld", "no dominating pair is known for it").pairs_of(event, tail)


def merged(form: Normal) -> dict[Event, int]:
    """Return the parts, with all Gaussians joined into one, all that is priced by its rho into one `ZCDP`,
    and those without any privacy loss left out. (Discrete Gaussians with too many atoms are
    among those that are priced by rho.)

    The joint noise is rounded down, which costs more; rho is exact.
    """
    parts: dict[Event, int] = {}
    precision, rho = Fraction(0), Fraction(0)
    for part, times in form.parts.items():
        if isinstance(part, ev.Gaussian) and part.noise_multiplier > 0:
            precision += times / _require.exact(part.noise_multiplier, "noise") ** 2
        elif isinstance(part, ev.ZCDP) and part.delta == 0:
            rho += times * _require.exact(part.rho, "rho")
        elif isinstance(part, ev.VectorDiscreteGaussian) or _too_wide(part):
            rho += times * _rho(part)
        elif not _free(part):
            parts[part] = parts.get(part, 0) + times
    if precision > 0:
        noise = _round.down(Fraction(1) / Fraction(_round.up(math.sqrt(_round.up(precision)) * (1 + 1e-15))))
        parts[ev.Gaussian(noise_multiplier=noise, neighbors=form.neighbors)] = 1
    if rho > 0:
        parts[ev.ZCDP(rho=rho, neighbors=form.neighbors)] = 1
    return parts


def _too_wide(part: Event) -> bool:
    """Return whether discrete Gaussian noise would have too many atoms within 14 standard deviations."""
    return isinstance(part, ev.DiscreteGaussian) and 28 * math.sqrt(float(part.variance)) > _GAUSSIAN_ATOMS


def _rho(part: Any) -> Fraction:
    """Return the rho of discrete Gaussian noise: squared sensitivity / (2 variance)."""
    squared = part.l2_squared if isinstance(part, ev.VectorDiscreteGaussian) else part.sensitivity**2
    return squared / (2 * _require.exact(part.variance, "variance"))


def _free(part: Event) -> bool:
    """Return whether a part has no privacy loss: it is no release, its sensitivity or epsilon is 0, or it
    samples such events. (The epsilon of an `RDPPoint` belongs to one order and proves nothing.)"""
    if isinstance(part, ev.PoissonSampled | ev.SampledWithoutReplacement):
        form = normal(part.event)
        return not (form.delta or form.distance or merged(form))
    return (
        isinstance(part, ev.NoOp)
        or getattr(part, "sensitivity", 1) == 0
        or (getattr(part, "epsilon", 1) == 0 and not isinstance(part, ev.RDPPoint))
    )


def only_renyi(parts: dict[Event, int]) -> bool:
    """Return whether only Rényi bounds are known of the parts: adding up their moments and converting the sum
    to epsilon may then be tighter than composing their pairs."""
    return all(isinstance(part, ev.ZCDP) or RULES.get(type(part), (None, ""))[1] is _RENYI for part in parts)


def without_noise(form: Normal) -> bool:
    """Return whether something was released without any noise."""
    return any(map(is_noiseless, form.parts))


def compositions(
    parts: dict[Event, int], tail: float, below: int = 0, choices: bool = False
) -> list[Composition]:
    """Return one composition of upper pairs per direction; or with `below` one of lower pairs per position
    (`_nth`), as there may be several for a direction, without the parts that have no lower pair.

    With `choices` the exponential mechanisms that cost most (`_heaviest`) are priced by the block: see
    `pairs.choices`. The tail mass is shared by all steps.
    """
    steps = sum(parts.values())
    blocked = _heaviest(parts) if choices and not below else None
    components = [(pairs_of(part, tail / steps), times) for part, times in parts.items() if part != blocked]
    if blocked is not None:
        components += _blocks_of(blocked, parts[blocked])
    if below:
        lower_pairs = [(component.lower, n) for component, n in components if component.lower is not None]
        positions = max((len(pairs) for pairs, _ in lower_pairs), default=0)
        return [Composition(tuple((_nth(pairs, i), n) for pairs, n in lower_pairs)) for i in range(positions)]
    infinite = math.fsum(times * component.infinite for component, times in components) * (1 + 1e-12)
    return [
        Composition(tuple((_nth(component.upper, i), n) for component, n in components), infinite)
        for i in range(max(len(component.upper) for component, _ in components))
    ]


def _heaviest(parts: dict[Event, int]) -> Event | None:
    """Return the exponential mechanism that is priced by the block: among those that occur several times, the
    one that adds most to the variance of the loss; None if there is none.

    Only the mechanisms of one epsilon are priced so: the proof of `pairs.choices` moves all choices behind
    the other mechanisms, and choices of two epsilons cannot be moved past each other.
    """
    several = [
        part
        for part, n in parts.items()
        if n > 1 and isinstance(part, ev.ExponentialMechanism) and part.epsilon <= _LARGE
    ]
    return max(several, key=lambda part: parts[part] * part.epsilon**2, default=None)


def _blocks_of(event: Any, times: int) -> list[tuple[EventPairs, int]]:
    """Return `times` exponential mechanisms of one epsilon as pairs of whole blocks, each with the number of
    such blocks."""
    blocks, epsilon = [], _round.up(event.epsilon)
    for size, number in choices_module.blocks(epsilon, times):
        atoms, infinite = choices_module.adaptive_pair(epsilon, size)
        blocks.append((EventPairs((atoms,), None, infinite), number))
    return blocks


def ways(parts: dict[Event, int]) -> tuple[bool, ...]:
    """Return the values of `choices` (whether exponential mechanisms are priced by the block) to try in
    `compositions`; the lowest bound counts."""
    blocked = _heaviest(parts)
    if blocked is None:
        return (False,)
    return (True,) if parts[blocked] > _FEW else (False, True)


def _nth(pairs: tuple[DominatingPair, ...], i: int) -> DominatingPair:
    """Return pairs[i], or the first pair of the same direction if there are fewer: even positions are for
    removing the unit, odd ones for adding it; a single pair is for both."""
    return pairs[i] if i < len(pairs) else pairs[i % min(2, len(pairs))]
