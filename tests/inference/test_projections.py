"""Projections satisfy their optimality conditions, and never move away from a truth that satisfies the
constraints."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, sparse, stats

from discreet import InvalidInput
from discreet.inference import isotonic, least_squares, non_negative, non_negative_measured, with_total

from ..work import calls, growth
from .oracles import assert_nearest_non_negative

LAW = settings(max_examples=80, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def numbers(seed, n):
    rng = np.random.default_rng(seed)
    return rng, rng.normal(3, 10, n), 10.0 ** rng.uniform(-2, 2, n)


def distance(x, y, v):
    return float(np.sum((x - y) ** 2 / v))


@LAW
@given(seeds, st.integers(1, 12), st.booleans())
def test_isotonic_is_the_projection_on_ordered_values(seed, n, increasing):
    """For a convex cone: the residual is orthogonal to the fit and makes an obtuse angle with every ordered
    vector."""
    rng, y, v = numbers(seed, n)
    x = isotonic(y, v, increasing=increasing)
    assert (np.diff(x) * (1 if increasing else -1) >= -1e-9).all()
    residual = (y - x) / v
    scale = np.abs(residual).max() * (1 + np.abs(y).max()) * n
    assert abs(residual @ x) <= 1e-9 * scale
    other = np.sort(rng.normal(0, 10, n))[:: 1 if increasing else -1]
    assert residual @ other <= 1e-9 * scale


@LAW
@given(seeds, st.integers(1, 8))
def test_bounds_on_an_isotonic_fit_keep_it_the_nearest(seed, n):
    """Against a quadratic program in increments: x = lower + cumulative sums of non-negative steps, kept
    below upper by clipping the search."""
    rng, y, v = numbers(seed, n)
    lower, upper = np.sort(rng.normal(3, 8, 2))
    x = isotonic(y, v, lower=lower, upper=upper)
    assert x.min() >= lower
    assert x.max() <= upper
    for _ in range(20):
        feasible = np.sort(rng.uniform(lower, upper, n))
        assert (y - x) / v @ (feasible - x) <= 1e-8 * (1 + np.abs(y / v).max() * np.abs(y).max() * n)


def test_a_decreasing_fit_that_forgets_to_turn_is_noticed():
    """Mutant: increasing fit for decreasing data is not in order."""
    assert (np.diff(isotonic([5.0, 3.0, 4.0], increasing=False)) <= 0).all()
    assert not (np.diff(isotonic([5.0, 3.0, 4.0, 9.0])) <= 0).all()


@LAW
@given(seeds, st.integers(1, 15), st.floats(0, 100))
def test_with_total_is_the_projection_on_the_simplex(seed, n, total):
    _, y, v = numbers(seed, n)
    x = with_total(y, total, v)
    assert (x >= 0).all()
    assert x.sum() == pytest.approx(total, abs=1e-8)
    levels = (y - x) / v
    inner = x > 1e-9
    if inner.any():
        level = levels[inner].mean()
        assert np.allclose(levels[inner], level, atol=1e-6 * (1 + abs(level)))
        assert (y[~inner] / v[~inner] <= level + 1e-6 * (1 + abs(level))).all()


def test_known_values_do_not_move_in_a_total():
    assert with_total([10.0, 3.0], 10, [0.0, 1.0]).tolist() == [10, 0]
    assert with_total([10.0, 3.0, 5.0], 12, [0.0, 1.0, 1.0]).tolist() == [10, 0, 2]
    with pytest.raises(InvalidInput, match="do not fit"):
        with_total([10.0, 3.0], 9, [0.0, 1.0])
    with pytest.raises(InvalidInput, match="do not fit"):
        with_total([1.0, 3.0], 9, 0.0)
    with pytest.raises(InvalidInput, match="known exactly is negative"):
        with_total([-1.0, 3.0], 9, [0.0, 1.0])


@LAW
@given(seeds, st.integers(2, 9), st.integers(1, 3))
def test_non_negative_with_constraints_meets_the_optimality_conditions(seed, n, m):
    rng, y, v = numbers(seed, n)
    C = rng.integers(0, 2, (m, n)).astype(float)
    truth = rng.integers(0, 4, n).astype(float)
    d = C @ truth
    x = non_negative(y, v, C, d)
    assert_nearest_non_negative(x, y, v, C, d)
    assert distance(x, truth, v) <= distance(y, truth, v) * (1 + 1e-9) + 1e-9


def test_the_nearest_is_told_from_the_clipped():
    """Mutant: least squares, then clipping, then scaling to the total is feasible but not nearest."""
    y, v, C, d = np.array([9.0, 5.0, -8.0]), np.ones(3), np.ones((1, 3)), np.array([10.0])
    clipped = np.maximum(least_squares(y, v, C, d).values, 0)
    assert_nearest_non_negative(non_negative(y, v, C, d), y, v, C, d)
    with pytest.raises(AssertionError):
        assert_nearest_non_negative(clipped * 10 / clipped.sum(), y, v, C, d)


@LAW
@given(seeds, st.integers(1, 8), st.integers(0, 4))
def test_non_negative_measured_meets_the_optimality_conditions(seed, n, more):
    rng, y, v = numbers(seed, n + more)
    A = rng.integers(0, 2, (n + more, n)) + np.eye(n + more, n)
    x = non_negative_measured(sparse.csr_array(A), y, v)
    gradient = A.T @ ((A @ x - y) / v)
    scale = 1e-8 * (1 + np.abs(A.T @ (y / v)).max() + np.abs(A.T @ ((A @ x) / v)).max())
    assert (x >= 0).all()
    assert (gradient >= -scale).all()
    assert np.abs(gradient[x > 0]).max(initial=0.0) <= scale


@LAW
@given(seeds, st.integers(2, 10))
def test_projection_never_increases_the_distance_to_a_feasible_truth(seed, n):
    """The lecture's theorem, for every kind of set, for the truth and every draw of the noise."""
    rng, noise, v = numbers(seed, n)
    counts = rng.integers(0, 5, n).astype(float)
    ordered = np.sort(counts)
    for truth, project in (
        (counts, lambda y: non_negative(y, v)),
        (counts, lambda y: with_total(y, counts.sum(), v)),
        (ordered, lambda y: isotonic(y, v)),
        (ordered, lambda y: isotonic(y, v, lower=0, upper=5)),
        (counts, lambda y: least_squares(y, v, np.ones((1, n)), counts.sum()).values),
    ):
        y = truth + noise
        assert distance(project(y), truth, v) <= distance(y, truth, v) * (1 + 1e-9) + 1e-9


