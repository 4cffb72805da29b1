"""Workloads are the matrices they say: products, transposes and Gram matrices agree with what is written
out."""

from __future__ import annotations

import numpy as np
import pytest

from discreet import InvalidInput
from discreet._registry import from_json, to_json
from discreet.mechanisms import matrix
from discreet.mechanisms.matrix.compound import row_squares, unweighted

from ...loops import for_each

WORKLOADS = [
    matrix.identity(5),
    matrix.total(5),
    matrix.prefix(5),
    matrix.all_ranges(5),
    matrix.explicit([[1, 0.5, -2], [0, 0, 3]]),
    matrix.predicates([[True, False, True], [True, True, True]]),
    matrix.product(matrix.prefix(3), matrix.total(2), matrix.identity(2)),
    matrix.union(matrix.prefix(4), matrix.total(4)),
    matrix.marginals([2, 3, 2], ways=2),
    matrix.marginals([2, 3, 2], [(), (1,), (0, 2)], bases={1: matrix.prefix(3)}),
]
each = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: type(w).__name__)


@each
def test_products_with_vectors_are_those_of_the_matrix(workload: matrix.Workload) -> None:
    W = workload.dense()
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=workload.cells), rng.normal(size=workload.queries)
    assert W.shape == workload.shape
    np.testing.assert_allclose(workload.times(x), W @ x, atol=1e-12)
    np.testing.assert_allclose(workload.transposed(y), W.T @ y, atol=1e-12)
    np.testing.assert_allclose(workload.gram(), W.T @ W, atol=1e-12)
    np.testing.assert_allclose(row_squares(workload), (W**2).sum(axis=1))
    np.testing.assert_allclose(workload.column_norms(1), np.abs(W).sum(axis=0))
    assert workload.frobenius == pytest.approx((W**2).sum())


@each
def test_a_description_rebuilds_the_workload(workload: matrix.Workload) -> None:
    assert from_json(to_json(workload)) == workload


def test_rows_are_what_their_names_say() -> None:
    assert matrix.prefix(3).dense().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert matrix.all_ranges(2).dense().tolist() == [[1, 0], [1, 1], [0, 1]]
    assert matrix.marginals([2, 2], [(0,)]).dense().tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]


def test_weights_count_in_the_gram_matrix_and_not_in_the_answers() -> None:
    weighted = matrix.union(matrix.identity(2), matrix.total(2), weights=(1, 3))
    assert weighted.gram().tolist() == [[10, 9], [9, 10]]
    assert weighted.times([1, 2]).tolist() == [1, 2, 3]
    assert unweighted(weighted).gram().tolist() == [[2, 1], [1, 2]]


def test_ten_attributes_with_1e10_cells_are_never_written_out() -> None:
    wide = matrix.marginals([10] * 10, ways=2, bases={0: matrix.prefix(10), 3: matrix.all_ranges(10)})
    assert wide.cells == 10**10
    best = matrix.optimize(wide)
    assert best.name == "residuals"
    assert best.bound <= best.rmse < 10
    with pytest.raises(InvalidInput, match="Keep it implicit"):
        wide.times(np.zeros(1))
    with pytest.raises(InvalidInput, match="would have"):
        wide.gram()


@for_each(
    "build",
    [
        lambda: matrix.prefix(0),
        lambda: matrix.prefix(2.5),  # type: ignore[arg-type]
        lambda: matrix.explicit([[1, 2], [3]]),
        lambda: matrix.explicit([["a"]]),
        lambda: matrix.explicit([[float("nan")]]),
        lambda: matrix.explicit([[1, 2, 3]], over=(2, 2)),
        lambda: matrix.predicates([[1, 0]]),
        lambda: matrix.union(matrix.prefix(3), matrix.prefix(4)),
        lambda: matrix.union(matrix.prefix(3), weights=(0,)),
        lambda: matrix.product(),
        lambda: matrix.product("prefix"),  # type: ignore[arg-type]
        lambda: matrix.marginals([2, 2]),
        lambda: matrix.marginals([2, 2], [(1, 0)]),
        lambda: matrix.marginals([2, 2], [(0,), (0,)]),
        lambda: matrix.marginals([2, 2], [(2,)]),
        lambda: matrix.marginals([2, 2], ways=3),
        lambda: matrix.marginals([2, 2], ways=1, bases={0: matrix.prefix(3)}),
        lambda: matrix.prefix(3).times([1, 2]),
        lambda: matrix.optimize("prefix"),  # type: ignore[arg-type]
        lambda: matrix.optimize(matrix.prefix(3), "linf"),  # type: ignore[arg-type]
    ],
)
def test_bad_workloads_are_refused(build) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(
        InvalidInput,
        match=r"must be|must have|must not be|say which|asked for twice|different positions|bases are workloads|is needed here|attributes of sizes",
    ):
        build()


def test_blocks_of_many_single_cells_are_never_a_square_matrix() -> None:
    """100,000 cells squared are 80 GB; a block is at most 4 million numbers."""
    blocks = matrix.identity(100_000).rows()
    first, second = next(blocks), next(blocks)
    assert first.size <= 1 << 22
    assert first[0, 0] == second[0, len(first)] == 1
    assert first.sum() == len(first)


def test_bases_of_attributes_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidInput, match="0 to 1"):
        matrix.marginals([2, 3], [(0,)], bases={7: matrix.prefix(3)})
