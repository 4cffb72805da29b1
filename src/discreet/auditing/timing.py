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
