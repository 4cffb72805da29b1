"""Measures and draws the error of one count in the central, the shuffle and the local model of differential
privacy.

Drawing needs matplotlib (`discreet[plots]`); measuring does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .. import local, sampling
from ..accounting import amplification
from ..sampling import Entropy
from .demo.stage import ACCENT
from .plots import label_ends, load_pyplot, save_figure, style_axes

Curves = dict[str, list[float]]
COLORS = {"local": "#c0392b", "shuffled": "#e29c27", "central": ACCENT}


def local_epsilon(epsilon: float, people: int, delta: float) -> float:
    """Return a local epsilon with which the shuffled reports of `people` cost at most `epsilon` at `delta`.

    It is `epsilon` or more, as shuffling never costs more than the reports themselves; the search by
    bisection goes up to 16 (chosen by hand), or to `epsilon` where that is more.
    """
    low, high = epsilon, max(16.0, epsilon)
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if amplification.shuffling(middle, people, delta) <= epsilon else (low, middle)
        )
    return low


def measure(
    *,
    epsilon: float,
    counts: Sequence[int],
    runs: int,
    entropy: Entropy,
    delta: float = 1e-6,
    share: float = 0.3,
) -> Curves:
    """Return, for each model, the root mean squared error of a count of "yes" over `runs` runs, for each
    number of people in `counts`.

    A `share` of the people says yes. In each model the whole count costs `epsilon` (in the shuffle model at
    `delta`); the error is in people.
    """
    curves: Curves = {"central": [], "shuffled": [], "local": []}
    for people in counts:
        values = (np.arange(people) < share * people).astype(np.int64)
        noise = sampling.discrete_laplace(1 / epsilon, runs, entropy)
        curves["central"].append(math.sqrt(float(np.mean(noise.astype(float) ** 2))))
        for name, report_epsilon in (("shuffled", local_epsilon(epsilon, people, delta)), ("local", epsilon)):
            # binary randomized response; `estimate` returns the shares of the values 0 and 1
            oracle = local.KaryResponse(epsilon=report_epsilon, domain=2)
            errors = [
                people * float(oracle.estimate(oracle.respond(values, entropy=entropy)).value[1])
                - values.sum()
                for _ in range(runs)
            ]
            curves[name].append(math.sqrt(float(np.mean(np.square(errors)))))
    return curves


def against_central(
    path: Path, counts: Sequence[int], curves: Mapping[str, Sequence[float]], epsilon: float
) -> Path:
    """Draw measured errors as points; dashed lines are exact standard deviations where there is a formula.

    For n people and small epsilon these are about sqrt(n) / epsilon in the local model and sqrt(2) / epsilon
    in the central one. The dotted line joins the measured points of the shuffle model.
    """
    figure, axes = load_pyplot().subplots(figsize=(8.5, 4.8), layout="constrained")
    style_axes(
        axes, f"The error of a count at epsilon = {epsilon:g}", "people", "root mean squared error, in people"
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    exp_epsilon = math.exp(epsilon)
    lines = []
    for name, curve in curves.items():
        axes.plot(counts, curve, "o", color=COLORS[name], markersize=6)
        lines.append((f"{name}, measured", COLORS[name], list(counts), list(curve)))
    reference = {
        "local": [math.sqrt(n * exp_epsilon) / (exp_epsilon - 1) for n in counts],
        "central": [math.sqrt(2 / exp_epsilon) / (1 - 1 / exp_epsilon)] * len(counts),
    }
    for name, curve in reference.items():
        axes.plot(counts, curve, color=COLORS[name], linewidth=1.2, linestyle="--")
    axes.plot(counts, curves["shuffled"], color=COLORS["shuffled"], linewidth=1.2, linestyle=":")
    label_ends(axes, lines)
    return save_figure(figure, path)
