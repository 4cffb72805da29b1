"""From lines to an interval of epsilon: one line for all runs, or one for each level of a ladder where rare
huge losses make that one too long.

Nothing here needs proof beyond that levels are disjoint and together all runs, so that their deltas add up:
plans decide how tight the interval is, never whether it holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ..lattice.planning import Cumulants
from ..pairs.arrays import U
from ..pairs.crossing import ROUNDED, crossing
from . import steps as steps_module
from .line import DeltaBounds, Line, LineShape
from .steps import ALL, Aim, Cut, Step, StepMoments

# Passes that narrow the interval; it is certified after each, so fewer only leave it wider.
_PASSES = 4
# The relative width of the interval at which no further pass is made.
_ENOUGH = 8e-5
# The share of delta that truncated tails may cost.
_TAIL = 2e-6
# Nodes times frequencies of a line in the widest floating-point type, which is slower.
_WORK_PRECISE = 2.5e7
# The share of epsilon that the kernel may cost in a first look.
_FIRST = 3e-3
# what to try in turn: the share of epsilon that the kernel may cost, whether by levels, and the work allowed
_CHEAP, _LEVELS = (2e-6, False, 6e6), [(2e-6, True, 2.5e7), (8e-6, True, 1e8), (2.5e-5, True, 3e8)]
_FIRST_WAYS = [_CHEAP, (_FIRST, False, 6e6)]
_RARE_WAYS = [*_LEVELS, _CHEAP, (2.5e-5, False, 3e8)]
_WAYS = [_CHEAP, *_LEVELS, (2.5e-5, False, 3e8)]


class EpsilonInterval(NamedTuple):
    """A proved interval of epsilon, and how fast log delta falls there (not proved)."""

    low: float
    high: float
    slope: float


def solve(
    steps: Sequence[Step], k: Cumulants, theta: float, delta: float, near: EpsilonInterval | None = None
) -> EpsilonInterval | None:
    """Return the interval of epsilon at delta (its lower end also at deltas a trifle larger); None where the
    line would be too long.

    The first pass has a wide kernel, unless epsilon is known to be `near`; the next have one as narrow as can
    be afforded around the interval so far, the last in the widest floating-point type if rounding is what
    limits the result.
    """
    spread = math.sqrt(max(k(0.0)[2], 1e-300))
    # near the mean hardly any tilt is left to start from
    theta = theta if theta * spread > 1e-6 else 0.3 / spread
    interval, precise = near or EpsilonInterval(0.0, k(theta)[1] + k.offset, theta), False
    result: EpsilonInterval | None = None
    for _ in range(_PASSES):
        reading = _read(steps, k, theta, delta, interval, precise, result is None and near is None)
        if reading is None:
            return result
        interval, lines, share = reading
        better = result is None or interval.high - interval.low < result.high - result.low
        settled = result is not None and interval.high - interval.low > 0.8 * (result.high - result.low)
        result = interval if better else result
        if interval.high - interval.low <= _ENOUGH * interval.high:
            return result
        more = not precise and share != _FIRST and _limited_by_rounding(lines, interval, delta, k.offset)
        if settled and not more:
            return result
        precise = precise or more
    return result


class LineLadder(NamedTuple):
    """Lines of the levels that together are all runs."""

    lines: list[Line]

    def read(self, epsilon: float) -> DeltaBounds:
        """Return bounds on delta at epsilon, which counts from the offsets: those of all levels, added up."""
        readings = [line.read(epsilon) for line in self.lines]
        return DeltaBounds(
            math.fsum(reading.low for reading in readings) * (1 - 4 * U),
            math.fsum(reading.high for reading in readings) * (1 + 4 * U),
        )


_Reading = tuple[EpsilonInterval, LineLadder, float]


def _read(
    steps: Sequence[Step],
    k: Cumulants,
    theta: float,
    delta: float,
    near: EpsilonInterval,
    precise: bool,
    first: bool,
) -> _Reading | None:
    """Read along a line with the narrowest kernel that is affordable."""
    product = near.slope * near.high
    extra = min(max(0.0, -math.log(product)), 15.0) if product > 0 else 15.0
    aim, tail = (
        Aim(near.high - k.offset, math.log(delta), theta, 14.0 + extra),
        delta * _TAIL * math.exp(-extra),
    )
    rare = not first and steps_module.rare(k.logs, aim)
    if rare and near.high > (1 + 1e-2) * near.low:
        epsilon, slope = StepMoments([Cut(step, tail) for step in steps]).alone(delta, near.high)
        near, aim = EpsilonInterval(near.low, epsilon, slope), aim._replace(epsilon=epsilon - k.offset)
    for share, per_level, work in _FIRST_WAYS if first else _RARE_WAYS if rare else _WAYS:
        tau = min(0.5, math.sqrt(2 * share * max(near.high, 0.02 / near.slope) / (near.slope + 1)))
        shape = LineShape(tau, tail, min(work, _WORK_PRECISE) if precise else work, precise)
        lines = _line_per_level(steps, k, aim, shape, rare) if per_level else _one_line(steps, k, aim, shape)
        interval = _invert(lines, aim.epsilon, near.slope, delta, k.offset) if lines else None
        if lines is not None and interval is not None:
            return interval, lines, share
    return None


def _one_line(steps: Sequence[Step], k: Cumulants, aim: Aim, shape: LineShape) -> LineLadder | None:
    """Integrate along one line for all runs."""
    line = Line(steps, k.logs, aim, shape)
    if line.usable and line._around(aim.epsilon) > math.exp(aim.log_delta - 8.0):
        # The tails that `k` was planned with were shorter: plan again with those of the steps themselves.
        line = Line(steps, StepMoments([Cut(step, shape.tail) for step in steps]).logs, aim, shape)
    return LineLadder([line]) if line.usable else None


def _line_per_level(
    steps: Sequence[Step], k: Cumulants, aim: Aim, shape: LineShape, rare: bool
) -> LineLadder | None:
    """Integrate along one line per level; a kernel may be wide where no sum is near epsilon."""
    moments, size = StepMoments([Cut(step, shape.tail) for step in steps]), aim.epsilon + k.offset
    mean, deviation = moments.spread(size)
    levels = steps_module.ladder(moments, aim, k.offset, rare)
    lines: list[Line] = []
    for level in levels if levels != [ALL] else []:
        wide = max(shape.tau, min((level.low + mean - size) / 8 - deviation, 0.5))
        near = aim._replace(theta=10 / min(level.high, moments.largest_loss()))
        line = Line(steps, partial(moments.logs, level=level), near, shape._replace(tau=wide), level)
        if not line.usable:
            return None
        lines.append(line)
    return LineLadder(lines) if lines else None


def _limited_by_rounding(lines: LineLadder, interval: EpsilonInterval, delta: float, offset: float) -> bool:
    """Return whether rounding errors are a noticeable part of the interval's width."""
    epsilon = interval.high - offset
    error = math.fsum(
        x._integral(0, epsilon)[1] * math.exp(x.log_scale - x.theta * epsilon) for x in lines.lines
    )
    return error > 1e-5 * delta * interval.slope * interval.high


def _invert(
    line: LineLadder, epsilon: float, slope: float, delta: float, offset: float
) -> EpsilonInterval | None:
    """Return where the upper bound on delta, and where the lower, cross delta."""
    log_delta, least = math.log(delta), -offset - 1e-15 * abs(offset)
    high = crossing(lambda x: math.log(max(line.read(x).high, 1e-320)) - log_delta, epsilon, slope, least)
    if high is None:
        return None
    good, _, fall = high
    if good <= least:
        return EpsilonInterval(0.0, 0.0, fall)
    log_delta += ROUNDED
    low = crossing(lambda x: math.log(max(line.read(x).low, 1e-320)) - log_delta, good, fall, least)
    size = 4e-16 * (abs(offset) + abs(good))
    return EpsilonInterval(
        max(0.0, (low[1] if low else least) + offset - size), max(0.0, good + offset + size), fall
    )
