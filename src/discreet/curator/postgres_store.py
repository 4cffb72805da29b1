"""Stores a ledger's entries in a PostgreSQL database: for many workers and machines that share one budget.

Each machine has a small local file that says where the entries are, the *pointer*, and beside it its own copy
of the key. The key is never in the database. Sealed (encrypted) blobs are (`blobs`), and so are the signs of
life of those who ask interactive mechanisms (`tickets`): advisory locks that a connection holds.

A writer first takes the ledger's advisory lock, which excludes all other writers, so that what it reads is the
newest entry. All that it appends is sent at its end, as one statement, and read back before it counts as
written. A process that dies, or a machine that is cut off, loses its connection, and with it the lock.

A connection is kept for the next transaction of this process. If the server was restarted or has ended it
meanwhile, the first statement fails, before anything was read or locked, and a new connection takes its place.

Guarantee: no two transactions see the same newest entry and both append after it.
Proof:     all writers hold the lock, on the one connection that they use, from before their first read until
           after their commit; and should somebody go around the lock, `seq` is a primary key, and the second of
           two commits fails.
Assumes:   the server keeps what it has committed (fsync), and nobody deletes rows: triggers refuse that,
           and the chain of hashes shows it.

Defines the schema of a ledger in PostgreSQL: the exact list of its tables, columns, triggers and
functions.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _system
from .._errors import DiscreetError, InvalidInput, LedgerError
from ..tables import EngineError
from ..tables.engines.postgres_tables import Address, driver
from .entries import Row
from .store import COLUMNS, FORMAT, MARK, PAGE, WAIT, HeldLock, Tampered, is_pointer, sync_folder

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
CREATE TABLE {schema}.value (hash bytea PRIMARY KEY, data text NOT NULL);
CREATE TRIGGER value_stays BEFORE UPDATE OR DELETE ON {schema}.value
  FOR EACH ROW EXECUTE FUNCTION {schema}.refuse();
CREATE TRIGGER value_remains BEFORE TRUNCATE ON {schema}.value
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse();
CREATE TABLE {schema}.blob (
  name text NOT NULL, part integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (name, part)
);
"""
# Lists everything in a schema that could change which entries are written or read, as rows of (kind, name,
# properties). The kind 'heir' is a table that inherits from one of {tables}, those of entries and of values,
# 'more' a rule or trigger on any other table.
_SCHEMA = """
SELECT 'relation', c.relname::text, c.relkind::text || c.relpersistence::text || c.relrowsecurity::text FROM pg_class c
  WHERE c.relnamespace = {oid}
UNION ALL SELECT 'column', a.attrelid::regclass::text || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || a.attnotnull::text || a.atthasdef::text
  FROM pg_attribute a WHERE a.attrelid = ANY({tables}) AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT 'trigger', t.tgname::text, t.tgtype::text || t.tgenabled::text || p.proname::text || (p.pronamespace = {oid})::text
    || (t.tgqual IS NULL)::text || t.tgattr::text
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = ANY({tables})
UNION ALL SELECT 'function', p.proname::text, p.prosrc FROM pg_proc p WHERE p.pronamespace = {oid}
UNION ALL SELECT 'rule', r.rulename::text, '' FROM pg_rewrite r WHERE r.ev_class = ANY({tables})
UNION ALL SELECT 'heir', i.inhrelid::text, '' FROM pg_inherits i WHERE i.inhparent = ANY({tables})
UNION ALL SELECT 'constraint', k.conname::text, k.contype::text FROM pg_constraint k WHERE k.conrelid = ANY({tables})
UNION ALL SELECT 'more', r.rulename::text, '' FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
  WHERE c.relnamespace = {oid} AND c.oid <> ALL({tables})
UNION ALL SELECT 'more', t.tgname::text, '' FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
  WHERE c.relnamespace = {oid} AND c.oid <> ALL({tables})
"""
# What `_SCHEMA` lists for a ledger, as lines in the order of their bytes. The properties of a relation
# are its kind (r: table, i: index), persistence (p: permanent), and whether it has row security.
_EXPECTED = sorted(
    (
        # type, whether NULL is forbidden, and no default value
        "column entry.body texttruefalse",
        "column entry.hash byteatruefalse",
        "column entry.kind texttruefalse",
        "column entry.sealed byteafalsefalse",
        "column entry.seq biginttruefalse",
        "column entry.signature byteatruefalse",
        "column entry.time texttruefalse",
        "column entry.topic textfalsefalse",
        "column value.hash byteatruefalse",
        "column value.data texttruefalse",
        "constraint entry_pkey p",
        "constraint value_pkey p",
        "function refuse BEGIN RAISE EXCEPTION 'the ledger is append-only'; END",
        "relation blob rpfalse",
        "relation blob_pkey ipfalse",
        "relation entry rpfalse",
        "relation entry_pkey ipfalse",
        "relation value rpfalse",
        "relation value_pkey ipfalse",
        # `tgtype` of pg_trigger: 34 is before a truncate, per statement; 27 before an update or delete, per
        # row. "O" is enabled.
        "trigger entry_remains 34Orefusetruetrue",
        "trigger entry_stays 27Orefusetruetrue",
        "trigger value_remains 34Orefusetruetrue",
        "trigger value_stays 27Orefusetruetrue",
    )
)


