"""`discreet ledger backup`: a copy that can go on; and `discreet ledger verify`, which looks at the vault."""

import json
import os
import signal

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.app.cli import app
from discreet.curator import Budget, Curator, Ledger, Policy, books
from discreet.mechanisms import noisy_count

from .. import postgres
from ..curator.test_vault import CHARGE, PUBLIC, people

runner = CliRunner()


def run(*arguments, code=0):
    result = runner.invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def curator(tmp_path):
    """A ledger with two blobs in its vault."""
    made = Curator.create(tmp_path / "people.ledger", people(), Policy(budget=Budget(epsilon=2)))
    made.ask(noisy_count(PUBLIC, epsilon=0.5))
    made.vault.put(CHARGE, "teacher", b"one")
    made.vault.put(CHARGE, "student", b"two")
    return made


@pytest.fixture
def target(tmp_path):
    (tmp_path / "copies").mkdir()
    return tmp_path / "copies" / "kept.ledger"


def visits(path):
    return dp.open(
        {"age": [3], "who": [1]},
        table="visits",
        schema={"age": dp.Bounds(0, 100), "who": dp.Bounds(0, 10_000)},
        unit="who",
        budget=dp.Budget(epsilon=10),
        ledger=path,
    )


def test_a_user_level_stream_is_fed_on_after_its_ledger_was_lost_and_restored(tmp_path, target):
    terms = {"epsilon": 8, "horizon": 9, "rows": 1, "participations": 1}
    text = "SELECT COUNT(*) AS n FROM visits"
    crowd = {"age": [3] * 40, "who": list(range(40))}
    stream = visits(tmp_path / "visits.ledger").stream(text, **terms)
    stream.feed(crowd)
    made = run("ledger", "backup", tmp_path / "visits.ledger", target)
    assert made.stdout.strip() == str(Ledger(target).anchor) == str(Ledger(tmp_path / "visits.ledger").anchor)
    vault = target.with_name("kept.ledger-vault")
    assert {
        path.stat().st_mode & 0o777 for path in (*target.parent.glob("kept.ledger*"), *vault.iterdir())
    } == {
        0o600,
        0o700,
    }
    assert vault.stat().st_mode & 0o777 == 0o700
    for lost in tmp_path.glob("visits.ledger*"):
        lost.rename(tmp_path / f"lost{lost.name}")
    # restored under its old name, with all that lies beside it
    for file in target.parent.iterdir():
        file.rename(tmp_path / file.name.replace("kept", "visits"))
    restored = visits(tmp_path / "visits.ledger")
    again = restored.stream(text, **terms, number=stream.number)
    assert again.history == stream.history
    # everybody has taken part already: the record of who came is in the vault
    again.feed(crowd)
    assert abs(again.value - 40) < again.error(1 - 1e-9)
    assert restored.curator.verify() == []
    run("ledger", "verify", tmp_path / "visits.ledger")


def test_it_tells_whether_the_key_was_copied(curator, target):
    kept = json.loads(run("ledger", "backup", curator.ledger.path, target, "--json").stdout)
    assert kept == {"whole": True, "problems": [], "anchor": str(curator.ledger.anchor), "key": True}
    assert Curator.open(target, people()).vault.get(CHARGE, "student") == b"two"
    key = curator.ledger.path.with_name("people.ledger.key")
    key.rename(key.with_name("elsewhere"))
    made = run("ledger", "backup", curator.ledger.path, target.with_name("second.ledger"))
    assert "was not copied" in made.stderr
    assert not target.with_name("second.ledger.key").exists()


@pytest.mark.parametrize("end", ["", ".key", "-vault", "-journal"])
def test_nothing_is_overwritten(curator, target, end):
    there = target.with_name(target.name + end)
    there.write_bytes(b"precious")
    assert "exists already" in str(run("ledger", "backup", curator.ledger.path, target, code=1).exception)
    assert there.read_bytes() == b"precious"
    assert list(target.parent.iterdir()) == [there]


def test_a_backup_that_cannot_be_made_leaves_nothing(curator, target, monkeypatch):
    missing = target.parent / "nowhere" / "kept.ledger"
    assert "no backup" in str(run("ledger", "backup", curator.ledger.path, missing, code=1).exception)
    written, plain = [], os.fsync

    def full(handle):
        written.append(handle)
        # the blobs and their folder can be written, the key cannot
        if len(written) > 3:
            raise OSError(28, "No space left on device")
        plain(handle)

    monkeypatch.setattr(os, "fsync", full)
    result = run("ledger", "backup", curator.ledger.path, target, code=1)
    assert "No space left on device" in str(result.exception)
    assert list(target.parent.iterdir()) == []


def test_a_backup_is_whole_while_others_write(curator, target):
    child = os.fork()
    if child == 0:
        try:
            while True:
                curator.vault.put(CHARGE, "teacher", os.urandom(1000))
        finally:
            os._exit(1)
    try:
        heads = []
        for turn in range(10):
            run("ledger", "backup", curator.ledger.path, target.with_name(f"{turn}.ledger"))
            heads.append(Ledger(target.with_name(f"{turn}.ledger")).anchor.seq)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert heads == sorted(heads)
    assert heads[0] < heads[-1]


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_verify_and_backup_report_a_blob_that_is_lost_or_damaged(curator, target, damage):
    blob = next(curator.vault.folder.iterdir())
    if damage == "missing":
        blob.unlink()
    else:
        blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    (problem,) = books.verify(Ledger(curator.ledger.path))
    assert "vault" in problem
    found = json.loads(run("ledger", "verify", curator.ledger.path, "--json", code=1).stdout)
    assert found["problems"] == [problem]
    assert "vault" in run("ledger", "backup", curator.ledger.path, target, code=1).stderr


def test_an_export_is_verified_without_the_vault(curator, tmp_path):
    run("ledger", "export", curator.ledger.path, "--out", tmp_path / "people.jsonl")
    run("ledger", "verify", tmp_path / "people.jsonl")


@postgres.needed
def test_a_ledger_in_a_database_is_backed_up_there(tmp_path, target):
    server = postgres.server()
    remote = server.address(database=server.database()) + "::people"
    policy = Policy(budget=Budget(epsilon=2))
    Curator.create(tmp_path / "people.ledger", people(), policy, remote=remote)
    refused = run("ledger", "backup", tmp_path / "people.ledger", target, code=1)
    assert "pg_dump --schema=people" in str(refused.exception)
