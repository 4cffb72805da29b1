"""Views, live questions, tampered bodies, keys, links, full disks: what an operator or an intruder does to a
ledger."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import discreet as dp
from discreet import Bounds, Categories, Halted, InvalidInput, Public
from discreet._errors import LedgerError, ReleaseFailed
from discreet.curator import Budget, Curator, Key, Ledger, Policy, books
from discreet.mechanisms import (
    AddNoise,
    CellCounts,
    Count,
    IntegerLaplace,
    Sensitivity,
    Sequential,
    SparseVector,
    Trusted,
    noisy_count,
)
from discreet.mechanisms.protocols import FAILURES
from discreet.tables import Memory
from discreet.tables.source import TimeLimit

ROOT = Path(__file__).parents[2]
PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")
VISITS = {"day": ["2026-01-03"] * 50 + ["2026-02-03"] * 50, "cost": [10] * 100}
SCHEMA = {"day": dp.Dates("2020-01-01", "2040-01-01"), "cost": Bounds(0, 100)}


@pytest.fixture
def people():
    return Memory({"age": np.arange(100) % 90}, PUBLIC)


@pytest.fixture
def curator(people, tmp_path):
    return Curator.create(tmp_path / "people.ledger", people, Policy(budget=Budget(epsilon=2)))


def per(every):
    return Budget(epsilon=1, per=dp.Period(column="day", every=every))


def test_a_view_of_periods_does_not_outlive_a_change_of_policy():
    clinic = dp.open(
        VISITS, schema=SCHEMA, budget=per("month"), ledger=":memory:", table="visits", unit=dp.rows()
    )
    january = clinic.during("2026-01")
    clinic.curator.change_policy(Policy(budget=per("week")))
    with pytest.raises(InvalidInput, match="Choose periods again"):
        january.sql("SELECT COUNT(*) AS n FROM visits", epsilon=1)
    with pytest.raises(InvalidInput, match="Choose periods again"):
        january.curator.enter(dp.accounting.PureDP(epsilon=0.5), "elsewhere")
    week = clinic.during("2026-W01")
    week.sql("SELECT COUNT(*) AS n FROM visits", epsilon=1)
    assert clinic.curator.verify() == []
    clinic.curator.change_policy(Policy(budget=Budget(epsilon=5)))
    with pytest.raises(InvalidInput, match="Choose periods again"):
        week.sql("SELECT COUNT(*) AS n FROM visits", epsilon=0.5)


def test_period_names_with_commas_are_not_taken_for_several():
    names = ["a", "b", "a, b", "c", 'b"', "a, b, c"]
    schema = {"ward": Categories(names)}
    data = {"ward": names * 20}
    budget = Budget(epsilon=9, per=dp.Period(column="ward"))
    clinic = dp.open(data, schema=schema, budget=budget, ledger=":memory:", table="visits", unit=dp.rows())
    views = [("a", "b"), ("a, b",), ("a, b", "c"), ("a, b, c",), ("a", "b", "c"), ('b"',)]
    versions = {clinic.during(*view).public for view in views}
    assert len(versions) == len(views)
    for view in views:
        clinic.during(*view).sql("SELECT COUNT(*) AS n FROM visits", epsilon=0.5)
    assert len(list(clinic.ledger.entries(kind="charge"))) == len(views)
    assert clinic.curator.verify() == []


def vector(**options):
    return SparseVector(public=PUBLIC, threshold=200, epsilon=1, **options)


def failing(error):
    def function(source):
        list(source.batches(["age"]))
        raise error

    return Trusted(function=function, claimed=Sensitivity(linf=1))


@pytest.mark.parametrize(
    "error", [ValueError("17 rows"), TimeLimit("late"), InvalidInput("17 rows"), MemoryError(), Halted("17")]
)
def test_a_live_question_that_fails_after_data_was_read_is_entered_and_counts(curator, error):
    live = curator.start(vector(questions=3))
    with pytest.raises(ReleaseFailed, match="counts as asked") as failed:
        live.answer(failing(error))
    assert "17" not in str(failed.value)
    state = curator.ledger.last("state")
    assert state.body["failed"]
    assert state.body["version"] == 1
    live.answer(Count())
    live.answer(Count())
    with pytest.raises(Halted, match="declared questions were asked, so this has halted"):
        live.answer(Count())
    assert curator.verify() == []


def test_failing_again_and_again_halts_it(curator):
    live = curator.start(vector())
    for _ in range(FAILURES):
        with pytest.raises(ReleaseFailed, match="reason is withheld"):
            live.answer(failing(ZeroDivisionError()))
    with pytest.raises(Halted, match="failed after data was read"):
        live.answer(Count())
    with pytest.raises(Halted, match="failed after data was read"):
        curator.resume(vector(), live.number).answer(Count())


def test_an_interrupted_question_is_entered_too(curator):
    live = curator.start(vector())
    with pytest.raises(KeyboardInterrupt):
        live.answer(failing(KeyboardInterrupt()))
    assert curator.ledger.last("state").body["failed"]


def test_statistics_too_long_to_hold_are_refused_before_the_charge(tmp_path):
    public = Public(schema={"x": Bounds(0, 1), "y": Bounds(0, 1)}, table="places")
    curator = Curator.create(
        tmp_path / "l", Memory({"x": [0.5], "y": [0.5]}, public), Policy(budget=Budget(epsilon=2))
    )
    statistic = CellCounts(x="x", y="y", cells=10**5)
    huge = AddNoise(public=public, statistic=statistic, noise=IntegerLaplace.for_epsilon(1))
    with pytest.raises(InvalidInput, match="10,000,000,000 entries"):
        curator.ask(huge)
    with pytest.raises(InvalidInput, match="10,000,000,000 entries"):
        curator.ask(Sequential(mechanisms=(noisy_count(public, epsilon=1), huge)))
    assert list(curator.ledger.entries(kind="charge")) == []


BODIES = [
    "{}",
    "[]",
    "null",
    "3",
    "{",
    '{"charge":1e999}',
    '{"charge": 1}',
    '{"charge":1,"charge":2}',
    '{"charge":"x"}',
    '{"charge":null}',
    '{"event":{"type":"accounting.PureDP","epsilon":-1},"analyst":"steward"}',
    '{"event":{"type":"os.system"},"analyst":3}',
    '{"event":5}',
    '{"policy":{"type":"curator.Budget"}}',
    '{"spent":[1],"event":{"type":"accounting.PureDP","epsilon":1},"analyst":"steward"}',
    '{"steps":"x","event":{"type":"accounting.NoOp"},"analyst":"steward"}',
    '{"charge":2,"from":"a","to":{}}',
    "[" * 100_000,
    '{"a":' * 5000,
    '{"n":' + "9" * 5000 + "}",
    '{"charge":2,"version":"x"}',
    '{"public":{"type":"public.Public"},"policy":null,"key":"zz"}',
    '"\\ud800"',
]
KINDS = [
    "charge",
    "release",
    "failed",
    "state",
    "segment",
    "checkpoint",
    "account",
    "policy",
    "served",
    "open",
    "anything",
]


@pytest.mark.parametrize("kind", KINDS)
def test_verify_reports_and_never_crashes_whatever_a_key_has_signed(people, tmp_path, kind):
    """Also what was signed by a key of the intruder's own, and is one chain."""
    honest = tmp_path / "honest.ledger"
    curator = Curator.create(honest, people, Policy(budget=Budget(epsilon=2)), durable=False)
    curator.ask(noisy_count(PUBLIC, epsilon=1))
    curator.ledger.close()
    for number, body in enumerate(BODIES):
        path = tmp_path / f"{number}.ledger"
        shutil.copy(honest, path)
        _append(path, curator.ledger.key, kind, body)
        problems = books.verify(Ledger(path))
        assert all(isinstance(line, str) for line in problems)
        if kind in ("charge", "release", "state", "segment") or not body.startswith("{"):
            assert problems != [], body


