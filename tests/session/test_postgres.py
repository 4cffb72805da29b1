"""The same session on a table that stays in PostgreSQL: one snapshot an answer, nothing of a password anywhere,
and refusals before anything is charged."""

from __future__ import annotations

import datetime
import os
import threading
import traceback
from contextlib import suppress
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import discreet as dp
from discreet import tables
from discreet._errors import InvalidInput
from discreet.query import Query, QueryError
from discreet.tables import EngineError, TimeLimit

from .. import postgres

pytestmark = postgres.needed

SCHEMA = {
    "age": dp.Bounds(0, 100),
    "ward": dp.Categories(["A", "B", "C"]),
    "paid": dp.Bounds(0, 50),
    "day": dp.Dates("2020-01-01", "2020-12-31"),
    "ill": dp.Boolean(),
    "note": dp.Text(),
}
QUESTIONS = [
    "SELECT COUNT(*) AS n FROM visits",
    "SELECT ward, COUNT(*) AS n, SUM(age) AS a, AVG(paid) AS p FROM visits GROUP BY ward",
    "SELECT COUNT(DISTINCT ward) AS n FROM visits",
    "SELECT MEDIAN(age) AS m FROM visits",
    "SELECT SUM(CASE WHEN ill THEN paid * 1.5 + age / 7.0 ELSE 0 END) AS s FROM visits WHERE age > 20",
    "SELECT EXTRACT(month FROM day) AS m, COUNT(*) AS n FROM visits GROUP BY 1",
    "SELECT UPPER(ward) AS w, STDDEV(paid) AS s FROM visits GROUP BY 1",
    "SELECT AVG(CLAMP(n, 0, 50)) AS n FROM (SELECT person, COUNT(*) AS n FROM visits GROUP BY person)",
    "SELECT COUNT(*) AS n FROM visits WHERE note LIKE '%a_' OR LENGTH(note) > 3",
    "SELECT SUM(CLAMP(SQRT(paid) + LN(1 + age) + POWER(paid, 2), 0, 3000)) AS s FROM visits",
]


def visits(rows: int = 300) -> pa.Table:
    """People with several visits, and values that are missing, not finite, or beyond what is declared."""
    return _visits(300).slice(0, rows)


def _visits(rows: int) -> pa.Table:

    notes = ["", "aab", None, "ß", "ab", "O'Brien"]
    return pa.table(
        {
            "person": pa.array([i % 37 for i in range(rows)], pa.int64()),
            "age": pa.array([None if i % 11 == 0 else (i * 7) % 130 - 10 for i in range(rows)], pa.int64()),
            "ward": pa.array([["A", "B", "C", "D", None][i % 5] for i in range(rows)]),
            "paid": pa.array([[1.25, float("nan"), float("inf"), 49.9, -3.0][i % 5] for i in range(rows)]),
            "day": pa.array([datetime.date(2020, 1 + i % 12, 1 + i % 28) for i in range(rows)], pa.date32()),
            "ill": pa.array([[True, False, None][i % 3] for i in range(rows)]),
            "note": pa.array([notes[i % 6] for i in range(rows)]),
        }
    )


@pytest.fixture(scope="module")
def server():
    return postgres.server()


@pytest.fixture(scope="module")
def relation(server):
    return server.load(visits(), "visits")


def public(unit=None, **facts):
    own = unit or dp.Unit("person", rows=4, groups=2)
    return dp.Public(table="visits", schema=tuple(SCHEMA.items()), unit=own, **facts)


def opened(server, relation, **options):
    options = {"ledger": ":memory:", "budget": dp.Budget(epsilon=10), "schema": SCHEMA} | options
    unit = options.pop("unit", dp.Unit("person", rows=4, groups=2))
    return dp.open(server.address("reader"), table=relation, unit=unit, **options)


