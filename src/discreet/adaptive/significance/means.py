"""Defines a private two-sample test of means, from the noisy count, sum and sum of squares of each group. The
difference of the means is simulated under the null hypothesis with the noise included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ... import _require
from ..._errors import InvalidInput
from ..._public import REPLACE, Public
from ..._registry import described
from ..._require import Real
from ...accounting import Event, compose
from ...mechanisms import arrow_columns
from ...mechanisms.arrow_columns import as_step
from ...mechanisms.noise import IntegerLaplace
from ...mechanisms.protocols import Integers, Release, Sensitivity, check_source, release
from ...mechanisms.statistics import require_rows, row_contribution
from ...sampling import Entropy
from ...tables import Source
from . import result as shared
from .result import FAILURE_PROBABILITY, Floats, TestResult

# The largest number of steps between the bounds of the column: squares stay below 2**60.
_MAX_STEPS = 1 << 30
# The shares of epsilon for counts, sums and squares. Chosen by hand, not tuned: they change power, not
# validity.
_EPSILON_SHARES = (2, 3, 3)
# The number of rows per group below which the p-value is 1, and the number of rows at the end of the range
# that the variance of each group is computed with in addition: see "p-values" of the test.
_FEWEST = 30
_UNSEEN = 5
# A one-sided p-value above this is 1. Means of rare values are skewed, and Student's distribution is
# symmetric: of a value that one row in a hundred has, a group of 40 rows has none in two of three tables,
# which seemed to have a probability of 0.42. Computed for one group of 30 to 1,000 rows that expects up to 8
# such rows, beside a much larger one: p-values up to 0.1 are exceeded by the true probability by at most
# 0.009, up to 1/4 by 0.04.
_LARGEST = 0.1


@described("adaptive.GroupSums")
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSums:
    """Sums, for each group, (value - center)**power over its rows, where value is that of `column` in whole
    steps; power 0 counts the rows.

    Guarantee: add_remove, zero_out: one row moves the sum of one group, by at most the largest absolute
               summand. replace: one row moves the sums of at most two groups, each by at most that, or the
               sum of one group by at most the range of the summands and 0.
    Proof:     summands are integers of a public range (`arrow_columns.ColumnGrid`), and a row is in at most
               one group. Rows without a value or without a group add nothing.
    """

    column: str
    group: str
    groups: tuple[str | int, ...]
    step: Fraction = Fraction(1)
    power: int = 1
    center: int = 0

    def __post_init__(self) -> None:
        shared.check_columns(column=self.column, group=self.group)
        object.__setattr__(self, "groups", _require.listed(groups=self.groups))
        object.__setattr__(self, "step", as_step(self.step))
        _require.integer(power=self.power, at_least=0)
        _require.integer(center=self.center)
        if self.power > 2:
            raise _require.fail("power", self.power, "0, 1 or 2")

    def length(self, public: Public) -> int:
        return len(self.groups)

    def range(self, public: Public) -> tuple[int, int]:
        """Return the smallest and the largest summand."""
        grid = arrow_columns.ColumnGrid(public.bounds(self.column), self.step, self.column)
        ends = [(extreme - self.center) ** self.power for extreme in (grid.low, grid.high)]
        if self.power == 2 and grid.low <= self.center <= grid.high:
            ends.append(0)
        if max(abs(end) for end in ends) >= arrow_columns.LIMIT:
            raise InvalidInput(f"column {self.column!r} has too many steps of {self.step}. Nothing was read.")
        return min(ends), max(ends)

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        shared.check_groups(public, self.group, self.groups, at_least=1)
        low, high = self.range(public)
        largest_summand = max(abs(low), abs(high))
        if public.neighbors is not REPLACE:
            return Sensitivity(linf=largest_summand)
        return Sensitivity(
            linf=row_contribution(REPLACE, low, high, nullable=True),
            l0=min(2, len(self.groups)),
            l1=2 * largest_summand,
        )

    def __call__(self, source: Source) -> Integers:
        public = source.public
        require_rows(public)
        self.range(public)
        grid = arrow_columns.ColumnGrid(public.bounds(self.column), self.step, self.column)
        totals = [0] * len(self.groups)
        for batch in source.batches([self.column, self.group]):
            array = arrow_columns.unpacked(batch.column(0))
            is_present, values = arrow_columns.present(array), arrow_columns.numbers(array, self.column)
            summands = (grid(values) - self.center) ** self.power
            group = shared.groups_in(batch, 1, self.group, public, self.groups)
            for i in range(len(totals)):
                totals[i] += arrow_columns.exact_sum(summands[is_present & (group == i)])
        return arrow_columns.as_integers(totals)


class _Measured(NamedTuple):
    """Holds noisy counts, sums and sums of squares of both groups, in steps from the middle of the range, and
    for each of the three a bound on its noise (`noise_errors`).
    """

    counts: Floats
    sums: Floats
    squares: Floats
    noise_errors: tuple[int, int, int]
    # the largest distance of a value from the middle of the range, in steps
    half_range: int


@described("adaptive.TwoSampleMeanTest")
@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSampleMeanTest:
    """Tests whether `column` has the same mean in two `groups`, categories of column `group` (by default the
    two that are declared).

    The alternative "greater" is that the first group has the larger mean. Values are clipped to their bounds
    and rounded to `step`. The statistic is the difference of the noisy means.

    Guarantee: epsilon-DP: counts, sums and sums of squares of both groups, with noise for the shares 2 : 3 :
               3 of epsilon.
    Proof:     `GroupSums`; everything else is computed from noisy numbers.

    p-values:  asymptotically valid for all distributions of the values in each group: the difference is
               simulated `runs` times with Student's distribution for the means, and with the noise on sums
               and counts. Conservative choices: the fewest rows, the largest variances and the common mean
               farthest from the middle that the noise allows, except with probability `FAILURE_PROBABILITY`,
               which is added. Variances are computed as if each group had five more rows at the end of the
               range, because a rare value that no row happens to have would be missing in both the mean and
               the variance. The p-value is 1 where a group may have fewer than 30 rows, for which Student's
               distribution needs nearly normal values; and where the one-sided p-value would be above 0.1
               (the two-sided one above 0.2), because means of rare values are skewed.
    """

    public: Public
    column: str
    group: str
    epsilon: Real
    step: Real
    groups: tuple[str | int, ...] | None = None
    alternative: str = "two-sided"
    runs: int = 9999

    def __post_init__(self) -> None:
        shared.check_unit_and_epsilon(self.public, self.epsilon)
        shared.check_columns(column=self.column, group=self.group)
        if self.groups is not None:
            object.__setattr__(self, "groups", _require.listed(groups=self.groups))
        shared.check_groups(self.public, self.group, self.groups, 2, 2)
        _require.one_of(shared.ALTERNATIVES, alternative=self.alternative)
        shared.check_runs(self.runs)
        grid = arrow_columns.ColumnGrid(self.public.bounds(self.column), as_step(self.step), self.column)
        if not 1 <= grid.high - grid.low <= _MAX_STEPS:
            raise _require.fail("step", self.step, f"such that the bounds are 1 to {_MAX_STEPS} steps apart")

    @property
    def statistics(self) -> tuple[GroupSums, GroupSums, GroupSums]:
        """Return the counts, sums and squares, the latter two about the middle of the range."""
        step = as_step(self.step)
        grid = arrow_columns.ColumnGrid(self.public.bounds(self.column), step, self.column)
        groups = tuple(shared.check_groups(self.public, self.group, self.groups, 2, 2))
        options: dict[str, Any] = {"column": self.column, "group": self.group, "groups": groups, "step": step}
        center = (grid.low + grid.high) // 2
        return (
            GroupSums(**options, power=0),
            GroupSums(**options, center=center),
            GroupSums(**options, power=2, center=center),
        )

    @property
    def noises(self) -> tuple[IntegerLaplace, ...]:
        epsilon = _require.exact(self.epsilon, "epsilon")
        return tuple(
            IntegerLaplace.for_epsilon(
                epsilon * share / sum(_EPSILON_SHARES),
                sensitivity=statistic.sensitivity(self.public),
                neighbors=self.public.neighbors,
            )
            for statistic, share in zip(self.statistics, _EPSILON_SHARES, strict=True)
        )

    @property
    def event(self) -> Event:
        return compose([noise.event for noise in self.noises])

    def error(self, confidence: float = 0.95) -> tuple[int, int]:
        """Return a bound on the noise of both counts, and one on the noise of both sums in the unit of the
        column, rounded up. With probability `confidence` both hold."""
        _require.open_probability(confidence=confidence)
        part_confidence = 1 - (1 - confidence) / 2
        if part_confidence >= 1:
            raise _require.fail("confidence", confidence, "further below 1, such as 0.999")
        counts, sums, _ = self.noises
        return counts.error(part_confidence, entries=2), math.ceil(
            as_step(self.step) * sums.error(part_confidence, entries=2)
        )

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        statistics, noises = self.statistics, self.noises
        noisy = [
            np.array([float(v) for v in noise(statistic(source), entropy=entropy)])
            for statistic, noise in zip(statistics, noises, strict=True)
        ]
        noise_errors = [noise.error(1 - FAILURE_PROBABILITY / 3, entries=2) for noise in noises]
        low, high = statistics[1].range(self.public)
        measured = _Measured(
            counts=noisy[0],
            sums=noisy[1],
            squares=noisy[2],
            noise_errors=(noise_errors[0], noise_errors[1], noise_errors[2]),
            half_range=max(high, -low),
        )
        statistic = float(_difference(measured.sums, measured.counts, measured.half_range))
        pvalue = self._pvalue(measured, shared.random_source(entropy))
        result = TestResult(
            statistic=statistic * float(as_step(self.step)),
            # twice: a two-sided p-value is twice a one-sided one, to which FAILURE_PROBABILITY is added
            pvalue=shared.conservative_pvalue(pvalue, 2 * FAILURE_PROBABILITY),
            people=round(float(noisy[0].sum())),
        )
        # `error_in_scores`: the error is that of the noisy counts and sums, not of the p-value.
        return release(result, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)

    def _pvalue(self, measured: _Measured, random: np.random.Generator) -> float:
        """Return the p-value by simulation. Simulated means are not clipped to the range: at the ends of the
        range that would cut off one half of Student's distribution."""
        fewest = np.floor(measured.counts - measured.noise_errors[0])
        if fewest.min() < _FEWEST:
            return 1.0
        # the common mean of both groups, as far from the middle as the noise on sums and counts allows
        common_mean = (abs(measured.sums.sum()) + 2 * measured.noise_errors[1]) / fewest.sum()
        common_mean = min(float(common_mean), float(measured.half_range)) * (
            1 if measured.sums.sum() >= 0 else -1
        )
        spread = np.sqrt(_variances(measured, fewest))
        shape = (self.runs, 2)
        means = common_mean + random.standard_t(np.broadcast_to(fewest - 1, shape)) * (
            spread / np.sqrt(fewest)
        )
        count_scale, sum_scale = (float(noise.scale) for noise in self.noises[:2])
        simulated_differences = _difference(
            means * fewest + shared.simulated(random, sum_scale, shape),
            fewest + shared.simulated(random, count_scale, shape),
        )
        statistic = float(_difference(measured.sums, measured.counts))
        one_sided = (
            shared.monte_carlo(statistic, simulated_differences),
            shared.monte_carlo(-statistic, -simulated_differences),
        )
        greater, less = (1.0 if pvalue > _LARGEST else pvalue for pvalue in one_sided)
        return shared.pvalue_for(greater, less, self.alternative)


def _variances(measured: _Measured, fewest: Floats) -> Floats:
    """Return the largest variance in each group that the noise allows, in squared steps, with _UNSEEN more
    rows at the end of the range on the other side of the mean; at most half_range**2, the largest variance in
    the range, and at least 1/4, so that it is never zero (chosen by hand, not tuned)."""
    # the smallest |mean| that the noise allows, from the middle of the range
    least_mean = np.maximum(0, np.abs(measured.sums) - measured.noise_errors[1]) / (
        measured.counts + measured.noise_errors[0]
    )
    unseen = _UNSEEN * (measured.half_range + least_mean) ** 2
    mean_squares = np.minimum(
        (measured.squares + measured.noise_errors[2] + unseen) / fewest,
        measured.half_range**2 + least_mean**2,
    )
    variances: Floats = np.clip(mean_squares - least_mean**2, 0.25, measured.half_range**2)
    return variances


def _difference(sums: Floats, counts: Floats, half_range: float = math.inf) -> Floats:
    """Return the first mean minus the second, each clipped to [-half_range, half_range]; counts below
    1 count as 1."""
    means = np.clip(sums / np.maximum(counts, 1), -half_range, half_range)
    difference: Floats = means[..., 0] - means[..., 1]
    return difference
