"""A ledger's entries in a PostgreSQL database: for many workers and machines that share one budget.

What is local stays local, beside a small file that says where the entries are: the key. Each machine has that
file and its own copy of the key. Sealed blobs are in the database too (`blobs`), and so are the signs of life
of those who ask interactive mechanisms: locks of connections.

A transaction is alone among all writers by an advisory lock of the server, taken before it begins, so that the
snapshot is that of the newest entry; it is SERIALIZABLE besides. A process that dies, or a machine that is cut
off, loses its connection, with which the server gives up lock and transaction. What was committed is read back
through a fresh connection before it counts as written, as for files.

Guarantee: no two transactions see the same newest entry and both append after it.
Proof:     all writers hold the lock from before their snapshot until after their commit; and should somebody
           go around the lock, `seq` is a primary key, and the second of two commits fails.
Assumes:   the server keeps what it has committed (fsync), and nobody takes away rows: triggers refuse that,
           and the chain shows it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._errors import InvalidInput, LedgerError
from ..tables import EngineError
from ..tables.engines.postgres_connection import Address, driver
from .entries import Row
from .locks import WAIT, HeldLock, register, sync_folder, unregister
from .postgres_layout import COMMENT, FIRST, LAYOUT, SECOND, layout_of, newest_layout
from .store import COLUMNS, FORMAT, PAGE, Tampered

MARK = b"discreet ledger on PostgreSQL\n"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
# "disc": the first half of the number that is locked; the second is the schema's own
_ALONE = 0x64697363


def split(ledger: str) -> tuple[str, str]:
    """Return the address of the database and the name of the ledger in it:
    "postgresql://user@host/books::visits"."""
    # an address of IPv6 has colons of its own, in brackets
    host, bracket, rest = ledger.rpartition("]")
    address, _, name = rest.partition("::")
    address = host + bracket + address
    if not _NAME.fullmatch(name or "discreet"):
        raise InvalidInput(
            f"{name!r} cannot name a ledger in a database: small letters, digits and _, such as 'visits'. "
            f"Nothing was opened."
        )
    return address, name or "discreet"


def is_pointer(path: Path) -> bool:
    """Return whether a file says that its ledger is in a database."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(MARK)) == MARK
    return False


@dataclass(frozen=True, slots=True)
class PostgresTransaction:
    """Writes in one transaction of the database."""

    store: PostgresStore
    db: Any
    rows: list[Row] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)

    def insert(self, row: Row) -> None:
        """Append a row, and check that it is there: as it was written, and at the end."""
        self.store.own(self)
        self.db.execute("INSERT INTO entry VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", row)
        if self.store.read_rows(self.db, row[0]) != [row]:
            raise Tampered(
                f"what was written to {self.store.path} is not in it. Nothing was charged or released."
            )
        self.rows.append(row)


