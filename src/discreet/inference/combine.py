"""Combines several releases of one quantity: averages weighted by precision, and intersections of
intervals."""

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
    unmeasured = np.isinf(v).all(axis=0)
    if unmeasured.any():
        raise InvalidInput(
            f"{_check.some('quantities', np.flatnonzero(unmeasured))} were not measured at all. "
            f"{NOTHING_COMPUTED}"
        )
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
        if (high[known] - low[known] > RELATIVE_TOLERANCE * (1 + np.abs(high[known]))).any():
            raise InvalidInput(f"{what} contradict each other. {NOTHING_COMPUTED}")
    # weights are smallest variance / variance: 1 / variance would be infinite for a tiny variance
    smallest = np.where(exact, np.inf, v).min(axis=0)
    with np.errstate(invalid="ignore"):
        weight = np.where(exact.any(axis=0), exact.astype(np.float64), smallest / np.where(exact, 1.0, v))
        variance = np.where(exact.any(axis=0), 0.0, smallest / weight.sum(axis=0))
    share = weight / weight.sum(axis=0)
    mean = (share.reshape(share.shape + (1,) * (y.ndim - share.ndim)) * y).sum(axis=0)
    return np.asarray(mean), variance if np.ndim(variance) else float(variance)


@dataclass(frozen=True, eq=False, kw_only=True)
class Interval:
    """Holds intervals from `lower` to `upper`; each contains its true value with probability `confidence` or
    more."""

    lower: Floats
    upper: Floats
    confidence: float


def intersect(lower: Any, upper: Any, confidence: Any) -> Interval:
    """Return the intersection of several intervals for the same quantities. The first axis numbers the
    intervals; `confidence` is one number, or one for each interval.

    Guarantee: each intersection contains its true value with probability at least 1 - sum of
               (1 - confidence), whatever the dependence between the intervals.
    Proof:     union bound.

    Intervals without a common point are refused, because one of them misses the true value. For each quantity
    that happens with probability at most sum of (1 - confidence).

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
    joint_confidence = 1 - float((1 - each).sum())
    if joint_confidence <= 0:
        raise InvalidInput(
            f"the confidences leave nothing for all intervals together: 1 - sum of (1 - confidence) is "
            f"{joint_confidence:.3g}. {NOTHING_COMPUTED} Use fewer intervals, or wider ones of a higher "
            f"confidence."
        )
    bottom, top = np.asarray(low.max(axis=0)), np.asarray(high.min(axis=0))
    if (bottom > top).any():
        raise InvalidInput(
            f"the intervals of {_check.some('quantities', np.flatnonzero(bottom > top))} do not "
            f"meet: one of them misses the true value. {NOTHING_COMPUTED} "
            f"Use a higher confidence, or combine the values."
        )
    return Interval(lower=bottom, upper=top, confidence=joint_confidence)
