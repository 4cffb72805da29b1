"""Means in the local model: every person has a number between declared bounds, and sends a noisy report from
which only the mean over many people can be estimated well.

A value is first rounded to a grid with the numbers 0, 1, ..., `steps` (up or down at random, so that its mean
is unchanged, up to 2**-32 of a step). Everything after that is integers, so that the ratio of the
probabilities of a report is a ratio of two integers, and the guarantee holds for what is really drawn. Each
estimate is unbiased, apart from that 2**-32, and has an error bound. Bounds are public; a value outside is
clamped to them. In the proofs, a and b are the integer weights of `_base.odds`, a / b <= exp(epsilon).

Defines the base class of the randomizers of means: the grid to which a value is rounded, and the error of
the estimate.

The grid has the numbers 0, 1, ..., `steps`, evenly spaced from `low` to `high`. Below, a *summand* is the
unbiased estimate of one person's grid number from their report, and variances and widths of summands are in
units of one grid step.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from .. import _require, _round, sampling
from .._errors import InvalidInput
from .._public import REPLACE
from .._registry import described
from .._require import Limit, Real, at_least, at_most
from ..accounting import DiscreteLaplace, Event
from ..mechanisms.protocols import Release
from ..mechanisms.randomized_response import Confidence, People, deviation
from ..sampling import Entropy
from . import _base
from ._base import Codes, LocalRandomizer, check_range, number_of, released, require_possible, spec, vector

# The largest number of steps. With it, the odds of `DuchiMean` at the smallest epsilon, 1e-9, are still
# uneven (2**34 + 17 to 2**34). Chosen by hand, not tuned.
_MAX_STEPS = 1 << 16


def _check_epsilon(**named: Real) -> None:
    _require.positive(**named)
    for name, epsilon in named.items():
        _require.must(epsilon >= Fraction(1, 10**9), name, epsilon, "at least 1e-9")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRandomizer(LocalRandomizer):
    """Rounds a value in [low, high] to a grid at random; `_unbiased` turns reports into unbiased estimates of
    the grid number.
    """

    epsilon: Annotated[Real, Limit(_check_epsilon)]
    low: Real
    high: Real
    steps: Annotated[int, at_least(1), at_most(_MAX_STEPS)] = 1024

    def __post_init__(self) -> None:
        _require.ordered(low=self.low, high=self.high)
        # The position of some values between bounds whose difference is zero or infinite as a float would be
        # NaN, and whether a report is refused would then depend on the value.
        if not 0 < (span := _require.float_or_inf(self.high) - _require.float_or_inf(self.low)) < math.inf:
            raise _require.fail("high - low", span, "a number above zero that floats can hold")
        # refuses an epsilon too small for integer odds (`_base`)
        self._spread()

    @_require.check_options
    def variance(self, people: People, mean: Real | None = None) -> float:
        """Return an upper bound on the variance of the mean estimated from `people` reports, whatever the
        people's values; or its variance if all people have the value `mean`.
        """
        if mean is None:
            return self._largest_variance_with_rounding() * self._step**2 / people
        return self._summand_variance(self._position(mean)) * self._step**2 / people

    @_require.check_options
    def error(self, people: People, confidence: Confidence = 0.95) -> float:
        """Return a bound on the distance of the estimated mean from the true mean (of values clamped to the
        bounds) that holds with probability `confidence`.

        Proof: the estimate is a mean of independent summands in an interval of width `_spread`. Their
               variance is at most `_largest_variance` plus 1/4, the largest variance of rounding to the grid.
               The bound is `randomized_response.deviation`. The bias of rounding, below 2**-32
               steps, is left out: for fewer than 10**18 people it is below the bound.
        """
        spread, variance = self._spread() * self._step, (self._largest_variance() + 0.25) * self._step**2
        bound = deviation(people, spread, variance, math.log(2 / (1 - confidence)))
        return bound / people * (1 + 1e-12)

    @property
    def _bounds(self) -> tuple[Fraction, Fraction]:
        return _require.exact(self.low, "low"), _require.exact(self.high, "high")

    @property
    def _step(self) -> float:
        """Return the width of one grid step, in the unit of the values."""
        low, high = self._bounds
        return float((high - low) / self.steps)

    @property
    def _grid(self) -> dict[str, Any]:
        """Return the grid as descriptions for the browser have it."""
        return {"low": float(self.low), "high": float(self.high), "steps": self.steps}

    def _position(self, value: Any) -> float:
        """Return the position of a value on the grid, from 0 to `steps`; values outside are clamped."""
        low, high = self._bounds
        clamped = min(max(_require.exact(value, "mean"), low), high)
        return float((clamped - low) / (high - low)) * self.steps

    def _one(self, value: Any) -> NDArray[np.float64]:
        """Return the position of one person's value; what is no number counts as `low`."""
        number = number_of(value)
        return self._values(np.array([float(self.low) if math.isnan(number) else number]))

    def _values(self, values: Any) -> NDArray[np.float64]:
        """Return the positions of values on the grid, as numbers from 0 to `steps` with fractions."""
        array = vector(values)
        _require.that(array.dtype.kind in "fiu", f"values must be numbers, got {array.dtype}.")
        numbers = array.astype(np.float64)
        _require.that(not np.isnan(numbers).any(), "values must be numbers, and some are missing (nan).")
        low, high = float(self.low), float(self.high)
        return np.asarray((np.clip(numbers, low, high) - low) / (high - low) * self.steps)

    def _on_grid(self, positions: NDArray[np.float64], entropy: Entropy) -> Codes:
        """Round positions at random to grid numbers, so that the mean of the grid number is the position, up
        to 2**-32: the coin's probability is a multiple of 1 / `_base.COIN`. The ratio of a report's
        probabilities does not depend on it."""
        floors = np.clip(np.floor(positions), 0, self.steps).astype(np.int64)
        fractions = np.floor((positions - floors) * _base.COIN).astype(np.int64)
        rounded_up = _base.coin(fractions, _base.COIN, len(positions), entropy)
        return np.minimum(floors + rounded_up, self.steps)

    def _estimate(self, reports: NDArray[Any], event: Event) -> Release:
        people = len(reports)
        mean = float(self._bounds[0]) + self._step * float(np.mean(self._unbiased(reports)))
        return released(mean, event, lambda confidence: self.error(people, confidence))

    @abstractmethod
    def _unbiased(self, reports: NDArray[Any]) -> NDArray[np.float64]:
        """Return one summand per report."""

    @abstractmethod
    def _summand_variance(self, x: float) -> float:
        """Return the variance of one summand for a value at the position x of the grid, rounding included."""

    @abstractmethod
    def _largest_variance(self) -> float:
        """Return an upper bound on the variance of one summand, given the grid number: rounding excluded."""

    def _largest_variance_with_rounding(self) -> float:
        """Return an upper bound on the variance of one summand, rounding included (which adds up to 1/4)."""
        return self._largest_variance() + 0.25

    @abstractmethod
    def _spread(self) -> float:
        """Return the width of the interval that holds every summand."""


