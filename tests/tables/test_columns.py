"""Every kind of column is answered from as the plain engine would, or refused when the table is opened: never
after the charge."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal as D

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet import Bounds, Categories, InvalidInput, Public, Unit
from discreet._public import Boolean, Dates, Text
from discreet.mechanisms import noisy_histogram, noisy_sum
from discreet.query import Query
from discreet.sampling import SeededEntropy
from discreet.tables import Database, EngineError, Memory, connect, draft
from discreet.tables.columns import _FITS, KINDS, arrow_kind

DAY = dt.datetime(2020, 1, 1, 23, 30, tzinfo=dt.UTC)
NUMBERS = {
    "float16": pa.array(np.array([1, 2.5, 30], np.float16)),
    "float32": pa.array([1.0, 2.5, 30], pa.float32()),
    "decimal128": pa.array([D("1.00"), D("2.50"), D("30")], pa.decimal128(38, 2)),
    "decimal256": pa.array([D("1.00"), D("2.50"), D("30")], pa.decimal256(38, 2)),
    "decimal32": pa.array([D("1.00"), D("2.50"), D("30")], pa.decimal128(9, 2)).cast(pa.decimal32(9, 2)),
    "a dictionary": pa.array([1.0, 2.5, 30]).dictionary_encode(),
    "run ends": pa.RunEndEncodedArray.from_arrays([1, 2, 3], [1.0, 2.5, 30.0]),
    "text": pa.array(["1", "2.5", "30"]),
    "a dictionary of text": pa.array(["1", "2.5", "30"]).dictionary_encode(),
    "a view of text": pa.array(["1", "2.5", "30"], pa.string_view()),
}


def sources(column, fact, tmp_path):
    public = Public(schema={"c": fact}, table="t")
    table = pa.table({"c": column})
    yield connect(table, public)
    yield Memory(table, public)
    try:
        pq.write_table(table, tmp_path / "t.parquet")
    except (pa.ArrowException, OSError):  # not every type can be written
        return
    yield connect(tmp_path / "t.parquet", public)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_every_type_are_summed(name, tmp_path):
    """Also by mechanisms that read batches: what one package accepts, the other must not refuse after the
    charge."""
    for source in sources(NUMBERS[name], Bounds(0, 10), tmp_path):
        query = Query(
            sql="SELECT SUM(c), COUNT(c), MAX(c) FROM t WHERE c > 0", public=source.public, epsilon=1
        )
        assert query._without_noise(source, 1) == [[13.5, 3, 10.0]]
        summed = noisy_sum(source.public, "c", epsilon=1000)(source, entropy=SeededEntropy(1))
        assert abs(summed.value - 13.5) < 1  # noise of scale 0.01: further off with probability exp(-100)


@pytest.mark.parametrize("dtype", [pa.uint64(), pa.int64(), pa.decimal128(38, 0), pa.float64()])
def test_numbers_beyond_63_bits_are_clipped_like_others(dtype, tmp_path):
    top = 2**64 - 1 if pa.types.is_uint64(dtype) else 2**63 - 1 if pa.types.is_integer(dtype) else 10**30
    kind = D if pa.types.is_decimal(dtype) else float if pa.types.is_floating(dtype) else int
    column = pa.array([kind(1), kind(top), None], dtype)
    for fact in (Bounds(0, 10), Bounds(0, 2**62), Categories([1, 2])):
        for source in sources(column, fact, tmp_path):
            (row,) = Query(
                sql="SELECT SUM(c), COUNT(c) FROM t", public=source.public, epsilon=1
            )._without_noise(source, 1)
            upper = fact.upper if isinstance(fact, Bounds) else 0
            assert row == [pytest.approx(1 + min(top, upper), rel=1e-6), 2 if isinstance(fact, Bounds) else 1]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([DAY, None]),
        pa.array([DAY, None], pa.timestamp("ns", "Europe/Berlin")),  # where it is another day already
        pa.array([DAY.replace(tzinfo=None), None]),
        pa.array([DAY.date(), None], pa.date64()),
        pa.array(["2020-01-01", "never"]),
    ],
)
def test_days_are_those_of_utc_whatever_the_zone(column, tmp_path):
    for source in sources(column, Dates("2000-01-01", "2030-01-01"), tmp_path):
        sql = "SELECT COUNT_IF(c = '2020-01-01'), COUNT(c), SUM(EXTRACT(day FROM c)) FROM t"
        assert Query(sql=sql, public=source.public, epsilon=1)._without_noise(source, 1) == [[1, 1, 1]]


@pytest.mark.parametrize(
    "column", [pa.nulls(3), pa.array([None] * 3, pa.float64()), pa.array([None] * 3, pa.string())]
)
def test_a_column_of_missing_values_may_be_anything(column, tmp_path):
    for fact in (
        Bounds(0, 1),
        Categories(["a"]),
        Categories([1]),
        Text(),
        Boolean(),
        Dates("2000-01-01", "2001-01-01"),
    ):
        if isinstance(fact, Boolean | Dates) and pa.types.is_floating(column.type):
            continue  # refused: of a number it is known that it is none of these
        for source in sources(column, fact, tmp_path):
            (row,) = Query(
                sql="SELECT COUNT(*), COUNT(c) FROM t", public=source.public, epsilon=1
            )._without_noise(source, 1)
            assert row == [3, 0]
            if isinstance(fact, Categories):
                noisy_histogram(source.public, "c", epsilon=1)(source, entropy=SeededEntropy(1))


@pytest.mark.parametrize(
    ("column", "fact"),
    [
        (pa.array([1, 2, 7]), Categories(["1", "2"])),
        (pa.array([1.0, 2.0, 1.7]), Categories([1, 2])),
        (pa.array([D("1.0"), D("2.0"), D("1.7")]), Categories([1, 2])),
        (pa.array(["1", "2", "1.7"]), Categories([1, 2])),
        (pa.array(["1", "2", "1.7"]).dictionary_encode(), Categories(["1", "2"])),
    ],
)
def test_categories_count_what_is_declared_and_nothing_that_is_near(column, fact, tmp_path):
    for source in sources(column, fact, tmp_path):
        sql = "SELECT c, COUNT(*) AS n FROM t GROUP BY c"
        assert [n for _, n in Query(sql=sql, public=source.public, epsilon=1)._without_noise(source, 1)] == [
            1,
            1,
        ]
        counts = noisy_histogram(source.public, "c", epsilon=1000)(source, entropy=SeededEntropy(1)).value
        assert list(counts) == [1, 1]  # noise other than 0 has probability below exp(-300)


ODD = {
    "list": (pa.array([[1], None]), "lists"),
    "struct": (pa.array([{"a": 1}, None]), "lists"),
    "map": (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())), "lists"),
    "time": (pa.array([dt.time(1), None]), "times"),
    "duration": (pa.array([dt.timedelta(1), None]), "times"),
    "interval": (pa.array([pa.MonthDayNano([1, 2, 3]), None]), "times"),
    "binary": (pa.array([b"\xff", None]), "bytes"),
    "decimal of 60 digits": (pa.array([D("1.5"), None], pa.decimal256(60, 2)), "more than 38 digits"),
}
FACTS = (
    Bounds(0, 1),
    Categories(["a"]),
    Categories([1]),
    Text(),
    Boolean(),
    Dates("2000-01-01", "2001-01-01"),
)


@pytest.mark.parametrize("name", ODD)
def test_what_no_query_can_use_is_refused_when_it_is_declared_and_ignored_when_not(name, tmp_path):
    column, words = ODD[name]
    table = pa.table({"c": column, "x": [1, 2]})
    for public in (*(Public(schema={"c": f}, table="t") for f in FACTS), Public(unit=Unit("c"), table="t")):
        for make in (connect, Memory):
            with pytest.raises(InvalidInput, match=f"column 'c' of 't' holds .*{words}"):
                make(table, public)
    plain = connect(table, Public(schema={"x": Bounds(0, 9)}, table="t"))
    assert Query(sql="SELECT SUM(x) FROM t", public=plain.public, epsilon=1)._without_noise(plain, 1) == [[3]]
    if pa.types.is_interval(column.type):
        return
    pq.write_table(table, tmp_path / "t.parquet")
    plain = connect(tmp_path / "t.parquet", plain.public)
    assert Query(sql="SELECT SUM(x) FROM t", public=plain.public, epsilon=1)._without_noise(plain, 1) == [[3]]
    if not pa.types.is_duration(column.type):  # in Parquet these are whole numbers
        with pytest.raises(InvalidInput, match=words):
            connect(tmp_path / "t.parquet", Public(schema={"c": Bounds(0, 1)}, table="t"))


@pytest.mark.parametrize("fact", [Bounds(0, 1), Boolean(), Categories([1, 2])])
def test_dates_are_not_taken_for_numbers(fact):
    for column in ([DAY], [DAY.date()]):
        with pytest.raises(InvalidInput, match=r"'c' of 't' holds dates.*Declare Dates"):
            connect({"c": column}, Public(schema={"c": fact}, table="t"))


def test_every_pair_of_fact_and_type_answers_or_is_refused_at_the_door():
    """No pair may get as far as the engine and fail there: that would be after the charge."""
    asked = {
        Bounds: "SELECT SUM(c), AVG(c), MEDIAN(c), COUNT(DISTINCT c), COUNT_IF(c > 0) FROM t",
        Boolean: "SELECT COUNT_IF(c), COUNT(c) FROM t",
        Dates: "SELECT COUNT_IF(c > '2000-05-05'), SUM(EXTRACT(year FROM c)) FROM t",
        Text: "SELECT COUNT(DISTINCT c), COUNT_IF(c = 'a') FROM t",
        Categories: "SELECT MODE(c), COUNT(DISTINCT c), COUNT(c) FROM t",
    }
    columns = [
        *NUMBERS.values(),
        *(column for column, _ in ODD.values()),
        pa.array([DAY]),
        pa.array([True]),
        pa.nulls(1),
    ]
    answered = 0
    for column in columns:
        for fact in FACTS:
            public = Public(schema={"c": fact}, table="t")
            fits = KINDS if isinstance(fact, Categories) else _FITS[type(fact)]
            try:
                source = connect(pa.table({"c": column}), public)
            except InvalidInput:
                assert (
                    isinstance(fact, Categories) or arrow_kind(pa.table({"c": column})["c"].type) not in fits
                )
                continue
            try:
                Query(sql=asked[type(fact)], public=public, epsilon=1)(source, entropy=SeededEntropy(1))
            except EngineError:
                pytest.fail(f"{column.type} declared as {type(fact).__name__} fails in the engine")
            answered += 1
    assert answered > 40


@pytest.mark.parametrize(
    "data",
    [
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["age", "age"]),
        pa.table({"age": [1], "Age": [2]}),
        pd.DataFrame([[1, 2]], columns=["age", "age"]),
        {"age": [1], "AGE": [2]},
    ],
)
def test_two_columns_of_one_name_are_refused(data):
    with pytest.raises(InvalidInput, match=r"two columns of .* Rename or drop one"):
        connect(data, Public(schema={"age": Bounds(0, 9)}, table="t"))


def test_two_columns_of_one_name_are_refused_in_files_too(tmp_path):
    pq.write_table(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["age", "age"]), tmp_path / "t.parquet"
    )
    (tmp_path / "t.csv").write_text("age,Age\n1,2\n")
    for name in ("t.parquet", "t.csv"):
        with pytest.raises(InvalidInput, match="two columns of 't'"):
            connect(tmp_path / name, Public(schema={"age": Bounds(0, 9)}, table="t"))


def test_mixed_columns_of_a_data_frame_are_refused_by_name_and_quote_nothing():
    frame = pd.DataFrame({"age": [1, 2], "note": pd.Series([1, "secret"], dtype=object)})
    with pytest.raises(InvalidInput, match="column 'note' does not hold values of one kind") as refusal:
        connect(frame, Public(schema={"note": Text()}, table="t"))
    assert "secret" not in str(refusal.value)
    assert refusal.value.__cause__ is None


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.duckdb"])
def test_a_file_that_is_something_else_is_refused_without_the_engines_words(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff\xfe\x00secret" * 10)
    data = Database(tmp_path / name, "t") if name.endswith("duckdb") else tmp_path / name
    with pytest.raises(InvalidInput, match="cannot be read") as refusal:
        connect(data, Public(schema={"age": Bounds(0, 9)}, table="t"))
    assert "secret" not in str(refusal.value)


def test_a_draft_says_which_columns_cannot_be_declared(tmp_path):
    table = pa.table({"l": [[1]], "t": [dt.time(1)], "x": [1.5]})
    pq.write_table(table, tmp_path / "t.parquet")
    text = draft(tmp_path / "t.parquet")
    assert '# "l" holds lists, structures or maps, which no query can use.' in text
    assert '# "t" holds times of day' in text
    assert "[columns.l]" not in text
    assert "[columns.x]" in text
