"""Several releases as one: precision weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import InvalidInput
from discreet.inference import Estimate, combine, measured

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


@for_each(
    ("call", "says"),
    [
        (lambda: combine([], []), "one or more measurements"),
        (lambda: combine([1.0, 2.0], [1.0, -1.0]), r"variances\[1\] must be zero or above"),
        (lambda: combine([1.0, 2.0], 0.0), "contradict"),
        (lambda: combine([[1.0, 2.0]], [[1.0, np.inf]]), "quantities 1 were not measured"),
        (lambda: combine([1.0, np.nan], 1.0), r"values\[1\] must be finite"),
        (lambda: combine([[1.0], [2.0, 3.0]], 1.0), "regular array"),
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
