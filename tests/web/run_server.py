"""Runs a demonstration server in a process of its own, in a folder, on a port.

The folder's state is made at the first start and kept over restarts. Servers, workers and jobs are forked from one
process that has loaded their modules, which takes a server five seconds of CPU time otherwise. That they are started
as `discreet serve` starts them is tested in test_client.py, test_attacks.py and tests/ground/test_container.py.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FORKS = multiprocessing.get_context("forkserver")
# what a forked process must know to let that process fork for it, too; the last is new in Python 3.14
_KNOWN = ("_forkserver_address", "_forkserver_authkey")


def start(folder: Path, options: dict[str, Any]) -> Any:
    """Start a server, and return its process."""
    server = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is None:
        forkserver.set_forkserver_preload(["tests.web.preloaded"])
        kept = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), kept or ""])
        try:
            forkserver.ensure_running()
        finally:
            os.environ.pop("PYTHONPATH")
            if kept is not None:
                os.environ["PYTHONPATH"] = kept
    known = {name: vars(server)[name] for name in _KNOWN if name in vars(server)}
    process = FORKS.Process(target=serve, args=(known, folder, options))
    process.start()
    return process


def end() -> None:
    """End the process that forks, and wait for it, so that its CPU time and that of all servers is counted. It
    would wait for every process that this one has forked in the meantime: so it is told to end."""
    if (pid := forkserver._forkserver._forkserver_pid) is not None:  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGTERM)
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


class Group:
    """Starts workers in the process group of their server, which is killed as one."""

    Pipe = staticmethod(FORKS.Pipe)

    @staticmethod
    def Process(target: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> Any:
        return FORKS.Process(target=_grouped, args=(os.getpid(), target, *args), **options)


def _grouped(group: int, target: Callable[..., Any], *args: Any) -> None:
    os.setpgid(0, group)
    target(*args)


def serve(known: dict[str, Any], folder: Path, options: dict[str, Any]) -> None:
    """Serve until a signal comes."""
    os.setpgid(0, 0)
    os.chdir(ROOT)
    server = forkserver._forkserver  # type: ignore[attr-defined]
    vars(server).update(known, ensure_running=lambda: None)

    import uvicorn

    from discreet.app.cli.serve import demo_settings
    from discreet.app.web import Settings, build, workers

    workers._SPAWN = Group  # type: ignore[assignment]
    port, epsilon = options.pop("port"), options.pop("epsilon", 10.0)
    kept = folder / "tokens.json"
    if kept.exists():
        settings = Settings(state=folder / "state", roots=(folder / "data",), **({"tick": 0.25} | options))
    else:
        settings = demo_settings(folder, options, epsilon=epsilon)
        kept.write_text(json.dumps({name: token for name, _, token in settings.demo_tokens}))
    # uvicorn ends its process by the signal that ended it: here it only ends `run`
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    uvicorn.run(
        build(settings),
        host="127.0.0.1",
        port=port,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=75,
    )
