"""Randomized response: everyone reports a category drawn from a public channel given their true one (a
randomized-response design), so that no single report can be held against anyone.

Reports reveal how many people reported, so the relations here are `replace` and `zero_out` (the number of
units is public); under `add_remove` the mechanism is refused.

Defines designs of randomized response: the probability of each report given each truth, as exact
rationals.

A `Kary` favors the truth and treats all other categories alike; a `Channel` is any matrix of probabilities.
Both are sampled exactly, estimate the true counts from the counts of reports without bias, and say how far
off they may be. They act on arrays of category numbers; `RandomizedResponse` runs them on a table.

`Support` has the probabilities, estimates and variances of all responses that treat categories alike: of
`Kary`, and of the frequency oracles of `local`. The draws are not shared. Those of `local` must be the same
in a browser, which limits them to integer odds below 2**52; here odds are any rational numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _require, _round, sampling
from .._errors import InvalidInput
from .._public import REPLACE, ZERO_OUT, Neighbors, Public, require_relation
from .._registry import described
from .._require import (
    EXACT,
    LISTED,
    OPEN_PROBABILITY,
    POSITIVE,
    PROBABILITY,
    Limit,
    Real,
    at_least,
    at_most,
    instance_of,
)
from ..accounting import Event, PureDP
from ..accounting import RandomizedResponse as RandomizedResponseEvent
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns, noise
from .protocols import Mechanism, Release, check_source, release
from .statistics import ROWS

# numbers of categories, from 0
Codes = NDArray[np.int64]
Rows = tuple[tuple[Fraction, ...], ...]
People = Annotated[int, at_least(1)]
Confidence = Annotated[float, OPEN_PROBABILITY]
# Beyond this a false report is e^500 times less likely than a true one, and the exact integers of such odds
# would be needlessly long.
_LARGEST_EPSILON = 500


class Support(NamedTuple):
    """Says that a report supports its sender's category with probability `p`, and any one other category with
    probability `q` (a pure protocol, Wang et al. 2017). Of k-ary randomized response a report supports the
    category that it names.

    Counts and shares may be numbers or arrays. They are computed exactly from fractions, in floats from
    floats.
    """

    p: Any
    q: Any

    @classmethod
    def of_odds(cls, odds: Fraction, categories: int) -> Support:
        """Return that of k-ary randomized response, k = `categories`, where the truth is `odds` times as
        likely as each other category."""
        return cls(odds / (odds + categories - 1), 1 / (odds + categories - 1))

    def as_floats(self) -> Support:
        return Support(float(self.p), float(self.q))

    def unbiased(self, supports: Any, people: int = 1) -> Any:
        """Return the unbiased estimate (c - N q) / (p - q) of how many of N = `people` have a category, from
        the number c of reports that support it; or of their share from the share of such reports."""
        return (supports - people * self.q) / (self.p - self.q)

    def variance(self, own: Any, others: Any, people: int = 1) -> Any:
        """Return the variance of `unbiased`, divided by `people`, if `own` people have the category and
        `others` have not: their reports support it independently."""
        p, q = self
        return (own * p * (1 - p) + others * q * (1 - q)) / (people * (p - q) ** 2)

    def moments(self) -> tuple[float, float]:
        """Return (width, unit_variance) of `deviation` for one person's part of `unbiased`, rounded up."""
        return _round.up(1 / (self.p - self.q)), _round.up(max(self.variance(1, 0), self.variance(0, 1)))


def deviation(people: int, width: float, unit_variance: float, log_term: float) -> float:
    """Return an upper bound on the distance of a sum over `people` from its mean.

    Guarantee: the sum of independent terms, each in an interval of length `width` and of variance at most
               `unit_variance`, is further off with probability at most 2 exp(-log_term).
    Proof:     the smaller of Hoeffding's bound and Bernstein's.
    """
    third = width * log_term / 3
    hoeffding = width * math.sqrt(people * log_term / 2)
    # not third**2, which raises an OverflowError where the product is infinite
    bernstein = third + math.sqrt(third * third + 2 * people * unit_variance * log_term)
    return min(hoeffding, bernstein)


