"""Means in the local model: every person has a number between declared bounds, and reports it so that only
the mean can be told.

A value is put on a grid of `steps` equal steps first (rounded up or down at random, so that its mean stays),
and everything after that is integers: the ratio of probabilities is the ratio of two integers, after the
discretization and not before it. Each estimate is unbiased for what the grid can hold, and says its error.
Bounds are public: a value outside is clamped to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require, _round, sampling
from .._errors import InvalidInput
from .._public import REPLACE
from .._registry import described
from .._require import Real
from ..accounting import DiscreteLaplace, Event
from ..sampling import Entropy
from . import _draws
from ._base import check_range, spec
from ._draws import Codes
from ._mean_base import ROUNDING, MeanRandomizer


@described("local.DuchiMean")
@dataclass(frozen=True, slots=True, kw_only=True)
class DuchiMean(MeanRandomizer):
    """Reports one bit, "high" more likely the higher the value is: Duchi's mechanism, the best there is for a
    small epsilon.

    Guarantee: one report is epsilon-DP.
    Proof:     at the grid's number i of s, "high" has probability ((s - i) b + i a) / (s (a + b)), between b
               and a over a + b; so both answers have a ratio of at most a / b <= exp(epsilon), attained at
               the two ends. Duchi, Jordan & Wainwright 2018, arXiv:1604.02390; Wang et al. 2019,
               arXiv:1907.00782, Algorithm 1.
    Assumes:   `entropy` yields independent uniform bits.
    """

    epsilon: Real
    low: Real
    high: Real
    steps: int = 1024

    def __post_init__(self) -> None:
        self._check()
        self._weights  # noqa: B018 - refuses an epsilon that integer odds cannot express

    @property
    def _weights(self) -> tuple[int, int]:
        return _draws.odds(self.epsilon, self.steps, self.steps)

    @property
    def ratio(self) -> Fraction:
        return Fraction(*self._weights)

    def client(self) -> dict[str, Any]:
        return spec(
            "duchi",
            self,
            low=float(self.low),
            high=float(self.high),
            steps=self.steps,
            weights=list(self._weights),
        )

    def _draw(self, values: NDArray[np.float64], entropy: Entropy) -> Codes:
        a, b = self._weights
        grid = self._on_grid(values, entropy)
        return _draws.coin(
            (self.steps - grid) * b + grid * a, self.steps * (a + b), len(grid), entropy
        ).astype(np.int64)

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, 2)

    def _unbiased(self, data: NDArray[Any]) -> NDArray[np.float64]:
        a, b = self._weights
        return np.asarray(np.where(data == 1, a, -b) * (self.steps / (a - b)))

    def _unit_variance(self, x: float) -> float:
        a, b = self._weights
        chance = ((self.steps - x) * b + x * a) / (self.steps * (a + b))
        return chance * (1 - chance) * self._spread() ** 2

    def _largest_variance(self) -> float:
        return self._spread() ** 2 / 4

    def _spread(self) -> float:
        a, b = self._weights
        return _round.up(Fraction(self.steps * (a + b), a - b))


@described("local.PiecewiseMean")
@dataclass(frozen=True, slots=True, kw_only=True)
class PiecewiseMean(MeanRandomizer):
    """Reports a number that is within a window around the value much more often than outside: the piecewise
    mechanism.

    The report is one of steps + window numbers. Those from i to i + window - 1 are likely for the grid's
    number i; the window's share of the steps is exp(-epsilon / 2), the continuous mechanism's.

    Guarantee: one report is epsilon-DP.
    Proof:     for every i exactly `window` of the numbers have weight a and the others b, of one total; a / b
               <= exp(epsilon). Wang et al. 2019, arXiv:1907.00782, Algorithm 2 and Lemma 1, on a grid. The
               mean of the report is linear in i, as the window moves with i.
    Assumes:   `entropy` yields independent uniform bits.
    """

    epsilon: Real
    low: Real
    high: Real
    steps: int = 1024

    def __post_init__(self) -> None:
        self._check()
        self._weights  # noqa: B018 - refuses an epsilon that integer odds cannot express

    @property
    def window(self) -> int:
        return max(1, round(self.steps * math.exp(-float(self.epsilon) / 2)))

    @property
    def _weights(self) -> tuple[int, int]:
        return _draws.odds(self.epsilon, self.window, self.steps)

    @property
    def ratio(self) -> Fraction:
        return Fraction(*self._weights)

    def client(self) -> dict[str, Any]:
        return spec(
            "piecewise",
            self,
            low=float(self.low),
            high=float(self.high),
            steps=self.steps,
            window=self.window,
            weights=list(self._weights),
        )

    def _draw(self, values: NDArray[np.float64], entropy: Entropy) -> Codes:
        return self._report(self._on_grid(values, entropy), entropy)

    def _report(self, grid: Codes, entropy: Entropy) -> Codes:
        a, b = self._weights
        window = self.window
        near = _draws.coin(window * a, window * a + self.steps * b, len(grid), entropy)
        position = np.empty(len(grid), np.int64)
        position[near] = grid[near] + _draws.below(window, int(near.sum()), entropy)
        far = _draws.below(self.steps, len(grid) - int(near.sum()), entropy)
        position[~near] = far + np.where(far >= grid[~near], window, 0)
        return position

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, self.steps + self.window)

    @property
    def _line(self) -> tuple[Fraction, Fraction]:
        """Return (slope, offset): a report of mean m has the grid's number slope * m + offset."""
        a, b = self._weights
        w, m = self.window, self.steps + self.window
        total = w * a + self.steps * b
        slope = Fraction(total, (a - b) * w)
        return slope, -slope * Fraction(b * m * (m - 1) + (a - b) * w * (w - 1), 2 * total)

    def _unbiased(self, data: NDArray[Any]) -> NDArray[np.float64]:
        slope, offset = self._line
        return np.asarray(float(slope) * data + float(offset))

    def _unit_variance(self, x: float) -> float:
        a, b = self._weights
        w, m = self.window, self.steps + self.window
        numbers = np.arange(m, dtype=np.float64)
        i = min(int(x), self.steps)
        weights = np.full(m, float(b))
        weights[i : i + w] = float(a)
        weights /= weights.sum()
        mean = float(weights @ numbers)
        return float(self._line[0]) ** 2 * float(weights @ (numbers - mean) ** 2)

    def _largest_variance(self) -> float:
        """Return the variance at an end of the range, the largest: the second moment about any point is
        smallest for a window in the middle, by symmetry and convexity."""
        return max(self._unit_variance(0), self._unit_variance(self.steps)) * (1 + 1e-9)

    def _spread(self) -> float:
        return _round.up(self._line[0] * (self.steps + self.window - 1))


