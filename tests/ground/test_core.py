"""The page on what an SQL answer rests on: it names each module that is loaded where a question is answered, and no
other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import discreet as dp
from discreet._registry import to_json
from discreet.core.question import FormQuestion
from discreet.query import Query

from .test_size import code_lines

SOURCE = Path(dp.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "core.md").read_text()
ROWS = re.findall(r"^\| (`[\w/]+\.py`(?:, `[\w/]+\.py`)*) \| .+ \|$", PAGE, re.M)
FILES = [name for row in ROWS for name in re.findall(r"`([^`]+)`", row)]
# A process that has the table, its public facts, the ledger, and a question as JSON.
ANSWER = """
import json, sys
from pathlib import Path
folder = Path(sys.argv[1])
public, question = json.loads((folder / "question.json").read_text())
from discreet._registry import from_json
from discreet.curator.door import Door
from discreet.tables.engines.duckdb import connect
door = Door.open(folder / "people.ledger", connect(folder / "people.csv", from_json(public)))
print(json.dumps(door.ask(from_json(question)).value))
print(*sorted(name for name in sys.modules if name.split(".")[0] == "discreet"))
"""
ROWS_OF_PEOPLE = "".join(f"p{i // 3},{20 + i % 60},{('good', 'bad')[i % 2]}\n" for i in range(300))
SQL = "SELECT health, COUNT(*) AS n, SUM(age) AS total FROM people GROUP BY health"


def answered(folder: Path, **price: float | str) -> tuple[dict[str, object], dict[str, int]]:
    """The value that a fresh process answers a question with, and the modules that it has loaded then, by path, with
    their lines of code."""
    (folder / "people.csv").write_text("person,age,health\n" + ROWS_OF_PEOPLE)
    schema = {"person": dp.Text(), "age": dp.Bounds(0, 100), "health": dp.Categories(["good", "bad"])}
    people = dp.open(
        folder / "people.csv",
        schema=schema,
        unit="person",
        budget=dp.Budget(epsilon=3, delta=1e-6),
        ledger=folder / "people.ledger",
    )
    query = Query(sql=SQL, public=people.public, rows=3, groups=1, **price)  # type: ignore[arg-type]
    question = [to_json(people.public), to_json(FormQuestion.of(query.question))]
    (folder / "question.json").write_text(json.dumps(question))
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    value, names = done.stdout.splitlines()
    return json.loads(value), {path: lines for path, lines in map(_file, names.split()) if lines}


def _file(module: str) -> tuple[str, int]:
    path = SOURCE.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return str(path.relative_to(SOURCE)), _lines(path)


@cache
def _lines(path: Path) -> int:
    return code_lines(path.read_text())


def test_the_page_names_each_module_that_answers_a_question_and_no_other(tmp_path: Path) -> None:
    value, loaded = answered(tmp_path, epsilon=0.5, noise="laplace")
    assert value["keys"] == [["good"], ["bad"]]
    assert len(set(FILES)) == len(FILES)
    assert sorted(loaded) == sorted(FILES)


def test_what_an_answer_rests_on_can_be_read() -> None:
    lines = sum(_lines(SOURCE / name) for name in FILES)
    assert lines <= 12_250, f"{lines:,} code lines; the page may name fewer files, and never more lines"
    stated = re.search(r"Together ([\d,]+) lines of code", PAGE)
    assert stated
    assert int(stated[1].replace(",", "")) == pytest.approx(lines, rel=0.01)


def test_gaussian_noise_adds_the_accountant_that_certifies_its_price(tmp_path: Path) -> None:
    _, loaded = answered(tmp_path, epsilon=0.5, delta=1e-7, noise="gaussian")
    more = loaded.keys() - set(FILES)
    assert more
    assert {name.split("/")[0] for name in more} == {"accounting"}
    stated = re.search(r"With Gaussian\s+noise ([\d,]+) lines more", PAGE)
    assert stated
    assert int(stated[1].replace(",", "")) == pytest.approx(sum(loaded[name] for name in more), rel=0.02)


def test_no_planner_of_sql_is_among_them() -> None:
    assert not [name for name in FILES if name.startswith(("query/", "session/", "app/"))]
