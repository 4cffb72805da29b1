"""What it takes from nothing to the first private answer: an environment, `pip install .`, README's lines.

CPU time of each step with its children, wall time, and megabytes (millions of bytes) of the environment
without pip and setuptools: as pip does it by default, with --no-compile, and that with the versions of
constraints.txt, which have the target of 450 MB; the others bring what is newest, and have limits only. How
long a download takes is in the wall time only.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
# CPU-seconds of all steps together; megabytes once installed
SECONDS = 45.0
MEGABYTES = {
    "pip install .": 560.0,
    "pip install --no-compile .": 460.0,
    "pip install --no-compile -c constraints.txt .": 450.0,
}
TOOLS = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}


def step(name: str, command: list[str], folder: Path) -> float:
    """Run one step, print what it took, and return its CPU-seconds."""
    # as a stranger would run it: what is loaded is compiled and kept, nothing comes from this repository
    hidden = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"  {name:<28} {cpu:6.1f} CPU-s {wall:7.1f} s")
    return cpu


def megabytes(environment: Path) -> float:
    """Return how much the files of an environment hold, without the tools that every environment has."""
    (packages,) = environment.glob("lib/python*/site-packages")
    tools = {packages / name for name in TOOLS}
    files = (path for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if not tools & set(path.parents)) / 1e6


def first_answer(install: str) -> tuple[float, float]:
    """Return the CPU-seconds of all steps, and the megabytes once installed."""
    print(install)
    (question, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    options = ["--quiet", "--disable-pip-version-check"]
    arguments = [str(ROOT / word) if word in (".", "constraints.txt") else word for word in install.split()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = str(folder / "fresh" / "bin" / "python")
        cpu = step("an environment", [sys.executable, "-m", "venv", "fresh"], folder)
        cpu += step("the package", [python, "-m", *arguments, *options], folder)
        size = megabytes(folder / "fresh")
        cpu += step("the ten lines of README", [python, "-c", question], folder)
        step("and again", [python, "-c", question], folder)
        print(f"  {size:.0f} MB installed, {megabytes(folder / 'fresh'):.0f} MB after the lines of README")
    return cpu, size


def main() -> int:
    missed = False
    for install, most in MEGABYTES.items():
        cpu, size = first_answer(install)
        for what, value, target in (("CPU-seconds to the first answer", cpu, SECONDS), ("MB", size, most)):
            missed |= value > target
            mark = "ok" if value <= target else "MISSED"
            print(f"  {what:<32} {value:6.1f}   target <= {target:g}   {mark}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
