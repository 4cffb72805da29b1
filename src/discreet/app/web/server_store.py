"""Keeps the server's own small database: people, tokens, browser sessions, datasets, grants, jobs, and the
actions of stewards.

It holds no data and no budget: those are in tables and ledgers. Of jobs it keeps the results, which are
private releases. Of a token, a cookie or a password it keeps only a digest; CSRF tokens are kept as they are.
A grant lets an analyst see a dataset; whether and how much they may spend is decided by the policy in the
ledger, which is read again at every charge.

Makes and compares tokens: a public id and 256 random bits, stored as their HMAC-SHA-256 under the server's
key.

A token is random and cannot be guessed, so that a slow hash would add nothing but time to every request. With
the key, stolen digests are useless by themselves. Passwords can be guessed, and are hashed with argon2id
(`ServerStore.set_password`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from ... import _system
from ..._errors import InvalidInput, LedgerError
from ...curator import STEWARD

PREFIX = "dsc"


def load_key(path: Path) -> bytes:
    """Return the server's key; it is made at the first start, in a file that only its owner can read."""
    try:
        handle = _system.create_file(path)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) != 32:
            raise LedgerError(
                f"{path} is not a server key of 32 bytes. Nothing was started. Put its backup back, or "
                f"remove it: then all tokens and log-ins are void."
            ) from None
        return key
    key = secrets.token_bytes(32)
    with os.fdopen(handle, "wb") as file:
        file.write(key)
        _system.sync(file)
    return key


def new_token() -> tuple[str, str]:
    """Return a new token and its public id."""
    public = secrets.token_hex(8)
    return f"{PREFIX}_{public}_{secrets.token_urlsafe(32)}", public


def id_of(token: str) -> str | None:
    """Return the public id of a token; None for a text that is no token."""
    parts = token.split("_", 2)
    # 8 bytes are 16 hexadecimal digits, 32 bytes are 43 characters of base64 (`new_token`).
    well_formed = len(parts) == 3 and parts[0] == PREFIX and len(parts[1]) == 16 and len(parts[2]) == 43
    return parts[1] if well_formed and token.isascii() else None


def token_digest(key: bytes, text: str) -> bytes:
    """Return the digest of a token or a cookie, which is what the store keeps."""
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()


def same(first: bytes, second: bytes) -> bool:
    """Return whether two secrets are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(first, second)


class Role(StrEnum):
    """Says what a person may do: a steward may do everything, an analyst may ask questions, an auditor may
    read ledgers."""

    STEWARD = "steward"
    ANALYST = "analyst"
    AUDITOR = "auditor"


@dataclass(frozen=True, slots=True)
class Person:
    """Names who sends a request, and what they may do."""

    name: str
    role: Role
    # The CSRF token that the forms of a browser session must send back; None if the person was found by a
    # token or a password, and not by the cookie of a session.
    csrf: str | None = None
    # The public id of the token by which the person was found, itself, or by a cookie or a password that end
    # with it.
    credential: str = ""

    @property
    def analyst(self) -> str:
        """The name under which the ledger knows this person."""
        return STEWARD if self.role is Role.STEWARD else self.name


# Stands for whoever may see everything.
ANY_STEWARD = Person("", Role.STEWARD)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Says where a dataset, its schema and its ledger are."""

    name: str
    data: str
    schema: str
    ledger: str

    def to_json(self) -> dict[str, str]:
        # In this order they are the columns of the table `datasets`.
        return {"name": self.name, "data": self.data, "schema": self.schema, "ledger": self.ledger}


