"""`discreet report`, a page of everything that was released, and `--out`, an answer as a file."""

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import InvalidInput
from discreet.app.cli import app
from discreet.app.cli.releases import report_html
from discreet.explaining.words import out_of
from discreet.mechanisms import noisy_count

SQL = "SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward"
run = CliRunner().invoke


@pytest.fixture
def stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stays.csv").write_text("ward\n" + "=A\nB\nC\n" * 200, "utf-8")
    Path("stays.csv.schema.toml").write_text(
        'table = "stays"\nversion = "7"\nunit = "row"\n[columns.ward]\ntype = "categories"\nvalues = ["=A", "B", "<b>C"]\n'
    )
    assert (
        run(app, ["init", "stays.csv", "--epsilon", "3", "--delta", "1e-6", "--analyst", "ann=1"]).exit_code
        == 0
    )


def test_a_report_has_questions_answers_spending_and_what_it_means(stays):
    assert run(app, ["query", "stays.csv", SQL, "--epsilon", "0.25", "--as", "ann"]).exit_code == 0
    people = dp.open("stays.csv", schema="stays.csv.schema.toml")
    answer = people.sql("SELECT COUNT(*) AS n FROM stays WHERE ward = 'B'", epsilon=0.5)
    assert run(app, ["report", "stays.csv"]).exception is None
    page = Path("report.html").read_text("utf-8")
    for text in (SQL, "ward = &#x27;B&#x27;", "asked by ann", "asked by steward", f">{answer['n'][0]:,} ± "):
        assert text in page, text
    assert "<td>epsilon 0.75 of 3</td>" in page
    assert "<td>epsilon 0.25 of 1</td>" in page
    assert str(people.ledger.anchor) in page
    assert "stays, version 7" in page
    assert "&lt;b&gt;C" in page
    assert "<b>C" not in page
    assert page.count("<svg") >= 2
    for drawn in ("chart", "bar", "whisker", "value"):
        assert f'class="{drawn}"' in page
        assert f".{drawn} {{" in page, "without its style a chart is black"
    assert page.count("its price is kept by construction") == 2
    assert "<script" not in page
    # the label, in words what was measured, and who has spent what
    risk = people.explain().risk
    assert f"<td>A belief of 50 in 100 becomes at most</td><td>{out_of(risk.after(0.5))}</td>" in page
    assert "<h3>Entry 2: n by ward</h3>" in page
    assert "3 groups, all of them public" in page
    assert "<td>ann</td><td>1</td><td>epsilon 0.25</td>" in page
    assert people.ledger.genesis.body["key"] in page


def test_a_report_says_what_became_of_every_charge(stays):
    people = dp.open("stays.csv", schema="stays.csv.schema.toml")
    count = people.ask(noisy_count(people.public, epsilon=0.5))
    watch = people.watch(50, epsilon=0.5, positives=1)
    watch.ask("ward = 'B'")
    people.sql(SQL, epsilon=0.25)
    failing = people.curator.charged[-1]
    people.curator.enter(dp.accounting.PureDP(epsilon=0.125), "in the yearbook of 1974")
    with people.ledger.writing() as writer:
        writer.append("failed", {"charge": failing, "analyst": "steward"})
    page = report_html(Path("stays.csv.ledger"))
    for text in (
        f"{count.value} ± {count.error():g} (95% of errors are within ±)",
        "ThresholdAnswer(above=True",
        "in the yearbook of 1974",
        "It failed: nothing was released, and the charge stays.",
        "epsilon 0.125; its price is as it was entered by hand",
        "as that of a model or of a release made elsewhere",
    ):
        assert text in page, text


