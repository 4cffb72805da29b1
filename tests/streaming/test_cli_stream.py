"""`discreet stream`, as a steward uses it: a file that grows by days, and rows that are fed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from discreet import BudgetExceeded, InvalidInput
from discreet.app.cli import app

runner = CliRunner()
SCHEMA = """
table = "visits"
unit = "row"
[columns.day]
type = "date"
lower = "2026-01-01"
upper = "2026-01-31"
[columns.ward]
type = "categories"
values = ["a", "b"]
"""


def run(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, list(arguments), env={"COLUMNS": "140"})
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def refused(error: type[Exception], *arguments: str) -> None:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code != 0
    assert isinstance(result.exception, error)


def write(days: int) -> None:
    lines = [f"2026-01-{day:02},{'a' if i % 4 else 'b'}" for day in range(1, days + 1) for i in range(400)]
    Path("visits.csv").write_text("day,ward\n" + "\n".join(lines) + "\n")


@pytest.fixture(autouse=True)
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("visits.csv.schema.toml").write_text(SCHEMA)
    write(1)
    run("init", "visits.csv", "--epsilon", "10")


def test_a_file_that_grows_is_counted_day_by_day_and_late_rows_are_not() -> None:
    sql = "SELECT day, COUNT(*) AS n FROM visits GROUP BY day"
    shown = json.loads(run("stream", "start", "visits.csv", sql, "--epsilon", "8", "--preview", "--json"))
    assert shown["horizon"] == 31
    assert "stream" not in shown
    started = json.loads(run("stream", "start", "visits.csv", sql, "--epsilon", "8", "--json"))
    first = json.loads(run("stream", "feed", "visits.csv", "--json"))
    assert abs(first["value"] - 400) < 5 * first["error"]
    write(3)
    Path("visits.csv").write_text(Path("visits.csv").read_text() + "2026-01-01,a\n" * 500)
    run("stream", "feed", "visits.csv", "--ticks", "2")
    values = json.loads(run("stream", "show", "visits.csv", "--json"))
    assert values["stream"] == started["stream"]
    assert len(values["values"]) == 3
    assert abs(values["values"][-1] - 1200) < 5 * values["errors"][-1] < 300


def test_rows_are_fed_by_name_once() -> None:
    sql = "SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward"
    run("stream", "start", "visits.csv", sql, "--epsilon", "8", "--horizon", "10")
    out = run("stream", "feed", "visits.csv", "--rows-from", "visits.csv", "--tick", "monday")
    assert "a: " in out
    refused(InvalidInput, "stream", "feed", "visits.csv", "--rows-from", "visits.csv", "--tick", "monday")
    # the table itself is no batch: fed at every tick, each of its rows would count every time
    refused(InvalidInput, "stream", "feed", "visits.csv")
    refused(InvalidInput, "stream", "feed", "visits.csv", "--ticks", "3")
    refused(InvalidInput, "stream", "feed", "visits.csv", "--rows-from", "visits.csv", "--ticks", "2")
    assert len(json.loads(run("stream", "show", "visits.csv", "--json"))["values"]) == 1


def test_strategies_are_compared_and_what_is_not_there_is_refused() -> None:
    lines = run("stream", "factors", "--steps", "1024").splitlines()
    assert any("honaker" in line and "7.98" in line for line in lines)
    start = ["stream", "start", "visits.csv"]
    refused(InvalidInput, "stream", "show", "visits.csv")
    refused(InvalidInput, *start, "SELECT MEDIAN(day) FROM visits", "--epsilon", "1", "--horizon", "9")
    refused(BudgetExceeded, *start, "SELECT COUNT(*) FROM visits", "--epsilon", "11", "--horizon", "9")


def test_a_learner_is_started_fed_and_shown_on_the_shell() -> None:
    Path("wards.csv.schema.toml").write_text(
        'table = "wards"\nunit = "row"\n[columns.x]\ntype = "number"\nlower = -1\nupper = 1\n'
        '[columns.y]\ntype = "number"\nlower = -1\nupper = 1\n'
    )
    rows = "\n".join(f"{i / 50 - 1},{0.5 * (i / 50 - 1)}" for i in range(100))
    Path("wards.csv").write_text("x,y\n" + rows + "\n")
    run("init", "wards.csv", "--epsilon", "10")
    terms = ["stream", "learn", "wards.csv", "--loss", "squared", "--target", "y", "--features", "x", "--clip", "2",
             "--batch", "100", "--horizon", "20", "--learner", "mirror", "--epsilon", "8"]  # fmt: skip
    free = json.loads(run(*terms, "--preview", "--json"))
    assert free["regret_bound"] > 0
    assert "stream" not in free
    run(*terms, "--preview")
    started = json.loads(run(*terms, "--json"))
    for _ in range(3):
        fed = json.loads(run("stream", "feed", "wards.csv", "--rows-from", "wards.csv", "--json"))
    assert fed["stream"] == started["stream"]
    assert fed["value"][0] > 0
    assert len(json.loads(run("stream", "show", "wards.csv", "--json"))["values"]) == 3
    shown = run("stream", "show", "wards.csv")
    assert "(" in shown
    # the error is that of the gradients, and is not written as that of the decision
    assert ")  ± " not in shown
    assert shown.count("(sum of gradients ± ") == 3
    refused(
        InvalidInput, *terms[:3], "--loss", "squared", "--features", "x", "--epsilon", "1", "--horizon", "3"
    )
    refused(
        InvalidInput, *terms[:3], "--loss", "cubic", "--features", "x", "--epsilon", "1", "--horizon", "3"
    )
