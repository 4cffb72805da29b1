"""Parses text to one SELECT statement, or refuses it with the line and column of the fault.

Nothing is decided about privacy here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from .._require import did_you_mean
from .._text import is_text
from .advice import FUNCTIONS
from .errors import Node, QueryError, refuse

# The longest query that is parsed, in characters. It bounds the time of planning. Not tuned.
LONGEST = 20_000
# The deepest query that is parsed, in levels of nesting as `_depth` estimates them: parser and planner call
# themselves at every level. Not tuned.
DEEPEST = 60


def parse(text: str) -> exp.Select:
    """Return the one SELECT statement that the text holds; refuse everything else with a `QueryError`."""
    if not isinstance(text, str) or not text.strip():
        raise QueryError("the query is empty. Nothing was read or charged. Write SELECT ... FROM ...")
    if not is_text(text):
        raise QueryError(
            "the query holds a character that is no text (a NUL, or half a surrogate pair). Nothing was read "
            "or charged."
        )
    if len(text) > LONGEST:
        raise QueryError(
            f"the query has {len(text)} characters, more than {LONGEST}. Nothing was read or charged."
        )
    if _depth(text) > DEEPEST:
        raise QueryError(f"the query nests deeper than {DEEPEST} levels. Nothing was read or charged.")
    try:
        parsed = sqlglot.parse(text, dialect="duckdb")
        # a comment after the last ; comes as a statement of its own
        statements = [s for s in parsed if s is not None and not isinstance(s, exp.Semicolon)]
    except SqlglotError as error:
        raise _syntax(error, text) from None
    except (RecursionError, ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise QueryError("the query cannot be parsed as SQL. Nothing was read or charged.") from None
    if len(statements) != 1:
        raise QueryError(
            f"one statement is answered at a time, and these are {len(statements)}. Nothing was read "
            f"or charged."
        )
    (statement,) = statements
    if isinstance(statement, exp.SetOperation):
        raise refuse(statement, "UNION, INTERSECT and EXCEPT cannot be answered", "Ask the parts one by one.")
    if not isinstance(statement, exp.Select):
        raise refuse(statement, f"only SELECT can be answered, and this is {_name(statement)}")
    return statement


@contextmanager
def deep_nesting_refused() -> Iterator[None]:
    """Turn a RecursionError, in a block or a function that works on a syntax tree, into a refusal."""
    try:
        yield
    except RecursionError:
        raise QueryError("the query nests too deep. Nothing was read or charged.") from None


# What a misspelled word is compared with: at the start of a query, and elsewhere.
_STARTS = ("SELECT", "WITH")
_KEYWORDS = (
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "BY",
    "HAVING",
    "ORDER",
    "LIMIT",
    "JOIN",
    "AND",
    "OR",
    "NOT",
    "AS",
    "WITH",
)


def _syntax(error: SqlglotError, text: str) -> QueryError:
    """Return the error that says where sqlglot could not go on and which word stands there; for a misspelled
    keyword it proposes the right one.

    Suspected of a misspelling are the first word of the query, unless it is SELECT or WITH, and the last two
    words up to the fault.
    """
    details: dict[str, Any] = (getattr(error, "errors", None) or [{}])[0]
    offset = _offset(details, text)
    words = [(m.start(), m.group()) for m in re.finditer(r"[^\W\d]\w*", text)]
    first = words[0] if words else (0, "")
    suspects = [first] if first[1].upper() not in _STARTS else []
    suspects += [word for word in words if word[0] <= offset][-2:]
    for position, word in suspects:
        is_keyword = word.upper() in _KEYWORDS or word.upper() in FUNCTIONS
        proposal = "" if is_keyword else did_you_mean(word, _STARTS if position == first[0] else _KEYWORDS)
        if proposal:
            return _at(text, position, f"{word[:40]!r} is not understood.{proposal}")
    # `details` has the faulty word as "highlight", and what sqlglot wanted there, such as "Expecting )".
    highlight = str(details.get("highlight") or "")[:40]
    description = str(details.get("description") or "")
    expected = f", where {description.lower()}" if description.startswith("Expecting") else ""
    return _at(
        text,
        offset,
        f"{highlight!r} is not understood here{expected}." if highlight else "the text ends too early.",
    )


def _offset(details: dict[str, Any], text: str) -> int:
    """Return the position in the text where the fault begins; sqlglot gives the end of the faulty word."""
    line, column = details.get("line"), details.get("col")
    if not line or column is None:
        return len(text)
    start = sum(len(part) + 1 for part in text.split("\n")[: line - 1])
    return max(0, int(start + column - max(1, len(str(details.get("highlight") or "")))))


def _at(text: str, offset: int, fact: str) -> QueryError:
    """Return the error for a text that cannot be parsed, with its line and column."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return QueryError(
        f"line {line}, column {column}: the query cannot be parsed as SQL: {fact} Nothing was read "
        f"or charged.",
        line=line,
        column=column,
    )


def _name(statement: Node) -> str:
    """Return what a statement is called in messages, such as INSERT."""
    return "a command" if isinstance(statement, exp.Command) else statement.key.upper()


def _depth(text: str) -> int:
    """Estimate how deep the parser will have to go: open brackets, and words that nest without brackets.

    It is no bound: brackets in a string count, too, and chains such as a::INT::INT ... do not. A query that
    nests deeper than estimated ends in a RecursionError, which `parse`, `deep_nesting_refused` and the
    planner turn into a refusal. The numbers of NOT and of "- -" are divided by 4 (not tuned), because most of
    them do not nest.
    """
    deepest = depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    upper = text.upper()
    return max(deepest, upper.count("CASE"), upper.count(" NOT ") // 4, text.count("- -") // 4)
