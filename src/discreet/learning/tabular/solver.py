"""A certified minimizer of sum_i f(<w, x_i>, y_i) + <b, w> + (lambda/2) |w|²: it stops where the gradient is
provably short.

Privacy rests on the length of the gradient at the returned point and on nothing else, so the solver may be
any: Newton's method, whose matrix comes from a part of the rows where there are many. The sums that decide
are taken in blocks, and what floating point can have added to them is bounded and counted.
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
# Rows that one BLAS product sums up: its rounding error grows with this number.
BLOCK = 1024
_UNIT = 2.0**-53
# Bits of a coordinate that a score on the grid keeps; what is left of 52 is for the weights. At 18 and a
# thousand columns the weights have 24.
_SCORE_BITS = 18
# Weights below this are taken for 0: their grid would end below the smallest double.
_SMALLEST_WEIGHT = 2.0**-900
# Rows whose coordinates on the grid are held at once: bounds memory.
_SCORE_ROWS = 1 << 14
# Rows that Newton's matrix is computed from, at least and per feature; more rows make fewer, slower steps.
_MIN_ROWS, _PER_FEATURE = 1 << 15, 200
# No table was seen to take more than 40 steps where it ended certified; a run that takes all of them did not,
# and `proximal.minimize_damped` starts anew.
STEPS = 60


def rounding_of_slopes(
    features: int, length: float, row_norm: float, lipschitz: float, smoothness: float
) -> float:
    """Return what rounding adds to the slope of a row and to the sums of slopes, in units of 2^-53, at
    weights of this length (`Problem.rounding`)."""
    return (BLOCK + 80) * lipschitz + smoothness * (features + 2) * row_norm * length


def rounding_of_gradient(rows: int, row_norm: float, slope: float, penalty: float) -> float:
    """Return a bound on what rounding adds to a gradient, for a slope that is off by so many units of 2^-53
    and a penalty and linear part of this length (`Problem.rounding`)."""
    return float(1.01 * _UNIT * (rows * row_norm * slope + 4 * penalty))


def exact_scores(x: Any, columns: Array, row_norm: float) -> Array:
    """Return x @ columns on grids so coarse that nothing is rounded on the way.

    BLAS may sum up a row in another order where it stands elsewhere in the table, and a sum that differs in
    its last bit may fall on the other side when it is rounded later: then one person would change what other
    people's rows add.

    Guarantee: a row's scores are a function of that row, `columns` and `row_norm`.
    Proof:     coordinates, at most `row_norm`, are rounded to multiples of a power of two that are below 2^18
               of them; the columns to so many bits that a sum of `width` products stays below 2^52 units.
               Sums of whole numbers below 2^53 are exact in double precision, in any order.
    """
    width = columns.shape[0]
    largest = float(np.abs(columns).max(initial=0.0))
    if largest < _SMALLEST_WEIGHT or not len(x):
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
    """Return the power of two of which numbers up to `largest` are at most 2^bits multiples."""
    return 2.0 ** (math.ceil(math.log2(largest)) - bits)


@dataclass(frozen=True)
class Problem:
    """Computes the perturbed, regularized objective on rows `x` with targets `y` and weights of rows.

    Rows may be in single precision; sums are not.
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
            # while these rows are in the cache, they are read for their scores and for their gradients
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
        """Return a bound on the l2 distance of the computed from the true gradient at w.

        Proof: with u = 2^-53, a score is off by at most (d + 2) u sum_j |x_ij w_j| <= (d + 2) u R |w|, its
               slope by `smoothness` times that plus a few u; a block of BLOCK products and the pairwise sum
               of blocks add at most (BLOCK + 64) u times the sum of absolute values (Higham 2002, Sections
               3.1 and 4.2), which coordinate by coordinate is at most that of |x_ij| L. The vector of these
               has norm at most sum_i |x_i| L <= n R L. The last two summands add 4 u (lambda |w| + |b|).
        """
        n, d = self.x.shape
        length = float(np.linalg.norm(w))
        heaviest = 1.0 if self.weights is None or not n else float(self.weights.max())
        slope = rounding_of_slopes(d, length, self.row_norm, self.lipschitz, heaviest * self.loss.smoothness)
        return rounding_of_gradient(
            n, self.row_norm, slope, self.strength * length + float(np.linalg.norm(self.linear))
        )

    def value(self, w: Array, scores: Array) -> float:
        """Return the objective at w, from its scores: to choose steps, never to certify a point."""
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
        """Return the number of weights."""
        return len(self.linear)

    @property
    def stride(self) -> int:
        """Return the stride of the row sample that Newton's matrix is computed from; 1 takes all rows."""
        n, d = self.x.shape
        return int(max(1, n // max(_MIN_ROWS, _PER_FEATURE * d)))

    @cached_property
    def sampled(self) -> Problem:
        """Return the problem of every `stride`-th row, with all else in proportion: its minimizer is a good
        start.
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
        """Return Newton's matrix, from every k-th row where there are many."""
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
        matrix.flat[:: len(matrix) + 1] += 1e-13 * float(np.trace(matrix))
        self.trace, self.pairs = float(np.trace(matrix)), list[tuple[Array, Array]]()
        try:
            self.factor = cho_factor(matrix, lower=True)
        except np.linalg.LinAlgError:
            # rounding left no positive matrix: the gradient itself, for no table may end in an error
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
        """Keep how the gradient changed over a step, where rounding left that its sign."""
        if step @ change > 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            self.pairs.append((step, change))


def minimize(problem: Problem, tolerance: float, start: Array | None = None) -> tuple[Array, bool]:
    """Return a point whose gradient is at most `tolerance` in l2, rounding included, and whether that is
    certified.

    Newton steps, halved until the gradient gets shorter: for a strongly convex objective its length is a
    merit function that the Newton direction descends. The matrix is computed anew where a step did not make
    the gradient four times shorter. A gradient step with the inverse of the largest curvature stands in where
    no halving helps.
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
