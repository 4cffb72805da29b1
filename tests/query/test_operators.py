"""Every operator is total, stays inside the range it claims, and means the same in the engine and on released
numbers."""

from __future__ import annotations

import math
from datetime import date

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discreet import Boolean, Bounds, Categories, Dates, InvalidInput, Public
from discreet.core import nodes
from discreet.core.domain import Kind, number
from discreet.core.errors import Refusal
from discreet.core.nodes import Column, Literal, OutputReference, make
from discreet.query import Query, QueryError
from discreet.tables import connect
from discreet.tables.engines.duckdb_dialect import DUCKDB

from ..loops import for_each

CON = duckdb.connect(config={"threads": 1})
A, B = Column("a", number(-7, 12)), Column("b", number(-3, 5, nullable=False))
BINARY = ["+", "-", "*", "/", "//", "%", "=", "<>", "<", "<=", ">", ">=", "least", "greatest", "nullif"]
UNARY = ["floor", "ceil", "abs", "sqrt", "ln", "log2", "log10", "exp", "round", "trunc", "sign", "null?"]
UNARY += ["whole:INTEGER", "whole:TINYINT", "whole:UBIGINT", "exactly whole", "finite"]
values = st.one_of(
    st.integers(-7, 12).map(float), st.floats(-7, 12), st.sampled_from([-7.0, 12.0, 0.0, -0.0, 1e-300])
)


@st.composite
def expressions(draw, depth=3):
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([A, B, Literal(2), Literal(0.5), Literal(-3)]))
    try:
        kind = draw(st.integers(0, 4))
        if kind <= 1:
            return numeric(
                make(
                    draw(st.sampled_from(BINARY)), draw(expressions(depth - 1)), draw(expressions(depth - 1))
                )
            )
        if kind == 2:
            return numeric(make(draw(st.sampled_from(UNARY)), draw(expressions(depth - 1))))
        if kind == 3:
            condition = make("<", draw(expressions(depth - 1)), draw(expressions(depth - 1)))
            return make("case", condition, draw(expressions(depth - 1)), draw(expressions(depth - 1)))
        return make("clamp", draw(expressions(depth - 1)), Literal(-2), Literal(3))
    except Refusal:
        return A


def numeric(call):
    return make("number", call) if call.domain.kind is Kind.BOOLEAN else call


def in_engine(expression, a, b):
    text = DUCKDB.write(nodes.sql(expression))
    CON.execute("CREATE OR REPLACE TEMP TABLE one (a DOUBLE, b DOUBLE)")
    CON.execute("INSERT INTO one VALUES (?, ?)", [a, b])
    ((found,),) = CON.execute(f"SELECT {text} FROM one").fetchall()
    return found


def on_released(expression, a, b):
    def swapped(node):
        if isinstance(node, Column):
            return OutputReference("aggregate", 0 if node.name == "a" else 1, node.domain)
        if isinstance(node, nodes.Call):
            return nodes.Call(node.op, tuple(swapped(arg) for arg in node.args), node.domain)
        return node

    given_values = [np.array([np.nan if v is None else v]) for v in (a, b)]
    return float(np.ravel(nodes.value(swapped(expression), [], given_values))[0])


@settings(
    deadline=None, derandomize=True, max_examples=150, database=None, suppress_health_check=list(HealthCheck)
)
@given(expression=expressions(), a=st.one_of(st.none(), values), b=st.floats(-3, 5))
def test_operators_are_total_within_their_range_and_mean_one_thing(expression, a, b):
    found = in_engine(expression, a, b)  # must not raise
    domain = expression.domain
    if found is None:
        assert domain.nullable
        return
    if not math.isfinite(found):
        assert not domain.finite  # cleaned before it is measured
        return
    slack = 1e-9 * (1 + abs(found))
    assert domain.low - slack <= found <= domain.high + slack
    if domain.values is not None:
        assert any(math.isclose(found, v, abs_tol=1e-9) for v in domain.values)
    if domain.integral:
        assert found == math.floor(found)
    released = on_released(expression, a, b)
    assert math.isnan(released) or math.isclose(released, found, rel_tol=1e-9, abs_tol=1e-9)


