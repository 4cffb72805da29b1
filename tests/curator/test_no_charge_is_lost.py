"""No charge is ever lost: whatever the process does, every answer is counted by a process that only reads."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
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
from discreet.curator import Budget, Curator, Ledger, Policy, books, store, tickets
from discreet.curator.backups import back_up
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


def test_copies_in_the_process_and_readers_of_others_during_transactions_lose_nothing(curator, tmp_path):
    """One thread asks, one copies the file all the time, which drops SQLite's POSIX locks; another process
    opens the ledger and reads it, and would take a journal without a lock for one that a crash left, were it
    not for the lock of our own."""
    stop = threading.Event()
    path = curator.ledger.path
    curator.change_policy(Policy(budget=Budget(epsilon=100)), large_epsilon=True)

    def disturb() -> None:
        while not stop.is_set():
            shutil.copy(path, tmp_path / "copy")

    def read() -> int:
        while True:
            list(Ledger(path).entries())

    thread = threading.Thread(target=disturb)
    reader = os.fork()
    if reader == 0:
        try:
            read()
        finally:
            os._exit(1)
    thread.start()
    given, begun = 0, time.time()
    try:
        # a second, and longer where the machine is busy
        while (passed := time.time() - begun) < 1 or (given <= 10 and passed < 600):
            given += ask(curator)
    finally:
        stop.set()
        thread.join()
        os.kill(reader, signal.SIGKILL)
        status = os.waitpid(reader, 0)[1]
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert given > 10
    assert given == counted(path)


def test_only_sqlite_opens_the_file(curator):
    """Whatever else opens and closes it drops SQLite's locks on a transaction of another thread."""
    path = curator.ledger.path

    def work() -> int:
        opened = []

        def note(event, args) -> None:
            if event == "open" and os.path.basename(str(args[0])) == path.name:
                opened.append(args)

        sys.addaudithook(note)
        again = Curator.open(path, people())
        ask(again)
        again.vault.put(2, "blob", b"data")
        with tickets.Asker(path):
            tickets.wait(path, "nobody")
        assert again.verify() == []
        back_up(again.ledger, path.with_name("copy.ledger"))
        return len(opened)

    assert in_child(work) == 0


def test_another_program_waits_for_a_transaction(curator):
    path = curator.ledger.path
    script = (
        "import sqlite3,sys\ndb=sqlite3.connect(sys.argv[1],timeout=0)\n"
        "try:\n db.execute('begin immediate')\nexcept "
        "sqlite3.OperationalError: sys.exit(9)"
    )

    def writes() -> int:
        return subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode

    with curator.ledger.writing() as writer:
        writer.append("note", {"n": 1})
        assert writes() == 9
    assert writes() == 0
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

    journal = ledger.path.with_name(ledger.path.name + "-journal")
    with ledger.writing() as writer:
        writer.append("note", {"n": 1})
        had_journal = journal.exists()
        assert in_child(work) == 7
        assert in_child(leave) == 0
        assert journal.exists() == had_journal
        writer.append("note", {"n": 3})
    assert [entry.body for entry in ledger.entries(kind="note")] == [{"n": 1}, {"n": 3}]
    assert ledger.verify() == []


FORKS = """
import os, sys
from pathlib import Path
from discreet.curator import Key, Ledger
ledger = Ledger(Path(sys.argv[1]), Key.load(Path(sys.argv[1] + ".key")))
journal = Path(sys.argv[1] + "-journal")
with ledger.writing() as writer:
    writer.append("note", {"n": 1})
    if os.fork() == 0:
        # the whole interpreter is taken down in the child, and all that it refers to is closed
        sys.exit(0)
    os.wait()
    assert journal.exists()
assert not journal.exists()
assert [entry.body for entry in ledger.entries(kind="note")] == [{"n": 1}]
"""


def test_a_child_that_was_forked_inside_a_transaction_and_ends_leaves_the_journal(curator):
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(curator.ledger.path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_a_child_that_was_forked_while_another_thread_wrote_asks_like_any_other(curator):
    """It would inherit SQLite's belief that the file is locked by its own process, for ever."""
    writes, goes_on = threading.Event(), threading.Event()

    def write() -> None:
        with curator.ledger.writing() as writer:
            writer.append("note", {"n": 1})
            writes.set()
            goes_on.wait(1)

    thread = threading.Thread(target=write)
    thread.start()
    writes.wait()
    threading.Timer(0.1, goes_on.set).start()

    def work() -> int:
        signal.alarm(600)  # a child that waits for ever fails the test
        return ask(curator)

    given = in_child(work)
    thread.join()
    assert given == 1 == counted(curator.ledger.path)
    assert len(list(curator.ledger.entries(kind="note"))) == 1


def test_a_charge_that_the_file_has_lost_releases_nothing(curator, monkeypatch, tmp_path):
    """The transaction of the release looks for the charge before anything is let out."""
    old = tmp_path / "old"
    shutil.copy(curator.ledger.path, old)
    real = store.Store.writing

    @contextlib.contextmanager
    def replaced(self):
        with real(self) as transaction:
            yield transaction
        shutil.copy(old, self.path)

    monkeypatch.setattr(store.Store, "writing", replaced)
    with pytest.raises(ReleaseFailed, match="went back"):
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
