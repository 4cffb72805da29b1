"""Writes the message of every refusal: which event has no price by which accountant, why, and what to use
instead."""

from __future__ import annotations

from .._errors import Unsupported
from .events import Event


def refuse(event: Event, accountant: str, why: str) -> Unsupported:
    """Return the error for an event that an accountant has no price for. The caller raises it, so that
    `raise` is visible there."""
    return Unsupported(
        f"{type(event).__name__} has no price by the {accountant} accountant: {why}. Nothing was computed; "
        f"accounting.compare(event, delta=...) shows which accountants have one."
    )
