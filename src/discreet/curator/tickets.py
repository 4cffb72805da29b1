"""Tickets: the order in which questions to one live mechanism are answered, and who is answering.

A question gets its ticket in one short transaction: an entry of the ledger with the number of the state that
its answer will have, the question, and the asker. It is answered outside the lock, when all tickets before it
are. Whether an asker is still there is told by a *sign of life*: a file beside the ledger that the asker
keeps locked (`flock`), which the system unlocks when the process ends, however it ends. The ticket of an
asker that is gone is taken over by the next one, who first says so in the ledger.

Where a ledger's entries are in a database, the sign is a lock of a connection to it: askers on any machine
see it, and the server gives it up when the asker, or its machine, is gone.

Assumes: all who ask a ledger in a file see one file system whose `flock` holds between them (as the ledger's
own lock does), and nobody removes the sign of an asker that is there. Where there is no `flock` (Windows),
one process at a time may ask a live mechanism.
"""

from __future__ import annotations

import glob
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._errors import LedgerError
from .ledger import Entry, LedgerReader, Writer
from .locks import HeldLock, register, unregister
from .postgres_store import PostgresStore, is_pointer

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows)
    fcntl = None  # type: ignore[assignment]

TICKET, STATE = "ticket", "state"
# How often one ticket is computed: a question that ends its process each time must not end every process that
# comes after.
ATTEMPTS = 3
_END = "-asker-"
# The signs of this process, for systems without `flock`.
_OURS: set[str] = set()
_OURS_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Turn:
    """The newest state of a live mechanism, and the ticket that is to be answered next, if there is one."""

    state: Entry
    ticket: Entry | None

    @property
    def version(self) -> int:
        """The number of the newest state."""
        return int(self.state.body["version"])

    @property
    def failures(self) -> int:
        return int(self.state.body.get("failures", 0))


def turn(reader: LedgerReader | Writer, charge: int) -> Turn:
    """Return whose turn it is."""
    state = reader.last(STATE, str(charge))
    if state is None or state.sealed is None:
        raise LedgerError(f"the state of the live mechanism {charge} is missing from the ledger.")
    return Turn(state, reader.last(TICKET, topic(charge, int(state.body["version"]) + 1)))


def issue(writer: Writer, charge: int, *, question: Any, table: str, asker: str) -> int:
    """Give a question the next ticket, and return its number: that of the state which its answer will
    have."""
    number = turn(writer, charge).version + 1
    while writer.last(TICKET, topic(charge, number)) is not None:
        number += 1
    body = {"charge": charge, "version": number, "question": question, "table": table, "asker": asker}
    writer.append(TICKET, body, topic=topic(charge, number))
    return number


def take_over(writer: Writer, ticket: Entry, asker: str) -> Entry:
    """Enter that another asker answers a ticket now."""
    body = {**ticket.body, "asker": asker, "attempt": attempts(ticket) + 1}
    return writer.append(TICKET, body, topic=ticket.topic)


def attempts(ticket: Entry) -> int:
    return int(ticket.body.get("attempt", 1))


def topic(charge: int, number: int) -> str:
    return f"{charge}:{number}"


def problems(entries: Iterable[Entry]) -> list[str]:
    """Return what is wrong with the tickets and states, in words: states in the order of their numbers, each
    with a ticket that is taken over in turn."""
    wrong: list[str] = []
    # Of each charge: the number of its newest state, and the newest ticket; the attempts at each ticket.
    states: dict[int, int] = {}
    newest: dict[int, int] = {}
    tries: dict[tuple[int, int], int] = {}
    for entry in entries:
        if entry.kind == STATE:
            states[entry.body["charge"]] = int(entry.body["version"])
        elif entry.kind == TICKET:
            charge, number = int(entry.body["charge"]), int(entry.body["version"])
            state, attempt = states.get(charge, -1), attempts(entry)
            fresh = attempt == 1 and number == max(state, newest.get(charge, 0)) + 1
            again = attempt == tries.get((charge, number), attempt) + 1 and number == state + 1
            if not (fresh or again):
                wrong.append(f"entry {entry.seq} is a ticket out of turn")
            newest[charge], tries[charge, number] = max(number, newest.get(charge, 0)), attempt
    return wrong


