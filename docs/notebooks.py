"""`python -m docs.notebooks [name ...]`: notebooks, rendered from what tests run anyway.

The exercises of the course become notebooks from their pages (prose as Markdown, doctests as code), the
scripts of examples/ from their comments and code. Each is run, cell by cell in a process of its own, and
stored with what it printed: one run, whose noise is fresh each time. `--sources` leaves the results.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
FOLDER = Path(__file__).parent / "notebooks"
PAGES = sorted((Path(__file__).parent / "course").glob("exercises*.md"))

# these run for 20 to 80 seconds (5 to 15 CPU-seconds): their tests are slow ones
LONG = {"audit_training", "reusable_holdout", "secret_in_text", "train_and_resume"}
# the source of a cell, and whether it is code
Source = tuple[str, bool]


def from_page(text: str) -> list[Source]:
    """Return a page as cells: prose as Markdown, doctests as code, a cell for each value that they show."""
    cells: list[Source] = []
    for number, part in enumerate(re.split(r"```python\n(.*?)```", text, flags=re.S)):
        cells += [(code, True) for code in _codes(part)] if number % 2 else [(part.strip(), False)]
    return cells


def from_script(text: str) -> list[Source]:
    """Return a script as cells: docstring and comments between parts as Markdown, the rest as code.

    A part begins at a comment on a line of its own, outside of every block and after an empty line.
    """
    tree = ast.parse(text)
    cells: list[Source] = [(ast.get_docstring(tree) or "", False)]
    lines = text.splitlines()[tree.body[0].end_lineno :]
    inside = {n for node in tree.body for n in range(node.lineno + 1, (node.end_lineno or 0) + 1)}
    first, code, words = (tree.body[0].end_lineno or 0) + 1, [""], []
    for number, line in enumerate(lines, start=first):
        begins = line.startswith("# ") and number not in inside and (words or not code[-1])
        if begins:
            if not words:
                cells.append(("\n".join(code).strip("\n"), True))
                code = [""]
            words.append(line[2:])
            continue
        if words:
            cells.append((" ".join(words), False))
            words = []
        code.append(line)
    return [*cells, ("\n".join(code).strip("\n"), True)]


def sources() -> dict[Path, list[Source]]:
    """Return the cells of every notebook, by its path."""
    cells = {page.with_suffix(".ipynb"): from_page(page.read_text()) for page in PAGES}
    for path in sorted(EXAMPLES.glob("*.py")):
        cells[FOLDER / f"{path.stem}.ipynb"] = from_script(path.read_text())
    return {path: [cell for cell in those if cell[0]] for path, those in cells.items()}


def notebook(cells: list[Source], printed: list[str]) -> dict[str, Any]:
    """Return a notebook of the cells, with what each of them printed."""
    body = [_cell(number, *cells[number], printed[number]) for number in range(len(cells))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": body, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _codes(block: str) -> list[str]:
    codes = [""]
    for example in doctest.DocTestParser().get_examples(block):
        codes[-1] += example.source
        codes += [""] if example.want else []
    return [code.strip("\n") for code in codes]


def _cell(number: int, source: str, code: bool, printed: str) -> dict[str, Any]:
    kind: dict[str, Any] = {"cell_type": "markdown"}
    if code:
        outputs = [{"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)}]
        kind = {"cell_type": "code", "execution_count": None, "outputs": outputs if printed else []}
    return kind | {"id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}


def run(cells: list[Source], *, values: bool) -> list[str]:
    """Return what each cell prints, run in order in a new process and an empty folder.

    With `values` also what its last expression is; of scripts, which print, that is left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "docs.notebooks", "--values" if values else "--cells"],
            input=json.dumps(cells), capture_output=True, text=True, cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    printed: list[str] = json.loads(done.stdout.splitlines()[-1])
    return printed


def _run_here(*, values: bool) -> None:
    """Run the cells that come in, as a notebook would: expressions at the end of a cell are shown."""
    cells: list[Source] = json.load(sys.stdin)
    main = types.ModuleType("__main__")
    sys.modules["__main__"], sys.argv, printed = main, ["notebook"], []
    for number, (source, code) in enumerate(cells):
        told = io.StringIO()
        try:
            with contextlib.redirect_stdout(told):
                if code:
                    _show(source, f"cell {number}", main.__dict__, values=values)
        except SystemExit as stop:
            # a script that ends early: what it needs is not there, and it has said so
            if stop.code:
                raise
            printed.append(told.getvalue())
            break
        printed.append(told.getvalue())
    print(json.dumps(printed))


def _show(source: str, name: str, space: dict[str, Any], *, values: bool) -> None:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), space)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), space)
        if values and value is not None:
            print(repr(value))


def stored(path: Path) -> list[str]:
    """Return what the cells of a stored notebook printed."""
    cells = json.loads(path.read_text())["cells"]
    return ["".join(line for out in cell.get("outputs", []) for line in out["text"]) for cell in cells]


def main(arguments: list[str]) -> int:
    FOLDER.mkdir(exist_ok=True)
    names = [name for name in arguments if not name.startswith("-")]
    for path, cells in sources().items():
        if names and path.stem not in names:
            continue
        kept = stored(path) if path.exists() else []
        printed = kept if "--sources" in arguments else run(cells, values=path.parent != FOLDER)
        printed += [""] * (len(cells) - len(printed))
        path.write_text(json.dumps(notebook(cells, printed), indent=1, ensure_ascii=False) + "\n")
        print(path.relative_to(ROOT), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:] in (["--cells"], ["--values"]):
        _run_here(values=sys.argv[1] == "--values")
    else:
        sys.exit(main(sys.argv[1:]))