def _comparison(schema: str) -> str:
    """Return a query for one row, whose column `same` says whether a schema is exactly that of a ledger, and
    `keeps_values` whether the role may use the table of values. Its one parameter is `_EXPECTED`."""
    tables = ", ".join(f"to_regclass('{schema}.{name}')::oid" for name in ("entry", "value"))
    listed = _SCHEMA.format(oid=f"to_regnamespace('{schema}')", tables=f"ARRAY[{tables}]")
    rights = " AND ".join(
        f"has_table_privilege(to_regclass('{schema}.value')::oid, '{right}')"
        for right in ("SELECT", "INSERT")
    )
    line = "concat_ws(' ', what, name, properties)"
    lines = (
        f'SELECT array_agg({line} ORDER BY {line} COLLATE "C") FROM ({listed}) AS l (what, name, properties)'
    )
    return f"SELECT coalesce(({lines}) = %s::text[], false) AS same, {rights} AS keeps_values"


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


# Connections that are kept for later transactions, by the address and the name of the ledger: the process that
# has opened each, when it was put here, and the connection. A forked child leaves its parent's alone.
_KEPT: dict[tuple[str, bool], list[tuple[int, float, Any]]] = {}
# Most connections that are kept of one ledger, and for how many seconds: a firewall may forget one that is idle
# for minutes, without telling either side. Chosen by hand, not tuned.
_MOST_KEPT, _KEPT_SECONDS = 4, 60.0
# Rows of one statement, which has at most 65,535 parameters.
_ROWS = 1000


@atexit.register
def _close_kept() -> None:
    """Close the connections that this process keeps, when it ends."""
    for pid, _, db in [one for kept in _KEPT.values() for one in kept]:
        if pid == os.getpid():
            with suppress(Exception):
                db.close()


@dataclass(eq=False)
class Link(HeldLock):
    """Holds the connection of one transaction."""

    store: PostgresStore | None = None
    # Whether it was kept from an earlier transaction, and has not been used in this one.
    is_kept: bool = False
    # Whether the schema must be compared before entries are used.
    unchecked: bool = True
    # Whether the role may store values beside the chain; known when the schema was compared.
    keeps_values: bool = False

    def execute(self, sql: str, parameters: Sequence[Any] | None = None) -> Any:
        """Run a statement. If it is the first on a connection that was lost while it was kept, nothing is lost
        with it, and another connection is opened."""
        is_kept, self.is_kept = self.is_kept, False
        try:
            return self.db.execute(sql, parameters)
        except driver().OperationalError:
            if not is_kept or not self.db.closed or self.store is None:
                raise
            self.db = self.store.opened()
            return self.db.execute(sql, parameters)


