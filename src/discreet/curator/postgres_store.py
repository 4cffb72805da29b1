"""Stores a ledger's entries in a PostgreSQL database: for many workers and machines that share one budget.

Each machine has a small local file that says where the entries are, the *pointer*, and beside it its own copy
of the key. The key is never in the database. Sealed (encrypted) blobs are (`blobs`), and so are the signs of
life of those who ask interactive mechanisms (`tickets`): advisory locks that a connection holds.

Before it begins a transaction, a writer takes the ledger's advisory lock, which excludes all other writers,
so that its snapshot holds the newest entry; the transaction is SERIALIZABLE besides. A process that dies, or
a machine that is cut off, loses its connection; the server then releases its lock and undoes its transaction.
What was committed is read back through a new connection before it counts as written.

Guarantee: no two transactions see the same newest entry and both append after it.
Proof:     all writers hold the lock from before their snapshot until after their commit; and should somebody
           go around the lock, `seq` is a primary key, and the second of two commits fails.
Assumes:   the server keeps what it has committed (fsync), and nobody deletes rows: triggers refuse that,
           and the chain of hashes shows it.

Defines the schema of a ledger in PostgreSQL: the exact list of its tables, columns, triggers and
functions.
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

from .. import _system
from .._errors import InvalidInput, LedgerError
from ..tables import EngineError
from ..tables.engines.postgres_tables import Address, driver
from .entries import Row
from .store import COLUMNS, FORMAT, PAGE, WAIT, HeldLock, Tampered, sync_folder

# The comment on the schema, by which a ledger is recognized.
COMMENT = f"discreet ledger of format {FORMAT}"
# The statements that make the schema. `_EXPECTED` lists what they make: neither changes without the other.
STATEMENTS = """
CREATE SCHEMA {schema};
COMMENT ON SCHEMA {schema} IS '{comment}';
CREATE TABLE {schema}.entry (
  seq bigint PRIMARY KEY, time text NOT NULL, kind text NOT NULL, body text NOT NULL,
  hash bytea NOT NULL, signature bytea NOT NULL, sealed bytea, topic text
);
CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN RAISE EXCEPTION ''the ledger is append-only''; END';
CREATE TRIGGER entry_stays BEFORE UPDATE OR DELETE ON {schema}.entry
  FOR EACH ROW EXECUTE FUNCTION {schema}.refuse();
CREATE TRIGGER entry_remains BEFORE TRUNCATE ON {schema}.entry
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse();
CREATE TABLE {schema}.blob (
  name text NOT NULL, part integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (name, part)
);
"""
# Lists everything in a schema that could change which entries are written or read, as rows of (kind, name,
# properties). The kind 'heir' is a table that inherits from the table of entries, 'more' a rule or trigger on
# any other table.
_SCHEMA = """
SELECT 'relation', c.relname::text, c.relkind::text || c.relpersistence::text || c.relrowsecurity::text FROM pg_class c
  WHERE c.relnamespace = {oid}
UNION ALL SELECT 'column', a.attname::text, format_type(a.atttypid, a.atttypmod) || a.attnotnull::text || a.atthasdef::text
  FROM pg_attribute a WHERE a.attrelid = {entry} AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT 'trigger', t.tgname::text, t.tgtype::text || t.tgenabled::text || p.proname::text || p.pronamespace::text
    || (t.tgqual IS NULL)::text || t.tgattr::text
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = {entry}
UNION ALL SELECT 'function', p.proname::text, p.prosrc FROM pg_proc p WHERE p.pronamespace = {oid}
UNION ALL SELECT 'rule', r.rulename::text, '' FROM pg_rewrite r WHERE r.ev_class = {entry}
UNION ALL SELECT 'heir', i.inhrelid::text, '' FROM pg_inherits i WHERE i.inhparent = {entry}
UNION ALL SELECT 'constraint', k.conname::text, k.contype::text FROM pg_constraint k WHERE k.conrelid = {entry}
UNION ALL SELECT 'more', r.rulename::text, '' FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
  WHERE c.relnamespace = {oid} AND c.oid <> {entry}
UNION ALL SELECT 'more', t.tgname::text, '' FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
  WHERE c.relnamespace = {oid} AND c.oid <> {entry}
