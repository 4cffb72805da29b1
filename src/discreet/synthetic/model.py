"""Graphical models: a distribution over all cells of a table that only keeps tables by few attributes.

`beliefs` is belief propagation on a junction tree (Lauritzen & Spiegelhalter 1988): logarithms towards the
root, ratios back, one exponential for every cell. What is estimated, sampled and asked of a model is
post-processing of what was released.
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
# The logarithm of what cannot be: small enough for exp to give 0, finite so that no NaN comes of it.
NEVER = -1e9


@dataclass(frozen=True, eq=False)
class GraphicalModel:
    """Tables of expected counts, one for each clique of a junction tree, which agree where they overlap."""

    tree: JunctionTree
    tables: tuple[Floats, ...]
    total: float

    def project(self, attributes: Sequence[int]) -> Floats:
        """Return the expected counts by some attributes, in this order."""
        wanted = tuple(sorted(set(attributes)))
        host = self.tree.host(wanted)
        if host is not None:
            table = summed(self.tables[host], self.tree.cliques[host], wanted)
        else:
            table = self._across(wanted)
        return np.transpose(table, [wanted.index(a) for a in attributes])

    def _across(self, wanted: Clique) -> Floats:
        """Eliminate along the part of the tree that the attributes span, leaves first."""
        kept = _spanned(self.tree, set(wanted))
        messages: dict[int, list[tuple[Clique, Floats]]] = {i: [] for i in kept}
        for i in reversed([i for i in self.tree.order if i in kept]):
            top = self.tree.parents[i] not in kept
            separator = () if top else self.tree.separators[i]
            outside = {a for clique, _ in messages[i] for a in clique}
            inner = [a for clique, _ in messages[i] for a in clique]
            needed = set(separator) | (set(wanted) & set(self.tree.cliques[i])) | set(inner)
            own = tuple(sorted(needed & set(self.tree.cliques[i])))
            factors = [(own, summed(self.tables[i], self.tree.cliques[i], own)), *messages[i]]
            result = tuple(sorted(set(separator) | ((outside | set(own)) & set(wanted))))
            table = _contracted(factors, result)
            if top:
                return table
            below = summed(self.tables[i], self.tree.cliques[i], separator)
            shape = [self.tree.sizes[a] if a in separator else 1 for a in result]
            messages[self.tree.parents[i]].append((result, ratio(table, below.reshape(shape))))
        raise AssertionError("a tree has a root")


def summed(table: Floats, clique: Clique, wanted: Sequence[int]) -> Floats:
    """Return the table by some of its attributes, which are ascending."""
    axes = tuple(i for i, a in enumerate(clique) if a not in wanted)
    return np.asarray(table.sum(axis=axes)) if axes else table


def ratio(above: Floats, below: Floats) -> Floats:
    """Their quotient, 0 where nothing is below."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)


def beliefs(tree: JunctionTree, potentials: Sequence[Floats], total: float) -> tuple[list[Floats], float]:
    """Return the clique marginals of the model with these log-potentials, scaled to `total`, and ln Z.

    Messages to the root are logarithms, relative to the largest entry for each value of the separator, so
    that nothing overflows and no value of a separator vanishes because others are larger.
    """
    logs = list(potentials)
    owned = [False] * len(logs)
    relative: list[Floats] = list(potentials)
    inward: list[Floats] = list(potentials)
    for i in reversed(tree.order[1:]):
        clique, separator, parent = tree.cliques[i], tree.separators[i], tree.parents[i]
        axes = tuple(k for k, a in enumerate(clique) if a not in separator)
        top = logs[i].max(axis=axes, keepdims=True)
        relative[i] = np.exp(logs[i] - top)
        inward[i] = relative[i].sum(axis=axes, keepdims=True)
        message = (np.log(inward[i]) + top).reshape(_within(tree, separator, tree.cliques[parent]))
        if owned[parent]:
            logs[parent] += message
        else:
            logs[parent], owned[parent] = logs[parent] + message, True
    highest = float(logs[0].max())
    root = np.exp(logs[0] - highest)
    mass = float(root.sum())
    tables: list[Floats] = list(potentials)
    tables[0] = root * (total / mass)
    for i in tree.order[1:]:
        clique, separator, parent = tree.cliques[i], tree.separators[i], tree.parents[i]
        outer = summed(tables[parent], tree.cliques[parent], separator)
        scale = outer.reshape(_within(tree, separator, clique)) / inward[i]
        tables[i] = relative[i] * scale
    return tables, highest + math.log(mass)


def uniform(tree: JunctionTree) -> list[Floats]:
    return [np.zeros(tree.shape(clique)) for clique in tree.cliques]


def _within(tree: JunctionTree, part: Clique, clique: Clique) -> tuple[int, ...]:
    """Return the shape that lets a table by `part` act on one by `clique`."""
    return tuple(tree.sizes[a] if a in part else 1 for a in clique)


def _spanned(tree: JunctionTree, wanted: set[int]) -> set[int]:
    """Return the cliques that are left when leaves without anything of their own that is wanted are taken
    away."""
    kept = set(range(len(tree.cliques)))
    while True:
        leaves = []
        for i in kept:
            near = [j for j in tree.children[i] if j in kept]
            parent = tree.parents[i]
            if parent in kept:
                near.append(parent)
            if len(near) > 1 or len(kept) == 1:
                continue
            beside = set(tree.cliques[near[0]])
            if not (set(tree.cliques[i]) & wanted) - beside:
                leaves.append(i)
        if not leaves:
            return kept
        kept.discard(leaves[0])


def _contracted(factors: Sequence[tuple[Clique, Floats]], result: Clique) -> Floats:
    """Return the product of tables, summed to some attributes."""
    (clique, table), *rest = factors
    for i, (other, values) in enumerate(rest):
        later = {a for c, _ in rest[i + 1 :] for a in c} | set(result)
        out = tuple(sorted((set(clique) | set(other)) & later))
        operands: list[Any] = [table, list(clique), values, list(other), list(out)]
        table = np.einsum(*operands)
        clique = out
    return summed(table, clique, result)
