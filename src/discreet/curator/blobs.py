"""Where the sealed blobs of a vault are kept: files beside the ledger, or rows of the database that has its
entries, so that machines which share the entries share the blobs too.

A blob that is being written is held by its writer: nobody who sweeps takes it for one that was left behind.
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

_OURS = re.compile("[0-9a-f]{32}")
# Bytes of a row: a value of PostgreSQL's has at most a gigabyte, and is sent in one piece.
_PART = 8 << 20

# what a role needs of the table of blobs
RIGHTS = ("SELECT", "INSERT", "DELETE")


class Blobs(Protocol):
    """Stores sealed bytes under names that are made here.

    `writing` stores a new one, durably, and holds it while its block runs; `read` gives None for one that is
    not there; `free` says whether nobody holds one, and keeps it so while its block runs.
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
        handle, path = self._new_file()
        try:
            try:
                with self._translated_errors():
                    _write(handle.lock, data, self.folder, durable=self.durable)
            except BaseException:
                # no entry will name it, and it would keep a full disk full
                self.remove(path.name)
                raise
            yield path.name
        finally:
            unlocked(handle)

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
        """Return the names of our own files: what is not named as we name files is somebody else's."""
        if not self.folder.is_dir():
            return []
        return [path.name for path in self.folder.iterdir() if _OURS.fullmatch(path.name)]

    def free(self, name: str) -> AbstractContextManager[bool]:
        return unused(self._path(name))

    def _new_file(self) -> tuple[Any, Path]:
        """Create a file under a random name, and lock it."""
        while True:
            path = self.folder / secrets.token_hex(16)
            handle = locked_file(str(path))
            if handle is not None:
                return handle, path

    def _path(self, name: str) -> Path:
        return self.folder / Path(name).name


@dataclass(frozen=True, slots=True)
class DatabaseBlobs:
    """Stores each blob in rows of the table `blob`; held by a lock of its writer's connection, which the
    server gives up when the writer is gone.

    A ledger that an older version made has its blobs in files: these are read still, by the machine that has
    them, which brings them to the database when it next opens the ledger (`adopt`).
    """

    store: PostgresStore
    files: FileBlobs

    @contextmanager
    def writing(self, data: bytes) -> Iterator[str]:
        name = secrets.token_hex(16)
        with self.store.holding(f"blob {name}") as held:
            assert held, "a name of 128 random bits"
            self._insert(name, data)
            yield name

    def read(self, name: str) -> bytes | None:
        with self.store.blobs() as db:
            rows = db.execute("SELECT data FROM blob WHERE name = %s ORDER BY part", (name,)).fetchall()
        return b"".join(row[0] for row in rows) if rows else self.files.read(name)

    def remove(self, name: str) -> None:
        with self.store.blobs() as db:
            db.execute("DELETE FROM blob WHERE name = %s", (name,))
        self.files.remove(name)

    def names(self) -> list[str]:
        with self.store.blobs() as db:
            rows = db.execute("SELECT name FROM blob WHERE part = 0").fetchall()
        return [*(row[0] for row in rows), *self.files.names()]

    def free(self, name: str) -> AbstractContextManager[bool]:
        return self.store.holding(f"blob {name}")

    def adopt(self, name: str) -> None:
        """Copy a blob that is in a file here to the database."""
        data = self.files.read(name)
        if data is not None:
            with self.store.holding(f"blob {name}") as held:
                if held:
                    self._insert(name, data)
                    self.files.remove(name)

    def check(self) -> None:
        """Refuse, before anything is charged, where this role may not keep blobs."""
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
        parts = [data[start : start + _PART] for start in range(0, max(1, len(data)), _PART)]
        with self.store.blobs() as db:
            for part, piece in enumerate(parts):
                db.execute("INSERT INTO blob VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", (name, part, piece))


def _write(handle: int, data: bytes, folder: Path, *, durable: bool) -> None:
    """Write a blob, and wait for the disk where it must be `durable`."""
    with os.fdopen(os.dup(handle), "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    if durable:
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
