"""Writes the SQL nodes on which engines differ (the closed set in `tables.semantics`, imported as `d`) in
DuckDB's SQL.

The docstring of a node says what the SQL must compute. A `Writer` takes the SQL library's generator `g` and
the node, and returns the text. Column names such as "u", "j", "h" and "x0" are those of `semantics`: the
unit, the group, the rank and the value. `tests/contracts/test_engines.py` compares every writer with Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB as DuckDBSyntax
from sqlglot.generator import Generator

from .. import semantics as d
from ..dialect import Dialect, Writer, argument, canonical, chosen_totals, template, word
from ..source import literal

_TYPES = {
    "double": "DOUBLE",
    "integer": "INT",
    "bigint": "BIGINT",
    "wide": "INT128",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "text": "TEXT",
}
# The integer types of the closed set, as DuckDB calls them.
_INTEGERS = {**{name: name for name in d.INTEGERS}, "INTEGER": "INT", "HUGEINT": "INT128"}
_ZERO = "CAST(0.0 AS DOUBLE)"
# An argument of at most this many characters is repeated where it is needed twice (`_once`). Chosen by hand,
# not tuned.
_SHORT = 64
# `semantics.DATE` without its back-reference (\2), which DuckDB's regular expressions do not have, and
# without the year 0. Its first group is the day.
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY = rf"^{d.BLANK}(({_YEAR}-[0-9]{{1,2}}-|{_YEAR}/[0-9]{{1,2}}/)[0-9]{{1,2}})({d.BLANK}$|[ T][0-9])"
# The characters that have a meaning in a regular expression.
_SPECIAL = set(r"\.+*?()|[]{}^$")


def _convert(g: Generator, node: Any) -> str:
    return f"CAST({argument(g, node, 'this')} AS {_TYPES[node.args['to']]})"


def _once(value: str, body: Callable[[str], str]) -> str:
    """Return `body(value)`, where `body` may use the SQL text `value` several times.

    A long text is written once and bound to a lambda's variable; otherwise nested expressions would double in
    length with every level.
    """
    if len(value) <= _SHORT:
        return body(value)
    return f"LIST_TRANSFORM([{value}], lambda __x: {body('__x')})[1]"


def _numbers_only(value: str) -> str:
    """Return SQL that is NULL for texts that DuckDB reads as numbers and `semantics.NUMBER` does not
    ('1_000', '+-1', very long ones), and the value itself otherwise."""
    text = f"CAST({value} AS VARCHAR)"
    odd = f"CONTAINS({text}, '_') OR CONTAINS({text}, '+-') OR STRLEN({text}) > {d.LONGEST_NUMBER}"
    return f"CASE WHEN TYPEOF({value}) = 'VARCHAR' AND ({odd}) THEN NULL ELSE {value} END"


def _exact_numbers_only(value: str) -> str:
    """Return SQL that is NULL for texts that DuckDB's casts to integers and decimals read as numbers and
    `semantics.NUMBER` does not ('7e ', '+ ', '1e5.'), and the value itself otherwise."""
    text = f"CAST({value} AS VARCHAR)"
    odd = f"STRLEN({text}) > {d.LONGEST_NUMBER} OR NOT REGEXP_FULL_MATCH({text}, {literal(d.NUMBER)})"
    return f"CASE WHEN TYPEOF({value}) = 'VARCHAR' AND ({odd}) THEN NULL ELSE {value} END"


def _safe_cast(g: Generator, node: Any) -> str:
    to, value = node.args["to"], argument(g, node, "this")
    if to == "double":
        return f"TRY_CAST({_once(value, _numbers_only)} AS DOUBLE)"
    if to == "date":
        # DuckDB would also read 'epoch', 'infinity', and years before 1 and after 9999. Where a time of day
        # follows, version 1 reads the day whatever the time is, and version 2 only if it is one.
        return f"TRY_CAST(REGEXP_EXTRACT(CAST({value} AS VARCHAR), {literal(_DAY)}, 1) AS DATE)"
    return f"TRY_CAST({value} AS {_TYPES[to]})"


def _as_integer(g: Generator, node: Any) -> str:
    """Round to a whole number of an integer type, as a double; NULL where it does not fit.

    It is cast by way of INT128, because DuckDB's direct cast of a number at the edge of a narrow type wraps
    around.
    """
    wide = f"TRY_CAST({_once(argument(g, node, 'this'), _exact_numbers_only)} AS INT128)"
    return f"CAST(TRY_CAST({wide} AS {_INTEGERS[node.args['type']]}) AS DOUBLE)"


# A text with an exponent of at most four digits; and the same with five groups, which are the sign, the
# digits before and after the point, and the sign and the digits of the exponent.
_EXPONENT = rf"^{d.BLANK}[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][+-]?0*[0-9]{{1,4}}{d.BLANK}$"
_POWER = rf"^{d.BLANK}([+-]?)([0-9]*)\.?([0-9]*)[eE]([+-]?)0*([0-9]{{1,4}}){d.BLANK}$"


def _without_exponent(value: str) -> str:
    """Return the text of a value, without its exponent if it has one ('6e-4' becomes '.0006').

    DuckDB rounds a text with a negative exponent digit by digit, so that '6e-4' would be 1 as DECIMAL(9, 0).
    """
    text, parts = f"CAST({value} AS VARCHAR)", "(__p)['{}']"
    sign, a, f, minus, digits = (parts.format(name) for name in ("s", "a", "f", "m", "e"))
    e = f"CAST({digits} AS INT)"
    # A negative exponent moves the point to the left, within the digits `a` before it or beyond them; a
    # positive one to the right, within the digits `f` after it or beyond them.
    left = (
        f"CASE WHEN {e} < LENGTH({a}) THEN LEFT({a}, LENGTH({a}) - {e}) || '.' || RIGHT({a}, {e}) || {f} "
        f"ELSE '.' || REPEAT('0', {e} - LENGTH({a})) || {a} || {f} END"
    )
    right = (
        f"{a} || CASE WHEN {e} < LENGTH({f}) THEN LEFT({f}, {e}) || '.' || SUBSTRING({f}, {e} + 1) "
        f"ELSE {f} || REPEAT('0', {e} - LENGTH({f})) END"
    )
    moved = f"{sign} || CASE WHEN {minus} = '-' THEN {left} ELSE {right} END"
    groups = f"REGEXP_EXTRACT({text}, {literal(_POWER)}, ['s', 'a', 'f', 'm', 'e'])"
    out = f"LIST_TRANSFORM([{groups}], lambda __p: {moved})[1]"
    return f"CASE WHEN REGEXP_MATCHES({text}, {literal(_EXPONENT)}) THEN {out} ELSE {text} END"


def _as_decimal(g: Generator, node: Any) -> str:
    type_ = f"DECIMAL({word(node.args['width'])}, {word(node.args['scale'])})"

    def decimal(value: str) -> str:
        of_text = f"TRY_CAST({_without_exponent(value)} AS {type_})"
        return f"CASE WHEN TYPEOF({value}) = 'VARCHAR' THEN {of_text} ELSE TRY_CAST({value} AS {type_}) END"

    return f"CAST({_once(_once(argument(g, node, 'this'), _exact_numbers_only), decimal)} AS DOUBLE)"


def _with_digits(name: str) -> Writer:
    """Return the writer of a function whose second argument, the number of digits, may be left out."""

    def write(g: Generator, node: Any) -> str:
        digits = f", CAST({argument(g, node, 'digits')} AS INT)" if node.args.get("digits") else ""
        return f"{name}({argument(g, node, 'this')}{digits})"

    return write


def _clip(g: Generator, node: Any) -> str:
    """Clip to a range.

    Almost all rows pass the first test, which looks at the signs of x - low and high - x. The sign of a
    difference of doubles is exact, and the test takes a third of the time of DuckDB's comparisons, which
    have to order NaN. -0.0 may fail the first test, and is then left as it is by the second. The result is
    NULL where x is infinite or NaN.
    """
    x, low, high = (argument(g, node, name) for name in ("this", "low", "high"))
    nan = f" OR ISNAN({x})" if node.args["may_be_nan"] else ""
    exactly = f"CASE WHEN {x} < {low} THEN {low} WHEN {x} > {high} THEN {high} ELSE {x} END"
    return (
        f"CASE WHEN NOT (SIGNBIT(({x} - {low})) OR SIGNBIT(({high} - {x})){nan}) THEN {x} WHEN "
        f"ISFINITE({x}) THEN {exactly} END"
    )


def _matches(g: Generator, node: Any) -> str:
    """Match a pattern of LIKE in time linear in the text's length.

    DuckDB's LIKE tries all ways to match a pattern with `_`. That takes hours on some texts, and the time of
    the query would tell that a row has one.
    """
    text, pattern = argument(g, node, "this"), node.args["pattern"]
    if "_" not in pattern.name:
        return f"({text} LIKE {g.sql(pattern)})"
    parts = {"%": ".*", "_": "."}
    regex = "".join(parts.get(c) or (f"\\{c}" if c in _SPECIAL else c) for c in pattern.name)
    return f"REGEXP_FULL_MATCH({text}, {g.sql(exp.Literal.string(regex))}, 's')"


def _substring(g: Generator, node: Any) -> str:
    parts = [
        f"CAST({argument(g, node, name)} AS BIGINT)" for name in ("start", "length") if node.args.get(name)
    ]
    return f"SUBSTRING({', '.join([argument(g, node, 'this'), *parts])})"


def _rank(g: Generator, node: Any) -> str:
    """Write the hash with its last `bits` bits replaced by those of `low`."""
    hashed, low = argument(g, node, "this"), argument(g, node, "low")
    mask = (1 << 64) - (1 << node.args["bits"])
    return f"(({hashed} & CAST({mask} AS UBIGINT)) | CAST({low} AS UBIGINT))"


def _smallest_ranks(g: Generator, node: Any) -> str:
    """Keep the rows whose rank is at most the n-th smallest rank of their unit.

    `MIN("h", n)` is the list of the n smallest: DuckDB keeps it per unit as it reads, and sorts nothing.
    `pairs` has each rank of a unit once, so that the n smallest are different.
    """
    source, pairs, n, alias = (word(node.args[name]) for name in ("source", "pairs", "n", "alias"))
    columns = "".join(f', "{word(name)}"' for name in node.args["columns"])
    last_ranks = f'kept AS (SELECT "u" AS "ku", LIST_MAX(MIN("h", {n})) AS "last" FROM {pairs} GROUP BY "u")'
    return (
        f'{last_ranks}, {alias} AS (SELECT "u", "j"{columns} FROM {source} JOIN kept ON "u" = "ku" '
        f'AND "h" <= "last")'
    )


def _smallest_values(g: Generator, node: Any) -> str:
    """Keep the n values of each unit and group that come first by `order`, ties by value."""
    source, n, alias = (word(node.args[name]) for name in ("source", "n", "alias"))
    pair = f"{{'h': {argument(g, node, 'order')}, 'x': \"x0\"}}"
    smallest = f'taken AS (SELECT "j", UNNEST(MIN({pair}, {n})) AS "t" FROM {source} GROUP BY "u", "j")'
    return f'{smallest}, {alias} AS (SELECT "j", "t"."x" AS "x0" FROM taken)'


def _smallest_rows(g: Generator, node: Any) -> str:
    """Keep the n rows of each unit and group that come first by the hash `order`.

    Equal rows are counted, then numbered by "o" from 0, so that the hash tells them apart. The value "x0" is
    below 2**32 and stands in the last 32 bits of the rank, from which it is read back.
    """
    source, n, alias = (word(node.args[name]) for name in ("source", "n", "alias"))
    by = ", ".join(f'"{word(name)}"' for name in ("u", "j", *node.args["columns"], "x0"))
    ranked = _rank(g, d.Rank(this=node.args["order"], low=exp.column("x0", quoted=True), bits=32))
    weight, of_unit = (', "w"', ', MAX("w") AS "w"') if "w" in node.args["columns"] else ("", "")
    value = 'CAST("t" & CAST(4294967295 AS UBIGINT) AS BIGINT) AS "x0"'
    return (
        f'counted AS (SELECT {by}, COUNT(*) AS "n" FROM {source} GROUP BY {by}), '
        f'each_row AS (SELECT {by}, UNNEST(RANGE("n")) AS "o" FROM counted), '
        f'taken AS (SELECT "j"{of_unit}, UNNEST(MIN({ranked}, {n})) AS "t" FROM each_row GROUP BY "u", "j"), '
        f'{alias} AS (SELECT "j"{weight}, {value} FROM taken)'
    )


WRITERS: Mapping[type[exp.Expression], Writer] = {
    d.Number: template("CAST({this} AS DOUBLE)"),
    d.Day: template("CAST('{this}' AS DATE)"),
    d.Convert: _convert,
    d.Canonical: canonical(
        # All NaNs are equal to DuckDB, but some of them have the text '-nan'.
        number="CASE WHEN ISNAN({x}) THEN CAST('nan' AS DOUBLE) ELSE CAST({x} AS DOUBLE) + 0.0 END",
        decimal=(
            "CASE WHEN CONTAINS(CAST({x} AS VARCHAR), '.') THEN RTRIM(RTRIM(CAST({x} AS VARCHAR), '0'), '.') "
            "ELSE CAST({x} AS VARCHAR) END"
        ),
    ),
    d.SafeCast: _safe_cast,
    d.NearestWhole: template("CAST({this} AS BIGINT)"),
    d.SafeNearestWhole: template("TRY_CAST({this} AS BIGINT)"),
    d.AsInteger: _as_integer,
    d.AsDecimal: _as_decimal,
    # By way of a double: cast directly, a text beyond the range of single precision would be infinite, not
    # NULL.
    d.AsFloat: lambda g, node: (
        f"CAST(TRY_CAST(TRY_CAST({_once(argument(g, node, 'this'), _numbers_only)} AS DOUBLE) AS REAL) "
        f"AS DOUBLE)"
    ),
    d.Plus: template("({this} + {expression})"),
    d.Minus: template("({this} - {expression})"),
    d.Times: template("({this} * {expression})"),
    d.Divide: template(f"({{this}} / NULLIF({{expression}}, {_ZERO}))"),
    d.Remainder: template(f"({{this}} % NULLIF({{expression}}, {_ZERO}))"),
    # DIVIDE is DuckDB's division of whole numbers (//), which cuts off towards zero as the node demands.
    d.TruncatingDivide: template("DIVIDE({this}, {expression})"),
    d.Floor: template("FLOOR({this})"),
    d.Ceil: template("CEIL({this})"),
    d.RoundHalfAway: _with_digits("ROUND"),
    d.TruncateNumber: _with_digits("TRUNC"),
    d.Sign: template("CAST(SIGN({this}) AS DOUBLE)"),
    d.Absolute: template("ABS({this})"),
    d.SquareRoot: template(f"SQRT(CASE WHEN {{this}} >= {_ZERO} THEN {{this}} END)"),
    d.Ln: template(f"LN(CASE WHEN {{this}} > {_ZERO} THEN {{this}} END)"),
    d.Log2: template(f"LOG2(CASE WHEN {{this}} > {_ZERO} THEN {{this}} END)"),
    d.Log10: template(f"LOG10(CASE WHEN {{this}} > {_ZERO} THEN {{this}} END)"),
    d.Exponential: template("EXP({this})"),
    d.Power: template("POW({this}, {expression})"),
    d.IsFinite: template("ISFINITE({this})"),
    d.Clip: _clip,
    d.Least: template("LEAST({expressions})"),
    d.Greatest: template("GREATEST({expressions})"),
    d.Same: template("({this} IS NOT DISTINCT FROM {expression})"),
    d.Matches: _matches,
    d.UpperCase: template("UPPER({this})"),
    d.LowerCase: template("LOWER({this})"),
    d.Trim: template("TRIM({this})"),
    d.Substring: _substring,
    d.Concat: template("SUBSTRING({this} || {expression}, 1, {max_length})"),
    d.Replace: template(
        "SUBSTRING(REPLACE(SUBSTRING({this}, 1, {max_length}), {old}, {new}), 1, {max_length})"
    ),
    d.Length: template("CAST(LENGTH({this}) AS DOUBLE)"),
    d.DaysBetween: template("CAST(DATEDIFF('day', {expression}, {this}) AS DOUBLE)"),
    d.AddDays: template("CAST(({this} + CAST({expression} AS INT)) AS DATE)"),
    d.AddMonths: template("CAST(({this} + TO_MONTHS(CAST({expression} AS INT))) AS DATE)"),
    d.DatePart: template("CAST(DATE_PART('{part}', {this}) AS DOUBLE)"),
    d.StartOf: template("CAST(DATE_TRUNC('{unit}', {this}) AS DATE)"),
    d.DayText: template("STRFTIME({this}, {format})"),
    d.DayName: template("DAYNAME({this})"),
    d.MonthName: template("MONTHNAME({this})"),
    d.WideSum: template("SUM({this})"),
    d.WindowSum: template(
        "SUM({this}) OVER (PARTITION BY {by} ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND "
        "CURRENT ROW)"
    ),
    # DuckDB combines the hashes of several values by exclusive or. Measured with `hash(key, u, j)` alone, the
    # third of three groups was chosen half of the time, and two units had the same group more often than
    # independent choices would. The outer hash mixes all bits; its cost was not measurable (10 million rows).
    d.KeyedHash: template("HASH(HASH(CAST({key} AS UBIGINT), {expressions}))"),
    # NULL fields of structs are equal, in joins, too. Grouping by a text takes one and a half times as long.
    d.Content: template("ROW({expressions})"),
    d.Rank: _rank,
    d.SmallestRanks: _smallest_ranks,
    d.ChosenTotals: chosen_totals,
    d.SmallestValues: _smallest_values,
    d.SmallestRows: _smallest_rows,
}
DUCKDB = Dialect("duckdb", DuckDBSyntax.Generator, WRITERS)
