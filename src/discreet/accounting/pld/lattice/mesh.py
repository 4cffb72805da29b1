"""Plans a lattice: a saddle-point estimate of the answer, then a mesh and a window made for it.

Nothing here is certified, and nothing certified depends on it: a poor plan makes the bounds wider, never
wrong. The constants may be changed for tightness and time; docs/proofs/pld.md reports what was measured with
them.

Symbols: L is the privacy loss under P of one step, S that of the composition, n a number of steps, k(t) = log
E exp(t S) with its first two derivatives (`Cumulants`), theta the tilt, h the mesh. "Tilted by t" means
re-weighted by e^(t L): the tilted sum has mean k'(t) and variance k''(t), which are called `mean` (or
`epsilon`) and `spread`; `sd` is the root of the variance. A part is one pair with its count n. The losses of
each part are lowered by a constant, its offset, so every epsilon is lowered by the sum of the offsets
(`Cumulants.offset`). Knots are the lattice points at which one step's discretised losses may lie; cells are
the intervals between them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import erfcx

from ..pairs.basic_pairs import Array, Index, Nodes, log_sums

# The relative error of epsilon that the mesh may cause.
INFLATION = 5e-5
# The largest number of lattice points, which bounds time and memory; the mesh is widened to keep it.
_MAX_POINTS = 2**23
# The tail mass at which cells begin to widen, for upper and for lower bounds; see `graded_indices`. Merging
# moves losses off their lattice points, where the widths of neighboring cells differ.
COARSE, COARSE_BELOW = 1e-3, 1e-7
# If one step's losses span fewer lattice points than this, all of them are knots.
_ALL = 2**14
# How far above the beginning of a window losses are read: e^600 is within the range of floats.
READ = 600.0
# The largest exponent theta * h of the tilt between two neighboring lattice points: at e^40 both masses still
# are normal floats.
_STEEPEST = 40.0
# Rare huge losses dominate the tilted distribution if its variance is more than so many times the variance at
# 0.7 of the tilt.
_RARE = 3.0
# The log of the rounding error, as a share of P(loss >= epsilon), above which a weaker tilt is refused.
_BLURRED = math.log(3e-6)
# The largest number of lattice points in the widest floating-point type, which is slower.
_MAX_PRECISE_POINTS = 2**22
# The log of the relative rounding error of delta above which the widest floating-point type is used.
_PRECISE = math.log(3e-5)


class LatticePlan(NamedTuple):
    """Holds the tilt, the estimate of epsilon, the mean of the tilted sum (`center`), the mesh, and the
    window of the composed loss: computed from `low` to `high`, read from `first` on.

    `up` and `down` are the exponents of Chernoff's bounds on the mass above and below the window. If `down`
    is None the window begins at `first`, and the mass that wraps around from below is bounded by
    exp(-theta * width) instead. `precise` says whether the widest floating-point type is used.
    """

    theta: float
    epsilon: float
    center: float
    mesh: float
    first: float
    low: float
    high: float
    up: float
    down: float | None
    precise: bool
    # a rough log delta of the composition at the ascending epsilons `at`; see `others`
    at: Array = np.zeros(1)
    log_delta: Array = np.zeros(1)

    def others(self, loss: Array) -> Array:
        """Return about the log of delta at epsilon - loss: how much delta the other steps contribute when one
        step has this loss."""
        return np.asarray(np.interp(self.epsilon - loss, self.at, self.log_delta, left=0.0))

    @property
    def points(self) -> float:
        """The number of lattice points of the window."""
        return (self.high - self.low) / self.mesh


class Cumulants:
    """Computes log E exp(t S) of the composed loss S and its first two derivatives, from quick quadratures.

    Parts come as nodes with counts; the nodes of all parts stand in one array, part i from `_starts[i]` on.
    """

    def __init__(self, parts: Sequence[tuple[Nodes, int]]) -> None:
        self._loss = np.concatenate([nodes.loss for nodes, _ in parts])
        with np.errstate(divide="ignore"):
            self._log = np.log(np.concatenate([nodes.weight for nodes, _ in parts]))
        sizes = [len(nodes.loss) for nodes, _ in parts]
        self._starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        self._segment = np.repeat(np.arange(len(parts)), sizes)
        self._times = np.array([float(n) for _, n in parts])
        self.steps = float(self._times.sum())
        self.offset = 0.0
        # the log of the delta that epsilon is sought for, if it is known
        self.log_goal: float | None = None
        # What `__call__` has returned, by t: searches ask for the same t again and again.
        self._returned: dict[float, tuple[float, float, float]] = {}

    def center(self, t: float) -> list[float]:
        """Return a typical loss of each part when the sum is near k'(t): the loss with the largest product of
        its mass and Chernoff's bound on what the other steps contribute."""
        tilts = _around(t)
        others = np.zeros(len(self._loss))
        for at_zero, tilt in zip(self.logs(tilts) - tilts * self(t)[1], tilts, strict=True):
            np.minimum(others, at_zero + tilt * self._loss, out=others)
        exponent = self._log + others
        ends = [*self._starts[1:], len(exponent)]
        best = [int(a + np.argmax(exponent[a:b])) for a, b in zip(self._starts, ends, strict=True)]
        return [float(self._loss[i]) for i in best]

    def shifted(self, offsets: Sequence[float]) -> Cumulants:
        """Return the cumulants with each part's losses lowered by its offset."""
        other = copy.copy(self)
        other._loss = self._loss - np.asarray(offsets)[self._segment]
        other.offset = float(self._times @ np.asarray(offsets))
        other._returned = {}
        return other

    def spreading(self, t: float, mesh: float) -> float:
        """Return n E[(L-l)(r-L)] for the lattice cell [l, r] around L, tilted by t: the variance that the
        mesh adds."""
        exponent = self._log + t * self._loss
        weight = np.exp(exponent - np.maximum.reduceat(exponent, self._starts)[self._segment])
        # L - l
        remainder = np.mod(self._loss, mesh)
        total = np.add.reduceat(weight, self._starts)
        return float(
            self._times @ (np.add.reduceat(weight * remainder * (mesh - remainder), self._starts) / total)
        )

    def inflation(self, plan: LatticePlan, slope: float) -> float:
        """Return about what the mesh adds to epsilon: (slope + 1) / 2 times n E[(L-l)(r-L)], where L is
        distributed as one step's loss given that the sum is near epsilon; slope is -d log(delta) / d
        epsilon."""
        exponent = self._log + plan.others(self._loss)
        weight = np.exp(exponent - np.maximum.reduceat(exponent, self._starts)[self._segment])
        remainder = np.mod(self._loss, plan.mesh)
        added_variance = np.add.reduceat(weight * remainder * (plan.mesh - remainder), self._starts)
        return (
            0.5 * (slope + 1) * float(self._times @ (added_variance / np.add.reduceat(weight, self._starts)))
        )

    def __call__(self, t: float) -> tuple[float, float, float]:
        """Return k(t), k'(t) and k''(t): the log moment, the mean and the variance of the tilted sum."""
        if t not in self._returned:
            self._returned[t] = self._tilted(t)
        return self._returned[t]

    def _tilted(self, t: float) -> tuple[float, float, float]:
        exponent = self._log + t * self._loss
        peak = np.maximum.reduceat(exponent, self._starts)
        weight = np.exp(exponent - peak[self._segment])
        total = np.add.reduceat(weight, self._starts)
        mean = np.add.reduceat(weight * self._loss, self._starts) / total
        spread = np.add.reduceat(weight * (self._loss - mean[self._segment]) ** 2, self._starts) / total
        n = self._times
        return float(n @ (peak + np.log(total))), float(n @ mean), float(n @ spread)

    def logs(self, t: Array) -> Array:
        """Return log E exp(t S) for many t at once."""
        total = np.zeros(len(t))
        ends = [*self._starts[1:], len(self._loss)]
        for a, b, n in zip(self._starts, ends, self._times, strict=True):
            total += n * log_sums(t, self._loss[a:b], self._log[a:b])
        return total

    def log_delta(self, t: float) -> float:
        """Return about log delta at epsilon = k'(t), the mean of the sum tilted by t, if the tilted sum is
        taken to be normal."""
        k, k1, k2 = self(t)
        sd = math.sqrt(max(k2, 1e-300))
        a = t * sd
        # `gap` is E[e^(-t X) (1 - e^-X)+] for X normal with mean 0 and this sd; for a small sd to first order
        # in sd, and kept away from 0, where the difference cancels.
        tail = 0.5 * float(erfcx(a / math.sqrt(2)))
        if sd < 1e-3:
            gap = sd * max(1 / math.sqrt(2 * math.pi) - a * tail, 1e-2 / (1 + a * a))
        else:
            gap = tail - 0.5 * float(erfcx((a + sd) / math.sqrt(2)))
        return k - t * k1 + math.log(max(gap, 1e-300))


