"""Says who may spend how much: a budget for the dataset, and budgets of single analysts where the steward
sets them."""

from __future__ import annotations

import functools
import html
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated, Any

from .. import _require
from .._errors import BudgetExceeded, DescriptionError, InvalidInput, NotPrivate, Unsupported
from .._public import ADD_REMOVE, Neighbors, Public
from .._registry import OPTIONAL, described, tag_of
from .._require import POSITIVE, PROBABILITY, Real, at_least
from .._text import visible
from ..accounting.filters import BudgetFilter, Filter, ZCDPFilter

if TYPE_CHECKING:
    from .periods import Period
else:
    # Limits of fields are read off annotations at run time. Who has no periods loads none.
    Period = Any


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
        if self.per is not None:
            from .periods import Period

            if not isinstance(self.per, Period):
                raise _require.fail(
                    "per", self.per, "a Period, such as Period(column='admitted', every='month')"
                )
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
