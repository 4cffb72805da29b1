"""`discreet init`: drafts the schema file of a table; once it is complete, opens the ledger.

`discreet init --interactive`: asks the questions of a drafted schema file one by one in the terminal.

No value of the data is read for the questions: whoever answers says what is publicly known about the study.
Once there are answers, and no budget yet, the steward is shown how well the data fit them (`check`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ... import _require, tables
from ... import session as sessions
from ..._errors import DiscreetError, InvalidInput
from ..._text import visible
from ...curator import Budget
from ...tables.engines.postgres_tables import is_address
from ...tables.engines.spark_files import is_several
from ...tables.files import Format, several
from ...tables.schema import was_looked
from .. import requests
from ..requests import beside
from . import forms
from .check import show_fit
from .options import DATA, ENGINE, JSON, LARGE_DELTA, LARGE_EPSILON, TableFiles
from .parser import Named
from .query import print_note


@dataclass(frozen=True, kw_only=True)
class NewBudget:
    """The budget of a new ledger, and the analysts, as the shell writes them."""

    epsilon: Annotated[
        float | None,
        Named("With a budget, the ledger is made too (the schema must be complete).", "--epsilon"),
    ] = None
    rho: Annotated[float | None, "The budget as zero-concentrated privacy, instead of epsilon."] = None
    delta: Annotated[float, "The delta of the budget."] = 0.0
    per: Annotated[
        str | None, "A budget for each period: COLUMN:EVERY (day to year), or a COLUMN of labels."
    ] = None
    total: Annotated[
        str | None, "With --per: epsilon of all periods together for one person, or unlimited."
    ] = None
    analyst: Annotated[
        list[str], "NAME, or NAME=EPSILON or NAME=EPSILON,DELTA for a budget of their own."
    ] = field(default_factory=list)

    @property
    def budget(self) -> Budget:
        """Return the dataset's budget."""
        per = requests.period_of(self.per, self.total, self.delta)
        return Budget(epsilon=self.epsilon, rho=self.rho, delta=self.delta, per=per)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """How a schema file is drafted."""

    related: Annotated[
        list[str], "Another table that queries may join, drafted into the same schema file. Can be repeated."
    ] = field(default_factory=list)
    delimiter: Annotated[str | None, "The character between the fields of a CSV file, for the draft: ';'"] = (
        None
    )
    codebook: Annotated[
        Path | None,
        "An .xlsx file with the columns variable, value, label, missing; .sav and .dta have theirs.",
    ] = None
    look: Annotated[
        bool,
        "Draft types and formats of a CSV file from its values. Not private: it is marked, and noted in "
        "the ledger.",
    ] = False
    interactive: Annotated[
        bool, Named("Ask the draft's questions here, one by one.", "--interactive", "-i")
    ] = False


def init(
    data: str = DATA,
    *,
    files: TableFiles,
    new: NewBudget,
    draft: Draft,
    large_delta: bool = LARGE_DELTA,
    large_epsilon: bool = LARGE_EPSILON,
    engine: str = ENGINE,
    as_json: bool = JSON,
) -> None:
    requests.refuse_password(data)
    path, ledger = files.schema or beside(data, ".schema.toml"), files.ledger or beside(data, ".ledger")
    schema_option = "" if files.schema is None else f" --schema {shlex.quote(str(files.schema))}"
    if not path.exists():
        _write_draft(data, path, draft)
        message = f"wrote {path}." if draft.interactive else f"drafted {path}: answer its questions."
        arguments = f"{shlex.quote(data)}{schema_option}"
        check_hint = f" See how the file fits: discreet check {arguments}." if engine is None else ""
        _print_result(
            as_json,
            f"{message}{check_hint} Then open the ledger with: discreet init {arguments}"
            f"{'' if engine is None else f' --engine {engine}'} --epsilon 1 --delta 1e-6",
            schema=str(path),
        )
        if draft.interactive and engine is None and not as_json:
            show_fit(data, path, ledger)
        return
    _refuse_draft(path, draft)
    if new.epsilon is None and new.rho is None:
        if engine is None and not as_json and not ledger.exists() and not is_address(data):
            # a draft whose questions are not answered yet is refused below
            with suppress(DiscreetError):
                show_fit(data, path, ledger)
        raise InvalidInput(
            f"{path} exists already; nothing was changed. To open the ledger, give a budget: --epsilon 1"
        )
    session = sessions.open(
        requests.data_of(data), schema=path, ledger=ledger,
        budget=new.budget, analysts=requests.analysts_of(new.analyst), large_delta=large_delta,
        large_epsilon=large_epsilon, engine=engine,
    )  # fmt: skip
    if was_looked(path):
        session.curator.note(
            "looked", {"what": "discreet init --look", "columns": [name for name, _ in session.public.schema]}
        )
    text = (
        f"opened {session.ledger.path} with {session.budget!r}. Its key is beside it: keep that from "
        f"analysts."
    )
    _print_result(as_json, text, ledger=str(session.ledger.path), anchor=str(session.ledger.anchor))


