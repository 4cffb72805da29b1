"""Shows single mechanisms: one histogram and one mean of a real table, with their price and their error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import accounting, mechanisms, sampling
from ...mechanisms import means
from ...mechanisms.protocols import Release
from ...tables import Memory, rand_hie
from ...tables.bundled import HEALTH
from .stage import Bar, Stage

TITLE = "A private histogram and a private mean"

HISTOGRAM_EPSILON, MEAN_EPSILON = 0.1, 0.4


def run(stage: Stage) -> None:
    """Ask two questions of the RAND Health Insurance Experiment, and show what the answers cost."""
    people = rand_hie(year=1)
    stage.say(
        "The table: the first year of the RAND Health Insurance Experiment, one row per person: how "
        "they rate their health, "
        "how often they saw a doctor. Two questions are asked of it. Nobody who sees the answers can be "
        "sure whether any one person took part; how sure they can become is said below. Even the number of "
        "people in the table stays hidden behind the noise.\n"
    )
    entropy = sampling.Entropy()
    counts = mechanisms.noisy_histogram(people.public, "health", epsilon=HISTOGRAM_EPSILON)(
        people, entropy=entropy
    )
    mean = means.Mean(public=people.public, column="visits", epsilon=MEAN_EPSILON, step=1)(
        people, entropy=entropy
    )

    bars = _bars(counts, people)
    stage.say(f"[bold]How do people rate their health?[/]   price: epsilon {HISTOGRAM_EPSILON:g}\n")
    stage.bars(bars)
    stage.say("")
    stage.table(
        ["health", "private answer", "95 in 100 within", "truth"],
        [[b.label, f"{b.value:,.0f}", f"± {b.error:,.0f}", f"{b.truth:,.0f}"] for b in bars],
    )
    width, truth = float(mean.error(0.95)), _true_mean(people)
    stage.say(
        f"\n[bold]How often did they see a doctor that year, on average?[/]   price: epsilon "
        f"{MEAN_EPSILON:g}\n\n"
        f"private answer {float(mean.value):.2f}, within ± {width:.2f} in 95 of 100 cases; the truth "
        f"is {truth:.2f}.\n"
    )
    _price(stage, counts, mean)
    stage.picture(
        "first-answers",
        bars,
        title="How people rate their health: private answer and truth",
        caption=f"RAND Health Insurance Experiment, year 1. Discrete Laplace noise, epsilon "
        f"{HISTOGRAM_EPSILON:g}, "
        "one row is one person.",
    )
    stage.say(
        "[dim]The truth is shown only because this old table is public. For your own tables, nobody "
        "gets to see it.[/]"
    )


def _price(stage: Stage, *releases: Release) -> None:
    """Say what all releases cost together, and by how much they can move a belief."""
    total = accounting.basic(accounting.compose([release.event for release in releases])).value
    belief = highest_belief(total)
    stage.say(
        f"[bold]Spent in all: epsilon {total:.3g}.[/] Say that somebody knows everybody else's data, and "
        f"thinks that the odds are 50 : 50 that one person took part: after these answers the odds are at "
        f"most {belief:.1f} : {100 - belief:.1f}.\n"
    )


def highest_belief(epsilon: float) -> float:
    """Return the largest belief in per cent, rounded up to a tenth, that 50 per cent can become at a pure
    epsilon."""
    return math.ceil(1000 / (1 + math.exp(-epsilon))) / 10


def _bars(counts: Release, people: Memory) -> list[Bar]:
    """Return one bar per state of health: the noisy count, its 95% error, and the true count."""
    truth = mechanisms.Histogram(column="health")(people)
    half_width = float(counts.error(0.95))
    return [
        Bar(str(label), float(value), half_width, float(true))
        for label, value, true in zip(HEALTH.values, counts.value, truth, strict=True)
    ]


def _true_mean(people: Memory) -> float:
    """Return the exact mean of the visits, clipped to the declared bounds 0 and 50 as in the private mean."""
    values: list[Any] = [batch.column(0).to_numpy() for batch in people.batches(["visits"])]
    return float(np.clip(np.concatenate(values), 0, 50).mean())
