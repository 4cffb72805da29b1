"""What docs/learning.md and docs/migrate-from-opacus.md show is what happens."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from discreet.app.demo import learning as chapter

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "examples"), [("learning.md", 15), ("migrate-from-opacus.md", 35)])
def test_the_examples_of_the_page_run(page: str, examples: int) -> None:
    found = doctest.testfile(str(DOCS / page), module_relative=False)
    assert found.failed == 0
    assert found.attempted >= examples


def test_the_chapter_of_the_demo_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from discreet.app.demo.stage import Stage

    monkeypatch.setattr(chapter, "EPSILONS", (2.0, 8.0))
    monkeypatch.setattr(chapter, "EPOCHS", 2)
    console = Console(record=True, width=80)
    chapter.run(Stage(console, tmp_path))
    told = console.export_text()
    assert "no privacy" in told
    assert "…" not in told  # no bar is cut
    assert "resuming costs nothing" in told
    assert (tmp_path / "learning.png").exists()
