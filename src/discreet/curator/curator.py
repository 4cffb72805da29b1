"""The curator: holds one dataset and its ledger, and lets out what the budget allows.

`ask` is the whole of it: the filter says yes, the charge is committed to disk, the mechanism runs, the
release is stored and returned. What was asked before is answered from the store, free for the dataset. Knows
no SQL and no models: anything with a price can be asked.
"""

from __future__ import annotations

import copy
import hashlib
import math
import secrets
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import _registry, _require
from .._errors import BudgetExceeded, DescriptionError, InvalidInput, LedgerError, NotPrivate, ReleaseFailed
from .._public import Public
from ..accounting import Event, NonPrivate, events
from ..accounting.caps import RequestedPrice, asked_of
from ..accounting.filters import BudgetFilter, FilterPreview
from ..accounting.lanes import Spent
from ..mechanisms.protocols import (
    AnySource,
    Interactive,
    Mechanism,
    Release,
    SecretlyStepped,
    Stepped,
    as_of,
    check_source,
    rehearse,
)
from ..sampling import Entropy
from . import books, limits, sealed_runs, segments, tickets, values
from .accounts import Account, Accounts, said
from .keys import Key
from .ledger import Anchor, Entry, Ledger, Writer, canonical
from .live import InteractiveHandle
from .periods import Period
from .policy import STEWARD, Policy
from .vault import Vault
from .withholding import Withheld

# kinds of entries that are neither a price nor a release: a look at the data, an act of a server's steward
NOTES = ("looked", "steward")


