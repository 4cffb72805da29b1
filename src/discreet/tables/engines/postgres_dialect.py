"""Writes the SQL nodes on which engines differ (the closed set in `tables.semantics`, imported as `d`) in
PostgreSQL's SQL (14 and later; tested on 15).

The docstring of a node says what the SQL must compute. A `Writer` takes the SQL library's generator `g` and
the node, and returns the text; `bound` and the arithmetic are in `postgres_numbers`.

No function is created on the owner's server: every node is an expression. PostgreSQL has no cast that returns
NULL where it fails, so that texts are compared with a pattern before they are cast. The type of a column is
not known when a node is written. Casts therefore ask `pg_typeof` on the server, and conversions from and to
booleans get the names of the boolean columns (`dialect`).

`upper` and `lower` depend on the server's locale, while the public categories of a query are converted by
DuckDB's UPPER and LOWER (`tables.texts`). So texts that are not ASCII are translated character by character
with the pairs of DuckDB.

`OFFSET 0` in a subquery keeps the planner from merging it into the outer query: what it selects is computed
once, and before the CASE around it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.generator import Generator

from .. import semantics as d
from ..dialect import Dialect, Writer, argument, canonical, chosen_totals, template, word
from ..engine import literal
from ..texts import letter_cases
from . import postgres_numbers
from .postgres_numbers import bound, number
from .postgres_tables import INFINITE

_TYPES = {
    "double": "float8",
    "integer": "integer",
    "bigint": "bigint",
    "wide": "numeric",
    "date": "date",
}
_NUMBER = f"^{d.NUMBER}$"
# An exponent of more than four digits. PostgreSQL fails on some of these.
_LONG_EXPONENT = "[eE][+-]?0*[1-9][0-9]{4,}"
_NOT_FINITE = rf"^{d.BLANK}[+-]?(inf|infinity|nan){d.BLANK}$"
_DATE = f"^{d.DATE}"
# The characters that DuckDB's TRIM removes: the space separators of Unicode (category Zs), as code points.
_SPACES = "".join(map(chr, (32, 160, 5760, *range(8192, 8203), 8239, 8287, 12288)))


def _this_as_a(node: exp.Expression) -> dict[str, Any]:
    """Return the node's argument under the name "a", for `bound`."""
    return {"a": node.args["this"]}


def _over_text(g: Generator, node: Any, body: str) -> str:
    """Return the SQL text `body`, in which "t" stands for the node's argument as text and "k" for its
    type."""
    value = g.sql(node.args["this"])
    return f"(SELECT {body} FROM (SELECT ({value})::text AS t, pg_typeof({value}) AS k OFFSET 0) AS v)"


# Whether "t" is short enough to be converted to `numeric`, which writes out all digits: with at most 400
# characters and an exponent of at most four digits, these are 10,400 at most. Values that are no texts are
# short.
_SHORT = f"(octet_length(t) <= {d.LONGEST_NUMBER} OR k <> 'text'::regtype)"


def _numeric(text: str, condition: str = "TRUE") -> str:
    """Return the SQL of `text` as numeric, where "t" is a short number and `condition` holds; else NULL."""
    return (
        f"(CASE WHEN {_SHORT} THEN CASE WHEN t ~ {literal(_NUMBER)} AND {condition} THEN {text}::numeric "
        f"END END)"
    )


