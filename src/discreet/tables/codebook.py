"""Rewrites the texts of a column while they are read, as its codebook in the schema file says
(`files.Codebook`).

What a text becomes depends on that text alone, by operations of the closed set (`semantics`) that fail on
none: a row decides nothing about another one. So whatever holds for a question about the table, for its unit
and its limits, holds for the table as it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlglot import exp

from .._errors import InvalidInput
from . import semantics
from .dialect import Dialect
from .files import Codebook

# A character that texts do not have: it marks the two ends of a number, where `strip` takes something off.
_END = "\x01"
# Longer texts are no numbers on any engine (`semantics.LONGEST_NUMBER`).
_LONGEST = 500


def stages(name: str, book: Codebook) -> Iterator[tuple[str, Any]]:
    """Yield the name of each stage in which a column is read, and the node of the column after it."""
    column: Any = semantics.name(name)
    if book.trim:
        column = semantics.Trim(this=column)
        yield "trim", column
    if book.same:
        column = _cases(column, book.same, column)
        yield "same", column
    if book.true or book.false:
        words = dict.fromkeys(semantics.engine_values("lower", book.true), "true")
        words |= dict.fromkeys(semantics.engine_values("lower", book.false), "false")
        column = _cases(semantics.LowerCase(this=semantics.Trim(this=column)), words, column)
        yield "true, false", column
    if book.numeric:
        column = _cases(column, {code: code for code in book.codes}, _number(column, book))
        yield "numbers", column


def select_list(
    names: Sequence[str], books: Mapping[str, Codebook], kinds: Mapping[str, str], dialect: Dialect
) -> list[str]:
    """Return the SQL that reads each column of a table, in their order; refuse a codebook for a column that
    is no text. `kinds` are those of the columns as they are stored."""
    texts = [name for name in names if name in books and kinds[name] == "text"]
    if wrong := [name for name in books if name in names and not (name in texts or books[name].for_all)]:
        raise InvalidInput(
            f"column {wrong[0]!r} has a codebook in the schema file (trim, same, true, false, decimal, "
            f"thousands or strip), and its values are no texts, which alone are rewritten. Take it out there."
        )
    nodes = [
        list(stages(name, books[name]))[-1][1] if name in texts else semantics.name(name) for name in names
    ]
    return [dialect.write(semantics.aliased(node, name)) for node, name in zip(nodes, names, strict=True)]


def _number(text: Any, book: Codebook) -> Any:
    """Write a number with a decimal point, and nothing around it."""
    if book.strip:
        text = _concat(_concat(_text(_END), semantics.Trim(this=text)), _text(_END))
        # The longer ones first: of "EURO", "EUR" would leave a letter.
        for mark in sorted(book.strip, key=len, reverse=True):
            text = _replaced(_replaced(text, _END + mark, _END), mark + _END, _END)
        text = semantics.Trim(this=_replaced(text, _END, ""))
    if book.thousands:
        text = _replaced(text, book.thousands, "")
    return text if book.decimal == "." else _replaced(text, book.decimal, ".")


def _cases(compared: Any, values: Mapping[str, str], otherwise: Any) -> Any:
    """Write, for a text that is one of the keys of `values`, the value; for another one, `otherwise`."""
    if not values:
        return otherwise
    ifs = [
        exp.If(this=exp.EQ(this=compared.copy(), expression=_text(old)), true=_text(new))
        for old, new in values.items()
    ]
    return exp.Case(ifs=ifs, default=otherwise.copy())


def _text(value: str) -> Any:
    return exp.Literal.string(value)


def _concat(first: Any, second: Any) -> Any:
    return semantics.Concat(this=first, expression=second, max_length=_LONGEST)


def _replaced(text: Any, old: str, new: str) -> Any:
    return semantics.Replace(this=text, old=_text(old), new=_text(new), max_length=_LONGEST)
