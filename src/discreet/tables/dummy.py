"""A fake table with the right columns, to write queries against: made from the public schema alone, so it
tells nobody anything."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from .. import _require
from .._public import Boolean, Bounds, Categories, Dates, Fact, Public
from .source import Memory

# Made-up rows are to try queries on: more would only fill the memory.
_MOST_ROWS = 10**8


def dummy(public: Public, rows: int = 100, seed: int = 0) -> Memory:
    """Draw `rows` made-up rows within the declared bounds and categories, under the same public facts.

    >>> from discreet import Bounds, Public
    >>> dummy(Public(schema={"age": Bounds(18, 20)}), rows=2).public.table
    'data'
    """
    _require.integer(rows=rows, at_least=1)
    _require.integer(seed=seed, at_least=0)
    if rows > _MOST_ROWS:
        raise _require.fail("rows", rows, f"at most {_MOST_ROWS:,}")
    random = np.random.default_rng(seed)
    columns = {name: _column(fact, rows, random) for name, fact in public.schema}
    unit = public.unit.column
    if unit is not None and unit not in columns:
        columns[unit] = pa.array(random.integers(0, max(1, rows // 3), rows))
    facts = Public(**{**_fields(public), "size": None, "tables": ()})
    return Memory(pa.table(columns), facts)


def _fields(public: Public) -> dict[str, Any]:
    return {name: getattr(public, name) for name in ("schema", "unit", "neighbors", "table", "version")}


def _column(fact: Fact, rows: int, random: np.random.Generator) -> pa.Array:
    if isinstance(fact, Categories):
        return pa.array([fact.values[i] for i in random.integers(0, len(fact.values), rows)])
    if isinstance(fact, Bounds):
        integral = isinstance(fact.lower, int) and isinstance(fact.upper, int)
        if integral and max(abs(int(fact.lower)), abs(int(fact.upper))) < 1 << 62:
            return pa.array(random.integers(int(fact.lower), int(fact.upper), rows, endpoint=True))
        return pa.array(float(fact.lower) + (float(fact.upper) - float(fact.lower)) * random.random(rows))
    if isinstance(fact, Boolean):
        return pa.array(random.random(rows) < 0.5)
    if isinstance(fact, Dates):
        first = date.fromisoformat(fact.lower)
        span = (date.fromisoformat(fact.upper) - first).days
        return pa.array(
            [first + timedelta(days=int(d)) for d in random.integers(0, span, rows, endpoint=True)]
        )
    return pa.array([f"text {i}" for i in random.integers(0, max(1, rows // 5), rows)])