def codes_below(array: NDArray[Any], domain: int, what: str = "values") -> Codes:
    """Return an array of integers from 0 to domain - 1, or raise an error that shows no value; `what` names
    the integers in it."""
    _require.that(
        array.dtype.kind in "iu", f"{what} must be integers from 0 to {domain - 1}, got {array.dtype}."
    )
    within = not array.size or (int(array.min()) >= 0 and int(array.max()) < domain)
    _require.that(within, f"{what} must be integers from 0 to {domain - 1}.")
    return array.astype(np.int64, copy=False)


class ResponseDesign(ABC):
    """Provides what `Kary` and `Channel` have in common: how reports become estimates."""

    __slots__ = ()

    @property
    @abstractmethod
    def truths(self) -> int:
        """The number of true categories."""

    @property
    @abstractmethod
    def reports(self) -> int:
        """The number of different reports."""

    @property
    @abstractmethod
    def ratio(self) -> Fraction:
        """The largest ratio of the probabilities that two truths give to one report: exp(epsilon),
        exactly."""

    @property
    def epsilon(self) -> float:
        """ln(ratio), rounded up."""
        return noise.log_above(self.ratio)

    def event(self, neighbors: Neighbors) -> Event:
        """Return the price of one report for the person who gives it."""
        return PureDP(epsilon=self.epsilon, neighbors=neighbors)

    @abstractmethod
    def respond(self, codes: Codes, entropy: Entropy) -> Codes:
        """Draw one report for each truth. Truths are numbered from 0; every draw is independent and exact."""

    @abstractmethod
    def estimate(self, counts: Sequence[int]) -> tuple[Fraction, ...]:
        """Return unbiased estimates of the true counts, from the counts of reports."""

    @abstractmethod
    def variance(self, counts: Sequence[int]) -> tuple[Fraction, ...]:
        """Return estimates of the variances of `estimate`, due to the random reports alone, from the counts
        of reports."""

    @_require.check_options
    def error(self, people: People, confidence: Confidence = 0.95) -> float:
        """Return an upper bound on the distance of every estimated count from the true one; it holds with
        probability `confidence`.

        Proof: an estimate is a sum of independent terms, one per person. `deviation`, with a union bound over
               the categories.
        """
        log_term = math.log(2 * self.truths / (1 - confidence))
        return max(deviation(people, *moments, log_term) for moments in self._moments()) * (1 + 1e-12)

    @abstractmethod
    def _moments(self) -> list[tuple[float, float]]:
        """Return the (width, unit_variance) of `deviation` for one person's part of the estimate of each
        category; one pair if all are alike."""

    def _check_codes(self, codes: Any) -> Codes:
        """Return codes as integers; refuse numbers of no category."""
        array = np.asarray(codes)
        _require.that(array.ndim == 1, f"codes must be a one-dimensional array, got {array.ndim} dimensions.")
        return codes_below(array, self.truths, "codes")

    def _check_counts(self, counts: Sequence[int]) -> list[int]:
        """Return counts of reports as integers; there is one for each kind of report."""
        kinds = self.reports
        _require.that(len(counts) == kinds, f"there are {kinds} kinds of report, got {len(counts)} counts.")
        for count in counts:
            _require.integer(count=count, at_least=0)
        return [int(count) for count in counts]


def _check_odds(**named: Real) -> None:
    """Refuse odds at which a report says nothing about the truth."""
    _require.positive(**named)
    for name, odds in named.items():
        _require.must(odds > 1, name, odds, "above 1, or the reports say nothing")


