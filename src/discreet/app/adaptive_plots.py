"""Plots adaptive analysis: accuracy on a holdout set that is used again and again beside accuracy on fresh
data, and how far random submissions climb on leaderboards.

Every function saves one PNG and returns its path. Needs matplotlib (`discreet[plots]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .demo.holdout_experiment import Outcome
from .demo.stage import ACCENT, INK
from .plots import GRAY, label_ends, load_pyplot, save_figure, style_axes

ALARM, CALM = "#c0392b", "#3c8d53"


def science(path: Path, outcomes: Mapping[tuple[bool, bool], Outcome]) -> Path:
    """Draw the figure of Dwork et al. 2015 in Science ("The reusable holdout"): accuracy against the number
    of attributes in the classifier.

    `outcomes` has for each pair (signal, reusable) one experiment: `signal` says whether any attribute is
    correlated with the label, `reusable` whether the holdout answers through the private mechanism
    (`adaptive.Thresholdout`) or exactly. Each figure row is one `signal`.
    """
    signals = sorted({signal for signal, _ in outcomes})
    figure, grid = load_pyplot().subplots(
        len(signals), 2, figsize=(10.5, 3.9 * len(signals)), layout="constrained", sharey="row", squeeze=False
    )
    for row, signal in zip(grid, signals, strict=True):
        for axes, reusable in zip(row, (False, True), strict=True):
            outcome = outcomes[signal, reusable]
            title = "reusable holdout" if reusable else "plain holdout, used again and again"
            style_axes(
                axes, f"{title}, {'signal' if signal else 'no signal'}", "attributes in the vote", "accuracy"
            )
            lines = []
            for label, color, values in (
                ("training", GRAY, outcome.training),
                ("holdout", ALARM if not reusable else ACCENT, outcome.holdout),
                ("fresh data", CALM, outcome.fresh),
            ):
                mean, spread = values.mean(axis=0), values.std(axis=0)
                axes.plot(outcome.sizes, mean, color=color, linewidth=2)
                axes.fill_between(
                    outcome.sizes, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0
                )
                lines.append((label, color, list(outcome.sizes), mean.tolist()))
            axes.set_xlim(0, max(outcome.sizes))
            axes.set_ylim(0.46, max(float(o.training.mean(axis=0).max()) for o in outcomes.values()) + 0.04)
            label_ends(axes, lines)
    runs = len(next(iter(outcomes.values())).training)
    figure.suptitle(
        f"Choosing and judging on one holdout: mean of {runs} runs, and one standard deviation",
        fontsize=13,
        color=INK,
        weight="bold",
    )
    return save_figure(figure, path)


def boards(path: Path, counts: Sequence[int], curves: Mapping[str, Sequence[float]]) -> Path:
    """Draw the boosting attack on leaderboards: the accuracy, on the hidden labels, of the majority vote over
    the random submissions that a board scored above one half.

    `counts` are numbers of submissions, `curves` has for each board the accuracy after each of them. The
    dotted line is the true accuracy of random submissions, one half. At most five curves are drawn.
    """
    figure, axes = load_pyplot().subplots(figsize=(8.5, 4.6), layout="constrained")
    style_axes(
        axes,
        "The boosting attack on five leaderboards",
        "random submissions",
        "accuracy on the hidden labels",
    )
    colors = (ALARM, "#e29c27", "#8d6e4f", ACCENT, "#7a5195")
    lines = []
    for color, (label, curve) in zip(colors, curves.items(), strict=False):
        axes.plot(counts, curve, color=color, linewidth=2)
        lines.append((label, color, list(counts), list(curve)))
    axes.axhline(0.5, color=GRAY, linewidth=1, linestyle=":")
    axes.set_xlim(0, max(counts))
    label_ends(axes, lines)
    return save_figure(figure, path)
