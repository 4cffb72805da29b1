"""Runs live mechanisms: interactive mechanisms whose price is paid, with their secret state sealed
(encrypted) in the ledger. States are numbered: version 0 is the one at the start, and each answer leads to
the next version. Larger objects (trained teachers, for example) are kept as encrypted blobs, which the
mechanism puts into and gets from a `Drawer`.

A question gets a ticket in the ledger and is answered when its turn comes, while the ledger is not locked.
The new state and the answer are committed in one transaction before the answer is returned. So a crash can
neither make noise be drawn again for an answer that was shown, nor let anybody choose between two answers.
Two askers of one mechanism take turns; those of other mechanisms do not wait. If somebody puts an old copy of
the ledger's file back, with an older state, an anchor (an entry's number and hash, kept elsewhere) shows it.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from .. import _registry, _require
from .._errors import DiscreetError, Halted, Interruption, InvalidInput, LedgerError, ReleaseFailed
from .._public import Public
from ..accounting import events
from ..mechanisms.protocols import Interactive, Release, rehearse_parts
from ..sampling import Entropy
from ..tables import Source
from . import identities, tickets, values
from .identities import description_of, parameters_of
from .ledger import Entry, Ledger, LedgerReader, Writer, canonical, computing
from .tickets import STATE, Asker, Turn
from .vault import Drawer, Staged, Vault

# Stands in the ledger for a question that is Python code of the steward, and so has no description; never
# changes.
TRUSTED = "trusted code"
# The kind of entry that says that a version of the table was fed; stored, and never changed.
FED = "fed"

# The least bytes of a state with its padding (`_pad_state`; chosen by hand), and the bytes that are reserved
# for each number: as text, integers of 64 bits have up to 20 characters, floats up to 24.
_LEAST_BYTES, _NUMBER_BYTES = 4096, 32


class _WouldRead(Interruption):
    """Signals, in a dry run, that the mechanism would read the data now. No Exception, so that a mechanism
    which handles failures does not catch it."""


@dataclass(frozen=True, slots=True)
class _NotRead:
    """Stands for the table in dry runs: a source with its public facts and without its rows."""

    public: Public

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        raise _WouldRead


@_registry.described("curator.Feed")
@dataclass(frozen=True, slots=True)
class Feed:
    """Stands in place of a question where the mechanism is to be fed this version of the table."""

    version: str


class Handle(_require.NearestNames):
    """Answers questions to a started interactive mechanism: `mechanism`, with the `number` of its charge."""

    __slots__ = ()
    mechanism: Any
    number: int

    @abstractmethod
    def answer(self, question: Any) -> Release:
        """Answer one question."""

    @abstractmethod
    def on_ledger_of(self, curator: Any) -> bool:
        """Return whether its price was paid in the ledger of this curator."""


@dataclass(frozen=True, slots=True)
class InteractiveHandle(Handle):
    """Answers questions to a started interactive mechanism with `answer`.

    `number` is the number of its charge in the ledger; `Curator.resume` takes it after a restart.
    """

    ledger: Ledger
    source: Source = field(repr=False)
    mechanism: Interactive
    number: int
    entropy: Entropy = field(repr=False)
    # What the state is sealed with, and must be the same in every answer; None for a mechanism that has a
    # description, which stands in its charge.
    _parameters: dict[str, str] | None = field(init=False, repr=False, compare=False)
    _mark: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        described = description_of(self.mechanism)
        parameters = None if described is not None else parameters_of(self.mechanism)
        trust = identities.trust_of(self.mechanism, described)
        object.__setattr__(self, "_parameters", parameters)
        object.__setattr__(self, "_mark", identities.mark_of({"mechanism": described, "trust": trust}))

    @classmethod
    def begin(
        cls, ledger: Ledger, source: Source, mechanism: Interactive, charge: Entry, entropy: Entropy
    ) -> InteractiveHandle:
        """Start the mechanism of a charge: draw its initial state, and commit it as version 0."""
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

        A question that is refused before any data would be read changes nothing either. A question that fails
        afterwards, or is interrupted, is entered in the ledger and counts as asked, because its failure may
        depend on the data; after as many such questions as the mechanism's
        `failure_limit` it halts for good. If the asker gives up while the question waits for its turn, the
        question stays asked: the next asker answers it first.

        Guarantee: the answers shown are those of one run of the mechanism on the questions in the order of
                   their tickets, whatever processes die and however long each question takes.
        Proof:     an answer is computed from the state that the ticket before has left. It is shown only
                   after it was committed, together with the new state, in a transaction that has checked that
                   state and ticket are still the newest; so one answer is committed per ticket. A ticket is
                   computed again only if its asker is gone, and then nobody has seen what that asker had
                   computed. Which of two answers is committed is decided by the entry with which the second
                   asker took the ticket over, before it computes, and never by which asker was faster.
        Assumes:   what `tickets` assumes; and that a process does not end because of the noise that it has
                   drawn (for one ticket, at most `tickets.ATTEMPTS` processes end).
        """
        if isinstance(question, Feed):
            raise InvalidInput("a version of the table is no question: use feed.")
        release = self._answer_in_turn(question)
        assert release is not None
        return release

    def on_ledger_of(self, curator: Any) -> bool:
        """Return whether its price was paid in the ledger of this curator."""
        return not curator.away and os.path.realpath(self.ledger.path) == os.path.realpath(
            curator.ledger.path
        )

    def released(self) -> tuple[list[Any], int]:
        """Return the values of all answers since the start, in order, and how many questions failed after
        data was, or may have been, read. Both are taken from the ledger, so that answers before a restart, or
        to others, are included."""
        entries = [
            entry.body
            for entry in self.ledger.entries(kind=STATE, after=self.number)
            if entry.body["charge"] == self.number
        ]
        failed = sum(bool(body.get("failed")) for body in entries)
        return [values.decode(self.ledger.value(body)) for body in entries if "value" in body], failed

    @_require.check_options
    def feed(self, *, batch: bool = False) -> Release | None:
        """Give the mechanism the table that this handle was opened with; each version once. `batch` says that
        the table holds the new rows alone.

        Returns the release, or None if the mechanism releases nothing when it is fed. Failures and crashes
        are treated as in `answer`.
        """
        if self.mechanism.batches_only and not batch:
            raise InvalidInput(
                "this stream counts rows, has no clock and no column of units: a version of the table is no "
                "batch, each of its rows would count again. The rows of a tick come by stream.feed(rows); or "
                "start a stream with clock=, a column of days."
            )
        return self._answer_in_turn(Feed(self.source.public.version))

    def _answer_in_turn(self, question: Any) -> Release | None:
        """Get a ticket for a question, wait for its turn, and answer it."""
        self._same_price(self.ledger.entry(self.number))
        identities.check_lengths(question, self.source.public)
        now = self.ledger.look(self._turn)
        self._check(now, question)
        with Asker(self.ledger.path) as asker:
            with self.ledger.writing() as writer:
                self._same_price(writer.entry(self.number))
                ticket_number = tickets.issue(
                    writer,
                    self.number,
                    question=_question_json(question),
                    table=self.source.public.version,
                    asker=asker.name,
                )
            finished = self._wait(ticket_number, asker, question)
            release, error = self._compute_and_commit(self.ledger.look(self._turn), question, asker)
        if finished is not None:
            # Another process had a ticket to feed this same version, and died. `_wait` has fed the version in
            # its place, so that this process's own ticket, which would feed it again, was refused.
            return finished
        if error is not None:
            raise error from None
        return release

    def _wait(self, ticket_number: int, asker: Asker, question: Any) -> Release | None:
        """Wait for the turn of a ticket, and answer earlier tickets whose askers are gone.

        Returns None, except if `question` is a `Feed` and one of the earlier tickets was to feed the same
        version: then it returns the release of that one.
        """
        finished = None
        while True:
            now = self.ledger.look(self._turn)
            if now.ticket is None or now.version >= ticket_number:
                raise _taken_over()
            if now.version + 1 == ticket_number:
                return finished
            tickets.wait(self.ledger.path, now.ticket.body["asker"])
            if self.ledger.look(self._turn) == now:
                release = self._take_over(now, asker)
                if isinstance(question, Feed) and now.ticket.body["question"] == _question_json(question):
                    finished = release

    def _take_over(self, seen: Turn, asker: Asker) -> Release | None:
        """Answer the ticket of an asker that is gone, if it is still the one in `seen`; return its release.

        The ticket is entered as failed if it was tried too often, or if this process cannot build its
        question (trusted code) or has another version of the table.
        """
        with self.ledger.writing() as writer:
            now = self._turn(writer)
            if now != seen or now.ticket is None:
                return None
            question = _question_of(now.ticket)
            other_table = now.ticket.body["table"] != self.source.public.version
            if question is None or other_table or tickets.attempts(now.ticket) >= tickets.ATTEMPTS:
                self._enter_failure(writer, now)
                return None
            ticket = tickets.take_over(writer, now.ticket, asker.name)
        release, error = self._compute_and_commit(Turn(now.state, ticket), question, asker, lost=True)
        # The failure of somebody else's question is in the ledger, and no error of this asker. Errors that
        # end the program, such as KeyboardInterrupt, are passed on.
        if error is not None and not isinstance(error, Exception):
            raise error
        return release

    def _compute_and_commit(
        self, now: Turn, question: Any, asker: Asker, *, lost: bool = False
    ) -> tuple[Release | None, BaseException | None]:
        """Compute the answer to the ticket whose turn it is, and commit it. Returns the release (None if the
        mechanism was fed and releases nothing) and no error, or no release and the error that may be shown.

        If the question is refused because of earlier answers, the state stays the same, under its next
        version number. `lost` says that the question was built again from the description in its ticket,
        because its asker is gone. If such a question is refused though it was accepted from its asker, the
        description is incomplete, and the question counts as failed. It does not if the mechanism has halted
        since, or if it is a `Feed`, whose version may have been fed since.
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
                # The old state is decrypted again: the mechanism may have changed `state`.
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
                writer.append(FED, body, topic=fed_topic(self.number, question.version))
        return release, error

    def _enter_failure(self, writer: Writer, now: Turn) -> None:
        """Commit that the question whose turn it is, and whose asker is gone, has failed."""
        assert now.ticket is not None
        shown = {"question": now.ticket.body["question"], "failed": True, "failures": now.failures + 1}
        self._commit(writer, _count_failure(self._open_state(now)), now.version + 1, shown)

    def _turn(self, reader: LedgerReader | Writer) -> Turn:
        """Return the newest state, and the ticket whose turn it is."""
        return tickets.turn(reader, self.number)

    def _open_state(self, now: Turn) -> Any:
        """Return the newest secret state, decrypted; refuse it to a mechanism with other parameters than it
        was started with."""
        if self.ledger.key is None or now.state.sealed is None:
            raise LedgerError(f"the state of the live mechanism {self.number} is missing from the ledger.")
        state = json.loads(self.ledger.key.unseal(now.state.sealed, self._context(now.version)))
        if self._parameters is None:
            return state
        started, given = state["parameters"], self._parameters
        names = sorted(n for n in started.keys() | given.keys() if started.get(n) != given.get(n))
        if names:
            raise InvalidInput(
                f"entry {self.number} of the ledger was started with other parameters than are given now: "
                f"{', '.join(names)} differ. Its noise would not be what was paid for. Give those of the "
                "start, or start a new one."
            )
        return state["state"]

    def check_parameters(self) -> None:
        """Refuse a mechanism without a description whose parameters are not those of the start."""
        if self._parameters is not None:
            self._open_state(self.ledger.look(self._turn))

    def _check(self, now: Turn, question: Any) -> None:
        """Refuse a question that must be refused whatever the data are: because of its form, or of earlier
        answers. No data is read."""
        limit = self.mechanism.failure_limit
        if now.failures >= limit:
            raise Halted(
                f"{limit} questions to this mechanism failed after data was read, or may have been read, so "
                "it has halted for good."
            )
        if isinstance(question, Feed) and was_fed(self.ledger, self.number, question.version):
            raise InvalidInput(
                f"the version {question.version!r} of the table was fed to this before: its rows would count "
                "twice. Open new rows with a version of their own."
            )
        rehearse_parts(question, self.source)
        self._dry_run(self._open_state(now), question)

    def _same_price(self, charge: Entry) -> None:
        """Refuse to answer with other noise than was paid for: a later release of discreet may divide the
        same epsilon between its parts in another way."""
        if events.from_json(charge.body["event"]) != self.mechanism.event:
            raise InvalidInput(
                f"entry {self.number} of the ledger was charged a price that differs from the price of "
                f"{type(self.mechanism).__name__} in this version of discreet: its noise would not be what "
                "was paid for. Its answers so far stay in the ledger; start a new one to go on."
            )

    def _dry_run(self, state: Any, question: Any) -> None:
        """Run the mechanism on a table without rows, up to where it would read them. If it refuses the
        question before that, the reason is the question itself or earlier answers, and the error is raised.

        `state` is the real one, and holds secrets. A refusal reveals none of them, because a mechanism
        decides on it from the public part of its state alone (`protocols.Interactive`), such as the number of
        questions asked.
        """
        try:
            with computing(self.ledger):
                self._run(state, _NotRead(self.source.public), question, self._drawer())
        except _WouldRead:
            return
        except DiscreetError:
            raise
        except Exception:
            # Any other error comes again when the question is answered, and counts as a failure there.
            return

    def _ask(
        self, state: Any, source: Source, question: Any, drawer: Drawer | None
    ) -> tuple[Any, Release | None]:
        """Run the mechanism on a question while the ledger is not locked, and check what it returned. Returns
        the new state and the release."""
        with computing(self.ledger):
            after, release = self._run(state, source, question, drawer)
        # Raises if the new state cannot be stored as JSON.
        canonical(after)
        if release is not None:
            return after, replace(release, mark=self._mark)
        if not isinstance(question, Feed):
            raise TypeError("a live mechanism answers with a Release")
        return after, None

    def _run(
        self, state: Any, source: Source, question: Any, drawer: Drawer | None
    ) -> tuple[Any, Release | None]:
        """Call the mechanism: its `feed` for a `Feed`, its `answer` for any other question."""
        options = {"entropy": self.entropy} | ({} if drawer is None else {"drawer": drawer})
        mechanism: Any = self.mechanism
        after, release = (
            mechanism.feed(state, source, **options)
            if isinstance(question, Feed)
            else mechanism.answer(state, source, question, **options)
        )
        return after, release

    def _withhold(self, error: BaseException) -> BaseException:
        """Return the error to show for a question that failed: one that does not say why, since the reason
        may depend on the data.

        Errors that end the program, or are about the ledger, are returned as they are.
        """
        if not isinstance(error, Exception) or isinstance(error, LedgerError):
            return error
        return ReleaseFailed(
            "the question failed. The reason is withheld because it may reveal something about the data. The "
            "question counts as asked (see the ledger). Nothing was released."
        )

    def _drawer(self) -> Drawer | None:
        """Return the drawer in which the mechanism keeps its blobs; None for a mechanism without blobs."""
        size = self.mechanism.blob_size
        return None if size is None else Drawer(Vault(self.ledger), self.number, size or None)

    def _commit(
        self, writer: Writer, state: Any, version: int, shown: dict[str, Any], blobs: Sequence[Staged] = ()
    ) -> None:
        """Append the new state, sealed, with its public fields (`shown`), and the entries of its blobs."""
        # Only a ledger with its key gives a `writer`.
        assert self.ledger.key is not None
        if self._parameters is not None:
            state = {"parameters": self._parameters, "state": state}
        sealed = self.ledger.key.seal(_pad_state(state), self._context(version))
        body = {"charge": self.number, "version": version, **shown}
        for blob in blobs:
            blob.commit(writer)
        writer.append(STATE, body, topic=str(self.number), sealed=sealed)

    def _context(self, version: int) -> bytes:
        """Return the context that a sealed state is bound to: this mechanism, and the version of the state.
        It never changes: stored states would not decrypt."""
        return f"{self.number}:{version}".encode()


def _pad_state(state: Any) -> bytes:
    """Return the state as JSON, padded with blanks, which JSON ignores, to a length that does not depend on
    the values in it.

    Encryption hides the text and not its length: a noisy threshold has more digits the larger its noise is,
    and an exact sum the larger it is. So the length is computed from the structure of the state alone, with
    32 bytes for every number or text (`_padded_length`), and rounded up to a power of two. Only a number or
    text of more than 32 characters takes the next multiple of 32; at a sensible price no state has such a
    number.
    """
    text = canonical(state).encode()
    length = max(_LEAST_BYTES, len(text), _padded_length(state))
    return text.ljust(1 << (length - 1).bit_length())


def _padded_length(part: Any) -> int:
    """Return an upper bound on the length of a part of a state as JSON that is the same for all values of its
    numbers and texts, up to 32 characters each. How many numbers there are is public."""
    if isinstance(part, dict):
        return 2 + sum(len(canonical(key)) + 2 + _padded_length(value) for key, value in part.items())
    if isinstance(part, list | tuple):
        return 2 + sum(1 + _padded_length(value) for value in part)
    # "false" has five characters, "true" and "null" four.
    if part is None or isinstance(part, bool):
        return 5
    return -(-len(canonical(part)) // _NUMBER_BYTES) * _NUMBER_BYTES


def _stage_blobs(drawer: Drawer | None) -> AbstractContextManager[Sequence[Staged]]:
    """Write the blobs of an answer to disk, before its transaction begins, in which they are committed."""
    return nullcontext(()) if drawer is None else drawer.staged()


def _count_failure(state: Any) -> Any:
    """Return the state with its counter "asked", if it has one, increased by one for the failed question."""
    has_counter = isinstance(state, dict) and isinstance(state.get("asked"), int)
    return {**state, "asked": state["asked"] + 1} if has_counter else state


def fed_topic(charge: int, version: str) -> str:
    """Return the topic of the entry that says that a version of the table was fed; stored, and never
    changed."""
    return f"{charge}:{version}"


def was_fed(ledger: Ledger, charge: int, version: str) -> bool:
    """Return whether a version of the table was fed to the mechanism of this charge."""
    return ledger.last(FED, fed_topic(charge, version)) is not None


def _question_json(question: Any) -> Any:
    """Return the description of a question, or `TRUSTED` if it has none."""
    described = description_of(question)
    return TRUSTED if described is None else described


def _question_of(ticket: Entry) -> Any:
    """Return the question of a ticket, built from its description; None if it has none, or one that cannot be
    read."""
    described = ticket.body["question"]
    try:
        return None if described == TRUSTED else _registry.from_json(described)
    except (DiscreetError, ValueError, TypeError, KeyError):
        return None


def _taken_over() -> LedgerError:
    """Return the error for a question that another process has taken over from this one."""
    return LedgerError(
        "another process has taken this question over, though this one is still there: its lock file beside "
        "the ledger was removed, or this is a fork of the one that asked. Nothing was released here."
    )
