"""Defines chi-squared tests of noisy counts: do categories follow given shares, and do two columns depend on
each other?

After Gaboardi, Lim, Rogers & Vadhan 2016 (arXiv:1602.03090): the classical chi-squared table is wrong for
noisy counts, so the distribution under the null is simulated with the noise in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ... import _require
from ..._errors import InvalidInput
from ..._public import REPLACE, Public
from ..._registry import described
from ..._require import Real
from ...accounting import Event
from ...mechanisms.noise import IntegerLaplace
from ...mechanisms.noise_tails import laplace_sum_error
from ...mechanisms.protocols import Integers, Release, Sensitivity, check_source, release
from ...mechanisms.statistics import Histogram, require_rows
from ...sampling import Entropy
from ...tables import Source
from . import result as shared
from .result import FAILURE_PROBABILITY, Floats, TestResult

# The largest number of cells of a table; each cell is simulated in every run. Chosen by hand, not
# tuned.
_MAX_CELLS = 10_000
# The largest number of people for which counts are simulated: numpy draws multinomials as 64-bit integers.
_MAX_PEOPLE = 10**12
# The smallest expected count of a cell (the textbook rule of 5) for simulations that are valid asymptotically
# only: those with estimated shares (independence), and those for one number of people instead of all that the
# noise allows (goodness of fit).
_EXPECTED = 5.0
# The largest number of counts drawn for one p-value, at 0.5 us each (measured on a busy machine), so 5 s;
# above it the simulation is for one number of people only.
_MAX_DRAWS = 10**7


@described("adaptive.CrossCounts")
@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCounts:
    """Counts the rows with each pair of declared categories of `first` and `second`, in row-major order
    (`first` is the row of the table of counts). A row with a missing value is not counted.

    Guarantee: add_remove, zero_out: one row moves one count by 1; replace: two counts, each by 1.
    Proof:     a row is in at most one cell.
    """

    first: str
    second: str

    def __post_init__(self) -> None:
        shared.check_columns(first=self.first, second=self.second)

    def shape(self, public: Public) -> tuple[int, int]:
        return len(public.categories(self.first).values), len(public.categories(self.second).values)

    def length(self, public: Public) -> int:
        return math.prod(self.shape(public))

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        return Sensitivity(linf=1, l0=min(self.length(public), 2 if public.neighbors is REPLACE else 1))

    def __call__(self, source: Source) -> Integers:
        public = source.public
        require_rows(public)
        rows, columns = self.shape(public)
        total = np.zeros(rows * columns, np.int64)
        for batch in source.batches([self.first, self.second]):
            i, j = (
                shared.groups_in(batch, index, name, public, public.categories(name).values)
                for index, name in enumerate((self.first, self.second))
            )
            is_complete = (i >= 0) & (j >= 0)
            total += np.bincount(i[is_complete] * columns + j[is_complete], minlength=rows * columns)
        return total


class _FromCounts:
    """Base of tests that release noisy counts of cells and compute everything else from them."""

    __slots__ = ()
    public: Public
    epsilon: Real

    @property
    def statistic(self) -> Any:
        raise NotImplementedError

    @property
    def noise(self) -> IntegerLaplace:
        sensitivity = self.statistic.sensitivity(self.public)
        return IntegerLaplace.for_epsilon(
            self.epsilon, sensitivity=sensitivity, neighbors=self.public.neighbors
        )

    @property
    def event(self) -> Event:
        return self.noise.event

    def error(self, confidence: float = 0.95) -> int:
        """Return a bound on the noise of all counts, with probability `confidence`."""
        return self.noise.error(confidence, entries=self.statistic.length(self.public))

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        counts = self.noise(self.statistic(source), entropy=entropy).astype(np.float64)
        people, total_error = (
            int(counts.sum()),
            laplace_sum_error(self.noise.scale, len(counts), FAILURE_PROBABILITY),
        )
        # the numbers of people that the noise allows, except with probability FAILURE_PROBABILITY
        least, largest = max(0, people - total_error), people + total_error
        statistic, pvalue = 0.0, 1.0
        if 0 < largest <= _MAX_PEOPLE:
            statistic, pvalue = self._statistic_and_pvalue(
                counts, (least, largest), float(self.noise.scale), shared.random_source(entropy)
            )
        result = TestResult(
            statistic=statistic, pvalue=shared.conservative_pvalue(pvalue, FAILURE_PROBABILITY), people=people
        )
        # `error_in_scores`: the error is that of the noisy counts, not of the p-value.
        return release(result, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)

    def _statistic_and_pvalue(
        self, counts: Floats, people: tuple[int, int], scale: float, random: np.random.Generator
    ) -> tuple[float, float]:
        """Return the statistic of noisy counts, and its simulated p-value. `people` are the smallest and the
        largest number of people that the noise allows; `scale` is that of the noise on each count."""
        raise NotImplementedError


@described("adaptive.GoodnessOfFitTest")
@dataclass(frozen=True, slots=True, kw_only=True)
class GoodnessOfFitTest(_FromCounts):
    """Tests whether the categories of `column` have these `shares`, in the order in which they are declared.

    The statistic is Pearson's chi-squared, with each squared residual divided by the expected count plus the
    variance of the noise. `runs` is the number of simulated tables.

    Guarantee: epsilon-DP: the noisy histogram.
    Proof:     `Histogram`; everything else is computed from noisy counts.

    p-values:  super-uniform under the null for every number of people and all shares, rare cells included: (1
               + how many simulated statistics are as large) / (1 + runs), for `runs` tables drawn with the
               noise added; the largest such value over all numbers of people that the noise allows, plus
               `FAILURE_PROBABILITY`. With many cells, where that takes too long, only the largest number of
               people is simulated, and the p-value is 1 where a cell may have an expected count below 5
               (asymptotically valid).
    Proof:     for the true number n the simulated tables are exchangeable with the noisy table, and so are
               their statistics, whose weights depend on n only (Gaboardi et al. 2016, Algorithm MCGOF); n is
               in the interval except with probability `FAILURE_PROBABILITY` (Berger & Boos 1994, Lemma 1).
               Where the noise is wide only the multiples of a public stride are tried, in place of every n.
               Let h be the distance of n to the nearest multiple, which is among those tried: h more people
               move the counts by h in l1, so no probability grows by more than e^(h / scale), and the p-value
               is raised by this factor for the largest possible h.
    """

    public: Public
    column: str
    shares: tuple[float | Fraction, ...]
    epsilon: Real
    runs: int = 9999

    def __post_init__(self) -> None:
        shared.check_unit_and_epsilon(self.public, self.epsilon)
        shared.check_columns(column=self.column)
        shared.check_runs(self.runs)
        object.__setattr__(self, "shares", _require.listed(shares=self.shares))
        for share in self.shares:
            _require.positive(share=share)
        cells = self.statistic.length(self.public)
        if len(self.shares) != cells or cells < 2 or cells > _MAX_CELLS:
            raise InvalidInput(
                f"column {self.column!r} has {cells} declared categories, and there are {len(self.shares)} "
                f"shares: it must be one for each, and from 2 to {_MAX_CELLS}. Nothing was read."
            )
        total = math.fsum(_require.float_or_inf(share) for share in self.shares)
        if not abs(total - 1) < 1e-9:
            raise InvalidInput(f"the shares add up to {total:.6g}, not to 1. Nothing was read.")

    @property
    def statistic(self) -> Histogram:
        return Histogram(column=self.column)

    def _statistic_and_pvalue(
        self, counts: Floats, people: tuple[int, int], scale: float, random: np.random.Generator
    ) -> tuple[float, float]:
        shares = np.array([float(share) for share in self.shares])
        shares /= shares.sum()
        lower, upper = people
        stride = max(1, int(scale / 4))
        statistic = float(_pearson_of_shares(counts, shares, upper, scale))
        # The stride is public and the numbers tried are its multiples, not offsets from the noisy count: so
        # the multiple nearest to the true number does not depend on the noise, which the proof needs. Any
        # stride is valid; a quarter of the scale raises p-values by e^(1/8) at most.
        tried, raised = range(lower - lower % stride, upper + stride, stride), math.exp((stride // 2) / scale)
        if len(tried) * self.runs * len(shares) > _MAX_DRAWS:
            if lower * shares.min() < _EXPECTED:
                return statistic, 1.0
            tried, raised = range(upper, upper + 1), 1.0
        noise = shared.simulated(random, scale, (self.runs, len(shares)))
        largest = max(self._simulate(counts, shares, n, scale, noise, random) for n in tried)
        return statistic, min(1.0, largest * raised)

    def _simulate(
        self,
        counts: Floats,
        shares: Floats,
        people: int,
        scale: float,
        noise: Floats,
        random: np.random.Generator,
    ) -> float:
        """Return the simulated p-value for this number of people; `noise` is shared by all numbers."""
        simulated_tables = random.multinomial(people, shares, self.runs) + noise
        return shared.monte_carlo(
            float(_pearson_of_shares(counts, shares, people, scale)),
            _pearson_of_shares(simulated_tables, shares, people, scale),
        )


def _pearson_of_shares(tables: Floats, shares: Floats, people: int, scale: float) -> Floats:
    """Return Pearson's statistic of each table: squared residuals of the counts from `shares` of their sum,
    each divided by the expected count among `people` plus the variance of the noise, about 2 scale²."""
    residual = tables - tables.sum(axis=-1, keepdims=True) * shares
    statistic: Floats = (residual**2 / (people * shares + 2 * scale**2)).sum(axis=-1)
    return statistic


@described("adaptive.IndependenceTest")
@dataclass(frozen=True, slots=True, kw_only=True)
class IndependenceTest(_FromCounts):
    """Tests whether the categories of `first` and of `second` are independent of each other.

    `runs` is the number of simulated tables.

    Guarantee: epsilon-DP: the noisy table of pairs.
    Proof:     `CrossCounts`; everything else is computed from noisy counts.

    p-values:  asymptotically valid: shares of both columns are estimated from the noisy table, and tables are
               drawn from these shares, with the noise added and the shares estimated anew (Gaboardi et al.
               2016, Algorithm MCIndep). Conservative choices: the largest number of people that the noise
               allows is used, `FAILURE_PROBABILITY` is added, and the p-value is 1 where a cell has an
               expected count below 5.
    """

    public: Public
    first: str
    second: str
    epsilon: Real
    runs: int = 4999

    def __post_init__(self) -> None:
        shared.check_unit_and_epsilon(self.public, self.epsilon)
        shared.check_runs(self.runs)
        rows, columns = self.statistic.shape(self.public)
        if min(rows, columns) < 2 or rows * columns > _MAX_CELLS:
            raise InvalidInput(
                f"a table of {rows} by {columns} is too small, or has more than {_MAX_CELLS} cells. "
                f"Nothing was read."
            )

    @property
    def statistic(self) -> CrossCounts:
        return CrossCounts(first=self.first, second=self.second)

    def _statistic_and_pvalue(
        self, counts: Floats, people: tuple[int, int], scale: float, random: np.random.Generator
    ) -> tuple[float, float]:
        shape, largest = self.statistic.shape(self.public), people[1]
        table = counts.reshape(shape)
        shares = _expected_counts(table) / max(1.0, float(table.sum()))
        statistic = float(_pearson(table, scale))
        if float(table.sum()) * shares.min() < _EXPECTED:
            return statistic, 1.0
        shares = (shares / shares.sum()).ravel()
        noise = shared.simulated(random, scale, (self.runs, *shape))
        drawn = random.multinomial(largest, shares, self.runs).reshape(self.runs, *shape) + noise
        return statistic, shared.monte_carlo(statistic, _pearson(drawn, scale))


def _expected_counts(tables: Floats) -> Floats:
    """Return the expected counts under independence: row sum times column sum divided by the total, where
    noisy sums below one count as one."""
    rows, columns = (np.maximum(tables.sum(axis=axis, keepdims=True), 1.0) for axis in (-1, -2))
    total = np.maximum(tables.sum(axis=(-1, -2), keepdims=True), 1.0)
    expected: Floats = rows * columns / total
    return expected


def _pearson(tables: Floats, scale: float) -> Floats:
    """Return Pearson's statistic of independence of each table: squared residuals, each divided by the
    expected count plus the variance of the noise, about 2 scale²."""
    expected = _expected_counts(tables)
    statistic: Floats = ((tables - expected) ** 2 / (expected + 2 * scale**2)).sum(axis=(-1, -2))
    return statistic
