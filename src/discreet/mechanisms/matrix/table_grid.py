"""Defines integer strategies for marginals: they measure tables by sets of attributes, never the table of all
cells.

`Residuals` and `MeasuredMarginals` are measured by `TableGrid`. Interactions, residual strategies and their
matrices R (`Axis`) are explained in `marginal_strategies`. S is a set of attributes, and I the identity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import linalg

from ... import inference
from ..._errors import Unsupported
from ..protocols import Integers
from .compound import Marginals
from .integer import BITS, Floats, Grid, LeastSquaresFit, SparseCellCounts
from .marginal_strategies import Axis, Set, axis_of, importance, precision
from .strategies import Norm
from .workloads import Workload


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
            raise Unsupported(
                "tables were measured, which can answer marginals of the same attributes only. Nothing was "
                "computed."
            )
        if workload.bases != self.marginals.bases or not set(workload.sets) <= set(self.marginals.closure):
            raise Unsupported(
                "the strategy does not measure all of these marginals. Nothing was computed. Choose one "
                "strategy for all of them together."
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
    return np.moveaxis(np.tensordot(np.linalg.pinv(turn.astype(float)), values, axes=(1, axis)), 0, axis)


def _axis_covariance(turn: Integers, scale: int) -> Floats:
    """Return (Rᵀ R)⁺ for R = turn / scale: the covariance of the estimate along one axis."""
    R = turn.astype(float) / scale
    return np.asarray(linalg.pinvh(R.T @ R, rtol=1e-10))
