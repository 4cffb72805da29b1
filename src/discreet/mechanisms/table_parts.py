"""Defines parts of a table that consist of whole units, and the functions that sample-and-aggregate runs on
them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .. import _require
from .._errors import INTERRUPTIONS
from .._registry import described
from ..tables import Source
from . import arrow_columns

Ints = NDArray[np.int64]


@described("mechanisms.PartMean")
@dataclass(frozen=True, slots=True, kw_only=True)
class PartMean:
    """Computes the mean of a column in one part; None where the part has no value.

    A function for `SampleAndAggregate`. Unlike a Python callable it has a JSON description (`described`), so
    that a release made with it can be stored and served again.
    """

    column: str

    def __call__(self, part: Any) -> float | None:
        # slow to load
        import pyarrow.compute as pc

        mean = pc.mean(part.column(self.column)).as_py()
        return None if mean is None else float(mean)


@described("mechanisms.PartMode")
@dataclass(frozen=True, slots=True, kw_only=True)
class PartMode:
    """Computes the most frequent value of a column in one part; the smallest of several equally frequent
    ones.

    A function with a JSON description, as `PartMean`, for `SubsampleAggregateStable`.
    """

    column: str

    def __call__(self, part: Any) -> Hashable:
        # slow to load
        import pyarrow.compute as pc

        counts = pc.value_counts(pc.drop_null(part.column(self.column))).to_pylist()
        return (
            min(counts, key=lambda entry: (-entry["counts"], entry["values"]))["values"] if counts else None
        )


def read_units(source: Source, columns: tuple[str, ...]) -> tuple[Any, Ints, list[Any] | None]:
    """Return the table of `columns`, for each row the number of its unit, and the names of the units: the
    values of the unit's column (None where each row is a unit)."""
    unit = source.public.unit.column
    wanted = list(columns) if unit is None or unit in columns else [*columns, unit]
    batches = list(source.batches(wanted))
    table = pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in wanted})
    if unit is None:
        return table.select(list(columns)), np.arange(table.num_rows, dtype=np.int64), None
    names, units = units_of(table.column(unit))
    return table.select(list(columns)), units, names


def units_of(column: Any) -> tuple[list[Any], Ints]:
    """Return the names of units, and the position of each row's unit among them."""
    # slow to load
    import pyarrow.compute as pc

    encoded = arrow_columns.one_name_each(column.combine_chunks()).dictionary_encode()
    # Rows without a name are one unit. It is listed even where there are no such rows.
    names = [*encoded.dictionary.to_pylist(), None]
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), len(names) - 1).to_numpy(zero_copy_only=False)
    return names, codes.astype(np.int64)


def rows_of(table: Any, units: Ints, kept: Ints, number: int, by_rows: bool) -> Any:
    """Return the rows of the units that a subsample keeps.

    `units` is the unit of each row, `kept` are the numbers of the kept units out of `number`; `by_rows` is
    True where each row is a unit of its own.
    """
    if by_rows:
        return table.take(pa.array(kept))
    chosen = np.zeros(number, bool)
    chosen[kept] = True
    return table.take(pa.array(np.flatnonzero(chosen[units])))


def quietly(function: Callable[[Any], Any], part: Any) -> Any:
    """Return the function's answer, or None where it raises, its answer is not hashable, or the part has no
    rows.

    An exception that reached the caller would be a release of its own, which depends on one part. A part
    without rows is not shown to the function: in an empty table its columns have no type, so that every part
    would show that the whole table is empty.
    """
    if part.num_rows == 0:
        return None
    try:
        answer = function(part)
        hash(answer)
    except INTERRUPTIONS:
        raise
    except BaseException:
        return None
    return answer


CanonicalAnswer = tuple[Any, str]


def canonical_answer(answer: Any) -> CanonicalAnswer:
    """Return an answer with its repr, so that only answers that are written alike are counted as one.

    0.0 and -0.0 are equal, and so are 1 and True. If they were counted as one answer, a single subsample
    could decide which of the two is released.
    """
    try:
        return answer, repr(answer)
    except INTERRUPTIONS:
        raise
    except BaseException:
        return None, "None"


def check_columns(columns: Any) -> tuple[str, ...]:
    if not all(isinstance(name, str) for name in _require.listed(columns=columns)):
        raise _require.fail("columns", columns, "a list of column names")
    _require.non_empty(columns=columns)
    return tuple(columns)


def check_function(function: Any, columns: tuple[str, ...]) -> None:
    """Refuse an object that is not callable, and a `PartMean` or `PartMode` of a column not in `columns`."""
    if not callable(function):
        raise _require.fail("function", function, "callable on an Arrow table, such as PartMean(column=...)")
    if isinstance(function, PartMean | PartMode) and function.column not in columns:
        raise _require.fail("function", function, f"of a column that its parts have: {', '.join(columns)}")
