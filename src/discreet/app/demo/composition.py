"""What composition buys: the same releases, priced by seven accountants, and a budget for questions nobody
planned."""

from __future__ import annotations

import math
from fractions import Fraction

from ... import accounting as acc
from ..._errors import MissingExtra
from .stage import Stage

TITLE = "What composition buys"

RELEASES = acc.DiscreteLaplace(scale=10).repeated(100)
TRAINING = acc.Gaussian(noise_multiplier=1.1).sampled(rate=Fraction(256, 60_000)).repeated(14_063)


def run(stage: Stage) -> None:
    stage.say(
        "A hundred counts, each with epsilon 0.1: together 10, says the oldest rule. But losses are "
        "random, some go up and some down, "
        "and their sum stays far below the worst case. Every later theorem knows more about that sum:"
    )
    counts = acc.compare(RELEASES, delta=1e-6)
    stage.table(["100 counts, delta 1e-06", "epsilon", ""], _rows(counts))
    stage.say("")
    stage.say(
        "Training a network on 60,000 images with batches of 256 for 60 epochs takes 14,063 steps. "
        "Each step sees a random "
        "sample, so each unit is hidden twice: by noise, and by not knowing when it was used."
    )
    training = acc.compare(TRAINING, delta=1e-5)
    stage.table(["60 epochs, noise 1.1, delta 1e-05", "epsilon", ""], _rows(training))
    saved = counts.as_dict()["basic"] / counts.best.epsilon if counts.best.epsilon else math.inf
    stage.say(
        f"\nThe same releases, the same noise: only the bookkeeping differs, by a factor of "
        f"{saved:.1f} above. Lower is not a favor, it is "
        f"a tighter proof: no accountant can prove less than "
        f"{acc.bounds(TRAINING, delta=1e-5)[0]:.4f} for this training.\n"
    )
    _show_unplanned(stage)
    _picture(stage)


def _rows(comparison: acc.Comparison) -> list[list[str]]:
    priced = sorted(
        (row for row in comparison.rows if row.epsilon is not None), key=lambda row: row.epsilon or 0.0
    )
    return [[row.title, _number(row.epsilon), _bar(row.epsilon, priced[-1].epsilon)] for row in priced]


def _number(value: float | None) -> str:
    return "infinite" if value is None or math.isinf(value) else f"{value:,.4g}"


def _bar(value: float | None, largest: float | None, width: int = 28) -> str:
    if not value or not largest or math.isinf(largest):
        return ""
    return ("█" * max(1, round(width * value / largest))).ljust(width)


def _show_unplanned(stage: Stage) -> None:
    budget = acc.Filter(epsilon=3, delta=1e-6)
    small, pure_event = acc.Gaussian(noise_multiplier=20.0), acc.PureDP(epsilon=1)
    fits = {name: budget.preview([], event).fits for name, event in (("small", small), ("one", pure_event))}
    spent = budget.replay([pure_event, small.repeated(10)])
    left = budget.preview(spent, small).fits
    stage.say(
        f"These totals hold for a plan fixed in advance. Who chooses the next question after seeing "
        f"the last answer needs a "
        f"[bold]filter[/]. A budget of (3, 1e-06) admits {fits['one']} pure releases with epsilon 1, "
        f"or {fits['small']} Gaussian "
        f"ones with noise 20, or a mix: after one of the first and ten of the second, {left} more of "
        f"the second."
    )


def _picture(stage: Stage) -> None:
    from .. import plots

    try:
        path = plots.abadi(path=stage.out / "composition.png")
    except MissingExtra as missing:
        stage.aside(str(missing))
        return
    stage.say(f"[dim]picture saved as[/] {path}")
