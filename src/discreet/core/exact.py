"""Runs the engine's part of a query, which returns exact integers for every group, before any noise.

These exact results are private: they must not be stored, logged or returned to an analyst.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from ..tables import Engine
from ..tables.dialect import Dialect
from ..tables.source import one_snapshot
from .choosing import SparseCounts
from .compile import Compiler
from .errors import QueryError
from .form import Form
from .measures import Choice, GroupKey, Measure
from .scan import Kinds

# The number of units in each group, by which groups that are not public are selected.
UNITS = Measure(kind="units")
# The number that stands for the key of the hash by which rows and groups of a unit are chosen (`compile`).
# Queries are written once with it, and each run replaces it by the run's own secret key. It is random in each
# process: an analyst who knew it could write it into a query, where it would be replaced by the key as well.
PLACEHOLDER = secrets.randbits(62) | 1 << 62


@dataclass(slots=True)
class Exact:
    """Holds the exact numbers of a query before noise.

    `keys`: one tuple of key values per group. `measures`: for each measure an array with one integer per
    group. `scores`: for each choice (a quantile, mode or top-k, which is then chosen with the exponential
    mechanism) how often each candidate occurs in each group, a `SparseCounts`. `units`: the number of units
    in each group, only where the groups are not public.
    """

    keys: list[tuple[Any, ...]]
    measures: list[Any]
    scores: list[Any]
    units: Any = None


@dataclass(frozen=True, slots=True)
class Statements:
    """Holds the engine's queries of one form, with `PLACEHOLDER` in the place of the hash's key.

    `additive`: the query for all sums and counts, `additive_measures`, in this order; None without any.
    `distinct`: a query for each distinct count. `choices`: a query for each choice.
    """

    additive: str | None
    additive_measures: tuple[Measure, ...]
    distinct: tuple[tuple[Measure, str], ...]
    choices: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """All queries, with the placeholder for the key."""
        additive = () if self.additive is None else (self.additive,)
        return (*additive, *(text for _, text in self.distinct), *self.choices)


def statements(form: Form, kinds: Kinds, dialect: Dialect) -> Statements:
    """Return the engine's queries of a form. They are written once for each kinds of columns and dialect, and
    kept in `form.written`."""
    written_for = (
        tuple(sorted((table, *sorted(columns.items())) for table, columns in kinds.items())),
        dialect.name,
    )
    cached: Statements | None = form.written.get(written_for)
    if cached is not None:
        return cached
    compiler = Compiler(form, kinds, PLACEHOLDER, dialect)
    additive_measures = [m for m in form.measures if m.kind != "distinct"]
    if not form.known_keys and UNITS not in additive_measures:
        additive_measures.append(UNITS)
    try:
        written = Statements(
            compiler.additive(additive_measures) if additive_measures else None,
            tuple(additive_measures),
            tuple(
                (m, compiler.distinct(m.expression))
                for m in form.measures
                if m.kind == "distinct" and m.expression
            ),
            tuple(
                (compiler.histogram if c.kind == "quantile" else compiler.frequencies)(c)
                for c in form.choices
            ),
        )
    except RecursionError:
        raise QueryError("the query nests too deep.") from None
    form.written[written_for] = written
    return written


def plan_statements(form: Form, engine: Engine) -> None:
    """Write the queries of a form, and let the engine plan them; raise if it cannot. Reads no row."""
    engine.plan(statements(form, engine.id_kinds, engine.dialect).texts)


def measure(form: Form, engine: Engine, key: int) -> Exact:
    """Run the engine's queries under the key of this run, all on the same rows."""
    with one_snapshot(engine):
        return _measure(form, engine, key)


def _measure(form: Form, engine: Engine, key: int) -> Exact:
    """Run the queries of one form, and return their exact results by group: all public groups in the order of
    `public_keys`, or the groups that occur."""
    written = statements(form, engine.id_kinds, engine.dialect)

    def answer(sql: str) -> pa.Table:
        return engine.answer(sql.replace(str(PLACEHOLDER), str(key)))

    table = None if written.additive is None else answer(written.additive)
    if form.known_keys:
        keys, index, size = public_keys(form.keys), None, form.groups or 1
        columns = (
            []
            if table is None
            else [_dense(table, f"m{i}", size) for i in range(len(written.additive_measures))]
        )
    else:
        assert table is not None
        keys, index = _occurring_keys(form.keys, table)
        size = len(keys)
        columns = [integers(table.column(f"m{i}")) for i in range(len(written.additive_measures))]
    by_measure = dict(zip(written.additive_measures, columns, strict=True))
    for m, sql in written.distinct:
        by_measure[m] = _dense(answer(sql), "m0", size, index)
    scores = [
        _scores(answer(sql), c, size, index) for c, sql in zip(form.choices, written.choices, strict=True)
    ]
    return Exact(
        keys,
        [by_measure[m] for m in form.measures],
        scores,
        None if form.known_keys else by_measure[UNITS],
    )


