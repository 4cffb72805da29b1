"""Stores sealed (encrypted) blobs for the vault: files beside the ledger, or rows of the database that has
its entries, so that machines which share the entries share the blobs too.

Whoever writes a blob holds a lock on it until its entry is in the ledger. `Vault.sweep`, which removes blobs
that a killed process left behind, leaves locked ones alone.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .._errors import LedgerError
from .locks import sync_folder
from .postgres_store import PostgresStore
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
        file.flush()
        if durable:
            os.fsync(file.fileno())
    if durable:
        # Not `locks.sync_folder`, which ignores errors.
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
