"""The crash and concurrency tests of a ledger, unchanged, on one whose entries are in PostgreSQL; and what is its
own: machines that share it, passwords, what was planted, servers that die."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal

import pytest

import discreet as dp
from discreet._errors import InvalidInput, LedgerError
from discreet.curator import Budget, Curator, Key, Ledger, Period, Policy, postgres_store
from discreet.curator.postgres_store import PostgresStore, attach
from discreet.mechanisms import noisy_count
from discreet.streaming import counter
from discreet.streaming.stream_statistics import Presence
from discreet.tables import Memory

from .. import postgres
from .test_ledger import (
    test_an_export_verifies_without_the_file_and_holds_no_secret,
    test_an_untouched_ledger_verifies_also_against_its_anchors,
    test_sealed_state_opens_only_in_its_place,
    test_the_newest_entry_of_a_kind_and_topic,
    test_threads_take_turns,
    test_what_raises_inside_a_transaction_leaves_nothing,
    test_without_a_key_it_can_be_read_but_not_written,
)
from .test_no_charge_is_lost import (
    PRICE,
    PUBLIC,
    ask,
    in_child,
    people,
    test_a_daemon_that_forked_goes_on_when_its_parent_has_died,
    test_a_fork_inside_a_transaction_neither_commits_nor_undoes_it,
    test_a_forked_child_charges_what_everybody_counts,
    test_a_pool_of_forked_workers_never_overspends,
)

pytestmark = postgres.needed

# collected here again, with this module's fixtures
SHARED = (
    test_a_daemon_that_forked_goes_on_when_its_parent_has_died,
    test_a_fork_inside_a_transaction_neither_commits_nor_undoes_it,
    test_a_forked_child_charges_what_everybody_counts,
    test_a_pool_of_forked_workers_never_overspends,
    test_an_export_verifies_without_the_file_and_holds_no_secret,
    test_an_untouched_ledger_verifies_also_against_its_anchors,
    test_sealed_state_opens_only_in_its_place,
    test_the_newest_entry_of_a_kind_and_topic,
    test_threads_take_turns,
    test_what_raises_inside_a_transaction_leaves_nothing,
    test_without_a_key_it_can_be_read_but_not_written,
)


@pytest.fixture
def remote():
    server = postgres.server()
    with server.lent_database() as name:
        yield server.address(database=name) + "::people"


@pytest.fixture
def curator(tmp_path, remote):
    return Curator.create(
        tmp_path / "people.ledger", people(), Policy(budget=Budget(epsilon=1)), remote=remote
    )


@pytest.fixture
def ledger(tmp_path, remote):
    key = Key.create(tmp_path / "a.key")
    ledger = Ledger.create(tmp_path / "a.ledger", key, {"about": "a test"}, remote=remote)
    for i in range(5):
        with ledger.writing() as writer:
            topic = "ann" if i % 2 else "bob"
            writer.append("charge", {"n": i}, topic=topic, sealed=b"secret" if i == 3 else None)
    return ledger


def counted(path) -> int:
    """The charges that anybody without the key reads; the chain must be whole."""
    opened = Ledger(path)
    assert opened.verify() == []
    return len(list(opened.entries(kind="charge")))


def run(remote: str, *statements: str) -> None:
    """What an owner of the database could do, triggers switched off."""
    import psycopg

    with psycopg.connect(remote.partition("::")[0], autocommit=True) as db:
        db.execute("SET session_replication_role = replica; SET search_path = people")
        for statement in statements:
            db.execute(statement)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("""UPDATE entry SET body = '{"n":9}' WHERE seq = 3""", "entry 3 does not follow"),
        ("UPDATE entry SET topic = NULL WHERE seq = 4", "entry 4 does not follow"),
        ("UPDATE entry SET sealed = NULL WHERE seq = 5", "entry 5 does not follow"),
        ("DELETE FROM entry WHERE seq = 3", "entry 3 is missing"),
        (
            "UPDATE entry SET signature = decode(repeat('00', 64), 'hex') WHERE seq = 6",
            "entry 6 is not signed",
        ),
    ],
)
def test_tampering_is_found(ledger, remote, statement, problem):
    run(remote, statement)
    assert any(problem in line for line in ledger.verify())


PLANTED = [
    "CREATE RULE gone AS ON INSERT TO entry DO INSTEAD NOTHING",
    "CREATE TABLE more (x integer)",
    "ALTER TABLE entry DISABLE TRIGGER entry_stays",
    "DROP TRIGGER entry_stays ON entry; CREATE TRIGGER entry_stays BEFORE UPDATE OR DELETE ON entry "
    "FOR EACH ROW WHEN (false) EXECUTE FUNCTION refuse()",
    "DROP TRIGGER entry_remains ON entry",
    "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "ALTER TABLE entry ALTER kind SET DEFAULT 'note'",
    "ALTER TABLE entry ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE entry DROP CONSTRAINT entry_pkey",
    "CREATE TABLE heir () INHERITS (entry)",
    "CREATE FUNCTION people.length(text) RETURNS integer LANGUAGE sql AS 'SELECT 0'",
    "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
    "CREATE TRIGGER z BEFORE INSERT ON entry FOR EACH ROW EXECUTE FUNCTION f()",
]


@pytest.mark.parametrize("statement", PLANTED)
def test_what_was_planted_into_the_schema_is_refused(curator, remote, statement):
    assert ask(curator) == 1
    run(remote, statement)
    for opened in (lambda: curator, lambda: Curator.open(curator.ledger.path, people())):
        with pytest.raises(LedgerError, match="schema"):
            ask(opened())
    assert Ledger(curator.ledger.path).verify()


def test_a_rollback_of_the_database_under_an_open_session_is_refused(curator, remote):
    given = ask(curator) + ask(curator)
    run(remote, "DELETE FROM entry WHERE seq > (SELECT max(seq) - 2 FROM entry)")
    assert given == 2
    with pytest.raises(LedgerError, match="went back"):
        ask(curator)


def test_machines_share_one_budget(tmp_path, remote, monkeypatch):
    """Another machine is another folder: the key is brought there, nothing else."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for folder in (first, second, third):
        folder.mkdir()
    options = {"schema": PUBLIC, "ledger": remote}
    data = {"age": list(range(100))}
    monkeypatch.chdir(first)
    here = dp.open(data, **options, budget=Budget(epsilon=1))
    monkeypatch.chdir(second)
    with pytest.raises(LedgerError, match=r"Bring people\.ledger\.key"):
        dp.open(data, **options)
    shutil.copy2(first / "people.ledger.key", second)
    there = dp.open(data, **options)
    given = sum(ask(session.curator) for _ in range(3) for session in (here, there))
    assert given == 4 == counted(first / "people.ledger") == counted(second / "people.ledger")
    again = dp.open(data, **{**options, "ledger": second / "people.ledger"})
    assert ask(again.curator) == 0
    monkeypatch.chdir(third)
    Key.create(third / "people.ledger.key")
    with pytest.raises(LedgerError, match="is not the one"):
        dp.open(data, **options)