@for_each(
    ("op", "args"),
    [
        ("+", (A, Literal("x"))),
        ("and", (A, B)),
        ("power", (A, B)),
        ("power", (A, Literal(9))),
        ("clamp", (A, Literal(3), Literal(1))),
        ("clamp", (A, B, Literal(1))),
        ("like", (A, Literal("x"))),
        ("substring", (Literal("abc"), Literal(0))),
        ("part:year", (A,)),
        ("case", (A, B, B)),
        ("case", (make("<", A, B), B, Literal("x"))),
        ("round", (A, B)),
    ],
)
def test_operators_refuse_what_they_are_not_for(op, args):
    with pytest.raises(Refusal, match=r"needs|must be of one kind"):
        make(op, *args)


def test_the_teeth_of_this_test():
    """A range that is too small is noticed."""
    wrong = nodes.Call("*", (A, B), number(-1, 1))
    found = in_engine(wrong, 12.0, 5.0)
    assert not wrong.domain.low <= found <= wrong.domain.high


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("WIDTH_BUCKET(x, 0, 10, 5)", [0, 1, 1, 3, 6]),
        ("FLOOR(x / 2) * 2", [-2, 0, 0, 4, 12]),
        ("CAST(x AS INTEGER)", [-1, 0, 2, 4, 12]),
    ],
)
def test_bins_are_where_they_should_be(sql, expected):
    import pyarrow as pa

    from discreet import Bounds, Public
    from discreet.query import Query
    from discreet.tables import connect

    xs = [-1.0, 0.25, 1.75, 4.25, 12.0]
    public = Public(schema={"x": Bounds(-1, 12)}, table="t")
    source = connect(pa.table({"x": xs}), public)
    rows = Query(
        sql=f"SELECT {sql} AS k, COUNT(*) AS n FROM t GROUP BY {sql}", public=public, epsilon=1
    )._without_noise(source, 1)
    found = {k: n for k, n in rows if n}
    assert found == {k: expected.count(k) for k in expected}


@pytest.mark.parametrize("values", [[1, 2, 10**9], [1.0, 2.0, 1e18, float("nan")], ["1", "2", "7", "x"]])
def test_a_number_outside_its_categories_is_missing_in_sums(values):
    """Sums of declared categories are priced for the declared ones alone."""
    engine = connect({"c": values}, Public(schema={"c": Categories([1, 2])}, table="t"))
    sql = "SELECT SUM(c), COUNT(c), AVG(c), VAR_POP(c), SUM(c * 3) FROM t"
    (row,) = Query(sql=sql, public=engine.public, epsilon=1)._without_noise(engine, 1)
    assert row == [3, 2, 1.5, 0.25, 9]


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        (["yes", "no"], ["yes"] * 3 + ["no"] * 3 + ["maybe", "Yes", "", None]),
        ([1, 0], [1] * 3 + [0] * 3 + [7, -1, 10**6, None]),
        (["1", "0"], [1] * 3 + [0] * 3 + [7, -1, 10**6, None]),
    ],
)
def test_a_value_outside_its_categories_is_missing_everywhere(declared, values):
    """A text that is not declared counted in the average of a comparison, as if it were another one."""
    public = Public(schema={"flag": Categories(declared)}, table="t")
    engine, yes, no = connect({"flag": values}, public, threads=1), *map(repr, declared)
    asked = {
        f"AVG(flag = {yes})": 0.5,
        f"AVG(flag <> {yes})": 0.5,
        f"AVG(flag IN ({yes}, {no}))": 1,
        "COUNT(flag)": 6,
        "COUNT(DISTINCT flag)": 2,
        "COUNT_IF(flag IS NULL)": 4,
        f"COUNT_IF(NOT flag = {yes})": 3,
        f"COUNT_IF(CASE flag WHEN {yes} THEN FALSE ELSE TRUE END)": 7,
        "COUNT(*)": 10,
    }
    query = Query(sql=f"SELECT {', '.join(asked)} FROM t", public=public, epsilon=1)
    (row,) = query._without_noise(engine, 1)
    assert dict(zip(asked, row, strict=True)) == asked
    assert "values of flag that are not declared are missing values" in query.notes
    of_rows = Query(sql="SELECT flag, COUNT(*) FROM t GROUP BY flag", public=public, epsilon=1)
    assert not any("are missing values" in note for note in of_rows.notes)


@pytest.mark.parametrize("name", ["+(a, b)", "int:1", "key[0]", "column:'a'"])
def test_a_column_that_is_called_like_an_expression_has_a_key_of_its_own(name: str) -> None:
    domain = number(0, 1)
    others = [
        make("+", Column("a", domain), Column("b", domain)),
        Literal(1),
        OutputReference("key", 0, domain),
        Column("a", domain),
    ]
    assert nodes.key(Column(name, domain)) not in {nodes.key(other) for other in others}


