"""`dp.connect`: the verbs of a local session over HTTP, and what cannot be sent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from copy import copy
from dataclasses import replace
from fractions import Fraction

import httpx
import numpy as np
import pytest

import discreet as dp
from discreet import query
from discreet._errors import InvalidInput, PublicMismatch
from discreet.app.client import Server as Remote
from discreet.app.client import ServerError
from discreet.app.web.pages import _csv

from .running import COUNT, Server, free_port


@pytest.fixture(scope="module")
def people(server: Server):
    return dp.connect(server.url, server.tokens["ann"], dataset="health")


def test_one_granted_dataset_is_opened_at_once(people):
    assert people.curator.name == "health"
    assert people.public.table == "health"


def test_a_preview_and_an_answer_are_those_of_a_local_session(people):
    before = people.spent
    preview = people.preview(COUNT, epsilon=0.125)
    assert people.spent == before
    assert preview.admitted
    assert "price: epsilon 0.125" in str(preview)
    answer = people.sql(COUNT, epsilon=0.125)
    assert answer.columns == ("health", "n")
    assert len(answer) == 4
    assert answer.interval(0.95)["n"][0][0] < answer["n"][0] < answer.interval(0.95)["n"][0][1]
    assert answer.error(0.95)["n"][0] == preview.query.errors[1]
    assert people.spent == pytest.approx(before + 0.125, abs=0.02)
    again = people.spent
    assert people.sql(COUNT, epsilon=0.125) == answer, "the same question again is the stored answer"
    assert people.spent == again


def test_a_budget_prints_what_is_spent_and_left(people):
    budget = people.budget
    lines = [line.split() for line in str(budget).splitlines()]
    assert lines[0][1:] == ["limit", "spent", "left"]
    amounts = (budget.epsilon, people.spent, people.remaining)
    assert lines[1] == ["epsilon", *(f"{amount:.6g}" for amount in amounts)]
    assert lines[2] == ["delta", f"{budget.delta:.6g}", "-", "-"]
    assert str(budget).endswith("(the server does not say how much of delta is spent)")
    assert repr(budget).startswith("Budget(epsilon=")


def test_exact_numbers_stay_exact(people):
    assert people.sql("SELECT COUNT(*) AS n FROM health", epsilon=Fraction(1, 8)).event.to_json()[
        "scale"
    ] == {"fraction": "40/1"}


def test_workloads_mechanisms_watches_and_cut_offs(people):
    both = [COUNT, "SELECT COUNT(*) AS n FROM health WHERE health = 'poor'"]
    assert "2 answers together" in str(people.preview(both, epsilon=0.25))
    errors = [people.preview(both, epsilon=0.25, confidence=c).query.errors[-1] for c in (0.5, 0.99)]
    assert errors[0] < errors[1]
    for ignored in (
        {"noise": "laplace"},
        {"groups": 2},
        {"weights": {"n": 2}},
        {"other": True},
        {"within": 5},
    ):
        with pytest.raises(InvalidInput, match=r"previewed as a workload.*Leave the others out"):
            people.preview(both, epsilon=0.25, **ignored)
    whole, part = people.workload(both, epsilon=0.25)
    assert len(whole) == 4
    assert len(part) == 1
    release = people.ask(query.ask(COUNT, people.public, epsilon=0.0625, delta=0.0))
    assert release.value.columns == ("health", "n")
    watch = people.watch(100, epsilon=0.5, positives=1)
    assert watch.ask("age > 60").above in (True, False)
    later = people.watch(100, epsilon=0.5, number=watch.number)
    assert later.number == watch.number
    assert people.cut_off(rows=4, epsilon=0.125).columns == ("units", "above")


def test_an_accuracy_can_be_asked_for(people):
    """It was refused: "preview has no option 'large_epsilon'"."""
    answer = people.sql("SELECT COUNT(*) AS n FROM health", within=2000, confidence=0.9)
    assert answer.error(0.9)["n"][0] <= 2000


def test_models_come_back_as_json_that_predicts(people):
    from discreet.tabular import LogisticRegression

    model = people.fit(LogisticRegression(epsilon=1, n=5000), target="sex", features=["age", "visits"])
    assert set(model.predict({"age": [30.0], "visits": [3.0]})) <= {"female", "male"}
    assert model.notes["epsilon"] == 1


def test_what_has_no_description_is_refused_with_the_way_out(people):
    from discreet.tabular import PrivateSearch

    with pytest.raises(dp.InvalidInput, match=r"steward's own process"):
        people.ask(lambda source: 1)
    with pytest.raises(dp.InvalidInput, match="cannot be sent"):
        people.train(object())
    with pytest.raises(dp.InvalidInput, match="cannot be sent"):
        people.fit(object(), target="sex")
    with pytest.raises(dp.InvalidInput, match="no JSON description"):
        people.fit(PrivateSearch(lambda: 1, {}, epsilon=1), target="sex")


def test_errors_are_those_of_a_local_session(people, server):
    with pytest.raises(dp.BudgetExceeded, match="Nothing was charged"):
        people.sql(COUNT, epsilon=1000)
    with pytest.raises(dp.InvalidInput, match="nothing is declared"):
        people.sql("SELECT AVG(nope) AS a FROM health", epsilon=0.1)
    with pytest.raises(ServerError, match="token"):
        dp.connect(server.url, "dsc_wrong").sql(COUNT, epsilon=0.1)
    with pytest.raises(ServerError, match="no dataset"):
        dp.connect(server.url, server.tokens["ann"], dataset="payroll").preview(COUNT, epsilon=1)


def test_an_error_has_the_fields_of_a_local_session_s(people, server):
    """The parts of its message, and whether something was charged, come over the wire, and in the JSON."""
    local = dp.open(
        {"age": [1]}, unit=dp.rows(), schema={"age": dp.Bounds(0, 9)}, table="health",
        budget=dp.Budget(epsilon=1), ledger=":memory:",
    )  # fmt: skip
    for options in ({"epsilon": 0.1, "rho": 0.1}, {"epsilon": 0.1, "confidence": 0.5, "within": 3}):
        errors = []
        for session in (local, people):
            with pytest.raises(dp.InvalidInput) as refused:
                session.sql("SELECT COUNT(*) AS n FROM health", **options)
            errors.append(refused.value)
        one, other = errors
        assert (type(one), one.charged) == (type(other), other.charged)
        assert other.charged is False
        assert (one.what, one.remedy, one.option) == (other.what, other.remedy, other.option)
    with server.client("ann") as ann:
        body = {"sql": COUNT, "epsilon": 1e5, "large_epsilon": True}
        too_much = [ann.post("/datasets/health/query", json=body).json()["error"]]
        too_much.append(ann.post("/datasets/health/run", json={"seconds": 1}).json()["error"])
    for error in too_much:
        assert error["charged"] is False
        assert error["message"].startswith(error["what"])
        assert error["message"].endswith("Nothing was charged.")


def test_a_token_never_travels_without_tls():
    with pytest.raises(dp.InvalidInput, match="without TLS"):
        dp.connect("http://data.example.org", "dsc_x")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_a_token_for_this_machine_goes_through_no_proxy(monkeypatch, host):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.05)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        for scheme in ("http", "https"):
            with pytest.raises(ServerError, match="no connection"):
                dp.connect(f"{scheme}://{host}:{free_port()}", token="dsc_x", timeout=600.0)
        # Nobody has connected to the proxy.
        with pytest.raises(TimeoutError):
            proxy.accept()


def test_a_public_fact_that_differs_is_refused(people):
    other = dp.Public(schema={"age": dp.Bounds(0, 65)}, table="health")
    with pytest.raises(PublicMismatch, match="other public facts"):
        people.ask(query.ask("SELECT COUNT(*) AS n FROM health", other, epsilon=0.25, delta=0.0))


def test_a_server_that_is_not_there_was_asked_nothing():
    with pytest.raises(ServerError, match="nothing was asked, and nothing was charged") as refused:
        dp.connect(f"http://127.0.0.1:{free_port()}", "dsc_x").sql(COUNT, epsilon=0.1)
    assert "stays charged" not in str(refused.value)


def test_the_shell_says_where_it_serves_once_it_listens(tmp_path):
    """What reads that line may connect at once."""
    command = [sys.executable, "-c", "from discreet.app.cli import main; main()", "serve", "--demo"]
    process = subprocess.Popen(
        [*command, "--port", str(free_port()), "--workers", "1"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )
    lines = []
    try:
        for line in process.stdout:
            lines.append(line.strip())
            if "serves at" in line:
                break
        assert httpx.get(f"{lines[-1].split()[-1]}/login", timeout=600).status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=600)
    said = "\n".join(lines)
    assert "dp.connect(url, token)" in said
    assert "'health'" in said


def test_the_error_of_a_stream_takes_a_probability_of_any_float_type(people):
    stream = people.stream("SELECT COUNT(*) AS n FROM health", epsilon=0.1, horizon=3, participations=1)
    assert stream.error(np.float64(0.9)) == stream.error(0.9) > 0
    with pytest.raises(InvalidInput, match="confidence"):
        stream.error("0.9&x=1")


@pytest.mark.parametrize(
    ("url", "token"),
    [
        (3, "dsc_x"),
        (None, "dsc_x"),
        ("https://[::1", "dsc_x"),
        ("https://a\x00b", "dsc_x"),
        ("http://localhost:abc", "dsc_x"),
        ("https://" + "a" * 300, "dsc_x"),
        ("http://u:é@example.org", "dsc_x"),
        ("http://127.0.0.1:1", ""),
        ("http://127.0.0.1:1", "é"),
        ("http://127.0.0.1:1", "a\n"),
        ("http://127.0.0.1:1", 3),
    ],
)
def test_an_address_or_token_that_is_none_is_refused_before_anything_is_sent(url, token):
    with pytest.raises(dp.InvalidInput) as refused:
        dp.connect(url, token)
    assert "é" not in str(refused.value)


def test_a_dataset_is_one_segment_of_the_address_and_a_request_is_json(people):
    """ "health?x" asked the dataset "health", and NaN ended in a traceback."""
    asked, facts = [], people.curator.read("")

    def answer(request):
        asked.append(request.url.raw_path)
        return httpx.Response(200, json=facts if asked[1:] else {})

    server = Remote("http://127.0.0.1:9", "dsc_x")
    server._http = httpx.Client(base_url="http://127.0.0.1:9/v1", transport=httpx.MockTransport(answer))
    with pytest.raises(dp.DiscreetError):
        _ = server["a/../b?x#y"]
    assert asked == [b"/v1/datasets/a%2F..%2Fb%3Fx%23y"]
    sent = replace(people, curator=copy(people.curator))
    sent.curator.server = server
    for refuse in (
        lambda: sent.synthesize(epsilon=1, columns=["sex"], seconds=float("inf")),
        lambda: sent.workload("SELECT 1", epsilon=1),
        lambda: sent.curator.release("1; x"),
        lambda: sent.synthesize(epsilon=1, bins={"age": 3.5}),
        lambda: dp.connect("http://127.0.0.1:9", "dsc_x", timeout=float("nan")),
    ):
        with pytest.raises(dp.InvalidInput):
            refuse()
    # the budget, of which delta has a share by default
    assert set(asked[1:]) <= {b"/v1/datasets/health"}


def test_a_download_names_the_ends_of_intervals_lower_and_upper(people):
    """Scripts read these files: frames in Python have `n_low` and `n_high`."""
    answer = people.sql("SELECT sex, COUNT(*) AS n FROM health GROUP BY sex", epsilon=0.01)
    lines = _csv(answer).splitlines()
    assert lines[0] == "sex,n,n_lower,n_upper"
    (low, high) = answer.interval()["n"][0]
    assert lines[1] == f"{answer['sex'][0]},{answer['n'][0]},{low},{high}"
