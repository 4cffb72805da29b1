"""Random queries of the whole grammar over hostile rows: every engine computes the same exact numbers, row by
row, with noise off.

What is drawn is fixed by its seed. Functions whose last bit engines may choose (LN, EXP, POWER) are left out:
the contracts of nodes hold them to a tolerance. `python -m tests.contracts.test_engines_queries SEED SECONDS`
goes on with other seeds, and prints where engines differ.
"""

from __future__ import annotations

import random
import sys
import time
from datetime import date

import pyarrow as pa
import pytest

from discreet import Boolean, Bounds, Categories, Dates, Public, Related, Text
from discreet.core.exact import measure
from discreet.query import Query, QueryError
from discreet.tables import connect

from .. import postgres, spark
from .engines import DOUBLES, WHOLE
from .test_engines_hostile import TEXTS

ROWS = 160
WORDS = [
    "Straße",
    "İstanbul",
    "ΟΔΟΣ",
    "ς",
    "ǆ",
    "ŉ",
    "ﬁ",
    "K",
    "%",
    "_",
    "a_b",
    "\\",
    "🎈x🎈",
    "e\u0301",
    "ſ",
]
HOSTILE = [*(t for t in TEXTS if t is None or len(t) < 450), *WORDS]
DAYS = [
    date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10), date(1970, 1, 1), date(2020, 1, 31),
    date(2020, 2, 29), date(2020, 12, 31), date(2021, 1, 3), date(2022, 12, 31), date(2019, 12, 30), None,
]  # fmt: skip
SCHEMA = {
    "rid": Categories(list(range(ROWS))),
    "x": Bounds(-10.5, 50.25),
    "y": Bounds(-20.0, 20.0, nullable=False),
    "i": Bounds(-9, 50),
    "j": Bounds(0, 20),
    "b": Boolean(),
    "d": Dates("2019-12-30", "2022-12-31"),
    "s": Text(),
    "t": Categories(["a", "Straße", "1", "-2", "true"]),
    "n": Bounds(-100, 1000),
}
TOWNS = pa.table({"name": ["a", "ab", "x", "7", "ß", None], "size": ["1", "9.5", "nope", None, "4", "2"]})
PUBLIC = Public(
    table="p", schema=SCHEMA, tables=(Related(name="towns", schema={"name": Text(), "size": Bounds(0, 10)}),)
)


def rows() -> pa.Table:
    source = random.Random(99)

    def some(values, type_):
        return pa.array([source.choice(values) for _ in range(ROWS)], type_)

    doubles = [*DOUBLES, 49.99999999999999, 50.25, -10.5, 12.5, 0.3, 1 / 3]
    return pa.table(
        {
            "rid": pa.array(range(ROWS), pa.int64()),
            "x": some(doubles, pa.float64()),
            "y": some([*doubles, *(source.uniform(-30, 30) for _ in range(40))], pa.float64()),
            "i": some([*WHOLE, -(2**63), 3, 4, 50], pa.int64()),
            "j": some([0, 1, -1, 2**31 - 1, -(2**31), 7, 20, None], pa.int32()),
            "b": some([True, False, None], pa.bool_()),
            "d": some(DAYS, pa.date32()),
            "s": pa.array([HOSTILE[k % len(HOSTILE)] for k in range(ROWS)]),
            "t": some(HOSTILE, pa.string()),
            "n": some([t for t in HOSTILE if t is None or t[:1] in "-+.0123456789 "], pa.string()),
        }
    )


