"""Least squares with known variances: adjusts released numbers to linear constraints, or estimates cells from
noisy answers.

`least_squares` moves values as little as possible, in units of their noise's standard deviation, until linear
constraints hold. `measured` estimates the cells x behind noisy linear answers y = A x + noise. Both give best
linear unbiased estimates with their variances. Small systems are solved directly, by orthogonal factors
(SVD and QR) of the matrix with rows of length one; large ones by LSMR (Fong & Saunders 2011, arXiv:1006.0758)
to a relative tolerance of `TOLERANCE`.

Holds linear estimates with their variances, covariances and intervals.

Least squares with known noise variances gives numbers whose variances are known too, before any data is
read. `Estimate` holds both. After a projection (clipping at zero) or rounding the variances depend on the
unknown truth, so the functions that do this return plain arrays.

Combines several releases of one quantity: averages weighted by precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from scipy import linalg, optimize, sparse, special
from scipy.sparse import linalg as sparse_linalg

from .. import _require
from .._errors import InvalidInput
from .._require import OPEN_PROBABILITY
from .._system import on_one_thread
from . import _check
from ._check import Floats

Noise = Literal["gaussian", "laplace", "any"]

# For more values than this the variances of all of them are not computed together: each takes a solution of
# the normal equations, and a covariance matrix of this size takes 200 MB. Chosen by hand, not tuned.
MAX_VARIANCES = 5_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Estimate:
    """Holds best linear unbiased estimates (BLUE) and their covariance.

    Guarantee: unbiased, and no other unbiased linear function of the same answers has a smaller variance, for
               any linear question about the values.
    Proof:     Gauss-Markov theorem (Aitken's form, for unequal variances).
    Assumes:   the noise is independent with mean zero and the variances given, and the constraints hold of
               the truth.
    """

    values: Floats
    # Maps a question, as the vector of its coefficients, to the covariance matrix times this vector.
    _covariance_product: Callable[[Floats], Floats] = field(repr=False)
    _variances: Floats | None = field(default=None, repr=False)

    @property
    def variances(self) -> Floats:
        """Return the variance of each value, infinite where the measurements do not determine it.

        In very large systems, which are solved iteratively, each variance costs a solution of its own: ask
        `variance_of` for the ones you need.
        """
        if self._variances is not None:
            return self._variances
        _require.that(
            self.values.size <= MAX_VARIANCES,
            f"the variances of all {self.values.size} values would need as many solutions. Ask "
            f"variance_of(questions) for the "
            f"questions you need.",
        )
        return self.variance_of(np.eye(self.values.size))

    @property
    def standard_deviations(self) -> Floats:
        return np.sqrt(self.variances)

    def answer(self, questions: Any) -> Floats:
        """Return the estimates of linear questions, each a row of coefficients of the values."""
        answers: Floats = self._questions(questions) @ self.values.ravel()
        return answers

    def variance_of(self, questions: Any) -> Floats:
        """Return the variances of `answer(questions)`."""
        rows = self._questions(questions)
        return np.array([_variance(row, self._covariance_product(row)) for row in rows])

    def covariance(self) -> Floats:
        """Return the covariance matrix of all values: n by n, so for small n."""
        n = self.values.size
        _require.that(
            n <= MAX_VARIANCES,
            f"a covariance matrix of {n} by {n} is too large. Ask variance_of(questions) instead.",
        )
        matrix = np.column_stack([self._covariance_product(unit) for unit in np.eye(n)])
        return (matrix + matrix.T) / 2

    def interval(self, confidence: float = 0.95, *, noise: Noise = "gaussian") -> tuple[Floats, Floats]:
        """Return for each value a (pointwise) confidence interval; see `width` for its validity."""
        half_width = width(confidence, noise) * self.standard_deviations
        return self.values - half_width, self.values + half_width

    def _questions(self, questions: Any) -> Any:
        """Return the questions as a dense matrix with one column for each value."""
        rows = _check.matrix("questions", questions, columns=self.values.size)
        return rows if isinstance(rows, np.ndarray) else rows.toarray()


@_require.check_options
def width(confidence: Annotated[float, OPEN_PROBABILITY], noise: Noise = "gaussian") -> float:
    """Return the half-width of a confidence interval, in standard deviations, for a linear combination of
    independent noises.

    gaussian: the normal quantile. Exact for Gaussian noise, and for any noise in the limit of many small
              terms; it is too small for a few terms of Laplace noise, and of discrete Gaussian noise whose
              sigma is below about 3 (`IntegerGaussian.combined_width` is right for these).
    laplace:  valid for every linear combination of Laplace noises, continuous or discrete, if each variance
              was given as 2 * scale**2.
    any:      valid for every noise of mean zero and finite variance.

    Guarantee: laplace, any: at least the stated confidence, whatever the coefficients.
    Proof:     any: Chebyshev. laplace: the moment generating function of a Laplace noise of scale b at t is
               1 / (1 - b²t²); that of a discrete one is at most that, since (cosh t - 1) / t² increases in
               t > 0 and t < 1 / b. A product of 1 / (1 - u_i), where u_i is the b²t² of summand i, is at most
               1 / (1 - sum of u_i). So every combination obeys the Chernoff bound of one Laplace noise with
               the same variance; Chebyshev is used where it is sharper.

    >>> round(width(0.95), 3), round(width(0.95, "laplace"), 3), round(width(0.95, "any"), 3)
    (1.96, 4.134, 4.472)
    """
    outside = 1 - confidence
    if noise == "gaussian":
        return float(-special.ndtri(outside / 2))
    chebyshev = 1 / math.sqrt(outside)
    if noise == "any":
        return chebyshev
    # the bound is above `outside` at the lower end of the search, and below it at the upper end
    root = optimize.brentq(lambda a: _log_chernoff(a) - math.log(outside), 1e-6, 100 - 10 * math.log(outside))
    # from scales to standard deviations, which are sqrt(2) scales
    return min(chebyshev, float(root) / math.sqrt(2))


def _log_chernoff(a: float) -> float:
    """Return the logarithm of the minimum over u in (0, 1) of 2 exp(-ua) / (1 - u²): the Chernoff bound on
    the probability that Laplace noise is more than `a` scales from zero."""
    u = (math.sqrt(1 + a * a) - 1) / a
    return math.log(2) - u * a - math.log1p(-u * u)


def _variance(question: Floats, product: Floats) -> float:
    """Return the variance of a question: its dot product with `product`, the covariance matrix times it.
    Infinite if a value that the question uses has no finite variance."""
    used = question != 0
    # checked first, because infinities of both signs would add up to NaN
    if not np.isfinite(product[used]).all():
        return math.inf
    return max(0.0, float(question[used] @ product[used]))


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


@_require.check_options
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


@_require.check_options
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
    _check.shaped("y", z, B.shape[:1], ", one answer for each row of A")
    v = _check.variances(variances, z.shape)
    B, z, norms = _unit_rows(B, z, "A")
    # not norms squared, which may leave the range of floats
    with np.errstate(over="ignore", under="ignore"):
        scaled = v / norms / norms
    _require.that(
        not (np.isinf(scaled) | ((scaled == 0) & (v > 0))).any(),
        "the coefficients of A and the variances are too far apart in size. Bring them nearer to each other.",
    )
    v = scaled
    if _direct(B, method):
        estimate, undetermined = _measured_directly(_dense(B), z, v)
    else:
        estimate, undetermined = _measured_iteratively(sparse.csr_array(B), z, v)
    if len(undetermined) and unidentified == "refuse":
        raise InvalidInput(
            f"the answers do not determine {_check.some('cells', undetermined)} (counted from zero). Measure "
            "more, or ask for unidentified='minimum_norm', which leaves their variance infinite."
        )
    return estimate


def _direct(matrix: Any, method: Method) -> bool:
    """Return whether to solve directly: as the caller says, or by the size of the matrix."""
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
        raise InvalidInput(f"constraint {row} has no coefficients, so it cannot hold.")
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
            f"the constraints contradict each other or the values known exactly: number {row} (counted from "
            "zero) cannot hold together with the others."
        )


def _constrain(y: Floats, v: Floats, C: Floats, d: Floats) -> Estimate:
    """Return y + V C' (C V C')^+ (d - C y) for values y with the diagonal covariance V = diag(v) and the
    constraints C x = d; C' is the transpose and ^+ the pseudoinverse.

    By orthogonal factors: C is first reduced to independent rows W (C = U diag(singular) W), which are then
    weighted by V^(1/2) and factored into Q R. Values of variance zero are left out of C and do not move.
    """
    free = v > 0
    gap = d - C @ y
    U, singular, W = on_one_thread(linalg.svd)(C[:, free], full_matrices=False)
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


@on_one_thread
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


@on_one_thread
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
    _require.that(
        not (v == 0).any(),
        f"variances of zero need the direct method, and a matrix of shape {A.shape} is solved by the "
        "iterative one here. Ask for method='direct', or enter the fact by substituting it.",
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
    _require.that(
        stop not in (3, 6, 7),
        f"the iteration did not reach a relative error of {TOLERANCE:g}: the system is too badly "
        "conditioned. Ask for method='direct', or bring the variances nearer to each other.",
    )
    return np.asarray(x, dtype=np.float64)


def combine(values: Any, variances: Any) -> Estimate:
    """Return the average of several measurements of the same quantities, weighted by 1 / variance.

    The first axis of `values` numbers the measurements, the other axes the quantities. `variances` has one
    entry for each measurement, or one for each value: zero marks a value that is known exactly, infinity one
    that was not measured.

    Guarantee: best linear unbiased estimate; its variance is 1 / (sum of 1 / variance), the least that any
               unbiased weighted average has.
    Assumes:   independent noise in all measurements: no release is entered twice.

    >>> both = combine([10.0, 13.0], [1.0, 2.0])
    >>> float(both.values), round(float(both.variances), 4)
    (11.0, 0.6667)
    """
    values = _check.as_array("values", values)
    shape = values.shape
    _require.that(
        shape and shape[0],
        f"values must hold one or more measurements along the first axis, got shape {shape}.",
    )
    array = _check.as_array("variances", variances)
    if array.shape == shape[:1]:
        variances = array.reshape((-1,) + (1,) * (len(shape) - 1))
    v = _check.variances(variances, shape, infinite=True)
    y = _check.measured_only("values", values, np.isfinite(v))
    unmeasured = np.isinf(v).all(axis=0)
    _check.none_of(unmeasured, "quantities", "were not measured at all.")
    mean, variance = _weighted_mean(y, v, "measurements known exactly")
    flat = np.asarray(variance).ravel()
    return Estimate(values=mean, _covariance_product=lambda q: flat * q, _variances=np.asarray(variance))


def _weighted_mean(y: Floats, v: Floats, what: str) -> tuple[Floats, Any]:
    """Return the weighted means of the values `y` along the first axis, and their variances.

    The variances `v` have the shape of y or of its first axes. Where some are zero, the mean is that of the
    values with variance zero, which must agree; `what` names these values in the error.
    """
    exact = v == 0
    if exact.any():
        # the mask `exact` in the shape of y
        wide = np.broadcast_to(exact.reshape(exact.shape + (1,) * (y.ndim - exact.ndim)), y.shape)
        low = np.where(wide, y, np.inf).min(axis=0)
        high = np.where(wide, y, -np.inf).max(axis=0)
        known = np.isfinite(low)
        agree = (high[known] - low[known] <= RELATIVE_TOLERANCE * (1 + np.abs(high[known]))).all()
        _require.that(agree, f"{what} contradict each other.")
    # weights are smallest variance / variance: 1 / variance would be infinite for a tiny variance
    smallest = np.where(exact, np.inf, v).min(axis=0)
    with np.errstate(invalid="ignore"):
        weight = np.where(exact.any(axis=0), exact.astype(np.float64), smallest / np.where(exact, 1.0, v))
        variance = np.where(exact.any(axis=0), 0.0, smallest / weight.sum(axis=0))
    share = weight / weight.sum(axis=0)
    mean = (share.reshape(share.shape + (1,) * (y.ndim - share.ndim)) * y).sum(axis=0)
    return np.asarray(mean), variance if np.ndim(variance) else float(variance)
