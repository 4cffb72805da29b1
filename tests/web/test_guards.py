"""Over HTTP: what a policy limits beside its budgets holds for every way to ask, and stays when budgets are changed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import BudgetExceeded, Unsupported
from discreet.app.cli import app
from discreet.query import Query

from .running import Server
from .test_same_session import ROWS, SCHEMA, WARDS

COUNT = "SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward"


@pytest.fixture(scope="module")
def people(server: Server) -> dp.Session:
    (server.folder / "data" / "guarded.csv").write_text(f"day,ward,age,cost\n{ROWS}")
    body = {
        "name": "guarded", "path": "guarded.csv", "schema_text": SCHEMA, "analysts": {"ann": None},
        "budget": {"epsilon": 9.0, "delta": 1e-6},
    }  # fmt: skip
    with server.client("steward") as steward:
        assert steward.post("/datasets", json=body).status_code == 201
        (path,) = server.folder.rglob("guarded*.ledger")
        limits = ["--max-per-day", "1", "--max-per-question", "0.5", "--min-people", "11"]
        assert CliRunner().invoke(app, ["policy", str(path), *limits]).exit_code == 0
        # changed over HTTP, which says nothing of the limits
        shown = steward.get("/datasets/guarded/policy").json()
        assert (shown["max_per_day"], shown["max_per_question"], shown["min_people"]) == (1.0, 0.5, 11)
        changed = {"budget": {"epsilon": 8.0, "delta": 1e-6}, "analysts": {"ann": None}}
        assert steward.put("/datasets/guarded/policy", json=changed).status_code == 200
    return dp.connect(server.url, server.tokens["ann"], dataset="guarded")


def test_limits_of_a_policy_hold_over_the_network(server: Server, people: dp.Session) -> None:
    assert people.curator.policy.limits == {"max_per_day": 1.0, "max_per_question": 0.5, "min_people": 11}
    with pytest.raises(BudgetExceeded, match=r"max_per_question = 0.5 is the most"):
        people.sql(COUNT, epsilon=0.6)
    with pytest.raises(Unsupported, match="min_people"):
        people.workload([COUNT], epsilon=0.1)
    with pytest.raises(Unsupported, match="min_people"):
        people.ask(Query(sql=COUNT, public=people.public, epsilon=0.1))
    assert people.spent == 0
    answer = people.sql(WARDS, epsilon=0.5)
    assert "one of fewer than 11 is shown" in answer.notes[0]
    with server.client("ann") as ann:
        asked = {"sql": COUNT, "epsilon": 0.25, "min_people": 100_000}
        reply = ann.post("/datasets/guarded/query", json=asked)
        assert reply.status_code == 200, reply.text
        assert reply.json()["rows"] == []
        assert "2 groups are hidden" in reply.json()["notes"][0]
        refused = ann.post("/datasets/guarded/query", json={"sql": COUNT, "epsilon": 0.5})
        assert refused.status_code == 402, refused.text
        assert "max_per_day = 1 is the most" in refused.text
    assert people.spent == pytest.approx(0.75)


def test_a_steward_changes_limits_over_the_network(server: Server, people: dp.Session) -> None:
    body = {"budget": {"epsilon": 8.0, "delta": 1e-6}, "analysts": {"ann": None}}
    with server.client("steward") as steward:
        for limits, left in (({"max_per_day": 2.5}, 2.5), ({}, 2.5), ({"max_per_day": 0}, None)):
            changed = steward.put("/datasets/guarded/policy", json=body | limits)
            assert changed.status_code == 200, changed.text
            assert changed.json().get("max_per_day") == left
            assert changed.json()["min_people"] == 11
        assert steward.put("/datasets/guarded/policy", json=body | {"max_per_day": -1}).status_code == 422
    assert "max_per_day" not in people.curator.policy.limits