@pytest.mark.parametrize("sql", QUESTIONS)
@pytest.mark.parametrize("rows", [300, 0])
def test_the_engine_measures_what_duckdb_measures(server, sql, rows):
    """All groups kept, so that no choice differs; exactly, before noise."""
    facts = public(dp.Unit("person", rows=1000, groups=1000))
    here = tables.connect_postgres(server.address("reader"), facts, table=server.load(visits(rows), "visits"))
    there = tables.connect(visits(rows), facts)
    query = Query(sql=sql, public=facts, epsilon=1, delta=1e-6)
    assert query._without_noise(here, 5) == query._without_noise(there, 5)


@pytest.mark.parametrize("sql", QUESTIONS[:5])
def test_rows_as_units_measure_what_duckdb_measures(server, sql):
    facts = public(dp.rows())
    here = tables.connect_postgres(server.address("reader"), facts, table=server.load(visits(), "visits"))
    query = Query(sql=sql, public=facts, epsilon=1, delta=1e-6)
    assert query._without_noise(here, 5) == query._without_noise(tables.connect(visits(), facts), 5)


@pytest.mark.parametrize("sql", QUESTIONS[:5])
def test_a_person_more_moves_an_answer_by_its_own_part_only(server, sql):
    """Under every key, with others' rows renumbered, the groups that other people count in stay the same:
    what is measured without one person differs by at most what that person may add."""
    table = visits()
    facts = public(dp.Unit("person", rows=2, groups=1))
    keep = pa.compute.not_equal(table["person"], 5)
    everybody, without = (
        tables.connect_postgres(server.address("reader"), facts, table=server.load(t, "visits"))
        for t in (table.take(list(reversed(range(table.num_rows)))), table.filter(keep))
    )
    query = Query(sql=sql, public=facts, epsilon=1, delta=1e-6)
    for key in (1, 2**40 + 7, 2**62 - 3):
        one, other = (query._measure(engine, key) for engine in (everybody, without))
        for a, b in zip(one.measures, other.measures, strict=True):
            changed = [i for i in range(len(a)) if a[i] != b[i]]
            # one group at most, as each person counts in one
            assert len(changed) <= 1


@pytest.mark.parametrize(("facts", "spent"), [({}, 2), ({"version": "2020-12-31"}, 1)])
def test_an_answer_is_served_within_an_opening_and_later_if_a_version_is_declared(
    server, relation, tmp_path, facts, spent
):
    """As every other table; without a version each question was charged, also twice within one opening."""
    for charged in (1, spent):
        people = opened(server, relation, ledger=tmp_path / "l", **facts)
        answers = [people.sql("SELECT COUNT(*) AS n FROM visits", epsilon=1) for _ in range(2)]
        assert people.spent == charged
        assert answers[0].rows == answers[1].rows
        assert abs(answers[0].rows[0][0] - 300) < 200


def test_no_password_is_taken_kept_or_shown(server, relation, tmp_path, monkeypatch):
    secret = postgres.PASSWORD
    address = server.remote()
    with pytest.raises(InvalidInput, match="PGPASSWORD") as refused:
        dp.open(address.replace("reader@", f"reader:{secret}@"), table=relation, schema=SCHEMA, unit="person")
    assert secret not in str(refused.value)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    facts = {"table": relation, "schema": SCHEMA, "unit": dp.Unit("person", rows=4, groups=2)}
    with pytest.raises(EngineError, match="PGPASSWORD") as failed:
        dp.open(address, **facts, ledger=tmp_path / "a.ledger", budget=dp.Budget(epsilon=1))
    assert failed.value.__cause__ is None
    monkeypatch.setenv("PGPASSWORD", secret)
    people = dp.open(address, **facts, ledger=tmp_path / "a.ledger", budget=dp.Budget(epsilon=1))
    people.sql("SELECT COUNT(*) AS n FROM visits", epsilon=0.5)
    shown = repr(people) + repr(people.curator.source) + repr(people.curator.source._pool.address)
    kept = b"".join(path.read_bytes() for path in Path(tmp_path).iterdir() if path.is_file())
    assert secret not in shown
    assert secret.encode() not in kept
    assert b"reader" not in kept
    assert b"127.0.0.1" not in kept


