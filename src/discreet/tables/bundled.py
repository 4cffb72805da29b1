"""Loads the real table that comes with discreet: the RAND Health Insurance Experiment, 1974 to 1982.

It has 20,190 person-years of 5,912 people in six American cities, whose health insurance plan was chosen at
random so that its effects could be measured. It is in the public domain; this is the copy in statsmodels
(after Cameron & Trivedi 2005) with identifiers renumbered. Most people have several rows, as in many tables
that a data steward protects. `education` is in years, that of the household for children; `income` (of the
family) and `spending` (medical, in the year) are in dollars; `visits` are outpatient visits in the year;
`coinsurance` is the share of the bills that the family pays, in percent.

Makes dummy tables: made-up rows with the right columns, to write queries against. They are drawn from the
public schema alone, and so reveal nothing about the data.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from importlib import resources
from typing import Annotated

import numpy as np
import pyarrow as pa

from .. import _require
from .._public import ADD_REMOVE, Boolean, Bounds, Categories, Dates, Fact, Neighbors, Public, Unit, rows
from .._require import at_least, at_most
from .source import Memory

HEALTH = Categories(["excellent", "good", "fair", "poor"])

# Declared from what the study says about itself (who could enroll, which plans there were), not from the
# values.
SCHEMA = (
    ("year", Bounds(1, 5, nullable=False)),
    ("site", Categories([1, 2, 3, 4, 5, 6])),
    ("coinsurance", Categories([0, 25, 50, 95, 100])),
    ("age", Bounds(0, 65, nullable=False)),
    ("sex", Categories(["female", "male"])),
    ("education", Bounds(0, 25)),
    ("income", Bounds(0, 30_000)),
    ("health", HEALTH),
    ("visits", Bounds(0, 50, nullable=False)),
    ("spending", Bounds(0, 5_000, nullable=False)),
)


def rand_hie(*, year: int | None = None, neighbors: Neighbors = ADD_REMOVE) -> Memory:
    """Return the RAND table. With `year`, that study year only: one row per person, so the unit is a row;
    else the unit is `person`.

    >>> rand_hie(year=1).public.unit
    Unit(column=None)
    """
    # slow to load, and only this table needs them
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file = resources.files("discreet").joinpath("data/rand_hie.parquet")
    # one thread: Arrow's pool can abort the interpreter at exit if it is busy for the first time then
    with file.open("rb") as stream:
        table: pa.Table = pq.read_table(stream, use_threads=False, pre_buffer=False)
    # the study lasted at most five years
    unit = Unit("person", rows=5)
    if year is not None:
        _require.integer(year=year, at_least=1)
        if year > 5:
            raise _require.fail("year", year, "one of the study years 1 to 5")
        table, unit = table.filter(pc.equal(table["year"], year)), rows()
    version = "1" if year is None else f"1, year {year}"
    public = Public(schema=SCHEMA, unit=unit, neighbors=neighbors, table="rand_hie", version=version)
    return Memory(table, public)


# Made-up rows are to try queries on: more would only fill the memory.
_MAX_ROWS = 10**8


@_require.check_options
def dummy(
    public: Public,
    rows: Annotated[int, at_least(1), at_most(_MAX_ROWS)] = 100,
    seed: Annotated[int, at_least(0)] = 0,
) -> Memory:
    """Draw `rows` made-up rows within the declared bounds and categories, under the same public facts but
    without a size and other tables.

    >>> from discreet import Bounds, Public
    >>> dummy(Public(schema={"age": Bounds(18, 20)}), rows=2).public.table
    'data'
    """
    rng = np.random.default_rng(seed)
    columns = {name: _column(fact, rows, rng) for name, fact in public.schema}
    unit = public.unit.column
    if unit is not None and unit not in columns:
        # About three rows per unit, so that queries by unit have something to group.
        columns[unit] = pa.array(rng.integers(0, max(1, rows // 3), rows))
    return Memory(pa.table(columns), replace(public, size=None, tables=()))


def _column(fact: Fact, rows: int, rng: np.random.Generator) -> pa.Array:
    if isinstance(fact, Categories):
        return pa.array([fact.values[i] for i in rng.integers(0, len(fact.values), rows)])
    if isinstance(fact, Bounds):
        integral = isinstance(fact.lower, int) and isinstance(fact.upper, int)
        # Larger whole numbers may not fit the 64 bits of `rng.integers`, and are drawn as floats.
        if integral and max(abs(int(fact.lower)), abs(int(fact.upper))) < 1 << 62:
            return pa.array(rng.integers(int(fact.lower), int(fact.upper), rows, endpoint=True))
        return pa.array(float(fact.lower) + (float(fact.upper) - float(fact.lower)) * rng.random(rows))
    if isinstance(fact, Boolean):
        return pa.array(rng.random(rows) < 0.5)
    if isinstance(fact, Dates):
        first = date.fromisoformat(fact.lower)
        span = (date.fromisoformat(fact.upper) - first).days
        return pa.array([first + timedelta(days=int(d)) for d in rng.integers(0, span, rows, endpoint=True)])
    # Each text occurs about five times, so that grouping by it has something to group.
    return pa.array([f"text {i}" for i in rng.integers(0, max(1, rows // 5), rows)])
