"""Simulates private testing: the shares of false discoveries and of signals detected, and the times of
alarms.

For benchmarks and the choice of settings. Data is made up and randomness is seeded, so nothing here
may be used on real data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet import Halted, Public
from discreet.adaptive import ChangeWatch, Hypothesis, Paprika
from discreet.adaptive.changepoints import GRID, best_scores, on_grid
from discreet.adaptive.hypotheses import NullLaw
from discreet.mechanisms.protocols import Integers, Sensitivity
from discreet.sampling import SeededEntropy
from discreet.tables import Memory, Source

Floats = NDArray[np.float64]
# Draws the statistics of all hypotheses from a generator and a mask that is True where the null is false.
Draw = Callable[[np.random.Generator, NDArray[np.bool_]], Any]
# the positions of the signals (false nulls) among a hundred hypotheses: chosen by hand, spread over the
# stream
SIGNALS = (3, 11, 24, 37, 50, 63, 77, 90)


@dataclass(frozen=True, slots=True)
class _SimulatedStatistic:
    """Holds a number that the simulation drew, in place of a statistic of a table. Adding one person raises
    it by at most `linf`, and never lowers it (`monotone`), as with a count."""

    value: int
    linf: int
    monotone: bool = True

    def sensitivity(self, public: Public) -> Sensitivity:
        return Sensitivity(linf=self.linf)

    def __call__(self, source: Source) -> Integers:
        return np.asarray(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class TrialShares:
    """Holds for each run the share of false discoveries among all discoveries (`false`), and the share of the
    signals that were discovered (`detected`)."""

    false: Floats
    detected: Floats

    def interval(self, values: Floats) -> tuple[float, float]:
        """Return the mean over the runs and the half-width of its 95% interval (normal approximation)."""
        return float(values.mean()), float(1.96 * values.std(ddof=1) / len(values) ** 0.5)

    @property
    def rate(self) -> tuple[float, float]:
        """The false discovery rate, with the half-width of its interval."""
        return self.interval(self.false)

    @property
    def power(self) -> tuple[float, float]:
        """The mean share of signals detected, with the half-width of its interval."""
        return self.interval(self.detected)


def online(
    mechanism: Paprika,
    *,
    null: NullLaw,
    draw: Draw,
    runs: int,
    seed: int,
    hypotheses: int = 100,
    signals: Sequence[int] = SIGNALS,
    alternative: str = "greater",
) -> TrialShares:
    """Run `mechanism` on `runs` streams of hypotheses, whose nulls at the positions `signals` are false.

    `null` is the null distribution of every statistic, `alternative` the side of the tests, and `draw` draws
    the statistics. After the mechanism halts nothing more is rejected.
    """
    random, entropy = np.random.default_rng(seed), SeededEntropy(seed)
    is_signal = np.isin(np.arange(hypotheses), signals)
    # the table that the mechanism is given, and that the simulated statistics do not read
    empty = Memory({}, mechanism.public)
    false, detected = np.empty(runs), np.empty(runs)
    for run in range(runs):
        values, rejected = draw(random, is_signal), np.zeros(hypotheses, dtype=np.bool_)
        state = mechanism.start(empty, entropy=entropy)
        for index, value in enumerate(values):
            hypothesis = Hypothesis(
                statistic=_SimulatedStatistic(int(value), mechanism.sensitivity),
                null=null,
                alternative=alternative,
            )
            try:
                state, answer = mechanism.answer(state, empty, hypothesis, entropy=entropy)
            except Halted:
                break
            rejected[index] = answer.value.rejected
        false[run] = (rejected & ~is_signal).sum() / max(1, rejected.sum())
        detected[run] = (rejected & is_signal).sum() / max(1, is_signal.sum())
    return TrialShares(false, detected)


def alarms(watch: ChangeWatch, *, change_at: int | None, runs: int, seed: int) -> Floats:
    """Return the time of the first alarm in each run, infinite where none is raised.

    There is one row at each time from 1 to `watch.times`; its distribution changes at the time `change_at`,
    or never if that is None. The noise is simulated in floats, with the scales of the mechanism: `query` for
    each score, `threshold` once per run.
    """
    random, rounds = np.random.default_rng(seed), watch.rounds
    times = np.arange(1, watch.times + 1)
    changed = times >= (np.inf if change_at is None else change_at)
    alarm_times = np.full(runs, np.inf)
    for run in range(runs):
        before, after = (watch.change.draw(random, watch.times, changed=c) for c in (False, True))
        best = best_scores(on_grid(watch.change, np.where(changed, after, before)), watch.window)
        noise = random.laplace(0, float(rounds.query), len(best)) - random.laplace(0, float(rounds.threshold))
        # scores are in units of 1 / GRID
        raised = np.flatnonzero(best + noise >= float(watch.threshold) * GRID)
        if len(raised):
            # the first score is that of the first full window, which ends at the time `window`
            alarm_times[run] = watch.window + raised[0]
    return alarm_times
