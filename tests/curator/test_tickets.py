"""Tickets: questions to one live mechanism in their order, outside the lock; a dead asker's question is
answered once by the next."""

import json
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from discreet import Bounds, Halted, Public
from discreet._errors import LedgerError, ReleaseFailed
from discreet.accounting import PureDP
from discreet.curator import Budget, Curator, Policy, tickets, values
from discreet.curator.live_mechanisms import InteractiveHandle
from discreet.mechanisms import noisy_count
from discreet.mechanisms.protocols import Interactive, release
from discreet.tables import Memory

PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")


def people():
    return Memory({"age": list(range(90))}, PUBLIC)


@dataclass(frozen=True)
class Slow(Interactive):
    """Answers each question with its own number and noise, after it waited at a gate: a file that must be
    there, named by the question."""

    public: Any
    event: Any
    folder: str

    def start(self, source, *, entropy):
        return {"asked": 0, "noise": []}

    def answer(self, state, source, question, *, entropy):
        if state["asked"] >= 50:
            raise Halted("enough.")
        list(source.batches(["age"]))
        with open(f"{self.folder}/seen", "a", encoding="ascii") as file:
            file.write(f"{question} {os.getpid()}\n")
        while not (Path(self.folder) / f"gate {question}").exists():
            time.sleep(0.002)
        noise = entropy.integer(40)
        after = {"asked": state["asked"] + 1, "noise": [*state["noise"], noise]}
        if question == "bad":
            raise ValueError("17 rows")
        if question == "fatal":
            os.kill(os.getpid(), signal.SIGKILL)
        return after, release([after["asked"], noise], event=self.event, entropy=entropy)


def slow(folder):
    return Slow(PUBLIC, PureDP(epsilon=0.5), str(folder))


@pytest.fixture
def curator(tmp_path):
    return Curator.create(tmp_path / "people.ledger", people(), Policy(budget=Budget(epsilon=2)))


def again(curator, number):
    """The same live mechanism as another process would open it."""
    opened = Curator.open(curator.ledger.path, people())
    return InteractiveHandle(
        opened.ledger, opened.source, slow(curator.ledger.path.parent), number, opened._entropy
    )


def open_gate(curator, question):
    (curator.ledger.path.parent / f"gate {question}").touch()


def seen(curator):
    path = curator.ledger.path.parent / "seen"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def until(condition, seconds=600):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def state(curator, live, version):
    newest = next(entry for entry in curator.ledger.entries(kind="state") if entry.body["version"] == version)
    opened = json.loads(curator.ledger.key.unseal(newest.sealed, f"{live.number}:{version}".encode()))
    # beside the parameters of the mechanism, which has no description
    return opened["state"]


def asked(live, question, into):
    """Ask in a thread, and keep what came."""

    def work():
        try:
            into[question] = live.answer(question).value
        except Exception as error:
            into[question] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_charge_commits_while_a_question_is_held_at_a_barrier(curator):
    live = curator.start(slow(curator.ledger.path.parent))
    other = curator.start(slow(curator.ledger.path.parent))
    answers = {}
    thread = asked(live, "a", answers)
    until(lambda: seen(curator) == ["a"])
    second = Curator.open(curator.ledger.path, people())
    before = curator.used
    second.ask(noisy_count(PUBLIC, epsilon=0.1))
    assert curator.used > before
    # Nor does another live mechanism wait.
    open_gate(curator, "b")
    assert other.answer("b").value[0] == 1
    assert answers == {}
    assert thread.is_alive()
    open_gate(curator, "a")
    thread.join(600)
    assert answers["a"][0] == 1
    assert curator.verify() == []


def test_questions_of_many_threads_and_processes_are_answered_in_the_order_of_their_tickets(curator):
    live = curator.start(slow(curator.ledger.path.parent))
    answers, threads = {}, []
    # The first to get a ticket is let through last: being fast is no advantage.
    for i, question in enumerate("abcd"):
        threads.append(asked(again(curator, live.number), question, answers))
        until(lambda i=i: len(list(curator.ledger.entries(kind="ticket"))) == i + 1)
    for question in "dcba":
        assert answers == {}
        open_gate(curator, question)
        time.sleep(0.02)
    for thread in threads:
        thread.join(600)
    assert {question: answers[question][0] for question in "abcd"} == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert seen(curator) == list("abcd")
    assert state(curator, live, 4)["noise"] == [answers[question][1] for question in "abcd"]
    assert list(curator.ledger.path.parent.glob("*-asker-*")) == []
    assert curator.verify() == []


