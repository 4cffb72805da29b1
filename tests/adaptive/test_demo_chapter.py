"""The chapter of the demo about many looks: the plain holdout and board are fooled, the private ones are
not."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from discreet.app.demo import adaptive
from discreet.app.demo.stage import Stage


@pytest.mark.slow
def test_the_chapter_shows_who_is_fooled_and_who_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive, "RUNS", 1)
    console = Console(width=140, record=True, force_terminal=False, file=io.StringIO())
    adaptive.run(Stage(console=console, out=tmp_path))
    text = console.export_text()
    plain, truth, ours, fresh = (
        float(x) for x in re.findall(r"^500 +" + r" +".join([r"([\d.]+)%"] * 4), text, re.M)[0]
    )
    assert plain - truth > 8
    assert abs(ours - fresh) < 6
    ends = {
        name: float(x) for name, x in re.findall(r"^(plain|ladder|shaky|sparse)\b.*? ([\d.]+)%", text, re.M)
    }
    assert ends["plain"] > 57
    assert max(ends[name] for name in ("ladder", "shaky", "sparse")) < 58  # five deviations of a guess
    assert "of the population with probability 0.95" in " ".join(text.split())
    for name in ("holdout.png", "leaderboards.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.size[0] >= 1000
