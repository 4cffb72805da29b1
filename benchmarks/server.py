"""Load on a server on this machine: 200 connected analysts, 40 previews and 5 questions a second, open loop.

A request is sent when its time has come, whether or not earlier ones were answered, so that a slow server is
seen as such. `SECONDS=10 python -m benchmarks server` is a short run.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

PREVIEWS, QUERIES, ANALYSTS, TARGET = 40, 5, 200, 0.25


def _rank(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


class _Line:
    """One analyst's connection: plain HTTP/1.1, so that the generator leaves the machine to the server."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, method: str, path: str, body: bytes = b"") -> int:
        """Send a request on a free connection, or on a new one; returns the status."""
        pair = self.free.pop() if self.free else None
        if pair is None or pair[0].at_eof():
            pair = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = pair
        head = (
            f"{method} /api/v1/datasets/health{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.split("content-length: ")[1].split("\r\n")[0])
        await reader.readexactly(length)
        self.free.append(pair)
        return int(answer.split()[1])

    def close(self) -> None:
        for _, writer in self.free:
            writer.close()


async def _drive(
    port: int, tokens: list[str], seconds: float, previews: float = PREVIEWS, queries: float = QUERIES
) -> dict[str, object]:
    times: dict[str, list[float]] = {"preview": [], "query": []}
    codes: dict[int, int] = {}
    lines = [_Line(port, token) for token in tokens]

    async def one(kind: str, number: int) -> None:
        sql = f"SELECT health, COUNT(*) AS n FROM health WHERE age > {number % 60} GROUP BY health"
        epsilon = 0.01 if kind == "preview" else 0.01 + number * 1e-7
        body = json.dumps({"sql": sql, "epsilon": epsilon}).encode()
        begun = time.perf_counter()
        code = await lines[number % len(lines)].send("POST", f"/{kind}", body)
        times[kind].append(time.perf_counter() - begun)
        codes[code] = codes.get(code, 0) + 1

    # every analyst is connected before the clock starts
    for line in lines:
        await line.send("GET", "/budget")
    start, tasks = time.perf_counter(), []
    plan = [(i / previews, "preview", i) for i in range(round(previews * seconds))]
    plan += [(i / queries, "query", i) for i in range(round(queries * seconds))]
    for moment, kind, number in sorted(plan):
        await asyncio.sleep(max(0.0, start + moment - time.perf_counter()))
        tasks.append(asyncio.create_task(one(kind, number)))
    await asyncio.gather(*tasks)
    for line in lines:
        line.close()
    return {"times": times, "codes": codes}


def _state(folder: Path) -> list[str]:
    """Make a demonstration with two hundred analysts; returns their tokens."""
    from discreet.app.cli.serve import demo_settings
    from discreet.app.web import Role, ServerStore
    from discreet.curator import Budget, Policy
    from discreet.curator.closed_ledger import without_data

    settings = demo_settings(folder, {}, epsilon=1000.0)
    (folder / "tokens.json").write_text(json.dumps({name: token for name, _, token in settings.demo_tokens}))
    ledger = folder / "data" / "health.parquet.ledger"
    names = [f"analyst{i}" for i in range(ANALYSTS)]
    books = without_data(ledger)
    books.change_policy(
        Policy(budget=books.policy.budget, analysts=tuple((name, Budget(epsilon=4.0)) for name in names))
    )
    store = ServerStore(folder / "state")
    tokens = []
    for name in names:
        store.add_person(name, Role.ANALYST)
        tokens.append(store.issue_token(name, 1)[0])
    store.set_grants("health", names)
    store.close()
    return tokens


def main() -> int:
    """Run the load, and compare with the targets."""
    try:
        import fastapi  # noqa: F401
        from tests.web.running import Server
    except ImportError:
        print("server: skipped, the server extra is not installed here")
        return 0
    from discreet.curator import Ledger, books

    seconds = float(os.environ.get("SECONDS", "60"))
    folder = Path(tempfile.mkdtemp(prefix="discreet-load-"))
    tokens = _state(folder)
    server = Server(folder, tick=0.25, seconds=5, rate=1000, burst=2000)
    server.start()
    before = resource.getrusage(resource.RUSAGE_SELF)
    begun = time.perf_counter()
    try:
        facts = asyncio.run(_drive(server.port, tokens, seconds))
        wall = time.perf_counter() - begun
    finally:
        server.stop()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    times, codes = facts["times"], facts["codes"]
    assert isinstance(times, dict)
    assert isinstance(codes, dict)
    problems = books.verify(Ledger(folder / "data" / "health.parquet.ledger"))
    refusals = {code: count for code, count in codes.items() if code not in (200, 402, 429, 503)}
    p99 = _rank(times["preview"], 0.99)
    print(f"server: {seconds:g} s, {ANALYSTS} analysts, {PREVIEWS} previews and {QUERIES} questions a second")
    for kind, values in times.items():
        ranks = "  ".join(
            f"p{100 * share:g} {1000 * _rank(values, share):.0f} ms" for share in (0.5, 0.9, 0.99)
        )
        print(f"  {kind:8} {len(values):5}  {ranks}")
    load = os.getloadavg()[0]
    print(f"  status codes {codes}; generator {cpu:.1f} CPU s in {wall:.1f} s; load average {load:.1f}")
    print(f"  ledger: {problems or 'whole, no overspend'}")
    fine = p99 < TARGET and not refusals and not problems
    verdict = "ok" if fine else "MISSED"
    print(f"  p99 of previews {1000 * p99:.0f} ms   target < {1000 * TARGET:.0f} ms   {verdict}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
