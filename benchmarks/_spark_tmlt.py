"""Answers the bounded group-by of `benchmarks.spark` by tmlt.analytics, in its own environment: run as
`python benchmarks/_spark_tmlt.py WARM-UP FOLDER` by an interpreter that has it. Prints the CPU-seconds of the
two queries that the question takes there, Java included: on the folder of the warm-up the least of three
runs, on another one run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

GROUPS, BOUND = 50, 4
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
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks[pid] for pid in mine) / _TICK


def start() -> Any:
    """Start Spark as `benchmarks.spark` does."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.warehouse.dir": f"{sys.argv[1]}-warehouse",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def seconds(spark: Any, folder: str) -> float:
    """Return the CPU-seconds of COUNT and SUM by group: two queries, each of which bounds anew. The session
    on the table is made before."""
    from tmlt.analytics import (
        AddRowsWithID,
        KeySet,
        MaxGroupsPerID,
        MaxRowsPerGroupPerID,
        PureDPBudget,
        QueryBuilder,
        Session,
    )

    session: Any = Session.from_dataframe(
        privacy_budget=PureDPBudget(float("inf")),
        source_id="t",
        dataframe=spark.read.parquet(folder),
        protected_change=AddRowsWithID("u"),
    )
    keys = KeySet.from_dict({"g": [f"region {i}" for i in range(GROUPS)]})
    bounded = QueryBuilder("t").enforce(MaxGroupsPerID("g", BOUND)).enforce(MaxRowsPerGroupPerID("g", BOUND))
    begin = cpu()
    for query in (bounded.groupby(keys).count(), bounded.groupby(keys).sum("x", low=0, high=100)):
        answer = session.evaluate(query, PureDPBudget(1))
        assert len(answer.collect()) == GROUPS
    return cpu() - begin


def main(warm_up: str, folder: str) -> None:
    spark = start()
    least = min(seconds(spark, warm_up) for _ in range(3))
    print("CPU", least if folder == warm_up else seconds(spark, folder), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
