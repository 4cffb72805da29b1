"""`dp.open`: a table, a budget, SQL; everything through the one ledger."""

import dataclasses
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import discreet as dp
from discreet import mechanisms
from discreet.tables import Database, rand_hie

from ..loops import for_each

SCHEMA = {"age": dp.Bounds(0, 100), "ward": dp.Categories(["a", "b"]), "id": dp.Text()}
TABLE = {"age": [30, 40, 50, 60] * 50, "ward": ["a", "b"] * 100, "id": [f"p{i // 2}" for i in range(200)]}
COUNT = "SELECT ward, COUNT(*) AS n FROM people GROUP BY ward"


def opened(data=None, **options):
    settings = {
        "unit": dp.rows(),
        "schema": SCHEMA,
        "table": "people",
        "budget": dp.Budget(epsilon=2, delta=1e-6),
        "ledger": ":memory:",
    }
    return dp.open(TABLE if data is None else data, **{**settings, **options})


def test_a_question_is_charged_answered_and_then_free():
    people = opened()
    answer = people.sql(COUNT, epsilon=0.5)
    assert answer["ward"] == ["a", "b"]
    assert all(abs(n - 100) < 60 for n in answer["n"])  # 30 scales of Laplace noise: 1 - 4e-13
    assert people.spent == 0.5
    text = "select ward, count( * ) as n from people group by ward"
    again = people.sql(text, epsilon=0.5)
    assert again.sql == text  # who asks sees their own words
    assert dataclasses.replace(again, sql=answer.sql) == answer
    assert people.spent == 0.5
    people.sql(COUNT, epsilon=0.5, fresh=True)
    assert people.spent == 1
    assert people.remaining == pytest.approx(1)


def test_only_a_ledger_that_is_kept_waits_for_the_disk(monkeypatch, tmp_path):
    """That what is kept does, is tested with power cuts and full disks in tests/curator."""
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    people = opened()
    people.sql(COUNT, epsilon=0.5)
    assert synced == []
    opened(ledger=tmp_path / "people.ledger")
    assert len(synced) == 2, "the key, and the names of the new files"


def test_more_epsilon_is_another_question_and_pays():
    people = opened()
    people.sql(COUNT, epsilon=0.5)
    people.sql(COUNT, epsilon=0.75)
    assert people.spent == 1.25


def test_the_budget_is_enforced_and_what_is_refused_costs_nothing():
    people = opened()
    with pytest.raises(dp.BudgetExceeded, match="above the limit 2"):
        people.sql(COUNT, epsilon=5)
    for bad in ("SELECT * FROM people", "SELECT age FROM people", "DROP TABLE people", "SELEC", ""):
        with pytest.raises(dp.InvalidInput, match=r"^line 1, column|the query is empty"):
            people.sql(bad, epsilon=0.1)
    with pytest.raises(dp.InvalidInput, match=r"epsilon=0\.1"):
        people.sql(COUNT)
    assert people.spent == 0
    assert [entry.kind for entry in people.ledger.entries()] == ["open"]


def test_preview_is_free_and_says_how_many_more_fit():
    people = opened()
    asked = people.preview(COUNT, epsilon=0.5)
    assert asked.fits == 4
    assert asked.admitted
    assert "epsilon 0.5" in str(asked)
    assert "what is left buys 4 of these" in str(asked)
    assert people.spent == 0


def test_asking_by_accuracy_takes_the_least_price_that_promises_it():
    people = opened()
    answer = people.sql("SELECT COUNT(*) AS n FROM people", within=20, confidence=0.9)
    assert answer.error(0.9)["n"] == [20]
    assert 0.1 < people.spent < 0.13  # ln(10) / 20 and a bit
    with pytest.raises(dp.InvalidInput, match="not both"):
        people.sql(COUNT, within=20, epsilon=1)


def test_sql_mechanisms_and_live_answerers_share_one_budget():
    people = opened(unit=dp.rows())
    people.sql(COUNT, epsilon=0.5)
    people.ask(mechanisms.noisy_count(people.public, epsilon=0.5))
    people.start(mechanisms.AboveThreshold(public=people.public, threshold=50, epsilon=0.5))
    assert people.spent == 1.5
    with pytest.raises(dp.BudgetExceeded, match="above the limit 2"):
        people.ask(mechanisms.noisy_count(people.public, epsilon=0.75))


def test_analysts_have_their_own_budgets():
    people = opened(analysts={"ann": dp.Budget(epsilon=0.25), "bob": None})
    ann = people.as_analyst("ann")
    with pytest.raises(dp.BudgetExceeded, match="ann's own budget"):
        ann.sql(COUNT, epsilon=0.5)
    people.as_analyst("bob").sql(COUNT, epsilon=0.5)
    with pytest.raises(dp.NotPrivate, match="'eve'"):
        people.as_analyst("eve")


def test_the_order_in_which_analysts_are_named_does_not_matter(tmp_path):
    analysts = {"ann": dp.Budget(epsilon=0.25), "bob": None}
    opened(analysts=analysts, ledger=tmp_path / "l")
    backwards = dict(reversed(analysts.items()))
    assert opened(analysts=backwards, ledger=tmp_path / "l").as_analyst("ann").remaining == 0.25
    with pytest.raises(dp.LedgerError, match="analysts ann, bob"):
        opened(analysts=analysts | {"ann": None}, ledger=tmp_path / "l")


