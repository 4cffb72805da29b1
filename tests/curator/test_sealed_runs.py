"""Runs with a secret number of steps: the ledger and the vault look the same for every number, and a lost
step is run again."""

import itertools
import json
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import pytest

from discreet import Bounds, InvalidInput, Public
from discreet._errors import BudgetExceeded, LedgerError, ReleaseFailed
from discreet.accounting import PureDP
from discreet.curator import Budget, Curator, Policy, segments, tickets
from discreet.curator.entries import canonical
from discreet.mechanisms.protocols import SecretlyStepped, Stepped, release
from discreet.tables import Memory

PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")
CAP, SIZE = 6, 500


class Trials:
    """Trials that draw a score each; the number of them is part of the state."""

    def __init__(self, mechanism, state, entropy):
        self.mechanism, self.state, self.entropy = mechanism, state, entropy

    steps_taken = 0
    progress = None

    @property
    def done(self):
        return len(self.state["scores"]) >= self.state["trials"]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def step(self):
        assert not self.done
        number = len(self.state["scores"]) + 1
        with open(self.mechanism.log, "a", encoding="ascii") as file:
            file.write(f"{number}\n")
        if number == self.mechanism.fails:
            raise ValueError("17 rows")
        if number == self.mechanism.ends:
            os.kill(os.getpid(), signal.SIGKILL)
        self.state["scores"].append(self.entropy.integer(30))

    def dump(self):
        return json.dumps(self.state).encode() + b" " * self.mechanism.more

    def release(self):
        return release(max(self.state["scores"]), event=self.mechanism.event, entropy=self.entropy)


@dataclass(frozen=True)
class Search:
    """Runs a secret number of trials."""

    public: Any
    event: Any
    trials: int
    log: str
    fails: int = 0
    ends: int = 0
    more: int = 0
    length: int = CAP
    blob_size: int = SIZE
    # what trusted code is known by
    identity: Any = "search"

    def start(self, source, *, entropy):
        return Trials(self, {"trials": self.trials, "scores": []}, entropy)

    def restore(self, source, raw, steps_taken, *, entropy):
        return Trials(self, json.loads(raw), entropy)


def people():
    return Memory({"age": [1, 2, 3]}, PUBLIC)


def search(folder, trials, **options):
    return Search(PUBLIC, PureDP(epsilon=0.5), trials, str(folder / "log"), **options)


def made(folder):
    folder.mkdir(exist_ok=True)
    return Curator.create(folder / "people.ledger", people(), Policy(budget=Budget(epsilon=2)))


def steps(folder):
    return [int(line) for line in (folder / "log").read_text().split()]


def looks(curator):
    """All that one can see of a ledger and its vault without the key, but for times, random names and what is
    encrypted."""
    entries = []
    for entry in curator.ledger.entries():
        body = {**entry.body}
        hidden = {name: len(body.pop(name)) for name in ("file", "digest", "key") if body.get(name)}
        entries.append((entry.kind, entry.topic, canonical(body), hidden, entry.sealed and len(entry.sealed)))
    files = sorted(path.stat().st_size for path in curator.vault.folder.iterdir())
    beside = sorted(path.name for path in curator.ledger.path.parent.glob("people.ledger*"))
    return entries, files, beside, curator.ledger.path.stat().st_size


def test_the_protocols_tell_a_secret_number_of_steps_from_a_public_one(tmp_path):
    assert isinstance(search(tmp_path, 1), SecretlyStepped)
    assert not isinstance(search(tmp_path, 1), Stepped)


def test_ledger_and_vault_look_the_same_for_every_number_of_steps(tmp_path):
    views = []
    for trials in range(1, CAP + 1):
        folder = tmp_path / f"{trials}"
        curator = made(folder)
        assert curator.run(search(folder, trials)).value >= 0
        assert steps(folder) == list(range(1, trials + 1))
        assert curator.verify() == []
        views.append(looks(curator))
    assert all(view == views[0] for view in views)
    assert [kind for kind, *_ in views[0][0]] == ["open", "charge", *["blob"] * (CAP + 1), "release"]


