"""A folder, a pattern or a list of files is one table: fixed when it is opened, of one schema, every row once."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import tables
from discreet._errors import InvalidInput
from discreet.app import requests
from discreet.app.cli import app
from discreet.query import Query
from discreet.tables import EngineError
from discreet.tables.files import formatted, several, stand_in
from discreet.tables.fit import coarse, not_utf8

SCHEMA = {"age": dp.Bounds(0, 100), "ward": dp.Categories(["A", "B"])}
QUESTIONS = [
    "SELECT ward, COUNT(*) AS n, SUM(age) AS s FROM visits GROUP BY ward",
    "SELECT MEDIAN(age) AS m FROM visits",
    "SELECT COUNT(DISTINCT ward) AS n FROM visits",
]


def part(number: int, rows: int = 20) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([(number * rows + i) // 3 for i in range(rows)], pa.int64()),
            "age": pa.array([None if i == 7 else (i * 13 + number) % 90 for i in range(rows)], pa.int64()),
            "ward": pa.array([["A", "B", "C"][(i + number) % 3] for i in range(rows)]),
        }
    )


PARTS = [part(number) for number in range(4)]
WHOLE = pa.concat_tables(PARTS)


@pytest.fixture(params=["parquet", "csv"])
def folder(request, tmp_path, monkeypatch):
    """Files in two folders, with what other programs leave beside them."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "visits"
    (path / "day=2").mkdir(parents=True)
    for number, table in enumerate(PARTS):
        place = path / ("day=2" if number == 3 else "") / f"visits-{number}.{request.param}"
        (pq.write_table if request.param == "parquet" else pyarrow.csv.write_csv)(table, place)
    (path / "_SUCCESS").touch()
    (path / ".hidden.parquet").write_bytes(b"not a table")
    return path


def exact(engine, sql):
    unit = engine.public.unit.column
    bounds = {} if unit is None else {"rows": 3, "groups": 2}
    query = Query(sql=sql, public=engine.public, epsilon=1, delta=1e-6, **bounds)
    return query._without_noise(engine, 5)


def facts(unit=None):
    return dp.Public(schema=tuple(SCHEMA.items()), unit=dp.Unit(unit), table="visits")


@pytest.mark.parametrize("unit", [None, "id"])
def test_several_files_answer_as_one_table(folder, unit):
    one = tables.connect(WHOLE, facts(unit))
    ends = folder.rglob("visits-*")
    for data in (
        folder,
        str(folder),
        f"{folder}/**/visits-*",
        sorted(ends),
        [str(p) for p in folder.rglob("visits-*")],
    ):
        engine = tables.connect(data, facts(unit))
        for sql in QUESTIONS:
            if unit is None or "MEDIAN" not in sql:
                assert exact(engine, sql) == exact(one, sql), (data, sql)
        assert sum(batch.num_rows for batch in engine.batches(["age"])) == 80


def test_a_pattern_means_the_files_that_fit_it(folder):
    engine = tables.connect(f"{folder}/visits-[01].*", facts())
    assert exact(engine, "SELECT COUNT(*) AS n FROM visits") == [[40.0]]


def test_a_session_over_a_pattern_is_named_and_charged_once(folder, monkeypatch):
    options = {"schema": SCHEMA, "unit": "id", "budget": dp.Budget(epsilon=10), "version": "1"}
    session = dp.open(folder, **options)
    assert session.public.table == "visits"
    assert (folder.parent / "visits.ledger").exists()
    first = session.sql(QUESTIONS[0], epsilon=1, rows=3, groups=2)
    again = dp.open(folder, schema=SCHEMA, unit="id", version="1").sql(
        QUESTIONS[0], epsilon=1, rows=3, groups=2
    )
    assert again.rows == first.rows
    monkeypatch.chdir(folder)
    bare = dp.open("visits-*.*", **options)
    assert bare.public.table == "visits"
    assert (folder / "visits.ledger").exists()
    listed = dp.open(sorted(folder.glob("visits-*")), table="visits", ledger=":memory:", **options)
    assert listed.sql(QUESTIONS[0], epsilon=1, rows=3, groups=2).rows


