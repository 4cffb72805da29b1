"""Composition on a lattice: losses on a grid, rounded in a proved direction, are convolved.

`planning` chooses tilt, window and mesh; `fourier` convolves with a bound on its rounding errors; `engine`
reads epsilon and delta off the composed distribution; `joint` composes few different pairs into one.
"""
