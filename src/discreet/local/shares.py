"""Computes consistent shares, which are not negative and add up to one, from unbiased estimates; and maximum
likelihood estimates of shares.

Both only post-process reports, so they cost no privacy. Unbiased estimates of rare values are negative half
of the time. The methods below bias single shares, and make all shares together more accurate.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from .. import _require
from .._require import FLOAT, NON_NEGATIVE, POSITIVE, among, at_least, instance_of
from ..inference import with_total
from ._base import Floats
from .longterm import LongTermResponse
from .oracles import DesignResponse, FrequencyOracle, UnaryEncoding

METHODS = ("norm_sub", "norm_mul", "clip")
# The largest table of likelihoods, distinct reports times values: 2**24 floats are 128 MB. Chosen by
# hand; raise it where memory allows.
_CELLS = 1 << 24


@_require.check_options
def consistent(
    shares: Any,
    method: Annotated[str, among(METHODS)] = "norm_sub",
    *,
    total: Annotated[float, POSITIVE, FLOAT] = 1.0,
) -> Floats:
    """Return shares that are zero or above and, except with `clip`, add up to `total`.

    norm_sub: subtract one number from all shares and clip at zero, so that the sum is `total`. The result is
              the nearest point of the simplex, so the squared error never grows. It was the most accurate
              method for the shares of all values in Wang et al. 2020, arXiv:1905.08320.
    norm_mul: clip at zero, then scale to the sum `total`; equal shares if all are clipped.
    clip:     clip at zero only. Estimates of common values are not changed, but the sum is too large
              on average.

    >>> consistent([0.7, 0.5, -0.2]).round(3).tolist()
    [0.6, 0.4, 0.0]
    """
    try:
        values = np.asarray(shares, dtype=np.float64)
    except (ValueError, TypeError):
        values = np.array(np.nan)
    are_numbers = values.ndim == 1 and len(values) and np.isfinite(values).all()
    _require.that(are_numbers, "shares must be a list of finite numbers.")
    if method == "norm_sub":
        return with_total(values, total)
    clipped = np.maximum(values, 0.0)
    if method == "clip":
        return clipped
    largest = clipped.max()
    if largest == 0:
        return np.full(len(values), total / len(values))
    # divided by the largest share first, so that sums of tiny or huge shares stay finite and above zero
    scaled = clipped / largest
    return np.asarray(scaled * (total / scaled.sum()))


@_require.check_options
def expectation_maximization(
    randomizer: Annotated[
        FrequencyOracle | DesignResponse,
        instance_of(FrequencyOracle | DesignResponse, "a frequency oracle or a design"),
    ],
    reports: Any,
    *,
    rounds: Annotated[int, at_least(1)] = 1000,
    tolerance: Annotated[float, NON_NEGATIVE] = 1e-9,
) -> Floats:
    """Return the maximum likelihood estimate of the shares: not negative, adding up to one, and often more
    accurate than the unbiased estimates.

    It starts from equal shares. A round multiplies the share of each value by the mean, over all reports, of
    P(report | value) / P(report). The log-likelihood never falls, and it is concave, so the limit is its
    maximum (Agrawal & Aggarwal 2001; ElSalamouny & Palamidessi 2020). It stops after `rounds`, or when no
    share changes by more than `tolerance` in a round. It needs memory for distinct reports times values.
    """
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


def _likelihood(randomizer: FrequencyOracle | DesignResponse, reports: Any) -> tuple[Floats, Floats]:
    """Return (likelihoods, weights): a table of P(report | value), one row per distinct report, each row up
    to a factor of its own; and the share of all reports that each distinct report has."""
    data, _ = randomizer._collect(reports)
    rows, counts = np.unique(data, axis=0, return_counts=True)
    weights = counts / counts.sum()
    if isinstance(randomizer, DesignResponse):
        return np.asarray(randomizer.matrix().T[rows]), weights
    _require.that(
        len(rows) * randomizer.domain <= _CELLS,
        f"{len(rows)} different reports times {randomizer.domain} values are more than {_CELLS} "
        "likelihoods. Use `consistent` on the estimate, or shorter reports.",
    )
    high, low = _support_likelihoods(randomizer)
    return np.where(randomizer._supported(rows), high, low), weights


def _support_likelihoods(oracle: FrequencyOracle) -> tuple[float, float]:
    """Return (high, low): P(report | value), up to a factor that depends on the report only, where the report
    supports the value and where it does not."""
    if isinstance(oracle, UnaryEncoding):
        p, q = (float(x) for x in oracle.support)
        return p / q, (1 - p) / (1 - q)
    if isinstance(oracle, LongTermResponse):
        # `ratio` is that of the permanent answer; `first_ratio` is that of one report, its noisy copy
        return float(oracle.first_ratio), 1.0
    return float(oracle.ratio), 1.0
