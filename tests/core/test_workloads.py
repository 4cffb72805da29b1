"""Neighbors of workloads: the integers that get noise change by no more than the price, for all queries together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from discreet.mechanisms.noise import IntegerLaplace
from discreet.query.workload import WorkloadQuery

from . import change, shapes
from .shapes import Shape
from .worlds import Worlds

_REGIONS = "SELECT region, COUNT(*) FROM people GROUP BY region"
_AGES = "SELECT ROUND(age), COUNT(*) FROM people GROUP BY 1"
_OLD = "SELECT COUNT(*) FROM people WHERE age > 1 AND spend > 0"


@dataclass(frozen=True)
class Together:
    """Some queries at one price."""

    name: str
    queries: tuple[str, ...]
    unit: str = "person"
    rows: int = 2
    neighbors: str = "add_remove"
    rho: bool = False
    directed: bool = True

    def query(self) -> WorkloadQuery:
        public = Shape("", "", unit=self.unit, neighbors=self.neighbors).public()
        price: dict[str, Any] = {"rho": 1} if self.rho else {"epsilon": 1}
        return WorkloadQuery(queries=self.queries, public=public, rows=self.rows, **price)


_VISITS = "people JOIN visits ON id = who"
_TOWNS = "people JOIN towns ON people.town = towns.town"
WORKLOADS = (
    Together("one", (_REGIONS,)),
    Together("conditions", (_REGIONS, _OLD, "SELECT COUNT(*) FROM people")),
    Together("marginals", (_REGIONS, _AGES)),
    Together("a cube", ("SELECT region, ROUND(age), COUNT(*) FROM people GROUP BY CUBE (1, 2)",), rows=3),
    Together("marginals in rho", (_REGIONS, _AGES), rho=True),
    Together("conditions replaced", (_REGIONS, _OLD), neighbors="replace", directed=False),
    Together("marginals replaced in rho", (_REGIONS, _AGES), neighbors="replace", rho=True, directed=False),
    Together(
        "visits",
        (
            f"SELECT region, COUNT(*) FROM {_VISITS} GROUP BY region",
            f"SELECT COUNT(*) FROM {_VISITS} WHERE cost > 0",
        ),
    ),
    Together("rows", (_REGIONS, _OLD), unit="row"),
    Together("rows replaced", (_REGIONS, _AGES), unit="row", neighbors="replace", directed=False),
    Together(
        "repeated rows",
        (
            f"SELECT ROUND(size), COUNT(*) FROM {_TOWNS} GROUP BY 1",
            f"SELECT COUNT(*) FROM {_TOWNS} WHERE age > 1",
        ),
        unit="row",
    ),
)


@cache
def _worlds(unit: str) -> Worlds:
    return shapes.row_worlds(shapes.row_pool(10)) if unit == "row" else shapes.person_worlds(shapes.pool(10))


def measured(query: WorkloadQuery, worlds: Worlds, key: int) -> Any:
    """The integers of every world, in rows."""
    plan = query._plan
    worlds.forget()
    rows = []
    for world in range(worlds.size):
        worlds.world = world
        rows.append(plan.grid.measure(plan.counts(worlds, key)))
    return np.array(rows)


def largest_loss(asked: Together, key: int) -> float:
    query, worlds = asked.query(), _worlds(asked.unit)
    integers, noise = measured(query, worlds, key), query._plan.noise
    left, right = change.pairs_of_worlds(worlds, asked.neighbors)
    moved = np.abs(integers[left] - integers[right]).astype(float)
    if isinstance(noise, IntegerLaplace):
        assert not asked.rho
        return float((moved.sum(axis=1) / float(noise.scale)).max())
    return float(((moved**2).sum(axis=1) / (2 * float(noise.variance))).max())


@pytest.mark.parametrize("asked", WORKLOADS, ids=lambda asked: asked.name)
def test_no_neighbor_changes_a_workload_by_more_than_its_price(asked: Together) -> None:
    loss = max(largest_loss(asked, key) for key in (change.KEY, change.KEY + 1))
    assert loss <= 1 + change.SLACK
    if asked.directed:
        assert loss > 0.999
