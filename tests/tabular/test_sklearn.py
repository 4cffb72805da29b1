"""scikit-learn's contract: what differs from it is listed, with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.utils.estimator_checks import check_estimator

from discreet import InvalidInput
from discreet.tabular import (
    PCA,
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExplainableBoostingClassifier,
    ExplainableBoostingRegressor,
    GaussianNB,
    HuberRegressor,
    KMeans,
    LinearSVC,
    LogisticRegression,
    Ridge,
)

PRIVATE = "whether a table is empty, or a value missing, is a fact about people and never an error"
FRESH = "it compares two fits, and every fit has fresh noise"
DECLARED = "classes are declared and not read off y: three here, some of which do not occur"
NOISY = "it wants a good score on a few rows, at epsilon 1"
EXPECTED = {
    "check_estimators_empty_data_messages": PRIVATE,
    "check_supervised_y_no_nan": PRIVATE,
    "check_fit_idempotent": FRESH,
    "check_supervised_y_2d": FRESH,
    "check_regressors_int": FRESH,
    "check_regressor_data_not_an_array": FRESH,
    "check_classifier_data_not_an_array": FRESH,
    "check_classifiers_train": NOISY,
    "check_regressors_train": NOISY,
    "check_class_weight_classifiers": "noise grows with the largest class weight, which is 1000 there",
    "check_classifiers_classes": DECLARED,
    "check_classifiers_one_label": DECLARED,
    "check_classifiers_regression_target": DECLARED,
    "check_decision_proba_consistency": DECLARED,
    "check_clustering": "which cluster a row of the data is in is private: there is no labels_",
}
FACTS: dict[str, Any] = {"n": 100, "lower": -5, "upper": 5}
NUMERIC: dict[str, Any] = {"target_lower": -1, "target_upper": 1, **FACTS}
CLASSES: dict[str, Any] = {"classes": [0, 1, 2], **FACTS}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(**CLASSES),
        LinearSVC(**CLASSES),
        GaussianNB(**CLASSES),
        DecisionTreeClassifier(**CLASSES),
        ExplainableBoostingClassifier(delta=1e-6, rounds=2, **CLASSES),
        ExplainableBoostingRegressor(delta=1e-6, rounds=2, **NUMERIC),
        Ridge(**NUMERIC),
        HuberRegressor(**NUMERIC),
        DecisionTreeRegressor(**NUMERIC),
        PCA(2, **FACTS),
        KMeans(2, **FACTS),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_estimators_keep_the_contract_but_for_what_is_listed(estimator: Any) -> None:
    results = check_estimator(estimator, expected_failed_checks=EXPECTED, on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 30


def test_what_would_fit_many_times_is_refused_with_the_way_out() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.uniform(0, 1, (60, 2)), np.array([0, 1] * 30)
    model = LogisticRegression(classes=[0, 1], n=60, lower=0, upper=1)
    with pytest.raises(InvalidInput, match="PrivateSearch"):
        cross_val_score(model, X, y, cv=3, error_score="raise")
    with pytest.raises(InvalidInput, match="session"):
        GridSearchCV(model, {"regularization": [1, 10]}, cv=3, error_score="raise").fit(X, y)


def test_data_frames_keep_their_names() -> None:
    frame = pd.DataFrame({"a": np.linspace(0, 1, 50), "b": np.linspace(1, 0, 50)})
    model = PCA(2, n=50, lower=0, upper=1, epsilon=5).fit(frame)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    shown = model.set_output(transform="pandas").transform(frame)
    assert shown.columns.tolist() == ["pca0", "pca1"]
    assert shown.index.equals(frame.index)
    clusters = KMeans(2, n=50, lower=0, upper=1, epsilon=5).fit(frame).set_output(transform="pandas")
    assert clusters.transform(frame).columns.tolist() == ["kmeans0", "kmeans1"]


@pytest.mark.parametrize("many", [OneVsRestClassifier, OneVsOneClassifier, MultiOutputClassifier])
def test_a_model_for_every_class_or_target_is_refused(many: Any) -> None:
    """Three fits at epsilon 1 were released, each with an event of its own."""
    X = np.random.default_rng(0).uniform(-5, 5, (90, 2))
    y = np.arange(90) % 3
    model = many(LogisticRegression(**{**CLASSES, "classes": [0, 1]}))
    with pytest.raises(InvalidInput, match="fits many times"):
        model.fit(X, np.column_stack([y > 0, y > 1]) if many is MultiOutputClassifier else y)
