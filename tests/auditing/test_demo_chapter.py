"""The chapter of the demo about attacks: exact counts give everyone away, private ones do not."""

from __future__ import annotations

import io
import re

import pytest
from PIL import Image
from rich.console import Console

from discreet.app.demo import anonymity, attacks
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


@pytest.mark.slow
def test_the_chapter_on_anonymity_tells_four_attacks_and_shows_them(tmp_path):
    console = Console(width=140, record=True, force_terminal=False, file=io.StringIO())
    anonymity.run(Stage(console=console, out=tmp_path))
    text = console.export_text()
    classes = {
        int(k): (float(alone), float(more))
        for k, alone, more in re.findall(r"k = (\d+) +([\d.]+)% +([\d.]+)%", text)
    }
    assert sorted(classes) == [2, 5, 10, 20]
    assert all(alone < more for alone, more in classes.values())  # who knows more finds more
    shares = {
        name: float(share)
        for name, share in re.findall(r"^(first alone|second alone|both) +([\d.]+)%", text, re.M)
    }
    assert shares["both"] > max(shares["first alone"], shares["second alone"])
    rows = {name: int(right) for name, right in re.findall(r"^(exact|off|private).*?(\d+)%", text, re.M)}
    assert rows["exact"] == 100
    assert rows["private"] < 72  # a coin: 144 of 200 has chance below 1e-9
    films = {
        int(known): (int(right), int(wrong))
        for known, right, wrong in re.findall(r"^(\d+) +(\d+)% +(\d+)%", text, re.M)
    }
    assert films[8][0] >= 90
    assert films[8][1] <= 5
    with Image.open(tmp_path / "anonymity.png") as picture:
        assert picture.size[0] >= 1000
