"""Reads constants of the analyst's SQL (dates written as texts, numbers, patterns), and refuses constants
that can only be typing errors, before the query is charged."""

from __future__ import annotations

import math
import re
from datetime import date

from sqlglot import exp

from .._require import did_you_mean
from .domain import EXACT, HUGE, Kind
from .errors import Node, Refusal, position, refuse
from .nodes import Column, Expr, Literal
from .sources import is_within_range

# A number as an analyst would type it between quotes.
_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?")
# The text that may follow a day: nothing, or the time of midnight, which is the day itself.
_MIDNIGHT = re.compile(r"([T ]00:00(:00(\.0+)?)?)?")
# How many declared values an error message lists. Not tuned.
_LISTED = 12


def as_date(x: Expr, other: Expr) -> Expr:
    """Turn a text literal that is compared with a date into a date; refuse a text that is no day.

    A time of day is refused as well: without it, day < '2020-01-31 12:00', which is true on that day, would
    become day < '2020-01-31', which is not.
    """
    if other.domain.kind is not Kind.DATE or not (isinstance(x, Literal) and isinstance(x.content, str)):
        return x
    written = x.content.strip()
    try:
        if not _MIDNIGHT.fullmatch(written[10:]):
            raise ValueError
        return Literal(date.fromisoformat(written[:10]))
    except ValueError:
        raise Refusal(f"{x.content[:40]!r} is not a day such as '2020-01-31'") from None


def refuse_quoted_number(constant: Expr, x: Expr, written: Node) -> None:
    """Refuse a text literal (`constant`) that is compared with a number (`x`): it must be 40, not '40'.
    `written` is the literal's node in the SQL."""
    is_text = isinstance(constant, Literal) and isinstance(constant.content, str)
    if not is_text or x.domain.kind is not Kind.NUMBER:
        return
    assert isinstance(constant, Literal)
    what = "this"
    for operand in (written.parent.this, written.parent.args.get("expression")):
        what = operand.name if isinstance(operand, exp.Column) else what
    shown = constant.content.strip() if _NUMBER.fullmatch(constant.content.strip()) else "40"
    raise refuse(
        written.parent,
        f"{what} is a number, and {constant.content[:40]!r} is a text",
        f"Write numbers without quotes: {shown}, not '{shown}'.",
    )


def refuse_undeclared_value(x: Expr, constant: Expr, written: Node) -> None:
    """Refuse a comparison of `x` with a text or number that is not among its declared values: it can only be
    a typing error, and would be charged. `written` is the constant's node in the SQL."""
    values = x.domain.values
    if not isinstance(constant, Literal) or values is None or isinstance(x, Literal):
        return
    if (
        constant.content is None
        or isinstance(constant.content, bool | date)
        or x.domain.kind is not constant.domain.kind
    ):
        return
    if constant.content in values:
        return
    sample = ", ".join(repr(value) for value in values[:_LISTED]) + (", ..." if len(values) > _LISTED else "")
    suggestion = did_you_mean(str(constant.content), values) if x.domain.kind is Kind.TEXT else ""
    at = written if position(written)[0] is not None else written.parent
    raise refuse(at, f"{constant.content!r} is not among the declared values ({sample})", suggestion.strip())


def refuse_out_of_bounds(op: str, x: Expr, constant: Expr, written: Node) -> None:
    """Refuse `x` `op` `constant` where `x` is a column with declared bounds, beyond which the constant lies
    such that the comparison holds for no row (with <>, for every row): values are clipped to the bounds, so
    that it can only be a slip, and would be charged. `written` is the constant's node in the SQL.

    A comparison that merely holds for every row, such as age >= 0, is no slip.
    """
    domain, fixed = x.domain, constant.domain
    if not (isinstance(x, Column) and is_within_range(x) and isinstance(constant, Literal)):
        return
    if domain.kind not in (Kind.NUMBER, Kind.DATE) or fixed.kind is not domain.kind or fixed.null:
        return
    value = fixed.low
    beyond = {
        "<": value <= domain.low,
        "<=": value < domain.low,
        ">": value >= domain.high,
        ">=": value > domain.high,
    }.get(op, not domain.low <= value <= domain.high)
    if not beyond:
        return
    low, high, shown = (_end(end, domain.kind) for end in (domain.low, domain.high, value))
    every = "every row" if op == "<>" else "no row"
    raise refuse(
        written if position(written)[0] is not None else written.parent,
        f"{op} {shown} holds for {every}: the column is declared between {low} and {high}, and what lies "
        f"beyond {'counts as the bound' if domain.values is None else 'is missing'}",
    )


def _end(value: float, kind: Kind) -> str:
    """Return a number, or the day of an ordinal, as a message shows it."""
    if kind is Kind.DATE:
        return date.fromordinal(int(value)).isoformat()
    return f"{int(value)}" if value.is_integer() and abs(value) < EXACT else f"{value!r}"


def fixed_pattern(x: Expr) -> Expr:
    """Return the pattern of LIKE, which must be a text literal."""
    if not (isinstance(x, Literal) and isinstance(x.content, str)):
        raise Refusal("LIKE needs a fixed pattern, such as 'I25%'")
    return x


def is_null_literal(x: Expr) -> bool:
    """Return whether the expression is the literal NULL."""
    return isinstance(x, Literal) and x.content is None


def fixed_number(x: Expr) -> float | int | None:
    """Return the number of a literal; None for anything else, also for TRUE and FALSE."""
    if not isinstance(x, Literal) or isinstance(x.content, bool):
        return None
    return x.content if isinstance(x.content, int | float) else None


def interval_number(node: Node) -> int | None:
    """Return the integer of an INTERVAL, of at most six digits: 3, '3', '-3', (3); None for anything else."""
    text = node.sql(dialect="duckdb").strip("()' ") if node is not None else ""
    written = re.fullmatch(r"(-?)\s*(\d{1,6})", text)
    return None if written is None else int(written[1] + written[2])


def parse_number(text: str) -> int | float | None:
    """Return the number that a text is in SQL: an integer if it has at most 18 digits and nothing else, else
    a float; None if it is no number, or too large for interval arithmetic."""
    try:
        value = int(text) if text.isdigit() and len(text) <= 18 else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < HUGE else None
