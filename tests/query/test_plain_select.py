"""SQL on a copy reaches the copy, and nothing of the engine or the server."""

from __future__ import annotations

import sys

import duckdb
import pytest
from sqlglot import exp

from discreet import Bounds, Categories, Dates, Public
from discreet.core.errors import QueryError
from discreet.query import parse
from discreet.query.groupings import together
from discreet.query.parse import plain_select
from discreet.query.statistic import stream_statistic

from ..loops import for_each

REACHING = [
    "SELECT t.* FROM {0} AS t, (WITH {0} AS (SELECT 1 AS x) SELECT x FROM {0}) AS s",
    "SELECT * FROM {0}",
    "WITH {0} AS (SELECT 1 AS x) SELECT * FROM {0}",
    "SELECT (SELECT COUNT(*) FROM {0}) FROM h WHERE EXISTS (WITH {0} AS (SELECT 1) SELECT * FROM {0})",
]


@for_each("name", ["duckdb_settings", "pg_settings", '"/etc/passwd"', "sqlite_master"])
@for_each("text", REACHING)
def test_no_view_or_file_of_the_engine_is_reached(text: str, name: str) -> None:
    with pytest.raises(QueryError, match=r"view of the engine|something else in FROM"):
        plain_select(text.format(name), "h")


def test_a_name_counts_in_its_own_scope_only() -> None:
    with pytest.raises(QueryError, match="something else"):
        plain_select(REACHING[0].format("elsewhere"), "h")
    kept = "WITH a AS (SELECT x FROM h), b AS (SELECT x FROM a) SELECT COUNT(*) FROM (SELECT x FROM b) AS c"
    assert plain_select(kept, "h") == kept
    assert plain_select("SELECT x FROM H AS a JOIN h AS b USING (x)", "h")


@for_each(
    "call",
    [
        "version()", "current_database()", "current_schema()", "current_user", "session_user", "user",
        "current_setting('threads')", "getenv('HOME')", "current_timestamp", "current_date", "now()",
        "random()", "uuid()", "getvariable('x')", "txid_current()", "pg_typeof(1)", "current_catalog",
    ],
)  # fmt: skip
def test_no_function_tells_of_the_server(call: str) -> None:
    try:
        text = plain_select(f"SELECT {call} AS a FROM h", "h")
    except QueryError:
        return
    # what is left is the name of a column, which the engine does not know
    with duckdb.connect() as db:
        db.execute("CREATE TABLE h (x DOUBLE)")
        with pytest.raises(duckdb.Error):
            db.execute(text)


def test_usual_questions_are_answered() -> None:
    known = [name for name in parse._FUNCTIONS if not hasattr(exp, name)]
    assert not known, "a list of functions that exist"
    with duckdb.connect() as db:
        db.execute("CREATE TABLE h (x DOUBLE, s VARCHAR, d DATE)")
        for value in (
            "COUNT(*)", "COUNT(DISTINCT s)", "AVG(x)", "MEDIAN(x)", "STDDEV(x)", "QUANTILE_CONT(x, 0.5)",
            "SUM(CASE WHEN x > 1 AND NOT s = 'a' OR x IS NULL THEN 1 ELSE 0 END)", "MAX(ROUND(x, 2))",
            "COUNT(*) FILTER (WHERE x BETWEEN 1 AND 2)", "MIN(UPPER(s) || 'a')", "MAX(LENGTH(TRIM(s)))",
            "SUM(COALESCE(x, 0))", "MAX(EXTRACT(year FROM d))", "MAX(DATE_TRUNC('month', d))", "CORR(x, x)",
            "MAX(CAST(x AS INT))", "MAX(TRY_CAST(s AS INT))", "MAX(SUBSTRING(s, 1, 2))", "MAX(YEAR(d))",
        ):  # fmt: skip
            db.execute(plain_select(f"SELECT {value} FROM h", "h"))
        db.execute(plain_select("SELECT s, ROW_NUMBER() OVER (ORDER BY x) AS r FROM h", "h"))


def test_no_comment_reaches_the_engine() -> None:
    text = "SELECT x FROM h -- */ UNION SELECT getenv('HOME') /*"
    assert plain_select(text, "h") == "SELECT x FROM h"


def test_a_text_that_nests_too_deep_is_refused_by_all_that_read_it() -> None:
    # the code generator of torch raises Python's limit, for the rest of the process
    value = "n" + "::INT" * (sys.getrecursionlimit() * 2 // 5)
    days = Dates("2020-01-01", "2020-01-31")
    public = Public(table="h", schema={"k": Categories(["a", "b"]), "n": Bounds(0, 9), "d": days})
    for ask in (
        lambda: plain_select(f"SELECT {value} FROM h", "h"),
        lambda: together(f"SELECT k, SUM({value}) FROM h GROUP BY CUBE (k)", public, epsilon=1),
        lambda: stream_statistic(f"SELECT d, SUM({value}) FROM h GROUP BY d", public),
    ):
        with pytest.raises(QueryError, match="nests too deep"):
            ask()