_NUMERIC = _numeric("t", f"t !~ {literal(_LONG_EXPONENT)}")
# A longer exponent is replaced by 9999: with at most 400 characters, both numbers are infinite, or both are
# zero, as doubles.
_SHORT_EXPONENT = _numeric("regexp_replace(t, '([eE][+-]?)0*[1-9][0-9]{4,}', '\\19999')")
# The value as a double. 1.7976931348623158e308 is above the largest double, and below the least number that
# rounds to infinity; 2.5e-324 is just above half of the least double, so that no cast to float8 fails.
_DOUBLE = (
    "(CASE WHEN k = 'float8'::regtype THEN t::float8 "
    "WHEN k = 'boolean'::regtype THEN CASE t WHEN 'true' THEN 1::float8 WHEN 'false' THEN 0::float8 END "
    f"WHEN {_SHORT} AND t ~* {literal(_NOT_FINITE)} THEN CASE WHEN t ~* 'nan' THEN 'NaN'::float8 "
    f"WHEN t ~ '-' THEN -{INFINITE} ELSE {INFINITE} END "
    f"ELSE (SELECT CASE WHEN n > 1.7976931348623158e308 THEN {INFINITE} "
    f"WHEN n < -1.7976931348623158e308 THEN -{INFINITE} "
    f"WHEN abs(n) < 2.5e-324 THEN CASE WHEN t ~ {literal(f'^{d.BLANK}-')} THEN '-0' ELSE '0' END::float8 "
    f"ELSE n::float8 END FROM (SELECT {_SHORT_EXPONENT} AS n OFFSET 0) AS w) END)"
)
_TRUTH = (
    "(CASE WHEN k = 'boolean'::regtype THEN t = 'true' "
    "WHEN k IN ('float8'::regtype, 'bigint'::regtype, 'integer'::regtype, 'numeric'::regtype) "
    f"THEN t::numeric <> 0 WHEN lower(t) IN ({', '.join(map(literal, d.TRUE_WORDS))}) THEN TRUE "
    f"WHEN lower(t) IN ({', '.join(map(literal, d.FALSE_WORDS))}) THEN FALSE END)"
)
_DAYS_IN_MONTH = (
    "CASE WHEN m IN (4, 6, 9, 11) THEN 30 WHEN m <> 2 THEN 31 "
    "WHEN y % 4 = 0 AND (y % 100 <> 0 OR y % 400 = 0) THEN 29 ELSE 28 END"
)
# A day, from the text of a day, a time or a text. "p" are the groups of `d.DATE`: year, mark, month, day.
_DAY = (
    f"(SELECT CASE WHEN y >= 1 AND m BETWEEN 1 AND 12 AND z BETWEEN 1 AND {_DAYS_IN_MONTH} "
    "THEN make_date(y, m, z) END FROM (SELECT p[1]::integer AS y, p[3]::integer AS m, p[4]::integer AS z "
    f"FROM (SELECT regexp_match(t, {literal(_DATE)}) AS p OFFSET 0) AS q OFFSET 0) AS w)"
)
_CASTS = {"double": _DOUBLE, "boolean": _TRUTH, "date": _DAY}


def _safe_cast(g: Generator, node: Any) -> str:
    return _over_text(g, node, _CASTS[node.args["to"]])


def _as_integer(g: Generator, node: Any) -> str:
    """Round to a whole number in the range of an integer type, as a double; NULL where it does not fit.
    Halves of doubles are rounded to the even neighbor, those of other numbers and of texts away from zero."""
    low, high = d.INTEGERS[node.args["type"]]
    # `low` and `high` + 1 are powers of two or zero, so that both are exact as doubles; `high` may not be.
    ends = f"n >= {number(float(low))} AND n < {number(float(high + 1))}"
    exact = f"n >= {low} AND n <= {high}"
    return _over_text(
        g,
        node,
        "(CASE WHEN k = 'float8'::regtype "
        f"THEN (SELECT CASE WHEN {ends} THEN n END FROM (SELECT round(t::float8) AS n OFFSET 0) AS w) "
        "WHEN k = 'boolean'::regtype THEN CASE t WHEN 'true' THEN 1::float8 WHEN 'false' THEN 0::float8 END "
        f"ELSE (SELECT CASE WHEN {exact} THEN n::float8 END "
        f"FROM (SELECT round({_NUMERIC}) AS n OFFSET 0) AS w) END)",
    )


def _as_decimal(g: Generator, node: Any) -> str:
    """Convert to DECIMAL and then to a double. A double is rounded as the decimal number that its shortest
    text says."""
    width, scale = int(word(node.args["width"])), int(word(node.args["scale"]))
    limit = 10 ** (width - scale)
    return _over_text(
        g,
        node,
        f"(SELECT CASE WHEN abs(n) < {limit} THEN n::float8 END "
        f"FROM (SELECT round({_NUMERIC}, {scale}) AS n OFFSET 0) AS w)",
    )


