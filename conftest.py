"""Settings of the whole test run."""

import gc

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take the 13,000 collected tests, and all that they imported, out of the garbage collector's sight.

    They live to the end, and looking through them once more, half a second each time, was half of the run.
    """
    gc.collect()
    gc.freeze()
