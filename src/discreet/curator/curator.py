"""The curator: holds one dataset and its ledger, and releases what the budget allows.

`ask` shows the order that everything here keeps: the filter admits the event, the charge is committed to
disk, the mechanism runs, the release is stored in the ledger and returned. A question that was asked before
is answered with the stored release, at no cost to the dataset, unless new noise is asked for. The curator
knows no SQL and no models: it runs any mechanism that has a price.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .. import _require
from .._errors import DescriptionError, InvalidInput, LedgerError, ReleaseFailed
from .._public import UNVERSIONED
from .._require import NON_NEGATIVE
from ..accounting.caps import requested_price_of
from ..accounting.filters import FilterPreview
from ..mechanisms.protocols import BaseMechanism, Interactive, Mechanism, Release, Stepped, as_of
from . import identities, values
from .accounts import SERVED, SPENDING, periods_field
from .budgeted import NOTES, BudgetedDataset, key_path
from .identities import (
    as_started,
    check_kind,
    check_mechanism,
    checked_release,
    description_of,
    error_of_value,
    hides_time,
    normal_form,
    parameters_of,
    question_key,
    question_of,
)
from .ledger import Entry, Writer
from .policy import STEWARD

if TYPE_CHECKING:
    from .live_mechanisms import InteractiveHandle
    from .segments import Watch

__all__ = ["NOTES", "Curator", "key_path"]


class Curator(BudgetedDataset):
    """Runs mechanisms on one dataset, each charged to its budgets before it reads a row."""

    @_require.paying
    def ask(
        self,
        mechanism: Mechanism,
        *,
        analyst: str = STEWARD,
        text: str | None = None,
        fresh: bool = False,
        least_seconds: Annotated[float, NON_NEGATIVE] = 0.0,
    ) -> Release:
        """Run a mechanism for its price, or serve its stored release.

        Guarantee: all that is ever returned satisfies the dataset's budget, however questions depend on
                   earlier answers.
        Proof:     the charge passes the filter (docs/proofs/filters.md, Theorem 1) inside one exclusive
                   transaction, and is on disk before data is read; a stored release is post-processing of
                   what was paid for.
        Assumes:   the mechanism's event is its true price: the mechanism is of a class of discreet that
                   `_registry` lists, or is the steward's trusted code.

        `text` is the question as the analyst wrote it, for the record. `fresh=True` pays for new noise even
        where a release is stored already. `least_seconds` is the least time from the charge until anything is
        entered or returned: nobody sees how long a mechanism ran that takes less.
        """
        check_mechanism(mechanism, self.source, Mechanism, "it is asked with Session.start or Curator.start")
        # A search may have thousands of candidates, too many for the ledger to hold their descriptions.
        described = None if hides_time(mechanism) else description_of(mechanism)
        identities.check(mechanism, described, text)
        # The `key` of a mechanism is the same for all ways to write one question; its description is not.
        key = None if described is None else self._question(normal_form(mechanism, described))
        requested_price = requested_price_of(mechanism)
        self._prepare(mechanism.event, analyst, requested_price)
        with self.ledger.writing() as writer:
            self._in_force(writer).check_people(mechanism, self.source.public)
            if self.withheld is not None and described is not None and not fresh:
                # Refuses if the answer to the same question is still withheld (`budgeted`), whichever
                # opening asked it.
                wanted = question_key(normal_form(mechanism, described))
                fresh = self.withheld.check(writer, lambda charge: question_of(charge) == wanted, analyst)
            stored = None if key is None or fresh else writer.last("release", key)
            if stored is not None:
                return self._serve(writer, stored, mechanism, analyst, text)
            charge = self._charge(
                writer,
                mechanism.event,
                analyst,
                requested_price,
                text=text,
                mechanism=described,
                trusted=key is None,
                trust=identities.trust_of(mechanism, described),
            )
        return self._run(mechanism, charge, key, least_seconds)

    @_require.paying
    def start(self, interactive: Interactive, *, analyst: str = STEWARD) -> InteractiveHandle:
        """Pay the whole price of an interactive mechanism, and start it.

        Its secret state is kept in the ledger, encrypted.
        """
        check_mechanism(interactive, self.source, Interactive, "it is asked with `ask`")
        described = description_of(interactive)
        identities.check(interactive, described)
        requested_price = requested_price_of(interactive)
        if described is None:
            # Raises, if at all, before the charge: the state is sealed with them.
            parameters_of(interactive)
        # Blobs are refused before the charge if they cannot be stored.
        if interactive.blob_size is not None:
            self.vault.blobs.check()
        self._prepare(interactive.event, analyst, requested_price)
        with self.ledger.writing() as writer:
            self._in_force(writer).check_people(interactive, self.source.public)
            charge = self._charge(
                writer,
                interactive.event,
                analyst,
                requested_price,
                mechanism=described,
                trusted=described is None,
                trust=identities.trust_of(interactive, described),
            )
        from .live_mechanisms import InteractiveHandle

        try:
            return InteractiveHandle.begin(self.ledger, self.source, interactive, charge, self._entropy)
        except Exception as error:
            raise self._record_failure(charge) from (error if analyst == STEWARD else None)

    @_require.paying
    def run(
        self,
        mechanism: Stepped,
        *,
        checkpoint: str | Path | None = None,
        every: int | None = None,
        analyst: str = STEWARD,
        text: str | None = None,
        progress: Watch | None = None,
        resume: bool = False,
    ) -> Release:
        """Pay the whole price of a mechanism that runs in steps, and run it.

        A `checkpoint` file is written after `every` steps (by default 100; `segments.train`), and the
        function `progress` is called after each step. `resume` continues the run of a checkpoint, free
        (`segments.resume`).
        """
        from . import segments

        if resume:
            if checkpoint is None:
                raise InvalidInput("resume=True needs the checkpoint to continue from.")
            return segments.resume(
                self, mechanism, checkpoint, every=every, analyst=analyst, progress=progress
            )
        steps = 100 if every is None else every
        return segments.train(
            self, mechanism, checkpoint, every=steps, analyst=analyst, text=text, progress=progress
        )

    @_require.check_options
    def resume(
        self, interactive: Interactive, number: int, *, analyst: str | None = None
    ) -> InteractiveHandle:
        """Return a handle on an interactive mechanism that was started before, at its newest state; `number`
        is the number of its charge.

        The table may be another version than the one that it was started on, if the mechanism allows any
        version (see `Interactive`). If an `analyst` is given, it must be the one who paid, or the steward:
        answers that others paid for are not on the analyst's account.
        """
        check_kind(interactive, Interactive, "it is asked with `ask`")
        interactive = as_of(interactive, self.source.public)
        check_mechanism(interactive, self.source, Interactive, "it is asked with `ask`")
        _require.integer(number=number)
        charge = self.ledger.entry(number)
        described = description_of(as_started(interactive, charge))
        other_periods = charge.body.get("periods") != periods_field(
            self._in_force(self.ledger).budget, self.periods
        ).get("periods")
        same = charge.kind == SPENDING and charge.body.get("mechanism") == described
        if not same or other_periods:
            raise InvalidInput(
                f"entry {number} of the ledger is not the start of this mechanism, with these parameters and "
                "for these periods."
            )
        if analyst not in (None, STEWARD, charge.body.get("analyst")):
            raise InvalidInput(
                f"entry {number} of the ledger is no mechanism that {analyst} has started. Start one of your "
                "own."
            )
        from .live_mechanisms import InteractiveHandle

        handle = InteractiveHandle(self.ledger, self.source, interactive, charge.seq, self._entropy)
        handle.check_parameters()
        return handle

    @_require.paying
    def feed(
        self, interactive: Interactive, number: int, *, analyst: str | None = None, batch: bool = False
    ) -> Release | None:
        """Give this curator's table, the next version or a batch of new rows, to a mechanism that was started
        before; free of charge. `number` and `analyst` are those of `resume`.

        `batch` says that this curator's table holds the new rows alone. A mechanism that cannot tell old rows
        from new ones (`batches_only`) refuses anything else, because a row would count once in each version.

        Guarantee: that of the mechanism, for histories that differ in the rows of one unit in all versions or
                   batches.
        Proof:     the mechanism's own; it is given each version at most once, in the order of tickets, like a
                   question (`InteractiveHandle.answer`).
        Assumes:   versions have different names, and when one arrives does not depend on the data.
        """
        check_kind(interactive, Interactive, "it is asked with `ask`")
        if interactive.feed is None:
            advice = "resume it over the new version" if interactive.any_version else "start a new one"
            raise InvalidInput(f"{type(interactive).__name__} is not fed with batches or versions: {advice}.")
        return self.resume(interactive, number, analyst=analyst).feed(batch=batch)

    def _question(self, described: Any) -> str:
        """Return the key under which the release of a question is stored: a hash of `described`, the
        mechanism's `key` or description, which holds the declared version of the table; where none is
        declared, also of a random text of this opening.

        Nothing here depends on rows or files: whether a question is charged or served would otherwise tell
        whether anybody has come since it was asked first.
        """
        is_declared = self._full_source.public.version != UNVERSIONED
        return question_key(described if is_declared else [described, self.opening])

    @_require.check_options
    def given_before(self, mechanism: BaseMechanism, analyst: str = STEWARD) -> str | None:
        """Return when an analyst was charged for, or given, the stored release of a mechanism, which is free
        for them since; None where there is none, or it is others' alone. The steward has whatever is stored.
        Reads no data.
        """
        described = description_of(mechanism)
        if described is None:
            return None
        key = self._question(normal_form(mechanism, described))
        with self.ledger.refreshed():
            stored = self.ledger.last("release", key)
            if stored is None:
                return None
            if analyst in (STEWARD, stored.body["analyst"]):
                return self.ledger.entry(stored.body["charge"]).time
        served = (
            entry.time
            for entry in self.ledger.entries(kind=SERVED, after=stored.seq)
            if entry.body["release"] == stored.seq and entry.body["analyst"] == analyst
        )
        return next(served, None)

    @_require.check_options
    def quote(self, mechanism: BaseMechanism, *, analyst: str = STEWARD) -> tuple[FilterPreview, str | None]:
        """Return what a mechanism would cost (`preview`), and when its release was given (`given_before`)."""
        self.policy.check_people(mechanism, self.source.public)
        cost = self.preview(mechanism.event, analyst=analyst, requested_price=requested_price_of(mechanism))
        return cost, self.given_before(mechanism, analyst)

    @_require.check_options
    def described(self, number: int) -> Any:
        """Return the description of the mechanism of a charge; None for another entry, or trusted code."""
        entry = next(self.ledger.entries(after=number - 1), None)
        return entry.body.get("mechanism") if entry is not None and entry.seq == number else None

    @_require.check_options
    def released(self, number: int) -> list[dict[str, Any]]:
        """Return what a live mechanism has released, in order: the bodies of its entries with a value."""
        from .tickets import STATE

        states = self.ledger.entries(kind=STATE, after=number)
        return [
            entry.body | {"value": self.ledger.value(entry.body)}
            for entry in states
            if entry.body["charge"] == number and "value" in entry.body
        ]

    def _serve(
        self, writer: Writer, stored: Entry, mechanism: Mechanism, analyst: str, text: str | None
    ) -> Release:
        """Return a stored release again. An analyst who has not been given it before is charged for it on
        their own account; the dataset is not."""
        policy = self._in_force(writer)
        # Refuses an analyst whom the policy does not name.
        policy.of(analyst)
        seen = stored.body["analyst"] == analyst or any(
            entry.body["release"] == stored.seq and entry.body["analyst"] == analyst
            for entry in writer.entries(kind=SERVED, after=stored.seq)
        )
        if not seen:
            body = {"event": mechanism.event.to_json(), "analyst": analyst, "release": stored.seq}
            body |= {} if text is None else {"text": text}
            # Whoever asks for other columns of the same numbers is shown their own
            # (`identities.shown_value`).
            described = description_of(mechanism)
            body |= {} if described is None else {"mechanism": described}
            # The first is the dataset's, which pays nothing here.
            own = self._accounts_for(writer, analyst, policy)[1:]
            self._write_charge(
                writer, SERVED, body, mechanism.event, policy, own, requested_price_of(mechanism)
            )
        value, errors = values.decode(writer.value(stored.body)), stored.body.get("errors")
        # The value gets the text of this question: as it is stored, it quotes the question that was asked
        # first, which may be written in another way.
        value = mechanism.restated(value)
        error = error_of_value(value, mechanism) if errors is None else values.recalled(errors)
        return Release(
            value=value,
            event=mechanism.event,
            error_in_scores=bool(stored.body.get("scored")),
            mark=identities.mark_of(writer.entry(stored.body["charge"]).body),
            _error=error,
        )

    def _run(self, mechanism: Mechanism, charge: Entry, key: str | None, least_seconds: float) -> Release:
        """Run a mechanism that was charged, and store its release where it can be stored.

        Guarantee: with the event RepeatAndSelect, whose price needs the number of runs to be secret, the
                   entries of the ledger are the same for every number of runs, except for their times.
        Proof:     there is a charge before the runs, and one entry after all of them, which holds the
                   release or says that it failed; the reason of a failure is told to nobody.
        Assumes:   that nobody ends a process because of the values that it computes, or of how long it runs.
                   **Running time is not hidden** by default. With `least_seconds`, the times of entries tell
                   nothing of a mechanism that takes less. With `sealed_for`, nothing is entered before that
                   many seconds, and nothing at all if the mechanism takes longer: the times of entries then
                   tell nothing, and a run that did not finish in time tells only that.
        """
        is_search, begun = hides_time(mechanism), time.monotonic()
        limit = self.sealed_for if is_search else 0.0
        reason: Exception | None = None
        try:
            release = checked_release(mechanism(self.source, entropy=self._entropy), charge)
            stored = _stored_form(release, mechanism)
        except Exception as error:
            reason = error
        if limit and time.monotonic() >= begun + limit:
            raise self.failure(charge)
        time.sleep(max(0.0, begun + max(limit, least_seconds) - time.monotonic()))
        if reason is not None:
            is_told = charge.body["analyst"] == STEWARD and not is_search
            raise self._record_failure(charge) from (reason if is_told else None)
        body = {"charge": charge.seq, "analyst": charge.body["analyst"], **stored}
        try:
            with self.ledger.writing() as writer:
                # A release whose value cannot be stored has no topic, so that no later question finds it.
                writer.append("release", body, topic=key if stored else None)
        except LedgerError as error:
            # such as a full disk
            raise ReleaseFailed(
                f"the release could not be entered after it was charged (entry {charge.seq} of the ledger). "
                f"The charge stays, and nothing was released: {error.what.partition('. ')[0]}."
            ) from None
        return release

    def _record_failure(self, charge: Entry) -> ReleaseFailed:
        """Enter that the mechanism of a charge has failed, and return the error to raise."""
        with self.ledger.writing() as writer:
            writer.append("failed", {"charge": charge.seq, "analyst": charge.body["analyst"]})
        return self.failure(charge)

    @_require.check_options
    def failure(self, charge: Entry) -> ReleaseFailed:
        """Return the error for a mechanism that failed: it says nothing of why."""
        return ReleaseFailed(
            f"the mechanism failed after it was charged (entry {charge.seq} of the ledger). The charge "
            f"stays, because how it failed may depend on the data; nothing was released."
        )


def _stored_form(release: Release, mechanism: Mechanism) -> dict[str, Any]:
    """Return the fields of an entry that store a release; an empty dict for a release that cannot be stored,
    such as a trained model."""
    try:
        # "scored" is the stored name of `error_in_scores`; it never changes.
        stored = {"value": values.encode(release.value), "scored": release.error_in_scores}
    except DescriptionError:
        return {}
    # An error bound of this release alone is stored with it. Any other is known without it: from the value,
    # or from the mechanism.
    if release._error != error_of_value(release.value, mechanism):
        stored["errors"] = values.tabulated(release._error)
    return stored
