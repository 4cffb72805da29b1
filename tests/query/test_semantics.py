"""With noise off, every aggregate over every grouping, shape of query and kind of unit equals a second
implementation on the bounded data."""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction

import pyarrow as pa
import pytest

from discreet import Bounds, Public, Related, Unit
from discreet.core.domain import number
from discreet.core.exact import _occurring_keys
from discreet.core.measures import candidates
from discreet.query import Query
from discreet.query.plan import plan
from discreet.tables import connect

from . import reference as ref

KEY = 123456789
SPEND = (-10.0, 50.0)

GROUPINGS = {
    "none": (None, lambda r: (), [()]),
    "categories": ("region", lambda r: r.region, list(ref.REGIONS)),
    "numbers": ("level", lambda r: r.level, [1, 2, 5]),
    "bins": ("FLOOR(age / 25)", lambda r: math.floor(r.age / 25), [0, 1, 2, 3]),
    "unknown": ("town", lambda r: r.town, None),
}
UNITS = {"row": (None, 1, 1), "person": ("id", 3, 2), "person, loose": ("id", 50, 50)}
# shape -> (FROM, WHERE, which rows)
SHAPES = {
    "plain": ("people", "", lambda r: True),
    "where": (
        "people",
        "WHERE age >= 30 AND (flag = 'yes' OR spend > 10)",
        lambda r: r.age >= 30 and (r.flag == "yes" or (r.spend is not None and r.spend > 10)),
    ),
    "cte": (
        "(SELECT * FROM people WHERE flag <> 'no') AS kept",
        "",
        lambda r: r.flag is not None and r.flag != "no",
    ),
    "in": (
        "people p",
        "WHERE p.level IN (1, 5) AND region IS NOT NULL",
        lambda r: r.level in (1, 5) and r.region is not None,
    ),
}


def expected(rows, grouping, unit, shape):
    column, rows_limit, groups_limit = UNITS[unit]
    _, key_of, groups = GROUPINGS[grouping]
    kept = [r for r in rows if SHAPES[shape][2](r)]
    if column is None:
        kept = [ref.Row(i, *r_tail(r)) for i, r in enumerate(kept)]
    chosen = ref.choose(kept, key_of, groups=groups, limit=groups_limit if column else None, key=KEY)
    order = groups if groups is not None else sorted(chosen)
    limits = ref.Limits(rows=rows_limit, many=column is not None)
    return {g: chosen.get(g, {}) for g in order}, limits


def r_tail(r):
    return (r.region, r.level, r.age, r.spend, r.town, r.flag)


# the tables are kept: while they are, no other has their number
OPENED = {}


def opened(data, unit):
    """Open a table once for each unit, and not for each of its queries."""
    if (id(data), unit) not in OPENED:
        column, rows, groups = UNITS[unit]
        OPENED[id(data), unit] = data, ref.source(data, column, rows=rows, groups=groups)
    return OPENED[id(data), unit][1]


def ask(data, sql, grouping, unit, shape):
    head, _, _ = GROUPINGS[grouping]
    source = opened(data, unit)
    table, where, _ = SHAPES[shape]
    keys = f"{head} AS k, " if head else ""
    text = f"SELECT {keys}{sql} FROM {table} {where}" + (f" GROUP BY {head}" if head else "")
    query = Query(sql=text, public=source.public, epsilon=1, delta=1e-6)
    found = query._without_noise(source, KEY)
    return {(row[0] if head else ()): row[1:] if head else row for row in found}


def close(a, b):
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


# A third of the product, which has every pair of grouping, unit and shape; the others are in `make test-all`.
CASES = [
    pytest.param(g, u, s, id=f"{g}-{u}-{s}", marks=[pytest.mark.slow] * (j != (i + k) % 3))
    for i, g in enumerate(GROUPINGS)
    for j, u in enumerate(UNITS)
    for k, s in enumerate(SHAPES)
]


@pytest.fixture(scope="module")
def data():
    return ref.table(1)