def test_the_test_has_teeth(tmp_path, monkeypatch):
    """Blobs that are not padded are seen."""
    views = []
    for trials in (1, CAP):
        curator = made(tmp_path / f"{trials}")
        search_ = search(tmp_path / f"{trials}", trials)
        with monkeypatch.context() as patch:
            put = type(curator.vault).put
            unpadded = lambda *args, size, put=put: put(*args, size=len(args[-1]))  # noqa: E731
            patch.setattr(type(curator.vault), "put", unpadded)
            curator.run(search_)
        views.append(looks(curator))
    assert views[0] != views[1]


@pytest.mark.parametrize("ends", [1, 2, 4])
def test_a_step_that_was_lost_in_a_crash_is_run_again_and_no_other(tmp_path, ends):
    curator = made(tmp_path)
    pid = os.fork()
    if pid == 0:
        Curator.open(curator.ledger.path, people()).run(search(tmp_path, 4, ends=ends))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    number = next(iter(curator.ledger.entries(kind="charge"))).seq
    before = json.loads(curator.vault.get(number, "run"))
    assert len(before["scores"]) == ends - 1
    result = curator.run(search(tmp_path, 4), number=number)
    assert steps(tmp_path) == [*range(1, ends), ends, *range(ends, 5)]
    after = json.loads(curator.vault.get(number, "run"))
    assert after["scores"][: ends - 1] == before["scores"]
    assert len(after["scores"]) == 4
    assert result.value == max(after["scores"])
    assert curator.used == 0.5
    kinds = [entry.kind for entry in curator.ledger.entries()]
    assert kinds == ["open", "charge", *["blob"] * (CAP + 1), "release"]
    # What was released is told again, and nothing is run.
    assert curator.run(search(tmp_path, 4), number=number).value == result.value
    assert [entry.kind for entry in curator.ledger.entries()] == kinds
    assert curator.verify() == []


