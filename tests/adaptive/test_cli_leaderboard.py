"""`discreet leaderboard`, as an organizer and two teams use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from discreet import DiscreetError, InvalidInput, NotPrivate, Public
from discreet.adaptive import Ladder, ShakyLadder
from discreet.app.cli import app
from discreet.curator import Budget, Curator, Policy
from discreet.leaderboard import Leaderboard
from discreet.tables import Memory

runner = CliRunner()
N = 2000
TRUTH = np.random.default_rng(1).choice(["cat", "dog"], N)
SCHEMA = f"""
table = "labels"
unit = "row"
neighbors = "replace"
size = {N}
[columns.label]
type = "categories"
values = ["cat", "dog"]
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"row": np.arange(N), "label": TRUTH}), "labels.parquet")
    Path("labels.parquet.schema.toml").write_text(SCHEMA)
    run("init", "labels.parquet", "--epsilon", "10", "--delta", "1e-5")
    return "labels.parquet"


def run(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, list(arguments), env={"COLUMNS": "140"})
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def refused(*arguments: str) -> str:
    result = runner.invoke(app, list(arguments))
    assert isinstance(result.exception, DiscreetError), (result.output, result.exception)
    return str(result.exception)


def predictions(name: str, right: int) -> str:
    other = {"cat": "dog", "dog": "cat"}
    labels = [label if i < right else other[label] for i, label in enumerate(TRUTH.tolist())]
    Path(name).write_text("id,label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels)))
    return name


def test_a_competition_from_start_to_end(data: str) -> None:
    start = (
        "leaderboard",
        "init",
        data,
        "--target",
        "label",
        "--id",
        "row",
        "--epsilon",
        "8",
        "--step",
        "0.1",
    )
    assert "board 2 is open: 2 improvements" in run(*start, "--improvements", "2", "--submissions", "50")
    first = json.loads(
        run("leaderboard", "submit", data, predictions("a.csv", 1200), "--name", "blue", "--json")
    )
    assert first["improved"]
    assert abs(first["score"] - 0.6) < 0.05
    told = run("leaderboard", "submit", data, predictions("b.csv", 1210), "--name", "red")
    assert "not above the best score" in told
    assert f"{first['score']:.4f}" in told
    assert "a new best" in run("leaderboard", "submit", data, predictions("c.csv", 1900), "--name", "blue")
    shown = json.loads(run("leaderboard", "show", data, "--json"))
    assert [(row["name"], row["improved"]) for row in shown] == [
        ("blue", True),
        ("red", False),
        ("blue", True),
    ]
    assert shown[0]["score"] == first["score"]
    assert "halted for good" in run("leaderboard", "submit", data, "c.csv", "--name", "red", code=1)
    told = json.loads(run("leaderboard", "submit", data, "c.csv", "--name", "red", "--json", code=1))["error"]
    assert (told["kind"], told["code"]) == ("Halted", 1)
    assert "new best" in run("leaderboard", "show", data)


def test_the_number_of_rows_is_asked_for_in_the_words_of_the_schema_file_and_nothing_is_charged(
    data: str,
) -> None:
    """A steward who used up the budget is told 0, not what rounding left."""
    start = (
        "leaderboard",
        "init",
        data,
        "--target",
        "label",
        "--id",
        "row",
        "--epsilon",
        "10",
        "--step",
        "0.1",
    )
    facts = Path("labels.parquet.schema.toml")
    facts.write_text(SCHEMA.replace(f"size = {N}\n", "").replace('"replace"', '"add_remove"'))
    Path("labels.parquet.ledger").unlink()
    Path("labels.parquet.ledger.key").unlink()
    run("init", data, "--epsilon", "10")
    assert "schema file, above all sections: size = ..." in refused(*start)
    facts.write_text(SCHEMA.replace('"replace"', '"add_remove"'))
    assert "used so far: 10; left: 0\n" in run(*start)


def test_with_a_delta_it_is_a_shaky_ladder(data: str) -> None:
    start = (
        "leaderboard",
        "init",
        data,
        "--target",
        "label",
        "--id",
        "row",
        "--epsilon",
        "2",
        "--delta",
        "1e-6",
    )
    assert "10 improvements" in run(*start, "--step", "1/10")
    assert Leaderboard.find(Curator.open("labels.parquet.ledger", _source())).board.delta == 1e-6  # type: ignore[union-attr]


def _source() -> Any:
    from discreet import session

    return session.open(Path("labels.parquet"), schema=Path("labels.parquet.schema.toml")).curator.source


def test_files_that_are_no_predictions_are_refused_and_change_nothing(data: str) -> None:
    assert "no leaderboard" in refused("leaderboard", "show", data)
    told = json.loads(
        run("leaderboard", "init", data, "--target", "label", "--id", "row", "--epsilon", "1", "--json")
    )
    assert told == {"board": 2, "improvements": 100}
    texts = {
        "empty.csv": "",
        "head.csv": "id,label\n",
        "wide.csv": "id,label,x\n1,cat,2\n",
        "twice.csv": "id,label\n1,cat\n1,dog\n",
    }
    texts |= {"odd.csv": "id,label\n1,horse\n", "short.csv": "id,label\n1\n"}
    for name, text in texts.items():
        Path(name).write_text(text)
        assert ("horse" if name == "odd.csv" else name) in refused(
            "leaderboard", "submit", data, name, "--name", "blue"
        )
    Path("binary.csv").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refused("leaderboard", "submit", data, "binary.csv", "--name", "blue")
    assert "cannot be read" in refused("leaderboard", "submit", data, "none.csv", "--name", "blue")
    assert "name" in refused("leaderboard", "submit", data, predictions("a.csv", 3), "--name", "\x1b[31m")
    assert "is not the start" in refused("leaderboard", "show", data, "--board", "1")
    assert json.loads(run("leaderboard", "show", data, "--json")) == []
    assert "0 submissions" in run("leaderboard", "show", data)


def test_as_a_library_it_takes_private_boards_only_and_survives_a_restart(tmp_path: Path) -> None:
    public = Public(schema={"y": __import__("discreet").Boolean()}, neighbors="replace", size=4)
    source = Memory({"id": [1, 2, 3, 4], "y": [True, False, True, True]}, public)
    curator = Curator.create(
        tmp_path / "l.ledger",
        source,
        Policy(budget=Budget(epsilon=300, delta=0.1)),
        large_delta=True,
        large_epsilon=True,
    )
    terms: dict[str, Any] = {"public": public, "target": "y", "id": "id"}
    with pytest.raises(InvalidInput, match="ShakyLadder or a SparseVectorBoard"):
        Leaderboard.open(curator, Ladder(**terms))  # type: ignore[arg-type]
    with pytest.raises(NotPrivate, match="this has no privacy guarantee"):
        curator.start(Ladder(**terms))
    board = Leaderboard.open(curator, ShakyLadder(**terms, epsilon=200, delta=0.01, step=0.25, budget=3))
    told = board.submit("a", {1: 1, 2: 0, 3: 1, 4: 0})
    again = Leaderboard.find(Curator.open(tmp_path / "l.ledger", source))
    assert again.number == board.number
    assert again.standings() == [("a", told)]
    assert again.submit("b", {1: 1, 2: 0, 3: 1, 4: 1}).left <= told.left
