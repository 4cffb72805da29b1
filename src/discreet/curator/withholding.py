"""What a server withholds: releases whose public time has not come, also from one who asks the same again.

An answer that is stored when its work is done would otherwise be had before its time by asking it again: not
yet (and so charged, or refused for want of budget), then served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from .._errors import InvalidInput
from .charges import SPENDING
from .ledger import Entry, Writer


@dataclass(frozen=True, slots=True)
class Withheld:
    """The public times that run now: by analyst, since when something of theirs may be worked on; and `now`,
    since when whatever is charged is younger than this list.

    Guarantee: whether a question is refused here depends on what was charged when, and on public clocks: not
               on whether the work is done, or how it went.
    Assumes:   the clocks of all machines that write to the ledger agree with the one that these times are of,
               and none is set back between `now` and this check; what was charged would seem to lie before a
               public time, and be served within it.
    """

    now: datetime
    since: tuple[tuple[str, datetime], ...] = ()

    def check(self, writer: Writer, same: Callable[[Entry], bool]) -> None:
        """Refuse a question that was charged within a public time that is not over."""
        first = min([self.now, *(begun for _, begun in self.since)])
        last = writer.last(SPENDING)
        if last is None or datetime.fromisoformat(last.time) < first:
            return
        for entry in writer.entries(kind=SPENDING, after=_before(writer, last.seq, first)):
            if self._covers(entry) and same(entry):
                raise InvalidInput(
                    "this question is being computed: its answer is there when its public time is over. "
                    "Nothing was charged or released. Ask again after its time."
                )

    def _covers(self, charge: Entry) -> bool:
        moment, analyst = datetime.fromisoformat(charge.time), charge.body.get("analyst")
        return moment >= self.now or any(analyst == name and moment >= begun for name, begun in self.since)


def _before(writer: Writer, last: int, moment: datetime) -> int:
    """Return the number of an entry after which all lie that are younger than the moment, by bisection:
    entries are in the order of their times, but where the clock was set back, and then some older ones are
    found as well."""
    low, high = 1, last
    while low < high:
        middle = (low + high) // 2
        if datetime.fromisoformat(writer.entry(middle).time) < moment:
            low = middle + 1
        else:
            high = middle
    return low - 1
