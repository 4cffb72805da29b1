"""Worker processes: each has its own engine and answers one request at a time; the front process only waits.

A worker that does not answer by the deadline is killed and replaced: what it was charged stays in the ledger.
Requests and replies are JSON bytes over a pipe; nothing is pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import multiprocessing
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

# Packages that a worker which reads data loads before it is asked, beside those of its verbs.
PACKAGES = ("adaptive",)
_SPAWN = multiprocessing.get_context("spawn")
# how long a new process may take to load modules and to open tables
START = 120.0
# "touched" in a reply: data may have been read, or the wait tells of other people's questions. `desk` holds
# such a reply until its public time.
TIMED_OUT = {
    "kind": "TimeLimit",
    "message": "this was not answered within the public time limit. Nothing was released; if it was "
    "charged, the charge stays, because how long it takes may depend on the data. Ask something smaller, or "
    "as a job.",
}
# the share of its time that must be left when a question is begun
LEAST = 0.2
LATE = {
    "kind": "TimeLimit",
    "message": "the server was too busy to begin this in time. Nothing was charged or released. Ask "
    "again later.",
}
DIED = {
    "kind": "ReleaseFailed",
    "message": "the process that worked on this has ended. Nothing was released; if it was charged, the "
    "charge stays.",
}


def serve_requests(
    pipe: Connection, reads: bool, seconds: float, rows: int, copy_rows: int, warm: str, verb: str | None
) -> None:
    """Answer requests until the front process is gone: the main function of a worker.

    Packages are loaded and tables opened before anything is asked: that takes longer than most answers, and
    is nobody's question. `verb`: the only one that will be asked of it; its packages are enough.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from .sessions import Desk
    from .verbs import VERBS, handle

    desk = Desk(reads, seconds, rows, copy_rows)
    if verb is not None:
        VERBS[verb].load()
    elif reads:
        load_packages()
    for dataset in json.loads(warm):
        handle(desk, {"verb": "open", "analyst": "steward", "dataset": dataset, "options": {}})
    pipe.send_bytes(b"ready")
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        pipe.send_bytes(json.dumps(handle(desk, request)).encode())


def load_packages() -> None:
    """Load the verbs, and the packages of mechanisms that clients describe in JSON; what needs torch is
    loaded when first named."""
    from .verbs import VERBS

    for verb in VERBS.values():
        verb.load()
    for package in PACKAGES:
        importlib.import_module(f"discreet.{package}")


