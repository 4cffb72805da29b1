"""Estimators of tables: one budget, nothing read off the data, models that learn, files that hold nothing
that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import discreet as dp
from discreet import (
    Boolean,
    Bounds,
    Budget,
    BudgetExceeded,
    Categories,
    InvalidInput,
    PrivateFact,
    Text,
    tabular,
)
from discreet import accounting as acc
from discreet.learning import model_files
from discreet.tabular import (
    PCA,
    HuberRegressor,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    PrivateSearch,
    Ridge,
    model_cards,
)
from discreet.tabular.model_cards import _generalization

from .. import warm

ROWS = 600
FACTS = {
    "age": Bounds(0, 100),
    "ward": Categories(["a", "b", "c"]),
    "ill": Boolean(),
    "risk": Categories(["low", "high"]),
    "note": Text(),
}
NEW = {"age": [10.0, 95.0, None], "ward": ["a", "zzz", None], "ill": [True, None, False]}


def people(tmp_path: Path, **how: Any) -> Any:
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, ROWS)
    table = {
        "age": age,
        "ward": rng.choice(["a", "b", "c"], ROWS),
        "ill": rng.uniform(size=ROWS) < 0.5,
        "risk": np.where(age > 50, "high", "low"),
        "note": ["secret"] * ROWS,
    }
    settings: dict[str, Any] = {
        "budget": Budget(epsilon=12, delta=1e-6),
        "ledger": tmp_path / "ledger",
        "size": ROWS,
        "unit": dp.rows(),
    }
    return dp.open(table, schema=FACTS, **(settings | how))


@pytest.mark.parametrize("method", ["auto", "objective", "output", "gradient"])
def test_a_session_fits_by_every_method_and_charges_what_was_asked(tmp_path: Path, method: str) -> None:
    session = people(tmp_path)
    model = session.fit(LogisticRegression(epsilon=4, method=method), target="risk")
    assert model.feature_names_in_.tolist() == ["age", "ward", "ill"]
    assert model.classes_.tolist() == ["low", "high"]
    assert session.spent <= 4
    assert session.spent > 3.9 or method == "gradient"
    assert model.predict(NEW)[:2].tolist() == ["low", "high"]
    assert model.predict_proba(pa.table(NEW)).shape == (3, 2)
    assert (model.coef_.shape, model.intercept_.shape) == ((1, 5), (1,))
    again = session.fit(LogisticRegression(epsilon=4, method=method), target="risk")
    assert again.model_ == model.model_, "asked again: the stored release"
    assert session.spent <= 4
    (charge,) = session.ledger.entries(kind="charge")
    assert charge.body["text"] == "LogisticRegression of risk"


def test_auto_says_why_and_looks_at_public_facts_only(tmp_path: Path) -> None:
    session = people(tmp_path)
    estimator = LogisticRegression(epsilon=1)
    mechanism = estimator.mechanism(session.public, target="risk", delta=1e-7)
    assert isinstance(mechanism, tabular.ObjectivePerturbation)
    for word in ("objective", "output", "gradient", "600 declared rows", "epsilon 1"):
        assert word in estimator.why_
    assert session.spent == 0


def test_a_session_without_delta_gets_a_pure_model(tmp_path: Path) -> None:
    session = people(tmp_path, budget=Budget(epsilon=3))
    model = session.fit(LogisticRegression(epsilon=3), target="risk")
    assert tuple(acc.basic(model.event_)) == (3, 0)
    assert session.remaining < 1e-9
    with pytest.raises(BudgetExceeded, match="the dataset"):
        session.fit(LogisticRegression(epsilon=0.1), target="risk")


def test_what_a_session_refuses_costs_nothing(tmp_path: Path) -> None:
    session = people(tmp_path)
    for error, match, estimator, how in [
        (InvalidInput, "declared bounds", Ridge(), {"target": "risk"}),
        (InvalidInput, "penalty", Ridge(penalty=-1.0), {"target": "age"}),
        (InvalidInput, "between 1e-06 and", Ridge(epsilon=1e-300), {"target": "age"}),
        (InvalidInput, "declared categories", LogisticRegression(), {"target": "age"}),
        (InvalidInput, "cannot be a feature", LogisticRegression(), {"target": "risk", "features": ["note"]}),
        (
            InvalidInput,
            "cannot be a feature, too",
            LogisticRegression(),
            {"target": "risk", "features": ["risk"]},
        ),
        (InvalidInput, "twice", LogisticRegression(), {"target": "risk", "features": ["age", "age"]}),
        (InvalidInput, "classes= differs", LogisticRegression(classes=["x", "y"]), {"target": "risk"}),
        (InvalidInput, "method", LogisticRegression(method="guess"), {"target": "risk"}),
        (
            InvalidInput,
            "too small",
            LogisticRegression(regularization=1e-6, method="objective"),
            {"target": "risk"},
        ),
        (InvalidInput, "class_weight", LogisticRegression(class_weight="balanced"), {"target": "risk"}),
        (InvalidInput, "epsilon", LogisticRegression(epsilon=0), {"target": "risk"}),
        (InvalidInput, "delta", LogisticRegression(delta=1), {"target": "risk"}),
        (InvalidInput, "needs a delta", LogisticRegression(method="gradient", delta=0), {"target": "risk"}),
        (InvalidInput, "space", PrivateSearch(LogisticRegression(), {"epsilon": [1, 2]}), {"target": "risk"}),
        (
            InvalidInput,
            "trials",
            PrivateSearch(LogisticRegression(), {"regularization": [1]}, trials=1),
            {"target": "risk"},
        ),
        (
            InvalidInput,
            "not an iterator",
            PrivateSearch(LogisticRegression(), {"regularization": iter([50.0])}, delta=0.0, trials=2),
            {"target": "risk"},
        ),
        (PrivateFact, "nothing is declared", LogisticRegression(), {"target": "height"}),
        (BudgetExceeded, "limit", LogisticRegression(epsilon=90), {"target": "risk"}),
    ]:
        with pytest.raises(error, match=match):
            session.fit(estimator, **how)
    assert session.spent == 0
    unsized = people(tmp_path, ledger=tmp_path / "other", size=None)
    with pytest.raises(PrivateFact, match="never read off"):
        unsized.fit(LogisticRegression(), target="risk")
    assert unsized.fit(LogisticRegression(n=500, lower=-1, upper=1), target="risk").predict(NEW).shape == (3,)


def test_search_ridge_and_components_share_the_budget(tmp_path: Path) -> None:
    session = people(tmp_path)
    search = session.fit(
        PrivateSearch(LogisticRegression(), {"regularization": [5.0, 50.0, 500.0, 5e3]}, epsilon=4),
        target="risk",
    )
    assert search.predict(NEW)[:2].tolist() == ["low", "high"]
    assert search.best_params_["regularization"] in (5.0, 50.0, 500.0, 5e3)
    assert session.spent <= 4
    costs = list(search.comparison().values())
    assert costs[0] <= 4 < costs[1]
    assert isinstance(search.event_, acc.RepeatAndSelect)
    ridge = session.fit(Ridge(epsilon=3), target="age", features=["risk", "ill"])
    low, high = ridge.predict({"risk": ["low", "high"], "ill": [True, False]})
    assert 10 < low < 45 < high < 95
    before = session.spent
    path = ridge.path([0.1, 10.0, 1e6])
    assert np.linalg.norm(path[2].weights) < np.linalg.norm(path[0].weights)
    assert session.spent == before <= 7
    components = session.fit(PCA(2, epsilon=2), target="age")
    assert components.transform({"ward": ["a"], "ill": [True], "risk": ["low"]}).shape == (1, 2)


def arrays() -> list[np.ndarray]:
    data = load_breast_cancer()
    return train_test_split(data.data, data.target, test_size=0.3, random_state=0)


def test_estimators_learn_arrays() -> None:
    X, X_test, y, y_test = arrays()
    upper = [
        40,
        50,
        250,
        3000,
        1,
        1,
        1,
        1,
        1,
        1,
        5,
        5,
        30,
        600,
        1,
        1,
        1,
        1,
        1,
        1,
        50,
        60,
        300,
        5000,
        1,
        2,
        2,
        1,
        1,
        1,
    ]
    facts: dict[str, Any] = {"classes": [0, 1], "n": 400, "lower": 0, "upper": upper}
    # chance is 63%; about 90% is reached
    assert LogisticRegression(epsilon=20, **facts).fit(X, y).score(X_test, y_test) > 0.75
    assert LinearSVC(epsilon=20, **facts).fit(X, y).score(X_test, y_test) > 0.75
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (2000, 2))
    y = 3 * X[:, 0] - 2 * X[:, 1] + rng.normal(0, 1, 2000)
    bounds: dict[str, Any] = {"n": 2000, "lower": 0, "upper": 10, "target_lower": -20, "target_upper": 30}
    for estimator in (
        HuberRegressor(epsilon=2, **bounds),
        Ridge(epsilon=2, **bounds),
        LinearRegression(epsilon=2, delta=1e-6, **bounds),
    ):
        assert estimator.fit(X, y).score(X, y) > 0.9
        assert estimator.predict(X).max() <= 30
    three = LogisticRegression(epsilon=6, classes=["a", "b", "c"], n=2000, lower=0, upper=10)
    labels = np.array(["a", "b", "c"])[np.digitize(X[:, 0] - X[:, 1], [-2.5, 2.5])]
    assert three.fit(X, labels).score(X, labels) > 0.6
    np.testing.assert_allclose(three.predict_proba(X).sum(axis=1), 1)


def test_what_is_public_of_arrays_is_declared_and_missing_values_are_no_error() -> None:
    X, y = np.full((50, 3), np.nan), np.array([0, 1] * 25)
    X[::2] = np.inf
    with pytest.raises(PrivateFact, match="classes"):
        LogisticRegression(n=50, lower=-1, upper=1).fit(X, y)
    with pytest.raises(PrivateFact, match="n="):
        LogisticRegression(classes=[0, 1]).fit(X, y)
    with pytest.raises(InvalidInput, match="at least two classes must"):
        LogisticRegression(classes=[0], n=50, lower=-1, upper=1).fit(X, y)
    with pytest.raises(InvalidInput, match="lower"):
        LogisticRegression(classes=[0, 1], n=50, lower=[0, 0], upper=1).fit(X, y)
    with pytest.raises(InvalidInput, match="one entry"):
        LogisticRegression(classes=[0, 1], n=50, lower=-1, upper=1).fit(X, y[:-1])
    model = LogisticRegression(classes=[0, 1], n=50, lower=-1, upper=1).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    empty = LogisticRegression(classes=[0, 1], n=50, lower=-1, upper=1).fit(np.zeros((0, 3)), np.zeros(0))
    assert np.isfinite(empty.coef_).all()
    weighted = LogisticRegression(classes=["n", "y"], n=50, class_weight={"y": 5}, lower=-1, upper=1).fit(
        X, np.where(y, "y", "n")
    )
    assert weighted.mechanism_.facts.lipschitz == 5


def test_no_message_quotes_a_value_and_no_edge_of_a_range_breaks() -> None:
    X, y = np.array([["secret", 1.0]] * 4, dtype=object), np.array([0, 1, 0, 1])
    for estimator in (
        LogisticRegression(classes=[0, 1], n=4, lower=-1, upper=1),
        Ridge(n=4, lower=-1, upper=1, target_lower=-1, target_upper=1),
        HuberRegressor(n=4, lower=-1, upper=1, target_lower=-1, target_upper=1),
    ):
        with pytest.raises(InvalidInput, match="X must be numbers, one") as refusal:
            estimator.fit(X, y)
        assert "secret" not in str(refusal.value)
    with pytest.raises(InvalidInput, match="y must be numbers") as refusal:
        Ridge(n=4, lower=-1, upper=1, target_lower=-1, target_upper=1).fit(np.zeros((4, 2)), ["secret"] * 4)
    assert "secret" not in str(refusal.value)
    with pytest.raises(InvalidInput, match="between 1e-06 and"):
        LogisticRegression(epsilon=1e-7, classes=[0, 1], n=4, lower=-1, upper=1).fit(np.zeros((4, 2)), y)
    for match, terms in [
        ("between 1e-06 and", {"epsilon": 1e308, "delta": 1e-6}),
        ("between 1e-100", {"regularization": 1e-300, "method": "output"}),
        ("between 1e-100", {"regularization": 1e308}),
    ]:
        with pytest.raises(InvalidInput, match=match):
            LogisticRegression(classes=[0, 1], n=4, lower=-1, upper=1, **terms).fit(np.zeros((4, 2)), y)
    for terms in (
        {"epsilon": 1e-6},
        {"epsilon": 1e5},
        {"regularization": 1e-9, "method": "output"},
        {"regularization": 1e12},
    ):
        model = LogisticRegression(classes=[0, 1], n=4, lower=-1, upper=1, **terms).fit(np.eye(4, 2), y)
        assert np.isfinite(model.coef_).all()


def test_parameters_clone_and_pipelines() -> None:
    model = LogisticRegression(epsilon=2.5, classes=[0, 1], n=60, lower=0, upper=1)
    assert clone(model).get_params() == model.get_params()
    X, y = np.random.default_rng(0).uniform(0, 1, (60, 2)), np.array([0, 1] * 30)
    piped = make_pipeline(FunctionTransformer(), model).fit(X, y)
    assert piped.predict(X).shape == (60,)
    with pytest.raises(Exception, match="not fitted"):
        clone(model).predict(X)
    search = PrivateSearch(model, {"regularization": [10.0, 100.0]}, epsilon=2)
    assert clone(search).fit(X, y).predict(X).shape == (60,)
    assert search.get_params()["estimator__epsilon"] == 2.5


def test_files_hold_numbers_only_and_cards_say_the_price(tmp_path: Path) -> None:
    session = people(tmp_path)
    for estimator, target in [
        (LogisticRegression(epsilon=2), "risk"),
        (Ridge(epsilon=2), "age"),
        (PrivateSearch(LogisticRegression(), {"regularization": [5.0, 50.0]}, epsilon=2), "risk"),
    ]:
        model = session.fit(estimator, target=target)
        path = tmp_path / "model.json"
        tabular.save(model, path)
        new = {**NEW, "risk": ["low", "high", None]}
        assert tabular.load(path).predict(new).tolist() == model.predict(new).tolist()
        card = tabular.card(tabular.load(path))
        assert json.loads(card.json()) == json.loads(tabular.card(model).json())
        for word in ("epsilon", "Who is protected", "Tuning", "Generalization", "add_remove"):
            assert word in card.markdown()
        assert '"note"' not in path.read_text(), "of the schema, the model's own columns only"
        for broken in (
            "",
            "{}",
            path.read_text()[:-9],
            path.read_text().replace("learning.LinearModel", "builtins.eval"),
            "[1]",
            "[" * 100_000,
        ):
            (tmp_path / "broken").write_text(broken)
            with pytest.raises(InvalidInput, match="not a model file"):
                tabular.load(tmp_path / "broken")
        with pytest.raises(InvalidInput, match=r"holds a table model, which tabular\.load reads"):
            model_files.load(path)
    with pytest.raises(InvalidInput, match="Nothing was written"):
        tabular.save(LogisticRegression(), tmp_path / "unfitted")
    components = session.fit(PCA(1, epsilon=1), features=["age"])
    with pytest.raises(InvalidInput, match="PCA does not"):
        tabular.save(components, tmp_path / "components")
    assert "PCA" in tabular.card(components).markdown()


@pytest.mark.parametrize("name", ["no/folder.json", ".", "a\0b"])
def test_a_path_that_cannot_be_written_or_read_is_refused(tmp_path: Path, name: str) -> None:
    x, y = np.linspace(-1, 1, 50)[:, None], np.array(["a", "b"] * 25)
    model = LogisticRegression(epsilon=1, n=50, classes=["a", "b"], lower=-1, upper=1).fit(x, y)
    with pytest.raises(InvalidInput, match="cannot be written"):
        tabular.save(model, tmp_path / name)
    for load in (tabular.load, model_files.load):
        with pytest.raises(InvalidInput, match="cannot be read"):
            load(tmp_path / name)


@pytest.mark.parametrize(
    ("place", "value"),
    [(["classes"], ["a"]), (["design", "target"], None), ([], {"type": "learning.Selected", "model": 1})],
)
def test_a_model_file_whose_parts_do_not_fit_is_not_loaded(place: list[str], value: Any) -> None:
    x, y = np.linspace(-1, 1, 50)[:, None], np.array(["a", "b"] * 25)
    estimator: Any = LogisticRegression(epsilon=1, n=50, classes=["a", "b"], lower=-1, upper=1)
    if place == ["design", "target"]:
        # of a regression: without a target there is no unit to predict in
        estimator, y = Ridge(epsilon=1, n=50, lower=-1, upper=1, target_lower=-1, target_upper=1), x[:, 0]
    facts = json.loads(model_cards.dumps(estimator.fit(x, y)))
    *folders, name = ["model", *place]
    part = facts
    for folder in folders:
        part = part[folder]
    part[name] = value | {"candidate": 0, "score": 0.5} if place == [] else value
    with pytest.raises(InvalidInput, match="model"):
        model_cards.loads(json.dumps(facts))
    assert "1, 2" in tabular.model_cards.Card({"features": [1, 2]}).markdown()


def test_the_bound_on_a_card_is_rounded_up() -> None:
    # exp(0.1) - 1 = 0.10517..., exp(0.2) - 1 = 0.22140...: only a replaced row is one step between neighbors
    for neighbors, bound in [("replace", 0.106), ("add_remove", 0.222), ("zero_out", 0.222)]:
        event = acc.PureDP(epsilon=0.1, neighbors=dp.Neighbors(neighbors))
        assert f"at most {bound} larger" in _generalization(event)


def test_neither_torch_nor_scikit_learn_is_loaded_for_mechanisms_and_predictions(tmp_path: Path) -> None:
    model = people(tmp_path).fit(LogisticRegression(epsilon=2), target="risk")
    tabular.save(model, tmp_path / "model.json")
    code = f"""
import sys
from discreet import tabular
from discreet import Bounds, Categories, Public
from discreet.tables import Memory
from discreet.sampling import Entropy
public = Public(schema={{"x": Bounds(0, 1), "y": Categories(["a", "b"])}}, size=3)
learner = tabular.ObjectivePerturbation(public=public, design=tabular.Design(features=("x",), target="y"), epsilon=1.0)
learner(Memory({{"x": [0.1, 0.9, 0.4], "y": ["a", "b", "a"]}}, public), entropy=Entropy())
tabular.load({str(tmp_path / "model.json")!r}).predict({{"age": [1.0], "ward": ["a"], "ill": [True]}})
assert not {{"torch", "sklearn"}} & set(sys.modules), "loaded"
from discreet.tabular import LogisticRegression
assert "torch" not in sys.modules
"""
    done = warm.run(code, tmp_path)
    assert done.returncode == 0, done.stderr
