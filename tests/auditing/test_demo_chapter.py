"""The chapter of the demo about attacks: exact counts give everyone away, private ones do not."""

from __future__ import annotations

import io
import re

from PIL import Image
from rich.console import Console

from discreet.app.demo import attacks
from discreet.app.demo.stage import Stage


def test_the_chapter_shows_attacks_that_succeed_and_attacks_that_fail(tmp_path):
    console = Console(width=140, record=True, force_terminal=False, file=io.StringIO())
    attacks.run(Stage(console=console, out=tmp_path))
    text = console.export_text()
    rows = {name: int(right) for name, right in re.findall(r"^(exact|off|private).*?(\d+)%", text, re.M)}
    assert rows["exact"] == 100
    assert rows["off"] > 85
    assert rows["private"] < 75  # a coin, nearly: 113 of 150 has chance below 1e-9
    assert re.search(r"floats +\d\.\d\d +refuted", text)
    assert re.search(r"exact integers +\d\.\d\d +stands", text)
    with Image.open(tmp_path / "attacks.png") as picture:
        assert picture.size[0] >= 1000
