"""Keeps the accounts of one owner, which is the dataset or an analyst: a single account, or with a budget per
period one account for each period.

Under a budget per period, a release that reads some periods is charged to the account of each of these. A
release that reads the whole table is charged to all periods, past and to come: that is one more account, the
*undivided* one (its stored name is "whole"), which counts in every period. So a period has spent the sum of
its own account and the undivided one. Where all periods together have a limit (`Period(total=Budget(...))`),
a *total* account counts every release once. The running totals are entries of the ledger, signed like all
others.

Words used below: a *rule* is the filter of a budget; an *item* is an event as it is charged, either the event
itself or the event capped (`accounting.lanes.Capped`); a filter's *lanes* are the sums that it keeps, of the
pure epsilon and of the Rényi divergence at some orders; an item's *own delta* is its probability of failure,
counted beside the lanes; the *split of delta* is how a filter divides the budget's delta between the own
deltas and its Rényi lanes (docs/proofs/filters.md, "Capped prices"). The first charge of an account fixes the
split; but under a budget per period it is always the one a filter starts with.

Describes the charges in a ledger, and the running totals that each charge states.

Everywhere here, `analyst=None` means the dataset's account, and a name that analyst's own account. The *own
delta* of an event, the *split of delta* and *capped* items are explained in `accounts`. Names of fields are
stored in ledgers: they never change.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from .. import _registry, _round
from .._errors import BudgetExceeded
from .._public import Public
from ..accounting import Event, Group, NonPrivate, NoOp, caps, events
from ..accounting.caps import RequestedPrice, with_first
from ..accounting.filters import BudgetFilter, FilterPreview
from ..accounting.lanes import Capped, Item, Spent, event_of
from ..accounting.normal import normal
from .ledger import Entry, Ledger, Writer, canonical
from .policy import Budget, Policy, spending_table

# The kind of entry that charges the dataset, and the analyst who asked.
SPENDING = "charge"
# The kind of entry that gives a stored release to another analyst: it charges that analyst, not the dataset.
SERVED = "served"


def public_of(ledger: Ledger | Writer) -> Public:
    """Return the public facts the ledger was opened with."""
    public: Public = _registry.from_json(ledger.genesis.body["public"])
    return public


def policy_of(ledger: Ledger | Writer) -> Policy:
    """Return the budgets now in force."""
    last = ledger.last("policy") or ledger.genesis
    return _policy(canonical(last.body["policy"]))


# Cached, because with two hundred analysts a policy takes 4 ms to build, and every question needs it a few
# times. The cache's key is the whole text: the same text is the same policy.
@functools.lru_cache(maxsize=64)
def _policy(text: str) -> Policy:
    policy: Policy = _registry.from_json(json.loads(text))
    return policy


def spending(ledger: Ledger | Writer, analyst: str | None = None) -> Iterator[tuple[Event, dict[str, Any]]]:
    """Yield the event and the entry's body of every charge to the dataset, or to one analyst. The charges of
    an analyst include those for stored releases (`SERVED`)."""
    for entry in ledger.entries():
        spends = entry.kind == SPENDING or (analyst is not None and entry.kind == SERVED)
        if spends and analyst in (None, entry.body["analyst"]):
            yield events.from_json(entry.body["event"]), entry.body


def charged(ledger: Ledger | Writer, analyst: str | None = None) -> list[Event]:
    """Return the events charged to the dataset, or to one analyst, in order and without their caps."""
    return [event for event, _ in spending(ledger, analyst)]


def charge_items(ledger: Ledger | Writer, analyst: str | None = None) -> list[Item]:
    """Return the events charged to the dataset, or to one analyst, in order, each capped as its charge
    states."""
    return [priced(event, body, cap_field(analyst)) for event, body in spending(ledger, analyst)]


def cap_field(analyst: str | None, *, total: bool = False) -> str:
    """Return the name of the field that states the cap of a charge: on the account of the dataset or of the
    analyst; with `total`, on the account of all periods together."""
    return ("cap" if analyst is None else "own cap") + (" of total" if total else "")


def priced(event: Event, body: dict[str, Any], name: str) -> Item:
    """Return the event, capped if the charge's `body` states a cap in the field `name`."""
    cap = body.get(name)
    return event if cap is None else Capped(event=event, epsilon=cap["epsilon"], delta=cap["delta"])


