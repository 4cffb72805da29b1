"""A ledger without its table: prices can be entered and looked at; whatever would read the table is refused
before it is charged."""

import pytest

from discreet import Bounds, Public
from discreet._errors import LedgerError
from discreet.accounting import PureDP
from discreet.curator import Budget, Curator, Policy
from discreet.curator.curator import without_data
from discreet.mechanisms import SparseVector, noisy_count
from discreet.tables import Memory

from .test_protocols import InSteps

PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")


def test_every_verb_that_reads_is_refused_before_the_charge(tmp_path):
    table = Memory({"age": [1, 2, 3]}, PUBLIC)
    curator = Curator.create(tmp_path / "people.ledger", table, Policy(budget=Budget(epsilon=2)))
    vector = SparseVector(public=PUBLIC, threshold=1, epsilon=0.5)
    number = curator.start(vector).number
    closed, before = without_data(tmp_path / "people.ledger"), curator.ledger.anchor
    verbs = (
        lambda: closed.ask(noisy_count(PUBLIC, epsilon=0.1)),
        lambda: closed.start(vector),
        lambda: closed.resume(vector, number),
        lambda: closed.run(InSteps()),
    )
    for verb in verbs:
        with pytest.raises(LedgerError, match="without its table"):
            verb()
    assert curator.ledger.anchor == before
    closed.enter(PureDP(epsilon=0.5), "elsewhere")
    assert curator.used == 1
