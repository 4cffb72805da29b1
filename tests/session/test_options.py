"""What people are told: options by name, their own account, whom a table protects, how large a delta may
be."""

import copy
import pickle
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet import _registry, _require, mechanisms
from discreet._require import did_you_mean
from discreet.accounting import ApproximateDP
from discreet.curator import Curator, Policy
from discreet.session.fitting import tightest_epsilon
from discreet.session.streams import find_stream
from discreet.tables import Memory

SCHEMA = {"age": dp.Bounds(0, 100), "ward": dp.Categories(["East", "West"])}
DATA = {"id": [i // 3 for i in range(300)], "age": [40] * 300, "ward": ["East", "West", "West"] * 100}
COUNT = "SELECT COUNT(*) AS n FROM people"


def opened(**options):
    settings = {
        "unit": dp.rows(),
        "schema": SCHEMA,
        "table": "people",
        "budget": dp.Budget(epsilon=4, delta=1e-6),
        "ledger": ":memory:",
        "analysts": {"ann": dp.Budget(epsilon=1), "bob": None},
    }
    return dp.open(DATA, **{**settings, **options})


@pytest.mark.parametrize(
    ("call", "wrong", "near"),
    [
        (lambda s: s.sql(COUNT, epsilom=1), "epsilom", "epsilon"),
        (lambda s: s.preview(COUNT, epsilon=1, confidnce=0.9), "confidnce", "confidence"),
        (lambda s: s.watch(5, epsilon=1, postives=2), "postives", "positives"),
        (lambda s: s.fit(object(), targt="age"), "targt", "target"),
        (lambda s: dp.open(DATA, scema=SCHEMA), "scema", "schema"),
        (lambda s: dp.Budget(epsilom=1), "epsilom", "epsilon"),
        (lambda s: dp.Bounds(lower=0, uper=1), "uper", "upper"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_name(call, wrong, near):
    with pytest.raises(dp.DiscreetError, match=f"no option '{wrong}'. Did you mean '{near}'"):
        call(opened())


def test_a_budget_without_a_name_says_how_to_write_it():
    with pytest.raises(dp.DiscreetError, match=r"write Budget\(epsilon=1\)"):
        dp.Budget(1)
    with pytest.raises(TypeError, match="Bounds"):
        dp.Bounds(1)


def test_a_type_error_of_a_value_is_not_taken_for_a_misspelt_option():
    with pytest.raises(dp.DiscreetError, match="lower must be a number") as refused:
        dp.Bounds("a", 2)
    assert not isinstance(refused.value, dp.UnknownOption)


def test_nothing_is_charged_for_a_misspelt_option():
    people = opened()
    with pytest.raises(dp.UnknownOption, match="no option 'row'"):
        people.sql(COUNT, epsilon=1, row=2)
    assert people.spent == 0


def test_an_analyst_sees_their_own_account_everywhere():
    people = opened()
    people.sql(COUNT, epsilon=2)
    ann, bob = people.as_analyst("ann"), people.as_analyst("bob")
    assert ann.budget == dp.Budget(epsilon=1)
    assert (ann.spent, bob.spent) == (0, people.spent)
    ann.sql(f"{COUNT} WHERE age > 3", epsilon=0.5)
    assert ann.spent == pytest.approx(0.5)
    assert ann.remaining == pytest.approx(0.5)
    assert [account.of for account in ann.accounts] == ["ann"]
    view = ann.preview(COUNT, epsilon=0.25)
    assert (view.budget.before, view.budget.limit) == (pytest.approx(0.5), pytest.approx(1))
    assert "1 used" in repr(ann)
    assert "4 used" in repr(people)


def test_an_analyst_is_not_told_what_others_spent_when_the_datasets_budget_is_gone():
    people = opened()
    people.sql(COUNT, epsilon=3.9)
    ann = people.as_analyst("ann")
    view = ann.preview(COUNT + " WHERE age > 1", epsilon=0.7)
    assert not view.admitted
    with pytest.raises(dp.BudgetExceeded, match="the dataset's budget") as refused:
        ann.sql(COUNT + " WHERE age > 1", epsilon=0.7)
    assert "3.9" not in str(refused.value)
    assert "the dataset's budget" in str(refused.value)
    assert ann.spent == 0


def test_the_delta_of_a_question_is_the_analysts_own():
    ann = opened().as_analyst("ann")
    assert ann.preview("SELECT ward, COUNT(*) AS n FROM people GROUP BY ward", epsilon=0.1).query.delta == 0
    session = opened(schema={**SCHEMA, "id": dp.Text()})
    with pytest.raises(dp.BudgetExceeded, match="ann has no delta"):
        session.as_analyst("ann").sql(
            "SELECT id, COUNT(*) AS n FROM people GROUP BY id", epsilon=0.1, delta=1e-8
        )


def test_whom_a_table_protects_has_no_default():
    with pytest.raises(dp.InvalidInput, match=r"unit=dp\.rows\(\)"):
        opened(unit=None)


@pytest.mark.parametrize(
    ("size", "delta", "why"),
    [(1000, 1e-3, "1 / 1,000"), (1000, 0.5, "1 / 1,000"), (None, 2e-3, "large_delta")],
)
def test_a_delta_that_promises_nothing_is_refused(size, delta, why):
    with pytest.raises(dp.InvalidInput, match=why):
        opened(size=size, budget=dp.Budget(epsilon=1, delta=delta))


def test_a_large_delta_needs_an_explicit_word_and_a_declared_size_cannot_be_talked_over():
    assert opened(budget=dp.Budget(epsilon=1, delta=2e-3), large_delta=True).budget.delta == 2e-3
    with pytest.raises(dp.InvalidInput, match="1 / 300"):
        opened(size=300, budget=dp.Budget(epsilon=1, delta=0.1), large_delta=True)
    people = opened(size=300)
    with pytest.raises(dp.InvalidInput, match="1 / 300"):
        people.curator.change_policy(Policy(budget=dp.Budget(epsilon=5, delta=0.1)))


def test_the_analysts_delta_is_judged_too(tmp_path):
    source = Memory({"age": [1]}, dp.Public(schema={"age": dp.Bounds(0, 1)}, size=100))
    policy = Policy(budget=dp.Budget(epsilon=1), analysts=(("ann", dp.Budget(epsilon=1, delta=0.01)),))
    with pytest.raises(dp.InvalidInput, match="1 / 100"):
        Curator.create(tmp_path / "x.ledger", source, policy)
    assert not (tmp_path / "x.ledger").exists()


@dataclass
class MeanOf:
    """An estimator that is one noisy number: fitted in one step, and not trained."""

    epsilon: float
    value: Any = field(default=None)

    def mechanism(self, public, *, target, features=None, delta=None):
        return mechanisms.noisy_sum(public, target, epsilon=self.epsilon)

    def adopt(self, release, mechanism):
        self.value = release.value
        return self


def test_an_estimator_that_is_not_trained_in_steps_fits_too():
    people = opened()
    model = people.fit(MeanOf(epsilon=1), target="age")
    assert abs(float(model.value) - 12_000) < 3_000
    assert people.spent == pytest.approx(1)
    last = [entry for entry in people.ledger.entries() if entry.kind == "charge"][-1]
    assert last.body["text"] == "MeanOf of age"


def test_what_is_fitted_in_one_step_has_nothing_to_save_on_the_way(tmp_path):
    people = opened()
    with pytest.raises(dp.InvalidInput, match="in one step"):
        people.fit(MeanOf(epsilon=1), target="age", checkpoint=tmp_path / "run")
    assert people.spent == 0


def test_a_priced_question_tells_whom_a_limit_cuts_off():
    people = opened(unit=dp.Unit("id", rows=2), budget=dp.Budget(epsilon=1000), large_epsilon=True)
    found = people.cut_off(rows=2, epsilon=100)
    assert found["units"] == pytest.approx([100], abs=2)
    assert found["above"] == pytest.approx([100], abs=2)
    assert people.cut_off(rows=3, epsilon=100)["above"] == pytest.approx([0], abs=2)
    assert people.cut_off(groups=1, by="ward", epsilon=100)["above"] == pytest.approx([100], abs=2)
    assert people.cut_off(groups=1, by="ward", where="ward = 'West'", epsilon=100)["above"] == pytest.approx(
        [0], abs=2
    )
    with pytest.raises(dp.InvalidInput, match="the unit is a row"):
        opened().cut_off(rows=2, epsilon=1)


@pytest.mark.parametrize(
    ("sql", "near", "fault"),
    [
        (f"{COUNT} WHERE ward = 'east'", "Did you mean 'East'", "'east'"),
        (f"{COUNT} WHERE ward IN ('East', 'Wets')", "Did you mean 'West'", "'Wets'"),
        (f"{COUNT} WHERE 'North' = ward", "declared values", "'North'"),
        (
            "SELECT CASE ward WHEN 'Eastt' THEN 1 ELSE 0 END AS x, COUNT(*) AS n FROM people GROUP BY 1",
            "Did you mean 'East'",
            "'Eastt'",
        ),
        ("SELECT wrad, COUNT(*) AS n FROM people GROUP BY wrad", "Did you mean 'ward'", "wrad"),
        ("SELECT COUNT(*) AS n FROM peopel", "Did you mean 'people'", "peopel"),
        ("SELECT AVGE(age) AS n FROM people", "Did you mean 'AVG'", "AVGE"),
        ("SELEC COUNT(*) FORM people", "Did you mean 'SELECT'", "SELEC"),
        ("SELECT COUNT(*) AS n FORM people", "Did you mean 'FROM'", "FORM"),
        ("SELECT COUNT(*) AS n\nFROM people GRUP BY ward", "Did you mean 'GROUP'", "GRUP"),
    ],
)
def test_a_fault_is_named_where_it_is_with_what_was_meant_before_anything_is_charged(sql, near, fault):
    people = opened()
    with pytest.raises(dp.query.QueryError, match=near) as refused:
        people.sql(sql, epsilon=0.1)
    line, column = next((n, row.index(fault) + 1) for n, row in enumerate(sql.split("\n"), 1) if fault in row)
    assert (refused.value.line, refused.value.column) == (line, column)
    assert people.spent == 0


def test_columns_are_named_as_the_steward_wrote_them():
    people = dp.open(
        {"Größe cm": [180.0]}, unit=dp.rows(), schema={"Größe cm": dp.Bounds(0, 300)}, table="people",
        budget=dp.Budget(epsilon=1), ledger=":memory:",
    )  # fmt: skip
    with pytest.raises(dp.InvalidInput, match="Did you mean 'Größe cm'"):
        people.sql('SELECT AVG("Grösse cm") AS n FROM people', epsilon=0.1)


def test_names_that_are_far_from_all_get_no_guess():
    assert did_you_mean("zzz", ["age", "ward"]) == ""
    assert did_you_mean("x", []) == ""


def test_an_answer_says_what_its_errors_leave_out():
    people = opened(unit=dp.Unit("id", rows=2, groups=1))
    answer = people.sql("SELECT ward, COUNT(*) AS n, MAX(age) AS m FROM people GROUP BY ward", epsilon=1)
    assert any("counts at most 2 rows of one id in each of at most 1 group" in note for note in answer.notes)
    assert any("99% quantiles" in note for note in answer.notes)
    assert any("GROUP BY value is missing" in note for note in answer.notes)
    assert all(note in str(answer) for note in answer.notes)
    assert opened().sql(COUNT, epsilon=1).notes == ()
    again = dp.query.Answer.from_json(answer.to_json())
    assert again.notes == answer.notes


def test_a_notebook_shows_answers_previews_sessions_and_budgets():
    people = opened()
    answer = people.sql("SELECT ward, COUNT(*) AS n FROM people GROUP BY ward", epsilon=1)
    assert "±" in answer._repr_html_()
    assert "<table>" in answer._repr_html_()
    assert "epsilon 0.5" in people.preview(COUNT, epsilon=0.5)._repr_html_()
    assert "people" in people._repr_html_()
    assert "4 used" in people._repr_html_()
    assert "epsilon=4" in people.budget._repr_html_()


def test_a_budget_prints_limit_spent_and_left_of_epsilon_and_delta():
    people = opened(analysts={"ann": dp.Budget(rho=0.5, delta=1e-7), "bob": None})
    assert str(people.budget).splitlines() == [
        "dataset  limit  spent  left",
        "epsilon  4      0      4",
        "delta    1e-06  0      5e-07",
        "(of delta, 5e-07 is kept for adding up many small prices)",
    ]
    people.sql(COUNT, epsilon=1, delta=1e-7, noise="gaussian")
    budget = people.budget
    assert isinstance(people.spent + people.remaining, float)
    spent, left = (f"{x:.6g}" for x in (people.spent, people.remaining))
    assert str(budget).splitlines()[1].split() == ["epsilon", "4", spent, left]
    assert str(budget).splitlines()[2].split() == ["delta", "1e-06", "1e-07", "4e-07"]
    people.as_analyst("ann").sql(COUNT, rho=0.1)
    assert str(people.as_analyst("bob").budget) == str(budget)
    assert str(people.as_analyst("ann").budget).splitlines() == [
        "ann    limit  spent  left",
        "rho    0.5    0.1    0.4",
        "delta  1e-07  0      1e-07",
    ]
    assert "epsilon  4" in budget._repr_html_()
    # at the time of printing
    people.sql(COUNT, epsilon=0.5)
    assert str(budget).splitlines()[1].split()[2] == f"{people.spent:.6g}" != spent


def test_the_budget_of_a_session_is_a_budget_like_any_other():
    people = opened()
    budget, plain = people.budget, dp.Budget(epsilon=4, delta=1e-6)
    assert budget == plain
    assert hash(budget) == hash(plain)
    assert repr(budget) == repr(plain) == str(plain) == "Budget(epsilon=4, delta=1e-06)"
    assert _registry.to_json(budget) == _registry.to_json(plain)
    for other in (copy.copy(budget), pickle.loads(pickle.dumps(budget)), replace(budget)):
        assert str(other) == repr(plain)
    assert opened(budget=budget).budget == plain


def test_a_budget_per_period_prints_each_account():
    total = dp.Budget(epsilon=3, delta=1e-7)
    per = dp.Period(column="ward", total=total)
    people = opened(budget=dp.Budget(epsilon=1, delta=1e-8, per=per), analysts={})
    people.during("East").sql(COUNT, epsilon=0.25)
    tables = [table.splitlines() for table in str(people.budget).split("\n\n")]
    names = ["period East", "any other period", "all periods together"]
    assert [table[0].removesuffix("limit  spent  left").strip() for table in tables] == names
    amounts = [["1", "0.25", "0.75"], ["1", "0", "1"], ["3", "0.25", "2.75"]]
    assert [table[1].split()[1:] for table in tables] == amounts
    assert [table[2].split()[1:] for table in tables] == [["1e-08", "0", "5e-09"]] * 2 + [
        ["1e-07", "0", "5e-08"]
    ]


def test_what_others_wrote_is_escaped_in_a_notebook():
    schema = {"age": dp.Bounds(0, 100), "ward": dp.Categories(["<script>", "b"])}
    people = dp.open(
        {"age": [1], "ward": ["b"]},
        unit=dp.rows(),
        schema=schema,
        table="p",
        budget=dp.Budget(epsilon=1),
        ledger=":memory:",
    )
    page = people.sql('SELECT ward AS "<b>", COUNT(*) AS n FROM p GROUP BY ward', epsilon=1)._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;" in page


def test_one_number_is_a_float_and_a_frame_has_its_intervals():
    pandas = pytest.importorskip("pandas")
    people = opened()
    answer = people.sql(COUNT, epsilon=1)
    assert float(answer) == answer.value
    frame = answer.to_pandas()
    assert list(frame.columns) == ["n", "n_low", "n_high"]
    assert frame["n_low"][0] < answer.value < frame["n_high"][0]
    assert isinstance(frame, pandas.DataFrame)
    table = people.sql("SELECT ward, COUNT(*) AS n FROM people GROUP BY ward", epsilon=0.1)
    with pytest.raises(dp.InvalidInput, match="name a column"):
        float(table)


def test_an_average_without_a_value_has_columns_of_intervals():
    """Whether a frame had `a_low` hung on the noise."""
    pytest.importorskip("pandas")
    people = dp.open(
        {"x": [1.0, 2.0]}, schema={"x": dp.Bounds(0.0, 9.0)}, unit=dp.rows(), table="p",
        budget=dp.Budget(epsilon=1), ledger=":memory:",
    )  # fmt: skip
    for _ in range(60):
        answer = people.sql("SELECT AVG(x) AS a FROM p", epsilon=0.01, fresh=True)
        assert list(answer.to_pandas().columns) == ["a", "a_low", "a_high"]


def test_an_answer_draws_itself():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = opened().sql("SELECT ward, COUNT(*) AS n FROM people GROUP BY ward", epsilon=1).plot()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["East", "West"]
    plt.close(axes.figure)


def test_a_lazy_frame_is_a_table_and_an_address_is_none():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"age": [1, 2, 3]}).lazy()
    people = dp.open(
        frame,
        unit=dp.rows(),
        schema={"age": dp.Bounds(0, 9)},
        budget=dp.Budget(epsilon=9),
        ledger=":memory:",
        table="t",
    )
    assert abs(float(people.sql("SELECT COUNT(*) AS n FROM t", epsilon=8)) - 3) < 10
    with pytest.raises(dp.InvalidInput, match="is an address"):
        dp.open("https://example.org/x.csv", unit=dp.rows(), schema={}, budget=dp.Budget(epsilon=9))


def test_a_disk_without_room_for_a_checkpoint_is_noticed_before_the_charge(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    people, run = opened(), tmp_path / "run"
    copy = {"epsilon": 0.5, "method": "independent", "checkpoint": run}
    with monkeypatch.context() as patch:
        patch.setattr("discreet.session.fitting.os.fsync", full)
        with pytest.raises(dp.InvalidInput, match=r"No space left on device.*Nothing was charged"):
            people.synthesize(5, **copy)
    assert people.spent == 0
    assert list(tmp_path.iterdir()) == []
    people.synthesize(5, **copy)
    assert people.spent > 0
    assert list(tmp_path.iterdir()) == [run]


def test_what_is_said_beside_a_complete_schema_must_agree_with_it(tmp_path):
    public = dp.Public(schema=SCHEMA, unit=dp.Unit("id", rows=2), table="people")
    options = {"budget": dp.Budget(epsilon=1), "ledger": ":memory:"}
    assert dp.open(DATA, schema=public, unit="id", **options).public.unit.rows == 2
    with pytest.raises(dp.InvalidInput, match="Say it in one place"):
        dp.open(DATA, schema=public, unit=dp.rows(), **options)
    with pytest.raises(dp.InvalidInput, match="Say it in one place"):
        dp.open(DATA, schema=public, size=5, **options)
    with pytest.raises(dp.InvalidInput, match="neighbors = 'add_remove', and neighbors='replace'"):
        dp.open(DATA, schema=public, neighbors="replace", **options)
    with pytest.raises(dp.InvalidInput, match="Say it in one place"):
        dp.open(DATA, schema=replace(public, version="1 May"), version="2 May", **options)
    assert dp.open(DATA, schema=public, version="2 May", **options).public.version == "2 May"


@pytest.mark.parametrize("fact", [{"unit": "id"}, {"neighbors": "replace"}, {"size": 5}, {"version": "2"}])
def test_what_is_said_beside_a_connected_source_must_agree_with_it(fact):
    """A unit given beside a source was ignored: rows were protected where people were meant."""
    source = Memory(DATA, dp.Public(schema=SCHEMA, unit=dp.rows(), table="people"))
    options = {"budget": dp.Budget(epsilon=1), "ledger": ":memory:"}
    with pytest.raises(dp.InvalidInput, match="Say it in one place"):
        dp.open(source, **fact, **options)
    assert dp.open(source, unit=dp.rows(), table="people", **options).public == source.public


@pytest.mark.parametrize(
    "option", [{"groups": 3}, {"noise": "laplace"}, {"other": True}, {"weights": {"n": 1}}]
)
def test_a_preview_of_several_questions_ignores_no_option(option):
    with pytest.raises(dp.InvalidInput, match="Leave the others out"):
        opened().preview([COUNT], epsilon=1, **option)


def test_the_newest_stream_of_an_analyst_is_their_own():
    """The newest of all was taken, and refused where somebody else had started it."""
    people = opened()
    ann, bob = people.as_analyst("ann"), people.as_analyst("bob")
    own, others = (s.stream(COUNT, epsilon=0.5, delta=0, horizon=4) for s in (ann, bob))
    assert find_stream(ann).number == own.number
    assert find_stream(people).number == find_stream(bob).number == others.number
    with pytest.raises(dp.DiscreetError, match="ann"):
        find_stream(ann, others.number)


def test_an_epsilon_of_basic_composition_is_not_shown_at_a_smaller_delta(monkeypatch):
    """Where no accountant knew an event, the epsilon of another delta stood beside this one."""
    monkeypatch.delattr("discreet.session.fitting.epsilon_of")
    event = ApproximateDP(epsilon=1, delta=1e-3)
    assert tightest_epsilon(event, 1e-2) == 1
    assert tightest_epsilon(event, 1e-6) == float("inf")


TINY, VAST = Fraction(1, 10**400), 10**400


@pytest.mark.parametrize("price", [5e-324, 1e-308, 1e308, TINY, VAST, Fraction(VAST)])
def test_a_price_that_no_float_holds_is_refused_in_words(price):
    """These were OverflowErrors: noise for a part of such a price has no deviation that can be shown."""
    people = opened()
    count, both = COUNT, "SELECT COUNT(*) AS n, SUM(age) AS t FROM people"
    asks = [
        lambda: people.sql(count, epsilon=price),
        lambda: people.sql(count, rho=price),
        lambda: people.sql(both, epsilon=0.1, weights={"n": price}),
        lambda: people.workload([count], epsilon=price),
        lambda: people.plan([count], epsilon=price),
        lambda: people.plan([{"sql": count, "weight": price}], epsilon=0.1),
        lambda: people.stream(count, epsilon=price, horizon=4),
        lambda: people.watch(10, epsilon=price),
    ]
    for ask in asks:
        # a plan says its own least epsilon first
        with pytest.raises(dp.InvalidInput, match=r"between 1e-100 and 1e\+100|at least 1e-09: below"):
            ask()
    assert people.spent == 0


def test_other_odd_options_are_refused_in_words():
    people = opened()
    count = COUNT
    for ask in (
        lambda: people.sql(count, epsilon=0.1, delta=1),
        lambda: people.workload([count], epsilon=0.1, delta=1),
        lambda: people.sql(count, epsilon=0.1, weights=3),
        lambda: people.sql(count, epsilon=0.1, weights=None),
        lambda: people.sql([1], epsilon=0.1),
        lambda: people.stream(count, epsilon=0.1, horizon=VAST),
        lambda: people.stream(count, epsilon=0.1, restart=VAST),
    ):
        with pytest.raises(dp.InvalidInput, match=r"delta|weights|text|horizon|restart"):
            ask()
    assert people.spent == 0
    assert len(people.plan([count], epsilon=np.float16(0.5)).items) == 1


def test_a_misspelt_attribute_names_the_nearest() -> None:
    people = dp.open({"x": [1, 2]}, table="t", schema={"x": dp.Bounds(0, 5)}, unit=dp.rows(),
                     budget=dp.Budget(epsilon=2), ledger=":memory:")  # fmt: skip
    answer = people.sql("SELECT COUNT(*) AS n FROM t", epsilon=1)
    cases: list[tuple[object, str, str]] = [
        (people, "query", "Did you mean 'sql'"),
        (people, "previw", "Did you mean 'preview'"),
        (people.preview("SELECT COUNT(*) AS n FROM t", epsilon=1), "admited", "'admitted'"),
        (answer, "n", r"answer\['n'\]"),
        (answer, "colums", "'columns'"),
        (dp, "Budgt", "Did you mean 'Budget'"),
        (dp.explain(1.0), "to_htm", "'to_html'"),
    ]
    for subject, name, hint in cases:
        assert not hasattr(subject, name)
        with pytest.raises(dp.UnknownAttribute, match=hint) as refused:
            getattr(subject, name)
        assert isinstance(refused.value, AttributeError)
    assert "mean" not in str(_unknown(answer, "__array_interface__"))
    assert copy.deepcopy(answer) == pickle.loads(pickle.dumps(answer)) == answer


def _unknown(subject: object, name: str) -> dp.UnknownAttribute:
    with pytest.raises(dp.UnknownAttribute) as refused:
        getattr(subject, name)
    return refused.value


def test_a_property_that_fails_shows_its_own_error() -> None:
    class Broken(_require.NearestNames):
        @property
        def value(self) -> int:
            raise AttributeError("inner")

    with pytest.raises(AttributeError, match="inner"):
        _ = Broken().value


@pytest.mark.parametrize("name", ["", ".", "/", 3, True])
def test_a_ledger_without_a_name_is_refused(name: Any) -> None:
    with pytest.raises(dp.InvalidInput, match="ledger must be the name of a file"):
        opened(ledger=name)


def test_gaussian_noise_on_a_budget_without_delta_is_refused_for_the_delta_not_for_epsilon():
    ann = opened().as_analyst("ann")
    for terms in ({"epsilon": 0.1, "delta": 1e-8, "noise": "gaussian"}, {"rho": 0.001}):
        with pytest.raises(dp.BudgetExceeded, match="ann has no delta") as refused:
            ann.sql(COUNT, **terms)
        assert "inf" not in str(refused.value)
        assert "Laplace" in refused.value.remedy
    assert ann.spent == 0


def test_a_plan_above_the_budget_says_so():
    session = opened()
    assert "does not pay for it" in str(session.plan([COUNT], epsilon=session.remaining + 1))
    assert "does not pay for it" not in str(session.plan([COUNT], epsilon=session.remaining))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("DESCRIBE people", "people has the columns"),
        ("SELECT column_name FROM information_schema.columns", "people has the columns"),
        ("EXPLAIN " + COUNT, "A preview of the SELECT is free"),
        ("SELECT TOP 5 ward, COUNT(*) AS n FROM people GROUP BY ward", "Write LIMIT"),
        ("SELECT STRING_AGG(ward, ',') AS w FROM people", "STRING_AGG cannot"),
        (COUNT + " WHERE age > (SELECT AVG(age) FROM people)", "ask two questions"),
    ],
)
def test_refusals_name_what_can_be_done_instead(text, hint, caplog):
    with pytest.raises(dp.InvalidInput) as refused:
        opened().sql(text, epsilon=0.1)
    assert hint in str(refused.value)
    assert not caplog.records


def test_the_public_facts_are_printed_one_column_a_line_and_a_session_points_to_them():
    session = opened()
    lines = str(session.public).splitlines()
    assert lines[0].startswith("table people: protects ")
    assert [line.split()[0] for line in lines[1:]] == [name for name, _ in session.public.schema]
    with pytest.raises(AttributeError, match="Did you mean 'public'"):
        session.columns  # noqa: B018
    with pytest.raises(dp.InvalidInput, match="intervals must be"):
        session.sql(COUNT, epsilon=0.1).to_pandas(intervals=95)
    with pytest.raises(dp.InvalidInput, match="rank or count"):
        session.sql("SELECT MEDIAN(age) AS m FROM people", within=1)
