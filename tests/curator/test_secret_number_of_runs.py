"""Searches, the best of a secret number of runs: the ledger looks the same for every number, and where a public
time hides how long they take, nothing is entered before it."""

import time
from dataclasses import dataclass
from typing import Any

import pytest

from discreet import Bounds, InvalidInput, Public
from discreet._errors import BudgetExceeded, ReleaseFailed
from discreet.accounting import PureDP, RepeatAndSelect, logarithmic
from discreet.curator import Budget, Curator, Policy
from discreet.curator.entries import canonical
from discreet.mechanisms.protocols import Mechanism, Stepped, release
from discreet.tables import Memory

PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")
PRICE = RepeatAndSelect(event=PureDP(epsilon=0.25), trials=logarithmic(0.5))
CAP = 6


@dataclass(frozen=True)
class Search(Mechanism):
    """Runs `trials` times, a number that is secret; the run number `fails` fails."""

    public: Any
    event: Any
    trials: int
    log: str
    fails: int = 0
    seconds: float = 0.0

    def __call__(self, source, /, *, entropy):
        scores = []
        for number in range(1, self.trials + 1):
            with open(self.log, "a", encoding="ascii") as file:
                file.write(f"{number}\n")
            time.sleep(self.seconds)
            if number == self.fails:
                raise ValueError("17 rows")
            scores.append(entropy.integer(30))
        return release(max(scores), event=self.event, entropy=entropy)


def people():
    return Memory({"age": [1, 2, 3]}, PUBLIC)


def search(folder, trials, event=PRICE, **options):
    return Search(PUBLIC, event, trials, str(folder / "log"), **options)


def made(folder):
    folder.mkdir(exist_ok=True)
    return Curator.create(folder / "people.ledger", people(), Policy(budget=Budget(epsilon=2)))


def runs(folder):
    return [int(line) for line in (folder / "log").read_text().split()]


def kinds(curator):
    return [entry.kind for entry in curator.ledger.entries()]


def looks(curator):
    """All that one can see of a ledger without the key, but for times and what was released."""
    entries = []
    for entry in curator.ledger.entries():
        body = {**entry.body}
        hidden = {name: len(body.pop(name)) for name in ("key",) if body.get(name)}
        body.pop("value", None)
        entries.append((entry.kind, entry.topic, canonical(body), hidden, entry.sealed))
    beside = sorted(path.name for path in curator.ledger.path.parent.glob("people.ledger*"))
    return entries, beside, curator.ledger.path.stat().st_size


def test_a_search_is_a_plain_mechanism(tmp_path):
    assert isinstance(search(tmp_path, 1), Mechanism)
    assert not isinstance(search(tmp_path, 1), Stepped)


def test_the_ledger_looks_the_same_for_every_number_of_runs(tmp_path):
    views = []
    for trials in range(1, CAP + 1):
        folder = tmp_path / f"{trials}"
        curator = made(folder)
        assert curator.ask(search(folder, trials)).value >= 0
        assert runs(folder) == list(range(1, trials + 1))
        assert curator.verify() == []
        views.append(looks(curator))
    assert all(view == views[0] for view in views)
    assert [kind for kind, *_ in views[0][0]] == ["open", "charge", "release"]


def test_a_search_that_fails_is_over_and_says_nothing_to_anybody(tmp_path):
    curator = made(tmp_path)
    with pytest.raises(ReleaseFailed, match="failed after it was charged") as failed:
        curator.ask(search(tmp_path, 3, fails=2))
    assert "17" not in str(failed.value)
    assert failed.value.__suppress_context__
    assert failed.value.__cause__ is None
    assert kinds(curator) == ["open", "charge", "failed"]
    assert curator.verify() == []


def test_an_interrupted_search_stays_charged_and_releases_nothing(tmp_path, monkeypatch):
    curator = made(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Search, "__call__", lambda *args, **options: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            curator.ask(search(tmp_path, 2))
    assert kinds(curator) == ["open", "charge"]
    assert curator.ask(search(tmp_path, 2)).value >= 0
    assert kinds(curator) == ["open", "charge", "charge", "release"]


def test_what_cannot_be_run_is_refused_before_the_charge(tmp_path):
    curator = made(tmp_path)
    before = curator.ledger.anchor
    with pytest.raises(InvalidInput, match="least_seconds must be zero or above"):
        curator.ask(search(tmp_path, 3), least_seconds=-1)
    with pytest.raises(BudgetExceeded, match="Nothing was charged"):
        curator.ask(search(tmp_path, 3, event=PureDP(epsilon=5)))
    assert curator.ledger.anchor == before


def waits(curator):
    """The seconds from the charge to each later entry."""
    seconds = [float(entry.time[17:23]) for entry in curator.ledger.entries()][1:]
    return [(later - seconds[0]) % 60 for later in seconds[1:]]


@pytest.mark.parametrize("fails", [0, 1])
def test_with_the_time_of_all_runs_a_release_or_a_failure_waits_for_it(tmp_path, fails):
    for trials in (1, CAP):
        folder = tmp_path / f"{trials}"
        curator = made(folder)
        try:
            curator.ask(search(folder, trials, fails=fails), least_seconds=0.3)
        except ReleaseFailed:
            assert fails
        assert min(waits(curator)) >= 0.299
        assert kinds(curator) == ["open", "charge", "failed" if fails else "release"]


def test_a_search_that_takes_longer_than_its_least_time_is_not_lost(tmp_path):
    curator = made(tmp_path)
    assert curator.ask(search(tmp_path, 3, seconds=0.05), least_seconds=0.01).value >= 0
    assert kinds(curator) == ["open", "charge", "release"]


def test_with_a_public_time_nothing_of_a_run_is_entered_before_it(tmp_path):
    """Who counts entries while a search goes on learns nothing of the number of its runs."""
    for trials in (1, CAP):
        folder = tmp_path / f"{trials}"
        curator = made(folder)
        curator.sealed_for = 1.0
        assert curator.ask(search(folder, trials)).value >= 0
        assert runs(folder) == list(range(1, trials + 1))
        assert min(waits(curator)) >= 0.999
        assert curator.verify() == []


def test_with_a_public_time_failures_wait_and_late_searches_enter_nothing(tmp_path):
    curator, begun = made(tmp_path / "fails"), time.monotonic()
    curator.sealed_for = 1.0
    with pytest.raises(ReleaseFailed, match="failed after it was charged"):
        curator.ask(search(tmp_path / "fails", 3, fails=2))
    assert time.monotonic() - begun >= 1.0
    assert kinds(curator) == ["open", "charge", "failed"]
    late = made(tmp_path / "late")
    late.sealed_for = 1e-9
    with pytest.raises(ReleaseFailed, match="failed after it was charged"):
        late.ask(search(tmp_path / "late", 3))
    assert kinds(late) == ["open", "charge"]


def test_a_failure_after_the_public_time_enters_nothing_either(tmp_path):
    """Else the time of its entry would tell how long a run took."""
    curator = made(tmp_path / "fails")
    curator.sealed_for = 0.05
    with pytest.raises(ReleaseFailed, match="failed after it was charged"):
        curator.ask(search(tmp_path / "fails", 3, fails=1, seconds=0.06))
    assert kinds(curator) == ["open", "charge"]


def test_a_mechanism_whose_time_may_be_seen_is_not_held_back(tmp_path):
    curator, begun = made(tmp_path), time.monotonic()
    curator.sealed_for = 600.0
    assert curator.ask(search(tmp_path, 2, event=PureDP(epsilon=0.5))).value >= 0
    assert time.monotonic() - begun < 300
