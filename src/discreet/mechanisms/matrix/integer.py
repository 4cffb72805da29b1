"""Strategies on an integer grid: what is measured are exact integers, with a sensitivity that is proved after rounding.

A strategy is scaled so that its columns have norm at most one, multiplied by a power of two, and cut off towards zero. Cutting off makes no
entry larger, so no column's norm grows beyond that power, whatever floating point did before; that is checked in integers when the grid is built. The
measured vector is an integer matrix times integer counts. Answers come from it by least squares, in floats: post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from ... import inference
from ..._errors import InvalidInput, Unsupported
from ..protocols import Integers, Sensitivity
from . import optimal
from .marginal_strategies import Axis, MeasuredMarginals, Residuals, Set, axis_of, importance
from .strategies import Norm
from .workloads import MOST_ENTRIES, Identity, Marginals, Product, Union, Workload, kron_times, row_squares

Floats = NDArray[np.float64]

# One part in a million: the loss of accuracy by cutting off is of that order.
BITS = 20
_LIMB = 21
# Entries of a matrix that `inference.measured` solves by orthogonal factors within seconds.
DIRECT = 2_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Exact counts of cells, sparse: for each of some cells its position along every attribute, and the count."""

    domain: tuple[int, ...]
    places: tuple[Integers, ...]
    counts: Integers

    def table(self, attributes: Sequence[int]) -> Integers:
        """The counts by some attributes, exact."""
        shape = tuple(self.domain[a] for a in attributes)
        out = np.zeros(math.prod(shape), np.int64)
        at = np.zeros(len(self.counts), np.int64)
        for a, size in zip(attributes, shape, strict=True):
            at = at * size + self.places[a]
        np.add.at(out, at, self.counts)
        return out.reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Answers by least squares, and the variance of each for unit noise."""

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

    def moved(self, counts: Sensitivity, norm: Norm, *, exchanged: bool = False) -> Sensitivity:
        """What one unit moves, if it moves the counts by so much.

        Guarantee: a change of l1 length s moves the measurements by at most s times the largest column norm.
        Proof:     norms are convex, see `strategies.sensitivity`. With `exchanged` the change is one count in one cell against one in another
                   (or in none): the distance of two columns.
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

    def measure(self, counts: Counts) -> Integers:
        raise NotImplementedError

    def fit(self, workload: Workload, measured: Any) -> Fit:
        raise NotImplementedError

    def variances(self, workload: Workload) -> Floats:
        """The variance of each answer for noise of variance 1 in each measurement."""
        raise NotImplementedError

    def error(self, workload: Workload) -> float:
        """The sum of the weighted variances: known without writing out the questions."""
        raise NotImplementedError


class CellGrid(Grid):
    """Every cell by itself, however many there are."""

    def __init__(self, cells: int) -> None:
        self.rows, self.largest, self.column, self.exchange = cells, 1, (1, 1), 2

    def measure(self, counts: Counts) -> Integers:
        return counts.table(range(len(counts.domain))).ravel()

    def cells(self, measured: Any) -> Floats:
        return np.asarray(measured, dtype=np.float64)

    def fit(self, workload: Workload, measured: Any) -> Fit:
        cells = self.cells(measured)
        return Fit(workload.times(cells), cells)

    def variances(self, workload: Workload) -> Floats:
        return row_squares(workload)

    def error(self, workload: Workload) -> float:
        return workload.frobenius


