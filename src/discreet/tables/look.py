"""Tells a steward who agrees to look what the columns of a CSV file look like: kinds, decimal mark and date
formats, never a value.

`discreet init --look` drafts a schema from it. The results of `look` are not differentially private: the
draft and the ledger therefore record that the steward looked. `delimiter_of` reads the names of columns
alone, which are public, and also serves drafts without --look.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path

from .._errors import InvalidInput
from .compressed import open_text
from .formats import Format

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


def delimiter_of(path: Path) -> str | None:
    """Return the delimiter of the names in the first line, from that line alone; None for the usual (a comma,
    or a tab in .tsv).

    A comma before a blank is taken for part of a name: "Größe, cm;Gewicht, kg".
    """
    if ".tsv" in path.suffixes:
        return None
    with open_text(path, errors="replace") as file:
        header = file.readline()
    counts = {";": header.count(";"), "\t": header.count("\t"), "|": header.count("|")}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] > len(re.findall(r",(?! )", header)) else None


def look(path: Path, delimiter: str | None) -> tuple[dict[str, str], Format]:
    """Return the kind of each column ("number", "date", "boolean" or "text"), and how numbers and dates are
    written."""
    mark = delimiter or ("\t" if ".tsv" in path.suffixes else ",")
    with open_text(path, errors="replace") as file:
        rows = csv.reader(file, delimiter=mark)
        names = next(rows, [])
        try:
            lines = list(islice(rows, _LINES))
        except csv.Error:
            raise InvalidInput(
                f"{path.name!r} has a field that is too long to be looked at, or a quote that is not closed. "
                f"Nothing was drafted. Leave --look out."
            ) from None
    columns = {
        name: [row[i].strip() for row in lines if i < len(row) and row[i].strip()]
        for i, name in enumerate(names)
    }
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
    return kinds, Format(delimiter, "," if comma else ".", thousands, () if is_iso else tuple(date_formats))


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
    if _is_mostly(sum(v.lower() in ("true", "false") for v in values), values):
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
