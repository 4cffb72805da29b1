"""Defines pairs that some mechanism described by an event attains, for lower bounds.

An upper bound may use any pair that dominates. A lower bound needs a mechanism that the event describes, two
neighboring tables, and the two distributions of its output, or of anything computed from its output. Each
function here names such a mechanism; an event for which none is known is replaced by `NoOp`, which costs
nothing. The same is done beyond epsilon 300, where products of probabilities such as e^-epsilon would come
near the smallest floats. Parameters are rounded so that the pairs cost less. U is the unit roundoff 2^-53.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import fft
from scipy.special import gammaln, log_ndtr, ndtr

from .... import _require, _round
from ...._public import ADD_REMOVE, Neighbors
from ... import events as ev
from ... import pure
from ...events import Event
from ...normal import normal, overflow
from .basic_pairs import Array, Atoms, DominatingPair, U, between


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen(Event):
    """Is an event that holds its pairs of output distributions itself: even positions for removing the unit,
    odd ones for adding it; each position may be a different mechanism.

    It never leaves this package.
    """

    pairs: tuple[DominatingPair, ...]
    neighbors: Neighbors = ADD_REMOVE


def attained(event: Event, near: float | None = None) -> Event:
    """Return an event whose pairs are attained by some mechanism that `event` describes.

    `near` is about the epsilon that is bounded: it only decides which of several mechanisms are considered.

    Guarantee: the delta of the result, at every epsilon and composed with anything, is at most the least
               delta that holds for every mechanism with this event.
    Proof:     by the mechanisms named in each function below; in a composition they run independently, and
               the same unit is removed or added for all of them.
    """
    attained_event = ev.compose([_one(part).repeated(times) for part, times in ev.leaves(event).items()])
    if near is None:
        return attained_event
    pure_epsilon = pure.epsilon_of(event)
    share = 0.5 + 0.5 * min(1.0, near / pure_epsilon) if pure_epsilon else 0.5
    return ev.compose(
        [_choice(part, share).repeated(times) for part, times in ev.leaves(attained_event).items()]
    )


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


def _renyi_point(e: ev.RDPPoint) -> Event:
    """Return Gaussian noise with order / (2 s²) = epsilon (Mironov 2017, arXiv:1702.07476, Prop. 7)."""
    if e.epsilon == 0:
        return ev.NoOp(neighbors=e.neighbors)
    noise = math.sqrt(float(e.order) / (2 * float(e.epsilon))) * (1 + 1e-12)
    return ev.Gaussian(noise_multiplier=noise, neighbors=e.neighbors)


def _selected(e: ev.RepeatAndSelect) -> Event:
    """Return one run: if all runs have the same score, the selected run is distributed as any run. With
    Poisson trials there may be no run at all, and nothing is claimed."""
    if isinstance(e.trials, ev.NegativeBinomialTrials):
        return attained(e.event)
    return ev.NoOp(neighbors=e.neighbors)


def _choice(event: Event, share: float) -> Event:
    """Return an exponential mechanism between two candidates, at several odds (`share` in `two_candidates`)
    around those that are worst for a total loss of about (2 share - 1) times the largest; other events are
    returned as they are."""
    if not isinstance(event, ev.ExponentialMechanism) or event.epsilon == 0:
        return event
    epsilon = _round.down(_require.exact(event.epsilon, "epsilon"))
    if epsilon > 300:
        return ev.NoOp(neighbors=event.neighbors)
    tried = sorted(
        {0.5, *(min(max(x, 0.5), 0.999) for x in (2 * share - 1, share - 0.03, share, share + 0.02))}
    )
    return Seen(pairs=tuple(two_candidates(epsilon, x) for x in tried), neighbors=event.neighbors)


# --- choices between two candidates -------------------------------------------------------------------------


def coin(p: tuple[float, float], q: tuple[float, float]) -> Atoms:
    """Return the pair of a coin: p and q are the probabilities of (tails, heads) under P and Q, heads no less
    likely under P.

    Both probabilities are given, so that a tiny one keeps its digits.
    """
    logs = np.log([p, q])
    error = 256 * U * (1 + float(np.abs(logs).max()))
    return Atoms(logs[0] - logs[1], np.array(p), None, error, error)


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
    """Return report noisy max between two candidates whose scores differ by m, and move by one each in
    opposite directions: the first wins if the difference of the noises exceeds m - 1 (under P), m + 1 (Q).

    Laplace noise of scale b = 2/epsilon: P(difference > x) = e^(-x/b) (1 + x/(2b)) / 2 for x >= 0.
    Permute-and-flip: e^(-epsilon x/2) / 2 (McKenna & Sheldon 2020, arXiv:2010.12603). Gumbel noise is the
    exponential mechanism.
    """
    epsilon = _round.down(_require.exact(e.epsilon, "epsilon"))
    if epsilon == 0 or epsilon > 300:
        return ev.NoOp(neighbors=e.neighbors)
    if e.noise == "gumbel":
        return ev.ExponentialMechanism(epsilon=epsilon, neighbors=e.neighbors)

    def contest(x: float) -> tuple[float, float]:
        """Return the probabilities that the difference of the noises is at most x, and that it exceeds x."""
        y = abs(x) * epsilon / 2
        tail = math.exp(-y) * (1 + y / 2 if e.noise == "laplace" else 1.0) / 2
        return (1 - tail, tail) if x >= 0 else (tail, 1 - tail)

    middles = (0.0, 1.0, 1 + 2 / epsilon, 1 + 12 / epsilon)
    return Seen(pairs=tuple(coin(contest(m - 1), contest(m + 1)) for m in middles), neighbors=e.neighbors)


def _votes(e: ev.GNMax) -> Event:
    """Return the comparison of the votes of two classes: changing one vote moves their difference by two, and
    the difference of their noises is N(0, 2 sigma²).

    m is how far the difference is from a tie before it moves by one vote either way. Both m and one vote
    (`step`) are in standard deviations of the difference of the noises.
    """
    step = 1 / (float(e.sigma) * math.sqrt(2))
    # outside this range the coins hardly differ, or are nearly certain: nothing is claimed
    if not 1e-6 < step < 4:
        return ev.NoOp(neighbors=e.neighbors)

    def comparison(x: float) -> tuple[float, float]:
        return float(ndtr(-x)), float(ndtr(x))

    pairs = tuple(coin(comparison(step - m), comparison(-step - m)) for m in (0.0, 1.0, 2.0, 3.0, 4.0))
    return Seen(pairs=pairs, neighbors=e.neighbors)


# --- sums of many draws: distributions by Fourier transform, with a bound on the error of every entry -------

# The largest length of a transform, and the largest number of steps of an allocation, for which an attained
# pair is computed; lower bounds are looser without it. Bounds time and memory.
_LARGEST = 2**18
# With more reports the pair of binary randomized response, which has an atom per number of answers, is left
# out. Bounds time and memory.
_MANY = 10**8


def powers(draws: Sequence[tuple[Array, int]], size: int) -> tuple[Array, float]:
    """Return the distribution of a sum of independent draws, modulo `size`, and a bound on the error of every
    entry.

    Each element of `draws` holds the masses of one draw at 0, 1, 2, ... and how often it is drawn.

    Proof: with N the size and u the unit roundoff, a transform errs by at most e = 8 u (log2 N + 2) in each
           coefficient z of a distribution; the product of all powers z^n then errs by at most e times the
           product times the sum of n / |z| over the draws, and exp and log add 8 u n (4 + |log z|) times the
           product; the inverse transform averages these errors (Higham 2002, section 24.1).
    """
    error = 8 * U * (math.log2(size) + 2)
    log, angle, rounding, inverse_sum = (np.zeros(size // 2 + 1) for _ in range(4))
    for masses, n in draws:
        z = fft.rfft(masses, size)
        log_z = np.log(np.minimum(np.abs(z) + error, 1.0))
        log, angle = log + n * log_z, angle + n * np.angle(z)
        rounding, inverse_sum = rounding + n * (4 + np.abs(log_z)), inverse_sum + n * np.exp(-log_z)
    product = np.exp(np.maximum(log, -700.0))
    wrong = product * (error * inverse_sum * 2 + 8 * U * rounding)
    total = 2 * float((wrong + error * product).sum()) / size
    return np.asarray(fft.irfft(product * np.exp(1j * angle), size)), total * (1 + 1e-9) + 1e-300


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
    q, error_q = powers([(without, steps)], size)
    p, error_p = powers([(without, steps - selected), (with_unit, selected)], size)
    return both_ways(p, q, max(error_p, error_q), 2 * steps * relative)


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


def _shuffled(e: ev.Shuffled) -> Event:
    """Return randomized response, with three answers and with two; all other units have the value of the
    third answer, or of the second."""
    epsilon = _round.down(_require.exact(e.epsilon, "epsilon"))
    if epsilon == 0 or epsilon > 300:
        return ev.NoOp(neighbors=e.neighbors)
    three = shuffled_thirds(epsilon, e.reports)
    pairs = (three,) if e.reports > _MANY else (three, shuffled_response(epsilon, e.reports))
    return Seen(pairs=pairs, neighbors=e.neighbors)


@lru_cache(maxsize=16)
def shuffled_response(epsilon: float, reports: int) -> Atoms:
    """Return the pair of shuffled binary randomized response, which is one local randomizer that the event
    allows: the number k of reports that say yes, when the true answer of all other units is no.

    The unit's own report is yes with probability p if its answer is yes, and 1 - p if it is no. With f the
    distribution of the number of yeses among the others,
    P(k) = p f(k-1) + (1-p) f(k) and Q(k) = (1-p) f(k-1) + p f(k). The order of the reports shows nothing
    beyond k.
    """
    # `untrue` is 1 - p, computed so that a small probability keeps its digits
    n, p, untrue = reports - 1, 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    half_width = math.ceil(14 * math.sqrt(n * untrue * p)) + 40
    k = np.arange(
        max(0, math.floor(n * untrue) - half_width),
        min(reports, math.ceil(n * untrue) + half_width) + 1,
        dtype=np.float64,
    )
    # f(k-1) / f(k)
    previous = k / np.maximum(n - k + 1, 1) * math.exp(epsilon)
    log = (
        gammaln(n + 1)
        - gammaln(k + 1)
        - gammaln(np.maximum(n - k, 0) + 1)
        + k * math.log(untrue)
        + (n - k) * math.log(p)
    )
    # k = n + 1, all reports say yes: f(k) = 0, and `f` holds f(n) instead
    last = k > n
    f = np.exp(np.where(last, n * math.log(untrue), log))
    ratio = np.where(last, math.exp(epsilon), (p * previous + untrue) / (untrue * previous + p))
    mass = np.where(last, p * f, f * (p * previous + untrue))
    error = 64 * U * (100 + reports * math.log(reports + 1) + reports * (1 + epsilon))
    order = np.argsort(ratio, kind="stable")
    return Atoms(np.log(ratio)[order], mass[order], None, error, 64 * U * (1 + epsilon))


@lru_cache(maxsize=16)
def shuffled_thirds(epsilon: float, reports: int) -> Atoms:
    """Return the pair of shuffled randomized response with three answers, when the true answer of all other
    units is the third: by how much first answers outnumber second ones, modulo the size of the transform."""
    # the probabilities of each of the two other answers, and of the true one
    other = 1 / (math.exp(epsilon) + 2)
    true = 1 / (1 + 2 * math.exp(-epsilon))
    size = 2**6
    while size < _LARGEST and size < 24 * math.sqrt(2 * other * reports):
        size *= 2
    # a report counts 0, 1 or 2 for the second, third or first answer; the unit's answer is first, or second
    first, second = np.array([other, other, true]), np.array([true, other, other])
    p, error = powers([(np.array([other, 1 - 2 * other, other]), reports - 1), (first, 1)], size)
    q, _ = powers([(np.array([other, 1 - 2 * other, other]), reports - 1), (second, 1)], size)
    return both_ways(p, q, error, 16 * U * reports * (1 + epsilon))[0]


_RULES: dict[type[Event], Callable[[Any], Event]] = {
    ev.PoissonSampled: _sampled,
    ev.SampledWithoutReplacement: _fixed,
    ev.TruncatedPoisson: _truncated,
    ev.RandomAllocation: _allocation,
    ev.Shuffled: _shuffled,
    ev.Group: _group,
    ev.VectorDiscreteGaussian: _vector,
    ev.RDPPoint: _renyi_point,
    ev.RepeatAndSelect: _selected,
    ev.NoisyMax: _noisy_max,
    ev.GNMax: _votes,
    ev.SparseVector: lambda e: ev.NoOp(neighbors=e.neighbors),
    # a table in which the group exceeds the threshold by far with and without the unit
    ev.Thresholded: lambda e: attained(e.event),
}
