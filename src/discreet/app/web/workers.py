"""Worker processes: each has its own database engine, and answers one request at a time; the front process
only waits. The *verb* of a request says what is asked for; `verbs.VERBS` lists them.

A worker that does not answer by the deadline is killed and replaced; its charge, if any, stays in the ledger.
Requests and replies are JSON bytes over a pipe; nothing is pickled. Bodies and results cross the front
process as bytes: what a request costs to parse is paid by a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import multiprocessing
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from ..._errors import DiscreetError, ReleaseFailed
from .. import requests
from .sessions import Desk

LOG = logging.getLogger("discreet.workers")
# Packages of discreet that a worker which reads data loads before its first request, beside the modules of
# its verbs.
PACKAGES = ("adaptive",)
_SPAWN = multiprocessing.get_context("spawn")
# How many seconds a new process may take to load modules and to open tables. Chosen by hand, not tuned.
START = 120.0
# How often a process that fails at its start is started again, and how many seconds after it has failed. The
# numbers are conventions, not measured.
STARTS, PAUSE = 5, 5.0
# Below, "touched" in a reply means: data may have been read, or the wait tells of other people's questions.
# `front_desk` holds such a reply back, by default until the time limit of its request.
TIMED_OUT = requests.error_json(
    DiscreetError(
        "this was not answered within the public time limit. Nothing was released; if it was charged, the "
        "charge stays, because how long it takes may depend on the data.",
        remedy="Ask something smaller, or as a job.",
    ),
    "TimeLimit",
)
# Seconds without a request after which a worker reads what is new in ledgers. Chosen by hand, not tuned.
IDLE = 2.0
# The share of its time limit that must be left when a question is begun. Chosen by hand, not tuned.
LEAST = 0.2
LATE = requests.error_json(
    DiscreetError(
        "the server was too busy to begin this in time. Nothing was charged or released.",
        remedy="Ask again later.",
    ),
    "TimeLimit",
)
DIED = requests.error_json(
    ReleaseFailed(
        "the process that worked on this has ended. Nothing was released; if it was charged, the charge "
        "stays."
    )
)
NOT_STARTED = requests.error_json(
    DiscreetError(
        f"no process could be started to work on this: {STARTS} ended or hung before they were ready. "
        "Nothing was charged or released.",
        remedy="Ask again later; the server's log and memory may tell why.",
    ),
    "Busy",
)


class WorkersFailed(DiscreetError):
    """No worker of a lane could be started."""


def serve_requests(pipe: Connection, desk: Desk, warm: str, verb: str | None) -> None:
    """Answer requests until the front process is gone: the main function of a worker.

    Packages are loaded and tables opened before the first request, because that takes longer than most
    answers. `warm`: the datasets to be opened, as JSON. `verb`: the only verb of all requests, if that is
    known; its packages are enough then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from .verbs import VERBS, handle, reply_to

    if verb is not None:
        VERBS[verb].load()
    elif desk.reads:
        load_packages()
    for dataset in json.loads(warm):
        handle(desk, {"verb": "open", "analyst": "steward", "dataset": dataset, "options": {}})
    pipe.send_bytes(b"ready")
    while True:
        try:
            while not pipe.poll(IDLE):
                desk.catch_up()
            message = pipe.recv_bytes()
        except EOFError:
            return
        try:
            pipe.send_bytes(reply_to(desk, message))
        except BrokenPipeError:
            # The front process was killed: nobody waits for this answer or the next.
            return


def load_packages() -> None:
    """Load the modules of all verbs, and the packages of mechanisms that clients describe in JSON; those that
    need torch are loaded when a description first names them."""
    from .verbs import VERBS

    for verb in VERBS.values():
        verb.load()
    for package in PACKAGES:
        importlib.import_module(f"discreet.{package}")


def packed(request: dict[str, Any]) -> bytes:
    """Return the message of a request: a line of JSON, and after it the body that was "sent", if any, as it
    came. The front process parses no bodies."""
    sent = request.get("sent")
    line = json.dumps({name: value for name, value in request.items() if name != "sent"}).encode()
    return line if sent is None else line + b"\n" + sent


def unpacked(message: bytes) -> dict[str, Any]:
    """Return the reply in a message of a worker; its "result", if it has one, stays JSON in bytes."""
    line, _, result = message.partition(b"\n")
    reply: dict[str, Any] = json.loads(line)
    return reply if "error" in reply else reply | {"result": result}


