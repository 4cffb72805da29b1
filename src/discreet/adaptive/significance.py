"""Private hypothesis tests: each releases a p-value that takes its own noise into account, so that under a
true null hypothesis it is at most a with probability at most a, for every a (some tests: asymptotically).

A test is a `Mechanism`: its price is known before anything is read, and it releases a `TestResult`. What is
done with released p-values is post-processing and costs nothing: `benjamini_hochberg`, `Saffron` and
`LordPlusPlus` may be used on them as on any others.

    test = ProportionTest(public=..., column="smoker", chance=0.2, epsilon=1)
    curator.ask(test).value.pvalue

Rows in which a value that the test needs is missing are left out. The number of the other rows is private,
and where a test needs it, it is bought with noise as part of the test.

Defines the result of a private test, and common parts of all tests: tails of noise, simulations, checks.

Where a p-value depends on a number that is only known with noise (a nuisance parameter: how many people there
are), it is the largest over all values of that number that the noise allows, except with probability
`FAILURE_PROBABILITY`, and `FAILURE_PROBABILITY` is added to it (Berger & Boos 1994). It is then valid for
every value of the number, and never below a millionth.

Defines a private test of a proportion. With a public number of trials, one-sided, it is uniformly most
powerful among epsilon-DP tests.

After Awan & Slavkovic 2018 (arXiv:1805.09236): a count with Tulap noise, which is the sum of discrete Laplace
noise and a uniform variable on (-1/2, 1/2), has a continuous distribution under the null hypothesis, and its
tail probability is the p-value. It is exact at every sample size with a public number of trials, and
conservative without. Here the uniform variable is on a grid of 2**-32.

Defines a private two-sample test of means, from the noisy count, sum and sum of squares of each group. The
difference of the means is simulated under the null hypothesis with the noise included.

Defines chi-squared tests of noisy counts: do categories follow given shares, and do two columns depend on
each other?

After Gaboardi, Lim, Rogers & Vadhan 2016 (arXiv:1602.03090): the classical chi-squared table is wrong for
noisy counts, so the distribution under the null is simulated with the noise in it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _require, sampling
from .._errors import InvalidInput
from .._public import REPLACE, Boolean, Bounds, Categories, Public
from .._registry import described
from .._require import EXACT, INTEGER, LISTED, POSITIVE, PRICE, Limit, Real, among, at_least, at_most
from ..accounting import Event, compose
from ..mechanisms import arrow_columns
from ..mechanisms.additive import laplace_noise
from ..mechanisms.noise import IntegerLaplace, laplace_sum_error
from ..mechanisms.protocols import Integers, Mechanism, Release, Sensitivity, check_source, release
from ..mechanisms.statistics import ROWS, Histogram, require_rows, row_contribution
from ..sampling import Entropy
from ..tables import Source

Floats = NDArray[np.float64]
ALTERNATIVES = ("two-sided", "greater", "less")
# The probability that the noise was larger than a p-value allows for; it is added to the p-value, which is
# therefore never below it. A smaller one widens the range of the nuisance parameter. Chosen by hand,
# not tuned.
FAILURE_PROBABILITY = 1e-6
# A generous bound on the relative rounding error of sums of floats.
_ROUNDING = 1e-9
# Above this scale geometric variables may exceed 64 bits, and numpy would return the largest integer for
# them.
_LARGEST_DISCRETE_SCALE = 2.0**50


@described("adaptive.TestResult")
class TestResult:
    """Holds the noisy statistic and its p-value.

    `people`: the noisy number of people (one row each) who were compared, where the test released it.
    """

    statistic: float
    pvalue: float
    people: int | None = None

    # pytest would take a class whose name begins with Test for a class of tests
    __test__: ClassVar[bool] = False


# Limits of fields: the public facts of a table whose unit of privacy is one row; an alternative; a number of
# simulations.
RowFacts = Annotated[Public, ROWS]
Alternative = Annotated[str, among(ALTERNATIVES)]
Runs = Annotated[int, at_least(99), at_most(1_000_000)]


def check_columns(**columns: Any) -> None:
    """Refuse arguments that are not names of columns, or name the same column twice."""
    for argument, column in columns.items():
        _require.must(isinstance(column, str), argument, column, "the name of a column")
    if len(set(columns.values())) < len(columns):
        first = next(iter(columns.values()))
        raise InvalidInput(f"{' and '.join(columns)} are the same column {first!r}. Name two columns.")


def _check_chance(**named: Any) -> None:
    """Refuse what is no probability between 0 and 1, also as a float, to which a fraction may round."""
    _require.open_probability(**named)
    _require.open_probability(**{name: float(chance) for name, chance in named.items()})


CHANCE = Limit(_check_chance)


def conservative_pvalue(pvalue: float, allowance: float = 0.0) -> float:
    """Return the p-value, rounded up, plus the allowance (such as FAILURE_PROBABILITY); at most 1, and above
    0, because a probability that underflows to 0 is not 0."""
    return min(1.0, pvalue * (1 + _ROUNDING) + allowance + 1e-300)


def survival(points: Any, scale: float) -> Floats:
    """Return P(L >= m) for discrete Laplace noise L."""
    m = np.asarray(points, dtype=np.float64)
    upper = np.exp(-np.where(m >= 1, m, 1 - m) / scale) / (1 + math.exp(-1 / scale))
    tails: Floats = np.where(m >= 1, upper, 1 - upper)
    return tails


def random_source(entropy: Entropy) -> np.random.Generator:
    """Return a generator for simulations under the null hypothesis. They read no data, so that a fast
    pseudo-random generator is enough."""
    return np.random.default_rng(entropy.integer(128))


def simulated(random: np.random.Generator, scale: float, shape: tuple[int, ...]) -> Floats:
    """Draw discrete Laplace noise for simulations, as the difference of two geometric variables. For very
    large scales draw rounded continuous Laplace noise: the two differ by less than the resolution of
    floats."""
    if scale > _LARGEST_DISCRETE_SCALE:
        return np.rint(random.laplace(0.0, scale, shape))
    success = -math.expm1(-1 / scale)
    noise: Floats = (random.geometric(success, shape) - random.geometric(success, shape)).astype(np.float64)
    return noise


def monte_carlo(observed: float, under_null: Floats) -> float:
    """Return (1 + the number of simulated statistics that are at least the observed one) / (1 + their
    number): a p-value that is valid for any number of simulations."""
    return float((1 + np.count_nonzero(under_null >= observed)) / (1 + len(under_null)))


def pvalue_for(greater: float, less: float, alternative: str) -> float:
    """Return the p-value for an alternative, from the two one-sided p-values."""
    if alternative == "two-sided":
        return min(1.0, 2 * min(greater, less))
    return greater if alternative == "greater" else less


def values_in(batch: Any, index: int, column: str, public: Public) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the numbers of a column, clipped to its bounds, and which rows have a number."""
    array = arrow_columns.unpacked(batch.column(index))
    bounds = public.bounds(column)
    values = np.clip(
        arrow_columns.numbers(array, column).astype(np.float64), float(bounds.lower), float(bounds.upper)
    )
    return values, arrow_columns.present(array)


