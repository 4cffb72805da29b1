"""What a hostile analyst tries: joins that multiply rows, keys that put a row in two groups, and errors or
hours that depend on a row."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pytest

from discreet import Bounds, Categories, Dates, InvalidInput, Public, Related, Text, Unit, Unsupported
from discreet.query import Query, QueryError
from discreet.tables import Database, connect

from ..work import growth, peak_bytes

PEOPLE = {"name": ["bob", "ann", "eve"], "age": [1, 70, 90], "code": ["a", "b", "a"]}
SCHEMA = {"name": Text(), "age": Bounds(0, 100), "code": Text()}
CODES = pa.table({"code": ["a", "b", "c"], "other": ["a", "a", "a"]})
RELATED = Related(name="codes", schema={"code": Text(), "other": Text()}, key="code")


def exact(sql, schema=None, data=None, *, related=None, tables=(), unit=None, **how):
    public = Public(
        schema=SCHEMA if schema is None else schema, table="p", tables=tables, unit=unit or Unit()
    )
    query = Query(sql=sql, public=public, epsilon=1, delta=1e-6, **how)
    return query._without_noise(connect(PEOPLE if data is None else data, public, related=related), 7)


@pytest.mark.parametrize(
    "on",
    ["c.code = c.code", "c.code = c.other", "c.code = UPPER(c.code)", "p.code = p.code", "c.code <> p.code"],
)
def test_a_key_that_equals_only_itself_joins_many_rows(on):
    """A declared key counts as compared only with what the private row fixes: else each row would be there
    once a code, at the price of one."""
    sql = f"SELECT COUNT(*) FROM p JOIN codes c ON {on}"
    with pytest.raises(InvalidInput, match="several rows"):
        exact(sql, related={"codes": CODES}, tables=(RELATED,))
    ((limited,),) = exact(sql, related={"codes": CODES}, tables=(RELATED,), rows=1)
    assert limited <= 3


@pytest.mark.parametrize(
    "on", ["c.code = p.code", "p.code = c.code", "c.code = 'a'", "c.code = LOWER(p.code)"]
)
def test_a_key_that_the_row_fixes_adds_no_rows(on):
    assert exact(
        f"SELECT COUNT(*) FROM p JOIN codes c ON {on}", related={"codes": CODES}, tables=(RELATED,)
    ) == [[3]]


@pytest.mark.parametrize(
    "key",
    [
        "2 * CAST(age AS INT) + 900000000000000000",
        "CAST(age AS INT) + 900000000000000000",
        "CAST(age AS INT) + 9007199254740950",
        "CASE WHEN age > 50 THEN 900000000000000000 ELSE 900000000000000002 END",
    ],
)
def test_no_row_is_in_two_groups_that_are_one_number_to_the_engine(key):
    with pytest.raises(QueryError, match="short public list"):
        exact(f"SELECT {key} AS k, COUNT(*) AS n FROM p GROUP BY 1")
    with pytest.raises(QueryError, match="public list"):
        exact(f"SELECT MODE({key}) FROM p")


def test_large_whole_keys_that_floats_tell_apart_are_answered():
    found = exact("SELECT 2 * CAST(age AS INT) + 9007199254000000 AS k, COUNT(*) AS n FROM p GROUP BY 1")
    assert len(found) == 101
    assert sum(n for _, n in found) == 3


@pytest.mark.parametrize("values", [["1", 1, "2"], [2**53, 2**53 + 1], [1, -(2**60)]])
def test_categories_that_would_be_one_are_refused(values):
    with pytest.raises(InvalidInput, match=r"differ from each other|within 2"):
        Categories(values)


@pytest.mark.parametrize("call", ["SUBSTRING(name, 90000000000000000, 1)", "SUBSTRING(name, 1, 5000000000)"])
def test_no_function_fails_only_if_somebody_is_there(call):
    """It failed for who is in the table and not for who is not: a bit about a person for any price."""
    with pytest.raises(QueryError, match="up to 10,000"):
        exact(f"SELECT COUNT(*) FROM p WHERE name = 'bob' AND {call} = 'x'")


@pytest.mark.parametrize(
    "condition",
    [
        "name IS NOT DISTINCT FROM ROUND(age * 1000) * 0",
        "NULLIF(0, age) IS DISTINCT FROM name",
        "COALESCE(name, ROUND(NULL)) = 'bob'",
        "CASE WHEN age > 5 THEN name ELSE ROUND(age * 1000) * 0 END = 'bob'",
        "CASE WHEN age > 5 THEN 'old' ELSE NULLIF(0, 1) END = 'old'",
    ],
)
def test_what_is_computed_to_be_zero_is_no_null_that_fits_any_kind(condition):
    """Compared with a number, the first name that is none made the engine fail: a bit about a person."""
    with pytest.raises(QueryError, match=r"compared with|of one kind"):
        exact(f"SELECT COUNT(*) FROM p WHERE {condition}")
    assert exact("SELECT COUNT(*) FROM p WHERE COALESCE(name, NULL) = 'bob'") == [[1]]


def test_ranges_next_to_zero_are_summed():
    """The step of such a range has no reciprocal among floats, so it is as small as one that has."""
    assert exact("SELECT SUM(age * 1e-310) AS s FROM p", data={**PEOPLE, "age": [0, 0, 0]}) == [[0]]
    tiny = {"age": Bounds(0.0, 1e-310)}
    assert exact("SELECT SUM(age) AS s, MEDIAN(age) AS m FROM p", tiny, {"age": [0.0, 0.0, 0.0]})[0][0] == 0
    least = Public(schema={"age": Bounds(0.0, 1e-320)}, table="p")
    (error,) = Query(sql="SELECT SUM(age) AS s FROM p", public=least, epsilon=1).preview().errors
    assert error < 1e-290


@pytest.mark.parametrize("value", ["a\x00b", "\ud800"])
def test_what_is_no_text_to_the_engine_is_refused_before_the_charge(value):
    """Declared or asked for, it was charged, and then the engine failed, whatever the table held. It cannot be
    declared any more; a declaration that came from elsewhere is refused by the engine, before the charge."""
    with pytest.raises(InvalidInput, match="without NUL and without half a surrogate pair"):
        Categories(["a", value])
    declared = Categories(["a", "b"])
    object.__setattr__(declared, "values", ("a", value))
    public = Public(schema={"code": declared}, table="p")
    query = Query(sql="SELECT code, COUNT(*) FROM p GROUP BY code", public=public, epsilon=1)
    with pytest.raises(Unsupported, match="no text"):
        query.rehearse(connect({"code": ["a"]}, public))
    with pytest.raises(QueryError, match="no text"):
        exact(f"SELECT COUNT(*) FROM p WHERE code = '{value}'")


def test_texts_that_are_joined_stay_small():
    notes = {"name": ["bob"], "t": ["x" * 50_000]}
    many = "t"
    for _ in range(10):
        many = f"({many} || {many})"
    schema = {"name": Text(), "t": Text()}
    assert exact(f"SELECT COUNT(*) FROM p WHERE LENGTH({many}) = 10000", schema, notes) == [[1]]
    assert exact("SELECT COUNT(*) FROM p WHERE LENGTH(t) = 50000", schema, notes) == [[1]]


@pytest.mark.parametrize("like", ["ILIKE '%a%a%a%a%b'", "LIKE '%a_%a_%a_%a_%b'", "ILIKE '%A_%a_%a_%_%b'"])
def test_no_pattern_takes_hours_on_somebodys_text(like):
    """The engine's own way takes a time that grows with a high power of the text's length: 64 times as long for 8
    times the length if it were only a square."""

    def match(length: int) -> None:
        assert exact(f"SELECT COUNT(*) FROM p WHERE t {like}", {"t": Text()}, {"t": ["a" * length]}) == [[0]]

    assert growth(match, 625, 5000) < 30


def test_no_pattern_takes_hours_on_a_text_with_a_collation(tmp_path):
    """On a text with any collation, "binary" too, DuckDB's LIKE tries all ways to match: it took a thousand
    times as long as on a plain text of this length."""
    with duckdb.connect(str(tmp_path / "p.duckdb")) as own:
        own.execute("CREATE TABLE p (t VARCHAR COLLATE NOCASE); INSERT INTO p VALUES (repeat('a', 250))")

    tables = [{"t": ["a" * 250]}, Database(tmp_path / "p.duckdb", "p")]

    def match(number):
        assert exact("SELECT COUNT(*) FROM p WHERE t LIKE '%a%a%a%a%b'", {"t": Text()}, tables[number]) == [
            [0]
        ]

    assert growth(match, 0, 1) < 30


def test_patterns_mean_what_the_engines_own_mean():
    texts = [
        "",
        "a",
        "ab",
        "a.b",
        "a\nb",
        "aXb",
        "é",
        "éb",
        "a_b",
        "a%b",
        "A.B",
        "(a)",
        "a\\b",
        "[ab]",
        "a+",
        "^a$",
        "ÀB",
    ]
    patterns = [
        "_",
        "__",
        "a_b",
        "A_B",
        "%_b",
        "_%",
        "a.b",
        "(_)",
        "a\\_",
        "[a_]",
        "_+",
        "^_$",
        "é_",
        "À_",
        "%",
        "a%b",
        "",
        "_|_",
    ]
    own = duckdb.connect()
    own.register("t", pa.table({"t": texts}))
    for pattern in patterns:
        for word in ("LIKE", "ILIKE"):
            ((wanted,),) = own.execute(f"SELECT COUNT(*) FROM t WHERE t {word} ?", [pattern]).fetchall()
            assert exact(
                f"SELECT COUNT(*) FROM p WHERE t {word} '{pattern}'", {"t": Text()}, {"t": texts}
            ) == [[wanted]]
    for pattern in ("t", "UPPER('a')", "'a' || '_'"):
        with pytest.raises(QueryError, match="fixed pattern"):
            exact(f"SELECT COUNT(*) FROM p WHERE t LIKE {pattern}", {"t": Text()}, {"t": texts})


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "hospital.duckdb"
    own = duckdb.connect(str(path))
    own.execute(
        "CREATE TABLE p (id VARCHAR COLLATE NOCASE, k VARCHAR COLLATE NOCASE, e ENUM('aa', 'bb'), "
        "big BIGNUM, j JSON, d TIMESTAMP_S, u UUID)"
    )
    one = "00000000-0000-0000-0000-00000000000"
    own.execute(
        f"INSERT INTO p VALUES ('ann', 'a', 'aa', repeat('9', 400)::BIGNUM, '{{}}', '2020-01-01', '{one}1')"
    )
    own.execute(f"INSERT INTO p VALUES ('Ann', 'A', 'bb', 5, '[1]', '2020-06-01', '{one}2')")
    own.close()
    return Database(path, "p")


def test_a_collation_makes_one_of_nobody_and_puts_no_row_in_two_groups(database):
    assert exact("SELECT k, COUNT(*) FROM p GROUP BY k", {"k": Categories(["a", "A"])}, database) == [
        ["a", 1],
        ["A", 1],
    ]
    assert exact("SELECT COUNT(DISTINCT id) FROM p", {}, database, unit=Unit("id")) == [[2]]
    assert exact("SELECT COUNT(*) FROM p WHERE k = 'a'", {"k": Text()}, database) == [[1]]


@pytest.mark.parametrize(
    ("fact", "asked", "wanted"),
    [
        ({"big": Bounds(0, 10)}, "SUM(big) FROM p", 5),
        ({"big": Text()}, "COUNT(DISTINCT big) FROM p", 2),
        ({"j": Text()}, "COUNT(*) FROM p WHERE j = 'no document'", 0),
        ({"j": Text()}, "COUNT(*) FROM p WHERE COALESCE(j, '{') = '[1]'", 1),
        ({"u": Text()}, "COUNT(*) FROM p WHERE u = 'no identifier'", 0),
        ({"u": Text()}, "COUNT(*) FROM p WHERE u LIKE '%2'", 1),
        ({"e": Text()}, "COUNT(*) FROM p WHERE e = 'cc' OR COALESCE(e, 'dd') = 'aa'", 1),
        ({"d": Dates("2000-01-01", "2030-01-01")}, "COUNT(*) FROM p WHERE d > '2020-03-01'", 1),
    ],
)
def test_columns_of_unusual_types_never_fail_on_a_row(database, fact, asked, wanted):
    assert exact(f"SELECT {asked}", fact, database) == [[wanted]]


@pytest.mark.parametrize(
    "type_",
    [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("ms", "UTC"), pa.timestamp("s", "Europe/Berlin")],
)
def test_timestamps_that_no_day_holds_are_missing(type_):
    """Not the first or last day, as they had been: two ids of people would become one."""
    when = pa.table({"d": pa.array([2**62, -(2**62), 0, None], type_)})
    schema = {"d": Dates("1960-01-01", "2030-01-01")}
    for condition, wanted in (
        ("d = '2030-01-01'", 0),
        ("d = '1960-01-01'", 0),
        ("d < '2000-01-01'", 1),
        ("d IS NULL", 3),
    ):
        assert exact(f"SELECT COUNT(*) FROM p WHERE {condition}", schema, when) == [[wanted]]


NUMBERS = [
    "x",
    "y",
    "0",
    "1",
    "-1",
    "7",
    "1e149",
    "-1e149",
    "1e-300",
    "900000000000000000",
    "0.5",
    "9007199254740993",
]
SHAPES = [
    "({} + {})",
    "({} - {})",
    "({} * {})",
    "({} / {})",
    "({} // {})",
    "({} % {})",
    "FLOOR({})",
    "CEIL({})",
    "ROUND({}, -12)",
    "ROUND({}, 12)",
    "ABS({})",
    "SQRT({})",
    "LN({})",
    "EXP({})",
    "POWER({}, 8)",
    "CLAMP({}, -5, 1e140)",
    "LEAST({}, {})",
    "CASE WHEN {} > {} THEN {} ELSE {} END",
    "COALESCE({}, {})",
    "NULLIF({}, {})",
    "CAST({} AS BIGINT)",
    "WIDTH_BUCKET({}, 0, 1e100, 9)",
]
ASKED = [
    "COUNT({})",
    "SUM(CLAMP({}, -3, 1e6))",
    "AVG(CLAMP({}, -3, 5))",
    "COUNT(DISTINCT {})",
    "MEDIAN(CLAMP({}, 0, 9))",
]


@pytest.mark.parametrize("seed", [5, pytest.param(6, marks=pytest.mark.slow)])
def test_arithmetic_at_the_edge_of_floats_is_refused_or_answered(seed):
    """Ranges overflow while a query is planned, values while it runs: the one is a QueryError, the other is
    nothing at all."""
    chance = random.Random(seed)

    def made(depth):
        if depth == 0:
            return chance.choice(NUMBERS)
        shape = chance.choice(SHAPES)
        return shape.format(*(made(depth - 1) for _ in range(shape.count("{}"))))

    odd = [1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"), -0.0, None]
    public = Public(schema={"x": Bounds(-10, 100), "y": Bounds(-1e149, 1e149)}, table="p")
    source = connect(pa.table({"x": pa.array(odd), "y": pa.array(odd[::-1])}), public)
    answered = 0
    for i in range(200):
        sql = f"SELECT {chance.choice(ASKED).format(made(2))} FROM p WHERE {made(1)} < {made(2)} OR x IS NULL"
        try:
            query = Query(sql=sql, public=public, epsilon=1)
        except InvalidInput:
            continue
        answered += 1
        if i % 4 == 0:
            query._without_noise(source, 7)
    assert answered > 100


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT APPROX_TOP_K(age > 5, {n}) FROM p",
        "SELECT code, COUNT(*) FROM p GROUP BY {n}",
        "SELECT SUM(CAST(age AS DECIMAL({n}, 2))) FROM p",
        "SELECT SUM(CAST(age AS DECIMAL(5, {n}))) FROM p",
        "SELECT QUANTILE_CONT(age, 0.{n}) FROM p",
    ],
)
def test_numbers_of_thousands_of_digits_are_refused_like_others(sql):
    with pytest.raises(QueryError, match=r"^line \d+, column \d+: "):
        exact(sql.format(n="9" * 5000))


@pytest.mark.parametrize("rank", ["1e-30000000", "1e30000000"])
def test_no_rank_of_a_quantile_takes_hours(rank):
    """Written as a fraction, this number has thirty million digits, twelve megabytes: computing them took 35
    CPU-seconds."""

    def ask() -> None:
        with pytest.raises(QueryError, match="strictly between 0 and 1"):
            exact(f"SELECT QUANTILE_CONT(age, {rank}) FROM p")

    ask()
    assert peak_bytes(ask) < 4_000_000