def _write_draft(data: str, path: Path, draft: Draft) -> None:
    """Write the draft of a table's schema file to `path`; of several files, from the first.

    Only names and types of columns are read, and with `look` values as well.
    """
    source, related, look = requests.data_of(data), draft.related, draft.look
    file = Path(source.path if isinstance(source, tables.Database) else source)
    if not file.exists() and not is_several(file):
        raise InvalidInput(f"there is no file {str(file)!r}.")
    if missing := [name for name in related if not Path(name.partition("::")[0]).exists()]:
        raise InvalidInput(f"there is no file {missing[0]!r}.")
    files = several(file)
    if files is not None:
        text = tables.draft(
            files.paths[0],
            table=beside(data, "").name,
            related=related,
            delimiter=draft.delimiter,
            looking=look,
        )
    elif isinstance(source, tables.Database):
        text = tables.draft(source.path, table=source.table, related=related, looking=look)
    else:
        text = tables.draft(
            source, related=related, delimiter=draft.delimiter, looking=look, codebook=draft.codebook
        )
    forms.check(path, data=[data, *related])
    if draft.interactive:
        text = complete(text)
    forms.write(path, text)


def _refuse_draft(path: Path, draft: Draft) -> None:
    """Refuse the options that are for a draft only, where the schema file exists already."""
    if draft.interactive:
        raise InvalidInput(
            f"{path} exists already: --interactive is for the draft. Nothing was changed. To begin again, "
            f"delete that file first."
        )
    if draft.look:
        raise InvalidInput(
            f"{path} exists already: --look is for the draft. Nothing was looked at or changed. To begin "
            f"again, delete that file first."
        )
    if draft.related:
        raise InvalidInput(
            f"{path} exists already: declare related tables there, [tables.NAME]. Nothing was changed."
        )


def _print_result(as_json: bool, text: str, **facts: str) -> None:
    """Print the facts as JSON, or the text."""
    if as_json:
        print(json.dumps(facts))
    else:
        print_note(text)


KINDS = ("number", "categories", "date", "boolean", "text", "none")
# A draft has the sections of columns as comments: "# [columns.age]", then "# type = ...".
_COLUMN = re.compile(r"^#? ?\[columns\.(?P<name>.+)\]$")
# What a codebook has answered already is no comment.
_FILLED = re.compile(r"^(?=\[columns\.(.+)\]$)((?:[^#\n].*\n)+)", re.M)
_TYPE = re.compile(r'^#? ?type = "(?P<type>\w+)"')
_EXAMPLE = re.compile(r"For example, (?P<text>[^.]+)\.")


def complete(draft: str) -> str:
    """Ask the questions of a draft, each until its answer is valid, and return the text of the schema file.

    Where the questions are ended early (Ctrl-C, end of input), nothing is returned: half a declaration would
    declare less than was meant.
    """
    try:
        return _ask_all(draft)
    except (typer.Abort, EOFError, KeyboardInterrupt):
        raise InvalidInput(
            "the questions were ended before the last answer. Nothing was written. Begin again, or take the "
            "draft without --interactive and answer it in an editor."
        ) from None


