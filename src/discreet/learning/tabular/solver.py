"""Minimizes sum_i f(<w, x_i>, y_i) + <b, w> + (lambda/2) |w|², the objective of `erm` with a linear part b,
with a certificate: it stops where the gradient is provably short. Here w are the coefficients, a row's
*score* is <w, x_i>, and its *slope* is the derivative of its loss f in the score.

Privacy rests on the length of the gradient at the returned point and on nothing else, so that any solver
would do, and its constants may be changed. This one is Newton's method, whose Hessian is computed from a
sample of the rows where there are many. The sums of the gradient, which decide, are computed in blocks, and
their rounding error is bounded (`Problem.rounding`) and added to the length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from .losses import Loss

Array = npt.NDArray[np.float64]
# Rows that one BLAS product sums up: its rounding error grows with this number, and proofs use it.
BLOCK = 1024
# Half the distance from 1 to the next float: the relative error of one rounding.
_UNIT = 2.0**-53
# Bits that `exact_scores` rounds a coordinate to. The rest of 52 bits is for coefficients and for the sum:
# with a thousand columns the sum takes 10, and coefficients have 24.
_SCORE_BITS = 18
# If all coefficients are below this, `exact_scores` takes them for 0: the cell of their grid would underflow.
_SMALLEST_COEFFICIENT = 2.0**-900
# Rows whose rounded coordinates are held at once, which bounds memory.
_SCORE_ROWS = 1 << 14
# The Hessian is computed from at least so many rows, and so many per feature; with more rows steps are
# fewer, but slower. Chosen by hand, not tuned.
_MIN_ROWS, _PER_FEATURE = 1 << 15, 200
# The largest number of Newton steps. No certified run was seen to take more than 40; after a run that is not
# certified, `proximal.minimize_damped` starts anew.
STEPS = 60


def rounding_of_slopes(
    features: int, length: float, row_norm: float, lipschitz: float, smoothness: float
) -> float:
    """Return a bound on the rounding error of the slope of a row and of the sums of slopes, in units of
    2^-53, at coefficients w of this l2 norm. Proof: `Problem.rounding`."""
    return (BLOCK + 80) * lipschitz + smoothness * (features + 2) * row_norm * length


def rounding_of_gradient(rows: int, row_norm: float, slope_error: float, penalty: float) -> float:
    """Return a bound on the rounding error of a gradient, where `slope_error` is `rounding_of_slopes` and
    `penalty` bounds the length of the other summands, lambda w + b. Proof: `Problem.rounding`."""
    # 1.01 covers terms of second order in 2^-53, and the rounding of these lines.
    return float(1.01 * _UNIT * (rows * row_norm * slope_error + 4 * penalty))


def exact_scores(x: Any, columns: Array, row_norm: float) -> Array:
    """Return x @ columns, with both factors rounded to grids so coarse that the product itself is exact.

    The order in which BLAS sums up a row may depend on the row's position in the table. Sums that differ in
    their last bit may be rounded to different cells later, and then the presence of one person would change
    the summands of other people's rows.

    Guarantee: a row's scores are a function of that row, `columns` and `row_norm`.
    Proof:     coordinates, which are at most `row_norm` in size, are rounded to multiples of a power of two,
               at most 2^18 times it in size, and the columns to so few bits that a sum of `width` products is
               at most 2^52 units. Sums of whole numbers below 2^53 are exact in double precision, in any
               order.
    """
    width = columns.shape[0]
    largest = float(np.abs(columns).max(initial=0.0))
    if largest < _SMALLEST_COEFFICIENT or not len(x):
        return np.zeros((len(x), columns.shape[1]))
    bits = 52 - _SCORE_BITS - (width - 1).bit_length()
    row_unit, column_unit = _unit_below(row_norm, _SCORE_BITS), _unit_below(largest, bits)
    integers = np.rint(columns / column_unit)
    scores = np.empty((len(x), columns.shape[1]))
    for start in range(0, len(x), _SCORE_ROWS):
        rows = np.rint(np.asarray(x[start : start + _SCORE_ROWS], np.float64) / row_unit)
        scores[start : start + _SCORE_ROWS] = rows @ integers
    return scores * (row_unit * column_unit)


def _unit_below(largest: float, bits: int) -> float:
    """Return a power of two such that numbers up to `largest` are at most 2^bits times it."""
    return 2.0 ** (math.ceil(math.log2(largest)) - bits)


@dataclass(frozen=True)
class Problem:
    """Computes the perturbed, regularized objective on rows `x` with targets `y`; `weights` are factors on
    the rows' losses.

    `linear` is b, `strength` lambda, `row_norm` bounds the l2 norm of a row, and `lipschitz` the slope of a
    row's loss in its score, weight included. Rows may be in single precision; sums are in double.
    """

    x: Any
    y: Array
    weights: Array | None
    loss: Loss
    linear: Array
    strength: float
    row_norm: float
    lipschitz: float

    def slopes(self, w: Array) -> Array:
        """Return the derivative of each row's loss in its score, a function of that row alone
        (`exact_scores`)."""
        slopes = self.loss.slope(exact_scores(self.x, w[:, None], self.row_norm)[:, 0], self.y)
        return np.asarray(slopes if self.weights is None else slopes * self.weights)

    def gradient(self, w: Array) -> tuple[Array, Array]:
        """Return the gradient, and the scores that it was computed from."""
        n, d = self.x.shape
        scores, sums = np.empty(n), np.zeros((-(-n // BLOCK), d))
        for start in range(0, n, BLOCK):
            # scores and gradients in one pass, while the rows of a block are in the cache
            block = slice(start, start + BLOCK)
            rows = self.x[block].astype(np.float64, copy=False)
            scores[block] = rows @ w
            slopes = self.loss.slope(scores[block], self.y[block])
            if self.weights is not None:
                slopes = slopes * self.weights[block]
            sums[start // BLOCK] = slopes @ rows
        # numpy sums pairwise along an axis that is contiguous
        total = np.ascontiguousarray(sums.T).sum(axis=1)
        return total + self.strength * w + self.linear, scores

    def rounding(self, w: Array) -> float:
        """Return a bound on the l2 distance between the computed and the true gradient at w.

        Proof: let u = 2^-53, n the number of rows, d of coordinates, R = `row_norm` and L = `lipschitz`. A
               score is off by at most (d + 2) u sum_j |x_ij w_j| <= (d + 2) u R |w|, where 2 is for the
               difference of score and target, and its slope by `smoothness` times that plus at most 16 u L. A
               block of BLOCK products and the pairwise sum of blocks add at most (BLOCK + 64) u times the sum
               of absolute values (Higham 2002, Sections 3.1 and 4.2), which for coordinate j is at most sum_i
               |x_ij| L. The vector of these sums has norm at most sum_i |x_i| L <= n R L. The last two
               summands of the gradient add 4 u (lambda |w| + |b|).
        """
        n, d = self.x.shape
        length = float(np.linalg.norm(w))
        heaviest = 1.0 if self.weights is None or not n else float(self.weights.max())
        slope_error = rounding_of_slopes(
            d, length, self.row_norm, self.lipschitz, heaviest * self.loss.smoothness
        )
        return rounding_of_gradient(
            n, self.row_norm, slope_error, self.strength * length + float(np.linalg.norm(self.linear))
        )

    def value(self, w: Array, scores: Array) -> float:
        """Return the objective at w, from its scores. Its rounding error is not bounded: it may choose steps,
        but never certify a point."""
        losses = self.loss.value(scores, self.y)
        total = float(losses.sum() if self.weights is None else losses @ self.weights)
        return total + float(self.linear @ w) + self.strength / 2 * float(w @ w)

    @property
    def largest_curvature(self) -> float:
        """Return a bound on the largest curvature of the objective."""
        n = len(self.x)
        heaviest = 1.0 if self.weights is None or not n else float(self.weights.max())
        return self.strength + heaviest * self.loss.smoothness * n * self.row_norm**2

    @property
    def size(self) -> int:
        """Return the number of coefficients."""
        return len(self.linear)

    @property
    def stride(self) -> int:
        """Return the stride of the row sample that the Hessian is computed from; 1 takes all rows."""
        n, d = self.x.shape
        return int(max(1, n // max(_MIN_ROWS, _PER_FEATURE * d)))

    @cached_property
    def sampled(self) -> Problem:
        """Return the problem of every `stride`-th row, with b and lambda divided by `stride`, so that its
        minimizer is a good start.
        """
        stride = self.stride
        return replace(
            self,
            x=self.x[::stride].astype(np.float64),
            y=self.y[::stride],
            linear=self.linear / stride,
            strength=self.strength / stride,
            weights=None if self.weights is None else self.weights[::stride],
        )

    def hessian(self, scores: Array) -> Array:
        """Return the Hessian, from every `stride`-th row."""
        d, stride, sample = self.x.shape[1], self.stride, self.sampled
        curvature = self.loss.curvature(scores[::stride], sample.y) * stride
        if sample.weights is not None:
            curvature = curvature * sample.weights
        matrix = np.zeros((d, d))
        for start in range(0, len(sample.x), BLOCK):
            rows = sample.x[start : start + BLOCK]
            matrix += (rows * curvature[start : start + BLOCK, None]).T @ rows
        matrix.flat[:: d + 1] += self.strength
        return matrix


class _Directions:
    """Computes Newton directions from one matrix, corrected by the steps taken since (limited-memory BFGS
    whose first matrix is Newton's): a matrix from a sample of the rows serves several steps."""

    def __init__(self, matrix: Array) -> None:
        # Keeps Cholesky factorization possible where rounding would make a semidefinite matrix indefinite.
        matrix.flat[:: len(matrix) + 1] += 1e-13 * float(np.trace(matrix))
        self.trace, self.pairs = float(np.trace(matrix)), list[tuple[Array, Array]]()
        try:
            self.factor = cho_factor(matrix, lower=True)
        except np.linalg.LinAlgError:
            # The matrix is indefinite all the same. Gradient steps take its place, because an error would
            # tell something about the table.
            self.factor = None

    def __call__(self, gradient: Array) -> Array:
        if self.factor is None:
            return gradient / self.trace
        result, shares = gradient.copy(), []
        for step, change in reversed(self.pairs):
            shares.append(step @ result / (step @ change))
            result -= shares[-1] * change
        result = cho_solve(self.factor, result)
        for (step, change), share in zip(self.pairs, reversed(shares), strict=True):
            result += (share - change @ result / (step @ change)) * step
        return np.asarray(result)

    def learn(self, step: Array, change: Array) -> None:
        """Keep a step and the change of the gradient over it, unless rounding may have changed the sign of
        their product, which is positive for a convex objective."""
        if step @ change > 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            self.pairs.append((step, change))


def minimize(problem: Problem, tolerance: float, start: Array | None = None) -> tuple[Array, bool]:
    """Return a point, and whether it is certified that its gradient is at most `tolerance` long, rounding
    included.

    Newton steps are halved until the gradient gets shorter: for a strongly convex objective its length is a
    merit function that decreases along the Newton direction. The matrix is computed anew where a step did not
    make the gradient four times shorter. Where no step down to 1/512 helps, a gradient step is taken, whose
    size is the inverse of the largest curvature. Where there are many rows, the minimizer of a sample of them
    is the start.
    """
    n = len(problem.x)
    if start is None and problem.stride > 1:
        sample_tolerance = 1e-6 * problem.row_norm * problem.lipschitz * n / problem.stride
        start = minimize(problem.sampled, sample_tolerance)[0]
    w = np.zeros(problem.size) if start is None else start.copy()
    gradient, scores = problem.gradient(w)
    directions = None
    for _ in range(STEPS):
        length = float(np.linalg.norm(gradient))
        if length + problem.rounding(w) <= tolerance:
            return w, True
        directions = _Directions(problem.hessian(scores)) if directions is None else directions
        direction, share = directions(gradient), 1.0
        while share > 1e-3:
            candidate = w - share * direction
            next_gradient, next_scores = problem.gradient(candidate)
            if float(np.linalg.norm(next_gradient)) <= (1 - share / 4) * length:
                break
            share /= 2
        else:
            candidate = w - gradient / problem.largest_curvature
            next_gradient, next_scores = problem.gradient(candidate)
        directions.learn(candidate - w, next_gradient - gradient)
        if not float(np.linalg.norm(next_gradient)) < length / 4:
            directions = None
        w, gradient, scores = candidate, next_gradient, next_scores
    certified = float(np.linalg.norm(gradient)) + problem.rounding(w) <= tolerance
    return w, math.isfinite(float(w.sum())) and certified
