"""Graphical models: a distribution over all cells of a table that only keeps tables by few attributes.

`propagate_beliefs` is belief propagation on a junction tree (Lauritzen & Spiegelhalter 1988): logarithms
towards the root, ratios back, one exponential for every cell. What is estimated, sampled and projected from a
model is post-processing of what was released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .junction import Clique, JunctionTree

Floats = NDArray[np.float64]
# The logarithm of a potential of 0: small enough for exp to give 0, finite so that no NaN comes of it.
LOG_ZERO = -1e9


@dataclass(frozen=True, eq=False)
class GraphicalModel:
    """Holds tables of expected counts, one for each clique of a junction tree, in agreement on overlaps."""

    tree: JunctionTree
    tables: tuple[Floats, ...]
    total: float

    def project(self, attributes: Sequence[int]) -> Floats:
        """Return the expected counts by some attributes, in this order."""
        ascending = tuple(sorted(set(attributes)))
        host = self.tree.host(ascending)
        if host is not None:
            table = marginalize(self.tables[host], self.tree.cliques[host], ascending)
        else:
            table = self._eliminate(ascending)
        return np.transpose(table, [ascending.index(a) for a in attributes])

    def _eliminate(self, attributes: Clique) -> Floats:
        """Return the expected counts by attributes of several cliques: variable elimination along the part of
        the tree that they span, leaves first."""
        spanned = _spanning_cliques(self.tree, set(attributes))
        messages: dict[int, list[tuple[Clique, Floats]]] = {i: [] for i in spanned}
        for i in reversed([i for i in self.tree.order if i in spanned]):
            clique, is_root = self.tree.cliques[i], self.tree.parents[i] not in spanned
            separator = () if is_root else self.tree.separators[i]
            received = {a for message_clique, _ in messages[i] for a in message_clique}
            needed = (set(separator) | set(attributes) | received) & set(clique)
            own = tuple(sorted(needed))
            factors = [(own, marginalize(self.tables[i], clique, own)), *messages[i]]
            result = tuple(sorted(set(separator) | ((received | needed) & set(attributes))))
            table = _contract(factors, result)
            if is_root:
                return table
            below = marginalize(self.tables[i], clique, separator)
            shape = [self.tree.sizes[a] if a in separator else 1 for a in result]
            messages[self.tree.parents[i]].append((result, divide(table, below.reshape(shape))))
        raise AssertionError("a tree has a root")


def marginalize(table: Floats, clique: Clique, attributes: Sequence[int]) -> Floats:
    """Return the table by some of its attributes, which are ascending."""
    axes = tuple(axis for axis, a in enumerate(clique) if a not in attributes)
    return np.asarray(table.sum(axis=axes)) if axes else table


def divide(numerator: Floats, denominator: Floats) -> Floats:
    """Return the quotient, 0 where the denominator is 0."""
    shape = np.broadcast(numerator, denominator).shape
    return np.divide(numerator, denominator, out=np.zeros(shape), where=denominator > 0)


def propagate_beliefs(
    tree: JunctionTree, potentials: Sequence[Floats], total: float
) -> tuple[list[Floats], float]:
    """Return the clique marginals of the model with these log-potentials, scaled to `total`, and ln Z.

    Messages to the root are logarithms, relative to the largest entry for each value of the separator, so
    that nothing overflows and no value of a separator vanishes because others are larger.
    """
    logs = list(potentials)
    # The caller's arrays are not written to: the first message to a clique copies its potential.
    copied = [False] * len(logs)
    # exp of each clique's logarithms relative to the largest for each value of its separator, and its sums.
    relative: list[Floats] = list(potentials)
    relative_sums: list[Floats] = list(potentials)
    for i in reversed(tree.order[1:]):
        clique, separator, parent = tree.cliques[i], tree.separators[i], tree.parents[i]
        axes = tuple(axis for axis, a in enumerate(clique) if a not in separator)
        largest = logs[i].max(axis=axes, keepdims=True)
        relative[i] = np.exp(logs[i] - largest)
        relative_sums[i] = relative[i].sum(axis=axes, keepdims=True)
        message = np.log(relative_sums[i]) + largest
        message = message.reshape(_broadcast_shape(tree, separator, tree.cliques[parent]))
        if copied[parent]:
            logs[parent] += message
        else:
            logs[parent], copied[parent] = logs[parent] + message, True
    largest_log = float(logs[0].max())
    root = np.exp(logs[0] - largest_log)
    mass = float(root.sum())
    tables: list[Floats] = list(potentials)
    tables[0] = root * (total / mass)
    for i in tree.order[1:]:
        clique, separator, parent = tree.cliques[i], tree.separators[i], tree.parents[i]
        of_parent = marginalize(tables[parent], tree.cliques[parent], separator)
        scale = of_parent.reshape(_broadcast_shape(tree, separator, clique)) / relative_sums[i]
        tables[i] = relative[i] * scale
    return tables, largest_log + math.log(mass)


def zero_potentials(tree: JunctionTree) -> list[Floats]:
    """Return log-potentials of 0: those of the uniform distribution."""
    return [np.zeros(tree.shape(clique)) for clique in tree.cliques]


def _broadcast_shape(tree: JunctionTree, part: Clique, clique: Clique) -> tuple[int, ...]:
    """Return the shape in which a table by `part` broadcasts over one by `clique`."""
    return tuple(tree.sizes[a] if a in part else 1 for a in clique)


def _spanning_cliques(tree: JunctionTree, attributes: set[int]) -> set[int]:
    """Return the smallest part of the tree that holds the attributes: leaves without an attribute that their
    neighbor lacks are removed, one after the other."""
    spanned = set(range(len(tree.cliques)))
    while len(spanned) > 1:
        leaf = next((i for i in spanned if _is_superfluous_leaf(tree, i, spanned, attributes)), None)
        if leaf is None:
            break
        spanned.discard(leaf)
    return spanned


def _is_superfluous_leaf(tree: JunctionTree, i: int, spanned: set[int], attributes: set[int]) -> bool:
    neighbors = [j for j in (*tree.children[i], tree.parents[i]) if j in spanned]
    if len(neighbors) > 1:
        return False
    return not (set(tree.cliques[i]) & attributes) - set(tree.cliques[neighbors[0]])


def _contract(factors: Sequence[tuple[Clique, Floats]], result: Clique) -> Floats:
    """Return the product of tables, summed to some attributes."""
    (clique, table), *rest = factors
    for i, (other, values) in enumerate(rest):
        needed = {a for later, _ in rest[i + 1 :] for a in later} | set(result)
        product = tuple(sorted((set(clique) | set(other)) & needed))
        operands: list[Any] = [table, list(clique), values, list(other), list(product)]
        table = np.einsum(*operands)
        clique = product
    return marginalize(table, clique, result)
