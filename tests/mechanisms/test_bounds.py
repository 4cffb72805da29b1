from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import accounting
from discreet._errors import InvalidInput, Unsupported
from discreet._public import ADD_REMOVE, REPLACE, Bounds, Public, Unit
from discreet._registry import from_json, to_json
from discreet.mechanisms.bounds import BinarySearchBounds, HistogramBounds, doubling
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

from ..loops import for_each
from .laws import assert_law, assert_rarely


def column(rows, public):
    return Memory({"v": np.array(rows, dtype=float)}, public)


def histogram(public=None, **more):
    return HistogramBounds(
        **({"public": public or Public(), "column": "v", "epsilon": 1, "smallest": 1, "levels": 10} | more)
    )


def search(public=None, **more):
    return BinarySearchBounds(
        **({"public": public or Public(), "column": "v", "epsilon": 1, "smallest": 1, "levels": 10} | more)
    )


@pytest.mark.parametrize("build", [histogram, search])
@pytest.mark.parametrize("neighbors", [ADD_REMOVE, REPLACE])
def test_the_price_is_epsilon_and_the_description_complete(build, neighbors):
    mechanism = build(Public(neighbors=neighbors), epsilon=Fraction(1, 3))
    assert accounting.basic(mechanism.event).value == pytest.approx(1 / 3)
    assert from_json(json.loads(json.dumps(to_json(mechanism)))) == mechanism


def test_replace_moves_two_ranges():
    assert histogram().event == accounting.DiscreteLaplace(scale=Fraction(1), sensitivity=1)
    moved = histogram(Public(neighbors=REPLACE)).event
    assert moved == accounting.DiscreteLaplace(scale=Fraction(2), sensitivity=2, neighbors=REPLACE)


@pytest.mark.parametrize("rows", [[], [3] * 30, [3] * 30 + [-700] * 40, [0.5] * 50, [1e9] * 50])
def test_no_end_is_that_of_an_empty_range_and_full_ranges_are_inside(rows):
    mechanism, entropy, n, failures = histogram(confidence=0.9), SeededEntropy(3), 300, 0
    source, edges = column(rows, Public()), doubling(1, 10)
    clipped = np.clip(np.array(rows, dtype=float), edges[0], edges[-1])
    for _ in range(n):
        found = mechanism(source, entropy=entropy).value
        if found is None:
            failures += bool(rows)
            continue
        low, high = np.searchsorted(edges, found.lower), np.searchsorted(edges, found.upper)
        ends = [(edges[low], edges[low + 1]), (edges[high - 1], edges[high])]
        empty = any(not ((clipped >= a) & (clipped <= b)).any() for a, b in ends)
        failures += empty or (clipped < found.lower).any() or (clipped > found.upper).any()
    assert_rarely(failures, n, 0.1)


