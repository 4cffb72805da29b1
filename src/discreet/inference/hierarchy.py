"""Makes nested levels consistent: exact least squares on any tree in two passes, and a non-negative integer
version from the top down.

The upward pass combines each node's own measurement with the sum of its children. The downward pass divides
the difference between a parent's estimate and the sum of its children among the children, in proportion to
their variances. For regular trees with equal variances this is Hay, Rastogi, Miklau &
Suciu (2010, arXiv:0904.0942); in general it is a Kalman smoother on a tree. Time is O(nodes), plus a few
array operations for each level, so that a chain is the slowest tree. Arrays are in the tree's depth order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from . import _check
from ._check import NOTHING_COMPUTED, Floats
from .estimate import Estimate
from .least_squares import RELATIVE_TOLERANCE
from .projections import _onto_totals
from .rounding import _largest_remainders, nearest_integers
from .tree import Families, Tree

# Roots below this fit 64-bit integers, and so do all intermediate sums.
_LARGEST = 2.0**62


def hierarchy(tree: Tree, values: Any, variances: Any) -> Estimate:
    """Return best linear unbiased estimates for all nodes, with every parent the sum of its children.

    `values` and `variances` have one entry for each node (one variance may stand for all). The variance is
    zero for a node that is known exactly, such as a public total, and infinite for a node that was not
    measured; the value of such a node is ignored.

    Guarantee: generalized least squares, with exact variances.
    Proof:     Hay et al. 2010, Theorem 3, and its generalization: conditioning in a tree of independent sums
               (Chou, Willsky & Benveniste 1994). Tests compare with dense linear algebra.

    >>> fit = hierarchy(Tree([-1, 0, 0]), [103.0, 60.0, 37.0], 2.0)
    >>> fit.values.tolist(), fit.variances.round(3).tolist()
    ([101.0, 62.0, 39.0], [1.333, 1.333, 1.333])
    """
    values, variances = _validate(tree, values, variances)
    upward = _upwards(tree, values, variances)
    _require_identified(tree, upward)
    estimates, estimate_variances = _downwards(tree, upward)

    def covariance_product(q: Floats) -> Floats:
        """Return the covariance of the estimates times q.

        The estimates are H y for measurements y with the diagonal covariance V. Their covariance H V H' is
        H V, because H is the least-squares projection. So the same two passes are applied to V q. Unmeasured
        nodes are first replaced in q by measured ones.
        """
        measured_query = _on_measured(tree, np.array(q, dtype=np.float64)[tree.order], variances, upward)
        weighted = np.multiply(
            variances, measured_query, out=np.zeros_like(variances), where=np.isfinite(variances)
        )
        product, _ = _downwards(tree, _upwards(tree, weighted, variances))
        return tree.caller_order(product)

    return Estimate(
        values=tree.caller_order(estimates),
        _covariance_product=covariance_product,
        _variances=tree.caller_order(estimate_variances),
    )


@_require.check_options
def top_down(tree: Tree, values: Any, variances: Any, *, integers: bool = True) -> NDArray[Any]:
    """Return non-negative values for all nodes, whole by default, with every parent the sum of its children.

    After the upward pass of `hierarchy` each parent's final value is divided among its children, from the top
    down: the nearest non-negative values with that sum, rounded by largest remainders. In the spirit of the
    TopDown algorithm of the 2020 United States census (Abowd et al. 2022, arXiv:2204.08986). It equals
    `hierarchy` where nothing is negative, nothing is rounded, and each child was measured or is the sum of
    measured nodes. Unmeasured children get equal parts of what the measured ones leave. Biased: small counts
    are too large on average, large ones too small.

    >>> top_down(Tree([-1, 0, 0, 0]), [100.0, 70.2, 40.1, -4.0], [0.0, 2.0, 2.0, 2.0]).tolist()
    [100, 65, 35, 0]
    """
    values, variances = _validate(tree, values, variances)
    upward = _upwards(tree, values, variances)
    roots = tree.level(0)
    if np.isinf(upward.s[roots]).any():
        raise InvalidInput(
            f"{_unmeasured_words(tree, np.isinf(upward.s[roots]).nonzero()[0])} and their descendants do not "
            f"determine them. {NOTHING_COMPUTED}"
        )
    finite = upward.s[np.isfinite(upward.s)]
    # a large finite variance in place of infinity: unmeasured children take up almost all of a difference
    s = np.where(np.isinf(upward.s), 1e6 * max(1.0, float(finite.max(initial=0.0))) * len(tree), upward.s)
    x = np.zeros(len(tree))
    x[roots] = np.maximum(upward.z[roots], 0.0)
    if integers:
        if (x[roots] >= _LARGEST).any():
            raise InvalidInput(
                f"a root above 2^62 does not fit 64 bits. {NOTHING_COMPUTED} Ask with integers=False."
            )
        x[roots] = nearest_integers(x[roots])
    for family in tree.families():
        shares = _onto_totals(upward.z[family.children], s[family.children], family.first, x[family.parents])
        if integers:
            shares = _largest_remainders(shares, family.first, x[family.parents].astype(np.int64)).astype(
                np.float64
            )
        x[family.children] = shares
    return tree.caller_order(x.astype(np.int64) if integers else x)


@dataclass(frozen=True, slots=True, eq=False)
class _UpwardPass:
    """Holds for each node the estimate z and its variance s from the measurements in its subtree alone.

    `below_z` and `below_s` are the sums of z and s over the node's children of finite variance.
    """

    z: Floats
    s: Floats
    below_z: Floats
    below_s: Floats
    # the number of children of infinite variance
    unknown: NDArray[Any]


def _validate(tree: Tree, values: Any, variances: Any) -> tuple[Floats, Floats]:
    """Return values and variances as arrays with one entry per node, in depth order."""
    if not isinstance(tree, Tree):
        raise InvalidInput(
            f"tree must be a Tree, got {type(tree).__name__}. {NOTHING_COMPUTED} Build one: Tree(parents)."
        )
    n = len(tree)
    v = _check.variances(variances, (n,), infinite=True)
    values = _check.as_array("values", values)
    if values.shape != (n,):
        raise InvalidInput(
            f"values must have one entry for each of the {n} nodes, got shape {values.shape}. "
            f"{NOTHING_COMPUTED}"
        )
    y = _check.measured_only("values", values, np.isfinite(v))
    return y[tree.order], v[tree.order]


def _upwards(tree: Tree, y: Floats, v: Floats) -> _UpwardPass:
    """Combine, from the leaves up, each node's own measurement (value y, variance v) with the sum of its
    children."""
    z, s = y.copy(), v.copy()
    upward = _UpwardPass(
        z=z, s=s, below_z=np.zeros_like(y), below_s=np.zeros_like(y), unknown=np.zeros(len(y), np.int64)
    )
    for depth in reversed(range(tree.depth - 1)):
        family = tree.family(depth)
        parents = family.parents
        measured = np.isfinite(s[family.children])
        child_sums = np.add.reduceat(np.where(measured, z[family.children], 0.0), family.first)
        spread = np.add.reduceat(np.where(measured, s[family.children], 0.0), family.first)
        unknown = np.add.reduceat((~measured).astype(np.int64), family.first)
        upward.below_z[parents], upward.below_s[parents], upward.unknown[parents] = (
            child_sums,
            spread,
            unknown,
        )
        z[parents], s[parents] = _combine(
            y[parents], v[parents], child_sums, np.where(unknown > 0, np.inf, spread), tree.order[parents]
        )
    return upward


def _combine(y: Floats, v: Floats, below: Floats, spread: Floats, nodes: Any) -> tuple[Floats, Floats]:
    """Return the precision-weighted mean, and its variance, of two independent measurements of the same
    nodes: y with variance v, and `below` with variance `spread`.

    A measurement of infinite variance is ignored; two of variance zero must agree. `nodes` has the caller's
    numbers of the nodes, for the error.
    """
    clash = (
        (v == 0) & (spread == 0) & (np.abs(y - below) > RELATIVE_TOLERANCE * (1 + np.abs(y) + np.abs(below)))
    )
    if clash.any():
        raise InvalidInput(
            f"{_check.some('nodes', nodes[clash])} and all their children are known exactly, but do "
            f"not add up. {NOTHING_COMPUTED}"
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        # the weight of y
        gain = np.where(v + spread > 0, spread / (v + spread), 0.0)
        gain = np.where(np.isinf(spread), 1.0, np.where(np.isinf(v), 0.0, gain))
        s = np.where(np.isinf(v), spread, np.where(np.isinf(spread), v, v * gain))
    # exactly y where y alone counts: `below` may then lack unmeasured children
    return np.where(gain == 1.0, y, below + gain * (y - below)), s


def _require_identified(tree: Tree, upward: _UpwardPass) -> None:
    """Refuse nodes that no measurement determines: roots of infinite variance, and children of infinite
    variance that have a sibling of infinite variance."""
    unidentified = np.zeros(len(tree), bool)
    unidentified[tree.level(0)] = np.isinf(upward.s[tree.level(0)])
    for family in tree.families():
        several = upward.unknown[family.parents] > 1
        unidentified[family.children] = np.isinf(upward.s[family.children]) & several[family.of]
    if unidentified.any():
        raise InvalidInput(
            f"{_unmeasured_words(tree, unidentified.nonzero()[0])}, and the measured nodes do not determine "
            f"them. {NOTHING_COMPUTED} Measure them or their children."
        )


def _unmeasured_words(tree: Tree, positions: Any) -> str:
    return f"{_check.some('nodes', np.sort(tree.order[positions]))} were not measured"


def _downwards(tree: Tree, upward: _UpwardPass) -> tuple[Floats, Floats]:
    """Return the final estimates and variances: from the roots down, each child is corrected by its share of
    the difference between its parent's estimate and the sum of its children."""
    estimates, variances = upward.z.copy(), upward.s.copy()
    for family in tree.families():
        parents, children = family.parents, family.children
        gain, own_variance = _gains(family, upward)
        residual = estimates[parents] - upward.below_z[parents]
        estimates[children] = upward.z[children] + gain * residual[family.of]
        variances[children] = own_variance + gain**2 * variances[parents][family.of]
    return estimates, variances