ORDER BY 1, 2, 3
"""
# What `_SCHEMA` lists for a ledger; "{oid}" stands for the number of the schema. The properties of a relation
# are its kind (r: table, i: index), persistence (p: permanent), and whether it has row security.
_EXPECTED = (
    *(
        # type, whether NULL is forbidden, and no default value
        ("column", name, f"{type_}{not_null}false")
        for name, type_, not_null in (
            ("body", "text", "true"),
            ("hash", "bytea", "true"),
            ("kind", "text", "true"),
            ("sealed", "bytea", "false"),
            ("seq", "bigint", "true"),
            ("signature", "bytea", "true"),
            ("time", "text", "true"),
            ("topic", "text", "false"),
        )
    ),
    ("constraint", "entry_pkey", "p"),
    ("function", "refuse", "BEGIN RAISE EXCEPTION 'the ledger is append-only'; END"),
    ("relation", "blob", "rpfalse"),
    ("relation", "blob_pkey", "ipfalse"),
    ("relation", "entry", "rpfalse"),
    ("relation", "entry_pkey", "ipfalse"),
    # `tgtype` of pg_trigger: 34 is before a truncate, per statement; 27 before an update or delete, per row.
    # "O" is enabled.
    ("trigger", "entry_remains", "34Orefuse{oid}true"),
    ("trigger", "entry_stays", "27Orefuse{oid}true"),
)


def is_ledger(db: Any, schema: str) -> bool:
    """Return whether a schema is exactly that of a ledger."""
    oid, entry = db.execute(
        "SELECT to_regnamespace(%s)::oid::bigint, to_regclass(%s)::oid::bigint", (schema, f"{schema}.entry")
    ).fetchone()
    if oid is None or entry is None:
        return False
    listed = sorted(map(tuple, db.execute(_SCHEMA.format(oid=oid, entry=entry)).fetchall()))
    return listed == sorted((what, name, text.replace("{oid}", str(oid))) for what, name, text in _EXPECTED)


# The first line of a pointer, the file that says where the entries are; the address is the second.
MARK = b"discreet ledger on PostgreSQL\n"
# The smallest ledger in a file has one page of SQLite, of this many bytes; a pointer is shorter.
_PAGE = 4096
# Names of ledgers, which are names of schemas: they need no quotes in SQL, and are below PostgreSQL's limit
# of 63 bytes.
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
# The first of the two numbers of a ledger's advisory lock ("disc" in ASCII); the second is a hash of its
# name. Never changes: versions of discreet that run at the same time must take the same lock.
_WRITER_LOCK = 0x64697363


def split(ledger: str) -> tuple[str, str]:
    """Return the address of the database and the name of the ledger in it, from a text such as
    "postgresql://user@host/books::visits"; without "::" the name is "discreet"."""
    # An IPv6 address, which stands in brackets, may have "::" in it: only the text after the bracket is
    # split.
    before, bracket, after = ledger.rpartition("]")
    address, _, name = after.partition("::")
    address = before + bracket + address
    if not _NAME.fullmatch(name or "discreet"):
        raise InvalidInput(
            f"{name!r} cannot name a ledger in a database: a name has 1 to 51 small letters, digits and _, "
            "and does not begin with a digit, such as 'visits'."
        )
    return address, name or "discreet"


def is_pointer(path: Path) -> bool:
    """Return whether a file is a pointer: it says that its ledger is in a database.

    Longer files are not opened: closing a ledger's file would drop the locks of a transaction that another
    thread has open on it (`store`).
    """
    with suppress(OSError):
        if path.stat().st_size < _PAGE:
            with path.open("rb") as file:
                return file.read(len(MARK)) == MARK
    return False


@dataclass(frozen=True, slots=True)
class PostgresTransaction:
    """Writes in one transaction of the database; `rows` are those that it has inserted."""

    store: PostgresStore
    db: Any
    rows: list[Row] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)

    def insert(self, row: Row) -> None:
        """Append a row, and read it back: it must be there as it was written, with no row after it."""
        self.store.require_own(self)
        self.db.execute("INSERT INTO entry VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", row)
        if self.store.read_rows(self.db, row[0]) != [row]:
            raise Tampered(
                f"what was written to {self.store.path} is not in it. Nothing was charged or released."
            )
        self.rows.append(row)


class PostgresStore:
    """Reads and writes rows in a database.

    `path` is the pointer; `remote`, the address with the ledger's name, is read from it if it is not given.
    With `durable=False`, commits do not wait for the server's disk.
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
        """Create an empty ledger in a schema of its own, and the pointer to it."""
        psycopg = driver()
        if self.path.exists() or self.path.is_symlink():
            raise LedgerError(
                f"{self.path} exists already, or is a link. A ledger is never overwritten: nothing was "
                f"changed."
            )
        text = STATEMENTS.format(schema=self.name, comment=COMMENT)
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
            # A schema that exists makes the next attempt fail.
            self._drop_empty_schema()
            raise

    def point(self) -> None:
        """Write the pointer, a new file that only its owner can read."""
        try:
            handle = _system.create_file(self.path)
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be made ({error.strerror}).") from None
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MARK + self.remote.encode() + b"\n")
                if self.durable:
                    _system.sync(file)
        except OSError as error:
            self.path.unlink(missing_ok=True)
            raise LedgerError(f"{self.path} cannot be made ({error.strerror}).") from None
        if self.durable:
            # The folder holds the names of the pointer and of the key. If a power cut took the key, the
            # entries in the database would be there and of no use.
            sync_folder(self.path.parent)

    def exists(self) -> bool:
        """Return whether the database has a schema of this name; `check` refuses one that is no ledger."""
        with self._connected() as db:
            return bool(db.execute("SELECT to_regnamespace(%s) IS NOT NULL", (self.name,)).fetchone()[0])

    def remove(self) -> None:
        """Remove the pointer, and the schema unless it holds an entry."""
        self._drop_empty_schema()
        self.path.unlink(missing_ok=True)

    def _drop_empty_schema(self) -> None:
        """Drop the schema if it holds no entry; leave it if the database refuses."""
        psycopg = driver()
        with suppress(psycopg.Error, LedgerError), self._connected() as db:
            if not db.execute(f"SELECT count(*) FROM {self.name}.entry").fetchone()[0]:
                db.execute(f"DROP SCHEMA {self.name} CASCADE")

    def check(self) -> None:
        """Refuse a schema that is not a ledger of this format."""
        with self.reading(strict=False) as db:
            comment = db.execute(
                "SELECT obj_description(to_regnamespace(%s), 'pg_namespace')", (self.name,)
            ).fetchone()
        if comment[0] != COMMENT:
            raise LedgerError(
                f"{self.name!r} in the database at {self._address.label} is not a discreet ledger of format "
                f"{FORMAT}. Nothing was changed."
            )

    @contextmanager
    def reading(self, *, strict: bool = True) -> Iterator[Any]:
        """Open a read-only transaction: one snapshot of the ledger. `strict=False` accepts any schema."""
        with self._translated_errors("read"), self._connected() as db:
            db.execute(
                f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path = {self.name}"
            )
            if strict:
                self.compare(db)
            yield db

    @contextmanager
    def writing(self) -> Iterator[PostgresTransaction]:
        """Open a transaction while no other writer has one; it is on the server's disk and read back when the
        block ends, and undone if the block raises."""
        with self._translated_errors("written"), self._connected() as db:
            self._lock(db)
            wait = "on" if self.durable else "off"
            db.execute(
                f"BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE; SET LOCAL synchronous_commit = {wait}; "
                f"SET LOCAL search_path = {self.name}"
            )
            self.compare(db)
            transaction = PostgresTransaction(self, db)
            # If the block raises, `_connected` closes the connection, which undoes the transaction.
            yield transaction
            self.require_own(transaction)
            db.execute("COMMIT")
            # Still under the lock: no other writer can append behind these rows.
            self._require_committed(transaction.rows)

    def compare(self, db: Any) -> None:
        """Refuse a schema that is not exactly that of a ledger: a trigger that somebody added could delete
        charges again."""
        if not is_ledger(db, self.name):
            raise Tampered(
                f"the schema of {self.path} is not that of a ledger: something was planted there, or taken "
                f"away. Nothing was charged or released. Run `discreet ledger verify`, and go back to a copy "
                f"that is whole."
            )

    @contextmanager
    def blobs(self) -> Iterator[Any]:
        """Open a transaction on the table of blobs, without the ledger's lock; undone if the block raises."""
        with self._translated_errors("used for blobs"), self._connected() as db:
            wait = "on" if self.durable else "off"
            db.execute(f"BEGIN; SET LOCAL synchronous_commit = {wait}; SET LOCAL search_path = {self.name}")
            self.compare(db)
            yield db
            db.execute("COMMIT")

    def hold(self, name: str) -> HeldLock | None:
        """Take the advisory lock of this name; None if somebody else has it.

        It has a connection of its own, and lasts until `give_up`, or until the connection ends with this
        process.
        """
        with self._translated_errors("locked"):
            db = self._opened()
            held, taken = HeldLock(None, db), False
            try:
                sql = "SELECT pg_try_advisory_lock(%s)"
                taken = bool(db.execute(sql, (self._number(name),)).fetchone()[0])
            finally:
                if not taken:
                    self.give_up(held)
            return held if taken else None

    def give_up(self, held: HeldLock) -> None:
        """Release all advisory locks of a connection, and close it; a forked child leaves its parent's
        alone. (psycopg does the same: in a child, it never ends a connection that was inherited.)"""
        if held.own:
            # Explicitly, because the server notices some time later that a connection was closed, and would
            # refuse the lock to others until then.
            with suppress(Exception):
                held.db.execute("SELECT pg_advisory_unlock_all()")
            with suppress(Exception):
                held.db.close()

    @contextmanager
    def holding(self, name: str) -> Iterator[bool]:
        """Yield whether the lock of this name was free; if so, it is held while the block runs."""
        held = self.hold(name)
        try:
            yield held is not None
        finally:
            if held is not None:
                self.give_up(held)

    def wait(self, name: str) -> None:
        """Wait until nobody holds the lock of this name, without a time limit."""
        with self._translated_errors("waited for"), self._connected() as db:
            db.execute("SELECT pg_advisory_lock_shared(%s)", (self._number(name),))

    def _number(self, name: str) -> int:
        """Return the number of the advisory lock of this name: 64 bits of a hash of the ledger's name and
        this one. Never changes, like `_WRITER_LOCK`."""
        digest = hashlib.blake2b(f"{self.name} {name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def _require_committed(self, rows: list[Row]) -> None:
        """Check, through a new connection, that the committed rows are in the database, and the last ones."""
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
        """Return at most `limit` rows from a number on, in order; all of them if `limit` is negative."""
        sql = f"SELECT {COLUMNS} FROM entry WHERE seq >= %s ORDER BY seq LIMIT %s"
        return db.execute(sql, (first, None if limit < 0 else limit)).fetchall()  # type: ignore[no-any-return]

    def require_own(self, held: HeldLock | PostgresTransaction) -> None:
        """Refuse to go on in a forked child, whose transaction is its parent's."""
        if held.pid != os.getpid():
            raise LedgerError(
                f"this process was forked in the middle of a transaction on {self.path}, which is its "
                f"parent's. Nothing was charged here."
            )

    def _lock(self, db: Any) -> None:
        """Take the ledger's advisory lock, which one writer can have at a time. It belongs to the connection,
        not to a transaction."""
        psycopg = driver()
        db.execute(f"SET lock_timeout = '{WAIT:.0f}s'")
        try:
            db.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", (_WRITER_LOCK, self.name))
        except psycopg.errors.LockNotAvailable:
            raise LedgerError(
                f"{self.path} stayed locked by others for {WAIT:.0f} seconds. Nothing was charged."
            ) from None

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Open a connection for the block, and close it afterwards; a forked child leaves it alone."""
        held = HeldLock(None, self._opened())
        try:
            yield held.db
        finally:
            self.give_up(held)

    def _opened(self) -> Any:
        """Return a new connection to the database; an error names its host and database only."""
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
        """Raise the driver's errors as LedgerError; `verb` says what could not be done to the ledger."""
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
    """Return the primary message of a server's error, never its detail, which quotes values."""
    return (error.diag.message_primary or "the connection was lost").strip()


def attach(path: Path, remote: str) -> bool:
    """Write a pointer at `path` to a ledger that another machine has made in the database; return False, and
    write nothing, if the database has no such ledger. A pointer to it that is there already stays.

    The key must lie beside `path` already: it is copied from the machine that made the ledger.
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
