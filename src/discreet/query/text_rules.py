"""Defines the domain rules of text functions: which texts a result can be. If the argument is a column of
declared categories, all results are computed beforehand and listed, so that groups of them are public;
otherwise the result is any text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..tables.texts import engine_values
from .domain import Kind, ValueDomain, boolean, number, text
from .errors import Refusal
from .rules import Rule, any_null, is_fixed

# The most characters of a result of || and REPLACE: without a limit, one row's text could be too long for the
# engine, and the query would fail on it. It is also the largest number in SUBSTRING. Not tuned.
LONGEST = 10_000
# The most characters of what REPLACE looks for, and of what it puts in: a text of LONGEST characters grows to
# a megabyte at most, before it is cut off.
LONGEST_FIXED_TEXT = 100
# The most results of || that are listed; if there are more, the result is any text. Not tuned.
_MAX_TEXTS = 10_000


def like(a: ValueDomain, pattern: ValueDomain) -> ValueDomain:
    """Return the domain of LIKE and ILIKE: true or false, and NULL where the text is NULL."""
    a.need(Kind.TEXT, "LIKE")
    pattern.need(Kind.TEXT, "LIKE")
    return boolean(a.nullable)


def engine_function(function: str) -> Rule:
    """Return the rule of a text function of one argument, which the engine itself evaluates on the declared
    categories: Python's result could differ (UPPER of a German ß), and the group would lose its rows.
    """

    def rule(a: ValueDomain) -> ValueDomain:
        a.need(Kind.TEXT, function.upper())
        if a.values is None:
            return text(nullable=a.nullable)
        return text(tuple(dict.fromkeys(engine_values(function, a.values))), nullable=a.nullable)

    return rule


def fixed_text(a: ValueDomain, what: str, longest: int = LONGEST) -> str:
    """Return the text of a literal; refuse any other expression, and a text of more than `longest`
    characters."""
    if (
        a.kind is not Kind.TEXT
        or a.values is None
        or len(a.values) != 1
        or a.nullable
        or len(a.values[0]) > longest
    ):
        raise Refusal(f"{what} needs fixed texts of at most {longest:,} characters")
    value: str = a.values[0]
    return value


def replace_text(a: ValueDomain, old: ValueDomain, new: ValueDomain) -> ValueDomain:
    """Return the domain of REPLACE(a, old, new) with fixed texts; `a` and the result are cut off at
    LONGEST."""
    a.need(Kind.TEXT, "REPLACE")
    parts = fixed_text(old, "REPLACE", LONGEST_FIXED_TEXT), fixed_text(new, "REPLACE", LONGEST_FIXED_TEXT)
    if a.values is None:
        return text(nullable=a.nullable)
    cut = tuple(value[:LONGEST] for value in a.values)
    texts = (value[:LONGEST] for value in engine_values("replace", cut, *parts))
    return text(tuple(dict.fromkeys(texts)), nullable=a.nullable)


def python_function(function: Callable[..., Any], what: str) -> Rule:
    """Return the rule of a text function whose further arguments are fixed whole numbers, the first of them a
    start of at least 1; `function` evaluates it in Python on the declared categories."""

    def rule(a: ValueDomain, *numbers: ValueDomain) -> ValueDomain:
        a.need(Kind.TEXT, what)
        if not all(is_fixed(arg) and arg.integral and 0 <= arg.low <= LONGEST for arg in numbers) or any(
            start.low < 1 for start in numbers[:1]
        ):
            raise Refusal(f"{what} needs fixed whole numbers up to {LONGEST:,}, a start of at least 1")
        fixed = [int(arg.low) for arg in numbers]
        if a.values is None:
            return text(nullable=a.nullable)
        return text(tuple(dict.fromkeys(function(value, *fixed) for value in a.values)), nullable=a.nullable)

    return rule


def concat(*args: ValueDomain) -> ValueDomain:
    """Return the domain of ||: all combinations of declared categories, if they are at most _MAX_TEXTS."""
    for arg in args:
        arg.need(Kind.TEXT, "||")
    results: tuple[str, ...] | None = ("",)
    for arg in args:
        if results is None or arg.values is None or len(results) * len(arg.values) > _MAX_TEXTS:
            results = None
        else:
            results = tuple(dict.fromkeys((a + b)[:LONGEST] for a in results for b in arg.values))
    return text(results, nullable=any_null(*args))


def length(a: ValueDomain) -> ValueDomain:
    """Return the domain of LENGTH."""
    a.need(Kind.TEXT, "LENGTH")
    if a.values is None:
        return number(0, math.inf, integral=True, nullable=a.nullable)
    sizes = [len(value) for value in a.values]
    return number(min(sizes), max(sizes), integral=True, nullable=a.nullable)
