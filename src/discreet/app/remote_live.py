"""Live mechanisms and streams on a server, as `RemoteSession` hands them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._errors import InvalidInput
from ..mechanisms.protocols import Release
from .client import described
from .remote_reading import described_of, number_of, value_of
from .replies import release_of, rows_json

if TYPE_CHECKING:
    from .remote import RemoteSession


@dataclass(frozen=True, slots=True)
class RemoteHandle:
    """A live mechanism on the server; `number` finds it again."""

    session: RemoteSession
    number: int
    mechanism: Any

    def answer(self, question: Any) -> Release:
        """Ask it: a description, or a condition in SQL."""
        description = question if isinstance(question, str) else described(question)
        return release_of(self.session.call("POST", f"/live/{self.number}/answers", question=description))


@dataclass(frozen=True, slots=True)
class RemoteWatch:
    """A watch on counts on the server."""

    live: RemoteHandle

    @property
    def number(self) -> int:
        return self.live.number

    def ask(self, question: Any) -> Any:
        return self.live.answer(question).value


@dataclass(frozen=True, slots=True)
class RemoteStream:
    """A stream on the server; `number` finds it again. `feed` closes a tick, the rest reads what was
    released."""

    session: RemoteSession
    number: int

    @property
    def facts(self) -> dict[str, Any]:
        """What the server says of it now."""
        return self.session.call("GET", f"/streams/{self.number}")

    @property
    def counter(self) -> Any:
        """The mechanism that was paid for."""
        return described_of(self.facts["mechanism"])

    def feed(self, rows: Any = None, *, tick: str | None = None) -> Release:
        """Close one tick: with the rows of its clock in the server's table, or with rows that the steward
        sends."""
        body = {"rows": None if rows is None else rows_json(rows), "tick": tick}
        return release_of(self.session.call("POST", f"/streams/{self.number}/ticks", **body))

    @property
    def steps(self) -> int:
        """How many ticks were released, as far as their time has come."""
        return int(number_of(self.facts["steps"]))

    @property
    def history(self) -> list[Any]:
        """Every release so far, in order."""
        facts = self.facts
        counter = described_of(facts["mechanism"])
        return [counter_value(counter, value_of(value)) for value in facts["history"]]

    @property
    def value(self) -> Any:
        """The newest release: a number, or a mapping from group to number."""
        history = self.history
        if not history:
            raise InvalidInput("nothing was released yet, or its time has not come: feed the first batch.")
        return history[-1]

    def error(self, confidence: float = 0.95) -> float:
        """Return how far off the newest release may be."""
        facts = self.session.call("GET", f"/streams/{self.number}?confidence={confidence!r}")
        return number_of(facts["error"])


def counter_value(counter: Any, value: Any) -> Any:
    """Return a release of a counter as `Stream.value` shows it."""
    from ..session.streams import value_by_group

    return value_by_group(counter, value)
