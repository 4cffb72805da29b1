"""Cases for counting queries that are answered together: units of one row and of several, conditions and
groupings."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from discreet._public import ADD_REMOVE, REPLACE, Bounds, Categories, Neighbors, Public, Unit
from discreet.query import WorkloadQuery
from discreet.tables import Memory

from .case import Case

KINDS = {"age": Bounds(0, 90), "city": Categories(["bern", "rome"]), "sex": Categories(["f", "m"])}
ROWS = [(31, "bern", "f"), (12, "rome", "m"), (45, "bern", "m"), (70, "rome", "f")]
QUERIES = (
    "SELECT COUNT_IF(age < 40) AS young, COUNT(*) AS n FROM people WHERE city = 'bern'",
    "SELECT city, COUNT(*) AS n FROM people GROUP BY city",
)
CUBE = ("SELECT city, sex, COUNT(*) AS n FROM people GROUP BY CUBE(city, sex)",)


def source(public: Public, rows: list[Any], people: list[int] | None = None) -> Memory:
    columns: dict[str, Any] = dict(
        zip(("age", "city", "sex"), map(list, zip(*rows, strict=True)), strict=True)
    )
    return Memory(columns | ({} if people is None else {"person": people}), public)


def case(name: str, queries: tuple[str, ...], neighbors: Neighbors = ADD_REMOVE, **price: Any) -> Case:
    public = Public(
        schema=KINDS, neighbors=neighbors, size=None if neighbors is ADD_REMOVE else 4, table="people"
    )
    here = source(public, ROWS)
    there = source(public, ROWS[1:] if neighbors is ADD_REMOVE else [(80, "rome", "m"), *ROWS[1:]])
    mechanism = WorkloadQuery(queries=queries, public=public, **price)
    return Case(name=name, mechanism=mechanism, source=here, neighbor=there, outcome=_first(2.5, 1.5))


def _first(whole: float, part: float) -> Any:
    def outcome(release: Any) -> tuple[bool, bool]:
        rows = release.value[0].rows
        return rows[0][-1] >= part, sum(row[-1] for row in release.value[-1].rows) >= whole

    return outcome


def several() -> Case:
    """A person with three rows, of which two count."""
    public = Public(schema=KINDS, unit=Unit("person", rows=2), table="people")
    mine = [(31, "bern", "f"), (31, "bern", "f"), (80, "rome", "f")]
    here = source(public, [*mine, *ROWS], [9, 9, 9, 1, 2, 3, 4])
    there = source(public, ROWS, [1, 2, 3, 4])
    mechanism = WorkloadQuery(queries=QUERIES, public=public, epsilon=1)
    return Case(
        name="together, several rows",
        mechanism=mechanism,
        source=here,
        neighbor=there,
        outcome=_first(5, 2),
    )


CASES = [
    case("together, replace", QUERIES, REPLACE, rho=Fraction(1, 8)),
    case("together, cube", CUBE, epsilon=1),
    several(),
]
