"""The product of aggregates, units, groupings and shapes on the Adult census table, against plain SQL on the
bounded table.

The table is not ours to ship: these run where its file lies beside the repository, and are left out
elsewhere. The same product runs everywhere on generated tables, and with limits that bind (test_semantics).
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet import Bounds, Categories, Public, Related, Text, Unit
from discreet.core.domain import number
from discreet.core.measures import candidates
from discreet.query import Query
from discreet.tables import connect

ADULT = Path(__file__).parents[3] / "shared" / "data" / "adult.parquet"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not ADULT.exists(), reason="the Adult table is not at hand (../shared/data/adult.parquet)"
    ),
]
SEXES, LEVELS, EARNS = ["Female", "Male"], list(range(1, 17)), ["<=50K", ">50K"]
SCHEMA = {
    "age": Bounds(20, 80),
    "hours_per_week": Bounds(0, 60),
    "capital_gain": Bounds(0, 10_000),
    "education_num": Categories(LEVELS),
    "sex": Categories(SEXES),
    "income": Categories(EARNS),
    "native_country": Text(),
}
LEVEL = Related(name="levels", schema={"level": Categories(LEVELS), "years": Bounds(0, 20)})
BOUNDED = """CREATE TABLE bounded AS SELECT * REPLACE (
  LEAST(GREATEST(age, 20), 80) AS age, LEAST(hours_per_week, 60) AS hours_per_week, LEAST(capital_gain, 10000) AS capital_gain)
FROM adult"""
GROUPINGS = {
    "none": None,
    "categories": "sex",
    "numbers": "education_num",
    "bins": "FLOOR(age / 10)",
    "unknown": "native_country",
    "two keys": "sex, FLOOR(hours_per_week / 20)",
}
SHAPES = {
    "plain": ("{t}", ""),
    "where": ("{t}", "WHERE age >= 30 AND (income = '>50K' OR hours_per_week > 45) AND sex IS NOT NULL"),
    "join": ("{t} JOIN levels ON education_num = level", "WHERE years > 8"),
    "sub-query": ("(SELECT *, age AS years FROM {t} WHERE capital_gain > 0) AS kept", ""),
}
UNITS = {
    "row": Unit(rows=1, groups=1),
    "person": Unit("id", rows=3, groups=3),
}  # three rows a person, so that limits do not bind
CASES = list(itertools.product(GROUPINGS, SHAPES, UNITS))


@pytest.fixture(scope="module")
def adult():
    table = pq.read_table(ADULT, use_threads=False, pre_buffer=False)
    table = table.append_column("id", pa.array([i // 3 for i in range(table.num_rows)]))
    levels = pa.table({"level": LEVELS, "years": [float(level) for level in LEVELS]})
    con = duckdb.connect()
    con.register("adult", table)
    con.register("levels", levels)
    con.execute(BOUNDED)
    engines = {
        name: connect(
            table,
            Public(schema=SCHEMA, unit=unit, table="adult", tables=(LEVEL,)),
            related={"levels": levels},
        )
        for name, unit in UNITS.items()
    }
    return con, engines


def text_of(grouping, shape, aggregates, after=""):
    source, where = SHAPES[shape]
    keys = GROUPINGS[grouping]
    head, tail = (f"{keys}, ", f" GROUP BY {keys}") if keys else ("", "")
    return f"SELECT {head}{aggregates} FROM {source} {where}{tail}{after}", len(
        keys.split(",")
    ) if keys else 0


def ours_of(adult, unit, *asked):
    """Our answer without noise, by key."""
    engine = adult[1][unit]
    text, size = text_of(*asked)
    query = Query(sql=text.format(t="adult"), public=engine.public, epsilon=1, delta=1e-6)
    return {tuple(row[:size]): row[size:] for row in query._without_noise(engine, 7)}


def plain_of(adult, *asked):
    """Plain SQL's on the bounded table. Rows whose key is missing belong to no group of ours."""
    text, size = text_of(*asked)
    found = adult[0].execute(text.format(t="bounded")).fetchall()
    return {tuple(row[:size]): row[size:] for row in found if None not in row[:size]}


def both(adult, unit, *asked):
    return ours_of(adult, unit, *asked), plain_of(adult, *asked)


