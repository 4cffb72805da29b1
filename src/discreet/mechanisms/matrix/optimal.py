"""Optimizers of strategies for matrix mechanisms: fixed-point iteration for Gaussian noise, p-identity
matrices for Laplace noise. They decide the error alone: privacy rests on the sensitivity, which callers
compute.

Both look at a workload through its Gram matrix G = Wᵀ W alone. The error of a strategy A with X = Aᵀ A, whose
columns have norm at most 1, is trace(G X⁻¹) in units of the noise variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

Floats = NDArray[np.float64]

# Directions of G below this share of its largest eigenvalue are measured as if they had it: they carry no
# error worth speaking of, and keep X regular.
FLOOR = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """Holds a feasible X, the error it reaches, and a proved lower bound on what any X reaches."""

    X: Floats
    error: float
    bound: float


def gaussian(gram: Floats, *, gap: float = 1e-4, rounds: int = 200) -> Optimum:
    """Minimize trace(G X⁻¹) over positive definite X with diagonal at most 1, to a relative gap that is
    proved.

    Guarantee: `bound <= optimum <= error`, and `error <= (1 + gap) bound` unless `rounds` ran out.
    Proof:     for v > 0, X D_v X = G has the solution X = D^(-1/2) (D^(1/2) G D^(1/2))^(1/2) D^(-1/2), the
               minimizer of the Lagrangian, whose value scaled by the best factor is trace((D^(1/2) G
               D^(1/2))^(1/2))² / sum(v): a lower bound for every v (weak duality). X scaled to a unit
               diagonal is feasible: an upper bound. v <- v diag(X) is the fixed-point iteration of Denisov,
               McMahan, Rush, Smith & Thakurta 2022 (arXiv:2202.08312), with the optimum as its fixed point.
               Bounds are to the rounding of eigenvalues.
    """
    n = len(gram)
    G = gram + FLOOR * np.linalg.norm(gram, 2) * np.eye(n)
    values, vectors = linalg.eigh(G, driver="evd")
    v = np.einsum("ij,j,ij->i", vectors, np.sqrt(np.clip(values, 0, None)), vectors)
    best, bound, X = np.inf, 0.0, np.eye(n)
    for iteration in range(rounds):
        root = np.sqrt(v)
        values, vectors = linalg.eigh(root[:, None] * G * root, driver="evd", check_finite=False)
        singular = np.sqrt(np.clip(values, np.finfo(float).tiny, None))
        diagonal = np.einsum("ij,j,ij->i", vectors, singular, vectors, optimize=True)
        previous_bound, bound = bound, max(bound, float(singular.sum() ** 2 / v.sum()))
        # The primal value costs as much again: it is looked at when the dual has nearly settled.
        if bound - previous_bound <= gap * bound or iteration % 10 == 9:
            scaled = vectors * np.sqrt(diagonal)[:, None]
            error = float((np.einsum("ij,ij->j", scaled, G @ scaled) / singular).sum())
            if error < best:
                best = error
                half = vectors * np.sqrt(singular) / np.sqrt(diagonal)[:, None]
                X = half @ half.T
            if best <= (1 + gap) * bound:
                break
        v = diagonal
    return Optimum(X=X, error=best, bound=bound)


def p_identity(gram: Floats, p: int, *, restarts: int = 1, rounds: int = 500) -> Floats:
    """Return the p by n matrix Θ >= 0 for which the strategy [I; Θ], columns scaled to l1 norm 1, has a small
    error: OPT_0 of HDMM.

    L-BFGS-B with the analytic gradient (McKenna, Miklau, Hay & Machanavajjhala 2018, PVLDB 11(10), OPT_0). A
    local minimum; starts are fixed, so that the same workload gives the same strategy.
    """
    n = len(gram)
    scale = float(np.trace(gram)) or 1.0
    best, strategy = np.inf, np.zeros((p, n))
    for seed in range(restarts):
        start = np.random.default_rng(seed).uniform(0.0, 1.0, (p, n)) ** 2
        solved = optimize.minimize(
            partial(_p_identity_error, gram=gram / scale, p=p),
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * start.size,
            options={"maxiter": rounds, "maxfun": 2 * rounds},
        )
        if solved.fun < best:
            best, strategy = float(solved.fun), np.asarray(solved.x).reshape(p, n)
    return strategy


def _p_identity_error(flat: Floats, *, gram: Floats, p: int) -> tuple[float, Floats]:
    """Return trace(S G S M) with S = diag(1 + column sums of Θ), M = (I + Θᵀ Θ)⁻¹ = I - Θᵀ K Θ, K = (I + Θ
    Θᵀ)⁻¹; and its gradient.

    d/dΘ of M's part is -2 Θ M (S G S) M; of S's part, the same for all rows: 2 diag(G S M).
    """
    n = len(gram)
    theta = flat.reshape(p, n)
    scale = 1 + theta.sum(axis=0)
    H = gram * np.outer(scale, scale)
    half = linalg.solve(np.eye(p) + theta @ theta.T, theta, assume_a="pos")
    left = half @ H
    error = float(np.trace(H) - np.einsum("ij,ij->", left, theta))
    # Θ M = K Θ, so that Θ M H M = (K Θ H) - (K Θ H Θᵀ) K Θ.
    inner = left - (left @ theta.T) @ half
    weighted = (np.diag(H) - np.einsum("ij,ij->j", left, theta)) / scale
    gradient = -2 * inner + 2 * weighted
    return error, gradient.ravel()


def svd_bound(gram: Floats) -> float:
    """Return a lower bound on the error of any strategy with columns of l2 norm (so also of l1 norm) at most
    1: (sum of singular values of W)² / cells.

    Proof: Li & Miklau 2013, ICDT; it is `gaussian`'s dual at equal v.
    """
    values = linalg.eigvalsh(gram)
    # Eigenvalues that are rounding errors of zero would add their roots.
    values = np.where(values > 1e-13 * max(values[-1], 0.0) * len(values), values, 0.0)
    return float(np.sqrt(values).sum() ** 2 / len(gram))


def least_squares_error(gram: Floats, X: Floats) -> float:
    """Return trace(G X⁺), the total squared error of least squares for unit noise; infinite where the
    strategy does not measure what the workload asks."""
    try:
        lower = linalg.cholesky(X, lower=True)
        diagonal = np.diag(lower)
        # A condition number of X below about 1e12: the triangular solve keeps a few digits.
        if diagonal.min() > 1e-6 * diagonal.max():
            return float(np.trace(linalg.cho_solve((lower, True), gram)))
    except linalg.LinAlgError:
        pass
    values, vectors = linalg.eigh(X)
    # Below, eigenvalues are rounding errors of zero: directions that the strategy does not measure.
    measured = values > 1e-10 * max(values.max(), 1e-300)
    weights = np.einsum("ij,ij->j", vectors, gram @ vectors)
    if weights[~measured].sum() > 1e-8 * max(np.trace(gram), 1e-300):
        return float("inf")
    return float((weights[measured] / values[measured]).sum())
