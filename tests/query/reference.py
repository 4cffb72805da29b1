"""A second, slow implementation of what queries mean: plain Python over rows, with the bounds applied by
hand.

Only the hash is DuckDB's own, so that both make the same choice of groups under a fixed key.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from discreet import Bounds, Categories, Public, Text, Unit
from discreet.tables import connect

_CON = duckdb.connect(config={"threads": 1})
REGIONS = ("north", "south", "east", "west")
SCHEMA = (
    ("region", Categories(REGIONS)),
    ("level", Categories([1, 2, 5])),
    ("age", Bounds(0, 99, nullable=False)),
    ("spend", Bounds(-10, 50)),
    ("town", Text()),
    ("flag", Categories(["yes", "no"])),
)


def table(seed: int, rows: int = 250, units: int = 40) -> pa.Table:
    """A table with everything that real ones have: repeats, NULLs, NaN, infinities, values out of bounds and
    out of the list."""
    random = np.random.default_rng(seed)
    spend = random.normal(15, 30, rows).round(3)
    spend[random.random(rows) < 0.05] = np.nan
    spend[random.random(rows) < 0.03] = np.inf
    spend[random.random(rows) < 0.03] = -np.inf
    spend[random.random(rows) < 0.02] = 1e300
    missing = random.random(rows) < 0.1
    regions = [[*REGIONS, "moon", None][i] for i in random.integers(0, 6, rows)]
    return pa.table(
        {
            "id": pa.array(random.integers(0, units, rows)),
            "region": pa.array(regions),
            "level": pa.array([[1, 2, 5, 3, None][i] for i in random.integers(0, 5, rows)], pa.int64()),
            "age": pa.array(
                [
                    None if m else float(a)
                    for m, a in zip(random.random(rows) < 0.1, random.integers(-5, 120, rows), strict=True)
                ]
            ),
            "spend": pa.array([None if m else float(s) for m, s in zip(missing, spend, strict=True)]),
            "town": pa.array([[None, "a", "b", "c", "dd", "ee"][i] for i in random.integers(0, 6, rows)]),
            "flag": pa.array([["yes", "no", None][i] for i in random.integers(0, 3, rows)]),
        }
    )


def source(data: pa.Table, unit: str | None, **limits: int) -> Any:
    return connect(data, Public(schema=SCHEMA, unit=Unit(unit, **limits), table="people"), threads=1)


@dataclass(frozen=True)
class Row:
    unit: int
    region: str | None
    level: int | None
    age: float
    spend: float | None
    town: str | None
    flag: str | None


def cleaned(data: pa.Table) -> list[Row]:
    rows = []
    for number, r in enumerate(data.to_pylist()):
        age = 0.0 if r["age"] is None else min(max(r["age"], 0.0), 99.0)
        spend = r["spend"]
        spend = None if spend is None or not math.isfinite(spend) else min(max(spend, -10.0), 50.0)
        level = r["level"] if r["level"] in (1, 2, 5) else None  # a number that is not declared is missing
        # a text that is not declared is missing, too
        region = r["region"] if r["region"] in REGIONS else None
        rows.append(Row(r.get("id", number), region, level, age, spend, r["town"], r["flag"]))
    return rows


def hashes(types: Sequence[str], values: list[tuple[Any, ...]], key: int) -> list[int]:
    """DuckDB's hash, with a finalizer, of the key and tuples of typed values."""
    if not values:
        return []
    columns = {f"c{i}": pa.array([v[i] for v in values]) for i in range(len(types))}
    listed = pa.table({"n": pa.array(range(len(values))), **columns})
    _CON.register("listed", listed)
    casts = ", ".join(f"CAST(c{i} AS {t})" for i, t in enumerate(types))
    found = _CON.execute(
        f"SELECT hash(hash(CAST({key} AS UBIGINT), {casts})) FROM listed ORDER BY n"
    ).fetchall()
    return [h for (h,) in found]


Group = Any
Chosen = dict[Group, dict[int, list[Row]]]


