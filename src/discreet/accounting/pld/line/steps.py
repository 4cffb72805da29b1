"""The steps of a line: the noise of each cut to where nearly all of its mass is, and in two where a loss
begins that is rare and huge.

A run of many steps with rare huge losses is two things at once: a crowd of tiny losses, and now and then a
jump. No single tilt suits both. `Cut` keeps them apart; `line` integrates the runs with at least one jump,
and bounds the others by Chernoff.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from ..pairs.arrays import Array, U, log_sums
from ..pairs.sampled import SampledGaussian
from . import transform
from .transform import Panels, QuadratureWeights

# the pair, how often, and the offset its losses are counted from
Step = tuple[SampledGaussian, int, float]

# log of the error of each panel, relative to the whole
_QUADRATURE = -50.0


class Aim(NamedTuple):
    """Where to look: epsilon (from the offsets), log delta, a tilt to start from, and -log of the share of
    delta that may be misplaced."""

    epsilon: float
    log_delta: float
    theta: float
    alias: float


class Level(NamedTuple):
    """The runs whose largest loss is above `low` and not above `high`.

    `exponent` is that of Chernoff's bound on the runs without a loss above `low`, for a level that answers
    for these too.
    """

    low: float = -math.inf
    high: float = math.inf
    exponent: float | None = None


ALL = Level()


class TiltedStep(NamedTuple):
    """The tilted distributions of one kind of step: without a jump, and with one."""

    core: QuadratureWeights
    far: QuadratureWeights | None

    def nodes(self) -> int:
        return len(self.core.loss) + (len(self.far.loss) if self.far else 0)


def _outside(pair: SampledGaussian, low: float, high: float) -> float:
    """Return the P-mass of the noise outside [low, high], from above."""
    mu = 1 / pair.sigma
    plain = float(ndtr(low) + ndtr(-high))
    shifted_mass = float(ndtr(low - mu) + ndtr(mu - high))
    mass = (1 - pair.rate) * plain + pair.rate * shifted_mass if pair.removing else plain
    return mass * (1 + 1e-10) + 1e-300


class Cut:
    """One kind of step on one level: its noise without a jump (`edges`), and with one (`far`).

    All but `lost` of the mass is there; what is above the level is not counted as lost. Without `sound` there
    is no such cut. Where exactly the noise is cut matters for no bound, as long as neighboring levels agree:
    it is a function of the loss alone.
    """

    def __init__(self, step: Step, tail: float, level: Level = ALL) -> None:
        self.pair, self.times, self.offset = step
        low, high = (x / self.pair.sigma for x in self.pair.span(tail / self.times))
        self.lost = self.times * _outside(self.pair, low, high)
        self.far: Array | None = None
        if level.high < math.inf:
            end, self.lost = min(max(self._noise(level.high), low), high), 0.0
            low, high = (low, end) if self.pair.removing else (end, high)
        core, self.sound = (low, high), low < high
        if level.low > -math.inf and self.sound:
            at = self._noise(level.low)
            core, far = ((low, at), (at, high)) if self.pair.removing else ((at, high), (low, at))
            # otherwise every loss would be a jump
            self.sound = core[0] < core[1]
            if self.sound and far[0] < far[1]:
                self.far = self._panels(*far)
            elif self.sound:
                core = low, high
        self.edges = self._panels(*core) if self.sound else np.array([low, high])
        self._rough: dict[tuple[float, bool], float] = {}

    def _panels(self, low: float, high: float) -> Array:
        return np.linspace(low, high, math.ceil((high - low) / min(1.0, self.pair.sigma)) + 1)

    def _noise(self, loss: float) -> float:
        """Return about the noise with that loss."""
        x = self.pair._where(np.array([loss if self.pair.removing else -loss]))[0]
        return float(x[0]) / self.pair.sigma

    def tilted(self, theta: float, u: float = 0.0, precise: bool = False) -> TiltedStep | None:
        """Return the tilted distributions, accurate along the line up to frequency u; None if that takes too
        many nodes."""
        core = self.core(theta, u, precise)
        if core is None or self.far is None:
            return core and TiltedStep(core, None)
        far = self._weights(self.far, theta, u, precise)
        return far and TiltedStep(core, far)

    def core(self, theta: float, u: float = 0.0, precise: bool = False) -> QuadratureWeights | None:
        """Return the part without a jump."""
        return self._weights(self.edges, theta, u, precise)

    def _weights(self, edges: Array, theta: float, u: float, precise: bool) -> QuadratureWeights | None:
        """Return the tilted distribution of one part of the losses as quadrature nodes; None if that takes
        too many."""
        key = theta, edges is self.far
        if key not in self._rough:
            panels = Panels(edges[:-1], edges[1:], -math.inf)
            self._rough[key] = transform.weights(self.pair, panels, theta, self.offset).log_total
        target = self._rough[key] + _QUADRATURE - (8.0 if precise else 0.0)
        weights = transform.split(self.pair, edges, theta, u, target)
        return weights and transform.weights(self.pair, weights, theta, self.offset, precise)


class RunMoment(NamedTuple):
    """Holds log E exp(theta L) of a run without a jump, counted from the offsets, and a bound on its error.

    `odds` is, for each kind of step, E exp(theta L) with a jump over that without, and a bound on its
    relative error.
    """

    log: float
    error: float
    odds: list[tuple[float, float]]

    def log_above(self, steps: Sequence[Cut]) -> float:
        """Return the log of the moment from above: of the runs with a jump if there are any, of all of them
        otherwise."""
        if not any(odds for odds, _ in self.odds):
            return self.log + self.error
        jumps = math.fsum(
            step.times * math.log1p(odds * (1 + wrong))
            for step, (odds, wrong) in zip(steps, self.odds, strict=True)
        )
        log = jumps if jumps > 600 else math.log(math.expm1(jumps))
        return self.log + self.error + log + 1e-9


def summed(steps: Sequence[Cut], tilted_steps: Sequence[TiltedStep], theta: float) -> RunMoment:
    terms = [
        (
            step.times * tilted.core.log_total,
            step.times * theta * step.offset,
            step.times * tilted.core.log_error,
        )
        for step, tilted in zip(steps, tilted_steps, strict=True)
    ]
    value = math.fsum(a for a, _, _ in terms) - math.fsum(b for _, b, _ in terms)
    error = math.fsum(c + 4 * U * (abs(a) + abs(b)) for a, b, c in terms)
    return RunMoment(value, error * (1 + 1e-9), [_odds(tilted) for tilted in tilted_steps])


def _odds(tilted: TiltedStep) -> tuple[float, float]:
    """Return the odds of a jump under the tilted distribution, and a bound on their relative error."""
    if tilted.far is None:
        return 0.0, 0.0
    gap = tilted.far.log_total - tilted.core.log_total
    wrong = tilted.far.log_error + tilted.core.log_error + 2 * U * (abs(gap) + 4)
    return math.exp(gap) if gap < 600 else math.inf, math.expm1(wrong) * (1 + 1e-9)


class StepMoments:
    """Moment generating functions on a grid of tilts, of a run and of what is left of it with and without
    jumps: for planning only."""

    def __init__(self, steps: Sequence[Cut]) -> None:
        self._steps: list[tuple[int, float, Array, Array]] = []
        for step in steps:
            rule = transform.weights(
                step.pair, Panels(step.edges[:-1], step.edges[1:], -math.inf), 0.0, step.offset
            )
            order = np.argsort(rule.loss)
            with np.errstate(divide="ignore"):
                log = np.log(rule.weight[order])
            self._steps.append(
                (step.times, step.offset, rule.loss[order].astype(np.float64), log.astype(np.float64))
            )

    def spread(self, high: float) -> tuple[float, float]:
        """Return the mean, with the offsets, and deviation of the runs without a loss above `high`."""
        mean = square = 0.0
        for n, offset, loss, log in self._steps:
            kept = slice(0, _upto(loss, high - offset))
            weight = np.exp(log[kept])
            weight /= weight.sum()
            middle = float(weight @ loss[kept])
            mean += n * (middle + offset)
            square += n * float(weight @ (loss[kept] - middle) ** 2)
        return mean, math.sqrt(square)

    def alone(self, delta: float, limit: float) -> tuple[float, float]:
        """Return about the epsilon below `limit` at which one jump alone makes delta, with the other steps at
        their mean; and the slope there."""
        low, high, mean = 0.0, limit, self.spread(limit)[0]
        for _ in range(40):
            middle = (low + high) / 2
            value, fall = 0.0, 0.0
            for n, offset, loss, log in self._steps:
                above = np.exp(log) * np.maximum(
                    -np.expm1(np.minimum(middle - mean - offset - loss, 0.0)), 0.0
                )
                value += n * float(above.sum())
                fall += n * float(np.exp(log)[above > 0].sum())
            low, high = (middle, high) if value > delta else (low, middle)
        return high, max(fall / max(value, 1e-300) - 1.0, 1e-3 / high)

    def largest_loss(self) -> float:
        """Return the largest loss of a step."""
        return max(float(loss[-1]) + offset for _, offset, loss, _ in self._steps)

    def logs(self, t: Array, level: Level = ALL) -> Array:
        """Return log E exp(t L) over the runs of a level."""
        total, more = np.zeros(len(t)), np.zeros(len(t))
        for n, offset, loss, log in self._steps:
            end, top = (_upto(loss, x - offset) for x in (level.low, level.high))
            if level.low == -math.inf:
                total += n * log_sums(t, loss[:top], log[:top])
                continue
            core = log_sums(t, loss[:end], log[:end])
            total += n * core
            if end < top:
                more += n * np.logaddexp(0.0, log_sums(t, loss[end:top], log[end:top]) - core)
        if level.low == -math.inf:
            return total
        with np.errstate(divide="ignore"):
            return np.asarray(total + np.where(more > 30, more, np.log(np.expm1(np.minimum(more, 30.0)))))


def _upto(loss: Array, high: float) -> int:
    """Return how many losses, in increasing order, are at most `high`; at least one."""
    return max(1, int(np.searchsorted(loss, high, side="right")))


# log of how much larger than delta Chernoff's best bound on it is where jumps are kept apart
_RARE = 8.0
# The least share of epsilon at which a jump may begin where runs without one are negligible.
_LEAST = 0.02
# The share of epsilon at which a jump begins where they are not.
_MIDDLE = 0.2
# The ratio of neighboring levels of loss above the first one.
_RUNG = 8.0


def rare(logs: Callable[[Array], Array], aim: Aim) -> bool:
    """Return whether Chernoff's bound is so far above delta that jumps must be what delta is made of."""
    t = aim.theta * np.geomspace(1 / 40, 40, 41)
    lost = logs(t) - t * aim.epsilon - aim.log_delta - np.log1p(t)
    return bool(lost.min() > _RARE)


