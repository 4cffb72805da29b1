"""The shell as a newcomer, a steward and an analyst meet it: help, suggestions, its own words, check, policy,
exports."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import DiscreetError
from discreet._registry import from_json
from discreet.app import cli
from discreet.app.cli import app, told
from discreet.app.cli.parser import Invocation
from discreet.curator import Ledger
from discreet.curator.backups import Export

runner = CliRunner()
SQL = "SELECT ward, COUNT(*) AS n FROM people GROUP BY ward"
SCHEMA = """
table = "people"
version = "1"
[unit]
column = "id"
rows = 2
groups = 2
[columns.age]
type = "number"
lower = 0
upper = 35
[columns.ward]
type = "categories"
values = ["a", "b"]
"""


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(
        pa.table(
            {
                "id": [i // 4 for i in range(1000)],
                "age": ["30", "40", "x", None] * 250,
                "ward": ["a", "b"] * 500,
            }
        ),
        "people.parquet",
    )
    (tmp_path / "people.parquet.schema.toml").write_text(SCHEMA)
    return "people.parquet"


@pytest.fixture
def ready(data):
    run("init", data, "--epsilon", "2", "--delta", "1e-6", "--analyst", "ann=0.5")
    return data


def run(*arguments, code=0):
    result = runner.invoke(app, list(arguments), env={"COLUMNS": "120"})
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def refused(*arguments):
    result = runner.invoke(app, list(arguments))
    assert isinstance(result.exception, DiscreetError), (result.output, result.exception)
    return str(result.exception)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_of_commands_says_what_each_command_says_of_itself(name):
    assert cli.load(name).help == cli.COMMANDS[name].help
    listed = " ".join(runner.invoke(app, ["--help"], env={"COLUMNS": "400"}).output.split())
    assert " ".join(cli.COMMANDS[name].help.split("\n\n")[0].split()) in listed


def test_help_imports_no_engine():
    code = (
        "import sys\nfrom discreet.app.cli import app\nfrom typer.testing import CliRunner\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print([m for m in ('numpy', 'pyarrow', 'duckdb', 'sqlglot', 'scipy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_query_loads_neither_pandas_nor_scipy(ready):
    code = (
        "import sys\nfrom discreet.app.cli import app\nfrom typer.testing import CliRunner\n"
        f"assert CliRunner().invoke(app, ['query', {ready!r}, {SQL!r}, '-e', '0.1']).exit_code == 0\n"
        "print([m for m in ('pandas', 'scipy', 'torch', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_bare_discreet_helps_and_a_misspelt_command_is_guessed():
    assert "query" in run()
    result = runner.invoke(app, ["querry"])
    assert result.exit_code == 2
    assert "Did you mean 'query'" in result.output
    assert run("version").startswith("discreet ")
    assert "--install-completion" in run("--help")


def shell(*arguments):
    """What `discreet` prints of an error: on standard error, without the name of the command."""
    invocation = Invocation()
    with pytest.raises(DiscreetError) as raised:
        app(list(arguments), obj=invocation)
    return told(raised.value, invocation)


def test_messages_speak_the_words_of_the_shell(ready):
    words = shell("query", ready, SQL)
    assert "--epsilon 0.1" in words
    assert "--within 50" in words
    assert "epsilon=" not in words
    assert "insist: --large-epsilon." in shell("query", ready, SQL, "-e", "30")
    assert shell("query", ready, SQL, "-e", "0.1", "--rows", "0").startswith("--rows must be an integer")
    assert "declare size = ... in the schema file, or insist: --large-delta." in shell(
        "policy", ready, "--delta", "0.1"
    )
    assert "or change the budgets with discreet policy." in shell("init", ready, "--epsilon", "1")
    assert "change_policy" not in shell("init", ready, "--epsilon", "1")
    # what is stated of a budget is no option to give
    assert "(delta=0)" in shell("query", ready, SQL, "-e", "1", "--as", "ann")
    command = Invocation(
        options=frozenset({"other", "delta", "participations", "horizon", "restart", "epsilon"})
    )
    assert command.words("give other=True or delta=...") == "give --other or --delta ..."
    assert command.words("may count, participations=... Nothing") == "may count, --participations ... Nothing"
    assert command.words("Give horizon=, or restart=.") == "Give --horizon, or --restart."
    assert command.words("large_delta=True, Budget(epsilon=1)") == "large_delta=True, Budget(epsilon=1)"


def test_the_analyst_reads_their_own_account_on_the_shell(ready):
    run("query", ready, SQL, "-e", "1")
    told = json.loads(
        run("query", ready, "SELECT COUNT(*) AS n FROM people", "-e", "0.1", "--as", "ann", "--json")
    )
    assert told["used"] == pytest.approx(0.1)
    assert told["remaining"] == pytest.approx(0.4)
    (row,) = json.loads(run("budget", ready, "--as", "ann", "--json"))
    assert row["of"] == "ann"
    assert row["used"] == pytest.approx(0.1)
    assert row["asked"] == {}


def test_no_ledger_yet_is_said_in_these_words(data):
    assert "there is no ledger beside 'people.parquet' yet" in str(refused_by_argument("budget", data))


def refused_by_argument(*arguments):
    result = runner.invoke(app, list(arguments))
    assert isinstance(result.exception, DiscreetError), (result.output, result.exception)
    return result.exception


def test_the_schema_option_is_repeated(data, tmp_path):
    result = runner.invoke(app, ["init", data, "--schema", "other.toml"])
    assert "discreet init people.parquet --schema other.toml --epsilon 1" in " ".join(result.output.split())


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_charge(ready, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else real(name, *a)
    )
    assert "--plot needs matplotlib" in refused("query", ready, SQL, "-e", "0.1", "--plot", "x.png")
    assert not [e for e in Ledger(_path(ready)).entries() if e.kind == "charge"]


def _path(data):
    return Path(data + ".ledger")


def test_the_steward_may_look_and_it_is_noted(ready):
    body = json.loads(run("check", ready, "--json"))
    assert body["private"] is False
    assert body["columns"]["age"] == {
        "missing": "20 to 50%",
        "unreadable": "20 to 50%",
        "outside": "20 to 50%",
    }
    assert body["columns"]["ward"] == {"missing": "none", "unreadable": "none", "outside": "none"}
    assert body["people"]["2 rows (the declared limit)"] == "over half"
    assert body["people"]["5 rows"] == "none"
    assert body["groups"].keys() == {"ward"}
    noted = [entry for entry in Ledger(_path(ready)).entries() if entry.kind == "looked"]
    assert len(noted) == 1
    assert "looked at the data" in " ".join(run("ledger", "show", ready).split())
    assert run("ledger", "verify", ready)


def test_a_look_tells_who_is_in_more_groups_than_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{person},{ward}" for person in range(20) for ward in ("ABC" if person < 3 else "AAB")]
    (tmp_path / "p.csv").write_text("id,ward\n" + "\n".join([*lines, "19,", "19,unlisted"]) + "\n")
    schema = 'table = "p"\n[unit]\ncolumn = "id"\nrows = 5\n{}[columns.ward]\ntype = "categories"\n'
    values = 'values = ["A", "B", "C"]\n'
    (tmp_path / "p.csv.schema.toml").write_text(schema.format("groups = 2\n") + values)
    assert json.loads(run("check", "p.csv", "--json"))["groups"] == {"ward": "5 to 20%"}
    text = " ".join(run("check", "p.csv").split())
    assert "people in more than 2 groups (the declared limit) of ward: 5 to 20%" in text
    assert "rows are counted per person" in text
    (tmp_path / "p.csv.schema.toml").write_text(schema.format("") + values)
    assert json.loads(run("check", "p.csv", "--json"))["groups"] == {"ward": "none"}


def test_a_look_warns_of_dates_whose_months_a_limit_cuts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # everybody comes in two months of one year; a day outside the bounds counts as the nearest of them
    days = ("2024-01-05", "2024-01-09", "2024-02-01", "1999-01-01", "not a day")
    lines = [f"{person},{day}" for person in range(20) for day in days]
    (tmp_path / "p.csv").write_text("id,seen\n" + "\n".join(lines) + "\n")
    schema = 'table = "p"\n[unit]\ncolumn = "id"\nrows = 5\ngroups = {}\n[columns.seen]\ntype = "date"\n'
    bounds = 'lower = "2024-01-01"\nupper = "2024-12-31"\n'
    (tmp_path / "p.csv.schema.toml").write_text(schema.format(1) + bounds)
    shares = json.loads(run("check", "p.csv", "--json"))["groups"]
    assert shares == {"the years of seen": "none", "the months of seen": "over half"}
    text = " ".join(run("check", "p.csv").split())
    assert "people in more than 1 group (the declared limit) of the months of seen: over half" in text
    assert "GROUP BY over the months of seen counts a person in 1 of their groups" in text
    (tmp_path / "p.csv.schema.toml").write_text(schema.format(2) + bounds)
    assert "leaves them out" not in run("check", "p.csv")


def test_a_look_tells_shares_and_no_value(ready):
    text = run("check", ready)
    assert not any(value in text for value in ("30", "40", "35"))


def test_budgets_are_changed_with_a_warning(ready):
    result = runner.invoke(app, ["policy", ready, "--analyst", "bob=1,1e-8", "--epsilon", "3"])
    assert result.exit_code == 0, result.exception
    assert "without looking at answers" in " ".join(result.output.split())
    shown = json.loads(run("policy", ready, "--json"))
    assert from_json(shown["budget"]) == dp.Budget(epsilon=3.0, delta=1e-6)
    assert from_json(shown["analysts"]["bob"]) == dp.Budget(epsilon=1.0, delta=1e-8)
    assert shown["changed"] is False
    run("query", ready, SQL, "-e", "0.5", "--as", "bob")
    run("policy", ready, "--remove", "bob")
    assert "not an analyst" in refused("query", ready, SQL, "-e", "0.5", "--as", "bob")
    assert run("ledger", "verify", ready)


def test_an_analyst_is_named_once(data):
    """The last of two budgets counted, without a word."""
    assert "more than once" in refused(
        "init", data, "--epsilon", "3", "--analyst", "ann=1", "--analyst", "ann=2"
    )


def test_an_analyst_is_not_removed_and_added_at_once(ready):
    told = refused("policy", f"{ready}.ledger", "--remove", "ann", "--analyst", "ann=1")
    assert "named more than once" in told
    assert "above zero" in refused("policy", f"{ready}.ledger", "--analyst", "eve=-1")
    assert "ann: Budget(epsilon=0.5)" in run("policy", f"{ready}.ledger")


def test_a_look_is_recorded_in_the_ledger_that_was_named_or_not_taken(ready):
    assert "typo.ledger" in refused("check", ready, "--ledger", "typo.ledger")


def test_an_export_is_verified_and_a_changed_one_is_not(ready, tmp_path):
    run("query", ready, SQL, "-e", "0.5", "--as", "ann")
    run("ledger", "export", ready, "--out", "books.jsonl")
    run("ledger", "verify", "books.jsonl")
    lines = (tmp_path / "books.jsonl").read_text().splitlines()
    charge = next(i for i, line in enumerate(lines) if '"kind": "charge"' in line)
    changed = [*lines[:charge], lines[charge].replace('"ann"', '"amy"'), *lines[charge + 1 :]]
    (tmp_path / "changed.jsonl").write_text("\n".join(changed))
    run("ledger", "verify", "changed.jsonl", code=1)
    (tmp_path / "short.jsonl").write_text("\n".join(lines[:-1]))
    anchor = str(Export(tmp_path / "books.jsonl").anchor)
    run("ledger", "verify", "short.jsonl", "--anchor", anchor, code=1)
    (tmp_path / "dropped.jsonl").write_text("\n".join(lines[:charge] + lines[charge + 1 :]))
    run("ledger", "verify", "dropped.jsonl", code=1)


def test_ledger_and_key_are_for_their_owner_only(ready):
    for name in (ready + ".ledger", ready + ".ledger.key"):
        from pathlib import Path

        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o600


def test_an_analyst_sees_their_own_entries_and_no_total_of_others(ready):
    run("policy", ready, "--analyst", "bob=0.5")
    other = "SELECT COUNT(*) AS n FROM people"
    run("query", ready, other, "--epsilon", "0.3")
    run("query", ready, SQL, "--epsilon", "0.1", "--as", "ann")
    run("query", ready, other, "--epsilon", "0.3", "--as", "bob")
    entries = json.loads(run("ledger", "show", ready, "--as", "ann", "--json"))
    assert [(e["kind"], e["body"]["analyst"]) for e in entries] == [("charge", "ann"), ("release", "ann")]
    assert all(not {"spent", "first"} & e["body"].keys() for e in entries), (
        "what all have spent is not ann's to see"
    )
    assert "own" in entries[0]["body"]
    assert other not in run("ledger", "show", ready, "--as", "ann").replace("\n", " ")
    assert [row["of"] for row in json.loads(run("budget", ready, "--as", "ann", "--json"))] == ["ann"]
    assert "is not an analyst" in refused("ledger", "show", ready, "--as", "zoe")


@pytest.mark.parametrize("arguments", [(), ("query",), ("ledger", "show"), ("budget",)])
def test_a_flag_does_not_look_as_if_it_wanted_a_value(arguments):
    text = run(*arguments, "--help")
    assert ("--json" if arguments else "--version") in text
    assert "<bool>" not in text


def test_a_repeat_says_that_it_is_free_and_long_answers_where_the_rest_is(ready):
    first = runner.invoke(app, ["query", ready, SQL, "-e", "0.1", "--as", "ann"])
    assert "left: 0.4" in first.output
    assert "free" not in first.output
    again = runner.invoke(app, ["query", ready, SQL, "-e", "0.1", "--as", "ann"])
    assert "asked before: served from the store, free; used so far: 0.1; left: 0.4" in again.output
    assert again.stdout == first.stdout
    # what somebody else has asked is charged to an analyst with a budget of their own: it is not free
    assert json.loads(run("query", ready, SQL, "-e", "0.1", "--json"))["free"]
    run("query", ready, SQL, "-e", "0.2")
    assert not json.loads(run("query", ready, SQL, "-e", "0.2", "--as", "ann", "--json"))["free"]
    fresh = runner.invoke(app, ["query", ready, SQL, "-e", "0.1", "--as", "ann", "--fresh"])
    assert "free" not in fresh.output
    assert "left: 0.1" in fresh.output
    by_day = "SELECT age * 4 AS a, COUNT(*) AS n FROM people GROUP BY age * 4"
    assert "more rows: --json has all" in run("query", ready, by_day, "-e", "0.1")


def test_a_number_that_is_none_is_shown_with_the_way_to_write_it(ready):
    said = " ".join(
        runner.invoke(app, ["query", ready, SQL, "--epsilon", "0,5"]).output.replace("│", "").split()
    )
    assert "'0,5' is no number: write 0.5" in said
    said = runner.invoke(app, ["query", ready, SQL, "--epsilon=abc"]).output
    assert "'abc' is no number." in said


def test_only_near_options_are_proposed(ready):
    said = runner.invoke(app, ["query", ready, SQL, "--epsilonn", "0.5"]).output
    assert "--epsilon" in said
    assert "--json" not in said
    assert "--plot" not in said


def test_a_data_file_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "there is no file 'patient.csv'" in refused("budget", "patient.csv")
    assert "no such file" in refused("collect", "survey.toml")


def test_a_draft_that_is_there_says_how_to_begin_again_and_what_comes_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.csv").write_text("id,ward\n1,A\n")
    said = runner.invoke(app, ["init", "q.csv"]).output
    assert "discreet check q.csv" in said
    assert "--epsilon 1 --delta 1e-6" in said
    for option in ("--look", "-i"):
        assert "delete that file first" in refused("init", "q.csv", option)


def test_the_schema_file_beside_the_data_is_named_where_none_is_given(ready):
    with pytest.raises(dp.InvalidInput, match=r"give schema='.*\.schema\.toml'"):
        dp.open(ready)