def _ask_all(draft: str) -> str:
    """Ask all questions, and return the text of the schema file."""
    columns = list(_columns(draft))
    if not columns:
        raise InvalidInput("the table has no columns to ask about.")
    typer.echo(
        "Answer from what is known about the study, not from the data. Return takes what is in brackets. "
        "Where you do not know a bound or a limit, take one that is surely wide: once there is a budget, "
        "discreet suggest finds a narrower one, for a price."
    )
    # In TOML, keys of the file itself come before the first [section].
    top, sections = [_head(draft)], list[str]()
    unit = _unit([name for name, _, _ in columns])
    (sections if unit.startswith("[") else top).append(unit)
    size = _ask_until(
        "About how many people are there, if everybody may know? (0: it is not public)", _is_count, "0"
    )
    top += [f"size = {int(size)}"] if int(size) else []
    if "[format]" in draft:
        sections.append(
            _format(re.findall(r"^(?:delimiter|encoding|trim|true|false|strip) = [^#\n]*", draft, re.M))
        )
    filled = {name: text.rstrip() for name, text in _FILLED.findall(draft)}
    sections += [filled.get(name) or _facts(name, guess, example) for name, guess, example in columns]
    text = "\n".join(top) + "\n\n" + "\n\n".join(sections) + "\n"
    # Answers that contradict each other, such as a lower bound above the upper one, are refused here, before
    # a file is written.
    tables.load(text)
    return text


def _head(draft: str) -> str:
    """Return the first lines of the schema file: table, version, neighbors and the mark of --look as the
    draft has them."""
    facts = (line for line in draft.splitlines() if re.match(r"(table|looked|version|neighbors) =", line))
    lines = [line.split(" #")[0].rstrip() for line in facts]
    values_read = (
        "the draft was made from values (--look)" if "looked = true" in lines else "no value was read"
    )
    return "\n".join([f"# Public facts, as they were answered; {values_read}.", *lines])


def _columns(draft: str) -> Iterator[tuple[str, str, str]]:
    """Yield for each column of a draft its name as TOML writes it, the type that the draft guesses, and an
    example of bounds, or an empty text."""
    lines = draft.splitlines()
    for index, line in enumerate(lines):
        match = _COLUMN.match(line)
        if match is None:
            continue
        kind = next((m["type"] for m in map(_TYPE.match, lines[index + 1 : index + 3]) if m), "text")
        example = _EXAMPLE.search(lines[index - 1]) if index else None
        yield match["name"], kind, "" if example is None else example["text"]


