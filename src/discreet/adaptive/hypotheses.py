"""Hypotheses about one number of a table: an exact integer statistic, and its distribution under the null
hypothesis.

The distribution is public: it follows from a number of people that the steward declares and from the null
hypothesis alone. A private test compares a noisy statistic with a threshold that only chance `level` would
pass under that distribution, noise included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from .. import _require
from .._errors import InvalidInput
from .._public import Public
from .._registry import described
from ..mechanisms import arrow_columns
from ..mechanisms.protocols import Statistic, is_statistic
from ..mechanisms.statistics import length_of

Masses = NDArray[np.float64]
# The most entries of a distribution, which is held in memory as probabilities: 80 MB. No measurement on
# record.
_MAX_ENTRIES = 10_000_000


@runtime_checkable
class NullLaw(Protocol):
    """Computes the distribution of an integer statistic under the null hypothesis."""

    def masses(self) -> tuple[int, Masses]: ...

    def __hash__(self) -> int: ...


@described("adaptive.Binomial")
@dataclass(frozen=True, slots=True, kw_only=True)
class Binomial:
    """Describes a count among `trials` people, each of whom counts with probability `chance`,
    independently.
    """

    trials: int
    chance: float | Fraction

    def __post_init__(self) -> None:
        _require.integer(trials=self.trials, at_least=1)
        _require.open_probability(chance=self.chance)
        _check_size(self.trials)

    def masses(self) -> tuple[int, Masses]:
        """Return the smallest value, and the probability of each value from there on."""
        return 0, _binomial(self.trials, float(self.chance))


@described("adaptive.TruncatedExponential")
@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedExponential:
    """Describes a sum over `trials` people of exponential values with this `rate`, cut off at `bound` and
    rounded to multiples of `step`.

    The sum is in steps. What lies above the bound counts as the bound, as clipping does.
    """

    trials: int
    rate: float
    bound: float
    step: float | Fraction

    def __post_init__(self) -> None:
        _require.integer(trials=self.trials, at_least=1)
        _require.positive(rate=self.rate, bound=self.bound, step=self.step)
        if self.step > self.bound:
            raise InvalidInput(
                f"step={self.step!r} is larger than bound={self.bound!r}. Choose a smaller step."
            )
        _check_size(self.trials * (int(self.bound / float(self.step)) + 1))

    def masses(self) -> tuple[int, Masses]:
        """Return the smallest value, and the probability of each value from there on."""
        # halves up, as columns are put on a grid
        top = arrow_columns.nearest(_require.exact(self.bound, "bound") / _require.exact(self.step, "step"))
        return 0, _exponential(self.trials, float(self.rate), top, float(self.step))


def _check_size(entries: int) -> None:
    if entries > _MAX_ENTRIES:
        raise InvalidInput(
            f"the distribution has about {entries} values; at most {_MAX_ENTRIES} can be written out. "
            f"Choose a larger step."
        )


@lru_cache(maxsize=64)
def _binomial(trials: int, chance: float) -> Masses:
    """Return the binomial probabilities."""
    # slow to load, and most processes that load this package never ask for it
    from scipy.stats import binom

    masses: Masses = binom.pmf(np.arange(trials + 1), trials, chance)
    return masses


@lru_cache(maxsize=16)
def _exponential(trials: int, rate: float, top: int, step: float) -> Masses:
    """Return the distribution of the sum, by the transform of that of one person's rounded value, at most
    `top` steps."""
    edges = (np.arange(top) + 0.5) * step
    trial_masses = np.diff(np.concatenate([[0.0], -np.expm1(-rate * edges), [1.0]]))
    length = fft.next_fast_len(top * trials + 1, real=True)
    density = fft.irfft(fft.rfft(trial_masses, length) ** trials, length)[: top * trials + 1]
    masses: Masses = np.maximum(density, 0)
    return masses


@described("adaptive.Hypothesis")
@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """States that `statistic` follows `null`; evidence against it is a value that is too large ("greater") or
    too small ("less")."""

    statistic: Statistic
    null: NullLaw
    alternative: str = "greater"

    def __post_init__(self) -> None:
        if not is_statistic(self.statistic):
            raise InvalidInput(
                f"a hypothesis is about a statistic, as Component(...), not {type(self.statistic).__name__}."
            )
        if not isinstance(self.null, NullLaw):
            raise InvalidInput(
                f"null must be a distribution, such as Binomial(...), got {type(self.null).__name__}."
            )
        _require.one_of(("greater", "less"), alternative=self.alternative)

    def check(self, public: Public, sensitivity: int) -> None:
        """Check that one person moves the statistic by at most `sensitivity`, which was paid for."""
        if length_of(self.statistic, public) not in (None, 1):
            raise InvalidInput(
                "the statistic has several values. Nothing was drawn. Ask about one Component of it."
            )
        statistic_sensitivity = self.statistic.sensitivity(public).linf
        if statistic_sensitivity > sensitivity:
            raise InvalidInput(
                f"one person moves the statistic by up to {statistic_sensitivity}, and this was priced for "
                f"{sensitivity}. Nothing was drawn or released."
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
    """Return the logarithm of P(V >= v) for each value v, and at least `floor`."""
    tails = np.cumsum(masses[::-1])[::-1]
    with np.errstate(divide="ignore"):
        logs: Masses = np.maximum(np.log(np.minimum(tails, 1.0)), floor)
    return logs


class ComparisonNoise(Protocol):
    """Computes the distribution of the noise that is added before a comparison."""

    def survival(self, points: NDArray[Any]) -> Masses: ...


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
    """Describes the difference of two independent discrete Laplace variables with different scales.

    With q = exp(-1/scale), P(W = m) = c1 q1^|m| + c2 q2^|m| by partial fractions of the product of (1 - q)² /
    ((1 - q z)(1 - q / z)).
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
        """Return c q^m / (1 - q), written with expm1 so that large scales lose nothing."""
        # 1 - q, 1 - q' and 1 - q' / q
        complement, other_complement = -math.expm1(-1 / own), -math.expm1(-1 / other)
        # beyond 700, where the weight is next to nothing, floats would overflow
        ratio_complement = -math.expm1(min(1 / own - 1 / other, 700.0))
        weight = (
            complement
            * other_complement**2
            / (-math.expm1(-2 / own) * -math.expm1(-1 / own - 1 / other) * ratio_complement)
        )
        masses: Masses = weight * np.exp(-m / own)
        return masses


def critical(values: NDArray[np.int64], masses: Masses, noise: ComparisonNoise, level: float) -> int:
    """Return the smallest integer c for which P(V + W >= c) <= level; V has these masses at these (ordered)
    values, W is the noise.

    Masses were computed in floating point: 1e-12 of the level is kept back for that.
    """
    allowed = level * (1 - 1e-12)
    if not 0 < allowed < 1:
        raise InvalidInput(f"level={level!r} is not between 0 and 1: no threshold has that chance.")
    keep = masses > 0
    points, weights = values[keep], masses[keep]

    def chance(c: int) -> float:
        return float(weights @ noise.survival(c - points))

    bottom, width = int(points[0]) - 1, 1
    # only where noise is wider than the distribution
    while chance(bottom) <= allowed:
        bottom, width = bottom - width, 2 * width
    top, width = int(points[-1]) + 1, 1
    while chance(top) > allowed:
        top, width = top + width, 2 * width
    while top - bottom > 1:
        middle = (bottom + top) // 2
        bottom, top = (bottom, middle) if chance(middle) <= allowed else (middle, top)
    return top
