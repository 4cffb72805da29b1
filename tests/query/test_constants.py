"""Constants of the analyst's SQL are read as they are written, or refused before anybody pays for them."""

from __future__ import annotations

from datetime import date
from itertools import product

import pytest

from discreet import Bounds, Categories, Dates, Public, Text
from discreet.core.domain import declared
from discreet.core.errors import Refusal
from discreet.core.nodes import Column, Literal
from discreet.query import Query, QueryError
from discreet.query.binder import as_date
from discreet.tables import connect

DAY = Column("day", declared(Dates("2020-01-01", "2020-12-31")))


@pytest.mark.parametrize("written", ["2020-01-31 12:00", "2020-01-311", "2020-01-31T00:00:01", "2020-01-31x"])
def test_a_text_that_is_more_than_a_day_is_refused_and_not_cut_off(written):
    """Cut off, day < '2020-01-31 12:00' would leave that day out, and a typing error would be paid for."""
    with pytest.raises(Refusal, match="is not a day"):
        as_date(Literal(written), DAY)


@pytest.mark.parametrize("written", ["2020-01-31", " 2020-01-31 00:00", "2020-01-31T00:00:00.000"])
def test_a_day_and_its_midnight_are_the_day(written):
    assert as_date(Literal(written), DAY) == Literal(date(2020, 1, 31))


PUBLIC = Public(
    schema={
        "age": Bounds(0, 120),
        "share": Bounds(0.5, 0.75),
        "level": Categories([1, 2, 5]),
        "day": Dates("2020-01-01", "2020-12-31"),
        "ward": Text(),
    },
    table="t",
)


@pytest.mark.parametrize(
    "condition",
    [
        "age > 200", "200 < age", "age >= 120.5", "age > 120", "age < 0", "age <= -1", "age = 121",
        "age <> 999", "age BETWEEN 130 AND 200", "age BETWEEN -5 AND -1", "age IN (3, 200)", "NOT age > 200",
        "share < 0.5", "share > 0.75", "share = 0.8", "level > 5", "level < 1", "day > '2020-12-31'",
        "day < '2020-01-01'", "'2021-05-01' <= day", "day BETWEEN '2019-01-01' AND '2019-12-31'",
        "CASE age WHEN 200 THEN TRUE ELSE FALSE END", "age > 10 AND (ward = 'x' OR age > 200)",
    ],
)  # fmt: skip
def test_a_comparison_that_no_value_within_the_bounds_meets_is_refused(condition):
    """It was charged, and answered with noise around zero."""
    with pytest.raises(QueryError, match=r"declared between .* beyond (counts as the bound|is missing)\."):
        Query(sql=f"SELECT COUNT(*) FROM t WHERE {condition}", public=PUBLIC, epsilon=1)


@pytest.mark.parametrize(
    "condition",
    [
        "age >= 0", "age <= 120", "age > 119.5", "age <= 0", "age >= 120", "age = 120", "age < 500", "age >= -5",
        "age BETWEEN -5 AND 300", "age IN (0, 120)", "age <> 120", "age + 100 > 210", "age > share * 1000",
        "day <= '2020-01-01'", "day >= '2019-01-01'", "day BETWEEN '2019-01-01' AND '2021-12-31'",
        "LENGTH(ward) < 0", "age IS NULL",
    ],
)  # fmt: skip
def test_comparisons_that_some_value_meets_or_that_are_computed_are_not_refused(condition):
    Query(sql=f"SELECT COUNT(*) FROM t WHERE {condition}", public=PUBLIC, epsilon=1)


def test_what_is_refused_does_hold_for_no_row():
    """With noise off, on values at and beyond the bounds: each of the refused comparisons, by way of an
    expression, which is not refused."""
    source = connect({"age": [-7.0, 0.0, 60.0, 120.0, 1e9, None]}, ONE)
    for operator, end in product(("<", "<=", ">", ">=", "="), (-1, 0, 60, 120, 121)):
        try:
            Query(sql=f"SELECT COUNT(*) FROM t WHERE age {operator} {end}", public=ONE, epsilon=1)
        except QueryError:
            sql = f"SELECT COUNT(*) FROM t WHERE age + 0 {operator} {end}"
            assert Query(sql=sql, public=ONE, epsilon=1)._without_noise(source, 1) == [[0]], sql


ONE = Public(schema={"age": Bounds(0, 120)}, table="t")
