"""Sampling rows from a graphical model, column after column, with rounding instead of independent draws.

Among rows that are equal so far, the counts of the next column's codes are the expected ones, rounded: down,
and the rows that remain get codes drawn by the remainders. So tables of the copy are nearer to those of the
model than a table of independent draws would be. (Conditions fix some columns beforehand.)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .junction import Clique
from .model import LOG_ZERO, Floats, GraphicalModel, marginalize, propagate_beliefs

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
    sampled: set[int] = set()
    tables = model.tables if not given else condition(model, given).tables
    for i in tree.order:
        clique = tree.cliques[i]
        for a in [a for a in clique if a not in sampled]:
            earlier = tuple(b for b in clique if b in sampled)
            attributes = tuple(sorted((*earlier, a)))
            table = marginalize(tables[i], clique, attributes)
            table = np.moveaxis(table, attributes.index(a), -1).reshape(-1, tree.sizes[a])
            columns[a] = allocate_codes(table, _cell_index(columns, earlier, tree.sizes, rows), random)
            sampled.add(a)
    order = random.permutation(rows)
    return [column[order] for column in columns]


def condition(model: GraphicalModel, given: Mapping[int, int]) -> GraphicalModel:
    """Return the model of the rows that have these codes."""
    logs = []
    masked: set[int] = set()
    for i in range(len(model.tables)):
        table, clique = model.tables[i], model.tree.cliques[i]
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(table)
            if model.tree.parents[i] >= 0:
                separator = marginalize(table, clique, model.tree.separators[i])
                shape = [model.tree.sizes[a] if a in model.tree.separators[i] else 1 for a in clique]
                log = log - np.log(separator.reshape(shape))
        log = np.where(np.isfinite(log), log, LOG_ZERO)
        for axis, a in enumerate(clique):
            if a in given and a not in masked:
                mask = np.full(model.tree.sizes[a], LOG_ZERO)
                mask[given[a]] = 0.0
                log = log + mask.reshape([-1 if k == axis else 1 for k in range(len(clique))])
                masked.add(a)
        logs.append(log)
    tables, _ = propagate_beliefs(model.tree, logs, model.total)
    return GraphicalModel(model.tree, tuple(tables), model.total)


def _cell_index(columns: list[Codes], attributes: Clique, sizes: tuple[int, ...], rows: int) -> Codes:
    """Return for each row the number of its cell in the table by some attributes."""
    index = np.zeros(rows, np.int64)
    for a in attributes:
        index = index * sizes[a] + columns[a]
    return index


def allocate_codes(table: Floats, cells: Codes, random: np.random.Generator) -> Codes:
    """Return codes of the next column for rows in cells of the earlier ones: row c of the table has the
    expected counts of cell c."""
    rows, width = len(cells), table.shape[1]
    present, inverse, counts = np.unique(cells, return_inverse=True, return_counts=True)
    shares = table[present].clip(0)
    sums = shares.sum(axis=1, keepdims=True)
    shares = np.where(sums > 0, shares / np.where(sums > 0, sums, 1), 1 / width)
    expected = shares * counts[:, None]
    # The addend keeps a whole number that is a rounding error short.
    allocation = np.floor(expected + 1e-9).astype(np.int64)
    remainders = (expected - allocation).clip(0)
    allocation += _systematic_sample(remainders, counts - allocation.sum(axis=1), random)
    # The rows of a cell, in random order, get the codes of its allocation.
    order = np.lexsort((random.random(rows), inverse))
    codes = np.empty(rows, np.int64)
    codes[order] = np.repeat(np.tile(np.arange(width), len(present)), allocation.ravel())
    return codes


def _systematic_sample(remainders: Floats, sizes: Codes, random: np.random.Generator) -> Codes:
    """Return how often each entry is drawn, of each row `sizes` entries, with probabilities in proportion to
    their remainders (systematic sampling)."""
    cumulative = np.cumsum(remainders, axis=1)
    sums = cumulative[:, -1:]
    scaled = np.where(sums > 0, cumulative / np.where(sums > 0, sums, 1), 1.0) * sizes[:, None]
    counts = np.floor(scaled + random.random((len(sizes), 1)) - 1e-12).astype(np.int64)
    counts[:, -1] = sizes
    # What is subtracted above leaves -1 where a uniform draw is smaller.
    counts = np.clip(counts, 0, sizes[:, None])
    return np.diff(counts, axis=1, prepend=0)
