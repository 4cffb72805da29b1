"""Many small tables in one database: all combinations of what up to three units may hold.

A *world* is one state of all private tables: for each of three units one of a pool of contents (its rows in each
table; content 0 has none). A statement of the engine runs on all worlds at once, as `LATERAL (...)` beside the
list of worlds: DuckDB itself then adds the world to every join, GROUP BY and window, so that a thousand worlds
take as long as ten. `test_neighbors.test_a_world_is_answered_like_a_table_of_its_own` compares this with a
connection that holds one world only.

Each world is stored in several orders of its rows (`orders`): the promise is about tables, not about lists.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from discreet import Public
from discreet.tables.engines.duckdb_dialect import DUCKDB

Row = tuple[Any, ...]
# for each private table the rows of one unit, without the unit's own column
Content = dict[str, Sequence[Row]]
UNITS = 3


@dataclass(frozen=True)
class Stored:
    """One table: the names and types of its columns, the first of which holds the unit where `owned`."""

    columns: tuple[tuple[str, pa.DataType], ...]
    owned: bool = False
    # the rows of a public table
    rows: tuple[Row, ...] = ()


def kind(type_: pa.DataType) -> str:
    if pa.types.is_floating(type_):
        return "number"
    return "integer" if pa.types.is_integer(type_) else "text"


class Worlds:
    """An engine that answers about one of its worlds, `self.world`.

    `tables`: all tables by name; `private`: the names of those that differ between worlds; `pool`: the contents;
    `spellings`: for each of the three units the values of its column, which are all one unit (0.0 and -0.0).
    """

    dialect = DUCKDB

    def __init__(
        self,
        public: Public,
        tables: dict[str, Stored],
        private: Sequence[str],
        pool: Sequence[Content],
        spellings: Sequence[Sequence[Any]] = ((0,), (1,), (2,)),
        *,
        orders: int = 2,
        seed: int = 1,
    ) -> None:
        self.public, self.tables, self.private, self.pool = public, tables, tuple(private), pool
        self.spellings, self.orders = spellings, orders
        self.combinations = list(itertools.product(range(len(pool)), repeat=UNITS))
        self.size = len(self.combinations) * orders
        self.kinds = self.id_kinds = {
            name: {column: kind(type_) for column, type_ in table.columns} for name, table in tables.items()
        }
        self.world = 0
        self._results: dict[str, tuple[pa.Table, Any]] = {}
        self._con = duckdb.connect(config={"threads": 1})
        self._con.execute("SET preserve_insertion_order=false")
        self._numbers = pa.table({"w": pa.array(range(self.size), pa.int64())})
        self._con.register("all_worlds", self._numbers)
        self._held: list[pa.Table] = []
        self._rows: dict[str, list[list[Row]]] = {}
        chance = random.Random(seed)
        for name in private:
            self._rows[name] = [
                self._mixed(self._content(name, combination), order, chance)
                for combination in self.combinations
                for order in range(orders)
            ]
            self._register(f"all_{name}", self._arrow(name, self._rows[name], worlds=True))
        for name, table in tables.items():
            if name not in private:
                self._register(name, self._arrow(name, [list(table.rows)], worlds=False))

    def _register(self, name: str, table: pa.Table) -> None:
        self._held.append(table)
        self._con.register(name, table)

    def _content(self, name: str, combination: Sequence[int]) -> list[Row]:
        """The rows of a table in a world, with the unit's column first where the table has one."""
        rows: list[Row] = []
        for unit, content in enumerate(combination):
            names = self.spellings[unit]
            for i, row in enumerate(self.pool[content].get(name, ())):
                rows.append((names[i % len(names)], *row) if self.tables[name].owned else row)
        return rows

    @staticmethod
    def _mixed(rows: list[Row], order: int, chance: random.Random) -> list[Row]:
        if order == 1:
            return rows[::-1]
        if order > 1:
            chance.shuffle(rows)
        return rows

    def _arrow(self, name: str, by_world: list[list[Row]], *, worlds: bool) -> pa.Table:
        columns = self.tables[name].columns
        flat = [row for rows in by_world for row in rows]
        arrays = {c: pa.array([row[i] for row in flat], type_) for i, (c, type_) in enumerate(columns)}
        if worlds:
            arrays["world"] = pa.array([w for w, rows in enumerate(by_world) for _ in rows], pa.int64())
        return pa.table(arrays)

    def rows(self, name: str, world: int) -> list[dict[str, Any]]:
        """The rows of a table in one world, by the names of columns."""
        stored = self.tables[name]
        rows = self._rows[name][world] if name in self.private else list(stored.rows)
        return [dict(zip([c for c, _ in stored.columns], row, strict=True)) for row in rows]

    def alone(self, world: int) -> dict[str, pa.Table]:
        """The tables of one world, without the columns that only this engine has."""
        made = {}
        for name, stored in self.tables.items():
            rows = self._rows[name][world] if name in self.private else list(stored.rows)
            made[name] = self._arrow(name, [rows], worlds=False)
        return made

    # What an engine is asked.

    def answer(self, sql: str) -> pa.Table:
        if sql not in self._results:
            self._results[sql] = self._on_all(sql)
        table, ends = self._results[sql]
        start = int(ends[self.world])
        return table.slice(start, int(ends[self.world + 1]) - start)

    def _on_all(self, sql: str) -> tuple[pa.Table, Any]:
        """The results of a statement in all worlds, in the order of worlds, and where each of them begins."""
        tables = ", ".join(
            f'"{name}" AS (SELECT * EXCLUDE ("world") FROM "all_{name}" WHERE "world" = "ww"."w")'
            for name in self.private
        )
        body = f"WITH {tables}, {sql[5:]}" if sql.startswith("WITH ") else f"WITH {tables} {sql}"
        lateral = f'SELECT "ww"."w" AS "world", "rr".* FROM all_worlds AS "ww", LATERAL ({body}) AS "rr"'
        try:
            table = self._con.sql(lateral).to_arrow_table()
        except duckdb.Error:
            # not every statement can be run so; one that cannot be run at all fails here as well
            return self._one_by_one(sql)
        table = table.sort_by("world").combine_chunks()
        ends = np.searchsorted(table.column("world").to_numpy(), np.arange(self.size + 1))
        return table.drop_columns(["world"]), ends

    def _one_by_one(self, sql: str) -> tuple[pa.Table, Any]:
        parts = []
        for world in range(self.size):
            for name in self.private:
                self._con.register(name, self._arrow(name, [self._rows[name][world]], worlds=False))
            parts.append(self._con.sql(sql).to_arrow_table())
        for name in self.private:
            self._con.unregister(name)
        return pa.concat_tables(parts).combine_chunks(), np.cumsum([0, *(part.num_rows for part in parts)])

    def forget(self) -> None:
        """Drop all results: each question has texts of its own."""
        self._results.clear()

    def batches(self, columns: Any) -> Any:
        raise AssertionError("rows never leave")

    def ready(self) -> None:
        """Always."""

    def plan(self, texts: Any) -> None:
        """Always."""

    def stopwatch(self) -> Any:
        return lambda: None
