"""From text to one SELECT statement, or a refusal that says where. Nothing is decided about privacy here."""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from .errors import Node, QueryError, refuse

LONGEST = 20_000  # characters
DEEPEST = 60  # levels of nesting


def parse(text: str) -> exp.Select:
    """The one SELECT that the text holds."""
    if not isinstance(text, str) or not text.strip():
        raise QueryError("the query is empty. Nothing was read or charged. Write SELECT ... FROM ...")
    if "\x00" in text:
        raise QueryError("the query holds a character that is no text. Nothing was read or charged.")
    if len(text) > LONGEST:
        raise QueryError(f"the query has {len(text)} characters, more than {LONGEST}. Nothing was read or charged.")
    if _depth(text) > DEEPEST:
        raise QueryError(f"the query nests deeper than {DEEPEST} levels. Nothing was read or charged.")
    try:
        statements = [s for s in sqlglot.parse(text, dialect="duckdb") if s is not None]
    except SqlglotError as error:
        raise _syntax(error) from None
    except (RecursionError, ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise QueryError("the query cannot be parsed as SQL. Nothing was read or charged.") from None
    if len(statements) != 1:
        raise QueryError(
            f"one statement is answered at a time, and these are {len(statements)}. Nothing was read or charged."
        )
    (statement,) = statements
    if isinstance(statement, exp.SetOperation):
        raise refuse(statement, "UNION, INTERSECT and EXCEPT cannot be answered", "Ask the parts one by one.")
    if not isinstance(statement, exp.Select):
        raise refuse(statement, f"only SELECT can be answered, and this is {_name(statement)}")
    return statement


def _syntax(error: SqlglotError) -> QueryError:
    details = getattr(error, "errors", None) or [{}]
    line, column = details[0].get("line"), details[0].get("col")
    where = f" at line {line}, column {column}" if line else ""
    return QueryError(
        f"the query cannot be parsed as SQL{where}. Nothing was read or charged.", line=line, column=column
    )


def _name(statement: Node) -> str:
    return "a command" if isinstance(statement, exp.Command) else statement.key.upper()


def _depth(text: str) -> int:
    """An upper bound of how deep the parser will have to go: open brackets, and words that nest without brackets."""
    deepest = depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    upper = text.upper()
    return max(deepest, upper.count("CASE"), upper.count(" NOT ") // 4, text.count("- -") // 4)
