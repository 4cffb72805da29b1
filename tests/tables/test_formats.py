"""CSV files as they are written elsewhere: semicolons, decimal commas, several kinds of dates, umlauts in the
header."""

import gzip
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import InvalidInput
from discreet.app.cli import app
from discreet.tables import Memory, connect, draft, load
from discreet.tables.drafting import draft_text, look
from discreet.tables.files import Format, format_of
from discreet.tables.fit import within

TEXT = """Person Nr;Größe cm;Gewicht;Aufnahme
1;180,5;1.080,5;03.01.2026
1;170;80;2026-01-05
2;abc;70,25;1/5/2026
3;165,5;;31.12.2025
"""
SCHEMA = """
table = "besuche"
[format]
delimiter = ";"
decimal = ","
thousands = "."
dates = ["%d.%m.%Y", "%Y-%m-%d"]
[unit]
column = "Person Nr"
rows = 2
[columns."Größe cm"]
type = "number"
lower = 0
upper = 300
[columns.Gewicht]
type = "number"
lower = 0
upper = 2000
[columns.Aufnahme]
type = "date"
lower = "2025-01-01"
upper = "2026-12-31"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "besuche.csv").write_text(TEXT, encoding="utf-8")
    (tmp_path / "besuche.csv.schema.toml").write_text(SCHEMA, encoding="utf-8")
    return tmp_path


def exact(session, sql):
    query = dp.query.Query(sql=sql, public=session.public, epsilon=1)
    return query._without_noise(session.curator.source, 1)


def test_numbers_and_dates_are_read_as_they_are_written(folder):
    visits = dp.open(
        "besuche.csv", schema="besuche.csv.schema.toml", budget=dp.Budget(epsilon=1), ledger=":memory:"
    )
    assert exact(visits, 'SELECT SUM("Größe cm") AS s, SUM(Gewicht) AS g FROM besuche') == [[516.0, 1230.75]]
    assert exact(visits, "SELECT COUNT(Aufnahme) AS n FROM besuche") == [[3]]
    assert exact(visits, "SELECT COUNT(*) AS n FROM besuche WHERE Aufnahme >= '2026-01-03'") == [[2]]


@pytest.mark.parametrize(
    ("formats", "days"),
    [
        (["%d.%m.%Y"], [None, None, None, "2020-01-31", "2020-02-01"]),
        (["%d.%m.%Y", "%d.%m.%y"], ["2020-01-31", "1999-02-01", None, "2020-01-31", "2020-02-01"]),
        ([], [None] * 5),
    ],
)
def test_a_year_has_four_digits_and_else_the_next_format_is_tried(tmp_path, formats, days):
    """31.01.20 was a day of the year 20, and so the lower bound of its column."""
    (tmp_path / "t.csv").write_text("id,d\n1,31.01.20\n2,1.2.99\n3,1.2.202\n4,31.01.2020\n5,1.2.2020\n")
    (tmp_path / "s.toml").write_text(
        f'table = "t"\nunit = "row"\n[format]\ndates = {formats}\n'
        '[columns.id]\ntype = "number"\nlower = 1\nupper = 5\n'
        '[columns.d]\ntype = "date"\nlower = "1900-01-01"\nupper = "2030-12-31"\n'
    )
    opened = dp.open(
        tmp_path / "t.csv", schema=tmp_path / "s.toml", budget=dp.Budget(epsilon=1), ledger=":memory:"
    )
    read = [
        exact(opened, f"SELECT COUNT_IF(d = '{day or '1900-01-01'}'), COUNT(d) FROM t WHERE id = {i}")
        for i, day in enumerate(days, 1)
    ]
    assert read == [[[0, 0]] if day is None else [[1, 1]] for day in days]


def test_the_walk_of_a_steward_with_such_a_file(folder):
    (folder / "besuche.csv.schema.toml").unlink()
    runner = CliRunner()
    assert runner.invoke(app, ["init", "besuche.csv", "--delimiter", ";"]).exit_code == 0
    drafted = (folder / "besuche.csv.schema.toml").read_text(encoding="utf-8")
    assert 'delimiter = ";"' in drafted
    assert '"Größe cm"' in drafted
    assert "180" not in drafted
    (folder / "besuche.csv.schema.toml").write_text(SCHEMA, encoding="utf-8")
    body = json.loads(runner.invoke(app, ["check", "besuche.csv", "--json"]).stdout)
    assert body["columns"]["Größe cm"]["unreadable"] == "20 to 50%"
    assert body["columns"]["Aufnahme"] == {"missing": "none", "unreadable": "20 to 50%", "outside": "none"}
    assert not body["noted"]
    assert runner.invoke(app, ["init", "besuche.csv", "--epsilon", "2"]).exit_code == 0
    asked = runner.invoke(
        app, ["query", "besuche.csv", 'SELECT AVG("Größe cm") AS g FROM besuche', "-e", "1"]
    )
    assert asked.exit_code == 0, asked.exception
    assert "counts at most 2 rows of one Person Nr" in asked.stdout


@pytest.mark.parametrize(
    "bad",
    [
        {"delimiter": ";;"},
        {"delimiter": "€"},
        {"decimal": ";"},
        {"decimal": ",", "thousands": ","},
        {"dates": ["tomorrow"]},
        {"dates": "%d"},
    ],
)
def test_a_format_that_cannot_be_is_refused(bad):
    with pytest.raises(dp.InvalidInput, match=f"{list(bad)[-1]} must be"):
        Format(**bad)


def test_a_misspelt_entry_is_guessed(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text("[format]\ndelimeter = ';'\n")
    with pytest.raises(dp.InvalidInput, match="Did you mean 'delimiter'"):
        format_of(file)


def test_a_format_for_what_is_no_csv_file_is_refused(folder):
    with pytest.raises(dp.InvalidInput, match="about CSV files"):
        dp.open(
            {"Gewicht": [1]}, schema="besuche.csv.schema.toml", budget=dp.Budget(epsilon=1), ledger=":memory:"
        )


@pytest.mark.parametrize(
    ("right", "wrong"), [("Gewicht", "Gewichd"), ("Aufnahme", "Aufname"), ("Person Nr", "Person No")]
)
def test_a_mistyped_column_is_named_with_the_nearest_and_the_file_is_not_blamed(folder, right, wrong):
    (folder / "s.toml").write_text(SCHEMA.replace(right, wrong), encoding="utf-8")
    with pytest.raises(dp.InvalidInput, match=f"declares '{wrong}'.*Did you mean '{right}'") as refused:
        dp.open("besuche.csv", schema="s.toml", budget=dp.Budget(epsilon=1), ledger=":memory:")
    assert "cannot be read" not in str(refused.value)
    assert "180" not in str(refused.value)


@pytest.mark.parametrize("line", ['delimiter = "|"', "", 'delimiter = "\\t"'])
def test_a_wrong_delimiter_has_its_own_words(folder, line):
    (folder / "s.toml").write_text(SCHEMA.replace('delimiter = ";"', line), encoding="utf-8")
    with pytest.raises(dp.InvalidInput, match=r"one name that holds ';'.*delimiter = \";\""):
        dp.open("besuche.csv", schema="s.toml", budget=dp.Budget(epsilon=1), ledger=":memory:")


def test_an_empty_date_is_missing_and_one_in_another_format_does_not_convert(folder):
    (folder / "besuche.csv").write_text(TEXT + "4;1;1;\n4;1;1;  \n", encoding="utf-8")
    body = json.loads(CliRunner().invoke(app, ["check", "besuche.csv", "--json"]).stdout)
    assert body["columns"]["Aufnahme"] == {
        "missing": "20 to 50%",
        "unreadable": "5 to 20%",
        "outside": "none",
    }
    visits = dp.open(
        "besuche.csv", schema="besuche.csv.schema.toml", budget=dp.Budget(epsilon=1), ledger=":memory:"
    )
    assert exact(visits, "SELECT COUNT(Aufnahme) AS n FROM besuche") == [[3]]
    assert exact(visits, "SELECT COUNT(*) AS n FROM besuche WHERE Aufnahme IS NULL") == [[3]]


def test_a_code_of_a_missing_value_is_recognized_as_it_stands_in_the_file(folder):
    """The points of "k.A." were taken out as thousands, and it did not convert."""
    lines = "4;k.A.;1.000;k.A.\n4;9.99;k,A;03.01.2026\n5;999;5;\n"
    (folder / "besuche.csv").write_text(TEXT.replace("abc", "k.A.") + lines, encoding="utf-8")
    schema = (
        SCHEMA.replace("upper = 300", 'upper = 300\nmissing = ["k.A.", 9.99]')
        .replace("upper = 2000", 'upper = 2000\nmissing = ["k,A"]')
        .replace('upper = "2026-12-31"', 'upper = "2026-12-31"\nmissing = ["k.A."]')
    )
    (folder / "besuche.csv.schema.toml").write_text(schema, encoding="utf-8")
    body = json.loads(CliRunner().invoke(app, ["check", "besuche.csv", "--json"]).stdout)
    # 9.99 in the file is 999, which is no code: it lies outside, and counts as the bound.
    assert body["columns"]["Größe cm"] == {
        "missing": "20 to 50%",
        "unreadable": "none",
        "outside": "20 to 50%",
    }
    assert body["columns"]["Gewicht"]["unreadable"] == "none"
    # "1/5/2026" is the only date that does not convert.
    assert body["columns"]["Aufnahme"] == {
        "missing": "20 to 50%",
        "unreadable": "5 to 20%",
        "outside": "none",
    }
    visits = dp.open(
        "besuche.csv", schema="besuche.csv.schema.toml", budget=dp.Budget(epsilon=1), ledger=":memory:"
    )
    sql = 'SELECT COUNT("Größe cm") AS n, SUM("Größe cm") AS s, COUNT(Gewicht) AS g FROM besuche'
    assert exact(visits, sql) == [[5, 180.5 + 170 + 165.5 + 300 + 300, 5]]


def test_a_file_in_latin_1_is_refused_with_the_command_that_converts_it(folder):
    (folder / "besuche.csv").write_bytes(TEXT.encode("cp1252"))
    with pytest.raises(dp.InvalidInput, match=r"iconv -f cp1252 -t utf-8 besuche\.csv"):
        dp.open("besuche.csv", schema="besuche.csv.schema.toml", budget=dp.Budget(epsilon=1))


def test_a_line_without_a_value_is_named_with_its_column():
    text = 'table = "p"\nunit = "row"\n[columns.age]\ntype = "number"\nlower =   # ?\nupper = 3\n'
    with pytest.raises(dp.InvalidInput, match=r"'lower =' in \[columns\.age\]\. A value is missing"):
        load(text)


def test_no_line_of_a_draft_is_commented_out_twice(folder):
    (folder / "besuche.csv.schema.toml").unlink()
    CliRunner().invoke(app, ["init", "besuche.csv", "--delimiter", ";"])
    assert "# #" not in (folder / "besuche.csv.schema.toml").read_text(encoding="utf-8")


def test_dates_that_do_not_convert_stay_different_people(folder):
    text = SCHEMA.replace('column = "Person Nr"', 'column = "Aufnahme"')
    (folder / "s.toml").write_text(text, encoding="utf-8")
    (folder / "besuche.csv").write_text(TEXT + "4;1;1;2/5/2026\n5;1;1;3/5/2026\n", encoding="utf-8")
    visits = dp.open("besuche.csv", schema="s.toml", budget=dp.Budget(epsilon=1), ledger=":memory:")
    units = visits.curator.source.answer('SELECT COUNT(DISTINCT "Aufnahme") AS n FROM "besuche"')
    assert units.column("n").to_pylist() == [6]


def test_a_line_break_in_a_name_stays_within_the_comment_of_a_draft() -> None:
    text = draft_text("t", {"a\nsize = 5": "number"}, {"u": ("u.csv", {"b\nsize = 5": "number"})})
    assert not [line for line in text.splitlines() if line.startswith("size")]


def test_looking_at_a_very_long_field_is_refused_without_quoting_it(tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_text("a,b\n" + "x" * 140_000 + ",1\n")
    with pytest.raises(dp.InvalidInput, match=r"'long\.csv' has a field that is too long"):
        look(file, None)


def test_parts_of_a_table_are_given_and_exact_in_doubles() -> None:
    people = Memory({"a": ["1"]}, dp.Public())
    for parts in ([], [1 << 53]):
        with pytest.raises(dp.InvalidInput, match="part"):
            within(people, "a", parts, called="x")


@pytest.mark.parametrize("form", ["%Q", "%d.%m.%", "%s"])
def test_a_format_of_dates_that_is_none_is_named_and_not_the_file(folder, form):
    schema = folder / "besuche.csv.schema.toml"
    schema.write_text(SCHEMA.replace("%d.%m.%Y", form), encoding="utf-8")
    with pytest.raises(InvalidInput, match=f"dates must be formats of strptime.*'{re.escape(form)}'"):
        dp.open("besuche.csv", schema=schema, budget=dp.Budget(epsilon=1), ledger=":memory:")


def test_a_schema_file_may_have_a_byte_order_mark(folder):
    schema = folder / "besuche.csv.schema.toml"
    schema.write_text(SCHEMA, encoding="utf-8-sig")
    visits = dp.open("besuche.csv", schema=schema, budget=dp.Budget(epsilon=1), ledger=":memory:")
    assert exact(visits, "SELECT COUNT(Aufnahme) AS n FROM besuche") == [[3]]


@pytest.mark.parametrize("header", [",Alter", "Alter,"])
def test_a_column_without_a_name_is_told_apart_from_a_file_that_cannot_be_read(tmp_path, header):
    (tmp_path / "t.csv").write_text(header + "\n1,2\n")
    with pytest.raises(InvalidInput, match="has no name"):
        draft(tmp_path / "t.csv")


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "block", "plain"])
def test_a_compressed_file_that_is_damaged_is_refused_as_such(tmp_path, ending, damage):
    """Damage within a block ended in a zlib.error; a cut file was told to be converted to UTF-8."""
    text = "".join(f"{i},{i * 7919 % 997}\n" for i in range(2000)).encode()
    packed = gzip.compress(text) if ending == ".gz" else pa.compress(text, codec="zstd", asbytes=True)
    # 0xff after the header of a gzip file is a type of block that there is not
    broken = {
        "cut": packed[: len(packed) // 2],
        "block": packed[:10] + b"\xff" * 9 + packed[19:],
        "plain": text,
    }
    path = tmp_path / f"t.csv{ending}"
    path.write_bytes(broken[damage])
    for call in (draft, lambda data: connect(data, dp.Public(table="t"))):
        with pytest.raises(InvalidInput, match="cannot be decompressed"):
            call(path)
