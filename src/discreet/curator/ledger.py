"""The ledger: an append-only chain of signed entries in one SQLite file, safe for many processes and for a
power cut.

Each entry holds the hash of the one before and is signed, so that none can be changed, dropped or slipped in
without notice; what a chain cannot show by itself, a rollback to an earlier state of the whole file, is found
against an *anchor* kept elsewhere. A charge is committed to disk, and read back, before any data is read: a
crash may waste budget, it never leaks.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from .. import _require
from .._errors import LedgerError
from . import entries as chains
from .entries import GENESIS, Anchor, Entry, Row, canonical, chained, entry_of, verify
from .keys import Key, signed_by
from .postgres_store import PostgresStore, is_pointer
from .store import FORMAT, LedgerStore, Store, Tampered, Writing

T = TypeVar("T")

__all__ = ["Anchor", "Entry", "Ledger", "Writer", "canonical", "verify"]


_LOCAL = threading.local()


def _computing() -> list[str]:
    """Return the ledgers for which this thread computes an answer."""
    paths: list[str] = _LOCAL.__dict__.setdefault("paths", [])
    return paths


@contextmanager
def computing(ledger: Ledger) -> Iterator[None]:
    """Mark that this thread computes an answer: what asks in the middle of it would wait for itself, and is
    refused."""
    _computing().append(os.path.realpath(ledger.path))
    try:
        yield
    finally:
        _computing().pop()


class Ledger:
    """One dataset's ledger. Opened without a key it can be read and verified, not written.

    With a key, what is read was checked first: every hash since the last look, and the signature of the
    newest entry, which covers all.
    """

    def __init__(self, path: Path, key: Key | None = None, *, durable: bool = True) -> None:
        _require.flag(durable=durable)
        self.path, self.key, self.durable = path, key, durable
        self._store = store_of(path, durable=durable)
        self._history = History(None if key is None else key.public)
        self._local = threading.local()
        self._store.check()
        if key is not None:
            self._store.migrate()
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
            # everything is checked once, at the start
            assert self.anchor.seq > 0

    @classmethod
    def create(
        cls, path: Path, key: Key, body: dict[str, Any], *, durable: bool = True, remote: str | None = None
    ) -> Ledger:
        """Create a ledger whose first entry holds `body` and the public key.

        `remote`: the database in which its entries are kept; the file then says where that is.
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
        """Open one transaction, alone among all writers; on disk and read back when the block ends, undone if
        it raises."""
        if self.key is None:
            raise LedgerError(f"{self.path} was opened for reading only. Nothing was changed.")
        if self._writer is not None or os.path.realpath(self.path) in _computing():
            raise LedgerError(
                f"{self.path} is being written, or asked, by this very thread: a mechanism may not "
                f"ask. Nothing was charged."
            )
        with self._store.writing() as transaction:
            self._history.refresh(self._store, transaction.db)
            writer = self._local.writer = Writer(transaction, self.key, self._history)
            try:
                yield writer
            finally:
                self._local.writer = None
        self._history.adopt(writer)

    def entries(self, *, kind: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Yield entries in order; of one kind only if asked. Nothing is locked between two of them."""
        for row in self._rows(after):
            if kind in (None, row[2]):
                yield entry_of(row)

    def entry(self, seq: int) -> Entry:
        entry: Entry = self.look(lambda reader: reader.entry(seq))
        return entry

    def last(self, kind: str, topic: str | None = None) -> Entry | None:
        """Return the newest entry of a kind, about a topic if one is given."""
        newest: Entry | None = self.look(lambda reader: reader.last(kind, topic))
        return newest

    def topics(self, kind: str, *, after: int = 0) -> list[str]:
        """Return what the entries of a kind are about, each topic once."""
        topics: list[str] = self.look(lambda reader: reader.topics(kind, after=after))
        return topics

    @property
    def store(self) -> LedgerStore:
        """Where the entries are kept."""
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
        """Return what is wrong with the file and its chain, in words; nothing if they are intact.

        `key` is the public key the verifier trusts.
        """
        problems: list[str] = []
        try:
            with self._store.reading():
                pass
        except LedgerError as error:
            problems.append(str(error))
        try:
            return problems + verify(chains.lines(self._rows(strict=False)), anchor, key=key)
        except LedgerError as error:
            return [*problems, str(error)]

    def close(self) -> None:
        """Do nothing: nothing is kept open between transactions."""

    @property
    def _writer(self) -> Writer | None:
        """The transaction that this thread is in; what a child was forked out of is not its own."""
        writer: Writer | None = getattr(self._local, "writer", None)
        return writer if writer is not None and writer.pid == os.getpid() else None

    def _rows(self, after: int = 0, *, strict: bool = True) -> Iterator[Row]:
        """Yield all rows after a number, a page at a time. Not `strict`: whatever the schema is."""
        while rows := self._page(after + 1, strict):
            yield from rows
            after = rows[-1][0]

    def _page(self, first: int, strict: bool) -> list[Row]:
        """Return some rows from a number on, through the transaction of this thread if there is one."""
        writer = self._writer
        if writer is not None:
            return writer.page(first)
        # What was written since the last look is checked first, where there is a key to check it with.
        if strict and self.key is not None:
            rows: list[Row] = self.look(lambda reader: reader.page(first))
            return rows
        with self._store.reading(strict=strict) as db:
            return self._store.read_rows(db, first)

    def look(self, look: Callable[[Any], T]) -> T:
        """Look through the transaction that this thread is in, or else through a connection of its own: one
        moment of the ledger.

        `look` may be called again: in a database, another thread may see entries that are newer than the
        moment, which the history has then and the connection has not.
        """
        writer = self._writer
        if writer is not None:
            return look(writer)
        while True:
            seen = self._history.head
            with self._store.reading() as db:
                try:
                    self._history.refresh(self._store, db)
                    return look(LedgerReader(self._store, db, self._history))
                except LedgerError:
                    # Where nothing was seen since before this moment, it is the ledger that is wrong.
                    if self._history.head == seen:
                        raise


def store_of(path: Path, *, durable: bool = True, remote: str | None = None) -> LedgerStore:
    """Return the store of a ledger's entries: the file itself, or the database that it points to."""
    if remote is not None or is_pointer(path):
        return PostgresStore(path, remote, durable=durable)
    return Store(path, durable=durable)


class History:
    """What was seen of the chain: every hash, once it was found to follow, and where the newest entry of each
    kind and topic is.

    A signature on the newest hash covers all before it, so that one is enough for all. Kept over
    transactions: a ledger that goes back behind what was seen is refused, no number is used twice, and no row
    is relied on that is not the one that was hashed. Without a key nothing is checked; `verify` does that.
    """

    def __init__(self, public: bytes | None) -> None:
        self.public = public
        self.head = Anchor(0, GENESIS)
        self.newest: dict[tuple[str, str | None], int] = {}
        self._hashes = bytearray(GENESIS)
        self._lock = threading.RLock()
        _HISTORIES[id(self)] = self

    def refresh(self, store: LedgerStore, db: Any) -> None:
        """Look at all that was written since the last time."""
        with self._lock:
            self._same(store, db)
            head, new = self.head, list[Row]()
            while rows := store.read_rows(db, head.seq + 1):
                for row in rows:
                    self._follow(head, row)
                    head = Anchor(row[0], row[4])
                new += [(row[2], row[7], row[0], row[4]) for row in rows]
                last = rows[-1]
            if new and self.public is not None and not signed_by(self.public, last[4], last[5]):
                raise _tampered_error(last[0])
            self._take(new, head)

    def adopt(self, writer: Writer) -> None:
        """Take over entries that were just committed and read back: they need no second look."""
        with self._lock:
            if writer.appended and writer.appended[0].seq == self.head.seq + 1:
                self._take(
                    [(entry.kind, entry.topic, entry.seq, entry.hash) for entry in writer.appended],
                    writer.head,
                )

    def relied(self, row: Row) -> Row:
        """Return the row, if it is the one that was seen to be part of the chain. What is newer was written
        by the transaction that reads it."""
        if self.public is not None and isinstance(row[0], int) and row[0] <= self.head.seq:
            start = 32 * row[0]
            before, own = bytes(self._hashes[start - 32 : start]), self._hashes[start : start + 32]
            if not chains.well_formed(row) or row[4] != own or chained(before, row) != own:
                raise _tampered_error(row[0])
        return row

    def _take(self, new: list[Row], head: Anchor) -> None:
        """Remember where the newest entries of each kind and topic are."""
        for kind, topic, seq, digest in new:
            self.newest[kind, None] = self.newest[kind, topic] = seq
            if self.public is not None:
                self._hashes += digest
        self.head = head

    def _same(self, store: LedgerStore, db: Any) -> None:
        """Refuse a store that does not continue the history seen before: a ledger only grows."""
        if not self.head.seq or self.public is None:
            return
        rows = store.read_rows(db, self.head.seq, limit=1)
        if not rows or rows[0][0] != self.head.seq or rows[0][4] != self.head.hash:
            raise Tampered(
                f"{store.path} went back behind entry {self.head.seq}, which was seen before: it was "
                f"replaced by another copy, or changed. "
                f"Nothing was charged or released. Run `discreet ledger verify` with an anchor."
            )

    def _follow(self, head: Anchor, row: Row) -> None:
        if self.public is not None and not (
            chains.well_formed(row) and row[0] == head.seq + 1 and row[4] == chained(head.hash, row)
        ):
            raise _tampered_error(head.seq + 1)


_HISTORIES: weakref.WeakValueDictionary[int, History] = weakref.WeakValueDictionary()


def _before_fork() -> None:
    """Wait until no thread is in the middle of reading a chain: the child would have half of what it saw,
    under a lock that nobody gives up there."""
    histories = [history for reference in _HISTORIES.valuerefs() if (history := reference()) is not None]
    # in one order, whichever thread forks
    _LOCAL.forking = sorted(histories, key=id)
    for history in _LOCAL.forking:
        history._lock.acquire()


def _after_fork() -> None:
    """Give up what was locked for the fork, in the parent and in the child."""
    for history in _LOCAL.__dict__.pop("forking", ()):
        history._lock.release()


# not on Windows, which does not fork
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _tampered_error(seq: int) -> Tampered:
    return Tampered(
        f"entry {seq} of the ledger is not as it was signed. Nothing was charged or released. "
        f"Run `discreet ledger verify`, and go back to a copy that is whole."
    )


@dataclass(frozen=True, slots=True)
class LedgerReader:
    """The ledger through one connection."""

    store: LedgerStore
    db: Any
    history: History

    @property
    def head(self) -> Anchor:
        return self.history.head

    def entry(self, seq: int) -> Entry:
        # a number that no database holds is not of an entry either
        within = 0 < seq < 2**63
        row = next(iter(self.store.read_rows(self.db, seq, limit=1)), None) if within else None
        if row is None or row[0] != seq:
            raise LedgerError(f"the ledger has no entry {seq}.")
        return entry_of(self.history.relied(row))

    def last(self, kind: str, topic: str | None = None) -> Entry | None:
        """Return the newest entry of a kind, about a topic if one is given."""
        seq = self.history.newest.get((kind, topic))
        return None if seq is None else self.entry(seq)

    def page(self, first: int) -> list[Row]:
        """Return some rows from a number on."""
        return [self.history.relied(row) for row in self.store.read_rows(self.db, first)]

    def topics(self, kind: str, *, after: int = 0) -> list[str]:
        """Return what the entries of a kind after a number are about, each topic once."""
        # a copy: other threads may enter what they see meanwhile
        newest = list(self.history.newest.items())
        return [topic for (of, topic), seq in newest if of == kind and topic is not None and seq > after]


class Writer:
    """The ledger inside one transaction: what was appended in it is seen as well."""

    def __init__(self, transaction: Writing, key: Key, history: History) -> None:
        self.pid, self.head = transaction.pid, history.head
        self.appended: list[Entry] = []
        self._transaction, self._key = transaction, key
        self._before = LedgerReader(transaction.store, transaction.db, history)

    def append(
        self, kind: str, body: dict[str, Any], *, topic: str | None = None, sealed: bytes | None = None
    ) -> Entry:
        """Sign an entry onto the chain.

        `topic` is what it can be found by again: an analyst, or a question.
        """
        text = canonical(json.loads(canonical(body)))
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        seq = self.head.seq + 1
        digest = chained(self.head.hash, (seq, time, kind, text, b"", b"", sealed, topic))
        row = (seq, time, kind, text, digest, self._key.sign(digest), sealed, topic)
        self._transaction.insert(row)
        self.head = Anchor(seq, digest)
        self.appended.append(entry_of(row))
        return self.appended[-1]

    def entries(self, *, kind: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Yield entries in order; of one kind only if asked."""
        while rows := self.page(after + 1):
            yield from (entry_of(row) for row in rows if kind in (None, row[2]))
            after = rows[-1][0]

    def page(self, first: int) -> list[Row]:
        """Return some rows from a number on."""
        return self._before.page(first)

    def entry(self, seq: int) -> Entry:
        return self._before.entry(seq)

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
        """Return what the entries of a kind after a number are about, each topic once."""
        new = [e.topic for e in self.appended if e.kind == kind and e.topic is not None and e.seq > after]
        return list(dict.fromkeys([*self._before.topics(kind, after=after), *new]))