@dataclass(frozen=True, slots=True)
class PostgresTransaction:
    """Appends the `rows` of one transaction, and the texts of their `values`, when it ends."""

    store: PostgresStore
    db: Link
    rows: list[Row] = field(default_factory=list)
    values: dict[bytes, str] = field(default_factory=dict)
    pid: int = field(default_factory=os.getpid)

    @property
    def keeps_values(self) -> bool:
        return self.db.keeps_values

    def insert(self, row: Row) -> None:
        self.store.require_own(self)
        self.rows.append(row)

    def insert_value(self, digest: bytes, text: str) -> None:
        self.values[digest] = text

    def commit(self) -> None:
        """Send all rows, as one statement where there are not too many, and read them back: they must be there
        as they were written, and the last ones, as nobody else has the lock."""
        self.store.require_own(self)
        if not self.rows:
            return
        parts = [self.rows[start : start + _ROWS] for start in range(0, len(self.rows), _ROWS)]
        first, texts = "", [list(self.values), list(self.values.values())]
        if self.values:
            first = "WITH v AS (INSERT INTO value SELECT * FROM unnest(%s::bytea[], %s::text[]) ON CONFLICT DO NOTHING) "
        with nullcontext() if len(parts) == 1 else self.db.db.transaction():
            for part in parts:
                marks = ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s)"] * len(part))
                cells = [*(texts if first else ()), *(cell for row in part for cell in row)]
                self.db.execute(f"{first}INSERT INTO entry VALUES {marks}", cells)
                first = ""
        whole = self.store.read_rows(self.db, self.rows[0][0], limit=-1) == self.rows
        if self.values and whole:
            stored = (
                "SELECT count(*) FROM value WHERE hash = ANY(%s) AND hash = sha256(convert_to(data, 'UTF8'))"
            )
            whole = self.db.execute(stored, (list(self.values),)).fetchone()[0] == len(self.values)
        if not whole:
            raise Tampered(
                f"what was committed to {self.store.path} is not in the database: it was replaced, or another "
                f"program wrote to it. Nothing was released. Run `discreet ledger verify`."
            )


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
    def reading(self, *, strict: bool = True) -> Iterator[Link]:
        """Yield a connection for reading. Each statement sees all rows that were committed before it.
        `strict=False` accepts any schema."""
        with self._translated_errors("read"), self._connected() as db:
            db.unchecked = strict
            yield db
            if db.unchecked:
                self.compare(db)

    @contextmanager
    def writing(self) -> Iterator[PostgresTransaction]:
        """Open a transaction while no other writer has one; it is on the server's disk and read back when the
        block ends, and nothing was sent if the block raises."""
        with self._translated_errors("written"), self._connected() as db:
            try:
                db.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", (_WRITER_LOCK, self.name))
            except driver().errors.LockNotAvailable:
                raise LedgerError(
                    f"{self.path} stayed locked by others for {WAIT:.0f} seconds. Nothing was charged."
                ) from None
            transaction = PostgresTransaction(self, db)
            yield transaction
            if db.unchecked:
                self.compare(db)
            transaction.commit()
            db.execute("SELECT pg_advisory_unlock_all()")

    def compare(self, db: Any) -> None:
        """Refuse a schema that is not exactly that of a ledger: a trigger that somebody added could delete
        charges again."""
        same, db.keeps_values = db.execute(_comparison(self.name), (_EXPECTED,)).fetchone()
        if not same:
            raise self._planted()

    def _planted(self) -> Tampered:
        return Tampered(
            f"the schema of {self.path} is not that of a ledger: something was planted there, or taken away. "
            f"Nothing was charged or released. Run `discreet ledger verify`, and go back to a copy that is whole."
        )

    @contextmanager
    def blobs(self) -> Iterator[Any]:
        """Open a transaction on the table of blobs, without the ledger's lock; undone if the block raises."""
        with self._translated_errors("used for blobs"), self._connected() as db:
            db.execute("BEGIN")
            self.compare(db)
            yield db
            db.execute("COMMIT")

    def hold(self, name: str) -> HeldLock | None:
        """Take the advisory lock of this name; None if somebody else has it.

        It has a connection of its own, and lasts until `give_up`, or until the connection ends with this
        process.
        """
        with self._translated_errors("locked"):
            db = self.opened()
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
            db.execute("SET lock_timeout = 0")
            db.execute("SELECT pg_advisory_lock_shared(%s)", (self._number(name),))
            db.execute(f"SELECT pg_advisory_unlock_all(); {self._settings}")

    def _number(self, name: str) -> int:
        """Return the number of the advisory lock of this name: 64 bits of a hash of the ledger's name and
        this one. Never changes, like `_WRITER_LOCK`."""
        digest = hashlib.blake2b(f"{self.name} {name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def read_rows(self, db: Link, first: int, limit: int = PAGE, also: Sequence[int] = ()) -> list[Row]:
        """Return at most `limit` rows from a number on, in order; all of them if `limit` is negative. Before
        them come those with the smaller numbers `also`. The first statement of a transaction compares the
        schema too."""
        sql = (
            f"(SELECT {COLUMNS} FROM entry WHERE seq = ANY(%s)) UNION ALL "
            f"(SELECT {COLUMNS} FROM entry WHERE seq >= %s ORDER BY seq LIMIT %s) ORDER BY seq"
        )
        parameters = (list(also), first, None if limit < 0 else limit)
        if not db.unchecked:
            return db.execute(sql, parameters).fetchall()  # type: ignore[no-any-return]
        schema = _comparison(self.name)
        sql = f"SELECT schema.*, rows.* FROM ({schema}) AS schema LEFT JOIN ({sql}) AS rows ON true ORDER BY seq"
        try:
            rows = db.execute(sql, (_EXPECTED, *parameters)).fetchall()
        except (driver().errors.UndefinedTable, driver().errors.UndefinedColumn):
            raise self._planted() from None
        if not rows[0][0]:
            raise self._planted()
        db.unchecked, db.keeps_values = False, rows[0][1]
        # A ledger without such rows gives one row of nothing.
        return [row[2:] for row in rows if row[2] is not None]

    def read_value(self, db: Link, digest: bytes) -> str | None:
        """Return the text of the value that is stored under a hash; None without one."""
        row = db.execute("SELECT data FROM value WHERE hash = %s", (digest,)).fetchone()
        return None if row is None else str(row[0])

    def require_own(self, held: HeldLock | PostgresTransaction) -> None:
        """Refuse to go on in a forked child, whose transaction is its parent's."""
        if held.pid != os.getpid():
            raise LedgerError(
                f"this process was forked in the middle of a transaction on {self.path}, which is its "
                f"parent's. Nothing was charged here."
            )

    @contextmanager
    def _connected(self) -> Iterator[Link]:
        """Yield a connection for the block: one that was kept, or a new one. It is kept afterwards, unless the
        block raises, which undoes its transaction and releases its locks; a forked child leaves it alone."""
        kept = _KEPT.setdefault((self.remote, self.durable), [])
        link = Link(None, self._kept(kept), store=self)
        link.is_kept = link.db is not None
        link.db = link.db or self.opened()
        works = False
        try:
            yield link
            works = True
        except DiscreetError:
            # A refusal, such as of a charge. What failed otherwise may have left anything behind.
            with suppress(Exception):
                works = link.own and bool(link.db.execute("SELECT pg_advisory_unlock_all()"))
            raise
        finally:
            if works and link.own and len(kept) < _MOST_KEPT:
                kept.append((os.getpid(), time.monotonic(), link.db))
            else:
                self.give_up(link)

    def _kept(self, kept: list[tuple[int, float, Any]]) -> Any:
        """Take a connection of this process that was not kept for too long; None if there is none."""
        for entry in kept[:]:
            pid, since, db = entry
            if pid == os.getpid():
                with suppress(ValueError):
                    # Another thread may have taken it.
                    kept.remove(entry)
                    if time.monotonic() < since + _KEPT_SECONDS:
                        return db
                    self.give_up(HeldLock(None, db))
        return None

    @property
    def _settings(self) -> str:
        """The settings of a connection. Each statement reads what was committed before it, whatever the
        server's default is."""
        return (
            f"SET search_path = {self.name}; SET lock_timeout = '{WAIT:.0f}s'; "
            f"SET synchronous_commit = {'on' if self.durable else 'off'}; "
            "SET default_transaction_isolation = 'read committed'"
        )

    def opened(self) -> Any:
        """Return a new connection to the database; an error names its host and database only."""
        try:
            db = self._address.connect()
        except EngineError:
            raise LedgerError(
                f"the database of {self.path} at {self._address.label} cannot be reached. Nothing is "
                f"released; what was charged before stays charged (`discreet ledger show`). Check that it "
                f"runs, and the password in PGPASSWORD, ~/.pgpass or a service file."
            ) from None
        db.execute(self._settings)
        return db

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
                f"on the schema, SELECT and INSERT on entry and value, SELECT, INSERT and DELETE on blob."
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
