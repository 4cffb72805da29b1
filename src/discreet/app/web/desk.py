"""The front desk: sends requests to workers, holds answers back until their time, and runs jobs.

Guarantee: an answer, failure or time-out that may have touched data leaves at a multiple of the public tick
           after its request and at the time limit at the latest, whatever the data; by default always at the
           time limit itself.
Proof:     the reply of a worker is held until `leaves_at`, a function of the request's arrival and of the
           number of ticks its work took; by default one tick is the whole limit, and nothing varies. What
           has not come by the limit is a time-out then, and is not waited for.
Assumes:   the event loop is not kept from its timers. What remains is in docs/promise.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ...curator.postgres_store import is_pointer
from .errors import HTTPError
from .settings import Settings
from .store import Dataset, Person, Role, ServerStore
from .workers import TIMED_OUT, Lane

# Seconds that free work may take.
QUICK = 30.0
# Free work that may take long: what a request names can be large. A preview takes about 10 CPU-ms, one with
# Gaussian noise 2 s (an accountant searches), one of 900 sums by accuracy 1.4 s.
SLOW = ("plan", "explain", "preview_copy")
# Characters of SQL from which on a preview counts as slow. Not tuned.
LONG = 2_000


def leaves_at(arrived: float, now: float, tick: float, limit: float) -> float:
    """Return when an answer leaves: the next multiple of the tick after its arrival, at the limit at the
    latest.

    >>> leaves_at(100.0, 100.3, tick=5, limit=5), leaves_at(100.0, 101.1, tick=0.5, limit=5)
    (105.0, 101.5)
    """
    return arrived + min(limit, tick * max(1, math.ceil((now - arrived) / tick - 1e-6)))


def takes_long(verb: str, options: dict[str, Any]) -> bool:
    """Return whether free work may take so long that others' previews must not wait for it.

    What is not seen here holds up only the previews of the person who asked: one person has one previewer.
    """
    searched = options.get("noise") == "gaussian" or (verb == "odds" and bool(options.get("delta")))
    slow_options = options.keys() & {"queries", "mechanism", "rho"}
    return verb in SLOW or searched or bool(slow_options) or len(options.get("sql") or "") > LONG


def books_of(ledger: str) -> str:
    """Return where the entries of a ledger are: the same for all names and links of it."""
    path = Path(ledger)
    if is_pointer(path):
        return path.read_text(encoding="utf-8", errors="replace")
    return str(path.resolve())


class FrontDesk:
    """What all routes ask."""

    def __init__(self, settings: Settings, store: ServerStore) -> None:
        self.settings, self.store = settings, store
        seconds, rows, count = settings.seconds, settings.answer_rows, settings.workers
        # One person never has all previewers either.
        per_person = max(1, settings.previewers - 1)
        self.previews = Lane(False, settings.previewers, seconds, rows, per_person, self._warm)
        self.data = Lane(True, count, seconds, rows, max(1, count - 1), self._warm)
        # What is free but may take long has processes of its own, without a table, started when first needed.
        self.drawing = Lane(False, count, seconds, rows, max(1, count - 1), copy_rows=settings.copy_rows)
        # answers that are waited for, and questions that are worked on: whoever goes away leaves the second
        self._held: Counter[str] = Counter()
        self._busy: Counter[str] = Counter()
        self._jobs: dict[str, asyncio.Task[None]] = {}
        # public times that run: the ledger, who asks, since when, until when
        self._times: dict[object, tuple[str, str, float, float]] = {}
        self._job_slots = asyncio.Semaphore(settings.jobs)

    def _warm(self) -> list[dict[str, str]]:
        steward = Person("", Role.STEWARD)
        return [dataset.to_json() for dataset in self.store.datasets(steward)]

    async def start(self) -> None:
        """Start the workers; requests are taken once one of each kind is ready."""
        self.store.interrupt_jobs()
        self.previews.start()
        self.data.start()
        await self.previews.ready()
        await self.data.ready()
        await self.renew_grants()

    async def renew_grants(self) -> None:
        """Grant each dataset to the analysts of its policy, which may have been changed on the shell."""
        steward = Person("steward", Role.STEWARD)
        for dataset in self.store.datasets(steward):
            with contextlib.suppress(HTTPError):
                policy = await self.look("policy", steward, dataset)
                self.store.set_grants(dataset.name, list(policy["analysts"]))

    async def stop(self) -> None:
        for task in self._jobs.values():
            task.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
        self.previews.stop()
        self.data.stop()
        self.drawing.stop()

    async def look(self, verb: str, person: Person, dataset: Dataset, **options: Any) -> dict[str, Any]:
        """Answer a request that reads no data and changes nothing, at once.

        What may take long is done where it holds up nobody's preview of a question.
        """
        if takes_long(verb, options):
            return await self.draw(verb, person, dataset, **options)
        return await self._call_previews(verb, person, dataset, options)

    async def change(self, verb: str, person: Person, dataset: Dataset, **options: Any) -> dict[str, Any]:
        """Change a dataset's policy, or write a note into its ledger; this reads no data either."""
        return await self._call_previews(verb, person, dataset, options)

    async def _call_previews(
        self, verb: str, person: Person, dataset: Dataset, options: dict[str, Any]
    ) -> dict[str, Any]:
        request = self._request(verb, person, dataset, options)
        reply = await self.previews.call(request, time.monotonic() + QUICK, person.name)
        return _result(reply)

    async def draw(self, verb: str, person: Person, dataset: Dataset, **options: Any) -> dict[str, Any]:
        """Do what needs no data and may take long: plans, explanations, rows of synthetic copies and
        questions to these."""
        self.drawing.start_once()
        request = self._request(verb, person, dataset, options)
        return _result(await self.drawing.call(request, time.monotonic() + QUICK, person.name))

    async def steward(
        self, verb: str, person: Person, dataset: Dataset | None, **options: Any
    ) -> dict[str, Any]:
        """Do what the steward alone may: drafts and new datasets, which look at files."""
        request = self._request(verb, person, dataset, options)
        return _result(await self.data.call(request, time.monotonic() + 60, person.name))

    async def ask(self, verb: str, person: Person, dataset: Dataset, **options: Any) -> dict[str, Any]:
        """Do what may touch data, and answer when its time has come."""
        arrived = time.monotonic()
        settings = self.settings
        if sum(self._held.values()) >= settings.slots or self._held[person.name] >= settings.slots_per_person:
            raise HTTPError(
                "Busy", "too many questions wait for their answers. Nothing was charged. Ask again later.",
                {"Retry-After": str(math.ceil(settings.seconds))},
            )  # fmt: skip
        # A person who has to wait for a worker would learn from the end of the wait how long another question
        # took.
        workers = max(self._held[person.name], self._busy[person.name])
        others = max(sum(self._held.values()), sum(self._busy.values()))
        waits = workers >= max(1, settings.workers - 1) or others >= settings.workers
        self._held[person.name] += 1
        try:
            request = self._request(verb, person, dataset, options)
            own_time = self._begin(request, settings.seconds)
            reply = await self._reply_within(arrived + settings.seconds, request, person.name)
            if waits or reply["touched"] or (settings.hide_stored and "result" in reply):
                leaves = leaves_at(arrived, time.monotonic(), settings.step, settings.seconds)
                await asyncio.sleep(max(0.0, leaves - time.monotonic()))
            self._times.pop(own_time, None)
            return _result(reply)
        finally:
            self._held[person.name] -= 1
            if not self._held[person.name]:
                del self._held[person.name]

    async def _reply_within(self, limit: float, request: dict[str, Any], who: str) -> dict[str, Any]:
        """Return a worker's reply, or at the limit that there was none; the worker comes back by itself."""
        work = asyncio.ensure_future(self.data.call(request, limit, who))
        self._busy[who] += 1
        work.add_done_callback(lambda _: self._release(who))
        done, _ = await asyncio.wait({work}, timeout=max(0.0, limit - time.monotonic()))
        if done:
            return work.result()
        # its result is nobody's any more: what was charged and stored is in the ledger
        work.add_done_callback(lambda late: late.cancelled() or late.exception())
        return {"error": TIMED_OUT, "touched": True}

    def _release(self, who: str) -> None:
        self._busy[who] -= 1
        if not self._busy[who]:
            del self._busy[who]

    def _begin(self, request: dict[str, Any], seconds: float) -> object:
        """Begin the public time of a request, and tell its worker which others run: what was charged within
        these is not served to it from the store.

        Going away does not end a time: it is forgotten when it is over, or its answer has left.
        """
        now, ticket = time.time(), object()
        self._times = {key: begun_call for key, begun_call in self._times.items() if begun_call[3] > now}
        ledger = books_of(request["dataset"]["ledger"])
        since = [[who, begun] for at, who, begun, _ in self._times.values() if at == ledger]
        request["withheld"] = {"now": now, "since": since}
        self._times[ticket] = (ledger, request["analyst"], now, now + seconds)
        return ticket

    def horizon(self, person: Person, dataset: Dataset) -> float:
        """Return the moment since which an analyst's releases are not shown yet."""
        # One ledger may be served under two names.
        books = books_of(dataset.ledger)
        ledgers = {
            other.name: books_of(other.ledger) for other in self.store.datasets(Person("", Role.STEWARD))
        }
        unfinished = [
            float(job["created"])
            for job in self.store.unfinished_jobs(person.name)
            if ledgers.get(job["dataset"]) == books
        ]
        return min([time.time() - self.settings.seconds, *unfinished])

    def _request(
        self, verb: str, person: Person, dataset: Dataset | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "verb": verb,
            "analyst": person.analyst if person.role is not Role.AUDITOR else "steward",
            "by": person.name,
            "role": str(person.role),
            "dataset": None if dataset is None else dataset.to_json(),
            "options": options,
        }

    # jobs

    def submit(
        self, verb: str, person: Person, dataset: Dataset, seconds: float, options: dict[str, Any]
    ) -> str:
        """Begin a job: its result is there `seconds` after it was begun, which is public, and not before."""
        if len(self.store.unfinished_jobs(person.name)) >= self.settings.slots_per_person:
            raise HTTPError(
                "Busy", "you have too many unfinished jobs. Nothing was charged. Cancel one, or wait."
            )
        job = self.store.add_job(person.name, dataset.name, verb, seconds)
        request = self._request(verb, person, dataset, options)
        self._jobs[job] = asyncio.get_running_loop().create_task(self._run(job, request, seconds))
        self._jobs[job].add_done_callback(lambda _: self._jobs.pop(job, None))
        return job

    async def _run(self, job: str, request: dict[str, Any], seconds: float) -> None:
        """Run a job in a process of its own, which is killed if the job is cancelled.

        Its clock begins when the process is ready: waiting for that says nothing of the data.
        """
        lane: Lane | None = None
        try:
            async with self._job_slots:
                dataset = request["dataset"]
                lane = Lane(True, 1, seconds, self.settings.answer_rows, 1, lambda: [dataset])
                lane.start()
                await lane.ready()
                begun = time.monotonic()
                self.store.begin_job(job)
                self._begin(request, seconds)
                work = asyncio.ensure_future(lane.call(request, begun + seconds, "job"))
                done, _ = await asyncio.wait({work}, timeout=seconds)
                reply = work.result() if done else {"error": TIMED_OUT, "touched": True}
                if reply["touched"]:
                    # The slot is kept as long: when the next job begins must not tell when this one was done.
                    await asyncio.sleep(max(0.0, begun + seconds - time.monotonic()))
                state = "failed" if "error" in reply else "done"
                result = reply.get("error") or reply["result"]
                self.store.set_job(job, state, result, only=("waiting", "running"))
        finally:
            if lane is not None:
                lane.end()
                await asyncio.shield(asyncio.to_thread(lane.stop))

    def cancel(self, job: str) -> bool:
        """End a job. What it was charged stays charged."""
        changed = self.store.set_job(job, "cancelled", only=("waiting", "running"))
        task = self._jobs.get(job)
        if task is not None:
            task.cancel()
        return changed


def _result(reply: dict[str, Any]) -> dict[str, Any]:
    if "error" in reply:
        raise HTTPError(reply["error"]["kind"], reply["error"]["message"])
    result: dict[str, Any] = reply["result"]
    return result
