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
from discreet import Bounds, Categories, Public
from discreet._public import Unit
from discreet.sampling import SeededEntropy
from discreet.synthetic import Domain, SyntheticCopy
from discreet.synthetic.counting import count_domain_cells
from discreet.tables import Engine, connect

from .. import postgres, spark

PUBLIC = Public(
    schema={"kind": Categories(["er", "gp"]), "cost": Bounds(0, 9)}, unit=Unit("who"), table="visits"
)
DOMAIN = Domain.of(PUBLIC)

Table = dict[str, list[Any]]


def hostile_table(seed: int) -> Table:
    """Units with many rows, twice the same row, NULLs everywhere, values that were not declared."""
    random = np.random.default_rng(seed)
    who = [*random.integers(0, 8, 40).tolist(), None, None]
    return {
        "who": who,
        "kind": [["er", "gp", None, "zz"][i] for i in random.integers(0, 4, len(who))],
        "cost": [[0, 5, None, -7][i] for i in random.integers(0, 4, len(who))],
    }


def without_unit(table: Table, unit: int) -> Table:
    rows_left = [i for i, one in enumerate(table["who"]) if one != unit]
    return {name: [column[i] for i in rows_left] for name, column in table.items()}


def arrow(table: Table) -> pa.Table:
    kinds = {"kind": pa.string()}
    return pa.table({n: pa.array(column, kinds.get(n, pa.int64())) for n, column in table.items()})


def by_duckdb(table: Table) -> Engine:
    return connect(arrow(table), PUBLIC)


def by_postgres(table: Table) -> Engine:
    from discreet.tables.engines.postgres import connect_postgres

    server = postgres.server()
    return connect_postgres(server.address("reader"), PUBLIC, table=server.load(arrow(table), "visits"))


def by_spark(table: Table) -> Engine:
    from discreet.tables.engines.spark import connect as connect_spark

    return connect_spark(spark.session().createDataFrame(arrow(table)), PUBLIC)


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
    engine, queries = by_duckdb(hostile_table(1)), []
    answer = type(engine).answer

    def recorded(self: Any, sql: str) -> pa.Table:
        queries.append(sql)
        return answer(self, sql)

    monkeypatch.setattr(type(engine), "answer", recorded)
    count_domain_cells(engine, DOMAIN, 3, SeededEntropy(1))
    windows = [w for sql in queries for w in sqlglot.parse_one(sql, read="duckdb").find_all(exp.Window)]
    assert len(windows) == 2
    assert all(window.args.get("order") is not None for window in windows)


@pytest.mark.parametrize("open_engine", ENGINES)
def test_every_engine_counts_the_same_cells(open_engine: Callable[[Table], Engine]) -> None:
    """No unit has fifty rows: then nothing is left to the hash."""
    table = hostile_table(1)
    ours, theirs = (
        count_domain_cells(source, DOMAIN, 50, SeededEntropy(1))
        for source in (by_duckdb(table), open_engine(table))
    )
    assert ours.counts.sum() == 40
    assert all(np.array_equal(x, y) for x, y in zip(ours.codes, theirs.codes, strict=True))
    assert np.array_equal(ours.counts, theirs.counts)
    assert np.array_equal(ours.table([0, 1]), theirs.table([0, 1]))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("open_engine", [pytest.param(by_duckdb, id="duckdb"), *ENGINES])
def test_a_unit_moves_counts_by_no_more_than_its_rows_on_every_engine(
    open_engine: Callable[[Table], Engine], rows: int
) -> None:
    table = hostile_table(3)
    full = count_domain_cells(open_engine(table), DOMAIN, rows, SeededEntropy(3)).table([0, 1])
    for unit in (0, 3):
        smaller = open_engine(without_unit(table, unit))
        change = full - count_domain_cells(smaller, DOMAIN, rows, SeededEntropy(3)).table([0, 1])
        assert 0 < np.abs(change).sum() <= rows


@pytest.mark.parametrize("open_engine", ENGINES[:1])
def test_a_session_on_postgres_synthesizes_its_table(open_engine: Callable[[Table], Engine]) -> None:
    visits = dp.open(
        open_engine(hostile_table(1)), budget=dp.Budget(epsilon=5, delta=1e-6), ledger=":memory:"
    )
    copy = visits.synthesize(20, epsilon=1, rows_per_unit=3, method="mst")
    assert isinstance(copy, SyntheticCopy)
    assert copy.table.num_rows == 20
