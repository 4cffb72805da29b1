"""Files of Excel, SPSS and Stata are tables of texts, and their labels and codebooks fill a draft."""

import datetime
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import InvalidInput, MissingExtra
from discreet.app.cli import app
from discreet.tables import draft, load, sheets

openpyxl = pytest.importorskip("openpyxl", reason="pip install 'discreet[formats]'")
pyreadstat = pytest.importorskip("pyreadstat", reason="pip install 'discreet[formats]'")

LABELS = {"sex": {1.0: "male", 2.0: "female", 9.0: "no answer"}, "children": {98.0: "do not know"}}
MISSING = {"sex": [9], "children": [98]}
ROWS = {"resp": ["a", "b", "c"], "sex": [1.0, 2.0, 9.0], "children": [0.0, 98.0, 2.5]}


def excel(path: Path, *rows) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


@pytest.fixture
def spss(tmp_path) -> Path:
    path = tmp_path / "survey.sav"
    pyreadstat.write_sav(pd.DataFrame(ROWS), str(path), variable_value_labels=LABELS, missing_ranges=MISSING)
    return path


def test_cells_become_texts_each_by_itself(tmp_path, spss):
    day = datetime.date(2025, 12, 31)
    path = excel(
        tmp_path / "a.xlsx", ["id", "x", "day", "yes"], [1, 2.5, day, True], ["k.A.", 3.0, "?", None]
    )
    assert sheets.read(path).to_pydict() == {
        "id": ["1", "k.A."],
        "x": ["2.5", "3"],
        "day": ["2025-12-31", "?"],
        "yes": ["true", None],
    }
    # codes that SPSS knows as missing stay what they are: the schema says which are
    assert sheets.read(spss).to_pydict() == {
        "resp": ["a", "b", "c"],
        "sex": ["1", "2", "9"],
        "children": ["0", "98", "2.5"],
    }
    pyreadstat.write_dta(pd.DataFrame(ROWS), str(tmp_path / "survey.dta"))
    assert sheets.read(tmp_path / "survey.dta")["sex"].to_pylist() == ["1", "2", "9"]


def test_a_file_of_spss_drafts_its_schema_and_is_asked(tmp_path, spss):
    text = draft(spss)
    assert (
        '[columns.sex]\ntype = "categories"\nvalues = [1, 2]   # male, female\nmissing = [9]   # no answer'
        in text
    )
    assert "# missing = [98]   # do not know" in text
    text = text.replace('# unit = "row"', 'unit = "row"').replace(
        "# [columns.children]", "[columns.children]"
    )
    text = text.replace(
        '# type = "number"\n# lower = \n# upper = \n', 'type = "number"\nlower = 0\nupper = 9\n'
    )
    text = text.replace("# missing = [98]", "missing = [98]")
    schema = tmp_path / "survey.sav.schema.toml"
    schema.write_text(text)
    assert dict(load(schema).schema)["sex"] == dp.Categories([1, 2], missing=[9])
    people = dp.open(spss, schema=schema, budget=dp.Budget(epsilon=1), ledger=":memory:")
    for sql, rows in (
        ("SELECT sex, COUNT(*) AS n FROM survey GROUP BY sex", [[1, 1], [2, 1]]),
        ("SELECT SUM(children) AS n FROM survey", [[2.5]]),
    ):
        query = dp.query.Query(sql=sql, public=people.public, epsilon=1)
        assert query._without_noise(people.curator.source, 1) == rows


def test_a_codebook_in_excel_fills_the_draft_and_its_questions_are_not_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("survey.csv").write_text("sex,age\n1,30\n2,40\n")
    excel(
        Path("codes.xlsx"),
        ["Variable", "Value", "Label", "Missing"],
        ["sex", 1, "m\nale", None],
        ["sex", 9, "-", "yes"],
    )
    answers = "\n".join(["n", "0", ".", "", "", "number", "0", "120", "y", ""]) + "\n"
    result = CliRunner().invoke(app, ["init", "survey.csv", "-i", "--codebook", "codes.xlsx"], input=answers)
    assert result.exception is None, result.output
    assert dict(load(Path("survey.csv.schema.toml")).schema) == {
        "sex": dp.Categories([1], missing=[9]),
        "age": dp.Bounds(0, 120),
    }
    # and the steward sees at once how the file fits
    assert "does not convert" in result.output


def test_what_cannot_be_read_is_refused_by_name(tmp_path, monkeypatch):
    (tmp_path / "a.xlsx").write_bytes(b"PK no workbook with a secret")
    for name in ("a.xlsx", "a.sav", "a.dta"):
        (tmp_path / name).write_bytes(b"PK no table with a secret")
        with pytest.raises(InvalidInput, match=f"'{name}' cannot be read as") as refusal:
            sheets.read(tmp_path / name)
        assert "secret" not in str(refusal.value)
    with pytest.raises(InvalidInput, match="must name the columns, each once"):
        sheets.read(excel(tmp_path / "b.xlsx", ["a", None], [1, 2]))
    with pytest.raises(InvalidInput, match="is no codebook"):
        draft(excel(tmp_path / "d.xlsx", ["a"], [1]), codebook=excel(tmp_path / "c.xlsx", ["a"], [1]))
    for package, name in (("openpyxl", "c.xlsx"), ("pyreadstat", "a.sav")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtra, match=r"discreet\[formats\]"):
            sheets.read(tmp_path / name)
