"""An oracle for the lattice: delta of sampled Gaussian steps as an integral of the moment generating function
along a vertical line in the complex plane, with proved bounds.

`line` evaluates the moment generating function of one step with an error bound, bounds it at frequencies that
are not computed, separates rare huge losses from the others, and integrates; `ladder` turns lines into an
interval of epsilon. docs/proofs/pld.md has the proof ("Along a line" and "Rare huge losses").
"""

from __future__ import annotations

from discreet.accounting import Event
from discreet.accounting.normal import normal
from discreet.accounting.pld import rules
from discreet.accounting.pld.pairs.families import SampledGaussian
from discreet.accounting.pld.solve import Composition, Solver

from . import ladder
from .ladder import EpsilonInterval


def interval(
    composition: Composition, delta: float, near: EpsilonInterval | None = None
) -> EpsilonInterval | None:
    """Return the interval of epsilon of one direction; None where a line would be too long."""
    solver = Solver(composition, delta)
    steps = [(part.pair, part.times, part.offset) for part in solver.parts]
    assert all(isinstance(pair, SampledGaussian) for pair, _, _ in steps)
    return ladder.solve(steps, solver.k, solver.theta, delta, near)


def directions(event: Event, delta: float) -> list[Composition]:
    """Return the composition of each direction."""
    return rules.compositions(rules.merged(normal(event)), delta * 1e-8)
