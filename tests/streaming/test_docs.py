"""What docs/streaming.md shows is what happens, and the plot is drawn."""

from __future__ import annotations

import doctest
from pathlib import Path

from discreet.app.streaming_plots import gain

PAGE = Path(__file__).parents[2] / "docs" / "streaming.md"


def test_the_examples_of_the_page_run() -> None:
    done = doctest.testfile(str(PAGE), module_relative=False)
    assert done.failed == 0
    assert done.attempted >= 10


def test_the_gain_is_drawn(tmp_path: Path) -> None:
    assert gain(tmp_path / "gain.png", steps=64).stat().st_size > 10_000
