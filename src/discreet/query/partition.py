"""Partition selection: which groups exist is private too, where nobody declared them. Each is shown with a
probability that grows with its number of units.

>>> [float(p) for p in chances(epsilon=Fraction(1), delta=Fraction(1, 100))[:2]]
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
# From this epsilon on the table is the same: with any factor above 2**128 (e^89) a group of one unit is shown
# with probability delta, of two with 1 - 2**-128, of three surely.
_LARGEST_EPSILON = 200
# Entries of the table of probabilities: a group that needs more units to be shown surely is refused.
LONGEST = 1_000_000


def exp_below(x: Fraction, bits: int = _BITS) -> Fraction:
    """Return a rational at most exp(x), for x >= 0, and above exp(x) (1 - 2**-100): partial sums of positive
    terms, rounded down.

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
    return Fraction((x.numerator << bits) // x.denominator, 1 << bits)


@lru_cache(maxsize=64)
def _table(epsilon: Fraction, delta: Fraction) -> tuple[int, ...]:
    """Return the probabilities of `chances` as multiples of 2**-128."""
    if not (epsilon > 0 and 0 < delta < 1):
        raise InvalidInput(
            "groups that nobody declared need an epsilon and a delta above zero. Nothing was read or charged."
        )
    unit = 1 << _BITS
    # both rounded down
    factor, step = int(exp_below(min(epsilon, Fraction(_LARGEST_EPSILON))) * unit), int(delta * unit)
    entries = [0]
    while entries[-1] < unit:
        p = entries[-1]
        up = (factor * p >> _BITS) + step
        # 1 - (1 - p - delta) / factor, rounded down
        down = unit + ((p + step - unit) << _BITS) // factor
        entries.append(min(up, down, unit))
        if len(entries) > LONGEST or entries[-1] <= p:
            raise InvalidInput(
                f"with epsilon {float(epsilon):.3g} and delta {float(delta):.3g} a group would need "
                f"more than {LONGEST} units to be "
                f"shown surely. Nothing was read or charged. Ask with more epsilon, or fewer groups per unit."
            )
    return tuple(entries)


def chances(*, epsilon: Fraction, delta: Fraction) -> tuple[Fraction, ...]:
    """Return the largest probabilities to show a group of 0, 1, 2, ... units such that showing it or not is
    (epsilon, delta)-DP; the last is 1.

    Guarantee: for neighbors whose groups differ by one unit, "shown" and "not shown" are both (epsilon,
               delta)-indistinguishable, and an empty group is never shown. No strategy with this guarantee
               shows any group more often, up to 2**-90 or so.
    Proof:     Desfontaines, Voss & Gipson 2022, arXiv:2006.03684, Theorem 1: p(n+1) is the least of e^eps
               p(n) + delta, 1 - e^-eps (1 - p(n) - delta), and 1. A rational at most e^eps stands for it,
               delta and chances are rounded down, so both inequalities hold exactly as stated.
    """
    return tuple(Fraction(p, 1 << _BITS) for p in _table(epsilon, delta))


def units_always_shown(epsilon: Fraction, delta: Fraction) -> int:
    """Return from how many units on a group is always shown."""
    return len(_table(epsilon, delta)) - 1


def select(units: Any, *, epsilon: Fraction, delta: Fraction, entropy: Entropy) -> Any:
    """Return, for each group's exact number of units, whether to show it: independent coins of exactly the
    chances above."""
    _require.positive(epsilon=epsilon)
    table = _table(epsilon, delta)
    sizes = np.minimum(np.asarray(units, dtype=np.int64), len(table) - 1)
    is_shown = sizes == len(table) - 1
    for size in np.unique(sizes[~is_shown]).tolist():
        groups = np.flatnonzero(sizes == size)
        is_shown[groups] = sampling.bernoulli(Fraction(table[size], 1 << _BITS), len(groups), entropy)
    return is_shown
