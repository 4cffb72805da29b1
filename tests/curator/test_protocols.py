"""The protocols that the curator runs: one place for all of them, and an optional rehearsal before the
charge."""

import pytest

from discreet import Bounds, InvalidInput, Public
from discreet.curator import Budget, Curator, Policy, segments
from discreet.mechanisms import SparseVector, Stepped
from discreet.mechanisms.protocols import Run, rehearse
from discreet.tables import Memory

PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")


class Rehearsing(SparseVector):
    """A sparse vector that tries itself first, and fails."""

    def rehearse(self, source):
        raise InvalidInput("the rehearsal failed. Nothing was charged.")


def test_the_old_names_of_stepped_and_its_run_are_the_same_things():
    assert segments.Resumable is Stepped
    assert segments.Part is Run
    assert not isinstance(SparseVector(public=PUBLIC, threshold=1, epsilon=1), Stepped)


def test_what_fails_in_its_rehearsal_is_not_charged(tmp_path):
    people = Memory({"age": [1, 2]}, PUBLIC)
    curator = Curator.create(tmp_path / "people.ledger", people, Policy(budget=Budget(epsilon=1)))
    before = curator.ledger.anchor
    with pytest.raises(InvalidInput, match="the rehearsal failed"):
        curator.start(Rehearsing(public=PUBLIC, threshold=1, epsilon=1))
    assert curator.ledger.anchor == before
    # Nothing is demanded of a mechanism that has no rehearsal.
    rehearse(SparseVector(public=PUBLIC, threshold=1, epsilon=1), people)
    curator.start(SparseVector(public=PUBLIC, threshold=1, epsilon=1))
    assert curator.used == 1
