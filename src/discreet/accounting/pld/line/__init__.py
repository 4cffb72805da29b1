"""Composes sampled Gaussian steps without a lattice: delta is an integral of the moment generating function
along a vertical line in the complex plane.

`line` evaluates the moment generating function of one step with an error bound, bounds it at frequencies that
are not computed, separates rare huge losses from the others, and integrates; `ladder` turns lines into an
interval of epsilon. docs/proofs/pld.md has the proof ("Along a line" and "Rare huge losses").
"""
