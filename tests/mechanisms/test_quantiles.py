from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import accounting
from discreet._errors import InvalidInput, PrivateFact, Unsupported
from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Categories, Public, Unit
from discreet._registry import from_json, to_json
from discreet.mechanisms.quantiles import (
    ApproximateQuantiles,
    Median,
    Quantile,
    _runs,
    quantile_costs,
    split,
)
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

from ..loops import for_each
from .laws import assert_law, assert_rarely

TOP = 5  # the grid is 0..TOP
QS = [0, Fraction(1, 4), 0.5, 0.9, 1]


def facts(neighbors=ADD_REMOVE, top=TOP, **more):
    return Public(schema={"v": Bounds(0, top)}, neighbors=neighbors, **more)


def column(rows, public):
    return Memory({"v": np.array(rows, dtype=float)}, public)


# --- oracles: the definition, point by point ----------------------------------------------------------------


def distance(rows, t, q):
    """How far q n is from [rows below t, rows up to t]."""
    below, up_to, aim = sum(v < t for v in rows), sum(v <= t for v in rows), q * len(rows)
    return max(Fraction(0), below - aim, aim - up_to)


def law(rows, q, rate, points):
    """rate is per rank."""
    terms = {t: mp.exp(-mp.mpf((r := rate * distance(rows, t, q)).numerator) / r.denominator) for t in points}
    total = mp.fsum(terms.values())
    return {t: term / total for t, term in terms.items()}


def many_law(rows, qs, rates, low, high):
    """The law of the whole recursion, with a rate for each quantile asked of a part."""
    if not qs:
        return {(): mp.mpf(1)}
    middle, left, right = split(qs)
    found = {}
    for at, p in law(rows, middle, rates(middle), range(low, high + 1)).items():
        before = (
            many_law([v for v in rows if v < at], left, rates, low, at - 1)
            if at > low
            else {(at,) * len(left): mp.mpf(1)}
        )
        after = (
            many_law([v for v in rows if v > at], right, rates, at + 1, high)
            if at < high
            else {(at,) * len(right): mp.mpf(1)}
        )
        for (a, pa), (b, pb) in itertools.product(before.items(), after.items()):
            found[(*a, at, *b)] = found.get((*a, at, *b), 0) + p * pa * pb
    return found


def rank_rate(mechanism):
    """What one rank of distance costs in the exponent."""
    q = Fraction(mechanism.q)
    return mechanism._exponential_mechanism().rate * q.denominator


def worst_ratio(one, other):
    return max(abs(mp.log(one[t] / other[t])) for t in one)


# --- one quantile -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "rows"),
    [
        *((q, [0, 1, 1, 1, 4, 5, 5]) for q in QS),
        # without rows every value is as likely as the next, whichever quantile is asked for
        (QS[0], []),
        *(pytest.param(q, [], marks=pytest.mark.slow) for q in QS[1:]),
        *(pytest.param(q, rows, marks=pytest.mark.slow) for q in QS for rows in ([2], [3] * 6)),
    ],
)
def test_a_quantile_follows_the_law_of_its_definition(q, rows):
    public, entropy = facts(), SeededEntropy(7)
    mechanism = Quantile(public=public, column="v", q=q, epsilon=1, step=1)
    exact = Fraction(str(q))
    per_rank = 1 if q in (0, 1) else 1 / (2 * max(exact, 1 - exact))
    assert rank_rate(mechanism) == per_rank
    source = column(rows, public)
    assert_law(
        lambda: mechanism(source, entropy=entropy).value, law(rows, exact, per_rank, range(TOP + 1)), 1500
    )


def test_the_law_check_notices_a_doubled_rate_and_forgotten_weights():
    public, entropy, rows = facts(), SeededEntropy(8), [0, 1, 1, 1, 4, 5, 5]
    source, mechanism = column(rows, public), Quantile(public=facts(), column="v", q=0.5, epsilon=2, step=1)
    with pytest.raises(AssertionError):
        assert_law(
            lambda: mechanism(source, entropy=entropy).value,
            law(rows, Fraction(1, 2), 1, range(TOP + 1)),
            1500,
        )
    wrong = law(rows, Fraction(1, 2), 2, [0, 1, 2, 4, 5]) | {3: 0.0}
    with pytest.raises(AssertionError):  # as if 2 and 3, which share a stretch, counted once
        assert_law(lambda: mechanism(source, entropy=entropy).value, wrong, 1500)


