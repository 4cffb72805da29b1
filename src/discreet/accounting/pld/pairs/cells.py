"""Turns a pair of output distributions into point masses: the two discretisations, each with its error pushed
the safe way.

A pair (P, Q) holds the distributions of a mechanism's output on two neighboring tables; its privacy loss is
log P/Q, drawn under P. All that is asked of a pair is `measure`: for intervals of losses (cells), the P-mass,
and how much it exceeds e^ref times the Q-mass, for a reference loss `ref` of each cell. Knots are the
ascending losses that the point masses may have. U is the unit roundoff 2^-53.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from .arrays import Array, U

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
               Losses below the first knot are raised to it, those above the last one become infinite.
               Rounding errors are added to the mass and move it to the right. (Raised losses lose Q-mass,
               which must be restored before sampling: `basic_pairs.missing_q_mass`.)

    With `offset` the losses are offset + knots, as if Q were multiplied by e^offset: the proof does not need
    Q to have mass 1.
    """
    edges = np.concatenate(([-np.inf], knots, [np.inf]))
    refs = np.concatenate(([0.0], knots[:-1], [0.0]))
    cells = pair.measure(edges + offset, refs + offset)
    total = (cells.mass + cells.mass_error) * (1 + 4 * U)
    inner = slice(1, -1)
    right = (
        (cells.excess[inner] + cells.excess_error[inner]) / -np.expm1(knots[:-1] - knots[1:]) * (1 + 8 * U)
    )
    right = np.clip(right, 0.0, total[inner])
    mass = np.zeros(len(knots))
    mass[:-1] += (total[inner] - right) * (1 + 2 * U)
    mass[1:] += right
    mass[0] += total[0]
    return DominatingLaw(mass * (1 + 4 * U), float(total[-1]))


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
