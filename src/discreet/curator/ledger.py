"""Keeps the ledger: an append-only chain of signed entries in one SQLite file, safe for many processes and
for a power cut.

The hash of each entry covers the hash of the one before, and is signed, so that no entry can be changed,
dropped or inserted without notice. A rollback of the whole file to an earlier state does not break the chain;
it is found by comparing with an *anchor*, the head of the chain, that was kept elsewhere. A charge is
committed to disk before any data is read: a crash may waste budget, but never releases
anything that was not charged. The entries may also be in a PostgreSQL database (`postgres_store`).
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from .. import _require, _system
from .._errors import LedgerError, count_charges
from . import entries as chains
from .entries import GENESIS, Anchor, Entry, Row, canonical, chained, entry_of, set_aside, value_of, verify
from .keys import Key, signed_by
from .store import CONNECTED, FORMAT, PAGE, LedgerStore, Store, Tampered, Writing, is_pointer

T = TypeVar("T")

__all__ = ["Anchor", "Entry", "Ledger", "Writer", "canonical", "verify"]


# Facts of each thread: `paths`, the ledgers for which it computes an answer; `forking`, the histories whose
# locks it has taken for a fork (`_before_fork`).
_LOCAL = threading.local()


def _computing() -> list[str]:
    """Return the paths of the ledgers for which this thread computes an answer."""
    paths: list[str] = _LOCAL.__dict__.setdefault("paths", [])
    return paths


@contextmanager
def computing(ledger: Ledger) -> Iterator[None]:
    """Mark that this thread computes an answer of an interactive mechanism, or a step of a run. A mechanism
    that asks the same ledger meanwhile is refused (`Ledger.writing`): it could wait for its own answer for
    ever."""
    _computing().append(os.path.realpath(ledger.path))
    try:
        yield
    finally:
        _computing().pop()


class _OfThread(threading.local):
    """What each thread has of a ledger: its open transaction, and the process in which it has read new
    entries (`Ledger.refreshed`)."""

    writer: Writer | None = None
    refreshed: int | None = None


class Ledger:
    """Reads and writes one dataset's ledger. Opened without a key, it can be read and verified, not written.

    With a key, entries are verified before they are returned: every hash since the last check, and the
    signature of the newest entry, which covers all before it.
    """

    def __init__(self, path: Path, key: Key | None = None, *, durable: bool = True) -> None:
        _require.flag(durable=durable)
        self.path, self.key, self.durable = path, key, durable
        self._store = store_of(path, durable=durable)
        self._history = History(None if key is None else key.public)
        self._local = _OfThread()
        self._store.check()
        if key is not None:
            first = next(iter(self._rows(strict=False)), None)
            if first is None:
                raise LedgerError(
                    f"{path} holds no entry: making it was interrupted, or it was emptied. Nothing was "
                    f"changed. If nothing was ever asked with it, take it and its key away, and make it anew."
                )
            if key.public.hex() != entry_of(first).body.get("key"):
                raise LedgerError(
                    f"the key given is not the one that {path} was made with. Nothing was changed."
                )
            # Reading the head verifies the whole chain, once at the start.
            if self.anchor.seq < 1:
                raise LedgerError(f"{path} holds no entry. Nothing was changed.")

    @classmethod
    def create(
        cls, path: Path, key: Key, body: dict[str, Any], *, durable: bool = True, remote: str | None = None
    ) -> Ledger:
        """Create a ledger whose first entry holds `body` and the public key.

        `remote` is the database in which its entries are kept; the file at `path` then only points to it.
        """
        store = store_of(path, durable=durable, remote=remote)
        store.create()
        try:
            with store.writing() as transaction:
                first = {**body, "format": FORMAT, "key": key.public.hex()}
                Writer(transaction, key, History(key.public)).append("open", first)
        except BaseException:
            store.remove()
            raise
        return cls(path, key, durable=durable)

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """Open a transaction while no other writer has one; it is on disk when the block ends, and undone
        if the block raises."""
        if self.key is None:
            raise LedgerError(f"{self.path} was opened for reading only. Nothing was changed.")
        if self._writer is not None or os.path.realpath(self.path) in _computing():
            raise LedgerError(
                f"{self.path} is being written, or asked, by this very thread: while a mechanism runs, it "
                f"may not ask the ledger that it was charged in. Nothing was charged."
            )
        with self._store.writing() as transaction:
            self._history.refresh(self._store, transaction.db)
            writer = self._local.writer = Writer(transaction, self.key, self._history)
            try:
                yield writer
            finally:
                self._local.writer = None
        self._history.adopt(writer)
        count_charges(writer.charges)

    def entries(self, *, kind: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Yield the entries above the number `after`, in order, of one `kind` if given. No lock is held
        while the caller works with an entry, so that entries written meanwhile are yielded too."""
        for row in self._rows(after):
            if kind in (None, row[2]):
                yield entry_of(row)

    def entry(self, seq: int) -> Entry:
        entry: Entry = self.look(lambda reader: reader.entry(seq))
        return entry

    def value(self, body: dict[str, Any]) -> Any:
        """Return the value in the body of an entry, as JSON: entries do not hold large ones."""
        return (
            self.look(lambda reader: reader.value(body))
            if chains.lies_beside(body["value"])
            else body["value"]
        )

    @contextmanager
    def refreshed(self) -> Iterator[None]:
        """Read new entries now, and then, in this thread and block, open the store for entries only that are
        not remembered (`History.recent`): a preview looks at the same few entries nine times. Inside of
        another such block nothing is read anew."""
        self.look(lambda reader: None)
        before = self._local.refreshed
        self._local.refreshed = os.getpid()
        try:
            yield
        finally:
            self._local.refreshed = before

    def last(self, kind: str, topic: str | None = None) -> Entry | None:
        """Return the newest entry of a kind, about a topic if one is given."""
        newest: Entry | None = self.look(lambda reader: reader.last(kind, topic))
        return newest

    def topics(self, kind: str, *, after: int = 0) -> list[str]:
        """Return the topics of the entries of a kind with a number above `after`, each once."""
        topics: list[str] = self.look(lambda reader: reader.topics(kind, after=after))
        return topics

    @property
    def store(self) -> LedgerStore:
        """The store of the entries: a file, or a database."""
        return self._store

    @property
    def genesis(self) -> Entry:
        """The first entry: public facts, and the first policy."""
        return self.entry(1)

    @property
    def anchor(self) -> Anchor:
        """The head of the chain: print it, and keep it elsewhere."""
        head: Anchor = self.look(lambda reader: reader.head)
        return head

    def verify(self, anchor: Anchor | None = None, *, key: bytes | None = None) -> list[str]:
        """Return what is wrong with the store and its chain, in words; an empty list if they are intact.

        `anchor` is a head of the chain that was kept elsewhere, `key` the public key that the verifier
        trusts.
        """
        problems: list[str] = []
        try:
            with self._store.reading():
                pass
        except LedgerError as error:
            problems.append(str(error))
        lines = chains.with_values(chains.lines(self._rows(strict=False)), self._value, problems)
        try:
            found = verify(lines, anchor, key=key)
        except LedgerError as error:
            found = [str(error)]
        return problems + found

    def _value(self, digest: bytes) -> str | None:
        """Return the text of a value beside the chain, whatever the schema is."""
        with self._store.reading(strict=False) as db:
            return self._store.read_value(db, digest)

    def close(self) -> None:
        """Do nothing: nothing is kept open between transactions."""

    @property
    def _writer(self) -> Writer | None:
        """The transaction that this thread has open, or None; a forked child does not have its parent's."""
        writer = self._local.writer
        return writer if writer is not None and writer.pid == os.getpid() else None

    def _rows(self, after: int = 0, *, strict: bool = True) -> Iterator[Row]:
        """Yield all rows after a number, read page by page. `strict=False` reads them even if the schema is
        not that of a ledger, and without verifying the chain."""
        while rows := self._page(after + 1, strict):
            yield from rows
            after = rows[-1][0]

    def _page(self, first: int, strict: bool) -> list[Row]:
        """Return at most `store.PAGE` rows from a number on, by this thread's transaction if it has one."""
        writer = self._writer
        if writer is not None:
            return writer.page(first)
        # `look` verifies the entries that were written since the last check; that needs a key.
        if strict and self.key is not None:
            rows: list[Row] = self.look(lambda reader: reader.page(first))
            return rows
        with self._store.reading(strict=strict) as db:
            return self._store.read_rows(db, first)

    def look(self, read: Callable[[Any], T]) -> T:
        """Return `read(reader)`, where `reader` has read and verified all entries that were committed before.

        The reader is the open transaction of this thread (a `Writer`), or else a `LedgerReader` on a
        connection of its own. `read` may be called more than once: another thread may have verified entries
        that are newer than what this connection sees.
        """
        writer = self._writer
        if writer is not None:
            return read(writer)
        if self._local.refreshed == os.getpid():
            with suppress(_NotRemembered):
                return read(LedgerReader(self._store, None, self._history))
        while True:
            head = self._history.head
            with self._store.reading() as db:
                try:
                    self._history.refresh(self._store, db)
                    return read(LedgerReader(self._store, db, self._history))
                except LedgerError:
                    # If no other thread has verified newer entries meanwhile, the error is true.
                    if self._history.head == head:
                        raise


