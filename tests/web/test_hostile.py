"""Hostile requests: bodies that no honest client sends, and mechanisms that would name their own price."""

from __future__ import annotations

import dataclasses
import json

import pytest

from discreet import _registry
from discreet.app.web import verbs
from discreet.mechanisms.protocols import Interactive, Mechanism, Stepped

from .running import COUNT, Server

DIGITS = "1" * 4301
DEEP = "[" * 50_000 + "]" * 50_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        DEEP.encode(),
        b'{"sql": ' + DEEP.encode() + b"}",
        b'{"sql": "SELECT 1", "epsilon": ' + b"9" * 6000 + b"}",
        b'{"sql": "SELECT 1", "epsilon": NaN}',
        b'{"sql": "SELECT 1", "epsilon": 1e999}',
        b'{"sql": "SELECT \\ud800 FROM health", "epsilon": 1}',
        b'{"sql": "SELECT \\u0000 FROM health", "epsilon": 1}',
        b'{"sql": "SELECT 1", "epsilon": {"fraction": "1/0"}}',
        b'{"sql": "SELECT 1", "epsilon": {"fraction": "\\ud800"}}',
        b'{"sql": "SELECT 1", "epsilon": {"type": "query.Answer"}}',
        json.dumps({"sql": COUNT, "epsilon": True}).encode(),
        json.dumps({"sql": COUNT, "epsilon": "0.1"}).encode(),
        json.dumps({"sql": COUNT, "within": True}).encode(),
        json.dumps({"sql": COUNT, "epsilon": 0.1, "rows": True}).encode(),
        json.dumps({"sql": COUNT, "epsilon": 0.1, "other": "yes"}).encode(),
        json.dumps({"sql": "(" * 15_000, "epsilon": 1}).encode(),
        json.dumps({"sql": "SELECT " + "-" * 15_000 + "1 FROM health", "epsilon": 1}).encode(),
        json.dumps({"sql": "SELECT " + "NOT " * 4_000 + "TRUE FROM health", "epsilon": 1}).encode(),
        json.dumps({"sql": COUNT, "epsilon": 0.1, "weights": {"\ud800": 1}}).encode(),
        json.dumps({"sql": "SELECT * FROM read_csv('/etc/passwd')", "epsilon": 1}).encode(),
        json.dumps({"sql": "ATTACH 'x.db'; SELECT 1", "epsilon": 1}).encode(),
        # Python reads no integer of more than 4,300 digits.
        json.dumps({"sql": f"SELECT COUNT(*) AS n FROM health WHERE age > {DIGITS}", "epsilon": 1}).encode(),
        json.dumps({"sql": f'SELECT COUNT(*) AS n FROM "number={DIGITS}"', "epsilon": 1}).encode(),
    ],
)
def test_hostile_questions_are_refused_without_a_fault_or_a_charge(server: Server, body):
    with server.client("ann") as ann:
        before = ann.get("/datasets/health/budget").json()["used"]
        for path in ("preview", "query"):
            reply = ann.post(
                f"/datasets/health/{path}", content=body, headers={"Content-Type": "application/json"}
            )
            assert 400 <= reply.status_code < 500, (path, reply.status_code, reply.text[:200])
            error = reply.json()["error"]
            assert set(error) == {"kind", "message", "code", "what", "remedy", "option", "charged"}
            assert str(server.folder) not in reply.text
            assert "has ended" not in reply.text, "a worker died of it"
        assert ann.get("/datasets/health/budget").json()["used"] == before


class Panic(BaseException):
    """Like a panic of an extension in Rust, which is no Exception."""


