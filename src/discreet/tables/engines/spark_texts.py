"""Writes the nodes of the closed set (`tables.semantics`, imported as `d`) on texts and days in Spark's
SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.generator import Generator

from .. import semantics as d
from ..dialect import Writer, argument, template
from ..texts import letter_cases

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
# The characters that DuckDB's TRIM removes: the space separators of Unicode (category Zs), as code points.
_BLANKS = "".join(map(chr, (0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)))


# An argument of at most so many characters is repeated where it is used twice; Spark computes equal
# expressions once. Longer ones would make nested texts double with every level. The number is chosen by hand,
# not tuned.
_SHORT = 64


def once(value: str, body: Callable[[str], str]) -> str:
    """Return `body(value)`, where `body` may use the SQL text `value` several times. A long text is written
    once and bound to a lambda's variable."""
    if len(value) <= _SHORT:
        return body(value)
    return f"TRANSFORM(ARRAY({value}), __x -> {body('__x')})[0]"


def repeating(body: Callable[[str], str]) -> Writer:
    """Return a writer of a node with one argument, which `body` may use several times."""
    return lambda g, node: once(argument(g, node, "this"), body)


def text_of(g: Generator, value: str) -> str:
    """Return the SQL literal of a text."""
    return g.sql(exp.Literal.string(value))


def _matches(g: Generator, node: Any) -> str:
    """Match a pattern of LIKE, as a regular expression.

    Spark's LIKE tries all ways to place each %. Here every part between two % is matched at its first
    possible position and never moved (an atomic group). That finds a match if there is one, in time linear in
    the text's length. Patterns without _ use Spark's functions for prefixes, suffixes and substrings where
    they can.
    """
    text, pattern = argument(g, node, "this"), node.args["pattern"].name
    parts = pattern.split("%")
    first, last, middle = parts[0], parts[-1], [part for part in parts[1:-1] if part]
    if "_" not in pattern:
        if len(parts) == 1:
            return f"({text} = {text_of(g, pattern)})"
        if not middle and not first:
            return f"ENDSWITH({text}, {text_of(g, last)})"
        if not middle and not last:
            return f"STARTSWITH({text}, {text_of(g, first)})"
        if len(middle) == 1 and not first and not last:
            return f"CONTAINS({text}, {text_of(g, middle[0])})"
    inner = "".join(f"(?>.*?{_regex(part)})" for part in middle)
    end = "" if len(parts) == 1 else f".*{_regex(last)}"
    expression = rf"(?s)\A{_regex(first)}{inner}{end}\z"
    return f"({text} RLIKE {text_of(g, expression)})"


def _regex(part: str) -> str:
    """Return the regular expression of a part of a LIKE pattern that holds no %."""
    return "".join(
        "." if c == "_" else c if c.isascii() and c.isalnum() else rf"\x{{{ord(c):x}}}" for c in part
    )


def _case(*, upper: bool) -> Writer:
    """Return the writer of UPPER or LOWER, by DuckDB's pairs of characters.

    Spark's UPPER makes two characters of some. The public categories of a query are converted by DuckDB
    (`tables.texts`), and the texts of rows must be converted in the same way.
    """

    def write(g: Generator, node: Any) -> str:
        old, new = (text_of(g, part) for part in letter_cases(upper=upper))
        return f"TRANSLATE({argument(g, node, 'this')}, {old}, {new})"

    return write


def _trim(g: Generator, node: Any) -> str:
    return f"TRIM(BOTH {text_of(g, _BLANKS)} FROM {argument(g, node, 'this')})"


def _substring(g: Generator, node: Any) -> str:
    """Write a substring. Where `start` is below 1, the positions before the first character count towards
    `length` and give nothing."""
    text, start = argument(g, node, "this"), f"CAST({argument(g, node, 'start')} AS BIGINT)"
    begin = f"CAST(GREATEST({start}, 1) AS INT)"
    if not node.args.get("length"):
        return f"SUBSTRING({text}, {begin})"
    length = f"CAST({argument(g, node, 'length')} AS BIGINT)"
    return f"SUBSTRING({text}, {begin}, CAST(GREATEST(LEAST({length}, {length} + {start} - 1), 0) AS INT))"


def _date_part(g: Generator, node: Any) -> str:
    """Write a part of a date as a double."""
    day = argument(g, node, "this")
    parts = {
        "year": f"YEAR({day})",
        "quarter": f"QUARTER({day})",
        "month": f"MONTH({day})",
        "day": f"DAY({day})",
        "week": f"WEEKOFYEAR({day})",
        "dow": f"(DAYOFWEEK({day}) - 1)",
        "isodow": f"(WEEKDAY({day}) + 1)",
        "doy": f"DAYOFYEAR({day})",
    }
    return f"CAST({parts[node.args['part']]} AS DOUBLE)"


