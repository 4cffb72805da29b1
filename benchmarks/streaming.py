"""Streams: error factors against the published ones, and a million steps of a 1,000-dimensional stream in
flat memory, beside jax-privacy's generator where it is installed.

`STREAM_STEPS` makes the long stream shorter; `STREAM_RIVAL` is the Python of an environment with jax-privacy.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from discreet import Public
from discreet.mechanisms import Count, matrix
from discreet.sampling import Entropy
from discreet.streaming import counter, error_factors
from discreet.streaming.noise_streams import CorrelatedNoise
from discreet.tables import Memory

STEPS = int(os.environ.get("STREAM_STEPS", "1000000"))
DIMENSION = 1000
GOLDEN = {1024: (3.27255, 3.10979), 4096: (3.71388, 3.55129)}


def report(name: str, value: float, target: float, *, least: bool = False) -> bool:
    met = value >= target if least else value <= target
    sign, state = ">=" if least else "<=", "ok" if met else "MISSED"
    print(f"{name:<58} {value:>10.5g}   target {sign} {target:<10.5g} {state}")
    return met


def factors() -> bool:
    met = True
    for steps, (largest, rms) in GOLDEN.items():
        root, blt = error_factors("square_root", steps), error_factors("blt", steps)
        met &= report(f"square root, {steps} steps, max", root.max, largest * 1.00001)
        met &= report(f"square root, {steps} steps, rms", root.rms, rms * 1.00001)
        met &= report(f"BLT of 4 buffers, {steps} steps, max", blt.max, largest * 1.01)
        met &= report(f"BLT of 4 buffers, {steps} steps, rms", blt.rms, rms * 1.01)
    met &= report("optimum, 256 steps, max", error_factors("optimal", 256).max, 2.5327 * 1.005)
    met &= report(
        "optimum, 256 steps, rms", error_factors("optimal", 256, minimize="rms").rms, 2.52441 * 1.005
    )
    return met


def long_stream() -> tuple[bool, float]:
    """CPU seconds of the float stream, and whether memory stayed flat."""
    noise = CorrelatedNoise(matrix.blt(STEPS), DIMENSION, 1.0, Entropy())
    blocks = noise.blocks(STEPS)
    for _ in range(8):
        next(blocks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, total = time.process_time(), np.zeros(DIMENSION)
    for block in blocks:
        total += block.sum(axis=0)
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    deviation = float(total.std())
    print(
        f"deviation of the sum after {STEPS:,} steps: {deviation:.3f} (independent noise: {STEPS**0.5:.0f})"
    )
    met = report(f"{STEPS:,} steps of {DIMENSION} floats: growth of memory, MB", grown, 16)
    print(f"float noise: {seconds:.1f} CPU s, {seconds / STEPS * 1e6:.2f} us a step")
    return met, seconds / STEPS


def exact_cost() -> None:
    """The price of exact integers: one tick of 1,000 entries."""
    from discreet.mechanisms import Histogram

    names = [f"v{i}" for i in range(DIMENSION)]
    from discreet import Categories

    public = Public(schema={"v": Categories(names)}, table="t")
    mechanism = counter(public, Histogram(column="v"), rho=0.1, horizon=STEPS, strategy="blt")
    batch, entropy = Memory({"v": names[:100]}, public), Entropy()
    state = mechanism.start(batch, entropy=entropy)
    start, ticks = time.process_time(), 20
    for _ in range(ticks):
        state, _ = mechanism.feed(state, batch, entropy=entropy)
    each = (time.process_time() - start) / ticks
    print(f"exact integer noise, a tick of {DIMENSION} entries by BLT: {each * 1e3:.2f} ms, the ledger apart")
    scalar = counter(Public(table="t"), Count(), rho=0.1, horizon=STEPS, strategy="blt")
    one = Memory({"v": names[:100]}, Public(table="t"))
    state = scalar.start(one, entropy=entropy)
    start = time.process_time()
    for _ in range(ticks):
        state, _ = scalar.feed(state, one, entropy=entropy)
    print(f"exact integer noise, a tick of one count: {(time.process_time() - start) / ticks * 1e3:.2f} ms")


def rival(ours: float) -> bool:
    python = os.environ.get("STREAM_RIVAL", "")
    if not python or not Path(python).exists():
        print("jax-privacy: not installed here (STREAM_RIVAL), not compared")
        return True
    script = Path(__file__).with_name("_streaming_jax.py")
    done = subprocess.run([python, str(script)], capture_output=True, text=True, check=False)
    print(done.stdout.strip() or done.stderr.strip()[-400:])
    if done.returncode:
        return True
    theirs = float(done.stdout.split()[-1])
    return report("jax-privacy's CPU time a step over ours", theirs / ours, 1.0, least=True)


def main() -> int:
    met = factors()
    flat, seconds = long_stream()
    exact_cost()
    met = rival(seconds) and met and flat
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
