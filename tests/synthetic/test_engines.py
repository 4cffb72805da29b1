"""Marginals are counted by the engine, on DuckDB, PostgreSQL and Spark alike, and a unit moves them no further there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

import discreet as dp
from discreet.sampling import SeededEntropy
from discreet.synthetic import LinkedSynthesis, SyntheticPair
from discreet.synthetic.counting import count_domain_cells
from discreet.synthetic.linked import count_linked_cells
from discreet.tables import Engine, connect

from .. import postgres, spark
from .test_linked import CHILD, PUBLIC, build_method, hostile_tables, without_unit

Tables = tuple[dict[str, list[Any]], dict[str, list[Any]]]


def arrow(tables: Tables) -> list[pa.Table]:
    people, visits = tables
    kinds = {"id": pa.int64(), "who": pa.int64(), "age": pa.int64(), "cost": pa.int64()}
    return [
        pa.table({n: pa.array(column, kinds.get(n, pa.string())) for n, column in table.items()})
        for table in (people, visits)
    ]


def by_duckdb(tables: Tables) -> Engine:
    people, visits = arrow(tables)
    return connect(people, PUBLIC, related={"visits": visits})


def by_postgres(tables: Tables) -> Engine:
    from discreet.tables.engines.postgres import connect_postgres

    server = postgres.server()
    people, visits = (server.load(t, n) for t, n in zip(arrow(tables), ("people", "visits"), strict=True))
    return connect_postgres(server.address("reader"), PUBLIC, table=people, related={"visits": visits})


def by_spark(tables: Tables) -> Engine:
    from discreet.tables.engines.spark import connect as connect_spark

    people, visits = (spark.session().createDataFrame(table) for table in arrow(tables))
    return connect_spark(people, PUBLIC, related={"visits": visits})


ENGINES = [
    pytest.param(by_postgres, marks=postgres.needed, id="postgres"),
    pytest.param(
        by_spark,
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(spark.missing() is not None, reason=str(spark.missing())),
        ],
        id="spark",
    ),
]


def test_rows_are_never_numbered_without_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark refuses that, and its own tests are slow ones."""
    engine, queries = by_duckdb(distinct_tables(1)), []
    answer = type(engine).answer

    def recorded(self: Any, sql: str) -> pa.Table:
        queries.append(sql)
        return answer(self, sql)

    monkeypatch.setattr(type(engine), "answer", recorded)
    count_linked_cells(build_method(), engine, SeededEntropy(1))
    windows = [w for sql in queries for w in sqlglot.parse_one(sql, read="duckdb").find_all(exp.Window)]
    assert len(windows) == 8
    assert all(window.args.get("order") is not None for window in windows)


def distinct_tables(seed: int) -> Tables:
    """Hostile tables in which every unit has one row of the first: then nothing is left to the hash."""
    people, visits = hostile_tables(seed)
    return {**people, "id": [*range(12), None]}, visits


@pytest.mark.parametrize("open_engine", ENGINES)
def test_every_engine_counts_the_same_cells(open_engine: Callable[[Tables], Engine]) -> None:
    tables = distinct_tables(1)
    method = build_method()
    wide = LinkedSynthesis.for_privacy(
        PUBLIC,
        dp.synthetic.ChildTable(name="visits", rows_per_unit=50),
        epsilon=1,
        delta=1e-6,
        method="independent",
    )
    ours, theirs = by_duckdb(tables), open_engine(tables)
    for a, b in zip(*(count_linked_cells(wide, s, SeededEntropy(1)) for s in (ours, theirs)), strict=True):
        every = list(range(len(a.sizes)))
        assert a.counts.sum() > 10
        assert all(np.array_equal(x, y) for x, y in zip(a.codes, b.codes, strict=True))
        assert np.array_equal(a.counts, b.counts), every
    domain = dp.synthetic.Domain(columns=method.parents.domain.columns[:-1])
    flat = [count_domain_cells(source, domain, 1, SeededEntropy(1)) for source in (ours, theirs)]
    assert np.array_equal(flat[0].table([0, 1]), flat[1].table([0, 1]))
    assert flat[0].counts.sum() == 12


@pytest.mark.parametrize("open_engine", ENGINES)
def test_a_unit_moves_counts_by_no_more_than_its_rows_on_every_engine(
    open_engine: Callable[[Tables], Engine],
) -> None:
    people, visits = hostile_tables(3)
    method = build_method()
    full = count_linked_cells(method, open_engine((people, visits)), SeededEntropy(3))
    for unit in (0, 3):
        smaller = (without_unit(people, "id", unit), without_unit(visits, "who", unit))
        for bound, a, b in zip(
            (1, 3), full, count_linked_cells(method, open_engine(smaller), SeededEntropy(3)), strict=True
        ):
            every = list(range(len(a.sizes)))
            assert 0 < np.abs(a.table(every) - b.table(every)).sum() <= bound


@pytest.mark.parametrize("open_engine", ENGINES[:1])
def test_a_session_on_postgres_synthesizes_both_tables(open_engine: Callable[[Tables], Engine]) -> None:
    people = dp.open(
        open_engine(distinct_tables(1)), budget=dp.Budget(epsilon=5, delta=1e-6), ledger=":memory:"
    )
    pair = people.synthesize(20, epsilon=1, child=CHILD, method="mst")
    assert isinstance(pair, SyntheticPair)
    assert pair.parents.num_rows == 20
