"""Hostile descriptions, continued: columns that only the writer should name, keys and facts that are not true, and
calls that no rule has typed.

As in `test_hostile`, a description must be refused or keep its price; and none may fail while it runs, because an
error would tell that such a row is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from discreet import Unit
from discreet.core.domain import boolean, number, text
from discreet.core.nodes import Call, Column, Expr, Literal, make
from discreet.core.sources import Filtered, Joined, Marked, Scan, UnitAggregate
from discreet.query import QueryError
from discreet.query.plan import Plan
from discreet.tables import connect

from .shapes import Shape
from .test_hostile import (
    PEOPLE,
    VISITS,
    Hostile,
    check_price,
    of_source,
    read_as,
    rewritten,
    union_of,
    without_unit,
)

TRUE = boolean(True)
PEOPLE2 = replace(PEOPLE, prefix="t8")
_COUNT = "SELECT COUNT(*) FROM"
_TOWNS = f"{_COUNT} people JOIN towns ON people.town = towns.town"
_CODES = f"{_COUNT} people JOIN codes ON town = code"
_IN = f"{_COUNT} people WHERE town IN (SELECT code FROM codes)"
_FOLD = "(SELECT id, COUNT(*) AS n FROM people GROUP BY id) AS p"
_REGIONS = "SELECT region, COUNT(*) FROM people GROUP BY region"
_AGES = "SELECT ROUND(age), COUNT(*) FROM people GROUP BY 1"
_KNOWN = f"{_COUNT} people WHERE town = 'a'"
_TOWN, _SPEND, _AGE = Column("t0c3", text()), Column("t0c1", number(-2, 3)), Column("t0c2", number(0, 4))


def kept_where(condition: Expr) -> Callable[[Plan], Plan]:
    return of_source(lambda node: replace(node, condition=condition), Filtered)


def joined_on(*on: Expr) -> Callable[[Plan], Plan]:
    return of_source(lambda node: replace(node, on=on), Joined)


def of_argument(argument: Expr) -> Callable[[Plan], Plan]:
    return lambda planned: replace(
        planned, aggregates=tuple(replace(a, argument=argument) for a in planned.aggregates)
    )


def by_key(**forged: Any) -> Callable[[Plan], Plan]:
    return lambda planned: replace(planned, keys=tuple(replace(k, **forged) for k in planned.keys))


def marked_by_itself(planned: Plan) -> Plan:
    """The inner value of a mark is compared with itself, so that all of them match."""

    def own(node: Marked) -> Marked:
        ((before, inner),) = node.pairs
        return replace(node, pairs=((Column(f"{node.prefix}k0", before.domain), inner),))

    return of_source(own, Marked)(planned)


def of_another_unit(planned: Plan) -> Plan:
    def own(node: Any) -> Any:
        return replace(node, unit="town") if isinstance(node, Scan) else node

    return replace(
        planned, public=replace(planned.public, unit=Unit("town")), source=rewritten(planned.source, own)
    )


def of_another_key(planned: Plan) -> Plan:
    tables = tuple(replace(t, key=("town",)) if t.name == "towns" else t for t in planned.public.tables)
    return replace(planned, public=replace(planned.public, tables=tables))


def of_public_visits(planned: Plan) -> Plan:
    """A private table is public in the plan's own facts, and joined without the unit."""
    how: dict[str, Any] = {"private": False, "unit": None}

    def own(node: Any) -> Any:
        if isinstance(node, Scan) and node.table == "visits":
            return replace(node, **how)
        return without_unit(node) if isinstance(node, Joined) else node

    tables = tuple(replace(t, **how) if t.name == "visits" else t for t in planned.public.tables)
    return replace(
        planned, public=replace(planned.public, tables=tables), source=rewritten(planned.source, own)
    )


