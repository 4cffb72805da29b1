"""An error of a verb that charges says whether anything was charged: the verb alone knows."""

from __future__ import annotations

import inspect
import pickle
import threading

import pytest

import discreet as dp
from discreet import mechanisms
from discreet._errors import charges
from discreet._require import paying

COUNT = "SELECT COUNT(*) AS n FROM t"


def opened(epsilon: float = 2) -> dp.Session:
    return dp.open(
        {"x": [1, 2, 3]}, table="t", schema={"x": dp.Bounds(0, 9)}, unit=dp.rows(),
        budget=dp.Budget(epsilon=epsilon), ledger=":memory:",
    )  # fmt: skip


@pytest.mark.parametrize(
    "ask",
    [
        lambda people: people.sql(COUNT, epsilon=3),
        lambda people: people.sql(COUNT, epsilon=-1),
        lambda people: people.sql(COUNT, epsilo=1),
        lambda people: people.sql("SELECT y FROM t", epsilon=1),
        lambda people: people.sql(COUNT, within=1e-9),
        lambda people: people.workload([COUNT], epsilon=0),
        lambda people: people.ask(3),
        lambda people: people.start(mechanisms.SparseVector),
        lambda people: people.watch(3, epsilon=-1, positives=1),
        lambda people: people.stream(COUNT, epsilon=3, horizon=4),
        lambda people: people.fit(None, target="x"),
        lambda people: people.plan([COUNT], epsilon=5).run(),
        lambda people: people.curator.ask(mechanisms.noisy_count(people.public, epsilon=3)),
    ],
)
def test_what_is_refused_before_the_charge_says_so(ask):
    people = opened()
    with pytest.raises(dp.DiscreetError, match=r" Nothing was charged\.$") as raised:
        ask(people)
    assert raised.value.charged is False
    assert people.spent == 0
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again), again.charged) == (type(raised.value), str(raised.value), False)


def test_what_is_refused_after_a_charge_does_not_say_that_nothing_was_charged():
    """The first of two questions is charged, the second does not fit any more."""
    people = opened()

    @paying
    def both():
        people.sql(COUNT, epsilon=1)
        people.sql("SELECT SUM(x) AS s FROM t", epsilon=2)

    with pytest.raises(dp.BudgetExceeded, match=r"What was charged before stays charged\.$") as raised:
        both()
    assert raised.value.charged is True
    assert people.spent == 1


def test_verbs_that_never_charge_and_functions_without_a_budget_leave_the_sentence_out():
    people = opened()
    before = charges.get()
    for ask in (lambda: people.preview(COUNT, epsilon=-1), lambda: dp.accounting.epsilon(None, delta=0)):
        with pytest.raises(dp.DiscreetError, match=r"^(?!.*charged)") as raised:
            ask()
        assert raised.value.charged is None
    assert charges.get() == before


def test_a_release_that_failed_says_itself_that_the_charge_stays(monkeypatch):
    people = opened()
    monkeypatch.setattr("discreet.curator.door.checked_release", lambda release: 1 / 0)
    with pytest.raises(dp.ReleaseFailed, match="nothing was released") as raised:
        people.sql(COUNT, epsilon=1)
    assert raised.value.charged is None
    assert people.spent == 1


def test_advice_fits_the_question_that_was_asked():
    people = opened()
    with pytest.raises(dp.BudgetExceeded, match="above the limit 2") as raised:
        people.sql(COUNT, epsilon=3)
    assert raised.value.remedy == "Ask with less epsilon, or ask the steward for more."
    with pytest.raises(dp.BudgetExceeded, match="above the limit 2") as raised:
        people.sql(COUNT, within=0.1)
    assert raised.value.remedy == "Ask for a larger error than 0.1, or ask the steward for more."


def test_a_ledger_that_goes_away_after_a_charge_does_not_say_that_nothing_was_charged(tmp_path):
    ledger = tmp_path / "people.ledger"
    people = dp.open(
        {"x": [1, 2, 3]}, table="t", schema={"x": dp.Bounds(0, 9)}, unit=dp.rows(),
        budget=dp.Budget(epsilon=2), ledger=ledger,
    )  # fmt: skip

    @paying
    def both():
        people.sql(COUNT, epsilon=1)
        ledger.rename(tmp_path / "away")
        people.sql("SELECT SUM(x) AS s FROM t", epsilon=1)

    with pytest.raises(dp.ReleaseFailed, match="What was charged stays charged") as raised:
        both()
    assert isinstance(raised.value.__cause__, dp.LedgerError)
    (tmp_path / "away").rename(ledger)
    assert people.spent == 1


def test_what_a_thread_has_charged_leaves_the_sentence_out():
    people = opened()

    def questions():
        thread = threading.Thread(target=people.sql, args=(COUNT,), kwargs={"epsilon": 1})
        thread.start()
        thread.join()
        yield "SELECT nonsense"

    with pytest.raises(dp.DiscreetError, match=r"^(?!.*Nothing was charged)") as raised:
        people.workload(questions(), epsilon=0.5)
    assert raised.value.charged is None
    assert people.spent == 1


def methods(thing) -> list[str]:
    return [
        n for n in dir(thing) if not n.startswith("_") and inspect.isfunction(getattr(type(thing), n, None))
    ]


def test_a_call_without_arguments_says_what_is_missing():
    people = opened()
    # `preview_teach` has **options, whose names `check_options` does not know
    names = [(thing, n) for thing in (people, people.curator) for n in methods(thing) if n != "preview_teach"]
    calls = [getattr(thing, name) for thing, name in names]
    calls += [
        dp.open,
        dp.connect,
        dp.explain,
        dp.Bounds,
        dp.Budget,
        dp.Period,
        lambda: dp.connect("http://here"),
    ]
    refused = []
    for call in calls:
        try:
            call()
        except dp.DiscreetError as error:
            refused.append(str(error))
    assert sum("needs" in message for message in refused) > 25
    assert "connect needs url, token." in refused
    assert "connect needs token." in refused
    assert people.spent == 0
