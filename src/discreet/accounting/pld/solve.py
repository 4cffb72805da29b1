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
from .pairs import basic_pairs
from .pairs.basic_pairs import ROUNDED, Array, DominatingPair

# The share of delta that truncated tails may cost.
_TAIL = 2e-6
# How much wider than planned the mesh of the first pass is.
_COARSER = 8.0
# The largest number of passes after the first.
_PASSES = 7
# The factor of the planned mesh where delta is computed, which is more sensitive to the mesh than epsilon.
_FINER = 0.3
# The relative error of epsilon, estimated from two meshes, above which a finer mesh is tried.
_ACCEPTED = 5e-5
# The largest number of lattice points of a finer mesh; half of it in the widest floating-point type, which is
# slower.
_LARGEST = 2**22
# The relative width of an interval of one release at which the lattice is not tried.
_TIGHT = 8e-5
# The relative width of an interval from which on a lower end is computed on a finer mesh, too.
_WIDE = 2e-4


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


# The least delta at which the lattice is asked: far below it tail probabilities of cells leave the range of
# floats, whose error is no longer relative to them, and bounds would not hold.
LEAST_DELTA = 1e-60


class Solver:
    """Computes bounds of one composition in one direction, for deltas near the one it is made for.

    `mesh` is the lattice that all losses lie on already, or None if the mesh is to be planned. `finest` and
    `points` are the mesh and the size of the last pass, `alias` is -log of the share of delta that the cyclic
    window may misplace, `capping` says whether losses may be capped, and `seen` is the curve of delta of the
    last pass, for planning the next one.
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
        self.k, self.log_delta = k.shifted(offsets), math.log(delta)
        self.k.log_goal = self.log_delta
        self.offset = math.fsum(part.times * part.offset for part in self.parts)
        self.finest, self.points = math.inf, 0.0
        self.alias, self.capping = 15.0, True
        self.seen: tuple[Array, Array] | None = None

    def _of_one(self, delta: float, side: int) -> float:
        """Return a lower (side 0) or an upper bound on epsilon of one release, by its tail probabilities; of
        several 0 or infinity."""
        pair, times = self.parts[0][:2]
        if len(self.parts) > 1 or times > 1 or pair.discrete:
            return (0.0, math.inf)[side]
        return basic_pairs.bisected(lambda x: basic_pairs.delta(pair, x), delta, 1.0, side)

    def epsilon_above(self, delta: float, enough: float = -1.0) -> float:
        """Return a certified upper bound on epsilon; passes end early once it is at most `enough`."""
        remaining = delta - self.infinite_above
        if remaining <= 0:
            return math.inf
        of_one = self._of_one(remaining, 1)
        if remaining < LEAST_DELTA:
            return of_one
        # a delta that was rounded up much is left to the lattice
        if of_one < math.inf and basic_pairs.delta(self.parts[0].pair, of_one * (1 - _TIGHT))[0] >= remaining:
            return of_one
        return min(of_one, self._lattice_above(delta, remaining, enough))

    def _lattice_above(self, delta: float, remaining: float, enough: float) -> float:
        """Return the best upper bound on epsilon of several passes, with finer meshes as long as they help.

        `remaining` is delta less the mass at infinite loss. `last` and `last_mesh` are the bound and the mesh
        of the pass before, and `shrink` is the factor by which the planned mesh is made finer.
        """
        theta, shrink = self.theta, 1.0
        plan = (
            mesh.first_plan(self.k, theta, _COARSER)
            if self.mesh is None
            else mesh.plan(self.k, theta, self.mesh)
        )
        last, last_mesh = self._pass(mesh.with_contributions(plan, self.k), remaining), plan.mesh
        best, rough = last.epsilon, math.isfinite(last.epsilon)
        for _ in range(_PASSES):
            if best <= max(enough, 0.0):
                break
            if math.isfinite(best):
                # a first estimate of epsilon may be much too high until the losses are capped
                rough = self._cap_losses(best, last) and rough
            # a first tilt may be 0, where epsilon is near the mean: then a third over the deviation is tried
            stronger = max(1.5 * theta, 0.3 / math.sqrt(max(self.k(0.0)[2], 1e-300)))
            theta = mesh.tilt_for_epsilon(self.k, best - self.offset) if math.isfinite(best) else stronger
            self._allow(delta, last)
            if rough:
                plan = mesh.with_contributions(mesh.first_plan(self.k, theta, _COARSER), self.k)
            else:
                plan = mesh.narrowest(self.k, theta, self.mesh, self.alias)
                plan = plan if self.mesh else mesh.with_mesh(plan, shrink)
                plan = mesh.with_contributions(plan, self.k, self.seen)
            bound = self._pass(plan, remaining)
            is_near = abs(bound.epsilon - self.offset - plan.epsilon) * (theta + 1e-9) < 2
            if not rough and math.isfinite(bound.epsilon) and is_near:
                finer = self._finer(plan, bound, last, last_mesh)
                if finer is None:
                    best = min(best, bound.epsilon)
                    break
                shrink *= finer
            rough = rough and bound.epsilon < 0.9 * best
            best, last, last_mesh = min(best, bound.epsilon), bound, plan.mesh
        self.finest, self.points = plan.mesh, plan.points
        return best

    def _allow(self, delta: float, bound: CertifiedEpsilon) -> None:
        """Let less of delta be misplaced or cut off where delta hardly depends on epsilon."""
        log_sensitivity = self._sensitivity(bound)
        self.alias = 15.0 + log_sensitivity
        self.tail = max(delta * _TAIL * math.exp(-log_sensitivity), 1e-280)

    def _finer(
        self, plan: LatticePlan, bound: CertifiedEpsilon, last: CertifiedEpsilon, last_mesh: float
    ) -> float | None:
        """Return the factor of a finer mesh; None if the mesh is fine enough, or may not be finer.

        What the mesh added to epsilon is estimated from the difference between two passes (it grows with the
        square of the mesh), and from the spread of losses in their cells.
        """
        if self.mesh:
            return None
        error = (last.epsilon - bound.epsilon) / max((last_mesh / plan.mesh) ** 2 - 1, 1e-9)
        error = max(error, self.k.inflation(plan, bound.slope))
        if last_mesh > plan.mesh and error <= _ACCEPTED * bound.epsilon:
            return None
        wanted = math.sqrt(0.5 * _ACCEPTED * bound.epsilon / max(error, 1e-300))
        largest = _LARGEST >> 1 if plan.precise else _LARGEST
        finer = max(min(0.7, max(0.1, wanted)), plan.points / largest)
        return finer if finer <= 0.8 else None

    def _cap_losses(self, epsilon: float, last: CertifiedEpsilon) -> bool:
        """Cap the losses of one step so far above epsilon that the other steps hardly ever make up for them:
        where losses are huge and rare, they would need a tilt of their own. Return whether that changes any.

        There is no cap from then on that the `last` pass found nothing: where the other steps reveal almost
        nothing the cap is so near to epsilon that most of delta is infinite loss.
        """
        if self.mesh is not None:
            return False
        if math.isinf(last.epsilon):
            self.capping = False
        least = mesh.likely_least(self.k, self.alias) + self.offset
        cap = epsilon - min(least, 0.0) if self.capping else math.inf
        largest = max(float(part._replace(cap=math.inf).nodes(self.tail).loss[-1]) for part in self.parts)
        if cap >= largest and self.capping:
            return False
        self.parts = [part._replace(cap=cap) for part in self.parts]
        self.k = convolution.cumulants(self.parts, self.tail).shifted([part.offset for part in self.parts])
        self.k.log_goal = self.log_delta
        return self.capping

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
        best = self._of_one(remaining * (1 + ROUNDED), 0)
        if near * (1 - _TIGHT) <= best:
            return best
        plan = self._plan_near(near, 1.0)
        for finer in (1.0, 0.5):
            plan = mesh.with_contributions(plan._replace(mesh=finer * plan.mesh), self.k, self.seen)
            tests = convolution.tests(self.parts, plan, self.tail)
            best = max(best, convolution.epsilon_below(tests, remaining, self.offset))
            if self.mesh or near - best <= _WIDE * near or plan.points > _LARGEST >> 1:
                break
        return best

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