def _as_float(g: Generator, node: Any) -> str:
    """Convert to single precision and then to a double, only where PostgreSQL's cast cannot fail.

    2**-150 is half of the least number of single precision: up to it, the result is zero. 2**128 - 2**103 is
    half a unit in the last place above the largest: from there on, the result is NULL.
    """
    return _over_text(
        g,
        node,
        f"(SELECT CASE WHEN abs(n) <= {number(2.0**-150)} THEN n * 0 WHEN abs(n) >= {INFINITE} THEN n "
        f"WHEN abs(n) < {number(2.0**128 - 2.0**103)} THEN n::float4::float8 END "
        f"FROM (SELECT {_DOUBLE} AS n OFFSET 0) AS w)",
    )


def _convert(truths: frozenset[str]) -> Writer:
    """Return the writer of `Convert`. PostgreSQL has no cast between booleans and most numbers; `truths` are
    the names of the boolean columns."""

    def write(g: Generator, node: Any) -> str:
        value, to = node.args["this"], node.args["to"]
        text = g.sql(value)
        is_boolean = isinstance(value, exp.Boolean) or (
            isinstance(value, exp.Column) and value.name in truths
        )
        if to == "boolean":
            return text if is_boolean else f"({text} <> 0)"
        if to == "text":
            return f'(({text})::text COLLATE "C")'
        if is_boolean and to != "date":
            return f"((CASE WHEN {text} THEN 1 WHEN NOT {text} THEN 0 END)::{_TYPES[to]})"
        return f"({text})::{_TYPES[to]}"

    return write


@cache
def _letter_case(upper: bool) -> str:
    """Write UPPER or LOWER of "{a}": texts of ASCII by the server's function, all others by DuckDB's pairs of
    characters."""
    old, new = letter_cases(upper=upper)
    name = "upper" if upper else "lower"
    # No brace is among the letters, so that the text can be a template for `str.format`.
    return (
        f'(CASE WHEN octet_length({{a}}) = char_length({{a}}) THEN {name}({{a}} COLLATE "C") '
        f"ELSE translate({{a}}, {literal(old)}, {literal(new)}) END)"
    )


def _with_case(upper: bool) -> Writer:
    return lambda g, node: bound(g, _this_as_a(node), _letter_case(upper))


def _literal(g: Generator, node: Any) -> str:
    """Write a literal. A text with a zero byte, or with a surrogate (`encode` fails), raises ValueError,
    because PostgreSQL's texts hold neither."""
    if not node.args.get("is_string"):
        return word(node.this)
    if "\0" in node.this:
        raise ValueError("a zero byte")
    node.this.encode()
    return literal(node.this)


def _common_table(g: Generator, node: Any) -> str:
    """Write a common table expression without MATERIALIZED. PostgreSQL computes one that is used several
    times only once anyway, and may merge one that is used once into the query."""
    node.set("materialized", None)
    text: str = g.cte_sql(node)
    return text


def _substring(g: Generator, node: Any) -> str:
    parts = [f"({argument(g, node, name)})::integer" for name in ("start", "length") if node.args.get(name)]
    return f"substr({', '.join([argument(g, node, 'this'), *parts])})"


# The SQL of each directive of strftime for a day "{a}".
_DIRECTIVES = {
    "Y": "to_char({a}, 'YYYY')",
    "G": "to_char({a}, 'IYYY')",
    "y": "to_char({a}, 'YY')",
    "m": "to_char({a}, 'MM')",
    "-m": "to_char({a}, 'FMMM')",
    "d": "to_char({a}, 'DD')",
    "-d": "to_char({a}, 'FMDD')",
    "j": "to_char({a}, 'DDD')",
    "-j": "to_char({a}, 'FMDDD')",
    "a": "to_char({a}, 'Dy')",
    "A": "to_char({a}, 'FMDay')",
    "b": "to_char({a}, 'Mon')",
    "B": "to_char({a}, 'FMMonth')",
    "w": "date_part('dow', {a})::text",
    "u": "date_part('isodow', {a})::text",
    "V": "to_char({a}, 'IW')",
    "U": "lpad((((date_part('doy', {a}) + 6 - date_part('dow', {a}))::integer) / 7)::text, 2, '0')",
    "W": "lpad((((date_part('doy', {a}) + 7 - date_part('isodow', {a}))::integer) / 7)::text, 2, '0')",
    "%": "'%'",
}


