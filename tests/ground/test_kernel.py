"""The first notebook: README's lines, an example and everything a session does run in a real Jupyter kernel,
with `ipywidgets` and without it, as in VS Code or after a plain `pip install notebook`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ipywidgets":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
assert "ipywidgets" not in sys.modules
"""
START = {"with": "import ipywidgets", "without": WITHOUT}

EVERYTHING = """
import numpy as np
import torch

import discreet as dp

dose = np.linspace(0, 10, 400)
people = dp.open(
    {"dose": dose, "well": np.where(dose > 5, "yes", "no")},
    table="people", schema={"dose": dp.Bounds(0, 10), "well": dp.Categories(["no", "yes"])},
    unit=dp.rows(), size=400, budget=dp.Budget(epsilon=20, delta=1e-5), ledger=":memory:",
)
people
---
question = "SELECT well, COUNT(*) AS n FROM people GROUP BY well"
people.preview(question, epsilon=1)
---
answer = people.sql(question, epsilon=1)
answer
---
people.workload([question, "SELECT COUNT(*) AS n FROM people"], epsilon=1)
---
people.fit(dp.tabular.LogisticRegression(epsilon=1), target="well")
---
public = dp.Public(table="tensors", size=400)
examples = dp.learning.Examples(torch.rand(400, 2), torch.arange(400) % 2, public=public)
session = dp.open(examples, budget=dp.Budget(epsilon=4, delta=1e-5), ledger=":memory:")
trainer = dp.learning.Trainer(
    torch.nn.Linear(2, 2), "cross_entropy", public=public, epsilon=2, delta=1e-5, batch=40, steps=5
)
session.train(trainer)
---
people.synthesize(20, epsilon=1, method="independent")
---
stream = people.stream("SELECT COUNT(*) AS n FROM people", epsilon=1, horizon=4)
stream.feed({"dose": [1.0, 2.0], "well": ["no", "yes"]})
stream
---
answer.plot()
---
dp.explain(people)
---
charges = {entry.body["charge"] for entry in people.ledger.entries() if entry.kind == "failed"}
assert not charges and people.spent > 2
"""


def cells(start: str) -> list[str]:
    """Return the code of all cells. What README and the example print is shown as a notebook shows it, too."""
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/tour.md")]
    block = "\n".join(re.search(r"```python\n(.*?)```", page, re.S).group(1) for page in pages)
    shown = re.sub(r"^print\((.*)\)(\s*#.*)?$", r"display(\1)", block, flags=re.M)
    assert shown.count("display(") == 4
    example = (ROOT / "examples" / "ask_a_table.py").read_text()
    return [START[start], block, shown, example, *EVERYTHING.split("\n---\n")]


@pytest.mark.parametrize("widgets", START)
def test_the_first_notebook_runs(widgets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # nothing is written into the home of whoever runs the tests
    for name in (
        "IPYTHONDIR",
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_RUNTIME_DIR",
        "JUPYTER_DATA_DIR",
        "MPLCONFIGDIR",
    ):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells(widgets)])
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    # raises the error of a cell that fails
    client.execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    assert "text/html" in kinds
