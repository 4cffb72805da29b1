"""Optimal lower-triangular strategies of prefix sums, for few steps: the least largest error, or the least
mean squared one.

The least largest error of any factorization A = B C is the norm gamma_2(A): the smallest product of B's
longest row and C's longest column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from ... import _require
from . import optimal
from .triangular import Dense
from .workloads import prefix

Floats = NDArray[np.float64]

# Steps for which an optimum is searched: a round takes the singular values of a matrix of so many rows, about
# three seconds for 2,048 (measured).
MAX_STEPS = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Triangle:
    """Holds the factor C whose columns have length at most 1, the error of A C⁻¹ it reaches, and a proved
    lower bound of it."""

    C: Floats
    error: float
    bound: float

    @property
    def strategy(self) -> Dense:
        return Dense(rows=tuple(tuple(row[: t + 1].tolist()) for t, row in enumerate(self.C)))


@lru_cache(maxsize=16)
def optimal_prefix(steps: int, minimize: str = "max", gap: float = 1e-3) -> Triangle:
    """Return the lower-triangular strategy of prefix sums with the least error, `minimize` "max" or "rms", to
    a relative `gap` that is proved by the dual."""
    _require.integer(steps=steps, at_least=1)
    _require.one_of(("max", "rms"), minimize=minimize)
    if steps > MAX_STEPS:
        raise _require.fail("steps", steps, f"at most {MAX_STEPS} for an optimal strategy; see matrix.blt")
    if minimize == "max":
        return _gamma(np.tril(np.ones((steps, steps))), gap)
    best = optimal.gaussian(prefix(steps).gram(), gap=2 * gap)
    return Triangle(_lower(best.X), math.sqrt(best.error / steps), math.sqrt(best.bound / steps))


def _gamma(A: Floats, gap: float, rounds: int = 500) -> Triangle:
    """Return gamma_2(A) with its factor. Prefix sums of 256 steps take 46 rounds to a gap of 1e-3 (measured).

    Guarantee: `bound <= gamma_2(A) <= error`, and `error <= (1 + gap) bound` unless `rounds` ran out.
    Proof:     for weights u, v that add up to 1, the nuclear norm of D_u^(1/2) A D_v^(1/2) is at most
               gamma_2(A) (Linial, Mendelson, Schechtman & Shraibman 2007, duality of gamma_2). With its
               singular values U S Vᵀ, B = D_u^(-1/2) U S^(1/2) and C = S^(1/2) Vᵀ D_v^(-1/2) are feasible; at
               a maximum their rows and columns have equal lengths, so that weights are multiplied by these
               lengths.
    """
    n = len(A)
    u = v = np.full(n, 1.0 / n)
    bound, best, factor = 0.0, math.inf, np.eye(n)
    for _ in range(rounds):
        left, right = np.sqrt(u), np.sqrt(v)
        U, S, Vt = linalg.svd(left[:, None] * A * right, check_finite=False)
        rows = (U**2 @ S) / u
        columns = (S @ Vt**2) / v
        bound = max(bound, float(S.sum()))
        error = math.sqrt(float(rows.max() * columns.max()))
        if error < best:
            best, factor = error, (np.sqrt(S)[:, None] * Vt / right) / math.sqrt(columns.max())
        if best <= (1 + gap) * bound:
            break
        u, v = u * rows, v * columns
        u, v = u / u.sum(), v / v.sum()
    return Triangle(_lower(factor.T @ factor), best, bound)


def _lower(X: Floats) -> Floats:
    """Return the lower-triangular C with Cᵀ C = X and a positive diagonal: Cholesky's factor in the reverse
    order."""
    upper = linalg.cholesky(X[::-1, ::-1], lower=False)
    return np.ascontiguousarray(upper[::-1, ::-1])