def hurry(path: str, box) -> None:
    curator = Curator.open(path, people())
    box.put(sum(ask(curator) for _ in range(3)))


@pytest.mark.slow
def test_processes_with_connections_of_their_own_never_overspend(curator):
    context = multiprocessing.get_context("spawn")
    box = context.Queue()
    workers = [context.Process(target=hurry, args=(str(curator.ledger.path), box)) for _ in range(3)]
    for worker in workers:
        worker.start()
    given = sum(box.get(timeout=600) for _ in workers)
    for worker in workers:
        worker.join()
    assert given == 4 == counted(curator.ledger.path)


def test_a_process_that_is_killed_in_a_transaction_holds_nobody_up(curator):
    def die() -> int:
        with curator.ledger.writing() as writer:
            writer.append("charge", {})
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert in_child(die) == -signal.SIGKILL
    assert ask(curator) == 1 == counted(curator.ledger.path)


def test_a_server_that_ends_the_connection_charges_and_releases_nothing(curator, remote):
    """In the middle of a transaction: the commit is never acknowledged."""

    def cut() -> None:
        with curator.ledger.writing() as writer:
            writer.append("charge", {})
            run(
                remote,
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted",
            )

    with pytest.raises(LedgerError, match="Nothing was released"):
        cut()
    assert counted(curator.ledger.path) == 0
    assert ask(curator) == 1