class Curator:
    """One dataset, one budget."""

    def __init__(self, source: AnySource, ledger: Ledger) -> None:
        # Of either kind: which one a mechanism reads is its own affair, and it refuses the other.
        self.source: Any = source
        self.ledger = ledger
        self.periods: tuple[str, ...] = ()  # all of them
        # how the table was cut into periods when this view was made
        self._cut: list[str | None] | None = None
        self._whole: Any = source
        table = books.public_of(ledger)
        if _identity(table) != _identity(source.public):
            raise LedgerError(
                f"{ledger.path} belongs to table {table.table!r} with another unit or relation. "
                f"Nothing was read. "
                f"All versions of a table share one ledger, but the protected unit and the relation "
                f"stay what they are."
            )
        self._entropy = Entropy()
        self._seen: str | None = None
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
    ) -> Curator:
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
        key = Key.create(key_path(path))
        body = {"public": _registry.to_json(source.public), "policy": _registry.to_json(policy)}
        try:
            ledger = Ledger.create(path, key, body, durable=durable, remote=remote)
        except BaseException:
            key_path(path).unlink()  # a key without a ledger would be in the way of the next try
            raise
        return cls(source, ledger)

    @classmethod
    def open(cls, path: str | Path, source: AnySource) -> Curator:
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

    def during(self, *periods: str) -> Curator:
        """Return a view of the rows of some periods only; what is asked there is charged to each of these
        periods.

        Guarantee: what depends on the rows of one unit within one period keeps that period's budget
                   (docs/filters.md, Theorem 5).
        Assumes:   rows do not move to another period in later versions of the table.
        """
        per = self.policy.budget.per
        if per is None:
            raise InvalidInput("this dataset has one budget, not one per period. Nothing was charged.")
        per.check(self._whole.public)
        _require.non_empty(periods=periods)
        named = tuple(sorted({per.named(period, self._whole.public) for period in periods}))
        part = copy.copy(self)
        part.periods, part._cut, part.source = named, per.cut, self._part(per, named)
        return part

    def _part(self, per: Period, periods: tuple[str, ...]) -> AnySource:
        return per.restrict(self._whole, periods)

    def _in_force(self, ledger: Ledger | Writer) -> Policy:
        """Return the budgets now in force; refused if they cut the table in another way than when the periods
        of this view were chosen."""
        policy = books.policy_of(ledger)
        per = policy.budget.per
        if self.periods and (per is None or per.cut != self._cut):
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
        return self._owners(self.ledger, analyst, self._in_force(self.ledger))[-1].all(self.periods)

    @property
    def spent(self) -> Spent:
        """What the dataset has spent, in the lanes of its filter; with a budget per period, where most is
        gone."""
        return self.account().spent

    @property
    def used(self) -> float:
        """How much of the dataset's budget is gone, in the budget's own unit; with a budget per period, where
        most is gone."""
        return self.account().used

    @property
    def remaining(self) -> float:
        return self.account().left

    def account(self, analyst: str = STEWARD) -> Account:
        """Return the account of `analyst`: their own budget's, or the dataset's if they have none; of several
        periods, the one of which the largest part is gone."""
        owned = self._owners(self.ledger, analyst, self._in_force(self.ledger))[-1]
        per, accounts = owned.budget.per, owned.all(self.periods)
        # the last one is of all periods together, and has a budget of its own
        limited = per is not None and per.limit is not None
        return max(accounts[:-1] if limited else accounts, key=lambda account: account.used)

    def preview(
        self, event: Event, *, analyst: str = STEWARD, asked: RequestedPrice | None = None
    ) -> FilterPreview:
        """Return what an event would cost the dataset, or an analyst's own account. Touches no data.

        Whether it is admitted, and how many more of it would be, takes both accounts into account; the
        numbers are the analyst's own. `asked` is the (epsilon, delta) it was asked with, where it was:
        `asked_of(mechanism)`.
        """
        owners = self._owners(self.ledger, analyst, self._in_force(self.ledger))
        views = [owned.preview(event, self.periods, asked) for owned in owners]
        tightest = min(
            views, key=lambda view: (view.admitted, float("inf") if view.fits is None else view.fits)
        )
        return replace(views[-1], admitted=tightest.admitted, fits=tightest.fits)

    def ask(
        self, mechanism: Mechanism, *, analyst: str = STEWARD, text: str | None = None, fresh: bool = False
    ) -> Release:
        """Run a mechanism for its price, or serve its stored release.

        Guarantee: all that is ever returned satisfies the dataset's budget, however questions depend on
                   earlier answers.
        Proof:     the charge passes the filter (docs/filters.md, Theorem 1) inside one exclusive transaction,
                   and is on disk before data is read; a stored release is post-processing of what was paid
                   for.
        Assumes:   the mechanism's event is its true price: it comes from the closed registry, or is the
                   steward's trusted code.

        `text` is what the analyst wrote, for the record. `fresh` pays for new noise where a release is stored
        already.
        """
        _check(mechanism, self.source, Mechanism, "it is asked with Session.start or Curator.start")
        described = _described(mechanism)
        limits.check(mechanism, described, text)
        key = None if described is None else self._question(getattr(mechanism, "key", described))
        asked = asked_of(mechanism)
        self._prepare(mechanism.event, analyst, asked)
        with self.ledger.writing() as writer:
            if self.withheld is not None and described is not None and not fresh:
                asks = question_key(getattr(mechanism, "key", described))
                self.withheld.check(writer, lambda charge: _question_of(charge) == asks)
            stored = None if key is None or fresh else writer.last("release", key)
            if stored is not None:
                return self._serve(writer, stored, mechanism, analyst, text)
            charge = self._charge(
                writer, mechanism.event, analyst, asked, text=text, mechanism=described, trusted=key is None
            )
        return self._run(mechanism, charge, key)

    def start(self, interactive: Interactive, *, analyst: str = STEWARD) -> InteractiveHandle:
        """Pay the whole price of an interactive mechanism, and open it.

        Its secret state lives sealed in the ledger.
        """
        _check(interactive, self.source, Interactive, "it is asked with `ask`")
        described = _described(interactive)
        limits.check(interactive, described)
        asked = asked_of(interactive)
        if getattr(interactive, "blob_size", None) is not None:
            self.vault.blobs.check()
        self._prepare(interactive.event, analyst, asked)
        with self.ledger.writing() as writer:
            charge = self._charge(
                writer, interactive.event, analyst, asked, mechanism=described, trusted=described is None
            )
        try:
            return InteractiveHandle.begin(self.ledger, self.source, interactive, charge, self._entropy)
        except Exception as error:
            raise self._failed(charge) from (error if analyst == STEWARD else None)

    def run(
        self,
        mechanism: Stepped | SecretlyStepped,
        *,
        checkpoint: str | Path | None = None,
        every: int = 100,
        number: int | None = None,
        analyst: str = STEWARD,
        text: str | None = None,
        progress: segments.Watch | None = None,
        pace: float = 0.0,
        seconds: float = 0.0,
    ) -> Release:
        """Pay the whole price of a mechanism that runs in steps, and run it: `segments.train`, or if the
        number of steps is secret, `sealed_runs.run`.

        The first kind keeps its own `checkpoint` file after `every` steps and shows its `progress`. The
        second keeps its state in the vault: `number`, that of its charge, goes on with one that was
        interrupted; `pace`, or `seconds` for the whole of it, hides its running time.
        """
        if isinstance(mechanism, SecretlyStepped):
            if checkpoint is not None or progress is not None:
                raise InvalidInput(
                    "a run with a secret number of steps keeps its state in the vault and shows no "
                    "progress. Nothing was charged or read."
                )
            return sealed_runs.run(
                self, mechanism, number=number, analyst=analyst, text=text, pace=pace,
                seconds=seconds or self.sealed_for,
            )  # fmt: skip
        if number is not None or pace or seconds:
            raise InvalidInput(
                "number, pace and seconds are for runs with a secret number of steps; others are resumed "
                "from their checkpoint. Nothing was charged or read."
            )
        return segments.train(
            self, mechanism, checkpoint, every=every, analyst=analyst, text=text, progress=progress
        )

    def resume(
        self, interactive: Interactive, number: int, *, analyst: str | None = None
    ) -> InteractiveHandle:
        """Open an interactive mechanism that was started before, where it stands; `number` is that of its
        charge.

        The table may be another version than it was started on, if the mechanism says that it goes on with
        any (see `Interactive`). With an `analyst`, who goes on must be who paid, or the steward: what others
        bought is not on their account.
        """
        if isinstance(getattr(self.source, "public", None), Public):
            interactive = as_of(interactive, self.source.public)
        _check(interactive, self.source, Interactive, "it is asked with `ask`")
        _require.integer(number=number)
        charge = self.ledger.entry(number)
        described = _described(_as_started(interactive, charge))
        trusted = described is None and not charge.body.get("trusted")
        elsewhere = charge.body.get("periods") != said(self._in_force(self.ledger).budget, self.periods).get(
            "periods"
        )
        if charge.kind != books.SPENDING or charge.body.get("mechanism") != described or trusted or elsewhere:
            raise InvalidInput(
                f"entry {number} of the ledger is not the start of this mechanism. Nothing was charged."
            )
        if analyst not in (None, STEWARD, charge.body.get("analyst")):
            raise InvalidInput(
                f"entry {number} of the ledger is no mechanism that {analyst} has started. Nothing was read "
                f"or charged. Start one of your own."
            )
        return InteractiveHandle(self.ledger, self.source, interactive, charge.seq, self._entropy)

    def feed(
        self, interactive: Interactive, number: int, *, analyst: str | None = None, batch: bool = False
    ) -> Release | None:
        """Give this curator's table, the next version or a batch of new rows, to a mechanism that was started
        before; free of charge.

        `batch` says that this curator's table is the new rows alone. A mechanism that cannot tell old rows
        from new ones (`batches_only`) takes nothing else: a row would count once in each version.

        Guarantee: that of the mechanism, for histories that differ in the rows of one unit in all versions or
                   batches.
        Proof:     the mechanism's own; it is given each version at most once, in the order of tickets, like a
                   question (`InteractiveHandle.answer`).
        Assumes:   versions have different names, and when one arrives does not depend on the data.
        """
        if not hasattr(interactive, "feed"):
            instead = (
                "resume it over the new version"
                if getattr(interactive, "any_version", False)
                else "start a new one"
            )
            raise InvalidInput(
                f"{type(interactive).__name__} is not fed with batches or versions: {instead}. "
                f"Nothing was read or released."
            )
        return self.resume(interactive, number, analyst=analyst).feed(batch=batch)

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

    def change_policy(self, policy: Policy, *, large_delta: bool = False) -> None:
        """Change the budgets from now on.

        Everything spent so far is counted again under the new rule, and must fit it.

        Decide without looking at answers: the guarantee of a budget that was chosen because of what was
        released is weaker, as the deltas of all budgets that might have been chosen add up (docs/filters.md).
        """
        if not isinstance(policy, Policy):
            raise _require.fail("policy", policy, "a Policy(budget=..., analysts=...)")
        public = self._whole.public
        policy.check(public, large_delta=large_delta)
        with self.ledger.writing() as writer:
            pairs = ((None, policy.budget), *policy.analysts)
            owners = [
                Accounts(writer, public, budget, owner) for owner, budget in pairs if budget is not None
            ]
            for owned in owners:
                owned.check()
            changed = writer.append("policy", {"policy": _registry.to_json(policy)})
            for owned in owners:
                owned.recount(writer, changed)

    def verify(self, anchor: Anchor | None = None) -> list[str]:
        """Return what is wrong with the ledger, in words: its chain, and the totals that its charges
        claim."""
        return books.verify(self.ledger, anchor) or self.vault.problems()

    def _question(self, described: Any) -> str:
        """Return the key of a question in the store: what is asked and, where data are held in memory, a
        keyed fingerprint of these.

        A data frame that changed gets no old answer, whatever its version says. Nobody without the ledger's
        key can check a guess of the data.
        """
        if getattr(self._whole, "unversioned", False):
            # Nobody has said which version of the table this is: it may be another by now.
            return question_key([described, secrets.token_hex(16)])
        key = self.ledger.key
        unseen = self._seen is None or getattr(self._whole, "changes", False)
        if unseen and key is not None and hasattr(self._whole, "_fingerprint"):
            self._seen = self._whole._fingerprint(key.fingerprints()).hex()
        return question_key([described, self._seen] if self._seen else described)

    def _prepare(self, event: Event, analyst: str, asked: RequestedPrice | None = None) -> None:
        """Let the accountant work before the ledger is locked: under the lock, what it found is looked up in
        its caches.

        Decides nothing. What is wrong with the event or the analyst is said under the lock, and if somebody
        else is charged in between, a cap may have to be computed there.
        """
        with suppress(Exception):
            policy = self._latest or self._in_force(self.ledger)
            price = policy.budget.filter(self._whole.public.neighbors).price(event)
            # A pure epsilon is charged as it is, and there is nothing more to compute: the ledger need not be
            # read for that.
            if math.isfinite(price.sums[0]):
                return
            for owned in self._owners(self.ledger, analyst, policy):
                owned.admit(event, self.periods, asked)

    def _charge(
        self, writer: Writer, event: Event, analyst: str, asked: RequestedPrice | None = None, **facts: Any
    ) -> Entry:
        if not isinstance(event, Event):
            raise _require.fail("event", event, "an accounting event, such as PureDP(epsilon=1)")
        if any(isinstance(leaf, NonPrivate) for leaf in events.leaves(event)):
            raise NotPrivate(
                "this has no privacy guarantee (its event is NonPrivate). Nothing was charged, read "
                "or released."
            )
        price = event.to_json()
        limits.description(price)
        body: dict[str, Any] = {"event": price, "analyst": analyst}
        body |= {name: value for name, value in facts.items() if value}
        # Read and verified once: nobody else can write while this transaction is open.
        policy = self._latest = self._in_force(writer)
        return self._post(
            writer, books.SPENDING, body, event, policy, self._owners(writer, analyst, policy), asked
        )

    def _owners(self, ledger: Ledger | Writer, analyst: str, policy: Policy) -> list[Accounts]:
        """Return the accounts that must admit what `analyst` asks: the dataset's, and their own if they have
        a budget."""
        own = policy.of(analyst)
        dataset = Accounts(ledger, self._whole.public, policy.budget)
        return [dataset, *([] if own is None else [Accounts(ledger, self._whole.public, own, analyst)])]

    def _post(
        self,
        writer: Writer,
        kind: str,
        body: dict[str, Any],
        event: Event,
        policy: Policy,
        owners: list[Accounts],
        asked: RequestedPrice | None = None,
    ) -> Entry:
        """Write the entry of a charge, and all running totals; refused, and nothing written, if one account
        does not admit it."""
        body = body | said(policy.budget, self.periods)
        for owned in owners:
            body |= _admitted(owned, event, self.periods, asked, body, len(owners) > 1)
        entry = writer.append(kind, body, topic=body["analyst"])
        for owned in owners:
            owned.post(writer, event, entry, self.periods)
        return entry

    def _serve(
        self, writer: Writer, stored: Entry, mechanism: Mechanism, analyst: str, text: str | None
    ) -> Release:
        policy = self._in_force(writer)
        policy.of(analyst)
        seen = stored.body["analyst"] == analyst or any(
            entry.body["release"] == stored.seq and entry.body["analyst"] == analyst
            for entry in writer.entries(kind=books.SERVED, after=stored.seq)
        )
        if not seen:
            body = {"event": mechanism.event.to_json(), "analyst": analyst, "release": stored.seq}
            body |= {} if text is None else {"text": text}
            own = self._owners(writer, analyst, policy)[1:]
            self._post(writer, books.SERVED, body, mechanism.event, policy, own, asked_of(mechanism))
        value, errors = values.decode(stored.body["value"]), stored.body.get("errors")
        if hasattr(mechanism, "restated"):  # in the words of who asks now, not of who asked first
            value = mechanism.restated(value)
        error = _own_error(value, mechanism) if errors is None else values.recalled(errors)
        return Release(
            value=value, event=mechanism.event, scored=bool(stored.body.get("scored")), _error=error
        )

    def _run(self, mechanism: Mechanism, charge: Entry, key: str | None) -> Release:
        try:
            release = _released(mechanism(self.source, entropy=self._entropy))
        except Exception as error:
            raise self._failed(charge) from (error if charge.body["analyst"] == STEWARD else None)
        body = {"charge": charge.seq, "analyst": charge.body["analyst"]}
        try:
            body |= {"value": values.encode(release.value), "scored": release.scored}
        except DescriptionError:
            # a trained model, say: it cannot be stored, so it is never served again
            key = None
        else:
            if release._error != _own_error(
                release.value, mechanism
            ):  # it is about this release, not about all of its kind
                body["errors"] = values.tabulated(release._error)
        with self.ledger.writing() as writer:
            writer.append("release", body, topic=key)
        return release

    def _failed(self, charge: Entry) -> ReleaseFailed:
        with self.ledger.writing() as writer:
            writer.append("failed", {"charge": charge.seq, "analyst": charge.body["analyst"]})
        return self.failure(charge)

    def failure(self, charge: Entry) -> ReleaseFailed:
        """Return what may be said of a mechanism that failed."""
        return ReleaseFailed(
            f"the mechanism failed after it was charged (entry {charge.seq} of the ledger). The "
            f"charge stays, because how it "
            f"failed may depend on the data; nothing was released."
        )


