"""Says who may spend how much: a budget for the dataset, and budgets of single analysts where the steward
sets them.

Defines budgets per period, for tables that grow: which rows belong to which period, and the names of
periods.

A row belongs to one period at most, by its value in one declared column. Each period has a budget of its own,
so that new rows, which come every month for example, can be asked about for ever. What that promises, and to
whom, is in docs/proofs/filters.md, Theorem 4.
"""

from __future__ import annotations

import functools
import html
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, replace
from datetime import MAXYEAR, date, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from .. import _require
from .._errors import BudgetExceeded, DescriptionError, InvalidInput, NotPrivate, Unsupported
from .._public import ADD_REMOVE, Boolean, Bounds, Categories, Dates, Neighbors, Public
from .._registry import OPTIONAL, described, tag_of
from .._require import POSITIVE, PROBABILITY, Real, at_least
from .._text import visible
from ..accounting.filters import BudgetFilter, Filter, ZCDPFilter
from ..tables.source import Source

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


class _Shown:
    """Gives a budget room for how a session shows it. That is no part of the budget: two budgets are equal
    without it, and it is neither stored nor sent."""

    __slots__ = ("_spending",)
    _spending: Callable[[], str]


@described("curator.Budget")
class Budget(_Shown):
    """States the most that may ever be spent: epsilon (with delta for approximate DP), or rho of
    zero-concentrated DP (zCDP).

    With `per`, each period of a table that grows has this budget for itself: see `Period`. The budget of a
    session, printed, is a table of what is spent and left of it at that time.

    >>> Budget(epsilon=3, delta=1e-6)
    Budget(epsilon=3, delta=1e-06)
    """

    epsilon: Real | None = None
    rho: Real | None = None
    delta: Annotated[float, PROBABILITY] = 0.0
    per: Period | None = None

    def __post_init__(self) -> None:
        _require.that(
            (self.epsilon is None) != (self.rho is None),
            f"a budget is given as epsilon or as rho, got epsilon={self.epsilon} and rho={self.rho}.",
        )
        _require.positive(**({"epsilon": self.epsilon} if self.rho is None else {"rho": self.rho}))
        if self.delta >= 1:
            raise _require.fail(
                "delta", self.delta, "below 1; sensible values are far below one over the number of people"
            )
        if self.per is not None and not isinstance(self.per, Period):
            raise _require.fail("per", self.per, "a Period, such as Period(column='admitted', every='month')")
        # 1 and 1.0 are one budget: opened again with the other, a ledger must not be refused.
        for name, value in (("epsilon", self.epsilon), ("rho", self.rho)):
            if isinstance(value, float) and value.is_integer() and value < 2**53:
                object.__setattr__(self, name, int(value))
        object.__setattr__(self, "delta", float(self.delta))

    def filter(self, neighbors: Neighbors = ADD_REMOVE) -> BudgetFilter:
        """Return the privacy filter of this budget: it admits or refuses each question so that the budget
        holds even if questions depend on earlier answers."""
        return _filter(self.epsilon, self.rho, self.delta, neighbors)

    def showing(self, spending: Callable[[], str]) -> Budget:
        """Return an equal budget that is printed as what `spending` returns at that time."""
        shown = replace(self)
        object.__setattr__(shown, "_spending", spending)
        return shown

    def _repr_html_(self) -> str:
        table = f"<pre>{html.escape(str(self))}</pre>" if hasattr(self, "_spending") else ""
        return f"<code>{html.escape(repr(self))}</code>{table}"

    def __str__(self) -> str:
        return self._spending() if hasattr(self, "_spending") else repr(self)

    def __repr__(self) -> str:
        main = f"epsilon={self.epsilon}" if self.rho is None else f"rho={self.rho}"
        more = [f"delta={self.delta:g}"] if self.delta else []
        more += [f"per={self.per!r}"] if self.per is not None else []
        return f"Budget({', '.join([main, *more])})"


Amounts = tuple[str, float | None, float | None, float | None]


def spending_table(of: str, amounts: Iterable[Amounts], note: str = "") -> str:
    """Return a table of the limit, the spent and the left amounts of one account, whose name is `of`; below
    it, in parentheses, the note, if there is one. An amount that is not known is None.

    >>> print(spending_table("ann", [("epsilon", 3, 0.5, 2.5), ("delta", 1e-6, None, None)]))
    ann      limit  spent  left
    epsilon  3      0.5    2.5
    delta    1e-06  -      -
    """
    rows = [[visible(of), "limit", "spent", "left"]]
    for unit, *numbers in amounts:
        rows.append([visible(unit), *("-" if number is None else f"{number:.6g}" for number in numbers)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, f"({note})"] if note else lines)


# Cached, because a filter chooses its Rényi orders from the budget, which takes milliseconds, and every
# question needs it.
@functools.lru_cache(maxsize=64)
def _filter(epsilon: Real | None, rho: Real | None, delta: float, neighbors: Neighbors) -> BudgetFilter:
    if rho is not None:
        return ZCDPFilter(rho=rho, delta=delta, neighbors=neighbors)
    assert epsilon is not None
    return Filter(epsilon=epsilon, delta=delta, neighbors=neighbors)


