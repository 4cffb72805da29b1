"""Makes statistical discoveries on one budget: private p-values, online tests that pay for rejections only,
and an alarm when a series changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ... import session
from ..._errors import MissingExtra
from ..._public import Bounds, Categories, Public, rows
from ...adaptive import (
    AlphaInvesting,
    BernoulliChange,
    Binomial,
    ChangeWatch,
    Listed,
    Paprika,
    Saffron,
    TwoSampleMeanTest,
    alarm_threshold,
    benjamini_hochberg,
)
from ...curator import Budget
from . import discovery_trials as trials
from .stage import Stage

TITLE = "Discoveries that are not luck, on one budget"

# The trial: columns, people, and the columns that the treatment moves.
COLUMNS, PEOPLE, REAL = 30, 10_000, (4, 13, 22)
# The stream of hypotheses: epsilons, runs at each, and the null distribution of every statistic, the number
# of
# "yes" among 1000 people.
EPSILONS, RUNS = (0.3, 0.4, 0.5, 0.7, 1.0), 10
COIN = Binomial(trials=1000, chance=0.5)


def run(stage: Stage) -> None:
    """Test thirty columns, then a stream of a hundred hypotheses, then look for a change."""
    _columns(stage)
    trials_by_epsilon = _stream(stage)
    curves = _alarms(stage)
    _pictures(stage, trials_by_epsilon, curves)


def _columns(stage: Stage) -> None:
    """Test each column of a made-up trial for an effect, and compare three ways to select discoveries."""
    random = np.random.default_rng()
    arm = random.integers(0, 2, PEOPLE)
    data: dict[str, Any] = {
        f"marker_{i}": random.normal(50 + 5 * arm * (i in REAL), 12, PEOPLE).clip(0, 100)
        for i in range(COLUMNS)
    }
    schema: dict[str, Any] = {name: Bounds(0, 100) for name in data}
    data["arm"] = np.array(["control", "treated"])[arm]
    schema["arm"] = Categories(["treated", "control"])
    trial = session.open(
        data, unit=rows(), schema=schema, budget=Budget(epsilon=3, delta=1e-6), ledger=":memory:"
    )
    pvalues = [
        trial.ask(
            TwoSampleMeanTest(
                public=trial.public, column=f"marker_{i}", group="arm", epsilon=0.08, step=2, runs=99_999
            )
        ).value.pvalue
        for i in range(COLUMNS)
    ]
    stage.say(
        f"{PEOPLE:,} people in two arms of a trial, {COLUMNS} markers, of which the treatment moves "
        f"{len(REAL)}: {list(REAL)}. Each is compared by a private "
        f"test of two means at epsilon 0.08, whose p-value takes the noise into account. Whatever is "
        f"computed from private p-values is free:\n"
    )
    stage.table(
        ["procedure", "target", "found"],
        [
            ["p below 5%, each for itself", "none", f"{np.flatnonzero(np.array(pvalues) <= 0.05).tolist()}"],
            [
                "Benjamini-Hochberg",
                "FDR 5%",
                f"{np.flatnonzero(benjamini_hochberg(pvalues, alpha=0.05)).tolist()}",
            ],
            ["SAFFRON, online", "FDR 5%", f"{Saffron(alpha=0.05).run(pvalues).discoveries.tolist()}"],
        ],
    )
    stage.say(f"\nSpent: {trial.spent:.3g} of 3.\n")


def _stream(stage: Stage) -> dict[float, trials.TrialShares]:
    """Run PAPRIKA on simulated streams of hypotheses, and return, by epsilon, the shares of false
    discoveries and of signals found."""
    procedure = AlphaInvesting(alpha=0.05, wealth=0.05, spending=Listed(terms=(0.01,) * 100))
    trials_by_epsilon = {
        epsilon: trials.online(
            Paprika(public=Public(), epsilon=epsilon, rejections=10, procedure=procedure, monotone=True),
            null=COIN,
            draw=lambda random, signal: random.binomial(1000, np.where(signal, 0.75, 0.5)),
            runs=RUNS,
            seed=1,
        )
        for epsilon in EPSILONS
    }
    stage.say(
        f"A hundred hypotheses one after another about 1,000 people, of which eight null hypotheses are "
        f"false; private online testing pays for rejections only (PAPRIKA; {RUNS} runs):\n"
    )
    stage.table(
        ["epsilon", "signals found", "false among findings"],
        [
            [
                f"{epsilon:g}",
                *(f"{mean:.1%} ± {half_width:.1%}" for mean, half_width in (runs.power, runs.rate)),
            ]
            for epsilon, runs in trials_by_epsilon.items()
        ],
    )
    stage.say("")
    return trials_by_epsilon


def _alarms(stage: Stage) -> dict[str, list[tuple[float, float]]]:
    """Simulate a change watch, print a table, and return for each epsilon pairs (share of runs with a false
    alarm, median delay in days)."""
    public = Public(schema=(("x", Bounds(0, 1)), ("t", Bounds(1, 400))))
    curves: dict[str, list[tuple[float, float]]] = {}
    rows = []
    for epsilon in (0.5, 1, 2):
        watch = ChangeWatch(
            public=public,
            column="x",
            time="t",
            times=400,
            window=100,
            # replaced below
            threshold=30,
            epsilon=epsilon,
            change=BernoulliChange(before=0.2, after=0.8),
        )
        for target in (0.02, 0.05, 0.1, 0.2):
            tuned = replace(watch, threshold=alarm_threshold(watch, false_alarm=target, runs=400))
            false = float(np.isfinite(trials.alarms(tuned, change_at=None, runs=200, seed=2)).mean())
            alarm_days = trials.alarms(tuned, change_at=201, runs=100, seed=3)
            # The delay of the runs without a false alarm before the change; a run without any alarm has an
            # infinite delay.
            delay = float(np.median(alarm_days[alarm_days >= 201])) - 201
            curves.setdefault(f"epsilon {epsilon:g}", []).append((false, delay))
            if target == 0.05:
                rows.append([f"{epsilon:g}", f"{false:.1%}", f"{delay:.0f} days"])
    stage.say(
        "A rate that rises from 20% to 80% on day 201 of 400, one person per day; a private watch over "
        "the last 100 days, with a threshold for a false alarm in one of twenty series without a change:\n"
    )
    stage.table(["epsilon", "false alarms", "median delay"], rows)
    stage.say("")
    return curves


def _pictures(
    stage: Stage,
    trials_by_epsilon: dict[float, trials.TrialShares],
    curves: dict[str, list[tuple[float, float]]],
) -> None:
    from .. import discovery_plots

    try:
        paths = [
            discovery_plots.power(stage.out / "discoveries.png", trials_by_epsilon, target=0.05),
            discovery_plots.alarms(stage.out / "alarms.png", curves),
        ]
    except MissingExtra as missing:
        stage.aside(str(missing))
        return
    stage.saved(*paths)
