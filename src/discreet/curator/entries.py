"""The lines of a ledger, how each is hashed onto the one before, and what a walk along the chain can find.

The text of a body is its own canonical form: the hash is taken over the very text that is stored, so that
white space, a repeated key or another order of keys is a change like any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .._errors import LedgerError
from .keys import signed_by

GENESIS = bytes(32)
# the columns of the table, in its order
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger. `sealed` is secret state: encrypted, covered by the hash, never exported."""

    seq: int
    time: str
    kind: str
    body: dict[str, Any]
    hash: bytes
    signature: bytes = field(repr=False)
    sealed: bytes | None = field(default=None, repr=False)
    topic: str | None = None

    @property
    def seal(self) -> str | None:
        """The digest of the sealed state's ciphertext, which is random to whoever lacks the key."""
        return seal_of(self.sealed)

    def to_json(self) -> dict[str, Any]:
        """Return what an export shows: all that is needed to verify the chain, without the sealed state
        itself."""
        shown = {
            "seq": self.seq,
            "time": self.time,
            "kind": self.kind,
            "topic": self.topic,
            "body": self.body,
        }
        return {**shown, "seal": self.seal, "hash": self.hash.hex(), "signature": self.signature.hex()}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line whose columns are not what a ledger holds; what can be known of it."""

    seq: Any
    hash: Any


@dataclass(frozen=True, slots=True)
class Anchor:
    """The head of the chain at some time, to be kept where the ledger is not."""

    seq: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash.hex()}"

    @classmethod
    def parse(cls, text: str) -> Anchor:
        try:
            seq, digest = text.strip().split(":")
            anchor = cls(int(seq), bytes.fromhex(digest))
        except (ValueError, AttributeError):
            anchor = cls(-1, b"")
        if anchor.seq < 0 or len(anchor.hash) != 32:
            raise LedgerError(
                f"an anchor reads 'number:hash' as `discreet ledger anchor` prints it, got {text!r}."
            )
        return anchor


def canonical(value: Any) -> str:
    """Return the one way in which a value is written down, so that a hash of it means something."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def seal_of(sealed: bytes | None) -> str | None:
    return None if sealed is None else hashlib.sha256(sealed).hexdigest()


def chain(previous: bytes, entry: Entry) -> bytes:
    """Return the hash of an entry: over all of it but hash and signature, and over the hash of the one
    before."""
    text = canonical([previous.hex(), entry.seq, entry.time, entry.kind, entry.topic, entry.body, entry.seal])
    return hashlib.sha256(text.encode()).digest()


def chained(previous: bytes, row: Row) -> bytes:
    """Return the same hash from the columns, over the text of the body as it stands: nothing is parsed, and
    nothing is forgiven."""
    seq, time, kind, body, _, _, sealed, topic = row
    head, tail = canonical([previous.hex(), seq, time, kind, topic]), canonical([seal_of(sealed)])
    return hashlib.sha256(f"{head[:-1]},{body},{tail[1:]}".encode()).digest()


def well_formed(row: Row) -> bool:
    """Return whether the columns have the types of a ledger: a file that somebody wrote may hold anything."""
    seq, time, kind, body, digest, signature, sealed, topic = row
    texts = (
        type(time) is str
        and type(kind) is str
        and type(body) is str
        and (topic is None or type(topic) is str)
    )
    blobs = type(digest) is bytes and type(signature) is bytes and (sealed is None or type(sealed) is bytes)
    return type(seq) is int and texts and blobs and len(digest) == 32


def entry_of(row: Row) -> Entry:
    """Return the entry in a row; refused if it is none."""
    seq, time, kind, body, *rest = row
    content = None
    if well_formed(row):
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = None
    if not isinstance(content, dict):
        raise LedgerError(f"entry {seq} of the ledger cannot be read: it was changed.")
    return Entry(seq, time, kind, content, *rest)


def lines(rows: Iterable[Row]) -> Iterable[Entry | Unreadable]:
    """Yield each row as an entry if it is one, in the canonical form that was hashed."""
    for row in rows:
        try:
            entry = entry_of(row)
            written = canonical(entry.body)
        except (LedgerError, ValueError, RecursionError):
            written = None
        yield entry if written == row[3] else Unreadable(row[0], row[4])


def verify(
    entries: Iterable[Entry | Unreadable], anchor: Anchor | None = None, *, key: bytes | None = None
) -> list[str]:
    """Walk the chain: numbers without a gap, hashes that follow, signatures by one key, the anchor on the
    way."""
    problems: list[str] = []
    previous: Any
    previous, last, met = GENESIS, 0, anchor is None
    signer = key
    for entry in entries:
        if entry.seq != last + 1:
            problems.append(f"entry {last + 1} is missing")
        if isinstance(entry, Unreadable):
            problems.append(f"entry {entry.seq} of the ledger cannot be read: it was changed")
        else:
            signer = _hex(entry.body.get("key")) if signer is None else signer
            problems += _link(previous, entry, signer)
        if anchor is not None and entry.seq == anchor.seq:
            met = True
            if entry.hash != anchor.hash:
                problems.append(f"entry {entry.seq} is not the one that was anchored: history was rewritten")
        previous, last = entry.hash, entry.seq if isinstance(entry.seq, int) else last
    if not met:
        problems.append(
            f"the anchored entry {anchor.seq if anchor else 0} is gone: the ledger was rolled back "
            f"to entry {last}"
        )
    return problems or ([] if last else ["the ledger is empty"])


def _link(previous: Any, entry: Entry, signer: bytes) -> list[str]:
    """Return what is wrong with one entry of the chain: its hash, or its signature."""
    if not isinstance(previous, bytes) or entry.hash != chain(previous, entry):
        return [f"entry {entry.seq} does not follow from the one before, or was changed"]
    if not signed_by(signer, entry.hash, entry.signature):
        return [f"entry {entry.seq} is not signed by the ledger's key"]
    return []


def _hex(text: Any) -> bytes:
    """Return the bytes of a hexadecimal text; none where it is not one."""
    try:
        return bytes.fromhex(str(text))
    except ValueError:
        # no key at all: no signature will fit it
        return b""
