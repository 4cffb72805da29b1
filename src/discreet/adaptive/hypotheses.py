"""Defines hypotheses about one number of a table: an exact integer statistic, and its distribution under the
null hypothesis.

The distribution is public: it depends only on the null hypothesis and on a number of people that the steward
declares. A private test compares a noisy statistic with a threshold. Under that distribution the noisy
statistic passes the threshold with probability at most `level`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from .. import _require
from .._public import Public
from .._registry import described
from .._require import A_FLOAT, OPEN_PROBABILITY, POSITIVE, among, at_least, instance_of
from ..mechanisms import arrow_columns
from ..mechanisms.protocols import STATISTIC, Statistic
from ..mechanisms.statistics import length_of

Masses = NDArray[np.float64]
# The largest number of values of a distribution: their probabilities are held in memory, 80 MB. The value was
# chosen by hand, not tuned.
_MAX_ENTRIES = 10_000_000


@runtime_checkable
class NullLaw(Protocol):
    """Computes the distribution of an integer statistic under the null hypothesis."""

    def masses(self) -> tuple[int, Masses]:
        """Return the smallest value, and the probability of each integer from there on."""
        ...

    def __hash__(self) -> int: ...


@described("adaptive.Binomial")
class Binomial:
    """Describes the binomial distribution: a count among `trials` people, each of whom is counted with
    probability `chance`, independently of the others.
    """

    trials: Annotated[int, at_least(1)]
    chance: Annotated[float | Fraction, OPEN_PROBABILITY]

    def __post_init__(self) -> None:
        _check_size(self.trials)

    def masses(self) -> tuple[int, Masses]:
        """Return the smallest value, and the probability of each value from there on."""
        return 0, _binomial(self.trials, float(self.chance))


@described("adaptive.TruncatedExponential")
class TruncatedExponential:
    """Describes a sum over `trials` people of exponential values with this `rate`, clipped to `bound` and
    rounded to multiples of `step`.

    The sum is in whole steps.
    """

    trials: Annotated[int, at_least(1)]
    rate: Annotated[float, POSITIVE, A_FLOAT]
    bound: Annotated[float, POSITIVE, A_FLOAT]
    step: Annotated[float | Fraction, POSITIVE]

    def __post_init__(self) -> None:
        _require.that(
            self.step <= self.bound,
            f"step={self.step!r} is larger than bound={self.bound!r}. Choose a smaller step.",
        )
        _check_size(self.trials * (int(self._bound_in_steps) + 1))

    def masses(self) -> tuple[int, Masses]:
        """Return the smallest value, and the probability of each value from there on."""
        # halves are rounded up, as `arrow_columns` rounds the values of a column
        top = arrow_columns.nearest(self._bound_in_steps)
        return 0, _exponential(self.trials, float(self.rate), top, float(self.step))

    @property
    def _bound_in_steps(self) -> Fraction:
        return _require.exact(self.bound, "bound") / _require.exact(self.step, "step")


def _check_size(entries: int) -> None:
    _require.that(
        entries <= _MAX_ENTRIES,
        f"the distribution has more than {_MAX_ENTRIES} values, the most that are held in memory. "
        f"Choose a larger step, or fewer trials.",
    )


@lru_cache(maxsize=64)
def _binomial(trials: int, chance: float) -> Masses:
    """Return the binomial probabilities."""
    # imported here: slow to load, and most processes that load this package never need it
    from scipy.stats import binom

    masses: Masses = binom.pmf(np.arange(trials + 1), trials, chance)
    return masses


@lru_cache(maxsize=16)
def _exponential(trials: int, rate: float, top: int, step: float) -> Masses:
    """Return the distribution of the sum: the `trials`-th power of the Fourier transform of the distribution
    of one person's value, which is 0 to `top` steps. The rounding error of the transform is absolute, so very
    small masses are inaccurate."""
    edges = (np.arange(top) + 0.5) * step
    trial_masses = np.diff(np.concatenate([[0.0], -np.expm1(-rate * edges), [1.0]]))
    length = fft.next_fast_len(top * trials + 1, real=True)
    density = fft.irfft(fft.rfft(trial_masses, length) ** trials, length)[: top * trials + 1]
    masses: Masses = np.maximum(density, 0)
    return masses


@described("adaptive.Hypothesis")
class Hypothesis:
    """States the null hypothesis that `statistic` follows the distribution `null`. Evidence against it is a
    value that is too large (alternative "greater") or too small ("less")."""

    statistic: Annotated[Statistic, STATISTIC]
    null: Annotated[NullLaw, instance_of(NullLaw, "a distribution, such as Binomial(...)")]
    alternative: Annotated[str, among(("greater", "less"))] = "greater"

    def check(self, public: Public, sensitivity: int) -> None:
        """Check that the statistic is one number, which one person moves by at most `sensitivity`, the amount
        that was paid for."""
        single = length_of(self.statistic, public) in (None, 1)
        _require.that(single, "the statistic has several values. Ask about one Component of it.")
        statistic_sensitivity = self.statistic.sensitivity(public).linf
        _require.that(
            statistic_sensitivity <= sensitivity,
            f"one person moves the statistic by up to {statistic_sensitivity}, and this mechanism was "
            f"priced for {sensitivity}.",
        )

    @property
    def sign(self) -> int:
        """Return 1 if large values are evidence, -1 if small ones are."""
        return 1 if self.alternative == "greater" else -1


def under_null(null: NullLaw, sign: int) -> tuple[NDArray[np.int64], Masses]:
    """Return the values of sign times the statistic, in order, and their probabilities."""
    low, masses = null.masses()
    values = np.arange(low, low + len(masses), dtype=np.int64)
    return (values, masses) if sign == 1 else (-values[::-1], masses[::-1])


def log_pvalues(masses: Masses, floor: float) -> Masses:
    """Return max(ln P(V >= v), floor) for each value v; the p-values of "greater" are P(V >= v).

    `masses` are the probabilities of the values in increasing order."""
    tails = np.cumsum(masses[::-1])[::-1]
    with np.errstate(divide="ignore"):
        logs: Masses = np.maximum(np.log(np.minimum(tails, 1.0)), floor)
    return logs


class ComparisonNoise(Protocol):
    """Computes the distribution of the noise that is added before a comparison."""

    def survival(self, points: NDArray[Any]) -> Masses:
        """Return P(W >= m) for each point m, where W is the noise."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLaplace:
    """Describes a discrete Laplace variable: P(W >= m) = q^m / (1 + q) for m >= 1, q = exp(-1/scale)."""

    scale: float

    def survival(self, points: NDArray[Any]) -> Masses:
        """Return P(W >= m)."""
        m = np.asarray(points, dtype=np.float64)
        upper = np.exp(-np.where(m >= 1, m, 1 - m) / self.scale) / (1 + math.exp(-1 / self.scale))
        tails: Masses = np.where(m >= 1, upper, 1 - upper)
        return tails


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLaplaces:
    """Describes the difference W of two independent discrete Laplace variables with different scales `first`
    and `second`. Equal scales are not allowed: they divide by zero.

    With q = exp(-1/scale), the generating function of one variable is (1 - q)² / ((1 - q z)(1 - q / z)).
    Partial fractions of the product of the two give P(W = m) = c1 q1^|m| + c2 q2^|m|, where c1 = (1 - q1)²
    (1 - q2)² / ((1 - q1²) (1 - q1 q2) (1 - q2 / q1)), and c2 is c1 with q1 and q2 exchanged.
    """

    first: float
    second: float

    def survival(self, points: NDArray[Any]) -> Masses:
        """Return P(W >= m)."""
        m = np.asarray(points, dtype=np.float64)
        positive = np.where(m >= 1, m, 1 - m)
        upper = self._term(positive, self.first, self.second) + self._term(positive, self.second, self.first)
        upper = np.clip(upper, 0.0, 0.5)
        tails: Masses = np.where(m >= 1, upper, 1 - upper)
        return tails

    def _term(self, m: Masses, own: float, other: float) -> Masses:
        """Return the sum of c q^i over i >= m, c q^m / (1 - q), for the scale `own` of q, written with expm1
        so that large scales lose no precision. q' below is for the scale `other`."""
        # 1 - q, 1 - q' and 1 - q' / q
        complement, other_complement = -math.expm1(-1 / own), -math.expm1(-1 / other)
        # exp overflows a little beyond 700, where the weight is negligible
        ratio_complement = -math.expm1(min(1 / own - 1 / other, 700.0))
        weight = (
            complement
            * other_complement**2
            / (-math.expm1(-2 / own) * -math.expm1(-1 / own - 1 / other) * ratio_complement)
        )
        tails: Masses = weight * np.exp(-m / own)
        return tails


def critical(values: NDArray[np.int64], masses: Masses, noise: ComparisonNoise, level: float) -> int:
    """Return the smallest integer c for which P(V + W >= c) <= level, where V has these masses at these
    (ordered) values and W is the noise.

    The level is lowered by a factor 1 - 1e-12 for the rounding of the sums in floating point.
    """
    allowed = level * (1 - 1e-12)
    _require.that(
        0 < allowed < 1, f"level={level!r} is not between 0 and 1: no threshold has that probability."
    )
    keep = masses > 0
    points, weights = values[keep], masses[keep]

    def tail(c: int) -> float:
        return float(weights @ noise.survival(c - points))

    # Bisection: `bottom` is too low a threshold (tail above the level), `top` is a valid one. To make that
    # true, each end is first moved outwards; beyond the values of V only the noise makes this necessary.
    bottom, width = int(points[0]) - 1, 1
    while tail(bottom) <= allowed:
        bottom, width = bottom - width, 2 * width
    top, width = int(points[-1]) + 1, 1
    while tail(top) > allowed:
        top, width = top + width, 2 * width
    while top - bottom > 1:
        middle = (bottom + top) // 2
        bottom, top = (bottom, middle) if tail(middle) <= allowed else (middle, top)
    return top
