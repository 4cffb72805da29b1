"""Where the number of rows is public, it is exact and free, and averages divide by it; nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import discreet as dp
from discreet import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Categories, Public, Related, Text, Unit
from discreet.accounting import NoOp
from discreet.query import Answer, Query, WorkloadQuery, ask, consistent
from discreet.sampling import Entropy
from discreet.tables import connect

N = 300
PUBLIC = Public(
    schema={
        "x": Bounds(0, 10, nullable=False),
        "y": Bounds(0, 10),
        "g": Categories(["a", "b"]),
        "word": Text(),
    },
    table="t",
    neighbors=REPLACE,
    size=N,
    tables=(Related(name="towns", schema={"name": Text(), "size": Bounds(0, 9)}),),
)
DATA = {
    "x": np.arange(N) % 10 + 0.5,
    "y": [None if i % 3 else 1.0 for i in range(N)],
    "g": ["a", "b"] * 150,
    "word": ["a"] * N,
}


@pytest.fixture(scope="module")
def source():
    return connect(DATA, PUBLIC, related={"towns": {"name": ["a", "a"], "size": [1, 2]}}, threads=1)


@pytest.mark.parametrize("neighbors", [REPLACE, ZERO_OUT])
@pytest.mark.parametrize(
    "price", [{"epsilon": 1}, {"rho": 1}, {"epsilon": 1, "delta": 1e-6, "noise": "gaussian"}]
)
@pytest.mark.parametrize(
    "sql", ["SELECT COUNT(*) AS n FROM t", "SELECT COUNT(x) AS n FROM (SELECT x FROM t)"]
)
def test_the_count_of_all_rows_is_exact_and_free_under_a_public_size(sql, price, neighbors):
    public = replace(PUBLIC, neighbors=neighbors, tables=())
    query = Query(sql=sql, public=public, **price)
    answer = query(connect(DATA, public, threads=1), entropy=Entropy()).value
    assert query.event == NoOp(neighbors=neighbors)
    assert answer.value == N
    assert answer.interval()["n"] == [(N, N)]
    assert "300 (exact)" in str(answer)
    assert "free" in str(answer)
    assert "n: exact" in str(query.preview())
    assert Answer.from_json(answer.to_json()) == answer


def test_a_session_charges_nothing_for_it():
    people = dp.open(
        connect(DATA, replace(PUBLIC, tables=()), threads=1), budget=dp.Budget(epsilon=1), ledger=":memory:"
    )
    assert people.sql("SELECT COUNT(*) AS n FROM t", epsilon=0.5).value == N
    assert people.spent == 0
    assert people.sql("SELECT COUNT(*) AS n, SUM(x) AS s FROM t", epsilon=0.5)["n"] == [N]
    assert people.spent == pytest.approx(0.5)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) AS n FROM t WHERE x > 3",
        "SELECT COUNT(*) AS n FROM t WHERE x >= 0",
        "SELECT COUNT(*) FILTER (WHERE x > 3) AS n FROM t",
        "SELECT COUNT(y) AS n FROM t",
        "SELECT COUNT(g) AS n FROM t",
        "SELECT g, COUNT(*) AS n FROM t GROUP BY g",
        "SELECT COUNT(DISTINCT g) AS n FROM t",
        "SELECT COUNT(*) AS n FROM t JOIN towns ON word = name",
        "SELECT COUNT(*) AS n FROM t LEFT JOIN towns ON word = name",
        "SELECT COUNT(*) AS n FROM t WHERE word IN (SELECT name FROM towns)",
        "SELECT COUNT(*) AS n FROM (SELECT x FROM t WHERE y > 0)",
    ],
)
def test_what_a_row_can_change_is_charged(sql):
    query = Query(sql=sql, public=replace(PUBLIC, unit=Unit(rows=2)), epsilon=1)
    assert not isinstance(query.event, NoOp)
    assert all(noise.standard_deviation > 0 for noise in query.question.noises)


@pytest.mark.parametrize(
    "public",
    [
        replace(PUBLIC, neighbors=ADD_REMOVE),
        replace(PUBLIC, size=None),
        replace(PUBLIC, unit=Unit("word", rows=1)),
    ],
)
def test_a_size_that_is_private_or_not_declared_or_of_people_is_charged(public):
    query = Query(sql="SELECT COUNT(*) AS n, AVG(x) AS a FROM t", public=public, epsilon=1)
    assert all(noise.standard_deviation > 0 for noise in query.question.noises)
    hint = "Where the steward declares it" in str(query.preview())
    assert hint == (public.size is None)


def test_an_average_of_what_is_never_missing_divides_by_the_public_size(source):
    """All of the price goes into the sum, and the interval's width is that of the sum's noise alone."""
    query = Query(sql="SELECT AVG(x) AS a FROM t", public=PUBLIC, epsilon=1)
    count, noise = query.question.noises
    assert count.standard_deviation == 0
    assert query.event == noise.event
    assert float(noise.event.scale) * 2**-26 == pytest.approx(10, rel=1e-6)
    released = query(source, entropy=Entropy()).value
    ((low, high),) = released.interval()["a"]
    assert high - low == pytest.approx(2 * noise.error(0.95) * 2**-26 / N, rel=1e-3)
    assert query.preview().errors[0] == pytest.approx(noise.error(0.95) * 2**-26 / N, rel=1e-3)
    nullable = Query(sql="SELECT AVG(y) AS a FROM t", public=PUBLIC, epsilon=1)
    assert all(n.standard_deviation > 0 for n in nullable.question.noises)


def test_the_average_interval_holds_as_often_as_it_says(source):
    """500 runs at 95%: fewer than 450 successes with probability below 1e-5."""
    query, entropy = Query(sql="SELECT AVG(x) AS a FROM t", public=PUBLIC, epsilon=0.1), Entropy()
    exact = query._measure(source, 1)
    truth = DATA["x"].mean()
    intervals = [query._noisy(exact, entropy).interval(0.95)["a"][0] for _ in range(500)]
    assert sum(low - 1e-9 <= truth <= high + 1e-9 for low, high in intervals) >= 450


def test_the_price_for_an_accuracy_is_that_of_the_noisy_numbers():
    both, mean = (
        ask(f"SELECT {what} FROM t", PUBLIC, within=0.05)
        for what in ("COUNT(*) AS n, AVG(x) AS a", "AVG(x) AS a")
    )
    assert float(both.epsilon) == pytest.approx(float(mean.epsilon), rel=0.01)
    assert isinstance(ask("SELECT COUNT(*) AS n FROM t", PUBLIC, within=0.5).event, NoOp)


def test_groups_are_made_consistent_with_an_exact_total(source):
    total, groups = (
        Query(sql=sql, public=PUBLIC, epsilon=0.1)(source, entropy=Entropy()).value
        for sql in ("SELECT COUNT(*) AS n FROM t", "SELECT g, COUNT(*) AS n FROM t GROUP BY g")
    )
    smooth = consistent([total, groups], "n")
    assert smooth[0].value == pytest.approx(N, abs=1e-3)
    assert sum(smooth[1]["n"]) == pytest.approx(N, abs=1e-3)
    whole = consistent([total, groups], "n", counts=True)
    assert sum(whole[1]["n"]) == whole[0].value == N


def test_beside_other_counts_it_stays_exact_and_workloads_have_a_preview(source):
    people = dp.open(
        connect(DATA, replace(PUBLIC, tables=()), threads=1), budget=dp.Budget(epsilon=1), ledger=":memory:"
    )
    sql = "SELECT COUNT(*) AS n, COUNT_IF(g = 'a') AS a, COUNT_IF(g = 'b') AS b FROM t"
    assert people.sql(sql, epsilon=0.1)["n"] == [N]
    together = WorkloadQuery(queries=("SELECT COUNT(*) AS n FROM t",), public=PUBLIC, epsilon=1)
    assert "together it is" in str(together.preview())