@described("local.DuchiMean")
class DuchiMean(MeanRandomizer):
    """Reports one bit, which is 1 with a probability that grows with the value: Duchi's mechanism, the best
    for a small epsilon.

    Guarantee: one report is epsilon-DP.
    Proof:     at the grid number i, with s = `steps`, the bit is 1 with probability ((s - i) b + i a) / (s (a
               + b)). This is between b / (a + b) and a / (a + b), so the ratio of the probabilities of either
               bit is at most a / b <= exp(epsilon), which is attained at the two ends of the grid. Duchi,
               Jordan & Wainwright 2018, arXiv:1604.02390; Wang et al. 2019, arXiv:1907.00782, Algorithm 1.
    Assumes:   `entropy` yields independent uniform bits.
    """

    @property
    def _weights(self) -> tuple[int, int]:
        return _base.odds(self.epsilon, self.steps, self.steps)

    def client(self) -> dict[str, Any]:
        return spec("duchi", self, **self._grid, weights=list(self._weights))

    def _draw(self, positions: NDArray[np.float64], entropy: Entropy) -> Codes:
        a, b = self._weights
        grid = self._on_grid(positions, entropy)
        return _base.coin(
            (self.steps - grid) * b + grid * a, self.steps * (a + b), len(grid), entropy
        ).astype(np.int64)

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, 2)

    def _unbiased(self, reports: NDArray[Any]) -> NDArray[np.float64]:
        a, b = self._weights
        return np.asarray(np.where(reports == 1, a, -b) * (self.steps / (a - b)))

    def _summand_variance(self, x: float) -> float:
        a, b = self._weights
        # Rounding is included: the bit is 1 with the same probability, linear in x, between grid numbers.
        probability = ((self.steps - x) * b + x * a) / (self.steps * (a + b))
        return probability * (1 - probability) * self._spread() ** 2

    def _largest_variance_with_rounding(self) -> float:
        return self._largest_variance()

    def _largest_variance(self) -> float:
        return self._spread() ** 2 / 4

    def _spread(self) -> float:
        a, b = self._weights
        return _round.up(Fraction(self.steps * (a + b), a - b))


