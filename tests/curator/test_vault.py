"""The vault: blobs of a charge, sealed beside the ledger; older ones refused, orphans destroyed, sizes
padded."""

import os
import shutil
import signal
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from discreet import Bounds, InvalidInput, Public
from discreet._errors import LedgerError
from discreet.accounting import PureDP
from discreet.curator import Budget, Curator, Key, Ledger, Policy, vault
from discreet.curator.ledger import Writer
from discreet.curator.postgres_store import PostgresStore
from discreet.curator.vault import DatabaseBlobs
from discreet.mechanisms import noisy_count
from discreet.mechanisms.protocols import Interactive, release
from discreet.tables import Memory

PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")


def people():
    return Memory({"age": list(range(90))}, PUBLIC)


@pytest.fixture
def curator(tmp_path):
    curator = Curator.create(tmp_path / "people.ledger", people(), Policy(budget=Budget(epsilon=2)))
    curator.ask(noisy_count(PUBLIC, epsilon=0.5))
    return curator


CHARGE = 2


def files(curator):
    """The blobs: files, or where the entries are in a database their names there."""
    if isinstance(curator.vault.blobs, DatabaseBlobs):
        return curator.vault.blobs.names()
    return sorted(curator.vault.folder.iterdir())


def test_the_newest_version_is_given_and_older_files_are_gone(curator):
    for data in (b"one", b"", b"three" * 100_000):
        curator.vault.put(CHARGE, "teacher", data)
        assert curator.vault.get(CHARGE, "teacher") == data
    assert len(files(curator)) == 1
    assert curator.vault.version(CHARGE, "teacher") == 2
    again = Curator.open(curator.ledger.path, people())
    assert again.vault.get(CHARGE, "teacher") == b"three" * 100_000
    assert curator.verify() == []


