"""The steps of a line: the noise of each is restricted to an interval with nearly all of its mass, which is
split in two where rare huge losses ("jumps") begin.

A run of many steps (one outcome of the whole composition) may consist of many tiny losses and now and then a
jump. No single tilt suits both. `Cut` keeps them apart, and runs are sorted into levels by their largest loss
(`Level`): `line` integrates the runs of one level, and bounds by Chernoff those that are not integrated.
docs/pld.md, "Rare huge losses".

Symbols: L is a loss, theta or t a tilt, u a frequency; "core" is a step's loss distribution without a jump,
"far" that of a jump; the odds of a jump are E exp(theta L) over the jumps divided by that over the core.
Losses are counted from the offset of their step, epsilon and the moments of a run from the sum of all
offsets; only the bounds of a `Level` are losses that are not counted from an offset.
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

# The pair, how often it occurs, and the offset from which its losses are counted.
Step = tuple[SampledGaussian, int, float]

# The log of the quadrature error of each panel, relative to the moment of the step: far below rounding.
_QUADRATURE = -50.0


class Aim(NamedTuple):
    """Holds what a line is planned for: epsilon (counted from the offsets), log delta, a tilt to start from,
    and in `alias` -log of the share of delta that may be misplaced. No bound rests on it."""

    epsilon: float
    log_delta: float
    theta: float
    alias: float


class Level(NamedTuple):
    """Describes the runs whose largest loss (not counted from an offset) is above `low` and not above `high`.

    With an `exponent` the level also accounts for the runs without a loss above `low`: by Chernoff's bound
    with this exponent, added to the upper bound and left out of the lower one.
    """

    low: float = -math.inf
    high: float = math.inf
    exponent: float | None = None


ALL = Level()


class TiltedStep(NamedTuple):
    """Holds the tilted distributions of one kind of step: without a jump, and of the jumps if there are
    any."""

    core: QuadratureWeights
    far: QuadratureWeights | None

    def nodes(self) -> int:
        """Return the number of quadrature nodes."""
        return len(self.core.loss) + (len(self.far.loss) if self.far else 0)


def _outside(pair: SampledGaussian, low: float, high: float) -> float:
    """Return an upper bound on the P-mass of the noise outside [low, high], in standard deviations."""
    mu = 1 / pair.sigma
    plain = float(ndtr(low) + ndtr(-high))
    shifted_mass = float(ndtr(low - mu) + ndtr(mu - high))
    mass = (1 - pair.rate) * plain + pair.rate * shifted_mass if pair.removing else plain
    return mass * (1 + 1e-10) + 1e-300


class Cut:
    """Restricts the noise of one kind of step to a level: `edges` are the panels of the noise without a jump,
    `far` those of the noise that makes a jump (None if there is none).

    `lost` bounds the P-mass of all `times` steps outside the interval of noise that is kept. Only the highest
    level counts it, for all levels; in the others `lost` is 0. If `sound` is false the level has no noise
    without a jump, and the cut must not be used. Where exactly the noise is cut matters for no bound as long
    as neighboring levels cut at the same place: the place is a function of the loss alone.
    """

    def __init__(self, step: Step, tail: float, level: Level = ALL) -> None:
        """Cut a step; all its repetitions together may lose `tail` of their P-mass."""
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
            # false if every loss of the level would be a jump
            self.sound = core[0] < core[1]
            if self.sound and far[0] < far[1]:
                self.far = self._panels(*far)
            elif self.sound:
                # this step has no jump
                core = low, high
        self.edges = self._panels(*core) if self.sound else np.array([low, high])
        self._rough: dict[tuple[float, bool], float] = {}

    def _panels(self, low: float, high: float) -> Array:
        """Return the ends of panels of the noise, no wider than a standard deviation and than 1 / mu."""
        return np.linspace(low, high, math.ceil((high - low) / min(1.0, self.pair.sigma)) + 1)

    def _noise(self, loss: float) -> float:
        """Return about the noise, in standard deviations, at which the loss is `loss`."""
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
        """Return the tilted distribution of the losses without a jump; None if that takes too many nodes."""
        return self._weights(self.edges, theta, u, precise)

    def _weights(self, edges: Array, theta: float, u: float, precise: bool) -> QuadratureWeights | None:
        """Return the tilted distribution over the panels `edges` (of the core or of the jumps) as quadrature
        nodes, accurate up to frequency u; None if that takes too many."""
        key = theta, edges is self.far
        if key not in self._rough:
            panels = Panels(edges[:-1], edges[1:], -math.inf)
            self._rough[key] = transform.weights(self.pair, panels, theta, self.offset).log_total
        # the widest floating-point type rounds less, so that the quadrature must err less too
        target = self._rough[key] + _QUADRATURE - (8.0 if precise else 0.0)
        split_panels = transform.split(self.pair, edges, theta, u, target)
        return split_panels and transform.weights(self.pair, split_panels, theta, self.offset, precise)


class RunMoment(NamedTuple):
    """Holds log E exp(theta L) over the runs without a jump, counted from the offsets, and a bound on its
    error.

    `odds` holds, for each kind of step, the odds of a jump under the tilt and a bound on their relative
    error.
    """

    log: float
    error: float
    odds: list[tuple[float, float]]

    def log_above(self, steps: Sequence[Cut]) -> float:
        """Return an upper bound on the log of E exp(theta L): over the runs with at least one jump if any
        step has jumps, over all runs otherwise."""
        if not any(odds for odds, _ in self.odds):
            return self.log + self.error
        jumps = math.fsum(
            step.times * math.log1p(odds * (1 + wrong))
            for step, (odds, wrong) in zip(steps, self.odds, strict=True)
        )
        log = jumps if jumps > 600 else math.log(math.expm1(jumps))
        return self.log + self.error + log + 1e-9


def summed(steps: Sequence[Cut], tilted_steps: Sequence[TiltedStep], theta: float) -> RunMoment:
    """Return the moment of a run of all steps, from the tilted distributions of each kind of step."""
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
    """Computes rough moments of runs, with all losses or with those of one level only: for planning, no bound
    rests on them.

    For each kind of step it holds its count, its offset, and the nodes of its loss: losses in increasing
    order and the logs of their weights.
    """

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
        """Return the mean (offsets included) and the standard deviation of the loss of a run whose steps have
        no loss above `high`."""
        mean = variance = 0.0
        for n, offset, loss, log in self._steps:
            kept = slice(0, _upto(loss, high - offset))
            weight = np.exp(log[kept])
            weight /= weight.sum()
            step_mean = float(weight @ loss[kept])
            mean += n * (step_mean + offset)
            variance += n * float(weight @ (loss[kept] - step_mean) ** 2)
        return mean, math.sqrt(variance)

    def alone(self, delta: float, limit: float) -> tuple[float, float]:
        """Return about the epsilon below `limit` at which runs with a single large loss, all other steps at
        their mean, have this delta; and -d log(delta) / d epsilon there."""
        low, high, mean = 0.0, limit, self.spread(limit)[0]
        for _ in range(40):
            middle = (low + high) / 2
            value, mass_above = 0.0, 0.0
            for n, offset, loss, log in self._steps:
                above = np.exp(log) * np.maximum(
                    -np.expm1(np.minimum(middle - mean - offset - loss, 0.0)), 0.0
                )
                value += n * float(above.sum())
                mass_above += n * float(np.exp(log)[above > 0].sum())
            low, high = (middle, high) if value > delta else (low, middle)
        return high, max(mass_above / max(value, 1e-300) - 1.0, 1e-3 / high)

    def largest_loss(self) -> float:
        """Return the largest loss of any step, its offset included."""
        return max(float(loss[-1]) + offset for _, offset, loss, _ in self._steps)

    def logs(self, t: Array, level: Level = ALL) -> Array:
        """Return log E exp(t L) over the runs of a level, for every tilt in t; counted from the offsets.

        `total` is that of the runs without a jump, `more` the log of the factor by which jumps increase it.
        """
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


# The four constants below change the planning of levels only, so no bound rests on them; they were chosen by
# hand, not tuned one by one.
# Jumps are kept apart if Chernoff's best bound on delta exceeds delta by more than e to this power.
_RARE = 8.0
# Where runs without a jump are negligible, jumps begin at this share of epsilon or above.
_LEAST = 0.02
# Where such runs are not negligible, jumps begin at this share of epsilon.
_MIDDLE = 0.2
# The ratio of the losses at which two neighboring levels above epsilon begin.
_RUNG = 8.0


def rare(logs: Callable[[Array], Array], aim: Aim) -> bool:
    """Return whether Chernoff's bound is so far above delta that most of delta must come from jumps; `logs`
    returns log E exp(t L) of a run."""
    t = aim.theta * np.geomspace(1 / 40, 40, 41)
    log_excess = logs(t) - t * aim.epsilon - aim.log_delta - np.log1p(t)
    return bool(log_excess.min() > _RARE)


def ladder(moments: StepMoments, aim: Aim, offset: float, are_rare: bool) -> list[Level]:
    """Return disjoint levels that together hold all runs and whose lines are short: one or two up to about
    three times epsilon, and one for each further factor `_RUNG` up to the largest loss.

    `offset` is the sum of all offsets. If jumps `are_rare` (`rare`), runs of small losses only
    are left to Chernoff's bound if they are negligible, and get a level of their own otherwise.
    """
    # epsilon itself, not counted from the offsets
    size = aim.epsilon + offset
    mean, deviation = moments.spread(size)
    rung, largest_loss = size + max(2 * size - mean, size) + 16 * deviation, moments.largest_loss()
    rungs = []
    while rung < 0.7 * largest_loss:
        rungs.append(rung)
        rung *= _RUNG
    start = (_negligible(moments, aim, size) if are_rare else None) or ALL
    ends = [*([_MIDDLE * size] if are_rare and start == ALL else []), *rungs, math.inf]
    return [start._replace(high=ends[0]), *(Level(low, high) for low, high in itertools.pairwise(ends))]


def _negligible(moments: StepMoments, aim: Aim, size: float) -> Level | None:
    """Return the level that begins at the largest loss (up to `size`, which is epsilon with the offsets) such
    that runs without a loss above it are negligible, with Chernoff's exponent for them; None if there is no
    such loss."""
    level, low, high = None, _LEAST, 1.0
    for _ in range(7):
        share = math.sqrt(low * high)
        tilts = np.geomspace(2.0, 400.0, 25) / (share * size)
        bound = moments.logs(tilts, Level(high=share * size)) - tilts * aim.epsilon
        i = int(np.argmin(bound))
        if bound[i] < aim.log_delta - aim.alias - 2.0:
            level, low = Level(share * size, math.inf, float(tilts[i])), share
        else:
            high = share
    return level
