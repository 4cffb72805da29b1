"""Computes normal probabilities of intervals with a bound on their rounding errors, and sums of exponentials.

`scipy.special.ndtr` is accurate to a few units in the last place near zero, and its error grows by about z²
units in the tail; `tests/accounting/test_pld_numerics.py` measures that against mpmath. The bound used here
is four times the largest error that was measured, and covers an argument z that is itself off by a few units
in its last place.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

# half the distance from 1 to the next float
U = 2.0**-53


def tail_error(z: Array, tail: Array) -> Array:
    """Return a bound on |computed - true| for `tail` = Phi(-|z|), Phi the standard normal distribution
    function, when z carries a few rounding errors."""
    finite = np.where(np.isfinite(z), z, 0.0)
    return np.asarray(U * (32 + 16 * finite * finite) * tail)


def between(z: Array) -> tuple[Array, Array]:
    """Return Phi(z[i+1]) - Phi(z[i]) for ascending z, infinities allowed, and a bound on its error.

    Where z[i] and z[i+1] have the same sign the difference is taken between Phi(-|z|), so that an interval
    far from 0 keeps its relative accuracy.
    """
    tail = ndtr(-np.abs(z))
    error = tail_error(z, tail)
    left, right = tail[:-1], tail[1:]
    crosses = (z[:-1] < 0) & (z[1:] >= 0)
    mass = np.where(crosses, 1.0 - left - right, np.abs(right - left))
    return mass, error[:-1] + error[1:] + 2 * U * mass


# How many numbers `log_sums` handles at a time: they stay in a processor's cache, and any size gives the same
# results. With 10^5 atoms and 41 tilts the arrays of all at once are 33 MB each, and 19 times as slow.
_BLOCK = 1 << 15


def log_sums(t: Array, loss: Array, log: Array) -> Array:
    """Return the log of the sum of exp(log[i] + t * loss[i]) over i, for each t; a few t at a time."""
    sums = np.empty(len(t))
    rows = max(1, _BLOCK // len(loss))
    for i in range(0, len(t), rows):
        exponent = np.multiply.outer(t[i : i + rows], loss)
        exponent += log
        peak = exponent.max(axis=1)
        exponent -= peak[:, None]
        sums[i : i + rows] = peak + np.log(np.exp(exponent, out=exponent).sum(axis=1))
    return sums
