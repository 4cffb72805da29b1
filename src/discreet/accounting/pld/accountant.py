"""Defines the functions of the accountant by privacy loss distributions (PLD) that other modules call: upper
bounds on epsilon and delta, intervals for both, and whether an event can be bounded at all.

The normal form of an event (`Normal`, variable `form`) holds its parts with their counts, its own failure
probability `form.delta` (its own delta), and a total-variation distance. A `Composition` holds the pairs (P,
Q) of distributions of all parts for one direction, removing or adding a unit; a `Solver` computes its bounds.
The functions `_above` and `_delta_above` return upper bounds, `_below` and `_delta_below` lower bounds, of
the parts alone, without the failure probability and the distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ... import _require, _round
from ..._errors import DiscreetError
from .. import events as ev
from .. import pure, rdp
from ..conversion import least_epsilon
from ..events import Event
from ..normal import Normal, normal
from . import rules, solve
from .pairs import families
from .pairs.attained_pairs import attained
from .rules import RULES, Rule
from .solve import LEAST_DELTA, Composition, Solver

__all__ = ["RULES", "Rule", "bounds", "delta", "delta_bounds", "epsilon", "reason", "supports"]

# The P-mass (probability under P), as a share of delta, of all tails that are cut off single events and
# counted as infinite loss: far below the relative width of the intervals that are returned, about 1e-4.
_TAIL = 1e-8
# The mass of such tails where delta is sought and not known yet: far below every delta that has digits here
# (docs/proofs/pld.md: about 1e-15).
_SMALLEST_TAIL = 1e-40
# The delta of lower bounds that are asked for at delta 0. Any positive one is valid; a smaller one is tighter
# until floats underflow.
_TINY = 1e-200


def epsilon(event: Event, delta: float) -> float:
    """Return an upper bound on the epsilon of an event at a delta.

    For sampled Gaussians it was within a relative 1e-4 of the least epsilon that holds, wherever that was
    measured (docs/proofs/pld.md).

    Guarantee: the event is (epsilon, delta)-DP under its neighbor relation.
    Proof:     docs/proofs/pld.md; each event's dominating pair has its theorem in RULES.

    >>> run = ev.Gaussian(noise_multiplier=1.1).sampled(rate=256 / 60_000).repeated(14_063)
    >>> 2.38168973 <= epsilon(run, 1e-5) <= 2.38168973 * 1.0001
    True
    """
    return _epsilon(event, delta, None)


def _epsilon(event: Event, delta: float, solved: list[Solved] | None) -> float:
    """Return a certified upper bound on epsilon; the event's own delta is subtracted from `delta` first.

    Every composition that is solved on the way is appended to `solved`, unless that is None.
    """
    _require.probability(delta=delta)
    form = normal(event)
    pure_epsilon = _pure_epsilon(form)
    if delta >= 1:
        return 0.0
    if delta == 0 or rules.without_noise(form):
        return pure_epsilon if delta == 0 and form.delta == 0 == form.distance else math.inf

    def price(remaining_delta: float) -> float:
        return _within_floats(lambda: _above(form, remaining_delta, solved), pure_epsilon)

    return least_epsilon(form, float(delta), price, pure_epsilon)


def _within_floats(bound: Callable[[], float], otherwise: float) -> float:
    """Return bound(), or `otherwise`, a bound that always holds, if a number left the range of floats or the
    memory did not suffice. A grid that holds infinities or NaN would give a bound that does not hold."""
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            return bound()
    except (ArithmeticError, MemoryError):
        return otherwise


def bounds(event: Event, delta: float) -> tuple[float, float]:
    """Return a lower and an upper bound on the least epsilon, at delta, that holds for every mechanism with
    this event.

    >>> low, high = bounds(ev.RandomizedResponse(epsilon=0.05).repeated(1000), 1e-6)
    >>> low <= 8.28357335 + 5e-9 and high >= 8.28357335 - 5e-9 and high - low < 1e-6
    True
    """
    solved: list[Solved] = []
    upper = _epsilon(event, delta, solved)
    if delta == 1 or rules.without_noise(normal(event)):
        return upper, upper
    # Every part attains its own pair, i.e. some mechanism has it: so the pure epsilon is attained.
    if delta == 0 and ev.leaves(attained(event)) == ev.leaves(event):
        return upper, upper
    failure = _failure_probability(event)
    # At delta 0 a tiny delta takes its place: a lower bound on epsilon at a larger delta holds at 0 too.
    remaining = ((float(delta) or _TINY) - failure) / (1 - failure) * (1 + 1e-12)
    # some mechanism fails with a probability of delta or more: no epsilon holds, and `upper` is infinite
    if remaining <= 0:
        return upper, upper
    # Below the least delta of the lattice: a lower bound at a larger delta holds at a smaller one too.
    remaining = max(remaining, LEAST_DELTA)
    lower = _within_floats(lambda: _below(normal(attained(event)), remaining, solved), 0.0)
    return min(lower, upper), upper


def delta(event: Event, epsilon: float) -> float:
    """Return an upper bound on the delta of an event at an epsilon.

    >>> run = ev.Gaussian(noise_multiplier=50.0).repeated(1000)
    >>> 1e-5 * 0.9999 < delta(run, 2.59438338) < 1e-5 * 1.0001
    True
    """
    _require.non_negative(epsilon=epsilon)
    form = normal(event)
    if rules.without_noise(form):
        return 1.0
    if _pure_epsilon(form) <= epsilon and form.delta == 0 == form.distance:
        return 0.0
    parts_delta = _within_floats(lambda: _delta_above(form, float(epsilon)), 1.0)
    return form.total_delta(parts_delta, float(epsilon))


def delta_bounds(event: Event, epsilon: float) -> tuple[float, float]:
    """Return a lower and an upper bound on the least delta, at epsilon, that holds for every mechanism with
    this event."""
    upper = delta(event, epsilon)
    form = normal(event)
    if upper == 0 or rules.without_noise(form):
        return upper, upper
    failure = _failure_probability(event)
    below = _within_floats(lambda: _delta_below(normal(attained(event)), float(epsilon)), 0.0)
    return min(upper, failure + (1 - failure) * below * (1 - 1e-15)), upper


def supports(event: Event) -> bool:
    """Return whether this accountant can bound the event."""
    return reason(event) is None


def reason(event: Event) -> str | None:
    """Return why an event cannot be bounded here; None if it can."""
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            for part in rules.merged(normal(event)):
                # any tail mass will do: whether there is a pair does not depend on it
                rules.pairs_of(part, 1e-20)
    except DiscreetError as refused:
        return str(refused)
    except ArithmeticError:
        # The event has a pair, but no float holds its numbers: `epsilon` then returns the pure epsilon.
        return None
    return None


def _pure_epsilon(form: Normal) -> float:
    """Return the epsilon of the parts at delta 0; infinity if they are not pure."""
    epsilon = pure.epsilon_of(form.event)
    return math.inf if epsilon is None else epsilon


def _failure_probability(event: Event) -> float:
    """Return a lower bound on the failure probability that some mechanism with this event really has.

    Only `ApproximateDP` allows a mechanism that shows everything with probability delta; the own delta of
    other events is an upper bound that may not be attained.
    """
    success = 1.0
    for part, times in ev.leaves(event).items():
        if isinstance(part, ev.ApproximateDP):
            success *= (1 - part.delta) ** times
    return max(0.0, (1 - success) * (1 - 1e-12) - 1e-15) if success < 1 else 0.0


def _shift(parts: dict[Event, int]) -> tuple[float, float] | None:
    """Return a lower and an upper bound on the shift m = 1 / noise multiplier if all parts are Gaussians, of
    which `rules.merged` has made one with count 1; None otherwise."""
    if not all(isinstance(part, ev.Gaussian) for part in parts):
        return None
    ((part, _),) = parts.items()
    assert isinstance(part, ev.Gaussian)
    exact = 1 / Fraction(part.noise_multiplier)
    return _round.down(exact) * (1 - 4e-15), _round.up(exact)


def _above(form: Normal, delta: float, solved: list[Solved] | None = None) -> float:
    """Return the least of all upper bounds on epsilon that are known for the parts: by their pairs, by their
    Rényi divergences where nothing else is known, and their pure epsilon."""
    parts = rules.merged(form)
    if not parts:
        return 0.0
    shift = _shift(parts)
    if shift:
        return families.gaussian_epsilon(shift[1], delta)[1]
    # `by_block`: whether exponential mechanisms are priced by the block
    best = min(
        _worst(rules.compositions(parts, delta * _TAIL, 0, by_block), delta, solved)
        for by_block in rules.ways(parts)
    )
    if rules.only_renyi(parts):
        best = min(best, rdp.of_form(Normal(parts, 0.0, 0.0, form.neighbors), delta).value)
    return min(best, _pure_epsilon(form))


def _worst(compositions: list[Composition], delta: float, solved: list[Solved] | None) -> float:
    """Return the largest upper bound on epsilon over the directions, one composition for each. A direction is
    given up as soon as its bound is at most that of an earlier one."""
    largest = 0.0
    for composition in compositions:
        solver = Solver(composition, delta)
        bound = solver.epsilon_above(delta, largest)
        if solved is not None:
            solved.append((composition, solver, bound))
        largest = max(largest, bound)
    return largest


def _below(form: Normal, delta: float, solved: list[Solved]) -> float:
    """Return the largest lower bound on epsilon over the directions. The one with the largest upper bound is
    computed first, and those whose upper bound is below the result so far are skipped."""
    if rules.without_noise(form):
        return math.inf
    parts = rules.merged(form)
    if not parts:
        return 0.0
    shift = _shift(parts)
    if shift:
        return families.gaussian_epsilon(shift[0], delta)[0]
    bounds = [_solver_of(c, delta, solved) for c in rules.compositions(parts, delta * _TAIL, 1)]
    largest = 0.0
    for solver, upper in sorted(bounds, key=lambda pair: -pair[1]):
        if upper > largest:
            largest = max(largest, solver.epsilon_below(delta, upper))
    return largest


# A composition, its solver, and the upper bound on epsilon that it gave.
Solved = tuple[Composition, Solver, float]


def _solver_of(composition: Composition, delta: float, solved: list[Solved]) -> tuple[Solver, float]:
    """Return a solver of the composition and its upper bound on epsilon: from `solved` if a composition of
    the same pairs is there (its delta may differ in rounding), newly computed otherwise."""
    for other, solver, upper in solved:
        if other.parts == composition.parts:
            return solver, upper
    solver = Solver(composition, delta)
    return solver, solver.epsilon_above(delta)


def _delta_above(form: Normal, epsilon: float) -> float:
    """Return a certified upper bound on the delta of the parts."""
    bound = _over_directions(form, epsilon, lambda s: s.delta_above(epsilon), below=False)
    parts = rules.merged(form)
    if parts and rules.only_renyi(parts):
        bound = min(bound, rdp.delta(Normal(parts, 0.0, 0.0, form.neighbors).event, epsilon))
    # A delta of 0 claims pure DP: where that does not hold, a bound that underflowed is raised to the
    # smallest positive float.
    return max(bound, 5e-324) if parts and _pure_epsilon(form) > epsilon else bound


def _delta_below(form: Normal, epsilon: float) -> float:
    """Return a certified lower bound on the delta of the parts."""
    return (
        1.0
        if rules.without_noise(form)
        else _over_directions(form, epsilon, lambda s: s.delta_below(epsilon), below=True)
    )


def _over_directions(
    form: Normal, epsilon: float, bound_of: Callable[[Solver], float], *, below: bool
) -> float:
    """Return the largest delta over the directions, removing and adding a unit.

    `bound_of` returns the bound of one direction from its solver: a lower bound if `below`, an upper bound
    otherwise. Of the ways to price exponential mechanisms (`rules.ways`) the one with the least upper bound
    counts.
    """
    parts = rules.merged(form)
    if not parts:
        return 0.0
    shift = _shift(parts)
    if shift:
        side = 0 if below else 1
        return families.gaussian_delta(shift[side], epsilon)[side]
    bounds = []
    # pricing by the block, as in `_above`, gives upper bounds only
    for by_block in (False,) if below else rules.ways(parts):
        largest = 0.0
        for composition in rules.compositions(parts, _SMALLEST_TAIL, int(below), by_block):
            rough_delta = solve.guess_delta(composition.parts, epsilon)
            largest = max(largest, bound_of(Solver(composition, rough_delta)))
        bounds.append(largest)
    return min(bounds)
