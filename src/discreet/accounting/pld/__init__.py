"""Bounds epsilon and delta of a composition from below and above, certified, by privacy loss distributions
(PLD).

This is the tightest accountant. Each event becomes a pair of output distributions that dominates it
(`rules`). The privacy losses of all pairs are added up on a lattice (`lattice`), rounded up for upper bounds
("connect the dots") and merged for lower bounds, by a Fourier transform whose errors are bounded. Both
directions of the neighbor relation, removing and adding a unit, are computed, and the worse one counts.
docs/proofs/pld.md has the method and the proof.
"""

from .accountant import bounds, delta, delta_bounds, epsilon

__all__ = ["bounds", "delta", "delta_bounds", "epsilon"]
