"""The chapter of the demo about consistency: it runs, its numbers add up."""

from __future__ import annotations

import io
import re

from PIL import Image
from rich.console import Console

from discreet import sampling
from discreet.app.demo import consistency
from discreet.app.demo.stage import Stage


def test_the_chapter_shows_that_consistent_tables_add_up(tmp_path, monkeypatch):
    """Seeded, because four noisy totals agree by chance in up to one of 4,000 runs."""
    stream = sampling.SeededEntropy(5)
    monkeypatch.setattr(consistency.sampling, "Entropy", lambda: stream)
    console = Console(width=110, record=True, force_terminal=False, file=io.StringIO())
    consistency.run(Stage(console=console, out=tmp_path))
    text = console.export_text()
    rows = re.findall(r"^adding up: [a-z ]+? +([\d,]+) +([\d,]+) +([\d,]+)$", text, re.M)
    assert len(rows) == 4
    released, consistent, whole = (set(column) for column in zip(*rows, strict=True))
    assert len(released) > 1
    assert len(consistent) == len(whole) == 1
    spreads = re.findall(r"± ([\d.]+) +± ([\d.]+)", text)
    assert len(spreads) == 4
    assert all(float(after) < float(before) for before, after in spreads)
    together = re.search(r"squared errors: ([\d,]+) as released, ([\d,]+)\s+consistent", text)
    assert together is not None
    before, after = (int(number.replace(",", "")) for number in together.groups())
    assert after <= before
    with Image.open(tmp_path / "consistency.png") as picture:
        assert picture.size[0] >= 1000
