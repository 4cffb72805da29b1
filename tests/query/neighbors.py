"""Tables that differ in one unit, and how far their exact answers may be apart.

A light engine that swaps its table in place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from discreet import Bounds, Categories, Public, Related, Text, Unit
from discreet.core.exact import Exact, measure
from discreet.core.measures import Bounding
from discreet.query import Query
from discreet.tables.engines.duckdb_dialect import DUCKDB

KEY = 987654321
TOWNS = pa.table({"town": ["a", "a", "b", "c"], "size": [1.0, 4.0, 2.0, 30.0]})
RELATED = (
    Related(name="towns", schema=(("town", Text()), ("size", Bounds(0, 10)))),
    Related(name="visits", schema=(("cost", Bounds(-3, 8)),), private=True, unit="who"),
)
SCHEMA = (
    ("region", Categories(["north", "south", "east"])),
    ("age", Bounds(0, 99, nullable=False)),
    ("spend", Bounds(-10, 50)),
    ("town", Text()),
    ("level", Categories([1, 2, 50])),  # holds what age holds: anything
)


class Swapped:
    """An engine over small tables that tests replace again and again."""

    dialect = DUCKDB

    def __init__(self, public: Public) -> None:
        self.public = public
        self.con = duckdb.connect(config={"threads": 1})
        self.fetched: list[pa.Table] = []
        number, text = "number", "text"
        self.kinds = self.id_kinds = {
            "people": {
                "id": "integer",
                "region": text,
                "age": number,
                "spend": number,
                "town": text,
                "level": number,
            },
            "towns": {"town": text, "size": number},
            "visits": {"who": "integer", "cost": number},
        }
        self.con.register("towns", TOWNS)

    def load(self, rows: list[tuple[Any, ...]], visits: list[tuple[int, float]]) -> Swapped:
        columns = [list(c) for c in zip(*rows, strict=True)] if rows else [[], [], [], [], [], []]
        types = [pa.int64(), pa.int64(), pa.string(), pa.float64(), pa.float64(), pa.string()]
        names = ["row", "id", "region", "age", "spend", "town"]
        made = {n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=True)}
        self.con.register("people", pa.table({**made, "level": made["age"]}))
        who, cost = [v[0] for v in visits], [v[1] for v in visits]
        self.con.register(
            "visits",
            pa.table(
                {
                    "who": pa.array(who, pa.int64()),
                    "cost": pa.array(cost, pa.float64()),
                }
            ),
        )
        return self

    def batches(self, columns: Any) -> Any:
        raise AssertionError("rows never leave")

    def ready(self) -> None:
        """Always."""

    def plan(self, texts: Any) -> None:
        """Always."""

    def stopwatch(self) -> Any:
        return lambda: None

    def answer(self, sql: str) -> pa.Table:
        table = self.con.sql(sql).to_arrow_table()
        self.fetched.append(table)
        return table


def public(unit: str | None, neighbors: str = "add_remove") -> Public:
    return Public(schema=SCHEMA, unit=Unit(unit), table="people", tables=RELATED, neighbors=neighbors)


def exact(query: Query, engine: Swapped, bounding: Bounding | None = None, key: int = KEY) -> Exact:
    form = query.question.form
    return measure(form if bounding is None else replace(form, bounding=bounding), engine, key)


def aligned(a: Exact, b: Exact) -> list[tuple[Any, Any]]:
    """The measures of both as integers over the same groups; a group that one lacks is zero there."""
    keys = list(dict.fromkeys([*a.keys, *b.keys]))
    pairs = []
    for x, y in zip([*a.measures, *a.scores], [*b.measures, *b.scores], strict=True):
        pairs.append((_spread(x, a.keys, keys), _spread(y, b.keys, keys)))
    return pairs


def _spread(values: Any, have: list[Any], keys: list[Any]) -> Any:
    width = values.shape[1:]
    full = np.zeros((len(keys), *width), dtype=object)
    for i, key in enumerate(have):
        full[keys.index(key)] = values[i]
    return full


def assert_within(query: Query, a: Exact, b: Exact) -> None:
    """The two exact answers differ by no more than the query claims of any unit."""
    from discreet.core.choosing import scores

    pairs = aligned(a, b)
    groups = query._plan.groups
    for m, (x, y) in zip(query.question.form.measures, pairs, strict=False):
        claim = m.sensitivity(query.question.form.bounding, query.public.neighbors, groups)
        moved = np.abs((x - y).astype(float))
        assert (moved > 0).sum() <= claim.l0
        assert moved.max(initial=0) <= claim.linf
        assert moved.sum() <= claim.l1
        assert (moved**2).sum() <= claim.l2_squared
    choices = zip(
        query.question.form.choices,
        query.question.selectors,
        pairs[len(query.question.form.measures) :],
        strict=True,
    )
    for choice, selector, (x, y) in choices:
        if choice.kind == "quantile":
            x, y = scores(x, choice.parameter), scores(y, choice.parameter)
        moved = np.abs((x - y).astype(float))
        assert moved.max(initial=0) <= selector.sensitivity
        assert (moved.sum(axis=1) > 0).sum() <= query.question.form.bounding.groups * (
            1 if query.public.neighbors == "add_remove" else 2
        )
        if selector.monotone:
            assert (x >= y).all() or (x <= y).all()
    if a.units is not None:
        x, y = (
            _spread(a.units, a.keys, list(dict.fromkeys([*a.keys, *b.keys]))),
            _spread(b.units, b.keys, list(dict.fromkeys([*a.keys, *b.keys]))),
        )
        assert np.abs((x - y).astype(float)).max(initial=0) <= 1
        assert (x != y).sum() <= query.question.form.bounding.groups * (
            1 if query.public.neighbors == "add_remove" else 2
        )
