"""Budgets per period: a release is charged to the periods that it reads, and nobody's rows in one period move
another's answers."""

import multiprocessing

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import discreet as dp
from discreet import accounting as acc
from discreet.curator import Budget, Curator, Ledger, Period, Policy, books
from discreet.curator.periods import stretch
from discreet.mechanisms import AboveThreshold, noisy_count
from discreet.tables import Memory, connect
from discreet.tables.fit import within

DAYS = ["2026-01-01", "2026-01-31", "2026-02-01", "2026-02-28", None, "soon", "2026-03-01"]
DATA = {"day": DAYS, "who": ["a", "a", "a", "b", "b", "c", None], "x": [1, 2, 3, 4, 5, 6, 7]}
SCHEMA = {"day": dp.Dates("2020-01-01", "2030-01-01"), "who": dp.Text(), "x": dp.Bounds(0, 10)}
MONTHS = Period(column="day", every="month")
COUNT = "SELECT COUNT(*) AS n FROM visits"


def opened(path=":memory:", *, per=MONTHS, unit=None, data=DATA, epsilon=1, **more):
    return dp.open(
        data,
        schema=SCHEMA,
        unit=unit or dp.rows(),
        budget=Budget(epsilon=epsilon, per=per),
        ledger=path,
        table="visits",
        **more,
    )


def rows_of(session):
    return [x for batch in session.curator.source.batches(["x"]) for x in batch.column("x").to_pylist()]


def by(unit, per=MONTHS, **more):
    return opened(unit=unit, per=Period(column=per.column, every=per.every, total="unlimited"), **more)


def test_a_period_is_a_function_of_the_row_and_what_has_no_date_belongs_to_none():
    visits = opened()
    found = {p: rows_of(visits.during(p)) for p in ("2025-12", "2026-01", "2026-02", "2026-03")}
    assert found == {"2025-12": [], "2026-01": [1, 2], "2026-02": [3, 4], "2026-03": [7]}
    assert sorted(rows_of(visits.during("2026-01", "2026-03"))) == [1, 2, 7]
    assert rows_of(visits) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("every", "name", "first", "last"),
    [
        ("day", "2024-02-29", "2024-02-29", "2024-03-01"),
        ("week", "2026-W01", "2025-12-29", "2026-01-05"),
        ("month", "2026-12", "2026-12-01", "2027-01-01"),
        ("quarter", "2026-Q4", "2026-10-01", "2027-01-01"),
        ("year", "2026", "2026-01-01", "2027-01-01"),
    ],
)
def test_the_days_of_a_period(every, name, first, last):
    assert [day.isoformat() for day in stretch(name, every)] == [first, last]


@pytest.mark.parametrize(
    "bad",
    [
        "2026",
        "2026-1",
        "2026-13",
        "2026-01-01",
        " 2026-01",
        "٢٠٢٦-٠١",
        "",
        None,
        5,
        "9999-12",
        "x' OR 1=1 --",
    ],
)
def test_what_is_no_period_is_refused_before_anything_is_charged(bad):
    visits = opened()
    with pytest.raises(dp.InvalidInput, match="month such as '2026-01'"):
        visits.during(bad)
    with pytest.raises(dp.InvalidInput, match="periods must not be empty"):
        visits.during()
    assert [entry.kind for entry in visits.ledger.entries()] == ["open"]


def test_each_period_has_its_own_budget_and_a_release_is_charged_to_what_it_reads():
    visits = opened()
    january, february = visits.during("2026-01"), visits.during("2026-02")
    january.sql(COUNT, epsilon=1)
    with pytest.raises(
        dp.BudgetExceeded, match=r"^period 2026-01: this would raise epsilon from 1 to 1.5, above the limit 1"
    ):
        january.sql(COUNT, epsilon=0.5)
    assert (january.spent, february.spent) == (1, 0)
    assert january.remaining < 1e-9 < 1 <= february.remaining
    february.sql(COUNT, epsilon=0.25)
    with pytest.raises(dp.BudgetExceeded, match="period 2026-01"):
        visits.during("2026-01", "2026-02").sql(COUNT, epsilon=0.5)
    visits.during("2026-02", "2026-03").sql(COUNT, epsilon=0.5)
    assert {a.of: a.used for a in visits.accounts} == {
        "period 2026-01": 1, "period 2026-02": 0.75, "period 2026-03": 0.5, "any other period": 0,
    }  # fmt: skip
    assert visits.curator.verify() == []


