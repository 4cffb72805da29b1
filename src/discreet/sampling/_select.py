"""Selects the candidates with the largest rate * score + noise, for continuous noise, exactly: as if the
noisy scores were never rounded.

Each candidate's noise is a function of a uniform number U of which 64 bits are drawn (a word). Floats give an
interval for every noisy score; candidates whose intervals overlap, if their order decides the selection, are
compared by integers that are proved to enclose them (`_entropy`), with as many more bits of U as it takes.

Draws one index exactly, with probabilities proportional to integer weights times exponentials: the
exponential mechanism over groups of candidates that share a score (the weight is the size of a group).

U is a uniform number on [0, 1), a prefix its first bits as an integer; a gap is a cost minus the least cost;
the stretch of an index is the interval between two cumulated terms in which U times their total selects it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from .. import _require
from . import _entropy
from ._entropy import Entropy, exp_neg, stream
from ._uniform import integers

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

# The largest relative error that is assumed of numpy's log and log1p (2**-48) together with the operations
# around them; tests compare numpy with mpmath.
_FLOAT_ERROR = 2.0**-46


def argmax_gumbel(scores: Any, rate: Any, entropy: Entropy) -> int:
    """Return the index of the largest rate * scores[i] + G_i, with independent standard Gumbel G_i.

    Guarantee: index i has probability exactly exp(rate scores[i]) / sum_j exp(rate scores[j]).
    Proof:     the Gumbel-max identity (Yellott 1977); the noisy scores are compared exactly (`_largest`).
    Assumes:   `entropy` yields independent uniform bits; numpy's log is right to 2**-48 (checked by the
               tests).

    >>> from discreet.sampling import SeededEntropy
    >>> argmax_gumbel([0, 10**6, 5], 1, SeededEntropy(0))
    1
    """
    return int(_largest(scores, rate, 1, _GUMBEL, entropy)[0])


def argmax_exponential(scores: Any, rate: Any, entropy: Entropy) -> int:
    """Return the index of the largest rate * scores[i] + E_i, with independent standard exponential E_i.

    Guarantee: exactly this distribution (that of permute-and-flip: Ding et al. 2021, arXiv:2105.07260v3).
    Proof:     the noisy scores are compared exactly (`_largest`).
    Assumes:   `entropy` yields independent uniform bits; numpy's log is right to 2**-48 (checked by the
               tests).
    """
    return int(_largest(scores, rate, 1, _EXPONENTIAL, entropy)[0])


def argmax_laplace(scores: Any, rate: Any, entropy: Entropy) -> int:
    """Return the index of the largest rate * scores[i] + L_i, with independent standard Laplace L_i.

    Guarantee: exactly this distribution.
    Proof:     the noisy scores are compared exactly (`_largest`).
    Assumes:   `entropy` yields independent uniform bits; numpy's log is right to 2**-48 (checked by the
               tests).
    """
    return int(_largest(scores, rate, 1, _LAPLACE, entropy)[0])


def top_k_gumbel(scores: Any, rate: Any, k: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    """Return the indices of the `k` largest rate * scores[i] + G_i, largest first, with independent standard
    Gumbel G_i.

    Guarantee: exactly the distribution of drawing k times without replacement with weights
               exp(rate scores[i]).
    Proof:     one-shot Gumbel is peeling (Durfee & Rogers 2019, arXiv:1905.04273); the noisy scores are
               compared exactly (`_largest`).
    Assumes:   `entropy` yields independent uniform bits; numpy's log is right to 2**-48 (checked by the
               tests).
    """
    return _largest(scores, rate, k, _GUMBEL, entropy)


def top_k_gumbel_rows(
    scores: npt.NDArray[np.int64], rate: Any, k: int, entropy: Entropy
) -> npt.NDArray[np.int64]:
    """Return, for every row of a matrix of scores, what `top_k_gumbel` returns; all noise is drawn and
    compared at once.

    Guarantee: exactly the distribution of `top_k_gumbel` for each row, independent between rows.
    Proof:     a row is decided by its float intervals where none of the first k overlaps with one after it;
               each other row is decided as a vector is (`_decide`), with the bits that were drawn.
    Assumes:   as `top_k_gumbel`.

    >>> from discreet.sampling import SeededEntropy
    >>> top_k_gumbel_rows(np.array([[0, 10**6, 5], [7, 0, -(10**6)]]), 10, 1, SeededEntropy(0)).tolist()
    [[1], [0]]
    """
    exact_rate = _require.exact(rate, "rate")
    _require.non_negative(rate=exact_rate)
    scores = np.asarray(scores)
    if scores.ndim != 2 or scores.dtype.kind not in "iu":
        raise _require.fail(
            "scores", f"an array of {scores.dtype} with {scores.ndim} dimensions", "a matrix of integers"
        )
    rows, width = scores.shape
    _require.integer(k=k, at_least=1)
    _require.must(k <= width, "k", k, f"at most the number of scores, {width}")
    stream(entropy)
    if not rows:
        return np.empty((0, k), np.int64)
    # Differences could wrap in 64 bits: decide row by row, where they are Python integers.
    if scores.dtype == np.uint64 or int(scores.max()) - int(scores.min()) >= 1 << 62:
        return np.array([_largest(row, exact_rate, k, _GUMBEL, entropy) for row in scores])
    scores = scores.astype(np.int64, copy=False)
    gaps = scores - scores.max(axis=1, keepdims=True)
    words = entropy.words(rows * width).reshape(rows, width)
    low, high = _GUMBEL.floats(words, _FLOAT_ERROR)
    # A larger rate changes no order (see `_offsets`).
    offsets = gaps.astype(np.float64) * min(_require.float_or_inf(exact_rate), 1e280)
    rounding = np.abs(offsets) * _FLOAT_ERROR
    low += offsets - rounding
    high += offsets + rounding
    order, clear = _by_intervals(low, high, k)
    for row in np.flatnonzero(~clear).tolist():
        order[row] = _decide(
            low[row], high[row], words[row], exact_rate, gaps[row].__getitem__, k, _GUMBEL, entropy
        )
    return order


def _by_intervals(low: Floats, high: Floats, k: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return for each row the k candidates with the largest lower ends, in order, and whether the intervals
    prove that these are the k largest in this order."""
    # For a large k, one sort of each row costs less than k searches for the largest; 8 is chosen by hand.
    if k > 8:
        order = np.argsort(-low, axis=1, kind="stable")
        ends = np.take_along_axis(high, order, axis=1)[:, ::-1]
        highest_after = np.maximum.accumulate(ends, axis=1)[:, ::-1][:, 1 : k + 1]
        # where k is the width, the last candidate has none after it
        starts = np.take_along_axis(low, order, axis=1)[:, : highest_after.shape[1]]
        return order[:, :k].astype(np.int64, copy=False), np.asarray((starts > highest_after).all(axis=1))
    rows = np.arange(len(low))
    order = np.empty((len(low), k), np.int64)
    clear = np.ones(len(low), bool)
    high = high.copy()
    remaining = low.copy()
    for rank in range(k):
        top = remaining.argmax(axis=1)
        order[:, rank] = top
        high[rows, top] = -np.inf
        clear &= low[rows, top] > high.max(axis=1, initial=-np.inf)
        remaining[rows, top] = -np.inf
    return order, clear


