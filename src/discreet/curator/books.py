"""Reading the books: what was spent, under which rule, and whether it all adds up. Needs the ledger only, no data and no key."""

from __future__ import annotations

from .. import _registry
from .._errors import BudgetExceeded
from .._public import Public
from ..accounting import Event, events
from ..accounting.filters import BudgetFilter, Spent
from .ledger import Anchor, Ledger, Writer
from .policy import Budget, Policy

SPENDING = "charge"  # the kind of entry that raises what was spent of the dataset
SERVED = "served"  # a stored release given to another analyst: counts for them, not for the dataset


def public_of(ledger: Ledger) -> Public:
    """The public facts the ledger was opened with."""
    public: Public = _registry.from_json(ledger.genesis.body["public"])
    return public


def policy_of(ledger: Ledger) -> Policy:
    """The budgets now in force."""
    last = ledger.last("policy") or ledger.genesis
    policy: Policy = _registry.from_json(last.body["policy"])
    return policy


def rule_of(ledger: Ledger, budget: Budget | None = None) -> BudgetFilter:
    """The filter of a budget (the dataset's, if none is given) under the ledger's relation."""
    return (budget or policy_of(ledger).budget).filter(public_of(ledger).neighbors)


def charged(ledger: Ledger | Writer, analyst: str | None = None) -> list[Event]:
    """All that was charged to the dataset, or to one analyst (what was served from the store included), in order."""
    found = []
    for entry in ledger.entries():
        spends = entry.kind == SPENDING or (analyst is not None and entry.kind == SERVED)
        if spends and analyst in (None, entry.body["analyst"]):
            found.append(events.from_json(entry.body["event"]))
    return found


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


def verify(ledger: Ledger, anchor: Anchor | None = None, *, key: bytes | None = None) -> list[str]:
    """What is wrong with a ledger, in words: its chain, and the totals that its charges claim."""
    problems = ledger.verify(anchor, key=key)
    if problems:
        return problems
    policy = policy_of(ledger)
    owners = [(None, policy.budget), *((name, own) for name, own in policy.analysts if own is not None)]
    for analyst, budget in owners:
        problems += _totals(ledger, analyst, budget)
    return problems


def _totals(ledger: Ledger, analyst: str | None, budget: Budget) -> list[str]:
    whose, rule = "" if analyst is None else f" of {analyst}", rule_of(ledger, budget)
    try:
        if rule.replay(charged(ledger, analyst)) != spent_by(ledger, rule, analyst):
            return [f"the running total{whose} is not what the charges add up to"]
    except BudgetExceeded:
        return [f"the charges{whose} add up to more than the budget"]
    return []