def _append(path: Path, key: Key, kind: str, text: str) -> None:
    """A row with any text for a body, hashed and signed."""
    from discreet.curator.entries import chained

    db = sqlite3.connect(path)
    seq, head = db.execute("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
    digest = chained(head, (seq + 1, "now", kind, text, b"", b"", None, "t"))
    db.execute(
        "INSERT INTO entry VALUES (?,?,?,?,?,?,?,?)",
        (seq + 1, "now", kind, text, digest, key.sign(digest), None, "t"),
    )
    db.commit()
    db.close()


@pytest.mark.parametrize(
    "statement",
    [
        "body = '{ ' || substr(body, 2)",
        'body = substr(body, 1, length(body) - 1) || \',"analyst":"ann"}\'',
        "body = CAST(X'7bff7d' AS TEXT)",
    ],
)
def test_a_body_must_be_its_own_canonical_form(curator, statement):
    from .tamper import tamper

    curator.ask(noisy_count(PUBLIC, epsilon=1))
    tamper(curator.ledger.path, f"UPDATE entry SET {statement} WHERE seq = 2")
    assert books.verify(Ledger(curator.ledger.path)) != []
    with pytest.raises(LedgerError):
        curator.ask(noisy_count(PUBLIC, epsilon=0.5), fresh=True)


def test_a_release_without_an_earlier_charge_is_reported(curator):
    with curator.ledger.writing() as writer:
        writer.append("release", {"charge": 3, "analyst": "steward"})
        writer.append("charge", {"event": dp.accounting.PureDP(epsilon=0).to_json(), "analyst": "steward"})
    assert any("points to no charge before it" in line for line in curator.verify())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602])
