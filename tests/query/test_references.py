"""Tables whose rows belong to people by way of another table, as an order's items to the customer of the order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from discreet import Bounds, Categories, Public, Reference, Related, Text, Unit
from discreet._errors import InvalidInput
from discreet.query import Query, QueryError
from discreet.tables import connect, schema
from discreet.tables.source import Engine

from .. import postgres, spark

ORDERS = Related(
    name="orders", schema={"order": Text(), "kind": Categories(["a", "b"])}, private=True, unit="customer"
)
ITEMS = Related(
    name="items",
    schema={"of": Text(), "item": Text(), "price": Bounds(0, 10)},
    private=True,
    unit=Reference(of="orders", column="of", key="order"),
)
PARTS = Related(
    name="parts",
    schema={"part_of": Text(), "weight": Bounds(0, 5)},
    private=True,
    unit=Reference(of="items", column="part_of", key="item"),
)
PUBLIC = Public(
    schema={"town": Categories(["x", "y"])},
    unit=Unit("id", rows=2, groups=1),
    table="customers",
    tables=(ORDERS, ITEMS, PARTS),
)
QUESTIONS = (
    "SELECT COUNT(*), SUM(price) FROM items",
    "SELECT SUM(weight) FROM parts",
    "SELECT COUNT(DISTINCT item) FROM items",
    "SELECT MEDIAN(price) FROM items",
    "SELECT kind, COUNT(*) FROM orders JOIN items ON orders.order = items.of GROUP BY kind",
    "SELECT kind, SUM(price) FROM orders LEFT JOIN items ON orders.order = items.of GROUP BY kind",
    "SELECT COUNT(*) FROM orders WHERE EXISTS (SELECT 1 FROM items WHERE of = orders.order AND price > 2)",
    "SELECT COUNT(*) FROM orders WHERE orders.order IN (SELECT of FROM items GROUP BY of HAVING COUNT(*) > 1)",
    "SELECT SUM(CLAMP(n, 0, 3)) FROM (SELECT of, COUNT(*) AS n FROM items GROUP BY of) AS t",
    "SELECT town, SUM(weight) FROM customers JOIN orders ON id = customer JOIN items ON items.of = orders.order "
    "JOIN parts ON part_of = item GROUP BY town",
    "SELECT of, COUNT(*) FROM items GROUP BY of",
)


def tables(orders: list[tuple[Any, str, str]]) -> dict[str, dict[str, Any]]:
    """Three customers with these orders; items of two orders, of one that nobody has, and of none."""
    customer, order, kind = zip(*orders, strict=True) if orders else ((), (), ())
    return {
        "customers": {"id": [1.0, 2.0, 3.0], "town": ["x", "y", "x"]},
        "orders": {
            "customer": np.array(customer, dtype=float),
            "order": np.array(order, dtype=object).astype(str) if orders else np.array([], dtype=str),
            "kind": np.array(kind, dtype=str),
        },
        "items": {
            "of": ["o", "o", "o", "p", "q", None],
            "item": ["i", "j", "j", "k", "l", "m"],
            "price": [1.0, 5.0, 12.0, 3.0, 9.0, 9.0],
        },
        "parts": {"part_of": ["i", "j", "k", "k", "l", "z"], "weight": [1.0, 2.0, 3.0, 4.0, 5.0, 5.0]},
    }


def of_duckdb(data: dict[str, dict[str, Any]], public: Public = PUBLIC) -> Engine:
    related = {name: table for name, table in data.items() if name != "customers"}
    return connect(data["customers"], public, related=related, threads=1)


def query(sql: str, public: Public = PUBLIC) -> Query:
    return Query(sql=sql, public=public, epsilon=1, delta=1e-6)


def integers(asked: Query, engine: Engine, key: int) -> dict[Any, Any]:
    """Everything that is released, without its noise, by group."""
    exact = asked._measure(engine, key)
    columns = [*exact.measures, *(c for score in exact.scores for c in score.dense(0, score.shape[0]).T)]
    return {group: [int(c[i]) for c in columns] for i, group in enumerate(exact.keys)}


# every set of at most three orders of two customers: an order may be of both, of one, twice of one, or of nobody
ORDERED = [(1.0, "o", "a"), (2.0, "o", "b"), (2.0, "p", "a"), (1.0, "o", "a"), (np.nan, "o", "a")]


def worlds() -> Iterator[list[tuple[Any, str, str]]]:
    for size in range(4):
        yield from map(list, itertools.combinations(ORDERED, size))


@pytest.fixture(scope="module")
def engines() -> dict[tuple[Any, ...], Engine]:
    return {tuple(map(str, world)): of_duckdb(tables(world)) for world in worlds()}


@pytest.mark.parametrize("sql", QUESTIONS)
def test_one_person_changes_no_more_than_is_priced(sql: str, engines: Any) -> None:
    asked, changed = query(sql), False
    for world, person, key in itertools.product(worlds(), (1.0, 2.0), (3, 4)):
        less = [row for row in world if row[0] != person]
        whole, rest = (integers(asked, engines[tuple(map(str, orders))], key) for orders in (world, less))
        zero = [0] * len(next(iter({**whole, **rest}.values()), []))
        groups = whole.keys() | rest.keys()
        changes = [np.subtract(whole.get(group, zero), rest.get(group, zero)) for group in groups]
        changed |= any(change.any() for change in changes)
        for i, measure in enumerate(asked.question.form.measures):
            bound = measure.sensitivity(asked.question.form.bounding, PUBLIC.neighbors, asked._plan.groups)
            moved = [abs(change[i]) for change in changes]
            assert max(moved, default=0) <= bound.linf
            assert sum(moved) <= bound.l1
        # of the candidates of a median, at most as many rows move as count
        assert (
            asked.question.form.measures
            or sum(abs(change).sum() for change in changes) <= asked.question.form.bounding.rows
        )
    assert changed


def test_an_item_of_two_people_counts_as_one_of_each_and_that_of_nobody_not_at_all() -> None:
    both = tables([(1.0, "o", "a"), (2.0, "o", "b")])
    public = Public(
        **{**{f: getattr(PUBLIC, f) for f in ("schema", "table", "tables")}, "unit": Unit("id", rows=9)}
    )
    assert query("SELECT COUNT(*) FROM items", public)._without_noise(of_duckdb(both, public), 1) == [[6]]
    assert query("SELECT COUNT(*) FROM items", public)._without_noise(of_duckdb(tables([]), public), 1) == [
        [0]
    ]


def on_postgres(data: dict[str, dict[str, Any]]) -> Engine:
    import pyarrow as pa

    from discreet.tables import connect_postgres

    server = postgres.server()
    related = {n: server.load(pa.table(t), n) for n, t in data.items() if n != "customers"}
    main = server.load(pa.table(data["customers"]), "customers")
    return connect_postgres(server.address("reader"), PUBLIC, table=main, related=related)


def on_spark(data: dict[str, dict[str, Any]]) -> Engine:
    import pyarrow as pa

    from discreet.tables.engines.spark import connect as connect_spark

    frames = {name: spark.session().createDataFrame(pa.table(table)) for name, table in data.items()}
    return connect_spark(frames.pop("customers"), PUBLIC, related=frames)


@pytest.mark.parametrize(
    "opened",
    [
        pytest.param(on_postgres, marks=postgres.needed),
        pytest.param(
            on_spark, marks=pytest.mark.skipif(spark.missing() is not None, reason=str(spark.missing()))
        ),
    ],
)
def test_other_engines_compute_the_same(opened: Any) -> None:
    data = tables([(1.0, "o", "a"), (2.0, "o", "b"), (2.0, "p", "a"), (3.0, "p", "b")])
    here, there = of_duckdb(data), opened(data)
    wide = Public(
        schema=PUBLIC.schema, unit=Unit("id", rows=9, groups=9), table="customers", tables=PUBLIC.tables
    )
    for sql in QUESTIONS:
        asked = query(sql, wide)
        assert integers(asked, here, 7) == integers(asked, there, 7), sql


def test_a_schema_file_says_to_which_table_rows_refer(tmp_path: Any) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(schema.dump(PUBLIC))
    assert 'of = "orders"\nkey = "of"\nparent_key = "order"' in path.read_text()
    assert schema.load(path) == PUBLIC


@pytest.mark.parametrize(
    ("reference", "tables", "match"),
    [
        (
            Reference(of="nothing", column="of", key="order"),
            (ORDERS,),
            "does not lead to a column of the unit",
        ),
        (Reference(of="items", column="of", key="item"), (ORDERS,), "does not lead to a column of the unit"),
        (Reference(of="orders", column="price", key="order"), (ORDERS,), "declare it there"),
        (Reference(of="orders", column="of", key="total"), (ORDERS,), "by column 'total' of table 'orders'"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(reference: Reference, tables: Any, match: str) -> None:
    items = Related(name="items", schema=ITEMS.schema, private=True, unit=reference)
    with pytest.raises(InvalidInput, match=match):
        Public(schema=PUBLIC.schema, unit=Unit("id"), table="customers", tables=(*tables, items))


def test_tables_are_not_joined_on_what_is_no_reference() -> None:
    with pytest.raises(QueryError, match="can only be joined on the unit of privacy"):
        query("SELECT COUNT(*) FROM orders JOIN items ON orders.kind = items.item")


def test_keys_of_kinds_that_never_match_are_refused_before_the_charge() -> None:
    data = tables([(1.0, "o", "a")])
    data["items"]["of"] = np.array([1.0, np.nan, 2.0, 2.0, 3.0, 4.0])
    data["orders"]["order"] = np.array([1])
    with pytest.raises(InvalidInput, match="items"):
        query("SELECT COUNT(*) FROM items").rehearse(of_duckdb(data))


def test_a_wrong_join_names_the_keys_by_which_tables_refer_to_each_other() -> None:
    for ask in (
        "SELECT COUNT(*) FROM orders JOIN items ON orders.order = items.item",
        "SELECT COUNT(*) FROM orders WHERE kind IN (SELECT item FROM items)",
    ):
        with pytest.raises(QueryError, match=r"items\.of = orders\.order, parts\.part_of = items\.item"):
            query(ask)
    assert "private table items, by of of orders.order" in str(PUBLIC)


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        (
            'of = "orders"\nkey = ["of"]\nparent_key = "order"',
            r"\[tables\.items\] key must be one name in quotes",
        ),
        ('of = "orders"\nkey = "of"\nparent_key = true', r"\[tables\.items\] parent_key must be one name"),
        ('of = "orders"\nkey = "of"', "by three entries"),
        ('of = "orders"\nkey = "of"\nparent_key = "order"\nunit = "of"', "by three entries, and no unit"),
        ('of = "order"\nkey = "of"\nparent_key = "order"', "Did you mean 'orders'"),
        ('of = "items"\nkey = "of"\nparent_key = "item"', "not in a circle"),
        (
            'of = "orders"\nkey = "of"\nparent_key = "order"\nprivate = false',
            "is public: its rows belong to nobody",
        ),
    ],
)
def test_a_mistake_in_a_schema_file_is_named_with_its_entry(entries: str, match: str, tmp_path: Any) -> None:
    text = schema.dump(PUBLIC)
    whole = 'private = true\nof = "orders"\nkey = "of"\nparent_key = "order"'
    assert whole in text
    path = tmp_path / "schema.toml"
    path.write_text(text.replace(whole, entries))
    with pytest.raises(InvalidInput, match=match):
        schema.load(path)
