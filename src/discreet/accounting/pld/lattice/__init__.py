"""Composition on a lattice: losses are rounded to a grid, in a direction that is proved to be safe, and their
distributions are convolved.

`mesh` chooses tilt, window and mesh; `convolution` convolves with a bound on its rounding errors, reads
epsilon and delta off the composed distribution, and composes the events inside one sample into one pair.
"""
