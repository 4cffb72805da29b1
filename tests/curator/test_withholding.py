"""What a server withholds: a question whose public time runs is refused, done or not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import discreet as dp
from discreet.curator.curator import Withheld

TEXT = "SELECT COUNT(*) AS n FROM t WHERE x > {}"


def test_what_was_charged_within_a_public_time_is_not_served(tmp_path: Path) -> None:
    people = dp.open(
        {"x": [1.0] * 30},
        table="t",
        version="1",
        unit=dp.rows(),
        schema={"x": dp.Bounds(0, 10)},
        budget=dp.Budget(epsilon=9),
        analysts={"ann": None, "bob": None},
        ledger=tmp_path / "l",
    )
    ann, bob = people.as_analyst("ann"), people.as_analyst("bob")
    for i in range(5):
        ann.sql(TEXT.format(i), epsilon=0.1)
    old = datetime.fromisoformat(people.ledger.entry(people.ledger.anchor.seq).time) + timedelta(
        milliseconds=2
    )
    while datetime.now(UTC) <= old + timedelta(milliseconds=2):
        pass
    ann.sql(TEXT.format(7), epsilon=0.1)
    bob.sql(TEXT.format(8), epsilon=0.1)
    later = datetime.now(UTC) + timedelta(minutes=1)
    used, seq = people.spent, people.ledger.anchor.seq
    people.curator.withheld = Withheld(later, (("ann", old),))
    for asker in (ann, bob):
        with pytest.raises(dp.InvalidInput, match="being computed"):
            asker.sql(TEXT.format(7) + " -- again", epsilon=0.1)
    assert people.ledger.anchor.seq == seq
    # before that time, and by others: served as ever
    ann.sql(TEXT.format(3), epsilon=0.1)
    bob.sql(TEXT.format(8), epsilon=0.1)
    # younger than the list of times itself
    people.curator.withheld = Withheld(old)
    with pytest.raises(dp.InvalidInput, match="being computed"):
        bob.sql(TEXT.format(8), epsilon=0.1)
    assert people.spent == used
    people.curator.withheld = None
    ann.sql(TEXT.format(7), epsilon=0.1)
    assert people.spent == used
