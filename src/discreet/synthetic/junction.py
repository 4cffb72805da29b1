"""Builds junction trees: the cliques of a triangulated graph, joined so that every attribute's cliques are
connected.

Attributes are numbered from 0 on; a clique is an ascending tuple of attributes. The graph is triangulated by
eliminating one attribute after the other, each time the one that forms, with its neighbors, the table with
the fewest cells. All of it is a function of public facts and released choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

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