@dataclass(frozen=True, slots=True)
class _Noise:
    """Holds how noise is computed from a uniform U: `floats` returns lower and upper ends for words of 64
    bits of U and an assumed float error; `certified`, called with (prefix, length, bits), returns two
    integers between which 2**bits times the noise is proved to lie for every U whose first `length` bits are
    `prefix`, or None if the noise may be infinite."""

    floats: Callable[[Words, float], tuple[Floats, Floats]]
    certified: Callable[[int, int, int], tuple[int, int] | None]


def _exponential_floats(words: Words, error: float) -> tuple[Floats, Floats]:
    """Return intervals of exponential noise -ln U: large for a small U, whose float keeps all its digits."""
    lower_u = words.astype(np.float64)
    return _minus_log(lower_u + 1.0, error)[0], _minus_log(lower_u, error)[1]


def _minus_log(u: Floats, error: float) -> tuple[Floats, Floats]:
    """Return a lower and an upper bound on -ln(u / 2**64).

    The rounding errors of u, of both logs (at most 45) and of their difference add up to less than
    64 * error.
    """
    with np.errstate(divide="ignore"):
        middle = 64 * np.log(2.0) - np.log(u)
    return np.maximum(middle - 64 * error, 0.0), middle + 64 * error


def _laplace_floats(words: Words, error: float) -> tuple[Floats, Floats]:
    """Return intervals of Laplace noise: the lowest bit of a word is the sign, the others are the first 63
    bits of U, and the size is -ln U."""
    lower_u = (words & ~np.uint64(1)).astype(np.float64)
    low, high = _minus_log(lower_u + 2.0, error)[0], _minus_log(lower_u, error)[1]
    negative = (words & np.uint64(1)).astype(bool)
    return np.where(negative, -high, low), np.where(negative, -low, high)


