"""One name of a class is one thing; only a mechanism and the event that prices it share theirs."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "discreet"

# The mechanism or schedule, and its event in `accounting`.
WITH_AN_EVENT = {"ExponentialMechanism", "GNMax", "RandomizedResponse", "SparseVector", "TruncatedPoisson"}


def test_no_class_has_the_name_of_another():
    packages = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.M):
            packages[name].append(path.relative_to(PACKAGE).parts[0])
    assert len(packages) > 500, "the search found too little: has the package moved?"
    twice = {name: places for name, places in packages.items() if len(places) > 1}
    assert set(twice) == WITH_AN_EVENT
    assert all(len(places) == 2 and "accounting" in places for places in twice.values())
