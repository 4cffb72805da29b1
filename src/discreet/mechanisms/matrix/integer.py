"""Defines strategies on an integer grid: the measurements are exact integers, and their sensitivity is
computed from the integer matrix after rounding.

A strategy is scaled so that its columns have norm at most one, multiplied by a power of two, and rounded
towards zero. That makes no entry larger in size, so no column's norm exceeds that power of two, whatever
floating point did before; `DenseGrid` checks it in integers. (A strategy of small integers is kept as it is:
`on_grid`.) The measured vector is an integer matrix times integer counts. Answers come from it by least
squares, in floats: post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from ... import inference
from ..._errors import InvalidInput, Unsupported
from ..protocols import Integers, Sensitivity
from . import optimal
from .compound import Marginals, Product, Union, kron_times, row_squares
from .strategies import MAX_CELLS, Norm
from .workloads import Workload

Floats = NDArray[np.float64]

# The power of two is 2**20, so rounding loses about one part in a million of accuracy.
BITS = 20
# A 63-bit count is multiplied in three parts of so many bits: sums of their products with the entries of a
# matrix stay within 64 bits.
_LIMB = 21
# The most entries of a matrix that `inference.measured` solves by orthogonal factors within seconds.
DIRECT = 2_000_000


@dataclass(frozen=True, slots=True, eq=False)
class SparseCellCounts:
    """Exact counts of some cells, where all others are zero: `positions[a][i]` is the position of entry i
    along attribute a, `counts[i]` its count. The same cell may be listed several times; its counts add up."""

    domain: tuple[int, ...]
    positions: tuple[Integers, ...]
    counts: Integers

    def table(self, attributes: Sequence[int]) -> Integers:
        """Return the exact counts by some attributes, summed over the others."""
        shape = tuple(self.domain[a] for a in attributes)
        out = np.zeros(math.prod(shape), np.int64)
        flat_index = np.zeros(len(self.counts), np.int64)
        for a, size in zip(attributes, shape, strict=True):
            flat_index = flat_index * size + self.positions[a]
        np.add.at(out, flat_index, self.counts)
        return out.reshape(shape)

    def flat(self) -> SparseCellCounts:
        """Return the same counts over one attribute, whose positions are those of all cells in order."""
        return SparseCellCounts(
            (math.prod(self.domain),),
            (np.ravel_multi_index(self.positions, self.domain).astype(np.int64),),
            self.counts,
        )


@dataclass(frozen=True, slots=True, eq=False)
class LeastSquaresFit:
    """Holds the answers by least squares, and the estimated count of each cell (None where tables were
    measured instead of cells)."""

    answers: Floats
    cells: Floats | None


class Grid:
    """The base of integer strategies: how they measure counts, how far one unit moves the measurements, and
    how answers follow from the measurements."""

    # upper bounds of the l1 norm and of the squared l2 norm of every column
    column: tuple[int, int]
    # the number of measurements
    rows: int
    # the largest entry in size
    largest: int
    # an upper bound of the squared l2 distance of any two columns; None if only four times the squared norm,
    # by the triangle inequality, is known
    exchange: int | None = None

    def sensitivity(self, counts: Sensitivity, norm: Norm, *, exchanged: bool = False) -> Sensitivity:
        """Return the sensitivity of the measurements, where one unit moves the counts by `counts`. `norm` is
        not used: all norms are bounded.

        Guarantee: a change of l1 length s moves the measurements by at most s times the largest column norm.
        Proof:     norms are convex, see `strategies.sensitivity`. With `exchanged` (replace neighbors) one
                   row moves from a cell to another, or is in a cell only before or only after: the
                   measurements move by the difference of two columns, or by one column.
        """
        times = int(counts.l1 or 0)
        column_l1, column_l2_squared = self.column
        l2_squared = times**2 * column_l2_squared
        if exchanged and times == 2 and self.exchange is not None:
            l2_squared = min(l2_squared, max(self.exchange, column_l2_squared))
        # The bound is tight for the norm that the grid was made for; for the other it holds, and may be
        # loose.
        return Sensitivity(
            linf=times * self.largest,
            l0=max(1, self.rows),
            l1=times * column_l1,
            l2_squared=l2_squared,
        )

    def measure(self, counts: SparseCellCounts) -> Integers:
        """Return the integer strategy times the counts: exact, without noise."""
        raise NotImplementedError

    def fit(self, workload: Workload, measured: Any) -> LeastSquaresFit:
        """Return the answers of a workload by least squares, from noisy measurements."""
        raise NotImplementedError

    def variances(self, workload: Workload) -> Floats:
        """Return the variance of each answer for noise of variance 1 in each measurement."""
        raise NotImplementedError

    def error(self, workload: Workload) -> float:
        """Return the sum of the variances times squared weights, without writing out the questions."""
        raise NotImplementedError


class CellGrid(Grid):
    """Every cell measured by itself: the identity matrix, which is never written out."""

    def __init__(self, cells: int) -> None:
        self.rows, self.largest, self.column, self.exchange = cells, 1, (1, 1), 2

    def measure(self, counts: SparseCellCounts) -> Integers:
        return counts.table(range(len(counts.domain))).ravel()

    def cells(self, measured: Any) -> Floats:
        return np.asarray(measured, dtype=np.float64)

    def fit(self, workload: Workload, measured: Any) -> LeastSquaresFit:
        cells = self.cells(measured)
        return LeastSquaresFit(workload.times(cells), cells)

    def variances(self, workload: Workload) -> Floats:
        return row_squares(workload)

    def error(self, workload: Workload) -> float:
        return workload.frobenius


class DenseGrid(Grid):
    """A matrix of integers over all cells."""

    def __init__(self, matrix: Integers, bound: tuple[int, int] = (0, 0)) -> None:
        """Store an integer matrix. `bound`: upper bounds of the l1 norm and of the squared l2 norm of its
        columns, 0 where none is given.

        A bound is claimed as the sensitivity instead of the exact norm, which may depend on the last bits of
        the floats that the matrix was rounded from; a matrix that exceeds it is refused. Entries are at most
        2**21 and rows at most 2**20, so that sums of squares stay within 64 bits.
        """
        self.matrix = matrix
        self.rows = len(matrix)
        # In Python integers: the absolute value of the least 64-bit integer is negative in 64 bits.
        self.largest = max(int(matrix.max(initial=0)), -int(matrix.min(initial=0)))
        if self.largest > 1 << 21 or self.rows > 1 << 20 or matrix.shape[1] > MAX_CELLS:
            raise InvalidInput(
                f"a strategy of {self.rows:,} rows and {matrix.shape[1]:,} cells with entries up to "
                f"{self.largest:,} is too large to be one matrix. Nothing was read."
            )
        exact = (
            int(np.abs(matrix).sum(axis=0).max(initial=0)),
            int((matrix * matrix).sum(axis=0).max(initial=0)),
        )
        self.column = (bound[0] or exact[0], bound[1] or exact[1])
        if self.column[0] < exact[0] or self.column[1] < exact[1]:
            raise InvalidInput(
                "the strategy on its grid is more sensitive than was planned for. Nothing was read."
            )
        floats = matrix.astype(np.float64)
        X = floats.T @ floats
        self._gram, self._inverse = X, _inverse(X)
        # Under this condition all entries of X and their sums are integers below 2**53: exact in floats.
        if float(np.abs(floats).sum(axis=0).max(initial=0)) * self.largest < 2.0**51:
            diagonal = np.diag(X)
            self.exchange = int((diagonal[:, None] + diagonal[None, :] - 2 * X).max(initial=0))

    def measure(self, counts: SparseCellCounts) -> Integers:
        """Return the matrix times the counts, which are multiplied in three parts of 21 bits: with entries of
        at most 2**21 and at most 2**12 cells, no sum of products leaves 64 bits."""
        x = counts.table(range(len(counts.domain))).ravel()
        exact = np.zeros(self.rows, dtype=object)
        for shift in (0, _LIMB, 2 * _LIMB):
            exact = exact + (self.matrix @ (x >> shift & ((1 << _LIMB) - 1))).astype(object) * (1 << shift)
        return np.asarray(exact, dtype=object)

    def cells(self, measured: Any) -> Floats:
        """Return the estimated counts of cells by least squares; of several solutions, that of least norm."""
        y = np.asarray(measured, dtype=np.float64)
        if self.matrix.size <= DIRECT:
            return inference.measured(self.matrix, y, 1.0, unidentified="minimum_norm").values
        return self._inverse @ (self.matrix.T @ y)

    def fit(self, workload: Workload, measured: Any) -> LeastSquaresFit:
        cells = self.cells(measured)
        return LeastSquaresFit(workload.times(cells), cells)

    def variances(self, workload: Workload) -> Floats:
        return np.concatenate(
            [np.einsum("ij,ij->i", block @ self._inverse, block) for block in workload.rows()]
        ).clip(0)

    def error(self, workload: Workload) -> float:
        """Return the weighted error; infinite where the strategy does not determine the answers."""
        return optimal.least_squares_error(workload.gram(), self._gram)


def _inverse(X: Floats) -> Floats:
    """Return the inverse, or the pseudo-inverse where X is singular or nearly so.

    The thresholds are those of `optimal.least_squares_error`.
    """
    try:
        lower = linalg.cholesky(X, lower=True)
        if np.diag(lower).min() > 1e-6 * np.diag(lower).max():
            return np.asarray(linalg.cho_solve((lower, True), np.eye(len(X))))
    except linalg.LinAlgError:
        pass
    return np.asarray(linalg.pinvh(X, rtol=1e-10))


class ProductGrid(Grid):
    """A Kronecker product of integer matrices, one for each attribute (or group of attributes).

    Norms of its columns are products of the norms of the factors' columns.
    """

    def __init__(self, factors: tuple[DenseGrid, ...], domain: tuple[int, ...]) -> None:
        self.factors, self.domain = factors, domain
        self.rows = math.prod(f.rows for f in factors)
        self.largest = math.prod(f.largest for f in factors)
        self.column = (math.prod(f.column[0] for f in factors), math.prod(f.column[1] for f in factors))

    def measure(self, counts: SparseCellCounts) -> Integers:
        table = counts.table(range(len(counts.domain))).ravel().astype(object)
        sizes = [f.matrix.shape[1] for f in self.factors]
        for axis, f in enumerate(self.factors):
            shape = (
                math.prod(g.rows for g in self.factors[:axis]),
                sizes[axis],
                math.prod(sizes[axis + 1 :]),
            )
            cube = table.reshape(shape)
            table = np.einsum("ab,ibj->iaj", f.matrix.astype(object), cube, optimize=False).ravel()
        return np.asarray(table, dtype=object)

    def cells(self, measured: Any) -> Floats:
        maps: list[Callable[[Floats], Floats]] = [f.cells for f in self.factors]
        return kron_times(maps, [f.rows for f in self.factors], np.asarray(measured, dtype=np.float64))

    def fit(self, workload: Workload, measured: Any) -> LeastSquaresFit:
        cells = self.cells(measured)
        return LeastSquaresFit(workload.times(cells), cells)

    def variances(self, workload: Workload) -> Floats:
        return np.concatenate([self._variances(product) for _, product in products(workload, self._sizes())])

    def _variances(self, product: Product) -> Floats:
        out: Any = np.ones(1)
        for grid, factor in zip(self.factors, product.factors, strict=True):
            out = np.kron(out, grid.variances(factor))
        return np.asarray(out)

    def error(self, workload: Workload) -> float:
        return sum(
            w**2 * math.prod(g.error(f) for g, f in zip(self.factors, product.factors, strict=True))
            for w, product in products(workload, self._sizes())
        )

    def _sizes(self) -> tuple[int, ...]:
        return tuple(f.matrix.shape[1] for f in self.factors)


def products(workload: Workload, sizes: tuple[int, ...]) -> list[tuple[float, Product]]:
    """Return a workload as products over factors of these numbers of cells, each with its weight; refuse one
    that cannot be written so."""
    if isinstance(workload, Marginals):
        workload = workload.as_union()
    if isinstance(workload, Union):
        return [
            (w * v, p)
            for w, part in zip(workload.weights, workload.parts, strict=True)
            for v, p in products(part, sizes)
        ]
    if not isinstance(workload, Product):
        workload = Product(factors=(workload,))
    if tuple(f.cells for f in workload.factors) != sizes:
        raise Unsupported(
            f"the strategy is a product over factors of {sizes} cells, the workload is not. Nothing "
            f"was computed. Write the workload as "
            f"products of the same factors."
        )
    return [(1.0, workload)]
