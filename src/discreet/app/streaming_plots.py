"""Pictures of streams: how far sums are off under naive noise, trees and correlated noise.

Every function saves one PNG and returns its path. Needs matplotlib (`discreet[plots]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..streaming.factors import column_length, named, prefix_variances
from .demo.stage import ACCENT
from .plots import GRAY, label_ends, load_pyplot, save_figure, style_axes

_LINES = {
    "fresh": ("fresh noise at every step", "#c0392b"),
    "item": ("noise on every item", "#e08e45"),
    "tree": ("tree aggregation", GRAY),
    "honaker": ("tree, from below", "#3c8d53"),
    "blt": ("four buffers (BLT)", ACCENT),
}


def gain(path: Path, steps: int = 1024) -> Path:
    """Draw two naive baselines (noise on every item, on every sum) beside the tree and BLT: the standard
    deviation of the sum at each step, for Gaussian noise at one price."""
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
    """Draw the regret of online learners so far, round by round, below the bound that was known before.

    `series`: by name, the one without noise first.
    """
    figure, axes = load_pyplot().subplots(figsize=(9.0, 4.6), layout="constrained")
    style_axes(axes, title, "round", "regret so far")
    rounds = list(range(1, len(bound) + 1))
    colors = [GRAY, ACCENT, "#3c8d53", "#e08e45"]
    lines = []
    drawn = [*zip(series.items(), colors, strict=False), (("bound at the end", bound), "#c0392b")]
    for (label, values), color in drawn:
        axes.plot(rounds, values, color=color, linewidth=1.6, linestyle="--" if values is bound else "-")
        lines.append((label, color, rounds, list(values)))
    axes.set_yscale("symlog", linthresh=1)
    axes.set_xlim(0, len(rounds))
    label_ends(axes, lines)
    return save_figure(figure, path)
