"""Minimizes an objective with an l1 penalty, with a certificate: it stops where a subgradient is provably
short.

Proximal Newton steps (Lee, Sun & Saunders 2014, arXiv:1206.1623): the quadratic model of the objective, plus
the penalty, is minimized by coordinate descent, and then exactly over the weights that are not 0. Privacy
rests on the length of the shortest subgradient at the returned point alone: an objective that is
lambda-strongly convex has its minimizer within that length divided by lambda. So constants of the search may
be changed; `shortest_subgradient` and `_is_certified` may not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._system import on_one_thread
from .losses import STEPS, Problem

Array = npt.NDArray[np.float64]
# Half the distance from 1 to the next float: the relative error of one rounding.
_UNIT = 2.0**-53
# The largest number of sweeps of coordinate descent per Newton step; it stops earlier where a sweep changes
# little. Chosen by hand, not tuned.
_SWEEPS = 60
# The largest number of steps of the damped method, so that every run ends. Chosen by hand, not tuned.
_DAMPED = 3000


def soft_threshold(values: Array, thresholds: Array) -> Array:
    """Return the proximal point of the l1 norm: numbers moved towards 0 by their threshold, and 0 where they
    are below it in absolute value."""
    result: Array = np.sign(values) * np.maximum(np.abs(values) - thresholds, 0.0)
    return result


def shortest_subgradient(gradient: Array, w: Array, penalties: Array) -> Array:
    """Return the shortest subgradient of the objective at w, from the gradient of its smooth part.

    Where a weight is 0, the penalty's subgradients are all numbers between -penalty and penalty.
    """
    return np.where(w == 0, soft_threshold(gradient, penalties), gradient + penalties * np.sign(w))


def minimize_sparse(
    problem: Problem, penalties: Array, tolerance: float, start: Array | None = None
) -> tuple[Array, bool]:
    """Return a point, and whether it is certified that the shortest subgradient there of
    problem + sum_j penalties_j |w_j| is at most `tolerance` long, rounding included.

    Where there are many rows, the minimizer of a sample of them is the start.
    """
    stride = problem.stride
    if start is None and stride > 1:
        sample_tolerance = 1e-6 * problem.row_norm * problem.lipschitz * len(problem.x) / stride
        start = minimize_sparse(problem.sampled, penalties / stride, sample_tolerance)[0]
    w = np.zeros(problem.size) if start is None else start.copy()
    gradient, scores = problem.gradient(w)
    for _ in range(STEPS):
        if _is_certified(problem, penalties, w, gradient, tolerance):
            return w, True
        target = _model_minimizer(problem.hessian(scores), gradient, w, penalties)
        w, gradient, scores = _line_search(problem, penalties, w, gradient, scores, target)
    return w, _is_certified(problem, penalties, w, gradient, tolerance)


def minimize_damped(problem: Problem, penalties: Array, tolerance: float) -> tuple[Array, bool]:
    """Return what `minimize_sparse` returns, by damped steps, each of which lowers the objective. They are
    slower, but reliable where the curvature jumps (smoothed hinge, Huber) and lambda is small.

    The rule is Levenberg's and Marquardt's: `damping` times the identity is added to the Hessian. It
    grows after a step that lowered the objective by less than a tenth of what the quadratic model predicts,
    and such a step is not taken; it shrinks after any other. Where the objective's values at two points
    differ by rounding only, the length of the subgradient decides.
    """
    w = np.zeros(problem.size)
    gradient, scores = problem.gradient(w)
    damping = 1e-3 * problem.largest_curvature
    for _ in range(_DAMPED):
        if _is_certified(problem, penalties, w, gradient, tolerance):
            return w, True
        matrix = problem.hessian(scores)
        matrix.flat[:: len(matrix) + 1] += damping
        candidate = _model_minimizer(matrix, gradient, w, penalties)
        step = candidate - w
        value = problem.value(w, scores) + float(penalties @ np.abs(w))
        linear = float(gradient @ step + penalties @ (np.abs(candidate) - np.abs(w)))
        expected_decrease = -linear - float(step @ matrix @ step) / 2
        next_gradient, next_scores = problem.gradient(candidate)
        decrease = value - problem.value(candidate, next_scores) - float(penalties @ np.abs(candidate))
        lengths = [
            float(np.linalg.norm(shortest_subgradient(g, p, penalties)))
            for g, p in ((gradient, w), (next_gradient, candidate))
        ]
        is_indistinguishable = abs(expected_decrease) <= 1e-10 * abs(value)
        if decrease >= 0.1 * expected_decrease > 0 or (is_indistinguishable and lengths[1] < lengths[0]):
            w, gradient, scores = candidate, next_gradient, next_scores
            damping = damping / 8 if damping > 1e-6 * problem.strength else 0.0
        else:
            damping = max(4 * damping, 1e-3 * problem.strength)
    return w, _is_certified(problem, penalties, w, gradient, tolerance)


def _is_certified(problem: Problem, penalties: Array, w: Array, gradient: Array, tolerance: float) -> bool:
    """Return whether the shortest subgradient at w is within the tolerance, whatever rounding did to the
    computed one."""
    shortest = float(np.linalg.norm(shortest_subgradient(gradient, w, penalties)))
    rounding = problem.rounding(w) + 4 * _UNIT * float(np.linalg.norm(penalties))
    return shortest + rounding <= tolerance


def _line_search(
    problem: Problem, penalties: Array, w: Array, gradient: Array, scores: Array, target: Array
) -> tuple[Array, Array, Array]:
    """Return the next point between w and `target`, with its gradient and scores.

    The step is halved until the objective falls enough, or the subgradient gets shorter without a larger
    objective. Where no step down to 1/512 helps, a proximal gradient step is taken, whose size is the inverse
    of the largest curvature.
    """
    length = float(np.linalg.norm(shortest_subgradient(gradient, w, penalties)))
    value_before = problem.value(w, scores) + float(penalties @ np.abs(w))
    slope = float(gradient @ (target - w) + penalties @ (np.abs(target) - np.abs(w)))
    share = 1.0
    while share > 1e-3:
        candidate = target if share == 1 else w + share * (target - w)
        next_gradient, next_scores = problem.gradient(candidate)
        value = problem.value(candidate, next_scores) + float(penalties @ np.abs(candidate))
        next_length = float(np.linalg.norm(shortest_subgradient(next_gradient, candidate, penalties)))
        # a shorter subgradient alone is not enough: a point far beyond the minimizer may have one
        is_lower = value < value_before + 1e-4 * share * slope
        if is_lower or (
            next_length <= (1 - share / 4) * length and value <= value_before + 1e-9 * abs(value_before)
        ):
            return candidate, next_gradient, next_scores
        share /= 2
    candidate = soft_threshold(
        w - gradient / problem.largest_curvature, penalties / problem.largest_curvature
    )
    return candidate, *problem.gradient(candidate)


@on_one_thread
def _model_minimizer(matrix: Array, gradient: Array, w: Array, penalties: Array) -> Array:
    """Return the minimizer z of <gradient, z - w> + (z - w)' matrix (z - w) / 2 + sum_j penalties_j |z_j|.

    Without penalties it solves a linear system; with them it is found by coordinate descent, in which
    `slopes` is the gradient of the quadratic part at z, and `_polish`.
    """
    if not penalties.any():
        try:
            return np.asarray(w - np.linalg.solve(matrix, gradient))
        except np.linalg.LinAlgError:
            # a gradient step: the trace is at least the largest eigenvalue
            return w - gradient / float(np.trace(matrix))
    z, slopes = w.copy(), gradient.copy()
    diagonal = np.maximum(np.diagonal(matrix), 1e-300)
    penalty_list, curvatures = penalties.tolist(), diagonal.tolist()
    for _ in range(_SWEEPS):
        largest = 0.0
        for j, curvature in enumerate(curvatures):
            numerator = float(z[j]) * curvature - float(slopes[j])
            shrunk = max(abs(numerator) - penalty_list[j], 0.0)
            change = (shrunk if numerator > 0 else -shrunk) / curvature - float(z[j])
            if change:
                z[j] += change
                slopes += change * matrix[:, j]
                largest = max(largest, abs(change) * curvature)
        if largest <= 1e-9 * float(np.abs(gradient).max()):
            break
    z[np.abs(z) < 1e-300] = 0.0
    return _polish(matrix, gradient, w, penalties, z)


def _polish(matrix: Array, gradient: Array, w: Array, penalties: Array, z: Array) -> Array:
    """Return the exact minimizer of the quadratic model plus penalty over weights with the signs of z, which
    is a linear system; return z itself where the solution has other signs."""
    support = z != 0
    if not support.any():
        return z
    signs = np.sign(z[support])
    right_hand_side = (
        matrix[np.ix_(support, ~support)] @ w[~support] - gradient[support] - penalties[support] * signs
    )
    try:
        step = np.linalg.solve(matrix[np.ix_(support, support)], right_hand_side)
    except np.linalg.LinAlgError:
        return z
    result = np.zeros_like(z)
    result[support] = w[support] + step
    keeps_signs = (np.sign(result[support]) == signs) | (penalties[support] == 0)
    return result if bool(keeps_signs.all()) else z
