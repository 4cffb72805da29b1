"""Describes the format of a CSV file: the delimiter of its fields, its decimal and thousands marks, its
dates.

The steward declares it in the schema file. It is never guessed when a table is opened; `look` proposes one
for a draft of that file.

    [format]
    delimiter = ";"
    decimal = ","
    thousands = "."
    dates = ["%d.%m.%Y", "%Y-%m-%d"]

A value that does not convert is missing: `discreet check` shows the steward the share of such values.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import _require
from .._errors import InvalidInput
from .._public import Bounds, Dates, Fact, Public

FIELDS = {"delimiter", "decimal", "thousands", "dates"}


@dataclass(frozen=True, slots=True)
class Format:
    """Describes how a CSV file is written. A `delimiter` of None stands for a comma, or a tab in .tsv files.

    `dates`: formats of strptime, tried in this order; without any, dates are read as ISO (2020-01-31).
    """

    delimiter: str | None = None
    decimal: str = "."
    thousands: str = ""
    dates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dates", _require.listed(dates=self.dates))
        if self.delimiter is not None and (
            not isinstance(self.delimiter, str)
            or len(self.delimiter) != 1
            or not self.delimiter.isascii()
            or self.delimiter in '"\n\r'
        ):
            # It must be one byte, because `quotes.multiline` compares single bytes.
            raise _require.fail("delimiter", self.delimiter, "one character of ASCII, such as ';'")
        if self.decimal not in (".", ","):
            raise _require.fail("decimal", self.decimal, "'.' or ','")
        if (
            self.thousands not in ("", ".", ",", " ", "'", "\u00a0", "\u202f")
            or self.thousands == self.decimal
        ):
            raise _require.fail(
                "thousands", self.thousands, "'' or a mark such as '.', and not the decimal mark"
            )
        for text in self.dates:
            if not isinstance(text, str) or "%" not in text or len(text) > 40:
                raise _require.fail("dates", text, "formats such as '%d.%m.%Y'")


@dataclass(frozen=True, slots=True)
class Csv:
    """Names a CSV file with its format, and the columns declared as numbers and as dates (`days`)."""

    path: Path
    format: Format
    numbers: tuple[str, ...] = ()
    days: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.name


def format_of(file: Path) -> Format:
    """Return the format that a schema file declares."""
    section = tomllib.loads(file.read_text(encoding="utf-8-sig")).get("format", {})
    if not isinstance(section, dict):
        raise InvalidInput(f"[format] must be a table, got {type(section).__name__}. Nothing was opened.")
    if unknown := sorted(set(section) - FIELDS):
        raise InvalidInput(
            f"[format] has no entry {unknown[0]!r}.{_require.did_you_mean(unknown[0], FIELDS)} It may have "
            f"{', '.join(sorted(FIELDS))}. Nothing was opened."
        )
    return Format(**section)


def formatted(data: Any, schema: Path, public: Public) -> Any:
    """Return CSV data with the format that a schema file declares; unchanged data where it declares none. A
    format for data that is no CSV file is refused."""
    format = format_of(schema)
    if format == Format():
        return data
    # A `Files`, which cannot be imported here because its module imports this one.
    is_several = hasattr(data, "written_as")
    first = data.paths[0] if is_several else data
    suffixes = Path(first).suffixes if isinstance(first, str | Path) else []
    if not any(suffix in (".csv", ".tsv") for suffix in suffixes):
        raise InvalidInput(
            "[format] is about CSV files, and this is none. Nothing was opened. Take it out of the "
            "schema file."
        )
    for name, fact in public.schema:
        _check_codes(name, fact, format)
    numbers = tuple(name for name, fact in public.schema if isinstance(fact, Bounds))
    days = tuple(name for name, fact in public.schema if isinstance(fact, Dates))
    return data.written_as(format, numbers, days) if is_several else Csv(Path(data), format, numbers, days)


def _check_codes(name: str, fact: Fact, format: Format) -> None:
    """Refuse a code of a missing value that is a number or a day in the file's notation, and another one or
    none by itself: codes are compared after the file is read, so it would match nothing, and 01.01.1900 would
    count as the lower bound."""
    for code in (code for code in fact.missing if isinstance(code, str)):
        meant: list[Any] = []
        by_itself: list[Any] = []
        if isinstance(fact, Bounds):
            digits = code.replace(format.thousands, "") if format.thousands else code
            meant = _read(float, digits.replace(format.decimal, "."))
            by_itself = _read(float, code)
        elif isinstance(fact, Dates):
            meant = [day for form in format.dates for day in _read(datetime.strptime, code, form)][:1]
            by_itself = _read(datetime.fromisoformat, code)
        # by what they look like: NaN differs from itself
        if meant and str(meant) != str(by_itself):
            value = meant[0] if isinstance(fact, Bounds) else f'"{meant[0].date()}"'
            raise InvalidInput(
                f"column {name!r}: the code {code!r} is written as in the file, and codes are compared after "
                f"the file is read. Nothing was opened. Write missing = [{value}]."
            )


def _read(convert: Callable[..., Any], *arguments: str) -> list[Any]:
    """Return what a text says, as a list of one; an empty list where it says nothing."""
    with suppress(ValueError):
        return [convert(*arguments)]
    return []