# `former` holds the names of people who were removed: they are not given again. `people.password_token` is
# the public id of the token with whose session the password was set, `sessions.token` that of the token that
# opened the session, itself or by such a password: both end with it. `jobs.created` is when the job was
# added, and once it runs, when it began; `jobs.seconds` is how long after that its result is shown. Times are
# seconds since 1970.
_TABLES = """
CREATE TABLE IF NOT EXISTS people (
  name TEXT PRIMARY KEY, role TEXT NOT NULL, password TEXT, password_token TEXT);
CREATE TABLE IF NOT EXISTS tokens (
  id TEXT PRIMARY KEY, digest BLOB NOT NULL, person TEXT NOT NULL REFERENCES people(name) ON DELETE CASCADE,
  created REAL NOT NULL, expires REAL NOT NULL, revoked INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS sessions (
  digest BLOB PRIMARY KEY, person TEXT NOT NULL REFERENCES people(name) ON DELETE CASCADE,
  csrf TEXT NOT NULL, expires REAL NOT NULL, token TEXT);
CREATE TABLE IF NOT EXISTS datasets (
  name TEXT PRIMARY KEY, data TEXT NOT NULL, schema TEXT NOT NULL, ledger TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS grants (
  dataset TEXT NOT NULL REFERENCES datasets(name) ON DELETE CASCADE,
  person TEXT NOT NULL REFERENCES people(name) ON DELETE CASCADE, PRIMARY KEY (dataset, person));
CREATE TABLE IF NOT EXISTS jobs (
  id TEXT PRIMARY KEY, person TEXT NOT NULL, dataset TEXT NOT NULL, verb TEXT NOT NULL,
  state TEXT NOT NULL, created REAL NOT NULL, seconds REAL NOT NULL, result TEXT);
CREATE TABLE IF NOT EXISTS former (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS actions (time REAL NOT NULL, person TEXT NOT NULL, action TEXT NOT NULL);
"""
# What each version of server.db changed in these tables; the file says how many of them it has.
_CHANGES = (
    # when a job that had begun has ended: as a job is cancelled, its public time is not over
    "ALTER TABLE jobs ADD COLUMN ended REAL; CREATE INDEX jobs_of ON jobs (person, state)",
)
# The characters that the name of a person may have.
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.@")
# A person with a password in force. Parameters: the time, and the name of the person.
_PASSWORD = (
    "SELECT p.name, p.role, p.password, t.id FROM people p JOIN tokens t "
    "ON t.id = p.password_token AND NOT t.revoked AND t.expires > ? "
    "WHERE p.name = ? AND p.password IS NOT NULL"
)
# Datasets that a person may see. Parameters: the name of the person, and whether they see all.
_VISIBLE = (
    "SELECT d.name, d.data, d.schema, d.ledger FROM datasets d LEFT JOIN grants g "
    "ON g.dataset = d.name AND g.person = ? WHERE (? OR g.person IS NOT NULL)"
)
_VISIBLE_NAMES = _VISIBLE.replace("d.name, d.data, d.schema, d.ledger", "d.name")
_ENDED = "ended = CASE WHEN state = 'running' THEN ? END"
# What a list of jobs shows. The result is not among it: it may be large.
_JOB = ("id", "person", "dataset", "verb", "state", "created", "seconds")


