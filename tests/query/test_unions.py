"""UNION ALL, and EXISTS on any condition: without noise they are what plain DuckDB answers."""

from __future__ import annotations

import pytest

from discreet import Public, Reference, Related, Text, Unit
from discreet.core.sources import Filtered, Joined, scans
from discreet.query import Query, QueryError
from discreet.query.plan import plan

from .plain import RELATED, SCHEMA, Both, tables

_BOTH = "SELECT id, x, d FROM people UNION ALL SELECT who, cost, NULL FROM visits"
_LATER = "SELECT 1 FROM visits WHERE who = people.id AND"
ANSWERED = (
    f"SELECT COUNT(*), SUM(x), COUNT(d) FROM ({_BOTH}) AS u",
    f"SELECT COUNT(DISTINCT id) FROM ({_BOTH}) AS u WHERE x > 2",
    f"WITH u AS ({_BOTH}) SELECT FLOOR(x), COUNT(*) FROM u GROUP BY 1",
    f"WITH u (who, much, day) AS ({_BOTH}) SELECT AVG(much) FROM u",
    f"SELECT SUM(CLAMP(n, 0, 90)) FROM (SELECT id, COUNT(*) AS n FROM ({_BOTH}) AS u GROUP BY id) AS p WHERE n > 8",
    f"SELECT COUNT(*) FROM people JOIN ({_BOTH}) AS u ON people.id = u.id WHERE people.x < u.x",
    f"SELECT COUNT(*) FROM people WHERE id IN (SELECT id FROM ({_BOTH}) AS u WHERE x > 9)",
    "SELECT word, COUNT(*) FROM (SELECT word FROM people UNION ALL SELECT UPPER(word) FROM people UNION ALL "
    "(SELECT word FROM people JOIN visits ON id = who)) AS u GROUP BY word",
    "SELECT SUM(size) FROM people JOIN (SELECT town, size FROM towns UNION ALL SELECT town, 1 FROM towns) AS t "
    "ON people.town = t.town",
    f"SELECT COUNT(*) FROM people WHERE EXISTS ({_LATER} cost > x)",
    f"SELECT COUNT(*) FROM people WHERE NOT EXISTS ({_LATER} (cost <> i OR x > 4))",
    f"SELECT town, COUNT(*) FROM people WHERE EXISTS ({_LATER} cost BETWEEN i AND age) AND age > 20 GROUP BY town",
    "SELECT COUNT(*) FROM people WHERE NOT EXISTS (SELECT 1 FROM towns WHERE size > people.x AND towns.town <> COALESCE(people.town, 'a'))",
    "SELECT COUNT(*) FROM people WHERE EXISTS (SELECT 1 FROM towns WHERE people.town IS NULL)",
    f"SELECT COUNT(*) FROM people WHERE EXISTS ({_LATER} NOT cost = i) AND NOT EXISTS ({_LATER} cost < i - 1)",
)


@pytest.fixture(scope="module")
def both() -> Both:
    public = Public(schema=SCHEMA, table="people", unit=Unit("id", rows=500, groups=500), tables=RELATED)
    return Both(tables(3), public)


@pytest.mark.parametrize("sql", ANSWERED)
def test_an_answer_is_that_of_plain_duckdb(both: Both, sql: str) -> None:
    both.check(sql, sql.replace("CLAMP(n, 0, 90)", "n"))


def test_tables_that_no_condition_links_are_joined_last(both: Both) -> None:
    sql = (
        "SELECT SUM(cost) FROM towns, visits, people WHERE towns.town = people.town AND who = id AND size > 1"
    )
    both.check(sql)
    node = plan(sql, both.public).source
    assert isinstance(node, Filtered)
    assert isinstance(node.child, Joined)
    assert isinstance(node.child.left, Joined)
    assert {scan.table for scan in scans(node.child.left)} == {"towns", "people"}


REFUSED = {
    "SELECT COUNT(*) FROM (SELECT id FROM people UNION SELECT who FROM visits) AS u": "UNION ALL keeps all rows",
    "SELECT COUNT(*) FROM (SELECT id FROM people EXCEPT SELECT who FROM visits) AS u": "rows of different people",
    "SELECT COUNT(*) FROM (SELECT id, x FROM people UNION ALL SELECT who FROM visits) AS u": "numbers of columns",
    "SELECT COUNT(*) FROM (SELECT x FROM people UNION ALL SELECT word FROM people) AS u": "one kind",
    "SELECT COUNT(*) FROM (SELECT * FROM people UNION ALL SELECT * FROM people) AS u": "order of columns",
    "SELECT COUNT(*) FROM (SELECT town FROM people UNION ALL SELECT town FROM towns) AS u": "Join them",
    "SELECT COUNT(*) FROM (SELECT id FROM people UNION ALL SELECT who FROM visits LIMIT 3) AS u": "LIMIT",
    "SELECT id, COUNT(*) FROM (SELECT id FROM people UNION ALL SELECT who FROM visits) AS u GROUP BY id": "everyone",
    "SELECT COUNT(*) FROM people UNION ALL SELECT COUNT(*) FROM visits": "one by one",
    "SELECT COUNT(*) FROM people WHERE EXISTS (SELECT 1 FROM visits WHERE cost > people.x)": "same unit",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_refused_says_why(both: Both, sql: str) -> None:
    with pytest.raises(QueryError, match=REFUSED[sql]):
        plan(sql, both.public)


def test_rows_are_not_put_together_where_a_row_is_the_unit(both: Both) -> None:
    public = Public(schema=SCHEMA, table="people", tables=RELATED[:1])
    with pytest.raises(QueryError, match="OR in its WHERE"):
        plan("SELECT COUNT(*) FROM (SELECT x FROM people UNION ALL SELECT x FROM people) AS u", public)


def test_a_key_by_which_tables_refer_to_each_other_is_one_after_a_union() -> None:
    items = Related(
        name="items",
        schema={"part_of": Text()},
        private=True,
        unit=Reference(of="orders", column="part_of", key="number"),
    )
    orders = Related(name="orders", schema={"number": Text()}, private=True, unit="buyer")
    public = Public(schema={}, table="buyers", unit=Unit("buyer"), tables=(orders, items))
    union = "(SELECT number AS k FROM orders UNION ALL SELECT part_of FROM items) AS u"
    fold = f"SELECT COUNT(*) FROM (SELECT k, COUNT(*) AS n FROM {union} GROUP BY k) AS t WHERE n > 2"
    assert plan(fold, public).many
    assert plan(f"SELECT COUNT(*) FROM orders WHERE number IN (SELECT k FROM {union})", public).many


def test_the_size_of_a_table_is_not_that_of_a_union() -> None:
    """Where the size is public, an average over everybody divides by it."""
    public = Public(
        schema=SCHEMA, table="people", unit=Unit("id"), tables=RELATED, neighbors="replace", size=300
    )
    alone = Query(sql="SELECT AVG(x) AS mean FROM people", public=public, epsilon=1, rows=1)
    sql = "SELECT AVG(x) AS mean FROM (SELECT x FROM people UNION ALL SELECT cost FROM visits) AS u"
    union = Query(sql=sql, public=public, epsilon=1, rows=1)
    assert alone.preview().errors[0] is not None
    assert union.preview().errors[0] is None
