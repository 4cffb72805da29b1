"""Writes the closed set in Spark's SQL.

The engine runs these texts in a session of its own with ANSI mode off: then no cast and no operator raises,
and what would silently wrap or round is written in another way here. Two habits explain most of the rest.
Spark says the type of an expression when a query is planned (`TYPEOF`, a constant): where a node takes texts
and numbers alike, both ways are written and the planner keeps one. And RINT is the only function of Spark
that rounds a double to a double, so that all rounding is made of it. A value that a text names several times
is written once (`once`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generator import Generator

from .. import semantics as d
from ..dialect import Dialect, Writer, argument, template, word
from .spark_choices import CHOICES
from .spark_texts import TEXTS_AND_DAYS, once, repeating, text_of

_TYPES = {
    "double": "DOUBLE",
    "integer": "INT",
    "bigint": "BIGINT",
    # 2**126 is 8.5e37
    "wide": "DECIMAL(38, 0)",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "text": "STRING",
}
_LARGEST = "1.7976931348623157E308D"
_INFINITE = ("inf", "+inf", "-inf", "infinity", "+infinity", "-infinity")
_NAN = ("nan", "+nan", "-nan")
_BLANKS = " \t\n\r\f\v"
# Texts that Java takes for numbers and nobody else does have one of these: '1d', '1f', '0x1p3'.
_JAVA_ONLY = "dDfFxXpP"
_DAY = r"\A" + d.DATE.replace(r"\v", r"\x0b").replace("$", r"\z")
# An exponent of more than four digits.
_FAR = "[eE][+-]?0*[1-9][0-9]{4}"
# What has 39 digits before the point.
_LONG = r"\A[ \t\n\r\f\x0b]*([+-]?)0*([0-9]{39})(\.[0-4]?[0-9]*)?[ \t\n\r\f\x0b]*\z"
# Half of the 38 digits of a decimal: long division goes in two steps of so many (`_floor_divide`).
_SPLIT = 10**19


def _convert(g: Generator, node: Any) -> str:
    return f"CAST({argument(g, node, 'this')} AS {_TYPES[node.args['to']]})"


def _by_type(value: str, of_text: Callable[[str], str], otherwise: str) -> str:
    """Return one of two texts, decided by the type of `value` when the query is planned."""
    return f"IF(TYPEOF({value}) = 'string', {once(f'CAST({value} AS STRING)', of_text)}, {otherwise})"


def _number_of(g: Generator, text: str) -> str:
    """Write what a text says as a double; NULL where DuckDB would not read it."""
    words = ", ".join(text_of(g, value) for value in _INFINITE)
    nans = ", ".join(text_of(g, value) for value in _NAN)
    trimmed = f"LOWER(TRIM(BOTH {text_of(g, _BLANKS)} FROM {text}))"
    plain = f"TRANSLATE({text}, '{_JAVA_ONLY}', '') = {text} OR {trimmed} IN ({words})"
    return (
        f"CASE WHEN OCTET_LENGTH({text}) > {d.LONGEST_NUMBER} THEN NULL "
        f"WHEN {trimmed} IN ({nans}) THEN CAST('NaN' AS DOUBLE) "
        f"WHEN {plain} THEN TRY_CAST({text} AS DOUBLE) END"
    )


def _safe_cast(g: Generator, node: Any) -> str:
    """Write a cast of any value that cannot fail."""
    to = node.args["to"]

    def number(value: str) -> str:
        return _by_type(value, lambda text: _number_of(g, text), f"CAST({value} AS DOUBLE)")

    def day(text: str) -> str:
        # Spark takes '2020' and '2020-02' for days as well, and '2020/02/29' for none.
        pattern = text_of(g, _DAY)
        year, month, day = (f"CAST(REGEXP_EXTRACT({text}, {pattern}, {part}) AS INT)" for part in (1, 3, 4))
        return f"CASE WHEN {text} RLIKE {pattern} AND {year} >= 1 THEN MAKE_DATE({year}, {month}, {day}) END"

    def truth(text: str) -> str:
        true, false = (
            ", ".join(text_of(g, word) for word in words) for words in (d.TRUE_WORDS, d.FALSE_WORDS)
        )
        return f"CASE WHEN LOWER({text}) IN ({true}) THEN TRUE WHEN LOWER({text}) IN ({false}) THEN FALSE END"

    if to == "double":
        return once(argument(g, node, "this"), number)
    if to == "boolean":
        return once(
            argument(g, node, "this"), lambda value: _by_type(value, truth, f"CAST({value} AS BOOLEAN)")
        )
    return once(f"CAST({argument(g, node, 'this')} AS STRING)", day)


def _as_integer(g: Generator, node: Any) -> str:
    """Convert texts by way of a decimal, which rounds halves away from zero and keeps all digits."""
    low, high = d.INTEGERS[node.args["type"]]
    ends = max(low, 1 - 10**38), min(high, 10**38 - 1)

    def fits(x: str) -> str:
        return f"{x} >= {_double(low)} AND {x} < {_double(high + 1)}"

    def exact(text: str) -> str:
        decimal = _decimal_of(g, text, 38, 0)
        inside = once(
            decimal, lambda w: f"CASE WHEN {w} BETWEEN {ends[0]} AND {ends[1]} THEN CAST({w} AS DOUBLE) END"
        )
        if high < 10**38:
            return inside
        # What has 39 digits is the same double, rounded or not; next to the largest, its digits decide.
        beyond = once(
            _number_of(g, text), lambda x: f"CASE WHEN ABS({x}) >= 1E38D AND {fits(x)} THEN {x} END"
        )
        pattern = text_of(g, _LONG)
        largest = (
            f"CASE WHEN {text} RLIKE {pattern} AND REGEXP_EXTRACT({text}, {pattern}, 1) <> '-' "
            f"AND REGEXP_EXTRACT({text}, {pattern}, 2) <= '{high}' THEN {_number_of(g, text)} END"
        )
        beyond = f"{beyond}, {largest}"
        return f"COALESCE({inside}, {beyond})"

    def of_number(x: str) -> str:
        return f"CASE WHEN {fits(x)} THEN {x} + 0.0D END"

    return once(
        argument(g, node, "this"),
        lambda value: _by_type(value, exact, once(f"RINT(CAST({value} AS DOUBLE))", of_number)),
    )


def _decimal_of(g: Generator, text: str, width: int, scale: int) -> str:
    """Return a text as decimal; NULL before Spark tries one whose exponent would make it write out all
    digits."""
    return (
        f"CASE WHEN {text} RLIKE {text_of(g, _FAR)} THEN NULL "
        f"WHEN ABS({_number_of(g, text)}) < 1E39D THEN TRY_CAST({text} AS DECIMAL({width}, {scale})) END"
    )


def _as_decimal(g: Generator, node: Any) -> str:
    """Write a cast to DECIMAL, as a double."""
    width, scale = node.args["width"], node.args["scale"]
    type_ = f"DECIMAL({word(width)}, {word(scale)})"

    def decimal(value: str) -> str:
        number = f"CAST(CAST({value} AS DOUBLE) AS {type_})"
        return f"CAST({_by_type(value, lambda text: _decimal_of(g, text, width, scale), number)} AS DOUBLE)"

    return once(argument(g, node, "this"), decimal)


def _as_float(g: Generator, node: Any) -> str:
    """Write a cast to single precision, as a double; NULL beyond its range."""

    def single(x: str) -> str:
        value = f"CAST(CAST({x} AS FLOAT) AS DOUBLE)"
        return f"CASE WHEN ABS({value}) <= {_LARGEST} OR NOT ABS({x}) <= {_LARGEST} THEN {value} END"

    return once(_safe_cast(g, d.SafeCast(this=node.this, to="double")), single)


def _double(value: int) -> str:
    """Return the double of a whole number that is one exactly."""
    assert int(float(value)) == value
    return f"({float(value)!r}D)"


def _floor(x: str) -> str:
    return f"(RINT({x}) - CASE WHEN RINT({x}) > {x} THEN 1.0D ELSE 0.0D END)"


def _ceil(x: str) -> str:
    return f"(RINT({x}) + CASE WHEN RINT({x}) < {x} THEN 1.0D ELSE 0.0D END)"


def _truncate(x: str) -> str:
    return f"CASE WHEN {x} < 0.0D THEN {_ceil(x)} ELSE {_floor(x)} END"


def _half_away(x: str) -> str:
    up = f"{x} > 0.0D AND {x} - RINT({x}) = 0.5D"
    down = f"{x} < 0.0D AND {x} - RINT({x}) = -0.5D"
    return f"CASE WHEN {up} THEN RINT({x}) + 1.0D WHEN {down} THEN RINT({x}) - 1.0D ELSE RINT({x}) END"


def _rounding(function: Callable[[str], str]) -> Writer:
    """Return a rounding to some digits after or before the point, by way of one to whole numbers."""

    def write(g: Generator, node: Any) -> str:
        x = argument(g, node, "this")
        if not node.args.get("digits"):
            return once(x, function)
        digits = argument(g, node, "digits")
        unit = f"POWER(10.0D, ABS({digits}))"

        def result(value: str) -> str:
            after = f"{once(f'({value} * {unit})', function)} / {unit}"
            before = f"{once(f'({value} / {unit})', function)} * {unit}"
            either = f"CASE WHEN {digits} >= 0.0D THEN {after} ELSE {before} END"
            return once(either, lambda y: f"CASE WHEN ABS({y}) <= {_LARGEST} THEN {y} END")

        return once(x, lambda value: f"COALESCE({result(value)}, {value})")

    return write


def _clip(g: Generator, node: Any) -> str:
    """Clip to a range. Spark puts NaN above all numbers, so that it fails both tests, as infinity does."""
    low, high = (argument(g, node, name) for name in ("low", "high"))
    return once(
        argument(g, node, "this"),
        lambda x: (
            f"CASE WHEN {x} >= {low} AND {x} <= {high} THEN {x} WHEN ABS({x}) <= {_LARGEST} THEN "
            f"CASE WHEN {x} < {low} THEN {low} ELSE {high} END END"
        ),
    )


def _extreme(name: str) -> Writer:
    """Return the writer of LEAST or GREATEST, which want two arguments."""

    def write(g: Generator, node: Any) -> str:
        listed = node.args["expressions"]
        return f"{name}({argument(g, node, 'expressions')})" if len(listed) > 1 else g.sql(listed[0])

    return write


def _wide_sum(g: Generator, node: Any) -> str:
    """Add up 64-bit numbers in parts of at most 22 bits, whose sums fit 64 bits for up to 2**41 rows:
    decimals take several times as long.

    One part where all are below 2**22 by a public bound, two below 2**43, else three. Wider ones are added up
    as decimals of 38 digits, which hold 2**126.
    """
    x, largest = argument(g, node, "this"), node.args.get("largest")
    integer = f"CAST({x} AS BIGINT)"
    parts = 3 if largest is None or largest >= 1 << 43 else 2 if largest >= 1 << 22 else 1
    sums = []
    for part in reversed(range(parts)):
        shifted = f"SHIFTRIGHT({integer}, {21 * part})" if part else integer
        # The highest part keeps the sign.
        bits = shifted if part == parts - 1 else f"({shifted} & {(1 << 21) - 1})"
        sums.append(f"CAST(SUM({bits}) AS DECIMAL(38, 0))" + (f" * {1 << 21 * part}" if part else ""))
    total = f"CAST({' + '.join(sums)} AS DECIMAL(38, 0))"
    if largest is not None and largest < 1 << 63:
        return total
    return f"IF(TYPEOF(MAX({x})) IN ('bigint', 'int'), {total}, SUM(CAST({x} AS DECIMAL(38, 0))))"


def _floor_divide(g: Generator, node: Any) -> str:
    """Divide in two steps of 19 digits: Spark's quotient of two decimals has 32 digits before the point,
    and each step needs 20."""
    a, b = (f"CAST({argument(g, node, name)} AS DECIMAL(38, 0))" for name in ("this", "expression"))

    def quotient(of: str, by: str) -> str:
        return f"CAST(({of} - {of} % {by}) / {by} AS DECIMAL(38, 0))"

    # Both as one value: a function of one variable may not speak of aggregates.
    operands = f"ARRAY(STRUCT({a} AS a, {b} AS b))"
    split = f"TRANSFORM({operands}, p -> STRUCT({quotient('p.a', str(_SPLIT))} AS h, p.a AS a, p.b AS b))"
    remainder = f"CAST(p.h % p.b * {_SPLIT} + p.a % {_SPLIT} AS DECIMAL(38, 0))"
    both = f"TRANSFORM({split}, p -> STRUCT({quotient('p.h', 'p.b')} AS q, {remainder} AS r, p.b AS b))"
    return f"TRANSFORM({both}, p -> CAST(p.q * {_SPLIT} + {quotient('p.r', 'p.b')} AS DECIMAL(38, 0)))[0]"


def _number(g: Generator, node: Any) -> str:
    return f"({word(node.args['this'])}D)"


WRITERS: Mapping[type[exp.Expression], Writer] = {
    d.Number: _number,
    d.Day: template("CAST('{this}' AS DATE)"),
    d.Convert: _convert,
    d.SafeCast: _safe_cast,
    d.NearestWhole: template("CAST(RINT({this}) AS BIGINT)"),
    d.SafeNearestWhole: lambda g, node: once(
        f"RINT({argument(g, node, 'this')})",
        lambda x: (
            f"CASE WHEN {x} >= {_double(-(2**63))} AND {x} < {_double(2**63)} THEN CAST({x} AS BIGINT) END"
        ),
    ),
    d.AsInteger: _as_integer,
    d.AsDecimal: _as_decimal,
    d.AsFloat: _as_float,
    d.Plus: template("({this} + {expression})"),
    d.Minus: template("({this} - {expression})"),
    d.Times: template("({this} * {expression})"),
    d.Divide: template("({this} / NULLIF({expression}, 0.0D))"),
    d.Remainder: template("({this} % NULLIF({expression}, 0.0D))"),
    d.FloorDivide: _floor_divide,
    d.Floor: repeating(_floor),
    d.Ceil: repeating(_ceil),
    d.RoundHalfAway: _rounding(_half_away),
    d.TruncateNumber: _rounding(_truncate),
    d.Sign: template("(SIGNUM({this}) + 0.0D)"),
    d.Absolute: template("ABS({this})"),
    d.SquareRoot: repeating(lambda x: f"CASE WHEN {x} >= 0.0D THEN SQRT({x}) END"),
    d.Ln: repeating(lambda x: f"CASE WHEN {x} > 0.0D THEN LN({x}) END"),
    d.Log2: repeating(lambda x: f"CASE WHEN {x} > 0.0D THEN LOG2({x}) END"),
    d.Log10: repeating(lambda x: f"CASE WHEN {x} > 0.0D THEN LOG10({x}) END"),
    d.Exponential: template("EXP({this})"),
    d.Power: template("POWER({this}, {expression})"),
    d.IsFinite: template(f"(ABS({{this}}) <= {_LARGEST})"),
    # Both zeros are equal; what tells them apart is the sign of their reciprocal, and Spark divides by
    # neither.
    d.SignBit: repeating(lambda x: f"CASE WHEN {x} = 0.0D THEN POWER({x}, -1.0D) < 0.0D ELSE {x} < 0.0D END"),
    d.Clip: _clip,
    d.Least: _extreme("LEAST"),
    d.Greatest: _extreme("GREATEST"),
    d.Same: template("({this} <=> {expression})"),
    **TEXTS_AND_DAYS,
    d.WideSum: _wide_sum,
    d.WindowSum: template(
        "SUM({this}) OVER (PARTITION BY {by} ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND "
        "CURRENT ROW)"
    ),
    **CHOICES,
}


class SparkGenerator(Spark.Generator):  # type: ignore[valid-type,misc]
    """Standard SQL as Spark takes it, where the SQL library's own does not do."""

    def cte_sql(self, expression: exp.CTE) -> str:
        """Write a relation of WITH without MATERIALIZED, which Spark does not know: it computes it where it
        is used."""
        expression.set("materialized", None)
        text: str = super().cte_sql(expression)
        return text

    def select_sql(self, expression: exp.Select) -> str:
        """Write a SELECT that sends listed values to all workers: they are public, and no size decides about
        it."""
        listed = [
            join.this.alias
            for join in expression.args.get("joins") or []
            if isinstance(join.this, exp.Values)
        ]
        text: str = super().select_sql(expression)
        if not listed:
            return text
        assert not expression.args.get("with_")
        return f"SELECT /*+ BROADCAST({', '.join(map(word, listed))}) */{text.removeprefix('SELECT')}"


SPARK = Dialect("spark", SparkGenerator, WRITERS)
# Spark has no number of a row that stays when a worker is lost: only a declared key is one.
SPARK_WITHOUT_ROWS = Dialect("spark", SparkGenerator, WRITERS, numbers_rows=False)