@described("local.HybridMean")
@dataclass(frozen=True, slots=True, kw_only=True)
class HybridMean(MeanRandomizer):
    """Reports by the piecewise mechanism with chance 1 - exp(-epsilon / 2), else by Duchi's bit: the hybrid
    mechanism. Below epsilon 0.61 it is Duchi's bit only.

    Guarantee: one report is epsilon-DP.
    Proof:     which of the two is used does not depend on the value, and both are epsilon-DP. Wang et al.
               2019, arXiv:1907.00782, Section III-C.
    Assumes:   `entropy` yields independent uniform bits.
    """

    epsilon: Real
    low: Real
    high: Real
    steps: int = 1024

    def __post_init__(self) -> None:
        self._check()
        self._parts[1]._weights  # noqa: B018 - refuses an epsilon that integer odds cannot express

    @property
    def _parts(self) -> tuple[DuchiMean, PiecewiseMean]:
        options: dict[str, Any] = {
            "epsilon": self.epsilon,
            "low": self.low,
            "high": self.high,
            "steps": self.steps,
        }
        return DuchiMean(**options), PiecewiseMean(**options)

    @property
    def piecewise_share(self) -> int:
        """Return the chance of the piecewise report, in units of 2**-32."""
        e = float(self.epsilon)
        return 0 if e <= 0.61 else int((1 - math.exp(-e / 2)) * ROUNDING)

    @property
    def ratio(self) -> Fraction:
        duchi, piecewise = self._parts
        return max(duchi.ratio, piecewise.ratio) if self.piecewise_share else duchi.ratio

    def client(self) -> dict[str, Any]:
        duchi, piecewise = self._parts
        return spec(
            "hybrid", self, share=self.piecewise_share, duchi=duchi.client(), piecewise=piecewise.client()
        )

    def _draw(self, values: NDArray[np.float64], entropy: Entropy) -> Codes:
        """Return rows (0, bit) or (1, number)."""
        duchi, piecewise = self._parts
        second = _draws.coin(self.piecewise_share, ROUNDING, len(values), entropy)
        data = np.empty((len(values), 2), np.int64)
        data[:, 0] = second
        data[second, 1] = piecewise._draw(values[second], entropy)
        data[~second, 1] = duchi._draw(values[~second], entropy)
        return data

    def _width(self) -> int:
        return 2

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data[:, 0], 2)
        check_range(data[:, 1], np.where(data[:, 0] == 1, self.steps + self._parts[1].window, 2))

    def _unbiased(self, data: NDArray[Any]) -> NDArray[np.float64]:
        duchi, piecewise = self._parts
        return np.where(data[:, 0] == 1, piecewise._unbiased(data[:, 1]), duchi._unbiased(data[:, 1]))

    def _unit_variance(self, x: float) -> float:
        duchi, piecewise = self._parts
        share = self.piecewise_share / ROUNDING
        return share * piecewise._unit_variance(x) + (1 - share) * duchi._unit_variance(x)

    def _largest_variance(self) -> float:
        share = self.piecewise_share / ROUNDING
        duchi, piecewise = self._parts
        return share * piecewise._largest_variance() + (1 - share) * duchi._largest_variance()

    def _spread(self) -> float:
        duchi, piecewise = self._parts
        ends = [0.0, float(duchi.steps + piecewise.window - 1)] if self.piecewise_share else []
        extremes = [*piecewise._unbiased(np.array(ends)), *duchi._unbiased(np.array([0, 1]))]
        return float(max(extremes) - min(extremes)) * (1 + 1e-12)


