"""Shows what tighter composition theorems gain: the same releases priced by every accountant, and a privacy
filter for questions that are not planned in advance."""

from __future__ import annotations

import math
from fractions import Fraction

from ... import accounting as acc
from ..._errors import MissingExtra
from ...accounting.comparison import Comparison
from .stage import Stage

TITLE = "What composition buys"

# A hundred noisy counts of epsilon 0.1 each, and 60 epochs of DP-SGD on 60,000 examples in batches of 256
# (60 * 60,000 / 256 = 14,062.5 steps).
RELEASES = acc.DiscreteLaplace(scale=10).repeated(100)
TRAINING = acc.Gaussian(noise_multiplier=1.1).sampled(rate=Fraction(256, 60_000)).repeated(14_063)


def run(stage: Stage) -> None:
    """Compare all accountants on a hundred counts and on a training run, then show a filter."""
    stage.say(
        "A hundred counts, each with epsilon 0.1: together 10, by basic composition. But privacy losses are "
        "random, some positive and some negative, "
        "and their sum stays far below the worst case except with a small probability delta. The later "
        "theorems bound that sum more tightly:"
    )
    counts = acc.compare(RELEASES, delta=1e-6)
    stage.table(["100 counts, delta 1e-06", "epsilon", ""], _rows(counts))
    stage.say("")
    stage.say(
        "Training a network on 60,000 images with batches of 256 for 60 epochs takes 14,063 steps. "
        "Each step uses a random "
        "sample, so each example is hidden twice: by the noise, and because nobody knows in which steps it "
        "was used."
    )
    training = acc.compare(TRAINING, delta=1e-5)
    stage.table(["60 epochs, noise 1.1, delta 1e-05", "epsilon", ""], _rows(training))
    gain = counts.as_dict()["basic"] / counts.best.epsilon if counts.best.epsilon else math.inf
    # `bounds` returns (lower, upper); the lower one is rounded down
    lower_bound = math.floor(1e4 * acc.bounds(TRAINING, delta=1e-5)[0]) / 1e4
    stage.say(
        f"\nThe releases and the noise are the same; only the accounting differs, by a factor of "
        f"{gain:.1f} for the counts. A lower epsilon here is a tighter proof, not more noise: no accountant "
        f"can prove less than {lower_bound:.4f} for this training.\n"
    )
    _show_unplanned(stage)
    _picture(stage)


def _rows(comparison: Comparison) -> list[list[str]]:
    """Return the table of accountants that have a price, the lowest epsilon first, each with a bar."""
    priced = sorted(
        (row for row in comparison.rows if row.epsilon is not None), key=lambda row: row.epsilon or 0.0
    )
    return [[row.title, _number(row.epsilon), _bar(row.epsilon, priced[-1].epsilon)] for row in priced]


def _number(value: float | None) -> str:
    """Return an epsilon with four digits, rounded up: it is an upper bound."""
    if value is None or math.isinf(value):
        return "infinite"
    step = 10.0 ** (math.floor(math.log10(value)) - 3) if value > 0 else 1.0
    # an excess below 1e-9 of the last digit is a float's rounding error
    return f"{math.ceil(value / step - 1e-9) * step:,.4g}"


def _bar(value: float | None, largest: float | None, width: int = 28) -> str:
    """Return a bar of up to `width` characters, in proportion to the largest value."""
    if not value or not largest or math.isinf(largest):
        return ""
    return ("█" * max(1, round(width * value / largest))).ljust(width)


def _show_unplanned(stage: Stage) -> None:
    """Show how many releases a privacy filter admits, and that kinds of releases may be mixed."""
    budget = acc.Filter(epsilon=3, delta=1e-6)
    gaussian, pure = acc.Gaussian(noise_multiplier=20.0), acc.PureDP(epsilon=1)
    # how many releases of one kind fit into the budget
    fits = {name: budget.preview([], event).fits for name, event in (("gaussian", gaussian), ("pure", pure))}
    spent = budget.replay([pure, gaussian.repeated(10)])
    remaining = budget.preview(spent, gaussian).fits
    stage.say(
        f"These totals hold for a plan fixed in advance. An analyst who chooses the next question after "
        f"seeing the last answer needs a [bold]privacy filter[/]. "
        f"A budget of (3, 1e-06) admits {fits['pure']} pure releases with epsilon 1, "
        f"or {fits['gaussian']} Gaussian "
        f"ones with noise 20, or a mix: after one of the first and ten of the second, {remaining} "
        f"more of the second."
    )


def _picture(stage: Stage) -> None:
    from .. import plots

    try:
        path = plots.abadi(path=stage.out / "composition.png")
    except MissingExtra as missing:
        stage.aside(str(missing))
        return
    stage.saved(path)
