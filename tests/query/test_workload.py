"""Counting queries answered together: the same numbers as one by one, one price, and no unit moves the cells
by more than is claimed."""

from __future__ import annotations

import functools
import random
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import integrate

from discreet import Boolean, Bounds, Categories, InvalidInput, Public, Related, Text, Unit
from discreet._registry import from_json, to_json
from discreet.core.exact import integers
from discreet.mechanisms.noise import laplace_width
from discreet.query import Query, QueryError, WorkloadQuery
from discreet.query.groupings import together
from discreet.query.workload import WorkloadPlan
from discreet.sampling import SeededEntropy
from discreet.tables import Memory, connect
from discreet.tables.engines.duckdb import engine_of

from ..loops import for_each

SCHEMA = {
    "sex": Categories(["f", "m"]),
    "city": Categories(["bern", "paris", "rome"]),
    "year": Categories([2019, 2020, 2022]),
    "bmi": Bounds(10, 60),
    "smoker": Boolean(),
}
PUBLIC = Public(schema=SCHEMA, table="people")
LECTURE = tuple(
    f"SELECT COUNT(*) AS n FROM people WHERE {c}"
    for c in ("sex = 'm' AND bmi < 25", "sex = 'm'", "sex = 'f' AND bmi < 25", "sex = 'f'")
)


def people(public: Public, n: int, seed: int, units: int | None = None) -> Memory:
    rng = random.Random(seed)
    columns: dict[str, list[Any]] = {
        "sex": [rng.choice(["f", "m", "x", "", None]) for _ in range(n)],
        "city": [rng.choice(["bern", "paris", "rome", "oslo", None]) for _ in range(n)],
        "year": [rng.choice([2018, 2019, 2020, 2021, 2022, None]) for _ in range(n)],
        "bmi": [
            rng.choice([rng.uniform(0, 80), 25.0, 10.0, 60.0, float("nan"), float("inf"), None])
            for _ in range(n)
        ],
        "smoker": [rng.choice([True, False, None]) for _ in range(n)],
    }
    if units is not None:
        columns["person"] = [rng.randrange(units) for _ in range(n)]
    return Memory(columns, public)


SETS = [
    LECTURE,
    ("SELECT sex, COUNT(*) AS n FROM people GROUP BY sex", "SELECT COUNT(*) AS n FROM people"),
    (
        "SELECT sex, city, COUNT(*) AS n FROM people GROUP BY sex, city",
        "SELECT city, sex, COUNT(*) AS n FROM people GROUP BY city, sex",
    ),
    (
        "SELECT year, COUNT(*) AS n FROM people GROUP BY year",
        "SELECT COUNT_IF(year = 2019) AS a, COUNT_IF(year < 2021) AS b FROM people",
    ),
    (
        "SELECT COUNT_IF(bmi < 20) AS a, COUNT_IF(bmi < 30 OR NOT smoker) AS b, COUNT_IF(bmi >= 25 "
        "AND bmi < 30) AS c FROM people",
        "SELECT smoker, COUNT(*) AS n FROM people WHERE bmi BETWEEN 20 AND 40 GROUP BY smoker",
    ),
    (
        "SELECT COUNT(bmi) AS a, COUNT(*) FILTER (WHERE sex <> 'f') AS b FROM people",
        "SELECT COUNT(*) AS n FROM people WHERE sex IN ('f', 'm') OR city IS NULL",
        "SELECT COUNT(*) AS n FROM people WHERE NOT (sex = 'm')",
    ),
    (
        "SELECT FLOOR(bmi / 20) AS b, COUNT(*) AS n FROM people GROUP BY 1",
        "SELECT COUNT(*) AS n FROM people WHERE bmi > 33",
    ),
    (
        "SELECT city, COUNT(*) AS n, COUNT(*) - COUNT(bmi) AS missing FROM people GROUP BY city "
        "ORDER BY city DESC LIMIT 2",
    ),
    (
        "SELECT COUNT(*) AS n FROM people WHERE city LIKE 'r%' OR UPPER(sex) = 'M'",
        "SELECT COUNT(*) AS n FROM people",
    ),
]


@pytest.mark.parametrize("queries", SETS, ids=range(len(SETS)))
def test_without_noise_they_are_what_each_query_gives_alone(queries: tuple[str, ...]) -> None:
    source = people(PUBLIC, 200, 1)
    alone = {sql: Query(sql=sql, public=PUBLIC, epsilon=1)._without_noise(source, 7) for sql in queries}
    for price in ({"epsilon": 1}, {"rho": 1}):
        whole = WorkloadQuery(queries=queries, public=PUBLIC, **price)
        for sql, rows in zip(queries, whole._without_noise(source, 7), strict=True):
            assert rows == alone[sql], (sql, price)


