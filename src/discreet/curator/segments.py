"""Keeps long runs, such as a training: paid for once, cut into segments of steps, and resumed after a crash
without any step being run twice.

Each charge of a run has a step counter in the ledger. Before a segment is run, the counter is moved past its
last step, by compare-and-swap in one exclusive transaction; the entry of that move is the segment's *claim*.
If two processes continue from one checkpoint, one of them gets the claim, and the other is refused. A segment
that was claimed and never saved, because of a crash, is forfeited: its steps count as taken. Checkpoints are
signed with the ledger's key and name the claim under which they were made; only the newest is accepted.
Nothing here knows about models: a run is any object with the methods of `mechanisms.protocols.Run`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _require, _system
from .._errors import InvalidInput, LedgerError, NotPrivate
from ..accounting import events
from ..accounting.caps import requested_price_of
from ..mechanisms.protocols import (
    AnySource,
    FitsTables,
    Release,
    Run,
    Stepped,
    check_source,
    rehearse,
)
from .accounts import SPENDING, periods_field
from .identities import checked_release, description_of, identity_of, trust_of
from .keys import signed_by
from .ledger import Entry, Ledger, Writer, canonical
from .policy import STEWARD

if TYPE_CHECKING:
    from .curator import Curator

T = TypeVar("T")

# Kinds of entries, and the first line of a checkpoint's file: stored, and never changed.
# A claim, which moved the counter of a run; its body has charge, from, to.
SEGMENT = "segment"
# The checkpoint of a segment is on disk; the body has charge, claim, step.
SAVED = "checkpoint"
_MAGIC = b"discreet checkpoint 1\n"
# Bytes of an Ed25519 signature.
_SIGNATURE = 64

# A function `progress`, called after each step with public facts of the run.
Watch = Callable[[Any], Any]


# A run: each iteration takes one step and gives its public facts; its return value is the release.
Steps = Generator[Any, None, Release]


def _run_through(steps: Steps, progress: Watch | None) -> Release:
    """Take all steps, call `progress` after each, and return the release. What `progress` raises ends the
    run: it was given public facts only, so that its error may be shown."""
    if progress is not None and not callable(progress):
        raise _require.fail("progress", progress, "a function of the progress, called after each step")
    with closing(steps):
        while True:
            try:
                facts = next(steps)
            except StopIteration as end:
                release: Release = end.value
                return release
            if progress is not None:
                try:
                    progress(facts)
                except KeyboardInterrupt as stopped:
                    # `noting_interruption` is on the other side.
                    steps.throw(stopped)


@contextmanager
def noting_interruption(advice: str) -> Iterator[None]:
    """Add `advice` to a KeyboardInterrupt (Ctrl-C) inside the block; Python shows it below the traceback."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.add_note(advice)
        raise


def train(*run: Any, progress: Watch | None = None, **options: Any) -> Release:
    """Take all steps of a new run (`steps`, with its arguments), and return its release.

    An error of `progress` stops the run like a crash, and reaches the caller as it is; with a checkpoint,
    `resume` continues the run.
    """
    return _run_through(steps(*run, **options), progress)


def resume(*run: Any, progress: Watch | None = None, **options: Any) -> Release:
    """Take all steps that are left of a run (`resumed_steps`, with its arguments); return its release."""
    return _run_through(resumed_steps(*run, **options), progress)


def steps(
    curator: Curator,
    mechanism: Stepped,
    checkpoint: str | Path | None = None,
    *,
    every: int = 100,
    analyst: str = STEWARD,
    text: str | None = None,
) -> Steps:
    """Pay for a run, and run it in segments of `every` steps, with a checkpoint after each; without
    `checkpoint`, in one segment. The charge is made before the first step.

    Guarantee: every step of the run that `mechanism.event` prices is run at most once, over all crashes,
               resumptions and processes that share the ledger.
    Proof:     a step is run only after the counter was moved past its number by a signed entry, in an
               exclusive transaction that compared the counter with the one that the process had read
               (`ChargedRun.claim`); no other process can then claim the step. Later steps start from a
               checkpoint, which is a signed function of earlier noisy steps; adaptive composition allows
               that.
    Assumes:   the ledger is not rolled back (an anchor kept elsewhere shows it), and the key is secret.

    Between two steps the caller has the run, and may leave it: then it ends like one that crashed.
    """
    _check_mechanism(mechanism, curator.source)
    path = None if checkpoint is None else _require_new_file(Path(checkpoint))
    if path is None:
        every = mechanism.length
    else:
        _require_multiple(every, mechanism.period)
    curator._prepare(mechanism.event, analyst, requested_price_of(mechanism))
    with curator.ledger.writing() as writer:
        # "trusted": the entry holds no description from which the mechanism could be built. "during" is
        # only a record: `resume` compares "periods", which `_charge` adds.
        facts = {"text": text, "trusted": True, "steps": mechanism.length, "during": list(curator.periods)}
        charge = curator._charge(
            writer,
            mechanism.event,
            analyst,
            requested_price_of(mechanism),
            **facts,
            identity=identity_of(mechanism),
            trust=trust_of(mechanism, description_of(mechanism)),
        )
    work = ChargedRun(curator, mechanism, charge, path)
    with noting_interruption(work.how_to_resume):
        run = work.guarded(lambda: mechanism.start(curator.source, entropy=curator._entropy))
        if path is not None:
            work.save(work.guarded(run.dump), charge, every)
        return (yield from work.go_on(run, charge, every))


