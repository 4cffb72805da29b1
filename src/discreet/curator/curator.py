"""The curator: holds one dataset and its ledger, and releases what the budget allows.

It is the door (`door`), by which each question passes, and all else that one does with a dataset: its
accounts, previews, changes of the budgets, views of periods, live mechanisms, runs in steps, and what a
server withholds.

A server shows the answer to a question at the end of its public time, a period whose length does not depend
on the data, so that the time does not tell how long the work took. But an answer is stored as soon as its
work is done. Without `Withheld`, whoever asks the same question again within the public time would learn
whether it is done: until then the question is charged again (or refused for lack of budget), and from then on
it is served from the store.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .. import _registry, _require
from .._errors import BudgetExceeded, InvalidInput, LedgerError
from .._public import Public
from ..accounting import Event
from ..accounting.caps import RequestedPrice, requested_price_of
from ..accounting.filters import BudgetFilter, FilterPreview
from ..accounting.lanes import Spent
from ..mechanisms.protocols import AnySource, BaseMechanism, Interactive, Release, Stepped, as_of
from . import identities
from .accounts import (
    SERVED,
    SPENDING,
    Account,
    Accounts,
    periods_field,
    public_of,
)
from .door import Door, before, key_path
from .identities import (
    as_started,
    check_kind,
    check_mechanism,
    description_of,
    normal_form,
    parameters_of,
)
from .keys import Key
from .ledger import Anchor, Entry, Ledger, Writer
from .policy import STEWARD, Policy

if TYPE_CHECKING:
    from .live_mechanisms import InteractiveHandle
    from .periods import Period
    from .segments import Watch
    from .vault import Vault

__all__ = ["NOTES", "Curator", "key_path"]


class BeingComputed(InvalidInput):
    """A question was charged a moment ago, and its answer is not to be seen yet."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """Says which questions' public time is not over, and refuses them.

    `since` has a pair for each public time that is not over: the analyst, and when it began. All questions
    that this analyst was charged for since then are withheld. `now` is when this list was made: questions
    that were charged later cannot be in it, and all of them are withheld. `dropped` has the analyst, the
    begin and the end of work that was cancelled before its public time was over: until that is over, whether
    it has stored anything is secret. Who asks the same is charged anew, as if nobody had asked.

    Guarantee: whether a question is refused here depends on which questions were charged, on when, and on
               public clocks; not on whether the work is done, or on its result.
    Assumes:   the clocks of all machines that write to the ledger agree with the clock of these times, and
               none is set back between `now` and this check. Otherwise a charge could seem to be older than
               it is, and its answer be served before the end of its public time.
    """

    now: datetime
    since: tuple[tuple[str, datetime], ...] = ()
    dropped: tuple[tuple[str, datetime, datetime], ...] = ()

    def check(self, writer: Writer, same: Callable[[Entry], bool], analyst: str) -> bool:
        """Refuse a question if the `same` question was charged within a public time that is not over, and
        return whether it was charged by others' work that was dropped.

        `same(charge)` says whether a charge is of the question that the `analyst` asks now. One's own dropped
        work is refused, too: in its time one may have asked other questions, which are not paid twice.
        """
        first = min([self.now, *(begun for _, begun in self.since), *(begun for _, begun, _ in self.dropped)])
        last, is_dropped = writer.last(SPENDING), False
        if last is None or datetime.fromisoformat(last.time) < first:
            return False
        for entry in writer.entries(kind=SPENDING, after=before(writer, last.seq, first)):
            covered, dropped = self._covers(entry), self._dropped(entry)
            if (covered or dropped) and same(entry):
                if covered or entry.body.get("analyst") == analyst:
                    raise BeingComputed(
                        "this question is being computed: its answer is there when its public time is over. "
                        "Ask again after its time, or with fresh=True for a new answer at its price."
                    )
                is_dropped = True
        return is_dropped

    def _covers(self, charge: Entry) -> bool:
        """Return whether the public time of a charge may not be over."""
        moment, analyst = datetime.fromisoformat(charge.time), charge.body.get("analyst")
        return moment >= self.now or any(analyst == name and moment >= begun for name, begun in self.since)

    def _dropped(self, charge: Entry) -> bool:
        """Return whether a charge may be that of work that was dropped."""
        moment, analyst = datetime.fromisoformat(charge.time), charge.body.get("analyst")
        return any(analyst == name and begun <= moment <= end for name, begun, end in self.dropped)


# Kinds of entries that are neither a charge nor a release: somebody looked at the data itself, or the steward
# (who sets the budgets) did something on a server. Stored in ledgers: they never change.
NOTES = ("looked", "steward")


class Curator(Door):
    """Keeps one dataset: its door, its accounts and its budgets, live mechanisms and runs."""

    @classmethod
    @_require.check_options
    def create(
        cls,
        path: str | Path,
        source: AnySource,
        policy: Policy,
        *,
        large_delta: bool = False,
        large_epsilon: bool = False,
        durable: bool = True,
        remote: str | None = None,
    ) -> Self:
        """Create a ledger at `path`, and its key beside it at `path`.key; no analyst may read the key.

        `durable=False` is for a ledger that is thrown away with its session: nothing waits for the disk.
        `remote` is a PostgreSQL database that keeps the entries, "postgresql://user@host/books::name"; the
        file at `path` then only points to it. `large_delta` and `large_epsilon` are explained in
        `Policy.check`.
        """
        path = Path(path)
        if path.exists() or path.is_symlink():
            raise LedgerError(
                f"{path} exists already, or is a link. A ledger is never overwritten: nothing was changed."
            )
        policy.check(source.public, large_delta=large_delta, large_epsilon=large_epsilon)
        key = Key.create(key_path(path), durable=durable)
        body = {"public": _registry.to_json(source.public), "policy": _registry.to_json(policy)}
        try:
            ledger = Ledger.create(path, key, body, durable=durable, remote=remote)
        except BaseException:
            # A key is never overwritten: without its ledger it would make the next attempt fail.
            key_path(path).unlink()
            raise
        return cls(source, ledger)

    @property
    def vault(self) -> Vault:
        """The store of secret (encrypted) states that are too large for the entries of the ledger."""
        from .vault import Vault

        return Vault(self.ledger)

    @property
    def filter(self) -> BudgetFilter:
        """The privacy filter of the dataset's budget."""
        from .books import rule_of

        return rule_of(self.ledger)

    def during(self, *periods: str) -> Self:
        """Return a view of the rows of some periods only; its releases are charged to each of these periods.

        Guarantee: for tables that differ in the rows of one unit within one period, all releases together
                   satisfy that period's budget (docs/proofs/filters.md, Theorem 4).
        Assumes:   rows do not move to another period in later versions of the table.
        """
        per = self.policy.budget.per
        if per is None:
            raise InvalidInput("this dataset has one budget, not one per period.")
        per.check(self._full_source.public)
        _require.non_empty(periods=periods)
        names = tuple(sorted({per.named(period, self._full_source.public) for period in periods}))
        view = copy.copy(self)
        view.periods, view._period_cut, view.source = names, per.cut, self._rows_of(per, names)
        return view

    def _rows_of(self, per: Period, periods: tuple[str, ...]) -> AnySource:
        """Return the rows of these periods as a source."""
        return per.restrict(self._full_source, periods)

    @property
    def accounts(self) -> list[Account]:
        """The accounts of the dataset: one, or with a budget per period one for each period of this view
        (in a view of the whole table: for each period that was charged), as `Accounts.all` lists them."""
        # The steward has no budget of their own, and so sees the dataset's.
        return self.accounts_of(STEWARD)

    @_require.check_options
    def accounts_of(self, analyst: str) -> list[Account]:
        """Return the accounts that `analyst` may see: their own if they have a budget of their own, else
        those of the dataset."""
        return self._accounts_for(self.ledger, analyst, self._in_force(self.ledger))[-1].all(self.periods)

    @property
    def spent(self) -> Spent:
        """What the dataset has spent, in the lanes of its filter (`accounting.lanes`); with a budget per
        period, what the period that has spent most has spent."""
        return self.account().spent

    @property
    def used(self) -> float:
        """How much of the dataset's budget is spent, in the budget's own unit; with a budget per period, how
        much the period that has spent most has spent."""
        return self.account().used

    @property
    def remaining(self) -> float:
        """How much of the dataset's budget is left, rounded down; with a budget per period, how much the
        period that has spent most has left."""
        return self.account().left

    @_require.check_options
    def require_here(self, thing: Any) -> None:
        """Refuse what works beside the table only: here everything does."""

    @_require.check_options
    def require_analyst(self, name: str) -> None:
        """Refuse a name that is not an analyst of this dataset."""
        self.policy.of(name)

    def account(self, analyst: str = STEWARD) -> Account:
        """Return the account of `analyst`: that of their own budget, or the dataset's if they have none. With
        a budget per period, it is that of the period that has spent most."""
        own = self._accounts_for(self.ledger, analyst, self._in_force(self.ledger))[-1]
        per, accounts = own.budget.per, own.all(self.periods)
        # The last account is then that of all periods together, which has another budget.
        limited = per is not None and per.limit is not None
        return max(accounts[:-1] if limited else accounts, key=lambda account: account.used)

    @_require.check_options
    def preview(
        self, event: Event, *, analyst: str = STEWARD, requested_price: RequestedPrice | None = None
    ) -> FilterPreview:
        """Return what an event would cost the dataset, or an analyst's own account. Reads no data.

        `admitted` and `fits` (how many more such events there is budget for) are the smaller ones of the
        dataset and the analyst: where the dataset has less left, an analyst learns from `fits` how much. All
        other numbers are of the analyst's own account, or the dataset's if they have none. `requested_price`
        is the (epsilon, delta) that the release was asked with, if any: `requested_price_of(mechanism)`.
        """
        with self.ledger.refreshed():
            policy, is_stopped = self._in_force(self.ledger), False
            owners = self._accounts_for(self.ledger, analyst, policy)
            previews = [accounts.preview(event, self.periods, requested_price) for accounts in owners]
            try:
                self._guard(
                    self.ledger,
                    policy,
                    analyst,
                    lambda: owners[0].priced(event, self.periods, requested_price)[0][1],
                )
            except BudgetExceeded:
                is_stopped = True
        tightest = min(
            previews,
            key=lambda preview: (preview.admitted, float("inf") if preview.fits is None else preview.fits),
        )
        fits = 0 if is_stopped else tightest.fits
        return replace(previews[-1], admitted=tightest.admitted and not is_stopped, fits=fits)

    @_require.paying
    def enter(self, event: Event, note: str) -> Entry:
        """Charge the event of a release that was made elsewhere, so that it counts; refused if the budget is
        too small for it. `note` says what it was, for the record."""
        self._prepare(event, STEWARD)
        with self.ledger.writing() as writer:
            return self._charge(writer, event, STEWARD, text=note, elsewhere=True)

    @_require.check_options
    def note(self, kind: str, body: dict[str, Any]) -> Entry:
        """Append a signed entry of a kind in `NOTES`, for something that is not charged but should be on
        record: that somebody has looked at the data itself, for example."""
        if kind not in NOTES:
            raise _require.fail("kind", kind, " or ".join(map(repr, NOTES)))
        with self.ledger.writing() as writer:
            return writer.append(kind, body)

    @_require.check_options
    def change_policy(
        self,
        policy: Policy,
        *,
        large_delta: bool = False,
        large_epsilon: bool = False,
        replacing: Policy | None = None,
    ) -> None:
        """Change the budgets from now on.

        Everything spent so far is counted again under the new budgets, and must be within them. With
        `replacing`, the policy that the caller has seen, nothing is changed if another one is in force by
        then. `large_delta` and `large_epsilon` are explained in `Policy.check`.

        Decide without looking at answers: the guarantee of a budget that was chosen because of what was
        released is weaker, as the deltas of all budgets that might have been chosen add up
        (docs/proofs/filters.md).
        """
        if not isinstance(policy, Policy):
            raise _require.fail("policy", policy, "a Policy(budget=..., analysts=...)")
        public = self._full_source.public
        policy.check(public, large_delta=large_delta, large_epsilon=large_epsilon, before=self.policy)
        with self.ledger.writing() as writer:
            if replacing is not None and self._in_force(writer) != replacing:
                raise InvalidInput(
                    "the budgets were changed by somebody else in the meantime. Nothing was changed. Look at "
                    "what is there now."
                )
            pairs = ((None, policy.budget), *policy.analysts)
            owners = [
                Accounts(writer, public, budget, owner) for owner, budget in pairs if budget is not None
            ]
            for accounts in owners:
                accounts.check()
            changed = writer.append("policy", {"policy": _registry.to_json(policy)})
            for accounts in owners:
                accounts.recount(writer, changed)

    def verify(self, anchor: Anchor | None = None) -> list[str]:
        """Return what is wrong with the ledger, in words: its chain, its totals and references, and the files
        of its vault (`books.verify`)."""
        from .books import verify

        return verify(self.ledger, anchor)

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


