"""Entries of a ledger in words, and the part of a ledger that is an analyst's own: for the shell and the
server."""

from __future__ import annotations

import math
from typing import Any

from .. import accounting as acc
from .._errors import Unsupported
from ..accounting import events
from ..curator import Ledger, books, segments
from ..curator.entries import Entry

# what a charge says of the dataset's account: it depends on what others have spent
_OF_ALL = ("spent", "first", "cap", "cap of total")


def own_entries(opened: Ledger, analyst: str) -> list[Entry]:
    """Return the entries that an analyst caused: their charges and served answers, and what points to
    these."""
    owner = None if books.policy_of(opened).of(analyst) is None else analyst
    own: dict[int, Entry] = {}
    for entry in opened.entries():
        body = entry.body
        if "analyst" in body:
            is_own = body["analyst"] == analyst
        else:
            about = body.get("charge", body.get("release"))
            is_own = (
                isinstance(about, int) and about in own and (entry.kind != "account" or body["of"] == owner)
            )
        if is_own:
            own[entry.seq] = entry
    return list(own.values())


def without_totals(entry: Entry) -> dict[str, Any]:
    """Return an entry without what all have spent of the dataset's budget, and so without the hash and the
    signature of the whole."""
    facts = {
        name: value for name, value in entry.to_json().items() if name not in ("hash", "signature", "seal")
    }
    return facts | {"body": {name: value for name, value in entry.body.items() if name not in _OF_ALL}}


def what(entry: Entry) -> str:
    """Return what an entry records, in words."""
    body: dict[str, Any] = entry.body
    if entry.kind == books.SPENDING:
        described = body.get("mechanism")
        name = (
            described["type"].split(".")[-1]
            if described
            else "trusted code"
            if body.get("trusted")
            else "made elsewhere"
        )
        return f"charged for {body.get('text') or name}{_during(body)}"
    if entry.kind == books.SERVED:
        return f"served release {body['release']} from the store"
    if entry.kind == "account":
        return f"counted for {' '.join(body['account']).strip()} (entry {body['charge']})"
    if entry.kind in ("release", "failed", "state", "ticket"):
        moment = "taken over" if body.get("attempt") else "asked"
        words = {
            "ticket": f"live question {body.get('version')} {moment}",
            "release": "released",
            "failed": "failed, nothing released",
            "state": f"live answer {body.get('version')}",
        }
        return f"{words[entry.kind]} (charge {body['charge']})"
    if entry.kind == "blob":
        verb = "sealed" if body["file"] else "destroyed"
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
    periods = body.get("periods")
    return f" during {', '.join(periods['in'])}" if periods else ""


def price(body: dict[str, Any], delta: float) -> str:
    """Return the epsilon of the charge alone, and what exactly was done."""
    if "event" not in body:
        return ""
    event = events.from_json(body["event"])
    parts = [
        _event_text(leaf.to_json()) + (f" x {times:,}" if times > 1 else "")
        for leaf, times in events.leaves(event).items()
    ]
    return f"{epsilon_text(event, delta)}{' + '.join(parts)}"


def epsilon_text(event: events.Event, delta: float) -> str:
    for shown_delta in (0.0, delta):
        try:
            value = acc.epsilon(event, delta=shown_delta)
        except Unsupported:
            continue
        if math.isfinite(value):
            return f"epsilon {value:.4g}{f' at delta {shown_delta:g}' if shown_delta else ''}: "
    return ""


def _event_text(event: dict[str, Any]) -> str:
    """Return an event as one would write it."""
    fields = []
    for key, value in event.items():
        if key in ("type", "neighbors"):
            continue
        inner = isinstance(value, dict) and "type" in value
        fields.append(f"{key} {_short(value)}" if not inner else _event_text(value))
    return f"{event['type'].split('.')[-1]}({', '.join(fields)})"


def _short(value: Any) -> str:
    if isinstance(value, dict) and "fraction" in value:
        top, bottom = value["fraction"].split("/")
        return f"{int(top) / int(bottom):.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
