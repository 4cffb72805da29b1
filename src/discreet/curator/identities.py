"""Checks a mechanism before and after it runs, and computes the keys by which equal questions are
recognized.

Computes what identifies a long run or a live mechanism: everything that it was started with, compared when
it is resumed.

The price alone does not tell two runs apart: noise that was drawn for sums within 1 protects no sums within
1000, whatever both cost.

Checks public limits on the size of questions before the charge, so that nobody pays for a question that
cannot be computed or stored.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from types import ModuleType
from typing import Any

from .. import _registry, _require
from .._errors import DescriptionError, DiscreetError, InvalidInput, NotPrivate
from .._public import Public
from .._require import plain
from ..accounting import Event, RepeatAndSelect
from ..core.question import CONSTRUCTED
from ..mechanisms.protocols import (
    AnySource,
    BaseMechanism,
    Interactive,
    Mechanism,
    Release,
    Stepped,
    as_of,
    check_source,
    rehearse,
)
from . import values
from .ledger import Entry, canonical


def check_mechanism(mechanism: Any, source: AnySource, kind: type[BaseMechanism], advice: str) -> None:
    """Refuse an object that is no mechanism of this `kind`, that was priced for other public facts, or that
    fails its rehearsal."""
    check_kind(mechanism, kind, advice)
    check_source(mechanism.public, source, examples=True)
    rehearse(mechanism, source)


def check_kind(mechanism: Any, kind: type[BaseMechanism], advice: str) -> None:
    """Refuse an object that is no mechanism of this `kind`: `advice` says how another kind is run."""
    price, facts = getattr(mechanism, "event", None), getattr(mechanism, "public", None)
    _require.that(
        not isinstance(mechanism, type) and isinstance(price, Event) and isinstance(facts, Public),
        f"{type(mechanism).__name__} is not a mechanism: it has no price (event) for public facts (public).",
    )
    _require.that(
        isinstance(mechanism, BaseMechanism),
        f"{type(mechanism).__name__} is not a mechanism: derive its class from mechanisms.Mechanism, "
        "Interactive or Stepped.",
    )
    _require.that(isinstance(mechanism, kind), f"{type(mechanism).__name__} is of another kind: {advice}.")


def description_of(mechanism: Any) -> Any:
    """Return the complete description of a mechanism or a question; None for trusted code, which has none,
    and is therefore never answered from the store."""
    try:
        return _registry.to_json(mechanism)
    except DescriptionError:
        return None
    except (RecursionError, ValueError):
        raise InvalidInput(
            "this is nested too deep, or has a number with too many digits, to be described."
        ) from None


def hides_time(mechanism: BaseMechanism) -> bool:
    """Return whether the price of a mechanism needs the number of its runs, and so its time, to be secret:
    it is the best of several."""
    return isinstance(mechanism.event, RepeatAndSelect)


def trust_of(mechanism: BaseMechanism, described: Any) -> str | None:
    """Return on whose word the price of a mechanism rests, for its charge: a third party's package, or code
    of the steward, which has no description; None if it is proved.

    A run in steps and a search have no description in the ledger, whoever wrote them.
    """
    undescribed = isinstance(mechanism, Stepped) or hides_time(mechanism)
    is_ours = undescribed and type(mechanism).__module__.startswith("discreet.")
    return _registry.others_in(described) or (None if described is not None or is_ours else STEWARDS_CODE)


def mark_of(body: Mapping[str, Any]) -> str:
    """Return what the price of a charge rests on, for `Release.mark`: the core, which computed it
    ("by construction"), the theorem of its mechanism ("by proof"), or somebody's word."""
    if body.get("trust"):
        return f"on the word of {body['trust']}"
    mechanism = body.get("mechanism")
    is_constructed = isinstance(mechanism, dict) and mechanism.get("type") in CONSTRUCTED
    return "by construction" if is_constructed else "by proof"


def normal_form(mechanism: BaseMechanism, described: Any) -> Any:
    """Return what two ways to write one question have in common: the mechanism's `key`, if it has one; else
    its complete description, `described`."""
    key = mechanism.key
    return described if key is None else key


def question_key(form: Any) -> str:
    """Return the key of a question, a hash of its normal form: two questions are the same if their keys are
    equal."""
    return hashlib.sha256(canonical(form).encode()).hexdigest()


def question_of(charge: Entry) -> str | None:
    """Return the key of the question that was charged, the same for all openings; None for trusted code."""
    described = charge.body.get("mechanism")
    if described is None:
        return None
    if charge.body.get("trust") and _registry.others_in(described) is None:
        # The mechanism of a third party that is not allowed in this process, where nobody can ask it again.
        return question_key(described)
    return question_key(normal_form(_registry.from_json(described), described))


def as_started(mechanism: Interactive, charge: Entry) -> Any:
    """Return the mechanism with the public facts that it was charged for: those of the version of the table
    on which it was started."""
    described = charge.body.get("mechanism")
    if described is None:
        return mechanism
    return as_of(mechanism, _registry.from_json(described).public)