@described("mechanisms.Kary")
class Kary(ResponseDesign):
    """Reports the truth `odds` times as likely as each of the other categories: k-ary randomized response,
    with k = `categories`.

    Guarantee: one report is ln(odds)-DP for the person who gives it. No epsilon-DP report of a category is
               true more often than with odds = exp(epsilon), where it is true with probability p =
               exp(epsilon) / (exp(epsilon) + k - 1), for two categories exp(epsilon) / (1 + exp(epsilon)).
    Proof:     p = odds / (odds + k - 1) and q = 1 / (odds + k - 1) are the only two entries of the design, so
               the ratio in every column is p / q = odds. For the second claim: if truth i is reported truly
               with probability p_i, every other truth reports i with at least p_i exp(-epsilon); summing a
               row, p_j + exp(-epsilon) sum_{i != j} p_i <= 1, and the mean of these over j is mean(p) (1 +
               (k-1) exp(-epsilon)) <= 1.
    Assumes:   `entropy` yields independent uniform bits.

    >>> Kary(categories=2, odds=3).truth_probability      # two coins: Warner's design as it is often taught
    Fraction(3, 4)
    >>> Kary(categories=100, odds=3).truth_probability    # a 10 x 10 grid of locations at epsilon = ln 3
    Fraction(1, 34)
    """

    categories: Annotated[int, at_least(2)]
    odds: Annotated[Real, Limit(_check_odds)]

    @property
    def truths(self) -> int:
        return self.categories

    @property
    def reports(self) -> int:
        return self.categories

    @property
    def ratio(self) -> Fraction:
        return _require.exact(self.odds, "odds")

    @property
    def support(self) -> Support:
        """The probabilities of the truth and of each other category, exactly."""
        return Support.of_odds(self.ratio, self.categories)

    @property
    def truth_probability(self) -> Fraction:
        return Fraction(self.support.p)

    @property
    def other_probability(self) -> Fraction:
        return Fraction(self.support.q)

    def event(self, neighbors: Neighbors) -> Event:
        return RandomizedResponseEvent(epsilon=self.epsilon, categories=self.categories, neighbors=neighbors)

    def respond(self, codes: Codes, entropy: Entropy) -> Codes:
        """Report the truth with probability p - q, otherwise a category drawn uniformly from all k.

        The second case has probability 1 - p + q = k q, so the truth is reported with probability p - q +
        (k q) / k = p, and each other category with q.
        """
        true_codes, (p, q) = self._check_codes(codes), self.support
        honest = sampling.bernoulli(p - q, len(true_codes), entropy)
        anything = sampling.uniform_below(self.categories, len(true_codes), entropy)
        return np.where(honest, true_codes, anything)

    def estimate(self, counts: Sequence[int]) -> tuple[Fraction, ...]:
        """Return (c - N q) / (p - q) for each category: c is the count of its reports, N the sum of all
        counts, p and q are `truth_probability` and `other_probability`."""
        exact, support = self._check_counts(counts), self.support
        people = sum(exact)
        return tuple(support.unbiased(count, people) for count in exact)

    def variance(self, counts: Sequence[int]) -> tuple[Fraction, ...]:
        """Return (t p (1-p) + (N-t) q (1-q)) / (p-q)^2 for t people of a category and N - t others, with the
        unbiased estimate of t; so it is unbiased, too. c, N, p and q are as in `estimate`.

        It equals (N q (1-q) + (c - N q)(1-p-q)) / (p-q)^2, which is never negative.
        """
        true_counts, people = self.estimate(counts), sum(counts)
        return tuple(self.support.variance(count, people - count) for count in true_counts)

    def _moments(self) -> list[tuple[float, float]]:
        return [self.support.moments()]


