"""Audits with a single run: each of many canaries is included by its own coin, and an attack guesses which
were in.

Training a model thousands of times is too expensive. But one run can carry thousands of canaries, and if it
is private, then hardly more guesses can be right than randomized response would allow, although the guesses
are not independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy import special, stats

from .. import _require
from .._errors import InvalidInput
from ..accounting.conversion import gaussian_epsilon
from .outputs import floats
from .rates import fresh_order

# The number of bisections: after 60 the interval is as small as floats allow.
_HALVINGS = 60


def one_run_p_value(canaries: int, guesses: int, right: int, *, epsilon: float, delta: float = 0.0) -> float:
    """Return an upper bound on the probability of at least `right` right guesses out of `guesses`, if the run
    was (epsilon, delta)-DP.

    Guarantee: at least P[right guesses >= right] for every (epsilon, delta)-DP run and every way to guess
               that sees its output only.
    Proof:     Steinke, Nasr & Jagielski 2023, arXiv:2305.08846, Theorem 5.2: with W binomial (guesses, e^eps
               / (1 + e^eps)), P[W >= right] + 2 canaries delta max_i P[right > W >= right - i] / i.
    Assumes:   each canary is in or out by a fair coin of its own, and the privacy is that of neighbors that
               differ in whether one canary is in; a guess is in, out, or none.

    >>> round(one_run_p_value(1000, 100, 75, epsilon=1.0), 4)
    0.3827
    """
    _check(canaries, guesses, right)
    _require.non_negative(epsilon=epsilon)
    _require.probability(delta=delta)
    accuracy = float(special.expit(epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, accuracy))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, accuracy))
    worst = float((below / np.arange(1, right + 1)).max())
    return min(1.0, tail + 2 * canaries * delta * worst)


def one_run_epsilon(
    canaries: int, guesses: int, right: int, *, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return a lower bound on epsilon from one run: the largest one that so many right guesses refute.

    Guarantee: above the true epsilon with probability at most 1 - confidence.
    Proof:     every epsilon whose p-value is below the level is refuted, and with it all smaller ones, since
               privacy at an epsilon implies privacy at larger ones. Let c be the least count that refutes
               the true epsilon. It is refuted only if at least c guesses are right, which has probability at
               most the p-value of c, below the level.
    Assumes:   as `one_run_p_value`.

    >>> [round(one_run_epsilon(1000, g, v), 5) for g, v in ((1000, 1000), (500, 400), (100, 100))]
    [5.80907, 1.19865, 3.49297]
    """
    _check(canaries, guesses, right)
    _require.open_probability(confidence=confidence)
    return _largest_refuted(
        lambda epsilon: (
            one_run_p_value(canaries, guesses, right, epsilon=epsilon, delta=delta) < 1 - confidence
        )
    )


def one_run_mu(canaries: int, guesses: int, right: int, *, confidence: float = 0.95) -> float:
    """Return a lower bound on the mu of Gaussian DP from one run.

    For a Gaussian run its epsilon at a small delta is about twice that of `one_run_epsilon`. Both are sharp
    where few guesses are made and nearly all are right. A mu-GDP run may leak much with probability 5%, so at
    95% confidence many uncertain guesses refute only a small mu.

    Guarantee: above the true mu with probability at most 1 - confidence, for every mu-GDP run.
    Proof:     Mahloujifar, Melis & Chaudhuri 2024, arXiv:2410.22235. Let f be the trade-off function. Assume
               that so many right guesses have probability at least the level. For one count after the other
               downwards, the inverse of 1 - f then bounds the right and wrong guesses from below. If these
               bounds together exceed the number of guesses, f is refuted. With one canary this is the exact
               optimal test.
    Assumes:   as `one_run_p_value`.

    >>> round(one_run_mu(1000, 500, 400), 3)
    0.519
    """
    _check(canaries, guesses, right)
    _require.open_probability(confidence=confidence)
    return _largest_refuted(
        lambda mu: gaussian_refuted(canaries, guesses, right, mu=mu, level=1 - confidence)
    )


def one_run_gaussian_epsilon(
    canaries: int, guesses: int, right: int, *, delta: float, confidence: float = 0.95
) -> float:
    """Return the epsilon of `one_run_mu` at a delta: a lower bound *if* the run is Gaussian, and only
    then."""
    _require.open_probability(delta=delta)
    mu = one_run_mu(canaries, guesses, right, confidence=confidence)
    # `gaussian_epsilon` is rounded up, for privacy; a lower bound is wanted here.
    return gaussian_epsilon(mu, float(delta)) * (1 - 1e-9) if mu > 0 else 0.0


