"""Keeps tickets: the order in which questions to one live mechanism (a started interactive one) are
answered, and who is answering.

A question gets its ticket in one short transaction: an entry of the ledger with the question, the asker, and
the version number of the state that its answer will lead to. The question is answered while the ledger is not
locked, after all earlier tickets. An *asker* is one call that waits for an answer. Whether it still exists is
shown by its *sign of life*: a file beside the ledger that the asker keeps locked, and that the
system unlocks when the process ends, however it ends. If an asker is gone, the next asker takes its ticket
over, and first enters that in the ledger.

If a ledger's entries are in a database, the sign of life is an advisory lock of a connection: askers on any
machine see it, and the server releases it when the asker, or its machine, is gone.

Assumes: all who ask a ledger in a file use one file system whose locks exclude all of them (the ledger's
         own lock needs that too), and nobody removes the sign of life of an asker that still exists.
"""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _system
from .._errors import LedgerError
from .ledger import Entry, LedgerReader, Writer
from .postgres_store import PostgresStore
from .store import HeldLock, is_pointer, register, unregister

# Kinds of entries; stored, and never changed.
TICKET, STATE = "ticket", "state"
# How many askers may compute one ticket: a question that ends the process of its asker (by using all memory,
# for example) must not end the process of every later asker too. Chosen by hand, not tuned.
ATTEMPTS = 3
# A sign of life is named like the ledger, with this and the asker's name behind it.
_SUFFIX = "-asker-"


@dataclass(frozen=True, slots=True)
class Turn:
    """Holds the newest state of a live mechanism, and the ticket to be answered next, if there is one."""

    state: Entry
    ticket: Entry | None

    @property
    def version(self) -> int:
        """The version number of the newest state."""
        return int(self.state.body["version"])

    @property
    def failures(self) -> int:
        """How many questions to the mechanism have failed so far."""
        return int(self.state.body.get("failures", 0))


def turn(reader: LedgerReader | Writer, charge: int) -> Turn:
    """Return the newest state of the live mechanism with this charge, and the ticket whose turn it is: the
    one for the next version."""
    state = reader.last(STATE, str(charge))
    if state is None or state.sealed is None:
        raise LedgerError(f"the state of the live mechanism {charge} is missing from the ledger.")
    return Turn(state, reader.last(TICKET, topic(charge, int(state.body["version"]) + 1)))


def issue(writer: Writer, charge: int, *, question: Any, table: str, asker: str) -> int:
    """Append a ticket for a question, and return its number: the version of the state that its answer will
    lead to. `table` is the version of the asker's table."""
    number = turn(writer, charge).version + 1
    while writer.last(TICKET, topic(charge, number)) is not None:
        number += 1
    body = {"charge": charge, "version": number, "question": question, "table": table, "asker": asker}
    writer.append(TICKET, body, topic=topic(charge, number))
    return number


def take_over(writer: Writer, ticket: Entry, asker: str) -> Entry:
    """Enter that a ticket now belongs to this asker, as one more attempt, and return the new entry."""
    body = {**ticket.body, "asker": asker, "attempt": attempts(ticket) + 1}
    return writer.append(TICKET, body, topic=ticket.topic)


def attempts(ticket: Entry) -> int:
    """Return how many askers have computed a ticket, or are about to."""
    return int(ticket.body.get("attempt", 1))


def topic(charge: int, number: int) -> str:
    """Return the topic of a ticket's entries; stored, and never changed."""
    return f"{charge}:{number}"


def problems(entries: Iterable[Entry]) -> list[str]:
    """Return what is wrong with tickets, in words.

    A new ticket has the number after the newest ticket or state, whichever is larger. A ticket is taken over
    only if it is the next to be answered, and its attempts are counted without a gap.
    """
    wrong: list[str] = []
    # For each charge, the version of its newest state, and the number of its newest ticket.
    states: dict[int, int] = {}
    newest: dict[int, int] = {}
    # For each (charge, ticket), the attempts so far.
    tries: dict[tuple[int, int], int] = {}
    for entry in entries:
        if entry.kind == STATE:
            states[entry.body["charge"]] = int(entry.body["version"])
        elif entry.kind == TICKET:
            charge, number = int(entry.body["charge"]), int(entry.body["version"])
            state, attempt = states.get(charge, -1), attempts(entry)
            issued = attempt == 1 and number == max(state, newest.get(charge, 0)) + 1
            # A ticket without an earlier attempt cannot be taken over: the default makes this False for it.
            taken_over = attempt == tries.get((charge, number), attempt) + 1 and number == state + 1
            if not (issued or taken_over):
                wrong.append(f"entry {entry.seq} is a ticket out of turn")
            newest[charge], tries[charge, number] = max(number, newest.get(charge, 0)), attempt
    return wrong


