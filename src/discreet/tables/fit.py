"""Tells the steward, and nobody else, how well a table fits what is declared of it, as coarse shares.

Shares are exact facts about the data, not differentially private: they are never shown to analysts and never
part of a release. No value is shown, and a share only as one of a few ranges ("1 to 5%").

Makes an engine for a part of a table: the rows whose value in one column lies in given periods of time,
or is a given value.

Whether a row belongs to a part depends on that row alone. Parts of different values of one type, or of
periods that do not overlap, never share a row. A row whose value is missing, or does not convert, belongs to
no part.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from .. import _require
from .._errors import InvalidInput, Unsupported
from .._public import Boolean, Bounds, Categories, Dates, Fact, Public
from .columns import codes_as_numbers, codes_as_texts
from .engines.duckdb import DuckDB, engine_of
from .files import Csv, Format, is_utf8, kind_of_file, open_bytes, open_text, several
from .source import Source, literal, quoted

# Upper limits of shares, each with the words for shares up to it and above the limit before.
_WORDS = ((0.0, "none"), (0.01, "under 1%"), (0.05, "1 to 5%"), (0.2, "5 to 20%"), (0.5, "20 to 50%"))
# Limits on rows that the steward is shown shares for, beside the declared one.
_LIMITS = (1, 5, 20, 100)
# Parts of a date that people group by, from coarse to fine.
_DATE_PARTS = ("year", "month")


def coarse(count: int, total: int) -> str:
    """Return the share in words.

    >>> coarse(0, 10), coarse(1, 1000), coarse(3, 10), coarse(0, 0)
    ('none', 'under 1%', '20 to 50%', 'none')
    """
    share = count / total if total else 0.0
    return next((word for limit, word in _WORDS if share <= limit), "over half")


def fit_of(engine: DuckDB) -> tuple[dict[str, dict[str, str]], dict[str, str], dict[str, str]]:
    """Return three mappings: per declared column, the shares of values that are missing, do not convert, or
    lie outside the declared bounds or categories, and that its codebook rewrites (columns of another table
    are under "table.column"); per limit, the share of people with more rows; and per column that can be
    grouped by, the share of people in more groups than the declared limit."""
    public = engine.public
    table = quoted(public.table)
    columns = {}
    for of, schema in ((public.table, public.schema), *((t.name, t.schema) for t in public.tables)):
        for name, fact in schema:
            conditions = dict(
                zip(("missing", "unreadable", "outside"), _conditions(quoted(name), fact), strict=True)
            )
            label = name if of == public.table else f"{of}.{name}"
            columns[label] = _shares(engine, quoted(of), conditions)
            if steps := _rewritings(engine, of, name):
                columns[label] |= _shares(engine, engine._opened.plain[of], steps)
    return columns, _people(engine, table), _groups(engine, table)


def _shares(engine: DuckDB, table: str, conditions: Mapping[str, str]) -> dict[str, str]:
    """Return the coarse shares of rows that fulfil some conditions, by their names."""
    parts = "".join(
        f", COUNT(*) FILTER (WHERE {condition}) AS c{i}" for i, condition in enumerate(conditions.values())
    )
    total, *counts = _row(engine, f"SELECT COUNT(*) AS a{parts} FROM {table}")
    return dict(zip(conditions, (coarse(count, total) for count in counts), strict=True))


def _rewritings(engine: DuckDB, table: str, column: str) -> dict[str, str]:
    """Return, for each stage of a column's codebook, the SQL condition that it changes a value."""
    # Imported late: the SQL library is slow to load.
    from .codebook import stages

    book = engine._opened.codebooks.get(table, {}).get(column)
    # A codebook for all columns says nothing about those that hold no texts.
    if book is None or (book.for_all and engine.kinds[table][column] != "text"):
        return {}
    conditions, before = {}, quoted(column)
    for name, node in stages(column, book):
        after = engine.dialect.write(node.copy())
        conditions[f"read by {name}"] = f"({after}) IS DISTINCT FROM ({before})"
        before = after
    return conditions


def ids_of(engine: DuckDB) -> dict[str, str]:
    """Return, in words, the coarse shares of rows that belong to nobody, or to few: of the main table and of
    those whose rows have a column of the unit."""
    public = engine.public
    units = {public.table: public.unit.column, **{t.name: t.unit_column for t in public.tables}}
    facts = {}
    for table, unit in units.items():
        if unit is None:
            continue
        column, most = quoted(unit), _LIMITS[-1]
        many = f"{column} IS NOT NULL AND COUNT(*) OVER (PARTITION BY {column}) > {most}"
        rows = f"(SELECT {column} IS NULL AS nobody, {many} AS many FROM {quoted(table)}) AS ids"
        shares = _shares(engine, rows, {"nobody": "nobody", "many": "many"})
        facts[f"rows of {table} without {unit}, which are in no answer"] = shares["nobody"]
        facts[f"rows of {table} whose {unit} has more than {most} rows"] = shares["many"]
    return facts


