"""What is computed from the same noisy numbers is one question, and is paid for once: other columns, names, orders,
limits, and another way to write a condition."""

from __future__ import annotations

from typing import Any

import pytest

import discreet as dp
from discreet import Bounds, Categories, Dates, Text, Unit
from discreet.curator import values
from discreet.curator.identities import shown_value
from discreet.query import Query

SCHEMA = {
    "id": Text(),
    "town": Categories(["a", "b", "c"]),
    "age": Bounds(0, 90),
    "day": Dates("2025-01-01", "2025-03-31"),
    "street": Text(),
}
ROWS = [(str(i // 2), "abc"[i % 3], i % 90, f"2025-0{1 + i % 3}-11", f"s{i % 2}") for i in range(400)]


@pytest.fixture
def people() -> Any:
    return dp.open(
        dict(zip(SCHEMA, zip(*ROWS, strict=True), strict=True)),  # type: ignore[arg-type]
        table="people",
        schema=SCHEMA,
        unit=Unit("id", rows=2, groups=2),
        budget=dp.Budget(epsilon=20, delta=1e-3),
        analysts={"ann": dp.Budget(epsilon=3)},
        ledger=":memory:",
        version="1",
    )


COUNTS = "SELECT town, COUNT(*) AS n FROM people GROUP BY town"
BOTH = "SELECT town, COUNT(*) AS n, SUM(age) AS s FROM people GROUP BY town"
STREETS = "SELECT street, COUNT(*) AS n FROM people GROUP BY street"
OLD = "SELECT COUNT(*) AS n FROM people WHERE age > 30 AND town = 'a'"
SAME = [
    (COUNTS, "SELECT COUNT(*) AS many, town AS place FROM people GROUP BY town ORDER BY many DESC LIMIT 2"),
    (COUNTS, "SELECT town, COUNT(*) / 2 AS half FROM people GROUP BY town HAVING COUNT(*) > 10"),
    (BOTH, "SELECT SUM(age) AS total, COUNT(*) AS c, town FROM people GROUP BY town ORDER BY town DESC"),
    (BOTH, "SELECT town, SUM(age) / COUNT(*) AS mean FROM people GROUP BY town"),
    (STREETS, "SELECT COUNT(*) AS n, UPPER(street) AS st FROM people GROUP BY street ORDER BY n"),
    (OLD, "SELECT COUNT(*) AS m FROM people WHERE age > 30.0 AND town = 'a'"),
    (OLD, "SELECT COUNT(*) AS m FROM people WHERE 'a' = town AND 30 < age"),
    (
        "SELECT COUNT(*) FROM people WHERE town IN ('a', 'b') OR age >= 3",
        "SELECT COUNT(*) FROM people WHERE 3 <= age OR town IN ('b', 'a')",
    ),
    (
        "SELECT town, MEDIAN(age) AS x, MODE(day) AS d, APPROX_TOP_K(town, 2) AS t FROM people GROUP BY town",
        "SELECT APPROX_TOP_K(town, 2) AS u, MEDIAN(age) + 1 AS y, town, MODE(day) FROM people GROUP BY town",
    ),
    (
        "SELECT DATE_TRUNC('month', day) AS m, COUNT(*) AS n FROM people GROUP BY 1",
        "SELECT COUNT(*) AS n, DATE_TRUNC('month', day) AS m FROM people GROUP BY 2 ORDER BY m DESC",
    ),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_what_is_computed_from_the_same_numbers_is_paid_for_once(
    people: Any, first: str, second: str
) -> None:
    one = people.sql(first, epsilon=1, delta=1e-6)
    spent = people.spent
    assert people.preview(second, epsilon=1, delta=1e-6).answered is not None
    other = people.sql(second, epsilon=1, delta=1e-6)
    assert people.spent == spent
    assert other.numbers == one.numbers
    assert other.columns == Query(sql=second, public=people.public, epsilon=1, delta=1e-6).columns
    assert other.sql == second
    # as if it had been asked first: the answer is that of its own columns, from these numbers
    again = people.sql(first, epsilon=1, delta=1e-6)
    assert again == one
    assert people.sql(second, epsilon=1, delta=1e-6) == other


def test_the_columns_are_those_of_the_second_text(people: Any) -> None:
    one = people.sql(BOTH, epsilon=1)
    other = people.sql(SAME[2][1], epsilon=1)
    assert other.columns == ("total", "c", "town")
    assert other["town"] == ["c", "b", "a"]
    assert other["total"] == one["s"][::-1]
    assert other["c"] == one["n"][::-1]
    assert other.error(0.9)["total"] == one.error(0.9)["s"][::-1]
    hidden = people.sql(
        "SELECT COUNT(*) AS c, SUM(age) AS t FROM people GROUP BY town HAVING COUNT(*) > 1e9", epsilon=1
    )
    assert len(hidden) == 0
    assert hidden.numbers == one.numbers, "rows that HAVING leaves out were paid for, too"


@pytest.mark.parametrize(
    "second",
    [
        "SELECT COUNT(*) AS n FROM people WHERE age >= 30 AND town = 'a'",
        "SELECT COUNT(*) AS n FROM people WHERE age < 30 AND town = 'a'",
        "SELECT COUNT(*) AS n FROM people WHERE age > 31 AND town = 'a'",
        "SELECT COUNT(*) AS n FROM people WHERE age > 30 OR town = 'a'",
        "SELECT COUNT(*) AS n, SUM(age) FROM people WHERE age > 30 AND town = 'a'",
        "SELECT COUNT(DISTINCT id) AS n FROM people WHERE age > 30 AND town = 'a'",
        "SELECT town, COUNT(*) AS n FROM people WHERE age > 30 AND town = 'a' GROUP BY town",
    ],
)
def test_other_numbers_are_another_question(people: Any, second: str) -> None:
    people.sql(OLD, epsilon=1)
    spent = people.spent
    people.sql(second, epsilon=1)
    assert people.spent > spent


def test_another_price_limit_or_weight_is_another_question() -> None:
    public = dp.Public(schema=SCHEMA, unit=Unit("id", rows=2, groups=2), table="people")

    def key(sql: str = BOTH, **how: Any) -> str:
        return Query(sql=sql, public=public, **({"epsilon": 1} | how)).key

    assert key() == key(SAME[2][1])
    # which measure has which noise is part of the question, not the order in which they are listed
    weighted = key(weights=(("n", 3),))
    assert weighted == key(
        "SELECT SUM(age) AS s, COUNT(*) AS n FROM people GROUP BY town", weights=(("n", 3),)
    )
    others = [
        key(epsilon=2),
        key(rows=1),
        key(groups=1),
        weighted,
        key(weights=(("s", 3),)),
        key(rho=1, epsilon=None),
    ]
    assert len({key(), *others}) == 1 + len(others)


def test_an_analyst_pays_for_the_numbers_they_have_not_seen(people: Any) -> None:
    people.sql(COUNTS, epsilon=1)
    ann = people.as_analyst("ann")
    ann.sql(SAME[0][1], epsilon=1)
    assert ann.spent == pytest.approx(1)
    ann.sql(COUNTS, epsilon=1)
    assert ann.spent == pytest.approx(1)


def test_who_is_served_sees_their_own_columns_and_rows(people: Any) -> None:
    """What a second analyst is shown of a stored release tells nothing of the words of who asked first."""
    people.sql(f"{COUNTS.replace('AS n', 'AS a_secret_hypothesis')} HAVING COUNT(*) > 1e6", epsilon=1)
    mine = people.as_analyst("ann").sql(COUNTS, epsilon=1)
    (served,) = (e for e in people.ledger.entries() if e.kind == "served")
    stored = people.ledger.entry(served.body["release"]).body["value"]
    assert "a_secret_hypothesis" in str(stored)
    shown = values.decode(shown_value(stored, served.body))
    assert shown == mine
    assert shown.columns == ("town", "n")
    assert len(shown) == 3
    assert "secret" not in str(shown_value(stored, served.body))


@pytest.mark.parametrize(
    "both",
    [
        "SELECT COUNT_IF(age > 30) AS a, COUNT_IF(30 < age) AS b FROM people",
        "SELECT SUM(age) FILTER (WHERE age > 30.0) AS a, SUM(age) FILTER (WHERE 30 < age) AS b FROM people",
        "SELECT MEDIAN(CASE WHEN age > 30 THEN age ELSE 0 END) AS a, "
        "MEDIAN(CASE WHEN 30 < age THEN age ELSE 0 END) AS b FROM people",
    ],
)
def test_one_number_in_two_spellings_is_measured_once(people: Any, both: str) -> None:
    form = Query(sql=both, public=people.public, epsilon=1).question.form
    assert len(form.measures) + len(form.choices) == 1
    first = people.sql(both, epsilon=1)
    assert first["a"] == first["b"]
    assert people.sql(both, epsilon=1) == first
    assert people.sql(both.replace(" AS b", " AS c"), epsilon=1)["c"] == first["b"]


def test_the_event_of_a_served_answer_is_that_of_the_stored_one(people: Any) -> None:
    one = people.sql(BOTH, epsilon=1)
    assert people.sql(SAME[2][1], epsilon=1).event == one.event
