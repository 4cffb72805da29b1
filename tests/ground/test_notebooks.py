"""The five notebooks of docs/notebooks: each holds one clean run of the code that is in it, shows tables and plots,
and uses names that discreet has. `make test-all` runs them anew."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
import pytest
from docs.notebooks import FOLDER, digest, execute

import discreet as dp

PATHS = sorted(FOLDER.glob("*.ipynb"))
BOOKS = {path.stem: json.loads(path.read_text()) for path in PATHS}
for_each_book = pytest.mark.parametrize("name", BOOKS)


def codes(book: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]


def prose(book: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "markdown"]


def outputs(book: dict[str, Any]) -> list[list[str]]:
    """Return, for each cell of code, the kinds of what it shows: streams by their names."""
    cells = [cell["outputs"] for cell in book["cells"] if cell["cell_type"] == "code"]
    return [[kind for out in shown for kind in out.get("data", [out.get("name")])] for shown in cells]


def texts(book: dict[str, Any]) -> str:
    """Return all that a reader sees, but the pictures."""
    shown = [out for cell in book["cells"] for out in cell.get("outputs", ())]
    data = [text for out in shown for kind, text in out.get("data", {}).items() if kind != "image/png"]
    return "\n".join("".join(text) for text in [*data, *(out["text"] for out in shown if "text" in out)])


def test_there_is_one_for_each_kind_of_reader() -> None:
    assert set(BOOKS) == {"steward", "analyst", "engineer", "student", "publisher"}


@for_each_book
def test_a_notebook_is_valid_small_and_names_no_machine(name: str) -> None:
    nbformat.validate(nbformat.from_dict(BOOKS[name]))
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 300_000
    everything = texts(BOOKS[name]) + json.dumps(BOOKS[name]["metadata"]) + "".join(codes(BOOKS[name]))
    assert re.findall(r"(?:/home|/root|/Users|/work|/tmp|/var)/\S+|\b[A-Z]:\\\S+", everything) == []


@for_each_book
def test_a_notebook_holds_one_clean_run_of_its_own_code(name: str) -> None:
    book = BOOKS[name]
    assert book["metadata"]["ran"] == digest(book["cells"]), f"run: python -m docs.notebooks {name}"
    counts = [cell["execution_count"] for cell in book["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    kinds = {kind for shown in outputs(book) for kind in shown}
    assert kinds <= {"stdout", "text/html", "image/png", "image/svg+xml"}, (
        "no error, no warning, no bare repr"
    )


@for_each_book
def test_a_notebook_teaches_in_prose_tables_and_plots(name: str) -> None:
    book = BOOKS[name]
    assert 10 <= len(book["cells"]) <= 30
    assert prose(book)[0].startswith("# ")
    assert len(prose(book)) >= 8
    # no heap of code without a word between
    kinds = "".join(cell["cell_type"][0] for cell in book["cells"])
    assert "ccc" not in kinds
    shown = [kind for kinds in outputs(book) for kind in kinds]
    assert sum(kind.startswith("image/") for kind in shown) >= 2
    assert shown.count("text/html") >= 2
    assert "epsilon" in texts(book), "a price is shown"
    # every plot has a title, which is not the name of a variable
    for code in codes(book):
        assert code.count("plt.subplots(") <= len(re.findall(r"\b(?:title=|suptitle\()", code)), code
    long = [line for text in prose(book) for line in text.splitlines() if len(line) > 110]
    assert long == []


@for_each_book
def test_links_of_a_notebook_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", "\n".join(prose(BOOKS[name])))
    assert links
    assert [link for link in links if not (FOLDER / link).exists()] == []


def lint(path: Path) -> str:
    """Return what ruff finds: syntax, names that no cell before defines, imports that nothing uses."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--output-format",
        "concise",
    ]
    rules = ["--select", "E9,F,E501", "--line-length", "110"]
    done = subprocess.run([*command, *rules, str(path)], capture_output=True, text=True)
    return done.stdout if done.returncode else ""


def test_every_name_in_a_notebook_is_defined_and_every_import_used(tmp_path: Path) -> None:
    assert lint(FOLDER) == ""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import math\nprint(total)")])
    nbformat.write(book, tmp_path / "slips.ipynb")
    told = lint(tmp_path)
    assert "F401" in told, "an import that nothing uses"
    assert "F821" in told, "a name that no cell defines"


def missing(code: str) -> list[str]:
    """Return the names of discreet that code uses and that are not there, and options that a function of it does
    not have. Names that are assigned from `dp.open` or `as_analyst` are sessions."""
    tree = ast.parse(code)
    space: dict[str, Any] = {}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.split(".")[0] == "discreet"]
            space |= {alias.asname or alias.name: import_module(alias.name) for alias in ours}
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "discreet":
            module = import_module(str(node.module))
            there = [alias for alias in node.names if hasattr(module, alias.name)]
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias not in there]
            space |= {alias.asname or alias.name: getattr(module, alias.name) for alias in there}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func)
            if called == "dp.open" or called.endswith(".as_analyst"):
                space |= {ast.unparse(target): dp.Session for target in node.targets}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = _resolve(node.value, space)
            found += [ast.unparse(node)] if owner is not None and not hasattr(owner, node.attr) else []
        elif isinstance(node, ast.Call) and callable(called_thing := _resolve(node.func, space)):
            parameters = inspect.signature(called_thing).parameters
            if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values()):
                options = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
                found += [f"{ast.unparse(node.func)}({o}=)" for o in options if o not in parameters]
    return found


def _resolve(node: ast.expr, space: dict[str, Any]) -> Any:
    """Return the module, class or function of discreet that a dotted name is, or None."""
    if isinstance(node, ast.Name):
        return space.get(node.id)
    thing = getattr(_resolve(node.value, space), node.attr, None) if isinstance(node, ast.Attribute) else None
    # what a property of a session is, is not known before there is one
    return thing if inspect.ismodule(thing) or inspect.isclass(thing) or inspect.isroutine(thing) else None


@for_each_book
def test_every_name_and_option_of_discreet_in_a_notebook_exists(name: str) -> None:
    assert missing("\n".join(codes(BOOKS[name]))) == []


def test_a_name_and_an_option_that_are_not_there_are_noticed() -> None:
    code = """
import discreet as dp
from discreet import accounting as acc, aggregation
people = dp.open(table, bugdet=1)
ann = people.as_analyst("ann")
ann.sql("SELECT", epsilom=1)
people.previw("SELECT")
acc.epsilon_of(1)
people.sql("SELECT", epsilon=1), acc.epsilon(1, delta=0)
"""
    assert sorted(missing(code)) == [
        "acc.epsilon_of",
        "ann.sql(epsilom=)",
        "discreet.aggregation",
        "dp.open(bugdet=)",
        "people.previw",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_the_same_kinds_of_things(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nothing is written into the home of whoever runs the tests
    for name in (
        "IPYTHONDIR",
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_RUNTIME_DIR",
        "JUPYTER_DATA_DIR",
        "MPLCONFIGDIR",
    ):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    assert outputs(execute(path)) == outputs(BOOKS[path.stem])