def test_the_database_cannot_be_reached(curator, tmp_path):
    pointer = curator.ledger.path
    text = pointer.read_bytes()
    pointer.write_bytes(text.replace(b"port=", b"port=1"))
    with pytest.raises(LedgerError, match="cannot be reached") as failed:
        Ledger(pointer)
    assert failed.value.__cause__ is None


def test_a_ledger_is_never_overwritten_and_names_are_checked(tmp_path, remote, curator):
    with pytest.raises(LedgerError, match="already"):
        Curator.create(tmp_path / "b.ledger", people(), Policy(budget=Budget(epsilon=9)), remote=remote)
    assert not (tmp_path / "b.ledger").exists()
    assert not (tmp_path / "b.ledger.key").exists()
    assert curator.policy.budget.epsilon == 1
    for name in ("A", 'a"b', "a b", "a;b", "ä", "1"):
        with pytest.raises(InvalidInput, match="cannot name a ledger"):
            PostgresStore(tmp_path / "c.ledger", remote.replace("people", name))
    with pytest.raises(InvalidInput, match="PGPASSWORD"):
        PostgresStore(tmp_path / "c.ledger", "postgresql://a:secret@h/d::x")
    with pytest.raises(LedgerError, match="another ledger"):
        attach(curator.ledger.path, remote + "x")


def test_a_ledger_that_nothing_can_point_to_is_taken_back(tmp_path, remote, monkeypatch):
    policy = Policy(budget=Budget(epsilon=1))
    with monkeypatch.context() as full:
        full.setattr(PostgresStore, "point", lambda store: (_ for _ in ()).throw(LedgerError("no room.")))
        with pytest.raises(LedgerError, match="no room"):
            Curator.create(tmp_path / "people.ledger", people(), policy, remote=remote)
    assert not PostgresStore(tmp_path / "people.ledger", remote).exists()
    assert list(tmp_path.iterdir()) == []
    assert Curator.create(tmp_path / "people.ledger", people(), policy, remote=remote).used == 0


def test_a_role_that_may_only_insert_and_select_is_enough(curator, remote):
    run(remote, "GRANT USAGE ON SCHEMA people TO reader", "GRANT SELECT, INSERT ON entry TO reader")
    pointer = curator.ledger.path
    pointer.write_bytes(pointer.read_bytes().replace(b"owner@", b"reader@"))
    poorer = Curator.open(pointer, people())
    poorer.ask(noisy_count(PUBLIC, epsilon=PRICE))
    assert counted(pointer) == 1


def test_a_role_without_rights_on_blobs_is_refused_before_the_charge(tmp_path, remote):
    facts = dp.Public(schema={"age": dp.Bounds(0, 100)}, unit=dp.Unit("who"), table="visits")
    source = Memory({"who": [1, 2], "age": [3, 4]}, facts)
    path = tmp_path / "v.ledger"
    Curator.create(path, source, Policy(budget=Budget(epsilon=1)), remote=remote)
    run(remote, "GRANT USAGE ON SCHEMA people TO reader", "GRANT SELECT, INSERT ON entry TO reader")
    path.write_bytes(path.read_bytes().replace(b"owner@", b"reader@"))
    poorer = Curator.open(path, source)
    stream = counter(facts, Presence(), epsilon=0.5, horizon=5)
    with pytest.raises(LedgerError, match="Nothing was charged"):
        poorer.start(stream)
    assert counted(path) == 0
    run(remote, "GRANT SELECT, INSERT, DELETE ON blob TO reader")
    poorer.start(stream)
    assert counted(path) == 1