@described("local.LaplaceMean")
@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceMean(MeanRandomizer):
    """Adds discrete Laplace noise of scale steps / epsilon to the value's number on the grid: each reports a
    noisy number of its own.

    Guarantee: one report is epsilon-DP.
    Proof:     two numbers of the grid differ by at most `steps`, and discrete Laplace noise of scale steps /
               epsilon has ratios of at most exp(|difference| / scale) (Dwork et al. 2006; on integers Ghosh,
               Roughgarden & Sundararajan 2009, arXiv:0811.2841).
    Assumes:   `entropy` yields independent uniform bits.
    """

    epsilon: Real
    low: Real
    high: Real
    steps: int = 1024

    def __post_init__(self) -> None:
        self._check()

    @property
    def scale(self) -> Fraction:
        return self.steps / _draws.positive_epsilon(self.epsilon)

    @property
    def event(self) -> Event:
        return DiscreteLaplace(scale=self.scale, sensitivity=self.steps, neighbors=REPLACE)

    @property
    def ratio(self) -> Fraction:
        raise InvalidInput("the ratio of Laplace noise is exp(epsilon) itself, which is no fraction.")

    def client(self) -> dict[str, Any]:
        """Return the description for the browser, with the rate as two whole numbers in text: they may be
        longer than a browser's numbers."""
        rate = 1 / self.scale
        parts = [str(rate.numerator), str(rate.denominator)]
        return spec("laplace", self, low=float(self.low), high=float(self.high), steps=self.steps, rate=parts)

    def _draw(self, values: NDArray[np.float64], entropy: Entropy) -> Codes:
        grid = self._on_grid(values, entropy)
        return np.asarray(grid + sampling.discrete_laplace(self.scale, len(grid), entropy), dtype=np.int64)

    def _check_reports(self, data: NDArray[Any]) -> None:
        """Refuse forged reports: any integer is possible, but not one that an honest sender gives with a
        probability below exp(-700)."""
        if (np.abs(data.astype(np.float64)) > self.steps + 700 * float(self.scale)).any():
            raise InvalidInput("some reports are none that this randomizer gives. Nothing was estimated.")

    def _unbiased(self, data: NDArray[Any]) -> NDArray[np.float64]:
        return data.astype(np.float64)

    def _unit_variance(self, x: float) -> float:
        rate, part = 1 / float(self.scale), x - math.floor(x)
        return 2 * math.exp(-rate) / math.expm1(-rate) ** 2 + part * (1 - part)

    def _largest_variance(self) -> float:
        return self._unit_variance(0.0)

    def error(self, people: int, confidence: float = 0.95) -> float:
        """Return how far the estimated mean is at most from the true one, with probability `confidence`:
        Chebyshev's inequality, for the noise and the rounding to the grid."""
        _require.integer(people=people, at_least=1)
        _require.open_probability(confidence=confidence)
        unit = float((self._exact("high") - self._exact("low")) / self.steps)
        variance = (self._largest_variance() + 0.25) * unit**2 / people
        return math.sqrt(variance / (1 - confidence)) * (1 + 1e-12)

    def _spread(self) -> float:
        return math.inf
