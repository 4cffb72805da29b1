"""The ledger: an append-only chain of signed entries in one SQLite file, safe for many processes and for a power cut.

Each entry holds the hash of the one before and is signed, so that none can be changed, dropped or slipped in without notice;
what a chain cannot show by itself, a rollback to an earlier state of the whole file, is found against an *anchor* kept elsewhere.
A charge is committed to disk before any data is read: a crash may waste budget, it never leaks.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .._errors import LedgerError
from .keys import Key, signed_by

FORMAT = 1
WAIT = 60.0  # seconds to wait for other writers before giving up
GENESIS = bytes(32)

_TABLES = """
CREATE TABLE entry (
  seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
  hash BLOB NOT NULL, signature BLOB NOT NULL, sealed BLOB, topic TEXT
) STRICT;
CREATE TRIGGER entry_stays BEFORE UPDATE ON entry BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER entry_remains BEFORE DELETE ON entry BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE INDEX entry_kind ON entry (kind, seq);
CREATE INDEX entry_topic ON entry (kind, topic, seq);
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger. `sealed` is secret state: encrypted, covered by the hash, never exported."""

    seq: int
    time: str
    kind: str
    body: dict[str, Any]
    hash: bytes
    signature: bytes = field(repr=False)
    sealed: bytes | None = field(default=None, repr=False)
    topic: str | None = None

    @property
    def seal(self) -> str | None:
        """The digest of the sealed state's ciphertext, which is random to whoever lacks the key."""
        return None if self.sealed is None else hashlib.sha256(self.sealed).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """What an export shows: all that is needed to verify the chain, without the sealed state itself."""
        shown = {"seq": self.seq, "time": self.time, "kind": self.kind, "topic": self.topic, "body": self.body}
        return {**shown, "seal": self.seal, "hash": self.hash.hex(), "signature": self.signature.hex()}


@dataclass(frozen=True, slots=True)
class Anchor:
    """The head of the chain at some time, to be kept where the ledger is not."""

    seq: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash.hex()}"

    @classmethod
    def parse(cls, text: str) -> Anchor:
        try:
            seq, digest = text.strip().split(":")
            anchor = cls(int(seq), bytes.fromhex(digest))
        except (ValueError, AttributeError):
            anchor = cls(-1, b"")
        if anchor.seq < 0 or len(anchor.hash) != 32:
            raise LedgerError(f"an anchor reads 'number:hash' as `discreet ledger anchor` prints it, got {text!r}.")
        return anchor


