"""What some mechanism with an event really shows: the pairs behind lower bounds.

An upper bound may use any pair that dominates. A lower bound needs a mechanism that the event describes, two
neighboring tables, and the two distributions of its output, or of anything computed from its output. Each is
named here; where none is known the event counts as nothing.
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
from ... import choice_events as ce
from ... import events as ev
from ... import pure
from ... import sampled_events as se
from ...events import Event
from ...normal import overflow
from .arrays import Array, U, between
from .basic_pairs import Atoms
from .cells import DominatingPair


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen(Event):
    """Holds the distributions of something seen, with and without the unit (even places: removing; odd ones:
    adding).

    Never leaves this package.
    """

    pairs: tuple[DominatingPair, ...]
    neighbors: Neighbors = ADD_REMOVE


def attained(event: Event, near: float | None = None) -> Event:
    """Return an event that some mechanism described by `event` costs at least, made of parts whose own pairs
    are attained.

    Guarantee: delta of the result, at every epsilon and composed with anything, is a lower bound for the
               least that holds for `event`.
    Proof:     by the mechanisms named at each rule below; mechanisms are composed independently, with the
    same unit in question. `near` is about the epsilon in question: it only tells which of several mechanisms
    to look at.
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
    rule = _RULES.get(type(event))
    return event if rule is None else rule(event)


def _sampled(e: ev.PoissonSampled) -> Event:
    return ev.PoissonSampled(event=attained(e.event), rate=e.rate)


def _fixed(e: se.SampledWithoutReplacement) -> Event:
    return se.SampledWithoutReplacement(event=attained(e.event), size=e.size, sample=e.sample)


def _truncated(e: se.TruncatedPoisson) -> Event:
    """Return the mechanism for which all other units are zero: the unit is seen with the chance that it is
    drawn and not dropped, at least rate * P(no overflow)."""
    kept = _require.exact(e.rate, "rate") * (1 - Fraction(overflow(e.size - 1, e.rate, e.limit - 1)))
    return ev.PoissonSampled(event=attained(e.event), rate=max(0.0, _round.down(kept)))


