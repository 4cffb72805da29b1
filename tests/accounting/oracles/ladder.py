"""Turns lines (`line.Line`, an integral along a vertical line in the complex plane) into an interval of
epsilon.

A run is one outcome of the whole composition. There is one line for all runs, or one for each level of a
ladder (`line.Level`: the runs whose largest loss is in some range) where rare huge losses would make a
single line too long. The integrand of a line is multiplied by a Gaussian kernel of width tau: a wide kernel
makes the line short and raises epsilon.

The proof rests on the bounds of each line, and on levels being disjoint and together holding all runs, so
that their deltas add up. All plans, and the constants below, decide how tight the interval is and how long it
takes, never whether it holds; docs/proofs/pld.md reports what was measured with them.

Symbols: `k` is the logarithm of the moment generating function of a run (`mesh.Cumulants`), for planning;
theta is a tilt; a slope is -d log(delta) / d epsilon. The losses of each step are lowered by a constant, its
offset, and k.offset is the sum of all offsets: `Aim.epsilon` and the argument of `read` are lowered by it,
too, while intervals are of epsilon itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from discreet.accounting.pld.lattice.mesh import Cumulants
from discreet.accounting.pld.pairs.basic_pairs import ROUNDED, U

from . import line as steps_module
from .line import ALL, Aim, Cut, DeltaBounds, Line, LineShape, Step, StepMoments

# Passes that narrow the interval; it is certified after each, so fewer only leave it wider.
_PASSES = 4
# The relative width of the interval at which no further pass is made.
_ENOUGH = 8e-5
# The share of delta that truncated tails may cost.
_TAIL = 2e-6
# The largest number of nodes times frequencies of a line in the widest floating-point type, which is slower.
_WORK_PRECISE = 2.5e7
# The share of epsilon that the kernel may cost in a first pass.
_FIRST = 3e-3
# What is tried in turn, until a line is short enough. Each entry: the share of epsilon that the kernel may
# cost, whether there is a line per level, and the largest number of nodes times frequencies of a line.
_CHEAP, _LEVELS = (2e-6, False, 6e6), [(2e-6, True, 2.5e7), (8e-6, True, 1e8), (2.5e-5, True, 3e8)]
_FIRST_WAYS = [_CHEAP, (_FIRST, False, 6e6)]
_RARE_WAYS = [*_LEVELS, _CHEAP, (2.5e-5, False, 3e8)]
_WAYS = [_CHEAP, *_LEVELS, (2.5e-5, False, 3e8)]


class EpsilonInterval(NamedTuple):
    """Holds a proved interval of epsilon, and -d log(delta) / d epsilon there (not proved)."""

    low: float
    high: float
    slope: float


def solve(
    steps: Sequence[Step], k: Cumulants, theta: float, delta: float, near: EpsilonInterval | None = None
) -> EpsilonInterval | None:
    """Return the interval of epsilon at delta; None where the line would be too long. Its lower end also
    holds at deltas larger by a factor of up to e^ROUNDED.

    The first pass has a wide kernel, unless an interval `near` the answer is given. The next passes have the
    narrowest kernel that is affordable, around the interval so far; they use the widest floating-point type
    once rounding limits the result.
    """
    # the standard deviation of the loss of a run
    deviation = math.sqrt(max(k(0.0)[2], 1e-300))
    # Where epsilon is near the mean, theta may be almost 0; `line.window` needs a tilt to search around.
    theta = theta if theta * deviation > 1e-6 else 0.3 / deviation
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
        needs_precision = (
            not precise and share != _FIRST and _limited_by_rounding(lines, interval, delta, k.offset)
        )
        if settled and not needs_precision:
            return result
        precise = precise or needs_precision
    return result


class LineLadder(NamedTuple):
    """Holds the lines of levels that are disjoint and together hold all runs."""

    lines: list[Line]

    def read(self, epsilon: float) -> DeltaBounds:
        """Return bounds on delta at epsilon, which is counted from the offsets: the sum over all levels."""
        readings = [line.read(epsilon) for line in self.lines]
        return DeltaBounds(
            math.fsum(reading.low for reading in readings) * (1 - 4 * U),
            math.fsum(reading.high for reading in readings) * (1 + 4 * U),
        )


# An interval, the lines it was read from, and the share of epsilon that their kernel may cost.
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
    """Return a reading with the narrowest kernel that is affordable, around the interval `near`; None if
    every line is too long. `first` says whether it is a first pass, with a wide kernel."""
    # where epsilon is sensitive to delta, e^margin times less of delta may be misplaced
    product = near.slope * near.high
    margin = min(max(0.0, -math.log(product)), 15.0) if product > 0 else 15.0
    aim, tail = (
        Aim(near.high - k.offset, math.log(delta), theta, 14.0 + margin),
        delta * _TAIL * math.exp(-margin),
    )
    rare = not first and steps_module.rare(k.logs, aim)
    if rare and near.high > (1 + 1e-2) * near.low:
        epsilon, slope = StepMoments([Cut(step, tail) for step in steps]).alone(delta, near.high)
        near, aim = EpsilonInterval(near.low, epsilon, slope), aim._replace(epsilon=epsilon - k.offset)
    for share, per_level, work in _FIRST_WAYS if first else _RARE_WAYS if rare else _WAYS:
        # the kernel adds about (slope + 1) tau² / 2 to epsilon
        tau = min(0.5, math.sqrt(2 * share * max(near.high, 0.02 / near.slope) / (near.slope + 1)))
        shape = LineShape(tau, tail, min(work, _WORK_PRECISE) if precise else work, precise)
        lines = _line_per_level(steps, k, aim, shape, rare) if per_level else _one_line(steps, k, aim, shape)
        interval = _invert(lines, aim.epsilon, near.slope, delta, k.offset) if lines else None
        if lines is not None and interval is not None:
            return interval, lines, share
    return None


def _one_line(steps: Sequence[Step], k: Cumulants, aim: Aim, shape: LineShape) -> LineLadder | None:
    """Return one line for all runs; None if it would be too long."""
    line = Line(steps, k.logs, aim, shape)
    if line.usable and line._around(aim.epsilon) > math.exp(aim.log_delta - 8.0):
        # The error of the rule is larger than planned, since `k` was computed with shorter tails than those
        # that are integrated: plan again with moments of the same tails.
        line = Line(steps, StepMoments([Cut(step, shape.tail) for step in steps]).logs, aim, shape)
    return LineLadder([line]) if line.usable else None


def _line_per_level(
    steps: Sequence[Step], k: Cumulants, aim: Aim, shape: LineShape, rare: bool
) -> LineLadder | None:
    """Return one line per level; None if one would be too long, or if there is one level only.

    `tau` is the width of the level's kernel: it may be wide where the sum of losses is far above epsilon.
    `size` is epsilon itself, not lowered by the offsets.
    """
    moments, size = StepMoments([Cut(step, shape.tail) for step in steps]), aim.epsilon + k.offset
    mean, deviation = moments.spread(size)
    levels = steps_module.ladder(moments, aim, k.offset, rare)
    lines: list[Line] = []
    for level in levels if levels != [ALL] else []:
        tau = max(shape.tau, min((level.low + mean - size) / 8 - deviation, 0.5))
        level_aim = aim._replace(theta=10 / min(level.high, moments.largest_loss()))
        line = Line(steps, partial(moments.logs, level=level), level_aim, shape._replace(tau=tau), level)
        if not line.usable:
            return None
        lines.append(line)
    return LineLadder(lines) if lines else None


def _limited_by_rounding(lines: LineLadder, interval: EpsilonInterval, delta: float, offset: float) -> bool:
    """Return whether rounding errors of delta change epsilon by about 1e-5 of itself or more."""
    epsilon = interval.high - offset
    error = math.fsum(
        x._integral(0, epsilon)[1] * math.exp(x.log_scale - x.theta * epsilon) for x in lines.lines
    )
    return error > 1e-5 * delta * interval.slope * interval.high


def crossing(
    f: Callable[[float], float], x: float, slope: float, least: float
) -> tuple[float, float, float] | None:
    """Return (above, below, slope) around the crossing of a decreasing f with 0: f(above) <= 0, f(below) > 0,
    `below` is just below `above`, and the slope is about -f' there. None if no crossing is found.

    The search begins at `x` with an estimate of the slope, and does not go below `least`; if f(least) <= 0
    both points are `least`. A bracket is found by growing steps and narrowed by secants and bisections, so
    that what is returned has been evaluated, whatever f does in between.
    """
    x = max(x, least)
    at_x = f(x)
    step = max(abs(at_x), 1e-3) / slope
    for _ in range(80):
        if at_x <= 0 and x <= least:
            return least, least, slope
        y = max(x + math.copysign(step, at_x), least)
        at_y = f(y)
        if (at_y <= 0) != (at_x <= 0):
            break
        x, at_x, step = y, at_y, 1.7 * step
    else:
        return None
    (above, at_above), (below, at_below) = ((x, at_x), (y, at_y)) if at_x <= 0 else ((y, at_y), (x, at_x))
    measured_slope = (at_below - at_above) / (above - below)
    for turn in range(60):
        if above - below <= 1e-8 / slope + 4e-16 * abs(above):
            break
        # two secants, moved a little to either side of the crossing in turn, then a bisection
        share = at_below / (at_below - at_above) if turn % 3 < 2 and at_below < 3 else 0.5
        z = below + min(max(share + (1e-3 if turn % 2 else -1e-3), 1e-3), 1 - 1e-3) * (above - below)
        value = f(z)
        if value <= 0:
            above, at_above = z, value
        else:
            below, at_below = z, value
        if above - below > 1e-3 / slope:
            measured_slope = (at_below - at_above) / (above - below)
    return above, below, max(measured_slope, 1e-9 * slope)


def _invert(
    lines: LineLadder, epsilon: float, slope: float, delta: float, offset: float
) -> EpsilonInterval | None:
    """Return the epsilons at which the upper and the lower bound on delta cross delta, searched from
    `epsilon` (counted from the offset); None if the upper one is not found."""
    # `least` is epsilon 0 lowered by the offset, and rounded down
    log_delta, least = math.log(delta), -offset - 1e-15 * abs(offset)
    high = crossing(lambda x: math.log(max(lines.read(x).high, 1e-320)) - log_delta, epsilon, slope, least)
    if high is None:
        return None
    # `crossing` returns a point above the crossing, one below it, and the slope
    upper, _, slope = high
    if upper <= least:
        return EpsilonInterval(0.0, 0.0, slope)
    # so that the lower end also holds at a delta that is larger by rounding
    log_delta += ROUNDED
    low = crossing(lambda x: math.log(max(lines.read(x).low, 1e-320)) - log_delta, upper, slope, least)
    rounding = 4e-16 * (abs(offset) + abs(upper))
    return EpsilonInterval(
        max(0.0, (low[1] if low else least) + offset - rounding), max(0.0, upper + offset + rounding), slope
    )