@described("curator.Policy")
class Policy:
    """States the dataset's budget, and the analysts who may ask, each with a budget of their own or None.

    An analyst with None is limited by the dataset's budget only. `analysts` may be given as a mapping of
    names to budgets. Analysts may collude: whatever their own budgets are, together they never exceed the
    dataset's.

    A spending guard stops slips, such as a loop that asks all night: `max_per_question` and `max_per_day` (a
    date in UTC) are the most that one asker, also the steward, may spend of the dataset's budget, in its
    unit. `min_people`: no answer in SQL shows a group of fewer people than this (`query.Query`).
    """

    budget: Budget
    analysts: tuple[tuple[str, Budget | None], ...] = ()
    max_per_day: Annotated[Real, POSITIVE] | None = field(default=None, metadata=OPTIONAL)
    max_per_question: Annotated[Real, POSITIVE] | None = field(default=None, metadata=OPTIONAL)
    min_people: Annotated[int, at_least(1)] | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if not isinstance(self.budget, Budget):
            raise _require.fail("budget", self.budget, "a Budget, such as Budget(epsilon=1)")
        pairs = (
            self.analysts.items()
            if isinstance(self.analysts, Mapping)
            else _require.listed(analysts=self.analysts)
        )
        if any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
            raise _require.fail("analysts", self.analysts, "pairs of a name and a Budget (or None)")
        object.__setattr__(self, "analysts", tuple((str(name), budget) for name, budget in pairs))
        names = [name for name, _ in self.analysts]
        if len(set(names)) < len(names) or STEWARD in names:
            raise InvalidInput(
                f"analysts need printable names that differ from each other and from {STEWARD!r}, "
                f"got {names}."
            )
        if bad := [n for n in names if not n.isprintable() or n.strip() != n or not n or set(n) & set(":,=")]:
            raise InvalidInput(
                f"{bad[0]!r} is no name of an analyst: they need printable names, with no ':', ',' or '=' in "
                "them, and no blanks at their ends. Nothing was opened or changed.",
                remedy="Give a budget beside the name: analysts={'ann': dp.Budget(epsilon=1)}.",
                option="analysts",
            )
        for name, budget in self.analysts:
            if budget is not None and not isinstance(budget, Budget):
                raise _require.fail(
                    f"the budget of {name!r}", budget, "a Budget, such as Budget(epsilon=1), or None"
                )
            _require.that(
                budget is None or budget.per is None or budget.per.cut == self._cut,
                f"the budget of {name!r} is per period: the dataset's must be so too, with the "
                f"same column and the same length of a period.",
            )

    @property
    def limits(self) -> dict[str, Any]:
        """The limits beside the budgets, by name, those that are set."""
        named = {name: getattr(self, name) for name in LIMITS}
        return {name: limit for name, limit in named.items() if limit is not None}

    def least_people(self, public: Public, asked: int | None = None) -> int | None:
        """Return the largest `min_people` of the policy, the table and the question; None without one."""
        return max(filter(None, (self.min_people, public.min_people, asked)), default=None)

    def check_people(self, mechanism: Any, public: Public) -> None:
        """Refuse a mechanism that may show groups of fewer people than may be shown: any that does not count
        people, but for models, copies and tests, and for code of the steward's own."""
        least = self.least_people(public)
        if least is None or mechanism.least_people >= least:
            return
        with suppress(DescriptionError):
            kind = tag_of(type(mechanism))
            if kind.partition(".")[0] not in NO_TABLES:
                raise Unsupported(
                    f"no group of fewer than {least:,} people is to be shown of this table (min_people), and "
                    f"{kind} does not count them. Ask one SELECT at a time, sql(...), without CUBE, ROLLUP "
                    "and GROUPING SETS."
                )

    def guard(self, used: Callable[[], tuple[float, float]], asker: str) -> None:
        """Refuse a charge beyond the spending guard. `used` returns what the charge by itself, and all that
        the asker was charged this day with it, use of the dataset's budget."""
        if self.max_per_day is None and self.max_per_question is None:
            return
        unit = "epsilon" if self.budget.rho is None else "rho"
        pairs = zip(used(), (self.max_per_question, self.max_per_day), ("question", "day"), strict=True)
        for amount, limit, each in pairs:
            # Amounts are rounded up: a price that is just the limit is within it.
            if limit is not None and amount > float(limit) * (1 + 1e-9):
                said = f"this costs {unit} {amount:.4g}"
                if each == "day":
                    said = f"with this, {asker} will have spent {unit} {amount:.4g} since midnight (UTC)"
                raise BudgetExceeded(
                    f"{said}, and max_per_{each} = {float(limit):.4g} is the most.",
                    remedy=("Ask tomorrow" if each == "day" else "Ask with less epsilon")
                    + ", or have the steward change the guard: discreet policy LEDGER "
                    f"--max-per-{each} {2 * float(limit):.4g}.",
                )

    @property
    def _cut(self) -> list[str | None] | None:
        """How the dataset's budget cuts the table into periods; None if it is not per period."""
        return None if self.budget.per is None else self.budget.per.cut

    def check(
        self,
        public: Public,
        *,
        large_delta: bool = False,
        large_epsilon: bool = False,
        before: Policy | None = None,
    ) -> None:
        """Refuse budgets whose delta is too large to promise anything for such a table, those that its
        neighbor relation does not allow, and, without `large_epsilon`, those that `check_epsilon` refuses;
        not again a budget of `before`, the policy in force.

        Of n people, a delta of 1/n allows publishing the rows of one of them, chosen at random, so that delta
        must be smaller. Where n is not declared, a delta above `LARGEST_DELTA` needs `large_delta=True`.
        """
        for budget in self._budgets:
            insisted = large_epsilon or (before is not None and budget in before._budgets)
            _check_budget(budget, public, large_delta, insisted)
            if budget.per is not None:
                budget.per.check(public)
                if budget.per.limit is not None:
                    _check_budget(budget.per.limit, public, large_delta, insisted)

    @property
    def _budgets(self) -> list[Budget]:
        """The budgets of the dataset and of its analysts."""
        return [self.budget, *(budget for _, budget in self.analysts if budget is not None)]

    def of(self, analyst: str) -> Budget | None:
        """Return the analyst's own budget, or None if only the dataset's limits them, as it does the steward.
        Refuse a name that is not an analyst's."""
        if analyst == STEWARD:
            return None
        for name, budget in self.analysts:
            if name == analyst:
                return budget
        raise NotPrivate(f"{analyst!r} is not an analyst of this dataset. Ask the steward to be entered.")