def test_a_question_about_the_whole_table_is_charged_to_all_periods_past_and_to_come():
    visits = opened()
    visits.during("2026-01").sql(COUNT, epsilon=0.5)
    visits.sql(COUNT, epsilon=0.5)
    with pytest.raises(dp.BudgetExceeded, match="period 2026-01"):
        visits.sql(COUNT, epsilon=0.25)
    later = visits.during("2031-07")
    assert later.spent == 0.5
    later.sql(COUNT, epsilon=0.5)
    assert visits.spent == 1
    assert visits.preview(COUNT, epsilon=0.1).fits == 0
    assert visits.during("2031-08").preview(COUNT, epsilon=0.1).fits == 5


def test_the_same_question_of_two_periods_is_two_questions_and_asked_again_is_free():
    visits = opened()
    first = visits.during("2026-01").sql(COUNT, epsilon=0.5)
    visits.during("2026-02").sql(COUNT, epsilon=0.5)
    assert visits.during("2026-01").sql(COUNT, epsilon=0.5) == first
    assert [a.used for a in visits.accounts] == [0.5, 0.5, 0]


def test_a_person_in_many_periods_makes_the_steward_choose():
    with pytest.raises(dp.InvalidInput, match="a person may have rows in many periods"):
        opened(unit="who")
    capped = opened(unit="who", per=Period(column="day", every="month", total=Budget(epsilon=1.5)))
    capped.during("2026-01").sql(COUNT, epsilon=1, rows=1)
    capped.during("2026-02").sql(COUNT, epsilon=0.5, rows=1)
    with pytest.raises(dp.BudgetExceeded, match="all periods together"):
        capped.during("2026-03").sql(COUNT, epsilon=0.5, rows=1)
    free = by("who")
    for month in ("2026-01", "2026-02", "2026-03"):
        free.during(month).sql(COUNT, epsilon=1, rows=1)
    assert capped.curator.verify() == free.curator.verify() == []


@pytest.mark.parametrize(("size", "match"), [(1000, "not below 1 / 1,000"), (None, "above 0.001")])
def test_the_delta_of_all_periods_together_is_checked_like_any_other(size, match):
    """A total with a delta of one over the people promises nothing to a person in many periods."""
    total = Period(column="day", every="month", total=Budget(epsilon=10, delta=0.5))
    with pytest.raises(dp.InvalidInput, match=match):
        opened(unit="who", per=total, **({} if size is None else {"size": size}))


@pytest.mark.parametrize(
    "wrong", [{"every": ["month"]}, {"total": np.array([1, 2])}, {"total": ["unlimited"]}]
)
def test_a_period_of_another_type_is_refused_in_words(wrong):
    with pytest.raises(dp.InvalidInput, match="must be"):
        Period(column="day", **wrong)


def test_reading_several_periods_costs_a_person_as_a_group_of_two():
    visits = by("who")
    visits.during("2026-01").sql(COUNT, epsilon=0.25, rows=1)
    visits.during("2026-01", "2026-02").sql(COUNT, epsilon=0.25, rows=1)
    visits.sql(COUNT, epsilon=0.125, rows=1)
    assert {a.of: a.used for a in visits.accounts} == {
        "period 2026-01": 1, "period 2026-02": 0.75, "any other period": 0.25,
    }  # fmt: skip


rows = st.tuples(st.sampled_from(DAYS), st.sampled_from(["a", "b", "c"]), st.integers(0, 10))


@settings(max_examples=15, deadline=None)
@given(st.lists(rows, min_size=1, max_size=8), st.sampled_from(["2026-01", "2026-02"]), st.booleans())
def test_one_units_rows_within_one_period_move_no_other_period(table, period, people):
    """Take one unit's rows out of one period: every other period sees the very same rows, and this one loses
    one unit."""
    table = [*table, ("2026-03-01", "c", 5)]
    public = dp.Public(schema=SCHEMA, table="visits", unit=dp.Unit("who") if people else dp.rows())
    per = Period(column="day", every="month", total="unlimited")
    mine = [(d or "")[:7] == period and (w == "a" if people else i == 0) for i, (d, w, _) in enumerate(table)]
    kept = [row for row, out in zip(table, mine, strict=True) if not out]

    def opened_of(found):
        types = zip(SCHEMA, (pa.string(), pa.string(), pa.int64()), strict=True)
        columns = {name: pa.array([row[i] for row in found], kind) for i, (name, kind) in enumerate(types)}
        return connect(pa.table(columns), public)

    def seen(engine, month):
        part = per.restrict(engine, (month,))
        return sorted(str(row) for batch in part.batches(["day", "who", "x"]) for row in batch.to_pylist())

    whole, less = opened_of(table), opened_of(kept)
    for month in ("2025-12", "2026-01", "2026-02", "2026-03"):
        before, after = seen(whole, month), seen(less, month)
        assert (before == after) if month != period else (len(before) - len(after) == sum(mine))