@described("local.PiecewiseMean")
class PiecewiseMean(MeanRandomizer):
    """Reports a number that is more often inside a window around the value than outside: the piecewise
    mechanism.

    The report is one of steps + window numbers. For the grid number i, those from i to i + window - 1 are the
    likely ones. `window` is steps * exp(-epsilon / 2), rounded, as in the continuous mechanism.

    Guarantee: one report is epsilon-DP.
    Proof:     for every i, exactly `window` of the numbers have weight a and all others weight b, so the
               total is the same for every i; a / b <= exp(epsilon). Wang et al. 2019, arXiv:1907.00782,
               Algorithm 2 and Lemma 1, on a grid. The mean of the report is linear in i, as the window moves
               with i.
    Assumes:   `entropy` yields independent uniform bits.
    """

    @property
    def window(self) -> int:
        """Return how many numbers are likely."""
        return max(1, round(self.steps * math.exp(-_require.float_or_inf(self.epsilon) / 2)))

    @property
    def _weights(self) -> tuple[int, int]:
        return _base.odds(self.epsilon, self.window, self.steps)

    def client(self) -> dict[str, Any]:
        return spec("piecewise", self, **self._grid, window=self.window, weights=list(self._weights))

    def _draw(self, positions: NDArray[np.float64], entropy: Entropy) -> Codes:
        return self._report(self._on_grid(positions, entropy), entropy)

    def _report(self, grid: Codes, entropy: Entropy) -> Codes:
        """Return one report per grid number. The order of draws: whether the report is in the window, then
        which number of the window, then which number outside."""
        a, b = self._weights
        window = self.window
        in_window = _base.coin(window * a, window * a + self.steps * b, len(grid), entropy)
        reports = np.empty(len(grid), np.int64)
        reports[in_window] = grid[in_window] + _base.below(window, int(in_window.sum()), entropy)
        others = _base.below(self.steps, len(grid) - int(in_window.sum()), entropy)
        # The numbers outside are counted without the window: from its start on, its length is added.
        reports[~in_window] = others + np.where(others >= grid[~in_window], window, 0)
        return reports

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, self.steps + self.window)

    @property
    def _line(self) -> tuple[Fraction, Fraction]:
        """Return (slope, offset): the unbiased estimate of the grid number from a report r is slope * r +
        offset. It solves the linear relation between the grid number and the mean report."""
        a, b = self._weights
        # m is the number of possible reports
        w, m = self.window, self.steps + self.window
        total = w * a + self.steps * b
        slope = Fraction(total, (a - b) * w)
        return slope, -slope * Fraction(b * m * (m - 1) + (a - b) * w * (w - 1), 2 * total)

    def _unbiased(self, reports: NDArray[Any]) -> NDArray[np.float64]:
        slope, offset = self._line
        return np.asarray(float(slope) * reports + float(offset))

    def _summand_variance(self, x: float) -> float:
        i = min(int(x), self.steps - 1)
        up = x - i
        # i + 1 with probability `up`, else i: the mean of the two variances, and the variance of the rounding
        return (1 - up) * self._variance_at(i) + up * self._variance_at(i + 1) + up * (1 - up)

    def _variance_at(self, i: int) -> float:
        """Return the variance of one summand at the grid number i."""
        a, b = self._weights
        w, m = self.window, self.steps + self.window
        numbers = np.arange(m, dtype=np.float64)
        weights = np.full(m, float(b))
        weights[i : i + w] = float(a)
        weights /= weights.sum()
        mean = float(weights @ numbers)
        return float(self._line[0]) ** 2 * float(weights @ (numbers - mean) ** 2)

    def _largest_variance(self) -> float:
        """Return the variance at an end of the grid, which is the largest: by symmetry and convexity in
        the grid number, the variance is smallest for a window in the middle."""
        return max(self._variance_at(0), self._variance_at(self.steps)) * (1 + 1e-9)

    def _spread(self) -> float:
        return _round.up(self._line[0] * (self.steps + self.window - 1))


