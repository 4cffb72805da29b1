"""Defines a private test of a proportion. With a public number of trials, one-sided, it is uniformly most
powerful among epsilon-DP tests.

After Awan & Slavkovic 2018 (arXiv:1805.09236): a count with Tulap noise, which is the sum of discrete Laplace
noise and a uniform variable on (-1/2, 1/2), has a continuous distribution under the null hypothesis, and its
tail probability is the p-value. It is exact at every sample size with a public number of trials, and
conservative without. Here the uniform variable is on a grid of 2**-32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from ... import _require, sampling
from ..._errors import InvalidInput
from ..._public import REPLACE, Boolean, Bounds, Categories, Public
from ..._registry import described
from ..._require import Real
from ...accounting import Event
from ...mechanisms import arrow_columns
from ...mechanisms.noise import IntegerLaplace
from ...mechanisms.noise_tails import laplace_sum_error
from ...mechanisms.protocols import Integers, Release, Sensitivity, check_source, release
from ...mechanisms.statistics import require_rows
from ...sampling import Entropy
from ...tables import Source
from . import result as shared
from .result import FAILURE_PROBABILITY, Floats, TestResult

# The number of grid points of the uniform variable: p-values are exact up to 2**-32.
_UNIFORM_STEPS = 1 << 32
# The largest number of rows of a test: the binomial distribution is evaluated within 10 standard deviations
# of its mean, in memory. Chosen by hand, not tuned.
_MAX_TRIALS = 10**9


@described("adaptive.YesNo")
@dataclass(frozen=True, slots=True, kw_only=True)
class YesNo:
    """Counts the rows that are a success, and those that are not. Rows without a value count in neither.

    For a Boolean column, whose success is True, `success` is None; for Categories it is one of them; for a
    column of numbers it is the smallest value that is a success.

    Guarantee: add_remove, zero_out: one row moves one of the two counts by 1; replace: both.
    Proof:     a row adds 1 to at most one of them.
    """

    column: str
    success: str | int | float | Fraction | None = None

    def __post_init__(self) -> None:
        shared.check_columns(column=self.column)
        if self.success is not None and not isinstance(self.success, str):
            _require.finite(success=self.success)

    def check(self, public: Public) -> None:
        """Refuse a column whose declaration does not fit `success`."""
        require_rows(public)
        declaration, success = public.fact(self.column), self.success
        if not isinstance(declaration, Boolean | Categories | Bounds):
            raise InvalidInput(
                f"column {self.column!r} must be declared as Boolean, Categories or Bounds. Nothing was read."
            )
        if isinstance(declaration, Boolean) and success is not None:
            raise _require.fail("success", success, "None: the column is true or false")
        if isinstance(declaration, Categories) and success not in declaration.values:
            raise _require.fail("success", success, f"a declared category of column {self.column!r}")
        if isinstance(declaration, Bounds) and (success is None or isinstance(success, str)):
            raise _require.fail("success", success, "the smallest number that counts as a success")

    def length(self, public: Public) -> int:
        return 2

    def sensitivity(self, public: Public) -> Sensitivity:
        self.check(public)
        return Sensitivity(linf=1, l0=2 if public.neighbors is REPLACE else 1)

    def __call__(self, source: Source) -> Integers:
        self.check(source.public)
        declaration, total = source.public.fact(self.column), np.zeros(2, np.int64)
        for batch in source.batches([self.column]):
            is_success, is_present = self._rows(batch, declaration, source.public)
            total += [
                int(np.count_nonzero(is_success & is_present)),
                int(np.count_nonzero(~is_success & is_present)),
            ]
        return total

    def _rows(self, batch: Any, declaration: Any, public: Public) -> tuple[Any, Any]:
        """Return which rows of a batch are a success, and which have a value."""
        if isinstance(declaration, Categories):
            codes = shared.groups_in(batch, 0, self.column, public, declaration.values)
            return codes == declaration.values.index(self.success), codes >= 0
        if isinstance(declaration, Bounds):
            values, is_present = shared.values_in(batch, 0, self.column, public)
            return values >= float(self.success), is_present  # type: ignore[arg-type]
        array = arrow_columns.unpacked(batch.column(0))
        return arrow_columns.numbers(array, self.column) != 0, arrow_columns.present(array)


@described("adaptive.ProportionTest")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionTest:
    """Tests the null hypothesis that each row is a success with probability `chance`, independently of the
    others. For the alternative "greater" the null is a probability of at most `chance`, for "less" of at
    least `chance`.

    `trials` is the number of rows with a value, where that is public. Without it, noisy counts of successes
    and of other rows are released, both for one epsilon.

    Guarantee: epsilon-DP: discrete Laplace noise on one count, or on both.
    Proof:     `YesNo`, one entry or both; the uniform variable and the p-value are post-processing of the
               noisy counts.
    Assumes:   with `trials`, that exactly this many rows have a value; otherwise the p-value is wrong, but
               the privacy guarantee still holds.

    p-values:  super-uniform under the null for every number of rows. With `trials` exactly uniform up to
               2**-32, and one-sided no private test at this epsilon has more power (Awan & Slavkovic 2018).
    Proof:     the p-value of "greater" is P(X + noise >= observed noisy count) for X binomial. Without
               `trials` it is the largest such tail of (1 - c) yes - c no, where c is `chance` and yes and no
               are the two noisy counts, over all numbers of rows that the noise on their sum allows (the
               method is in the module `result`). Among the probabilities of a one-sided null the tail is
               largest at `chance`.
    """

    public: Public
    column: str
    chance: float | Fraction
    epsilon: Real
    success: str | int | float | Fraction | None = None
    alternative: str = "two-sided"
    trials: int | None = None

    def __post_init__(self) -> None:
        shared.check_unit_and_epsilon(self.public, self.epsilon)
        _require.open_probability(chance=self.chance)
        if not 0 < float(self.chance) < 1:
            raise _require.fail(
                "chance", float(self.chance), "a probability that a float can tell from 0 and 1"
            )
        _require.one_of(shared.ALTERNATIVES, alternative=self.alternative)
        if self.trials is not None:
            _require.integer(trials=self.trials, at_least=1)
            if self.trials > _MAX_TRIALS:
                raise _require.fail("trials", self.trials, f"at most {_MAX_TRIALS}")
        self.statistic.check(self.public)

    @property
    def statistic(self) -> YesNo:
        return YesNo(column=self.column, success=self.success)

    @property
    def noise(self) -> IntegerLaplace:
        sensitivity = 1 if self.trials is not None else self.statistic.sensitivity(self.public)
        return IntegerLaplace.for_epsilon(
            self.epsilon, sensitivity=sensitivity, neighbors=self.public.neighbors
        )

    @property
    def event(self) -> Event:
        return self.noise.event

    def error(self, confidence: float = 0.95) -> int:
        """Return a bound on the noise of the count of successes (with `trials`), or of both counts, which
        holds with probability `confidence`. It includes 1 for the uniform variable."""
        return self.noise.error(confidence, entries=1 if self.trials is not None else 2) + 1

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        counts = self.statistic(source)
        result = (
            self._with_trials(counts, entropy)
            if self.trials is not None
            else self._without_trials(counts, entropy)
        )
        # `error_in_scores`: the error is that of the noisy counts, not of the p-value.
        return release(result, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)

    def _with_trials(self, counts: Integers, entropy: Entropy) -> TestResult:
        """Return the result for a public number of trials, from the noisy count of successes."""
        assert self.trials is not None
        count = int(self.noise(counts[:1], entropy=entropy)[0])
        uniform = int(sampling.uniform_below(_UNIFORM_STEPS, 1, entropy)[0])
        tail_above, mass_at = _binomial_tails(count, self.trials, float(self.chance), float(self.noise.scale))
        greater, less = (
            tail_above + mass_at * (_UNIFORM_STEPS - uniform) / _UNIFORM_STEPS,
            max(0.0, 1 - tail_above - mass_at) + mass_at * (uniform + 1) / _UNIFORM_STEPS,
        )
        pvalue = shared.pvalue_for(greater, less, self.alternative)
        # 1e-14 covers the tails that `_binomial` leaves out and the rounding of their complement.
        return TestResult(
            statistic=count + uniform / _UNIFORM_STEPS - 0.5, pvalue=shared.conservative_pvalue(pvalue, 1e-14)
        )

    def _without_trials(self, counts: Integers, entropy: Entropy) -> TestResult:
        """Return the result from both noisy counts; its p-value is 1 where the noise allows no row at all, or
        more than _MAX_TRIALS."""
        yes, no = (int(v) for v in self.noise(counts, entropy=entropy))
        chance, scale = float(self.chance), float(self.noise.scale)
        total_error = laplace_sum_error(self.noise.scale, 2, FAILURE_PROBABILITY)
        low, high = max(0, yes + no - total_error), yes + no + total_error
        share, rows = yes / max(1, yes + no), yes + no
        if high <= 0 or high > _MAX_TRIALS:
            return TestResult(statistic=share, pvalue=1.0, people=rows)
        excess = (1 - chance) * yes - chance * no
        greater = _largest_tail(excess, low, high, chance, scale)
        less = _largest_tail(-excess, low, high, 1 - chance, scale)
        pvalue = shared.pvalue_for(greater, less, self.alternative)
        # twice: a two-sided p-value is twice a one-sided one, to which FAILURE_PROBABILITY is added
        return TestResult(
            statistic=share, pvalue=shared.conservative_pvalue(pvalue, 2 * FAILURE_PROBABILITY), people=rows
        )


@lru_cache(maxsize=2048)
def _binomial(trials: int, chance: float) -> tuple[Floats, Floats]:
    """Return the numbers of successes, and their probabilities; left out are numbers far from the mean, whose
    total probability is below 1e-20."""
    # imported here: slow to load, and most processes that load this package never need it
    from scipy.stats import binom

    middle, reach = trials * chance, 10 * math.sqrt(trials * chance * (1 - chance)) + 50
    x = np.arange(max(0, math.floor(middle - reach)), min(trials, math.ceil(middle + reach)) + 1)
    return x.astype(np.float64), binom.pmf(x, trials, chance)


def _binomial_tails(count: int, trials: int, chance: float, scale: float) -> tuple[float, float]:
    """Return P(X + L > count) and P(X + L = count) for X binomial and L discrete Laplace noise."""
    x, masses = _binomial(trials, chance)
    tail_above, tail_from = shared.survival(count + 1 - x, scale), shared.survival(count - x, scale)
    return float(masses @ tail_above), float(masses @ (tail_from - tail_above))


def _largest_tail(excess: float, low: int, high: int, chance: float, scale: float) -> float:
    """Return a tight upper bound on the largest P(X - c n + (1 - c) L - c L' >= excess) over the numbers of
    rows n from low to high, where X is binomial with n trials, c is `chance`, and L and L' are the noises on
    the two counts.

    Where the noise is wide only every stride-th n is evaluated: j more rows add at most (1 - c) j to X - c n,
    so the tail at n + j is at most that at n for an excess that is smaller by (1 - c) j.
    """
    stride = max(1, int(scale / 8))
    first, step, table = _noise_tail(chance, scale)
    best = 0.0
    for trials in range(low, high + 1, stride):
        x, masses = _binomial(trials, chance)
        needed = excess - (1 - chance) * (stride - 1) - (x - chance * trials)
        index = np.clip(np.floor((needed - first) / step - 1e-6), 0, len(table) - 1).astype(np.int64)
        best = max(best, float(masses @ table[index]))
    return best


@lru_cache(maxsize=64)
def _noise_tail(chance: float, scale: float) -> tuple[float, float, Floats]:
    """Return upper bounds on P((1 - c) L - c L' >= s) for s on a grid: the first s, the step of the grid, and
    the bounds. c is `chance`, L and L' are noises of this `scale`.

    A bound at the grid point below s is also a bound at s. Values of L' are grouped (by `group_width`), each
    group counting with its smallest value; 2 exp(-32) covers noise beyond 32 scales.
    """
    reach, group_width = math.ceil(32 * scale) + 2, max(1, int(scale / 32))
    other = np.arange(-reach, reach + group_width, group_width, dtype=np.float64)
    masses = shared.survival(other, scale) - shared.survival(other + group_width, scale)
    step = max(scale, 1.0) / 32
    s = np.arange(-reach, reach + step, step)
    needed = (s[:, None] + chance * other[None, :]) / (1 - chance)
    table = shared.survival(np.ceil(needed - 1e-9), scale) @ masses + 2 * math.exp(-32)
    table[0] = 1.0
    return float(s[0]), step, np.minimum(table, 1.0)
