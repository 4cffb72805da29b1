"""The benchmark of workloads runs at a small size, with and without rivals."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import _workload_rivals, workloads

from discreet.mechanisms import matrix


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rival can be imported, whatever is installed."""
    for name in ("opendp", "opendp.prelude", "mbi", "jax"):
        monkeypatch.setitem(sys.modules, name, None)


def test_ranges_run_without_rivals_and_say_so(alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    results = _workload_rivals.ranges(8, 3)
    text = capsys.readouterr().out
    assert len(results) == len(_workload_rivals.WORKLOADS) * len(_workload_rivals.PRICES)
    assert text.count("opendp is not installed") == text.count("noisy cells + sums") == len(results)


def test_without_data_and_rivals_the_comparison_ends_with_reasons(
    alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _workload_rivals.compare(tmp_path / "none.parquet", size=8, runs=1)
    text = capsys.readouterr().out
    assert "set DISCREET_DATA" in text
    assert "hdmm: the package index has no package" in text


def test_measured_is_the_root_mean_square_over_runs_and_the_median_of_runs() -> None:
    answers = iter(([1.0, 1.0], [2.0, 2.0], [5.0, 5.0]))
    result = _workload_rivals.measured(lambda: next(answers), np.zeros(2), 3)
    assert result.rmse == pytest.approx(10**0.5)
    assert result.median == 2.0


def test_noisy_cells_have_the_noise_of_their_price() -> None:
    counts, workload = np.zeros(20_000, dtype=np.int64), matrix.identity(20_000)
    for price, deviation in (({"epsilon": 1.0}, 1.3567), ({"rho": 0.5}, 1.0)):
        answers = _workload_rivals.noisy_cells(counts, workload, price)()
        assert np.std(answers) == pytest.approx(deviation, rel=0.06)


def test_a_missed_comparison_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for outcome, missed in ((False, 1), (True, 0)):
        monkeypatch.setattr(_workload_rivals, "compare", lambda data, outcome=outcome: outcome)
        report = workloads.Report()
        workloads.rivals(report)
        assert report.missed == missed
