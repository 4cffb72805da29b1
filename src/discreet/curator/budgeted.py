"""One dataset with its ledger and its budgets: accounts, previews, charges. It reads no row and runs nothing.

`Curator` runs mechanisms on top of it; whatever it releases was charged here before.
"""

from __future__ import annotations

import copy
import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from .. import _registry, _require
from .._errors import BudgetExceeded, InvalidInput, LedgerError, NotPrivate
from .._public import Public
from ..accounting import Event, NonPrivate, events
from ..accounting.caps import RequestedPrice
from ..accounting.filters import BudgetFilter, FilterPreview
from ..accounting.lanes import Spent
from ..mechanisms.protocols import AnySource
from ..sampling import Entropy
from . import books, limits, tickets
from .accounts import Account, Accounts, periods_field
from .keys import Key
from .ledger import Anchor, Entry, Ledger, Writer
from .periods import Period
from .policy import STEWARD, Policy
from .vault import Vault
from .withholding import Withheld

# kinds of entries that are neither a price nor a release: a look at the data, an act of a server's steward
NOTES = ("looked", "steward")


class BudgetedDataset:
    """Keeps the budgets of one dataset: opens its ledger, counts what was spent, and charges."""

    def __init__(self, source: AnySource, ledger: Ledger) -> None:
        # Of either kind, a table or examples: a mechanism refuses the kind that it does not read.
        self.source: Any = source
        self.ledger = ledger

        self.periods: tuple[str, ...] = ()
        # how the table was cut into periods when this view was made
        self._period_cut: list[str | None] | None = None
        self._full_source: Any = source
        table = books.public_of(ledger)
        if _identity(table) != _identity(source.public):
            raise LedgerError(
                f"{ledger.path} belongs to table {table.table!r} with another unit or relation. "
                f"Nothing was read. "
                f"All versions of a table share one ledger, but the protected unit and the relation "
                f"stay what they are."
            )
        self._entropy = Entropy()
        self._fingerprint: str | None = None
        # what a server does not serve yet
        self.withheld: Withheld | None = None
        # and how long it writes nothing of a run with a secret number of steps
        self.sealed_for = 0.0
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
        durable: bool = True,
        remote: str | None = None,
    ) -> Self:
        """Create a ledger at `path`, and its key beside it in `path`.key: keep the key where analysts are
        not.

        Not `durable` is for a ledger that is thrown away with its session: it does not wait for the disk.
        `remote`: a PostgreSQL database that keeps the entries, "postgresql://user@host/books::name"; the file
        at `path` then says where they are.
        """
        path = Path(path)
        if path.exists() or path.is_symlink():
            raise LedgerError(
                f"{path} exists already, or is a link. A ledger is never overwritten: nothing was changed."
            )
        policy.check(source.public, large_delta=large_delta)
        key = Key.create(key_path(path), durable=durable)
        body = {"public": _registry.to_json(source.public), "policy": _registry.to_json(policy)}
        try:
            ledger = Ledger.create(path, key, body, durable=durable, remote=remote)
        except BaseException:
            # a key without a ledger would be in the way of the next try
            key_path(path).unlink()
            raise
        return cls(source, ledger)

    @classmethod
    def open(cls, path: str | Path, source: AnySource) -> Self:
        """Open an existing ledger, with its key."""
        path = Path(path)
        if not path.exists():
            raise LedgerError(f"there is no ledger at {path}. Make one with a budget first.")
        tickets.sweep(path)
        curator = cls(source, Ledger(path, Key.load(key_path(path))))
        curator.vault.sweep()
        return curator

    @property
    def policy(self) -> Policy:
        """The budgets now in force."""
        return books.policy_of(self.ledger)

    @property
    def vault(self) -> Vault:
        """The secret blobs of charges, beside the ledger."""
        return Vault(self.ledger)

    @property
    def filter(self) -> BudgetFilter:
        return books.rule_of(self.ledger)

    def during(self, *periods: str) -> Self:
        """Return a view of the rows of some periods only; what is asked there is charged to each of these
        periods.

        Guarantee: what depends on the rows of one unit within one period keeps that period's budget
                   (docs/filters.md, Theorem 5).
        Assumes:   rows do not move to another period in later versions of the table.
        """
        per = self.policy.budget.per
        if per is None:
            raise InvalidInput("this dataset has one budget, not one per period. Nothing was charged.")
        per.check(self._full_source.public)
        _require.non_empty(periods=periods)
        named = tuple(sorted({per.named(period, self._full_source.public) for period in periods}))
        part = copy.copy(self)
        part.periods, part._period_cut, part.source = named, per.cut, self._part(per, named)
        return part

    def _part(self, per: Period, periods: tuple[str, ...]) -> AnySource:
        return per.restrict(self._full_source, periods)

    def _in_force(self, ledger: Ledger | Writer) -> Policy:
        """Return the budgets now in force; refused if they cut the table in another way than when the periods
        of this view were chosen."""
        policy = books.policy_of(ledger)
        per = policy.budget.per
        if self.periods and (per is None or per.cut != self._period_cut):
            raise InvalidInput(
                "the budgets were changed since these periods were chosen, and the table is cut into "
                "periods in another way now. Nothing was "
                "charged or read. Choose periods again: during(...)."
            )
        return policy

    @property
    def accounts(self) -> list[Account]:
        """What the dataset has spent: one account, or with a budget per period one for each period that is
        looked at."""
        return self.accounts_of(STEWARD)

    def accounts_of(self, analyst: str) -> list[Account]:
        """Return the accounts that `analyst` may see: their own if they have a budget, else those of the
        dataset."""
        return self._accounts_for(self.ledger, analyst, self._in_force(self.ledger))[-1].all(self.periods)

    @property
    def spent(self) -> Spent:
        """What the dataset has spent, in the lanes of its filter; with a budget per period, of the period
        that has spent most."""
        return self.account().spent

    @property
    def used(self) -> float:
        """How much of the dataset's budget is gone, in the budget's own unit; with a budget per period, of
        the period that has spent most."""
        return self.account().used

    @property
    def remaining(self) -> float:
        return self.account().left

    def account(self, analyst: str = STEWARD) -> Account:
        """Return the account of `analyst`: their own budget's, or the dataset's if they have none; of several
        periods, the one of which the largest part is gone."""
        own = self._accounts_for(self.ledger, analyst, self._in_force(self.ledger))[-1]
        per, accounts = own.budget.per, own.all(self.periods)
        # the last one is of all periods together, and has a budget of its own
        limited = per is not None and per.limit is not None
        return max(accounts[:-1] if limited else accounts, key=lambda account: account.used)

    def preview(
        self, event: Event, *, analyst: str = STEWARD, requested_price: RequestedPrice | None = None
    ) -> FilterPreview:
        """Return what an event would cost the dataset, or an analyst's own account. Touches no data.

        Whether it is admitted, and how many more of it would be, takes both accounts into account, and so
        tells an analyst how much the dataset has left where that is less; the other numbers are their own.
        `requested_price` is the (epsilon, delta) it was asked with, where it was:
        `requested_price_of(mechanism)`.
        """
        owners = self._accounts_for(self.ledger, analyst, self._in_force(self.ledger))
        views = [accounts.preview(event, self.periods, requested_price) for accounts in owners]
        tightest = min(
            views, key=lambda view: (view.admitted, float("inf") if view.fits is None else view.fits)
        )
        return replace(views[-1], admitted=tightest.admitted, fits=tightest.fits)

    def enter(self, event: Event, note: str) -> Entry:
        """Record what was released elsewhere, so that it counts. Refused if the budget does not hold it."""
        self._prepare(event, STEWARD)
        with self.ledger.writing() as writer:
            return self._charge(writer, event, STEWARD, text=note, elsewhere=True)

    def note(self, kind: str, body: dict[str, Any]) -> Entry:
        """Write down, signed like everything else, that something happened which costs nothing but should be
        known: a look at the data."""
        if kind not in NOTES:
            raise _require.fail("kind", kind, " or ".join(map(repr, NOTES)))
        with self.ledger.writing() as writer:
            return writer.append(kind, body)

    def change_policy(
        self, policy: Policy, *, large_delta: bool = False, replacing: Policy | None = None
    ) -> None:
        """Change the budgets from now on.

        Everything spent so far is counted again under the new rule, and must fit it. With `replacing`,
        nothing is changed if another policy than this one is in force by then.

        Decide without looking at answers: the guarantee of a budget that was chosen because of what was
        released is weaker, as the deltas of all budgets that might have been chosen add up (docs/filters.md).
        """
        if not isinstance(policy, Policy):
            raise _require.fail("policy", policy, "a Policy(budget=..., analysts=...)")
        public = self._full_source.public
        policy.check(public, large_delta=large_delta)
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
        """Return what is wrong with the ledger, in words: its chain, and the totals that its charges
        claim."""
        return books.verify(self.ledger, anchor) or self.vault.problems()

    def _prepare(self, event: Event, analyst: str, requested_price: RequestedPrice | None = None) -> None:
        """Let the accountant work before the ledger is locked: under the lock, what it found is looked up in
        its caches.

        Decides nothing. What is wrong with the event or the analyst is said under the lock, and if somebody
        else is charged in between, a cap may have to be computed there.
        """
        with suppress(Exception):
            policy = self._latest or self._in_force(self.ledger)
            price = policy.budget.filter(self._full_source.public.neighbors).price(event)
            # A pure epsilon is charged as it is, and there is nothing more to compute: the ledger need not be
            # read for that.
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
        """Charge an event to the dataset and to the analyst, or refuse it, in one transaction."""
        limits.check_script()
        if not isinstance(event, Event):
            raise _require.fail("event", event, "an accounting event, such as PureDP(epsilon=1)")
        if any(isinstance(leaf, NonPrivate) for leaf in events.leaves(event)):
            raise NotPrivate(
                "this has no privacy guarantee (its event is NonPrivate). Nothing was charged, read "
                "or released."
            )
        price = event.to_json()
        limits.check_description(price)
        body: dict[str, Any] = {"event": price, "analyst": analyst}
        body |= {name: value for name, value in facts.items() if value}
        # Read and verified once: nobody else can write while this transaction is open.
        policy = self._latest = self._in_force(writer)
        return self._write_charge(
            writer,
            books.SPENDING,
            body,
            event,
            policy,
            self._accounts_for(writer, analyst, policy),
            requested_price,
        )

    def _accounts_for(self, ledger: Ledger | Writer, analyst: str, policy: Policy) -> list[Accounts]:
        """Return the accounts that must admit what `analyst` asks: the dataset's, and their own if they have
        a budget."""
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
        """Write the entry of a charge, and all running totals; refused, and nothing written, if one account
        does not admit it."""
        body = body | periods_field(policy.budget, self.periods)
        for accounts in owners:
            body |= _admit(accounts, event, self.periods, requested_price, body, len(owners) > 1)
        entry = writer.append(kind, body, topic=body["analyst"])
        for accounts in owners:
            accounts.post(writer, event, entry, self.periods)
        return entry


def _admit(
    accounts: Accounts,
    event: Event,
    periods: tuple[str, ...],
    requested_price: RequestedPrice | None,
    body: dict[str, Any],
    has_own: bool,
) -> dict[str, Any]:
    """Let an account admit an event; the refusal does not tell an analyst with a budget of their own what
    others have spent of the dataset's."""
    try:
        return accounts.admit(event, periods, requested_price, elsewhere=bool(body.get("elsewhere")))
    except BudgetExceeded:
        if not has_own or accounts.owner is not None:
            raise
        raise BudgetExceeded(
            f"the dataset's budget does not hold this any more, whatever is left of the own budget of "
            f"{body['analyst']!r}. Nothing was charged or released. Ask with less epsilon, or ask the "
            f"steward for more."
        ) from None


def key_path(path: Path) -> Path:
    """Return where the key of a ledger is kept unless another place is named."""
    return path.with_name(path.name + ".key")


def _identity(public: Public) -> tuple[Any, ...]:
    """Return what stays the same over all versions of a table: whom it protects, and from what."""
    return public.table, public.unit.column, public.neighbors
