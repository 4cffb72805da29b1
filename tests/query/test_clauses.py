"""Clauses that people do write: dates, per-person conditions, shares, and what a refusal says instead."""

from __future__ import annotations

from datetime import date
from functools import cache

import numpy as np
import pytest

from discreet import Boolean, Bounds, Categories, Dates, Public, Related, Text, Unit
from discreet.query import Query, QueryError
from discreet.query.statistic import stream_statistic
from discreet.tables import Memory, connect

from ..loops import for_each

DAYS = [date(2024, 1, 31), date(2024, 2, 29), date(2024, 12, 30), date(2025, 3, 1), None]
VISITS = {
    "who": ["a", "a", "b", "c", "c"],
    "day": DAYS,
    "born": [date(1990, 12, 31)] * 5,
    "ward": ["ER", "A", "ER", "A", "A"],
    "cost": [100.0, 1499.0, 1500.0, 2600.0, None],
    "code": ["I25.1", "I10", "E11", "I10", "C50"],
}
SCHEMA = {
    "day": Dates("2024-01-01", "2025-12-31"),
    "born": Dates("1900-01-01", "2025-12-31"),
    "ward": Categories(["ER", "A"]),
    "cost": Bounds(0, 3000),
    "code": Text(),
}


@cache
def visits(unit):
    return connect(VISITS, Public(schema=SCHEMA, table="visits", unit=unit))


def rows(sql, unit=None):
    source = visits(unit or Unit())
    return Query(sql=sql, public=source.public, epsilon=1, delta=1e-6)._without_noise(source, 7)


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("day + INTERVAL 1 DAY = '2024-02-01'", 1),
        ("day + 1 = '2024-03-01'", 1),
        ("day - INTERVAL 2 WEEK >= '2024-12-16'", 2),
        ("day > DATE '2024-03-01' - 30", 3),
        ("EXTRACT(ISODOW FROM day) = 1", 1),
        ("DATEDIFF('year', born, day) = 34", 3),
        ("DATEDIFF('month', born, day) = 411", 1),
        ("LEFT(code, 3) = 'I25'", 1),
        ("STARTS_WITH(code, 'I')", 3),
        ("COALESCE(day, DATE '2025-01-01') + 0 = '2025-01-01'", 1),
    ],
)
def test_conditions_on_dates_and_texts(condition, wanted):
    if "34" in condition:
        wanted = sum(d is not None and d.year - 1990 == 34 for d in DAYS)
    assert rows(f"SELECT COUNT(*) FROM visits WHERE {condition}") == [[wanted]]


def test_days_are_only_added_where_there_are_days():
    for condition in (
        "day + cost > '2024-01-01'",
        "day + 99999999 > '2024-01-01'",
        "day + 0.5 > '2024-01-01'",
    ):
        with pytest.raises(QueryError):
            rows(f"SELECT COUNT(*) FROM visits WHERE {condition}")


def test_group_by_all_and_rounding_to_hundreds():
    assert rows("SELECT ward, COUNT(*) FROM visits GROUP BY ALL") == [["ER", 2], ["A", 3]]
    found = rows("SELECT ROUND(cost, -3) AS c, COUNT(*) AS n FROM visits GROUP BY 1")
    assert found == [[0, 1], [1000, 1], [2000, 1], [3000, 1]]  # and no group in between


def test_percentiles_from_above():
    up = "PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY cost)"
    down = "PERCENTILE_CONT(0.75) WITHIN GROUP (ORDER BY cost DESC)"
    assert rows(f"SELECT {up} FROM visits") == rows(f"SELECT {down} FROM visits")
    assert rows(f"SELECT {down} FROM visits") != rows(f"SELECT {down.replace(' DESC', '')} FROM visits")


