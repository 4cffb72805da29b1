"""What is computed of a row, and rounded afterwards, is a function of that row alone.

BLAS sums up a row in an order that depends on where it stands: a last bit that differs may put a coordinate into
another cell of the grid, or a row into another cluster, and one person would change what others add.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from discreet import Boolean, Bounds, Public
from discreet.tabular import Design
from discreet.tabular.clusters import _nearest
from discreet.tabular.learner import CELLS
from discreet.tabular.linear_model import LinearModel
from discreet.tabular.losses import Softmax, exact_scores
from discreet.tabular.naive_bayes import NaiveBayesModel
from discreet.tabular.rows import _scale_to_unit


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


@pytest.mark.parametrize("width", [1, 9, 40, 113])
def test_a_row_is_scaled_down_by_a_function_of_that_row(width: int) -> None:
    names = tuple(f"x{i}" for i in range(width))
    public = Public(schema=dict.fromkeys(names, Bounds(-1, 1)), size=100)
    design = Design(features=names, target=None, intercept=False)
    x, norms = np.random.default_rng(width).uniform(-1, 1, (100, width)), design.norms(public)
    alone = np.concatenate([design._clip_rows(x[i : i + 1].copy(), norms) for i in range(100)])
    together = design._clip_rows(x.copy(), norms)
    assert not np.array_equal(together, x)
    assert np.array_equal(alone, together)
    assert np.array_equal(design._clip_rows(x[7:].copy(), norms), together[7:])


def test_a_very_wide_row_is_scaled_down_by_a_function_of_that_row() -> None:
    # einsum sums up in buffers of 8192 numbers, whose borders fall elsewhere in a row that stands elsewhere
    design = Design(features=("a",), target=None, intercept=False)
    x, norms = np.random.default_rng(0).uniform(-1, 1, (50, 9000)), (1e9, 1.0)
    together = design._clip_rows(x.copy(), norms)
    assert not np.array_equal(together, x)
    assert np.array_equal(design._clip_rows(x[1:].copy(), norms), together[1:])
    alone = np.concatenate([design._clip_rows(x[i : i + 1].copy(), norms) for i in range(50)])
    assert np.array_equal(alone, together)


def test_bounds_too_narrow_for_a_float_warn_of_no_row() -> None:
    # warnings are errors in tests
    assert _scale_to_unit(np.array([0.0, 5e-324, np.nan]), 0.0, 5e-324).tolist() == [0.0, 0.0, 0.0]


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


@pytest.mark.parametrize("classes", [3, 10, 40])
def test_the_slopes_of_a_softmax_are_a_function_of_their_row(classes: int) -> None:
    scores, y = np.random.default_rng(9).normal(size=(100, classes)), np.arange(100.0) % classes
    together = Softmax().slope(scores, y)
    alone = np.concatenate([Softmax().slope(scores[i : i + 1], y[i : i + 1]) for i in range(100)])
    assert np.array_equal(alone, together)


def columns_of(width: int) -> dict[str, Any]:
    """Public facts and a design of so many numbers and a truth value to predict."""
    names = tuple(f"x{i}" for i in range(width))
    public = Public(schema={**dict.fromkeys(names, Bounds(-1, 1)), "y": Boolean()}, size=400)
    return {"public": public, "design": Design(features=names, target="y", intercept=False, clip="never")}


def losses_alone(model: Any, x: np.ndarray) -> np.ndarray:
    return np.concatenate([model.losses(row[None], np.zeros(1)) for row in x])


def test_the_loss_of_a_linear_model_is_a_function_of_its_row() -> None:
    # scores that cancel: what a sum rounds decides their sign, hence the class
    half = np.random.default_rng(5).uniform(-1, 1, (400, 20)).astype(np.float32)
    x, weights = np.concatenate([half, -half], axis=1), np.random.default_rng(6).normal(size=20).tolist()
    model = LinearModel(**columns_of(40), weights=((*weights, *weights),), classes=(False, True))
    together = model.losses(x, np.zeros(len(x)))
    assert np.array_equal(losses_alone(model, x), together)
    assert np.array_equal(model.losses(x[::-1], np.zeros(len(x)))[::-1], together)
    away = (x + 0.01 * np.sign([(*weights, *weights)])).astype(np.float32)
    assert model.losses(away, np.ones(len(x))).sum() == 0


def test_the_loss_of_naive_bayes_is_a_function_of_its_row() -> None:
    # both classes are equally probable, with their numbers in opposite order: sums decide by what they round
    half = np.random.default_rng(7).uniform(-1, 1, (100, 20)).astype(np.float32)
    x, means = np.concatenate([half, half], axis=1), np.random.default_rng(8).uniform(-1, 1, 20).tolist()
    model = NaiveBayesModel(
        **columns_of(40),
        classes=(False, True),
        priors=(0.5, 0.5),
        means=((*means, *means[::-1]), (*means[::-1], *means)),
        variances=((0.3,) * 40,) * 2,
        chances=((), ()),
    )
    together = model.losses(x, np.zeros(len(x)))
    assert 0 < together.sum() < len(x)
    assert np.array_equal(losses_alone(model, x), together)
