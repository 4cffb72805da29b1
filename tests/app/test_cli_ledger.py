"""`discreet ledger` and `discreet budget`, as a steward and a regulator use them."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from discreet import Bounds, DiscreetError, Public
from discreet import accounting as acc
from discreet.app.cli import app
from discreet.curator import Budget, Curator, Policy
from discreet.mechanisms import SparseVector, noisy_count, noisy_sum
from discreet.tables import Memory
from tests.curator.tamper import tamper

PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")
runner = CliRunner()


@pytest.fixture
def curator(tmp_path):
    people = Memory({"age": np.arange(100)}, PUBLIC)
    made = Curator.create(
        tmp_path / "people.ledger",
        people,
        Policy(budget=Budget(epsilon=2), analysts={"ann": Budget(epsilon=1)}),
    )
    made.ask(noisy_count(PUBLIC, epsilon=0.5), analyst="ann", text="SELECT COUNT(*) FROM people -- [bold]")
    made.ask(noisy_sum(PUBLIC, "age", epsilon=0.25))
    return made


def run(*arguments, code=0):
    result = runner.invoke(app, [str(a) for a in arguments], env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return result.output


def test_show_tells_who_asked_what_at_which_price(curator):
    text = run("ledger", "show", curator.ledger.path)
    assert "SELECT COUNT(*) FROM people -- [bold]" in text
    assert "ann" in text
    assert "epsilon 0.5: DiscreteLaplace(scale 2, sensitivity 1)" in " ".join(text.split())
    assert "released (charge 2)" in text
    assert len(json.loads(run("ledger", "show", curator.ledger.path, "--json", "--last", 2))) == 2


def test_nothing_that_an_analyst_wrote_commands_the_terminal_or_changes_a_name(tmp_path):
    policy = Policy(budget=Budget(epsilon=2), analysts={"[bold]ann": Budget(epsilon=1)})
    made = Curator.create(tmp_path / "people.ledger", Memory({"age": [1]}, PUBLIC), policy)
    made.ask(noisy_count(PUBLIC, epsilon=0.5), analyst="[bold]ann", text="SELECT 1 -- \x1b[2J\x1b]0;x\x07")
    shown = run("ledger", "show", made.ledger.path)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[bold]ann" in shown
    assert "[bold]ann" in run("budget", made.ledger.path)


def test_budget_shows_what_is_used_of_what(curator):
    found = json.loads(run("budget", curator.ledger.path, "--json"))
    assert [(row["of"], row["used"]) for row in found] == [("dataset", 0.75), ("ann", 0.5)]
    assert found[0]["asked"] == {"ann": {"times": 1, "alone": 0.5}, "steward": {"times": 1, "alone": 0.25}}
    assert found[0]["odometer"]["epsilon"] == 0.75
    assert "odometer: all charges together cost at most epsilon 0.75" in run("budget", curator.ledger.path)
    assert "0.75" in run("budget", curator.ledger.path)
    assert "charged for ann: 1 time, alone worth epsilon 0.5" in run("budget", curator.ledger.path)
    assert [
        row["buys"] for row in json.loads(run("budget", curator.ledger.path, "--json", "-e", "0.25"))
    ] == [5, 2]
    assert "buys at 0.25" in run("budget", curator.ledger.path, "-e", "0.25")


@pytest.mark.parametrize("key", ["", "xyz", "ab", "0" * 63])
def test_a_key_that_is_none_is_refused(curator, key):
    result = runner.invoke(app, ["ledger", "verify", str(curator.ledger.path), "--key", key])
    assert isinstance(result.exception, DiscreetError), result.exception


def test_an_empty_anchor_is_refused_and_not_left_out(curator):
    result = runner.invoke(app, ["ledger", "verify", str(curator.ledger.path), "--anchor", ""])
    assert isinstance(result.exception, DiscreetError), result.exception


def test_verify_says_what_is_wrong_and_exits_with_one(curator):
    path = curator.ledger.path
    anchor = run("ledger", "anchor", path).strip()
    assert "all intact" in run("ledger", "verify", path, "--anchor", anchor)
    assert "keep one elsewhere" in run("ledger", "verify", path)
    tamper(path, "DELETE FROM entry WHERE seq >= 4")
    found = json.loads(run("ledger", "verify", path, "--anchor", anchor, "--json", code=1))
    assert not found["whole"]
    assert "rolled back" in found["problems"][0]


def test_a_total_that_does_not_follow_from_the_charges_is_found(curator):
    from discreet.curator import books

    charge = curator.ledger.last("charge").body
    with curator.ledger.writing() as writer:  # what a steward with the key, but not honest, could write
        writer.append("charge", {**charge, "analyst": "steward"}, topic="steward")
    assert books.verify(curator.ledger) == ["the running total is not what the charges add up to"]


def test_export_is_json_lines_without_secrets(curator, tmp_path):
    lines = run("ledger", "export", curator.ledger.path).strip().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4, 5]
    run("ledger", "export", curator.ledger.path, "--out", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text().splitlines() == lines


def test_a_missing_ledger_is_a_message_not_a_traceback(tmp_path, monkeypatch, capsys):
    from discreet.app import cli

    monkeypatch.setattr("sys.argv", ["discreet", "budget", str(tmp_path / "none[0]")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "there is no ledger at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("price", "used"),
    [(["--epsilon", "1/4"], 1.0), (["-e", "0.5"], 1.25), (["--event", "event.json"], 0.85)],
)
def test_a_release_made_elsewhere_is_entered_without_the_data(curator, tmp_path, monkeypatch, price, used):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "event.json").write_text(json.dumps(acc.PureDP(epsilon=0.1).to_json()))
    assert "left" in run("ledger", "enter", curator.ledger.path, "--note", "yearbook 2019", *price)
    assert json.loads(run("budget", curator.ledger.path, "--json"))[0]["used"] == pytest.approx(used)
    assert "charged for yearbook 2019" in run("ledger", "show", curator.ledger.path)
    assert "all intact" in run("ledger", "verify", curator.ledger.path)


@pytest.mark.parametrize(
    "price",
    [
        [],
        ["-e", "1", "--rho", "1"],
        ["--delta", "1e-6"],
        ["-e", "x"],
        ["-e", "9"],
        ["-e", "0.1", "--period", "may"],
    ],
)
def test_what_cannot_be_entered_changes_nothing(curator, price):
    before = str(curator.ledger.anchor)
    result = runner.invoke(app, ["ledger", "enter", str(curator.ledger.path), "--note", "n", *price])
    assert isinstance(result.exception, DiscreetError), result.exception
    assert str(curator.ledger.anchor) == before


def test_without_its_table_a_ledger_answers_nothing_and_charges_nothing_for_it(curator):
    from discreet.curator.curator import without_data

    closed = without_data(curator.ledger.path)
    used = closed.used
    with pytest.raises(DiscreetError, match="without its table"):
        closed.ask(noisy_sum(PUBLIC, "age", epsilon=0.125))
    with pytest.raises(DiscreetError, match="without its table"):
        closed.start(SparseVector(public=PUBLIC, threshold=1, epsilon=0.125))
    assert closed.used == used


@pytest.mark.parametrize(
    "words", [["budget"], ["ledger", "show", "x", "--last", "0"], ["explain", "-1"], ["no"], ["query"]]
)
def test_what_the_parser_refuses_is_json_where_that_is_asked_for(words, monkeypatch, capsys):
    from discreet.app import cli

    monkeypatch.setattr("sys.argv", ["discreet", *words, "--json"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    told = json.loads(capsys.readouterr().out)["error"]
    assert stop.value.code == told["code"] == 2
    # only a command that charges speaks of charges
    assert told["message"].endswith(". See --help." + " Nothing was charged." * (words == ["query"]))


def test_an_error_is_json_where_that_is_asked_for(tmp_path, monkeypatch, capsys):
    from discreet.app import cli

    monkeypatch.setattr("sys.argv", ["discreet", "budget", str(tmp_path / "none"), "--json"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    told = json.loads(capsys.readouterr().out)["error"]
    assert (stop.value.code, told["code"], told["kind"]) == (2, 2, "LedgerError")
    assert "there is no ledger at" in told["message"]


def test_the_anchor_is_json_too(curator):
    assert json.loads(run("ledger", "anchor", curator.ledger.path, "--json"))["anchor"] == str(
        curator.ledger.anchor
    )
