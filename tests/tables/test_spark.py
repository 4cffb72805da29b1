"""Spark answers as DuckDB does, from the same plans; it changes nothing of its host, fails on no row, and its
plans depend on no row."""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import discreet as dp
from discreet import Bounds, Categories, Dates, Public, Related, Text, Unit
from discreet._errors import InvalidInput, PublicMismatch
from discreet.core.exact import PLACEHOLDER, measure, statements
from discreet.query import Query
from discreet.tables import EngineError, TimeLimit, connect

from .. import spark as one_spark
from ..query.test_written import EXPRESSIONS, IDS, OF_PEOPLE, QUERIES, RELATED, ROWS, SCHEMA

pytestmark = pytest.mark.skipif(one_spark.missing() is not None, reason=str(one_spark.missing()))


@pytest.fixture(scope="module")
def spark():
    return one_spark.session()


def on_spark(spark, data, public, **options):
    from discreet.tables.engines.spark import connect as connect_spark

    frames = {name: spark.createDataFrame(table) for name, table in data.items()}
    main = frames.pop(public.table)
    return connect_spark(main, public, related=frames, **options)


# Semantics.


def people(size=300):
    """Rows with every kind of value that a column may hold, and all of them missing somewhere."""
    pick = lambda values, step: [values[(i * step) % len(values)] for i in range(size)]  # noqa: E731
    texts = ["a", "ab", "Aß", "x", " a ", "", "7", "2.5", "1d", "ß", "it's", 'a"b', "a\\b", "12", None]
    days = [
        date(1999, 1, 1),
        date(2020, 1, 31),
        date(2020, 2, 29),
        date(2022, 12, 31),
        date(2030, 5, 5),
        None,
    ]
    return {
        "people": pa.table(
            {
                "rid": pa.array(range(size), pa.int64()),
                "id": pa.array([None if i % 37 == 5 else i // 3 for i in range(size)], pa.int64()),
                "g": pa.array(pick(["a", "b", "c", "d", None], 3)),
                "k": pa.array(pick([1, 2, 3, 4, None], 7), pa.int32()),
                "level": pa.array(pick([1.0, 7.0, 50.0, 2.5, float("nan"), None], 5)),
                "age": pa.array(pick([0, 3, 20, 21, 99, 100, -5, None], 11), pa.int16()),
                "spend": pa.array(
                    pick([0.0, -0.0, 1.5, 2.5, -10.5, 1e300, float("inf"), float("nan"), 12.5, None], 13)
                ),
                "far": pa.array(pick([0.0, 3.9e9, 1e18, 0.5, None], 3)),
                "member": pa.array(pick([True, False, None], 2)),
                "day": pa.array(pick(days, 5), pa.date32()),
                "town": pa.array(pick(texts, 7)),
            }
        ),
        "towns": pa.table({"name": ["a", "ab", "x", "7", "ß"], "size": ["1", "9.5", "nope", None, "4"]}),
        "visits": pa.table(
            {
                "who": pa.array([i % 90 for i in range(200)], pa.int64()),
                "cost": [i % 17 - 4.5 for i in range(200)],
            }
        ),
    }


DATA = people()
ASKED = {
    **{(name, "rows"): sql for name, sql in QUERIES.items()},
    **{
        (name, "rows"): f"SELECT COUNT(*) FROM people WHERE ({x}) > CLAMP(spend + 1, 2, 3)"
        for name, x in EXPRESSIONS.items()
    },
    **{(name, "ids"): sql for name, sql in {**QUERIES, **OF_PEOPLE}.items()},
}


@pytest.fixture(scope="module")
def engines(spark):
    """Both engines over the same tables, with a row and with a person as the unit."""
    made = {}
    for of, public in (("rows", ROWS), ("ids", IDS)):
        wanted = {name: DATA[name] for name in ("people", *(t.name for t in public.tables))}
        rest = {name: table for name, table in wanted.items() if name != "people"}
        made[of] = (
            connect(wanted["people"], public, related=rest, threads=1),
            on_spark(spark, wanted, public),
        )
    return made


def exactly(query, engine, key):
    """What the engine computes, with nothing added: measures by group, and scores of choices."""
    exact = measure(query.question.form, engine, key)
    scores = [c.dense(0, c.shape[0]).tolist() for c in exact.scores]
    order = sorted(range(len(exact.keys)), key=lambda i: repr(exact.keys[i]))
    measures = [[int(m[i]) for i in order] for m in exact.measures]
    return [exact.keys[i] for i in order], measures, [[s[i] for i in order] for s in scores]


def _slow(name, of):
    """Of people most queries are like those of rows: what chooses, and what only they have, is always run."""
    return (
        of == "ids"
        and name in QUERIES
        and name not in ("sums by group", "unknown keys", "median", "distinct")
    )


@pytest.mark.parametrize(
    ("name", "of"),
    [pytest.param(*asked, marks=[pytest.mark.slow] * _slow(*asked), id="-".join(asked)) for asked in ASKED],
)
def test_spark_computes_what_duckdb_does(name, of, engines):
    """Where no limit binds the answer does not depend on who was chosen, and both must say the same."""
    duckdb, spark = engines[of]
    query = Query(
        sql=ASKED[name, of], public=duckdb.public, epsilon=1, delta=1e-6,
        **({"rows": 400, "groups": 1000} if of == "ids" or name == "fanning join" else {}),
    )  # fmt: skip
    assert exactly(query, spark, 5) == exactly(query, duckdb, 5)


LIMITED = [
    "SELECT g, COUNT(*), SUM(age) FROM people GROUP BY g",
    "SELECT town, COUNT(*), SUM(spend) FROM people GROUP BY town",
    "SELECT g, COUNT(DISTINCT town) FROM people GROUP BY g",
    "SELECT g, MEDIAN(age) FROM people GROUP BY g",
    "SELECT MODE(level) FROM people",
]


@pytest.fixture(scope="module")
def three(spark):
    """The table as it is, backward in five parts, and without one person."""
    from discreet.tables.engines.spark import connect as connect_spark

    public = Public(schema=SCHEMA, unit=Unit("id"), table="people")
    table = DATA["people"]
    frame = spark.createDataFrame(table)
    backward = spark.createDataFrame(table.take(list(range(table.num_rows))[::-1])).repartition(5)
    without = frame.where("id <> 31 OR id IS NULL")
    return [connect_spark(one, public) for one in (frame, backward, without)]


@pytest.mark.parametrize("sql", LIMITED)
def test_a_choice_is_a_function_of_key_and_values_alone(sql, three):
    """In whatever parts and order the rows lie: so that what a lost worker computes again comes out the same,
    and a person's presence moves the own contribution only."""
    forward, backward, without_one = three
    query = Query(sql=sql, public=forward.public, epsilon=1, delta=1e-6, rows=1, groups=1)
    whole, again = (exactly(query, engine, 77) for engine in (forward, backward))
    assert whole == again
    if sql == LIMITED[0]:
        assert whole != exactly(query, forward, 78)
    without = exactly(query, without_one, 77)
    here, there = _cells(whole), _cells(without)
    moved = sum(here.get(cell, 0) != there.get(cell, 0) for cell in here.keys() | there.keys())
    measures = max(1, len(whole[1]), len(whole[2]))
    # One candidate of a quantile; of a mode each value that the unit's three rows have.
    # What the unit adds to a distinct count others may add as well.
    assert "DISTINCT" in sql or moved > 0
    assert moved <= (3 if "MODE" in sql else measures)


def _cells(result):
    keys, measures, scores = result
    cells = {(i, key): m for i, row in enumerate(measures) for key, m in zip(keys, row, strict=True)}
    for i, rows in enumerate(scores):
        cells |= {
            ("s", i, key, at): int(v) for key, row in zip(keys, rows, strict=True) for at, v in enumerate(row)
        }
    return cells


# Plans.


def plan_text(engine, sql):
    """A plan without the numbers that Spark gives to everything it makes."""
    names = itertools.count()
    # Expressions and steps of a plan are numbered apart: one number may occur among both.
    numbers: dict[tuple[str, str], int] = {}
    # Else filters are cut off after 100 characters, at a place that goes with how long those numbers are.
    engine._session.conf.set("spark.sql.maxMetadataStringLength", "100000")
    return re.sub(
        r"(#|plan_id=|id=)(\d+)L?",
        lambda match: f"{match[1]}{numbers.setdefault((match[1], match[2]), next(names))}",
        re.sub(r"_common_expr_\d+", "_common_expr", engine.explain(sql)),
    )


PLANNED = [
    QUERIES["sums by group"],
    QUERIES["unknown keys"],
    OF_PEOPLE["private join"],
    QUERIES["median"],
]


def plans(engine, public, asked=PLANNED):
    """The plan text of every statement of some questions."""
    texts = []
    for sql in asked:
        query = Query(sql=sql, public=public, epsilon=1, delta=1e-6, rows=2, groups=1)
        written = statements(query.question.form, engine.kinds, engine.dialect)
        for text in (written.additive, *written.choices):
            if text is not None:
                texts.append(plan_text(engine, text.replace(str(PLACEHOLDER), "12345")))
    return texts


JOINED = Public(schema=SCHEMA, unit=Unit("id"), table="people", tables=RELATED)


@pytest.fixture(scope="module")
def reference(spark):
    return plans(on_spark(spark, DATA, JOINED), JOINED)


def of_size(rows):
    return people(rows)["people"] if rows > 300 else DATA["people"].slice(0, rows)


@pytest.mark.parametrize(
    "rows", [0, 1, pytest.param(299, marks=pytest.mark.slow), pytest.param(20_000, marks=pytest.mark.slow)]
)
def test_a_plan_depends_on_no_row(rows, spark, reference):
    engine = on_spark(spark, {**DATA, "people": of_size(rows)}, JOINED)
    texts = plans(engine, JOINED)
    assert texts == reference
    assert not any("AdaptiveSparkPlan" in text for text in texts)


def test_a_plan_over_files_depends_on_no_row(spark, tmp_path):
    """One folder, written three times: its name stands in the plan, and nothing of what is in it."""
    from discreet.tables.engines.spark import connect as connect_spark

    public = Public(schema=SCHEMA, unit=Unit("id"), table="people")
    asked = [sql for sql in PLANNED if sql != OF_PEOPLE["private join"]]
    texts = []
    for rows in (300, 1, 0):
        pq.write_table(of_size(rows), tmp_path / "part.parquet")
        texts.append(plans(connect_spark(tmp_path, public, spark=spark), public, asked))
    assert texts[0] == texts[1] == texts[2]


def test_the_comparison_of_plans_notices_a_known_size(spark, reference, monkeypatch):
    from discreet.tables.engines import spark as spark_reading

    monkeypatch.setattr(spark_reading, "_of_unknown_size", lambda session, dataset: dataset)
    assert plans(on_spark(spark, {**DATA, "people": of_size(1)}, JOINED), JOINED) != reference


def test_a_bounded_group_by_keeps_few_rows_of_a_unit_and_gathers_nothing(spark):
    public = Public(schema=SCHEMA, unit=Unit("id"), table="people")
    engine = on_spark(spark, {"people": DATA["people"]}, public)
    query = Query(sql=QUERIES["sums by group"], public=public, epsilon=1, rows=3, groups=2)
    written = statements(query.question.form, engine.kinds, engine.dialect)
    plan = engine.explain(written.additive)
    # One shuffle of rows, by unit, and one of totals, by group; sorted rows are added up without a hash table.
    assert re.findall(r"Exchange hashpartitioning\((\w+)#", plan) == ["j", "u"]
    assert "SortAggregate(key=[p" in plan
    assert "WindowGroupLimit" in plan
    assert "collect_list" not in plan
    assert "rand(" not in plan
    assert "BroadcastHashJoin" in plan


# The host.


def test_nothing_of_the_host_changes(spark):
    before = (
        dict(spark.sparkContext.getConf().getAll()),
        {name: spark.conf.get(name) for name in ("spark.sql.ansi.enabled", "spark.sql.adaptive.enabled")},
    )
    assert before[1] == {"spark.sql.ansi.enabled": "true", "spark.sql.adaptive.enabled": "true"}
    spark.sparkContext.setJobGroup("mine", "mine")
    engine = on_spark(spark, {"people": DATA["people"]}, ROWS_ALONE)
    assert engine.answer("SELECT COUNT(*) AS n FROM people").column("n").to_pylist() == [300]
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "mine"
    after = (
        dict(spark.sparkContext.getConf().getAll()),
        {name: spark.conf.get(name) for name in ("spark.sql.ansi.enabled", "spark.sql.adaptive.enabled")},
    )
    assert before == after
    assert spark.catalog.listTables() == []


ROWS_ALONE = Public(schema=SCHEMA, unit=Unit(None), table="people")


# Opening.

VISITS = {"age": Bounds(0, 99), "g": Categories(["a", "b", "c"])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("spark") / "visits"
    path.mkdir()
    for i in range(3):
        part = DATA["people"].select(["rid", "id", "age", "g", "town", "spend", "day"]).slice(100 * i, 100)
        pq.write_table(part, path / f"part-{i}.parquet")
    return path


@pytest.fixture
def visits(spark, folder):
    spark.read.parquet(str(folder)).createOrReplaceTempView("visits")
    yield spark.table("visits")
    spark.catalog.dropTempView("visits")


ASK = "SELECT g, COUNT(*) AS n FROM visits GROUP BY g"


def test_a_table_of_spark_is_opened_asked_and_charged(visits, tmp_path):
    session = dp.open(visits, schema=VISITS, unit="id", budget=dp.Budget(epsilon=10), ledger=tmp_path / "l")
    assert session.public.table == "visits"
    answer = session.sql(ASK, epsilon=5, rows=3, groups=3)
    true = Counter(
        g
        for g, u in zip(*(DATA["people"].column(c).to_pylist() for c in ("g", "id")), strict=True)
        if u is not None
    )
    for g, n in answer.rows:
        assert abs(n - true[g]) < 60
    assert session.spent == pytest.approx(5)


@pytest.mark.parametrize(("facts", "spent"), [({}, 2), ({"version": "7"}, 1)])
def test_an_answer_is_served_within_an_opening_and_later_if_a_version_is_declared(
    visits, tmp_path, facts, spent
):
    """As every other table; without a version each question was charged, also twice within one opening."""
    ask = {"schema": VISITS, "unit": "id", "budget": dp.Budget(epsilon=10), "ledger": tmp_path / "l", **facts}
    for charged in (1, spent):
        session = dp.open(visits, **ask)
        first, again = (session.sql(ASK, epsilon=1, rows=1, groups=1) for _ in range(2))
        assert session.spent == pytest.approx(charged)
        assert first.rows == again.rows


def test_a_join_that_fans_out_reads_rows_by_their_content(visits, spark):
    related = {"towns": spark.createDataFrame(DATA["towns"])}
    public = Public(
        schema={**VISITS, "town": Text()}, table="visits",
        tables=(Related(name="towns", schema=(("name", Text()), ("size", Bounds(0, 10)))),),
    )  # fmt: skip
    ask = "SELECT COUNT(*) FROM visits JOIN towns ON town = name"
    options = {"schema": public, "related": related, "budget": dp.Budget(epsilon=10), "ledger": ":memory:"}
    session = dp.open(visits, **options)
    towns = dict(zip(*(DATA["towns"].column(c).to_pylist() for c in ("name", "size")), strict=True))
    matched = sum(town in towns for town in DATA["people"].column("town").to_pylist())
    query = Query(sql=ask, public=public, epsilon=1, rows=1)
    (counted,) = query._measure(session.curator.source, 5).measures
    assert counted.tolist() == [matched]
    assert session.sql(ask, epsilon=1, rows=1).rows


KEY_FACTS = {
    "bigint": Bounds(-10, 10),
    "double": Bounds(-10, 10),
    "string": Text(),
    "date": Dates("0001-01-01", "2020-01-01"),
}


def of_key(fact):
    """A table of rows and a public one, of which a key is declared."""
    other = Related(name="k", schema=(("k", fact),), key=("k",))
    return Public(schema={"v": Bounds(0, 9)}, table="t", tables=(other,))


def test_a_key_that_does_not_tell_rows_apart_is_refused(spark):
    """A join on it would make two rows of one: the promise for rows depends on it."""
    from discreet.tables.engines.spark import connect as connect_spark

    main = spark.createDataFrame([(1,)], "v int")
    bad = [
        ([1, 1], "bigint"),
        ([1, None], "bigint"),
        ([None, None], "string"),
        # Equal where rows are grouped, though their texts differ.
        ([0.0, -0.0], "double"),
        ([float("nan"), float("nan")], "double"),
        # Beyond the calendar: two that would both be missing.
        ([date(1, 1, 1), None], "date"),
    ]
    for values, type_ in bad:
        frame = spark.createDataFrame([(k, 1) for k in values], f"k {type_}, v int")
        with pytest.raises(InvalidInput, match="not unique"):
            connect_spark(main, of_key(KEY_FACTS[type_]), related={"k": frame})
    good = spark.createDataFrame([(i, 1) for i in range(3)], "k bigint, v int")
    connect_spark(main, of_key(KEY_FACTS["bigint"]), related={"k": good}).ready()


def test_texts_that_are_not_utf_8_are_no_key(spark, tmp_path):
    """They are missing to queries, and two of them would be one key."""
    from discreet.tables.engines.spark import connect as connect_spark

    raw = pa.array([b"\xff", b"\xfe", b"a"])
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    pq.write_table(pa.table({"k": text, "v": [1, 2, 3]}), tmp_path / "t.parquet")
    main = spark.createDataFrame([(1,)], "v int")
    with pytest.raises(InvalidInput, match="not unique"):
        connect_spark(main, of_key(Text()), related={"k": tmp_path / "t.parquet"}, spark=spark)


def test_what_computes_is_refused(spark, visits):
    from pyspark.sql import functions as f

    for frame in (
        visits.withColumn("age", f.rand()),
        visits.withColumn("age", f.monotonically_increasing_id()),
        visits.withColumn("age", f.col("town").cast("int")),
        visits.groupBy("g").count(),
        visits.where("age / spend > 3"),
        visits.limit(5),
        visits.sample(0.5),
        visits.selectExpr("raise_error('x') AS age", "g"),
    ):
        with pytest.raises(InvalidInput, match="computes something"):
            dp.open(
                frame,
                schema={"age": Bounds(0, 9)},
                unit=dp.rows(),
                budget=dp.Budget(epsilon=1),
                ledger=":memory:",
            )
    plain = visits.where("age > 3 AND g IN ('a', 'b')").select("g", visits.age.alias("years"))
    session = dp.open(
        plain, schema={"years": Bounds(0, 99)}, unit=dp.rows(), budget=dp.Budget(epsilon=1), ledger=":memory:"
    )
    assert session.sql("SELECT COUNT(*) FROM data", epsilon=0.5).rows


@pytest.mark.parametrize("pattern", ["", "/*.parquet", "/part-[0-9].parquet"])
def test_a_folder_or_a_pattern_of_parquet_files(spark, folder, pattern, tmp_path):
    session = dp.open(
        f"{folder}{pattern}", engine="spark", schema=VISITS, unit="id", budget=dp.Budget(epsilon=100),
        ledger=tmp_path / "books", large_epsilon=True,
    )  # fmt: skip
    assert session.public.table == "visits"
    (row,) = session.sql("SELECT COUNT(*) AS n FROM visits", epsilon=50, rows=3).rows
    assert abs(row[0] - 291) < 20
    session.sql("SELECT COUNT(*) AS n FROM visits", epsilon=50, rows=3)
    assert session.spent == pytest.approx(50)


def test_files_that_change_are_noticed_before_a_charge(spark, tmp_path):
    path = tmp_path / "t"
    path.mkdir()
    pq.write_table(DATA["people"].select(["age", "g"]), path / "a.parquet")
    session = dp.open(
        str(path),
        engine="spark",
        schema=VISITS,
        unit=dp.rows(),
        budget=dp.Budget(epsilon=9),
        ledger=":memory:",
    )
    pq.write_table(DATA["people"].select(["age", "g"]).slice(3), path / "b.parquet")
    with pytest.raises(EngineError, match="have changed"):
        session.sql("SELECT COUNT(*) FROM t", epsilon=1)
    assert session.spent == 0
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="no Parquet"):
        dp.open(
            tmp_path / "empty", engine="spark", schema=VISITS, unit=dp.rows(), budget=dp.Budget(epsilon=9),
            ledger=":memory:",
        )  # fmt: skip


def test_bad_options_are_refused_with_a_way_out(visits, folder):
    options = {"schema": VISITS, "unit": "id", "budget": dp.Budget(epsilon=1), "ledger": ":memory:"}
    for data, more, match in (
        (visits, {"engine": "duckdb"}, "answered by Spark"),
        (visits, {"memory": "1GB"}, "its own settings"),
        (visits, {"engine": "flink"}, "'spark' or 'duckdb'"),
        ({"age": [1], "g": ["a"], "id": [1]}, {"engine": "spark"}, "Parquet files"),
        (str(folder / "none-*.parquet"), {"engine": "spark"}, "there is no"),
        (visits, {"schema": {"agee": Bounds(0, 1)}}, "Did you mean"),
        (visits, {"schema": {"day": Bounds(0, 1)}}, "holds dates"),
    ):
        with pytest.raises(InvalidInput, match=match):
            dp.open(data, **{**options, **more})
    with pytest.raises(PublicMismatch, match="size is public"):
        dp.open(visits, **{**options, "unit": dp.rows()}, neighbors="replace", size=12)


# Limits.


def test_a_limit_of_time_cancels_the_job(spark, folder):
    from discreet.tables.engines.spark import connect as connect_spark

    # In many partitions: a task that sums up a range looks for its end only when it comes to its own.
    frame = spark.range(0, 50_000_000, 1, 5_000).toDF("age")
    engine = connect_spark(frame, Public(schema={"age": Bounds(0, 9)}, table="t"), seconds=0.5)
    with pytest.raises(TimeLimit, match=r"0\.5 seconds"):
        engine.answer("SELECT MAX(SHA2(CAST(age AS STRING), 512)) AS n FROM t")
    tracker = spark.sparkContext.statusTracker()
    executors = engine._context._jsc.sc().statusTracker()

    def is_busy() -> bool:
        tasks = sum(executor.numRunningTasks() for executor in executors.getExecutorInfos())
        return bool(tasks or tracker.getActiveJobsIds())

    # at once, or as soon as a busy machine comes to it
    for _ in range(600):
        if not is_busy():
            break
        engine._context._jvm.java.lang.Thread.sleep(100)
    assert not is_busy()


def test_a_query_that_is_too_late_before_its_first_job_starts_none(spark):
    """A query is planned before it has a job: a cancelled one must not run to its end when nobody waits for it."""
    from discreet.tables.engines.spark import connect as connect_spark

    frame = spark.range(10).toDF("age")
    engine = connect_spark(frame, Public(schema={"age": Bounds(0, 9)}, table="t"), seconds=0.01)
    planned, ended, outcomes = threading.Event(), threading.Event(), []

    def planned_slowly():
        planned.wait(600)
        try:
            outcomes.append(frame.count())
        except Exception as refusal:
            outcomes.append(refusal)
        ended.set()

    with pytest.raises(TimeLimit, match="seconds"):
        engine._run(planned_slowly)
    planned.set()
    assert ended.wait(600)
    assert isinstance(outcomes[0], Exception)


def test_errors_quote_nothing(spark):
    engine = on_spark(spark, {"people": DATA["people"]}, ROWS_ALONE)
    with pytest.raises(EngineError) as caught:
        engine.answer("SELECT raise_error('secret') FROM people")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "it's" not in repr(engine)


# Rows.

DAY = 86_400 * 10**6


def test_no_stored_value_makes_a_query_fail(spark, tmp_path):
    """Texts that are not UTF-8, days and times beyond the calendar, decimals, and types that no query reads."""
    bad = pa.array([b"a", b"\xff\xfe", b"ok", None]).view(pa.binary())
    text = pa.Array.from_buffers(pa.string(), 4, bad.buffers(), null_count=1)
    table = pa.table(
        {
            "s": text,
            "day": pa.array([-(2**31) + 9, 2**31 - 9, 18000, None], pa.int32()).view(pa.date32()),
            "at": pa.array([-(2**62), 2**62, 10**15, None], pa.int64()).view(pa.timestamp("us", "UTC")),
            "local": pa.array([-(2**62), 2**62, 10**15, None], pa.int64()).view(pa.timestamp("us")),
            # the first and last that are one, and those next to them
            "days": pa.array([-719_162, -719_163, 2_932_896, 2_932_897], pa.int32()).view(pa.date32()),
            **{
                f"times{i}": pa.array([first * DAY, first * DAY - 1, end * DAY - 1, end * DAY]).view(
                    pa.timestamp("us", zone)
                )
                for i, (zone, first, end) in enumerate(
                    ((None, -719_162, 2_932_897), ("UTC", -719_161, 2_932_896))
                )
            },
            "d": pa.array([1, 2, None, 4], pa.decimal128(38, 10)),
            "big": pa.array([2**64 - 1, 0, 5, None], pa.uint64()),
            "nested": [[1], [2], None, []],
            "raw": [b"\xff", b"", None, b"x"],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    schema = {
        "s": Text(), "day": Dates("2000-01-01", "2030-01-01"), "at": Dates("2000-01-01", "2030-01-01"),
        "local": Dates("2000-01-01", "2030-01-01"), "d": Bounds(0, 9), "big": Bounds(0, 9),
        **{name: Dates("2000-01-01", "2030-01-01") for name in ("days", "times0", "times1")},
    }  # fmt: skip
    from discreet.tables.engines.spark import connect as connect_spark

    public = Public(schema=schema, table="t")
    engine = connect_spark(tmp_path / "t.parquet", public, spark=spark)
    duckdb = connect(tmp_path / "t.parquet", public)
    for sql in (
        "SELECT s, COUNT(*) FROM t GROUP BY s",
        "SELECT EXTRACT(year FROM day) AS y, COUNT(*), COUNT(day) FROM t GROUP BY y",
        "SELECT EXTRACT(year FROM at) AS y, COUNT(*) FROM t GROUP BY y",
        "SELECT SUM(d), SUM(big), COUNT(local) FROM t WHERE local < DATE '2015-01-01'",
    ):
        query = Query(sql=sql, public=public, epsilon=1, delta=1e-6)
        assert exactly(query, engine, 3) == exactly(query, duckdb, 3)
    for name in ("days", "times0", "times1"):
        query = Query(sql=f"SELECT COUNT({name}) FROM t", public=public, epsilon=1)
        assert exactly(query, engine, 3) == exactly(query, duckdb, 3) == ([()], [[2]], [])
    assert set(engine.kinds["t"].items()) >= {("nested", "nested"), ("raw", "binary"), ("at", "date")}
    with pytest.raises(InvalidInput, match="holds bytes"):
        connect_spark(tmp_path / "t.parquet", Public(schema={"raw": Text()}, table="t"), spark=spark)


def test_a_collation_makes_no_two_texts_one(spark):
    from discreet.tables.engines.spark import connect as connect_spark

    plain = spark.createDataFrame([("a",), ("A",), ("b",)], "s string collate utf8_lcase")
    public = Public(schema={"s": Text()}, unit=Unit("s"), table="t")
    engine = connect_spark(plain, public)
    assert engine.answer("SELECT COUNT(DISTINCT s) AS n FROM t").column("n").to_pylist() == [3]


def test_literals_of_any_text_are_what_they_say(spark):
    """Names of groups stand in the text of a query: no quote, backslash or control character gets out."""
    names = [
        "it's",
        'a"b',
        "a\\b",
        "\\",
        "a\\'",
        "%",
        "line\nbreak",
        "tab\t",
        "🎈",
        "`",
        "\\u0041",
        "--x",
        "/*",
        "${x}",
    ]
    data = pa.table({"g": [*names, "A"]})
    public = Public(schema={"g": Categories(names)}, table="t")
    query = Query(sql="SELECT g, COUNT(*) FROM t GROUP BY g", public=public, epsilon=1)
    keys, measures, _ = exactly(query, on_spark(spark, {"t": data}, public), 1)
    assert dict(zip([key[0] for key in keys], measures[0], strict=True)) == dict.fromkeys(names, 1)


def test_a_unit_with_very_many_rows_counts_as_declared(spark):
    from discreet.tables.engines.spark import connect as connect_spark

    frame = spark.range(300_000).selectExpr("id")
    public = Public(schema={"id": Bounds(0, 9)}, unit=Unit("u"), table="t")
    heavy = frame.selectExpr("id", "'one' AS u")
    engine = connect_spark(heavy, public)
    for sql, limit in (("SELECT COUNT(*), SUM(id) FROM t", 5), ("SELECT MEDIAN(id) FROM t", 5)):
        query = Query(sql=sql, public=public, epsilon=1, rows=5)
        _, measures, scores = exactly(query, engine, 9)
        most = [m.limits(query.question.form.bounding)[1] for m in query.question.form.measures]
        assert all(0 <= m[0] <= high for m, high in zip(measures, most, strict=True))
        assert all(sum(row) <= limit for s in scores for row in s)
    (total,) = engine.answer("SELECT COUNT(*) AS n FROM t").column("n").to_pylist()
    assert total == 300_000


# Batches.


def test_batches_come_part_by_part_as_declared(spark, folder):
    from discreet.tables.engines.spark import connect as connect_spark

    public = Public(
        schema={"town": Bounds(0, 99), "age": Bounds(0, 99), "g": Categories(["a"])}, table="visits"
    )
    engine = connect_spark(folder, public, spark=spark)
    duckdb = connect(DATA["people"].select(["rid", "age", "town", "g"]), public=replaced(public))
    batches = list(engine.batches(["rid", "town", "age", "g"]))
    assert len(batches) >= 2
    assert max(batch.num_rows for batch in batches) < 300
    mine = pa.Table.from_batches(batches).sort_by("rid").to_pylist()
    theirs = (
        pa.Table.from_batches(list(duckdb.batches(["rid", "town", "age", "g"]))).sort_by("rid").to_pylist()
    )
    assert mine == theirs
    assert sum(batch.num_rows for batch in engine.batches([])) == 300
    with pytest.raises(InvalidInput, match="no column 'x'"):
        next(engine.batches(["x"]))


def replaced(public):
    return Public(schema=public.schema, table="visits")


def test_only_aggregates_come_back(spark):
    """Bytes of the answer do not grow with the table."""
    from discreet.tables.engines.spark import connect as connect_spark

    public = Public(schema={"v": Bounds(0, 9), "id": Bounds(0, 9)}, unit=Unit("id"), table="t")
    sizes = []
    for rows in (1_000, 200_000):
        frame = spark.createDataFrame(
            pa.table({"id": pa.array(np.arange(rows) // 5), "v": pa.array(np.arange(rows) % 7)})
        )
        engine = connect_spark(frame, public)
        query = Query(sql="SELECT COUNT(*), SUM(v) FROM t", public=public, epsilon=1, rows=3)
        written = statements(query.question.form, engine.kinds, engine.dialect)
        sizes.append(engine.answer(written.additive.replace(str(PLACEHOLDER), "1")).nbytes)
    assert sizes[0] == sizes[1] < 200
