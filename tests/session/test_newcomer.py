"""Where somebody who had read only the README came to a halt: what a session says there now."""

import re
import traceback

import pytest

import discreet as dp
from discreet.mechanisms.protocols import Release

AGES = [20.5] * 300 + [21.0] * 200 + [22.9] * 100
DATA = {"age": AGES, "Größe cm": [170.0, 180.5] * 300, "Alter (Jahre)": [40] * 600, "ward": ["A", "B"] * 300}
SCHEMA = {
    "age": dp.Bounds(0, 99),
    "Größe cm": dp.Bounds(0, 250),
    "Alter (Jahre)": dp.Bounds(0, 99),
    "ward": dp.Categories(["A", "B"]),
}
COUNT = "SELECT COUNT(*) AS n FROM people"


def opened(**options):
    settings = {
        "unit": dp.rows(),
        "schema": SCHEMA,
        "table": "people",
        "budget": dp.Budget(epsilon=200),
        "large_epsilon": True,
        "analysts": {"ann": dp.Budget(epsilon=1), "bob": None},
        "ledger": ":memory:",
    }
    data = options.pop("data", DATA)
    return dp.open(data, **{**settings, **options})


def refused(session, text, **options):
    before = session.spent
    with pytest.raises(dp.DiscreetError) as refusal:
        session.sql(text, **{"epsilon": 1, **options})
    assert session.spent == before
    return str(refusal.value)


@pytest.mark.parametrize(
    "select", ["COUNT(*) AS n", "COUNT(*) AS n, COUNT(*) FILTER (WHERE ward = 'A') AS a", "AVG(age) AS m"]
)
def test_groups_of_a_number_column_say_which_rows_they_leave_out(select):
    people = opened()
    by_age = f"SELECT age, {select} FROM people GROUP BY age"
    note = (
        "rows whose age is not a whole number are in no group: where it can have decimals, write FLOOR(age)"
    )
    assert note in str(people.preview(by_age, epsilon=50))
    answer = people.sql(by_age, epsilon=50)
    assert note in answer.notes
    assert note in str(answer)


def test_the_way_out_counts_every_row_and_has_no_such_note():
    people = opened()
    answer = people.sql("SELECT FLOOR(age) AS a, COUNT(*) AS n FROM people GROUP BY FLOOR(age)", epsilon=100)
    counts = dict(answer.rows)
    assert [counts[a] for a in (20, 21, 22)] == [300, 200, 100]
    assert not any("whole number" in note for note in answer.notes)
    quoted = people.preview('SELECT "Alter (Jahre)", COUNT(*) AS n FROM people GROUP BY 1', epsilon=1)
    assert 'FLOOR("Alter (Jahre)")' in str(quoted)


def test_a_workload_says_it_too():
    queries = ["SELECT age, COUNT(*) AS n FROM people GROUP BY age", COUNT]
    people = opened()
    assert "write FLOOR(age)" in str(people.preview(queries, epsilon=10))
    first, second = people.workload(queries, epsilon=10)
    assert "write FLOOR(age)" in str(first)
    assert second.notes == ()


@pytest.mark.parametrize("what", ["MEDIAN(age)", "MAX(age)", "MIN(age)", "MODE(ward)", "MEDIAN(age) * 2"])
def test_chosen_values_promise_no_error_that_never_comes(what):
    people = opened()
    text = f"SELECT {what} AS m, COUNT(*) AS n FROM people"
    preview = people.preview(text, epsilon=0.5)
    assert dict(preview.query.measured)["m"] == "has no ±: see the note"
    assert "comes with the answer" not in str(preview)
    answer = people.sql(text, epsilon=0.5)
    assert "m" not in answer.error()
    (note,) = [note for note in answer.notes if note.startswith("m: the ")]
    assert note in str(answer)
    assert f"Note: {note}." in str(preview)
    assert "with 95% confidence" in note
    rows = int(re.search(r"(?:within|at most) ([\d,]+)", note)[1].replace(",", ""))
    assert f"Of fewer than {10 * rows:,} rows it is useless" in note


