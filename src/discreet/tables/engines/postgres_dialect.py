"""Writes the SQL nodes on which engines differ (the closed set in `tables.semantics`, imported as `d`) in
PostgreSQL's SQL (14 and later; tested on 15).

The docstring of a node says what the SQL must compute. A `Writer` takes the SQL library's generator `g` and
the node, and returns the text.

No function is created on the owner's server: every node is an expression. PostgreSQL has no cast that returns
NULL where it fails, so that texts are compared with a pattern before they are cast. The type of a column is
not known when a node is written. Casts therefore ask `pg_typeof` on the server, and conversions from and to
booleans get the names of the boolean columns (`dialect`).

`upper` and `lower` depend on the server's locale, while the public categories of a query are converted by
DuckDB's UPPER and LOWER (`tables.semantics`). So texts that are not ASCII are translated character by
character with the pairs of DuckDB.

`OFFSET 0` in a subquery keeps the planner from merging it into the outer query: what it selects is computed
once, and before the CASE around it.

Writes arithmetic on doubles in PostgreSQL's SQL so that it follows IEEE 754 on overflow and underflow,
where PostgreSQL would raise an error. Divisions by zero, and roots and logarithms outside their domains, are
NULL, as `tables.semantics` has it.

PostgreSQL fails on a double that overflows, and on one that underflows to zero. Every operation here is
therefore guarded by CASE, which is evaluated in order: an operation is only reached by values for which it
cannot fail. Guards scale numbers by powers of two, which is exact. One deviation from IEEE 754 is left: a
product or quotient that is above half of the least double by at most a relative 2**-53 becomes zero, not the
least double.

An argument that a text uses several times is computed once, in a subquery (`bound`). So texts do not grow
exponentially with the depth of an expression. And PostgreSQL, which computes constant expressions when it
plans, even in branches of a CASE that are never taken, finds no constant expression that could fail.

In the templates, "{a}" and "{b}" stand for the first and the second argument (`over`, `bound`).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.generator import Generator

from .. import semantics as d
from ..dialect import Dialect, Writer, argument, canonical, chosen_totals, content, template, word
from ..semantics import letter_cases
from ..source import literal
from .postgres_tables import INFINITE

# An argument of at most so many characters is repeated rather than bound to a name by a subquery. Measured on
# the bounded group-by of 300,000 rows: 1.00 CPU-seconds with 160, 0.75 with 400, the same with 1,000.
_SHORT_NUMBER = 400
# The largest and the least positive double.
_LARGEST, _LEAST = 1.7976931348623157e308, 5e-324


def number(value: float) -> str:
    """Return the SQL of a constant double."""
    return f"'{value!r}'::float8"


def bound(g: Generator, values: Mapping[str, Any], body: str) -> str:
    """Return the template `body` with the SQL of `values` in it, by name ("{a}").

    The values are computed once, in a subquery, unless all are short enough to be repeated. An expression
    without a column is never repeated, because PostgreSQL would compute it when it plans.
    """
    texts = {name: g.sql(value) for name, value in values.items()}
    is_simple = all(
        isinstance(value, exp.Column)
        or (len(texts[name]) <= _SHORT_NUMBER and value.find(exp.Column) and not value.find(exp.Select))
        for name, value in values.items()
    )
    if is_simple:
        return body.format(**texts)
    select_list = ", ".join(f'{text} AS "{name}"' for name, text in texts.items())
    expression = body.format(**{name: f"v.{name}" for name in texts})
    return f"(SELECT {expression} FROM (SELECT {select_list} OFFSET 0) AS v)"


def over(*names: str, body: str) -> Writer:
    """Return a writer of the template `body`, in which "{a}" is the node's argument with the first of
    `names`, "{b}" that with the second, and so on."""
    letters = "abcdefg"[: len(names)]

    def write(g: Generator, node: Any) -> str:
        return bound(g, {letter: node.args[name] for letter, name in zip(letters, names, strict=True)}, body)

    return write


def constant(node: Any) -> float | None:
    """Return the value of a node that is a constant, perhaps in parentheses; None for any other node."""
    while isinstance(node, exp.Paren):
        node = node.this
    return float(node.this) if isinstance(node, d.Number) and isinstance(node.this, str) else None


def _largest_fitting(fits: Callable[[float], bool]) -> float:
    """Return the largest finite double at or above zero for which `fits` holds. It must hold for all smaller
    ones.

    The search halves the range of bit patterns, whose order is that of the positive doubles.
    """
    low, high = 0, struct.unpack("<q", struct.pack("<d", math.inf))[0] - 1
    while low < high:
        middle = (low + high + 1) // 2
        if fits(_double(middle)):
            low = middle
        else:
            high = middle - 1
    return _double(low)


def _double(bits: int) -> float:
    """Return the double of a bit pattern."""
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)


@cache
def _scaled(operator: str, value: float) -> str:
    """Return the template of "{a}" times (`*`) or divided by (`/`) a constant that is neither zero nor
    infinite.

    Outside of the range in which PostgreSQL computes it, the result is infinite or zero with the right sign.
    The ends of that range are found here by numpy, which follows IEEE 754. One constant cannot make some
    doubles overflow and others underflow.
    """

    def result(x: float) -> float:
        with np.errstate(all="ignore"):
            a, b = np.float64(x), np.float64(abs(value))
            return float(a * b if operator == "*" else a / b)

    expression = f"({{a}} {operator} {number(value)})"
    if not math.isfinite(result(_LARGEST)):
        largest = _largest_fitting(lambda x: math.isfinite(result(x)))
        fits, limit = f"abs({{a}}) <= {number(largest)} OR abs({{a}}) >= {INFINITE}", "Infinity"
    elif result(_LEAST) == 0:
        to_zero = _largest_fitting(lambda x: result(x) == 0)
        fits, limit = f"abs({{a}}) > {number(to_zero)} OR {{a}} = 0", "0"
    else:
        return expression
    sign_above, sign_below = ("", "-") if value > 0 else ("-", "")
    return (
        f"(CASE WHEN {fits} THEN {expression} WHEN {{a}} > 0 THEN '{sign_above}{limit}'::float8 "
        f"WHEN {{a}} < 0 THEN '{sign_below}{limit}'::float8 END)"
    )


# A product or quotient of two numbers between these lies between 2**-1000 and 2**1000.
_SMALL, _LARGE = number(2.0**-500), number(2.0**500)
# Where both numbers are scaled by one of these, their product is scaled by 2**-1074, the least double, or by
# 2**1074.
_DOWN, _UP = number(2.0**-537), number(2.0**537)


def _in_safe_range(name: str) -> str:
    """Write a condition on a number. Where two numbers fulfil it, their product and quotient neither overflow
    nor underflow."""
    return f"abs({name}) <= {_LARGE} AND abs({name}) >= {_SMALL}"


def _signed(value: str) -> str:
    """Return the `value` ("Infinity" or "0") with the sign of a product or quotient of "{a}" and "{b}"."""
    return (
        f"(CASE WHEN ({{a}} > 0) = ({{b}} > 0) THEN '{value}'::float8 "
        f"WHEN ({{a}} > 0) <> ({{b}} > 0) THEN '-{value}'::float8 END)"
    )


def _sum(sign: str, above: str, below: str) -> str:
    """Return the template of "{a}" + "{b}" or "{a}" - "{b}", by `sign`. `above` is the comparison of "{b}"
    with 0 under which it moves a positive "{a}" further from zero, `below` the one for a negative "{a}".

    If both numbers are at most 2**1022, nothing overflows. If one is infinite, PostgreSQL does not fail. A
    number below 2**900 is too small to make the other overflow. Otherwise the halves of both are exact, and
    the sum of the halves is rounded like the sum: the sum is finite exactly if that of the halves is below
    2**1023.
    """
    expression = f"{{a}} {sign} {{b}}"
    return (
        f"(CASE WHEN abs({{a}}) <= {number(2.0**1022)} AND abs({{b}}) <= {number(2.0**1022)} "
        f"THEN {expression} "
        f"WHEN abs({{a}}) >= {INFINITE} OR abs({{b}}) >= {INFINITE} "
        f"OR abs({{a}}) < {number(2.0**900)} OR abs({{b}}) < {number(2.0**900)} THEN {expression} "
        f"WHEN abs({{a}} * 0.5 {sign} {{b}} * 0.5) < {number(2.0**1023)} THEN {expression} "
        f"WHEN {{a}} > 0 AND {{b}} {above} 0 THEN {INFINITE} "
        f"WHEN {{a}} < 0 AND {{b}} {below} 0 THEN -{INFINITE} END)"
    )


# Where one number is zero or infinite (and for a quotient "{b}" is not zero), PostgreSQL does not fail.
_EDGE = f"{{a}} = 0 OR abs({{a}}) >= {INFINITE} OR abs({{b}}) >= {INFINITE}"
# The branches after _EDGE test whether the result would be infinite or zero on scaled numbers: their product
# or quotient, 2**1074 times smaller or larger than the result, neither overflows nor underflows. 2**-50 is
# 2**1024 divided by 2**1074, and 0.5 is half of the least double times 2**1074. Where both numbers of a
# quotient are below 1, only "{b}" is scaled, by _UP = 2**537: 2**487 is 2**1024 divided by 2**537.
_PRODUCT = (
    f"(CASE WHEN {_in_safe_range('{a}')} AND {_in_safe_range('{b}')} THEN {{a}} * {{b}} "
    f"WHEN {_EDGE} OR {{b}} = 0 THEN {{a}} * {{b}} "
    f"WHEN abs({{a}}) >= 1 AND abs({{b}}) >= 1 THEN CASE "
    f"WHEN (abs({{a}}) * {_DOWN}) * (abs({{b}}) * {_DOWN}) < {number(2.0**-50)} THEN {{a}} * {{b}} "
    f"ELSE {_signed('Infinity')} END "
    f"WHEN abs({{a}}) >= 1 OR abs({{b}}) >= 1 THEN {{a}} * {{b}} "
    f"WHEN (abs({{a}}) * {_UP}) * (abs({{b}}) * {_UP}) > 0.5 THEN {{a}} * {{b}} "
    f"ELSE {_signed('0')} END)"
)
_QUOTIENT = (
    f"(CASE WHEN {{b}} = 0 THEN NULL "
    f"WHEN {_in_safe_range('{a}')} AND {_in_safe_range('{b}')} THEN {{a}} / {{b}} "
    f"WHEN {_EDGE} THEN {{a}} / {{b}} "
    f"WHEN abs({{a}}) >= abs({{b}}) THEN CASE WHEN abs({{b}}) >= 1 THEN {{a}} / {{b}} "
    f"WHEN abs({{a}}) >= 1 AND (abs({{a}}) * {_DOWN}) / (abs({{b}}) * {_UP}) < {number(2.0**-50)} "
    f"THEN {{a}} / {{b}} WHEN abs({{a}}) >= 1 THEN {_signed('Infinity')} "
    f"WHEN abs({{a}}) / (abs({{b}}) * {_UP}) < {number(2.0**487)} THEN {{a}} / {{b}} "
    f"ELSE {_signed('Infinity')} END "
    f"WHEN abs({{a}}) >= 1 OR abs({{b}}) <= 1 THEN {{a}} / {{b}} "
    f"WHEN (abs({{a}}) * {_UP}) / (abs({{b}}) * {_DOWN}) > 0.5 THEN {{a}} / {{b}} "
    f"ELSE {_signed('0')} END)"
)


def plus(g: Generator, node: Any) -> str:
    """Write the sum of two doubles. A constant below 2**900 needs no guard: adding it makes no finite double
    overflow."""
    first, second = node.args["this"], node.args["expression"]
    for summand, other in ((first, second), (second, first)):
        value = constant(summand)
        if value is not None and abs(value) < 2.0**900 and other.find(exp.Column):
            return f"({g.sql(other)} + {number(value)})"
    return bound(g, {"a": first, "b": second}, _sum("+", ">", "<"))


def minus(g: Generator, node: Any) -> str:
    """Write the difference of two doubles, like `plus`."""
    first, second = node.args["this"], node.args["expression"]
    value = constant(second)
    if value is not None and abs(value) < 2.0**900 and first.find(exp.Column):
        return f"({g.sql(first)} - {number(value)})"
    return bound(g, {"a": first, "b": second}, _sum("-", "<", ">"))


def times(g: Generator, node: Any) -> str:
    """Write the product of two doubles; with a constant, by `_scaled`."""
    first, second = node.args["this"], node.args["expression"]
    for factor, other in ((first, second), (second, first)):
        value = constant(factor)
        if value is not None and math.isfinite(value) and other.find(exp.Column):
            if value == 0:
                return f"({g.sql(other)} * {number(value)})"
            return bound(g, {"a": other}, _scaled("*", value))
    return bound(g, {"a": first, "b": second}, _PRODUCT)


def divide(g: Generator, node: Any) -> str:
    """Write the quotient of two doubles, which is NULL where the second is zero; with a constant, by
    `_scaled`."""
    first, second = node.args["this"], node.args["expression"]
    value = constant(second)
    if value is not None and math.isfinite(value) and value != 0 and first.find(exp.Column):
        return bound(g, {"a": first}, _scaled("/", value))
    return bound(g, {"a": first, "b": second}, _QUOTIENT)


def _bits(name: str) -> str:
    """Return the SQL of a double's bit pattern as a bigint."""
    return f"('x' || encode(float8send({name}), 'hex'))::bit(64)::bigint"


