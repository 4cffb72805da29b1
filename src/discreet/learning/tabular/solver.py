"""A certified minimizer of sum_i f(<w, x_i>, y_i) + <b, w> + (lambda/2) |w|²: it stops where the gradient is
provably short.

Privacy rests on the length of the gradient at the returned point and on nothing else, so the solver may be
any: Newton's method, whose matrix comes from a part of the rows where there are many. The sums that decide
are taken in blocks, and what floating point can have added to them is bounded and counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from .losses import Loss

Array = npt.NDArray[np.float64]
# Rows that one BLAS product sums up: its rounding error grows with this number.
BLOCK = 1024
_UNIT = 2.0**-53
# Rows that Newton's matrix is computed from, at least and per feature; more rows make fewer, slower steps.
_LEAST, _PER_FEATURE = 1 << 15, 200
# No table was seen to take more than 40 steps; a run that takes all of them stops uncertified.
STEPS = 2000


@dataclass(frozen=True)
class Problem:
    """The perturbed, regularized objective on rows `x` with targets `y` and weights of rows."""

    x: Array
    y: Array
    weights: Array | None
    loss: Loss
    linear: Array
    strength: float
    row_norm: float
    lipschitz: float

    def slopes(self, w: Array) -> tuple[Array, Array]:
        """Return the scores, and the derivative of each row's loss in its score."""
        scores = self.x @ w
        slopes = self.loss.slope(scores, self.y)
        return scores, slopes if self.weights is None else slopes * self.weights

    def gradient(self, w: Array) -> tuple[Array, Array]:
        """Return the gradient, and the scores that it was computed from."""
        scores, slopes = self.slopes(w)
        return blocked(self.x, slopes) + self.strength * w + self.linear, scores

    def rounding(self, w: Array) -> float:
        """Return a bound on the l2 distance of the computed from the true gradient at w.

        Proof: with u = 2^-53, a score is off by at most (d + 2) u sum_j |x_ij w_j| <= (d + 2) u R |w|, its
               slope by `smoothness` times that plus a few u; a block of BLOCK products and the pairwise sum
               of blocks add at most (BLOCK + 64) u times the sum of absolute values (Higham 2002, Sections
               3.1 and 4.2), which coordinate by coordinate is at most that of |x_ij| L. The vector of these
               has norm at most sum_i |x_i| L <= n R L. The last two summands add 4 u (lambda |w| + |b|).
        """
        n, d = self.x.shape
        size = float(np.linalg.norm(w))
        heaviest = 1.0 if self.weights is None or not n else float(self.weights.max())
        slope = (BLOCK + 80) * self.lipschitz + heaviest * self.loss.smoothness * (
            d + 2
        ) * self.row_norm * size
        rest = 4 * (self.strength * size + float(np.linalg.norm(self.linear)))
        return float(1.01 * _UNIT * (n * self.row_norm * slope + rest))

    @property
    def stride(self) -> int:
        """Every how many rows one is taken where a part of them is enough."""
        n, d = self.x.shape
        return int(max(1, n // max(_LEAST, _PER_FEATURE * d)))

    def sampled(self) -> Problem:
        """Return the problem of every `stride`-th row, with all else in proportion: its minimizer is a good
        start."""
        stride = self.stride
        return replace(
            self,
            x=np.ascontiguousarray(self.x[::stride]),
            y=self.y[::stride],
            linear=self.linear / stride,
            strength=self.strength / stride,
            weights=None if self.weights is None else self.weights[::stride],
        )

    def hessian(self, scores: Array) -> Array:
        """Return Newton's matrix, from every k-th row where there are many."""
        d, stride = self.x.shape[1], self.stride
        part, y = self.x[::stride], self.y[::stride]
        curvature = self.loss.curvature(scores[::stride], y) * stride
        if self.weights is not None:
            curvature = curvature * self.weights[::stride]
        matrix = np.zeros((d, d))
        for start in range(0, len(part), 1 << 15):
            rows = part[start : start + (1 << 15)]
            matrix += (rows * curvature[start : start + (1 << 15), None]).T @ rows
        matrix.flat[:: d + 1] += self.strength
        return matrix


def blocked(x: Array, slopes: Array) -> Array:
    """Return sum_i slopes_i x_i, summed in blocks and the blocks pairwise."""
    n, d = x.shape
    whole = n // BLOCK * BLOCK
    parts = np.matmul(slopes[:whole].reshape(-1, 1, BLOCK), x[:whole].reshape(-1, BLOCK, d))[:, 0, :]
    parts = np.concatenate([parts, (slopes[whole:] @ x[whole:])[None, :]])
    # numpy sums pairwise along an axis that is contiguous
    total: Array = np.ascontiguousarray(parts.T).sum(axis=1)
    return total


def _newton(matrix: Array, gradient: Array) -> Array:
    """Return the Newton direction; the gradient itself where rounding left no positive matrix: no table may
    end in an error."""
    matrix.flat[:: len(matrix) + 1] += 1e-13 * float(np.trace(matrix))
    try:
        direction: Array = cho_solve(cho_factor(matrix, lower=True), gradient)
    except np.linalg.LinAlgError:
        return gradient / float(np.trace(matrix))
    return direction


def minimize(problem: Problem, tolerance: float, start: Array | None = None) -> tuple[Array, bool]:
    """Return a point whose gradient is at most `tolerance` in l2, rounding included, and whether that is
    certified.

    Newton steps, halved until the gradient gets shorter: for a strongly convex objective its length is a
    merit function that the Newton direction descends. A gradient step with the inverse of the largest
    curvature stands in where none does.
    """
    n, d = problem.x.shape
    if start is None and problem.stride > 1:
        start = minimize(problem.sampled(), 1e-6 * problem.row_norm * problem.lipschitz * n / problem.stride)[
            0
        ]
    w = np.zeros(d) if start is None else start.copy()
    gradient, scores = problem.gradient(w)
    heaviest = 1.0 if problem.weights is None or not n else float(problem.weights.max())
    steepest = problem.strength + heaviest * problem.loss.smoothness * n * problem.row_norm**2
    for _ in range(STEPS):
        length = float(np.linalg.norm(gradient))
        if length + problem.rounding(w) <= tolerance:
            return w, True
        direction = _newton(problem.hessian(scores), gradient)
        share = 1.0
        while share > 1e-3:
            candidate = w - share * direction
            shorter, after = problem.gradient(candidate)
            if float(np.linalg.norm(shorter)) <= (1 - share / 4) * length:
                break
            share /= 2
        else:
            candidate = w - gradient / steepest
            shorter, after = problem.gradient(candidate)
        w, gradient, scores = candidate, shorter, after
    return w, math.isfinite(float(w.sum())) and float(np.linalg.norm(gradient)) + problem.rounding(
        w
    ) <= tolerance
