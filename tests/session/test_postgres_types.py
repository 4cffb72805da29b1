"""Odd types and values of PostgreSQL: nothing fails on a row, no two people become one, collations decide
nothing; and the shell."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import tables
from discreet._errors import InvalidInput
from discreet.app.cli import app
from discreet.query import Query

from .. import postgres

pytestmark = postgres.needed

COLUMNS = {
    "id": ("numeric", ["1", "1.0", "1.00000000000000000001", "'NaN'", "'Infinity'", "1e300", "NULL"]),
    "amount": ("numeric", ["1e400", "-1e400", "1e-400", "'NaN'", "'-Infinity'", "12345.678", "NULL"]),
    "price": ("numeric(10, 2)", ["0.01", "99999999.99", "-1", "'NaN'", "2.005", "0", "NULL"]),
    "single": ("real", ["'NaN'", "'Infinity'", "1e-45", "3e38", "-0.0", "1.5", "NULL"]),
    "small": ("smallint", ["32767", "-32768", "0", "1", "2", "3", "NULL"]),
    "code": ("char(4)", ["'A'", "'A   '", "'B'", "''", "'AAAA'", "'ß'", "NULL"]),
    "folded": ("text COLLATE s_types.folded", ["'a'", "'A'", "'á'", "'B'", "''", "'ß'", "NULL"]),
    "mood": ("s_types.mood", ["'glad'", "'sad'", "'glad'", "'sad'", "'glad'", "'sad'", "NULL"]),
    "score": ("s_types.score", ["5", "7", "1", "2", "3", "4", "NULL"]),
    "at": ("timestamptz", ["'infinity'", "'-infinity'", "'294276-12-31'", "'4713-01-01 BC'", "'2020-06-01 23:59:59+12'", "now()", "NULL"]),
    "day": ("date", ["'infinity'", "'-infinity'", "'5874897-12-31'", "'4713-01-01 BC'", "'2020-02-29'", "'0001-01-01'", "NULL"]),
    "token": ("uuid", [*(f"'00000000-0000-0000-0000-00000000000{i}'" for i in range(6)), "NULL"]),
    "flag": ("boolean", ["true", "false", "true", "false", "true", "false", "NULL"]),
}  # fmt: skip
SCHEMA = {
    "amount": dp.Bounds(-100, 100),
    "price": dp.Bounds(0, 50),
    "single": dp.Bounds(-10, 10),
    "small": dp.Bounds(0, 10),
    "code": dp.Categories(["A", "B", "AAAA"]),
    "folded": dp.Text(),
    "mood": dp.Categories(["glad", "sad"]),
    "score": dp.Bounds(0, 6),
    "at": dp.Dates("2020-01-01", "2020-12-31"),
    "day": dp.Dates("2020-01-01", "2020-12-31"),
    "token": dp.Text(),
    "flag": dp.Bounds(0, 1),
}


@pytest.fixture(scope="module")
def server():
    started = postgres.server()
    rows = ", ".join("(" + ", ".join(values[i] for _, values in COLUMNS.values()) + ")" for i in range(7))
    started.run(
        "CREATE SCHEMA s_types",
        "CREATE COLLATION s_types.folded (provider = icu, locale = 'und-u-ks-level1', deterministic = false)",
        "CREATE TYPE s_types.mood AS ENUM ('glad', 'sad')",
        "CREATE DOMAIN s_types.score AS integer CHECK (VALUE < 100)",
        f"CREATE TABLE s_types.odd ({', '.join(f'{n} {t}' for n, (t, _) in COLUMNS.items())})",
        f"INSERT INTO s_types.odd VALUES {rows}",
        "GRANT USAGE ON SCHEMA s_types TO reader",
        "GRANT SELECT ON ALL TABLES IN SCHEMA s_types TO reader",
    )
    return started


def facts(unit):
    return dp.Public(table="odd", schema=tuple(SCHEMA.items()), unit=unit)


@pytest.fixture(scope="module")
def engine(server):
    unit = dp.Unit("id", rows=10, groups=10)
    return tables.connect_postgres(server.address("reader"), facts(unit), table="s_types.odd")


def exact(engine, sql):
    return Query(sql=sql, public=engine.public, epsilon=1, delta=1e-6)._without_noise(engine, 3)


def test_kinds_come_from_types(engine):
    kinds = engine.kinds["odd"]
    assert {name for name, kind in kinds.items() if kind == "number"} == {"id", "amount", "price", "single"}
    assert {name for name, kind in kinds.items() if kind == "integer"} == {"small", "score", "flag"}
    assert {name for name, kind in kinds.items() if kind == "text"} == {"code", "folded", "mood", "token"}
    assert {name for name, kind in kinds.items() if kind == "date"} == {"at", "day"}


def test_values_beyond_every_other_type_count_as_the_nearest_or_none(engine):
    assert exact(engine, "SELECT COUNT(*) AS n, SUM(amount) AS s FROM odd") == [[6.0, 100.0]]
    assert exact(engine, "SELECT SUM(small) AS s, SUM(score) AS c, SUM(flag) AS f FROM odd") == [
        [16.0, 21.0, 3.0]
    ]
    assert exact(engine, "SELECT SUM(single) AS s FROM odd") == [[pytest.approx(11.5, abs=1e-4)]]
    assert exact(engine, "SELECT SUM(price) AS s FROM odd") == [[pytest.approx(52.02, abs=1e-3)]]


def test_days_beyond_the_calendar_are_missing(engine):
    """As on every engine: at the ends, two values would become one."""
    for column in ("at", "day"):
        sql = f"SELECT EXTRACT(year FROM {column}) AS y, COUNT(*) AS n FROM odd GROUP BY 1"
        assert exact(engine, sql) == [[2020.0, 2.0]]


@pytest.mark.parametrize(
    ("type_", "values", "kept"),
    [
        ("date", ["infinity", "-infinity", "5874897-12-31", "4713-01-01 BC", "10000-01-01"], 0),
        ("date", ["0001-01-01", "9999-12-31", "2020-02-29"], 3),
        ("timestamp", ["infinity", "-infinity", "10000-01-01", "0001-12-31 23:59:59.999999 BC"], 0),
        ("timestamp", ["0001-01-01", "9999-12-31 23:59:59.999999", "9999-12-31 23:59:59.999998"], 3),
        ("timestamptz", ["infinity", "-infinity", "9999-12-31 00:00:00+00", "0001-01-01 23:59:59.999999+00"], 0),
        ("timestamptz", ["0001-01-02 00:00:00+00", "9999-12-30 23:59:59.999999+00"], 2),
    ],
)  # fmt: skip
def test_days_beyond_the_calendar_are_nobodys_id(server, type_, values, kept):
    """Those inside it are all different people, to the microsecond."""
    rows = ", ".join(f"('{value}'::{type_})" for value in values)
    server.run(
        f"DROP TABLE IF EXISTS s_types.days; CREATE TABLE s_types.days AS SELECT * FROM (VALUES {rows}) v(id)",
        "GRANT SELECT ON s_types.days TO reader",
    )
    public = dp.Public(table="days", unit=dp.Unit("id", rows=1))
    opened = tables.connect_postgres(server.address("reader"), public, table="s_types.days")
    assert exact(opened, "SELECT COUNT(DISTINCT id) AS n FROM days") == [[kept]]
    seen = [value for batch in opened.batches(["id"]) for value in batch.column(0).to_pylist()]
    assert len({value for value in seen if value is not None}) == kept


def test_equal_people_are_one_and_others_are_not(engine):
    """1 and 1.0 are one number; 1.00000000000000000001 is another, though no double tells them apart."""
    assert exact(engine, "SELECT COUNT(DISTINCT id) AS n FROM odd") == [[5.0]]


def test_equal_people_are_one_and_others_are_not_where_rows_leave(engine):
    ids = [value for batch in engine.batches(["id"]) for value in batch.column(0).to_pylist()]
    assert ids == ["1", "1", "1.00000000000000000001", "NaN", "Infinity", "1" + "0" * 300, None]


def test_collations_make_no_two_values_one(engine):
    assert exact(engine, "SELECT COUNT(*) AS n FROM odd WHERE folded = 'a'") == [[1.0]]
    assert exact(engine, "SELECT COUNT(*) AS n FROM odd WHERE folded LIKE '%a%'") == [[1.0]]
    assert exact(engine, "SELECT COUNT(DISTINCT folded) AS n FROM odd") == [[6.0]]
    assert exact(engine, "SELECT code, COUNT(*) AS n FROM odd GROUP BY code") == [
        ["A", 2.0],
        ["B", 1.0],
        ["AAAA", 1.0],
    ]


def test_every_column_comes_in_batches(engine):
    for name in SCHEMA:
        assert sum(batch.num_rows for batch in engine.batches([name])) == 7


def test_types_that_no_query_can_use_are_refused_by_name(server):
    server.run(
        "CREATE TABLE s_types.bad (a integer[], b jsonb, c bytea, d interval, e point)",
        "GRANT SELECT ON s_types.bad TO reader",
    )
    for name in "abcde":
        public = dp.Public(table="bad", schema=((name, dp.Bounds(0, 1)),))
        with pytest.raises(InvalidInput, match=f"column '{name}'"):
            tables.connect_postgres(server.address("reader"), public, table="s_types.bad")


def test_a_planted_function_or_operator_is_not_used(server):
    server.run(
        "CREATE TABLE s_types.plain (age bigint)",
        "INSERT INTO s_types.plain SELECT generate_series(1, 9)",
        "GRANT SELECT ON s_types.plain TO reader",
        "CREATE FUNCTION public.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
        "CREATE FUNCTION public.abs(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1/0::bigint'",
        "ALTER ROLE reader SET search_path = public, pg_catalog",
    )
    try:
        public = dp.Public(table="plain", schema=(("age", dp.Bounds(0, 5)),))
        engine = tables.connect_postgres(server.address("reader"), public, table="s_types.plain")
        assert exact(engine, "SELECT SUM(ABS(age)) AS s FROM plain") == [[35.0]]
    finally:
        server.run("ALTER ROLE reader RESET search_path", "DROP FUNCTION public.abs(bigint)",
                   "DROP FUNCTION public.hashtextextended(text, bigint)")  # fmt: skip


def test_the_shell_asks_a_table_of_a_database(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    schema = tmp_path / "odd.schema.toml"
    schema.write_text(tables.dump(facts(dp.Unit("id", rows=2, groups=1))))
    data, runner = f"{server.address('reader')}::s_types.odd", CliRunner()
    books = f"{server.address(database=server.database())}::odd"
    made = runner.invoke(app, ["init", data, "--schema", str(schema), "--epsilon", "2", "--ledger", books])
    assert made.exit_code == 0, made.output
    asked = ["query", data, "SELECT COUNT(*) AS n FROM odd", "--schema", str(schema), "--epsilon", "1"]
    for ledger in ("odd.ledger", books):
        done = runner.invoke(app, [*asked, "--ledger", ledger, "--json"])
        assert done.exit_code == 0, done.output
    refused = runner.invoke(app, [*asked, "--ledger", "odd.ledger"])
    assert refused.exit_code != 0
    assert isinstance(refused.exception, dp.BudgetExceeded)
