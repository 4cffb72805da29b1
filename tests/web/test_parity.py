"""`dp.connect` against a local session: every public name either works over HTTP or is refused with the way
out; and what a hostile server sends is refused as such."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import discreet as dp
from discreet import _errors, _registry, query
from discreet.app.client import Server as Remote
from discreet.app.client import ServerError, _error_of
from discreet.app.remote import RemoteCurator, _facts_of
from discreet.app.requests import error_json
from discreet.mechanisms import SparseVector
from discreet.session import Session
from discreet.streaming import Ball, SquaredLoss
from discreet.tabular import Ridge

from .running import COUNT, Server

SYNTHESIS = {"columns": ["sex", "health"], "method": "independent", "seconds": 15}
LOSS = SquaredLoss(features=("age",), target="visits")
BALL = Ball(dimension=2, radius=1)
# for each public name of a session, how it is used over HTTP; it must work
WORKS = {
    "public": lambda s: s.public,
    "ledger": lambda s: s.ledger,
    "budget": lambda s: s.budget,
    "spent": lambda s: s.spent,
    "remaining": lambda s: s.remaining,
    "accounts": lambda s: s.accounts,
    "analyst": lambda s: s.analyst,
    "during": lambda s: s.during("2026-01"),
    "dummy": lambda s: s.dummy(5),
    "preview": lambda s: s.preview(COUNT, epsilon=0.1),
    "explain": lambda s: s.explain(),
    "plan": lambda s: s.plan([COUNT], epsilon=0.1),
    "sql": lambda s: s.sql(COUNT, epsilon=0.013),
    "workload": lambda s: s.workload([COUNT], epsilon=0.013),
    "cut_off": lambda s: s.cut_off(rows=4, epsilon=0.013),
    "suggest": lambda s: s.suggest("age", epsilon=0.2),
    "suggest_limits": lambda s: s.suggest_limits(COUNT, epsilon=0.02),
    "preview_suggest": lambda s: s.preview_suggest("age", epsilon=0.2),
    "ask": lambda s: s.ask(query.ask(COUNT, s.public, epsilon=0.014, delta=0.0)),
    "start": lambda s: s.start(SparseVector(public=s.public, threshold=10, epsilon=0.05, positives=1)),
    "watch": lambda s: s.watch(10, epsilon=0.05),
    "feed": lambda s: s.feed(s.watch(10, epsilon=0.05)),
    "stream": lambda s: s.stream(
        "SELECT COUNT(*) AS n FROM health", epsilon=0.05, horizon=2, participations=1
    ),
    "fit": lambda s: s.fit(Ridge(epsilon=0.1), target="visits", features=["age"], seconds=15),
    "synthesize": lambda s: s.synthesize(20, epsilon=0.1, seed=1, **SYNTHESIS),
    # the copy is stored by then
    "compare_copy": lambda s: s.compare_copy(WORKS["synthesize"](s), epsilon=0.1),
    "online": lambda s: s.online(LOSS, space=BALL, epsilon=0.05, horizon=2, clip=1, participations=1),
    "curator": lambda s: s.curator.copies(),
}
# these take Python, files of the steward's or another person: refused before anything is sent
REFUSED = {
    "train": lambda s: s.train(object()),
    "resume": lambda s: s.resume(object(), "run"),
    "steps": lambda s: next(s.steps(object())),
    "teach": lambda s: s.teach(object(), teachers=10),
    "preview_teach": lambda s: s.preview_teach(object()),
    "as_analyst": lambda s: s.as_analyst("bob"),
    "receipt": lambda s: s.receipt(1),
}


@pytest.fixture(scope="module")
def people(server: Server) -> Session:
    return dp.connect(server.url, server.tokens["ann"], dataset="health")


def test_every_name_of_a_session_is_on_the_list():
    local = {name for name in dir(Session) if not name.startswith("_")}
    assert local == WORKS.keys() | REFUSED.keys()
    assert not WORKS.keys() & REFUSED.keys()


@pytest.mark.parametrize("name", WORKS)
def test_a_verb_works_over_http(people, name):
    assert WORKS[name](people) is not None


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sent_is_refused_with_the_way_out(people, name):
    before = people.spent
    with pytest.raises((dp.InvalidInput, AttributeError), match=r"dp\.(open|connect)\("):
        REFUSED[name](people)
    assert people.spent == before


DEEP = "[" * 100_000 + "]" * 100_000
ANSWERS = [
    (200, "{}"),
    (200, "[]"),
    (200, "null"),
    (200, "not json"),
    (200, DEEP),
    (200, '{"answer": ' + "1" * 6000 + "}"),
    (200, '{"answer": {"type": "os.system", "command": "true"}}'),
    (200, '{"answer": {"type": "query.Answer"}}'),
    (200, '{"answer": 5, "used": "x", "public": {"type": []}, "datasets": 5}'),
    (302, '{"used": 1}'),
    (400, '{"error": 5}'),
    (400, '{"error": {"kind": "__class__", "message": null}}'),
    (500, '{"error": {"kind": "BudgetExceeded", "message": "\\u001b[2J wiped"}}'),
]


# public facts and a budget, as an honest server sends them
PUBLIC = dp.Public(
    schema={"health": dp.Categories(("good", "poor")), "a": dp.Bounds(0, 9)}, unit=dp.rows(), table="health"
)
FACTS = {
    "public": _registry.to_json(PUBLIC),
    "analyst": "ann",
    "policy": {"budget": _registry.to_json(dp.Budget(epsilon=1)), "own": None},
}


@pytest.fixture
def hostile():
    """A server that answers everything with one text."""

    class Handler(BaseHTTPRequestHandler):
        status, text = 200, "{}"

        def do_GET(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(Handler.status)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
            self.wfile.write(Handler.text.encode())

        do_POST = do_DELETE = do_GET

        def log_message(self, *_):
            """Say nothing."""

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield Handler, f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_a_hostile_server_sends_is_refused_as_such(hostile, answer):
    handler, url = hostile
    handler.status, handler.text = answer
    with pytest.raises(dp.DiscreetError):
        dp.connect(url, "dsc_x", dataset="x")
    curator = RemoteCurator.__new__(RemoteCurator)
    curator.server, curator.name, curator.periods = Remote(url, "dsc_x"), "x", ()
    curator._facts = _facts_of(FACTS)
    session = Session(curator, "ann")
    tries = [
        lambda: session.sql(COUNT, epsilon=1),
        lambda: session.preview(COUNT, epsilon=1),
        lambda: session.curator.policy,
        lambda: session.spent,
        lambda: session.plan([COUNT], epsilon=1),
        lambda: session.explain(),
        lambda: session.watch(3, epsilon=1),
        lambda: session.watch(3, epsilon=1, number=3),
        lambda: session.fit(Ridge(epsilon=1), target="a"),
        lambda: session.fit(Ridge(epsilon=1), target="a", seconds=1),
        lambda: session.curator.copy(3),
        lambda: session.curator.release(3),
        lambda: session.curator.feed(None, 3),
        lambda: list(session.ledger.entries()),
        lambda: session.ledger.anchor,
        lambda: session.stream("", number=3).value,
    ]
    for attempt in tries:
        with pytest.raises(dp.DiscreetError) as refused:
            attempt()
        assert "\x1b" not in str(refused.value)


def test_every_kind_of_error_comes_back_as_itself():
    kinds = [k for k in vars(_errors).values() if isinstance(k, type) and issubclass(k, dp.DiscreetError)]
    for kind in kinds:
        assert type(_error_of({"kind": kind.__name__, "message": "x"})) is kind
        for charged in (None, False, True):
            error = kind("it is so.", remedy="Do that.", option="epsilon")
            error.charged = charged
            back = _error_of(json.loads(json.dumps(error_json(error))))
            assert (type(back), vars(back), str(back)) == (kind, vars(error), str(error))
    assert type(_error_of(json.loads('{"kind": "Exception"}'))) is ServerError