def shown_value(stored: Any, served: Mapping[str, Any]) -> Any:
    """Return a stored value, as JSON, as those see it to whom it was served: of a query their own columns and
    rows, not those of who asked first. `served` is the body of the entry that served it."""
    mechanism = _registry.from_json(served["mechanism"])
    return values.encode(mechanism.restated(values.decode(stored)))


def checked_release(output: Any, charge: Entry) -> Release:
    """Return the output of a mechanism that was charged, marked with what its price rests on. It must be a
    Release whose randomness was not seeded."""
    if not isinstance(output, Release):
        raise TypeError(f"a mechanism gives a Release, not {type(output).__name__}")
    if not output.private:
        raise NotPrivate("the release says of itself that it is not private: its randomness was seeded.")
    return replace(output, mark=mark_of(charge.body))


def error_of_value(value: Any, mechanism: BaseMechanism) -> Any:
    """Return the error bound, a function of the confidence, that the released value has as its attribute
    `error`; else the mechanism's, which is known before it runs; else None."""
    return getattr(value, "error", None) or mechanism.error


# The mark of what is no mechanism of a package, but Python of the steward's.
STEWARDS_CODE = "the steward's code"
# What these say by default is no parameter.
_BASES = (BaseMechanism, Mechanism, Interactive, Stepped)
# Objects inside more objects than this are compared by their classes alone; far more than parameters have.
_DEEPEST = 32


def identity_of(mechanism: Any) -> str:
    """Return the fingerprint of a mechanism's complete description. Trusted code has no description: its
    `identity` (any value that JSON can hold) is used instead, or without one its parameters.

    The fingerprint stands in the ledger and must not depend on data: a description is public, and an
    `identity` and parameters must be.
    """
    facts = description_of(mechanism)
    facts = mechanism.identity if facts is None else facts
    if facts is None:
        return _digest(parameters_of(mechanism))
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
    own = [cls for cls in type(thing).__mro__[:-1] if cls not in _BASES]
    for name in {name for cls in own for name in vars(cls)} - names.keys():
        if not name.startswith("_") and not inspect.isroutine(inspect.getattr_static(thing, name)):
            with suppress(Exception):
                parts[name] = getattr(thing, name)
    with suppress(Exception):
        parts["sensitivity"] = thing.sensitivity(public)
    return parts


def _digest(part: Any) -> str:
    return hashlib.sha256(canonical(part).encode()).hexdigest()


# Most entries of a statistic, such as the cells of a histogram. Chosen by hand: ten million 64-bit integers
# and their noise take 160 MB, which any machine has; a billion would take 16 GB.
MAX_ENTRIES = 10_000_000
# Most characters of a description in the ledger, and of the text that an analyst wrote; chosen by hand. Also
# the most parts of a mechanism that `check_lengths` examines: a description has fewer parts than characters.
MAX_CHARACTERS = 1_000_000


def check(mechanism: Any, described: Any, text: str | None = None) -> None:
    """Refuse a question whose `text`, description (`described`) or statistics are too large.

    That includes descriptions that are nested too deep, and numbers with too many digits.
    """
    if text is not None and len(text) > MAX_CHARACTERS:
        raise InvalidInput(f"a question has at most {MAX_CHARACTERS:,} characters, got {len(text):,}.")
    check_description(described)
    check_lengths(mechanism, mechanism.public)


def check_description(described: Any) -> None:
    """Refuse the description of an object that is too long, or that could not be read back from the ledger;
    None, for trusted code, passes."""
    if described is None:
        return
    try:
        size = len(canonical(described))
        _registry.check_readable(described)
    except (RecursionError, ValueError) as error:
        if isinstance(error, DiscreetError) and not isinstance(error, DescriptionError):
            raise
        raise InvalidInput(f"this cannot be described in the ledger: {error}") from None
    if size > MAX_CHARACTERS:
        raise InvalidInput(f"a description has at most {MAX_CHARACTERS:,} characters, got {size:,}.")


def check_lengths(thing: Any, public: Public) -> None:
    """Refuse a mechanism or a question if it is, or contains at any depth, a statistic with more than
    `MAX_ENTRIES` entries."""
    pending, examined = [thing], 0
    while pending and examined < MAX_CHARACTERS:
        part, examined = pending.pop(), examined + 1
        length = _length(part, public)
        if length is not None and length > MAX_ENTRIES:
            raise InvalidInput(
                f"{type(part).__name__} has {length:,} entries; at most {MAX_ENTRIES:,} can be asked for at "
                "once."
            )
        if dataclasses.is_dataclass(part) and not isinstance(part, type | Public):
            # What a class makes of its own parameters is no part of its description.
            pending += [getattr(part, field.name, None) for field in dataclasses.fields(part) if field.init]
        elif isinstance(part, tuple | list) and any(map(dataclasses.is_dataclass, part)):
            pending += part


def _length(part: Any, public: Public) -> int | None:
    """Return the number of entries of a statistic; None for a part that is not a statistic, or one that does
    not fit the table."""
    measure = getattr(type(part), "length", None)
    if not callable(measure) or not callable(part):
        return None
    try:
        length = part.length(public)
    except Exception:
        # A statistic that does not fit the table is refused by its own checks, with a better message.
        return None
    return length if isinstance(length, int) else None
