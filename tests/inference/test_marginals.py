"""Marginals that share attributes: the closed form equals dense least squares over all cells, values and
variances."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import InvalidInput
from discreet.inference import Marginal, consistent_marginals, marginal_matrix, measured

from .oracles import assert_variance

LAW = settings(max_examples=40, deadline=None)
SIZES = {"age": 3, "sex": 2, "site": 4}
ALL = [c for k in range(4) for c in combinations(SIZES, k)]


def noisy(rng, attributes, variance):
    shape = tuple(SIZES[a] for a in attributes)
    return Marginal(attributes=attributes, values=rng.normal(50, 10, shape), variance=variance)


@LAW
@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from(ALL), min_size=1, max_size=5), st.randoms())
def test_marginals_equal_dense_least_squares(seed, chosen, shuffler):
    rng = np.random.default_rng(seed)
    given_ = [noisy(rng, tuple(shuffler.sample(c, len(c))), rng.uniform(0.5, 5)) for c in chosen]
    A = np.vstack([marginal_matrix(SIZES, m.attributes).toarray() for m in given_])
    y = np.concatenate([m.values.ravel() for m in given_])
    v = np.concatenate([np.full(m.values.size, m.variance) for m in given_])
    oracle = measured(A, y, v, unidentified="minimum_norm")
    for fit in consistent_marginals(given_):
        questions = marginal_matrix(SIZES, fit.attributes)
        assert np.allclose(fit.values.ravel(), oracle.answer(questions), atol=1e-8)
        assert np.allclose(fit.variance, oracle.variance_of(questions), rtol=1e-8)


def test_everything_shared_agrees_and_public_facts_stay():
    rng = np.random.default_rng(4)
    sex = Marginal(attributes=("sex",), values=[60.0, 40.0], variance=0.0)
    fits = consistent_marginals([noisy(rng, ("age", "sex"), 2.0), noisy(rng, ("site", "sex"), 1.0), sex])
    assert np.allclose(fits[0].values.sum(axis=0), [60, 40])
    assert np.allclose(fits[1].values.sum(axis=0), [60, 40])
    assert fits[2].values.tolist() == [60, 40]
    assert fits[2].variance == 0
    assert fits[0].variance < 2.0
    low, high = fits[0].interval(0.95)
    assert np.allclose(high - low, 2 * 1.959964 * math.sqrt(fits[0].variance))


def test_other_marginals_can_be_asked_for_if_measured_ones_contain_them():
    rng = np.random.default_rng(4)
    both, site = noisy(rng, ("age", "sex"), 2.0), noisy(rng, ("site",), 1.0)
    total, turned = consistent_marginals([both, site], [(), ("sex", "age")])
    assert turned.values.shape == (2, 3)
    assert turned.values.sum() == pytest.approx(float(total.values))
    with pytest.raises(InvalidInput, match=r"no measured marginal has all of \('sex', 'site'\)"):
        consistent_marginals([both, site], [("sex", "site")])


def test_claimed_variances_are_those_of_simulated_errors():
    rng = np.random.default_rng(9)
    draws = []
    for _ in range(1500):
        zero = [
            Marginal(attributes=a, values=rng.normal(0, math.sqrt(v), [SIZES[x] for x in a]), variance=v)
            for a, v in ((("age", "sex"), 2.0), (("sex",), 1.0), ((), 0.5))
        ]
        fits = consistent_marginals(zero)
        draws.append([fits[0].values[0, 0], fits[1].values[1], float(fits[2].values)])
    for column, fit in zip(np.array(draws).T, fits, strict=True):
        assert_variance(column, fit.variance)
    with pytest.raises(
        AssertionError, match="variance off"
    ):  # the noise's own variance is not the estimate's
        assert_variance(np.array(draws)[:, 1], 1.0)


def test_many_attributes_are_no_obstacle():
    """All pairs of 30 attributes with 10 values each: 10^30 cells, none of which is ever built."""
    rng = np.random.default_rng(0)
    pairs = [
        Marginal(attributes=p, values=rng.normal(100, 5, (10, 10)), variance=25.0)
        for p in combinations(range(30), 2)
    ]
    fits = consistent_marginals(pairs)
    of_zero = [m.values.sum(axis=1) for m in fits if m.attributes[0] == 0]
    assert np.allclose(of_zero, of_zero[0])
    assert all(m.variance < 25 for m in fits)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Marginal(attributes=("a",), values=[[1.0]], variance=1.0), "values must have 1 dimension"),
        (lambda: Marginal(attributes=("a", "a"), values=[[1.0]], variance=1.0), "attributes must differ"),
        (lambda: Marginal(attributes=("a",), values=[1.0], variance=-1.0), "variance must be zero or above"),
        (lambda: Marginal(attributes=("a",), values=[np.nan], variance=1.0), r"values\[0\] must be finite"),
        (lambda: Marginal(attributes=("a",), values=[], variance=1.0), "must not be empty"),
        (lambda: consistent_marginals([]), "measured must not be empty"),
        (
            lambda: consistent_marginals(
                [Marginal(attributes=("a",), values=[1.0] * n, variance=1.0) for n in (2, 3)]
            ),
            "attribute 'a' has 2 values in one",
        ),
        (
            lambda: consistent_marginals(
                [Marginal(attributes=("a",), values=[n, 1.0], variance=0.0) for n in (2.0, 3.0)]
            ),
            "contradict",
        ),
        (lambda: marginal_matrix({"a": 2}, ["b"]), "there is no attribute 'b'"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(InvalidInput, match=says):
        call()


def test_a_wanted_attribute_that_was_not_measured_is_refused_by_name() -> None:
    sex = Marginal(attributes=("sex",), values=[1.0, 2.0], variance=1.0)
    with pytest.raises(InvalidInput, match="no attribute 'age'"):
        consistent_marginals([sex], wanted=[("age",)])
    with pytest.raises(InvalidInput, match="must be a list, got 'sex'"):
        Marginal(attributes="sex", values=[1.0, 2.0], variance=1.0)


def test_an_attribute_that_is_wanted_twice_is_refused() -> None:
    sex = Marginal(attributes=("sex",), values=[52.0, 49.0], variance=2.0)
    with pytest.raises(InvalidInput, match="must differ from each other"):
        consistent_marginals([sex], [("sex", "sex")])
    with pytest.raises(InvalidInput, match="must differ from each other"):
        marginal_matrix({"sex": 2}, ("sex", "sex"))
