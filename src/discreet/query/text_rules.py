"""Defines the domain rules of text functions: of declared categories the results are known too; otherwise
they are any text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..tables import engine_values
from .domain import Kind, ValueDomain, boolean, number, text
from .errors import Refusal
from .rules import Rule, any_null, is_fixed

# characters that SUBSTRING and || can make, so that no text of anyone's is too much for the engine
LONGEST = 10_000
# characters of what REPLACE puts in: a text of LONGEST characters grows to a megabyte at most
LONGEST_REPLACEMENT = 100
# Texts that || of declared categories lists; beyond, the result is any text. Not tuned.
_MAX_TEXTS = 10_000


def like(a: ValueDomain, pattern: ValueDomain) -> ValueDomain:
    """Return the domain of LIKE and ILIKE: true or false, missing where the text is."""
    a.need(Kind.TEXT, "LIKE")
    pattern.need(Kind.TEXT, "LIKE")
    return boolean(a.nullable)


def engine_function(function: str) -> Rule:
    """Return the rule of a text function of one argument that the engine evaluates on declared categories.

    Evaluated here instead, a result could differ from the engine's, and groups would lose rows.
    """

    def rule(a: ValueDomain) -> ValueDomain:
        a.need(Kind.TEXT, function.upper())
        if a.values is None:
            return text(nullable=a.nullable)
        return text(tuple(dict.fromkeys(engine_values(function, a.values))), nullable=a.nullable)

    return rule


def fixed_text(a: ValueDomain, what: str, longest: int = LONGEST) -> str:
    """Return the text of a literal; refuse anything else, and a longer one."""
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
    """Return the domain of REPLACE of fixed texts."""
    a.need(Kind.TEXT, "REPLACE")
    parts = fixed_text(old, "REPLACE", LONGEST_REPLACEMENT), fixed_text(new, "REPLACE", LONGEST_REPLACEMENT)
    if a.values is None:
        return text(nullable=a.nullable)
    cut = tuple(value[:LONGEST] for value in a.values)
    texts = (value[:LONGEST] for value in engine_values("replace", cut, *parts))
    return text(tuple(dict.fromkeys(texts)), nullable=a.nullable)


def python_function(function: Callable[..., Any], what: str) -> Rule:
    """Return the rule of a text function with fixed whole numbers, which `function` evaluates on declared
    categories."""

    def rule(a: ValueDomain, *rest: ValueDomain) -> ValueDomain:
        a.need(Kind.TEXT, what)
        if not all(is_fixed(arg) and arg.integral and 0 <= arg.low <= LONGEST for arg in rest) or any(
            start.low < 1 for start in rest[:1]
        ):
            raise Refusal(f"{what} needs fixed whole numbers up to {LONGEST:,}, a start of at least 1")
        fixed = [int(arg.low) for arg in rest]
        if a.values is None:
            return text(nullable=a.nullable)
        return text(tuple(dict.fromkeys(function(value, *fixed) for value in a.values)), nullable=a.nullable)

    return rule


def concat(*args: ValueDomain) -> ValueDomain:
    """Return the domain of ||: all combinations of declared categories, where they are few."""
    for arg in args:
        arg.need(Kind.TEXT, "||")
    total: tuple[str, ...] | None = ("",)
    for arg in args:
        if total is None or arg.values is None or len(total) * len(arg.values) > _MAX_TEXTS:
            total = None
        else:
            total = tuple(dict.fromkeys((a + b)[:LONGEST] for a in total for b in arg.values))
    return text(total, nullable=any_null(*args))


def length(a: ValueDomain) -> ValueDomain:
    """Return the domain of LENGTH."""
    a.need(Kind.TEXT, "LENGTH")
    if a.values is None:
        return number(0, math.inf, integral=True, nullable=a.nullable)
    sizes = [len(value) for value in a.values]
    return number(min(sizes), max(sizes), integral=True, nullable=a.nullable)