# The remainder, exactly. |a| = m_a * 2**e_a and |b| = m_b * 2**e_b with whole numbers (`_parts` makes the
# pairs p and q of them). Where |a| >= |b|, also e_a >= e_b. Then the remainder of the whole numbers
# m_a * 2**(e_a - e_b) and m_b is below 2**53, and times 2**e_b = |b| / m_b it is that of |a| and |b|.
_REMAINDER = (
    "(CASE WHEN {b} = 0 THEN NULL WHEN {a} IS NULL OR {b} IS NULL THEN NULL "
    f"WHEN abs({{a}}) >= {INFINITE} OR {{b}} = 'NaN' THEN 'NaN'::float8 "
    "WHEN abs({a}) < abs({b}) THEN {a} "
    "WHEN abs({b}) <= 9007199254740992 AND abs({a}) <= 9007199254740992 "
    "AND trunc({a}) = {a} AND trunc({b}) = {b} "
    "THEN ({a}::bigint % {b}::bigint)::float8 "
    "ELSE (SELECT (CASE WHEN {a} < 0 THEN -1 ELSE 1 END) * "
    "mod(p.m * power(2::numeric, (p.e - q.e)::numeric), q.m)::float8 * (abs({b}) / q.m::float8) "
    f"FROM {{pa}} AS p, {{pb}} AS q) END)"
)


