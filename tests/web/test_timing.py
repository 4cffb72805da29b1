"""When answers leave, and that nobody waits for another's question."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from discreet._errors import BudgetExceeded, ReleaseFailed
from discreet.app import requests
from discreet.app.requests import error_json
from discreet.app.web import workers
from discreet.app.web.front_desk import FrontDesk, leaves_at
from discreet.app.web.problems import HTTPError
from discreet.app.web.server_store import Dataset, Person, Role, ServerStore
from discreet.app.web.sessions import Desk, Folders
from discreet.app.web.settings import Settings
from discreet.curator import Ledger

from .. import clock
from .running import COUNT, Server, in_a_loop, watch_body

LIMIT = 3.0


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A server with the default tick: answers that touched data leave at the time limit."""
    running = Server(
        tmp_path_factory.mktemp("strict"),
        seconds=LIMIT,
        tick=LIMIT,
        rate=1000,
        burst=2000,
        previewers=1,
        epsilon=100.0,
    ).start()
    with running.client("ann") as ann:
        assert ann.post("/datasets/health/query", json={"sql": COUNT, "epsilon": 0.01}).status_code in (
            200,
            504,
        )
    yield running
    running.stop()


def taken(client: httpx.Client, path: str, body: dict) -> tuple[float, httpx.Response]:
    begun = time.perf_counter()
    reply = client.post(path, json=body)
    return time.perf_counter() - begun, reply


def soonest(client: httpx.Client, path: str, body: dict) -> tuple[float, httpx.Response]:
    """Ask until a reply leaves before the limit, ten times at most: what is held back never does, and what is
    public does as soon as the machine is less busy."""
    for _ in range(10):
        seconds, reply = taken(client, path, body)
        if seconds < LIMIT:
            break
    return seconds, reply


def test_what_touched_data_never_leaves_before_the_limit_and_what_is_public_does(strict):
    """The lower bound is the promise; how much later is the machine's affair, and tested with a clock below."""
    with strict.client("ann") as ann:
        path = "/datasets/health/query"
        one = {"sql": "SELECT COUNT(*) AS n FROM health", "epsilon": 0.0625}
        quick, first = taken(ann, path, one)
        assert quick >= LIMIT
        assert first.status_code == 200
        again, stored = soonest(ann, path, one)
        assert stored.json()["rows"] == first.json()["rows"]
        assert again < LIMIT, "a stored release is exempt"
        refused, reply = soonest(ann, path, one | {"epsilon": 1e6, "large_epsilon": True})
        assert reply.status_code == 402
        assert refused < LIMIT, "a public refusal is exempt"
        previewed, _ = soonest(ann, "/datasets/health/preview", {"sql": COUNT, "epsilon": 0.1})
        assert previewed < LIMIT
        body = watch_body(ann, "health", threshold=100, epsilon=1.0)
        opened, reply = taken(ann, "/datasets/health/start", body)
        assert opened >= LIMIT
        asked = {"number": reply.json()["number"], "question": "age >= 0"}
        replies = [taken(ann, "/datasets/health/answer", asked) for _ in range(2)]
        assert [reply.status_code for _, reply in replies] == [200, 409], "above, and then halted"
        assert all(seconds >= LIMIT for seconds, _ in replies)


class Stub:
    """A lane of workers that takes a given time."""

    def __init__(self, seconds: float, reply: dict) -> None:
        self.seconds, self.reply, self.ready_workers = seconds, reply, 2

    async def call(self, request, deadline, who):
        await asyncio.sleep(self.seconds)
        return dict(self.reply)


@pytest.fixture
def held(monkeypatch) -> clock.Clock:
    """A clock that the test holds, by which the desk lives."""
    held = clock.Clock()
    monkeypatch.setattr("discreet.app.web.front_desk.time", held)
    return held


ANN = Person("ann", Role.ANALYST)
HEALTH = Dataset("health", "", "", "")


def store_with_ann(folder: Path) -> ServerStore:
    """The store of a server with one analyst, and one dataset that is hers."""
    store = ServerStore(folder)
    store.add_person("ann", Role.ANALYST)
    store.add_dataset(HEALTH)
    store.set_grants("health", ["ann"])
    return store


