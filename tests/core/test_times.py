"""Ids that are times: no day of one table may make a question fail because the other table stores times finer, and
which zero of a person stands for a group does not follow the order of rows."""

from __future__ import annotations

import itertools
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from discreet import Bounds, DiscreetError, Public, Related, Unit
from discreet.core.exact import measure, plan_statements
from discreet.query import Query
from discreet.tables import connect

PUBLIC = Public(
    schema={},
    unit=Unit("id"),
    table="a",
    tables=(Related(name="b", schema={"x": Bounds(0, 9)}, private=True, unit="uid"),),
)
SHAPES = (
    "SELECT COUNT(*) FROM a JOIN b ON id = uid",
    "SELECT COUNT(*) FROM a WHERE EXISTS (SELECT 1 FROM b WHERE uid = id)",
    "SELECT COUNT(*) FROM a WHERE EXISTS (SELECT 1 FROM b WHERE uid = id AND x > 0)",
    "SELECT COUNT(*) FROM (SELECT id FROM a UNION ALL SELECT uid FROM b) AS u",
)


def outcome(sql: str, years: tuple[int, ...], units: tuple[str, str]) -> Any:
    """The exact numbers of a question about ids of these years, or "refused" where it is before any row is read."""
    query = Query(sql=sql, public=PUBLIC, epsilon=1, rows=1, groups=1)
    ids = pa.array([date(year, 1, 1) for year in years]).cast(pa.timestamp(units[0]))
    others = pa.table({"uid": pa.array([date(2001, 1, 1)]).cast(pa.timestamp(units[1])), "x": [1.0]})
    engine = connect(pa.table({"id": ids}), PUBLIC, related={"b": others})
    try:
        plan_statements(query.question.form, engine)
    except DiscreetError:
        return "refused"
    return measure(query.question.form, engine, 1).measures[0].tolist()


@pytest.mark.parametrize("sql", SHAPES)
@pytest.mark.parametrize(
    "units", list(itertools.product(("s", "ms", "us", "ns"), repeat=2)), ids=" and ".join
)
def test_no_year_decides_whether_a_question_fails(sql: str, units: tuple[str, str]) -> None:
    """DuckDB made nanoseconds of the year 9999 to compare it, and failed after the charge."""
    usual = outcome(sql, (2001, 2000), units)
    assert usual in ([1], [2], "refused")
    if units[0] != "ns":
        assert outcome(sql, (2001, 9999), units) == usual


def test_which_zero_stands_for_a_group_does_not_follow_the_order_of_rows() -> None:
    public = Public(schema={"g": Bounds(-9, 9), "x": Bounds(0, 9)}, unit=Unit("id"), table="t")
    query = Query(
        sql="SELECT g, SUM(x) FROM t GROUP BY g", public=public, epsilon=1, delta=1e-6, rows=2, groups=1
    )
    rows = [(0.0, 1.0), (-0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]
    for key in range(12):
        found = set()
        for order in itertools.permutations(rows):
            g, x = zip(*order, strict=True)
            engine = connect(pa.table({"id": [1] * 4, "g": g, "x": x}), public, threads=1)
            exact = measure(query.question.form, engine, key)
            found.add(repr([(k, m) for k, m in zip(exact.keys, exact.measures[0].tolist(), strict=True)]))
        assert len(found) == 1, (key, found)