def groups_in(
    batch: Any, index: int, column: str, public: Public, groups: tuple[Any, ...]
) -> NDArray[np.int64]:
    """Return, for each row, the index of its category among `groups`, or -1."""
    values = public.categories(column).values
    codes = arrow_columns.categories(arrow_columns.unpacked(batch.column(index)), values, column)
    # the -1 at the end is for code -1, a missing value
    index_of = np.array([*(groups.index(v) if v in groups else -1 for v in values), -1], dtype=np.int64)
    indices: NDArray[np.int64] = index_of[codes]
    return indices


def check_groups(
    public: Public, column: str, groups: Any, at_least: int = 2, at_most: int | None = None
) -> Any:
    """Return the categories to compare: `groups`, or all declared categories where that is None. Refuses
    undeclared or repeated ones, and fewer or more than allowed."""
    declared = public.categories(column).values
    chosen = declared if groups is None else _require.listed(groups=groups)
    known = all(isinstance(v, str | int) and not isinstance(v, bool) and v in declared for v in chosen)
    _require.must(known, "groups", chosen, f"declared categories of column {column!r}")
    fits = len(set(chosen)) == len(chosen) and at_least <= len(chosen) <= (at_most or len(chosen))
    number = f"at least {at_least}" if at_most is None else str(at_most)
    _require.must(fits, "groups", chosen, f"{number} different categories")
    return chosen


