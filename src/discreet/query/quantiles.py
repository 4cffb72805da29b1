"""Chooses a value for every group with the exponential mechanism: a quantile from a grid of candidates, or
the most common of public values.

`counts` has one row per group and one column per candidate: how many rows of the table have that value.
"""

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

# scores below this bound are computed in 64 bits without overflow
_SAFE = 1 << 62


def scores(counts: Any, q: Fraction) -> Any:
    """Return the score of each candidate for the quantile q = a/b: minus b times the distance between the
    rank of the quantile and the ranks of the candidate, an integer that is at most 0.

    In a group of n rows the quantile has the rank a n / b. A candidate with `below` rows below it and `at`
    rows equal to it has the ranks from `below` to `below + at`; its score is 0 where a n / b is among these.
    """
    a, b = q.numerator, q.denominator
    total = counts.sum(axis=-1, keepdims=True)
    # more rows than any table has; Python's integers do not overflow
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
    raise an error at a deadline.

    The time for one group depends on the number of candidates alone (tens of nanoseconds per candidate), and
    not on the rows of the group.
    """
    picked = []
    for start in range(0, counts.shape[0], counts.rows_at_once):
        check()
        group_scores = _candidate_scores(choice, counts.dense(start, start + counts.rows_at_once))
        if group_scores.dtype == object:
            picked.append(
                np.array([np.atleast_1d(selector.pick(row, entropy)) for row in group_scores], dtype=np.int64)
            )
        else:
            picked.append(selector.pick_rows(group_scores, entropy))
    return _name_choices(choice, _stack_choices(choice, picked))


def best(choice: Choice, counts: SparseCounts) -> Any:
    """Return the choice without noise, for tests of semantics and for trial runs on an empty table: the first
    of the candidates with the best score."""
    k = int(choice.parameter) if choice.kind == "top" else 1
    picked = []
    for start in range(0, counts.shape[0], counts.rows_at_once):
        group_scores = _candidate_scores(choice, counts.dense(start, start + counts.rows_at_once))
        picked.append(np.argsort(-group_scores.astype(float), axis=1, kind="stable")[:, :k])
    return _name_choices(choice, _stack_choices(choice, picked))


def _candidate_scores(choice: Choice, counts: Any) -> Any:
    """Return the score of each candidate in each group; for the most common values it is the count."""
    return scores(counts, choice.parameter) if choice.kind == "quantile" else counts


def _stack_choices(choice: Choice, picked: list[Any]) -> list[Any]:
    """Return the chosen candidates of all groups: one index per group, or a list of indices for the k most
    common values."""
    together = np.concatenate(picked) if picked else np.zeros((0, 1), np.int64)
    result: list[Any] = together.tolist() if choice.kind == "top" else together[:, 0].tolist()
    return result


def _name_choices(choice: Choice, chosen: list[Any]) -> Any:
    """Return, per group, the values of the chosen candidates instead of their indices; dates are ISO texts,
    as they are in keys."""
    if choice.kind == "quantile":
        domain = choice.expression.domain
        values = [float(choice.first + int(i) * choice.step) for i in chosen]
        return np.clip(np.array(values, dtype=float), domain.low, domain.high)
    if choice.kind == "top":
        lists = np.empty(len(chosen), dtype=object)
        for g, indices in enumerate(chosen):
            lists[g] = tuple(shown(choice.values[i]) for i in indices)
        return lists
    modes = [shown(choice.values[int(i)]) for i in chosen]
    numeric = all(isinstance(v, int) and not isinstance(v, bool) for v in choice.values)
    return np.array(modes, dtype=float if numeric else object)
