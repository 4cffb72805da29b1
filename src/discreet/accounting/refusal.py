"""One sentence for every refusal: which event, which accountant, why, and what to use instead."""

from __future__ import annotations

from .._errors import Unsupported
from .events import Event


def refuse(event: Event, accountant: str, why: str) -> Unsupported:
    """Return the refusal of an event by an accountant; not raised, so that `raise` stays visible at the
    call."""
    return Unsupported(
        f"{type(event).__name__} has no price by the {accountant} accountant: {why}. Nothing was computed; "
        f"accounting.compare(event, delta=...) shows which accountants have one."
    )
