"""Changepoint detection: when did a series change? The most likely time is chosen privately from the complete
series, and watches a series while it goes on.

A row has a time, a whole number from 1 to a public `times`, and a value. A `Change` says how values are
distributed before and after the change, and gives each row a ratio: its log-likelihood ratio of "after" to
"before", bounded and rounded to a grid of 1 / GRID nat. The sum of the ratios from time k on is the score of
k: how well "it changed at k" explains the series (Cummings, Krehbiel, Mei, Tuo & Zhang 2018,
arXiv:1808.10056). Where nothing is known of the distributions, the values up to k are compared by rank with
those after it instead (Cummings, Krehbiel, Lut & Zhang 2020, arXiv:1910.01327).

    change = BernoulliChange(before=0.2, after=0.8)
    mechanism = changepoint(public=..., column="hot", time="day", times=200, change=change, epsilon=1)

The paper replaces a row, so its noise is in proportion to the *range* of the ratio. Under add_remove and
zero_out the largest absolute ratio is enough: half of a symmetric range. Unbounded ratios are clipped here.
The paper scales the noise to their likely size instead, which protects only people whose data follow the
distributions.

Detects changepoints online: a private watch over a sliding window, and at the alarm a private estimate of
when the change began.

After OnlinePCPD (Cummings, Krehbiel, Mei, Tuo & Zhang 2018, arXiv:1808.10056, Algorithm 3): the best score of
each window (its largest sum of log-likelihood ratios, see `changepoints`) is compared with a noisy threshold,
and for the first window that passes the time of the change is estimated, as `changepoints` does for a
complete series. Half of epsilon pays for the comparisons and half for the estimate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from .. import _require
from .._errors import result_or
from .._public import PUBLIC, REPLACE, Public
from .._registry import described
from .._require import A_FLOAT, FINITE, OPEN_PROBABILITY, POSITIVE, Real, at_least, at_most, instance_of
from ..accounting import Event, PureDP
from ..mechanisms import arrow_columns
from ..mechanisms.protocols import (
    Answered,
    Integers,
    Release,
    Sensitivity,
    check_source,
    release,
    require_columns,
)
from ..mechanisms.selection import Select, moves_one_way
from ..mechanisms.selectors import PermuteAndFlip, ReportNoisyMax
from ..mechanisms.sparse_vector import Comparing, SparseVectorRounds, State, declared
from ..mechanisms.stability import failure_of
from ..mechanisms.statistics import require_rows, row_contribution
from ..sampling import Entropy
from ..tables import Source
from .significance import CHANCE, check_columns

# Ratios are rounded to multiples of 1 / GRID nat; error bounds include that. Chosen by hand, not tuned.
GRID = 256
# Rank scores are rounded down to units of 1 / (_RANK_UNITS margin), so that a score moves by at most 2
# _RANK_UNITS units if one row appears. A multiple of 4 (`RankScores.__call__`). Chosen by hand, not tuned.
_RANK_UNITS = 512
# The largest number of times of a series: one score per time is held in memory. Chosen by hand.
_MAX_TIMES = 1_000_000
# The largest ratio, in nats: sums over fewer than 2**35 rows, in units of 1 / GRID, stay within 64 bits.
_MAX_RATIO = 2**20


@runtime_checkable
class Change(Protocol):
    """Describes the distributions before and after a change: `ratios` returns ln(density after / density
    before) of each value, within `range`; `draw` draws values from before the change or after it. A Change of
    your own is given one value at a time, clipped to the declared bounds; one on which it raises adds zero.

    A method `moment`, as the changes below have, is not required: without it `Changepoint.error` is the whole
    range of times."""

    def ratios(self, values: NDArray[np.float64]) -> NDArray[np.float64]: ...

    @property
    def range(self) -> tuple[float, float]: ...

    def draw(self, generator: np.random.Generator, count: int, *, changed: bool) -> NDArray[np.float64]: ...


def _check_change(before: float, after: float) -> None:
    """Refuse two equal distributions."""
    _require.that(before != after, f"before and after are both {before!r}: there is no change to find.")


@described("adaptive.BernoulliChange")
class BernoulliChange:
    """Describes values 0 or 1: 1 has probability `before`, and after the change probability `after`. A value
    of at least one half counts as 1."""

    before: Annotated[float, CHANCE]
    after: Annotated[float, CHANCE]

    def __post_init__(self) -> None:
        _check_change(self.before, self.after)

    @property
    def range(self) -> tuple[float, float]:
        """Return the smallest and the largest ratio."""
        ends = math.log(self.after / self.before), math.log((1 - self.after) / (1 - self.before))
        return min(ends), max(ends)

    def ratios(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        yes, no = math.log(self.after / self.before), math.log((1 - self.after) / (1 - self.before))
        return np.where(values >= 0.5, yes, no)

    def moment(self, power: float, bounds: tuple[float, float], *, changed: bool) -> float:
        """Return E[exp(power * ratio)] of one value of the series, clipped to bounds, before or after the
        change."""
        probability = self.after if changed else self.before
        no, yes = np.exp(power * self.ratios(np.clip([0.0, 1.0], *bounds)))
        return float(probability * yes + (1 - probability) * no)

    def draw(self, generator: np.random.Generator, count: int, *, changed: bool) -> NDArray[np.float64]:
        """Draw synthetic values, from which `alarm_threshold` computes a threshold."""
        return np.asarray(
            generator.uniform(size=count) < (self.after if changed else self.before), np.float64
        )


@described("adaptive.GaussianChange")
class GaussianChange:
    """Describes normal values with mean `before`, and after the change with mean `after`; `deviation` is
    their standard deviation. Ratios are clipped to [-most, most], in nats."""

    before: Annotated[float, FINITE, A_FLOAT]
    after: Annotated[float, FINITE, A_FLOAT]
    deviation: Annotated[float, POSITIVE, A_FLOAT] = 1.0
    most: Annotated[float, POSITIVE, A_FLOAT] = 2.0

    def __post_init__(self) -> None:
        _check_change(self.before, self.after)
        _require.that(
            0 < abs(self._exact_slope) < 10**100,
            f"deviation={self.deviation!r} is too small for a change from {self.before!r} to {self.after!r}.",
        )

    @property
    def _exact_slope(self) -> Fraction:
        """Return by how much the log-likelihood ratio grows per unit of the value."""
        before, after, deviation = (
            _require.exact(x, "value") for x in (self.before, self.after, self.deviation)
        )
        return (after - before) / deviation**2

    @property
    def range(self) -> tuple[float, float]:
        """Return the smallest and the largest ratio."""
        return -float(self.most), float(self.most)

    def ratios(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        slope = float(self._exact_slope)
        return np.asarray(np.clip(slope * (values - (self.before + self.after) / 2), -self.most, self.most))

    def moment(self, power: float, bounds: tuple[float, float], *, changed: bool) -> float:
        """Return E[exp(power * ratio)] of one value of the series, clipped to bounds, before or after the
        change.

        Without clipping the ratio is normal, with variance d^2 and mean d^2 / 2 after the change, -d^2 / 2
        before it; d is |after - before| / deviation. Clipped, it lies at an end of [low, high] with the
        probabilities `below` and `above`. The result is infinite where it is too large for a float.
        """
        low, high = sorted(self.ratios(np.array(bounds)).tolist())
        d = abs(self.after - self.before) / self.deviation
        mean = (1 if changed else -1) * d * d / 2
        below, above = ndtr((low - mean) / d), ndtr((mean - high) / d)
        tilted_mean, exponent = mean + power * d * d, power * mean + power * power * d * d / 2
        from_low, to_high = (low - tilted_mean) / d, (high - tilted_mean) / d
        tilted_share = ndtr(to_high) - ndtr(from_low) if from_low < 0 else ndtr(-from_low) - ndtr(-to_high)
        if (largest := max(power * low, power * high)) > 700:
            return math.inf
        # The expectation over ratios that are not clipped: exp(exponent) times their probability under the
        # distribution tilted by exp(power * ratio). Where exp(exponent) is too large for a float, an upper
        # bound: the largest value times their probability.
        middle = (
            math.exp(exponent) * tilted_share if exponent < 700 else math.exp(largest) * (1 - below - above)
        )
        return float(math.exp(power * low) * below + max(0.0, middle) + math.exp(power * high) * above)

    def draw(self, generator: np.random.Generator, count: int, *, changed: bool) -> NDArray[np.float64]:
        """Draw synthetic values, from which `alarm_threshold` computes a threshold."""
        return generator.normal(self.after if changed else self.before, self.deviation, count)


def grid_range(change: Change) -> tuple[int, int]:
    """Return the smallest and the largest ratio in units of 1 / GRID, rounded outwards."""
    low, high = change.range
    return math.floor(low * GRID), math.ceil(high * GRID)


def on_grid(change: Change, values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return each value's ratio in whole units of 1 / GRID. NaN counts as zero. The last clipping must stay:
    the sensitivity rests on `grid_range`, whatever `change.ratios` returns."""
    low, high = grid_range(change)
    own_code = not isinstance(change, BernoulliChange | GaussianChange)
    ratios = _one_by_one(change, values) if own_code else change.ratios(values)
    units = np.nan_to_num(np.rint(ratios * GRID), nan=0.0, posinf=high, neginf=low)
    return np.asarray(np.clip(units, low, high), np.int64)