def test_many_rows_of_one_person_are_protected_together():
    people = opened(unit="id")
    people.sql("SELECT COUNT(*) AS n FROM people", epsilon=1, rows=2)
    event = next(iter(people.ledger.entries(kind="charge"))).body["event"]
    assert event["sensitivity"] == 2


def test_files_databases_and_frames(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    table = pa.table(TABLE)
    pq.write_table(table, tmp_path / "people.parquet")
    (tmp_path / "people.csv").write_text(
        "age,ward,id\n" + "\n".join(f"{a},{w},{i}" for a, w, i in zip(*TABLE.values(), strict=True))
    )
    with duckdb.connect(str(tmp_path / "ward.duckdb")) as db:
        db.register("arrow", table)
        db.execute("CREATE TABLE people AS SELECT * FROM arrow")
    sources = [tmp_path / "people.parquet", str(tmp_path / "people.csv"), table, table.to_pandas(), TABLE]
    sources.append(Database(tmp_path / "ward.duckdb", "people"))
    for data in sources:
        answer = opened(data).sql("SELECT SUM(age) AS s FROM people", epsilon=2)
        assert abs(answer.value - 9000) < 2000  # 40 scales


def test_books_are_kept_beside_a_file_and_found_again(tmp_path):
    path = tmp_path / "people.parquet"
    pq.write_table(pa.table(TABLE), path)
    facts = {"unit": dp.rows(), "schema": SCHEMA, "version": "1"}
    first = dp.open(path, budget=dp.Budget(epsilon=1), **facts)
    assert first.ledger.path == tmp_path / "people.parquet.ledger"
    value = first.sql(COUNT, epsilon=0.5)
    again = dp.open(path, **facts)
    assert again.sql(COUNT, epsilon=0.5) == value
    assert again.spent == 0.5
    with pytest.raises(dp.LedgerError, match="was made with Budget"):
        dp.open(path, unit=dp.rows(), schema=SCHEMA, budget=dp.Budget(epsilon=100), large_epsilon=True)


@for_each(
    ("options", "message"),
    [
        ({"schema": None}, "declare what is public"),
        ({"budget": None}, "give a budget"),
        ({"ledger": None}, "where the ledger is"),
        ({"data": "nowhere.parquet"}, "no file 'nowhere.parquet'"),
        ({"neighbors": "nearby"}, "one of add_remove, replace, zero_out, got 'nearby'"),
        ({"analysts": ["ann"]}, "names with their budgets"),
        ({"budget": 3}, "a Budget"),
        ({"schema": "nowhere.toml"}, "no schema file 'nowhere.toml'"),
        ({"schema": 5}, "schema must be"),
        ({"unit": 5}, "unit must be"),
        ({"table": 5}, "table must be"),
    ],
)
def test_what_is_missing_is_named(options, message):
    with pytest.raises(dp.DiscreetError, match=message):
        opened(**options)


def test_a_dummy_table_knows_the_schema_only():
    people = opened()
    made = people.dummy(rows=7)
    assert sum(batch.num_rows for batch in made.batches(["age"])) == 7
    assert people.spent == 0


def test_the_answer_goes_to_pandas_arrow_and_json():
    answer = opened().sql(COUNT, epsilon=1)
    assert list(answer.to_pandas().columns) == ["ward", "n", "n_low", "n_high"]
    assert answer.to_arrow().column_names == ["ward", "n"]
    assert json.loads(answer.to_json())["rows"][0][0] == "a"
    assert set(answer.interval(0.9)) == {"n"}


def test_the_bundled_table_opens_as_it_is():
    people = dp.open(rand_hie(), budget=dp.Budget(epsilon=1), ledger=":memory:")
    answer = people.sql("SELECT COUNT(DISTINCT person) AS n FROM rand_hie", epsilon=0.5)
    assert abs(answer.value - 5912) < 80


def test_a_time_limit_is_the_engines_and_a_late_answer_stays_charged(monkeypatch):
    people = opened(seconds=30)
    engine = people.curator.source
    assert engine._seconds == 30

    def late(self, sql):
        raise self._too_late()

    monkeypatch.setattr(type(engine), "answer", late)
    with pytest.raises(dp.ReleaseFailed, match="The charge stays"):
        people.sql(COUNT, epsilon=0.5)
    assert people.spent == 0.5
    for bad in (0, -1, "soon", float("nan")):
        with pytest.raises(dp.InvalidInput, match="seconds"):
            opened(seconds=bad)
    with pytest.raises(dp.InvalidInput, match="connected already"):
        opened(rand_hie(), schema=None, unit=None, table=None, seconds=5)


def test_a_limit_on_memory_reaches_the_engine_and_nonsense_is_refused():
    with opened(memory="300MB").curator.source._cursor() as cursor:
        shown = cursor.execute("SELECT current_setting('memory_limit')").fetchone()[0]
    assert shown.split()[0].startswith(("286", "300"))  # MiB, or MB
    for bad in ("much", "-1GB", 3):
        with pytest.raises(dp.InvalidInput, match="memory"):
            opened(memory=bad)
