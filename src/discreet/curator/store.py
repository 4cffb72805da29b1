"""Stores a ledger in a file: SQLite with a rollback journal, and a new connection for each transaction, under
locks that are not SQLite's (`locks`).

Nothing stays open between transactions, so that a forked child inherits no connection. The locks make other
programs that open the ledger wait; otherwise they could take the journal of a running transaction for one
that a crash has left, and roll it back. What a transaction wrote is read back through a new connection before
it counts as written.

The order of a transaction: lock, connect, BEGIN IMMEDIATE, compare the schema, work, read each row back,
COMMIT, close, connect anew, read the rows once more, close, unlock.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from .._errors import LedgerError
from .entries import Row
from .locks import (
    WAIT,
    HeldLock,
    has_journal,
    lock_bytes,
    lock_file,
    register,
    sync_folder,
    unlock_file,
    unregister,
)

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


def _schema(db: sqlite3.Connection) -> tuple[Any, ...]:
    """Return all tables, triggers and indices of a file, with the text of their statements."""
    return tuple(sorted(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"), key=repr))


def _expected() -> tuple[Any, ...]:
    """Return the schema that `_TABLES` makes."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(_TABLES)
        return _schema(db)
    finally:
        db.close()


SCHEMA = _expected()


class Tampered(LedgerError):
    """Raised for a ledger that was changed by something else than discreet, or is damaged."""


class Writing(Protocol):
    """Writes in one open transaction of a store: `insert` appends a row, `db` is its connection, and `pid`
    the process that opened it."""

    @property
    def store(self) -> LedgerStore: ...

    @property
    def db(self) -> Any: ...

    @property
    def pid(self) -> int: ...

    def insert(self, row: Row) -> None: ...


class LedgerStore(Protocol):
    """Keeps the entries of a ledger, in a file (`Store`) or a database (`PostgresStore`).

    While a transaction (`writing`) is open, no other process or machine has one. It reads everything that was
    committed before it; when it ends, its rows were read back, and are on disk (with `durable=False`: are
    committed, and may not be on disk yet). A reader (`reading`) sees all rows of a transaction or none.
    `check` refuses what is no ledger; `migrate` changes what an older version made to the newest layout.
    tests/contracts/test_ledger_store.py tests this of both stores.
    """

    path: Path

    def create(self) -> None: ...

    def remove(self) -> None: ...

    def check(self) -> None: ...

    def migrate(self) -> None: ...

    def reading(self, *, strict: bool = True) -> AbstractContextManager[Any]: ...

    def writing(self) -> AbstractContextManager[Writing]: ...

    def read_rows(self, db: Any, first: int, limit: int = PAGE) -> list[Row]: ...


