"""Assigns the numbers under which a person sees the entries of a ledger.

A served answer is a stored release that an analyst has got again without a charge.

Guarantee: the numbers that an analyst is shown, and may send, count that analyst's own charges and served
           answers: they are the same whatever others ask.
Proof:     a number is the position of an entry among the charges and served answers whose body names the
           analyst; a ledger only grows, so that a position never changes.
Assumes:   messages that name an entry go through `renumbered`. If words of the request look like the name of
           an entry (`names_entry`), the message is `renumbered` by `Numbers([])`, which shows no number:
           otherwise whoever wrote "entry 17 of the ledger" into a question that a message repeats would learn
           whether entry 17 is theirs. Stewards and auditors see the ledger's own numbers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from ...curator import STEWARD, Ledger, books

# How the library names an entry in its messages. A new way to name one must be entered here.
_NAMED = re.compile(r"\bentry (\d+) of the ledger\b|\bnumber=(\d+)\b")
# The same in the words of a request, from which `names_entry` removes all but letters, digits, _ and =,
# because a message may repeat a question with other spaces and quotes.
_SENT = re.compile(r"entry=*\d+=*of=*the=*ledger|number=+\d")


def names_entry(options: dict[str, Any]) -> bool:
    """Return whether words of a request could be taken for the name of an entry where a message repeats them.

    >>> names_entry({"sql": 'SELECT "Entry 17 of the ledger" FROM t'}), names_entry({"number": 17})
    (True, False)
    """
    words = " ".join(_flat(value) for value in options.values() if isinstance(value, str | dict | list))
    return _SENT.search(re.sub(r"[^\w=]+", "", words.lower())) is not None


def _flat(value: Any) -> str:
    """Return all keys and values of nested JSON in one text."""
    if isinstance(value, dict):
        return " ".join(f"{name}={_flat(item)}" for name, item in value.items())
    return " ".join(map(_flat, value)) if isinstance(value, list) else str(value)


@dataclass(slots=True)
class OwnNumbers:
    """The charges and served answers in one ledger, by analyst. A worker keeps this object, so that each call
    of `of` reads only the entries after `_seen`, the last one that was read."""

    _owned: dict[str, list[int]] = field(default_factory=dict)
    _seen: int = 0

    def of(self, ledger: Ledger, analyst: str) -> Numbers:
        """Return the numbers of an analyst, with all entries up to now."""
        if analyst == STEWARD:
            return Numbers(None)
        for entry in ledger.entries(after=self._seen):
            if entry.kind in (books.SPENDING, books.SERVED):
                self._owned.setdefault(str(entry.body.get("analyst")), []).append(entry.seq)
            self._seen = entry.seq
        return Numbers(self._owned.get(analyst, []))


@dataclass(frozen=True, slots=True)
class Numbers:
    """Translates between the ledger's numbers of entries and those that one person sees.

    `own`: the ledger's numbers of the person's own entries, ascending; None for a steward or auditor, who
    sees the ledger's numbers.
    """

    own: list[int] | None

    def shown(self, seq: int) -> int:
        """Return the number under which an entry of theirs is shown; 0 for one that is not theirs."""
        if self.own is None:
            return seq
        position = bisect_left(self.own, seq)
        return position + 1 if position < len(self.own) and self.own[position] == seq else 0

    def entry(self, number: int) -> int:
        """Return the ledger's number for one that the person sees; 0, which no entry has, if unknown."""
        if self.own is None:
            return number
        return self.own[number - 1] if 1 <= number <= len(self.own) else 0

    def renumbered(self, message: str) -> str:
        """Return a message that names entries by the numbers that the person sees; those of others are named
        "..."."""
        if self.own is None:
            return message

        def replacement(match: re.Match[str]) -> str:
            digits = match[1] or match[2]
            # The analyst may have written it: no entry has such a number, and Python reads no longer ones.
            own_number = (self.shown(int(digits)) if len(digits) < 20 else 0) or "..."
            return f"number={own_number}" if match[2] else f"entry {own_number} of your ledger"

        return _NAMED.sub(replacement, message)
