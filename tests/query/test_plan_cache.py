"""A plan may be used again only for the same text and the same facts."""

from __future__ import annotations

import discreet as dp
from discreet._public import Public
from discreet.query.plan import plan

TEXT = "SELECT COUNT(*) AS n FROM people WHERE age > 3"


def public(lower: float, upper: float) -> Public:
    return Public(schema={"age": dp.Bounds(lower, upper)}, unit=dp.rows(), table="people")


def test_the_same_question_is_planned_once():
    assert plan(TEXT, public(0, 10)) is plan(TEXT, public(0, 10))


def test_facts_that_are_equal_but_spelt_otherwise_are_planned_apart():
    integers, floats = public(0, 10), public(0.0, 10.0)
    assert plan(TEXT, integers) is not plan(TEXT, floats)
    assert plan(TEXT, integers) is not plan(TEXT, public(0, 11))
