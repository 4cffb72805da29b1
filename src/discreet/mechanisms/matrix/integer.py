"""Defines strategies on an integer grid: the measurements are exact integers, and their sensitivity is
computed from the integer matrix after rounding.

A strategy is scaled so that its columns have norm at most one, multiplied by a power of two, and rounded
towards zero. That makes no entry larger in size, so no column's norm exceeds that power of two, whatever
floating point did before; `DenseGrid` checks it in integers. (A strategy of small integers is kept as it is:
`on_grid`.) The measured vector is an integer matrix times integer counts. Answers come from it by least
squares, in floats: post-processing.

Defines integer strategies for marginals: they measure tables by sets of attributes, never the table of all
cells.

`Residuals` and `MeasuredMarginals` are measured by `TableGrid`. Interactions, residual strategies and their
matrices R (`Axis`) are explained in `strategies`. S is a set of attributes, and I the identity.

Turns a strategy, whose matrix has float entries, into the integer strategy (`Grid`) that is measured.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from ... import _require, inference
from ..._errors import InvalidInput, Unsupported
from ..._system import on_one_thread
from ..protocols import Integers, Sensitivity
from . import strategies
from .compound import Marginals, Product, Union, kron_times, row_squares
from .strategies import (
    MAX_CELLS,
    Axis,
    MeasuredMarginals,
    Norm,
    Residuals,
    Set,
    axis_of,
    importance,
    precision,
)
from .workloads import MAX_ENTRIES, Identity, Workload

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


class Grid(ABC):
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
            linf=times * self.largest, l0=max(1, self.rows), l1=times * column_l1, l2_squared=l2_squared
        )

    @abstractmethod
    def measure(self, counts: SparseCellCounts) -> Integers:
        """Return the integer strategy times the counts: exact, without noise."""

    @abstractmethod
    def fit(self, workload: Workload, measured: Any) -> LeastSquaresFit:
        """Return the answers of a workload by least squares, from noisy measurements."""

    @abstractmethod
    def variances(self, workload: Workload) -> Floats:
        """Return the variance of each answer for noise of variance 1 in each measurement."""

    @abstractmethod
    def error(self, workload: Workload) -> float:
        """Return the sum of the variances times squared weights, without writing out the questions."""


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
                f"{self.largest:,} is too large to be one matrix."
            )
        exact = (
            int(np.abs(matrix).sum(axis=0).max(initial=0)),
            int((matrix * matrix).sum(axis=0).max(initial=0)),
        )
        self.column = (bound[0] or exact[0], bound[1] or exact[1])
        if self.column[0] < exact[0] or self.column[1] < exact[1]:
            raise InvalidInput("the strategy on its grid is more sensitive than was planned for.")
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
        return strategies.least_squares_error(workload.gram(), self._gram)


@on_one_thread
def _inverse(X: Floats) -> Floats:
    """Return the inverse, or the pseudo-inverse where X is singular or nearly so.

    The thresholds are those of `strategies.least_squares_error`.
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
            f"the strategy is a product over factors of {sizes} cells, the workload is not. Write the "
            "workload as products of the same factors."
        )
    return [(1.0, workload)]


