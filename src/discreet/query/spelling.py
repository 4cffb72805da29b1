"""Adds a hint to a refusal where a query writes a name, a text or a decimal as another language does: a name
with blanks and without double quotes, a name in single quotes or backticks, 0,5 for 0.5.

The hint follows from the text of the query and the declared names alone, never from data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import sqlglot

from .._public import Public
from .errors import QueryError
from .parse import LONGEST

# a text in single quotes, a name in double quotes, or a name in backticks, as in MySQL
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`""")
# a number with a decimal comma
_COMMA = re.compile(r"(?<![\w.])(\d+),(\d+)(?![\w.])")


def hinted(refusal: QueryError, text: object, public: Public) -> QueryError:
    """Return the refusal with a hint how to write a declared name or a decimal; unchanged if none applies."""
    if not isinstance(text, str) or len(text) > LONGEST:
        return refusal
    name = _find_unquoted(text, [n for n, _ in _declared_columns(public)])
    if name is not None:
        return _with_hint(
            refusal,
            f"Names of columns go in double quotes, where they are not one plain word: {quoted(name)}.",
        )
    name = _keyword(refusal, text, [n for n, _ in _declared_columns(public)])
    if name is not None:
        return _with_hint(
            refusal,
            f"If {name} is the column, put it in double quotes, as it is also a word of SQL: {quoted(name)}.",
        )
    comma = _decimal_comma(refusal, text)
    if comma is not None:
        return _with_hint(refusal, f"Decimals have a point: {comma[1]}.{comma[2]}.")
    return refusal


def plain_or_quoted(name: str) -> str:
    """Return a name as a question may write it: as it is if it is a plain word and no keyword of SQL, else in
    double quotes.

    >>> plain_or_quoted("ward"), plain_or_quoted("limit"), plain_or_quoted("two words")
    ('ward', '"limit"', '"two words"')
    """
    is_word = name.isidentifier() and name.isascii()
    if is_word and sqlglot.tokenize(name, read="duckdb")[0].token_type is sqlglot.TokenType.VAR:
        return name
    return quoted(name)


def quoted(name: str) -> str:
    """Return a name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def _declared_columns(public: Public) -> Iterable[tuple[str, object]]:
    """Yield the columns of all declared tables, each with its declared fact."""
    yield from public.schema
    for related in public.tables:
        yield from related.schema


def _find_unquoted(text: str, names: list[str]) -> str | None:
    """Return a declared name that the text writes without the double quotes that it needs: in single quotes,
    in backticks, or without any quotes though it is no identifier; None if there is none."""
    by_lower = {name.lower(): name for name in names}
    for part in _QUOTED.findall(text):
        content = part[1:-1].lower()
        if part[0] != '"' and content in by_lower:
            return by_lower[content]
    bare = _QUOTED.sub(" '' ", text)
    # the longest first: one name may be the start of another
    for name in sorted((n for n in names if not n.isidentifier() and n.strip()), key=len, reverse=True):
        words = r"\s+".join(map(re.escape, name.split()))
        if re.search(rf"(?<!\w){words}(?!\w)", bare, re.IGNORECASE):
            return name
    return None


def _keyword(refusal: QueryError, text: str, names: list[str]) -> str | None:
    """Return the declared name at which the text could not be parsed, as it is also a word of SQL, such as
    Alter, Order or Group; None if there is none."""
    offset = _offset(refusal, text)
    if offset is None or "cannot be parsed" not in str(refusal):
        return None
    by_lower = {name.lower(): name for name in names}
    word = next((m[0] for m in re.finditer(r"[^\W\d]\w*", text) if m.start() <= offset < m.end()), "")
    return by_lower.get(word.lower())


def _offset(refusal: QueryError, text: str) -> int | None:
    """Return the position in the text that the refusal names by line and column; None if it names none."""
    if refusal.line is None or refusal.column is None:
        return None
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: refusal.line - 1]) + refusal.column - 1


def _decimal_comma(refusal: QueryError, text: str) -> re.Match[str] | None:
    """Return the number with a decimal comma at the position that the refusal names; None if there is
    none."""
    start = _offset(refusal, text)
    if start is None:
        return None
    return next((m for m in _COMMA.finditer(text) if m.start() <= start <= m.end()), None)


def _with_hint(refusal: QueryError, hint: str) -> QueryError:
    return QueryError(f"{refusal} {hint}", line=refusal.line, column=refusal.column)
