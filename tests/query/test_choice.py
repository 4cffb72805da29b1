"""Which groups and rows of one unit count: a choice that other rows cannot move, uniform over keys,
independent between units."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import combinations

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from scipy import stats
from sqlglot import exp

import discreet as dp
from discreet import Bounds, Categories, Public, Related, Text, Unit
from discreet.core.compile import Compiler
from discreet.core.exact import PLACEHOLDER, statements
from discreet.query import Query
from discreet.tables import connect
from discreet.tables.engines.duckdb_dialect import DUCKDB

LADDER = pa.table({"w": [0.0, 0.0, 0.0], "l": ["a", "b", "c"]})
RELATED = Related(name="k", schema={"w": Bounds(0, 10), "l": Categories(["a", "b", "c"])})
ASKED = "SELECT l, COUNT(*) FROM t JOIN k ON t.x > k.w GROUP BY l"
HOSTILE = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1e308, 3.0, 3.0, 3.0, 7.5]


def facts(**schema):
    return Public(schema=schema, unit=dp.rows(), table="t", tables=(RELATED,))


def answers(data, public, sql, keys, ladder=LADDER, **how):
    query = Query(
        sql=sql, public=public, epsilon=1, rows=how.pop("rows", 1), groups=how.pop("groups", 1), **how
    )
    engine = connect(data, public, related={"k": ladder})
    return [dict(map(tuple, query._without_noise(engine, key))) for key in keys]


def rows_by_key(engine, text, keys):
    """The rows that a statement gives with each of the keys, which come first: all keys in one statement, as
    a statement for each key takes hundreds of times as long."""
    assert str(PLACEHOLDER) in text
    inner = text.replace(str(PLACEHOLDER), '"key"').replace(" AS MATERIALIZED ", " AS ")
    listed = ", ".join(f"({key})" for key in keys)
    made = engine.answer(
        f'SELECT "key", found.* FROM (VALUES {listed}) AS keys("key"), LATERAL ({inner}) AS found'
    )
    return list(zip(*(column.to_pylist() for column in made.columns), strict=True))


def moved(one, other):
    """By how much the answers of two tables differ, over all groups."""
    groups = one.keys() | other.keys()
    return sum(abs((one.get(g) or 0) - (other.get(g) or 0)) for g in groups)


def attacked():
    """Rows that reach both groups at every other place: without the first, these places are all others."""
    return [0.0, 5.0] * 374, {"w": [1.0, 1.0], "l": ["a", "b"]}, facts(x=Bounds(0, 10))


def test_a_row_that_leaves_moves_no_other_rows_choice():
    """The attack: with positions for identities, group b had 374 rows or none, and 187 after the first row
    had left."""
    x, ladder, public = attacked()
    keys = range(1, 1 << 40, 1 << 38)
    pairs = zip(
        answers({"x": x}, public, ASKED, keys, ladder),
        answers({"x": x[1:]}, public, ASKED, keys, ladder),
        strict=True,
    )
    for whole, less in pairs:
        assert sum(whole.values()) == 374
        assert whole == less
    for whole, less in zip(
        answers({"x": x}, public, ASKED, keys), answers({"x": x[:-1]}, public, ASKED, keys), strict=True
    ):
        assert moved(whole, less) == 1


@pytest.mark.parametrize(
    "sql",
    [
        ASKED,
        pytest.param(
            "SELECT l, SUM(x), COUNT(*) FROM t JOIN k ON t.x > k.w GROUP BY l", marks=pytest.mark.slow
        ),
        "SELECT s, l, COUNT(*) FROM t JOIN k ON t.x > k.w OR t.x IS NULL GROUP BY s, l",
        "SELECT l, MODE(s) FROM t JOIN k ON t.x >= k.w GROUP BY l",
        pytest.param(
            "SELECT l, COUNT(DISTINCT s) FROM t JOIN k ON t.x >= k.w GROUP BY l", marks=pytest.mark.slow
        ),
        pytest.param("SELECT s, COUNT(*) FROM t JOIN k ON t.x >= k.w GROUP BY s", marks=pytest.mark.slow),
    ],
)
def test_whichever_row_leaves_only_its_own_contribution_goes(sql):
    """Every statement's exact counts, for every row and for rows in another order: at most one group moves,
    by one row."""
    random = np.random.default_rng(3)
    columns = {
        "x": [HOSTILE[i] for i in random.integers(0, len(HOSTILE), 40)],
        "s": [["u", "v", None][i] for i in random.integers(0, 3, 40)],
    }
    public = facts(x=Bounds(0, 10), s=Text() if "GROUP BY s, l" in sql else Categories(["u", "v"]))
    query = Query(sql=sql, public=public, epsilon=1, delta=1e-6, rows=1, groups=1)

    def exact(rows):
        table = pa.table({name: pa.array([column[i] for i in rows]) for name, column in columns.items()})
        engine = connect(table, public, related={"k": LADDER})
        found = query._measure(engine, 99)
        listed = [
            *found.measures,
            *(counts for score in found.scores for counts in score.dense(0, score.shape[0]).T),
        ]
        return [dict(zip(found.keys, column.tolist(), strict=True)) for column in listed]

    whole = exact(range(40))
    assert exact(random.permutation(40)) == whole
    for gone in range(0, 40, 5):
        for one, other in zip(whole, exact([i for i in range(40) if i != gone]), strict=True):
            groups = [g for g in one.keys() | other.keys() if one.get(g, 0) != other.get(g, 0)]
            assert len(groups) <= 1


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_the_order_of_a_file_moves_no_choice(kind, tmp_path):
    """Rows in another order, in parts of another size, are the same table."""
    public = facts(x=Bounds(0, 10))
    found = []
    for order, part in (([*HOSTILE, *HOSTILE], 5), ([*HOSTILE[::-1], *HOSTILE], 3)):
        path = tmp_path / f"t{part}.{kind}"
        table = pa.table({"x": pa.array(order)})
        pq.write_table(table, path, row_group_size=part) if kind == "parquet" else csv.write_csv(table, path)
        found.append(answers(path, public, ASKED, [17, 18]))
    assert found[0] == found[1]


def test_the_test_of_rows_that_leave_has_teeth(monkeypatch):
    """The number of rows in the hash, which is one less when a row leaves."""
    hashed = Compiler._hash
    monkeypatch.setattr(Compiler, "_hash", lambda self, *parts: hashed(self, exp.column("w"), *parts))
    (whole,), (less,) = (
        answers({"x": rows}, facts(x=Bounds(0, 10)), ASKED, [5]) for rows in ([5.0] * 40, [5.0] * 39)
    )
    assert moved(whole, less) > 1


KEYS, ALPHA = 20_000, 1e-9


def written(self, *parts):
    return DUCKDB.write(Compiler._hash(self, *parts))


def choices(units, groups, written=written):
    """The group that each unit keeps under each of many keys, by the very expression that queries use: one
    row a unit."""

    class Stub:
        key = 1 << 61

    order = written(Stub(), exp.column("u"), exp.column("j")).replace(str(1 << 61), "secret")
    con = duckdb.connect(config={"threads": 1})
    keys = pa.table({"secret": np.random.default_rng().integers(0, 2**63, KEYS, dtype=np.uint64)})
    con.register("keys", keys)
    con.register("units", pa.table({"n": range(len(units)), "u": units}))
    con.register("groups", pa.table({"g": range(len(groups)), "j": groups}))
    sql = (
        f"SELECT n, secret, arg_min(g, {order}) AS kept FROM keys, units, groups GROUP BY n, secret "
        f"ORDER BY n, secret"
    )
    return con.execute(sql).fetchnumpy()["kept"].reshape(len(units), KEYS)


def check_uniform(kept, groups):
    """Chi-squared over keys for each unit, and how often each pair of units agrees; false alarms at most once
    in 10^8 tables of ten units."""
    for own in kept:
        assert stats.chisquare(np.bincount(own, minlength=groups)).pvalue > ALPHA
    for one, other in combinations(kept, 2):
        agreed = stats.binomtest(int((one == other).sum()), KEYS, 1 / groups)
        assert agreed.pvalue > ALPHA


UNITS = {
    "small": list(range(8)),
    "far": [2**40 + i for i in range(6)],
    "texts": ["", "a", "b", "ann", "anna", "x" * 40],
    "halves": [0.5 * i for i in range(6)],
}
GROUPS = {"two": [0, 1], "three": [0, 1, 2], "seven": list(range(7)), "texts": ["a", "b", "c", "d"]}


# Every kind of unit with three groups and with texts; other numbers of groups with the first kind, and with the
# others in `make test-all`.
@pytest.mark.parametrize(
    ("units", "groups"),
    [
        pytest.param(u, g, marks=[pytest.mark.slow] * (u != "small" and g in ("two", "seven")))
        for u in UNITS
        for g in GROUPS
    ],
)
def test_the_choice_of_a_group_is_uniform_and_independent_between_units(units, groups):
    check_uniform(choices(UNITS[units], GROUPS[groups]), len(GROUPS[groups]))


@pytest.mark.parametrize("groups", ["three", "seven"])
@pytest.mark.parametrize("first", [True, False])
def test_the_test_of_choices_has_teeth(groups, first):
    """The engine's hash of several values without a finalizer, key first or last, was neither."""

    def without(self, *parts):
        key, names = f"CAST({self.key} AS UBIGINT)", [part.name for part in parts]
        return f"HASH({', '.join([key, *names] if first else [*names, key])})"

    with pytest.raises(AssertionError):
        check_uniform(choices(UNITS["small"], GROUPS[groups], without), len(GROUPS[groups]))


