"""The vault: secret blobs that belong to a charge, each sealed in a file of its own beside the ledger, or in
the database that has the ledger's entries (`blobs`).

Checkpoints, teachers, the state of correlated noise: too large for an entry, and as secret as the data. The
ledger has, signed, the newest version of each with the digest of its file, so that an older one that was put
back is refused: a state that was wound back would draw noise again. A file is written and on disk before its
entry is; a file that no entry names is an orphan, and is removed at the next start. Names, versions and sizes
are public: where a size could tell something, it is padded to a public one (`size`).

The order of `put`: lock a new file, write it, sync it; in one short transaction compare the version and
append the entry; then remove the old file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _require
from .._errors import InvalidInput, LedgerError
from .blobs import DatabaseBlobs, FileBlobs
from .charges import SPENDING
from .ledger import Entry, Ledger, LedgerReader, Writer
from .postgres_store import PostgresStore

BLOB = "blob"
# Bytes of a blob: sealed in one piece, so that it fits the memory of any machine that can make it.
LARGEST = 1 << 30
# Names of blobs of one charge.
MAX_BLOBS = 1000
# Bytes of the length in front of a padded blob.
_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Staged:
    """A blob on disk that no entry names yet.

    `commit` it in a transaction, alone or together with what belongs to it.
    """

    body: dict[str, Any]

    def commit(self, writer: Writer) -> Entry:
        """Make it the newest of its name; refused if it is not the one that follows."""
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
            raise InvalidInput(f"a charge has at most {MAX_BLOBS} blobs. Nothing was stored.")
        return writer.append(BLOB, self.body, topic=_topic(charge, name))


@dataclass(frozen=True, slots=True)
class Vault:
    """The blobs of a ledger.

    Guarantee: `get` returns what was `put` last under this name of this charge, or raises; whoever has the
               files without the key learns the name, the number of versions and the size of each blob, and
               nothing else.
    Proof:     AES-256-GCM under a key derived from the ledger's, bound to ledger, charge, name and version;
               the digest of the whole file is in the entry, which the chain's signature covers.
    Assumes:   the ledger is not rolled back (an anchor shows it), and the key is secret.
    """

    ledger: Ledger

    @property
    def folder(self) -> Path:
        return Path(os.path.realpath(self.ledger.path) + "-vault")

    @property
    def blobs(self) -> FileBlobs | DatabaseBlobs:
        """Where the blobs are: where the entries are."""
        files, store = FileBlobs(self.folder, self.ledger.durable), self.ledger.store
        return DatabaseBlobs(store, files) if isinstance(store, PostgresStore) else files

    @property
    def location(self) -> str:
        return "the database" if isinstance(self.ledger.store, PostgresStore) else str(self.folder)

    def put(self, charge: int, name: str, data: bytes, *, size: int | None = None) -> Entry:
        """Store the newest version of a blob; the one before is removed.

        Padded to `size`, it looks like any other of that size.
        """
        with self.staged(charge, name, data, size=size) as blob, self.ledger.writing() as writer:
            return blob.commit(writer)

    @contextmanager
    def staged(self, charge: int, name: str, data: bytes, *, size: int | None = None) -> Iterator[Staged]:
        """Write a blob to disk, to be committed in the block with other entries; removed again if it was
        not."""
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
                yield Staged(body | {"size": len(plain)})
            finally:
                # Where the ledger cannot be read now, the next start decides.
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
            # Replaced while we looked for it, or gone.
            if self._newest(charge, name) == entry:
                raise LedgerError(
                    f"the blob {name!r} of charge {charge} is missing from {self.location}. "
                    f"Nothing was read or released."
                )

    def version(self, charge: int, name: str) -> int:
        """Return how often a blob was replaced."""
        return int(self._newest(charge, name).body["version"])

    def remove(self, charge: int, name: str) -> None:
        """Destroy a blob for good; its name can be used again, and its numbers go on."""
        with self.ledger.writing() as writer:
            last = writer.last(BLOB, _topic(charge, name))
            if last is None or last.body["file"] is None:
                return
            body = {**last.body, "version": _next(last), "file": None, "digest": None, "size": 0}
            writer.append(BLOB, body, topic=_topic(charge, name))
        self._remove(last)

    def sweep(self) -> None:
        """Remove the blobs that no entry names, and nobody is writing: those of a process that was killed,
        and old versions."""
        blobs = self.blobs
        if isinstance(blobs, DatabaseBlobs):
            for file in self.ledger.look(_files) & {*blobs.files.names()}:
                blobs.adopt(file)
        for file in _list_names(blobs):
            # Whoever writes one holds it until its entry is committed.
            with blobs.free(file) as free:
                if free and file not in self.ledger.look(_files):
                    blobs.remove(file)

    def problems(self) -> list[str]:
        """Return what is wrong with the files, in words."""
        wrong = []
        for entry in self.ledger.look(_blobs):
            if entry.body["file"] is None:
                continue
            sealed = self.blobs.read(str(entry.body["file"]))
            digest = None if sealed is None else hashlib.sha256(sealed).hexdigest()
            if digest != entry.body["digest"] and self.ledger.last(BLOB, entry.topic) == entry:
                wrong.append(f"the blob of entry {entry.seq} is missing from the vault, or is not the newest")
        return wrong

    def _newest(self, charge: int, name: str) -> Entry:
        entry = self.ledger.last(BLOB, _topic(charge, name))
        if entry is None or entry.body["file"] is None:
            raise InvalidInput(f"charge {charge} has no blob {name!r}. Nothing was read or released.")
        return entry

    def _unseal(self, entry: Entry, sealed: bytes) -> bytes:
        charge, name, version = (entry.body[part] for part in ("charge", "name", "version"))
        if hashlib.sha256(sealed).hexdigest() != entry.body["digest"]:
            raise LedgerError(
                f"the file of the blob {name!r} of charge {charge} is not the newest, or was "
                f"changed. Nothing was read or released. An "
                f"older state would draw noise again; go back to a copy of ledger and vault that is whole."
            )
        if self.ledger.key is None:
            raise LedgerError(f"{self.ledger.path} was opened for reading only: its blobs are sealed.")
        plain = self.ledger.key.unseal(sealed, self._context(charge, name, version))
        length = int.from_bytes(plain[:_LENGTH], "little")
        return plain[_LENGTH : _LENGTH + length]

    def _remove(self, entry: Entry) -> None:
        if entry.body["file"] is not None:
            self.blobs.remove(str(entry.body["file"]))

    def _context(self, charge: int, name: str, version: int) -> bytes:
        return f"vault {self.ledger.genesis.hash.hex()} {charge} {version} {name}".encode()


@dataclass(frozen=True, slots=True)
class Drawer:
    """The blobs of one charge, for the mechanism that was charged.

    What it puts here is committed together with its state, or not at all.
    """

    vault: Vault
    charge: int
    size: int
    _new: dict[str, bytes] = field(default_factory=dict)

    def put(self, name: str, data: bytes) -> None:
        """Keep a blob; all blobs of a mechanism are padded to its public `blob_size`."""
        _pad(name, data, self.size)
        self._new[name] = data

    def get(self, name: str) -> bytes:
        return self._new[name] if name in self._new else self.vault.get(self.charge, name)

    @contextmanager
    def staged(self) -> Iterator[list[Staged]]:
        """Write what was put to disk, to be committed in the block."""
        with ExitStack() as stack:
            blobs = [
                self.vault.staged(self.charge, name, data, size=self.size) for name, data in self._new.items()
            ]
            yield [stack.enter_context(blob) for blob in blobs]


def problems(entries: Iterable[Entry]) -> list[str]:
    """Return what is wrong with the entries of blobs, in words: the versions of each must follow each
    other."""
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
    """Return what is sealed: the length, the data, and zeros."""
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
        raise _require.fail("name", name, "a printable text of 1 to 100 characters")
    if not isinstance(data, bytes):
        raise _require.fail("data", type(data).__name__, "bytes")
    if size is not None:
        _require.integer(size=size, at_least=0)
    room = len(data) if size is None else size
    if room > LARGEST or len(data) > room:
        limit = LARGEST if size is None else min(size, LARGEST)
        # Where a size is given, by how much it was missed may be secret.
        raise InvalidInput(
            f"the blob {name!r} does not fit the {limit:,} bytes that it may have. Nothing was stored."
        )
    return len(data).to_bytes(_LENGTH, "little") + data + bytes(room - len(data))


def _topic(charge: int, name: str) -> str:
    return f"{charge}:{name}"


def _next(last: Entry | None) -> int:
    return 0 if last is None else int(last.body["version"]) + 1


def _list_names(blobs: FileBlobs | DatabaseBlobs) -> list[str]:
    """Return the names of all blobs; none where this role may not see them, and so removes none."""
    with suppress(LedgerError):
        return blobs.names()
    return []


def _blobs(reader: LedgerReader) -> list[Entry]:
    """Return the newest entry of every blob."""
    newest = (reader.last(BLOB, topic) for topic in reader.topics(BLOB))
    return [entry for entry in newest if entry is not None]


def _files(reader: LedgerReader) -> set[Any]:
    return {entry.body["file"] for entry in _blobs(reader)}
