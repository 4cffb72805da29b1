"""Numbers of entries as the caller sees them.

Guarantee: the numbers that an analyst is shown, and may send, count that analyst's own charges and served
           answers: they are the same whatever others ask.
Proof:     a number is the position of an entry among those in whose body the analyst stands; a ledger only
           grows, so that a position never changes.
Assumes:   messages that name an entry go through `renumbered`, and those that may repeat words of the request
           through `Numbers([])` if these words look like an entry's name (`names_entry`): whoever wrote
           "entry 17 of the ledger" into a question would learn whether entry 17 is theirs. Stewards and
           auditors see the ledger's own numbers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from ...curator import STEWARD, Ledger, books

# how the library names an entry in its messages
_NAMED = re.compile(r"\bentry (\d+) of the ledger\b|\bnumber=(\d+)\b")
# the same in a request, where only letters, digits and = are left: a message may lay out a question anew
_SENT = re.compile(r"entry=*\d+=*of=*the=*ledger|number=+\d")


def names_entry(options: dict[str, Any]) -> bool:
    """Return whether words of a request could be taken for the name of an entry where a message repeats them.

    >>> names_entry({"sql": 'SELECT "Entry 17 of the ledger" FROM t'}), names_entry({"number": 17})
    (True, False)
    """
    words = " ".join(_flat(value) for value in options.values() if isinstance(value, str | dict | list))
    return _SENT.search(re.sub(r"[^\w=]+", "", words.lower())) is not None


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_flat(item)}" for name, item in value.items())
    return " ".join(map(_flat, value)) if isinstance(value, list) else str(value)


@dataclass(slots=True)
class OwnNumbers:
    """The positions of everybody's own entries in one ledger; a worker keeps them, and reads what is new."""

    _owned: dict[str, list[int]] = field(default_factory=dict)
    _seen: int = 0

    def of(self, ledger: Ledger, analyst: str) -> Numbers:
        """Return the numbers as an analyst sees them now."""
        if analyst == STEWARD:
            return Numbers(None)
        for entry in ledger.entries(after=self._seen):
            if entry.kind in (books.SPENDING, books.SERVED):
                self._owned.setdefault(str(entry.body.get("analyst")), []).append(entry.seq)
            self._seen = entry.seq
        return Numbers(self._owned.get(analyst, []))


@dataclass(frozen=True, slots=True)
class Numbers:
    """The entries of one analyst, in order; None for a reader who sees the ledger's own numbers."""

    own: list[int] | None

    def shown(self, seq: int) -> int:
        """Return the number under which an entry of theirs is shown; 0 for one that is not theirs."""
        if self.own is None:
            return seq
        position = bisect_left(self.own, seq)
        return position + 1 if position < len(self.own) and self.own[position] == seq else 0

    def entry(self, number: int) -> int:
        """Return the entry that a number means; 0, which no ledger has, for one that is not theirs."""
        if self.own is None:
            return number
        return self.own[number - 1] if 1 <= number <= len(self.own) else 0

    def renumbered(self, message: str) -> str:
        """Return a message whose entries are named by the numbers that are shown."""
        if self.own is None:
            return message

        def named(match: re.Match[str]) -> str:
            own_number = self.shown(int(match[1] or match[2])) or "..."
            return f"number={own_number}" if match[2] else f"entry {own_number} of your ledger"

        return _NAMED.sub(named, message)
