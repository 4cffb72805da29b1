"""One session, two curators: the same calls on a local session and over the network have the same results, up to
noise, the same events, charges and refusals."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

import discreet as dp
from discreet import mechanisms, query, streaming
from discreet.curator.entries import Entry
from discreet.mechanisms import SparseVector
from discreet.mechanisms.protocols import Release
from discreet.query import Answer
from discreet.session import Session
from discreet.session.base import Fed
from discreet.session.streams import Stream
from discreet.tabular import LogisticRegression, Ridge

from .running import Server

SCHEMA = """
table = "visits"
version = "1"
unit = "row"
size = 600
[columns.day]
type = "date"
lower = "2026-01-01"
upper = "2026-01-03"
[columns.ward]
type = "categories"
values = ["A", "B"]
[columns.age]
type = "number"
lower = 0
upper = 100
[columns.cost]
type = "number"
lower = 0
upper = 50
"""
ROWS = "".join(
    f"2026-01-0{day},{ward},{20 + 10 * day + i % 40},{i % 50}\n"
    for day in (1, 2, 3)
    for ward in "AB"
    for i in range(100)
)
BUDGETS = {"epsilon": 100.0, "delta": 1e-6}
ALL = "SELECT COUNT(*) AS n FROM visits"
WARDS = "SELECT ward, COUNT(*) AS n, AVG(age) AS mean FROM visits GROUP BY ward"


@pytest.fixture(scope="module")
def both(server: Server, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The same table, budgets and analyst twice."""
    (server.folder / "data" / "same.csv").write_text(f"day,ward,age,cost\n{ROWS}")
    body = {
        "name": "same", "path": "same.csv", "schema_text": SCHEMA, "budget": BUDGETS, "large_epsilon": True,
        "analysts": {"bob": {"epsilon": 60.0, "delta": 1e-6}, "ann": None},
    }  # fmt: skip
    with server.client("steward") as steward:
        made = steward.post("/datasets", json=body)
        assert made.status_code == 201, made.text
    folder = tmp_path_factory.mktemp("same")
    (folder / "same.csv").write_text(f"day,ward,age,cost\n{ROWS}")
    (folder / "same.csv.schema.toml").write_text(SCHEMA)
    local = dp.open(
        folder / "same.csv", schema=folder / "same.csv.schema.toml", budget=dp.Budget(**BUDGETS),
        analysts={"bob": dp.Budget(epsilon=60.0, delta=1e-6), "ann": None}, large_epsilon=True,
    )  # fmt: skip
    remote = dp.connect(server.url, server.tokens["bob"], dataset="same")
    assert type(remote) is type(local) is Session
    return SimpleNamespace(local=local.as_analyst("bob"), remote=remote, steward=local)


def live(s: Session) -> SparseVector:
    return SparseVector(public=s.public, threshold=10, epsilon=0.25, positives=2)


LOSS = streaming.SquaredLoss(features=("age",), target="cost")
TICKS = "SELECT day, COUNT(*) AS n FROM visits GROUP BY day"
COPY = {"epsilon": 0.5, "columns": ["ward", "age"], "bins": {"age": 4}, "method": "mst"}
CALLS = {
    "sql": lambda s: s.sql(WARDS, epsilon=0.5),
    "sql again": lambda s: s.sql(WARDS, epsilon=0.5),
    "sql by accuracy": lambda s: s.sql(ALL, within=40, confidence=0.9),
    "sql with gaussian noise": lambda s: s.sql(ALL, epsilon=0.5, noise="gaussian"),
    "sql in rho": lambda s: s.sql(ALL, rho=0.01),
    "several counts": lambda s: s.sql("SELECT COUNT(*) AS a, COUNT(ward) AS b FROM visits", epsilon=0.5),
    "preview": lambda s: s.preview(WARDS, epsilon=0.25),
    "preview of several": lambda s: s.preview([ALL, ALL + " WHERE age > 50"], epsilon=0.25),
    "preview by accuracy": lambda s: s.preview(ALL, within=10),
    "workload": lambda s: s.workload([ALL, ALL + " WHERE age > 50"], epsilon=0.5),
    "plan": lambda s: s.plan([WARDS, ALL, (LogisticRegression(n=600), "ward")], epsilon=2.0),
    "plan run": lambda s: s.plan([ALL, {"sql": WARDS, "weight": 2}], epsilon=1.0, together=False).run(),
    "ask": lambda s: s.ask(query.ask(ALL + " WHERE age > 30", s.public, epsilon=0.25, delta=0.0)),
    "ask a mechanism": lambda s: s.ask(mechanisms.noisy_count(s.public, epsilon=0.25)),
    "fit": lambda s: s.fit(Ridge(epsilon=0.5), target="cost", features=["age"]),
    "fit classes": lambda s: s.fit(LogisticRegression(epsilon=0.5, n=600), target="ward", features=["age"]),
    "synthesize": lambda s: s.synthesize(50, seed=1, seconds=12, **COPY),
    "stream": lambda s: s.stream(TICKS, epsilon=0.5),
    "a tick": lambda s: s.stream(TICKS, epsilon=0.75).feed(),
    "online": lambda s: s.online(
        LOSS, space=streaming.Ball(dimension=2), epsilon=0.5, horizon=3, clip=1, clock="day"
    ),
    "a round": lambda s: s.online(
        LOSS, space=streaming.Ball(dimension=2), epsilon=0.75, horizon=3, clip=1, clock="day"
    ).feed(),
    "watch": lambda s: s.watch(100, epsilon=0.5, positives=2),
    "a watch's answer": lambda s: s.watch(100, epsilon=0.25, positives=2).ask("age > 30"),
    "start": lambda s: s.start(live(s)),
    "explain": lambda s: s.explain(),
    "explain a question": lambda s: s.explain(WARDS, epsilon=0.5),
    "dummy": lambda s: s.dummy(7),
    "budget": lambda s: s.budget,
    "spent": lambda s: s.spent,
    "remaining": lambda s: s.remaining,
    "accounts": lambda s: s.accounts,
    "ledger": lambda s: [e for e in s.ledger.entries(kind="charge") if e.body["analyst"] == "bob"],
    "public": lambda s: s.public,
    "analyst": lambda s: s.analyst,
}


