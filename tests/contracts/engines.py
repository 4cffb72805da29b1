"""The engines, and what each node of the closed set means: hostile values in, and what Python says must come
out.

Another engine is one more entry of `ENGINES`; where its server or library is not there, `skip` says why. A
case is a node over columns of one of the tables below, and an oracle on the values of a row. What a node
leaves open, the oracle answers with `OPEN`: then only that nothing fails is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot import exp

from discreet import Public
from discreet.tables import Engine, EngineError, connect
from discreet.tables import semantics as d
from discreet.tables.dialect import Dialect

from .. import postgres, spark

OPEN = object()
INF, NAN = math.inf, math.nan


@dataclass(frozen=True)
class EngineCase:
    """An engine that the contracts hold for.

    `open` makes one over a table "t"; `skip` is the reason why it cannot be tried here.
    """

    name: str
    open: Callable[[pa.Table], Engine]
    skip: str | None = None


def _postgres(table: pa.Table) -> Engine:
    from discreet.tables.engines.postgres import connect_postgres

    server = postgres.server()
    return connect_postgres(server.address("reader"), Public(table="t"), table=server.load(table))


def open_spark(table: pa.Table) -> Engine:
    from discreet.tables.engines.spark import connect as connect_spark

    return connect_spark(spark.session().createDataFrame(table), Public(table="t"))


ENGINES = [
    EngineCase("duckdb", lambda table: connect(table, Public(table="t"), threads=1)),
    EngineCase("postgres", _postgres, postgres.MISSING),
    EngineCase("spark", open_spark, spark.missing()),
]

EDGES = [
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    1e-300,
    0.1,
    0.49999999999999994,
    0.5,
    1.0,
    1.5,
    2.5,
    -0.5,
    -2.5,
    -7.0,
    3.7,
    99.5,
    127.5,
    -128.5,
    255.5,
]
HUGE = [
    2.0**31 - 0.5,
    -(2.0**31) - 0.5,
    2.0**53 + 2,
    2.0**63,
    -(2.0**63),
    2.0**63 - 1024,
    2.0**64,
    2.0**127,
    1e308,
    -1e308,
    INF,
    -INF,
    NAN,
]
DOUBLES: list[float | None] = [*EDGES, *HUGE, None]
TEXTS = [
    "",
    " ",
    "a",
    "A",
    "ab",
    "aab",
    "a%b",
    "a_b",
    "a\\b",
    "a'b",
    'a"b',
    "a.b",
    "line\nbreak",
    "ß",
    "İ",
    "e\u0301",
    "🎈x🎈",
    "aaaa",
    " pad\t",
    "1",
    "-2",
    "1.5",
    "2.5",
    "-2.5",
    "1e5",
    "1e400",
    "1d",
    "0x10",
    "--1",
    "true",
    "false",
    "NULL",
    "2020-02-29",
    "2020-02-30",
    "999",
    None,
]
DAYS = [
    date(1, 1, 1),
    date(1899, 12, 31),
    date(1970, 1, 1),
    date(2020, 2, 29),
    date(2020, 12, 31),
    date(2021, 1, 3),
    date(9999, 12, 31),
    None,
]
STEPS = [0.0, 1.0, -1.0, 12.0, 25.0, None]
WHOLE = [0, 1, -1, 7, -7, 2**53 + 1, 2**62, -(2**62), 2**63 - 1, None]


def _pairs(first: list[Any], second: list[Any], names: tuple[str, str], types: tuple[Any, Any]) -> pa.Table:
    rows = list(product(first, second))
    columns = {name: pa.array([row[i] for row in rows], types[i]) for i, name in enumerate(names)}
    return pa.table({"id": pa.array(range(len(rows)), pa.int64()), **columns})


TABLES: Mapping[str, pa.Table] = {
    "doubles": _pairs(DOUBLES, DOUBLES, ("x", "y"), (pa.float64(), pa.float64())),
    "texts": _pairs(TEXTS, [None, "a", "b"], ("s", "t"), (pa.string(), pa.string())),
    "days": _pairs(DAYS, DAYS, ("day", "other"), (pa.date32(), pa.date32())),
    "moves": _pairs(DAYS[1:-2], STEPS, ("day", "n"), (pa.date32(), pa.float64())),
    "wholes": _pairs(WHOLE, [True, False, None], ("i", "b"), (pa.int64(), pa.bool_())),
}


def column(name: str) -> Any:
    return exp.column(exp.to_identifier(name, quoted=True))


def number(value: float) -> Any:
    return d.Number(this=repr(float(value)))


def text(value: str) -> Any:
    return exp.Literal.string(value)


@dataclass(frozen=True)
class NodeCase:
    """One node over one table: `make()` builds it, `oracle` gets the row's values (without its number)."""

    node: type[d.Semantic]
    table: str
    make: Callable[[], Any]
    oracle: Callable[[Any, Any], Any]
    exact: bool = True
    name: str = ""


