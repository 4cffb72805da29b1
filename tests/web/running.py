"""A server under test: a real process at a real port, and requests to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from . import run_server

COUNT = "SELECT health, COUNT(*) AS n FROM health GROUP BY health"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A demonstration server in `folder`."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.options, self.port = folder, options, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: Any = None

    def start(self) -> Server:
        self.process = run_server.start(self.folder, {"port": self.port, **self.options})
        # two seconds on a quiet machine, a minute on one with a load of thirty
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            try:
                httpx.get(f"{self.url}/login", timeout=5)
            except httpx.HTTPError:
                assert self.process.is_alive(), "the server has ended"
                time.sleep(0.1)
                continue
            return self
        self.kill()
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        """End the front process and its workers as a power cut would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()

    def stop(self) -> None:
        if self.process is not None and self.process.is_alive():
            self.process.terminate()
            self.process.join(10)
            if self.process.is_alive():
                self.kill()

    @property
    def tokens(self) -> dict[str, str]:
        tokens: dict[str, str] = json.loads((self.folder / "tokens.json").read_text())
        return tokens

    def client(self, who: str | None) -> httpx.Client:
        headers = {} if who is None else {"Authorization": f"Bearer {self.tokens[who]}"}
        return httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=600)


def watch_body(client: httpx.Client, dataset: str, **options: Any) -> dict[str, Any]:
    """The body of a request that starts a sparse vector, and claims its price."""
    from discreet import _registry
    from discreet.mechanisms import SparseVector

    public = _registry.from_json(client.get(f"/datasets/{dataset}").json()["public"])
    vector = SparseVector(public=public, **{"threshold": 10, "positives": 1, **options})
    return {"mechanism": _registry.to_json(vector), "claim": vector.event.to_json()}


def in_a_loop(run: Any) -> Any:
    """Run it in a thread of its own: a browser's tests leave a running loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(run())).result()
