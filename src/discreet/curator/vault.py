"""Keeps the vault: secret blobs that belong to a charge, each sealed (encrypted) in a file of its own beside
the ledger, or in the database that has the ledger's entries (`blobs`). What is said of a file below holds for
the rows of a blob in the database too.

A blob holds a state that is too large for an entry, and as secret as the data: a checkpoint, the teacher
models of PATE, the state of correlated noise. A signed entry of the ledger names the newest version of each
blob, with the digest of its file, so that an older file that somebody put back is refused: an older state
would draw noise again. A file is written and on disk before its entry is; a file that no entry names is
removed when the ledger is next opened. Names and versions are public. A blob is padded to a public `size`, or
if it grows with the data (the record of a stream's units) to a power of two; no entry has its size, which
only the steward's own disk shows.

The order of `put` is fixed: lock a new file, write it, sync it; in one short transaction compare the version
and append the entry; then remove the old file.

Stores sealed (encrypted) blobs for the vault: files beside the ledger, or rows of the database that has
its entries, so that machines which share the entries share the blobs too.

Whoever writes a blob holds a lock on it until its entry is in the ledger. `Vault.sweep`, which removes blobs
that a killed process left behind, leaves locked ones alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .. import _require, _system
from .._errors import InvalidInput, LedgerError
from .accounts import SPENDING
from .ledger import Entry, Ledger, LedgerReader, Writer
from .postgres_store import PostgresStore
from .store import sync_folder
from .tickets import locked_file, unlocked, unused

# The name of a blob: 128 random bits.
_BLOB_NAME = re.compile("[0-9a-f]{32}")
# Most bytes of a blob that one row holds. PostgreSQL limits a value to a gigabyte, and sends it in one piece;
# 8 MiB is chosen by hand, not tuned.
_PART = 8 << 20

# The rights that a role of the database needs on the table of blobs.
RIGHTS = ("SELECT", "INSERT", "DELETE")


class Blobs(Protocol):
    """Stores sealed bytes under random names that the store itself chooses.

    `writing` stores a new blob, durably, yields its name, and holds the blob's lock while its block runs.
    `read` returns None for a name without a blob. `free` yields whether nobody held the blob's lock; if so,
    it holds the lock itself while its block runs. `check` refuses if blobs could not be stored.
    """

    def writing(self, data: bytes) -> AbstractContextManager[str]: ...

    def read(self, name: str) -> bytes | None: ...

    def remove(self, name: str) -> None: ...

    def names(self) -> list[str]: ...

    def free(self, name: str) -> AbstractContextManager[bool]: ...

    def check(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FileBlobs:
    """Stores each blob in a file of its own, which only its owner can read."""

    folder: Path
    durable: bool = True

    @contextmanager
    def writing(self, data: bytes) -> Iterator[str]:
        with self._translated_errors():
            if not self.folder.is_dir():
                self.folder.mkdir(mode=0o700, exist_ok=True)
                if self.durable:
                    sync_folder(self.folder.parent)
        held, path = self._new_file()
        try:
            try:
                with self._translated_errors():
                    _write(held.lock, data, self.folder, durable=self.durable)
            except BaseException:
                # No entry will name the file, and its bytes would keep a full disk full.
                self.remove(path.name)
                raise
            yield path.name
        finally:
            unlocked(held)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate the system's errors, such as a full disk, into ours."""
        try:
            yield
        except OSError as error:
            raise LedgerError(
                f"no blob can be written to {self.folder} ({error.strerror}). Nothing was stored or released."
            ) from None

    def check(self) -> None:
        """Refuse nothing: whoever may write the ledger's file may write beside it."""

    def read(self, name: str) -> bytes | None:
        try:
            return self._path(name).read_bytes()
        except OSError:
            return None

    def remove(self, name: str) -> None:
        with suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of the blobs; files with names of another form are not blobs, and left alone."""
        if not self.folder.is_dir():
            return []
        return [path.name for path in self.folder.iterdir() if _BLOB_NAME.fullmatch(path.name)]

    def free(self, name: str) -> AbstractContextManager[bool]:
        return unused(self._path(name))

    def _new_file(self) -> tuple[Any, Path]:
        """Create a file under a random name, and lock it; again under another name if a sweep removed it
        before it was locked."""
        while True:
            path = self.folder / secrets.token_hex(16)
            held = locked_file(str(path))
            if held is not None:
                return held, path

    def _path(self, name: str) -> Path:
        # Only the last part of the name, so that no name leads out of the folder.
        return self.folder / Path(name).name


@dataclass(frozen=True, slots=True)
class DatabaseBlobs:
    """Stores each blob in rows of the table `blob`. Its lock is an advisory lock of the writer's connection,
    which the server releases when the writer is gone."""

    store: PostgresStore

    @contextmanager
    def writing(self, data: bytes) -> Iterator[str]:
        name = secrets.token_hex(16)
        with self.store.holding(f"blob {name}") as was_free:
            assert was_free, "nobody else has locked this name, which has 128 random bits"
            self._insert(name, data)
            yield name

    def read(self, name: str) -> bytes | None:
        with self.store.blobs() as db:
            rows = db.execute("SELECT data FROM blob WHERE name = %s ORDER BY part", (name,)).fetchall()
        return b"".join(row[0] for row in rows) if rows else None

    def remove(self, name: str) -> None:
        with self.store.blobs() as db:
            db.execute("DELETE FROM blob WHERE name = %s", (name,))

    def names(self) -> list[str]:
        with self.store.blobs() as db:
            # Every blob has a part 0, an empty one too.
            rows = db.execute("SELECT name FROM blob WHERE part = 0").fetchall()
        return [row[0] for row in rows]

    def free(self, name: str) -> AbstractContextManager[bool]:
        return self.store.holding(f"blob {name}")

    def check(self) -> None:
        """Refuse if this role may not use the table of blobs; called before anything is charged."""
        rights = " AND ".join(f"has_table_privilege('blob', '{right}')" for right in RIGHTS)
        with self.store.blobs() as db:
            allowed = db.execute(f"SELECT {rights}").fetchone()[0]
        if not allowed:
            raise LedgerError(
                f"this keeps secret state in the table {self.store.name}.blob, which the role of the address "
                f"may not use. Nothing was charged or read. GRANT {', '.join(RIGHTS)} ON "
                f"{self.store.name}.blob to it."
            )

    def _insert(self, name: str, data: bytes) -> None:
        """Insert a blob as rows of at most `_PART` bytes, in one transaction; an empty blob has one row."""
        parts = [data[start : start + _PART] for start in range(0, max(1, len(data)), _PART)]
        with self.store.blobs() as db:
            for part, piece in enumerate(parts):
                db.execute("INSERT INTO blob VALUES (%s, %s, %s)", (name, part, piece))


def _write(handle: int, data: bytes, folder: Path, *, durable: bool) -> None:
    """Write a blob through the descriptor of its locked file; if `durable`, wait until the file and its name
    in `folder` are on disk.

    The descriptor itself stays open: closing it would release the lock.
    """
    with os.fdopen(os.dup(handle), "wb") as file:
        file.write(data)
        if durable:
            _system.sync(file)
    if durable:
        # Not `store.sync_folder`, which ignores errors.
        _system.sync_folder(folder)


# The kind of entry that names the newest version of a blob; stored, and never changed.
BLOB = "blob"
# Most bytes of a blob with its padding, which is encrypted in memory in one piece. Chosen by hand.
LARGEST = 1 << 30
# Most names of blobs of one charge, those of deleted blobs included. Chosen by hand.
MAX_BLOBS = 1000
# Bytes of the length that stands before the data of every blob.
_LENGTH = 8
# The least bytes of a blob without a public size, with its padding. Chosen by hand.
_LEAST = 1 << 12


@dataclass(frozen=True, slots=True)
class Staged:
    """Stands for a blob on disk that no entry names yet; `body` is that of its entry.

    `commit` appends the entry, in a transaction that may hold other entries.
    """

    body: dict[str, Any]

    def commit(self, writer: Writer) -> Entry:
        """Append the entry that makes this the newest version of its name; refuse if another process has
        stored a version in the meantime."""
        charge, name = self.body["charge"], self.body["name"]
        if writer.entry(charge).kind != SPENDING:
            raise InvalidInput(
                f"entry {charge} of the ledger is no charge that a blob could belong to. Nothing was stored."
            )
        last = writer.last(BLOB, _topic(charge, name))
        if self.body["version"] != _next(last):
            raise LedgerError(
                f"another process has stored the blob {name!r} of charge {charge} in the meantime. "
                f"Nothing was stored."
            )
        names = (
            (topic for topic in writer.topics(BLOB) if topic.startswith(f"{charge}:")) if last is None else ()
        )
        if sum(1 for _ in names) >= MAX_BLOBS:
            raise InvalidInput(
                f"a charge has at most {MAX_BLOBS} names of blobs, those of deleted ones included. Nothing "
                f"was stored. Use a name again."
            )
        return writer.append(BLOB, self.body, topic=_topic(charge, name))


@dataclass(frozen=True, slots=True)
class Vault:
    """Stores and reads the blobs of a ledger.

    Guarantee: `get` returns the data that were `put` last under this name of this charge, or raises; whoever
               has the files and the ledger without the key learns of each blob its charge, its name, the
               times of its versions and its size with the padding, and nothing of the data in it.
    Proof:     a blob is encrypted with AES-256-GCM under a key derived from the ledger's, and bound to
               ledger, charge, name and version; the digest of the whole file is in the entry, which the
               chain's signature covers.
    Assumes:   the ledger is not rolled back (an anchor shows it), and the key is secret.
    """

    ledger: Ledger

    @property
    def folder(self) -> Path:
        """The folder of the files, beside the ledger itself and not beside a symbolic link to it."""
        return Path(os.path.realpath(self.ledger.path) + "-vault")

    @property
    def blobs(self) -> FileBlobs | DatabaseBlobs:
        """The store of the blobs: in the database if the entries are there, else files."""
        store = self.ledger.store
        if isinstance(store, PostgresStore):
            return DatabaseBlobs(store)
        return FileBlobs(self.folder, self.ledger.durable)

    @property
    def location(self) -> str:
        """Where the blobs are, for messages."""
        return "the database" if isinstance(self.ledger.store, PostgresStore) else str(self.folder)

    def put(self, charge: int, name: str, data: bytes, *, size: int | None = None) -> Entry:
        """Store a new version of a blob, and remove the one before.

        The blob is padded to `size` bytes, or without one to a power of two.
        """
        with self.staged(charge, name, data, size=size) as blob, self.ledger.writing() as writer:
            return blob.commit(writer)

    @contextmanager
    def staged(self, charge: int, name: str, data: bytes, *, size: int | None = None) -> Iterator[Staged]:
        """Write a blob to disk, and yield it, to be committed in the block. Afterwards the version before it
        is removed; but if the block has not committed the new version, that one is removed."""
        plain = _pad(name, data, size)
        _require.integer(charge=charge, at_least=1)
        if self.ledger.key is None:
            raise LedgerError(f"{self.ledger.path} was opened for reading only. Nothing was stored.")
        before = self.ledger.last(BLOB, _topic(charge, name))
        version = _next(before)
        sealed = self.ledger.key.seal(plain, self._context(charge, name, version))
        digest = hashlib.sha256(sealed).hexdigest()
        with self.blobs.writing(sealed) as file:
            try:
                body = {"charge": charge, "name": name, "version": version, "file": file, "digest": digest}
                yield Staged(body)
            finally:
                # If the ledger cannot be read now, both files stay: `sweep` removes the one that no entry
                # names when the ledger is next opened.
                with suppress(LedgerError):
                    newest = self.ledger.last(BLOB, _topic(charge, name))
                    if newest is None or newest.body["file"] != file:
                        self.blobs.remove(file)
                    elif before is not None:
                        self._remove(before)

    def get(self, charge: int, name: str) -> bytes:
        """Return the newest version of a blob."""
        while True:
            entry = self._newest(charge, name)
            sealed = self.blobs.read(str(entry.body["file"]))
            if sealed is not None:
                return self._unseal(entry, sealed)
            # A new version has removed the file since the entry was read, or the file is lost.
            if self._newest(charge, name) == entry:
                raise LedgerError(
                    f"the blob {name!r} of charge {charge} is missing from {self.location}. "
                    f"Nothing was read or released."
                )

    def version(self, charge: int, name: str) -> int:
        """Return the version of a blob, which counts from 0."""
        return int(self._newest(charge, name).body["version"])

    def remove(self, charge: int, name: str) -> None:
        """Delete a blob, and enter that in the ledger. Its name can be used again; its versions go on
        counting."""
        with self.ledger.writing() as writer:
            last = writer.last(BLOB, _topic(charge, name))
            if last is None or last.body["file"] is None:
                return
            body = {**last.body, "version": _next(last), "file": None, "digest": None}
            writer.append(BLOB, body, topic=_topic(charge, name))
        self._remove(last)

    def sweep(self) -> None:
        """Remove the files that no newest entry of a blob names and that nobody is writing: killed processes
        have left them."""
        blobs = self.blobs
        for file in _list_names(blobs):
            # A writer holds the lock of its blob until the entry is committed. The lock must be taken before
            # the entries are read: otherwise an entry that is committed in between would be missed.
            with blobs.free(file) as free:
                if free and file not in self.ledger.look(_files):
                    blobs.remove(file)

    def problems(self) -> list[str]:
        """Return what is wrong with the stored blobs, in words: those that are missing, or not as their
        newest entry says."""
        wrong = []
        for entry in self.ledger.look(newest_blobs):
            if entry.body["file"] is None:
                continue
            try:
                sealed = self.blobs.read(str(entry.body["file"]))
            except LedgerError as error:
                # The role of a database may not be allowed to read blobs.
                return [str(error)]
            digest = None if sealed is None else hashlib.sha256(sealed).hexdigest()
            # A blob that got a newer version meanwhile is left out.
            if digest != entry.body["digest"] and self.ledger.last(BLOB, entry.topic) == entry:
                wrong.append(f"the blob of entry {entry.seq} is missing from the vault, or is not the newest")
        return wrong

    def _newest(self, charge: int, name: str) -> Entry:
        """Return the entry of the newest version of a blob; refuse a name without a blob."""
        entry = self.ledger.last(BLOB, _topic(charge, name))
        if entry is None or entry.body["file"] is None:
            raise InvalidInput(f"charge {charge} has no blob {name!r}.")
        return entry

    def _unseal(self, entry: Entry, sealed: bytes) -> bytes:
        """Return the data in a stored blob; refuse one that is not the blob of its newest entry."""
        charge, name, version = (entry.body[part] for part in ("charge", "name", "version"))
        if hashlib.sha256(sealed).hexdigest() != entry.body["digest"]:
            raise LedgerError(
                f"the file of the blob {name!r} of charge {charge} is not the newest, or was changed. "
                f"Nothing was read or released. An older state would draw noise again; go back to a copy of "
                f"ledger and vault that is whole."
            )
        if self.ledger.key is None:
            raise LedgerError(f"{self.ledger.path} was opened for reading only: its blobs are sealed.")
        plain = self.ledger.key.unseal(sealed, self._context(charge, name, version))
        length = int.from_bytes(plain[:_LENGTH], "little")
        return plain[_LENGTH : _LENGTH + length]

    def _remove(self, entry: Entry) -> None:
        """Remove the file that an entry names; the entry of a deleted blob names none."""
        if entry.body["file"] is not None:
            self.blobs.remove(str(entry.body["file"]))

    def _context(self, charge: int, name: str, version: int) -> bytes:
        """Return the context that a blob is encrypted with. It never changes: stored blobs would not
        decrypt."""
        return f"vault {self.ledger.genesis.hash.hex()} {charge} {version} {name}".encode()


@dataclass(frozen=True, slots=True)
class Drawer:
    """Gives the mechanism that was charged the blobs of its own charge.

    Blobs that it puts here stay in memory, and are committed together with its state, or not at all.
    """

    vault: Vault
    charge: int
    size: int | None
    _new: dict[str, bytes] = field(default_factory=dict)

    def put(self, name: str, data: bytes) -> None:
        """Keep a blob until the state is committed; each is padded to the mechanism's `blob_size`."""
        # Called to refuse a blob that does not fit; `staged` pads the data.
        _pad(name, data, self.size)
        self._new[name] = data

    def get(self, name: str) -> bytes:
        """Return a blob: as it was put here, or else its newest version in the vault."""
        return self._new[name] if name in self._new else self.vault.get(self.charge, name)

    @contextmanager
    def staged(self) -> Iterator[list[Staged]]:
        """Write the blobs that were put here to disk, and yield them, to be committed in the block."""
        with ExitStack() as stack:
            blobs = [
                self.vault.staged(self.charge, name, data, size=self.size) for name, data in self._new.items()
            ]
            yield [stack.enter_context(blob) for blob in blobs]