def strict(function: Callable[..., Any], arity: int = 1) -> Callable[[Any, Any], Any]:
    """NULL in, NULL out."""
    return lambda a, b: None if a is None or (arity == 2 and b is None) else function(*(a, b)[:arity])


def ieee(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def value(a: float, b: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(np.float64(a), np.float64(b)))

    return strict(value, 2)


def half_away(x: float) -> float:
    if not math.isfinite(x):
        return x
    return float(math.copysign(math.floor(abs(Fraction(x)) + Fraction(1, 2)), x))


def finite_only(function: Callable[[float], Any]) -> Callable[[float], Any]:
    return lambda x: function(x) if math.isfinite(x) else x


def within(low: int, high: int) -> Callable[[float], float | None]:
    def value(x: float) -> float | None:
        return float(round(x)) if math.isfinite(x) and low <= round(x) <= high else None

    return value


def _like(pattern: str) -> Callable[[str], bool]:
    def fits(value: str) -> bool:
        reach = {0}
        for c in pattern:
            if c == "%":
                reach = set(range(min(reach, default=len(value) + 1), len(value) + 1))
            else:
                reach = {i + 1 for i in reach if i < len(value) and c in ("_", value[i])}
        return len(value) in reach

    return fits


def _decimal(x: float) -> Any:
    """Nearest of two digits; where the double is next to a half, engines may compute either."""
    if not math.isfinite(x) or abs(x) >= 9_999_999:
        return None
    scaled = Fraction(x) * 100
    if scaled.denominator != 1 and abs(abs(scaled - int(scaled)) - Fraction(1, 2)) < Fraction(1, 10**9):
        return OPEN
    return half_away(float(scaled)) / 100


def _quotient(a: float, b: float) -> float | None:
    return None if b == 0 else ieee(np.divide)(a, b)


def _above_zero(function: Callable[[float], float], *, also_zero: bool = False) -> Callable[[float], Any]:
    def value(x: float) -> Any:
        if math.isnan(x):
            return OPEN
        return (function(x) if math.isfinite(x) else x) if x > 0 or (also_zero and x == 0) else None

    return value


def _exponential(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.exp(x))


def _power(x: float, y: float) -> Any:
    with np.errstate(all="ignore"):
        result = float(np.power(np.float64(x), np.float64(y)))
    return result if math.isfinite(result) and math.isfinite(x) and math.isfinite(y) else OPEN


def _order(value: float) -> float:
    return (1, 0.0) if math.isnan(value) else (0, value)  # type: ignore[return-value]


def _extreme(choose: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def value(a: Any, b: Any) -> Any:
        present = [v for v in (a, b) if v is not None]
        return choose(present, key=_order) if present else None

    return value


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return bool(a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


def _clipped(low: float, high: float) -> Callable[[float], float | None]:
    return lambda x: min(max(x, low), high) if math.isfinite(x) else None


def _months(day: date, n: float) -> date:
    at = day.year * 12 + day.month - 1 + int(n)
    first = date(at // 12, at % 12 + 1, 1)
    after = date((at + 1) // 12, (at + 1) % 12 + 1, 1)
    return first + timedelta(min(day.day, (after - first).days) - 1)


def _part(name: str) -> Callable[[date], float]:
    def value(day: date) -> float:
        parts = {
            "year": day.year,
            "quarter": (day.month + 2) // 3,
            "month": day.month,
            "day": day.day,
            "week": day.isocalendar()[1],
        }
        parts |= {"dow": day.isoweekday() % 7, "isodow": day.isoweekday(), "doy": day.timetuple().tm_yday}
        return float(parts[name])

    return value


def _start(unit: str) -> Callable[[date], date]:
    def value(day: date) -> date:
        if unit == "week":
            return day - timedelta(day.weekday())
        month = {"year": 1, "quarter": (day.month - 1) // 3 * 3 + 1}.get(unit, day.month)
        return day if unit == "day" else day.replace(month=month, day=1)

    return value


_CAST_DOUBLE = {"1": 1.0, "-2": -2.0, "1.5": 1.5, "2.5": 2.5, "-2.5": -2.5, "1e5": 1e5, "999": 999.0}
_NOT_NUMBERS = {"", " ", "a", "ab", "1d", "--1", "true", "NULL", "ß", "2020-02-29", "a'b"}
_CAST_DAY = {"2020-02-29": date(2020, 2, 29)}


def _cast_double(value: str) -> Any:
    return _CAST_DOUBLE.get(value, None if value in _NOT_NUMBERS else OPEN)


def _cast_whole(value: str) -> Any:
    if value in ("1.5", "2.5", "-2.5"):
        return {"1.5": 2.0, "2.5": 3.0, "-2.5": -3.0}[value]
    if value in ("1e5", "999"):
        return None
    return _cast_double(value)


def _cast_day(value: str) -> Any:
    return _CAST_DAY.get(value, None if value in ("", "a", "2020-02-30", "1.5", "true") else OPEN)


def _cast_truth(value: str) -> Any:
    return {"true": True, "false": False}.get(
        value, None if value in ("", "ab", "2.5", "2020-02-29", "ß") else OPEN
    )


def _ascii(function: Callable[[str], str]) -> Callable[[str], Any]:
    return lambda value: function(value) if value.isascii() else OPEN


def _one(
    node: type[d.Semantic],
    function: Callable[[Any], Any],
    *,
    exact: bool = True,
    of: str = "x",
    **arguments: Any,
) -> NodeCase:
    table = {"x": "doubles", "s": "texts", "day": "days", "i": "wholes"}[of]
    label = ",".join(str(value) for value in arguments.values() if isinstance(value, str | int))
    return NodeCase(node, table, lambda: node(this=column(of), **arguments), strict(function), exact, label)


def _two(
    node: type[d.Semantic], oracle: Callable[[Any, Any], Any], *, table: str = "doubles", exact: bool = True
) -> NodeCase:
    a, b = TABLES[table].column_names[1:]
    return NodeCase(node, table, lambda: node(this=column(a), expression=column(b)), oracle, exact)


def _texts(node: type[d.Semantic], function: Callable[[str], Any], **arguments: Any) -> NodeCase:
    label = ",".join(
        str(value.this if isinstance(value, exp.Expr) else value) for value in arguments.values()
    )
    copies = {name: (lambda v: v.copy() if isinstance(v, exp.Expr) else v) for name in arguments}
    made = lambda: node(this=column("s"), **{name: copies[name](value) for name, value in arguments.items()})  # noqa: E731
    return NodeCase(node, "texts", made, strict(function), True, label)


MOST = 3
CASES = [
    *(
        NodeCase(d.Number, "wholes", lambda v=v: number(v), lambda a, b, v=v: v, True, repr(v))
        for v in (
            0.0,
            5e-324,
            0.1,
            0.30000000000000004,
            1 / 3,
            1e22,
            123456789.12345679,
            1.7976931348623157e308,
            -1e-7,
        )
    ),
    *(
        NodeCase(
            d.Day, "wholes", lambda v=v: d.Day(this=v.isoformat()), lambda a, b, v=v: v, True, v.isoformat()
        )
        for v in DAYS
        if v is not None
    ),
    _one(d.Convert, float, of="i", to="double"),
    _one(d.Convert, int, of="i", to="wide"),
    _one(d.Convert, str, of="i", to="text"),
    _one(d.Convert, lambda i: i != 0, of="i", to="boolean"),
    _one(d.Convert, lambda day: day, of="day", to="date"),
    _one(d.Convert, lambda s: s, of="s", to="text"),
    NodeCase(
        d.Convert,
        "wholes",
        lambda: d.Convert(this=column("b"), to="double"),
        lambda a, b: None if b is None else float(b),
    ),
    *(
        NodeCase(
            d.Convert,
            "moves",
            lambda to=to: d.Convert(this=column("n"), to=to),
            lambda a, n: None if n is None else int(n),
            True,
            to,
        )
        for to in ("integer", "bigint")
    ),
    _one(d.Canonical, lambda x: x, kind="number"),
    _one(d.Canonical, lambda s: s, of="s", kind="text"),
    _one(d.Canonical, lambda day: day, of="day", kind="date"),
    _one(d.Canonical, lambda i: i, of="i", kind="integer"),
    NodeCase(
        d.Canonical,
        "doubles",
        lambda: d.Same(
            this=d.Substring(
                this=d.Convert(this=d.Canonical(this=column("x"), kind="number"), to="text"),
                start=number(1),
                length=number(1),
            ),
            expression=exp.Literal.string("-"),
        ),
        lambda x, y: OPEN if x is None or math.isnan(x) else x < 0,
        True,
        "no zero has a sign",
    ),
    NodeCase(
        d.Canonical,
        "wholes",
        lambda: d.Canonical(this=d.Convert(this=column("i"), to="wide"), kind="decimal"),
        strict(str),
        True,
        "decimals become texts",
    ),
    _one(d.SafeCast, lambda x: x, to="double"),
    _one(d.SafeCast, _cast_double, of="s", to="double"),
    _one(d.SafeCast, _cast_day, of="s", to="date"),
    _one(d.SafeCast, _cast_truth, of="s", to="boolean"),
    NodeCase(
        d.NearestWhole,
        "doubles",
        lambda: d.NearestWhole(
            this=d.Clip(this=column("x"), low=number(-1e18), high=number(1e18), may_be_nan=True)
        ),
        strict(lambda x: round(min(max(x, -1e18), 1e18)) if math.isfinite(x) else None),
    ),
    _one(
        d.SafeNearestWhole, lambda x: round(x) if math.isfinite(x) and -(2**63) <= round(x) < 2**63 else None
    ),
    *(_one(d.AsInteger, within(*ends), type=name) for name, ends in d.INTEGERS.items()),
    _one(d.AsInteger, _cast_whole, of="s", type="TINYINT"),
    _one(d.AsDecimal, _decimal, width=9, scale=2),
    _one(
        d.AsFloat, lambda x: float(np.float32(x)) if abs(x) < 3e38 else (None if math.isfinite(x) else OPEN)
    ),
    _two(d.Plus, ieee(np.add)),
    _two(d.Minus, ieee(np.subtract)),
    _two(d.Times, ieee(np.multiply)),
    _two(d.Divide, strict(_quotient, 2)),
    _two(d.Remainder, strict(lambda a, b: None if b == 0 else ieee(np.fmod)(a, b), 2)),
    NodeCase(
        d.TruncatingDivide,
        "wholes",
        lambda: d.TruncatingDivide(
            this=exp.Paren(
                this=exp.Mul(
                    this=d.Convert(this=column("i"), to="wide"), expression=exp.Literal.number(2**40)
                )
            ),
            expression=exp.Literal.number(3),
        ),
        strict(lambda i: int(math.copysign(1, i)) * (abs(i) * 2**40 // 3)),
    ),
    _one(d.Floor, finite_only(lambda x: float(math.floor(x)))),
    _one(d.Ceil, finite_only(lambda x: float(math.ceil(x)))),
    _one(d.RoundHalfAway, half_away),
    _one(
        d.RoundHalfAway,
        lambda x: OPEN if not math.isfinite(x * 10) else half_away(x * 10.0) / 10.0,
        digits=number(1),
    ),
    _one(d.TruncateNumber, finite_only(lambda x: float(math.trunc(x)))),
    _one(
        d.TruncateNumber,
        lambda x: OPEN if not math.isfinite(x * 10) else math.trunc(x * 10.0) / 10.0,
        digits=number(1),
    ),
    _one(d.Sign, lambda x: OPEN if math.isnan(x) else float((x > 0) - (x < 0))),
    _one(d.Absolute, abs),
    _one(d.SquareRoot, _above_zero(math.sqrt, also_zero=True), exact=False),
    _one(d.Ln, _above_zero(math.log), exact=False),
    _one(d.Log2, _above_zero(math.log2), exact=False),
    _one(d.Log10, _above_zero(math.log10), exact=False),
    _one(d.Exponential, _exponential, exact=False),
    _two(d.Power, strict(_power, 2), exact=False),
    _one(d.IsFinite, math.isfinite),
    *(
        _one(d.Clip, _clipped(low, high), low=number(low), high=number(high), may_be_nan=True)
        for low, high in ((0.0, 100.0), (-100.0, 0.0), (-1e308, 1e308), (0.1, 0.5), (-2.5, -2.5))
    ),
    *(
        NodeCase(
            node, "doubles", lambda node=node: node(expressions=[column("x"), column("y")]), _extreme(choose)
        )
        for node, choose in ((d.Least, min), (d.Greatest, max))
    ),
    _two(d.Same, _same),
    _two(d.Same, _same, table="texts"),
    _two(d.Same, _same, table="days"),
    *(
        _texts(d.Matches, _like(pattern), pattern=text(pattern))
        for pattern in (
            "",
            "%",
            "_",
            "a%",
            "%b",
            "a_b",
            "_%_",
            "a\\b",
            "a.b",
            "%\n%",
            "a'b",
            "__a_",
            "🎈_🎈",
            "[a]",
            "(",
            "%%_",
        )
    ),
    _texts(d.UpperCase, _ascii(str.upper)),
    _texts(d.LowerCase, _ascii(str.lower)),
    _texts(d.Trim, lambda s: s.strip(" ") if "\t" not in s else OPEN),
    _texts(d.Substring, lambda s: s[1:3], start=number(2), length=number(2)),
    _texts(d.Substring, lambda s: s[1:], start=number(2)),
    _texts(
        d.Replace,
        lambda s: s[:MOST].replace("a", "xyz")[:MOST],
        old=text("a"),
        new=text("xyz"),
        max_length=MOST,
    ),
    NodeCase(
        d.Concat,
        "texts",
        lambda: d.Concat(this=column("s"), expression=column("t"), max_length=MOST),
        strict(lambda s, t: (s + t)[:MOST], 2),
    ),
    _texts(d.Length, lambda s: float(len(s))),
    _two(d.DaysBetween, strict(lambda a, b: float((a - b).days), 2), table="days"),
    _two(d.AddDays, strict(lambda day, n: day + timedelta(n), 2), table="moves"),
    _two(d.AddMonths, strict(_months, 2), table="moves"),
    *(
        _one(d.DatePart, _part(p), of="day", part=p)
        for p in ("year", "quarter", "month", "day", "week", "dow", "isodow", "doy")
    ),
    *(
        _one(d.StartOf, _start(unit), of="day", unit=unit)
        for unit in ("year", "quarter", "month", "week", "day")
    ),
    NodeCase(
        d.DayText,
        "days",
        lambda: d.DayText(this=column("day"), format=text("%m/%d")),
        strict(lambda day: day.strftime("%m/%d")),
    ),
    _one(d.DayName, lambda day: day.strftime("%A"), of="day"),
    _one(d.MonthName, lambda day: day.strftime("%B"), of="day"),
]
# These speak of several rows, and are tested as such in test_engines.py.
OF_ROWS = {
    d.WideSum,
    d.WindowSum,
    d.KeyedHash,
    d.Content,
    d.Rank,
    d.SmallestRanks,
    d.ChosenTotals,
    d.SmallestValues,
    d.SmallestRows,
}


def computed(engine: Engine, dialect: Dialect, node: Any) -> list[Any]:
    """The node's value on each row of "t", in order."""
    return computed_together(engine, dialect, [node])[0]


def computed_together(engine: Engine, dialect: Dialect, nodes: list[Any]) -> list[list[Any]]:
    """The values of several nodes on each row of "t", in order, by one statement."""
    aliased = [exp.alias_(node, f"r{i}", quoted=True) for i, node in enumerate(nodes)]
    query = exp.select(column("id"), *aliased).from_("t")
    rows = sorted(engine.answer(dialect.write(query)).to_pylist(), key=lambda row: row["id"])
    return [[row[f"r{i}"] for row in rows] for i in range(len(nodes))]


class Together:
    """The values of all cases on an engine, ten to a statement: Spark takes as long for one as for ten."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        self._engines = engines
        self._values: dict[int, list[Any]] = {}

    def values(self, case: NodeCase) -> list[Any]:
        number = CASES.index(case)
        if number not in self._values:
            alike = [i for i, other in enumerate(CASES) if other.table == case.table]
            start = alike.index(number) // 10 * 10
            engine, some = self._engines[case.table], alike[start : start + 10]
            try:
                lists = computed_together(engine, engine.dialect, [CASES[i].make() for i in some])
            except EngineError:
                # one of them fails: it alone shall
                some, lists = [number], [computed(engine, engine.dialect, case.make())]
            self._values.update(zip(some, lists, strict=True))
        return self._values[number]


def check(case: NodeCase, engine: Engine, dialect: Dialect, results: list[Any] | None = None) -> None:
    """Fail where the engine differs from the oracle on any row; `results` where they are known already."""
    results = computed(engine, dialect, case.make()) if results is None else results
    rows = list(zip(*(TABLES[case.table].column(i).to_pylist() for i in (1, 2)), strict=True))
    assert len(results) == len(rows)
    for row, result in zip(rows, results, strict=True):
        wanted = case.oracle(*row)
        if wanted is OPEN:
            continue
        if (
            isinstance(wanted, float)
            and isinstance(result, float)
            and not case.exact
            and math.isfinite(wanted)
        ):
            assert math.isclose(result, wanted, rel_tol=1e-14, abs_tol=5e-324), (
                case.node.__name__,
                row,
                result,
                wanted,
            )
        else:
            assert _same(result, wanted), (case.node.__name__, row, result, wanted)
