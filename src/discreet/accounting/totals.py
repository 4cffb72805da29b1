"""Defines the two oldest accountants, in closed form: basic composition of (epsilon, delta), and
zero-concentrated DP.

Basic composition uses the pure epsilons of `pure`; zCDP has a table from the class of an event to its rule,
one theorem per entry. An event without a rule is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from .. import _require, _round
from . import events as ev
from . import pure
from .conversion import zcdp_to_delta, zcdp_to_epsilon
from .events import Event
from .normal import Normal, normal
from .refusal import refuse


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
    if form.distance > 0:
        raise refuse(
            event, "basic", "its delta depends on epsilon; use composition.basic with the delta you want"
        )
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
    if form.distance > 0:
        raise refuse(event, "zcdp", "a truncated sample has no concentrated bound")
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
