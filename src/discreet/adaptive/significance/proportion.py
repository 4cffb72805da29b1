"""Is a share what it is said to be? The uniformly most powerful private test of a proportion, exact at every
sample size.

After Awan & Slavkovic 2018 (arXiv:1805.09236): a count with Tulap noise, which is discrete Laplace noise plus
a uniform one on (-1/2, 1/2), has a continuous law under the null, and its tail is the p-value. Here the
uniform part is on a grid of 2**-32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import stats

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
from .result import DOUBT, Floats, TestResult

_FINE = 1 << 32  # steps of the uniform part
_MOST = 10**9  # people


@described("adaptive.YesNo")
@dataclass(frozen=True, slots=True, kw_only=True)
class YesNo:
    """How many rows are a success, and how many are not. Rows without a value are neither.

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
        fact, success = public.fact(self.column), self.success
        if not isinstance(fact, Boolean | Categories | Bounds):
            raise InvalidInput(
                f"column {self.column!r} is neither true or false, nor categories, nor a number. "
                f"Nothing was read."
            )
        if isinstance(fact, Boolean) and success is not None:
            raise _require.fail("success", success, "None: the column is true or false")
        if isinstance(fact, Categories) and success not in fact.values:
            raise _require.fail("success", success, f"a declared category of column {self.column!r}")
        if isinstance(fact, Bounds) and (success is None or isinstance(success, str)):
            raise _require.fail("success", success, "the least number that counts as a success")

    def length(self, public: Public) -> int:
        return 2

    def sensitivity(self, public: Public) -> Sensitivity:
        self.check(public)
        return Sensitivity(linf=1, l0=2 if public.neighbors is REPLACE else 1)

    def __call__(self, source: Source) -> Integers:
        self.check(source.public)
        fact, total = source.public.fact(self.column), np.zeros(2, np.int64)
        for batch in source.batches([self.column]):
            yes, here = self._rows(batch, fact, source.public)
            total += [int(np.count_nonzero(yes & here)), int(np.count_nonzero(~yes & here))]
        return total

    def _rows(self, batch: Any, fact: Any, public: Public) -> tuple[Any, Any]:
        if isinstance(fact, Categories):
            codes = shared.groups_in(batch, 0, self.column, public, fact.values)
            return codes == fact.values.index(self.success), codes >= 0
        if isinstance(fact, Bounds):
            values, here = shared.values_in(batch, 0, self.column, public)
            return values >= float(self.success), here  # type: ignore[arg-type]
        array = arrow_columns.unpacked(batch.column(0))
        return arrow_columns.numbers(array, self.column) != 0, arrow_columns.present(array)


