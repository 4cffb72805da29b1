"""`discreet collect`, as a collector and people use it; and the errors of local against central."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from discreet import InvalidInput
from discreet.app.cli import app
from discreet.sampling import SeededEntropy

from . import central

runner = CliRunner()


def run(*arguments: str) -> str:
    done = runner.invoke(app, ["collect", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("colors.txt").write_text("red\n" * 3000 + "blue\n" * 1000)
    Path("ages.txt").write_text("30\n50\n" * 2000)
    return tmp_path


def test_a_plan_lists_the_oracles_best_first(folder: Path) -> None:
    rows = json.loads(run("plan", "--epsilon", "1", "--domain", "128", "--people", "20000", "--json"))
    assert rows[0]["oracle"] == "SubsetSelection"
    assert [row["standard_error"] for row in rows] == sorted(row["standard_error"] for row in rows)
    assert "LocalHashing" in run(
        "plan", "--epsilon", "1", "--domain", "10000", "--people", "1000", "--bits", "64"
    )


def test_categories_go_through_reports_to_estimates(folder: Path) -> None:
    run("randomize", "colors.txt", "--categories", "red,green,blue", "--epsilon", "2", "-o", "reports.jsonl")
    text = Path("reports.jsonl").read_text()
    assert len(text.splitlines()) == 4001
    answer = json.loads(run("estimate", "reports.jsonl", "--json"))
    for name, share in {"red": 0.75, "green": 0.0, "blue": 0.25}.items():
        assert abs(answer["estimates"][name] - share) <= answer["error"]
    fixed = json.loads(run("estimate", "reports.jsonl", "--consistent", "--json"))["estimates"]
    assert sum(fixed.values()) == pytest.approx(1)
    assert "estimate" in run("estimate", "reports.jsonl")


def test_numbers_go_through_reports_to_a_mean(folder: Path) -> None:
    run("randomize", "ages.txt", "--between", "0,120", "--epsilon", "2", "-o", "reports.jsonl")
    answer = json.loads(run("estimate", "reports.jsonl", "--json"))
    assert abs(answer["estimates"]["mean"] - 40) <= answer["error"]


def test_what_is_wrong_is_refused_without_repeating_a_value(folder: Path) -> None:
    Path("odd.txt").write_text("red\nsecret-color\n")
    with pytest.raises(InvalidInput, match="some lines are none of the categories") as refusal:
        run("randomize", "odd.txt", "--categories", "red,green", "--epsilon", "1")
    assert "secret" not in str(refusal.value)
    for arguments in (
        ("randomize", "odd.txt", "--between", "0,1", "--epsilon", "1"),
        ("randomize", "odd.txt", "--between", "0", "--epsilon", "1"),
        ("randomize", "odd.txt", "--epsilon", "1"),
        ("randomize", "none.txt", "--categories", "a,b", "--epsilon", "1"),
        ("randomize", "colors.txt", "--categories", "red,red", "--epsilon", "1"),
        ("randomize", "colors.txt", "--categories", "red,blue", "--epsilon", "0"),
        ("estimate", "colors.txt"),
    ):
        with pytest.raises(
            InvalidInput,
            match=r"must be|must differ|twice|takes|needs|give|cannot be read|none of the|are no numbers|must describe",
        ):
            run(*arguments)
    header = {"randomizer": {"type": "accounting.PureDP", "epsilon": 1}, "categories": ["a", "b"]}
    Path("forged.jsonl").write_text(json.dumps(header) + "\n1\n")
    with pytest.raises(InvalidInput, match="does not describe"):
        run("estimate", "forged.jsonl")


def test_a_hostile_file_of_reports_is_refused_or_shown_as_text(folder: Path) -> None:
    kary = {"type": "local.KaryResponse", "epsilon": {"fraction": "1/1"}, "domain": 2}
    for categories in (None, [], ["a"], [1, 2]):
        header = json.dumps({"randomizer": kary, "categories": categories})
        Path("reports.jsonl").write_text(f"{header}\n0\n1\n")
        with pytest.raises(InvalidInput, match="does not describe a randomizer and its categories"):
            run("estimate", "reports.jsonl")
    header = json.dumps({"randomizer": kary, "categories": ["[/x]", "\x1b[2J"]})
    Path("reports.jsonl").write_text(f"{header}\n0\n1\n")
    shown = run("estimate", "reports.jsonl")
    assert "[/x]" in shown
    assert "\x1b" not in shown


def test_a_local_epsilon_is_never_below_that_of_all() -> None:
    assert central.local_epsilon(20.0, 1000, 1e-6) >= 20


def test_the_client_for_a_web_page_is_written(folder: Path) -> None:
    run("browser", "page", "--categories", "red,green,blue", "--epsilon", "1")
    described = json.loads(Path("page/description.json").read_text())
    assert described["client"]["microepsilon"] == 1_000_000
    assert "getRandomValues" in Path("page/discreet-local.mjs").read_text()


def test_local_errors_grow_with_the_root_of_the_people_and_central_ones_do_not() -> None:
    counts = (100, 10_000)
    curves = central.measure_counts(epsilon=1, counts=counts, runs=400, entropy=SeededEntropy(1))
    local_growth, central_growth = (curves[name][1] / curves[name][0] for name in ("local", "central"))
    assert 8.3 < local_growth < 12
    assert 0.8 < central_growth < 1.25
    assert curves["local"][1] == pytest.approx(math.sqrt(10_000 * math.e) / (math.e - 1), rel=0.15)
    assert curves["central"][1] < curves["shuffled"][1] < curves["local"][1] / 5
    assert np.isfinite(list(curves.values())).all()
