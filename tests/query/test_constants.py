"""Constants of the analyst's SQL are read as they are written, or refused before anybody pays for them."""

from __future__ import annotations

from datetime import date

import pytest

from discreet._public import Dates
from discreet.query.constants import as_date
from discreet.query.domain import declared
from discreet.query.errors import Refusal
from discreet.query.nodes import Column, Literal

DAY = Column("day", declared(Dates("2020-01-01", "2020-12-31")))


@pytest.mark.parametrize("written", ["2020-01-31 12:00", "2020-01-311", "2020-01-31T00:00:01", "2020-01-31x"])
def test_a_text_that_is_more_than_a_day_is_refused_and_not_cut_off(written):
    """Cut off, day < '2020-01-31 12:00' would leave that day out, and a typing error would be paid for."""
    with pytest.raises(Refusal, match="is not a day"):
        as_date(Literal(written), DAY)


@pytest.mark.parametrize("written", ["2020-01-31", " 2020-01-31 00:00", "2020-01-31T00:00:00.000"])
def test_a_day_and_its_midnight_are_the_day(written):
    assert as_date(Literal(written), DAY) == Literal(date(2020, 1, 31))