def _gains(family: Families, upward: _UpwardPass) -> tuple[Floats, Floats]:
    """Return each child's share of its parent's difference, and the child's variance if the parent were
    known.

    A single child with infinite variance takes all of the difference; its variance is then that of the sum of
    its siblings.
    """
    s, total = upward.s[family.children], upward.below_s[family.parents][family.of]
    has_unknown = (upward.unknown[family.parents] > 0)[family.of]
    is_unmeasured = np.isinf(s)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(total > 0, s / total, 0.0)
        gain = np.where(has_unknown, is_unmeasured.astype(np.float64), share)
        own_variance = np.where(has_unknown, np.where(is_unmeasured, total, s), s * (1 - share))
    return gain, np.maximum(own_variance, 0.0)


def _on_measured(tree: Tree, q: Floats, v: Floats, upward: _UpwardPass) -> Floats:
    """Return a question with the same answer on consistent values and coefficients of zero for unmeasured
    nodes. Changes q in place.

    A node whose subtree has no estimate (s is infinite) is its parent less its siblings: replaced from the
    bottom up. Any other unmeasured node is the sum of its children: replaced from the top down.
    """
    if np.isfinite(v).all():
        return q
    families = list(tree.families())
    for family in reversed(families):
        is_unmeasured = np.isinf(upward.s[family.children])
        coefficients = np.where(is_unmeasured, q[family.children], 0.0)
        amount = np.add.reduceat(coefficients, family.first)
        q[family.parents] += amount
        q[family.children] = np.where(is_unmeasured, 0.0, q[family.children] - amount[family.of])
    for family in families:
        is_derived = np.isinf(v[family.parents]) & np.isfinite(upward.s[family.parents])
        q[family.children] += np.where(is_derived, q[family.parents], 0.0)[family.of]
        q[family.parents] = np.where(is_derived, 0.0, q[family.parents])
    return q