def store_of(path: Path, *, durable: bool = True, remote: str | None = None) -> LedgerStore:
    """Return the store of a ledger's entries: the file itself, or the database that it points to."""
    if remote is not None or is_pointer(path):
        from .postgres_store import PostgresStore

        return PostgresStore(path, remote, durable=durable)
    return Store(path, durable=durable)


class History:
    """Remembers what this process has verified of the chain: every hash, and the number of the newest entry
    of each kind and topic.

    The signature of the newest hash covers all before it, so that verifying one signature is enough. The
    history outlives transactions: a ledger that goes back behind the verified head is refused, no number is
    used twice, and no row is used that differs from the one that was verified. Without a public key nothing
    is verified here (`verify` does that); `head` and `newest` are then those of the rows that were read.

    `newest` maps (kind, topic) to the number of the newest such entry; (kind, None) is that of any topic.
    `_hashes` holds the 32-byte hashes of all verified entries: `GENESIS` first, then that of entry n at 32 n.
    """

    def __init__(self, public: bytes | None) -> None:
        self.public = public
        # The rows that were read last, by number: they never change.
        self.recent: OrderedDict[int, Row] = OrderedDict()
        self.head = Anchor(0, GENESIS)
        self.newest: dict[tuple[str, str | None], int] = {}
        self._hashes = bytearray(GENESIS)
        self._lock = threading.RLock()
        _HISTORIES[id(self)] = self

    def refresh(self, store: LedgerStore, db: Any) -> None:
        """Verify all entries that were written since the last time; raise `Tampered` and remember none if one
        is wrong, or if one that is remembered is not as it was."""
        with self._lock:
            head, new, recent = self.head, list[Any](), dict(self.recent)
            # What is remembered, the verified head, and at once what follows it.
            rows = store.read_rows(db, max(1, head.seq), also=[seq for seq in recent if seq < head.seq])
            read = {row[0]: row for row in rows[: len(recent)]}
            if head.seq:
                rows = [row for row in rows if row[0] >= head.seq]
                self._require_continued(store, rows)
                del rows[:1]
            for seq, row in recent.items():
                if read.get(seq) != row:
                    raise _tampered_error(seq)
            while rows:
                for row in rows:
                    self._require_next(head, row)
                    head = Anchor(row[0], row[4])
                new += [(row[2], row[7], row[0], row[4]) for row in rows]
                last = rows[-1]
                rows = store.read_rows(db, head.seq + 1)
            if new and self.public is not None and not signed_by(self.public, last[4], last[5]):
                raise _tampered_error(last[0])
            self._remember(new, head)

    def adopt(self, writer: Writer) -> None:
        """Remember the entries that this process has just committed, which need no check; unless
        another thread has verified them by `refresh` since."""
        with self._lock:
            if writer.appended and writer.appended[0].seq == self.head.seq + 1:
                self._remember(
                    [(entry.kind, entry.topic, entry.seq, entry.hash) for entry in writer.appended],
                    writer.head,
                )
                for row in writer.rows:
                    self.keep(row)

    def verified(self, row: Row) -> Row:
        """Return the row, if it is the one that was verified as part of the chain."""
        if self.public is not None:
            start = 32 * row[0]
            previous, own = bytes(self._hashes[start - 32 : start]), self._hashes[start : start + 32]
            if not chains.well_formed(row) or row[4] != own or chained(previous, row) != own:
                raise _tampered_error(row[0])
        return row

    def keep(self, row: Row) -> None:
        """Remember a verified row, unless it is large or holds a state, for `Ledger.refreshed`."""
        is_small = len(row[3]) <= _LARGE and row[6] is None
        if self.public is not None and is_small and row[0] <= self.head.seq:
            with self._lock:
                self.recent[row[0]] = row
                self.recent.move_to_end(row[0])
                while len(self.recent) > _RECENT:
                    self.recent.popitem(last=False)

    def _remember(self, new: list[Any], head: Anchor) -> None:
        """Add verified entries, given as (kind, topic, seq, hash), and the new head."""
        for kind, topic, seq, digest in new:
            self.newest[kind, None] = self.newest[kind, topic] = seq
            if self.public is not None:
                self._hashes += digest
        self.head = head

    def _require_continued(self, store: LedgerStore, rows: list[Row]) -> None:
        """Refuse a store whose `rows`, read from the verified head on, do not begin with it: a ledger only
        grows."""
        if self.public is None:
            return
        if not rows or rows[0][0] != self.head.seq or rows[0][4] != self.head.hash:
            raise Tampered(
                f"{store.path} went back behind entry {self.head.seq}, which was seen before: it was "
                f"replaced by another copy, or changed. Nothing was charged or released. Run "
                f"`discreet ledger verify` with an anchor."
            )

    def _require_next(self, head: Anchor, row: Row) -> None:
        """Refuse a row that is not the entry after `head`."""
        if self.public is not None and not (
            chains.well_formed(row) and row[0] == head.seq + 1 and row[4] == chained(head.hash, row)
        ):
            raise _tampered_error(head.seq + 1)