FAILED = {"error": error_json(ReleaseFailed()), "touched": True}
REFUSED = {"error": error_json(BudgetExceeded()), "touched": False}


@pytest.mark.parametrize(
    ("work", "reply", "tick", "hidden", "leaves"),
    [
        (0.01, {"result": b"{}", "touched": True}, None, False, 0.6),
        (0.35, {"result": b"{}", "touched": True}, None, False, 0.6),
        (0.35, FAILED, None, False, 0.6),
        (0.01, {"result": b"{}", "touched": True}, 0.2, False, 0.2),
        (0.25, FAILED, 0.2, False, 0.4),
        (0.01, {"result": b"{}", "touched": False}, None, False, 0.01),
        (0.01, {"result": b"{}", "touched": False}, None, True, 0.6),
        (0.01, REFUSED, None, False, 0.01),
    ],
)
def test_an_answer_leaves_at_a_public_time_whatever_its_work_took(
    tmp_path, held, work, reply, tick, hidden, leaves
):
    store = ServerStore(tmp_path)

    async def run() -> float:
        desk = FrontDesk(Settings(state=tmp_path, seconds=0.6, tick=tick, hide_stored=hidden), store)
        desk.data = Stub(work, reply)
        begun = held.now
        with contextlib.suppress(HTTPError):
            await desk.ask("sql", ANN, HEALTH)
        return held.now - begun

    assert clock.run(held, run) == pytest.approx(leaves, abs=1e-6)
    store.close()


def test_answers_leave_at_multiples_of_the_tick_and_at_the_limit_at_the_latest():
    assert leaves_at(10.0, 10.0, 0.5, 5) == 10.5
    assert leaves_at(10.0, 10.51, 0.5, 5) == 11.0
    assert leaves_at(10.0, 14.0, 3, 5) == 15.0
    assert leaves_at(10.0, 15.001, 5, 5) == 15.0, (
        "a time-out that is noticed late does not take twice the limit"
    )
    assert leaves_at(10.0, 12.0, 5, 5) == 15.0


@pytest.mark.parametrize("work", [0.599, 0.601, 0.63, 1.0])
def test_a_reply_around_or_after_the_limit_leaves_at_the_limit(tmp_path, held, work):
    store = ServerStore(tmp_path)

    async def run() -> tuple[float, str]:
        desk = FrontDesk(Settings(state=tmp_path, seconds=0.6), store)
        desk.data = Stub(work, {"result": b"{}", "touched": True})
        begun, kind = held.now, "answer"
        try:
            await desk.ask("sql", ANN, HEALTH)
        except HTTPError as error:
            kind = error.kind
        took = held.now - begun
        await asyncio.sleep(max(0.0, work - took) + 0.05)
        assert not desk._held, "what is not waited for any more holds no place"
        return took, kind

    took, kind = clock.run(held, run)
    assert took == pytest.approx(0.6, abs=1e-6)
    assert kind == ("TimeLimit" if work > 0.6 else "answer")
    store.close()


def test_free_work_that_is_long_holds_up_no_preview(tmp_path):
    """A plan of many questions, or a workload's preview, runs beside the previews of questions, not before them."""
    store = ServerStore(tmp_path)

    async def run() -> list[str]:
        desk = FrontDesk(Settings(state=tmp_path), store)
        calls: list[str] = []

        class Noted:
            def __init__(self, name: str) -> None:
                self.name = name

            def start_once(self) -> None: ...

            async def call(self, request, deadline, who):
                calls.append(f"{self.name} {request['verb']}")
                return {"result": b"{}", "touched": False}

        desk.previews, desk.slow_free = Noted("previews"), Noted("drawing")
        await desk.look("preview", ANN, HEALTH, sql="SELECT 1", epsilon=1)
        await desk.look("preview", ANN, HEALTH, queries=["SELECT 1"], epsilon=1)
        await desk.look("preview", ANN, HEALTH, mechanism={})
        for verb in ("plan", "explain", "preview_copy"):
            await desk.look(verb, ANN, HEALTH)
        return calls

    calls = in_a_loop(run)
    assert calls[0] == "previews preview"
    assert all(call.startswith("drawing") for call in calls[1:])
    store.close()


