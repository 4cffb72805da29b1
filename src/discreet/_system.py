"""What operating systems do differently: locks of files, new files, waiting for the disk, forks, threads.

This is the only module that names functions which some systems lack, or asks which system it is
(tests/ground/test_systems.py). Linux is the one that is tested; what macOS and Windows do here was read, not
run (docs/never-run.md).

On Windows, access lists decide who may read a file: a new one gets that of its folder, and its mode says
nothing. Every lock there is exclusive, so that readers take turns, too.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows)
    fcntl = None  # type: ignore[assignment]
    import msvcrt

# Whether a file that is open can be removed or renamed.
MOVES_OPEN_FILES = fcntl is not None
# Links are not followed; bytes are not translated. Python itself keeps descriptors from other programs.
if sys.platform == "win32":  # pragma: no cover
    _PLAIN = os.O_BINARY
else:
    _PLAIN = os.O_NOFOLLOW
# The byte that is locked on Windows, where nobody can read or write what is locked: behind the content of
# every file that is locked (`vault.LARGEST`), and before the 2 GiB up to which `msvcrt` counts.
_LOCKED_BYTE = (1 << 31) - 2
# Seconds between two attempts to lock, where the system does not wait by itself. Chosen by hand, not tuned.
_PAUSE = 0.005


def reason_of(error: BaseException) -> str:
    """Return why an operation failed: of an error of the system its own words, without the path."""
    return str((error.strerror if isinstance(error, OSError) else None) or error)


def create_file(path: str | Path) -> int:
    """Create a new file that only its owner can read, and return its descriptor; links are not followed."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAIN, 0o600)


def open_file(path: str | Path, *, create: bool = False) -> int:
    """Return the descriptor of a file that is to be locked; links are not followed."""
    return os.open(path, os.O_RDWR | (os.O_CREAT if create else 0) | _PLAIN, 0o600)


def is_open_to_others(mode: int) -> bool:
    """Return whether a file's mode lets others than its owner read or write it; False where modes say
    nothing."""
    return os.name == "posix" and bool(mode & 0o077)


def is_own(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user. On Windows each user has a folder for temporary files."""
    return sys.platform == "win32" or status.st_uid == os.geteuid()


def is_root() -> bool:
    """Return whether this process may do everything on the system; False where that cannot be asked."""
    return sys.platform != "win32" and os.geteuid() == 0


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file if nobody else has it locked; return whether it is locked now. The system releases
    the lock when the descriptor is closed, or the process ends."""
    busy = BlockingIOError if fcntl is not None else PermissionError
    try:
        if fcntl is not None:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        else:
            _locking(handle, msvcrt.LK_NBLCK)
    except busy:
        return False
    return True


def lock(handle: int, *, shared: bool = False) -> None:
    """Lock an open file, as soon as nobody else has it locked."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        return
    while not try_lock(handle):
        time.sleep(_PAUSE)


def unlock(handle: int) -> None:
    """Release the lock of an open file before it is closed."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_UN)
    else:
        _locking(handle, msvcrt.LK_UNLCK)


def _locking(handle: int, mode: int) -> None:
    """Call Windows' function, which locks bytes from the current position on."""
    position = os.lseek(handle, 0, os.SEEK_CUR)
    os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(handle, mode, 1)  # type: ignore[attr-defined]
    finally:
        os.lseek(handle, position, os.SEEK_SET)


def sync(file: IO[Any]) -> None:
    """Wait until what was written to an open file is on disk. The `fsync` of macOS leaves it in the cache of
    the disk."""
    file.flush()
    os.fsync(file.fileno())
    if hasattr(fcntl, "F_FULLFSYNC"):
        # some file systems do not know it
        with suppress(OSError):
            fcntl.fcntl(file.fileno(), fcntl.F_FULLFSYNC)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk. Windows cannot open a folder, and has no such step."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def at_fork(**hooks: Callable[[], None]) -> None:
    """Call functions around every fork, as `os.register_at_fork` does; Windows does not fork."""
    if sys.platform != "win32":
        os.register_at_fork(**hooks)


# Matrices of up to this many entries are factored on one thread. On two busy cores the eigenvectors of an
# 800 x 800 matrix took 0.2 s on one thread and 6 s on two, whose threads wait for each other in a loop; with
# 200 x 200 a strategy took 0.06 s instead of 3.2 (measured).
_ENTRIES_ON_ONE_THREAD = 1 << 20


@functools.lru_cache(maxsize=2)
def _libraries(with_scipy: bool) -> Any:
    """Return the libraries of linear algebra that are loaded; to look for them takes milliseconds."""
    import threadpoolctl  # type: ignore[import-untyped]

    return threadpoolctl.ThreadpoolController()


# The number of threads belongs to the process. Of two that lower it at a time, the one that leaves last would
# restore what it found, the number that the other had lowered: so they take turns.
_turn = threading.RLock()
at_fork(after_in_child=lambda: _turn._at_fork_reinit())  # type: ignore[attr-defined]
P = ParamSpec("P")
R = TypeVar("R")


def on_one_thread(factor: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a function that factors its first argument, a matrix, on one thread if the matrix is small."""

    @functools.wraps(factor)
    def run(matrix: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if matrix.size > _ENTRIES_ON_ONE_THREAD:
            return factor(matrix, *args, **kwargs)
        # scipy has a library of its own, which may be loaded later than numpy's
        libraries = _libraries("scipy.linalg" in sys.modules)
        with _turn, libraries.limit(limits=1, user_api="blas"):
            return factor(matrix, *args, **kwargs)

    return run
