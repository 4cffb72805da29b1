"""Compares the bounded group-by on PostgreSQL with the same bounding written by hand, in CPU-seconds of the
server's processes, in one run; measures the bytes that come back, and rows read in batches.

A million rows by default, 100,000 users, 50 groups, COUNT and SUM with at most 4 groups per user;
DISCREET_ROWS=10000000 for more. The server is one that this starts, with its default settings and no parallel
workers, so that CPU time is that of one process.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import postgres

from discreet import Bounds, Categories, Public, Unit
from discreet.query import Query
from discreet.sampling import Entropy
from discreet.tables import PostgreSQL, connect_postgres

ROWS = int(os.environ.get("DISCREET_ROWS", "1000000"))
USERS, GROUPS, BOUND = ROWS // 10, 50, 4
SQL = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g"
# The target for ours over by hand.
MAX_OVER_HAND = 1.5
NAMES = [f"region {i}" for i in range(GROUPS)]
# The same clipping, grid, hash and choice of groups.
HAND_WRITTEN = f"""
WITH pairs AS (
  SELECT u, g, LEAST(COUNT(*), {BOUND}) AS n,
         LEAST(SUM((LEAST(GREATEST(x, 0), 100) * 8192)::bigint), {BOUND * 819200}) AS s,
         hashtextextended(g, hashtextextended(u::text, 42)) AS h
  FROM bench.t GROUP BY u, g),
ranked AS (SELECT *, ROW_NUMBER() OVER (PARTITION BY u ORDER BY h) AS r FROM pairs)
SELECT g, SUM(n), SUM(s) FROM ranked WHERE r <= {BOUND} GROUP BY g
"""
PLAIN = "SELECT g, COUNT(*), SUM(x) FROM bench.t GROUP BY g"


def server_cpu(server: postgres.Server) -> float:
    """Return the CPU time of the server: of its processes that live, and of those that have ended."""
    tick, total = os.sysconf("SC_CLK_TCK"), 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == server.process.pid:
            total += int(fields[11]) + int(fields[12])
        elif stat.parent.name == str(server.process.pid):
            total += sum(map(int, fields[11:15]))
    return total / tick


def least_cpu(
    server: postgres.Server, run: Callable[[], Any], repeats: int = 3 if ROWS <= 2_000_000 else 1
) -> float:
    times = []
    for _ in range(repeats):
        start = server_cpu(server)
        run()
        times.append(server_cpu(server) - start)
    return min(times)


def start_server() -> postgres.Server:
    """Start a server with one table of random rows."""
    server = postgres.server()
    server.run(
        "ALTER SYSTEM SET max_parallel_workers_per_gather = 0",
        "SELECT pg_reload_conf()",
        "CREATE SCHEMA bench",
        "CREATE TABLE bench.t (u bigint, g text, x double precision)",
        f"INSERT INTO bench.t SELECT (random() * {USERS})::bigint, 'region ' || floor(random() * {GROUPS}), "
        f"random() * 120 - 10 FROM generate_series(1, {ROWS})",
        "VACUUM ANALYZE bench.t",
    )
    return server


def connect(server: postgres.Server, unit: Unit) -> PostgreSQL:
    schema = (("g", Categories(NAMES)), ("x", Bounds(0, 100)))
    return connect_postgres(server.address(), Public(table="t", schema=schema, unit=unit), table="bench.t")


def main() -> int:
    if postgres.MISSING is not None:
        print(f"PostgreSQL is skipped: {postgres.MISSING}")
        return 0
    server = start_server()
    engine = connect(server, Unit("u", rows=BOUND, groups=BOUND))
    query = Query(sql=SQL, public=engine.public, epsilon=1, rows=BOUND, groups=BOUND)
    ours = least_cpu(server, lambda: query(engine, entropy=Entropy()))
    by_hand = least_cpu(server, lambda: server.run(HAND_WRITTEN))
    plain = least_cpu(server, lambda: server.run(PLAIN))
    single = connect(server, Unit())
    by_rows = Query(sql=SQL, public=single.public, epsilon=1)
    rows = least_cpu(server, lambda: by_rows(single, entropy=Entropy()))
    sizes: list[int] = []
    answer = engine.answer
    engine.answer = lambda sql: (sizes.append((t := answer(sql)).nbytes), t)[1]  # type: ignore[method-assign]
    query(engine, entropy=Entropy())
    ratio = ours / by_hand
    on_target = ratio <= MAX_OVER_HAND
    print(f"PostgreSQL, {ROWS:,} rows, {USERS:,} users, {GROUPS} groups, CPU-seconds of the server")
    print(f"  bounded group-by   ours {ours:.2f}  by hand {by_hand:.2f}   {ratio:.2f}x   "
          f"target <= {MAX_OVER_HAND}x   {'ok' if on_target else 'MISSED'}")  # fmt: skip
    print(f"  one row a unit     ours {rows:.2f}  plain GROUP BY {plain:.2f}   {rows / plain:.2f}x")
    print(f"  bytes that come back: {sum(sizes):,} for {GROUPS} groups")
    start, cpu, count = time.perf_counter(), time.process_time(), 0
    for batch in engine.batches(["x", "u"]):
        count += batch.num_rows
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  batches of two columns: {count / (time.perf_counter() - start):,.0f} rows a second, "
          f"{time.process_time() - cpu:.2f} CPU-seconds here, peak memory {peak:.0f} MB")  # fmt: skip
    return 0 if on_target else 1


if __name__ == "__main__":
    sys.exit(main())
