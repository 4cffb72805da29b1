"""Generalizes tables to make them k-anonymous: along hierarchies of values, and by the algorithm Mondrian.

It is for comparison, not for protection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import _require
from .._errors import InvalidInput
from ..tables.engine import literal, quoted
from ..tables.engines.duckdb_reading import as_arrow
from .anonymity import engine


@dataclass(frozen=True, slots=True)
class ToInterval:
    """Replaces a number by the lower end of its interval: the largest multiple of `width` not above it."""

    width: int | float

    def __post_init__(self) -> None:
        _require.positive(width=self.width)

    def sql(self, column: str) -> str:
        return f"floor({column} / {float(self.width)!r}) * {float(self.width)!r}"


@dataclass(frozen=True, slots=True)
class ToPrefix:
    """Keeps the first characters of a code."""

    length: int

    def __post_init__(self) -> None:
        _require.integer(length=self.length, at_least=0)

    def sql(self, column: str) -> str:
        return f"left({column}::VARCHAR, {int(self.length)}) || '*'"


@dataclass(frozen=True)
class Groups:
    """Replaces a value by the group it belongs to; what belongs to none becomes `other`."""

    of: Mapping[Any, str]
    other: str = "*"

    def sql(self, column: str) -> str:
        cases = " ".join(f"WHEN {literal(str(v))} THEN {literal(group)}" for v, group in self.of.items())
        return (
            f"CASE {column}::VARCHAR {cases} ELSE {literal(self.other)} END" if cases else literal(self.other)
        )


SUPPRESSED = Groups({})
Step = ToInterval | ToPrefix | Groups


def generalize(data: Any, steps: Mapping[str, Step], *, keep: Sequence[str] = ()) -> pa.Table:
    """Return the columns in `steps`, each generalized by its step, and the columns `keep` as they are;
    computed in the engine.

    >>> people = {"age": [31, 38, 44], "zip": ["1234", "1299", "3000"]}
    >>> generalize(people, {"age": ToInterval(10), "zip": ToPrefix(2)}).to_pylist()[0]
    {'age': 30.0, 'zip': '12*'}
    """
    connected, table = engine(data, [*steps, *keep])
    selections = [f"{step.sql(quoted(name))} AS {quoted(name)}" for name, step in steps.items()] + [
        quoted(k) for k in keep
    ]
    return connected.answer(f"SELECT {', '.join(selections)} FROM {table}")


def mondrian(data: Any, identifiers: Sequence[str], k: int) -> pa.Table:
    """Return the table with each quasi-identifier replaced by the range of its class: k-anonymous (LeFevre,
    DeWitt & Ramakrishnan 2006).

    This is the strict variant: a set of rows is cut at the median of the column with the widest range (of
    ranks, as a share of the whole table's range) as long as both halves keep k rows. Every column, numeric or
    not, is used by the ranks of its values.
    """
    _require.integer(k=k, at_least=1)
    table = as_arrow(data)
    identifiers = _require.listed(identifiers=identifiers)
    _require.non_empty(identifiers=identifiers)
    missing = [name for name in identifiers if name not in table.column_names]
    if missing:
        raise InvalidInput(f"there is no column {missing[0]!r}; the table has {table.column_names}.")
    if table.num_rows < k:
        raise InvalidInput(f"fewer rows than k = {k}: no class can be that large. Nothing was computed.")
    codes, values = zip(*(_rank_codes(table[name]) for name in identifiers), strict=True)
    matrix = np.stack(codes, axis=1)
    class_of_row = np.zeros(table.num_rows, np.int64)
    for number, part in enumerate(_parts(matrix, k)):
        class_of_row[part] = number
    for j, name in enumerate(identifiers):
        column = pa.array(_ranges(matrix[:, j], class_of_row, values[j]))
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _rank_codes(column: Any) -> tuple[Any, list[Any]]:
    """Return the rank of each entry, and the value of each rank; a missing value comes first."""
    plain = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(plain.type):
        plain = plain.dictionary_decode()
    present = pc.unique(plain.drop_null()).sort()
    ranks = pc.fill_null(pc.index_in(plain, present), -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    return ranks, [None, *present.to_pylist()]


def _parts(matrix: Any, k: int) -> list[Any]:
    """Return the classes, as arrays of row numbers: sets of rows are cut until none can be cut further."""
    full_spans = np.maximum(np.ptp(matrix, axis=0), 1)
    todo, done = [np.arange(len(matrix))], []
    while todo:
        part = todo.pop()
        halves = _cut(matrix, part, full_spans, k) if len(part) >= 2 * k else None
        if halves is None:
            done.append(part)
        else:
            todo.extend(halves)
    return done


def _cut(matrix: Any, part: Any, full_spans: Any, k: int) -> tuple[Any, Any] | None:
    """Return the two sides of the median of the widest column that leaves k rows on both, or None."""
    spans = np.ptp(matrix[part], axis=0) / full_spans
    for j in np.argsort(-spans, kind="stable"):
        if spans[j] == 0:
            return None
        column = matrix[part, j]
        middle = int(np.partition(column, len(column) // 2)[len(column) // 2])
        # Equal ranks stay together: those of the median go to the upper side, or else to the lower.
        for low in (column < middle, column <= middle):
            if k <= int(low.sum()) <= len(part) - k:
                return part[low], part[~low]
    return None


def _ranges(ranks: Any, class_of_row: Any, values: list[Any]) -> list[str]:
    """Return, for each row, the range of values in its class, as text."""
    count = int(class_of_row.max()) + 1
    low, high = np.full(count, len(values)), np.full(count, -1)
    np.minimum.at(low, class_of_row, ranks)
    np.maximum.at(high, class_of_row, ranks)
    texts = [
        f"{values[a]}" if a == b else f"{values[a]} .. {values[b]}" for a, b in zip(low, high, strict=True)
    ]
    return [texts[i] for i in class_of_row]
