"""Files are streamed: ten times the rows take about the same memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PART = 1_000_000
STREAMED = """
import resource, sys
from discreet import Bounds, Categories, Public
from discreet.query import Query
from discreet.sampling import Entropy
from discreet.tables import Memory, connect
import pyarrow.parquet as pq
path, rows, whole = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "whole"
facts = Public(schema={"g": Categories([0, 1, 2]), "x": Bounds(0, 1), "y": Bounds(0, 1)}, table="t")
source = Memory(pq.read_table(path, use_threads=False, pre_buffer=False), facts) if whole else connect(path, facts, threads=2)
sql = "SELECT g, COUNT(*) AS n, SUM(x) AS x, AVG(y) AS y, MEDIAN(x) AS m FROM t GROUP BY g"
answer = Query(sql=sql, public=facts, epsilon=10)(source, entropy=Entropy()).value
assert abs(sum(answer["n"]) - rows) < 1000
# getrusage would count what the process that started this one held at the time, too
(peak,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM:")]
print(int(peak.split()[1]) / 1024)
"""


def write(path, parts):
    random = np.random.default_rng(1)
    with pq.ParquetWriter(
        path, pa.schema([("g", pa.int64()), ("x", pa.float64()), ("y", pa.float64())])
    ) as writer:
        for _ in range(parts):
            columns = {"g": random.integers(0, 3, PART), "x": random.random(PART), "y": random.random(PART)}
            writer.write_table(pa.table(columns))
    return path


def peak(path, parts, how="streamed"):
    arguments = [sys.executable, "-c", STREAMED, str(path), str(parts * PART), how]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_ten_times_the_rows_take_about_the_same_memory(tmp_path):
    few, many = write(tmp_path / "few.parquet", 2), write(tmp_path / "many.parquet", 20)
    least, most = peak(few, 2), peak(many, 20)
    assert most < 1.4 * least
    assert peak(many, 20, "whole") > 1.4 * least  # what a table held in memory takes would not pass
