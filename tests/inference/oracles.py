"""Second routes to the same numbers: slow, dense, plain."""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats

FALSE_ALARM = 1e-9


def constrained(y, v, C, d):
    """min sum (x - y)² / v with C x = d, by the formula; and the covariance."""
    V = np.diag(v)
    gain = V @ C.T @ np.linalg.pinv(C @ V @ C.T)
    return y + gain @ (d - C @ y), V - gain @ C @ V


def generalized(A, y, v):
    """(A' V^-1 A)^-1 A' V^-1 y and its covariance."""
    W = np.diag(1 / v)
    inverse = np.linalg.inv(A.T @ W @ A)
    return inverse @ A.T @ W @ y, inverse


def tree_matrix(parents):
    """One row for each node: which leaves it sums."""
    n = len(parents)
    leaves = [i for i in range(n) if i not in set(parents)]
    rows = np.zeros((n, len(leaves)))
    for column, node in enumerate(leaves):
        while node != -1:
            rows[node, column] = 1
            node = parents[node]
    return rows


def assert_variance(samples, claimed):
    """Gaussian samples with mean zero: their mean square over the claimed variance is chi squared,
    exactly."""
    n = len(samples)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], n) / n
    ratio = float(np.mean(np.square(samples)) / claimed)
    assert low <= ratio <= high, f"variance off by a factor {ratio}"


def assert_nearest_non_negative(x, y, v, C, d):
    """x is the nearest point of a polytope iff no point of it lies further along the residual: a linear
    program tells."""
    scale = 1 + np.abs(y).max() + np.abs(d).max()
    assert (x >= 0).all()
    assert np.allclose(C @ x, d, atol=1e-8 * scale)
    slope = (x - y) / v
    slope = slope / (1 + np.abs(slope).max())
    least = optimize.linprog(slope, A_eq=C, b_eq=C @ x, method="highs")
    assert least.status == 0, least.message
    assert least.fun >= slope @ x - 1e-6 * scale
