"""Codes of missing values are missing before clipping, on every engine, in SQL and in batches."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest

import discreet as dp
from discreet import Boolean, Bounds, Categories, Dates, InvalidInput, Public, Text, Unit
from discreet._registry import from_json, to_json
from discreet.query import Query
from discreet.tables import Memory, connect, dump, load
from discreet.tables.cells import Coding, count_cells

from .. import postgres, spark

ROWS = pa.table(
    {
        "whole": [1, 2, 99, 3, 98, None],
        "real": [1.5, 2.5, 99.0, 3.5, float("nan"), -1.0],
        "written": ["1", "2", "99", "98.0", "k.A.", None],
        "day": [
            date(2020, 1, 5),
            date(9999, 12, 31),
            date(2020, 1, 7),
            None,
            date(2020, 1, 9),
            date(2020, 1, 1),
        ],
        "yes": [1, 0, 9, 1, 9, None],
        "note": ["a", "k.A.", "b", "99", "", None],
        "kind": ["x", "y", "k.A.", "x", "y", "x"],
    }
)
CODES = (98, 99, "k.A.")
SCHEMA = {
    "whole": Bounds(0, 5, missing=CODES),
    "real": Bounds(0.0, 5.0, missing=[99]),
    "written": Bounds(0, 5, missing=CODES),
    "day": Dates("2020-01-01", "2020-12-31", missing=["9999-12-31"]),
    "yes": Boolean(missing=[9]),
    "note": Text(missing=["k.A.", 99]),
    "kind": Categories(["x", "y"], missing=["k.A."]),
}
PUBLIC = Public(table="p", schema=SCHEMA)
# by hand: what is left of each column after its codes are taken out
WANTED = {
    "SELECT COUNT(whole), SUM(whole), SUM(whole + 0.5) FROM p": [3, 6, 7.5],
    "SELECT COUNT(real), SUM(real) FROM p": [4, 7.5],
    "SELECT COUNT(written), SUM(written) FROM p": [2, 3],
    "SELECT COUNT(day), SUM(EXTRACT(day FROM day)) FROM p": [4, 22],
    "SELECT COUNT(yes), SUM(CAST(yes AS INTEGER)) FROM p": [3, 2],
    "SELECT COUNT(note), COUNT(DISTINCT note) FROM p": [3, 3],
    "SELECT COUNT(kind), SUM(CASE WHEN kind = 'x' THEN 1 ELSE 0 END) FROM p": [5, 3],
    "SELECT AVG(whole) FROM p": [2],
}


def on_postgres() -> Any:
    from discreet.tables import connect_postgres

    server = postgres.server()
    return connect_postgres(server.address("reader"), PUBLIC, table=server.load(ROWS, "codes"))


def on_spark() -> Any:
    from discreet.tables.engines.spark import connect as connect_spark

    return connect_spark(spark.session().createDataFrame(ROWS), PUBLIC)


ENGINES = {
    "memory": (None, lambda: Memory(ROWS, PUBLIC)),
    "duckdb": (None, lambda: connect(ROWS, PUBLIC, threads=1)),
    "postgres": (postgres.MISSING, on_postgres),
    "spark": (spark.missing(), on_spark),
}


@pytest.mark.parametrize("name", ENGINES)
def test_codes_are_missing_in_sql_and_in_batches_on_every_engine(name: str) -> None:
    skip, opened = ENGINES[name]
    if skip is not None:
        pytest.skip(skip)
    source = opened()
    for sql, wanted in WANTED.items():
        got = Query(sql=sql, public=PUBLIC, epsilon=1, delta=1e-6)._without_noise(source, 7)
        assert got == [pytest.approx(wanted)], sql
    batches = list(source.batches(["whole", "written", "day", "yes", "note"]))
    columns = pa.Table.from_batches(batches).to_pydict()
    assert sorted(v for v in columns["whole"] if v is not None) == [1, 2, 3]
    assert sorted(v for v in columns["written"] if v is not None) == [1, 2]
    assert sum(v is None for v in columns["day"]) == 2
    assert sorted(int(v) for v in columns["yes"] if v is not None) == [0, 1, 1]
    assert sorted(v for v in columns["note"] if v is not None) == ["", "a", "b"]


@pytest.mark.parametrize("name", ENGINES)
def test_codes_are_missing_in_the_cells_of_a_synthetic_copy(name: str) -> None:
    """99 was in the bin of the upper bound, and 9 was true."""
    skip, opened = ENGINES[name]
    if skip is not None:
        pytest.skip(skip)
    source = opened()
    for column, wanted in {"whole": 3, "real": 2, "written": 4, "day": 2, "yes": 3}.items():
        coding = Coding(column, SCHEMA[column], (0.0, 2.0, 366.0))
        cells = count_cells(source, [coding])
        assert cells.counts[cells.codes[0] == coding.size - 1].sum() == wanted, column


def test_the_average_of_a_column_with_codes_is_within_its_interval() -> None:
    """99 counted as the upper bound: 3.79 +- .035 where 3.66 was the truth."""
    values = [3, 4] * 2000 + [99] * 400
    answers = []
    for missing in ((), (99,)):
        people = dp.open(
            {"x": values}, schema={"x": dp.Bounds(0, 5, missing=missing)}, unit=dp.rows(), table="t",
            budget=dp.Budget(epsilon=20), ledger=":memory:",
        )  # fmt: skip
        answers.append(people.sql("SELECT AVG(x) AS a FROM t", epsilon=10).interval(1 - 1e-6)["a"][0])
    assert not answers[0][0] <= 3.5 <= answers[0][1]
    assert answers[1][0] <= 3.5 <= answers[1][1]


def test_codes_are_in_the_schema_file_and_in_descriptions() -> None:
    text = dump(PUBLIC)
    assert 'missing = [98, 99, "k.A."]' in text
    assert load(text) == PUBLIC
    assert from_json(to_json(PUBLIC)) == PUBLIC


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: Bounds(0, 5, nullable=False, missing=[9]), "can be missing"),
        (lambda: Bounds(0, 5, missing=[True]), "numbers and texts"),
        (lambda: Bounds(0, 5, missing=[float("nan")]), "numbers and texts"),
        (lambda: Bounds(0, 5, missing=99), "missing"),
        (lambda: Categories(["a", "b"], missing=["b"]), "as a category and as a code"),
        (lambda: Public(schema={"id": Text(missing=["x"])}, unit=Unit("id")), "tells people apart"),
    ],
)
def test_codes_that_make_no_sense_are_refused(declare: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        declare()


@pytest.mark.parametrize("values", [[5, 99, 7], [5.0, 99.0, 7.0], ["5", "99", "7,"], ["5", "99.0", ""]])
def test_a_code_in_quotes_is_the_number_that_it_says(values: list[Any]) -> None:
    """`missing = ["99"]` was no code of a number: 99 counted as the upper bound, and `discreet check` said that
    it was missing."""
    public = Public(table="p", schema={"x": Bounds(0, 50, missing=["99", "nan", "k.A."])})
    source = connect(pa.table({"x": values}), public, threads=1)
    got = Query(sql="SELECT SUM(x) FROM p", public=public, epsilon=1, delta=1e-6)._without_noise(source, 7)
    assert got == [[12 if isinstance(values[0], int | float) else 5]]


@pytest.mark.parametrize(
    ("column", "code", "instead"),
    [
        ('type = "number"\nlower = 0\nupper = 9', '"-9,0"', "[-9.0]"),
        ('type = "number"\nlower = 0\nupper = 9', '"9.999"', "[9999.0]"),
        ('type = "date"\nlower = "2025-01-01"\nupper = "2025-12-31"', '"01.01.1900"', '["1900-01-01"]'),
        ('type = "number"\nlower = 0\nupper = 9', '"-9", "k.A.", "nan", 99', None),
        ('type = "date"\nlower = "2025-01-01"\nupper = "2025-12-31"', '"1900-01-01", "00.00.0000"', None),
    ],
)
def test_codes_in_the_notation_of_the_file_are_refused(
    tmp_path: Any, column: str, code: str, instead: str | None
) -> None:
    data, schema = tmp_path / "t.csv", tmp_path / "t.csv.schema.toml"
    data.write_text("x\n1\n")
    marks = 'decimal = ","\nthousands = "."\ndelimiter = ";"\ndates = ["%d.%m.%Y", "%Y-%m-%d"]'
    schema.write_text(
        f'table = "t"\nunit = "row"\n[format]\n{marks}\n[columns.x]\n{column}\nmissing = [{code}]\n'
    )

    def opened() -> dp.Session:
        return dp.open(data, schema=schema, budget=dp.Budget(epsilon=1), ledger=":memory:")

    if instead is None:
        opened()
        return
    with pytest.raises(InvalidInput) as refusal:
        opened()
    assert f"missing = {instead}" in str(refusal.value)