def _root(f: Callable[[float], float], start: float, limit: float, tolerance: float) -> float:
    """Return a zero of decreasing f on (0, limit], or the end nearest to it. A bracket is widened from
    `start`, then narrowed by the Illinois method (false position, halving the value at an end that stays) in
    log t, until |f| < tolerance."""
    lo, hi = math.log(start), math.log(start)
    flo = fhi = f(start)
    while flo < 0 and lo > math.log(start) - 30:
        lo, hi, fhi = lo - 1.0, lo, flo
        flo = f(math.exp(lo))
    if flo < 0:
        return math.exp(lo)
    while fhi > 0:
        if hi >= math.log(limit):
            return limit
        hi, lo, flo = min(hi + 1.0, math.log(limit)), hi, fhi
        fhi = f(math.exp(hi))
    side = 0
    for _ in range(60):
        has_chord = math.isfinite(flo) and math.isfinite(fhi) and flo > fhi
        middle = (lo * fhi - hi * flo) / (fhi - flo) if has_chord else 0.5 * (lo + hi)
        value = f(math.exp(middle))
        if abs(value) < tolerance:
            return math.exp(middle)
        if value > 0:
            lo, flo = middle, value
            fhi, side = (fhi / 2, 1) if side == 1 else (fhi, 1)
        else:
            hi, fhi = middle, value
            flo, side = (flo / 2, -1) if side == -1 else (flo, -1)
    return math.exp(0.5 * (lo + hi))