def test_which_files_these_are_is_settled_at_opening(tmp_path):
    for number in (0, 1):
        pq.write_table(PARTS[number], tmp_path / f"{number}.parquet")
    options = {"schema": SCHEMA, "unit": dp.rows(), "table": "visits", "ledger": tmp_path / "books"}
    session = dp.open(tmp_path / "*.parquet", budget=dp.Budget(epsilon=10), **options)
    session.sql("SELECT COUNT(*) AS n FROM visits", epsilon=1)
    pq.write_table(PARTS[2], tmp_path / "2.parquet")
    # the one that came later is not part of the table that was opened, and the released answer is served
    session.sql("SELECT COUNT(*) AS n FROM visits", epsilon=1)
    assert session.spent == pytest.approx(1)
    later = dp.open(tmp_path / "*.parquet", **options)
    later.sql("SELECT COUNT(*) AS n FROM visits", epsilon=1)
    assert later.spent == pytest.approx(2)
    pq.write_table(PARTS[3], tmp_path / "1.parquet")
    for opened in (session, later):
        with pytest.raises(EngineError, match="has changed"):
            opened.sql("SELECT SUM(age) AS n FROM visits", epsilon=1)
    (tmp_path / "1.parquet").unlink()
    with pytest.raises(EngineError, match="has changed"):
        later.sql("SELECT SUM(age) AS n FROM visits", epsilon=1)
    assert later.spent == pytest.approx(2)


def test_files_of_other_columns_or_types_are_refused(tmp_path):
    pq.write_table(PARTS[0], tmp_path / "a.parquet")
    for odd, why in (
        (PARTS[1].drop_columns(["ward"]), "'ward'"),
        (PARTS[1].append_column("more", PARTS[1]["age"]), "'more'"),
        (PARTS[1].set_column(1, "age", PARTS[1]["age"].cast(pa.float64())), "'age'"),
        (PARTS[1].select(["age", "id", "ward"]), "order"),
    ):
        pq.write_table(odd, tmp_path / "b.parquet")
        with pytest.raises(InvalidInput, match=why):
            tables.connect(tmp_path, facts())
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    with pytest.raises(InvalidInput, match="cannot be read"):
        tables.connect(tmp_path, facts())
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "1.csv").write_text("id,age,ward\n1,2,A\n")
    (tmp_path / "c" / "2.csv").write_text("id,ward,age\n1,A,2\n")
    with pytest.raises(InvalidInput, match="same first line"):
        tables.connect(tmp_path / "c", facts())