def test_equal_rows_choose_together_and_favor_no_group():
    """Three groups, 30 equal rows: all in one group, each as often over 600 keys (p > 1e-9)."""
    random = np.random.default_rng()
    keys = random.integers(0, 2**62, 600).tolist()
    data, public = {"x": [5.0] * 30}, facts(x=Bounds(0, 10))
    query = Query(sql=ASKED, public=public, epsilon=1, rows=1, groups=1)
    engine = connect(data, public, related={"k": LADDER})
    made = statements(query.question.form, engine.kinds, engine.dialect)
    rows = rows_by_key(engine, made.additive, keys)
    assert sorted((key, n) for key, _, n in rows) == [(key, 30) for key in sorted(keys)]
    found = {key: j for key, j, _ in rows}
    # as a question is answered, with one key at a time
    for key, counts in zip(keys[:9], answers(data, public, ASKED, keys[:9]), strict=True):
        assert sorted(counts.values()) == [0, 0, 30]
        assert counts["abc"[found[key]]] == 30
    chosen = Counter(found.values())
    assert stats.chisquare([chosen[j] for j in range(3)]).pvalue > ALPHA


def test_each_row_of_a_person_is_as_likely_to_count_in_a_median():
    """Nine rows of 1 and one of 9 for each of 2,000 people, of which one counts: a tenth are 9, not a
    half."""
    people = 2000
    data = {"id": np.repeat(np.arange(people), 10), "x": np.tile([1.0] * 9 + [9.0], people)}
    public = Public(schema={"x": Bounds(0, 10)}, unit=Unit("id"), table="t")
    query = Query(sql="SELECT MEDIAN(x) FROM t", public=public, epsilon=1, rows=1)
    (counts,) = query._measure(connect(data, public), 5).scores
    high = counts[0][counts.shape[1] // 2 :].sum()
    assert counts.count.sum() == people
    assert abs(high - people / 10) < 6 * math.sqrt(people * 0.09)


def test_a_person_counts_for_a_value_at_most_as_often_as_rows_count():
    """Five equal rows of one person, of which two count: that is what the noise on frequencies is priced for."""
    public = Public(schema={"s": Categories(["a", "b"])}, unit=Unit("id"), table="t")
    engine = connect({"id": [1, 1, 1, 1, 1, 2], "s": ["a", "a", "a", "a", "a", "b"]}, public)
    for rows, wanted in ((1, [1, 1]), (2, [2, 1]), (9, [5, 1])):
        query = Query(sql="SELECT MODE(s) FROM t", public=public, epsilon=1, rows=rows)
        (counts,) = query._measure(engine, 5).scores
        assert list(counts[0]) == wanted


def test_choices_in_two_groups_of_one_person_are_independent():
    """Of two values one counts in each of two groups: one person keeps the same value in both half of the
    time (6 deviations)."""
    data = {"id": [7] * 4, "g": ["a", "a", "b", "b"], "x": ["l", "r", "l", "r"]}
    public = Public(schema={"g": Categories(["a", "b"]), "x": Text()}, unit=Unit("id"), table="t")
    sql = "SELECT g, COUNT(DISTINCT x) FROM t GROUP BY g"
    query, engine = Query(sql=sql, public=public, epsilon=1, rows=1, groups=2), connect(data, public)
    ((_, text),) = statements(query.question.form, engine.kinds, engine.dialect).distinct
    values = text.replace('COUNT(DISTINCT "x0")', 'MIN("x0")')
    assert values != text
    kept = defaultdict(list)
    for key, _, value in rows_by_key(engine, values, range(7919, 201 * 7919, 7919)):
        kept[key].append(value)
    assert {len(two) for two in kept.values()} == {2}
    assert len(kept) == 200
    # where both groups choose alike it is 200
    assert abs(sum(one == other for one, other in kept.values()) - 100) < 6 * math.sqrt(50)
