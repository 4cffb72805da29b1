"""What docs/streaming.md shows is what happens, and its plot of regrets is drawn."""

from __future__ import annotations

import doctest
from pathlib import Path

from benchmarks.streaming import regrets

PAGE = Path(__file__).parents[2] / "docs" / "streaming.md"


def test_the_examples_of_the_page_run() -> None:
    done = doctest.testfile(str(PAGE), module_relative=False)
    assert done.failed == 0
    assert done.attempted >= 10


def test_regrets_are_drawn_below_their_bound(tmp_path: Path) -> None:
    series = {"leader without noise": [0.1, 0.2, 0.3], "epsilon 1": [1.0, 1.5, 2.0]}
    assert regrets(tmp_path / "regret.png", "Regret", series, [9.0] * 3).stat().st_size > 10_000
