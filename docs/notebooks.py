"""`python -m docs.notebooks [name ...]`: runs the notebooks, and stores them with what they showed.

The five of docs/notebooks are written as notebooks: edit their cells, then run this. A Jupyter kernel
executes them from the first cell to the last. The exercises of the course become notebooks from their pages
(prose as Markdown, doctests as code), run cell by cell in a process of its own; `--sources` leaves their
results. What is stored is one run: its noise is fresh each time.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import doctest
import hashlib
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
FOLDER = Path(__file__).parent / "notebooks"
PAGES = sorted((Path(__file__).parent / "course").glob("exercises*.md"))

# what a cell can show, the best first
RICH = ("image/png", "image/svg+xml", "text/html")
# the source of a cell, and whether it is code
Source = tuple[str, bool]


def from_page(text: str) -> list[Source]:
    """Return a page as cells: prose as Markdown, doctests as code, a cell for each value that they show.
    Answers are not folded there."""
    text = re.sub(r"^</?details.*\n\n?", "", text, flags=re.M)
    cells: list[Source] = []
    for number, part in enumerate(re.split(r"```python\n(.*?)```", text, flags=re.S)):
        cells += [(code, True) for code in _codes(part)] if number % 2 else [(part.strip(), False)]
    return cells


def sources() -> dict[Path, list[Source]]:
    """Return the cells of every notebook that is made from a page, by its path."""
    cells = {page.with_suffix(".ipynb"): from_page(page.read_text()) for page in PAGES}
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


def run(cells: list[Source]) -> list[str]:
    """Return what each cell prints and what its last expression is, run in order in a new process and an
    empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "docs.notebooks", "--cells"],
            input=json.dumps(cells), capture_output=True, text=True, cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    printed: list[str] = json.loads(done.stdout.splitlines()[-1])
    return printed


def _run_here() -> None:
    """Run the cells that come in, as a notebook would: expressions at the end of a cell are shown."""
    cells: list[Source] = json.load(sys.stdin)
    main = types.ModuleType("__main__")
    sys.modules["__main__"], sys.argv, printed = main, ["notebook"], []
    for number, (source, code) in enumerate(cells):
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            if code:
                _show(source, f"cell {number}", main.__dict__)
        printed.append(told.getvalue())
    print(json.dumps(printed))


def _show(source: str, name: str, space: dict[str, Any]) -> None:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), space)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), space)
        if value is not None:
            print(repr(value))


def stored(path: Path) -> list[str]:
    """Return what the cells of a stored notebook printed."""
    cells = json.loads(path.read_text())["cells"]
    return ["".join(line for out in cell.get("outputs", []) for line in out["text"]) for cell in cells]


def execute(path: Path) -> dict[str, Any]:
    """Return a written notebook as it is after a run in a new Jupyter kernel and an empty folder.

    An error in a cell is raised. What differs between machines and kernels (times, versions) is left out.
    """
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    roots = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            book, timeout=600, kernel_name="python3", record_timing=False,
            resources={"metadata": {"path": folder}},
        )  # fmt: skip
        client.execute(env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, roots))})
    for number, cell in enumerate(book.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output["metadata"] = {}
            # a table or a picture needs no text beside it, such as <Figure size 630x324 with 1 Axes>
            rich = [kind for kind in RICH if kind in output.get("data", ())]
            if rich:
                output["data"] = {rich[0]: _smaller(rich[0], output["data"][rich[0]])}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}, "ran": digest(book.cells)}
    # as files have it: texts as lists of lines
    raw: dict[str, Any] = json.loads(nbformat.writes(book))
    return raw


def _joined(outputs: list[Any]) -> list[Any]:
    """Return the outputs of a cell with what it printed in one piece, however the kernel has cut it."""
    joined: list[Any] = []
    for output in outputs:
        if joined and output.output_type == "stream" and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _smaller(kind: str, content: Any) -> Any:
    """Return a PNG picture with 64 colors, which is a third of its size, and other content as it is."""
    if kind != "image/png":
        return content
    from PIL import Image

    buffer = io.BytesIO()
    picture = Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB")
    picture.quantize(64).save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def digest(cells: list[Any]) -> str:
    """Return a digest of the code of all cells, by which a notebook says which code its results are of."""
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return hashlib.sha256("\n\n".join(codes).encode()).hexdigest()[:16]


def main(arguments: list[str]) -> int:
    names = [name for name in arguments if not name.startswith("-")]
    made = {path: cells for path, cells in sources().items() if not names or path.stem in names}
    for path, cells in made.items():
        kept = stored(path) if path.exists() else []
        printed = kept if "--sources" in arguments else run(cells)
        printed += [""] * (len(cells) - len(printed))
        _write(path, notebook(cells, printed))
    if "--sources" not in arguments:
        for path in sorted(FOLDER.glob("*.ipynb")):
            if not names or path.stem in names:
                _write(path, execute(path))
    return 0


def _write(path: Path, book: dict[str, Any]) -> None:
    path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n")
    print(path.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--cells"]:
        _run_here()
    else:
        sys.exit(main(sys.argv[1:]))
