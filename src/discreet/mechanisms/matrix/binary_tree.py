"""The binary tree over time: every step is a leaf, and a node is the sum of the steps below it.

Tree aggregation (the tree based aggregation protocol, the binary mechanism): Chan, Shi & Song 2010,
ACM TISSEC 14(3), 2011; Dwork, Naor, Pitassi & Rothblum 2010 (STOC). A node gets noise once, when the step of
its last leaf is over. The sum of the first t steps is the sum of one node for each binary digit 1 of t: t = 6
takes a node of 4 steps and one of 2. With `from_below` the noisy value of each node is first averaged with
the estimate that the nodes below it give of the same sum: Honaker 2015, "Efficient use of differentially
private binary trees". Level 0 are the leaves; a node of level i covers 2^i steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ... import _require
from ..._registry import described

Floats = NDArray[np.float64]


@described("matrix.BinaryTree")
@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryTree:
    """Measures the sums over all aligned intervals of 2^i steps; with `from_below` each is estimated from its
    own noisy value and all nodes below it (Honaker)."""

    from_below: bool = True

    def __post_init__(self) -> None:
        _require.flag(from_below=self.from_below)

    def node_variances(self, levels: int) -> Floats:
        """Return the variance of the estimate of a node, for each level from the leaves up and for noise of
        variance 1 at every node."""
        return _node_variances(levels, self.from_below)

    def variances(self, steps: int) -> Floats:
        """Return the variance of the sum of the first t steps, for t = 1, ..., steps: the variances of the
        nodes of the binary digits 1 of t, added up."""
        t = np.arange(1, steps + 1)
        total = np.zeros(steps)
        for level, variance in enumerate(self.node_variances(steps.bit_length())):
            total += variance * ((t >> level) & 1)
        return total


def tree_square(steps: int, separation: int = 1, times: int = 1) -> int:
    """Return the squared l2 distance by which one unit moves the vector of all nodes, if it adds 1 to at most
    `times` leaves, any two of them at least `separation` steps apart.

    Guarantee: an upper bound; exact for times = 1, where it is the number of levels.
    Proof:     a node of width w has at most m = min(times, ceil(w / separation)) of the unit's leaves, and
               the nodes of a level have at most `times` of them together, so that the squares of these
               numbers add up to at most m times `times`.
    """
    levels = steps.bit_length()
    return sum(times * min(times, -(-(1 << level) // separation)) for level in range(levels))


@lru_cache(maxsize=64)
def _node_variances(levels: int, from_below: bool) -> Floats:
    """Return the variance per level. A node's own value has variance 1 and the sum of its two children's
    estimates twice a child's variance; the best average of the two has the sum of their precisions."""
    values = [1.0]
    for _ in range(levels - 1):
        values.append(1 / (1 + 1 / (2 * values[-1])) if from_below else 1.0)
    return np.array(values)