class Worker:
    """A worker process, as the front process sees it: the process, and the pipe to it."""

    def __init__(self, desk: Desk, warm: list[dict[str, str]], verb: str | None = None) -> None:
        self.pipe, far_end = _SPAWN.Pipe()
        self.opened = {dataset["ledger"] for dataset in warm}
        # A question is not begun with fewer seconds left: it would be charged, and probably not be answered.
        self.least_seconds = LEAST * desk.seconds if desk.reads else 0.0
        self.process = _SPAWN.Process(
            target=serve_requests,
            args=(far_end, desk, json.dumps(warm), verb),
            daemon=True,
            name="discreet worker",
        )
        self.process.start()
        # The worker has the far end now: with no other copy of it open, the end of the worker ends the pipe.
        far_end.close()

    def wait(self) -> bool:
        """Wait until its modules are loaded and its tables opened; blocks. Return False if it has failed."""
        try:
            if not self.pipe.poll(START):
                return False
            self.pipe.recv_bytes()
        except (EOFError, OSError):
            return False
        return True

    def open(self, dataset: dict[str, str] | None) -> bool:
        """Let the worker open the table of a dataset that was added after its start; return whether it was
        opened now.

        That counts towards the question's time: `call` does not begin the question if too little is left.
        """
        is_new = dataset is not None and dataset["ledger"] not in self.opened
        if dataset is not None and is_new:
            request = {"verb": "open", "analyst": "steward", "dataset": dataset, "options": {}}
            self.pipe.send_bytes(json.dumps(request).encode())
            if not self.pipe.poll(START):
                # A late reply would be taken for the reply to the next request: the worker is given up.
                raise OSError("a worker does not answer")
            self.pipe.recv_bytes()
            self.opened.add(dataset["ledger"])
        return is_new

    def call(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Return the reply to a request, or an error if there is none by the deadline (`time.monotonic`).

        "dead" in the reply says that the worker must be replaced. This blocks, and so runs in a thread.
        """
        has_opened = False
        try:
            # A draft has no ledger, and `create` makes or opens the ledger itself.
            if request["verb"] not in ("draft", "fit_of", "create"):
                has_opened = self.open(request["dataset"])
                if deadline - time.monotonic() < self.least_seconds:
                    return {"error": LATE, "touched": True}
            self.pipe.send_bytes(packed(request))
            # At least 0.05 seconds (chosen by hand), if the deadline has come meanwhile.
            if not self.pipe.poll(max(0.05, deadline - time.monotonic())):
                return {"error": TIMED_OUT, "touched": True, "dead": True}
            reply = unpacked(self.pipe.recv_bytes())
            # The time that opening took depends on the table.
            return reply | {"touched": reply["touched"] or has_opened}
        except (EOFError, OSError):
            return {"error": DIED, "touched": True, "dead": True}

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(OSError, ValueError):
            self.process.kill()
            self.process.join(5)
        self.pipe.close()


@dataclass
class Lane:
    """Some workers of one kind, and the queue of requests that wait for them: `count` of them, each with a
    copy of a `desk` without sessions."""

    desk: Desk
    count: int
    # how many of the workers one person may have at a time
    per_person: int
    # returns the datasets that a new worker opens before its first request
    warm: Callable[[], list[dict[str, str]]] = list
    # the only verb of all requests, if that is known
    verb: str | None = None
    # None wakes those who wait when the last worker has failed.
    idle: asyncio.Queue[Worker | None] = field(default_factory=asyncio.Queue)
    workers: set[Worker] = field(default_factory=set)
    # by person: the workers that they may still take
    _turns: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    _threads: ThreadPoolExecutor | None = None
    _stopped: bool = False
    # how many workers have died, or were killed because they were late
    ended: int = 0
    _starting: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def ready_workers(self) -> int:
        """How many workers are ready, idle or not; those that are still starting are left out."""
        return len(self.workers) - len(self._starting)

    def start(self) -> None:
        """Start the workers."""
        # One thread waits for each worker, and one for each that replaces another.
        self._threads = ThreadPoolExecutor(2 * self.count, thread_name_prefix="lane")
        for _ in range(self.count):
            self._add()

    def start_once(self) -> None:
        """Start the workers when they are first needed."""
        if self._threads is None and not self._stopped:
            self.start()

    def _add(self, attempt: int = 1) -> None:
        """Start one more worker."""
        if self._stopped:
            return
        worker = Worker(self.desk, self.warm(), self.verb)
        self.workers.add(worker)
        task = asyncio.get_running_loop().create_task(self._await(worker, attempt))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _await(self, worker: Worker, attempt: int) -> None:
        """Offer a worker to requests once it is ready. One that fails before is replaced after a pause, and
        after `STARTS` attempts no more, until the next request: a lasting fault must not start processes for
        ever."""
        if await asyncio.get_running_loop().run_in_executor(self._threads, worker.wait):
            self.idle.put_nowait(worker)
        elif not self._stopped:
            await asyncio.sleep(PAUSE)
            self._replace(worker, attempt + 1)

    def _replace(self, worker: Worker, attempt: int = 1) -> None:
        """Start another worker in place of a dead one; if no worker is left, wake those who wait."""
        self.workers.discard(worker)
        worker.kill()
        if attempt <= STARTS:
            # The system may have no process to give.
            with contextlib.suppress(OSError):
                self._add(attempt)
        if not self.workers:
            self.idle.put_nowait(None)

    def _refill(self) -> None:
        """Start the workers that were given up before."""
        if self._threads is not None:
            with contextlib.suppress(OSError):
                for _ in range(self.count - len(self.workers)):
                    self._add()

    async def _next(self) -> Worker:
        """Wait for a worker that is ready; raise WorkersFailed if none could be started."""
        while (worker := await self.idle.get()) is None:
            if not self.workers:
                # for the others who wait
                self.idle.put_nowait(None)
                raise WorkersFailed(NOT_STARTED["what"], remedy=NOT_STARTED["remedy"])
        return worker

    async def ready(self) -> None:
        """Wait until a worker is ready; raise WorkersFailed if none could be started."""
        self.idle.put_nowait(await self._next())

    def end(self) -> None:
        """Kill the processes now, and start no other in their place; `stop` also waits for their ends."""
        self._stopped = True
        for worker in self.workers:
            worker.process.kill()

    def stop(self) -> None:
        """Kill the processes, and wait for their ends."""
        self._stopped = True
        for worker in list(self.workers):
            worker.kill()
        self.workers.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=True)

    async def call(self, request: dict[str, Any], deadline: float, who: str) -> dict[str, Any]:
        """Return the reply of a worker to a request of the person `who`, by the deadline (`time.monotonic`).

        One person has at most `per_person` workers at a time, so that nobody holds up the others.
        """
        self._refill()
        turn = self._turns.setdefault(who, asyncio.Semaphore(self.per_person))
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await turn.acquire()
                try:
                    worker = await self._next()
                except BaseException:
                    turn.release()
                    raise
        except TimeoutError:
            return {"error": LATE, "touched": True}
        except WorkersFailed:
            return {"error": NOT_STARTED, "touched": True}
        seconds_left = deadline - time.monotonic()
        if self.desk.reads and seconds_left < LEAST * self.desk.seconds:
            # Begun now it would be charged, and probably be ended by the deadline before its answer.
            self.idle.put_nowait(worker)
            turn.release()
            return {"error": LATE, "touched": True}
        if not self.desk.reads:
            # Work that reads no data has at least ten seconds from now on (chosen by hand): otherwise an
            # overload, in which requests wait long, would kill the workers, too.
            deadline = time.monotonic() + max(seconds_left, 10.0)
        # Shielded: if the client hangs up, the work goes on, and the worker returns to the queue.
        return await asyncio.shield(asyncio.ensure_future(self._run(worker, request, deadline, turn)))

    async def _run(
        self, worker: Worker, request: dict[str, Any], deadline: float, turn: asyncio.Semaphore
    ) -> dict[str, Any]:
        """Let the worker answer, then put it back into the queue, or replace it if it is dead."""
        try:
            reply = await asyncio.get_running_loop().run_in_executor(
                self._threads, worker.call, request, deadline
            )
        except BaseException:
            reply = {"error": DIED, "touched": True, "dead": True}
        if reply.pop("dead", False):
            self.ended += 1
            LOG.warning("a worker %s", "was late and killed" if reply["error"] is TIMED_OUT else "has died")
            self._replace(worker)
        else:
            self.idle.put_nowait(worker)
        turn.release()
        return reply
