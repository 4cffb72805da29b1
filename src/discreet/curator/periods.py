"""Budgets per period, for tables that grow: which rows belong to which period, and the accounts of periods.

A row belongs to one period at most, by its value in one declared column. Each period has a budget of its own,
so that new rows, which come every month for example, can be asked about for ever. What that promises, and to
whom, is in docs/proofs/filters.md, Theorem 4.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import MAXYEAR, date, timedelta
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput, Unsupported
from .._public import ADD_REMOVE, Boolean, Bounds, Categories, Dates, Public
from .._registry import described
from ..tables.source import Source
from .policy import Budget

if TYPE_CHECKING:
    from ..tables.fit import Part, Within

UNLIMITED = "unlimited"
# For each length of a period, the form of its name and an example. The names stand in ledgers.
_FORMS = {
    "day": (r"(\d{4})-(\d{2})-(\d{2})", "2026-01-31"),
    "week": (r"(\d{4})-W(\d{2})", "2026-W05"),
    "month": (r"(\d{4})-(\d{2})", "2026-01"),
    "quarter": (r"(\d{4})-Q([1-4])", "2026-Q1"),
    "year": (r"(\d{4})", "2026"),
}


@described("curator.Period")
class Period:
    """Cuts a table into periods by the values of `column`.

    A column of dates is cut by `every`: day, week, month, quarter or year. A column of labels
    or of whole numbers is given without `every`: each value is a period.

    `total` limits the privacy loss of people with rows in many periods, and is required where the unit is a
    person. It is a `Budget` for all periods together, or "unlimited". If it is unlimited, a period's budget
    holds for a person's rows within that period only. For all rows of a person who has rows in k periods, a
    pure epsilon is multiplied by k, rho by k squared, and delta grows faster (docs/proofs/filters.md, Theorem
    5).

    >>> Period(column="admitted", every="month")
    Period(column='admitted', every='month')
    """

    column: str
    every: str | None = None
    total: Budget | str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise _require.fail(
                "column", self.column, "the name of the column that says to which period a row belongs"
            )
        if self.every is not None and (not isinstance(self.every, str) or self.every not in _FORMS):
            raise _require.fail(
                "every", self.every, f"one of {', '.join(_FORMS)}, or left out for a column of labels"
            )
        if self.total is None or (isinstance(self.total, str) and self.total == UNLIMITED):
            return
        if not isinstance(self.total, Budget) or self.total.per is not None:
            raise _require.fail("total", self.total, f"a Budget for all periods together, or {UNLIMITED!r}")

    @property
    def cut(self) -> list[str | None]:
        """The column and the length of a period: two `Period`s with the same ones cut a table in the same
        way."""
        return [self.column, self.every]

    @property
    def limit(self) -> Budget | None:
        """The budget of all periods together, if there is one."""
        return None if self.total is None or isinstance(self.total, str) else self.total

    def check(self, public: Public) -> None:
        """Refuse a table for which Theorem 5 does not hold, or whose column cannot be cut into such
        periods."""
        if public.neighbors is not ADD_REMOVE:
            raise Unsupported(
                f"budgets per period are proved for add_remove, not for {public.neighbors}: a row that is "
                "replaced may move to another period."
            )
        if public.unit.column is not None and self.total is None:
            raise InvalidInput(
                "a person may have rows in many periods: say what all of them together may cost one person.",
                remedy=f"Give Period(..., total=Budget(...)), or total={UNLIMITED!r}, which promises "
                "something about a person's rows within one period only.",
                option="total",
            )
        if private := [table.name for table in public.tables if table.private]:
            raise Unsupported(
                f"table {private[0]!r} is private too and its rows belong to no period, so budgets per "
                "period would not cover them. Join the tables into one before you open it, so that every "
                f"row has a period, declare {private[0]!r} public if everybody may know it, or give a budget "
                "without periods."
            )
        if self.column == public.unit.column:
            raise InvalidInput(f"column {self.column!r} tells people apart: it cannot be the period, too.")
        fact, dated = public.fact(self.column), self.every is not None
        if isinstance(fact, Dates) != dated or isinstance(fact, Boolean):
            wanted = (
                "a Dates column, which this is not"
                if dated
                else "a column of labels; for a date say every='month'"
            )
            raise InvalidInput(f"the period by column {self.column!r} needs {wanted}.")

    def named(self, period: Any, public: Public) -> str:
        """Return the name of a period in its one stored form; refuse a value that is not a period of this
        table."""
        fact = public.fact(self.column)
        if self.every is not None:
            self.part(str(period), public)
            return str(period)
        integral = _is_integral(fact)
        name = _integer_name(period, self.column) if integral else period
        if not isinstance(name, str) or not name.isprintable() or not name:
            raise _require.fail("period", period, f"a value of column {self.column!r}")
        if isinstance(fact, Categories) and (int(name) if integral else name) not in fact.values:
            raise InvalidInput(f"{period!r} is not among the declared values of column {self.column!r}.")
        return name

    def part(self, name: str, public: Public) -> Part:
        """Return the values that the rows of a period have in the column: a first day and the first day after
        the period, or one label."""
        if self.every is not None:
            return stretch(name, self.every)
        return int(name) if _is_integral(public.fact(self.column)) else name

    def restrict(self, source: Source, names: tuple[str, ...]) -> Within:
        """Return the rows of these periods as a source, whose version names the periods."""
        # imported by those who have periods
        from ..tables.fit import within

        parts = [self.part(name, source.public) for name in names]
        return within(source, self.column, parts, called=self._called(names))

    def public_of(self, public: Public, names: tuple[str, ...]) -> Public:
        """Return the public facts of the rows of these periods, as `restrict` has them; reads nothing."""
        return replace(public, size=None, version=f"{public.version} {self._called(names)}")

    def _called(self, names: tuple[str, ...]) -> str:
        return f"({self.column} in {_join_names(names)})"

    def __repr__(self) -> str:
        options = {"every": self.every, "total": self.total}
        more = [f"{name}={value!r}" for name, value in options.items() if value is not None]
        return f"Period({', '.join([f'column={self.column!r}', *more])})"


def _is_integral(fact: Any) -> bool:
    """Return whether the labels of a column are whole numbers."""
    return isinstance(fact, Bounds) or (isinstance(fact, Categories) and isinstance(fact.values[0], int))


def _join_names(names: tuple[str, ...]) -> str:
    """Return names in one text, which differs for any two lists of names: stored answers are found by it.

    Names with a comma or a quote are written as JSON, which has quotes around each name.
    """
    plain = not any(mark in name for name in names for mark in ',"')
    return ", ".join(names) if plain else json.dumps(names)


def _integer_name(period: Any, column: str) -> str:
    """Return the name of a period whose label is a whole number; below 2^53, so that a column of floats holds
    it exactly."""
    try:
        number = int(period) if isinstance(period, int | str) and not isinstance(period, bool) else None
    except ValueError:
        number = None
    if number is None or abs(number) >= 2**53:
        raise _require.fail("period", period, f"a whole number, as column {column!r} holds")
    return str(number)


def stretch(name: str, every: str) -> tuple[date, date]:
    """Return the first day of a period, and the first day after it.

    >>> stretch("2024-02", "month")
    (datetime.date(2024, 2, 1), datetime.date(2024, 3, 1))
    """
    form, example = _FORMS[every]
    match = re.fullmatch(form, name, re.ASCII)
    try:
        if match is None:
            raise ValueError
        return _days(every, [int(part) for part in match.groups()])
    except (ValueError, OverflowError):
        raise _require.fail("period", name, f"a {every} such as {example!r}") from None


def _days(every: str, parts: list[int]) -> tuple[date, date]:
    """Return the first day of a period, and the first day after it. `parts` are the numbers in its name: the
    year, then the month, week or quarter if there is one, then the day."""
    year = parts[0]
    if year == MAXYEAR:
        raise ValueError("the first day after this period may be beyond the last date of Python")
    if every == "day":
        start = date(*parts)
        return start, start + timedelta(days=1)
    if every == "week":
        start = date.fromisocalendar(year, parts[1], 1)
        return start, start + timedelta(days=7)
    months = {"month": 1, "quarter": 3, "year": 12}[every]
    # Months counted from 0: `first` is that of the first day, `end` that of the first day after the period.
    first = (parts[1] - 1) * months if len(parts) > 1 else 0
    end = first + months
    return date(year, first + 1, 1), date(year + end // 12, end % 12 + 1, 1)
