"""Integers that keep their sums: largest remainders for one total, controlled rounding for rows and columns,
level by level for trees.

Nothing here is random. Ties go to the entry that comes first, which is public.
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

# beyond this a float no longer tells an integer from its neighbors' halves
EXACT = 2**52
# sums of whole numbers below this fit 64 bits
_LARGEST_TOTAL = 2**62


def round_to_total(values: Any, total: int | None = None) -> Ints:
    """Return integers with this sum, each within one of its value: those with the largest remainders are
    rounded up.

    Without `total`, the nearest integer to the sum, halves up. Ties go to the first entry. Of all such
    integers these are the nearest, in every norm.

    >>> round_to_total([1.4, 2.4, 3.2]).tolist(), round_to_total([0.5, 0.5, 1.0]).tolist()
    ([2, 2, 3], [1, 0, 1])
    """
    x = _integral_range(_check.numbers("values", values))
    base = np.floor(x)
    whole = sum(base.astype(np.int64).tolist())
    if total is None:
        # the sum of whole parts is exact, and what is left is small
        total = whole + math.floor(math.fsum(x - base) + 0.5)
    _require.integer(total=total)
    if max(abs(whole), abs(total)) >= _LARGEST_TOTAL:
        raise InvalidInput(f"totals must be below 2^62 in size to fit 64 bits. {NOTHING_COMPUTED}")
    if not len(x):
        if total:
            raise InvalidInput(f"no values cannot add up to {total!r}. {NOTHING_COMPUTED}")
        return np.zeros(0, np.int64)
    return _largest_remainders(x, np.zeros(1, np.int64), np.array([int(total)], np.int64))


def round_table(table: Any) -> Ints:
    """Return integers such that each cell, row sum, column sum and the grand total is one of the two integers
    next to its value.

    Values that are integers already stay, margins too. Among all such tables one with the least sum of
    distances from the values.

    Guarantee: a rounding exists for every table with two dimensions.
    Proof:     cells, margins and total are a flow in a network with integer bounds (Cox & Ernst 1982; the
               matrix is totally unimodular), so the linear program's vertices are integers.
    Assumes:   nothing of three dimensions: there such roundings need not exist (Causey, Cox & Ernst 1985).

    >>> round_table([[0.5, 0.5], [0.5, 0.5]]).sum(axis=0).tolist()
    [1, 1]
    """
    x = _snap(_integral_range(_check.numbers("table", table, dimensions=2)))
    rows, columns = x.shape
    if not x.size:
        return x.astype(np.int64)
    base = np.floor(x)
    part = x - base
    grid = np.arange(x.size).reshape(x.shape)
    sums = sparse.vstack(
        [_indicator(grid // columns, rows), _indicator(grid % columns, columns), np.ones((1, x.size))]
    )
    inside = _snap(sums @ part.ravel())
    solved = optimize.linprog(
        (1 - 2 * part).ravel(),
        A_ub=sparse.vstack([sums, -sums]),
        b_ub=np.concatenate([np.ceil(inside), -np.floor(inside)]),
        bounds=np.column_stack([np.zeros(x.size), np.ceil(part.ravel())]),
        method="highs-ds",
    )
    # without a solution there is no `solved.x`
    solution = solved.x if solved.status == 0 else np.full(x.size, np.nan)
    up = np.rint(solution)
    if not (np.abs(up - solution) < 1e-6).all() or not (np.abs(sums @ up - inside) < 1).all():
        raise InvalidInput(
            f"the rounding of a table of shape {x.shape} failed numerically. {NOTHING_COMPUTED} Round to "
            f"fewer digits first."
        )
    return np.asarray(base + up.reshape(x.shape), dtype=np.int64)


def round_tree(tree: Tree, values: Any) -> Ints:
    """Return integers for every node that add up along the tree, each one of the two next to its value.

    `values` must add up already, as those of `hierarchy` do. Roots go to the nearest integer, children by
    largest remainders. What was not negative stays so.

    >>> round_tree(Tree([-1, 0, 0, 1, 1]), [4.0, 2.5, 1.5, 1.25, 1.25]).tolist()
    [4, 3, 1, 2, 1]
    """
    x = _snap(_integral_range(_check.numbers("values", values)))
    if len(x) != len(tree):
        raise InvalidInput(
            f"values must have one entry for each of the {len(tree)} nodes, got {len(x)}. {NOTHING_COMPUTED}"
        )
    tree.require_sums(x)
    x = x[tree.order]
    out = np.empty(len(x), np.int64)
    out[tree.level(0)] = np.floor(x[tree.level(0)] + 0.5).astype(np.int64)
    for family in tree.families():
        out[family.children] = _largest_remainders(x[family.children], family.first, out[family.parents])
    return tree.caller_order(out)


def _largest_remainders(x: Floats, first: Ints, totals: Ints) -> Ints:
    """Round family by family: family f has the entries from first[f] on and gets the sum totals[f]."""
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
    # stable: ties stay in the order given
    order = np.lexsort((base - x, family))
    rank = np.empty(len(x), np.int64)
    rank[order] = np.arange(len(x)) - np.repeat(first, size)
    rounded: Ints = base + (rank < missing[family])
    return rounded


def _snap(x: Floats) -> Floats:
    """Remove the error of floats: what is an integer up to 1e-9, relative to values between 1 and 10,000,
    becomes one."""
    rounded = np.rint(x)
    return np.where(np.abs(x - rounded) <= 1e-9 * np.maximum(1.0, np.minimum(np.abs(x), 1e4)), rounded, x)


def _integral_range(x: Floats) -> Floats:
    if x.size and np.abs(x).max() >= EXACT:
        raise InvalidInput(f"values must be below 2^52 in size to be rounded exactly. {NOTHING_COMPUTED}")
    return x


def _indicator(group: Any, groups: int) -> Any:
    """Return the matrix that sums cells by group."""
    flat = group.ravel()
    return sparse.csr_array((np.ones(flat.size), (flat, np.arange(flat.size))), shape=(groups, flat.size))
