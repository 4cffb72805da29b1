"""Neighbors on PostgreSQL and Spark: random questions, and those of the oracle on unions and marks, of two tables and
each of them without one of its three people, most of whom have more than may count. With the noise off."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from discreet import DiscreetError, Public
from discreet.tables import connect

from .. import postgres, spark
from . import change, shapes
from .shapes import PERSON, Shape
from .test_random import random_shape

# Two tables, as the contents of their three people; the first and the last have more rows and groups than count.
BASES = ((3, 11, 2), (4, 12, 8))
PAIRS = [(4 * base, 4 * base + person) for base in range(len(BASES)) for person in (1, 2, 3)]
WORDS = ("two", "union", "place", "visit", "town", "fold", "per person", "chain")


def held() -> list[dict[str, pa.Table]]:
    """The tables, each followed by the three that lack one person."""
    worlds = shapes.person_worlds(shapes.pool(13), orders=1)
    without = [[base, *((*base[:i], 0, *base[i + 1 :]) for i in range(3))] for base in BASES]
    return [worlds.alone(worlds.combinations.index(each)) for table in without for each in table]


def on_duckdb(tables: dict[str, pa.Table], public: Public) -> Any:
    rest = {name: table for name, table in tables.items() if name != "people"}
    return connect(tables["people"], public, related=rest, threads=1)


def on_postgres(tables: dict[str, pa.Table], public: Public) -> Any:
    from discreet.tables import connect_postgres

    server = postgres.server()
    names = {name: server.load(table, name) for name, table in tables.items()}
    people = names.pop("people")
    return connect_postgres(server.address("reader"), public, table=people, related=names)


def on_spark(tables: dict[str, pa.Table], public: Public) -> Any:
    from discreet.tables.engines.spark import connect as connect_spark

    frames = {name: spark.session().createDataFrame(table) for name, table in tables.items()}
    return connect_spark(frames.pop("people"), public, related=frames)


def asked(count: int) -> Iterator[Shape]:
    """Half random questions, half of the oracle's."""
    chance, found = random.Random(5), 0
    directed = [shape for shape in PERSON if any(word in shape.name for word in WORDS)]
    while found < count:
        shape = chance.choice(directed) if found % 2 else random_shape(chance, found)
        try:
            shape.query()
        except DiscreetError:
            continue
        if shape.unit == "person" and shape.neighbors == "add_remove":
            found += 1
            yield shape


def largest_change(connected: Callable[..., Any], count: int) -> float:
    """Ask questions of all tables. Return the largest loss of two neighbors; fail if one is above the price."""
    tables, largest = held(), 0.0
    left, right = (np.array(side) for side in zip(*PAIRS, strict=True))
    engines = [connected(each, Shape("", "").public()) for each in tables]
    for shape in asked(count):
        query = shape.query()
        exacts = [query._measure(engine, change.KEY) for engine in engines]
        loss, delta, _ = change.loss(query, change.table_of(query, exacts), left, right)
        assert loss <= 1 + change.SLACK, (shape, loss)
        assert delta <= 1 + change.SLACK, (shape, delta)
        largest = max(largest, loss)
    return largest


def test_no_person_changes_an_answer_by_more_than_its_price_on_duckdb() -> None:
    """120 pairs of a question and two neighbors."""
    assert largest_change(on_duckdb, 20) > 0.999


@postgres.needed
def test_no_person_changes_an_answer_by_more_than_its_price_on_postgres() -> None:
    """60 pairs."""
    assert largest_change(on_postgres, 10) > 0.999


@pytest.mark.slow
@postgres.needed
def test_no_person_changes_300_answers_by_more_than_their_prices_on_postgres() -> None:
    assert largest_change(on_postgres, 50) > 0.999


@pytest.mark.slow
@pytest.mark.skipif(spark.missing() is not None, reason=str(spark.missing()))
def test_no_person_changes_300_answers_by_more_than_their_prices_on_spark() -> None:
    assert largest_change(on_spark, 50) > 0.999
