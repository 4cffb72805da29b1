"""Defines how a query is refused: where in the text, why, and what to write instead.

No engine, no data is ever involved.
"""

from __future__ import annotations

from typing import Any

from .._errors import InvalidInput


class QueryError(InvalidInput):
    """The SQL cannot be answered privately, or not at all.

    `line` and `column` (from 1) say where, if known.
    """

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line, self.column = line, column


class Refusal(Exception):
    """Internal: raised where the text's position is not known, and turned into a QueryError by the caller
    that knows it."""


# a node of sqlglot's syntax tree, whose classes have moved between its versions
Node = Any


def refuse(node: Node | None, fact: str, advice: str = "") -> QueryError:
    """Return the refusal of the query at this node of its syntax tree; returned, so that `raise` stays
    visible at the call."""
    line, column = position(node)
    where = f"line {line}, column {column}: " if line is not None else ""
    return QueryError(
        f"{where}{fact}. Nothing was read or charged.{' ' + advice if advice else ''}",
        line=line,
        column=column,
    )


def position(node: Node | None) -> tuple[int | None, int | None]:
    """Return the line and the column of the first character of what a node was parsed from."""
    best: tuple[int, int] | None = None
    for part in node.walk() if node is not None else ():
        if "line" in part.meta:
            width = part.meta.get("end", 0) - part.meta.get("start", 0) + 1
            place = (int(part.meta["line"]), max(1, int(part.meta["col"]) - width + 1))
            best = place if best is None or place < best else best
    return best if best is not None else (None, None)
