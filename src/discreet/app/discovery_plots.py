"""Plots private discovery: the false discovery rate and the power of multiple tests against epsilon, and the
delay of an alarm against the probability of a false alarm.

Every function saves one PNG and returns its path. Needs matplotlib (`discreet[plots]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .demo.discovery_trials import TrialShares
from .demo.stage import ACCENT, INK
from .plots import GRAY, label_ends, load_pyplot, plain_ticks, save_figure, style_axes

# the colors of false findings, and of true ones
ALARM, CALM = "#c0392b", "#3c8d53"
# points (probability of a false alarm, median delay of the alarm in time steps)
Curve = Sequence[tuple[float, float]]


def power(path: Path, trials: Mapping[float, TrialShares], target: float) -> Path:
    """Draw the share of false findings among all findings and the share of true signals that were found,
    against epsilon.

    `trials` maps epsilon to the measured shares; each share is (mean, half width of its 95% interval).
    `target` is the promised bound on the false discovery rate.
    """
    figure, axes = load_pyplot().subplots(figsize=(8.5, 4.6), layout="constrained")
    style_axes(axes, "Power and false discovery rate", "epsilon", "share")
    xs = sorted(trials)
    lines = []
    for label, color, measure in (("signals found", CALM, "power"), ("false among findings", ALARM, "rate")):
        means, widths = zip(*(getattr(trials[epsilon], measure) for epsilon in xs), strict=True)
        axes.errorbar(xs, means, yerr=widths, color=color, linewidth=2, capsize=3)
        lines.append((label, color, xs, list(means)))
    axes.axhline(target, color=GRAY, linewidth=1, linestyle=":")
    axes.annotate(
        f"promised: {target:.0%}",
        (xs[-1], target),
        xytext=(-60, 6),
        textcoords="offset points",
        color=GRAY,
        ha="right",
    )
    axes.set_xscale("log")
    plain_ticks(axes.xaxis, xs[0], xs[-1])
    axes.set_ylim(-0.02, 1.04)
    label_ends(axes, lines)
    return save_figure(figure, path)


def alarms(path: Path, curves: Mapping[str, Curve]) -> Path:
    """Draw the median delay of an alarm against the probability of a false alarm, one curve per label; at
    most five curves are drawn."""
    figure, axes = load_pyplot().subplots(figsize=(8.5, 4.6), layout="constrained")
    style_axes(axes, "Alarms: early or reliable", "probability of a false alarm", "median delay")
    lines = []
    for color, (label, curve) in zip((ACCENT, "#e29c27", CALM, ALARM, INK), curves.items(), strict=False):
        x, y = zip(*sorted(curve), strict=True)
        axes.plot(x, y, color=color, linewidth=2, marker="o", markersize=4)
        lines.append((label, color, list(x), list(y)))
    axes.set_xlim(0, max(x for curve in curves.values() for x, _ in curve))
    axes.set_ylim(bottom=0)
    label_ends(axes, lines)
    return save_figure(figure, path)