NUMBERS = [
    "x", "y", "i", "j", "n", "LENGTH(s)", "2", "0.5", "-3", "1e300", "1e-300", "0", "(d - DATE '2020-02-29')",
    *(f"EXTRACT({part} FROM d)" for part in ("day", "year", "week", "dow", "doy", "quarter")),
]  # fmt: skip
OF_NUMBERS = [
    "({a} + {b})", "({a} - {b})", "({a} * {b})", "({a} / {b})", "({a} // {b})", "({a} % {b})", "ROUND({a})",
    "ROUND({a}, 1)", "ROUND({a}, -1)", "TRUNC({a})", "TRUNC({a}, 1)", "SIGN({a})", "ABS({a})", "FLOOR({a})",
    "CEIL({a})", "LEAST({a}, {b})", "GREATEST({a}, {b})", "COALESCE({a}, {b})", "NULLIF({a}, {b})", "-({a})",
    "CLAMP({a}, -5, 7.5)", "SQRT({a})", "LENGTH({t})", "CAST({c} AS INTEGER)", "CAST(b AS INTEGER)",
    "CASE WHEN {c} THEN {a} ELSE {b} END", "CASE WHEN {c} THEN {a} END",
    *(f"CAST({{a}} AS {to})" for to in ("INTEGER", "BIGINT", "TINYINT", "UBIGINT", "FLOAT", "DECIMAL(9, 2)")),
    *(f"CAST({{t}} AS {to})" for to in ("DOUBLE", "INTEGER", "HUGEINT", "FLOAT", "DECIMAL(9, 2)")),
]  # fmt: skip
OF_TEXTS = [
    "UPPER({a})", "LOWER({a})", "TRIM({a})", "REPLACE({a}, 'a', 'ß')", "REPLACE({a}, '1', '')", "LEFT({a}, 2)",
    "SUBSTRING({a}, 2, 3)", "SUBSTRING({a}, 3)", "({a} || '!')", "({a} || {b})", "CONCAT({a}, {b})",
    "COALESCE({a}, 'zz')", "NULLIF({a}, '1')", "CASE WHEN b THEN {a} ELSE 'q' END", "DAYNAME(d)",
    "MONTHNAME(d)", "STRFTIME(d, '%b %d')", "STRFTIME(d, '%Y-%m-%d')", "STRFTIME(d, '%j %u %w')",
]  # fmt: skip
COMPARED = ["<", ">=", "=", "<>", "<=", ">", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
PATTERNS = ["'%a%'", "'S_%'", "'%ß'", "'%S'", "'_'", "'%'", "'1%'", "'%._'"]
KEYS = [
    "b", "j", "t", "UPPER(t)", "FLOOR(x / 10)", "EXTRACT(month FROM d)", "DATE_TRUNC('month', d)",
    "CASE WHEN x > 3 THEN 1 ELSE 2 END",
]  # fmt: skip


class Grammar:
    """Draws expressions, conditions and queries."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)

    def pick(self, values):
        return self.source.choice(values)

    def number(self, depth: int = 3) -> str:
        if depth == 0 or self.source.random() < 0.25:
            return self.pick(NUMBERS)
        a, b = self.number(depth - 1), self.number(depth - 1)
        return self.pick(OF_NUMBERS).format(a=a, b=b, t=self.text(1), c=self.condition(1))

    def text(self, depth: int = 2) -> str:
        if depth == 0 or self.source.random() < 0.3:
            return self.pick(["s", "s", "t", "'a'", "'ß%'"])
        return self.pick(OF_TEXTS).format(a=self.text(depth - 1), b=self.text(depth - 1))

    def day(self) -> str:
        a, unit = self.pick(["d", "d", "DATE '2020-02-29'"]), self.pick(["DAY", "WEEK", "MONTH", "YEAR"])
        moved = f"CAST({a} {self.pick('+-')} INTERVAL {self.source.randint(0, 14)} {unit} AS DATE)"
        start = f"CAST(DATE_TRUNC('{unit}', {a}) AS DATE)"
        return self.pick([a, moved, start, "CAST(s AS DATE)", f"({a} + {self.source.randint(-40, 40)})"])

    def condition(self, depth: int = 2) -> str:
        if depth and self.source.random() < 0.4:
            shape = self.pick(["({a} AND {b})", "({a} OR {b})", "(NOT {a})", "({a} IS NULL)"])
            return shape.format(a=self.condition(depth - 1), b=self.condition(depth - 1))
        less, number, text = max(depth - 1, 0), self.number, self.text
        kinds = [
            lambda: f"({number(less)} {self.pick(COMPARED)} {number(less)})",
            lambda: f"({text(depth)} {self.pick(COMPARED)} {text(depth)})",
            lambda: f"({self.day()} {self.pick(COMPARED)} {self.day()})",
            lambda: f"({text(depth)} {self.pick(['LIKE', 'NOT LIKE', 'ILIKE'])} {self.pick(PATTERNS)})",
            lambda: f"({self.pick('stxdibn')} IS {self.pick(['', 'NOT '])}NULL)",
            lambda: f"({number(1)} {self.pick(['IN', 'NOT IN'])} (1, 2, 0.5, 7))",
            lambda: f"({text(1)} {self.pick(['IN', 'NOT IN'])} ('a', 'ß', '1', ''))",
            lambda: f"({number(1)} BETWEEN {number(0)} AND {number(1)})",
            lambda: self.pick(["b", "(NOT b)", "CAST(s AS BOOLEAN)", f"STARTS_WITH({text(1)}, 'a')"]),
            lambda: f"({text(1)} IN (SELECT name FROM towns WHERE size > 1))",
        ]
        return self.pick(kinds)()

    def query(self) -> str:
        measures = []
        for k in range(self.source.randint(1, 5)):
            counted = self.pick([self.number(2), self.text(), self.day()])
            measure = self.pick(
                [f"SUM(CLAMP({self.number()}, -1000, 1000))"] * 5
                + [f"SUM(CASE WHEN {self.condition()} THEN 1 ELSE 0 END)"] * 3
                + [f"COUNT({counted})"]
            )
            measures.append(f"{measure} AS a{k}")
        where = f" WHERE {self.condition()}" if self.source.random() < 0.3 else ""
        listed = ", ".join(measures)
        shapes = [f"SELECT rid, {listed} FROM p{where} GROUP BY rid"] * 7
        shapes += [
            f"SELECT {self.text()} AS k, COUNT(*) AS n FROM p{where} GROUP BY 1",
            f"SELECT {self.pick(KEYS)} AS k, {listed} FROM p{where} GROUP BY 1",
            f"SELECT rid, COUNT(DISTINCT {self.pick([self.text(1), self.number(1), self.day()])}) AS n "
            f"FROM p{where} GROUP BY rid",
            f"SELECT MEDIAN({self.pick('xiny')}) AS m, COUNT(DISTINCT {self.text()}) AS n FROM p{where}",
        ]
        return self.pick(shapes)

    def planned(self) -> Query:
        """The next query that is not refused: refusals look at the text alone, and are the same anywhere."""
        while True:
            try:
                return Query(sql=self.query(), public=PUBLIC, epsilon=1, delta=1e-6)
            except QueryError:
                continue


def on_duckdb():
    return connect(rows(), PUBLIC, related={"towns": TOWNS}, threads=1)


def on_postgres():
    from discreet.tables import connect_postgres

    server = postgres.server()
    related = {"towns": server.load(TOWNS, "towns")}
    return connect_postgres(server.address("reader"), PUBLIC, table=server.load(rows(), "p"), related=related)


def on_spark():
    from discreet.tables.engines.spark import connect as connect_spark

    made = spark.session().createDataFrame
    return connect_spark(made(rows()), PUBLIC, related={"towns": made(TOWNS)})


def exactly(query, engine):
    """Keys, measures and scores of choices, in the order of keys."""
    exact = measure(query.question.form, engine, 5)
    scores = [c.dense(0, c.shape[0]).tolist() for c in exact.scores]
    order = sorted(range(len(exact.keys)), key=lambda i: repr(exact.keys[i]))
    measures = [[int(m[i]) for i in order] for m in exact.measures]
    return [exact.keys[i] for i in order], measures, [[s[i] for i in order] for s in scores]


SKIPS = {"postgres": postgres.MISSING, "spark": spark.missing()}
OTHERS = {"postgres": on_postgres, "spark": on_spark}


@pytest.mark.parametrize("other", OTHERS)
def test_random_queries_over_hostile_rows_are_the_same_on_every_engine(other):
    if SKIPS[other] is not None:
        pytest.skip(SKIPS[other])
    first, second, grammar = on_duckdb(), OTHERS[other](), Grammar(20261117)
    for _ in range(8):
        query = grammar.planned()
        assert exactly(query, second) == exactly(query, first), query.sql


def attack(seed: int, seconds: float, names: list[str]) -> int:
    engines = {"duckdb": on_duckdb(), **{name: OTHERS[name]() for name in names}}
    grammar, end, asked, differ = Grammar(seed), time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        query = grammar.planned()
        results = {}
        for name, engine in engines.items():
            try:
                results[name] = exactly(query, engine)
            except Exception as error:
                results[name] = repr(error)
        asked += 1
        for name in names:
            if results[name] != results["duckdb"]:
                differ += 1
                sys.stdout.write(f"{name}: {query.sql}\n{_difference(results['duckdb'], results[name])}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{asked} queries on {', '.join(engines)}, {differ} differences\n")
    return differ


def _difference(mine, other) -> str:
    if isinstance(mine, str) or isinstance(other, str) or mine[0] != other[0]:
        return f"  {str(mine)[:300]}\n  {str(other)[:300]}"
    pairs = zip(mine[1], other[1], strict=True)
    cells = [(mine[0][r], a[r], b[r]) for a, b in pairs for r in range(len(a)) if a[r] != b[r]]
    return "\n".join(f"  {key}: {a} {b}" for key, a, b in cells[:3]) or "  scores differ"


if __name__ == "__main__":
    sys.exit(attack(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:] or list(OTHERS)))
