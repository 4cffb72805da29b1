"""A live mechanism: an interactive one whose price is paid, with its secret state sealed in the ledger.

A question gets a ticket in the ledger, is answered when its turn comes, while the ledger is not locked, and
state and answer are committed in one transaction before the answer is returned: a crash can neither lose
noise nor choose between answers, two askers of one mechanism take turns, and all others never wait. A state
put back from an old copy of the file breaks the chain against an anchor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from .. import _registry, _require
from .._errors import DiscreetError, Halted, InvalidInput, LedgerError, ReleaseFailed
from .._public import Public
from ..accounting import events
from ..mechanisms.protocols import Interactive, Release, rehearse_parts
from ..sampling import Entropy
from ..tables import Source
from . import limits, tickets, values
from .ledger import Entry, Ledger, LedgerReader, Writer, canonical, computing
from .questions import description_of
from .tickets import STATE, Asker, Turn
from .vault import Drawer, Staged, Vault

# Questions to one live mechanism that may fail after data was read. Whether one fails is not covered by its
# price, so there is a public end to it; more than this is not an accident. A mechanism that is fed for years
# may say another number, `failures`.
FAILURES = 10
# How the ledger shows a question that has no description.
TRUSTED = "trusted code"
# The kind of entry that says that a version was fed.
FED = "fed"

# Bytes that every sealed state has at least, and those that a number has room for: integers of 64 bits have
# 20 digits, floats up to 24.
_LEAST_ROOM, _DIGITS = 4096, 32


class _WouldRead(BaseException):
    """Signals that the data would be read now. No mechanism's own handlers catch it."""


@dataclass(frozen=True, slots=True)
class _NotRead:
    """Stands for a table that is not there."""

    public: Public

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        raise _WouldRead


@_registry.described("curator.Feed")
@dataclass(frozen=True, slots=True)
class Feed:
    """Stands for the table in place of a question: the mechanism is fed this version of it."""

    version: str