def test_a_lower_threshold_would_be_refuted():
    """At half its distance the threshold lets empty ranges in far more often than the confidence allows."""
    mechanism, entropy = histogram(confidence=0.9), SeededEntropy(4)
    noise, wrong = mechanism._noise(), 0
    for _ in range(300):
        wrong += bool((noise(np.zeros(22, np.int64), entropy=entropy) >= mechanism.threshold // 2).any())
    with pytest.raises(AssertionError):
        assert_rarely(wrong, 300, 0.1)


def test_rows_left_out_stay_within_the_error():
    rng, entropy, n, failures = np.random.default_rng(2), SeededEntropy(5), 200, 0
    rows = rng.standard_cauchy(400) * 20
    source, mechanism = column(rows, Public()), histogram()
    for _ in range(n):
        release = mechanism(source, entropy=entropy)
        clipped = np.clip(rows, -1024, 1024)
        found = release.value or Bounds(2000, 2001)
        failures += ((clipped < found.lower) | (clipped > found.upper)).sum() > release.error(0.9)
    assert_rarely(failures, n, 0.1)


# --- binary search ------------------------------------------------------------------------------------------


def compare_law(edges, rows, mechanism):
    """The law of both searches, from the definition: at each edge a coin that the noise passes."""
    tail, p = Fraction(mechanism.tail), math.exp(-1 / float(mechanism._noise().scale))
    a, b = tail.numerator, tail.denominator

    def passes(inside):
        signed = a * inside - (b - a) * (len(rows) - inside)  # + noise >= 0
        return 1 - p ** (signed + 1) / (1 + p) if signed >= 0 else p**-signed / (1 + p)

    def one(covered, low, high):
        if high - low == 1:
            return {high: 1.0}
        middle = (low + high) // 2
        chance = passes(covered[middle])
        left, right = one(covered, low, middle), one(covered, middle, high)
        return {i: chance * left.get(i, 0) + (1 - chance) * right.get(i, 0) for i in {*left, *right}}

    last = len(edges) - 1
    highs = one([sum(v <= e for v in rows) for e in edges], 0, last)
    lows = one([sum(v >= e for v in rows) for e in edges[::-1]], 0, last)
    law = {}
    for (i, pi), (j, pj) in itertools.product(highs.items(), lows.items()):
        low, high = min(last - j, i), max(last - j, i)
        key = (edges[low - (low == high)], edges[high])
        law[key] = law.get(key, 0) + pi * pj
    return law


def test_binary_search_follows_its_law():
    mechanism, rows, entropy = search(levels=1, epsilon=8, tail=0.25), [-1, 0, 0.5, 1.5, 2], SeededEntropy(6)
    source, law = column(rows, Public()), compare_law(doubling(1, 1).tolist(), rows, mechanism)
    assert sum(law.values()) == pytest.approx(1)

    def draw(run=mechanism):
        found = run(source, entropy=entropy).value
        return found.lower, found.upper

    assert_law(draw, law, 1500)
    with pytest.raises(AssertionError):
        assert_law(lambda: draw(search(levels=1, epsilon=4, tail=0.25)), law, 1500)


@given(
    rows=st.lists(st.sampled_from([-2, -0.5, 0, 0.5, 1, 2]), max_size=6),
    old=st.sampled_from([-2, 0, 0.5, 2]),
    new=st.sampled_from([-2, 0, 0.5, 2]),
    neighbors=st.sampled_from([ADD_REMOVE, REPLACE]),
)
@settings(max_examples=60, deadline=None)
def test_binary_search_is_epsilon_dp(rows, old, new, neighbors):
    mechanism, edges = search(Public(neighbors=neighbors), levels=1, tail=0.25), doubling(1, 1).tolist()
    other = [*rows, new] if neighbors is REPLACE else rows
    one, two = (compare_law(edges, r, mechanism) for r in ([*rows, old], other))
    assert max(abs(math.log(one[key] / two[key])) for key in one) <= 1 + 1e-9


def test_the_rows_outside_stay_within_the_error():
    rng, entropy, n, failures = np.random.default_rng(4), SeededEntropy(7), 200, 0
    rows = rng.normal(100, 30, 3000)
    source, mechanism = column(rows, Public()), search(tail=0.05, epsilon=2)
    limit = mechanism.error(0.9)
    assert limit < 60
    for _ in range(n):
        found = mechanism(source, entropy=entropy).value
        outside = (rows < found.lower).sum(), (rows > found.upper).sum()
        failures += max(outside) > 0.05 * len(rows) + limit
        edges = doubling(1, 10)
        tighter = edges[np.searchsorted(edges, found.upper) - 1]
        failures += (rows > tighter).sum() < 0.05 * len(rows) - limit
    assert_rarely(failures, n, 0.1)


@pytest.mark.parametrize("levels", [0, 1, 5, 40])
def test_a_search_never_takes_more_comparisons_than_it_paid_for(levels):
    mechanism, entropy = search(levels=levels), SeededEntropy(8)
    asked = []

    class Counted:
        def __getitem__(self, i):
            asked.append(i)
            return 3

        def __len__(self):
            return 2 * levels + 3

    for _ in range(20):
        asked.clear()
        assert 1 <= mechanism._search(Counted(), 4, entropy) <= 2 * levels + 2
        assert len(asked) <= mechanism.steps
    assert mechanism.steps == math.ceil(math.log2(2 * levels + 2))


def test_edges_are_public_and_missing_values_count_for_nothing():
    assert doubling(0.5, 1).tolist() == [-1, -0.5, 0, 0.5, 1]
    source = Memory({"v": [3.0] * 400 + [None] * 900 + [math.nan] * 900}, Public())
    assert histogram()(source, entropy=SeededEntropy(1)).value == Bounds(2.0, 4.0)
    assert search(epsilon=20)(source, entropy=SeededEntropy(1)).value == Bounds(2.0, 4.0)


@for_each("build", [histogram, search])
@for_each(
    "bad",
    [
        {"epsilon": 0},
        {"epsilon": math.inf},
        {"smallest": 0},
        {"smallest": -1},
        {"smallest": math.nan},
        {"levels": -1},
        {"levels": 2.5},
        {"levels": 5000},
        {"smallest": 1e200, "levels": 900},
    ],
)
def test_bad_parameters_are_refused(build, bad):
    with pytest.raises(InvalidInput):
        build(**bad)


def test_more_bad_parameters_are_refused():
    for confidence in (0, 1, math.nan):
        with pytest.raises(InvalidInput):
            histogram(confidence=confidence)
    for tail in (0, 1, -0.5, math.nan, Fraction(1, 10**7)):
        with pytest.raises(InvalidInput):
            search(tail=tail)
    with pytest.raises(Unsupported):
        histogram(Public(unit=Unit("person")))
    with pytest.raises(InvalidInput, match="no column"):
        histogram()(Memory({"w": [1]}, Public()), entropy=SeededEntropy(1))


def test_a_tail_of_half_or_more_on_either_side_is_refused() -> None:
    for tail in (0.5, 0.6):
        with pytest.raises(InvalidInput, match="below 1/2"):
            search(tail=tail)
