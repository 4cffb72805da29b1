"""The text of the engine's queries: a change of it is seen here, and is meant.

`python -m tests.query.test_written` writes the snapshots anew. They were first written by the code that
spelled DuckDB's functions in `query` itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from discreet import Boolean, Bounds, Categories, Dates, Public, Related, Text, Unit
from discreet.core.exact import PLACEHOLDER, statements
from discreet.query import Query
from discreet.tables.engines.duckdb_dialect import DUCKDB

from ..loops import for_each

FOLDER = Path(__file__).parent / "snapshots"
SCHEMA = (
    ("g", Categories(["a", "b", "c"])),
    ("k", Categories([1, 2, 3])),
    ("level", Categories([1, 7, 50])),
    ("age", Bounds(0, 99, nullable=False)),
    ("spend", Bounds(-10.5, 50.25)),
    ("far", Bounds(0, 4_000_000_000)),
    ("member", Boolean()),
    ("day", Dates("2020-01-01", "2022-12-31")),
    ("town", Text()),
)
RELATED = (
    Related(name="towns", schema=(("name", Text()), ("size", Bounds(0, 10))), key=("name",)),
    Related(name="visits", schema=(("cost", Bounds(-3, 8)),), private=True, unit="who"),
)
KINDS = {
    "people": {
        "id": "integer",
        "g": "text",
        "k": "integer",
        "level": "number",
        "age": "integer",
        "spend": "number",
        "far": "number",
        "member": "boolean",
        "day": "date",
        "town": "text",
    },
    "towns": {"name": "text", "size": "text"},
    "visits": {"who": "integer", "cost": "number"},
}
ROWS, IDS = (
    Public(schema=SCHEMA, unit=Unit(c), table="people", tables=RELATED[: 1 + bool(c)]) for c in (None, "id")
)
QUERIES = {
    "count": "SELECT COUNT(*) FROM people",
    "filtered count": "SELECT COUNT(*) FROM people WHERE age > 20 AND spend <= 12.5 OR member",
    "sums by group": "SELECT g, COUNT(*), SUM(age), SUM(spend), AVG(far), STDDEV(age) FROM people GROUP BY g",
    "two keys": "SELECT k, level, COUNT(*), COUNT(spend) FROM people GROUP BY k, level",
    "boolean and binned keys": "SELECT member, FLOOR(age / 10), COUNT(*) FROM people GROUP BY 1, 2",
    "dates": "SELECT DATE_TRUNC('month', day) AS m, SUM(EXTRACT(dow FROM day)) FROM people GROUP BY 1",
    "unknown keys": "SELECT town, COUNT(*), SUM(age) FROM people GROUP BY town",
    "unknown and known keys": "SELECT town, g, COUNT(*) FROM people GROUP BY town, g",
    "distinct": "SELECT g, COUNT(DISTINCT town) FROM people GROUP BY g",
    "distinct, unknown keys": "SELECT town, COUNT(DISTINCT level) FROM people GROUP BY town",
    "median": "SELECT g, MEDIAN(spend) FROM people GROUP BY g",
    "median, unknown keys": "SELECT town, MEDIAN(age) FROM people GROUP BY town",
    "mode": "SELECT MODE(level) FROM people",
    "covariance": "SELECT g, COVAR_POP(age, spend), CORR(age, far) FROM people GROUP BY g",
    "public join": "SELECT g, SUM(size) FROM people JOIN towns ON town = name GROUP BY g",
    "fanning join": "SELECT g, SUM(size), COUNT(DISTINCT town) FROM people LEFT JOIN towns ON age > size GROUP BY g",
    "subqueries": "SELECT COUNT(*) FROM people WHERE town IN (SELECT name FROM towns WHERE size > 3) AND EXISTS "
    "(SELECT 1 FROM towns)",
    "nested": "SELECT COUNT(*), SUM(x) FROM (SELECT age + spend AS x, g FROM people) AS s WHERE g <> 'b'",
}
OF_PEOPLE = {
    "private join": "SELECT g, SUM(cost) FROM people JOIN visits ON people.id = visits.who GROUP BY g",
    "one row a unit": "SELECT n, COUNT(*) FROM (SELECT id, LEAST(COUNT(*), 9) AS n, SUM(spend) AS s, AVG(age) AS a, "
    "MIN(day) AS d, "
    "COUNT(DISTINCT town) AS t FROM people GROUP BY id) AS p WHERE s > 2 AND a < 50 AND d > "
    "'2020-02-02' AND t < 4 GROUP BY n",
}
EXPRESSIONS = {
    "numbers": "age / spend + age // 3 - age % 7 * CEIL(spend)",
    "rounding": "ROUND(spend) + ROUND(spend, 1) + TRUNC(spend) + SIGN(spend) + ABS(spend)",
    "functions": "SQRT(spend) + LN(age) + LOG2(age) + LOG10(age) + EXP(spend / 10) + POWER(age, 2)",
    "choices": "CASE WHEN age IN (1, 2) THEN LEAST(age, far) ELSE GREATEST(spend, 1) END + COALESCE(spend, 0) + "
    "NULLIF(age, 3)",
    "casts": "CAST(town AS INTEGER) + CAST(town AS DOUBLE) + CAST(spend AS TINYINT) + CAST(spend AS "
    "DECIMAL(9, 2)) + "
    "CAST(spend AS FLOAT) + CAST(spend AS UBIGINT)",
    "texts": "CASE WHEN UPPER(town) LIKE 'A_%' AND LOWER(town) ILIKE 'ß%' AND TRIM(town) NOT LIKE '%x%' AND "
    "SUBSTRING(town, 2, 3) = 'a' "
    "AND REPLACE(town, 'a', 'b') || town <> 'c' THEN LENGTH(town) END",
    "days": "day - DATE '2020-02-02' + EXTRACT(week FROM day + 3) + EXTRACT(year FROM day + INTERVAL 2 MONTH)",
    "names of days": "CASE WHEN DAYNAME(day) = 'Monday' OR STRFTIME(day, '%Y-%m') = '2020-01' OR MONTHNAME(day) = "
    "'May' THEN 1 ELSE 0 END",
    "same": "CASE WHEN spend IS NOT DISTINCT FROM age OR town IS NULL THEN 1 ELSE 0 END",
}


def texts(sql, public, **how):
    query = Query(sql=sql, public=public, epsilon=1, delta=1e-6, **how)
    written = statements(query.question.form, KINDS, DUCKDB)
    parts = [written.additive, *(text for _, text in written.distinct), *written.choices]
    return [text.replace(str(PLACEHOLDER), "KEY") for text in parts if text is not None]


def everything():
    made = {name: texts(sql, ROWS) for name, sql in QUERIES.items() if name != "fanning join"}
    made["fanning join"] = texts(QUERIES["fanning join"], ROWS, rows=2, groups=2)
    many = {**{f"{name}, of people": sql for name, sql in QUERIES.items()}, **OF_PEOPLE}
    made |= {name: texts(sql, IDS, rows=3, groups=2) for name, sql in many.items()}
    filters = {
        name: f"SELECT COUNT(*) FROM people WHERE ({x}) > CLAMP(spend + 1, 2, 3)"
        for name, x in EXPRESSIONS.items()
    }
    return made | {name: texts(sql, ROWS) for name, sql in filters.items()}


KNOWN = json.loads((FOLDER / "duckdb.json").read_text()) if (FOLDER / "duckdb.json").exists() else {}


@pytest.fixture(scope="module")
def written():
    return everything()


def test_every_query_has_its_snapshot(written):
    assert len(KNOWN) > 40
    assert written.keys() == KNOWN.keys()


@for_each("name", KNOWN)
def test_the_text_is_that_of_the_snapshot(name, written):
    assert written[name] == KNOWN[name]


if __name__ == "__main__":
    (FOLDER / "duckdb.json").write_text(json.dumps(everything(), indent=1, ensure_ascii=False) + "\n")