def cap_of(item: Item, name: str) -> dict[str, Any]:
    """Return the field `name` that states the cap of an item; an empty dict for an item without a cap."""
    return {name: {"epsilon": item.epsilon, "delta": item.delta}} if isinstance(item, Capped) else {}


def split_by_first(
    rule: BudgetFilter, last: dict[str, Any] | None, analyst: str | None = None
) -> BudgetFilter:
    """Return the rule with the split of delta that the account's first charge has fixed, as `last`, the body
    of the account's newest charge, repeats it."""
    stated = None if last is None else last.get(first_delta_field(analyst))
    return rule if stated is None else with_first(rule, _registry.from_json(stated))


def first_delta_field(analyst: str | None) -> str:
    """Return the name of the field that repeats, in every charge, the own delta of the account's first
    charge."""
    return "first" if analyst is None else "own first"


def last_charge(ledger: Ledger | Writer, analyst: str | None = None) -> Entry | None:
    """Return the newest entry that was charged to the dataset, or to one analyst."""
    kinds = (SPENDING,) if analyst is None else (SPENDING, SERVED)
    entries = [entry for kind in kinds if (entry := ledger.last(kind, analyst)) is not None]
    return max(entries, key=lambda entry: entry.seq, default=None)


def spent_by(
    ledger: Ledger | Writer, rule: BudgetFilter, analyst: str | None = None
) -> tuple[BudgetFilter, Spent, dict[str, Any] | None]:
    """Return the rule with its split of delta, what was spent under it by the dataset or an analyst, and the
    body of the account's newest charge (None before the first)."""
    last = last_charge(ledger, analyst)
    if last is None:
        return rule, rule.start(), None
    rule = split_by_first(rule, last.body, analyst)
    # "spent" and "own" are the fields in which a charge states the new total of the dataset and the analyst.
    policy, total = ledger.last("policy"), "spent" if analyst is None else "own"
    # After a change of budgets the rule is another one, and the stated total was computed under the old rule.
    if total not in last.body or (policy is not None and policy.seq > last.seq):
        return rule, rule.replay(charge_items(ledger, analyst)), last.body
    spent: Spent = _registry.from_json(last.body[total])
    return rule, spent, last.body


KIND = "account"
# Kinds of accounts. These texts stand in ledgers: they never change.
PERIOD, UNDIVIDED, TOTAL = "period", "whole", "total"
# An account's kind, and the name of its period: (PERIOD, "2026-01"), (UNDIVIDED, "") or (TOTAL, "").
Name = tuple[str, str]
_UNDIVIDED, _TOTAL = (UNDIVIDED, ""), (TOTAL, "")


@dataclass(frozen=True, slots=True)
class Account:
    """Says what was spent on one account under its rule; `of` is the account's name, for people to read."""

    of: str
    rule: BudgetFilter
    spent: Spent

    @property
    def used(self) -> float:
        """How much of the budget was spent, in the budget's own unit (epsilon or rho)."""
        return self.rule.used(self.spent)

    @property
    def left(self) -> float:
        """How much of the budget is left, rounded down for people to read.

        A filter's limit is larger than its budget by a relative rounding margin (`BudgetFilter.slack`), so
        that releases whose prices add up to exactly the budget are admitted; without rounding down, that
        margin would be shown as budget that is left.
        """
        return legible(float(self.rule.total) - self.used, float(self.rule.total))

    @property
    def pure(self) -> float:
        """The sum of the pure epsilons, rounded up; infinite where the budget does not count it."""
        return _round.up(self.spent.sums[0]) if self.rule.lanes[0] == "pure" else math.inf

    @property
    def own_delta(self) -> float:
        """The sum of the own deltas, rounded up."""
        return min(1.0, _round.up(self.spent.delta))

    def text(self) -> str:
        """Return what is spent and left, of epsilon or rho and of delta, as a table.

        Spent of delta are the own deltas. The part of the budget's delta that its Rényi lanes have is not
        left for them: a note says how much that is.
        """
        delta, own_limit = self.rule._delta(), float(self.rule.delta_limit)
        spent = _round.UpperAmount(_round.up(self.spent.delta))
        kept = legible(delta - own_limit, delta)
        amounts = (
            (self.rule.unit, float(self.rule.total), self.used, self.left),
            ("delta", delta, spent, legible(own_limit - spent, own_limit)),
        )
        note = f"of delta, {float(kept):.6g} is kept for adding up many small prices" if kept else ""
        return spending_table(self.of, amounts, note)


