"""The exact integers of DuckDB are those of an interpreter in plain Python, unit by unit; and the integers of a
table are the sum of those of its units (invariant I of DESIGN: every sensitivity follows from that)."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import pytest

from discreet.query import Query

from . import change, shapes
from .interpreter import Question
from .shapes import PERSON, ROW, Shape
from .worlds import UNITS, Worlds

# the tables of each shape that are compared with the sum of their units
TABLES = 40


@cache
def _worlds(unit: str, spelled: str = "text") -> Worlds:
    if unit == "row":
        return shapes.row_worlds(shapes.row_pool(11), orders=1)
    return shapes.person_worlds(shapes.pool(11), spelled, orders=1)


def _question(shape: Shape) -> Question:
    public = shape.public()
    query = shape.query()
    return Question(
        shape.sql, public, rows=query.question.form.bounding.rows, groups=query.question.form.bounding.groups
    )


def _counted(query: Query, exact: Any, group: int) -> list[Any]:
    """The released integers of one group: a number for each measure; for each choice how often each candidate is
    there."""
    choices = []
    for choice, counts in zip(query.question.form.choices, exact.scores, strict=True):
        row = counts[group]
        if choice.kind == "quantile":
            values = [float(choice.first + i * choice.step) for i in range(choice.points)]
        else:
            values = list(choice.values)
        choices.append(Counter({v: int(n) for v, n in zip(values, row, strict=True) if n}))
    return [*(int(m[group]) for m in exact.measures), *choices]


def _released(query: Query, exact: Any) -> dict[Any, list[Any]]:
    """By group what is released of it; groups with nothing are left out."""
    parts = {tuple(key): _counted(query, exact, i) for i, key in enumerate(exact.keys)}
    return {key: part for key, part in parts.items() if any(part)}


def _in_order(question: Question, amounts: list[Any]) -> list[Any]:
    """Amounts by part as they are released: measures first, then choices; a distinct count is a number."""
    kinds = [part.kind for part in question.parts]
    measures = [a for a, kind in zip(amounts, kinds, strict=True) if kind not in ("quantile", "mode")]
    return [*measures, *(a for a, kind in zip(amounts, kinds, strict=True) if kind in ("quantile", "mode"))]


def _fits(question: Question, kind: str, amount: Any, released: Any) -> bool:
    """Whether a released number of one unit in one group is what its rows allow."""
    if kind == "distinct":
        return released == min(len(amount), question.max_rows)
    if kind == "quantile":
        # some of its rows, as many as the limit allows
        size = (
            min(amount.total(), question.max_rows) if question.many or amount.total() > 1 else amount.total()
        )
        return released.total() == size and released <= amount
    return released == amount


def _alone(question: Question, unit: dict[Any, Any], released: dict[Any, list[Any]]) -> bool:
    """Whether what is released of a table with one unit is what the unit's rows allow, for some choice of groups."""
    order = _in_order(question, list(range(len(question.parts))))
    for kept in question.possible(unit):
        wanted = {g: [question.amount(i, unit[g]) for i in order] for g in kept}
        wanted = {g: parts for g, parts in wanted.items() if any(parts)}
        if wanted.keys() == released.keys() and all(
            _fits(question, question.parts[i].kind, amount, number)
            for g, parts in wanted.items()
            for i, amount, number in zip(order, parts, released[g], strict=True)
        ):
            return True
    return False


def _database(worlds: Worlds, world: int) -> dict[str, Any]:
    return {name: worlds.rows(name, world) for name in worlds.tables}


@pytest.mark.parametrize(
    ("unit", "spelled"), [("person", "text"), ("person", "number"), ("person", "nobody"), ("row", "text")]
)
def test_what_one_unit_adds_is_what_its_rows_mean(unit: str, spelled: str) -> None:
    """Tables with a single unit: each of 11 contents, in each of the three places."""
    worlds = _worlds(unit, spelled)
    singles = [c for c in worlds.combinations if sum(part > 0 for part in c) <= 1]
    for shape in PERSON if unit == "person" else ROW:
        query, question = shape.query(), _question(shape)
        worlds.forget()
        for combination in singles:
            worlds.world = worlds.combinations.index(combination)
            released = _released(query, query._measure(worlds, change.KEY))
            units = question.of_units(_database(worlds, worlds.world))
            assert len(units) <= 1
            rows = next(iter(units.values()), {})
            assert _alone(question, rows, released), (shape.name, combination, rows, released)