def test_projection_on_a_set_without_the_truth_can_be_worse():
    """The theorem needs its premise: a wrong total moves exact values away."""
    truth = np.array([1.0, 2.0])
    assert distance(with_total(truth, 30.0), truth, 1.0) > 0


def test_non_negativity_makes_counts_too_large_and_a_fixed_total_the_large_ones_too_small():
    """What the page warns of. In place of draws, noise of deviation 7 on counts of 0 takes each of 20,001
    quantiles of the normal law once: its mean is 0, and that of max(0, noise) is 7 / sqrt(2 pi)."""
    noise = 7 * stats.norm.ppf((np.arange(20_001) + 0.5) / 20_001)
    clipped = non_negative(noise)
    assert clipped.tolist() == np.maximum(noise, 0).tolist()
    assert clipped.mean() == pytest.approx(7 / np.sqrt(2 * np.pi), rel=1e-3)
    # one count of 1000 beside them, without noise: it pays for what the others are too large by
    fixed = with_total(np.append(noise, 1000.0), 1000.0)
    assert fixed[:-1].sum() > 0
    assert fixed[-1] == pytest.approx(1000 - fixed[:-1].sum())


def test_sorted_counts_gain_where_they_are_alike():
    """Hay et al. 2010: many equal counts, released in order: the error of the whole falls far below that of
    the noise."""
    truth = np.repeat([1.0, 5.0, 50.0], [600, 300, 100])
    y = truth + np.random.default_rng(2).laplace(0, 10, 1000)
    assert distance(isotonic(y), truth, 1.0) < distance(y, truth, 1.0) / 10


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: isotonic([1.0, np.inf]), r"values\[1\] must be finite"),
        (lambda: isotonic([1.0, 2.0], [1.0, 0.0]), r"variances\[1\] must be above zero"),
        (lambda: isotonic([1.0], lower=2, upper=1), "lower must not be above upper"),
        (lambda: isotonic([1.0], lower=np.nan), "lower must be a number"),
        (lambda: with_total([1.0], -1), "total must be zero or above"),
        (lambda: with_total([], 1), "must not be empty"),
        (lambda: non_negative([-1.0], 0.0), "zero or above where it is known exactly"),
        (lambda: non_negative([1.0, 1.0], 1.0, [[1, 1]], -1), "no non-negative values"),
        (lambda: non_negative([1.0, 1.0], 1.0, [[1, 1], [1, 1]], [1, 2]), "contradict"),
        (lambda: non_negative([5.0, 1.0], 1.0, [[1, 0], [0, 1]], [-1, 2]), "no non-negative values"),
        (lambda: non_negative_measured([[1]], [1.0], 0.0), "must be above zero"),
        (lambda: non_negative_measured([[1], [1]], [1.0], 1.0), "A must have 1 rows"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(InvalidInput, match=says):
        call()


def test_empty_lists_stay_empty():
    assert isotonic([]).shape == (0,)
    assert non_negative([]).shape == (0,)
    assert non_negative([[1.0, -1.0]]).tolist() == [[1, 0]]


def test_a_million_values_take_no_loop_and_a_time_that_grows_with_their_number():
    """Measured: 240 calls, 0.02 s of CPU time. The worst order for naive pooling is the reversed one, which
    takes 256 times as long for 16 times the values."""
    y = np.arange(1_000_000, 0, -1.0)
    assert calls(lambda: (isotonic(y), with_total(y, 10.0))) < 1000
    assert growth(lambda n: isotonic(y[:n]), 62_500, 1_000_000) < 100
    fit, total = isotonic(y), with_total(y, 10.0)
    assert np.allclose(fit, y.mean())
    assert total.sum() == pytest.approx(10)


def test_variances_far_apart_and_no_answers_at_all_have_a_result() -> None:
    assert isotonic([1.0, 0.0], [1e-200, 1e200]).tolist() == [1.0, 1.0]
    assert non_negative_measured(np.zeros((0, 2)), [], []).tolist() == [0.0, 0.0]


def test_least_squares_that_do_not_converge_are_refused(monkeypatch) -> None:
    def fails(*args, **named):
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(optimize, "nnls", fails)
    with pytest.raises(InvalidInput, match="did not converge"):
        non_negative_measured([[1.0]], [1.0], 1.0)


def test_values_far_above_their_total_still_add_up() -> None:
    """y - λ v has the rounding error of y, which is larger than the total here: the sums were 0, or 16."""
    for size in (1e16, 1e17, 1e300):
        assert with_total([size, size, -size], 1.0).tolist() == [0.5, 0.5, 0.0]
    with pytest.raises(InvalidInput, match="too far apart in size"):
        with_total([1e300, 1.0], 0.5, [1e-300, 1.0])
