"""Tests a proportion privately; with a public number of trials, one-sided, it is uniformly most powerful.

After Awan & Slavkovic 2018 (arXiv:1805.09236): a count with Tulap noise, which is discrete Laplace noise plus
a uniform one on (-1/2, 1/2), has a continuous distribution under the null, and its tail is the p-value: exact
at every sample size with a public number of trials, and on the safe side without. Here the uniform part is on
a grid of 2**-32.
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

# Steps of the uniform part: p-values are exact up to 2**-32.
_UNIFORM_STEPS = 1 << 32
# The most rows of a test: the distribution of their count is evaluated around its mean. No measurement on
# record.
_MAX_TRIALS = 10**9


@described("adaptive.YesNo")
@dataclass(frozen=True, slots=True, kw_only=True)
class YesNo:
    """Counts the rows that are a success and those that are not. Rows without a value are neither.

    A Boolean column needs no `success`; of Categories it is one of them; of a number, the least value that is
    a success.

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
        require_rows(public)
        declaration, success = public.fact(self.column), self.success
        if not isinstance(declaration, Boolean | Categories | Bounds):
            raise InvalidInput(
                f"column {self.column!r} is neither true or false, nor categories, nor a number. "
                f"Nothing was read."
            )
        if isinstance(declaration, Boolean) and success is not None:
            raise _require.fail("success", success, "None: the column is true or false")
        if isinstance(declaration, Categories) and success not in declaration.values:
            raise _require.fail("success", success, f"a declared category of column {self.column!r}")
        if isinstance(declaration, Bounds) and (success is None or isinstance(success, str)):
            raise _require.fail("success", success, "the least number that counts as a success")

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
    """Tests whether each row is a success with probability `chance`, independently; or at most, or at least,
    with this probability (where the alternative is "greater" or "less").

    `trials` is the number of rows with a value, where that is public; without it both counts are released
    under the one epsilon.

    Guarantee: epsilon-DP: discrete Laplace noise on one count, or on both.
    Proof:     `YesNo`, one entry or both; the uniform part and the p-value are post-processing of the noisy
               counts.
    Assumes:   with `trials`, that so many rows have a value; the p-value is wrong otherwise, the privacy is
               not.

    p-values:  super-uniform under the null for every number of rows. With `trials` exactly uniform up to
               2**-32, and one-sided no private test at this epsilon has more power (Awan & Slavkovic 2018).
    Proof:     P(X + noise >= what was seen) for X binomial. Without `trials`, the largest such tail of (1 -
               c) yes - c no over all numbers of rows that the noise on their sum allows, see `result`. Under
               a composite null the tail is largest at the null proportion.
    """

    public: Public
    column: str
    chance: float | Fraction
    epsilon: Real
    success: str | int | float | Fraction | None = None
    alternative: str = "two-sided"
    trials: int | None = None

    def __post_init__(self) -> None:
        shared.check_epsilon(self.public, self.epsilon)
        _require.open_probability(chance=self.chance)
        if not 0 < float(self.chance) < 1:
            raise _require.fail(
                "chance", float(self.chance), "a probability that a float can tell from 0 and 1"
            )
        _require.one_of(shared.SIDES, alternative=self.alternative)
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
        l1 = 1 if self.trials is not None else self.statistic.sensitivity(self.public)
        return IntegerLaplace.for_epsilon(self.epsilon, sensitivity=l1, neighbors=self.public.neighbors)

    @property
    def event(self) -> Event:
        return self.noise.event

    def error(self, confidence: float = 0.95) -> int:
        """Return a bound on the noise of the count of successes (with `trials`), or of both counts."""
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
        assert self.trials is not None
        count = int(self.noise(counts[:1], entropy=entropy)[0])
        uniform = int(sampling.uniform_below(_UNIFORM_STEPS, 1, entropy)[0])
        tail_above, mass_at = _binomial_tails(count, self.trials, float(self.chance), float(self.noise.scale))
        greater, less = (
            tail_above + mass_at * (_UNIFORM_STEPS - uniform) / _UNIFORM_STEPS,
            max(0.0, 1 - tail_above - mass_at) + mass_at * (uniform + 1) / _UNIFORM_STEPS,
        )
        pvalue = shared.two_sided(greater, less, self.alternative)
        # 1e-14 covers the tails that `_binomial` leaves out and the rounding of their complement.
        return TestResult(
            statistic=count + uniform / _UNIFORM_STEPS - 0.5, pvalue=shared.at_most_one(pvalue, 1e-14)
        )

    def _without_trials(self, counts: Integers, entropy: Entropy) -> TestResult:
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
        pvalue = shared.two_sided(greater, less, self.alternative)
        return TestResult(
            statistic=share, pvalue=shared.at_most_one(pvalue, 2 * FAILURE_PROBABILITY), people=rows
        )


@lru_cache(maxsize=2048)
def _binomial(trials: int, chance: float) -> tuple[Floats, Floats]:
    """Return the numbers of successes that matter, outside of which lies less than 1e-20, and their
    probabilities."""
    # slow to load, and most processes that load this package never ask for it
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
    """Return an upper bound, hardly above it, on the largest P(X - c n + (1 - c) L - c L' >= excess) over
    numbers of rows n from low to high; c is `chance`, L and L' are the noises of the two counts.

    Where noise is wide only every stride-th n is evaluated: j rows more add at most (1 - c) j to X - c n, so
    the tail at the last evaluated n, and at an excess smaller by that, is not smaller.
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
    """Return P((1 - c) L - c L' >= s) for s on a grid: its first s, its step and the tails.

    Rounded so that the tail at the grid point below s is never too small.
    """
    reach, coarse = math.ceil(32 * scale) + 2, max(1, int(scale / 32))
    other = np.arange(-reach, reach + coarse, coarse, dtype=np.float64)
    masses = shared.survival(other, scale) - shared.survival(other + coarse, scale)
    step = max(scale, 1.0) / 32
    s = np.arange(-reach, reach + step, step)
    needed = (s[:, None] + chance * other[None, :]) / (1 - chance)
    table = shared.survival(np.ceil(needed - 1e-9), scale) @ masses + 2 * math.exp(-32)
    table[0] = 1.0
    return float(s[0]), step, np.minimum(table, 1.0)
