"""The mechanism that CONTRIBUTING.md adds works as the page says: in a copy of the project, step by step."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = dict(
    block.removeprefix("# ").split("\n", 1) for block in re.findall(r"```python\n(.*?)```", PAGE, re.S)
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after steps 1 to 4 of the page."""
    root = tmp_path_factory.mktemp("contributing")
    for name in ("src/discreet", "tests/contracts", "tests/sampling", "tests/mechanisms"):
        shutil.copytree(ROOT / name, root / name)
    # with the settings of a test run: without them pytest takes twice as long to collect
    for name in ("pyproject.toml", "conftest.py", "tests/__init__.py", "tests/conftest.py", "tests/loops.py"):
        shutil.copy2(ROOT / name, root / name)
    for name, text in BLOCKS.items():
        path = root / name
        before = f"{path.read_text()}\n\n" if path.exists() else ""
        path.write_text(before + text)
    package = root / "src/discreet/mechanisms/__init__.py"
    line = "    from .additive import {0} as {0}\n".format
    package.write_text(package.read_text().replace(line("laplace"), line("Lead") + line("laplace"), 1))
    suite = root / "tests/contracts/test_mechanisms.py"
    suite.write_text(suite.read_text().replace("\nNOW = {\n", '\nNOW = {\n    "lead, replace",\n', 1))
    return root


def run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=root, env=env, capture_output=True, text=True, check=False
    )


def test_the_example_has_the_files_that_its_steps_name() -> None:
    assert list(BLOCKS) == [
        "src/discreet/mechanisms/additive.py",
        "tests/contracts/cases_lead.py",
        "tests/mechanisms/test_lead.py",
    ]
    code = [line for line in next(iter(BLOCKS.values())).split('"""')[2].splitlines() if line.strip()]
    assert len(code) <= 32, "an example is short"


def passed(root: Path, *arguments: str) -> int:
    """How many tests have passed; raises if one has not."""
    done = run(root, "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return int(re.findall(r"(\d+) passed", done.stdout)[0])


SUITE, ALL_CASES = "tests/contracts/test_mechanisms.py", "test_every_class_is_audited_now_or_tried_elsewhere"


def test_the_mechanism_of_the_example_passes_its_own_tests_and_an_audit(copy: Path) -> None:
    assert "`NOW` in `tests/contracts/test_mechanisms.py`" in " ".join(PAGE.split())
    assert (
        passed(copy, "tests/mechanisms/test_lead.py", SUITE, "-k", f"lead and not leader or {ALL_CASES}")
        == 4 + 1 + 1
    )


def test_the_example_is_formatted_and_passes_the_static_checks(copy: Path) -> None:
    for command in (["format", "--check"], ["check"]):
        done = run(copy, "ruff", *command, *BLOCKS)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.slow
def test_the_mechanism_of_the_example_passes_the_whole_contract(copy: Path) -> None:
    """The suite runs on all cases that it finds: those of the example, and of thresholds, because it wants one
    interactive mechanism."""
    for path in (copy / "tests/contracts").glob("cases_*.py"):
        if path.stem not in ("cases_lead", "cases_threshold"):
            path.unlink()
    assert passed(copy, SUITE, "--deselect", f"{SUITE}::{ALL_CASES}") > 10
