"""Privacy loss distributions: certified lower and upper bounds on epsilon and delta of a composition.

The tightest accountant: each event becomes a pair of distributions that dominates it, its privacy loss is put
on a lattice pessimistically (connect the dots) and optimistically (merging), composed by a tilted Fourier
transform with all errors bounded, for both directions of the neighbor relation. docs/pld.md has the method
and the proof.
"""

from .front import RULES, bounds, delta, delta_bounds, epsilon, reason, supports

__all__ = ["RULES", "bounds", "delta", "delta_bounds", "epsilon", "reason", "supports"]
