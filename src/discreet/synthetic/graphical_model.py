"""Defines graphical models: a distribution over all cells of a table that is stored as tables by few
attributes.

`propagate_beliefs` is belief propagation on a junction tree (Lauritzen & Spiegelhalter 1988). Messages
towards the root are logarithms; on the way back tables are scaled by ratios, so that exp is computed once for
every cell. A model is computed from released values, so all that is computed from it is post-processing.

Builds junction trees: the cliques of a triangulated graph, joined so that every attribute's cliques are
connected.

Attributes are numbered from 0 on; a clique is an ascending tuple of attributes. The graph is triangulated by
eliminating one attribute after the other, each time the one that forms, with its neighbors, the table with
the fewest cells. All of it is a function of public facts and released choices.

Groups rare codes, by released counts alone.

A code is a number from 0 on that stands for a category or a bin of a column (`table_domain`). A table by
several columns has noise in each of its cells, also in cells with hardly any row; with fewer codes it has
fewer cells. What is lost is how codes of one group differ in their dependence on other columns. In the copy,
a row of a group gets one of the group's codes, with probabilities from the released one-way counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Clique = tuple[int, ...]


def triangulate(sizes: Sequence[int], cliques: Iterable[Clique]) -> list[Clique]:
    """Return the maximal cliques of a triangulated graph in which each of `cliques` is complete.

    `sizes` has the number of codes of each attribute. Every attribute is in at least one returned clique.
    """
    logs = [math.log(size) for size in sizes]
    # Bit b of neighbors[a] says whether attributes a and b are joined; every attribute is its own neighbor.
    neighbors = [1 << a for a in range(len(sizes))]
    for clique in cliques:
        mask = sum(1 << a for a in clique)
        for a in clique:
            neighbors[a] |= mask
    remaining, masks = set(range(len(sizes))), []
    log_cells = {a: _log_cells(neighbors[a], logs) for a in remaining}
    while remaining:
        a = min(remaining, key=lambda attribute: (log_cells[attribute], attribute))
        mask = neighbors[a]
        masks.append(mask)
        remaining.discard(a)
        for b in [b for b in remaining if mask >> b & 1]:
            neighbors[b] = (neighbors[b] | mask) & ~(1 << a)
            log_cells[b] = _log_cells(neighbors[b], logs)
    maximal: list[int] = []
    for mask in sorted(masks, key=int.bit_count, reverse=True):
        if not any(mask & ~other == 0 for other in maximal):
            maximal.append(mask)
    return [tuple(a for a in range(len(sizes)) if mask >> a & 1) for mask in maximal]


def junction_tree_cells(sizes: Sequence[int], cliques: Iterable[Clique]) -> int:
    """Return the number of cells of all tables of a junction tree for these cliques, without building it."""
    return sum(math.prod(sizes[a] for a in clique) for clique in triangulate(sizes, cliques))


def _log_cells(mask: int, logs: list[float]) -> float:
    """Return the logarithm of the number of cells of the clique whose attributes are the bits of a mask;
    `logs` are the logarithms of the sizes."""
    total = 0.0
    while mask:
        low = mask & -mask
        total += logs[low.bit_length() - 1]
        mask ^= low
    return total


@dataclass(frozen=True)
class JunctionTree:
    """Joins `cliques`, over attributes with these `sizes`, to a tree; clique number 0 is the root.

    `order` lists the numbers of the cliques, parents before their children. `parents` has the number of each
    clique's parent (-1 for the root), and `separators` the attributes that it shares with its parent: none
    where the clique and all below it are independent of the rest of the model.
    """

    sizes: tuple[int, ...]
    cliques: tuple[Clique, ...]
    order: tuple[int, ...]
    parents: tuple[int, ...]
    separators: tuple[Clique, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], cliques: Iterable[Clique]) -> JunctionTree:
        """Return the junction tree of the triangulated graph: a maximum spanning tree by the number of shared
        attributes (Prim's algorithm)."""
        nodes = triangulate(sizes, cliques)
        parents, order = [-1] * len(nodes), [0]
        # For each clique outside of the tree: how many attributes it shares with the best clique inside, and
        # the number of that clique.
        best = {i: (len(set(nodes[0]) & set(nodes[i])), 0) for i in range(1, len(nodes))}
        while best:
            i = max(best, key=lambda node: (best[node][0], -node))
            parents[i] = best.pop(i)[1]
            order.append(i)
            for j, (width, _) in best.items():
                shared = len(set(nodes[i]) & set(nodes[j]))
                if shared > width:
                    best[j] = (shared, i)
        separators = [
            tuple(sorted(set(node) & set(nodes[parents[i]]))) if parents[i] >= 0 else ()
            for i, node in enumerate(nodes)
        ]
        return cls(tuple(sizes), tuple(nodes), tuple(order), tuple(parents), tuple(separators))

    @property
    def cells(self) -> int:
        """The number of cells of all cliques, to which the time of one pass over the tree is proportional."""
        return sum(math.prod(self.shape(clique)) for clique in self.cliques)

    def shape(self, clique: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.sizes[a] for a in clique)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of each clique's children."""
        return tuple(
            tuple(j for j, parent in enumerate(self.parents) if parent == i) for i in range(len(self.cliques))
        )

    def host(self, clique: Sequence[int]) -> int | None:
        """Return the number of the clique with the fewest cells that contains all of these attributes; None
        if no clique does."""
        attributes = set(clique)
        holding = [i for i, node in enumerate(self.cliques) if attributes <= set(node)]
        return min(holding, key=lambda i: math.prod(self.shape(self.cliques[i])), default=None)


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


# For each code of a column the number of its group, from 0 on; empty where every code is its own group.
Groups = tuple[int, ...]


def group_codes(counts: Sequence[float] | Floats, min_rows: float, *, ordered: bool, missing: bool) -> Groups:
    """Return groups of codes that have, where possible, about `min_rows` rows or more by their noisy counts.

    Where codes are `ordered`, adjacent ones are joined, and codes that have enough rows by themselves stay
    alone; otherwise all rare codes become one group. With `missing` (used for ordered codes only), the last
    code is NULL, which is adjacent to no other: if it is rare, it joins the group with the fewest rows, even
    if that is a single frequent code.

    >>> group_codes([5, 2, 3, 90, 1, 1, 8], 9, ordered=True, missing=False)
    (0, 0, 0, 1, 2, 2, 2)
    >>> group_codes([5, 2, 3, 90], 9, ordered=False, missing=False)
    (1, 1, 1, 0)
    """
    noisy = np.asarray(counts, dtype=np.float64)
    members = _group_neighbors(noisy, min_rows, missing) if ordered else _group_rare(noisy, min_rows)
    if len(members) == len(noisy):
        return ()
    groups = np.zeros(len(noisy), np.int64)
    for number, codes in enumerate(members):
        groups[codes] = number
    return tuple(int(number) for number in groups)


def _group_rare(counts: Floats, min_rows: float) -> list[list[int]]:
    """Return one group for each frequent code, and one for all others."""
    rare = [code for code, count in enumerate(counts) if count < min_rows]
    frequent = [[code] for code, count in enumerate(counts) if count >= min_rows]
    return [*frequent, rare] if rare else frequent


@dataclass(slots=True)
class _CodeRange:
    """Holds a range of adjacent codes, and the sum of their noisy counts."""

    codes: list[int]
    rows: float = 0.0

    def is_frequent_code(self, min_rows: float) -> bool:
        return len(self.codes) == 1 and self.rows >= min_rows


def _group_neighbors(counts: Floats, min_rows: float, missing: bool) -> list[list[int]]:
    """Return ranges of adjacent codes that have, where possible, enough rows together, and the code of NULL
    in one of them or alone."""
    ranges: list[_CodeRange] = []
    # As a number, `missing` is 1 or 0: the last code is left out if it is that of NULL.
    for code, count in enumerate(counts[: len(counts) - missing]):
        # A new range begins after one with enough rows, and at a code that has enough rows by itself.
        if not ranges or ranges[-1].rows >= min_rows or count >= min_rows:
            ranges.append(_CodeRange([]))
        ranges[-1].codes.append(code)
        ranges[-1].rows += float(count)
    ranges = _join_small(ranges, min_rows)
    members = [code_range.codes for code_range in ranges]
    if missing:
        null = len(counts) - 1
        if counts[-1] >= min_rows or not ranges:
            members.append([null])
        else:
            members[int(np.argmin([code_range.rows for code_range in ranges]))].append(null)
    return members


def _join_small(ranges: Sequence[_CodeRange], min_rows: float) -> list[_CodeRange]:
    """Join two adjacent ranges if one of them has too few rows, unless one is a single frequent code: such a
    code (a capital gain of 0, 40 hours per week) is worth keeping apart."""
    joined: list[_CodeRange] = []
    for code_range in ranges:
        pair = [*joined[-1:], code_range]
        small = any(member.rows < min_rows for member in pair)
        if joined and small and not any(member.is_frequent_code(min_rows) for member in pair):
            joined[-1].codes.extend(code_range.codes)
            joined[-1].rows += code_range.rows
        else:
            joined.append(code_range)
    return joined


def grouped_sizes(groups: Sequence[Groups], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the number of codes of each column after grouping."""
    if not groups:
        return tuple(sizes)
    return tuple(max(group) + 1 if group else size for group, size in zip(groups, sizes, strict=True))


def group_arrays(groups: Sequence[Groups], columns: int) -> list[NDArray[np.int64] | None]:
    """Return the groups as arrays, None for columns whose codes all stay alone."""
    return [np.array(g, dtype=np.int64) if g else None for g in groups] or [None] * columns