class Turns:
    """A lane with some workers: questions take their turns, each as long as it says."""

    def __init__(self, workers: int = 1) -> None:
        self.turns, self.ready_workers = asyncio.Semaphore(workers), workers

    async def call(self, request, deadline, who):
        async with self.turns:
            await asyncio.sleep(request["options"]["work"])
            return {"result": b"{}", "touched": request["options"]["touched"]}


@pytest.mark.parametrize("first", [0.05, 0.3])
def test_who_waits_for_a_worker_does_not_learn_how_long_the_question_before_took(tmp_path, held, first):
    """A refusal that touched nothing leaves at once, but not if it had to wait: the end of the wait would tell."""
    store = ServerStore(tmp_path)

    async def run() -> tuple[float, float]:
        desk = FrontDesk(Settings(state=tmp_path, seconds=0.8, workers=1), store)
        desk.data = Turns()
        begun = held.now
        other = asyncio.create_task(
            desk.ask("sql", Person("bob", Role.ANALYST), HEALTH, work=first, touched=True)
        )
        await asyncio.sleep(0.01)
        await desk.ask("sql", ANN, HEALTH, work=0.0, touched=False)
        waited = held.now - begun
        await other
        begun = held.now
        await desk.ask("sql", ANN, HEALTH, work=0.0, touched=False)
        return waited, held.now - begun

    waited, alone = clock.run(held, run)
    assert waited == pytest.approx(0.81, abs=1e-6), "not at the end of the wait, the end of the other's work"
    assert alone == 0, "without a wait a public refusal leaves at once"
    store.close()


def test_who_goes_away_does_not_learn_from_the_next_question_how_long_the_first_took(tmp_path, held):
    """A client that leaves keeps the worker: a refusal that comes after it waits for it, and so for the limit."""
    store = ServerStore(tmp_path)

    async def run() -> float:
        desk = FrontDesk(Settings(state=tmp_path, seconds=0.8, workers=2), store)
        desk.data = Turns()
        gone = asyncio.create_task(desk.ask("sql", ANN, HEALTH, work=0.3, touched=True))
        await asyncio.sleep(0.02)
        gone.cancel()
        await asyncio.sleep(0.02)
        begun = held.now
        await desk.ask("sql", ANN, HEALTH, work=0.0, touched=False)
        return held.now - begun

    assert clock.run(held, run) == pytest.approx(0.8, abs=1e-6)
    store.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_wait_for_one_of_the_workers_that_are_left_is_seen(tmp_path, held, workers):
    """One of two workers drafts a schema, or is being replaced: a refusal that waits for the other one's question
    is held, too."""
    store = ServerStore(tmp_path)

    async def run() -> float:
        desk = FrontDesk(Settings(state=tmp_path, seconds=0.3, workers=2), store)
        desk.data = Turns(workers)
        tasks = []
        if workers == 2:
            steward = Person("steward", Role.STEWARD)
            tasks.append(asyncio.create_task(desk.steward("draft", steward, None, work=0.3, touched=True)))
        bob = Person("bob", Role.ANALYST)
        tasks.append(asyncio.create_task(desk.ask("sql", bob, HEALTH, work=0.05, touched=True)))
        await asyncio.sleep(0.01)
        begun = held.now
        await desk.ask("sql", ANN, HEALTH, work=0.0, touched=False)
        waited = held.now - begun
        await asyncio.gather(*tasks)
        return waited

    assert clock.run(held, run) == pytest.approx(0.3, abs=1e-6)
    store.close()