def test_conditions_and_dates_of_one_persons_rows():
    inner = (
        "SELECT who, COUNT(*) FILTER (WHERE ward = 'ER') AS er, COUNT_IF(cost > 1000) AS dear, "
        "SUM(cost) FILTER (WHERE ward = 'A') AS a, "
        "MIN(day) AS first, MAX(day) AS last FROM visits GROUP BY who"
    )
    unit = Unit("who", rows=1)
    assert rows(f"SELECT COUNT(*) FROM ({inner}) AS p WHERE er > 0", unit) == [[2]]
    assert rows(f"SELECT COUNT(*) FROM ({inner}) AS p WHERE dear = 1", unit) == [[3]]
    assert rows(f"SELECT SUM(CLAMP(a, 0, 9000)) FROM ({inner}) AS p", unit) == [[1499.0 + 2600.0]]
    assert rows(f"SELECT SUM(DATEDIFF('day', first, last)) FROM ({inner}) AS p", unit) == [[29]]


def test_shares_of_people_with_many_rows_are_not_cut_off():
    """A quarter of everybody's rows is a quarter, also where each of 12 rows counts 5/12: in whole steps it
    came out as a fifth."""
    who = np.repeat(np.arange(50), 12)
    public = Public(schema={"er": Boolean(), "n": Bounds(0, 3)}, table="v", unit=Unit("who", rows=5))
    source = connect({"who": who, "er": np.arange(600) % 4 == 0, "n": (np.arange(600) % 4 == 0) * 3}, public)
    sql = "SELECT AVG(er) AS a, VAR_POP(er) AS b, AVG(CAST(n AS INTEGER)) AS c FROM v"
    ((share, variance, mean),) = Query(sql=sql, public=public, epsilon=1)._without_noise(source, 7)
    assert share == pytest.approx(0.25, abs=1e-5)
    assert variance == pytest.approx(0.1875, abs=1e-5)
    assert mean == pytest.approx(0.75, abs=1e-5)


@for_each(
    ("sql", "told"),
    [
        ("SELECT ward, COUNT(*) FROM visits GROUP BY ROLLUP(ward)", "makes them add up"),
        ("SELECT TO_CHAR(day, 'YYYY') AS y, COUNT(*) FROM visits GROUP BY 1", "DATE_TRUNC"),
        # every row was '00'
        ("SELECT STRFTIME(day, '%H') AS h, COUNT(*) FROM visits GROUP BY 1", "%H is about the time of day"),
        ("SELECT STRFTIME(day, '%Y %-M') AS h, COUNT(*) FROM visits GROUP BY 1", "%-M is about the time"),
        ("SELECT COUNT(*) FROM visits WHERE STRFTIME(day, '%c') = 'x'", "%c is about the time"),
        ("SELECT COUNT(*) FROM visits; -- one\nSELECT COUNT(*) FROM visits", "these are 2"),
        ("SELECT code, ROW_NUMBER() OVER () FROM visits", "window functions"),
        ("SELECT KURTOSIS(cost) FROM visits", "cannot be answered here|is not known"),
        ("SELECT COUNT(*) FROM visits WHERE cost = '3'", "without quotes"),
        ("SELECT COUNT(*) FROM visits WHERE code ~ 'I'", "LIKE"),
        ("SELECT COUNT(DISTINCT (ward, code)) FROM visits", r"a \|\| '/' \|\| b"),
        ("SELECT MIN(day) FROM visits", "DATEDIFF"),
        ("SELECT COUNT(*) FROM visits WHERE day + INTERVAL 1 HOUR > '2024-01-01'", "days, weeks, months"),
        ("SELECT COUNT(*) FROM visits QUALIFY TRUE", "QUALIFY cannot be answered"),
        ("SELECT COUNT(*) FROM visits WHERE cost > (SELECT 3)", "two questions"),
        (
            "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM visits w WHERE w.code = v.code)",
            "same unit",
        ),
        ("SELECT COUNT(*) FROM visits v WHERE code IN (SELECT code FROM visits)", "same unit"),
        (
            "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM visits w WHERE w.cost > v.cost)",
            "same unit",
        ),
        ("SELECT COUNT(*) FROM elsewhere.visits", "no schema 'elsewhere'"),
        (
            "SELECT COUNT(*) FROM visits FULL JOIN visits AS w ON visits.who = w.who",
            "LEFT JOIN or RIGHT JOIN",
        ),
        ("SELECT cost, COUNT(*) FROM visits WHERE EXISTS (SELECT COUNT(*) FROM visits)", "always true"),
        ("SELECT SUM(a) FROM (SELECT code, cost FROM visits) AS t(a, b, c)", "3 names"),
        # NULL counted as the number 0, and a length that differs between rows as none
        ("SELECT COUNT(POWER(cost, NULL)) FROM visits", "fixed whole exponent"),
        ("SELECT SUM(CLAMP(cost, NULL, 5)) FROM visits", "two fixed numbers"),
        ("SELECT SUM(ROUND(cost, NULL)) FROM visits", "fixed number of digits"),
        ("SELECT SUM(TRUNC(cost, NULLIF(2, 2))) FROM visits", "fixed number of digits"),
        (
            "SELECT SUBSTRING(ward, 1, CAST(cost AS INTEGER)) AS w, COUNT(*) FROM visits GROUP BY w",
            "fixed whole numbers",
        ),
        # each key is short; all groups together are 100 billion, which were written out after the charge
        ("SELECT cost, day, born, COUNT(*) FROM visits GROUP BY 1, 2, 3", "public groups together"),
        # every row is missing: the range was upside down, which ended in a ValueError
        ("SELECT MEDIAN(CAST(cost + 1000 AS DECIMAL(2, 0))) FROM visits", "always 100"),
        (
            "SELECT COUNT(*) FROM (SELECT * FROM visits UNION ALL SELECT * FROM visits) AS u",
            "OR in its WHERE",
        ),
    ],
)
def test_refusals_say_what_to_write(sql, told):
    with pytest.raises(QueryError, match=told):
        rows(sql)


