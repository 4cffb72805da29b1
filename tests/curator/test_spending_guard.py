"""The spending guard: what one asker may spend on a day and by a question, within the admission of a charge."""

import datetime as dates
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import BudgetExceeded, InvalidInput
from discreet.accounting import PureDP
from discreet.app.cli import app
from discreet.curator import Policy, door, ledger
from discreet.mechanisms import SparseVector

COUNT = "SELECT COUNT(*) AS n FROM people WHERE age > {}"


class Clock(dates.datetime):
    """A clock that the test sets."""

    moment = dates.datetime(2026, 3, 1, 12, tzinfo=dates.UTC)

    @classmethod
    def now(cls, tz=None):
        assert tz is dates.UTC
        return cls.moment


@pytest.fixture
def clock(monkeypatch):
    for module in (door, ledger):
        monkeypatch.setattr(module, "datetime", Clock)
    monkeypatch.setattr(Clock, "moment", Clock.moment)
    return Clock


def opened(tmp_path, guard, delta=1e-6, **options):
    people = dp.open(
        {"age": [20, 40, 60] * 30},
        table="people",
        schema={"age": dp.Bounds(0, 120)},
        unit=dp.rows(),
        ledger=tmp_path / "people.ledger",
        budget=dp.Budget(epsilon=10, delta=delta),
        analysts={"ann": dp.Budget(epsilon=5, delta=delta), "bob": None},
        **options,
    )
    people.curator.change_policy(replace(people.curator.policy, **guard))
    return people


@pytest.mark.parametrize("delta", [0, 1e-6])
def test_a_question_costs_at_most_the_guard_whoever_asks(tmp_path, delta):
    people = opened(tmp_path, {"max_per_question": 0.5}, delta)
    askers = [people, people.as_analyst("ann"), people.as_analyst("bob")]
    for number, asker in enumerate(askers):
        spent = people.spent
        asker.sql(COUNT.format(10 + number), epsilon=0.5)
        with pytest.raises(
            BudgetExceeded, match=r"costs epsilon 0.51, and max_per_question = 0.5 is the most"
        ):
            asker.sql(COUNT.format(10 + number), epsilon=0.51)
        with pytest.raises(BudgetExceeded, match="max_per_question"):
            asker.start(SparseVector(public=people.public, threshold=10, epsilon=0.51, positives=1))
        preview = asker.preview(COUNT.format(10 + number), epsilon=0.51)
        assert (preview.admitted, preview.fits) == (False, 0)
        assert asker.preview(COUNT.format(10 + number), epsilon=0.4).admitted
        assert people.spent == pytest.approx(spent + 0.5)


def test_noise_that_is_priced_otherwise_is_guarded_at_what_it_uses_of_the_budget(tmp_path):
    people = opened(tmp_path, {"max_per_question": 0.5})
    people.sql(COUNT.format(1), epsilon=0.5, delta=1e-8, noise="gaussian")
    with pytest.raises(BudgetExceeded, match="max_per_question"):
        people.sql(COUNT.format(1), epsilon=0.6, delta=1e-8, noise="gaussian")
    with pytest.raises(BudgetExceeded, match="max_per_question"):
        people.sql(COUNT.format(1), rho=0.5)


def test_a_day_is_a_date_in_utc_and_each_asker_has_their_own(tmp_path, clock):
    people = opened(tmp_path, {"max_per_day": 1})
    ann, bob = people.as_analyst("ann"), people.as_analyst("bob")
    for asker in (people, ann, bob):
        asker.sql(COUNT.format(10), epsilon=0.5, fresh=True)
        asker.sql(COUNT.format(20), epsilon=0.5, fresh=True)
        spent = people.spent
        with pytest.raises(
            BudgetExceeded, match=r"will have spent epsilon 1.25 since midnight .* max_per_day = 1 is"
        ):
            asker.sql(COUNT.format(30), epsilon=0.25, fresh=True)
        # what is stored is free, as ever
        asker.sql(COUNT.format(20), epsilon=0.5)
        assert people.spent == spent
    clock.moment = dates.datetime(2026, 3, 1, 23, 59, 59, tzinfo=dates.UTC)
    with pytest.raises(BudgetExceeded, match="discreet policy LEDGER --max-per-day 2"):
        ann.sql(COUNT.format(30), epsilon=0.25)
    clock.moment = dates.datetime(2026, 3, 2, tzinfo=dates.UTC)
    ann.sql(COUNT.format(30), epsilon=1)
    with pytest.raises(BudgetExceeded, match="max_per_day"):
        ann.sql(COUNT.format(40), epsilon=0.01)


def test_what_another_opening_was_charged_counts(tmp_path):
    first = opened(tmp_path, {"max_per_day": 1}, version="1")
    second = dp.open(first.curator.source, ledger=tmp_path / "people.ledger")
    first.sql(COUNT.format(10), epsilon=0.75)
    with pytest.raises(BudgetExceeded, match="max_per_day"):
        second.sql(COUNT.format(20), epsilon=0.5)
    second.sql(COUNT.format(20), epsilon=0.25)


def test_releases_that_were_made_elsewhere_are_entered_whatever_they_cost(tmp_path):
    people = opened(tmp_path, {"max_per_day": 1, "max_per_question": 1})
    people.curator.enter(PureDP(epsilon=3), "the annual report")
    people.sql(COUNT.format(10), epsilon=1)
    assert people.spent == 4


@pytest.mark.parametrize(
    "guard", [{"max_per_day": 0}, {"max_per_question": -1}, {"max_per_day": "1"}, {"min_people": 0}]
)
def test_a_guard_is_a_positive_number(guard):
    with pytest.raises(InvalidInput, match=next(iter(guard))):
        Policy(budget=dp.Budget(epsilon=1), **guard)


def test_the_shell_sets_shows_and_removes_it(tmp_path):
    people = opened(tmp_path, {})
    path, shell = str(tmp_path / "people.ledger"), CliRunner()
    result = shell.invoke(app, ["policy", path, "--max-per-day", "0.5", "--min-people", "11"])
    assert result.exit_code == 0, result.output
    assert "max_per_day: 0.5\nmin_people: 11\n" in result.output
    assert "warning" not in result.output
    assert people.curator.policy.limits == {"max_per_day": 0.5, "min_people": 11}
    shown = json.loads(shell.invoke(app, ["policy", path, "--json"]).output)
    assert (shown["max_per_day"], shown["min_people"], shown["changed"]) == (0.5, 11, False)
    assert "max_per_question" not in shown
    shell.invoke(app, ["policy", path, "--max-per-day", "0", "--max-per-question", "0.25"])
    assert people.curator.policy.limits == {"max_per_question": 0.25, "min_people": 11}
    assert dict(people.curator.policy.analysts) == {"ann": dp.Budget(epsilon=5, delta=1e-6), "bob": None}
