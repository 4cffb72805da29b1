"""Defines the basic pairs: point masses, Laplace noise and bounded range, and any pair seen through Poisson
sampling or through a sample of fixed size. (A mechanism has bounded range epsilon if all its losses lie in
some interval of that width, as those of the exponential mechanism do.)

P and Q are the two distributions of a pair, q the sampling rate, U the unit roundoff 2^-53. `measure`,
`nodes`, `lattice` and `discrete` are those of `cells.DominatingPair`: `nodes` are ascending losses
with about their P-masses, for planning, and `measure(edges, refs)` returns for each cell between two edges
its P-mass and its excess P - e^ref Q, with bounds on their errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .arrays import Array, U
from .cells import DominatingPair, LossCells, Nodes


@dataclass(frozen=True, eq=False)
class Atoms:
    """Holds P-masses at finitely many losses, ascending; Q-masses are mass * e^-loss.

    `mass_error` bounds the relative error of each mass, `loss_error` the absolute error of each loss.
    `lattice` is (step, offset) if every loss is offset + an integer times step.
    """

    loss: Array
    mass: Array
    lattice: tuple[float, float] | None = None
    mass_error: float = 8 * U
    loss_error: float = 0.0

    def nodes(self, tail: float) -> Nodes:
        return Nodes(self.loss, self.mass)

    @property
    def discrete(self) -> bool:
        return True

    def measure(self, edges: Array, refs: Array) -> LossCells:
        in_range = (self.loss >= edges[0]) & (self.loss < edges[-1])
        loss, mass = (self.loss, self.mass) if in_range.all() else (self.loss[in_range], self.mass[in_range])
        cell = np.searchsorted(edges, loss, side="right") - 1
        ref = refs[cell]
        ratio = np.exp(np.minimum(ref - loss, 700.0))
        excess = mass * -np.expm1(np.minimum(ref - loss, 700.0))
        loss_error = self.loss_error + 4 * U * (np.abs(loss) + np.abs(ref))
        error = np.abs(excess) * (self.mass_error + 4 * U) + mass * (1 + ratio) * loss_error
        columns = [np.bincount(cell, w, len(refs)).astype(np.float64) for w in (mass, excess, error)]
        # relative rounding error of sums of so many masses
        sum_error = 2 * U * len(mass)
        return LossCells(
            columns[0],
            columns[0] * (self.mass_error + sum_error),
            columns[1],
            columns[2] + sum_error * np.abs(columns[1]),
        )


@dataclass(frozen=True, slots=True)
class Wedge:
    """Is the pair with P(a < L < b) = weight (e^(b/2) - e^(a/2)) inside (-epsilon, epsilon), and atoms of
    mass `top` at epsilon and top * e^-epsilon at -epsilon.

    Laplace: weight = e^(-epsilon/2) / 2 and top = 1/2. Bounded range: weight = 1 / (2 sinh(epsilon/2)) and no
    atoms.
    """

    epsilon: float
    weight: float
    top: float

    @property
    def lattice(self) -> tuple[float, float] | None:
        return None

    def nodes(self, tail: float) -> Nodes:
        edges = np.linspace(-self.epsilon, self.epsilon, 200)
        middle = (edges[1:] + edges[:-1]) / 2
        inner = self.weight * np.exp(edges[:-1] / 2) * np.expm1(np.diff(edges) / 2)
        ends = [self.top * math.exp(-self.epsilon), self.top]
        loss = np.concatenate(([-self.epsilon], middle, [self.epsilon]))
        return Nodes(loss, np.concatenate((ends[:1], inner, ends[1:])))

    @property
    def discrete(self) -> bool:
        return False

    def measure(self, edges: Array, refs: Array) -> LossCells:
        clipped = np.clip(edges, -self.epsilon, self.epsilon)
        a, b = clipped[:-1], clipped[1:]
        gap = b - a
        mass = self.weight * np.exp(a / 2) * np.expm1(gap / 2)
        # Between the atoms, P - e^c Q of a cell [a, b] with ref c is 2 w e^(c/2) (cosh((b-c)/2) -
        # cosh((a-c)/2)), w the weight; written as a product of hyperbolic sines it loses no digits.
        excess = 4 * self.weight * np.exp(refs / 2) * np.sinh((a + b - 2 * refs) / 4) * np.sinh(gap / 4)
        excess = np.where(gap > 0, excess, 0.0)
        size = np.maximum(np.abs(a), np.abs(b)) + np.abs(refs) + 1
        error = 16 * U * (np.abs(excess) + mass * size * (1 + np.exp(np.minimum(refs - a, 700.0))))
        for loss, atom in ((self.epsilon, self.top), (-self.epsilon, self.top * math.exp(-self.epsilon))):
            if not edges[0] <= loss < edges[-1]:
                continue
            i = int(np.searchsorted(edges, loss, side="right")) - 1
            # the excess per unit of mass at this loss
            per_mass = -math.expm1(min(refs[i] - loss, 700.0))
            mass[i] += atom
            excess[i] += atom * per_mass
            error[i] += 8 * U * atom * (abs(per_mass) + (2 - per_mass) * (abs(loss) + abs(float(refs[i]))))
        return LossCells(mass, 16 * U * mass * (1 + self.epsilon), excess, error)


def laplace(epsilon: float) -> Wedge:
    """Return the pair of Laplace noise of scale 1/epsilon, shifted by 1 (Dwork et al. 2006); vectors of l1
    norm 1 are dominated by it."""
    return Wedge(epsilon, math.exp(-epsilon / 2) / 2, 0.5)


def bounded_range(epsilon: float) -> Wedge:
    """Return the pair whose hockey-stick curve (delta at every epsilon) is the largest of all mechanisms of
    bounded range epsilon.

    Proof: losses lie in some [t - epsilon, t]; the pair is dominated by the one with both ends as atoms (a
           mean-preserving spread of Q/P), whose delta at x is
           (e^epsilon - e^t)(1 - e^(x-t)) / (e^epsilon - 1), largest at t = (epsilon + x) / 2 (Dong, Durfee &
           Rogers 2020, arXiv:1909.13830). The supremum over t of curves convex in e^x is convex, hence the
           curve of a pair (Zhu, Dong & Wang 2022, arXiv:2106.08567):
           (e^(epsilon/2) - e^(x/2))² / (e^epsilon - 1).
    """
    return Wedge(epsilon, 0.5 / math.sinh(epsilon / 2), 0.0)


@dataclass(frozen=True, slots=True)
class PoissonSampledPair:
    """Is any pair (P, Q) seen through Poisson sampling at rate q (Zhu, Dong & Wang 2022, arXiv:2106.08567,
    Theorem 11).

    Removing: (1-q) Q + q P against Q. Adding: P against (1-q) P + q Q.

    The theorem is about two distributions of mass 1, and a pair that was cut off lists less. `missing` is an
    upper bound on the mass that is not listed: when removing, the Q-mass where P has none (`missing_q_mass`),
    which after sampling has loss log(1-q); when adding, the P-mass at infinite loss, which after sampling has
    loss -log(1-q). Without it the sampled masses would add up to less than 1, and delta would be too small.
    Leave it at 0 in a pair for lower bounds, where outcomes may be left out.
    """

    pair: DominatingPair
    rate: float
    removing: bool
    missing: float = 0.0

    @property
    def lattice(self) -> tuple[float, float] | None:
        return None

    def _outer(self, loss: Array) -> Array:
        """Return the loss after sampling of an outcome whose loss before sampling is `loss`."""
        sign = 1.0 if self.removing else -1.0
        inner = sign * loss
        big = inner > 500
        with np.errstate(over="ignore"):
            small = np.log1p(self.rate * np.expm1(np.where(big, 0.0, inner)))
        return sign * np.where(big, inner + math.log(self.rate), small)

    def _inner(self, loss: Array) -> Array:
        """Return the loss before sampling of an outcome whose loss after sampling is `loss`; infinite outside
        the range of losses after sampling."""
        sign = 1.0 if self.removing else -1.0
        outer = sign * loss
        big = outer > 500
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            small = np.log1p(np.maximum(np.expm1(np.where(big, 0.0, outer)) / self.rate, -1.0))
        return sign * np.where(big, outer - math.log(self.rate), small)

    def nodes(self, tail: float) -> Nodes:
        loss, weight = self.pair.nodes(tail)
        if self.removing:
            weight = weight * (self.rate + (1 - self.rate) * np.exp(-loss))
        loss, end = self._outer(loss), math.log1p(-self.rate)
        if self.missing == 0:
            return Nodes(loss, weight)
        if self.removing:
            weight = np.append((1 - self.rate) * self.missing, weight)
            return Nodes(np.append(min(end, loss[0]), loss), weight)
        return Nodes(np.append(loss, max(-end, loss[-1])), np.append(weight, self.missing))

    @property
    def discrete(self) -> bool:
        return self.pair.discrete

    def measure(self, edges: Array, refs: Array) -> LossCells:
        inner_edges = self._inner(edges)
        inner = self._completed(self.pair.measure(inner_edges, np.zeros(len(refs))), inner_edges)
        q = self.rate
        # q (P - Q), and Q, of each cell: P - e^c Q after sampling is written with them so that it loses no
        # digits at a small rate
        gap, gap_error = q * inner.excess, q * inner.excess_error
        other, other_error = inner.mass - inner.excess, inner.mass_error + inner.excess_error
        scale = np.expm1(refs)
        if self.removing:
            mass, mass_error = other + gap, (1 - q) * other_error + q * inner.mass_error
            first, first_error, second, second_error = (
                gap,
                gap_error,
                scale * other,
                np.abs(scale) * other_error,
            )
        else:
            mass, mass_error = inner.mass, inner.mass_error
            factor = np.exp(refs)
            first, first_error = factor * gap, factor * gap_error
            second, second_error = scale * mass, np.abs(scale) * mass_error
        moved = 16 * U * (q + np.abs(refs)) * (mass + np.abs(other))
        error = first_error + second_error + 16 * U * (np.abs(first) + np.abs(second)) + moved
        return LossCells(np.maximum(mass, 0.0), mass_error + 8 * U * np.abs(mass), first - second, error)

    def _completed(self, inner: LossCells, inner_edges: Array) -> LossCells:
        """Return cells of the pair before sampling, measured at ref 0, with the missing mass at its loss."""
        if self.removing:
            # a loss of -infinity: the last cell that begins there
            i = int(np.searchsorted(inner_edges, -np.inf, side="right")) - 1
        else:
            # infinite loss: the first cell that ends there
            i = int(np.searchsorted(inner_edges, np.inf, side="left")) - 1
        if self.missing == 0 or not 0 <= i < len(inner.mass):
            return inner
        mass, excess = inner.mass.copy(), inner.excess.copy()
        mass[i] += 0.0 if self.removing else self.missing
        excess[i] += -self.missing if self.removing else self.missing
        return inner._replace(mass=mass, excess=excess)


def missing_q_mass(pair: DominatingPair) -> float:
    """Return an upper bound on what the Q-masses of a pair lack of 1; the rest of Q lies where P has no mass.

    Atoms lack it where losses were raised or a curve was cut off: their Q-masses are mass * e^-loss. All
    other pairs are complete.
    """
    if not pair.discrete:
        return 0.0
    cells = pair.measure(np.array([-np.inf, np.inf]), np.zeros(1))
    error = float(cells.mass_error[0] + cells.excess_error[0])
    return max(0.0, 1.0 - float(cells.mass[0] - cells.excess[0]) + error + 4 * U)


@dataclass(frozen=True, slots=True)
class FixedSizeSampledPair:
    """Is a symmetric pair seen through a sample of fixed size (a share q of all units), for replacing a unit.

    Losses above 0 are distributed as for (1-q) Q + q P against Q, losses below 0 as for P against
    (1-q) P + q Q, and the remaining mass is at loss 0. This is the pair of the curve
    q delta(log(1 + (e^x - 1) / q)) at epsilon x >= 0 and its mirror image below 0 (Balle, Barthe & Gaboardi
    2018, arXiv:1807.01647, Theorem 9; Zhu, Dong & Wang 2022, arXiv:2106.08567, Theorem 11).
    """

    pair: DominatingPair
    rate: float

    @property
    def lattice(self) -> tuple[float, float] | None:
        return None

    @property
    def discrete(self) -> bool:
        return self.pair.discrete

    def _sides(self) -> tuple[PoissonSampledPair, PoissonSampledPair]:
        """Return the pairs of the losses above 0 and of those below 0. Mass that they do not list needs no
        `missing`: it is part of the remaining mass at 0."""
        return PoissonSampledPair(self.pair, self.rate, True), PoissonSampledPair(self.pair, self.rate, False)

    def nodes(self, tail: float) -> Nodes:
        above, below = (side.nodes(tail) for side in self._sides())
        high, low = above.loss > 0, below.loss < 0
        loss = np.concatenate((below.loss[low], [0.0], above.loss[high]))
        weight = np.concatenate((below.weight[low], [0.0], above.weight[high]))
        weight[int(low.sum())] = max(0.0, 1.0 - weight.sum())
        return Nodes(loss, weight)

    def measure(self, edges: Array, refs: Array) -> LossCells:
        above, below = self._sides()
        up = _only(above.measure(np.maximum(edges, 0.0), refs), edges[1:] > 0)
        down = _only(below.measure(np.minimum(edges, 0.0), refs), edges[:-1] < 0)
        # all mass below 0, and all above it: the remaining mass is at 0
        ends = np.array([-np.inf, 0.0]), np.array([0.0, np.inf])
        sides = [side.measure(end, np.zeros(1)) for side, end in ((below, ends[0]), (above, ends[1]))]
        mass, excess, error = (
            up.mass + down.mass,
            up.excess + down.excess,
            up.excess_error + down.excess_error,
        )
        mass_error = up.mass_error + down.mass_error
        if not edges[0] <= 0 < edges[-1]:
            return LossCells(mass, mass_error, excess, error)
        mass_at_zero = max(0.0, 1.0 - float(sides[0].mass[0] + sides[1].mass[0]))
        zero_error = float(sides[0].mass_error[0] + sides[1].mass_error[0]) + 4 * U
        i = int(np.searchsorted(edges, 0.0, side="right")) - 1
        # the excess per unit of mass at loss 0
        per_mass = -math.expm1(min(float(refs[i]), 700.0))
        mass[i] += mass_at_zero
        mass_error[i] += zero_error
        excess[i] += mass_at_zero * per_mass
        error[i] += abs(per_mass) * (zero_error + 8 * U * mass_at_zero)
        return LossCells(mass, mass_error, excess, error)


def _only(cells: LossCells, real: npt.NDArray[np.bool_]) -> LossCells:
    """Return the cells, those that are not `real` set to zero: they are empty intervals, in which rounding
    errors of differences would remain."""
    return LossCells(*(np.where(real, column, 0.0) for column in cells))
