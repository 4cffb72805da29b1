"""Checks a mechanism before and after it runs, and computes the keys by which equal questions are
recognized."""

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
    """Refuse an object that is no mechanism of this `kind` (a protocol), that was priced for other public
    facts, or that fails its rehearsal. `advice` says how a mechanism of another kind is run."""
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
    """Return the complete description of a mechanism or a question; None for trusted code, which has none,
    and is therefore never answered from the store."""
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
    """Return the key of a question, a hash: two questions are the same if their keys are equal.

    `described` is the mechanism's `key`, its own normal form of the question, if it has one; else its
    complete description.
    """
    return hashlib.sha256(canonical(described).encode()).hexdigest()


def question_of(charge: Entry) -> str | None:
    """Return the key of the question that was charged, the same for all openings; None for trusted code."""
    described = charge.body.get("mechanism")
    if described is None:
        return None
    return question_key(getattr(_registry.from_json(described), "key", described))


def as_started(mechanism: Any, charge: Entry) -> Any:
    """Return the mechanism with the public facts that it was charged for: those of the version of the table
    on which it was started."""
    described = charge.body.get("mechanism")
    if described is None:
        return mechanism
    return as_of(mechanism, getattr(_registry.from_json(described), "public", mechanism.public))


def checked_release(output: Any) -> Release:
    """Return the output of a mechanism, if it may be released: it must be a Release whose randomness was not
    seeded."""
    if not isinstance(output, Release):
        raise TypeError(f"a mechanism gives a Release, not {type(output).__name__}")
    if not output.private:
        raise NotPrivate("the release says of itself that it is not private: its randomness was seeded.")
    return output


def error_of_value(value: Any, mechanism: Mechanism) -> Any:
    """Return the error bound, a function of the confidence, that the released value has as its attribute
    `error`; else the mechanism's, which is known before it runs; else None."""
    return getattr(value, "error", None) or getattr(mechanism, "error", None)