def _laplace_certified(prefix: int, length: int, bits: int) -> tuple[int, int] | None:
    """Return what `_Noise.certified` does for Laplace noise. The sign is the lowest bit of the first word,
    the 64th of the prefix counted from its highest bit; all other bits are those of U."""
    sign = prefix >> (length - 64) & 1
    rest = length - 64
    u_prefix = (prefix >> (rest + 1)) << rest | prefix & ((1 << rest) - 1)
    enclosure = _entropy.minus_log(u_prefix, length - 1, bits)
    if enclosure is None:
        return None
    return (-enclosure[1], -enclosure[0]) if sign else enclosure


def _gumbel_floats(words: Words, error: float) -> tuple[Floats, Floats]:
    """Return intervals of Gumbel noise -ln(-ln(1 - U)): large for a small U, whose float keeps all its
    digits."""
    low_u = words.astype(np.float64) * 2.0**-64
    high_u = np.minimum(low_u * (1 + 2.0**-51) + 2.0**-64, 1.0)
    low_u *= 1 - 2.0**-51
    with np.errstate(divide="ignore"):
        high = -np.log(-np.log1p(-low_u) * (1 - error))
        low = -np.log(-np.log1p(-high_u) * (1 + error))
    return low - 64 * error, high + 64 * error


def _gumbel_certified(prefix: int, length: int, bits: int) -> tuple[int, int] | None:
    """Return what `_Noise.certified` does for Gumbel noise; None if U may be 0 or 1, or the inner logarithm
    0."""
    if prefix == 0 or prefix + 1 == 1 << length:
        return None
    inner = bits + length
    small = -_entropy.log(1 - Fraction(prefix, 1 << length), inner)[1]
    large = -_entropy.log(1 - Fraction(prefix + 1, 1 << length), inner)[0]
    if small <= 0:
        return None
    low = -_entropy.log(Fraction(large, 1 << inner), bits)[1]
    high = -_entropy.log(Fraction(small, 1 << inner), bits)[0]
    return low, high


_EXPONENTIAL = _Noise(_exponential_floats, _entropy.minus_log)
_LAPLACE = _Noise(_laplace_floats, _laplace_certified)
_GUMBEL = _Noise(_gumbel_floats, _gumbel_certified)


class _Candidate:
    """Holds an interval of one noisy score, which `narrow` makes shorter by drawing 64 more bits of U;
    `interval` is None as long as the noise may be infinite."""

    def __init__(self, index: int, score: Fraction, word: int, noise: _Noise, entropy: Entropy) -> None:
        self.index, self.score, self.noise, self.entropy = index, score, noise, entropy
        self.prefix, self.length = word, 64
        self._enclose()

    def _enclose(self) -> None:
        bits = self.length + 8
        enclosure = self.noise.certified(self.prefix, self.length, bits)
        self.interval = (
            None if enclosure is None else tuple(self.score + Fraction(end, 1 << bits) for end in enclosure)
        )

    def narrow(self) -> None:
        self.prefix = self.prefix << 64 | self.entropy.integer(64)
        self.length += 64
        self._enclose()


def _compare(a: _Candidate, b: _Candidate) -> int:
    """Compare two noisy scores, largest first. Two continuous noises tie with probability zero, so this
    ends."""
    while True:
        if a.interval is not None and b.interval is not None:
            if a.interval[0] > b.interval[1]:
                return -1
            if b.interval[0] > a.interval[1]:
                return 1
        a.narrow()
        b.narrow()