# How many rows a history remembers, and how long each may be. Not tuned: a policy, a charge and a release.
_RECENT, _LARGE = 16, 1 << 16
# All histories of this process, for the hooks of a fork.
_HISTORIES: weakref.WeakValueDictionary[int, History] = weakref.WeakValueDictionary()


def _before_fork() -> None:
    """Wait until no other thread has a connection to a ledger's file open (`locks`), and take the locks of
    all histories: otherwise the child could inherit a history that another thread was changing, and a lock
    that nobody in the child would release."""
    # First, because a thread with an open connection may need a history's lock to go on.
    CONNECTED.acquire()
    histories = [history for reference in _HISTORIES.valuerefs() if (history := reference()) is not None]
    # Always in the same order, so that two threads that fork cannot wait for each other.
    _LOCAL.forking = sorted(histories, key=id)
    for history in _LOCAL.forking:
        history._lock.acquire()


def _after_fork() -> None:
    """Release the locks that `_before_fork` took, in the parent and in the child."""
    for history in _LOCAL.__dict__.pop("forking", ()):
        history._lock.release()
    CONNECTED.release()


_system.at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _tampered_error(seq: int) -> Tampered:
    """Return the error for an entry that differs from the one that was signed."""
    return Tampered(
        f"entry {seq} of the ledger is not as it was signed. Nothing was charged or released. "
        f"Run `discreet ledger verify`, and go back to a copy that is whole."
    )


