"""Defines graphical models: a distribution over all cells of a table that is stored as tables by few
attributes.

`propagate_beliefs` is belief propagation on a junction tree (Lauritzen & Spiegelhalter 1988). Messages
towards the root are logarithms; on the way back tables are scaled by ratios, so that exp is computed once for
every cell. A model is computed from released values, so all that is computed from it is post-processing.
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
# Stands for the logarithm of 0: so small that exp gives 0, and finite, because differences of infinities
# would be NaN.
LOG_ZERO = -1e9


@dataclass(frozen=True, eq=False)
class GraphicalModel:
    """Holds tables of expected counts, one for each clique of a junction tree. Any two tables have the same
    marginal by the attributes that they share, and every table adds up to `total`, the number of rows."""

    tree: JunctionTree
    tables: tuple[Floats, ...]
    total: float

    def project(self, attributes: Sequence[int]) -> Floats:
        """Return the expected counts by some attributes, as an array with one axis for each, in this
        order."""
        ascending = tuple(sorted(set(attributes)))
        host = self.tree.host(ascending)
        if host is not None:
            table = marginalize(self.tables[host], self.tree.cliques[host], ascending)
        else:
            table = self._eliminate(ascending)
        return np.transpose(table, [ascending.index(a) for a in attributes])

    def _eliminate(self, attributes: Clique) -> Floats:
        """Return the expected counts by ascending attributes that no single clique contains.

        Variable elimination: among the cliques that span these attributes, each passes on, leaves first, a
        table by its separator and the wanted attributes collected so far, divided by the separator's counts.
        """
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
            separator_counts = marginalize(self.tables[i], clique, separator)
            shape = [self.tree.sizes[a] if a in separator else 1 for a in result]
            messages[self.tree.parents[i]].append((result, divide(table, separator_counts.reshape(shape))))
        raise AssertionError("a tree has a root")


def marginalize(table: Floats, clique: Clique, attributes: Sequence[int]) -> Floats:
    """Return the marginal of a table: `clique` has the attributes of its axes, and those in `attributes` are
    kept, in the same order; all others are summed out."""
    axes = tuple(axis for axis, a in enumerate(clique) if a not in attributes)
    return np.asarray(table.sum(axis=axes)) if axes else table


def divide(numerator: Floats, denominator: Floats) -> Floats:
    """Return the quotient, 0 where the denominator is 0."""
    shape = np.broadcast(numerator, denominator).shape
    return np.divide(numerator, denominator, out=np.zeros(shape), where=denominator > 0)


def propagate_beliefs(
    tree: JunctionTree, potentials: Sequence[Floats], total: float
) -> tuple[list[Floats], float]:
    """Return the table of each clique in the model with these log-potentials (one for each clique), scaled to
    add up to `total`; and ln Z, the logarithm of the normalizing constant.

    Messages to the root are logarithms. Before exp, the largest entry for each code of the separator is
    subtracted, so that nothing overflows, and no code of the separator underflows to 0 because others are
    larger.
    """
    logs = list(potentials)
    # The caller's arrays are not written to: the first message to a clique copies its potential.
    copied = [False] * len(logs)
    # For each clique but the root: exp(logarithm - the largest one for the code of its separator), and the
    # sums of these over all attributes but the separator. The potentials are only placeholders at first.
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
    """Return the numbers of the cliques of the smallest subtree that contains the attributes. Leaves whose
    attributes of interest are all in their neighbor, too, are removed one after the other."""
    spanned = set(range(len(tree.cliques)))
    while len(spanned) > 1:
        leaf = next((i for i in spanned if _is_superfluous_leaf(tree, i, spanned, attributes)), None)
        if leaf is None:
            break
        spanned.discard(leaf)
    return spanned


def _is_superfluous_leaf(tree: JunctionTree, i: int, spanned: set[int], attributes: set[int]) -> bool:
    """Return whether clique i is a leaf of the subtree `spanned`, and adds no attribute to its neighbor."""
    neighbors = [j for j in (*tree.children[i], tree.parents[i]) if j in spanned]
    if len(neighbors) > 1:
        return False
    return not (set(tree.cliques[i]) & attributes) - set(tree.cliques[neighbors[0]])


def _contract(factors: Sequence[tuple[Clique, Floats]], result: Clique) -> Floats:
    """Return the product of tables, summed over all attributes but those of `result`. An attribute is summed
    out as soon as no later factor has it."""
    (clique, table), *other_factors = factors
    for i, (other, values) in enumerate(other_factors):
        needed = {a for later, _ in other_factors[i + 1 :] for a in later} | set(result)
        product = tuple(sorted((set(clique) | set(other)) & needed))
        operands: list[Any] = [table, list(clique), values, list(other), list(product)]
        table = np.einsum(*operands)
        clique = product
    return marginalize(table, clique, result)
