"""Randomized response: exact odds, exact laws, unbiased estimates; mutants must fail the same checks."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction as F

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from discreet._errors import DiscreetError, InvalidInput, Unsupported, WrongRelation
from discreet._public import REPLACE, ZERO_OUT, Bounds, Categories, Public, Unit
from discreet._registry import from_json, to_json
from discreet.accounting import PureDP, basic
from discreet.accounting import RandomizedResponse as Event
from discreet.mechanisms import (
    Channel,
    Kary,
    RandomizedResponse,
    grid_response_design,
    optimal_response_design,
    two_coins,
    yes_fraction_variance,
)
from discreet.sampling import SeededEntropy
from discreet.tables import Memory
from tests.contracts.audit import CountingEntropy

from ..loops import for_each

ALPHA = 1e-9
CITIES = ("bern", "paris", "rome")
PUBLIC = Public(schema={"city": Categories(CITIES)}, neighbors=REPLACE)
LOPSIDED = Channel(
    rows=(
        (F(1, 2), F(1, 4), F(1, 8), F(1, 8)),
        (F(1, 5), F(2, 5), F(1, 5), F(1, 5)),
        (F(1, 8), F(1, 8), F(1, 4), F(1, 2)),
    )
)


def as_design(kary: Kary) -> Channel:
    p, q = kary.truth_probability, kary.other_probability
    return Channel(
        rows=tuple(tuple(p if i == j else q for j in range(kary.categories)) for i in range(kary.categories))
    )


@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 1.0, F(1, 3), 7.25, 80])
def test_odds_never_exceed_exp_epsilon_and_miss_it_by_less_than_1e_15(epsilon: float) -> None:
    odds = optimal_response_design(4, epsilon).ratio
    with mpmath.workdps(80):
        exact = mpmath.exp(mpmath.mpf(F(epsilon).numerator) / F(epsilon).denominator)
        got = mpmath.mpf(odds.numerator) / odds.denominator
        assert got <= exact
        assert got >= exact * (1 - mpmath.mpf(10) ** -15)


def test_the_two_coins_of_the_lectures_cost_ln_3() -> None:
    assert two_coins().rows == ((F(3, 4), F(1, 4)), (F(1, 4), F(3, 4)))
    assert two_coins().ratio == 3
    assert math.log(3) <= two_coins().epsilon <= math.log(3) * (1 + 1e-15)
    assert as_design(Kary(categories=2, odds=3)) == two_coins()


def test_the_grid_of_locations_of_the_lectures() -> None:
    assert Kary(categories=100, odds=3).truth_probability == F(3, 102)
    assert abs(float(grid_response_design(10, math.log(3)).truth_probability) - 3 / 102) < 1e-15


def test_the_optimal_p_for_two_categories_is_the_logistic_function() -> None:
    assert (
        abs(float(optimal_response_design(2, 0.7).truth_probability) - math.exp(0.7) / (1 + math.exp(0.7)))
        < 1e-15
    )


def test_no_design_with_the_same_epsilon_is_right_more_often() -> None:
    """A linear program over all 3 x 3 designs: the mean of the diagonal, subject to every ratio being at most
    e."""
    k, ratio = 3, math.e
    rows, equal = [], np.zeros((k, k * k))
    for j, (a, b) in itertools.product(range(k), itertools.permutations(range(k), 2)):
        row = np.zeros(k * k)
        row[a * k + j], row[b * k + j] = 1, -ratio
        rows.append(row)
    for i in range(k):
        equal[i, i * k : (i + 1) * k] = 1
    best = optimize.linprog(
        -np.eye(k).ravel() / k, rows, np.zeros(len(rows)), equal, np.ones(k), bounds=(0, 1)
    )
    assert abs(-best.fun - float(optimal_response_design(3, 1).truth_probability)) < 1e-9


@given(k=st.integers(2, 5), odds=st.fractions(F(11, 10), 50, max_denominator=20), data=st.data())
@settings(max_examples=30, deadline=None)
def test_kary_is_the_design_with_its_matrix(k: int, odds: F, data: st.DataObject) -> None:
    kary = Kary(categories=k, odds=odds)
    counts = data.draw(st.lists(st.integers(0, 50), min_size=k, max_size=k))
    assert as_design(kary).ratio == kary.ratio == odds
    assert as_design(kary).estimate(counts) == kary.estimate(counts)
    assert as_design(kary).variance(counts) == kary.variance(counts)


@pytest.mark.parametrize("lottery", [Kary(categories=3, odds=F(5, 2)), two_coins(F(1, 3), F(1, 5)), LOPSIDED])
def test_estimates_and_their_variances_are_unbiased_exactly(lottery: Kary | Channel) -> None:
    """All reports of four people, enumerated with their exact probabilities."""
    truths = [0, 1, 1, lottery.truths - 1]
    rows = as_design(lottery).rows if isinstance(lottery, Kary) else lottery.rows
    mean, square, claimed = ([F(0)] * lottery.truths for _ in range(3))
    for reports in itertools.product(range(lottery.reports), repeat=len(truths)):
        chance = math.prod(F(rows[t][r]) for t, r in zip(truths, reports, strict=True))
        counts = [reports.count(r) for r in range(lottery.reports)]
        for i, (x, v) in enumerate(zip(lottery.estimate(counts), lottery.variance(counts), strict=True)):
            mean[i] += chance * x
            square[i] += chance * x * x
            claimed[i] += chance * v
    true = [truths.count(i) for i in range(lottery.truths)]
    assert mean == true
    for i, t in enumerate(true):
        variance = square[i] - t * t
        # a variance estimate of a skewed design may be cut off at zero, which only makes it larger
        assert claimed[i] == variance or (lottery is LOPSIDED and claimed[i] >= variance)


def test_the_variance_of_the_lectures_with_its_misprint_corrected() -> None:
    warner = Kary(categories=2, odds=3)
    people, p = 1000, warner.truth_probability
    assert warner.variance([300, 700])[1] / people**2 == yes_fraction_variance(p, people)
    assert yes_fraction_variance(p, people) == (1 / (16 * (p - F(1, 2)) ** 2) - F(1, 4)) / people
    assert yes_fraction_variance(p, people, F(1, 10)) - yes_fraction_variance(p, people) == F(9, 100) / people


def follows(lottery: Kary | Channel, rows: tuple[tuple[F, ...], ...], n: int = 60_000, seed: int = 1) -> None:
    """Exact binomial limits on how often each report is given, all cells together wrong with probability
    ALPHA at most."""
    cells = len(rows) * len(rows[0])
    for truth, row in enumerate(rows):
        reports = lottery.respond(np.full(n, truth), SeededEntropy(seed))
        for j, p in enumerate(row):
            seen = int((reports == j).sum())
            low, high = stats.binom.ppf([ALPHA / cells / 2, 1 - ALPHA / cells / 2], n, float(p))
            assert low <= seen <= high, f"report {j} of truth {truth}"


@pytest.mark.parametrize("lottery", [Kary(categories=3, odds=2), LOPSIDED, two_coins()])
def test_reports_follow_the_design(lottery: Kary | Channel) -> None:
    rows = as_design(lottery).rows if isinstance(lottery, Kary) else lottery.rows
    follows(lottery, rows)


def test_a_lottery_with_other_odds_fails_the_same_check() -> None:
    with pytest.raises(AssertionError, match="report 0 of truth 0"):
        follows(Kary(categories=3, odds=F(23, 10)), as_design(Kary(categories=3, odds=2)).rows)


def test_someone_without_a_value_is_covered_by_the_same_ratio() -> None:
    for lottery in (as_design(Kary(categories=3, odds=4)), LOPSIDED):
        mean = [sum(F(row[j]) for row in lottery.rows) / lottery.truths for j in range(lottery.reports)]
        for row in lottery.rows:
            for m, p in zip(mean, row, strict=True):
                assert max(m / F(p), F(p) / m) <= lottery.ratio


def test_the_mechanism_counts_reports_and_charges_its_event() -> None:
    mechanism = RandomizedResponse(public=PUBLIC, column="city", epsilon=1)
    people = Memory({"city": ["bern"] * 600 + ["paris"] * 300 + ["rome"] * 100}, PUBLIC)
    told = mechanism(people, entropy=SeededEntropy(5))
    assert sum(told.value.counts) == 1000
    assert told.value.categories == CITIES
    assert mechanism.event == Event(epsilon=1, categories=3, neighbors=REPLACE)
    assert basic(mechanism.event).value == 1.0
    low, high = told.interval(1 - ALPHA)
    assert all(a <= t <= b for a, t, b in zip(low, (600, 300, 100), high, strict=True))


def test_missing_values_are_a_category_of_their_own_if_asked() -> None:
    people = Memory({"city": ["bern"] * 500 + [None] * 400 + ["oslo"] * 100}, PUBLIC)
    mechanism = RandomizedResponse(public=PUBLIC, column="city", epsilon=4, missing=True)
    told = mechanism(people, entropy=SeededEntropy(6))
    assert told.value.categories == (*CITIES, None)
    assert abs(told.value.estimates[3] - 500) <= told.error(1 - ALPHA)
    without = RandomizedResponse(public=PUBLIC, column="city", epsilon=4)(people, entropy=SeededEntropy(6))
    assert abs(without.value.estimates[1] - 500 / 3) <= without.error(1 - ALPHA) + 500 / 3 * 0.7


def test_a_design_of_ones_own_is_charged_as_pure_epsilon_rounded_up() -> None:
    mechanism = RandomizedResponse(public=PUBLIC, column="city", lottery=LOPSIDED)
    assert isinstance(mechanism.event, PureDP)
    assert mechanism.event.epsilon >= math.log(4) >= mechanism.event.epsilon * (1 - 1e-15)
    assert LOPSIDED.ratio == 4
    assert from_json(to_json(mechanism)) == mechanism


@pytest.mark.parametrize("lottery", [Kary(categories=2, odds=3), Kary(categories=30, odds=3), LOPSIDED])
def test_the_error_holds_as_often_as_it_says_and_is_not_vacuous(lottery: Kary | Channel) -> None:
    people, runs, confidence = 400, 400, 0.9
    rng = np.random.default_rng(3)
    truths = rng.integers(0, lottery.truths, people)
    true = np.bincount(truths, minlength=lottery.truths)
    width, entropy, good = lottery.error(people, confidence), SeededEntropy(7), 0
    for _ in range(runs):
        counts = np.bincount(lottery.respond(truths, entropy), minlength=lottery.reports).tolist()
        estimates = np.array([float(x) for x in lottery.estimate(counts)])
        good += bool(np.max(np.abs(estimates - true)) <= width)
    assert stats.binom.cdf(good, runs, confidence) > ALPHA
    deviation = math.sqrt(max(float(v) for v in lottery.variance(counts)))
    assert width < 2 * math.sqrt(2 * math.log(2 * lottery.truths / (1 - confidence))) * deviation


def test_add_remove_is_refused_because_reports_show_how_many_there_are() -> None:
    with pytest.raises(WrongRelation, match="how many people reported"):
        RandomizedResponse(public=Public(schema={"city": Categories(CITIES)}), column="city", epsilon=1)


def test_zero_out_is_accepted_and_a_blank_is_someone_without_a_value() -> None:
    public = Public(schema={"city": Categories(CITIES)}, neighbors=ZERO_OUT)
    told = RandomizedResponse(public=public, column="city", epsilon=1)(
        Memory({"city": [None, "bern"]}, public), entropy=SeededEntropy(1)
    )
    assert sum(told.value.counts) == 2


def test_units_of_many_rows_are_refused() -> None:
    public = Public(schema={"city": Categories(CITIES)}, neighbors=REPLACE, unit=Unit("name"))
    with pytest.raises(Unsupported, match="the unit of privacy is all rows of"):
        RandomizedResponse(public=public, column="city", epsilon=1)


@for_each(
    ("build", "fact"),
    [
        (lambda: Kary(categories=1, odds=2), "categories must be an integer of at least 2"),
        (lambda: Kary(categories=2, odds=1), "odds must be above 1, or the reports say nothing"),
        (lambda: Kary(categories=2, odds=math.nan), "odds must be a number"),
        (lambda: Kary(categories=2, odds=math.inf), "odds must be finite"),
        (lambda: optimal_response_design(2, 0), "epsilon must be above zero"),
        (lambda: optimal_response_design(2, math.inf), "epsilon must be finite"),
        (lambda: optimal_response_design(2, 1e9), "epsilon must be at most 500"),
        (lambda: two_coins(truth=1), "truth must be strictly between 0 and 1"),
        (lambda: Channel(rows=((0.9, 0.2), (0.1, 0.8))), "each row of a design must be probabilities"),
        (
            lambda: Channel(rows=((F(1), F(0)), (F(1, 2), F(1, 2)))),
            "is possible for some truths and impossible for",
        ),
        (lambda: Channel(rows=((F(1, 2), F(1, 2)), (F(1, 2), F(1, 2)))), "Change a row, so that none is a"),
        (
            lambda: Channel(rows=((F(3, 2), F(-1, 2)), (F(1, 2), F(1, 2)))),
            "each row of a design must be probabilities",
        ),
        (lambda: Channel(rows=((F(1, 2), F(1, 2)),)), "a design needs at least two rows of"),
        (
            lambda: Channel(rows=((F(1, 2), F(1, 2)), (F(1, 3), F(1, 3), F(1, 3)))),
            "a design needs at least two rows of",
        ),
        (lambda: RandomizedResponse(public=PUBLIC, column="city"), "give either epsilon or a design of your"),
        (
            lambda: RandomizedResponse(
                public=PUBLIC, column="city", epsilon=1, lottery=Kary(categories=3, odds=2)
            ),
            "give either epsilon or a design of your",
        ),
        (
            lambda: RandomizedResponse(public=PUBLIC, column="city", lottery=Kary(categories=2, odds=2)),
            "categories and column",
        ),
        (
            lambda: RandomizedResponse(public=PUBLIC, column="age", epsilon=1),
            "Bounds and categories are never read off the",
        ),
        (
            lambda: RandomizedResponse(
                public=Public(schema={"city": Bounds(0, 1)}, neighbors=REPLACE), column="city", epsilon=1
            ),
            "is declared as a number",
        ),
        (
            lambda: yes_fraction_variance(F(1, 2), 10),
            "p must be different from 1/2, or the reports say nothing",
        ),
    ],
)
def test_bad_input_is_refused(build: object, fact: str) -> None:
    with pytest.raises(DiscreetError, match=fact):
        build()  # type: ignore[operator]


def test_bad_codes_draw_nothing() -> None:
    entropy = CountingEntropy()
    for codes in ([0, 2], [-1], [0.5], [[0]]):
        with pytest.raises(InvalidInput, match="codes must be"):
            two_coins().respond(np.array(codes), entropy)
    assert entropy.drawn == 0


def test_a_design_whose_estimates_are_beyond_floats_is_answered_and_not_lost() -> None:
    """Its third row is nearly a mix of the others; that a variance raised was found out after the charge."""
    public = Public(schema={"c": Categories(["a", "b", "c"])}, neighbors=REPLACE, size=3)
    d = F(1, 10**200)
    rows = (
        (F(1, 2), F(1, 4), F(1, 4)),
        (F(1, 4), F(1, 2), F(1, 4)),
        (F(3, 8), F(3, 8) - d, F(1, 4) + d),
    )
    mechanism = RandomizedResponse(public=public, column="c", lottery=Channel(rows=rows))
    assert mechanism.error() > 1e199
    released = mechanism(Memory({"c": ["a", "b", "a"]}, public), entropy=SeededEntropy(1)).value
    assert sum(released.counts) == 3
    assert max(released.standard_errors) == math.inf
