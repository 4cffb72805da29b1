"""A search that was interrupted goes on with exactly what it was begun with: the price of the best of many
runs is that of runs which are all alike."""

import numpy as np
import pytest
import torch

import discreet as dp
from discreet import InvalidInput
from discreet.learning import DPClassifier
from discreet.tabular import LogisticRegression, PrivateSearch
from discreet.tabular.trials import RandomTrials, RepeatedTrials

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


def interrupted(people, monkeypatch, estimator):
    """Begin a search whose first trial never ends, and return the number of its charge."""
    with monkeypatch.context() as patch:

        def stop(*args):
            raise KeyboardInterrupt

        patch.setattr(RepeatedTrials, "draw_candidate", stop)
        with pytest.raises(KeyboardInterrupt):
            people.fit(estimator, target="y")
    return people.ledger.last("charge").seq


def test_an_interrupted_search_goes_on_with_the_same_candidates_only(tmp_path, monkeypatch):
    people = opened(tmp_path)
    number = interrupted(people, monkeypatch, search())
    spent, before = people.spent, people.ledger.anchor
    again = opened(tmp_path)
    others = {
        "values": search((1.0, 100.0)),
        "order": search((10.0, 1.0)),
        "one more": search((1.0, 10.0, 10.0)),
        "holdout": search(holdout=0.3),
        "law": search(law="poisson"),
        "base": search(estimator=LogisticRegression(method="gradient", fit_intercept=False)),
        "weights": search(estimator=LogisticRegression(method="gradient", class_weight={0: 2.0})),
    }
    for other in others.values():
        with pytest.raises(InvalidInput, match="not the start of this run"):
            again.fit(other, target="y", number=number)
    with pytest.raises(InvalidInput, match="not the start of this run"):
        again.fit(search(), target="y", features=["a"], number=number)
    assert again.ledger.anchor == before
    model = again.fit(search(), target="y", number=number)
    assert model.best_params_["regularization"] in (1.0, 10.0)
    assert again.spent == spent
    # what was released is told again, and nothing is run
    told = again.fit(search(), target="y", number=number)
    assert told.model_ == model.model_


def test_candidates_of_one_price_are_told_apart_by_more_than_the_price(tmp_path):
    """The mutant that compares prices alone would go on with the wrong ones."""
    public = opened(tmp_path).public
    one, other = (search(v).mechanism(public, target="y") for v in ((1.0, 10.0), (1.0, 100.0)))
    assert isinstance(one, RandomTrials)
    assert one.event == other.event
    assert (one.length, one.blob_size) == (other.length, other.blob_size)
    assert one != other


def test_a_search_of_trainers_goes_on_with_the_same_models_and_weights_only(tmp_path, monkeypatch):
    def trained(seed=0, momentum=0.0):
        torch.manual_seed(seed)
        space = {"optimizer": [dp.learning.SGD(lr=lr, momentum=momentum) for lr in (0.1, 0.5)]}
        module = torch.nn.Linear(2, 2)
        estimator = DPClassifier(module=module, epochs=2, batch=100)
        return PrivateSearch(estimator, space, epsilon=2.0, delta=1e-6, trials=2.0)

    people = opened(tmp_path)
    number = interrupted(people, monkeypatch, trained())
    again = opened(tmp_path)
    for other in (trained(seed=1), trained(momentum=0.9)):
        with pytest.raises(InvalidInput, match="not the start of this run"):
            again.fit(other, target="y", number=number)
    spent = again.spent
    assert again.fit(trained(), target="y", number=number).best_params_
    assert again.spent == spent


def test_number_is_for_searches(tmp_path):
    people = opened(tmp_path)
    before = people.ledger.anchor
    with pytest.raises(InvalidInput, match="continues a PrivateSearch only"):
        people.fit(LogisticRegression(epsilon=1), target="y", number=1)
    assert people.ledger.anchor == before


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
