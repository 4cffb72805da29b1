"""Loads the real table that comes with discreet: the RAND Health Insurance Experiment, 1974 to 1982.

It has 20,190 person-years of 5,912 people in six American cities, whose health insurance plan was chosen at
random so that its effects could be measured. It is in the public domain; this is the copy in statsmodels
(after Cameron & Trivedi 2005) with identifiers renumbered. Most people have several rows, as in many tables
that a data steward protects.
"""

from __future__ import annotations

from importlib import resources

import pyarrow as pa

from .. import _require
from .._public import ADD_REMOVE, Bounds, Categories, Neighbors, Public, Unit, rows
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
