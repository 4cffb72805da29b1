"""Reads an exported ledger: a file with one JSON object per entry, which can be read and verified without the
ledger's own file, its key or the sealed state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._errors import LedgerError
from .ledger import Anchor, Entry, canonical, verify


@dataclass(frozen=True, slots=True)
class ExportedEntry(Entry):
    """Holds an entry without its sealed (encrypted) state, which is never exported. The state's `digest` is;
    the hash of the entry covers no more of it."""

    digest: str | None = None

    @property
    def seal(self) -> str | None:
        return self.digest


class Export:
    """Reads the entries of an export, with the methods with which a `Ledger` is read: `books.verify` takes
    either.

    The file may have been written by anybody. Whatever it holds, nothing but a LedgerError is raised;
    `verify` returns what is wrong with it, an empty list if nothing is.
    """

    # Like a ledger that was opened without its key.
    key = None

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            self._entries = [_entry(json.loads(line)) for line in lines if line.strip()]
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise LedgerError(
                f"{path} is not an export of a discreet ledger: lines of JSON, as `discreet ledger "
                f"export` writes them."
            ) from None
        if not self._entries:
            raise LedgerError(f"{path} holds no entry.")

    def entries(self, *, kind: str | None = None, after: int = 0) -> Iterator[Entry]:
        return (entry for entry in self._entries if entry.seq > after and kind in (None, entry.kind))

    def entry(self, seq: int) -> Entry:
        for entry in self._entries:
            if entry.seq == seq:
                return entry
        raise LedgerError(f"the export has no entry {seq}.")

    def last(self, kind: str, topic: str | None = None) -> Entry | None:
        same = [e for e in self._entries if e.kind == kind and topic in (None, e.topic)]
        return same[-1] if same else None

    def topics(self, kind: str, *, after: int = 0) -> list[str]:
        return list(
            dict.fromkeys(
                e.topic for e in self._entries if e.kind == kind and e.seq > after and e.topic is not None
            )
        )

    @property
    def genesis(self) -> Entry:
        return self.entry(1)

    @property
    def anchor(self) -> Anchor:
        return Anchor(self._entries[-1].seq, self._entries[-1].hash)

    def verify(self, anchor: Anchor | None = None, *, key: bytes | None = None) -> list[str]:
        return verify(iter(self._entries), anchor, key=key)


def is_export(path: Path) -> bool:
    """Return whether a file is taken for an export: its first byte is that of a JSON object. A ledger starts
    otherwise."""
    try:
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError:
        return False


def _entry(data: dict[str, Any]) -> ExportedEntry:
    """Return an entry from its exported form; raises ValueError or RecursionError for one that no ledger
    could have hashed, such as with a NaN in its body."""
    entry = ExportedEntry(
        seq=int(data["seq"]),
        time=data["time"],
        kind=data["kind"],
        body=dict(data["body"]),
        hash=bytes.fromhex(data["hash"]),
        signature=bytes.fromhex(data["signature"]),
        sealed=None,
        topic=data["topic"],
        digest=data["seal"],
    )
    canonical(entry.to_json())
    return entry
