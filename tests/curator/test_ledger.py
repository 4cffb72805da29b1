"""The ledger: append-only, signed, whole after a crash, and honest about what was tampered with."""

import json
import os
import signal
import sqlite3
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from discreet import DiscreetError
from discreet._errors import LedgerError
from discreet.curator import Key, Ledger, entries
from discreet.curator.backups import Export
from discreet.curator.entries import Anchor, Entry
from discreet.curator.ledger import verify

from .tamper import tamper


@pytest.fixture
def ledger(tmp_path):
    made = Ledger.create(tmp_path / "a.ledger", Key.create(tmp_path / "a.key"), {"about": "a test"})
    for i in range(5):
        with made.writing() as writer:
            writer.append(
                "charge", {"n": i}, topic="ann" if i % 2 else "bob", sealed=b"secret" if i == 3 else None
            )
    return made


def raw(ledger, *statements):
    tamper(ledger.path, *statements)


def test_an_untouched_ledger_verifies_also_against_its_anchors(ledger):
    assert ledger.verify() == []
    assert ledger.verify(ledger.anchor) == []
    assert ledger.verify(Anchor.parse(str(ledger.anchor))) == []
    assert ledger.verify(key=ledger.key.public) == []


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("""UPDATE entry SET body = '{"n":9}' WHERE seq = 3""", "entry 3 does not follow"),
        ("UPDATE entry SET kind = 'note' WHERE seq = 4", "entry 4 does not follow"),
        ("UPDATE entry SET topic = NULL WHERE seq = 4", "entry 4 does not follow"),
        ("UPDATE entry SET time = '2020-01-01' WHERE seq = 2", "entry 2 does not follow"),
        ("UPDATE entry SET sealed = NULL WHERE seq = 5", "entry 5 does not follow"),
        ("UPDATE entry SET signature = zeroblob(64) WHERE seq = 6", "entry 6 is not signed"),
        ("UPDATE entry SET body = '{' WHERE seq = 3", "entry 3 of the ledger cannot be read"),
        ("UPDATE entry SET body = '[]' WHERE seq = 1", "entry 1 of the ledger cannot be read"),
        ("""UPDATE entry SET body = '{"key":"zz"}' WHERE seq = 1""", "entry 1 does not follow"),
        ("DELETE FROM entry WHERE seq = 3", "entry 3 is missing"),
        ("DELETE FROM entry WHERE seq = 1", "entry 1 is missing"),
    ],
)
def test_every_kind_of_tampering_is_found(ledger, statement, problem):
    raw(ledger, statement)
    assert any(problem in line for line in ledger.verify())


def test_a_row_without_a_body_is_unreadable_and_no_other_entry():
    row = (2, "2026-01-01", "note", None, bytes(32), bytes(64), None, None)
    assert [(type(line), line.seq) for line in entries.lines([row])] == [(entries.Unreadable, 2)]


def test_a_rollback_is_found_against_an_anchor_only(ledger):
    anchor = ledger.anchor
    raw(ledger, "DELETE FROM entry WHERE seq = 6")
    assert ledger.verify() == []  # said in docs/promise.md: without an anchor this cannot be seen
    assert "rolled back" in ledger.verify(anchor)[0]


def test_a_chain_rewritten_with_another_key_is_found_by_who_knows_the_key(ledger, tmp_path):
    other = Ledger.create(tmp_path / "b.ledger", Key.create(tmp_path / "b.key"), {"about": "forged"})
    assert other.verify() == []
    assert "not signed by the ledger's key" in other.verify(key=ledger.key.public)[0]
    assert any("history was rewritten" in line for line in other.verify(Anchor(1, ledger.entry(1).hash)))


def test_an_export_verifies_without_the_file_and_holds_no_secret(ledger):
    text = json.dumps([entry.to_json() for entry in ledger.entries()])
    assert "secret" not in text

    class Exported(Entry):
        seal = property(lambda self: self.sealed)

    lines = [
        Exported(
            e["seq"],
            e["time"],
            e["kind"],
            e["body"],
            bytes.fromhex(e["hash"]),
            bytes.fromhex(e["signature"]),
            e["seal"],
            e["topic"],
        )
        for e in json.loads(text)
    ]
    assert verify(iter(lines)) == []
    lines[2] = replace(lines[2], body={"n": 7})
    assert verify(iter(lines)) != []


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace('"body": {', '"body": {"x": NaN, '),
        lambda line: line.replace('"seq": 1', '"seq": Infinity'),
        lambda line: line.replace('"seq": 1', '"seq": ' + "[" * 100_000 + "]" * 100_000),
        lambda line: line.replace('"time": ', '"time": -Infinity, "was": '),
    ],
)
def test_an_export_that_no_ledger_can_have_written_is_refused_in_words(ledger, tmp_path, change):
    line = json.dumps(ledger.entry(1).to_json())
    (tmp_path / "export.jsonl").write_text(change(line))
    with pytest.raises(LedgerError, match="not an export"):
        Export(tmp_path / "export.jsonl")