def _own_error(value: Any, mechanism: Mechanism) -> Any:
    """Return the error that the released value knows by itself, or else the one that its mechanism has
    beforehand."""
    return getattr(value, "error", None) or getattr(mechanism, "error", None)


def _admitted(
    owned: Accounts,
    event: Event,
    periods: tuple[str, ...],
    asked: RequestedPrice | None,
    body: dict[str, Any],
    has_own: bool,
) -> dict[str, Any]:
    """Let an account admit an event; an analyst with a budget of their own is not told what others have spent
    of the dataset's."""
    try:
        return owned.admit(event, periods, asked, elsewhere=bool(body.get("elsewhere")))
    except BudgetExceeded:
        if not has_own or owned.owner is not None:
            raise
        raise BudgetExceeded(
            f"the dataset's budget does not hold this any more, whatever is left of "
            f"{body['analyst']!r}'s own. Nothing was charged or "
            f"released. Ask with less epsilon, or ask the steward for more."
        ) from None


def key_path(path: Path) -> Path:
    """Return where the key of a ledger is kept unless another place is named."""
    return path.with_name(path.name + ".key")


def question_key(described: Any) -> str:
    """Return what makes two questions the same: the mechanism's own normal form of what it asks, or else its
    complete description."""
    return hashlib.sha256(canonical(described).encode()).hexdigest()