def _unit(names: list[str]) -> str:
    """Ask which unit the table protects (a row, or all rows of a person), and return its lines of the schema
    file.

    `names` are the columns as TOML writes them.
    """
    typer.echo(f"Columns: {visible(', '.join(names))}")
    several = _confirm("Can one person (or household) have several rows?", default=True)
    if not several:
        return 'unit = "row"'
    columns = [_unquoted(name) for name in names]
    column = _ask_until(
        "Which column tells people apart?",
        lambda text: _unquoted(text) in columns,
        hint=lambda text: (
            _require.did_you_mean(_unquoted(text), columns)
            or f" It is one of: {visible(', '.join(columns))}."
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


def _format(drafted: list[str]) -> str:
    """Ask for the decimal mark, the formats of dates and, if there is more, how texts are written; return the
    section [format] of the schema file. `drafted` are the lines of it that the draft has."""
    decimal = _ask_until(
        "Decimal mark of numbers in the file",
        lambda text: text in (".", ","),
        ".",
        hint=" It is . or , (a point or a comma).",
    )
    dates = _ask_until(
        "Formats of dates, such as %d.%m.%Y, separated by commas (empty: 2020-01-31)",
        _are_dates,
        "",
        hint=" A format has %d, %m and %Y where day, month and year are: %d.%m.%Y for 31.01.2020.",
    )
    lines = ["[format]", *(line.rstrip() for line in drafted)]
    lines += [f"decimal = {json.dumps(decimal.strip())}"] if decimal.strip() != "." else []
    formats = [part.strip() for part in dates.split(",") if part.strip()]
    lines += [f"dates = {json.dumps(formats)}"] if formats else []
    if _confirm("Is there an encoding, words for yes and no, or a currency to declare?", default=False):
        drafted_names = {line.partition(" ")[0] for line in drafted}
        lines += [line for name, line in _texts() if name not in drafted_names]
    return "\n".join(lines)


def _texts() -> Iterator[tuple[str, str]]:
    """Ask how the texts of a file are written, and yield the entries of [format] that say so, by name."""
    encoding = _ask_until(
        "  Encoding, such as cp1252 for a file from Windows (empty: UTF-8)", _is_encoding, ""
    )
    if encoding:
        yield "encoding", f"encoding = {json.dumps(encoding)}"
    for name, question in (
        ("true", "  Words for true, beside true, yes, y, 1, separated by commas (empty: none)"),
        ("false", "  Words for false, beside false, no, n, 0 (empty: none)"),
        ("strip", "  What stands before or behind numbers, such as €, kg (empty: nothing)"),
    ):
        words = [part.strip() for part in _ask_until(question, lambda _: True, "").split(",") if part.strip()]
        if words:
            yield name, f"{name} = {json.dumps(words, ensure_ascii=False)}"
    if _confirm("  Are blanks at the ends of texts to be left out?", default=True):
        yield "trim", "trim = true"


def _is_encoding(text: str) -> bool:
    """Return whether a format may have this encoding; an empty text is none."""
    try:
        Format(encoding=text or None)
    except InvalidInput:
        return False
    return True


def _facts(name: str, guess: str, example: str) -> str:
    """Ask about one column, and return its section of the schema file; a comment where it stays out of
    queries.

    `guess` is the type that the draft guesses, `example` an example of bounds, or empty.
    """
    default = guess if guess in KINDS else "text"
    kind = _ask_until(
        f"{name}: what is it? ({', '.join(KINDS)})",
        lambda text: text in KINDS,
        default,
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
        missing = _confirm("  Can it be missing?", default=True)
        lines.append(f"nullable = {str(missing).lower()}")
        lines += _codes() if missing else []
    return "\n".join(lines)


def _codes() -> list[str]:
    """Ask for the codes of missing values, and return the line of the schema file with them, if any."""
    # The word for a type is the answer to the question about the next column.
    text = _ask_until(
        "  Codes that stand for a missing value, such as 98, 99, separated by commas (empty: none)",
        lambda text: text not in KINDS,
        "",
        hint=" Write the codes as they stand in the file; nothing, if there are none.",
    )
    parts = [part.strip() for part in text.split(",") if part.strip()]
    codes = [int(part) if re.fullmatch(r"-?\d{1,15}", part) else part for part in parts]
    return [f"missing = {json.dumps(codes, ensure_ascii=False)}"] if codes else []


def _values() -> list[str]:
    """Ask for the values of categories, separated by commas; one value with ; or | in it must be confirmed,
    as it looks like several."""
    while True:
        text = _ask_until(
            "  All its values, separated by commas (as they are written in the file)",
            lambda text: any(part.strip() for part in text.split(",")),
            hint=" Name one value at least.",
        )
        values = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        mark = next((mark for mark in ";|" if len(values) == 1 and mark in values[0]), None)
        if mark is None or _confirm(
            f"  {values[0]!r} is one value, with {mark!r} in it: values are separated by commas. "
            f"Is that meant?",
            default=False,
        ):
            return values


def _are_dates(text: str) -> bool:
    """Return whether these are formats of dates, separated by commas: each has a day, a month and a year, and
    `tables.files.Format` accepts it."""
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
    """Ask for a bound of a number or a date, and return it as TOML writes it."""
    # TOML has no numbers that begin with a zero, such as 007
    pattern = (
        r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?"
        if kind == "number"
        else r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    )
    hint = " A number, such as 12.5." if kind == "number" else " A day, such as 2020-01-31."
    text = _ask_until(question, lambda text: re.fullmatch(pattern, text) is not None, hint=hint)
    return text if kind == "number" else json.dumps(text)


def _is_count(text: str) -> bool:
    """Return whether a text is an integer of at most 15 digits; other digits than 0 to 9 are not."""
    return text.isascii() and text.isdigit() and len(text) <= 15


def _number(question: str, default: int) -> int:
    """Ask for an integer of at least 1."""
    return int(_ask_until(question, lambda text: _is_count(text) and int(text) > 0, str(default)))


def _confirm(question: str, *, default: bool) -> bool:
    """Ask a question that is answered with yes or no."""
    marks = "Y/n" if default else "y/N"
    words = {"": default, "y": True, "yes": True, "n": False, "no": False}
    answer = _ask_until(
        f"{question} [{marks}]", lambda text: text.lower() in words, "", hint=" Write y or n."
    )
    return words[answer.lower()]


def _ask_until(
    question: str, valid: Any, default: str | None = None, *, hint: str | Callable[[str], str] = ""
) -> str:
    """Ask until `valid(answer)` is true, and return the answer.

    `hint` is added to the refusal of an answer, with a blank before it: a text, or a function of the answer.
    """
    while True:
        text = str(typer.prompt(question, default=default, show_default=bool(default))).strip()
        if valid(text):
            return text
        advice = hint if isinstance(hint, str) else hint(text)
        typer.echo(f"  {text!r} is not an answer to that.{advice}")
