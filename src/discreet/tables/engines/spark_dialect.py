"""Writes the SQL nodes on which engines differ (the closed set in `tables.semantics`, imported as `d`) in
Spark's SQL.

The docstring of a node says what the SQL must compute. A `Writer` takes the SQL library's generator `g` and
the node, and returns the text. Hashes and choices are in `spark_choices`, texts and days in `spark_texts`.

The engine runs these texts with ANSI mode off: then no cast and no operator raises an error. Operations that
would silently wrap around or round are written in another way here. Three rules explain most of the rest.
Spark knows the type of an expression when it plans a query (`TYPEOF` is a constant): where a node takes texts
and numbers alike, both ways are written, and the planner keeps one. All rounding of doubles uses RINT, which
returns a double, however large it is. An argument that is used several times is written once (`once`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generator import Generator

from .. import semantics as d
from ..dialect import Dialect, Writer, argument, canonical, template, word
from .spark_choices import CHOICES
from .spark_texts import TEXTS_AND_DAYS, once, repeating, text_of

_TYPES = {
    "double": "DOUBLE",
    "integer": "INT",
    "bigint": "BIGINT",
    # Holds 2**126, which is 8.5e37 (`WideSum`).
    "wide": "DECIMAL(38, 0)",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "text": "STRING",
}
_LARGEST = "1.7976931348623157E308D"
_INFINITE = ("inf", "+inf", "-inf", "infinity", "+infinity", "-infinity")
_NAN = ("nan", "+nan", "-nan")
_BLANKS = " \t\n\r\f\v"
# Letters of texts that Java reads as numbers and `semantics.NUMBER` does not: '1d', '1f', '0x1p3'.
_JAVA_ONLY = "dDfFxXpP"
# `semantics.DATE` in the syntax of Java's regular expressions.
_DAY = r"\A" + d.DATE.replace(r"\v", r"\x0b").replace("$", r"\z")
# An exponent of more than four digits.
_LONG_EXPONENT = "[eE][+-]?0*[1-9][0-9]{4}"
# A number with 39 digits before the point, and perhaps a fraction, which is not looked at.
_DIGITS_39 = r"\A[ \t\n\r\f\x0b]*([+-]?)0*([0-9]{39})(\.[0-4]?[0-9]*)?[ \t\n\r\f\x0b]*\z"
# Half of the 38 digits of a decimal: long division goes in two steps of so many (`_truncating_divide`).
_SPLIT = 10**19


def _convert(g: Generator, node: Any) -> str:
    return f"CAST({argument(g, node, 'this')} AS {_TYPES[node.args['to']]})"


def _by_type(value: str, of_text: Callable[[str], str], otherwise: str) -> str:
    """Return SQL that is `of_text` of the value where its type is a string, and `otherwise` where it is not;
    the type is known when the query is planned."""
    return f"IF(TYPEOF({value}) = 'string', {once(f'CAST({value} AS STRING)', of_text)}, {otherwise})"


def _number_of(g: Generator, text: str) -> str:
    """Write a text as a double; NULL where it is not a number by `semantics.SafeCast`."""
    infinities = ", ".join(text_of(g, value) for value in _INFINITE)
    nans = ", ".join(text_of(g, value) for value in _NAN)
    trimmed = f"LOWER(TRIM(BOTH {text_of(g, _BLANKS)} FROM {text}))"
    is_readable = f"TRANSLATE({text}, '{_JAVA_ONLY}', '') = {text} OR {trimmed} IN ({infinities})"
    return (
        f"CASE WHEN OCTET_LENGTH({text}) > {d.LONGEST_NUMBER} THEN NULL "
        f"WHEN {trimmed} IN ({nans}) THEN CAST('NaN' AS DOUBLE) "
        f"WHEN {is_readable} THEN TRY_CAST({text} AS DOUBLE) END"
    )


def _safe_cast(g: Generator, node: Any) -> str:
    """Write a cast of any value that cannot fail."""
    to = node.args["to"]

    def number(value: str) -> str:
        return _by_type(value, lambda text: _number_of(g, text), f"CAST({value} AS DOUBLE)")

    def day(text: str) -> str:
        # Spark's own cast also reads '2020' and '2020-02' as days, and does not read '2020/02/29'.
        pattern = text_of(g, _DAY)
        year, month, day_of_month = (
            f"CAST(REGEXP_EXTRACT({text}, {pattern}, {part}) AS INT)" for part in (1, 3, 4)
        )
        made = f"MAKE_DATE({year}, {month}, {day_of_month})"
        return f"CASE WHEN {text} RLIKE {pattern} AND {year} >= 1 THEN {made} END"

    def truth(text: str) -> str:
        true, false = (
            ", ".join(text_of(g, value) for value in words) for words in (d.TRUE_WORDS, d.FALSE_WORDS)
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
    """Write a cast to an integer type, as a double. Texts are converted by way of a decimal, which rounds
    halves away from zero and keeps up to 38 digits; doubles are rounded by RINT, halves to the even
    neighbor."""
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
        # HUGEINT goes up to 39 digits. A number from 1E38 on has no fraction as a double, so that it needs no
        # rounding. Close to the largest HUGEINT, where doubles are too coarse for the test, its digits
        # before the point are compared.
        beyond = once(
            _number_of(g, text), lambda x: f"CASE WHEN ABS({x}) >= 1E38D AND {fits(x)} THEN {x} END"
        )
        pattern = text_of(g, _DIGITS_39)
        largest = (
            f"CASE WHEN {text} RLIKE {pattern} AND REGEXP_EXTRACT({text}, {pattern}, 1) <> '-' "
            f"AND REGEXP_EXTRACT({text}, {pattern}, 2) <= '{high}' THEN {_number_of(g, text)} END"
        )
        return f"COALESCE({inside}, {beyond}, {largest})"

    def of_number(x: str) -> str:
        # Adding zero makes 0.0 of -0.0.
        return f"CASE WHEN {fits(x)} THEN {x} + 0.0D END"

    return once(
        argument(g, node, "this"),
        lambda value: _by_type(value, exact, once(f"RINT(CAST({value} AS DOUBLE))", of_number)),
    )


def _decimal_of(g: Generator, text: str, width: int, scale: int) -> str:
    """Write a text as a decimal. It is NULL where the text is not a number, and for exponents of more than
    four digits, with which Spark would write out all digits of the number."""
    return (
        f"CASE WHEN {text} RLIKE {text_of(g, _LONG_EXPONENT)} THEN NULL "
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
    """Return the SQL of a whole number that a double represents exactly."""
    assert int(float(value)) == value
    return f"({float(value)!r}D)"


# The roundings of a double to a whole number, as a double, from RINT (halves to the even neighbor).


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
    """Return the writer of a rounding to digits: multiply or divide by a power of ten, round to a whole
    number by `function`, and divide or multiply again. Where that overflows, the number stays as it is."""

    def write(g: Generator, node: Any) -> str:
        x = argument(g, node, "this")
        if not node.args.get("digits"):
            return once(x, function)
        digits = argument(g, node, "digits")
        unit = f"POWER(10.0D, ABS({digits}))"

        def result(value: str) -> str:
            after_point = f"{once(f'({value} * {unit})', function)} / {unit}"
            before_point = f"{once(f'({value} / {unit})', function)} * {unit}"
            either = f"CASE WHEN {digits} >= 0.0D THEN {after_point} ELSE {before_point} END"
            return once(either, lambda y: f"CASE WHEN ABS({y}) <= {_LARGEST} THEN {y} END")

        return once(x, lambda value: f"COALESCE({result(value)}, {value})")

    return write


def _clip(g: Generator, node: Any) -> str:
    """Clip to a range. NaN, which Spark orders above all numbers, and infinities fail both tests, and are
    NULL."""
    low, high = (argument(g, node, name) for name in ("low", "high"))
    return once(
        argument(g, node, "this"),
        lambda x: (
            f"CASE WHEN {x} >= {low} AND {x} <= {high} THEN {x} WHEN ABS({x}) <= {_LARGEST} THEN "
            f"CASE WHEN {x} < {low} THEN {low} ELSE {high} END END"
        ),
    )


def _extreme(name: str) -> Writer:
    """Return the writer of LEAST or GREATEST. Spark's functions need at least two arguments, so that a single
    one is written by itself."""

    def write(g: Generator, node: Any) -> str:
        listed = node.args["expressions"]
        return f"{name}({argument(g, node, 'expressions')})" if len(listed) > 1 else g.sql(listed[0])

    return write


def _wide_sum(g: Generator, node: Any) -> str:
    """Write an exact sum of whole numbers. Each 64-bit number is split into parts of 21 bits, the highest of
    up to 22 bits and the sign; the sum of each part fits 64 bits for up to 2**41 rows. Sums of decimals take
    several times as long.

    There is one part where the public bound `largest` is below 2**22, two where it is below 2**43, else
    three. Numbers wider than 64 bits are added up as decimals of 38 digits, which hold 2**126.
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
    # MAX is there only because the query is an aggregate: it has the type of its argument.
    return f"IF(TYPEOF(MAX({x})) IN ('bigint', 'int'), {total}, SUM(CAST({x} AS DECIMAL(38, 0))))"


