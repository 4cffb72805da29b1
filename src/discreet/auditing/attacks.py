"""Defines attacks that learn: from some runs on both tables, a score that says from which of them an output
came.

By the Neyman-Pearson lemma the best score orders outputs by their likelihood ratio. Each attack here
estimates that ratio in its own way: by counting whole outputs, by a histogram of one coordinate or of a
difference of two, by their product, by logistic regression. Which is best is decided on other runs than they
were fitted on, and what is reported is measured on yet others: an attack can be weak, never unfair. (The idea
of DP-Sniper: Bichsel, Steffen, Bogunovic & Vechev 2021.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from .outputs import Floats, Outputs

Score = Callable[[Outputs], Floats]
# The number of bins of a histogram, and of coordinates that get attacks of their own: larger numbers overfit
# when runs are few. They change the power of an audit, never its validity. Chosen by hand, not tuned.
BINS, TOP = 48, 8


@dataclass(frozen=True)
class Attack:
    """Holds a score, which is larger where the first table is more likely, and a name that says which part of
    the output it uses."""

    name: str
    score: Score


def fit(first: Outputs, second: Outputs) -> list[Attack]:
    """Fit every kind of attack to these runs."""
    attacks = [by_label(first, second)]
    # Without numbers, and with equally many leaves in each output, only complete outputs can be told apart.
    if first.width == 0 and len(np.unique(np.vstack([first.numbers, second.numbers]))) == 1:
        return attacks
    center, scale = _center(first, second)
    columns = _columns(first, second, center, scale)
    histograms = [_by_histogram(name, column, first, second) for name, column in columns]
    attacks += [_by_size(name, column, first, second) for name, column in columns] + histograms
    # single coordinates, without differences and projections
    coordinates = [h for h, (name, _) in zip(histograms, columns, strict=True) if name.startswith("output")]
    if len(coordinates) > 1:
        attacks.append(
            Attack(
                "product of the coordinates' ratios",
                lambda x: np.sum([h.score(x) for h in coordinates], axis=0),
            )
        )
        attacks.append(_logistic(first, second, center, scale))
    return attacks


def by_label(first: Outputs, second: Outputs) -> Attack:
    """Score whole outputs by the log ratio of how often they occurred on the first and on the second table;
    one is added to both counts."""
    p, q = Counter(first.labels), Counter(second.labels)
    ratios = {label: math.log((p[label] + 1) / (q[label] + 1)) for label in p | q}

    def score(x: Outputs) -> Floats:
        return np.array([ratios.get(label, 0.0) for label in x.labels])

    return Attack("whole output", score)


def _center(first: Outputs, second: Outputs) -> tuple[Floats, Floats]:
    """Return the median and the interquartile range of each column over both tables: robust, as noise has
    heavy tails."""
    pooled = np.vstack([first.numbers, second.numbers])
    pooled = np.where(np.isfinite(pooled), pooled, np.nan)
    pooled[:, np.isnan(pooled).all(axis=0)] = 0.0
    low, center, high = np.nanquantile(pooled, (0.25, 0.5, 0.75), axis=0)
    return center, np.where(high > low, high - low, 1.0)


def standardized(x: Outputs, center: Floats, scale: Floats) -> Floats:
    """Return the numbers in units of their spread, clipped to -8 and 8; missing ones are 0."""
    return np.clip(np.nan_to_num((x.numbers - center) / scale, nan=0.0, posinf=8.0, neginf=-8.0), -8.0, 8.0)


def _columns(
    first: Outputs, second: Outputs, center: Floats, scale: Floats
) -> list[tuple[str, Callable[[Outputs], Floats]]]:
    """Return the numbers that are scored, each with a name: single coordinates, differences of two, and the
    projection of all on the line between the two tables' means.
    """
    gap = standardized(first, center, scale).mean(axis=0) - standardized(second, center, scale).mean(axis=0)
    top = sorted(np.argsort(-np.abs(gap), kind="stable")[:TOP].tolist())

    def coordinate(j: int) -> Callable[[Outputs], Floats]:
        return lambda x: x.numbers[:, j]

    def difference(i: int, j: int) -> Callable[[Outputs], Floats]:
        return lambda x: x.numbers[:, i] - x.numbers[:, j]

    names = ["number of answers", *(f"output{path}" for path in first.paths)]
    columns = [(names[j], coordinate(j)) for j in top]
    if first.width > 1:
        columns.append(
            ("projection on the difference of means", lambda x: standardized(x, center, scale) @ gap)
        )
        columns += [
            (f"difference of {names[i]} and {names[j]}", difference(i, j))
            for i, j in combinations(top, 2)
            # Column 0 is the number of answers, not a coordinate.
            if i
        ]
    return columns


def _by_size(name: str, column: Callable[[Outputs], Floats], first: Outputs, second: Outputs) -> Attack:
    """Score by the value itself, or by minus the value if it tends to be smaller on the first table: optimal
    for noise whose likelihood ratio is monotone."""
    with np.errstate(invalid="ignore"):
        p, q = column(first), column(second)
    ranks = np.concatenate([p, q]).argsort(kind="stable").argsort(kind="stable")
    sign = 1.0 if ranks[: len(p)].mean() >= ranks[len(p) :].mean() else -1.0

    def score(x: Outputs) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(sign * column(x), nan=-1e308, posinf=1e308, neginf=-1e308)

    return Attack(name, score)


def _by_histogram(name: str, column: Callable[[Outputs], Floats], first: Outputs, second: Outputs) -> Attack:
    """Score by the ratio of two histograms: a bin for each value if there are few, else bins with equally
    many runs."""
    with np.errstate(invalid="ignore"):
        p, q = column(first), column(second)
    pooled = np.concatenate([p, q])
    values = np.unique(pooled[np.isfinite(pooled)])
    few = len(values) <= 4 * BINS
    edges = (
        values
        if few
        else np.unique(np.quantile(pooled[np.isfinite(pooled)], np.linspace(0, 1, BINS + 1)[1:-1]))
    )

    def bins(x: Floats) -> Any:
        index = np.searchsorted(edges, x, side="left" if few else "right")
        # NaN has the last bin. If there are few values, infinities and values that the fitting runs do not
        # have share the last bin but one.
        if few:
            clipped_index = np.minimum(index, max(len(edges) - 1, 0))
            exact = edges[clipped_index] == x if len(edges) else np.zeros(len(x), bool)
            index = np.where(exact, index, len(edges))
        return np.where(np.isnan(x), len(edges) + 1, index)

    size = len(edges) + 2
    ratio = np.log((np.bincount(bins(p), minlength=size) + 1) / (np.bincount(bins(q), minlength=size) + 1))

    def score(x: Outputs) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.asarray(ratio[bins(column(x))], dtype=float)

    return Attack(name, score)


def _logistic(first: Outputs, second: Outputs, center: Floats, scale: Floats, ridge: float = 1.0) -> Attack:
    """Fit a logistic regression on the standardized coordinates (at most 64, those that differ most) by
    Newton's method."""
    p, q = standardized(first, center, scale), standardized(second, center, scale)
    used = np.argsort(-np.abs(p.mean(axis=0) - q.mean(axis=0)), kind="stable")[:64]
    design = np.hstack([np.vstack([p, q])[:, used], np.ones((len(p) + len(q), 1))])
    truth = np.concatenate([np.ones(len(p)), np.zeros(len(q))])
    weights = np.zeros(design.shape[1])
    for _ in range(8):
        fitted = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (truth - fitted) - ridge * weights
        hessian = (design * (fitted * (1 - fitted))[:, None]).T @ design + ridge * np.eye(len(weights))
        weights = weights + np.linalg.solve(hessian, gradient)

    def score(x: Outputs) -> Floats:
        return np.asarray(standardized(x, center, scale)[:, used] @ weights[:-1] + weights[-1], dtype=float)

    return Attack("logistic regression", score)
