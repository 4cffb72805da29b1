"""Estimators: scikit-learn's contract, nothing read off the data, and models that learn."""

from __future__ import annotations

import inspect
import json
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

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
    _registry,
)
from discreet import accounting as acc
from discreet.learning import SGD, DPClassifier, DPRegressor, SGDLogisticRegression, model_files
from discreet.learning.estimators import default_batch, encode_rows
from discreet.learning.training import checkpoints


def digits() -> list[np.ndarray]:
    data = load_digits()
    return train_test_split(data.data, data.target, test_size=0.25, random_state=0, stratify=data.target)


def test_private_logistic_regression_learns_digits() -> None:
    """Chance is 10%; 80% is far below what it reaches (about 92%) at epsilon 3."""
    X, X_test, y, y_test = digits()
    model = DPClassifier(
        epsilon=3, delta=1e-5, classes=range(10), n=1347, lower=0, upper=16, batch=256, epochs=20
    )
    assert model.fit(X, y).score(X_test, y_test) > 0.8
    assert 2.9 < acc.epsilon(model.event_, delta=1e-5) <= 3
    assert model.predict_proba(X_test).shape == (450, 10)
    np.testing.assert_allclose(model.predict_proba(X_test).sum(1), 1, rtol=1e-5)


def test_labels_and_classes_are_declared_not_found() -> None:
    X, y = np.random.default_rng(0).uniform(-1, 1, (200, 3)), np.array(["b", "a"] * 100)
    with pytest.raises(PrivateFact, match="classes"):
        DPClassifier(n=200, lower=-1, upper=1).fit(X, y)
    with pytest.raises(PrivateFact, match="n="):
        DPClassifier(classes=["a", "b"], lower=-1, upper=1).fit(X, y)
    with pytest.raises(InvalidInput, match="at least two classes must"):
        DPClassifier(classes=["a"], n=200, lower=-1, upper=1).fit(X, y)
    model = DPClassifier(
        classes=["a", "b", "never seen"], n=200, epochs=2, noise_multiplier=1.0, lower=-1, upper=1
    ).fit(X, y)
    assert model.predict_proba(X).shape == (200, 3)
    assert set(model.predict(X)) <= {"a", "b", "never seen"}
    with pytest.raises(InvalidInput, match="lower"):
        DPClassifier(classes=["a", "b"], n=200, lower=[0, 0, 2], upper=1).fit(X, y)


def test_regression_learns_a_line() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (2000, 2))
    y = 3 * X[:, 0] - 2 * X[:, 1] + rng.normal(0, 1, 2000)
    model = DPRegressor(
        epsilon=3,
        delta=1e-6,
        n=2000,
        lower=0,
        upper=10,
        target_lower=-20,
        target_upper=30,
        batch=500,
        epochs=30,
    )
    assert model.fit(X, y).score(X, y) > 0.7
    assert model.predict(X).max() <= 30


def test_missing_values_are_no_reason_to_stop() -> None:
    X, y = np.full((50, 3), np.nan), np.array([0, 1] * 25)
    X[::2] = np.inf
    model = DPClassifier(
        classes=[0, 1], n=50, noise_multiplier=1.0, epochs=1, batch=10, lower=-1, upper=1
    ).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    assert np.isfinite(
        DPRegressor(
            n=50, noise_multiplier=1.0, epochs=1, batch=10, lower=-1, upper=1, target_lower=-1, target_upper=1
        )
        .fit(X, X[:, 0])
        .predict(X)
    ).all()


def test_a_module_of_ones_own() -> None:
    X, _, y, _ = digits()
    model = DPClassifier(
        lambda features, classes: nn.Sequential(nn.Linear(features, 16), nn.Tanh(), nn.Linear(16, classes)),
        noise_multiplier=1.0,
        classes=range(10),
        n=1347,
        lower=0,
        upper=16,
        epochs=1,
    )
    assert isinstance(model.fit(X, y).module_[1], nn.Tanh)


