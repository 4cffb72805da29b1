"""How good strategies are: against closed forms, dense algebra, published figures, and bounds that nothing
can pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from discreet._registry import from_json, to_json
from discreet.mechanisms import matrix
from discreet.mechanisms.matrix import strategies
from discreet.mechanisms.matrix.factorization import error_of
from discreet.mechanisms.matrix.triangular import Toeplitz, square_root

# RMSE at l2 sensitivity 1 and unit noise, prefix sums and all ranges of 256 cells: computed apart from this
# code (see docs/workloads.md).
KNOWN_256 = {
    "prefix": {"bound": 2.47145, "optimal": 2.52441, "haar": 3.0851, "tree": 3.1022},
    "ranges": {"bound": 2.87636, "optimal": 2.90144, "haar": 3.5050, "tree": 3.8354},
}


@pytest.mark.parametrize("name", KNOWN_256)
def test_256_cells_reach_the_known_optimum_within_half_a_percent(name: str) -> None:
    workload = matrix.prefix(256) if name == "prefix" else matrix.all_ranges(256)
    known, best = KNOWN_256[name], matrix.optimize(workload)
    assert best.name == "optimal"
    assert known["optimal"] * (1 - 1e-5) <= best.rmse <= known["optimal"] * 1.005
    assert best.bound == pytest.approx(known["bound"], rel=1e-5)
    assert matrix.haar(256, workload=workload).rmse == pytest.approx(known["haar"], rel=1e-4)
    assert matrix.tree(256, workload=workload).rmse == pytest.approx(known["tree"], rel=1e-4)
    assert "optimal" in best.reason
    assert "SVD bound" in best.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "optimum"), [(matrix.prefix(1024), 2.9556), (matrix.all_ranges(1024), 3.51508)]
)
def test_1024_cells_reach_the_known_optimum_within_half_a_percent(
    workload: matrix.Workload, optimum: float
) -> None:
    assert optimum * (1 - 1e-4) <= matrix.optimize(workload).rmse <= optimum * 1.005


@pytest.mark.parametrize("seed", range(5))
def test_no_feasible_strategy_is_below_the_proved_bound(seed: int) -> None:
    """Random strategies, and random workloads: weak duality, not luck."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(9, 7))
    found = strategies.gaussian(W.T @ W, gap=1e-6)
    assert np.diag(found.X).max() <= 1 + 1e-9
    assert found.bound <= found.error <= found.bound * (1 + 1e-5)
    assert strategies.least_squares_error(W.T @ W, found.X) == pytest.approx(found.error, rel=1e-6)
    assert strategies.svd_bound(W.T @ W) <= found.bound * (1 + 1e-9)
    for _ in range(50):
        A = rng.normal(size=(8, 7))
        X = A.T @ A / (A**2).sum(axis=0).max()
        assert strategies.least_squares_error(W.T @ W, X) >= found.bound * (1 - 1e-9)


def test_the_gradient_of_p_identity_is_that_of_its_error() -> None:
    rng = np.random.default_rng(3)
    gram, theta = matrix.prefix(6).gram(), rng.uniform(0, 1, (2, 6))
    error, gradient = strategies._p_identity_error(theta.ravel(), gram=gram, p=2)
    A = np.concatenate([np.eye(6), theta])
    A = A / A.sum(axis=0)
    assert error == pytest.approx(strategies.least_squares_error(gram, A.T @ A))
    for i in range(theta.size):
        step = np.zeros(theta.size)
        step[i] = 1e-6
        up, down = (
            strategies._p_identity_error(theta.ravel() + s * step, gram=gram, p=2)[0] for s in (1, -1)
        )
        assert gradient[i] == pytest.approx((up - down) / 2e-6, rel=1e-5)


def test_laplace_strategies_beat_identity_where_many_cells_are_added_up() -> None:
    best = matrix.optimize(matrix.prefix(64), "l1")
    assert best.name == "p-identity"
    assert best.rmse < 0.9 * dict(best.candidates)["identity"]
    assert matrix.sensitivity(best.strategy, "l1") == pytest.approx(1)


@pytest.mark.parametrize("sizes", [(2, 3, 4), (5, 2), (1, 3, 2)])
@pytest.mark.parametrize("ways", [1, 2])
def test_residuals_reach_the_svd_bound_exactly(sizes: tuple[int, ...], ways: int) -> None:
    workload = matrix.marginals(sizes, ways=ways)
    strategy = matrix.strategies.Residuals(marginals=workload)
    assert strategy.error() == pytest.approx(strategies.svd_bound(workload.gram()), rel=1e-9)
    assert matrix.sensitivity(strategy) == pytest.approx(1)
    assert strategies.least_squares_error(workload.gram(), strategy.gram()) == pytest.approx(strategy.error())


