"""The front desk: sends requests to worker processes, holds answers back for a public time, and runs jobs.

The *public time* of a request is the period from its arrival (of a job: from the start of its process) until
its answer leaves. Its length does not depend on the data.

Guarantee: an answer, failure or time-out that may have touched data leaves at a multiple of the public tick
           (`Settings.tick`) after its request and at the time limit at the latest, whatever the data; by
           default always at the time limit itself.
Proof:     the reply of a worker is held until `leaves_at`, a function of the request's arrival and of the
           number of ticks its work took; by default one tick is the whole limit, and nothing varies. If
           there is no reply by the limit, a time-out is sent then. A reply that touched no data is held in
           the same way if it may have waited for a worker, and is sent at once otherwise.
Assumes:   the event loop runs its timers on time. docs/promise.md, "Time, on a server", lists what times
           still tell.

"Free" work costs no privacy, because it reads no data: previews, plans, explanations, and everything that is
computed from released synthetic copies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from ...curator.store import is_pointer
from .problems import HTTPError
from .server_store import ANY_STEWARD, Dataset, Person, Role, ServerStore
from .sessions import Desk
from .settings import Settings
from .verbs import takes_long
from .workers import DIED, NOT_STARTED, TIMED_OUT, Lane, WorkersFailed

# The time limit of free work, in seconds. Not tuned: raise it if plans of large workloads time out.
FREE_SECONDS = 30.0
# The time limit of what a steward does to add a dataset, which looks at whole files, in seconds. Not tuned.
STEWARD_SECONDS = 60.0
# Bytes of a body from which on it is read where it holds up nobody's preview. Not tuned.
LARGE_BODY = 1 << 16
# Verbs that show what was released.
DATED = ("preview", "price", "explain", "releases", "live", "copies", "copy", "copy_rows", "ask_copy")


def leaves_at(arrived: float, now: float, tick: float, limit: float) -> float:
    """Return when an answer leaves that is ready `now`: at the next multiple of the tick, counted from when
    its request `arrived`, and at the limit at the latest. `tick` and `limit` are in seconds.

    A reply up to a millionth of a tick late still counts for that tick, so that rounding costs no tick.

    >>> leaves_at(100.0, 100.3, tick=5, limit=5), leaves_at(100.0, 101.1, tick=0.5, limit=5)
    (105.0, 101.5)
    """
    return arrived + min(limit, tick * max(1, math.ceil((now - arrived) / tick - 1e-6)))


def ledger_location(ledger: str) -> str:
    """Return where the entries of a ledger are kept, in a file or a database: two paths of the same ledger
    have the same location, so that a charge under one name of a dataset is seen under its other names."""
    path = Path(ledger)
    if is_pointer(path):
        return path.read_text(encoding="utf-8", errors="replace")
    return str(path.resolve())


class _PublicTime(NamedTuple):
    """The public time of a request of an analyst on a ledger (`ledger_location`).

    `dated` is its begin by the machine's clock, which dates the entries of ledgers and may be set. `begin`
    and `end` are by the monotonic clock, which cannot be set.
    """

    ledger: str
    analyst: str
    dated: float
    begin: float
    end: float

    def since(self, now: float, moment: float) -> float:
        """Return the earliest date that an entry of this request may have: its begin as it was dated then, or
        as it would be dated now, if the machine's clock was set back in the meantime.

        `now` and `moment` are the present by the machine's clock and by the monotonic clock.
        """
        return min(self.dated, now - (moment - self.begin))


class PublicTimes:
    """Decides when replies leave, and from when on a release may be seen: all that hides time on a server.

    The rule: a reply that may have touched data, or may have waited for a worker, leaves at its public time;
    what is stored, previewed or refused for public reasons leaves at once. A release is secret until its
    public time is over: until then it is neither served (`begin`) nor listed (`horizon`). docs/server.md
    ("When answers come") says what each part protects, and from whom.
    """

    def __init__(self, settings: Settings, store: ServerStore) -> None:
        self._settings, self._store = settings, store
        # The requests whose public time is not over yet, and jobs that were cancelled before, with when.
        self._running: dict[object, _PublicTime] = {}
        self._dropped: list[tuple[_PublicTime, float]] = []

    async def hold(
        self, reply: dict[str, Any], begun: float, *, tick: float, limit: float, waited: bool = False
    ) -> None:
        """Wait until a reply may leave, to a request that has `begun` then: until `leaves_at`, if data may
        have been touched, if it may have `waited` for a worker, and, with the setting `hide_stored`, if it is
        a stored release."""
        stored = self._settings.hide_stored and "result" in reply
        if waited or reply["touched"] or stored:
            leaves = leaves_at(begun, time.monotonic(), tick, limit)
            await asyncio.sleep(max(0.0, leaves - time.monotonic()))

    def begin(self, request: dict[str, Any], seconds: float) -> object:
        """Begin the public time of a request, `seconds` long, and return its key for `end`.

        The request tells its worker which other public times run: a release that was charged within one of
        these is still secret, and is not served from the store (`curator.Withheld`).

        A client that hangs up does not end its public time: that is removed when it is over, or when its
        answer has left.
        """
        now, moment, key = time.time(), time.monotonic(), object()
        self._running = {k: times for k, times in self._running.items() if times.end > moment}
        ledger = ledger_location(request["dataset"]["ledger"])
        running = [times for times in self._running.values() if times.ledger == ledger]
        since = [[times.analyst, times.since(now, moment)] for times in running]
        self._dropped = [(times, ended) for times, ended in self._dropped if times.end > moment]
        dropped = [
            [t.analyst, t.since(now, moment), ended] for t, ended in self._dropped if t.ledger == ledger
        ]
        request["withheld"] = {"now": now, "since": since, "dropped": dropped}
        self._running[key] = _PublicTime(ledger, request["analyst"], now, moment, moment + seconds)
        return key

    def end(self, key: object) -> None:
        """End a public time: its answer leaves now."""
        self._running.pop(key, None)

    def drop(self, key: object) -> None:
        """End the public time of a job whose process was killed: what it may have stored stays secret, and
        nothing else (`curator.curator.Withheld`)."""
        times = self._running.pop(key, None)
        if times is not None:
            self._dropped.append((times, time.time()))

    async def settle(self, key: object) -> bool:
        """Wait until the public times of the questions to the same ledger that run now are over, and return
        whether there were any. Jobs may take long, and are not waited for."""
        own, most = self._running[key], self._settings.seconds
        others = [
            k
            for k, times in self._running.items()
            if k is not key and times.ledger == own.ledger and times.end - times.begin <= most
        ]
        moment = time.monotonic()
        while any(k in self._running and self._running[k].end > moment for k in others):
            await asyncio.sleep(min(self._settings.step, 0.05))
            moment = time.monotonic()
        return bool(others)

    def horizon(self, person: Person, dataset: Dataset) -> dict[str, Any]:
        """Return the moment, in seconds since 1970, from which on an analyst's releases are not listed yet,
        because the public time of a question or a job may still run; and as "hidden" the begin and end of
        jobs that were cancelled before theirs, whose releases are not listed either.

        It follows from the dates of charges, not from the public times that `begin` keeps: those are unknown
        to another server with the same ledger, and to this one after a restart.
        """
        # One ledger may be served under two names of datasets.
        location = ledger_location(dataset.ledger)
        ledgers = {other.name: ledger_location(other.ledger) for other in self._store.datasets(ANY_STEWARD)}
        unfinished = [
            float(job["created"])
            for job in self._store.unfinished_jobs(person.name)
            if ledgers.get(job["dataset"]) == location
        ]
        dropped = self._store.dropped_jobs(person.name)
        hidden = [[begun, ended] for name, begun, ended in dropped if ledgers.get(name) == location]
        return {"horizon": min([time.time() - self._settings.seconds, *unfinished]), "hidden": hidden}


class FrontDesk:
    """Passes the requests of all routes to worker processes, and keeps count of who waits for what.

    `look` reads no data and answers as soon as it can; `ask` may read data and answers at the end
    of a public time; `change` and `steward` alter policies and datasets; `submit` starts a job. Workers of
    one kind form a `Lane`, with one queue of requests.
    """

    def __init__(self, settings: Settings, store: ServerStore) -> None:
        self.settings, self.store = settings, store
        # `BudgetedDataset.opening` for as long as this server runs.
        self._opening = secrets.token_hex(16)
        # One person has at most all but one of a lane's workers at a time, so that others are not held up.
        free, count, others = self._desk(False, settings.seconds), settings.workers, settings.workers - 1
        self.previews = Lane(
            free, settings.previewers, max(1, settings.previewers - 1), self._datasets_to_open
        )
        self.data = Lane(self._desk(True, settings.seconds), count, max(1, others), self._datasets_to_open)
        # What is free but may take long has processes of its own, without a table, started when first needed.
        self.slow_free = Lane(free, count, max(1, others))
        # By person, requests whose answers are still held, and requests that a worker still works on. They
        # differ where a client hangs up: its request is no longer held, but the work goes on.
        self._held: Counter[str] = Counter()
        self._busy: Counter[str] = Counter()
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self.times = PublicTimes(settings, store)
        # Datasets are added one after the other (`api.create_dataset`).
        self.adding = asyncio.Lock()
        # One person has at most all but one of the slots, and waits for more in a line of their own: those
        # who wait for a slot get them in turn.
        self._job_slots = asyncio.Semaphore(settings.jobs)
        self._job_turns: dict[str, asyncio.Semaphore] = {}

    def _desk(self, reads: bool, seconds: float) -> Desk:
        """Return what a worker begins with."""
        settings = self.settings
        return Desk(reads, seconds, settings.folders, settings.answer_rows, settings.copy_rows)

    def _datasets_to_open(self) -> list[dict[str, str]]:
        """Return the datasets that a new worker opens before it is asked anything: all of them."""
        return [dataset.to_json() for dataset in self.store.datasets(ANY_STEWARD)]

    @property
    def waiting(self) -> int:
        """How many questions wait for their answers."""
        return sum(self._held.values())

    def new_download(self) -> Path:
        """Return the path of a new file, into which a worker writes what is then sent."""
        return self.settings.state / "downloads" / secrets.token_hex(16)

    async def start(self) -> None:
        """Start the workers; requests are taken once one of each kind is ready."""
        self.store.interrupt_jobs()
        # What the last end of the server has left half sent.
        shutil.rmtree(self.settings.state / "downloads", ignore_errors=True)
        (self.settings.state / "downloads").mkdir(mode=0o700)
        self.previews.start()
        self.data.start()
        try:
            await self.previews.ready()
            await self.data.ready()
        except WorkersFailed:
            await self.stop()
            raise
        await self.renew_grants()

    async def renew_grants(self) -> None:
        """Grant each dataset to the analysts of its policy, which may have been changed by the command line
        while the server was down."""
        steward = Person("steward", Role.STEWARD)
        for dataset in self.store.datasets(steward):
            # A dataset whose ledger cannot be read keeps its grants, and does not stop the server.
            with contextlib.suppress(HTTPError):
                policy = json.loads(await self.look("policy", steward, dataset))
                self.store.set_grants(dataset.name, list(policy["analysts"]))

    async def stop(self) -> None:
        """Cancel all jobs, and end all workers."""
        for task in self._jobs.values():
            task.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
        self.previews.stop()
        self.data.stop()
        self.slow_free.stop()

    async def look(
        self, verb: str, person: Person, dataset: Dataset, sent: bytes | None = None, **options: Any
    ) -> bytes:
        """Answer a request that reads no data and changes nothing, as soon as it is done.

        What may take long goes to workers of its own, where it holds up nobody's preview: large bodies at
        once, and others when a worker that has read them says so. What shows releases shows an analyst their
        own once their public time is over (`PublicTimes.horizon`).
        """
        if verb in DATED:
            options |= self.times.horizon(person, dataset)
        request = self._request(verb, person, dataset, options, sent)
        if not takes_long(verb, options) and len(sent or b"") <= LARGE_BODY:
            reply = await self._call_free(self.previews, request | {"quick": True}, person)
            if not reply.get("slow"):
                return _result(reply)
        self.slow_free.start_once()
        return _result(await self._call_free(self.slow_free, request, person))

    async def change(self, verb: str, person: Person, dataset: Dataset, **options: Any) -> bytes:
        """Change a dataset's policy, or write a note into its ledger; this reads no data either."""
        request = self._request(verb, person, dataset, options)
        return _result(await self._call_free(self.previews, request, person))

    async def _call_free(self, lane: Lane, request: dict[str, Any], person: Person) -> dict[str, Any]:
        return await lane.call(request, time.monotonic() + FREE_SECONDS, person.name)

    async def steward(self, verb: str, person: Person, dataset: Dataset | None, **options: Any) -> bytes:
        """Do what only a steward may: draft a schema and add a dataset, both of which read its files."""
        request = self._request(verb, person, dataset, options)
        work = self._send_to_data(request, time.monotonic() + STEWARD_SECONDS, person.name)
        return _result(await asyncio.shield(work))

    async def ask(
        self,
        verb: str,
        person: Person,
        dataset: Dataset,
        sent: bytes | None = None,
        part: str | None = None,
        **options: Any,
    ) -> bytes:
        """Answer a request that may read data, at the end of its public time (`leaves_at`)."""
        arrived = time.monotonic()
        settings = self.settings
        if self.waiting >= settings.slots or self._held[person.name] >= settings.slots_per_person:
            raise HTTPError(
                "Busy", "too many questions wait for their answers.",
                {"Retry-After": str(math.ceil(settings.seconds))},
                remedy="Ask again later.", charged=False,
            )  # fmt: skip
        # A person who has to wait for a worker would learn from the end of the wait how long another question
        # took: then even an answer that touched no data is held. Whether this person has to wait is estimated
        # on the safe side: questions whose answers are still held count as if their workers were busy, and
        # workers that are being replaced do not count. `settings.workers - 1` is `per_person` of `self.data`.
        by_person = max(self._held[person.name], self._busy[person.name])
        by_all = max(self.waiting, sum(self._busy.values()))
        may_wait = by_person >= max(1, settings.workers - 1) or by_all >= self.data.ready_workers
        self._held[person.name] += 1
        try:
            request = self._request(verb, person, dataset, options, sent, part)
            key = self.times.begin(request, settings.seconds)
            reply = await self._reply_within(arrived + settings.seconds, request, person.name)
            if reply.get("computing") and await self.times.settle(key):
                # Another connection has asked the same a moment ago: its answer is there now, and is free.
                arrived = time.monotonic()
                self.times.end(key)
                key = self.times.begin(request, settings.seconds)
                reply = await self._reply_within(arrived + settings.seconds, request, person.name)
            await self.times.hold(reply, arrived, tick=settings.step, limit=settings.seconds, waited=may_wait)
            self.times.end(key)
            return _result(reply)
        finally:
            self._held[person.name] -= 1
            if not self._held[person.name]:
                del self._held[person.name]

    async def _reply_within(self, limit: float, request: dict[str, Any], who: str) -> dict[str, Any]:
        """Return a worker's reply, or a time-out at the limit; the worker returns to its lane by itself."""
        work = self._send_to_data(request, limit, who)
        done, _ = await asyncio.wait({work}, timeout=max(0.0, limit - time.monotonic()))
        if done:
            return work.result()
        # The late result goes to nobody, but must be retrieved, or asyncio logs it. What was charged and
        # stored is in the ledger.
        work.add_done_callback(lambda late: late.cancelled() or late.exception())
        return {"error": TIMED_OUT, "touched": True}

    def _send_to_data(
        self, request: dict[str, Any], limit: float, who: str
    ) -> asyncio.Future[dict[str, Any]]:
        """Return the future reply of a worker that reads data. Until then its worker counts as busy, even if
        nobody waits for the reply any more."""
        work = asyncio.ensure_future(self.data.call(request, limit, who))
        self._busy[who] += 1
        work.add_done_callback(lambda _: self._release(who))
        return work

    def _release(self, who: str) -> None:
        """Count one request less that a worker works on."""
        self._busy[who] -= 1
        if not self._busy[who]:
            del self._busy[who]

    def _request(
        self,
        verb: str,
        person: Person,
        dataset: Dataset | None,
        options: dict[str, Any],
        sent: bytes | None = None,
        part: str | None = None,
    ) -> dict[str, Any]:
        """Return a request as workers take it: with `options`, or with the body that was `sent`, whose field
        `part` they are, if that is given (`workers.packed`, `verbs.Verb`). An auditor reads ledgers as the
        steward does; which routes an auditor may use is decided before (`auth.allow`)."""
        return {
            "verb": verb,
            "analyst": person.analyst if person.role is not Role.AUDITOR else "steward",
            "by": person.name,
            "role": str(person.role),
            "dataset": None if dataset is None else dataset.to_json(),
            "options": options,
            "opening": self._opening,
            "sent": sent,
            "part": part,
        }

    # jobs

    def submit(
        self,
        verb: str,
        person: Person,
        dataset: Dataset,
        seconds: float,
        sent: bytes | None = None,
        part: str | None = None,
        **options: Any,
    ) -> str:
        """Start a job and return its id.

        Its result is shown at the end of its public time, `seconds` after its process was ready, and not
        before. A refusal that read no data is shown at once, and so is a stored release unless `hide_stored`
        is set.
        """
        if len(self.store.unfinished_jobs(person.name)) >= self.settings.slots_per_person:
            wrong = "you have too many unfinished jobs."
            raise HTTPError("Busy", wrong, remedy="Cancel one, or wait.", charged=False)
        job = self.store.add_job(person.name, dataset.name, verb, seconds)
        request = self._request(verb, person, dataset, options, sent, part)
        self._jobs[job] = asyncio.get_running_loop().create_task(self._run(job, request, seconds))
        self._jobs[job].add_done_callback(lambda _: self._jobs.pop(job, None))
        return job

    async def _run(self, job: str, request: dict[str, Any], seconds: float) -> None:
        """Run a job in a process of its own, which is killed if the job is cancelled.

        Its public time begins when the process is ready: the wait before that does not depend on the data. A
        job that ends with an unexpected error is stored as failed: a job that stays unfinished would occupy a
        slot of its owner, and hold back the list of their releases, for good.
        """
        lane: Lane | None = None
        key: object = None
        end = 0.0
        try:
            turns = asyncio.Semaphore(max(1, self.settings.jobs - 1))
            async with self._job_turns.setdefault(request["by"], turns), self._job_slots:
                dataset = request["dataset"]
                lane = Lane(self._desk(True, seconds), 1, 1, lambda: [dataset], request["verb"])
                lane.start()
                await lane.ready()
                end = time.monotonic() + seconds
                self.store.begin_job(job)
                key = self.times.begin(request, seconds)
                work = asyncio.ensure_future(lane.call(request, end, "job"))
                done, _ = await asyncio.wait({work}, timeout=seconds)
                reply: dict[str, Any] = work.result() if done else {"error": TIMED_OUT, "touched": True}
                # The slot is kept as long: when the next job begins must not tell when this one was done.
                await self.times.hold(reply, end - seconds, tick=seconds, limit=seconds)
                state = "failed" if "error" in reply else "done"
                result = json.dumps(reply["error"]) if "error" in reply else reply["result"].decode()
                self.store.set_job(job, state, result, only=("waiting", "running"))
                self.times.end(key)
        except WorkersFailed:
            # Raised before the job has begun: nothing was sent to a process.
            self.store.set_job(job, "failed", json.dumps(NOT_STARTED), only=("waiting", "running"))
        except Exception:
            await asyncio.sleep(max(0.0, end - time.monotonic()))
            self.store.set_job(job, "failed", json.dumps(DIED), only=("waiting", "running"))
            raise
        finally:
            if lane is not None:
                lane.end()
                await asyncio.shield(asyncio.to_thread(lane.stop))
            self.times.drop(key)

    def cancel(self, job: str) -> bool:
        """Cancel a job, and return whether it was still unfinished. What it was charged stays charged."""
        changed = self.store.set_job(job, "cancelled", only=("waiting", "running"))
        task = self._jobs.get(job)
        if task is not None:
            task.cancel()
        return changed


def _result(reply: dict[str, Any]) -> bytes:
    """Return the result in a worker's reply, as JSON; raise its error if it has one."""
    if "error" in reply:
        raise HTTPError.of(reply["error"])
    result: bytes = reply["result"]
    return result
