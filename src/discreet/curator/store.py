"""Stores a ledger in a file: SQLite with a rollback journal, and a new connection for each transaction.

SQLite's own locks make other programs wait, and SQLite itself rolls back what a crash has left in a journal.
Beside them, writers take an exclusive and readers a shared `flock` on a file of our own (`locks`).

Assumes: no other code in this process opens and closes the ledger's file during a transaction, because that
drops SQLite's locks, which are POSIX locks: the `flock` still keeps all readers and writers of discreet
apart, but another program could then take the journal of the running transaction for one that a crash left.

The order of a transaction: lock, connect, BEGIN IMMEDIATE, compare the schema, work, COMMIT, close, unlock.
What the file loses or changes after that, the chain of hashes shows to the next reader (`ledger.History`).

Locks files with `flock`, and keeps open connections to a ledger's file apart from forks.

A lock belongs to an open file, not to the process: it lasts until the file is closed, however its process
ends. A forked child inherits open files; it closes its copies, and its parent keeps the locks.

SQLite's connections must not be carried across a fork: in the child, SQLite would believe that it holds the
parent's locks, and closing the connection would roll the parent's transaction back. So a fork waits until the
connections of all other threads are closed (`CONNECTED`).
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from .. import _system
from .._errors import LedgerError
from .entries import Row

# Seconds to wait for other writers before giving up. Chosen by hand, not tuned: no answer is computed under
# the lock, so that each writer holds it for a moment only.
WAIT = 60.0
# Seconds between two attempts to lock, drawn uniformly between these two, so that processes that wait do not
# all try at the same time. Chosen by hand, not tuned.
_PAUSE = 0.0005, 0.003

# Held by the one thread of this process that has a connection to a ledger's file open, or that forks.
CONNECTED = threading.RLock()


@dataclass(eq=False)
class HeldLock:
    """Holds a lock and a connection that one process uses; a forked child must not use either."""

    # The descriptor of the locked file; None where the lock is one of the connection's, or there is none.
    lock: int | None
    # The connection to the database.
    db: Any = None
    pid: int = field(default_factory=os.getpid)

    @property
    def own(self) -> bool:
        """Whether this process took the lock, and did not inherit it."""
        return self.pid == os.getpid()


# All locks on files that this process holds.
_HELD: set[HeldLock] = set()


def register(held: HeldLock) -> HeldLock:
    """Remember an open lock, so that a forked child closes its copy."""
    _HELD.add(held)
    return held


def unregister(held: HeldLock) -> None:
    """Forget a lock that its holder is about to close."""
    _HELD.discard(held)


def _after_fork_in_child() -> None:
    """Close inherited locks. A thread that forks in its own transaction hands its open connection down, which
    must never be closed here, not even when the interpreter ends: a thread that never ends refers to it."""
    inherited = [held.db for held in _HELD if held.db is not None]
    if inherited:
        threading.Thread(target=lambda _: threading.Event().wait(), args=(inherited,), daemon=True).start()
    for held in _HELD:
        if held.lock is not None:
            # Closing releases nothing while the parent has the same file open.
            with suppress(OSError):
                os.close(held.lock)
    _HELD.clear()


_system.at_fork(after_in_child=_after_fork_in_child)


def lock_file(path: Path, lock_path: Path, *, exclusive: bool) -> int | None:
    """Lock the file `lock_path` beside the ledger `path`, and return its descriptor.

    None where a reader cannot create the file, as on read-only media, where nobody writes either. Readers
    share the lock where the system can; a writer has it `exclusive`.
    """
    if not path.is_file():
        raise LedgerError(f"there is no ledger at {path}. Nothing was charged.")
    deadline = time.monotonic() + WAIT
    while True:
        try:
            handle = _system.open_file(lock_path, create=True)
        except OSError as error:
            if not exclusive:
                return None
            raise LedgerError(f"{path} cannot be written ({error.strerror}). Nothing was charged.") from None
        _wait_for(handle, path, exclusive, deadline)
        with suppress(OSError):
            # If the file was removed or replaced before it was locked, others lock the new one: try again.
            if os.path.samestat(os.fstat(handle), os.stat(lock_path)):
                return handle
        os.close(handle)


def _wait_for(handle: int, path: Path, exclusive: bool, deadline: float) -> None:
    """Wait for the lock of an open file, until the deadline."""
    while not _system.try_lock(handle, shared=not exclusive):
        if time.monotonic() > deadline:
            os.close(handle)
            raise LedgerError(f"{path} stayed locked by others for {WAIT:.0f} seconds. Nothing was charged.")
        time.sleep(random.uniform(*_PAUSE))


def unlock_file(handle: int | None) -> None:
    """Release the lock of `lock_file`."""
    if handle is not None:
        # Explicitly, because a child that was forked without Python's hooks may still have the file open.
        _system.unlock(handle)
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Write the names of new files in a folder to disk as well, where the system can."""
    with suppress(OSError):
        _system.sync_folder(folder)


