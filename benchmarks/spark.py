"""Private queries on Spark against the same bounding written by hand, in CPU-seconds with the Java process
included, in one run: 10 million rows, 1 million users, 50 groups, COUNT and SUM with at most 4 groups a user,
on local[2] with 2 GB.

By hand is what an expert would write in Spark's SQL: amounts limited per user and group, then the 4 groups
with the smallest xxhash64 by row_number. Then tmlt.analytics on 1 million rows, where an environment of its
own has it (`TMLT_PYTHON`, by default ../peers-tmlt/bin/python), in its own process. Then how CPU time, and
the memory of the Python driver, grow from 1 to 10 million rows (`python -m benchmarks.spark 100` adds 100
million, written by Spark itself, asked once).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
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
OVER_BY_HAND, LINEAR, FLAT_MB, OVER_TMLT = 1.5, 1.5, 64, 10
HERE = Path(__file__).parent
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


def generate(spark: Any, folder: Path, rows: int) -> Path:
    """The same distribution, made by Spark from row numbers."""
    path = folder / f"t{rows}"
    people = rows // USERS_PER_ROW
    spark.range(rows).selectExpr(
        f"PMOD(XXHASH64(1L, id), {people}L) AS u",
        f"CONCAT('region ', PMOD(XXHASH64(2L, id), {GROUPS}L)) AS g",
        "PMOD(XXHASH64(3L, id), 1000000L) * 0.000125D - 5D AS x",
    ).write.parquet(str(path))
    return path


def against_tmlt(path: Path, ours: float) -> int:
    """Its CPU-seconds over ours on the same files, in its own environment and process."""
    python = Path(os.environ.get("TMLT_PYTHON", HERE.parent.parent / "peers-tmlt" / "bin" / "python"))
    if not python.exists():
        print("spark.tmlt.analytics: SKIPPED, there is no environment with it (TMLT_PYTHON)")
        return 0
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ran = subprocess.run(
        [python, HERE / "_spark_tmlt.py", path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith("CPU ")]
    if not lines:
        print(f"spark.tmlt.analytics: FAILED: {ran.stderr[-500:]}")
        return 1
    theirs = float(lines[0].removeprefix("CPU "))
    ok = theirs / ours >= OVER_TMLT
    print(
        f"{'spark.tmlt.analytics over ours, 1M rows':40s} {theirs / ours:7.2f}   target >= {OVER_TMLT}   "
        f"{'ok' if ok else 'MISSED'}   ({theirs:.1f} CPU-s against {ours:.1f})"
    )
    return int(not ok)


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
            table = small if millions == 1 else Timed(spark, made(spark, Path(folder), millions))
            begun = time.monotonic()
            growth[millions] = min(seconds(table.ours) for _ in range(1 if millions > 10 else 2))
            memory[millions] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"spark.ours  {millions:4d}M rows  {growth[millions]:7.1f} CPU-s  "
                f"driver peak {memory[millions]:.0f} MB  ({time.monotonic() - begun:.0f} s in all)",
                flush=True,
            )
            if millions == 1:
                missed += against_tmlt(Path(folder) / "t1000000", growth[1])
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


def made(spark: Any, folder: Path, millions: int) -> Path:
    rows = millions * 1_000_000
    return write(folder, rows) if millions <= 10 else generate(spark, folder, rows)


def judge(name: str, value: float, target: float, note: str) -> int:
    print(
        f"{name:40s} {value:7.2f}   target <= {target:g}   {'ok' if value <= target else 'MISSED'}   ({note})"
    )
    return int(value > target)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