class DenseGrid(Grid):
    """A matrix of integers over all cells."""

    def __init__(self, matrix: Integers, bound: tuple[int, int] = (0, 0)) -> None:
        """With a `bound` on the norms of columns, that is what is claimed: it does not depend on the last bits of floats.

        Entries are below 2**21 and rows below 2**20, so that sums of squares stay within 64 bits.
        """
        self.matrix = matrix
        self.rows, self.largest = len(matrix), int(np.abs(matrix).max(initial=0))
        if self.largest > 1 << 21 or self.rows > 1 << 20:
            raise InvalidInput(
                f"a strategy of {self.rows:,} rows with entries up to {self.largest:,} is too large. Nothing was read."
            )
        exact = (int(np.abs(matrix).sum(axis=0).max(initial=0)), int((matrix * matrix).sum(axis=0).max(initial=0)))
        self.column = (bound[0] or exact[0], bound[1] or exact[1])
        if self.column[0] < exact[0] or self.column[1] < exact[1]:
            raise InvalidInput("the strategy on its grid is more sensitive than was planned for. Nothing was read.")
        floats = matrix.astype(np.float64)
        X = floats.T @ floats
        self._gram, self._inverse = X, _inverse(X)
        # Entries and sums are integers below 2**53 here, so floats hold them exactly.
        if float(np.abs(floats).sum(axis=0).max(initial=0)) * self.largest < 2.0**51:
            diagonal = np.diag(X)
            self.exchange = int((diagonal[:, None] + diagonal[None, :] - 2 * X).max(initial=0))

    def measure(self, counts: Counts) -> Integers:
        """In three parts of 21 bits, so that no product leaves 64 bits: entries are below 2**22, cells at most 2**12."""
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

    def fit(self, workload: Workload, measured: Any) -> Fit:
        cells = self.cells(measured)
        return Fit(workload.times(cells), cells)

    def variances(self, workload: Workload) -> Floats:
        return np.concatenate([np.einsum("ij,ij->i", block @ self._inverse, block) for block in workload.rows()]).clip(
            0
        )

    def error(self, workload: Workload) -> float:
        """Infinite where the strategy does not determine the answers."""
        return optimal.trace_ratio(workload.gram(), self._gram)


def _inverse(X: Floats) -> Floats:
    """The inverse, or the pseudo-inverse where X is singular."""
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

    def measure(self, counts: Counts) -> Integers:
        table = counts.table(range(len(counts.domain))).ravel().astype(object)
        sizes = [f.matrix.shape[1] for f in self.factors]
        for axis, f in enumerate(self.factors):
            shape = (math.prod(g.rows for g in self.factors[:axis]), sizes[axis], math.prod(sizes[axis + 1 :]))
            cube = table.reshape(shape)
            table = np.einsum("ab,ibj->iaj", f.matrix.astype(object), cube, optimize=False).ravel()
        return np.asarray(table, dtype=object)

    def cells(self, measured: Any) -> Floats:
        maps: list[Callable[[Floats], Floats]] = [f.cells for f in self.factors]
        return kron_times(maps, [f.rows for f in self.factors], np.asarray(measured, dtype=np.float64))

    def fit(self, workload: Workload, measured: Any) -> Fit:
        cells = self.cells(measured)
        return Fit(workload.times(cells), cells)

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
    """A workload as weighted products over factors of these sizes; refused where it is none."""
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
            f"the strategy is a product over factors of {sizes} cells, the workload is not. Nothing was computed. Write the workload as "
            f"products of the same factors."
        )
    return [(1.0, workload)]


