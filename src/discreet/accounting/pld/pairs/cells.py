"""From a pair of output distributions to point masses: the two discretisations, each with its error pushed
the safe way.

A pair (P, Q) is what a mechanism may show on two neighboring tables; its privacy loss is log P/Q, drawn under
P. Pairs answer one question (`measure`): how much P-mass lies between two losses, and how much of it exceeds
e^ref times the Q-mass there.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from .arrays import Array, U

# A cell in which Q exceeds P by this factor is given up: its transform would drown all others in rounding.
_SWAMPED = 1e3


class LossCells(NamedTuple):
    """For each interval of losses: P-mass, and excess = P-mass - e^ref * Q-mass, with bounds on their
    errors."""

    mass: Array
    mass_error: Array
    excess: Array
    excess_error: Array


class Nodes(NamedTuple):
    """A quick quadrature of the loss under P, for planning only: nothing certified rests on it."""

    loss: Array
    weight: Array


class DominatingPair(Protocol):
    """One direction of one mechanism."""

    @property
    def lattice(self) -> tuple[float, float] | None:
        """(step, offset) if every finite loss is offset + an integer times step."""

    def nodes(self, tail: float) -> Nodes:
        """Return ascending losses that leave out at most about `tail` on either side."""

    @property
    def discrete(self) -> bool:
        """Whether the nodes are all losses that occur."""

    def measure(self, edges: Array, refs: Array) -> LossCells:
        """Return cells between ascending `edges` (infinite ends allowed); `refs` has one entry per cell.

        A cell holds its left edge and not its right one; what lies before the first edge, or from the last
        one on, is in none of them.
        """


class DominatingLaw(NamedTuple):
    """Masses at the knots, and the mass at infinite loss, of a distribution that dominates the pair."""

    mass: Array
    infinite: float


class DominatedLaw(NamedTuple):
    """Merged outcomes at knots k: P-masses, and gain = P-mass - e^k Q-mass. What post-processing leaves of
    the pair."""

    p: Array
    gain: Array


def upper(pair: DominatingPair, knots: Array, offset: float = 0.0) -> DominatingLaw:
    """Connect the dots: return the distribution on `knots` whose hockey-stick curve meets the pair's at every
    knot.

    Guarantee: for every n and every other mechanism in the composition, delta(epsilon) only grows.
    Proof:     inside a cell, P-mass A and Q-mass B are kept by putting (A - e^l B) / (1 - e^(l-r)) on the
               right end r and the rest on the left end l: a mean-preserving spread of Q/P under P, and every
               hockey stick is convex in Q/P (Doroshenko et al. 2022, arXiv:2207.04380, section 4). Below the
               first knot losses are raised to it, above the last they become infinite. Errors of floating
               point are added to the mass and move it to the right.

    With `offset` the losses are offset + knots: as if Q were multiplied by e^offset, which every step above
    allows.
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

    Guarantee: for every n and every other mechanism in the composition, delta(epsilon) only shrinks.
    Proof:     merging is post-processing. An outcome's two masses may be scaled down together, its Q-mass
               raised and its P-mass lowered, to nothing if need be (it then belongs to no test): each shrinks
               the integral of (P - e^epsilon Q)+ for every product with other outcomes. The errors of
               floating point are spent that way, and so is a first cell in which Q swamps P, whose transform
               would drown all others in its rounding.
    """
    edges = np.concatenate(([-np.inf], (knots[:-1] + knots[1:]) / 2, [np.inf]))
    cells = pair.measure(edges + offset, knots + offset)
    kept = np.maximum(cells.mass - cells.mass_error, 0.0)
    kept = np.where(cells.excess > -_SWAMPED * cells.mass, kept, 0.0)
    shrunk = np.divide(cells.mass - kept, cells.mass, out=np.ones_like(kept), where=cells.mass > 0)
    # twice: the true mass may be as much above the computed one as the kept one is below it
    spare = cells.excess_error + np.abs(cells.excess) * (2 * shrunk + 4 * U)
    return DominatedLaw(kept, np.where(kept > 0, np.minimum(cells.excess - spare, kept), 0.0))
