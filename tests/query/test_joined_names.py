"""A name that both sides of an inner join have, and that the join makes equal, means either."""

import pytest

import discreet as dp
from discreet import InvalidInput
from discreet.query import QueryError

PUBLIC = dp.Public(
    schema={"x": dp.Bounds(0, 5), "code": dp.Text()},
    unit=dp.Unit("id", rows=2, groups=1),
    table="visits",
    tables=(
        dp.Related(
            name="people",
            private=True,
            unit="id",
            schema={"sex": dp.Categories(["f", "m"]), "x": dp.Bounds(0, 9)},
        ),
    ),
)


@pytest.fixture
def visits():
    people = {"id": [str(i) for i in range(400)], "sex": ["f", "m"] * 200, "x": [1] * 400}
    rows = {"id": [str(i // 2) for i in range(400)], "x": [2] * 400, "code": ["a"] * 400}
    return dp.open(
        rows,
        schema=PUBLIC,
        related={"people": people},
        budget=dp.Budget(epsilon=2000),
        ledger=":memory:",
        large_epsilon=True,
    )


@pytest.mark.parametrize(
    "source",
    [
        "visits JOIN people ON visits.id = people.id",
        "visits JOIN people ON people.id = visits.id",
        "visits JOIN people USING (id)",
        "visits, people WHERE visits.id = people.id",
    ],
)
def test_a_name_that_a_join_made_equal_needs_no_table(visits, source):
    for prefix in ("", "visits.", "people."):
        answer = visits.sql(f"SELECT COUNT(DISTINCT {prefix}id) AS n FROM {source}", epsilon=100)
        assert answer.rows[0][0] == 200
        # each person counts once: there is no limit to speak of
        assert answer.notes == ("rows without id are in no answer",)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT COUNT(DISTINCT id) AS n FROM visits LEFT JOIN people ON visits.id = people.id",
        "SELECT SUM(x) AS n FROM visits JOIN people ON visits.id = people.id",
        "SELECT COUNT(DISTINCT id) AS n FROM visits JOIN people ON visits.id = people.id AND "
        "visits.x > people.x LEFT JOIN people p ON visits.id = p.id",
    ],
)
def test_a_name_that_could_mean_two_values_is_refused(visits, text):
    with pytest.raises(QueryError, match="is in several tables"):
        visits.sql(text, epsilon=1)
    assert visits.spent == 0


def test_notes_speak_of_rows_only_where_rows_count(visits):
    by_sex = "FROM visits JOIN people USING (id) GROUP BY sex"
    people, rows = (
        visits.sql(f"SELECT sex, {what} AS n {by_sex}", epsilon=50)
        for what in ("COUNT(DISTINCT id)", "COUNT(*)")
    )
    assert people.notes[0].startswith("counts one id in at most 1 group;")
    assert rows.notes[0].startswith("counts at most 2 rows of one id in each of at most 1 group;")


def test_a_misspelt_column_of_a_schema_is_named_with_what_was_meant():
    data = {"Größe cm": [170, 180], "id": ["1", "2"]}
    for schema, unit, match in [
        (
            {"Grösse cm": dp.Bounds(0, 250)},
            dp.rows(),
            "declares 'Grösse cm'.* Did you mean 'Größe cm'.* It has: Größe cm, id",
        ),
        ({"Größe cm": dp.Bounds(0, 250)}, "idd", "unit's column is 'idd'.* Did you mean 'id'"),
    ]:
        with pytest.raises(InvalidInput, match=match):
            dp.open(data, schema=schema, unit=unit, budget=dp.Budget(epsilon=1), ledger=":memory:")
    with pytest.raises(dp.PrivateFact, match="Did you mean 'age'"):
        dp.Public(schema={"age": dp.Bounds(0, 1)}).fact("agee")


def test_a_list_of_rows_is_a_table():
    rows = [{"age": 34, "ward": "A"}, {"age": 51}] * 200
    facts = {"age": dp.Bounds(0, 100), "ward": dp.Categories(["A"])}
    how = {"unit": dp.rows(), "table": "people", "budget": dp.Budget(epsilon=200), "ledger": ":memory:"}
    how["large_epsilon"] = True
    people = dp.open(rows, schema=facts, **how)
    assert people.sql("SELECT COUNT(*) AS n FROM people WHERE ward = 'A'", epsilon=100).rows == ((200,),)
    for bad in ([], [1, 2]):
        with pytest.raises(InvalidInput, match="each entry must be a row"):
            dp.open(bad, schema=facts, **how)
    # a list of texts is one of files
    with pytest.raises(InvalidInput, match=r"no file 'a\.parquet'"):
        dp.open(["a.parquet"], schema=facts, **how)