def folded(prefix: str, argument: Expr) -> Callable[[Plan], Plan]:
    """A fold under another prefix, of the largest value of an expression."""

    def forge(planned: Plan) -> Plan:
        def own(node: UnitAggregate) -> UnitAggregate:
            return replace(node, prefix=prefix, aggregates=(("max", argument),))

        return of_argument(Column(f"{prefix}a0", number(0, 1)))(of_source(own, UnitAggregate)(planned))

    return forge


def _rows(name: str, sql: str, **how: Any) -> Shape:
    return Shape(name, sql, unit="row", **how)


def _untyped(op: str, *args: Expr) -> Call:
    """A call that no rule has seen, which says that its value is a number between 0 and 1."""
    return Call(op, args, number(0, 1))


HUGE = _untyped("*", _AGE, Literal(1e300))
_MULTIPLICITY = Column("t0m", number(0, 5, integral=True))
CASES: tuple[Hostile, ...] = (
    Hostile(
        _rows("filtered by the number of equal rows", f"{_TOWNS} WHERE size >= 0"),
        kept_where(make(">", _MULTIPLICITY, Literal(1))),
    ),
    Hostile(
        _rows(
            "grouped by the number of equal rows",
            "SELECT ROUND(size), COUNT(*) FROM people, towns GROUP BY 1",
        ),
        by_key(expression=_MULTIPLICITY, values=(0, 1, 2, 3)),
    ),
    Hostile(_rows("a mark compared with itself", _IN, rows=1), marked_by_itself),
    Hostile(
        Shape(
            "a mark compared with itself, of folds",
            f"{_COUNT} {_FOLD} WHERE n IN (SELECT size FROM towns)",
            rows=1,
        ),
        marked_by_itself,
    ),
    Hostile(
        _rows("a key compared with itself in capitals", _CODES, rows=1),
        joined_on(make("=", Column("t1c0", text()), Column("T1C0", text()))),
    ),
    Hostile(
        _rows("a key compared with itself", _CODES, rows=1),
        joined_on(make("=", Column("t1c0", text()), Column("t1c0", text()))),
    ),
    Hostile(_rows("a value listed twice", _REGIONS), by_key(values=("n", "s", "n"))),
    Hostile(_rows("zero listed three times", _AGES), by_key(values=(0, 4, 0.0, 1, 2, 3, -0.0))),
    Hostile(Shape("a value listed twice, of persons", _REGIONS, rows=1), by_key(values=("n", "s", "n"))),
    Hostile(Shape("facts of another unit", f"{_COUNT} people", rows=1), of_another_unit),
    Hostile(_rows("facts with another key", _TOWNS, rows=1), of_another_key),
    Hostile(
        Shape("facts with a public table", f"{_COUNT} people JOIN visits ON id = who AND town = place"),
        of_public_visits,
    ),
    Hostile(Shape("a text as a condition", _KNOWN, rows=1), kept_where(Column("t0c3", TRUE))),
    Hostile(
        Shape("a text that says it is NULL, as a condition", _KNOWN, rows=1),
        kept_where(Column("t0c3", replace(text(), null=True))),
    ),
    Hostile(
        Shape("a text that says it is NULL, in a union of numbers", "SELECT SUM(age) FROM people", rows=1),
        read_as(
            union_of(
                (VISITS, (Column("t9c1", replace(text(), null=True)),)),
                (PEOPLE2, (Column("t8c2", number(0, 4)),)),
            ),
            number(0, 4),
        ),
    ),
    Hostile(Shape("a text under AND", _KNOWN, rows=1), kept_where(Call("and", (_TOWN, Literal(True)), TRUE))),
    Hostile(
        Shape("a text under CASE", "SELECT SUM(age) FROM people WHERE town <> 'z'", rows=1),
        of_argument(_untyped("case", _TOWN, Literal(1), Literal(None))),
    ),
    Hostile(
        Shape("digits from a column", "SELECT SUM(age) FROM people WHERE spend > -9", rows=1),
        of_argument(_untyped("round", _AGE, _untyped("*", _SPEND, Literal(1e18)))),
    ),
    Hostile(
        Shape("a start from a column", f"{_KNOWN} AND spend > -9", rows=1),
        kept_where(
            Call(
                "=",
                (_untyped("substring", _TOWN, _untyped("*", _SPEND, Literal(1e30))), Literal("a")),
                TRUE,
            )
        ),
    ),
    Hostile(
        _rows("a key compared with a number", _CODES, rows=1),
        joined_on(Call("=", (Column("t1c0", text()), _AGE), TRUE)),
    ),
    Hostile(
        Shape("a text as a number", "SELECT SUM(age) FROM people WHERE town <> 'z'"),
        of_argument(Column("t0c3", number(0, 4))),
    ),
    Hostile(
        Shape("the unit as a number", "SELECT SUM(age) FROM people"),
        of_argument(Column("t0u", number(0, 4))),
    ),
    Hostile(Shape("a raw column", "SELECT SUM(age) FROM people"), of_argument(Column("t0c2r", number(0, 4)))),
    Hostile(Shape("a range that overflows", "SELECT SUM(age) FROM people", rows=1), of_argument(HUGE)),
    Hostile(_rows("a range that overflows, of rows", "SELECT SUM(age) FROM people"), of_argument(HUGE)),
    Hostile(
        Shape("a range that overflows in a fold", f"SELECT SUM(CLAMP(n, 0, 1)) FROM {_FOLD}", rows=1),
        folded("c9", _untyped("*", Column("t1c1", number(-2, 3)), Literal(1e300))),
    ),
    Hostile(
        Shape("a product that overflows in a fold", f"SELECT SUM(CLAMP(n, 0, 1)) FROM {_FOLD}", rows=1),
        folded("c9", make("*", Column("t1c1", number(-2, 3)), Literal(1e300))),
    ),
    Hostile(
        Shape("never missing, as it says", "SELECT COUNT(town) FROM people", rows=1),
        of_argument(Column("t0c3", text(nullable=False))),
    ),
    Hostile(
        Shape(
            "private keys that are both zeros",
            "SELECT town, COUNT(*) FROM people GROUP BY town",
            groups=2,
        ),
        by_key(expression=_SPEND, values=None),
    ),
    Hostile(
        _rows("private keys of rows that are both zeros", "SELECT town, COUNT(*) FROM people GROUP BY town"),
        by_key(expression=_SPEND, values=None),
    ),
)


