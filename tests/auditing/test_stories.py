"""The stories about models, told by the examples and by the demo: what they say is so."""

from __future__ import annotations

import io
import re
import runpy
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from discreet.app.demo import models
from discreet.app.demo.stage import Stage
from discreet.sampling import SeededEntropy

EXAMPLES = Path(__file__).parents[2] / "examples"


def told(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict:
    monkeypatch.setattr("discreet.sampling.Entropy", lambda: SeededEntropy(1))
    monkeypatch.setattr("sys.argv", [name, *arguments])
    return runpy.run_path(str(EXAMPLES / name))


@pytest.mark.slow
def test_a_planted_secret_is_memorized_without_privacy_and_gone_with_it(tmp_path, monkeypatch):
    """Bits of a code that was not learned: P[bits >= b] = 2^-b."""
    pytest.importorskip("matplotlib").use("Agg")
    story = told("secret_in_text.py", monkeypatch, str(tmp_path / "secret.png"))
    (plain, _), (private, _) = story["found"].values()
    assert plain.extracted
    assert plain.bits == pytest.approx(plain.max_bits)
    assert private.bits < 10
    assert story["losses"][1] < 2  # and it has learned to write: 3.6 is guessing
    assert (tmp_path / "secret.png").stat().st_size > 10_000


def test_the_chapter_on_models_finds_members_without_privacy_and_none_with_it(tmp_path):
    console = Console(width=140, record=True, force_terminal=False, file=io.StringIO())
    models.run(Stage(console=console, out=tmp_path))
    text = console.export_text()
    found = {
        name: float(share)
        for name, share in re.findall(r"^(one threshold|LiRA, trained|LiRA) .*?(\d+\.\d)%", text, re.M)
    }
    assert found["LiRA"] > 10
    assert found["one threshold"] < 10
    assert found["LiRA, trained"] < 100 * (2.72**2 * 0.01 + 1e-5) + 5
    inside, outside = re.search(r"right\s+for\s+(\d+)%.*?for\s+(\d+)%", text, re.S).groups()
    assert int(inside) > int(outside) + 5
    with Image.open(tmp_path / "models.png") as picture:
        assert picture.size[0] >= 1000
