"""Rows from a graphical model: column after column, each group of equal rows shared out by what the model
expects of it.

Within a group the counts of the next column's values are the expected ones, rounded: down, and what is left
goes to values drawn by the remainders. So tables of the copy are nearer to those of the model than a table of
independent draws would be. (Conditions fix some columns beforehand.)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .model import Floats, GraphicalModel, summed

Codes = NDArray[np.int64]


def sample(
    model: GraphicalModel,
    rows: int,
    random: np.random.Generator,
    given: Mapping[int, int] | None = None,
) -> list[Codes]:
    """Return `rows` rows as one array of codes for each attribute, in random order."""
    tree = model.tree
    columns: list[Codes] = [np.zeros(rows, np.int64) for _ in tree.sizes]
    done: set[int] = set()
    tables = model.tables if not given else conditioned(model, given).tables
    for i in tree.order:
        clique = tree.cliques[i]
        new = [a for a in clique if a not in done]
        for k, a in enumerate(new):
            known = tuple(sorted([b for b in clique if b in done] + new[:k]))
            wanted = tuple(sorted((*known, a)))
            table = summed(tables[i], clique, wanted)
            table = np.moveaxis(table, wanted.index(a), -1).reshape(-1, tree.sizes[a])
            columns[a] = shared_out(table, _index(columns, known, tree.sizes, rows), random)
        done |= set(new)
    order = random.permutation(rows)
    return [column[order] for column in columns]


def conditioned(model: GraphicalModel, given: Mapping[int, int]) -> GraphicalModel:
    """Return the model of the rows that have these codes."""
    from .model import NEVER, beliefs

    logs = []
    placed: set[int] = set()
    for i in range(len(model.tables)):
        table, clique = model.tables[i], model.tree.cliques[i]
        outer = (
            summed(table, clique, model.tree.separators[i]) if model.tree.parents[i] >= 0 else np.array(1.0)
        )
        shape = [model.tree.sizes[a] if a in model.tree.separators[i] else 1 for a in clique]
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(table) - (np.log(outer.reshape(shape)) if model.tree.parents[i] >= 0 else 0.0)
        log = np.where(np.isfinite(log), log, NEVER)
        for axis, a in enumerate(clique):
            if a in given and a not in placed:
                mask = np.full(model.tree.sizes[a], NEVER)
                mask[given[a]] = 0.0
                log = log + mask.reshape([-1 if k == axis else 1 for k in range(len(clique))])
                placed.add(a)
        logs.append(log)
    tables, _ = beliefs(model.tree, logs, model.total)
    return GraphicalModel(model.tree, tuple(tables), model.total)


def _index(columns: list[Codes], known: tuple[int, ...], sizes: tuple[int, ...], rows: int) -> Codes:
    index = np.zeros(rows, np.int64)
    for b in known:
        index = index * sizes[b] + columns[b]
    return index


def shared_out(table: Floats, group: Codes, random: np.random.Generator) -> Codes:
    """Codes of the next column for rows that belong to groups: row g of the table is what is expected of
    group g."""
    rows, width = len(group), table.shape[1]
    present, inverse, counts = np.unique(group, return_inverse=True, return_counts=True)
    shares = table[present].clip(0)
    sums = shares.sum(axis=1, keepdims=True)
    shares = np.where(sums > 0, shares / np.where(sums > 0, sums, 1), 1 / width)
    expected = shares * counts[:, None]
    whole = np.floor(expected + 1e-9).astype(np.int64)
    remainders = (expected - whole).clip(0)
    left = counts - whole.sum(axis=1)
    whole += _drawn(remainders, left, random)
    # The rows of a group, in random order, get the values of its counts.
    order = np.lexsort((random.random(rows), inverse))
    values = np.repeat(np.tile(np.arange(width), len(present)), whole.ravel())
    out = np.empty(rows, np.int64)
    out[order] = values
    return out


def _drawn(remainders: Floats, left: Codes, random: np.random.Generator) -> Codes:
    """Systematic sampling: of each row so many entries as are left, each with the chance of its remainder."""
    cumulative = np.cumsum(remainders, axis=1)
    last = cumulative[:, -1:]
    scaled = np.where(last > 0, cumulative / np.where(last > 0, last, 1), 1.0) * left[:, None]
    marks = np.floor(scaled + random.random((len(left), 1)) - 1e-12).astype(np.int64)
    marks[:, -1] = left
    marks = np.minimum(marks, left[:, None])
    return np.diff(marks, axis=1, prepend=0)