def tilt_for_delta(k: Cumulants, delta: float) -> float:
    """Return the tilt t whose mean k'(t) is about the epsilon at delta."""
    sd = math.sqrt(max(k(0.0)[2], 1e-300))
    log_target = math.log(delta)
    return _root(
        lambda t: k.log_delta(t) - log_target, 2.0 / sd, 200.0 / sd * math.sqrt(-log_target + 1), 0.02
    )


def tilt_for_epsilon(k: Cumulants, epsilon: float) -> float:
    """Return the tilt that centers the sum at epsilon, or half a standard deviation above its mean if that is
    larger: with hardly any tilt, mass from outside the cyclic window would not get a small weight."""
    _, mean, spread = k(0.0)
    sd = math.sqrt(max(spread, 1e-300))
    target = max(epsilon, mean + 0.5 * sd)
    root = _root(lambda t: (target - k(t)[1]) / sd, 1.0 / sd, 1000.0 / sd, 0.02)
    # The largest possible sum may be below that mean plus half a deviation, and the root would be huge.
    return root if target == epsilon else min(root, 1.0 / sd)


def _edge(k: Cumulants, theta: float, sign: int, sd: float, alias: float) -> tuple[float, float]:
    """Return an exponent s, and the loss above which (sign 1) or below which (sign -1) Chernoff's bound with
    s on the mass of the sum tilted by theta is exp(-alias). `sd` is a standard deviation to start from."""
    base = k(theta)[0]

    def above_target(s: float) -> float:
        value, mean, _ = k(theta + sign * s)
        return value - base - sign * s * mean + alias

    s = _root(above_target, math.sqrt(2 * alias) / sd, 10 * math.sqrt(alias) / sd, 0.5)
    return s, sign * (k(theta + sign * s)[0] - base + alias) / s


def likely_least(k: Cumulants, alias: float) -> float:
    """Return the loss below which Chernoff's bound on the probability of the sum is exp(-alias)."""
    return _edge(k, 0.0, -1, math.sqrt(max(k(0.0)[2], 1e-300)), alias)[1]