class PostgresStore:
    """Reads and writes rows in a database.

    Not `durable`: nothing waits for the server's disk.
    """

    def __init__(self, path: Path, remote: str | None = None, *, durable: bool = True) -> None:
        self.path, self.durable = path, durable
        if remote is None:
            try:
                remote = path.read_bytes().removeprefix(MARK).decode().strip()
            except (OSError, UnicodeError):
                raise LedgerError(f"there is no ledger at {path}. Nothing was charged.") from None
        self.remote = remote
        address, self.name = split(remote)
        self._address = Address(address)

    def create(self) -> None:
        """Create an empty ledger in a schema of its own, and the file that points to it."""
        psycopg = driver()
        if self.path.exists() or self.path.is_symlink():
            raise LedgerError(
                f"{self.path} exists already, or is a link. A ledger is never overwritten: nothing was "
                f"changed."
            )
        text = (FIRST + SECOND).format(schema=self.name, comment=COMMENT)
        with self._connected() as db:
            try:
                db.execute(f"BEGIN; {text} COMMIT")
            except (psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation):
                raise LedgerError(
                    f"there is a ledger, or something else, called {self.name!r} in the database at "
                    f"{self._address.label} already. Nothing was changed. Open it with its key beside "
                    f"{self.path}, or choose another name: postgresql://...::name"
                ) from None
            except psycopg.Error as error:
                raise LedgerError(
                    f"no ledger can be made in the database at {self._address.label} ({_reason(error)})."
                ) from None
        try:
            self.point()
        except BaseException:
            # a ledger that nothing points to would be in the way of the next try
            self._drop_empty_schema()
            raise

    def point(self) -> None:
        """Write the file that says where the entries are; only its owner can read it."""
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be made ({error.strerror}).") from None
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MARK + self.remote.encode() + b"\n")
                file.flush()
                if self.durable:
                    os.fsync(file.fileno())
        except OSError as error:
            self.path.unlink(missing_ok=True)
            raise LedgerError(f"{self.path} cannot be made ({error.strerror}).") from None
        if self.durable:
            # its name, and that of the key beside it: the entries would outlive a key that a power cut took
            sync_folder(self.path.parent)

    def exists(self) -> bool:
        """Return whether the database has a ledger of this name."""
        with self._connected() as db:
            return bool(db.execute("SELECT to_regnamespace(%s) IS NOT NULL", (self.name,)).fetchone()[0])

    def remove(self) -> None:
        """Take back what `create` made, unless there is an entry already."""
        self._drop_empty_schema()
        self.path.unlink(missing_ok=True)

    def _drop_empty_schema(self) -> None:
        """Drop the schema of a ledger without an entry."""
        psycopg = driver()
        with suppress(psycopg.Error, LedgerError), self._connected() as db:
            if not db.execute(f"SELECT count(*) FROM {self.name}.entry").fetchone()[0]:
                db.execute(f"DROP SCHEMA {self.name} CASCADE")

    def check(self) -> None:
        """Refuse what is not a ledger of this format."""
        with self.reading(strict=False) as db:
            comment = db.execute(
                "SELECT obj_description(to_regnamespace(%s), 'pg_namespace')", (self.name,)
            ).fetchone()
            newest = newest_layout(db, self.name) if comment[0] == COMMENT else LAYOUT
        if newest > LAYOUT:
            raise LedgerError(
                f"the ledger {self.name!r} in the database at {self._address.label} is of layout {newest}, and "
                f"this version of discreet knows {LAYOUT}. Nothing was changed. Use a newer version."
            )
        if comment[0] != COMMENT:
            raise LedgerError(
                f"{self.name!r} in the database at {self._address.label} is not a discreet ledger of format "
                f"{FORMAT}. Nothing was changed."
            )

    def migrate(self) -> None:
        """Migrate a schema of an older version to this layout, in one transaction.

        Refused where it is not exactly what that version made. A role that may not change the schema leaves
        it as it is: entries are read and written as before, and blobs are refused.
        """
        psycopg = driver()
        with self.reading(strict=False) as db:
            if layout_of(db, self.name) != 1:
                return
        with self._translated_errors("migrated"), self._connected() as db:
            self._lock(db)
            db.execute("BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE")
            # another process may have done it while this one waited
            if layout_of(db, self.name) == 1:
                try:
                    db.execute(SECOND.format(schema=self.name))
                except psycopg.errors.InsufficientPrivilege:
                    return
            db.execute("COMMIT")

    @contextmanager
    def reading(self, *, strict: bool = True) -> Iterator[Any]:
        """Open one snapshot of the ledger for a moment. Not `strict`: whatever the schema is."""
        with self._translated_errors("read"), self._connected() as db:
            db.execute(
                f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path = {self.name}"
            )
            if strict:
                self.compare(db)
            yield db

    @contextmanager
    def writing(self) -> Iterator[PostgresTransaction]:
        """Open one transaction, alone among all writers; on the server's disk when the block ends, undone if
        it raises."""
        with self._translated_errors("written"), self._connected() as db:
            self._lock(db)
            wait = "on" if self.durable else "off"
            db.execute(
                f"BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE; SET LOCAL synchronous_commit = {wait}; "
                f"SET LOCAL search_path = {self.name}"
            )
            self.compare(db)
            transaction = PostgresTransaction(self, db)
            # closing the connection undoes what was not committed, and gives up the lock
            yield transaction
            self.own(transaction)
            db.execute("COMMIT")
            self._find(transaction.rows)

    def compare(self, db: Any) -> None:
        """Refuse a schema with anything more, less or other than ours: a planted trigger could take charges
        away again."""
        if layout_of(db, self.name) is None:
            raise Tampered(
                f"the schema of {self.path} is not that of a ledger: something was planted there, or taken "
                f"away. Nothing was charged or released. Run `discreet ledger verify`, and go back to a copy "
                f"that is whole."
            )

    @contextmanager
    def blobs(self) -> Iterator[Any]:
        """Open one transaction on the table of blobs; undone if the block raises."""
        with self._translated_errors("used for blobs"), self._connected() as db:
            wait = "on" if self.durable else "off"
            db.execute(f"BEGIN; SET LOCAL synchronous_commit = {wait}; SET LOCAL search_path = {self.name}")
            layout = layout_of(db, self.name)
            if layout is None:
                self.compare(db)
            if layout == 1:
                raise LedgerError(
                    f"the ledger of {self.path} in the database is of an older layout, which keeps no blobs. "
                    f"Nothing was stored or released. Open it once as the owner of its schema, who may bring "
                    f"it to this one."
                )
            yield db
            db.execute("COMMIT")

    def hold(self, name: str) -> HeldLock | None:
        """Take a lock of the server that lasts as long as this process and its connection, or until it is
        given up; None if somebody has it."""
        with self._translated_errors("locked"):
            db = self._opened()
            held, taken = register(HeldLock(None, db)), False
            try:
                sql = "SELECT pg_try_advisory_lock(%s)"
                taken = bool(db.execute(sql, (self._number(name),)).fetchone()[0])
            finally:
                if not taken:
                    self.give_up(held)
            return held if taken else None

    def give_up(self, held: HeldLock) -> None:
        """Let go of a lock; a forked child leaves its parent's alone."""
        if held.own:
            unregister(held)
            # The server ends a connection some time after it was closed: whoever comes next would be refused.
            with suppress(Exception):
                held.db.execute("SELECT pg_advisory_unlock_all()")
            with suppress(Exception):
                held.db.close()

    @contextmanager
    def holding(self, name: str) -> Iterator[bool]:
        """Hold the lock of this name while the block runs, if it is free; yield whether it was."""
        held = self.hold(name)
        try:
            yield held is not None
        finally:
            if held is not None:
                self.give_up(held)

    def wait(self, name: str) -> None:
        """Wait until nobody has a lock, however long that takes."""
        with self._translated_errors("waited for"), self._connected() as db:
            db.execute("SELECT pg_advisory_lock_shared(%s)", (self._number(name),))

    def _number(self, name: str) -> int:
        """Return the number of a lock: 64 bits, of this ledger's own."""
        digest = hashlib.blake2b(f"{self.name} {name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def _find(self, rows: list[Row]) -> None:
        """Check that what was committed is there for anybody who looks now."""
        if not rows:
            return
        with self._connected() as db:
            db.execute(f"SET search_path = {self.name}")
            if self.read_rows(db, rows[0][0], limit=-1) != rows:
                raise Tampered(
                    f"what was committed to {self.path} is not in the database: it was replaced, or another "
                    f"program wrote to it. Nothing was released. Run `discreet ledger verify`."
                )

    def read_rows(self, db: Any, first: int, limit: int = PAGE) -> list[Row]:
        """Return rows from a number on, in order."""
        sql = f"SELECT {COLUMNS} FROM entry WHERE seq >= %s ORDER BY seq LIMIT %s"
        return db.execute(sql, (first, None if limit < 0 else limit)).fetchall()  # type: ignore[no-any-return]

    def own(self, held: HeldLock | PostgresTransaction) -> None:
        if held.pid != os.getpid():
            raise LedgerError(
                f"this process was forked in the middle of a transaction on {self.path}, which is its "
                f"parent's. Nothing was charged here."
            )

    def _lock(self, db: Any) -> None:
        """Take the advisory lock of this ledger, which all writers share."""
        psycopg = driver()
        db.execute(f"SET lock_timeout = '{WAIT:.0f}s'")
        try:
            db.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", (_ALONE, self.name))
        except psycopg.errors.LockNotAvailable:
            raise LedgerError(
                f"{self.path} stayed locked by others for {WAIT:.0f} seconds. Nothing was charged."
            ) from None

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Open a connection for one transaction; a forked child leaves it alone."""
        held = register(HeldLock(None, self._opened()))
        try:
            yield held.db
        finally:
            self.give_up(held)

    def _opened(self) -> Any:
        """Open a connection to the database, or refuse without quoting its address."""
        try:
            return self._address.connect()
        except EngineError:
            raise LedgerError(
                f"the database of {self.path} at {self._address.label} cannot be reached. Nothing is "
                f"released; what was charged before stays charged (`discreet ledger show`). Check that it "
                f"runs, and the password in PGPASSWORD, ~/.pgpass or a service file."
            ) from None

    @contextmanager
    def _translated_errors(self, verb: str) -> Iterator[None]:
        """Translate the server's errors into ours."""
        psycopg = driver()
        try:
            yield
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise LedgerError(
                f"{self.path} cannot be {verb} ({_reason(error)}). Nothing was released."
            ) from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise LedgerError(
                f"{self.path} cannot be {verb} ({_reason(error)}). Nothing was released. GRANT the role USAGE "
                f"on the schema, SELECT and INSERT on entry, SELECT, INSERT and DELETE on blob."
            ) from None
        except psycopg.Error as error:
            raise Tampered(f"{self.path} cannot be {verb}: {_reason(error)}. Nothing was released.") from None


def _reason(error: Any) -> str:
    """Return the first line of what the server says: never a detail, which quotes values."""
    diagnosis = getattr(error, "diag", None)
    return (getattr(diagnosis, "message_primary", None) or "the connection was lost").strip()


def attach(path: Path, remote: str) -> bool:
    """Point to a ledger that is in the database already, made by another machine; return False if there is
    none.

    The key must lie beside `path`: whoever made the ledger has it.
    """
    if path.exists():
        if not is_pointer(path) or PostgresStore(path).remote != remote:
            raise LedgerError(
                f"{path} is another ledger than the one in the database. Nothing was changed. Work in another "
                f"folder, or open {path} itself."
            )
        return True
    store = PostgresStore(path, remote)
    if not store.exists():
        return False
    store.check()
    if not path.with_name(path.name + ".key").exists():
        raise LedgerError(
            f"the database has the ledger {store.name!r} already, and its key is not here. Nothing was "
            f"changed. Bring {path.name}.key from where it was made to this folder."
        )
    store.point()
    return True