class Ledger:
    """One dataset's ledger. Opened without a key it can be read and verified, not written."""

    def __init__(self, path: Path, key: Key | None = None) -> None:
        self.path, self.key = path, key
        if not path.exists():
            raise LedgerError(f"there is no ledger at {path}.")
        self._local = threading.local()  # a connection for each thread, and anew after a fork
        try:
            found = tuple(
                self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
        except sqlite3.DatabaseError:
            found = (0, 0)
        if found != (_APPLICATION, FORMAT):
            raise LedgerError(f"{path} is not a discreet ledger of format {FORMAT}. Nothing was changed.")
        if key is not None and key.public.hex() != self.entry(1).body.get("key"):
            raise LedgerError(f"the key given is not the one that {path} was made with. Nothing was changed.")

    @classmethod
    def create(cls, path: Path, key: Key, body: dict[str, Any]) -> Ledger:
        """A new ledger whose first entry holds `body` and the public key."""
        if path.exists():
            raise LedgerError(f"{path} exists already. A ledger is never overwritten: nothing was changed.")
        marks = f"PRAGMA application_id={_APPLICATION}; PRAGMA user_version={FORMAT};"
        try:
            # for its owner's eyes only, from the first byte on; SQLite gives its side files the same rights
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise LedgerError(f"no ledger can be made at {path} ({error.strerror}).") from None
        try:
            db = _connect(path)
            with db:
                db.executescript("BEGIN IMMEDIATE;" + _TABLES + marks)
                _insert(db, key, "open", {**body, "format": FORMAT, "key": key.public.hex()}, None)
            db.close()
        except sqlite3.OperationalError as error:
            # an empty file would be in the way of the next try
            path.unlink(missing_ok=True)
            raise LedgerError(f"no ledger can be made at {path} ({error}).") from None
        return cls(path, key)

    @property
    def _db(self) -> sqlite3.Connection:
        if getattr(self._local, "pid", None) != os.getpid():
            self._local.pid, self._local.db = os.getpid(), _connect(self.path)
        return self._local.db  # type: ignore[no-any-return]

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """One transaction, alone among all writers; committed to disk when the block ends, undone if it raises."""
        if self.key is None:
            raise LedgerError(f"{self.path} was opened for reading only. Nothing was changed.")
        if self._db.in_transaction:
            raise LedgerError(
                f"{self.path} is being written by this very thread: a mechanism may not ask. Nothing was charged."
            )
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            why = f"stayed locked by others for {WAIT:.0f} seconds" if busy else f"cannot be written ({error})"
            raise LedgerError(f"{self.path} {why}. Nothing was charged.") from None
        try:
            yield Writer(self._db, self.key)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def entries(self, *, kind: str | None = None, after: int = 0) -> Iterator[Entry]:
        """In order; only one kind if asked."""
        return _entries(self._db, kind, after)

    def entry(self, seq: int) -> Entry:
        found = next(_entries(self._db, None, seq - 1), None)
        if found is None or found.seq != seq:
            raise LedgerError(f"the ledger has no entry {seq}.")
        return found

    def last(self, kind: str, topic: str | None = None) -> Entry | None:
        """The newest entry of a kind, about a topic if one is given; with a key, refused if it was tampered with."""
        return _last(self._db, kind, topic, self.key)

    def topics(self, kind: str, *, after: int = 0) -> list[str]:
        """What the entries of a kind are about, each topic once."""
        return _topics(self._db, kind, after)

    @property
    def genesis(self) -> Entry:
        """The first entry: public facts, and the first policy; with a key, refused if it was tampered with."""
        first = self.entry(1)
        if self.key is not None:
            _check(self._db, first, self.key)
        return first

    @property
    def anchor(self) -> Anchor:
        """The head of the chain: print it, and keep it elsewhere."""
        seq, digest = self._db.execute("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
        return Anchor(seq, digest)

    def verify(self, anchor: Anchor | None = None, *, key: bytes | None = None) -> list[str]:
        """What is wrong with the chain, in words; nothing if it is whole. `key` is the public key the verifier trusts."""
        try:
            return verify(self.entries(), anchor, key=key)
        except LedgerError as error:
            return [str(error)]

    def close(self) -> None:
        self._db.close()


@dataclass(frozen=True, slots=True)
class Writer:
    """The ledger inside one transaction."""

    _db: sqlite3.Connection
    _key: Key

    def append(
        self, kind: str, body: dict[str, Any], *, topic: str | None = None, sealed: bytes | None = None
    ) -> Entry:
        """`topic` is what the entry can be found by again: an analyst, or a question."""
        return _insert(self._db, self._key, kind, body, sealed, topic)

    def entries(self, *, kind: str | None = None, after: int = 0) -> Iterator[Entry]:
        return _entries(self._db, kind, after)

    def last(self, kind: str, topic: str | None = None) -> Entry | None:
        """The newest entry of a kind, about a topic if one is given; refused if it was tampered with."""
        return _last(self._db, kind, topic, self._key)

    def topics(self, kind: str, *, after: int = 0) -> list[str]:
        return _topics(self._db, kind, after)


def verify(entries: Iterator[Entry], anchor: Anchor | None = None, *, key: bytes | None = None) -> list[str]:
    """Walk the chain: numbers without a gap, hashes that follow, signatures by one key, the anchor on the way."""
    problems: list[str] = []
    previous, last, met = GENESIS, 0, anchor is None
    signer = key
    for entry in entries:
        if signer is None:
            signer = _hex(entry.body.get("key"))
        if entry.seq != last + 1:
            problems.append(f"entry {last + 1} is missing")
        if entry.hash != chain(previous, entry):
            problems.append(f"entry {entry.seq} does not follow from the one before, or was changed")
        elif not signed_by(signer, entry.hash, entry.signature):
            problems.append(f"entry {entry.seq} is not signed by the ledger's key")
        if anchor is not None and entry.seq == anchor.seq:
            met = True
            if entry.hash != anchor.hash:
                problems.append(f"entry {entry.seq} is not the one that was anchored: history was rewritten")
        previous, last = entry.hash, entry.seq
    if not met:
        problems.append(
            f"the anchored entry {anchor.seq if anchor else 0} is gone: the ledger was rolled back to entry {last}"
        )
    return problems


def _hex(text: Any) -> bytes:
    try:
        return bytes.fromhex(str(text))
    except ValueError:
        return b""  # no key at all: no signature will fit it


def chain(previous: bytes, entry: Entry) -> bytes:
    """The hash of an entry: over all of it but hash and signature, and over the hash of the one before."""
    text = canonical([previous.hex(), entry.seq, entry.time, entry.kind, entry.topic, entry.body, entry.seal])
    return hashlib.sha256(text.encode()).digest()


def canonical(value: Any) -> str:
    """The one way in which a value is written down, so that a hash of it means something."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


_APPLICATION = 0x64697363  # "disc": tells a ledger from any other SQLite file


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=WAIT, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")  # a commit is on disk before it returns: no release without a charge
    return db


def _insert(
    db: sqlite3.Connection, key: Key, kind: str, body: dict[str, Any], sealed: bytes | None, topic: str | None = None
) -> Entry:
    row = db.execute("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
    seq, previous = (1, GENESIS) if row is None else (row[0] + 1, row[1])
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    blank = Entry(seq, time, kind, json.loads(canonical(body)), b"", b"", sealed, topic)
    digest = chain(previous, blank)
    entry = replace(blank, hash=digest, signature=key.sign(digest))
    values = (seq, time, kind, canonical(body), digest, entry.signature, sealed, topic)
    db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    return entry


_COLUMNS = "seq, time, kind, body, hash, signature, sealed, topic"


def _entries(db: sqlite3.Connection, kind: str | None, after: int) -> Iterator[Entry]:
    where = "seq > ?" if kind is None else "seq > ? AND kind = ?"
    values: tuple[Any, ...] = (after,) if kind is None else (after, kind)
    for row in db.execute(f"SELECT {_COLUMNS} FROM entry WHERE {where} ORDER BY seq", values):
        yield _entry(row)


def _topics(db: sqlite3.Connection, kind: str, after: int) -> list[str]:
    found = db.execute("SELECT topic FROM entry WHERE kind = ? GROUP BY topic HAVING MAX(seq) > ?", (kind, after))
    return [topic for (topic,) in found if topic is not None]


def _last(db: sqlite3.Connection, kind: str, topic: str | None, key: Key | None) -> Entry | None:
    where = "kind = ?" if topic is None else "kind = ? AND topic = ?"
    values = (kind,) if topic is None else (kind, topic)
    row = db.execute(f"SELECT {_COLUMNS} FROM entry WHERE {where} ORDER BY seq DESC LIMIT 1", values).fetchone()
    if row is None:
        return None
    entry = _entry(row)
    if key is not None:
        _check(db, entry, key)
    return entry


def _check(db: sqlite3.Connection, entry: Entry, key: Key) -> None:
    """What a decision rests on, a total or a policy, must be as it was signed."""
    before = db.execute("SELECT hash FROM entry WHERE seq = ?", (entry.seq - 1,)).fetchone()
    previous = GENESIS if before is None else before[0]
    if entry.hash != chain(previous, entry) or not signed_by(key.public, entry.hash, entry.signature):
        raise LedgerError(
            f"entry {entry.seq} of the ledger is not as it was signed. Nothing was charged or released. "
            f"Run `discreet ledger verify`, and go back to a copy that is whole."
        )


def _entry(row: tuple[Any, ...]) -> Entry:
    seq, time, kind, body, *rest = row
    try:
        read = json.loads(body)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise LedgerError(f"entry {seq} of the ledger cannot be read: it was changed.")
    return Entry(seq, time, kind, read, *rest)