def random_condition(rng: random.Random, depth: int = 0) -> str:
    if depth > 0 or rng.random() < 0.3:
        number = rng.choice(["bmi", "bmi * 2", "FLOOR(bmi / 10)", "COALESCE(bmi, 12)", "ROUND(bmi)"])
        compared = f"{number} {rng.choice(['<', '<=', '>', '=', '<>'])} {rng.choice([3, 10, 20, 25, 30, 60])}"
        others = [
            "sex = 'f'",
            "sex <> 'm'",
            "city IN ('bern', 'rome')",
            "smoker",
            "smoker IS NULL",
            "city LIKE '%r%'",
            "year = 2020",
        ]
        return rng.choice([compared, compared, rng.choice(others)])
    word = rng.choice(["AND", "OR", "NOT"])
    if word == "NOT":
        return f"NOT ({random_condition(rng, depth + 1)})"
    return f"({random_condition(rng, depth + 1)}) {word} ({random_condition(rng, depth + 1)})"


@pytest.mark.parametrize("seed", range(12))
def test_random_conditions_are_what_each_query_gives_alone(seed: int) -> None:
    rng = random.Random(seed)
    source = people(PUBLIC, 80, seed)
    keys = rng.sample(["sex", "city", "year", "smoker"], 2)
    queries = (
        f"SELECT COUNT_IF({random_condition(rng)}) AS a, COUNT(bmi) AS b FROM people WHERE "
        f"{random_condition(rng)}",
        f"SELECT {keys[0]}, COUNT_IF({random_condition(rng)}) AS a FROM people GROUP BY {keys[0]}",
        f"SELECT {', '.join(keys)}, COUNT(*) AS n FROM people GROUP BY {', '.join(keys)}",
    )
    rows = WorkloadQuery(queries=queries, public=PUBLIC, epsilon=1)._without_noise(source, 1)
    assert rows == [Query(sql=q, public=PUBLIC, epsilon=1)._without_noise(source, 1) for q in queries]


def test_numbers_without_an_upper_limit_are_classified_beyond_the_last_threshold() -> None:
    """The number of rows of a person is not bounded: both sides of `n > 2` occur."""
    public = Public(schema=SCHEMA, unit=Unit("person", rows=1), table="people")
    source = people(public, 60, 4, units=12)
    sql = (
        "SELECT COUNT(*) AS units, COUNT_IF(n > 2) AS above, COUNT_IF(n > 6) AS far FROM (SELECT person, "
        "COUNT(*) AS n FROM people GROUP BY person) AS t"
    )
    (rows,) = WorkloadQuery(queries=(sql,), public=public, epsilon=1)._without_noise(source, 1)
    assert rows == Query(sql=sql, public=public, epsilon=1)._without_noise(source, 1)
    assert rows[0][1] > 0


def test_the_lecture_in_sql_is_12_instead_of_128() -> None:
    whole = WorkloadQuery(queries=LECTURE, public=PUBLIC, epsilon=0.01)
    assert 4 * whole.rmse**2 * 1e-4 == pytest.approx(12, rel=1e-3)
    shown = whole.preview()
    assert shown.alone is not None
    assert 4 * shown.alone * 1e-4 == pytest.approx(128, rel=1e-3)
    assert "91% less" in str(shown)


def test_counts_of_one_select_are_answered_together_where_that_is_better() -> None:
    conditions = ("sex = 'm' AND bmi < 25", "sex = 'm'", "sex = 'f' AND bmi < 25", "sex = 'f'")
    sql = "SELECT " + ", ".join(f"COUNT_IF({c}) AS q{i}" for i, c in enumerate(conditions)) + " FROM people"
    whole = together(sql, PUBLIC, epsilon=0.01)
    assert whole is not None
    assert 4 * whole.rmse**2 * 1e-4 == pytest.approx(12, rel=1e-3)
    assert together("SELECT COUNT(*) AS n FROM people", PUBLIC, epsilon=1) is None
    assert together("SELECT COUNT(*) AS n, AVG(bmi) AS b FROM people", PUBLIC, epsilon=1) is None


