"""A standalone cluster of Spark on this machine, and a question during which one of its two workers is
killed; run as a process of its own, as a process has one Spark."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, USERS = 1_500_000, 150_000


def start(home: Path, folder: Path, name: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
    log = folder / f"{name}.log"
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments],
            stdout=file,
            stderr=file,
            env=environment,
            cwd=folder,
        )
    return process, log


def said(log: Path, pattern: str, seconds: float = 600) -> str:
    """Wait until a log has something, and return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if match := re.search(pattern, log.read_text(errors="replace")):
            return match[1]
        time.sleep(0.1)
    raise TimeoutError(f"{log.name} never said {pattern}: {log.read_text(errors='replace')[-2000:]}")


def cluster(home: Path, folder: Path) -> tuple[str, list[subprocess.Popen[bytes]]]:
    """The address of a new master with two workers of one core each; its process first, then the workers'."""
    deploy = "org.apache.spark.deploy"
    master, log = start(
        home,
        folder,
        "master",
        f"{deploy}.master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--webui-port",
        "0",
    )
    address = said(log, r"Starting Spark master at (spark://[0-9.]+:[0-9]+)")
    processes = [master]
    for i in range(2):
        worker, log = start(
            home, folder, f"worker{i}", f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "1",
            "--memory", "700m", "--webui-port", "0", "--work-dir", str(folder / f"work{i}"), address,
        )  # fmt: skip
        processes.append(worker)
        said(log, r"(Successfully registered with master)")
    return address, processes


def cpu() -> float:
    """CPU-seconds of this process and of all below it that still run: the driver, master, workers and
    executors, less what was killed."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks[pid] for pid in mine) / os.sysconf("SC_CLK_TCK")


def write(folder: Path) -> Path:
    rng = np.random.default_rng(5)
    path = folder / "visits"
    path.mkdir()
    for part in range(6):
        users = rng.integers(0, USERS, ROWS // 6)
        table = pa.table(
            {"user": users, "g": rng.integers(0, 50, len(users)), "amount": rng.integers(0, 100, len(users))}
        )
        pq.write_table(table, path / f"{part}.parquet")
    return path


def main(folder: Path) -> dict[str, Any]:
    import pyspark

    import discreet as dp
    from discreet.core.exact import measure
    from discreet.query import Query

    address, processes = cluster(Path(pyspark.__file__).parent, folder)
    try:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(address).config("spark.executor.memory", "600m")
        for name, value in {
            "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF",
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "6", "spark.task.maxFailures": "8",
        }.items():  # fmt: skip
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        session = dp.open(
            write(folder), engine="spark", unit="user", budget=dp.Budget(epsilon=2), ledger=folder / "books",
            schema={"g": dp.Categories(list(range(50))), "amount": dp.Bounds(0, 99)},
        )  # fmt: skip
        sql = "SELECT g, COUNT(*) AS n, SUM(amount) AS s FROM visits GROUP BY g"
        query = Query(sql=sql, public=session.public, epsilon=1, rows=3, groups=4)

        def exact() -> list[list[int]]:
            exact = measure(query.question.form, session.curator.source, 99)
            return [[int(v) for v in m] for m in exact.measures]

        undisturbed = exact()
        tracker, killed = spark.sparkContext.statusTracker(), []

        def kill() -> None:
            """As soon as the second stage of a job has finished a task: its first stage's output is lost."""
            end = time.monotonic() + 600
            while time.monotonic() < end:
                infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                if any(info is not None and info.numCompletedTasks >= 1 for info in infos):
                    processes[1].send_signal(signal.SIGKILL)
                    killed.append([info.numCompletedTasks for info in infos if info is not None])
                    return
                time.sleep(0.01)

        def disturbed(work: Any) -> Any:
            thread = threading.Thread(target=kill)
            thread.start()
            try:
                return work()
            finally:
                thread.join()

        answer = disturbed(lambda: session.sql(sql, epsilon=1, rows=3, groups=4))
        after = exact()
        return {
            "same": undisturbed == after, "killed": killed, "rows": len(answer.rows), "spent": session.spent,
            "charges": sum(entry.kind == "charge" for entry in session.ledger.entries()),
            "worker": processes[1].poll() is not None, "cpu": cpu(),
            "close": max(abs(row[1] - n) for row, n in zip(answer.rows, undisturbed[0], strict=True)),
        }  # fmt: skip
    finally:
        for process in processes:
            process.kill()


if __name__ == "__main__":
    outcome = main(Path(sys.argv[1]))
    sys.stdout.write("OUTCOME " + json.dumps(outcome) + "\n")
    sys.stdout.flush()
