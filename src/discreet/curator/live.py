"""A live answerer: an interactive mechanism whose price is paid, with its secret state sealed in the ledger.

State and answer are committed in one transaction before the answer is returned: a crash can neither lose noise nor draw it
again, and two askers take turns. A state put back from an old copy of the file breaks the chain against an anchor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from .. import _registry
from .._errors import DescriptionError, DiscreetError, LedgerError, ReleaseFailed
from ..mechanisms.protocols import Interactive, Release
from ..sampling import Entropy
from ..tables import Source
from . import values
from .ledger import Entry, Ledger, Writer, canonical


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
        """One answer. If it cannot be committed it was never given; if the mechanism has halted, nothing changes."""
        with self.ledger.writing() as writer:
            last = writer.last("state", str(self.number))
            if last is None or last.sealed is None or self.ledger.key is None:
                raise LedgerError(f"the state of the live mechanism {self.number} is missing from the ledger.")
            version = int(last.body["version"])
            state = json.loads(self.ledger.key.unseal(last.sealed, self._context(version)))
            state, given = self._ask(state, question)
            shown = {"question": _shown(question), "value": values.encode(given.value)}
            self._commit(writer, state, version + 1, shown)
        return given

    def _ask(self, state: Any, question: Any) -> tuple[Any, Release]:
        """Refusals are ours, and about the question. What else goes wrong may speak of the data, and is not passed on."""
        try:
            return self.mechanism.answer(state, self.source, question, entropy=self.entropy)
        except DiscreetError:
            raise
        except Exception:
            raise ReleaseFailed(
                "the question failed, and why is withheld, as it may speak of the data. Nothing was released."
            ) from None

    def _commit(self, writer: Writer, state: Any, version: int, shown: dict[str, Any]) -> None:
        assert self.ledger.key is not None  # `writing` has seen to it
        sealed = self.ledger.key.seal(canonical(state).encode(), self._context(version))
        body = {"charge": self.number, "version": version, **shown}
        writer.append("state", body, topic=str(self.number), sealed=sealed)

    def _context(self, version: int) -> bytes:
        return f"{self.number}:{version}".encode()


def _shown(question: Any) -> Any:
    try:
        return _registry.to_json(question)
    except DescriptionError:
        return "trusted code"
