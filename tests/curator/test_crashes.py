"""A ledger outlives every crash of its writer: it opens, is whole, and holds every charge whose answer was given."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from discreet import Bounds, Public
from discreet._errors import LedgerError, ReleaseFailed
from discreet.curator import Budget, Curator, Ledger, Policy
from discreet.curator.store import Store
from discreet.mechanisms import noisy_count
from discreet.tables import Memory

from .crashes import FULL, IOERR_FSYNC, Operation, Recording, crash, library

pytestmark = pytest.mark.skipif(library() is None, reason="the functions of Python's SQLite are not visible")

PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")
NAME = "people.ledger"
# Crash points of `make test`, and of `make test-all`.
FEW, MANY = 60, 1000


def people() -> Memory:
    return Memory({"age": np.arange(100) % 90}, PUBLIC)


def ask(curator: Curator) -> None:
    curator.ask(noisy_count(PUBLIC, epsilon=0.01), fresh=True)


@contextmanager
def marked(recording: Recording):
    """Mark each commit in the log as soon as it has returned."""
    plain = Ledger.writing

    @contextmanager
    def writing(self):
        with plain(self) as writer:
            yield writer
        recording.mark(("committed", writer.head.seq))

    Ledger.writing = writing
    try:
        yield
    finally:
        Ledger.writing = plain


def recorded(folder: Path, large: int) -> list[Operation]:
    """The log of a writer that makes a ledger, asks, and enters something `large`."""
    folder.mkdir()
    recording = Recording()
    with recording.on(), marked(recording):
        curator = Curator.create(folder / NAME, people(), Policy(budget=Budget(epsilon=2)))
        recording.mark("created")
        for turn in range(4):
            ask(curator)
            recording.mark("answered")
            if turn == 1:
                with curator.ledger.writing() as writer:
                    writer.append("note", {"n": turn}, sealed=os.urandom(large))
    return recording.log


def is_hot(journal: Path) -> bool:
    """Whether SQLite must roll a journal back: not one whose header was never completed, and begins with a zero,
    because nothing was written to the ledger itself before that."""
    return journal.exists() and journal.read_bytes()[:1] not in (b"", b"\0")


def problems(folder: Path, facts: list) -> list[str]:
    """What is wrong with the ledger that a crash has left: it must open and be whole, and know every fact."""
    path = folder / NAME
    try:
        curator = Curator.open(path, people())
        wrong = curator.verify()
        entries = list(curator.ledger.entries())
        if is_hot(path.with_name(NAME + "-journal")):
            wrong.append("a hot journal is left after opening")
        db = sqlite3.connect(path)
        wrong += [line for (line,) in db.execute("PRAGMA integrity_check") if line != "ok"]
        db.close()
        charges = {entry.seq for entry in entries if entry.kind == "charge"}
        released = {entry.body["charge"] for entry in entries if entry.kind == "release"}
        if not released <= charges or len(released) < facts.count("answered"):
            wrong.append("an answer is without its charge or release")
        if entries[-1].seq < max((fact[1] for fact in facts if fact[0] == "committed"), default=1):
            wrong.append("what was committed is lost")
        ask(curator)
        wrong += [] if len(list(curator.ledger.entries())) == len(entries) + 2 else ["it does not go on"]
    except (LedgerError, ReleaseFailed, sqlite3.Error) as error:
        return [f"refused: {error}"]
    return wrong


def crashed_again(folder: Path, rng: random.Random) -> Path:
    """Open the ledger that a crash has left, and crash while its journal is rolled back; return the folder with
    what is left then."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    recording = Recording()
    with recording.on():
        Ledger(folder / NAME)
    twice = folder / "twice"
    twice.mkdir()
    crash(before, recording.log, rng.randint(0, len(recording.log)), twice, rng)
    return twice


