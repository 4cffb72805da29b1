"""What docs/workloads.md shows is what happens, and it names everything there is."""

from __future__ import annotations

import doctest
from pathlib import Path

from discreet import inference

PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"


def test_the_examples_of_the_page_run() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.failed == 0
    assert found.attempted >= 15


def test_the_page_names_every_function() -> None:
    text = PAGE.read_text()
    assert [
        name for name in inference.__all__ if name[0].islower() and name not in text and name != "width"
    ] == []
