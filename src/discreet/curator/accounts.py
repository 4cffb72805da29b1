"""The accounts of one owner, the dataset or an analyst: one, or with a budget per period one for each period.

Under a budget per period, a release that reads some periods is charged to each of these. One that reads the
whole table is charged to all periods, past and to come: that is one more account, *whole*, which counts in
every period. So a period has spent what its own account and *whole* add up to. The running totals are entries
of the ledger, signed like all others.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from .. import _registry, _round
from .._errors import BudgetExceeded
from .._public import Public
from ..accounting import Event, Group, NoOp, caps
from ..accounting.caps import RequestedPrice
from ..accounting.filters import BudgetFilter, FilterPreview
from ..accounting.lanes import Capped, Item, Spent
from ..accounting.normal import normal
from . import charges
from .ledger import Entry, Ledger, Writer, canonical
from .policy import Budget

KIND = "account"
PERIOD, UNDIVIDED, TOTAL = "period", "whole", "total"
# (PERIOD, its name), (UNDIVIDED, "") or (TOTAL, "")
Name = tuple[str, str]
_UNDIVIDED, _TOTAL = (UNDIVIDED, ""), (TOTAL, "")


@dataclass(frozen=True, slots=True)
class Account:
    """What was spent on one account under its rule; `of` says whose it is, for people to read."""

    of: str
    rule: BudgetFilter
    spent: Spent

    @property
    def used(self) -> float:
        return self.rule.used(self.spent)

    @property
    def left(self) -> float:
        """What is left, rounded down for people to read: a filter's limit lies a hair above its budget, so
        that what was spent always fits."""
        return _legible(float(self.rule.total) - self.used, float(self.rule.total))


@dataclass(frozen=True, slots=True)
class Accounts:
    """All accounts of one owner (None: the dataset) under their budget."""

    ledger: Ledger | Writer
    public: Public
    budget: Budget
    owner: str | None = None

    @property
    def rule(self) -> BudgetFilter:
        return self.budget.filter(self.public.neighbors)

    def all(self, periods: tuple[str, ...] = ()) -> list[Account]:
        """Return one account for each of `periods`, or for every period that was ever charged and for those
        to come; then the total."""
        whose = "dataset" if self.owner is None else self.owner
        per = self.budget.per
        if per is None:
            rule, spent, _ = charges.spent_by(self.ledger, self.rule, self.owner)
            return [Account(whose, rule, spent)]
        prefix = "" if self.owner is None else f"{whose}, "
        undivided = self._load_state(_UNDIVIDED)
        accounts = [
            Account(f"{prefix}period {p}", self.rule, undivided.plus(self._load_state((PERIOD, p))))
            for p in periods or self._charged_periods()
        ]
        if not periods:
            accounts.append(Account(f"{prefix}any other period", self.rule, undivided))
        if per.limit is not None:
            rule = per.limit.filter(self.public.neighbors)
            accounts.append(Account(f"{prefix}all periods together", rule, self._load_state(_TOTAL)))
        return accounts

    def preview(
        self, event: Event, periods: tuple[str, ...] = (), requested_price: RequestedPrice | None = None
    ) -> FilterPreview:
        """Return what `event` would do to the account on which the least of it fits."""
        views = [
            account.rule.preview(account.spent, item)
            for account, item in self.priced(event, periods, requested_price)
        ]
        return min(views, key=lambda view: (view.admitted, float("inf") if view.fits is None else view.fits))

    def admit(
        self,
        event: Event,
        periods: tuple[str, ...] = (),
        requested_price: RequestedPrice | None = None,
        *,
        elsewhere: bool = False,
    ) -> dict[str, Any]:
        """Return what the entry of the charge says of prices and totals; refused, and nothing changed, if one
        account does not admit it.

        What was released `elsewhere` may come first, but then it came before the budget: it does not fix the
        split of delta.
        """
        priced = self.priced(event, periods, requested_price, elsewhere=elsewhere)
        after = [self._charge(account, item) for account, item in priced]
        facts = charges.cap_of(priced[0][1], charges.cap_name(self.owner))
        if self.budget.per is not None:
            # All periods are charged the same; the total, which comes last, is priced by itself.
            limited = self.budget.per.limit is not None
            return facts | (
                charges.cap_of(priced[-1][1], charges.cap_name(self.owner, total=True)) if limited else {}
            )
        return facts | self._totals(after[0], elsewhere)

    def _charge(self, account: Account, item: Item) -> Spent:
        """Return what an account has spent after a charge; refused if the budget does not hold it."""
        # An analyst may be called "dataset": what an account is called does not tell whose it is.
        name, own = account.of, f"{account.of}'s own budget"
        if self.owner is None and self.budget.per is None:
            name, own = "the dataset", "the dataset's budget"
        pure = self.budget.delta == 0 and self.budget.rho is None
        needed = normal(item).delta if isinstance(item, Event) and pure else 0.0
        if needed > 0:
            raise BudgetExceeded(
                f"{name} has no delta, and this needs {needed:g} of it, as groups do that are not declared. "
                f"Nothing was charged or released. The steward can give one, Budget(epsilon=..., delta=...), "
                f"or declare the categories."
            )
        try:
            return account.rule.charge(account.spent, item)
        except BudgetExceeded as refused:
            raise BudgetExceeded(f"{name if self.budget.per is not None else own}: {refused}") from None

    def _totals(self, after: Spent, elsewhere: bool) -> dict[str, Any]:
        """Return what a charge carries along: the new total, and the own delta of the first charge, which has
        fixed the split of delta."""
        name = charges.first_name(self.owner)
        last = charges.last_charge(self.ledger, self.owner)
        if last is None:
            first = None if elsewhere else _registry.to_json(after.delta)
        else:
            first = last.body.get(name)
        total = {"spent" if self.owner is None else "own": _registry.to_json(after)}
        return total if first is None else total | {name: first}

    def post(self, writer: Writer, event: Event, charge: Entry, periods: tuple[str, ...] = ()) -> None:
        """Write the new totals of a budget per period, after `admit`."""
        for name, price in self._prices(event, charge.body, periods).items():
            self._write(writer, name, self._load_state(name).plus(price), charge.seq)

    def recount(self, writer: Writer, policy: Entry) -> None:
        """Compute all totals anew from the list of charges, after a change of budgets."""
        for name, spent in self._replay_totals().items():
            self._write(writer, name, spent, policy.seq)

    def check(self) -> None:
        """Refuse a budget that does not hold what was spent."""
        if self.budget.per is None:
            self._replay()
            return
        counted = self._replay_totals()
        nothing = NoOp(neighbors=self.public.neighbors)
        undivided = counted.get(_UNDIVIDED, self.rule.start())
        for (kind, name), spent in {(PERIOD, ""): self.rule.start(), **counted}.items():
            if kind == TOTAL:
                self._rule(_TOTAL).charge(spent, nothing)
            elif kind == PERIOD:
                self._charge(
                    Account(
                        f"period {name}" if name else "any other period", self.rule, undivided.plus(spent)
                    ),
                    nothing,
                )

    def problems(self) -> list[str]:
        """Return, in words, where the totals are not what the charges add up to, within the budget."""
        whose = "" if self.owner is None else f" of {self.owner}"
        try:
            self.check()
        except BudgetExceeded:
            return [f"the charges{whose} add up to more than the budget"]
        if self.budget.per is None:
            rule, counted = self._replay()
            stated_rule, stated, _ = charges.spent_by(self.ledger, self.rule, self.owner)
            same = rule == stated_rule and counted.agrees_with(stated)
            return [] if same else [f"the running total{whose} is not what the charges add up to"]
        replayed = self._replay_totals()
        names = {*replayed, *((PERIOD, name) for name in self._charged_periods()), _UNDIVIDED}
        wrong = sorted(
            n for n in names if not replayed.get(n, self._rule(n).start()).agrees_with(self._load_state(n))
        )
        return [
            f"the running total{whose} of {' '.join(n).strip()} is not what the charges add up to"
            for n in wrong
        ]

    def _replay(self) -> tuple[BudgetFilter, Spent]:
        """Return the rule and what was spent, from the list of charges alone: the first fixes the split of
        delta."""
        items = charges.items(self.ledger, self.owner)
        rule = (
            caps.with_first(self.rule, self.rule.price(items[0]).delta)
            if items and self._splits
            else self.rule
        )
        return rule, rule.replay(items)

    @property
    def _splits(self) -> bool:
        """Whether a first charge has fixed the split of delta: not so in ledgers that were begun before there
        was a choice."""
        last = charges.last_charge(self.ledger, self.owner)
        return last is not None and charges.first_name(self.owner) in last.body

    def priced(
        self,
        event: Event,
        periods: tuple[str, ...] = (),
        requested_price: RequestedPrice | None = None,
        *,
        elsewhere: bool = False,
    ) -> list[tuple[Account, Item]]:
        """Return every account that must admit an event, with what it is charged there."""
        accounts = self.all(periods)
        per = self.budget.per
        if per is None:
            fresh = not elsewhere and charges.last_charge(self.ledger, self.owner) is None
            return [_choice(accounts[0], event, requested_price, fresh=fresh)]
        cut, total = (accounts, []) if per.limit is None else (accounts[:-1], accounts[-1:])
        seen = self._seen_by_one(event, periods)
        fullest = max(cut, key=lambda account: account.used)
        item = caps.choose(fullest.rule, fullest.spent, seen, requested_price if seen is event else None)
        return [(account, item) for account in cut] + [
            _choice(account, event, requested_price) for account in total
        ]

    def _seen_by_one(self, event: Event, periods: tuple[str, ...]) -> Event:
        """Return what an event costs someone whose rows *within one period* change.

        A row is in one period, and so is all of a unit that a release of one period reads: such a change adds
        or removes a unit there. But where a release reads several periods, part of a person's rows change:
        the person leaves, and comes back with other rows. That is two steps of the relation, a group of two.
        """
        alone = self.public.unit.column is None or len(periods) == 1
        return event if alone else Group(event=event, size=2, neighbors=event.neighbors)

    def _prices(self, event: Event, body: dict[str, Any], periods: tuple[str, ...]) -> dict[Name, Spent]:
        """Return what an event adds to which account, priced as the entry of its charge says."""
        per = self.budget.per
        if per is None:
            return {}
        price = self.rule.price(self._capped_price(self._seen_by_one(event, periods), body))
        prices: dict[Name, Spent] = {(PERIOD, p): price for p in periods} or {_UNDIVIDED: price}
        if per.limit is not None:
            total = charges.priced(event, body, charges.cap_name(self.owner, total=True))
            prices[_TOTAL] = self._rule(_TOTAL).price(total)
        return prices

    def _capped_price(self, seen: Event, body: dict[str, Any]) -> Item:
        """Return the price as the charge was capped; as it is where the cap does not hold any more.

        A cap is certified for what one unit could see when it was charged. If the table is cut in another way
        since then, a release of one period counts as one of the whole table, which a group of two sees.
        """
        item = charges.priced(seen, body, charges.cap_name(self.owner))
        return seen if isinstance(item, Capped) and not item.holds else item

    def _rule(self, name: Name) -> BudgetFilter:
        per = self.budget.per
        limit = None if per is None or name != _TOTAL else per.limit
        return self.rule if limit is None else limit.filter(self.public.neighbors)

    def _replay_totals(self) -> dict[Name, Spent]:
        """Return what each period was charged, from the charges of the ledger."""
        totals: dict[Name, Spent] = {}
        if self.budget.per is None:
            return totals
        for event, body in charges.spending(self.ledger, self.owner):
            for name, price in self._prices(event, body, periods_read(body, self.budget)).items():
                totals[name] = totals.get(name, self._rule(name).start()).plus(price)
        return totals

    def _load_state(self, name: Name) -> Spent:
        """Return what was charged so far, as the newest entry about it says."""
        last, policy = self.ledger.last(KIND, self._topic(name)), self.ledger.last("policy")
        # a change of budgets writes all that is not zero
        if last is None or (policy is not None and policy.seq > last.seq):
            return self._rule(name).start()
        spent: Spent = _registry.from_json(last.body["spent"])
        return spent

    def _charged_periods(self) -> list[str]:
        """Return the periods that were charged by themselves."""
        policy = self.ledger.last("policy")
        topics = self.ledger.topics(KIND, after=0 if policy is None else policy.seq)
        # without the closing quote and bracket
        start = self._topic((PERIOD, ""))[:-2]
        return sorted(json.loads(topic)[2] for topic in topics if topic.startswith(start))

    def _topic(self, name: Name) -> str:
        return canonical([self.owner, *name])

    def _write(self, writer: Writer, name: Name, spent: Spent, charge: int) -> None:
        body = {"charge": charge, "of": self.owner, "account": list(name), "spent": _registry.to_json(spent)}
        writer.append(KIND, body, topic=self._topic(name))


def periods_field(budget: Budget, periods: tuple[str, ...]) -> dict[str, Any]:
    """Return the field in which a charge says which periods it read; nothing for the complete table."""
    return (
        {} if budget.per is None or not periods else {"periods": {"by": budget.per.cut, "in": list(periods)}}
    )


def periods_read(body: dict[str, Any], budget: Budget) -> tuple[str, ...]:
    """Return the periods that a charge read, if the budget still cuts the table in the same way; none is the
    whole table."""
    periods = body.get("periods")
    same = periods is not None and budget.per is not None and periods["by"] == budget.per.cut
    return tuple(periods["in"]) if periods is not None and same else ()


def _choice(
    account: Account, event: Event, requested_price: RequestedPrice | None, *, fresh: bool = False
) -> tuple[Account, Item]:
    """Return the account and the price that an event has there; the first charge also fixes how the account
    splits its delta."""
    if not fresh:
        return account, caps.choose(account.rule, account.spent, event, requested_price)
    rule, item = caps.first(account.rule, event, requested_price)
    return Account(account.of, rule, rule.start()), item


def _legible(left: float, total: float) -> float:
    """Round down to ten significant digits, never to more than is left; what is below a thousand millionth of
    the total is nothing.

    >>> _legible(1.500000000001819, 2.0), _legible(9.093e-13, 1.0), _legible(0.3999999999999, 1.0)
    (1.5, 0.0, 0.3999999999)
    """
    if not left > total * 1e-9:
        return 0.0
    if math.isinf(left):
        return left
    exact = Decimal(left)
    cut = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 9), rounding=ROUND_FLOOR)
    return _round.LowerAmount(cut)
