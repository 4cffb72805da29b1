"""What docs/learning.md and docs/migrate.md show is what happens."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "examples"), [("learning.md", 45), ("migrate.md", 35)])
def test_the_examples_of_the_page_run(page: str, examples: int) -> None:
    found = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    assert found.attempted >= examples