def test_a_restart_an_export_and_a_rewritten_total(tmp_path):
    path = tmp_path / "visits.ledger"
    opened(path).during("2026-01").sql(COUNT, epsilon=0.75)
    again = opened(path)
    assert again.during("2026-01").spent == 0.75
    charge = next(again.ledger.entries(kind="charge"))
    assert charge.to_json()["body"]["periods"] == {"by": ["day", "month"], "in": ["2026-01"]}
    account = again.ledger.last("account")
    with again.ledger.writing() as writer:  # what a steward with the key, but not honest, could write
        nothing = {**account.body, "spent": {**account.body["spent"], "sums": [0]}}
        writer.append("account", nothing, topic=account.topic)
    assert again.curator.verify() == ["the running total of period 2026-01 is not what the charges add up to"]


def test_budgets_that_change_count_everything_again(tmp_path):
    visits = opened()
    visits.during("2026-01").sql(COUNT, epsilon=0.5)
    visits.during("2026-02").sql(COUNT, epsilon=0.75)
    with pytest.raises(dp.BudgetExceeded, match="above the limit 1"):
        visits.curator.change_policy(Policy(budget=Budget(epsilon=1)))  # together they are 1.25
    quarters = Budget(epsilon=2, per=Period(column="day", every="quarter"))
    visits.curator.change_policy(Policy(budget=quarters))
    assert [(a.of, a.used) for a in visits.accounts] == [
        ("any other period", 1.25)
    ]  # months count for all quarters
    visits.during("2026-Q1").sql(COUNT, epsilon=0.5)
    assert visits.during("2026-Q1").spent == 1.75
    visits.curator.change_policy(Policy(budget=Budget(rho=1, per=MONTHS)))
    assert visits.during("2026-02").spent == pytest.approx(0.75**2 / 2 + 0.5**2 / 2)
    assert visits.curator.verify() == []


def test_analysts_may_have_budgets_per_period_too():
    own = Budget(epsilon=0.5, per=MONTHS)
    visits = opened(analysts={"ann": own, "bob": Budget(epsilon=0.75), "cleo": None})
    ann, bob = visits.as_analyst("ann"), visits.as_analyst("bob")
    ann.during("2026-01").sql(COUNT, epsilon=0.5)
    ann.during("2026-02").sql(COUNT, epsilon=0.5)
    with pytest.raises(dp.BudgetExceeded, match="ann, period 2026-02"):
        ann.during("2026-02").sql(COUNT, epsilon=0.25)
    bob.during("2026-01").sql(COUNT, epsilon=0.5)  # ann's, from the store: the dataset pays nothing
    with pytest.raises(dp.BudgetExceeded, match=r"above the limit 0\.75"):
        bob.during("2026-03").sql(COUNT, epsilon=0.5)
    assert visits.during("2026-01").spent == 0.5
    assert visits.curator.verify() == []
    with pytest.raises(dp.InvalidInput, match="the dataset's must be so too"):
        Policy(budget=Budget(epsilon=1), analysts={"ann": own})


def test_a_cap_for_one_period_does_not_hold_for_a_table_that_is_cut_in_another_way(tmp_path):
    """It was certified for one unit; a whole table is seen by a group of two, and the change was refused with
    words about a release."""
    total = Budget(epsilon=30, delta=1e-6)

    def budget(every):
        per = Period(column="day", every=every, total=total)
        return Budget(epsilon=20, delta=1e-6, per=per)

    visits = dp.open(
        DATA,
        schema=SCHEMA,
        unit="who",
        budget=budget("month"),
        ledger=tmp_path / "v.ledger",
        table="visits",
        large_epsilon=True,
    )
    terms = {"epsilon": 1, "delta": 1e-7, "rows": 2, "noise": "gaussian"}
    visits.during("2026-01").sql(COUNT, **terms)
    assert visits.during("2026-01").spent == 1
    visits.curator.change_policy(Policy(budget=budget("quarter")), large_epsilon=True)
    charge = next(e for e in visits.ledger.entries(kind="charge"))
    pair = acc.Group(event=acc.events.from_json(charge.body["event"]), size=2)
    assert visits.spent >= acc.epsilon(pair, delta=1e-6) > 1
    assert visits.curator.verify() == []


