"""Locks a ledger's file, by locks that are not lost where SQLite's own would be.

SQLite's locks are POSIX locks, which the process loses as soon as *any* code in it opens and closes the file,
for a copy or a backup. The locks here belong to an open file instead: `flock` on a file beside the ledger
keeps processes of discreet apart; where the system has them, open-file-description locks on the same bytes
that SQLite locks make other programs wait. A forked child inherits open files; it closes its copies, and its
parent keeps the locks.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._errors import LedgerError

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows, where SQLite's own locks are not lost in this way)
    fcntl = None  # type: ignore[assignment]

# Seconds to wait for other writers before giving up. Chosen by hand, not tuned: no answer is computed under
# the lock, so that each writer holds it for a moment only.
WAIT = 60.0
# Seconds between two attempts to lock, drawn uniformly between these two, so that processes that wait do not
# all try at the same time. Chosen by hand, not tuned.
_PAUSE = 0.0005, 0.003

# The bytes that SQLite locks in a database (https://sqlite.org/fileformat2.html, "The Lock-Byte Page"): one
# for pending and one for reserved locks, then 510 for shared ones. A writer locks all, a reader the shared
# ones.
_PENDING, _ALL_BYTES = 0x40000000, 512
_SHARED, _SHARED_BYTES = _PENDING + 2, 510
HAS_OPEN_FILE_LOCKS = fcntl is not None and hasattr(fcntl, "F_OFD_SETLK")


@dataclass(eq=False)
class HeldLock:
    """Holds a lock and a connection that one process uses; a forked child must not use either."""

    # The descriptor of the locked file; None where the lock is one of the connection's, or there is none.
    lock: int | None
    # The connection to the database.
    db: Any = None
    # The descriptor of the ledger's file, open for as long as SQLite's bytes in it are locked (`lock_bytes`).
    locked_bytes: int | None = None
    pid: int = field(default_factory=os.getpid)

    @property
    def own(self) -> bool:
        """Whether this process took the lock, and did not inherit it."""
        return self.pid == os.getpid()


# All locks that this process holds.
_HELD: set[HeldLock] = set()


def register(held: HeldLock) -> HeldLock:
    """Remember an open lock, so that a forked child closes its copy."""
    _HELD.add(held)
    return held


def unregister(held: HeldLock) -> None:
    """Forget a lock that its holder is about to close."""
    _HELD.discard(held)


def _after_fork_in_child() -> None:
    """Close inherited locks, and keep inherited connections open for ever: closing a connection would roll
    the parent's transaction back."""
    for held in _HELD:
        if held.db is not None:
            # One more reference: the connection is never collected, and so never closed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held.db))
        # Closing releases nothing while the parent has the same file open.
        for handle in (held.lock, held.locked_bytes):
            if handle is not None:
                with suppress(OSError):
                    os.close(handle)
    _HELD.clear()


# Windows does not fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def lock_file(path: Path, lock_path: Path, *, exclusive: bool) -> int | None:
    """Lock the file `lock_path` beside the ledger `path`, and return its descriptor.

    None where the system has no `flock`; also where a reader cannot create the file, as on read-only media,
    where nobody writes either. Readers share the lock; a writer has it `exclusive`.
    """
    if fcntl is None:
        return None
    if not path.is_file():
        raise LedgerError(f"there is no ledger at {path}. Nothing was charged.")
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


def lock_bytes(path: Path, *, exclusive: bool) -> int | None:
    """Lock the bytes of the ledger that SQLite locks, for as long as the returned descriptor stays open; None
    where SQLite must lock them itself.

    If a crash has left a journal, the next to open the ledger rolls it back, even a reader. The lock is then
    exclusive.
    """
    if not HAS_OPEN_FILE_LOCKS or _in_write_ahead_mode(path):
        return None
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    exclusive = exclusive or has_journal(path, "-journal")
    kind, start, length = (
        (fcntl.F_WRLCK, _PENDING, _ALL_BYTES) if exclusive else (fcntl.F_RDLCK, _SHARED, _SHARED_BYTES)
    )
    # struct flock of 64-bit Linux: type, whence, start, length, pid (0 is required), padding.
    request = struct.pack("@hhqqi4x", kind, os.SEEK_SET, start, length, 0)
    deadline = time.monotonic() + WAIT
    while True:
        try:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, request)
            return handle
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(handle)
                raise LedgerError(
                    f"{path} stayed locked by another program for {WAIT:.0f} seconds. Nothing was charged."
                ) from None
            time.sleep(random.uniform(*_PAUSE))
        except OSError:
            # The file system has no such locks: SQLite's own must be enough.
            os.close(handle)
            return None


def _in_write_ahead_mode(path: Path) -> bool:
    """Return whether the file is still in the write-ahead mode of old ledgers, which works with SQLite's own
    locks alone. Bytes 18 and 19 of the header say so."""
    with open(path, "rb") as file:
        return file.read(20)[18:20] == b"\x02\x02"


def has_journal(path: Path, end: str) -> bool:
    """Return whether SQLite left a journal (`-journal` or `-wal`) beside the ledger that is not empty."""
    journal = os.path.realpath(path) + end
    return os.path.exists(journal) and os.path.getsize(journal) > 0
