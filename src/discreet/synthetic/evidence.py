"""Rows of a graphical model given, for each row, the codes of some attributes: exact conditional sampling.

Belief propagation on the tables that are left when the given attributes are fixed, for many rows at once:
messages towards the root, then one draw for every clique on the way back. Post-processing, which costs no
privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .model import Floats, GraphicalModel, ratio, summed
from .rows import Codes

# Numbers that are held at once for a block of rows, about: 32 MB.
_BLOCK = 1 << 22


def sample_given(
    model: GraphicalModel, given: Mapping[int, Codes], random: np.random.Generator
) -> list[Codes]:
    """Return one array of codes for each attribute: the given ones, and the others drawn given these.

    A row whose given codes the model holds for impossible gets the others as if all were equally likely.
    """
    rows = len(next(iter(given.values())))
    widest = sum(
        math.prod(model.tree.sizes[a] for a in clique if a not in given) for clique in model.tree.cliques
    )
    block = max(1, _BLOCK // max(1, widest))
    columns = [np.zeros(rows, np.int64) for _ in model.tree.sizes]
    for begin in range(0, rows, block):
        part = {a: codes[begin : begin + block] for a, codes in given.items()}
        for column, drawn in zip(columns, _drawn(model, part, random), strict=True):
            column[begin : begin + block] = drawn
    return columns


def _drawn(model: GraphicalModel, given: Mapping[int, Codes], random: np.random.Generator) -> list[Codes]:
    tree, tables = model.tree, _inward(model, given)
    columns: dict[int, Codes] = dict(given)
    for i in tree.order:
        free = [a for a in tree.cliques[i] if a not in given]
        new = [a for a in free if a not in columns]
        if not new:
            continue
        table, rows = tables[i], np.arange(len(tables[i]))
        index = tuple(columns[a] if a in columns else slice(None) for a in free)
        # Known axes first: numpy then puts the rows, and the axes that are left, in this order.
        known = [k + 1 for k, one in enumerate(index) if not isinstance(one, slice)]
        left = [k + 1 for k, one in enumerate(index) if isinstance(one, slice)]
        table = np.transpose(table, [0, *known, *left])
        weights = table[(rows, *(columns[free[k - 1]] for k in known))].reshape(len(rows), -1)
        places = _pick(weights, random)
        shape = tuple(tree.sizes[a] for a in new)
        columns |= dict(zip(new, np.unravel_index(places, shape), strict=True))
    return [np.asarray(columns[a], dtype=np.int64) for a in range(len(tree.sizes))]


def _inward(model: GraphicalModel, given: Mapping[int, Codes]) -> list[Floats]:
    """Return for every clique the weights of its free attributes, one block for each row, with all evidence
    that comes from below it."""
    tree = model.tree
    tables = [_conditional(model, i, given) for i in range(len(tree.cliques))]
    for i in reversed(tree.order[1:]):
        parent = tree.parents[i]
        free = [a for a in tree.cliques[i] if a not in given]
        gone = tuple(k + 1 for k, a in enumerate(free) if a not in tree.separators[i])
        message = tables[i].sum(axis=gone)
        axes = tuple(range(1, message.ndim))
        top = message.max(axis=axes, keepdims=True)
        message = ratio(message, np.broadcast_to(top, message.shape))
        shape = [
            tree.sizes[a] if a in tree.separators[i] else 1 for a in tree.cliques[parent] if a not in given
        ]
        tables[parent] = tables[parent] * message.reshape(len(message), *shape)
    return tables


def _conditional(model: GraphicalModel, i: int, given: Mapping[int, Codes]) -> Floats:
    """Return a clique's table over its separator's, at each row's given codes."""
    tree, clique = model.tree, model.tree.cliques[i]
    table = model.tables[i]
    if tree.parents[i] >= 0:
        outer = summed(table, clique, tree.separators[i])
        shape = [tree.sizes[a] if a in tree.separators[i] else 1 for a in clique]
        table = ratio(table, outer.reshape(shape))
    fixed = [k for k, a in enumerate(clique) if a in given]
    left = [k for k, a in enumerate(clique) if a not in given]
    rows = len(next(iter(given.values())))
    if not fixed:
        return np.broadcast_to(table, (rows, *table.shape))
    picked: Floats = np.transpose(table, [*fixed, *left])[tuple(given[clique[k]] for k in fixed)]
    return picked


def _pick(weights: Floats, random: np.random.Generator) -> Codes:
    """Return for each row a place, drawn by its weights."""
    sums = weights.sum(axis=1, keepdims=True)
    weights = np.where(sums > 0, weights, 1.0)
    steps = np.cumsum(weights, axis=1)
    marks = random.random((len(weights), 1)) * steps[:, -1:]
    places: Codes = np.minimum((steps <= marks).sum(axis=1), weights.shape[1] - 1).astype(np.int64)
    return places
