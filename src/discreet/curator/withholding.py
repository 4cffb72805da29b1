"""Defines releases that a server withholds for a public time, also from somebody who asks the same question
again.

A server shows the answer to a question at the end of its public time, a period whose length does not depend
on the data, so that the time does not tell how long the work took. But an answer is stored as soon as its
work is done. Without this module, whoever asks the same question again within the public time would learn
whether it is done: until then the question is charged again (or refused for lack of budget), and from then on
it is served from the store.
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
    """Says which questions' public time is not over, and refuses them.

    `since` has a pair for each public time that is not over: the analyst, and when it began. All questions
    that this analyst was charged for since then are withheld. `now` is when this list was made: questions
    that were charged later cannot be in it, and all of them are withheld.

    Guarantee: whether a question is refused here depends on which questions were charged, on when, and on
               public clocks; not on whether the work is done, or on its result.
    Assumes:   the clocks of all machines that write to the ledger agree with the clock of these times, and
               none is set back between `now` and this check. Otherwise a charge could seem to be older than
               it is, and its answer be served before the end of its public time.
    """

    now: datetime
    since: tuple[tuple[str, datetime], ...] = ()

    def check(self, writer: Writer, same: Callable[[Entry], bool]) -> None:
        """Refuse a question if the `same` question was charged within a public time that is not over.

        `same(charge)` says whether a charge is of the question that is asked now.
        """
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
        """Return whether the public time of a charge may not be over."""
        moment, analyst = datetime.fromisoformat(charge.time), charge.body.get("analyst")
        return moment >= self.now or any(analyst == name and moment >= begun for name, begun in self.since)


def _before(writer: Writer, last: int, moment: datetime) -> int:
    """Return a number, at most `last`, such that the entries before and at it are older than the moment, by
    bisection.

    Entries are in the order of their times, except where the clock was set back. `check` assumes that it was
    not since the moment; before that, it only changes how many older entries are looked at.
    """
    low, high = 1, last
    while low < high:
        middle = (low + high) // 2
        if datetime.fromisoformat(writer.entry(middle).time) < moment:
            low = middle + 1
        else:
            high = middle
    return low - 1