def test_a_crash_before_the_first_state_is_gone_on_with_too(tmp_path, monkeypatch):
    curator = made(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Search, "start", lambda *args, **options: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            curator.run(search(tmp_path, 2))
    number = curator.ledger.last("charge").seq
    assert curator.run(search(tmp_path, 2), number=number).value >= 0
    assert curator.verify() == []


@pytest.mark.parametrize("options", [{"fails": 2}, {"more": SIZE}, {"length": 2}])
def test_a_run_that_fails_is_over_and_says_nothing(tmp_path, options):
    curator = made(tmp_path)
    with pytest.raises(ReleaseFailed) as failed:
        curator.run(search(tmp_path, 3, **options))
    assert "17" not in str(failed.value)
    assert failed.value.__suppress_context__
    assert failed.value.__cause__ is None
    number = curator.ledger.last("charge").seq
    with pytest.raises(InvalidInput, match="has failed"):
        curator.run(search(tmp_path, 3, length=options.get("length", CAP)), number=number)
    assert curator.verify() == []


def test_two_processes_do_not_go_on_with_one_run(tmp_path):
    curator = made(tmp_path)
    with pytest.raises(ReleaseFailed):
        curator.run(search(tmp_path, 3, fails=1))
    curator.run(search(tmp_path, 3))
    number = curator.ledger.last("charge").seq
    with (
        tickets.alone(curator.ledger.path, f"run-{number}"),
        pytest.raises(LedgerError, match="another process"),
    ):
        curator.run(search(tmp_path, 3), number=number)
    assert curator.run(search(tmp_path, 3), number=number).value >= 0


def test_another_run_or_none_is_refused(tmp_path):
    curator = made(tmp_path)
    curator.run(search(tmp_path, 3))
    number = curator.ledger.last("charge").seq
    before = curator.ledger.anchor
    for options in (
        {"length": 9},
        {"blob_size": 9},
        {"event": PureDP(epsilon=0.25)},
        {"identity": 1},
        {"identity": None},
    ):
        changed = Search(**{**vars(search(tmp_path, 3)), **options})
        with pytest.raises(InvalidInput, match="not the start"):
            curator.run(changed, number=number)
    for wrong in ({"checkpoint": tmp_path / "c"}, {"progress": print}):
        with pytest.raises(InvalidInput, match="vault"):
            curator.run(search(tmp_path, 3), **wrong)
    with pytest.raises(InvalidInput, match="blob_size"):
        segments.run(curator, object())
    with pytest.raises(InvalidInput, match="pace"):
        curator.run(search(tmp_path, 3), pace=-1)
    with pytest.raises(BudgetExceeded):
        curator.run(Search(**{**vars(search(tmp_path, 3)), "event": PureDP(epsilon=5)}))
    assert curator.ledger.anchor == before


def test_with_a_pace_every_round_lasts_as_long(tmp_path):
    for trials in (1, CAP):
        folder = tmp_path / f"{trials}"
        curator = made(folder)
        curator.run(search(folder, trials), pace=0.05)
        times = [entry.time for entry in curator.ledger.entries(kind="blob")]
        seconds = [float(time[17:23]) for time in times]
        gaps = [(after - before) % 60 for before, after in itertools.pairwise(seconds)]
        assert min(gaps) >= 0.049


def test_a_run_without_a_description_or_an_identity_runs_in_one_piece_only(tmp_path):
    """The price alone does not tell two runs apart: nothing is known that could be compared."""
    curator = made(tmp_path)
    curator.run(search(tmp_path, 3, identity=None))
    number = curator.ledger.last("charge").seq
    assert "identity" not in curator.ledger.entry(number).body
    for identity in (None, "search"):
        with pytest.raises(InvalidInput, match="not the start"):
            curator.run(search(tmp_path, 3, identity=identity), number=number)


def test_with_a_public_time_nothing_of_a_step_is_written_before_it(tmp_path, monkeypatch):
    """Who counts entries while a run goes on learns nothing of the number of its steps."""
    for trials in (1, CAP):
        folder = tmp_path / f"{trials}"
        curator, moments, put = made(folder), [], type(made(tmp_path / f"v{trials}").vault).put
        begun = time.monotonic()

        def noted(vault, *args, put=put, moments=moments, begun=begun, **options):
            moments.append(time.monotonic() - begun)
            return put(vault, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(type(curator.vault), "put", noted)
            assert curator.run(search(folder, trials), seconds=1.5).value >= 0
        assert steps(folder) == list(range(1, trials + 1))
        assert len(moments) == CAP + 1
        assert all(moment >= 1.5 for moment in moments[1:])
        assert curator.verify() == []
        number = next(entry.seq for entry in curator.ledger.entries(kind="charge"))
        again = curator.run(search(folder, trials), number=number, seconds=0.5)
        assert again.value >= 0
        assert steps(folder) == list(range(1, trials + 1)), "what was released is not run again"


def test_with_a_public_time_failures_wait_and_late_runs_write_nothing(tmp_path):
    curator, begun = made(tmp_path / "fails"), time.monotonic()
    with pytest.raises(ReleaseFailed):
        curator.run(search(tmp_path / "fails", 3, fails=2), seconds=1.0)
    assert time.monotonic() - begun >= 1.0
    late = made(tmp_path / "late")
    with pytest.raises(ReleaseFailed):
        late.run(search(tmp_path / "late", 3), seconds=1e-9)
    assert [e.kind for e in late.ledger.entries()] == ["open", "charge", "blob"]
    number = next(entry.seq for entry in late.ledger.entries(kind="charge"))
    assert late.run(search(tmp_path / "late", 3), number=number).value >= 0


def test_a_failure_after_the_public_time_writes_nothing_either(tmp_path, monkeypatch):
    """Else the time of its entry would tell how long a step took."""
    curator, step = made(tmp_path / "fails"), Trials.step

    def slow(self):
        time.sleep(0.06)
        step(self)

    monkeypatch.setattr(Trials, "step", slow)
    with pytest.raises(ReleaseFailed):
        curator.run(search(tmp_path / "fails", 3, fails=1), seconds=0.05)
    assert [e.kind for e in curator.ledger.entries()] == ["open", "charge", "blob"]


def test_a_run_that_cannot_be_locked_says_so(tmp_path):
    with (
        pytest.raises(LedgerError, match="no file can be made beside the ledger"),
        tickets.alone(tmp_path / "missing" / "x.ledger", "run-2"),
    ):
        pass
