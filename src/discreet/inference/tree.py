"""Describes trees of counts: which node is the sum of which others.

Examples: country, region, district; year, month, day; ranges and their halves. A family is a parent with its
children.

Callers number the nodes as they like (the caller's order). Internally nodes are sorted by depth, siblings
side by side (the depth order), so that a pass over the tree takes a few array operations for each level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from ._check import NOTHING_COMPUTED, Floats, Ints, some


@dataclass(frozen=True, slots=True, eq=False)
class Families:
    """Holds the families of one level (inner nodes with their children), as positions in the depth order."""

    parents: Ints
    children: slice
    # the index, within `children`, of each parent's first child
    first: Ints
    # for each child the index of its parent in `parents`
    of: Ints


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Tree:
    """Describes a tree or forest: `parents[i]` is the parent of node i, which is the sum of its children; -1
    for a root.

    >>> len(Tree([-1, 0, 0, 1, 1])), Tree.regular(fanout=2, height=2).parents.tolist()
    (5, [-1, 0, 0, 1, 1, 2, 2])
    """

    parents: Ints
    # the caller's numbers of the nodes in depth order
    order: Ints = field(repr=False)
    # the position in `order` at which each level begins, and finally the number of nodes
    starts: tuple[int, ...] = field(repr=False)
    # the number of children of each node, in depth order
    _counts: Ints = field(repr=False)

    def __init__(self, parents: Any) -> None:
        parent_array = np.asarray(parents)
        if (
            parent_array.ndim != 1
            or not np.issubdtype(parent_array.dtype, np.integer)
            or not len(parent_array)
        ):
            raise InvalidInput(
                f"parents must be a list of whole numbers, one for each node, -1 for a root. "
                f"{NOTHING_COMPUTED}"
            )
        # before the cast, which would take 2^64 - 1 for -1
        bad = np.flatnonzero((parent_array < -1) | (parent_array >= len(parent_array)))
        if len(bad):
            raise _require.fail(
                f"parents[{bad[0]}]", int(parent_array[bad[0]]), f"-1 or a node below {len(parent_array)}"
            )
        array = parent_array.astype(np.int64)
        order, starts, counts = _by_depth(array)
        for name, value in (("parents", array), ("order", order), ("starts", starts), ("_counts", counts)):
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, name, value)

    @staticmethod
    def regular(*, fanout: int, height: int) -> Tree:
        """Return a tree in which every inner node has `fanout` children and every leaf has depth `height`.

        Nodes are numbered level by level, from the root. Height 0 is a single node.
        """
        _require.integer(fanout=fanout, at_least=1)
        _require.integer(height=height, at_least=0)
        n = sum(fanout**level for level in range(height + 1))
        return Tree(np.concatenate([[-1], np.arange(n - 1) // fanout]))

    @staticmethod
    def of_paths(paths: Sequence[Sequence[Any]]) -> Tree:
        """Return the tree of a list of paths, such as `[(), ("north",), ("north", "bern")]`, numbered as in
        the list. The parent of a path is the path without its last name.

        A path whose parent is not in the list is a root.
        """
        index_of = {tuple(path): i for i, path in enumerate(paths)}
        if len(index_of) < len(paths):
            raise InvalidInput(f"paths must differ from each other. {NOTHING_COMPUTED}")
        return Tree(np.array([index_of.get(tuple(p)[:-1], -1) if len(p) else -1 for p in paths], np.int64))

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def depth(self) -> int:
        """Return the number of levels: one more than the depth of the deepest node."""
        return len(self.starts) - 1

    @property
    def leaves(self) -> Ints:
        """Return the nodes without children, by the caller's numbers."""
        has_children = np.zeros(len(self), bool)
        has_children[self.parents[self.parents >= 0]] = True
        return np.flatnonzero(~has_children)

    def level(self, depth: int) -> slice:
        """Return the positions of the nodes of one level in the depth order; roots have depth 0."""
        return slice(self.starts[depth], self.starts[depth + 1])

    def families(self) -> Iterator[Families]:
        """Yield the families of each level, from the top."""
        for depth in range(self.depth - 1):
            yield self.family(depth)

    def family(self, depth: int) -> Families:
        """Return all families of one level: the inner nodes of depth `depth` with their children."""
        level = self.level(depth)
        counts = self._counts[level]
        inner = np.flatnonzero(counts)
        sizes = counts[inner]
        first = np.cumsum(sizes) - sizes
        of = np.repeat(np.arange(len(inner)), sizes)
        return Families(parents=inner + level.start, children=self.level(depth + 1), first=first, of=of)

    def caller_order(self, by_depth: NDArray[Any]) -> NDArray[Any]:
        """Return values in the caller's order, given values in depth order."""
        out = np.empty_like(by_depth)
        out[self.order] = by_depth
        return out

    def sums(self, leaves: Floats) -> Floats:
        """Return for each node the sum of the leaves below it.

        Argument and result have one entry for each node in the caller's order; the argument's entries of
        inner nodes are ignored.
        """
        x = np.array(leaves, dtype=np.float64)[self.order]
        for depth in reversed(range(self.depth - 1)):
            families = self.family(depth)
            x[families.parents] = np.add.reduceat(x[families.children], families.first)
        return self.caller_order(x)

    def require_sums(self, values: Floats) -> None:
        """Refuse values (in the caller's order) whose children do not add up to their parents, up to a
        relative error of 1e-6, which covers rounding in `hierarchy`."""
        x = values[self.order]
        for family in self.families():
            gap = np.abs(np.add.reduceat(x[family.children], family.first) - x[family.parents])
            scale = 1 + np.add.reduceat(np.abs(x[family.children]), family.first)
            if (gap > 1e-6 * scale).any():
                bad = self.order[family.parents[gap > 1e-6 * scale]]
                raise InvalidInput(
                    f"the children of {some('nodes', bad)} do not add up to them. {NOTHING_COMPUTED} Apply "
                    f"hierarchy first."
                )


def _by_depth(parents: Ints) -> tuple[Ints, tuple[int, ...], Ints]:
    """Return the nodes in depth order, the position at which each level starts (and the end), and how many
    children each node has, in depth order. Refuses cycles."""
    n = len(parents)
    # nodes sorted by parent: the children of p are by_parent[begin[p + 1]:][:counts[p + 1]], the roots come
    # first
    by_parent = np.argsort(parents, kind="stable")
    counts = np.bincount(parents + 1, minlength=n + 1)
    begin = np.cumsum(counts) - counts
    level = by_parent[: counts[0]]
    levels, starts = [], [0]
    while len(level):
        levels.append(level)
        starts.append(starts[-1] + len(level))
        sizes = counts[level + 1]
        ends = np.cumsum(sizes)
        # the children of all nodes of the level: for each parent the positions from its `begin` on
        level = by_parent[np.repeat(begin[level + 1] - (ends - sizes), sizes) + np.arange(ends[-1])]
    if starts[-1] < n:
        reached = np.zeros(n, bool)
        if levels:
            reached[np.concatenate(levels)] = True
        raise InvalidInput(
            f"parents must form a tree: {some('nodes', np.flatnonzero(~reached))} hang on a cycle, "
            f"under no root. {NOTHING_COMPUTED}"
        )
    order = np.concatenate(levels)
    return order, tuple(starts), counts[order + 1]
