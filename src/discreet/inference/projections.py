"""Computes projections: the nearest values that are non-negative, add up to a known total, or are ordered.

If the truth lies in a convex set, the nearest point of the set is never further from the truth than the point
one started with, measured in the same norm. So a projection never increases the total error, with certainty
and not just on average. It is not linear, though: a count that cannot be negative is too large on average.
The results are plain arrays, without variances. "Nearest in units of the noise" means in the norm whose
square is the sum of (difference² / variance).
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from scipy import optimize, sparse

from .. import _require
from .._errors import InvalidInput
from .._require import FINITE, NON_NEGATIVE
from .._system import on_one_thread
from . import _check
from ._check import Floats, Ints
from .least_squares import RELATIVE_TOLERANCE, least_squares

# The largest number of iterations of Newton's method, after which it is taken to have failed. About ten are
# usual; the limit was chosen by hand, not tuned.
_ROUNDS = 500


@_require.check_options
def isotonic(
    values: Any,
    variances: Any = 1.0,
    *,
    increasing: bool = True,
    lower: Annotated[float, FINITE] | None = None,
    upper: Annotated[float, FINITE] | None = None,
) -> Floats:
    """Return the nearest non-decreasing values (non-increasing if `increasing` is false) between `lower` and
    `upper`, in units of the noise.

    For cumulative counts, and for counts released in sorted order (Hay, Rastogi, Miklau & Suciu 2010,
    arXiv:0904.0942).

    Guarantee: the projection on the ordered values within the bounds, for the norm weighted by 1 / variances.
    Proof:     pool adjacent violators (scipy); clipping an isotonic fit to constant bounds gives the bounded
               fit (Robertson, Wright & Dykstra 1988).

    >>> isotonic([1.0, 4.0, 2.0, 8.0], lower=2.5).tolist()
    [2.5, 3.0, 3.0, 8.0]
    """
    y = _check.numbers("values", values)
    v = _check.variances(variances, y.shape, zero=False)
    in_order = lower is None or upper is None or lower <= upper
    _require.that(in_order, f"lower must not be above upper, got {lower!r} and {upper!r}.")
    if not len(y):
        return y
    # scipy refuses a weight of zero, to which the quotient may underflow
    weights = np.maximum(v.min() / v, np.finfo(np.float64).tiny)
    fit = optimize.isotonic_regression(y, weights=weights, increasing=increasing).x
    return (
        np.clip(np.asarray(fit, dtype=np.float64), lower, upper)
        if lower is not None or upper is not None
        else np.array(fit)
    )


def non_negative(values: Any, variances: Any = 1.0, constraints: Any = None, totals: Any = 0.0) -> Floats:
    """Return the nearest values, in units of the noise, that are zero or above, with
    `constraints @ values == totals` if any constraints are given (one per row).

    A variance of zero marks a value that is known and must not move. For one
    fixed total use `with_total`, which is fast; for many nested ones `top_down`. In general this is a
    quadratic program, for up to some hundred constraints, which are met up to rounding.

    Biased: small counts are too large on average.

    >>> non_negative([-3.0, 5.0]).tolist()
    [0.0, 5.0]
    """
    y = _check.numbers("values", values, dimensions=None if constraints is None else 1)
    v = _check.variances(variances, y.shape)
    _check.refuse_where("values", y, (v == 0) & (y < 0), "zero or above where it is known exactly")
    if constraints is None:
        return np.maximum(y, 0.0)
    C = _check.matrix("constraints", constraints, columns=len(y))
    C = C if isinstance(C, np.ndarray) else C.toarray()
    d = _check.for_each("totals", totals, len(C), "constraints")
    # without the bound at zero; also refuses contradictory constraints
    start = least_squares(y, v, C, d, method="direct").values
    if (start >= 0).all():
        return start
    return _dual_newton(y, v, C, d)


@_require.check_options
def with_total(values: Any, total: Annotated[float, NON_NEGATIVE], variances: Any = 1.0) -> Floats:
    """Return the nearest values that are zero or above and add up to `total`: O(n log n).

    Guarantee: the projection of the values y on the simplex {x >= 0, sum of x = total}, for the norm weighted
               by 1 / variances; a variance of zero marks a known value, which does not move.
    Proof:     Lagrange multiplier λ: x = max(0, y - λ variance). The entries above zero (the active set) are
               a prefix in the order of falling y / variance (Held, Wolfe & Crowder 1974).

    >>> with_total([6.0, 3.0, -2.0], 10.0).tolist()
    [6.5, 3.5, 0.0]
    """
    y = _check.numbers("values", values)
    v = _check.variances(variances, y.shape)
    _require.that(len(y), f"values must not be empty: nothing can add up to {total!r}.")
    return _onto_totals(y, v, np.zeros(1, np.int64), np.array([float(total)]))


def _onto_totals(y: Floats, v: Floats, first: Ints, totals: Floats) -> Floats:
    """Apply `with_total` to many families at once: family f has the entries from first[f] to before
    first[f + 1], and the total totals[f].

    Where values are far larger than their total, y - λ v has the rounding error of y, and the sums miss their
    totals. Subtracting any multiple of v from y leaves the projection as it is, so the same step is applied
    again to y - λ v, which is as small as the result.
    """
    _require.that(not (y[v == 0] < 0).any(), "a value known exactly is negative.")
    # two passes are enough unless the numbers overflow; the third is spare
    for _ in range(3):
        reduced = _reduced(y, v, first, totals)
        x = np.maximum(0.0, reduced)
        gap = np.abs(np.add.reduceat(x, first) - totals)
        if (gap <= RELATIVE_TOLERANCE * (1 + totals)).all():
            return x
        y = reduced
    raise InvalidInput(
        "the values cannot be brought to their total: they or their variances are too far apart in size. "
        "Bring them nearer to each other."
    )


def _reduced(y: Floats, v: Floats, first: Ints, totals: Floats) -> Floats:
    """Return y - λ v with the λ of each family for which the entries above zero add up to its total. Entries
    of variance zero are fixed."""
    size = np.diff(first, append=len(y))
    family = np.repeat(np.arange(len(first)), size)
    fixed = v == 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(fixed, np.inf, y / v)
    # Within each family by falling y / v. `level` is the λ at which the entries up to this one add up to the
    # total; an entry is above zero at the final λ (active) if its own ratio y / v is above its level.
    order = np.lexsort((-ratio, family))
    sum_y, sum_v = _running_sums(y[order], first, size), _running_sums(v[order], first, size)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        level = (sum_y - totals[family]) / sum_v
    active = fixed[order] | (ratio[order] > level)
    # at a total of zero no entry is above its own level; the first entry then ends up at zero
    active[first] = True
    active_y, active_v = np.where(active, y[order], 0.0), np.where(active, v[order], 0.0)
    excess, free_variance = np.add.reduceat(active_y, first) - totals, np.add.reduceat(active_v, first)
    _check_fixed_values_fit(excess, free_variance, totals)
    with np.errstate(over="ignore", invalid="ignore"):
        final = np.divide(excess, free_variance, out=np.full_like(excess, np.inf), where=free_variance > 0)
        reduction = np.multiply(final[family], v, out=np.zeros_like(v), where=~fixed)
        return np.asarray(y - reduction)


def _check_fixed_values_fit(excess: Floats, free_variance: Floats, totals: Floats) -> None:
    """Refuse families in which only fixed values are above zero (no free variance) and miss the total."""
    stuck = free_variance == 0
    fits = (np.abs(excess[stuck]) <= RELATIVE_TOLERANCE * (1 + totals[stuck])).all()
    _require.that(fits, "the values known exactly do not fit into their total.")


def _running_sums(values: Floats, first: Ints, size: Ints) -> Floats:
    """Return running sums that start again in each family."""
    total = np.cumsum(values)
    before = np.concatenate([[0.0], total])[first]
    return np.asarray(total - np.repeat(before, size))


def _dual_newton(y: Floats, v: Floats, C: Any, d: Floats) -> Floats:
    """Minimize the sum of (x - y)² / v subject to C x = d and x >= 0, through the dual: x = max(0, y + v C'λ)
    with the multipliers λ (`multiplier`) for which C x = d.

    The dual is convex and piecewise quadratic with a continuous gradient: Newton steps with a line search end
    at the exact λ after finitely many pieces (Li & Swetits 1997). All Karush-Kuhn-Tucker conditions hold by
    construction except C x = d, which the iteration establishes. In the code u is x / sqrt(v), B is C with
    columns scaled by sqrt(v) and rows of length one, and `start` is y / sqrt(v).
    """
    free = v > 0
    root = np.sqrt(v[free])
    B, right_side = C[:, free] * root, d - C[:, ~free] @ y[~free]
    length = np.linalg.norm(B, axis=1)
    length = np.where(length > 0, length, 1.0)
    B, right_side, start = B / length[:, None], right_side / length, y[free] / root
    scale = np.abs(right_side) + np.abs(B) @ np.abs(start)
    scale = np.where(scale > 0, scale, 1.0)
    multiplier, best = np.zeros(len(right_side)), np.inf
    for _ in range(_ROUNDS):
        u = np.maximum(start + B.T @ multiplier, 0.0)
        gap = B @ u - right_side
        worst = float((np.abs(gap) / scale).max(initial=0.0))
        # exact up to rounding, or near that and no longer improving
        if worst <= 1e-14 or best <= worst <= 1e-11:
            break
        best = worst
        active = B[:, u > 0]
        # the small multiple of the identity keeps a singular system solvable
        step = -on_one_thread(np.linalg.solve)(active @ active.T + 1e-10 * np.eye(len(right_side)), gap)
        multiplier = multiplier + _step_length(multiplier, step, start, B, right_side) * step
    if (np.abs(gap) > 1e-9 * scale).any():
        raise _infeasible(C, d, y, v)
    x = y.copy()
    x[free] = root * u
    return x


def _step_length(point: Floats, step: Floats, start: Floats, B: Floats, right_side: Floats) -> float:
    """Return how far to follow `step` from `point`: 1 if that at least halves the gap, else nearly to the
    minimum of the dual along the line, where its slope is at most a tenth of that at `point`.

    The slope along a line is non-decreasing and piecewise linear, so bisection finds where it is zero. In the
    code t is `start + B' multiplier` at `point`, and s the change of t per unit of length.
    """
    t, s, r = start + B.T @ point, B.T @ step, float(right_side @ step)
    before, after = (B @ np.maximum(t + length * s, 0.0) - right_side for length in (0.0, 1.0))
    if np.linalg.norm(after) <= 0.5 * np.linalg.norm(before):
        return 1.0

    def slope(length: float) -> float:
        return float(np.maximum(t + length * s, 0.0) @ s) - r

    first = slope(0.0)
    low, high = 0.0, 1.0
    while slope(high) < 0 and high < 2.0**60:
        low, high = high, 2 * high
    for _ in range(80):
        if abs(slope(high)) <= 0.1 * abs(first):
            break
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return high


def _infeasible(C: Floats, d: Floats, y: Floats, v: Floats) -> InvalidInput:
    """Return the error that says why the iteration failed: a linear program decides whether any values meet
    the constraints."""
    bounds = np.column_stack([np.where(v > 0, 0.0, y), np.where(v > 0, np.inf, y)])
    if optimize.linprog(np.zeros(len(y)), A_eq=C, b_eq=d, bounds=bounds, method="highs").status == 2:
        return InvalidInput("no non-negative values meet the constraints.")
    return InvalidInput(
        "the constraints are met to less than nine digits only: they are too badly scaled. Bring variances "
        "and coefficients nearer to each other."
    )


def non_negative_measured(A: Any, y: Any, variances: Any) -> Floats:
    """Return the non-negative cells x for which A x is nearest to the noisy answers y, in units of the noise.

    Non-negative least squares with a dense or sparse `A`, for up to a few thousand cells. Biased, as
    `non_negative` is.

    >>> non_negative_measured([[1, 0], [0, 1], [1, 1]], [-2.0, 5.0, 4.0], 1.0).round(9).tolist()
    [0.0, 4.5]
    """
    z = _check.numbers("y", y)
    B = _check.matrix("A", A, rows=len(z))
    v = _check.variances(variances, z.shape, zero=False)
    if not len(z):
        # no answers: zeros, the solution of least length; scipy would return uninitialized memory
        return np.zeros(B.shape[1])
    weight = np.sqrt(v.min() / v)
    dense = (B if isinstance(B, np.ndarray) else sparse.csr_array(B).toarray()) * weight[:, None]
    with _require.refusing(
        "non-negative least squares did not converge: the system is too badly conditioned. Bring "
        "variances and coefficients nearer to each other.",
        RuntimeError,
    ):
        solution, _ = optimize.nnls(dense, z * weight, maxiter=50 * max(1, dense.shape[1]))
    return np.asarray(solution, dtype=np.float64)
