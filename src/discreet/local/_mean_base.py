"""What the randomizers of means share: the grid that a value is rounded to, and the error of the estimate."""

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
from ._base import LocalRandomizer, released, require_span
from ._draws import Codes

# The resolution of rounding a value to the grid; it touches no probability of a report. 2**-32 is that of
# `_draws.coins`, and js/discreet-local.mjs rounds to the same.
ROUNDING = 1 << 32
# The most steps of the grid: a value is rounded to one in 65,536 of its range. The odds of Duchi's bit at
# the least epsilon, 1e-9, are then still uneven (2**34 + 17 to 2**34). No measurement on record.
_MAX_STEPS = 1 << 16


class MeanRandomizer(LocalRandomizer):
    """Puts a value in [low, high] on a grid; `_unbiased` turns reports into unbiased estimates of the grid
    number.
    """

    __slots__ = ()
    low: Real
    high: Real
    steps: int

    def _check(self) -> None:
        _require.ordered(low=self.low, high=self.high)
        _require.integer(steps=self.steps, at_least=1)
        if self.steps > _MAX_STEPS:
            raise _require.fail("steps", self.steps, f"at most {_MAX_STEPS}")
        if _draws.positive_epsilon(self.epsilon) < Fraction(1, 10**9):
            raise _require.fail("epsilon", self.epsilon, "at least 1e-9")
        require_span(self.low, self.high)

    def variance(self, people: int, mean: Real | None = None) -> float:
        """Return the largest variance of the estimated mean that the coins can cause, or for people who all
        have the value `mean`.
        """
        _require.integer(people=people, at_least=1)
        where = self.steps * np.array([0.0, 0.25, 0.5, 0.75, 1.0]) if mean is None else [self._number(mean)]
        unit = float(Fraction(self._exact("high") - self._exact("low")) / self.steps)
        return max(self._unit_variance(float(x)) for x in where) * unit**2 / people

    def error(self, people: int, confidence: float = 0.95) -> float:
        """Return how far the estimated mean is at most from the true one (of values within bounds), with
        probability `confidence`.

        Proof: the estimate is a mean of independent summands in an interval of known width and with a
               variance that is at most `_largest_variance`; the smaller of Hoeffding's bound and Bernstein's.
        """
        _require.integer(people=people, at_least=1)
        _require.open_probability(confidence=confidence)
        unit = float(Fraction(self._exact("high") - self._exact("low")) / self.steps)
        spread, largest = self._spread() * unit, (self._largest_variance() + 0.25) * unit**2
        log_term = math.log(2 / (1 - confidence))
        third = spread * log_term / 3
        hoeffding = spread * math.sqrt(people * log_term / 2)
        bernstein = third + math.sqrt(third**2 + 2 * people * largest * log_term)
        return min(hoeffding, bernstein) / people * (1 + 1e-12)

    def _exact(self, name: str) -> Fraction:
        return _require.exact(getattr(self, name), name)

    def _number(self, value: Any) -> float:
        return (
            float(
                (_require.exact(value, "mean") - self._exact("low"))
                / (self._exact("high") - self._exact("low"))
            )
            * self.steps
        )

    def _values(self, array: NDArray[Any]) -> NDArray[np.float64]:
        if array.dtype.kind not in "fiu":
            raise InvalidInput(f"values must be numbers, got {array.dtype}. Nothing was drawn.")
        values = array.astype(np.float64)
        if np.isnan(values).any():
            raise InvalidInput("values must be numbers, and some are missing (nan). Nothing was drawn.")
        low, high = float(self.low), float(self.high)
        return np.asarray((np.clip(values, low, high) - low) / (high - low) * self.steps)

    def _on_grid(self, values: NDArray[np.float64], entropy: Entropy) -> Codes:
        """Round values at random to whole numbers from 0 to `steps` that have the values as means, to a
        resolution of 2**-32."""
        floors = np.clip(np.floor(values), 0, self.steps).astype(np.int64)
        fractions = np.floor((values - floors) * ROUNDING).astype(np.int64)
        return np.minimum(floors + _draws.coin(fractions, ROUNDING, len(values), entropy), self.steps)

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        people = len(data)
        unit = (self._exact("high") - self._exact("low")) / self.steps
        mean = float(self._exact("low")) + float(unit) * float(np.mean(self._unbiased(data)))
        return released(mean, event, lambda confidence: self.error(people, confidence))

    def _unbiased(self, data: NDArray[Any]) -> NDArray[np.float64]:
        raise NotImplementedError

    def _unit_variance(self, x: float) -> float:
        """Return the variance of one summand for somebody at the grid's number x, in steps of the grid
        squared."""
        raise NotImplementedError

    def _largest_variance(self) -> float:
        raise NotImplementedError

    def _spread(self) -> float:
        """Return the width of the interval that holds every summand, in steps."""
        raise NotImplementedError