@pytest.mark.parametrize("hostile", CASES, ids=[h.shape.name for h in CASES])
def test_a_forged_description_is_refused_or_keeps_its_price(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_price(hostile, monkeypatch)


def test_units_that_are_stored_in_two_ways_are_not_put_together() -> None:
    """The number 1 here and the text 1.0 there may be one person, who would count as two."""
    union = "(SELECT age AS x FROM people UNION ALL SELECT cost FROM visits) AS u"
    asked = Shape("", f"SELECT COUNT(*) FROM {union}").query()
    ids: dict[str, Any] = {"text": ["1.0", "2"], "number": [1.0, 2.0]}
    for first, second in (("text", "text"), ("text", "number"), ("number", "number")):
        people = {
            "id": ids[first],
            "region": ["n", "s"],
            "spend": [1.0, 2.0],
            "age": [1.0, 2.0],
            "town": ["a", "b"],
        }
        related = {"visits": {"who": ids[second], "cost": [1.0, 2.0], "place": ["a", "b"]}}
        related |= {"towns": {"town": ["a"], "size": [1.0]}, "codes": {"code": ["a"], "label": ["x"]}}
        engine = connect(people, asked.public, related=related, threads=1)
        if first == second:
            asked.rehearse(engine)
            assert asked._without_noise(engine, 1) == [[4]]
        else:
            with pytest.raises(QueryError, match="different types"):
                asked.rehearse(engine)