def close(a, b):
    return a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6)


@pytest.mark.parametrize(("grouping", "shape", "unit"), CASES)
def test_sums_counts_and_moments_equal_plain_sql(adult, grouping, shape, unit):
    aggregates = (
        "COUNT(*), COUNT(DISTINCT education_num), SUM(age), SUM(capital_gain), AVG(hours_per_week), "
        "VAR_POP(age), STDDEV(hours_per_week), "
        "COUNT(*) FILTER (WHERE income = '>50K'), SUM(CASE WHEN sex = 'Male' THEN 1 ELSE 0 END)"
    )
    ours, plain = both(adult, unit, grouping, shape, aggregates)
    assert {key for key, row in plain.items() if row[0]} <= set(ours)
    for key, row in ours.items():
        if key not in plain:
            assert row[0] == 0  # a public group without rows
            continue
        assert row[0] == plain[key][0]
        assert row[1] == plain[key][1]
        assert all(close(a, b) for a, b in zip(row[2:], plain[key][2:], strict=True)), key


@pytest.mark.parametrize(("grouping", "shape", "unit"), CASES)
def test_quantiles_and_most_common_values_are_those_of_plain_sql(adult, grouping, shape, unit):
    asked = "MEDIAN(age), QUANTILE_CONT(hours_per_week, 0.9), MODE(sex), APPROX_TOP_K(education_num, 3)"
    chosen = ours_of(adult, unit, grouping, shape, asked)
    lists = "LIST(age), LIST(hours_per_week), LIST(sex), LIST(education_num)"
    seen = 0
    for key, (ages, hours, sexes, levels) in plain_of(adult, grouping, shape, lists).items():
        if key not in chosen or not ages:
            continue
        seen += 1
        median, high, mode, top = chosen[key]
        assert holds_rank(median, ages, Fraction(1, 2), (20, 80))
        assert holds_rank(high, hours, Fraction(9, 10), (0, 60))
        assert sexes.count(mode) == max(map(sexes.count, SEXES))
        counts = sorted(map(levels.count, LEVELS), reverse=True)
        assert [levels.count(value) for value in top] == counts[:3]
    assert seen


def holds_rank(value, values, q, bounds):
    """Whether the candidate's cell holds the rank q n."""
    first, step, points = candidates(number(*map(float, bounds)))
    cells = np.clip(np.floor((np.array(values) - float(first)) / float(step) + 0.5), 0, points - 1)
    at = int(np.argmin(np.abs(np.clip(float(first) + np.arange(points) * float(step), *bounds) - value)))
    return (cells < at).sum() <= q * len(values) <= (cells <= at).sum()


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_done_afterwards_equals_plain_sql(adult, unit):
    after = " HAVING COUNT(*) > 1000 ORDER BY 2 DESC LIMIT 4"
    for shape in SHAPES:
        ours, plain = both(
            adult, unit, "numbers", shape, "COUNT(*), 100.0 * SUM(age) / COUNT(*), SUM(age) - COUNT(*)", after
        )
        assert list(ours) == list(plain)
        assert all(close(a, b) for key in plain for a, b in zip(ours[key], plain[key], strict=True))


def test_limits_that_bind_equal_the_limits_written_in_plain_sql(adult):
    """At most two rows of a person count in a group: counts and sums are clipped by (person, group), in any
    of the groups."""
    con, engines = adult
    public = engines["person"].public
    for keys in ("sex", "education_num", "FLOOR(age / 10)"):
        query = Query(
            sql=f"SELECT {keys} AS k, COUNT(*), SUM(age) FROM adult GROUP BY 1",
            public=public,
            epsilon=1,
            rows=2,
            groups=16,
        )
        plain = con.execute(
            f"SELECT k, SUM(LEAST(n, 2)), SUM(LEAST(s, 160)) FROM (SELECT id, {keys} AS k, COUNT(*) "
            f"AS n, SUM(age) AS s FROM bounded "
            f"GROUP BY ALL) GROUP BY k"
        ).fetchall()
        ours = {k: rest for k, *rest in query._without_noise(engines["person"], 3)}
        assert len(plain) > 1
        for k, n, s in plain:
            assert ours[k][0] == n
            assert close(ours[k][1], s)
