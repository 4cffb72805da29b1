"""Simulated trials of discovery: how many findings are false and how many signals are found, and when alarms
are raised.

For benchmarks, pictures and the choice of settings: made-up data, seeded randomness, nothing that could be
released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._errors import Halted
from ..._public import Public
from ...adaptive.alarms import ChangeWatch, best_scores
from ...adaptive.changepoints import GRID, on_grid
from ...adaptive.hypotheses import Hypothesis, NullLaw
from ...adaptive.paprika import Paprika
from ...mechanisms.protocols import Integers, Sensitivity
from ...sampling import SeededEntropy
from ...tables import Memory, Source

Floats = NDArray[np.float64]
# the statistic of each hypothesis; True: a signal
Draw = Callable[[np.random.Generator, NDArray[np.bool_]], Any]
# signals among a hundred hypotheses
SIGNALS = (3, 11, 24, 37, 50, 63, 77, 90)


@dataclass(frozen=True, slots=True)
class _SimulatedStatistic:
    """A number that the simulation drew, in place of a statistic of a table: like a count, a person can only
    add to it."""

    value: int
    moved: int
    monotone: bool = True

    def sensitivity(self, public: Public) -> Sensitivity:
        return Sensitivity(linf=self.moved)

    def __call__(self, source: Source) -> Integers:
        return np.asarray(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class TrialShares:
    """Holds for each run the share of false findings among all, and the share of the signals detected."""

    false: Floats
    detected: Floats

    def interval(self, values: Floats) -> tuple[float, float]:
        """Return the mean and half the width of its 95% interval."""
        return float(values.mean()), float(1.96 * values.std(ddof=1) / len(values) ** 0.5)

    @property
    def rate(self) -> tuple[float, float]:
        return self.interval(self.false)

    @property
    def power(self) -> tuple[float, float]:
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
    """Run `mechanism` on a stream of hypotheses of which `signals` are false nulls."""
    source, entropy = np.random.default_rng(seed), SeededEntropy(seed)
    truth = np.isin(np.arange(hypotheses), signals)
    empty = Memory({}, mechanism.public)
    false, true = np.empty(runs), np.empty(runs)
    for run in range(runs):
        values, rejected = draw(source, truth), np.zeros(hypotheses, dtype=np.bool_)
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
        false[run] = (rejected & ~truth).sum() / max(1, rejected.sum())
        true[run] = (rejected & truth).sum() / max(1, truth.sum())
    return TrialShares(false, true)


def alarms(watch: ChangeWatch, *, change_at: int | None, runs: int, seed: int) -> Floats:
    """Return the time of the alarm in each run, infinite where none is raised: one row at each time, the
    distribution changes at `change_at`."""
    source, rounds = np.random.default_rng(seed), watch.rounds
    times = np.arange(1, watch.times + 1)
    changed = times >= (np.inf if change_at is None else change_at)
    delays = np.full(runs, np.inf)
    for run in range(runs):
        before, after = (watch.change.draw(source, watch.times, changed=c) for c in (False, True))
        best = best_scores(on_grid(watch.change, np.where(changed, after, before)), watch.window)
        noise = source.laplace(0, float(rounds.query), len(best)) - source.laplace(0, float(rounds.threshold))
        raised = np.flatnonzero(best + noise >= float(watch.threshold) * GRID)
        if len(raised):
            delays[run] = watch.window + raised[0]
    return delays
