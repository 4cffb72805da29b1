"""The wheel works without the repository: built, installed elsewhere, asked; on every Python it names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
# So much is in site-packages after `pip install discreet`, without pip itself, in MB; and with --no-compile. With the
# newest of everything the second is 453 (18 November 2026); below 450 are the versions of constraints.txt alone
# (benchmarks/install.py).
LIMIT, SMALL = 560, 460


def python(version: str) -> str | None:
    """Return an interpreter of this version: on the path, or one of pyenv's."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(map(str, root.glob(f"{version}.*/bin/python")))]
    for candidate in filter(None, candidates):
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return candidate
    return None


def test_the_versions_that_are_promised_are_those_that_are_tried() -> None:
    assert VERSIONS == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_it_installs_and_answers_on(
    version: str, wheel: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """`pip install` of the wheel alone into an empty environment, without constraints: what a stranger gets
    today. Then the demo, a question, an explanation, outside of the repository."""
    found = python(version)
    if found is None:
        pytest.skip(f"THE WHEEL IS NOT TRIED ON PYTHON {version}: no such interpreter here")
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    run = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
    subprocess.run([found, "-m", "venv", "fresh"], check=True, **run)  # type: ignore[call-overload]
    own = tmp_path / "fresh" / "bin"
    install = [own / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
    done = subprocess.run(install, **run)  # type: ignore[call-overload]
    if done.returncode and re.search("No matching distribution|Could not fetch|resolve", done.stderr):
        pytest.skip(f"THE WHEEL IS NOT TRIED ON PYTHON {version}: no package index ({done.stderr[-200:]})")
    assert done.returncode == 0, done.stderr
    for arguments in (["demo", "-c", "one-budget"], ["explain", "1"], ["--version"]):
        done = subprocess.run([own / "discreet", *arguments], **run)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr, done.stderr
    (packages,) = (tmp_path / "fresh" / "lib").glob("python*/site-packages")
    tools = {"pip", "setuptools", "pkg_resources"}
    files = [f for f in packages.rglob("*") if f.is_file() and f.relative_to(packages).parts[0] not in tools]
    size = sum(f.stat().st_size for f in files)
    sources = sum(f.stat().st_size for f in files if f.suffix != ".pyc")
    record_property("megabytes", round(size / 1e6))
    record_property("megabytes without .pyc", round(sources / 1e6))
    assert size < LIMIT * 1e6
    assert sources < SMALL * 1e6
