"""Estimated shares that could be shares: not negative, adding up to one; and the most likely shares instead
of the unbiased ones.

All of it is post-processing of reports, so it costs nothing. Unbiased estimates of rare values are negative
half of the time; what is done about it here biases single values and makes all shares together more accurate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _require
from .._errors import InvalidInput
from ..inference import with_total
from ._base import Floats
from .designs import DesignResponse
from .location import DistanceResponse
from .longterm import LongTermResponse
from .oracles import FrequencyOracle, UnaryEncoding

METHODS = ("norm_sub", "norm_mul", "clip")
# Entries of the table of likelihoods, reports times values, which is held in memory: 2**24 floats are 128 MB.
# No measurement on record: raise it where memory allows.
_CELLS = 1 << 24


def consistent(shares: Any, method: str = "norm_sub", *, total: float = 1.0) -> Floats:
    """Return shares that are zero or above and (but for `clip`) add up to `total`.

    norm_sub: subtract one number from all and clip at zero, such that the total is right. That *is* the
              nearest point of the simplex, so the squared error never grows. (Wang et al. 2020,
              arXiv:1905.08320, where it does best over the whole domain.)
    norm_mul: clip at zero, then scale to the total.
    clip:     clip at zero: single common values keep their estimates, the sum is too large.

    >>> consistent([0.7, 0.5, -0.2]).round(3).tolist()
    [0.6, 0.4, 0.0]
    """
    _require.one_of(METHODS, method=method)
    _require.positive(total=total)
    try:
        values = np.asarray(shares, dtype=np.float64)
    except (ValueError, TypeError):
        raise InvalidInput("shares must be a list of finite numbers. Nothing was computed.") from None
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise InvalidInput("shares must be a list of finite numbers. Nothing was computed.")
    if method == "norm_sub":
        return with_total(values, total)
    clipped = np.maximum(values, 0.0)
    if method == "clip":
        return clipped
    mass = clipped.sum()
    return np.full(len(values), total / len(values)) if mass == 0 else clipped * (total / mass)


def expectation_maximization(
    randomizer: Any, reports: Any, *, rounds: int = 1000, tolerance: float = 1e-9
) -> Floats:
    """Return the shares under which the reports are most likely: positive, adding up to one, and often closer
    than the unbiased estimates.

    Starts from equal shares; a round multiplies each by the mean over all reports of P(report | value) /
    P(report). The likelihood never falls, and it is concave, so the limit is its maximum (Agrawal & Aggarwal
    2001; ElSalamouny & Palamidessi 2020). Stops when no share moves by more than `tolerance` in a round.
    Needs memory for distinct reports times values.
    """
    _require.integer(rounds=rounds, at_least=1)
    _require.non_negative(tolerance=tolerance)
    likelihood, weights = _likelihood(randomizer, reports)
    shares = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    for _ in range(rounds):
        updated = shares * (weights / (likelihood @ shares) @ likelihood)
        updated /= updated.sum()
        change = float(np.abs(updated - shares).max())
        shares = updated
        if change <= tolerance:
            break
    return shares


def _likelihood(randomizer: Any, reports: Any) -> tuple[Floats, Floats]:
    """Return (P(report | value) up to a factor for each distinct report, the share of reports that are
    it)."""
    if not isinstance(randomizer, FrequencyOracle | DesignResponse | DistanceResponse):
        raise _require.fail(
            "randomizer", type(randomizer).__name__, "a frequency oracle, a design or a distance response"
        )
    data, _ = randomizer._collect(reports)
    rows, counts = np.unique(data, axis=0, return_counts=True)
    weights = counts / counts.sum()
    if isinstance(randomizer, DesignResponse | DistanceResponse):
        return np.asarray(randomizer.matrix().T[rows]), weights
    if len(rows) * randomizer.domain > _CELLS:
        raise InvalidInput(
            f"{len(rows)} different reports over {randomizer.domain} values are too many to be weighed one "
            f"by one (at most {_CELLS} together). Use `consistent` on the estimate, or shorter reports."
        )
    high, low = _support_likelihoods(randomizer)
    return np.where(randomizer._supported(rows), high, low), weights


def _support_likelihoods(oracle: FrequencyOracle) -> tuple[float, float]:
    """Return P(report | value), up to a factor of the report's own, where the report supports the value and
    where it does not."""
    if isinstance(oracle, UnaryEncoding):
        p, q = (float(x) for x in oracle.support)
        return p / q, (1 - p) / (1 - q)
    if isinstance(oracle, LongTermResponse):
        # `ratio` is that of the permanent answer; a report is a noisy copy of it
        return float(oracle.first_ratio), 1.0
    return float(oracle.ratio), 1.0
