"""Privacy by neighbors: take any unit out (or replace it), and the exact answer moves by at most what the
query is priced for."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discreet.core.measures import Bounding, Measure
from discreet.mechanisms.protocols import Sensitivity
from discreet.query import Query, QueryError
from discreet.sampling import SeededEntropy

from . import neighbors as nb

AGGREGATES = [
    "COUNT(*)",
    "COUNT(spend)",
    "SUM(spend)",
    "SUM(spend * age - 3)",
    "AVG(spend)",
    "STDDEV(age)",
    "COUNT(DISTINCT town)",
    "MEDIAN(spend)",
    "MAX(age)",
    "MODE(region)",
    "APPROX_TOP_K(region, 2)",
    "COUNT_IF(age > 30)",
    "SUM(CASE WHEN region = 'north' THEN age ELSE -age END)",
    "SUM(CLAMP(age / (spend - 5), -2, 7))",
    "SUM(level)",
    "CORR(spend, age)",
    "COVAR_SAMP(level, spend)",
    "SUM(CAST(spend AS TINYINT))",
    "SUM(age // 7)",
    "SUM(TRUNC(spend, 1) + SIGN(age))",
    "AVG(CLAMP(EXP(spend * 99), 0, 5))",
    "VAR_POP(level)",
]
GROUPS = [
    None,
    "age",
    "UPPER(region)",
    "region",
    "town",
    "FLOOR(age / 30)",
    "region, FLOOR(age / 50)",
    "town, region",
    "spend > 3",
]
WHERES = [
    "",
    "WHERE spend > 0",
    "WHERE age < 50 OR town = 'a'",
    "WHERE EXISTS (SELECT 1 FROM towns AS w WHERE w.town = people.town AND w.size > 1)",
    "WHERE people.town NOT IN (SELECT w.town FROM towns AS w) OR age > 9",
]
SOURCES = [
    "people",
    "people LEFT JOIN towns ON people.town = towns.town",
    "(SELECT * FROM people WHERE age > 10) AS people",
    "towns RIGHT JOIN people ON people.town = towns.town",
    "towns, people",
]
PERSONAL = [
    "people JOIN visits ON people.id = visits.who",
    "people LEFT JOIN visits ON people.id = visits.who",
    "visits RIGHT JOIN people ON people.id = visits.who",
    "(SELECT * FROM people WHERE EXISTS (SELECT 1 FROM visits AS w WHERE w.who = id AND w.cost > 2)) "
    "AS people JOIN visits ON id = who",
    "(SELECT * FROM people WHERE id NOT IN (SELECT w.who FROM visits AS w GROUP BY w.who HAVING "
    "COUNT(*) > 1)) AS people JOIN visits ON id = who",
    "(SELECT id, MAX(region_number) AS age, SUM(spend) AS total, MIN(spend) AS spend, COUNT(*) AS n, "
    "COUNT(DISTINCT town) AS t FROM "
    "(SELECT id, age AS region_number, spend, town FROM people) AS inner_people GROUP BY id) AS people",
]
PERSONAL_AGGREGATES = [
    "COUNT(*)",
    "COUNT(DISTINCT id)",
    "SUM(CLAMP(total, -5, 20))",
    "AVG(CLAMP(n, 0, 3))",
    "SUM(spend)",
    "MEDIAN(age)",
]

numbers = st.one_of(
    st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(-20, 120).map(float)
)
rows = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["north", "south", "east", "moon", None]),
        numbers,
        numbers,
        st.sampled_from(["a", "b", "c", None]),
    ),
    max_size=14,
)
visits = st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 20).map(float)), max_size=8)


@st.composite
def queries(draw, unit):
    personal = unit is not None and draw(st.integers(0, 3)) == 0
    if personal:
        source = draw(st.sampled_from(PERSONAL))
        grouped = "(SELECT id" in source
        aggregates = draw(
            st.lists(
                st.sampled_from(
                    PERSONAL_AGGREGATES
                    if grouped
                    else [
                        *AGGREGATES,
                        "SUM(cost)",
                        "COUNT(DISTINCT who)",
                        "COUNT(DISTINCT id) FILTER (WHERE cost > 1)",
                    ]
                ),
                min_size=1,
                max_size=3,
                unique=True,
            )
        )
        group = draw(st.sampled_from([None, "FLOOR(age / 30)"] if grouped else GROUPS))
        where = ""
    else:
        source = draw(st.sampled_from(SOURCES))
        aggregates = draw(
            st.lists(
                st.sampled_from(AGGREGATES + (["COUNT(DISTINCT id)"] if unit else [])),
                min_size=1,
                max_size=3,
                unique=True,
            )
        )
        group, where = draw(st.sampled_from(GROUPS)), draw(st.sampled_from(WHERES))
    if "towns" in source:
        fix = lambda text: re.sub(r"(?<![.\w])town\b", "people.town", text)  # noqa: E731
        aggregates, group, where = [fix(a) for a in aggregates], group and fix(group), fix(where)
    sql = f"SELECT {', '.join(aggregates)} FROM {source} {where}" + (f" GROUP BY {group}" if group else "")
    return sql, draw(st.integers(1, 3)), draw(st.integers(1, 2))


@st.composite
def cases(draw, unit):
    return draw(queries(unit)), draw(rows), draw(visits)


def tables(unit, data, seen):
    """The table with row numbers, and every neighbor that lacks one unit."""
    numbered = [(i, *row) for i, row in enumerate(data)]
    yield numbered, seen
    if unit is None:
        for i in range(len(numbered)):
            yield [r for r in numbered if r[0] != i], seen
    else:
        for person in range(5):
            yield [r for r in numbered if r[1] != person], [v for v in seen if v[0] != person]


def check(unit, case, relation="add_remove", bounding=None, engine=None):
    (sql, limit_rows, limit_groups), data, seen = case
    public = nb.public(unit, relation)
    query = Query(sql=sql, public=public, epsilon=1, delta=1e-6, rows=limit_rows, groups=limit_groups)
    engine = engine or nb.Swapped(public)
    found = [nb.exact(query, engine.load(*t), bounding) for t in tables(unit, data, seen)]
    for other in found[1:]:
        nb.assert_within(query, found[0], other)
        if relation == "replace":  # two tables that lack one unit each are at most one replacement apart
            nb.assert_within(query, found[1], other)


ENGINE = nb.Swapped(nb.public(None))
relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)


@settings(relaxed, max_examples=12)
@given(case=cases("id"))
def test_removing_a_person_moves_answers_within_the_claim(case):
    check("id", case, engine=ENGINE)


@settings(relaxed, max_examples=10)
@given(case=cases(None))
def test_removing_a_row_moves_answers_within_the_claim(case):
    check(None, case, engine=ENGINE)


@settings(relaxed, max_examples=6)
@given(case=cases("id"))
def test_replacing_a_person_moves_answers_within_the_claim(case):
    check("id", case, "replace", engine=ENGINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "relation"), [("id", "add_remove"), (None, "add_remove"), ("id", "replace"), (None, "replace")]
)
def test_neighbors_thousands_of_times(unit, relation):
    @settings(relaxed, max_examples=300, derandomize=False)
    @given(case=cases(unit))
    def run(case):
        check(unit, case, relation, engine=ENGINE)

    run()


# One person with many rows in many groups, beside others: what a wrong bound cannot survive.
HEAVY = [(0, r, 90.0, 40.0, t) for r in ("north", "south", "east") for t in ("a", "b", "c") for _ in range(3)]
LIGHT = [(p, "north", 10.0, 5.0, "a") for p in (1, 2, 3)]
TEETH = [
    ("SELECT region, COUNT(*), SUM(spend) FROM people GROUP BY region", 2, 2),
    ("SELECT town, COUNT(*) FROM people GROUP BY town", 2, 1),
    ("SELECT region, AVG(spend), COUNT(DISTINCT id) FROM people GROUP BY region", 1, 1),
    ("SELECT region, COUNT(DISTINCT town) FROM people GROUP BY region", 1, 1),
    ("SELECT region, MEDIAN(spend) FROM people GROUP BY region", 1, 1),
    ("SELECT COUNT(*) FROM people JOIN visits ON people.id = visits.who", 3, 1),
]
SEEN = [(0, 8.0)] * 4


@pytest.mark.parametrize("query", TEETH)
def test_the_check_has_teeth_bounding_off(query):
    check("id", (query, HEAVY + LIGHT, SEEN), engine=ENGINE)
    with pytest.raises(AssertionError):
        check("id", (query, HEAVY + LIGHT, SEEN), bounding=Bounding(rows=10**5, groups=10**5), engine=ENGINE)


@pytest.mark.parametrize("query", [q for q in TEETH if "MEDIAN" not in q[0]])
def test_the_check_has_teeth_sensitivity_halved(query, monkeypatch):
    honest = Measure.sensitivity

    def halved(self, bounding, neighbors, groups):
        claim = honest(self, bounding, neighbors, groups)
        return Sensitivity(
            linf=max(claim.linf // 2, 1),
            l0=max(claim.l0 // 2, 1),
            l1=claim.l1 // 2,
            l2_squared=claim.l2_squared // 4,
        )

    monkeypatch.setattr(Measure, "sensitivity", halved)
    with pytest.raises((AssertionError, ValueError)):
        check("id", (query, HEAVY + LIGHT, SEEN), engine=ENGINE)


def test_every_group_gets_its_own_noise(monkeypatch):
    """opendp issue 2344: one draw broadcast to 595 groups."""

    def spread():
        query = Query(
            sql="SELECT FLOOR(age), COUNT(*) AS n FROM people GROUP BY 1",
            public=nb.public(None),
            epsilon=0.01,
        )
        source = nb.Swapped(query.public).load([], [])
        return len(set(query(source, entropy=SeededEntropy(5)).value["n"]))

    assert spread() > 50  # 100 empty groups with a deviation of 141
    from discreet.mechanisms.noise import IntegerLaplace

    honest = IntegerLaplace.__call__
    one = lambda self, values, /, *, entropy: values + honest(self, np.zeros(1, int), entropy=entropy)[0]  # noqa: E731
    monkeypatch.setattr(IntegerLaplace, "__call__", one)
    assert spread() == 1


def test_missing_bounds_mean_refusal_not_no_noise(monkeypatch):
    """smartnoise issue 317.

    Whatever cannot be bounded is refused, and a sensitivity of zero cannot be priced.
    """
    public = nb.public("id")
    for sql in (
        "SELECT SUM(town) FROM people",
        "SELECT SUM(1 / spend) FROM people",
        "SELECT SUM(n) FROM (SELECT id, COUNT(*) AS n FROM people GROUP BY id) AS mine",
        "SELECT AVG(EXP(EXP(age))) FROM people",
        "SELECT SUM(id) FROM people",
    ):
        with pytest.raises(QueryError, match="needs a number"):
            Query(sql=sql, public=public, epsilon=1, rows=1)
    with pytest.raises(ValueError, match="not declared how many"):
        Query(sql="SELECT COUNT(*) FROM people", public=public, epsilon=1)
    monkeypatch.setattr(Measure, "sensitivity", lambda *a: Sensitivity(linf=0))
    with pytest.raises(ValueError, match="sensitivity is 0"):
        Query(sql="SELECT COUNT(*) FROM people", public=public, epsilon=1, rows=1)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_every_measure_has_noise_that_covers_its_sensitivity(noise):
    sql = (
        "SELECT region, COUNT(*), AVG(spend), VARIANCE(age), COUNT(DISTINCT town) FROM people GROUP BY region"
    )
    query = Query(sql=sql, public=nb.public("id"), epsilon=1, delta=1e-6, rows=3, groups=2, noise=noise)
    shape = query.question.form
    assert len(query.question.noises) == len(shape.sensitivities) == 6
    for drawn, sensitivity in zip(query.question.noises, shape.sensitivities, strict=True):
        assert drawn.covers(sensitivity)
        assert drawn.standard_deviation > 0


def test_nothing_but_aggregates_leaves_the_engine():
    """What is fetched has at most one row a group (or a group and candidate), and its columns are counts,
    sums and indices."""
    public = nb.public("id")
    data = [(i, i % 7, "north", float(i % 50), 1.5, "a") for i in range(3000)]
    engine = nb.Swapped(public).load(data, [(1, 2.0)] * 50)
    for sql, most in [
        ("SELECT region, COUNT(*), SUM(spend), AVG(age) FROM people GROUP BY region", 3),
        ("SELECT town, COUNT(*), COUNT(DISTINCT region) FROM people GROUP BY town", 1),
        ("SELECT MEDIAN(age), MODE(region) FROM people", 50),
        ("SELECT COUNT(*) FROM people JOIN visits ON people.id = visits.who", 1),
    ]:
        query = Query(sql=sql, public=public, epsilon=1, delta=1e-6, rows=3, groups=1)
        engine.fetched.clear()
        query(engine, entropy=SeededEntropy(1))
        assert engine.fetched
        for table in engine.fetched:
            assert table.num_rows <= most
            assert set(table.column_names) <= {"j", "x0", "vi", "k0", *(f"m{i}" for i in range(9))}


def test_neighbors_are_told_apart_by_the_check_at_all():
    """The check compares something: without any limit a person with 27 rows moves a count by 27."""
    query = Query(sql="SELECT COUNT(*) FROM people", public=nb.public("id"), epsilon=1, rows=100)
    with_heavy = nb.exact(query, ENGINE.load([(i, *r) for i, r in enumerate(HEAVY)], []))
    without = nb.exact(query, ENGINE.load([], []))
    assert with_heavy.measures[0][0] - without.measures[0][0] == 27
    tight = dataclasses.replace(query, rows=26)
    with pytest.raises(AssertionError):
        nb.assert_within(tight, with_heavy, without)
