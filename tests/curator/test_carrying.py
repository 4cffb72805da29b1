"""Charges are carried over to a new ledger: per analyst, with their deltas, never less than before."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet._errors import BudgetExceeded, InvalidInput, LedgerError
from discreet.app.cli import app
from discreet.curator import Ledger, Period, Policy, books
from discreet.curator.backups import Export, carry
from discreet.curator.curator import without_data

COUNT = "SELECT COUNT(*) AS n FROM t"
DATA = {"a": [1, 2, 3] * 50, "m": ["x", "y", "x"] * 50}
SCHEMA = {"a": dp.Bounds(0, 9), "m": dp.Categories(["x", "y"])}
FACTS = {"schema": SCHEMA, "unit": dp.rows(), "table": "t", "version": "1"}
BUDGET = dp.Budget(epsilon=3, delta=1e-6)
ANALYSTS = {"ann": dp.Budget(epsilon=1, delta=4e-7), "bob": dp.Budget(epsilon=1), "eve": None}


def opened(path, **options):
    return dp.open(DATA, ledger=path, **({"budget": BUDGET, "analysts": ANALYSTS} | FACTS | options))


@pytest.fixture
def old(tmp_path):
    """A ledger with pure and Gaussian charges, a stored answer that was served, and a release made elsewhere."""
    people = opened(tmp_path / "old.ledger")
    ann, bob = people.as_analyst("ann"), people.as_analyst("bob")
    ann.sql(COUNT, epsilon=0.2, delta=1e-7, noise="gaussian")
    ann.sql(COUNT, epsilon=0.1)
    bob.sql(COUNT, epsilon=0.1)
    people.as_analyst("eve").sql("SELECT SUM(a) AS s FROM t", epsilon=0.3)
    people.curator.enter(dp.accounting.ApproximateDP(epsilon=0.2, delta=1e-8), "a talk")
    people.sql("SELECT a, COUNT(*) AS n FROM t GROUP BY a", epsilon=0.3, delta=1e-8)
    return people


def exported(people, path):
    path.write_text("".join(json.dumps(entry.to_json()) + "\n" for entry in people.ledger.entries()))
    return path


def totals(ledger):
    return {account.of: (account.used, float(account.spent.delta)) for account in books.accounts(ledger)}


@pytest.mark.parametrize("first", ["gaussian", "elsewhere", "nothing"])
def test_every_account_goes_on_with_what_it_had_spent(tmp_path, first):
    people = opened(tmp_path / "first.ledger")
    if first == "elsewhere":
        people.curator.enter(dp.accounting.PureDP(epsilon=0.4), "a talk")
    if first != "nothing":
        # Most of the delta: the recipe of one entry with the budget's delta was refused.
        people.as_analyst("ann").sql(COUNT, epsilon=0.5, delta=3e-7, noise="gaussian")
        people.as_analyst("bob").sql(COUNT, epsilon=0.1)
    new = opened(tmp_path / "new.ledger")
    carried = carry(without_data(tmp_path / "new.ledger"), Export(exported(people, tmp_path / "old.jsonl")))
    assert carried == sum(entry.kind in ("charge", "served") for entry in people.ledger.entries())
    assert totals(new.ledger) == totals(people.ledger)
    assert new.curator.verify() == []


def test_questions_of_all_kinds_are_carried_and_the_ledger_goes_on(tmp_path, old):
    new = opened(tmp_path / "new.ledger")
    # The ledger itself, without its key, is as good as its export.
    (tmp_path / "old.ledger.key").unlink()
    assert carry(without_data(tmp_path / "new.ledger"), Ledger(tmp_path / "old.ledger")) == 6
    assert totals(new.ledger) == totals(old.ledger)
    assert books.spent_for(new.ledger) == books.spent_for(old.ledger)
    before = new.as_analyst("bob").spent
    assert before == pytest.approx(0.1), "bob was only served, which the dataset does not pay"
    new.as_analyst("bob").sql(COUNT, epsilon=0.1)
    assert new.as_analyst("bob").spent == pytest.approx(0.2), "stored releases do not move"
    # The totals of the next charge are stated on top of what was carried.
    assert new.curator.verify() == []
    # A budget that an analyst gets later counts what they asked in the old ledger.
    new.curator.change_policy(Policy(budget=BUDGET, analysts=ANALYSTS | {"eve": dp.Budget(epsilon=1)}))
    assert new.as_analyst("eve").spent == pytest.approx(0.3)


def test_budgets_per_period_are_carried_by_period(tmp_path):
    budget = dp.Budget(epsilon=1, per=Period(column="m"))
    people = opened(tmp_path / "old.ledger", budget=budget, analysts=None)
    people.during("x").sql(COUNT, epsilon=0.25)
    people.sql(COUNT, epsilon=0.5)
    new = opened(tmp_path / "new.ledger", budget=budget, analysts=None)
    carry(without_data(tmp_path / "new.ledger"), Export(exported(people, tmp_path / "old.jsonl")))
    assert totals(new.ledger) == totals(people.ledger)
    assert new.curator.verify() == []


def test_what_does_not_verify_or_fit_is_not_carried(tmp_path, old):
    export = exported(old, tmp_path / "old.jsonl")
    new = opened(tmp_path / "new.ledger")
    curator, head = without_data(tmp_path / "new.ledger"), new.ledger.anchor
    lines = export.read_text().splitlines()
    for edited in ([*lines[:3], *lines[4:]], [line.replace("0.3", "0.2") for line in lines]):
        (tmp_path / "edited.jsonl").write_text("\n".join(edited))
        with pytest.raises(LedgerError, match="does not verify"):
            carry(curator, Export(tmp_path / "edited.jsonl"))
    # A shorter export verifies by itself: only the anchor shows that it was cut; only the key who signed it.
    (tmp_path / "cut.jsonl").write_text("\n".join(lines[:-2]))
    with pytest.raises(LedgerError, match="does not verify"):
        carry(curator, Export(tmp_path / "cut.jsonl"), anchor=old.ledger.anchor)
    with pytest.raises(LedgerError, match="does not verify"):
        carry(curator, Export(export), key=b"x" * 32)
    small = opened(tmp_path / "small.ledger", budget=dp.Budget(epsilon=0.5), analysts=None)
    with pytest.raises(BudgetExceeded, match="Nothing was carried over"):
        carry(without_data(tmp_path / "small.ledger"), Export(export))
    other = opened(tmp_path / "other.ledger", unit="a")
    with pytest.raises(InvalidInput, match="protects rows"):
        carry(without_data(tmp_path / "other.ledger"), Export(export))
    assert (new.ledger.anchor, small.spent, other.spent) == (head, 0, 0)
    carry(curator, Export(export))
    with pytest.raises(InvalidInput, match="has charges already"):
        carry(curator, Export(export))


def test_the_shell_carries_and_a_missing_key_names_the_page(tmp_path, old):
    export = exported(old, tmp_path / "old.jsonl")
    opened(tmp_path / "new.csv.ledger")
    result = CliRunner().invoke(app, ["ledger", "carry", str(export), str(tmp_path / "new.csv.ledger")])
    assert result.exit_code == 0, result.exception
    assert "carried over 6 charges" in result.output
    assert "--anchor" in result.output
    shown = CliRunner().invoke(app, ["ledger", "show", "--json", str(tmp_path / "new.csv.ledger")]).output
    assert shown.count("carried over:") == 6
    (tmp_path / "new.csv.ledger.key").unlink()
    with pytest.raises(LedgerError, match=r"docs/back-up\.md"):
        without_data(tmp_path / "new.csv.ledger")
