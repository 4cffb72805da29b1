"""Runs every benchmark module, each in its own process, with the rivals' Python where it is installed.

`python -m benchmarks` runs all, `python -m benchmarks sampling` the named ones. With `--device cuda` those of
training (`learning`, `models`) run there, in seconds of the clock. What each prints is also
kept in out/bench, with the date and the machine. Exits non-zero if a target is missed.
"""

from __future__ import annotations

import ast
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent


def modules() -> list[str]:
    """The modules beside this one that define `main`."""
    found = []
    for path in sorted(HERE.glob("[!_]*.py")):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found.append(path.stem)
    return found


def interpreter(name: str) -> str:
    """The rivals' Python; the engines' own where these are needed and the rivals are elsewhere."""
    if name in ("postgres", "spark"):
        return sys.executable
    rivals = HERE.parent / ".venv-peers" / "bin" / "python"
    return str(rivals) if rivals.exists() else sys.executable


def run(name: str) -> int:
    """Run one module, show what it prints, and keep that in out/bench."""
    code = f"import sys; from benchmarks.{name} import main; sys.exit(main())"
    folder = HERE.parent / "out" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    command = [interpreter(name), "-u", "-c", code]
    with (
        (folder / f"{name}.txt").open("w") as kept,
        subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as process,
    ):
        now = datetime.now(UTC).isoformat(timespec="minutes")
        kept.write(f"{name}, {now}, Python {platform.python_version()}, {os.cpu_count()} cores\n")
        for line in process.stdout or ():
            print(line, end="", flush=True)
            kept.write(line)
    return process.returncode


def has_device(device: str) -> bool:
    """Whether this machine, and this torch, can compute there."""
    code = f"import torch; torch.ones(1, device={device!r}).item()"
    return subprocess.run([interpreter("learning"), "-c", code], capture_output=True).returncode == 0


def main(wanted: list[str]) -> int:
    if "--device" in wanted:
        at = wanted.index("--device")
        device = (wanted[at + 1 : at + 2] or [""])[0]
        wanted = wanted[:at] + wanted[at + 2 :]
        if not has_device(device):
            print(f"no device {device!r} here: nothing was measured")
            return 2
        os.environ["DISCREET_DEVICE"] = device
    unknown = set(wanted) - set(modules())
    if unknown:
        print(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(modules())}")
        return 2
    missed = []
    for name in wanted or modules():
        if run(name):
            missed.append(name)
    print(f"missed or failed: {', '.join(missed)}" if missed else "all targets met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