def test_weights_shift_the_error_to_what_counts_less() -> None:
    workload = matrix.marginals([3, 4, 5], ways=2, weights=(5, 1, 1))
    strategy = matrix.strategies.Residuals(marginals=workload)
    assert strategy.error() == pytest.approx(strategies.svd_bound(workload.gram()), rel=1e-9)


def test_residuals_of_prefix_sums_know_their_error() -> None:
    workload = matrix.marginals([6, 3], [(0,), (0, 1)], bases={0: matrix.prefix(6)})
    strategy = matrix.strategies.Residuals(marginals=workload)
    assert matrix.sensitivity(strategy) <= 1 + 1e-9
    dense = matrix.sensitivity(strategy) ** 2 * strategies.least_squares_error(
        workload.gram(), strategy.gram()
    )
    assert dense <= strategy.error() * (1 + 1e-6)
    assert strategy.error() < 1.2 * strategies.gaussian(workload.gram()).error


def test_measured_marginals_know_their_error() -> None:
    workload = matrix.marginals([2, 3, 4], [(0, 1), (1, 2), (2,)])
    strategy = matrix.strategies.MeasuredMarginals(marginals=workload)
    assert sum(strategy.weights().values()) == pytest.approx(1, abs=1e-3)
    dense = matrix.sensitivity(strategy, "l1") ** 2 * strategies.least_squares_error(
        workload.gram(), strategy.gram()
    )
    assert dense == pytest.approx(strategy.error(), rel=2e-3)
    equal = strategy.error_with(dict.fromkeys(workload.sets, 1 / 3))
    assert strategy.error() <= equal


def test_products_have_the_product_of_errors_and_unions_their_sum() -> None:
    one, two = matrix.prefix(5), matrix.all_ranges(3)
    union = matrix.union(
        matrix.product(one, two), matrix.product(matrix.total(5), matrix.identity(3)), weights=(1, 2)
    )
    strategy = matrix.product(matrix.strategies.Optimal(workload=one), matrix.strategies.Hierarchical(n=3))
    dense = matrix.sensitivity(strategy) ** 2 * strategies.least_squares_error(union.gram(), strategy.gram())
    assert error_of(union, strategy, "l2") == pytest.approx(dense, rel=1e-9)
    best = matrix.optimize(union)
    assert best.bound <= best.rmse <= dict(best.candidates)["identity"]


@pytest.mark.parametrize(
    "strategy",
    [
        matrix.strategies.Hierarchical(n=9, branching=3),
        matrix.strategies.Hierarchical(n=7, weights=(1, 2, 3, 4)),
        matrix.Haar(n=6),
        matrix.strategies.Fourier(workload=matrix.prefix(7)),
        matrix.strategies.WeightedTree(workload=matrix.prefix(8), norm="l1"),
        matrix.strategies.LowerTriangular(strategy=square_root(5), n=8),
        matrix.strategies.PIdentity(workload=matrix.prefix(8)),
    ],
    ids=lambda s: type(s).__name__,
)
def test_strategies_determine_every_cell_and_have_a_description(strategy: Any) -> None:
    n = strategy.cells
    assert np.linalg.matrix_rank(strategy.dense()) == n
    assert from_json(to_json(strategy)) == strategy
    assert math.isfinite(error_of(matrix.prefix(n), strategy, "l2"))
    columns = np.sqrt((strategy.dense() ** 2).sum(axis=0))
    assert matrix.sensitivity(strategy) == pytest.approx(columns.max())


def test_greedy_weights_are_better_than_equal_ones() -> None:
    for norm in ("l1", "l2"):
        assert matrix.greedy_tree(32, norm=norm).rmse < matrix.tree(32, norm=norm).rmse  # type: ignore[arg-type]


def test_the_square_root_is_that_of_streams() -> None:
    A = square_root(64).matrix(64)
    B = np.tril(np.ones((64, 64))) @ np.linalg.inv(A)
    expected = np.linalg.norm(B) / 8 * np.sqrt((A**2).sum(axis=0).max())
    assert matrix.square_root(64).rmse == pytest.approx(expected)
    assert matrix.optimize(matrix.prefix(64)).rmse < matrix.square_root(64).rmse < matrix.tree(64).rmse


def test_a_strategy_that_does_not_see_the_answers_has_infinite_error() -> None:
    assert error_of(matrix.identity(3), matrix.total(3), "l2") == math.inf
    assert error_of(matrix.total(3), matrix.total(3), "l2") == pytest.approx(1)


def test_stored_names_of_moved_strategies_stay() -> None:
    assert to_json(Toeplitz(coefficients=(1.0,)))["type"] == "learning.Toeplitz"
    assert from_json({"type": "learning.Dense", "rows": [[1.0], [0.5, 1.0]]}).bands == 2
