"""Writes the text of a drafted schema file: questions to the steward about a table, its columns and other
tables, as comments that become entries when they are answered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .columns import unusable
from .formats import Format
from .schema import toml_key, toml_text, toml_value

_QUESTIONS = {
    "number": (
        "What are the smallest and largest values anyone may have, known without looking at the data?",
        [
            "lower = ",
            "upper = ",
            "nullable = true",
            "missing = []        # codes that stand for a missing value, such as [98, 99]",
        ],
    ),
    "text": (
        'Which values can it have? List them (type = "categories"), or keep "text": then groups by '
        "it need a delta.",
        ['values = []          # with type = "categories"'],
    ),
    "any": (
        "What is it? number (lower, upper, nullable), categories (values), date (lower, upper, "
        "nullable), boolean (nullable), or text.",
        [
            "lower = ",
            "upper = ",
            "nullable = true     # false if it can never be missing: then averages cost less",
            "missing = []        # codes that stand for a missing value, such as [98, 99]",
            "values = []",
        ],
    ),
    "boolean": ("May it be missing?", ["nullable = true"]),
    "date": (
        "What are the first and last possible days, known without looking at the data?",
        ['lower = ""', 'upper = ""', "nullable = true"],
    ),
}


def draft_text(
    table: str,
    columns: dict[str, str],
    related: Mapping[str, tuple[str, dict[str, str]]] | None = None,
    *,
    written: Format | None = None,
    looked: bool = False,
) -> str:
    """Return a schema file to be completed by the steward: from column names and their kinds ("number",
    "text", ...) only.

    `columns`: the kind of each column by name. `related`: for each other table, where its data is and the
    kinds of its columns. `written`: the format of a CSV file, None for other files. `looked`: whether kinds
    and format were taken from the values.
    """
    lines = [
        *_header_lines(table, columns, looked),
        *_format_lines(written),
        *_column_questions("columns", columns),
    ]
    for name, (data, kinds_of_table) in (related or {}).items():
        lines += [
            *_related_lines(name, data, kinds_of_table),
            *_column_questions(f"tables.{toml_key(name)}.columns", kinds_of_table),
        ]
    return "\n".join(lines) + "\n"


def _header_lines(table: str, columns: Iterable[str], looked: bool) -> list[str]:
    """Return the first lines of a draft: the facts about the table, its unit and its neighbors."""
    first = (
        "Types and formats are what the values LOOKED like (--look): not private, so keep this draft "
        "from analysts until you stand by it."
        if looked
        else "Drafted from column names and types; no value was read."
    )
    return [
        f"# Public facts about {table!r}. {first}",
        "# Answer each question from what is known about the study, not from the data, and remove "
        "the '#' before the answer.",
        "# Columns that stay commented out cannot be used in queries.",
        f"table = {toml_text(table)}",
        *(
            ["looked = true         # the steward looked at the data: noted in the ledger when it is opened"]
            if looked
            else []
        ),
        'version = "1"          # another one for every new state of the table',
        'neighbors = "add_remove"   # one person more or less; "replace" if the number of people is '
        "public and exact (then give size)",
        "# size =               # about how many people, if everybody may know: then averages can be "
        "asked by accuracy, too",
        "",
        "# Whom is this table about? If one person (or household) can have several rows, name the "
        "column that tells them apart,",
        "# how many rows of one person may count in one group of an answer, and in how many groups "
        "one person may count.",
        '# unit = "row"         # if nobody can have two rows; otherwise answer in the next four lines:',
        "# [unit]",
        f"# column =             # one of: {_names(columns)}",
        "# rows =",
        "# groups =",
    ]


def _names(columns: Iterable[str]) -> str:
    """Return names of columns for a comment, quoted where needed: a line break in a name would end it."""
    return ", ".join(map(toml_key, columns))


def _format_lines(format: Format | None) -> list[str]:
    """Return the section [format] of a CSV file; nothing for other files. Entries that are not known are
    comments with an example."""
    if format is None:
        return []
    entries = [
        ("delimiter", format.delimiter, ",", ""),
        ("decimal", None if format.decimal == "." else format.decimal, ",", ""),
        ("thousands", format.thousands or None, ".", ""),
        (
            "dates",
            list(format.dates) or None,
            ["%d.%m.%Y", "%Y-%m-%d"],
            "   # tried in this order; what fits none is missing",
        ),
    ]
    any_declared = any(value is not None for _, value, _, _ in entries)
    return [
        "",
        "# How the file is written, where that is not with commas, a decimal point and dates such as "
        "2020-01-31.",
        "[format]" if any_declared else "# [format]",
        *(
            f"{name} = {toml_value(value)}{more}"
            if value is not None
            else f"# {name} = {toml_value(example)}{more}"
            for name, value, example, more in entries
        ),
    ]


def _related_lines(name: str, data: str, columns: dict[str, str]) -> list[str]:
    """Return the questions about another table."""
    return [
        "",
        f"# {toml_text(name)}: does it hold rows about the same people (private, with the column that "
        f"says whose), or may everybody know every row?",
        "# key: columns of a public table that are unique together, compared as text; joining on "
        "them adds no rows.",
        f"# [tables.{toml_key(name)}]",
        f"# data = {toml_text(data)}",
        "# private =            # true or false",
        f"# unit =               # if private, one of: {_names(columns)}",
        "# key = []             # if public",
    ]


# Patterns of column names, and an example of what such columns usually hold: from the name alone.
_EXAMPLES = (
    (r"\b(age|alter|edad|âge)\b", "an age: 0 to 120"),
    (r"\b(year|jahr)\b", "a year: 1900 to 2100"),
    (r"(height|größe|groesse).*cm|cm.*(height|größe)", "a height in cm: 30 to 250"),
    (r"(weight|gewicht)", "a weight in kg: 0 to 300"),
    (r"(percent|prozent|share|anteil)", "a percentage: 0 to 100"),
    (r"\b(sex|gender|geschlecht)\b", 'a sex: values = ["female", "male", "other"]'),
    (r"\bhours?\b|stunden", "hours of a week: 0 to 168"),
)


def _example(name: str) -> str:
    """Return an example for a column of this name; empty where none is known."""
    words = name.lower().replace("_", " ")
    return next((f" For example, {text}." for form, text in _EXAMPLES if re.search(form, words)), "")


def _column_questions(section: str, columns: dict[str, str]) -> list[str]:
    """Return the questions about columns."""
    lines: list[str] = []
    for name, kind in columns.items():
        why = None if kind == "any" else unusable(kind)
        if why is not None:
            lines += ["", f"# {toml_text(name)} {why}"]
            continue
        question_kind = {"integer": "number"}.get(kind, kind if kind in _QUESTIONS else "text")
        question, body = _QUESTIONS[question_kind]
        question_kind = "text" if question_kind == "any" else question_kind
        lines += [
            "",
            f"# {question}{_example(name) if question_kind in ('number', 'text') else ''}",
            f"# [{section}.{toml_key(name)}]",
            f'# type = "{question_kind}"',
            *(f"# {line}" for line in body),
        ]
    return lines
