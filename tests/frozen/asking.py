"""Stories of questions in SQL: shapes of queries, prices, repetitions, refusals, previews, workloads, plans."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

import discreet as dp

from .stage import Stage

PEOPLE, DAYS = 150, 60
FIRST = date(2026, 1, 1)


def rows() -> dict[str, list[Any]]:
    """One row per person. Two towns have so many people that they are always shown, two have one each."""
    n = range(PEOPLE)
    return {
        "id": list(n),
        "age": [(7 * i) % 90 for i in n],
        "pay": [None if i % 25 == 0 else (37 * i) % 1000 / 10 for i in n],
        "ward": ["abc"[i % 3] for i in n],
        "town": ["York"] * 80 + ["Bath"] * 68 + ["Rye", "Wick"],
        "day": [FIRST + timedelta(days=i % DAYS) for i in n],
        "member": [i % 4 == 0 for i in n],
    }


def visits() -> dict[str, list[Any]]:
    """Up to three visits of each person."""
    who = [i for i in range(PEOPLE) for _ in range(i % 4)]
    return {"who": who, "cost": [(11 * k) % 50 for k in range(len(who))]}


SCHEMA = {
    "age": dp.Bounds(0, 100, nullable=False),
    "pay": dp.Bounds(0, 100),
    "ward": dp.Categories(["a", "b", "c"]),
    "town": dp.Text(),
    "day": dp.Dates("2026-01-01", "2026-03-31"),
    "member": dp.Boolean(nullable=False),
}
TOWNS = {"name": ["York", "Bath", "Rye"], "size": [9, 4, 1]}
RELATED = (
    dp.Related(name="towns", schema={"name": dp.Text(), "size": dp.Bounds(0, 10)}, key=("name",)),
    dp.Related(name="visits", schema={"cost": dp.Bounds(0, 50)}, private=True, unit="who"),
)


def opened(stage: Stage, *, unit: Any = None, related: bool = False, **options: Any) -> Any:
    """A session on the people: each of them a row, or (`unit="id"`) a person with an id."""
    public = dp.Public(
        schema=SCHEMA, table="people", unit=dp.Unit(unit), tables=RELATED if related else (), version="1"
    )
    if related:
        options["related"] = {"towns": TOWNS, "visits": visits()}
    terms = {"budget": dp.Budget(epsilon=20, delta=1e-5), "ledger": stage.folder / "people.ledger"}
    return dp.open(rows(), schema=public, **(terms | options))


def ask(stage: Stage, people: Any, questions: dict[str, tuple[str, dict[str, Any]]]) -> None:
    """Ask each question: its answer is in the ledger, and its words are among the messages."""
    for name, (sql, terms) in questions.items():
        answer = people.sql(sql, **terms)
        stage.says(name, f"{sql}\n{answer}")
    stage.books(people)


def counts_by_groups(stage: Stage) -> None:
    ask(
        stage,
        opened(stage),
        {
            "all": ("SELECT COUNT(*) AS n FROM people", {"epsilon": 0.5}),
            "wards": ("SELECT ward, COUNT(*) AS n FROM people GROUP BY ward", {"epsilon": 0.5}),
            "two keys": ("SELECT ward, member, COUNT(*) AS n FROM people GROUP BY 1, 2", {"epsilon": 1}),
            "binned": ("SELECT FLOOR(age / 25) AS b, COUNT(*) AS n FROM people GROUP BY b", {"epsilon": 1}),
            "filtered": (
                "SELECT COUNT(*) AS n, COUNT(pay) AS paid FROM people WHERE age BETWEEN 20 AND 60 OR member",
                {"epsilon": 1},
            ),
            "several": (
                "SELECT COUNT(*) FILTER (WHERE age < 30) AS young, COUNT(*) FILTER (WHERE age >= 30) AS old "
                "FROM people",
                {"epsilon": 1},
            ),
            "distinct": ("SELECT ward, COUNT(DISTINCT town) AS t FROM people GROUP BY ward", {"epsilon": 1}),
        },
    )


def sums_and_averages(stage: Stage) -> None:
    ask(
        stage,
        opened(stage),
        {
            "sums": ("SELECT ward, SUM(age) AS a, SUM(pay) AS p FROM people GROUP BY ward", {"epsilon": 2}),
            "average": ("SELECT AVG(pay) AS p FROM people WHERE member", {"epsilon": 2}),
            "deviation": ("SELECT STDDEV(age) AS s, VAR_POP(pay) AS v FROM people", {"epsilon": 3}),
            "covariance": (
                "SELECT COVAR_POP(age, pay) AS c, CORR(age, pay) AS r FROM people",
                {"epsilon": 4},
            ),
            "weighted": (
                "SELECT COUNT(*) AS n, SUM(CLAMP(pay * 2 - age, -10, 10)) AS x FROM people",
                {"epsilon": 1, "weights": {"n": 1, "x": 3}},
            ),
            "accuracy": ("SELECT SUM(age) AS a FROM people", {"within": 500}),
        },
    )


def quantiles_and_mode(stage: Stage) -> None:
    people = opened(stage)
    ask(
        stage,
        people,
        {
            "median": ("SELECT MEDIAN(age) AS m FROM people", {"epsilon": 2}),
            "quartiles": (
                "SELECT ward, QUANTILE_CONT(pay, 0.25) AS low, QUANTILE_CONT(pay, 0.75) AS high FROM people "
                "GROUP BY ward",
                {"epsilon": 6},
            ),
            "mode": ("SELECT MODE(ward) AS w FROM people WHERE age < 50", {"epsilon": 2}),
        },
    )


def private_keys(stage: Stage) -> None:
    people = opened(stage, unit="id")
    town = "SELECT town, COUNT(*) AS n, AVG(age) AS age FROM people GROUP BY town"
    ask(
        stage,
        people,
        {
            "towns": (town, {"epsilon": 4, "delta": 1e-6, "rows": 1}),
            "other towns": (
                "SELECT town, COUNT(*) AS n FROM people GROUP BY town",
                {"epsilon": 4, "delta": 1e-6, "rows": 1, "other": True},
            ),
            "towns and wards": (
                "SELECT town, ward, COUNT(*) AS n FROM people GROUP BY town, ward",
                {"epsilon": 6, "delta": 1e-6, "rows": 1, "groups": 1},
            ),
            "towns of many": (town, {"epsilon": 5, "delta": 1e-6, "rows": 2, "min_people": 12}),
        },
    )
    without_delta = opened(stage, unit="id", budget=dp.Budget(epsilon=1), ledger=":memory:")
    stage.refused("private keys without a delta", lambda: without_delta.sql(town, epsilon=1, rows=1))


def joins(stage: Stage) -> None:
    ask(
        stage,
        opened(stage, unit="id", related=True),
        {
            "public table": (
                "SELECT ward, SUM(size) AS s FROM people JOIN towns ON town = name GROUP BY ward",
                {"epsilon": 2, "rows": 1},
            ),
            "left join": (
                "SELECT COUNT(*) AS n, SUM(COALESCE(size, 0)) AS s FROM people LEFT JOIN towns ON town = name",
                {"epsilon": 2, "rows": 1},
            ),
            "two private tables": (
                "SELECT ward, COUNT(*) AS n, SUM(cost) AS c FROM people JOIN visits ON id = who GROUP BY ward",
                {"epsilon": 3, "rows": 3},
            ),
            "subquery on a public table": (
                "SELECT COUNT(*) AS n FROM people WHERE town IN (SELECT name FROM towns WHERE size > 3)",
                {"epsilon": 1, "rows": 1},
            ),
            "of the same person": (
                "SELECT COUNT(*) AS n FROM people WHERE id IN (SELECT who FROM visits WHERE cost > 25)",
                {"epsilon": 1, "rows": 1},
            ),
        },
    )


def per_person(stage: Stage) -> None:
    people = opened(stage, unit="id", related=True)
    ask(
        stage,
        people,
        {
            "visits of one": (
                "SELECT n, COUNT(*) AS people FROM (SELECT who, LEAST(COUNT(*), 3) AS n, SUM(cost) AS c FROM "
                "visits GROUP BY who) AS p WHERE c > 10 GROUP BY n",
                {"epsilon": 2},
            ),
            "as WITH": (
                "WITH p AS (SELECT who, MAX(cost) AS top, COUNT(*) FILTER (WHERE cost < 20) AS cheap FROM "
                "visits GROUP BY who) SELECT AVG(CLAMP(top, 0, 50)) AS top, SUM(LEAST(cheap, 3)) AS cheap "
                "FROM p",
                {"epsilon": 4},
            ),
            "people": ("SELECT COUNT(DISTINCT id) AS n FROM people", {"epsilon": 1}),
        },
    )
    answer = people.cut_off(rows=1, where="age > 20", epsilon=1)
    stage.says("cut off", answer)


def having_order_limit(stage: Stage) -> None:
    ask(
        stage,
        opened(stage),
        {
            "having": (
                "SELECT ward, COUNT(*) AS n FROM people GROUP BY ward HAVING COUNT(*) > 10 ORDER BY n DESC, ward",
                {"epsilon": 2},
            ),
            "limit": (
                "SELECT FLOOR(age / 10) AS d, COUNT(*) AS n FROM people GROUP BY d ORDER BY n DESC, d LIMIT 3",
                {"epsilon": 2},
            ),
            "share": (
                "SELECT ward, 100.0 * SUM(CAST(member AS INTEGER)) / COUNT(*) AS share FROM people GROUP BY ward "
                "ORDER BY ward",
                {"epsilon": 4},
            ),
        },
    )


def concentrated(stage: Stage) -> None:
    people = opened(stage, budget=dp.Budget(rho=2))
    ask(
        stage,
        people,
        {
            "count": ("SELECT COUNT(*) AS n FROM people", {"rho": 0.1}),
            "wards": ("SELECT ward, COUNT(*) AS n, SUM(age) AS a FROM people GROUP BY ward", {"rho": 0.25}),
            "median": ("SELECT MEDIAN(age) AS m FROM people", {"rho": 0.25}),
        },
    )
    gaussian = opened(stage, ledger=stage.folder / "gaussian.ledger")
    answer = gaussian.sql(
        "SELECT ward, COUNT(*) AS n, SUM(age) AS a, SUM(pay) AS p FROM people GROUP BY ward",
        epsilon=1,
        delta=1e-6,
        noise="gaussian",
    )
    stage.exactly(gaussian=json.loads(answer.to_json()))
    stage.price(gaussian=gaussian.spent)
    stage.refused("a price in rho of a budget in epsilon", lambda: people.sql("SELECT COUNT(*) FROM people"))


def dates_and_texts(stage: Stage) -> None:
    ask(
        stage,
        opened(stage),
        {
            "months": (
                "SELECT DATE_TRUNC('month', day) AS m, COUNT(*) AS n, SUM(EXTRACT(dow FROM day)) AS d FROM "
                "people GROUP BY m ORDER BY m",
                {"epsilon": 2},
            ),
            "weekdays": (
                "SELECT COUNT(*) AS n FROM people WHERE DAYNAME(day) = 'Monday' OR day - DATE '2026-01-31' > 7",
                {"epsilon": 1},
            ),
            "texts": (
                "SELECT COUNT(*) AS n FROM people WHERE UPPER(town) LIKE '%R%' AND "
                "SUBSTRING(town, 1, 1) || ward <> 'Yb'",
                {"epsilon": 1},
            ),
            "cases": (
                "SELECT CASE WHEN age < 18 THEN 'child' WHEN age < 65 THEN 'adult' ELSE 'old' END AS who, "
                "COUNT(*) AS n FROM people GROUP BY who",
                {"epsilon": 1},
            ),
        },
    )


def served_again(stage: Stage) -> None:
    """The same question is served from the ledger; fresh noise, more epsilon and other words are seen."""
    budgets = {"ann": dp.Budget(epsilon=2), "bob": None}
    people = opened(stage, analysts=budgets)
    ann, bob = people.as_analyst("ann"), people.as_analyst("bob")
    sql = "SELECT ward, COUNT(*) AS n FROM people GROUP BY ward"
    asked = {
        "first": people.sql(sql, epsilon=0.5),
        "again": people.sql(sql.lower(), epsilon=0.5),
        "fresh": people.sql(sql, epsilon=0.5, fresh=True),
        "ann": ann.sql(sql, epsilon=0.5),
        "bob": bob.sql(sql, epsilon=0.75),
        "bob again": bob.sql(sql, epsilon=0.75),
    }
    stage.exactly(rows={name: answer.rows for name, answer in asked.items()})
    stage.price(ann=ann.spent, ann_left=ann.budget.epsilon - ann.remaining, bob=bob.spent)
    stage.says("session", f"{people!r}\n{ann!r}\n{bob!r}")
    stage.refused("an unknown analyst", lambda: people.as_analyst("eve").sql(sql, epsilon=0.1))
    stage.refused("beyond one's own budget", lambda: ann.sql(sql, epsilon=1.75))
    stage.books(people)


def budget_exceeded(stage: Stage) -> None:
    people = opened(stage, budget=dp.Budget(epsilon=1, delta=1e-6))
    sql = "SELECT COUNT(*) AS n FROM people"
    people.sql(sql, epsilon=0.75)
    stage.refused("more than is left", lambda: people.sql(sql, epsilon=0.5))
    stage.refused("more than was ever there", lambda: people.sql(sql, epsilon=5))
    stage.refused(
        "a delta beyond the budget", lambda: people.sql(sql, epsilon=0.125, delta=1e-3, noise="gaussian")
    )
    people.sql(sql, epsilon=0.25)
    stage.refused("anything at all", lambda: people.sql(sql, epsilon=0.0625))
    stage.says("preview", people.preview(sql, epsilon=0.0625))
    stage.says("session", repr(people))
    stage.books(people)


REFUSED = {
    "rows": "SELECT * FROM people",
    "a column": "SELECT age FROM people",
    "no table": "SELECT COUNT(*) FROM persons",
    "no column": "SELECT COUNT(*) FROM people WHERE agee > 3",
    "a change": "DROP TABLE people",
    "no SQL": "SELEC COUNT(*) FROM people",
    "nothing": "",
    "a window": "SELECT ROW_NUMBER() OVER () FROM people",
    "no aggregate of ours": "SELECT KURTOSIS(age) FROM people",
    "a category that is none": "SELECT COUNT(*) FROM people WHERE ward = 'z'",
    "a number in quotes": "SELECT COUNT(*) FROM people WHERE age = '3'",
    "the smallest day": "SELECT MIN(day) FROM people",
    "a regular expression": "SELECT COUNT(*) FROM people WHERE town ~ 'Y'",
    "a union": "SELECT COUNT(*) FROM (SELECT * FROM people UNION ALL SELECT * FROM people) AS u",
    "hours": "SELECT COUNT(*) FROM people WHERE day + INTERVAL 1 HOUR > '2026-01-01'",
    "a variable exponent": "SELECT SUM(POWER(age, age)) FROM people",
    "two statements": "SELECT COUNT(*) FROM people; SELECT COUNT(*) FROM people",
}


def refused_questions(stage: Stage) -> None:
    people = opened(stage)
    count = "SELECT COUNT(*) AS n FROM people"
    for name, sql in REFUSED.items():
        stage.refused(name, lambda sql=sql: people.sql(sql, epsilon=0.1))
    for name, terms in {
        "no price": {},
        "two prices": {"epsilon": 1, "within": 3},
        "a negative price": {"epsilon": -1},
        "an unknown noise": {"epsilon": 1, "noise": "pink"},
        "an unknown option": {"epsilon": 1, "epsilonn": 2},
        "rows where one row is one person": {"epsilon": 1, "rows": 0},
        "a text as price": {"epsilon": "1"},
    }.items():
        stage.refused(name, lambda terms=terms: people.sql(count, **terms))
    stage.refused("a session without a budget", lambda: dp.open(rows(), schema=people.public))
    stage.refused(
        "bounds in the wrong order", lambda: dp.Public(schema={"age": dp.Bounds(9, 1)}, table="people")
    )
    stage.books(people)


def previews(stage: Stage) -> None:
    people = opened(stage, unit="id")
    asked = {
        "count": ("SELECT COUNT(*) AS n FROM people", {"epsilon": 0.5, "rows": 1}),
        "average": ("SELECT ward, AVG(age) AS a FROM people GROUP BY ward", {"epsilon": 0.5, "rows": 2}),
        "within": ("SELECT SUM(pay) AS p FROM people", {"within": 300, "rows": 1}),
        "median": ("SELECT MEDIAN(age) AS m FROM people", {"epsilon": 1, "rows": 1}),
        "towns": (
            "SELECT town, COUNT(*) AS n FROM people GROUP BY town",
            {"epsilon": 1, "rows": 1, "groups": 2, "delta": 1e-6},
        ),
        "together": (
            ["SELECT COUNT(*) FROM people WHERE age < 30", "SELECT COUNT(*) FROM people WHERE age < 60"],
            {"epsilon": 1, "rows": 1},
        ),
    }
    facts = {}
    for name, (text, terms) in asked.items():
        preview = people.preview(text, **terms)
        facts[name] = {"event": preview.query.event.to_json(), "fits": preview.fits}
        if isinstance(text, str):
            facts[name]["errors"] = dict(zip(preview.query.columns, preview.query.errors, strict=False))
        stage.price(**{name: preview.budget.after})
        stage.says(name, preview)
    stage.exactly(previews=facts)
    stage.refused(
        "an accuracy that nothing buys",
        lambda: people.preview("SELECT AVG(age) FROM people", within=1, rows=1),
    )
    stage.books(people)


QUESTIONS = [
    "SELECT COUNT(*) AS n FROM people WHERE ward = 'a'",
    "SELECT COUNT(*) AS n FROM people WHERE ward <> 'c'",
    "SELECT ward, COUNT(*) AS n FROM people GROUP BY ROLLUP(ward)",
    "SELECT member, COUNT(*) AS n FROM people GROUP BY member",
]


def workload(stage: Stage) -> None:
    people = opened(stage)
    for name, terms in {"laplace": {"epsilon": 1}, "gaussian": {"epsilon": 1, "delta": 1e-6}}.items():
        answers = people.workload(QUESTIONS, **terms)
        stage.says(name, "\n\n".join(map(str, answers)))
    stage.refused("an average", lambda: people.workload(["SELECT AVG(age) FROM people"], epsilon=1))
    stage.books(people)


def plan(stage: Stage) -> None:
    people = opened(stage)
    work = [
        QUESTIONS[0],
        QUESTIONS[3],
        {"sql": "SELECT AVG(age) AS a FROM people", "weight": 3},
        {"sql": "SELECT SUM(pay) AS p FROM people"},
    ]
    planned = people.plan(work, epsilon=2)
    stage.says("plan", planned)
    results = planned.run()
    stage.says("results", "\n\n".join(map(str, results)))
    stage.books(people)


def periods(stage: Stage) -> None:
    budget = dp.Budget(epsilon=1, per=dp.Period(column="day", every="month", total=dp.Budget(epsilon=2)))
    people = opened(stage, budget=budget)
    count = "SELECT COUNT(*) AS n FROM people"
    january = people.during("2026-01")
    stage.says("january", january.sql(count, epsilon=0.5))
    stage.says("both", people.during("2026-01", "2026-02").sql(count, epsilon=0.25))
    stage.says("all", people.sql(count, epsilon=0.125))
    stage.refused("a month that is used up", lambda: january.sql(count, epsilon=0.75))
    stage.refused("a month that is none", lambda: people.during("2026-13"))
    stage.price(january=january.spent, february=people.during("2026-02").spent)
    stage.exactly(accounts=[[account.of, account.used] for account in people.accounts])
    stage.says("session", repr(january))
    stage.books(people)


STORIES = (
    counts_by_groups,
    sums_and_averages,
    quantiles_and_mode,
    private_keys,
    joins,
    per_person,
    having_order_limit,
    concentrated,
    dates_and_texts,
    served_again,
    budget_exceeded,
    refused_questions,
    previews,
    workload,
    plan,
    periods,
)
