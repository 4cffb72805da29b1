"""Compares private queries on Spark with the same bounding written by hand, and with tmlt.analytics, in
CPU-seconds with the Java process included, in one run: COUNT and SUM in 50 groups, 10 rows per user, at most
4 groups per user, on local[2] with 2 GB.

By hand is what an expert would write in Spark's SQL: amounts limited per user and group, then the 4 groups
with the smallest xxhash64 by row_number. tmlt.analytics runs in its own process where an environment of its
own has it (`make .venv-tmlt/.installed`, or `TMLT_PYTHON`), on the same files of 1 and 10 million rows, for
at most `TMLT_SECONDS` of CPU. Starting Spark and opening the table is counted for nobody; everybody has
answered the question on a million rows before it is measured on more. Then how CPU time, the memory of the
Python driver and the heap of the Java process grow from 1 to 10 and 100 million rows (the last written by
Spark itself, asked once), and how many bytes come back. `python -m benchmarks.spark 10` stops at 10 million
rows.
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

ROWS_PER_USER, GROUPS, BOUND = 10, 50, 4
NAMES = [f"region {i}" for i in range(GROUPS)]
SQL = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g"
# The targets: ours over by hand at 10 million rows, the cost per row of the largest table over that of a
# million, how much memory may grow in all, and tmlt.analytics over ours.
MAX_OVER_HAND, MAX_GROWTH_PER_ROW, MAX_MEMORY_GROWTH_MB, MIN_OVER_OURS = 1.5, 1.5, 64, 10
# How often ours is asked at each size, of which the least counts; at 100 million rows a run takes minutes.
REPEATS = {1: 3, 10: 2, 100: 1}
# Seven times what the rival took at 10 million rows.
TMLT_SECONDS = 1200
HERE = Path(__file__).parent
BY_HAND = f"""
SELECT g, SUM(n) AS n, SUM(s) AS s FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY u ORDER BY XXHASH64(42L, u, g)) AS r FROM (
    SELECT u, g, LEAST(COUNT(*), {BOUND}) AS n,
           LEAST(SUM(CAST(ROUND(LEAST(GREATEST(x, 0D), 100D) * 8192D) AS BIGINT)), {BOUND * 819200}) AS s
    FROM t WHERE u IS NOT NULL GROUP BY u, g))
