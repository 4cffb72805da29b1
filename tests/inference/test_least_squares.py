"""Least squares with known variances, against dense formulas; unbiased, and with the variances it claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from discreet import InvalidInput
from discreet.inference import Estimate, least_squares, measured

from ..loops import for_each
from .oracles import assert_variance, constrained, generalized

seeds = st.integers(0, 2**32 - 1)
LAW = settings(max_examples=60, deadline=None)


def system(seed, m, n):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-2, 3, (m, n)).astype(float)
    return rng, matrix, rng.normal(0, 50, max(m, n)), 10.0 ** rng.uniform(-2, 2, max(m, n))


@LAW
@given(seeds, st.integers(1, 5), st.integers(1, 8), st.booleans())
def test_constrained_least_squares_equals_the_dense_formula(seed, m, n, as_sparse):
    rng, C, y, v = system(seed, m, n)
    y, v = y[:n], v[:n]
    d = C @ rng.normal(0, 50, n)
    fit = least_squares(y, v, sparse.csr_array(C) if as_sparse else C, d)
    x, covariance = constrained(y, v, C, d)
    assert np.allclose(fit.values, x, atol=1e-7)
    assert np.allclose(fit.covariance(), covariance, atol=1e-7)
    assert np.allclose(fit.variances, np.diag(covariance), atol=1e-7)
    assert np.allclose(C @ fit.values, d, atol=1e-8)


@LAW
@given(seeds, st.integers(1, 6), st.integers(0, 6))
def test_measured_equals_the_dense_formula(seed, n, more):
    rng, A, y, v = system(seed, n + more, n)
    A += 3 * np.eye(n + more, n)
    if np.linalg.cond(A) > 1e6:
        return
    x, covariance = generalized(A, y, v)
    fit = measured(A, y, v)
    questions = rng.normal(size=(3, n))
    assert np.allclose(fit.values, x, atol=1e-6)
    assert np.allclose(fit.variances, np.diag(covariance), rtol=1e-7)
    assert np.allclose(
        fit.variance_of(questions), np.einsum("ij,jk,ik->i", questions, covariance, questions), rtol=1e-7
    )
    assert np.allclose(fit.answer(questions), questions @ x, atol=1e-6)


@LAW
@given(seeds)
def test_the_iterative_route_agrees_with_the_direct_one(seed):
    rng, A, y, v = system(seed, 12, 7)
    A += 3 * np.eye(12, 7)
    v = 10.0 ** rng.uniform(-1, 1, 12)
    direct, slow = (measured(sparse.csr_array(A), y, v, method=method) for method in ("direct", "iterative"))
    assert np.allclose(slow.values, direct.values, atol=1e-6)
    assert np.allclose(slow.variances, direct.variances, rtol=1e-6)
    C, d = A[:3].repeat(2, axis=0), (A[:3] @ rng.normal(size=7)).repeat(2)
    direct, slow = (least_squares(y[:7], v[:7], C, d, method=method) for method in ("direct", "iterative"))
    assert np.allclose(slow.values, direct.values, atol=1e-6)
    assert np.allclose(slow.variances, direct.variances, atol=1e-6)


def test_extreme_weights_do_not_spoil_the_digits():
    """Variances 20 orders of magnitude apart: a nearly public total, and parts that are nearly free."""
    fit = least_squares([100.0, 60.0, 37.0], [1e-10, 1e10, 1e10], [[1, -1, -1]])
    assert np.allclose(fit.values, [100, 61.5, 38.5], rtol=1e-9)
    assert np.allclose(fit.variances, [1e-10, 5e9, 5e9], rtol=1e-5)
    cells = measured([[1, 1], [1, 0], [0, 1]], [100.0, 60.0, 37.0], [1e-10, 1e10, 1e10])
    assert np.allclose(cells.values, [61.5, 38.5], rtol=1e-9)
    assert cells.variance_of([[1, 1]]) == pytest.approx(1e-10, rel=1e-4)


def test_zero_variance_is_a_public_fact():
    fit = least_squares([100.0, 60.0, 37.0], [0.0, 1.0, 2.0], [[1, -1, -1]])
    assert np.allclose(fit.values, [100, 61, 39])
    assert np.allclose(fit.variances, [0, 2 / 3, 2 / 3])
    same = measured([[1, 1], [1, 0], [0, 1]], [100.0, 60.0, 37.0], [0.0, 1.0, 2.0])
    assert np.allclose(same.values, [61, 39])
    assert np.allclose(same.variances, [2 / 3, 2 / 3])
    assert same.variance_of([[1, 1]])[0] == pytest.approx(0, abs=1e-12)


def test_cells_that_the_answers_do_not_determine_are_named():
    A = [[1, 1, 0, 0], [0, 0, 1, 0]]
    for method in ("direct", "iterative"):
        with pytest.raises(InvalidInput, match=r"cells 0, 1, 3 "):
            measured(A, [10.0, 5.0], 1.0, method=method)
        fit = measured(A, [10.0, 5.0], 1.0, unidentified="minimum_norm", method=method)
        assert np.allclose(fit.values, [5, 5, 5, 0])
        assert np.isinf(fit.variances[[0, 1, 3]]).all()
        assert fit.variance_of([[1, 1, 0, 0], [0, 0, 2, 0]]) == pytest.approx([1, 4])
        assert np.isinf(fit.variance_of([[1, -1, 0, 0]])).all()


def test_redundant_constraints_do_no_harm_and_contradictions_are_named():
    C = [[1, 1, 0], [0, 1, 1], [1, 2, 1]]
    fit = least_squares([1.0, 2.0, 3.0], 1.0, C, [4, 6, 10])
    assert np.allclose(np.array(C) @ fit.values, [4, 6, 10])
    for method in ("direct", "iterative"):
        with pytest.raises(InvalidInput, match="contradict"):
            least_squares([1.0, 2.0, 3.0], 1.0, C, [4, 6, 11], method=method)
        with pytest.raises(InvalidInput, match="contradict"):
            least_squares([1.0, 2.0], 0.0, [[1, 1]], 4, method=method)
    with pytest.raises(InvalidInput, match="contradict"):
        measured([[1.0], [1.0]], [1.0, 2.0], [0.0, 0.0])
    with pytest.raises(InvalidInput, match="constraint 1 has no coefficients"):
        least_squares([1.0], 1.0, [[1], [0]], [1, 1])


def noisy(seed=7, repeats=2_000):
    rng = np.random.default_rng(seed)
    truth = np.array([30.0, 20.0, 10.0])
    A = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 1, 1]], float)
    v = np.array([1.0, 4.0, 9.0, 2.0, 0.5])
    draws = A @ truth + rng.normal(0, np.sqrt(v), (repeats, 5))
    return truth, A, v, draws


def test_estimates_are_unbiased_and_have_the_claimed_variance():
    truth, A, v, draws = noisy()
    errors = np.array([measured(A, y, v).values - truth for y in draws])
    claimed = measured(A, draws[0], v)
    for cell in range(3):
        assert_variance(errors[:, cell], claimed.variances[cell])
        # a normal mean, 6.5 standard errors: false alarm 8e-11
        assert abs(errors[:, cell].mean()) < 6.5 * np.sqrt(claimed.variances[cell] / len(draws))
    assert_variance(errors.sum(axis=1), claimed.variance_of([[1, 1, 1]])[0])


def test_the_variance_test_has_teeth():
    """Mutant: weights ignored. Unbiased still, but its variance is not the claimed one."""
    truth, A, v, draws = noisy()
    errors = draws @ np.linalg.pinv(A).T - truth
    with pytest.raises(AssertionError, match="variance off"):
        assert_variance(errors[:, 0], measured(A, draws[0], v).variances[0])


def test_no_other_unbiased_weights_do_better():
    """Gauss-Markov: any other left inverse of A has a larger variance, for every question."""
    _, A, v, draws = noisy()
    best = measured(A, draws[0], v).covariance()
    rng = np.random.default_rng(1)
    nothing = np.eye(5) - A @ np.linalg.pinv(A)
    for _ in range(50):
        other = np.linalg.pinv(A) + rng.normal(size=(3, 5)) @ nothing
        assert np.allclose(other @ A, np.eye(3))
        assert np.linalg.eigvalsh(other @ np.diag(v) @ other.T - best).min() > -1e-12


def test_intervals_hold_the_truth_as_often_as_they_say():
    from scipy import stats

    truth, A, v, draws = noisy()
    hits = dict.fromkeys(("gaussian", "laplace", "any"), 0)
    for y in draws:
        fit = measured(A, y, v)
        for noise in hits:
            low, high = fit.interval(0.9, noise=noise)
            hits[noise] += bool(low[0] <= truth[0] <= high[0])
    low, high = stats.binom.ppf([5e-10, 1 - 5e-10], len(draws), 0.9)
    assert low <= hits["gaussian"] <= high
    assert high < hits["laplace"] <= hits["any"] <= len(draws)


def test_the_laplace_width_covers_single_laplace_noise_and_mixtures():
    """One noise alone is the widest law: P(|X| > a scales) = exp(-a) exactly; it must be inside the promise,
    discrete noise too."""
    from discreet.inference.least_squares import width

    for confidence in (0.5, 0.9, 0.95, 0.999, 1 - 1e-9):
        a = width(confidence, "laplace") * np.sqrt(2)
        assert np.exp(-a) <= 1 - confidence
        u = np.linspace(
            1e-4, 1, 20_000, endpoint=False
        )  # the Chernoff bound of both tails, on a grid instead of in closed form
        if width(confidence, "laplace") < width(confidence, "any"):
            assert (2 * np.exp(-u * a) / (1 - u**2)).min() == pytest.approx(1 - confidence, rel=1e-5)
        for scale in (0.2, 1.0, 7.0):
            q = np.exp(-1 / scale)
            beyond = np.floor(a * scale) + 1
            assert 2 * q**beyond / (1 + q) <= 1 - confidence
        assert width(confidence, "laplace") <= width(confidence, "any")
        assert width(confidence, "gaussian") <= width(confidence, "laplace")


def test_large_sparse_systems_are_solved_and_checked():
    """A hundred by a hundred cells from rows, columns and cells; exact variances of a few questions by one
    solution each."""
    n = 100
    rows = sparse.kron(sparse.eye_array(n), np.ones((1, n)))
    columns = sparse.kron(np.ones((1, n)), sparse.eye_array(n))
    A = sparse.vstack([sparse.eye_array(n * n), rows, columns]).tocsr()
    rng = np.random.default_rng(3)
    truth = rng.uniform(0, 50, n * n)
    v = np.repeat([4.0, 1.0], [n * n, 2 * n])
    y = A @ truth + rng.normal(0, np.sqrt(v))
    fit = measured(A, y, v)
    gradient = A.T @ ((y - A @ fit.values) / v)
    assert np.abs(gradient).max() < 1e-6
    assert fit.variance_of(rows.tocsr()[[0]])[0] < 1.0 < 4 * n
    with pytest.raises(InvalidInput, match="variance_of"):
        _ = fit.variances
    with pytest.raises(InvalidInput, match="variances of zero need the direct method"):
        measured(A, y, np.where(np.arange(len(y)) == 0, 0.0, v))


@for_each(
    ("call", "says"),
    [
        (lambda: least_squares([1.0, np.nan], 1.0, [[1, 1]]), r"values\[1\] must be finite, got nan"),
        (
            lambda: least_squares([1.0, 2.0], [1.0, -1.0], [[1, 1]]),
            r"variances\[1\] must be zero or above, got -1.0",
        ),
        (lambda: least_squares([1.0, 2.0], [1.0, np.inf], [[1, 1]]), r"variances\[1\] must be finite"),
        (lambda: least_squares([1.0, 2.0], [1.0, 1.0, 1.0], [[1, 1]]), r"variances must have shape \(2,\)"),
        (lambda: least_squares([1.0, 2.0], 1.0, [[1, 1, 1]]), "constraints must have 2 columns"),
        (lambda: least_squares([[1.0, 2.0]], 1.0, [[1, 1]]), r"values must have 1 dimension"),
        (lambda: least_squares("12", 1.0, [[1, 1]]), "values must be numbers"),
        (
            lambda: least_squares([1.0, 2.0], 1.0, sparse.csr_array([[1, np.inf]])),
            "constraints must have finite",
        ),
        (
            lambda: least_squares([1.0], 1.0, [[1]], method="magic"),
            "method must be 'auto' or 'direct' or 'iterative'",
        ),
        (
            lambda: least_squares([1.0], 1.0, [[1]], [1, 2]),
            "totals must be one number, or one for each of the 1 constraints",
        ),
        (lambda: measured([[1, 0]], [1.0, 2.0], 1.0), "one answer for each row of A"),
        (lambda: measured([[1]], [1.0], 1.0, unidentified="guess"), "unidentified must be"),
        (lambda: measured([[[1]]], [1.0], 1.0), "A must be a matrix"),
        (lambda: measured([[1]], [1.0], 1.0).interval(1.5), "confidence must be"),
        (lambda: measured([[1]], [1.0], 1.0).interval(0.5, noise="pink"), "noise must be"),
        (lambda: measured([[1]], [1.0], 1.0).variance_of([[1, 2]]), "questions must have 1 columns"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(InvalidInput, match=says):
        call()


def test_nothing_to_do_is_no_problem():
    fit = least_squares([1.0, 2.0], [0.0, 0.0], [[1, 1]], 3)
    assert isinstance(fit, Estimate)
    assert fit.values.tolist() == [1, 2]
    assert fit.variances.tolist() == [0, 0]
    assert least_squares([1.0, 2.0], 1.0, np.zeros((0, 2))).values.tolist() == [1, 2]


def test_many_answers_about_few_cells_take_memory_in_proportion() -> None:
    A = np.tile([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], (40_000, 1))
    # all left factors would be 120,000 by 120,000 numbers
    fit = measured(A, A @ [3.0, 5.0], 1.0)
    np.testing.assert_allclose(fit.values, [3.0, 5.0])
    np.testing.assert_allclose(fit.variances, 2 / 3 / 40_000)


@pytest.mark.parametrize("size", [1e-200, 1e200])
@pytest.mark.parametrize("form", [np.array, sparse.csr_array])
def test_coefficients_of_any_size_are_constraints(size, form):
    """Their squares are no floats: such rows were taken for empty ones, and their constraints left out."""
    fit = least_squares([1.0, 2.0], 1.0, form([[size, -size]]))
    np.testing.assert_allclose(fit.values, [1.5, 1.5])
    np.testing.assert_allclose(measured(form([[size]]), [3 * size], size).values, [3.0])


def test_coefficients_and_variances_too_far_apart_are_refused():
    for size, variance in ((1e200, 1.0), (1e-200, 1.0)):
        with pytest.raises(InvalidInput, match="too far apart"):
            measured([[size]], [size], variance)