def _one_by_one(change: Change, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ratios by the steward's own code, which is given one value at a time: NaN where it raises,
    or returns anything but one number.

    Given all values at once, it would let one row decide whether the run fails, and what other rows add: by a
    mean that it subtracts, or by a vectorized logarithm, which may round by position.
    """

    def ratio(value: float) -> float:
        return result_or(
            math.nan, lambda: float(np.asarray(change.ratios(np.array([value])), np.float64).item())
        )

    distinct, positions = np.unique(values, return_inverse=True)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # A warning would tell of a value.
        warnings.simplefilter("ignore")
        return np.array([ratio(value) for value in distinct.tolist()])[positions]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """Reads the values (`column`) and the times (`time`) of a source; the public times are 1 to `times`."""

    column: str
    time: str
    times: Annotated[int, at_least(2), at_most(_MAX_TIMES)]

    def __post_init__(self) -> None:
        check_columns(column=self.column, time=self.time)

    def check(self, public: Public) -> None:
        """Check that the unit of privacy is one row, and that the values have declared bounds."""
        require_rows(public)
        public.bounds(self.column)

    def rows(self, source: Source) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Yield the times, counted from 0, and the clipped values of the rows that have both and whose time
        lies in 1 to `times` (a fractional time is rounded down)."""
        require_rows(source.public)
        for batch in source.batches([self.time, self.column]):
            time_values, values = (arrow_columns.unpacked(batch.column(i)) for i in (0, 1))
            is_present = arrow_columns.present(time_values) & arrow_columns.present(values)
            ticks = np.floor(arrow_columns.numbers(time_values, self.time)[is_present].astype(np.float64))
            numbers = arrow_columns.numbers(values, self.column)[is_present].astype(np.float64)
            in_series = (ticks >= 1) & (ticks <= self.times)
            yield ticks[in_series].astype(np.int64) - 1, self.clipped(numbers[in_series], source.public)

    def clipped(self, values: NDArray[np.float64], public: Public) -> NDArray[np.float64]:
        """Return values as they count: clipped to the declared bounds of the column."""
        bounds = public.bounds(self.column)
        return np.clip(values, float(bounds.lower), float(bounds.upper))


@described("adaptive.LikelihoodScores")
class LikelihoodScores(_Series):
    """Scores each time k by the sum of the log-likelihood ratios from k on, in units of 1 / GRID nat: how
    well "it changed at k" explains the series.

    Rows without a time or a value, and rows whose time is not in 1 to `times`, add nothing; several rows may
    share a time.

    Guarantee: add_remove, zero_out: the scores of all k up to the row's time move by its ratio, the others
               not at all. So all move the same way, by at most the largest absolute ratio. replace: a
               score loses the old row's ratio, gains the new row's, or both.
    Proof:     sums are exact integers (`_MAX_RATIO`), and each row's ratio lies in `grid_range` (`on_grid`).
    """

    change: Annotated[Change, instance_of(Change, "a GaussianChange or another Change")]

    def __post_init__(self) -> None:
        _Series.__post_init__(self)
        ends = self.change.range
        within = max(map(abs, ends)) <= _MAX_RATIO
        _require.must(within, "the range of change", ends, f"at most {_MAX_RATIO} nats")

    def length(self, public: Public) -> int:
        return self.times

    def sensitivity(self, public: Public) -> Sensitivity:
        self.check(public)
        low, high = grid_range(self.change)
        return Sensitivity(
            linf=max(1, row_contribution(public.neighbors, low, high, nullable=True)), l0=self.times
        )

    def moves_one_way(self, public: Public) -> bool:
        return public.neighbors is not REPLACE

    def parts(self, source: Source) -> Integers:
        """Return the sum of ratios at each time."""
        total = np.zeros(self.times, np.int64)
        for ticks, values in self.rows(source):
            np.add.at(total, ticks, on_grid(self.change, values))
        return total

    def __call__(self, source: Source) -> Integers:
        return np.cumsum(self.parts(source)[::-1])[::-1]


@described("adaptive.RankScores")
class RankScores(_Series):
    """Scores each time k from `margin` to times - margin by how far the values after k lie above, or below,
    those up to k. No distribution is assumed.

    The score is |sum of sign(x_j - x_i)| over i <= k < j, divided by k (times - k), where x_i is the smallest
    value at time i: the Mann-Whitney statistic, two-sided. A time without a row adds no signs. Scores are
    rounded down to units of 1 / (_RANK_UNITS margin).

    Guarantee: add_remove, zero_out: one row moves a score by at most 2 / margin: 2 _RANK_UNITS units;
               replace: by twice that, because the new row may have another time.
    Proof:     a row changes the value at one time, and so at most k, or times - k, of the signs, by at most 2
               each: before the rounding the score moves by at most 2 / k or 2 / (times - k), so by at most
               2 _RANK_UNITS units. Rounding down commutes with adding whole units, so the bound holds after
               it.
    """

    margin: Annotated[int, at_least(1)]

    def __post_init__(self) -> None:
        _Series.__post_init__(self)
        _require.that(
            2 * self.margin <= self.times,
            f"margin={self.margin!r} leaves nothing of {self.times} times. Give at most half of them.",
        )

    @property
    def candidates(self) -> tuple[int, ...]:
        """Return the first time after the change, for each score."""
        return tuple(range(self.margin + 1, self.times - self.margin + 2))

    def length(self, public: Public) -> int:
        return self.times - 2 * self.margin + 1

    def sensitivity(self, public: Public) -> Sensitivity:
        self.check(public)
        moves = 2 if public.neighbors is REPLACE else 1
        return Sensitivity(linf=moves * 2 * _RANK_UNITS, l0=self.length(public))

    def __call__(self, source: Source) -> Integers:
        series = np.full(self.times, np.inf)
        for ticks, values in self.rows(source):
            np.minimum.at(series, ticks, values)
        sign_sums = np.abs(np.cumsum(_sign_sums(series)))[self.margin - 1 : self.times - self.margin]
        k = np.arange(self.margin, self.times - self.margin + 1)
        # the product below is at most factor (times / 2)^2: in Python integers where 64 bits overflow
        factor = _RANK_UNITS * self.margin
        exact = sign_sums.astype(object) if factor // 4 * self.times**2 >= 2**63 else sign_sums
        return np.asarray(exact * factor // (k * (self.times - k)), np.int64)


def _sign_sums(series: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return, for each time, how many values of the series are larger than its own, minus how many are
    smaller; zero at a time without a value (infinite in `series`).

    The sum over times up to k is the sum of sign(x_j - x_i) over i <= k < j: pairs of two times up to k
    cancel.
    """
    is_present = np.isfinite(series)
    values, differences = series[is_present], np.zeros(len(series), np.int64)
    ordered = np.sort(values)
    differences[is_present] = (
        len(ordered) - np.searchsorted(ordered, values, "right") - np.searchsorted(ordered, values, "left")
    )
    return differences


@described("adaptive.Changepoint")
class Changepoint(Select):
    """Estimates the time of a change: `Select` over times. Its error is a difference of times (in days, say),
    not of scores.

    Guarantee: that of `Select`. `error(confidence)` is how far the answer may be from the true time, if the
               rows are independent and follow the distributions of `change`, with at least one row at each
               time. With `RankScores` no distribution is assumed, and a `change` without the method `moment`
               gives no bound: there the error is the whole range of times.
    Proof:     let b be 1 - confidence. With probability 1 - b/2 the chosen score is at most e below the best
               one (`shortfall`), hence at most e below that of the true time. A time that is m later has a
               score that is lower by a sum S_m of at least m ratios after the change. For t > 0 with M =
               E[exp(-t ratio)] < 1, exp(-t S_m) is a supermartingale from m = D on, and by Ville's inequality
               S_m <= e for some m >= D with probability at most exp(t e) M^D; D is so large that this is at
               most b/4, and the error is D - 1.
               Earlier times in the same way, with exp(t ratio) and ratios before the change. Rounding moves a
               ratio by at most 1/2 / GRID, which is included in M.
    """

    error_in_scores: ClassVar[bool] = False

    def error(self, confidence: float = 0.95) -> int:
        """Return how far off the answer may be, in times (the unit of the time column, such as days), where
        the series follows the declared distributions."""
        _require.open_probability(confidence=confidence)
        longest = int(self.candidates[-1] - self.candidates[0])
        if not isinstance(self.scores, LikelihoodScores) or not hasattr(self.scores.change, "moment"):
            return longest
        failure = 1 - confidence
        shortfall = self.shortfall(1 - failure / 2) / GRID
        sides = (
            self._distance_outside(shortfall, failure / 4, changed=changed) - 1 for changed in (False, True)
        )
        return min(longest, max(sides))

    def shortfall(self, confidence: float = 0.95) -> int:
        """Return how far the score of the chosen time may be below the best score, in the integer units of
        the scores, for every series."""
        return self.chooser.error(len(self.candidates), confidence)

    def _distance_outside(self, shortfall: float, failure: float, *, changed: bool) -> int:
        """Return a distance D: with probability at least 1 - failure, no time that is D or more after the
        true one (with `changed`; else before it) has a score within `shortfall` nats of the true time's."""
        bounds = self.public.bounds(self.scores.column)  # type: ignore[attr-defined]
        ends = float(bounds.lower), float(bounds.upper)
        least = math.inf
        # Every t > 0 gives a valid bound (t, e, M and D of the proof above); the smallest over a grid is
        # used.
        for t in np.linspace(0.02, 1.5, 75):
            power = -t if changed else t
            moment = self.scores.change.moment(power, ends, changed=changed) * math.exp(t * 0.5 / GRID)  # type: ignore[attr-defined]
            if moment < 1:
                needed = (t * shortfall - math.log(failure)) / -math.log(moment)
                least = min(least, needed)
        return self.candidates[-1] if math.isinf(least) else max(1, math.ceil(least))

    def rehearse(self, source: Source) -> None:
        """Refuse a missing time column before anything is charged: the schema need not declare it."""
        require_columns(source, self.scores.time)  # type: ignore[attr-defined]

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        chosen = Select.__call__(self, source, entropy=entropy)
        return release(chosen.value, event=self.event, entropy=entropy, error=self.error)


@_require.check_options
def changepoint(
    *,
    public: Public,
    column: str,
    time: str,
    times: int,
    epsilon: Real,
    change: Change | None = None,
    margin: int | None = None,
    paper: bool = False,
) -> Changepoint:
    """Return the mechanism that estimates the time of a change: with `change` by likelihood
    (`LikelihoodScores`), with `margin` by ranks (`RankScores`).

    `column` holds the values, `time` the whole times from 1 to `times`. The answer is the first time after
    the change. `paper` adds Laplace noise to each score and takes the largest, as the papers' OfflinePCPD and
    PNCPD do; permute-and-flip, the default, has a smaller error at the same price.

    Guarantee: epsilon-DP.
    Proof:     that of `mechanisms.Select` with either selector, for the sensitivity of the scores.
    """
    one = (change is None) != (margin is None)
    _require.that(one, "give either change= (known distributions) or margin= (ranks), not both.")
    scores: LikelihoodScores | RankScores
    if change is not None:
        scores = LikelihoodScores(column=column, time=time, times=times, change=change)
        candidates = tuple(range(1, times + 1))
    else:
        assert margin is not None
        scores = RankScores(column=column, time=time, times=times, margin=margin)
        candidates = scores.candidates
    return Changepoint(
        public=public,
        scores=scores,
        candidates=candidates,
        chooser=score_selector(scores, public, epsilon, paper=paper),
    )


def score_selector(
    scores: LikelihoodScores | RankScores, public: Public, epsilon: Real, *, paper: bool
) -> PermuteAndFlip | ReportNoisyMax:
    """Return the mechanism that chooses one of these scores: with `paper` the maximum after Laplace noise,
    else permute-and-flip, which has a smaller error."""
    kind = ReportNoisyMax if paper else PermuteAndFlip
    return kind(
        epsilon=epsilon,
        sensitivity=scores.sensitivity(public).linf,
        monotone=moves_one_way(scores, public),
        neighbors=public.neighbors,
    )


@described("adaptive.Alarm")
class Alarm:
    """Says whether a window raised the alarm; if so, `time` is the private estimate of the first time after
    the change."""

    raised: bool
    time: int | None = None


@described("adaptive.ChangeWatch")
class ChangeWatch(Comparing):
    """Watches a series for a change: a question is a time `now`, and the answer says whether the last
    `window` times up to it raise the alarm. It halts for good at the first alarm.

    `column` holds the values, `time` the whole times from 1 to `times` (`changepoints`). `threshold` is in
    nats of log-likelihood; `alarm_threshold` computes one for a given probability of a false alarm.
    `questions` is the largest number of windows, which `error` needs. `paper` uses the paper's noise scales,
    4 A / epsilon for the threshold and 8 A / epsilon for each window, where A is the sensitivity of a score,
    and Laplace noise for the estimate; the default has the same guarantee and a smaller error.

    Guarantee: epsilon-DP, for any number of windows, each chosen after the answers before it.
    Proof:     half of epsilon for the comparisons: `SparseVectorRounds` with one positive. One
               row moves the best score of a window, a maximum of sums, by at most the sensitivity of
               `LikelihoodScores`, and under add_remove and zero_out in all windows the same way. Half for the
               estimate: `score_selector` over the scores of one window, whose first and last time are public.
               The two run in sequence, so their epsilons add up.
    Assumes:   the state stays secret, and each state is used for one question only.
    """

    public: Annotated[Public, PUBLIC]
    column: str
    time: str
    times: int
    change: Change
    window: Annotated[int, at_least(1)]
    threshold: Annotated[Real, FINITE]
    epsilon: Annotated[Real, POSITIVE]
    paper: bool = False
    questions: Annotated[int, at_least(1)] | None = None

    def __post_init__(self) -> None:
        self.scores.check(self.public)
        _require.that(
            self.window <= self.times,
            f"window={self.window!r} is longer than the {self.times} times. Give at most that.",
        )

    def rehearse(self, source: Source) -> None:
        """Refuse a missing time column before anything is charged: the schema need not declare it."""
        require_columns(source, self.time)

    @property
    def scores(self) -> LikelihoodScores:
        return LikelihoodScores(column=self.column, time=self.time, times=self.times, change=self.change)

    @property
    def grid_sensitivity(self) -> int:
        """Return how far one row moves the best score of a window, in units of 1 / GRID nat."""
        return self.scores.sensitivity(self.public).linf

    @property
    def event(self) -> Event:
        return PureDP(epsilon=self.epsilon, neighbors=self.public.neighbors)

    @property
    def rounds(self) -> SparseVectorRounds:
        """Return the comparisons, for half of epsilon. Threshold and windows share it 1 : 1 in the paper and
        where one row moves all windows the same way, else 1 : 2^(2/3).
        """
        one_way = moves_one_way(self.scores, self.public) and not self.paper
        # 1000 / 2587 is 1 / (1 + 2^(2/3)), rounded: any share is private, this one has the least variance
        share = Fraction(1, 2) if self.paper or one_way else Fraction(1000, 2587)
        half_epsilon = _require.exact(self.epsilon, "epsilon") / 2
        query = (1 if one_way else 2) * self.grid_sensitivity / (half_epsilon * (1 - share))
        return SparseVectorRounds(
            threshold=self.grid_sensitivity / (half_epsilon * share),
            query=query,
            value=None,
            max_positives=1,
            redraws=True,
        )

    @property
    def picker(self) -> PermuteAndFlip | ReportNoisyMax:
        """Return the mechanism that estimates the time of the change, for the other half of epsilon."""
        half_epsilon = _require.exact(self.epsilon, "epsilon") / 2
        return score_selector(self.scores, self.public, half_epsilon, paper=self.paper)

    def answer(self, state: State, source: Source, question: Any, *, entropy: Entropy) -> Answered:
        """Answer whether the window that ends at the time `question` raises the alarm.

        The answer costs nothing more: everything was paid at the start.
        """
        rounds = self.rounds
        before = rounds.check(state, self.questions)
        _require.integer(now=question, at_least=self.window)
        _require.must(question <= self.times, "now", question, f"at most {self.times}, the last public time")
        check_source(self.public, source)
        scores = np.cumsum(self.scores.parts(source)[question - self.window : question][::-1])[::-1]
        excess = int(scores.max()) - round(_require.exact(self.threshold, "threshold") * GRID)
        after, gap, _ = rounds.one(before, excess, 0, entropy)
        alarm = Alarm(raised=False)
        if gap is not None:
            alarm = Alarm(
                raised=True, time=int(question) - self.window + 1 + int(self.picker.pick(scores, entropy))
            )
        return after, self.paid(alarm, entropy)

    def error(self, confidence: float = 0.95) -> Fraction:
        """Return a bound a, in nats: with probability `confidence`, every window that raises the alarm has a
        best score of at least t - a, and every other window one below t + a, where t is the threshold rounded
        to a multiple of 1 / GRID nat."""
        return Fraction(self.rounds.noise_bound(failure_of(confidence), declared(self.questions)), GRID)


def best_scores(parts: Any, window: int) -> NDArray[np.int64]:
    """Return the best score of each window: the largest sum of its last k scores over k from 1 to `window`.

    `parts` are the scores per time; the first window ends at time `window`.
    """
    total = np.concatenate([[0], np.cumsum(np.asarray(parts, np.int64))])
    lowest = np.lib.stride_tricks.sliding_window_view(total[:-1], window).min(axis=1)
    scores: NDArray[np.int64] = total[window:] - lowest
    return scores


@_require.check_options
def alarm_threshold(
    watch: ChangeWatch,
    *,
    false_alarm: Annotated[float, OPEN_PROBABILITY],
    runs: Annotated[int, at_least(10)] = 2000,
    seed: int = 0,
) -> float:
    """Return the threshold, in nats, at which a series without a change, with one row at each time, raises a
    false alarm with about the probability `false_alarm`.

    Computed from `runs` simulated series, noise included: no data is read and nothing is charged. It is an
    estimate: with 2000 runs the probability is off by about 0.02.
    """
    wanted = f"at least {math.ceil(1 / false_alarm)} for so rare a false alarm"
    _require.must(false_alarm * runs >= 1, "runs", runs, wanted)
    generator, rounds = np.random.default_rng(seed), watch.rounds
    highest = np.empty(runs)
    for run in range(runs):
        values = watch.change.draw(generator, watch.times, changed=False)
        parts = on_grid(watch.change, watch.scores.clipped(values, watch.public))
        best = best_scores(parts, watch.window)
        noise = generator.laplace(0, float(rounds.query), len(best)) - generator.laplace(
            0, float(rounds.threshold)
        )
        highest[run] = (best + noise).max() / GRID
    return float(np.quantile(highest, 1 - false_alarm))