def test_a_chosen_value_that_the_declared_size_makes_useless_says_so():
    text = "SELECT MEDIAN(age) AS m FROM people"
    people = opened(size=600, neighbors="replace")
    assert "Of the 600 declared rows this is useless: ask with more epsilon" in str(
        people.preview(text, epsilon=0.05)
    )
    assert "declared rows this is useless" not in str(people.preview(text, epsilon=5))
    assert "no ±: see below" in str(people.sql(text, epsilon=5))


@pytest.mark.parametrize("name", ["Größe cm", "größe  CM", "'Größe cm'", "`Größe cm`"])
@pytest.mark.parametrize("more", ["", ", COUNT(*) AS a, COUNT(age) AS b"])
def test_names_with_blanks_are_shown_in_their_quotes(name, more):
    fact = refused(opened(), f"SELECT AVG({name}) AS m{more} FROM people")
    assert 'double quotes, where they are not one plain word: "Größe cm".' in fact
    assert "HAVING" not in fact


def test_other_refusals_have_no_hint_about_quotes():
    assert "double quotes" not in refused(
        opened(), "SELECT AVG(\"Größe cm\") AS m FROM people WHERE ward = 'C'"
    )
    assert opened().sql('SELECT AVG("Größe cm") AS m FROM people', epsilon=1).columns == ("m",)


@pytest.mark.parametrize(
    ("condition", "fact"),
    [
        ("age > 'forty'", "age is a number, and 'forty' is a text.*without quotes: 40, not '40'"),
        ("age = '41'", "age is a number, and '41' is a text.*without quotes: 41, not '41'"),
        ("'41' < age", "age is a number, and '41' is a text"),
        ("age BETWEEN 4 AND '5'", "without quotes: 5, not '5'"),
        ("age IN (4, '5')", "without quotes: 5, not '5'"),
        ('"Größe cm" > 180,5', r"Decimals have a point: 180\.5\."),
        ("ward = A", "If it is a text, put it in single quotes: 'A'"),
        ('ward <> "A"', "If it is a text, put it in single quotes: 'A'"),
        ("ward IN (A, 'B')", "If it is a text, put it in single quotes: 'A'"),
        (
            "Alter > 3",
            'If Alter is the column, put it in double quotes, as it is also a word of SQL: "Alter"',
        ),
        ('"Alter" > 3', r"Did you mean \"Alter \(Jahre\)\"\?"),
    ],
)
def test_conditions_of_another_habit_are_told_how_to_write_it(condition, fact):
    schema = SCHEMA | ({"Alter": dp.Bounds(0, 99)} if condition.startswith("Alter") else {})
    data = DATA | {"Alter": AGES}
    session = opened() if schema == SCHEMA else opened(schema=schema, data=data)
    assert re.search(fact, refused(session, f"{COUNT} WHERE {condition}"))


def test_lists_of_numbers_are_no_decimals():
    assert "point" not in refused(opened(), f"{COUNT} WHERE age IN (1,2) AND nothing")
    assert "point" not in refused(opened(), f"{COUNT} WHERE age IN (1,2) AND AND")


def test_a_refusal_says_whose_limit_it_is():
    people = opened()
    ann = people.as_analyst("ann")
    ann.sql(COUNT, epsilon=0.6)
    assert refused(ann, COUNT, epsilon=2).startswith(
        "ann's own budget: this would raise epsilon from 0.6 to 2.6"
    )
    assert refused(people, COUNT, epsilon=300).startswith("the dataset's budget: this would raise")
    assert refused(people.as_analyst("bob"), COUNT, epsilon=300).startswith(
        "the dataset's budget: this would"
    )


