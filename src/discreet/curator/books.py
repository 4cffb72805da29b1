"""Reads and checks a ledger: what was spent, under which rule (the filter of a budget), and whether running
totals and references agree with the charges.

All of this needs the ledger only, no data and no key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..accounting.filters import BudgetFilter
from ..accounting.lanes import Spent
from . import segments, tickets, vault
from .accounts import (
    SERVED,
    SPENDING,
    Account,
    Accounts,
    cap_field,
    charged,
    last_charge,
    policy_of,
    priced,
    public_of,
    spending,
    spent_by,
    split_by_first,
)
from .ledger import Anchor, Ledger
from .live_mechanisms import FED
from .policy import Budget

if TYPE_CHECKING:
    from ..accounting.odometer import Reading

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


def rule_of(ledger: Ledger, budget: Budget | None = None) -> BudgetFilter:
    """Return the filter of a budget under the ledger's neighbor relation.

    If no budget is given, it is the filter of the dataset's budget, and divides delta between the releases'
    own deltas and its Rényi orders as the first charge has fixed it (docs/proofs/filters.md, "Capped
    prices").
    """
    rule = (budget or policy_of(ledger).budget).filter(public_of(ledger).neighbors)
    last = None if budget is not None else last_charge(ledger)
    return rule if last is None else split_by_first(rule, last.body)


# How many times a ledger that somebody writes to is checked before its problems are reported. Chosen by hand,
# not tuned: a false report needs a new entry during each of the ten checks.
_MOST_CHECKS = 10


def verify(ledger: Ledger, anchor: Anchor | None = None, *, key: bytes | None = None) -> list[str]:
    """Return what is wrong with a ledger, in words: its schema and chain; if these are right, what entries
    point to, the totals of charges, the steps of runs (`segments`), the order of questions to interactive
    mechanisms (`tickets`), the versions of sealed states, and the states in the `vault` themselves, unless
    `ledger` is an export, which comes without them.

    `anchor` is a head of the chain that was kept elsewhere, `key` the public key that the verifier trusts.
    Never raises because of what the entries hold: whoever signs with a key of their own can write any body.
    The checks read the ledger one after the other, not in one transaction: if a problem shows up and the
    ledger has grown meanwhile, all checks are repeated.
    """
    problems: list[str] = []
    for _ in range(_MOST_CHECKS):
        head = _head(ledger)
        problems = _problems(ledger, anchor, key)
        if not problems or _head(ledger) == head:
            break
    return problems


def _head(ledger: Ledger) -> Anchor | None:
    """Return the head of the chain; None if it cannot be read."""
    try:
        return ledger.anchor
    except Exception:
        return None


def _problems(ledger: Ledger, anchor: Anchor | None, key: bytes | None) -> list[str]:
    """Return what is wrong, in one pass over all checks; those of the bodies only if the chain is intact."""
    problems = ledger.verify(anchor, key=key)
    if problems:
        return problems
    for check in (_references, _totals, segments.problems, _tickets_and_blobs):
        try:
            problems += check(ledger)
        except Exception as error:
            # A body of an unexpected form can raise anything where it is read.
            problems.append(
                f"the books cannot be read ({type(error).__name__}): the body of an entry does not have the "
                f"form that its kind has"
            )
    return problems


def _totals(ledger: Ledger) -> list[str]:
    """Return what is wrong with the running totals of the dataset and of every analyst."""
    return [line for owned in owners(ledger) for line in owned.problems()]


def _tickets_and_blobs(ledger: Ledger) -> list[str]:
    """Return what is wrong with the tickets of interactive mechanisms, with the versions of blobs, and with
    the blobs themselves."""
    problems = tickets.problems(ledger.entries()) + vault.problems(ledger.entries())
    return problems + (vault.Vault(ledger).problems() if isinstance(ledger, Ledger) else [])


# For each kind of entry: the field of its body that holds the number of an earlier entry, and the kinds which
# that earlier entry may have.
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
    """Return what is wrong with references between entries.

    An entry must point to an earlier one of the right kind (`_POINTS`), a charge has at most one release, and
    the versions of the states of an interactive mechanism follow each other without a gap.
    """
    problems: list[str] = []
    kinds: dict[int, str] = {}
    released: set[int] = set()
    versions: dict[int, int] = {}
    for entry in ledger.entries():
        field, wanted = _POINTS.get(entry.kind, ("", ()))
        number = entry.body.get(field) if field else None
        if entry.kind == SERVED and number == 0 and entry.body.get("carried"):
            # a charge of another ledger (`backups`), whose releases do not move
            pass
        elif field and (not isinstance(number, int) or kinds.get(number) not in wanted):
            problems.append(f"entry {entry.seq} ({entry.kind}) points to no {' or '.join(wanted)} before it")
        elif entry.kind == "release" and number is not None:
            if number in released:
                problems.append(f"entry {entry.seq} is a second release for the charge {number}")
            released.add(number)
        elif entry.kind == tickets.STATE and number is not None:
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
    """Return a bound on the epsilon of all charges together so far. Each is priced as its event, even where
    the filter has charged a capped price (`accounting.lanes`).

    The bound is valid at any time, also if one stops asking because of what it says (docs/proofs/filters.md,
    Theorem 3). `delta` is the delta at which the bound holds; by default that of the budget, or for a budget
    without a delta 1e-9, chosen by hand.
    """
    from ..accounting.odometer import Odometer

    used_delta = delta if delta is not None else policy_of(ledger).budget.delta or 1e-9
    return Odometer(delta=used_delta, neighbors=public_of(ledger).neighbors).read(charged(ledger))


def spent_for(ledger: Ledger) -> dict[str, tuple[int, float]]:
    """Return, for each analyst, the number of charges to the dataset for their questions, and how much of the
    dataset's budget these charges alone would have used."""
    rule = rule_of(ledger)
    totals: dict[str, tuple[int, Spent]] = {}
    for event, body in spending(ledger):
        times, spent = totals.get(body["analyst"], (0, rule.start()))
        # With the cap under which the dataset (None) was charged, not that of the analyst's own account.
        item = priced(event, body, cap_field(None))
        totals[body["analyst"]] = times + 1, spent.plus(rule.price(item))
    return {who: (times, rule.used(spent)) for who, (times, spent) in totals.items()}


def accounts(ledger: Ledger) -> list[Account]:
    """Return every account with what was spent on it."""
    return [account for owned in owners(ledger) for account in owned.all()]
