"""Defines losses of linear models: convex functions f(score, y) whose first two derivatives in the score have
declared bounds.

Minimizes sum_i f(<w, x_i>, y_i) + <b, w> + (lambda/2) |w|², the objective of `erm` with a linear part b,
with a certificate: it stops where the gradient is provably short. Here w are the coefficients, a row's
*score* is <w, x_i>, and its *slope* is the derivative of its loss f in the score.

Privacy rests on the length of the gradient at the returned point and on nothing else, so that any solver
would do, and its constants may be changed. This one is Newton's method, whose Hessian is computed from a
sample of the rows where there are many. The sums of the gradient, which decide, are computed in blocks, and
their rounding error is bounded (`Problem.rounding`) and added to the length.

Computes the objective of a softmax of several classes for the certified solver: one problem in
the weights of all classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit, logsumexp, softmax

from .. import _require
from .._registry import described
from .._require import FINITE, POSITIVE, at_most, between
from .._system import on_one_thread

Array = npt.NDArray[np.float64]
# Parameters of losses are between these: squares of gradients and noise must neither overflow nor underflow.
_SMALLEST, _LARGEST = 1e-9, 1e9


Moderate = Annotated[float, POSITIVE, between(_SMALLEST, _LARGEST)]


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
class Logistic:
    """Computes the logistic loss log(1 + exp(-y score)) of labels -1 and 1: |f'| <= 1 and f'' <= 1/4."""

    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.25
    classifies: ClassVar[bool] = True

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
class HuberHinge:
    """Computes the smoothed hinge loss of Chaudhuri, Monteleoni & Sarwate 2011, Section 3.4.2: quadratic
    where the margin y score is within `width` of 1.

    |f'| <= 1 and f'' <= 1 / (2 width).
    """

    width: Moderate = 0.5
    lipschitz: ClassVar[float] = 1.0
    classifies: ClassVar[bool] = True

    @property
    def smoothness(self) -> float:
        return 1 / (2 * self.width)

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
class Huber:
    """Computes the Huber loss of a residual r = score - y: r²/2 up to |r| = `threshold`, linear beyond; |f'|
    <= threshold and f'' <= 1.

    It is the squared loss with its slope clipped to `threshold`: with a threshold above every residual it is
    the squared loss itself. Targets are scaled to [-1, 1], so that a threshold of 2 covers every residual of
    predictions inside the declared bounds.
    """

    threshold: Moderate = 1.0
    smoothness: ClassVar[float] = 1.0
    classifies: ClassVar[bool] = False

    @property
    def lipschitz(self) -> float:
        return float(self.threshold)

    def value(self, score: Array, y: Array) -> Array:
        error = np.abs(score - y)
        return np.where(error <= self.threshold, error**2 / 2, self.threshold * (error - self.threshold / 2))

    def slope(self, score: Array, y: Array) -> Array:
        return np.clip(score - y, -self.threshold, self.threshold)

    def curvature(self, score: Array, y: Array) -> Array:
        result: Array = (np.abs(score - y) <= self.threshold).astype(np.float64)
        return result


