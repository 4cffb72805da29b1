"""Settings of the whole test run."""

import gc
import os
import shutil
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
# a run leaves less than a hundred megabytes; a container has often no more than 64 there
ROOM = 1 << 30

# Every charge is on disk before an answer is given, which a test does not wait for: a sync takes milliseconds
# on a disk, and nothing in memory. Where there is none, or somebody chose another place, nothing changes.
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take the 13,000 collected tests, and all that they imported, out of the garbage collector's sight.

    They live to the end, and looking through them once more, half a second each time, was half of the run.
    """
    gc.collect()
    gc.freeze()
