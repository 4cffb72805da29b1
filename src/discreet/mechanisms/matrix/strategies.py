"""Defines strategies: the questions that are measured with noise, so that the answers of a workload follow
from them by least squares.

A strategy is a matrix A like a workload, and any workload can be one. Its sensitivity is the largest norm of
a column (l1 for Laplace, l2 for Gaussian noise): one unit more or less in a cell moves the measurements A x
by that cell's column.

Optimizes strategies for matrix mechanisms: fixed-point iteration for Gaussian noise, p-identity matrices
for Laplace noise. Only the error depends on the result: privacy rests on the sensitivity, which callers
compute. A stored strategy is its workload and its settings, and is built here again: what these functions
return for given arguments must not change.

Both need only the Gram matrix G = Wᵀ W of a workload W. A strategy is a matrix A whose columns have norm at
most 1, in l2 for Gaussian and in l1 for Laplace noise. With X = Aᵀ A, its error is trace(G X⁻¹), in units of
the noise variance.

Computes strategies for marginals, in closed form or by a small convex program: no matrix over all cells is
needed.

A table of counts splits into orthogonal interactions, one for each subset S of its attributes: along the
attributes of S values are centered (their mean is subtracted), along the others averaged. `Residuals`
(ResidualPlanner: Xiao, He, Zhang & Kifer 2023, arXiv:2305.08175) measures each interaction by itself under
Gaussian noise, with the best variances in closed form. `MeasuredMarginals` (OPT_M of HDMM) measures whole
tables with weights, for Laplace noise, where measuring interactions would need more noise.

Computes optimal lower-triangular strategies for prefix sums of few steps: those with the smallest maximum
error, or with the smallest mean squared error.

A is the matrix of prefix sums, C the strategy and B = A C⁻¹. The smallest maximum error of any factorization
A = B C is the norm gamma_2(A): the smallest product of the length of B's longest row and the length of C's
longest column.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize, sparse

from ... import _require
from ..._registry import described
from ..._require import POSITIVE, at_least, at_most, instance_of
from ..._system import on_one_thread
from . import triangular
from .compound import Marginals, Product, Weights, one_for_each
from .triangular import Dense
from .workloads import WORKLOAD, Identity, OneAttribute, Workload, prefix

Floats = NDArray[np.float64]

# This share of G's largest eigenvalue is added to all its eigenvalues, so that X stays regular where G is
# not.
FLOOR = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """Holds a feasible X, its error, and a proved lower bound on the error of every feasible X."""

    X: Floats
    error: float
    bound: float


@on_one_thread
def gaussian(gram: Floats, *, gap: float = 1e-4, rounds: int = 200) -> Optimum:
    """Minimize trace(G X⁻¹) over positive definite X with diagonal at most 1, to a relative `gap` that is
    proved. `error` and `bound` are those of G with `FLOOR` added.

    Guarantee: `bound <= optimum <= error`, and `error <= (1 + gap) bound` unless `rounds` ran out.
    Proof:     v > 0 are the Lagrange multipliers of the diagonal, D = diag(v). X D X = G has the solution
               X = D^(-1/2) (D^(1/2) G D^(1/2))^(1/2) D^(-1/2), the minimizer of the Lagrangian. Its value,
               for the best multiple of v, is trace((D^(1/2) G D^(1/2))^(1/2))² / sum(v): a lower bound for
               every v (weak duality). X scaled to a unit diagonal is feasible: an upper bound. v <- v diag(X)
               is the fixed-point iteration of Denisov, McMahan, Rush, Smith & Thakurta 2022
               (arXiv:2202.08312), with the optimum as its fixed point. Both bounds hold up to the rounding of
               eigenvalues.
    """
    n = len(gram)
    G = gram + FLOOR * np.linalg.norm(gram, 2) * np.eye(n)
    values, vectors = linalg.eigh(G, driver="evd")
    v = np.einsum("ij,j,ij->i", vectors, np.sqrt(np.clip(values, 0, None)), vectors)
    best, bound, X = np.inf, 0.0, np.eye(n)
    for iteration in range(rounds):
        root = np.sqrt(v)
        values, vectors = linalg.eigh(root[:, None] * G * root, driver="evd", check_finite=False)
        singular = np.sqrt(np.clip(values, np.finfo(float).tiny, None))
        # v diag(X), which is the diagonal of (D^(1/2) G D^(1/2))^(1/2)
        diagonal = np.einsum("ij,j,ij->i", vectors, singular, vectors, optimize=True)
        previous_bound, bound = bound, max(bound, float(singular.sum() ** 2 / v.sum()))
        # The error of X costs as much again, so it is computed when the lower bound has nearly converged, and
        # in every tenth round.
        if bound - previous_bound <= gap * bound or iteration % 10 == 9:
            # The candidate X, scaled to a diagonal of 1, is factor factorᵀ, and its inverse is
            # scaled diag(1 / singular) scaledᵀ.
            scaled = vectors * np.sqrt(diagonal)[:, None]
            error = float((np.einsum("ij,ij->j", scaled, G @ scaled) / singular).sum())
            if error < best:
                best = error
                factor = vectors * np.sqrt(singular) / np.sqrt(diagonal)[:, None]
                X = factor @ factor.T
            if best <= (1 + gap) * bound:
                break
        v = diagonal
    return Optimum(X=X, error=best, bound=bound)


@on_one_thread
def p_identity(gram: Floats, p: int, *, restarts: int = 1, rounds: int = 500) -> Floats:
    """Return a p by n matrix Θ >= 0, n the number of cells, for which the strategy that stacks the identity
    over Θ, columns scaled to l1 norm 1, has a small error: OPT_0 of HDMM.

    L-BFGS-B with the analytic gradient (McKenna, Miklau, Hay & Machanavajjhala 2018, PVLDB 11(10), OPT_0)
    finds a local minimum, the best of `restarts`; `rounds` limits the iterations of each. The starts are
    fixed, so that the same workload gives the same strategy.
    """
    n = len(gram)
    scale = float(np.trace(gram)) or 1.0
    best, strategy = np.inf, np.zeros((p, n))
    for seed in range(restarts):
        start = np.random.default_rng(seed).uniform(0.0, 1.0, (p, n)) ** 2
        solved = optimize.minimize(
            partial(_p_identity_error, gram=gram / scale, p=p),
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * start.size,
            options={"maxiter": rounds, "maxfun": 2 * rounds},
        )
        if solved.fun < best:
            best, strategy = float(solved.fun), np.asarray(solved.x).reshape(p, n)
    return strategy


def _p_identity_error(flat: Floats, *, gram: Floats, p: int) -> tuple[float, Floats]:
    """Return the error of `p_identity` at Θ = `flat`, trace(S G S M), and its gradient in Θ.

    S = diag(1 + column sums of Θ) is `scale`, S G S is `H`, and M = (I + Θᵀ Θ)⁻¹ = I - Θᵀ K Θ with
    K = (I + Θ Θᵀ)⁻¹. The gradient has two parts: -2 Θ M H M from M, and from S the row 2 diag(G S M), the
    same for every row of Θ.
    """
    n = len(gram)
    theta = flat.reshape(p, n)
    scale = 1 + theta.sum(axis=0)
    H = gram * np.outer(scale, scale)
    k_theta = linalg.solve(np.eye(p) + theta @ theta.T, theta, assume_a="pos")
    k_theta_h = k_theta @ H
    error = float(np.trace(H) - np.einsum("ij,ij->", k_theta_h, theta))
    # Θ M = K Θ, so that Θ M H M = (K Θ H) - (K Θ H Θᵀ) K Θ.
    theta_mhm = k_theta_h - (k_theta_h @ theta.T) @ k_theta
    diagonal_gsm = (np.diag(H) - np.einsum("ij,ij->j", k_theta_h, theta)) / scale
    gradient = -2 * theta_mhm + 2 * diagonal_gsm
    return error, gradient.ravel()


@on_one_thread
def svd_bound(gram: Floats) -> float:
    """Return a lower bound on the error of any strategy with columns of l2 norm (so also of l1 norm) at most
    1: (sum of singular values of W)² / cells.

    Proof: Li & Miklau 2013, ICDT; it is `gaussian`'s dual at equal v.
    """
    values = linalg.eigvalsh(gram)
    # Eigenvalues that are rounding errors of zero count as zero: their roots would make the bound too large.
    values = np.where(values > 1e-13 * max(values[-1], 0.0) * len(values), values, 0.0)
    return float(np.sqrt(values).sum() ** 2 / len(gram))


@on_one_thread
def least_squares_error(gram: Floats, X: Floats) -> float:
    """Return trace(G X⁺), the sum of the variances of least squares for noise of variance 1; infinite where
    the strategy (X = Aᵀ A) does not determine the answers of the workload."""
    try:
        lower = linalg.cholesky(X, lower=True)
        diagonal = np.diag(lower)
        # A condition number of X below about 1e12: the triangular solve keeps a few digits.
        if diagonal.min() > 1e-6 * diagonal.max():
            return float(np.trace(linalg.cho_solve((lower, True), gram)))
    except linalg.LinAlgError:
        pass
    values, vectors = linalg.eigh(X)
    # Smaller eigenvalues are rounding errors of zero: directions that the strategy does not measure.
    measured = values > 1e-10 * max(values.max(), 1e-300)
    # |W v|² for each eigenvector v
    energies = np.einsum("ij,ij->j", vectors, gram @ vectors)
    if energies[~measured].sum() > 1e-8 * max(np.trace(gram), 1e-300):
        return float("inf")
    return float((energies[measured] / values[measured]).sum())


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

    @abstractmethod
    def build(self) -> Floats:
        """Compute the matrix A."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForWorkload(Strategy):
    """A strategy that is computed from a workload, over its cells."""

    workload: Annotated[Workload, WORKLOAD]

    @property
    def domain(self) -> tuple[int, ...]:
        return self.workload.domain


