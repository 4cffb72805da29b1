"""The table of a worker's verbs: every one has its function, and a worker needs no FastAPI."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from datetime import date
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

import discreet as dp
from discreet import Budget, InvalidInput
from discreet._public import Bounds, Categories, Dates, Public, Unit
from discreet.app import requests
from discreet.app.remote import RemoteCurator
from discreet.app.web import (
    auth,
    bodies,
    bookkeeping,
    charts,
    pages,
    sessions,
    settings,
    steward_pages,
    wire,
    workers,
)
from discreet.app.web.bodies import QueryBody
from discreet.app.web.problems import HTTPError
from discreet.app.web.verbs import VERBS
from discreet.curator import Period, Policy


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_its_function(name):
    verb = VERBS[name]
    assert callable(getattr(verb.load(), verb.name))


def test_a_worker_loads_neither_fastapi_nor_rooms_that_it_was_not_asked_for():
    code = "import sys, discreet.app.web.verbs; print([m for m in ('fastapi', 'torch', 'discreet.synthetic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


MONTHS = Period(column="admitted", every="month", total="unlimited")


@pytest.mark.parametrize(
    "budget",
    [
        Budget(epsilon=1.2345678901, delta=1.23456789e-7),
        Budget(epsilon=Fraction(1, 3), per=MONTHS),
        Budget(rho=0.1234567890123, delta=1e-7),
    ],
)
def test_a_form_of_budgets_that_is_sent_back_unchanged_changes_none(budget):
    own = [
        Budget(rho=Fraction(1, 7), delta=1e-9),
        Budget(epsilon=0.1 + 0.2),
        Budget(epsilon=1, per=budget.per),
    ]
    analysts = (("ann", own[0]), ("bob", own[1]), ("cleo", None), ("dan", own[2]))
    policy = Policy(budget=budget, analysts=analysts)
    page = requests.policy_json(policy)
    unit = "rho" if page["budget"]["rho"] else "epsilon"
    text = "\n".join(steward_pages._line(who, line, unit) for who, line in page["analysts"].items())
    typed = {key: float(charts.exact(page["budget"][key])) for key in (unit, "delta")}
    facts = {"budget": typed, "analysts": steward_pages._parse_analysts(text, unit)}
    sent = bodies.PolicyBody(**facts).model_dump()
    assert bookkeeping._changed_policy(sent, policy) == policy
    raised = bookkeeping._changed_policy(sent | {"budget": sent["budget"] | {unit: 5.0}}, policy)
    assert raised.budget.per == budget.per
    assert raised.budget != budget


@pytest.mark.parametrize("text", ["ann 1 0 bob 1", "ann 1\nann 2", "ann rho", "ann 1 0 0"])
def test_a_line_of_the_form_that_would_be_half_read_is_refused(text):
    with pytest.raises(InvalidInput, match="no line of the form"):
        steward_pages._parse_analysts(text, "epsilon")


@pytest.mark.parametrize("text", ["000000000001" + "9" * 5000, "99999999999", "0", "", "1.5"])
def test_a_number_of_people_that_is_none_is_refused(text):
    with pytest.raises(InvalidInput, match="how many people"):
        pages._number_of_people(text)


def test_a_ledger_is_not_served_under_a_budget_that_it_does_not_have():
    """A steward who adds data with a ledger and names a budget would believe in the one that was named."""
    policy = Policy(budget=Budget(epsilon=10), analysts=(("ann", Budget(epsilon=1)), ("bob", None)))
    ann = {"epsilon": 1.0, "rho": None, "delta": 0.0}
    same = {"budget": ann | {"epsilon": 10.0}, "analysts": {"bob": None, "ann": ann}}
    for options in ({}, {"budget": None, "analysts": {}}, same):
        bookkeeping._check_in_force(options, policy)
    for other in ({"budget": ann}, {"analysts": {"ann": ann}}, {"analysts": {"ann": None, "bob": None}}):
        with pytest.raises(InvalidInput, match="has a ledger already"):
            bookkeeping._check_in_force(same | other, policy)


def test_a_sum_of_epsilons_is_not_drawn_under_a_limit_in_rho():
    charges = [{"time": "2026-11-17T04:26:31+00:00", "analyst": "ann", "epsilon": 2.0}]
    in_epsilon = steward_pages._spending_chart(charges, {"unit": "epsilon", "limit": 3.0})
    assert 'class="limit"' in in_epsilon
    assert "under a limit of 3" in in_epsilon
    in_rho = steward_pages._spending_chart(charges, {"unit": "rho", "limit": 0.5})
    assert 'class="line"' in in_rho
    assert "limit" not in in_rho


@pytest.mark.parametrize(("total", "limit"), [("unlimited", None), (Budget(epsilon=3), 3.0)])
def test_the_charges_of_all_periods_are_not_drawn_under_the_limit_of_one(total, limit, monkeypatch):
    """Two months at 0.9 of 1 each looked like a budget that was overspent."""
    budget = Budget(epsilon=1, per=Period(column="day", every="month", total=total))
    data = {"who": [1, 1], "day": [date(2026, 1, 5), date(2026, 2, 5)]}
    schema = {"day": Dates("2026-01-01", "2026-12-31")}
    session = dp.open(data, schema=schema, unit="who", budget=budget, ledger=":memory:")
    for month in ("2026-01", "2026-02"):
        session.during(month).sql("SELECT COUNT(*) AS n FROM data", epsilon=0.9, rows=1)
    index = sessions.Index().update(session.ledger)
    desk = SimpleNamespace(session=lambda dataset, analyst: session, index=lambda dataset: index)
    facts = bookkeeping.spending(desk, {"dataset": {}})
    drawn = []
    monkeypatch.setattr(steward_pages.charts, "steps", lambda *arguments: drawn.append(arguments) or "")
    steward_pages._spending_chart(facts["charges"], facts["together"])
    [(points, _, drawn_limit, title)] = drawn
    assert [price for _, price in points] == [pytest.approx(0.9), pytest.approx(0.9)]
    assert drawn_limit == (limit if limit is None else pytest.approx(limit))
    assert ("limit" in title) == (limit is not None)


class Pipe:
    """A worker process that replies at once, always in the same way."""

    def __init__(self, reply: bytes) -> None:
        self.reply, self.sent = reply, []

    def send_bytes(self, raw: bytes) -> None:
        self.sent.append(raw)

    def poll(self, seconds: float) -> bool:
        return True

    def recv_bytes(self) -> bytes:
        return self.reply


def worker_with(pipe: Pipe, least_seconds: float) -> workers.Worker:
    worker = workers.Worker.__new__(workers.Worker)
    worker.pipe, worker.opened, worker.least_seconds = pipe, set(), least_seconds
    return worker


def test_a_question_is_not_begun_where_opening_its_table_took_its_time():
    """It would be charged, and be ended at the time limit without an answer."""
    pipe = Pipe(b'{"touched": false}\n{}')
    worker = worker_with(pipe, 1.0)
    request = {"verb": "sql", "dataset": {"ledger": "new"}}
    late = worker.call(request, time.monotonic() + 0.5)
    assert late["error"] == workers.LATE
    assert [b'"open"' in raw for raw in pipe.sent] == [True]
    assert worker.call(request, time.monotonic() + 600) == {"result": b"{}", "touched": False}


def test_a_reply_that_waited_for_a_table_to_open_is_held_back():
    """How long that takes depends on the table: a refusal that leaves at once would tell it."""
    worker = worker_with(Pipe(b'{"error": {"kind": "QueryError", "message": ""}, "touched": false}'), 0.0)
    request = {"verb": "sql", "dataset": {"ledger": "new"}}
    replies = [worker.call(request, time.monotonic() + 600) for _ in range(2)]
    assert [reply["touched"] for reply in replies] == [True, False]


def test_an_origin_that_is_no_url_is_refused_as_another_site():
    for origin in ("http://[", "null", "https://other.example"):
        request = SimpleNamespace(headers={"origin": origin, "host": "127.0.0.1:8000"})
        with pytest.raises(HTTPError, match="another site"):
            auth.check_origin(request)
    auth.check_origin(SimpleNamespace(headers={"origin": "http://127.0.0.1:8000", "host": "127.0.0.1:8000"}))


@pytest.mark.parametrize("name", ["seconds", "job_seconds", "rate", "session_hours", "token_days"])
@pytest.mark.parametrize("value", [math.inf, math.nan, 0.0])
def test_a_setting_of_time_that_is_not_finite_is_refused(name, value):
    with pytest.raises(InvalidInput, match=f"^{name} must be (above zero|finite|a number), got"):
        settings.Settings(state=Path("state"), **{name: value})


def test_names_that_are_keywords_of_sql_are_quoted_in_the_first_questions():
    schema = (("limit", Categories(("a", "b"))), ("two words", Bounds(0, 10)))
    questions = pages.first_questions(Public(schema=schema, unit=Unit("id"), table="Case"))
    assert [question["sql"].replace("\n", " ") for question in questions] == [
        'SELECT COUNT(*) AS n FROM "Case"',
        'SELECT "limit", COUNT(*) AS n FROM "Case" GROUP BY "limit"',
        'SELECT AVG("two words") AS mean FROM "Case"',
    ]


def test_the_column_that_identifies_people_is_in_no_first_question():
    schema = (("ward", Categories(("a", "b"))), ("cost", Bounds(0, 10)), ("id", Bounds(0, 1000)))
    questions = pages.first_questions(Public(schema=schema, unit=Unit("id"), table="t"))
    assert [question["text"] for question in questions] == [
        "how many rows",
        "how many by ward",
        "mean of cost",
    ]


def test_no_periods_are_not_taken_for_the_whole_table():
    """Which every period, past and to come, would pay for."""
    with pytest.raises(InvalidInput, match="periods must not be empty"):
        RemoteCurator.during(SimpleNamespace())
    with pytest.raises(ValidationError, match="at least 1 item"):
        QueryBody(sql="SELECT COUNT(*) AS n FROM visits", epsilon=1, periods=[])
    assert QueryBody(sql="SELECT COUNT(*) AS n FROM visits", epsilon=1, periods=None).periods is None


def test_a_column_named_arrow_is_a_column():
    assert wire.decode_rows({"arrow": [1, 2]}) == {"arrow": [1, 2]}
    with pytest.raises(InvalidInput, match="columns by name"):
        wire.decode_rows({"arrow": [1], "b": "x"})
    for text in ("", "AAAA", "é", "A"):
        with pytest.raises(InvalidInput, match=r"no Arrow stream in base64"):
            wire.decode_rows({"arrow": text})
