"""Defines dominating pairs: two output distributions P and Q whose privacy loss is an upper bound on that of
a mechanism.

`basic_pairs` says what a pair is (`DominatingPair`), discretises it, and has the pairs of plain noise, with
the normal probabilities and their rounding errors; `families` makes the pairs of all other events;
`attained_pairs` makes pairs that a real mechanism attains, for lower bounds.
"""
