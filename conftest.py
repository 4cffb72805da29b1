"""Settings of the whole test run."""

import gc
import os
import shutil
import sys
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
# a run leaves less than a hundred megabytes, and while it goes on, databases of PostgreSQL are there for each
# worker, of 7 megabytes each; a container has often no more than 64 there
ROOM = 2 << 30


def _is_fit(folder: Path) -> bool:
    """Whether tests may keep their files there: they write, and some run what they have written."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC and shutil.disk_usage(folder).free > ROOM


# Every charge is on disk before an answer is given, which a test does not wait for: a sync takes milliseconds
# on a disk, and nothing in memory. Where there is no such place, or somebody chose another, nothing changes.
if sys.platform == "linux" and _is_fit(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--devices` runs the tests of learning as if models and data were on an accelerator
    (tests/learning/placement.py)."""
    parser.addoption("--devices", action="store_true")


# Nearly all that is made until the tests run lives to the end: nothing is looked through in between.
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take the 13,000 collected tests, and all that they imported, out of the garbage collector's sight.

    They live to the end, and looking through them once more, half a second each time, was half of the run.
    """
    gc.collect()
    gc.freeze()
    # Tests make millions of small objects that live for a moment: looking for cycles after every 20,000
    # instead of 700 takes a twenty-fifth less CPU time (measured on mechanisms and contracts).
    gc.set_threshold(20_000, 20, 100)
    gc.enable()
