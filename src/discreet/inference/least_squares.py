"""Least squares with known variances: adjusts released numbers to linear constraints, or estimates cells from
noisy answers.

`least_squares` moves values as little as possible, in units of their noise's standard deviation, until linear
constraints hold. `measured` estimates the cells x behind noisy linear answers y = A x + noise. Both give best
linear unbiased estimates with their variances. Small systems are solved directly, by orthogonal factors
(SVD and QR) of the matrix with rows of length one; large ones by LSMR (Fong & Saunders 2011, arXiv:1006.0758)
to a relative tolerance of `TOLERANCE`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy import linalg, sparse
from scipy.sparse import linalg as sparse_linalg

from .. import _require
from .._errors import InvalidInput
from . import _check
from ._check import NOTHING_COMPUTED, Floats
from .estimate import Estimate

Method = Literal["auto", "direct", "iterative"]

# The numerical tolerances here are choices between rounding errors (about 1e-16 times the condition) and real
# differences; they were chosen by hand, not tuned.
# Singular values of a matrix with rows of length one count as zero below this times the largest (or times 1,
# if the largest is below 1).
RANK = 1e-10
# Constraints agree if they differ by no more than this, relative to the sizes of their summands.
RELATIVE_TOLERANCE = 1e-9
# The relative tolerance of LSMR's iterations.
TOLERANCE = 1e-12
# A vector counts as determined by the measurements if the part of it that they do not reach is at most this
# long, relative to the vector; for the direct and for the iterative method, which has larger errors.
_UNSEEN, _UNSEEN_ITERATIVE = 1e-8, 1e-6
# Matrices with up to this many entries (16 MB of floats) are solved directly.
DIRECT = 2_000_000


def least_squares(
    values: Any, variances: Any, constraints: Any, totals: Any = 0.0, *, method: Method = "auto"
) -> Estimate:
    """Return the nearest values, in units of their noise's standard deviation, that satisfy
    `constraints @ values == totals`.

    `constraints` (dense or sparse) has one row per constraint; `totals` is one number, or one per constraint.
    A variance of zero marks a value that is known and must not move. Redundant constraints do no harm;
    contradictory ones are refused, and the error names one.

    >>> total_and_parts = least_squares([103.0, 60.0, 37.0], 2.0, [[1, -1, -1]])
    >>> total_and_parts.values.tolist(), total_and_parts.variances.round(3).tolist()
    ([101.0, 62.0, 39.0], [1.333, 1.333, 1.333])
    """
    y = _check.numbers("values", values)
    v = _check.variances(variances, y.shape)
    C = _check.matrix("constraints", constraints, columns=len(y))
    d = _check.for_each("totals", totals, C.shape[0], "constraints")
    C, d, _ = _unit_rows(C, d, "constraints")
    if _direct(C, method):
        return _constrain(y, v, _dense(C), d)
    return _constrained_iteratively(y, v, sparse.csr_array(C), d)


def measured(
    A: Any,
    y: Any,
    variances: Any,
    *,
    unidentified: Literal["refuse", "minimum_norm"] = "refuse",
    method: Method = "auto",
) -> Estimate:
    """Estimate the cells x behind noisy answers y = A x + noise by generalized least squares.

    Rows with variance zero are public facts and hold exactly. Cells that the answers do not determine are
    refused, and the error names them; with `unidentified="minimum_norm"` the solution of least length is
    returned, and the variances of these cells are infinite. Linear combinations of
    cells that the answers do determine (`Estimate.variance_of`) keep finite variances.

    >>> cells = measured([[1, 0], [0, 1], [1, 1]], [10.0, 20.0, 33.0], 1.0)
    >>> cells.values.round(9).tolist(), cells.variance_of([[1, 1]]).round(3).tolist()
    ([11.0, 21.0], [0.667])
    """
    B = _check.matrix("A", A)
    z = _check.numbers("y", y)
    if len(z) != B.shape[0]:
        raise InvalidInput(
            f"y must have one answer for each of the {B.shape[0]} rows of A, got {len(z)}. {NOTHING_COMPUTED}"
        )
    if unidentified not in ("refuse", "minimum_norm"):
        raise _require.fail("unidentified", unidentified, "refuse or minimum_norm")
    v = _check.variances(variances, z.shape)
    B, z, norms = _unit_rows(B, z, "A")
    # not norms squared, which may leave the range of floats
    with np.errstate(over="ignore", under="ignore"):
        scaled = v / norms / norms
    if (np.isinf(scaled) | ((scaled == 0) & (v > 0))).any():
        raise InvalidInput(
            f"the coefficients of A and the variances are too far apart in size. {NOTHING_COMPUTED} "
            f"Bring them nearer to each other."
        )
    v = scaled
    if _direct(B, method):
        estimate, undetermined = _measured_directly(_dense(B), z, v)
    else:
        estimate, undetermined = _measured_iteratively(sparse.csr_array(B), z, v)
    if len(undetermined) and unidentified == "refuse":
        raise InvalidInput(
            f"the answers do not determine {_check.some('cells', undetermined)} (counted from zero). "
            f"{NOTHING_COMPUTED} Measure more, or ask for "
            f"unidentified='minimum_norm', which leaves their variance infinite."
        )
    return estimate


def _direct(matrix: Any, method: Method) -> bool:
    """Return whether to solve directly: as the caller says, or by the size of the matrix."""
    if method not in ("auto", "direct", "iterative"):
        raise _require.fail("method", method, "auto, direct or iterative")
    return method == "direct" or (method == "auto" and matrix.shape[0] * matrix.shape[1] <= DIRECT)


def _dense(matrix: Any) -> Floats:
    dense: Floats = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
    return dense


def _unit_rows(matrix: Any, right_side: Floats, name: str) -> tuple[Any, Floats, Floats]:
    """Return the matrix with rows of length one, the right-hand side divided alike, and the rows' lengths.

    This makes the tolerance for zero singular values independent of units. Rows of zeros get the length 1.
    `name` is the argument's name in errors; if it is "constraints", a row of zeros whose total is not zero is
    refused.
    """
    # Each row is first divided by its largest entry: the squares of entries beyond 1e154 are infinite, and
    # below 1e-162 they are zero.
    largest = _largest_entries(matrix)
    empty = largest == 0
    divisor = np.where(empty, 1.0, largest)
    matrix = _divided_rows(matrix, divisor)
    right_side = right_side / divisor
    if isinstance(matrix, np.ndarray):
        norms = np.linalg.norm(matrix, axis=1)
    else:
        norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    if (right_side[empty] != 0).any() and name == "constraints":
        row = int(np.flatnonzero(empty & (right_side != 0))[0])
        raise InvalidInput(f"constraint {row} has no coefficients, so it cannot hold. {NOTHING_COMPUTED}")
    norms = np.where(empty, 1.0, norms)
    return _divided_rows(matrix, norms), right_side / norms, divisor * norms


def _largest_entries(matrix: Any) -> Floats:
    """Return the largest absolute entry of each row of a dense or sparse matrix; 0 for a row of zeros."""
    if not matrix.shape[1]:
        return np.zeros(matrix.shape[0])
    largest = abs(matrix).max(axis=1)
    return np.asarray(largest if isinstance(largest, np.ndarray) else largest.toarray()).ravel()


def _divided_rows(matrix: Any, divisor: Floats) -> Any:
    """Return a dense or sparse matrix with each row divided by its number."""
    if isinstance(matrix, np.ndarray):
        return matrix / divisor[:, None]
    divided = matrix.tocsr(copy=True)
    divided.data /= np.repeat(divisor, np.diff(divided.indptr))
    return divided


def _rank(singular: Floats) -> int:
    """Return how many singular values count as above zero."""
    return int((singular > RANK * max(1.0, singular.max(initial=0.0))).sum())


def _agree(gap: Floats, scale: Floats) -> None:
    """Refuse constraints that contradict each other: `gap` has the remaining differences, and `scale` the
    sizes of the summands that they are relative to."""
    bad = np.abs(gap) > RELATIVE_TOLERANCE * (1 + scale)
    if bad.any():
        row = int(np.argmax(np.where(bad, np.abs(gap) / (1 + scale), 0)))
        raise InvalidInput(
            f"the constraints contradict each other or the values known exactly: number {row} "
            f"(counted from zero) cannot "
            f"hold together with the others. {NOTHING_COMPUTED}"
        )


def _constrain(y: Floats, v: Floats, C: Floats, d: Floats) -> Estimate:
    """Return y + V C' (C V C')^+ (d - C y) for values y with the diagonal covariance V = diag(v) and the
    constraints C x = d; C' is the transpose and ^+ the pseudoinverse.

    By orthogonal factors: C is first reduced to independent rows W (C = U diag(singular) W), which are then
    weighted by V^(1/2) and factored into Q R. Values of variance zero are left out of C and do not move.
    """
    free = v > 0
    gap = d - C @ y
    U, singular, W = linalg.svd(C[:, free], full_matrices=False)
    r = _rank(singular)
    U, W = U[:, :r], W[:r]
    _agree(gap - U @ (U.T @ gap), np.abs(d) + np.abs(C) @ np.abs(y))
    needed = (U.T @ gap) / singular[:r]
    Q, R, rows = _factors(W.T * np.sqrt(v[free])[:, None])
    step = Q @ linalg.solve_triangular(R, needed[rows], trans="T") if r else np.zeros(int(free.sum()))
    root = np.sqrt(v[free])
    x = y.copy()
    x[free] += root * step

    def times(q: Floats) -> Floats:
        """Return the covariance of the estimates, V^(1/2) (I - Q Q') V^(1/2), times q."""
        t = root * q[free]
        out = np.zeros_like(y)
        out[free] = root * (t - Q @ (Q.T @ t))
        return out

    variances = np.zeros_like(y)
    variances[free] = v[free] * np.clip(1 - (Q**2).sum(axis=1), 0, None)
    return Estimate(values=x, _covariance_product=times, _variances=variances)


def _factors(tall: Floats) -> tuple[Floats, Floats, Any]:
    """Return Q, R, columns with tall[:, columns] = Q R, where Q has orthonormal columns and R is triangular.

    The rows with the largest entries come first in the factorization. With column pivoting this is stable for
    rows of any weights (Cox & Higham 1998).
    """
    heavy = np.argsort(-np.abs(tall).max(axis=1, initial=0.0), kind="stable")
    Q, R, columns = linalg.qr(tall[heavy], mode="economic", pivoting=True)
    in_row_order = np.empty_like(Q)
    in_row_order[heavy] = Q
    return in_row_order, R, columns


def _measured_directly(A: Floats, y: Floats, v: Floats) -> tuple[Estimate, Any]:
    """Return the estimate of x in y = A x + noise with variances v, and the undetermined cells.

    Every solution of the exact rows (variance zero) is x = p + Z w, where the columns of Z span the
    directions that these rows leave free. The noisy rows determine w in the directions `seen`, in which they
    have a component, and say nothing about the directions `unseen`.
    """
    exact = v == 0
    p, Z = _public_facts(A[exact], y[exact], A.shape[1])
    noisy, residual = A[~exact] @ Z, y[~exact] - A[~exact] @ p
    _, singular, W = _right_factors(noisy)
    r = _rank(singular)
    seen, unseen = Z @ W[:r].T, Z @ W[r:].T
    weight = 1 / np.sqrt(v[~exact])
    Q, R, columns = _factors((noisy @ W[:r].T) * weight[:, None])
    inverse = np.empty((r, r))
    inverse[columns] = linalg.solve_triangular(R, np.eye(r)) if r else np.zeros((0, 0))
    x = p + seen @ (inverse @ (Q.T @ (residual * weight)))
    # the covariance of x is root @ root.T
    root = seen @ inverse

    def times(q: Floats) -> Floats:
        """Return the covariance times q; infinite entries where q asks for an unseen direction."""
        if np.linalg.norm(unseen.T @ q) > _UNSEEN * np.linalg.norm(q):
            return np.where(q == 0, 0.0, np.copysign(np.inf, q))
        product: Floats = root @ (root.T @ q)
        return product

    undetermined = np.linalg.norm(unseen, axis=1) > _UNSEEN
    variances = np.where(undetermined, np.inf, (root**2).sum(axis=1))
    return Estimate(values=x, _covariance_product=times, _variances=variances), np.flatnonzero(undetermined)


def _public_facts(A: Floats, y: Floats, n: int) -> tuple[Floats, Floats]:
    """Return the shortest solution of A x = y for n cells, and an orthonormal basis (in columns) of the
    directions in which x is still free: the null space of A."""
    if not len(y):
        return np.zeros(n), np.eye(n)
    U, singular, W = _right_factors(A)
    r = _rank(singular)
    p: Floats = W[:r].T @ ((U[:, :r].T @ y) / singular[:r])
    _agree(y - A @ p, np.abs(y) + np.abs(A) @ np.abs(p))
    return p, W[r:].T


def _right_factors(A: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the singular value decomposition U, singular, W with all rows of W (the right singular vectors).

    U is square only where A has fewer rows than columns: for many rows a square U would take rows² entries.
    """
    U, singular, W = linalg.svd(A, full_matrices=A.shape[0] < A.shape[1])
    return U, singular, W


def _constrained_iteratively(y: Floats, v: Floats, C: Any, d: Floats) -> Estimate:
    """Solve the problem of `_constrain` by LSMR, for matrices too large to factor."""
    root = np.sqrt(v)
    B = C @ sparse.diags_array(root)
    B, scale = _balance_rows(B)

    def shifted(from_: Floats, to: Floats) -> Floats:
        """Return from_ + V^(1/2) times the shortest step that reaches C x = to."""
        step = _lsmr(B, (to - C @ from_) / scale)
        return from_ + root * step

    x = shifted(y, d)
    _agree(d - C @ x, np.abs(d) + abs(C) @ np.abs(y))
    zeros = np.zeros_like(d)
    # the covariance times q is V q - V C' (C V C')^+ C V q: V q, moved until C x = 0
    return Estimate(values=x, _covariance_product=lambda q: shifted(v * q, zeros))


def _balance_rows(B: Any) -> tuple[Any, Floats]:
    """Return the sparse matrix with rows of length one, and the rows' lengths (1 for rows of zeros)."""
    norms = np.sqrt(np.asarray(B.multiply(B).sum(axis=1)).ravel())
    norms = np.where(norms > 0, norms, 1.0)
    return sparse.csr_array(sparse.diags_array(1 / norms) @ B), norms


def _measured_iteratively(A: Any, y: Floats, v: Floats) -> tuple[Estimate, Any]:
    """Solve the problem of `_measured_directly` by LSMR, for matrices too large to factor."""
    if (v == 0).any():
        raise InvalidInput(
            f"variances of zero need the direct method, and a matrix of shape {A.shape} is solved by the "
            f"iterative one here. {NOTHING_COMPUTED} "
            f"Ask for method='direct', or enter the fact by substituting it."
        )
    B = sparse.csr_array(sparse.diags_array(1 / np.sqrt(v)) @ A)
    norms = np.sqrt(np.asarray(B.multiply(B).sum(axis=0)).ravel())
    lengths = np.where(norms > 0, norms, 1.0)
    # columns of length one: the usual preconditioner
    B = sparse.csr_array(B @ sparse.diags_array(1 / lengths))
    x = _lsmr(B, y / np.sqrt(v)) / lengths
    # A random x is measured without noise and recovered: almost surely the cells that do not come back are
    # those that the answers do not determine. The seed is fixed, so that the same question has the same
    # result.
    truth = np.random.default_rng(0).uniform(1, 2, A.shape[1])
    undetermined = np.abs(_lsmr(B, B @ truth) - truth) > _UNSEEN_ITERATIVE

    def times(q: Floats) -> Floats:
        """Return the covariance times q; infinite entries where the answers do not determine q.

        The covariance of x * lengths is (B' B)^+, which is B^+ times the transpose of B^+: two solutions.
        The answers determine q if q / lengths is in the row space of B.
        """
        s = _lsmr(sparse.csr_array(B.T), q / lengths)
        if np.linalg.norm(B.T @ s - q / lengths) > _UNSEEN_ITERATIVE * np.linalg.norm(q / lengths):
            return np.where(q == 0, 0.0, np.copysign(np.inf, q))
        return _lsmr(B, s) / lengths

    return Estimate(values=x, _covariance_product=times), np.flatnonzero(undetermined)


def _lsmr(B: Any, right_side: Floats) -> Floats:
    """Return the shortest solution of least squares; refuse if the iteration has not converged."""
    # generous: in exact arithmetic as many iterations as the smaller side are enough
    limit = 100 + 20 * max(B.shape)
    # stop 3, 6: too badly conditioned (conlim); 7: out of iterations
    x, stop, *_ = sparse_linalg.lsmr(
        B, right_side, atol=TOLERANCE, btol=TOLERANCE, conlim=1e14, maxiter=limit
    )
    if stop in (3, 6, 7):
        raise InvalidInput(
            f"the iteration did not reach a relative error of {TOLERANCE:g}: the system is too badly "
            f"conditioned. {NOTHING_COMPUTED} "
            f"Ask for method='direct', or bring the variances nearer to each other."
        )
    return np.asarray(x, dtype=np.float64)
