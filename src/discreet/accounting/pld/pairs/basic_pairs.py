"""Defines the basic pairs: point masses, Laplace noise and bounded range, and any pair seen through Poisson
sampling or through a sample of fixed size. (A mechanism has bounded range epsilon if all its losses lie in
some interval of that width, as those of the exponential mechanism do.)

P and Q are the two distributions of a pair, q the sampling rate, U the unit roundoff 2^-53. `measure`,
`nodes`, `lattice` and `discrete` are those of `DominatingPair`: `nodes` are ascending losses
with about their P-masses, for planning, and `measure(edges, refs)` returns for each cell between two edges
its P-mass and its excess P - e^ref Q, with bounds on their errors.

Computes normal probabilities of intervals with a bound on their rounding errors, and sums of exponentials.

`scipy.special.ndtr` is accurate to a few units in the last place near zero, and its error grows by about z²
units in the tail; `tests/accounting/test_pld_numerics.py` measures that against mpmath. The bound used here
is four times the largest error that was measured, and covers an argument z that is itself off by a few units
in its last place.

Turns a pair of output distributions into point masses: the two discretisations, each with its error pushed
the safe way.

A pair (P, Q) holds the distributions of a mechanism's output on two neighboring tables; its privacy loss is
log P/Q, drawn under P. All that is asked of a pair is `measure`: for intervals of losses (cells), the P-mass,
and how much it exceeds e^ref times the Q-mass, for a reference loss `ref` of each cell. Knots are the
ascending losses that the point masses may have. U is the unit roundoff 2^-53.

Finds by bisection where a falling curve of certified bounds on delta crosses a target.

Computes epsilon and delta of one release of one mechanism with the pair (P, Q) and the loss L = log P/Q:
delta(epsilon) = P(L > epsilon) - e^epsilon Q(L > epsilon) is two tail probabilities, and needs no lattice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

# half the distance from 1 to the next float
U = 2.0**-53


def tail_error(z: Array, tail: Array) -> Array:
    """Return a bound on |computed - true| for `tail` = Phi(-|z|), Phi the standard normal distribution
    function, when z carries a few rounding errors."""
    finite = np.where(np.isfinite(z), z, 0.0)
    return np.asarray(U * (32 + 16 * finite * finite) * tail)


def between(z: Array) -> tuple[Array, Array]:
    """Return Phi(z[i+1]) - Phi(z[i]) for ascending z, infinities allowed, and a bound on its error.

    Where z[i] and z[i+1] have the same sign the difference is taken between Phi(-|z|), so that an interval
    far from 0 keeps its relative accuracy.
    """
    tail = ndtr(-np.abs(z))
    error = tail_error(z, tail)
    left, right = tail[:-1], tail[1:]
    crosses = (z[:-1] < 0) & (z[1:] >= 0)
    mass = np.where(crosses, 1.0 - left - right, np.abs(right - left))
    return mass, error[:-1] + error[1:] + 2 * U * mass


# How many numbers `log_sums` handles at a time: they stay in a processor's cache, and any size gives the same
# results. With 10^5 atoms and 41 tilts the arrays of all at once are 33 MB each, and 19 times as slow.
_BLOCK = 1 << 15


def log_sums(t: Array, loss: Array, log: Array) -> Array:
    """Return the log of the sum of exp(log[i] + t * loss[i]) over i, for each t; a few t at a time."""
    sums = np.empty(len(t))
    rows = max(1, _BLOCK // len(loss))
    for i in range(0, len(t), rows):
        exponent = np.multiply.outer(t[i : i + rows], loss)
        exponent += log
        peak = exponent.max(axis=1)
        exponent -= peak[:, None]
        sums[i : i + rows] = peak + np.log(np.exp(exponent, out=exponent).sum(axis=1))
    return sums


# A cell in which e^ref Q exceeds P by more than this factor is left out of lower bounds: the rounding errors
# of its large Q-mass in the Fourier transform would exceed the masses of all other cells. Chosen by hand, not
# tuned.
_SWAMPED = 1e3


class LossCells(NamedTuple):
    """Holds for each cell its P-mass and its excess = P-mass - e^ref * Q-mass, with bounds on their absolute
    errors."""

    mass: Array
    mass_error: Array
    excess: Array
    excess_error: Array


class Nodes(NamedTuple):
    """Holds a quick quadrature of the loss under P, losses ascending, for planning only: nothing certified
    rests on it."""

    loss: Array
    weight: Array


class DominatingPair(Protocol):
    """Describes the pair of one mechanism in one direction, removing or adding a unit."""

    @property
    def lattice(self) -> tuple[float, float] | None:
        """(step, offset) if every finite loss is offset + an integer times step."""

    def nodes(self, tail: float) -> Nodes:
        """Return ascending losses that leave out at most about `tail` on either side."""

    @property
    def discrete(self) -> bool:
        """Whether finitely many losses occur, all of which are nodes."""

    def measure(self, edges: Array, refs: Array) -> LossCells:
        """Return the cells between ascending `edges` (infinite ends allowed); `refs` has one entry per cell.

        A cell contains its left edge and not its right one; losses below the first edge, and from the last
        edge on, are in no cell.
        """


class DominatingLaw(NamedTuple):
    """Holds P-masses at the knots, and the P-mass at infinite loss, of a distribution of losses that
    dominates the pair."""

    mass: Array
    infinite: float


class DominatedLaw(NamedTuple):
    """Holds merged outcomes, one per knot k: their P-masses, and gain = P-mass - e^k Q-mass. They are a
    post-processing of the pair."""

    p: Array
    gain: Array


def upper(pair: DominatingPair, knots: Array, offset: float = 0.0) -> DominatingLaw:
    """Connect the dots: return the distribution on `knots` whose hockey-stick curve meets the pair's at every
    knot.

    Guarantee: however often the pair is composed, and with whatever other mechanisms, delta(epsilon) is not
               smaller with this distribution.
    Proof:     inside a cell, P-mass A and Q-mass B are kept by putting P-mass (A - e^l B) / (1 - e^(l-r)) on
               the right end r and the rest on the left end l: a mean-preserving spread of Q/P under P, and
               every hockey stick is convex in Q/P (Doroshenko et al. 2022, arXiv:2207.04380, section 4).
               The same with r infinite: of the losses above the last knot the Q-mass stays at that knot, and
               A - e^l B becomes infinite. Losses below the first knot are raised to it.
               Rounding errors are added to the mass and move it to the right. (Raised losses lose Q-mass,
               which must be restored before sampling: `basic_pairs.missing_q_mass`.)

    With `offset` the losses are offset + knots, as if Q were multiplied by e^offset: the proof does not need
    Q to have mass 1.
    """
    edges = np.concatenate(([-np.inf], knots, [np.inf]))
    refs = np.concatenate(([0.0], knots))
    cells = pair.measure(edges + offset, refs + offset)
    total = (cells.mass + cells.mass_error) * (1 + 4 * U)
    shares = -np.expm1(np.append(knots[:-1] - knots[1:], -np.inf))
    right = (cells.excess[1:] + cells.excess_error[1:]) / shares * (1 + 8 * U)
    right = np.clip(right, 0.0, total[1:])
    mass = (total[1:] - right) * (1 + 2 * U)
    mass[1:] += right[:-1]
    mass[0] += total[0]
    return DominatingLaw(mass * (1 + 4 * U), float(right[-1]))


def lower(pair: DominatingPair, knots: Array, offset: float = 0.0) -> DominatedLaw:
    """Merge: all outcomes whose loss is nearest to a knot become one outcome.

    Guarantee: however often the pair is composed, and with whatever other mechanisms, delta(epsilon) is not
               larger with these outcomes.
    Proof:     merging is post-processing. An outcome's two masses may be scaled down together, its Q-mass
               raised, and its P-mass lowered, even to 0 (it then belongs to no test): each lowers the
               integral of (P - e^epsilon Q)+ for every product with other outcomes. Rounding errors are
               bounded in this direction, and cells in which e^ref Q is more than about `_SWAMPED` times P are
               left out.
    """
    edges = np.concatenate(([-np.inf], (knots[:-1] + knots[1:]) / 2, [np.inf]))
    cells = pair.measure(edges + offset, knots + offset)
    kept = np.maximum(cells.mass - cells.mass_error, 0.0)
    kept = np.where(cells.excess > -_SWAMPED * cells.mass, kept, 0.0)
    shrunk = np.divide(cells.mass - kept, cells.mass, out=np.ones_like(kept), where=cells.mass > 0)
    # twice `shrunk`: the true mass may be as far above the computed mass as the kept one is below it
    error = cells.excess_error + np.abs(cells.excess) * (2 * shrunk + 4 * U)
    return DominatedLaw(kept, np.where(kept > 0, np.minimum(cells.excess - error, kept), 0.0))


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
    discrete: ClassVar[bool] = True

    def nodes(self, tail: float) -> Nodes:
        return Nodes(self.loss, self.mass)

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
    lattice: ClassVar[tuple[float, float] | None] = None
    discrete: ClassVar[bool] = False

    def nodes(self, tail: float) -> Nodes:
        edges = np.linspace(-self.epsilon, self.epsilon, 200)
        middle = (edges[1:] + edges[:-1]) / 2
        inner = self.weight * np.exp(edges[:-1] / 2) * np.expm1(np.diff(edges) / 2)
        ends = [self.top * math.exp(-self.epsilon), self.top]
        loss = np.concatenate(([-self.epsilon], middle, [self.epsilon]))
        return Nodes(loss, np.concatenate((ends[:1], inner, ends[1:])))

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
    lattice: ClassVar[tuple[float, float] | None] = None

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
    lattice: ClassVar[tuple[float, float] | None] = None

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


# The lower end of an interval of epsilon is computed for a delta larger by this share, so that it also holds
# for a caller's delta that differs by rounding.
ROUNDED = 4e-12


def bisected(
    delta_at: Callable[[float], tuple[float, float]], delta: float, start: float, side: int
) -> float:
    """Return about the largest epsilon at which the lower bound on its delta exceeds `delta` (side 0), or the
    smallest at which the upper bound does not (side 1); exact in the safe direction.

    `delta_at` returns both bounds on delta at an epsilon, and `start` is about where to look."""
    if delta_at(0.0)[side] <= delta:
        return 0.0
    low, high = 0.0, start
    while delta_at(high)[side] > delta:
        # The bounds never fall below their allowance for rounding: for a smaller delta nothing is proved.
        if math.isinf(high):
            return high
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if delta_at(middle)[side] > delta:
            low = middle
        else:
            high = middle
    return low if side == 0 else high


# The largest epsilon at which delta is computed, as e^600 is still a float; beyond, delta is bounded by its
# value there.
_FAR = 600.0


def delta(pair: DominatingPair, epsilon: float) -> tuple[float, float]:
    """Return a lower and an upper bound on delta of the pair at epsilon, from the tail of the loss alone."""
    # delta falls with epsilon
    if epsilon > _FAR:
        return 0.0, delta(pair, _FAR)[1]
    cells = pair.measure(np.array([-np.inf, epsilon, np.inf]), np.array([epsilon, epsilon]))
    value, error = float(cells.excess[1]), float(cells.excess_error[1])
    return max(0.0, value - error), min(1.0, max(0.0, value) + error)