def test_what_is_no_set_of_files_is_refused_with_a_way_out(tmp_path):
    pq.write_table(PARTS[0], tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("id,age,ward\n1,2,A\n")
    (tmp_path / "empty").mkdir()
    a = tmp_path / "a.parquet"
    for data, why in (
        (tmp_path, "nor all CSV"),
        (tmp_path / "empty", "no Parquet or CSV file"),
        (str(tmp_path / "x-*.parquet"), "there is no"),
        ([a, a], "named twice"),
        ([a, tmp_path / "gone.parquet"], "there is no file"),
    ):
        with pytest.raises(InvalidInput, match=why):
            dp.open(data, schema=SCHEMA, unit="id", budget=dp.Budget(epsilon=1), ledger=":memory:")


def test_one_bad_value_in_one_file_is_missing_and_fails_nothing(tmp_path):
    raw = pa.array([b"A", b"\xff\xfe", b"B"])
    bad = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    table = pa.table({"id": [1, 2, 3], "age": pa.array([1, 2, 3], pa.int64()), "ward": bad})
    pq.write_table(PARTS[0], tmp_path / "0.parquet")
    pq.write_table(table, tmp_path / "1.parquet")
    engine = tables.connect(tmp_path, facts())
    assert exact(engine, "SELECT COUNT(*) AS n FROM visits") == [[23.0]]
    (rows,) = exact(engine, "SELECT COUNT(*) AS n FROM visits WHERE ward IS NULL")
    # the value that is no text, and those that are not declared
    assert rows == [1 + PARTS[0].column("ward").to_pylist().count("C")]


def test_csv_files_in_another_format(tmp_path):
    folder = tmp_path / "visits"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.csv").write_text("id;age\n1;1.000,5\n2;3,5\n")
    schema = tmp_path / "s.toml"
    schema.write_text(
        'table = "visits"\n[unit]\ncolumn = "id"\n[format]\ndelimiter = ";"\ndecimal = ","\nthousands = "."\n'
        '[columns.age]\ntype = "number"\nlower = 0\nupper = 2000\n'
    )
    session = dp.open(folder, schema=schema, budget=dp.Budget(epsilon=1), ledger=":memory:")
    query = Query(sql="SELECT SUM(age) AS s FROM visits", public=session.public, epsilon=1, rows=4)
    assert query._without_noise(session.curator.source, 3)[0][0] == pytest.approx(2008, abs=0.1)


def test_the_shell_takes_a_pattern(folder, monkeypatch):
    kind = next(folder.glob("visits-0.*")).suffix
    monkeypatch.chdir(folder)
    run = CliRunner().invoke
    pattern = f"visits-*{kind}"
    drafted = run(app, ["init", pattern])
    assert drafted.exit_code == 0, drafted.output
    schema = folder / "visits.schema.toml"
    assert "age" in schema.read_text()
    schema.write_text(
        'table = "visits"\n[unit]\ncolumn = "id"\n[columns.age]\ntype = "number"\nlower = 0\nupper = 100\n'
        '[columns.ward]\ntype = "categories"\nvalues = ["A", "B"]\n'
    )
    opened = run(app, ["init", pattern, "--epsilon", "5"])
    assert opened.exit_code == 0, opened.output
    asked = run(app, ["query", pattern, QUESTIONS[0], "--epsilon", "1", "--rows", "3", "--groups", "2"])
    assert asked.exit_code == 0, asked.output
    assert "ward" in asked.output
    assert (
        run(app, ["ledger", "show", pattern]).output == run(app, ["ledger", "show", "visits.ledger"]).output
    )


def test_a_wildcard_in_the_name_of_a_folder_is_in_no_name(tmp_path, monkeypatch):
    """The table of "data/*/x.csv" was called "*", and its ledger "data/*.ledger"."""
    monkeypatch.chdir(tmp_path)
    for pattern, name in (
        ("data/*/x.csv", tmp_path / "data"),
        ("data/**/x.csv", tmp_path / "data"),
        ("data/day-*/x.csv", Path("data/day")),
        ("*/x.csv", tmp_path),
        ("data/*.csv", Path("data")),
        ("data/one/v-*.csv", Path("data/one")),
    ):
        assert stand_in(pattern) == name, pattern


def test_a_ledger_at_the_older_place_of_a_pattern_goes_on(tmp_path, monkeypatch):
    """Otherwise opening the same pattern again would be a fresh budget."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/one").mkdir(parents=True)
    (tmp_path / "data/one/x.csv").write_text("id,age,ward\n1,2,A\n")
    pattern, facts = "data/*/x.csv", {"schema": SCHEMA, "unit": dp.rows(), "version": "1"}
    older = dp.open(pattern, **facts, table="*", ledger="data/*.ledger", budget=dp.Budget(epsilon=1))
    older.sql('SELECT COUNT(*) AS n FROM "*"', epsilon=0.75)
    opened = dp.open(pattern, **facts)
    assert opened.ledger.path == Path("data/*.ledger")
    assert opened.spent == 0.75
    assert opened.public.table == "*"
    assert requests.beside(pattern, ".ledger") == Path("data/*.ledger")
    assert requests.beside(pattern, ".schema.toml") == Path("data/*.schema.toml")


def test_copies_and_ledgers_beside_the_files_are_no_rows(tmp_path):
    rows = "id,age,ward\n1,2,A\n2,3,B\n"
    for name in ("1.csv", "1.csv.bak", "1.csv~", "1.csv.ledger", "1.csv.ledger.lock", "2.parquet.csv.orig"):
        (tmp_path / name).write_text(rows)
    with gzip.open(tmp_path / "2.csv.gz", "wt") as file:
        file.write(rows)
    with pa.CompressedOutputStream(tmp_path / "3.csv.zst", "zstd") as file:
        file.write(rows.encode())
    engine = tables.connect(tmp_path, facts())
    assert exact(engine, "SELECT COUNT(*) AS n FROM visits") == [[6.0]]
    with pytest.raises(InvalidInput, match="nor all CSV"):
        tables.connect(f"{tmp_path}/1.csv*", facts())


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".csv.zst"])
def test_a_compressed_file_is_read_as_the_file_inside(tmp_path, ending):
    """A file .csv.zst counted as CSV, and was then refused as text that is not UTF-8."""
    path, rows = tmp_path / f"visits{ending}", b'\xef\xbb\xbfid;age;ward\n1;2,5;"A\nB"\n2;3;B\n3;4;\xff\n'
    kind = {".csv.gz": "gzip", ".csv.zst": "zstd"}.get(ending)
    with open(path, "wb") if kind is None else pa.CompressedOutputStream(path, kind) as file:
        file.write(rows)
    assert tables.drafting.delimiter_of(path) == ";"
    assert tables.drafting.look(path, ";")[0] == {"id": "number", "age": "number", "ward": "text"}
    schema = tmp_path / "s.toml"
    schema.write_text(
        'table = "visits"\n[unit]\ncolumn = "id"\nrows = 1\n[format]\ndelimiter = ";"\ndecimal = ","\n'
        '[columns.age]\ntype = "number"\nlower = 0\nupper = 10\n'
    )
    public = tables.load(schema)
    engine = tables.connect(formatted(path, schema, public), public)
    query = Query(sql="SELECT COUNT(*) AS n, SUM(age) AS s FROM visits", public=public, epsilon=1)
    assert query._without_noise(engine, 5) == [[2.0, 5.5]]
    assert not_utf8(path) == coarse(1, 5)
    if kind is not None:
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(InvalidInput, match=r"cannot be decompressed"):
            tables.connect(path, facts())


def test_two_links_to_one_file_are_a_file_named_twice(tmp_path):
    pq.write_table(PARTS[0], tmp_path / "a.parquet")
    (tmp_path / "b.parquet").hardlink_to(tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match="named twice"):
        tables.connect(tmp_path, facts())
    (tmp_path / "b.parquet").unlink()
    (tmp_path / "b.parquet").symlink_to(tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match="named twice"):
        tables.connect(f"{tmp_path}/*.parquet", facts())


def test_an_empty_name_is_not_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "people.csv").write_text("a\n1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="the name of the file is empty"):
        dp.open(
            "", schema={"a": dp.Bounds(0, 1)}, unit=dp.rows(), budget=dp.Budget(epsilon=1), ledger=":memory:"
        )
    for opens in (
        lambda: dp.open(tables.Database("", "t"), schema=facts(), ledger=":memory:"),
        lambda: dp.open("", schema=facts(), engine="spark", ledger=":memory:"),
        lambda: tables.draft(""),
        lambda: tables.draft("people.csv", related=[""]),
        lambda: requests.data_of(""),
        lambda: requests.beside("::t", ".ledger"),
    ):
        with pytest.raises(InvalidInput, match=r"the name of the file is empty\."):
            opens()
    opened = dp.open(
        ".", schema={"a": dp.Bounds(0, 1)}, table="people", unit=dp.rows(),
        budget=dp.Budget(epsilon=1), ledger=":memory:",
    )  # fmt: skip
    assert opened.public.table == "people"


def test_a_part_of_a_folder_that_cannot_be_listed_is_refused_not_left_out(folder, monkeypatch):
    (folder / ".cache").mkdir()
    scandir = os.scandir

    def locked(path="."):
        if str(path).endswith(("day=2", ".cache")):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    whole = several(folder)
    assert len(whole.parts) == 4
    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(InvalidInput, match=r"day=2' cannot be listed: Permission denied"):
        several(folder)
    monkeypatch.undo()
    assert several(folder) == whole


@pytest.mark.parametrize("wrap", [str, lambda name: name + "*", lambda name: [name]])
def test_a_name_too_long_for_the_system_is_a_file_that_is_not_there(tmp_path, monkeypatch, wrap):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="xxx"):
        dp.open(
            wrap("x" * 300), schema=SCHEMA, unit=dp.rows(), budget=dp.Budget(epsilon=1), ledger=":memory:"
        )
