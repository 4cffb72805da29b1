"""What outside attacks on SQL queries found, and the classes around it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from discreet import Bounds, Categories, Public, Text, rows
from discreet._errors import InvalidInput
from discreet._public import Related, Unit
from discreet.query import Query, QueryError
from discreet.tables import connect

WARDS = Related(name="wards", schema={"ward": Text(), "region": Text()}, private=False, key=("ward",))
ROWS = Public(
    table="t",
    schema={"ward": Categories(["a", "b", "north"]), "x": Bounds(-10, 10)},
    unit=rows(),
    tables=(WARDS,),
)
RELATED = {"wards": pa.table({"ward": ["a", "b", "c"], "region": ["north", "north", "north"]})}


@pytest.mark.parametrize(
    "wards",
    [
        "(SELECT region AS ward FROM wards) w",
        "(SELECT region, ward FROM wards) w(ward, region)",
        "(SELECT ward AS region, region AS ward FROM wards) w",
    ],
)
@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN"])
def test_another_column_under_the_name_of_the_key_is_no_key(wards: str, kind: str) -> None:
    """Three regions are called north: joined on these, one row becomes three, whatever the sub-query calls
    the column."""
    sql = f"SELECT COUNT(*) AS n FROM t {kind} {wards} ON w.ward = t.ward"
    with pytest.raises(InvalidInput, match="rows="):
        Query(sql=sql, public=ROWS, epsilon=1)
    engine = connect(pa.table({"ward": ["north"], "x": [1.0]}), ROWS, related=RELATED)
    (count,) = Query(sql=sql, public=ROWS, epsilon=1, rows=1)._measure(engine, 1).measures
    assert count.tolist() == [1]


def test_a_key_under_another_name_is_still_one() -> None:
    sql = "SELECT COUNT(*) AS n FROM t JOIN (SELECT ward AS w1 FROM wards) w ON w.w1 = t.ward"
    assert not Query(sql=sql, public=ROWS, epsilon=1)._plan.many
    # Without the key among its columns the sub-query was refused as not understood.
    region = "SELECT COUNT(*) AS n FROM t JOIN (SELECT region FROM wards) w ON w.region = t.ward"
    assert Query(sql=region, public=ROWS, epsilon=1, rows=1)._plan.many


def test_a_unit_that_an_outer_join_left_missing_is_neither_in_nor_not_in_a_list() -> None:
    """Where `s` has no row of a person, `s.p` is NULL, and so is `s.p NOT IN (...)`: DuckDB leaves the row
    out."""
    stays = Related(name="s", schema={"y": Bounds(0, 9)}, private=True, unit="p")
    public = Public(table="t", schema={"x": Bounds(0, 9)}, unit=Unit("p", rows=5), tables=(stays,))
    related = {"s": pa.table({"p": ["a", "b"], "y": [1, 1]})}
    engine = connect(pa.table({"p": ["a", "b", "c"], "x": [1, 5, 5]}), public, related=related)
    counts = []
    for test in ("IN", "NOT IN"):
        sql = (
            f"SELECT COUNT(*) AS n FROM t LEFT JOIN s ON s.p = t.p WHERE s.p {test} (SELECT p FROM t "
            f"WHERE x > 3)"
        )
        (count,) = Query(sql=sql, public=public, epsilon=1)._measure(engine, 1).measures
        counts += count.tolist()
    assert counts == [1, 1]


def test_nulls_first_is_refused_and_not_passed_over() -> None:
    sql = "SELECT ward, AVG(x) AS a FROM t GROUP BY ward ORDER BY a"
    with pytest.raises(QueryError, match="NULLS FIRST"):
        Query(sql=f"{sql} NULLS FIRST", public=ROWS, epsilon=1)
    last = Query(sql=f"{sql} NULLS LAST", public=ROWS, epsilon=1)
    assert last.key == Query(sql=sql, public=ROWS, epsilon=1).key