def test_all_statements_of_one_answer_see_one_snapshot(server):
    relation = server.load(visits(20), "visits")
    engine = tables.connect_postgres(server.address("reader"), public(), table=relation)
    count = 'SELECT COUNT(*) AS n FROM "visits"'
    with engine.snapshot():
        before = engine.answer(count).to_pylist()
        server.run(f"INSERT INTO {relation} SELECT * FROM {relation}")
        assert engine.answer(count).to_pylist() == before == [{"n": 20}]
    assert engine.answer(count).to_pylist() == [{"n": 40}]


def test_an_answer_of_many_statements_is_of_one_moment(server):
    """While others write all the time, the count and the most common values of one answer agree."""
    table = pa.table({"person": pa.array(range(50), pa.int64()), "ward": pa.array(["A"] * 50)})
    relation = server.load(table, "visits")
    facts = dp.Public(
        table="visits",
        schema=(("ward", dp.Categories(["A", "B"])),),
        unit=dp.Unit("person", rows=1, groups=1),
    )
    engine = tables.connect_postgres(server.address("reader"), facts, table=relation)
    sql = "SELECT COUNT(*) AS n, COUNT(DISTINCT ward) AS d, MODE(ward) AS m FROM visits"
    query, stop = Query(sql=sql, public=facts, epsilon=1, delta=1e-6), threading.Event()

    def write() -> None:
        with psycopg.connect(server.address(), autocommit=True) as connection:
            while not stop.is_set():
                connection.execute(f"DELETE FROM {relation}")  # type: ignore[arg-type]
                connection.execute(f"INSERT INTO {relation} SELECT i, 'A' FROM generate_series(1, 50) AS i")  # type: ignore[arg-type]

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = set()
        for _ in range(60):
            exact = query._measure(engine, 1)
            numbers = (*(int(m[0]) for m in exact.measures), int(sum(exact.scores[0].count)))
            seen.add(numbers)
    finally:
        stop.set()
        thread.join()
    assert seen <= {(50, 1, 50), (0, 0, 0)}, seen


def test_a_table_that_was_altered_is_refused_before_anything_is_charged(server):
    relation = server.load(visits(20), "visits")
    people = opened(server, relation)
    people.sql("SELECT COUNT(*) AS n FROM visits", epsilon=1)
    for change in (
        f"ALTER TABLE {relation} ALTER age TYPE text",
        f"ALTER TABLE {relation} RENAME TO other",
    ):
        server.run(change)
        with pytest.raises(EngineError, match="not what it was"):
            people.sql("SELECT SUM(age) AS n FROM visits", epsilon=1)
    assert len([e for e in people.ledger.entries() if e.kind == "charge"]) == 1


def test_a_statement_that_takes_too_long_is_stopped(server, relation):
    engine = tables.connect_postgres(server.address("reader"), public(), table=relation, seconds=0.2)
    with pytest.raises(TimeLimit, match=r"longer than the public limit of 0\.2 seconds"):
        engine.answer("SELECT pg_sleep(5)::text AS s")
    assert engine.answer('SELECT COUNT(*) AS n FROM "visits"').to_pylist() == [{"n": 300}]


def test_a_statement_can_be_interrupted_from_another_thread(server, relation):
    engine = tables.connect_postgres(server.address("reader"), public(), table=relation)
    timer = threading.Timer(0.3, engine.interrupt)
    timer.start()
    with pytest.raises(EngineError, match="withheld"):
        engine.answer("SELECT pg_sleep(20)::text AS s")
    timer.join()


