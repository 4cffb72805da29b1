"""No charge is ever lost: whatever the process does, every answer is counted by a process that only reads."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from discreet import Bounds, Public
from discreet._errors import BudgetExceeded, LedgerError, ReleaseFailed
from discreet.curator import Budget, Curator, Ledger, Policy, books, locks, store
from discreet.curator.ledger import Writer
from discreet.mechanisms import noisy_count
from discreet.tables import Memory

from .. import warm

ROOT = Path(__file__).parents[2]
PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")
PRICE = 0.25  # of a budget of 1: four answers, never five


def people():
    return Memory({"age": np.arange(100) % 90}, PUBLIC)


@pytest.fixture
def curator(tmp_path):
    return Curator.create(tmp_path / "people.ledger", people(), Policy(budget=Budget(epsilon=1)))


def ask(curator) -> int:
    """How many answers were given: one, or none if the budget was gone."""
    try:
        curator.ask(noisy_count(PUBLIC, epsilon=PRICE), fresh=True)
    except BudgetExceeded:
        return 0
    return 1


READER = """
from pathlib import Path
from discreet.curator import Ledger, books
ledger = Ledger(Path({path!r}))
assert books.verify(ledger) == [], books.verify(ledger)
print(len(list(ledger.entries(kind="charge"))))
"""


def counted(path) -> int:
    """The charges that another process reads in the file, which must also be whole."""
    done = warm.run(READER.format(path=str(path)), path.parent)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def in_child(work) -> int:
    """Fork, do `work` in the child, and say what it returned: the number of answers."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("parent", [pytest.param("keeps", marks=pytest.mark.slow), "closes", "asks"])
def test_a_forked_child_charges_what_everybody_counts(curator, parent):
    given = ask(curator)
    if parent == "closes":
        curator.ledger.close()

    def work() -> int:
        before = ask(curator)
        counted(curator.ledger.path)  # another process opens and closes the ledger in between
        return before + ask(curator) + ask(curator)

    given += in_child(work)
    if parent == "asks":
        given += ask(curator)
    assert given == 4 == counted(curator.ledger.path)
    assert ask(curator) == 0