def _day_text(g: Generator, node: Any) -> str:
    """Write a day in a format of strftime, directive by directive. One that is not listed raises KeyError,
    which `Dialect.write` turns into a refusal before anything is charged."""
    layout = node.args["format"].name
    parts = []
    for literal_text, directive in re.findall(r"([^%]+)|%(-?.|$)", layout, re.DOTALL):
        # The parts become a template for `str.format`, in which a brace is doubled.
        text = (
            literal(literal_text).replace("{", "{{").replace("}", "}}")
            if literal_text
            else _DIRECTIVES[directive]
        )
        parts.append(text)
    if not parts:
        return f"left(({g.sql(node.this)})::text, 0)"
    # NULL for NULL: a format without directives has no part that depends on the day.
    return bound(g, _this_as_a(node), f"(CASE WHEN {{a}} IS NOT NULL THEN {' || '.join(parts)} END)")


def _hash(g: Generator, seed: str, expressions: list[Any]) -> str:
    """Write a hash of several values: the text of each is hashed with the hash of those before it as seed.
    NULL is hashed as the empty text, with the last bit of the seed flipped. Minus zero is hashed as zero."""
    for value in expressions:
        text = bound(
            g,
            {"a": value},
            "(CASE WHEN pg_typeof({a}) = 'float8'::regtype AND {a}::text = '-0' THEN '0' "
            "ELSE COALESCE({a}::text, '') END)",
        )
        null = bound(g, {"a": value}, "(CASE WHEN {a} IS NULL THEN 1 ELSE 0 END)")
        seed = f"hashtextextended({text}, {seed} # {null}::bigint)"
    return seed


def _keyed_hash(g: Generator, node: Any) -> str:
    return _hash(g, f"{int(word(node.args['key']))}::bigint", node.args["expressions"])


def _content_hash(g: Generator, node: Any) -> str:
    return _hash(g, "0::bigint", node.args["expressions"])


def _rank(g: Generator, node: Any) -> str:
    """Write the hash with its last `bits` bits replaced by those of `low`."""
    hashed, low = argument(g, node, "this"), argument(g, node, "low")
    mask = -(1 << int(word(node.args["bits"])))
    return f"(({hashed} & ({mask})::bigint) | ({low})::bigint)"


def _names(node: Any, *names: str) -> list[str]:
    """Return arguments of a node that are names or numbers, checked by `word`."""
    return [word(node.args[name]) for name in names]


def _smallest_ranks(g: Generator, node: Any) -> str:
    """Keep the rows of the n smallest different ranks "h" of each unit "u": rows that share a rank stay
    together, and rows without a unit are left out. The node's `pairs` is not needed here."""
    source, n, alias = _names(node, "source", "n", "alias")
    columns = "".join(f', "{word(name)}"' for name in node.args["columns"])
    ranked = (
        f'SELECT *, DENSE_RANK() OVER (PARTITION BY "u" ORDER BY "h") AS "kept" FROM {source} '
        f'WHERE "u" IS NOT NULL'
    )
    return f'{alias} AS (SELECT "u", "j"{columns} FROM ({ranked}) AS d WHERE "kept" <= {n})'


def _first(order: str, source: str, n: str, alias: str) -> str:
    """Write the first n rows of each unit "u" and group "j" of `source` by `order`, ties by the value
    "x0"."""
    numbered = f'SELECT *, ROW_NUMBER() OVER (PARTITION BY "u", "j" ORDER BY {order}, "x0") AS "kept"'
    return f'{alias} AS (SELECT "j", "x0" FROM ({numbered} FROM {source}) AS d WHERE "kept" <= {n})'


def _smallest_values(g: Generator, node: Any) -> str:
    source, n, alias = _names(node, "source", "n", "alias")
    return _first(argument(g, node, "order"), source, n, alias)