def test_what_the_server_says_is_kept_back(server, relation):
    engine = tables.connect_postgres(server.address("reader"), public(), table=relation)
    with pytest.raises(EngineError, match="the PostgreSQL server could not compute this query") as failed:
        engine.answer("""SELECT 'secret'::integer AS x FROM "visits" """)
    assert "secret" not in str(failed.value)
    assert failed.value.__cause__ is None


def test_it_reads_and_cannot_write(server, relation):
    """As a superuser, too."""
    engine = tables.connect_postgres(server.address(), public(), table=relation)
    with (
        engine.snapshot(),
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="read-only transaction"),
    ):
        engine._local.connection.execute(f"DELETE FROM {relation}")
    assert engine.answer('SELECT COUNT(*) AS n FROM "visits"').to_pylist() == [{"n": 300}]


def test_rows_and_people_as_units_with_a_join_that_repeats_rows(server):
    relation = server.load(visits(20), "visits")
    schema = relation.split(".")[0]
    server.run(
        f"CREATE TABLE {schema}.tags (ward text, tag text)",
        f"INSERT INTO {schema}.tags VALUES ('A', 'x'), ('A', 'y')",
        f"GRANT SELECT ON {schema}.tags TO reader",
    )
    tags = dp.Related(name="tags", schema=(("ward", dp.Text()), ("tag", dp.Categories(["x", "y"]))))
    sql = "SELECT tag, COUNT(*) AS n FROM visits JOIN tags ON visits.ward = tags.ward GROUP BY tag"
    for unit in (dp.Unit(None, rows=2, groups=2), dp.Unit("person", rows=2, groups=2)):
        facts = public(unit, tables=(tags,))
        people = dp.open(
            server.address("reader"),
            schema=facts,
            related={"tags": f"{schema}.tags", "visits": relation},
            budget=dp.Budget(epsilon=5),
            ledger=":memory:",
        )
        query = Query(sql=sql, public=facts, epsilon=1, rows=2, groups=2)
        exact = query._without_noise(people.curator.source, 5)
        assert exact == query._without_noise(
            tables.connect(visits(20), facts, related={"tags": {"ward": ["A", "A"], "tag": ["x", "y"]}}), 5
        )
        assert exact[0][1] > 0
        assert len(people.sql(sql, epsilon=1).rows) == 2


def test_what_could_fail_on_a_row_or_hide_some_is_not_opened(server):
    relation = server.load(visits(5), "visits")
    schema = relation.split(".")[0]
    server.run(
        f"CREATE VIEW {schema}.seen AS SELECT 1 / age AS age FROM {relation}",
        f"CREATE TABLE {schema}.part AS SELECT * FROM {relation}",
        f"ALTER TABLE {schema}.part ENABLE ROW LEVEL SECURITY",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader",
    )
    for name, why in (("seen", "view"), ("part", "row-level security"), ("none", "there is no table")):
        with pytest.raises(InvalidInput, match=why):
            opened(server, f"{schema}.{name}")
    server.run(f"REVOKE SELECT ON {relation} FROM reader", f"GRANT SELECT (age) ON {relation} TO reader")
    with pytest.raises(InvalidInput, match="GRANT SELECT"):
        opened(server, relation)
    with pytest.raises(InvalidInput, match="is not the name of a table"):
        opened(server, "a.b.c")
    with pytest.raises(InvalidInput, match="say which table"):
        dp.open(server.address("reader"), schema=SCHEMA, unit="person")


FOREIGN = (
    "CREATE FOREIGN DATA WRAPPER elsewhere",
    "CREATE SERVER far FOREIGN DATA WRAPPER elsewhere",
)


