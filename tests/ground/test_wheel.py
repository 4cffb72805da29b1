"""The wheel works without the repository: built, installed elsewhere, asked."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    code = (
        "import os, sys; os.chdir(sys.argv[1]); from hatchling.build import build_wheel; "
        "print(build_wheel(sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


@pytest.mark.slow
def test_it_holds_the_package_the_data_and_the_pages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("discreet/py.typed", "discreet/data/rand_hie.parquet", "discreet/explaining/risk.py"):
        assert needed in names
    assert any(name.endswith("share/doc/discreet/docs/tutorials/steward.md") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]
    assert wheel.stat().st_size < 8_000_000


@pytest.mark.slow
def test_it_runs_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Only the wheel comes first on the path; what it depends on is that of this environment."""
    target = tmp_path / "target"
    zipfile.ZipFile(wheel).extractall(target)
    env = {**os.environ, "PYTHONPATH": str(target)}
    ask = (
        "import discreet as dp; from discreet.tables import rand_hie; print(dp.__file__);"
        "p = dp.open(rand_hie(year=1), budget=dp.Budget(epsilon=1), ledger=':memory:');"
        "print(float(p.sql('SELECT COUNT(*) AS n FROM rand_hie', epsilon=0.5)))"
    )
    for arguments in (["-c", "from discreet.app.cli import main; main()", "--help"], ["-c", ask]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    where, count = done.stdout.split()
    assert where.startswith(str(target))
    assert 5000 < float(count) < 7000
    run = "import sys; sys.argv = ['discreet', 'explain', '1']; from discreet.app.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", run], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "in 100" in done.stdout, done.stderr