# The number of grid points of the uniform variable: p-values are exact up to 2**-32.
_UNIFORM_STEPS = 1 << 32
# The largest number of rows of a test: the binomial distribution is evaluated within 10 standard deviations
# of its mean, in memory. Chosen by hand, not tuned.
_MAX_TRIALS = 10**9


@described("adaptive.YesNo")
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
        check_columns(column=self.column)
        if self.success is not None and not isinstance(self.success, str):
            _require.finite(success=self.success)

    def check(self, public: Public) -> None:
        """Refuse a column whose declaration does not fit `success`."""
        require_rows(public)
        declaration, success = public.fact(self.column), self.success
        if isinstance(declaration, Boolean):
            fits, wanted = success is None, "None: the column is true or false"
        elif isinstance(declaration, Categories):
            fits, wanted = success in declaration.values, f"a declared category of column {self.column!r}"
        else:
            what = f"column {self.column!r} must be declared as Boolean, Categories or Bounds."
            _require.that(isinstance(declaration, Bounds), what)
            fits = success is not None and not isinstance(success, str)
            wanted = "the smallest number that counts as a success"
        _require.must(fits, "success", success, wanted)

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
            codes = groups_in(batch, 0, self.column, public, declaration.values)
            return codes == declaration.values.index(self.success), codes >= 0
        if isinstance(declaration, Bounds):
            values, is_present = values_in(batch, 0, self.column, public)
            return values >= float(self.success), is_present  # type: ignore[arg-type]
        array = arrow_columns.unpacked(batch.column(0))
        return arrow_columns.numbers(array, self.column) != 0, arrow_columns.present(array)


