"""`python -m docs.notebooks`: the exercises of the course as a notebook, made from their page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "course" / "exercises.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")


def notebook(text: str) -> dict[str, Any]:
    """A page as a notebook: prose as Markdown cells, doctests as code cells without their results."""
    cells = []
    for number, part in enumerate(re.split(r"```python\n(.*?)```", text, flags=re.S)):
        source = _code(part) if number % 2 else part.strip()
        if source:
            cells.append(_cell(source, f"cell-{number}", code=bool(number % 2)))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _code(block: str) -> str:
    lines = [line[4:] for line in block.splitlines() if line.startswith((">>> ", "... "))]
    return "\n".join(lines)


def _cell(source: str, name: str, *, code: bool) -> dict[str, Any]:
    kind: dict[str, Any] = {"cell_type": "code", "execution_count": None, "outputs": []}
    if not code:
        kind = {"cell_type": "markdown"}
    return kind | {"id": name, "metadata": {}, "source": source.splitlines(keepends=True)}


def main() -> int:
    NOTEBOOK.write_text(json.dumps(notebook(PAGE.read_text()), indent=1, ensure_ascii=False) + "\n")
    print(NOTEBOOK.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
