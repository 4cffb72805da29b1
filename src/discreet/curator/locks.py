"""Locks of a ledger's file that survive what drops SQLite's own.

SQLite's locks are POSIX locks, which *any* open and close of the file in the process drops (a copy, a
backup). Ours belong to an open file: `flock` on a file beside the ledger among ourselves, and, where the
system has them, open-file-description locks on the very bytes that SQLite locks, so that other programs
wait. A forked child inherits open files; it closes its copies, and the locks stay its parent's.
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
except ImportError:  # pragma: no cover  (Windows, whose locks are no POSIX locks: SQLite's own do)
    fcntl = None  # type: ignore[assignment]

# Seconds to wait for other writers before giving up. Not tuned: nothing is computed under the lock, so that
# it is held for a moment only.
WAIT = 60.0
# Seconds between two attempts to lock, drawn at random so that those who wait do not try in step.
_PAUSE = 0.0005, 0.003

# Where SQLite locks a database (https://sqlite.org/fileformat2.html, "The Lock-Byte Page"): pending and
# reserved, then 510 shared bytes.
_PENDING, _ALL = 0x40000000, 512
_SHARED, _MANY = _PENDING + 2, 510
HAS_OPEN_FILE_LOCKS = fcntl is not None and hasattr(fcntl, "F_OFD_SETLK")


@dataclass(eq=False)
class HeldLock:
    """A lock and a connection in use by one process; a forked child leaves both alone."""

    lock: int | None
    db: Any = None
    # The ledger itself, open for as long as SQLite's bytes of it are locked.
    locked_bytes: int | None = None
    pid: int = field(default_factory=os.getpid)

    @property
    def own(self) -> bool:
        """Whether this process took the lock, and did not inherit it."""
        return self.pid == os.getpid()


_HELD: set[HeldLock] = set()


def register(held: HeldLock) -> HeldLock:
    """Remember an open lock, so that a forked child closes its copy."""
    _HELD.add(held)
    return held


def unregister(held: HeldLock) -> None:
    """Forget a lock that its holder closes."""
    _HELD.discard(held)


def _after_fork_in_child() -> None:
    """Close inherited locks, and keep inherited connections open for ever: closing one would roll its
    parent's transaction back."""
    for held in _HELD:
        if held.db is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held.db))
        # Closing releases nothing while the parent has the same file open.
        for handle in (held.lock, held.locked_bytes):
            if handle is not None:
                with suppress(OSError):
                    os.close(handle)
    _HELD.clear()


# not on Windows, which does not fork
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def lock_file(path: Path, lock_path: Path, *, exclusive: bool) -> int | None:
    """Lock the file beside the ledger; do nothing where that cannot be (read-only media): there nobody
    writes."""
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
            # Another one must be locked where the file was replaced in the meantime.
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
    """Give up what `lock_file` locked."""
    if handle is not None:
        # also where a child that bypassed our hook still has it open
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
    """Lock the bytes of the ledger that SQLite locks, for as long as the file returned stays open; None
    where SQLite must do it itself.

    A journal that a crash left is rolled back by whoever comes next, alone.
    """
    if not HAS_OPEN_FILE_LOCKS or _in_write_ahead_mode(path):
        return None
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    exclusive = exclusive or has_journal(path, "-journal")
    kind, start, length = (fcntl.F_WRLCK, _PENDING, _ALL) if exclusive else (fcntl.F_RDLCK, _SHARED, _MANY)
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
            # A file system without such locks: SQLite's own have to do.
            os.close(handle)
            return None


def _in_write_ahead_mode(path: Path) -> bool:
    """Return whether the file is still in the write-ahead mode of old ledgers, which works with SQLite's own
    locks alone."""
    with open(path, "rb") as file:
        return file.read(20)[18:20] == b"\x02\x02"


def has_journal(path: Path, end: str) -> bool:
    """Return whether SQLite left a journal (`-journal` or `-wal`) beside the ledger that is not empty."""
    journal = os.path.realpath(path) + end
    return os.path.exists(journal) and os.path.getsize(journal) > 0