@for_each(
    "sql",
    [
        "SELECT MAX(cost, 3) FROM visits",
        "SELECT APPROX_COUNT_DISTINCT(code, 3) FROM visits",
        "SELECT PERCENTILE_CONT(0.5, cost) WITHIN GROUP (ORDER BY cost) FROM visits",
        "SELECT ward, COUNT(*) FROM visits GROUP BY ward LIMIT 10%",
        "SELECT COUNT(*) FROM (SELECT cost FROM visits) AS v TABLESAMPLE 10%",
        "SELECT COUNT(*) FROM (SELECT cost, ward FROM visits) PIVOT (COUNT(*) FOR ward IN ('ER', 'A')) AS v",
        "SELECT COUNT(*) FROM (SELECT cost FROM visits HAVING cost > 3) AS v",
        "SELECT COUNT(*) FROM (SELECT DISTINCT who FROM visits GROUP BY who, ward) AS v",
        "SELECT COUNT(*) FROM (SELECT DISTINCT ON (who) who, ward FROM visits) AS v",
        "SELECT COUNT(*) FROM visits WHERE who IN (SELECT DISTINCT ON (ward) who FROM visits)",
        "SELECT COUNT(*) FROM (SELECT who, COUNT(DISTINCT ward, code) AS n FROM visits GROUP BY who) AS v",
        "SELECT COUNT(*) FROM (SELECT who, COUNT(ward, code) AS n FROM visits GROUP BY who) AS v",
        "SELECT COUNT(*) FROM (SELECT who, MAX(cost, 2) AS n FROM visits GROUP BY who) AS v",
        "SELECT COUNT(*) FROM (SELECT who, MIN(cost) AS n, COUNT(*) AS N FROM visits GROUP BY who) AS v",
        "SELECT SUM(cost) FROM (SELECT cost / 2 AS cost, * FROM visits) AS v",
    ],
)
def test_no_part_of_a_query_is_skipped(sql):
    """Each of these was answered as if what no rule reads were not there, or the first of two names."""
    with pytest.raises(QueryError, match=r"^line \d+, column \d+: "):
        rows(sql, Unit("who", rows=1))


