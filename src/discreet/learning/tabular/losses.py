"""Defines losses of linear models: convex functions f(score, y) whose first two derivatives in the score have
declared bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logsumexp, softmax

from ... import _require
from ..._registry import described

Array = npt.NDArray[np.float64]
# Parameters of losses are between these: squares of gradients and noise must neither overflow nor underflow.
_SMALLEST, _LARGEST = 1e-9, 1e9


def _require_moderate(**parameters: Any) -> None:
    """Require numbers between `_SMALLEST` and `_LARGEST`."""
    _require.positive(**parameters)
    for name, value in parameters.items():
        if not _SMALLEST <= value <= _LARGEST:
            raise _require.fail(name, value, f"between {_SMALLEST:g} and {_LARGEST:g}")


@runtime_checkable
class Loss(Protocol):
    """Computes a loss f(score, y), convex in the score: |f'| is at most `lipschitz`, and f'' at most
    `smoothness`. `slope` is f' and `curvature` f''. `Softmax`, of several scores per row, says what they are
    there.

    Privacy rests on these bounds and on convexity.
    """

    @property
    def lipschitz(self) -> float: ...

    @property
    def smoothness(self) -> float: ...

    @property
    def classifies(self) -> bool:
        """Return whether y is a label, -1 or 1, and f' never has the sign of y: a score further on the side
        of the label never has a larger loss. (For `Softmax` y is the number of a class.)
        """
        ...

    def value(self, score: Array, y: Array) -> Array: ...

    def slope(self, score: Array, y: Array) -> Array: ...

    def curvature(self, score: Array, y: Array) -> Array: ...


@described("learning.Logistic")
@dataclass(frozen=True, slots=True, kw_only=True)
class Logistic:
    """Computes the logistic loss log(1 + exp(-y score)) of labels -1 and 1: |f'| <= 1 and f'' <= 1/4."""

    @property
    def lipschitz(self) -> float:
        return 1.0

    @property
    def smoothness(self) -> float:
        return 0.25

    @property
    def classifies(self) -> bool:
        return True

    def value(self, score: Array, y: Array) -> Array:
        return np.logaddexp(0.0, -y * score)

    def slope(self, score: Array, y: Array) -> Array:
        result: Array = -y * expit(-y * score)
        return result

    def curvature(self, score: Array, y: Array) -> Array:
        probability = expit(score)
        result: Array = probability * (1 - probability)
        return result


@described("learning.HuberHinge")
@dataclass(frozen=True, slots=True, kw_only=True)
class HuberHinge:
    """Computes the smoothed hinge loss of Chaudhuri, Monteleoni & Sarwate 2011, Section 3.4.2: quadratic
    where the margin y score is within `width` of 1.

    |f'| <= 1 and f'' <= 1 / (2 width).
    """

    width: float = 0.5

    def __post_init__(self) -> None:
        _require_moderate(width=self.width)

    @property
    def lipschitz(self) -> float:
        return 1.0

    @property
    def smoothness(self) -> float:
        return 1 / (2 * self.width)

    @property
    def classifies(self) -> bool:
        return True

    def value(self, score: Array, y: Array) -> Array:
        shortfall = 1 + self.width - y * score
        return np.where(
            shortfall <= 0,
            0.0,
            np.where(shortfall < 2 * self.width, shortfall**2 / (4 * self.width), shortfall - self.width),
        )

    def slope(self, score: Array, y: Array) -> Array:
        shortfall = 1 + self.width - y * score
        result: Array = -y * np.clip(shortfall / (2 * self.width), 0.0, 1.0)
        return result

    def curvature(self, score: Array, y: Array) -> Array:
        in_quadratic_part = np.abs(1 - y * score) < self.width
        result: Array = in_quadratic_part / (2 * self.width)
        return result


