"""Private queries on Spark against the same bounding written by hand, in CPU-seconds with the Java process
included, in one run: 10 million rows, 1 million users, 50 groups, COUNT and SUM with at most 4 groups a user,
on local[2] with 2 GB.

By hand is what an expert would write in Spark's SQL: amounts limited per user and group, then the 4 groups
with the smallest xxhash64 by row_number. Then how CPU time, and the memory of the Python driver, grow from 1
to 10 million rows (`python -m benchmarks.spark 100` adds 100 million).
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from discreet import Bounds, Categories, Public, Unit
from discreet.query import Query
from discreet.sampling import Entropy

USERS_PER_ROW, GROUPS, KEPT = 10, 50, 4
NAMES = [f"region {i}" for i in range(GROUPS)]
SQL = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g"
OVER_BY_HAND, LINEAR, FLAT_MB = 1.5, 1.5, 64
BY_HAND = f"""
SELECT g, SUM(n) AS n, SUM(s) AS s FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY u ORDER BY XXHASH64(42L, u, g)) AS r FROM (
    SELECT u, g, LEAST(COUNT(*), {KEPT}) AS n,
           LEAST(SUM(CAST(ROUND(LEAST(GREATEST(x, 0D), 100D) * 8192D) AS BIGINT)), {KEPT * 819200}) AS s
    FROM t WHERE u IS NOT NULL GROUP BY u, g))
WHERE r <= {KEPT} GROUP BY g
"""
_TICK = os.sysconf("SC_CLK_TCK")


def cpu() -> float:
    """CPU time of this process and of all that it started and that still run, the Java process among them."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        # with those of children that have ended
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks[pid] for pid in mine) / _TICK


def seconds(run: Callable[[], Any]) -> float:
    start = cpu()
    run()
    return cpu() - start


def write(folder: Path, rows: int) -> Path:
    """Files of a million rows each."""
    path = folder / f"t{rows}"
    path.mkdir()
    rng, names = np.random.default_rng(7), pa.array(NAMES)
    for part in range(0, rows, 1_000_000):
        size = min(1_000_000, rows - part)
        groups = pa.DictionaryArray.from_arrays(rng.integers(0, GROUPS, size).astype(np.int8), names).cast(
            "string"
        )
        users = rng.integers(0, rows // USERS_PER_ROW, size)
        table = pa.table({"u": users, "g": groups, "x": rng.uniform(-5, 120, size)})
        pq.write_table(table, path / f"{part}.parquet")
    return path


def start() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g")
    for name, value in {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "8",
    }.items():  # fmt: skip
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Timed:
    """One table, asked privately and by hand."""

    def __init__(self, spark: Any, path: Path) -> None:
        from discreet.tables.engines.spark import connect

        self.public = Public(
            schema={"g": Categories(NAMES), "x": Bounds(0, 100)},
            unit=Unit("u", rows=KEPT, groups=KEPT),
            table="t",
        )
        self.engine = connect(path, self.public, spark=spark)
        self.host = spark
        spark.read.parquet(str(path)).createOrReplaceTempView("t")

    def ours(self) -> Any:
        query = Query(sql=SQL, public=self.public, epsilon=1, rows=KEPT, groups=KEPT)
        return query(self.engine, entropy=Entropy())

    def by_hand(self) -> Any:
        return self.host.sql(BY_HAND).toArrow()

    def by_hand_same_settings(self) -> Any:
        return self.engine._session.sql(BY_HAND).toArrow()


def main(largest: int = 10) -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        spark = start()
        small = Timed(spark, write(Path(folder), 1_000_000))
        for run in (small.ours, small.by_hand, small.by_hand_same_settings):
            run()
        growth, memory = {}, {}
        for millions in [1, 10, 100][: 1 + (largest >= 10) + (largest >= 100)]:
            table = small if millions == 1 else Timed(spark, write(Path(folder), millions * 1_000_000))
            growth[millions] = min(seconds(table.ours) for _ in range(2))
            memory[millions] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"spark.ours  {millions:4d}M rows  {growth[millions]:7.1f} CPU-s  "
                f"driver peak {memory[millions]:.0f} MB"
            )
            if millions == 10:
                hand = min(
                    seconds(run) for run in (table.by_hand, table.by_hand_same_settings) for _ in range(2)
                )
                missed += judge(
                    "spark.bounded_group_by over by hand",
                    growth[10] / hand,
                    OVER_BY_HAND,
                    f"{hand:.1f} CPU-s by hand",
                )
        last = max(growth)
        missed += judge(
            "spark.growth from 1M, per row", growth[last] / growth[1] / last, LINEAR, f"{last}M rows"
        )
        missed += judge("spark.driver memory growth, MB", memory[last] - memory[1], FLAT_MB, "python process")
        spark.stop()
    return missed


def judge(name: str, value: float, target: float, note: str) -> int:
    print(
        f"{name:40s} {value:7.2f}   target <= {target:g}   {'ok' if value <= target else 'MISSED'}   ({note})"
    )
    return int(value > target)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
