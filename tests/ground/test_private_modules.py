"""Modules whose names begin with an underscore belong to their package: the linter knows every one of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_private_module_is_protected_by_a_contract_of_the_linter():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    protected = {name for c in contracts if c["type"] == "protected" for name in c["protected_modules"]}
    packages = (ROOT / "src" / "discreet").glob("*/_[a-z]*.py")
    private = {f"discreet.{path.parent.name}.{path.stem}" for path in packages}
    assert private, "the search found nothing: has the package moved?"
    assert protected == private