def _additive(query: Query, exact: Any) -> dict[Any, list[Any]]:
    kept = [m.kind != "distinct" for m in query.question.form.measures] + [True] * len(
        query.question.form.choices
    )
    released = _released(query, exact)
    return {
        key: [part for part, keep in zip(parts, kept, strict=True) if keep] for key, parts in released.items()
    }


def _added(tables: list[dict[Any, list[Any]]]) -> dict[Any, list[Any]]:
    total: dict[Any, list[Any]] = {}
    for table in tables:
        for key, parts in table.items():
            total[key] = (
                [a + b for a, b in zip(total[key], parts, strict=True)] if key in total else list(parts)
            )
    return {key: parts for key, parts in total.items() if any(parts)}


@pytest.mark.parametrize("unit", ["person", "row"])
def test_the_integers_of_a_table_are_the_sum_of_those_of_its_units(unit: str) -> None:
    """Of 40 random tables for each shape, half of them with two equal units: equal rows make one choice."""
    worlds, chance = _worlds(unit), random.Random(11)
    index = {c: i for i, c in enumerate(worlds.combinations)}
    for shape in PERSON if unit == "person" else ROW:
        query = shape.query()
        worlds.forget()

        def additive(combination: tuple[int, ...], query: Query = query) -> dict[Any, list[Any]]:
            worlds.world = index[combination]
            return _additive(query, query._measure(worlds, change.KEY))

        drawn = chance.sample(worlds.combinations, TABLES)
        for combination in (c if i % 2 else (c[0], c[0], c[2]) for i, c in enumerate(drawn)):
            parts = [tuple(c if i == j else 0 for j, c in enumerate(combination)) for i in range(UNITS)]
            wanted, total = (
                _added([additive(p) for p in parts]),
                {k: v for k, v in additive(combination).items() if any(v)},
            )
            assert wanted == total, (shape.name, combination)


@pytest.mark.parametrize("unit", ["person", "row"])
def test_distinct_values_of_several_units_are_counted_once(unit: str) -> None:
    """Where no unit is above its limits: then nothing is chosen."""
    worlds, chance, compared = _worlds(unit), random.Random(12), 0
    for shape in PERSON if unit == "person" else ROW:
        query, question = shape.query(), _question(shape)
        if not any(part.kind == "distinct" for part in question.parts):
            continue
        worlds.forget()
        for worlds_index in chance.sample(range(worlds.size), 200):
            worlds.world = worlds_index
            units = question.of_units(_database(worlds, worlds_index))
            order = _in_order(question, list(range(len(question.parts))))
            amounts = {
                (who, g): [question.amount(i, rows) for i in order]
                for who, u in units.items()
                for g, rows in u.items()
            }
            above = any(len(u) > question.max_groups for u in units.values() if question.keys)
            if above or any(
                len(a[i]) > question.max_rows for a in amounts.values() for i in _distinct(question)
            ):
                continue
            released, compared = _released(query, query._measure(worlds, change.KEY)), compared + 1
            for i in _distinct(question):
                wanted = {
                    g: len(set().union(*(a[i] for (_, other), a in amounts.items() if other == g)))
                    for _, g in amounts
                }
                found = {g: parts[i] for g, parts in released.items()}
                assert {g: n for g, n in wanted.items() if n} == {g: n for g, n in found.items() if n}, (
                    shape.name
                )
    assert compared > 50


def _distinct(question: Question) -> list[int]:
    order = _in_order(question, list(range(len(question.parts))))
    return [at for at, i in enumerate(order) if question.parts[i].kind == "distinct"]


def test_the_interpreter_has_teeth() -> None:
    """One more row, one group more, or another clip, and the numbers of DuckDB are not those of the rows."""
    worlds, shape = _worlds("person"), next(s for s in PERSON if s.name == "sum")
    query, failed = shape.query(), 0
    for wrong in ({"rows": 3, "groups": 1}, {"rows": 1, "groups": 1}):
        question = Question(shape.sql, shape.public(), **wrong)
        worlds.forget()
        for combination in [c for c in worlds.combinations if c[1] == c[2] == 0]:
            worlds.world = worlds.combinations.index(combination)
            released = _released(query, query._measure(worlds, change.KEY))
            rows = next(iter(question.of_units(_database(worlds, worlds.world)).values()), {})
            failed += not _alone(question, rows, released)
    assert failed >= 4
