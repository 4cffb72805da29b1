"""The engine does the same work for neighbors: no plan of it may depend on the least or largest value in a
file, which one row can move."""

import functools
import re
from datetime import date, timedelta

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import discreet as dp
from discreet.query import Query
from discreet.sampling import SeededEntropy
from discreet.tables import connect
from discreet.tables.engines import duckdb_reading
from discreet.tables.engines.duckdb_dialect import DUCKDB

GROUPS = ["a", "b", "rare"]
FACTS = dp.Public(
    schema={
        "g": dp.Categories(GROUPS),
        "x": dp.Bounds(0, 100),
        "i": dp.Bounds(0, 100),
        "k": dp.Categories([1, 2, 3]),
        "d": dp.Dates("2020-01-01", "2020-12-31"),
    },
    table="t",
)
QUERIES = [
    "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g",
    "SELECT COUNT(*) AS n FROM t WHERE x > 50 AND i <= 100",
    "SELECT COUNT(*) AS n FROM t WHERE g = 'rare'",
    "SELECT k, AVG(i * 2 + x) AS a FROM t GROUP BY k",
    "SELECT MEDIAN(x) AS m, STDDEV(i) AS v FROM t WHERE d >= '2020-06-01'",
    "SELECT FLOOR(x / 10) AS b, COUNT(*) AS n FROM t GROUP BY 1",
]
ODD = {
    "huge": {"x": 1e300, "i": 2**40, "k": 10**9, "d": date.fromisoformat("2999-01-01"), "g": "zzz"},
    "small": {"x": -1e300, "i": -(2**40), "k": -(10**9), "d": date.fromisoformat("1900-01-01"), "g": ""},
    "no number": {"x": float("nan"), "i": 7, "k": 2, "d": date.fromisoformat("2020-02-02"), "g": "rare"},
    "missing": {"x": None, "i": None, "k": None, "d": None, "g": None},
}