def _largest(
    scores: Any, rate: Any, k: int, noise: _Noise, entropy: Entropy, error: float = _FLOAT_ERROR
) -> npt.NDArray[np.int64]:
    """Return the indices of the k largest noisy scores, largest first.

    Proof: every candidate's noisy score lies in its float interval (for limited offsets
           see `_offsets`). At least k noisy scores are at or above the k-th largest lower end, so a candidate
           whose upper end is below it is not among the k largest. Sorted by lower end, the others fall into
           runs of overlapping intervals (`_runs`); between runs the order is decided, within a run `_compare`
           decides it.
    """
    exact_rate, offsets, exact_scores = _offsets(scores, rate)
    _require.integer(k=k, at_least=0)
    _require.must(k <= len(offsets), "k", k, f"at most the number of scores, {len(offsets)}")
    if k == 0:
        return np.empty(0, np.int64)
    words = stream(entropy).words(len(offsets))
    low, high = noise.floats(words, error)
    rounding = np.abs(offsets) * error
    low += offsets - rounding
    high += offsets + rounding
    return np.array(_decide(low, high, words, exact_rate, exact_scores, k, noise, entropy), dtype=np.int64)


def _decide(
    low: Floats,
    high: Floats,
    words: Words,
    exact_rate: Fraction,
    exact_scores: Callable[[int], int],
    k: int,
    noise: _Noise,
    entropy: Entropy,
) -> list[int]:
    """Return the indices of the k largest noisy scores, largest first, from their float intervals [low, high]
    and, where these overlap, from proved bounds (`_Candidate`) and further bits of U."""
    cut = np.partition(low, len(low) - k)[len(low) - k]
    kept = np.flatnonzero(high >= cut)
    kept = kept[np.argsort(-low[kept], kind="stable")]
    order: list[int] = []
    for run in _runs(low[kept], high[kept]):
        if len(order) >= k:
            break
        members = [int(i) for i in kept[run]]
        if len(members) > 1:
            candidates = [
                _Candidate(i, exact_rate * int(exact_scores(i)), int(words[i]), noise, entropy)
                for i in members
            ]
            members = [c.index for c in sorted(candidates, key=cmp_to_key(_compare))]
        order += members
    return order[:k]


def _runs(low: Floats, high: Floats) -> list[slice]:
    """Return runs of candidates, which come in order of decreasing lower ends, such that all intervals after
    a run lie below all intervals in it."""
    highest_after = np.maximum.accumulate(high[::-1])[::-1][1:]
    starts = [0, *(np.flatnonzero(highest_after < low[:-1]) + 1).tolist()]
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], len(low)], strict=True)]


def _offsets(scores: Any, rate: Any) -> tuple[Fraction, Floats, Callable[[int], int]]:
    """Return the exact rate, rate * (score - best score) in floats, and a function that returns score - best
    score exactly.

    Each float is right to a few units in the last place, or so far below 0 that its exact size changes no
    order.
    """
    exact_rate = _require.exact(rate, "rate")
    _require.non_negative(rate=exact_rate)
    if isinstance(scores, list | tuple) and all(type(score) is int for score in scores):
        with suppress(OverflowError):
            scores = np.array(scores, dtype=np.int64)
    if isinstance(scores, np.ndarray) and scores.dtype.kind in "iu" and scores.ndim == 1 and len(scores):
        low, best = int(scores.min()), int(scores.max())
        if best - low < 1 << 62 and scores.dtype != np.uint64:
            gaps = (scores.astype(np.int64, copy=False) - best).astype(np.float64)
            # A larger rate changes no order: gaps are integers, and 1e280 exceeds every noise.
            return (
                exact_rate,
                gaps * min(_require.float_or_inf(exact_rate), 1e280),
                lambda i: int(scores[i]) - best,
            )
    exact: Sequence[int] = integers(scores, "scores")
    best = max(exact)
    gaps = np.array([_require.float_or_inf(exact_rate * (s - best)) for s in exact], dtype=np.float64)
    # Two candidates at the limit overlap and are compared exactly; no noise lifts one above the others.
    return exact_rate, np.maximum(gaps, -1e300), lambda i: exact[i] - best


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
