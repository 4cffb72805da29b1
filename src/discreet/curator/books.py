"""Reading the books: what was spent, under which rule, and whether it all adds up.

Needs the ledger only, no data and no key.
"""

from __future__ import annotations

import functools
import json

from .. import _registry
from .._public import Public
from ..accounting.filters import BudgetFilter
from ..accounting.lanes import Spent
from ..accounting.odometers import Odometer, Reading
from . import segments, tickets, vault
from .accounts import Account, Accounts
from .charges import (
    SERVED,
    SPENDING,
    cap_name,
    charged,
    last_charge,
    priced,
    spending,
    spent_by,
    split_by_first,
)
from .ledger import Anchor, Ledger, Writer, canonical
from .live import FED
from .policy import Budget, Policy

__all__ = [
    "SERVED",
    "SPENDING",
    "accounts",
    "charged",
    "odometer",
    "owners",
    "policy_of",
    "public_of",
    "rule_of",
    "spending",
    "spent_by",
    "spent_for",
    "verify",
]


def public_of(ledger: Ledger | Writer) -> Public:
    """Return the public facts the ledger was opened with."""
    public: Public = _registry.from_json(ledger.genesis.body["public"])
    return public


def policy_of(ledger: Ledger | Writer) -> Policy:
    """Return the budgets now in force."""
    last = ledger.last("policy") or ledger.genesis
    return _policy(canonical(last.body["policy"]))


# With two hundred analysts a policy takes 4 ms to build, and every question needs it a few times. By its
# whole text: the same text is the same policy.
@functools.lru_cache(maxsize=64)
def _policy(text: str) -> Policy:
    policy: Policy = _registry.from_json(json.loads(text))
    return policy


def rule_of(ledger: Ledger, budget: Budget | None = None) -> BudgetFilter:
    """Return the filter of a budget (the dataset's, if none is given) under the ledger's relation."""
    rule = (budget or policy_of(ledger).budget).filter(public_of(ledger).neighbors)
    last = None if budget is not None else last_charge(ledger)
    return rule if last is None else split_by_first(rule, last.body)


# How often a ledger that grows meanwhile is looked at before its problems are reported: a look takes
# milliseconds, so that a writer would have to be in the middle of a charge each time.
_LOOKS = 10


def verify(ledger: Ledger, anchor: Anchor | None = None, *, key: bytes | None = None) -> list[str]:
    """Return what is wrong with a ledger, in words: its schema and chain, what entries point to, the totals
    of charges, the steps of runs.

    Never raises for what a file holds: whoever signs with a key of their own can write any body. Parts are
    read one after the other: what seems wrong while somebody writes is looked at again.
    """
    problems: list[str] = []
    for _ in range(_LOOKS):
        head = _head(ledger)
        problems = _problems(ledger, anchor, key)
        if not problems or _head(ledger) == head:
            break
    return problems


def _head(ledger: Ledger) -> Anchor | None:
    """Return the newest entry; None where the file does not tell."""
    try:
        return ledger.anchor
    except Exception:
        return None


def _problems(ledger: Ledger, anchor: Anchor | None, key: bytes | None) -> list[str]:
    """Return what is wrong, as far as one look tells."""
    problems = ledger.verify(anchor, key=key)
    if problems:
        return problems
    for part in (_references, _totals, segments.problems, _others):
        try:
            problems += part(ledger)
        except Exception as error:
            # Whatever a strange body does to its reader.
            problems.append(
                f"the books cannot be read ({type(error).__name__}): an entry is not what its kind holds"
            )
    return problems


def _totals(ledger: Ledger) -> list[str]:
    return [line for owned in owners(ledger) for line in owned.problems()]


def _others(ledger: Ledger) -> list[str]:
    return tickets.problems(ledger.entries()) + vault.problems(ledger.entries())


# what an entry of a kind points to in its body, and the kinds that may stand there
_POINTS = {
    "release": ("charge", (SPENDING,)),
    "failed": ("charge", (SPENDING,)),
    tickets.STATE: ("charge", (SPENDING,)),
    tickets.TICKET: ("charge", (SPENDING,)),
    FED: ("charge", (SPENDING,)),
    vault.BLOB: ("charge", (SPENDING,)),
    segments.SEGMENT: ("charge", (SPENDING,)),
    segments.SAVED: ("charge", (SPENDING,)),
    "account": ("charge", (SPENDING, SERVED, "policy")),
    SERVED: ("release", ("release",)),
}


def _references(ledger: Ledger) -> list[str]:
    """Return what is wrong with references: what is let out must point to a charge before it, at most once;
    the states of a live mechanism follow each other."""
    problems: list[str] = []
    kinds: dict[int, str] = {}
    released: set[int] = set()
    versions: dict[int, int] = {}
    for entry in ledger.entries():
        name, wanted = _POINTS.get(entry.kind, ("", ()))
        number = entry.body.get(name) if name else None
        if name and (not isinstance(number, int) or kinds.get(number) not in wanted):
            problems.append(f"entry {entry.seq} ({entry.kind}) points to no {' or '.join(wanted)} before it")
        elif entry.kind == "release" and number is not None:
            if number in released:
                problems.append(f"entry {entry.seq} is a second release for the charge {number}")
            released.add(number)
        elif entry.kind == "state" and number is not None:
            version = entry.body.get("version")
            if version != versions.get(number, -1) + 1:
                problems.append(
                    f"entry {entry.seq} is not the state that follows: noise may have been drawn twice"
                )
            versions[number] = version if isinstance(version, int) else -1
        kinds[entry.seq] = entry.kind
    return problems


def owners(ledger: Ledger) -> list[Accounts]:
    """Return the dataset's accounts, then those of every analyst who has a budget of their own."""
    policy, public = policy_of(ledger), public_of(ledger)
    pairs = ((None, policy.budget), *policy.analysts)
    return [Accounts(ledger, public, budget, owner) for owner, budget in pairs if budget is not None]


def odometer(ledger: Ledger, delta: float | None = None) -> Reading:
    """Return what all charges together have cost so far, at face price: a bound that holds whenever one
    looks, and if one stops because of it.

    `delta` is the chance that it is ever wrong; by default that of the budget, or 1e-9 for a pure one.
    """
    chance = delta if delta is not None else policy_of(ledger).budget.delta or 1e-9
    return Odometer(delta=chance, neighbors=public_of(ledger).neighbors).read(charged(ledger))


def spent_for(ledger: Ledger) -> dict[str, tuple[int, float]]:
    """Return, for each analyst, how often the dataset was charged for them, and how much of its budget that
    alone would have used."""
    rule = rule_of(ledger)
    totals: dict[str, tuple[int, Spent]] = {}
    for event, body in spending(ledger):
        times, spent = totals.get(body["analyst"], (0, rule.start()))
        item = priced(event, body, cap_name(None))
        totals[body["analyst"]] = times + 1, spent.plus(rule.price(item))
    return {who: (times, rule.used(spent)) for who, (times, spent) in totals.items()}


def accounts(ledger: Ledger) -> list[Account]:
    """Return every account with what was spent on it."""
    return [account for owned in owners(ledger) for account in owned.all()]
