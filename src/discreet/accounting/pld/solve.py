"""Computes epsilon and delta of a composition: a first pass on a coarse lattice, then passes on finer
lattices planned around its answer.

Every pass returns a certified bound, so that passes differ in tightness only and the best one is kept. The
constants below, and all of `planning`, change tightness and time, never whether a bound holds;
docs/proofs/pld.md reports what was measured with these values.

Symbols: `theta` is the tilt, the exponent of the weight e^(theta L) that a loss L gets before the transform;
`k` is the logarithm of the moment generating function of the sum of losses, for planning
(`mesh.Cumulants`); the losses of each part are counted from an `offset`, and `self.offset` is the sum of
the offsets of all steps, which is added to every epsilon in the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .lattice import convolution, mesh
from .lattice.convolution import CertifiedEpsilon, RepeatedPair
from .lattice.mesh import LatticePlan
from .line import ladder
from .line import line as steps_module
from .line.ladder import EpsilonInterval
from .pairs import basic_pairs
from .pairs.basic_pairs import ROUNDED, Array, DominatingPair
from .pairs.families import SampledGaussian

# The share of delta that truncated tails may cost.
_TAIL = 2e-6
# How much wider than planned the mesh of the first pass is.
_COARSER = 8.0
# The largest number of passes after the first.
_PASSES = 7
# The factor of the planned mesh where delta is computed, which is more sensitive to the mesh than epsilon.
_FINER = 0.3
# The relative error of epsilon, estimated from two meshes, above which a finer mesh is tried.
_ACCEPTED = 6e-5
# The number of lattice points from which on no finer mesh is tried; a quarter of it in the widest
# floating-point type, which is slower.
_LARGEST = 2**20
# The number of steps from which on the integral along a line is tried before the lattice.
_MANY = 64
# The relative distance from the upper bound at which a lower bound by the line is accepted.
_LOOSE = 5e-4
# The number of lattice points from which on the line is tried too.
_LONG = 2**17
# The relative width of the line's interval at which the lattice is not tried.
_TIGHT = 8e-5


class Composition(NamedTuple):
    """Holds the pairs of one direction with their counts, and an upper and a lower bound on the P-mass at
    infinite loss of all of them together."""

    parts: tuple[tuple[DominatingPair, int], ...]
    infinite_above: float = 0.0
    infinite_below: float = 0.0


def _lattice(parts: Sequence[tuple[DominatingPair, int]]) -> float | None:
    """Return the step of the lattice on which, up to an offset of each part, all losses lie; None if there is
    no such lattice."""
    steps = {pair.lattice[0] if pair.lattice else None for pair, _ in parts}
    return steps.pop() if len(steps) == 1 else None


class Solver:
    """Computes bounds of one composition in one direction, for deltas near the one it is made for.

    `mesh` is the lattice that all losses lie on already, or None if the mesh is to be planned. `finest` and
    `points` are the mesh and the size of the last pass, `alias` is -log of the share of delta that the cyclic
    window may misplace, `seen` is the curve of delta of the last pass, for planning the next one, and
    `line_interval` is a delta with the interval that `_interval_by_line` or `_line` gave for it.
    """

    def __init__(self, composition: Composition, delta: float) -> None:
        self.infinite_above, self.infinite_below = composition.infinite_above, composition.infinite_below
        self.tail = max(delta * _TAIL, 1e-280)
        unshifted = [RepeatedPair(pair, n) for pair, n in composition.parts]
        k = convolution.cumulants(unshifted, self.tail)
        self.theta = mesh.tilt_for_delta(k, delta)
        self.mesh = _lattice(composition.parts)
        if self.mesh is not None and self.mesh < 0.5 * mesh.plan(k, self.theta).mesh:
            # A wider mesh is accurate enough, and has fewer points.
            self.mesh = None
        offsets = k.center(self.theta)
        if self.mesh is not None:
            offsets = [pair.lattice[1] if pair.lattice else 0.0 for pair, _ in composition.parts]
        self.parts = [part._replace(offset=offset) for part, offset in zip(unshifted, offsets, strict=True)]
        self.k = k.shifted(offsets)
        self.k.log_goal = math.log(delta)
        self.offset = math.fsum(part.times * part.offset for part in self.parts)
        self.finest, self.points = math.inf, 0.0
        self.alias = 15.0
        self.seen: tuple[Array, Array] | None = None
        self.line_interval: tuple[float, EpsilonInterval | None] | None = None

    def _interval_by_line(self, delta: float) -> EpsilonInterval | None:
        """Return an interval of epsilon that needs no lattice: of one release by its tail probabilities, of
        many steps by the integral along a line; None if neither applies or the line gives none.

        The last interval is returned again if delta exceeds the one it was computed for by rounding only.
        """
        if self.line_interval is None or not self.line_interval[0] <= delta <= self.line_interval[0] * (
            1 + 0.5 * ROUNDED
        ):
            if len(self.parts) == 1 and self.parts[0].times == 1 and not self.parts[0].pair.discrete:
                start = max(self.k(self.theta)[1] + self.offset, 0.0)
                ends = basic_pairs.interval(self.parts[0].pair, delta, start, self.theta)
                self.line_interval = delta, ends and EpsilonInterval(*ends, self.theta)
            else:
                self.line_interval = delta, self._line(delta) if self.k.steps >= _MANY else None
        return self.line_interval[1]

    def _line(self, delta: float, near: EpsilonInterval | None = None) -> EpsilonInterval | None:
        """Return the interval of epsilon by the integral along a line, searched around `near`; None unless
        all parts are sampled Gaussians without further mass at infinite loss, or if the line would be too
        long."""
        steps = [
            (part.pair, part.times, part.offset)
            for part in self.parts
            if isinstance(part.pair, SampledGaussian)
        ]
        if len(steps) < len(self.parts) or self.infinite_above > 0:
            return None
        return ladder.solve(steps, self.k, self.theta, delta, near)

    def epsilon_above(self, delta: float, enough: float = -1.0) -> float:
        """Return a certified upper bound on epsilon; passes end early once it is at most `enough`."""
        remaining = delta - self.infinite_above
        if remaining <= 0:
            return math.inf
        interval = self._interval_by_line(remaining)
        if interval is not None and (
            interval.high <= enough or interval.high - interval.low <= _TIGHT * interval.high
        ):
            return interval.high
        bound = self._lattice_above(delta, remaining, enough)
        poor = max(enough, 0.0) < bound < math.inf and (
            self.points > _LONG or self._made_of_rare_losses(bound, delta)
        )
        if interval is None and poor:
            interval = self._line(remaining, EpsilonInterval(0.0, bound, self.theta))
            self.line_interval = remaining, interval
        return bound if interval is None else min(interval.high, bound)

    def _made_of_rare_losses(self, epsilon: float, delta: float) -> bool:
        """Return whether most of delta comes from rare huge losses, for which the bounds of a lattice are
        loose."""
        return steps_module.rare(
            self.k.logs, steps_module.Aim(epsilon - self.offset, math.log(delta), self.theta, 0.0)
        )

    def _lattice_above(self, delta: float, remaining: float, enough: float) -> float:
        """Return the best upper bound on epsilon of several passes, with finer meshes as long as they help.

        `remaining` is delta less the mass at infinite loss. In each pass `log_sensitivity` lets less of delta
        be misplaced or cut off where delta hardly depends on epsilon, and `error` estimates what the mesh
        added to epsilon: from the difference between two passes (it grows with the square of the mesh), and
        from the spread of losses in their cells. `previous` and `previous_mesh` are the bound and the mesh of
        the pass before, and `shrink` is the factor by which the planned mesh is made finer.
        """
        theta, shrink = self.theta, 1.0
        plan = (
            mesh.first_plan(self.k, theta, _COARSER)
            if self.mesh is None
            else mesh.plan(self.k, theta, self.mesh)
        )
        previous, previous_mesh = self._pass(mesh.with_contributions(plan, self.k), remaining), plan.mesh
        best = previous.epsilon
        for _ in range(_PASSES):
            if best <= max(enough, 0.0):
                break
            theta = mesh.tilt_for_epsilon(self.k, best - self.offset) if math.isfinite(best) else theta * 1.5
            log_sensitivity = self._sensitivity(previous)
            self.alias, self.tail = (
                15.0 + log_sensitivity,
                max(delta * _TAIL * math.exp(-log_sensitivity), 1e-280),
            )
            plan = mesh.narrowest(self.k, theta, self.mesh, self.alias)
            plan = mesh.with_contributions(
                plan if self.mesh else mesh.with_mesh(plan, shrink), self.k, self.seen
            )
            bound = self._pass(plan, remaining)
            best = min(best, bound.epsilon)
            if (
                math.isfinite(bound.epsilon)
                and abs(bound.epsilon - self.offset - plan.epsilon) * (theta + 1e-9) < 2
            ):
                if self.mesh or plan.points > (_LARGEST >> 2 if plan.precise else _LARGEST):
                    break
                error = (previous.epsilon - bound.epsilon) / max((previous_mesh / plan.mesh) ** 2 - 1, 1e-9)
                error = max(error, self.k.inflation(plan, bound.slope))
                if previous_mesh > plan.mesh and error <= _ACCEPTED * bound.epsilon:
                    break
                shrink *= min(0.7, max(0.1, math.sqrt(0.5 * _ACCEPTED * bound.epsilon / max(error, 1e-300))))
            previous, previous_mesh = bound, plan.mesh
        self.finest, self.points = plan.mesh, plan.points
        return best

    def _pass(self, plan: LatticePlan, delta: float) -> CertifiedEpsilon:
        """Return the upper bound on epsilon on the lattice of a plan; keep its curve for the next plan."""
        curve = convolution.curve(self.parts, plan, self.tail)
        bound = convolution.epsilon_above(curve, delta, self.offset)
        self.seen = curve.seen() if math.isfinite(bound.epsilon) else None
        return bound

    def _sensitivity(self, bound: CertifiedEpsilon) -> float:
        """Return the log, limited to between 0 and 15, of the factor by which a relative error of epsilon is
        larger than the relative error of delta that causes it: by so much less of delta may be misplaced."""
        product = bound.slope * bound.epsilon
        return min(max(0.0, -math.log(product)), 15.0) if 0 < product < math.inf else 0.0

    def _plan_near(self, epsilon: float, alias_factor: float = 0.0) -> LatticePlan:
        """Return a plan around epsilon, with a mesh no wider than that of the passes before. `alias_factor`
        times log(1 + theta) is added to `alias`: misplaced mass is subtracted from lower bounds."""
        theta = mesh.tilt_for_epsilon(self.k, epsilon - self.offset)
        plan = mesh.narrowest(self.k, theta, self.mesh, self.alias + alias_factor * math.log1p(theta))
        return plan._replace(mesh=min(plan.mesh, self.finest))

    def epsilon_below(self, delta: float, near: float) -> float:
        """Return a certified lower bound on epsilon, searched around `near`, an upper bound on it."""
        remaining = delta - self.infinite_below
        if remaining <= 0:
            return math.inf
        interval = self._interval_by_line(remaining)
        if interval is not None and near - interval.low <= _LOOSE * near:
            return interval.low
        plan = self._plan_near(near, 1.0)
        if interval is None and plan.points > _LONG:
            interval = self._line(remaining, EpsilonInterval(0.0, near, self.theta))
            if interval is not None and near - interval.low <= _LOOSE * near:
                return interval.low
        bound = convolution.epsilon_below(
            convolution.tests(self.parts, mesh.with_contributions(plan, self.k, self.seen), self.tail),
            remaining,
            self.offset,
        )
        if interval is None and near - bound > _TIGHT * near:
            interval = self._line(remaining, EpsilonInterval(bound, near, self.theta))
        return bound if interval is None else max(bound, interval.low)

    def delta_above(self, epsilon: float) -> float:
        """Return a certified upper bound on delta."""
        plan = self._plan_near(epsilon)
        plan = plan if self.mesh else mesh.with_mesh(plan, _FINER)
        # No tilt centers the distribution at an epsilon below its mean: the window is extended to it instead.
        least = epsilon - self.offset - 2 * plan.mesh
        plan = plan._replace(first=min(plan.first, least), low=min(plan.low, least))
        curve = convolution.curve(self.parts, mesh.with_contributions(plan, self.k, self.seen), self.tail)
        return min(
            1.0, (convolution.delta_above(curve, epsilon - self.offset) + self.infinite_above) * (1 + 1e-15)
        )

    def delta_below(self, epsilon: float) -> float:
        """Return a certified lower bound on delta."""
        tests = convolution.tests(
            self.parts, mesh.with_contributions(self._plan_near(epsilon, 1.0), self.k), self.tail
        )
        return min(
            1.0, (convolution.delta_below(tests, epsilon - self.offset) + self.infinite_below) * (1 - 1e-15)
        )


def guess_delta(parts: Sequence[tuple[DominatingPair, int]], epsilon: float) -> float:
    """Return a rough estimate of delta at epsilon, by which tails are cut; no bound rests on it."""
    k = convolution.cumulants([RepeatedPair(pair, n) for pair, n in parts], 1e-40)
    return math.exp(max(min(k.log_delta(max(mesh.tilt_for_epsilon(k, epsilon), 1e-12)), -0.1), -600.0))
