"""The door: a question passes its budgets, is charged, is run, and its release is stored.

`Door.ask` shows the order that everything in `curator` keeps: the filter admits the event, the charge is
committed to disk, the mechanism runs, the release is stored in the ledger and returned. A question that was
asked before is answered with the stored release, at no cost to the dataset, unless new noise is asked for.
The door knows no SQL and no models: it runs any mechanism that has a price. `Curator`, a subclass, has all
else: previews, changes of budgets, periods, live mechanisms and runs in steps.
"""

from __future__ import annotations

import glob
import math
import multiprocessing
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from .. import _require
from .._errors import BudgetExceeded, DescriptionError, InvalidInput, LedgerError, NotPrivate, ReleaseFailed
from .._public import UNVERSIONED, Public
from .._require import NON_NEGATIVE
from ..accounting import Event, NonPrivate, events
from ..accounting.caps import RequestedPrice, requested_price_of
from ..accounting.lanes import Item
from ..mechanisms.protocols import AnySource, Mechanism, Release
from ..sampling import Entropy
from . import identities, values
from .accounts import (
    SERVED,
    SPENDING,
    Accounts,
    cap_field,
    periods_field,
    policy_of,
    priced,
    public_of,
)
from .identities import (
    check_mechanism,
    checked_release,
    description_of,
    error_of_value,
    hides_time,
    normal_form,
    question_key,
    question_of,
)
from .keys import Key
from .ledger import Entry, Ledger, Writer
from .policy import STEWARD, Policy
from .store import is_pointer

if TYPE_CHECKING:
    from .curator import Withheld