@pytest.fixture
def sent(monkeypatch):
    """The statements that this process sends, each part of those that were sent together; "connect" for a new
    connection."""
    import psycopg

    texts: list[str] = []
    execute, connect = psycopg.Connection.execute, psycopg.connect

    def executed(db, query, *more, **options):
        texts.extend(part for part in str(query).split(";") if part.strip())
        return execute(db, query, *more, **options)

    def connected(*more, **options):
        texts.append("connect")
        return connect(*more, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", executed)
    monkeypatch.setattr(psycopg, "connect", connected)
    return texts


def sql(session, limit: int) -> float:
    answer = session.sql(f"SELECT COUNT(*) AS n FROM visits WHERE age < {limit}", epsilon=0.01)
    return float(next(iter(answer))[0])


@pytest.mark.parametrize("per", [None, Period(column="month", total="unlimited")], ids=["one", "by month"])
def test_a_question_takes_at_most_12_statements_on_one_connection(tmp_path, remote, sent, monkeypatch, per):
    monkeypatch.chdir(tmp_path)
    schema = {"age": dp.Bounds(0, 100), "month": dp.Categories(["a", "b"])}
    data = {"age": list(range(100)), "month": ["a", "b"] * 50}
    public = dp.Public(schema=schema, table="visits")
    session = dp.open(data, schema=public, ledger=remote, budget=Budget(epsilon=1, per=per))
    sql(session, 1)
    del sent[:]
    first = sql(session, 2)
    assert 3 <= len(sent) <= 12
    assert not [text for text in sent if "connect" in text]
    charged = [entry.seq for entry in session.ledger.entries(kind="charge")]
    del sent[:]
    assert sql(session, 2) == first
    assert len(sent) <= 6
    assert [entry.seq for entry in session.ledger.entries(kind="charge")] == charged


def kill_all(remote: str) -> None:
    """What a restart of the server, or an administrator, does to all connections."""
    run(
        remote,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid()",
    )


def test_a_connection_that_ended_while_it_was_kept_is_opened_anew(curator, remote, sent):
    assert ask(curator) == 1
    kill_all(remote)
    del sent[:]
    assert ask(curator) == 1
    # that of `kill_all` is not counted
    assert sent.count("connect") == 1
    assert counted(curator.ledger.path) == 2


def test_a_connection_that_ends_before_the_rows_are_sent_charges_nothing_and_another_is_opened(
    curator, remote
):
    def cut() -> None:
        with curator.ledger.writing() as writer:
            writer.append("charge", {})
            kill_all(remote)

    before = ask(curator)
    with pytest.raises(LedgerError, match="Nothing was released"):
        cut()
    assert before == 1 == counted(curator.ledger.path)
    assert ask(curator) == 1
    assert counted(curator.ledger.path) == 2


def test_a_refusal_keeps_the_connection_and_leaves_no_lock(curator, remote, sent):
    asked = ask(curator)
    del sent[:]
    with pytest.raises(dp.BudgetExceeded):
        curator.ask(noisy_count(PUBLIC, epsilon=7))
    assert "connect" not in sent
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    import psycopg

    with psycopg.connect(remote.partition("::")[0]) as db:
        assert db.execute(locks).fetchone() == (0,)
    assert asked == 1 == counted(curator.ledger.path)


def test_a_forked_child_opens_a_connection_of_its_own(curator, sent):
    assert ask(curator) == 1

    def child() -> int:
        del sent[:]
        given = ask(curator)
        return 100 * given + sent.count("connect")

    assert in_child(child) == 101
    del sent[:]
    assert ask(curator) == 1
    assert "connect" not in sent
    assert counted(curator.ledger.path) == 3


def test_who_goes_around_the_lock_makes_the_second_commit_fail(curator, remote):
    """Somebody else's row takes the number that this transaction was about to use."""

    def overtaken() -> None:
        with curator.ledger.writing() as writer:
            writer.append("charge", {})
            run(
                remote,
                "INSERT INTO entry SELECT seq + 1, time, 'note', '{}', hash, signature, NULL, NULL FROM entry "
                "ORDER BY seq DESC LIMIT 1",
            )

    with pytest.raises(LedgerError, match="duplicate key"):
        overtaken()
    assert list(Ledger(curator.ledger.path).entries(kind="charge")) == []


def test_many_rows_are_sent_in_parts_and_are_there_or_not(curator, monkeypatch):
    monkeypatch.setattr(postgres_store, "_ROWS", 3)

    def write(fail: bool) -> None:
        with curator.ledger.writing() as writer:
            for n in range(7):
                writer.append("note", {"n": n})
            rows = writer._transaction.rows
            if fail:
                rows[-1] = rows[0]

    with pytest.raises(LedgerError, match="duplicate key"):
        write(fail=True)
    assert list(curator.ledger.entries(kind="note")) == []
    write(fail=False)
    assert [entry.body["n"] for entry in curator.ledger.entries(kind="note")] == list(range(7))
    assert curator.verify() == []
