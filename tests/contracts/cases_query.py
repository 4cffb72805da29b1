"""Cases of the query package: SQL as a mechanism, for people with many rows, single rows, and groups that nobody
declared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from discreet import ADD_REMOVE, REPLACE, Bounds, Categories, Neighbors, Public, Unit
from discreet._public import Text
from discreet.accounting import pure
from discreet.core.question import FormQuestion
from discreet.query import Query
from discreet.tables import Memory

from .case import Case

SCHEMA = (("k", Categories(["a", "b"])), ("x", Bounds(0, 4)), ("t", Text()))
HEAVY = [(1, "a", 4.0, "rare")] * 3 + [(1, "b", 4.0, "rare")] * 3  # one person with more than may count
OTHERS = [(2, "a", 1.0, "often"), (3, "b", 2.0, "often"), (4, "a", None, "often")]
REPLACED = [(1, "b", 0.0, "often")]


def memory(rows: list[tuple[Any, ...]], public: Public) -> Memory:
    columns = list(zip(*rows, strict=True))
    return Memory({name: list(c) for name, c in zip(("id", "k", "x", "t"), columns, strict=True)}, public)


def case(
    name: str,
    sql: str,
    outcome: Any,
    *,
    unit: str | None = "id",
    neighbors: Neighbors = ADD_REMOVE,
    **options: Any,
) -> Case:
    schema = SCHEMA if unit else (*SCHEMA, ("id", Text()))
    public = Public(schema=schema, unit=Unit(unit, rows=2, groups=1), table="people", neighbors=neighbors)
    mechanism = Query(sql=sql, public=public, **options)
    lost = HEAVY if unit else HEAVY[:1]
    other = REPLACED if neighbors is REPLACE else []
    return Case(
        name=f"query: {name}",
        mechanism=mechanism,
        source=memory(lost + OTHERS, public),
        neighbor=memory(other + OTHERS, public),
        outcome=outcome,
        claim=(float(mechanism.epsilon or 0), mechanism.delta) if mechanism.epsilon else None,
    )


def first(column: str, threshold: float) -> Any:
    return lambda release: release.value[column][0] > threshold


CASES = [
    case("a person's rows", "SELECT COUNT(*) AS n FROM people", first("n", 4), epsilon=1),
    case("a row", "SELECT SUM(x) AS s, COUNT(*) AS n FROM people", first("s", 5), unit=None, epsilon=1),
    case(
        "groups, replaced, Gaussian",
        "SELECT k, COUNT(*) AS n, AVG(x) AS a FROM people GROUP BY k",
        lambda r: f"{r.value['n'][0] > 3} {r.value['n'][1] > 2}",
        neighbors=REPLACE,
        rho=0.2,
    ),
    case(
        "groups nobody declared",
        "SELECT t, COUNT(*) AS n FROM people GROUP BY t",
        lambda r: " ".join(r.value["t"]),
        epsilon=2,
        delta=0.3,
    ),
    case(
        "too few people are hidden",
        "SELECT COUNT(*) AS n FROM people",
        lambda r: bool(r.value.rows) and r.value["n"][0] > 3,
        epsilon=5,
        rows=1,
        min_people=1,
    ),
    case(
        "most common value",
        "SELECT MODE(k) AS m, COUNT(*) AS n FROM people",
        lambda r: r.value["m"][0],
        epsilon=2,
    ),
    case(
        "a median",
        "SELECT MEDIAN(x) AS m, COUNT(*) AS n FROM people",
        lambda r: r.value["m"][0] > 2,
        epsilon=2,
    ),
]


def _flat(named: Case) -> Case:
    """The same question without its SQL."""
    question = FormQuestion.of(named.mechanism.question)
    price = pure.epsilon_of(question.event)
    assert price is not None
    return replace(
        named,
        name="query: a form of JSON",
        mechanism=question,
        outcome=lambda release: release.value["measures"][0][0] > 4,
        claim=(float(price), 0.0),
    )


CASES.append(_flat(CASES[0]))
