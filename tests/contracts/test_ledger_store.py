"""The contract of a ledger's store, the same for every kind: what the curator may rely on without knowing
where entries are kept."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from discreet._errors import LedgerError
from discreet.curator.entries import Row
from discreet.curator.postgres_store import PostgresStore
from discreet.curator.store import LedgerStore, Store

from .. import postgres


def in_database(folder: Path) -> LedgerStore:
    """In a database of its own."""
    if postgres.MISSING is not None:
        pytest.skip(f"PostgreSQL: {postgres.MISSING}")
    server = postgres.server()
    return PostgresStore(folder / "a.ledger", server.address(database=server.database()) + "::books")


KINDS: dict[str, Callable[[Path], LedgerStore]] = {
    "SQLite": lambda folder: Store(folder / "a.ledger"),
    "SQLite, not durable": lambda folder: Store(folder / "a.ledger", durable=False),
    "PostgreSQL": in_database,
}


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    made = KINDS[request.param](tmp_path)
    made.create()
    return made


def row(seq: int, body: str = "{}") -> Row:
    return (seq, "2026-01-01", "note", body, bytes(32), bytes(64), None, None)


def rows(store: LedgerStore) -> list[Row]:
    with store.reading() as db:
        return store.read_rows(db, 1)


def add(store: LedgerStore, body: str = "{}") -> None:
    """Append one row after the last."""
    with store.writing() as transaction:
        last = store.read_rows(transaction.db, 1, limit=-1)
        transaction.insert(row(len(last) + 1, body))


def fork(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            work()
        os._exit(0)
    return pid


def test_what_was_written_is_read_in_order_to_the_letter(store):
    for body in ('{"a":1}', '{"a": 1}', '{"é":"\\u00e9"}'):
        add(store, body)
    assert rows(store) == [row(1, '{"a":1}'), row(2, '{"a": 1}'), row(3, '{"é":"\\u00e9"}')]
    with store.reading() as db:
        assert store.read_rows(db, 2, limit=1) == [row(2, '{"a": 1}')]


def test_it_is_made_once_and_for_its_owner_alone(store):
    assert store.path.stat().st_mode & 0o077 == 0
    before = store.path.read_bytes()
    with pytest.raises(LedgerError, match="exists already"):
        store.create()
    assert store.path.read_bytes() == before
    store.check()


def test_what_raises_is_undone_as_a_whole(store):
    add(store)

    def stopped() -> None:
        with store.writing() as transaction:
            transaction.insert(row(2))
            transaction.insert(row(3))
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        stopped()
    assert rows(store) == [row(1)]


def test_a_process_that_is_killed_in_a_transaction_leaves_nothing(store):
    add(store)

    def die() -> None:
        with store.writing() as transaction:
            transaction.insert(row(2))
            os.kill(os.getpid(), signal.SIGKILL)

    status = os.waitpid(fork(die), 0)[1]
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert rows(store) == [row(1)]
    add(store)
    assert len(rows(store)) == 2


def test_no_row_is_changed_taken_away_or_used_twice(store):
    add(store)
    for statement in ("UPDATE entry SET body = '{}'", "DELETE FROM entry"):
        with pytest.raises(LedgerError, match="append-only"), store.writing() as transaction:
            transaction.db.execute(statement)
    with pytest.raises(LedgerError), store.writing() as transaction:
        transaction.insert(row(1, '{"other":1}'))
    assert rows(store) == [row(1)]


def test_writers_of_many_processes_and_threads_take_turns_and_lose_nothing(store):
    children = [fork(lambda: [add(store) for _ in range(5)]) for _ in range(3)]
    threads = [threading.Thread(target=lambda: [add(store) for _ in range(5)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for child in children:
        os.waitpid(child, 0)
    assert [seq for seq, *_ in rows(store)] == list(range(1, 26))


def test_a_reader_sees_a_transaction_whole_or_not_at_all(store):
    seen, stop = set(), threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.add(len(rows(store)))

    thread = threading.Thread(target=look)
    thread.start()
    for first in range(1, 20, 2):
        with store.writing() as transaction:
            transaction.insert(row(first))
            time.sleep(0.001)
            transaction.insert(row(first + 1))
    stop.set()
    thread.join()
    assert len(rows(store)) == 20
    assert all(number % 2 == 0 for number in seen)


def test_what_was_planted_in_the_file_is_refused(store):
    if isinstance(store, PostgresStore):
        with store._connected() as db:
            db.execute("CREATE TABLE books.planted (x integer)")
    else:
        with store._held(exclusive=True) as held:
            store._connect(held, write=True).execute("CREATE TABLE planted (x)")
    with pytest.raises(LedgerError, match="schema"):
        rows(store)
    with pytest.raises(LedgerError, match="schema"):
        add(store)
