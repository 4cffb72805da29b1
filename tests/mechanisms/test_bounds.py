from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest

from discreet import accounting
from discreet._errors import InvalidInput, Unsupported
from discreet._public import ADD_REMOVE, REPLACE, Bounds, Public, Unit
from discreet._registry import from_json, to_json
from discreet.mechanisms.bounds import HistogramBounds, doubling
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

from ..loops import for_each
from .laws import assert_rarely


def column(rows, public):
    return Memory({"v": np.array(rows, dtype=float)}, public)


def histogram(public=None, **more):
    return HistogramBounds(
        **({"public": public or Public(), "column": "v", "epsilon": 1, "smallest": 1, "levels": 10} | more)
    )


@pytest.mark.parametrize("neighbors", [ADD_REMOVE, REPLACE])
def test_the_price_is_epsilon_and_the_description_complete(neighbors):
    mechanism = histogram(Public(neighbors=neighbors), epsilon=Fraction(1, 3))
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


def test_edges_are_public_and_missing_values_count_for_nothing():
    assert doubling(0.5, 1).tolist() == [-1, -0.5, 0, 0.5, 1]
    source = Memory({"v": [3.0] * 400 + [None] * 900 + [math.nan] * 900}, Public())
    assert histogram()(source, entropy=SeededEntropy(1)).value == Bounds(2.0, 4.0)


@for_each(
    ("bad", "fact"),
    [
        ({"epsilon": 0}, "epsilon must be above zero"),
        ({"epsilon": math.inf}, "epsilon must be finite"),
        ({"smallest": 0}, "smallest must be above zero"),
        ({"smallest": -1}, "smallest must be above zero"),
        ({"smallest": math.nan}, "smallest must be a number"),
        ({"levels": -1}, "levels must be an integer of at least 0"),
        ({"levels": 2.5}, "levels must be an integer"),
        ({"levels": 5000}, "levels must be at most 1,000"),
        ({"smallest": 1e200, "levels": 900}, "smallest, levels must be such that smallest"),
    ],
)
def test_bad_parameters_are_refused(bad, fact):
    with pytest.raises(InvalidInput, match=fact):
        histogram(**bad)


def test_more_bad_parameters_are_refused():
    for confidence in (0, 1, math.nan):
        with pytest.raises(InvalidInput, match="confidence must be"):
            histogram(confidence=confidence)
    with pytest.raises(Unsupported, match="all rows of one person"):
        histogram(Public(unit=Unit("person")))
    with pytest.raises(InvalidInput, match="no column"):
        histogram()(Memory({"w": [1]}, Public()), entropy=SeededEntropy(1))
