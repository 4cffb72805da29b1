"""Chooses a value for every group: quantiles from counts on a grid of candidates, and the most common of
public values."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from ..sampling import Entropy
from .counts import SparseCounts
from .exact import shown
from .measures import Choice
from .price import Selector

# scores below it are computed in 64 bits
_SAFE = 1 << 62


def scores(counts: Any, q: Fraction) -> Any:
    """Return how far each candidate is from the quantile, in rows times the denominator of q = a/b, as a
    negative integer.

    A candidate with `below` rows below it and `at` on it holds the ranks from `below` to `below + at`; its
    score is minus the distance of a n / b from these, times b. Zero is exact.
    """
    a, b = q.numerator, q.denominator
    total = counts.sum(axis=-1, keepdims=True)
    # far beyond any table; Python's integers cannot wrap
    if counts.size and int(total.max()) >= _SAFE // b:
        counts = counts.astype(object)
        total = total.astype(object)
    upto = np.cumsum(counts, axis=-1)
    below = upto - counts
    return -np.maximum(np.maximum(b * below - a * total, a * total - b * upto), 0)


def pick(
    choice: Choice, selector: Selector, counts: SparseCounts, entropy: Entropy, check: Callable[[], None]
) -> Any:
    """Return one private choice for every group, many groups at a time; `check` is called in between, and may
    stop it.

    The time for one group goes with the number of candidates alone (tens of nanoseconds for each, where
    groups are decided one by one it was milliseconds), and not with what the group holds.
    """
    picked = []
    for start in range(0, counts.shape[0], counts.rows_at_once):
        check()
        ranked = _rank_scores(choice, counts.dense(start, start + counts.rows_at_once))
        if ranked.dtype == object:
            picked.append(
                np.array([np.atleast_1d(selector.pick(row, entropy)) for row in ranked], dtype=np.int64)
            )
        else:
            picked.append(selector.pick_rows(ranked, entropy))
    return _name_choices(choice, _stack_choices(choice, picked))


def best(choice: Choice, counts: SparseCounts) -> Any:
    """Return the choice without noise, for tests: the first of the best."""
    k = int(choice.parameter) if choice.kind == "top" else 1
    picked = []
    for start in range(0, counts.shape[0], counts.rows_at_once):
        ranked = _rank_scores(choice, counts.dense(start, start + counts.rows_at_once)).astype(float)
        picked.append(np.argsort(-ranked, axis=1, kind="stable")[:, :k])
    return _name_choices(choice, _stack_choices(choice, picked))


def _rank_scores(choice: Choice, counts: Any) -> Any:
    return scores(counts, choice.parameter) if choice.kind == "quantile" else counts


def _stack_choices(choice: Choice, picked: list[Any]) -> list[Any]:
    """Return the choices of all groups: one index for each, or a list of them."""
    together = np.concatenate(picked) if picked else np.zeros((0, 1), np.int64)
    result: list[Any] = together.tolist() if choice.kind == "top" else together[:, 0].tolist()
    return result


def _name_choices(choice: Choice, chosen: list[Any]) -> Any:
    """Return the chosen candidates, by group, in place of their indices; days as text, as keys are."""
    if choice.kind == "quantile":
        domain = choice.expression.domain
        values = [float(choice.first + int(i) * choice.step) for i in chosen]
        return np.clip(np.array(values, dtype=float), domain.low, domain.high)
    if choice.kind == "top":
        names = np.empty(len(chosen), dtype=object)
        for g, indices in enumerate(chosen):
            names[g] = tuple(shown(choice.values[i]) for i in indices)
        return names
    values_of = [shown(choice.values[int(i)]) for i in chosen]
    numeric = all(isinstance(v, int) and not isinstance(v, bool) for v in choice.values)
    return np.array(values_of, dtype=float if numeric else object)