def resumed_steps(
    curator: Curator,
    mechanism: Stepped,
    checkpoint: str | Path,
    *,
    every: int | None = None,
    analyst: str = STEWARD,
) -> Steps:
    """Continue a run from its newest checkpoint, with the steps that are left, in segments of `every` steps;
    by default as many as before.

    Costs nothing: the whole run was paid for at its start.
    """
    path = Path(checkpoint)
    _check_mechanism(mechanism, curator.source)
    header, raw = _read(path, curator.ledger)
    charge = curator.ledger.entry(header["charge"])
    if charge.kind != SPENDING or events.from_json(charge.body["event"]) != mechanism.event:
        raise InvalidInput(
            f"the checkpoint {path} is of a run with another price (entry {charge.seq} of the ledger). Give "
            "what the run was started with: the trainer, or the options of the synthesis."
        )
    if charge.body.get("identity") != identity_of(mechanism):
        raise InvalidInput(
            f"the checkpoint {path} is of another model, optimizer or run, or of one with other options "
            f"(entry {charge.seq} of the ledger). Give what the run was started with."
        )
    periods = periods_field(curator._in_force(curator.ledger).budget, curator.periods).get("periods")
    if charge.body["analyst"] != analyst or charge.body.get("periods") != periods:
        raise InvalidInput(
            f"the run of checkpoint {path} was paid for by another analyst, or for other periods."
        )
    work = ChargedRun(curator, mechanism, charge, path)
    steps_taken, head = work.accept(header)
    segment_length = header["every"] if every is None else every
    _require_multiple(segment_length, mechanism.period)
    with noting_interruption(work.how_to_resume):
        run = work.guarded(
            lambda: mechanism.restore(curator.source, raw, steps_taken, entropy=curator._entropy)
        )
        return (yield from work.go_on(run, head, segment_length))


