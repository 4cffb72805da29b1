"""Bounds that are found and paid for, then a model, in one price."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet import Bounds, Budget, Categories, InvalidInput, Public, tabular
from discreet import accounting as acc
from discreet.tabular import GaussianNB, LogisticRegression, PrivatePipeline, PrivateSearch
from discreet.tabular.learner import narrow_bounds

ROWS = 4000
SCHEMA = {"pay": Bounds(0, 2e4), "ward": Categories(["a", "b"]), "ill": Categories(["no", "yes"])}


def people(ledger: Path | str = ":memory:", **how: Any) -> Any:
    rng = np.random.default_rng(0)
    pay = rng.normal(5000, 1000, ROWS).clip(0)
    table = {"pay": pay, "ward": rng.choice(["a", "b"], ROWS), "ill": np.where(pay > 5000, "yes", "no")}
    settings: dict[str, Any] = {
        "budget": Budget(epsilon=9, delta=1e-5),
        "unit": dp.rows(),
        "size": ROWS,
        **how,
    }
    return dp.open(table, schema=SCHEMA, ledger=ledger, **settings)


NEW = {"pay": [3500.0, 6500.0], "ward": ["a", "b"]}


@pytest.mark.parametrize(
    "how",
    [{"clip": (0.05, 0.95)}, pytest.param({"scale": True}, marks=pytest.mark.slow)],
    ids=["quantiles", "scale"],
)
def test_found_bounds_make_a_model_that_declared_ones_do_not(how: dict[str, Any], tmp_path: Path) -> None:
    session = people()
    model = session.fit(PrivatePipeline(LogisticRegression(), epsilon=3, weights=(1, 1), **how), target="ill")
    assert session.spent <= 3
    low, high = model.bounds_["pay"]
    assert 0 <= low < 5000 < high < 15_000
    assert model.predict(NEW).tolist() == ["no", "yes"]
    assert model.score(NEW, ["no", "yes"]) == 1
    tabular.save(model, tmp_path / "model.json")
    assert tabular.load(tmp_path / "model.json").predict(NEW).tolist() == ["no", "yes"]
    assert "Piped" in tabular.card(model).markdown()
    assert len(list(session.ledger.entries(kind="charge"))) == 1


def test_shares_follow_the_weights_and_grow_where_composition_allows() -> None:
    session = people()
    pure = PrivatePipeline(LogisticRegression(), epsilon=2, delta=0.0, weights=(1, 3)).mechanism(
        session.public, target="ill"
    )
    assert pure.steps[0].epsilon == pytest.approx(0.5)
    assert pure.learner.epsilon == pytest.approx(1.5)
    assert sum(acc.basic(pure.event)) <= 2
    tight = PrivatePipeline(GaussianNB(), epsilon=1, scale=True, delta=1e-6, weights=(1, 1)).mechanism(
        session.public, target="ill"
    )
    assert tight.learner.epsilon > 0.505, "two Gaussian parts cost less than the sum of their epsilons"
    assert acc.epsilon(tight.event, delta=1e-6) <= 1


def test_what_is_refused_costs_nothing() -> None:
    session = people(budget=Budget(epsilon=1))
    for match, model in [
        ("needs a delta", PrivatePipeline(LogisticRegression(), scale=True)),
        ("low < high", PrivatePipeline(LogisticRegression(), clip=(0.9, 0.1))),
        ("columns", PrivatePipeline(LogisticRegression(), columns=["ward"])),
        ("columns", PrivatePipeline(LogisticRegression(), columns="pay")),
        ("weights", PrivatePipeline(LogisticRegression(), weights=(0, 1))),
        ("weights must be a pair", PrivatePipeline(LogisticRegression(), weights=(1, 2, 3))),  # type: ignore[arg-type]
        ("clip must be a pair", PrivatePipeline(LogisticRegression(), clip=(0.1, 0.5, 0.9))),  # type: ignore[arg-type]
        ("not a pipeline", PrivateSearch(PrivatePipeline(LogisticRegression()), {"scale": [False]})),
        ("not a search", PrivatePipeline(PrivateSearch(LogisticRegression(), {"regularization": [50.0]}))),
    ]:
        with pytest.raises(InvalidInput, match=match):
            session.fit(model, target="ill")
    assert session.spent == 0


def test_shares_of_columns_and_of_models_never_add_up_to_more_than_epsilon() -> None:
    facts = {"a": Bounds(0, 1), "b": Bounds(0, 1), "c": Bounds(0, 1), "y": Categories([0, 1, 2, 3, 4])}
    public = Public(schema=facts, size=1000)
    design = tabular.Design(features=("a", "b"), target="y")
    for epsilon in (0.1, 1.0, 2.1):
        steps = tabular.learner.QuantileBounds(public=public, columns=("a", "b", "c"), epsilon=epsilon)
        models = tabular.OutputPerturbation(public=public, design=design, epsilon=epsilon, regularization=9.0)
        assert acc.basic(steps.event)[0] <= epsilon
        assert acc.basic(models.event)[0] <= epsilon


def test_narrowed_bounds_are_never_empty_and_stay_inside() -> None:
    public = Public(schema=SCHEMA, size=5)
    for low, high in [(5.0, 5.0), (-9.0, 4e4), (9.0, 3.0), (float("nan"), 1.0), (2e4, 2e4), (0.0, 0.0)]:
        bounds = narrow_bounds(public, [("pay", low, high)]).bounds("pay")
        assert 0 <= bounds.lower < bounds.upper <= 2e4
