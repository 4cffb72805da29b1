"""`discreet init --interactive`: the questions of a drafted schema, asked one by one in the terminal.

Nothing is read off the data: who answers says what is known about the study.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import typer

from ... import _require, tables
from ..._errors import InvalidInput
from ...tables import Format

KINDS = ("number", "categories", "date", "boolean", "text", "none")
_COLUMN = re.compile(r"^#? ?\[columns\.(?P<name>.+)\]$")
_TYPE = re.compile(r'^#? ?type = "(?P<type>\w+)"')
_EXAMPLE = re.compile(r"For example, (?P<text>[^.]+)\.")


def complete(draft: str) -> str:
    """Return the schema file that the answers to a draft's questions make; asked again until it is valid.

    Whoever ends early is told that nothing was written: half a declaration would say less than was meant.
    """
    try:
        return _ask_all(draft)
    except (typer.Abort, EOFError, KeyboardInterrupt):
        raise InvalidInput(
            "the questions were ended before the last answer. Nothing was written. Begin again, or take the "
            "draft without --interactive and answer it in an editor."
        ) from None


def _ask_all(draft: str) -> str:
    """Ask all questions, and return the schema file they make."""
    columns = list(_columns(draft))
    if not columns:
        raise InvalidInput("the table has no columns to ask about. Nothing was drafted.")
    typer.echo(
        "Answer from what is known about the study, not from the data. Return takes what is in brackets."
    )
    top, sections = [_head(draft)], list[str]()
    unit = _unit([name for name, _, _ in columns])
    (sections if unit.startswith("[") else top).append(unit)
    size = _ask_until(
        "About how many people are there, if everybody may know? (0: it is not public)", str.isdigit, "0"
    )
    top += [f"size = {int(size)}"] if int(size) else []
    if "[format]" in draft:
        sections.append(_format(re.search(r"^delimiter = .*$", draft, re.M)))
    sections += [_facts(name, guess, example) for name, guess, example in columns]
    text = "\n".join(top) + "\n\n" + "\n\n".join(sections) + "\n"
    # what cannot be true together (bounds the wrong way round) is refused here, before a file is written
    tables.load(text)
    return text


def _head(draft: str) -> str:
    facts = (line for line in draft.splitlines() if re.match(r"(table|version|neighbors) =", line))
    lines = [line.split(" #")[0].rstrip() for line in facts]
    return "\n".join(["# Public facts, as they were answered; no value was read.", *lines])


def _columns(draft: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each column as TOML has it, what it seems to be, and an example of bounds."""
    lines = draft.splitlines()
    for index, line in enumerate(lines):
        match = _COLUMN.match(line)
        if match is None:
            continue
        kind = next((m["type"] for m in map(_TYPE.match, lines[index + 1 : index + 3]) if m), "text")
        example = _EXAMPLE.search(lines[index - 1]) if index else None
        yield match["name"], kind, "" if example is None else example["text"]


def _unit(names: list[str]) -> str:
    """Ask whom the table protects, and return the lines of the unit."""
    typer.echo(f"Columns: {', '.join(names)}")
    several = typer.confirm("Can one person (or household) have several rows?", default=True)
    if not several:
        return 'unit = "row"'
    columns = [_unquoted(name) for name in names]
    column = _ask_until(
        "Which column tells people apart?",
        lambda text: _unquoted(text) in columns,
        hint=lambda text: (
            _require.did_you_mean(_unquoted(text), columns) or f" It is one of: {', '.join(columns)}."
        ),
    )
    rows = _number("How many rows of one person may count in one group of an answer?", 10)
    groups = _number("In how many groups may one person count?", 3)
    name = json.dumps(_unquoted(column), ensure_ascii=False)
    return f"[unit]\ncolumn = {name}\nrows = {rows}\ngroups = {groups}"


def _unquoted(name: str) -> str:
    """Return a column's name without the quotes that TOML has around it."""
    try:
        return str(json.loads(name)) if name.startswith('"') else name
    except ValueError:
        return name.strip('"')


