"""Defines the expressions of a checked plan: columns, literals, calls of known operators, and references to
group keys and released aggregates.

They contain no node of the analyst's syntax tree. Each has a `domain`: what is public about its value. `sql`
writes an expression for the engine, `key` writes it as the text under which answers are stored, and `value`
computes it on released values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np
from sqlglot import exp

from ..tables import semantics
from .domain import Kind, ValueDomain, constant
from .errors import Node, Refusal
from .operators import OPERATORS, double

# The largest number of SQL nodes that an expression may become. Not tuned.
MAX_SQL_SIZE = 20_000
# The most levels of nesting of an expression: functions walk it by recursion, far below Python's limit. Not
# tuned.
MAX_DEPTH = 64
# How many times the SQL of an operator repeats its arguments; once for those not listed.
REPEATS = {"clamp": 8, "sqrt": 2, "ln": 2, "log2": 2, "log10": 2, "finite": 2, "exactly whole": 3}
# Operators whose result has one of DuckDB's integer types if all their arguments have.
_INTEGER_IF_ARGUMENTS_ARE = {
    "+",
    "-",
    "*",
    "//",
    "%",
    "abs",
    "least",
    "greatest",
    "case",
    "coalesce",
    "nullif",
    "clamp",
    "round",
    "trunc",
}
# Operators whose result always has an integer type, like parts of dates ("part:") and casts ("whole:").
_ALWAYS_INTEGER = {"sign", "length", "days", "exactly whole"}
# Names of columns that cannot be the `key` of another expression, as they have no punctuation.
_PLAIN = re.compile(r"[\w ]+")
# Operators that may overflow to an infinity or NaN if their range is not bounded; a text that is cast may be
# "inf".
_OVERFLOWS = {"+", "-", "*", "/", "exp", "power", "number", "float"}


@dataclass(frozen=True, slots=True)
class Column:
    """Refers to a column of the relation being read, by the name it has there."""

    name: str
    domain: ValueDomain


@dataclass(frozen=True, slots=True)
class Literal:
    """Holds a constant of the query; 1, 1.0 and True are different literals."""

    # None, bool, int, float, str or date
    content: Any

    @property
    def domain(self) -> ValueDomain:
        return constant(self.content)

    @property
    def _identity(self) -> tuple[str, Any]:
        return type(self.content).__name__, self.content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


@dataclass(frozen=True, slots=True)
class Call:
    """Applies a known operator to expressions. Only `make` builds it: it computes the domain, the `weight`
    (the number of SQL nodes) and the `depth` (levels of nesting)."""

    op: str
    args: tuple[Expr, ...]
    domain: ValueDomain
    weight: int = field(default=1, compare=False, repr=False)
    depth: int = field(default=1, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class OutputReference:
    """Refers, after aggregation, to group key number `index` (kind "key") or released aggregate number
    `index` (kind "aggregate") of the plan."""

    kind: str
    index: int
    domain: ValueDomain


Expr = Column | Literal | Call | OutputReference


def make(op: str, *args: Expr) -> Call:
    """Return the call of a known operator; its domain rule checks the arguments (and raises Refusal)."""
    size = 1 + REPEATS.get(op, 1) * sum(weight(arg) for arg in args)
    depth = 1 + max((arg.depth if isinstance(arg, Call) else 0 for arg in args), default=0)
    if size > MAX_SQL_SIZE or depth > MAX_DEPTH:
        raise Refusal("this expression is too large")
    return Call(op, args, _result_domain(op, args), size, depth)


def _result_domain(op: str, args: tuple[Expr, ...]) -> ValueDomain:
    """Return the domain of a call: by the operator's rule, and by the rules common to all operators, which
    say whether DuckDB makes an integer of it, and whether it can overflow."""
    # `null` is for the literal NULL alone
    domain = replace(OPERATORS[op].domain(*(arg.domain for arg in args)), null=False)
    if domain.kind is not Kind.NUMBER:
        return domain
    parts = [arg.domain for arg in args if arg.domain.kind is Kind.NUMBER and not _is_null(arg)]
    integer = op in _ALWAYS_INTEGER or op.startswith(("part:", "whole:"))
    integer = integer or (op in _INTEGER_IF_ARGUMENTS_ARE and all(part.integer for part in parts))
    # "number" overflows only as the cast of a text: without an argument that is a number already
    safe = domain.bounded or op not in _OVERFLOWS or (op == "number" and parts != [])
    finite = (
        op in ("clamp", "finite") or op.startswith("whole:") or (safe and all(part.finite for part in parts))
    )
    return replace(domain, integer=integer, finite=finite)


def is_made(node: Expr) -> bool:
    """Return whether all calls in an expression are as `make` builds them."""
    if not isinstance(node, Call):
        return True
    if node.op not in OPERATORS or not all(map(is_made, node.args)):
        return False
    try:
        return make(node.op, *node.args).domain == node.domain
    except (Refusal, TypeError):
        return False


def _is_null(node: Expr) -> bool:
    return isinstance(node, Literal) and node.content is None


def weight(node: Expr) -> int:
    """Return about how many SQL nodes the expression becomes for the engine."""
    return node.weight if isinstance(node, Call) else 1


def walk(node: Expr) -> Iterator[Expr]:
    """Yield the expression and all expressions in it, parents first."""
    yield node
    if isinstance(node, Call):
        for arg in node.args:
            yield from walk(arg)


def sql(node: Expr) -> Node:
    """Return the SQL of an expression for the engine."""
    if isinstance(node, Column):
        return semantics.name(node.name)
    if isinstance(node, Literal):
        return literal(node.content)
    if isinstance(node, Call):
        return OPERATORS[node.op].sql(*(sql(arg) for arg in node.args))
    raise AssertionError("an aggregate's result is not computed by the engine")


def literal(value: Any) -> Node:
    """Return the SQL of a constant; numbers are DOUBLE."""
    if value is None:
        return exp.Null()
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, str):
        return exp.Literal.string(value)
    if isinstance(value, date):
        return semantics.Day(this=value.isoformat())
    return double(value)


def key(node: Expr) -> str:
    """Return the text that identifies an expression in the store of answers, whatever alias it had. Answers
    are found by it: a change of this text makes stored answers unreachable."""
    if isinstance(node, Column):
        # A column may have a name like the key of a call: "+(a, b)".
        return node.name if _PLAIN.fullmatch(node.name) else f"column:{node.name!r}"
    if isinstance(node, Literal):
        return f"{type(node.content).__name__}:{node.content!r}"
    if isinstance(node, OutputReference):
        return f"{node.kind}[{node.index}]"
    # age > 30, 30 < age and age > 30.0 are one condition.
    op, args = (_FLIPPED[node.op], node.args[::-1]) if node.op in _FLIPPED else (node.op, node.args)
    texts = [_compared(arg) if op in _COMPARED else key(arg) for arg in args]
    fixed = 1 if op == "in" else 0
    if op in _UNORDERED:
        texts[fixed:] = sorted(texts[fixed:])
    return f"{op}({', '.join(texts)})"


_FLIPPED = {">": "<", ">=": "<="}
_COMPARED = frozenset({"=", "<>", "<", "<=", "in"})
# operators whose arguments, but for the first of IN, may stand in any order
_UNORDERED = frozenset({"=", "<>", "in", "and", "or"})


def _compared(node: Expr) -> str:
    """Return the key of what is compared: numbers are compared as DOUBLE, however they are written."""
    is_number = isinstance(node, Literal) and type(node.content) in (int, float)
    return f"number:{float(node.content)!r}" if is_number else key(node)  # type: ignore[union-attr]


def value(node: Expr, keys: list[Any], aggregates: list[Any]) -> Any:
    """Compute an expression after aggregation from the released `keys` and `aggregates`, arrays with one
    entry per group; NULL is NaN among numbers and None among texts."""
    if isinstance(node, OutputReference):
        return (keys if node.kind == "key" else aggregates)[node.index]
    if isinstance(node, Literal):
        return _plain(node.content)
    assert isinstance(node, Call)
    function = OPERATORS[node.op].value
    # checked before, by `computable`
    assert function is not None
    return function(*(value(arg, keys, aggregates) for arg in node.args))


def _plain(content: Any) -> Any:
    """Return a literal as numpy computes with it: NULL as NaN, dates and texts as objects."""
    if content is None:
        return np.float64(np.nan)
    if isinstance(content, bool | int | float):
        return np.float64(content)
    if isinstance(content, date):
        return np.array(content.isoformat(), dtype=object)
    return np.array(content, dtype=object)


def computable(node: Expr) -> bool:
    """Return whether `value` can compute an expression after aggregation: it reads no column of the table,
    and all its operators have a computation on released values."""
    return all(not isinstance(n, Call) or OPERATORS[n.op].value is not None for n in walk(node)) and not any(
        isinstance(n, Column) for n in walk(node)
    )


def is_text(node: Expr) -> bool:
    """Return whether the expression is a text."""
    return node.domain.kind is Kind.TEXT
