"""One hostile client beside eight analysts: their p95 against a quiet run's, the median of three pairs.

1,000 previews and 300 new questions arrive in a minute at fixed times, whether or not earlier ones are
answered, with padding off. The hostile one, a process of its own that yields to all others, sends large
bodies with and without a token, deep and wrong ones, workloads, many cells, jobs that it begins and
cancels, plans, long texts, lists, one question on six connections, and headers that take their time.
`RUNS=1 SECONDS=15 python -m benchmarks hostile` is a short run at the same rate.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from .server import _drive, _rank, _state

ANALYSTS, PREVIEWS, QUESTIONS, TARGET = 8, 1000, 300, 3.0
WARD = "SELECT health, COUNT(*) AS n FROM health WHERE age > {} GROUP BY health"


class _Hostile:
    """Sends everything at once, again and again, until it is ended."""

    def __init__(self, port: int, token: str, counts: Any) -> None:
        self.port, self.token, self.counts, self.number = port, token, counts, 0

    async def send(self, what: str, method: str, path: str, body: Any = None, token: bool = True) -> str:
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"{method} /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        head += f"Authorization: Bearer {self.token}\r\n" if token else ""
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.counts[what] = self.counts.get(what, 0) + 1
        try:
            writer.write(head.encode() + content)
            reply = (await reader.read()).decode(errors="replace")
        finally:
            writer.close()
        return reply

    async def dribble(self) -> None:
        """Headers a byte at a time, on as many connections as it gets in ten seconds."""
        pairs = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(30)]
        for _ in range(20):
            for _, writer in pairs:
                writer.write(b"G")
            await asyncio.sleep(0.5)
        for _, writer in pairs:
            writer.close()
        self.counts["slow headers"] = self.counts.get("slow headers", 0) + 1

    async def job(self) -> None:
        work = {"seconds": 30, "synthesize": {"epsilon": 0.001, "columns": ["sex", "health", "site"]}}
        begun = await self.send("jobs", "POST", "/datasets/health/run", work)
        if '"id"' in begun:
            number = json.loads(begun.split("\r\n\r\n", 1)[1])["id"]
            await self.send("cancelled jobs", "DELETE", f"/jobs/{number}")

    async def six(self) -> None:
        self.number += 1
        asked = {"sql": WARD.format(self.number % 60), "epsilon": 1e-5 + self.number * 1e-9}
        same = [self.send("same question", "POST", "/datasets/health/query", asked) for _ in range(6)]
        await asyncio.gather(*same)

    def attacks(self) -> dict[str, Any]:
        data = "/datasets/health"
        cells = json.dumps({"number": 1, "rows": {"age": ["x"] * 150_000}}).encode()
        deep = b'{"mechanism":' + b'{"a":[' * 20_000
        large = json.dumps(
            {"work": [{"sql": "SELECT COUNT(*) AS n FROM health"}] * 50, "epsilon": 1}
        ).encode()
        counts = [f"SELECT COUNT(*) AS n FROM health WHERE age > {n % 65}" for n in range(200)]
        long = "SELECT " + " + ".join(["COUNT(*)"] * 1200) + " AS n FROM health"
        wide = "SELECT site, sex, health, coinsurance, year, COUNT(*) AS n FROM health GROUP BY 1, 2, 3, 4, 5"
        bodies = {
            "wrong cells": ("/feed", cells),
            "deep": ("/ask", deep),
            "plan": ("/plan", large),
            "workload": ("/workload", {"queries": counts, "epsilon": 1e-4}),
            "workload preview": ("/preview", {"queries": counts, "epsilon": 1e-4}),
            "long text": ("/preview", {"sql": long, "epsilon": 0.1}),
            "gaussian": ("/preview", {"sql": wide, "epsilon": 0.1, "noise": "gaussian", "delta": 1e-7}),
            "cells": ("/query", {"sql": wide, "epsilon": 1e-4}),
        }
        lists = {"jobs listed": "/jobs"} | {
            f"{name} listed": f"{data}/{name}?last=1000" for name in ("ledger", "releases", "live", "copies")
        }
        return {
            "stranger": lambda: self.send("stranger", "POST", f"{data}/query", cells, token=False),
            **{w: partial(self.send, w, "POST", data + path, body) for w, (path, body) in bodies.items()},
            **{what: partial(self.send, what, "GET", path) for what, path in lists.items()},
            "jobs": self.job,
            "six": self.six,
            "slow headers": self.dribble,
        }

    async def run(self) -> None:
        async def forever(attack: Any) -> None:
            while True:
                try:
                    await attack()
                except OSError:
                    await asyncio.sleep(0.1)
                # the server refuses more than twenty a second of one person: so fast, and no faster
                await asyncio.sleep(0.5)

        await asyncio.gather(*(forever(attack) for attack in self.attacks().values()))


def _attack(port: int, token: str, counts: Any) -> None:
    os.nice(10)
    asyncio.run(_Hostile(port, token, counts).run())


def _run(hostile: bool, seconds: float, counts: Any) -> tuple[dict[str, float], Counter[int]]:
    """The p95 by kind of request, and the status codes of the eight."""
    from tests.web.running import Server

    folder = Path(tempfile.mkdtemp(prefix="discreet-hostile-"))
    tokens = _state(folder)
    server = Server(folder, tick=0.001, seconds=5).start()
    attacker = multiprocessing.get_context("spawn").Process(
        target=_attack, args=(server.port, tokens[-1], counts), daemon=True
    )
    try:
        if hostile:
            attacker.start()
            # its jobs, and the processes for slow work, are running when the others come
            asyncio.run(asyncio.sleep(5))
        rates = {"previews": PREVIEWS / 60, "queries": QUESTIONS / 60}
        facts = asyncio.run(_drive(server.port, tokens[:ANALYSTS], seconds, **rates))
    finally:
        if attacker.pid is not None:
            attacker.terminate()
            attacker.join()
        server.stop()
    times: Any = facts["times"]
    return {kind: _rank(values, 0.95) for kind, values in times.items()}, Counter(facts["codes"])


def main() -> int:
    """Run the pairs, and compare with the target."""
    try:
        import fastapi  # noqa: F401
    except ImportError:
        print("hostile: skipped, the server extra is not installed here")
        return 0
    seconds, runs = float(os.environ.get("SECONDS", "60")), int(os.environ.get("RUNS", "3"))
    ratios, refused, sent = [], Counter[int](), {}
    with multiprocessing.get_context("spawn").Manager() as manager:
        for _ in range(runs):
            counts = manager.dict()
            quiet, before = _run(False, seconds, counts)
            beside, codes = _run(True, seconds, counts)
            ratios.append(max(beside[kind] / quiet[kind] for kind in quiet))
            refused += Counter({code: n for code, n in (before + codes).items() if code != 200})
            sent = dict(counts)
            shown = "  ".join(f"{k} {1000 * quiet[k]:.0f} -> {1000 * beside[k]:.0f} ms" for k in quiet)
            print(f"  p95: {shown}   {ratios[-1]:.1f} times; load {os.getloadavg()[0]:.1f}")
    missing = {"jobs", "slow headers", "stranger", "wrong cells", "same question"} - sent.keys()
    ratio = statistics.median(ratios)
    print(f"  the hostile one sent {sent}; refused of the eight: {dict(refused) or 'nothing'}")
    fine = ratio <= TARGET and not refused and not missing
    verdict = "ok" if fine else "MISSED"
    print(f"hostile: p95, median of {runs}: {ratio:.1f} times quiet   target <= {TARGET:g}   {verdict}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
