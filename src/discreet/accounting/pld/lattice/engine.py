"""Bounds delta and epsilon for one direction of one composition, by a given plan: discretise, compose, read
off.

`DeltaCurve` holds a certified (that is, proved) upper bound on delta at every lattice epsilon of its window;
`Tests` holds the probabilities of threshold tests, which bound delta from below. docs/pld.md has the proof
("Two discretisations" and "Composition by a tilted Fourier transform").

Symbols: P and Q are the two distributions of the composition, h is the mesh of the lattice, theta the tilt: a
loss L has weight e^(theta L) in the tilted distribution, which has total mass 1 and is multiplied by
e^(log_scale - theta L) in the end. U is the unit roundoff 2^-53. Indices count lattice points. Factors such
as 1 + 1e-12 round a bound outwards by more than the rounding errors of its last operations.
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
    """Holds a pair that is composed `times` times; on the lattice its losses are counted from `offset`."""

    pair: DominatingPair
    times: int
    offset: float = 0.0


# Added to masses of upper bounds, so that none underflows to zero.
_TINY = 1e-305
# Lattice points beyond which no lower bound is computed: merging moves the mean of very many steps out of the
# planned window, by any distance, and memory grows with it. Four times the largest number of planned points.
_MAX_STRETCHED = 2**24


class DeltaCurve(NamedTuple):
    """Holds upper bounds on delta: exp(log_scale) * value[i] + infinite at epsilon = mesh * (start + i)."""

    start: int
    mesh: float
    value: Array
    log_scale: float
    infinite: float

    def seen(self) -> tuple[Array, Array]:
        """Return the epsilons of the curve and log delta there (without `infinite`), for planning."""
        with np.errstate(divide="ignore"):
            return self.mesh * np.arange(self.start, self.start + len(self.value), dtype=np.float64), np.log(
                self.value
            ) + self.log_scale


class Tests(NamedTuple):
    """Holds bounds on threshold tests: for each threshold K = start + i, of the set {merged loss index >= K},
    in units of exp(log_scale).

    `gain` is a lower bound on P - e^(mesh K) Q of that set, `q_low` and `q_high` are bounds on e^(mesh K) Q.
    """

    start: int
    mesh: float
    log_scale: float
    gain: Array
    q_low: Array
    q_high: Array


def cumulants(parts: Sequence[RepeatedPair], tail: float) -> Cumulants:
    """Return the cumulants of the composed loss, for planning; each part leaves out `tail` of its mass."""
    return Cumulants([(part.pair.nodes(tail / part.times), part.times) for part in parts])


def _knots(part: RepeatedPair, plan: LatticePlan, tail: float) -> Index:
    """Return the lattice points onto which the losses of a part are put."""
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
    """Holds the indices of a window: `size` lattice points from `start` on, of which those from `first` on
    are read. Sums are computed modulo `size`."""

    start: int
    first: int
    size: int


def _window(plan: LatticePlan) -> LatticeWindow:
    start = math.floor(plan.low / plan.mesh) - 1
    first = max(start, math.floor(plan.first / plan.mesh) - 1)
    points = max(math.ceil(plan.high / plan.mesh) + 2 - start, 32)
    return LatticeWindow(start, first, int(fft.next_fast_len(points, real=True)))


class Wrapped(NamedTuple):
    """Holds bounds on the mass outside the window, which appears inside it because sums are cyclic.

    `above` bounds the tilted mass beyond the end of the window. All mass from outside adds to a tail
    probability {loss >= x} at most `tilted`, in units of the tilted distribution and before the factor
    e^(-theta x), plus `absolute` in plain probability.
    """

    above: float
    tilted: float
    absolute: float


def _wrapped(
    parts: Sequence[LatticeMasses], theta: float, plan: LatticePlan, window: LatticeWindow
) -> Wrapped:
    """Return Chernoff's bounds on the mass outside the window, with the plan's exponents `up` and `down`.

    If the plan has no exponent `down`: a loss S below the window appears at S + j * width, j >= 1, where the
    factor e^(-theta loss) that undoes the tilt is e^(-theta j width) times its own. Untilted, all such mass
    together is at most e^(-theta width) / (1 - e^(-theta width)).
    """
    h = plan.mesh

    def log_moment(t: float, sign: int) -> float:
        tilted = [(part.times, fourier.tilt(part, t * h)) for part in parts]
        return math.fsum(n * (masses.log_total + sign * masses.log_error) for n, masses in tilted)

    base = log_moment(theta, -1)
    above = log_moment(theta + plan.up, 1) - base - plan.up * h * (window.start + window.size)
    above = math.exp(min(above, 0.0)) * (1 + 1e-9)
    if plan.down is None:
        wrapping = math.exp(-theta * h * window.size)
        total = math.exp(min(log_moment(0.0, 1), 1.0))
        absolute = wrapping / (1 - wrapping) * total * (1 + 1e-9) if wrapping < 1 else math.inf
        return Wrapped(above, above, absolute)
    below = log_moment(theta - plan.down, 1) - base + plan.down * h * (window.start - 1)
    return Wrapped(above, above + math.exp(min(below, 0.0)) * (1 + 1e-9), 0.0)


def curve(parts: Sequence[RepeatedPair], plan: LatticePlan, tail: float) -> DeltaCurve:
    """Return an upper bound on delta for every lattice epsilon from plan.first, a little below the
    epsilon that was estimated in planning, to the end of the window."""
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
    """Return delta(K) = (1 - e^-h) * (sum over j > K of e^(-h (j-1-K)) P(loss index >= j)) at every
    epsilon = h K; all summands are positive.

    `above` is the tilted mass beyond the window, `infinite` the P-mass at infinite loss.
    """
    h, first = plan.mesh, window.first
    mass = total.mass[first - total.start :] + total.error
    # losses up to 600 above the first, so that e^distance stays within the range of floats
    length = min(len(mass), math.ceil(600 / h))
    distance = h * np.arange(len(mass))
    weight = np.maximum(mass, 0.0) * np.exp(-plan.theta * distance) + _TINY
    # Mass beyond the window, and beyond `length`, is counted as infinite loss.
    beyond = above * math.exp(-plan.theta * (distance[-1] + h)) + float(weight[length:].sum())
    weight, distance = weight[:length], distance[:length]
    tail = np.cumsum(weight[::-1])[::-1] + beyond
    shifted = np.append(tail[1:], beyond) * np.exp(-distance)
    # The last summand bounds the terms j after the end of the array, where P(loss index >= j) is `beyond`.
    value = (np.cumsum(shifted[::-1])[::-1] * -math.expm1(-h)) * np.exp(distance) + beyond
    log_scale = total.log_scale - plan.theta * h * first + total.log_error
    log_scale += (
        8
        * U
        * (len(mass) + abs(total.log_scale) + plan.theta * h * abs(first) + plan.theta * distance[-1] + 8)
    )
    return DeltaCurve(first, h, value, log_scale, infinite * (1 + 1e-12))


def tests(parts: Sequence[RepeatedPair], plan: LatticePlan, tail: float) -> Tests:
    """Return lower bounds on P - e^epsilon Q of {sum of merged loss indices >= K}, for thresholds K from
    plan.first on; an empty `Tests` if that would take too many lattice points."""
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
    """Return the tests at every threshold K: with P(j), Q(j) the masses at index j and D(j) = P(j) - e^(hj)
    Q(j) their gain, P - e^(hK) Q of {index >= K} is the sum over j >= K of (1 - e^(h(K-j))) P(j) + e^(h(K-j))
    D(j).

    Mass from outside the window is subtracted twice: once for P, and once for D, which is at most P since Q
    is not negative; a negative D from outside only lowers the bound. `rounding` bounds the rounding of the
    given masses, relative to the Q-mass of a test: at an epsilon much below the typical loss nearly all of Q
    cancels against P, and this is the largest error that remains.
    """
    h, theta, first = plan.mesh, plan.theta, window.first
    keep = slice(first - window.start, None)
    # as in `_read_upper`; {index >= K} without the larger losses is a test too
    length = min(window.size - keep.start, math.ceil(600 / h))
    mass, gain = total.p.mass[keep][:length], total.gain[keep][:length]
    distance = h * np.arange(length)
    weight = np.exp(-theta * distance)
    scale = total.p.log_scale - theta * h * first
    log_error = total.p.log_error + 8 * U * (
        window.size + abs(total.p.log_scale) + theta * h * abs(first) + theta * distance[-1] + 8
    )
    beyond = wrapped.tilted * weight + wrapped.absolute * math.exp(min(log_error - scale, 700.0))
    tail = np.cumsum((np.maximum(mass - total.p.error, 0.0) * weight)[::-1])[::-1]
    shifted = np.append(tail[1:], 0.0) * np.exp(-distance)
    # the first of the two sums, over (1 - e^(h(K-j))) P(j)
    p_sum = (np.cumsum(shifted[::-1])[::-1] * -math.expm1(-h)) * np.exp(distance)

    def discounted(x: Array) -> Array:
        """Return the sums over j >= K of e^(h(K-j)) x(j), for every K."""
        return np.asarray(np.cumsum((x * np.exp(-distance))[::-1])[::-1] * np.exp(distance))

    gain_sum, gain_size = (
        discounted((gain - total.gain_error) * weight),
        discounted((np.abs(gain) + total.gain_error) * weight),
    )
    test_gain = p_sum * (1 - log_error - 1e-11) + gain_sum - (log_error + 1e-11) * gain_size - 2 * beyond
    # e^(hj) Q(j) = P(j) - D(j), each entry up to both errors
    entry_error = total.p.error + total.gain_error
    sum_error = 2 * beyond + (log_error + 1e-11) * (
        gain_size + discounted((np.maximum(mass, 0.0) + total.p.error) * weight)
    )
    q_high, q_low = (
        discounted((mass - gain + sign * entry_error) * weight) + sign * sum_error for sign in (1, -1)
    )
    q_high = np.maximum(q_high, 0.0)
    return Tests(first, h, scale, test_gain - rounding * q_high, np.maximum(q_low, 0.0), q_high)


def _centered(parts: Sequence[LatticeMasses], plan: LatticePlan) -> LatticePlan:
    """Return the plan with its window stretched to hold the mean of the merged losses, which merging has
    moved: many losses much smaller than the mesh all become 0."""
    merged = Cumulants([(Nodes(_losses(part.indices, plan), part.mass), part.times) for part in parts])
    shift = merged(plan.theta)[1] - plan.center
    down, up = min(shift, 0.0), max(shift, 0.0)
    return plan._replace(first=plan.first + down, low=plan.low + down, high=plan.high + up)


class CertifiedEpsilon(NamedTuple):
    """Holds a certified epsilon, and -d log(delta) / d epsilon there (not certified)."""

    epsilon: float
    slope: float


def epsilon_above(c: DeltaCurve, delta: float, offset: float) -> CertifiedEpsilon:
    """Return the smallest epsilon at which the curve certifies delta; infinity if none does.

    Between two lattice points delta is at most the chord, as it is convex in e^epsilon. `offset` is added to
    every loss.
    """
    finite_delta = delta * (1 - 1e-12) - c.infinite
    if finite_delta <= 0:
        return CertifiedEpsilon(math.inf, 0.0)
    target = math.exp(min(math.log(finite_delta) - c.log_scale, 700.0))
    certified = np.flatnonzero(c.value <= target)
    if certified.size == 0:
        return CertifiedEpsilon(math.inf, 0.0)
    i = int(certified[0])
    epsilon, slope = c.mesh * (c.start + i), 1.0 / c.mesh
    if i > 0:
        before, after = float(c.value[i - 1]), float(c.value[i])
        share = (before - target) / (before - after)
        slope = math.log(before / after) / c.mesh if after > 0 else slope
        epsilon += math.log1p((share - 1) * -math.expm1(-c.mesh))
    size = abs(epsilon) + abs(offset)
    return CertifiedEpsilon(max(0.0, epsilon + offset + 1e-13 * size), slope)


def delta_above(c: DeltaCurve, epsilon: float) -> float:
    """Return an upper bound on delta at epsilon: the chord, in e^epsilon, between the curve at the last
    lattice point not above epsilon and at the next one."""
    i = math.floor((epsilon - 1e-13 * abs(epsilon)) / c.mesh) - c.start
    if i < 0:
        return 1.0
    # beyond the window delta is at most its value at the window's end
    i = min(i, len(c.value) - 2)
    share = min(
        1.0, math.expm1(min(epsilon - c.mesh * (c.start + i), c.mesh)) / math.expm1(c.mesh) * (1 - 1e-12)
    )
    value = float(c.value[i]) * (1 - share) + float(c.value[i + 1]) * share
    return min(1.0, math.exp(min(c.log_scale + math.log(max(value, 1e-300)), 0.0)) * (1 + 1e-10) + c.infinite)


def epsilon_below(t: Tests, delta: float, offset: float) -> float:
    """Return the largest epsilon that some threshold test refutes: P - e^epsilon Q >= delta.

    At epsilon = mesh K + x the test with threshold K has P - e^epsilon Q = gain - (e^x - 1) q, where q is
    e^(mesh K) Q. It equals delta at e^x = 1 + (gain - delta) / q. The larger bound on q is used where x >= 0
    and the smaller one where x < 0: both lower x.
    """
    target = delta * math.exp(min(-t.log_scale, 700.0)) * (1 + 1e-12)
    spare = t.gain - target
    q = np.where(spare >= 0, t.q_high, t.q_low)
    usable = (q > 0) & (spare > -q)
    if not usable.any():
        return 0.0
    threshold = t.mesh * (t.start + np.flatnonzero(usable))
    value = threshold + np.log1p(spare[usable] / q[usable])
    best = float(np.max(value))
    return max(0.0, best + offset - 1e-13 * (abs(best) + abs(offset)))


def delta_below(t: Tests, epsilon: float) -> float:
    """Return the largest lower bound on delta at this epsilon that a threshold test gives."""
    # e^x - 1 for epsilon = mesh K + x; q is bounded in the direction that lowers the result.
    growth = np.expm1(
        np.minimum(epsilon + 1e-13 * abs(epsilon) - t.mesh * (t.start + np.arange(len(t.gain))), 700.0)
    )
    value = t.gain - growth * np.where(growth > 0, t.q_high, t.q_low)
    best = float(np.max(value, initial=0.0))
    return math.exp(min(t.log_scale + math.log(best), 0.0)) * (1 - 1e-10) if best > 0 else 0.0
