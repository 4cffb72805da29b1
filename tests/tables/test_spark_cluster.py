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
    after, the noisy ones within 200 of them (scale 12 noise: false alarm below 1e-5), one charge in the
    books."""
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.tables.spark_cluster", str(tmp_path)],
        cwd=root, capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    lines = [line for line in ran.stdout.splitlines() if line.startswith("OUTCOME ")]
    assert lines, ran.stderr[-3000:]
    outcome = json.loads(lines[0].removeprefix("OUTCOME "))
    assert outcome["killed"], "no stage was seen running"
    assert outcome["worker"]
    assert outcome["same"]
    assert outcome["rows"] == 50
    assert outcome["charges"] == 1
    assert outcome["spent"] == pytest.approx(1)
