"""Whole numbers that keep sums: nearest, within one, ties by a public rule."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import InvalidInput
from discreet.inference import round_to_total

LAW = settings(max_examples=80, deadline=None)
seeds = st.integers(0, 2**32 - 1)


@LAW
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_each_is_within_one_and_the_sum_is_kept(values):
    x = round_to_total(values)
    assert x.dtype == np.int64
    assert (np.abs(x - values) < 1 + 1e-6).all()
    assert abs(x.sum() - sum(values)) <= 0.5 + 1e-6


@LAW
@given(st.lists(st.integers(0, 12), min_size=1, max_size=7))
def test_no_other_integers_with_that_sum_are_nearer(quarters):
    values = np.array(quarters) / 4
    x = round_to_total(values)
    best = min(
        sum((b + u - v) ** 2 for b, u, v in zip(np.floor(values), up, values, strict=True))
        for up in product((0, 1), repeat=len(values))
        if (np.floor(values) + up).sum() == x.sum()
    )
    assert np.sum((x - values) ** 2) == pytest.approx(best)


def test_ties_go_to_the_first_and_noise_of_rounding_is_not_a_remainder():
    assert round_to_total([0.5, 0.5, 0.5, 0.5]).tolist() == [1, 1, 0, 0]
    assert round_to_total([2.9999999999, 0.5, 0.5]).tolist() == [3, 1, 0]
    assert round_to_total([0.2, 0.2, 0.2], total=2).tolist() == [1, 1, 0]
    assert round_to_total([-0.5, -0.5]).tolist() == [0, -1]
    assert round_to_total([]).tolist() == []


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: round_to_total([1.5, 1.5], total=9), "too far from the sum"),
        (lambda: round_to_total([1.5, 1.5], total=1), "too far from the sum"),
        (lambda: round_to_total([1.5], total=1.5), "total must be an integer"),
        (lambda: round_to_total([], total=1), "cannot add up to 1"),
        (lambda: round_to_total([1e300]), "below 2\\^52"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(InvalidInput, match=says):
        call()


def test_sums_beyond_the_precision_of_floats_are_exact_or_refused() -> None:
    values = [2.0**51 + 1] * 1001
    assert sum(round_to_total(values).tolist()) == 1001 * (2**51 + 1)
    for values, total in (([1.0], 10**30), ([2.0**52 - 1] * 4096, None)):
        with pytest.raises(InvalidInput, match="2\\^62"):
            round_to_total(values, total)


def test_halves_are_told_from_what_is_just_below_them() -> None:
    """0.49999999999999994 + 0.5 is 1.0 in floats."""
    assert round_to_total([0.49999999999999994]).tolist() == [0]