def public_keys(group_keys: tuple[GroupKey, ...]) -> list[tuple[Any, ...]]:
    """Return the keys of all public groups in the order of their index (`Compiler._indexed`): the last key
    changes fastest."""
    keys: list[tuple[Any, ...]] = [()]
    for k in group_keys:
        keys = [(*key, value) for key in keys for value in (k.values or ())]
    return keys


def _occurring_keys(
    group_keys: tuple[GroupKey, ...], table: pa.Table
) -> tuple[list[tuple[Any, ...]], dict[int, int]]:
    """Return the keys of the groups that occur, and for each index j of the engine its position in that
    list."""
    columns = []
    for i, k in enumerate(group_keys):
        raw = table.column(f"k{i}").to_pylist()
        # 0.0 and -0.0 are one group, and which of the two an engine returns depends on private rows. So -0.0
        # becomes 0.0 (0 + -0.0 is 0.0), and all other values stay.
        plain = [0 + v if isinstance(v, float) else v for v in raw]
        columns.append([k.values[v] for v in raw] if k.values is not None else plain)
    keys = list(zip(*columns, strict=True))
    return keys, {j: index for index, j in enumerate(table.column("j").to_pylist())}


def _scores(table: pa.Table, choice: Choice, size: int, index: dict[int, int] | None) -> SparseCounts:
    """Return how often each candidate of a choice occurs in each group."""
    quantile = choice.kind == "quantile"
    parts = (
        _positions(table, index),
        integers(table.column("x0" if quantile else "vi")),
        integers(table.column("m0")),
    )
    return SparseCounts.of(*parts, (size, choice.width))


def _positions(table: pa.Table, index: dict[int, int] | None) -> Any:
    """Return the position of each row's group; `index` is None where the engine's index j is the position."""
    j = integers(table.column("j"))
    return j if index is None else np.array([index[int(i)] for i in j], dtype=np.int64)


def _dense(table: pa.Table, column: str, size: int, index: dict[int, int] | None = None) -> Any:
    """Return a column by position of the group, with 0 for each of the `size` groups that has no row."""
    values = integers(table.column(column))
    full = np.zeros(size, dtype=values.dtype)
    full[_positions(table, index)] = values
    return full


def integers(column: pa.ChunkedArray) -> Any:
    """Return an Arrow column of integers (DuckDB's HUGEINT comes as decimal) as int64, or as Python integers
    where these do not fit. NULL, the sum of no rows, is 0: that there are none must not show."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        zero = Decimal(0) if pa.types.is_decimal(array.type) else 0
        array = array.fill_null(pa.scalar(zero, array.type))
    if not pa.types.is_decimal(array.type):
        whole_numbers = array if array.type == pa.int64() else array.cast(pa.int64())
        if len(array) == 0:
            return np.asarray(whole_numbers)
        # read from the buffer, because Arrow's own conversion loads pandas, which takes longer than the query
        flat = np.frombuffer(whole_numbers.buffers()[1], dtype=np.int64)
        return flat[whole_numbers.offset : whole_numbers.offset + len(array)].copy()
    if len(array) == 0:
        return np.zeros(0, np.int64)
    # A decimal has 128 bits: the low 64 bits, then the high ones. It fits 64 bits if the high ones repeat its
    # sign.
    halves = np.frombuffer(array.buffers()[1], dtype="<i8").reshape(-1, 2)[
        array.offset : array.offset + len(array)
    ]
    if (halves[:, 1] == halves[:, 0] >> 63).all():
        return halves[:, 0].copy()
    numbers = [(int(high) << 64) + (int(low) & (1 << 64) - 1) for low, high in halves]
    return np.array(numbers, dtype=object)