class Process:
    """A process of its own that asks one question, and writes the answer to a pipe."""

    def __init__(self, curator, live, question):
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                answer = again(curator, live.number).answer(question).value
                os.write(writer, json.dumps(answer).encode())
            finally:
                os._exit(0)
        os.close(writer)

    def output(self):
        """What it wrote, once it has ended."""
        with os.fdopen(self._reader) as file:
            text = file.read()
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return text

    def killed(self):
        os.kill(self.pid, signal.SIGKILL)
        return self.output()


def test_the_question_of_a_killed_process_is_answered_once_and_first(curator):
    live = curator.start(slow(curator.ledger.path.parent))
    victim = Process(curator, live, "a")
    until(lambda: seen(curator) == ["a"])
    answers = {}
    thread = asked(live, "b", answers)
    until(lambda: len(list(curator.ledger.entries(kind="ticket"))) == 2)
    assert victim.killed() == ""
    # The next asker computes it again, from the committed state, before their own.
    until(lambda: seen(curator) == ["a", "a"])
    open_gate(curator, "a")
    open_gate(curator, "b")
    thread.join(600)
    assert answers["b"][0] == 2
    tries = [(e.body["version"], e.body.get("attempt", 1)) for e in curator.ledger.entries(kind="ticket")]
    assert tries == [(1, 1), (2, 1), (1, 2)]
    states = list(curator.ledger.entries(kind="state"))
    assert [(entry.body["version"], entry.body.get("question")) for entry in states] == [
        (0, None),
        (1, "a"),
        (2, "b"),
    ]
    assert state(curator, live, 2)["noise"] == [values.decode(states[1].body["value"])[1], answers["b"][1]]
    assert curator.verify() == []
    # What the killed process left beside the ledger goes with the next start.
    again(curator, live.number)
    assert list(curator.ledger.path.parent.glob("*-asker-*")) == []


def test_two_processes_get_answers_in_the_order_of_their_tickets(curator):
    live = curator.start(slow(curator.ledger.path.parent))
    first = Process(curator, live, "a")
    until(lambda: seen(curator) == ["a"])
    second = Process(curator, live, "b")
    until(lambda: len(list(curator.ledger.entries(kind="ticket"))) == 2)
    open_gate(curator, "b")
    time.sleep(0.05)
    assert os.waitpid(second.pid, os.WNOHANG) == (0, 0)
    open_gate(curator, "a")
    outputs = [json.loads(victim.output()) for victim in (first, second)]
    assert [output[0] for output in outputs] == [1, 2]
    assert curator.verify() == []


def test_a_question_that_ends_every_process_that_computes_it_fails_in_the_end(curator):
    live = curator.start(slow(curator.ledger.path.parent))
    for gate in ("fatal", "b"):
        open_gate(curator, gate)
    for attempt in range(tickets.ATTEMPTS):
        victim = Process(curator, live, "fatal" if attempt == 0 else "b")
        assert victim.output() == ""
        assert victim.status == -signal.SIGKILL
    # Two more questions were asked by those who were killed by taking the first over.
    assert live.answer("b").value[0] == 4
    states = [
        (e.body.get("question"), e.body.get("failed", False)) for e in curator.ledger.entries(kind="state")
    ]
    assert states[1:] == [("fatal", True), ("b", False), ("b", False), ("b", False)]
    assert curator.verify() == []


class Undescribed:
    """Trusted code: nobody else can ask it again."""

    def __str__(self):
        return "code"


def test_a_lost_question_without_a_description_counts_as_failed(curator):
    live = curator.start(slow(curator.ledger.path.parent))
    victim = Process(curator, live, Undescribed())
    until(lambda: seen(curator) == ["code"])
    assert victim.killed() == ""
    open_gate(curator, "b")
    assert live.answer("b").value[0] == 2
    lost = list(curator.ledger.entries(kind="state"))[1]
    assert lost.body["failed"]
    assert lost.body["failures"] == 1
    assert curator.verify() == []


