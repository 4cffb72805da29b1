"""Defines how a query is refused: where in the text, why, and what to write instead.

Refusals depend on the SQL and on public facts only, never on data.
"""

from __future__ import annotations

from typing import Any

from .._errors import InvalidInput


class QueryError(InvalidInput):
    """The SQL cannot be answered privately, or not at all.

    `line` and `column` (both from 1) are the position in the SQL, or None where it is not known.
    """

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line, self.column = line, column


class Refusal(Exception):
    """Internal: raised where the position in the SQL is not known; `binder.Binder` and `plan.plan` turn it
    into a QueryError."""


# a node of sqlglot's syntax tree, whose classes have moved between its versions
Node = Any


def refuse(node: Node | None, fact: str, advice: str = "") -> QueryError:
    """Return the error that refuses the query at this node of its syntax tree: `fact` is the reason, `advice`
    what to write instead. The error is returned, not raised, so that `raise` is visible at the call."""
    line, column = position(node)
    where = f"line {line}, column {column}: " if line is not None else ""
    return QueryError(
        f"{where}{fact}.{' ' + advice if advice else ''}",
        line=line,
        column=column,
    )


def position(node: Node | None) -> tuple[int | None, int | None]:
    """Return the line and the column of the first character from which a node was parsed; None where they are
    not known."""
    first: tuple[int, int] | None = None
    for part in node.walk() if node is not None else ():
        if "line" in part.meta:
            width = part.meta.get("end", 0) - part.meta.get("start", 0) + 1
            # sqlglot's "col" is the last column of a token
            start = (int(part.meta["line"]), max(1, int(part.meta["col"]) - width + 1))
            first = start if first is None or start < first else first
    return first if first is not None else (None, None)
