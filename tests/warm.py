"""Run scripts as a newcomer would, each in a process of its own, without each one paying for imports again.

One process per test worker has loaded what scripts usually load (a second and a half of CPU time, four with
torch) and forks for every script: nothing that a script does is seen by the next one. What is loaded when is
tested in tests/ground/test_import.py, by processes that start cold.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import traceback
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

# Arrow loads pandas, where it is installed, when it first converts a list.
LIBRARIES = (
    *("numpy", "pandas", "scipy.stats", "scipy.optimize", "pyarrow.compute", "duckdb", "sqlglot"),
    *("cryptography", "discreet.session", "discreet.accounting", "discreet.planning", "discreet.streaming"),
)


def run(script: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a file, or a text of Python, in `cwd`, with warnings as errors; return its exit code and outputs."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    request = {"file": str(script)} if isinstance(script, Path) else {"text": script}
    print(json.dumps(request | {"cwd": str(cwd)}), file=server.stdin, flush=True)
    code = int(server.stdout.readline())
    outputs = [(cwd / name).read_text() for name in (".stdout", ".stderr")]
    return subprocess.CompletedProcess([str(script)], code, *outputs)


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-W", "error", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(_stop, server)
    return server


def _stop(server: subprocess.Popen[str]) -> None:
    for pipe in (server.stdin, server.stdout):
        assert pipe is not None
        pipe.close()
    server.wait()


def _serve() -> None:
    """Fork for every line of the input; the answer is the exit code of the child."""
    for name in LIBRARIES:
        __import__(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(_child(json.loads(line)))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def _child(request: dict[str, Any]) -> int:
    os.chdir(request["cwd"])
    for number, name in ((1, ".stdout"), (2, ".stderr")):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    path = request.get("file", "<string>")
    sys.argv = [path]
    # as `python path` and `python -c` have it
    sys.path[0] = str(Path(path).parent) if "file" in request else ""
    code = 0
    try:
        source = Path(path).read_text() if "file" in request else request["text"]
        _as_main(compile(source, path, "exec"), path)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    # what an interpreter does at its end
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):
            stream.flush()
    return code


def _as_main(code: CodeType, path: str) -> None:
    main = type(sys)("__main__")
    main.__dict__["__file__"] = path
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


if __name__ == "__main__":
    _serve()