def table(odd=None):
    """Twenty thousand ordinary rows in parts of a few thousand; the odd one takes the place of one in the
    middle."""
    n = 20_000
    columns = {
        "g": ["a", "b"] * (n // 2),
        "x": [float(i % 97) for i in range(n)],
        "i": [i % 97 for i in range(n)],
        "k": [1 + i % 3 for i in range(n)],
        "d": [date(2020, 1, 1) + timedelta(i % 366) for i in range(n)],
    }
    for name, value in (odd or {}).items():
        columns[name][n // 2] = value
    return pa.table({**columns, "d": pa.array(columns["d"], pa.date32())})


def stored(data, folder, name, kind):
    if kind == "arrow":
        return data
    path = folder / f"{name}.{kind}"
    if kind == "parquet":
        pq.write_table(data, path, row_group_size=2_000)
        return path
    with duckdb.connect(str(path)) as con:
        con.execute("CREATE TABLE t AS SELECT * FROM data")
    return dp.tables.Database(path, "t")


def plans(source, sql):
    """How the engine goes about each statement of a query; its guesses of how many rows there are left
    out."""
    seen, answer = [], source.answer

    def watched(text):
        seen.append(text)
        return answer(text)

    source.answer = watched
    try:
        Query(sql=sql, public=FACTS, epsilon=1)(source, entropy=SeededEntropy(1))
    finally:
        del source.answer
    explained = [answer(f"EXPLAIN {text}").column(1).to_pylist()[-1] for text in seen]
    return [re.sub(r"~[\d,]+ rows?", "", re.sub(r"[ \n│┌┐└┘─┬┴├┤]+", " ", text)) for text in explained]


def all_plans(folder, kind, odd=None):
    """The plans of all queries on the ordinary table, or on its neighbor with an odd row."""
    source = connect(stored(table(ODD.get(odd)), folder, "neighbor" if odd else "ordinary", kind), FACTS)
    return [plans(source, sql) for sql in QUERIES]


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    """The plans on the ordinary table, by the kind of file: one neighbor after the other is compared with
    them."""
    return functools.cache(lambda kind: all_plans(tmp_path_factory.mktemp(kind), kind))


@pytest.mark.parametrize(
    ("kind", "odd"),
    [
        *(("parquet", odd) for odd in ODD),
        *((kind, next(iter(ODD))) for kind in ("duckdb", "arrow")),
        *(pytest.param(k, odd, marks=pytest.mark.slow) for k in ("duckdb", "arrow") for odd in list(ODD)[1:]),
    ],
)
def test_one_odd_row_changes_no_plan(kind, odd, tmp_path, ordinary):
    for usual, neighbor in zip(ordinary(kind), all_plans(tmp_path, kind, odd), strict=True):
        assert usual
        assert usual == neighbor
        assert not any("Filters:" in plan for plan in usual), (
            "parts of a file would be left out by what is in them"
        )


def test_an_optimizer_that_nobody_has_judged_is_switched_off(monkeypatch):
    def switched_off() -> set[str]:
        con, _ = duckdb_reading.connection(1, None)
        return set(con.execute("SELECT current_setting('disabled_optimizers')").fetchall()[0][0].split(","))

    assert switched_off() >= {"statistics_propagation", "filter_pushdown", "join_filter_pushdown"}
    assert not switched_off() & duckdb_reading.JUDGED
    monkeypatch.setattr(duckdb_reading, "JUDGED", duckdb_reading.JUDGED - {"top_n"})
    assert "top_n" in switched_off()


def test_the_engines_own_shortcuts_would_tell(tmp_path, monkeypatch):
    looking = {"statistics_propagation", "filter_pushdown", "join_filter_pushdown"}
    monkeypatch.setattr(duckdb_reading, "JUDGED", duckdb_reading.JUDGED | looking)
    ordinary, neighbor = all_plans(tmp_path, "parquet"), all_plans(tmp_path, "parquet", "huge")
    assert ordinary != neighbor
    assert any("Filters:" in plan for one in ordinary for plan in one)


EDGES = [0.0, -0.0, 100.0, 5e-324, -5e-324, 99.99999999999999, 100.00000000000001, 1e308, -1e308, 42.5]


@pytest.mark.parametrize(("low", "high"), [(0, 100), (-100, 100), (-100, 0), (5, 5.5), (-1e308, 1e308)])
def test_a_number_is_clipped_exactly(low, high):
    from discreet.core.operators import clipped, double
    from discreet.core.scan import name

    expression = DUCKDB.write(clipped(name("x"), double(low), double(high)))
    values = [*EDGES, float("inf"), float("-inf"), float("nan"), None]
    with duckdb.connect() as con:
        for value in values:
            (found,) = con.execute(
                f"SELECT {expression} FROM (SELECT CAST(? AS DOUBLE) AS x)", [value]
            ).fetchone()
            if value is None or not np.isfinite(value):
                assert found is None, value
            else:
                assert found == min(max(value, low), high), value


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize(("low", "high"), [(-5, 10), (3, 7)])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("TINYINT", (-128, 127)),
        ("UBIGINT", (0, 2**64 - 1)),
        ("HUGEINT", (-(2**127), 2**127 - 1)),
        ("UHUGEINT", (0, 2**128 - 1)),
    ],
)
def test_whole_numbers_of_every_width_are_clipped_exactly(kind, values, low, high, nullable, tmp_path):
    path = tmp_path / "t.duckdb"
    with duckdb.connect(str(path)) as con:
        listed = ", ".join(f"'{value}'::{kind}" for value in values)
        con.execute(f"CREATE TABLE t AS SELECT UNNEST([{listed}, NULL]) AS v")
    facts = dp.Public(schema={"v": dp.Bounds(low, high, nullable=nullable)}, table="t")
    query = Query(sql="SELECT SUM(v) AS s, COUNT(v) AS n FROM t", public=facts, epsilon=1)
    ((total, count),) = query._without_noise(connect(dp.tables.Database(path, "t"), facts), 1)
    kept = [min(max(value, low), high) for value in values] + ([] if nullable else [low])
    assert (total, count) == (sum(kept), len(kept))
