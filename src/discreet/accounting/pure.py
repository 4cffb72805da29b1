"""Computes the largest privacy loss that an event can have, where that is finite: pure differential
privacy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import _require, _round
from .._public import ADD_REMOVE, ZERO_OUT, require_relation
from . import events as ev
from .events import Event


def amplified(epsilon: float, rate: Any) -> float:
    """Return ln(1 + rate (e^epsilon - 1)), rounded up: amplification by sampling; exact at rate 0 and 1.

    Guarantee: the pure epsilon of an epsilon-DP mechanism on a sample that holds a given unit with
               probability `rate`.
    Proof:     Balle, Barthe & Gaboardi 2018, arXiv:1807.01647, Theorem 8 (Poisson, add/remove) and 9 (without
               replacement, replace).
    """
    q = float(rate)
    if q == 0 or epsilon == 0:
        return 0.0
    if q >= 1 or math.isinf(epsilon):
        return epsilon
    if epsilon <= 700:
        return min(epsilon, math.log1p(q * math.expm1(epsilon)) * (1 + 1e-14) + 1e-300)
    # e^epsilon overflows from 709 on. The result is ln(1 + e^x) with x = epsilon + ln(rate), rounded up. The
    # two summands cancel where the rate is tiny, so the margin for rounding is a multiple of the magnitude of
    # each and not of their sum.
    x = epsilon + math.log(q)
    x += 1e-15 * (epsilon - math.log(q))
    result = x + math.exp(-x) if x > 40 else math.log1p(math.exp(x))
    return min(epsilon, result * (1 + 1e-14) + 1e-300)


def _of_laplace(e: Any) -> float:
    """Return 1 / noise_multiplier, the sensitivity divided by the scale, rounded up."""
    return math.inf if e.noise_multiplier == 0 else _round.up(1 / _require.exact(e.noise_multiplier, "noise"))


def _of_sampled(e: Any) -> float:
    """Return the amplified epsilon of the event on the sample."""
    inner_epsilon = epsilon_of(e.event)
    return amplified(inner_epsilon, _round.up(e.rate)) if inner_epsilon is not None else math.inf


def _of_poisson(e: ev.PoissonSampled) -> float:
    """Return the amplified epsilon. Raises WrongRelation where amplification is not proved for the relation;
    `normal` checks that too, but not inside every event."""
    if e.rate not in (0, 1):
        require_relation(e.neighbors, ADD_REMOVE, ZERO_OUT, what="amplification by Poisson sampling")
    return _of_sampled(e)


def _of_group(e: ev.Group) -> float:
    """Return size times epsilon: group privacy."""
    inner_epsilon = epsilon_of(e.event)
    return (
        math.inf
        if inner_epsilon is None or math.isinf(inner_epsilon)
        else _round.up(_require.exact(inner_epsilon, "epsilon") * e.size)
    )


def _of_selected(e: ev.RepeatAndSelect) -> float:
    """Return (2 + shape) epsilon, Papernot & Steinke 2022, arXiv:2110.03620, Theorem 2 with both of its
    orders infinite; with Poisson trials there is no pure epsilon."""
    inner_epsilon = epsilon_of(e.event)
    if (
        inner_epsilon is None
        or not isinstance(e.trials, ev.NegativeBinomialTrials)
        or math.isinf(inner_epsilon)
    ):
        return math.inf
    return _round.up(_require.exact(inner_epsilon, "epsilon") * (2 + _require.exact(e.trials.shape, "shape")))


# The pure epsilon of each kind of event, rounded up; kinds without an entry have none.
_RULES: dict[type[Event], Callable[[Any], float]] = {
    ev.NoOp: lambda e: 0.0,
    # Dwork, McSherry, Nissim & Smith 2006, Prop. 1
    ev.Laplace: _of_laplace,
    # Ghosh et al. 2009
    ev.DiscreteLaplace: lambda e: _round.up(e.sensitivity / _require.exact(e.scale, "scale")),
    # Warner 1965; by the definition
    ev.RandomizedResponse: lambda e: _round.up(e.epsilon),
    # McSherry & Talwar 2007, Theorem 6
    ev.ExponentialMechanism: lambda e: _round.up(e.epsilon),
    ev.PureDP: lambda e: _round.up(e.epsilon),
    # Dwork & Roth 2014, Claim 3.9
    ev.NoisyMax: lambda e: _round.up(e.epsilon),
    # Lyu, Su & Li 2017, their Algorithm 7
    ev.SparseVector: lambda e: _round.up(
        _require.exact(e.threshold_epsilon, "epsilon") + _require.exact(e.query_epsilon, "epsilon")
    ),
    # post-processing of the sender's own report
    ev.Shuffled: lambda e: _round.up(e.epsilon),
    ev.PoissonSampled: _of_poisson,
    ev.SampledWithoutReplacement: _of_sampled,
    ev.Group: _of_group,
    ev.RepeatAndSelect: _of_selected,
}


def epsilon_of(event: Event) -> float | None:
    """Return the pure epsilon of a whole event, rounded up, or None if it has none.

    >>> epsilon_of(ev.PureDP(epsilon=1).repeated(3))
    3.0
    """
    total = 0.0
    for part, times in ev.leaves(event).items():
        rule = _RULES.get(type(part))
        part_epsilon = math.inf if rule is None else rule(part)
        if math.isinf(part_epsilon):
            return None
        total = _round.up(_require.exact(total, "epsilon") + times * _require.exact(part_epsilon, "epsilon"))
        # The sum is beyond the range of floats.
        if math.isinf(total):
            return None
    return total
