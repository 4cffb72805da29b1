"""Checks public limits on the size of questions before the charge, so that nobody pays for a question that
cannot be computed or stored."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import _registry
from .._errors import DescriptionError, DiscreetError, InvalidInput
from .._public import Public
from .ledger import canonical

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
        raise InvalidInput(
            f"a question has at most {MAX_CHARACTERS:,} characters, got {len(text):,}. Nothing was charged."
        )
    check_description(described)
    check_lengths(mechanism, mechanism.public)


def check_description(described: Any) -> None:
    """Refuse a description that is too long, or that `_registry.from_json` could not read back from the
    ledger; None, for trusted code, passes."""
    if described is None:
        return
    try:
        size = len(canonical(described))
        _registry.from_json(described)
    except (RecursionError, ValueError) as error:
        if isinstance(error, DiscreetError) and not isinstance(error, DescriptionError):
            raise
        raise InvalidInput(f"this cannot be described in the ledger: {error} Nothing was charged.") from None
    if size > MAX_CHARACTERS:
        raise InvalidInput(
            f"a description has at most {MAX_CHARACTERS:,} characters, got {size:,}. Nothing was charged."
        )


def check_lengths(thing: Any, public: Public) -> None:
    """Refuse a mechanism or a question if it is, or contains at any depth, a statistic with more than
    `MAX_ENTRIES` entries."""
    pending, examined = [thing], 0
    while pending and examined < MAX_CHARACTERS:
        part, examined = pending.pop(), examined + 1
        length = _length(part, public)
        if length is not None and length > MAX_ENTRIES:
            raise InvalidInput(
                f"{type(part).__name__} has {length:,} entries; at most {MAX_ENTRIES:,} can be asked for "
                f"at once. Nothing was charged or read."
            )
        if dataclasses.is_dataclass(part) and not isinstance(part, type | Public):
            pending += [getattr(part, field.name, None) for field in dataclasses.fields(part)]
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