@pytest.mark.parametrize("jump", [-10.0, 0.0, 10.0])
def test_a_clock_that_is_set_does_not_end_or_hide_a_public_time(tmp_path, monkeypatch, jump):
    """Entries are dated by a clock that may be set: whenever one of the first request was written, before the
    clock was set or after, the second request is told of a public time that covers it."""
    store, clocks = ServerStore(tmp_path), SimpleNamespace(date=1000.0, moment=50.0)
    monkeypatch.setattr(
        "discreet.app.web.front_desk.time",
        SimpleNamespace(time=lambda: clocks.date, monotonic=lambda: clocks.moment),
    )
    desk = FrontDesk(Settings(state=tmp_path, seconds=5), store)

    def withheld() -> list[tuple[str, float]]:
        request: dict[str, Any] = {"analyst": "ann", "dataset": {"ledger": "l"}}
        desk.times.begin(request, 5.0)
        return request["withheld"]["since"]

    assert withheld() == []
    written = [clocks.date + 1.0, clocks.date + jump + 2.0]
    clocks.date, clocks.moment = clocks.date + jump + 3.0, clocks.moment + 3.0
    ((name, since),) = withheld()
    assert name == "ann"
    assert since <= min(written)
    assert since >= min(written) - 10 - 2
    clocks.date, clocks.moment = clocks.date + 2.5, clocks.moment + 2.5
    assert len(withheld()) == 1, "the first one is over, by the clock that nobody sets"
    store.close()


class JobLane:
    """The lane of a job, whose work takes as long as its options say."""

    def __init__(self, *_: object, **__: object) -> None:
        self.workers: set[object] = set()

    def start(self) -> None: ...

    def end(self) -> None: ...

    def stop(self) -> None: ...

    async def ready(self) -> None: ...

    async def call(self, request, deadline, who):
        await asyncio.sleep(request["options"]["work"])
        return {"result": b"{}", "touched": request["options"].get("touched", True)}


@pytest.mark.parametrize(
    ("work", "touched", "begins"),
    [(0.05, True, 0.8), (0.5, True, 0.8), (0.05, False, 0.05), (2.0, True, 0.8)],
)
def test_the_slot_of_a_job_is_free_at_its_public_end_and_not_when_its_work_is_done(
    tmp_path, held, monkeypatch, work, touched, begins
):
    monkeypatch.setattr("discreet.app.web.front_desk.Lane", JobLane)
    store = store_with_ann(tmp_path)

    async def run() -> tuple[float, str]:
        desk = FrontDesk(Settings(state=tmp_path, jobs=1), store)
        begun = held.now
        first = desk.submit("sql", ANN, HEALTH, 0.8, work=work, touched=touched)
        second = desk.submit("sql", ANN, HEALTH, 0.8, work=0.0)
        while store.job(second, ANN)[0]["state"] == "waiting":
            await asyncio.sleep(0.005)
        moment = held.now - begun
        state = store.job(first, ANN)[0]["state"]
        desk.cancel(second)
        await asyncio.sleep(0.05)
        return moment, state

    moment, state = clock.run(held, run)
    assert moment == pytest.approx(begins, abs=0.006), "it is looked at every five milliseconds"
    assert state == ("failed" if work > 0.8 else "done"), "a time-out is shown at the public end, too"
    store.close()


@pytest.mark.parametrize(("hidden", "shown"), [(True, "running"), (False, "done")])
def test_a_stored_release_of_a_job_waits_for_its_public_end_where_these_are_hidden(
    tmp_path, held, monkeypatch, hidden, shown
):
    """Otherwise whoever submits it sees that somebody else has asked the same before."""
    monkeypatch.setattr("discreet.app.web.front_desk.Lane", JobLane)
    store = store_with_ann(tmp_path)

    async def run() -> tuple[str, str]:
        desk = FrontDesk(Settings(state=tmp_path, hide_stored=hidden), store)
        job = desk.submit("fit", ANN, HEALTH, 0.8, work=0.0, touched=False)
        await asyncio.sleep(0.4)
        early = store.job(job, ANN)[0]["state"]
        await asyncio.sleep(0.6)
        return early, store.job(job, ANN)[0]["state"]

    assert clock.run(held, run) == (shown, "done")
    store.close()