@described("adaptive.ProportionTest")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionTest:
    """That each row is a success with probability `chance`, independently; or not more, or not less
    ("greater", "less" is the alternative).

    `trials` is the number of rows with a value, where that is public; without it both counts are bought, from
    one price.

    Guarantee: epsilon-DP: discrete Laplace noise on one count, or on both.
    Proof:     `YesNo`, one entry or both; the uniform part and the p-value are computed from what was paid
               for.
    Assumes:   with `trials`, that so many rows have a value; the p-value is wrong otherwise, the privacy is
               not.

    p-values:  super-uniform under the null for every number of rows. With `trials` exactly uniform up to
               2**-32, and one-sided no private test at this price has more power (Awan & Slavkovic 2018).
    Proof:     P(X + noise >= what was seen) for X binomial. Without `trials`, the largest such tail of (1 -
               c) yes - c no over all numbers of rows that the noise on their sum allows, see `result`. For
               shares on the null's far side tails are smaller.
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
            if self.trials > _MOST:
                raise _require.fail("trials", self.trials, f"at most {_MOST}")
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
        """Return how far noise puts the count of successes (with `trials`), or the worse of both counts."""
        return self.noise.error(confidence, entries=1 if self.trials is not None else 2) + 1

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        counts = self.statistic(source)
        result = (
            self._with_trials(counts, entropy) if self.trials is not None else self._bought(counts, entropy)
        )
        return release(result, event=self.event, entropy=entropy, error=self.error, scored=True)

    def _with_trials(self, counts: Integers, entropy: Entropy) -> TestResult:
        assert self.trials is not None
        count = int(self.noise(counts[:1], entropy=entropy)[0])
        fine = int(sampling.uniform_below(_FINE, 1, entropy)[0])
        above, here = _binomial_tails(count, self.trials, float(self.chance), float(self.noise.scale))
        greater, less = (
            above + here * (_FINE - fine) / _FINE,
            max(0.0, 1 - above - here) + here * (fine + 1) / _FINE,
        )
        pvalue = shared.two_sided(greater, less, self.alternative)
        return TestResult(statistic=count + fine / _FINE - 0.5, pvalue=shared.at_most_one(pvalue, 1e-14))

    def _bought(self, counts: Integers, entropy: Entropy) -> TestResult:
        yes, no = (int(v) for v in self.noise(counts, entropy=entropy))
        chance, scale = float(self.chance), float(self.noise.scale)
        slack = laplace_sum_error(self.noise.scale, 2, DOUBT)
        low, high = max(0, yes + no - slack), yes + no + slack
        share, people = yes / max(1, yes + no), yes + no
        if high <= 0 or high > _MOST:
            return TestResult(statistic=share, pvalue=1.0, people=people)
        excess = (1 - chance) * yes - chance * no
        greater = _largest_tail(excess, low, high, chance, scale)
        less = _largest_tail(-excess, low, high, 1 - chance, scale)
        pvalue = shared.two_sided(greater, less, self.alternative)
        return TestResult(statistic=share, pvalue=shared.at_most_one(pvalue, 2 * DOUBT), people=people)


@lru_cache(maxsize=2048)
def _binomial(trials: int, chance: float) -> tuple[Floats, Floats]:
    """Return the numbers of successes that matter, outside of which lies less than 1e-20, and their
    probabilities."""
    middle, reach = trials * chance, 10 * math.sqrt(trials * chance * (1 - chance)) + 50
    x = np.arange(max(0, math.floor(middle - reach)), min(trials, math.ceil(middle + reach)) + 1)
    return x.astype(np.float64), stats.binom.pmf(x, trials, chance)


def _binomial_tails(count: int, trials: int, chance: float, scale: float) -> tuple[float, float]:
    """P(X + L > count) and P(X + L = count) for X binomial and L discrete Laplace noise."""
    x, masses = _binomial(trials, chance)
    above, least = shared.survival(count + 1 - x, scale), shared.survival(count - x, scale)
    return float(masses @ above), float(masses @ (least - above))


def _largest_tail(excess: float, low: int, high: int, chance: float, scale: float) -> float:
    """Return the largest P(X - c n + (1 - c) L - c L' >= excess) over numbers of rows n from low to high, or
    a little more.

    Not every n is gone through where noise is wide: j rows more add at most (1 - c) j to X - c n, so the tail
    at the last n that was, and at an excess smaller by that, is not smaller.
    """
    stride = max(1, int(scale / 8))
    first, step, table = _noise_tail(chance, scale)
    best = 0.0
    for trials in range(low, high + 1, stride):
        x, masses = _binomial(trials, chance)
        needed = excess - (1 - chance) * (stride - 1) - (x - chance * trials)
        at = np.clip(np.floor((needed - first) / step - 1e-6), 0, len(table) - 1).astype(np.int64)
        best = max(best, float(masses @ table[at]))
    return best


@lru_cache(maxsize=64)
def _noise_tail(chance: float, scale: float) -> tuple[float, float, Floats]:
    """P((1 - c) L - c L' >= s) from a first s on in steps: rounded so that looking it up at the step below s
    is never too small."""
    reach, coarse = math.ceil(32 * scale) + 2, max(1, int(scale / 32))
    other = np.arange(-reach, reach + coarse, coarse, dtype=np.float64)
    masses = shared.survival(other, scale) - shared.survival(other + coarse, scale)
    step = max(scale, 1.0) / 32
    s = np.arange(-reach, reach + step, step)
    needed = (s[:, None] + chance * other[None, :]) / (1 - chance)
    table = shared.survival(np.ceil(needed - 1e-9), scale) @ masses + 2 * math.exp(-32)
    table[0] = 1.0
    return float(s[0]), step, np.minimum(table, 1.0)
