"""Nothing fails on a row: values at the edge of every type and beyond it, by every way into the engine,
change no error and no other row."""

from __future__ import annotations

import gc
import itertools
import math
import re
from decimal import Decimal as D
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import discreet as dp
from discreet import Bounds, Categories, InvalidInput, Public, Text
from discreet._public import Boolean, Dates
from discreet.query import Query
from discreet.tables import Database, EngineError, Memory, connect
from discreet.tables.columns import check_facts
from discreet.tables.engines.duckdb_reading import csv_reader

EXTREMES = [0, 1, -1, 2**62, -(2**62), 2**63 - 1, -(2**63) + 1, -(2**63), None]
BYTES = [
    b"plain",
    b"\xff\xfe",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\x80",
    b"a\x00b",
    "é".encode(),
    b"",
    b"x" * 70_000,
    None,
    b"1e400",
    b"nan",
    b"-inf",
    b"9" * 400,
    b"2020-01-01",
    b"999999-01-01",
    b"infinity",
    b"true",
]
FLOATS = [math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324, 1.7e308, -1.7e308, None]
DECIMALS = [D(10**38 - 1), D(-(10**38) + 1), D(0), None]
DATES, TRUTH = Dates("2000-01-01", "2001-01-01"), Boolean()


def raw_text(values, *, large=True):
    """A column of text of any bytes, as a careless writer leaves it."""
    column = pa.array(values, pa.large_binary() if large else pa.binary())
    return pa.Array.from_buffers(
        pa.large_string() if large else pa.string(), len(column), column.buffers(), column.null_count
    )


def hostile():
    """Columns by name, each with the ways in which it may be declared."""
    whole = pa.array(EXTREMES, pa.int64())
    days = pa.array([0, 2**31 - 1, -(2**31), -(2**31) + 1, 800_000, None], pa.int32())
    wide = pa.array([D(1), D(10**30), None], pa.decimal128(38, 0))
    number, text = Bounds(0, 10), Text()
    yield (
        "text",
        raw_text(BYTES),
        [text, number, DATES, TRUTH, Categories(["plain", "é"]), Categories([1, 2])],
    )
    dictionary = pa.DictionaryArray.from_arrays(pa.array([*range(10), None]), pa.array(["a"] * 10))
    yield "dictionary", dictionary, [text, Categories(["a"])]
    for unit in ("s", "ms", "us", "ns"):
        yield f"time {unit}", whole.view(pa.timestamp(unit)), [text, DATES]
    yield "zoned", whole.view(pa.timestamp("us", "Europe/Berlin")), [text, DATES]
    yield "zoned ms", whole.view(pa.timestamp("ms", "UTC")), [text, DATES]
    yield "date32", days.view(pa.date32()), [text, DATES]
    yield "date64", whole.view(pa.date64()), [text, DATES]
    yield "int64", whole, [number, text, TRUTH, Categories([1, 2])]
    yield "uint64", pa.array([0, 2**64 - 1, None], pa.uint64()), [number, text, Categories([1, 2])]
    yield "double", pa.array(FLOATS), [number, text, Categories([1, 2]), Bounds(0, 10, nullable=False)]
    yield "half", pa.array(np.array([math.nan, math.inf, -0.0, 6e-8, 65504], np.float16)), [number, text]
    yield "decimal", pa.array(DECIMALS, pa.decimal128(38, 0)), [number, text, Categories([1, 2])]
    yield (
        "fine",
        pa.array([D("1e-38"), D("-0.99999999999999999999999999999999999999")], pa.decimal128(38, 38)),
        [number],
    )
    yield "broken decimal", pa.Array.from_buffers(pa.decimal128(3, 0), 3, wide.buffers(), 1), [number, text]
    yield "null", pa.nulls(3), [number, text, DATES, TRUTH]
    yield "boolean", pa.array([True, False, None]), [TRUTH, number, text]


def table(length=24):
    """All of these side by side, under every fact, repeated to one length; and their schema."""
    columns, schema = {}, {}
    for name, column, facts in hostile():
        places = pa.array([i % len(column) for i in range(length)])
        for i, fact in enumerate(facts):
            columns[f"{name} {i}"], schema[f"{name} {i}"] = column.take(places), fact
    return pa.table(columns), schema


def arrow(data, folder):
    return data, data.column_names


def parquet(data, folder):
    kept = storable(data, lambda own: pq.write_table(own, folder / "trial.parquet"))
    pq.write_table(kept, folder / "t.parquet", row_group_size=7)
    return folder / "t.parquet", kept.column_names


