"""Defines the objective of a softmax of several classes for the certified solver (`solver`): one problem in
the weights of all classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .solver import BLOCK, Problem, exact_scores, rounding_of_gradient, rounding_of_slopes

Array = npt.NDArray[np.float64]
# Up to so many weights Newton's matrix is exact; for more, a bound on it is used, which needs the matrix of
# one class only. The value affects time alone. Chosen by hand, not tuned.
_MAX_EXACT = 700


def rounding_of_probabilities(classes: int) -> int:
    """Return a bound on the rounding error of computing the probabilities of so many classes from their
    scores, in units of 2^-53."""
    return classes + 20


@dataclass(frozen=True)
class SoftmaxProblem(Problem):
    """Computes the objective of `Problem` for a softmax. The weights are those of the first class, then those
    of the second, and so on; `y` has the number of each row's class.
    """

    classes: int = 2

    def slopes(self, w: Array) -> Array:
        """Return the gradient of each row's loss in its scores, a function of that row alone
        (`exact_scores`)."""
        scores = exact_scores(self.x, w.reshape(self.classes, -1).T, self.row_norm)
        slopes = self.loss.slope(scores, self.y)
        return np.asarray(slopes if self.weights is None else slopes * self.weights[:, None])

    def gradient(self, w: Array) -> tuple[Array, Array]:
        """Return the gradient, and the scores (rows x classes) that it was computed from."""
        n, d = self.x.shape
        scores, sums = np.empty((n, self.classes)), np.zeros((-(-n // BLOCK), self.classes * d))
        matrix = w.reshape(self.classes, d).T
        for start in range(0, n, BLOCK):
            block = slice(start, start + BLOCK)
            rows = self.x[block].astype(np.float64, copy=False)
            scores[block] = rows @ matrix
            slopes = self.loss.slope(scores[block], self.y[block])
            if self.weights is not None:
                slopes = slopes * self.weights[block, None]
            sums[start // BLOCK] = (slopes.T @ rows).ravel()
        # numpy sums pairwise along an axis that is contiguous
        total = np.ascontiguousarray(sums.T).sum(axis=1)
        return total + self.strength * w + self.linear, scores

    def rounding(self, w: Array) -> float:
        """Return a bound on the l2 distance of the computed from the true gradient at w.

        Proof: as in `Problem.rounding`, with its symbols and k classes: the scores of a row are off by at
               most (d + 2) u R |w| in l2; the probabilities by half of that (1/2 is the largest eigenvalue of
               their derivative) and by (k + 20) u for their own computation; sums by (BLOCK + 64) u times n R
               L.
        """
        n, d = self.x.shape
        length = float(np.linalg.norm(w))
        heaviest = 1.0 if self.weights is None or not n else float(self.weights.max())
        slope = rounding_of_slopes(d, length, self.row_norm, self.lipschitz, heaviest * self.loss.smoothness)
        return rounding_of_gradient(
            n,
            self.row_norm,
            slope + heaviest * rounding_of_probabilities(self.classes),
            self.strength * length + float(np.linalg.norm(self.linear)),
        )

    def hessian(self, scores: Array) -> Array:
        """Return Newton's matrix, from every `stride`-th row.

        For more than `_MAX_EXACT` weights it is the upper bound (I - 1 1' / k) / 2 (x) X' X (Boehning 1992),
        with k classes, X the matrix of rows and (x) the Kronecker product; the solver corrects its steps by
        the gradients (`solver._Directions`).
        """
        k, stride, sample = self.classes, self.stride, self.sampled
        d = sample.x.shape[1]
        row_weights = (
            np.full(len(sample.x), float(stride)) if sample.weights is None else sample.weights * stride
        )
        result: Any
        if k * d > _MAX_EXACT:
            gram = (sample.x * row_weights[:, None]).T @ sample.x
            result = np.kron((np.eye(k) - 1 / k) / 2, gram)
        else:
            # `Softmax.curvature` returns the probabilities of the classes
            probabilities = self.loss.curvature(scores[::stride], sample.y)
            result = np.zeros((k, d, k, d))
            for a in range(k):
                for b in range(a, k):
                    curvatures = probabilities[:, a] * ((a == b) - probabilities[:, b]) * row_weights
                    result[a, :, b, :] = (sample.x * curvatures[:, None]).T @ sample.x
                    result[b, :, a, :] = result[a, :, b, :].T
            result = result.reshape(k * d, k * d)
        result.flat[:: k * d + 1] += self.strength
        return np.asarray(result)
