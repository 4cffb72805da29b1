"""The charges in a ledger, and the running totals that they carry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import _registry
from ..accounting import Event, events
from ..accounting.filters import BudgetFilter, Spent
from .ledger import Ledger, Writer

SPENDING = "charge"  # the kind of entry that raises what was spent of the dataset
SERVED = "served"  # a stored release given to another analyst: counts for them, not for the dataset


def spending(ledger: Ledger | Writer, analyst: str | None = None) -> Iterator[tuple[Event, dict[str, Any]]]:
    """All that was charged to the dataset, or to one analyst (what was served from the store included), with its entry."""
    for entry in ledger.entries():
        spends = entry.kind == SPENDING or (analyst is not None and entry.kind == SERVED)
        if spends and analyst in (None, entry.body["analyst"]):
            yield events.from_json(entry.body["event"]), entry.body


def charged(ledger: Ledger | Writer, analyst: str | None = None) -> list[Event]:
    """All that was charged to the dataset, or to one analyst, in order."""
    return [event for event, _ in spending(ledger, analyst)]


def spent_by(ledger: Ledger | Writer, rule: BudgetFilter, analyst: str | None = None) -> Spent:
    """What was spent under `rule` by the dataset or an analyst: the total that their last entry carries."""
    kinds, total = ((SPENDING,), "spent") if analyst is None else ((SPENDING, SERVED), "own")
    found = [entry for kind in kinds if (entry := ledger.last(kind, analyst)) is not None]
    policy = ledger.last("policy")
    if not found:
        return rule.start()
    last = max(found, key=lambda entry: entry.seq)
    if total not in last.body or (policy is not None and policy.seq > last.seq):  # the rule has changed since
        return rule.replay(charged(ledger, analyst))
    spent: Spent = _registry.from_json(last.body[total])
    return spent
