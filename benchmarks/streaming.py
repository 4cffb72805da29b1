"""Streams: error factors against the published ones, and a million steps of a 1,000-dimensional stream in
flat memory, beside jax-privacy's generator where it is installed.

`STREAM_STEPS` makes the long stream shorter; `STREAM_RIVAL` is the Python of an environment with jax-privacy;
`STREAM_PLOT` is where the regret of online learners is drawn. `python -m benchmarks.streaming online` runs
one section: factors, long, exact, rival (with long), online.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from discreet import Public
from discreet.app.plots import ACCENT, GRAY, label_ends, load_pyplot, save_figure, style_axes
from discreet.mechanisms import Count, matrix
from discreet.sampling import Entropy
from discreet.streaming import counter, error_factors
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
    """CPU seconds of the trainer's noise in floats, and whether memory stayed flat."""
    import torch

    from discreet.learning.training.gradient_noise import CorrelatedSource, NoiseBuffer

    independent = NoiseBuffer(DIMENSION, torch.float64, 1.0, Entropy())
    noise, row = CorrelatedSource(independent, matrix.blt(STEPS)), torch.zeros(DIMENSION, dtype=torch.float64)
    for _ in range(256):
        noise.into(row)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, total = time.process_time(), torch.zeros(DIMENSION, dtype=torch.float64)
    for _ in range(STEPS):
        noise.into(row)
        total += row
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


def online() -> bool:
    """Regret of follow the approximate leader over 1,000 rounds of one point each, mean of three runs, beside
    the leader without noise and the bound."""
    from discreet import Bounds
    from discreet.streaming import Ball, OnlineLearner, SquaredDistance, learner

    rounds, columns = 1000, ("a", "b", "c", "d")
    public = Public(schema={name: Bounds(-1, 1) for name in columns}, table="t")
    rng = np.random.default_rng(1)
    points = np.clip(rng.normal(0, 0.3, (rounds, 4)) + np.array([0.4, 0, 0, -0.3]), -0.5, 0.5)
    batches = [Memory(dict(zip(columns, row[:, None], strict=True)), public) for row in points]
    loss, space = SquaredDistance(columns=columns), Ball(4)
    best = np.cumsum(loss.values(points.mean(axis=0), points))

    def regret(mechanism: OnlineLearner) -> np.ndarray:
        entropy, played = Entropy(), [mechanism.first_decision()]
        state = mechanism.start(batches[0], entropy=entropy)
        for batch in batches[:-1]:
            state, released = mechanism.feed(state, batch, entropy=entropy)
            played.append(released.value)
        losses = [float(loss.values(w, x[None])[0]) for w, x in zip(played, points, strict=True)]
        return np.asarray(np.cumsum(losses) - best)

    def built(**price: float) -> OnlineLearner:
        return learner(public, loss, space=space, clip=2, horizon=rounds, **price)

    exact = built(rho=10**12)
    series = {"leader without noise": regret(exact)}
    last = float(series["leader without noise"][-1])
    print(f"leader without noise: regret {last:.3f}, bound {exact.regret_bound():.3f}")
    met, bound = True, 0.0
    for epsilon in (1, 4):
        private = built(epsilon=epsilon, delta=1e-6)
        series[f"epsilon {epsilon}"] = np.mean([regret(private) for _ in range(3)], axis=0)
        bound = max(bound, private.regret_bound())
        last = float(series[f"epsilon {epsilon}"][-1])
        met &= report(
            f"approximate leader, epsilon {epsilon}: regret over its bound", last / private.regret_bound(), 1
        )
        print(f"  regret {last:.3f}, bound {private.regret_bound():.3f}")
    where = os.environ.get("STREAM_PLOT", "")
    if where:
        title = f"Regret of the approximate leader, {rounds:,} rounds"
        print(regrets(Path(where), title, {k: v.tolist() for k, v in series.items()}, [bound] * rounds))
    return met


def regrets(path: Path, title: str, series: Mapping[str, Sequence[float]], bound: Sequence[float]) -> Path:
    """Draw the cumulative regret of online learners round by round, with the bound on it.

    `series` has one curve of regrets per name, the learner without noise first (it is drawn gray); at most
    four are drawn. `bound` is computed before the first round and has one value per round.
    """
    figure, axes = load_pyplot().subplots(figsize=(9.0, 4.6), layout="constrained")
    style_axes(axes, title, "round", "regret so far")
    rounds = list(range(1, len(bound) + 1))
    colors = [GRAY, ACCENT, "#3c8d53", "#e08e45"]
    lines = []
    curves = [*zip(series.items(), colors, strict=False), (("bound", bound), "#c0392b")]
    for (label, values), color in curves:
        axes.plot(rounds, values, color=color, linewidth=1.6, linestyle="--" if values is bound else "-")
        lines.append((label, color, rounds, list(values)))
    axes.set_yscale("symlog", linthresh=1)
    axes.set_xlim(0, len(rounds))
    label_ends(axes, lines)
    return save_figure(figure, path)


def main() -> int:
    wanted = set(sys.argv[1:]) & {"factors", "long", "exact", "rival", "online"}
    met = True
    if not wanted or "factors" in wanted:
        met &= factors()
    if not wanted or wanted & {"long", "rival"}:
        flat, seconds = long_stream()
        met &= flat and rival(seconds)
    if not wanted or "exact" in wanted:
        exact_cost()
    if not wanted or "online" in wanted:
        met &= online()
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