def test_the_names_of_the_key_and_of_the_vault_are_on_disk_too(tmp_path, monkeypatch):
    """Names are kept by the folder that they are in: a power cut must not take them away."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr("os.fsync", lambda handle: (synced.append(os.fstat(handle).st_ino), fsync(handle)))
    pointer = tmp_path / "far.ledger"
    PostgresStore(pointer, "postgresql://user@host/books::far").point()
    assert synced == [path.stat().st_ino for path in (pointer, tmp_path)]
    ledger = Ledger.create(tmp_path / "people.ledger", Key.create(tmp_path / "people.ledger.key"), {})
    assert synced[-1] == tmp_path.stat().st_ino
    synced.clear()
    with vault.Vault(ledger).blobs.writing(b"teacher") as name:
        folder = vault.Vault(ledger).folder
        assert synced == [path.stat().st_ino for path in (tmp_path, folder / name, folder)]


def test_a_blob_that_does_not_fit_the_disk_is_refused_and_not_left_there(curator, monkeypatch):
    def full(handle, data, folder, *, durable):
        os.write(handle, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("discreet.curator.vault._write", full)
    anchor = curator.ledger.anchor
    with pytest.raises(LedgerError, match=r"No space left on device.*Nothing was stored"):
        curator.vault.put(CHARGE, "teacher", b"one")
    assert files(curator) == []
    assert curator.ledger.anchor == anchor


def test_nothing_of_a_blob_can_be_read_without_the_key(curator):
    curator.vault.put(CHARGE, "teacher", b"the secret" * 50)
    raw = files(curator)[0].read_bytes() + curator.ledger.path.read_bytes()
    assert b"secret" not in raw
    assert files(curator)[0].stat().st_mode & 0o077 == 0
    assert curator.vault.folder.stat().st_mode & 0o077 == 0


def test_an_older_version_that_is_put_back_is_refused(curator):
    curator.vault.put(CHARGE, "noise", b"first")
    old = files(curator)[0].read_bytes()
    curator.vault.put(CHARGE, "noise", b"other")
    files(curator)[0].write_bytes(old)
    with pytest.raises(LedgerError, match="not the newest"):
        curator.vault.get(CHARGE, "noise")
    assert [line for line in curator.verify() if "vault" in line]
    files(curator)[0].unlink()
    with pytest.raises(LedgerError, match="is missing"):
        curator.vault.get(CHARGE, "noise")


def test_a_blob_cannot_be_moved_to_another_name(curator):
    curator.vault.put(CHARGE, "a", b"1234")
    curator.vault.put(CHARGE, "b", b"5678")
    first, second = (
        curator.vault.folder / curator.ledger.last("blob", f"{CHARGE}:{name}").body["file"] for name in "ab"
    )
    shutil.copy(first, second)
    with pytest.raises(LedgerError, match="not the newest"):
        curator.vault.get(CHARGE, "b")
    assert curator.vault.get(CHARGE, "a") == b"1234"


@pytest.mark.parametrize("length", [0, 1, 99, 100])
def test_padded_blobs_look_the_same_for_every_length(curator, length):
    curator.vault.put(CHARGE, "run", bytes(length), size=100)
    assert files(curator)[0].stat().st_size == 108 + 28
    assert curator.vault.get(CHARGE, "run") == bytes(length)


@pytest.mark.parametrize(("length", "padded"), [(0, 4096), (4096, 4096), (4097, 8192), (9000, 16384)])
def test_a_blob_that_grows_is_padded_to_a_power_of_two_and_no_entry_has_its_size(curator, length, padded):
    curator.vault.put(CHARGE, "units", bytes(length))
    entry = curator.ledger.last("blob")
    assert entry.body.keys() == {"charge", "name", "version", "file", "digest"}
    # 8 bytes for the length, 28 for nonce and tag
    assert files(curator)[0].stat().st_size == 8 + padded + 28
    assert curator.vault.get(CHARGE, "units") == bytes(length)


def test_what_does_not_fit_is_refused_without_its_size(curator):
    before = curator.ledger.anchor
    with pytest.raises(InvalidInput, match="does not fit the 100 bytes") as refused:
        curator.vault.put(CHARGE, "run", bytes(117), size=100)
    assert "117" not in str(refused.value)
    for name in ("", "x" * 101, "a\n", 7):
        with pytest.raises(InvalidInput, match="name"):
            curator.vault.put(CHARGE, name, b"")
    with pytest.raises(InvalidInput, match="bytes"):
        curator.vault.put(CHARGE, "a", "text")
    with pytest.raises(InvalidInput, match="no charge"):
        curator.vault.put(1, "a", b"")
    with pytest.raises(LedgerError, match="no entry 99"):
        curator.vault.put(99, "a", b"")
    with pytest.raises(InvalidInput, match="has no blob"):
        curator.vault.get(CHARGE, "a")
    assert curator.ledger.anchor == before
    assert files(curator) == []


def test_the_number_of_blobs_is_limited(curator, monkeypatch):
    monkeypatch.setattr(vault, "MAX_BLOBS", 2)
    curator.vault.put(CHARGE, "a", b"")
    curator.vault.put(CHARGE, "b", b"")
    curator.vault.put(CHARGE, "b", b"1")
    with pytest.raises(InvalidInput, match="at most 2"):
        curator.vault.put(CHARGE, "c", b"")
    assert len(files(curator)) == 2


def test_orphans_go_at_the_next_start_and_only_orphans(curator):
    curator.vault.put(CHARGE, "a", b"kept")
    pid = os.fork()
    if pid == 0:
        Writer.append = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
        curator.vault.put(CHARGE, "a", b"lost")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert len(files(curator)) == 2
    (curator.vault.folder / "notes.txt").write_text("not ours")
    # What somebody is writing right now is no orphan.
    with curator.vault.staged(CHARGE, "b", b"new") as blob:
        again = Curator.open(curator.ledger.path, people())
        assert len(files(curator)) == 3
        with curator.ledger.writing() as writer:
            blob.commit(writer)
    assert again.vault.get(CHARGE, "a") == b"kept"
    assert again.vault.get(CHARGE, "b") == b"new"
    assert (curator.vault.folder / "notes.txt").exists()
    assert curator.verify() == []


def test_what_was_staged_and_not_committed_is_gone(curator):
    with curator.vault.staged(CHARGE, "a", b"lost"):
        assert len(files(curator)) == 1
    assert files(curator) == []
    with pytest.raises(InvalidInput, match="has no blob"):
        curator.vault.get(CHARGE, "a")


def test_of_two_who_store_one_version_the_second_is_refused(curator):
    with curator.vault.staged(CHARGE, "a", b"slow") as blob:
        Curator.open(curator.ledger.path, people()).vault.put(CHARGE, "a", b"fast")
        with pytest.raises(LedgerError, match="in the meantime"), curator.ledger.writing() as writer:
            blob.commit(writer)
    assert curator.vault.get(CHARGE, "a") == b"fast"
    assert len(files(curator)) == 1


def test_readers_and_a_writer_at_the_same_time(curator):
    curator.vault.put(CHARGE, "a", bytes(8))
    wrong, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            data = curator.vault.get(CHARGE, "a")
            if len(set(data)) != 1:
                wrong.append(data)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(1, 15):
        curator.vault.put(CHARGE, "a", bytes([i]) * 8)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_removed_blob_is_gone_for_good(curator):
    curator.vault.put(CHARGE, "a", b"1")
    curator.vault.remove(CHARGE, "a")
    curator.vault.remove(CHARGE, "a")
    assert files(curator) == []
    with pytest.raises(InvalidInput, match="has no blob"):
        curator.vault.get(CHARGE, "a")
    curator.vault.put(CHARGE, "a", b"2")
    assert curator.vault.version(CHARGE, "a") == 2
    assert curator.verify() == []


def test_versions_out_of_order_are_found(curator):
    with curator.ledger.writing() as writer:
        body = {"charge": CHARGE, "name": "a", "version": 3, "file": None, "digest": None}
        writer.append("blob", body, topic=f"{CHARGE}:a")
    assert [line for line in curator.verify() if "version of its blob" in line]


@dataclass(frozen=True)
class Keeper(Interactive):
    """Keeps what it was asked in a blob, and tells how much that is."""

    public: Any
    event: Any
    blob_size: int = 64

    def start(self, source, *, entropy, drawer):
        drawer.put("questions", b"")
        return {"asked": 0}

    def answer(self, state, source, question, *, entropy, drawer):
        list(source.batches(["age"]))
        drawer.put("questions", drawer.get("questions") + question.encode())
        if question == "!":
            raise ValueError("17")
        return {"asked": state["asked"] + 1}, release(
            len(drawer.get("questions")), event=self.event, entropy=entropy
        )


def test_the_blobs_of_a_live_mechanism_are_committed_with_its_state_or_not_at_all(curator):
    live = curator.start(Keeper(PUBLIC, PureDP(epsilon=0.5)))
    assert [live.answer(question).value for question in ("ab", "c")] == [2, 3]
    with pytest.raises(Exception, match="withheld"):
        live.answer("!")
    assert live.answer("d").value == 4
    # What does not fit the public size fails like everything that depends on the data.
    with pytest.raises(Exception, match="withheld"):
        live.answer("x" * 100)
    assert curator.vault.get(live.number, "questions") == b"abcd"
    assert [file.stat().st_size for file in files(curator)] == [72 + 28]
    assert curator.verify() == []
