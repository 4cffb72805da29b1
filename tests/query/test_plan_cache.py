"""A plan may be used again only for the same text and the same facts."""

from __future__ import annotations

import pytest

import discreet as dp
from discreet._public import Public
from discreet.mechanisms.protocols import check_source
from discreet.query.plan import plan
from discreet.query.statistic import SqlStatistic, SqlVector
from discreet.tables import Memory

TEXT = "SELECT COUNT(*) AS n FROM people WHERE age > 3"


def public(lower: float, upper: float) -> Public:
    return Public(schema={"age": dp.Bounds(lower, upper)}, unit=dp.rows(), table="people")


def test_the_same_question_is_planned_once():
    assert plan(TEXT, public(0, 10)) is plan(TEXT, public(0, 10))


def test_facts_that_are_equal_but_spelt_otherwise_are_planned_apart():
    integers, floats = public(0, 10), public(0.0, 10.0)
    assert plan(TEXT, integers) is not plan(TEXT, floats)
    assert plan(TEXT, integers) is not plan(TEXT, public(0, 11))


@pytest.mark.parametrize("kind", [SqlStatistic, SqlVector])
def test_a_statistic_does_not_depend_on_facts_that_were_asked_about_before(kind):
    statistic = kind(sql="SELECT SUM(age // 2) AS s FROM people")
    # // cuts off what is declared in integers, and divides what is not
    for lower, upper, half in ((0, 10, 1.0), (0.0, 10.0, 1.5)):
        facts = public(lower, upper)
        value = statistic(Memory({"age": [3]}, facts))
        assert float(value.item() * statistic.step_for(facts)) == half


def test_a_mechanism_priced_for_integers_is_not_run_on_facts_in_floats():
    source = Memory({"age": [3]}, public(0.0, 10.0))
    check_source(public(0.0, 10.0), source)
    with pytest.raises(dp.PublicMismatch, match=r"schema differ .*types of the declared bounds"):
        check_source(public(0, 10), source)