def _truncating_divide(g: Generator, node: Any) -> str:
    """Write an exact quotient of whole numbers, a of up to 38 digits and b of up to 19, as a long division in
    two steps of 19 digits: Spark's quotient of two decimals has only 32 digits before the point, and no step
    needs more than 20.

    h is a without its last 19 digits, q the quotient of h and b, and r the remainder of h and b followed by
    the last 19 digits of a.
    """
    a, b = (f"CAST({argument(g, node, name)} AS DECIMAL(38, 0))" for name in ("this", "expression"))

    def quotient(of: str, by: str) -> str:
        return f"CAST(({of} - {of} % {by}) / {by} AS DECIMAL(38, 0))"

    # a and b are passed into the lambda as one struct: Spark allows no aggregate inside a lambda.
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
    d.Canonical: canonical(
        # Over sorted rows Spark 4.0 groups by bit patterns: `ReplaceHashWithSortAgg` drops the normalization.
        number="IF(ISNAN({x}), CAST('NaN' AS DOUBLE), CAST({x} AS DOUBLE) + 0.0D)",
        # All digits of the number, without zeros at their end; a cast to a string may write an exponent.
        decimal=f"FORMAT_NUMBER({{x}}, '0.{'#' * 38}')",
    ),
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
    d.TruncatingDivide: _truncating_divide,
    d.Floor: repeating(_floor),
    d.Ceil: repeating(_ceil),
    d.RoundHalfAway: _rounding(_half_away),
    d.TruncateNumber: _rounding(_truncate),
    # Adding zero makes 0.0 of -0.0.
    d.Sign: template("(SIGNUM({this}) + 0.0D)"),
    d.Absolute: template("ABS({this})"),
    d.SquareRoot: repeating(lambda x: f"CASE WHEN {x} >= 0.0D THEN SQRT({x}) END"),
    d.Ln: repeating(lambda x: f"CASE WHEN {x} > 0.0D THEN LN({x}) END"),
    d.Log2: repeating(lambda x: f"CASE WHEN {x} > 0.0D THEN LOG2({x}) END"),
    d.Log10: repeating(lambda x: f"CASE WHEN {x} > 0.0D THEN LOG10({x}) END"),
    d.Exponential: template("EXP({this})"),
    d.Power: template("POWER({this}, {expression})"),
    d.IsFinite: template(f"(ABS({{this}}) <= {_LARGEST})"),
    # 0.0 = -0.0, and only the signs of their reciprocals differ. POWER computes these, as Spark's division by
    # zero is NULL.
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
    """Writes standard SQL for Spark, with two changes to what the SQL library writes."""

    def cte_sql(self, expression: exp.CTE) -> str:
        """Write a common table expression without MATERIALIZED, which Spark does not know."""
        expression.set("materialized", None)
        text: str = super().cte_sql(expression)
        return text

    def select_sql(self, expression: exp.Select) -> str:
        """Write a SELECT, with a hint that sends joined VALUES to all workers. The values are public, and the
        hint does not depend on a size."""
        values = [
            join.this.alias
            for join in expression.args.get("joins") or []
            if isinstance(join.this, exp.Values)
        ]
        text: str = super().select_sql(expression)
        if not values:
            return text
        # Otherwise the text would not begin with this SELECT.
        assert not expression.args.get("with_")
        return f"SELECT /*+ BROADCAST({', '.join(map(word, values))}) */{text.removeprefix('SELECT')}"


SPARK = Dialect("spark", SparkGenerator, WRITERS)
# For tables without a declared key: Spark has no row number that stays the same when a lost worker's rows are
# read again.
SPARK_WITHOUT_ROWS = Dialect("spark", SparkGenerator, WRITERS, numbers_rows=False)