def check_epsilon(
    epsilon: Real | None = None, rho: Real | None = None, *, large_epsilon: bool = False
) -> None:
    """Refuse an epsilon, or a rho, above `LARGEST_EPSILON` unless it is insisted on: it protects next to
    nothing, and is more often a slip. The message has the odds that it allows."""
    amount = epsilon if rho is None else rho
    if amount is None or large_epsilon or not amount > LARGEST_EPSILON:
        return
    # Right in all but one of so many bets: after pure noise at this epsilon, or after Gaussian noise at this
    # rho. Floats end near e^709.
    size = 700.0 if amount > 700 else float(amount)
    bets = 1 + math.exp(size) if rho is None else 2 / math.erfc(math.sqrt(size) / 2)
    in_words = f"{math.ceil(bets):,}" if bets < 1e15 else "more than a million billion"
    raise InvalidInput(
        f"{'epsilon' if rho is None else 'rho'} = {amount} is above {LARGEST_EPSILON}: somebody who would "
        f"have bet 50:50 on whether one person is in the data could be right in all but one of {in_words} "
        "bets. Take less, 1 is a usual price; or insist: large_epsilon=True."
    )


def _check_budget(budget: Budget, public: Public, large_delta: bool, large_epsilon: bool) -> None:
    """Refuse a delta that is not below 1/n for n people, or is large where n is not declared; an epsilon that
    `check_epsilon` refuses; and a budget that has no filter for the table's neighbor relation."""
    check_epsilon(budget.epsilon, rho=budget.rho, large_epsilon=large_epsilon)
    # Called to raise where there is no such filter.
    budget.filter(public.neighbors)
    if public.size is not None and budget.delta >= 1 / public.size:
        raise InvalidInput(
            f"delta = {budget.delta:g} is not below 1 / {public.size:,}, one over the declared "
            f"number of people: publishing one of them, "
            f"chosen at random, would keep such a promise. Nothing was opened or changed. Sensible "
            f"is {0.01 / public.size:.0e} or less."
        )
    if public.size is None and budget.delta > LARGEST_DELTA and not large_delta:
        raise InvalidInput(
            f"delta = {budget.delta:g} is above {LARGEST_DELTA:g}, and no size of the table is "
            f"declared to judge it by. Nothing was opened or changed.",
            remedy="Take a delta far below one over the number of people, declare size=..., or insist: "
            "large_delta=True.",
            option="large_delta",
        )


# The packages whose mechanisms release models, copies and tests, and no tables of numbers about people.
NO_TABLES = ("adaptive", "learning", "local", "synthetic", "tabular")
# The names of the limits beside the budgets.
LIMITS = ("max_per_day", "max_per_question", "min_people")
# The name of the steward among the analysts. It stands in ledgers, and never changes.
STEWARD = "steward"
# A larger delta is refused where no size of the table is declared. Of a thousand people, it would allow
# publishing one.
LARGEST_DELTA = 1e-3
# A larger epsilon or rho has to be insisted on. At an epsilon of 20 a bet at 50:50 can be won in all but one
# of 485 million cases. A convention.
LARGEST_EPSILON = 20