class Door:
    """Runs mechanisms on one dataset, each charged to its budgets before it reads a row."""

    # Whether the table is elsewhere, and is asked over the network (`app.remote.RemoteCurator`).
    away = False

    def __init__(self, source: AnySource, ledger: Ledger) -> None:
        # A table or a source of examples; a mechanism refuses the kind that it does not read. In a view of
        # some periods (`during`) this is their rows, and `_full_source` stays the whole table.
        self.source: Any = source
        self._full_source: Any = source
        self.ledger = ledger

        # The periods of this view; none is the whole table.
        self.periods: tuple[str, ...] = ()
        # How the table was cut into periods when this view was made (`Period.cut`).
        self._period_cut: list[str | None] | None = None
        recorded = public_of(ledger)
        if _identity(recorded) != _identity(source.public):
            raise LedgerError(
                f"{ledger.path} belongs to table {recorded.table!r}, and this is another table, or has "
                f"another protected unit or neighbor relation. Nothing was read. All versions of a table "
                f"share one ledger; its name, its unit and its relation stay what they are."
            )
        self._entropy = Entropy()
        # Part of the keys of questions where no version of the table is declared (`Door._question`): one
        # per opening. A server sets its own, as its workers open a table many times.
        self.opening = secrets.token_hex(16)
        # Set by a server: the releases that it does not serve yet.
        self.withheld: Withheld | None = None
        # Set by a server: for how many seconds after its charge nothing is entered of a search, whose number
        # of runs is secret.
        self.sealed_for = 0.0
        # The numbers of the charges that were written here, by this opening and its views.
        self.charged: list[int] = []
        # The budgets of the last charge: a hint for `_prepare`, which decides nothing.
        self._latest: Policy | None = None

    @classmethod
    def open(cls, path: str | Path, source: AnySource) -> Self:
        """Open an existing ledger, with its key."""
        path = Path(path)
        if not path.exists():
            raise LedgerError(f"there is no ledger at {path}. Make one with a budget first.")
        curator = cls(source, Ledger(path, Key.load(key_path(path))))
        # What live mechanisms have left: signs of life, and secret states.
        beside = Path(os.path.realpath(path))
        if is_pointer(path) or any(beside.parent.glob(f"{glob.escape(beside.name)}-[av]*")):
            from . import tickets, vault

            tickets.sweep(path)
            vault.Vault(curator.ledger).sweep()
        return curator

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
                # Refuses if the answer to the same question is still withheld (`curator.Withheld`), whichever
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

    @property
    def policy(self) -> Policy:
        """The budgets now in force."""
        with self.ledger.refreshed():
            return policy_of(self.ledger)

    def _in_force(self, ledger: Ledger | Writer) -> Policy:
        """Return the budgets now in force; refuse if they cut the table into other periods than when this
        view was made."""
        policy = policy_of(ledger)
        per = policy.budget.per
        if self.periods and (per is None or per.cut != self._period_cut):
            raise InvalidInput(
                "the budgets were changed since these periods were chosen, and the table is cut into periods "
                "in another way now. Choose periods again: during(...)."
            )
        return policy

    def _question(self, described: Any) -> str:
        """Return the key under which the release of a question is stored: a hash of `described`, the
        mechanism's `key` or description, which holds the declared version of the table; where none is
        declared, also of a random text of this opening.

        Nothing here depends on rows or files: whether a question is charged or served would otherwise tell
        whether anybody has come since it was asked first.
        """
        is_declared = self._full_source.public.version != UNVERSIONED
        return question_key(described if is_declared else [described, self.opening])

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

    def _prepare(self, event: Event, analyst: str, requested_price: RequestedPrice | None = None) -> None:
        """Price the event before the ledger is locked, so that the accountant's caches have the result when
        `_charge` prices it again under the lock.

        Decides nothing, and raises nothing: errors of the event or the analyst are raised under the lock. If
        somebody else is charged in between, a cap may still have to be computed under the lock.
        """
        with suppress(Exception):
            policy = self._latest or self._in_force(self.ledger)
            price = policy.budget.filter(self._full_source.public.neighbors).price(event)
            # The first lane is the pure epsilon (of a rho budget: rho). An event that is finite there is
            # charged without a cap, unless it was requested at less: the ledger need not be read.
            if math.isfinite(price.sums[0]):
                return
            for accounts in self._accounts_for(self.ledger, analyst, policy):
                accounts.admit(event, self.periods, requested_price)

    def _charge(
        self,
        writer: Writer,
        event: Event,
        analyst: str,
        requested_price: RequestedPrice | None = None,
        **facts: Any,
    ) -> Entry:
        """Charge an event to the dataset and to the analyst, in the transaction of `writer`, or refuse it.

        `facts` are further fields of the entry; those that are empty, None or False are left out.
        """
        # A process that is spawned, as by `Session.teach`, first runs the script of its parent again, if that
        # has no guard, and would pay again for all that the script asks.
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise InvalidInput(
                "this process was started by multiprocessing and runs your script again, so that it would "
                'pay again for what the first one has asked. Write `if __name__ == "__main__":` above the '
                "lines that ask."
            )
        if not isinstance(event, Event):
            raise _require.fail("event", event, "an accounting event, such as PureDP(epsilon=1)")
        if any(isinstance(leaf, NonPrivate) for leaf in events.leaves(event)):
            raise NotPrivate("this has no privacy guarantee (its event is NonPrivate).")
        event_json = event.to_json()
        identities.check_description(event_json)
        body: dict[str, Any] = {"event": event_json, "analyst": analyst}
        body |= {name: value for name, value in facts.items() if value}
        # The policy is read once: nobody else can change it while this transaction is open.
        policy = self._latest = self._in_force(writer)
        accounts = self._accounts_for(writer, analyst, policy)
        charge = self._write_charge(writer, SPENDING, body, event, policy, accounts, requested_price)
        self.charged.append(charge.seq)
        return charge

    def _accounts_for(self, ledger: Ledger | Writer, analyst: str, policy: Policy) -> list[Accounts]:
        """Return the accounts that must admit the questions of `analyst`: the dataset's, then their own if
        they have a budget of their own. Refuse an analyst that the policy does not name."""
        own = policy.of(analyst)
        dataset = Accounts(ledger, self._full_source.public, policy.budget)
        return [dataset, *([] if own is None else [Accounts(ledger, self._full_source.public, own, analyst)])]

    def _write_charge(
        self,
        writer: Writer,
        kind: str,
        body: dict[str, Any],
        event: Event,
        policy: Policy,
        owners: list[Accounts],
        requested_price: RequestedPrice | None = None,
    ) -> Entry:
        """Write the entry of a charge, and all running totals; raises BudgetExceeded, with nothing written,
        if one of the `owners` does not admit the event.

        The order is fixed: all accounts admit the event before the first entry is written, and the entries
        of the totals (`Accounts.post`) point to that of the charge.
        """
        body = body | periods_field(policy.budget, self.periods)
        for accounts in owners:
            body |= _admit(accounts, event, self.periods, requested_price, body, len(owners) > 1)
        if kind == SPENDING and not body.get("elsewhere"):
            self._guard(writer, policy, body["analyst"], lambda: priced(event, body, cap_field(None)))
        entry = writer.append(kind, body, topic=body["analyst"])
        writer.charges += 1
        for accounts in owners:
            accounts.post(writer, event, entry, self.periods)
        return entry

    def _guard(self, writer: Ledger | Writer, policy: Policy, asker: str, item: Callable[[], Item]) -> None:
        """Refuse a charge beyond the policy's spending guard, in the transaction of the charge; `item` prices
        it. What counts for a day are the asker's charges whose entries have its date, in UTC."""

        def used() -> tuple[float, float]:
            rule, now = policy.budget.filter(self._full_source.public.neighbors), datetime.now(UTC)
            midnight, last = now.replace(hour=0, minute=0, second=0, microsecond=0), writer.last(SPENDING)
            after = 0 if last is None else before(writer, last.seq, midnight)
            spent = alone = rule.start().plus(rule.price(item()))
            for entry in writer.entries(kind=SPENDING, after=after):
                is_own = entry.body["analyst"] == asker and not entry.body.get("elsewhere")
                if is_own and datetime.fromisoformat(entry.time) >= midnight:
                    earlier = priced(events.from_json(entry.body["event"]), entry.body, cap_field(None))
                    spent = spent.plus(rule.price(earlier))
            return rule.used(alone), rule.used(spent)

        policy.guard(used, asker)


def _admit(
    accounts: Accounts,
    event: Event,
    periods: tuple[str, ...],
    requested_price: RequestedPrice | None,
    body: dict[str, Any],
    has_own: bool,
) -> dict[str, Any]:
    """Return what `Accounts.admit` returns. If the dataset's budget refuses and the analyst has a budget of
    their own (`has_own`), the error is replaced by one that does not say how much others have spent."""
    try:
        return accounts.admit(event, periods, requested_price, elsewhere=bool(body.get("elsewhere")))
    except BudgetExceeded:
        if not has_own or accounts.owner is not None:
            raise
        raise BudgetExceeded(
            "the dataset's budget does not hold this any more, whatever is left of the own budget of "
            f"{body['analyst']!r}.",
            remedy="Ask with less epsilon, or ask the steward for more.",
        ) from None


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


def before(writer: Ledger | Writer, last: int, moment: datetime) -> int:
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


def key_path(path: Path) -> Path:
    """Return the path of a ledger's key: that of the ledger, with ".key" behind it."""
    return path.with_name(path.name + ".key")


def _identity(public: Public) -> tuple[Any, ...]:
    """Return the public facts that must be the same in all versions of a table: its name, the unit that is
    protected, and the neighbor relation."""
    return public.table, public.unit.column, public.neighbors