def _parts(name: str) -> str:
    """Return a subquery with the significand m, a whole number below 2**53, and the biased exponent e of a
    double: its absolute value is m * 2**(e - 1075)."""
    fraction = f"({_bits(name)} & 4503599627370495)"
    exponent = f"(({_bits(name)} >> 52) & 2047)"
    return (
        f"(SELECT ({fraction} + CASE WHEN {exponent} = 0 THEN 0 ELSE 4503599627370496 END)::numeric AS m, "
        f"GREATEST({exponent}, 1) AS e OFFSET 0)"
    )


def remainder(g: Generator, node: Any) -> str:
    """Write the remainder of two doubles (`_REMAINDER`)."""
    body = _REMAINDER.replace("{pa}", _parts("{a}")).replace("{pb}", _parts("{b}"))
    return bound(g, {"a": node.args["this"], "b": node.args["expression"]}, body)


def _half_away(text: str) -> str:
    """Return the SQL of a number rounded to a whole one, halves away from zero."""
    return f"(trunc({text}) + CASE WHEN abs({text} - trunc({text})) >= 0.5 THEN sign({text}) ELSE 0 END)"


def _digits(node: Any) -> int:
    """Return the number of digits to round to. It must be a constant of at most 300 in absolute value, so
    that 10 to its power is far from overflow; others raise ValueError, and the query is refused."""
    digits = node.args.get("digits")
    if digits is None:
        return 0
    value = constant(digits)
    if value is None or not value.is_integer() or abs(value) > 300:
        raise ValueError("digits are a constant")
    return int(value)


