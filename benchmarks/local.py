"""The local model against pure-ldp and multi-freq-ldpy: a million reports encoded and a domain of ten
thousand values estimated, in CPU seconds: the median of three runs.

Rivals go report by report in Python; they are measured on fewer reports in the same process, and their time
is scaled to a million. Where a rival has a fast variant of local hashing (pure-ldp's FastLH, a list of 128
hash functions), that is what is measured.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from discreet import local, sampling

PEOPLE, DOMAIN, EPSILON = 1_000_000, 10_000, 1.0
LIMIT = 10.0


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the median CPU time of three runs (the first also pays for fresh memory) and the last result."""
    times = []
    for _ in range(3):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    return statistics.median(times), result


def values() -> Any:
    weights = 1 / np.arange(1, DOMAIN + 1)
    return np.random.default_rng(0).choice(DOMAIN, PEOPLE, p=weights / weights.sum())


def ours(oracle: Any, truth: Any, entropy: sampling.Entropy) -> tuple[float, float]:
    """(CPU seconds to encode and estimate, mean squared error over what its formula says)."""
    shares = np.bincount(truth, minlength=DOMAIN) / PEOPLE
    spent, release = seconds(lambda: oracle.estimate(oracle.respond(truth, entropy=entropy)))
    return spent, float(((release.value - shares) ** 2).mean()) / oracle.mean_squared_error(PEOPLE, shares)


def pure_ldp(truth: Any, reports: int = 20_000, hashes: int = 128) -> float | None:
    try:
        from pure_ldp.frequency_oracles.local_hashing import FastLHClient, FastLHServer
    except ImportError:
        return None
    client = FastLHClient(EPSILON, DOMAIN, hashes, use_olh=True, index_mapper=lambda x: x)
    server = FastLHServer(EPSILON, DOMAIN, hashes, use_olh=True, index_mapper=lambda x: x)

    def collect() -> None:
        for value in truth[:reports].tolist():
            server.aggregate(client.privatise(value))

    spent, _ = seconds(collect)
    fixed, _ = seconds(lambda: server.estimate_all(range(DOMAIN), suppress_warnings=True))
    return spent * PEOPLE / reports + fixed


def multi_freq(truth: Any, reports: int = 100) -> float | None:
    try:
        from multi_freq_ldpy.pure_frequency_oracles.LH import LH_Aggregator_MI, LH_Client
    except ImportError:
        return None

    def collect() -> None:
        LH_Aggregator_MI(
            [LH_Client(value, DOMAIN, EPSILON) for value in truth[:reports].tolist()], DOMAIN, EPSILON
        )

    return seconds(collect)[0] * PEOPLE / reports


def main() -> int:
    truth, entropy = values(), sampling.Entropy()
    chosen = local.best(epsilon=EPSILON, domain=DOMAIN, people=PEOPLE, bits=64)
    results = []
    times = {}
    for oracle in (
        chosen,
        local.HadamardResponse(epsilon=EPSILON, domain=DOMAIN),
        local.KaryResponse(epsilon=EPSILON, domain=DOMAIN),
    ):
        spent, excess = ours(oracle, truth, entropy)
        name = type(oracle).__name__
        times[name] = spent
        results.append(spent <= LIMIT and 0.9 < excess < 1.1)
        print(
            f"local.{name:<18} ours {spent:7.2f} s   error {excess:.3f} of its formula   target <= "
            f"{LIMIT:g} s   "
            f"{'ok' if results[-1] else 'MISSED'}",
            flush=True,
        )
    for rival, run in (("pure-ldp", pure_ldp), ("multi-freq-ldpy", multi_freq)):
        theirs = run(truth)
        if theirs is None:
            print(f"local.{type(chosen).__name__:<18} {rival} is not installed (`make peers`)   MISSED")
            results.append(False)
            continue
        ratio = theirs / times[type(chosen).__name__]
        results.append(ratio > 1)
        print(
            f"local.{type(chosen).__name__:<18} ours {times[type(chosen).__name__]:7.2f} s   "
            f"{rival:<16}{theirs:10.1f} s   {ratio:.0f}x faster   "
            f"target > 1x   {'ok' if results[-1] else 'MISSED'}",
            flush=True,
        )
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
