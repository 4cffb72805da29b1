"""Defines strategies: the questions that are measured with noise, so that the answers of a workload follow
from them by least squares.

A strategy is a matrix A like a workload, and any workload can be one. Its sensitivity is the largest norm of
a column (l1 for Laplace, l2 for Gaussian noise): one unit more or less in a cell moves the measurements A x
by that cell's column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

from ... import _require
from ..._errors import InvalidInput
from ..._registry import described
from . import optimal, triangular
from .workloads import Workload

Floats = NDArray[np.float64]
Norm = Literal["l1", "l2"]
NORMS = ("l1", "l2")

# The most cells of a strategy that is one dense matrix: with 4,096 the eigenvalues that an optimizer computes
# in each round take a minute.
MAX_CELLS = 4096


class Strategy(Workload):
    """Base of strategies that are written out as a matrix, which is computed once and cached."""

    __slots__ = ()

    def matrix(self) -> Floats:
        """Return the matrix A; a shared array that is not to be written to."""
        return _matrix(self)

    def build(self) -> Floats:
        """Compute the matrix A."""
        raise NotImplementedError

    @property
    def queries(self) -> int:
        return len(self.matrix())

    def times(self, x: Any) -> Floats:
        return self.matrix() @ self._vector(x, self.cells)

    def transposed(self, y: Any) -> Floats:
        return self.matrix().T @ self._vector(y, self.queries)

    def gram(self) -> Floats:
        return self.matrix().T @ self.matrix()

    def rows(self) -> Iterator[Floats]:
        yield self.matrix()


@lru_cache(maxsize=16)
def _matrix(strategy: Strategy) -> Floats:
    A = np.ascontiguousarray(strategy.build(), dtype=np.float64)
    A.setflags(write=False)
    return A


@described("matrix.Tree")
@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchical(Strategy):
    """Hierarchical counts (Hay et al. 2010): the sum of all n cells, the sums of `branching` equal parts, of
    the parts of these parts, ... down to single cells.

    `weights`: one per level from the top, all 1 unless given. Every cell is in one node of each level.
    """

    n: int
    branching: int = 2
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _require.integer(n=self.n, at_least=1)
        _require.integer(branching=self.branching, at_least=2)
        weights = tuple(_require.listed(weights=self.weights)) or (1.0,) * len(
            tree_levels(self.n, self.branching)
        )
        for weight in weights:
            _require.positive(weight=weight)
        if len(weights) != len(tree_levels(self.n, self.branching)):
            raise InvalidInput(
                f"a tree over {self.n} cells with {self.branching} branches has "
                f"{len(tree_levels(self.n, self.branching))} levels, got "
                f"{len(weights)} weights. Nothing was computed."
            )
        object.__setattr__(self, "weights", tuple(float(w) for w in weights))

    @property
    def domain(self) -> tuple[int, ...]:
        return (self.n,)

    def build(self) -> Floats:
        _require_cells(self.n)
        levels = tree_levels(self.n, self.branching)
        cells = np.arange(self.n)
        blocks = []
        for width, weight in zip(levels, self.weights, strict=True):
            nodes = cells // width
            blocks.append(weight * (nodes == np.arange(nodes[-1] + 1)[:, None]))
        return np.concatenate(blocks)


def tree_levels(n: int, branching: int) -> list[int]:
    """Return how many cells a node of each level spans, from the top, which spans all n, to the leaves; the
    last node of a level may have fewer.

    >>> tree_levels(8, 2), tree_levels(6, 3)
    ([8, 4, 2, 1], [9, 3, 1])
    """
    widths = [1]
    while widths[-1] < n:
        widths.append(widths[-1] * branching)
    return widths[::-1]


@described("matrix.Haar")
@dataclass(frozen=True, slots=True, kw_only=True)
class Haar(Strategy):
    """Haar wavelets (Privelet, Xiao, Wang & Gehrke 2010): the total, and for each node of a binary tree the
    sum of its left half minus the sum of its right half.

    Entries are 0, 1 and -1 at all levels. With this scaling the noise of Privelet is the same for all
    coefficients.
    """

    n: int

    def __post_init__(self) -> None:
        _require.integer(n=self.n, at_least=1)

    @property
    def domain(self) -> tuple[int, ...]:
        return (self.n,)

    def build(self) -> Floats:
        _require_cells(self.n)
        cells = np.arange(self.n)
        blocks = [np.ones((1, self.n))]
        for width in tree_levels(self.n, 2)[:-1]:
            nodes = cells // width
            side = np.where(cells % width < width // 2, 1.0, -1.0)
            blocks.append(side * (nodes == np.arange(nodes[-1] + 1)[:, None]))
        return np.concatenate(blocks)


@described("matrix.Fourier")
@dataclass(frozen=True, slots=True, kw_only=True)
class Fourier(Strategy):
    """Sines and cosines over the cells (Barak et al. 2007; eigen-design). The weight of a frequency is the
    fourth root of its energy, the mean of |W w|² over its waves w of length 1, with W the `workload`.

    Sine and cosine of a frequency have the same weight, so that all columns have the same length.
    """

    workload: Workload

    def __post_init__(self) -> None:
        _require_workload(self.workload)

    @property
    def domain(self) -> tuple[int, ...]:
        return self.workload.domain

    def build(self) -> Floats:
        n = self.cells
        _require_cells(n)
        angle = 2 * np.pi * np.outer(np.arange(n // 2 + 1), np.arange(n)) / n
        waves = np.concatenate([np.cos(angle), np.sin(angle)])
        frequency = np.tile(np.arange(n // 2 + 1), 2)
        lengths = np.linalg.norm(waves, axis=1)
        # The sine of frequency 0, and of n / 2, is zero everywhere.
        nonzero = lengths > 1e-6 * lengths.max()
        waves, frequency = waves[nonzero] / lengths[nonzero, None], frequency[nonzero]
        energies = np.clip(np.einsum("ij,ij->i", waves @ self.workload.gram(), waves), 0, None)
        mean_energies = np.bincount(frequency, energies) / np.bincount(frequency)
        weights = mean_energies[frequency] ** 0.25
        # Frequencies that the workload does not depend on, up to rounding, are not measured.
        measured = weights > 1e-6 * weights.max(initial=0)
        return np.asarray(weights[measured, None] * waves[measured])


@described("matrix.WeightedTree")
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedTree(Strategy):
    """A tree whose level weights are chosen greedily for the workload and the norm, one level after the
    other, as in GreedyH.

    (Li, Hay, Miklau & Wang 2014, PVLDB 7(5), choose each level's weight once, from the bottom; here all
    levels are gone through three times, from the top.)
    """

    workload: Workload
    norm: Norm = "l2"
    branching: int = 2

    def __post_init__(self) -> None:
        _require_workload(self.workload)
        _require.one_of(NORMS, norm=self.norm)
        _require.integer(branching=self.branching, at_least=2)

    @property
    def domain(self) -> tuple[int, ...]:
        return self.workload.domain

    def build(self) -> Floats:
        n = self.cells
        _require_cells(n)
        levels = [
            Hierarchical(n=n, branching=self.branching).matrix()[rows]
            for rows in _level_rows(tree_levels(n, self.branching), n)
        ]
        grams, G, power = (
            [level.T @ level for level in levels],
            self.workload.gram(),
            1 if self.norm == "l1" else 2,
        )

        def error(logs: Floats) -> float:
            """Return the error at sensitivity 1 from the logarithms of the level weights."""
            weights = np.exp(logs)
            X = sum(w**2 * gram for w, gram in zip(weights, grams, strict=True))
            return math.pow(float(np.sum(weights**power)), 2 / power) * optimal.least_squares_error(
                G, np.asarray(X)
            )

        logs = np.zeros(len(levels))
        # The numbers of rounds and of evaluations, and the range of a step, were chosen by hand; they are
        # part of what a stored description of the strategy means.
        for _ in range(3):
            for depth in range(len(levels)):

                def error_after(step: float, depth: int = depth, logs: Floats = logs) -> float:
                    trial_logs = logs.copy()
                    trial_logs[depth] += step
                    return error(trial_logs)

                logs[depth] += optimize.minimize_scalar(
                    error_after, bounds=(-2.0, 2.0), method="bounded", options={"maxiter": 12}
                ).x
        return np.concatenate([np.exp(w) * level for w, level in zip(logs, levels, strict=True)])


def _level_rows(levels: list[int], n: int) -> list[slice]:
    """Return which rows of the tree's matrix belong to each level; `levels` as `tree_levels` gives them."""
    ends = np.cumsum([-(-n // width) for width in levels]).tolist()
    return [slice(first, last) for first, last in zip([0, *ends], ends, strict=False)]


@described("matrix.Optimal")
@dataclass(frozen=True, slots=True, kw_only=True)
class Optimal(Strategy):
    """The strategy of least error under Gaussian noise, to a proved relative gap: see `optimal.gaussian`."""

    workload: Workload
    gap: float = 1e-4

    def __post_init__(self) -> None:
        _require_workload(self.workload)
        _require.positive(gap=self.gap)

    @property
    def domain(self) -> tuple[int, ...]:
        return self.workload.domain

    def solution(self) -> optimal.Optimum:
        return _optimum(self.workload, float(self.gap))

    def gram(self) -> Floats:
        return self.solution().X

    def build(self) -> Floats:
        """Compute the upper triangular factor of X = Aᵀ A."""
        return np.asarray(linalg.cholesky(self.solution().X))


@lru_cache(maxsize=16)
def _optimum(workload: Workload, gap: float) -> optimal.Optimum:
    _require_cells(workload.cells)
    return optimal.gaussian(workload.gram(), gap=gap)


@described("matrix.PIdentity")
@dataclass(frozen=True, slots=True, kw_only=True)
class PIdentity(Strategy):
    """Single cells and p further questions, found by descent: OPT_0 of HDMM, for Laplace noise (see
    `optimal.p_identity`). p is cells / 16 rounded down, at least 1, unless given; 0 stands for not given."""

    workload: Workload
    p: int = 0

    def __post_init__(self) -> None:
        _require_workload(self.workload)
        _require.integer(p=self.p, at_least=0)
        if not self.p:
            object.__setattr__(self, "p", max(1, self.workload.cells // 16))

    @property
    def domain(self) -> tuple[int, ...]:
        return self.workload.domain

    def build(self) -> Floats:
        _require_cells(self.cells)
        # Three starts where they are cheap. The best of them, so also this number, is part of what a stored
        # description of the strategy means.
        theta = optimal.p_identity(self.workload.gram(), self.p, restarts=3 if self.cells <= 128 else 1)
        A = np.concatenate([np.eye(self.cells), theta])
        return np.asarray(A / A.sum(axis=0))


@described("matrix.Lower")
@dataclass(frozen=True, slots=True, kw_only=True)
class LowerTriangular(Strategy):
    """A lower-triangular strategy over n steps, as streams and DP-FTRL use it, for a workload whose cells are
    the steps; see `triangular`."""

    strategy: triangular.Toeplitz | triangular.Dense
    n: int

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, triangular.Triangular):
            raise _require.fail(
                "strategy", type(self.strategy).__name__, "lower triangular, such as Toeplitz(...)"
            )
        _require.integer(n=self.n, at_least=1)

    @property
    def domain(self) -> tuple[int, ...]:
        return (self.n,)

    def build(self) -> Floats:
        _require_cells(self.n)
        return self.strategy.matrix(self.n)


def sensitivity(strategy: Workload, norm: Norm = "l2") -> float:
    """Return the generalized sensitivity of any matrix A: the largest l1 or l2 norm of a column, in floats.

    Noise is calibrated to that of the integer strategy (`integer.Grid.sensitivity`), not to this one.

    Guarantee: a unit that is counted once more, or once less, in one cell of x moves A x by at most this
               much, in that norm; a unit that moves x by s in l1 moves A x by at most s times this much. Up
               to the rounding of floats.
    Proof:     with e_j the j-th unit vector, A e_j is column j; a change of l1 length s is s times an average
               of vectors ±e_j, and norms are convex.

    >>> from discreet.mechanisms.matrix.workloads import explicit
    >>> sensitivity(explicit([[1, 0], [0, 1]]), "l1"), sensitivity(explicit([[1, 0], [1, 1]]), "l1")
    (1.0, 2.0)
    """
    _require.one_of(NORMS, norm=norm)
    factors = getattr(strategy, "factors", None)
    if factors is not None:
        return float(np.prod([sensitivity(factor, norm) for factor in factors]))
    if norm == "l1":
        return float(strategy.column_norms(1).max())
    return float(np.sqrt(strategy.column_norms(2).max()))


def _require_cells(n: int) -> None:
    """Refuse a domain too large for a strategy that is one matrix."""
    if n > MAX_CELLS:
        raise InvalidInput(
            f"strategies for {n:,} cells are not searched as one matrix (at most {MAX_CELLS:,}). "
            f"Nothing was computed. Write the workload as "
            f"a product over attributes, or as marginals."
        )


def _require_workload(workload: Any) -> None:
    if not isinstance(workload, Workload):
        raise _require.fail("workload", type(workload).__name__, "a workload, such as prefix(16)")
