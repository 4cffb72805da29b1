"""`Session.feed`: what is live goes on with the next version of the table, or is refused with the way out."""

from dataclasses import dataclass
from typing import Any

import pytest

import discreet as dp
from discreet import InvalidInput, PublicMismatch
from discreet.accounting import PureDP
from discreet.adaptive import Check, ShakyLadder, Thresholdout
from discreet.leaderboard import Leaderboard
from discreet.mechanisms import CountsBelow, SparseVector
from discreet.mechanisms.protocols import Interactive, release
from discreet.sampling import discrete_laplace

SCHEMA = {"ward": dp.Categories(["A", "B"]), "age": dp.Bounds(0, 100)}
PRICE = PureDP(epsilon=0.5)


@pytest.fixture
def opened(tmp_path):
    """Sessions of versions of one table, on one ledger unless told otherwise."""

    def session(version, rows, *, schema=SCHEMA, ledger="visits.ledger", **more):
        data = {"ward": ["A"] * rows, "age": [40] * rows}
        path = tmp_path / ledger
        budget = None if path.exists() else dp.Budget(epsilon=8)
        return dp.open(
            data,
            table="visits",
            unit=dp.rows(),
            schema=schema,
            version=version,
            ledger=path,
            budget=budget,
            **more,
        )

    return session


@dataclass(frozen=True)
class Running(Interactive):
    """A running count of batches, each with noise of its own."""

    public: Any
    event: Any = PRICE

    def start(self, source, *, entropy):
        return {"asked": 0, "total": 0}

    def answer(self, state, source, question, *, entropy):
        return {**state, "asked": state["asked"] + 1}, release(
            state["total"], event=self.event, entropy=entropy
        )

    def feed(self, state, batch, *, entropy):
        count = sum(len(rows) for rows in batch.batches(["age"]))
        total = state["total"] + count + int(discrete_laplace(2, 1, entropy)[0])
        return {**state, "total": total}, release(total, event=self.event, entropy=entropy)


def test_a_watch_goes_on_with_the_next_version_for_nothing(opened):
    monday = opened("monday", 10)
    watch = monday.watch(500, epsilon=2, positives=2)
    assert not watch.ask("ward = 'A'").above
    tuesday = opened("tuesday", 2000)
    later, released = tuesday.feed(watch)
    assert released is None
    assert (type(later), later.number) == (type(watch), watch.number)
    assert later.ask("ward = 'A'").above
    assert not watch.ask("ward = 'A'").above
    # The positives are one number, over all versions.
    assert later.ask("age >= 40").above
    with pytest.raises(dp.Halted, match=r"positives|answers"):
        later.ask("ward = 'A'")
    with pytest.raises(dp.Halted, match=r"positives|answers"):
        watch.ask("ward = 'A'")
    assert tuesday.spent == 2
    assert tuesday.curator.verify() == []


def test_after_a_restart_the_mechanism_and_its_number_are_enough(opened):
    monday = opened("monday", 10)
    vector = SparseVector(public=monday.public, threshold=500, epsilon=2, positives=2)
    number = monday.start(vector).number
    live = opened("tuesday", 2000).feed(vector, number=number).handle
    assert live.answer(CountsBelow(column="age", thresholds=(50,))).value.above
    with pytest.raises(InvalidInput, match="not the start"):
        opened("tuesday", 2000).feed(vector, number=1)


def test_what_has_a_feed_is_given_each_version_once(opened):
    monday = opened("monday", 1000)
    live = monday.start(Running(monday.public))
    first = monday.feed(live)
    assert abs(first.release.value - 1000) < 100
    assert live.answer("total").value == first.release.value
    tuesday = opened("tuesday", 500)
    second = tuesday.feed(first.handle)
    assert abs(second.release.value - 1500) < 200
    assert second.handle.answer("total").value == second.release.value
    before = tuesday.ledger.anchor
    for handle in (live, second.handle):
        with pytest.raises(InvalidInput, match="fed to this before"):
            tuesday.feed(handle)
    assert tuesday.ledger.anchor == before
    assert tuesday.spent == 0.5


def test_a_holdout_goes_on(opened):
    monday = opened("monday", 1000, size=1000)
    holdout = Thresholdout(public=monday.public, threshold=0.2, sigma=0.005, budget=1)
    live = monday.start(holdout)
    tuesday = opened("tuesday", 1000, size=1000)
    later = tuesday.feed(live).handle
    assert later.source is tuesday.curator.source
    assert live.source is monday.curator.source
    assert later.answer(
        Check(statistic=CountsBelow(column="age", thresholds=(50,)), training=0.1)
    ).value.overfit


def test_what_belongs_to_one_version_is_refused_with_the_way_out(opened):
    monday = opened("monday", 20, size=20)
    ladder = ShakyLadder(public=monday.public, target="ward", id="age", epsilon=1, delta=1e-6)
    board = Leaderboard.open(monday.curator, ladder)
    tuesday = opened("tuesday", 20, size=20)
    before = tuesday.ledger.anchor
    with pytest.raises(InvalidInput, match=r"ShakyLadder is not fed.*start a new one"):
        tuesday.feed(board)
    assert tuesday.ledger.anchor == before


def test_a_table_that_is_not_the_next_version_is_refused(opened):
    monday = opened("monday", 10)
    watch = monday.watch(500, epsilon=2)
    with pytest.raises(InvalidInput, match=r"version 'monday' of the table already.*version="):
        opened("monday", 2000).feed(watch)
    with pytest.raises(PublicMismatch, match="schema, version differ"):
        opened("tuesday", 10, schema={**SCHEMA, "age": dp.Bounds(0, 200)}).feed(watch)
    # On another ledger the same number may be the charge of an equal mechanism.
    elsewhere = opened("tuesday", 10, ledger="other.ledger")
    assert elsewhere.watch(500, epsilon=2).number == watch.number
    with pytest.raises(InvalidInput, match="another ledger"):
        elsewhere.feed(watch)


def test_a_watch_stays_with_the_periods_that_paid_for_it(tmp_path):
    facts = {"table": "visits", "unit": dp.rows(), "schema": {"day": dp.Dates("2026-01-01", "2030-12-31")}}
    facts["ledger"] = tmp_path / "visits.ledger"
    monthly = dp.Budget(epsilon=2, per=dp.Period(column="day", every="month"))
    first = dp.open({"day": ["2026-01-03"] * 10}, version="1", budget=monthly, **facts)
    watch = first.during("2026-01").watch(500, epsilon=2)
    second = dp.open({"day": ["2026-01-03"] * 2000 + ["2026-02-03"] * 5}, version="2", **facts)
    for other in (second, second.during("2026-02"), second.during("2026-01", "2026-02")):
        with pytest.raises(InvalidInput, match="not the start"):
            other.feed(watch)
    assert second.during("2026-01").feed(watch).handle.ask("day < '2026-03-01'").above


def test_what_is_not_live_is_refused(opened):
    monday = opened("monday", 10)
    watch = monday.watch(500, epsilon=2)
    vector = SparseVector(public=monday.public, threshold=500, epsilon=2, positives=2)
    for wrong, number in ((vector, None), (watch, watch.number), ({"ward": ["A"]}, None), (7, 7)):
        with pytest.raises(InvalidInput, match="number="):
            monday.feed(wrong, number=number)
    with pytest.raises(dp.DiscreetError, match="Did you mean 'number'"):
        monday.feed(watch, numbr=2)
