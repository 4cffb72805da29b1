"""What an outsider might give to the learners: rows, labels, bounds and prices at the edge of their ranges. No
error but ours, no number that is not finite, no message that quotes the data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from discreet import Bounds, Categories, DiscreetError, InvalidInput, Public
from discreet.learning import DPClassifier
from discreet.tabular import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExplainableBoostingClassifier,
    GaussianNB,
    HuberRegressor,
    LinearSVC,
    LogisticRegression,
    PrivateSearch,
    Ridge,
)

FACTS: dict[str, Any] = {"n": 20, "lower": -1, "upper": 1}
NUMERIC: dict[str, Any] = {"target_lower": -1, "target_upper": 1, **FACTS}
CLASSES: dict[str, Any] = {"classes": [0, 1, 2], **FACTS}
CLASSIFIERS = [
    LogisticRegression(**CLASSES),
    LogisticRegression(method="output", **CLASSES),
    LogisticRegression(method="gradient", delta=1e-6, **CLASSES),
    LogisticRegression(multi_class="ovr", class_weight={0: 5.0}, **CLASSES),
    LinearSVC(**CLASSES),
    GaussianNB(**CLASSES),
    DecisionTreeClassifier(max_depth=2, **CLASSES),
    ExplainableBoostingClassifier(delta=1e-6, rounds=2, **CLASSES),
]
REGRESSORS = [
    HuberRegressor(**NUMERIC),
    HuberRegressor(method="output", **NUMERIC),
    HuberRegressor(method="gradient", delta=1e-6, **NUMERIC),
    Ridge(**NUMERIC),
    DecisionTreeRegressor(max_depth=2, **NUMERIC),
]
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (20, 3))
HOSTILE = X.copy()
HOSTILE[:5] = np.array([math.nan, math.inf, -math.inf, 1e308, -1e308])[:, None]
LABELS, NUMBERS = RNG.integers(0, 3, 20), RNG.uniform(-1, 1, 20)
TABLES = {
    "hostile": (HOSTILE, LABELS, np.where(NUMBERS > 0, math.nan, 1e300)),
    "empty": (X[:0], LABELS[:0], NUMBERS[:0]),
    "one row": (X[:1], LABELS[:1], NUMBERS[:1]),
    "a class absent": (X, np.zeros(20, dtype=int), np.full(20, 1.0)),
    "labels unknown": (X, np.full(20, 99), np.full(20, math.inf)),
    "labels of another kind": (X, np.array([None, "a"] * 10, dtype=object), NUMBERS),
    "one feature": (X[:, :1], LABELS, NUMBERS),
    "a hundred times as many rows": (np.tile(X, (100, 1)), np.tile(LABELS, 100), np.tile(NUMBERS, 100)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", TABLES)
def test_every_learner_fits_whatever_the_rows_are(name: str) -> None:
    x, labels, numbers = TABLES[name]
    for model, y in [(m, labels) for m in CLASSIFIERS] + [(m, numbers) for m in REGRESSORS]:
        predicted = np.asarray(model.fit(x, y).predict(np.zeros((2, x.shape[1]))), dtype=float)
        assert np.isfinite(predicted).all()
        assert len(predicted) == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("epsilon", [1e-6, 1e6, 1e300])
def test_every_learner_fits_at_the_ends_of_epsilon(epsilon: float) -> None:
    for model, y in [(m, LABELS) for m in CLASSIFIERS] + [(m, NUMBERS) for m in REGRESSORS]:
        fitted = model.__class__(**{**model.get_params(), "epsilon": epsilon}).fit(X, y)
        assert np.isfinite(np.asarray(fitted.predict(X), dtype=float)).all()


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf])
def test_other_epsilons_are_refused(epsilon: float) -> None:
    for model, y in [(m, LABELS) for m in CLASSIFIERS] + [(m, NUMBERS) for m in REGRESSORS]:
        with pytest.raises(DiscreetError, match="epsilon"):
            model.__class__(**{**model.get_params(), "epsilon": epsilon}).fit(X, y)


@pytest.mark.parametrize(
    ("match", "settings"),
    [
        ("classes", {"classes": [0, "a"]}),
        ("classes", {"classes": [0, 0, 1]}),
        ("classes", {"classes": [0.0, math.nan]}),
        ("classes", {"classes": 3}),
        ("class_weight", {"class_weight": {0: 0.0}}),
        ("class_weight", {"class_weight": "balanced"}),
        ("n must", {"n": 0}),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(match: str, settings: dict[str, Any]) -> None:
    terms = CLASSES | settings
    with pytest.raises(InvalidInput, match=match):
        LogisticRegression(**terms).fit(X, LABELS)
    if match != "n must":
        with pytest.raises(InvalidInput, match=match):
            PrivateSearch(LogisticRegression(**terms), {"regularization": [50.0]}).fit(X, LABELS)


def test_a_search_over_penalties_reads_one_set_of_columns() -> None:
    base = LogisticRegression(method="gradient", **CLASSES)
    search = PrivateSearch(base, {"regularization": [1.0, 2.0]}, epsilon=2.0, delta=1e-6, trials=2.0).fit(
        X, LABELS
    )
    assert search.best_params_["regularization"] in (1.0, 2.0)


@pytest.mark.parametrize("estimator", [LogisticRegression(**CLASSES), DPClassifier(epochs=1, **CLASSES)])
@pytest.mark.parametrize(
    "rows",
    [
        np.full(20, 0.777),
        np.full((20, 2), 0.777 + 1j),
        np.full((20, 2), "0.777 Alice"),
        np.full((20, 0), 0.777),
        [[0.777]] * 19 + [[0.777, 1]],
    ],
)
def test_rows_of_another_shape_or_kind_are_refused_without_their_values(estimator: Any, rows: Any) -> None:
    with pytest.raises(InvalidInput, match="one row per example") as refused:
        estimator.fit(rows, np.zeros(20, dtype=int))
    assert "777" not in str(refused.value)


@pytest.mark.parametrize(
    ("match", "space", "options"),
    [
        ("no parameter 'regularisation'.*Did you mean", {"regularisation": [1.0]}, {}),
        ("100,000,000 combinations", {"epsilon": range(10**4), "regularization": range(10**4)}, {}),
        ("trials must be above 1, and at most", {"regularization": [1.0]}, {"trials": 1e9}),
    ],
)
def test_searches_that_cannot_be_run_are_refused(match: str, space: Any, options: Any) -> None:
    search = PrivateSearch(LogisticRegression(**CLASSES), space, **{"epsilon": 1, **options})
    with pytest.raises(InvalidInput, match=match):
        search.fit(np.zeros((20, 2)), np.zeros(20, dtype=int))


@pytest.mark.parametrize("classes", [0, 1.5, True])
def test_classes_that_are_no_list_are_refused_beside_a_schema(classes: Any) -> None:
    public = Public(schema={"x": Bounds(0, 1), "y": Categories(["no", "yes"])}, size=20)
    with pytest.raises(InvalidInput, match="classes must be a list"):
        LogisticRegression(classes=classes).mechanism(public, target="y")


def test_a_tree_whose_noise_vanishes_has_finite_chances_in_empty_leaves() -> None:
    tree = DecisionTreeClassifier(1e6, **CLASSES).fit(np.zeros((20, 2)), np.zeros(20, dtype=int))
    assert np.isfinite(tree.predict_proba([[-1.0, 1.0], [1.0, -1.0]])).all()