@dataclass(frozen=True, slots=True)
class Accounts:
    """Reads and charges all accounts of one `owner` (an analyst's name, or None for the dataset)."""

    ledger: Ledger | Writer
    public: Public
    budget: Budget
    owner: str | None = None

    @property
    def rule(self) -> BudgetFilter:
        return self.budget.filter(self.public.neighbors)

    def all(self, periods: tuple[str, ...] = ()) -> list[Account]:
        """Return the accounts of one owner.

        Without a budget per period there is one. Otherwise there is one for each of `periods`; if none is
        given, one for every period that was charged by itself, and one that stands for every other period.
        The total account comes last, where there is one.
        """
        whose = "dataset" if self.owner is None else self.owner
        per = self.budget.per
        if per is None:
            rule, spent, _ = spent_by(self.ledger, self.rule, self.owner)
            return [Account(whose, rule, spent)]
        prefix = "" if self.owner is None else f"{whose}, "
        undivided = self._load_spent(_UNDIVIDED)
        accounts = [
            Account(f"{prefix}period {p}", self.rule, undivided.plus(self._load_spent((PERIOD, p))))
            for p in periods or self._charged_periods()
        ]
        if not periods:
            accounts.append(Account(f"{prefix}any other period", self.rule, undivided))
        if per.limit is not None:
            rule = per.limit.filter(self.public.neighbors)
            accounts.append(Account(f"{prefix}all periods together", rule, self._load_spent(_TOTAL)))
        return accounts

    def preview(
        self, event: Event, periods: tuple[str, ...] = (), requested_price: RequestedPrice | None = None
    ) -> FilterPreview:
        """Return what `event` would do to the account with the least budget left for it.

        `requested_price` is the (epsilon, delta) that the release was asked with, a hint for how the event is
        capped.
        """
        views = [
            account.rule.preview(account.spent, item)
            for account, item in self.priced(event, periods, requested_price)
        ]
        # `fits` is None where any number of such events would be admitted.
        return min(views, key=lambda view: (view.admitted, float("inf") if view.fits is None else view.fits))

    def admit(
        self,
        event: Event,
        periods: tuple[str, ...] = (),
        requested_price: RequestedPrice | None = None,
        *,
        elsewhere: bool = False,
    ) -> dict[str, Any]:
        """Return the fields of the charge's entry that hold its caps and, without a budget per period, the
        new total; the totals of a budget per period are entries of their own (`post`).

        Raises BudgetExceeded, and nothing is written, if one account does not admit the event. `elsewhere`
        says that the release was made outside of this ledger and is only entered here: even as the first
        charge it does not fix the split of delta, since it was made before the budget
        (docs/proofs/filters.md,
        "Capped prices").
        """
        priced = self.priced(event, periods, requested_price, elsewhere=elsewhere)
        after = [self._charge(account, item) for account, item in priced]
        facts = cap_of(priced[0][1], cap_field(self.owner))
        if self.budget.per is not None:
            # All periods are charged the same item; the total account, which comes last, is priced by itself.
            limited = self.budget.per.limit is not None
            return facts | (cap_of(priced[-1][1], cap_field(self.owner, total=True)) if limited else {})
        return facts | self._totals(after[0], elsewhere)

    def _charge(self, account: Account, item: Item) -> Spent:
        """Return what an account has spent after a charge; raises BudgetExceeded if its budget is too small
        for it."""
        # Decided by `owner` and not by `account.of`: an analyst may be called "dataset".
        name, label = account.of, f"{account.of}'s own budget"
        if self.owner is None and self.budget.per is None:
            name, label = "the dataset", "the dataset's budget"
        pure = isinstance(item, Event) and self.budget.delta == 0 and self.budget.rho is None
        needed = normal(item).delta if isinstance(item, Event) and pure else 0.0
        if needed > 0:
            raise BudgetExceeded(
                f"the budget of {name} has no delta, and this needs a delta of {needed:g}, as for example a "
                "GROUP BY without declared categories does. The steward can give one, Budget(epsilon=..., "
                "delta=...), or declare the categories."
            )
        infinite = pure and all(map(math.isinf, account.rule.price(item).sums))
        if infinite and not any(isinstance(part, NonPrivate) for part in normal(event_of(item)).parts):
            raise BudgetExceeded(
                f"the budget of {name} has no delta, and this needs one, as Gaussian noise and every price "
                "in rho do.",
                remedy="Ask for Laplace noise, by an epsilon alone; or the steward can give a delta, "
                "Budget(epsilon=..., delta=...).",
                option="delta",
            )
        try:
            return account.rule.charge(account.spent, item)
        except BudgetExceeded as refused:
            whose = name if self.budget.per is not None else label
            raise BudgetExceeded(f"{whose}: {refused.what}", remedy=refused.remedy) from None

    def _totals(self, after: Spent, elsewhere: bool) -> dict[str, Any]:
        """Return the fields of a charge that hold the new total (`after`), and once more the own delta of the
        account's first charge, if that has fixed the split of delta."""
        name = first_delta_field(self.owner)
        last = last_charge(self.ledger, self.owner)
        if last is None:
            first = None if elsewhere else _registry.to_json(after.delta)
        else:
            first = last.body.get(name)
        # One entry can hold both: the dataset's total in "spent", that of the analyst in "own".
        total = {"spent" if self.owner is None else "own": _registry.to_json(after)}
        return total if first is None else total | {name: first}

    def post(self, writer: Writer, event: Event, charge: Entry, periods: tuple[str, ...] = ()) -> None:
        """Write the new totals of a budget per period, in the transaction in which `admit` has admitted the
        event and `charge` was written. A budget without periods has no such totals."""
        for name, price in self._prices(event, charge.body, periods).items():
            self._write(writer, name, self._load_spent(name).plus(price), charge.seq)

    def recount(self, writer: Writer, policy: Entry) -> None:
        """Compute all totals anew from the list of charges, after a change of budgets."""
        for name, spent in self._replay_totals().items():
            self._write(writer, name, spent, policy.seq)

    def check(self) -> None:
        """Raise BudgetExceeded if more was spent than this budget allows."""
        if self.budget.per is None:
            # `BudgetFilter.replay`, which this calls, raises.
            self._replay()
            return
        replayed = self._replay_totals()
        # An event of price 0: a filter admits it if what was spent before is within the budget.
        free = NoOp(neighbors=self.public.neighbors)
        undivided = replayed.get(_UNDIVIDED, self.rule.start())
        # The period without a name stands for all that were not charged by themselves.
        for (kind, name), spent in {(PERIOD, ""): self.rule.start(), **replayed}.items():
            if kind == TOTAL:
                self._rule(_TOTAL).charge(spent, free)
            elif kind == PERIOD:
                self._charge(
                    Account(
                        f"period {name}" if name else "any other period", self.rule, undivided.plus(spent)
                    ),
                    free,
                )

    def problems(self) -> list[str]:
        """Return, in words, which running totals are not the sum of the charges, and whether the charges
        exceed the budget."""
        whose = "" if self.owner is None else f" of {self.owner}"
        try:
            self.check()
        except BudgetExceeded:
            return [f"the charges{whose} add up to more than the budget"]
        if self.budget.per is None:
            rule, replayed_total = self._replay()
            stated_rule, stated, _ = spent_by(self.ledger, self.rule, self.owner)
            same = rule == stated_rule and replayed_total.agrees_with(stated)
            return [] if same else [f"the running total{whose} is not what the charges add up to"]
        replayed = self._replay_totals()
        names = {*replayed, *((PERIOD, name) for name in self._charged_periods()), _UNDIVIDED}
        wrong = sorted(
            n for n in names if not replayed.get(n, self._rule(n).start()).agrees_with(self._load_spent(n))
        )
        return [
            f"the running total{whose} of {' '.join(n).strip()} is not what the charges add up to"
            for n in wrong
        ]

    def _replay(self) -> tuple[BudgetFilter, Spent]:
        """Return the rule, and what was spent under it, computed from the list of charges alone; the first
        charge fixes the rule's split of delta."""
        items = charge_items(self.ledger, self.owner)
        rule = (
            caps.with_first(self.rule, self.rule.price(items[0]).delta)
            if items and self._splits
            else self.rule
        )
        return rule, rule.replay(items)

    @property
    def _splits(self) -> bool:
        """Whether the first charge has fixed the split of delta. It has not if it was of a release that was
        made elsewhere."""
        last = last_charge(self.ledger, self.owner)
        return last is not None and first_delta_field(self.owner) in last.body

    def priced(
        self,
        event: Event,
        periods: tuple[str, ...] = (),
        requested_price: RequestedPrice | None = None,
        *,
        elsewhere: bool = False,
    ) -> list[tuple[Account, Item]]:
        """Return every account that must admit an event, each with the item that it is charged.

        The total account, where there is one, comes last. The order matters: `admit` reads the cap of all
        periods from the first pair, and that of the total from the last.
        """
        accounts = self.all(periods)
        per = self.budget.per
        if per is None:
            fresh = not elsewhere and last_charge(self.ledger, self.owner) is None
            return [_choice(accounts[0], event, requested_price, fresh=fresh)]
        of_periods, total = (accounts, []) if per.limit is None else (accounts[:-1], accounts[-1:])
        within = self._event_within_period(event, periods)
        # All periods are charged one item; its cap is chosen for the period that has spent most. The
        # requested price is one of `event` itself, and no hint for a group of two.
        fullest = max(of_periods, key=lambda account: account.used)
        item = caps.choose(fullest.rule, fullest.spent, within, requested_price if within is event else None)
        return [(account, item) for account in of_periods] + [
            _choice(account, event, requested_price) for account in total
        ]

    def _event_within_period(self, event: Event, periods: tuple[str, ...]) -> Event:
        """Return the event that prices a release for a change of one unit's rows *within one period*.

        Where the unit is a row, or the release reads one period only, such a change adds or removes one unit
        of the rows that are read: the price is that of the event. Where a release reads several periods (or
        the whole table, with no `periods`) and the unit is a person, only a part of the person's rows change:
        as if the person left and came back with other rows. That is two steps of the neighbor relation (add
        or remove: `Period.check` refuses any other), so that it is priced as a group of two.
        """
        one_step = self.public.unit.column is None or len(periods) == 1
        return event if one_step else Group(event=event, size=2, neighbors=event.neighbors)

    def _prices(self, event: Event, body: dict[str, Any], periods: tuple[str, ...]) -> dict[Name, Spent]:
        """Return how much an event adds to which account, priced as `body`, the entry of its charge, says."""
        per = self.budget.per
        if per is None:
            return {}
        price = self.rule.price(self._capped_price(self._event_within_period(event, periods), body))
        prices: dict[Name, Spent] = {(PERIOD, p): price for p in periods} or {_UNDIVIDED: price}
        if per.limit is not None:
            total = priced(event, body, cap_field(self.owner, total=True))
            prices[_TOTAL] = self._rule(_TOTAL).price(total)
        return prices

    def _capped_price(self, within: Event, body: dict[str, Any]) -> Item:
        """Return the item that was charged: the event `within` a period (`_event_within_period`) with the cap
        that `body` states, or without a cap where that cap is not true of it any more.

        That the cap bounds the price was checked for the event that was priced at the time of the charge. If
        the steward has since changed how the table is cut into periods, a release of one period counts as one
        of the whole table, and its event is a group of two, for which the cap may be too small.
        """
        item = priced(within, body, cap_field(self.owner))
        return within if isinstance(item, Capped) and not item.holds else item

    def _rule(self, name: Name) -> BudgetFilter:
        """Return the filter of one account: that of the limit on all periods for the total, else that of the
        budget."""
        per = self.budget.per
        limit = None if per is None or name != _TOTAL else per.limit
        return self.rule if limit is None else limit.filter(self.public.neighbors)

    def _replay_totals(self) -> dict[Name, Spent]:
        """Return what each account of a budget per period has spent, from the charges of the ledger alone."""
        totals: dict[Name, Spent] = {}
        if self.budget.per is None:
            return totals
        for event, body in spending(self.ledger, self.owner):
            for name, price in self._prices(event, body, periods_read(body, self.budget)).items():
                totals[name] = totals.get(name, self._rule(name).start()).plus(price)
        return totals

    def _load_spent(self, name: Name) -> Spent:
        """Return what one account of a budget per period has spent, as the newest entry about it says."""
        last, policy = self.ledger.last(KIND, self._topic(name)), self.ledger.last("policy")
        # A change of budgets is followed by new totals of all accounts that are not zero (`recount`): an
        # account without a newer entry is zero.
        if last is None or (policy is not None and policy.seq > last.seq):
            return self._rule(name).start()
        spent: Spent = _registry.from_json(last.body["spent"])
        return spent

    def _charged_periods(self) -> list[str]:
        """Return the names of the periods that were charged by themselves, not only through the whole
        table."""
        policy = self.ledger.last("policy")
        topics = self.ledger.topics(KIND, after=0 if policy is None else policy.seq)
        # A topic is JSON, ["owner","period","2026-01"]: without the last two characters, a quote and a
        # bracket, that of an empty name is the start of every period's topic.
        start = self._topic((PERIOD, ""))[:-2]
        return sorted(json.loads(topic)[2] for topic in topics if topic.startswith(start))

    def _topic(self, name: Name) -> str:
        """Return the topic of an account's entries, which is stored and never changes."""
        return canonical([self.owner, *name])

    def _write(self, writer: Writer, name: Name, spent: Spent, charge: int) -> None:
        """Append the new total of an account; `charge` is the number of the charge, or of the change of
        budgets, that it follows from."""
        body = {"charge": charge, "of": self.owner, "account": list(name), "spent": _registry.to_json(spent)}
        writer.append(KIND, body, topic=self._topic(name))


