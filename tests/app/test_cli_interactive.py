"""`discreet init --interactive`: the draft's questions, asked one by one."""

import pytest
from typer.testing import CliRunner

from discreet import Bounds, Categories, InvalidInput
from discreet.app.cli import app
from discreet.tables import load

runner = CliRunner()
ANSWERS = ["y", "id", "5", "2", "1000", ",", "", "", "number", "0", "120", "y", "98, 99, k.A."]
ANSWERS += ["number", "abc", "30", "250", "n", "categories", "A, B", "none"]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("Alter;Größe cm;ward;id\n34;170,5;A;1\n40;180,5;B;1\n", encoding="utf-8")
    return path


def run(table, *more, answers=ANSWERS):
    return runner.invoke(app, ["init", str(table), *more], input="\n".join(answers) + "\n")


def test_the_answers_make_a_schema_with_which_the_table_is_opened_and_asked(table):
    result = run(table, "--delimiter", ";", "--interactive")
    assert result.exit_code == 0, result.output
    assert "'abc' is not an answer" in result.output
    assert "once there is a budget, discreet suggest finds a narrower one, for a price" in result.output
    public = load(table.with_name("p.csv.schema.toml"))
    assert dict(public.schema)["Alter"] == Bounds(0, 120, missing=(98, 99, "k.A."))
    assert dict(public.schema)["Größe cm"] == Bounds(30, 250, nullable=False)
    assert dict(public.schema)["ward"] == Categories(["A", "B"])
    assert (public.unit.column, public.unit.rows, public.unit.groups, public.size) == ("id", 5, 2, 1000)
    assert runner.invoke(app, ["init", str(table), "--epsilon", "1"]).exit_code == 0
    asked = runner.invoke(
        app, ["query", str(table), "SELECT ward, COUNT(*) AS n FROM p GROUP BY ward", "-e", "1"]
    )
    assert asked.exit_code == 0, asked.output


@pytest.mark.parametrize("look", [False, True])
def test_that_the_draft_was_made_from_values_is_marked_and_noted_in_the_ledger(table, look):
    result = run(table, "--delimiter", ";", "-i", *(["--look"] if look else []))
    assert result.exit_code == 0, result.output
    text = table.with_name("p.csv.schema.toml").read_text(encoding="utf-8")
    assert ("looked = true" in text, "no value was read" in text) == (look, not look)
    assert runner.invoke(app, ["init", str(table), "--epsilon", "1"]).exit_code == 0
    shown = runner.invoke(app, ["ledger", "show", str(table), "--json"]).output
    assert ("discreet init --look" in shown) == look


def test_bounds_the_wrong_way_round_write_nothing(table):
    answers = ["n", "0", ".", "", "", "number", "120", "0", "y", "", "none", "none", "none"]
    result = run(table, "-i", "--delimiter", ";", answers=answers)
    assert isinstance(result.exception, InvalidInput)
    assert not table.with_name("p.csv.schema.toml").exists()


def test_a_schema_that_is_there_is_not_asked_about_again(table):
    assert run(table, "--delimiter", ";").exit_code == 0
    result = run(table, "--interactive")
    assert isinstance(result.exception, InvalidInput)
    assert "exists already" in str(result.exception)


def test_no_value_of_the_table_is_in_what_is_written_or_shown(table):
    table.write_text("Alter;Größe cm;ward;id\n77777;66666;Xanthippe;55555\n", encoding="utf-8")
    result = run(table, "--delimiter", ";", "-i")
    text = table.with_name("p.csv.schema.toml").read_text(encoding="utf-8")
    for value in ("77777", "66666", "Xanthippe", "55555"):
        assert value not in result.output + text


def test_wrong_answers_are_asked_again_with_the_form_that_is_wanted(table):
    answers = [
        "y",
        "idd",
        "id",
        "5",
        "2",
        "1000",
        "komma",
        ",",
        "dd.mm.yyyy",
        "%d.%m",
        "%d.%m.%Y",
        "",
        "none",
        "none",
    ]
    answers += ["categories", "A;B", "n", "A, B", "none"]
    result = run(table, "--delimiter", ";", "-i", answers=answers)
    assert result.exit_code == 0, result.output
    assert "Did you mean 'id'?" in result.output
    assert "It is . or ," in result.output
    assert "'dd.mm.yyyy' is not an answer to that. A format has %d" in result.output
    assert "'%d.%m' is not an answer to that." in result.output
    assert "values are separated by commas" in result.output
    text = table.with_name("p.csv.schema.toml").read_text(encoding="utf-8")
    assert dict(load(text).schema)["ward"] == Categories(["A", "B"])
    assert 'dates = ["%d.%m.%Y"]' in text


def test_digits_that_are_no_number_here_are_asked_again(table):
    """A superscript is a digit to Python, and 007 no number of TOML: both ended with all answers lost."""
    answers = [*ANSWERS]
    answers[4:5] = ["²", "1000"]
    answers[10:10] = ["007"]
    result = run(table, "--delimiter", ";", "--interactive", answers=answers)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "'²' is not an answer" in result.output
    assert "'007' is not an answer" in result.output


def test_yes_and_no_and_the_codes_of_missing_values_are_asked_again(table):
    """ "ja" got "invalid input" alone; the type of the next column was taken for a code."""
    answers = [
        "ja",
        "n",
        "0",
        ".",
        "",
        "",
        "number",
        "0",
        "120",
        "",
        "categories",
        "98, n/a",
        "none",
        "none",
        "none",
    ]
    result = run(table, "--delimiter", ";", "-i", answers=answers)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "'ja' is not an answer to that. Write y or n." in result.output
    assert "'categories' is not an answer to that. Write the codes as they stand in the file" in result.output
    schema = dict(load(table.with_name("p.csv.schema.toml")).schema)
    assert schema["Alter"] == Bounds(0, 120, missing=[98, "n/a"])


def test_a_value_with_a_semicolon_may_be_meant(table):
    answers = ["n", "0", ".", "", "", "none", "none", "categories", "A;B", "y", "none"]
    assert run(table, "--delimiter", ";", "-i", answers=answers).exit_code == 0
    assert dict(load(table.with_name("p.csv.schema.toml")).schema)["ward"] == Categories(["A;B"])


def test_ending_early_writes_nothing_and_says_so(table):
    result = run(table, "--delimiter", ";", "-i", answers=["y", "id", "5"])
    assert isinstance(result.exception, InvalidInput)
    assert "Nothing was written" in str(result.exception)
    assert not table.with_name("p.csv.schema.toml").exists()


def test_the_encoding_and_words_for_yes_and_no_are_asked_for(table):
    table.write_bytes("Größe;smoker;id\n5 cm;Jö;1\n6 cm;nein;2\n".encode("cp1252"))
    answers = ["n", "0", ".", "", "y", "utf-16", "", "jö", "nein", "cm", ""]
    answers += ["number", "0", "9", "", "", "boolean", "", "", "none"]
    result = run(table, "-i", "--delimiter", ";", answers=answers)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "'utf-16' is not an answer" in result.output
    text = table.with_name("p.csv.schema.toml").read_text(encoding="utf-8")
    # from the first line, which is not UTF-8
    assert 'encoding = "cp1252"' in text
    assert 'true = ["jö"]\nfalse = ["nein"]\nstrip = ["cm"]\ntrim = true' in text
    assert runner.invoke(app, ["init", str(table), "--epsilon", "9"]).exit_code == 0
    asked = runner.invoke(
        app, ["query", str(table), "SELECT COUNT(*) AS n FROM p WHERE smoker", "-e", "9", "--json"]
    )
    assert asked.exit_code == 0, asked.output