# The tag stands in ledgers and stays, though it is not the name of the class.
@described("mechanisms.Design")
class Channel(ResponseDesign):
    """Reports truth i as j with probability `rows[i][j]`: any design (a channel, in information theory).

    Guarantee: one report is ln(ratio)-DP, with ratio the largest quotient of two entries of one column.
    Proof:     that quotient is P(report j | truth i) / P(report j | truth i'), by definition.
    Assumes:   `entropy` yields independent uniform bits.

    Entries are taken exactly (a float at its binary value) and every row must sum to exactly 1: use
    fractions.

    >>> Channel(rows=((Fraction(3, 4), Fraction(1, 4)), (Fraction(1, 4), Fraction(3, 4)))).ratio
    Fraction(3, 1)
    """

    rows: tuple[tuple[Annotated[Fraction, EXACT], ...], ...]

    def __post_init__(self) -> None:
        rows = self.rows
        if len(rows) < 2 or len({len(row) for row in rows}) > 1 or len(rows[0]) < len(rows):
            raise InvalidInput(
                f"a design needs at least two rows of one length, and at least as many reports as "
                f"truths; got row lengths "
                f"{[len(row) for row in rows]}."
            )
        for row in rows:
            if any(p < 0 for p in row) or sum(row) != 1:
                raise InvalidInput(
                    f"each row of a design must be probabilities, none negative, that sum to exactly 1, got "
                    f"a sum of {float(sum(row))!r} and a least entry of {float(min(row))!r}. Use fractions."
                )
        for j, column in enumerate(zip(*rows, strict=True)):
            _require.that(
                min(column) != 0 or max(column) <= 0,
                f"report {j} is possible for some truths and impossible for others: no epsilon "
                f"covers that. Give every truth a positive probability of it.",
            )
        # refuses rows that are linearly dependent
        self._weights()

    @property
    def weights(self) -> list[list[int]]:
        """The rows as integers: each is multiplied by the common denominator of its probabilities."""
        return [[int(p * math.lcm(*(q.denominator for q in row))) for p in row] for row in self.rows]

    @property
    def truths(self) -> int:
        return len(self.rows)

    @property
    def reports(self) -> int:
        return len(self.rows[0])

    @property
    def ratio(self) -> Fraction:
        columns = zip(*self.rows, strict=True)
        return max((max(c) / min(c) for c in columns if max(c) > 0), default=Fraction(1))

    def respond(self, codes: Codes, entropy: Entropy) -> Codes:
        true_codes = self._check_codes(codes)
        reported = np.empty(len(true_codes), np.int64)
        for truth, weights in enumerate(self.weights):
            members = np.flatnonzero(true_codes == truth)
            reported[members] = sampling.categorical(weights, len(members), entropy)
        return reported

    def estimate(self, counts: Sequence[int]) -> tuple[Fraction, ...]:
        """Return A c, with A = (P P^T)^-1 P, P the matrix `rows` and c the counts of reports.

        With t the true counts, the expectation of c is P^T t, and so that of A c is t. If P is square, A is
        the inverse of P^T.
        """
        exact = self._check_counts(counts)
        return tuple(
            sum((a * c for a, c in zip(row, exact, strict=True)), Fraction(0)) for row in self._weights()
        )

    def variance(self, counts: Sequence[int]) -> tuple[Fraction, ...]:
        """Return sum_i t_i sum_j A_lj^2 P_ij - t_l for each category l, with t estimated. A negative result
        is raised to zero; before that the estimate is unbiased. A, P and t are as in `estimate`.

        Proof: a person of truth i adds A_lj to estimate l with probability P_ij, which has the mean 1 if i =
               l and 0 otherwise (A P^T is the identity).
        """
        true_counts = self.estimate(counts)
        squares = [
            [sum(a * a * p for a, p in zip(w, row, strict=True)) for row in self.rows]
            for w in self._weights()
        ]
        second_moments = [
            sum((s * t for s, t in zip(row, true_counts, strict=True)), Fraction(0)) for row in squares
        ]
        return tuple(
            max(total - own, Fraction(0)) for total, own in zip(second_moments, true_counts, strict=True)
        )

    def _weights(self) -> Rows:
        """Return the matrix A of `estimate`."""
        return _left_inverse(self.rows)

    def _moments(self) -> list[tuple[float, float]]:
        moments = []
        for own, weights in enumerate(self._weights()):
            unit = [
                sum(a * a * p for a, p in zip(weights, row, strict=True)) - (i == own)
                for i, row in enumerate(self.rows)
            ]
            moments.append((_round.up(max(weights) - min(weights)), _round.up(max(unit))))
        return moments


@_require.check_options
def optimal_response_design(
    categories: int, epsilon: Annotated[Real, POSITIVE, at_most(_LARGEST_EPSILON)]
) -> Kary:
    """Return the best design for `epsilon`: odds = exp(epsilon), rounded towards privacy by less than one
    part in 10**18.

    >>> float(optimal_response_design(2, 1.0).truth_probability)     # e / (1 + e)
    0.7310585786300049
    """
    return Kary(categories=categories, odds=noise.exp_below(_require.exact(epsilon, "epsilon")))