def test_parameters_follow_the_contract() -> None:
    model = DPClassifier(epsilon=2.5, classes=[0, 1], n=10, lower=-1, upper=1)
    assert clone(model).get_params() == model.get_params()
    assert model.get_params()["epsilon"] == 2.5
    assert DPRegressor().set_params(target_upper=4).target_upper == 4
    assert model.fit is not None
    with pytest.raises(Exception, match="not fitted"):
        model.predict(np.zeros((1, 2)))


# through a session

ROWS = 600
FACTS = {
    "age": Bounds(0, 100),
    "ward": Categories(["a", "b", "c"]),
    "ill": Boolean(),
    "risk": Categories(["low", "high"]),
    "note": Text(),
}


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


def test_a_session_fits_an_estimator_by_what_the_schema_declares(tmp_path: Path) -> None:
    session = people(tmp_path)
    model = session.fit(SGDLogisticRegression(epsilon=4, batch=100, epochs=10), target="risk")
    assert model.feature_names_in_.tolist() == ["age", "ward", "ill"], "text is no feature, nor is the target"
    assert model.classes_.tolist() == ["low", "high"], "in the order of the schema"
    assert acc.epsilon(model.event_, delta=1e-6) <= 4, "delta is the budget's"
    assert session.spent > 0
    (charge,) = session.ledger.entries(kind="charge")
    assert charge.body["text"] == "SGDLogisticRegression of risk"
    new = {"age": [10.0, 95.0, None], "ward": ["a", "zzz", None], "ill": [True, None, False]}
    assert model.predict(new)[:2].tolist() == ["low", "high"]
    assert model.predict_proba(pa.table(new)).shape == (3, 2)
    assert (model.coef_.shape, model.intercept_.shape) == ((1, 5), (1,))
    np.testing.assert_allclose(
        model.decision_function(new),
        (model.coef_ @ encode_rows(new, model.columns_, model.public_).numpy().T)[0] + model.intercept_,
        rtol=1e-4,
    )
    with pytest.raises(InvalidInput, match="'ill' is missing"):
        model.predict({"age": [1.0], "ward": ["a"]})


def test_a_session_fits_numbers_and_truths_and_reports_progress(tmp_path: Path) -> None:
    session, seen = people(tmp_path), []
    quick = {"noise_multiplier": 3.0, "batch": 60, "epochs": 1}
    found = session.fit(
        DPRegressor(hidden=[4], **quick), target="age", features=["ward", "ill"], progress=seen.append
    )
    assert [p.step for p in seen] == list(range(1, 11))
    assert isinstance(seen[-1].model, nn.Sequential), "models on the way may be tried on public examples"
    assert (found.predict({"ward": ["a"], "ill": [True]}) <= 100).all()
    truth = session.fit(DPClassifier(**quick), target="ill", features=["age"])
    assert truth.classes_.tolist() == [False, True]
    assert truth.predict({"age": [3.0]}).dtype == bool


def test_what_a_session_refuses_to_fit_costs_nothing(tmp_path: Path) -> None:
    session = people(tmp_path)
    for error, match, estimator, how in [
        (InvalidInput, "declared bounds", DPRegressor(), {"target": "risk"}),
        (InvalidInput, "declared categories", SGDLogisticRegression(), {"target": "age"}),
        (
            InvalidInput,
            "cannot be a feature",
            SGDLogisticRegression(),
            {"target": "risk", "features": ["note"]},
        ),
        (
            InvalidInput,
            "cannot be a feature, too",
            SGDLogisticRegression(),
            {"target": "risk", "features": ["risk"]},
        ),
        (InvalidInput, "classes= differs", SGDLogisticRegression(classes=["x", "y"]), {"target": "risk"}),
        (InvalidInput, "estimator", nn.Linear(1, 1), {"target": "risk"}),
        (PrivateFact, "nothing is declared", SGDLogisticRegression(), {"target": "height"}),
        (BudgetExceeded, "limit", SGDLogisticRegression(epsilon=90), {"target": "risk"}),
    ]:
        with pytest.raises(error, match=match):
            session.fit(estimator, **how)
    assert session.spent == 0
    unsized = people(tmp_path, ledger=tmp_path / "other", size=None)
    with pytest.raises(PrivateFact, match="never read off"):
        unsized.fit(SGDLogisticRegression(), target="risk")
    with pytest.raises(InvalidInput, match="SGDLogisticRegression has no option 'hidden'"):
        SGDLogisticRegression(hidden=[3])


