"""Reads the first sheet of an Excel file, and files of SPSS (.sav) and Stata (.dta), as tables of texts; and
what their codes mean, for a draft.

Every cell becomes a text by itself, as in a CSV file: what type a column has is declared, and never follows
from its cells. A whole number has no decimal point, and a day is written 2025-12-31.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from .._errors import InvalidInput, MissingExtra
from .columns import check_names


class Code(NamedTuple):
    """Is a value of a column, what it means, and whether it stands for a missing value."""

    value: str
    label: str
    missing: bool


def read(path: Path) -> pa.Table:
    """Return a file as a table of texts."""
    names, columns = _excel(path) if path.suffix == ".xlsx" else _statistics(path)
    if not names or "" in names:
        raise InvalidInput(f"the first line of {path.name!r} must name the columns, each once.")
    check_names(path.name, names)
    texts = (pa.array([_text(cell) for cell in cells], pa.string()) for cells in columns)
    return pa.table(dict(zip(names, texts, strict=True)))


def codes_of(path: Path) -> dict[str, list[Code]]:
    """Return by column the codes that a codebook explains: a file of SPSS or Stata with its labels, or an
    Excel file with the columns `variable`, `value`, `label` and, if there is one, `missing`."""
    codes: dict[str, list[Code]] = {}
    if path.suffix == ".xlsx":
        rows = (
            read(path).rename_columns([name.strip().lower() for name in read(path).column_names]).to_pylist()
        )
        if not rows or not {"variable", "value", "label"} <= rows[0].keys():
            raise InvalidInput(
                f"{path.name!r} is no codebook: its first line must name variable, value, label and, where "
                "some codes stand for a missing value, missing."
            )
        for row in rows:
            if row["variable"] and row["value"]:
                said = (row.get("missing") or "").strip().lower()
                code = Code(row["value"], row["label"] or "", said not in ("", "no", "0", "false"))
                codes.setdefault(row["variable"], []).append(code)
        return codes
    meta = _metadata(path)
    for name, labels in meta.variable_value_labels.items():
        ranges = meta.missing_ranges.get(name, [])
        codes[name] = [
            Code(_text(value) or "", str(label), any(r["lo"] <= value <= r["hi"] for r in ranges))
            for value, label in labels.items()
        ]
    return codes


def _excel(path: Path) -> tuple[list[str], Iterable[Any]]:
    """Return the names and the columns of the first sheet."""
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise MissingExtra.of("formats", "Excel files need openpyxl") from None
    rows = list(
        _or_refused(path, lambda: load_workbook(path, read_only=True, data_only=True).worksheets[0].values)
    )
    names = ["" if name is None else str(name) for name in (rows[0] if rows else ())]
    return names, ([row[i] for row in rows[1:]] for i in range(len(names)))


def _statistics(path: Path) -> tuple[list[str], Iterable[Any]]:
    """Return the names and the columns of a file of SPSS or Stata, codes of missing values as they are."""
    columns, _ = _or_refused(path, lambda: _reader(path)(str(path), output_format="dict", user_missing=True))
    return list(columns), columns.values()


def _metadata(path: Path) -> Any:
    """Return what a file of SPSS or Stata says about its columns; no row is read."""
    return _or_refused(path, lambda: _reader(path)(str(path), metadataonly=True, user_missing=True))[1]


def _reader(path: Path) -> Any:
    try:
        import pyreadstat
    except ImportError:
        raise MissingExtra.of("formats", "files of SPSS and Stata need pyreadstat") from None
    return pyreadstat.read_sav if path.suffix == ".sav" else pyreadstat.read_dta


def _or_refused(path: Path, read: Callable[[], Any]) -> Any:
    """Return what is read; the library's error is not shown, as it may quote the file."""
    try:
        return read()
    except MissingExtra:
        raise
    except Exception:
        raise InvalidInput(f"{path.name!r} cannot be read as {path.suffix}. Check the file.") from None


def _text(cell: Any) -> str | None:
    """Return a cell as a text; None for an empty one."""
    if cell is None or cell == "" or cell != cell:
        return None
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    if isinstance(cell, datetime):
        return str(cell.date()) if cell.time() == time() else cell.isoformat(sep=" ")
    return str(cell)