@_require.check_options
def two_coins(
    truth: Annotated[Real, OPEN_PROBABILITY] = Fraction(1, 2),
    yes: Annotated[Real, OPEN_PROBABILITY] = Fraction(1, 2),
) -> Channel:
    """Return the randomized response of two coins (Warner 1965): toss a coin; heads, tell the truth; tails,
    toss another and say what it says.

    Categories are (no, yes); `truth` and `yes` are the probabilities of heads of the two coins. With two fair
    coins epsilon is ln 3.

    >>> two_coins().ratio
    Fraction(3, 1)
    """
    honest, coin = _require.exact(truth, "truth"), _require.exact(yes, "yes")
    # tails of the first coin, and then "yes" or "no" of the second
    tails_yes, tails_no = (1 - honest) * coin, (1 - honest) * (1 - coin)
    return Channel(rows=((honest + tails_no, tails_yes), (tails_no, honest + tails_yes)))


@_require.check_options
def grid_response_design(side: Annotated[int, at_least(2)], epsilon: Real) -> Kary:
    """Return the design that reports a cell in a side x side grid of locations: the true cell with
    probability exp(epsilon) / (exp(epsilon) + side**2 - 1)."""
    return optimal_response_design(side * side, epsilon)


@_require.check_options
def yes_fraction_variance(
    p: Annotated[Real, OPEN_PROBABILITY], people: People, fraction: Annotated[Real, PROBABILITY] | None = None
) -> Fraction:
    """Return the variance of Warner's estimate of the fraction of people with the truth "yes", if each of N =
    `people` answers truly with probability p.

    The random answers contribute (1/N) (1 / (16 (p - 1/2)^2) - 1/4). If `fraction` = pi is given, the
    variance pi (1 - pi) / N of drawing the N people from a population with that fraction is added.
    """
    exact = _require.exact(p, "p")
    _require.must(exact != Fraction(1, 2), "p", p, "different from 1/2, or the reports say nothing")
    coins = (1 / (16 * (exact - Fraction(1, 2)) ** 2) - Fraction(1, 4)) / people
    if fraction is None:
        return coins
    share = _require.exact(fraction, "fraction")
    return coins + share * (1 - share) / people


def _gram(rows: Rows) -> list[list[Fraction]]:
    """Return P P^T for the matrix P = `rows`."""
    return [[sum((a * b for a, b in zip(x, y, strict=True)), Fraction(0)) for y in rows] for x in rows]


