"""Makes several answers to one count or sum, by different groupings, agree: totals become the sums of their
groups.

Only released numbers and the known variances of their noise are used, so it costs nothing. Least squares
weights every number by the inverse of its variance; its results have smaller errors than the answers, and
these errors are known. Results that are also made whole and non-negative look like counts, but are biased:
publish those for reading, and compute with the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import _require, inference
from .._errors import InvalidInput
from ..core.question import PublicSize
from .answer import Answer

# The variance of an exact number, relative to the smallest one of a noisy number: its weight in least squares
# is a billion times larger, and far from the precision of floats. Not tuned.
_EXACT = 1e-9


class _Table(NamedTuple):
    """Holds one answer as a table of noisy numbers by key.

    `value`: the position of the noisy column. `keys`: the positions of the key columns, sorted by their
    names. `levels`: the values of each key, sorted as texts. `cells`: the noisy number of each combination of
    keys. `variance`: that of the noise of each number.
    """

    answer: Answer
    value: int
    keys: tuple[int, ...]
    levels: tuple[tuple[Any, ...], ...]
    cells: dict[tuple[Any, ...], float]
    variance: float

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.answer.columns[i] for i in self.keys)

    def key(self, row: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(row[i] for i in self.keys)


@_require.check_options
def consistent(answers: Sequence[Answer], column: str, *, counts: bool = False) -> tuple[Answer, ...]:
    """Return the same answers with numbers in `column` that agree: sums over groups are equal in all answers.

    With `counts` the values are whole numbers and never negative; the groupings must then be nested: the keys
    of each answer are among those of the next finer one.

    Guarantee: with `counts=False`, the best linear unbiased estimates given the noise, with their standard
               deviations. With `counts=True` nothing is proved: deviations are those of the noisy answers.
    Proof:     `inference.consistent_marginals`. It is post-processing of released values, so it spends
               nothing.
    Assumes:   the answers count the same rows: they have the same table, the same WHERE and all of their
               groups (no LIMIT or HAVING), and the limits on a unit's contribution clipped the same rows.
    """
    if not answers:
        raise InvalidInput("there is nothing to make consistent: give at least one answer.")
    tables = _with_variances([_table(answer, column) for answer in answers])
    _require_same_groups(tables)
    noises = [t.answer.noises[t.value][0] for t in tables]  # type: ignore[index]
    combined = tuple(dict.fromkeys(noise for noise in noises if not isinstance(noise, PublicSize)))
    if counts:
        return tuple(replace(answer, combined=combined) for answer in _as_counts(tables))
    measured = [inference.Marginal(attributes=t.names, values=_array(t), variance=t.variance) for t in tables]
    estimate = inference.consistent_marginals(measured)
    agreeing = (_with(t, m.values, math.sqrt(m.variance)) for t, m in zip(tables, estimate, strict=True))
    return tuple(replace(answer, combined=combined) for answer in agreeing)


def _table(answer: Answer, column: str) -> _Table:
    """Return one column of an answer as a table of noisy numbers by key."""
    index = answer.columns.index(column) if column in answer.columns else -1
    noise = answer.noises[index] if index >= 0 else None
    if noise is None:
        raise InvalidInput(
            f"column {column!r} is not a single noisy count or sum in each answer; these are "
            f"{list(answer.columns)}."
        )
    deviations = list(zip(*answer.deviations, strict=True)) or [()] * len(answer.columns)
    keys = [i for i in range(len(answer.columns)) if i != index and all(d is None for d in deviations[i])]
    keys.sort(key=lambda i: answer.columns[i])
    cells = {tuple(row[i] for i in keys): float(row[index]) for row in answer.rows}
    levels = tuple(tuple(dict.fromkeys(row[i] for row in answer.rows)) for i in keys)
    if not cells or len(cells) != len(answer.rows) or len(cells) != math.prod(len(level) for level in levels):
        raise InvalidInput(
            f"the groups by {[answer.columns[i] for i in keys]} are not all there (a LIMIT, a "
            f"HAVING, or keys that nobody declared), so they cannot be added up."
        )
    variance = noise[0].mean_squared_error * float(noise[1]) ** 2
    return _Table(
        answer, index, tuple(keys), tuple(tuple(sorted(level, key=str)) for level in levels), cells, variance
    )


def _with_variances(tables: list[_Table]) -> list[_Table]:
    """Return the tables with a variance above 0 for exact numbers (a public size), by which least squares
    divides: far below that of all others, so that these adapt to them."""
    least = _EXACT * min((t.variance for t in tables if t.variance > 0), default=1.0)
    return [t._replace(variance=max(t.variance, least)) for t in tables]


def _require_same_groups(tables: list[_Table]) -> None:
    """Refuse answers that share a key column but not its values.

    Cells are compared by position from here on, so that different groups would be taken for the same.
    """
    values_of: dict[str, tuple[Any, ...]] = {}
    for table in tables:
        for name, values in zip(table.names, table.levels, strict=True):
            others = values_of.setdefault(name, values)
            if values != others:
                only_one = sorted(set(values) ^ set(others), key=str)
                raise InvalidInput(
                    f"the answers have different groups by {name!r}: {only_one[:3]} are not in all of them "
                    f"(a LIMIT, a HAVING, or keys that nobody declared), so they cannot be made to agree."
                )


def _array(table: _Table) -> Any:
    """Return the numbers of a table as an array with one axis per key, in the order of `levels`."""
    flat = [table.cells[key] for key in itertools.product(*table.levels)]
    return np.array(flat).reshape([len(level) for level in table.levels])


def _with(table: _Table, values: Any, deviation: float | None) -> Answer:
    """Return the answer with new numbers, given in the order of `levels`, and their new deviation (None: the
    old one is kept). `noises` loses its entry: the noise of the new numbers is no longer a single draw."""
    by_key = dict(zip(itertools.product(*table.levels), np.ravel(values).tolist(), strict=True))
    answer, index = table.answer, table.value
    rows = tuple((*row[:index], by_key[table.key(row)], *row[index + 1 :]) for row in answer.rows)
    deviations = answer.deviations
    if deviation is not None:
        deviations = tuple((*row[:index], deviation, *row[index + 1 :]) for row in deviations)
    noises = (*answer.noises[:index], None, *answer.noises[index + 1 :])
    note = "Made to agree with the other answers by least squares, at no cost."
    if deviation is None:
        note = "Made whole, not negative and nested, at no cost; small counts are now too large on average."
    return replace(answer, rows=rows, deviations=deviations, noises=noises, plan=(*answer.plan, note))


def _as_counts(tables: list[_Table]) -> tuple[Answer, ...]:
    """Return the answers as consistent, non-negative whole counts. They are computed over the tree of their
    groups, where the parent of a group is the group of the next coarser answer that contains it."""
    order = sorted(range(len(tables)), key=lambda i: len(tables[i].keys))
    nodes: dict[tuple[int, tuple[Any, ...]], int] = {}
    parents: list[int] = []
    for depth, i in enumerate(order):
        for key in itertools.product(*tables[i].levels):
            parents.append(
                -1
                if depth == 0
                else nodes[order[depth - 1], _parent(tables[order[depth - 1]], tables[i], key)]
            )
            nodes[i, key] = len(parents) - 1
    values = [tables[i].cells[key] for i, key in nodes]
    variances = [tables[i].variance for i, _ in nodes]
    rounded = inference.top_down(inference.Tree(parents), values, variances)
    return tuple(
        _with(t, [int(rounded[nodes[i, key]]) for key in itertools.product(*t.levels)], None)
        for i, t in enumerate(tables)
    )


def _parent(coarse: _Table, fine: _Table, key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the group of the coarser answer that a group of the finer one belongs to."""
    value_of = dict(zip(fine.names, key, strict=True))
    if not set(coarse.names) < set(fine.names):
        raise InvalidInput(
            f"whole numbers need nested groupings: the keys {list(coarse.names)} are not some of "
            f"{list(fine.names)}. "
            f"Use counts=False, which takes any."
        )
    return tuple(value_of[name] for name in coarse.names)
