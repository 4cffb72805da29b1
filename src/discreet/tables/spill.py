"""Makes private folders in the temporary directory: for data that does not fit into an engine's memory, for
ledgers of trial sessions, and for files that are being written. The process that creates a folder removes it;
after a crash, the next process that creates such a folder does (`sweep`).

Each folder holds a file that its owner keeps locked. A folder of this user whose lock can be taken has no
owner any more.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows)
    fcntl = None  # type: ignore[assignment]

PREFIX, TRIAL_PREFIX, FILES_PREFIX = "discreet-spill-", "discreet-trial-", "discreet-files-"
_LOCK = "in-use"
# Seconds after which a folder without a lock file, which was not completely made, counts as left behind by a
# crashed process; chosen by hand, not tuned.
_GRACE = 24 * 3600.0


class PrivateFolder:
    """Holds a private folder (mode 0700) for as long as this process needs it. Folders of the same prefix
    that crashed processes left behind are removed first."""

    def __init__(self, prefix: str) -> None:
        sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._pid = os.getpid()
        # The file is locked before it gets its final name. Otherwise a `sweep` between its creation and its
        # locking could take the lock and remove the folder.
        provisional = self.path / f"{_LOCK}-soon"
        self._lock = os.open(provisional, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            provisional.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove the folder with its contents. A forked child does not remove its parent's folder."""
        if self._pid == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):
                os.close(self._lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.remove()


class Spill(PrivateFolder):
    """Holds a private folder for data that does not fit into an engine's memory."""

    def __init__(self) -> None:
        super().__init__(PREFIX)


def sweep(prefix: str = PREFIX) -> list[Path]:
    """Remove the folders that crashed processes of this user have left behind, and return their paths."""
    leftovers = [path for path in Path(tempfile.gettempdir()).glob(prefix + "*") if _is_left(path)]
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return leftovers


def _is_left(path: Path) -> bool:
    """Return whether a folder of this user belongs to no running process."""
    try:
        status = path.lstat()
        if fcntl is None or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        handle = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        # There is no lock file, or the folder itself is gone: then `status` is not set, and not used.
        return path.exists() and time.time() - status.st_mtime > _GRACE
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