@described("learning.Huber")
@dataclass(frozen=True, slots=True, kw_only=True)
class Huber:
    """Computes the Huber loss of a residual r = score - y: r²/2 up to |r| = `threshold`, linear beyond; |f'|
    <= threshold and f'' <= 1.

    It is the squared loss with its slope clipped to `threshold`: with a threshold above every residual it is
    the squared loss itself. Targets are scaled to [-1, 1], so that a threshold of 2 covers every residual of
    predictions inside the declared bounds.
    """

    threshold: float = 1.0

    def __post_init__(self) -> None:
        _require_moderate(threshold=self.threshold)

    @property
    def lipschitz(self) -> float:
        return float(self.threshold)

    @property
    def smoothness(self) -> float:
        return 1.0

    @property
    def classifies(self) -> bool:
        return False

    def value(self, score: Array, y: Array) -> Array:
        error = np.abs(score - y)
        return np.where(error <= self.threshold, error**2 / 2, self.threshold * (error - self.threshold / 2))

    def slope(self, score: Array, y: Array) -> Array:
        return np.clip(score - y, -self.threshold, self.threshold)

    def curvature(self, score: Array, y: Array) -> Array:
        result: Array = (np.abs(score - y) <= self.threshold).astype(np.float64)
        return result


@described("learning.Squared")
@dataclass(frozen=True, slots=True, kw_only=True)
class Squared:
    """Computes the squared loss (score - y)² / 2 of scores up to `reach` in absolute value, continued
    linearly beyond: |f'| <= reach + 1 and f'' <= 1.

    The squared loss itself has a Lipschitz constant on bounded sets only. With rows of norm at most R, the
    scores of weights w with |w| <= reach / R are within `reach`, where both losses are equal: if one
    objective's minimizer has |w| < reach / R, it minimizes the other one, too, as both are convex. Targets
    are scaled to [-1, 1], and a reach of 1 covers every prediction inside the declared bounds.
    """

    reach: float = 1.0

    def __post_init__(self) -> None:
        _require.finite(reach=self.reach)
        if self.reach > _LARGEST:
            raise _require.fail("reach", self.reach, f"at most {_LARGEST:g}")
        if not self.reach >= 1:
            raise _require.fail(
                "reach", self.reach, "at least 1, the largest target: below, the loss is not bounded below"
            )

    @property
    def lipschitz(self) -> float:
        return float(self.reach) + 1.0

    @property
    def smoothness(self) -> float:
        return 1.0

    @property
    def classifies(self) -> bool:
        return False

    def value(self, score: Array, y: Array) -> Array:
        clipped_score = np.clip(score, -self.reach, self.reach)
        result: Array = (clipped_score - y) ** 2 / 2 + (clipped_score - y) * (score - clipped_score)
        return result

    def slope(self, score: Array, y: Array) -> Array:
        result: Array = np.clip(score, -self.reach, self.reach) - y
        return result

    def curvature(self, score: Array, y: Array) -> Array:
        result: Array = (np.abs(score) <= self.reach).astype(np.float64)
        return result


@described("learning.Softmax")
@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """Computes the multinomial logistic loss log sum_c exp(<w_c, x>) - <w_y, x> of k classes, where w_c are
    the weights of class c, x is the row and y the number of its class.

    With p the probabilities of the classes, e_y the y-th unit vector and (x) the Kronecker product, the
    gradient is (p - e_y) (x) x: |p - e_y|_1 <= 2, |p - e_y|_2 <= sqrt(2). The Hessian is A (x) x x' with
    A = diag(p) - p p': positive semidefinite, of rank at most k - 1 because A times the vector of ones is 0,
    with eigenvalues of at most 1/2 and a trace 1 - |p|² <= 1 - 1/k.
    """

    @property
    def lipschitz(self) -> float:
        """Return a bound on the l2 norm of the gradient in the scores."""
        return math.sqrt(2)

    @property
    def smoothness(self) -> float:
        return 0.5

    @property
    def classifies(self) -> bool:
        return True

    def value(self, scores: Array, y: Array) -> Array:
        """Return the loss of rows of k scores with the numbers of their classes."""
        return np.asarray(logsumexp(scores, axis=1) - scores[np.arange(len(scores)), y.astype(np.int64)])

    def slope(self, scores: Array, y: Array) -> Array:
        """Return p - e_y for each row."""
        result: Array = softmax(scores, axis=1)
        result[np.arange(len(scores)), y.astype(np.int64)] -= 1
        return result

    def curvature(self, scores: Array, y: Array) -> Array:
        """Return p for each row; the Hessian in the scores is diag(p) - p p'."""
        return np.asarray(softmax(scores, axis=1))


LOSSES: dict[str, Any] = {
    "logistic": Logistic,
    "huber_hinge": HuberHinge,
    "huber": Huber,
    "squared": Squared,
    "softmax": Softmax,
}