def test_a_foreign_partition_is_not_opened_and_is_noticed_when_it_comes_later(server):
    """A row of one could make every query fail: what is read of a table are all its partitions and heirs."""
    server.run(*FOREIGN)
    schema = server.load(visits(5), "plain").split(".")[0]
    columns = "person bigint, age bigint, ward text, paid double precision, day date, ill boolean, note text"
    server.run(
        f"CREATE TABLE {schema}.visits ({columns}) PARTITION BY RANGE (person)",
        f"CREATE TABLE {schema}.near PARTITION OF {schema}.visits FOR VALUES FROM (0) TO (100)",
        f"INSERT INTO {schema}.visits (person, age) SELECT i, 30 FROM generate_series(1, 40) AS g(i)",
        f"GRANT SELECT ON {schema}.visits TO reader",
    )
    people = opened(server, f"{schema}.visits")
    people.sql("SELECT COUNT(*) AS n FROM visits", epsilon=1)
    server.run(
        f"CREATE FOREIGN TABLE {schema}.there PARTITION OF {schema}.visits FOR VALUES FROM (100) TO (200) "
        f"SERVER far"
    )
    with pytest.raises(EngineError, match="not what it was"):
        people.sql("SELECT SUM(age) AS n FROM visits", epsilon=1)
    assert len([e for e in people.ledger.entries() if e.kind == "charge"]) == 1
    with pytest.raises(InvalidInput, match="partition or heir"):
        opened(server, f"{schema}.visits")
    server.run(
        f"CREATE TABLE {schema}.parent ({columns})",
        f"CREATE FOREIGN TABLE {schema}.child () INHERITS ({schema}.parent) SERVER far",
        f"GRANT SELECT ON {schema}.parent TO reader",
    )
    with pytest.raises(InvalidInput, match="partition or heir"):
        opened(server, f"{schema}.parent")


def test_a_text_of_140_megabytes_fails_no_query(server):
    relation = server.load(visits(20), "visits")
    server.run(f"UPDATE {relation} SET note = repeat('x', 140000000) WHERE person = 3")
    facts = dp.Public(table="visits", schema=tuple(SCHEMA.items()), unit=dp.Unit("person"))
    engine = tables.connect_postgres(server.address("reader"), facts, table=relation)
    for sql in (
        "SELECT COUNT(*) AS n FROM visits WHERE TRIM(note) = 'aab'",
        "SELECT COUNT(*) AS n FROM visits WHERE UPPER(note) LIKE '%B_' OR LENGTH(note) > 3",
        "SELECT note, COUNT(*) AS n FROM visits GROUP BY note",
    ):
        query = Query(sql=sql, public=facts, epsilon=1, delta=1e-6, rows=1, groups=1)
        assert query._without_noise(engine, 3)
    notes = [n for batch in engine.batches(["note"]) for n in batch.column(0).to_pylist()]
    assert len(notes) == 20
    assert max(len(n or "") for n in notes) < 20


def test_batches_come_as_the_server_sends_them(server):
    odd = ["", None, 'a"b', "line\nbreak", "a,b", "\\N", "NULL", "ß🎈", " "]
    table = pa.table(
        {
            "s": pa.array(odd),
            "x": pa.array([0.1, None, float("inf"), -float("inf"), float("nan"), -0.0, 5e-324, 1e308, 1.0]),
            "i": pa.array([2**63 - 1, -(2**63), None, *range(6)], pa.int64()),
            "b": pa.array([True, False, None] * 3),
            "t": pa.array(["1.5", "x", None, "1e999", "", "inf", "7", "-1", "nan"]),
        }
    )
    facts = dp.Public(
        table="t",
        schema=(
            ("s", dp.Text()),
            ("x", dp.Bounds(0, 1)),
            ("i", dp.Bounds(0, 1)),
            ("b", dp.Boolean()),
            ("t", dp.Bounds(0, 9)),
        ),
    )
    engine = tables.connect_postgres(server.address("reader"), facts, table=server.load(table))
    got = pa.Table.from_batches(engine.batches(["s", "i", "b"]))
    assert got.to_pydict() == table.select(["s", "i", "b"]).to_pydict()
    x, t = (pa.Table.from_batches(engine.batches([n])).column(0).to_pylist() for n in ("x", "t"))
    assert repr(x) == repr(table["x"].to_pylist())
    assert repr(t) == repr([1.5, None, None, float("inf"), None, float("inf"), 7.0, -1.0, float("nan")])
    assert sum(batch.num_rows for batch in engine.batches([])) == 9
    with pytest.raises(InvalidInput, match="no column"):
        list(engine.batches(["nope"]))