def problems(entries: Iterable[Entry]) -> list[str]:
    """Return what is wrong with the entries of blobs, in words: the versions of each blob must count from 0
    without a gap."""
    wrong: list[str] = []
    versions: dict[tuple[Any, Any], int] = {}
    for entry in entries:
        if entry.kind == BLOB:
            key = entry.body["charge"], entry.body["name"]
            if entry.body["version"] != versions.get(key, -1) + 1:
                wrong.append(f"entry {entry.seq} is not the version of its blob that follows")
            versions[key] = int(entry.body["version"])
    return wrong


def _pad(name: Any, data: Any, size: int | None) -> bytes:
    """Return the bytes to encrypt: the length of the data, the data, and zeros up to `size`; without a size,
    up to a power of two."""
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
        raise _require.fail("name", name, "a printable text of 1 to 100 characters")
    if not isinstance(data, bytes):
        raise _require.fail("data", type(data).__name__, "bytes")
    if size is not None:
        _require.integer(size=size, at_least=0)
    padded = max(_LEAST, 1 << (len(data) - 1).bit_length()) if size is None else size
    if padded > LARGEST or len(data) > padded:
        limit = LARGEST if size is None else min(size, LARGEST)
        # The length of the data, which may be secret, is not in the message.
        raise InvalidInput(
            f"the blob {name!r} does not fit the {limit:,} bytes that it may have. Nothing was stored."
        )
    return len(data).to_bytes(_LENGTH, "little") + data + bytes(padded - len(data))


def _topic(charge: int, name: str) -> str:
    """Return the topic of a blob's entries; stored, and never changed."""
    return f"{charge}:{name}"


def _next(last: Entry | None) -> int:
    """Return the version after that of an entry; 0 without one."""
    return 0 if last is None else int(last.body["version"]) + 1


def _list_names(blobs: FileBlobs | DatabaseBlobs) -> list[str]:
    """Return the names of all stored blobs; an empty list if they cannot be read, so that none is removed."""
    with suppress(LedgerError):
        return blobs.names()
    return []


def newest_blobs(reader: LedgerReader) -> list[Entry]:
    """Return the newest entry of every blob."""
    newest = (reader.last(BLOB, topic) for topic in reader.topics(BLOB))
    return [entry for entry in newest if entry is not None]


def _files(reader: LedgerReader) -> set[Any]:
    """Return the names of the files, or rows, that the newest entries of all blobs name."""
    return {entry.body["file"] for entry in newest_blobs(reader)}
