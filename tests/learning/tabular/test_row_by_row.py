"""What is computed of a row, and rounded afterwards, is a function of that row alone.

BLAS sums up a row in an order that depends on where it stands: a last bit that differs may put a coordinate into
another cell of the grid, or a row into another cluster, and one person would change what others add.
"""

from __future__ import annotations

import numpy as np
import pytest

from discreet.learning.tabular.clusters import _nearest
from discreet.learning.tabular.learner import CELLS
from discreet.learning.tabular.solver import exact_scores


def rows(count: int, width: int) -> np.ndarray:
    x = np.random.default_rng(width).uniform(-1, 1, (count, width))
    return (x / np.linalg.norm(x, axis=1)[:, None]).astype(np.float32)


@pytest.mark.parametrize("width", [1, 3, 113, 700])
@pytest.mark.parametrize("columns", [1, 3])
def test_the_scores_of_a_row_are_the_same_wherever_it_stands(width: int, columns: int) -> None:
    x, w = rows(300, width), np.random.default_rng(1).normal(size=(width, columns))
    together = exact_scores(x, w, 1.0)
    alone = np.concatenate([exact_scores(x[i : i + 1], w, 1.0) for i in range(300)])
    assert np.array_equal(alone, together)
    assert np.array_equal(exact_scores(x[::-1], w, 1.0), together[::-1])
    # no further from the truth than two roundings: of coordinates to 2^-18, of weights to what is left
    bits = 52 - 18 - (width - 1).bit_length()
    most = np.abs(w).sum(axis=0).max() * 2.0**-18 + np.abs(w).max() * width**0.5 * 2.0**-bits
    assert np.abs(together - x.astype(np.float64) @ w).max() <= most


def test_every_sum_of_a_score_is_a_whole_number_that_a_double_holds() -> None:
    width = 700
    x, w = np.full((2, width), 1.0), np.full((width, 1), 3.0)
    assert exact_scores(x, w, 1.0).tolist() == [[3.0 * width]] * 2
    assert exact_scores(x, 0 * w, 1.0).tolist() == [[0.0]] * 2
    assert exact_scores(x[:0], w, 1.0).shape == (0, 1)
    assert exact_scores(x, np.full((width, 1), 1e-300), 1.0).tolist() == [[0.0]] * 2


def test_a_row_between_two_centers_belongs_to_the_first_wherever_it_stands() -> None:
    rng = np.random.default_rng(3)
    width = 37
    middle = rng.integers(-CELLS // 2, CELLS // 2, width)
    step = rng.integers(1, CELLS // 4, width)
    centers = np.stack([middle - step, middle + step]) / CELLS
    # all equally far from both: a sum that is off by its last bit would put some into the second cluster
    cells = np.repeat(middle[None], 200, axis=0)
    assert _nearest(cells, centers).tolist() == [0] * len(cells)
    away = cells + np.sign(step)
    assert _nearest(away, centers).tolist() == [1] * len(cells)


def test_rows_are_put_into_the_cluster_that_is_nearest_by_exact_arithmetic() -> None:
    rng = np.random.default_rng(4)
    cells = rng.integers(-CELLS, CELLS + 1, (300, 5))
    centers = rng.integers(-CELLS, CELLS + 1, (7, 5))
    distances = ((cells[:, None, :] - centers[None]) ** 2).sum(axis=2)
    assert _nearest(cells, centers / CELLS).tolist() == distances.argmin(axis=1).tolist()
