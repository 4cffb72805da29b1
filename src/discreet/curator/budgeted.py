"""Joins one dataset with its ledger and its budgets: accounts, previews, charges. It reads no row and runs no
mechanism.

`Curator`, a subclass, runs mechanisms; whatever it releases was charged here before.

Defines releases that a server withholds for a public time, also from somebody who asks the same question
again.

A server shows the answer to a question at the end of its public time, a period whose length does not depend
on the data, so that the time does not tell how long the work took. But an answer is stored as soon as its
work is done. Without this module, whoever asks the same question again within the public time would learn
whether it is done: until then the question is charged again (or refused for lack of budget), and from then on
it is served from the store.
"""

from __future__ import annotations

import copy
import glob
import math
import multiprocessing
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .. import _registry, _require
from .._errors import BudgetExceeded, InvalidInput, LedgerError, NotPrivate
from .._public import Public
from ..accounting import Event, NonPrivate, events
from ..accounting.caps import RequestedPrice
from ..accounting.filters import BudgetFilter, FilterPreview
from ..accounting.lanes import Item, Spent
from ..mechanisms.protocols import AnySource
from ..sampling import Entropy
from . import identities
from .accounts import (
    SPENDING,
    Account,
    Accounts,
    cap_field,
    periods_field,
    policy_of,
    priced,
    public_of,
)
from .keys import Key
from .ledger import Anchor, Entry, Ledger, Writer
from .policy import STEWARD, Period, Policy
from .store import is_pointer

if TYPE_CHECKING:
    from .vault import Vault


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
        for entry in writer.entries(kind=SPENDING, after=_before(writer, last.seq, first)):
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


def _before(writer: Ledger | Writer, last: int, moment: datetime) -> int:
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


# Kinds of entries that are neither a charge nor a release: somebody looked at the data itself, or the steward
# (who sets the budgets) did something on a server. Stored in ledgers: they never change.
NOTES = ("looked", "steward")


class BudgetedDataset:
    """Keeps the budgets of one dataset: opens its ledger, counts what was spent, and charges."""

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
        # Part of the keys of questions where no version of the table is declared (`Curator._question`): one
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
            from . import tickets

            tickets.sweep(path)
            curator.vault.sweep()
        return curator

    @property
    def policy(self) -> Policy:
        """The budgets now in force."""
        with self.ledger.refreshed():
            return policy_of(self.ledger)

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
            after = 0 if last is None else _before(writer, last.seq, midnight)
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


def key_path(path: Path) -> Path:
    """Return the path of a ledger's key: that of the ledger, with ".key" behind it."""
    return path.with_name(path.name + ".key")


def _identity(public: Public) -> tuple[Any, ...]:
    """Return the public facts that must be the same in all versions of a table: its name, the unit that is
    protected, and the neighbor relation."""
    return public.table, public.unit.column, public.neighbors