@pytest.mark.parametrize(("grouping", "unit", "shape"), CASES)
def test_aggregates_equal_the_reference_on_bounded_data(data, grouping, unit, shape):
    sql = (
        "COUNT(*) AS n, COUNT(spend) AS c, SUM(spend) AS s, AVG(age) AS a, VARIANCE(spend) AS v, "
        "STDDEV(age) AS d, "
        "COUNT(spend) FILTER (WHERE flag = 'yes') AS f, SUM(age) / COUNT(*) AS post"
    )
    groups, limits = expected(ref.cleaned(data), grouping, unit, shape)
    found = ask(data, sql, grouping, unit, shape)
    assert list(found) == list(groups)
    for g, units in groups.items():
        n, c, s, a, v, d, f, post = found[g]
        assert n == ref.count(units, limits)
        assert c == ref.count(units, limits, lambda r: r.spend is not None)
        assert close(s, ref.total(units, limits, lambda r: r.spend, *SPEND))
        assert close(a, ref.mean(units, limits, lambda r: r.age, 0.0, 99.0))
        assert close(v, ref.variance(units, limits, lambda r: r.spend, *SPEND))
        deviation = ref.variance(units, limits, lambda r: r.age, 0.0, 99.0)
        assert close(d, None if deviation is None else math.sqrt(deviation))
        assert f == ref.count(units, limits, lambda r: r.spend is not None and r.flag == "yes")
        ages = ref.total(units, limits, lambda r: r.age, 0.0, 99.0)
        assert close(post, ages / n if n else None)


@pytest.mark.parametrize(("grouping", "unit", "shape"), CASES)
def test_distinct_counts_quantiles_and_modes_equal_the_reference(data, grouping, unit, shape):
    persons = "COUNT(DISTINCT id) AS u, " if UNITS[unit][0] else ""
    sql = persons + (
        "COUNT(DISTINCT level) AS l, MEDIAN(spend) AS m, QUANTILE_CONT(age, 0.9) AS q, MODE(flag) AS "
        "o, APPROX_TOP_K(region, 2) AS t"
    )
    groups, limits = expected(ref.cleaned(data), grouping, unit, shape)
    found = ask(data, sql, grouping, unit, shape)
    for g, units in groups.items():
        *people, levels, middle, high, mode, top = found[g]
        group = ref.named(g, GROUPINGS[grouping][2])
        assert people in ([], [len(units)])
        assert levels == ref.distinct(units, limits, lambda r: r.level, "DOUBLE", group, KEY)
        grid = candidates(number(*SPEND))
        assert middle == max(
            -10.0, min(50.0, ref.quantile(units, limits, lambda r: r.spend, Fraction(1, 2), grid, group, KEY))
        )
        grid = candidates(number(0.0, 99.0))
        assert high == max(
            0.0, min(99.0, ref.quantile(units, limits, lambda r: r.age, Fraction(9, 10), grid, group, KEY))
        )
        assert (mode,) == ref.most_common(units, limits, lambda r: r.flag, ["yes", "no"], 1)
        assert top == ref.most_common(units, limits, lambda r: r.region, ref.REGIONS, 2)


@pytest.fixture(scope="module")
def joined(data):
    """People with a public table of towns (whose key is unique), and a private one of their visits."""
    import pyarrow as pa

    towns = pa.table({"town": ["a", "b", "c"], "size": [1.0, 2.0, 30.0]})
    visits = pa.table(
        {"who": [i % 40 for i in range(0, 300, 7)], "cost": [float(i % 9) for i in range(0, 300, 7)]}
    )
    from discreet import Bounds, Text

    related = (
        Related(
            name="towns", schema=(("town", Text()), ("size", Bounds(0, 10, nullable=False))), key=("town",)
        ),
        Related(name="visits", schema=(("cost", Bounds(0, 8, nullable=False)),), private=True, unit="who"),
    )

    def make(unit, **limits):
        public = Public(schema=ref.SCHEMA, unit=Unit(unit, **limits), table="people", tables=related)
        return connect(data, public, related={"towns": towns, "visits": visits}, threads=1), visits

    return make


@pytest.mark.parametrize("unit", [None, "id"])
def test_a_join_with_a_public_table_equals_the_reference(data, joined, unit):
    source, _ = joined(unit, rows=100, groups=100)
    sql = (
        "SELECT region, COUNT(*) AS n, SUM(size) AS s FROM people JOIN towns ON people.town = towns.town "
        "GROUP BY region"
    )
    found = {r[0]: r[1:] for r in Query(sql=sql, public=source.public, epsilon=1)._without_noise(source, KEY)}
    size = {"a": 1.0, "b": 2.0, "c": 10.0}  # 30 is clipped
    for region in ref.REGIONS:
        mine = [size[r.town] for r in ref.cleaned(data) if r.region == region and r.town in size]
        assert found[region][0] == len(mine)
        assert close(found[region][1], sum(mine))


