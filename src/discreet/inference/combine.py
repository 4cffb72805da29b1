"""Several releases of one quantity as one: averages weighted by precision, and intervals that meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _require
from .._errors import InvalidInput
from . import _check
from ._check import NOTHING_COMPUTED, Floats
from .estimate import Estimate
from .least_squares import RELATIVE_TOLERANCE


def combine(values: Any, variances: Any) -> Estimate:
    """Return the average of several measurements of the same quantities, weighted by 1 / variance: the least
    variance there is.

    The first axis counts the measurements; any others the quantities. `variances`: one for each measurement,
    or one for each value. Zero: known exactly. Infinite: not measured.

    Guarantee: best linear unbiased estimate; its variance is 1 / (sum of 1 / variance).
    Assumes:   independent noise: releases made by two mechanisms, not one release counted twice.

    >>> both = combine([10.0, 13.0], [1.0, 2.0])
    >>> float(both.values), round(float(both.variances), 4)
    (11.0, 0.6667)
    """
    values = _check.as_array("values", values)
    shape = values.shape
    if not shape or not shape[0]:
        raise InvalidInput(
            f"values must hold one or more measurements along the first axis, got shape {shape}. "
            f"{NOTHING_COMPUTED}"
        )
    array = _check.as_array("variances", variances)
    if array.shape == shape[:1]:
        variances = array.reshape((-1,) + (1,) * (len(shape) - 1))
    v = _check.variances(variances, shape, infinite=True)
    y = _check.measured_only("values", values, np.isfinite(v))
    lost = np.isinf(v).all(axis=0)
    if lost.any():
        raise InvalidInput(
            f"{_check.some('quantities', np.flatnonzero(lost))} were not measured at all. {NOTHING_COMPUTED}"
        )
    mean, spread = _weighted_mean(y, v, "measurements known exactly")
    flat = np.asarray(spread).ravel()
    return Estimate(values=mean, _covariance_product=lambda q: flat * q, _variances=np.asarray(spread))


def _weighted_mean(y: Floats, v: Floats, what: str) -> tuple[Floats, Any]:
    """Return the mean and the variance along the first axis; values of variance zero decide alone, and must
    agree."""
    exact = v == 0
    if exact.any():
        wide = np.broadcast_to(exact.reshape(exact.shape + (1,) * (y.ndim - exact.ndim)), y.shape)
        low = np.where(wide, y, np.inf).min(axis=0)
        high = np.where(wide, y, -np.inf).max(axis=0)
        some = np.isfinite(low)
        if (high[some] - low[some] > RELATIVE_TOLERANCE * (1 + np.abs(high[some]))).any():
            raise InvalidInput(f"{what} contradict each other. {NOTHING_COMPUTED}")
    # relative to the smallest: one over a tiny variance would be infinite
    smallest = np.where(exact, np.inf, v).min(axis=0)
    with np.errstate(invalid="ignore"):
        weight = np.where(exact.any(axis=0), exact.astype(np.float64), smallest / np.where(exact, 1.0, v))
        spread = np.where(exact.any(axis=0), 0.0, smallest / weight.sum(axis=0))
    share = weight / weight.sum(axis=0)
    mean = (share.reshape(share.shape + (1,) * (y.ndim - share.ndim)) * y).sum(axis=0)
    return np.asarray(mean), spread if np.ndim(spread) else float(spread)


@dataclass(frozen=True, eq=False, kw_only=True)
class Interval:
    """From `lower` to `upper`; each holds its truth with probability `confidence` or more."""

    lower: Floats
    upper: Floats
    confidence: float


def intersect(lower: Any, upper: Any, confidence: Any) -> Interval:
    """Return where several intervals for the same quantities meet. The first axis counts the intervals.

    Guarantee: each intersection holds its truth with probability 1 - sum of (1 - confidence), whatever the
               dependence between the intervals.
    Proof:     union bound.

    Intervals that do not meet are refused: one of them missed. That happens with probability at most sum of
    (1 - confidence).

    >>> met = intersect([1.0, 3.0], [6.0, 9.0], 0.99)
    >>> float(met.lower), float(met.upper), round(met.confidence, 4)
    (3.0, 6.0, 0.98)
    """
    low = _check.numbers("lower", lower, dimensions=None)
    high = _check.numbers("upper", upper, dimensions=None)
    if low.shape != high.shape or low.ndim == 0 or not len(low):
        raise InvalidInput(
            f"lower and upper must have the same shape, intervals first, got {low.shape} and "
            f"{high.shape}. {NOTHING_COMPUTED}"
        )
    each = _check.for_each("confidence", confidence, len(low), "intervals")
    for value in each.tolist():
        _require.open_probability(confidence=value)
    if (low > high).any():
        raise InvalidInput(f"lower must not be above upper. {NOTHING_COMPUTED}")
    together = 1 - float((1 - each).sum())
    if together <= 0:
        raise InvalidInput(
            f"so many intervals with so little confidence promise nothing together. {NOTHING_COMPUTED} Ask "
            f"for wider ones."
        )
    bottom, top = np.asarray(low.max(axis=0)), np.asarray(high.min(axis=0))
    if (bottom > top).any():
        raise InvalidInput(
            f"the intervals of {_check.some('quantities', np.flatnonzero(bottom > top))} do not "
            f"meet: one of them missed. {NOTHING_COMPUTED} "
            f"Use a higher confidence, or combine the values."
        )
    return Interval(lower=bottom, upper=top, confidence=together)
