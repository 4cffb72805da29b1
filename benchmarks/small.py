"""What a small question costs, in CPU time: a count on 5,000 rows, its preview, and the same from the shell.

CPU time of the process and of its children, the least of several runs: what else runs on the machine only adds to it.
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

import discreet as dp

ROWS = 5_000
TARGETS = {"session.sql": 15.0, "session.preview": 10.0, "discreet --help": 400.0, "discreet query": 1200.0}
SCHEMA = """
table = "people"
unit = "row"
[columns.age]
type = "number"
lower = 17
upper = 90
"""


def least(run: Callable[[int], Any], repeats: int) -> float:
    """The least CPU time of a call, in milliseconds."""
    times = []
    for i in range(repeats):
        start = time.process_time()
        run(i)
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def shell(folder: Path, *arguments: str) -> float:
    """The CPU time of one command, in milliseconds, with its threads."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "from discreet.app.cli import main; main()"
    subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, check=True, capture_output=True, env=os.environ
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> int:
    age = np.random.default_rng(0).integers(17, 91, ROWS)
    people = dp.open(
        {"age": age}, unit=dp.rows(), schema={"age": dp.Bounds(17, 90)}, table="people",
        budget=dp.Budget(epsilon=1000, delta=1e-6), ledger=":memory:",
    )  # fmt: skip
    text = "SELECT COUNT(*) AS n FROM people WHERE age > {}"
    found = {
        "session.sql": least(lambda i: people.sql(text.format(20 + i), epsilon=0.1), 30),
        "session.preview": least(lambda i: people.preview(text.format(20 + i), epsilon=0.1), 30),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(pa.table({"age": age}), folder / "people.parquet")
        (folder / "people.parquet.schema.toml").write_text(SCHEMA)
        shell(folder, "init", "people.parquet", "--epsilon", "10", "--delta", "1e-6")
        found["discreet --help"] = min(shell(folder, "--help") for _ in range(3))
        asks = (shell(folder, "query", "people.parquet", text.format(40 + i), "--epsilon", "0.1") for i in range(3))
        found["discreet query"] = min(asks)
    missed = False
    for what, took in found.items():
        missed |= took > TARGETS[what]
        print(
            f"{what:<16} {took:8.1f} CPU-ms   target <= {TARGETS[what]:g}   {'ok' if took <= TARGETS[what] else 'MISSED'}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
