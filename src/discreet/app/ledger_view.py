"""Writes ledger entries as texts, and lists the entries that one analyst may see: for the command line and
the server."""

from __future__ import annotations

from typing import Any

from .._round import UpperAmount
from ..accounting import events
from ..curator import Ledger, books, segments
from ..curator.entries import Entry
from ..curator.identities import mark_of
from ..curator.receipts import price_of

# Fields of an entry with running totals of an account; those of the dataset's account depend on what other
# analysts have spent. "first" is the own delta of the account's first charge: the delta of that release
# itself, without what composition adds.
_TOTALS = ("spent", "first", "cap", "cap of total")


def own_entries(ledger: Ledger, analyst: str) -> list[Entry]:
    """Return the entries that an analyst caused: their charges, the stored answers that were served to them,
    and later entries about these (releases, failures, states of interactive mechanisms).

    Of the entries that book one of these charges on an account ("account"), only those are returned that book
    it on the account that limits this analyst: their own, or the dataset's where they have no budget of their
    own.
    """
    # the owner of that account; None is the dataset
    owner = None if books.policy_of(ledger).of(analyst) is None else analyst
    own: dict[int, Entry] = {}
    for entry in ledger.entries():
        body = entry.body
        if "analyst" in body:
            is_own = body["analyst"] == analyst
        else:
            # the number of the entry that this one is about
            about = body.get("charge", body.get("release"))
            is_own = (
                isinstance(about, int) and about in own and (entry.kind != "account" or body["of"] == owner)
            )
        if is_own:
            own[entry.seq] = entry
    return list(own.values())


def without_totals(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON without running totals: one analyst may not see those of all analysts together.

    The hash and the signature are left out too: they cover the totals, so a guess of the totals could be
    checked against them. So is the seal, the digest of encrypted state.
    """
    facts = {
        name: value for name, value in entry.to_json().items() if name not in ("hash", "signature", "seal")
    }
    return facts | {"body": {name: value for name, value in entry.body.items() if name not in _TOTALS}}


def mechanism_name(body: dict[str, Any]) -> str:
    """Return what a charge without a text was for, from the body of its entry."""
    if body.get("mechanism"):
        return str(body["mechanism"]["type"].split(".")[-1])
    return "trusted code" if body.get("trusted") else "a release made elsewhere"


def kept(body: dict[str, Any]) -> str:
    """Return what the price of a charge rests on, in words; for a release that was made elsewhere, that it
    was entered."""
    is_run = body.get("mechanism") or body.get("trust") or body.get("trusted")
    return f"kept {mark_of(body)}" if is_run else "as it was entered by hand"


def what(entry: Entry) -> str:
    """Return a sentence that says what an entry records."""
    body: dict[str, Any] = entry.body
    if entry.kind == books.SPENDING:
        mark = f" ({mark_of(body)})" if body.get("trust") or body.get("mechanism") else ""
        return f"charged for {body.get('text') or mechanism_name(body)}{_during(body)}{mark}"
    if entry.kind == books.SERVED and body.get("carried"):
        return f"{body['text']} (served there)"
    if entry.kind == books.SERVED:
        return f"served release {body['release']} from the store"
    if entry.kind == "account":
        return f"counted for {' '.join(body['account']).strip()} (entry {body['charge']})"
    if entry.kind in ("release", "failed", "state", "ticket"):
        # "attempt" counts how often another process took the question over
        moment = "taken over by another process" if body.get("attempt") else "asked"
        words = {
            "ticket": f"live question {body.get('version')} {moment}",
            "release": "released",
            "failed": "failed, nothing released",
            "state": f"live answer {body.get('version')}",
        }
        return f"{words[entry.kind]} (charge {body['charge']})"
    if entry.kind == "blob":
        verb = "encrypted and stored" if body["file"] else "destroyed"
        return f"{verb} {body['name']!r}, version {body['version']} (charge {body['charge']})"
    if entry.kind == segments.SEGMENT:
        return (
            f"steps {body['from'] + 1} to {body['to']} {'forfeited' if body.get('failed') else 'begun'} "
            f"(charge {body['charge']})"
        )
    if entry.kind == segments.SAVED:
        return f"checkpoint after {body['step']} steps (charge {body['charge']})"
    return {
        "open": "ledger opened",
        "policy": "budgets changed",
        "looked": f"the steward looked at the data ({body.get('what', 'discreet check')})",
        "steward": f"{body.get('by', 'the steward')}: {body.get('what', '')}",
    }.get(entry.kind, entry.kind)


def _during(body: dict[str, Any]) -> str:
    """Return the periods of a charge, with a blank before them; empty where budgets are not per period."""
    periods = body.get("periods")
    return f" during {', '.join(periods['in'])}" if periods else ""


def price(body: dict[str, Any], delta: float) -> str:
    """Return the epsilon of one charge by itself, and its events, such as "epsilon 0.1:
    DiscreteLaplace(...)"; empty for an entry that charges nothing."""
    if "event" not in body:
        return ""
    event = events.from_json(body["event"])
    parts = [
        _event_text(leaf.to_json()) + (f" x {times:,}" if times > 1 else "")
        for leaf, times in events.leaves(event).items()
    ]
    return f"{epsilon_text(event, delta)}{' + '.join(parts)}"


def epsilon_text(event: events.Event, delta: float) -> str:
    """Return the epsilon of an event, rounded up, as the beginning of a text such as "epsilon 0.1: ". It is
    the pure epsilon if that is finite, else that at `delta`; the text is empty where no finite one is
    known."""
    value, at = price_of(event, delta)
    return "" if value is None else f"epsilon {UpperAmount(value):.4g}{f' at delta {at:g}' if at else ''}: "


def _event_text(event: dict[str, Any]) -> str:
    """Return the JSON of an event as a constructor call, such as "Gaussian(noise_multiplier 2)"."""
    fields = []
    for key, value in event.items():
        if key in ("type", "neighbors"):
            continue
        inner = isinstance(value, dict) and "type" in value
        fields.append(f"{key} {_short(value)}" if not inner else _event_text(value))
    return f"{event['type'].split('.')[-1]}({', '.join(fields)})"


def _short(value: Any) -> str:
    """Return a field's value; numbers with four digits."""
    if isinstance(value, dict) and "fraction" in value:
        numerator, denominator = value["fraction"].split("/")
        return f"{int(numerator) / int(denominator):.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
