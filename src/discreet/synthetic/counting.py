"""Counts marginals, which are exact tables of counts by some columns of a domain, in the engine; and computes
their sensitivity. Columns of a domain are also called attributes, and are named by their position. The values
of a column are coded by numbers from 0 on (`domain`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Public
from .._registry import described
from .._require import NON_EMPTY, at_least
from ..mechanisms.protocols import Sensitivity
from ..sampling import Entropy
from ..tables import Source
from ..tables.cells import count_cells, plan_cells
from .table_domain import DOMAIN, Domain, require_column

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OccurringCells:
    """Holds the non-empty cells of the table by all columns of a domain; every marginal is a sum of these.

    `sizes` has the number of codes of each column. Cell number i has the code `codes[a][i]` in column a, and
    `counts[i]` rows. Exact, so private: nothing of it may be released without noise.
    """

    sizes: tuple[int, ...]
    codes: tuple[Integers, ...]
    counts: Integers

    def table(self, attributes: Sequence[int]) -> Integers:
        """Return the exact counts by some attributes, as an array with one axis for each, in this order."""
        shape = tuple(self.sizes[a] for a in attributes)
        index = np.zeros(len(self.counts), np.int64)
        for a, size in zip(attributes, shape, strict=True):
            index = index * size + self.codes[a]
        # Sums of counts below 2**53 are exact in doubles.
        flat = np.bincount(index, weights=self.counts, minlength=math.prod(shape))
        return np.rint(flat).astype(np.int64).reshape(shape)

    def regroup(self, groups: Sequence[Integers | None]) -> OccurringCells:
        """Return the same rows in coarser codes: `groups[a]` has the new code of each code of attribute a,
        and is None where it keeps its codes."""
        codes = [c if g is None else g[c] for c, g in zip(self.codes, groups, strict=True)]
        sizes = [n if g is None else int(g.max()) + 1 for n, g in zip(self.sizes, groups, strict=True)]
        return OccurringCells(tuple(sizes), tuple(codes), self.counts)


def count_domain_cells(source: Source, domain: Domain, rows: int | None, entropy: Entropy) -> OccurringCells:
    """Count the cells of a table in its engine. Of each unit at most `rows` rows count, chosen by a hash
    under a fresh secret key."""
    key = entropy.integer(63)
    coded = count_cells(source, domain.codings(source.public), rows=rows, key=key)
    return OccurringCells(domain.sizes(source.public), coded.codes, coded.counts)


def plan_domain_cells(source: Source, domain: Domain, rows: int | None) -> None:
    """Let the engine plan the query of `count_domain_cells`, before anything is charged."""
    plan_cells(source, domain.codings(source.public), rows=rows)


def rows_per_unit(public: Public, rows: int | None) -> int:
    """Return how many rows of one unit count: the given number, or the one that the unit declares; 1 where a
    row is the unit."""
    if rows is not None:
        _require.integer(rows_per_unit=rows, at_least=1)
    if public.unit.column is None:
        _require.that(rows in (None, 1), "a row is the unit here, so rows_per_unit is 1.")
        return 1
    bound = public.unit.rows if rows is None else rows
    if bound is None:
        raise InvalidInput(
            f"one unit (column {public.unit.column!r}) may have many rows: say how many of them count, "
            "rows_per_unit=5."
        )
    return int(bound)


def count_sensitivity(public: Public, rows: int) -> Sensitivity:
    """Return the sensitivity of the table by any attributes, when at most `rows` rows of a unit count.

    Guarantee: under add_remove the table changes by at most `rows` in l1 and in l2. Under replace and
               zero_out, `rows` rows leave and as many come: at most 2 * `rows` in l1, and 2 * `rows`^2 in
               squared l2.
    Proof:     every row is in exactly one cell, as NULL has a code. The largest l2 distance is reached when
               all rows of a unit are in one cell. Under zero_out a unit's rows may be stored blank, and then
               lie in the cell of NULLs, so zero_out is charged like replace.
    """
    if public.neighbors is ADD_REMOVE:
        return Sensitivity(linf=rows, l0=rows, l1=rows, l2_squared=rows**2)
    return Sensitivity(linf=rows, l0=2 * rows, l1=2 * rows, l2_squared=2 * rows**2)


@described("synthetic.MarginalCounts")
class MarginalCounts:
    """Counts the rows that have each combination of codes of some columns of a domain: a `Statistic`.

    At most `rows` rows of a unit count, chosen by a hash under `key`.

    Guarantee: that of `count_sensitivity`, for a fixed `key`.
    Proof:     that of `count_sensitivity` and of `tables.cells.count_cells`.
    """

    domain: Annotated[Domain, DOMAIN]
    columns: Annotated[tuple[str, ...], NON_EMPTY]
    rows: Annotated[int, at_least(1)] = 1
    key: Annotated[int, at_least(0)] = 0

    def __post_init__(self) -> None:
        for name in self.columns:
            require_column(name, self.domain.names, "the domain")

    def length(self, public: Public) -> int:
        sizes = dict(zip(self.domain.names, self.domain.sizes(public), strict=True))
        return math.prod(sizes[name] for name in self.columns)

    def sensitivity(self, public: Public) -> Sensitivity:
        return count_sensitivity(public, rows_per_unit(public, self.rows))

    def rehearse(self, source: Source) -> None:
        """Let the engine plan the query, before anything is charged."""
        plan_domain_cells(source, self.domain, rows_per_unit(source.public, self.rows))

    def __call__(self, source: Source) -> Integers:
        rows = rows_per_unit(source.public, self.rows)
        coded = count_cells(source, self.domain.codings(source.public), rows=rows, key=self.key)
        cells = OccurringCells(self.domain.sizes(source.public), coded.codes, coded.counts)
        return cells.table([self.domain.names.index(name) for name in self.columns]).ravel()