def test_what_halts_while_a_question_waits_refuses_it_in_its_turn(curator):
    live = curator.start(slow(curator.ledger.path.parent))
    with curator.ledger.writing() as writer:
        live._commit(writer, {"asked": 49, "noise": []}, 1, {})
    answers = {}
    first = asked(live, "a", answers)
    until(lambda: seen(curator) == ["a"])
    second = asked(live, "b", answers)
    until(lambda: len(list(curator.ledger.entries(kind="ticket"))) == 2)
    open_gate(curator, "a")
    first.join(600)
    second.join(600)
    assert answers["a"][0] == 50
    assert isinstance(answers["b"], Halted)
    assert seen(curator) == ["a"]
    assert curator.ledger.last("state").body["refused"]
    before = curator.ledger.anchor
    with pytest.raises(Halted, match="enough"):
        live.answer("c")
    assert curator.ledger.anchor == before
    assert curator.verify() == []


def test_nothing_is_shown_if_the_answer_cannot_be_committed(curator, monkeypatch):
    live = curator.start(slow(curator.ledger.path.parent))
    open_gate(curator, "a")
    with monkeypatch.context() as patch:
        patch.setattr(
            InteractiveHandle,
            "_commit",
            lambda *args: (_ for _ in ()).throw(LedgerError("the disk is full.")),
        )
        with pytest.raises(LedgerError, match="disk is full"):
            live.answer("a")
    assert curator.ledger.last("state").body["version"] == 0
    # It stays asked: the next one to come has it answered first.
    assert live.answer("a").value[0] == 2
    assert curator.verify() == []


def test_a_failure_of_somebody_elses_lost_question_does_not_reach_the_next_asker(curator):
    live = curator.start(slow(curator.ledger.path.parent))
    victim = Process(curator, live, "bad")
    until(lambda: seen(curator) == ["bad"])
    assert victim.killed() == ""
    open_gate(curator, "bad")
    open_gate(curator, "b")
    assert live.answer("b").value[0] == 2
    assert [e.body.get("failed", False) for e in curator.ledger.entries(kind="state")] == [False, True, False]
    with pytest.raises(ReleaseFailed, match="withheld"):
        live.answer("bad")
    assert curator.verify() == []


def test_a_sign_of_life_is_not_inherited_by_forks(curator):
    """A worker that was forked while a question ran does not keep its dead parent's turn."""
    with tickets.Asker(curator.ledger.path) as asker:
        context = multiprocessing.get_context("fork")
        worker = context.Process(target=time.sleep, args=(60,))
        worker.start()
        name = asker.name
        assert asker.own
    tickets.wait(curator.ledger.path, name)
    assert worker.is_alive(), "the wait did not end with the worker"
    worker.terminate()
    worker.join()


def test_a_removed_sign_of_life_gives_one_answer_only(curator):
    """An operator who removes it gives the question to the next asker; the first one shows nothing."""
    live = curator.start(slow(curator.ledger.path.parent))
    answers = {}
    first = asked(live, "a", answers)
    until(lambda: seen(curator) == ["a"])
    for path in curator.ledger.path.parent.glob("*-asker-*"):
        path.unlink()
    second = asked(again(curator, live.number), "b", answers)
    until(lambda: seen(curator) == ["a", "a"])
    open_gate(curator, "b")
    open_gate(curator, "a")
    first.join(600)
    second.join(600)
    assert isinstance(answers["a"], LedgerError)
    assert answers["b"][0] == 2
    assert len([e for e in curator.ledger.entries(kind="state") if e.body.get("question") == "a"]) == 1
    assert curator.verify() == []


def test_tickets_out_of_turn_are_found(curator):
    live = curator.start(slow(curator.ledger.path.parent))
    with curator.ledger.writing() as writer:
        body = {"charge": live.number, "version": 5, "question": "a", "asker": "x"}
        writer.append("ticket", body, topic=tickets.topic(live.number, 5))
    assert [line for line in curator.verify() if "out of turn" in line]