def test_the_file_itself_refuses_changes(ledger):
    db = sqlite3.connect(ledger.path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute("UPDATE entry SET kind = 'x'")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute("DELETE FROM entry")


def test_what_raises_inside_a_transaction_leaves_nothing(ledger):
    before = ledger.anchor

    def fail_half_way():
        with ledger.writing() as writer:
            writer.append("charge", {"n": 99})
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way()
    assert ledger.anchor == before


def test_the_newest_entry_of_a_kind_and_topic(ledger):
    assert ledger.last("charge").body == {"n": 4}
    assert ledger.last("charge", "ann").body == {"n": 3}
    assert ledger.last("release") is None


def test_without_a_key_it_can_be_read_but_not_written(ledger):
    reader = Ledger(ledger.path)
    assert reader.verify() == []
    with pytest.raises(LedgerError, match="reading only"), reader.writing():
        pass


def test_keys_are_private_files_and_never_overwritten(ledger, tmp_path):
    path = tmp_path / "a.key"
    assert path.stat().st_mode & 0o077 == 0 or os.name == "nt"
    assert Key.load(path).public == ledger.key.public
    assert ledger.key.seed.hex() not in repr(ledger.key)
    with pytest.raises(LedgerError, match="never overwritten"):
        Key.create(path)
    with pytest.raises(LedgerError, match="never overwritten"):
        Ledger.create(ledger.path, ledger.key, {})
    with pytest.raises(LedgerError, match="not the one"):
        Ledger(ledger.path, Key.create(tmp_path / "other.key"))


def test_sealed_state_opens_only_in_its_place(ledger):
    sealed = ledger.key.seal(b"threshold 17", b"3:0")
    assert b"threshold" not in sealed
    assert ledger.key.unseal(sealed, b"3:0") == b"threshold 17"
    with pytest.raises(LedgerError, match="changed or moved"):
        ledger.key.unseal(sealed, b"3:1")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("not a database, but long enough to be taken for one" * 20)
    sqlite3.connect(tmp_path / "db").execute("CREATE TABLE t (x)")
    for name in ("text", "db", "nothing"):
        with pytest.raises(DiscreetError, match=r"is not a discreet ledger|there is no ledger at"):
            Ledger(tmp_path / name)
    for text in ("", "3", "x:y", "3:abcd", "-1:" + "0" * 64):
        with pytest.raises(LedgerError, match="anchor"):
            Anchor.parse(text)


def test_threads_take_turns(ledger):
    def append():
        for _ in range(20):
            with ledger.writing() as writer:
                writer.append("charge", {"n": 0})

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.anchor.seq == 6 + 80
    assert ledger.verify() == []


def test_what_is_listed_was_checked_first(ledger):
    """A row that somebody without the key has added is refused, not listed, though it is newer than the last
    look."""
    listed = list(ledger.entries())
    forged = (7, listed[-1].time, "charge", '{"n":9}', bytes(32), bytes(64), None, "ann")
    raw(ledger, ("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)", forged))
    with pytest.raises(LedgerError, match="entry 7 of the ledger is not as it was signed"):
        list(ledger.entries())


class _Snapshots:
    """Reads as from a database: a reader has the entries of the moment when it began, while others write."""

    def __init__(self, store, writes):
        self.path, self.writing = store.path, store.writing
        self._store, self._writes = store, writes

    @contextmanager
    def reading(self, *, strict=True):
        with self._store.reading() as db:
            rows = self._store.read_rows(db, 1)
        if self._writes:
            self._writes.pop()()
        yield rows

    def read_rows(self, db, first, limit=1000, also=()):
        if not isinstance(db, list):
            return self._store.read_rows(db, first, limit, also)
        return [row for row in db if row[0] >= first or row[0] in also][:limit]


def test_a_reader_whose_moment_is_older_than_what_another_thread_saw_looks_again(ledger):
    def write():
        with ledger.writing() as writer:
            writer.append("charge", {"n": 9})

    ledger._store = _Snapshots(ledger._store, [write] * 4)
    assert ledger.anchor.seq == 6 + 4
    ledger._store = _Snapshots(ledger._store._store, [])
    # between the look at the chain and the look at its newest entry
    meanwhile = [write]

    def newest(reader):
        if meanwhile:
            meanwhile.pop()()
        return reader.last("charge").seq

    assert ledger.look(newest) == 6 + 5
    assert [entry.seq for entry in ledger.entries()] == list(range(1, 12))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_while_another_thread_reads_leaves_a_ledger_that_can_be_read(ledger, monkeypatch):
    """A thread is in the middle of reading the chain: the child must neither wait for it for ever, nor have
    half of what it saw."""
    with ledger.writing() as writer:
        writer.append("charge", {"n": 9})
    reopened, reading, read_rows = Ledger(ledger.path, ledger.key), threading.Event(), ledger._store.read_rows
    with ledger.writing() as writer:
        writer.append("charge", {"n": 10})

    def slow(db, first, limit=1000, also=()):
        reading.set()
        time.sleep(0.02)
        return read_rows(db, first, limit, also)

    monkeypatch.setattr(reopened._store, "read_rows", slow)
    thread = threading.Thread(target=lambda: reopened.anchor)
    thread.start()
    assert reading.wait(600)
    child = os.fork()
    if not child:
        signal.alarm(600)  # a child that waits for ever fails the test
        os._exit(0 if reopened.anchor.seq == 8 and len(list(reopened.entries())) == 8 else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
