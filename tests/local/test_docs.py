"""What docs/local.md shows is what happens."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "local.md"


def test_the_examples_of_the_page_run() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.failed == 0
    assert found.attempted >= 30
