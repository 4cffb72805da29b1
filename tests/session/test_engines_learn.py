"""Learning, synthesis and streams read from any engine: rows in batches, counts and marginals in the engine."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import discreet as dp
from discreet import tabular

from .. import postgres
from .. import spark as one_spark

SIZE = 900
SCHEMA = {
    "age": dp.Bounds(0, 100),
    "ward": dp.Categories(["A", "B"]),
    "ill": dp.Boolean(),
    "day": dp.Dates("2024-01-01", "2024-01-04"),
}


def people() -> pa.Table:
    """Those of ward B are old and ill; every value is missing somewhere."""
    old = np.arange(SIZE) % 3 == 0
    days = np.datetime64("2024-01-01") + np.arange(SIZE) % 3
    return pa.table(
        {
            "age": pa.array(np.where(old, 80.0, 20.0) + np.arange(SIZE) % 7),
            "ward": pa.array(np.where(old, "B", "A")),
            "ill": pa.array(old),
            "day": pa.array(days.astype("datetime64[D]")),
        }
    )


def on_postgres(table: pa.Table):
    return postgres.server().address("reader"), {"table": postgres.server().load(table, "people")}


def on_spark(table: pa.Table):
    return one_spark.session().createDataFrame(table), {"table": "people"}


ENGINES = [
    pytest.param(on_postgres, marks=postgres.needed, id="postgres"),
    pytest.param(
        on_spark,
        marks=pytest.mark.skipif(one_spark.missing() is not None, reason=str(one_spark.missing())),
        id="spark",
    ),
]


@pytest.fixture(scope="module", params=ENGINES)
def place(request):
    return request.param


@pytest.fixture(scope="module")
def session(place):
    data, options = place(people())
    return dp.open(
        data, schema=SCHEMA, unit=dp.rows(), size=SIZE, version="1", ledger=":memory:",
        budget=dp.Budget(epsilon=200, delta=1e-5), **options, large_epsilon=True,
    )  # fmt: skip


def test_a_model_is_fitted_to_a_table_that_stays_where_it_is(session):
    before = session.spent
    model = session.fit(tabular.LogisticRegression(epsilon=20), target="ill", features=["age", "ward"])
    predicted = model.predict({"age": [22.0, 85.0], "ward": ["A", "B"]})
    assert [bool(value) for value in predicted] == [False, True]
    assert session.spent - before == pytest.approx(20, rel=0.01)


def test_a_copy_is_made_from_marginals_of_the_engine(session):
    copy = session.synthesize(600, epsilon=40, columns=["ward", "ill"])
    rows = copy.to_pandas()
    assert len(rows) == 600
    # a third are old and ill and in ward B; noise of scale 1 in 900 moves neither by a tenth
    assert 0.2 < (rows["ward"] == "B").mean() < 0.46
    assert ((rows["ward"] == "B") == rows["ill"].astype(bool)).mean() > 0.9


def test_a_stream_with_a_clock_counts_in_the_engine(session):
    stream = session.stream("SELECT COUNT(*) AS n FROM people", epsilon=40, horizon=4, clock="day")
    for _ in range(3):
        stream.feed()
    # 300 rows a day, added up; noise of a few units
    for value, exact in zip(stream.history, (300, 600, 900), strict=True):
        assert value == pytest.approx(exact, abs=30)


def test_a_stream_is_fed_tables_of_the_engine(session, place):
    stream = session.stream("SELECT COUNT(*) AS n FROM people", epsilon=40, horizon=4)
    for number in range(2):
        data, options = place(people().slice(number * 100, 100))
        stream.feed(f"{data}::{options['table']}" if isinstance(data, str) else data, tick=f"day {number}")
    assert stream.value == pytest.approx(200, abs=30)


def test_a_release_of_a_mechanism_on_raw_columns_reads_batches(session):
    batches = list(session.curator.source.batches(["age", "ill"]))
    assert sum(batch.num_rows for batch in batches) == SIZE
    assert {field.name for batch in batches for field in batch.schema} == {"age", "ill"}
