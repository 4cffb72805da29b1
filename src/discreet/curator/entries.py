"""Defines the entries of a ledger, how the hash of each covers the one before, and how the chain is verified.

An entry's body is stored as JSON text in one canonical form. The hash is taken over the stored text itself,
so that white space, a repeated key or another order of keys is a change like any other.

A large released value lies beside the chain: the body of its entry has the hash of the value's text in its
place (`set_aside`), and the text is stored in the same transaction. So the chain is read and verified without
values, and a value that is gone or was changed is noticed where it is read (`value_of`), and by `verify`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .._errors import LedgerError
from .keys import signed_by

# Stands for the hash of the entry before the first.
GENESIS = bytes(32)
# The columns of the table, in its order: seq, time, kind, body, hash, signature, sealed, topic.
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """Holds one entry of the ledger.

    `seq` is its number, from 1 on. `topic` is what entries of one `kind` are found by, such as an analyst or
    the key of a question. `sealed` is secret state: encrypted, covered by the hash through its digest, never
    exported.
    """

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
        """The digest of the sealed state's ciphertext; without the key, it says nothing of the state."""
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
    """Stands for a row that is not an entry: its columns have other types, or its body is not canonical JSON.
    `seq` and `hash` are whatever its columns hold."""

    seq: Any
    hash: Any


@dataclass(frozen=True, slots=True)
class Anchor:
    """Holds the number and hash of the newest entry at some time, to be kept apart from the ledger: a ledger
    that was rolled back does not have that entry."""

    seq: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash.hex()}"

    @classmethod
    def parse(cls, text: str) -> Anchor:
        """Return the anchor that `str` has printed; refuse any other text."""
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


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical(value: Any) -> str:
    """Return a value as JSON in one fixed form, so that equal values have equal hashes.

    The form must never change: the hashes of all ledgers depend on it. NaN and infinities raise ValueError.
    """
    return _CANONICAL.encode(value)


# Characters of the text of a value that stays in its entry. Chosen by hand: answers of a few dozen rows stay.
LARGEST_WITHIN = 16_384
# The fields of what stands in place of a value that lies beside the chain: the hash of its text, the
# number of characters, and what the value is (`kind_of`). No released value is a JSON object with just these
# fields (`values.encode`). Stored, and never changed.
_BESIDE = {"beside", "characters", "kind"}


def kind_of(value: Any) -> str | None:
    """Return the tag of a stored value; None for one that has none. A tuple with one item is what its item
    is; of a value that lies beside the chain it is that of the value itself."""
    if lies_beside(value):
        kind: str | None = value["kind"]
        return kind
    items = value.get("tuple") if isinstance(value, dict) else None
    item = items[0] if isinstance(items, list) and len(items) == 1 else value
    tag = item.get("type") if isinstance(item, dict) else None
    return tag if isinstance(tag, str) else None


def lies_beside(value: Any) -> bool:
    """Return whether this stands in an entry for a value that lies beside the chain."""
    return isinstance(value, dict) and value.keys() == _BESIDE


