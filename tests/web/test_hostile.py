"""Hostile requests: bodies that no honest client sends, and mechanisms that would name their own price."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import pytest
from pydantic import ValidationError

from discreet import InvalidInput, _registry
from discreet.app.web import Settings, api, bodies, build, verbs, wire
from discreet.app.web.server_store import Dataset, Role
from discreet.mechanisms.protocols import Interactive, Mechanism, Stepped

from .running import COUNT, Server, in_a_loop

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


def body_routes(app):
    """Every route with a JSON body, as a path and the people it is for."""
    for route in api.router.routes:
        if getattr(route, "kind", None) is not None:
            path = re.sub(r"{(\w+)}", lambda m: {"who": "ann"}.get(m[1], "1"), route.path)
            yield next(iter(route.methods)), path.replace("datasets/1", "datasets/health")


class Reading:
    """A client that counts how often its body is asked for."""

    def __init__(self, app, token: str, body: bytes = b"x" * 1_000_000) -> None:
        self.app, self.token, self.body, self.reads, self.sent = app, token, body, 0, []

    async def receive(self):
        self.reads += 1
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message) -> None:
        self.sent.append(message)

    def request(self, method: str, path: str) -> int:
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {self.token}".encode())]
        headers.append((b"content-type", b"application/json"))
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http",
        }  # fmt: skip
        in_a_loop(lambda: self.app(scope, self.receive, self.send))
        return self.sent[-2]["status"]


@pytest.fixture
def inside(tmp_path):
    """An application in this process, whose workers take any request and note it; and tokens."""
    app = build(Settings(state=tmp_path, rate=1000, burst=1000))
    store, desk = app.state.store, app.state.desk
    tokens = {}
    for name, role in (("ann", Role.ANALYST), ("olga", Role.AUDITOR), ("root", Role.STEWARD)):
        store.add_person(name, role)
        tokens[name] = store.issue_token(name, 1)[0]
    store.add_dataset(Dataset("health", "", "", ""))
    store.set_grants("health", ["ann"])
    notes: list[dict[str, Any]] = []

    class Noting:
        ready_workers = 2

        def start_once(self) -> None: ...

        async def call(self, request, deadline, who):
            notes.append(request)
            return {"result": b'{"work": [["fit", "fit"]], "seconds": null}', "touched": False}

    desk.previews = desk.data = desk.slow_free = Noting()
    yield app, tokens, notes
    store.close()


def test_no_body_is_read_of_who_is_not_known_or_may_not_send_it(inside):
    """FastAPI reads a body that is a parameter before it asks who sends it: 100 CPU-ms for a megabyte."""
    app, tokens, notes = inside
    routes = list(body_routes(app))
    assert len(routes) >= 17
    for method, path in routes:
        stranger, auditor = Reading(app, "dsc_x"), Reading(app, tokens["olga"])
        assert (stranger.request(method, path), stranger.reads) == (401, 0), path
        assert (auditor.request(method, path), auditor.reads) == (403, 0), path
    assert not notes


def test_the_front_process_parses_no_body_of_an_analyst(inside):
    """A megabyte of wrong cells took 6 CPU-s of the event loop, and 1.8 GB: a worker is sent the bytes."""
    app, tokens, notes = inside
    body = b"{" * 100_000
    for method, path in body_routes(app):
        if path.split("/")[3] == "datasets" and method == "POST" and path != "/api/v1/datasets":
            notes.clear()
            assert Reading(app, tokens["ann"], body).request(method, path) == 200, path
            assert [note["sent"] for note in notes] in ([body], [body, body]), path


@pytest.mark.parametrize(("tail", "most"), [("query", bodies.SMALL), ("ask", bodies.LARGE)])
def test_a_body_has_a_size_of_its_route(inside, tail, most):
    app, tokens, _ = inside
    path = f"/api/v1/datasets/health/{tail}"
    assert Reading(app, tokens["ann"], b"x" * most).request("POST", path) == 200
    assert Reading(app, tokens["ann"], b"x" * (most + 1)).request("POST", path) == 413


def test_a_megabyte_of_wrong_values_is_a_few_errors():
    """Each list ends at its limit, and cells are not compared with several types one by one."""
    kinds = [
        (bodies.FeedBody, {"rows": {"a": [[]] * 300_000}}),
        (bodies.WorkloadBody, {"queries": [[]] * 300_000}),
        (bodies.PlanBody, {"work": [[[]] * 300_000] * 2, "epsilon": 1}),
    ]
    for kind, body in kinds:
        with pytest.raises(ValidationError) as refused:
            kind.model_validate_json(json.dumps(body))
        assert refused.value.error_count() <= 1000, kind
    for cells in ([1, []], [math.inf]):
        with pytest.raises(InvalidInput, match="a list of finite numbers"):
            wire.decode_rows({"a": cells})
