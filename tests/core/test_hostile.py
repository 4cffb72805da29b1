"""Hostile descriptions: plans that the planner would never make, handed to what writes and prices them.

Each is a plan of an honest question whose nodes are exchanged by hand, so that no check of the planner sees them:
a join without the unit, a mark by another unit's rows, a sub-query over the rows of several units. The release
must be refused with an error of ours, or change between neighbors by no more than its price.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import duckdb
import pytest

from discreet import DiscreetError
from discreet.core.domain import ValueDomain, boolean, number, text
from discreet.core.nodes import Column, Expr, Literal, make
from discreet.core.sources import Filtered, Joined, Marked, Projected, Scan, UnitAggregate, United, scans
from discreet.query import Query, mechanism
from discreet.query.plan import Plan, plan

from . import change, shapes
from .shapes import Shape
from .worlds import Content, Worlds

PLAN = mechanism.plan


@dataclass(frozen=True)
class Hostile:
    """`shape` is the honest question, `forge` makes the description of its plan."""

    shape: Shape
    forge: Callable[[Plan], Plan]


# Rewriting a tree of nodes.


def rewritten(node: Any, change_node: Callable[[Any], Any]) -> Any:
    """The tree in which every node was put through a function, the inner ones first."""
    parts = {
        f.name: rewritten(getattr(node, f.name), change_node)
        for f in fields(node)
        if f.name in ("child", "left", "right")
    }
    if isinstance(node, United):
        parts["parts"] = tuple(rewritten(part, change_node) for part in node.parts)
    return change_node(replace(node, **parts))


def of_source(change_node: Callable[[Any], Any], kind: type) -> Callable[[Plan], Plan]:
    """Forge a plan by a function of all nodes of one kind."""

    def forge(planned: Plan) -> Plan:
        changed = []

        def each(node: Any) -> Any:
            if not isinstance(node, kind):
                return node
            changed.append(node)
            return change_node(node)

        source = rewritten(planned.source, each)
        assert changed
        return replace(planned, source=source)

    return forge


def is_unit_pair(condition: Any) -> bool:
    """Whether a condition compares the texts of two units (t0w, t1w)."""
    sides = condition.args if hasattr(condition, "args") else condition
    return all(isinstance(side, Column) and side.name.endswith("w") for side in sides)


def without_unit(node: Joined) -> Joined:
    return replace(node, on=tuple(c for c in node.on if not is_unit_pair(c)))


def mark_without_unit(node: Marked) -> Marked:
    return replace(node, pairs=tuple(pair for pair in node.pairs if not is_unit_pair(pair)))


def scan_of(shape_sql: str, table: str, unit: str = "person") -> Scan:
    """The honest scan of a table, with another prefix than those of any other plan here."""
    found = []

    def each(node: Any) -> Any:
        if isinstance(node, Scan) and node.table == table:
            found.append(node)
        return node

    rewritten(plan(shape_sql, Shape("", "", unit=unit).public()).source, each)
    return replace(found[0], prefix="t9")


def column_of(scan: Scan, name: str, like: Expr) -> Column:
    return Column(scan.alias(name), like.domain)


VISITS = scan_of("SELECT COUNT(*) FROM visits", "visits")
PEOPLE = scan_of("SELECT COUNT(*) FROM people", "people")
ROWS = scan_of("SELECT COUNT(*) FROM people", "people", unit="row")


def only_large(scan: Scan) -> Filtered:
    """The people who spend much."""
    return Filtered(scan, make(">", Column(scan.alias("spend"), number(-2, 3)), Literal(1)))


def with_right(
    scan: Scan, column: str, of: Callable[[Scan], Any] = lambda scan: scan
) -> Callable[[Any], Any]:
    """Exchange the right side of a join or mark for a scan of a private table, compared by one of its columns."""

    def forge(node: Any) -> Any:
        if isinstance(node, Joined):
            left = next(side for c in node.on for side in c.args if isinstance(side, Column))
            inner = column_of(scan, column, left)
            return replace(node, right=of(scan), on=(make("=", left, inner),))
        own, inner = node.pairs[0]
        return replace(node, right=of(scan), pairs=((own, column_of(scan, column, inner)),))

    return forge


def swapped(node: Joined) -> Joined:
    """The private side becomes the optional one."""
    return replace(node, left=node.right, right=node.left, kind="left")


def only_scan(prefix: str, /, **forged: Any) -> Callable[[Any], Any]:
    return lambda node: replace(node, **forged) if node.prefix == prefix else node


def with_condition(change_condition: Callable[[Expr], Expr]) -> Callable[[Joined], Joined]:
    return lambda node: replace(node, on=tuple(map(change_condition, node.on)))


def by_town(node: UnitAggregate) -> UnitAggregate:
    """Fold by the town of people, which is read as a further key."""
    (prefix,) = {scan.prefix for scan in scans(node.child)}
    town = f"{prefix}c{[name for name, _ in shapes.SCHEMA].index('town')}"
    return replace(node, keys=(Column(town, text()),))


def both(*forges: Callable[[Plan], Plan]) -> Callable[[Plan], Plan]:
    def forge(planned: Plan) -> Plan:
        for part in forges:
            planned = part(planned)
        return planned

    return forge


def union_of(*parts: tuple[Any, tuple[Expr, ...]]) -> United:
    return United(tuple(Projected(node, f"u{i}", columns) for i, (node, columns) in enumerate(parts)), "uu")


def read_as(union: United, kind: ValueDomain) -> Callable[[Plan], Plan]:
    """A plan of COUNT(x) or SUM(x) reads a union instead, whose first column it is asked of."""
    of_first = Column(f"{union.prefix}p0", kind)
    return lambda planned: replace(
        planned,
        source=union,
        aggregates=tuple(replace(a, argument=of_first) for a in planned.aggregates),
    )


def narrower(planned: Plan) -> Plan:
    """The range of what is added up is said to be smaller than it is."""

    def lie(e: Any) -> Any:
        return replace(e, domain=number(0, 1, nullable=e.domain.nullable))

    return replace(
        planned, aggregates=tuple(replace(a, argument=lie(a.argument)) for a in planned.aggregates)
    )


VISITS2 = replace(VISITS, prefix="t8")
TOWNS = replace(
    scan_of("SELECT COUNT(*) FROM people JOIN towns ON people.town = towns.town", "towns"), prefix="t8"
)
_TOWN_OF_PEOPLE, _PLACE, _PLACE2 = (Column(name, text()) for name in ("t9c3", "t9c1", "t8c1"))

# The honest questions.

_COUNT = "SELECT COUNT(*) FROM"
# Where an unmatched row of a public table stays, this adds what the row's unit does to what it undoes.
_SIGNED = "SELECT SUM(CASE WHEN region IS NULL THEN -1 ELSE 1 END) FROM"
_MORE = "people JOIN visits ON id = who AND town = place"
_TWICE = "people AS a JOIN people AS b ON a.id = b.id AND a.town = b.town"
_EXISTS = f"{_COUNT} people WHERE EXISTS (SELECT 1 FROM visits WHERE who = id AND place = people.town)"
_LESS = f"{_COUNT} people WHERE EXISTS (SELECT 1 FROM visits WHERE who = id AND cost < people.age)"
_IN = f"{_COUNT} people WHERE town IN (SELECT code FROM codes)"
_TOWNS = "people JOIN towns ON people.town = towns.town"
_FOLD = "(SELECT id, COUNT(*) AS n, SUM(spend) AS total FROM people GROUP BY id) AS p"
_MARKED_TOWNS = (
    f"{_COUNT} people JOIN (SELECT * FROM towns WHERE town IN (SELECT code FROM codes)) AS t "
    "ON people.town = t.town"
)
_CHAIN = (
    f"{_COUNT} people JOIN visits ON id = who AND people.town = place JOIN towns ON visits.place = towns.town"
)
_TWO_FOLDS = (
    "SELECT SUM(CLAMP(k, 0, 1)) FROM (SELECT id, COUNT(*) AS k FROM (SELECT id, town, COUNT(*) AS n FROM people "
    "GROUP BY id, town) AS a WHERE n > 1 GROUP BY id) AS b"
)


def _asked(name: str, sql: str, **how: Any) -> Shape:
    return Shape(name, sql, **how)


HOSTILE = (
    Hostile(_asked("join on other columns", f"{_COUNT} {_MORE}"), of_source(without_unit, Joined)),
    Hostile(
        _asked(
            "join on other columns, by region",
            f"SELECT region, COUNT(*) FROM {_MORE} GROUP BY region",
            groups=2,
        ),
        of_source(without_unit, Joined),
    ),
    Hostile(
        _asked("join on other columns, sum", f"SELECT SUM(cost) FROM {_MORE}"),
        of_source(without_unit, Joined),
    ),
    Hostile(
        _asked("join on other columns, distinct", f"SELECT COUNT(DISTINCT cost) FROM {_MORE}", rows=1),
        of_source(without_unit, Joined),
    ),
    Hostile(
        _asked("join on other columns, median", f"SELECT MEDIAN(ROUND(cost)) FROM {_MORE}", rows=1),
        of_source(without_unit, Joined),
    ),
    Hostile(
        _asked("join on nothing", f"{_COUNT} people JOIN visits ON id = who"),
        of_source(lambda node: replace(node, on=()), Joined),
    ),
    Hostile(
        _asked("join on another unit", f"{_COUNT} people JOIN visits ON id = who"),
        of_source(with_condition(lambda c: make("<>", *c.args)), Joined),
    ),
    Hostile(
        _asked("join on the unit or another column", f"{_COUNT} {_MORE}"),
        of_source(lambda node: replace(node, on=(make("or", *node.on),)), Joined),
    ),
    Hostile(_asked("self-join on other columns", f"{_COUNT} {_TWICE}"), of_source(without_unit, Joined)),
    Hostile(
        _asked("left join on other columns", f"SELECT COUNT(cost) FROM {_MORE.replace('JOIN', 'LEFT JOIN')}"),
        of_source(without_unit, Joined),
    ),
    Hostile(
        _asked("left join on nothing", "SELECT COUNT(cost) FROM people LEFT JOIN visits ON id = who"),
        of_source(lambda node: replace(node, on=()), Joined),
    ),
    Hostile(_asked("chain on other columns", _CHAIN), of_source(without_unit, Joined)),
    Hostile(
        _asked("private side optional, sum", f"{_SIGNED} {_TOWNS}"),
        of_source(swapped, Joined),
    ),
    Hostile(
        _asked(
            "private side optional, by public keys",
            f"{_SIGNED.replace('SELECT', 'SELECT ROUND(size),')} {_TOWNS} GROUP BY 1",
            rows=1,
            groups=2,
        ),
        of_source(swapped, Joined),
        # rows of no unit are in no group that is chosen,
    ),
    Hostile(
        _asked("full join", f"{_COUNT} {_TOWNS}"),
        of_source(lambda node: replace(node, kind="full"), Joined),
    ),
    Hostile(_asked("EXISTS of other units", _EXISTS), of_source(mark_without_unit, Marked)),
    Hostile(
        _asked("NOT EXISTS of other units", _EXISTS.replace("WHERE EXISTS", "WHERE NOT EXISTS")),
        of_source(mark_without_unit, Marked),
    ),
    Hostile(
        _asked("EXISTS of any private row", _EXISTS),
        of_source(lambda node: replace(node, pairs=()), Marked),
    ),
    Hostile(_asked("IN a private column", _IN), of_source(with_right(VISITS, "place"), Marked)),
    Hostile(
        _asked("NOT IN a private column", _IN.replace("IN (", "NOT IN (")),
        of_source(with_right(VISITS, "place"), Marked),
    ),
    Hostile(
        _asked("IN a column of its own table", _IN),
        of_source(with_right(PEOPLE, "town", only_large), Marked),
    ),
    Hostile(
        _asked("public rows marked by private ones", _MARKED_TOWNS),
        of_source(with_right(VISITS, "place"), Marked),
    ),
    Hostile(
        _asked("public rows joined with private ones, then marked", f"{_COUNT} {_TOWNS}"),
        of_source(
            lambda node: replace(
                node,
                right=Joined(
                    node.right,
                    VISITS,
                    "inner",
                    (make("=", node.on[0].args[1], column_of(VISITS, "place", node.on[0].args[1])),),
                ),
            ),
            Joined,
        ),
    ),
    Hostile(
        _asked("fold by a town", f"SELECT SUM(CLAMP(n, 0, 9)) FROM {_FOLD}"),
        of_source(by_town, UnitAggregate),
    ),
    Hostile(
        _asked("fold by a town, sum", f"SELECT SUM(CLAMP(total, -5, 5)), COUNT(*) FROM {_FOLD}"),
        of_source(by_town, UnitAggregate),
    ),
    Hostile(
        _asked("fold of a fold by a town", _TWO_FOLDS),
        of_source(
            lambda node: (
                replace(node, keys=(Column("t3k0", text()),)) if isinstance(node.child, Filtered) else node
            ),
            UnitAggregate,
        ),
    ),
    Hostile(
        _asked(
            "fold of a join on other columns",
            f"SELECT SUM(CLAMP(n, 0, 9)) FROM (SELECT id, COUNT(*) AS n FROM {_MORE} GROUP BY id) AS p",
            rows=1,
        ),
        of_source(without_unit, Joined),
    ),
    Hostile(
        _asked("rows joined with rows", f"{_COUNT} {_TOWNS}", unit="row", rows=2),
        of_source(with_right(ROWS, "town"), Joined),
    ),
    Hostile(
        _asked("rows marked by rows", _IN, unit="row", rows=1),
        of_source(with_right(ROWS, "town", only_large), Marked),
    ),
    Hostile(
        _asked("rows optional to towns", f"{_SIGNED} {_TOWNS}", unit="row", rows=2),
        of_source(swapped, Joined),
    ),
    Hostile(
        _asked("a range that is not true", "SELECT SUM(age) FROM people", rows=1),
        narrower,
    ),
    Hostile(
        _asked("a range that is not true, of rows", "SELECT SUM(age) FROM people", unit="row"),
        narrower,
    ),
    Hostile(
        _asked(
            "a computed range that is not true, of rows",
            "SELECT SUM(age * age + spend) FROM people",
            unit="row",
        ),
        narrower,
    ),
    Hostile(
        _asked("a private table said to be public", f"{_COUNT} {_MORE}"),
        both(of_source(without_unit, Joined), of_source(only_scan("t1", private=False, unit=None), Scan)),
    ),
    Hostile(
        _asked("a table said to be of another unit", f"{_COUNT} people", rows=1),
        of_source(only_scan("t0", unit="town"), Scan),
    ),
    Hostile(
        _asked("rows of people and of a public table", "SELECT COUNT(town) FROM people"),
        read_as(union_of((PEOPLE, (_TOWN_OF_PEOPLE,)), (TOWNS, (Column("t8c0", text()),))), text()),
    ),
    Hostile(
        _asked("rows of rows, twice", "SELECT COUNT(town) FROM people", unit="row"),
        read_as(
            union_of((ROWS, (_TOWN_OF_PEOPLE,)), (replace(ROWS, prefix="t7"), (Column("t7c3", text()),))),
            text(),
        ),
    ),
    Hostile(
        _asked("a union under a public name", "SELECT COUNT(town) FROM people"),
        read_as(union_of((replace(VISITS, private=False), (_PLACE,))), text()),
    ),
    Hostile(
        _asked("a union of a person's rows twice", "SELECT COUNT(town) FROM people", rows=1),
        read_as(
            union_of((PEOPLE, (_TOWN_OF_PEOPLE,)), (replace(PEOPLE, prefix="t8"), (Column("t8c3", text()),))),
            text(),
        ),
    ),
    Hostile(
        _asked("a union of texts and numbers", "SELECT SUM(age) FROM people"),
        read_as(
            union_of((PEOPLE, (_TOWN_OF_PEOPLE,)), (VISITS2, (Column("t8c0", number(-3, 8)),))), number(0, 1)
        ),
    ),
    Hostile(
        _asked("a union of one column and two", "SELECT COUNT(town) FROM people"),
        read_as(union_of((PEOPLE, (_TOWN_OF_PEOPLE, _TOWN_OF_PEOPLE)), (VISITS2, (_PLACE2,))), text()),
    ),
    Hostile(
        _asked("a union with a range that is not true", "SELECT SUM(age) FROM people", rows=1),
        read_as(union_of((VISITS, (Column("t9c0", number(-3, 8)),))), number(0, 1)),
    ),
    Hostile(
        _asked("a union that overflows", "SELECT SUM(age) FROM people", rows=1),
        read_as(
            replace(
                union_of((VISITS, (make("*", Column("t9c0", number(-3, 8)), Literal(1e300)),))), prefix="c9"
            ),
            number(0, 1),
        ),
    ),
    Hostile(
        _asked("a union that names the unit of a part", "SELECT COUNT(town) FROM people"),
        read_as(union_of((PEOPLE, (Column("t9u", text()),)), (VISITS2, (Column("t8w", text()),))), text()),
    ),
    Hostile(
        _asked(
            "people left joined with a public union marked by people",
            "SELECT COUNT(size) FROM people LEFT JOIN towns ON people.town = towns.town",
            rows=2,
        ),
        of_source(
            lambda node: replace(
                node,
                right=Marked(
                    node.right, "m0", VISITS, (), on=(make("<", Column("t9c0", number(-3, 8)), Literal(3)),)
                ),
            ),
            Joined,
        ),
    ),
    Hostile(
        _asked("EXISTS of other units, less than", _LESS),
        of_source(mark_without_unit, Marked),
    ),
    Hostile(
        _asked("NOT EXISTS of other units, less than", _LESS.replace("WHERE EXISTS", "WHERE NOT EXISTS")),
        of_source(mark_without_unit, Marked),
    ),
    Hostile(
        _asked("EXISTS of any private row on a constant", _LESS),
        of_source(lambda node: replace(node, pairs=(), on=(Literal(True),)), Marked),
    ),
    Hostile(
        _asked("EXISTS on a column of the writer", _LESS),
        of_source(lambda node: replace(node, on=(Column("found0", boolean(True)),)), Marked),
    ),
    Hostile(
        _asked("rows marked by rows, less than", _IN, unit="row", rows=1),
        of_source(
            lambda node: replace(
                node,
                right=ROWS,
                pairs=(),
                on=(make("<", Column("t9c2", number(0, 4)), Column("t0c2", number(0, 4))),),
            ),
            Marked,
        ),
    ),
    Hostile(
        _asked("two tables of one prefix", f"{_COUNT} people JOIN visits ON id = who"),
        of_source(only_scan("t1", prefix="t0"), Scan),
    ),
)


_A, _B = ("n", 3.0, 4.0, "a"), ("s", -2.0, 1.0, "a")
# People with little, whose answers another person can change, and some with much.
LIGHT: tuple[Content, ...] = (
    *shapes.DIRECTED[:2],
    {"people": [_A]},
    {"people": [_B], "visits": [(8.0, "a")]},
    {"visits": [(8.0, "a"), (-3.0, "a"), (1.5, "a"), (0.0, "A")]},
    {"people": [_B, ("s", 3.0, 4.0, "A"), ("n", 1.5, 1.0, "b")]},
    shapes.DIRECTED[3],
)


@cache
def _worlds(unit: str) -> Worlds:
    if unit == "row":
        return shapes.row_worlds(shapes.row_pool(7))
    return shapes.person_worlds(LIGHT)


def release_of(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float] | None:
    """The largest loss (and part of delta) of a hostile description in parts of its price; None if it is
    refused."""
    shape = hostile.shape
    monkeypatch.setattr(mechanism, "plan", lambda text, public: hostile.forge(PLAN(text, public)))
    worlds = _worlds(shape.unit)
    left, right = change.pairs_of_worlds(worlds, shape.neighbors)
    loss = delta = 0.0
    # Which groups of a unit count depends on the key of the hash.
    for key in range(change.KEY, change.KEY + (6 if "GROUP BY 1" in shape.sql else 1)):
        try:
            query: Query = shape.query()
            table = change.exact_of_all(query, worlds, key)
        except DiscreetError:
            return None
        except duckdb.BinderException:
            # What the engine cannot even plan is refused before the charge (`Engine.plan`).
            return None
        parts = change.loss(query, table, left, right)
        loss, delta = max(loss, parts[0]), max(delta, parts[1])
    return loss, delta


def check_price(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Require that a hostile description is refused or keeps its price."""
    release = release_of(hostile, monkeypatch)
    if release is not None:
        loss, delta = release
        assert loss <= 1 + change.SLACK, f"{loss:.4g} times the price"
        assert delta <= 1 + change.SLACK, f"{delta:.4g} times delta"


@pytest.mark.parametrize("hostile", HOSTILE, ids=[h.shape.name for h in HOSTILE])
def test_a_hostile_description_is_refused_or_keeps_its_price(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_price(hostile, monkeypatch)


def test_no_description_says_whose_a_row_is() -> None:
    """Another column as the unit, or several rows of a unit said to be one: no node has a word for it, and a plan
    computes both from its source and the public facts."""
    for node in (Filtered, Joined, Marked, Projected, United, UnitAggregate):
        assert not {f.name for f in fields(node)} & {"unit", "many", "single", "carried"}
    assert not {f.name for f in fields(Plan) if f.init} & {"unit", "many", "single", "carried"}
    many = plan("SELECT COUNT(*) FROM people", Shape("", "").public())
    assert many.many
    assert replace(many, public=Shape("", "", unit="row").public(), source=ROWS).carried.single