def choose(
    rows: list[Row],
    key_of: Callable[[Row], Group | None],
    *,
    groups: list[Group] | None,
    limit: int | None,
    key: int,
) -> Chosen:
    """group -> unit -> its rows, after each unit kept the groups with the smallest keyed hash."""
    held: dict[int, dict[Group, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        group = key_of(row)
        if group is not None and (groups is None or group in groups):
            held[row.unit][group].append(row)
    chosen: Chosen = defaultdict(dict)
    for unit, mine in held.items():
        kept = list(mine)
        if limit is not None and len(kept) > limit and (groups is None or len(groups) > limit):
            kept = sorted(kept, key=_order(unit, kept, groups, key).__getitem__)[:limit]
        for group in kept:
            chosen[group][unit] = mine[group]
    return chosen


def _order(
    unit: int, kept: list[Group], groups: list[Group] | None, key: int
) -> dict[Group, tuple[int, Any]]:
    if groups is not None:
        bits = max(1, (len(groups) - 1).bit_length())
        found = hashes(["BIGINT", "BIGINT"], [(unit, groups.index(g)) for g in kept], key)
        return {g: (h >> bits, groups.index(g)) for g, h in zip(kept, found, strict=True)}
    found = hashes(["BIGINT", "VARCHAR"], [(unit, g) for g in kept], key)
    return {g: (h >> 32, g) for g, h in zip(kept, found, strict=True)}


def step_of(low: float, high: float) -> Fraction:
    return Fraction(2) ** math.frexp(max(abs(low), abs(high)) / 2**30)[1]


def on_grid(value: float, step: Fraction) -> int:
    return round(value * float(1 / step))


def clip(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


@dataclass(frozen=True)
class Limits:
    rows: int
    many: bool


def count(
    units: dict[int, list[Row]], limits: Limits, present: Callable[[Row], bool] = lambda r: True
) -> int:
    return sum(min(sum(present(r) for r in rows), limits.rows) for rows in units.values())


def total(
    units: dict[int, list[Row]], limits: Limits, of: Callable[[Row], float | None], low: float, high: float
) -> float:
    """SUM: each unit's total in whole steps, clipped."""
    step = step_of(low, high)
    least, most = (
        limits.rows * min(math.floor(Fraction(low) / step), 0),
        limits.rows * max(math.ceil(Fraction(high) / step), 0),
    )
    amounts = [sum(on_grid(x, step) for r in rows if (x := of(r)) is not None) for rows in units.values()]
    return float(sum(clip(a, least, most) for a in amounts) * step)


def moments(
    units: dict[int, list[Row]], limits: Limits, of: Callable[[Row], float | None], low: float, high: float
) -> tuple[int, float, float]:
    """Count, sum and sum of squares around the middle; a unit with too many rows counts each of them less."""
    step = step_of(low, high)
    a, b = math.floor(Fraction(low) / step), math.ceil(Fraction(high) / step)
    center = (a + b) // 2
    n, first, second = 0, Fraction(0), Fraction(0)
    for rows in units.values():
        xs = [on_grid(x, step) - center for r in rows if (x := of(r)) is not None]
        n += min(len(xs), limits.rows)
        first += _scaled(sum(xs), len(xs), limits.rows, max(b - center, center - a))
        second += _scaled(sum(x * x for x in xs), len(xs), limits.rows, max(b - center, center - a) ** 2)
    return n, float(first * step), float(second * step**2)


def _scaled(amount: int, n: int, most: int, largest: int) -> Fraction:
    """In parts of a step, as many as make a value of about a million parts."""
    if n <= most:
        return Fraction(amount)
    parts = 2 ** max(0, math.floor(math.log2(2**30 / max(largest, 1))))
    share = Fraction(abs(amount) * most * parts // n, parts)  # the engine divides towards zero
    return share if amount >= 0 else -share


def mean(
    units: dict[int, list[Row]], limits: Limits, of: Callable[[Row], float | None], low: float, high: float
) -> float | None:
    n, first, _ = moments(units, limits, of, low, high)
    step = step_of(low, high)
    center = (math.floor(Fraction(low) / step) + math.ceil(Fraction(high) / step)) // 2
    return None if n == 0 else min(max(first / n + float(center * step), low), high)


def variance(
    units: dict[int, list[Row]], limits: Limits, of: Callable[[Row], float | None], low: float, high: float
) -> float | None:
    n, first, second = moments(units, limits, of, low, high)
    if n < 2:
        return None
    return min(max(second / n - (first / n) ** 2, 0.0), ((high - low) / 2) ** 2) * n / (n - 1)


# What names a group for the hash: its index where all groups are public, else its key.
Named = tuple[str, Any]


def named(group: Group, groups: list[Group] | None) -> Named:
    return ("VARCHAR", group) if groups is None else ("BIGINT", groups.index(group))


def distinct(
    units: dict[int, list[Row]], limits: Limits, of: Callable[[Row], Any], type_: str, group: Named, key: int
) -> int:
    """Each unit counts for at most `rows` different values, those with the smallest keyed hash."""
    seen = set()
    for unit, rows in units.items():
        values = list({of(r) for r in rows if of(r) is not None})
        if limits.many and len(values) > limits.rows:
            order = hashes(["BIGINT", group[0], type_], [(unit, group[1], v) for v in values], key)
            values = [v for _, v in sorted(zip(order, values, strict=True))][: limits.rows]
        seen |= set(values)
    return len(seen)


def quantile(
    units: dict[int, list[Row]],
    limits: Limits,
    of: Callable[[Row], float | None],
    q: Fraction,
    grid: tuple[Fraction, Fraction, int],
    group: Named,
    key: int,
) -> float:
    """The first candidate nearest to rank q n, among at most `rows` rows of each unit."""
    first, step, points = grid
    bins: list[int] = []
    for unit, rows in units.items():
        mine = [
            min(max(round_half_away((x - float(first)) / float(step)), 0), points - 1)
            for r in rows
            if (x := of(r)) is not None
        ]
        if limits.many and len(mine) > limits.rows:
            mine.sort()
            # Equal values of one unit are numbered, so that each row has a hash of its own.
            listed = [(unit, group[1], b, i - mine.index(b)) for i, b in enumerate(mine)]
            order = hashes(["BIGINT", group[0], "BIGINT", "BIGINT"], listed, key)
            mine = [b for _, b in sorted((h >> 32, b) for h, b in zip(order, mine, strict=True))][
                : limits.rows
            ]
        bins += mine
    counts = Counter(bins)
    target, below, best, at = q * len(bins), 0, None, 0
    for point in range(points):
        upto = below + counts[point]
        distance = max(below - target, target - upto, 0)
        if best is None or distance < best:
            best, at = distance, point
        below = upto
    return float(first + at * step)


def round_half_away(x: float) -> int:
    return math.floor(abs(x) + 0.5) * (1 if x >= 0 else -1)


def most_common(
    units: dict[int, list[Row]], limits: Limits, of: Callable[[Row], Any], values: Sequence[Any], k: int
) -> tuple[Any, ...]:
    counts = {
        v: sum(min(sum(of(r) == v for r in rows), limits.rows) for rows in units.values()) for v in values
    }
    return tuple(sorted(values, key=lambda v: (-counts[v], list(values).index(v)))[:k])
