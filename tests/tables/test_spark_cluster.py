"""A worker that is killed in the middle of a question: the answer still comes, charged once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .. import spark


@pytest.mark.slow
@pytest.mark.skipif(spark.missing() is not None, reason=str(spark.missing()))
def test_a_killed_worker_changes_no_answer_and_is_charged_once(tmp_path):
    """On a real cluster, a master and two workers: the exact counts under one key are the same before and
    after, and there is one charge in the books.

    The answer's own key is another one, so that its counts (about 13,000 in each of 50 groups) differ from
    these by the choice of 4 groups of each person, standard deviation about 130, and by noise of scale 24:
    1,500 is a false alarm below 1e-9. A sixth of the table that is lost or counted twice moves each by 2,000.
    """
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.tables.spark_cluster", str(tmp_path)],
        cwd=root, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    lines = [line for line in ran.stdout.splitlines() if line.startswith("OUTCOME ")]
    assert lines, ran.stderr[-3000:]
    outcome = json.loads(lines[0].removeprefix("OUTCOME "))
    print(f"the cluster took {outcome['cpu']:.0f} CPU-seconds")  # noqa: T201
    assert outcome["killed"], "no stage was seen running"
    assert outcome["worker"]
    assert outcome["same"]
    assert outcome["rows"] == 50
    assert outcome["close"] < 1500
    assert outcome["charges"] == 1
    assert outcome["spent"] == pytest.approx(1)