@given(st.lists(st.integers(-4, 9), max_size=12), st.sampled_from(QS))
def test_stretches_cover_the_grid_with_the_right_costs(rows, q):
    rows = sorted(min(max(v, -3), 8) for v in rows)
    runs, exact = _runs(np.array(rows, dtype=np.int64), -3, 8), Fraction(str(q))
    points = [
        t for first, n in zip(runs.first, runs.points, strict=True) for t in range(int(first), int(first + n))
    ]
    assert points == list(range(-3, 9))
    costs = [
        int(c) for c, n in zip(quantile_costs(runs, exact), runs.points, strict=True) for _ in range(int(n))
    ]
    assert costs == [distance(rows, t, exact) * exact.denominator for t in points]


@pytest.mark.parametrize("q", QS)
@pytest.mark.parametrize("neighbors", [ADD_REMOVE, REPLACE, ZERO_OUT])
@given(rows=st.lists(st.integers(0, TOP), max_size=7), old=st.integers(0, TOP), new=st.integers(0, TOP))
@settings(max_examples=25, deadline=None)
def test_a_quantile_is_epsilon_dp_and_of_bounded_range_epsilon(q, neighbors, rows, old, new):
    exact = Fraction(str(q))
    mechanism = Quantile(public=facts(neighbors), column="v", q=q, epsilon=1, step=1)
    other = [*rows, new] if neighbors is REPLACE else rows
    one, two = (law(r, exact, rank_rate(mechanism), range(TOP + 1)) for r in ([*rows, old], other))
    ratios = [mp.log(one[t] / two[t]) for t in one]
    assert max(map(abs, ratios)) <= 1 + 1e-12
    assert max(ratios) - min(ratios) <= 1 + 1e-12


def test_the_price_is_needed_and_half_of_it_would_be_refuted():
    """A wide gap above the median holds nearly all the weight; a row beyond it moves the gap and the points
    below apart."""
    points, half = range(401), Fraction(1, 2)
    price = rank_rate(Quantile(public=facts(), column="v", q=0.5, epsilon=1, step=1))
    for rate, low, high in ((price, 0.9, 1), (2 * price, 1.8, 2)):  # right, and with the sensitivity halved
        worst = worst_ratio(law([1, 1], half, rate, points), law([1, 1, 400], half, rate, points))
        assert low < worst <= high
    replaced = rank_rate(Quantile(public=facts(REPLACE), column="v", q=0.5, epsilon=1, step=1))
    for rate, low, high in ((replaced, 0.9, 1), (price, 1.8, 2)):  # right, and with the price of add_remove
        worst = worst_ratio(law([1, 5, 5], half, rate, points), law([5, 5, 400], half, rate, points))
        assert low < worst <= high


def test_missing_values_count_for_nothing_or_for_the_lower_bound():
    entropy = SeededEntropy(4)
    for nullable, expected in ((True, 5), (False, 0)):
        public = Public(schema={"v": Bounds(0, 5, nullable=nullable)})
        source = Memory({"v": [None] * 200 + [5.0] * 100}, public)
        assert (
            Quantile(public=public, column="v", q=0.5, epsilon=5, step=1)(source, entropy=entropy).value
            == expected
        )


def test_a_blank_that_counts_as_the_lower_bound_is_priced_as_a_replacement():
    public = Public(schema={"v": Bounds(0, 5, nullable=False)}, neighbors=ZERO_OUT)
    assert (
        Quantile(public=public, column="v", q=0.5, epsilon=1, step=1)._exponential_mechanism().sensitivity
        == 2
    )
    assert (
        Quantile(public=facts(ZERO_OUT), column="v", q=0.5, epsilon=1, step=1)
        ._exponential_mechanism()
        .sensitivity
        == 1
    )


@pytest.mark.parametrize("q", [0.1, 0.5, 1])
def test_the_rank_error_holds_and_is_not_idle(q):
    public = facts(top=2**20)
    rows = np.arange(1, 1001) * 1000.0
    source, entropy, exact = column(rows, public), SeededEntropy(13), Fraction(str(q))
    mechanism = Quantile(public=public, column="v", q=q, epsilon=0.5, step=1)
    limit, n = mechanism.error(0.9), 400
    assert limit < 200
    ranks = [distance(rows, mechanism(source, entropy=entropy).value, exact) for _ in range(n)]
    assert_rarely(sum(r > limit for r in ranks), n, 0.1)
    assert max(ranks) > limit / 20


def test_a_fine_grid_costs_only_distinct_values():
    public = facts(top=2**55)
    release = Median(public=public, column="v", epsilon=10, step=1)(
        column([2.0**54] * 50, public), entropy=SeededEntropy(3)
    )
    assert release.value == 2**54


def test_median_is_the_quantile_one_half_and_floats_are_read_as_written():
    median = Median(public=facts(), column="v", epsilon=1, step=0.5)
    assert median == Quantile(public=facts(), column="v", q=Fraction(1, 2), epsilon=1, step=Fraction(1, 2))
    assert Quantile(public=facts(), column="v", q=0.9, epsilon=1, step=1).q == Fraction(9, 10)
    assert from_json(json.loads(json.dumps(to_json(median)))) == median


