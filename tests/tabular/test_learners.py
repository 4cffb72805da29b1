"""Naive Bayes, k-means, boosting and trees: sensitivities on neighbors, models that learn, files."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, make_blobs

import discreet as dp
from discreet import ADD_REMOVE, REPLACE, Boolean, Bounds, Budget, Categories, InvalidInput, Public, tabular
from discreet import accounting as acc
from discreet.sampling import SeededEntropy
from discreet.tables import Memory
from discreet.tabular import (
    PCA,
    DecisionTreeClassifier,
    ExplainableBoostingClassifier,
    ExplainableBoostingRegressor,
    GaussianNB,
    KMeans,
)
from discreet.tabular.trees import _CELLS, bin_codes, bin_counts

SCHEMA = {
    "a": Bounds(-1, 1),
    "b": Bounds(0, 10),
    "f": Boolean(),
    "k": Categories(["u", "v", "w"]),
    "y": Categories(["n", "y"]),
}
DESIGN = tabular.Design(features=("a", "b", "f", "k"), target="y", intercept=False, clip="never")
# the corners of what a row can be, and what is missing or not declared
HOSTILE = list(
    itertools.product(
        [1.0, -1.0, 0.7, np.inf, np.nan, None],
        [0, 10, None],
        [True, False, None],
        ["u", "?", None],
        ["n", "y", None],
    )
)


def public(neighbors: Any = ADD_REMOVE, **more: Any) -> Public:
    return Public(schema={**SCHEMA, **more}, neighbors=neighbors, size=100)


def read(rows: list[Any], facts: Public) -> Any:
    columns = {name: [row[i] for row in rows] for i, name in enumerate(SCHEMA)}
    return DESIGN.read(Memory(columns, facts), SeededEntropy(1))


def test_statistics_of_naive_bayes_move_by_at_most_what_is_claimed() -> None:
    mechanism = tabular.naive_bayes.NaiveBayes(public=public(), design=DESIGN, epsilon=1.0)
    x, _ = read(HOSTILE, mechanism.public)
    rows = mechanism._statistics(x)
    moved = mechanism.sensitivity
    assert np.abs(rows).sum(axis=1).max() <= moved.l1
    assert (rows**2).sum(axis=1).max() <= moved.l2_squared
    assert np.abs(rows).sum(axis=1).max() > 0.99 * moved.l1, "the bound is reached: half of it would fail"
    assert (rows**2).sum(axis=1).max() > 0.99 * moved.l2_squared
    twice = replace(mechanism, public=public(REPLACE)).sensitivity
    assert (twice.l1, twice.l2_squared) == (2 * moved.l1, 4 * moved.l2_squared)


def test_sums_of_clusters_move_by_at_most_what_is_claimed() -> None:
    mechanism = tabular.clusters.Lloyd(
        public=public(), design=replace(DESIGN, target=None), epsilon=1.0, clusters=3
    )
    x, _ = read(HOSTILE, mechanism.public)
    cells = np.concatenate([np.full((len(x), 1), mechanism.weight), np.rint(x * 1024)], axis=1)
    assert np.abs(cells).sum(axis=1).max() == mechanism.sensitivity.l1
    assert (cells**2).sum(axis=1).max() == mechanism.sensitivity.l2_squared
    assert 2 <= mechanism.steps <= 7
    assert acc.epsilon(mechanism.event, delta=0) <= 1.0


@pytest.mark.parametrize("criterion", ["gini", "max"])
def test_qualities_of_splits_move_within_the_range_that_the_rate_is_for(criterion: str) -> None:
    mechanism = tabular.trees.PrivateTree(public=public(), design=DESIGN, epsilon=1.0, criterion=criterion)
    rng = np.random.default_rng(0)
    widest = 0
    for _ in range(300):
        n = int(rng.integers(0, 8))
        codes, labels = rng.integers(0, 3, n + 1), rng.integers(0, 2, n + 1)

        def quality(rows: slice, codes: Any = codes, labels: Any = labels) -> Any:
            table = np.bincount(codes[rows] * 2 + labels[rows], minlength=6).reshape(3, 2)
            return np.rint(mechanism._quality(table, table.sum(axis=0)) * _CELLS).astype(int)

        change = quality(slice(None)) - quality(slice(1, None))
        widest = max(widest, int(change.max() - change.min()))
    most = 2 * _CELLS + 2 if criterion == "gini" else _CELLS
    assert most / 3 < widest <= most
    assert mechanism.rate == pytest.approx(mechanism.level_epsilon / most)
    assert sum(acc.basic(mechanism.event)) <= 1.0


def test_bins_hold_every_row_and_residuals_stay_on_their_grid() -> None:
    mechanism = tabular.boosting.AdditiveBoosting(public=public(), design=DESIGN, epsilon=1.0, delta=1e-6)
    x, y = read(HOSTILE, mechanism.public)
    codes = bin_codes(x, DESIGN, mechanism.public, 256)
    assert (codes >= 0).all()
    assert (codes < bin_counts(DESIGN, mechanism.public, 256)).all()
    far = mechanism._sums(
        codes[:1, 0].astype(int), np.zeros(256, dtype=int), np.array([-1e9]), np.array([1.0])
    )
    assert np.abs(far).sum() == 1024 == mechanism.noises[1].linf
    assert mechanism.noises[0].l2_squared == 4
    assert acc.epsilon(mechanism.event, delta=1e-6) <= 1.0
    assert np.isfinite(
        mechanism.fit_rows(x, y, SeededEntropy(2)).scores({"a": [0], "b": [None], "f": [True], "k": ["?"]})
    ).all()


def blobs() -> tuple[Any, Any]:
    X, y = make_blobs(3000, centers=[[-5, -5], [5, 5], [5, -5]], cluster_std=1.0, random_state=0)
    return X, y


def test_estimators_learn_arrays() -> None:
    X, y = blobs()
    facts: dict[str, Any] = {"n": 3000, "lower": -10, "upper": 10}
    assert GaussianNB(epsilon=1, classes=[0, 1, 2], **facts).fit(X, y).score(X, y) > 0.95
    assert DecisionTreeClassifier(epsilon=2, classes=[0, 1, 2], **facts).fit(X, y).score(X, y) > 0.9
    boosted = ExplainableBoostingClassifier(epsilon=2, delta=1e-6, classes=[0, 1, 2], rounds=40, **facts)
    assert boosted.fit(X, y).score(X, y) > 0.85
    assert boosted.predict_proba(X).shape == (3000, 3)
    clusters = KMeans(3, epsilon=4, delta=1e-6, **facts).fit(X)
    groups = clusters.predict(X)
    assert {len(set(y[groups == g])) for g in set(groups)} <= {1, 2, 3}
    # within-cluster variance 2 per row in units of the data; one cluster alone has about 45
    scatter = (np.min(clusters.transform(X), axis=1) ** 2).mean() * 100
    assert scatter < 20
    components = PCA(1, epsilon=2, delta=1e-6, **facts).fit(X)
    np.testing.assert_allclose(components.moments_.covariance * 100, np.cov(X.T), atol=3)
    rng = np.random.default_rng(0)
    Z = rng.uniform(0, 1, (3000, 2))
    target = np.sin(6 * Z[:, 0]) + Z[:, 1]
    regressor = ExplainableBoostingRegressor(
        epsilon=3, delta=1e-6, n=3000, lower=0, upper=1, target_lower=-2, target_upper=2, rounds=60
    )
    assert regressor.fit(Z, target).score(Z, target) > 0.6, "a line explains less than half of it"


def session(**how: Any) -> Any:
    data = load_breast_cancer()
    table = {
        "size": data.data[:, 0],
        "texture": data.data[:, 1],
        "big": data.data[:, 2] > 100,
        "shape": np.where(data.data[:, 6] > 0.1, "odd", "even"),
        "kind": np.where(data.target == 1, "benign", "malignant"),
    }
    schema = {
        "size": Bounds(0, 40),
        "texture": Bounds(0, 50),
        "big": Boolean(),
        "shape": Categories(["odd", "even"]),
        "kind": Categories(["benign", "malignant"]),
    }
    return dp.open(table, schema=schema, unit=dp.rows(), size=569, ledger=":memory:", **how)


def test_a_session_fits_all_of_them_within_their_prices(tmp_path: Path) -> None:
    people = session(budget=Budget(epsilon=40, delta=1e-4), large_epsilon=True)
    new = {"size": [10.0, 30.0], "texture": [10, 30], "big": [False, True], "shape": ["even", "odd"]}
    spent = 0.0
    for estimator in (
        GaussianNB(epsilon=3),
        DecisionTreeClassifier(epsilon=12, max_depth=1),
        ExplainableBoostingClassifier(epsilon=5, rounds=30),
    ):
        model = people.fit(estimator, target="kind")
        assert model.predict(new).tolist() == ["benign", "malignant"]
        assert people.spent <= spent + estimator.epsilon
        spent = people.spent
        tabular.save(model, tmp_path / "model.json")
        assert tabular.load(tmp_path / "model.json").predict(new).tolist() == ["benign", "malignant"]
        assert "add_remove" in tabular.card(model).markdown()
    assert dict(model.shape("shape"))["even"] < dict(model.shape("shape"))["odd"]
    with pytest.raises(InvalidInput, match="feature must be one of"):
        model.shape("height")
    clusters = people.fit(KMeans(2, epsilon=3), features=["size", "texture"])
    assert clusters.cluster_centers_.shape == (2, 2)
    tabular.save(clusters, tmp_path / "clusters.json")
    assert tabular.load(tmp_path / "clusters.json").predict(new).shape == (2,)
    assert people.fit(PCA(3, epsilon=2)).components_.shape == (3, 7)


def test_what_is_refused_costs_nothing() -> None:
    people = session(budget=Budget(epsilon=3, delta=1e-6))
    for match, estimator, how in [
        ("target", GaussianNB(), {}),
        ("declared categories", GaussianNB(), {"target": "size"}),
        ("needs a delta", ExplainableBoostingClassifier(delta=0.0), {"target": "kind"}),
        ("criterion", DecisionTreeClassifier(criterion="entropy"), {"target": "kind"}),
        ("depth", DecisionTreeClassifier(max_depth=50), {"target": "kind"}),
        ("clusters", KMeans(0), {}),
        ("epsilon", KMeans(2, epsilon=0.0), {}),
        ("cannot be a feature", KMeans(2), {"features": ["kind", "nothing"]}),
        ("features must be a list", KMeans(2), {"features": "size"}),
    ]:
        with pytest.raises(
            (InvalidInput, dp.PrivateFact), match=match if "nothing" not in str(how) else None
        ):
            people.fit(estimator, **how)
    assert people.spent == 0
    # no overflow where epsilon is as large as is allowed
    many = replace(public(), size=10**12)
    assert tabular.clusters.Lloyd(public=many, design=replace(DESIGN, target=None), epsilon=1e300).steps == 7
    with pytest.raises(InvalidInput, match="needs rows without an intercept"):
        tabular.naive_bayes.NaiveBayes(public=public(), design=replace(DESIGN, intercept=True), epsilon=1.0)