def _to_digits(rounding: Callable[[str], str]) -> Writer:
    """Return the writer of a rounding to digits: multiply by a power of ten, round to a whole number, and
    divide again, as DuckDB does. A number so large that the product overflows stays as it is.

    `rounding` returns the SQL of a number rounded to a whole one.
    """

    def write(g: Generator, node: Any) -> str:
        digits, a = _digits(node), node.args["this"]
        if digits == 0:
            return bound(g, {"a": a}, rounding("{a}"))
        unit = 10.0 ** abs(digits)
        if digits > 0:
            largest = _largest_fitting(lambda x: math.isfinite(x * unit))
            scaled = f"({{a}} * {number(unit)})"
            fits = f"abs({{a}}) <= {number(largest)}"
            body = f"(CASE WHEN {fits} THEN {rounding(scaled)} / {number(unit)} ELSE {{a}} END)"
        else:
            # Below 0.25 the result is 0, and the quotient could underflow; above `largest`, rounding up could
            # overflow.
            scaled, largest = f"({{a}} / {number(unit)})", 1e308 / 2
            body = (
                f"(CASE WHEN abs({{a}}) < 0.25 THEN 0::float8 WHEN abs({{a}}) <= {number(largest)} "
                f"THEN {rounding(scaled)} * {number(unit)} ELSE {{a}} END)"
            )
        return bound(g, {"a": a}, body)

    return write


