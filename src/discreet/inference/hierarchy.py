"""Nested levels that agree: exact least squares on any tree in two passes, and a non-negative integer version
from the top down.

Upwards, each node learns what its children say about it; downwards, what is missing is shared among the
children according to their variances. For regular trees with equal variances this is Hay, Rastogi, Miklau &
Suciu (2010, arXiv:0904.0942); in general it is a Kalman smoother on a tree. Time is O(nodes), plus a few
array operations for each level: a tree of a million nodes takes well under a second, unless it is a chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._errors import InvalidInput
from . import _check
from ._check import NOTHING, Floats
from .estimate import Estimate
from .least_squares import AGREE
from .projections import _onto_totals
from .rounding import _largest_remainders
from .tree import Families, Tree


def hierarchy(tree: Tree, values: Any, variances: Any) -> Estimate:
    """Best linear unbiased estimates for all nodes: every parent is the sum of its children.

    `variances`: zero for a node that is known exactly (a public total), infinite for one that was not
    measured (its value is ignored).

    Guarantee: generalized least squares, with exact variances.
    Proof:     Hay et al. 2010, Theorem 3, and its generalization: conditioning in a tree of independent sums
               (Chou, Willsky & Benveniste 1994). Tests compare with dense linear algebra.

    >>> fit = hierarchy(Tree([-1, 0, 0]), [103.0, 60.0, 37.0], 2.0)
    >>> fit.values.tolist(), fit.variances.round(3).tolist()
    ([101.0, 62.0, 39.0], [1.333, 1.333, 1.333])
    """
    y, v = _given(tree, values, variances)
    up = _upwards(tree, y, v)
    _require_identified(tree, up)
    h, spread = _downwards(tree, up)

    def times(q: Floats) -> Floats:
        """Covariance times q: the adjustment is H with H V = covariance, so adjust V q; unmeasured nodes are
        expressed by others."""
        moved = _on_measured(tree, np.array(q, dtype=np.float64)[tree.order], v, up)
        weighted = np.multiply(v, moved, out=np.zeros_like(v), where=np.isfinite(v))
        pushed, _ = _downwards(tree, _upwards(tree, weighted, v))
        return tree.given_order(pushed)

    return Estimate(values=tree.given_order(h), _times=times, _variances=tree.given_order(spread))


def top_down(tree: Tree, values: Any, variances: Any, *, integers: bool = True) -> NDArray[Any]:
    """Non-negative values for all nodes, whole numbers by default, with every parent the sum of its children.

    The same upward pass as `hierarchy`; then each parent's value, once settled, is divided among its
    children: the nearest non-negative values with that sum, then largest remainders. In the spirit of the
    TopDown algorithm of the 2020 United States census (Abowd et al. 2022, arXiv:2204.08986). Where nothing is
    negative and nothing is rounded it equals `hierarchy`. Children about which nothing is known share alike.
    Biased: small counts are too large on average, large ones too small.

    >>> top_down(Tree([-1, 0, 0, 0]), [100.0, 70.2, 40.1, -4.0], [0.0, 2.0, 2.0, 2.0]).tolist()
    [100, 65, 35, 0]
    """
    y, v = _given(tree, values, variances)
    up = _upwards(tree, y, v)
    roots = tree.level(0)
    if np.isinf(up.s[roots]).any():
        raise InvalidInput(
            f"{_unknown(tree, np.isinf(up.s[roots]).nonzero()[0])} and nothing below tells. {NOTHING}"
        )
    finite = up.s[np.isfinite(up.s)]
    s = np.where(np.isinf(up.s), 1e6 * max(1.0, float(finite.max(initial=0.0))) * len(tree), up.s)
    x = np.zeros(len(tree))
    x[roots] = np.maximum(up.z[roots], 0.0)
    if integers:
        x[roots] = np.floor(x[roots] + 0.5)
    for family in tree.families():
        shares = _onto_totals(up.z[family.children], s[family.children], family.first, x[family.parents])
        if integers:
            shares = _largest_remainders(shares, family.first, x[family.parents].astype(np.int64)).astype(
                np.float64
            )
        x[family.children] = shares
    return tree.given_order(x.astype(np.int64) if integers else x)


@dataclass(frozen=True, slots=True, eq=False)
class _Up:
    """What each subtree says about its root: mean z and variance s; and the same of the children's sum alone,
    with infinite ones left out."""

    z: Floats
    s: Floats
    below_z: Floats
    below_s: Floats
    unknown: NDArray[Any]  # how many children have infinite variance


def _given(tree: Tree, values: Any, variances: Any) -> tuple[Floats, Floats]:
    if not isinstance(tree, Tree):
        raise InvalidInput(
            f"tree must be a Tree, got {type(tree).__name__}. {NOTHING} Build one: Tree(parents)."
        )
    n = len(tree)
    v = _check.variances(variances, (n,), infinite=True)
    values = _check.as_array("values", values)
    if values.shape != (n,):
        raise InvalidInput(
            f"values must have one entry for each of the {n} nodes, got shape {values.shape}. {NOTHING}"
        )
    y = _check.measured_only("values", values, np.isfinite(v))
    return y[tree.order], v[tree.order]


def _upwards(tree: Tree, y: Floats, v: Floats) -> _Up:
    z, s = y.copy(), v.copy()
    up = _Up(z=z, s=s, below_z=np.zeros_like(y), below_s=np.zeros_like(y), unknown=np.zeros(len(y), np.int64))
    for depth in reversed(range(tree.depth - 1)):
        family = tree.family(depth)
        at = family.parents
        known = np.isfinite(s[family.children])
        children = np.add.reduceat(np.where(known, z[family.children], 0.0), family.first)
        spread = np.add.reduceat(np.where(known, s[family.children], 0.0), family.first)
        unknown = np.add.reduceat((~known).astype(np.int64), family.first)
        up.below_z[at], up.below_s[at], up.unknown[at] = children, spread, unknown
        z[at], s[at] = _joined(y[at], v[at], children, np.where(unknown > 0, np.inf, spread), tree.order[at])
    return up


def _joined(y: Floats, v: Floats, below: Floats, spread: Floats, names: Any) -> tuple[Floats, Floats]:
    """Two independent measurements of the same nodes as one; infinite variances say nothing, two zeros must
    agree."""
    clash = (v == 0) & (spread == 0) & (np.abs(y - below) > AGREE * (1 + np.abs(y) + np.abs(below)))
    if clash.any():
        raise InvalidInput(
            f"{_check.some('nodes', names[clash])} and all their children are known exactly, but do "
            f"not add up. {NOTHING}"
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = np.where(v + spread > 0, spread / (v + spread), 0.0)
        gain = np.where(np.isinf(spread), 1.0, np.where(np.isinf(v), 0.0, gain))
        s = np.where(np.isinf(v), spread, np.where(np.isinf(spread), v, v * gain))
    return np.where(gain == 1.0, y, below + gain * (y - below)), s


def _require_identified(tree: Tree, up: _Up) -> None:
    lost = np.zeros(len(tree), bool)
    lost[tree.level(0)] = np.isinf(up.s[tree.level(0)])
    for family in tree.families():
        several = up.unknown[family.parents] > 1
        lost[family.children] = np.isinf(up.s[family.children]) & several[family.of]
    if lost.any():
        raise InvalidInput(
            f"{_unknown(tree, lost.nonzero()[0])}, and what was does not tell. {NOTHING} Measure "
            f"them or their children."
        )


def _unknown(tree: Tree, positions: Any) -> str:
    return f"{_check.some('nodes', np.sort(tree.order[positions]))} were not measured"


def _downwards(tree: Tree, up: _Up) -> tuple[Floats, Floats]:
    h, spread = up.z.copy(), up.s.copy()
    for family in tree.families():
        at, to = family.parents, family.children
        gain, rest = _gains(family, up)
        short = h[at] - up.below_z[at]
        h[to] = up.z[to] + gain * short[family.of]
        spread[to] = rest + gain**2 * spread[at][family.of]
    return h, spread


def _gains(family: Families, up: _Up) -> tuple[Floats, Floats]:
    """Each child's share of what is missing, and the variance it would keep if its parent were known.

    A child with infinite variance takes all of it; its variance is then that of the others.
    """
    s, total = up.s[family.children], up.below_s[family.parents][family.of]
    has_unknown = (up.unknown[family.parents] > 0)[family.of]
    alone = np.isinf(s)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(total > 0, s / total, 0.0)
        gain = np.where(has_unknown, alone.astype(np.float64), share)
        rest = np.where(has_unknown, np.where(alone, total, s), s * (1 - share))
    return gain, np.maximum(rest, 0.0)


def _on_measured(tree: Tree, q: Floats, v: Floats, up: _Up) -> Floats:
    """Return a question with the same answer that asks no unmeasured node.

    An unmeasured subtree is its parent less its siblings (from the bottom up); any other unmeasured node is
    the sum of its children (from the top down).
    """
    if np.isfinite(v).all():
        return q
    families = list(tree.families())
    for family in reversed(families):
        lost = np.isinf(up.s[family.children])
        asked = np.where(lost, q[family.children], 0.0)
        amount = np.add.reduceat(asked, family.first)
        q[family.parents] += amount
        q[family.children] = np.where(lost, 0.0, q[family.children] - amount[family.of])
    for family in families:
        skip = np.isinf(v[family.parents]) & np.isfinite(up.s[family.parents])
        q[family.children] += np.where(skip, q[family.parents], 0.0)[family.of]
        q[family.parents] = np.where(skip, 0.0, q[family.parents])
    return q