def not_utf8(data: Any) -> str | None:
    """Return the coarse share of lines of CSV files that are not text in UTF-8, which the engine leaves out;
    None for files of another declared encoding, and for other tables."""
    paths = [path for path, format in _csv_parts(data) if format.encoding is None]
    lines = broken = 0
    for path in paths:
        with open_bytes(path) as file:
            for line in file:
                lines += 1
                broken += not is_utf8(line)
    return coarse(broken, lines) if paths else None


def odd_lines(data: Any) -> dict[str, str]:
    """Return the coarse shares of records of CSV files that have more fields than their first line names, of
    which the last are left out, and fewer, of which the last are missing."""
    counts = {"more": 0, "fewer": 0}
    records = 0
    for path, format in _csv_parts(data):
        mark = format.delimiter or ("\t" if ".tsv" in path.suffixes else ",")
        with open_text(path, errors="replace", encoding=format.encoding) as file:
            rows = csv.reader(file, delimiter=mark)
            width = len(next(rows, []))
            for row in rows:
                records += 1
                counts["more"] += len(row) > width
                counts["fewer"] += 0 < len(row) < width
    return {name: coarse(count, records) for name, count in counts.items()} if records else {}


def _csv_parts(data: Any) -> list[tuple[Path, Format]]:
    """Return the CSV files of a table, each with its format; none for other tables."""
    files = several(data)
    parts = files.parts if files is not None else (data,)
    csvs = [(part.path, part.format) if isinstance(part, Csv) else (part, Format()) for part in parts]
    is_csv = all(isinstance(path, Path) and kind_of_file(path) == "csv" for path, _ in csvs)
    return csvs if is_csv else []


def _people(engine: DuckDB, table: str) -> dict[str, str]:
    """Return, for each of some limits, the coarse share of units with more rows."""
    unit = engine.public.unit
    if unit.column is None:
        return {}
    limits = sorted({*_LIMITS, *([unit.rows] if unit.rows else [])})
    parts = ", ".join(f"COUNT(*) FILTER (WHERE n > {limit}) AS c{limit}" for limit in limits)
    column = quoted(unit.column)
    inner = f"SELECT COUNT(*) AS n FROM {table} WHERE {column} IS NOT NULL GROUP BY {column}"
    total, *counts = _row(engine, f"SELECT COUNT(*) AS a, {parts} FROM ({inner}) AS one")
    labels = [
        f"{limit} row{'' if limit == 1 else 's'}{' (the declared limit)' if limit == unit.rows else ''}"
        for limit in limits
    ]
    return dict(zip(labels, (coarse(count, total) for count in counts), strict=True))


def _groups(engine: DuckDB, table: str) -> dict[str, str]:
    """Return the share of people who are in more groups than the declared limit (`groups`, or `rows` where
    there is none): per column of categories or true and false by its values, and per column of dates by its
    years and its months, which GROUP BY makes groups of as well."""
    unit = engine.public.unit
    limit = unit.groups or unit.rows
    if unit.column is None or limit is None:
        return {}
    shares = {}
    for name, fact in engine.public.schema:
        if name == unit.column:
            continue
        for label, key, condition in _group_keys(name, fact):
            inner = (
                f"SELECT COUNT(DISTINCT {key}) FILTER (WHERE {condition}) AS n FROM {table} "
                f"WHERE {quoted(unit.column)} IS NOT NULL GROUP BY {quoted(unit.column)}"
            )
            total, above = _row(
                engine,
                f"SELECT COUNT(*) AS a, COUNT(*) FILTER (WHERE n > {limit}) AS b FROM ({inner}) AS one",
            )
            shares[label] = coarse(above, total)
    return shares


def _group_keys(name: str, fact: Fact) -> list[tuple[str, str, str]]:
    """Return, for each usual GROUP BY over a column, its name for the steward, the SQL of its key, and the
    SQL condition of the rows that are in a group."""
    column = quoted(name)
    missing, unreadable, outside = _conditions(column, fact)
    if isinstance(fact, Dates):
        # a day outside the bounds counts as the nearest of them
        low, high = f"DATE {literal(fact.lower)}", f"DATE {literal(fact.upper)}"
        day = f"LEAST(GREATEST(TRY_CAST({column} AS DATE), {low}), {high})"
        present = f"NOT ({missing} OR {unreadable})"
        return [(f"the {part}s of {name}", f"DATE_TRUNC('{part}', {day})", present) for part in _DATE_PARTS]
    if isinstance(fact, Categories | Boolean):
        return [(name, _key(column, fact), f"NOT ({missing} OR {unreadable} OR {outside})")]
    return []