def of_answer(answer: Answer) -> Any:
    """The error of an average depends on the noisy count below it."""
    errors = {name: error for name, error in answer.error(0.9).items() if name != "mean"}
    return (
        answer.columns,
        len(answer),
        answer.event.to_json(),
        answer.notes,
        answer.plan,
        errors,
        answer.sql,
    )


def of_release(release: Release) -> Any:
    value = of_answer(release.value) if isinstance(release.value, Answer) else type(release.value)
    return (release.event.to_json(), value, release.mark, release.private)


def of_model(model: Any) -> Any:
    event = model.event if hasattr(model, "event") else model.event_
    return (event.to_json(), len(model.predict({"age": [30.0, 50.0]})))


def of_entry(entry: Entry) -> Any:
    """A server takes the words of a question from its description, where a local `ask` records none."""
    facts = {key: entry.body.get(key) for key in ("event", "analyst", "mechanism", "text")}
    if (facts["mechanism"] or {}).get("sql") == facts["text"]:
        facts["text"] = None
    return (entry.kind, facts)


# What of a result does not depend on noise, by the names of classes; of all others, the class.
SHAPES = {
    "Answer": of_answer,
    "Release": of_release,
    "QueryPreview": lambda p: (p.query, p.admitted, p.budget.unit, p.budget.limit),
    "Stream": lambda s: (s.counter, s.error(0.9)),
    "OnlineStream": lambda s: s.counter,
    "Watch": lambda w: w.live.mechanism,
    "SyntheticCopy": lambda c: (c.columns, c.rows, c.event.to_json(), c.asked),
    "Entry": of_entry,
    "BudgetPlan": lambda p: [(i.epsilon, i.weight, i.error, i.work.name) for i in p.items],
    "Explanation": lambda e: (e.title, [section.heading for section in e.sections], e.facts),
    "Account": lambda a: (a.of, a.rule, round(a.used, 9), round(a.left, 9)),
    "InteractiveHandle": lambda h: h.mechanism,
    "model": of_model,
    "Budget": lambda b: b,
    "Public": lambda p: p,
    "str": lambda text: text,
    "UpperAmount": lambda number: round(number, 9),
    "LowerAmount": lambda number: round(number, 9),
}
# Classes of which each curator has its own; and a model that comes over the network is read from its file.
ALIKE = {"RemoteAccount": "Account", "RemoteHandle": "InteractiveHandle"}
ALIKE |= dict.fromkeys(("Ridge", "LogisticRegression", "LoadedModel"), "model")


def shape(result: Any) -> Any:
    name = type(result).__name__
    name = ALIKE.get(name, name)
    if isinstance(result, tuple | list) and name in ("tuple", "list"):
        return [shape(one) for one in result]
    return (name, SHAPES[name](result)) if name in SHAPES else name


def test_the_same_calls_have_the_same_results_events_and_charges(both):
    differ = {}
    for name, call in CALLS.items():
        seen = []
        for session in (both.local, both.remote):
            before = session.spent
            result = shape(call(session))
            seen.append((result, round(session.spent - before, 9)))
        local, remote = seen
        if local != remote or (local[1] > 0) != (name not in FREE):
            differ[name] = seen
    assert differ == {}


FREE = {"sql again", "preview", "preview of several", "preview by accuracy", "plan", "explain",
        "explain a question", "dummy", "budget", "spent", "remaining", "accounts", "ledger", "public", "analyst"}  # fmt: skip