def _format(delimiter: Any) -> str:
    """Ask for decimal mark and formats of dates, and return the lines of the file's format."""
    decimal = _ask_until(
        "Decimal mark of numbers in the file",
        lambda text: text in (".", ","),
        ".",
        hint=" It is . or , (a point or a comma).",
    )
    dates = _ask_until(
        "Formats of dates, such as %d.%m.%Y, parted by commas (empty: 2020-01-31)",
        _are_dates,
        "",
        hint=" A format has %d, %m and %Y where day, month and year are: %d.%m.%Y for 31.01.2020.",
    )
    lines = ["[format]"] if delimiter is None else ["[format]", delimiter.group()]
    lines += [f"decimal = {json.dumps(decimal.strip())}"] if decimal.strip() != "." else []
    formats = [part.strip() for part in dates.split(",") if part.strip()]
    lines += [f"dates = {json.dumps(formats)}"] if formats else []
    return "\n".join(lines)


def _facts(name: str, guess: str, example: str) -> str:
    """Return the lines of one column; none where it stays out of queries."""
    usual = guess if guess in KINDS else "text"
    kind = _ask_until(
        f"{name}: what is it? ({', '.join(KINDS)})",
        lambda text: text in KINDS,
        usual,
        hint=" Write one of these words; none: it stays out of queries.",
    )
    if kind == "none":
        return f"# {name} is in no query."
    lines = [f"[columns.{name}]", f'type = "{kind}"']
    hint = f", for example {example}" if example else ""
    if kind in ("number", "date"):
        lower = _bound(f"  Least value that it can have{hint}", kind)
        upper = _bound("  Largest value that it can have", kind)
        lines += [f"lower = {lower}", f"upper = {upper}"]
    if kind == "categories":
        lines.append("values = " + json.dumps(_values(), ensure_ascii=False))
    if kind in ("number", "date", "boolean"):
        missing = typer.confirm("  Can it be missing?", default=True)
        lines.append(f"nullable = {str(missing).lower()}")
    return "\n".join(lines)


def _values() -> list[str]:
    """Ask for the values of categories; what looks like several that are parted otherwise is asked back."""
    while True:
        text = _ask_until(
            "  All its values, parted by commas (as they stand in the file)",
            lambda text: any(part.strip() for part in text.split(",")),
            hint=" Name one value at least.",
        )
        values = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        mark = next((mark for mark in ";|" if len(values) == 1 and mark in values[0]), None)
        if mark is None or typer.confirm(
            f"  {values[0]!r} is one value, with {mark!r} in it: values are parted by commas. Is that meant?",
            default=False,
        ):
            return values


def _are_dates(text: str) -> bool:
    """Return whether these are formats of dates: a day, a month and a year, each of which can be written."""
    formats = [part.strip() for part in text.split(",") if part.strip()]
    years, months, days = (("%Y", "%y"), ("%m", "%b", "%B", "%-m"), ("%d", "%-d"))
    is_complete = all(
        all(any(mark in text_format for mark in marks) for marks in (years, months, days))
        for text_format in formats
    )
    try:
        Format(dates=tuple(formats))
    except InvalidInput:
        return False
    return is_complete


def _bound(question: str, kind: str) -> str:
    pattern = r"-?\d+(\.\d+)?([eE][-+]?\d+)?" if kind == "number" else r"\d{4}-\d{2}-\d{2}"
    hint = " A number, such as 12.5." if kind == "number" else " A day, such as 2020-01-31."
    text = _ask_until(question, lambda text: re.fullmatch(pattern, text) is not None, hint=hint)
    return text if kind == "number" else json.dumps(text)


def _number(question: str, usual: int) -> int:
    return int(_ask_until(question, lambda text: text.isdigit() and int(text) > 0, str(usual)))


def _ask_until(
    question: str, valid: Any, default: str | None = None, *, hint: str | Callable[[str], str] = ""
) -> str:
    """Ask until the answer is valid; `hint` says what is wanted, with a blank before it."""
    while True:
        text = str(typer.prompt(question, default=default)).strip()
        if valid(text):
            return text
        advice = hint if isinstance(hint, str) else hint(text)
        typer.echo(f"  {text!r} is not an answer to that.{advice}")