class TableGrid(Grid):
    """Tables by sets of attributes, each multiplied along every axis by that attribute's integer matrix, its
    "turn", and by an integer weight.

    With `axes`, the residual strategies of the attributes, interactions are measured; for an attribute of n
    values a turn of None then stands for n I - 11ᵀ, n times the centering. Without `axes` tables of counts
    are measured, and nothing is turned.
    """

    def __init__(
        self, marginals: Marginals, weights: dict[Set, float], axes: list[Axis] | None, norm: Norm
    ) -> None:
        """Round the `weights` of the measured sets to integers, relative to the largest; `norm` is not used,
        because both norms follow from the integers."""
        self.marginals, self.axes = marginals, axes
        self.turns = [
            None if axes is None or axes[a].exact else _residual(axes[a]) for a in range(len(marginals.sizes))
        ]
        largest = max(w / self._set_scale(s) for s, w in weights.items())
        self.weights = {
            s: max(1, math.floor(w / self._set_scale(s) / largest * (1 << BITS))) for s, w in weights.items()
        }
        if axes is None:
            # Smaller integers, with the same ratios, need smaller noise for the same answers.
            common = math.gcd(*self.weights.values())
            self.weights = {s: w // common for s, w in self.weights.items()}
        norms = [self._column(s) for s in self.weights]
        self.column = (sum(l1 for l1, _ in norms), sum(l2 for _, l2 in norms))
        self.rows = sum(math.prod(self._shape(s)) for s in self.weights)
        self.largest = max(w * math.prod(self._largest(a) for a in s) for s, w in self.weights.items())

    def _set_scale(self, s: Set) -> int:
        """Return the factor by which the integer matrix of S is larger than that of floats."""
        return 1 if self.axes is None else math.prod(self._scale(a) for a in s)

    def _scale(self, a: int) -> int:
        """Return the factor by which one attribute's integer matrix is larger than its R (`Axis`)."""
        n, turn = self.marginals.sizes[a], self.turns[a]
        return n if turn is None else n << BITS

    def _axis_column(self, a: int) -> tuple[int, int]:
        """Return the l1 norm and the squared l2 norm of the largest column of one attribute's matrix."""
        n, turn = self.marginals.sizes[a], self.turns[a]
        if self.axes is None:
            return 1, 1
        if turn is None:
            return 2 * (n - 1), n * (n - 1)
        columns = turn.astype(object).T
        return max(int(np.abs(c).sum()) for c in columns), max(int((c * c).sum()) for c in columns)

    def _column(self, s: Set) -> tuple[int, int]:
        """Return the largest l1 norm and squared l2 norm of a column of the weighted matrix of S."""
        parts = [self._axis_column(a) for a in s]
        return self.weights[s] * math.prod(p[0] for p in parts), self.weights[s] ** 2 * math.prod(
            p[1] for p in parts
        )

    def _largest(self, a: int) -> int:
        """Return the largest entry in size of one attribute's matrix."""
        n, turn = self.marginals.sizes[a], self.turns[a]
        if self.axes is None:
            return 1
        return n - 1 if turn is None else int(np.abs(turn).max())

    def _shape(self, s: Set) -> tuple[int, ...]:
        """Return the shape of the measured table of S."""
        turned = [(a, self.turns[a]) for a in s]
        return tuple(self.marginals.sizes[a] if turn is None else len(turn) for a, turn in turned)

    def measure(self, counts: SparseCellCounts) -> Integers:
        """Return the measurements of all tables, turned and weighted, one after the other in the order of
        `weights`.

        Where the integers of a table could leave 64 bits, its counts are clipped at `limit` if that is at
        least 2**32, which no real count reaches; else Python integers are used. Clipping each count does not
        increase the change that a unit makes.
        """
        parts = []
        for s, weight in self.weights.items():
            # No integer on the way to the measurements is larger than this times the largest count.
            growth = weight * math.prod(2 * self._axis_column(a)[0] * self.marginals.sizes[a] for a in s)
            limit = (1 << 62) // growth
            table = counts.table(s)
            table = np.minimum(table, limit) if limit >= 1 << 32 else table.astype(object)
            if self.axes is not None:
                for axis, a in enumerate(s):
                    table = _apply_along(table, axis, self.turns[a], self.marginals.sizes[a])
            parts.append((weight * table).ravel())
        wide = any(part.dtype == object for part in parts)
        return np.concatenate([part.astype(object) for part in parts] if wide else parts)

    def tables(self, measured: Any) -> list[inference.Marginal]:
        """Return the measured tables in the unit of counts, with their variances for noise of variance 1.
        Interactions are turned back by the pseudo-inverse, and centered."""
        y, out = np.asarray(measured, dtype=np.float64), []
        for s, weight in self.weights.items():
            shape = self._shape(s)
            values, y = y[: math.prod(shape)].reshape(shape) / weight, y[math.prod(shape) :]
            if self.axes is not None:
                for axis, a in enumerate(s):
                    values = _invert_along(values, axis, self.turns[a], self.marginals.sizes[a])
            variance = 1 / (weight**2 * self._set_scale(s) ** 2)
            out.append(
                inference.Marginal(
                    attributes=s, values=values, variance=variance, interaction=self.axes is not None
                )
            )
        if self.axes is not None:
            # Interactions that are always zero (of an attribute with one value), and those that no answer
            # depends on (their attribute is asked for its total only, or never for it), were not measured:
            # they are set to zero.
            for s in set(self.marginals.closure) - set(self.weights):
                zero = np.zeros(tuple(self.marginals.sizes[a] for a in s))
                out.append(inference.Marginal(attributes=s, values=zero, variance=0.0, interaction=True))
        return out

    def fit(self, workload: Workload, measured: Any) -> LeastSquaresFit:
        marginals = self._require_measured(workload)
        fitted = inference.consistent_marginals(self.tables(measured), marginals.sets)
        return LeastSquaresFit(
            np.concatenate(
                [marginals.answers_of(s, m.values) for s, m in zip(marginals.sets, fitted, strict=True)]
            ),
            None,
        )

    def variances(self, workload: Workload) -> Floats:
        """Return the variance of each answer for noise of variance 1: for a table, the sum over its
        interactions of their variance times the Kronecker product of one vector per attribute
        (`_vectors`)."""
        marginals = self._require_measured(workload)
        variance_of = {s: self._interaction_variance(s) for s in marginals.closure}
        vectors = [self._vectors(a) for a in range(len(marginals.sizes))]
        out = []
        for s in marginals.sets:
            total = np.zeros(marginals.questions_of(s))
            for bits in range(1 << len(s)):
                interaction = tuple(a for k, a in enumerate(s) if bits >> k & 1)
                part: Any = np.ones(1)
                for a in s:
                    part = np.kron(part, vectors[a][0 if a in interaction else 1])
                total += variance_of[interaction] * part
            out.append(total)
        return np.concatenate(out)

    def error(self, workload: Workload) -> float:
        marginals = self._require_measured(workload)
        axes = [self._as_axis(a) for a in range(len(marginals.sizes))]
        return sum(c * self._interaction_variance(s) for s, c in importance(marginals, axes).items() if c)

    def _as_axis(self, a: int) -> Axis:
        """Return what one attribute contributes to the error, with the integer matrix in place of R."""
        base = self.marginals.bases[a]
        axis = axis_of(base, self.turns[a] is None)
        turn = self.turns[a]
        if turn is None:
            return axis
        inside = float(np.einsum("ij,ij->", base.gram(), _axis_covariance(turn, self._scale(a))))
        return Axis(axis.R, inside, axis.outside, axis.cost, False)

    def _vectors(self, a: int) -> tuple[Floats, Floats]:
        """Return two vectors over one attribute's questions: their variances in interactions with the
        attribute, and in those without it, each for an interaction of variance 1."""
        base, n, turn = self.marginals.bases[a], self.marginals.sizes[a], self.turns[a]
        covariance = np.eye(n) - 1 / n if turn is None else _axis_covariance(turn, self._scale(a))
        inside = np.concatenate([np.einsum("ij,ij->i", block @ covariance, block) for block in base.rows()])
        return inside.clip(0), base.times(np.full(n, 1 / n)) ** 2

    def _interaction_variance(self, s: Set) -> float:
        """Return the variance of interaction S for noise of variance 1; 0 for one that was not measured,
        which is known to be zero or is in no answer."""
        if self.axes is not None:
            return 1 / (self.weights[s] ** 2 * self._set_scale(s) ** 2) if s in self.weights else 0.0
        return 1 / precision(self.marginals, s, self.weights)

    def _require_measured(self, workload: Workload) -> Marginals:
        """Return the workload as marginals; refuse those that were not measured."""
        if not isinstance(workload, Marginals) or workload.sizes != self.marginals.sizes:
            raise Unsupported("tables were measured, which can answer marginals of the same attributes only.")
        if workload.bases != self.marginals.bases or not set(workload.sets) <= set(self.marginals.closure):
            raise Unsupported(
                "the strategy does not measure all of these marginals. Choose one strategy for all of them "
                "together."
            )
        return workload


def _residual(axis: Axis) -> Integers:
    """Return the residual strategy R as integers: scaled by 2**BITS and rounded towards zero, then multiplied
    by n I - 11ᵀ, so that its rows add up to zero exactly."""
    scaled = np.trunc(axis.R * (1 << BITS)).astype(np.int64)
    n = scaled.shape[1]
    return np.asarray(n * scaled - scaled.sum(axis=1, keepdims=True))


def _apply_along(table: Integers, axis: int, turn: Integers | None, n: int) -> Integers:
    """Multiply a table along one axis of n values by a turn, or by n I - 11ᵀ where it is None."""
    if turn is None:
        return np.asarray(n * table - table.sum(axis=axis, keepdims=True))
    return np.moveaxis(np.tensordot(turn, table, axes=(1, axis)), 0, axis)


def _invert_along(values: Floats, axis: int, turn: Integers | None, n: int) -> Floats:
    """Multiply values along one axis by the pseudo-inverse of what `_apply_along` multiplied by."""
    if turn is None:
        return np.asarray((values - values.mean(axis=axis, keepdims=True)) / n)
    return np.moveaxis(
        np.tensordot(on_one_thread(np.linalg.pinv)(turn.astype(float)), values, axes=(1, axis)), 0, axis
    )


@on_one_thread
def _axis_covariance(turn: Integers, scale: int) -> Floats:
    """Return (Rᵀ R)⁺ for R = turn / scale: the covariance of the estimate along one axis."""
    R = turn.astype(float) / scale
    return np.asarray(linalg.pinvh(R.T @ R, rtol=1e-10))


@lru_cache(maxsize=32)
def on_grid(strategy: Workload, norm: Norm) -> Grid:
    """Return the integer strategy that is measured for a strategy, for noise whose sensitivity is in `norm`.

    Guarantee: no column has a larger norm than `Grid.column` says.
    Proof:     every grid computes the norms, or checks a claimed bound, from its integer matrix in integers.
    """
    if isinstance(strategy, Residuals | MeasuredMarginals):
        _require_memory(max(strategy.queries, strategy.marginals.queries))
    if isinstance(strategy, Residuals):
        weights = {s: 1 / math.sqrt(v) for s, v in strategy.variances().items()}
        return TableGrid(strategy.marginals, weights, strategy.axes(), norm)
    if isinstance(strategy, MeasuredMarginals):
        return TableGrid(strategy.marginals, strategy.weights(), None, norm)
    if isinstance(strategy, Identity):
        _require_memory(strategy.n)
        return CellGrid(strategy.n)
    if isinstance(strategy, Product):
        _require_memory(max(strategy.cells, strategy.queries))
        if all(isinstance(f, Identity) for f in strategy.factors):
            return CellGrid(strategy.cells)
        # Fewer bits per factor, so that the largest entry of the product, and the noise, stay small; 14 bits
        # still lose less than one part in ten thousand per factor.
        bits = max(14, BITS // len(strategy.factors))
        return ProductGrid(tuple(_dense(f, norm, bits) for f in strategy.factors), strategy.domain)
    return _dense(strategy, norm, BITS)


def _require_memory(entries: int) -> None:
    """Refuse, before anything is charged, a strategy whose measurements would not fit into memory."""
    _require.that(
        entries <= MAX_ENTRIES,
        f"this strategy has {entries:,} cells or measurements, more than {MAX_ENTRIES:,}. Ask for "
        "marginals of few attributes.",
    )


def _dense(strategy: Workload, norm: Norm, bits: int) -> DenseGrid:
    """Return a strategy as an integer matrix: unchanged if its entries are small integers; else scaled to
    columns of norm 2**bits at most, and rounded towards zero so that none becomes longer."""
    A = strategy.dense()
    rounded = np.rint(A)
    # "Small" is below 2**16, chosen by hand: `DenseGrid` takes entries up to 2**21.
    if np.array_equal(rounded, A) and np.abs(A).max(initial=0) < 1 << 16:
        return DenseGrid(rounded.astype(np.int64))
    largest = float(np.abs(A).max())
    if not 2.0**-300 < largest < 2.0**300:
        # The squares of the entries, or 1 / length, would overflow or underflow. Scaling by a power of two is
        # exact, and a strategy's scale does not matter.
        A = np.ldexp(A, -math.frexp(largest)[1])
    power = 1 if norm == "l1" else 2
    length = float((np.abs(A) ** power).sum(axis=0).max()) ** (1 / power)
    # Less by 2**-40, which covers the rounding of `length`. `DenseGrid` checks the result against the bound.
    cut = np.trunc(A * ((1 - 2.0**-40) / length) * (1 << bits)).astype(np.int64)
    return DenseGrid(cut, bound=(1 << bits, 0) if norm == "l1" else (0, 1 << 2 * bits))