def test_a_stream_of_batches_is_refused_in_a_period_before_it_is_charged():
    """Its batches are no part of the period, so that it could never have been fed."""
    visits = opened()
    january = visits.during("2026-01")
    with pytest.raises(dp.InvalidInput, match="any period"):
        january.stream(COUNT, epsilon=0.5, horizon=4)
    assert january.spent == 0
    daily = january.stream("SELECT day, COUNT(*) AS n FROM visits GROUP BY day", epsilon=0.5, horizon=4)
    daily.feed()
    assert (january.spent, daily.steps) == (0.5, 1)


def test_live_answerers_and_earlier_releases_are_charged_to_their_period():
    january = opened().during("2026-01")
    live = january.start(AboveThreshold(public=january.public, threshold=50, epsilon=0.5))
    assert january.curator.resume(live.mechanism, live.number).number == live.number
    with pytest.raises(dp.DiscreetError, match="not the start of this mechanism"):
        january.curator.during("2026-02").resume(live.mechanism, live.number)
    january.curator.enter(acc.PureDP(epsilon=0.25), "the report of January")
    assert january.spent == 0.75
    assert january.curator.during("2026-02").used == 0


def test_a_mechanism_for_one_period_is_refused_on_another():
    visits = opened()
    with pytest.raises(dp.PublicMismatch, match="version differ"):
        visits.during("2026-02").ask(noisy_count(visits.during("2026-01").public, epsilon=0.1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per": Period(column="x", every="month")}, "needs a Dates column"),
        ({"per": Period(column="day")}, "every='month'"),
        ({"per": Period(column="nowhere")}, "nothing is declared"),
        ({"per": "month"}, "per must be a Period"),
        ({"neighbors": "replace"}, "proved for add_remove"),
        ({"per": Period(column="who", total="unlimited"), "unit": "who"}, "tells people apart"),
    ],
)
def test_what_cannot_be_promised_is_refused_at_the_start(options, message):
    with pytest.raises(dp.DiscreetError, match=message):
        opened(**options)


@pytest.mark.parametrize(
    "bad", [{"column": ""}, {"column": "day", "every": "moon"}, {"column": "day", "total": 5}]
)
def test_bad_periods_are_refused(bad):
    with pytest.raises(dp.InvalidInput, match="must be"):
        Period(**bad)


def test_labels_and_whole_numbers_are_periods_too(tmp_path):
    schema = {"year": dp.Bounds(2000, 2100), "wave": dp.Categories(["one", "two"])}
    data = {"year": [2025, 2025, 2026], "wave": ["one", "two", "o'ne"]}
    for column, name, count in (("year", "2025", 2), ("year", 2026, 1), ("wave", "two", 1)):
        budget = Budget(epsilon=60, per=Period(column=column))
        part = dp.open(
            data, unit=dp.rows(), schema=schema, budget=budget, ledger=":memory:", large_epsilon=True
        ).during(name)
        assert part.sql("SELECT COUNT(*) AS n FROM data", epsilon=50).value == count
        with pytest.raises(dp.InvalidInput, match="'three'"):
            part.curator.during("three")
    with pytest.raises(dp.InvalidInput, match="one budget, not one per period"):
        dp.open(data, unit=dp.rows(), schema=schema, budget=Budget(epsilon=1), ledger=":memory:").during(
            "2025"
        )


def test_a_part_of_a_part_is_refused():
    part = within(opened().curator.source, "day", ["x"], called="once")
    with pytest.raises(dp.Unsupported, match="cannot be restricted to a part of its rows"):
        within(part, "day", ["x"], called="twice")


def _enter_january(path, results):
    curator = Curator.open(path, Memory(DATA, dp.Public(schema=SCHEMA, table="visits")))
    # as `during` would, without an engine in a forked process
    curator.periods, curator._period_cut = ("2026-01",), MONTHS.cut
    paid = 0
    while True:
        try:
            curator.enter(acc.PureDP(epsilon=0.125), "one more")
        except dp.BudgetExceeded:
            break
        paid += 1
    results.put(paid)


def test_sixteen_processes_at_once_never_overspend_a_period_by_one(tmp_path):
    path = tmp_path / "crowd.ledger"
    visits = Memory(DATA, dp.Public(schema=SCHEMA, table="visits"))
    Curator.create(path, visits, Policy(budget=Budget(epsilon=2, per=MONTHS)))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_enter_january, args=(path, results)) for _ in range(16)]
    for worker in workers:
        worker.start()
    paid = sum(results.get(timeout=600) for _ in workers)
    for worker in workers:
        worker.join()
    kept = Ledger(path)
    assert (paid, [(a.of, a.used) for a in books.accounts(kept)]) == (
        16,
        [("period 2026-01", 2), ("any other period", 0)],
    )
    assert books.verify(kept) == []
