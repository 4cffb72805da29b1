"""The bounded group-by of `benchmarks.spark` by tmlt.analytics, in its own environment: run as
`python benchmarks/_spark_tmlt.py FOLDER TIMES` by an interpreter that has it. Prints CPU-seconds, Java
included."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

GROUPS, KEPT = 50, 4
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
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks[pid] for pid in mine) / _TICK


def main(folder: str, times: int) -> None:
    from pyspark.sql import SparkSession
    from tmlt.analytics import (
        AddRowsWithID,
        KeySet,
        MaxGroupsPerID,
        MaxRowsPerGroupPerID,
        PureDPBudget,
        QueryBuilder,
        Session,
    )

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.warehouse.dir": f"{folder}-warehouse",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    session: Any = Session.from_dataframe(
        privacy_budget=PureDPBudget(float("inf")),
        source_id="t",
        dataframe=spark.read.parquet(folder),
        protected_change=AddRowsWithID("u"),
    )
    keys = KeySet.from_dict({"g": [f"region {i}" for i in range(GROUPS)]})
    bounded = QueryBuilder("t").enforce(MaxGroupsPerID("g", KEPT)).enforce(MaxRowsPerGroupPerID("g", KEPT))

    def ask() -> float:
        start = cpu()
        for query in (bounded.groupby(keys).count(), bounded.groupby(keys).sum("x", low=0, high=100)):
            answer = session.evaluate(query, PureDPBudget(1))
            assert len(answer.collect()) == GROUPS
        return cpu() - start

    print("CPU", min(ask() for _ in range(times)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