@pytest.mark.parametrize(
    ("clause", "sets"),
    [
        ("CUBE(sex, city)", [("sex", "city"), ("sex",), ("city",), ()]),
        ("ROLLUP(sex, city)", [("sex", "city"), ("sex",), ()]),
        ("GROUPING SETS((sex), (city), ())", [("sex",), ("city",), ()]),
        ("sex, ROLLUP(city)", [("sex", "city"), ("sex",)]),
    ],
)
def test_several_groupings_are_the_groupings_one_by_one(clause: str, sets: list[tuple[str, ...]]) -> None:
    source = people(PUBLIC, 150, 2)
    sql = f"SELECT sex, COUNT(*) AS n, city FROM people GROUP BY {clause}"
    (rows,) = WorkloadQuery(queries=(sql,), public=PUBLIC, epsilon=1)._without_noise(source, 3)
    expected = []
    for keys in sets:
        plain = f"SELECT {', '.join([*keys, 'COUNT(*) AS n'])} FROM people" + (
            f" GROUP BY {', '.join(keys)}" if keys else ""
        )
        for *values, n in Query(sql=plain, public=PUBLIC, epsilon=1)._without_noise(source, 3):
            named = dict(zip(keys, values, strict=True))
            expected.append([named.get("sex"), n, named.get("city")])
    assert rows == expected


def test_noisy_answers_agree_with_each_other() -> None:
    plain = Public(
        schema={"sex": Categories(["f", "m"]), "city": Categories(["bern", "rome"])}, table="people"
    )
    source = Memory({"sex": ["f", "m"] * 40, "city": ["bern"] * 50 + ["rome"] * 30}, plain)
    queries = (
        "SELECT sex, COUNT(*) AS n FROM people GROUP BY sex",
        "SELECT sex, city, COUNT(*) AS n FROM people GROUP BY sex, city",
    )
    for price in ({"epsilon": 1}, {"rho": 0.5}):
        by_sex, by_both = WorkloadQuery(queries=queries, public=plain, **price)(
            source, entropy=SeededEntropy(1)
        ).value  # type: ignore[arg-type]
        assert by_sex.columns == ("sex", "n")
        small = {row[0]: 0.0 for row in by_sex.rows}
        for sex, _, n in by_both.rows:
            small[sex] += n
        # every query groups by sex, so that rows without one are nowhere; city has a class for others, which
        # by_both leaves out
        assert by_sex.rows[0][1] - small["f"] == pytest.approx(0, abs=20)
        assert all(d is None or d > 0 for row in by_sex.deviations for d in row)


def moved(plan: WorkloadPlan, here: Memory, there: Memory, key: int) -> int:
    tables = [plan.counts(engine_of(s), key).table(range(len(plan.sizes))).ravel() for s in (here, there)]
    return int(np.abs(tables[0] - tables[1]).sum())


@pytest.mark.parametrize("queries", [SETS[0], SETS[1], SETS[4]], ids=["lecture", "tables", "conditions"])
@pytest.mark.parametrize("rows", [1, 4])
def test_no_person_moves_the_cells_by_more_than_the_rows_that_count(
    queries: tuple[str, ...], rows: int
) -> None:
    """All rows of one person are removed: no cell of the others changes, and those of the person by `rows` at
    most, often by exactly that."""
    public = Public(schema=SCHEMA, unit=Unit("person", rows=rows), table="people")
    whole = WorkloadQuery(queries=queries, public=public, epsilon=1)
    reached = 0
    for seed in range(3):
        source = people(public, 60, seed, units=5)
        table = source._table
        kept = [i for i, who in enumerate(table.column("person").to_pylist()) if who != seed % 5]
        fewer = Memory(
            {name: table.column(name).take(kept).to_pylist() for name in table.column_names}, public
        )
        change = moved(whole._plan, source, fewer, seed)
        assert change <= rows
        reached = max(reached, change)
    assert reached == rows, "the bound is attained: a smaller claim would be false"
    assert whole._plan.noise.sensitivity >= rows * whole._plan.grid.column[0]  # type: ignore[union-attr]


def test_one_row_is_in_one_cell() -> None:
    whole = WorkloadQuery(queries=SETS[4], public=PUBLIC, epsilon=1)
    table = people(PUBLIC, 40, 9)._table
    source = Memory({name: table.column(name).to_pylist() for name in table.column_names}, PUBLIC)
    for i in range(0, 40, 10):
        kept = [j for j in range(40) if j != i]
        fewer = Memory(
            {name: table.column(name).take(kept).to_pylist() for name in table.column_names}, PUBLIC
        )
        assert moved(whole._plan, source, fewer, 1) <= 1


