"""Draws one index exactly, with probabilities proportional to integer weights times exponentials: the
exponential mechanism over groups of candidates that share a score (the weight is the size of a group).

U is a uniform number on [0, 1), a prefix its first bits as an integer; a gap is a cost minus the least cost;
the stretch of an index is the interval between two cumulated terms in which U times their total selects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from ._bounds import exp_neg
from ._entropy import Entropy, stream

# The largest relative error that is assumed of one float term weight * exp(-x), x <= 700, numpy's exp
# included; tests compare with mpmath.
_TERM_ERROR = 2.0**-40
# For a larger x, exp(-x) is taken as 0; e^-700 is still a normal float.
_UNDERFLOW = 700.0


def weighted_softmax(costs: NDArray[Any], weights: NDArray[Any], rate: Fraction, entropy: Entropy) -> int:
    """Return one index; i has probability proportional to weights[i] * exp(-rate * costs[i]).

    Guarantee: exactly this distribution, for integer costs, positive integer weights and a rational rate of
               at least 0.
    Proof:     the index is where U * total falls in the cumulated terms, for one uniform U. With 53 bits of U
               and float sums the index is taken only if U * total lies further from both ends of its stretch
               than all float errors together; otherwise more bits of the same U are drawn and certified
               integer sums decide.
    Assumes:   `entropy` yields independent uniform bits; numpy's exp is right to 2**-42 below 700.
    """
    costs, weights = _integers(costs, "costs"), _integers(weights, "weights")
    if len(costs) != len(weights) or weights.min() < 1:
        raise _require.fail(
            "weights", f"{len(weights)} of them", f"above zero, one for each of {len(costs)} costs"
        )
    rate = _require.exact(rate, "rate")
    _require.non_negative(rate=rate)
    stream(entropy)
    best = int(costs.min())
    prefix = entropy.integer(53)
    # A larger rate takes every gap but 0 beyond _UNDERFLOW, as this one does.
    capped = min(_require.float_or_inf(rate), 1e250)
    index = _by_floats(_floats(costs - best), _floats(weights), capped, prefix)
    return _by_integers(costs, best, weights, rate, prefix, entropy) if index is None else index


def _integers(values: Any, name: str) -> NDArray[Any]:
    """Return a vector of integers whose differences do not wrap."""
    array = np.asarray(values)
    integral = array.dtype.kind in "iu" or (
        array.dtype.kind == "O" and all(isinstance(v, int) for v in array.flat)
    )
    if array.ndim != 1 or not len(array) or not integral:
        raise _require.fail(
            name, f"an array of {array.dtype} with {array.ndim} dimensions", "a list of integers"
        )
    wide = int(array.max()) - int(array.min()) >= 1 << 63 or array.dtype.kind in "uO"
    return array.astype(object if wide else np.int64)


def _floats(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return integers of any size as floats; infinite where they are too large."""
    if values.dtype == object:
        return np.array([_require.float_or_inf(value) for value in values])
    return values.astype(np.float64)


def _by_floats(gaps: NDArray[Any], weights: NDArray[Any], rate: float, prefix: int) -> int | None:
    """Return the index, if 53 bits of U and floats decide it.

    Proof: a term with x <= 700 has relative error below 2**-40 (x itself is right to 2**-51 of at most 700);
           a term with a larger x is taken as 0 and is below weight * e**-699. Adding n terms one by one errs
           by at most n units in the last place of the total (of a long double: with a million stretches of
           equal weight, the errors of doubles would often leave the draw undecided). The term with gap 0 is
           at least 1, and so is the total. Gaps and weights beyond the range of floats decide nothing.
    """
    with np.errstate(over="ignore"):
        all_weights = weights.sum()
        if not (np.isfinite(all_weights) and np.isfinite(gaps).all()):
            return None
        x = gaps * rate
    terms = np.where(x <= _UNDERFLOW, weights * np.exp(-np.minimum(x, _UNDERFLOW)), 0.0)
    ends = np.cumsum(terms, dtype=np.longdouble)
    total, last_place = ends[-1], np.finfo(np.longdouble).eps
    rounding = total * (_TERM_ERROR + 2 * len(ends) * last_place) + all_weights * 1e-300
    low, high = total * (prefix * 2.0**-53), total * ((prefix + 1) * 2.0**-53)
    index = min(int(np.searchsorted(ends, low, side="right")), len(ends) - 1)
    if index > 0 and low - ends[index - 1] <= 4 * rounding:
        return None
    if index < len(ends) - 1 and ends[index] - high <= 4 * rounding:
        return None
    return index


def _by_integers(
    costs: NDArray[Any], best: int, weights: NDArray[Any], rate: Fraction, prefix: int, entropy: Entropy
) -> int:
    """Return the index by certified sums and as many more bits of U as it takes; `prefix` has 53."""
    gaps, sizes = [int(c) - best for c in costs], [int(w) for w in weights]
    length = 53
    while True:
        # 75 more: the first sums are then computed with 128 bits
        prefix, length = prefix << 75 | entropy.integer(75), length + 75
        index = decide(prefix, length, *_ends(gaps, sizes, rate, length))
        if index is not None:
            return index


def decide(prefix: int, length: int, low_ends: Sequence[int], high_ends: Sequence[int]) -> int | None:
    """Return the index in whose stretch U * total lies, for U in [prefix, prefix + 1) / 2**length; None if
    the certified bounds on the cumulated terms do not decide it."""
    # 2**length * U * total lies between these two
    low, high = prefix * low_ends[-1], (prefix + 1) * high_ends[-1]
    last = len(low_ends) - 1
    for index in range(last + 1):
        inside_right = index == last or high <= low_ends[index] << length
        inside_left = index == 0 or high_ends[index - 1] << length <= low
        if inside_left and inside_right:
            return index
    return None


def _ends(
    gaps: Sequence[int], sizes: Sequence[int], rate: Fraction, bits: int
) -> tuple[list[int], list[int]]:
    """Return lower and upper bounds on the cumulated terms, times 2**bits."""
    lows, highs, low, high = [], [], 0, 0
    for gap, size in zip(gaps, sizes, strict=True):
        term_low, term_high = exp_neg(rate * gap, bits)
        low, high = low + size * term_low, high + size * term_high
        lows.append(low)
        highs.append(high)
    return lows, highs
