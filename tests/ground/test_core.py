"""The page on what an SQL answer rests on: its files are there, and every module of the way from a plan to noise
is on it."""

from __future__ import annotations

import re
from pathlib import Path

import discreet

from .test_size import code_lines

SOURCE = Path(discreet.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "core.md").read_text()
ROWS = re.findall(r"^\| (`[\w/]+\.py`(?:, `[\w/]+\.py`)*) \| .+ \|$", PAGE, re.M)
FILES = [name for row in ROWS for name in re.findall(r"`([^`]+)`", row)]
# Modules of `query` that no promise rests on: they build plans, or look at what was released.
UNTRUSTED = {
    *(
        "__init__",
        "aggregates",
        "answer",
        "binder",
        "computing",
        "consistency",
        "groupings",
        "html_view",
        "ids",
        "mechanism",
    ),
    *("parse", "plan", "preview", "price", "recipes", "relation", "release", "workload_cells"),
}


def test_each_file_of_the_page_is_there_once() -> None:
    assert len(FILES) > 40
    assert len(set(FILES)) == len(FILES)
    assert not [name for name in FILES if not (SOURCE / name).exists()]


def test_every_module_of_queries_is_on_the_page_or_builds_plans_only() -> None:
    core = {path.stem for path in (SOURCE / "core").glob("*.py")} - {"__init__", "errors"}
    assert core == {Path(name).stem for name in FILES if name.startswith("core/")}
    named = {Path(name).stem for name in FILES if name.startswith("query/")}
    assert named | UNTRUSTED == {path.stem for path in (SOURCE / "query").glob("*.py")}
    assert not named & UNTRUSTED


def test_what_an_answer_rests_on_can_be_read() -> None:
    lines = sum(code_lines((SOURCE / name).read_text()) for name in FILES)
    assert lines <= 11_560, f"{lines:,} code lines; the page may name fewer files, and never more lines"