def test_nobody_has_all_slots_of_jobs_and_who_waits_gets_them_in_turn(tmp_path, held, monkeypatch):
    """With first come, first served, an analyst's eight jobs of an hour each kept everybody waiting for four."""
    monkeypatch.setattr("discreet.app.web.front_desk.Lane", JobLane)
    store = store_with_ann(tmp_path)
    bob = Person("bob", Role.ANALYST)
    store.add_person("bob", Role.ANALYST)
    store.set_grants("health", ["ann", "bob"])
    begun: list[str] = []
    begin = store.begin_job
    monkeypatch.setattr(store, "begin_job", lambda job: (begun.append(owners[job]), begin(job)))
    owners: dict[str, str] = {}

    async def run() -> list[str]:
        desk = FrontDesk(Settings(state=tmp_path, jobs=2), store)
        for person, jobs in ((ANN, 6), (bob, 3)):
            for _ in range(jobs):
                owners[desk.submit("sql", person, HEALTH, 1.0, work=0.1)] = person.name
        await asyncio.sleep(0.5)
        first = list(begun)
        await asyncio.sleep(10.0)
        return first

    assert sorted(clock.run(held, run)) == ["ann", "bob"]
    assert [sorted(begun[i : i + 2]) for i in (0, 2, 4)] == [["ann", "bob"]] * 3
    assert begun.count("ann") == 6
    store.close()


def test_a_cancelled_job_hides_what_it_may_have_stored_and_blocks_nothing_else(tmp_path, held, monkeypatch):
    """Until the end of its hour the same question was refused to all, and so was all that its owner had asked
    since; and the list of releases showed at once whether its work had been done."""
    monkeypatch.setattr("discreet.app.web.front_desk.Lane", JobLane)
    monkeypatch.setattr("discreet.app.web.server_store.time", held)
    store = store_with_ann(tmp_path)

    async def run() -> None:
        desk = FrontDesk(Settings(state=tmp_path, seconds=5), store)
        job = desk.submit("sql", ANN, HEALTH, 3600.0, work=1.0)
        await asyncio.sleep(60.0)
        begun, ended = held.time() - 60, held.time()
        assert desk.cancel(job)
        await asyncio.sleep(60.0)
        request: dict[str, Any] = {"analyst": "bob", "dataset": {"ledger": ""}}
        desk.times.begin(request, 5.0)
        assert request["withheld"]["since"] == []
        ((name, first, last),) = request["withheld"]["dropped"]
        assert (name, first, last) == ("ann", pytest.approx(begun, abs=1), pytest.approx(ended, abs=1))
        seen = desk.times.horizon(ANN, HEALTH)
        assert seen["horizon"] == pytest.approx(held.time() - 5)
        assert seen["hidden"] == [[pytest.approx(begun, abs=1), pytest.approx(ended + 1, abs=1)]]
        await asyncio.sleep(3600.0)
        assert desk.times.horizon(ANN, HEALTH)["hidden"] == []
        desk.times.begin(request, 5.0)
        assert request["withheld"]["dropped"] == []

    clock.run(held, run)
    store.close()


def test_what_is_hidden_is_not_shown():
    when = "2026-11-19T12:00:00.000+00:00"
    moment = datetime.fromisoformat(when).timestamp()
    shown = [
        requests.is_shown(when, {"horizon": moment + later, "hidden": [[moment + begun, moment + 100]]})
        for later, begun in ((1, 50), (-1, 50), (1, -50), (500, -50))
    ]
    assert shown == [True, False, False, False]


class BrokenLane(JobLane):
    def start(self) -> None:
        raise OSError("no more processes")


def test_a_job_whose_process_cannot_be_started_has_failed_and_frees_its_slot(tmp_path, monkeypatch):
    """Unfinished for good, it would keep its owner's slot, and all releases since would stay unlisted."""
    monkeypatch.setattr("discreet.app.web.front_desk.Lane", BrokenLane)
    store = store_with_ann(tmp_path)

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        desk = FrontDesk(Settings(state=tmp_path), store)
        job = desk.submit("fit", ANN, HEALTH, 0.8)
        await asyncio.sleep(0.1)
        state, result = store.job(job, ANN)
        assert state["state"] == "failed"
        assert "charge stays" in result
        assert not store.unfinished_jobs("ann")

    in_a_loop(run)
    store.close()


class FailingWorker:
    """Stands in for a worker whose process dies at its start, as long as `broken`."""

    broken, started = True, 0
    process = SimpleNamespace(kill=lambda: None)

    def __init__(self, *_: object) -> None:
        type(self).started += 1

    def wait(self) -> bool:
        return not self.broken

    def call(self, request: Any, deadline: float) -> dict[str, Any]:
        return {"result": b'{"answered": true}', "touched": False}

    def kill(self) -> None: ...


