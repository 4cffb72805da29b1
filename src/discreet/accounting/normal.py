"""Computes the normal form of an event: the parts that it is composed of, in the few kinds of events that
accountants have rules for.

An event with the same price as another is rewritten to that one (a matrix mechanism is one Gaussian, sparse
vector is pure DP). An event that can fail with some probability is split in two: the event that holds if it
does not fail, and its *own delta*, the failure probability, which every accountant adds as it is. A truncated
Poisson sample becomes an untruncated one, together with their *distance* in total variation. Replacing a
mechanism by one at distance d costs (1 + e^epsilon) d in delta, which is added at the end.

Every rewriting in this module is part of the privacy proof of every accountant; only the cache is there for
speed.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .. import _require, _round
from .._public import ADD_REMOVE, ZERO_OUT, Neighbors, require_relation
from . import events as ev
from . import pure
from .events import Event


@dataclass(frozen=True, slots=True)
class Normal:
    """Holds the normal form of an event: its parts with their counts, its own delta `delta`, and the
    `distance` in total variation between the mechanism that was run and its parts (both rounded up)."""

    parts: dict[Event, int]
    delta: float
    distance: float
    neighbors: Neighbors

    @property
    def event(self) -> Event:
        """The parts as one event."""
        repeated_parts = [part.repeated(times) for part, times in self.parts.items()]
        return ev.compose(repeated_parts) if repeated_parts else ev.NoOp(neighbors=self.neighbors)

    def remaining_delta(self, delta: float, epsilon: float) -> float:
        """Return the delta that the parts may have at this epsilon, if the whole event is to have `delta`; it
        is negative if there is none.

        At every epsilon x: delta_total(x) <= own_delta + (1 - own_delta) delta_parts(x) + (1 + e^x) distance.
        """
        remaining = delta - self.delta - self._distance_delta(epsilon)
        remaining = remaining / (1 - self.delta) if self.delta < 1 else -1.0
        return remaining * (1 - 1e-14) if remaining > 0 else remaining

    def total_delta(self, delta: float, epsilon: float) -> float:
        """Return the delta of the whole event, rounded up, if the parts have `delta` at this epsilon. The
        factor (1 - own_delta) of `remaining_delta` is left out, which can only raise the result."""
        total = self.delta + delta + self._distance_delta(epsilon)
        return min(1.0, total * (1 + 1e-14))

    def _distance_delta(self, epsilon: float) -> float:
        """Return (1 + e^epsilon) distance, rounded up: the delta that the distance costs."""
        if self.distance == 0:
            return 0.0
        # Above 700, e^epsilon is near the largest float or above it, and nothing is claimed.
        if epsilon > 700:
            return math.inf
        return (1 + math.exp(epsilon)) * self.distance * (1 + 1e-12)


@functools.lru_cache(maxsize=64)
def normal(event: Event) -> Normal:
    """Return the normal form of an event. Raises WrongRelation for amplification that is not proved for the
    event's neighbor relation.

    The last results are cached, because several accountants often ask for the same event. So callers must not
    change `parts` of the result.

    >>> normal(ev.Thresholded(event=ev.PureDP(epsilon=1), delta=1e-9).repeated(2)).delta
    2e-09
    """
    parts: dict[Event, int] = {}
    own_delta, distance = Fraction(0), Fraction(0)
    for part, times, part_delta, part_distance in _reduce(event, 1):
        own_delta += times * part_delta
        distance += times * part_distance
        if not isinstance(part, ev.NoOp):
            parts[part] = parts.get(part, 0) + times
    return Normal(parts, min(1.0, _round.up(own_delta)), min(1.0, _round.up(distance)), event.neighbors)


# (part, its count, own delta per copy, distance per copy)
_Piece = tuple[Event, int, Fraction, Fraction]
# The own delta or the distance of a rewriting that has none.
_ZERO = Fraction(0)


def _reduce(event: Event, times: int) -> list[_Piece]:
    """Return the pieces of `times` copies of an event in normal form.

    Every leaf is rewritten by its rule in `_REWRITINGS` until no rule changes it. The own delta and the
    distance of a rewriting are put on a `NoOp` of their own, since the new event may have several pieces.
    """
    pieces: list[_Piece] = []
    for part, count in ev.leaves(event).items():
        rewrite = _REWRITINGS.get(type(part))
        if rewrite is None:
            pieces.append((part, times * count, _ZERO, _ZERO))
            continue
        inner, part_delta, part_distance = rewrite(part)
        if inner == part:
            pieces.append((part, times * count, _ZERO, _ZERO))
            continue
        pieces.extend(_reduce(inner, times * count))
        if part_delta or part_distance:
            pieces.append((ev.NoOp(neighbors=event.neighbors), times * count, part_delta, part_distance))
    return pieces


# The result of one rewriting: (new event, own delta, distance).
_Rewriting = tuple[Event, Fraction, Fraction]


def _equal_price(event: Event) -> _Rewriting:
    """Return the rewriting to an event of the same price, without own delta or distance."""
    return event, _ZERO, _ZERO


def _own_delta(bare: Callable[[Any], Event]) -> Callable[[Any], _Rewriting]:
    """Return the rewriting of an event with a field `delta` to bare(event), with that delta as its own
    delta."""

    def rewrite(event: Any) -> _Rewriting:
        # The same object and not an equal one: `_group` would rewrite an equal one again and again.
        if event.delta == 0 and isinstance(event, ev.ZCDP):
            return _equal_price(event)
        return bare(event), Fraction(event.delta), _ZERO

    return rewrite


def _noisy_max(e: ev.NoisyMax) -> _Rewriting:
    """Reduce report noisy max: with Gumbel noise it is the exponential mechanism."""
    if e.noise == "gumbel":
        return _equal_price(ev.ExponentialMechanism(epsilon=e.epsilon, neighbors=e.neighbors))
    return _equal_price(ev.PureDP(epsilon=e.epsilon, neighbors=e.neighbors))


def _sparse_vector(e: ev.SparseVector) -> _Rewriting:
    """Reduce sparse vector to pure DP with the epsilons of threshold and queries together."""
    total = _require.exact(e.threshold_epsilon, "epsilon") + _require.exact(e.query_epsilon, "epsilon")
    return _equal_price(ev.PureDP(epsilon=total, neighbors=e.neighbors))


def _poisson(e: ev.PoissonSampled) -> _Rewriting:
    """Reduce an event on a Poisson sample."""
    # A rate that rounds up to the float 1 is not amplified.
    if _round.up(e.rate) == 1:
        return _equal_price(e.event)
    if e.rate == 0:
        return _equal_price(ev.NoOp(neighbors=e.neighbors))
    require_relation(e.neighbors, ADD_REMOVE, ZERO_OUT, what="amplification by Poisson sampling")
    # An event with own delta d has own delta rate * d on a sample: with P the output if the unit is in the
    # sample, Q if it is not, and q the rate, the hockey-stick divergences between Q and (1-q) Q + q P, in
    # both directions, are at most q times one between P and Q (Balle, Barthe & Gaboardi 2018,
    # arXiv:1807.01647, Theorem 8).
    inner = normal(e.event)
    part_delta = _require.exact(e.rate, "rate") * Fraction(inner.delta)
    extreme = _extreme(inner)
    if extreme is not None and inner.distance == 0:
        return extreme, part_delta, _ZERO
    bare = _one_gaussian(inner) or inner.event
    # A distance inside a sample is not taken out of it: accountants without a rule for it refuse the event.
    if inner.distance > 0 or bare == e.event:
        return _equal_price(e)
    return ev.PoissonSampled(event=bare, rate=e.rate), part_delta, _ZERO


def _extreme(form: Normal) -> Event | None:
    """Return the price on a sample of the two extremes: an event that does not depend on the data costs
    nothing, and one without noise is not amplified. None for other events."""
    if not form.parts:
        return ev.NoOp(neighbors=form.neighbors)
    return ev.NonPrivate(neighbors=form.neighbors) if any(map(is_noiseless, form.parts)) else None


def is_noiseless(part: Event) -> bool:
    """Return whether an event releases something without any noise."""
    return isinstance(part, ev.NonPrivate) or getattr(part, "noise_multiplier", 1) == 0


def _one_gaussian(form: Normal) -> Event | None:
    """Return one Gaussian with the price of several Gaussians on one sample; None if there is at most one
    part, or a part that is not a Gaussian with noise.

    The squares of the inverse noise multipliers add up; the multiplier returned is rounded down.
    """
    # There is no part, or one part with count one.
    if len(form.parts) + max(form.parts.values(), default=0) <= 2:
        return None
    total = Fraction(0)
    for part, times in form.parts.items():
        if not isinstance(part, ev.Gaussian) or part.noise_multiplier == 0:
            return None
        total += times / _require.exact(part.noise_multiplier, "noise") ** 2
    variance = min(_require.float_or_inf(1 / total), sys.float_info.max)
    return ev.Gaussian(noise_multiplier=variance**0.5 * (1 - 4e-16), neighbors=form.neighbors)


def _without_replacement(e: ev.SampledWithoutReplacement) -> _Rewriting:
    """Reduce an event on a sample of fixed size without replacement."""
    if e.sample == e.size:
        return _equal_price(e.event)
    if e.sample == 0:
        return _equal_price(ev.NoOp(neighbors=e.neighbors))
    inner = normal(e.event)
    extreme = _extreme(inner)
    if extreme is not None and inner.distance == 0:
        return extreme, e.rate * Fraction(inner.delta), _ZERO
    total = pure.epsilon_of(inner.event)
    # Without an own delta there is nothing to take out; with a distance, or without a pure epsilon, no
    # theorem here takes it out.
    if inner.delta == 0 or inner.distance > 0 or total is None:
        return _equal_price(e)
    # (eps, delta) becomes (ln(1 + q (exp(eps) - 1)), q delta), q being e.rate: Balle, Barthe & Gaboardi 2018,
    # Theorem 9.
    bare = ev.PureDP(epsilon=pure.amplified(total, _round.up(e.rate)), neighbors=e.neighbors)
    return bare, e.rate * Fraction(inner.delta), _ZERO


def _split_truncated(e: ev.TruncatedPoisson) -> _Rewriting:
    """Reduce a truncated Poisson sample to a Poisson sample; their distance is at most the probability that
    the sample is larger than the limit."""
    return ev.PoissonSampled(event=e.event, rate=e.rate), _ZERO, Fraction(overflow(e.size, e.rate, e.limit))


def overflow(size: int, rate: Any, limit: int) -> float:
    """Return P[Binomial(size, rate) > limit], rounded up."""
    if limit >= size or rate == 0:
        return 0.0
    # imported here: slow to load, and most processes never need it
    from scipy.special import betainc

    # For B ~ Binomial(n, rate), P[B > k] is the regularized incomplete beta function I_rate(k + 1, n - k). It
    # falls with its first argument and grows with the second and with the rate: hence the rounding
    # directions.
    tail = float(betainc(_round.down(limit + 1), _round.up(size - limit), min(1.0, _round.up(rate))))
    # An error of one unit in the last place of the rate is a relative one of up to `size` units in the tail.
    return min(1.0, tail * (1 + 1e-9 + size * 2.0**-50) + 5e-324)


def _allocation(e: ev.RandomAllocation) -> _Rewriting:
    """Reduce random allocation: to several passes where a unit takes part in several steps, and to the event
    itself where there is only one step."""
    if is_noiseless(e.event):
        return _equal_price(ev.NonPrivate(neighbors=e.neighbors))
    if e.selected > 1:
        return _equal_price(ev.one_block(e).repeated(e.selected))
    return _equal_price(e.event) if e.steps == 1 else _equal_price(e)


def _group(e: ev.Group) -> _Rewriting:
    """Reduce an event for a group of units to the event for one unit with the same price (`_GROUPED`). Where
    no rule gives one, the group is kept as it is."""
    if e.size == 1:
        return _equal_price(e.event)
    inner = ev.leaves(e.event)
    if len(inner) > 1 or next(iter(inner)) != e.event:
        grouped = [ev.Group(event=part, size=e.size).repeated(n) for part, n in inner.items()]
        return _equal_price(ev.compose(grouped))
    if isinstance(e.event, ev.RandomAllocation) and 1 < e.event.selected < e.event.steps:
        # `_allocation` rewrites it to a composition, one pass per block of steps, for given blocks of one
        # unit (`events.one_block`). The units of a group have different blocks, so a group is not
        # rewritten, and only bounds for the whole event hold. With selected = steps nothing is drawn.
        return _equal_price(e)
    reduced, part_delta, part_distance = _REWRITINGS.get(type(e.event), _equal_price)(e.event)
    if reduced is not e.event and not part_delta and not part_distance:
        return _equal_price(ev.Group(event=reduced, size=e.size))
    rule = _GROUPED.get(type(e.event))
    return _equal_price(rule(e.event, e.size)) if rule else _equal_price(e)


def _divided_down(value: Any, size: int) -> float:
    """Return value / size, rounded down."""
    return _round.down(_require.exact(value, "noise") / size)


# The price for a group of k units, as an event. A group changes an answer by at most k times the sensitivity
# of one unit (triangle inequality); for events that are guarantees: Dwork & Roth 2014, Theorem 2.2; Bun &
# Steinke 2016, Prop. 5.3; Dong, Roth & Su 2022, on group privacy.
_GROUPED: dict[type[Event], Callable[[Any, int], Event]] = {
    ev.NoOp: lambda e, k: e,
    ev.NonPrivate: lambda e, k: e,
    ev.Gaussian: lambda e, k: ev.Gaussian(
        noise_multiplier=_divided_down(e.noise_multiplier, k), neighbors=e.neighbors
    ),
    ev.Laplace: lambda e, k: ev.Laplace(
        noise_multiplier=_divided_down(e.noise_multiplier, k), neighbors=e.neighbors
    ),
    ev.DiscreteLaplace: lambda e, k: ev.DiscreteLaplace(
        scale=e.scale, sensitivity=e.sensitivity * k, neighbors=e.neighbors
    ),
    ev.DiscreteGaussian: lambda e, k: ev.DiscreteGaussian(
        variance=e.variance, sensitivity=e.sensitivity * k, neighbors=e.neighbors
    ),
    ev.VectorDiscreteGaussian: lambda e, k: ev.VectorDiscreteGaussian(
        variance=e.variance, l2_squared=e.l2_squared * k * k, neighbors=e.neighbors
    ),
    ev.ExponentialMechanism: lambda e, k: ev.ExponentialMechanism(
        epsilon=_require.exact(e.epsilon, "epsilon") * k, neighbors=e.neighbors
    ),
    ev.PureDP: lambda e, k: _pure_group(e, k),
    ev.RandomizedResponse: lambda e, k: _pure_group(e, k),
    # There is no theorem here for a group under approximate zCDP, so that event stays as it is.
    ev.ZCDP: lambda e, k: (
        ev.Group(event=e, size=k)
        if e.delta
        else ev.ZCDP(rho=_require.exact(e.rho, "rho") * k * k, neighbors=e.neighbors)
    ),
    ev.ApproximateDP: lambda e, k: _approximate_group(e, k),
    ev.Group: lambda e, k: ev.Group(event=e.event, size=e.size * k),
}


# The sum of `group_delta` is computed term by term for groups up to this size; for larger ones by a closed
# form, in constant time. Both are upper bounds. The number is a convention.
_LONG_SUM = 10**5


def group_delta(epsilon: float, delta: float, size: int) -> float:
    """Return the delta of a group of k = `size` units, at epsilon k eps, of an (eps, delta)-DP event: delta
    times the sum of e^{i eps} over i = 0 .. k - 1 (Vadhan 2017, on group privacy); rounded up."""
    if delta == 0:
        return 0.0
    k = _require.float_or_inf(size)
    # the logarithm of the last and largest term of the sum
    log_largest = (k - 1) * epsilon + math.log(_round.up(delta))
    if log_largest >= 0:
        return 1.0
    if (k - 1) * epsilon <= 700 and size <= _LONG_SUM:
        return min(1.0, math.fsum(math.exp(i * epsilon) for i in range(size)) * delta * (1 + 1e-12))
    # e^{(k - 1) eps} may overflow: the sum divided by its last term is (1 - e^{-k eps}) / (1 - e^{-eps})
    relative_sum = math.expm1(-k * epsilon) / math.expm1(-epsilon) if epsilon else k
    return min(1.0, math.exp(log_largest) * relative_sum * (1 + 1e-12) + 5e-324)


def _pure_group(e: Any, size: int) -> Event:
    """Return the price of any epsilon-DP mechanism for a group of k = `size` units: that of discrete Laplace
    noise of scale 1/epsilon with sensitivity k.

    Proof: the trade-off function of a group is the k-fold 1 - (1 - f) o ... o (1 - f) (Dong, Roth & Su 2022,
    arXiv:1905.02383, on group privacy). The f of epsilon-DP is that of discrete Laplace noise shifted by 1,
    and then the k-fold one is that of the noise shifted by k (see `DiscreteLaplace`). So the price is
    attained. Its largest privacy loss is k epsilon, but most outputs have a smaller one.
    """
    epsilon = _require.exact(e.epsilon, "epsilon")
    if epsilon == 0:
        return ev.NoOp(neighbors=e.neighbors)
    return ev.DiscreteLaplace(scale=1 / epsilon, sensitivity=size, neighbors=e.neighbors)


def _approximate_group(e: ev.ApproximateDP, size: int) -> Event:
    """Return the price of an (epsilon, delta)-DP mechanism for a group: epsilon times its size, and
    `group_delta`."""
    delta = group_delta(_round.up(e.epsilon), e.delta, size)
    epsilon = _require.exact(_round.up(e.epsilon), "epsilon") * size
    return ev.ApproximateDP(epsilon=epsilon, delta=delta, neighbors=e.neighbors)


# The rewriting of each kind of event; kinds without an entry are parts of a normal form as they are.
_REWRITINGS: dict[type[Event], Callable[[Any], _Rewriting]] = {
    ev.ApproximateDP: _own_delta(lambda e: ev.PureDP(epsilon=e.epsilon, neighbors=e.neighbors)),
    ev.ZCDP: _own_delta(lambda e: ev.ZCDP(rho=e.rho, neighbors=e.neighbors)),
    ev.Thresholded: _own_delta(lambda e: e.event),
    ev.NoisyMax: _noisy_max,
    ev.SparseVector: _sparse_vector,
    ev.GNMax: lambda e: _equal_price(e.equivalent),
    ev.CorrelatedGaussian: lambda e: _equal_price(e.equivalent),
    ev.RandomAllocation: _allocation,
    ev.TruncatedPoisson: _split_truncated,
    ev.SampledWithoutReplacement: _without_replacement,
    ev.PoissonSampled: _poisson,
    ev.Group: _group,
}