# --- many quantiles -----------------------------------------------------------------------------------------


def many(
    neighbors=ADD_REMOVE, qs=(Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)), top=3, jitter_bits=0, epsilon=1
):
    return ApproximateQuantiles(
        public=facts(neighbors, top), column="v", qs=qs, epsilon=epsilon, step=1, jitter_bits=jitter_bits
    )


def rates(mechanism):
    return lambda q: mechanism._choice(q).rate * q.denominator


def test_many_quantiles_follow_the_law_of_the_recursion():
    mechanism, rows, entropy = many(epsilon=4), [0, 1, 1, 3, 3], SeededEntropy(14)
    source = column(rows, mechanism.public)
    expected = many_law(rows, mechanism._exact(), rates(mechanism), 0, 3)
    assert mp.fsum(expected.values()) == pytest.approx(1)
    assert_law(lambda: mechanism(source, entropy=entropy).value, expected, 800)
    with pytest.raises(AssertionError):
        assert_law(lambda: many(epsilon=8)(source, entropy=entropy).value, expected, 800)


@pytest.mark.parametrize("neighbors", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("qs", [(0.5,), (0.2, 0.6), (0.25, 0.5, 0.75)])
@given(rows=st.lists(st.integers(0, 3), max_size=6), old=st.integers(0, 3), new=st.integers(0, 3))
@settings(max_examples=12, deadline=None)
def test_many_quantiles_are_epsilon_dp(neighbors, qs, rows, old, new):
    mechanism = many(neighbors, qs)
    other = [*rows, new] if neighbors is REPLACE else rows
    one, two = (many_law(r, mechanism._exact(), rates(mechanism), 0, 3) for r in ([*rows, old], other))
    assert worst_ratio(one, two) <= 1 + 1e-12


def test_forgetting_the_levels_is_refuted():
    """The answers (0, 1) to two questions, with all rows above them and a wide gap above the rows: both
    levels tell."""

    def loss(mechanism):
        first, _, (second,) = split(mechanism._exact())
        rate = rates(mechanism)
        return mp.log(
            mp.fprod(law([2, 2], q, rate(q), range(low, 401))[low] for low, q in enumerate((first, second)))
            / mp.fprod(
                law([2, 2, 400], q, rate(q), range(low, 401))[low] for low, q in enumerate((first, second))
            )
        )

    qs = (Fraction(1, 2), Fraction(3, 4))
    assert 0.8 < loss(many(qs=qs)) <= 1
    assert loss(many(qs=qs, epsilon=2)) > 1.7  # epsilon a level instead of in all


@pytest.mark.parametrize("m", [1, 2, 3, 4, 7, 8, 15])
def test_the_levels_are_the_depth_of_the_recursion_and_their_prices_sum_to_epsilon(m):
    def depth(qs):
        if not qs:
            return 0
        _, left, right = split(qs)
        return 1 + max(depth(left), depth(right))

    mechanism = many(qs=tuple(Fraction(i, m + 1) for i in range(1, m + 1)), epsilon=Fraction(1, 2))
    assert mechanism.levels == depth(mechanism._exact()) == math.floor(math.log2(m)) + 1
    assert accounting.events.leaves(mechanism.event) == {
        accounting.ExponentialMechanism(epsilon=Fraction(1, 2) / mechanism.levels): mechanism.levels
    }


@given(st.lists(st.integers(1, 99), min_size=1, max_size=9, unique=True))
def test_splitting_keeps_denominators_small(numerators):
    def check(qs):
        assert all(0 < q < 1 and q.denominator <= 100 for q in qs)
        if qs:
            _, left, right = split(qs)
            check(left), check(right)

    check([Fraction(n, 100) for n in sorted(numerators)])


def test_many_quantiles_stay_within_their_rank_errors():
    public = facts(top=10**6)
    rows = np.arange(1, 4001) * 200.0
    qs = tuple(Fraction(i, 10) for i in range(1, 10))
    mechanism = ApproximateQuantiles(public=public, column="v", qs=qs, epsilon=4, step=1, jitter_bits=4)
    source, entropy, n = column(rows, public), SeededEntropy(15), 150
    limits, failures, largest = mechanism.error(0.9), 0, 0.0
    assert max(limits) < 150
    for _ in range(n):
        found = mechanism(source, entropy=entropy).value
        assert list(found) == sorted(found)
        ranks = [float(abs(np.searchsorted(rows, v) - q * len(rows))) for v, q in zip(found, qs, strict=True)]
        failures += any(r > limit + 1 for r, limit in zip(ranks, limits, strict=True))
        largest = max(largest, *ranks)
    assert_rarely(failures, n, 0.1)
    assert largest > max(limits) / 20


def test_jitter_tells_equal_values_apart():
    """Nine rows of ten are 7: without jitter the splitting would push most answers off it."""
    public = facts(top=20)
    source = column([7] * 9000 + [15] * 1000, public)
    qs = tuple(Fraction(i, 10) for i in range(1, 9))
    with_jitter = ApproximateQuantiles(public=public, column="v", qs=qs, epsilon=10, step=1)
    assert with_jitter(source, entropy=SeededEntropy(3)).value == (7,) * 8
    without = ApproximateQuantiles(public=public, column="v", qs=qs, epsilon=10, step=1, jitter_bits=0)
    assert without(source, entropy=SeededEntropy(3)).value != (7,) * 8


# --- where the data ends ------------------------------------------------------------------------------------


def test_errors_are_known_at_the_largest_confidence_below_one():
    highest, public = math.nextafter(1, 0), facts()
    many = ApproximateQuantiles(public=public, column="v", qs=(0.25, 0.5, 0.75), epsilon=1, step=1)
    assert all(a < b for a, b in zip(many.error(0.99), many.error(highest), strict=True))


# --- bad input ----------------------------------------------------------------------------------------------


@for_each(
    ("bad", "fact"),
    [
        ({"q": -0.1}, "q must be between 0 and 1"),
        ({"q": 1.5}, "q must be between 0 and 1"),
        ({"q": math.nan}, "q must be a number"),
        ({"q": Fraction(1, 10**7)}, "q must be a fraction with a denominator of at most 1000000"),
        ({"q": "half"}, "q must be a number"),
        ({"epsilon": 0}, "epsilon must be above zero"),
        ({"epsilon": math.inf}, "epsilon must be finite"),
        ({"epsilon": math.nan}, "epsilon must be a number"),
        ({"step": 0}, "step must be above zero"),
        ({"step": -1}, "step must be above zero"),
        ({"step": math.inf}, "step must be finite"),
        ({"step": 2.0**-80}, "reach further than"),
    ],
)
def test_bad_parameters_of_a_quantile_are_refused(bad, fact):
    with pytest.raises(InvalidInput, match=fact):
        Quantile(**({"public": facts(), "column": "v", "q": 0.5, "epsilon": 1, "step": 1} | bad))


@for_each(
    ("bad", "fact"),
    [
        ({"qs": ()}, "qs must not be empty"),
        ({"qs": (0.5, 0.2)}, "qs must be increasing and strictly between 0 and 1"),
        ({"qs": (0.5, 0.5)}, "qs must be increasing and strictly between 0 and 1"),
        ({"qs": (0, 0.5)}, "qs must be increasing and strictly between 0 and 1"),
        ({"qs": (0.5, 1)}, "qs must be increasing and strictly between 0 and 1"),
        ({"epsilon": -1}, "epsilon must be above zero"),
        ({"jitter_bits": -1}, "jitter_bits must be an integer of at least 0"),
        ({"jitter_bits": 62}, "Use a larger step or less jitter"),
        ({"step": 0}, "step must be above zero"),
    ],
)
def test_bad_parameters_of_many_quantiles_are_refused(bad, fact):
    with pytest.raises(InvalidInput, match=fact):
        ApproximateQuantiles(
            **({"public": facts(), "column": "v", "qs": (0.5,), "epsilon": 1, "step": 1} | bad)
        )


def test_undeclared_columns_categories_and_units_of_many_rows_are_refused():
    build = {"q": 0.5, "epsilon": 1, "step": 1}
    with pytest.raises(PrivateFact, match="nothing is declared of column 'w'"):
        Quantile(public=facts(), column="w", **build)
    with pytest.raises(InvalidInput, match="'v' is declared as categories"):
        Quantile(public=Public(schema={"v": Categories(["a"])}), column="v", **build)
    with pytest.raises(Unsupported, match="the unit of privacy is all rows of"):
        Quantile(public=facts(unit=Unit("person")), column="v", **build)


def test_many_quantiles_need_a_common_denominator_so_that_costs_stay_in_64_bits() -> None:
    # a part's quantile is (q - p) / (p' - p): with these its denominator has 60 bits, and costs of a thousand
    # rows would wrap
    primes = (999983, 999979, 999961, 999959, 999953, 999931, 999917)
    qs = tuple(Fraction(round(prime * i / 8), prime) for i, prime in enumerate(primes, 1))
    public = Public(schema={"x": Bounds(0, 1000)})
    with pytest.raises(InvalidInput, match="common denominator"):
        ApproximateQuantiles(public=public, column="x", qs=qs, epsilon=1, step=1)
    fine = ApproximateQuantiles(public=public, column="x", qs=(0.123457, 0.5, 0.876543), epsilon=1, step=1)
    assert fine.levels == 2
