"""Defines pairs that some mechanism described by an event attains, for lower bounds.

An upper bound may use any pair that dominates. A lower bound needs a mechanism that the event describes, two
neighboring tables, and the two distributions of its output, or of anything computed from its output. Each
function here names such a mechanism; an event for which none is known, or only much cheaper ones, is replaced
by `NoOp`, which costs nothing. Parameters are rounded so that the pairs cost less. U is the unit roundoff
2^-53.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from .... import _require, _round
from ...._public import ADD_REMOVE, Neighbors
from ... import events as ev
from ...events import Event
from ...normal import normal, overflow
from ..lattice.convolution import LatticeMasses, compose
from .basic_pairs import Array, Atoms, DominatingPair, U, between


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen(Event):
    """Is an event that holds its pairs of output distributions itself: even positions for removing the unit,
    odd ones for adding it; each position may be a different mechanism.

    It never leaves this package.
    """

    pairs: tuple[DominatingPair, ...]
    neighbors: Neighbors = ADD_REMOVE


def attained(event: Event) -> Event:
    """Return an event whose pairs are attained by some mechanism that `event` describes.

    Guarantee: the delta of the result, at every epsilon and composed with anything, is at most the least
               delta that holds for every mechanism with this event.
    Proof:     by the mechanisms named in each function below; in a composition they run independently, and
               the same unit is removed or added for all of them.
    """
    return ev.compose([_one(part).repeated(times) for part, times in ev.leaves(event).items()])


def _one(event: Event) -> Event:
    """Return the attained event of a part; the part itself if its own pair is attained."""
    rule = _RULES.get(type(event))
    return event if rule is None else rule(event)


def _sampled(e: ev.PoissonSampled) -> Event:
    return ev.PoissonSampled(event=attained(e.event), rate=e.rate)


def _fixed(e: ev.SampledWithoutReplacement) -> Event:
    """Return a sample of the same size, of a mechanism that never fails where the event allows a failure.

    `..normal` would rewrite a sample of an event that may fail to `PureDP` with the epsilon of the sample,
    whose pair no mechanism on a sample need attain: at rate 1/2 half of all samples show nothing of the unit,
    whatever the epsilon.
    """
    inner = attained(e.event)
    form = normal(inner)
    return ev.SampledWithoutReplacement(
        event=form.event if form.delta > 0 else inner, size=e.size, sample=e.sample
    )


def _truncated(e: ev.TruncatedPoisson) -> Event:
    """Return the mechanism for which all other units are zero: a Poisson sample at the probability that the
    unit is drawn and not dropped, which is at least rate * P(no overflow)."""
    kept = _require.exact(e.rate, "rate") * (1 - Fraction(overflow(e.size - 1, e.rate, e.limit - 1)))
    return ev.PoissonSampled(event=attained(e.event), rate=max(0.0, _round.down(kept)))


def _group(e: ev.Group) -> Event:
    """Return the event of a group whose members all move the sum to which noise is added, or the scores of a
    choice, in one direction (noise on a sum is one mechanism that `ZCDP` and `PureDP` describe). For events
    that are not in `scaling`, return that of a group of which one member alone changes the output."""
    scaling = (
        ev.Gaussian,
        ev.Laplace,
        ev.DiscreteLaplace,
        ev.DiscreteGaussian,
        ev.VectorDiscreteGaussian,
        ev.ZCDP,
        ev.PureDP,
        ev.ExponentialMechanism,
    )
    parts = []
    for part, times in ev.leaves(e.event).items():
        if isinstance(part, ev.Group):
            parts.append(attained(ev.Group(event=part.event, size=part.size * e.size)).repeated(times))
            continue
        attained_part = attained(part)
        scales = isinstance(part, scaling) and not _explicit(attained_part)
        parts.append(
            (ev.Group(event=attained_part, size=e.size) if scales else attained_part).repeated(times)
        )
    return ev.compose(parts)


def _explicit(event: Event) -> bool:
    """Return whether an event holds its own pairs, so that no rule for groups applies to it."""
    return any(isinstance(part, Seen) for part in ev.leaves(event))


def _vector(e: ev.VectorDiscreteGaussian) -> Event:
    """Return the mechanism in which one entry of the vector moves by floor(sqrt(l2_squared)), and as many
    others as the remaining squared norm allows by one each."""
    first = math.isqrt(e.l2_squared)
    rest = e.l2_squared - first * first

    def entry(by: int) -> Event:
        return ev.DiscreteGaussian(variance=e.variance, sensitivity=by, neighbors=e.neighbors)

    return ev.compose([entry(first), entry(1).repeated(rest)])


def two_candidates(epsilon: float, share: float) -> Atoms:
    """Return the pair of the exponential mechanism between two candidates whose odds change by e^epsilon: its
    losses are t - epsilon and t, for t = share * epsilon."""
    t = share * epsilon
    high = math.expm1(t - epsilon) / math.expm1(-epsilon)
    mass = np.array([math.expm1(t) / math.expm1(epsilon), high])
    return Atoms(
        np.array([t - epsilon, t]), mass, (epsilon, t - epsilon), 32 * U * (1 + epsilon), 8 * U * epsilon
    )


def _noisy_max(e: ev.NoisyMax) -> Event:
    """Return the exponential mechanism, which noisy max with Gumbel noise is; of other noise nothing."""
    return (
        ev.ExponentialMechanism(epsilon=e.epsilon, neighbors=e.neighbors)
        if e.noise == "gumbel"
        else _nothing(e)
    )


# The largest length of a transform, and the largest number of steps of an allocation, for which an attained
# pair is computed; lower bounds are looser without it. Bounds time and memory.
_LARGEST = 2**18


def both_ways(p: Array, q: Array, error: float | Array, relative: float = 0.0) -> tuple[Atoms, Atoms]:
    """Return the pairs for removing and for adding, for outcomes with probabilities p and q, each known up to
    the absolute `error` and the relative error `relative`.

    Of each pair the first distribution is lowered by the error, the second one raised, and outcomes whose
    probability is below 100 times the error are left out: all of it lowers delta.
    """

    def direction(first: Array, second: Array) -> Atoms:
        low, high = first - error, second + error
        usable = (low > 100 * error) & (high > 0)
        if not usable.any():
            # the pair of two equal distributions
            return Atoms(np.zeros(1), np.ones(1))
        low, high = low[usable], high[usable]
        loss = np.log(low / high)
        order = np.argsort(loss, kind="stable")
        return Atoms(loss[order], low[order], None, 8 * U + relative, 16 * U + 2 * relative)

    return direction(p, q), direction(q, p)


def _allocation(e: ev.RandomAllocation) -> Event:
    """Return the pairs of two statistics of the noisy steps when all other units are zero: the sum of their
    rounded likelihood ratios, and the largest step."""
    assert isinstance(e.event, ev.Gaussian)
    noise = float(e.event.noise_multiplier)
    if noise == 0 or e.selected == e.steps:
        return e.event.repeated(e.steps)
    if e.steps > _LARGEST or not 1e-2 < noise < 1e4:
        return ev.NoOp(neighbors=e.neighbors)
    pairs = allocation_sums(e.steps, e.selected, noise) + allocation_largest(e.steps, e.selected, noise)
    return Seen(pairs=pairs, neighbors=e.neighbors)


@lru_cache(maxsize=16)
def allocation_sums(steps: int, selected: int, noise: float) -> tuple[Atoms, Atoms]:
    """Return the pairs of the sum over all steps of whole numbers k: k is Y / mesh, rounded and limited from
    above, where Y is the likelihood ratio of the step. The sum shows nearly all that the outputs of all steps
    show.

    k has one distribution in the steps that the unit was allocated to and another in all others, whichever
    steps these are: so the sum, also modulo the size of the transform, is one of independent draws.
    """
    mu = 1 / noise
    # the standard deviation of Y without the unit, and the limit of Y
    deviation = math.sqrt(math.expm1(min(mu * mu, 50.0)))
    top = math.exp(min(mu * mu / 2 + 4.5 * mu, 50.0))
    mesh = max(0.12 * deviation, 2 * top / 2**12)
    edges = mesh * np.arange(0.5, top / mesh + 1)
    z = np.concatenate(([-np.inf], np.log(edges) / mu + mu / 2, [np.inf]))
    # masses of k, and their errors, in a step without the unit and in a step with it
    (without, error_without), (with_unit, error_with_unit) = between(z), between(z - mu)
    relative = max(
        float(np.max(error_without / np.maximum(without, 1e-290))),
        float(np.max(error_with_unit / np.maximum(with_unit, 1e-290))),
    )
    size = 2**10
    # so long that nearly all values of the sum are different modulo the size
    while size < _LARGEST and size * mesh < 24 * deviation * math.sqrt(steps) + 2 * top:
        size *= 2
    k = np.arange(len(without))

    def law(chosen: int) -> tuple[Array, float, float]:
        """Return the distribution of the sum when the unit is in that many steps, the bound on the error of
        every entry, and the relative error of all."""
        draws = [LatticeMasses(k, without, steps - chosen), LatticeMasses(k, with_unit, chosen)]
        total = compose([draw for draw in draws if draw.times], 0.0, mesh, size, 0)
        return total.mass, total.error, 2 * (abs(total.log_scale) + total.log_error)

    (q, error_q, scale_q), (p, error_p, scale_p) = law(0), law(selected)
    return both_ways(p, q, max(error_p, error_q), 2 * steps * relative + scale_p + scale_q)


@lru_cache(maxsize=16)
def allocation_largest(steps: int, selected: int, noise: float) -> tuple[Atoms, Atoms]:
    """Return the pairs of the interval, one of 600, in which the largest of all steps lies: it shows nearly
    all that the outputs of all steps show when there is little noise. Largest values below the first interval
    are left out."""
    mu = 1 / noise
    cut = np.linspace(-1.0, mu + 9.0, 600)
    with_unit = -np.expm1((steps - selected) * log_ndtr(cut) + selected * log_ndtr(cut - mu))
    without = -np.expm1(steps * log_ndtr(cut))
    p, q = (np.diff(-tail, append=0.0) for tail in (with_unit, without))
    return both_ways(p, q, 64 * U * np.maximum(with_unit, without))


def _nothing(e: Event) -> Event:
    return ev.NoOp(neighbors=e.neighbors)


_RULES: dict[type[Event], Callable[[Any], Event]] = {
    ev.PoissonSampled: _sampled,
    ev.SampledWithoutReplacement: _fixed,
    ev.TruncatedPoisson: _truncated,
    ev.RandomAllocation: _allocation,
    ev.Group: _group,
    ev.VectorDiscreteGaussian: _vector,
    ev.NoisyMax: _noisy_max,
    # The mechanisms that are known cost 20 to 60% less than what can be proved, and would mislead.
    **dict.fromkeys((ev.Shuffled, ev.GNMax, ev.RDPPoint, ev.RepeatAndSelect, ev.SparseVector), _nothing),
    # a table in which the group exceeds the threshold by far with and without the unit
    ev.Thresholded: lambda e: attained(e.event),
}
