"""Interactive mechanisms and blobs on a ledger in PostgreSQL: the tests of files, unchanged; machines
that share nothing but the key."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from discreet._errors import LedgerError
from discreet.curator import Budget, Curator, Policy
from discreet.curator.live_mechanisms import InteractiveHandle
from discreet.curator.postgres_store import attach
from discreet.mechanisms import noisy_count

from .. import postgres
from ..contracts.test_ledger_store import fork
from .test_live import people as wards
from .test_live import (
    test_a_refused_question_changes_nothing,
    test_a_restart_goes_on_with_the_same_noisy_threshold,
    test_all_is_paid_at_the_start_and_answers_are_free,
    test_it_halts_for_good_also_when_resumed,
    test_killed_in_the_middle_nothing_is_lost_repeated_or_redrawn,
    test_only_what_was_started_can_be_resumed,
    test_what_it_cannot_afford_is_not_started,
    vector,
    ward,
)
from .test_tickets import (
    asked,
    open_gate,
    seen,
    slow,
    test_a_charge_commits_while_a_question_is_held_at_a_barrier,
    test_a_failure_of_somebody_elses_lost_question_does_not_reach_the_next_asker,
    test_a_lost_question_without_a_description_counts_as_failed,
    test_a_question_that_ends_every_process_that_computes_it_fails_in_the_end,
    test_a_sign_of_life_is_not_inherited_by_forks,
    test_nothing_is_shown_if_the_answer_cannot_be_committed,
    test_questions_of_many_threads_and_processes_are_answered_in_the_order_of_their_tickets,
    test_the_question_of_a_killed_process_is_answered_once_and_first,
    test_two_processes_get_answers_in_the_order_of_their_tickets,
    test_what_halts_while_a_question_waits_refuses_it_in_its_turn,
    until,
)
from .test_tickets import people as askers
from .test_vault import (
    CHARGE,
    PUBLIC,
    test_of_two_who_store_one_version_the_second_is_refused,
    test_readers_and_a_writer_at_the_same_time,
    test_the_number_of_blobs_is_limited,
    test_versions_out_of_order_are_found,
    test_what_does_not_fit_is_refused_without_its_size,
)
from .test_vault import people as vault_people

pytestmark = postgres.needed

# collected here again, with this module's fixtures
SHARED = (
    test_a_charge_commits_while_a_question_is_held_at_a_barrier,
    test_a_failure_of_somebody_elses_lost_question_does_not_reach_the_next_asker,
    test_a_lost_question_without_a_description_counts_as_failed,
    test_a_question_that_ends_every_process_that_computes_it_fails_in_the_end,
    test_a_refused_question_changes_nothing,
    test_a_restart_goes_on_with_the_same_noisy_threshold,
    test_a_sign_of_life_is_not_inherited_by_forks,
    test_all_is_paid_at_the_start_and_answers_are_free,
    test_it_halts_for_good_also_when_resumed,
    test_killed_in_the_middle_nothing_is_lost_repeated_or_redrawn,
    test_nothing_is_shown_if_the_answer_cannot_be_committed,
    test_of_two_who_store_one_version_the_second_is_refused,
    test_only_what_was_started_can_be_resumed,
    test_questions_of_many_threads_and_processes_are_answered_in_the_order_of_their_tickets,
    test_readers_and_a_writer_at_the_same_time,
    test_the_number_of_blobs_is_limited,
    test_the_question_of_a_killed_process_is_answered_once_and_first,
    test_two_processes_get_answers_in_the_order_of_their_tickets,
    test_versions_out_of_order_are_found,
    test_what_does_not_fit_is_refused_without_its_size,
    test_what_halts_while_a_question_waits_refuses_it_in_its_turn,
    test_what_it_cannot_afford_is_not_started,
)


@pytest.fixture
def remote():
    server = postgres.server()
    with server.lent_database() as name:
        yield server.address(database=name) + "::people"


@pytest.fixture
def curator(tmp_path, remote, request):
    """As the module of the test makes it."""
    of = request.function.__module__.rpartition(".")[2]
    source = {"test_vault": vault_people, "test_tickets": askers}.get(of, wards)()
    made = Curator.create(tmp_path / "people.ledger", source, Policy(budget=Budget(epsilon=2)), remote=remote)
    if of == "test_vault":
        made.ask(noisy_count(PUBLIC, epsilon=0.5))
    return made


@pytest.fixture
def machines(tmp_path, remote):
    """Two folders: to the second the key is brought, and nothing else."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    here = Curator.create(
        first / "people.ledger", vault_people(), Policy(budget=Budget(epsilon=2)), remote=remote
    )
    here.ask(noisy_count(PUBLIC, epsilon=0.5))
    shutil.copy2(first / "people.ledger.key", second)
    assert attach(second / "people.ledger", remote)
    return here, Curator.open(second / "people.ledger", vault_people())