def _question_of(charge: Entry) -> str | None:
    """Return the key of what was charged, whatever data it was asked of; None for trusted code."""
    described = charge.body.get("mechanism")
    if described is None:
        return None
    return question_key(getattr(_registry.from_json(described), "key", described))


def _identity(public: Public) -> tuple[Any, ...]:
    """Return what stays the same over all versions of a table: whom it protects, and from what."""
    return public.table, public.unit.column, public.neighbors


def _as_started(mechanism: Any, charge: Entry) -> Any:
    """Return the mechanism as it was when it was charged: for the version of the table that it was started
    on."""
    described = charge.body.get("mechanism")
    if described is None:
        return mechanism
    return as_of(mechanism, getattr(_registry.from_json(described), "public", mechanism.public))


def _check(mechanism: Any, source: AnySource, kind: Any, instead: str) -> None:
    price, facts = getattr(mechanism, "event", None), getattr(mechanism, "public", None)
    if isinstance(mechanism, type) or not isinstance(price, Event) or not isinstance(facts, Public):
        raise InvalidInput(
            f"{type(mechanism).__name__} is not a mechanism: it has no price (event) for public "
            f"facts (public). Nothing was "
            f"charged or read."
        )
    if not isinstance(mechanism, kind):
        raise InvalidInput(
            f"{type(mechanism).__name__} is of another kind: {instead}. Nothing was charged or read."
        )
    check_source(facts, source, examples=True)
    rehearse(mechanism, source)


def _released(output: Any) -> Release:
    """Check that what a mechanism returned may leave: a release, drawn with the curator's own entropy."""
    if not isinstance(output, Release):
        raise TypeError(f"a mechanism gives a Release, not {type(output).__name__}")
    if not output.private:
        raise NotPrivate("the release says of itself that it is not private: its randomness was seeded.")
    return output


def _described(mechanism: Any) -> Any:
    """Return the complete description, or None for trusted code: that is charged every time."""
    try:
        return _registry.to_json(mechanism)
    except DescriptionError:
        return None
    except (RecursionError, ValueError):
        raise InvalidInput(
            "this is nested too deep, or has a number with too many digits, to be described. Nothing "
            "was charged."
        ) from None