@for_each(
    ("queries", "why"),
    [
        ((), "empty"),
        ("SELECT COUNT(*) AS n FROM people", "list"),
        (("SELECT AVG(bmi) AS a FROM people",), "only COUNT"),
        (("SELECT COUNT(DISTINCT bmi) AS a FROM people",), "only COUNT"),
        (("SELECT name, COUNT(*) AS n FROM people GROUP BY name",), "nothing is declared"),
        (("SELECT sex FROM people",), "aggregat"),
        (("DROP TABLE people",), "only SELECT"),
        (("SELECT sex, COUNT(*) AS n FROM people GROUP BY CUBE(sex), ROLLUP(city)",), "several of"),
        # planning these took 14 seconds, and longer lists minutes, before anything was charged
        ((f"SELECT COUNT(*) AS n FROM people GROUP BY ROLLUP({', '.join(['sex'] * 300)})",), "keys in all"),
        (
            (f"SELECT COUNT(*) AS n FROM people GROUP BY GROUPING SETS({'(sex), ' * 1024}())",),
            "more than 1,024",
        ),
        (("SELECT sex, COUNT(*) AS n FROM people GROUP BY CUBE(sex) LIMIT 1",), "cannot be combined"),
        (("SELECT COUNT(*) AS n FROM people WHERE sex = 'f' AND sex = 'm'",), "no row can be counted"),
    ],
)
def test_what_cannot_be_answered_together_is_refused_before_anything_is_read(queries: Any, why: str) -> None:
    with pytest.raises((QueryError, InvalidInput), match=why):
        WorkloadQuery(queries=queries, public=PUBLIC, epsilon=1)


def test_keys_that_nobody_declared_are_refused() -> None:
    public = Public(schema={**SCHEMA, "name": Text()}, table="people")
    with pytest.raises(QueryError, match="not declared"):
        WorkloadQuery(
            queries=("SELECT name, COUNT(*) AS n FROM people GROUP BY name",), public=public, epsilon=1
        )


def test_no_text_of_a_query_stands_where_the_key_of_a_run_goes() -> None:
    """A literal that is the placeholder would be replaced by the key, and count other rows."""
    from discreet.core.exact import PLACEHOLDER

    name, public = str((1 << 62) + 7_021_961), Public(schema={"name": Text()}, table="people")
    assert name != str(PLACEHOLDER)
    asked = (f"SELECT COUNT(*) AS n FROM people WHERE name = '{name}'", "SELECT COUNT(*) AS n FROM people")
    source = Memory({"name": [name, "other"]}, public)
    assert WorkloadQuery(queries=asked, public=public, epsilon=1)._without_noise(source, 7) == [[[1]], [[2]]]


def test_a_unit_with_several_rows_needs_a_limit() -> None:
    public = Public(schema=SCHEMA, unit=Unit("person"), table="people")
    with pytest.raises(InvalidInput, match="rows="):
        WorkloadQuery(queries=LECTURE, public=public, epsilon=1)
    assert WorkloadQuery(queries=LECTURE, public=public, epsilon=1, rows=3)._plan.max_rows == 3


def test_equal_questions_have_one_key_and_the_description_rebuilds_them() -> None:
    first = WorkloadQuery(queries=LECTURE, public=PUBLIC, epsilon=1)
    spaced = WorkloadQuery(
        queries=tuple(q.replace(" AND ", "  and\n") for q in LECTURE), public=PUBLIC, epsilon=1
    )
    assert first.key == spaced.key
    assert first.key != WorkloadQuery(queries=LECTURE[::-1], public=PUBLIC, epsilon=1).key
    assert first.key != WorkloadQuery(queries=LECTURE, public=PUBLIC, epsilon=2).key
    assert from_json(to_json(first)) == first


@functools.cache
def weighted_laplace_sums():
    """The arguments, and the characteristic functions of sums of few and of many noises; the first is one
    noise alone."""
    u = np.linspace(1e-9, 400, 100_001)
    shapes = [np.ones(k) / k for k in (1, 2, 3, 8, 50)] + [np.array([w, 1 - w]) for w in (0.6, 0.9, 0.99)]
    shapes += [np.r_[w, np.full(30, (1 - w) / 30)] for w in (0.1, 0.5, 0.9)]
    return u, [np.exp(-np.log1p(np.outer(u**2 / 2, weights)).sum(1)) for weights in shapes]


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.91, 0.92, 0.95, 0.99])
def test_intervals_under_laplace_noise_cover_combinations_of_few_and_of_many_noises(confidence):
    """The tail of a weighted sum of Laplace noises of variance one, by inverting its characteristic function
    (a product of 1 / (1 + w u² / 2)); a normal interval alone is left too often by few noises."""
    u, characteristics = weighted_laplace_sums()

    def outside(characteristic, width):
        return 1 - 2 / np.pi * integrate.simpson(np.sin(u * width) / u * characteristic, x=u)

    widest = laplace_width(Fraction(10**6), confidence)  # so wide that it is as good as continuous
    assert all(outside(one, widest) <= (1 - confidence) * (1 + 1e-3) for one in characteristics)
    if confidence >= 0.95:
        normal = NormalDist().inv_cdf((1 + confidence) / 2)
        assert outside(characteristics[0], normal) > 1.1 * (1 - confidence)


