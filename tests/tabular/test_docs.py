"""The page of tabular learning runs as it is printed."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_examples_of_the_page_run() -> None:
    page = Path(__file__).parents[2] / "docs" / "tabular.md"
    failures, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 10
    assert failures == 0
