"""A description is read by a process that has not loaded its package: packages are loaded from a closed list."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import discreet
from discreet import _registry

SOURCES = Path(discreet.__file__).parent
TAG = re.compile(r'^@(?:_registry\.)?(?:described|named)\("([^"]+)"\)', re.MULTILINE)


def tags() -> list[str]:
    return sorted({tag for path in SOURCES.rglob("*.py") for tag in TAG.findall(path.read_text("utf-8"))})


def known_to_a_fresh_process(names: list[str]) -> dict[str, bool]:
    code = (
        "import json, sys; from discreet import _registry; "
        "print(json.dumps({tag: _registry.class_of(tag) is not None for tag in json.load(sys.stdin)}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(names), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_every_tag_of_the_sources_is_known_to_a_process_that_loaded_nothing():
    listed = tags()
    assert len(listed) > 150
    known = known_to_a_fresh_process(listed)
    assert [tag for tag, is_known in known.items() if not is_known] == []


def test_every_first_part_of_a_tag_has_its_rooms():
    assert {tag.partition(".")[0] for tag in tags()} == set(_registry.PACKAGES)


@pytest.mark.parametrize("tag", ["os.path", "discreet.app.cli", "app.web", "", ".", "adaptive", "learning."])
def test_no_tag_names_a_module(tag):
    before = set(sys.modules)
    assert _registry.class_of(tag) is None
    assert not {name for name in set(sys.modules) - before if name.startswith(("discreet.app", "os."))}


def test_a_package_offers_the_names_that_its_init_imports_and_loads_them_at_first_use() -> None:
    code = (
        "import sys, discreet.mechanisms as m\n"
        "before = 'discreet.mechanisms.additive' in sys.modules\n"
        "print(before, m.laplace.__module__, 'laplace' in m.__all__, 'laplace' in dir(m), '_registry' in m.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "discreet.mechanisms.additive", "True", "True", "False"]
    with pytest.raises(discreet.UnknownAttribute, match="Did you mean 'laplace'"):
        _ = discreet.mechanisms.laplaze


def test_a_name_that_is_a_module_too_stays_what_the_package_offers() -> None:
    """`auditing.audit` became the module, once something had imported that."""
    names = "auditing.audit adaptive.generalization inference.hierarchy inference.least_squares"
    code = (
        "import importlib, json, sys\n"
        "for name in sys.argv[1].split():\n"
        "    importlib.import_module('discreet.' + name)\n"
        "    package, _, thing = name.partition('.')\n"
        "    print(callable(getattr(importlib.import_module('discreet.' + package), thing)))"
    )
    done = subprocess.run([sys.executable, "-c", code, names], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "True", "True"]


def test_the_probe_is_a_function_however_often_it_is_asked_for() -> None:
    """A package of its name took its place once it had been used."""
    pytest.importorskip("torch")
    code = "from discreet import learning as m; import discreet.learning.training.trainer; m.probe, print(callable(m.probe))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
