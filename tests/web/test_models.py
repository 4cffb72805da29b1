"""Models over HTTP: JSON of tables and networks; never a pickle, never Python from the wire."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

import discreet as dp
from discreet import _require
from discreet.app.estimator_json import NAMES, PYTHON, describe_estimator, estimator_of, model_json
from discreet.app.remote import model_of
from discreet.learning import SGDLogisticRegression

from .running import Server

ROWS = {"age": [30.0, 60.0], "visits": [3.0, 30.0]}


@pytest.fixture(scope="module")
def ann(server: Server):
    return dp.connect(server.url, server.tokens["ann"], dataset="health")


def test_a_network_that_was_trained_on_the_server_comes_back_equal(server, ann):
    """What predicts here has the tensors of the file that the server sent, read by another program too."""
    from safetensors.numpy import load

    estimator = SGDLogisticRegression(epsilon=1, n=5000, epochs=1, batch=500)
    body = {"estimator": describe_estimator(estimator), "target": "sex", "features": ["age", "visits"]}
    with server.client("ann") as own:
        job = own.post("/datasets/health/run", json={"seconds": 40, "fit": body})
        assert job.status_code == 202, job.text
        from discreet.app.client import Job
        from discreet.app.client import Server as Remote

        facts = Job(Remote(server.url, server.tokens["ann"]), job.json()["id"]).wait()
    assert set(facts) == {"model"}
    raw = base64.b64decode(facts["model"]["weights"])
    tensors = load(raw)
    model = model_of(facts)
    weights = {name: tensor.numpy() for name, tensor in model.module_.state_dict().items()}
    assert weights.keys() == tensors.keys()
    assert all(np.array_equal(weights[name], tensors[name]) for name in tensors)
    assert model.event_.to_json() == facts["model"]["event"]
    assert set(model.predict(ROWS)) <= {"female", "male"}
    assert b"pickle" not in raw
    assert "pickle" not in json.dumps(facts)
    again = model_of(model_json(model))
    assert np.array_equal(again.predict_proba(ROWS), model.predict_proba(ROWS))


def test_a_changed_file_of_tensors_is_no_model(ann):
    weights = base64.b64encode(b"\x80\x04K\x01.").decode()
    described = {"format": "discreet.model/1", "holds": "network", "kind": "DPClassifier", "weights": weights}
    with pytest.raises(dp.InvalidInput, match="not a model file"):
        model_of({"model": described})


@pytest.mark.parametrize("name", NAMES)
def test_every_estimator_that_can_be_sent_is_the_same_on_the_other_side(name):
    from discreet import learning, tabular

    cls = getattr(tabular if name in tabular.__all__ else learning, name)
    if name == "PrivateSearch":
        made = cls(tabular.LogisticRegression(), {"epsilon": [0.1, 0.2]}, epsilon=1)
    else:
        made = cls(**({"n_clusters": 3} if name == "KMeans" else {}), epsilon=0.5)
    described = json.loads(json.dumps(describe_estimator(made)))
    assert describe_estimator(estimator_of(described)) == described


def test_estimators_inside_lists_and_maps_are_the_same_on_the_other_side():
    """They were sent as descriptions, and stayed maps."""
    from discreet.tabular import LogisticRegression, PrivateSearch

    inner = PrivateSearch(LogisticRegression(), {"regularization": [1, 10]}, epsilon=1)
    space = {"estimator": [LogisticRegression(fit_intercept=False), LogisticRegression()]}
    described = json.loads(json.dumps(describe_estimator(PrivateSearch(inner, space, epsilon=2))))
    again = estimator_of(described)
    assert [type(one) for one in again.space["estimator"]] == [LogisticRegression] * 2
    assert again.space["estimator"][0].fit_intercept is False
    assert describe_estimator(again) == described


def test_a_description_that_is_nested_too_deep_is_refused_as_such():
    """It was refused with the list of estimators, of which it was one."""
    nested = {"estimator": "LogisticRegression"}
    for _ in range(4):
        nested = {
            "estimator": "PrivateSearch",
            "parameters": {"estimator": nested, "space": {}, "epsilon": 1},
        }
    with pytest.raises(
        dp.InvalidInput, match=r"nested in at most 3 others.*LogisticRegression is nested in 4"
    ):
        estimator_of(nested)
    assert estimator_of(nested["parameters"]["estimator"])
    lists = []
    for _ in range(100):
        lists = [lists]
    with (
        pytest.raises(dp.InvalidInput, match=r"lower is nested more than 64 deep\. Nothing was charged"),
        _require.door(),
    ):
        estimator_of({"estimator": "KMeans", "parameters": {"lower": lists}})


@pytest.mark.parametrize("parameter", PYTHON)
def test_no_parameter_that_takes_python_is_read_from_the_wire(parameter):
    with pytest.raises(dp.InvalidInput, match="takes Python"):
        estimator_of({"estimator": "DPClassifier", "parameters": {parameter: "os.system"}})


@pytest.mark.parametrize("described", [None, {}, {"estimator": "Trainer"}, {"estimator": "__class__"}, {"estimator": "LogisticRegression", "parameters": ["x"]}, {"estimator": "LogisticRegression", "parameters": {"nope": 1}}, {"estimator": ["LogisticRegression"]}])  # fmt: skip
def test_what_is_no_estimator_is_refused(described):
    with pytest.raises(dp.InvalidInput, match="Nothing was charged"), _require.door():
        estimator_of(described)