class TableGrid(Grid):
    """Tables by sets of attributes, each turned by an integer matrix along every axis and multiplied by an integer weight."""

    def __init__(self, marginals: Marginals, weights: dict[Set, float], axes: list[Axis] | None, norm: Norm) -> None:
        self.marginals, self.axes = marginals, axes
        self.turns = [
            None if axes is None or axes[a].exact else _residual(axes[a]) for a in range(len(marginals.sizes))
        ]
        top = max(w / self._size(s) for s, w in weights.items())
        self.weights = {s: max(1, math.floor(w / self._size(s) / top * (1 << BITS))) for s, w in weights.items()}
        if axes is None:
            common = math.gcd(*self.weights.values())
            self.weights = {s: w // common for s, w in self.weights.items()}
        norms = [self._column(s) for s in self.weights]
        self.column = (sum(l1 for l1, _ in norms), sum(l2 for _, l2 in norms))
        self.rows = sum(math.prod(self._shape(s)) for s in self.weights)
        self.largest = max(w * math.prod(self._largest(a) for a in s) for s, w in self.weights.items())

    def _size(self, s: Set) -> int:
        """What the integer matrices of S are larger by than their float ones."""
        return 1 if self.axes is None else math.prod(self._scale(a) for a in s)

    def _scale(self, a: int) -> int:
        n, turn = self.marginals.sizes[a], self.turns[a]
        return n if turn is None else n << BITS

    def _axis_column(self, a: int) -> tuple[int, int]:
        n, turn = self.marginals.sizes[a], self.turns[a]
        if self.axes is None:
            return 1, 1
        if turn is None:
            return 2 * (n - 1), n * (n - 1)
        columns = turn.astype(object).T
        return max(int(np.abs(c).sum()) for c in columns), max(int((c * c).sum()) for c in columns)

    def _column(self, s: Set) -> tuple[int, int]:
        parts = [self._axis_column(a) for a in s]
        return self.weights[s] * math.prod(p[0] for p in parts), self.weights[s] ** 2 * math.prod(p[1] for p in parts)

    def _largest(self, a: int) -> int:
        n, turn = self.marginals.sizes[a], self.turns[a]
        if self.axes is None:
            return 1
        return n - 1 if turn is None else int(np.abs(turn).max())

    def _shape(self, s: Set) -> tuple[int, ...]:
        turned = [(a, self.turns[a]) for a in s]
        return tuple(self.marginals.sizes[a] if turn is None else len(turn) for a, turn in turned)

    def measure(self, counts: Counts) -> Integers:
        """Each table, turned and weighted. Counts are cut off where 64 bits would end: that moves no table by more than its own change."""
        parts = []
        for s, weight in self.weights.items():
            growth = weight * math.prod(2 * self._axis_column(a)[0] * self.marginals.sizes[a] for a in s)
            limit = (1 << 62) // growth
            table = counts.table(s)
            table = np.minimum(table, limit) if limit >= 1 << 32 else table.astype(object)
            if self.axes is not None:
                for axis, a in enumerate(s):
                    table = _turned(table, axis, self.turns[a], self.marginals.sizes[a])
            parts.append((weight * table).ravel())
        wide = any(part.dtype == object for part in parts)
        return np.concatenate([part.astype(object) for part in parts] if wide else parts)

    def tables(self, measured: Any) -> list[inference.Marginal]:
        """The measured tables in counts, with their variances for unit noise; interactions are turned back and centered."""
        y, out = np.asarray(measured, dtype=np.float64), []
        for s, weight in self.weights.items():
            shape = self._shape(s)
            values, y = y[: math.prod(shape)].reshape(shape) / weight, y[math.prod(shape) :]
            if self.axes is not None:
                for axis, a in enumerate(s):
                    values = _returned(values, axis, self.turns[a], self.marginals.sizes[a])
            variance = 1 / (weight**2 * self._size(s) ** 2)
            out.append(
                inference.Marginal(attributes=s, values=values, variance=variance, interaction=self.axes is not None)
            )
        if self.axes is not None:
            # What cannot vary (an attribute of one value, or of which only the total is asked) was not measured: it is zero.
            for s in set(self.marginals.closure) - set(self.weights):
                zero = np.zeros(tuple(self.marginals.sizes[a] for a in s))
                out.append(inference.Marginal(attributes=s, values=zero, variance=0.0, interaction=True))
        return out

    def fit(self, workload: Workload, measured: Any) -> Fit:
        marginals = self._same(workload)
        fitted = inference.consistent_marginals(self.tables(measured), marginals.sets)
        return Fit(
            np.concatenate([marginals.answers_of(s, m.values) for s, m in zip(marginals.sets, fitted, strict=True)]),
            None,
        )

    def variances(self, workload: Workload) -> Floats:
        """For each table the sum over its interactions of products of one vector for each attribute."""
        marginals = self._same(workload)
        spread = {s: self._spread(s) for s in marginals.closure}
        vectors = [self._vectors(a) for a in range(len(marginals.sizes))]
        out = []
        for s in marginals.sets:
            total = np.zeros(marginals.asked(s))
            for bits in range(1 << len(s)):
                inside = tuple(a for k, a in enumerate(s) if bits >> k & 1)
                part: Any = np.ones(1)
                for a in s:
                    part = np.kron(part, vectors[a][0 if a in inside else 1])
                total += spread[inside] * part
            out.append(total)
        return np.concatenate(out)

    def error(self, workload: Workload) -> float:
        marginals = self._same(workload)
        axes = [self._as_axis(a) for a in range(len(marginals.sizes))]
        return sum(c * self._spread(s) for s, c in importance(marginals, axes).items() if c)

    def _as_axis(self, a: int) -> Axis:
        base = self.marginals.bases[a]
        axis = axis_of(base, self.turns[a] is None)
        turn = self.turns[a]
        if turn is None:
            return axis
        inside = float(np.einsum("ij,ij->", base.gram(), _axis_covariance(turn, self._scale(a))))
        return Axis(axis.R, inside, axis.outside, axis.cost, False)

    def _vectors(self, a: int) -> tuple[Floats, Floats]:
        """The variances of one attribute's questions: of its centered part, and of an average spread over its values."""
        base, n, turn = self.marginals.bases[a], self.marginals.sizes[a], self.turns[a]
        covariance = np.eye(n) - 1 / n if turn is None else _axis_covariance(turn, self._scale(a))
        inside = np.concatenate([np.einsum("ij,ij->i", block @ covariance, block) for block in base.rows()])
        return inside.clip(0), base.times(np.full(n, 1 / n)) ** 2

    def _spread(self, s: Set) -> float:
        """The variance of interaction S for unit noise; an interaction that was not measured is zero by itself."""
        if self.axes is not None:
            return 1 / (self.weights[s] ** 2 * self._size(s) ** 2) if s in self.weights else 0.0
        size = self.marginals.size_of(s)
        shares = [w**2 * size / self.marginals.size_of(t) for t, w in self.weights.items() if set(s) <= set(t)]
        return 1 / sum(shares)

    def _same(self, workload: Workload) -> Marginals:
        if not isinstance(workload, Marginals) or workload.sizes != self.marginals.sizes:
            raise Unsupported("tables were measured, and these answer marginals of the same attributes only.")
        if workload.bases != self.marginals.bases or not set(workload.sets) <= set(self.marginals.closure):
            raise Unsupported(
                "these marginals were not planned for. Nothing was computed. Plan for all of them together."
            )
        return workload


def _residual(axis: Axis) -> Integers:
    """The integer residual strategy: cut off, then centered exactly by n I - 11ᵀ, so that its rows add up to zero."""
    scaled = np.trunc(axis.R * (1 << BITS)).astype(np.int64)
    n = scaled.shape[1]
    return np.asarray(n * scaled - scaled.sum(axis=1, keepdims=True))


def _turned(table: Integers, axis: int, turn: Integers | None, n: int) -> Integers:
    if turn is None:
        return np.asarray(n * table - table.sum(axis=axis, keepdims=True))
    return np.moveaxis(np.tensordot(turn, table, axes=(1, axis)), 0, axis)


def _returned(values: Floats, axis: int, turn: Integers | None, n: int) -> Floats:
    if turn is None:
        return np.asarray((values - values.mean(axis=axis, keepdims=True)) / n)
    return np.moveaxis(np.tensordot(np.linalg.pinv(turn.astype(float)), values, axes=(1, axis)), 0, axis)


def _axis_covariance(turn: Integers, scale: int) -> Floats:
    R = turn.astype(float) / scale
    return np.asarray(linalg.pinvh(R.T @ R, rtol=1e-10))


@lru_cache(maxsize=32)
def on_grid(strategy: Workload, norm: Norm) -> Grid:
    """The integer strategy that is measured for a strategy of floats.

    Guarantee: no column has a larger norm than `column` says.
    Proof:     it is computed from the integers themselves, in Python integers.
    """
    if isinstance(strategy, Residuals | MeasuredMarginals):
        _require_room(max(strategy.queries, strategy.marginals.queries))
    if isinstance(strategy, Residuals):
        weights = {s: 1 / math.sqrt(v) for s, v in strategy.variances().items()}
        return TableGrid(strategy.marginals, weights, strategy.axes(), norm)
    if isinstance(strategy, MeasuredMarginals):
        return TableGrid(strategy.marginals, strategy.weights(), None, norm)
    if isinstance(strategy, Identity):
        _require_room(strategy.n)
        return CellGrid(strategy.n)
    if isinstance(strategy, Product):
        _require_room(max(strategy.cells, strategy.queries))
        if all(isinstance(f, Identity) for f in strategy.factors):
            return CellGrid(strategy.cells)
        bits = max(14, BITS // len(strategy.factors))
        return ProductGrid(tuple(_dense(f, norm, bits) for f in strategy.factors), strategy.domain)
    return _dense(strategy, norm, BITS)


def _require_room(entries: int) -> None:
    """Refuse before anything is charged what would not fit into memory."""
    if entries > MOST_ENTRIES:
        raise InvalidInput(
            f"this strategy has {entries:,} cells or measurements, more than {MOST_ENTRIES:,}. Nothing was read. Ask for marginals of few "
            f"attributes."
        )


def _dense(strategy: Workload, norm: Norm, bits: int) -> DenseGrid:
    A = strategy.dense()
    whole = np.rint(A)
    if np.array_equal(whole, A) and np.abs(A).max(initial=0) < 1 << 16:
        return DenseGrid(whole.astype(np.int64))
    power = 1 if norm == "l1" else 2
    length = float((np.abs(A) ** power).sum(axis=0).max()) ** (1 / power)
    # A little less than the grid, for the rounding of `length`.
    cut = np.trunc(A * ((1 - 2.0**-40) / length) * (1 << bits)).astype(np.int64)
    return DenseGrid(cut, bound=(1 << bits, 0) if norm == "l1" else (0, 1 << 2 * bits))
