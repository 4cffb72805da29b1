"""From a composition to epsilon and delta: look coarsely, plan again around what was seen, read the certified
bound.

Every pass returns a valid bound, so passes differ in tightness only and the best one is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .lattice import engine, planning
from .lattice.engine import CertifiedEpsilon, RepeatedPair
from .lattice.planning import LatticePlan
from .line import ladder
from .line import steps as steps_module
from .line.ladder import EpsilonInterval
from .pairs import single
from .pairs.arrays import Array
from .pairs.cells import DominatingPair
from .pairs.crossing import ROUNDED
from .pairs.sampled import SampledGaussian

# share of delta that truncated tails may cost
_TAIL = 2e-6
# How much wider than planned the mesh of the first look is.
_COARSER = 8.0
# Passes at most: each returns a valid bound, and the best is kept.
_PASSES = 7
# mesh for delta, which is more sensitive than epsilon
_FINER = 0.3
# relative error of epsilon, estimated from two meshes, above which a finer mesh is tried
_ACCEPTED = 6e-5
# Lattice points from which on no finer mesh is tried.
_LARGEST = 2**20
# steps from which on the integral along a line is tried before the lattice
_MANY = 64
# The relative distance from the upper bound at which a lower one is good enough.
_LOOSE = 5e-4
# lattice points from which on a line is tried first
_LONG = 2**17
# relative width of its interval that makes the lattice superfluous
_TIGHT = 8e-5


class Composition(NamedTuple):
    """One direction: pairs with their counts, and bounds on the probability that something had infinite
    loss."""

    parts: tuple[tuple[DominatingPair, int], ...]
    infinite_above: float = 0.0
    infinite_below: float = 0.0


def _lattice(parts: Sequence[tuple[DominatingPair, int]]) -> float | None:
    """Return the step of the lattice on which, up to a shift of each part, all losses lie."""
    steps = {pair.lattice[0] if pair.lattice else None for pair, _ in parts}
    return steps.pop() if len(steps) == 1 else None


class Solver:
    """The passes over one composition in one direction."""

    def __init__(self, composition: Composition, delta: float) -> None:
        self.infinite_above, self.infinite_below = composition.infinite_above, composition.infinite_below
        self.tail = max(delta * _TAIL, 1e-280)
        plain = [RepeatedPair(pair, n) for pair, n in composition.parts]
        k = engine.cumulants(plain, self.tail)
        self.theta = planning.tilt_for_delta(k, delta)
        self.mesh = _lattice(composition.parts)
        if self.mesh is not None and self.mesh < 0.5 * planning.plan(k, self.theta).mesh:
            # so fine that a wider mesh will do
            self.mesh = None
        offsets = k.center(self.theta)
        if self.mesh is not None:
            offsets = [pair.lattice[1] if pair.lattice else 0.0 for pair, _ in composition.parts]
        self.parts = [part._replace(offset=offset) for part, offset in zip(plain, offsets, strict=True)]
        self.k = k.shifted(offsets)
        self.k.log_goal = math.log(delta)
        self.offset = math.fsum(part.times * part.offset for part in self.parts)
        self.finest, self.points = math.inf, 0.0
        self.alias = 15.0
        self.seen: tuple[Array, Array] | None = None
        self.line_interval: tuple[float, EpsilonInterval | None] | None = None

    def _interval_by_line(self, delta: float) -> EpsilonInterval | None:
        """Return the interval without a lattice, where that is at hand; the last one if delta differs from
        its own by rounding only."""
        if self.line_interval is None or not self.line_interval[0] <= delta <= self.line_interval[0] * (
            1 + 0.5 * ROUNDED
        ):
            if len(self.parts) == 1 and self.parts[0].times == 1 and not self.parts[0].pair.discrete:
                near = max(self.k(self.theta)[1] + self.offset, 0.0)
                alone = single.interval(self.parts[0].pair, delta, near, self.theta)
                self.line_interval = delta, alone and EpsilonInterval(*alone, self.theta)
            else:
                self.line_interval = delta, self._line(delta) if self.k.steps >= _MANY else None
        return self.line_interval[1]

    def _line(self, delta: float, near: EpsilonInterval | None = None) -> EpsilonInterval | None:
        """Return the interval by the integral along a line, if all there is are sampled Gaussians."""
        steps = [
            (part.pair, part.times, part.offset)
            for part in self.parts
            if isinstance(part.pair, SampledGaussian)
        ]
        if len(steps) < len(self.parts) or self.infinite_above > 0:
            return None
        return ladder.solve(steps, self.k, self.theta, delta, near)

    def epsilon_above(self, delta: float, enough: float = -1.0) -> float:
        """Return a certified upper bound on epsilon; stops early once it is known to be at most `enough`."""
        left = delta - self.infinite_above
        if left <= 0:
            return math.inf
        interval = self._interval_by_line(left)
        if interval is not None and (
            interval.high <= enough or interval.high - interval.low <= _TIGHT * interval.high
        ):
            return interval.high
        bound = self._lattice_above(delta, left, enough)
        poor = max(enough, 0.0) < bound < math.inf and (
            self.points > _LONG or self._made_of_rare_losses(bound, delta)
        )
        if interval is None and poor:
            interval = self._line(left, EpsilonInterval(0.0, bound, self.theta))
            self.line_interval = left, interval
        return bound if interval is None else min(interval.high, bound)

    def _made_of_rare_losses(self, epsilon: float, delta: float) -> bool:
        """Return whether delta is made of rare huge losses, for which a lattice is a poor place."""
        return steps_module.rare(
            self.k.logs, steps_module.Aim(epsilon - self.offset, math.log(delta), self.theta, 0.0)
        )

    def _lattice_above(self, delta: float, left: float, enough: float) -> float:
        """Return an upper bound on epsilon by the lattice, with finer meshes as long as they help."""
        theta, shrink = self.theta, 1.0
        plan = (
            planning.first_plan(self.k, theta, _COARSER)
            if self.mesh is None
            else planning.plan(self.k, theta, self.mesh)
        )
        before, width = self._look(planning.with_contributions(plan, self.k), left), plan.mesh
        best = before.epsilon
        for _ in range(_PASSES):
            if best <= max(enough, 0.0):
                break
            theta = (
                planning.tilt_for_epsilon(self.k, best - self.offset) if math.isfinite(best) else theta * 1.5
            )
            extra = self._sensitivity(before)
            self.alias, self.tail = 15.0 + extra, max(delta * _TAIL * math.exp(-extra), 1e-280)
            plan = planning.narrowest(self.k, theta, self.mesh, self.alias)
            plan = planning.with_contributions(
                plan if self.mesh else planning.with_mesh(plan, shrink), self.k, self.seen
            )
            bound = self._look(plan, left)
            best = min(best, bound.epsilon)
            if (
                math.isfinite(bound.epsilon)
                and abs(bound.epsilon - self.offset - plan.epsilon) * (theta + 1e-9) < 2
            ):
                if self.mesh or plan.points > (_LARGEST >> 2 if plan.precise else _LARGEST):
                    break
                wrong = (before.epsilon - bound.epsilon) / max((width / plan.mesh) ** 2 - 1, 1e-9)
                wrong = max(wrong, self.k.inflation(plan, bound.slope))
                if width > plan.mesh and wrong <= _ACCEPTED * bound.epsilon:
                    break
                shrink *= min(0.7, max(0.1, math.sqrt(0.5 * _ACCEPTED * bound.epsilon / max(wrong, 1e-300))))
            before, width = bound, plan.mesh
        self.finest, self.points = plan.mesh, plan.points
        return best

    def _look(self, plan: LatticePlan, delta: float) -> CertifiedEpsilon:
        curve = engine.curve(self.parts, plan, self.tail)
        bound = engine.epsilon_above(curve, delta, self.offset)
        self.seen = curve.seen() if math.isfinite(bound.epsilon) else None
        return bound

    def _sensitivity(self, bound: CertifiedEpsilon) -> float:
        """Return the log of how much a relative error of delta is magnified in epsilon; what is misplaced
        must be that much less."""
        product = bound.slope * bound.epsilon
        return min(max(0.0, -math.log(product)), 15.0) if 0 < product < math.inf else 0.0

    def _near(self, epsilon: float, extra: float = 0.0) -> LatticePlan:
        theta = planning.tilt_for_epsilon(self.k, epsilon - self.offset)
        plan = planning.narrowest(self.k, theta, self.mesh, self.alias + extra * math.log1p(theta))
        return plan._replace(mesh=min(plan.mesh, self.finest))

    def epsilon_below(self, delta: float, near: float) -> float:
        """Return a certified lower bound on epsilon, looked for around `near`."""
        left = delta - self.infinite_below
        if left <= 0:
            return math.inf
        interval = self._interval_by_line(left)
        if interval is not None and near - interval.low <= _LOOSE * near:
            return interval.low
        plan = self._near(near, 1.0)
        if interval is None and plan.points > _LONG:
            interval = self._line(left, EpsilonInterval(0.0, near, self.theta))
            if interval is not None and near - interval.low <= _LOOSE * near:
                return interval.low
        bound = engine.epsilon_below(
            engine.tests(self.parts, planning.with_contributions(plan, self.k, self.seen), self.tail),
            left,
            self.offset,
        )
        if interval is None and near - bound > _TIGHT * near:
            interval = self._line(left, EpsilonInterval(bound, near, self.theta))
        return bound if interval is None else max(bound, interval.low)

    def delta_above(self, epsilon: float) -> float:
        """Return a certified upper bound on delta."""
        plan = self._near(epsilon)
        plan = plan if self.mesh else planning.with_mesh(plan, _FINER)
        # Below the center of the distribution the tilt does not reach: the window must.
        least = epsilon - self.offset - 2 * plan.mesh
        plan = plan._replace(first=min(plan.first, least), low=min(plan.low, least))
        curve = engine.curve(self.parts, planning.with_contributions(plan, self.k, self.seen), self.tail)
        return min(
            1.0, (engine.delta_above(curve, epsilon - self.offset) + self.infinite_above) * (1 + 1e-15)
        )

    def delta_below(self, epsilon: float) -> float:
        """Return a certified lower bound on delta."""
        tests = engine.tests(
            self.parts, planning.with_contributions(self._near(epsilon, 1.0), self.k), self.tail
        )
        return min(
            1.0, (engine.delta_below(tests, epsilon - self.offset) + self.infinite_below) * (1 - 1e-15)
        )


def guess_delta(parts: Sequence[tuple[DominatingPair, int]], epsilon: float) -> float:
    """Return a rough delta, only to know where tails may be cut."""
    k = engine.cumulants([RepeatedPair(pair, n) for pair, n in parts], 1e-40)
    return math.exp(max(min(k.log_delta(max(planning.tilt_for_epsilon(k, epsilon), 1e-12)), -0.1), -600.0))
