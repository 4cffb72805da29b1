"""Runs a demonstration server in a folder, on a port, in a process of its own: `python -m tests.web.run_server`.

The folder's state is made at the first start and kept over restarts. Workers and jobs are forked from a process
that has loaded their modules, which takes each of them a second of CPU time otherwise. That they are started as
`discreet serve` starts them is tested in test_client.py, test_attacks.py and tests/ground/test_container.py.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

if __name__ == "__main__":
    import uvicorn

    from discreet.app.cli.serve import demo_settings
    from discreet.app.web import Settings, build, workers

    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["tests.web.preloaded"])
    workers._SPAWN = forks
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    port, epsilon = options.pop("port"), options.pop("epsilon", 10.0)
    kept = folder / "tokens.json"
    if kept.exists():
        settings = Settings(state=folder / "state", roots=(folder / "data",), **({"tick": 0.25} | options))
    else:
        settings = demo_settings(folder, options, epsilon=epsilon)
        kept.write_text(json.dumps({name: token for name, _, token in settings.demo_tokens}))
    # uvicorn ends its process by the signal that ended it: here it only ends `run`
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        uvicorn.run(
            build(settings),
            host="127.0.0.1",
            port=port,
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=75,
        )
    finally:
        # waits for its end, so that its CPU time, and that of the workers, is counted as this process's
        forkserver._forkserver._stop()
