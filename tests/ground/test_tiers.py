"""What is public is written down: docs/api.md names every stable name and every package, and each package says what it
offers."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from inspect import ismodule
from pathlib import Path

import pytest

import discreet as dp

from ..loops import for_each

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
PACKAGES = sorted(name for name in dp.__all__ if ismodule(getattr(dp, name)))


def test_every_stable_name_is_on_the_page_and_nothing_else():
    stable = PAGE.split("## Stable")[1].split("## Provisional")[0]
    listed = set(re.findall(r"`(\w+)`", stable))
    assert listed == set(dp.__all__) - set(PACKAGES)


def test_every_package_is_on_the_page():
    packages = re.findall(
        r"^\| `(\w+)` \|", PAGE.split("## Provisional")[1].split("Modules that")[0], flags=re.M
    )
    assert packages == PACKAGES


@for_each("package", PACKAGES)
def test_every_package_lists_what_it_offers(package):
    module = import_module(f"discreet.{package}")
    assert module.__all__, f"discreet.{package} offers nothing"
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing
    assert not [name for name in module.__all__ if name.startswith("_")]


MODULES = re.findall(r"^\| `([\w.]+)` \|", PAGE.split("Modules that")[1], flags=re.M)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_on_the_page_lists_what_it_offers(module):
    offered = import_module(f"discreet.{module}")
    assert offered.__all__
    assert not [name for name in offered.__all__ if not hasattr(offered, name)]


def promised(text: str) -> set[str]:
    """Return the dotted names below `discreet` that a text imports or writes after `dp.`."""
    packages = "|".join(PACKAGES)
    names = {
        f"{package}.{name}" for package, name in re.findall(rf"(?<![\w./])dp\.({packages})\.(\w+)", text)
    }
    for line in re.findall(
        r"^(?:>>> | *)(from discreet[\w.]* import [^(\n]+|import discreet\.[^\n]+)$", text, re.M
    ):
        (node,) = ast.parse(line).body
        if isinstance(node, ast.Import):
            names |= {alias.name.removeprefix("discreet.") for alias in node.names}
        else:
            module = (node.module or "").removeprefix("discreet").removeprefix(".")
            names |= {f"{module}.{alias.name}".removeprefix(".") for alias in node.names}
    return names


def is_public(name: str) -> bool:
    """Return whether the page covers a name: stable, a package or module of it, or in the `__all__` of one."""
    if name in dp.__all__ or name in PACKAGES or name in MODULES:
        return True
    module, _, last = name.rpartition(".")
    return module in (*PACKAGES, *MODULES) and last in import_module(f"discreet.{module}").__all__


PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "decisions" not in page.parts),
    *sorted((ROOT / "examples").glob("*.py")),
]


@for_each("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_and_examples_use_public_names_only(page):
    assert sorted(name for name in promised(page.read_text()) if not is_public(name)) == []


def test_a_private_name_on_a_page_is_noticed():
    text = ">>> from discreet._public import Bounds\nimport discreet.query.binder\nuse dp.accounting.no_such_name"
    assert promised(text) == {"_public.Bounds", "query.binder", "accounting.no_such_name"}
    assert not any(map(is_public, promised(text)))