def _start_of(g: Generator, node: Any) -> str:
    day, unit = argument(g, node, "this"), node.args["unit"]
    units = {"year": "YEAR", "quarter": "QUARTER", "month": "MONTH", "week": "WEEK", "day": None}
    return f"CAST({day} AS DATE)" if units[unit] is None else f"TRUNC({day}, '{units[unit]}')"


def _named(function: str, names: tuple[str, ...]) -> Writer:
    """Return the writer of a day's or month's name: Spark's `function` numbers it from 1 in the order of
    `names`."""

    def write(g: Generator, node: Any) -> str:
        return _name_of(g, function, argument(g, node, "this"), names)

    return write


def _name_of(g: Generator, function: str, day: str, names: tuple[str, ...]) -> str:
    return f"ELT({function}({day}), {', '.join(text_of(g, name) for name in names)})"


def _padded(text: str, width: int) -> str:
    return f"LPAD(CAST({text} AS STRING), {width}, '0')"


def _short(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name[:3] for name in names)


def _day_text(g: Generator, node: Any) -> str:
    """Write a day in a format of strftime. A directive that is not listed raises KeyError, which
    `Dialect.write` turns into a refusal before anything is charged."""
    layout = node.args["format"].name
    return once(argument(g, node, "this"), lambda day: _formatted(g, layout, day))


def _formatted(g: Generator, layout: str, day: str) -> str:
    """Write the SQL text `day` in the format `layout`."""
    parts: list[str] = []
    # The characters since the last directive.
    pending = ""
    directives = {
        "Y": _padded(f"YEAR({day})", 4),
        "y": _padded(f"YEAR({day}) % 100", 2),
        "m": _padded(f"MONTH({day})", 2),
        "-m": f"CAST(MONTH({day}) AS STRING)",
        "d": _padded(f"DAY({day})", 2),
        "-d": f"CAST(DAY({day}) AS STRING)",
        "j": _padded(f"DAYOFYEAR({day})", 3),
        "-j": f"CAST(DAYOFYEAR({day}) AS STRING)",
        "A": _name_of(g, "DAYOFWEEK", day, _DAYS),
        "B": _name_of(g, "MONTH", day, _MONTHS),
        "a": _name_of(g, "DAYOFWEEK", day, _short(_DAYS)),
        "b": _name_of(g, "MONTH", day, _short(_MONTHS)),
        "u": f"CAST(WEEKDAY({day}) + 1 AS STRING)",
        "w": f"CAST(DAYOFWEEK({day}) - 1 AS STRING)",
    }
    position = 0
    while position < len(layout):
        if layout[position] != "%":
            pending, position = pending + layout[position], position + 1
            continue
        directive = (
            layout[position + 1 : position + 3]
            if layout[position + 1 : position + 2] == "-"
            else layout[position + 1 : position + 2]
        )
        position += 1 + len(directive)
        if directive == "%":
            pending += "%"
            continue
        parts += [*([text_of(g, pending)] if pending else []), directives[directive]]
        pending = ""
    parts += [text_of(g, pending)] if pending or not parts else []
    return f"CASE WHEN NOT {day} IS NULL THEN CONCAT({', '.join(parts)}) END"


TEXTS_AND_DAYS: Mapping[type[exp.Expression], Writer] = {
    d.Matches: _matches,
    d.UpperCase: _case(upper=True),
    d.LowerCase: _case(upper=False),
    d.Trim: _trim,
    d.Substring: _substring,
    d.Concat: template("SUBSTRING(CONCAT({this}, {expression}), 1, {max_length})"),
    d.Replace: template(
        "SUBSTRING(REPLACE(SUBSTRING({this}, 1, {max_length}), {old}, {new}), 1, {max_length})"
    ),
    d.Length: template("CAST(CHAR_LENGTH({this}) AS DOUBLE)"),
    d.DaysBetween: template("CAST(DATEDIFF({this}, {expression}) AS DOUBLE)"),
    d.AddDays: template("DATE_ADD({this}, CAST({expression} AS INT))"),
    # NULL beyond 240,000 months (20,000 years), where Spark could fail on a day; callers ask for fewer.
    d.AddMonths: template(
        "CASE WHEN {expression} BETWEEN -240000.0D AND 240000.0D "
        "THEN ADD_MONTHS({this}, CAST({expression} AS INT)) END"
    ),
    d.DatePart: _date_part,
    d.StartOf: _start_of,
    d.DayText: _day_text,
    d.DayName: _named("DAYOFWEEK", _DAYS),
    d.MonthName: _named("MONTH", _MONTHS),
}
