"""Rounds numbers to integers that keep their sums: largest remainders for one total, controlled rounding for
rows and columns, level by level for trees.

Nothing here is random. Of equal remainders the entry that comes first is rounded up; the order of entries is
public.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import optimize, sparse

from .. import _require
from .._errors import InvalidInput
from . import _check
from ._check import NOTHING_COMPUTED, Floats, Ints
from .tree import Tree

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
    if max(abs(base_sum), abs(total)) >= _LARGEST_TOTAL:
        raise InvalidInput(f"totals must be below 2^62 in size to fit 64 bits. {NOTHING_COMPUTED}")
    if not len(x):
        if total:
            raise InvalidInput(f"no values cannot add up to {total!r}. {NOTHING_COMPUTED}")
        return np.zeros(0, np.int64)
    return _largest_remainders(x, np.zeros(1, np.int64), np.array([int(total)], np.int64))


def round_table(table: Any) -> Ints:
    """Return integers such that each cell, row sum, column sum and the grand total is one of the two integers
    next to its value.

    Cells and margins that are integers already do not change. The result is one of the tables with the least
    sum of absolute differences from the values.

    Guarantee: such a table exists for every table with two dimensions.
    Proof:     cells, margins and total are a flow in a network with integer bounds (Cox & Ernst 1982). The
               matrix of the linear program is totally unimodular, so its vertices are integers.
    Assumes:   two dimensions. With three such tables need not exist (Causey, Cox & Ernst 1985).

    >>> round_table([[0.5, 0.5], [0.5, 0.5]]).sum(axis=0).tolist()
    [1, 1]
    """
    x = _snap(_require_below_exact(_check.numbers("table", table, dimensions=2)))
    rows, columns = x.shape
    if not x.size:
        return x.astype(np.int64)
    base = np.floor(x)
    part = x - base
    grid = np.arange(x.size).reshape(x.shape)
    sums = sparse.vstack(
        [_indicator(grid // columns, rows), _indicator(grid % columns, columns), np.ones((1, x.size))]
    )
    part_sums = _snap(sums @ part.ravel())
    # One variable per cell, 1 where the cell is rounded up. Rounding up changes the distance from `part` to
    # 1 - part, so it costs 1 - 2 part.
    solved = optimize.linprog(
        (1 - 2 * part).ravel(),
        A_ub=sparse.vstack([sums, -sums]),
        b_ub=np.concatenate([np.ceil(part_sums), -np.floor(part_sums)]),
        bounds=np.column_stack([np.zeros(x.size), np.ceil(part.ravel())]),
        method="highs-ds",
    )
    # without a solution there is no `solved.x`
    solution = solved.x if solved.status == 0 else np.full(x.size, np.nan)
    up = np.rint(solution)
    if not (np.abs(up - solution) < 1e-6).all() or not (np.abs(sums @ up - part_sums) < 1).all():
        raise InvalidInput(
            f"the rounding of a table of shape {x.shape} failed numerically. {NOTHING_COMPUTED} Round to "
            f"fewer digits first."
        )
    return np.asarray(base + up.reshape(x.shape), dtype=np.int64)


def round_tree(tree: Tree, values: Any) -> Ints:
    """Return integers for all nodes, every parent the sum of its children, each its value rounded down or up.

    `values` must add up already, as those of `hierarchy` do. Roots are rounded to the nearest integer, halves
    up, and children by largest remainders. Values of zero or above stay so.

    >>> round_tree(Tree([-1, 0, 0, 1, 1]), [4.0, 2.5, 1.5, 1.25, 1.25]).tolist()
    [4, 3, 1, 2, 1]
    """
    x = _snap(_require_below_exact(_check.numbers("values", values)))
    if len(x) != len(tree):
        raise InvalidInput(
            f"values must have one entry for each of the {len(tree)} nodes, got {len(x)}. {NOTHING_COMPUTED}"
        )
    tree.require_sums(x)
    x = x[tree.order]
    out = np.empty(len(x), np.int64)
    out[tree.level(0)] = nearest_integers(x[tree.level(0)]).astype(np.int64)
    for family in tree.families():
        out[family.children] = _largest_remainders(x[family.children], family.first, out[family.parents])
    return tree.caller_order(out)


def _largest_remainders(x: Floats, first: Ints, totals: Ints) -> Ints:
    """Round family by family: family f has the entries from first[f] to before first[f + 1], and gets the sum
    totals[f]. Refuses a total that rounding each entry down or up cannot reach."""
    base = np.floor(x).astype(np.int64)
    size = np.diff(first, append=len(x))
    missing = totals - np.add.reduceat(base, first)
    if (missing < 0).any() or (missing > size).any():
        raise InvalidInput(
            f"the total is too far from the sum of the values to be reached by rounding each up or "
            f"down. {NOTHING_COMPUTED} Bring the values to the "
            f"total first: with_total for counts, least_squares otherwise."
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


def _snap(x: Floats) -> Floats:
    """Replace values that rounding errors have moved off an integer by that integer: those within
    min(1e-9 max(1, |x|), 1e-5) of it."""
    rounded = np.rint(x)
    return np.where(np.abs(x - rounded) <= 1e-9 * np.maximum(1.0, np.minimum(np.abs(x), 1e4)), rounded, x)


def _require_below_exact(x: Floats) -> Floats:
    """Return the values; refuse sizes from 2^52 on, at which floats are integers already."""
    if x.size and np.abs(x).max() >= EXACT:
        raise InvalidInput(f"values must be below 2^52 in size to be rounded exactly. {NOTHING_COMPUTED}")
    return x


def _indicator(group: Any, groups: int) -> Any:
    """Return the 0-1 matrix with one row per group that sums the cells of each group; `group` has the number
    of each cell's group."""
    flat = group.ravel()
    return sparse.csr_array((np.ones(flat.size), (flat, np.arange(flat.size))), shape=(groups, flat.size))
