"""What is public is written down: docs/api.md names every stable name and every room, and each room says what it
offers."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import discreet as dp

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
ROOMS = sorted(dp._ROOMS)


def test_every_stable_name_is_on_the_page_and_nothing_else():
    stable = PAGE.split("## Stable")[1].split("## Provisional")[0]
    listed = set(re.findall(r"`(\w+)`", stable))
    assert listed == set(dp.__all__) - set(ROOMS)


def test_every_room_is_on_the_page():
    rooms = re.findall(r"^\| `(\w+)` \|", PAGE.split("## Provisional")[1], flags=re.M)
    assert rooms == ROOMS


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_lists_what_it_offers(room):
    module = import_module(f"discreet.{room}")
    assert module.__all__, f"discreet.{room} offers nothing"
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing
    assert not [name for name in module.__all__ if name.startswith("_")]
