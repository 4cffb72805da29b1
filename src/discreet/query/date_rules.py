"""Computes the domains (`domain.ValueDomain`) of functions of dates from those of their arguments:
differences, sums with days and months, parts, DATE_TRUNC and STRFTIME.

A function that does this for one operator is its rule (`rules.Rule`). In a domain, `low` and `high` of a date
are ordinals (`date.toordinal`).
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import replace
from datetime import date

from .._errors import InvalidInput
from ..tables.texts import engine_values
from .domain import Kind, ValueDomain, number, text
from .errors import Refusal
from .rules import Rule, any_null
from .text_rules import LONGEST_FIXED_TEXT, fixed_text

# The most days between the declared bounds of a date for which DATE_TRUNC and STRFTIME list all results:
# about 1,100 years. Not tuned.
MAX_DAYS = 400_000
# The directives of strftime that are about the time of day: DuckDB would write midnight's for every row.
_OF_TIMES = "cfgHIMnpSXzZ"


def days_between(a: ValueDomain, b: ValueDomain) -> ValueDomain:
    """Return the domain of the difference of two dates, in days."""
    a.need(Kind.DATE, "a difference in days")
    b.need(Kind.DATE, "a difference in days")
    return number(a.low - b.high, a.high - b.low, integral=True, nullable=any_null(a, b))


def add_days(a: ValueDomain, n: ValueDomain) -> ValueDomain:
    """Return the domain of a date plus a fixed number of days, within the years that both Python and the
    engine know."""
    a.need(Kind.DATE, "adding days")
    if not (n.kind is Kind.NUMBER and n.low == n.high and n.integral and not n.nullable):
        raise Refusal("to a date a fixed whole number of days can be added")
    low, high = a.low + n.low, a.high + n.low
    if not date.min.toordinal() <= low <= high <= date.max.toordinal():
        raise Refusal("this goes beyond the years 1 to 9999")
    return ValueDomain(kind=Kind.DATE, low=low, high=high, nullable=a.nullable)


def strftime(a: ValueDomain, pattern: ValueDomain) -> ValueDomain:
    """Return the domain of STRFTIME: its text for each day between the declared bounds, each text once, in
    the order of the days."""
    a.need(Kind.DATE, "STRFTIME")
    layout = fixed_text(pattern, "STRFTIME", LONGEST_FIXED_TEXT)
    for directive in re.findall(r"%-?.", layout):
        if directive[-1] in _OF_TIMES:
            raise Refusal(
                f"{directive} is about the time of day, and of a date or timestamp only its day is read"
            )
    try:
        return text(
            tuple(dict.fromkeys(engine_values("strftime", _listed_days(a, "STRFTIME"), layout))),
            nullable=a.nullable,
        )
    except InvalidInput:
        raise Refusal(f"{layout!r} is not a format that the engine knows, such as '%Y-%m'") from None


def day_name(function: str) -> Rule:
    """Return the rule of DAYNAME or MONTHNAME: all names as the engine writes them, Monday and January
    first."""

    def rule(a: ValueDomain) -> ValueDomain:
        a.need(Kind.DATE, function.upper())
        # 1 January 2001 was a Monday, and steps of 31 days from it meet the twelve months of 2001 in order.
        step, count = (1, 7) if function == "dayname" else (31, 12)
        monday = date(2001, 1, 1).toordinal()
        days = tuple(date.fromordinal(monday + step * i) for i in range(count))
        return text(tuple(engine_values(function, days)), nullable=a.nullable)

    return rule


def _listed_days(a: ValueDomain, what: str) -> tuple[date, ...]:
    """Return every day that a date can be, by its listed values or its bounds; `what` is the function that
    the refusal names."""
    if a.values is not None:
        return a.values
    if not a.bounded or a.high - a.low > MAX_DAYS:
        raise Refusal(f"{what} needs a date whose declared bounds are at most {MAX_DAYS:,} days apart")
    return tuple(date.fromordinal(day) for day in range(int(a.low), int(a.high) + 1))


# The least and the largest value of each part of a date, as DuckDB has them; years are those of Python.
PARTS = {
    "year": (1, 9999),
    "quarter": (1, 4),
    "month": (1, 12),
    "day": (1, 31),
    "week": (1, 53),
    "dow": (0, 6),
    "isodow": (1, 7),
    "doy": (1, 366),
}


def part(name: str) -> Rule:
    """Return the rule of EXTRACT of one part of a date."""

    def rule(a: ValueDomain) -> ValueDomain:
        a.need(Kind.DATE, name.upper())
        low, high = PARTS[name]
        if name == "year" and a.bounded:
            low, high = date.fromordinal(int(a.low)).year, date.fromordinal(int(a.high)).year
        return number(low, high, integral=True, nullable=a.nullable)

    return rule


def start_of(unit: str, day: date) -> date:
    """Return the first day of the year, quarter, month or week that a day is in; for "day" the day itself."""
    if unit == "week":
        return date.fromordinal(day.toordinal() - day.weekday())
    month = {"year": 1, "quarter": 3 * ((day.month - 1) // 3) + 1, "month": day.month}.get(unit)
    return day if month is None else date(day.year, month, 1)


def truncate(unit: str) -> Rule:
    """Return the rule of DATE_TRUNC to a unit."""

    def rule(a: ValueDomain) -> ValueDomain:
        a.need(Kind.DATE, "DATE_TRUNC")
        starts = tuple(dict.fromkeys(start_of(unit, day) for day in _listed_days(a, "DATE_TRUNC")))
        # the days of a CASE come branch by branch, so that the first need not be the earliest
        return replace(a, low=float(min(starts).toordinal()), values=starts)

    return rule


def add_months(a: ValueDomain, n: ValueDomain) -> ValueDomain:
    """Return the domain of a date plus a fixed number of months."""
    a.need(Kind.DATE, "adding months")
    if not (n.kind is Kind.NUMBER and n.low == n.high and n.integral and not n.nullable):
        raise Refusal("to a date a fixed whole number of months can be added")
    ends = [_month_later(date.fromordinal(int(end)), int(n.low)) for end in (a.low, a.high)]
    low, high = (float(end.toordinal()) for end in ends)
    values = (
        None if a.values is None else tuple(dict.fromkeys(_month_later(day, int(n.low)) for day in a.values))
    )
    return ValueDomain(kind=Kind.DATE, low=low, high=high, values=values, nullable=a.nullable)


def _month_later(day: date, n: int) -> date:
    """Return the same day `n` months later, or that month's last day where it has no such day."""
    year, month = divmod(day.year * 12 + day.month - 1 + n, 12)
    if not date.min.year <= year <= date.max.year:
        raise Refusal("this goes beyond the years 1 to 9999")
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))
