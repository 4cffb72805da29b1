"""Samples exactly from conditional distributions: rows of a graphical model, where some attributes of each
row are given.

The tables of the model are restricted to the given codes of each row. Then messages are passed towards the
root of the junction tree, and one draw is made for every clique from the root on; many rows are computed at
once. This is post-processing, which costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .model import Floats, GraphicalModel, divide, marginalize
from .rows import Codes

# About how many floats the tables of one block of rows have: 32 MB. Chosen by hand, not tuned.
_BLOCK_NUMBERS = 1 << 22


def sample_conditional(
    model: GraphicalModel, given: Mapping[int, Codes], random: np.random.Generator
) -> list[Codes]:
    """Return one array of codes for each attribute: those of `given`, and the others drawn from the model's
    distribution given these.

    `given` has, for one attribute or more, one code for each row. Where these codes have probability 0 in the
    model, attributes of a clique whose weights are all 0 are drawn uniformly.
    """
    rows = len(next(iter(given.values())))
    numbers_per_row = sum(
        math.prod(model.tree.sizes[a] for a in clique if a not in given) for clique in model.tree.cliques
    )
    block = max(1, _BLOCK_NUMBERS // max(1, numbers_per_row))
    columns = [np.zeros(rows, np.int64) for _ in model.tree.sizes]
    for begin in range(0, rows, block):
        given_block = {a: codes[begin : begin + block] for a, codes in given.items()}
        for column, codes in zip(columns, _sample_block(model, given_block, random), strict=True):
            column[begin : begin + block] = codes
    return columns


def _sample_block(
    model: GraphicalModel, given: Mapping[int, Codes], random: np.random.Generator
) -> list[Codes]:
    """Return the codes of a block of rows: the attributes of each clique that are not drawn yet are drawn
    together, clique after clique from the root on."""
    tree, tables = model.tree, _collect_evidence(model, given)
    columns: dict[int, Codes] = dict(given)
    for i in tree.order:
        free = [a for a in tree.cliques[i] if a not in given]
        undrawn = [a for a in free if a not in columns]
        if not undrawn:
            continue
        rows = np.arange(len(tables[i]))
        # Axis 0 of a table is the row of the block. The axes of drawn attributes come next, so that indexing
        # by rows and drawn codes leaves the axes of the others.
        drawn_axes = [k + 1 for k, a in enumerate(free) if a in columns]
        other_axes = [k + 1 for k, a in enumerate(free) if a not in columns]
        table = np.transpose(tables[i], [0, *drawn_axes, *other_axes])
        weights = table[(rows, *(columns[free[k - 1]] for k in drawn_axes))].reshape(len(rows), -1)
        index = _sample_categorical(weights, random)
        shape = tuple(tree.sizes[a] for a in undrawn)
        columns |= dict(zip(undrawn, np.unravel_index(index, shape), strict=True))
    return [np.asarray(columns[a], dtype=np.int64) for a in range(len(tree.sizes))]


def _collect_evidence(model: GraphicalModel, given: Mapping[int, Codes]) -> list[Floats]:
    """Return for every clique the weights of its attributes that are not given, one table for each row,
    multiplied by the messages of the cliques further from the root.

    Each message is divided by its largest entry, so that no product underflows; draws need weights only up to
    a factor for each row.
    """
    tree = model.tree
    tables = [_conditional_table(model, i, given) for i in range(len(tree.cliques))]
    for i in reversed(tree.order[1:]):
        parent = tree.parents[i]
        free = [a for a in tree.cliques[i] if a not in given]
        eliminated = tuple(k + 1 for k, a in enumerate(free) if a not in tree.separators[i])
        message = tables[i].sum(axis=eliminated)
        largest = message.max(axis=tuple(range(1, message.ndim)), keepdims=True)
        message = divide(message, np.broadcast_to(largest, message.shape))
        shape = [
            tree.sizes[a] if a in tree.separators[i] else 1 for a in tree.cliques[parent] if a not in given
        ]
        tables[parent] = tables[parent] * message.reshape(len(message), *shape)
    return tables


def _conditional_table(model: GraphicalModel, i: int, given: Mapping[int, Codes]) -> Floats:
    """Return the distribution of a clique given its separator, restricted to the given codes of each row:
    axis 0 is the row, the others are the attributes that are not given."""
    tree, clique = model.tree, model.tree.cliques[i]
    table = model.tables[i]
    if tree.parents[i] >= 0:
        separator = marginalize(table, clique, tree.separators[i])
        shape = [tree.sizes[a] if a in tree.separators[i] else 1 for a in clique]
        table = divide(table, separator.reshape(shape))
    given_axes = [k for k, a in enumerate(clique) if a in given]
    free_axes = [k for k, a in enumerate(clique) if a not in given]
    rows = len(next(iter(given.values())))
    if not given_axes:
        return np.broadcast_to(table, (rows, *table.shape))
    by_row: Floats = np.transpose(table, [*given_axes, *free_axes])[
        tuple(given[clique[k]] for k in given_axes)
    ]
    return by_row


def _sample_categorical(weights: Floats, random: np.random.Generator) -> Codes:
    """Return an index for each row, drawn with probabilities in proportion to its weights, or uniformly where
    all weights are 0."""
    sums = weights.sum(axis=1, keepdims=True)
    weights = np.where(sums > 0, weights, 1.0)
    cumulative = np.cumsum(weights, axis=1)
    thresholds = random.random((len(weights), 1)) * cumulative[:, -1:]
    index: Codes = np.minimum((cumulative <= thresholds).sum(axis=1), weights.shape[1] - 1).astype(np.int64)
    return index
