"""An answer says what it leaves out: each note is there where it is true, and nowhere else."""

import pytest

import discreet as dp
from discreet.query import Query, WorkloadQuery

SCHEMA = {
    "age": dp.Bounds(0, 99),
    "day": dp.Dates("2026-01-01", "2026-02-28"),
    "ward": dp.Categories(["A", "B"]),
    "town": dp.Text(),
}
NO_ID = "rows without who are in no answer"
NO_KEY = "rows whose GROUP BY value is missing or not declared are in no group"
NUMBERS = "numbers beyond their declared bounds count as the bound"
DAYS = "days beyond their declared bounds count as the bound"
BOTH = "numbers and days beyond their declared bounds count as the bound"
TEXTS = "values of ward that are not declared are missing values"
PRIVATE = "the groups were not declared: a group is always shown from"
CASES = {
    "SELECT COUNT(*) AS n FROM t WHERE age > 3": (),
    "SELECT ward, COUNT(*) AS n FROM t GROUP BY ward": (NO_KEY,),
    "SELECT FLOOR(age / 10) AS decade, COUNT(*) AS n FROM t GROUP BY decade": (NO_KEY, NUMBERS),
    "SELECT MONTH(day) AS m, COUNT(*) AS n FROM t GROUP BY m": (NO_KEY, DAYS),
    "SELECT MONTH(day) AS m, AVG(age) AS n FROM t GROUP BY m": (NO_KEY, BOTH),
    "SELECT AVG(age) AS n FROM t WHERE ward = 'A'": (NUMBERS, TEXTS),
    "SELECT town, COUNT(*) AS n FROM t GROUP BY town": (NO_KEY, PRIVATE),
}


@pytest.mark.parametrize("unit", [dp.rows(), dp.Unit("who", rows=2, groups=1)])
@pytest.mark.parametrize("sql", CASES)
def test_an_answer_says_what_it_leaves_out(sql, unit):
    public = dp.Public(schema=SCHEMA, table="t", unit=unit)
    notes = Query(sql=sql, public=public, epsilon=1, delta=1e-6).preview().notes
    wanted = {*CASES[sql], *([] if unit.column is None else [NO_ID])}
    for said in (NO_ID, NO_KEY, NUMBERS, DAYS, BOTH, TEXTS, PRIVATE):
        assert any(note.startswith(said) for note in notes) == (said in wanted), said


def test_counts_that_are_answered_together_say_it_too():
    public = dp.Public(schema=SCHEMA, table="t", unit=dp.Unit("who", rows=2, groups=1))
    decades = "SELECT FLOOR(age / 10) AS decade, COUNT(*) AS n FROM t GROUP BY decade"
    workload = WorkloadQuery(queries=(decades, "SELECT COUNT(*) AS n FROM t"), public=public, epsilon=1)
    first, second = (workload._notes(number) for number in (0, 1))
    assert {NO_ID, NO_KEY, NUMBERS} <= set(first)
    assert NO_ID in second
    assert NUMBERS not in second
    assert set(workload.preview().notes) == {*first, *second}


def test_a_row_that_a_join_repeats_is_called_a_row():
    wards = dp.Related(name="p", schema={"ward": dp.Categories(["A", "B"])})
    public = dp.Public(schema=SCHEMA, table="t", unit=dp.rows(), tables=(wards,))
    sql = "SELECT COUNT(*) AS n FROM t JOIN p ON t.ward = p.ward WHERE p.ward = 'A'"
    notes = Query(sql=sql, public=public, epsilon=1, rows=2).preview().notes
    assert notes[0].startswith("counts at most 2 rows of one row;")
    assert TEXTS in notes