def database(data, folder):
    with duckdb.connect(str(folder / "t.duckdb")) as con:

        def store(own):
            con.register("own", own)
            con.execute("CREATE OR REPLACE TABLE t AS SELECT * FROM own")

        kept = storable(data, store)
        store(kept)
    return Database(folder / "t.duckdb", "t"), kept.column_names


def pandas(data, folder):
    kept = storable(
        data, lambda own: connect(own.to_pandas(), Public(schema={own.column_names[0]: Text()}, table="t"))
    )
    return kept.to_pandas(), kept.column_names


def polars(data, folder):
    kept = storable(data, pl.from_arrow)
    return pl.from_arrow(kept), kept.column_names


def storable(data, store):
    """The columns that a store, with checks of its own, takes at all."""
    kept = []
    for name in data.column_names:
        try:
            store(data.select([name]))
        except BaseException:  # polars panics
            continue
        kept.append(name)
    return data.select(kept)


def asked(name, fact):
    """One query with everything that this fact allows."""
    c = '"' + name + '"'
    if isinstance(fact, Bounds):
        return (
            f"SELECT COUNT({c}), SUM({c}), AVG({c}), MEDIAN({c}), COUNT(DISTINCT {c}) FROM t WHERE {c} < "
            f"5 OR {c} IS NULL OR {c} >= 0"
        )
    if isinstance(fact, Dates):
        return (
            f"SELECT COUNT({c}), SUM(YEAR({c})), SUM(MONTH({c})) FROM t WHERE {c} >= '2000-01-01' OR {c} "
            f"IS NULL"
        )
    if isinstance(fact, Boolean):
        return f"SELECT COUNT({c}), COUNT(*) FROM t WHERE {c} OR NOT {c} OR {c} IS NULL"
    if isinstance(fact, Categories):
        return f"SELECT {c}, COUNT(*) FROM t GROUP BY {c}"
    return (
        f"SELECT COUNT({c}), COUNT(DISTINCT UPPER({c})), COUNT(DISTINCT {c} || 'x') FROM t "
        f"WHERE LENGTH({c}) < 9 OR {c} LIKE '%a_%' OR {c} ILIKE 'É%' OR SUBSTRING({c}, 1, 2) = "
        f"LOWER({c}) OR {c} IS NULL OR TRUE"
    )


def fits(name, fact, kinds):
    """A store may have changed a column's type: whole numbers with gaps are floats to pandas."""
    try:
        check_facts("t", [(name, fact)], None, kinds)
    except InvalidInput:
        return False
    return True


# pandas and polars hand over Arrow tables, 3 CPU-seconds each: in `make test-all`
@pytest.mark.parametrize(
    "way", [arrow, parquet, database, *(pytest.param(w, marks=pytest.mark.slow) for w in (pandas, polars))]
)
def test_no_query_fails_on_a_value_of_any_type(way, tmp_path):
    data, schema = table()
    source, names = way(data, tmp_path)
    kinds = connect(source, Public(table="t")).kinds["t"]
    names = [name for name in names if fits(name, schema[name], kinds)]
    assert len(names) > 15
    public = Public(schema={name: schema[name] for name in names}, table="t")
    engine = connect(source, public)
    for name in names:
        query = Query(sql=asked(name, schema[name]), public=public, epsilon=1, delta=1e-6)
        try:
            query._measure(engine, 7)
        except EngineError:
            pytest.fail(f"{name}, declared as {schema[name]}")
        assert sum(len(batch.column(0).to_pylist()) for batch in engine.batches([name])) == data.num_rows


def test_memory_hands_out_what_python_can_hold():
    data, schema = table()
    source = Memory(data, Public(schema=schema, table="t"))
    for name in schema:
        assert sum(len(batch.column(0).to_pylist()) for batch in source.batches([name])) == data.num_rows


