"""The file of a ledger: SQLite with a rollback journal, one connection for each transaction, under a lock of
our own.

Nothing stays open between transactions, so that a fork inherits nothing. Our locks (`locks`) keep other
programs that open the ledger waiting, so that they never take our journal for one that a crash left. What a
transaction wrote is read back through a fresh connection before it counts as written.

The order of a transaction: lock, connect, compare the schema, BEGIN IMMEDIATE, work, read each row back,
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

# The format of the file, in its header: raised when old versions could no longer read it.
FORMAT = 1
# rows read in one go, so that no lock is held while somebody looks at them
PAGE = 1000
COLUMNS = "seq, time, kind, body, hash, signature, sealed, topic"

# "disc": tells a ledger from any other SQLite file
_APPLICATION = 0x64697363
# The text of format 1, to the letter: files are compared with it. The indices are there for other readers; no
# decision rests on them.
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


def _schema(db: sqlite3.Connection) -> tuple[Row, ...]:
    return tuple(sorted(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"), key=repr))


def _expected() -> tuple[Row, ...]:
    """Return the schema that our own statements make."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(_TABLES)
        return _schema(db)
    finally:
        db.close()


SCHEMA = _expected()


class Tampered(LedgerError):
    """The file is a ledger, and not as our code leaves it."""


class Writing(Protocol):
    """Collects what is written in one transaction, undone if it raises."""

    @property
    def store(self) -> LedgerStore: ...

    @property
    def db(self) -> Any: ...

    @property
    def pid(self) -> int: ...

    def insert(self, row: Row) -> None: ...