def gaussian_refuted(canaries: int, guesses: int, right: int, *, mu: float, level: float) -> bool:
    """Return whether at least `right` right guesses have a probability below `level` in every mu-GDP run."""
    normal = NormalDist()

    def least_fpr(tpr: float) -> float:
        return normal.cdf(normal.inv_cdf(min(tpr, 1 - 1e-16)) - mu)

    return curve_refuted(canaries, guesses, right, least_fpr=least_fpr, level=level)


def curve_refuted(
    canaries: int, guesses: int, right: int, *, least_fpr: Callable[[float], float], level: float
) -> bool:
    """Return whether at least `right` right guesses have a probability below `level` in every run with this
    trade-off curve.

    `least_fpr` is the inverse of 1 - f: the least false-positive rate with which a true-positive rate can be
    had; a lower bound of it is safe. The loop is the recursion of the paper below: `rights` and `wrongs`
    bound the probabilities of right and of wrong guesses, from the count `right` downwards.

    Proof: Mahloujifar, Melis & Chaudhuri 2024, arXiv:2410.22235, as in `one_run_mu`.
    """
    _check(canaries, guesses, right)
    _require.open_probability(level=level)
    rights, wrongs = level * right / canaries, level * (guesses - right) / canaries
    for count in range(right - 1, -1, -1):
        if rights <= 0:
            break
        least = least_fpr(rights)
        # The bounds do not change from this count on.
        if least <= wrongs:
            break
        rights = min(1.0, rights + count / (guesses - count) * (least - wrongs))
        wrongs = least
    return rights + wrongs > guesses / canaries * (1 + 1e-12)


def guess_by_score(
    scores: Sequence[float] | Any, included: Sequence[bool] | Any, guesses: int
) -> tuple[int, int]:
    """Guess "in" for the canaries with the highest scores and "out" for those with the lowest, half each;
    return the number of guesses, and how many of them are right. Which of equal scores come first is drawn
    anew: by their position the caller's order, such as members last, would guess for the scores."""
    values, truth = floats(scores=scores), np.asarray(included, dtype=bool)
    if values.ndim != 1 or values.shape != truth.shape:
        raise InvalidInput(
            "scores and included must be two lists of one length: one score and one coin per canary."
        )
    if np.isnan(values).any():
        raise InvalidInput("a canary's score must be a number, and some are NaN. Nothing was guessed.")
    _require.integer(guesses=guesses, at_least=1)
    if guesses > len(values):
        raise InvalidInput(f"{guesses} guesses for {len(values)} canaries. Nothing was computed.")
    ties = fresh_order(len(values))
    order = ties[np.argsort(values[ties], kind="stable")]
    outs, ins = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return guesses, int(truth[ins].sum() + (~truth[outs]).sum())


def audit_one_run(
    scores: Sequence[float] | Any,
    included: Sequence[bool] | Any,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    fractions: Sequence[float] = (1.0, 0.5, 0.2, 0.1, 0.05),
) -> float:
    """Return a lower bound on epsilon from the canaries' scores, with the best of several numbers of guesses.

    Guarantee: above the true epsilon with probability at most 1 - confidence.
    Proof:     each number of guesses is fixed beforehand and gets an equal part of the level (union bound).
    Assumes:   as `one_run_p_value`.
    """
    _require.non_empty(fractions=fractions)
    _require.open_probability(confidence=confidence)
    bound_confidence = 1 - (1 - confidence) / len(fractions)
    count = np.size(scores)
    bounds = []
    for fraction in fractions:
        _require.probability(fraction=fraction)
        guesses, right = guess_by_score(scores, included, max(1, math.floor(fraction * count)))
        bounds.append(one_run_epsilon(count, guesses, right, delta=delta, confidence=bound_confidence))
    return max(bounds)


def _largest_refuted(refuted: Callable[[float], bool]) -> float:
    """Return the largest refuted number, by bisection from below: the result itself was refuted, or is 0."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > 1 << 16:
            return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check(canaries: int, guesses: int, right: int) -> None:
    """Refuse counts that contradict each other."""
    _require.integer(canaries=canaries, at_least=1)
    _require.integer(guesses=guesses, at_least=1)
    _require.integer(right=right, at_least=0)
    if not right <= guesses <= canaries:
        raise InvalidInput(
            f"right <= guesses <= canaries is needed, got {right}, {guesses} and {canaries}. Nothing "
            f"was computed."
        )