# The format of the file, in its header; it is raised when older versions can no longer read the file.
FORMAT = 1
# Rows that are read at a time, so that no lock is held while the caller works with them. Chosen by hand, not
# tuned.
PAGE = 1000
COLUMNS = "seq, time, kind, body, hash, signature, sealed, topic"

# SQLite's application_id, which tells a ledger from any other SQLite file: "disc" in ASCII.
_APPLICATION = 0x64697363
# The statements of format 1. Their text must not change, not even in white space: SQLite stores it, and files
# are compared with it. The indices are for programs of others that read the file; nothing here reads them,
# because an index that was changed could hide rows.
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
# The large values that lie beside the chain (`entries.set_aside`). The first ledgers were made without this
# table: they are read and written on, and values stay in their entries.
_VALUES = """
CREATE TABLE value (hash BLOB PRIMARY KEY, data TEXT NOT NULL) STRICT;
CREATE TRIGGER value_stays BEFORE UPDATE ON value BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER value_remains BEFORE DELETE ON value BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""


def _schema(db: sqlite3.Connection) -> tuple[Any, ...]:
    """Return all tables, triggers and indices of a file, with the text of their statements."""
    return tuple(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"))


def _made_by(statements: str) -> tuple[Any, ...]:
    """Return the schema that these statements make."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(statements)
        return _schema(db)
    finally:
        db.close()


SCHEMA, SCHEMA_WITHOUT_VALUES = _made_by(_TABLES + _VALUES), _made_by(_TABLES)


class Tampered(LedgerError):
    """Raised for a ledger that was changed by something else than discreet, or is damaged."""


class Writing(Protocol):
    """Writes in one open transaction of a store: `insert` appends a row, `db` is its connection, and `pid`
    the process that opened it. Where it `keeps_values`, `insert_value` stores the text of a value under its
    hash; a text that is there already stays."""

    @property
    def store(self) -> LedgerStore: ...

    @property
    def db(self) -> Any: ...

    @property
    def pid(self) -> int: ...

    @property
    def keeps_values(self) -> bool: ...

    def insert(self, row: Row) -> None: ...

    def insert_value(self, digest: bytes, text: str) -> None: ...


class LedgerStore(Protocol):
    """Keeps the entries of a ledger, in a file (`Store`) or a database (`PostgresStore`).

    While a transaction (`writing`) is open, no other process or machine has one. It reads everything that was
    committed before it; when it ends, its rows are on disk (with `durable=False`: are committed, and may not
    be on disk yet). A reader (`reading`) sees all rows of a transaction or none. `check` refuses what is no
    ledger. tests/contracts/test_ledger_store.py tests this of both stores.
    """

    path: Path

    def create(self) -> None: ...

    def remove(self) -> None: ...

    def check(self) -> None: ...

    def reading(self, *, strict: bool = True) -> AbstractContextManager[Any]: ...

    def writing(self) -> AbstractContextManager[Writing]: ...

    def read_rows(self, db: Any, first: int, limit: int = PAGE, also: Sequence[int] = ()) -> list[Row]: ...

    def read_value(self, db: Any, digest: bytes) -> str | None: ...


# The first line of a *pointer*, the file that says in which database the entries are (`postgres_store`).
MARK = b"discreet ledger on PostgreSQL\n"
# The smallest ledger in a file has one page of SQLite, of this many bytes; a pointer is shorter.
_PAGE_BYTES = 4096


def is_pointer(path: Path) -> bool:
    """Return whether a file is a pointer: it says that its ledger is in a database.

    Longer files are not opened: closing a ledger's file would drop the locks of a transaction that another
    thread has open on it (`store`).
    """
    with suppress(OSError):
        if path.stat().st_size < _PAGE_BYTES:
            with path.open("rb") as file:
                return file.read(len(MARK)) == MARK
    return False


