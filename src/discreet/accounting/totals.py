"""The two oldest totals, in closed form: basic composition of (epsilon, delta), and zero-concentrated privacy.

Each accountant is a table from event type to rule, one theorem a row. What has no row is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from .. import _require, _round
from .._errors import Unsupported
from . import events as ev
from .events import Event


class Cost(NamedTuple):
    """A price with its failure probability: (epsilon, delta), or (rho, delta) of approximate zCDP. Rounded up."""

    value: float
    delta: float


def _exact(value: Any) -> Fraction:
    return _require.exact(value, "parameter")


def _pure_laplace(e: Any) -> Cost:
    return Cost(math.inf if e.noise_multiplier == 0 else _round.up(1 / _exact(e.noise_multiplier)), 0.0)


_BASIC: dict[type[Event], Callable[[Any], Cost]] = {
    ev.NoOp: lambda e: Cost(0.0, 0.0),
    ev.NonPrivate: lambda e: Cost(math.inf, 1.0),
    ev.Laplace: _pure_laplace,  # Dwork, McSherry, Nissim & Smith 2006, Prop. 1
    ev.DiscreteLaplace: lambda e: Cost(
        _round.up(e.sensitivity / _exact(e.scale)), 0.0
    ),  # Ghosh, Roughgarden & Sundararajan 2009
    ev.RandomizedResponse: lambda e: Cost(_round.up(e.epsilon), 0.0),  # Warner 1965; by the definition
    ev.ExponentialMechanism: lambda e: Cost(_round.up(e.epsilon), 0.0),  # McSherry & Talwar 2007, Theorem 6
    ev.PureDP: lambda e: Cost(_round.up(e.epsilon), 0.0),
    ev.ApproximateDP: lambda e: Cost(_round.up(e.epsilon), e.delta),
}

_ZCDP: dict[type[Event], Callable[[Any], Cost]] = {
    ev.NoOp: lambda e: Cost(0.0, 0.0),
    ev.NonPrivate: lambda e: Cost(math.inf, 1.0),
    ev.Gaussian: lambda e: Cost(
        math.inf if e.noise_multiplier == 0 else _round.up(1 / (2 * _exact(e.noise_multiplier) ** 2)), 0.0
    ),  # Bun & Steinke 2016, arXiv:1605.02065, Prop. 1.6
    ev.DiscreteGaussian: lambda e: Cost(
        _round.up(e.sensitivity**2 / (2 * _exact(e.variance))), 0.0
    ),  # CKS 2020, Prop. 5
    ev.VectorDiscreteGaussian: lambda e: Cost(
        _round.up(e.l2_squared / (2 * _exact(e.variance))), 0.0
    ),  # CKS 2020, Theorem 14
    ev.ExponentialMechanism: lambda e: Cost(
        _round.up(_exact(e.epsilon) ** 2 / 8), 0.0
    ),  # Cesar & Rogers 2021, Lemma 3.4
    ev.ZCDP: lambda e: Cost(_round.up(e.rho), e.delta),
}


def basic(event: Event) -> Cost:
    """Epsilons and deltas added up (Dwork et al. 2006; Dwork & Roth 2014, Theorem 3.16).

    >>> basic(ev.PureDP(epsilon=1).repeated(3))
    Cost(value=3.0, delta=0.0)
    """
    return _total(event, _basic_of)


def zcdp(event: Event) -> Cost:
    """The zCDP parameter rho, added up (Bun & Steinke 2016, Lemma 2.3), with the delta of what is only approximately so.

    >>> zcdp(ev.Gaussian(noise_multiplier=1.0).repeated(4)).value
    2.0
    """
    return _total(event, _zcdp_of)


def _basic_of(event: Event) -> Cost:
    if isinstance(event, ev.Group):
        return _group(basic(event.event), event.size)
    rule = _BASIC.get(type(event))
    if rule is None:
        raise Unsupported(
            f"{type(event).__name__} is not (epsilon, delta)-DP for a fixed pair, so basic composition has no price for it. "
            f"Use its zCDP, or an accountant that keeps the whole curve."
        )
    return rule(event)


def _zcdp_of(event: Event) -> Cost:
    if isinstance(event, ev.Group):
        inner = zcdp(event.event)
        if inner.delta > 0:
            raise Unsupported(
                "group privacy of approximate zCDP has no theorem here; use group privacy of (epsilon, delta)."
            )
        return Cost(
            _round.up(_exact(inner.value) * event.size**2) if math.isfinite(inner.value) else math.inf, 0.0
        )  # Prop. 1.9
    rule = _ZCDP.get(type(event))
    if rule is not None:
        return rule(event)
    price = _basic_of(event)
    if price.delta == 0:
        return Cost(_round.up(_exact(price.value) ** 2 / 2), 0.0)  # Bun & Steinke 2016, Prop. 1.4
    raise Unsupported(f"{type(event).__name__} has no zCDP bound here.")


def _group(price: Cost, size: int) -> Cost:
    """(k eps, k e^{(k-1) eps} delta): Dwork & Roth 2014, Theorem 2.2, in the form of Vadhan 2017, Lemma 2.2."""
    epsilon, delta = price
    if not math.isfinite(epsilon):
        return Cost(math.inf, 1.0)
    grown = (
        0.0
        if delta == 0
        else min(1.0, _round.up(size * math.exp(min((size - 1) * epsilon, 700.0)) * delta * (1 + 1e-12)))
    )
    return Cost(_round.up(_exact(epsilon) * size), grown)


def _total(event: Event, price: Callable[[Event], Cost]) -> Cost:
    values, deltas = Fraction(0), Fraction(0)
    for part, times in ev.leaves(event).items():
        value, delta = price(part)
        if math.isinf(value):
            return Cost(math.inf, 1.0)
        values += times * Fraction(value)
        deltas += times * Fraction(delta)
    return Cost(_round.up(values), min(1.0, _round.up(deltas)))
