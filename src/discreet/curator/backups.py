"""Copies a ledger with all that it needs to go on: its entries, the blobs of its vault, and its key.

Reads an exported ledger: a file with one JSON object per entry, which can be read and verified without the
ledger's own file, its key or the sealed state.

Carries the charges of a ledger over to a new one: after a lost key, or for a renamed table.

Every charge is entered again under the name of its analyst, with its event, its caps and its deltas, so that
the dataset and each analyst go on with what they had spent. Then all accounts are counted anew, as after a
change of budgets: no total is taken from the old ledger. Releases and live mechanisms do not move.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _registry, _system
from .._errors import BudgetExceeded, InvalidInput, LedgerError
from ..accounting import events
from . import accounts as charges
from . import books
from .accounts import Accounts
from .curator import Curator
from .door import key_path
from .entries import hash_of, lies_beside, value_of, with_values
from .ledger import Anchor, Entry, Ledger, LedgerReader, Writer, canonical, verify
from .postgres_store import PostgresStore
from .store import sync_folder
from .vault import Vault, newest_blobs


def back_up(ledger: Ledger, target: Path) -> bool:
    """Copy a ledger to a new file `target`, its vault beside that, and its key too if it lies beside the
    ledger; return whether it does.

    All of it is one state of the ledger: no transaction is opened meanwhile, and the blobs that the newest
    entries name are removed only after a newer transaction.
    """
    if isinstance(ledger.store, PostgresStore):
        raise LedgerError(
            f"the entries and blobs of {ledger.path} are in a database. Nothing was copied. Back them up "
            f"there (pg_dump --schema={ledger.store.name}), and copy {key_path(ledger.path)}."
        )
    # SQLite would take the journal of another file for that of the copy.
    for path in (target, key_path(target), _vault(target), Path(f"{target}-journal")):
        if os.path.lexists(path):
            raise LedgerError(f"{path} exists already. A backup overwrites nothing, and nothing was copied.")
    return ledger.look(lambda reader: _copy(ledger, reader, target))


def _copy(ledger: Ledger, reader: LedgerReader, target: Path) -> bool:
    """Write the files of a backup; return whether the key was there to be copied. If one cannot be written,
    those before it are removed."""
    made: list[Path] = []
    try:
        _copy_vault(ledger, reader, _vault(target), made)
        has_key = key_path(ledger.path).is_file()
        if has_key:
            _write(key_path(target), key_path(ledger.path).read_bytes(), made)
        # The ledger comes last: what lies beside it is complete.
        _write(target, b"", made)
        with closing(sqlite3.connect(target)) as copy:
            reader.db.backup(copy)
        sync_folder(target.parent)
    except (OSError, sqlite3.Error) as error:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        raise LedgerError(
            f"no backup can be made at {target} ({_system.reason_of(error)}). Nothing was copied."
        ) from None
    return has_key


def _copy_vault(ledger: Ledger, reader: LedgerReader, folder: Path, made: list[Path]) -> None:
    """Copy the newest version of every blob to a new folder; make none where there are no blobs."""
    names = {entry.body.get("file") for entry in newest_blobs(reader)} - {None}
    if not names:
        return
    folder.mkdir(mode=0o700)
    made.append(folder)
    for name in names:
        data = Vault(ledger).blobs.read(str(name))
        # A blob that is lost already is reported by `books.verify`, of the ledger and of its copy.
        if data is not None:
            _write(folder / Path(str(name)).name, data, made)
    sync_folder(folder)


def _vault(target: Path) -> Path:
    return Path(os.path.realpath(target) + "-vault")


def _write(path: Path, data: bytes, made: list[Path]) -> None:
    """Write a new file that only its owner can read, and wait until it is on disk."""
    handle = _system.create_file(path)
    made.append(path)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        _system.sync(file)


@dataclass(frozen=True, slots=True)
class ExportedEntry(Entry):
    """Holds an entry without its sealed (encrypted) state, which is never exported. The state's `digest` is;
    the hash of the entry covers no more of it."""

    digest: str | None = None
    # The text of its value, if that lies beside the chain.
    text: str | None = None

    @property
    def seal(self) -> str | None:
        return self.digest


class Export:
    """Reads the entries of an export, with the methods with which a `Ledger` is read: `books.verify` takes
    either.

    The file may have been written by anybody. Whatever it holds, nothing but a LedgerError is raised;
    `verify` returns what is wrong with it, an empty list if nothing is.
    """

    # Like a ledger that was opened without its key.
    key = None

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            self._entries = [_entry(json.loads(line)) for line in lines if line.strip()]
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise LedgerError(
                f"{path} is not an export of a discreet ledger: lines of JSON, as `discreet ledger "
                f"export` writes them."
            ) from None
        self._texts = {hash_of(entry.text): entry.text for entry in self._entries if entry.text is not None}
        if not self._entries:
            raise LedgerError(f"{path} holds no entry.")

    def entries(self, *, kind: str | None = None, after: int = 0) -> Iterator[Entry]:
        return (entry for entry in self._entries if entry.seq > after and kind in (None, entry.kind))

    def entry(self, seq: int) -> Entry:
        for entry in self._entries:
            if entry.seq == seq:
                return entry
        raise LedgerError(f"the export has no entry {seq}.")

    def last(self, kind: str, topic: str | None = None) -> Entry | None:
        same = [e for e in self._entries if e.kind == kind and topic in (None, e.topic)]
        return same[-1] if same else None

    def topics(self, kind: str, *, after: int = 0) -> list[str]:
        return list(
            dict.fromkeys(
                e.topic for e in self._entries if e.kind == kind and e.seq > after and e.topic is not None
            )
        )

    def value(self, body: dict[str, Any]) -> Any:
        return value_of(body, self._texts.get)

    @property
    def genesis(self) -> Entry:
        return self.entry(1)

    @property
    def anchor(self) -> Anchor:
        return Anchor(self._entries[-1].seq, self._entries[-1].hash)

    def verify(self, anchor: Anchor | None = None, *, key: bytes | None = None) -> list[str]:
        problems: list[str] = []
        found = verify(with_values(self._entries, self._texts.get, problems), anchor, key=key)
        return problems + found


def exported(ledger: Ledger) -> Iterator[str]:
    """Yield the lines of an export: each entry as JSON, with its value in "beside" if its body has the hash
    alone."""
    for entry in ledger.entries():
        facts = entry.to_json()
        if lies_beside(entry.body.get("value")):
            facts["beside"] = ledger.value(entry.body)
        yield json.dumps(facts, sort_keys=True)


def is_export(path: Path) -> bool:
    """Return whether a file is taken for an export: its first byte is that of a JSON object. A ledger starts
    otherwise."""
    try:
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError:
        return False


def _entry(data: dict[str, Any]) -> ExportedEntry:
    """Return an entry from its exported form; raises ValueError or RecursionError for one that no ledger
    could have hashed, such as with a NaN in its body."""
    entry = ExportedEntry(
        seq=int(data["seq"]),
        time=data["time"],
        kind=data["kind"],
        body=dict(data["body"]),
        hash=bytes.fromhex(data["hash"]),
        signature=bytes.fromhex(data["signature"]),
        sealed=None,
        topic=data["topic"],
        digest=data["seal"],
        text=canonical(data["beside"]) if "beside" in data else None,
    )
    canonical(entry.to_json())
    return entry


# The fields of a charge that its price is computed from (`charges`, `accounts.periods_read`).
_PRICE = (
    "event",
    "analyst",
    "elsewhere",
    "periods",
    *(charges.first_delta_field(owner) for owner in (None, "")),
    *(charges.cap_field(owner, total=total) for owner in (None, "") for total in (False, True)),
)
# The number that a carried charge for a stored release has in place of that release: no entry has it.
NO_RELEASE = 0


def carry(
    curator: Curator, old: Ledger | Export, *, anchor: Anchor | None = None, key: bytes | None = None
) -> int:
    """Enter all charges of `old` in the ledger of `curator`, which has none yet, and return their number.

    Guarantee: each account of the new ledger has the charges that it had in the old one, at the same prices
               where the budgets are the same; nothing is entered if they exceed a budget.
    Assumes:   `old` ends where the old ledger ended, which only an `anchor` kept elsewhere shows, and was
               written with its key, which only the public `key` that the steward trusts shows. Chain,
               signatures and totals are verified here.
    """
    problems = books.verify(old, anchor, key=key)  # type: ignore[arg-type]
    if problems:
        raise LedgerError(f"{old.path} does not verify: {problems[0]}. Nothing was carried over.")
    old_public, public = books.public_of(old), books.public_of(curator.ledger)  # type: ignore[arg-type]
    if (old_public.unit.column, old_public.neighbors) != (public.unit.column, public.neighbors):
        raise InvalidInput(
            f"{old.path} protects {old_public.unit.column or 'rows'} under {old_public.neighbors}, and this "
            f"ledger {public.unit.column or 'rows'} under {public.neighbors}: prices of one are none of the "
            f"other. Nothing was carried over. Open the new ledger with the unit and neighbors of the old."
        )
    spending = [entry for entry in old.entries() if entry.kind in (books.SPENDING, books.SERVED)]
    with curator.ledger.writing() as writer:
        if any(charges.last_charge(writer, owner) is not None for owner in (None, *_analysts(spending))):
            raise InvalidInput(
                "this ledger has charges already. Nothing was carried over. Carry into a new one, before "
                "anything is asked: discreet init DATA --ledger NEW, with the budget of the old one."
            )
        for entry in spending:
            writer.append(entry.kind, _body(entry), topic=entry.body["analyst"])
        what = f"carried over {len(spending)} charges of the ledger with the anchor {old.anchor}"
        writer.append("steward", {"by": "discreet ledger carry", "what": what})
        _count(curator, writer)
    return len(spending)


def _analysts(spending: list[Entry]) -> list[str]:
    return list(dict.fromkeys(str(entry.body["analyst"]) for entry in spending))


def _body(entry: Entry) -> dict[str, Any]:
    """Return the body of a charge as it is entered again: what its price depends on, and where it is from."""
    # Whoever signs with a key of their own can write any body.
    events.from_json(entry.body["event"])
    if not isinstance(entry.body["analyst"], str):
        raise LedgerError(f"entry {entry.seq} names no analyst. Nothing was carried over.")
    body: dict[str, Any] = {name: entry.body[name] for name in _PRICE if name in entry.body}
    if entry.kind == books.SERVED:
        body["release"] = NO_RELEASE
    body["text"] = f"carried over: {entry.body.get('text') or 'a mechanism'}"
    return body | {"carried": {"entry": entry.seq, "time": entry.time}}


def _count(curator: Curator, writer: Writer) -> None:
    """Count all accounts from the list of charges, as a change of budgets does; refuse charges that exceed a
    budget."""
    policy, public = books.policy_of(writer), books.public_of(writer)
    pairs = ((None, policy.budget), *policy.analysts)
    owners = [Accounts(writer, public, budget, owner) for owner, budget in pairs if budget is not None]
    try:
        for accounts in owners:
            accounts.check()
    except BudgetExceeded as refused:
        raise BudgetExceeded(
            f"the charges exceed the budgets of the new ledger. Nothing was carried over. Open it with the "
            f"budgets of the old one, or larger ones. ({refused})"
        ) from None
    changed = writer.append("policy", {"policy": _registry.to_json(policy)})
    for accounts in owners:
        accounts.recount(writer, changed)