WORDS = (
    "NULLIF(word, 'b')",
    "CASE WHEN word = 'b' THEN word END",
    "COALESCE(NULLIF(word, 'b'), 'none')",
    "NULLIF(word, 'b') IS NULL",
    "NOT ('2.5' = NULLIF(word, 'b'))",
    "UPPER(NULLIF(word, 'b')) || '!'",
    "TRY_CAST(word AS DOUBLE)",
    "TRY_CAST(word AS INTEGER)",
    "TRY_CAST(word AS DECIMAL(5, 1))",
    "TRY_CAST(word AS FLOAT)",
)
DAYS = (
    "LEAST(NULLIF(day, DATE '2020-01-02'), DATE '2020-01-03')",
    "GREATEST(NULLIF(day, DATE '2020-01-02'), DATE '2020-01-03')",
    "NULLIF(day, DATE '2020-01-02') > DATE '2020-01-01'",
    "YEAR(NULLIF(day, DATE '2020-01-02'))",
)
FLAGS = ("flag AND COUNT(*) > 0", "NOT flag OR COUNT(*) < 0")


@pytest.mark.parametrize(("column", "expressions"), [("word", WORDS), ("day", DAYS), ("flag", FLAGS)])
def test_what_is_computed_from_released_texts_days_and_conditions_is_what_the_engine_computes(
    column, expressions
):
    """A NULL among texts was NaN, which no answer can be stored with; others failed after the charge."""
    days = [date(2020, 1, 1), date(2020, 1, 2), date(2020, 1, 4)]
    table = pa.table({"word": ["2.5", "b", ""], "day": days, "flag": [True, False, True]})
    schema = {
        "word": Categories(["2.5", "b", ""]),
        "day": Dates("2020-01-01", "2020-01-04"),
        "flag": Boolean(),
    }
    public = Public(schema=schema, table="t")
    items = ", ".join(f"{expression} AS x{i}" for i, expression in enumerate(expressions))
    sql = f"SELECT {column} AS k, {items} FROM t GROUP BY {column}"
    query = Query(sql=f"{sql} HAVING COUNT(*) > 0", public=public, epsilon=1)
    released = {str(k): cells for k, *cells in query._without_noise(connect(table, public), 7)}
    CON.register("t", table)
    plain = {str(k): cells for k, *cells in CON.execute(sql).fetchall()}
    CON.unregister("t")
    shown = {k: [str(x) if isinstance(x, date) else x for x in cells] for k, cells in plain.items()}
    assert released == shown


@pytest.mark.parametrize("number", [0.04, 9.94, 99.94, 99.95, -99.95, 100.0, 5000.0, 1e300])
def test_a_released_number_that_does_not_fit_a_decimal_is_missing_as_in_the_engine(number):
    call = make("decimal", OutputReference("aggregate", 0, A.domain), Literal(3), Literal(1))
    released = float(nodes.value(call, [], [np.array([number])])[0])
    ((expected,),) = CON.sql(
        f"SELECT CAST(TRY_CAST({number!r}::DOUBLE AS DECIMAL(3, 1)) AS DOUBLE)"
    ).fetchall()
    assert math.isnan(released) if expected is None else released == expected


def test_a_list_of_the_most_common_is_not_computed_with():
    public = Public(schema={"k": Categories(["a", "b"])}, table="t")
    for part in ("SELECT APPROX_TOP_K(k, 1) = 'a' AS x", "SELECT COUNT(*) AS x"):
        with pytest.raises(QueryError, match="is a list"):
            Query(sql=f"{part} FROM t HAVING APPROX_TOP_K(k, 1) = 'a'", public=public, epsilon=1)


def test_a_covariance_beyond_the_range_of_floats_is_refused():
    public = Public(schema={"x": Bounds(0.0, 1e100), "y": Bounds(0.0, 1e100)}, table="t")
    with pytest.raises(InvalidInput, match=r"range|1e|too large|bounds"):
        Query(sql="SELECT COVAR_POP(x, y) AS c FROM t", public=public, epsilon=1)


def test_the_range_of_exp_holds_what_engines_round_to_zero():
    public = Public(schema={"x": Bounds(-800, 0, nullable=False)}, table="t")
    source = connect({"x": [-799.0, -1.0]}, public)
    assert Query(sql="SELECT COUNT(LN(EXP(x))) FROM t", public=public, epsilon=1)._without_noise(
        source, 1
    ) == [[1]]
