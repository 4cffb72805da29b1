"""Locks files with `flock`, and keeps open connections to a ledger's file apart from forks.

A lock belongs to an open file, not to the process: it lasts until the file is closed, however its process
ends. A forked child inherits open files; it closes its copies, and its parent keeps the locks.

SQLite's connections must not be carried across a fork: in the child, SQLite would believe that it holds the
parent's locks, and closing the connection would roll the parent's transaction back. So a fork waits until the
connections of all other threads are closed (`CONNECTED`).
"""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._errors import LedgerError

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows)
    fcntl = None  # type: ignore[assignment]

# Seconds to wait for other writers before giving up. Chosen by hand, not tuned: no answer is computed under
# the lock, so that each writer holds it for a moment only.
WAIT = 60.0
# Seconds between two attempts to lock, drawn uniformly between these two, so that processes that wait do not
# all try at the same time. Chosen by hand, not tuned.
_PAUSE = 0.0005, 0.003

# Held by the one thread of this process that has a connection to a ledger's file open, or that forks.
CONNECTED = threading.RLock()


@dataclass(eq=False)
class HeldLock:
    """Holds a lock and a connection that one process uses; a forked child must not use either."""

    # The descriptor of the locked file; None where the lock is one of the connection's, or there is none.
    lock: int | None
    # The connection to the database.
    db: Any = None
    pid: int = field(default_factory=os.getpid)

    @property
    def own(self) -> bool:
        """Whether this process took the lock, and did not inherit it."""
        return self.pid == os.getpid()


# All locks on files that this process holds.
_HELD: set[HeldLock] = set()


def register(held: HeldLock) -> HeldLock:
    """Remember an open lock, so that a forked child closes its copy."""
    _HELD.add(held)
    return held


def unregister(held: HeldLock) -> None:
    """Forget a lock that its holder is about to close."""
    _HELD.discard(held)


def _after_fork_in_child() -> None:
    """Close inherited locks. A thread that forks in its own transaction hands its open connection down, which
    must never be closed here, not even when the interpreter ends: a thread that never ends refers to it."""
    inherited = [held.db for held in _HELD if held.db is not None]
    if inherited:
        threading.Thread(target=lambda _: threading.Event().wait(), args=(inherited,), daemon=True).start()
    for held in _HELD:
        if held.lock is not None:
            # Closing releases nothing while the parent has the same file open.
            with suppress(OSError):
                os.close(held.lock)
    _HELD.clear()


# Windows does not fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def lock_file(path: Path, lock_path: Path, *, exclusive: bool) -> int | None:
    """Lock the file `lock_path` beside the ledger `path`, and return its descriptor.

    None where the system has no `flock`; also where a reader cannot create the file, as on read-only media,
    where nobody writes either. Readers share the lock; a writer has it `exclusive`.
    """
    if not path.is_file():
        raise LedgerError(f"there is no ledger at {path}. Nothing was charged.")
    if fcntl is None:
        return None
    deadline = time.monotonic() + WAIT
    while True:
        try:
            handle = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if not exclusive:
                return None
            raise LedgerError(f"{path} cannot be written ({error.strerror}). Nothing was charged.") from None
        _wait_for(handle, path, exclusive, deadline)
        with suppress(OSError):
            # If the file was removed or replaced before it was locked, others lock the new one: try again.
            if os.path.samestat(os.fstat(handle), os.stat(lock_path)):
                return handle
        os.close(handle)


def _wait_for(handle: int, path: Path, exclusive: bool, deadline: float) -> None:
    """Wait for the lock of an open file, until the deadline."""
    while True:
        try:
            fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(handle)
                raise LedgerError(
                    f"{path} stayed locked by others for {WAIT:.0f} seconds. Nothing was charged."
                ) from None
            time.sleep(random.uniform(*_PAUSE))


def unlock_file(handle: int | None) -> None:
    """Release the lock of `lock_file`."""
    if handle is not None:
        # Explicitly, because a child that was forked without Python's hooks may still have the file open.
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Write the names of new files in a folder to disk as well, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
