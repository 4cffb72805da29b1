"""Composition on a lattice: losses are rounded to a grid, in a direction that is proved to be safe, and their
distributions are convolved.

`planning` chooses tilt, window and mesh; `fourier` convolves with a bound on its rounding errors; `engine`
reads epsilon and delta off the composed distribution; `joint` composes the events inside one sample into one
pair.
"""
