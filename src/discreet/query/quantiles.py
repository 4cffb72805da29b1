"""Choosing a value for every group: quantiles from counts on a grid of candidates, and the most common of public values."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from ..sampling import Entropy
from .measures import Choice
from .price import Chooser


def scores(counts: Any, q: Fraction) -> Any:
    """How far each candidate is from the quantile, in rows times the denominator of q = a/b, as a negative integer.

    A candidate with `below` rows below it and `at` on it holds the ranks from `below` to `below + at`; its score is minus the
    distance of a n / b from these, times b. Zero is exact.
    """
    a, b = q.numerator, q.denominator
    counts = counts.astype(object)
    total = counts.sum(axis=-1, keepdims=True)
    upto = np.cumsum(counts, axis=-1)
    below = upto - counts
    return -np.maximum(np.maximum(b * below - a * total, a * total - b * upto), 0)


def pick(choice: Choice, chooser: Chooser, counts: Any, entropy: Entropy) -> Any:
    """One private choice for every group."""
    found = [chooser.pick(_ranked(choice, row), entropy) for row in counts]
    return _named(choice, found)


def best(choice: Choice, counts: Any) -> Any:
    """The choice without noise, for tests: the first of the best."""
    k = int(choice.parameter) if choice.kind == "top" else 0
    found = []
    for row in counts:
        order = np.argsort(-_ranked(choice, row).astype(float), kind="stable")
        found.append(order[:k].tolist() if k else int(order[0]))
    return _named(choice, found)


def _ranked(choice: Choice, row: Any) -> Any:
    return scores(row, choice.parameter) if choice.kind == "quantile" else row


def _named(choice: Choice, found: list[Any]) -> Any:
    if choice.kind == "quantile":
        domain = choice.expression.domain
        values = [float(choice.first + int(i) * choice.step) for i in found]
        return np.clip(np.array(values, dtype=float), domain.low, domain.high)
    if choice.kind == "top":
        names = np.empty(len(found), dtype=object)
        for g, indices in enumerate(found):
            names[g] = tuple(choice.values[i] for i in indices)
        return names
    values_of = [choice.values[int(i)] for i in found]
    numeric = all(isinstance(v, int) and not isinstance(v, bool) for v in choice.values)
    return np.array(values_of, dtype=float if numeric else object)
