"""Our answers without noise beside those of plain DuckDB on the same tables: for tables whose values lie
within what is declared."""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from discreet import Bounds, Categories, Dates, Public, Related, Text, Unit
from discreet.query import Query
from discreet.tables import connect

WORDS = ("Straße", "İstanbul", "ß", "ΟΔΟΣ", "ǆ", "ǅ", "ﬁ", " a b ", "ŉ", "straße")
RELATED = (
    Related(name="towns", schema=(("town", Text()), ("size", Bounds(0.0, 10.0, nullable=False)))),
    Related(name="visits", schema=(("cost", Bounds(0, 10, nullable=False)),), private=True, unit="who"),
)
SCHEMA = {
    "age": Bounds(0, 100),
    "x": Bounds(-5.0, 5.0, nullable=False),
    "y": Bounds(-20.0, 20.0),
    "i": Bounds(-9, 9),
    "d": Dates("2020-01-01", "2021-12-31"),
    "word": Categories(WORDS),
    "town": Text(),
}


def tables(seed: int, rows: int = 300) -> dict[str, pa.Table]:
    """Halves, negatives, missing values, the ends of months, and letters whose case Python and the engine see
    differently."""
    random = np.random.default_rng(seed)

    def some(values: Any, share: float = 0.1) -> pa.Array:
        return pa.array(values, mask=random.random(len(values)) < share)

    people = {
        "id": random.integers(0, 40, rows),
        "age": some(random.integers(0, 101, rows)),
        "x": random.integers(-20, 21, rows) / 4,
        "y": some(random.normal(0, 3, rows).round(2)),
        "i": some(random.integers(-9, 10, rows)),
        "d": some(np.datetime64("2020-01-01") + random.integers(0, 731, rows)),
        "word": some(np.array(WORDS)[random.integers(0, len(WORDS), rows)]),
        "town": some(np.array(["a", "b", "c"])[random.integers(0, 3, rows)]),
    }
    towns = {"town": ["a", "b", "b", None], "size": [1.0, 2.0, 3.0, 4.0]}
    visits = {"who": random.integers(0, 60, rows // 3), "cost": random.integers(0, 10, rows // 3)}
    return {"people": pa.table(people), "towns": pa.table(towns), "visits": pa.table(visits)}


class Both:
    """One set of tables in our engine and in plain DuckDB.

    Limits on rows and groups are so wide that they change nothing.
    """

    def __init__(self, held: dict[str, pa.Table], public: Public) -> None:
        self.public = public
        related = {name: table for name, table in held.items() if name != public.table}
        self.engine = connect(held[public.table], public, related=related, threads=1)
        self.con = duckdb.connect(config={"threads": 1})
        for name, table in held.items():
            self.con.register(name, table)

    def ours(self, sql: str) -> list[list[Any]]:
        return Query(sql=sql, public=self.public, epsilon=1, delta=1e-5)._without_noise(self.engine, 5)

    def theirs(self, sql: str) -> list[tuple[Any, ...]]:
        return self.con.execute(sql).fetchall()

    def check(self, sql: str, plain: str | None = None, *, ordered: bool = False, digits: int = 3) -> None:
        """Every row of DuckDB's is ours; ours that DuckDB has not are groups that are empty, or have a
        missing key."""
        mine, others = (
            [_rounded(row, digits) for row in rows] for rows in (self.ours(sql), self.theirs(plain or sql))
        )
        others = [row for row in others if len(row) == 1 or row[0] is not None]
        mine = _snapped(mine, others, digits)
        assert not Counter(others) - Counter(mine), (
            sql,
            sorted(map(str, Counter(others) - Counter(mine)))[:5],
        )
        for row in Counter(mine) - Counter(others):
            assert any(value in (0, None) for value in row[1:]), (sql, row)
        if ordered:
            assert [row for row in mine if row in others] == others


def _rounded(row: Any, digits: int) -> tuple[Any, ...]:
    return tuple(_plain(value, digits) for value in row)


def _snapped(mine: list[Any], others: list[Any], digits: int) -> list[Any]:
    """Our rows, each replaced by a row of theirs that differs by one unit of the last digit at most: numbers
    that agree but for a last bit may be rounded to different sides."""

    def near(a: Any, b: Any) -> bool:
        numeric = isinstance(a, float) and isinstance(b, float)
        return a == b or (numeric and abs(a - b) <= 1.01 * 10.0**-digits)

    missing = list((Counter(others) - Counter(mine)).elements())
    for i, row in enumerate(mine):
        match = None if row in others else next((r for r in missing if all(map(near, row, r))), None)
        if match is not None:
            mine[i] = match
            missing.remove(match)
    return mine


def _plain(value: Any, digits: int) -> Any:
    if isinstance(value, date):
        return value.isoformat()[:10]
    if isinstance(value, str | bool) or value is None:
        return value
    return round(float(value), digits) + 0.0


def people(seed: int) -> Both:
    unit = Unit("id", rows=5_000, groups=5_000)
    return Both(tables(seed), Public(schema=SCHEMA, unit=unit, table="people", tables=RELATED))
