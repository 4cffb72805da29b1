"""Strategies on an integer grid: what is measured are exact integers, with a sensitivity that is proved after
rounding.

A strategy is scaled so that its columns have norm at most one, multiplied by a power of two, and cut off
towards zero. Cutting off makes no entry larger, so no column's norm grows beyond that power, whatever
floating point did before; that is checked in integers when the grid is built. The measured vector is an
integer matrix times integer counts. Answers come from it by least squares, in floats: post-processing.
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

# One part in a million: the loss of accuracy by cutting off is of that order.
BITS = 20
# Bits of each of three parts of a count: their products with entries stay within 64 bits.
_LIMB = 21
# Entries of a matrix that `inference.measured` solves by orthogonal factors within seconds.
DIRECT = 2_000_000


@dataclass(frozen=True, slots=True, eq=False)
class SparseCellCounts:
    """Exact counts of cells, sparse: for each of some cells its position along every attribute, and the
    count."""

    domain: tuple[int, ...]
    positions: tuple[Integers, ...]
    counts: Integers

    def table(self, attributes: Sequence[int]) -> Integers:
        """Return the exact counts by some attributes."""
        shape = tuple(self.domain[a] for a in attributes)
        out = np.zeros(math.prod(shape), np.int64)
        flat_index = np.zeros(len(self.counts), np.int64)
        for a, size in zip(attributes, shape, strict=True):
            flat_index = flat_index * size + self.positions[a]
        np.add.at(out, flat_index, self.counts)
        return out.reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class LeastSquaresFit:
    """Holds the answers by least squares, and the estimated count of each cell (None where tables were
    measured)."""

    answers: Floats
    cells: Floats | None


class Grid:
    """Base: an integer strategy, what one count more or less moves, and the way back to answers."""

    # the largest l1 and squared l2 norm of a column, proved bounds
    column: tuple[int, int]
    rows: int
    largest: int
    # squared l2 distance of two columns, where it is known to be less than four times the norm
    exchange: int | None = None

    def sensitivity(self, counts: Sensitivity, norm: Norm, *, exchanged: bool = False) -> Sensitivity:
        """Return the sensitivity of the measurements, if one unit moves the counts by so much.

        Guarantee: a change of l1 length s moves the measurements by at most s times the largest column norm.
        Proof:     norms are convex, see `strategies.sensitivity`. With `exchanged` the change is one count in
                   one cell against one in another (or in none): the distance of two columns.
        """
        times = int(counts.l1 or 0)
        l1, l2 = self.column
        l2_squared = times**2 * l2
        if exchanged and times == 2 and self.exchange is not None:
            l2_squared = min(l2_squared, max(self.exchange, l2))
        # Only the norm that the grid was made for is a sharp bound; the other is implied by it.
        return Sensitivity(
            linf=times * self.largest,
            l0=max(1, self.rows),
            l1=times * l1,
            l2_squared=max(l2_squared, 1 if times else 0),
        )

    def measure(self, counts: SparseCellCounts) -> Integers:
        raise NotImplementedError

    def fit(self, workload: Workload, measured: Any) -> LeastSquaresFit:
        raise NotImplementedError

    def variances(self, workload: Workload) -> Floats:
        """Return the variance of each answer for noise of variance 1 in each measurement."""
        raise NotImplementedError

    def error(self, workload: Workload) -> float:
        """Return the sum of the weighted variances: known without writing out the questions."""
        raise NotImplementedError


class CellGrid(Grid):
    """Every cell by itself, however many there are."""

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
        """Store an integer matrix. With a `bound` on the norms of columns, that is what is claimed: it does
        not depend on the last bits of floats.

        Entries are at most 2**21 and rows at most 2**20, so that sums of squares stay within 64 bits.
        """
        self.matrix = matrix
        # In Python integers: the absolute value of the least 64-bit integer is negative in 64 bits.
        self.rows = len(matrix)
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
        # Entries and sums are integers below 2**53 here, so floats hold them exactly.
        if float(np.abs(floats).sum(axis=0).max(initial=0)) * self.largest < 2.0**51:
            diagonal = np.diag(X)
            self.exchange = int((diagonal[:, None] + diagonal[None, :] - 2 * X).max(initial=0))

    def measure(self, counts: SparseCellCounts) -> Integers:
        """Multiply in three parts of 21 bits, so that no sum of products leaves 64 bits: entries are at most
        2**21, cells at most 2**12."""
        x = counts.table(range(len(counts.domain))).ravel()
        exact = np.zeros(self.rows, dtype=object)
        for shift in (0, _LIMB, 2 * _LIMB):
            exact = exact + (self.matrix @ (x >> shift & ((1 << _LIMB) - 1))).astype(object) * (1 << shift)
        return np.asarray(exact, dtype=object)

    def cells(self, measured: Any) -> Floats:
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
    """Return the inverse, or the pseudo-inverse where X is singular."""
    try:
        lower = linalg.cholesky(X, lower=True)
        if np.diag(lower).min() > 1e-6 * np.diag(lower).max():
            return np.asarray(linalg.cho_solve((lower, True), np.eye(len(X))))
    except linalg.LinAlgError:
        pass
    return np.asarray(linalg.pinvh(X, rtol=1e-10))


class ProductGrid(Grid):
    """A Kronecker product of integer matrices, one for each attribute (or group of attributes)."""

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
    """Return a workload as weighted products over factors of these sizes; refused where it is none."""
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
