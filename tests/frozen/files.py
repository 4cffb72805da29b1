"""The files of both layers, and how a story is compared with them.

A story has one file in `a`. It has one in `b` if it is another with noise than without, and one in `messages` if
it prints anything.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path

from .stage import Stage, differences, text_of, written

HERE = Path(__file__).parent


def path_of(layer: str, name: str) -> Path:
    return HERE / layer / f"{name}{'.txt' if layer == 'messages' else '.json'}"


def write(layer: str, name: str, text: str | None) -> bool:
    """Write a file of a story, or remove it; return whether anything has changed."""
    path = path_of(layer, name)
    old = path.read_text() if path.exists() else None
    if text == old:
        return False
    if text is None:
        path.unlink()
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return True


def expected_noise(name: str) -> Path:
    """The file that a story with noise is compared with."""
    own = path_of("b", name)
    return own if own.exists() else path_of("a", name)


def layer_a(name: str, stage: Stage) -> list[str]:
    """Say where a story without noise differs from layer A. A price that fell is no difference."""
    path = path_of("a", name)
    if not path.exists():
        return [f"{path.name} is missing in layer A"]
    return differences(json.loads(path.read_text()), json.loads(written(stage.facts)))


def layer_b(name: str, stage: Stage) -> list[str]:
    """Say where a story with noise differs from layer B, in its numbers or in its words."""
    path, messages = expected_noise(name), path_of("messages", name)
    if not path.exists():
        return [f"{path.name} is missing in layer B"]
    old, new = path.read_text(), written(stage.facts)
    parts = differences(json.loads(old), json.loads(new), names=())
    lines = [] if old == new else parts or ["the layout of the file"]
    before, after = messages.read_text() if messages.exists() else "", text_of(stage.messages)
    compared = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "before", "now", lineterm="", n=1
    )
    return lines + list(compared)