def statements(remote, *texts):
    import psycopg

    with psycopg.connect(remote.partition("::")[0], autocommit=True) as db:
        db.execute("SET session_replication_role = replica; SET search_path = people")
        cursor = None
        for text in texts:
            cursor = db.execute(text)
        return cursor.fetchall() if cursor is not None and cursor.description else []


def test_blobs_are_shared_by_machines_and_no_file_is_made(machines, remote):
    here, there = machines
    for data in (b"one", b"", b"three" * 4_000_000):
        here.vault.put(CHARGE, "teacher", data)
        assert there.vault.get(CHARGE, "teacher") == data
    assert there.vault.version(CHARGE, "teacher") == 2
    there.vault.put(CHARGE, "teacher", b"four")
    assert here.vault.get(CHARGE, "teacher") == b"four"
    assert statements(remote, "SELECT count(DISTINCT name) FROM blob") == [(1,)]
    assert not here.vault.folder.exists()
    assert not there.vault.folder.exists()
    assert here.verify() == there.verify() == []
    ((raw,),) = statements(remote, "SELECT data FROM blob")
    assert b"four" not in raw
    there.vault.remove(CHARGE, "teacher")
    assert statements(remote, "SELECT count(*) FROM blob") == [(0,)]


def test_an_older_blob_that_is_put_back_or_taken_away_is_refused(machines, remote):
    here, there = machines
    here.vault.put(CHARGE, "noise", b"first")
    ((old,),) = statements(remote, "SELECT encode(data, 'hex') FROM blob")
    here.vault.put(CHARGE, "noise", b"other")
    statements(remote, f"UPDATE blob SET data = decode('{old}', 'hex')")
    with pytest.raises(LedgerError, match="not the newest"):
        there.vault.get(CHARGE, "noise")
    assert [line for line in there.verify() if "vault" in line]
    statements(remote, "DELETE FROM blob")
    with pytest.raises(LedgerError, match="is missing from the database"):
        there.vault.get(CHARGE, "noise")


def test_orphans_go_at_the_next_start_of_any_machine_and_only_orphans(machines, remote):
    here, there = machines
    here.vault.put(CHARGE, "kept", b"kept")

    def die():
        with here.vault.staged(CHARGE, "lost", b"lost"):
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(fork(die), 0)
    assert statements(remote, "SELECT count(*) FROM blob") == [(2,)]
    with here.vault.staged(CHARGE, "written", b"in the middle") as blob:
        there.vault.sweep()
        assert statements(remote, "SELECT count(*) FROM blob") == [(2,)]
        with here.ledger.writing() as writer:
            blob.commit(writer)
    assert there.vault.get(CHARGE, "written") == b"in the middle"
    assert there.vault.get(CHARGE, "kept") == b"kept"


def test_a_question_of_another_machine_waits_and_is_taken_over_if_that_is_gone(tmp_path, remote):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    here = Curator.create(first / "people.ledger", askers(), Policy(budget=Budget(epsilon=2)), remote=remote)
    shutil.copy2(first / "people.ledger.key", second)
    assert attach(second / "people.ledger", remote)
    there = Curator.open(second / "people.ledger", askers())
    live = here.start(slow(first))
    child = fork(lambda: live.answer("a"))
    until(lambda: "a" in seen(here))
    other = InteractiveHandle(there.ledger, there.source, slow(first), live.number, there._entropy)
    answers = {}
    thread = asked(other, "b", answers)
    until(lambda: len(list(there.ledger.entries(kind="ticket"))) == 2)
    assert not answers
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for question in ("a", "b"):
        open_gate(here, question)
    thread.join(600)
    assert not isinstance(answers["b"], Exception)
    assert seen(here) == ["a", "a", "b"]
    states = [entry.body["version"] for entry in there.ledger.entries(kind="state")]
    assert states == [0, 1, 2]
    assert there.verify() == []


def test_a_live_mechanism_is_answered_on_both_machines(tmp_path, remote):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    here = Curator.create(first / "people.ledger", wards(), Policy(budget=Budget(epsilon=2)), remote=remote)
    shutil.copy2(first / "people.ledger.key", second)
    assert attach(second / "people.ledger", remote)
    there = Curator.open(second / "people.ledger", wards())
    live = here.start(vector())
    other = there.resume(vector(), live.number)
    live.answer(ward(0))
    other.answer(ward(1))
    assert [e.body["version"] for e in here.ledger.entries(kind="state")] == [0, 1, 2]
    assert not list(first.glob("*-asker-*")) + list(second.glob("*-asker-*"))


def test_a_schema_without_the_table_of_blobs_is_refused(machines, remote):
    here, _ = machines
    statements(remote, "DROP TABLE blob")
    with pytest.raises(LedgerError, match="schema"):
        Curator.open(here.ledger.path, vault_people())
    with pytest.raises(LedgerError, match="schema"):
        here.ask(noisy_count(PUBLIC, epsilon=0.25))
