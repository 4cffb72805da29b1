"""Makes nested levels consistent: exact least squares on any tree in two passes, and a non-negative integer
version from the top down.

The upward pass combines each node's own measurement with the sum of its children. The downward pass divides
the difference between a parent's estimate and the sum of its children among the children, in proportion to
their variances. For regular trees with equal variances this is Hay, Rastogi, Miklau &
Suciu (2010, arXiv:0904.0942); in general it is a Kalman smoother on a tree. Time is O(nodes), plus a few
array operations for each level, so that a chain is the slowest tree. Arrays are in the tree's depth order.

Describes trees of counts: which node is the sum of which others.

Examples: country, region, district; year, month, day; ranges and their halves. A family is a parent with its
children.

Callers number the nodes as they like (the caller's order). Internally nodes are sorted by depth, siblings
side by side (the depth order), so that a pass over the tree takes a few array operations for each level.

Rounds numbers to integers that keep their sum, by largest remainders.

Nothing here is random. Of equal remainders the entry that comes first is rounded up; the order of entries is
public.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._require import at_least
from . import _check
from ._check import Floats, Ints
from .least_squares import RELATIVE_TOLERANCE, Estimate
from .projections import _onto_totals


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
        _require.that(
            parent_array.ndim == 1 and np.issubdtype(parent_array.dtype, np.integer) and len(parent_array),
            "parents must be a list of whole numbers, one for each node, -1 for a root.",
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
    @_require.check_options
    def regular(*, fanout: Annotated[int, at_least(1)], height: Annotated[int, at_least(0)]) -> Tree:
        """Return a tree in which every inner node has `fanout` children and every leaf has depth `height`.

        Nodes are numbered level by level, from the root. Height 0 is a single node.
        """
        n = sum(fanout**level for level in range(height + 1))
        return Tree(np.concatenate([[-1], np.arange(n - 1) // fanout]))

    @staticmethod
    def of_paths(paths: Sequence[Sequence[Any]]) -> Tree:
        """Return the tree of a list of paths, such as `[(), ("north",), ("north", "bern")]`, numbered as in
        the list. The parent of a path is the path without its last name.

        A path whose parent is not in the list is a root.
        """
        index_of = {tuple(path): i for i, path in enumerate(paths)}
        _require.that(len(index_of) >= len(paths), "paths must differ from each other.")
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
        _check.none_of(~reached, "parents must form a tree: nodes", "hang on a cycle, under no root.")
    order = np.concatenate(levels)
    return order, tuple(starts), counts[order + 1]


# from here on floats have no fractional part, so that there is nothing to round
EXACT = 2**52
# two totals below this, and their difference, fit 64-bit integers
_LARGEST_TOTAL = 2**62


def round_to_total(values: Any, total: int | None = None) -> Ints:
    """Return integers with the sum `total`, each its value rounded down or up: those with the largest
    remainders are rounded up.

    By default `total` is the integer nearest to the sum of the values, halves up. Of equal remainders the
    first entries are rounded up. Of all integers with this sum these are the nearest to the values in every
    Lp norm.

    >>> round_to_total([1.4, 2.4, 3.2]).tolist(), round_to_total([0.5, 0.5, 1.0]).tolist()
    ([2, 2, 3], [1, 0, 1])
    """
    x = _require_below_exact(_check.numbers("values", values))
    base = np.floor(x)
    base_sum = sum(base.astype(np.int64).tolist())
    if total is None:
        # in two parts: the sum of integers is exact, and the sum of remainders is small and rounded once
        total = base_sum + int(nearest_integers(np.float64(math.fsum(x - base))))
    _require.integer(total=total)
    _require.that(
        max(abs(base_sum), abs(total)) < _LARGEST_TOTAL, "totals must be below 2^62 in size to fit 64 bits."
    )
    if not len(x):
        _require.that(not total, f"no values cannot add up to {total!r}.")
        return np.zeros(0, np.int64)
    return _largest_remainders(x, np.zeros(1, np.int64), np.array([int(total)], np.int64))


def _largest_remainders(x: Floats, first: Ints, totals: Ints) -> Ints:
    """Round family by family: family f has the entries from first[f] to before first[f + 1], and gets the sum
    totals[f]. Refuses a total that rounding each entry down or up cannot reach."""
    base = np.floor(x).astype(np.int64)
    size = np.diff(first, append=len(x))
    missing = totals - np.add.reduceat(base, first)
    _require.that(
        not (missing < 0).any() and not (missing > size).any(),
        "the total is too far from the sum of the values to be reached by rounding each up or down. "
        "Bring the values to the total first: with_total for counts, least_squares otherwise.",
    )
    family = np.repeat(np.arange(len(first)), size)
    # within each family by falling remainder x - base; lexsort is stable, so equal ones stay in their order
    order = np.lexsort((base - x, family))
    # the rank of each entry in its family: the first `missing` of them are rounded up
    rank = np.empty(len(x), np.int64)
    rank[order] = np.arange(len(x)) - np.repeat(first, size)
    rounded: Ints = base + (rank < missing[family])
    return rounded


def nearest_integers(x: Any) -> Any:
    """Return the nearest integers as floats, halves up.

    Exact for every float. floor(x + 0.5) is not, because x + 0.5 is rounded: for x just below one half, and
    for odd x from 2^52 on.
    """
    base = np.floor(x)
    return base + (x - base >= 0.5)


def _require_below_exact(x: Floats) -> Floats:
    """Return the values; refuse sizes from 2^52 on, at which floats are integers already."""
    _require.that(
        not x.size or np.abs(x).max() < EXACT, "values must be below 2^52 in size to be rounded exactly."
    )
    return x


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
    _check.none_of(
        np.isinf(upward.s[roots]),
        "nodes",
        "were not measured and their descendants do not determine them.",
        tree.order[roots],
    )
    finite = upward.s[np.isfinite(upward.s)]
    # a large finite variance in place of infinity: unmeasured children take up almost all of a difference
    s = np.where(np.isinf(upward.s), 1e6 * max(1.0, float(finite.max(initial=0.0))) * len(tree), upward.s)
    x = np.zeros(len(tree))
    x[roots] = np.maximum(upward.z[roots], 0.0)
    if integers:
        fits = not (x[roots] >= _LARGEST).any()
        _require.that(fits, "a root above 2^62 does not fit 64 bits. Ask with integers=False.")
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
    _require.that(
        isinstance(tree, Tree), f"tree must be a Tree, got {type(tree).__name__}. Build one: Tree(parents)."
    )
    n = len(tree)
    v = _check.variances(variances, (n,), infinite=True)
    y = _check.measured_only("values", values, np.isfinite(v), ", one entry for each node")
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
    _check.none_of(
        clash, "nodes", "and all their children are known exactly, but do not add up.", np.asarray(nodes)
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
    _check.none_of(
        unidentified,
        "nodes",
        "were not measured, and the measured nodes do not determine them. Measure them or their children.",
        tree.order,
    )


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
