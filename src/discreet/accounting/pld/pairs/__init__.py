"""Dominating pairs: the two output distributions whose privacy loss bounds a mechanism's, exactly or as
bounds.

`cells` says what a pair is (`Pair`, and its discretization into cells); `basic_pairs`, `sampled`, `choices`
and `profile` make the pairs of events; `attained` makes pairs that a real mechanism attains, for lower
bounds; `closed_form` and `single` answer for one pair alone, without composing.
"""