@dataclass(frozen=True, slots=True)
class ChargedRun:
    """Carries out a run that was charged, with its step counter in the ledger and its checkpoint at `path`,
    if it has one."""

    curator: Curator
    mechanism: Stepped
    charge: Entry
    path: Path | None

    @property
    def ledger(self) -> Ledger:
        return self.curator.ledger

    @property
    def topic(self) -> str:
        """The topic of all entries of this run: the number of its charge."""
        return str(self.charge.seq)

    def head(self, writer: Writer) -> Entry:
        """Return the entry that moved the counter last: the newest claim, or the charge before the first."""
        return writer.last(SEGMENT, self.topic) or self.charge

    def claim(self, seen: Entry, end: int) -> Entry:
        """Move the counter to `end`, and return the entry of this claim; refused if anybody has moved the
        counter since the entry `seen`."""
        with self.ledger.writing() as writer:
            self._require_unmoved(writer, seen)
            start = _counter(seen)
            if not start < end <= int(self.charge.body["steps"]):
                raise LedgerError(
                    f"steps {start} to {end} are not among those that were paid for. Nothing was run."
                )
            body = {"charge": self.charge.seq, "from": start, "to": end}
            return writer.append(SEGMENT, body, topic=self.topic)

    def save(self, raw: bytes, claim: Entry, every: int) -> None:
        """Replace the checkpoint file by that of a claimed segment (or, before the first, of the charge), in
        one transaction with the entry that makes it the newest.

        After a crash before the entry is committed, the new file may be in place without its entry. It names
        the newest claim, and `accept` takes it for that.
        """
        if self.path is None:
            return
        header = {"charge": self.charge.seq, "claim": claim.seq, "hash": claim.hash.hex(), "every": every}
        new = self.path.with_name(self.path.name + ".new")
        try:
            _write(new, _envelope(self.ledger, header, raw))
            with self.ledger.writing() as writer:
                self._require_unmoved(writer, claim)
                os.replace(new, self.path)
                # Not `store.sync_folder`, which ignores errors.
                _system.sync_folder(self.path.parent)
                self._record(writer, claim)
        except OSError as error:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise LedgerError(
                f"the checkpoint {self.path} cannot be written ({error.strerror}). Nothing was released; the "
                f"run (entry {self.charge.seq} of the ledger) stays paid for, and its steps since the "
                f"checkpoint before count as taken. Make room, or mend what else is the cause, and "
                f"resume it from that checkpoint if there is one."
            ) from None

    def accept(self, header: dict[str, Any]) -> tuple[int, Entry]:
        """Return the counter, and the entry that moved it last, if the checkpoint with this header is the
        newest of its run; refuse an older one."""
        with self.ledger.writing() as writer:
            head, saved = self.head(writer), writer.last(SAVED, self.topic)
            newest = self.charge.seq if saved is None else int(saved.body["claim"])
            if header["claim"] not in (head.seq, newest):
                raise LedgerError(
                    f"{self.path} is older than the newest checkpoint of its run (entry {self.charge.seq} of "
                    f"the ledger). Nothing was trained. Going on from it is refused; use the newest file."
                )
            # The file was saved, and the process crashed before the entry was committed: it is entered now.
            if header["claim"] == head.seq != newest:
                self._record(writer, head)
        return _counter(head), head

    def guarded(
        self, compute: Callable[[], T], passed_on: tuple[type[Exception], ...] = (InvalidInput,)
    ) -> T:
        """Return `compute()`, which starts, restores, steps or dumps the run. If it fails, the run has
        failed, and only the steward is told why: the reason may depend on the data.

        InvalidInput is passed on where no step was taken yet: it is about the checkpoint or the model.
        """
        try:
            return compute()
        except passed_on:
            raise
        except Exception as error:
            raise self._forfeit() from (error if self._by_steward else None)

    def go_on(self, run: Run, head: Entry, every: int) -> Steps:
        """Take all remaining steps, in segments of `every`, and return the release; `head` is the entry that
        moved the counter last. Gives the public facts of the run after each step.

        The order of a segment is fixed: claim its steps, run them, save the checkpoint.
        """

        def step() -> Any:
            run.step()
            return run.progress

        length = int(self.charge.body["steps"])
        while run.steps_taken < length:
            end = min(run.steps_taken + every, length)
            head = self.claim(head, end)
            # Steps can be taken in this block only: a trainer, for example, changes its model for it.
            self.guarded(run.__enter__, ())
            try:
                while run.steps_taken < end:
                    yield self.guarded(step, ())
            except BaseException as error:
                run.__exit__(type(error), error, None)
                raise
            run.__exit__(None, None, None)
            raw = b"" if self.path is None else self.guarded(run.dump, ())
            self.save(raw, head, every)
        try:
            release = checked_release(run.release(), self.charge)
        except NotPrivate:
            # Its randomness was seeded, which does not depend on the data.
            raise
        except Exception as error:
            raise self._forfeit() from (error if self._by_steward else None)
        with self.ledger.writing() as writer:
            # A run that is resumed after its last step is released again, and entered once.
            if writer.last("release", self.topic) is None:
                body = {"charge": self.charge.seq, "analyst": self.charge.body["analyst"]}
                writer.append("release", body, topic=self.topic)
        return release

    @property
    def how_to_resume(self) -> str:
        """What Ctrl-C has cost, and how the run goes on."""
        if self.path is None:
            return (
                f"This run (entry {self.charge.seq} of the ledger) is over: its price stays spent, and it "
                f"wrote no checkpoint to go on from. The next one can be resumed: train(trainer, "
                f"checkpoint='run.checkpoint', every=100)."
            )
        return (
            f"This run (entry {self.charge.seq} of the ledger) stays paid for: resume(trainer, "
            f"{str(self.path)!r}) goes on from its newest checkpoint, free. Steps since then count as taken."
        )

    @property
    def _by_steward(self) -> bool:
        """Whether the steward runs this, and may see why it fails."""
        return bool(self.charge.body["analyst"] == STEWARD)

    def _forfeit(self) -> Exception:
        """Count all remaining steps as taken, enter that the run has failed, and return the error to raise.

        Whether a step fails may depend on the data: running it again would use them once more than was paid.
        """
        with self.ledger.writing() as writer:
            head, length = self.head(writer), int(self.charge.body["steps"])
            if _counter(head) < length:
                body = {"charge": self.charge.seq, "from": _counter(head), "to": length, "failed": True}
                writer.append(SEGMENT, body, topic=self.topic)
        return self.curator._record_failure(self.charge)

    def _require_unmoved(self, writer: Writer, seen: Entry) -> None:
        """Refuse to continue if another process has moved the counter since the entry `seen`."""
        if self.head(writer).seq != seen.seq:
            raise LedgerError(
                f"another process has gone on with this run (entry {self.charge.seq} of the ledger) in the "
                f"meantime. Nothing of this segment was saved or released."
            )

    def _record(self, writer: Writer, claim: Entry) -> None:
        """Enter that the checkpoint of a claim is on disk, which makes it the newest."""
        body = {"charge": self.charge.seq, "claim": claim.seq, "step": _counter(claim)}
        writer.append(SAVED, body, topic=self.topic)