@lru_cache(maxsize=64)
def _left_inverse(rows: Rows) -> Rows:
    """Return (P P^T)^-1 P for the matrix P = `rows`."""
    inverse = _inverse(_gram(rows))
    if inverse is None:
        raise InvalidInput(
            "the rows of the design are linearly dependent: the true counts cannot be estimated. Change a "
            "row, so that none is a linear combination of the others."
        )
    columns = list(zip(*rows, strict=True))
    return tuple(
        tuple(sum((a * b for a, b in zip(row, c, strict=True)), Fraction(0)) for c in columns)
        for row in inverse
    )


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]] | None:
    """Return the exact inverse by elimination, or None where there is none."""
    size = len(matrix)
    work = [list(row) + [Fraction(int(i == j)) for j in range(size)] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next((i for i in range(column, size) if work[i][column] != 0), None)
        if pivot is None:
            return None
        work[column], work[pivot] = work[pivot], work[column]
        scale = work[column][column]
        work[column] = [value / scale for value in work[column]]
        for i in range(size):
            factor = work[i][column]
            if i != column and factor != 0:
                work[i] = [a - factor * b for a, b in zip(work[i], work[column], strict=True)]
    return [row[size:] for row in work]


@described("mechanisms.Reports")
class Reports:
    """Holds the released values: how often each report was given, and the estimates of the true counts.

    `counts` has one entry per kind of report of the design. `estimates` and `standard_errors` have one per
    category, in the order of `categories`. All of it is computed from the reports alone.
    """

    categories: Annotated[tuple[str | int | None, ...], LISTED]
    counts: Annotated[tuple[int, ...], LISTED]
    estimates: Annotated[tuple[float, ...], LISTED]
    standard_errors: Annotated[tuple[float, ...], LISTED]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the estimates, so that intervals can be built around them."""
        return np.array(self.estimates, dtype=dtype)


@described("mechanisms.RandomizedResponse")
class RandomizedResponse(Mechanism):
    """Passes everyone's value of `column` through a randomized-response design; releases the counts of
    reports and unbiased estimates.

    Give `epsilon` for the best design over the declared categories, or a design of your own as `lottery`, the
    name under which ledgers store it. With `missing`, having none of the declared values is one more category
    (the last). Without it, someone without a declared value reports as if theirs had been drawn uniformly,
    which adds 1/k of the number of such people to the estimate of each of the k categories.

    Guarantee: epsilon-DP under replace and zero_out, also locally: each single report is epsilon-DP.
    Proof:     all reports are independent, and neighbors differ in the truth of one. Rows of the design
               differ by a factor of at most exp(epsilon) in each report. The report of someone without a
               value follows the mean of the rows, and the divergence from (and to) a mean is at most the
               largest from (and to) one of the rows, by joint convexity; so the event is right for them too.
               A blank row of zero_out is someone without a value.
    Assumes:   one row per person; the number of rows is public.
    """

    public: Annotated[Public, ROWS]
    column: str
    epsilon: Real | None = None
    lottery: Annotated[Kary | Channel, instance_of(Kary | Channel, "a Kary or a Channel")] | None = None
    missing: bool = False

    def __post_init__(self) -> None:
        require_relation(
            self.public.neighbors,
            REPLACE,
            ZERO_OUT,
            what="randomized response, which shows how many people reported,",
        )
        _require.that(
            (self.epsilon is None) != (self.lottery is None),
            f"give either epsilon or a design of your own, got epsilon={self.epsilon!r} and "
            f"lottery={self.lottery!r}.",
        )
        _require.that(
            self.design.truths == len(self.labels),
            f"the design is for {self.design.truths} categories and column {self.column!r} has "
            f"{len(self.labels)}.",
        )

    @property
    def labels(self) -> tuple[str | int | None, ...]:
        """The categories, with None last where missing values are one."""
        declared = self.public.categories(self.column).values
        return (*declared, None) if self.missing else declared

    @property
    def design(self) -> Kary | Channel:
        """The design in use: the one that was passed, or the best for epsilon."""
        if self.lottery is not None:
            return self.lottery
        assert self.epsilon is not None
        return optimal_response_design(len(self.labels), self.epsilon)

    @property
    def event(self) -> Event:
        # the odds were rounded below exp(epsilon), so the charge is an upper bound of the cost
        if self.epsilon is not None:
            return RandomizedResponseEvent(
                epsilon=self.epsilon, categories=len(self.labels), neighbors=self.public.neighbors
            )
        return self.design.event(self.public.neighbors)

    def error(self, confidence: float = 0.95) -> float:
        """Return an upper bound on the distance of every estimated count from the true one, which holds for
        all together with probability `confidence`; it needs the declared size."""
        return self.design.error(self.public.declared_size("the error of randomized response"), confidence)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        design = self.design
        counts = np.zeros(design.reports, np.int64)
        for array in arrow_columns.each(source, self.column):
            truths = arrow_columns.categories(array, self.public.categories(self.column).values, self.column)
            counts += np.bincount(
                design.respond(self._fill(truths, entropy), entropy), minlength=design.reports
            )
        report_counts = [int(c) for c in counts]
        reports = Reports(
            categories=self.labels,
            counts=tuple(report_counts),
            # The estimates of a design with nearly equal rows may be beyond floats; then they are infinite.
            estimates=tuple(_require.float_or_inf(x) for x in design.estimate(report_counts)),
            standard_errors=tuple(
                math.sqrt(_require.float_or_inf(v)) for v in design.variance(report_counts)
            ),
        )
        # `error` is defined for one person or more
        people = max(sum(report_counts), 1)
        return release(
            reports,
            event=self.event,
            entropy=entropy,
            error=lambda confidence: design.error(people, confidence),
        )

    def _fill(self, truths: Codes, entropy: Entropy) -> Codes:
        """Give everybody without a declared value the extra category, or one drawn uniformly.

        Without `missing` one is drawn for every row, needed or not, so that the time reveals nothing.
        """
        absent = truths < 0
        if self.missing:
            return np.where(absent, len(self.labels) - 1, truths)
        return np.where(absent, sampling.uniform_below(len(self.labels), len(truths), entropy), truths)
