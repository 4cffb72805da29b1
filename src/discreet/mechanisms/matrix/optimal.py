"""Optimizes strategies for matrix mechanisms: fixed-point iteration for Gaussian noise, p-identity matrices
for Laplace noise. Only the error depends on the result: privacy rests on the sensitivity, which callers
compute. A stored strategy is its workload and its settings, and is built here again: what these functions
return for given arguments must not change.

Both need only the Gram matrix G = Wᵀ W of a workload W. A strategy is a matrix A whose columns have norm at
most 1, in l2 for Gaussian and in l1 for Laplace noise. With X = Aᵀ A, its error is trace(G X⁻¹), in units of
the noise variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

Floats = NDArray[np.float64]

# This share of G's largest eigenvalue is added to all its eigenvalues, so that X stays regular where G is
# not.
FLOOR = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """Holds a feasible X, its error, and a proved lower bound on the error of every feasible X."""

    X: Floats
    error: float
    bound: float


def gaussian(gram: Floats, *, gap: float = 1e-4, rounds: int = 200) -> Optimum:
    """Minimize trace(G X⁻¹) over positive definite X with diagonal at most 1, to a relative `gap` that is
    proved. `error` and `bound` are those of G with `FLOOR` added.

    Guarantee: `bound <= optimum <= error`, and `error <= (1 + gap) bound` unless `rounds` ran out.
    Proof:     v > 0 are the Lagrange multipliers of the diagonal, D = diag(v). X D X = G has the solution
               X = D^(-1/2) (D^(1/2) G D^(1/2))^(1/2) D^(-1/2), the minimizer of the Lagrangian. Its value,
               for the best multiple of v, is trace((D^(1/2) G D^(1/2))^(1/2))² / sum(v): a lower bound for
               every v (weak duality). X scaled to a unit diagonal is feasible: an upper bound. v <- v diag(X)
               is the fixed-point iteration of Denisov, McMahan, Rush, Smith & Thakurta 2022
               (arXiv:2202.08312), with the optimum as its fixed point. Both bounds hold up to the rounding of
               eigenvalues.
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
        # v diag(X), which is the diagonal of (D^(1/2) G D^(1/2))^(1/2)
        diagonal = np.einsum("ij,j,ij->i", vectors, singular, vectors, optimize=True)
        previous_bound, bound = bound, max(bound, float(singular.sum() ** 2 / v.sum()))
        # The error of X costs as much again, so it is computed when the lower bound has nearly converged, and
        # in every tenth round.
        if bound - previous_bound <= gap * bound or iteration % 10 == 9:
            # The candidate X, scaled to a diagonal of 1, is factor factorᵀ, and its inverse is
            # scaled diag(1 / singular) scaledᵀ.
            scaled = vectors * np.sqrt(diagonal)[:, None]
            error = float((np.einsum("ij,ij->j", scaled, G @ scaled) / singular).sum())
            if error < best:
                best = error
                factor = vectors * np.sqrt(singular) / np.sqrt(diagonal)[:, None]
                X = factor @ factor.T
            if best <= (1 + gap) * bound:
                break
        v = diagonal
    return Optimum(X=X, error=best, bound=bound)


def p_identity(gram: Floats, p: int, *, restarts: int = 1, rounds: int = 500) -> Floats:
    """Return a p by n matrix Θ >= 0, n the number of cells, for which the strategy that stacks the identity
    over Θ, columns scaled to l1 norm 1, has a small error: OPT_0 of HDMM.

    L-BFGS-B with the analytic gradient (McKenna, Miklau, Hay & Machanavajjhala 2018, PVLDB 11(10), OPT_0)
    finds a local minimum, the best of `restarts`; `rounds` limits the iterations of each. The starts are
    fixed, so that the same workload gives the same strategy.
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
    """Return the error of `p_identity` at Θ = `flat`, trace(S G S M), and its gradient in Θ.

    S = diag(1 + column sums of Θ) is `scale`, S G S is `H`, and M = (I + Θᵀ Θ)⁻¹ = I - Θᵀ K Θ with
    K = (I + Θ Θᵀ)⁻¹. The gradient has two parts: -2 Θ M H M from M, and from S the row 2 diag(G S M), the
    same for every row of Θ.
    """
    n = len(gram)
    theta = flat.reshape(p, n)
    scale = 1 + theta.sum(axis=0)
    H = gram * np.outer(scale, scale)
    k_theta = linalg.solve(np.eye(p) + theta @ theta.T, theta, assume_a="pos")
    k_theta_h = k_theta @ H
    error = float(np.trace(H) - np.einsum("ij,ij->", k_theta_h, theta))
    # Θ M = K Θ, so that Θ M H M = (K Θ H) - (K Θ H Θᵀ) K Θ.
    theta_mhm = k_theta_h - (k_theta_h @ theta.T) @ k_theta
    diagonal_gsm = (np.diag(H) - np.einsum("ij,ij->j", k_theta_h, theta)) / scale
    gradient = -2 * theta_mhm + 2 * diagonal_gsm
    return error, gradient.ravel()


def svd_bound(gram: Floats) -> float:
    """Return a lower bound on the error of any strategy with columns of l2 norm (so also of l1 norm) at most
    1: (sum of singular values of W)² / cells.

    Proof: Li & Miklau 2013, ICDT; it is `gaussian`'s dual at equal v.
    """
    values = linalg.eigvalsh(gram)
    # Eigenvalues that are rounding errors of zero count as zero: their roots would make the bound too large.
    values = np.where(values > 1e-13 * max(values[-1], 0.0) * len(values), values, 0.0)
    return float(np.sqrt(values).sum() ** 2 / len(gram))


def least_squares_error(gram: Floats, X: Floats) -> float:
    """Return trace(G X⁺), the sum of the variances of least squares for noise of variance 1; infinite where
    the strategy (X = Aᵀ A) does not determine the answers of the workload."""
    try:
        lower = linalg.cholesky(X, lower=True)
        diagonal = np.diag(lower)
        # A condition number of X below about 1e12: the triangular solve keeps a few digits.
        if diagonal.min() > 1e-6 * diagonal.max():
            return float(np.trace(linalg.cho_solve((lower, True), gram)))
    except linalg.LinAlgError:
        pass
    values, vectors = linalg.eigh(X)
    # Smaller eigenvalues are rounding errors of zero: directions that the strategy does not measure.
    measured = values > 1e-10 * max(values.max(), 1e-300)
    # |W v|² for each eigenvector v
    energies = np.einsum("ij,ij->j", vectors, gram @ vectors)
    if energies[~measured].sum() > 1e-8 * max(np.trace(gram), 1e-300):
        return float("inf")
    return float((energies[measured] / values[measured]).sum())