def problems(ledger: Ledger) -> list[str]:
    """Return what is wrong with the counters of all runs, in words: each claim must start where the one
    before ended, and end at the number of steps that were paid for, or before."""
    sentences: list[str] = []
    counters: dict[int, int] = {}
    limits: dict[int, int] = {}
    for entry in ledger.entries():
        if entry.kind == SPENDING and "steps" in entry.body:
            limits[entry.seq] = int(entry.body["steps"])
        if entry.kind != SEGMENT:
            continue
        charge, start, end = (int(entry.body[name]) for name in ("charge", "from", "to"))
        if start != counters.get(charge, 0) or not start < end <= limits.get(charge, 0):
            sentences.append(f"entry {entry.seq} claims steps that were claimed before, or were not paid for")
        counters[charge] = end
    return sentences


def _counter(head: Entry) -> int:
    """Return the number of steps that count as taken after an entry: 0 after the charge itself."""
    return int(head.body["to"]) if head.kind == SEGMENT else 0


def _check_mechanism(mechanism: Any, source: AnySource) -> None:
    """Refuse, before anything is charged, a mechanism that cannot run in segments."""
    _require.an_object(mechanism)
    if not isinstance(mechanism, Stepped):
        advice = "people.fit(...) fits an estimator" if isinstance(mechanism, FitsTables) else "a Trainer can"
        raise InvalidInput(f"{type(mechanism).__name__} cannot be run in segments: {advice}.")
    check_source(mechanism.public, source, examples=True)
    rehearse(mechanism, source)


def _require_new_file(path: Path) -> Path:
    """Return the path of a new checkpoint; refuse one that exists."""
    if path.exists():
        raise InvalidInput(
            f"{path} exists already, and a checkpoint is never overwritten by another run. Resume it, or "
            "give another name."
        )
    if not path.parent.is_dir():
        raise InvalidInput(f"there is no folder {str(path.parent)!r} for the checkpoint.")
    return path


def _require_multiple(every: Any, period: int) -> None:
    """Require that `every` is a multiple of `period`: a run may be cut after multiples of it only."""
    _require.integer(every=every, at_least=1)
    if every % period:
        raise InvalidInput(
            f"every must be a multiple of {period}, the steps of one pass, got {every}: in between, who "
            "takes part in which step would have to be stored."
        )


def _envelope(ledger: Ledger, header: dict[str, Any], raw: bytes) -> bytes:
    """Return the bytes of a checkpoint's file: the magic line, the length of the header, the header as JSON,
    the signature, and `raw`, the state of the run."""
    # The run was charged, for which the ledger needs its key.
    assert ledger.key is not None
    encoded = canonical({**header, "ledger": ledger.genesis.hash.hex()}).encode()
    size = len(encoded).to_bytes(4, "little")
    return _MAGIC + size + encoded + ledger.key.sign(_message(encoded, raw)) + raw


def _message(encoded: bytes, raw: bytes) -> bytes:
    """Return the bytes that are signed: 86 bytes, made of those of the header and of the state. The same key
    signs the 32-byte hashes of entries; the lengths differ, so that no signature can serve for the other."""
    return _MAGIC + hashlib.sha256(encoded).digest() + hashlib.sha256(raw).digest()


def _read(path: Path, ledger: Ledger) -> tuple[dict[str, Any], bytes]:
    """Return the header of a checkpoint and the state of its run; refuse a file that this ledger's key has
    not signed, or whose claim the ledger does not have.

    The header is parsed only after the signature was verified.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"the checkpoint {path} cannot be read: {error.strerror}.") from None
    start = len(_MAGIC) + 4
    end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    if not data.startswith(_MAGIC) or len(data) < end + _SIGNATURE:
        raise InvalidInput(f"{path} is not a checkpoint of discreet, or was cut.")
    encoded, signature, raw = data[start:end], data[end : end + _SIGNATURE], data[end + _SIGNATURE :]
    if ledger.key is None or not signed_by(ledger.key.public, _message(encoded, raw), signature):
        raise LedgerError(
            f"{path} was changed, or belongs to another ledger than {ledger.path}. Nothing was trained."
        )
    header: dict[str, Any] = json.loads(encoded)
    with suppress(LedgerError):
        if header["hash"] == ledger.entry(header["claim"]).hash.hex():
            return header, raw
    raise LedgerError(
        f"{path} was made under an entry that {ledger.path} does not have: the ledger was rolled back, or "
        f"rewritten. Nothing was trained. Run `discreet ledger verify` with an anchor."
    )


def _write(path: Path, data: bytes) -> None:
    """Write a file, and wait until it is on disk."""
    with path.open("wb") as file:
        file.write(data)
        _system.sync(file)