def _key(column: str, fact: Categories | Boolean) -> str:
    """Return the SQL of the value that groups are made of; where categories are whole numbers, 1 and 1.0 are
    the same."""
    if isinstance(fact, Boolean):
        return f"TRY_CAST({column} AS BOOLEAN)"
    return f"TRY_CAST({column} AS DOUBLE)" if _numeric(fact) else f"CAST({column} AS VARCHAR)"


def _numeric(fact: Categories) -> bool:
    return all(isinstance(value, int) for value in fact.values)


def _row(engine: DuckDB, sql: str) -> list[int]:
    """Return the counts in the only row of an answer."""
    answer = engine.answer(sql)
    return [int(answer.column(name)[0].as_py()) for name in answer.column_names]


def _conditions(column: str, fact: Fact) -> tuple[str, str, str]:
    """Return the SQL conditions under which a value is missing, unreadable, and outside the bounds or
    categories."""
    missing = f"{column} IS NULL OR TRIM(CAST({column} AS VARCHAR)) = ''"
    if texts := ", ".join(map(literal, codes_as_texts(fact.missing))):
        missing += f" OR CAST({column} AS VARCHAR) IN ({texts})"
    if numbers := ", ".join(f"{code!r}::DOUBLE" for code in codes_as_numbers(fact.missing)):
        missing += f" OR COALESCE(TRY_CAST({column} AS DOUBLE) IN ({numbers}), false)"
    if isinstance(fact, Bounds):
        return _range_conditions(
            column, missing, "DOUBLE", f"{float(fact.lower)!r}::DOUBLE", f"{float(fact.upper)!r}::DOUBLE"
        )
    if isinstance(fact, Dates):
        return _range_conditions(
            column, missing, "DATE", f"DATE {literal(fact.lower)}", f"DATE {literal(fact.upper)}"
        )
    if isinstance(fact, Boolean):
        return missing, f"NOT ({missing}) AND TRY_CAST({column} AS BOOLEAN) IS NULL", "false"
    if isinstance(fact, Categories):
        literals = ", ".join(str(v) if _numeric(fact) else literal(str(v)) for v in fact.values)
        return (
            missing,
            "false",
            f"NOT ({missing}) AND COALESCE({_key(column, fact)} NOT IN ({literals}), true)",
        )
    return missing, "false", "false"


def _range_conditions(column: str, missing: str, to: str, low: str, high: str) -> tuple[str, str, str]:
    value = f"TRY_CAST({column} AS {to})"
    outside = f"NOT ({missing}) AND ({value} < {low} OR {value} > {high})"
    return missing, f"NOT ({missing}) AND {value} IS NULL", outside


# Days from the first up to, not including, the second; or one value. Integers are compared as doubles, so
# they must be below 2^53 in size.
Part = tuple[date, date] | str | int


class Within(DuckDB):
    """Reads a part of a table. It shares the engine, its limits and its lock; its connections see the part
    only."""

    def __init__(self, table: DuckDB, public: Public, condition: str) -> None:
        self.__dict__.update(table.__dict__)
        self._public = public
        self._condition = condition

    def _cursor(self) -> Any:
        """Return a connection with a temporary view of the table's name, which takes precedence over the
        table (`memory.main` is the schema that holds it) and exists on this connection only."""
        cursor, name = super()._cursor(), quoted(self._public.table)
        cursor.execute(
            f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT * FROM memory.main.{name} WHERE {self._condition}"
        )
        return cursor


def within(source: Source, column: str, parts: Sequence[Part], *, called: str) -> Within:
    """Return the rows of `source` whose `column` is in one of `parts`, of which there is at least one.

    `called` is appended to the version of the table, so that versions of different parts differ. The declared
    size is that of the whole table, so the part has none.
    """
    _require.non_empty(parts=_require.listed(parts=parts))
    for part in parts:
        if isinstance(part, int) and abs(part) >= 1 << 53:
            raise _require.fail("a part", part, "within 2**53 of zero, so that a double holds it exactly")
    engine = engine_of(source)
    if not isinstance(engine, DuckDB) or isinstance(engine, Within):
        raise Unsupported(f"{type(engine).__name__} cannot be restricted to a part of its rows.")
    public = source.public
    if column not in engine.kinds[public.table]:
        raise InvalidInput(
            f"there is no column {column!r}; the table has {list(engine.kinds[public.table])}."
        )
    condition = " OR ".join(_condition(quoted(column), part) for part in parts)
    return Within(engine, replace(public, size=None, version=f"{public.version} {called}"), condition)


def _condition(column: str, part: Part) -> str:
    """Return the SQL condition of a part, which cannot fail on any row."""
    if isinstance(part, tuple):
        day = f"TRY_CAST({column} AS DATE)"
        return f"({day} >= DATE '{part[0].isoformat()}' AND {day} < DATE '{part[1].isoformat()}')"
    if isinstance(part, int):
        return f"(TRY_CAST({column} AS DOUBLE) = {part})"
    return f"(CAST({column} AS VARCHAR) = {literal(part)})"
