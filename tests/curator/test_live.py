"""Live answerers: paid once at the start, halting for good, never losing or redrawing noise."""

import json
import random
import time

import numpy as np
import pytest

from discreet import Bounds, Categories, Halted, InvalidInput, Public
from discreet._errors import BudgetExceeded, LedgerError
from discreet.accounting import PureDP
from discreet.curator import Budget, Curator, Policy
from discreet.mechanisms import Component, Count, Histogram, SparseVector
from discreet.tables import Memory

from ..victim import Victim

PUBLIC = Public(schema={"age": Bounds(0, 100), "ward": Categories(["a", "b", "c"])}, table="people")
WARDS = ["a"] * 50 + ["b"] * 400 + ["c"] * 5


def people():
    return Memory({"age": np.arange(455) % 90, "ward": WARDS}, PUBLIC)


def vector(**options):
    return SparseVector(public=PUBLIC, threshold=200, epsilon=1, **options)


@pytest.fixture
def curator(tmp_path):
    return Curator.create(tmp_path / "people.ledger", people(), Policy(budget=Budget(epsilon=2)))


def ward(index):
    return Component(statistic=Histogram(column="ward"), index=index)


def test_all_is_paid_at_the_start_and_answers_are_free(curator):
    live = curator.start(vector(positives=2))
    assert curator.used == 1
    answers = [live.answer(ward(i)).value.above for i in (0, 2, 1)]
    assert answers == [False, False, True]  # 150 counts from the threshold at scales below 13
    assert curator.used == 1
    assert curator.verify() == []


def test_it_halts_for_good_also_when_resumed(curator):
    live = curator.start(vector(positives=1))
    assert live.answer(ward(1)).value.above
    before = curator.ledger.anchor
    with pytest.raises(Halted, match="halted for good"):
        live.answer(ward(0))
    again = curator.resume(vector(positives=1), live.number)
    with pytest.raises(Halted, match="halted for good"):
        again.answer(ward(0))
    assert curator.ledger.anchor == before
    assert curator.verify() == []


def test_the_state_is_sealed_and_never_exported(curator):
    live = curator.start(vector(positives=3))
    live.answer(ward(0))
    text = json.dumps([entry.to_json() for entry in curator.ledger.entries()])
    raw = b"".join(file.read_bytes() for file in curator.ledger.path.parent.glob("people.ledger*"))
    for where in (text.encode(), raw):
        assert b'"positives":0' not in where
        assert b"asked" not in where
    states = list(curator.ledger.entries(kind="state"))
    assert len(states) == 2
    assert all(state.sealed for state in states)


def test_a_restart_goes_on_with_the_same_noisy_threshold(curator):
    mechanism = vector(positives=5, gap=True)
    live = curator.start(mechanism)
    first = curator.ledger.key.unseal(curator.ledger.last("state").sealed, f"{live.number}:0".encode())
    reopened = Curator.open(curator.ledger.path, people()).resume(mechanism, live.number)
    reopened.answer(ward(0))
    second = curator.ledger.key.unseal(curator.ledger.last("state").sealed, f"{live.number}:1".encode())
    assert json.loads(first)["threshold"] == json.loads(second)["threshold"]
    assert json.loads(second)["asked"] == 1


def test_what_it_cannot_afford_is_not_started(curator):
    curator.start(vector())
    curator.start(vector())
    with pytest.raises(BudgetExceeded, match="above the limit 2"):
        curator.start(vector())
    assert len(list(curator.ledger.entries(kind="state"))) == 2


def test_only_what_was_started_can_be_resumed(curator):
    live = curator.start(vector(positives=1))
    with pytest.raises(InvalidInput, match="not the start"):
        curator.resume(vector(positives=9), live.number)
    with pytest.raises(LedgerError, match="no entry 99"):
        curator.resume(vector(positives=1), 99)


def test_a_refused_question_changes_nothing(curator):
    live = curator.start(vector())
    before = curator.ledger.anchor
    with pytest.raises(InvalidInput, match="a single number as its value"):
        live.answer(Histogram(column="ward"))
    with pytest.raises(InvalidInput, match="must be a statistic"):
        live.answer("SELECT 1")
    assert curator.ledger.anchor == before
    assert live.answer(Count()).value.above


def answers(path, number):
    live = Curator.open(path, people()).resume(vector(positives=3), number)
    yield "ready"
    while True:
        yield live.answer(ward(0)).value.above


def test_killed_in_the_middle_nothing_is_lost_repeated_or_redrawn(curator):
    mechanism = vector(positives=3)
    live = curator.start(mechanism)
    shown = 0
    for turn in range(5):
        victim = Victim(answers(curator.ledger.path, live.number))
        assert victim.readline() == "ready\n"
        time.sleep(random.Random(turn).uniform(0, 0.03))
        shown += len(victim.kill())
    states = list(curator.ledger.entries(kind="state"))
    assert [state.body["version"] for state in states] == list(range(len(states)))
    assert shown <= len(states) - 1
    kept = {
        json.loads(curator.ledger.key.unseal(s.sealed, f"{live.number}:{s.body['version']}".encode()))[
            "threshold"
        ]
        for s in states
    }
    assert len(kept) == 1
    assert curator.verify() == []


def test_the_length_of_a_sealed_state_does_not_go_with_its_secret_noise(tmp_path):
    """A noise of scale a million has five to eight digits; what is stored of it has one length."""
    policy = Policy(budget=Budget(epsilon=1))
    curator = Curator.create(tmp_path / "people.ledger", people(), policy)
    lengths = set()
    for _ in range(20):
        live = curator.start(SparseVector(public=PUBLIC, threshold=200, epsilon=1e-6, positives=1))
        live.answer(ward(0))
    for entry in curator.ledger.entries():
        if entry.kind == "state":
            lengths.add(len(entry.sealed))
    assert len(lengths) == 1


def test_a_question_that_is_nested_too_deep_is_refused_in_words(curator):
    live, question = curator.start(vector(positives=1)), ward(0)
    for _ in range(1200):
        question = Component(statistic=question, index=0)
    before = curator.ledger.anchor
    with pytest.raises(InvalidInput, match="nested too deep"):
        live.answer(question)
    assert curator.ledger.anchor == before


def test_a_mechanism_that_has_another_price_by_now_is_not_gone_on_with(curator, monkeypatch):
    """A later release may divide the same epsilon in another way: its noise is not what was paid for."""
    live = curator.start(vector(positives=2))
    monkeypatch.setattr(SparseVector, "event", property(lambda self: PureDP(epsilon=0.5)))
    resumed = curator.resume(vector(positives=2), live.number)
    before = curator.ledger.anchor
    with pytest.raises(InvalidInput, match="a price that differs"):
        resumed.answer(ward(0))
    assert curator.ledger.anchor == before