class Worker:
    """A worker as the front process sees it."""

    def __init__(
        self,
        reads: bool,
        seconds: float,
        rows: int,
        copy_rows: int,
        warm: list[dict[str, str]],
        verb: str | None = None,
    ) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.opened = {dataset["ledger"] for dataset in warm}
        # A question is not begun with fewer seconds left: it would be charged, and probably not be answered.
        self.least_seconds = LEAST * seconds if reads else 0.0
        self.process = _SPAWN.Process(
            target=serve_requests,
            args=(theirs, reads, seconds, rows, copy_rows, json.dumps(warm), verb),
            daemon=True,
            name="discreet worker",
        )
        self.process.start()
        theirs.close()

    def wait(self) -> bool:
        """Wait until its modules are loaded and its tables opened; blocks. False if it has ended."""
        try:
            if not self.pipe.poll(START):
                return False
            self.pipe.recv_bytes()
        except (EOFError, OSError):
            return False
        return True

    def open(self, dataset: dict[str, str] | None) -> None:
        """Let it open a table that was added after its start.

        That counts towards the question's time: where too little is left, the question is not begun.
        """
        if dataset is not None and dataset["ledger"] not in self.opened:
            request = {"verb": "open", "analyst": "steward", "dataset": dataset, "options": {}}
            self.pipe.send_bytes(json.dumps(request).encode())
            if not self.pipe.poll(START):
                # its reply would be taken for that of the next request
                raise OSError("a worker does not answer")
            self.pipe.recv_bytes()
            self.opened.add(dataset["ledger"])

    def call(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Return the reply, or that there was none; blocks, so it runs in a thread of its own."""
        try:
            if request["verb"] not in ("draft", "create"):
                self.open(request["dataset"])
                if deadline - time.monotonic() < self.least_seconds:
                    return {"error": LATE, "touched": True}
            self.pipe.send_bytes(json.dumps(request).encode())
            if not self.pipe.poll(max(0.05, deadline - time.monotonic())):
                return {"error": TIMED_OUT, "touched": True, "dead": True}
            reply: dict[str, Any] = json.loads(self.pipe.recv_bytes())
            return reply
        except (EOFError, OSError):
            return {"error": DIED, "touched": True, "dead": True}

    def kill(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.process.kill()
            self.process.join(5)
        self.pipe.close()


@dataclass
class Lane:
    """Some workers of one kind, and the queue of those who wait for them."""

    reads: bool
    count: int
    seconds: float
    # the largest number of groups in an answer
    rows: int
    # how many of them one person may have at a time
    per_person: int
    # what a new worker opens before it is asked anything
    warm: Callable[[], list[dict[str, str]]] = list
    # the largest number of rows that are drawn of a synthetic copy
    copy_rows: int = 1_000_000
    # the only verb that will be asked, where that is known
    verb: str | None = None
    idle: asyncio.Queue[Worker] = field(default_factory=asyncio.Queue)
    workers: set[Worker] = field(default_factory=set)
    _turns: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    _threads: ThreadPoolExecutor | None = None
    _stopped: bool = False
    _starting: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self) -> None:
        self._threads = ThreadPoolExecutor(2 * self.count, thread_name_prefix="lane")
        for _ in range(self.count):
            self._add()

    def start_once(self) -> None:
        """Start the workers when they are first needed."""
        if self._threads is None and not self._stopped:
            self.start()

    def _add(self) -> None:
        if self._stopped:
            return
        worker = Worker(self.reads, self.seconds, self.rows, self.copy_rows, self.warm(), self.verb)
        self.workers.add(worker)
        task = asyncio.get_running_loop().create_task(self._await(worker))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _await(self, worker: Worker) -> None:
        """Let a worker be asked once it is ready; one that ends before is replaced in five seconds."""
        if await asyncio.get_running_loop().run_in_executor(self._threads, worker.wait):
            self.idle.put_nowait(worker)
        elif not self._stopped:
            await asyncio.sleep(5)
            self.workers.discard(worker)
            worker.kill()
            self._add()

    async def ready(self) -> None:
        """Wait until a worker can be asked."""
        self.idle.put_nowait(await self.idle.get())

    def end(self) -> None:
        """End the processes now, and start no other in their place; `stop` waits for them."""
        self._stopped = True
        for worker in self.workers:
            worker.process.kill()

    def stop(self) -> None:
        self._stopped = True
        for worker in list(self.workers):
            worker.kill()
        self.workers.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=True)

    async def call(self, request: dict[str, Any], deadline: float, who: str) -> dict[str, Any]:
        """Let a worker do it. One person has at most `per_person` workers at a time, so that nobody holds up
        the others."""
        turn = self._turns.setdefault(who, asyncio.Semaphore(self.per_person))
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await turn.acquire()
                try:
                    worker = await self.idle.get()
                except BaseException:
                    turn.release()
                    raise
        except TimeoutError:
            return {"error": LATE, "touched": True}
        seconds_left = deadline - time.monotonic()
        if self.reads and seconds_left < LEAST * self.seconds:
            # begun so late it would be ended on the way, and charged for nothing
            self.idle.put_nowait(worker)
            turn.release()
            return {"error": LATE, "touched": True}
        if not self.reads:
            # what needs no data has ten seconds from here at least: an overload must not end the worker
            deadline = time.monotonic() + max(seconds_left, 10.0)
        # not ended by a client that goes away: the worker must come back
        return await asyncio.shield(asyncio.ensure_future(self._run(worker, request, deadline, turn)))

    async def _run(
        self, worker: Worker, request: dict[str, Any], deadline: float, turn: asyncio.Semaphore
    ) -> dict[str, Any]:
        try:
            reply = await asyncio.get_running_loop().run_in_executor(
                self._threads, worker.call, request, deadline
            )
        except BaseException:
            reply = {"error": DIED, "touched": True, "dead": True}
        if reply.pop("dead", False):
            self.workers.discard(worker)
            worker.kill()
            self._add()
        else:
            self.idle.put_nowait(worker)
        turn.release()
        return reply