class Asker:
    """A sign of life for as long as the block runs; `name` is what others know it by."""

    def __init__(self, ledger: Path) -> None:
        self._start = os.path.realpath(ledger) + _END
        self.name = ""
        self._store = _database(ledger)
        self._held: HeldLock | None = None

    def __enter__(self) -> Asker:
        while self._store is not None and self._held is None:
            self.name = secrets.token_hex(12)
            self._held = self._store.hold(f"asker {self.name}")
        while self._held is None:
            self.name = secrets.token_hex(12)
            self._held = locked_file(self._start + self.name)
        with _OURS_LOCK:
            _OURS.add(self._start + self.name)
        return self

    @property
    def own(self) -> bool:
        """Whether this is the process that asked, and not a fork of it."""
        return self._held is not None and self._held.own

    def __exit__(self, *error: object) -> None:
        held, self._held = self._held, None
        with _OURS_LOCK:
            _OURS.discard(self._start + self.name)
        if held is not None and self._store is not None:
            self._store.give_up(held)
            return
        # A forked child has closed its copy already, and the file is its parent's.
        if held is None or held.lock is None or not held.own:
            return
        with suppress(OSError):
            os.unlink(self._start + self.name)
        unlocked(held)


def locked_file(path: str) -> HeldLock | None:
    """Make a new file, and lock it; None if somebody took it for one that was left behind, before it was
    locked."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(
            f"no file can be made beside the ledger ({error.strerror}). Nothing was asked, stored or "
            f"released."
        ) from None
    held = register(HeldLock(handle))
    if fcntl is None or (_free(handle) and _is_at(handle, path)):
        return held
    unlocked(held)
    return None


def unlocked(held: HeldLock) -> None:
    """Give up a file that `locked_file` locked; a forked child has closed its copy already."""
    if held.own and held.lock is not None:
        unregister(held)
        os.close(held.lock)


@contextmanager
def alone(ledger: Path, name: str) -> Iterator[None]:
    """Hold an exclusive lock, among all processes, on what `name` stands for; refused if somebody holds it
    already."""
    store = _database(ledger)
    if store is not None:
        with store.holding(f"alone {name}") as free:
            if not free:
                raise _busy()
            yield
        return
    path = os.path.realpath(ledger) + f"-{name}"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(
            f"no file can be made beside the ledger ({error.strerror}). Nothing was run or released here."
        ) from None
    held = register(HeldLock(handle))
    try:
        if fcntl is not None and not (_free(handle) and _is_at(handle, path)):
            raise _busy()
        yield
        if held.own:
            with suppress(OSError):
                os.unlink(path)
    finally:
        unlocked(held)


def _busy() -> LedgerError:
    return LedgerError("another process is at this run. Nothing was run or released here.")


def _database(ledger: Path) -> PostgresStore | None:
    """Return where the entries of a ledger are, if that is a database."""
    path = Path(ledger)
    return PostgresStore(path) if is_pointer(path) else None


@contextmanager
def unused(path: str | Path) -> Iterator[bool]:
    """Yield whether a file is there and nobody has it locked; nobody else gets it while the block runs."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    held = register(HeldLock(handle))
    try:
        yield fcntl is not None and _free(handle)
    finally:
        unlocked(held)


def wait(ledger: Path, asker: str) -> None:
    """Wait until an asker is gone, or has done what it wanted.

    However long that takes: how long it takes may depend on the data.
    """
    store = _database(ledger)
    if store is not None:
        store.wait(f"asker {asker}")
        return
    path = os.path.realpath(ledger) + _END + asker
    if fcntl is None:  # pragma: no cover
        while path in _OURS:
            time.sleep(0.005)
        return
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    held = register(HeldLock(handle))
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
    finally:
        unregister(held)
        os.close(handle)


def sweep(ledger: Path) -> None:
    """Remove the signs that killed processes left."""
    for path in glob.glob(glob.escape(os.path.realpath(ledger) + _END) + "*"):
        with unused(path) as free, suppress(OSError):
            if free:
                os.unlink(path)


def _free(handle: int) -> bool:
    """Lock an open file if nobody else has."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(handle: int, path: str) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(handle), os.stat(path))
    return False
