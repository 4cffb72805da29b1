"""The questions that the oracle asks, and the tables that it asks them of.

A `Shape` is one form of question. It is *directed* if the pool holds a unit that uses the whole price: there the
largest loss must be (nearly) 1, or the bound is larger than it need be, or the pool has become blind.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from discreet import Bounds, Categories, Public, Related, Text, Unit
from discreet.query import Query

from .worlds import Content, Stored, Worlds

NAN, INF = float("nan"), float("inf")
TEXT, NUMBER = pa.string(), pa.float64()
SCHEMA = (
    ("region", Categories(["n", "s"])),
    ("spend", Bounds(-2, 3)),
    ("age", Bounds(0, 4, nullable=False)),
    ("town", Text()),
)
TOWNS = Related(name="towns", schema=(("town", Text()), ("size", Bounds(0, 10))))
CODES = Related(name="codes", schema=(("code", Text()), ("label", Categories(["x", "y"]))), key="code")
VISITS = Related(name="visits", schema=(("cost", Bounds(-3, 8)), ("place", Text())), private=True, unit="who")
COLUMNS = (("region", TEXT), ("spend", NUMBER), ("age", NUMBER), ("town", TEXT))
PUBLIC_TABLES = {
    "towns": Stored(
        (("town", TEXT), ("size", NUMBER)), rows=(("a", 1.0), ("a", -0.0), ("A", 30.0), (None, 2.0))
    ),
    "codes": Stored((("code", TEXT), ("label", TEXT)), rows=(("a", "x"), ("A", "y"))),
}


@dataclass(frozen=True)
class Shape:
    name: str
    sql: str
    unit: str = "person"
    rows: int = 2
    groups: int = 1
    neighbors: str = "add_remove"
    directed: bool = True
    rho: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def public(self) -> Public:
        tables = (TOWNS, CODES, VISITS) if self.unit == "person" else (TOWNS, CODES)
        unit = Unit("id" if self.unit == "person" else None)
        return Public(schema=SCHEMA, unit=unit, table="people", tables=tables, neighbors=self.neighbors)

    def query(self) -> Query:
        # One share is epsilon itself; several are rounded down, so that prices are reached up to 2**-48.
        price = {"rho": 1} if self.rho else {"epsilon": 1, "delta": 1e-6, "noise": "laplace"}
        return Query(
            sql=self.sql,
            public=self.public(),
            **price,
            rows=self.rows,
            groups=self.groups,
            **self.options,
        )


_LOW, _HIGH = ("n", -2.0, 0.0, "a"), ("n", 3.0, 4.0, "a")


def _everywhere(row: tuple[Any, ...], times: int) -> list[tuple[Any, ...]]:
    """The row in every region and town, several times each."""
    pairs = itertools.product(("n", "s"), ("a", "A", "b"))
    return [(r, row[1], row[2], t) for r, t in pairs for _ in range(times)]


# The first has nothing, the second only what is missing (the blank of zero_out). The others: the most in one
# place, the most everywhere, the least everywhere, both zeros, values that are out of bounds or no numbers.
DIRECTED: tuple[Content, ...] = (
    {},
    {"people": [(None, None, None, None)], "visits": [(None, None)]},
    {"people": [_HIGH] * 3, "visits": [(8.0, "a")] * 3},
    {"people": _everywhere(_HIGH, 3), "visits": [(8.0, "a"), (8.0, "A"), (8.0, "b")]},
    {"people": _everywhere(_LOW, 3), "visits": [(-3.0, "b")] * 4},
    {
        "people": [("n", -0.0, 0.0, "a"), ("n", 0.0, -0.0, "a"), ("s", 0.0, 1.0, "A")],
        "visits": [(0.0, "a"), (-0.0, "a")],
    },
    {
        "people": [("N", NAN, NAN, "A"), ("s", INF, 99.0, "b"), ("n", -INF, -7.0, None)],
        "visits": [(NAN, "A")],
    },
    {"visits": [(8.0, "a"), (99.0, None)]},
    {"people": _everywhere(("", 1.0, 2.0, ""), 2)},
    {"people": [("s", -2.0, 0.0, "b")] * 2},
)
_REGIONS, _NUMBERS, _TOWNS = (
    ("n", "s", "N", None),
    (None, NAN, INF, -0.0, 0.0, 3.0, -2.0, 1.5),
    ("a", "A", "b", None),
)


def random_content(chance: random.Random) -> Content:
    """A few rows of few values, some of them twice."""

    def people() -> list[Any]:
        pick = chance.choice
        rows = [
            (pick(_REGIONS), pick(_NUMBERS), pick(_NUMBERS), pick(_TOWNS))
            for _ in range(chance.randint(0, 3))
        ]
        return rows + rows[: chance.randint(0, 1)]

    visits = [(chance.choice(_NUMBERS), chance.choice(_TOWNS)) for _ in range(chance.randint(0, 3))]
    return {"people": people(), "visits": visits}


def pool(size: int, seed: int = 7) -> list[Content]:
    """The directed contents, and random ones up to the size."""
    chance = random.Random(seed)
    return [*DIRECTED, *(random_content(chance) for _ in range(size - len(DIRECTED)))][:size]


def row_pool(size: int, seed: int = 7) -> list[Content]:
    """Contents of one row each, where a row is the unit."""
    chance = random.Random(seed)
    rows = [
        (None, None, None, None),
        _HIGH,
        _LOW,
        ("s", 3.0, 4.0, "A"),
        ("s", 1.0, 2.0, "b"),
        ("n", -0.0, 0.0, "a"),
        ("n", 0.0, -0.0, "a"),
        ("s", NAN, INF, "b"),
        ("N", -INF, NAN, None),
    ]
    while len(rows) < size:
        row = (
            chance.choice(_REGIONS),
            chance.choice(_NUMBERS),
            chance.choice(_NUMBERS),
            chance.choice(_TOWNS),
        )
        rows.append(row)
    return [{}, *({"people": [row]} for row in rows)][:size]


# How the units of three people are spelled: texts that differ in letter case only; numbers, of which 0.0 and -0.0
# are one unit; and one that is nobody.
SPELLINGS: dict[str, tuple[pa.DataType, tuple[tuple[Any, ...], ...]]] = {
    "text": (TEXT, (("a",), ("A",), ("b ",))),
    "number": (NUMBER, ((0.0, -0.0), (NAN,), (1.0,))),
    "nobody": (TEXT, (("a",), (None,), ("A",))),
}


def person_worlds(contents: Sequence[Content], spelled: str = "text", **how: Any) -> Worlds:
    type_, spellings = SPELLINGS[spelled]
    tables = {
        "people": Stored((("id", type_), *COLUMNS), owned=True),
        "visits": Stored((("who", type_), ("cost", NUMBER), ("place", TEXT)), owned=True),
        **PUBLIC_TABLES,
    }
    public = Shape("", "").public()
    return Worlds(public, tables, ("people", "visits"), contents, spellings, **how)


def row_worlds(contents: Sequence[Content], **how: Any) -> Worlds:
    tables = {"people": Stored(COLUMNS), **PUBLIC_TABLES}
    return Worlds(Shape("", "", unit="row").public(), tables, ("people",), contents, **how)


_PER_PERSON = "(SELECT id, COUNT(*) AS n, SUM(spend) AS total, MIN(spend) AS low FROM people GROUP BY id)"

# rows of two private tables, each with its person
_BOTH = "(SELECT id AS i, age AS x, town AS t FROM people UNION ALL SELECT who, cost, place FROM visits) AS u"
_ELSEWHERE = "SELECT 1 FROM visits WHERE who = id AND place <> people.town"

PERSON = (
    Shape("count", "SELECT COUNT(*) FROM people"),
    Shape("count replaced", "SELECT COUNT(*) FROM people", neighbors="replace"),
    Shape("count of people", "SELECT COUNT(DISTINCT id) FROM people"),
    # The price is that of a blank in any group; here it is in none.
    Shape(
        "count blanked",
        "SELECT region, COUNT(*) FROM people GROUP BY region",
        neighbors="zero_out",
        directed=False,
    ),
    Shape("count of values", "SELECT COUNT(spend) FROM people"),
    Shape("sum", "SELECT SUM(spend) FROM people"),
    Shape("sum replaced", "SELECT SUM(spend) FROM people", neighbors="replace"),
    Shape("sum mostly below zero", "SELECT SUM(CLAMP(spend, -2, 1)) FROM people"),
    Shape("sum far from zero", "SELECT SUM(CLAMP(age, 2, 4)) FROM people", neighbors="replace"),
    Shape("sum in rho", "SELECT region, SUM(spend) FROM people GROUP BY region", groups=2, rho=True),
    Shape("sum of a product", "SELECT SUM(spend * age) FROM people"),
    Shape("average", "SELECT AVG(spend) FROM people"),
    Shape("average replaced", "SELECT AVG(age) FROM people", neighbors="replace", directed=False),
    Shape("deviation", "SELECT STDDEV(spend) FROM people"),
    Shape("distinct values", "SELECT COUNT(DISTINCT town) FROM people"),
    Shape("distinct numbers", "SELECT COUNT(DISTINCT spend) FROM people", rows=1),
    Shape(
        "distinct values by region", "SELECT region, COUNT(DISTINCT town) FROM people GROUP BY region", rows=1
    ),
    Shape("median", "SELECT MEDIAN(ROUND(spend)) FROM people"),
    Shape("median by region", "SELECT region, MEDIAN(ROUND(age)) FROM people GROUP BY region", groups=2),
    Shape("median replaced", "SELECT MEDIAN(ROUND(spend)) FROM people", neighbors="replace"),
    # Scores near the largest value move so far only among hundreds of rows.
    Shape("largest", "SELECT MAX(ROUND(spend)) FROM people", directed=False),
    Shape("most common", "SELECT MODE(region) FROM people"),
    Shape("two most common", "SELECT APPROX_TOP_K(region, 2) FROM people", groups=1),
    Shape("by public keys", "SELECT region, COUNT(*) FROM people GROUP BY region"),
    Shape("by public keys in rho", "SELECT region, COUNT(*) FROM people GROUP BY region", groups=2, rho=True),
    Shape(
        "by two public keys", "SELECT region, FLOOR(age / 3), COUNT(*) FROM people GROUP BY 1, 2", groups=2
    ),
    Shape(
        "by public keys replaced",
        "SELECT FLOOR(age), COUNT(*) FROM people GROUP BY 1",
        neighbors="replace",
        rows=1,
    ),
    Shape("by private keys", "SELECT town, COUNT(*) FROM people GROUP BY town", groups=2),
    Shape("people by private keys", "SELECT town, COUNT(DISTINCT id) FROM people GROUP BY town", groups=3),
    Shape("by private and public keys", "SELECT town, region, SUM(age) FROM people GROUP BY 1, 2", groups=2),
    Shape(
        "by private keys, the rest together",
        "SELECT town, SUM(age) FROM people GROUP BY town",
        groups=2,
        options={"other": True},
    ),
    Shape("having", "SELECT region, COUNT(*) AS n FROM people GROUP BY region HAVING COUNT(*) > 3"),
    Shape("where", "SELECT COUNT(*) FROM people WHERE spend > 0 OR town = 'A'"),
    Shape("count and sum", "SELECT COUNT(*), SUM(age) FROM people"),
    Shape("per person", f"SELECT SUM(CLAMP(n, 0, 3)), COUNT(*) FROM {_PER_PERSON} AS p"),
    Shape("per person, sums", f"SELECT SUM(CLAMP(total, -5, 5)) FROM {_PER_PERSON} AS p WHERE n > 1"),
    Shape("per person, smallest", f"SELECT low = 0, COUNT(*) FROM {_PER_PERSON} AS p GROUP BY 1", rows=1),
    Shape(
        "per person and key",
        "SELECT COUNT(*) FROM (SELECT id, town, COUNT(*) AS n FROM people GROUP BY id, town) AS p WHERE n > 1",
    ),
    Shape("distinct people", "SELECT COUNT(*) FROM (SELECT DISTINCT id FROM people) AS p", rows=1),
    Shape("joined visits", "SELECT SUM(cost) FROM people JOIN visits ON id = who"),
    Shape(
        "one row a person, joined with several",
        f"SELECT COUNT(*) FROM {_PER_PERSON} AS p JOIN visits ON p.id = who",
    ),
    Shape("left joined visits", "SELECT COUNT(*), COUNT(cost) FROM people LEFT JOIN visits ON id = who"),
    Shape(
        "joined visits by place",
        "SELECT place, COUNT(*) FROM people JOIN visits ON id = who GROUP BY place",
        groups=2,
    ),
    Shape(
        "joined on more",
        "SELECT COUNT(*) FROM people JOIN visits ON id = who AND people.town = visits.place",
    ),
    Shape("joined with itself", "SELECT COUNT(*) FROM people AS a JOIN people AS b ON a.id = b.id"),
    Shape("joined towns", "SELECT SUM(size) FROM people JOIN towns ON people.town = towns.town", groups=1),
    Shape(
        "left joined towns",
        "SELECT region, COUNT(size) FROM people LEFT JOIN towns ON people.town = towns.town GROUP BY region",
    ),
    Shape("joined codes", "SELECT label, COUNT(*) FROM people JOIN codes ON town = code GROUP BY label"),
    Shape(
        "has visits",
        "SELECT COUNT(*) FROM people WHERE EXISTS (SELECT 1 FROM visits WHERE who = id AND cost > 1)",
    ),
    Shape("no visits", "SELECT COUNT(*) FROM people WHERE id NOT IN (SELECT who FROM visits)"),
    Shape("known towns", "SELECT COUNT(*) FROM people WHERE town IN (SELECT town FROM towns WHERE size > 0)"),
    Shape("unknown towns", "SELECT COUNT(*) FROM people WHERE town NOT IN (SELECT code FROM codes)"),
    Shape(
        "chain",
        "SELECT COUNT(*) FROM (SELECT id, MAX(age) AS oldest FROM people WHERE town IN (SELECT code FROM codes) "
        "GROUP BY id) AS p JOIN visits ON p.id = who JOIN towns ON visits.place = towns.town WHERE oldest > 0",
    ),
    Shape(
        "chain of sub-queries",
        "SELECT SUM(CLAMP(k, 0, 2)) FROM (SELECT id, COUNT(*) AS k FROM (SELECT id, town, SUM(spend) AS s FROM "
        "people GROUP BY id, town) AS a WHERE s > 0 GROUP BY id) AS b",
        rows=1,
    ),
    Shape(
        "replaced in rho",
        "SELECT region, SUM(spend) FROM people GROUP BY region",
        neighbors="replace",
        rho=True,
        directed=False,
    ),
    Shape(
        "by private keys replaced",
        "SELECT town, COUNT(*) FROM people GROUP BY town",
        neighbors="replace",
        directed=False,
    ),
    Shape(
        "median by region replaced",
        "SELECT region, MEDIAN(ROUND(age)) FROM people GROUP BY region",
        neighbors="replace",
        directed=False,
    ),
    Shape(
        "median by region in rho",
        "SELECT region, MEDIAN(ROUND(age)) FROM people GROUP BY region",
        groups=2,
        rho=True,
    ),
    Shape("most common replaced", "SELECT MODE(region) FROM people", neighbors="replace"),
    Shape("only visits", "SELECT COUNT(DISTINCT who), SUM(cost) FROM visits"),
    Shape("rows of two tables", f"SELECT COUNT(*), SUM(x) FROM {_BOTH}"),
    Shape(
        "one table twice",
        "SELECT SUM(x) FROM (SELECT age AS x FROM people UNION ALL SELECT age FROM people) AS u",
    ),
    Shape("rows of two tables by place", f"SELECT t, COUNT(*) FROM {_BOTH} GROUP BY t", groups=2),
    Shape("rows of two tables, by sign", f"SELECT x > 0, COUNT(*), SUM(x) FROM {_BOTH} GROUP BY 1", groups=1),
    Shape("people of two tables", f"SELECT COUNT(DISTINCT i) FROM {_BOTH}"),
    Shape(
        "rows of two tables per person",
        f"SELECT SUM(CLAMP(n, 0, 5)) FROM (SELECT i, COUNT(*) AS n, SUM(x) AS s FROM {_BOTH} GROUP BY i) AS p WHERE s <> 0",
    ),
    Shape(
        "a fold beside rows",
        f"SELECT SUM(CLAMP(x, 0, 3)) FROM (SELECT id, n AS x FROM {_PER_PERSON} AS p UNION ALL SELECT who, cost FROM visits) AS u",
    ),
    Shape("people joined with two tables", f"SELECT COUNT(*) FROM people JOIN {_BOTH} ON people.id = u.i"),
    Shape(
        "people left joined with two tables",
        f"SELECT COUNT(x) FROM people LEFT JOIN {_BOTH} ON people.id = u.i",
    ),
    Shape("two tables joined with towns", f"SELECT SUM(size) FROM {_BOTH} JOIN towns ON u.t = towns.town"),
    Shape(
        "two folds",
        f"SELECT COUNT(*) FROM (SELECT id FROM {_PER_PERSON} AS p UNION ALL SELECT DISTINCT who FROM visits) AS u",
    ),
    Shape(
        "two tables have it", f"SELECT COUNT(*) FROM people WHERE id IN (SELECT i FROM {_BOTH} WHERE x > 1)"
    ),
    Shape(
        "two tables, one without rows",
        "SELECT COUNT(*) FROM (SELECT id, age FROM people UNION ALL SELECT who, cost FROM visits WHERE cost > 1 AND cost IS NULL) AS u",
    ),
    Shape("median of two tables", f"SELECT MEDIAN(ROUND(x)) FROM {_BOTH}", neighbors="replace"),
    Shape("values of two tables", f"SELECT COUNT(DISTINCT t) FROM {_BOTH}", rows=1),
    Shape(
        "public rows of two tables",
        "SELECT COUNT(*) FROM people JOIN (SELECT town AS t FROM towns UNION ALL SELECT code FROM codes) AS u "
        "ON people.town = u.t",
    ),
    Shape("another place", f"SELECT COUNT(*) FROM people WHERE EXISTS ({_ELSEWHERE})"),
    Shape("no other place", f"SELECT COUNT(*) FROM people WHERE NOT EXISTS ({_ELSEWHERE} AND cost < 0)"),
    Shape(
        "spends more than a visit",
        "SELECT region, COUNT(*) FROM people WHERE EXISTS (SELECT 1 FROM visits WHERE who = id AND cost < people.spend) "
        "GROUP BY region",
    ),
    Shape(
        "two marks, one within a fold",
        f"SELECT COUNT(*) FROM (SELECT id, town, COUNT(*) AS n FROM people WHERE EXISTS ({_ELSEWHERE}) GROUP BY id, town) "
        "AS p WHERE NOT EXISTS (SELECT 1 FROM visits WHERE who = p.id AND cost < p.n)",
    ),
    Shape(
        "less than some town",
        "SELECT COUNT(*) FROM people WHERE EXISTS (SELECT 1 FROM towns WHERE size > people.age OR people.spend IS NULL)",
    ),
    Shape(
        "two tables, one of another place",
        f"SELECT COUNT(*) FROM {_BOTH} WHERE EXISTS (SELECT 1 FROM visits WHERE who = u.i AND place <> u.t)",
    ),
)

ROW = (
    Shape("rows", "SELECT COUNT(*) FROM people", unit="row"),
    Shape("sum of rows", "SELECT SUM(age) FROM people", unit="row"),
    Shape("average of rows", "SELECT AVG(spend) FROM people", unit="row"),
    Shape("deviation of rows", "SELECT STDDEV(spend) FROM people", unit="row", directed=False),
    Shape("rows by region", "SELECT region, COUNT(*), SUM(spend) FROM people GROUP BY region", unit="row"),
    Shape("rows by town", "SELECT town, COUNT(*) FROM people GROUP BY town", unit="row"),
    Shape(
        "rows replaced",
        "SELECT region, SUM(age) FROM people GROUP BY region",
        unit="row",
        neighbors="replace",
    ),
    Shape("rows by spend", "SELECT ROUND(spend), COUNT(*) FROM people GROUP BY 1", unit="row"),
    Shape("median of rows", "SELECT MEDIAN(ROUND(age)) FROM people", unit="row"),
    Shape("mode of rows", "SELECT MODE(region) FROM people", unit="row"),
    Shape(
        "distinct values of rows",
        "SELECT COUNT(DISTINCT town), COUNT(DISTINCT spend) FROM people",
        unit="row",
    ),
    Shape(
        "repeated rows",
        "SELECT COUNT(*) FROM people JOIN towns ON people.town = towns.town",
        unit="row",
        rows=1,
    ),
    Shape(
        "repeated rows by town",
        "SELECT towns.town, COUNT(*) FROM people, towns GROUP BY towns.town",
        unit="row",
        groups=1,
    ),
    Shape(
        "repeated rows by public keys",
        "SELECT ROUND(size), COUNT(*) FROM people, towns GROUP BY 1",
        unit="row",
        groups=2,
        rows=1,
    ),
    Shape(
        "repeated rows, sum",
        "SELECT ROUND(size), SUM(spend) FROM people, towns GROUP BY 1",
        unit="row",
        groups=2,
        directed=False,
    ),
    Shape("repeated rows, median", "SELECT MEDIAN(ROUND(size)) FROM people, towns", unit="row", rows=1),
    Shape("repeated rows, distinct", "SELECT COUNT(DISTINCT size) FROM people, towns", unit="row", rows=1),
    Shape(
        "rows with codes",
        "SELECT label, COUNT(*) FROM people JOIN codes ON town = code GROUP BY label",
        unit="row",
    ),
    Shape(
        "rows below a town",
        "SELECT COUNT(*) FROM people WHERE EXISTS (SELECT 1 FROM towns WHERE size > people.age)",
        unit="row",
    ),
    Shape("rows in towns", "SELECT COUNT(*) FROM people WHERE town IN (SELECT town FROM towns)", unit="row"),
)
