"""Nothing that takes long is done while the ledger is locked."""

import pytest

from discreet import Bounds, Public
from discreet.accounting import caps, lanes
from discreet.curator import Budget, Curator, Policy
from discreet.mechanisms import Count, gaussian
from discreet.tables import Memory

PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")


def certified(folder, monkeypatch, analyst):
    """How often a cap was chosen, as pairs: whether the ledger was locked, and what the accountant had to
    compute."""
    policy = Policy(budget=Budget(epsilon=5, delta=1e-5), analysts={"ann": Budget(epsilon=3, delta=1e-6)})
    curator = Curator.create(folder / "people.ledger", Memory({"age": [1, 2]}, PUBLIC), policy)
    choices, plain = [], caps.choose

    def choose(*args, **options):
        before = lanes.certified_epsilon.cache_info().misses
        item = plain(*args, **options)
        work = lanes.certified_epsilon.cache_info().misses - before
        choices.append((curator.ledger._writer is not None, work))
        return item

    lanes.certified_epsilon.cache_clear()
    monkeypatch.setattr(caps, "choose", choose)
    for rho in (0.0125, 0.015):
        curator.ask(gaussian(PUBLIC, Count(), rho=rho), analyst=analyst)
    assert curator.verify() == []
    return choices


@pytest.mark.parametrize("analyst", ["steward", "ann"])
def test_the_accountant_certifies_caps_before_the_lock(tmp_path, monkeypatch, analyst):
    choices = certified(tmp_path, monkeypatch, analyst)
    assert sum(work for locked, work in choices if not locked) > 0
    assert sum(work for locked, work in choices if locked) == 0
    assert any(locked for locked, _ in choices)


def test_the_test_has_teeth(tmp_path, monkeypatch):
    monkeypatch.setattr(Curator, "_prepare", lambda *args: None)
    assert sum(work for locked, work in certified(tmp_path, monkeypatch, "steward") if locked) > 0