@lru_cache(maxsize=16)
def _matrix(strategy: Strategy) -> Floats:
    _require_cells(strategy.cells)
    A = np.ascontiguousarray(strategy.build(), dtype=np.float64)
    A.setflags(write=False)
    return A


@described("matrix.Tree")
class Hierarchical(OneAttribute, Strategy):
    """Hierarchical counts (Hay et al. 2010): the sum of all n cells, the sums of `branching` equal parts, of
    the parts of these parts, ... down to single cells.

    `weights`: one per level from the top, all 1 unless given. Every cell is in one node of each level.
    """

    branching: Annotated[int, at_least(2)] = 2
    weights: Weights = ()

    def __post_init__(self) -> None:
        levels = len(tree_levels(self.n, self.branching))
        object.__setattr__(self, "weights", one_for_each(self.weights, levels, "levels of the tree"))

    def build(self) -> Floats:
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
class Haar(OneAttribute, Strategy):
    """Haar wavelets (Privelet, Xiao, Wang & Gehrke 2010): the total, and for each node of a binary tree the
    sum of its left half minus the sum of its right half.

    Entries are 0, 1 and -1 at all levels. With this scaling the noise of Privelet is the same for all
    coefficients.
    """

    def build(self) -> Floats:
        cells = np.arange(self.n)
        blocks = [np.ones((1, self.n))]
        for width in tree_levels(self.n, 2)[:-1]:
            nodes = cells // width
            side = np.where(cells % width < width // 2, 1.0, -1.0)
            blocks.append(side * (nodes == np.arange(nodes[-1] + 1)[:, None]))
        return np.concatenate(blocks)


@described("matrix.Fourier")
class Fourier(_ForWorkload):
    """Sines and cosines over the cells (Barak et al. 2007; eigen-design). The weight of a frequency is the
    fourth root of its energy, the mean of |W w|² over its waves w of length 1, with W the `workload`.

    Sine and cosine of a frequency have the same weight, so that all columns have the same length.
    """

    def build(self) -> Floats:
        n = self.cells
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
class WeightedTree(_ForWorkload):
    """A tree whose level weights are chosen greedily for the workload and the norm, one level after the
    other, as in GreedyH.

    (Li, Hay, Miklau & Wang 2014, PVLDB 7(5), choose each level's weight once, from the bottom; here all
    levels are gone through three times, from the top.)
    """

    norm: Norm = "l2"
    branching: Annotated[int, at_least(2)] = 2

    def build(self) -> Floats:
        n = self.cells
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
            return math.pow(float(np.sum(weights**power)), 2 / power) * least_squares_error(G, np.asarray(X))

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
class Optimal(_ForWorkload):
    """The strategy of least error under Gaussian noise, to a proved relative gap: see `gaussian`."""

    gap: Annotated[float, POSITIVE] = 1e-4

    def solution(self) -> Optimum:
        return _optimum(self.workload, float(self.gap))

    def gram(self) -> Floats:
        return self.solution().X

    def build(self) -> Floats:
        """Compute the upper triangular factor of X = Aᵀ A."""
        return np.asarray(on_one_thread(linalg.cholesky)(self.solution().X))


@lru_cache(maxsize=16)
def _optimum(workload: Workload, gap: float) -> Optimum:
    _require_cells(workload.cells)
    return gaussian(workload.gram(), gap=gap)


@described("matrix.PIdentity")
class PIdentity(_ForWorkload):
    """Single cells and p further questions, found by descent: OPT_0 of HDMM, for Laplace noise (see
    `p_identity`). p is cells / 16 rounded down, at least 1, unless given; 0 stands for not given."""

    p: Annotated[int, at_least(0)] = 0

    def __post_init__(self) -> None:
        if not self.p:
            object.__setattr__(self, "p", max(1, self.workload.cells // 16))

    def build(self) -> Floats:
        # Three starts where they are cheap. The best of them, so also this number, is part of what a stored
        # description of the strategy means.
        theta = p_identity(self.workload.gram(), self.p, restarts=3 if self.cells <= 128 else 1)
        A = np.concatenate([np.eye(self.cells), theta])
        return np.asarray(A / A.sum(axis=0))


@described("matrix.Lower")
class LowerTriangular(Strategy):
    """A lower-triangular strategy over n steps, as streams and DP-FTRL use it, for a workload whose cells are
    the steps; see `triangular`."""

    strategy: Annotated[
        triangular.Toeplitz | triangular.Dense,
        instance_of(triangular.Triangular, "lower triangular, such as Toeplitz(...)"),
    ]
    n: Annotated[int, at_least(1)]

    @property
    def domain(self) -> tuple[int, ...]:
        return (self.n,)

    def build(self) -> Floats:
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
    if isinstance(strategy, Product):
        return float(np.prod([sensitivity(factor, norm) for factor in strategy.factors]))
    if norm == "l1":
        return float(strategy.column_norms(1).max())
    return float(np.sqrt(strategy.column_norms(2).max()))


def _require_cells(n: int) -> None:
    """Refuse a domain too large for a strategy that is one matrix."""
    _require.that(
        n <= MAX_CELLS,
        f"strategies for {n:,} cells are not searched as one matrix (at most {MAX_CELLS:,}). Write the "
        "workload as a product over attributes, or as marginals.",
    )


Set = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """Says what one attribute of n values contributes to the interactions: in those that have it, it is
    measured by a residual strategy R, with R 1 = 0 for the vector 1 of ones.

    W is the attribute's base workload and G its Gram matrix. `inside`: trace(G (Rᵀ R)⁺), the error of W in
    interactions with the attribute, for noise of variance 1. `outside`: |W 1|² / n², the error of W in those
    without it, whose value is spread evenly over the n values. `cost`: the largest squared column norm of R.
    `exact`: whether R is the centering I - 11ᵀ/n; it is not stored then, and R is empty.
    """

    R: Floats
    inside: float
    outside: float
    cost: float
    exact: bool


@lru_cache(maxsize=256)
def axis_of(base: Workload, centered: bool = False) -> Axis:
    """Return the residual strategy of one attribute, optimized for its base workload; with `centered` always
    the centering I - 11ᵀ/n, as for tables that are measured as counts (`MeasuredMarginals`)."""
    n = base.cells
    if isinstance(base, Identity):
        return Axis(np.empty((0, 0)), n - 1.0, 1 / n, 1 - 1 / n, True)
    G = base.gram()
    center = np.eye(n) - 1 / n
    # The sum of all entries of G is |W 1|², which rounding could make negative.
    outside = max(float(G.sum()), 0.0) / n**2
    centered_weight = float(np.trace(center @ G @ center))
    # All rows of W are constant, up to rounding: W asks for the total only.
    if centered_weight <= 1e-12 * float(np.trace(G)):
        return Axis(np.empty((0, 0)), 0.0, outside, 0.0, True)
    if centered:
        return Axis(np.empty((0, 0)), centered_weight, outside, 1 - 1 / n, True)
    X = gaussian(center @ G @ center).X
    values, vectors = on_one_thread(linalg.eigh)(center @ X @ center)
    # The first eigenvalue is 0, that of the vector of ones: without it, R has n - 1 rows.
    R = np.sqrt(np.clip(values, 0, None))[1:, None] * vectors.T[1:]
    inside = least_squares_error(center @ G @ center, R.T @ R)
    return Axis(R, inside, outside, float((R**2).sum(axis=0).max()), False)


def importance(marginals: Marginals, axes: list[Axis]) -> dict[Set, float]:
    """Return, per interaction, the weighted error of all tables that a variance of 1 in it causes.

    It is the sum, over the tables that hold the interaction, of the squared weight times `inside` of its
    attributes and `outside` of the table's other attributes.
    """
    totals = dict.fromkeys(marginals.closure, 0.0)
    for s, weight in zip(marginals.sets, marginals.weights, strict=True):
        for bits in range(1 << len(s)):
            interaction = tuple(a for k, a in enumerate(s) if bits >> k & 1)
            others = (a for k, a in enumerate(s) if not bits >> k & 1)
            totals[interaction] += (
                weight**2
                * math.prod(axes[a].inside for a in interaction)
                * math.prod(axes[a].outside for a in others)
            )
    return totals


@dataclass(frozen=True, slots=True, kw_only=True)
class _MarginalStrategy(Workload):
    """A strategy for some marginals, written out as a matrix (`rows`) for small domains only."""

    marginals: Annotated[Marginals, instance_of(Marginals, "made by matrix.marginals(...)")]

    @property
    def domain(self) -> tuple[int, ...]:
        return self.marginals.domain

    def gram(self) -> Floats:
        return np.asarray(sum(block.T @ block for block in self.rows()))


@described("matrix.Residuals")
class Residuals(_MarginalStrategy):
    """Every interaction of the marginals measured once, with the variances of least weighted error:
    ResidualPlanner.

    Guarantee: with attributes whose base is `Identity`, no strategy has a smaller weighted error under
               Gaussian noise: it equals the SVD bound.
    Proof:     with v_S the variance of interaction S, c_S its `importance` and p_S the product of the `cost`
               of its attributes, the error is the sum of c_S v_S and the squared sensitivity the sum of
               p_S / v_S. At squared sensitivity 1 the least error has v_S = sqrt(p_S / c_S) times the sum of
               sqrt(p_T c_T) over all T (Lagrange multipliers). The interactions are the eigenspaces of Wᵀ W,
               and every column has the same norm, which is when the SVD bound is attained (Li & Miklau 2013).
    """

    @property
    def queries(self) -> int:
        axes = self.axes()
        return sum(
            math.prod(self.domain[a] if axes[a].exact else len(axes[a].R) for a in s)
            for s in self.marginals.closure
        )

    def axes(self) -> list[Axis]:
        return [axis_of(base) for base in self.marginals.bases]

    def variances(self) -> dict[Set, float]:
        """Return the variance v_S of each interaction that is measured, at l2 sensitivity 1 and noise of
        variance 1.

        An interaction that is always zero (of an attribute with one value), or that no question depends on,
        is not measured.
        """
        axes = self.axes()
        c = importance(self.marginals, axes)
        p = {s: math.prod(axes[a].cost for a in s) for s in c}
        total = sum(math.sqrt(p[s] * c[s]) for s in c)
        return {s: total * math.sqrt(p[s] / c[s]) for s in c if p[s] * c[s] > 0}

    def error(self) -> float:
        """Return the weighted sum of variances at l2 sensitivity 1 and noise of variance 1: the square of the
        sum of sqrt(p_S c_S)."""
        axes = self.axes()
        importance_of = importance(self.marginals, axes)
        return sum(math.sqrt(math.prod(axes[a].cost for a in s) * c) for s, c in importance_of.items()) ** 2

    def rows(self) -> Iterator[Floats]:
        """Yield the strategy written out, for small domains, one block per interaction S: R along the
        attributes of S, sums along the others, divided by sqrt(v_S)."""
        self._require_small(self.queries * self.cells, "the matrix")
        axes = self.axes()
        for s, variance in self.variances().items():
            block: Any = np.ones((1, 1))
            for a, n in enumerate(self.domain):
                R = (np.eye(n) - 1 / n) if axes[a].exact else axes[a].R
                block = np.kron(block, R if a in s else np.ones((1, n)))
            yield block / math.sqrt(variance)


@described("matrix.MeasuredMarginals")
class MeasuredMarginals(_MarginalStrategy):
    """Whole tables measured with weights that add up to 1, chosen by descent for the weighted error under
    Laplace noise: OPT_M of HDMM.

    (McKenna, Miklau, Hay & Machanavajjhala 2018, PVLDB 11(10).) Least squares over the tables is that of
    `inference.consistent_marginals`.
    """

    @property
    def queries(self) -> int:
        return sum(self.marginals.size_of(s) for s in self.weights())

    def weights(self) -> dict[Set, float]:
        """Return the weight of each table that is measured; they add up to 1, or a little less where tables
        of little weight were left out."""
        return dict(_table_weights(self.marginals))

    def error(self) -> float:
        """Return the weighted sum of variances at l1 sensitivity 1 and noise of variance 1."""
        return self.error_with(self.weights())

    def error_with(self, weights: dict[Set, float]) -> float:
        """Return the error with these weights of the measured tables, which add up to at most 1."""
        axes = [axis_of(base, True) for base in self.marginals.bases]
        return sum(
            c / precision(self.marginals, s, weights)
            for s, c in importance(self.marginals, axes).items()
            if c
        )

    def rows(self) -> Iterator[Floats]:
        self._require_small(self.cells, "a row")
        for s, weight in self.weights().items():
            block: Any = np.ones((1, 1))
            for a, n in enumerate(self.domain):
                block = np.kron(block, np.eye(n) if a in s else np.ones((1, n)))
            yield weight * block


def precision(marginals: Marginals, s: Set, weights: Mapping[Set, float]) -> float:
    """Return 1 / variance of interaction `s`, measured in all tables that have its attributes, each with its
    weight and noise of variance 1."""
    size = marginals.size_of(s)
    return sum(w**2 * size / marginals.size_of(t) for t, w in weights.items() if set(s) <= set(t))


@lru_cache(maxsize=16)
def _table_weights(marginals: Marginals) -> tuple[tuple[Set, float], ...]:
    """Return the weights of the measured tables with the least error under Laplace noise, by L-BFGS-B from
    weights that are largest for the workload's own sets.

    With c the `importance` of the interactions and B w² their `precision`, the error at l1 sensitivity 1 is
    (sum of w)² times the sum of c / (B w²).
    """
    sets = marginals.closure
    axes = [axis_of(base, True) for base in marginals.bases]
    importance_of = importance(marginals, axes)
    c = np.array([importance_of[s] for s in sets])
    index_of = {s: i for i, s in enumerate(sets)}
    triples = [
        (index_of[sub], index_of[t], marginals.size_of(sub) / marginals.size_of(t))
        for t in sets
        for sub in (tuple(a for k, a in enumerate(t) if bits >> k & 1) for bits in range(1 << len(t)))
    ]
    i, j, share = (np.array(column) for column in zip(*triples, strict=True))
    B = sparse.csr_array((share.astype(float), (i.astype(int), j.astype(int))), shape=(len(sets), len(sets)))

    def error(w: Floats) -> tuple[float, Floats]:
        """Return the error and its gradient."""
        p, total = B @ w**2, w.sum()
        value = float((c / p).sum())
        return total**2 * value, 2 * total * value - total**2 * (B.T @ (c / p**2)) * 2 * w

    start = np.array([1.0 if s in marginals.sets else 0.1 for s in sets])
    # The solver's tolerances are absolute, so the error is scaled to about 1.
    scale = error(start)[0]
    # Every set of the workload keeps some weight, so that no precision becomes zero. This least weight and
    # the one below which a table is left out were chosen by hand.
    solved = optimize.minimize(
        lambda w: tuple(part / scale for part in error(w)),
        start / start.sum(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(1e-7 if s in marginals.sets else 0.0, None) for s in sets],
        options={"maxiter": 500},
    )
    best = np.asarray(solved.x)
    best = best / best.sum()
    # Tables of little weight are left out, but never one whose interactions no other table has.
    largest = {s for s in marginals.sets if not any(set(s) < set(t) for t in marginals.sets)}
    return tuple((s, float(w)) for s, w in zip(sets, best, strict=True) if w > 1e-4 or s in largest)


# The most steps for which an optimum is searched: a round computes the singular values of a matrix with one
# row per step, which takes about three seconds for 2,048 (measured).
MAX_STEPS = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Triangle:
    """Holds the factor C, whose columns have length at most 1; its `error`, the largest or the root mean
    squared row length of A C⁻¹; and `bound`, a proved lower bound on the error of every strategy."""

    C: Floats
    error: float
    bound: float

    @property
    def strategy(self) -> Dense:
        return Dense(rows=tuple(tuple(row[: t + 1].tolist()) for t, row in enumerate(self.C)))


@_require.check_options
@lru_cache(maxsize=16)
def optimal_prefix(
    steps: Annotated[int, at_least(1), at_most(MAX_STEPS)],
    minimize: Literal["max", "rms"] = "max",
    gap: Annotated[float, POSITIVE] = 1e-3,
) -> Triangle:
    """Return the lower-triangular strategy for prefix sums with the smallest maximum (`minimize` "max") or
    root mean squared ("rms") error, up to a relative `gap` that is proved by the dual."""
    if minimize == "max":
        return _gamma(np.tril(np.ones((steps, steps))), gap)
    # The gap of the squared error, which is about twice that of the error.
    best = gaussian(prefix(steps).gram(), gap=2 * gap)
    return Triangle(_lower(best.X), math.sqrt(best.error / steps), math.sqrt(best.bound / steps))


@on_one_thread
def _gamma(A: Floats, gap: float, rounds: int = 500) -> Triangle:
    """Return gamma_2(A) with the factor C that attains it, up to `gap`. Prefix sums of 256 steps take 46
    rounds to a gap of 1e-3 (measured).

    Guarantee: `bound <= gamma_2(A) <= error`, and `error <= (1 + gap) bound` unless `rounds` ran out.
    Proof:     for positive weights u and v that each add up to 1, with diagonal matrices D_u and D_v, the
               nuclear norm of D_u^(1/2) A D_v^(1/2) is at most gamma_2(A) (Linial, Mendelson, Schechtman &
               Shraibman 2007, duality of gamma_2): `bound`. With its singular value decomposition U S Vᵀ,
               B = D_u^(-1/2) U S^(1/2) and C = S^(1/2) Vᵀ D_v^(-1/2) have B C = A: `error`. Where the bound
               is largest, all rows of B, and all columns of C, have equal lengths; each round multiplies the
               weights by these squared lengths.
    """
    n = len(A)
    u = v = np.full(n, 1.0 / n)
    bound, best, factor = 0.0, math.inf, np.eye(n)
    for _ in range(rounds):
        root_u, root_v = np.sqrt(u), np.sqrt(v)
        U, S, Vt = linalg.svd(root_u[:, None] * A * root_v, check_finite=False)
        # the squared lengths of the rows of B and of the columns of C
        rows = (U**2 @ S) / u
        columns = (S @ Vt**2) / v
        bound = max(bound, float(S.sum()))
        error = math.sqrt(float(rows.max() * columns.max()))
        if error < best:
            best, factor = error, (np.sqrt(S)[:, None] * Vt / root_v) / math.sqrt(columns.max())
        if best <= (1 + gap) * bound:
            break
        u, v = u * rows, v * columns
        u, v = u / u.sum(), v / v.sum()
    return Triangle(_lower(factor.T @ factor), best, bound)


@on_one_thread
def _lower(X: Floats) -> Floats:
    """Return the lower-triangular C with Cᵀ C = X and a positive diagonal: the Cholesky factor of X with rows
    and columns in reverse order, reversed again."""
    upper = linalg.cholesky(X[::-1, ::-1], lower=False)
    return np.ascontiguousarray(upper[::-1, ::-1])