class LedgerStore(Protocol):
    """Where entries are kept, in a file (`Store`) or a database (`PostgresStore`).

    A transaction (`writing`) is alone among all writers, of all processes and machines, sees everything that
    was committed before it, and is kept for good, and read back, when it ends. A reader sees transactions
    whole or not at all. tests/contracts/test_ledger_store.py holds both to that.
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
    """Writes in one transaction of the file."""

    store: Store
    db: sqlite3.Connection
    rows: list[Row] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)

    def insert(self, row: Row) -> None:
        """Append a row, and check that it is there: as it was written, and at the end."""
        self.store.own(self)
        self.db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        if self.store.read_rows(self.db, row[0]) != [row]:
            raise Tampered(
                f"what was written to {self.store.path} is not in it. Nothing was charged or released."
            )
        self.rows.append(row)


class Store:
    """Reads and writes rows.

    Not `durable`: for ledgers that are forgotten with their session, nothing waits for the disk.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path, self.durable = path, durable

    @property
    def lock_path(self) -> Path:
        """The file that is locked: beside the ledger itself, wherever a link to it was followed from."""
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
        """Take back what `create` made."""
        for path in (self.path, self.lock_path):
            path.unlink(missing_ok=True)

    def check(self) -> None:
        """Refuse what is not a ledger of this format."""
        if not self.path.is_file():
            raise LedgerError(f"there is no ledger at {self.path}.")
        if self.path.stat().st_nlink > 1:
            raise LedgerError(
                f"{self.path} has several names (hard links), and whoever uses another one would not "
                f"be waited for. Nothing was changed. "
                f"Keep one name, and make the others symbolic links."
            )
        try:
            with self.reading(strict=False) as db:
                marks = tuple(
                    db.execute(f"PRAGMA {n}").fetchone()[0] for n in ("application_id", "user_version")
                )
        except Tampered:
            marks = (0, 0)
        if marks != (_APPLICATION, FORMAT):
            raise LedgerError(
                f"{self.path} is not a discreet ledger of format {FORMAT}. Nothing was changed."
            )

    def migrate(self) -> None:
        """Do nothing: there is one layout of the file so far."""

    @contextmanager
    def reading(self, *, strict: bool = True) -> Iterator[sqlite3.Connection]:
        """Open a connection for a moment: no transaction runs meanwhile. Not `strict`: whatever the schema
        is."""
        with self._held(exclusive=False) as held, self._translated_errors("read"):
            db = self._connect(held, write=False)
            db.execute("BEGIN")
            if strict:
                self.compare(db)
            yield db

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Open one transaction, alone among all writers and readers; on disk when the block ends, undone if
        it raises."""
        with self._held(exclusive=True) as held, self._translated_errors("written"):
            db = self._connect(held, write=True)
            db.execute("BEGIN IMMEDIATE")
            self.compare(db)
            transaction = Transaction(self, db)
            try:
                yield transaction
                self.own(held)
            except BaseException:
                if held.own:
                    with suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
            db.close()
            self._find(held, transaction.rows)

    def compare(self, db: sqlite3.Connection) -> None:
        """Refuse a schema with anything more, less or other than ours: a planted trigger could take charges
        away again."""
        if _schema(db) != SCHEMA:
            raise Tampered(
                f"the schema of {self.path} is not that of a ledger: something was planted there, or "
                f"taken away. Nothing was charged or "
                f"released. Run `discreet ledger verify`, and go back to a copy that is whole."
            )

    def _find(self, held: HeldLock, rows: list[Row]) -> None:
        """Check that what was committed is in the file at this path, for anybody who opens it now."""
        if rows and self.read_rows(self._connect(held, write=False), rows[0][0], limit=-1) != rows:
            raise Tampered(
                f"what was committed to {self.path} is not in the file: it was moved, replaced, or "
                f"another program wrote to it. Nothing was "
                f"released. Run `discreet ledger verify`."
            )

    def read_rows(self, db: sqlite3.Connection, first: int, limit: int = PAGE) -> list[Row]:
        """Return rows from a number on, in order. Read from the table itself, never from an index."""
        sql = f"SELECT {COLUMNS} FROM entry NOT INDEXED WHERE seq >= ? ORDER BY seq LIMIT ?"
        return db.execute(sql, (first, limit)).fetchall()

    def own(self, held: HeldLock | Transaction) -> None:
        if held.pid != os.getpid():
            raise LedgerError(
                f"this process was forked in the middle of a transaction on {self.path}, which is "
                f"its parent's. Nothing was charged here."
            )

    def _connect(self, held: HeldLock, *, write: bool) -> sqlite3.Connection:
        """Return a connection that `held` closes.

        An old ledger in WAL mode is moved to a rollback journal with its first transaction.
        """
        name = quote(os.fspath(self.path.absolute()))
        # With the bytes locked by us, SQLite's own locks would only be in the way.
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
            # SQLite opens the file with the first statement that needs it: here, so that read-only media are
            # noticed.
            if not write and self._read_only():
                db.execute("PRAGMA schema_version")
            if write:
                # the commit is the truncation of the journal, which FULL syncs: a charge is on disk before
                # anything is released
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
            held.db = db = sqlite3.connect(f"file:{name}?immutable=1", isolation_level=None, uri=True)
        return db

    def _read_only(self) -> bool:
        """Return whether the file lies where nobody can write, with no journal left: then it can be read as
        it is."""
        journal = has_journal(self.path, "-wal") or has_journal(self.path, "-journal")
        return not journal and not os.access(os.path.dirname(os.path.realpath(self.path)), os.W_OK)

    @contextmanager
    def _held(self, *, exclusive: bool) -> Iterator[HeldLock]:
        """Hold both locks of the ledger, and close the connection that was opened under them."""
        held = register(HeldLock(lock_file(self.path, self.lock_path, exclusive=exclusive)))
        try:
            held.locked_bytes = lock_bytes(self.path, exclusive=exclusive)
            yield held
        finally:
            # in a forked child both were taken care of, and belong to the parent
            if held.own:
                unregister(held)
                if held.db is not None:
                    held.db.close()
                if held.locked_bytes is not None:
                    os.close(held.locked_bytes)
                unlock_file(held.lock)

    @contextmanager
    def _translated_errors(self, verb: str) -> Iterator[None]:
        """Translate SQLite's errors into ours."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise LedgerError(
                f"{self.path} cannot be {verb} ({_reason(error)}). Nothing was released."
            ) from None
        except sqlite3.DatabaseError as error:
            raise Tampered(f"{self.path} cannot be {verb}: {_reason(error)}. Nothing was released.") from None


_WORDS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_BUSY: f"it stayed locked by others for {WAIT:.0f} seconds",
}


def _reason(error: Any) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    return _WORDS.get(
        code & 0xFF if isinstance(code, int) else -1, str(getattr(error, "strerror", None) or error)
    )
