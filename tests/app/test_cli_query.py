"""`discreet init | preview | query` on a file, as a steward and an analyst use them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from discreet import DiscreetError
from discreet.app.cli import app
from discreet.app.cli.query import _literal

runner = CliRunner()
SQL = "SELECT ward, COUNT(*) AS n FROM people GROUP BY ward"
SCHEMA = """
table = "people"
version = "1"
unit = "row"
[columns.age]
type = "number"
lower = 0
upper = 100
[columns.ward]
type = "categories"
values = ["a", "b"]
"""


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(
        pa.table({"age": [30, 40] * 500, "ward": ["a", "b"] * 500, "secret": ["x"] * 1000}), "people.parquet"
    )
    return "people.parquet"


@pytest.fixture
def ready(data, tmp_path):
    (tmp_path / "people.parquet.schema.toml").write_text(SCHEMA)
    run("init", data, "--epsilon", "1", "--delta", "1e-6", "--analyst", "ann=0.5", "--analyst", "bob")
    return data


def run(*arguments, code=0, stdin=None):
    result = runner.invoke(app, list(arguments), input=stdin, env={"COLUMNS": "120"})
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def refused(*arguments):
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == 1
    assert isinstance(result.exception, DiscreetError), result.exception  # anything else would be a traceback
    return str(result.exception)


def test_init_drafts_questions_and_reads_no_value(data, tmp_path):
    run("init", data)
    text = (tmp_path / "people.parquet.schema.toml").read_text()
    assert "columns.age" in text
    assert "columns.ward" in text
    assert '"a"' not in text
    assert "40" not in text
    assert "exists already" in refused("init", data)
    assert "there is no file 'nowhere.parquet'" in refused("init", "nowhere.parquet")


def test_a_query_on_the_shell(ready):
    text = run("query", ready, SQL, "-e", "0.25")
    assert "ward" in text
    assert "±" in text
    found = json.loads(run("query", ready, SQL, "-e", "0.25", "--json"))
    assert found["columns"] == ["ward", "n"]
    assert found["used"] == 0.25  # the second time was free
    assert found["errors"]["n"][0] == found["errors"]["n"][1]
    assert json.loads(run("query", ready, "-", "-e", "0.25", "--json", stdin=SQL))["rows"] == found["rows"]


def test_a_preview_costs_nothing(ready):
    found = json.loads(run("preview", ready, SQL, "-e", "0.25", "--json"))
    assert found["fits"] == 4
    assert found["admitted"]
    assert "what is left buys 4 of these" in run("preview", ready, SQL, "-e", "0.25")


def test_an_analyst_on_the_shell_has_their_own_budget(ready):
    run("query", ready, SQL, "-e", "0.5", "--as", "ann")
    assert "above the limit 0.5" in refused("query", ready, SQL, "-e", "0.25", "--as", "ann", "--fresh")
    assert "'eve' is not an analyst" in refused("query", ready, SQL, "-e", "0.1", "--as", "eve")


def test_a_picture_of_the_answer(ready, tmp_path):
    run("query", ready, SQL, "-e", "0.5", "--plot", "n.png")
    with Image.open(tmp_path / "n.png") as picture:
        assert picture.size[0] >= 1000


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_charge(ready):
    assert "a picture is saved as .png" in refused("query", ready, SQL, "-e", "0.5", "--plot", "n.xyz")
    assert {account["used"] for account in json.loads(run("budget", ready, "--json"))} == {0}


def test_a_picture_is_drawn_beside_json_too_and_dollars_are_no_formula(ready):
    json.loads(run("query", ready, SQL, "--epsilon", "0.1", "--json", "--plot", "bars.png"))
    assert Path("bars.png").read_bytes()[:4] == b"\x89PNG"
    assert _literal("$x$") == r"\$x\$"


def test_what_is_missing_is_named_with_the_way_out(data):
    assert "discreet init people.parquet" in refused("query", data, SQL, "-e", "1")
    assert refused("query", "people.parkett", SQL, "-e", "1").startswith("there is no file 'people.parkett'.")
    assert "the file comes first" in refused("query", SQL, data, "-e", "1")
    assert "NAME=EPSILON" in refused_init(data)


def refused_init(data):
    from pathlib import Path

    Path(data + ".schema.toml").write_text(SCHEMA)
    return refused("init", data, "--epsilon", "1", "--analyst", "ann=lots")


def test_an_undeclared_column_cannot_be_asked_for(ready):
    message = refused("query", ready, "SELECT COUNT(*) FROM people WHERE secret = 'x'", "-e", "0.1")
    assert "'secret'" in message
    assert "Nothing was charged" in message


def test_a_budget_for_each_period_on_the_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"ward": ["a", "b"] * 6, "wave": ["one", "two", "two"] * 4}), "people.parquet")
    (tmp_path / "people.parquet.schema.toml").write_text(
        SCHEMA.split("[columns.age]")[0]
        + (
            '[columns.ward]\ntype = "categories"\nvalues = ["a", "b"]\n[columns.wave]\ntype = '
            '"categories"\nvalues = ["one", "two"]\n'
        )
    )
    assert "needs a Dates column" in refused_with("init", "--epsilon", "1", "--per", "wave:month")
    assert "give --per" in refused_with("init", "--epsilon", "1", "--total", "3")
    assert "--total is an epsilon" in refused_with(
        "init", "--epsilon", "1", "--per", "wave", "--total", "lots"
    )
    run("init", "people.parquet", "--epsilon", "1", "--per", "wave")
    found = json.loads(run("query", "people.parquet", SQL, "-e", "1", "--period", "one", "--json"))
    assert found["used"] == 1
    assert "period one" in refused("query", "people.parquet", SQL, "-e", "0.5", "--period", "one")
    assert (
        json.loads(run("preview", "people.parquet", SQL, "-e", "0.5", "--period", "two", "--json"))["fits"]
        == 2
    )
    assert "'three' is not among" in refused(
        "preview", "people.parquet", SQL, "-e", "0.5", "--period", "three"
    )
    rows = json.loads(run("budget", "people.parquet.ledger", "--json"))
    assert [(row["of"], row["used"]) for row in rows] == [("period one", 1), ("any other period", 0)]
    shown = run("ledger", "show", "people.parquet.ledger")
    assert "during one" in " ".join(shown.split())
    run("ledger", "verify", "people.parquet.ledger")


def refused_with(command, *options):
    return refused(command, "people.parquet", *options)


def test_a_script_can_tell_a_spent_budget_from_bad_input(ready, monkeypatch):
    from discreet.app import cli

    for sql, epsilon, code in ((SQL, "5", 4), ("SELECT * FROM people", "0.1", 2)):
        monkeypatch.setattr("sys.argv", ["discreet", "query", ready, sql, "-e", epsilon])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == code


def test_a_budget_in_rho_and_an_analyst_with_a_delta(data, tmp_path):
    (tmp_path / "people.parquet.schema.toml").write_text(SCHEMA)
    made = json.loads(run("init", data, "--rho", "0.5", "--analyst", "ann=0.5,1e-7", "--json"))
    assert made["ledger"].endswith("people.parquet.ledger")
    rows = json.loads(run("budget", made["ledger"], "--json"))
    assert [(row["of"], row["unit"], row["delta"]) for row in rows] == [
        ("dataset", "rho", 0.0),
        ("ann", "epsilon", 1e-7),
    ]
    assert [row["limit"] for row in rows] == pytest.approx([0.5, 0.5])
    (tmp_path / "people.parquet.ledger").unlink()
    (tmp_path / "people.parquet.ledger.key").unlink()
    assert "epsilon or as rho" in refused("init", data, "--rho", "0.5", "--epsilon", "1")


def test_related_tables_are_drafted_and_found(data, tmp_path):
    pq.write_table(pa.table({"ward": ["a", "b"], "floor": ["first", "second"]}), "wards.parquet")
    run("init", data, "--related", "wards.parquet")
    text = (tmp_path / "people.parquet.schema.toml").read_text()
    assert '# data = "wards.parquet"' in text
    assert "# [tables.wards.columns.floor]" in text
    assert "first" not in text.replace("the first", "")  # no value of it
    related = (
        '[tables.wards]\ndata = "wards.parquet"\nkey = "ward"\n[tables.wards.columns.ward]\ntype = "text"\n'
    )
    related += '[tables.wards.columns.floor]\ntype = "categories"\nvalues = ["first", "second"]\n'
    (tmp_path / "people.parquet.schema.toml").write_text(SCHEMA + related)
    assert "declare related tables there" in refused("init", data, "--related", "wards.parquet")
    run("init", data, "--epsilon", "1")
    sql = "SELECT floor, COUNT(*) AS n FROM people JOIN wards ON wards.ward = people.ward GROUP BY floor"
    found = json.loads(run("query", data, sql, "-e", "0.5", "--json"))
    assert [row[0] for row in found["rows"]] == ["first", "second"]
    (tmp_path / "wards.parquet").unlink()
    assert "no such file beside" in refused("preview", data, sql, "-e", "0.5")


def test_the_ledger_is_found_by_its_data_and_analysts_by_either_name(ready):
    run("query", ready, SQL, "-e", "0.25", "--analyst", "ann")
    for command in (
        ["budget"],
        ["ledger", "show"],
        ["ledger", "verify"],
        ["ledger", "anchor"],
        ["ledger", "export"],
    ):
        assert run(*command, ready) == run(*command, f"{ready}.ledger")
    assert "not a discreet ledger" in refused("budget", f"{ready}.schema.toml")
