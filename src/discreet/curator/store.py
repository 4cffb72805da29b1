"""The file of a ledger: SQLite with a rollback journal, one connection for each transaction, under a lock of
our own.

Nothing stays open between transactions, so that a fork inherits nothing. SQLite's own locks are POSIX locks,
which *any* open and close of the file in the process drops (a copy, a backup). Ours belong to an open file
and survive that: `flock` on a file beside the ledger among ourselves, and, where the system has them,
open-file-description locks on the very bytes that SQLite locks, so that other programs which open the ledger
wait, and never take our journal for one that a crash left. What a transaction wrote is read back through a
fresh connection before it counts as written.

The order of a transaction: lock, connect, compare the schema, BEGIN IMMEDIATE, work, read each row back,
COMMIT, close, connect anew, read the rows once more, close, unlock.
"""

from __future__ import annotations

import ctypes
import os
import random
import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from .._errors import LedgerError
from .entries import Row

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows, whose locks are no POSIX locks: SQLite's own do)
    fcntl = None  # type: ignore[assignment]

# The format of the file, in its header: raised when old versions could no longer read it.
FORMAT = 1
# seconds to wait for other writers before giving up
WAIT = 60.0
# rows read in one go, so that no lock is held while somebody looks at them
PAGE = 1000
COLUMNS = "seq, time, kind, body, hash, signature, sealed, topic"

# Where SQLite locks a database (https://sqlite.org/fileformat2.html, "The Lock-Byte Page"): pending and
# reserved, then 510 shared bytes.
_PENDING, _ALL = 0x40000000, 512
_SHARED, _MANY = _PENDING + 2, 510
_LASTING = fcntl is not None and hasattr(fcntl, "F_OFD_SETLK")
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
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(_TABLES)
        return _schema(db)
    finally:
        db.close()


SCHEMA = _expected()


class Tampered(LedgerError):
    """The file is a ledger, and not as our code leaves it."""


@dataclass(eq=False)
class Held:
    """A lock and a connection in use by one process; a forked child leaves both alone."""

    lock: int | None
    db: Any = None
    # The ledger itself, open for as long as SQLite's bytes of it are locked.
    bytes: int | None = None
    pid: int = field(default_factory=os.getpid)

    @property
    def own(self) -> bool:
        return self.pid == os.getpid()


_HELD: set[Held] = set()


def keep(held: Held) -> Held:
    """Remember an open lock, so that a forked child does not hold it on."""
    _HELD.add(held)
    return held


def forget(held: Held) -> None:
    _HELD.discard(held)


def _after_fork_in_child() -> None:
    """Keep inherited connections open for ever: closing one would roll its parent's transaction back.

    The lock stays the parent's.
    """
    for held in _HELD:
        if held.db is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held.db))
        # Closing releases nothing while the parent has the same file open.
        for handle in (held.lock, held.bytes):
            if handle is not None:
                with suppress(OSError):
                    os.close(handle)
    _HELD.clear()


