"""How far exact answers change between neighbors, and what the noise that was priced makes of it: the largest
privacy loss of any two neighboring worlds, in parts of the price.

The loss is computed from the noise itself (the scale of a Laplace, the variance of a Gaussian, the rate of a
selector), never from a sensitivity that the package states.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from discreet.core.choosing import scores
from discreet.core.exact import Exact
from discreet.mechanisms.noise import IntegerGaussian, IntegerLaplace
from discreet.query import Query

from .worlds import UNITS, Worlds

KEY = 987654321
# floats of losses are off by far less
SLACK = 1e-9


@dataclass
class Table:
    """The exact integers of all worlds: `measures[m]`, `scores[c]` and `units` by world, group (and candidate)."""

    keys: list[Any]
    measures: list[Any]
    scores: list[Any]
    units: Any


def exact_of_all(query: Query, worlds: Worlds, key: int = KEY) -> Table:
    """Ask a question of every world, with the noise off."""
    worlds.forget()
    exacts = []
    for world in range(worlds.size):
        worlds.world = world
        exacts.append(query._measure(worlds, key))
    return table_of(query, exacts)


def table_of(query: Query, exacts: list[Exact]) -> Table:
    """The exact integers of some tables, by the groups of all of them."""
    named = [_named(e.keys) for e in exacts]
    keys = list(dict.fromkeys(key for own in named for key in own))
    index = {k: i for i, k in enumerate(keys)}
    where = [[index[key] for key in own] for own in named]
    measures = [
        _spread([e.measures[m] for e in exacts], where, (len(keys),))
        for m in range(len(query.question.form.measures))
    ]
    score_tables = [
        _spread([_scores_of(query, e, c) for e in exacts], where, (len(keys), choice.width))
        for c, choice in enumerate(query.question.form.choices)
    ]
    units = None if exacts[0].units is None else _spread([e.units for e in exacts], where, (len(keys),))
    return Table(keys, measures, score_tables, units)


def _named(keys: list[Any]) -> list[Any]:
    """Keys that can be compared, NaN too; a key that is there twice is two."""
    plain = [tuple("nan" if isinstance(v, float) and v != v else v for v in key) for key in keys]
    return [(key, plain[:i].count(key)) if key in plain[:i] else key for i, key in enumerate(plain)]


def _scores_of(query: Query, exact: Exact, c: int) -> Any:
    counts = exact.scores[c].dense(0, exact.scores[c].shape[0])
    choice = query.question.form.choices[c]
    return scores(counts, choice.parameter) if choice.kind == "quantile" else counts


def _spread(values: list[Any], where: list[list[int]], shape: tuple[int, ...]) -> Any:
    wide = any(np.asarray(v).dtype == object for v in values)
    full = np.zeros((len(values), *shape), object if wide else np.int64)
    for i, (part, positions) in enumerate(zip(values, where, strict=True)):
        if len(positions):
            full[i, positions] = part
    return full


def pairs_of_worlds(worlds: Worlds, neighbors: str) -> tuple[Any, Any]:
    """The indices of all pairs of neighboring worlds, each in every order of its rows.

    add_remove: one unit's content is exchanged for none. replace: for any other. zero_out: for none, and (the
    blank) for content 1, which must be one whose values are all missing.
    """
    p, orders = len(worlds.pool), worlds.orders
    grid = np.arange(p**UNITS).reshape((p,) * UNITS)
    first, second = [], []
    if neighbors == "replace":
        changes = list(itertools.combinations(range(p), 2))
    else:
        blanks = (0,) if neighbors == "add_remove" else (0, 1)
        changes = [(b, c) for b in blanks for c in range(p) if c != b]
    for axis in range(UNITS):
        for b, c in changes:
            first.append(np.take(grid, b, axis).ravel())
            second.append(np.take(grid, c, axis).ravel())
    one, other = np.concatenate(first) * orders, np.concatenate(second) * orders
    left = [one + i for i in range(orders) for _ in range(orders)]
    right = [other + j for _ in range(orders) for j in range(orders)]
    # a table and the same rows in another order are the same table
    same = np.arange(p**UNITS) * orders
    left += [same] * (orders - 1)
    right += [same + i for i in range(1, orders)]
    return np.concatenate(left), np.concatenate(right)


CHUNK = 200_000


def loss(query: Query, table: Table, left: Any, right: Any) -> tuple[float, float, int]:
    """The largest loss over the pairs in parts of the price, the largest part of delta, and the first pair with
    the largest loss."""
    worst, worst_delta, at = 0.0, 0.0, 0
    step = max(1, CHUNK // (1 + len(table.keys) * max([1, *(c.width for c in query.question.form.choices)])))
    for start in range(0, len(left), step):
        a, b = left[start : start + step], right[start : start + step]
        epsilon, delta = _losses(query, table, a, b)
        i = int(np.argmax(epsilon))
        if epsilon[i] > worst:
            worst, at = float(epsilon[i]), start + i
        worst_delta = max(worst_delta, float(delta.max(initial=0)))
    return worst, worst_delta, at


def _losses(query: Query, table: Table, a: Any, b: Any) -> tuple[Any, Any]:
    """The loss of each pair in parts of epsilon (or of rho), and of delta.

    Discrete Laplace noise of a scale loses l1 / scale; a discrete Gaussian l2² / (2 variance) of rho; a selector
    rate times (the largest change of a score - the smallest), of which rho is an eighth of the square; a group
    whose number of units changes, its epsilon and delta. Groups that are not shown are added up with `other`.
    """
    allocation = query.question
    total, delta = np.zeros(len(a)), np.zeros(len(a))
    in_rho = query.rho is not None
    price = float(query.rho if in_rho else query.epsilon)  # type: ignore[arg-type]
    for noise, values in zip(allocation.noises, table.measures, strict=True):
        change = np.abs(values[a] - values[b])
        if isinstance(noise, IntegerLaplace):
            assert not in_rho
            # all of it may fall into one group; the l1 norm is the same
            total += change.sum(axis=1).astype(float) / float(noise.scale)
        elif isinstance(noise, IntegerGaussian):
            lost = (change.astype(float) ** 2).sum(axis=1) / (2 * float(noise.variance))
            if not in_rho:
                raise AssertionError("ask in rho for Gaussian noise")
            total += lost
    for choice, selector, values in zip(
        query.question.form.choices, allocation.selectors, table.scores, strict=True
    ):
        change = (values[b] - values[a]).astype(float)
        picks = int(choice.parameter) if choice.kind == "top" else 1
        spread = change.max(axis=2) - change.min(axis=2)
        lost = float(selector.rate) / picks * spread
        total += (picks * lost**2 / 8 if in_rho else picks * lost).sum(axis=1)
    if allocation.selection is not None:
        epsilon, part = allocation.selection
        change = np.abs(table.units[a] - table.units[b])
        total += (change > 0).sum(axis=1) * float(epsilon)
        # one unit that counts twice in a group has no price
        total[(change > 1).any(axis=1)] = np.inf
        delta += (change > 0).sum(axis=1) * float(part) / max(float(query.delta), 1e-300)
    return total / price, delta