def test_a_worker_has_a_reply_whatever_a_request_does(monkeypatch):
    for message in (
        b"",
        b"\xff",
        DEEP.encode(),
        DIGITS.encode(),
        b"[]",
        b'{"verb": "none", "analyst": "ann"}',
    ):
        reply = json.loads(verbs.reply_to(None, message))
        assert (reply["touched"], reply["error"]["kind"]) == (True, "InvalidInput"), message[:20]

    def panic(*_: object) -> None:
        raise Panic("a value of the data")

    for handle in (panic, lambda *_: {"result": 10**5000}, lambda *_: {"result": {1, 2}}):
        monkeypatch.setattr(verbs, "handle", handle)
        reply = verbs.reply_to(None, b"{}").decode()
        assert "could not be computed" in reply
        assert "a value" not in reply


@pytest.mark.parametrize(
    "described",
    [
        {},
        {"type": 5},
        {"type": "\ud800"},
        {"type": "accounting.PureDP", "epsilon": 1, "neighbors": "add_remove"},
        {"type": "query.Answer"},
        {"type": "query.Query", "text": "x"},
        {"type": "os.system", "command": "true"},
        {"type": "accounting.NonPrivate"},
        {"type": f"entry {DIGITS} of the ledger"},
    ],
)
def test_hostile_descriptions_are_refused_without_a_fault_or_a_charge(server: Server, described):
    with server.client("ann") as ann:
        before = ann.get("/datasets/health/budget").json()["used"]
        for path in ("ask", "ask/preview", "live"):
            reply = ann.post(
                f"/datasets/health/{path}",
                content=json.dumps({"mechanism": described}),
                headers={"Content-Type": "application/json"},
            )
            assert 400 <= reply.status_code < 500, (path, reply.status_code, reply.text[:200])
            assert "has ended" not in reply.text, "a worker died of it"
        assert ann.get("/datasets/health/budget").json()["used"] == before


def test_no_mechanism_that_can_be_sent_names_its_own_price():
    """A price is computed from what a mechanism does: none takes its event as an argument."""
    kinds = (Mechanism, Interactive, Stepped)
    sent = {}
    for tag, cls in _registry.registered().items():
        if dataclasses.is_dataclass(cls) and any(_is(cls, kind) for kind in kinds):
            sent[tag] = {field.name for field in dataclasses.fields(cls) if field.init}
    assert len(sent) > 10
    assert not [tag for tag, fields in sent.items() if "event" in fields]
    assert not [tag for tag, fields in sent.items() if fields & {"path", "file", "url", "folder"}]


def _is(cls: type, kind: type) -> bool:
    method = {"Mechanism": "__call__", "Interactive": "answer", "Stepped": "restore"}[kind.__name__]
    return hasattr(cls, "event") and any(method in base.__dict__ for base in cls.__mro__[:-1])


def test_a_large_epsilon_over_http_is_insisted_on(server: Server):
    with server.client("steward") as steward:
        body = {"sql": "SELECT COUNT(*) AS n FROM health WHERE health = 'poor'", "epsilon": 200}
        refused = steward.post("/datasets/health/query", json=body)
        assert refused.status_code == 400
        assert "above 20" in refused.json()["error"]["message"]
        assert steward.post("/datasets/health/preview", json=body).status_code == 200
        # Meant, it is only refused by the budget of 100.
        assert steward.post("/datasets/health/query", json=body | {"large_epsilon": True}).status_code == 402


def test_a_question_may_be_asked_by_its_accuracy_over_http(server: Server):
    with server.client("steward") as steward:
        body = {"sql": "SELECT COUNT(*) AS n FROM health WHERE health = 'fair'", "within": 50}
        assert steward.post("/datasets/health/query", json=body).status_code == 200
        close = body | {"within": 0.5, "confidence": 1 - 1e-12}
        refused = steward.post("/datasets/health/query", json=close)
        assert refused.status_code == 400
        assert "above 20" in refused.json()["error"]["message"]
        # What has no price at all is told so.
        unpriced = steward.post("/datasets/health/workload", json={"queries": [body["sql"]]})
        assert "large_epsilon" not in unpriced.json()["error"]["message"]