@described("local.HybridMean")
class HybridMean(MeanRandomizer):
    """Reports by the piecewise mechanism with probability 1 - exp(-epsilon / 2), else by Duchi's mechanism:
    the hybrid mechanism. For epsilon up to 0.61 it is Duchi's mechanism only, as in the paper.

    Guarantee: one report is epsilon-DP.
    Proof:     which of the two is used does not depend on the value, and both are epsilon-DP. Wang et al.
               2019, arXiv:1907.00782, Section III-C.
    Assumes:   `entropy` yields independent uniform bits.
    """

    @property
    def _parts(self) -> tuple[DuchiMean, PiecewiseMean]:
        """Return the two mechanisms, with the same parameters."""
        options: dict[str, Any] = {"low": self.low, "high": self.high, "steps": self.steps}
        return DuchiMean(epsilon=self.epsilon, **options), PiecewiseMean(epsilon=self.epsilon, **options)

    @property
    def piecewise_share(self) -> int:
        """Return the probability of a piecewise report, in units of 2**-32."""
        epsilon = _require.float_or_inf(self.epsilon)
        return 0 if epsilon <= 0.61 else int((1 - math.exp(-epsilon / 2)) * _base.COIN)

    @property
    def ratio(self) -> Fraction:
        duchi, piecewise = self._parts
        return max(duchi.ratio, piecewise.ratio) if self.piecewise_share else duchi.ratio

    def client(self) -> dict[str, Any]:
        duchi, piecewise = self._parts
        return spec(
            "hybrid", self, share=self.piecewise_share, duchi=duchi.client(), piecewise=piecewise.client()
        )

    def _draw(self, positions: NDArray[np.float64], entropy: Entropy) -> Codes:
        """Return rows (0, Duchi's bit) or (1, piecewise number). The order of draws: which of the two, then
        all piecewise numbers, then all bits."""
        duchi, piecewise = self._parts
        is_piecewise = _base.coin(self.piecewise_share, _base.COIN, len(positions), entropy)
        data = np.empty((len(positions), 2), np.int64)
        data[:, 0] = is_piecewise
        data[is_piecewise, 1] = piecewise._draw(positions[is_piecewise], entropy)
        data[~is_piecewise, 1] = duchi._draw(positions[~is_piecewise], entropy)
        return data

    def _width(self) -> int:
        return 2

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data[:, 0], 2)
        check_range(data[:, 1], np.where(data[:, 0] == 1, self.steps + self._parts[1].window, 2))

    def _unbiased(self, reports: NDArray[Any]) -> NDArray[np.float64]:
        duchi, piecewise = self._parts
        is_piecewise, parts = reports[:, 0] == 1, reports[:, 1]
        return np.where(is_piecewise, piecewise._unbiased(parts), duchi._unbiased(parts))

    def _summand_variance(self, x: float) -> float:
        duchi, piecewise = self._parts
        share = self.piecewise_share / _base.COIN
        return share * piecewise._summand_variance(x) + (1 - share) * duchi._summand_variance(x)

    def _largest_variance(self) -> float:
        share = self.piecewise_share / _base.COIN
        duchi, piecewise = self._parts
        return share * piecewise._largest_variance() + (1 - share) * duchi._largest_variance()

    def _largest_variance_with_rounding(self) -> float:
        """Return an upper bound on the variance of one summand, rounding included.

        Proof: at grid numbers both variances are parabolas with the same axis, so that their mixture is
               largest at an end or in the middle. Between grid numbers the piecewise variance is
               interpolated, at most an eighth of its second difference above the parabola, and rounding adds
               up to 1/4.
        """
        share, piecewise = self.piecewise_share / _base.COIN, self._parts[1]
        at = [piecewise._variance_at(i) for i in (0, 1, min(2, self.steps))]
        second_difference = max(at[0] - 2 * at[1] + at[2], 0.0)
        largest = max(self._summand_variance(x) for x in (0.0, self.steps / 2, float(self.steps)))
        return largest + share * (second_difference / 8 + 0.25)

    def _spread(self) -> float:
        duchi, piecewise = self._parts
        ends = [0.0, float(duchi.steps + piecewise.window - 1)] if self.piecewise_share else []
        extremes = [*piecewise._unbiased(np.array(ends)), *duchi._unbiased(np.array([0, 1]))]
        return float(max(extremes) - min(extremes)) * (1 + 1e-12)


