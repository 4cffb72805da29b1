"""The house does not grow: totals of code lines, modules and public names, of the whole package.

The totals may be moved around freely between packages. They are lowered when something is taken out, and raised
only with a reason, which the commit names. `python -m tests.ground.test_size` prints them by package.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import discreet

# The limits: edited only with a reason.
CODE_LINES = 69_480
MODULES = 343
PUBLIC_NAMES = 526

SOURCE = Path(discreet.__file__).parent


@cache
def code_lines(text: str) -> int:
    """How many lines are neither empty, nor a comment, nor part of a docstring. All lines of other strings count."""
    lines = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() and line.lstrip()[0] != "#"}
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            lines |= _lines(node)
        elif (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body
        ):
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                docstrings |= _lines(first)
    return len(lines - docstrings)


def _lines(node: ast.expr | ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def modules() -> dict[Path, str]:
    return {path.relative_to(SOURCE): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


def public_names() -> Counter[str]:
    """The public names of each public package, as it is when it has been imported."""
    found = pkgutil.walk_packages(discreet.__path__, "discreet.", onerror=lambda _: None)
    names = ["discreet", *(module.name for module in found if module.ispkg)]
    public = [name for name in names if not any(part.startswith("_") for part in name.split("."))]
    return Counter({name: _names_of(importlib.import_module(name)) for name in public})


def _names_of(package: ModuleType) -> int:
    """How many names a package lists; if it has no list, how many public things were made in it. Of the
    command line, which is no library, only lists count."""
    if hasattr(package, "__all__") or package.__name__.startswith("discreet.app"):
        return len(set(getattr(package, "__all__", ())))
    things = (thing for name, thing in vars(package).items() if not name.startswith("_"))
    return sum(getattr(thing, "__module__", None) == package.__name__ for thing in things)


def test_the_code_does_not_grow():
    total = sum(map(code_lines, modules().values()))
    assert total <= CODE_LINES, (
        f"{total:,} code lines, {total - CODE_LINES:,} above the limit of {CODE_LINES:,}"
    )


def test_modules_do_not_become_more():
    total = len(modules())
    assert total <= MODULES, f"{total} modules, {total - MODULES} above the limit of {MODULES}"


def test_public_names_do_not_become_more():
    pytest.importorskip("torch")
    pytest.importorskip("fastapi")
    total = public_names().total()
    assert total <= PUBLIC_NAMES, f"{total} names, {total - PUBLIC_NAMES} above the limit of {PUBLIC_NAMES}"


def test_lines_of_code_are_what_is_no_comment_and_no_docstring():
    text = '"""Doc\nstring."""\n\n# why\nx = """a\nb"""\n\n\ndef f():\n    """Say."""\n    return (\n        1\n    )\n'
    assert code_lines(text) == 6


def main() -> None:
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path, text in modules().items():
        lines[path.parts[0]] += code_lines(text)
        files[path.parts[0]] += 1
    for name, count in lines.most_common():
        sys.stdout.write(f"{name:22} {count:7,} lines {files[name]:4} modules\n")
    for name, count in public_names().most_common():
        sys.stdout.write(f"{name:40} {count:4} names\n")
    names = public_names().total()
    sys.stdout.write(f"all: {lines.total():,} lines, {files.total()} modules, {names} names\n")


if __name__ == "__main__":
    main()