@dataclass(frozen=True, slots=True)
class Transaction:
    """Writes in one transaction of the file."""

    store: Store
    db: sqlite3.Connection
    keeps_values: bool
    pid: int = field(default_factory=os.getpid)

    def insert(self, row: Row) -> None:
        self.store.require_own(self)
        self.db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def insert_value(self, digest: bytes, text: str) -> None:
        self.store.require_own(self)
        self.db.execute("INSERT OR IGNORE INTO value VALUES (?, ?)", (digest, text))


class Store:
    """Reads and writes rows in a file.

    `durable=False` is for ledgers that are thrown away with their session: nothing waits for the disk.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path, self.durable = path, durable

    @property
    def lock_path(self) -> Path:
        """The file that is locked. It lies beside the ledger itself, not beside a symbolic link to it, so
        that all who open the ledger lock the same file."""
        return Path(os.path.realpath(self.path) + "-lock")

    def create(self) -> None:
        """Create an empty ledger in a new file that only its owner can read; links are not followed."""
        try:
            os.close(_system.create_file(self.path))
        except FileExistsError:
            raise LedgerError(
                f"{self.path} exists already, or is a link. A ledger is never overwritten: nothing "
                f"was changed."
            ) from None
        except OSError as error:
            raise LedgerError(f"no ledger can be made at {self.path} ({error.strerror}).") from None
        try:
            with self._held(exclusive=True) as held:
                db = self._connect(held, write=True)
                marks = f"PRAGMA application_id={_APPLICATION}; PRAGMA user_version={FORMAT};"
                db.executescript(f"BEGIN IMMEDIATE;{_TABLES}{_VALUES}{marks}COMMIT;")
            if self.durable:
                sync_folder(self.path.parent)
        except (sqlite3.Error, OSError, LedgerError) as error:
            self.remove()
            raise LedgerError(f"no ledger can be made at {self.path} ({_reason(error)}).") from None

    def remove(self) -> None:
        """Remove the files that `create` made."""
        for path in (self.path, self.lock_path):
            path.unlink(missing_ok=True)

    def check(self) -> None:
        """Refuse a file that is not a ledger of this format, or that has several names."""
        if not self.path.is_file():
            raise LedgerError(f"there is no ledger at {self.path}.")
        if self.path.stat().st_nlink > 1:
            raise LedgerError(
                f"{self.path} has several names (hard links), and whoever uses another one would not be "
                f"waited for. Nothing was changed. Keep one name, and make the others symbolic links."
            )
        try:
            with self.reading(strict=False) as db:
                marks = tuple(
                    db.execute(f"PRAGMA {n}").fetchone()[0] for n in ("application_id", "user_version")
                )
        except Tampered:
            # The file is not one of SQLite at all.
            marks = (0, 0)
        if marks != (_APPLICATION, FORMAT):
            raise LedgerError(
                f"{self.path} is not a discreet ledger of format {FORMAT}. Nothing was changed."
            )

    @contextmanager
    def reading(self, *, strict: bool = True) -> Iterator[sqlite3.Connection]:
        """Open a connection for reading; no transaction can be opened before the block ends. `strict=False`
        accepts any schema."""
        with self._held(exclusive=False) as held, self._translated_errors("read"):
            db = self._connect(held, write=False)
            db.execute("BEGIN")
            if strict:
                self.compare(db)
            yield db

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Open a transaction while there is no other writer or reader; it is on disk when the block ends,
        and undone if the block raises."""
        with self._held(exclusive=True) as held, self._translated_errors("written"):
            db = self._connect(held, write=True)
            db.execute("BEGIN IMMEDIATE")
            keeps_values = self.compare(db)
            try:
                yield Transaction(self, db, keeps_values)
                self.require_own(held)
            except BaseException:
                if held.own:
                    with suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def compare(self, db: sqlite3.Connection) -> bool:
        """Refuse a schema that is not exactly that of a ledger: a trigger that somebody added could delete
        charges again. Return whether it has a place for values beside the chain."""
        schema = _schema(db)
        if schema not in (SCHEMA, SCHEMA_WITHOUT_VALUES):
            raise Tampered(
                f"the schema of {self.path} is not that of a ledger: something was planted there, or taken "
                f"away. Nothing was charged or released. Run `discreet ledger verify`, and go back to a copy "
                f"that is whole."
            )
        return schema == SCHEMA

    def read_value(self, db: sqlite3.Connection, digest: bytes) -> str | None:
        """Return the text of the value that is stored under a hash; None without one."""
        if _schema(db) == SCHEMA_WITHOUT_VALUES:
            return None
        row = db.execute("SELECT data FROM value WHERE hash = ?", (digest,)).fetchone()
        return None if row is None else str(row[0])

    def read_rows(
        self, db: sqlite3.Connection, first: int, limit: int = PAGE, also: Sequence[int] = ()
    ) -> list[Row]:
        """Return at most `limit` rows from a number on, in order; all of them if `limit` is negative. Before
        them come those with the smaller numbers `also`. They are read from the table itself, never from an
        index."""
        sql = f"SELECT {COLUMNS} FROM entry NOT INDEXED WHERE seq"
        older = db.execute(f"{sql} IN ({', '.join(map(str, also))}) ORDER BY seq").fetchall() if also else []
        return older + db.execute(f"{sql} >= ? ORDER BY seq LIMIT ?", (first, limit)).fetchall()

    def require_own(self, held: HeldLock | Transaction) -> None:
        """Refuse to go on in a forked child, whose transaction is its parent's."""
        if held.pid != os.getpid():
            raise LedgerError(
                f"this process was forked in the middle of a transaction on {self.path}, which is "
                f"its parent's. Nothing was charged here."
            )

    def _connect(self, held: HeldLock, *, write: bool) -> sqlite3.Connection:
        """Return a new connection, which becomes `held.db`: `_held` closes it."""
        name = quote(os.path.join(os.getcwd(), self.path))
        # SQLite opens a file that cannot be written, as on read-only media, for reading.
        held.db = db = sqlite3.connect(
            f"file:{name}?mode=rw", timeout=WAIT, isolation_level=None, uri=True, check_same_thread=False
        )
        db.execute("PRAGMA trusted_schema=OFF")
        if write:
            # A transaction is committed when its journal is deleted. EXTRA waits until that is on disk, so
            # that a charge is on disk before anything is released; with FULL, a power cut can bring the
            # journal back, and with it undo a charge whose answer was given (tests/curator/test_crashes.py).
            db.execute(f"PRAGMA synchronous={'EXTRA' if self.durable else 'OFF'}")
            db.execute(f"PRAGMA journal_mode={'DELETE' if self.durable else 'MEMORY'}")
            # For macOS, as in `_system.sync`; other systems ignore it.
            db.execute("PRAGMA fullfsync=ON")
        return db

    @contextmanager
    def _held(self, *, exclusive: bool) -> Iterator[HeldLock]:
        """Hold the lock of the file beside the ledger (`lock_path`) while the block runs; then close the
        connection that was opened under it, and release the lock."""
        held = register(HeldLock(lock_file(self.path, self.lock_path, exclusive=exclusive)))
        try:
            with CONNECTED:
                try:
                    yield held
                finally:
                    if held.own and held.db is not None:
                        held.db.close()
        finally:
            # In a forked child, `locks` has closed the copies; connection and lock are the parent's.
            if held.own:
                unregister(held)
                unlock_file(held.lock)

    @contextmanager
    def _translated_errors(self, verb: str) -> Iterator[None]:
        """Raise SQLite's errors as LedgerError; `verb` says what could not be done to the ledger."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise LedgerError(
                f"{self.path} cannot be {verb} ({_reason(error)}). Nothing was released."
            ) from None
        except sqlite3.DatabaseError as error:
            raise Tampered(f"{self.path} cannot be {verb}: {_reason(error)}. Nothing was released.") from None


# Texts for SQLite's primary error codes, which are the lowest 8 bits of a code.
_WORDS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only here; what a crash left in a journal beside it is rolled back where "
    "both can be written",
    sqlite3.SQLITE_BUSY: f"it stayed locked by others for {WAIT:.0f} seconds",
}


def _reason(error: Any) -> str:
    """Return why an operation failed, in a few words."""
    code = getattr(error, "sqlite_errorcode", None)
    return _WORDS.get(code & 0xFF if isinstance(code, int) else -1, _system.reason_of(error))