@dataclass(frozen=True, slots=True)
class InteractiveHandle(_require.NearestNames):
    """Answers questions to a started interactive mechanism with `answer`; `number` finds it again after a
    restart."""

    ledger: Ledger
    source: Source = field(repr=False)
    mechanism: Interactive
    number: int
    entropy: Entropy = field(repr=False)

    @classmethod
    def begin(
        cls, ledger: Ledger, source: Source, mechanism: Interactive, charge: Entry, entropy: Entropy
    ) -> InteractiveHandle:
        """Draw the initial state, and commit it."""
        live = cls(ledger, source, mechanism, charge.seq, entropy)
        drawer = live._drawer()
        with computing(ledger):
            state = mechanism.start(source, entropy=entropy, **({} if drawer is None else {"drawer": drawer}))
        with _stage_blobs(drawer) as blobs, ledger.writing() as writer:
            live._commit(writer, state, 0, {}, blobs)
        return live

    def answer(self, question: Any) -> Release:
        """Answer one question. If the answer cannot be committed it is not released; if the mechanism has
        halted, nothing changes.

        A question that is refused before any data would be read changes nothing either. One that fails
        afterwards, or runs out of time, is entered in the ledger and counts as asked, because how it went may
        depend on the data; after `FAILURES` of them this halts for good. A question that is given up while it
        waits for its turn stays asked: whoever asks next has it answered first.

        Guarantee: what is shown is one run of the mechanism on the questions in the order of their tickets,
                   whatever processes die and however long each question takes.
        Proof:     an answer is computed from the state of the ticket before, and shown after it was committed
                   with its own state in a transaction that compared both; of a ticket, one answer is
                   committed. A ticket is computed again only if its asker is gone, and then nobody has seen
                   what it had computed. Which of two is kept is decided by the entry of who took the ticket
                   over, before the second is computed, never by which was faster.
        Assumes:   as `tickets`; that a process ends does not depend on the noise drawn in it (at most
                   `tickets.ATTEMPTS` times for one ticket).
        """
        if isinstance(question, Feed):
            raise InvalidInput(
                "a version of the table is no question: use feed. Nothing was read or released."
            )
        release = self._answer_in_turn(question)
        assert release is not None
        return release

    def released(self) -> tuple[list[Any], int]:
        """Return the values of all answers since the start, in their order, and how many questions failed
        after data was read: from the ledger, so also what was answered before a restart, or to others."""
        entries = [
            entry.body
            for entry in self.ledger.entries(kind=STATE, after=self.number)
            if entry.body["charge"] == self.number
        ]
        failed = sum(bool(body.get("failed")) for body in entries)
        return [values.decode(body["value"]) for body in entries if "value" in body], failed

    @_require.check_options
    def feed(self, *, batch: bool = False) -> Release | None:
        """Give the mechanism the table that this was opened over, once; `batch` as in `Curator.feed`.

        What `answer` says of failing and crashing is true of this too.
        """
        if getattr(self.mechanism, "batches_only", False) and not batch:
            raise InvalidInput(
                "this stream counts rows, has no clock and no column of units: a version of the table is no "
                "batch, each of its rows would count again. Nothing was read or released. The rows of a tick "
                "come by stream.feed(rows); or start a stream with clock=, a column of days."
            )
        return self._answer_in_turn(Feed(self.source.public.version))

    def _answer_in_turn(self, question: Any) -> Release | None:
        """Get a ticket for a question, wait for its turn, and answer it."""
        self._same_price(self.ledger.entry(self.number))
        limits.check_lengths(question, self.source.public)
        now = self.ledger.look(self._turn)
        self._check(now, question)
        with Asker(self.ledger.path) as asker:
            with self.ledger.writing() as writer:
                self._same_price(writer.entry(self.number))
                number = tickets.issue(
                    writer,
                    self.number,
                    question=_question_json(question),
                    table=self.source.public.version,
                    asker=asker.name,
                )
            finished = self._wait(number, asker, question)
            release, error = self._compute_and_commit(self.ledger.look(self._turn), question, asker)
        if finished is not None:
            # A process that died had been feeding this version. It was fed over this table on the way, and
            # the ticket of its own, which would feed it twice, was refused.
            return finished
        if error is not None:
            raise error from None
        return release

    def _wait(self, number: int, asker: Asker, question: Any) -> Release | None:
        """Wait for the turn of ticket `number`.

        The tickets before it of askers that are gone are answered on the way. Returned is what was released
        where one of them was to feed the same version as `question`.
        """
        finished = None
        while True:
            now = self.ledger.look(self._turn)
            if now.ticket is None or now.version >= number:
                raise _taken_over()
            if now.version + 1 == number:
                return finished
            tickets.wait(self.ledger.path, now.ticket.body["asker"])
            if self.ledger.look(self._turn) == now:
                release = self._take_over(now, asker)
                if isinstance(question, Feed) and now.ticket.body["question"] == _question_json(question):
                    finished = release

    def _take_over(self, seen: Turn, asker: Asker) -> Release | None:
        """Answer the ticket of an asker that is gone.

        It has failed if it was tried too often, or if this process does not have its question or table.
        """
        with self.ledger.writing() as writer:
            now = self._turn(writer)
            if now != seen or now.ticket is None:
                return None
            question = _question_of(now.ticket)
            other = now.ticket.body["table"] != self.source.public.version
            if question is None or other or tickets.attempts(now.ticket) >= tickets.ATTEMPTS:
                self._enter_failure(writer, now)
                return None
            ticket = tickets.take_over(writer, now.ticket, asker.name)
        release, error = self._compute_and_commit(Turn(now.state, ticket), question, asker, lost=True)
        # How a question of somebody else went is in the ledger; what ends this program is passed on.
        if error is not None and not isinstance(error, Exception):
            raise error
        return release

    def _compute_and_commit(
        self, now: Turn, question: Any, asker: Asker, *, lost: bool = False
    ) -> tuple[Release | None, BaseException | None]:
        """Compute the answer to the ticket whose turn it is, and commit it: the release, or else what may be
        said of its failure.

        What is refused now because of answers before changes nothing but the number of the state. A question
        that was `lost` and is refused otherwise is one whose description does not say everything: it has
        failed.
        """
        if now.ticket is None or now.ticket.body["asker"] != asker.name:
            raise _taken_over()
        state, failures = self._open_state(now), now.failures
        shown: dict[str, Any] = {"question": now.ticket.body["question"], "table": self.source.public.version}
        error: BaseException | None = None
        release, drawer = None, None
        try:
            self._check(now, question)
        except DiscreetError as refused:
            error = refused
        if error is None:
            try:
                drawer = self._drawer()
                state, release = self._ask(state, self.source, question, drawer)
                shown |= {} if release is None else {"value": values.encode(release.value)}
            except BaseException as problem:
                error, release, drawer = self._withhold(problem), None, None
                shown["failed"], state, failures = True, _count_failure(self._open_state(now)), failures + 1
        elif lost and not isinstance(error, Halted) and not isinstance(question, Feed):
            shown["failed"], state, failures = True, _count_failure(state), failures + 1
        else:
            shown["refused"] = True
        with _stage_blobs(drawer) as blobs, self.ledger.writing() as writer:
            if self._turn(writer) != now or not asker.own:
                raise _taken_over()
            self._commit(
                writer, state, now.version + 1, shown | ({"failures": failures} if failures else {}), blobs
            )
            if isinstance(question, Feed) and error is None:
                body = {"charge": self.number, "table": question.version}
                writer.append(FED, body, topic=f"{self.number}:{question.version}")
        return release, error

    def _enter_failure(self, writer: Writer, now: Turn) -> None:
        """Commit that the question whose turn it is has failed."""
        assert now.ticket is not None
        shown = {"question": now.ticket.body["question"], "failed": True, "failures": now.failures + 1}
        self._commit(writer, _count_failure(self._open_state(now)), now.version + 1, shown)

    def _turn(self, reader: LedgerReader | Writer) -> Turn:
        """Return the newest state, and the ticket whose turn it is."""
        return tickets.turn(reader, self.number)

    def _open_state(self, now: Turn) -> Any:
        """Return the secret state."""
        if self.ledger.key is None or now.state.sealed is None:
            raise LedgerError(f"the state of the live mechanism {self.number} is missing from the ledger.")
        return json.loads(self.ledger.key.unseal(now.state.sealed, self._context(now.version)))

    def _check(self, now: Turn, question: Any) -> None:
        """Refuse a question because of what it is, or of answers before."""
        limit = getattr(self.mechanism, "failures", FAILURES)
        if now.failures >= limit:
            raise Halted(
                f"{limit} questions to this failed after data was read, so it has halted for "
                f"good. Nothing was read or released."
            )
        if (
            isinstance(question, Feed)
            and self.ledger.last(FED, f"{self.number}:{question.version}") is not None
        ):
            raise InvalidInput(
                f"the version {question.version!r} of the table was fed to this before: its rows "
                f"would count twice. Nothing was read or released."
            )
        rehearse_parts(question, self.source)
        self._rehearse(self._open_state(now), question)

    def _same_price(self, charge: Entry) -> None:
        """Refuse to answer with other noise than was paid for: a later version may split the same epsilon in
        another way."""
        if events.from_json(charge.body["event"]) != self.mechanism.event:
            raise InvalidInput(
                f"entry {self.number} of the ledger was charged another price than this version of "
                f"discreet would run "
                f"{type(self.mechanism).__name__} at: its noise would not be what was paid for. "
                f"Nothing was charged or answered. What it "
                f"has told stays in the ledger; start a new one to go on."
            )

    def _rehearse(self, state: Any, question: Any) -> None:
        """Put the question to a table that is not there: what is refused then is refused because of the
        question, or of answers before."""
        try:
            with computing(self.ledger):
                self._run(state, _NotRead(self.source.public), question, self._drawer())
        except (_WouldRead, DiscreetError) as refused:
            if isinstance(refused, DiscreetError):
                raise
        except Exception:
            # it will fail again, and be counted
            return

    def _ask(
        self, state: Any, source: Source, question: Any, drawer: Drawer | None
    ) -> tuple[Any, Release | None]:
        """Answer a question outside the lock, and check what the mechanism returned."""
        with computing(self.ledger):
            after, release = self._run(state, source, question, drawer)
        canonical(after)
        if release is None and not isinstance(question, Feed):
            raise TypeError("a live mechanism answers with a Release")
        return after, release

    def _run(
        self, state: Any, source: Source, question: Any, drawer: Drawer | None
    ) -> tuple[Any, Release | None]:
        """Call the mechanism: its `feed` for new rows, its `answer` for a question."""
        options = {"entropy": self.entropy} | ({} if drawer is None else {"drawer": drawer})
        mechanism: Any = self.mechanism
        after, release = (
            mechanism.feed(state, source, **options)
            if isinstance(question, Feed)
            else mechanism.answer(state, source, question, **options)
        )
        return after, release

    def _withhold(self, error: BaseException) -> BaseException:
        """Return an error that does not say why a question failed: that may speak of the data.

        Errors that end the program, or are about the ledger, are returned as they are.
        """
        if not isinstance(error, Exception) or isinstance(error, LedgerError):
            return error
        return ReleaseFailed(
            "the question failed, and why is withheld, as it may speak of the data. It counts as "
            "asked (see the ledger). Nothing was released."
        )

    def _drawer(self) -> Drawer | None:
        """Return where the mechanism keeps its blobs, if it has any."""
        size = getattr(self.mechanism, "blob_size", None)
        return None if size is None else Drawer(Vault(self.ledger), self.number, size)

    def _commit(
        self, writer: Writer, state: Any, version: int, shown: dict[str, Any], blobs: Sequence[Staged] = ()
    ) -> None:
        """Write the new state, sealed, with what is shown of it and its blobs."""
        # A ledger without a key cannot be written.
        assert self.ledger.key is not None
        sealed = self.ledger.key.seal(_pad_state(state), self._context(version))
        body = {"charge": self.number, "version": version, **shown}
        for blob in blobs:
            blob.commit(writer)
        writer.append(STATE, body, topic=str(self.number), sealed=sealed)

    def _context(self, version: int) -> bytes:
        """Return what a sealed state is bound to: this mechanism, and the version of the state."""
        return f"{self.number}:{version}".encode()


