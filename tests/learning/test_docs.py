"""What docs/learning.md shows is what happens."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from discreet.app.demo import learning as chapter

PAGE = Path(__file__).parents[2] / "docs" / "learning.md"


def test_the_examples_of_the_page_run() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.failed == 0
    assert found.attempted >= 12


def test_the_chapter_of_the_demo_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from discreet.app.demo.stage import Stage

    monkeypatch.setattr(chapter, "EPSILONS", (2.0, 8.0))
    monkeypatch.setattr(chapter, "EPOCHS", 2)
    console = Console(record=True, width=120)
    chapter.run(Stage(console, tmp_path))
    assert "no privacy" in console.export_text()
    assert (tmp_path / "learning.png").exists()
