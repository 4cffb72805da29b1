"""Plots streams: the error of running sums under independent noise, tree aggregation and correlated noise,
and the regret of online learners.

Every function saves one PNG and returns its path. Needs matplotlib (`discreet[plots]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..streaming.factors import column_length, named, prefix_variances
from .demo.stage import ACCENT
from .plots import GRAY, label_ends, load_pyplot, save_figure, style_axes

# strategy of `streaming.factors`: label and color of its line
_LINES = {
    "fresh": ("fresh noise at every step", "#c0392b"),
    "item": ("noise on every item", "#e08e45"),
    "tree": ("tree aggregation", GRAY),
    "honaker": ("tree, Honaker estimate", "#3c8d53"),
    "blt": ("four buffers (BLT)", ACCENT),
}


def gain(path: Path, steps: int = 1024) -> Path:
    """Draw the standard deviation of the running sum at each step, for Gaussian noise at the same price: two
    baselines (independent noise on every item, or on every sum), trees, and the buffered linear Toeplitz
    matrix (BLT).

    The unit is the standard deviation of a single release of sensitivity 1 at that price: each value is the
    sensitivity of the strategy times the standard deviation of the noise that its sum has.
    """
    figure, axes = load_pyplot().subplots(figsize=(9.0, 4.6), layout="constrained")
    style_axes(axes, "Error of a running count, one price for all steps", "step", "standard deviation")
    ticks = list(range(1, steps + 1))
    lines = []
    for name, (label, color) in _LINES.items():
        strategy = named(name, steps)
        values = column_length(strategy, steps) * np.sqrt(prefix_variances(strategy, steps))
        axes.plot(ticks, values, color=color, linewidth=1.6)
        lines.append((label, color, ticks, values.tolist()))
    axes.set_xlim(0, steps)
    axes.set_ylim(0, None)
    label_ends(axes, lines)
    return save_figure(figure, path)


def regrets(path: Path, title: str, series: Mapping[str, Sequence[float]], bound: Sequence[float]) -> Path:
    """Draw the cumulative regret of online learners round by round, with the bound on it.

    `series` has one curve of regrets per name, the learner without noise first (it is drawn gray); at most
    four are drawn. `bound` is computed before the first round and has one value per round.
    """
    figure, axes = load_pyplot().subplots(figsize=(9.0, 4.6), layout="constrained")
    style_axes(axes, title, "round", "regret so far")
    rounds = list(range(1, len(bound) + 1))
    colors = [GRAY, ACCENT, "#3c8d53", "#e08e45"]
    lines = []
    curves = [*zip(series.items(), colors, strict=False), (("bound", bound), "#c0392b")]
    for (label, values), color in curves:
        axes.plot(rounds, values, color=color, linewidth=1.6, linestyle="--" if values is bound else "-")
        lines.append((label, color, rounds, list(values)))
    axes.set_yscale("symlog", linthresh=1)
    axes.set_xlim(0, len(rounds))
    label_ends(axes, lines)
    return save_figure(figure, path)
