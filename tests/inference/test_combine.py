"""Several releases as one: precision weights, intervals that meet, tables raked to public margins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet import InvalidInput
from discreet.inference import Estimate, combine, intersect, measured, rake

from ..loops import for_each
from .oracles import assert_variance

LAW = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32 - 1)


@LAW
@given(seeds, st.integers(1, 6), st.integers(1, 4))
def test_combining_equals_least_squares(seed, k, n):
    rng = np.random.default_rng(seed)
    y, v = rng.normal(0, 10, (k, n)), 10.0 ** rng.uniform(-2, 2, (k, n))
    fit = combine(y, v)
    for cell in range(n):
        oracle = measured(np.ones((k, 1)), y[:, cell], v[:, cell])
        assert fit.values[cell] == pytest.approx(oracle.values[0], abs=1e-9)
        assert fit.variances[cell] == pytest.approx(oracle.variances[0])


def test_the_combined_variance_is_that_of_simulated_errors():
    rng = np.random.default_rng(2)
    v = np.array([1.0, 4.0, 0.25])
    draws = rng.normal(0, np.sqrt(v)[:, None], (3, 5000))
    assert_variance(combine(draws, v).values, combine([0.0, 0.0, 0.0], v).variances)
    with pytest.raises(AssertionError, match="variance off"):  # mutant: plain average
        assert_variance(draws.mean(axis=0), combine([0.0, 0.0, 0.0], v).variances)


def test_known_and_unmeasured_values():
    fit = combine([[1.0, 5.0], [3.0, np.nan]], [[0.0, 1.0], [1.0, np.inf]])
    assert fit.values.tolist() == [1, 5]
    assert fit.variances.tolist() == [0, 1]
    assert fit.variance_of([[1, 1]]).tolist() == [1]
    assert combine([[1.0, 2.0, 3.0]], 2.0).variances.tolist() == [2, 2, 2]


def test_intersections_hold_the_truth_as_promised():
    rng = np.random.default_rng(3)
    y = rng.normal(0, 1, (3, 4000))
    met = 0
    for column in y.T:
        try:
            both = intersect(column - 2.5, column + 2.5, 2 * stats.norm.cdf(2.5) - 1)
        except InvalidInput:
            continue
        met += bool(both.lower <= 0 <= both.upper)
    assert met >= stats.binom.ppf(1e-9, 4000, both.confidence)
    assert both.confidence == pytest.approx(1 - 3 * 2 * stats.norm.sf(2.5))


@LAW
@given(seeds, st.integers(2, 5), st.integers(2, 5))
def test_raking_reaches_the_margins_and_keeps_the_odds(seed, rows, columns):
    rng = np.random.default_rng(seed)
    table, target = rng.uniform(1, 9, (rows, columns)), rng.uniform(1, 9, (rows, columns))
    fit = rake(table, [(0, target.sum(axis=1)), (1, target.sum(axis=0))])
    assert np.allclose(fit.values.sum(axis=0), target.sum(axis=0))
    assert np.allclose(fit.values.sum(axis=1), target.sum(axis=1))
    logs = np.log(fit.values / table)
    assert np.allclose(logs - logs[:1] - logs[:, :1] + logs[0, 0], 0, atol=1e-8)
    assert fit.gap <= 1e-10


def test_raking_three_dimensions_to_faces():
    rng = np.random.default_rng(1)
    truth, start = rng.uniform(1, 5, (3, 4, 2)), np.ones((3, 4, 2))
    fit = rake(start, [((2, 0), truth.sum(axis=1).T), ((0, 1), truth.sum(axis=2)), ((), truth.sum())])
    assert np.allclose(fit.values.sum(axis=1), truth.sum(axis=1))
    assert np.allclose(fit.values.sum(axis=2), truth.sum(axis=2))
    assert fit.rounds >= 1


@for_each(
    ("call", "says"),
    [
        (lambda: combine([], []), "one or more measurements"),
        (lambda: combine([1.0, 2.0], [1.0, -1.0]), r"variances\[1\] must be zero or above"),
        (lambda: combine([1.0, 2.0], 0.0), "contradict"),
        (lambda: combine([[1.0, 2.0]], [[1.0, np.inf]]), "quantities 1 were not measured"),
        (lambda: intersect([1.0, 5.0], [2.0, 6.0], 0.99), "do not meet"),
        (lambda: intersect([1.0], [2.0, 3.0], 0.99), "same shape"),
        (lambda: intersect([3.0], [2.0], 0.99), "must be at most upper"),
        (lambda: intersect([1.0], [2.0], 1.0), r"confidence\[0\] must be strictly between"),
        (lambda: intersect([1.0, 1.0], [2.0, 2.0], 0.5), "leave nothing"),
        (
            lambda: intersect([1.0, 1.0], [2.0, 2.0], [0.9] * 3),
            "confidence must be one number, or one for each of the 2",
        ),
        (lambda: combine([1.0, np.nan], 1.0), r"values\[1\] must be finite"),
        (lambda: combine([[1.0], [2.0, 3.0]], 1.0), "regular array"),
        (lambda: rake([[-1.0]], [(0, [1.0])]), "must be zero or above: raking keeps signs"),
        (lambda: rake([[1.0]], []), "margins must not be empty"),
        (lambda: rake([[1.0]], [(2, [1.0])]), "axes must be different whole numbers from 0 to 1"),
        (lambda: rake([[1.0]], [("a", [1.0])]), "axes must be different whole numbers from 0 to 1"),
        (lambda: rake([[1.0]], [(0, [1.0, 2.0])]), r"must have shape \(1,\), got \(2,\)"),
        (lambda: rake([[1.0]], [(0, [-1.0])]), r"the margin of axes \(0,\)\[0\] must be zero or above"),
        (lambda: rake([[0.0, 0.0], [1.0, 1.0]], [(0, [1.0, 1.0])]), "positive where the whole table is zero"),
        (lambda: rake([[1.0, 1.0]], [(0, [2.0]), (1, [2.0, 1.0])]), "margins 0 and 1 .* do not agree"),
        (
            lambda: rake([[1.0, 0.0], [1.0, 1.0]], [(0, [2.0, 1.0]), (1, [1.0, 2.0])], rounds=20),
            "after 20 rounds",
        ),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(InvalidInput, match=says):
        call()


@pytest.mark.parametrize("products", [[np.inf, np.inf], [-np.inf, np.inf], [-np.inf, 1.0]])
def test_a_variance_that_infinities_hide_is_infinite_and_not_zero(products: list[float]) -> None:
    fit = Estimate(values=np.zeros(2), _covariance_product=lambda q: np.array(products))
    assert fit.variance_of([[1, -1]]).tolist() == [np.inf]
    assert fit.variance_of([[1, 0]]).tolist() == [np.inf]


def test_the_least_variances_are_combined_like_others() -> None:
    both = combine([1.0, 2.0], [1e-310, 1e-310])
    assert float(both.values) == 1.5
    assert float(both.variances) == pytest.approx(5e-311)


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="real numbers"):
        combine(np.array([1 + 2j, 3]), 1.0)


def test_an_axis_may_be_an_integer_of_numpy() -> None:
    assert rake([[1.0, 1.0]], [(np.int64(1), [3.0, 4.0])]).values.tolist() == [[3.0, 4.0]]
