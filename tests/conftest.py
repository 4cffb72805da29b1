"""The order of tests: what waits begins first; and no test fails because its machine was busy."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# 200 ms for an example is a matter of what else the machine does
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")

WAITING = Path(__file__).parent / "web"


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[Any], list[Any]]:
    """Look for examples in docstrings in the package only: tests have none, and looking takes a second."""
    nodes = yield
    return [node for node in nodes if type(node) is pytest.Module]


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Put the tests of the server first: they wait for public times and for a browser, seconds at a time.

    With `--dist worksteal` one worker has the first half of all tests, so it waits while the other computes,
    and the other takes what is left over. At the end of the list both would wait, for minutes. Those with Spark
    follow, all together, so that one worker starts a Java machine and not both.
    """
    items.sort(key=lambda item: (not item.path.is_relative_to(WAITING), "spark" not in item.nodeid.lower()))
