"""Exact samplers against opendp (exact too) and numpy (floats, not private), in CPU time per draw, in one
process."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from discreet import sampling

SIZE = 1_000_000
SCALES = (0.5, 10.0, 1e4, 1e9)
FASTER_THAN_OPENDP = 100
SLOWER_THAN_NUMPY = {"discrete_laplace": 3, "discrete_gaussian": 6}
POISSON_SIZE = 10_000_000
POISSON_RATES = (1e-6, 1e-3, 0.01, 0.1, 0.5, 0.9)
POISSON_LIMIT = 10.0
SELECT_LIMIT = 1000.0


def nanoseconds(run: Callable[[], Any], draws: int, repeats: int = 7) -> float:
    """The median CPU time per draw, after one run that fills caches and tables."""
    if repeats > 1:
        run()
    times = []
    for _ in range(repeats):
        start = time.process_time_ns()
        run()
        times.append((time.process_time_ns() - start) / draws)
    return statistics.median(times)


def line(name: str, ours: float, rival: str, theirs: float, verdict: str, target: str, ok: bool) -> bool:
    print(
        f"sampling.{name:<28} ours {ours:6.1f} ns   {rival:<8}{theirs:9.1f} ns   {verdict:<15} "
        f"target {target:<8} {'ok' if ok else 'MISSED'}",
        flush=True,
    )
    return ok


def opendp_noise(name: str, scale: float) -> Callable[[], Any] | None:
    """opendp's measurement on an integer vector of zeros, or None where opendp is not installed."""
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if name == "discrete_laplace":
        measurement = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=scale)
    else:
        measurement = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale)
    zeros = np.zeros(SIZE, np.int64)
    return lambda: measurement(zeros)


def noise(name: str, scale: float, entropy: sampling.Entropy) -> bool:
    draw = getattr(sampling, name)
    ours = nanoseconds(lambda: draw(scale, SIZE, entropy), SIZE)
    generator = np.random.default_rng()
    floats = generator.laplace if name == "discrete_laplace" else generator.normal
    numpys = nanoseconds(lambda: floats(0.0, scale, SIZE), SIZE)
    most = SLOWER_THAN_NUMPY[name]
    label = f"{name}({scale:g})"
    ok = line(
        label, ours, "numpy", numpys, f"{ours / numpys:.2f}x the cost", f"<= {most}x", ours <= most * numpys
    )
    rival = opendp_noise(name, scale)
    if rival is None:
        print(f"sampling.{label:<28} opendp is not installed (`make peers`)   MISSED")
        return False
    theirs = nanoseconds(rival, SIZE, repeats=1)
    ratio = theirs / ours
    wanted = FASTER_THAN_OPENDP
    return (
        line(label, ours, "opendp", theirs, f"{ratio:.0f}x faster", f">= {wanted}x", ratio >= wanted) and ok
    )


def poisson(rate: float, entropy: sampling.Entropy) -> bool:
    ours = nanoseconds(lambda: sampling.poisson_subset(POISSON_SIZE, rate, entropy), POISSON_SIZE, repeats=3)
    generator = np.random.default_rng()
    numpys = nanoseconds(
        lambda: np.flatnonzero(generator.random(POISSON_SIZE) < rate), POISSON_SIZE, repeats=3
    )
    label = f"poisson_subset({rate:g})"
    return line(label, ours, "numpy", numpys, "per index", f"<= {POISSON_LIMIT:g} ns", ours <= POISSON_LIMIT)


def selection(name: str, entropy: sampling.Entropy) -> bool:
    scores = np.random.default_rng(0).integers(0, 1000, SIZE)
    ours = nanoseconds(lambda: getattr(sampling, name)(scores, 0.01, entropy), SIZE, repeats=3)
    generator = np.random.default_rng()
    numpys = nanoseconds(lambda: np.argmax(0.01 * scores + generator.gumbel(size=SIZE)), SIZE, repeats=3)
    return line(name, ours, "numpy", numpys, "per candidate", "<= 1 s", ours <= SELECT_LIMIT)


def main() -> int:
    entropy = sampling.Entropy()
    results = [noise(name, scale, entropy) for name in SLOWER_THAN_NUMPY for scale in SCALES]
    results += [poisson(rate, entropy) for rate in POISSON_RATES]
    results += [
        selection(name, entropy) for name in ("argmax_gumbel", "argmax_exponential", "argmax_laplace")
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