@dataclass(frozen=True, slots=True)
class LedgerReader:
    """Reads the verified entries of the ledger, through one connection.

    What the history remembers was compared when it was refreshed, and is not read again. Without a connection
    (`db` is None) nothing else can be read, and it raises `_NotRemembered`.
    """

    store: LedgerStore
    db: Any
    history: History
    # What was read in this snapshot, by number.
    _rows: dict[int, Row] = field(default_factory=dict, repr=False)

    @property
    def head(self) -> Anchor:
        return self.history.head

    def entry(self, seq: int) -> Entry:
        """Return the entry with a number."""
        row = self._rows.get(seq)
        if row is None:
            row = self._rows[seq] = self._row(seq)
        return entry_of(row)

    def _row(self, seq: int) -> Row:
        """Return the row of an entry, verified."""
        row = self.history.recent.get(seq)
        if row is None:
            self._require_connection()
            possible = 0 < seq <= self.history.head.seq
            row = next(iter(self.store.read_rows(self.db, seq, limit=1)), None) if possible else None
            if row is None or row[0] != seq:
                raise LedgerError(f"the ledger has no entry {seq}.")
            row = self.history.verified(row)
        self.history.keep(row)
        return row

    def value(self, body: dict[str, Any]) -> Any:
        """Return the value in the body of an entry, as JSON."""

        def read(digest: bytes) -> str | None:
            self._require_connection()
            return self.store.read_value(self.db, digest)

        return value_of(body, read)

    def last(self, kind: str, topic: str | None = None) -> Entry | None:
        """Return the newest entry of a kind, about a topic if one is given."""
        seq = self.history.newest.get((kind, topic))
        return None if seq is None else self.entry(seq)

    def page(self, first: int) -> list[Row]:
        """Return at most `store.PAGE` rows from a number on; none that were committed later than the history
        was refreshed."""
        self._require_connection()
        rows, head = self.store.read_rows(self.db, first), self.history.head.seq
        return [self.history.verified(row) for row in rows if row[0] <= head]

    def topics(self, kind: str, *, after: int = 0) -> list[str]:
        """Return the topics of the entries of a kind with a number above `after`, each once."""
        # A copy, because other threads may add to the history meanwhile.
        newest = list(self.history.newest.items())
        return [topic for (of, topic), seq in newest if of == kind and topic is not None and seq > after]

    def _require_connection(self) -> None:
        if self.db is None:
            raise _NotRemembered