def test_a_key_that_others_can_read_or_write_is_refused(curator, people, mode):
    path = curator.ledger.path
    key = path.with_name(path.name + ".key")
    assert path.stat().st_mode & 0o777 == 0o600
    key.chmod(mode)
    with pytest.raises(LedgerError, match="chmod 600"):
        Curator.open(path, people)
    assert Ledger(path).verify() == []
    key.chmod(0o400)
    assert Curator.open(path, people).used == 0


def test_links_that_lead_nowhere_and_second_names_are_refused(curator, people, tmp_path):
    policy = Policy(budget=Budget(epsilon=1))
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match="or is a link"):
        Curator.create(tmp_path / "link", people, policy)
    with pytest.raises(LedgerError, match="or is a link"):
        Ledger.create(tmp_path / "link", Key.create(tmp_path / "k"), {})
    with pytest.raises(LedgerError, match="there is no ledger at"):
        Curator.open(tmp_path / "link", people)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "good").symlink_to(curator.ledger.path)
    assert Ledger(tmp_path / "good").verify() == []
    os.link(curator.ledger.path, tmp_path / "second")
    with pytest.raises(LedgerError, match="several names"):
        Ledger(tmp_path / "second")


def _ask_on(curator):
    for _ in range(500):
        curator.ask(noisy_count(PUBLIC, epsilon=0.001), fresh=True)


FULL = """
import resource, sys
from tests.curator.test_hardened import PUBLIC, Memory, Curator, noisy_count
import numpy as np
curator = Curator.open(sys.argv[1], Memory({"age": np.arange(100) % 90}, PUBLIC))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    while True:
        curator.ask(noisy_count(PUBLIC, epsilon=0.001), fresh=True)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_file_that_cannot_grow_says_so_and_stays_whole(curator):
    size = curator.ledger.path.stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(curator.ledger.path), str(size + 8192)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
    )
    assert "LedgerError" in done.stdout, done.stdout + done.stderr
    assert "cannot be written" in done.stdout
    assert books.verify(Ledger(curator.ledger.path)) == []


def test_a_full_disk_says_so(curator, monkeypatch):
    """A small file system, where one can be mounted."""
    folder = curator.ledger.path.parent / "small"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", folder], capture_output=True
        ).returncode
    ):
        pytest.skip("nothing can be mounted here")
    try:
        people = Memory({"age": np.arange(100) % 90}, PUBLIC)
        small = Curator.create(folder / "small.ledger", people, Policy(budget=Budget(epsilon=2)))
        with pytest.raises((LedgerError, ReleaseFailed), match="the disk is full"):
            _ask_on(small)
        assert books.verify(Ledger(folder / "small.ledger")) == []
    finally:
        subprocess.run(["umount", folder], check=True)


def test_deep_and_long_prices_are_refused_before_the_charge(curator):
    with pytest.raises(dp.DiscreetError, match="a number has at most 1000 digits"):
        curator.enter(dp.accounting.PureDP(epsilon=Fraction(1, 10**1500)), "tiny")
    with pytest.raises(dp.DiscreetError, match="1,000,000 characters"):
        curator.ask(noisy_count(PUBLIC, epsilon=1), text="x" * 1_000_001)
    deep = {"type": "accounting.PureDP", "epsilon": 1}
    for _ in range(100_000):
        deep = {"type": "accounting.Repeated", "event": deep, "times": 1}
    for data in (deep, _lists(5000), {"fraction": "1/" + "9" * 3000}, 10**1200):
        with pytest.raises(dp.DiscreetError, match=r"is nested at most 64 deep|has at most 1000 digits"):
            dp.accounting.from_json({"type": "accounting.Group", "event": data, "size": 2})
    assert list(curator.ledger.entries(kind="charge")) == []


def _lists(depth):
    inner = []
    for _ in range(depth):
        inner = [inner]
    return inner


def test_a_ledger_on_read_only_media_is_read_and_verified(tmp_path):
    golden = Path(__file__).parents[1] / "golden" / "1" / "plain.ledger"
    folder = tmp_path / "media"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, check=False
    ).returncode:
        pytest.skip("file systems can be mounted by root only")
    try:
        shutil.copy(golden, folder / "plain.ledger")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        ledger = Ledger(folder / "plain.ledger")
        assert books.verify(ledger) == []
        assert list(ledger.entries(kind="charge"))
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_totals_that_another_processor_rounds_otherwise_are_no_alarm(people, tmp_path, monkeypatch):
    from discreet.accounting import filters, lanes

    policy = Policy(budget=Budget(epsilon=2, delta=1e-6))
    curator = Curator.create(tmp_path / "people.ledger", people, policy)
    curator.ask(noisy_count(PUBLIC, epsilon=0.5))
    plain = lanes.curve
    for factor, whole in ((1 + 2**-50, True), (1 + 1e-6, False)):
        monkeypatch.setattr(lanes, "curve", lambda *args, by=factor: [by * x for x in plain(*args)])
        filters._price.cache_clear()
        problems = books.verify(curator.ledger)
        filters._price.cache_clear()
        assert problems == ([] if whole else ["the running total is not what the charges add up to"])
