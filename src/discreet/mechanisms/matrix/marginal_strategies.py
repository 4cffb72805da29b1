"""Computes strategies for marginals, in closed form or by a small convex program: no matrix over all cells is
needed.

A table of counts splits into orthogonal interactions, one for each subset S of its attributes: along the
attributes of S values are centered (their mean is subtracted), along the others averaged. `Residuals`
(ResidualPlanner: Xiao, He, Zhang & Kifer 2023, arXiv:2305.08175) measures each interaction by itself under
Gaussian noise, with the best variances in closed form. `MeasuredMarginals` (OPT_M of HDMM) measures whole
tables with weights, for Laplace noise, where measuring interactions would need more noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize, sparse

from ... import _require
from ..._registry import described
from . import optimal
from .compound import Marginals
from .workloads import Identity, Workload

Floats = NDArray[np.float64]
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
    X = optimal.gaussian(center @ G @ center).X
    values, vectors = linalg.eigh(center @ X @ center)
    # The first eigenvalue is 0, that of the vector of ones: without it, R has n - 1 rows.
    R = np.sqrt(np.clip(values, 0, None))[1:, None] * vectors.T[1:]
    inside = optimal.least_squares_error(center @ G @ center, R.T @ R)
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


class _MarginalStrategy(Workload):
    """A strategy for some marginals, written out as a matrix (`rows`) for small domains only."""

    __slots__ = ()
    marginals: Marginals

    def __post_init__(self) -> None:
        if not isinstance(self.marginals, Marginals):
            raise _require.fail("marginals", type(self.marginals).__name__, "made by matrix.marginals(...)")

    @property
    def domain(self) -> tuple[int, ...]:
        return self.marginals.domain

    def gram(self) -> Floats:
        return np.asarray(sum(block.T @ block for block in self.rows()))

    def times(self, x: Any) -> Floats:
        return self.dense() @ self._vector(x, self.cells)

    def transposed(self, y: Any) -> Floats:
        return self.dense().T @ self._vector(y, self.queries)


@described("matrix.Residuals")
@dataclass(frozen=True, slots=True, kw_only=True)
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

    marginals: Marginals

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
@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMarginals(_MarginalStrategy):
    """Whole tables measured with weights that add up to 1, chosen by descent for the weighted error under
    Laplace noise: OPT_M of HDMM.

    (McKenna, Miklau, Hay & Machanavajjhala 2018, PVLDB 11(10).) Least squares over the tables is that of
    `inference.consistent_marginals`.
    """

    marginals: Marginals

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