def test_a_model_file_holds_the_model_and_nothing_that_runs(tmp_path: Path) -> None:
    session = people(tmp_path)
    quick = {"noise_multiplier": 3.0, "batch": 60, "epochs": 1}
    new = {"age": [10.0, 95.0], "ward": ["a", "b"], "ill": [True, False]}
    for estimator, target in [
        (SGDLogisticRegression(**quick), "risk"),
        (DPClassifier(hidden=[4], **quick), "risk"),
        (DPRegressor(**quick), "age"),
    ]:
        given = {name: column for name, column in new.items() if name != target}
        model = session.fit(estimator, target=target, features=list(given))
        model_files.save(model, tmp_path / "model")
        again = model_files.load(tmp_path / "model")
        assert type(again) is type(model)
        assert again.event_ == model.event_
        np.testing.assert_array_equal(again.predict(given), model.predict(given))
    raw = (tmp_path / "model").read_bytes()
    assert b"secret" not in raw
    rng = np.random.default_rng(1)
    for _ in range(150):
        broken = bytearray(raw)
        place = int(rng.integers(0, 600))
        broken[place] ^= 1 << int(rng.integers(0, 8))
        (tmp_path / "broken").write_bytes(
            bytes(broken)[: int(rng.integers(0, len(raw))) if place % 3 == 0 else None]
        )
        try:
            model_files.load(tmp_path / "broken")  # a flipped bit in a number or a name still reads
        except InvalidInput:
            continue
    (tmp_path / "pickle").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(InvalidInput, match=r"model|file of tensors"):
        model_files.load(tmp_path / "pickle")
    with pytest.raises(InvalidInput, match="Nothing was written"):
        model_files.save(DPClassifier(), tmp_path / "none")


def test_models_fitted_to_arrays_are_saved_and_loaded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 8, (200, 3))
    quick = {"noise_multiplier": 1.0, "epochs": 1, "n": 200, "lower": [0, 0, 1], "upper": 8}
    own = {"module": lambda features, outputs: nn.Sequential(nn.Linear(features, outputs))}
    for estimator, y, how in [
        (SGDLogisticRegression(classes=["a", "b"], **quick), np.where(X[:, 0] > 4, "a", "b"), {}),
        (DPClassifier(classes=[3, 1, 2], hidden=[4], **quick), rng.integers(1, 4, 200), {}),
        (DPClassifier(classes=[False, True], **own, **quick), X[:, 0] > 4, own),
        (DPRegressor(target_lower=-2, target_upper=9, **quick), X[:, 1], {}),
    ]:
        model = estimator.fit(X, y)
        model_files.save(model, tmp_path / "model")
        again = model_files.load(tmp_path / "model", **how)
        assert type(again) is type(model)
        assert again.event_ == model.event_
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert again.predict(X).dtype == model.predict(X).dtype
        with pytest.raises(InvalidInput, match=r"model|file of tensors"):
            model_files.load(tmp_path / "model", **({} if how else own))
    named = pd.DataFrame(X, columns=["x", "y", "z"])
    model = SGDLogisticRegression(classes=[0, 1], **quick).fit(named, X[:, 0] > 4)
    model_files.save(model, tmp_path / "named")
    again = model_files.load(tmp_path / "named")
    np.testing.assert_array_equal(again.predict(named), model.predict(named))
    with pytest.raises(ValueError, match="feature names"):
        again.predict(named[["z", "y", "x"]])


