"""Drafts schema files from the names and types of columns; and reads the version of a data file, which is the
time when it was last written.

Writes the text of a drafted schema file: questions to the steward about a table, its columns and other
tables, as comments that become entries when they are answered.

Tells a steward who agrees to look what the columns of a CSV file look like: kinds, decimal mark and date
formats, never a value.

`discreet init --look` drafts a schema from it. The results of `look` are not differentially private: the
draft and the ledger therefore record that the steward looked. `delimiter_of` reads the names of columns
alone, which are public, and also serves drafts without --look.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .._errors import InvalidInput
from .._public import Public
from .._text import visible
from .columns import FALSE_WORDS, TRUE_WORDS, unusable
from .engines.duckdb import DuckDB
from .engines.duckdb_reading import Database, file_kind
from .files import Csv, Format, is_utf8, open_bytes, open_text, refuse_empty
from .schema import toml_key, toml_text, toml_value
from .sheets import Code, codes_of

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
        [
            'values = []          # with type = "categories"',
            'same = {}            # spellings that mean the same: {"innere" = "Innere"}',
        ],
    ),
    "any": (
        "What is it? number (lower, upper, nullable), categories (values), date (lower, upper, "
        "nullable), boolean (nullable; written true, t, yes, y, 1 or false, f, no, n, 0), or text.",
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
    codes: Mapping[str, Sequence[Code]] = MappingProxyType({}),
    formats: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> str:
    """Return a schema file to be completed by the steward: from column names and their kinds ("number",
    "text", ...) only.

    `columns`: the kind of each column by name. `related`: for each other table, where its data is and the
    kinds of its columns. `written`: the format of a CSV file, None for other files. `looked`: whether kinds
    and format were taken from the values. `codes`: by column, what its codes mean. `formats`: entries of
    the format of another table.
    """
    lines = [
        *_header_lines(table, columns, looked),
        *_format_lines(written),
        *_column_questions("columns", columns, codes),
    ]
    for name, (data, kinds_of_table) in (related or {}).items():
        lines += [
            *_related_lines(name, data, kinds_of_table, formats.get(name, {})),
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
    words = "   # in any letter case, beside true, yes, y, 1"
    entries = [
        ("encoding", format.encoding, "cp1252", "   # UTF-8 without it"),
        ("delimiter", format.delimiter, ",", ""),
        ("decimal", None if format.decimal == "." else format.decimal, ",", ""),
        ("thousands", format.thousands or None, ".", ""),
        (
            "dates",
            list(format.dates) or None,
            ["%d.%m.%Y", "%Y-%m-%d"],
            "   # tried in this order; what fits none is missing",
        ),
        ("strip", list(format.strip) or None, ["€", "kg"], "   # before or behind numbers"),
        ("true", list(format.true) or None, ["ja"], words),
        ("false", list(format.false) or None, ["nein"], words.replace("true, yes, y, 1", "false, no, n, 0")),
        ("trim", format.trim or None, True, "   # texts without blanks at their ends"),
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


def _related_lines(name: str, data: str, columns: dict[str, str], written: Mapping[str, str]) -> list[str]:
    """Return the questions about another table."""
    entries = ", ".join(f"{entry} = {toml_text(value)}" for entry, value in written.items())
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
        *([f"# format = {{{entries}}}"] if entries else []),
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


def _coded(section: str, name: str, codes: Sequence[Code]) -> list[str]:
    """Return a column whose codes a codebook explains: as categories, where some of them are values; else the
    questions about a number, with the codes of missing values."""
    values, missing = ([code for code in codes if code.missing is which] for which in (False, True))
    # a comment ends at a line break
    said = {which: ", ".join(visible(code.label) for code in of) for which, of in ((0, values), (1, missing))}
    lines = (
        [f"missing = {toml_value([as_number(code.value) for code in missing])}   # {said[1]}"]
        if missing
        else []
    )
    if values:
        body = [
            'type = "categories"',
            f"values = {toml_value([as_number(c.value) for c in values])}   # {said[0]}",
        ]
        return ["", "# From the codebook: is it complete?", f"[{section}.{toml_key(name)}]", *body, *lines]
    questions = [*_QUESTIONS["number"][1][:3], *lines]
    return [
        "",
        f"# {_QUESTIONS['number'][0]}",
        f"# [{section}.{toml_key(name)}]",
        *(f"# {line}" for line in ('type = "number"', *questions)),
    ]


def as_number(text: str) -> str | int:
    """Return a code that is a whole number as one."""
    return int(text) if re.fullmatch(r"-?(0|[1-9]\d{0,14})", text) else text


def _column_questions(
    section: str, columns: dict[str, str], codes: Mapping[str, Sequence[Code]] = MappingProxyType({})
) -> list[str]:
    """Return the questions about columns."""
    lines: list[str] = []
    for name, kind in columns.items():
        if name in codes:
            lines += _coded(section, name, codes[name])
            continue
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


# How many records are read, from the first on; chosen by hand, not tuned.
_LINES = 10_000
# The share of values that must read as a kind: a few typing errors do not make a column text. Chosen by hand,
# not tuned.
_SHARE = 0.95
# Numbers with a decimal point, and numbers with a decimal comma and perhaps points between thousands.
_POINT = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_COMMA = re.compile(r"\s*[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?\s*")
# The date formats that are tried; of two that read as many dates of a column, the first is taken.
_DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y")


# Words for true and false in some languages, and what often stands beside numbers: if a column has others,
# the draft does not say so.
_TRUE, _FALSE = {"ja", "j", "oui", "si", "sí", "sì", "sim", "wahr"}, {"nein", "non", "não", "nao", "falsch"}
_BESIDE = ("€", "EUR", "$", "USD", "£", "GBP", "CHF", "¥", "%", "kg", "g", "mg", "cm", "mm", "m", "km", "h")


def encoding_of(path: Path, *, looking: bool) -> str | None:
    """Return None for a file in UTF-8, else cp1252, or latin-1 where that has no character for a byte; by the
    first line alone unless `looking` is set."""
    with open_bytes(path) as file:
        lines = file if looking else islice(file, 1)
        wrong = [line for line in lines if not is_utf8(line)][:_LINES]
    if not wrong:
        return None
    return "latin-1" if any(set(line) & _NOT_CP1252 for line in wrong) else "cp1252"


# The bytes that stand for no character in cp1252.
_NOT_CP1252 = {0x81, 0x8D, 0x8F, 0x90, 0x9D}


def delimiter_of(path: Path, encoding: str | None = None) -> str | None:
    """Return the delimiter of the names in the first line, from that line alone; None for the usual (a comma,
    or a tab in .tsv).

    A comma before a blank is taken for part of a name: "Größe, cm;Gewicht, kg".
    """
    if ".tsv" in path.suffixes:
        return None
    with open_text(path, errors="replace", encoding=encoding) as file:
        header = file.readline()
    counts = {";": header.count(";"), "\t": header.count("\t"), "|": header.count("|")}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] > len(re.findall(r",(?! )", header)) else None


def look(path: Path, delimiter: str | None, encoding: str | None = None) -> tuple[dict[str, str], Format]:
    """Return the kind of each column ("number", "date", "boolean" or "text"), and how numbers, dates and
    words for true and false are written."""
    mark = delimiter or ("\t" if ".tsv" in path.suffixes else ",")
    with open_text(path, errors="replace", encoding=encoding) as file:
        rows = csv.reader(file, delimiter=mark)
        names = next(rows, [])
        try:
            lines = list(islice(rows, _LINES))
        except csv.Error:
            raise InvalidInput(
                f"{path.name!r} has a field that is too long to be looked at, or a quote that is not closed. "
                "Leave --look out."
            ) from None
    columns = {
        name: [row[i].strip() for row in lines if i < len(row) and row[i].strip()]
        for i, name in enumerate(names)
    }
    blanks = any(value != value.strip() for row in lines for value in row)
    strip = _strip(columns)
    words = {value.lower() for values in columns.values() if _is_truth(values) for value in values}
    comma = _decimal_comma(columns.values())
    date_formats: list[str] = []
    kinds = {
        name: _kind(values, _COMMA if comma else _POINT, date_formats) for name, values in columns.items()
    }
    # In a fixed order: the order in the draft must not tell which format is more common.
    date_formats.sort(key=_DATES.index)
    is_iso = date_formats in ([], [_DATES[0]])
    thousands = (
        "." if comma and any("." in v for n, k in kinds.items() if k == "number" for v in columns[n]) else ""
    )
    return kinds, Format(
        delimiter,
        "," if comma else ".",
        thousands,
        () if is_iso else tuple(date_formats),
        encoding,
        trim=blanks,
        true=tuple(sorted(words & _TRUE)),
        false=tuple(sorted(words & _FALSE)),
        strip=strip,
    )


def _is_truth(values: list[str]) -> bool:
    """Return whether most of a column's texts are words for true and false, or letters of them; codes of
    missing values may be among them."""
    words = {*_TRUE, *_FALSE, *TRUE_WORDS, *FALSE_WORDS} - {"0", "1"}
    return bool(values) and sum(value.lower() in words for value in values) > 0.5 * len(values)


def _strip(columns: dict[str, list[str]]) -> tuple[str, ...]:
    """Return what stands beside most numbers of some column, and take it off them in `columns`."""
    found = []
    for name, values in columns.items():
        for mark in _BESIDE:
            bare = [value.removeprefix(mark).removesuffix(mark).strip() for value in values]
            beside = sum(
                a != b and bool(_COMMA.fullmatch(a) or _POINT.fullmatch(a))
                for a, b in zip(bare, values, strict=True)
            )
            if values and beside > 0.5 * len(values):
                found.append(mark)
                columns[name] = bare
                break
    return tuple(dict.fromkeys(found))


def _is_mostly(hits: int, values: Sequence[str]) -> bool:
    """Return whether all but a few of the values are hits."""
    return bool(values) and hits >= _SHARE * len(values)


def _decimal_comma(columns: Iterable[list[str]]) -> bool:
    """Return whether some column reads as numbers with a decimal comma, but not with a decimal point."""
    for values in columns:
        by_comma, by_point = (sum(bool(form.fullmatch(v)) for v in values) for form in (_COMMA, _POINT))
        if _is_mostly(by_comma, values) and not _is_mostly(by_point, values):
            return True
    return False


def _kind(values: list[str], number: re.Pattern[str], date_formats: list[str]) -> str:
    """Return the kind of a column. `number` is the pattern of numbers. The formats of the column's dates are
    added to `date_formats`."""
    if _is_mostly(sum(bool(number.fullmatch(v)) for v in values), values):
        return "number"
    if _is_truth(values):
        return "boolean"
    column_formats: list[str] = []
    unread = values
    while unread and len(unread) > (1 - _SHARE) * len(values):
        parsed = {form: [v for v in unread if _is_date(v, form)] for form in _DATES}
        best = max(parsed, key=lambda form: len(parsed[form]))
        if not parsed[best]:
            return "text"
        column_formats.append(best)
        unread = [v for v in unread if not _is_date(v, best)]
    date_formats += [form for form in column_formats if form not in date_formats]
    return "date" if column_formats else "text"


def _is_date(text: str, form: str) -> bool:
    """Return whether a text is a date in a format."""
    try:
        datetime.strptime(text, form)  # noqa: DTZ007  (a day has no zone)
    except ValueError:
        return False
    return True


def draft(
    file: str | Path,
    *,
    table: str | None = None,
    related: Sequence[str] = (),
    delimiter: str | None = None,
    looking: bool = False,
    codebook: str | Path | None = None,
) -> str:
    """Return a schema file for a table, with questions to the steward. It is made from the names and types of
    columns, and depends on no value unless `looking` is set.

    `codebook`: a file with what codes mean (`sheets.codes_of`), which answers some questions; one of SPSS or
    Stata has its own.

    `related`: files, or "database.duckdb::table", of tables that queries may join. `delimiter`: the character
    between the fields of a CSV file; by default the one between the names in its first line. `looking`: take
    the kinds of columns and the format of a CSV file from its values, which is not private and is marked in
    the draft.
    """
    refuse_empty(file)
    csv = any(suffix in (".csv", ".tsv") for suffix in Path(file).suffixes)
    if looking and not csv:
        raise InvalidInput(
            f"{Path(file).name!r} has types already: there is nothing to look for. Leave --look out."
        )
    file_format = _format_of(Path(file), looking, delimiter)
    name, kinds = _columns_of_file(Path(file), table, file_format)
    if looking:
        assert file_format is not None
        observed_kinds, file_format = look(Path(file), file_format.delimiter, file_format.encoding)
        kinds = {column: observed_kinds.get(column, "any") for column in kinds}
    others, formats = {}, {}
    for data in related:
        path, _, table_in_file = data.partition("::")
        refuse_empty(path)
        written = _format_of(Path(path), looking) if not table_in_file and Path(path).exists() else None
        other, other_kinds = _columns_of_file(Path(path), table_in_file or None, written)
        entries = {} if written is None else {"delimiter": written.delimiter, "encoding": written.encoding}
        others[other] = (data, other_kinds)
        formats[other] = {name: value for name, value in entries.items() if value is not None}
    if codebook is None and Path(file).suffix in (".sav", ".dta"):
        codebook = file
    codes = {} if codebook is None else codes_of(Path(codebook))
    return draft_text(name, kinds, others, written=file_format, looked=looking, codes=codes, formats=formats)


def _format_of(path: Path, looking: bool, delimiter: str | None = None) -> Format | None:
    """Return the delimiter and the encoding of a CSV file; None for another file."""
    if not any(suffix in (".csv", ".tsv") for suffix in path.suffixes):
        return None
    encoding = encoding_of(path, looking=looking)
    return Format(delimiter=delimiter or delimiter_of(path, encoding), encoding=encoding)


def _columns_of_file(
    path: Path, table: str | None, written: Format | None = None
) -> tuple[str, dict[str, str]]:
    """Return the name of a table and the kind of each column, "any" for the columns of a CSV file."""
    name = table or path.name.split(".")[0]
    data: Any = Database(path, name) if path.suffix in (".duckdb", ".db", ".ddb") else path
    source = data if written is None else Csv(data, written)
    kinds = dict(DuckDB({name: source}, Public(table=name)).kinds[name])
    untyped = isinstance(data, Path) and file_kind(str(data)) != "parquet"
    return name, dict.fromkeys(kinds, "any") if untyped else kinds


def version_of(file: str | Path) -> str:
    """Return the time when a file was last written, for `dp.open(..., version=version_of(file))`: right where
    that time is public, because the file is written on a schedule and not when somebody comes.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file: version_of(file.name)[:2]
    '20'
    """
    return datetime.fromtimestamp(Path(file).stat().st_mtime, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
