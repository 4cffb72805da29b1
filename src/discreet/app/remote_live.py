"""Defines handles of interactive mechanisms and streams on a server: what `RemoteSession.start`, `watch` and
`stream` return.

`number` is that of the charge in the ledger: with it another process finds the mechanism again. A stream
publishes a count at every tick, a step of time such as a day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput
from ..mechanisms.protocols import Release
from .client import to_description
from .remote_reading import from_description, number_of, value_of
from .replies import release_of, rows_json

if TYPE_CHECKING:
    from .remote import RemoteSession


@dataclass(frozen=True, slots=True)
class RemoteHandle:
    """Asks an interactive mechanism on the server; its price was charged at its start.

    `mechanism` is None where the handle was made from the number alone.
    """

    session: RemoteSession
    number: int
    mechanism: Any

    def answer(self, question: Any) -> Release:
        """Ask one question: an object with a JSON description (`_registry`), or a condition in SQL."""
        description = question if isinstance(question, str) else to_description(question)
        return release_of(self.session.call("POST", f"/live/{self.number}/answers", question=description))


@dataclass(frozen=True, slots=True)
class RemoteWatch:
    """Asks a watch on the server whether counts are above its threshold (the sparse vector technique)."""

    live: RemoteHandle

    @property
    def number(self) -> int:
        return self.live.number

    def ask(self, question: Any) -> Any:
        """Return the value of the answer to one condition in SQL; `live.answer` also has its price and
        error."""
        return self.live.answer(question).value


@dataclass(frozen=True, slots=True)
class RemoteStream:
    """Feeds and reads a continual counter on the server. `feed` closes a tick; the other methods read what
    was released. All are free: the price was charged at the start."""

    session: RemoteSession
    number: int

    @property
    def facts(self) -> dict[str, Any]:
        """Return the server's description of the stream now: mechanism, ticks, releases, error."""
        return self.session.call("GET", f"/streams/{self.number}")

    @property
    def counter(self) -> Any:
        """Return the mechanism that was paid for."""
        return from_description(self.facts["mechanism"])

    def feed(self, rows: Any = None, *, tick: str | None = None) -> Release:
        """Close one tick, and return its release.

        The tick counts `rows`, which only a steward may send; without them, the rows of the server's table
        that the column of the clock assigns to the tick. `tick` is the tick's name; a name is fed once.
        """
        body = {"rows": None if rows is None else rows_json(rows), "tick": tick}
        return release_of(self.session.call("POST", f"/streams/{self.number}/ticks", **body))

    @property
    def steps(self) -> int:
        """Return how many ticks were released; a tick whose release waits for the server's time limit does
        not count yet."""
        return int(number_of(self.facts["steps"]))

    @property
    def history(self) -> list[Any]:
        """Return every release so far, in order."""
        facts = self.facts
        counter = from_description(facts["mechanism"])
        return [counter_value(counter, value_of(value)) for value in facts["history"]]

    @property
    def value(self) -> Any:
        """Return the newest release: a number, or a mapping from group to number."""
        history = self.history
        if not history:
            raise InvalidInput(
                "nothing was released yet: feed the first tick, or wait for the server's time limit."
            )
        return history[-1]

    def error(self, confidence: float = 0.95) -> float:
        """Return the half-width of the newest release's interval with this confidence."""
        _require.open_probability(confidence=confidence)
        facts = self.session.call("GET", f"/streams/{self.number}?confidence={float(confidence)!r}")
        return number_of(facts["error"])


def counter_value(counter: Any, value: Any) -> Any:
    """Return a release of a counter as `session.Stream.value` returns it: a number, or a mapping from group
    to number."""
    from ..session.streams import value_by_group

    return value_by_group(counter, value)
