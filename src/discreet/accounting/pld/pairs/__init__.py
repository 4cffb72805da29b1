"""Defines dominating pairs: two output distributions P and Q whose privacy loss is an upper bound on that of
a mechanism.

`cells` says what a pair is (`DominatingPair`) and discretises it; `basic_pairs`, `discrete`, `sampled`,
`choices` and `profile` make the pairs of events; `attained` makes pairs that a real mechanism attains, for
lower bounds; `closed_form` and `single` compute epsilon and delta of one pair without composing, `crossing`
inverts a curve of bounds, and `arrays` has the normal probabilities with their rounding errors.
"""