@pytest.mark.parametrize("way", [arrow, parquet])
def test_a_row_that_cannot_be_read_takes_no_other_with_it(way, tmp_path):
    """Of an ordinary column, one value no text and one time beyond all years: the others are counted as
    before."""
    for odd in (False, True):
        texts = raw_text([b"a"] * 50 + [b"\xff" if odd else b"a"] + [b"b"] * 49)
        times = pa.array([0] * 50 + [2**62 if odd else 0] + [0] * 49).view(pa.timestamp("ms"))
        values = raw_text([b"a", b"\xff" if odd else b"a", b"b"], large=False)
        coded = pa.DictionaryArray.from_arrays(pa.array([0] * 50 + [1] + [2] * 49), values)
        folder = tmp_path / str(odd)
        folder.mkdir()
        source, _ = way(pa.table({"s": texts, "d": times, "c": coded}), folder)
        public = Public(
            schema={"s": Categories(["a", "b"]), "d": Dates("1960-01-01", "2030-01-01"), "c": Text()},
            table="t",
        )
        engine = connect(source, public)

        def exact(sql, engine=engine, public=public):
            return Query(sql=sql, public=public, epsilon=1, delta=1e-6)._without_noise(engine, 7)

        assert exact("SELECT s, COUNT(*) FROM t GROUP BY s") == [["a", 50 if odd else 51], ["b", 49]]
        assert exact("SELECT COUNT(*) FROM t WHERE UPPER(c) = 'A' OR c = 'b'") == [[99 if odd else 100]]
        assert exact("SELECT COUNT(*) FROM t WHERE d < '2030-01-01'") == [[99 if odd else 100]]


def test_a_copy_that_can_be_read_leaves_with_the_engine(tmp_path):
    source, _ = parquet(pa.table({"s": raw_text([b"\xff"])}), tmp_path)
    engine = connect(source, Public(schema={"s": Text()}, table="t"))
    (path,) = engine._opened._reader.paths[1:]
    assert Path(path).exists()
    del engine
    gc.collect()
    assert not Path(path).exists()


def broken():
    """An engine that has met an internal error, and the query that is asked of it."""
    public = Public(schema={"s": Text()}, table="t")
    engine = connect(pa.table({"s": ["a", "b"]}), public)
    # Behind the back of everything that makes text safe.
    raw = engine._con.cursor()
    raw.register("own", pa.table({"s": raw_text([b"\xff\xfe"])}))
    with pytest.raises(duckdb.InternalException):
        raw.execute("SELECT UPPER(s) FROM own").fetchall()
    with pytest.raises(duckdb.FatalException, match="invalidated"):
        raw.execute("SELECT 1")
    return engine


def test_an_engine_that_broke_is_replaced_before_the_next_charge(tmp_path):
    engine = broken()
    session = dp.open(engine, budget=dp.Budget(epsilon=1), ledger=tmp_path / "t.ledger")
    assert len(session.sql("SELECT COUNT(*) AS n FROM t", epsilon=0.5)["n"]) == 1
    assert session.spent == pytest.approx(0.5)
    engine = broken()
    assert engine.answer("SELECT COUNT(*) AS n FROM t").to_pylist() == [{"n": 2}]