def test_numbers_are_read_in_every_way_that_sql_writes_them():
    assert rows("SELECT COUNT(*) FROM visits WHERE day + INTERVAL '- 3' DAY = '2024-01-28'") == [[1]]
    logs = rows("SELECT SUM(LOG(2.0, cost + 1)) AS a, SUM(LOG(2, cost + 1)) AS b FROM visits")
    assert logs[0][0] == logs[0][1] > 0


def test_joins_of_three_tables_multiply_nothing(monkeypatch):
    """Joined one after the other, each on its own condition; as a product of all three it would take days."""
    n = 20_000
    public = Public(
        schema={"ward": Categories(["a", "b"]), "code": Text()},
        unit=Unit("who", rows=1, groups=1),
        table="v",
        tables=(
            Related(name="p", schema={"sex": Categories(["f", "m"])}, private=True, unit="who"),
            Related(name="w", schema={"ward": Text(), "kind": Categories(["x", "y"])}, key="ward"),
        ),
    )
    who = [f"p{i}" for i in range(n)]
    others = {"p": {"who": who, "sex": ["f", "m"] * (n // 2)}, "w": {"ward": ["a", "b"], "kind": ["x", "y"]}}
    source = connect({"who": who, "ward": ["a", "b"] * (n // 2), "code": who}, public, related=others)
    sql = (
        "SELECT kind, sex, COUNT(DISTINCT v.who) AS n FROM v JOIN w ON w.ward = v.ward JOIN p ON p.who = "
        "v.who GROUP BY kind, sex"
    )
    statements, answer = [], source.answer
    monkeypatch.setattr(type(source), "answer", lambda _, text: statements.append(text) or answer(text))
    found = Query(sql=sql, public=public, epsilon=1)._without_noise(source, 7)
    assert sum(count for *_, count in found) == n

    def plan_of(text):
        # HASH_JOIN until DuckDB 2, and Hash Join from it on
        return source._con.sql(f"EXPLAIN {text}").fetchall()[0][1].upper().replace(" ", "_")

    assert "CROSS_PRODUCT" in plan_of("SELECT COUNT(*) FROM v, w")
    plans = [plan_of(text) for text in statements]
    assert any("HASH_JOIN" in plan for plan in plans)
    assert not any(slow in plan for plan in plans for slow in ("CROSS_PRODUCT", "NESTED_LOOP"))


@pytest.mark.parametrize("keys", ["day, ward", "1, 2", "d, ward", "day, 2"])
def test_the_clock_of_a_stream_is_also_named_by_its_position_or_alias(keys):
    statistic, clock = stream_statistic(
        f"SELECT day AS d, ward, COUNT(*) AS n FROM visits GROUP BY {keys}", visits(Unit()).public
    )
    assert (clock, statistic.sql) == ("day", "SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward")


def test_the_range_of_a_truncated_date_covers_every_branch_of_a_case():
    """The days of the first branch are later than those of the second: sums were clipped to the first."""
    schema = {"d": Dates("2010-01-01", "2012-12-31"), "e": Dates("2020-01-01", "2021-12-31")}
    public = Public(schema=schema, table="t")
    day = "CASE WHEN e > '2020-06-01' THEN DATE_TRUNC('month', e) ELSE DATE_TRUNC('month', d) END"
    sql = f"SELECT SUM(DATEDIFF('day', DATE '2010-01-01', DATE_TRUNC('year', {day}))) FROM t"
    rows = Memory({"d": [date(2010, 5, 5)], "e": [date(2020, 1, 5)]}, public)
    assert Query(sql=sql, public=public, epsilon=1)._without_noise(rows, 7) == [[0]]