def _group(e: ev.Group) -> Event:
    """Return the event of a group that moves added noise as far as its size says; otherwise one of its
    members moves and the others do not."""
    added = (
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
        scales = isinstance(part, added) and not _explicit(attained_part)
        parts.append(
            (ev.Group(event=attained_part, size=e.size) if scales else attained_part).repeated(times)
        )
    return ev.compose(parts)


def _explicit(event: Event) -> bool:
    return any(isinstance(part, Seen) for part in ev.leaves(event))


def _vector(e: ev.VectorDiscreteGaussian) -> Event:
    """Return the vector of which one entry moves by the largest integer that fits, and as many others as are
    left by one each."""
    first = math.isqrt(e.l2_squared)
    rest = e.l2_squared - first * first

    def entry(by: int) -> Event:
        return ev.DiscreteGaussian(variance=e.variance, sensitivity=by, neighbors=e.neighbors)

    return ev.compose([entry(first), entry(1).repeated(rest)])


def _renyi_point(e: ce.RDPPoint) -> Event:
    """Return Gaussian noise with order / (2 s²) = epsilon (Mironov 2017, arXiv:1702.07476, Prop. 7)."""
    if e.epsilon == 0:
        return ev.NoOp(neighbors=e.neighbors)
    noise = math.sqrt(float(e.order) / (2 * float(e.epsilon))) * (1 + 1e-12)
    return ev.Gaussian(noise_multiplier=noise, neighbors=e.neighbors)


def _selected(e: ce.RepeatAndSelect) -> Event:
    """Return runs that all have the same score, so that the run shown is one like any other; with Poisson
    trials there may be none to show."""
    if isinstance(e.trials, ce.NegativeBinomialTrials):
        return attained(e.event)
    return ev.NoOp(neighbors=e.neighbors)


def _choice(event: Event, share: float) -> Event:
    """Return exponential mechanisms between two candidates, at the odds that are worst for a total loss of
    about (2 share - 1) times the largest."""
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
    """Return the pair of a coin with chances p or q of tails and heads, heads no rarer under p.

    Both chances are given, so that a tiny one keeps its digits.
    """
    logs = np.log([p, q])
    error = 256 * U * (1 + float(np.abs(logs).max()))
    return Atoms(logs[0] - logs[1], np.array(p), None, error, error)


def two_candidates(epsilon: float, share: float) -> Atoms:
    """Return the exponential mechanism between two candidates whose odds change by e^epsilon: its losses are
    t - epsilon and t, for t = share * epsilon."""
    t = share * epsilon
    high = math.expm1(t - epsilon) / math.expm1(-epsilon)
    mass = np.array([math.expm1(t) / math.expm1(epsilon), high])
    return Atoms(
        np.array([t - epsilon, t]), mass, (epsilon, t - epsilon), 32 * U * (1 + epsilon), 8 * U * epsilon
    )


def _noisy_max(e: ce.NoisyMax) -> Event:
    """Return two candidates whose scores move apart by one each: the first wins if the difference of the
    noises exceeds m - 1, or m + 1.

    Laplace noise of scale b = 2/epsilon: P(difference > x) = e^(-x/b) (1 + x/(2b)) / 2 for x >= 0.
    Permute-and-flip: e^(-epsilon x/2) / 2 (McKenna & Sheldon 2020, arXiv:2010.12603). Gumbel noise is the
    exponential mechanism.
    """
    epsilon = _round.down(_require.exact(e.epsilon, "epsilon"))
    if epsilon == 0 or epsilon > 300:
        return ev.NoOp(neighbors=e.neighbors)
    if e.noise == "gumbel":
        return ev.ExponentialMechanism(epsilon=epsilon, neighbors=e.neighbors)

    # the chances that the first loses, and wins
    def contest(x: float) -> tuple[float, float]:
        y = abs(x) * epsilon / 2
        tail = math.exp(-y) * (1 + y / 2 if e.noise == "laplace" else 1.0) / 2
        return (1 - tail, tail) if x >= 0 else (tail, 1 - tail)

    middles = (0.0, 1.0, 1 + 2 / epsilon, 1 + 12 / epsilon)
    return Seen(pairs=tuple(coin(contest(m - 1), contest(m + 1)) for m in middles), neighbors=e.neighbors)


def _votes(e: ce.GNMax) -> Event:
    """Return the comparison of two classes whose difference one vote moves by two, under noise N(0, 2
    sigma²)."""
    step = 1 / (float(e.sigma) * math.sqrt(2))
    if not 1e-6 < step < 4:
        return ev.NoOp(neighbors=e.neighbors)

    def comparison(x: float) -> tuple[float, float]:
        return float(ndtr(-x)), float(ndtr(x))

    pairs = tuple(coin(comparison(step - m), comparison(-step - m)) for m in (0.0, 1.0, 2.0, 3.0, 4.0))
    return Seen(pairs=pairs, neighbors=e.neighbors)


# --- sums of many: distributions by Fourier transform, with the error of every entry -----------------------

# Cells of a transform, and steps, up to which an attained pair is computed: it is for lower bounds only,
# which are looser without it.
_LARGEST = 2**18
# Reports beyond which the pair of binary randomized response, with an atom per number of answers, is left
# out.
_MANY = 10**8


def powers(draws: Sequence[tuple[Array, int]], size: int) -> tuple[Array, float]:
    """Return the distribution of a sum of independent draws, modulo `size`, and a bound on the error of every
    entry.

    The masses of each start at 0.

    Proof: a transform errs by at most e = 8 u (log2 N + 2) in each coefficient z of a distribution; a product
    of powers z^n then errs by e times the sum of n |z|^(n-1) times the other factors, and exp and log add 8 u
    n (4 + |log z|) of it; the inverse averages (Higham 2002, section 24.1).
    """
    error = 8 * U * (math.log2(size) + 2)
    log, angle, rounding, steps = (np.zeros(size // 2 + 1) for _ in range(4))
    for masses, n in draws:
        z = fft.rfft(masses, size)
        one = np.log(np.minimum(np.abs(z) + error, 1.0))
        log, angle = log + n * one, angle + n * np.angle(z)
        rounding, steps = rounding + n * (4 + np.abs(one)), steps + n * np.exp(-one)
    product = np.exp(np.maximum(log, -700.0))
    wrong = product * (error * steps * 2 + 8 * U * rounding)
    total = 2 * float((wrong + error * product).sum()) / size
    return np.asarray(fft.irfft(product * np.exp(1j * angle), size)), total * (1 + 1e-9) + 1e-300


def both_ways(p: Array, q: Array, error: float | Array, relative: float = 0.0) -> tuple[Atoms, Atoms]:
    """Return the pairs of removing and adding, for outcomes with these chances up to `error`: one lowered,
    the other raised, and what is too small left out."""

    def way(first: Array, second: Array) -> Atoms:
        low, high = first - error, second + error
        real = (low > 100 * error) & (high > 0)
        if not real.any():
            # nothing is seen
            return Atoms(np.zeros(1), np.ones(1))
        low, high = low[real], high[real]
        loss = np.log(low / high)
        order = np.argsort(loss, kind="stable")
        return Atoms(loss[order], low[order], None, 8 * U + relative, 16 * U + 2 * relative)

    return way(p, q), way(q, p)


def _allocation(e: se.RandomAllocation) -> Event:
    """Return the pair itself: a sum in which all other units are zero.

    What is computed from its steps is a sum, or the largest.
    """
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
    """Return the pairs of what the sum of whole numbers k shows, one per step: k is Y / mesh, rounded and cut
    off above, for the likelihood ratio Y of the step. That is nearly all that a pass shows.

    In the chosen steps k has one distribution, in the others another, wherever those steps are: so the
    distribution of the sum, modulo anything, is that of a sum of independent draws.
    """
    mu = 1 / noise
    spread = math.sqrt(math.expm1(min(mu * mu, 50.0)))
    top = math.exp(min(mu * mu / 2 + 4.5 * mu, 50.0))
    mesh = max(0.12 * spread, 2 * top / 2**12)
    edges = mesh * np.arange(0.5, top / mesh + 1)
    z = np.concatenate(([-np.inf], np.log(edges) / mu + mu / 2, [np.inf]))
    (without, off), (within, off_within) = between(z), between(z - mu)
    relative = max(
        float(np.max(off / np.maximum(without, 1e-290))),
        float(np.max(off_within / np.maximum(within, 1e-290))),
    )
    size = 2**10
    while size < _LARGEST and size * mesh < 24 * spread * math.sqrt(steps) + 2 * top:
        size *= 2
    q, off_q = powers([(without, steps)], size)
    p, off_p = powers([(without, steps - selected), (within, selected)], size)
    return both_ways(p, q, max(off_p, off_q), 2 * steps * relative)


@lru_cache(maxsize=16)
def allocation_largest(steps: int, selected: int, noise: float) -> tuple[Atoms, Atoms]:
    """Return the pairs of what is shown by the interval, one of many, in which the largest of all steps lies:
    nearly all that a pass shows when there is little noise."""
    mu = 1 / noise
    cut = np.linspace(-1.0, mu + 9.0, 600)
    with_unit = -np.expm1((steps - selected) * log_ndtr(cut) + selected * log_ndtr(cut - mu))
    without = -np.expm1(steps * log_ndtr(cut))
    p, q = (np.diff(-tail, append=0.0) for tail in (with_unit, without))
    return both_ways(p, q, 64 * U * np.maximum(with_unit, without))


def _shuffled(e: se.Shuffled) -> Event:
    """Return randomized response with two answers, or with three of which nobody else means either of the two
    in question."""
    epsilon = _round.down(_require.exact(e.epsilon, "epsilon"))
    if epsilon == 0 or epsilon > 300:
        return ev.NoOp(neighbors=e.neighbors)
    three = shuffled_thirds(epsilon, e.reports)
    pairs = (three,) if e.reports > _MANY else (three, shuffled_response(epsilon, e.reports))
    return Seen(pairs=pairs, neighbors=e.neighbors)


@lru_cache(maxsize=16)
def shuffled_response(epsilon: float, reports: int) -> Atoms:
    """Return what binary randomized response makes of it, one allowed local randomizer: how many say yes, the
    others all meaning no.

    With f the distribution of the others' yeses, P(k) = p f(k-1) + (1-p) f(k) and Q(k) the same with 1-p:
    what is seen depends on k alone.
    """
    # 1 - p would lose the digits of a small chance
    n, p, yes = reports - 1, 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    spread = math.ceil(14 * math.sqrt(n * yes * p)) + 40
    k = np.arange(
        max(0, math.floor(n * yes) - spread), min(reports, math.ceil(n * yes) + spread) + 1, dtype=np.float64
    )
    # f(k-1) / f(k)
    before = k / np.maximum(n - k + 1, 1) * math.exp(epsilon)
    log = (
        gammaln(n + 1)
        - gammaln(k + 1)
        - gammaln(np.maximum(n - k, 0) + 1)
        + k * math.log(yes)
        + (n - k) * math.log(p)
    )
    # nobody is left to say no: only the first term
    last = k > n
    f = np.exp(np.where(last, n * math.log(yes), log))
    ratio = np.where(last, math.exp(epsilon), (p * before + yes) / (yes * before + p))
    mass = np.where(last, p * f, f * (p * before + yes))
    error = 64 * U * (100 + reports * math.log(reports + 1) + reports * (1 + epsilon))
    order = np.argsort(ratio, kind="stable")
    return Atoms(np.log(ratio)[order], mass[order], None, error, 64 * U * (1 + epsilon))


@lru_cache(maxsize=16)
def shuffled_thirds(epsilon: float, reports: int) -> Atoms:
    """Return how many more first than second answers there are, modulo a number, when all others mean the
    third."""
    other = 1 / (math.exp(epsilon) + 2)
    true = 1 / (1 + 2 * math.exp(-epsilon))
    size = 2**6
    while size < _LARGEST and size < 24 * math.sqrt(2 * other * reports):
        size *= 2
    mine, yours = np.array([other, other, true]), np.array([true, other, other])
    p, off = powers([(np.array([other, 1 - 2 * other, other]), reports - 1), (mine, 1)], size)
    q, _ = powers([(np.array([other, 1 - 2 * other, other]), reports - 1), (yours, 1)], size)
    return both_ways(p, q, off, 16 * U * reports * (1 + epsilon))[0]


_RULES: dict[type[Event], Callable[[Any], Event]] = {
    ev.PoissonSampled: _sampled,
    se.SampledWithoutReplacement: _fixed,
    se.TruncatedPoisson: _truncated,
    se.RandomAllocation: _allocation,
    se.Shuffled: _shuffled,
    ev.Group: _group,
    ev.VectorDiscreteGaussian: _vector,
    ce.RDPPoint: _renyi_point,
    ce.RepeatAndSelect: _selected,
    ce.NoisyMax: _noisy_max,
    ce.GNMax: _votes,
    ce.SparseVector: lambda e: ev.NoOp(neighbors=e.neighbors),
    # a group far above the threshold in both tables
    ce.Thresholded: lambda e: attained(e.event),
}