class Asker:
    """Shows a sign of life while its block runs; `name`, which is random, is that of the asker in tickets."""

    def __init__(self, ledger: Path) -> None:
        self._prefix = os.path.realpath(ledger) + _SUFFIX
        self.name = ""
        self._store = _database(ledger)
        self._held: HeldLock | None = None

    def __enter__(self) -> Asker:
        while self._store is not None and self._held is None:
            self.name = secrets.token_hex(12)
            self._held = self._store.hold(f"asker {self.name}")
        while self._held is None:
            self.name = secrets.token_hex(12)
            self._held = locked_file(self._prefix + self.name)
        return self

    @property
    def own(self) -> bool:
        """Whether this is the process that asked, and not a fork of it."""
        return self._held is not None and self._held.own

    def __exit__(self, *error: object) -> None:
        held, self._held = self._held, None
        if held is not None and self._store is not None:
            self._store.give_up(held)
            return
        # A forked child has closed its copy of the descriptor (`store`), and the file is its parent's.
        if held is None or held.lock is None or not held.own:
            return
        _remove(held, self._prefix + self.name)


def locked_file(path: str) -> HeldLock | None:
    """Create a new file, and lock it. None if a sweep of another process removed or locked the file in
    between, since it was not locked yet; the caller then tries another name."""
    try:
        handle = _system.create_file(path)
    except OSError as error:
        raise LedgerError(
            f"no file can be made beside the ledger ({error.strerror}). Nothing was asked, stored or "
            f"released."
        ) from None
    held = register(HeldLock(handle))
    if _system.try_lock(handle) and _is_at(handle, path):
        return held
    unlocked(held)
    return None


def unlocked(held: HeldLock) -> None:
    """Close a file that was locked, which releases its lock; a forked child has closed its copy already."""
    if held.own and held.lock is not None:
        unregister(held)
        os.close(held.lock)
        held.lock = None


def _remove(held: HeldLock, path: str) -> None:
    """Remove a locked file, and then release its lock. Where an open file cannot be removed it is closed
    first; whoever locks it in between has it open, and keeps it."""
    if not _system.MOVES_OPEN_FILES:
        unlocked(held)
    with suppress(OSError):
        os.unlink(path)
    unlocked(held)


def _database(ledger: Path) -> PostgresStore | None:
    """Return the store of a ledger whose entries are in a database; None for a ledger in a file."""
    path = Path(ledger)
    return PostgresStore(path) if is_pointer(path) else None


@contextmanager
def unused(path: str | Path) -> Iterator[bool]:
    """Yield whether a file exists and nobody had it locked; if so, it is locked while the block runs. Where
    an open file cannot be removed it is only closed, so that the block can remove it."""
    try:
        handle = _system.open_file(path)
    except OSError:
        yield False
        return
    held = register(HeldLock(handle))
    try:
        free = _system.try_lock(handle)
        if not _system.MOVES_OPEN_FILES:
            unlocked(held)
        yield free
    finally:
        unlocked(held)


def wait(ledger: Path, asker: str) -> None:
    """Wait until an asker is gone, or is done and has given up its sign of life.

    There is no time limit: how long an answer takes may depend on the data, and so would a timeout.
    """
    store = _database(ledger)
    if store is not None:
        store.wait(f"asker {asker}")
        return
    path = os.path.realpath(ledger) + _SUFFIX + asker
    try:
        handle = _system.open_file(path)
    except FileNotFoundError:
        return
    held = register(HeldLock(handle))
    try:
        _system.lock(handle, shared=True)
    finally:
        unregister(held)
        os.close(handle)


def sweep(ledger: Path) -> None:
    """Remove the signs of life that killed processes have left."""
    for path in glob.glob(glob.escape(os.path.realpath(ledger) + _SUFFIX) + "*"):
        with unused(path) as free, suppress(OSError):
            if free:
                os.unlink(path)


def _is_at(handle: int, path: str) -> bool:
    """Return whether an open file is still the one at this path, and was not removed or replaced."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(handle), os.stat(path))
    return False