def test_an_engine_whose_file_changed_is_not_replaced_by_another_table(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("s\na\n")
    engine = connect(path, Public(schema={"s": Text()}, table="t"))
    session = dp.open(engine, budget=dp.Budget(epsilon=1), ledger=tmp_path / "t.ledger")
    path.write_text("s\na\nb\n")
    monkeypatch.setattr(engine._opened, "_answers", lambda: False)
    with pytest.raises(EngineError, match="changed since"):
        session.sql("SELECT COUNT(*) AS n FROM t", epsilon=0.5)
    assert session.spent == 0


@pytest.mark.parametrize(
    "line", ['7,"open', '7,"open""', '7,5" pipe', '7,"5" pipe', '"7,x', '7,"', '7,""open"']
)
def test_a_quote_that_would_swallow_lines_is_refused_at_opening(line, tmp_path):
    path, public = tmp_path / "t.csv", Public(schema={"b": Text()}, table="t")
    lines = [f"{i},x{i}" for i in range(100)]
    path.write_text("\n".join(["a,b", *lines[:50], line, *lines[50:]]) + "\n")
    with pytest.raises(InvalidInput, match="quotes") as refusal:
        connect(path, public)
    assert "open" not in str(refusal.value).replace("opened", "")


@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
def test_quotes_that_pair_up_are_read(chunk, tmp_path, monkeypatch):
    monkeypatch.setattr("discreet.tables.files._CHUNK", chunk)
    path, public = tmp_path / "t.csv", Public(schema={"b": Text()}, table="t")
    texts = ["plain", 'say ""hi""', '""', "two\nlines", "a,b", "", '""""']
    path.write_text("a,b\r\n" + "".join(f'{i},"{text}"\r\n' for i, text in enumerate(texts)), newline="")
    engine = connect(path, public)
    found = {value for batch in engine.batches(["b"]) for value in batch.column(0).to_pylist() if value}
    assert found == {text.replace('""', '"') for text in texts if text}


def test_a_broken_line_of_a_csv_file_takes_no_other_with_it(tmp_path):
    public = Public(schema={"b": Text()}, table="t")
    lines = [b"%d,x%d" % (i, i) for i in range(3000)]
    for odd in (b"7,\xff\xfe", b"7," + b"y" * 3_000_000, b"7,a\0b", b"7,a,b,c", b"7", b""):
        for place in (0, 2000):
            path = tmp_path / "t.csv"
            path.write_bytes(b"\n".join([b"a,b", *lines[:place], odd, *lines[place:]]) + b"\n")
            engine = connect(path, public)
            assert engine.answer("SELECT COUNT(*) AS n FROM t WHERE starts_with(b, 'x')").to_pylist() == [
                {"n": 3000}
            ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_an_odd_line_end_in_a_csv_file_changes_no_other_line(end, tmp_path):
    path = tmp_path / "t.csv"
    for columns, odd, place in itertools.product((1, 2), (b"\r", b"7\r\r", b"\n", b"7\r8"), (0, 2)):
        lines = [b",".join([b"x%d" % i] * columns) for i in range(4)]
        header = b",".join([b"a", b"b"][:columns])
        path.write_bytes(end.join([header, *lines[:place], odd, *lines[place:]]) + end)
        first = re.search(rb"\r\n?|\n", path.read_bytes())
        if columns == 1 and first[0] == b"\r\n" and re.search(rb"\r(?!\n)", path.read_bytes()):
            with pytest.raises(InvalidInput, match="end in different ways"):
                csv_reader(str(path), "t")
            continue
        read = {a for (a,) in duckdb.sql(f"SELECT a FROM {csv_reader(str(path), 't')}").fetchall()}
        assert {"x0", "x1", "x2", "x3"} <= read, (columns, odd, place)
    path.write_bytes(end.join([b"a", b"1", b"", b"3"]) + end)
    assert duckdb.sql(f"SELECT a FROM {csv_reader(str(path), 't')}").fetchall() == [("1",), (None,), ("3",)]


def test_a_data_frame_that_is_changed_in_place_stays_what_was_opened():
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0]})
    array = np.array([1.0, 2.0, 3.0])
    engines = [
        connect(data, Public(schema={"x": Bounds(0, 10)}, table="t")) for data in (frame, {"x": array})
    ]
    frame.iloc[0, 0] = 9.0
    frame["x"].to_numpy().flags.writeable and frame["x"].to_numpy().__setitem__(1, 9.0)
    array[:] = 9.0
    for engine in engines:
        assert engine.answer("SELECT SUM(x) AS s FROM t").to_pylist() == [{"s": 6.0}]


# One row that cannot be read sends a file through a copy (`columns.engine_types`): it must not decide what the
# rows of others say there.


def _readings(data, column, fact):
    public = Public(schema={"s": Text(), column: fact}, table="t")
    engine = connect(data, public)
    rows = [str(value) for batch in engine.batches([column]) for value in batch.column(0).cast("string")]
    sql = f'SELECT COUNT("{column}") AS n FROM t'
    return sorted(rows), Query(sql=sql, public=public, epsilon=1)._without_noise(engine, 3), engine.kinds["t"]


# In days from 1970: inside the years 1 to 9999 and next to their ends, and far beyond.
ENDS = [18_300, -719_162, -719_163, 2_932_896, 2_932_897, 3_000_000, -800_000, None]


def _of_files():
    yield pa.array(ENDS, pa.int32()).view(pa.date32()), DATES
    for unit, parts in (("s", 1), ("ms", 10**3), ("us", 10**6)):
        times = pa.array([None if day is None else day * 86_400 * parts for day in ENDS], pa.int64())
        yield from ((times.view(pa.timestamp(unit, zone)), DATES) for zone in (None, "UTC"))
    day, most = 86_400 * 10**9, 2**63 - 1
    nanoseconds = pa.array([0, most, -most, -most - 1, most - day + 1, most - day + 2, day - most, None])
    yield from ((nanoseconds.view(pa.timestamp("ns", zone)), DATES) for zone in (None, "UTC"))
    # more digits than their type has
    wide = pa.array([D(99_999), D(100_000), D(-100_000), D(5), None], pa.decimal128(38, 0))
    yield pa.Array.from_buffers(pa.decimal128(5, 2), 5, wide.buffers(), 1), Bounds(0, 10)
    yield pa.array(np.array([math.nan, math.inf, -0.0, 65504], np.float16)), Bounds(0, 10)
    yield pa.array([0, 2**64 - 1, None], pa.uint64()), Bounds(0, 10)