WHERE r <= {BOUND} GROUP BY g
"""
_TICK = os.sysconf("SC_CLK_TCK")


def cpu() -> float:
    """Return the CPU time of this process and of all that it started and that still run, the Java process
    among them."""
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
    """Write files of a million rows each."""
    path = folder / f"t{rows}"
    path.mkdir()
    rng, names = np.random.default_rng(7), pa.array(NAMES)
    for part in range(0, rows, 1_000_000):
        size = min(1_000_000, rows - part)
        groups = pa.DictionaryArray.from_arrays(rng.integers(0, GROUPS, size).astype(np.int8), names).cast(
            "string"
        )
        users = rng.integers(0, rows // ROWS_PER_USER, size)
        table = pa.table({"u": users, "g": groups, "x": rng.uniform(-5, 120, size)})
        pq.write_table(table, path / f"{part}.parquet")
    return path


def generate(spark: Any, folder: Path, rows: int) -> Path:
    """Write rows of the same distribution by Spark, from row numbers."""
    path = folder / f"t{rows}"
    people = rows // ROWS_PER_USER
    spark.range(rows).selectExpr(
        f"PMOD(XXHASH64(1L, id), {people}L) AS u",
        f"CONCAT('region ', PMOD(XXHASH64(2L, id), {GROUPS}L)) AS g",
        "PMOD(XXHASH64(3L, id), 1000000L) * 0.000125D - 5D AS x",
    ).write.parquet(str(path))
    return path


def against_tmlt(path: Path, ours: float, millions: int) -> int:
    """Compare with tmlt.analytics on the same files, in its own environment and process; 1 if missed."""
    python = Path(os.environ.get("TMLT_PYTHON", HERE.parent / ".venv-tmlt" / "bin" / "python"))
    name = f"spark.tmlt.analytics over ours, {millions}M rows"
    if not python.exists():
        print(f"{name}: SKIPPED, there is no environment with it (make .venv-tmlt/.installed)")
        return 0
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    process = subprocess.run(
        [python, HERE / "_spark_tmlt.py", path.with_name("t1000000"), path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (TMLT_SECONDS, TMLT_SECONDS)),
    )
    lines = [line for line in process.stdout.splitlines() if line.startswith("CPU ")]
    if not lines:
        print(f"{name}: FAILED, or took more than {TMLT_SECONDS} CPU-s: {process.stderr[-300:]}", flush=True)
        return int(millions == 1)
    theirs = float(lines[0].removeprefix("CPU "))
    ok = theirs / ours >= MIN_OVER_OURS
    print(
        f"{name:40s} {theirs / ours:7.2f}   target >= {MIN_OVER_OURS}   "
        f"{'ok' if ok else 'MISSED'}   ({theirs:.1f} CPU-s against {ours:.1f})",
        flush=True,
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


class Question:
    """Asks one table privately and by hand."""

    def __init__(self, spark: Any, path: Path) -> None:
        from discreet.tables.engines.spark import connect

        self.public = Public(
            schema={"g": Categories(NAMES), "x": Bounds(0, 100)},
            unit=Unit("u", rows=BOUND, groups=BOUND),
            table="t",
        )
        self.engine = connect(path, self.public, spark=spark)
        self.host, self.returned = spark, 0
        spark.read.parquet(str(path)).createOrReplaceTempView("t")

    def ours(self) -> Any:
        query = Query(sql=SQL, public=self.public, epsilon=1, rows=BOUND, groups=BOUND)
        answer, self.returned = self.engine.answer, 0

        def count_bytes(sql: str) -> pa.Table:
            table = answer(sql)
            self.returned += table.nbytes
            return table

        self.engine.answer = count_bytes  # type: ignore[method-assign]
        try:
            return query(self.engine, entropy=Entropy())
        finally:
            del self.engine.answer

    def by_hand(self) -> Any:
        return self.host.sql(BY_HAND).toArrow()

    def by_hand_same_settings(self) -> Any:
        return self.engine._session.sql(BY_HAND).toArrow()


def main(largest: int = 100) -> int:
    misses, growth, memory, heap = 0, {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        spark = start()
        small = Question(spark, write(Path(folder), 1_000_000))
        for run in (small.ours, small.by_hand, small.by_hand_same_settings):
            run()
        for millions in [size for size in (1, 10, 100) if size <= largest]:
            table = small if millions == 1 else Question(spark, write_table(spark, Path(folder), millions))
            start_time = time.monotonic()
            growth[millions] = min(seconds(table.ours) for _ in range(REPEATS[millions]))
            memory[millions] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            heap[millions] = heap_used(spark)
            print(
                f"spark.ours  {millions:4d}M rows  {growth[millions]:7.1f} CPU-s  "
                f"driver peak {memory[millions]:.0f} MB, heap {heap[millions]:.0f} MB, "
                f"{table.returned} bytes back  ({time.monotonic() - start_time:.0f} s in all)",
                flush=True,
            )
            if millions <= 10:
                misses += against_hand(table, growth[millions], millions)
                misses += against_tmlt(Path(folder) / f"t{millions}000000", growth[millions], millions)
        last = max(growth)
        misses += judge(
            "spark.growth from 1M, per row",
            growth[last] / growth[1] / last,
            MAX_GROWTH_PER_ROW,
            f"{last}M rows",
        )
        misses += judge(
            "spark.driver memory growth, MB", memory[last] - memory[1], MAX_MEMORY_GROWTH_MB, "python process"
        )
        misses += judge(
            "spark.heap growth, MB", heap[last] - heap[1], MAX_MEMORY_GROWTH_MB, "after garbage collection"
        )
        spark.stop()
    return misses


def heap_used(spark: Any) -> float:
    """Return the megabytes that the Java process still holds after a garbage collection: the driver's, and
    with local[2] the executors' too."""
    spark._jvm.System.gc()
    bean = spark._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    return float(bean.getHeapMemoryUsage().getUsed()) / (1 << 20)


def against_hand(table: Question, ours: float, millions: int) -> int:
    """Compare with the cheaper way by hand: under the host's settings, or under ours; 1 if missed."""
    ways = (table.by_hand, table.by_hand_same_settings)
    # As many runs as ours has, or more.
    hand = min(seconds(run) for run in ways for _ in range((REPEATS[millions] + 1) // 2))
    name = f"spark.bounded_group_by over by hand, {millions}M"
    # The target is for 10 million rows: below that both mostly plan.
    return judge(name, ours / hand, MAX_OVER_HAND, f"{hand:.1f} CPU-s by hand") * (millions == 10)


def write_table(spark: Any, folder: Path, millions: int) -> Path:
    """Write the table of a size: by Spark where Python would take too long."""
    rows = millions * 1_000_000
    return write(folder, rows) if millions <= 10 else generate(spark, folder, rows)


def judge(name: str, value: float, target: float, note: str) -> int:
    """Print a figure beside its target; return 1 if it is above."""
    print(
        f"{name:40s} {value:7.2f}   target <= {target:g}   "
        f"{'ok' if value <= target else 'MISSED'}   ({note})",
        flush=True,
    )
    return int(value > target)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