@described("local.LaplaceMean")
class LaplaceMean(MeanRandomizer):
    """Adds discrete Laplace noise of scale steps / epsilon to the grid number of the value, and reports the
    sum.

    Guarantee: one report is epsilon-DP.
    Proof:     two grid numbers differ by at most `steps`, and discrete Laplace noise has probability ratios
               of at most exp(|difference| / scale) (Dwork et al. 2006; on integers Ghosh, Roughgarden &
               Sundararajan 2009, arXiv:0811.2841).
    Assumes:   `entropy` yields independent uniform bits.
    """

    @property
    def scale(self) -> Fraction:
        return self.steps / _base.positive_epsilon(self.epsilon)

    @property
    def event(self) -> Event:
        return DiscreteLaplace(scale=self.scale, sensitivity=self.steps, neighbors=REPLACE)

    @property
    def ratio(self) -> Fraction:
        raise InvalidInput(
            "the largest ratio of Laplace noise is exp(epsilon), which is not a rational number."
        )

    def client(self) -> dict[str, Any]:
        """Return the description for the browser. The rate 1 / scale is a numerator and a denominator as
        texts, because they may be longer than a browser's numbers."""
        rate = 1 / self.scale
        fraction = [str(rate.numerator), str(rate.denominator)]
        return spec("laplace", self, **self._grid, rate=fraction)

    def _draw(self, positions: NDArray[np.float64], entropy: Entropy) -> Codes:
        grid = self._on_grid(positions, entropy)
        return np.asarray(grid + sampling.discrete_laplace(self.scale, len(grid), entropy), dtype=np.int64)

    def _check_reports(self, data: NDArray[Any]) -> None:
        """Refuse forged reports. Any integer is possible, but honest senders report beyond this limit with a
        probability below exp(-700) only."""
        require_possible(np.abs(data.astype(np.float64)) <= self.steps + 700 * float(self.scale))

    def _unbiased(self, reports: NDArray[Any]) -> NDArray[np.float64]:
        return reports.astype(np.float64)

    def _summand_variance(self, x: float) -> float:
        # the variance of discrete Laplace noise, and that of rounding up with probability `up`
        rate, up = 1 / float(self.scale), x - math.floor(x)
        return 2 * math.exp(-rate) / math.expm1(-rate) ** 2 + up * (1 - up)

    def _largest_variance(self) -> float:
        return self._summand_variance(0.0)

    @_require.check_options
    def error(self, people: People, confidence: Confidence = 0.95) -> float:
        """Return a bound on the distance of the estimated mean from the true mean that holds with probability
        `confidence`: Chebyshev's inequality, for the noise and the rounding to the grid."""
        variance = (self._largest_variance() + 0.25) * self._step**2 / people
        return math.sqrt(variance / (1 - confidence)) * (1 + 1e-12)

    def _spread(self) -> float:
        # Laplace noise is unbounded; `error` uses the variance only.
        return math.inf
