"""Live mechanisms go on with the next version of a table, or with a new batch of rows: each once, free,
committed like an answer."""

import os
import signal
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from discreet import Bounds, Categories, InvalidInput, Public, PublicMismatch
from discreet._errors import ReleaseFailed
from discreet.accounting import PureDP
from discreet.adaptive import Thresholdout
from discreet.curator import Budget, Curator, Policy
from discreet.curator.live_mechanisms import Feed
from discreet.mechanisms import AboveThreshold, Component, Histogram, SparseVector
from discreet.mechanisms.protocols import Interactive, as_of, release
from discreet.sampling import discrete_laplace
from discreet.tables import Memory

PUBLIC = Public(schema={"ward": Categories(["a", "b"]), "age": Bounds(0, 100)}, table="people", version="1")
PRICE = PureDP(epsilon=0.5)


def version(name, a=50, b=5, public=PUBLIC):
    wards = ["a"] * a + ["b"] * b
    return Memory({"ward": wards, "age": np.arange(a + b) % 90}, replace(public, version=name))


@pytest.fixture
def curator(tmp_path):
    return Curator.create(tmp_path / "people.ledger", version("1"), Policy(budget=Budget(epsilon=3)))


def opened(curator, source):
    return Curator.open(curator.ledger.path, source)


def vector(public=PUBLIC, **options):
    return SparseVector(public=public, threshold=200, epsilon=1, positives=3, **options)


def ward(index):
    return Component(statistic=Histogram(column="ward"), index=index)


def test_above_threshold_goes_on_with_the_next_version_like_the_sparse_vector_that_it_is(curator):
    live = curator.start(AboveThreshold(public=PUBLIC, threshold=200, epsilon=1))
    assert not live.answer(ward(0)).value.above
    new = version("2", a=400)
    later = opened(curator, new).resume(live.mechanism, live.number)
    assert later.answer(ward(0)).value.above
    assert curator.used == 1


def test_a_sparse_vector_goes_on_with_the_next_version_and_the_same_threshold(curator):
    live = curator.start(vector())
    assert not live.answer(ward(0)).value.above
    new = version("2", a=400)
    # With the public facts that it was started with, or those of the new version.
    for mechanism in (vector(), vector(public=new.public)):
        assert opened(curator, new).resume(mechanism, live.number).answer(ward(0)).value.above
    assert not live.answer(ward(0)).value.above
    states = [entry.body.get("table") for entry in curator.ledger.entries(kind="state")]
    assert states == [None, "1", "2", "2", "1"]
    assert curator.used == 1
    assert curator.verify() == []


@pytest.mark.parametrize(
    "facts",
    [
        {"schema": {"ward": Categories(["a", "b", "c"]), "age": Bounds(0, 100)}},
        {"schema": {"ward": Categories(["a", "b"]), "age": Bounds(0, 200)}},
        {"size": 7},
    ],
)
def test_a_version_with_other_public_facts_is_refused(curator, facts):
    live = curator.start(vector())
    new = version("2", public=replace(PUBLIC, **facts))
    with pytest.raises(PublicMismatch, match="priced for other public facts"):
        opened(curator, new).resume(vector(), live.number)
    with pytest.raises(InvalidInput, match="not the start"):
        opened(curator, new).resume(vector(public=new.public), live.number)


def test_what_does_not_say_that_versions_may_change_stays_with_its_own(curator):
    mechanism = Still(PUBLIC)
    live = curator.start(mechanism)
    with pytest.raises(PublicMismatch, match="version differ"):
        opened(curator, version("2")).resume(mechanism, live.number)
    assert as_of(mechanism, version("2").public) is mechanism


def test_a_holdout_may_go_on_and_says_what_it_no_longer_promises():
    public = replace(PUBLIC, size=55)
    holdout = Thresholdout(public=public, threshold=0.1, sigma=0.05, budget=1)
    assert as_of(holdout, replace(public, version="2")).event == holdout.event
    assert "`within` no longer holds" in Thresholdout.__doc__.split("Versions:")[1]


@dataclass(frozen=True)
class Still(Interactive):
    """A live mechanism that belongs to one version."""

    public: Any
    event: Any = PRICE

    def start(self, source, *, entropy):
        return {"asked": 0}

    def answer(self, state, source, question, *, entropy):
        return state, release(0, event=self.event, entropy=entropy)


@dataclass(frozen=True)
class Running(Interactive):
    """A running count: each batch gets noise of its own, and each unit is in one batch."""

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
        if batch.public.version == "bad":
            raise ValueError("17 rows")
        if batch.public.version == "fatal" and not os.environ.get("SPARED"):
            os.kill(os.getpid(), signal.SIGKILL)
        total = state["total"] + count + int(discrete_laplace(2, 1, entropy)[0])
        after = {**state, "total": total}
        return after, None if batch.public.version == "quiet" else release(
            total, event=self.event, entropy=entropy
        )


def test_batches_are_fed_once_each_for_nothing(curator):
    mechanism = Running(PUBLIC)
    live = curator.start(mechanism)
    first = opened(curator, version("monday", a=1000, b=0))
    value = first.feed(mechanism, live.number).value
    assert abs(value - 1000) < 100
    assert live.answer("total").value == value
    before = curator.ledger.anchor
    with pytest.raises(InvalidInput, match="fed to this before"):
        first.feed(mechanism, live.number)
    assert curator.ledger.anchor == before
    assert opened(curator, version("quiet", a=500, b=0)).feed(mechanism, live.number) is None
    assert abs(live.answer("total").value - 1500) < 200
    assert curator.used == 0.5
    assert [entry.body["table"] for entry in curator.ledger.entries(kind="fed")] == ["monday", "quiet"]
    assert curator.verify() == []


def test_a_batch_that_fails_or_is_lost_counts_and_may_be_fed_again(curator, monkeypatch):
    mechanism = Running(PUBLIC)
    live = curator.start(mechanism)
    with pytest.raises(ReleaseFailed, match="withheld") as failed:
        opened(curator, version("bad")).feed(mechanism, live.number)
    assert "17" not in str(failed.value)
    pid = os.fork()
    if pid == 0:
        opened(curator, version("fatal")).feed(mechanism, live.number)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    # Nobody else has the batch: it was lost, and its rows are in no total.
    assert live.answer("total").value == 0
    assert curator.ledger.last("state").body["failures"] == 2
    monkeypatch.setenv("SPARED", "yes")
    assert abs(opened(curator, version("fatal", a=400, b=0)).feed(mechanism, live.number).value - 400) < 100
    assert curator.verify() == []


def test_a_question_about_another_version_is_not_answered_by_who_has_this_one(curator):
    live = curator.start(vector())
    pid = os.fork()
    if pid == 0:
        other = opened(curator, version("2", a=400)).resume(vector(), live.number)
        type(other)._compute_and_commit = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
        other.answer(ward(0))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert not live.answer(ward(0)).value.above
    states = [
        (e.body.get("failed", False), e.body.get("table")) for e in curator.ledger.entries(kind="state")
    ]
    assert states == [(False, None), (True, None), (False, "1")]
    assert curator.verify() == []


def test_only_what_can_be_fed_is_fed(curator):
    live = curator.start(vector())
    with pytest.raises(InvalidInput, match="resume it over the new version"):
        opened(curator, version("2")).feed(vector(), live.number)
    still = curator.start(Still(PUBLIC))
    with pytest.raises(InvalidInput, match="start a new one"):
        opened(curator, version("2")).feed(Still(PUBLIC), still.number)
    with pytest.raises(InvalidInput, match="no question"):
        live.answer(Feed("2"))
