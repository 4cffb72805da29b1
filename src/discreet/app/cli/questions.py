"""`discreet init --interactive`: the questions of a drafted schema, asked one by one in the terminal.

Nothing is read off the data: who answers says what is known about the study.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import typer

from ... import tables
from ..._errors import InvalidInput

KINDS = ("number", "categories", "date", "boolean", "text", "none")
_COLUMN = re.compile(r"^#? ?\[columns\.(?P<name>.+)\]$")
_TYPE = re.compile(r'^#? ?type = "(?P<type>\w+)"')
_EXAMPLE = re.compile(r"For example, (?P<text>[^.]+)\.")


def complete(draft: str) -> str:
    """Return the schema file that the answers to a draft's questions make; asked again until it is valid."""
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
    kept = (line for line in draft.splitlines() if re.match(r"(table|version|neighbors) =", line))
    lines = [line.split(" #")[0].rstrip() for line in kept]
    return "\n".join(["# Public facts, as they were answered; no value was read.", *lines])


def _columns(draft: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each column as TOML has it, what it seems to be, and an example of bounds."""
    lines = draft.splitlines()
    for place, line in enumerate(lines):
        match = _COLUMN.match(line)
        if match is None:
            continue
        kind = next((m["type"] for m in map(_TYPE.match, lines[place + 1 : place + 3]) if m), "text")
        example = _EXAMPLE.search(lines[place - 1]) if place else None
        yield match["name"], kind, "" if example is None else example["text"]


def _unit(names: list[str]) -> str:
    typer.echo(f"Columns: {', '.join(names)}")
    several = typer.confirm("Can one person (or household) have several rows?", default=True)
    if not several:
        return 'unit = "row"'
    column = _ask_until(
        "Which column tells people apart?", lambda text: text in names or json.dumps(text) in names
    )
    rows = _number("How many rows of one person may count in one group of an answer?", 10)
    groups = _number("In how many groups may one person count?", 3)
    name = json.dumps(column.strip('"'), ensure_ascii=False)
    return f"[unit]\ncolumn = {name}\nrows = {rows}\ngroups = {groups}"


def _format(delimiter: Any) -> str:
    decimal = typer.prompt("Decimal mark of numbers in the file", default=".")
    dates = typer.prompt(
        "Formats of dates, such as %d.%m.%Y, parted by commas (empty: 2020-01-31)", default=""
    )
    lines = ["[format]"] if delimiter is None else ["[format]", delimiter.group()]
    lines += [f"decimal = {json.dumps(decimal.strip())}"] if decimal.strip() != "." else []
    listed = [part.strip() for part in dates.split(",") if part.strip()]
    lines += [f"dates = {json.dumps(listed)}"] if listed else []
    return "\n".join(lines)


def _facts(name: str, guess: str, example: str) -> str:
    """Return the lines of one column; none where it stays out of queries."""
    usual = guess if guess in KINDS else "text"
    kind = _ask_until(f"{name}: what is it? ({', '.join(KINDS)})", lambda text: text in KINDS, usual)
    if kind == "none":
        return f"# {name} is in no query."
    lines = [f"[columns.{name}]", f'type = "{kind}"']
    hint = f", for example {example}" if example else ""
    if kind in ("number", "date"):
        lower = _bound(f"  Least value that it can have{hint}", kind)
        upper = _bound("  Largest value that it can have", kind)
        lines += [f"lower = {lower}", f"upper = {upper}"]
    if kind == "categories":
        values = typer.prompt("  All its values, parted by commas (as they stand in the file)")
        listed = [value.strip() for value in values.split(",") if value.strip()]
        lines.append("values = " + json.dumps(listed, ensure_ascii=False))
    if kind in ("number", "date", "boolean"):
        missing = typer.confirm("  Can it be missing?", default=True)
        lines.append(f"nullable = {str(missing).lower()}")
    return "\n".join(lines)


def _bound(question: str, kind: str) -> str:
    pattern = r"-?\d+(\.\d+)?([eE][-+]?\d+)?" if kind == "number" else r"\d{4}-\d{2}-\d{2}"
    text = _ask_until(question, lambda text: re.fullmatch(pattern, text) is not None)
    return text if kind == "number" else json.dumps(text)


def _number(question: str, usual: int) -> int:
    return int(_ask_until(question, lambda text: text.isdigit() and int(text) > 0, str(usual)))


def _ask_until(question: str, valid: Any, default: str | None = None) -> str:
    while True:
        text = str(typer.prompt(question, default=default)).strip()
        if valid(text):
            return text
        typer.echo(f"  {text!r} is not an answer to that.")
