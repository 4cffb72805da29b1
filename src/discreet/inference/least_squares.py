"""Least squares with known variances: adjust released numbers to what must hold, or estimate cells from noisy
answers.

`least_squares` moves values as little as possible, in units of their noise, until linear constraints hold.
`measured` estimates the cells x behind noisy linear answers y = A x + noise. Both give best linear unbiased
estimates with their variances. Small systems are solved directly, by orthogonal factors of the well-scaled
matrix; large ones by LSMR (Fong & Saunders 2011, arXiv:1006.0758) to a relative tolerance of `TOLERANCE`.
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

# singular values below this, relative to the largest, of a matrix with rows of length one, count as zero
RANK = 1e-10
# constraints that differ by no more than this, relative to their terms, agree
RELATIVE_TOLERANCE = 1e-9
# the relative tolerance of LSMR's iterations
TOLERANCE = 1e-12
# entries of a matrix that is still solved directly
DIRECT = 2_000_000


def least_squares(
    values: Any, variances: Any, constraints: Any, totals: Any = 0.0, *, method: Method = "auto"
) -> Estimate:
    """Return the nearest values, in units of their noise, with `constraints @ values == totals`.

    One row of `constraints` (dense or sparse) for each. A variance of zero marks a value that is known and
    must not move. Redundant constraints do no harm; contradictory ones are refused by name.

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
    refused by name; with `minimum_norm` they get the shortest solution, and their variance is infinite (that
    of a question which is determined stays finite).

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
    v = v / norms**2
    if _direct(B, method):
        estimate, lost = _measured_directly(_dense(B), z, v)
    else:
        estimate, lost = _measured_iteratively(sparse.csr_array(B), z, v)
    if len(lost) and unidentified == "refuse":
        raise InvalidInput(
            f"the answers do not determine {_check.some('cells', lost)} (counted from zero). "
            f"{NOTHING_COMPUTED} Measure more, or ask for "
            f"unidentified='minimum_norm', which leaves their variance infinite."
        )
    return estimate


def _direct(matrix: Any, method: Method) -> bool:
    if method not in ("auto", "direct", "iterative"):
        raise _require.fail("method", method, "auto, direct or iterative")
    return method == "direct" or (method == "auto" and matrix.shape[0] * matrix.shape[1] <= DIRECT)


def _dense(matrix: Any) -> Floats:
    dense: Floats = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
    return dense


def _unit_rows(matrix: Any, right: Floats, name: str) -> tuple[Any, Floats, Floats]:
    """Scale rows to length one, so that what counts as zero does not depend on units.

    An empty row must ask for zero.
    """
    if isinstance(matrix, np.ndarray):
        norms = np.linalg.norm(matrix, axis=1)
    else:
        norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    empty = norms == 0
    if (right[empty] != 0).any() and name == "constraints":
        row = int(np.flatnonzero(empty & (right != 0))[0])
        raise InvalidInput(f"constraint {row} has no coefficients, so it cannot hold. {NOTHING_COMPUTED}")
    norms = np.where(empty, 1.0, norms)
    scaled = (
        matrix / norms[:, None] if isinstance(matrix, np.ndarray) else sparse.diags_array(1 / norms) @ matrix
    )
    return scaled, right / norms, norms


def _rank(singular: Floats) -> int:
    return int((singular > RANK * max(1.0, singular.max(initial=0.0))).sum())


def _agree(gap: Floats, scale: Floats) -> None:
    """Refuse constraints that contradict each other."""
    bad = np.abs(gap) > RELATIVE_TOLERANCE * (1 + scale)
    if bad.any():
        row = int(np.argmax(np.where(bad, np.abs(gap) / (1 + scale), 0)))
        raise InvalidInput(
            f"the constraints contradict each other or the values known exactly: number {row} "
            f"(counted from zero) cannot "
            f"hold together with the others. {NOTHING_COMPUTED}"
        )


def _constrain(y: Floats, v: Floats, C: Floats, d: Floats) -> Estimate:
    """Return y + V C' (C V C')^+ (d - C y), by orthogonal factors: C is reduced to independent rows first,
    then weighted."""
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
        t = root * q[free]
        out = np.zeros_like(y)
        out[free] = root * (t - Q @ (Q.T @ t))
        return out

    spread = np.zeros_like(y)
    spread[free] = v[free] * np.clip(1 - (Q**2).sum(axis=1), 0, None)
    return Estimate(values=x, _covariance_product=times, _variances=spread)


def _factors(tall: Floats) -> tuple[Floats, Floats, Any]:
    """Return Q, R, columns with tall[:, columns] = Q R.

    Heavy rows first: with column pivoting stable for any weights (Cox & Higham 1998).
    """
    heavy = np.argsort(-np.abs(tall).max(axis=1, initial=0.0), kind="stable")
    Q, R, columns = linalg.qr(tall[heavy], mode="economic", pivoting=True)
    back = np.empty_like(Q)
    back[heavy] = Q
    return back, R, columns


