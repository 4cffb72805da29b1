"""Describes the charges in a ledger, and the running totals that each charge states.

Everywhere here, `analyst=None` means the dataset's account, and a name that analyst's own account. The *own
delta* of an event, the *split of delta* and *capped* items are explained in `accounts`. Names of fields are
stored in ledgers: they never change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import _registry
from ..accounting import Event, events
from ..accounting.caps import with_first
from ..accounting.filters import BudgetFilter
from ..accounting.lanes import Capped, Item, Spent
from .ledger import Entry, Ledger, Writer

# The kind of entry that charges the dataset, and the analyst who asked.
SPENDING = "charge"
# The kind of entry that gives a stored release to another analyst: it charges that analyst, not the dataset.
SERVED = "served"


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


def items(ledger: Ledger | Writer, analyst: str | None = None) -> list[Item]:
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
        return rule, rule.replay(items(ledger, analyst)), last.body
    spent: Spent = _registry.from_json(last.body[total])
    return rule, spent, last.body
