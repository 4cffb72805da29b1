"""Spill files: private, gone with the engine, and after a crash with the next start."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import discreet as dp
from discreet.tables import files
from discreet.tables.engines.duckdb_reading import connection

VICTIM = """
import os, sys
from discreet import Bounds, Public
from discreet.tables import connect
engine = connect({"age": [1, 2, 3]}, Public(schema={"age": Bounds(0, 9)}, table="people"))
print(engine._con.execute("SELECT current_setting('temp_directory')").fetchone()[0], flush=True)
sys.stdin.readline()
os._exit(1)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_the_next_start_removes_what_a_crash_left_and_nothing_else(folder):
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    left = Path(victim.stdout.readline().strip())
    assert left.parent == folder
    (left / "duckdb_temp_storage.tmp").write_text("rows")
    own = files.Spill()
    assert left.exists(), "its process still runs"
    victim.communicate("\n")
    fresh = folder / (files.PREFIX + "half-made")
    fresh.mkdir()
    (folder / "other").mkdir()
    assert files.sweep() == [left]
    assert not left.exists()
    assert own.path.exists()
    assert fresh.exists()
    os.utime(fresh, (time.time() - 10**6,) * 2)
    assert files.sweep() == [fresh]
    own.remove()
    assert [path.name for path in folder.iterdir()] == ["other"]


def test_a_folder_that_is_being_made_is_not_taken_for_left(monkeypatch):
    flock = fcntl.flock

    def sweep_first(handle, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        assert files.sweep() == []
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    own = files.Spill()
    assert files.sweep() == []
    assert own.path.exists()
    own.remove()


def test_a_forked_child_leaves_its_parents_folder(folder):
    own = files.Spill()
    child = os.fork()
    if child == 0:
        own.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert own.path.stat().st_mode & 0o777 == 0o700
    assert files.sweep() == []
    own.remove()


def test_what_does_not_fit_into_memory_goes_to_the_private_folder_and_goes_with_the_engine(folder):
    con, _ = connection(1, "60MB")
    con.execute(
        "CREATE TEMP TABLE t AS SELECT 'p' || (i * 7919 % 1000003)::VARCHAR || repeat('x', 40) AS n "
        "FROM range(1500000) r(i)"
    )
    spilled = [file for file in folder.rglob("*") if file.is_file() and file.name != "in-use"]
    assert sum(file.stat().st_size for file in spilled) > 10**6
    assert {file.parent.stat().st_mode & 0o777 for file in spilled} == {0o700}
    con.close()
    del con
    gc.collect()
    assert list(folder.iterdir()) == []


TRIAL = """
import discreet as dp, os, sys
session = dp.open({"x": [1]}, table="t", schema={"x": dp.Bounds(0, 1)}, unit=dp.rows(),
                  budget=dp.Budget(epsilon=1), ledger=":memory:")
print("ready", flush=True)
sys.stdin.readline()
os._exit(1)
"""


def test_a_trial_ledger_is_gone_with_its_session_after_a_refusal_and_after_a_crash(folder):
    def left():
        gc.collect()
        return sorted(path.name[:15] for path in folder.iterdir() if not path.name.startswith(files.PREFIX))

    table = {"table": "t", "schema": {"x": dp.Bounds(0, 1)}, "unit": dp.rows(), "ledger": ":memory:"}
    for terms in ({}, {"budget": dp.Budget(epsilon=1, delta=0.5)}, {"budget": "much"}):
        with pytest.raises(dp.DiscreetError, match=r"budget|delta"):
            dp.open({"x": [1]}, **table, **terms)
    assert left() == []
    victim = subprocess.Popen(
        [sys.executable, "-c", TRIAL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout.readline() == "ready\n"
    session = dp.open({"x": [1]}, **table, budget=dp.Budget(epsilon=1))
    assert left() == ["discreet-trial-"] * 2, "its process still runs"
    victim.communicate("\n")
    again = dp.open({"x": [1]}, **table, budget=dp.Budget(epsilon=1))
    assert left() == ["discreet-trial-"] * 2, "what the crash left was removed"
    del session, again
    assert left() == []