def ladder(moments: StepMoments, aim: Aim, offset: float, few: bool) -> list[Level]:
    """Return levels that together are all runs and for which lines are short: around epsilon and below, and
    rungs above it.

    With `few` jumps the runs of small losses only are left to Chernoff's bound, if they are negligible.
    """
    size = aim.epsilon + offset
    mean, deviation = moments.spread(size)
    rung, largest_loss = size + max(2 * size - mean, size) + 16 * deviation, moments.largest_loss()
    rungs = []
    while rung < 0.7 * largest_loss:
        rungs.append(rung)
        rung *= _RUNG
    start = (_negligible(moments, aim, size) if few else None) or ALL
    ends = [*([_MIDDLE * size] if few and start == ALL else []), *rungs, math.inf]
    return [start._replace(high=ends[0]), *(Level(low, high) for low, high in itertools.pairwise(ends))]


def _negligible(moments: StepMoments, aim: Aim, size: float) -> Level | None:
    """Return the level from the largest loss for which runs without one above it are negligible; None if
    there is none."""
    threshold, low, high = None, _LEAST, 1.0
    for _ in range(7):
        share = math.sqrt(low * high)
        tilts = np.geomspace(2.0, 400.0, 25) / (share * size)
        bound = moments.logs(tilts, Level(high=share * size)) - tilts * aim.epsilon
        i = int(np.argmin(bound))
        if bound[i] < aim.log_delta - aim.alias - 2.0:
            threshold, low = Level(share * size, math.inf, float(tilts[i])), share
        else:
            high = share
    return threshold