def test_a_report_costs_nothing_needs_no_key_and_names_what_has_no_value(stays):
    Path("stays.csv.ledger.key").unlink()
    before = Path("stays.csv.ledger").read_bytes()
    assert run(app, ["report", "stays.csv.ledger", "--out", "r.html"]).exception is None
    assert "Nothing." in Path("r.html").read_text("utf-8")
    assert Path("stays.csv.ledger").read_bytes() == before
    for name, match in (
        ("r.html", "exists already"),
        ("r.txt", "an .html, a .pdf or"),
        ("stays.csv.ledger", "an .html"),
    ):
        assert match in str(run(app, ["report", "stays.csv", "--out", name]).exception)


def test_an_answer_is_written_with_the_ends_of_its_intervals(stays):
    asked = run(app, ["query", "stays.csv", SQL, "--epsilon", "1", "--out", "a.csv", "--json"])
    assert asked.exception is None, asked.exception
    rows = list(csv.reader(Path("a.csv").read_text("utf-8-sig").splitlines()))
    assert rows[0] == ["ward", "n", "n_low", "n_high"]
    # no spreadsheet computes a group's name
    assert [row[0] for row in rows[1:]] == ["'=A", "B", "<b>C"]
    assert all(float(low) < float(n) < float(high) for _, n, low, high in rows[1:])


@pytest.mark.parametrize(
    ("name", "match"), [("a.txt", "a .csv or an .xlsx"), ("stays.csv", "never overwritten")]
)
def test_a_file_that_cannot_be_written_is_refused_before_the_charge(stays, name, match):
    refused = run(app, ["query", "stays.csv", SQL, "--epsilon", "1", "--out", name])
    assert isinstance(refused.exception, InvalidInput)
    assert match in str(refused.exception)
    assert dp.open("stays.csv", schema="stays.csv.schema.toml").spent == 0


def test_an_answer_is_written_for_excel(stays):
    openpyxl = pytest.importorskip("openpyxl", reason="pip install 'discreet[formats]'")
    assert run(app, ["query", "stays.csv", SQL, "--epsilon", "1", "--out", "a.xlsx"]).exception is None
    rows = list(openpyxl.load_workbook("a.xlsx").active.values)
    assert rows[0] == ("ward", "n", "n_low", "n_high")
    assert rows[1][0] == "'=A"


def test_a_report_for_excel_has_a_sheet_for_each_answer(stays):
    openpyxl = pytest.importorskip("openpyxl", reason="pip install 'discreet[formats]'")
    people = dp.open("stays.csv", schema="stays.csv.schema.toml")
    answer = people.sql(SQL, epsilon=0.5)
    people.ask(noisy_count(people.public, epsilon=0.25))
    # a name like that of the end of an interval
    people.sql("SELECT COUNT(*) AS n, 2 * COUNT(*) AS n_low FROM stays", epsilon=0.5)
    charges = [entry.seq for entry in people.ledger.entries(kind="charge")]
    assert run(app, ["report", "stays.csv", "--out", "all.xlsx"]).exception is None
    book = openpyxl.load_workbook("all.xlsx")
    assert book.sheetnames == [f"entry {charges[0]}", f"entry {charges[2]}"]
    rows = list(book.worksheets[0].values)
    assert [row[1] for row in rows] == ["n", *answer["n"]]
    names, numbers = book.worksheets[1].values
    assert names == ("n", "n_low", "n_high", "n_low", "n_low_low", "n_low_high")
    assert numbers[3] == 2 * numbers[0]


def test_a_name_with_a_character_that_no_sheet_holds_does_not_stop_the_report(stays):
    openpyxl = pytest.importorskip("openpyxl", reason="pip install 'discreet[formats]'")
    people = dp.open("stays.csv", schema="stays.csv.schema.toml")
    people.sql('SELECT COUNT(*) AS "a\x1bb" FROM stays', epsilon=0.5)
    assert run(app, ["report", "stays.csv", "--out", "all.xlsx"]).exception is None
    (sheet,) = openpyxl.load_workbook("all.xlsx").worksheets
    assert next(sheet.values)[0] == "a\\x1bb"