def test_who_asks_by_accuracy_is_told_to_ask_for_a_larger_error():
    ann = opened().as_analyst("ann")
    fact = refused(ann, COUNT, epsilon=None, within=0.5)
    assert "Ask for a larger error than 0.5, or ask the steward" in fact
    assert "less epsilon" not in fact
    assert "Ask with less epsilon" in refused(ann, COUNT, epsilon=2)


def test_what_is_left_is_rounded_down():
    people = opened(budget=dp.Budget(epsilon=2))
    ann = people.as_analyst("ann")
    assert (people.remaining, ann.remaining) == (2.0, 1.0)
    ann.sql(COUNT, epsilon=0.5)
    assert (people.remaining, ann.remaining) == (1.5, 0.5)
    ann.sql(COUNT, epsilon=0.5, fresh=True)
    assert (people.remaining, ann.remaining) == (1.0, 0.0)
    people.sql(COUNT, epsilon=1 / 3)
    account = people.curator.account()
    exact = float(account.rule.total) - account.used
    assert exact * (1 - 1e-9) <= people.remaining <= exact
    assert len(f"{people.remaining!r}") <= 12


def test_a_value_without_its_name_and_a_trial_without_a_budget_say_what_to_write():
    with pytest.raises(dp.DiscreetError, match=re.escape("write sql(..., epsilon=0.1)")):
        opened().sql(COUNT, 0.1)
    with pytest.raises(dp.LedgerError, match="no ledger in memory yet: give a budget"):
        opened(budget=None, analysts=None)


def test_an_average_of_nobody_says_why_it_has_no_value():
    nobody = opened(data={name: values[:0] for name, values in DATA.items()})
    shown = {str(nobody.sql("SELECT AVG(age) AS m FROM people", epsilon=1 + i / 100)) for i in range(40)}
    assert any(
        "-: no value, as where the noise outweighs the number of rows; epsilon" in text for text in shown
    )


def test_notes_speak_of_group_by_and_say_what_limits_take_away():
    people = opened(unit=dp.Unit(column="ward", rows=2, groups=1))
    notes = people.preview("SELECT age, COUNT(*) AS n FROM people GROUP BY age", epsilon=1).query.notes
    taken = "counts at most 2 rows of one ward in each of at most 1 group; anything beyond that is missing"
    assert any(note.startswith(taken) for note in notes)
    assert "rows whose GROUP BY value is missing or not declared are in no group" in notes


def test_a_long_charge_is_cut_visibly_in_the_explanation():
    people = opened()
    long = "SELECT COUNT(*) AS n FROM people WHERE ward = 'A' OR ward = 'B' OR ward = 'A'"
    people.sql(long, epsilon=1)
    assert f"{long[:59]}…" in str(dp.explain(people))


def test_rows_that_are_not_shown_are_found():
    answer = opened().sql("SELECT age, COUNT(*) AS n FROM people GROUP BY age", epsilon=1)
    assert "... 60 more rows: answer.rows or answer.to_pandas()" in str(answer)
    assert "... 40 more rows: answer.rows or answer.to_pandas()" in answer._repr_html_()


def test_refusals_have_no_frames_of_ours_and_faults_keep_theirs(monkeypatch):
    people = opened()
    for call in (
        lambda: people.sql("SELECT AVG(agee) FROM people", epsilon=1),
        lambda: people.preview(COUNT),
        lambda: people.sql(COUNT, epsilon=1000),
    ):
        with pytest.raises(dp.DiscreetError) as refusal:
            call()
        ours = [f for f in traceback.extract_tb(refusal.value.__traceback__) if "discreet" in f.filename]
        assert len([f for f in ours if "tests" not in f.filename]) == 1
        assert len("".join(traceback.format_exception(refusal.value)).splitlines()) < 20

    def broken(*args: object, **named: object) -> Release:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(people.curator), "ask", broken)
    with pytest.raises(RuntimeError, match="a bug") as fault:
        people.sql(COUNT, epsilon=1)
    assert traceback.extract_tb(fault.value.__traceback__)[-1].name == "broken"