def periods_field(budget: Budget, periods: tuple[str, ...]) -> dict[str, Any]:
    """Return the field of a charge that says which periods it reads; an empty dict for the whole table."""
    return (
        {} if budget.per is None or not periods else {"periods": {"by": budget.per.cut, "in": list(periods)}}
    )


def periods_read(body: dict[str, Any], budget: Budget) -> tuple[str, ...]:
    """Return the periods that a charge read, or () for the whole table; also () if the budget cuts the table
    into periods in another way by now."""
    periods = body.get("periods")
    same = periods is not None and budget.per is not None and periods["by"] == budget.per.cut
    return tuple(periods["in"]) if periods is not None and same else ()


def _choice(
    account: Account, event: Event, requested_price: RequestedPrice | None, *, fresh: bool = False
) -> tuple[Account, Item]:
    """Return the account, and the event as it is charged there. For the first charge of an account (`fresh`),
    the account returned has the split of delta that this charge fixes."""
    if not fresh:
        return account, caps.choose(account.rule, account.spent, event, requested_price)
    rule, item = caps.first(account.rule, event, requested_price)
    return Account(account.of, rule, rule.start()), item


def legible(left: float, total: float) -> float:
    """Return `left`, rounded down to ten significant digits; 0 where it is below a billionth of the total.

    Ten digits and the billionth are chosen for reading: both are coarser than a filter's rounding margin.

    >>> legible(1.500000000001819, 2.0), legible(9.093e-13, 1.0), legible(0.3999999999999, 1.0)
    (1.5, 0.0, 0.3999999999)
    """
    if not left > total * 1e-9:
        return 0.0
    if math.isinf(left):
        return left
    exact = Decimal(left)
    cut = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 9), rounding=ROUND_FLOOR)
    return _round.LowerAmount(cut)
