"""Carries the charges of a ledger over to a new one: after a lost key, or for a renamed table.

Every charge is entered again under the name of its analyst, with its event, its caps and its deltas, so that
the dataset and each analyst go on with what they had spent. Then all accounts are counted anew, as after a
change of budgets: no total is taken from the old ledger. Releases and live mechanisms do not move.
"""

from __future__ import annotations

from typing import Any

from .. import _registry
from .._errors import BudgetExceeded, InvalidInput, LedgerError
from ..accounting import events
from . import books, charges
from .accounts import Accounts
from .curator import Curator
from .exports import Export
from .ledger import Anchor, Entry, Ledger, Writer

# The fields of a charge that its price is computed from (`charges`, `accounts.periods_read`).
_PRICE = (
    "event",
    "analyst",
    "elsewhere",
    "periods",
    *(charges.first_delta_field(owner) for owner in (None, "")),
    *(charges.cap_field(owner, total=total) for owner in (None, "") for total in (False, True)),
)
# The number that a carried charge for a stored release has in place of that release: no entry has it.
NO_RELEASE = 0


def carry(
    curator: Curator, old: Ledger | Export, *, anchor: Anchor | None = None, key: bytes | None = None
) -> int:
    """Enter all charges of `old` in the ledger of `curator`, which has none yet, and return their number.

    Guarantee: each account of the new ledger has the charges that it had in the old one, at the same prices
               where the budgets are the same; nothing is entered if they exceed a budget.
    Assumes:   `old` ends where the old ledger ended, which only an `anchor` kept elsewhere shows, and was
               written with its key, which only the public `key` that the steward trusts shows. Chain,
               signatures and totals are verified here.
    """
    problems = books.verify(old, anchor, key=key)  # type: ignore[arg-type]
    if problems:
        raise LedgerError(f"{old.path} does not verify: {problems[0]}. Nothing was carried over.")
    old_public, public = books.public_of(old), books.public_of(curator.ledger)  # type: ignore[arg-type]
    if (old_public.unit.column, old_public.neighbors) != (public.unit.column, public.neighbors):
        raise InvalidInput(
            f"{old.path} protects {old_public.unit.column or 'rows'} under {old_public.neighbors}, and this "
            f"ledger {public.unit.column or 'rows'} under {public.neighbors}: prices of one are none of the "
            f"other. Nothing was carried over. Open the new ledger with the unit and neighbors of the old."
        )
    spending = [entry for entry in old.entries() if entry.kind in (books.SPENDING, books.SERVED)]
    with curator.ledger.writing() as writer:
        if any(charges.last_charge(writer, owner) is not None for owner in (None, *_analysts(spending))):
            raise InvalidInput(
                "this ledger has charges already. Nothing was carried over. Carry into a new one, before "
                "anything is asked: discreet init DATA --ledger NEW, with the budget of the old one."
            )
        for entry in spending:
            writer.append(entry.kind, _body(entry), topic=entry.body["analyst"])
        what = f"carried over {len(spending)} charges of the ledger with the anchor {old.anchor}"
        writer.append("steward", {"by": "discreet ledger carry", "what": what})
        _count(curator, writer)
    return len(spending)


def _analysts(spending: list[Entry]) -> list[str]:
    return list(dict.fromkeys(str(entry.body["analyst"]) for entry in spending))


def _body(entry: Entry) -> dict[str, Any]:
    """Return the body of a charge as it is entered again: what its price depends on, and where it is from."""
    # Whoever signs with a key of their own can write any body.
    events.from_json(entry.body["event"])
    if not isinstance(entry.body["analyst"], str):
        raise LedgerError(f"entry {entry.seq} names no analyst. Nothing was carried over.")
    body: dict[str, Any] = {name: entry.body[name] for name in _PRICE if name in entry.body}
    if entry.kind == books.SERVED:
        body["release"] = NO_RELEASE
    body["text"] = f"carried over: {entry.body.get('text') or 'a mechanism'}"
    return body | {"carried": {"entry": entry.seq, "time": entry.time}}


def _count(curator: Curator, writer: Writer) -> None:
    """Count all accounts from the list of charges, as a change of budgets does; refuse charges that exceed a
    budget."""
    policy, public = books.policy_of(writer), books.public_of(writer)
    pairs = ((None, policy.budget), *policy.analysts)
    owners = [Accounts(writer, public, budget, owner) for owner, budget in pairs if budget is not None]
    try:
        for accounts in owners:
            accounts.check()
    except BudgetExceeded as refused:
        raise BudgetExceeded(
            f"the charges exceed the budgets of the new ledger. Nothing was carried over. Open it with the "
            f"budgets of the old one, or larger ones. ({refused})"
        ) from None
    changed = writer.append("policy", {"policy": _registry.to_json(policy)})
    for accounts in owners:
        accounts.recount(writer, changed)
