"""Regression trees: the range of qualities and the noise on leaves, models that learn, files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from discreet import REPLACE, Bounds, Categories, InvalidInput, Public, tabular
from discreet import accounting as acc
from discreet.tabular import DecisionTreeRegressor, PrivateSearch
from discreet.tabular.learner import CELLS
from discreet.tabular.trees import _CELLS

DESIGN = tabular.Design(features=("a",), target="y", intercept=False, clip="never")
PUBLIC = Public(schema={"a": Bounds(0, 1), "y": Bounds(-1, 1)}, size=8)


def test_qualities_of_splits_move_within_the_range_that_the_rate_is_for() -> None:
    mechanism = tabular.trees.PrivateRegressionTree(public=PUBLIC, design=DESIGN, epsilon=1.0)
    rng, widest = np.random.default_rng(0), 0
    for _ in range(600):
        n = int(rng.integers(0, 9))
        # most targets at the ends: there one row moves the most
        targets = rng.choice([-1.0, 1.0, 0.3], n + 1)
        codes = rng.integers(0, 3, n + 1)

        def quality(rows: slice, targets: Any = targets, codes: Any = codes) -> Any:
            columns = mechanism._columns(targets[rows])
            left = np.stack([np.bincount(codes[rows], weights=c, minlength=3) for c in columns.T], axis=1)
            return np.rint(mechanism._quality(left, columns.sum(axis=0)) * _CELLS).astype(int)

        change = quality(slice(None)) - quality(slice(1, None))
        assert change.max() <= 1
        widest = max(widest, int(change.max() - change.min()))
    most = 4 * _CELLS + 2
    # the mutant that takes the range of the Gini impurity, 2, is caught
    assert 2 * _CELLS + 2 < widest <= most
    assert mechanism.rate == pytest.approx(mechanism.level_epsilon / most)
    assert sum(acc.basic(mechanism.event)) <= 1.0


@pytest.mark.parametrize("replaced", [False, True])
def test_one_row_moves_the_leaves_by_no_more_than_the_noise_is_for(replaced: bool) -> None:
    public = Public(schema=PUBLIC.schema, size=8, neighbors=REPLACE) if replaced else PUBLIC
    mechanism = tabular.trees.PrivateRegressionTree(public=public, design=DESIGN, epsilon=1.0, depth=1)

    def leaves(target: float, place: int) -> Any:
        cells = mechanism._cells(np.array([target]))[0]
        result = np.zeros((2, 2))
        result[:, place] = cells, CELLS
        return result

    moved = leaves(1.0, 0) - (leaves(-1.0, 1) if replaced else 0)
    assert np.abs(moved).sum() == mechanism.noise.sensitivity
    assert acc.epsilon(mechanism.noise.event, delta=0) <= 0.5


def test_a_tree_learns_a_step_and_is_kept_in_a_file(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (5000, 3))
    y = np.where(X[:, 0] > 0.5, 80.0, 20.0) + rng.normal(0, 5, 5000)
    facts: dict[str, Any] = {"n": 5000, "lower": 0, "upper": 1, "target_lower": 0, "target_upper": 100}
    model = DecisionTreeRegressor(2.0, max_depth=2, **facts).fit(X, y)
    assert model.score(X, y) > 0.8
    tabular.save(model, tmp_path / "tree.json")
    again = tabular.load(tmp_path / "tree.json")
    columns = {f"x{i}": X[:5, i] for i in range(3)}
    np.testing.assert_array_equal(again.predict(columns), model.predict(X[:5]))
    search = PrivateSearch(DecisionTreeRegressor(**facts), {"max_depth": [1, 2]}, epsilon=4.0, trials=2.0)
    assert search.fit(X, y).score(X, y) > 0.5


def test_what_is_no_number_and_no_tree_is_refused_and_hostile_rows_are_not() -> None:
    classes = Public(schema={"a": Bounds(0, 1), "y": Categories(["n", "y"])}, size=8)
    with pytest.raises(InvalidInput, match="declared bounds"):
        tabular.trees.PrivateRegressionTree(public=classes, design=DESIGN, epsilon=1.0)
    with pytest.raises(InvalidInput, match="depth"):
        tabular.trees.PrivateRegressionTree(public=PUBLIC, design=DESIGN, epsilon=1.0, depth=13)
    for splits, leaves in [(((0, 1), (0, 1)), (0.0,) * 3), (((3, 1),), (0.0, 0.0)), (((0, 4),), (0.0, 0.0))]:
        with pytest.raises(InvalidInput, match=r"splits|leaves|split"):
            tabular.trees.RegressionTreeModel(
                design=DESIGN, public=PUBLIC, parts=4, splits=splits, leaves=leaves
            )
    X = np.array([[np.nan], [np.inf], [-np.inf], [1e300]])
    y = np.array([np.nan, np.inf, -np.inf, 1e300])
    for rows, epsilon in [(0, 1.0), (4, 1.0), (0, 1e9)]:
        model = DecisionTreeRegressor(
            epsilon, n=4, max_depth=2, lower=-1, upper=1, target_lower=-1, target_upper=1
        ).fit(X[:rows], y[:rows])
        assert np.isfinite(model.predict(X)).all()