@pytest.mark.parametrize(
    "changes",
    [{"hidden": [math.inf]}, {"columns": math.inf}, {"event": "SGD"}, {"public": "SGD", "features": ["a"]}],
)
def test_a_model_file_with_facts_that_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    X, path = np.zeros((20, 2)), tmp_path / "model"
    options = {"classes": [0, 1], "n": 20, "lower": -1, "upper": 1, "noise_multiplier": 1.0, "epochs": 1}
    model = SGDLogisticRegression(**options).fit(X, X[:, 0])
    with pytest.raises(InvalidInput, match="cannot be written"):
        model_files.save(model, tmp_path / "nowhere" / "model")
    model_files.save(model, path)
    other = {"SGD": _registry.to_json(SGD(lr=1.0))}
    facts = json.loads(path.read_text()) | {"target": "b"}
    facts |= {
        name: other.get(value, value) if isinstance(value, str) else value for name, value in changes.items()
    }
    path.write_text(json.dumps(facts))
    with pytest.raises(InvalidInput, match="not a model file"):
        model_files.load(path)


def test_a_module_that_does_not_fit_the_file_is_refused(tmp_path: Path) -> None:
    X = np.zeros((20, 2))
    model = DPClassifier(
        nn.Linear(2, 2), classes=[0, 1], n=20, noise_multiplier=1.0, epochs=1, lower=-1, upper=1
    ).fit(X, X[:, 0])
    model_files.save(model, tmp_path / "model")
    for bad, match in [
        (nn.Linear(3, 2), "not those of the module"),
        (3, "got 3"),
        (lambda f, o: "x", "it built str"),
    ]:
        with pytest.raises(InvalidInput, match=match):
            model_files.load(tmp_path / "model", module=bad)
    np.testing.assert_array_equal(
        model_files.load(tmp_path / "model", module=nn.Linear(2, 2)).decision_function(X),
        model.decision_function(X),
    )
    with pytest.raises(InvalidInput, match=r"not fitted yet: people\.fit\("):
        model_files.save(SGDLogisticRegression(), tmp_path / "none")
    with pytest.raises(
        InvalidInput, match="fitted DPClassifier, DPRegressor, SGDLogisticRegression; got int"
    ):
        model_files.save(3, tmp_path / "none")


def test_a_changed_model_file_is_refused_before_anything_large_is_made(tmp_path: Path) -> None:
    X = np.zeros((20, 2))
    quick = {"n": 20, "lower": -1, "upper": 1, "noise_multiplier": 1.0, "epochs": 1}
    model = DPClassifier(hidden=[3], classes=[0, 1], **quick).fit(X, X[:, 0])
    model_files.save(model, tmp_path / "model")
    facts = json.loads((tmp_path / "model").read_text())
    for change in [
        {"columns": 10**12},
        {"columns": -1},
        {"hidden": [10**12]},
        {"hidden": [-3]},
        {"hidden": "ab"},
        {"classes": [[0], [1]]},
        {"classes": [0]},
        {"lower": [0, 0, 0]},
        {"lower": "x"},
        {"upper": -5.0},
        {"lower": None},
        {"names": 3},
        {"kind": "Trainer"},
        {"range": None, "kind": "DPRegressor"},
        {"weights": "?"},
        {"weights": facts["weights"][:-8]},
        {"format": "discreet.model/0"},
    ]:
        (tmp_path / "changed").write_text(json.dumps(facts | change))
        with pytest.raises(InvalidInput, match="not a model file"):
            pytest.fail(f"loaded in spite of {change}: {model_files.load(tmp_path / 'changed')}")


def test_every_option_is_in_the_signature_and_a_misspelt_one_is_named() -> None:
    shared = {
        "epsilon",
        "delta",
        "noise_multiplier",
        "n",
        "lower",
        "upper",
        "clip",
        "batch",
        "epochs",
        "optimizer",
    }
    for cls, more in [
        (DPClassifier, {"module", "classes", "hidden"}),
        (SGDLogisticRegression, {"classes"}),
        (DPRegressor, {"module", "hidden", "target_lower", "target_upper"}),
    ]:
        options = inspect.signature(cls).parameters
        assert shared | more <= set(options)
        assert not any(p.kind is p.VAR_KEYWORD for p in options.values())
        assert set(cls().get_params()) == set(options)
        assert cls.__name__ in dir(dp.learning)
        with pytest.raises(
            InvalidInput, match=f"{cls.__name__} has no option 'epochz'. Did you mean 'epochs'"
        ):
            cls(epochz=3)
    assert "hidden" not in inspect.signature(SGDLogisticRegression).parameters