@described("learning.Squared")
class Squared:
    """Computes the squared loss (score - y)² / 2 of scores up to `reach` in absolute value, continued
    linearly beyond: |f'| <= reach + 1 and f'' <= 1.

    The squared loss itself has a Lipschitz constant on bounded sets only. With rows of norm at most R, the
    scores of weights w with |w| <= reach / R are within `reach`, where both losses are equal: if one
    objective's minimizer has |w| < reach / R, it minimizes the other one, too, as both are convex. Targets
    are scaled to [-1, 1], and a reach of 1 covers every prediction inside the declared bounds.
    """

    reach: Annotated[float, FINITE, at_most(10**9)] = 1.0
    smoothness: ClassVar[float] = 1.0
    classifies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        wanted = "at least 1, the largest target: below, the loss is not bounded below"
        _require.must(self.reach >= 1, "reach", self.reach, wanted)

    @property
    def lipschitz(self) -> float:
        return float(self.reach) + 1.0

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
class Softmax:
    """Computes the multinomial logistic loss log sum_c exp(<w_c, x>) - <w_y, x> of k classes, where w_c are
    the weights of class c, x is the row and y the number of its class.

    With p the probabilities of the classes, e_y the y-th unit vector and (x) the Kronecker product, the
    gradient is (p - e_y) (x) x: |p - e_y|_1 <= 2, |p - e_y|_2 <= sqrt(2). The Hessian is A (x) x x' with
    A = diag(p) - p p': positive semidefinite, of rank at most k - 1 because A times the vector of ones is 0,
    with eigenvalues of at most 1/2 and a trace 1 - |p|² <= 1 - 1/k.
    """

    smoothness: ClassVar[float] = 0.5
    classifies: ClassVar[bool] = True

    @property
    def lipschitz(self) -> float:
        """Return a bound on the l2 norm of the gradient in the scores."""
        return math.sqrt(2)

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
# certified, `minimize_damped` starts anew.
STEPS = 60
# The largest number of steps of the damped method, so that every run ends. Chosen by hand, not tuned.
_DAMPED_STEPS = 3000


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
    # the number of classes of a softmax; 1 for any other loss
    classes: int = 1

    def _columns(self, w: Array) -> Array:
        """Return the coefficients by feature: a vector, or a matrix where a row has several scores."""
        return w

    def _weighted(self, slopes: Array, rows: slice = slice(None)) -> Array:
        """Return the slopes of these rows, times their weights."""
        return slopes if self.weights is None else np.asarray((slopes.T * self.weights[rows]).T)

    def slopes(self, w: Array) -> Array:
        """Return the derivative of each row's loss in its score, or in its scores, a function of that row
        alone (`exact_scores`)."""
        columns = self._columns(w)
        scores = exact_scores(self.x, columns.reshape(len(columns), -1), self.row_norm)
        return self._weighted(self.loss.slope(scores.reshape(len(scores), *columns.shape[1:]), self.y))

    def gradient(self, w: Array) -> tuple[Array, Array]:
        """Return the gradient, and the scores that it was computed from."""
        n, columns = len(self.x), self._columns(w)
        scores, sums = np.empty((n, *columns.shape[1:])), np.zeros((-(-n // BLOCK), len(w)))
        for start in range(0, n, BLOCK):
            # scores and gradients in one pass, while the rows of a block are in the cache
            block = slice(start, start + BLOCK)
            rows = self.x[block].astype(np.float64, copy=False)
            scores[block] = rows @ columns
            slopes = self._weighted(self.loss.slope(scores[block], self.y[block]), block)
            sums[start // BLOCK] = (slopes.T @ rows).ravel()
        # numpy sums pairwise along an axis that is contiguous
        total = np.ascontiguousarray(sums.T).sum(axis=1)
        return total + self.strength * w + self.linear, scores

    @property
    def _heaviest(self) -> float:
        """The largest weight of a row."""
        return 1.0 if self.weights is None or not len(self.x) else float(self.weights.max())

    def rounding(self, w: Array) -> float:
        """Return a bound on the l2 distance between the computed and the true gradient at w.

        Proof: let u = 2^-53, n the number of rows, d of coordinates, R = `row_norm` and L = `lipschitz`. A
               score is off by at most (d + 2) u sum_j |x_ij w_j| <= (d + 2) u R |w|, where 2 is for the
               difference of score and target, and its slope by `smoothness` times that plus at most 16 u L. A
               block of BLOCK products and the pairwise sum of blocks add at most (BLOCK + 64) u times the sum
               of absolute values (Higham 2002, Sections 3.1 and 4.2), which for coordinate j is at most sum_i
               |x_ij| L. The vector of these sums has norm at most sum_i |x_i| L <= n R L. The last two
               summands of the gradient add 4 u (lambda |w| + |b|). For a softmax of k classes, the scores of
               a row are off by at most (d + 2) u R |w| in l2; the probabilities by half of that (1/2 is the
               largest eigenvalue of their derivative) and by (k + 20 + 16 L) u for their own computation
               (`rounding_of_probabilities`).
        """
        (n, d), heaviest, length = self.x.shape, self._heaviest, float(np.linalg.norm(w))
        slope_error = rounding_of_slopes(
            d, length, self.row_norm, self.lipschitz, heaviest * self.loss.smoothness
        ) + heaviest * rounding_of_probabilities(self.classes)
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
        return self.strength + self._heaviest * self.loss.smoothness * len(self.x) * self.row_norm**2

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
            self.factor = on_one_thread(cho_factor)(matrix, lower=True)
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


def minimize_damped(problem: Problem, tolerance: float) -> tuple[Array, bool]:
    """Return what `minimize` returns, by damped steps, each of which lowers the objective. They are slower,
    but reliable where the curvature jumps (smoothed hinge, Huber) and lambda is small.

    The rule is Levenberg's and Marquardt's: `damping` times the identity is added to the Hessian. It
    grows after a step that lowered the objective by less than a tenth of what the quadratic model predicts,
    and such a step is not taken; it shrinks after any other. Where the objective's values at two points
    differ by rounding only, the length of the gradient decides.
    """
    w = np.zeros(problem.size)
    gradient, scores = problem.gradient(w)
    damping = 1e-3 * problem.largest_curvature
    for _ in range(_DAMPED_STEPS):
        length = float(np.linalg.norm(gradient))
        if length + problem.rounding(w) <= tolerance:
            return w, True
        matrix = problem.hessian(scores)
        matrix.flat[:: len(matrix) + 1] += damping
        candidate = _model_minimizer(matrix, gradient, w)
        step, value = candidate - w, problem.value(w, scores)
        expected_decrease = -float(gradient @ step) - float(step @ matrix @ step) / 2
        next_gradient, next_scores = problem.gradient(candidate)
        decrease = value - problem.value(candidate, next_scores)
        is_indistinguishable = abs(expected_decrease) <= 1e-10 * abs(value)
        is_shorter = float(np.linalg.norm(next_gradient)) < length
        if decrease >= 0.1 * expected_decrease > 0 or (is_indistinguishable and is_shorter):
            w, gradient, scores = candidate, next_gradient, next_scores
            damping = damping / 8 if damping > 1e-6 * problem.strength else 0.0
        else:
            damping = max(4 * damping, 1e-3 * problem.strength)
    return w, float(np.linalg.norm(gradient)) + problem.rounding(w) <= tolerance


@on_one_thread
def _model_minimizer(matrix: Array, gradient: Array, w: Array) -> Array:
    """Return the minimizer z of the quadratic model <gradient, z - w> + (z - w)' matrix (z - w) / 2."""
    try:
        return np.asarray(w - np.linalg.solve(matrix, gradient))
    except np.linalg.LinAlgError:
        # a gradient step: the trace is at least the largest eigenvalue
        return w - gradient / float(np.trace(matrix))


# Up to so many weights the Hessian is computed itself; for more, an upper bound on it, which needs the matrix
# of one class only. The value affects the solver's path and time, not what is certified. Chosen by hand, not
# tuned.
_MAX_EXACT = 700


def rounding_of_probabilities(classes: int) -> int:
    """Return a bound on the l2 rounding error of p - e_y (`losses.Softmax.slope`), computed from the scores
    of so many classes, in units of u = 2^-53, beyond the 16 L that `rounding_of_slopes` has for a slope; 0
    for one, where a loss has a single score.

    It also enters `erm._tolerance_for`, and so the noise or the price of stored mechanisms: keep its values.

    Proof: let k be the number of classes, at most 100,000, and d_i how far score i lies below the largest.
           exp(-d_i) has a relative error of at most (d_i + 8) u, where 8 is for an exp within 4 ulp; their
           sum one of at most the mean of these under p plus (k - 1) u, in any order (Higham 2002, Section
           4.2); the quotient adds u. The mean of d_i is at most ln k, the largest entropy of p, because the
           entropy is that mean plus the logarithm of the sum, which is at least 1. So p is off by at most
           (k + 2 ln k + 16) u in l1, and so in l2; subtracting e_y and multiplying by a weight add at most u
           and sqrt(2) u. The excess over k + 20 is below 2 ln k - 1.5 < 16 sqrt(2) = 16 L, for weight 1;
           all of these grow in proportion to the weight.
    """
    return 0 if classes == 1 else classes + 20


@dataclass(frozen=True)
class SoftmaxProblem(Problem):
    """Computes the objective of `Problem` for a softmax. The weights are those of the first class, then those
    of the second, and so on; `y` has the number of each row's class.
    """

    classes: int = 2

    def _columns(self, w: Array) -> Array:
        return w.reshape(self.classes, -1).T

    def hessian(self, scores: Array) -> Array:
        """Return the Hessian, from every `stride`-th row, or an upper bound on it.

        For more than `_MAX_EXACT` weights the bound is (I - 1 1' / k) / 2 (x) X' X (Boehning 1992),
        with k classes, X the matrix of rows and (x) the Kronecker product; the solver corrects its steps by
        the gradients (`_Directions`).
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
            # `Softmax.curvature` returns the probabilities p; the Hessian in the scores is diag(p) - p p'
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
