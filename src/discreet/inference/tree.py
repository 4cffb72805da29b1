"""Trees of counts: which node is the sum of which others.

Country, region, district; year, month, day; ranges and their halves.

Nodes keep the numbers the caller gave them. Inside, they are put in order of their depth, so that all
children of one level lie side by side and every pass over the tree is a few array operations for each level.
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
    """The inner nodes of one level and their children, as positions in the order of depth."""

    parents: Ints
    children: slice
    # where each parent's children begin, counted within `children`
    first: Ints
    # for each child its place in `parents`
    of: Ints


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Tree:
    """A tree or forest: `parents[i]` is the node whose sum node i is part of, -1 for a root.

    >>> len(Tree([-1, 0, 0, 1, 1])), Tree.regular(fanout=2, height=2).parents.tolist()
    (5, [-1, 0, 0, 1, 1, 2, 2])
    """

    parents: Ints
    # nodes by depth, siblings side by side
    order: Ints = field(repr=False)
    # where each level begins in `order`, and the end
    starts: tuple[int, ...] = field(repr=False)
    # children of each node, in order of depth
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
        array = parent_array.astype(np.int64)
        bad = np.flatnonzero((array < -1) | (array >= len(array)))
        if len(bad):
            raise _require.fail(f"parents[{bad[0]}]", int(array[bad[0]]), f"-1 or a node below {len(array)}")
        order, starts, counts = _by_depth(array)
        for name, value in (("parents", array), ("order", order), ("starts", starts), ("_counts", counts)):
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, name, value)

    @staticmethod
    def regular(*, fanout: int, height: int) -> Tree:
        """Return a tree in which every inner node has `fanout` children; height 0 is a single node.

        Level by level, the root first.
        """
        _require.integer(fanout=fanout, at_least=1)
        _require.integer(height=height, at_least=0)
        n = sum(fanout**level for level in range(height + 1))
        return Tree(np.concatenate([[-1], np.arange(n - 1) // fanout]))

    @staticmethod
    def of_paths(paths: Sequence[Sequence[Any]]) -> Tree:
        """Return the tree of some names, `[(), ("north",), ("north", "bern")]`; the parent of a path is the
        path without its last name.

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
        """The number of levels."""
        return len(self.starts) - 1

    @property
    def leaves(self) -> Ints:
        """The nodes without children, in the numbers the caller gave."""
        has = np.zeros(len(self), bool)
        has[self.parents[self.parents >= 0]] = True
        return np.flatnonzero(~has)

    def level(self, depth: int) -> slice:
        """Return the positions of one level in `order`."""
        return slice(self.starts[depth], self.starts[depth + 1])

    def families(self) -> Iterator[Families]:
        """Yield the families level by level, from the top."""
        for depth in range(self.depth - 1):
            yield self.family(depth)

    def family(self, depth: int) -> Families:
        level = self.level(depth)
        counts = self._counts[level]
        inner = np.flatnonzero(counts)
        sizes = counts[inner]
        first = np.cumsum(sizes) - sizes
        of = np.repeat(np.arange(len(inner)), sizes)
        return Families(parents=inner + level.start, children=self.level(depth + 1), first=first, of=of)

    def caller_order(self, by_depth: NDArray[Any]) -> NDArray[Any]:
        """Return values in the caller's order from the order of depth."""
        out = np.empty_like(by_depth)
        out[self.order] = by_depth
        return out

    def sums(self, leaves: Floats) -> Floats:
        """Return all nodes, as sums of their leaves.

        Takes and gives the caller's numbers; inner nodes of the argument are ignored.
        """
        x = np.array(leaves, dtype=np.float64)[self.order]
        for depth in reversed(range(self.depth - 1)):
            family = self.family(depth)
            x[family.parents] = np.add.reduceat(x[family.children], family.first)
        return self.caller_order(x)

    def require_sums(self, values: Floats) -> None:
        """Refuse values that do not add up along the tree."""
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
    """Return the nodes level by level, where each level starts, and how many children each node has."""
    n = len(parents)
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
