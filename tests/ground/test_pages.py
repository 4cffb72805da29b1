"""Every page of the documentation does what it shows: doctests pass, Python blocks run in order, shell blocks of
tutorials and how-tos run in one folder, terms of the course lead somewhere."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("tutorials", "howto", "course")
# pages that have tests of their own: the rooms', and the one that needs half a minute of torch
PAGES = sorted(
    [page for folder in FOLDERS for page in (DOCS / folder).glob("*.md")]
    + [page for page in DOCS.glob("migrate-from-*.md") if page.stem != "migrate-from-opacus"]
)
NAMES = [str(page.relative_to(DOCS)) for page in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


@pytest.mark.parametrize("name", NAMES)
def test_the_python_of_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / name
    if ">>>" in page.read_text():
        with contextlib.redirect_stdout(io.StringIO()) as told:
            result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
        assert result.failed == 0, told.getvalue()
    else:
        space: dict[str, object] = {"__name__": "page"}
        with contextlib.redirect_stdout(io.StringIO()):
            for block in blocks(page, "python"):
                exec(compile(block, name, "exec"), space)


SHELL = [name for name in NAMES if any("$ " in block for block in blocks(DOCS / name, "sh"))]


def script(page: Path) -> str:
    """The lines after "$ ", with the texts that they read from here-documents."""
    lines, inside = [], False
    for line in "\n".join(blocks(page, "sh")).splitlines():
        if inside:
            lines.append(line)
            inside = line != "END"
        elif line.startswith("$ "):
            lines.append(line[2:])
            inside = line.endswith("<<'END'")
    return "set -e\n" + "\n".join(lines)


@pytest.mark.slow
def test_the_shell_of_the_pages_runs(tmp_path: Path) -> None:
    """In one folder: what the steward's tutorial makes, the how-tos go on with."""
    paths = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent), os.environ["PATH"]]
    env = os.environ | {"PATH": os.pathsep.join(paths)}
    assert "tutorials/steward.md" in SHELL
    for name in sorted(SHELL, key=lambda name: not name.startswith("tutorials")):
        done = subprocess.run(
            ["bash", "-c", script(DOCS / name)], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


ROW = re.compile(r"^\| (.+?) \| `(.+?)`.*? \|(.*?)\| \[.*?\]\((.+?)\) \|$", re.M)
TERMS = ROW.findall((DOCS / "course/terms.md").read_text())


def test_the_terms_of_the_lectures_are_all_there() -> None:
    rows = [line for line in (DOCS / "course/terms.md").read_text().splitlines() if line.startswith("| ")]
    assert len(TERMS) == len(rows) - 1 > 60
    names = " ".join(term for term, *_ in TERMS).casefold()
    for term in (
        "m_stab",
        "m_samp",
        "m_svec",
        "noisy max",
        "thresholdout",
        "paprika",
        "tbap",
        "moments accountant",
    ):
        assert term in names
    firsts = [term.casefold() for term, *_ in TERMS]
    assert len(firsts) == len(set(firsts))


@pytest.mark.parametrize(("term", "path", "command", "page"), TERMS, ids=[term for term, *_ in TERMS])
def test_a_term_leads_to_an_object_a_command_and_a_page(
    term: str, path: str, command: str, page: str
) -> None:
    from discreet.app.cli import COMMANDS

    thing = importlib.import_module("discreet")
    for name in path.split("."):
        thing = (
            getattr(thing, name)
            if hasattr(thing, name)
            else importlib.import_module(f"{thing.__name__}.{name}")
        )
    assert (DOCS / "course" / page).resolve().is_file()
    if command.strip():
        assert command.strip(" `").split()[1] in COMMANDS


def test_every_picture_of_the_course_is_there_and_shown() -> None:
    from docs.pictures import FOLDER, PICTURES

    shown = {
        name
        for page in (DOCS / "course").glob("*.md")
        for name in re.findall(r"pictures/(.+?)\.svg", page.read_text())
    }
    assert shown == set(PICTURES) == {path.stem for path in FOLDER.glob("*.svg")}


def test_the_notebook_of_exercises_is_that_of_the_page_and_runs() -> None:
    from docs.notebooks import NOTEBOOK, PAGE, notebook

    stored = json.loads(NOTEBOOK.read_text())
    assert stored == notebook(PAGE.read_text()), "run: python -m docs.notebooks"
    space: dict[str, object] = {}
    codes = ["".join(cell["source"]) for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert len(codes) >= 7
    with contextlib.redirect_stdout(io.StringIO()):
        for code in codes:
            exec(compile(code, NOTEBOOK.name, "exec"), space)