@pytest.fixture
def failing(monkeypatch):
    monkeypatch.setattr(FailingWorker, "broken", True)
    monkeypatch.setattr(FailingWorker, "started", 0)
    monkeypatch.setattr(workers, "Worker", FailingWorker)
    monkeypatch.setattr(workers, "PAUSE", 0.001)
    return FailingWorker


def test_a_lane_gives_up_processes_that_die_at_their_start_until_the_next_request(failing):
    """They were started again for ever, and whoever waited for one waited for ever."""

    async def run() -> None:
        lane = workers.Lane(Desk(True, 1.0, Folders((), Path()), rows=1), 2, 2)
        lane.start()
        with pytest.raises(workers.WorkersFailed, match="Nothing was charged"):
            await asyncio.wait_for(lane.ready(), 600)
        assert failing.started == 2 * workers.STARTS
        asked = [lane.call({}, time.monotonic() + 600, "ann") for _ in range(3)]
        assert all(r["error"] == workers.NOT_STARTED and r["touched"] for r in await asyncio.gather(*asked))
        assert failing.started == 4 * workers.STARTS
        failing.broken = False
        asked = [lane.call({}, time.monotonic() + 600, "ann") for _ in range(3)]
        assert all(r["result"] == b'{"answered": true}' for r in await asyncio.gather(*asked))
        await lane.ready()
        lane.stop()

    in_a_loop(run)


def test_a_job_whose_process_dies_at_its_start_has_failed_uncharged_and_frees_its_slot(tmp_path, failing):
    store = store_with_ann(tmp_path)

    async def run() -> None:
        desk = FrontDesk(Settings(state=tmp_path, jobs=1), store)
        job = desk.submit("fit", ANN, HEALTH, 60)
        while store.unfinished_jobs("ann"):
            await asyncio.sleep(0.005)
        assert "Nothing was charged" in store.job(job, ANN)[1]
        failing.broken = False
        job = desk.submit("fit", ANN, HEALTH, 60)
        while store.unfinished_jobs("ann"):
            await asyncio.sleep(0.005)
        assert store.job(job, ANN)[0]["state"] == "done"

    in_a_loop(lambda: asyncio.wait_for(run(), 600))
    store.close()


def test_a_server_none_of_whose_processes_start_does_not_start(tmp_path, failing):
    store = ServerStore(tmp_path)

    async def run() -> None:
        with pytest.raises(workers.WorkersFailed):
            await asyncio.wait_for(FrontDesk(Settings(state=tmp_path), store).start(), 600)

    in_a_loop(run)
    store.close()


def test_a_long_question_of_one_analyst_holds_up_nobody(strict):
    """Eight questions at once of one analyst take their turns on one worker; another's takes the other worker."""
    long = "SELECT age, site, COUNT(*) AS n, SUM(spending) AS s FROM health GROUP BY age, site"
    ledger = Ledger(strict.folder / "data" / "health.parquet.ledger")
    before = ledger.anchor.seq
    with strict.client("ann") as ann, strict.client("bob") as bob:

        def ask(i: int) -> int:
            options = {"sql": long, "epsilon": 0.25 + i / 1e5}
            return ann.post("/datasets/health/query", json=options).status_code

        with ThreadPoolExecutor(8) as pool:
            sent = [pool.submit(ask, i) for i in range(8)]
            time.sleep(0.1)
            previewed = bob.post("/datasets/health/preview", json={"sql": COUNT, "epsilon": 0.1})
            answered = bob.post("/datasets/health/query", json={"sql": COUNT, "epsilon": 0.015625})
        # who has to wait for longer than the limit is told so
        assert {status.result() for status in sent} <= {200, 504}
        assert previewed.status_code == answered.status_code == 200
        # not after ann's eight
        turns = [e.body["analyst"] for e in ledger.entries(kind="charge") if e.seq > before]
        assert turns.count("bob") == 1
        assert turns.index("bob") <= 4
