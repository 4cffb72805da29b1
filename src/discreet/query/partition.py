"""Partition selection: where nobody declared which groups exist, that is private too. Each group is shown
with a probability that grows with its number of units (a unit is who is protected: a person, or a row).

>>> [float(p) for p in show_probabilities(epsilon=Fraction(1), delta=Fraction(1, 100))[:2]]
[0.0, 0.01]
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from .. import _require, sampling
from .._errors import InvalidInput
from ..sampling import Entropy

# probabilities are multiples of 2**-128
_BITS = 128
# A larger epsilon is computed as this one, which bounds the time of `exp_below`. Any number from 89 on would
# do: there e^epsilon is above 2**128, and the table depends on delta alone (below 1/2, a group of one unit is
# shown with probability delta, of two units with 1 - 2**-128, of three with 1).
_LARGEST_EPSILON = 200
# The most entries of the table of probabilities: epsilon and delta are refused if a group would need more
# units to be shown with probability 1. Not tuned; a table of this length takes about a second and 50 MB.
LONGEST = 1_000_000


def exp_below(x: Fraction, bits: int = _BITS) -> Fraction:
    """Return a rational between exp(x) (1 - 2**-100) and exp(x), for 0 <= x <= 200.

    The Taylor series of exp has positive terms only, so that a partial sum of terms that are rounded down is
    below exp. x is halved until it is at most 1, and the result squared as often.

    >>> 2.718281828 < float(exp_below(Fraction(1))) <= 2.718281829
    True
    """
    halvings = 0
    while x > 1:
        x, halvings = x / 2, halvings + 1
    term, total, n = Fraction(1), Fraction(1), 1
    while term > Fraction(1, 1 << (bits + 20)):
        term = _round_down(term * x / n, bits + 40)
        total, n = total + term, n + 1
    for _ in range(halvings):
        total = _round_down(total * total, bits + 40)
    return total


def _round_down(x: Fraction, bits: int) -> Fraction:
    """Return the largest multiple of 2**-bits that is at most x."""
    return Fraction((x.numerator << bits) // x.denominator, 1 << bits)


# few, as a table may have a million entries
@lru_cache(maxsize=8)
def _table(epsilon: Fraction, delta: Fraction) -> tuple[int, ...]:
    """Return `show_probabilities` as multiples of 2**-128."""
    if not (epsilon > 0 and 0 < delta < 1):
        raise InvalidInput(
            "groups that nobody declared need an epsilon and a delta above zero. Nothing was read or charged."
        )
    one = 1 << _BITS
    # e^epsilon and delta as multiples of 2**-128, rounded down: rounded up, the guarantee would be lost
    factor, step = int(exp_below(min(epsilon, Fraction(_LARGEST_EPSILON))) * one), int(delta * one)
    entries = [0]
    while entries[-1] < one:
        p = entries[-1]
        # the most that "shown" allows: e^epsilon p + delta, rounded down
        by_shown = (factor * p >> _BITS) + step
        # the most that "not shown" allows: 1 - (1 - p - delta) / e^epsilon, rounded down
        by_hidden = one + ((p + step - one) << _BITS) // factor
        entries.append(min(by_shown, by_hidden, one))
        # An entry that does not grow would never reach 1: delta is below 2**-128.
        if len(entries) > LONGEST or entries[-1] <= p:
            raise InvalidInput(
                f"with epsilon {float(epsilon):.3g} and delta {float(delta):.3g} a group would need "
                f"more than {LONGEST} units to be "
                f"shown surely. Nothing was read or charged. Ask with more epsilon, or fewer groups per unit."
            )
    return tuple(entries)


def show_probabilities(*, epsilon: Fraction, delta: Fraction) -> tuple[Fraction, ...]:
    """Return the largest probabilities to show a group of 0, 1, 2, ... units such that showing it or not is
    (epsilon, delta)-DP; the last is 1.

    Guarantee: for neighbors in which the group has n and n + 1 units, "shown" and "not shown" are both
               (epsilon, delta)-indistinguishable, and an empty group is never shown. No strategy with
               this guarantee shows any group more often, up to 2**-90 or so.
    Proof:     Desfontaines, Voss & Gipson 2022, arXiv:2006.03684, Theorem 1: with p(n) the probability for n
               units and p(0) = 0, p(n+1) is the least of e^epsilon p(n) + delta,
               1 - e^-epsilon (1 - p(n) - delta), and 1. `_table` computes with a rational that is at most
               e^epsilon, and rounds delta and the probabilities down, so that both inequalities hold exactly.
    """
    return tuple(Fraction(p, 1 << _BITS) for p in _table(epsilon, delta))


def units_always_shown(epsilon: Fraction, delta: Fraction) -> int:
    """Return the least number of units with which a group is shown with probability 1."""
    return len(_table(epsilon, delta)) - 1


def select(units: Any, *, epsilon: Fraction, delta: Fraction, entropy: Entropy) -> Any:
    """Return, for each group's exact number of units, whether to show it: independent draws with exactly
    `show_probabilities`."""
    _require.positive(epsilon=epsilon)
    table = _table(epsilon, delta)
    sizes = np.minimum(np.asarray(units, dtype=np.int64), len(table) - 1)
    is_shown = sizes == len(table) - 1
    for size in np.unique(sizes[~is_shown]).tolist():
        groups = np.flatnonzero(sizes == size)
        is_shown[groups] = sampling.bernoulli(Fraction(table[size], 1 << _BITS), len(groups), entropy)
    return is_shown
