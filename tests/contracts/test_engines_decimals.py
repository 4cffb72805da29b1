"""Sums and averages of one person's decimals compare as the decimals that an analyst writes, on every engine."""

from __future__ import annotations

import random
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest

from discreet import Bounds, Public, Unit
from discreet.query import Query
from discreet.tables import connect

from .. import postgres, spark

# bounds -> how many decimals the values have: 15 digits in all, and at most six decimals
COLUMNS = {
    "unit": (1, 6),
    "ten": (10, 2),
    "thousand": (1000, 6),
    "million": (10**6, 3),
    "billion": (10**9, 6),
    "huge": (10**13, 2),
    "small": (0.001, 6),
}
PUBLIC = Public(
    schema={name: Bounds(-float(end), float(end)) for name, (end, _) in COLUMNS.items()},
    unit=Unit("id", rows=1),
    table="t",
)


def people(seed: int, number: int = 150) -> tuple[dict[str, dict[int, list[Decimal]]], pa.Table]:
    """One to three rows for each person; also as the exact decimals of each column and person."""
    source = random.Random(seed)
    ids = [person for person in range(number) for _ in range(source.choice((1, 1, 1, 2, 3)))]
    exact: dict[str, dict[int, list[Decimal]]] = {}
    columns: dict[str, list[float]] = {}
    for name, (end, decimals) in COLUMNS.items():
        largest = int(Fraction(str(end)) * 10**decimals)
        drawn = [Decimal(source.randint(-largest, largest)).scaleb(-decimals) for _ in ids]
        columns[name] = [float(x) for x in drawn]
        exact[name] = defaultdict(list)
        for person, x in zip(ids, drawn, strict=True):
            exact[name][person].append(x)
    return exact, pa.table({"id": ids, **columns})


def on_duckdb(table):
    return connect(table, PUBLIC, threads=1)


def on_postgres(table):
    from discreet.tables import connect_postgres

    server = postgres.server()
    return connect_postgres(server.address("reader"), PUBLIC, table=server.load(table))


def on_spark(table):
    from discreet.tables.engines.spark import connect as connect_spark

    return connect_spark(spark.session().createDataFrame(table), PUBLIC)


ENGINES = {
    "duckdb": (on_duckdb, None),
    "postgres": (on_postgres, postgres.MISSING),
    "spark": (on_spark, spark.missing()),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_thresholds_on_one_persons_sum_or_average_are_those_of_decimals(engine):
    open_, skip = ENGINES[engine]
    if skip is not None:
        pytest.skip(skip)
    exact, table = people(20261118)
    conditions, truth = [], []
    for name in COLUMNS:
        sums = {person: sum(values) for person, values in exact[name].items()}
        # an end of the interval is a sum that occurs, so that a sum which is off by one bit is on its wrong side
        low, high = sorted(sums.values())[40], sorted(sums.values())[100]
        alone = sum(len(values) == 1 for values in exact[name].values())
        conditions += [
            f"{name}_n = 1 AND {name}_s = {name}_m AND {name}_a = {name}_m",
            f"{name}_s BETWEEN {low:f} AND {high:f}",
            f"{name}_s > {high:f}",
        ]
        truth += [
            alone,
            sum(low <= s <= high for s in sums.values()),
            sum(s > high for s in sums.values()),
        ]
    inner = ", ".join(f"COUNT({c}) {c}_n, SUM({c}) {c}_s, AVG({c}) {c}_a, MAX({c}) {c}_m" for c in COLUMNS)
    counts = ", ".join(f"COUNT_IF({condition})" for condition in conditions)
    sql = f"SELECT {counts} FROM (SELECT id, {inner} FROM t GROUP BY id)"
    (row,) = Query(sql=sql, public=PUBLIC, epsilon=1)._without_noise(open_(table), 5)
    assert dict(zip(conditions, row, strict=True)) == dict(zip(conditions, truth, strict=True))


def test_an_average_is_rounded_once():
    """0.6 / 3 is 0.19999999999999998 in doubles."""
    table = pa.table({"id": [1, 1, 1], **{name: [0.1, 0.2, 0.3] for name in COLUMNS}})
    sql = "SELECT COUNT_IF(a = 0.2) FROM (SELECT id, AVG(ten) a FROM t GROUP BY id)"
    assert Query(sql=sql, public=PUBLIC, epsilon=1)._without_noise(on_duckdb(table), 5) == [[1]]


def test_wide_and_narrow_ranges_have_steps_that_fit():
    """Beyond 15 digits, and below 22 decimals, the steps are powers of two: nothing fails, nothing wraps."""
    ends = {"a": 1e30, "b": 1e149, "c": 1e-12, "d": 1e-290, "e": 1e16, "f": 0.3}
    public = Public(schema={n: Bounds(-e, e) for n, e in ends.items()}, unit=Unit("id", rows=1), table="t")
    table = pa.table({"id": [1, 1, 2], **{n: [e, e, -e] for n, e in ends.items()}})
    close = " AND ".join(f"ABS({n}_s / {2 * e!r} - 1) < 1e-8" for n, e in ends.items() if e > 1e-150)
    inner = ", ".join(f"SUM({n}) {n}_s" for n in ends)
    sql = f"SELECT COUNT_IF({close}), COUNT(*) FROM (SELECT id, {inner} FROM t GROUP BY id)"
    engine = connect(table, public, threads=1)
    assert Query(sql=sql, public=public, epsilon=1)._without_noise(engine, 5) == [[1, 2]]
