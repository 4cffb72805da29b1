"""The simulated trials of `benchmarks.discovery`."""

from __future__ import annotations

import numpy as np
from benchmarks import _discovery_trials as trials

from discreet import Bounds, Public
from discreet.adaptive import AlphaInvesting, BernoulliChange, Binomial, ChangeWatch, Paprika

COIN = Binomial(trials=1000, chance=0.5)


def tried(epsilon: float, share: float = 0.75) -> trials.TrialShares:
    return trials.online(
        Paprika(
            public=Public(), epsilon=epsilon, rejections=3, procedure=AlphaInvesting(alpha=0.05, wealth=0.05)
        ),
        null=COIN,
        draw=lambda random, signal: random.binomial(1000, np.where(signal, share, 0.5)),
        runs=4,
        seed=1,
        hypotheses=12,
        signals=(0, 2),
    )


def test_signals_are_found_with_much_budget_and_not_with_none():
    assert tried(100).power[0] == 1
    assert tried(0.001).power[0] <= 0.25
    assert tried(100, share=0.5).rate[0] <= 0.5


def test_an_alarm_comes_after_the_change_and_not_before():
    watch = ChangeWatch(
        public=Public(schema={"x": Bounds(0, 1), "t": Bounds(1, 100)}),
        column="x",
        time="t",
        times=100,
        window=20,
        threshold=12,
        epsilon=50,
        change=BernoulliChange(before=0.05, after=0.95),
    )
    seen = trials.alarms(watch, change_at=51, runs=40, seed=2)
    assert np.all((seen > 51) & (seen < 70))
    assert not np.isfinite(trials.alarms(watch, change_at=None, runs=40, seed=3)).any()
