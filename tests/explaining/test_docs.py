"""What docs/explain.md shows is what happens, and its table is the one of the code."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from discreet.explaining import DEPLOYMENTS

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"


def test_the_examples_of_the_page_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.failed == 0
    assert result.attempted >= 10


def test_the_table_of_deployments_is_that_of_the_code() -> None:
    table = PAGE.read_text().split("<!-- deployments -->")[1].split("<!-- /deployments -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| who")]
    assert len(rows) == len(DEPLOYMENTS)
    for one in DEPLOYMENTS:
        assert any(one.what in row and one.price in row and one.url in row for row in rows)