def set_aside(body: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the body of an entry with the hash of its value in place of a large one, and the text of that
    value; None where the value stays."""
    text = canonical(body["value"]) if "value" in body else ""
    if len(text) <= LARGEST_WITHIN:
        return body, None
    facts = {"beside": hash_of(text).hex(), "characters": len(text), "kind": kind_of(body["value"])}
    return body | {"value": facts}, text


def hash_of(text: str) -> bytes:
    """Return the hash under which the text of a value is stored."""
    return hashlib.sha256(text.encode()).digest()


def text_is(body: dict[str, Any], text: str) -> bool:
    """Return whether the value of an entry has this text; a value beside the chain is not read for it."""
    value: Any = body.get("value")
    return bool(value["beside"] == hash_of(text).hex() if lies_beside(value) else canonical(value) == text)


def value_of(body: dict[str, Any], read: Callable[[bytes], str | None]) -> Any:
    """Return the value of an entry as JSON; `read` returns the text that is stored under a hash, or None."""
    value = body["value"]
    if not lies_beside(value):
        return value
    digest = _hex(value["beside"])
    text = read(digest)
    if text is None or hash_of(text) != digest:
        raise LedgerError(
            "a released value that lies beside the chain is missing from the ledger, or was changed. Run "
            "`discreet ledger verify`, and go back to a copy that is whole."
        )
    return json.loads(text)


def with_values(
    entries: Iterable[Entry | Unreadable], read: Callable[[bytes], str | None], problems: list[str]
) -> Iterable[Entry | Unreadable]:
    """Yield the entries, and add to `problems` those whose value is not there as it was released."""
    for entry in entries:
        if isinstance(entry, Entry) and lies_beside(entry.body.get("value")):
            try:
                value_of(entry.body, read)
            except LedgerError:
                problems.append(f"the value of entry {entry.seq} is missing, or was changed")
        yield entry


def seal_of(sealed: bytes | None) -> str | None:
    """Return the SHA-256 digest of a sealed state, as hexadecimal text; None without one."""
    return None if sealed is None else hashlib.sha256(sealed).hexdigest()


def chain(previous: bytes, entry: Entry) -> bytes:
    """Return the hash that an entry must have: over `previous`, the hash of the entry before, and over all
    its own fields but hash and signature. Of the sealed state, the digest is hashed."""
    text = canonical([previous.hex(), entry.seq, entry.time, entry.kind, entry.topic, entry.body, entry.seal])
    return hashlib.sha256(text.encode()).digest()


def chained(previous: bytes, row: Row) -> bytes:
    """Return the hash that an entry must have, from its row: over the text of the body as it is stored,
    without parsing it. It is the same as that of `chain` if that text is in the canonical form."""
    seq, time, kind, body, _, _, sealed, topic = row
    head, tail = canonical([previous.hex(), seq, time, kind, topic]), canonical([seal_of(sealed)])
    # The JSON list of `chain`: head without its closing bracket, the body, tail without its opening bracket.
    return hashlib.sha256(f"{head[:-1]},{body},{tail[1:]}".encode()).digest()


def well_formed(row: Row) -> bool:
    """Return whether the columns have the types of an entry; a file may have been written by anybody."""
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
    """Return the entry in a row; raises LedgerError if the row is not an entry."""
    seq, time, kind, body, *more = row
    content = None
    if well_formed(row):
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = None
    if not isinstance(content, dict):
        raise LedgerError(f"entry {seq} of the ledger cannot be read: it was changed.")
    return Entry(seq, time, kind, content, *more)


def lines(rows: Iterable[Row]) -> Iterable[Entry | Unreadable]:
    """Yield each row as an entry, or as `Unreadable` if it is no entry, or the text of its body is not in the
    canonical form."""
    for row in rows:
        try:
            entry = entry_of(row)
            is_canonical = canonical(entry.body) == row[3]
        except (LedgerError, ValueError, RecursionError):
            is_canonical = False
        yield entry if is_canonical else Unreadable(row[0], row[4])


def verify(
    entries: Iterable[Entry | Unreadable], anchor: Anchor | None = None, *, key: bytes | None = None
) -> list[str]:
    """Return what is wrong with a chain, in words: numbers with a gap, hashes that do not follow from the
    entry before, signatures by another key, an anchor that is not in the chain.

    `key` is the public key that the verifier trusts. Without it, the signatures are compared with the key
    that the first entry names, which shows changes, but not that somebody wrote a whole new chain.
    """
    problems: list[str] = []
    # Any, because the columns of an `Unreadable` row can hold anything.
    previous: Any
    previous, last, anchor_found = GENESIS, 0, anchor is None
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
            anchor_found = True
            if entry.hash != anchor.hash:
                problems.append(f"entry {entry.seq} is not the one that was anchored: history was rewritten")
        previous, last = entry.hash, entry.seq if isinstance(entry.seq, int) else last
    # Without an anchor, `anchor_found` is True from the start.
    if not anchor_found:
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
    """Return the bytes of a hexadecimal text; for any other text b"", which is nobody's key."""
    try:
        return bytes.fromhex(str(text))
    except ValueError:
        return b""
