"""Does the time a draw takes tell its size? Whoever knows the noise knows the answer (Jin et al. 2022, arXiv:2112.05307)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from .. import _require
from .outputs import atoms, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of single draws in nanoseconds, and how they go with the size of what was drawn.

    `correlation` is Spearman's, of |value| with time; `explained` the largest gap between the time distributions of small and large
    draws (0: alike, 1: disjoint): an onlooker's best advantage in telling the smaller half from the larger.
    """

    draws: int
    median_ns: float
    correlation: float
    explained: float


def timing(draw: Callable[[], Any], *, draws: int = 2000) -> Timing:
    """Time single draws. A report, not a proof: it depends on the machine and on what else it does."""
    _require.integer(draws=draws, at_least=20)
    sizes, times = np.empty(draws), np.empty(draws)
    for i in range(draws):
        started = time.perf_counter_ns()
        value = draw()
        times[i] = time.perf_counter_ns() - started
        sizes[i] = abs(number(atoms(value)[0]))
    if np.unique(sizes).size < 2:
        return Timing(draws=draws, median_ns=float(np.median(times)), correlation=0.0, explained=0.0)
    order = np.argsort(sizes, kind="stable")
    small, large = times[order[: draws // 2]], times[order[draws // 2 :]]
    return Timing(
        draws=draws,
        median_ns=float(np.median(times)),
        correlation=float(stats.spearmanr(sizes, times).statistic) if np.unique(times).size > 1 else 0.0,
        explained=float(stats.ks_2samp(small, large, method="asymp").statistic),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Two jobs timed in turns: their medians in nanoseconds, and how well the clock tells them apart.

    `advantage` is a lower limit, with the stated confidence, on true-positive rate less false-positive rate of one threshold on the
    time: 0 where nothing is shown.
    """

    runs: int
    first_ns: float
    second_ns: float
    advantage: float
    confidence: float


def clock(
    first: Callable[[], Any], second: Callable[[], Any], *, runs: int = 100, confidence: float = 0.95, seed: int = 0
) -> Clock:
    """Does the time of a query tell which of two neighboring tables it was run on? Run both, in random order, and try to guess.

    The threshold is chosen on the first half of the runs and judged on the other, by exact limits of Clopper and Pearson: for jobs whose
    times have the same law, `advantage` is above 0 with probability at most 1 - confidence.
    """
    _require.integer(runs=runs, at_least=20)
    _require.open_probability(confidence=confidence)
    jobs, times = (first, second), (np.empty(runs), np.empty(runs))
    order = np.random.default_rng(seed)
    for i in range(runs):
        for which in order.permutation(2):
            started = time.perf_counter_ns()
            jobs[which]()
            times[which][i] = time.perf_counter_ns() - started
    half = runs // 2
    later, cut = _split(times[0][:half], times[1][:half])
    slow, fast = (times[1], times[0]) if later else (times[0], times[1])
    caught, alarms = int((slow[half:] > cut).sum()), int((fast[half:] > cut).sum())
    tried, doubt = runs - half, (1 - confidence) / 2
    low = float(stats.beta.ppf(doubt, caught, tried - caught + 1)) if caught else 0.0
    high = float(stats.beta.ppf(1 - doubt, alarms + 1, tried - alarms)) if alarms < tried else 1.0
    return Clock(
        runs=runs,
        first_ns=float(np.median(times[0])),
        second_ns=float(np.median(times[1])),
        advantage=max(0.0, low - high),
        confidence=confidence,
    )


def _split(first: Any, second: Any) -> tuple[bool, float]:
    """Whether the second is the slower one, and the threshold that tells them apart best."""
    cuts = np.sort(np.concatenate([first, second]))
    gaps = [(float((second > cut).mean() - (first > cut).mean()), float(cut)) for cut in cuts]
    best = max(gaps, key=lambda gap: abs(gap[0]))
    return best[0] > 0, best[1]
