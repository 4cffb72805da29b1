"""Counts the rows in each cell of a discretized table in the engine, which returns the counts of the cells
that occur, and nothing else of the rows.

A column is coded by `Coding`: a whole number for every declared category, or for every bin between public
edges, and one more for missing values. Which code a row has depends on that row alone. Of a unit with many
rows at most `rows` are counted: those with the smallest keyed hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlglot import exp

from .._errors import Unsupported
from .._public import Boolean, Bounds, Categories, Dates, Fact, Public, Text
from . import semantics
from .columns import coarse, codes_as_days
from .engines.duckdb import engine_of
from .semantics import SelectNode, aliased, name, select
from .source import Engine, Source


@dataclass(frozen=True, slots=True)
class Coding:
    """Says how the values of a column become codes from 0 on.

    `fact` is what the schema declares about the column. `edges` cut numbers into bins [e0, e1), ..., the last
    one closed, or dates, as days after the first possible date; values outside belong to the nearest bin.
    With `missing`, the last code is that of NULL and of values outside the declared categories; without it,
    these have code 0.
    """

    column: str
    fact: Fact
    edges: tuple[float, ...] = ()
    missing: bool = True

    @property
    def size(self) -> int:
        """The number of codes; as a number, `missing` is 1 or 0."""
        if isinstance(self.fact, Categories):
            return len(self.fact.values) + self.missing
        return (2 if isinstance(self.fact, Boolean) else len(self.edges) - 1) + self.missing


@dataclass(frozen=True, slots=True)
class CodedCells:
    """Holds the cells that occur: for each its code in every column, and how many rows are in it."""

    codes: tuple[NDArray[np.int64], ...]
    counts: NDArray[np.int64]


def count_cells(
    source: Source, codings: Sequence[Coding], *, rows: int | None = None, key: int = 0
) -> CodedCells:
    """Count the rows in every cell that occurs; where a column names the unit of a row, at most `rows` rows
    of each unit. `key` is the secret key of the hash that chooses them.

    Guarantee: for every `key`, two tables that differ in one unit give counts that differ in that unit's
               rows, at most `rows` of them where a column names the unit. Rows without a unit count nowhere.
    Proof:     a row's code is a function of the row. The rows of a unit are ordered by a keyed hash of the
               unit, the codes and a number among rows with the same codes, ties by codes and number: a total
               order that only the unit's own rows decide, of which the first `rows` are kept. Rows with the
               same codes are interchangeable.
    """
    engine, names = engine_of(source), [f"c{i}" for i in range(len(codings))]
    return _run_query(engine, _cells_query(engine, source.public, codings, names, rows, key), names)


def plan_cells(source: Source, codings: Sequence[Coding], *, rows: int | None = None) -> None:
    """Let the engine plan the query of `count_cells`, before anything is charged; raise if it cannot."""
    engine, names = engine_of(source), [f"c{i}" for i in range(len(codings))]
    engine.plan([engine.dialect.write(_cells_query(engine, source.public, codings, names, rows, 0))])


def _cells_query(
    engine: Engine, public: Public, codings: Sequence[Coding], names: list[str], rows: int | None, key: int
) -> SelectNode:
    """Write the query of `count_cells`."""
    rows_of_table = _select_codes(engine, public.table, codings, names, public.unit.column)
    prefix = _prefix(public.table)
    query, origin = select().with_(f"{prefix}coded", as_=rows_of_table), f"{prefix}coded"
    if public.unit.column is not None:
        assert rows is not None
        query, origin = _with_chosen_rows(query, names, rows, key, prefix), f"{prefix}chosen"
    return _group_codes(query, names, origin)


def _prefix(table: str) -> str:
    """Return a prefix for the names of the relations in WITH that the table's name does not begin with, so
    that none is mistaken for the table."""
    prefix = "cells_"
    while table.lower().startswith(prefix):
        prefix += "_"
    return prefix


def _group_codes(query: SelectNode, names: list[str], origin: str) -> SelectNode:
    """Count the rows of a relation by columns of codes."""
    query = query.select(*map(name, names), aliased(exp.Count(this=exp.Star()), "n"))
    return query.from_(origin).group_by(*map(name, names))


def _run_query(engine: Engine, query: SelectNode, names: list[str]) -> CodedCells:
    """Return the groups that occur, with their counts, in the order of codes."""
    answer = engine.answer(engine.dialect.write(query))
    columns = [answer.column(name).to_numpy().astype(np.int64) for name in [*names, "n"]]
    # The engine may return the groups in any order. They are sorted, so that the order tells nothing else.
    order = np.lexsort(columns[:-1]) if len(columns) > 1 else np.arange(len(columns[0]))
    return CodedCells(tuple(column[order] for column in columns[:-1]), columns[-1][order])


def _select_codes(
    engine: Engine, table: str, codings: Sequence[Coding], names: list[str], unit: str | None
) -> SelectNode:
    """Write SELECT of the codes of every row and its unit; rows without a unit are left out."""
    kinds = engine.id_kinds[table]
    columns = [
        aliased(code_of(name(c.column), c, kinds.get(c.column, "text")), alias)
        for alias, c in zip(names, codings, strict=True)
    ]
    rows = select(*columns).from_(exp.Table(this=exp.to_identifier(table, quoted=True)))
    if unit is not None:
        present = exp.Not(this=exp.Is(this=name(unit), expression=exp.Null()))
        canonical = semantics.Canonical(this=name(unit), kind=kinds[unit])
        rows = rows.select(aliased(canonical, "u")).where(present)
    return rows


def _with_chosen_rows(query: SelectNode, names: list[str], rows: int, key: int, prefix: str) -> SelectNode:
    """Add the relation "chosen" to WITH: at most `rows` rows of every unit, by keyed hash.

    It has the unit "u" and the codes. On the way, "o" is a number among rows with the same unit and codes,
    and "r" the rank by hash among the rows of a unit.
    """
    # Spark demands an order to number rows. All rows of a partition have the same unit, so ordering by it
    # decides nothing.
    number = exp.Window(
        this=exp.RowNumber(),
        partition_by=[name("u"), *map(name, names)],
        order=exp.Order(expressions=[exp.Ordered(this=name("u"))]),
    )
    numbered = select(name("u"), *map(name, names), aliased(number, "o")).from_(f"{prefix}coded")
    hashed = semantics.KeyedHash(key=key, expressions=[name("u"), *map(name, names), name("o")])
    order = [hashed, *map(name, names), name("o")]
    rank = exp.Window(
        this=exp.RowNumber(),
        partition_by=[name("u")],
        order=exp.Order(expressions=[exp.Ordered(this=ordering) for ordering in order]),
    )
    ranked = select(name("u"), *map(name, names), aliased(rank, "r")).from_(f"{prefix}numbered")
    within_limit = exp.LTE(this=name("r"), expression=_integer(rows))
    chosen = select(name("u"), *map(name, names)).from_(f"{prefix}ranked").where(within_limit)
    query = query.with_(f"{prefix}numbered", as_=numbered)
    return query.with_(f"{prefix}ranked", as_=ranked).with_(f"{prefix}chosen", as_=chosen)


def code_of(column: Any, coding: Coding, id_kind: str) -> Any:
    """Return the SQL expression of a value's code, which cannot fail on any row and is never NULL. `id_kind`
    is the kind of the column in the engine (`columns.ID_KINDS`)."""
    kind = coarse(id_kind)
    fact, null_code = coding.fact, _integer(coding.size - 1 if coding.missing else 0)
    if isinstance(fact, Categories):
        return _category_code(column, fact, id_kind, null_code)
    if isinstance(fact, Boolean):
        stored = semantics.without_numbers(column, fact.missing) if kind == "integer" else column
        truth = _as("boolean", stored, kind in ("boolean", "integer"))
        cases = [(exp.Not(this=exp.Paren(this=truth)), 0), (truth.copy(), 1)]
        return exp.Case(ifs=[exp.If(this=c, true=_integer(i)) for c, i in cases], default=null_code)
    if isinstance(fact, Text):
        raise Unsupported(
            f"column {coding.column!r} is text, whose possible values are not public. Declare its "
            "categories, or leave it out."
        )
    number = _days(column, fact, kind) if isinstance(fact, Dates) else _number(column, fact, kind)
    is_null = exp.Is(this=number, expression=exp.Null())
    ifs = [exp.If(this=is_null, true=null_code)]
    for i, edge in enumerate(coding.edges[1:-1]):
        below = exp.LT(this=number.copy(), expression=semantics.Number(this=repr(float(edge))))
        ifs.append(exp.If(this=below, true=_integer(i)))
    return exp.Case(ifs=ifs, default=_integer(max(0, len(coding.edges) - 2)))


def _category_code(column: Any, fact: Categories, id_kind: str, null_code: Any) -> Any:
    """Write the code of a category: its position in the declared list, else `null_code`."""
    if all(isinstance(value, int) for value in fact.values):
        compared = _as("double", column, coarse(id_kind) in ("integer", "number"))
        values: list[Any] = [semantics.Number(this=repr(float(value))) for value in fact.values]
    else:
        compared = semantics.canonical_text(column, id_kind)
        values = [exp.Literal.string(str(value)) for value in fact.values]
    ifs = [
        exp.If(this=exp.EQ(this=compared.copy(), expression=value), true=_integer(i))
        for i, value in enumerate(values)
    ]
    return exp.Case(ifs=ifs, default=null_code)


def _number(column: Any, fact: Bounds, kind: str) -> Any:
    """Write a number clipped to its bounds; NULL where it is none, not finite, or a code of a missing
    value."""
    low, high = (semantics.Number(this=repr(float(end))) for end in (fact.lower, fact.upper))
    stored = _as("double", column, kind in ("integer", "number", "boolean"))
    number = semantics.without_numbers(stored, fact.missing)
    return semantics.Clip(this=number, low=low, high=high, may_be_nan=kind != "integer")


def _days(column: Any, fact: Dates, kind: str) -> Any:
    """Write the days of a date after the first possible one; NULL for a code of a missing value."""
    codes = [semantics.Day(this=code.isoformat()) for code in codes_as_days(fact.missing)]
    day = semantics.without_codes(_as("date", column, kind == "date"), codes)
    first = semantics.Day(this=date.fromisoformat(fact.lower).isoformat())
    return semantics.DaysBetween(this=day, expression=first)


def _as(to: str, column: Any, safe: bool) -> Any:
    """Convert a column; where that is not `safe` for every value, those that do not convert become NULL."""
    return semantics.Convert(this=column, to=to) if safe else semantics.SafeCast(this=column, to=to)


def _integer(value: int) -> Any:
    return exp.Literal.number(value)
