"""Defines the base class of the randomizers of means: the grid to which a value is rounded, and the error of
the estimate.

The grid has the numbers 0, 1, ..., `steps`, evenly spaced from `low` to `high`. Below, a *summand* is the
unbiased estimate of one person's grid number from their report, and variances and widths of summands are in
units of one grid step.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._require import Real
from ..accounting import Event
from ..mechanisms.protocols import Release
from ..sampling import Entropy
from . import _draws
from ._base import LocalRandomizer, number_of, released, require_span
from ._draws import Codes

# The largest number of steps. With it, the odds of `DuchiMean` at the smallest epsilon, 1e-9, are still
# uneven (2**34 + 17 to 2**34). Chosen by hand, not tuned.
_MAX_STEPS = 1 << 16


class MeanRandomizer(LocalRandomizer):
    """Rounds a value in [low, high] to a grid at random; `_unbiased` turns reports into unbiased estimates of
    the grid number.
    """

    __slots__ = ()
    low: Real
    high: Real
    steps: int

    def _check(self) -> None:
        """Refuse bounds, steps and epsilons outside their ranges."""
        _require.ordered(low=self.low, high=self.high)
        _require.integer(steps=self.steps, at_least=1)
        if self.steps > _MAX_STEPS:
            raise _require.fail("steps", self.steps, f"at most {_MAX_STEPS}")
        if _draws.positive_epsilon(self.epsilon) < Fraction(1, 10**9):
            raise _require.fail("epsilon", self.epsilon, "at least 1e-9")
        require_span(self.low, self.high)

    def variance(self, people: int, mean: Real | None = None) -> float:
        """Return an upper bound on the variance of the mean estimated from `people` reports, whatever the
        people's values; or its variance if all people have the value `mean`.
        """
        _require.integer(people=people, at_least=1)
        if mean is None:
            return self._largest_variance_with_rounding() * self._step**2 / people
        return self._summand_variance(self._position(mean)) * self._step**2 / people

    def error(self, people: int, confidence: float = 0.95) -> float:
        """Return a bound on the distance of the estimated mean from the true mean (of values clamped to the
        bounds) that holds with probability `confidence`.

        Proof: the estimate is a mean of independent summands in an interval of width `_spread`. Their
               variance is at most `_largest_variance` plus 1/4, the largest variance of rounding to the grid.
               The bound is the smaller of Hoeffding's and Bernstein's. The bias of rounding, below 2**-32
               steps, is left out: for fewer than 10**18 people it is below the bound.
        """
        _require.integer(people=people, at_least=1)
        _require.open_probability(confidence=confidence)
        spread, variance = self._spread() * self._step, (self._largest_variance() + 0.25) * self._step**2
        log_term = math.log(2 / (1 - confidence))
        linear_term = spread * log_term / 3
        hoeffding = spread * math.sqrt(people * log_term / 2)
        bernstein = linear_term + math.sqrt(linear_term**2 + 2 * people * variance * log_term)
        return min(hoeffding, bernstein) / people * (1 + 1e-12)

    def _exact(self, name: str) -> Fraction:
        """Return `low` or `high` as an exact fraction."""
        return _require.exact(getattr(self, name), name)

    @property
    def _step(self) -> float:
        """Return the width of one grid step, in the unit of the values."""
        return float((self._exact("high") - self._exact("low")) / self.steps)

    def _position(self, value: Any) -> float:
        """Return the position of a value on the grid, from 0 to `steps`; values outside are clamped."""
        low, high = self._exact("low"), self._exact("high")
        clamped = min(max(_require.exact(value, "mean"), low), high)
        return float((clamped - low) / (high - low)) * self.steps

    def _one(self, value: Any) -> NDArray[np.float64]:
        """Return the position of one person's value; what is no number counts as `low`."""
        number = number_of(value)
        return self._values(np.array([float(self.low) if math.isnan(number) else number]))

    def _values(self, array: NDArray[Any]) -> NDArray[np.float64]:
        """Return the positions of values on the grid, as numbers from 0 to `steps` with fractions."""
        if array.dtype.kind not in "fiu":
            raise InvalidInput(f"values must be numbers, got {array.dtype}. Nothing was drawn.")
        values = array.astype(np.float64)
        if np.isnan(values).any():
            raise InvalidInput("values must be numbers, and some are missing (nan). Nothing was drawn.")
        low, high = float(self.low), float(self.high)
        return np.asarray((np.clip(values, low, high) - low) / (high - low) * self.steps)

    def _on_grid(self, positions: NDArray[np.float64], entropy: Entropy) -> Codes:
        """Round positions at random to grid numbers, so that the mean of the grid number is the position, up
        to 2**-32: the coin's probability is a multiple of 1 / `_draws.COIN`. The ratio of a report's
        probabilities does not depend on it."""
        floors = np.clip(np.floor(positions), 0, self.steps).astype(np.int64)
        fractions = np.floor((positions - floors) * _draws.COIN).astype(np.int64)
        rounded_up = _draws.coin(fractions, _draws.COIN, len(positions), entropy)
        return np.minimum(floors + rounded_up, self.steps)

    def _estimate(self, reports: NDArray[Any], event: Event) -> Release:
        people = len(reports)
        mean = float(self._exact("low")) + self._step * float(np.mean(self._unbiased(reports)))
        return released(mean, event, lambda confidence: self.error(people, confidence))

    def _unbiased(self, reports: NDArray[Any]) -> NDArray[np.float64]:
        """Return one summand per report."""
        raise NotImplementedError

    def _summand_variance(self, x: float) -> float:
        """Return the variance of one summand for a value at the position x of the grid, rounding included."""
        raise NotImplementedError

    def _largest_variance(self) -> float:
        """Return an upper bound on the variance of one summand, given the grid number: rounding excluded."""
        raise NotImplementedError

    def _largest_variance_with_rounding(self) -> float:
        """Return an upper bound on the variance of one summand, rounding included (which adds up to 1/4)."""
        return self._largest_variance() + 0.25

    def _spread(self) -> float:
        """Return the width of the interval that holds every summand."""
        raise NotImplementedError
