"""Runs every benchmark module, each in its own process, with the rivals' Python where it is installed.

`python -m benchmarks` runs all, `python -m benchmarks sampling` the named ones. Exits non-zero if a target is
missed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
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


def interpreter() -> str:
    rivals = HERE.parent / ".venv-peers" / "bin" / "python"
    return str(rivals) if rivals.exists() else sys.executable


def main(wanted: list[str]) -> int:
    unknown = set(wanted) - set(modules())
    if unknown:
        print(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(modules())}")
        return 2
    missed = []
    for name in wanted or modules():
        code = f"import sys; from benchmarks.{name} import main; sys.exit(main())"
        if subprocess.run([interpreter(), "-c", code], cwd=HERE.parent, check=False).returncode:
            missed.append(name)
    print(f"missed or failed: {', '.join(missed)}" if missed else "all targets met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