def plan(
    k: Cumulants, theta: float, mesh: float | None = None, alias: float = 15.0, factor: float = 1.0
) -> LatticePlan:
    """Return the window and the mesh for epsilon = k'(theta), computed under a tilt of factor * theta.

    `mesh`, if given, is used as it is: all losses lie on it, or it was chosen before. `alias` is -log of the
    mass, relative to delta, that the cyclic window may misplace.
    """
    _, epsilon, spread = k(theta)
    sd = math.sqrt(max(spread, 1e-300))
    t = factor * theta
    log_delta = k.log_delta(theta) if k.log_goal is None else k.log_goal
    # The log of delta / e^(k(t) - t epsilon): delta as a share of the tilted mass.
    log_delta_tilted = log_delta - (k(t)[0] - t * epsilon)
    alias = alias + max(0.0, -log_delta_tilted - 3.0)
    up, high = _edge(k, t, 1, sd, alias)
    # Delta falls about as e^(-theta epsilon): at `first` it is about e^3 times as large as at epsilon.
    first = epsilon - 3.0 / max(theta, 1e-3 / sd)
    high = max(high, epsilon + 1e-6 * sd)
    # At this width exp(-t * width) is e^-alias delta.
    width = (alias - log_delta) / max(t, 1e-12 / sd)
    down, low = (None, first) if width < 1.5 * (high - first) else _edge(k, t, -1, sd, alias)
    high = max(high, first + width) if down is None else high
    step = mesh or _mesh(k, theta, max(epsilon + k.offset, 0.02 * sd), high - low)
    # A stronger tilt would concentrate all mass on one lattice point, and weights would underflow.
    if t * step > _STEEPEST:
        return plan(k, theta, step, alias, 0.99 * _STEEPEST / (theta * step))
    low = min(first, low)
    # Rounding is compared with P(loss >= epsilon), about (theta + 1) delta; 4e-14 per step is its rough size.
    tail = log_delta_tilted + math.log1p(theta)
    precise = math.log(k.steps * 4e-14) - tail > _PRECISE
    if precise and mesh is None:
        step = short_mantissa(max(step, (high - low) / _MAX_PRECISE_POINTS))
    return LatticePlan(
        t,
        epsilon,
        k(t)[1],
        step,
        first,
        low,
        high,
        up,
        down,
        precise and high - low < 2 * _MAX_PRECISE_POINTS * step,
    )


def narrowest(k: Cumulants, theta: float, mesh: float | None = None, alias: float = 15.0) -> LatticePlan:
    """Return the plan with the fewest lattice points, among several tilts: where rare huge losses would
    dominate the tilted distribution, a weaker tilt needs a much smaller window.

    A weaker tilt is tried as long as it makes delta at most e^bearable times smaller as a share of the tilted
    mass, and rounding does not become visible.
    """
    first = best = plan(k, theta, mesh, alias)
    rare = k(theta)[2] > _RARE * k(0.7 * theta)[2]
    if best.points < 2**15 and not rare:
        return best
    # rounding, about 4e-14 per step, times 2e9 / steps is still below 1e-4
    bearable = max(1.0, math.log(2e9 / k.steps)) if best.points >= 2**15 else 1.0
    for factor in (0.85, 0.7, 0.55, 0.4):
        other = plan(k, theta, first.mesh, alias, factor)
        # The log of the factor by which the weaker tilt makes delta smaller as a share of the tilted mass.
        lost = k(other.theta)[0] - other.theta * first.epsilon - k(theta)[0] + theta * first.epsilon
        slower = other.precise and not first.precise
        if slower or lost > bearable or (lost > 1.0 and _blurred(k, other, first.epsilon)):
            break
        if other.points < 0.9 * best.points:
            best = other
        elif not rare:
            break
    return best


def _blurred(k: Cumulants, plan: LatticePlan, epsilon: float) -> bool:
    """Return whether rounding would be a visible share (`_BLURRED`) of P(loss >= epsilon) under this plan.

    2e-17 and 4e-14 are the rough sizes of rounding per step in the widest type and in doubles.
    """
    if k.log_goal is None:
        return False
    tail = k.log_goal - (k(plan.theta)[0] - plan.theta * epsilon) + math.log1p(plan.theta)
    return math.log(k.steps * (2e-17 if plan.precise else 4e-14)) - tail > _BLURRED


def _mesh(k: Cumulants, theta: float, scale: float, width: float) -> float:
    """Return about the widest mesh that adds at most INFLATION * scale to epsilon; `width` is that of the
    window.

    Moving a loss L to the ends l, r of its cell adds (theta+1)/2 E[(L-l)(r-L)] per step: (theta+1) h²/12
    where losses are spread out, much less where they cluster at a lattice point.
    """
    target = INFLATION * scale / (0.5 * (theta + 1))
    mesh = math.sqrt(6 * target / k.steps)
    while mesh < 0.01 * width and k.spreading(theta, 2 * mesh) < target:
        mesh *= 2
    return short_mantissa(max(mesh, width / _MAX_POINTS))


def short_mantissa(mesh: float) -> float:
    """Return the mesh rounded down to 20 significant bits, so that every multiple that occurs is an exact
    float. This saves rounding errors, but the bounds cover them anyway: a mesh that all losses lie on is not
    rounded."""
    mantissa, exponent = math.frexp(mesh)
    return math.ldexp(math.floor(mantissa * 2**20), exponent - 20)