class ServerStore:
    """Keeps one SQLite file and one key, used from the front process only."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InvalidInput(
                f"the folder {str(folder)!r} (--state) cannot be made ({error.strerror}). "
                "Nothing was started."
            ) from None
        self._key = load_key(folder / "server.key")
        self._lock = threading.RLock()
        self._db = sqlite3.connect(folder / "server.db", check_same_thread=False, isolation_level=None)
        (folder / "server.db").chmod(0o600)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA foreign_keys=ON")
        self._db.executescript(_TABLES)
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > len(_CHANGES):
            raise InvalidInput(
                f"{folder / 'server.db'} is of version {version}, and this discreet knows versions up to "
                f"{len(_CHANGES)}. Nothing was changed. Start the server with the newer discreet."
            )
        for number, change in enumerate(_CHANGES[version:], version + 1):
            self._db.executescript(f"BEGIN; {change}; PRAGMA user_version={number}; COMMIT")
        # A digest that no token has. Tokens with an unknown id are compared with it, so that refusing them
        # takes as long as refusing others.
        self._nobody = secrets.token_bytes(32)
        # In the same way, the hash of a password that nobody has, for names without a password. It is slow to
        # make, and so is made at the first log-in by name.
        self._nobodys_password = ""
        self._folder = folder
        # The file by whose lock other servers are kept from the folder.
        self._claim: IO[bytes] | None = None

    def claim(self) -> None:
        """Refuse a folder that another server uses, and keep others from it until `close`.

        A second server would take the first one's jobs for interrupted ones, and would not know which
        questions' public time is not over yet.
        """
        claim = (self._folder / "server.lock").open("ab")
        if not _system.try_lock(claim.fileno()):
            claim.close()
            raise InvalidInput(
                f"another server uses the folder {str(self._folder)!r}. Nothing was started. Stop that one "
                "first, or give each server a --state of its own."
            )
        self._claim = claim

    def copy_to(self, folder: Path) -> None:
        """Copy database and key to a folder, also while they are used: what SQLite copies is one state."""
        for name in ("server.db", "server.key"):
            os.close(_system.create_file(folder / name))
        copied = sqlite3.connect(folder / "server.db")
        self._db.backup(copied)
        copied.execute("PRAGMA journal_mode=DELETE")
        copied.close()
        (folder / "server.key").write_bytes(self._key)

    def close(self) -> None:
        self._db.close()
        if self._claim is not None:
            self._claim.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction; it is rolled back if an error leaves the block."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    # people

    def add_person(self, name: str, role: Role | str) -> None:
        if not 1 <= len(name) <= 64 or not set(name) <= _NAME or set(name) == {"."}:
            raise InvalidInput(
                "a name has 1 to 64 letters, digits, or any of _ - . @ and nothing else, and not dots alone. "
                "Nobody was added."
            )
        if name == STEWARD and Role(role) is not Role.STEWARD:
            raise InvalidInput(f"the name {STEWARD!r} is the steward's. Nobody was added.")
        if self._rows("SELECT name FROM former WHERE name = ?", name):
            raise InvalidInput(
                f"the name {name!r} was another person's, and ledgers know it: their budget and answers "
                f"would be found under it. Nobody was added. Choose another name."
            )
        with self._write() as db:
            try:
                db.execute("INSERT INTO people (name, role) VALUES (?, ?)", (name, str(Role(role))))
            except sqlite3.IntegrityError:
                raise InvalidInput(f"there is a person named {name!r} already. Nobody was added.") from None

    def remove_person(self, name: str) -> bool:
        """Remove a person with their tokens, sessions, grants and jobs; return whether they existed."""
        with self._write() as db:
            # `jobs` does not refer to `people`, so that deleting the person would leave the jobs behind.
            db.execute("DELETE FROM jobs WHERE person = ?", (name,))
            removed = db.execute("DELETE FROM people WHERE name = ?", (name,)).rowcount > 0
            if removed:
                db.execute("INSERT OR IGNORE INTO former VALUES (?)", (name,))
        return removed

    def people(self) -> list[tuple[str, Role]]:
        return [
            (name, Role(role)) for name, role in self._rows("SELECT name, role FROM people ORDER BY name")
        ]

    def role_of(self, name: str) -> Role | None:
        rows = self._rows("SELECT role FROM people WHERE name = ?", name)
        return Role(rows[0][0]) if rows else None

    def set_password(self, person: Person, password: str, old: str, cookie: str = "") -> None:
        """Store the argon2id hash of a password; the hash is slow because passwords can be guessed. The
        person's browser sessions end, but for that of the `cookie`.

        The password ends with the token by which the person was found, and one that is in force is replaced
        only by who knows it: nobody stays longer than their tokens.
        """
        from argon2 import PasswordHasher

        if not person.credential:
            raise InvalidInput(
                "a password ends with the token that it was set with, and you have come without one. Nothing "
                "was changed."
            )
        if not 12 <= len(password) <= 1024:
            raise InvalidInput("a password has 12 to 1024 characters. Nothing was changed.")
        if self.has_password(person.name) and self.by_password(person.name, old) is None:
            raise InvalidInput(
                "the old password is not this one. Nothing was changed. If it is lost, ask the steward to "
                "revoke your token, which ends the password, too, and for a new one."
            )
        hashed = PasswordHasher().hash(password)
        with self._write() as db:
            db.execute(
                "UPDATE people SET password = ?, password_token = ? WHERE name = ?",
                (hashed, person.credential, person.name),
            )
            kept = token_digest(self._key, cookie)
            db.execute("DELETE FROM sessions WHERE person = ? AND digest != ?", (person.name, kept))

    def has_password(self, name: str) -> bool:
        """Return whether a person has a password that is in force."""
        return bool(self._rows(_PASSWORD, time.time(), name))

    def by_password(self, name: str, password: str) -> Person | None:
        """Return the person with this name and password, or None; unknown names take equally long."""
        from argon2 import PasswordHasher
        from argon2.exceptions import Argon2Error, InvalidHashError

        # Made at the first log-in of anybody: made for unknown names only, it would double their time.
        self._nobodys_password = self._nobodys_password or PasswordHasher().hash(secrets.token_hex())
        rows = self._rows(_PASSWORD, time.time(), name)
        hashed = rows[0][2] if rows else self._nobodys_password
        try:
            # No password is longer (`set_password`); the cut limits the work for a text that is.
            PasswordHasher().verify(hashed, password[:1024])
        except (Argon2Error, InvalidHashError):
            return None
        return Person(rows[0][0], Role(rows[0][1]), credential=rows[0][3]) if rows else None

    # tokens and browser sessions

    def issue_token(self, person: str, days: float) -> tuple[str, str]:
        """Return a new token and its public id; only a digest of the token is stored."""
        if not 0 < days <= 3660:
            raise InvalidInput(f"a token lasts above 0 and at most 3660 days, got {days:g}. None was made.")
        token, public = new_token()
        now = time.time()
        with self._write() as db:
            db.execute(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, 0)",
                (public, token_digest(self._key, token), person, now, now + days * 86400),
            )
        return token, public

    def revoke_token(self, public: str) -> str | None:
        """Revoke a token, and delete its owner's browser sessions and password, whichever token they came
        from; return the owner, or None. With a new token the owner can set a password again."""
        with self._write() as db:
            row = db.execute("SELECT person FROM tokens WHERE id = ?", (public,)).fetchone()
            db.execute("UPDATE tokens SET revoked = 1 WHERE id = ?", (public,))
            if row:
                db.execute("DELETE FROM sessions WHERE person = ?", (row[0],))
                db.execute("UPDATE people SET password = NULL WHERE name = ?", (row[0],))
        return row[0] if row else None

    def tokens_of(self, person: str) -> list[dict[str, Any]]:
        rows = self._rows(
            "SELECT id, created, expires, revoked FROM tokens WHERE person = ? ORDER BY created", person
        )
        return [{"id": row[0], "created": row[1], "expires": row[2], "revoked": bool(row[3])} for row in rows]

    def by_token(self, token: str) -> Person | None:
        """Return the person of a token; None if it is unknown, revoked or expired."""
        public = id_of(token) or ""
        rows = self._rows(
            "SELECT t.digest, t.expires, t.revoked, p.name, p.role FROM tokens t "
            "JOIN people p ON p.name = t.person WHERE t.id = ?", public
        )  # fmt: skip
        # An unknown id counts as revoked; the name and the role that stand in for its person are not used.
        digest, expires, revoked, name, role = rows[0] if rows else (self._nobody, 0.0, 1, "", Role.AUDITOR)
        matches = same(token_digest(self._key, token), digest)
        valid = matches and not revoked and time.time() < expires
        return Person(name, Role(role), credential=public) if valid else None

    def by_name(self, name: str) -> Person | None:
        """Return the person of a name that somebody trusted vouches for. Their CSRF token is a digest of it:
        no session keeps one."""
        role = self.role_of(name)
        csrf = token_digest(self._key, f"csrf {name}").hex()
        return None if role is None else Person(name, role, csrf)

    def open_session(self, person: Person, hours: float) -> str:
        """Return the value of a new session's cookie."""
        cookie = secrets.token_urlsafe(32)
        with self._write() as db:
            db.execute("DELETE FROM sessions WHERE expires < ?", (time.time(),))
            db.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?, ?)",
                (
                    token_digest(self._key, cookie),
                    person.name,
                    secrets.token_urlsafe(32),
                    time.time() + hours * 3600,
                    person.credential,
                ),
            )
        return cookie

    def by_cookie(self, cookie: str) -> Person | None:
        """Return the person of a cookie, or None; a session ends with the token that opened it, if it was not
        opened for somebody whom an OpenID provider has identified."""
        rows = self._rows(
            "SELECT p.name, p.role, s.csrf, s.token FROM sessions s JOIN people p ON p.name = s.person "
            "LEFT JOIN tokens t ON t.id = s.token AND NOT t.revoked AND t.expires > ? "
            "WHERE s.digest = ? AND s.expires > ? AND (t.id IS NOT NULL OR s.token = '')",
            time.time(), token_digest(self._key, cookie), time.time(),
        )  # fmt: skip
        return Person(rows[0][0], Role(rows[0][1]), rows[0][2], rows[0][3]) if rows else None

    def close_session(self, cookie: str) -> None:
        with self._write() as db:
            db.execute("DELETE FROM sessions WHERE digest = ?", (token_digest(self._key, cookie),))

    # datasets and grants

    def add_dataset(self, dataset: Dataset) -> None:
        with self._write() as db:
            try:
                db.execute("INSERT INTO datasets VALUES (?, ?, ?, ?)", tuple(dataset.to_json().values()))
            except sqlite3.IntegrityError:
                raise InvalidInput(
                    f"there is a dataset named {dataset.name!r} already. Nothing was added."
                ) from None

    def remove_dataset(self, name: str) -> None:
        """Forget a dataset, with its grants and jobs; its files, and what was charged, stay."""
        with self._write() as db:
            db.execute("DELETE FROM jobs WHERE dataset = ?", (name,))
            db.execute("DELETE FROM datasets WHERE name = ?", (name,))

    def datasets(self, person: Person) -> list[Dataset]:
        """Return the datasets that a person may see: all, but to an analyst only those granted to them."""
        rows = self._rows(_VISIBLE + " ORDER BY d.name", person.name, person.role != Role.ANALYST)
        return [Dataset(*row) for row in rows]

    def dataset(self, name: str, person: Person) -> Dataset | None:
        """Return a dataset if the person may see it, else None. It is one query, so that a dataset that does
        not exist and one that is not granted are refused equally fast."""
        rows = self._rows(_VISIBLE + " AND d.name = ?", person.name, person.role != Role.ANALYST, name)
        return Dataset(*rows[0]) if rows else None

    def set_grants(self, dataset: str, names: list[str]) -> None:
        """Grant a dataset to exactly these people; names that are not people of this server are left out."""
        with self._write() as db:
            db.execute("DELETE FROM grants WHERE dataset = ?", (dataset,))
            db.executemany(
                "INSERT INTO grants SELECT ?, name FROM people WHERE name = ?",
                [(dataset, name) for name in names],
            )

    def granted_to(self, person: str) -> list[Dataset]:
        rows = self._rows(
            "SELECT d.* FROM datasets d JOIN grants g ON g.dataset = d.name WHERE g.person = ?", person
        )
        return [Dataset(*row) for row in rows]

    # jobs

    def add_job(self, person: str, dataset: str, verb: str, seconds: float) -> str:
        """Add a job that waits, and return its id."""
        job = secrets.token_hex(16)
        with self._write() as db:
            db.execute(
                "INSERT INTO jobs VALUES (?, ?, ?, ?, 'waiting', ?, ?, NULL, NULL)",
                (job, person, dataset, verb, time.time(), seconds),
            )
        return job

    def begin_job(self, job: str) -> None:
        """Mark a waiting job as running; the `seconds` after which its result is shown count from now on."""
        with self._write() as db:
            db.execute(
                "UPDATE jobs SET state = 'running', created = ? WHERE id = ? AND state = 'waiting'",
                (time.time(), job),
            )

    def set_job(self, job: str, state: str, result: str | None = None, *, only: tuple[str, ...] = ()) -> bool:
        """Set the state of a job and its result, a JSON text, and return whether there was such a job; with
        `only`, it is changed only if its state is one of these."""
        condition = f" AND state IN ({','.join('?' * len(only))})" if only else ""
        with self._write() as db:
            done = db.execute(
                f"UPDATE jobs SET state = ?, result = ?, {_ENDED} WHERE id = ?{condition}",
                (state, result, time.time(), job, *only),
            )
        return done.rowcount > 0

    def jobs(
        self,
        person: Person,
        *,
        dataset: str | None = None,
        verb: str | None = None,
        last: int = 200,
        first: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the person's latest jobs on datasets that they may still see, the newest first, or with
        `first` so many from that one on, the oldest first; of a steward, everybody's. No result is read."""
        everybody = person.role is Role.STEWARD
        rows = self._rows(
            f"SELECT {', '.join(_JOB)} FROM jobs WHERE (? OR person = ?) AND dataset IN ({_VISIBLE_NAMES}) "
            "AND (? IS NULL OR dataset = ?) AND (? IS NULL OR verb = ?) "
            f"ORDER BY rowid {'DESC' if first is None else ''} LIMIT ? OFFSET ?",
            everybody, person.name, person.name, everybody, dataset, dataset, verb, verb, last, first or 0,
        )  # fmt: skip
        return [dict(zip(_JOB, row, strict=True)) for row in rows]

    def job(self, job: str, person: Person) -> tuple[dict[str, Any], str | None] | None:
        """Return a job that the person may see, and its result, a JSON text."""
        everybody = person.role is Role.STEWARD
        rows = self._rows(
            f"SELECT {', '.join(_JOB)}, result FROM jobs WHERE id = ? AND (? OR person = ?) "
            f"AND dataset IN ({_VISIBLE_NAMES})",
            job, everybody, person.name, person.name, everybody,
        )  # fmt: skip
        return (dict(zip(_JOB, rows[0][:-1], strict=True)), rows[0][-1]) if rows else None

    def count_jobs(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        return dict(self._rows("SELECT state, COUNT(*) FROM jobs GROUP BY state"))

    def unfinished_jobs(self, person: str | None = None, dataset: str | None = None) -> list[dict[str, Any]]:
        """Return all jobs of a person, or on a dataset, that wait or run."""
        rows = self._rows(
            "SELECT id, dataset, created FROM jobs WHERE state IN ('waiting', 'running') "
            "AND (? IS NULL OR person = ?) AND (? IS NULL OR dataset = ?)", person, person, dataset, dataset,
        )  # fmt: skip
        return [{"id": job, "dataset": dataset, "created": created} for job, dataset, created in rows]

    def dropped_jobs(self, person: str) -> list[tuple[str, float, float]]:
        """Return the dataset, begin and end of the jobs of a person that ended before their public time, if
        that is not over: what they stored is not shown until then. Processes are killed within a second."""
        rows = self._rows(
            "SELECT dataset, created, ended + 1 FROM jobs WHERE person = ? AND ended IS NOT NULL "
            "AND state IN ('cancelled', 'interrupted') AND created + seconds > ?", person, time.time(),
        )  # fmt: skip
        return [(dataset, begun, ended) for dataset, begun, ended in rows]

    def interrupt_jobs(self) -> None:
        """Mark all jobs that wait or run as interrupted; called when the server starts, as its last end has
        ended them. What they were charged stays charged."""
        with self._write() as db:
            db.execute(
                f"UPDATE jobs SET state = 'interrupted', {_ENDED} WHERE state IN ('waiting', 'running')",
                (time.time(),),
            )

    def record(self, person: str, action: str) -> None:
        """Record an action of a steward."""
        with self._write() as db:
            db.execute("INSERT INTO actions VALUES (?, ?, ?)", (time.time(), person, action))

    def actions(self, last: int = 100, first: int | None = None) -> list[tuple[float, str, str]]:
        """Return the latest actions of stewards, the newest first; with `first` so many from that one on, the
        oldest first."""
        order = "DESC" if first is None else "ASC"
        rows = self._rows(
            f"SELECT time, person, action FROM actions ORDER BY rowid {order} LIMIT ? OFFSET ?",
            last,
            first or 0,
        )
        return [(float(when), who, what) for when, who, what in rows]