def test_questions_with_their_columns_in_another_order_have_another_key() -> None:
    keys = {
        WorkloadQuery(
            queries=(f"SELECT {columns}, COUNT(*) AS n FROM people GROUP BY GROUPING SETS ((sex), (city))",),
            public=PUBLIC,
            epsilon=1,
        ).key
        for columns in ("sex, city", "city, sex")
    }
    assert len(keys) == 2


def test_notes_say_what_the_limit_over_all_groups_leaves_out_and_that_totals_count_missing_keys() -> None:
    public = Public(schema=SCHEMA, table="people", unit=Unit("person", rows=2))
    groups = "SELECT sex, COUNT(*) AS n FROM people GROUP BY sex"
    asked = WorkloadQuery(queries=(groups,), public=public, epsilon=1)
    (answer,) = asked(people(public, 40, 1, units=5), entropy=SeededEntropy(1)).value
    assert answer.notes == asked.preview().notes
    assert answer.notes[0].startswith("counts at most 2 rows of one person, over all groups and questions")
    assert answer.notes[1] == "rows whose GROUP BY value is missing or not declared are in no group"
    shown = str(asked.preview())
    assert "for 1 answer\n" in shown
    assert "Protects all rows of one person, under add_remove" in shown
    levels = WorkloadQuery(queries=(groups.replace("BY sex", "BY ROLLUP (sex)"),), public=PUBLIC, epsilon=1)
    (note,) = levels.preview_of_one().notes
    assert "totals count them" in note
    assert levels.preview_of_one().plan[0] == "Protects one row, under add_remove (one more or less)."


def test_the_preview_of_a_single_count_by_group_points_to_the_workload_where_that_has_less_noise() -> None:
    public = Public(schema=SCHEMA, table="people", unit=Unit("person", rows=2))
    groups = "SELECT sex, COUNT(*) AS n FROM people GROUP BY sex"
    assert any("workload" in line for line in Query(sql=groups, public=public, epsilon=1).preview().plan)
    assert not any("workload" in line for line in Query(sql=groups, public=PUBLIC, epsilon=1).preview().plan)


EMPTY = {
    "persons": (
        "SELECT COUNT(*) AS n FROM people a JOIN people b ON a.person = b.person AND b.sex = 'none'",
        "person",
    ),
    "rows": ("SELECT COUNT(*) AS n FROM people JOIN towns ON people.city = towns.name", None),
}


@pytest.mark.parametrize("name", EMPTY)
def test_that_no_row_is_left_shows_in_nothing_but_the_count(name: str) -> None:
    """The sum over no rows was NULL, which became -9.2e18: whether anybody had matched was told for certain."""
    text, unit = EMPTY[name]
    towns = Related(name="towns", schema={"name": Text()})
    schema = {"sex": Categories(["f", "m", "none"]), "city": Text(), "person": Text()}
    public = Public(schema=schema, table="people", unit=Unit(unit, rows=2), tables=(towns,))
    data = {"sex": ["f", "m"], "city": ["x", "y"], "person": ["1", "2"]}
    for rows in (data, {column: values[:0] for column, values in data.items()}):
        typed = {column: np.array(values, dtype=str) for column, values in rows.items()}
        engine = connect(typed, public, related={"towns": {"name": ["bern"]}})
        workload = WorkloadQuery(queries=(text,), public=public, epsilon=1, rows=2)
        assert workload._plan.counts(engine, 3).counts.sum() == 0
        grouped = together(f"{text} GROUP BY GROUPING SETS (())", public, epsilon=1, rows=2)
        assert grouped is not None
        assert grouped._plan.counts(engine, 3).counts.sum() == 0


def test_a_sum_that_an_engine_leaves_out_is_zero() -> None:
    for kind in (pa.int64(), pa.int32(), pa.decimal128(38, 0)):
        assert integers(pa.chunked_array([pa.array([None, 3], kind)])).tolist() == [0, 3]
