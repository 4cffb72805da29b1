"""Bounds on delta and epsilon for one direction of one composition: plan, discretise, compose, read off.

`DeltaCurve` holds a certified upper bound of delta at every lattice epsilon of its window; `Tests` the
probabilities of threshold tests, which bound delta from below. docs/pld.md has the whole argument on one
page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import fft

from ..pairs import cells
from ..pairs.arrays import Array, Index, U
from ..pairs.cells import DominatingPair, Nodes
from . import fourier, planning
from .fourier import Difference, LatticeMasses, LatticePairMasses, Sum
from .planning import Cumulants, LatticePlan


class RepeatedPair(NamedTuple):
    """A pair `times` times; its losses are kept relative to `offset`."""

    pair: DominatingPair
    times: int
    offset: float = 0.0


# nothing that is rounded up may underflow to zero
_TINY = 1e-305
# Lattice points beyond which no lower bound is computed: merging moves the mean of very many steps out of the
# window that was planned, without limit, and memory grows with it. Four times what plans have at most.
_MAX_STRETCHED = 2**24


class DeltaCurve(NamedTuple):
    """Upper bounds exp(log_scale) * value on delta at epsilon = mesh * (start + i), plus `infinite`."""

    start: int
    mesh: float
    value: Array
    log_scale: float
    infinite: float

    def seen(self) -> tuple[Array, Array]:
        """Return losses and log delta, for planning."""
        with np.errstate(divide="ignore"):
            return self.mesh * np.arange(self.start, self.start + len(self.value), dtype=np.float64), np.log(
                self.value
            ) + self.log_scale


class Tests(NamedTuple):
    """For thresholds K = start + i of the merged loss index, in units of exp(log_scale): P - e^(mesh K) Q,
    and e^(mesh K) Q, of {index >= K}; both from below, e^(mesh K) Q also from above.
    """

    start: int
    mesh: float
    log_scale: float
    gain: Array
    q_low: Array
    q_high: Array


def cumulants(parts: Sequence[RepeatedPair], tail: float) -> Cumulants:
    return Cumulants([(part.pair.nodes(tail / part.times), part.times) for part in parts])


def _knots(part: RepeatedPair, plan: LatticePlan, tail: float) -> Index:
    loss, weight = part.pair.nodes(tail / part.times)
    nodes = Nodes(loss - part.offset, weight)
    return (
        planning.neighboring_indices(nodes.loss, plan.mesh)
        if part.pair.discrete
        else planning.graded_indices(nodes, plan)
    )


def _losses(index: Index, plan: LatticePlan) -> Array:
    return index.astype(np.float64) * plan.mesh


class LatticeWindow(NamedTuple):
    """`size` lattice points from `start` on, of which those from `first` on are read."""

    start: int
    first: int
    size: int


def _window(plan: LatticePlan) -> LatticeWindow:
    start = math.floor(plan.low / plan.mesh) - 1
    first = max(start, math.floor(plan.first / plan.mesh) - 1)
    points = max(math.ceil(plan.high / plan.mesh) + 2 - start, 32)
    return LatticeWindow(start, first, int(fft.next_fast_len(points, real=True)))


class Wrapped(NamedTuple):
    """Bounds on what the cyclic window misplaces.

    `above` is tilted mass beyond its end. What comes round from below the part that is read adds to every
    tail at most `tilted` times its weight, in units of the tilted distribution, plus `absolute` in plain
    probability.
    """

    above: float
    tilted: float
    absolute: float


def _wrapped(
    parts: Sequence[LatticeMasses], theta: float, plan: LatticePlan, window: LatticeWindow
) -> Wrapped:
    """Return Chernoff's bound on either side; without an exponent for the lower side, e^(-theta * width)
    times all of the mass.

    A loss S below the window appears at S + j * width, j >= 1, where its weight e^(-theta loss) is e^(-theta
    j width) times its own: untilted, all such mass together is at most e^(-theta width) / (1 - e^(-theta
    width)).
    """
    h = plan.mesh

    def log_moment(t: float, sign: int) -> float:
        tilted = [(part.times, fourier.tilt(part, t * h)) for part in parts]
        return math.fsum(n * (pair.log_total + sign * pair.log_error) for n, pair in tilted)

    base = log_moment(theta, -1)
    above = log_moment(theta + plan.up, 1) - base - plan.up * h * (window.start + window.size)
    above = math.exp(min(above, 0.0)) * (1 + 1e-9)
    if plan.down is None:
        around = math.exp(-theta * h * window.size)
        total = math.exp(min(log_moment(0.0, 1), 1.0))
        return Wrapped(above, above, around / (1 - around) * total * (1 + 1e-9) if around < 1 else math.inf)
    below = log_moment(theta - plan.down, 1) - base + plan.down * h * (window.start - 1)
    return Wrapped(above, above + math.exp(min(below, 0.0)) * (1 + 1e-9), 0.0)


def curve(parts: Sequence[RepeatedPair], plan: LatticePlan, tail: float) -> DeltaCurve:
    """Return an upper bound on delta for every lattice epsilon from a little below the plan's estimate to the
    end of the window."""
    built, infinite = [], 0.0
    for part in parts:
        pair, n, offset = part
        knots = _knots(part, plan, tail)
        dominating = cells.upper(pair, _losses(knots, plan), offset)
        built.append(LatticeMasses(knots, dominating.mass, n))
        infinite += n * dominating.infinite
    window = _window(plan)
    total = fourier.compose(built, plan.theta, plan.mesh, window.size, window.start, plan.precise)
    return _read_upper(total, plan, window, _wrapped(built, plan.theta, plan, window).above, infinite)


def _read_upper(
    total: Sum, plan: LatticePlan, window: LatticeWindow, above: float, infinite: float
) -> DeltaCurve:
    """Return delta(K) = (1 - e^-h) sum over j > K of e^(-h (j-1-K)) P(loss index >= j): positive summands
    only."""
    h, first = plan.mesh, window.first
    mass = total.mass[first - total.start :] + total.error
    length = min(len(mass), math.ceil(600 / h))
    offset = h * np.arange(len(mass))
    weight = np.maximum(mass, 0.0) * np.exp(-plan.theta * offset) + _TINY
    # counted as infinite
    beyond = above * math.exp(-plan.theta * (offset[-1] + h)) + float(weight[length:].sum())
    weight, offset = weight[:length], offset[:length]
    tail = np.cumsum(weight[::-1])[::-1] + beyond
    shifted = np.append(tail[1:], beyond) * np.exp(-offset)
    value = (np.cumsum(shifted[::-1])[::-1] * -math.expm1(-h)) * np.exp(offset) + beyond
    log_scale = total.log_scale - plan.theta * h * first + total.log_error
    log_scale += (
        8 * U * (len(mass) + abs(total.log_scale) + plan.theta * h * abs(first) + plan.theta * offset[-1] + 8)
    )
    return DeltaCurve(first, h, value, log_scale, infinite * (1 + 1e-12))


def tests(parts: Sequence[RepeatedPair], plan: LatticePlan, tail: float) -> Tests:
    """Return P - e^epsilon Q of {sum of merged loss indices >= K}, for K from near the estimate on; no test
    where that would take too many lattice points."""
    built = []
    for part in parts:
        knots = _knots(part, plan, tail)
        merged = cells.lower(part.pair, _losses(knots, plan), part.offset)
        built.append(LatticePairMasses(knots, merged.p, merged.gain, part.times))
    ps = [LatticeMasses(part.indices, part.mass, part.times) for part in built]
    plan = _centered(ps, plan)
    if plan.points > _MAX_STRETCHED:
        return Tests(0, plan.mesh, 0.0, *(np.zeros(0) for _ in range(3)))
    window = _window(plan)
    total = fourier.difference(built, plan.theta, plan.mesh, window.size, window.start, plan.precise)
    steps = sum(part.times for part in parts)
    return _read_lower(total, plan, window, _wrapped(ps, plan.theta, plan, window), 64 * U * (steps + 8))


def _read_lower(
    total: Difference, plan: LatticePlan, window: LatticeWindow, wrapped: Wrapped, rounding: float
) -> Tests:
    """Return, with P(j) the masses and D(j) = P(j) - e^(mesh j) Q(j), the sum over j >= K of (1 - e^(K-j))
    P(j) + e^(K-j) D(j), in mesh units.

    What wraps around counts once against P where it helps; its D is at most as large, since Q is not
    negative, and where D is negative it only hurts. `rounding`, relative to the Q-mass of a test, is for
    masses that are floats: where nearly all of it cancels against P, at an epsilon much below the typical
    loss, that is the largest error left.
    """
    h, theta, first = plan.mesh, plan.theta, window.first
    keep = slice(first - window.start, None)
    length = min(window.size - keep.start, math.ceil(600 / h))
    mass, gain = total.p.mass[keep][:length], total.gain[keep][:length]
    offset = h * np.arange(length)
    weight = np.exp(-theta * offset)
    scale = total.p.log_scale - theta * h * first
    log_error = total.p.log_error + 8 * U * (
        window.size + abs(total.p.log_scale) + theta * h * abs(first) + theta * offset[-1] + 8
    )
    beyond = wrapped.tilted * weight + wrapped.absolute * math.exp(min(log_error - scale, 700.0))
    tail = np.cumsum((np.maximum(mass - total.p.error, 0.0) * weight)[::-1])[::-1]
    shifted = np.append(tail[1:], 0.0) * np.exp(-offset)
    spread = (np.cumsum(shifted[::-1])[::-1] * -math.expm1(-h)) * np.exp(offset)

    def discounted(x: Array) -> Array:
        return np.asarray(np.cumsum((x * np.exp(-offset))[::-1])[::-1] * np.exp(offset))

    gained, size = (
        discounted((gain - total.gain_error) * weight),
        discounted((np.abs(gain) + total.gain_error) * weight),
    )
    better = spread * (1 - log_error - 1e-11) + gained - (log_error + 1e-11) * size - 2 * beyond
    # Q = P - D
    either = total.p.error + total.gain_error
    wrong = 2 * beyond + (log_error + 1e-11) * (
        size + discounted((np.maximum(mass, 0.0) + total.p.error) * weight)
    )
    held, kept = (discounted((mass - gain + sign * either) * weight) + sign * wrong for sign in (1, -1))
    held = np.maximum(held, 0.0)
    return Tests(first, h, scale, better - rounding * held, np.maximum(kept, 0.0), held)


def _centered(parts: Sequence[LatticeMasses], plan: LatticePlan) -> LatticePlan:
    """Return the window stretched to where the merged indices are: a crowd of losses much smaller than the
    mesh all count as zero."""
    merged = Cumulants([(Nodes(_losses(part.indices, plan), part.mass), part.times) for part in parts])
    shift = merged(plan.theta)[1] - plan.center
    down, up = min(shift, 0.0), max(shift, 0.0)
    return plan._replace(first=plan.first + down, low=plan.low + down, high=plan.high + up)


class CertifiedEpsilon(NamedTuple):
    """A certified epsilon, and how fast log delta falls with epsilon there (not certified)."""

    epsilon: float
    slope: float


def epsilon_above(c: DeltaCurve, delta: float, offset: float) -> CertifiedEpsilon:
    """Return the smallest epsilon at which the curve certifies delta; infinity if none does.

    `offset` is added to every loss.
    """
    left = delta * (1 - 1e-12) - c.infinite
    if left <= 0:
        return CertifiedEpsilon(math.inf, 0.0)
    target = math.exp(min(math.log(left) - c.log_scale, 700.0))
    good = np.flatnonzero(c.value <= target)
    if good.size == 0:
        return CertifiedEpsilon(math.inf, 0.0)
    i = int(good[0])
    epsilon, slope = c.mesh * (c.start + i), 1.0 / c.mesh
    if i > 0:
        before, after = float(c.value[i - 1]), float(c.value[i])
        share = (before - target) / (before - after)
        slope = math.log(before / after) / c.mesh if after > 0 else slope
        epsilon += math.log1p((share - 1) * -math.expm1(-c.mesh))
    size = abs(epsilon) + abs(offset)
    return CertifiedEpsilon(max(0.0, epsilon + offset + 1e-13 * size), slope)


def delta_above(c: DeltaCurve, epsilon: float) -> float:
    """Return the curve at the last lattice point not above epsilon and the next, joined by a line in
    e^epsilon."""
    i = math.floor((epsilon - 1e-13 * abs(epsilon)) / c.mesh) - c.start
    if i < 0:
        return 1.0
    # beyond the window delta is at most what it is at the window's end
    i = min(i, len(c.value) - 2)
    share = min(
        1.0, math.expm1(min(epsilon - c.mesh * (c.start + i), c.mesh)) / math.expm1(c.mesh) * (1 - 1e-12)
    )
    value = float(c.value[i]) * (1 - share) + float(c.value[i + 1]) * share
    return min(1.0, math.exp(min(c.log_scale + math.log(max(value, 1e-300)), 0.0)) * (1 + 1e-10) + c.infinite)


def epsilon_below(t: Tests, delta: float, offset: float) -> float:
    """Return the largest epsilon that some threshold test refutes: P - e^epsilon Q >= delta.

    At epsilon = mesh K + x the test K has gain - (e^x - 1) e^(mesh K) Q; solved for x.
    """
    target = delta * math.exp(min(-t.log_scale, 700.0)) * (1 + 1e-12)
    spare = t.gain - target
    held = np.where(spare >= 0, t.q_high, t.q_low)
    usable = (held > 0) & (spare > -held)
    if not usable.any():
        return 0.0
    threshold = t.mesh * (t.start + np.flatnonzero(usable))
    value = threshold + np.log1p(spare[usable] / held[usable])
    best = float(np.max(value))
    return max(0.0, best + offset - 1e-13 * (abs(best) + abs(offset)))


def delta_below(t: Tests, epsilon: float) -> float:
    """Return the best test at this epsilon."""
    ahead = np.expm1(
        np.minimum(epsilon + 1e-13 * abs(epsilon) - t.mesh * (t.start + np.arange(len(t.gain))), 700.0)
    )
    value = t.gain - ahead * np.where(ahead > 0, t.q_high, t.q_low)
    best = float(np.max(value, initial=0.0))
    return math.exp(min(t.log_scale + math.log(best), 0.0)) * (1 - 1e-10) if best > 0 else 0.0
