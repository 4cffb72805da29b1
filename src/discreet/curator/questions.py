"""What a curator checks of a mechanism before and after it runs, and when two questions are the same."""

from __future__ import annotations

import hashlib
from typing import Any

from .. import _registry
from .._errors import DescriptionError, InvalidInput, NotPrivate
from .._public import Public
from ..accounting import Event
from ..mechanisms.protocols import AnySource, Mechanism, Release, as_of, check_source, rehearse
from .ledger import Entry, canonical


def check_mechanism(mechanism: Any, source: AnySource, kind: Any, advice: str) -> None:
    """Refuse what is no mechanism of this kind, was priced for other public facts, or fails its rehearsal."""
    price, facts = getattr(mechanism, "event", None), getattr(mechanism, "public", None)
    if isinstance(mechanism, type) or not isinstance(price, Event) or not isinstance(facts, Public):
        raise InvalidInput(
            f"{type(mechanism).__name__} is not a mechanism: it has no price (event) for public "
            f"facts (public). Nothing was "
            f"charged or read."
        )
    if not isinstance(mechanism, kind):
        raise InvalidInput(
            f"{type(mechanism).__name__} is of another kind: {advice}. Nothing was charged or read."
        )
    check_source(facts, source, examples=True)
    rehearse(mechanism, source)


def description_of(mechanism: Any) -> Any:
    """Return the complete description, or None for trusted code: that is charged every time."""
    try:
        return _registry.to_json(mechanism)
    except DescriptionError:
        return None
    except (RecursionError, ValueError):
        raise InvalidInput(
            "this is nested too deep, or has a number with too many digits, to be described. Nothing "
            "was charged."
        ) from None


def question_key(described: Any) -> str:
    """Return what makes two questions the same: the mechanism's own normal form of what it asks, or else its
    complete description."""
    return hashlib.sha256(canonical(described).encode()).hexdigest()


def question_of(charge: Entry) -> str | None:
    """Return the key of what was charged, whatever data it was asked of; None for trusted code."""
    described = charge.body.get("mechanism")
    if described is None:
        return None
    return question_key(getattr(_registry.from_json(described), "key", described))


def as_started(mechanism: Any, charge: Entry) -> Any:
    """Return the mechanism as it was when it was charged: for the version of the table that it was started
    on."""
    described = charge.body.get("mechanism")
    if described is None:
        return mechanism
    return as_of(mechanism, getattr(_registry.from_json(described), "public", mechanism.public))


def checked_release(output: Any) -> Release:
    """Check that what a mechanism returned may leave: a release, drawn with the curator's own entropy."""
    if not isinstance(output, Release):
        raise TypeError(f"a mechanism gives a Release, not {type(output).__name__}")
    if not output.private:
        raise NotPrivate("the release says of itself that it is not private: its randomness was seeded.")
    return output


def error_of_value(value: Any, mechanism: Mechanism) -> Any:
    """Return the error that the released value knows by itself, or else the one that its mechanism has
    beforehand."""
    return getattr(value, "error", None) or getattr(mechanism, "error", None)