def _measured_directly(A: Floats, y: Floats, v: Floats) -> tuple[Estimate, Any]:
    """Solve x = p + Z w: exact rows fix p and leave the directions Z; the noisy rows choose w among what they
    can see of Z."""
    exact = v == 0
    p, Z = _public_facts(A[exact], y[exact], A.shape[1])
    noisy, left = A[~exact] @ Z, y[~exact] - A[~exact] @ p
    _, singular, W = _right_factors(noisy)
    r = _rank(singular)
    seen, unseen = Z @ W[:r].T, Z @ W[r:].T
    weight = 1 / np.sqrt(v[~exact])
    Q, R, columns = _factors((noisy @ W[:r].T) * weight[:, None])
    inverse = np.empty((r, r))
    inverse[columns] = linalg.solve_triangular(R, np.eye(r)) if r else np.zeros((0, 0))
    x = p + seen @ (inverse @ (Q.T @ (left * weight)))
    spread = seen @ inverse

    def times(q: Floats) -> Floats:
        if np.linalg.norm(unseen.T @ q) > 1e-8 * np.linalg.norm(q):
            return np.where(q == 0, 0.0, np.copysign(np.inf, q))
        product: Floats = spread @ (spread.T @ q)
        return product

    lost = np.linalg.norm(unseen, axis=1) > 1e-8
    variances = np.where(lost, np.inf, (spread**2).sum(axis=1))
    return Estimate(values=x, _covariance_product=times, _variances=variances), np.flatnonzero(lost)


def _public_facts(A: Floats, y: Floats, n: int) -> tuple[Floats, Floats]:
    """Return the shortest solution of A x = y, and an orthonormal basis of what it leaves open."""
    if not len(y):
        return np.zeros(n), np.eye(n)
    U, singular, W = _right_factors(A)
    r = _rank(singular)
    p: Floats = W[:r].T @ ((U[:, :r].T @ y) / singular[:r])
    _agree(y - A @ p, np.abs(y) + np.abs(A) @ np.abs(p))
    return p, W[r:].T


def _right_factors(A: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the singular value decomposition with all right factors, and no more left ones than there are
    singular values: a matrix of many rows has rows² of them."""
    U, singular, W = linalg.svd(A, full_matrices=A.shape[0] < A.shape[1])
    return U, singular, W


def _constrained_iteratively(y: Floats, v: Floats, C: Any, d: Floats) -> Estimate:
    """Solve the constrained problem by LSMR, for matrices too large to factor."""
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
    return Estimate(values=x, _covariance_product=lambda q: shifted(v * q, zeros))


def _balance_rows(B: Any) -> tuple[Any, Floats]:
    norms = np.sqrt(np.asarray(B.multiply(B).sum(axis=1)).ravel())
    norms = np.where(norms > 0, norms, 1.0)
    return sparse.csr_array(sparse.diags_array(1 / norms) @ B), norms


def _measured_iteratively(A: Any, y: Floats, v: Floats) -> tuple[Estimate, Any]:
    """Solve the least-squares problem by LSMR, for matrices too large to factor."""
    if (v == 0).any():
        raise InvalidInput(
            f"variances of zero need the direct method, which a matrix of shape {A.shape} is too "
            f"large for by default. {NOTHING_COMPUTED} "
            f"Ask for method='direct', or enter the fact by substituting it."
        )
    B = sparse.csr_array(sparse.diags_array(1 / np.sqrt(v)) @ A)
    norms = np.sqrt(np.asarray(B.multiply(B).sum(axis=0)).ravel())
    columns = np.where(norms > 0, norms, 1.0)
    # columns of length one: the usual preconditioner
    B = sparse.csr_array(B @ sparse.diags_array(1 / columns))
    x = _lsmr(B, y / np.sqrt(v)) / columns
    # A random truth, measured without noise and recovered: what does not come back is what the answers cannot
    # see (almost surely).
    truth = np.random.default_rng(0).uniform(1, 2, A.shape[1])
    lost = np.abs(_lsmr(B, B @ truth) - truth) > 1e-6

    def times(q: Floats) -> Floats:
        s = _lsmr(sparse.csr_array(B.T), q / columns)
        if np.linalg.norm(B.T @ s - q / columns) > 1e-6 * np.linalg.norm(q / columns):
            return np.where(q == 0, 0.0, np.copysign(np.inf, q))
        return _lsmr(B, s) / columns

    return Estimate(values=x, _covariance_product=times), np.flatnonzero(lost)


def _lsmr(B: Any, right: Floats) -> Floats:
    """Return the shortest solution of least squares; refuses to return one that has not converged."""
    limit = 100 + 20 * max(B.shape)
    x, stop, *_ = sparse_linalg.lsmr(B, right, atol=TOLERANCE, btol=TOLERANCE, conlim=1e14, maxiter=limit)
    if stop in (3, 6, 7):
        raise InvalidInput(
            f"the iteration did not reach a relative error of {TOLERANCE:g}: the system is too badly "
            f"conditioned. {NOTHING_COMPUTED} "
            f"Ask for method='direct', or bring the variances nearer to each other."
        )
    return np.asarray(x, dtype=np.float64)