rounded = _to_digits(_half_away)
truncated = _to_digits(lambda text: f"trunc({text})")

# 709.782712893384 is the largest double whose exponential is finite. Below -745 the result is taken as zero.
# From -745 to -700 the exponential of a half is squared: PostgreSQL's exp fails where the C library reports
# an underflow, which some libraries do for results that are not zero.
EXPONENTIAL = (
    f"(CASE WHEN {{a}} = 'NaN' OR abs({{a}}) <= 700 THEN exp({{a}}) WHEN {{a}} > {number(709.782712893384)} "
    f"THEN {INFINITE} WHEN {{a}} > 0 THEN exp({{a}}) WHEN {{a}} < -745 THEN 0::float8 "
    "WHEN {a} < 0 THEN exp({a} * 0.5) * exp({a} * 0.5) END)"
)
# The natural logarithm of the absolute value of the power, and the square root of that value.
_LOG = "({b} * ln(abs({a})))"
_ROOT = "power(abs({a}), {b} * 0.5)"
POWER = (
    "(CASE WHEN {a} IS NULL OR {b} IS NULL THEN NULL WHEN {b} = 0 THEN 1::float8 "
    f"WHEN {{a}} = 0 AND {{b}} < 0 THEN {INFINITE} "
    f"WHEN abs({{b}}) < {INFINITE} AND {{a}} < 0 AND floor({{b}}) <> {{b}} THEN NULL "
    f"WHEN abs({{a}}) >= {INFINITE} OR abs({{b}}) >= {INFINITE} OR {{a}} = 0 OR abs({{a}}) = 1 "
    # A logarithm other than 0 is between 1e-16 and 746 in absolute value. So the power is 1 for the least
    # exponents, infinite or zero for the largest, and `_LOG` neither underflows nor overflows for the others.
    "THEN power({a}, {b}) WHEN abs({b}) < 1e-300 THEN 1::float8 "
    f"WHEN abs({{b}}) > 1e20 THEN CASE WHEN (abs({{a}}) > 1) = ({{b}} > 0) THEN {INFINITE} "
    "ELSE 0::float8 END "
    f"WHEN abs({_LOG}) <= 700 THEN power({{a}}, {{b}}) "
    # The power as the square of its root, which is compared with the roots of the largest double (1.34e154)
    # and of half of the least (1.6e-162) before it is squared.
    f"ELSE (CASE WHEN {{a}} < 0 AND floor({{b}} * 0.5) <> {{b}} * 0.5 THEN -1::float8 ELSE 1::float8 END) * "
    f"(CASE WHEN {_LOG} > 710 THEN {INFINITE} WHEN {_LOG} < -746 THEN 0::float8 "
    f"WHEN {_ROOT} > {number(1.3407807929942596e154)} THEN {INFINITE} "
    f"WHEN {_ROOT} < {number(1.6e-162)} THEN 0::float8 ELSE {_ROOT} * {_ROOT} END) END)"
)
# A cast to bigint where "{a}" lies in a range, else NULL. `less` is the comparison with its upper end.
_CAST_IN_RANGE = "(CASE WHEN {{a}} >= {low} AND {{a}} {less} {high} THEN ({text})::bigint END)"