def test_a_row_of_a_file_that_cannot_be_read_changes_no_other(tmp_path):
    for column, fact in _of_files():
        outcomes = []
        for bad in (b"a", b"\xff"):
            texts = raw_text([b"a"] * (len(column) - 1) + [bad])
            pq.write_table(pa.table({"c": column, "s": texts}), tmp_path / "t.parquet")
            outcomes.append(_readings(tmp_path / "t.parquet", "c", fact))
        assert outcomes[0] == outcomes[1], column.type


def test_a_row_that_cannot_be_read_changes_no_time_of_96_bits_and_no_uuid(tmp_path):
    # the years 3000 and 1500
    times = pa.array([32_503_680_000 * 10**6, -14_821_056_000 * 10**6]).view(pa.timestamp("us"))
    ids = pa.array([bytes(16), bytes([255] * 16)], pa.uuid())
    public = Public(schema={"at": Dates("1000-01-01", "3500-01-01"), "id": Text(), "s": Text()}, table="t")
    outcomes = []
    for bad in (b"a", b"\xff"):
        table = pa.table({"at": times, "id": ids, "s": raw_text([b"a", bad])})
        pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
        engine = connect(tmp_path / "t.parquet", public)
        # No text of a query makes it fail, as one that is no UUID would where the column holds these.
        sql = "SELECT COUNT(*) AS n FROM t WHERE id <> 'nobody' AND \"at\" < DATE '1600-01-01'"
        rows = pa.Table.from_batches(engine.batches(["at", "id"])).to_pydict()
        outcomes.append((rows, Query(sql=sql, public=public, epsilon=1)._without_noise(engine, 3)))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] == [[1.0]]


def test_a_row_of_a_database_that_cannot_be_read_changes_no_other(tmp_path):
    values = {
        "HUGEINT": [str(2**127 - 1), str(-(2**127)), str(10**38), "5"],
        "UHUGEINT": [str(2**128 - 1), "0", str(10**38), "5"],
        "DATE": ["infinity", "-infinity", "20000-01-01", "2000-05-05"],
        "TIMESTAMP": ["infinity", "-infinity", "20000-01-01 00:00:00", "2000-05-05 00:00:00"],
        "TIMESTAMPTZ": ["infinity", "9999-12-31 12:00:00+00", "0001-01-01 12:00:00+00", "2000-05-05 00:00:00+00"],
        "TIMESTAMP_S": ["infinity", "0044-03-15 (BC) 00:00:00", "20000-01-01 00:00:00", "2000-05-05 00:00:00"],
        "TIMESTAMP_NS": ["2262-04-11 12:00:00", "1677-09-21 12:00:00", "2000-05-05 00:00:00", "2001-01-01"],
    }  # fmt: skip
    for type_, listed in values.items():
        outcomes = []
        for long in (0, 2_000_000):
            path = tmp_path / f"{type_}{long}.duckdb"
            with duckdb.connect(str(path)) as con:
                con.execute(f"SET TimeZone='UTC'; CREATE TABLE t (c {type_}, s VARCHAR)")
                for i, value in enumerate(listed):
                    con.execute("INSERT INTO t VALUES (?, ?)", [value, "x" * (long if i == 0 else 1)])
            fact = Bounds(0, 10) if "HUGE" in type_ else DATES
            outcomes.append(_readings(Database(path, "t"), "c", fact))
        assert outcomes[0] == outcomes[1], type_
        if "HUGE" not in type_:
            assert outcomes[0][1][0][0] == (2 if type_ == "TIMESTAMP_NS" else 1)


def test_ids_of_128_bits_stay_different_where_rows_leave(tmp_path):
    with duckdb.connect(str(tmp_path / "t.duckdb")) as con:
        con.execute(
            f"CREATE TABLE t AS SELECT {2**127 - 1}::UHUGEINT AS u UNION ALL SELECT {2**127 - 2}::UHUGEINT"
        )
    engine = connect(Database(tmp_path / "t.duckdb", "t"), Public(table="t", unit=dp.Unit("u", rows=1)))
    rows = [value for batch in engine.batches(["u"]) for value in batch.column(0).to_pylist()]
    assert sorted(rows) == [str(2**127 - 2), str(2**127 - 1)]