def test_a_forked_child_does_not_use_its_parents_connection(server, relation):
    engine = tables.connect_postgres(server.address("reader"), public(), table=relation)
    count = 'SELECT COUNT(*) AS n FROM "visits"'
    engine.answer(count)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if engine.answer(count).to_pylist() == [{"n": 300}] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert engine.answer(count).to_pylist() == [{"n": 300}]


CONSTANTS = ["1e149", "1e-149", "1e149 * 1e149", "1e-149 * 1e-149", "-7.5", "0.5"]


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "%"])
def test_constants_that_are_named_in_a_subquery_fail_nowhere(server, relation, operator):
    """PostgreSQL puts them into the outer expression and computes with them when it plans."""
    facts = public(dp.Unit("person", rows=1000, groups=1000))
    here = tables.connect_postgres(server.address("reader"), facts, table=relation)
    there, asked = tables.connect(visits(), facts), 0
    for value in CONSTANTS:
        for term in (f"age {operator} y", f"y {operator} paid"):
            sql = f"SELECT SUM(CLAMP({term}, -10, 10)) AS s FROM (SELECT *, {value} AS y FROM visits)"
            # what is the same for all rows is refused by the planner of questions
            with suppress(QueryError):
                query = Query(sql=sql, public=facts, epsilon=1, delta=1e-6)
                query.rehearse(here)
                assert query._without_noise(here, 5) == query._without_noise(there, 5), sql
                asked += 1
    assert asked >= 3


def _spoken(error: BaseException) -> str:
    """All that an error says, with those it came from, hidden or not."""
    said, seen = "", error
    while seen is not None:
        said += f"{seen!r} {seen} {getattr(seen, '__notes__', '')}"
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    return said + "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("failure", "options"),
    [
        ("wrong password", {}),
        ("wrong host", {"address": "postgresql://reader@127.0.0.1:9/postgres?connect_timeout=2"}),
        ("no such name", {"address": "postgresql://reader@nowhere.invalid/postgres?connect_timeout=2"}),
        ("no such database", {"database": "nowhere"}),
        ("no such table", {"table": "clinic.nothing"}),
        ("no such column", {"schema": {"agee": dp.Bounds(0, 1)}}),
        ("ledger with a password", {"ledger": "postgresql://owner:{secret}@127.0.0.1:9/books::visits"}),
        ("ledger out of reach", {"ledger": "postgresql://owner@127.0.0.1:9/books::visits"}),
    ],
)
def test_no_failure_tells_a_password(server, relation, monkeypatch, tmp_path, failure, options, caplog):
    """Nor does it open anything: the text is a refusal with a way out, whatever libpq says."""
    monkeypatch.chdir(tmp_path)
    right = postgres.PASSWORD
    secret = "wrong-secret-11c0" if failure == "wrong password" else right
    monkeypatch.setenv("PGPASSWORD", secret)
    given = {"schema": SCHEMA, "table": relation, "ledger": ":memory:", "database": "postgres", **options}
    database = given.pop("database")
    address = given.pop("address", server.remote(database=database))
    given["ledger"] = given["ledger"].replace("{secret}", secret)
    given |= {"unit": dp.Unit("person", rows=4, groups=2), "budget": dp.Budget(epsilon=1)}
    with pytest.raises(dp.DiscreetError) as failed:
        dp.open(address, **given)
    assert secret not in _spoken(failed.value) + caplog.text
    assert failed.value.__cause__ is None
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert secret.encode() not in kept