# A curator without the data: on a machine that does not have the table, budgets can be read, and releases
# that were made elsewhere can be entered.
_NO_TABLE = "the ledger was opened without its table. Open the table with it: dp.open(...)."


@dataclass(frozen=True, slots=True)
class NoData:
    """Stands for the source of a table that this process does not have; only its public facts are known."""

    public: Public
    why: str = _NO_TABLE

    def ready(self) -> None:
        """Refuse every question: the curator calls this before each charge."""
        raise LedgerError(self.why)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        raise LedgerError(self.why)


class Books(Curator):
    """Reads budgets and enters releases without the table; refuses mechanisms, which would read it, before
    they are charged."""

    def _rows_of(self, per: Any, periods: tuple[str, ...]) -> Any:
        """Return the public facts of these rows: nothing is read, so no view of the rows is needed."""
        return replace(self._full_source, public=per.public_of(self._full_source.public, periods))


def without_data(path: str | Path) -> Books:
    """Return the curator of a ledger whose key lies beside it: `enter` and `preview` work, mechanisms do
    not."""
    ledger = Ledger(Path(path), Key.load(key_path(Path(path))))
    return Books(NoData(public_of(ledger)), ledger)


def read_only(path: str | Path) -> Books:
    """Return the curator of a ledger without its key: the ledger can be read, and nothing can be entered."""
    ledger = Ledger(Path(path))
    return Books(NoData(public_of(ledger)), ledger)