@described("adaptive.ProportionTest")
class ProportionTest(Mechanism):
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
               method is above). Among the probabilities of a one-sided null the tail is
               largest at `chance`.
    """

    public: RowFacts
    column: str
    chance: Annotated[float | Fraction, CHANCE]
    epsilon: Annotated[Real, PRICE]
    success: str | int | float | Fraction | None = None
    alternative: Alternative = "two-sided"
    trials: Annotated[int, at_least(1), at_most(_MAX_TRIALS)] | None = None

    def __post_init__(self) -> None:
        self.statistic.check(self.public)

    @property
    def statistic(self) -> YesNo:
        return YesNo(column=self.column, success=self.success)

    @property
    def noise(self) -> IntegerLaplace:
        sensitivity = 1 if self.trials is not None else self.statistic.sensitivity(self.public)
        return laplace_noise(self.public, self.epsilon, sensitivity)

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
        pvalue = pvalue_for(greater, less, self.alternative)
        # 1e-14 covers the tails that `_binomial` leaves out and the rounding of their complement.
        return TestResult(
            statistic=count + uniform / _UNIFORM_STEPS - 0.5, pvalue=conservative_pvalue(pvalue, 1e-14)
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
        pvalue = pvalue_for(greater, less, self.alternative)
        # twice: a two-sided p-value is twice a one-sided one, to which FAILURE_PROBABILITY is added
        return TestResult(
            statistic=share, pvalue=conservative_pvalue(pvalue, 2 * FAILURE_PROBABILITY), people=rows
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
    tail_above, tail_from = survival(count + 1 - x, scale), survival(count - x, scale)
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
    masses = survival(other, scale) - survival(other + group_width, scale)
    step = max(scale, 1.0) / 32
    s = np.arange(-reach, reach + step, step)
    needed = (s[:, None] + chance * other[None, :]) / (1 - chance)
    table = survival(np.ceil(needed - 1e-9), scale) @ masses + 2 * math.exp(-32)
    table[0] = 1.0
    return float(s[0]), step, np.minimum(table, 1.0)


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
    groups: Annotated[tuple[str | int, ...], LISTED]
    step: Annotated[Fraction, EXACT, POSITIVE] = Fraction(1)
    power: Annotated[int, at_least(0), at_most(2)] = 1
    center: Annotated[int, INTEGER] = 0

    def __post_init__(self) -> None:
        check_columns(column=self.column, group=self.group)

    def length(self, public: Public) -> int:
        return len(self.groups)

    def range(self, public: Public) -> tuple[int, int]:
        """Return the smallest and the largest summand."""
        grid = arrow_columns.ColumnGrid(public.bounds(self.column), self.step, self.column)
        ends = [(extreme - self.center) ** self.power for extreme in (grid.low, grid.high)]
        if self.power == 2 and grid.low <= self.center <= grid.high:
            ends.append(0)
        within = max(abs(end) for end in ends) < arrow_columns.LIMIT
        _require.that(within, f"column {self.column!r} has too many steps of {self.step}.")
        return min(ends), max(ends)

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        check_groups(public, self.group, self.groups, at_least=1)
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
            group = groups_in(batch, 1, self.group, public, self.groups)
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
class TwoSampleMeanTest(Mechanism):
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

    public: RowFacts
    column: str
    group: str
    epsilon: Annotated[Real, PRICE]
    step: Annotated[Real, POSITIVE]
    groups: Annotated[tuple[str | int, ...], LISTED] | None = None
    alternative: Alternative = "two-sided"
    runs: Runs = 9999

    def __post_init__(self) -> None:
        check_columns(column=self.column, group=self.group)
        check_groups(self.public, self.group, self.groups, 2, 2)
        grid = self._grid
        wanted = f"such that the bounds are 1 to {_MAX_STEPS} steps apart"
        _require.must(1 <= grid.high - grid.low <= _MAX_STEPS, "step", self.step, wanted)

    @property
    def statistics(self) -> tuple[GroupSums, GroupSums, GroupSums]:
        """Return the counts, sums and squares, the latter two about the middle of the range."""
        grid = self._grid
        groups = tuple(check_groups(self.public, self.group, self.groups, 2, 2))
        counts = GroupSums(column=self.column, group=self.group, groups=groups, step=grid.step, power=0)
        sums = replace(counts, power=1, center=(grid.low + grid.high) // 2)
        return counts, sums, replace(sums, power=2)

    @property
    def _grid(self) -> arrow_columns.ColumnGrid:
        step = _require.exact(self.step, "step")
        return arrow_columns.ColumnGrid(self.public.bounds(self.column), step, self.column)

    @property
    def noises(self) -> tuple[IntegerLaplace, ...]:
        epsilon = _require.exact(self.epsilon, "epsilon")
        return tuple(
            laplace_noise(
                self.public, epsilon * share / sum(_EPSILON_SHARES), statistic.sensitivity(self.public)
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
        _require.must(part_confidence < 1, "confidence", confidence, "further below 1, such as 0.999")
        counts, sums, _ = self.noises
        return counts.error(part_confidence, entries=2), math.ceil(
            self._grid.step * sums.error(part_confidence, entries=2)
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
        pvalue = self._pvalue(measured, random_source(entropy))
        result = TestResult(
            statistic=statistic * float(self._grid.step),
            # twice: a two-sided p-value is twice a one-sided one, to which FAILURE_PROBABILITY is added
            pvalue=conservative_pvalue(pvalue, 2 * FAILURE_PROBABILITY),
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
            means * fewest + simulated(random, sum_scale, shape),
            fewest + simulated(random, count_scale, shape),
        )
        statistic = float(_difference(measured.sums, measured.counts))
        one_sided = (
            monte_carlo(statistic, simulated_differences),
            monte_carlo(-statistic, -simulated_differences),
        )
        greater, less = (1.0 if pvalue > _LARGEST else pvalue for pvalue in one_sided)
        return pvalue_for(greater, less, self.alternative)


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
class CrossCounts:
    """Counts the rows with each pair of declared categories of `first` and `second`, in row-major order
    (`first` is the row of the table of counts). A row with a missing value is not counted.

    Guarantee: add_remove, zero_out: one row moves one count by 1; replace: two counts, each by 1.
    Proof:     a row is in at most one cell.
    """

    first: str
    second: str

    def __post_init__(self) -> None:
        check_columns(first=self.first, second=self.second)

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
                groups_in(batch, index, name, public, public.categories(name).values)
                for index, name in enumerate((self.first, self.second))
            )
            is_complete = (i >= 0) & (j >= 0)
            total += np.bincount(i[is_complete] * columns + j[is_complete], minlength=rows * columns)
        return total


class _FromCounts(Mechanism):
    """Base of tests that release noisy counts of cells and compute everything else from them."""

    __slots__ = ()
    public: Public
    epsilon: Real

    @property
    @abstractmethod
    def statistic(self) -> Any:
        """The statistic whose values are the counts."""

    @property
    def noise(self) -> IntegerLaplace:
        sensitivity = self.statistic.sensitivity(self.public)
        return laplace_noise(self.public, self.epsilon, sensitivity)

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
                counts, (least, largest), float(self.noise.scale), random_source(entropy)
            )
        result = TestResult(
            statistic=statistic, pvalue=conservative_pvalue(pvalue, FAILURE_PROBABILITY), people=people
        )
        # `error_in_scores`: the error is that of the noisy counts, not of the p-value.
        return release(result, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)

    @abstractmethod
    def _statistic_and_pvalue(
        self, counts: Floats, people: tuple[int, int], scale: float, random: np.random.Generator
    ) -> tuple[float, float]:
        """Return the statistic of noisy counts, and its simulated p-value. `people` are the smallest and the
        largest number of people that the noise allows; `scale` is that of the noise on each count."""


@described("adaptive.GoodnessOfFitTest")
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

    public: RowFacts
    column: str
    shares: tuple[Annotated[float | Fraction, POSITIVE], ...]
    epsilon: Annotated[Real, PRICE]
    runs: Runs = 9999

    def __post_init__(self) -> None:
        check_columns(column=self.column)
        cells = self.statistic.length(self.public)
        _require.that(
            len(self.shares) == cells and cells >= 2 and cells <= _MAX_CELLS,
            f"column {self.column!r} has {cells} declared categories, and there are {len(self.shares)} "
            f"shares: it must be one for each, and from 2 to {_MAX_CELLS}.",
        )
        total = math.fsum(_require.float_or_inf(share) for share in self.shares)
        _require.that(abs(total - 1) < 1e-9, f"the shares add up to {total:.6g}, not to 1.")

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
        noise = simulated(random, scale, (self.runs, len(shares)))
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
        return monte_carlo(
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

    public: RowFacts
    first: str
    second: str
    epsilon: Annotated[Real, PRICE]
    runs: Runs = 4999

    def __post_init__(self) -> None:
        rows, columns = self.statistic.shape(self.public)
        _require.that(
            min(rows, columns) >= 2 and rows * columns <= _MAX_CELLS,
            f"a table of {rows} by {columns} is too small, or has more than {_MAX_CELLS} cells.",
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
        noise = simulated(random, scale, (self.runs, *shape))
        drawn = random.multinomial(largest, shares, self.runs).reshape(self.runs, *shape) + noise
        return statistic, monte_carlo(statistic, _pearson(drawn, scale))


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