def _pad_state(state: Any) -> bytes:
    """Return the state as JSON with blanks behind it, which JSON does not mind.

    Encryption hides what a text says and not how long it is: a noisy threshold has more digits the larger its
    noise is, and an exact sum the larger it is. So the length is that of the state's structure alone, with
    the same room for every number (`_room`), rounded up to a power of two. A number of more than 32
    characters, which no state has at a sensible price, has room for the next multiple of 32.
    """
    text = canonical(state).encode()
    room = max(_LEAST_ROOM, len(text), _room(state))
    return text.ljust(1 << (room - 1).bit_length())


def _room(part: Any) -> int:
    """Return how long a part of a state can be, whatever its numbers are, up to 32 characters each: how many
    there are is public."""
    if isinstance(part, dict):
        return 2 + sum(len(canonical(key)) + 2 + _room(value) for key, value in part.items())
    if isinstance(part, list | tuple):
        return 2 + sum(1 + _room(value) for value in part)
    if part is None or isinstance(part, bool):
        return 5
    return -(-len(canonical(part)) // _DIGITS) * _DIGITS


def _stage_blobs(drawer: Drawer | None) -> AbstractContextManager[Sequence[Staged]]:
    """Write the blobs of an answer to disk before its transaction begins."""
    return nullcontext(()) if drawer is None else drawer.staged()


def _count_failure(state: Any) -> Any:
    """Return the state after a question that failed: where questions are counted, it counts."""
    counts = isinstance(state, dict) and isinstance(state.get("asked"), int)
    return {**state, "asked": state["asked"] + 1} if counts else state


def _question_json(question: Any) -> Any:
    """Return the description of a question, or a note that it has none."""
    described = description_of(question)
    return TRUSTED if described is None else described


def _question_of(ticket: Entry) -> Any:
    """Return the question of a ticket, from its description; None where that does not say it."""
    described = ticket.body["question"]
    try:
        return None if described == TRUSTED else _registry.from_json(described)
    except (DiscreetError, ValueError, TypeError, KeyError):
        return None


def _taken_over() -> LedgerError:
    """Return the error for a question that another process answers now."""
    return LedgerError(
        "another process has taken this question over, though this one is still there: its sign of "
        "life beside the ledger was removed, or "
        "this is a fork of the one that asked. Nothing was released here."
    )
