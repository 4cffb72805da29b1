"""The accountant by privacy loss distributions (PLD), as other modules call it: epsilon and delta from above,
both from either side, and whether an event can be bounded at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ... import _require, _round
from ..._errors import DiscreetError
from .. import events as ev
from .. import pure, rdp
from ..events import Event
from ..normal import Normal, normal
from ..solve import least_epsilon
from . import rules, solve
from .pairs import closed_form
from .pairs.attained import attained
from .rules import RULES, Rule
from .solve import Composition, Solver

__all__ = ["RULES", "Rule", "bounds", "delta", "delta_bounds", "epsilon", "reason", "supports"]

# The share of delta that cut-off tails of single steps may cost: far below the width of the interval that is
# returned.
_TAIL = 1e-8


def epsilon(event: Event, delta: float) -> float:
    """Return the epsilon of an event at a delta, from above; within a relative 1e-4 of the least one that
    holds for its dominating pair.

    Guarantee: the event is (epsilon, delta)-DP under its neighbor relation.
    Proof:     docs/pld.md; each event's dominating pair has its theorem in RULES.

    >>> run = ev.Gaussian(noise_multiplier=1.1).sampled(rate=256 / 60_000).repeated(14_063)
    >>> 2.38168973 <= epsilon(run, 1e-5) <= 2.38168973 * 1.0001
    True
    """
    return _epsilon(event, delta, None)


def _epsilon(event: Event, delta: float, solved: list[Solved] | None) -> float:
    """Return a certified upper bound on epsilon, with the delta that events have of their own taken off
    first."""
    _require.probability(delta=delta)
    form = normal(event)
    exact = _pure(form)
    if delta >= 1:
        return 0.0
    if delta == 0 or rules.without_noise(form):
        return exact if delta == 0 and form.delta == 0 == form.distance else math.inf

    def price(remaining_delta: float) -> float:
        return _within_floats(lambda: _above(form, remaining_delta, solved), exact)

    return least_epsilon(form, float(delta), price, exact)


def _within_floats(price: Callable[[], float], otherwise: float) -> float:
    """Return a price, or another that always holds where numbers on the way left the range of floats: a grid
    that holds infinities or NaN would give a price that is too low. Nor is anything claimed where no memory
    holds the grid."""
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            return price()
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
    if delta in (0, 1) or rules.without_noise(normal(event)):
        return upper, upper
    failure = _failure_probability(event)
    left = (float(delta) - failure) / (1 - failure) * (1 + 1e-12)
    if left <= 0:
        return upper, upper
    lower = _within_floats(lambda: _below(normal(attained(event, upper)), left, solved), 0.0)
    return min(lower, upper), upper


def delta(event: Event, epsilon: float) -> float:
    """Return the delta of an event at an epsilon, from above.

    >>> run = ev.Gaussian(noise_multiplier=50.0).repeated(1000)
    >>> 1e-5 * 0.9999 < delta(run, 2.59438338) < 1e-5 * 1.0001
    True
    """
    _require.non_negative(epsilon=epsilon)
    form = normal(event)
    if rules.without_noise(form):
        return 1.0
    if _pure(form) <= epsilon and form.delta == 0 == form.distance:
        return 0.0
    above = _within_floats(lambda: _delta_above(form, float(epsilon)), 1.0)
    return form.total_delta(above, float(epsilon))


def delta_bounds(event: Event, epsilon: float) -> tuple[float, float]:
    """Return a lower and an upper bound on the least delta, at epsilon, that holds for every mechanism with
    this event."""
    upper = delta(event, epsilon)
    form = normal(event)
    if upper == 0 or rules.without_noise(form):
        return upper, upper
    failure = _failure_probability(event)
    below = _within_floats(lambda: _delta_below(normal(attained(event, epsilon)), float(epsilon)), 0.0)
    return min(upper, failure + (1 - failure) * below * (1 - 1e-15)), upper


def supports(event: Event) -> bool:
    """Return whether this accountant can bound the event."""
    return reason(event) is None


def reason(event: Event) -> str | None:
    """Return why an event cannot be bounded here; None if it can."""
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            for part in rules.merged(normal(event)):
                rules.pairs_of(part, 1e-20)
    except DiscreetError as refused:
        return str(refused)
    except ArithmeticError:
        # there is a pair, but no float holds its numbers: `epsilon` falls back to pure DP, or is infinite
        return None
    return None


def _pure(form: Normal) -> float:
    exact = pure.epsilon_of(form.event)
    return math.inf if exact is None else exact


def _failure_probability(event: Event) -> float:
    """Return the failure probability that some mechanism with this event really has: that of approximate
    DP."""
    kept = 1.0
    for part, times in ev.leaves(event).items():
        if isinstance(part, ev.ApproximateDP):
            kept *= (1 - part.delta) ** times
    return max(0.0, (1 - kept) * (1 - 1e-12) - 1e-15) if kept < 1 else 0.0


def _shift(parts: dict[Event, int]) -> tuple[float, float] | None:
    """Return bounds on the shift m = 1 / noise multiplier, if there is one Gaussian alone (`rules.merged` has
    joined them, with count 1); None otherwise."""
    if not all(isinstance(part, ev.Gaussian) for part in parts):
        return None
    ((part, _),) = parts.items()
    assert isinstance(part, ev.Gaussian)
    exact = 1 / Fraction(part.noise_multiplier)
    return _round.down(exact) * (1 - 4e-15), _round.up(exact)


def _above(form: Normal, delta: float, solved: list[Solved] | None = None) -> float:
    """Return the least of the upper bounds on epsilon that the ways of pricing give."""
    parts = rules.merged(form)
    if not parts:
        return 0.0
    shift = _shift(parts)
    if shift:
        return closed_form.gaussian_epsilon(shift[1], delta)[1]
    best = min(
        _worst(rules.compositions(parts, delta * _TAIL, 0, by_block), delta, solved)
        for by_block in rules.ways(parts)
    )
    if rules.only_renyi(parts):
        best = min(best, rdp.of_form(Normal(parts, 0.0, 0.0, form.neighbors), delta).value)
    return min(best, _pure(form))


def _worst(compositions: list[Composition], delta: float, solved: list[Solved] | None) -> float:
    """Return the largest epsilon over the directions."""
    best = 0.0
    for composition in compositions:
        solver = Solver(composition, delta)
        bound = solver.epsilon_above(delta, best)
        if solved is not None:
            solved.append((composition, solver, bound))
        best = max(best, bound)
    return best


def _below(form: Normal, delta: float, solved: list[Solved]) -> float:
    """Return a lower bound over the directions, the more expensive one first; one whose upper bound is not
    above the best so far is skipped."""
    if rules.without_noise(form):
        return math.inf
    parts = rules.merged(form)
    if not parts:
        return 0.0
    shift = _shift(parts)
    if shift:
        return closed_form.gaussian_epsilon(shift[0], delta)[0]
    bounds = [_solved(c, delta, solved) for c in rules.compositions(parts, delta * _TAIL, 1)]
    best = 0.0
    for solver, above in sorted(bounds, key=lambda pair: -pair[1]):
        if above > best:
            best = max(best, solver.epsilon_below(delta, above))
    return best


Solved = tuple[Composition, Solver, float]


def _solved(composition: Composition, delta: float, solved: list[Solved]) -> tuple[Solver, float]:
    """Return the solver and upper bound of a composition: those already found, if it is the same one."""
    for other, solver, above in solved:
        if other.parts == composition.parts:
            return solver, above
    solver = Solver(composition, delta)
    return solver, solver.epsilon_above(delta)


def _delta_above(form: Normal, epsilon: float) -> float:
    """Return a certified upper bound on delta."""
    bound = _over_directions(form, epsilon, lambda s: s.delta_above(epsilon), below=False)
    parts = rules.merged(form)
    if parts and rules.only_renyi(parts):
        bound = min(bound, rdp.delta(Normal(parts, 0.0, 0.0, form.neighbors).event, epsilon))
    # what underflows is not 0, which would be a claim of pure DP
    return max(bound, 5e-324) if parts and _pure(form) > epsilon else bound


def _delta_below(form: Normal, epsilon: float) -> float:
    """Return a certified lower bound on delta."""
    return (
        1.0
        if rules.without_noise(form)
        else _over_directions(form, epsilon, lambda s: s.delta_below(epsilon), below=True)
    )


def _over_directions(
    form: Normal, epsilon: float, bound_of: Callable[[Solver], float], *, below: bool
) -> float:
    """Return the worst delta over removing and adding a unit, from above by the best way of pricing."""
    parts = rules.merged(form)
    if not parts:
        return 0.0
    shift = _shift(parts)
    if shift:
        side = 0 if below else 1
        return closed_form.gaussian_delta(shift[side], epsilon)[side]
    bounds = []
    # whether exponential mechanisms are priced by the block, which is an upper bound only
    for by_block in (False,) if below else rules.ways(parts):
        best = 0.0
        for composition in rules.compositions(parts, 1e-40, int(below), by_block):
            guess = solve.guess_delta(composition.parts, epsilon)
            best = max(best, bound_of(Solver(composition, guess)))
        bounds.append(best)
    return min(bounds)