# not on Windows, which does not fork
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


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
                _sync(self.path.parent)
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

    def _find(self, held: Held, rows: list[Row]) -> None:
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

    def own(self, held: Held | Transaction) -> None:
        if held.pid != os.getpid():
            raise LedgerError(
                f"this process was forked in the middle of a transaction on {self.path}, which is "
                f"its parent's. Nothing was charged here."
            )

    def _connect(self, held: Held, *, write: bool) -> sqlite3.Connection:
        """Return a connection that `held` closes.

        An old ledger in WAL mode is moved to a rollback journal with its first transaction.
        """
        name = quote(os.fspath(self.path.absolute()))
        # With the bytes locked by us, SQLite's own locks would only be in the way.
        locks = "" if held.bytes is None else "&nolock=1"
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
            if not write and self._frozen():
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
            if write or not self._frozen():
                raise
            db.close()
            held.db = db = sqlite3.connect(f"file:{name}?immutable=1", isolation_level=None, uri=True)
        return db

    def _frozen(self) -> bool:
        """Return whether the file lies where nobody can write, with no journal left: then it can be read as
        it is."""
        leftover = self._leftover("-wal") or self._leftover("-journal")
        return not leftover and not os.access(os.path.dirname(os.path.realpath(self.path)), os.W_OK)

    @contextmanager
    def _held(self, *, exclusive: bool) -> Iterator[Held]:
        held = Held(self._lock(exclusive))
        _HELD.add(held)
        try:
            held.bytes = self._lock_bytes(exclusive)
            yield held
        finally:
            # in a forked child both were taken care of, and belong to the parent
            if held.own:
                _HELD.discard(held)
                if held.db is not None:
                    held.db.close()
                if held.bytes is not None:
                    os.close(held.bytes)
                _unlock(held.lock)

    def _lock(self, exclusive: bool) -> int | None:
        """Lock the file beside the ledger; do nothing where that cannot be (read-only media): there nobody
        writes."""
        if fcntl is None:
            return None
        if not self.path.is_file():
            raise LedgerError(f"there is no ledger at {self.path}. Nothing was charged.")
        deadline = time.monotonic() + WAIT
        while True:
            try:
                handle = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                if not exclusive:
                    return None
                raise LedgerError(
                    f"{self.path} cannot be written ({error.strerror}). Nothing was charged."
                ) from None
            if self._take(handle, exclusive, deadline):
                return handle
            os.close(handle)

    def _lock_bytes(self, exclusive: bool) -> int | None:
        """Lock the bytes of the ledger that SQLite locks, for as long as the file returned stays open; None
        where SQLite must do it itself.

        A journal that a crash left is rolled back by whoever comes next, alone.
        """
        if not _LASTING or self._write_ahead():
            return None
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        exclusive = exclusive or self._leftover("-journal")
        kind, start, length = (
            (fcntl.F_WRLCK, _PENDING, _ALL) if exclusive else (fcntl.F_RDLCK, _SHARED, _MANY)
        )
        request = struct.pack("@hhqqi4x", kind, os.SEEK_SET, start, length, 0)
        deadline = time.monotonic() + WAIT
        while True:
            try:
                fcntl.fcntl(handle, fcntl.F_OFD_SETLK, request)
                return handle
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(handle)
                    raise LedgerError(
                        f"{self.path} stayed locked by another program for {WAIT:.0f} seconds. "
                        f"Nothing was charged."
                    ) from None
                time.sleep(random.uniform(0.0005, 0.003))
            except OSError:
                # A file system without such locks: SQLite's own have to do.
                os.close(handle)
                return None

    def _write_ahead(self) -> bool:
        """Return whether the file is still in the write-ahead mode of old ledgers, which works with SQLite's
        own locks alone."""
        with open(self.path, "rb") as file:
            return file.read(20)[18:20] == b"\x02\x02"

    def _leftover(self, end: str) -> bool:
        real = os.path.realpath(self.path) + end
        return os.path.exists(real) and os.path.getsize(real) > 0

    def _take(self, handle: int, exclusive: bool, deadline: float) -> bool:
        """Wait for the lock; False if its file was replaced in the meantime, and another one must be
        locked."""
        while True:
            try:
                fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(handle)
                    raise LedgerError(
                        f"{self.path} stayed locked by others for {WAIT:.0f} seconds. Nothing was charged."
                    ) from None
                time.sleep(random.uniform(0.0005, 0.003))
        with suppress(OSError):
            return os.path.samestat(os.fstat(handle), os.stat(self.lock_path))
        return False

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


def _unlock(handle: int | None) -> None:
    if handle is not None:
        # also where a child that bypassed our hook still has it open
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


_WORDS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_BUSY: f"it stayed locked by others for {WAIT:.0f} seconds",
}


def _reason(error: Any) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    return _WORDS.get(
        code & 0xFF if isinstance(code, int) else -1, str(getattr(error, "strerror", None) or error)
    )


def _sync(folder: Path) -> None:
    """Write the name of a new file to disk as well."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