REFUSED = {
    "no price": lambda s: s.sql(ALL),
    "two prices": lambda s: s.sql(ALL, epsilon=0.1, rho=0.1),
    "too dear": lambda s: s.sql(ALL + " WHERE age > 77", epsilon=90),
    "a misspelt option": lambda s: s.sql(ALL, epsilonn=1),
    "an unknown column": lambda s: s.sql("SELECT AVG(nope) AS a FROM visits", epsilon=0.1),
    "no statement": lambda s: s.sql("nonsense", epsilon=0.1),
    "an unknown target": lambda s: s.fit(Ridge(epsilon=0.1), target="nope"),
    "no target": lambda s: s.fit(Ridge(epsilon=0.1)),
    "an unknown method": lambda s: s.synthesize(epsilon=1, method="nope"),
    "an unknown strategy": lambda s: s.stream(TICKS, epsilon=1, strategy="nope"),
    "no price of a stream": lambda s: s.stream(TICKS),
    "a watch of nothing": lambda s: s.watch(10, epsilon=0),
    "a negative limit": lambda s: s.sql(ALL, epsilon=0.1, rows=-1),
    "other public facts": lambda s: s.ask(
        query.ask(ALL, dp.Public(schema={"age": dp.Bounds(0, 9)}, table="visits"), epsilon=0.1, delta=0.0)
    ),
    "a limit that cuts nothing off": lambda s: s.cut_off(rows=2, epsilon=0.25),
    "no mechanism": lambda s: s.ask(object()),
    "two clocks": lambda s: s.stream(TICKS, epsilon=1, clock="ward"),
    "an unknown name": lambda s: s.sqll,
    "a plan of nothing": lambda s: s.plan([], epsilon=1),
    "feed of nothing": lambda s: s.feed("nothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_same_refusals_are_of_the_same_class(both, name):
    errors = []
    for session in (both.local, both.remote):
        before = session.spent
        with pytest.raises(dp.DiscreetError) as refused:
            REFUSED[name](session)
        assert session.spent == before
        errors.append(refused.value)
    local, remote = errors
    assert (type(local), local.charged) == (type(remote), remote.charged), (str(local), str(remote))


def test_what_a_stream_has_released_is_the_same_history(both, server):
    """Over the network a release is listed once its public time is over."""
    streams = [s.stream(TICKS, epsilon=1.25) for s in (both.local, both.remote)]
    for stream in streams:
        stream.feed()
        stream.feed()
    local, remote = streams
    assert local.steps == 2
    time.sleep(5.5)
    assert remote.steps == 2
    assert [type(value) for value in remote.history] == [type(value) for value in local.history]
    assert type(remote.value) is type(local.value)
    assert remote.error(0.9) == local.error(0.9)
    again = both.remote.stream("", number=remote.number)
    assert again.history == remote.history
    assert both.remote.stream(TICKS, epsilon=1.25, number=remote.number).value == remote.value
    with pytest.raises(dp.InvalidInput, match="not the start of this mechanism"):
        both.remote.stream(TICKS, epsilon=1.5, number=remote.number)
    assert type(both.local.stream("", number=local.number)) is Stream
    assert type(again) is Stream


def test_an_open_mechanism_goes_on_by_its_number(both):
    for session in (both.local, both.remote):
        watch = session.watch(90, epsilon=0.5, positives=3)
        later = session.watch(90, epsilon=0.5, positives=3, number=watch.number)
        assert later.ask("age > 30").above in (True, False)
        with pytest.raises(dp.InvalidInput):
            session.watch(91, epsilon=0.5, positives=3, number=watch.number)
    fed = both.remote.feed(later)
    assert isinstance(fed, Fed)
    assert fed.handle.number == later.number


def test_a_budget_per_period_is_the_same_over_the_network(server, tmp_path):
    """A question of one month was refused: it was described for the public facts of the whole table."""
    schema = SCHEMA.replace("size = 600\n", "").replace('"2026-01-03"', '"2026-12-31"')
    for folder in (server.folder / "data", tmp_path):
        (folder / "months.csv").write_text(f"day,ward,age,cost\n{ROWS}")
        (folder / "months.csv.schema.toml").write_text(schema)
    per = dp.Period(column="day", every="month")
    budget = dp.Budget(epsilon=5, delta=1e-6, per=per)
    ends = []
    for folder in (tmp_path, server.folder / "data"):
        data = folder / "months.csv"
        ends.append(
            dp.open(data, schema=folder / "months.csv.schema.toml", budget=budget, analysts={"bob": None})
        )
    with server.client("steward") as steward:
        assert steward.post("/datasets", json={"name": "months", "path": "months.csv"}).status_code == 201
    local, remote = ends[0].as_analyst("bob"), dp.connect(server.url, server.tokens["bob"], dataset="months")
    seen = []
    for session in (local, remote):
        january = session.during("2026-01")
        assert january.public.version != session.public.version
        shapes = [shape(call(january)) for call in (
            lambda s: s.preview(WARDS, epsilon=0.5), lambda s: s.sql(WARDS, epsilon=0.5),
            lambda s: s.watch(100, epsilon=0.5).ask("age > 30"), lambda s: s.public,
        )]  # fmt: skip
        with pytest.raises(dp.InvalidInput):
            session.during("2026-13")
        with pytest.raises(dp.InvalidInput):
            session.during()
        watch = january.watch(100, epsilon=0.25)
        again = january.watch(100, epsilon=0.25, number=watch.number)
        seen.append(
            (shapes, again.number == watch.number, [(a.of, round(a.used, 6)) for a in session.accounts])
        )
    assert seen[0] == seen[1]
    ends[1].curator.ledger.close()