def _smallest_rows(g: Generator, node: Any) -> str:
    """Number equal rows by "o" from 0, and keep the first n rows of each unit and group."""
    source, n, alias = _names(node, "source", "n", "alias")
    by = ", ".join(f'"{word(name)}"' for name in ("u", "j", *node.args["columns"], "x0"))
    numbered = f'(SELECT *, ROW_NUMBER() OVER (PARTITION BY {by}) - 1 AS "o" FROM {source}) AS e'
    return _first(argument(g, node, "order"), numbered, n, alias)


WRITERS: Mapping[type[exp.Expression], Writer] = {
    **postgres_numbers.WRITERS,
    d.Number: template("'{this}'::float8"),
    d.Day: template("'{this}'::date"),
    d.Convert: _convert(frozenset()),
    d.Canonical: canonical(
        # Adding zero makes 0 of -0, and all NaNs have one text.
        number="({x} + 0::float8)",
        # 1.0 and 1.00 are one number.
        decimal='(trim_scale({x})::text COLLATE "C")',
    ),
    d.SafeCast: _safe_cast,
    # The cast rounds halves to the even neighbor.
    d.NearestWhole: template("({this})::bigint"),
    d.AsInteger: _as_integer,
    d.AsDecimal: _as_decimal,
    d.AsFloat: _as_float,
    d.TruncatingDivide: template("div(({this})::numeric, ({expression})::numeric)"),
    d.Floor: template("floor({this})"),
    d.Ceil: template("ceil({this})"),
    d.Sign: template("sign({this})"),
    d.Absolute: template("abs({this})"),
    d.IsFinite: template(f"(abs({{this}}) < {INFINITE})"),
    d.Least: template("LEAST({expressions})"),
    d.Greatest: template("GREATEST({expressions})"),
    d.Same: template("({this} IS NOT DISTINCT FROM {expression})"),
    # PostgreSQL's LIKE stops trying where the text ends, so that its time is bounded by the product of the
    # lengths of text and pattern.
    d.Matches: template("({this} LIKE {pattern} ESCAPE '')"),
    d.UpperCase: _with_case(True),
    d.LowerCase: _with_case(False),
    d.Trim: lambda g, node: f"btrim({argument(g, node, 'this')}, {literal(_SPACES)})",
    d.Substring: _substring,
    d.Concat: template("left(left({this}, {max_length}) || left({expression}, {max_length}), {max_length})"),
    d.Replace: template("left(replace(left({this}, {max_length}), {old}, {new}), {max_length})"),
    d.Length: template("char_length({this})::float8"),
    d.DaysBetween: template("({this} - {expression})::float8"),
    d.AddDays: template("({this} + ({expression})::integer)"),
    d.AddMonths: template("({this} + make_interval(months => ({expression})::integer))::date"),
    d.DatePart: template("date_part('{part}', {this})"),
    d.StartOf: template("date_trunc('{unit}', ({this})::timestamp)::date"),
    d.DayText: _day_text,
    d.DayName: template("to_char({this}, 'FMDay')"),
    d.MonthName: template("to_char({this}, 'FMMonth')"),
    # Adding 0::bigint makes the summands 64-bit or wider. PostgreSQL adds up smaller ones in 64 bits, which
    # could overflow, 64-bit ones in 128 bits, and wider ones without a limit.
    d.WideSum: template("SUM(({this}) + 0::bigint)"),
    d.WindowSum: template(
        "SUM({this}) OVER (PARTITION BY {by} ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND "
        "CURRENT ROW)"
    ),
    d.KeyedHash: _keyed_hash,
    d.ContentHash: _content_hash,
    d.Rank: _rank,
    d.SmallestRanks: _smallest_ranks,
    d.ChosenTotals: chosen_totals,
    d.SmallestValues: _smallest_values,
    d.SmallestRows: _smallest_rows,
    exp.Literal: _literal,
    exp.CTE: _common_table,
}


@cache
def dialect(truths: frozenset[str] = frozenset()) -> Dialect:
    """Return the dialect for tables whose boolean columns have the names `truths`."""
    # `numbers_rows`: see `PostgresTable.definition`. Without numbers, a query that would have to recognize a
    # row that a join repeats is refused (`query.scan`).
    writers = {**WRITERS, d.Convert: _convert(truths)}
    return Dialect("postgres", Postgres.Generator, writers, numbers_rows=False)
