"""Two sources are compared side by side: the same one twice, and one that was changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import discreet

from .beside import compare, orders

SOURCE = Path(discreet.__file__).parents[1]


@pytest.mark.slow
def test_a_source_is_the_same_as_itself_and_a_changed_one_is_not(tmp_path):
    pytest.importorskip("torch")
    order = orders(20, 20, seed=1)
    assert compare(SOURCE, SOURCE, order) == []
    other = tmp_path / "src"
    shutil.copytree(SOURCE, other)
    (tmp_path / "tests").symlink_to(Path(__file__).parents[1])
    with (other / "discreet" / "query" / "__init__.py").open("a") as file:
        file.write("\nQuery.event = property(lambda query: __import__('discreet').accounting.NoOp())\n")
    changed = compare(SOURCE, other, orders(20, 0, seed=1))
    assert any("/0/event" in line for line in changed)