def test_a_left_join_keeps_rows_and_computes_before_it_fills_with_nulls(data, joined):
    source, _ = joined("id", rows=100, groups=100)
    sql = (
        "SELECT COUNT(*) AS n, COUNT(big) AS b, SUM(big) AS s FROM people LEFT JOIN "
        "(SELECT town, COALESCE(size, 0) + 1 AS big FROM towns WHERE size < 5) AS t ON people.town = t.town"
    )
    ((n, b, s),) = Query(sql=sql, public=source.public, epsilon=1)._without_noise(source, KEY)
    rows = list(ref.cleaned(data))
    big = [{"a": 2.0, "b": 3.0}[r.town] for r in rows if r.town in ("a", "b")]
    assert (n, b) == (len(rows), len(big))
    assert close(s, sum(big))


def test_two_private_tables_join_on_the_unit(data, joined):
    source, visits = joined("id", rows=10_000)
    sql = (
        "SELECT COUNT(*) AS n, SUM(cost) AS s, COUNT(DISTINCT id) AS u FROM people p JOIN visits v ON "
        "p.id = v.who"
    )
    ((n, s, u),) = Query(sql=sql, public=source.public, epsilon=1)._without_noise(source, KEY)
    costs = defaultdict(list)
    for who, cost in zip(visits["who"].to_pylist(), visits["cost"].to_pylist(), strict=True):
        costs[who].append(cost)
    rows = ref.cleaned(data)
    assert n == sum(len(costs[r.unit]) for r in rows)
    assert close(s, sum(sum(costs[r.unit]) for r in rows))
    assert u == len({r.unit for r in rows} & set(costs))


def test_pre_aggregation_by_unit_equals_the_reference(data):
    source = ref.source(data, "id")
    sql = (
        "WITH mine AS (SELECT id, COUNT(*) AS n, SUM(spend) AS s, MAX(age) AS oldest, AVG(spend) AS "
        "a FROM people GROUP BY id HAVING COUNT(*) > 4) "
        "SELECT FLOOR(oldest / 50) AS half, COUNT(*) AS people, SUM(CLAMP(s, 0, 100)) AS s, "
        "AVG(CLAMP(n, 0, 8)) AS n, SUM(a) AS a FROM mine GROUP BY 1"
    )
    found = {r[0]: r[1:] for r in Query(sql=sql, public=source.public, epsilon=1)._without_noise(source, KEY)}
    by_unit = defaultdict(list)
    for r in ref.cleaned(data):
        by_unit[r.unit].append(r)
    groups = defaultdict(list)
    for rows in by_unit.values():
        if len(rows) > 4:
            spends = [r.spend for r in rows if r.spend is not None]
            groups[math.floor(max(r.age for r in rows) / 50)].append(
                (len(rows), sum(spends), sum(spends) / len(spends))
            )
    for half in (0, 1):
        mine = groups[half]
        assert found[half][0] == len(mine)
        assert math.isclose(
            found[half][1], sum(min(max(s, 0), 100) for _, s, _ in mine), rel_tol=1e-4, abs_tol=1e-2
        )
        assert math.isclose(found[half][3], sum(a for _, _, a in mine), rel_tol=1e-4, abs_tol=1e-2)
        if mine:
            assert math.isclose(found[half][2], sum(min(n, 8) for n, _, _ in mine) / len(mine))


@pytest.mark.parametrize("seed", range(2, 6))
def test_other_tables_too(seed):
    data = ref.table(seed, rows=120, units=15)
    test_aggregates_equal_the_reference_on_bounded_data(data, "categories", "person", "where")
    test_distinct_counts_quantiles_and_modes_equal_the_reference(data, "bins", "person", "plain")


def test_a_group_of_both_zeros_has_one_name_whichever_zero_the_engine_kept():
    """Engines name it by one of its rows, and -0.0 sorts elsewhere than 0.0 as text."""
    public = Public(schema={"x": Bounds(-1e6, 1e6)}, table="t")
    planned = plan("SELECT CEIL(x) AS k, COUNT(*) AS n FROM t GROUP BY 1", public)
    keys, _ = _occurring_keys(planned.keys, pa.table({"k0": [-0.0, 1.0], "j": [1, 2]}))
    assert str(keys) == "[(0.0,), (1.0,)]"
