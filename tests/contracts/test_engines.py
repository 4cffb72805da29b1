"""Every engine computes every node of the closed set as its docstring says, on hostile values, and fails on
no row; what is not in the set is refused."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from itertools import pairwise

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from sqlglot import exp

from discreet import Unsupported
from discreet.tables import Engine, EngineError
from discreet.tables import semantics as d
from discreet.tables.dialect import Dialect, Unwritten, template
from discreet.tables.engines.duckdb_dialect import DUCKDB

from ..loops import for_each
from .engines import (
    CASES,
    ENGINES,
    OF_ROWS,
    TABLES,
    Together,
    check,
    column,
    computed,
    computed_together,
)

NAMES = [f"{case.node.__name__} {case.table} {case.name}" for case in CASES]


@pytest.fixture(scope="module", params=ENGINES, ids=lambda case: case.name)
def case(request):
    if request.param.skip is not None:
        pytest.skip(request.param.skip)
    return request.param


@pytest.fixture(scope="module")
def engines(case):
    return {name: case.open(table) for name, table in TABLES.items()}


@pytest.fixture(scope="module")
def empty(case):
    return {name: case.open(table.slice(0, 0)) for name, table in TABLES.items()}


def test_it_is_an_engine_whose_dialect_writes_every_node(engines):
    engine = engines["wholes"]
    assert isinstance(engine, Engine)
    assert isinstance(engine.dialect, Dialect)
    assert not engine.dialect.missing
    engine.ready()
    engine.stopwatch()()
    assert engine.kinds["t"] == {"id": "integer", "i": "integer", "b": "boolean"}


def test_what_it_cannot_plan_is_refused_without_reading_a_row(engines):
    engine = engines["wholes"]
    from_table = engine.dialect.write(exp.select(exp.column("i", quoted=True)).from_(exp.to_table("t")))
    engine.plan([from_table])
    for wrong in ("SELECT no_such_function(1) AS n", "SELECT 1 AS n FROM no_such_table", "no SQL at all"):
        with pytest.raises(Unsupported, match="cannot plan this query"):
            engine.plan([from_table, wrong])
    # it answers as before
    engine.answer(from_table)


def test_every_node_has_a_case():
    assert {c.node for c in CASES} | OF_ROWS == d.NODES
    assert all(cls.__doc__ for cls in d.NODES)


@pytest.fixture(scope="module")
def together(engines):
    return Together(engines)


@for_each("node", CASES, ids=NAMES)
def test_a_node_means_what_it_says(node, engines, together):
    check(node, engines[node.table], engines[node.table].dialect, together.values(node))


@pytest.mark.parametrize("table", sorted({node.table for node in CASES}))
def test_no_row_is_no_row(table, empty):
    """Nothing is computed, and nothing fails, on a table without rows."""
    engine, nodes = empty[table], [node.make() for node in CASES if node.table == table]
    assert computed_together(engine, engine.dialect, nodes) == [[]] * len(nodes)


# Sums.


def summed(engine, dialect, node):
    return engine.answer(dialect.write(exp.select(exp.alias_(node, "r")).from_("t"))).to_pylist()[0]["r"]


def check_sums(open_, dialect=None):
    for values in ([2**63 - 1] * 1000, [-(2**63)] * 1000, [2**62, 1, None, -(2**62)], [None], [], [7]):
        engine = open_(pa.table({"i": pa.array(values, pa.int64())}))
        present = [v for v in values if v is not None]
        result = summed(engine, dialect or engine.dialect, d.WideSum(this=column("i")))
        assert (result is None) == (not present)
        assert result is None or int(result) == sum(present)


def test_sums_beyond_64_bits_are_exact(case):
    check_sums(case.open)


def test_sums_of_wide_numbers_are_exact(case):
    """Up to 2**126, in both directions."""
    engine = case.open(pa.table({"i": pa.array([2**62, 2**62, 1, -5], pa.int64())}))
    wide = exp.Paren(
        this=exp.Mul(this=d.Convert(this=column("i"), to="wide"), expression=exp.Literal.number(2**62))
    )
    assert int(summed(engine, engine.dialect, d.WideSum(this=wide))) == 2**62 * (2**63 - 4)


def test_sums_of_numbers_that_are_known_to_be_small_are_exact(case):
    """Whatever `most` allows an engine to leave out: at the ends of each width, and on both sides of zero."""
    ends = [1, (1 << 21) - 1, (1 << 22) - 1, 1 << 22, (1 << 43) - 1, 1 << 43, (1 << 62) + 1, (1 << 63) - 1]
    columns = {f"c{i}": [end, -end, -1, 0, None, end, -end, -end] * 20 for i, end in enumerate(ends)}
    engine = case.open(pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()}))
    sums = [d.WideSum(this=column(f"c{i}"), largest=end) for i, end in enumerate(ends)]
    query = exp.select(*(exp.alias_(node, f"c{i}") for i, node in enumerate(sums))).from_("t")
    (row,) = engine.answer(engine.dialect.write(query)).to_pylist()
    assert {name: int(value) for name, value in row.items()} == {
        name: sum(v for v in values if v is not None) for name, values in columns.items()
    }


def test_a_running_sum_goes_up_to_the_row_itself(case):
    rows = [(i, i % 3, (7 * i) % 30, i % 4) for i in range(30)]
    engine = relation(case, rows, ("id", "u", "h", "r"))
    node = d.WindowSum(this=column("r"), by=[column("u")], order=[column("h"), column("id")])
    wanted = [sum(r for _, v, k, r in rows if v == u and k <= h) for _, u, h, _ in rows]
    assert [int(total) for total in computed(engine, engine.dialect, node)] == wanted


# Hashes.


def hashes(engine, dialect, keys, *names):
    """For each row its hash of some columns under each key."""
    made = [
        exp.alias_(d.KeyedHash(key=key, expressions=[column(n) for n in names]), f"h{i}")
        for i, key in enumerate(keys)
    ]
    rows = engine.answer(dialect.write(exp.select(column("id"), *made).from_("t"))).to_pylist()
    return [[row[f"h{i}"] for i in range(len(keys))] for row in sorted(rows, key=lambda row: row["id"])]


TUPLES = [
    (None, None),
    (None, "a"),
    ("a", None),
    ("a", "a"),
    ("a", "b"),
    ("b", "a"),
    ("", None),
    (None, ""),
    ("", ""),
    ("ab", ""),
    ("a", "a"),
]


def tuples(case, pairs=TUPLES):
    first, second = (pa.array(list(part), pa.string()) for part in zip(*pairs, strict=True))
    return case.open(pa.table({"id": range(len(pairs)), "s": first, "t": second}))


def check_content(engine, dialect):
    """Hashes differ where tuples do; and contents are equal exactly where tuples are, in groups, in joins and
    when they are hashed."""
    content = d.Content(expressions=[column("s"), column("t")])
    of_contents = computed(engine, dialect, d.KeyedHash(key=12345, expressions=[content]))
    for values in (of_contents, [row[0] for row in hashes(engine, dialect, [12345], "s", "t")]):
        assert values[-1] == values[3]
        assert len(set(values)) == len(set(TUPLES))
    contents = exp.select(exp.alias_(content.copy(), "u", quoted=True)).from_("t")
    counted = exp.select(column("u"), exp.alias_(exp.Count(this=exp.Star()), "n", quoted=True))
    counted = counted.from_(contents.subquery("a")).group_by(column("u"))
    every = exp.select(exp.alias_(exp.Count(this=exp.Star()), "n", quoted=True))
    groups = every.from_(counted.subquery("g"))
    same = exp.EQ(this=exp.column("u", "a", quoted=True), expression=exp.column("u", "b", quoted=True))
    pairs = every.from_(contents.subquery("a")).join(contents.subquery("b"), on=same)
    number_of = [engine.answer(dialect.write(q)).to_pylist()[0]["n"] for q in (groups, pairs)]
    assert number_of == [len(set(TUPLES)), sum(TUPLES.count(one) for one in TUPLES)]


def test_a_hash_tells_tuples_apart_and_null_is_a_value(case):
    engine = tuples(case)
    check_content(engine, engine.dialect)


def check_uniform(engine, dialect):
    """Which of three groups has the smallest hash, under 900 keys and for each of four units; and
    independently between units (p > 1e-9 each)."""
    keys = [random.getrandbits(63) for _ in range(900)]
    rows = hashes(engine, dialect, keys, "s", "t")
    choices = [
        [min(range(3), key=lambda j, k=k, u=u: rows[3 * u + j][k]) for k in range(900)] for u in range(4)
    ]
    for own in choices:
        assert stats.chisquare([own.count(j) for j in range(3)]).pvalue > 1e-9
    for u in range(3):
        both = Counter(zip(choices[u], choices[u + 1], strict=True))
        assert stats.chisquare([both[i, j] for i in range(3) for j in range(3)]).pvalue > 1e-9


FOUR = [(unit, group) for unit in ("1", "2", "3", "") for group in ("a", "b", "c")]


def test_a_keyed_choice_is_uniform_and_independent(case):
    engine = tuples(case, FOUR)
    check_uniform(engine, engine.dialect)


def test_the_same_key_chooses_the_same_whatever_other_rows_there_are(case):
    """A choice is a function of key and values: not of the order of rows, nor of others."""
    keys = [3, 2**62 + 5]
    engine, reverse = tuples(case, FOUR), tuples(case, [("zz", None), *FOUR[::-1]])
    forward, backward = (
        hashes(engine, engine.dialect, keys, "s", "t"),
        hashes(reverse, reverse.dialect, keys, "s", "t"),
    )
    assert forward == backward[:0:-1]


# Choosing.


def relation(case, rows, names):
    columns = {
        n: pa.array([row[i] for row in rows], pa.string() if n == "k0" else pa.int64())
        for i, n in enumerate(names)
    }
    return case.open(pa.table(columns))


def chosen(engine, dialect, node, *names):
    query = exp.select(*(column(n) for n in names)).from_("chosen")
    query.set("with_", exp.With(expressions=[node]))
    return sorted(tuple(row.values()) for row in engine.answer(dialect.write(query)).to_pylist())


def ranked(case, n, dialect=None):
    """Rows (unit, group, hash rank) with repeated ranks; the n smallest different ranks of each unit stay."""
    rows = [(u, j, 10 * u + (7 * j) % 5) for u in range(5) for j in range(u + 1) for _ in range(1 + j % 2)]
    engine = relation(case, rows, ("u", "j", "h"))
    node = d.SmallestRanks(alias="chosen", source="t", pairs="pairs", n=n, columns=["h"])
    pairs = exp.CTE(
        this=exp.select(column("u"), column("h")).distinct().from_("t"),
        alias=exp.TableAlias(this=exp.to_identifier("pairs")),
    )
    query = exp.select(*(column(c) for c in ("u", "j", "h"))).from_("chosen")
    query.set("with_", exp.With(expressions=[pairs, node]))
    result = sorted(
        tuple(r.values()) for r in engine.answer((dialect or engine.dialect).write(query)).to_pylist()
    )
    wanted = [row for row in rows if row[2] in sorted({h for u, _, h in rows if u == row[0]})[:n]]
    return result, sorted(wanted)


@pytest.mark.parametrize("n", [1, 2, 3, 100])
def test_the_smallest_ranks_of_each_unit_stay(case, n):
    result, wanted = ranked(case, n)
    assert result == wanted


UNITS = {
    "wholes": pa.array([None, 0, 1, -1, 2**63 - 1, -(2**63), 2**32, 2**32 + 1, 7, 8], pa.int64()),
    "texts": pa.array([None, "", "a", "A", "a ", "ab", "é", "e\u0301", "z" * 1000, "'`"], pa.string()),
    # The two zeros are one unit, and so is every kind of NaN.
    "doubles": pa.array(
        [
            None,
            0.0,
            -0.0,
            *np.array([0x7FF8 << 48, 0xFFF8 << 48 | 1], np.uint64).view(float),
            5e-324,
            *[1.5] * 4,
        ],
        pa.float64(),
    ),
}


def totals(case, units, n, dialect=None):
    """Each unit with 0 to 6 groups, one of them of 300 rows, and rows without a unit: what the engine keeps,
    and what its own ranks say should be kept. The unit is in its canonical form, as every scan has it."""
    sizes = [(i, j, 300 if i + j == 9 else 1 + j) for i in range(10) for j in range((i + 3) % 7)]
    groups = [(i, j) for i, j, size in sizes for _ in range(size)]
    table = pa.table(
        {
            "u": UNITS[units].take(pa.array([i for i, _ in groups])),
            "j": pa.array([j for _, j in groups], pa.int64()),
            "x": pa.array([None if i == j else 10**12 * (i - j) for i, j in groups], pa.int64()),
        }
    )
    engine = case.open(table)
    rank = d.Rank(
        this=d.KeyedHash(key=2**62 + 11, expressions=[column("u"), column("j")]), low=column("j"), bits=3
    )
    unit = d.KeyedHash(key=1, expressions=[column("u")])
    each = exp.select(exp.alias_(unit, "u"), column("j"), column("x"), exp.alias_(rank.copy(), "h")).from_(
        "t"
    )
    each = each.where(exp.Not(this=exp.Is(this=column("u"), expression=exp.Null())))
    pairs: dict = {}
    for row in engine.answer(engine.dialect.write(each)).to_pylist():
        pairs.setdefault((row["u"], row["j"], row["h"]), []).append(row["x"] or 0)
    mine: dict = {}
    for unit_hash, j, h in pairs:
        mine.setdefault(unit_hash, []).append((h, j))
    wanted = [(j, len(pairs[u, j, h]), sum(pairs[u, j, h])) for u in mine for h, j in sorted(mine[u])[:n]]
    amounts = [
        exp.alias_(exp.Count(this=exp.Star()), "a0", quoted=True),
        exp.alias_(d.WideSum(this=column("x")), "a1", quoted=True),
    ]
    kind = {"wholes": "integer", "texts": "text", "doubles": "number"}[units]
    canonical = exp.alias_(d.Canonical(this=column("u"), kind=kind), "u", quoted=True)
    node = d.ChosenTotals(alias="chosen", source="scan", columns=[], amounts=amounts, rank=rank, n=n)
    query = exp.select(column("j"), column("a0"), column("a1")).from_("chosen")
    query = query.with_("scan", as_=exp.select(canonical, column("j"), column("x")).from_("t"))
    query.args["with_"].append("expressions", node)
    rows = engine.answer((dialect or engine.dialect).write(query)).to_pylist()
    return sorted((r["j"], int(r["a0"]), int(r["a1"] or 0)) for r in rows), sorted(wanted)


@pytest.mark.parametrize(("units", "n"), [("wholes", 1), ("wholes", 3), ("texts", 2), ("doubles", 2)])
def test_the_totals_of_the_chosen_groups_of_each_unit_stay(case, units, n):
    result, wanted = totals(case, units, n)
    assert result == wanted
    assert len(result) > n


def hash_of(engine, rows, names, sees, key):
    """The hashes as the engine computes them on the same values, by values."""
    made = exp.select(
        *(column(n) for n in names),
        exp.alias_(d.KeyedHash(key=key, expressions=[column(n) for n in sees]), "h"),
    )
    return {
        tuple(r.values())[:-1]: r["h"]
        for r in engine.answer(engine.dialect.write(made.from_("t"))).to_pylist()
    }


@pytest.mark.parametrize("n", [1, 3, 50])
@pytest.mark.parametrize("key", [1, 2**62 + 11])
def test_the_smallest_values_of_each_unit_and_group_stay(case, n, key):
    rows = [(u, j, 17 * u + x) for u in range(4) for j in range(3) for x in range(2 * u)]
    engine = relation(case, rows, ("u", "j", "x0"))
    order = d.KeyedHash(key=key, expressions=[column(c) for c in ("u", "j", "x0")])
    result = chosen(
        engine, engine.dialect, d.SmallestValues(alias="chosen", source="t", order=order, n=n), "j", "x0"
    )
    by = hash_of(engine, rows, ("u", "j", "x0"), ("u", "j", "x0"), key)
    wanted = []
    for u, j in {(u, j) for u, j, _ in rows}:
        mine = sorted((row for row in rows if row[:2] == (u, j)), key=lambda row: (by[row], row[2]))
        wanted += [row[1:] for row in mine[:n]]
    assert result == sorted(wanted)


def test_ties_are_broken_by_the_value(case):
    """An order that is the same for all: the smallest values stay, and as many as asked for."""
    rows = [(1, 0, x) for x in (5, 3, 9, 1)]
    engine = relation(case, rows, ("u", "j", "x0"))
    order = d.KeyedHash(key=5, expressions=[column("u")])
    node = d.SmallestValues(alias="chosen", source="t", order=order, n=2)
    assert chosen(engine, engine.dialect, node, "j", "x0") == [(0, 1), (0, 3)]
    node = d.SmallestRows(alias="chosen", source="t", columns=[], order=order.copy(), n=2)
    assert chosen(engine, engine.dialect, node, "j", "x0") == [(0, 1), (0, 3)]


@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_some_rows_of_each_unit_and_group_stay_equal_ones_numbered(case, n):
    """Each row of equal ones has a hash of its own: the engine's hashes of all numbers are asked for, and the
    choice repeated here."""
    rows = [(u, j, "ab"[j], x // 2) for u in range(3) for j in range(2) for x in range(3 * u)]
    engine = relation(case, rows, ("u", "j", "k0", "x0"))
    order = d.KeyedHash(key=77, expressions=[column(c) for c in ("u", "k0", "x0", "o")])
    result = chosen(
        engine,
        engine.dialect,
        d.SmallestRows(alias="chosen", source="t", columns=["k0"], order=order, n=n),
        "j",
        "x0",
    )
    seen: Counter = Counter()
    numbered = []
    for row in rows:
        numbered.append((*row, seen[row]))
        seen[row] += 1
    names = ("u", "j", "k0", "x0", "o")
    by = hash_of(relation(case, numbered, names), numbered, names, ("u", "k0", "x0", "o"), 77)
    wanted = []
    for u, j in {row[:2] for row in rows}:
        # the last 32 bits of the hash are the value's: ties beyond the others are broken by it
        mine = sorted((row for row in numbered if row[:2] == (u, j)), key=lambda row: (by[row] >> 32, row[3]))
        wanted += [(j, row[3]) for row in mine[:n]]
    assert result == sorted(wanted)


@pytest.mark.parametrize("bits", [1, 5, 32])
def test_a_rank_is_ordered_by_the_hash_and_tells_groups_apart(case, bits):
    rows = [(u, j) for u in range(20) for j in range(min(2**bits, 20))]
    engine = relation(case, [(i, *row) for i, row in enumerate(rows)], ("id", "u", "j"))
    made = lambda *names: d.KeyedHash(key=9, expressions=[column(n) for n in names])  # noqa: E731
    ranks = computed(engine, engine.dialect, d.Rank(this=made("u"), low=column("j"), bits=bits))
    plain = computed(engine, engine.dialect, made("u"))
    assert len(set(ranks)) == len(rows)
    order = sorted(range(len(rows)), key=lambda i: ranks[i])
    assert [plain[i] for i in order] == sorted(plain)
    assert all(rows[a][1] < rows[b][1] for a, b in pairwise(order) if rows[a][0] == rows[b][0])


# Refusals.

X = column("x")
OUTSIDE = [
    exp.Anonymous(this="isfinite", expressions=[X.copy()]),
    exp.Anonymous(this="read_csv", expressions=[exp.Literal.string("/etc/hostname")]),
    exp.Cast(this=X.copy(), to=exp.DataType.build("BIGINT")),
    exp.TryCast(this=X.copy(), to=exp.DataType.build("BIGINT")),
    exp.Sum(this=X.copy()),
    exp.Rand(),
    exp.Div(this=X.copy(), expression=X.copy()),
    exp.Like(this=X.copy(), expression=exp.Literal.string("a")),
    exp.Min(this=X.copy(), expressions=[exp.Literal.number(3)]),
    exp.Max(this=exp.Distinct(expressions=[exp.Upper(this=X.copy())])),
    exp.Window(this=exp.RowNumber(), spec=exp.WindowSpec(kind="ROWS")),
    exp.select("x").from_("t").limit(3),
    exp.select("x").from_("t").order_by("x"),
    exp.select("x").from_(exp.Table(this=exp.Anonymous(this="range", expressions=[exp.Literal.number(3)]))),
    exp.select("x").from_("other.t"),
    exp.union(exp.select("x").from_("t"), exp.select("x").from_("t")),
    exp.Command(this="ATTACH", expression="x"),
    d.Floor(this=exp.Anonymous(this="random")),
    exp.Case(ifs=[exp.If(this=X.copy(), true=exp.Sqrt(this=X.copy()))]),
]


@for_each("tree", OUTSIDE, ids=lambda tree: type(tree).__name__)
def test_what_is_not_in_the_closed_set_is_refused(tree, engines):
    dialect = engines["doubles"].dialect
    with pytest.raises(Unwritten, match="cannot"):
        dialect.write(tree.copy())
    with pytest.raises(Unwritten):
        dialect.write(exp.select(exp.alias_(exp.Subquery(this=tree.copy()), "r")).from_("t"))


@for_each("node", sorted(d.NODES, key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__)
def test_a_node_that_is_not_written_is_an_error(node):
    """Never passed through by the library below, whatever the node is called."""
    poorer = Dialect(
        "duckdb", DUCKDB.base, {cls: writer for cls, writer in DUCKDB.writers.items() if cls is not node}
    )
    assert poorer.missing == {node}
    with pytest.raises(Unwritten, match=node.__name__):
        poorer.write(exp.select(exp.alias_(node(this=X.copy()), "r")).from_("t"))


@for_each("node", sorted(d.NODES, key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__)
def test_a_node_without_a_part_or_with_one_too_many_is_refused(node, engines):
    dialect = engines["doubles"].dialect
    full = {
        name: [X.copy()] if name in ("expressions", "by", "order", "columns") else X.copy()
        for name in node.arg_types
    }
    for name in (name for name, required in node.arg_types.items() if required and name != "columns"):
        with pytest.raises(Unwritten):
            dialect.write(node(**{**full, name: None}))
    with pytest.raises(Unwritten):
        dialect.write(node(**full, surplus=X.copy()))


HOSTILE = ['x"', "x'", "1 OR 1=1", "a)", "a;b", "", "a\nb", "é", 1.5, ("a",)]


@for_each("value", HOSTILE, ids=repr)
def test_words_cannot_break_out_of_the_text(value, engines):
    dialect, order = engines["doubles"].dialect, d.KeyedHash(key=1, expressions=[X.copy()])
    trees = [
        d.Number(this=value),
        d.Day(this=value),
        d.DatePart(this=X.copy(), part=value),
        d.StartOf(this=X.copy(), unit=value),
        d.Convert(this=X.copy(), to=value),
        d.Canonical(this=X.copy(), kind=value),
        d.AsInteger(this=X.copy(), type=value),
        d.KeyedHash(key=value, expressions=[X.copy()]),
        d.SmallestRanks(alias="chosen", source=value, pairs="t", n=1, columns=[]),
        d.SmallestRanks(alias="chosen", source="t", pairs="t", n=1, columns=[value]),
        d.ChosenTotals(
            alias=value,
            source="t",
            columns=[],
            amounts=[exp.alias_(order.copy(), "a0")],
            rank=order.copy(),
            n=1,
        ),
        d.ChosenTotals(
            alias="chosen",
            source="t",
            columns=[value],
            amounts=[exp.alias_(order.copy(), "a0")],
            rank=order.copy(),
            n=1,
        ),
        d.SmallestValues(alias=value, source="t", order=order.copy(), n=1),
        d.SmallestRows(alias="chosen", source="t", columns=[value], order=order.copy(), n=1),
    ]
    for tree in trees:
        with pytest.raises(Unwritten):
            dialect.write(tree)


# The tests notice wrong texts.

MUTANTS = {
    d.RoundHalfAway: template("ROUND_EVEN({this}, 0)"),
    d.SafeNearestWhole: template("TRY_CAST(TRUNC({this}) AS BIGINT)"),
    # From version 2 on, DuckDB's own cast is right at the edges of a type, too.
    d.AsInteger: template(
        "CAST(TRY_CAST({this} AS {type}) AS DOUBLE)"
        if duckdb.__version__.startswith("1.")
        else "CAST(TRY_CAST(TRY_CAST({this} AS FLOAT) AS {type}) AS DOUBLE)"
    ),
    d.Least: lambda g, e: "LIST_MIN([{}, {}]) + {} * 0".format(
        *(g.sql(x) for x in (*e.expressions, e.expressions[1]))
    ),
    d.Divide: template("({this} / {expression})"),
    d.Remainder: template("({this} - {expression} * FLOOR({this} / NULLIF({expression}, 0)))"),
    d.IsFinite: template("NOT ISINF({this})"),
    d.Clip: template("GREATEST(LEAST({this}, {high}), {low})"),
    d.SquareRoot: template("SQRT({this})"),
    d.Same: template("({this} = {expression})"),
    d.Matches: template("({this} LIKE {pattern} ESCAPE '\\')"),
    d.Number: template("CAST({this} AS FLOAT)"),
    d.TruncatingDivide: template("FLOOR({this} / {expression})"),
    d.AddMonths: template("CAST({this} + 30 * CAST({expression} AS INT) AS DATE)"),
    d.DatePart: template("CAST(DATE_PART('day', {this}) AS DOUBLE)"),
    d.Concat: template("CONCAT({this}, {expression})"),
    d.SafeCast: template("CAST({this} AS DOUBLE)"),
    d.Canonical: template("{this}"),
}


def mutated(node, writer):
    return dataclasses.replace(DUCKDB, writers={**DUCKDB.writers, node: writer})


@pytest.fixture(scope="module")
def own():
    return {name: ENGINES[0].open(table) for name, table in TABLES.items()}


@pytest.mark.parametrize("node", MUTANTS, ids=lambda cls: cls.__name__)
def test_a_wrong_text_is_noticed(node, own):
    """By a wrong value, or because the engine fails on a row; the text itself is one that the engine
    takes."""
    dialect, noticed = mutated(node, MUTANTS[node]), 0
    for tried in (c for c in CASES if c.node is node):
        engine = own[tried.table]
        engine.answer("EXPLAIN " + dialect.write(exp.select(exp.alias_(tried.make(), "r")).from_("t")))
        try:
            check(tried, engine, dialect)
        except (AssertionError, EngineError):
            noticed += 1
    assert noticed


def test_wrong_sums_hashes_and_choices_are_noticed():
    duckdb = ENGINES[0]
    with pytest.raises(AssertionError):
        check_sums(duckdb.open, mutated(d.WideSum, template("SUM(CAST({this} AS DOUBLE))")))
    engine = tuples(duckdb)
    with pytest.raises(AssertionError):
        check_content(engine, mutated(d.Content, template("CONCAT_WS(',', {expressions})")))
    with pytest.raises(AssertionError):
        check_uniform(
            tuples(duckdb, FOUR),
            mutated(d.KeyedHash, template("HASH(CAST({key} AS UBIGINT), {expressions})")),
        )
    kept = mutated(
        d.SmallestRanks,
        template(
            'chosen AS (SELECT "u", "j", "h" FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY "u" '
            'ORDER BY "h") <= {n})'
        ),
    )
    result, wanted = ranked(duckdb, 2, kept)
    assert result != wanted
