"""Defines rank tests, which use the order of values instead of the values: does one group tend to lie above
another (Mann-Whitney), do several groups differ (Kruskal-Wallis), do two columns rise together (Kendall)?

After Couch, Kazan, Shi, Bray & Groce 2019 (arXiv:1903.09364). All three statistics are built from signs of
differences over pairs of rows, so one row moves them in proportion to the number of rows with which it is
compared. Where the number of rows is public (replace, zero_out), the noise is for that number. Under
add_remove an upper bound on it is bought first, which is wrong with probability at most `delta`, and the
noise is for that bound.

Under the null hypothesis the signs of pairs have mean zero for all sizes of the groups, so that no noisy size
has to be subtracted. The published statistics (U, and rank sums minus their mean) are half of these sums,
plus terms in the group sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ... import _require
from ..._errors import Unsupported
from ..._public import ADD_REMOVE, REPLACE, Public
from ..._registry import described
from ..._require import Real
from ...accounting import ApproximateDP, DiscreteLaplace, Event, compose
from ...mechanisms import certified
from ...mechanisms.noise import IntegerLaplace, draw
from ...mechanisms.noise_tails import laplace_sum_error
from ...mechanisms.protocols import Release, check_source, release
from ...sampling import Entropy
from ...tables import Source
from . import result as shared
from .result import FAILURE_PROBABILITY, Floats, TestResult

# The share of epsilon for the noisy numbers of rows. Chosen by hand: it changes power, not validity.
_SIZES_SHARE = Fraction(1, 6)
# The largest number of rows of a table: sums of signs over pairs stay within 64 bits.
_MAX_ROWS = 10**9
# The smallest group for which a p-value below 1 is computed: rank sums of fewer rows are too far from normal
# (that of one row is uniform). The value was chosen by hand, not tuned.
_FEWEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signs:
    """Releases the noisy number of rows in each group (or in the table), then the noisy sum of signs.

    Guarantee: add_remove: (epsilon, delta)-DP. Otherwise epsilon-DP.
    Proof:     one row moves one of the sizes by 1 (two under replace): discrete Laplace noise for a sixth of
               epsilon. The sum of signs gets noise of scale b / (5/6 epsilon), where b bounds how far one row
               moves it. Where the number of rows is public, so is b (`row_sensitivity`). Under add_remove b
               is computed from the noisy sizes (`_bound`), and for a table D and any neighbor D' it is too
               small with probability at most delta over the noise on D's sizes. So P(M(D) in S) <= delta +
               e^epsilon P(M(D') in S) for this mechanism M and each set S of outputs, by summing over the
               values of b that are large enough.
    """

    public: Public
    epsilon: Real
    delta: float | None = None

    def _check(self) -> None:
        shared.check_unit_and_epsilon(self.public, self.epsilon)
        if self.public.neighbors is ADD_REMOVE:
            if self.delta is None:
                raise Unsupported(
                    "under add_remove one person moves this statistic by up to the number of other people, "
                    "which is private: a bound on it is bought, which is wrong with probability at most "
                    "delta. Nothing was read. Give delta, such as 1e-6."
                )
            _require.open_probability(delta=self.delta)
            if self.delta < 1e-300:
                raise _require.fail("delta", self.delta, "at least 1e-300")
        else:
            if self.delta is not None:
                raise _require.fail(
                    "delta", self.delta, f"None: under {self.public.neighbors} none is needed"
                )
            if self.public.declared_size("this test") > _MAX_ROWS:
                raise _require.fail("size", self.public.size, f"at most {_MAX_ROWS}")

    @property
    def sizes_noise(self) -> IntegerLaplace:
        changes = 2 if self.public.neighbors is REPLACE else 1
        epsilon = _require.exact(self.epsilon, "epsilon") * _SIZES_SHARE
        return IntegerLaplace.for_epsilon(epsilon, sensitivity=changes, neighbors=self.public.neighbors)

    @property
    def event(self) -> Event:
        if self.public.neighbors is ADD_REMOVE:
            assert self.delta is not None
            return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=self.public.neighbors)
        bound = self.row_sensitivity(self.public.declared_size("this test"))
        signs_event = DiscreteLaplace(
            scale=self._scale(bound), sensitivity=bound, neighbors=self.public.neighbors
        )
        return compose([self.sizes_noise.event, signs_event])

    def _scale(self, bound: int) -> Fraction:
        """Return the scale of the noise on a sum of signs that one row moves by at most `bound`."""
        return bound / (_require.exact(self.epsilon, "epsilon") * (1 - _SIZES_SHARE))

    def row_sensitivity(self, size: int) -> int:
        """Return how far one row moves the sum of signs of a table with `size` rows, where that is public."""
        raise NotImplementedError

    def _bound(self, sizes: list[int]) -> int:
        """Return, from the noisy sizes, a bound on how far one row moves the sum of signs; it is wrong with
        probability at most `delta`."""
        raise NotImplementedError

    def exact(self, source: Source) -> tuple[list[int], int]:
        """Return the exact sizes of the groups (or of the table), and the exact statistic."""
        raise NotImplementedError

    def _pvalue(self, noisy: int, upper_sizes: list[int], scale: float, entropy: Entropy) -> float:
        """Return the p-value of the `noisy` statistic, for groups of at most these sizes; `scale` is that of
        its noise."""
        raise NotImplementedError

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        exact_sizes, statistic = self.exact(source)
        sizes = [int(v) for v in self.sizes_noise(np.array(exact_sizes, dtype=np.int64), entropy=entropy)]
        size_is_public = self.public.neighbors is not ADD_REMOVE
        most_rows = self.public.declared_size("this test") if size_is_public else _MAX_ROWS
        scale = self._scale(self.row_sensitivity(most_rows) if size_is_public else self._bound(sizes))
        noisy = statistic + draw(scale, entropy)
        size_error = (
            certified.laplace_quantile(self.sizes_noise.scale, Fraction(FAILURE_PROBABILITY) / len(sizes)) - 1
        )
        upper_sizes = [min(most_rows, size + size_error) for size in sizes]
        is_large = min(upper_sizes) >= _FEWEST
        pvalue = self._pvalue(noisy, upper_sizes, float(scale), entropy) if is_large else 1.0
        result = TestResult(
            statistic=float(noisy),
            # twice: a two-sided p-value is twice a one-sided one, to which FAILURE_PROBABILITY is added
            pvalue=shared.conservative_pvalue(pvalue, 2 * FAILURE_PROBABILITY),
            people=sum(sizes),
        )

        def error(confidence: float) -> int:
            return IntegerLaplace(scale=scale, sensitivity=1).error(confidence)

        # `error_in_scores`: the error is that of the noisy statistic, not of the p-value.
        return release(result, event=self.event, entropy=entropy, error=error, error_in_scores=True)

    def _tail(self, count: int) -> int:
        """Return a bound t: the sum of the noises on `count` sizes is below -t with probability at most
        `delta`."""
        assert self.delta is not None
        if count == 1:
            return certified.laplace_quantile(self.sizes_noise.scale, Fraction(self.delta)) - 1
        return laplace_sum_error(self.sizes_noise.scale, count, self.delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grouped(_Signs):
    """Compares the values of `column` between `groups`, categories of the column `group` (None: all that are
    declared)."""

    column: str
    group: str
    groups: tuple[str | int, ...] | None = None

    def _check_groups(self, at_least: int, at_most: int | None) -> None:
        self._check()
        shared.check_columns(column=self.column, group=self.group)
        self.public.bounds(self.column)
        if self.groups is not None:
            object.__setattr__(self, "groups", _require.listed(groups=self.groups))
        shared.check_groups(self.public, self.group, self.groups, at_least, at_most)

    @property
    def compared(self) -> tuple[str | int, ...]:
        """Return the groups that are compared."""
        return tuple(shared.check_groups(self.public, self.group, self.groups))

    def _rows(self, source: Source) -> tuple[Floats, NDArray[np.int64]]:
        """Return the value and the index of the group of each row that has both."""
        values, groups = [np.zeros(0)], [np.zeros(0, np.int64)]
        for batch in source.batches([self.column, self.group]):
            numbers, is_present = shared.values_in(batch, 0, self.column, source.public)
            group = shared.groups_in(batch, 1, self.group, source.public, self.compared)
            is_present &= group >= 0
            values.append(numbers[is_present])
            groups.append(group[is_present])
        return np.concatenate(values), np.concatenate(groups)

    def exact(self, source: Source) -> tuple[list[int], int]:
        values, groups = self._rows(source)
        count = len(self.compared)
        ordered = np.sort(values)
        smaller, at_most = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
        # for each row: the number of rows with a smaller value, minus that with a larger one
        row_signs = smaller - (len(values) - at_most)
        # in the sum over a group, pairs within the group cancel
        totals = [int(row_signs[groups == g].sum()) for g in range(count)]
        return np.bincount(groups, minlength=count).tolist(), self.combined(totals)

    def combined(self, totals: list[int]) -> int:
        """Return the statistic, from the sum of signs of each group."""
        raise NotImplementedError


@described("adaptive.MannWhitneyTest")
@dataclass(frozen=True, slots=True, kw_only=True)
class MannWhitneyTest(_Grouped):
    """Tests whether values of `column` are equally distributed in two `groups`.

    The alternative "greater" is that the values of the first group tend to be larger.

    The statistic is the sum over pairs of rows, one of each group, of the sign of (value in the first group -
    value in the second): 2 U - n1 n2, where U is the published statistic and n1, n2 are the group sizes.

    Guarantee: that of `_Signs`. One row moves the statistic by at most the size of the other group, or under
               replace by at most twice the number of other rows.
    Proof:     a row is in one pair with each row of the other group, whose sign is -1, 0 or 1, and the pair
               is absent without the row. A replaced row that stays in its group may turn each sign around. A
               row that moves to the other group loses its pairs with that group's rows and gains pairs with
               those that stay behind: n - 1 pairs together, of n rows.

    p-values:  asymptotically valid, for all distributions: under the null the statistic has mean 0 and
               variance n1 n2 (n1 + n2 + 1) / 3, less with ties. The p-value is a tail probability of the sum
               of a normal variable and the noise, with a continuity correction, at the largest group sizes
               that are compatible with the noisy ones; it is 1 where such a size is below 8.
    """

    alternative: str = "two-sided"

    def __post_init__(self) -> None:
        self._check_groups(2, 2)
        _require.one_of(shared.ALTERNATIVES, alternative=self.alternative)

    def row_sensitivity(self, size: int) -> int:
        return max(1, (2 if self.public.neighbors is REPLACE else 1) * (size - 1))

    def _bound(self, sizes: list[int]) -> int:
        return max(1, max(sizes) + self._tail(1))

    def combined(self, totals: list[int]) -> int:
        return totals[0]

    def _pvalue(self, noisy: int, upper_sizes: list[int], scale: float, entropy: Entropy) -> float:
        deviation = math.sqrt(upper_sizes[0] * upper_sizes[1] * (sum(upper_sizes) + 1) / 3)
        greater, less = (_normal_tail(s, deviation, scale) for s in (noisy, -noisy))
        return shared.pvalue_for(greater, less, self.alternative)


@described("adaptive.KruskalWallisTest")
@dataclass(frozen=True, slots=True, kw_only=True)
class KruskalWallisTest(_Grouped):
    """Tests whether values of `column` are equally distributed in several `groups` (by default all that are
    declared).

    The statistic is the sum over groups of |sum of the signs of differences between its rows and the rows of
    other groups|: the absolute-value variant of Couch et al., times n² / (2 (n - 1)) for n rows.

    Guarantee: that of `_Signs`. One row moves the statistic by at most twice the number of rows in other
               groups; under replace by at most four times the number of other rows.
    Proof:     a row of group h, which has n_h rows, is in one pair with each of the n - n_h rows of other
               groups. It moves the sum of h by at most n - n_h, and the sums of the other groups together by
               as much. Replacing is removing one row and adding another. In the scale of the published
               statistic, that is multiplied by 2 (n - 1) / n², the bound under replace is at most 8, the
               number in the authors' code (github.com/simonpcouch/non-pm-dpht). Tests try every table of
               three and of four rows.

    p-values:  asymptotically valid, for all distributions. The p-value is a tail probability, from `runs`
               simulations, of the statistic of normal rank sums plus the noise, at the largest group sizes
               that are compatible with the noisy ones and without ties, which would only reduce the variance.
               It is 1 where such a size is below 8.
    """

    runs: int = 9999

    def __post_init__(self) -> None:
        self._check_groups(2, 1000)
        shared.check_runs(self.runs)

    def row_sensitivity(self, size: int) -> int:
        return max(1, (4 if self.public.neighbors is REPLACE else 2) * (size - 1))

    def _bound(self, sizes: list[int]) -> int:
        others = max(sum(sizes) - size for size in sizes)
        return max(1, 2 * (others + self._tail(len(sizes) - 1)))

    def combined(self, totals: list[int]) -> int:
        return sum(abs(total) for total in totals)

    def _pvalue(self, noisy: int, upper_sizes: list[int], scale: float, entropy: Entropy) -> float:
        random, sizes = shared.random_source(entropy), np.array(upper_sizes, dtype=np.float64)
        normal = random.standard_normal((self.runs, len(sizes))) * np.sqrt(sizes)
        centered = normal - normal.sum(axis=1, keepdims=True) * (sizes / sizes.sum())
        statistics = np.abs(centered).sum(axis=1) * math.sqrt(sizes.sum() * (sizes.sum() + 1) / 3)
        # - 1 is the continuity correction, as in `_normal_tail`
        return shared.monte_carlo(noisy - 1, statistics + shared.simulated(random, scale, (self.runs,)))


@described("adaptive.CorrelationTest")
@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationTest(_Signs):
    """Tests whether two columns of numbers are independent, by Kendall's rank correlation.

    The alternative "greater" is that they tend to rise together.

    The statistic is the number of concordant pairs of rows (both columns rise, or both fall) minus that of
    discordant pairs (one rises, the other falls); pairs with a tie count in neither.

    Guarantee: that of `_Signs`. One row moves the statistic by at most the number of other rows, or under
               replace by at most twice that.
    Proof:     a row is in one pair with each other row.

    p-values:  asymptotically valid, for all distributions: under independence the statistic has mean 0 and
               variance n (n - 1) (2 n + 5) / 18 for n rows, less with ties (Kendall 1938). The p-value is a
               tail probability of the sum of a normal variable and the noise, with a continuity correction,
               at the largest n that is compatible with the noisy one; it is 1 where that is below 8.
    """

    first: str
    second: str
    alternative: str = "two-sided"

    def __post_init__(self) -> None:
        self._check()
        shared.check_columns(first=self.first, second=self.second)
        for column in (self.first, self.second):
            self.public.bounds(column)
        _require.one_of(shared.ALTERNATIVES, alternative=self.alternative)

    def row_sensitivity(self, size: int) -> int:
        return max(1, (2 if self.public.neighbors is REPLACE else 1) * (size - 1))

    def _bound(self, sizes: list[int]) -> int:
        return max(1, sizes[0] + self._tail(1))

    def exact(self, source: Source) -> tuple[list[int], int]:
        columns = [np.zeros((2, 0))]
        for batch in source.batches([self.first, self.second]):
            x, has_first = shared.values_in(batch, 0, self.first, source.public)
            y, has_second = shared.values_in(batch, 1, self.second, source.public)
            columns.append(np.stack([x, y])[:, has_first & has_second])
        x, y = np.concatenate(columns, axis=1)
        return [len(x)], kendall(x, y)

    def _pvalue(self, noisy: int, upper_sizes: list[int], scale: float, entropy: Entropy) -> float:
        n = upper_sizes[0]
        deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        greater, less = (_normal_tail(s, deviation, scale) for s in (noisy, -noisy))
        return shared.pvalue_for(greater, less, self.alternative)


def kendall(x: Floats, y: Floats) -> int:
    """Return the sum over pairs of rows of sign(x - x') sign(y - y'), exactly.

    >>> kendall(np.array([1, 2, 3, 3]), np.array([1, 3, 2, 2]))
    1
    """
    order = np.lexsort((y, x))
    xs, ys = x[order], y[order]
    ranks = np.unique(ys, return_inverse=True)[1].astype(np.int64)
    # pairs that are equal in x or in y; in the order by x, then y, the discordant pairs are the inversions
    ties = _tied_pairs(xs[None, :]) + _tied_pairs(ys[None, :]) - _tied_pairs(np.stack([xs, ys]))
    return len(x) * (len(x) - 1) // 2 - ties - 2 * _inversions(ranks)


def _tied_pairs(columns: Any) -> int:
    """Return how many pairs of rows are equal in all given columns."""
    counts = np.unique(columns, axis=1, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def _inversions(ranks: NDArray[np.int64]) -> int:
    """Return how many pairs i < j have ranks[i] > ranks[j].

    Such a pair agrees in all bits above one bit, which is 1 at i and 0 at j. For each bit, the pairs are
    counted among the ranks that agree in the bits above it (their prefix)."""
    total = 0
    for bit in range(int(ranks.max(initial=0)).bit_length()):
        prefix = ranks >> (bit + 1)
        order = np.argsort(prefix, kind="stable")
        ones, prefixes = (ranks[order] >> bit) & 1, prefix[order]
        # ones before each entry, and before the first entry with the same prefix
        before = np.cumsum(ones) - ones
        starts = np.flatnonzero(np.r_[True, prefixes[1:] != prefixes[:-1]])
        base = np.repeat(before[starts], np.diff(np.r_[starts, len(ranks)]))
        total += int((before - base)[ones == 0].sum())
    return total


def _normal_tail(statistic: int, deviation: float, scale: float) -> float:
    """Return an upper bound on P(N + L >= statistic - 1) for N normal with mean 0 and this standard
    deviation, and L discrete Laplace noise. The 1 is the continuity correction.

    The range of N is divided into intervals of a hundredth of its deviation, each counting with its upper
    end; above eight deviations N counts as infinite.
    """
    if deviation == 0:
        return float(shared.survival(statistic - 1, scale))
    ends = np.arange(-8.0, 8.005, 0.01)
    masses = np.diff(ndtr(ends), prepend=0.0)
    tails = shared.survival(np.ceil(statistic - 1 - ends * deviation), scale)
    return float(masses @ tails) + float(ndtr(-8.0))