@dataclass(frozen=True, slots=True)
class Transaction:
    """Writes in one transaction of the file; `rows` are those that it has inserted."""

    store: Store
    db: sqlite3.Connection
    rows: list[Row] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)

    def insert(self, row: Row) -> None:
        """Append a row, and read it back: it must be there as it was written, with no row after it."""
        self.store.require_own(self)
        self.db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        if self.store.read_rows(self.db, row[0]) != [row]:
            raise Tampered(
                f"what was written to {self.store.path} is not in it. Nothing was charged or released."
            )
        self.rows.append(row)


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
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
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
                db.executescript(f"BEGIN IMMEDIATE;{_TABLES}{marks}COMMIT;")
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

    def migrate(self) -> None:
        """Do nothing: the file has had one layout so far."""

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
        """Open a transaction while there is no other writer or reader; it is on disk and read back when the
        block ends, and undone if the block raises."""
        with self._held(exclusive=True) as held, self._translated_errors("written"):
            db = self._connect(held, write=True)
            db.execute("BEGIN IMMEDIATE")
            self.compare(db)
            transaction = Transaction(self, db)
            try:
                yield transaction
                self.require_own(held)
            except BaseException:
                if held.own:
                    with suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
            db.close()
            self._require_committed(held, transaction.rows)

    def compare(self, db: sqlite3.Connection) -> None:
        """Refuse a schema that is not exactly that of a ledger: a trigger that somebody added could delete
        charges again."""
        if _schema(db) != SCHEMA:
            raise Tampered(
                f"the schema of {self.path} is not that of a ledger: something was planted there, or taken "
                f"away. Nothing was charged or released. Run `discreet ledger verify`, and go back to a copy "
                f"that is whole."
            )

    def _require_committed(self, held: HeldLock, rows: list[Row]) -> None:
        """Check, through a new connection, that the committed rows are in the file at this path, and the last
        ones."""
        if rows and self.read_rows(self._connect(held, write=False), rows[0][0], limit=-1) != rows:
            raise Tampered(
                f"what was committed to {self.path} is not in the file: it was moved, replaced, or another "
                f"program wrote to it. Nothing was released. Run `discreet ledger verify`."
            )

    def read_rows(self, db: sqlite3.Connection, first: int, limit: int = PAGE) -> list[Row]:
        """Return at most `limit` rows from a number on, in order; all of them if `limit` is negative. They
        are read from the table itself, never from an index."""
        sql = f"SELECT {COLUMNS} FROM entry NOT INDEXED WHERE seq >= ? ORDER BY seq LIMIT ?"
        return db.execute(sql, (first, limit)).fetchall()

    def require_own(self, held: HeldLock | Transaction) -> None:
        """Refuse to go on in a forked child, whose transaction is its parent's."""
        if held.pid != os.getpid():
            raise LedgerError(
                f"this process was forked in the middle of a transaction on {self.path}, which is "
                f"its parent's. Nothing was charged here."
            )

    def _connect(self, held: HeldLock, *, write: bool) -> sqlite3.Connection:
        """Return a new connection, which becomes `held.db`: `_held` closes it.

        A ledger of an old version, in write-ahead mode, is changed to a rollback journal when it is first
        opened for writing.
        """
        name = quote(os.fspath(self.path.absolute()))
        # If the bytes that SQLite locks in the file are locked already (`locks.lock_bytes`), SQLite's own
        # locks would be refused; they are turned off.
        locks = "" if held.locked_bytes is None else "&nolock=1"
        db = sqlite3.connect(
            f"file:{name}?mode=rw{locks}",
            timeout=WAIT,
            isolation_level=None,
            uri=True,
            check_same_thread=False,
        )
        held.db = db
        try:
            db.execute("PRAGMA trusted_schema=OFF")
            # SQLite opens the file with the first statement that needs it. This one does, so that an error of
            # read-only media comes here and not later.
            if not write and self._read_only():
                db.execute("PRAGMA schema_version")
            if write:
                # A transaction is committed when its journal is truncated. FULL waits until that is on disk,
                # so that a charge is on disk before anything is released.
                db.execute(f"PRAGMA synchronous={'FULL' if self.durable else 'OFF'}")
                (mode,) = db.execute("PRAGMA journal_mode=TRUNCATE").fetchone()
                if mode != "truncate":
                    raise LedgerError(
                        f"{self.path} is open in another program ({mode} mode). Nothing was changed."
                    )
        except sqlite3.OperationalError:
            if write or not self._read_only():
                raise
            db.close()
            # Read-only media: `immutable` tells SQLite to take no lock and to look for no journal.
            held.db = db = sqlite3.connect(f"file:{name}?immutable=1", isolation_level=None, uri=True)
        return db

    def _read_only(self) -> bool:
        """Return whether the file's folder cannot be written and there is no journal to roll back: then the
        file can be read without a lock."""
        journal = has_journal(self.path, "-wal") or has_journal(self.path, "-journal")
        return not journal and not os.access(os.path.dirname(os.path.realpath(self.path)), os.W_OK)

    @contextmanager
    def _held(self, *, exclusive: bool) -> Iterator[HeldLock]:
        """Hold both locks of the ledger while the block runs, that of the file beside it (`lock_path`) and
        that of the bytes which SQLite itself locks (`locks.lock_bytes`); then close the connection that was
        opened under them, and release the locks."""
        held = register(HeldLock(lock_file(self.path, self.lock_path, exclusive=exclusive)))
        try:
            held.locked_bytes = lock_bytes(self.path, exclusive=exclusive)
            yield held
        finally:
            # In a forked child, `locks` has closed the copies; connection and locks are the parent's.
            if held.own:
                unregister(held)
                if held.db is not None:
                    held.db.close()
                if held.locked_bytes is not None:
                    os.close(held.locked_bytes)
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
    sqlite3.SQLITE_BUSY: f"it stayed locked by others for {WAIT:.0f} seconds",
}


def _reason(error: Any) -> str:
    """Return why an operation failed, in a few words."""
    code = getattr(error, "sqlite_errorcode", None)
    return _WORDS.get(
        code & 0xFF if isinstance(code, int) else -1, str(getattr(error, "strerror", None) or error)
    )