def test_a_daemon_that_forked_goes_on_when_its_parent_has_died(curator):
    """The parent forks and dies, as daemons do; `discreet budget` looks in between."""
    script = """
import os, sys, time
from tests.curator.test_no_charge_is_lost import ask, people
from discreet.curator import Curator
curator = Curator.open(sys.argv[1], people())
given = ask(curator)
print(given, flush=True)
if os.fork():
    os._exit(0)
for _ in range(5):
    time.sleep(0.05)
    given += ask(curator)
print(given, flush=True)
"""
    daemon = subprocess.Popen(
        [sys.executable, "-c", script, str(curator.ledger.path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert daemon.stdout.readline() == "1\n"
    looks = [counted(curator.ledger.path) for _ in range(2)]
    given = int(daemon.stdout.read())
    daemon.stdout.close()
    daemon.wait()
    assert looks == sorted(looks)
    assert given == 4 == counted(curator.ledger.path)


def _in_pool(number: int) -> int:
    return ask(_SHARED[0])


_SHARED: list = []


def test_a_pool_of_forked_workers_never_overspends(curator):
    _SHARED[:] = [curator]
    given = ask(curator)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        given += sum(pool.map(_in_pool, range(8)))
    assert given == 4 == counted(curator.ledger.path)


def test_a_copy_of_the_file_in_the_serving_process_changes_nothing(curator, tmp_path):
    """Any open and close of the file drops the POSIX locks of the whole process."""
    given = 0
    for turn in range(3):
        shutil.copy(curator.ledger.path, tmp_path / f"copy{turn}")
        given += ask(curator)
        given += in_child(lambda: ask(Curator.open(curator.ledger.path, people())))
    assert given == 4 == counted(curator.ledger.path)


def test_copies_and_foreign_readers_during_transactions_lose_nothing(curator, tmp_path):
    """One thread asks, one drops the process's POSIX locks all the time, other programs open and close the
    file."""
    stop = threading.Event()
    path = curator.ledger.path
    curator.change_policy(Policy(budget=Budget(epsilon=100)), large_epsilon=True)

    def disturb() -> None:
        while not stop.is_set():
            shutil.copy(path, tmp_path / "copy")

    script = (
        "import sqlite3,sys,time\nend=time.time()+30\nwhile time.time()<end:\n "
        "db=sqlite3.connect(sys.argv[1]);db.execute('select max(seq) from entry').fetchall();db.close()"
    )
    other = subprocess.Popen([sys.executable, "-c", script, str(path)], stderr=subprocess.PIPE)
    thread = threading.Thread(target=disturb)
    thread.start()
    given, begun = 0, time.time()
    try:
        # a second, and longer where the machine is busy
        while (passed := time.time() - begun) < 1 or (given <= 10 and passed < 20):
            try:
                given += ask(curator)
            except LedgerError:  # a lost commit may be refused, never answered
                continue
    finally:
        stop.set()
        thread.join()
        other.kill()
        other.communicate()
    assert given > 10
    assert given <= counted(path)


@pytest.mark.skipif(not locks.HAS_OPEN_FILE_LOCKS, reason="this system has no open-file-description locks")
def test_another_program_waits_for_a_transaction_whose_posix_locks_were_dropped(curator, tmp_path):
    """Else it would take the journal for one that a crash left, and roll the transaction back under it."""
    path = curator.ledger.path
    script = (
        "import sqlite3,sys\ndb=sqlite3.connect(sys.argv[1],timeout=0)\n"
        "try:\n db.execute('select max(seq) from entry').fetchall()\nexcept "
        "sqlite3.OperationalError: sys.exit(9)"
    )

    def looks() -> int:
        return subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode

    with curator.ledger.writing() as writer:
        writer.append("note", {"n": 1})
        shutil.copy(path, tmp_path / "copy")
        assert looks() == 9
    assert looks() == 0
    assert [entry.body for entry in curator.ledger.entries(kind="note")] == [{"n": 1}]
    assert curator.ledger.verify() == []


def test_a_release_that_cannot_be_entered_says_that_the_charge_stays(curator, monkeypatch):
    """A disk that was full after the charge ended in an error that told nothing of it."""
    append = Writer.append

    def full(writer, kind, *rest, **named):
        if kind == "release":
            raise LedgerError("people.ledger cannot be written (the disk is full). Nothing was released.")
        return append(writer, kind, *rest, **named)

    monkeypatch.setattr(Writer, "append", full)
    with pytest.raises(ReleaseFailed, match=r"entry 2 of the ledger.*The charge stays.*the disk is full"):
        ask(curator)
    assert curator.used == PRICE


def test_a_fork_inside_a_transaction_neither_commits_nor_undoes_it(curator):
    ledger = curator.ledger

    def work() -> int:
        with pytest.raises(LedgerError, match="forked"):
            writer.append("charge", {"n": 2})
        return 7

    def leave() -> int:
        """As if the child ended by itself: what it inherited is thrown away, whoever holds it."""
        writer._transaction = writer._before = None
        gc.collect()
        return 0

    with ledger.writing() as writer:
        writer.append("note", {"n": 1})
        assert in_child(work) == 7
        assert in_child(leave) == 0
        writer.append("note", {"n": 3})
    assert [entry.body for entry in ledger.entries(kind="note")] == [{"n": 1}, {"n": 3}]
    assert ledger.verify() == []


def test_a_commit_that_is_not_on_disk_releases_nothing(curator, monkeypatch, tmp_path):
    """Whatever loses a commit, the row is looked for through a connection of its own before anything is let
    out."""
    real = store.Store._require_committed

    def elsewhere(self, held, rows):
        held.db.close()
        shutil.copy(old, self.path)
        real(self, held, rows)

    old = tmp_path / "old"
    shutil.copy(curator.ledger.path, old)
    monkeypatch.setattr(store.Store, "_require_committed", elsewhere)
    with pytest.raises(LedgerError, match="not in the file"):
        ask(curator)
    assert counted(curator.ledger.path) == 0


def test_a_ledger_rolled_back_or_replaced_under_an_open_session_is_refused(curator, tmp_path):
    shutil.copy(curator.ledger.path, tmp_path / "old")
    assert ask(curator) == 1
    shutil.copy(tmp_path / "old", curator.ledger.path)
    with pytest.raises(LedgerError, match="went back"):
        ask(curator)
    curator.ledger.path.unlink()
    with pytest.raises(LedgerError, match="no ledger"):
        ask(curator)
    assert not curator.ledger.path.exists()


PLANTED = {
    "removes charges": "CREATE TRIGGER t AFTER INSERT ON entry WHEN NEW.kind = 'release' BEGIN DELETE FROM entry WHERE "
    "seq >= NEW.seq - 1; END",
    "removes each": "CREATE TRIGGER t AFTER INSERT ON entry BEGIN DELETE FROM entry WHERE seq = NEW.seq; END",
    "ignores": "CREATE TRIGGER t BEFORE INSERT ON entry BEGIN SELECT RAISE(IGNORE); END",
    "a view": "CREATE VIEW v AS SELECT * FROM entry",
    "a table": "CREATE TABLE other (x)",
    "an index": "CREATE UNIQUE INDEX i ON entry (kind, topic)",
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("opened", [True, False])
def test_what_was_planted_into_the_schema_is_refused(curator, name, opened):
    path = curator.ledger.path
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER entry_remains")
    db.execute(PLANTED[name])
    db.commit()
    db.close()
    with pytest.raises(LedgerError, match="schema"):
        ask(curator if opened else Curator.open(path, people()))
    assert any("schema" in line for line in books.verify(curator.ledger))


def test_an_index_that_hides_a_charge_hides_nothing(curator):
    """Indices lie in the file, too: who can write it can take a charge out of them alone."""
    path = curator.ledger.path
    assert ask(curator) == 1
    db = sqlite3.connect(path)
    db.execute("PRAGMA writable_schema=ON")
    kept = db.execute(
        "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE type = 'index'"
    ).fetchall()
    db.execute("DELETE FROM sqlite_master WHERE type = 'index'")
    db.commit()
    db.close()
    for _ in range(2):  # these go into the table only
        db = sqlite3.connect(path)
        rows = db.execute("SELECT * FROM entry").fetchall()
        db.close()
    given = 1 + _without_indices(path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA writable_schema=ON")
    db.executemany("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", kept)
    db.commit()
    db.close()
    assert len(rows) == 3
    fresh = Curator.open(path, people())
    while ask(fresh):
        given += 1
    assert given == 4
    assert len(list(Ledger(path).entries(kind="charge"))) == 4


def _without_indices(path) -> int:
    """One answer by a copy of our code that does not look at the schema."""
    looks = store.SCHEMA
    store.SCHEMA = tuple(row for row in looks if row[0] != "index")
    try:
        return ask(Curator.open(path, people()))
    finally:
        store.SCHEMA = looks


@pytest.mark.parametrize(("heads", "expected"), [([1, 2, 2], []), ([1, 1], ["a wrong total"])])
def test_verify_looks_again_only_where_somebody_wrote_meanwhile(monkeypatch, heads, expected):
    """What is seen between two writes is no problem; what is there while nobody writes is reported at once."""
    looks, heads = iter([["a wrong total"], []]), iter(heads)
    monkeypatch.setattr(books, "_problems", lambda *_: next(looks))
    monkeypatch.setattr(books, "_head", lambda _: next(heads))
    assert books.verify(None) == expected


def test_a_process_that_imports_its_parents_script_is_charged_nothing(tmp_path):
    script = tmp_path / "study.py"
    script.write_text(
        "import multiprocessing\n"
        "import discreet as dp\n"
        "people = dp.open({'age': [40] * 50}, table='people', schema={'age': dp.Bounds(0, 100)},\n"
        "                 unit=dp.rows(), budget=dp.Budget(epsilon=4), ledger='people.ledger')\n"
        "people.sql('SELECT COUNT(*) AS n FROM people', epsilon=1, fresh=True)\n"
        "worker = multiprocessing.get_context('spawn').Process(target=print)\n"
        "worker.start()\n"
        "worker.join()\n"
        "print('spent', people.spent)\n"
    )
    done = warm.run(script, tmp_path)
    assert done.stdout.splitlines()[-1] == "spent 1.0"
    assert "Nothing was charged." in done.stderr