def first_plan(k: Cumulants, theta: float, factor: float) -> LatticePlan:
    """Return the plan of a first pass: a mesh wider by `factor`, a weaker tilt, and a window that begins far
    below the estimate, which may be much too high. It begins so that the estimate is among the losses that
    `convolution` reads, which are at most `READ` above its beginning."""
    sd = math.sqrt(max(k(theta)[2], 1e-300))
    weaker = plan(k, theta, factor=0.8)
    first = max(min(-k.offset, weaker.first), weaker.epsilon - min(30 * sd, 0.5 * READ))
    return with_mesh(weaker._replace(first=first, low=min(first, weaker.low)), factor)


def with_mesh(plan: LatticePlan, factor: float) -> LatticePlan:
    """Return the plan with the same window and a mesh wider or finer by `factor`."""
    return plan._replace(mesh=short_mantissa(max(plan.mesh * factor, (plan.high - plan.low) / _MAX_POINTS)))


def _around(theta: float) -> Array:
    """Return tilts from a fortieth to forty times theta."""
    return np.asarray(max(theta, 1e-300) * np.geomspace(1 / 40, 40, 41))


def with_contributions(
    plan: LatticePlan, k: Cumulants, seen: tuple[Array, Array] | None = None
) -> LatticePlan:
    """Return the plan with a rough curve of delta, which `LatticePlan.others` reads: the curve `seen` in the
    pass before (epsilons and log delta), or Chernoff's bound on it."""
    if seen is not None:
        return plan._replace(at=seen[0], log_delta=np.minimum(seen[1], 0.0))
    tilts = _around(plan.theta)
    at = np.linspace(plan.low, max(plan.epsilon, plan.low) + 1e-3 * (plan.high - plan.low), 200)
    log = np.min(k.logs(tilts)[:, None] - np.multiply.outer(tilts, at), axis=0)
    return plan._replace(at=at, log_delta=np.minimum(log, 0.0))


def graded_indices(nodes: Nodes, plan: LatticePlan, coarse: float) -> Index:
    """Return the lattice indices that serve as knots of one step's losses: dense where losses contribute most
    to delta, sparser in the tails, where the width of cells is proportional to (tail mass)^(-1/3).

    A loss l of one step contributes its mass times the delta of the other steps at epsilon - l. The tail mass
    of a loss is the share of all contributions beyond it, on the nearer side. For many small steps the
    contributions are the tilted distribution; for rare huge losses they also hold the many small losses,
    which the tilted distribution hardly has. Cells begin to widen at a tail mass of `coarse`, which adds
    about 6 * `coarse` times the variance that the mesh adds anyway.
    """
    mesh, theta = plan.mesh, plan.theta
    first, last = math.floor(nodes.loss[0] / mesh), math.ceil(nodes.loss[-1] / mesh)
    if last - first < _ALL:
        return np.arange(first - 1, last + 2, dtype=np.int64)
    with np.errstate(divide="ignore"):
        log = np.log(nodes.weight) + plan.others(nodes.loss)
    weight = np.exp(log - log.max())
    cumulated = np.cumsum(weight)
    tail = np.minimum(cumulated, cumulated[-1] - cumulated + weight) / cumulated[-1]
    width = np.maximum(0.8, np.cbrt(coarse / np.maximum(tail, 1e-300)))
    # Above the peak cells are at most as wide as the mesh, or as 0.03 / (theta + 1), over which
    # e^((theta + 1) loss) changes by 3%.
    widest = np.where(np.arange(len(weight)) > np.argmax(weight), max(0.8 * mesh, 0.03 / (theta + 1)), np.inf)
    width = np.minimum(width * mesh, widest)
    steps = np.diff(nodes.loss) * 0.5 * (1 / width[1:] + 1 / width[:-1])
    position = np.concatenate(([0.0], np.cumsum(steps)))
    position *= min(1.0, _MAX_POINTS / 2 / position[-1])
    loss = np.interp(np.arange(math.floor(position[-1]) + 1.0), position, nodes.loss)
    # -1, 0 and 1 are the lattice points around the offset of the part
    index = np.concatenate(([first - 1, first, -1, 0, 1], np.rint(loss / mesh), [last, last + 1])).astype(
        np.int64
    )
    return np.unique(np.clip(index, first - 1, last + 1))


def neighboring_indices(loss: Array, mesh: float) -> Index:
    """Return the nearest two lattice indices below and the nearest two above each of finitely many losses."""
    # Unique twice, because many losses may have one cell: half a million of a wide discrete Gaussian.
    floor = np.unique(np.floor(loss / mesh).astype(np.int64))
    return np.unique(np.concatenate((floor - 1, floor, floor + 1, floor + 2)))
