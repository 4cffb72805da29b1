"""A live answerer: an interactive mechanism whose price is paid, with its secret state sealed in the ledger.

State and answer are committed in one transaction before the answer is returned: a crash can neither lose noise nor draw it
again, and two askers take turns. A state put back from an old copy of the file breaks the chain against an anchor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _registry
from .._errors import DescriptionError, DiscreetError, Halted, InvalidInput, LedgerError, ReleaseFailed
from .._public import Public
from ..accounting import events
from ..mechanisms.protocols import Interactive, Release
from ..sampling import Entropy
from ..tables import Source
from . import limits, values
from .ledger import Entry, Ledger, Writer, canonical

# Questions to one live mechanism that may fail after data was read. Whether one fails is not covered by its price, so there is a public
# end to it; more than this is not an accident.
FAILURES = 10


class _WouldRead(BaseException):
    """The data would be read now. No mechanism's own handlers catch it."""


@dataclass(frozen=True, slots=True)
class _NotRead:
    """A table that is not there."""

    public: Public

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        raise _WouldRead


@dataclass(frozen=True, slots=True)
class Live:
    """Ask it with `answer`; `number` finds it again after a restart."""

    ledger: Ledger
    source: Source = field(repr=False)
    mechanism: Interactive
    number: int
    entropy: Entropy = field(repr=False)

    @classmethod
    def begin(cls, ledger: Ledger, source: Source, mechanism: Interactive, charge: Entry, entropy: Entropy) -> Live:
        """Draw the initial state, and commit it."""
        live = cls(ledger, source, mechanism, charge.seq, entropy)
        with ledger.writing() as writer:
            live._commit(writer, mechanism.start(source, entropy=entropy), 0, {})
        return live

    def answer(self, question: Any) -> Release:
        """One answer. If it cannot be committed it was never given; if the mechanism has halted, nothing changes.

        A question that is refused before any data would be read changes nothing either. One that fails afterwards, or runs out of time,
        is entered in the ledger and counts as asked, because how it went may depend on the data; after `FAILURES` of them this halts for good.
        """
        with self.ledger.writing() as writer:
            self._same_price(writer.entry(self.number))
            last = writer.last("state", str(self.number))
            if last is None or last.sealed is None or self.ledger.key is None:
                raise LedgerError(f"the state of the live mechanism {self.number} is missing from the ledger.")
            version, failures = int(last.body["version"]), int(last.body.get("failures", 0))
            if failures >= FAILURES:
                raise Halted(
                    f"{FAILURES} questions to this failed after data was read, so it has halted for good. Nothing was read or released."
                )
            before = self.ledger.key.unseal(last.sealed, self._context(version))
            limits.lengths(question, self.source.public)
            self._rehearse(json.loads(before), question)
            shown: dict[str, Any] = {"question": _shown(question)}
            error: BaseException | None = None
            try:
                state, given = self._ask(json.loads(before), question)
                shown["value"] = values.encode(given.value)
            except BaseException as problem:
                state, error, failures = _counted(json.loads(before)), problem, failures + 1
                shown["failed"] = True
            self._commit(writer, state, version + 1, shown | ({"failures": failures} if failures else {}))
        if error is not None:
            raise self._withheld(error) from None
        return given

    def _same_price(self, charge: Entry) -> None:
        """Refuse to answer with other noise than was paid for: a later version may split the same epsilon in another way."""
        if events.from_json(charge.body["event"]) != self.mechanism.event:
            raise InvalidInput(
                f"entry {self.number} of the ledger was charged another price than this version of discreet would run "
                f"{type(self.mechanism).__name__} at: its noise would not be what was paid for. Nothing was charged or answered. What it "
                f"has told stays in the ledger; start a new one to go on."
            )

    def _rehearse(self, state: Any, question: Any) -> None:
        """Put the question to a table that is not there: what is refused then is refused because of the question, or of answers before."""
        try:
            self.mechanism.answer(state, _NotRead(self.source.public), question, entropy=self.entropy)
        except (_WouldRead, DiscreetError) as refused:
            if isinstance(refused, DiscreetError):
                raise
        except Exception:  # it will fail again, and be counted
            return

    def _ask(self, state: Any, question: Any) -> tuple[Any, Release]:
        state, given = self.mechanism.answer(state, self.source, question, entropy=self.entropy)
        canonical(state)
        return state, given

    def _withheld(self, error: BaseException) -> BaseException:
        """Why a question failed may speak of the data, and is not passed on. What ends the program, or is about the ledger, is."""
        if not isinstance(error, Exception) or isinstance(error, LedgerError):
            return error
        return ReleaseFailed(
            "the question failed, and why is withheld, as it may speak of the data. It counts as asked (see the ledger). Nothing was released."
        )

    def _commit(self, writer: Writer, state: Any, version: int, shown: dict[str, Any]) -> None:
        assert self.ledger.key is not None  # `writing` has seen to it
        sealed = self.ledger.key.seal(canonical(state).encode(), self._context(version))
        body = {"charge": self.number, "version": version, **shown}
        writer.append("state", body, topic=str(self.number), sealed=sealed)

    def _context(self, version: int) -> bytes:
        return f"{self.number}:{version}".encode()


def _counted(state: Any) -> Any:
    """The state after a question that failed: where questions are counted, it counts."""
    counts = isinstance(state, dict) and isinstance(state.get("asked"), int)
    return {**state, "asked": state["asked"] + 1} if counts else state


def _shown(question: Any) -> Any:
    try:
        return _registry.to_json(question)
    except DescriptionError:
        return "trusted code"
