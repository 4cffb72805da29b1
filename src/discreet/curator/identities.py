"""Computes what identifies a long run or a live mechanism: everything that it was started with, compared when
it is resumed.

The price alone does not tell two runs apart. A search over other candidates may cost the same, but the
theorem behind its price assumes that all trials are drawn from the same candidates. A run that starts with
some candidates and ends with others has no proved price. And noise that was drawn for sums within 1 protects
no sums within 1000, whatever both cost.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from types import ModuleType
from typing import Any

from .._public import Public
from .._registry import plain
from .ledger import canonical
from .questions import description_of

# Objects inside more objects than this are compared by their classes alone; far more than parameters have.
_DEEPEST = 32


def identity_of(mechanism: Any, *, trusted: bool = False) -> str | None:
    """Return the fingerprint of a mechanism's complete description. Trusted code has no description: its
    `identity` (any value that JSON can hold) is used instead. If it has neither, the result is None, or with
    `trusted` the fingerprint of its parameters.

    The fingerprint stands in the ledger and must not depend on data: a description is public, and an
    `identity` and parameters must be.
    """
    facts = description_of(mechanism)
    facts = getattr(mechanism, "identity", None) if facts is None else facts
    if facts is None:
        return _digest(parameters_of(mechanism)) if trusted else None
    return _digest([type(mechanism).__name__, facts])


def parameters_of(mechanism: Any) -> dict[str, str]:
    """Return a digest of each parameter of a mechanism, and of its class, by name: for mechanisms that have
    no description, as they hold objects of the steward's.

    Compared are numbers with their kinds, texts, containers, and objects by their fields or attributes, at
    any depth. Of the mechanism and its parameters, where their classes are the steward's own, it is also what
    these say: attributes, properties, and the `sensitivity` for the public facts. Functions and classes are
    compared by name: that their code stays the same is the steward's word. Left out are fields that are not
    compared (`compare=False`, such as a number of processes), and the version of the table, which may change.
    """
    parts = _parts(mechanism, mechanism.public) | {"the class": type(mechanism)}
    return {name: _digest(_plain(part, mechanism.public)) for name, part in parts.items()}


def _plain(thing: Any, public: Public | None = None, outer: tuple[int, ...] = ()) -> Any:
    """Return a value as JSON that tells it from others. `public` is given if the value is itself a parameter;
    `outer` are the objects that it is part of."""
    thing = plain(thing)
    if thing is None or isinstance(thing, bool | str):
        return thing
    if isinstance(thing, int | Fraction):
        # Not in decimal digits, of which Python writes 4,300 at most.
        return [type(thing).__name__, *map(hex, thing.as_integer_ratio())]
    if isinstance(thing, float | bytes):
        return [type(thing).__name__, repr(thing)]
    if id(thing) in outer or len(outer) > _DEEPEST:
        return type(thing).__qualname__
    inner = functools.partial(_plain, outer=(*outer, id(thing)))
    if isinstance(thing, list | tuple):
        return [inner(part) for part in thing]
    if isinstance(thing, Mapping | set | frozenset):
        return sorted(map(inner, thing.items() if isinstance(thing, Mapping) else thing), key=canonical)
    if isinstance(thing, type | ModuleType) or inspect.isroutine(thing):
        owner = thing.__self__ if inspect.ismethod(thing) else None
        return [getattr(thing, "__qualname__", thing.__name__), inner(owner)]
    return [type(thing).__qualname__, inner(_parts(thing, public))]


def _parts(thing: Any, public: Public | None) -> dict[str, Any]:
    """Return the fields of an object by name, or its state; with the public facts, also what the class of an
    object of the steward's says (see `parameters_of`)."""
    if isinstance(thing, Public):
        thing = replace(thing, version="")
    names = {field.name: field.compare for field in fields(thing)} if is_dataclass(thing) else {}
    parts = {name: getattr(thing, name, None) for name, compared in names.items() if compared}
    if not names:
        # What pickle keeps of it: its attributes, the digits of a Decimal, the numbers of an array. Of an
        # object that cannot be pickled, nothing.
        with suppress(Exception):
            parts["state"] = thing.__reduce_ex__(2)[1:]
    if public is None or type(thing).__module__.startswith("discreet."):
        return parts
    for name in {name for cls in type(thing).__mro__[:-1] for name in vars(cls)} - names.keys():
        if not name.startswith("_") and not inspect.isroutine(inspect.getattr_static(thing, name)):
            with suppress(Exception):
                parts[name] = getattr(thing, name)
    with suppress(Exception):
        parts["sensitivity"] = thing.sensitivity(public)
    return parts


def _digest(part: Any) -> str:
    return hashlib.sha256(canonical(part).encode()).hexdigest()