def safe_nearest_whole(g: Generator, node: Any) -> str:
    """Write the nearest whole number of a double where it fits 64 bits, else NULL.

    For a product with a constant of at least 1, the range of the other factor whose product fits is computed
    here, so that the product needs no guard of its own.
    """
    x = node.args["this"]
    if isinstance(x, d.Times):
        factor, first = constant(x.args["expression"]), x.args["this"]
        if factor is not None and 1 <= factor < 2.0**63 and first.find(exp.Column):
            low, high = (
                -_largest_fitting(lambda v: v * factor <= 2.0**63),
                _largest_fitting(lambda v: v * factor < 2.0**63),
            )
            ends = {"low": number(low), "less": "<=", "high": number(high)}
            body = _CAST_IN_RANGE.format(**ends, text=f"{{a}} * {number(factor)}")
            return bound(g, {"a": first}, body)
    ends = {"low": number(-(2.0**63)), "less": "<", "high": number(2.0**63)}
    return bound(g, {"a": x}, _CAST_IN_RANGE.format(**ends, text="{a}"))


CLIP = (
    "(CASE WHEN {{a}} >= {low} AND {{a}} <= {high} THEN {{a}} "
    "WHEN {{a}} < {low} AND {{a}} > -{inf} THEN {low} WHEN {{a}} > {high} AND {{a}} < {inf} THEN {high} END)"
)


def clip(g: Generator, node: Any) -> str:
    """Clip to a range. Almost all values pass the first test. NaN, which PostgreSQL orders above all numbers,
    and infinities pass none of the three, and are NULL."""
    low, high = argument(g, node, "low"), argument(g, node, "high")
    return bound(g, {"a": node.args["this"]}, CLIP.format(low=low, high=high, inf=INFINITE))


NUMBER_WRITERS: Mapping[type[exp.Expression], Writer] = {
    d.Plus: plus,
    d.Minus: minus,
    d.Times: times,
    d.Divide: divide,
    d.Remainder: remainder,
    d.RoundHalfAway: rounded,
    d.TruncateNumber: truncated,
    d.SquareRoot: over("this", body="(CASE WHEN {a} >= 0 THEN sqrt({a}) END)"),
    d.Ln: over("this", body="(CASE WHEN {a} > 0 THEN ln({a}) END)"),
    d.Log2: over("this", body=f"(CASE WHEN {{a}} > 0 THEN ln({{a}}) / {number(math.log(2))} END)"),
    d.Log10: over("this", body="(CASE WHEN {a} > 0 THEN log({a}) END)"),
    d.Exponential: over("this", body=EXPONENTIAL),
    d.Power: over("this", "expression", body=POWER),
    d.Clip: clip,
    d.SafeNearestWhole: safe_nearest_whole,
}


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


def _first(order: str, source: str, n: str, alias: str, weight: str = "") -> str:
    """Write the first n rows of each unit "u" and group "j" of `source` by `order`, ties by the value
    "x0"."""
    numbered = f'SELECT *, ROW_NUMBER() OVER (PARTITION BY "u", "j" ORDER BY {order}, "x0") AS "kept"'
    return f'{alias} AS (SELECT "j", "x0"{weight} FROM ({numbered} FROM {source}) AS d WHERE "kept" <= {n})'


def _smallest_values(g: Generator, node: Any) -> str:
    source, n, alias = _names(node, "source", "n", "alias")
    return _first(argument(g, node, "order"), source, n, alias)


def _smallest_rows(g: Generator, node: Any) -> str:
    """Number equal rows by "o" from 0, and keep the first n rows of each unit and group."""
    source, n, alias = _names(node, "source", "n", "alias")
    by = ", ".join(f'"{word(name)}"' for name in ("u", "j", *node.args["columns"], "x0"))
    numbered = f'(SELECT *, ROW_NUMBER() OVER (PARTITION BY {by}) - 1 AS "o" FROM {source}) AS e'
    weight = ', "w"' if "w" in node.args["columns"] else ""
    return _first(argument(g, node, "order"), numbered, n, alias, weight)


WRITERS: Mapping[type[exp.Expression], Writer] = {
    **NUMBER_WRITERS,
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
    d.Content: content("({x})::text", "length({x})::text", '(concat({parts}) COLLATE "C")'),
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
    writers = {**WRITERS, d.Convert: _convert(truths)}
    return Dialect("postgres", Postgres.Generator, writers)
