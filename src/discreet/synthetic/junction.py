"""Junction trees: the cliques of a triangulated graph, joined so that every attribute's cliques are
connected.

Attributes are numbers from 0 on; a clique is an ascending tuple of them. The graph is triangulated by
eliminating, again and again, the attribute whose clique is smallest. All of it is a function of public facts
and released choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

Clique = tuple[int, ...]


def triangulated(sizes: Sequence[int], cliques: Iterable[Clique]) -> list[Clique]:
    """Return the maximal cliques of a triangulated graph in which each of `cliques` is complete.

    Every attribute is in at least one of them.
    """
    logs = [math.log(size) for size in sizes]
    near = [0] * len(sizes)
    for clique in cliques:
        mask = sum(1 << a for a in clique)
        for a in clique:
            near[a] |= mask
    near = [mask | 1 << a for a, mask in enumerate(near)]
    left, masks = set(range(len(sizes))), []
    weights = {a: _weight(near[a], logs) for a in left}
    while left:
        a = min(left, key=lambda one: (weights[one], one))
        mask = near[a]
        masks.append(mask)
        left.discard(a)
        touched = [b for b in left if mask >> b & 1]
        for b in touched:
            near[b] = (near[b] | mask) & ~(1 << a)
            weights[b] = _weight(near[b], logs)
    largest: list[int] = []
    for mask in sorted(masks, key=int.bit_count, reverse=True):
        if not any(mask & ~other == 0 for other in largest):
            largest.append(mask)
    return [tuple(a for a in range(len(sizes)) if mask >> a & 1) for mask in largest]


def cells_of(sizes: Sequence[int], cliques: Iterable[Clique]) -> int:
    """Return how many cells the tables of a junction tree for these cliques have together."""
    return sum(math.prod(sizes[a] for a in clique) for clique in triangulated(sizes, cliques))


def _weight(mask: int, logs: list[float]) -> float:
    total = 0.0
    while mask:
        low = mask & -mask
        total += logs[low.bit_length() - 1]
        mask ^= low
    return total


@dataclass(frozen=True)
class JunctionTree:
    """A tree of `cliques` over attributes of `sizes`; number 0 is the root.

    `order` lists them parents first; `parents` and `separators` say of each what it hangs on, and by which
    attributes (none for a part of the model that is independent of the rest).
    """

    sizes: tuple[int, ...]
    cliques: tuple[Clique, ...]
    order: tuple[int, ...]
    parents: tuple[int, ...]
    separators: tuple[Clique, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], cliques: Iterable[Clique]) -> JunctionTree:
        """Return the tree of maximal separators (Prim's algorithm) over the triangulated graph."""
        nodes = triangulated(sizes, cliques)
        parents, order = [-1] * len(nodes), [0]
        best = {i: (len(set(nodes[0]) & set(nodes[i])), 0) for i in range(1, len(nodes))}
        while best:
            i = max(best, key=lambda one: (best[one][0], -one))
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
        """How many cells the cliques have together: what one pass over the tree costs."""
        return sum(math.prod(self.shape(clique)) for clique in self.cliques)

    def shape(self, clique: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.sizes[a] for a in clique)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(j for j, parent in enumerate(self.parents) if parent == i) for i in range(len(self.cliques))
        )

    def host(self, clique: Sequence[int]) -> int | None:
        """Return the smallest clique that holds all of these attributes; None if none does."""
        wanted = set(clique)
        holding = [i for i, one in enumerate(self.cliques) if wanted <= set(one)]
        return min(holding, key=lambda i: math.prod(self.shape(self.cliques[i])), default=None)
