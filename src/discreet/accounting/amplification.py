"""Evaluates amplification theorems on bare numbers: by how much sampling, shuffling or hiding iterates lowers
an (epsilon, delta). Each theorem holds for its own neighbor relation.

Accountants apply these theorems to events. These functions state them one at a time, for comparison and
teaching.
"""

from __future__ import annotations

import math

from .. import _require, _round
from .._public import ADD_REMOVE, REPLACE, ZERO_OUT, Neighbors, as_neighbors, require_relation
from . import pure
from .conversion import Cost
from .shuffling import closed_form as shuffling_closed_form
from .shuffling import epsilon as shuffling

__all__ = ["iteration", "lecture", "poisson", "shuffling", "shuffling_closed_form", "without_replacement"]


def poisson(epsilon: float, delta: float, *, rate: float, neighbors: Neighbors = ADD_REMOVE) -> Cost:
    """Return the amplified pair (ln(1 + q (e^epsilon - 1)), q delta) of a Poisson sample with rate q.

    Guarantee: an (epsilon, delta)-DP mechanism on a Poisson sample is DP with the returned pair, under
               add/remove and zero-out. No smaller pair holds for all such mechanisms.
    Proof:     Balle, Barthe & Gaboardi 2018, arXiv:1807.01647, Theorem 8.

    >>> poisson(1.0, 1e-6, rate=0.01).delta
    1e-08
    """
    require_relation(as_neighbors(neighbors), ADD_REMOVE, ZERO_OUT, what="amplification by Poisson sampling")
    return _amplify(epsilon, delta, rate)


def without_replacement(epsilon: float, delta: float, *, rate: float, neighbors: Neighbors = REPLACE) -> Cost:
    """Return the amplified (epsilon, delta) of a sample of fixed size without replacement: the formula of
    `poisson`, under replace only.

    `rate` is the size of the sample divided by that of the table. The `epsilon` and `delta` given must hold
    under replace too. Proof: Balle, Barthe & Gaboardi 2018, arXiv:1807.01647, Theorem 9.
    """
    require_relation(as_neighbors(neighbors), REPLACE, what="amplification by sampling without replacement")
    return _amplify(epsilon, delta, rate)


def _amplify(epsilon: float, delta: float, rate: float) -> Cost:
    """Return (ln(1 + rate (e^epsilon - 1)), rate delta), both rounded up."""
    _require.non_negative(epsilon=epsilon)
    _require.probability(delta=delta, rate=rate)
    amplified_delta = _require.exact(delta, "delta") * _require.exact(rate, "rate")
    return Cost(pure.amplified(_round.up(epsilon), _round.up(rate)), _round.up(amplified_delta))


def lecture(epsilon: float, *, rate: float) -> float:
    """Return 2 q (e^epsilon - e^-epsilon), q the rate: the simple bound on the amplified epsilon of Poisson
    sampling that lectures prove in three lines.

    It is never below the tight bound of `poisson`, because ln(1 + q x) <= q x, and x = e^epsilon - 1 is at
    most 2 (e^epsilon - e^-epsilon).

    >>> lecture(1.0, rate=0.01) > poisson(1.0, 0.0, rate=0.01).value
    True
    """
    _require.non_negative(epsilon=epsilon)
    _require.probability(rate=rate)
    if epsilon > 700:
        return math.inf if rate else 0.0
    return 4 * rate * math.sinh(epsilon) * (1 + 1e-14)


def iteration(
    order: float, *, lipschitz: float, noise: float, steps_after: int, step_size: float, smoothness: float
) -> float:
    """Return the Rényi divergence of the *last* iterate of projected noisy gradient descent, for a record
    used `steps_after` steps before it.

    Guarantee: the divergence at `order` is at most order * 2 (lipschitz / noise)² / (steps_after + 1), if
               only the last iterate is released.
    Proof:     Feldman, Mironov, Talwar & Thakurta 2018, arXiv:1808.06651 (projected noisy SGD, one pass).
               Replacing the record moves one step by at most 2 lipschitz, and the noise of the later steps
               hides that shift in equal parts.
    Assumes:   every loss is convex, `lipschitz`-Lipschitz and `smoothness`-smooth, `step_size` is at most 2
               / smoothness, the projection is onto a convex set, every record is used once, and noise N(0,
               (step_size * noise)² I) enters each step.
    Limits:    says nothing about intermediate iterates or non-convex losses; the record of the last step
               (steps_after = 0) gains nothing.
    """
    _require.must(order > 1, "order", order, "above 1")
    _require.positive(lipschitz=lipschitz, noise=noise, step_size=step_size, smoothness=smoothness)
    _require.integer(steps_after=steps_after, at_least=0)
    largest = 2 / smoothness
    _require.must(step_size <= largest, "step_size", step_size, f"at most 2 / smoothness = {largest:g}")
    return order * 2 * (lipschitz / noise) ** 2 / (steps_after + 1) * (1 + 1e-14)
