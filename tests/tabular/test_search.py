"""Searches: what an interrupted one costs, how their time is hidden, public tables, and what is compared."""

import time
from datetime import datetime

import numpy as np
import pytest

import discreet as dp
from discreet import InvalidInput
from discreet.curator import identities
from discreet.tabular import LogisticRegression, PrivateSearch
from discreet.tabular.trials import RepeatedTrials, cap_of

SIZE = 300


def opened(folder):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (SIZE, 2))
    table = {"a": x[:, 0], "b": x[:, 1], "y": (x.sum(axis=1) > 0).astype(int)}
    path = folder / "ledger"
    new = {} if path.exists() else {"budget": dp.Budget(epsilon=9, delta=1e-5)}
    schema = {"a": dp.Bounds(-1, 1), "b": dp.Bounds(-1, 1), "y": dp.Categories([0, 1])}
    return dp.open(table, unit=dp.rows(), size=SIZE, schema=schema, ledger=path, version="1", **new)


def search(values=(1.0, 10.0), estimator=None, **options):
    terms = {"epsilon": 1.0, "trials": 3.0, "delta": 1e-6} | options
    estimator = LogisticRegression(method="gradient") if estimator is None else estimator
    return PrivateSearch(estimator, {"regularization": list(values)}, **terms)


def test_an_interrupted_search_is_lost_and_the_next_pays_its_own_price(tmp_path, monkeypatch):
    people = opened(tmp_path)

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RepeatedTrials, "draw_candidate", stop)
        with pytest.raises(KeyboardInterrupt):
            people.fit(search(), target="y")
    assert [entry.kind for entry in people.ledger.entries()] == ["open", "charge"]
    spent = people.spent
    again = opened(tmp_path)
    model = again.fit(search(), target="y")
    assert model.best_params_["regularization"] in (1.0, 10.0)
    assert again.spent > spent


def test_a_pace_hides_how_many_runs_were_taken(tmp_path):
    people = opened(tmp_path)
    with pytest.raises(InvalidInput, match="pace must be zero or above"):
        people.fit(search(pace=-1.0), target="y")
    model = search(pace=0.05, trials=1.5)
    begun = time.monotonic()
    people.fit(model, target="y")
    whole = 0.05 * cap_of(model.mechanism_.trials)
    assert time.monotonic() - begun >= whole > 0.2
    charge, release = (datetime.fromisoformat(entry.time) for entry in list(people.ledger.entries())[1:])
    assert (release - charge).total_seconds() >= whole - 0.002


def test_a_search_is_fitted_anew_each_time_however_many_candidates_it_has(tmp_path, monkeypatch):
    """The descriptions of its candidates could be more than an entry of the ledger holds."""
    monkeypatch.setattr(identities, "MAX_CHARACTERS", 2000)
    people, many = opened(tmp_path), [float(n) for n in range(1, 31)]
    one, other = (people.fit(search(many, trials=1.5), target="y") for _ in range(2))
    assert [entry.kind for entry in people.ledger.entries()][1:] == ["charge", "release"] * 2
    assert one.model_ != other.model_


def test_parameters_carried_over_from_a_public_table_cost_nothing(tmp_path):
    """On the public table a strong penalty is bad; the private table pays for one fit only."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, (SIZE, 2))
    y = (X.sum(axis=1) > 0).astype(int)
    base = LogisticRegression(classes=[0, 1], lower=-1, upper=1, method="objective")
    tuning = PrivateSearch(base, {"regularization": [1e6, 10.0]}, epsilon=2.0, delta=0.0)
    best = tuning.carried_over(X, y, folds=2)
    assert best.get_params() == base.get_params() | {"regularization": 10.0, "epsilon": 2.0, "delta": 0.0}
    people = opened(tmp_path)
    people.fit(best, target="y")
    assert people.spent == pytest.approx(2.0, abs=1e-6)
    assert not hasattr(tuning, "best_params_")
    with pytest.raises(InvalidInput, match="folds"):
        tuning.carried_over(X, y, folds=1)


def test_a_comparison_has_plain_composition_beside_and_marks_what_cheating_would_claim(tmp_path):
    costs = opened(tmp_path).fit(search([1.0, 3.0, 10.0, 30.0, 100.0]), target="y").comparison()
    own, plain, cheating = costs.values()
    assert list(costs)[1].startswith("plain composition")
    assert "cheating" in list(costs)[2]
    assert "not a guarantee" in list(costs)[2]
    assert cheating < own <= 1.0 < plain