def crashes(
    log: list[Operation], key: Path, folder: Path, number: int, again: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Crash at `number` points that lie evenly in the log, after the ledger was made, and with `again` once more
    in the recovery; yield what was wrong after which of them."""
    folder.mkdir()
    first = next(n for n, operation in enumerate(log) if operation.fact == "created") + 1
    for turn in range(number):
        # Every point of the log comes before one comes again: 7919 is a prime number, larger than any log.
        end = first + turn * 7919 % (len(log) - first + 1)
        place = folder / str(turn)
        place.mkdir()
        shutil.copy(key, place)
        # The store makes an empty file, in which SQLite then makes the ledger.
        facts = crash({NAME: b""}, log, end, place, random.Random(turn))
        if again:
            place = crashed_again(place, random.Random(turn))
        if wrong := problems(place, facts):
            yield end, wrong
        shutil.rmtree(folder / str(turn))


def simulated(
    tmp_path: Path, number: int, *, again: bool = False, large: int = 30_000
) -> Iterator[tuple[int, list[str]]]:
    log = recorded(tmp_path / "made", large)
    return crashes(log, tmp_path / "made" / f"{NAME}.key", tmp_path / "crashed", number, again)


def test_after_a_power_cut_at_any_write_or_sync_the_ledger_is_whole(tmp_path):
    assert list(simulated(tmp_path, FEW)) == []


@pytest.mark.slow
def test_after_a_thousand_power_cuts_the_ledger_is_whole(tmp_path):
    assert list(simulated(tmp_path, MANY)) == []


@pytest.mark.slow
def test_after_a_second_power_cut_in_the_recovery_the_ledger_is_whole(tmp_path):
    assert list(simulated(tmp_path, 200, again=True)) == []


@pytest.mark.slow
def test_after_power_cuts_in_a_transaction_that_is_larger_than_the_cache_the_ledger_is_whole(tmp_path):
    """SQLite then writes to the file before the commit."""
    assert list(simulated(tmp_path, 100, large=3_000_000)) == []


def with_settings(monkeypatch, *settings: str) -> None:
    """Let the store's writers use other settings of SQLite than its own."""
    plain = Store._connect

    def connect(self, held, *, write):
        db = plain(self, held, write=write)
        for setting in settings if write else ():
            db.execute(f"PRAGMA {setting}")
        return db

    monkeypatch.setattr(Store, "_connect", connect)


@pytest.mark.parametrize("settings", ["synchronous=FULL", "synchronous=OFF", "journal_mode=MEMORY"])
def test_the_test_has_teeth(tmp_path, monkeypatch, settings):
    """With less than EXTRA, the deletion of a journal may be lost, and with it a commit."""
    with_settings(monkeypatch, settings)
    assert next(simulated(tmp_path, FEW), None) is not None


def operations_of_one_question(folder: Path) -> int:
    """Make a ledger with one answer; return how many operations the next question takes."""
    folder.mkdir()
    ask(Curator.create(folder / NAME, people(), Policy(budget=Budget(epsilon=2))))
    shutil.copytree(folder, folder.with_name("tried"))
    recording = Recording()
    with recording.on():
        ask(Curator.open(folder.with_name("tried") / NAME, people()))
    return len(recording.log)


def kill_at(end: int, folder: Path) -> None:
    """Ask in a child that is killed before an operation of its transactions."""
    child = os.fork()
    if child == 0:

        def kill(number: int, _: Operation) -> int:
            if number == end:
                os.kill(os.getpid(), signal.SIGKILL)
            return 0

        try:
            with Recording(kill).on():
                ask(Curator.open(folder / NAME, people()))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_at_any_write_or_sync_leaves_a_ledger_that_is_whole(tmp_path, every):
    total = operations_of_one_question(tmp_path / "made")
    hot = 0
    for end in range(0, total, every):
        folder = shutil.copytree(tmp_path / "made", tmp_path / str(end))
        kill_at(end, folder)
        hot += is_hot(folder / f"{NAME}-journal")
        assert problems(folder, ["answered", ("committed", 3)]) == [], end
    assert hot


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "code"), [("write", FULL), ("sync", IOERR_FSYNC), ("delete", FULL)])
def test_a_full_or_failing_disk_refuses_and_leaves_a_ledger_that_is_whole(tmp_path, kind, code, every):
    """From one operation on, all of a kind fail, until the process ends."""
    total = operations_of_one_question(tmp_path / "made")
    messages = []
    for end in range(0, total, every):
        folder = shutil.copytree(tmp_path / "made", tmp_path / str(end))
        failing = Recording(lambda n, operation, end=end: code if n >= end and operation.kind == kind else 0)
        curator = Curator.open(folder / NAME, people())
        answered = ["answered"]
        with failing.on():
            try:
                ask(curator)
                answered *= 2
            except (LedgerError, ReleaseFailed) as error:
                messages.append(str(error))
        assert problems(folder, [*answered, ("committed", 3)]) == [], end
    assert messages
    assert code != FULL or all("the disk is full" in message for message in messages)


def test_a_hot_journal_on_read_only_media_is_refused_and_says_why(tmp_path):
    folder = tmp_path / "media"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("file systems can be mounted by root only")
    try:
        total = operations_of_one_question(folder / "made")
        # the last operation deletes the journal of the second transaction
        kill_at(total - 1, folder / "made")
        assert is_hot(folder / "made" / f"{NAME}-journal")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        with pytest.raises(LedgerError, match="read-only here; what a crash left in a journal"):
            Ledger(folder / "made" / NAME)
        shutil.copytree(folder / "made", tmp_path / "copied")
    finally:
        subprocess.run(["umount", folder], check=True)
    assert problems(tmp_path / "copied", ["answered", ("committed", 4)]) == []