class _NotRemembered(Exception):
    """Says that an entry must be read from the store."""


class Writer:
    """Reads and writes the ledger in one transaction, and reads also what it has itself appended; `_before`
    reads what was there before, on the same connection."""

    def __init__(self, transaction: Writing, key: Key, history: History) -> None:
        self.pid, self.head = transaction.pid, history.head
        self.appended: list[Entry] = []
        self.rows: list[Row] = []
        # how many of them are charges
        self.charges = 0
        self._transaction, self._key = transaction, key
        self._before = LedgerReader(transaction.store, transaction.db, history)

    def append(
        self, kind: str, body: dict[str, Any], *, topic: str | None = None, sealed: bytes | None = None
    ) -> Entry:
        """Append a signed entry to the chain, and return it.

        `last` finds it by its `topic`: an analyst, or the key of a question.
        """
        # Twice: JSON makes texts of keys that are numbers, and texts sort in another order ("10" before "9").
        body = json.loads(canonical(body))
        if self._transaction.keeps_values:
            body, value = set_aside(body)
            if value is not None:
                self._transaction.insert_value(chains.hash_of(value), value)
        text = canonical(body)
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        seq = self.head.seq + 1
        digest = chained(self.head.hash, (seq, time, kind, text, b"", b"", sealed, topic))
        row = (seq, time, kind, text, digest, self._key.sign(digest), sealed, topic)
        self._transaction.insert(row)
        self.head = Anchor(seq, digest)
        self.rows.append(row)
        self.appended.append(entry_of(row))
        return self.appended[-1]

    def entries(self, *, kind: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Yield the entries with a number above `after`, in order; of one `kind` only if it is given."""
        while rows := self.page(after + 1):
            yield from (entry_of(row) for row in rows if kind in (None, row[2]))
            after = rows[-1][0]

    def page(self, first: int) -> list[Row]:
        """Return at most `store.PAGE` rows from a number on."""
        rows = self._before.page(first)
        # A full page is followed by others.
        return rows if len(rows) == PAGE else [*rows, *(row for row in self.rows if row[0] >= first)]

    def entry(self, seq: int) -> Entry:
        own = seq - self.head.seq + len(self.appended) - 1
        return self.appended[own] if 0 <= own < len(self.appended) else self._before.entry(seq)

    def value(self, body: dict[str, Any]) -> Any:
        """Return the value in the body of an entry that was there before, as JSON."""
        return self._before.value(body)

    @property
    def genesis(self) -> Entry:
        """The first entry: public facts, and the first policy."""
        return self.entry(1)

    def last(self, kind: str, topic: str | None = None) -> Entry | None:
        """Return the newest entry of a kind, about a topic if one is given."""
        for entry in reversed(self.appended):
            if entry.kind == kind and topic in (None, entry.topic):
                return entry
        return self._before.last(kind, topic)

    def topics(self, kind: str, *, after: int = 0) -> list[str]:
        """Return the topics of the entries of a kind with a number above `after`, each once."""
        new = [e.topic for e in self.appended if e.kind == kind and e.topic is not None and e.seq > after]
        return list(dict.fromkeys([*self._before.topics(kind, after=after), *new]))
