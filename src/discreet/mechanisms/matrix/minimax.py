"""Computes optimal lower-triangular strategies for prefix sums of few steps: those with the smallest maximum
error, or with the smallest mean squared error.

A is the matrix of prefix sums, C the strategy and B = A C⁻¹. The smallest maximum error of any factorization
A = B C is the norm gamma_2(A): the smallest product of the length of B's longest row and the length of C's
longest column.
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

# The most steps for which an optimum is searched: a round computes the singular values of a matrix with one
# row per step, which takes about three seconds for 2,048 (measured).
MAX_STEPS = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Triangle:
    """Holds the factor C, whose columns have length at most 1; its `error`, the largest or the root mean
    squared row length of A C⁻¹; and `bound`, a proved lower bound on the error of every strategy."""

    C: Floats
    error: float
    bound: float

    @property
    def strategy(self) -> Dense:
        return Dense(rows=tuple(tuple(row[: t + 1].tolist()) for t, row in enumerate(self.C)))


@lru_cache(maxsize=16)
def optimal_prefix(steps: int, minimize: str = "max", gap: float = 1e-3) -> Triangle:
    """Return the lower-triangular strategy for prefix sums with the smallest maximum (`minimize` "max") or
    root mean squared ("rms") error, up to a relative `gap` that is proved by the dual."""
    _require.integer(steps=steps, at_least=1)
    _require.one_of(("max", "rms"), minimize=minimize)
    _require.positive(gap=gap)
    if steps > MAX_STEPS:
        raise _require.fail("steps", steps, f"at most {MAX_STEPS} for an optimal strategy; see matrix.blt")
    if minimize == "max":
        return _gamma(np.tril(np.ones((steps, steps))), gap)
    # The gap of the squared error, which is about twice that of the error.
    best = optimal.gaussian(prefix(steps).gram(), gap=2 * gap)
    return Triangle(_lower(best.X), math.sqrt(best.error / steps), math.sqrt(best.bound / steps))


def _gamma(A: Floats, gap: float, rounds: int = 500) -> Triangle:
    """Return gamma_2(A) with the factor C that attains it, up to `gap`. Prefix sums of 256 steps take 46
    rounds to a gap of 1e-3 (measured).

    Guarantee: `bound <= gamma_2(A) <= error`, and `error <= (1 + gap) bound` unless `rounds` ran out.
    Proof:     for positive weights u and v that each add up to 1, with diagonal matrices D_u and D_v, the
               nuclear norm of D_u^(1/2) A D_v^(1/2) is at most gamma_2(A) (Linial, Mendelson, Schechtman &
               Shraibman 2007, duality of gamma_2): `bound`. With its singular value decomposition U S Vᵀ,
               B = D_u^(-1/2) U S^(1/2) and C = S^(1/2) Vᵀ D_v^(-1/2) have B C = A: `error`. Where the bound
               is largest, all rows of B, and all columns of C, have equal lengths; each round multiplies the
               weights by these squared lengths.
    """
    n = len(A)
    u = v = np.full(n, 1.0 / n)
    bound, best, factor = 0.0, math.inf, np.eye(n)
    for _ in range(rounds):
        root_u, root_v = np.sqrt(u), np.sqrt(v)
        U, S, Vt = linalg.svd(root_u[:, None] * A * root_v, check_finite=False)
        # the squared lengths of the rows of B and of the columns of C
        rows = (U**2 @ S) / u
        columns = (S @ Vt**2) / v
        bound = max(bound, float(S.sum()))
        error = math.sqrt(float(rows.max() * columns.max()))
        if error < best:
            best, factor = error, (np.sqrt(S)[:, None] * Vt / root_v) / math.sqrt(columns.max())
        if best <= (1 + gap) * bound:
            break
        u, v = u * rows, v * columns
        u, v = u / u.sum(), v / v.sum()
    return Triangle(_lower(factor.T @ factor), best, bound)


def _lower(X: Floats) -> Floats:
    """Return the lower-triangular C with Cᵀ C = X and a positive diagonal: the Cholesky factor of X with rows
    and columns in reverse order, reversed again."""
    upper = linalg.cholesky(X[::-1, ::-1], lower=False)
    return np.ascontiguousarray(upper[::-1, ::-1])
