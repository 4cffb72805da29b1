"""The charges in a ledger, and the running totals that they carry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import _registry
from ..accounting import Capped, Event, events
from ..accounting.caps import with_first
from ..accounting.filters import BudgetFilter
from ..accounting.lanes import Item, Spent
from .ledger import Entry, Ledger, Writer

# the kind of entry that raises what was spent of the dataset
SPENDING = "charge"
# a stored release given to another analyst: counts for them, not for the dataset
SERVED = "served"


def spending(ledger: Ledger | Writer, analyst: str | None = None) -> Iterator[tuple[Event, dict[str, Any]]]:
    """Yield all that was charged to the dataset, or to one analyst (what was served from the store included),
    with its entry."""
    for entry in ledger.entries():
        spends = entry.kind == SPENDING or (analyst is not None and entry.kind == SERVED)
        if spends and analyst in (None, entry.body["analyst"]):
            yield events.from_json(entry.body["event"]), entry.body


def charged(ledger: Ledger | Writer, analyst: str | None = None) -> list[Event]:
    """Return all that was charged to the dataset, or to one analyst, in order, whatever it was priced as."""
    return [event for event, _ in spending(ledger, analyst)]


def items(ledger: Ledger | Writer, analyst: str | None = None) -> list[Item]:
    """Return all that was charged to the dataset, or to one analyst, in order, as it was priced when it was
    charged."""
    return [priced(event, body, cap_name(analyst)) for event, body in spending(ledger, analyst)]


def cap_name(analyst: str | None, *, total: bool = False) -> str:
    """Return the field of a charge that says how it was capped: for the dataset or for the analyst, and for
    which account."""
    return ("cap" if analyst is None else "own cap") + (" of total" if total else "")


def priced(event: Event, body: dict[str, Any], name: str) -> Item:
    """Return the event as the charge says that it was priced."""
    cap = body.get(name)
    return event if cap is None else Capped(event=event, epsilon=cap["epsilon"], delta=cap["delta"])


def cap_of(item: Item, name: str) -> dict[str, Any]:
    """Return what a charge says about the cap of what it was priced as; nothing for an event as it is."""
    return {name: {"epsilon": item.epsilon, "delta": item.delta}} if isinstance(item, Capped) else {}


def split_by_first(
    rule: BudgetFilter, last: dict[str, Any] | None, analyst: str | None = None
) -> BudgetFilter:
    """Return the rule with the split of delta that the account's first charge fixed; later charges carry it
    along."""
    stated = None if last is None else last.get(first_name(analyst))
    return rule if stated is None else with_first(rule, _registry.from_json(stated))


def first_name(analyst: str | None) -> str:
    """Return the field of a charge that holds the own delta of the first charge of its account."""
    return "first" if analyst is None else "own first"


def last_charge(ledger: Ledger | Writer, analyst: str | None = None) -> Entry | None:
    """Return the newest entry that was charged to the dataset, or to one analyst."""
    kinds = (SPENDING,) if analyst is None else (SPENDING, SERVED)
    entries = [entry for kind in kinds if (entry := ledger.last(kind, analyst)) is not None]
    return max(entries, key=lambda entry: entry.seq, default=None)


def spent_by(
    ledger: Ledger | Writer, rule: BudgetFilter, analyst: str | None = None
) -> tuple[BudgetFilter, Spent, dict[str, Any] | None]:
    """Return the rule with its split of delta, what was spent under it by the dataset or an analyst, and
    their last charge."""
    last = last_charge(ledger, analyst)
    if last is None:
        return rule, rule.start(), None
    rule = split_by_first(rule, last.body, analyst)
    policy, total = ledger.last("policy"), "spent" if analyst is None else "own"
    # After a change of budgets the rule is another one: everything is counted again.
    if total not in last.body or (policy is not None and policy.seq > last.seq):
        return rule, rule.replay(items(ledger, analyst)), last.body
    spent: Spent = _registry.from_json(last.body[total])
    return rule, spent, last.body