def test_the_batch_follows_public_n_and_epsilon_and_what_is_given_wins(tmp_path: Path) -> None:
    session = people(tmp_path)
    for how, batch in [
        ({"epsilon": 1}, 300),
        ({"epsilon": 9}, 256),
        ({"epsilon": 1, "batch": 64}, 64),
        ({"noise_multiplier": 2.0}, 256),
    ]:
        trainer = SGDLogisticRegression(**how).mechanism(session.public, target="risk", delta=1e-6)
        assert trainer.schedule.divisor == batch, how
    sizes = [default_batch(n, e) for n in (1, 300, 5000, 10**6) for e in (0.01, 0.1, 1, 10)]
    assert sizes == [1, 1, 1, 1, 256, 256, 256, 256, 2500, 2500, 1024, 256, 102_400, 10_240, 1024, 256]
    with pytest.raises(InvalidInput, match="epsilon"):
        default_batch(100, -1)


# scikit-learn's own checks


class Told(DPClassifier):
    """For these checks only: declares whatever the checks' data has, as no estimator may with private
    data."""

    def __init__(self, epochs: float = 30, noise_multiplier: float = 0.01) -> None:
        super().__init__(epochs=epochs, noise_multiplier=noise_multiplier)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return ["epochs", "noise_multiplier"]

    def fit(self, X: Any, y: Any) -> Any:
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import check_X_y

        check_X_y(X, y, ensure_all_finite=False)
        check_classification_targets(y)
        held = np.asarray(X, dtype=float)
        self.classes, self.n = np.unique(np.asarray(y)), len(held)
        self.lower, self.upper = np.nanmin(held) - 1e-3, np.nanmax(held) + 1e-3
        return super().fit(X, y)


# what a private estimator does otherwise, and why
OTHERWISE = {
    "check_estimators_nan_inf": "that a value is missing is a fact about a person, and no reason to stop",
    "check_fit_idempotent": "noise is fresh in every fit",
    "check_supervised_y_2d": "the same: two fits are compared",
    "check_fit2d_1sample": "one person is a data set like any other; one declared class is refused in our own words",
    "check_dont_overwrite_parameters": "the adapter declares for the test",
}


def test_the_contract_of_scikit_learn_is_kept() -> None:
    """All of scikit-learn's checks run; those that fail are on the list above, with the reason."""
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(Told(), on_fail=None)
    failed = {one["check_name"]: one["exception"] for one in found if one["status"] == "failed"}
    assert sorted(failed.keys() - OTHERWISE.keys()) == [], failed
    assert sum(one["status"] == "passed" for one in found) >= 45


def test_files_that_no_tensors_can_be_made_of_are_refused() -> None:
    shapes = [[0, 2**63], [0, 2**62, 4]]
    headers = [json.dumps({"w": {"dtype": "F32", "shape": s, "data_offsets": [0, 0]}}) for s in shapes]
    for header in ["[" * 200_000, *headers]:
        with pytest.raises(InvalidInput, match=r"model|file of tensors"):
            checkpoints.load_tensors(len(header).to_bytes(8, "little") + header.encode())


def test_keys_of_one_text_are_stored_as_two_tensors() -> None:
    tensors: dict[str, torch.Tensor] = {}
    form = checkpoints.pack({1: torch.tensor([1.0]), "1": torch.tensor([2.0])}, tensors, "state")
    tree = checkpoints.unpack(json.loads(json.dumps(form)), tensors)
    assert {key: value.tolist() for key, value in tree.items()} == {1: [1.0], "1": [2.0]}
