"""Fits a regression tree with private splits and noisy means in its leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _require
from ..._errors import InvalidInput
from ..._public import Public
from ..._registry import described
from ...mechanisms.noise import IntegerLaplace
from ...sampling import Entropy
from .learner import CELLS
from .model import columns_only, in_target_unit, quarter_squared_error, target_classes
from .rows import Design, Rows
from .trees import GreedyTree, check_splits, leaf_of

Array = npt.NDArray[np.float64]


@described("learning.RegressionTreeModel")
@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionTreeModel:
    """Predicts a number by a full binary tree with one number in each leaf, on the target's scale of [-1, 1];
    splits are those of `TreeModel`."""

    design: Design
    public: Public
    parts: int
    splits: tuple[tuple[int, int], ...]
    leaves: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", tuple((int(f), int(b)) for f, b in self.splits))
        object.__setattr__(self, "leaves", tuple(float(value) for value in self.leaves))
        _require.integer(parts=self.parts, at_least=2)
        count = len(self.splits) + 1
        if count & (count - 1) or len(self.leaves) != count:
            raise InvalidInput("a tree has 2^depth - 1 splits and a leaf for each path. Nothing was made.")
        check_splits(self.splits, self.design, self.public, self.parts)

    @property
    def classes(self) -> tuple[Any, ...]:
        """Return no classes, as a regression has none."""
        return ()

    def scores(self, X: Any) -> Array:
        """Return the prediction for each row, on the scale [-1, 1]."""
        return self._values(self.design.encode(X, self.public))

    def _values(self, x: Any) -> Array:
        return np.array(self.leaves)[leaf_of(x, self.design, self.public, self.parts, self.splits)]

    def losses(self, x: Any, targets: Array) -> Array:
        """Return a quarter of the squared error of each row of coordinates, within [0, 1] and a function of
        that row."""
        return quarter_squared_error(self._values(x), targets)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the prediction for each row, in the target's own unit."""
        return in_target_unit(self.scores(X), self.design, self.public)


@described("learning.PrivateRegressionTree")
@dataclass(frozen=True, kw_only=True)
class PrivateRegressionTree(GreedyTree):
    """Learns a full regression tree of fixed `depth`: splits by the exponential mechanism, leaves with noisy
    sums and counts of targets, which are scaled to [-1, 1].

    The quality of a split is minus the squared error around the mean of each side (CART's criterion,
    Breiman et al. 1984).

    Guarantee: `event`.
    Proof:     `GreedyTree`; a row with target y that joins n rows of a side adds n / (n + 1) (y - mean)² to
               their squared error: between 0 and 4, as y and the mean are in [-1, 1]. Targets are rounded to
               multiples of 1 / CELLS. Their sums and sums of squares are exact in floats up to 2^33 rows, and
               the rounding error of the divisions is below 2^-8 of a cell, to which `GreedyTree` rounds
               qualities. A rounded quality changes by a whole number of cells, so that such an error does not
               raise the bound on this change. In its leaf a row
               adds at most CELLS to the sum, and CELLS to the count, both in units of 1 / CELLS: 2 CELLS in
               l1.
    Accuracy:  the noise moves all sums and counts of leaves by at most `error` with the stated
               probability.
    """

    def _check(self) -> None:
        super()._check()
        assert self.design.target is not None
        target_classes(self.public, self.design.target, classifies=False)

    @property
    def classes(self) -> tuple[Any, ...]:
        return ()

    @property
    def _range(self) -> int:
        return 4

    @cached_property
    def noise(self) -> IntegerLaplace:
        # the other half of epsilon is for splits
        return IntegerLaplace.for_epsilon(
            self.epsilon / 2, sensitivity=2 * CELLS * self.changes, neighbors=self.public.neighbors
        )

    def _cells(self, targets: Array) -> Array:
        """Return targets in units of 1 / CELLS, rounded."""
        return np.rint(np.clip(targets, -1, 1) * CELLS)

    def _columns(self, targets: Array) -> Array:
        cells = self._cells(targets)
        return np.stack([np.ones(len(cells)), cells, cells**2], axis=1)

    def _quality(self, sums: Array, total: Array) -> Array:
        sides = (sums, total - sums)
        # columns: the number of rows, the sum of targets, and the sum of their squares
        squared_error = sum(side[:, 2] - side[:, 1] ** 2 / np.maximum(side[:, 0], 1) for side in sides)
        return np.asarray(-squared_error / CELLS**2)

    def fit_rows(self, x: Rows, targets: Array, entropy: Entropy) -> RegressionTreeModel:
        splits, leaf = self.grow(x, targets, entropy)
        count = 2**self.depth
        sums = np.bincount(leaf, weights=self._cells(targets), minlength=count)
        counts = np.bincount(leaf, minlength=count) * CELLS
        exact = np.concatenate([sums, counts]).astype(np.int64)
        noisy: Any = self.noise(exact, entropy=entropy)
        return RegressionTreeModel(
            design=self.design, public=columns_only(self.public, self.design), parts=self.parts,
            splits=splits, leaves=self._means(noisy.astype(np.float64).reshape(2, count)),
        )  # fmt: skip

    def _means(self, noisy: Array) -> tuple[float, ...]:
        """Return the means of leaves, from their noisy sums (first row) and counts: shrunk towards the mean
        of all rows the more, the fewer rows a leaf has compared with the noise."""
        sums, counts = noisy
        # Above 0 even where a very large epsilon leaves no noise: an empty leaf has the mean of all rows.
        prior_weight = max(self.noise.standard_deviation, 1e-9)
        mean = float(np.clip(sums.sum() / max(counts.sum(), prior_weight), -1, 1))
        means = (sums + prior_weight * mean) / (np.maximum(counts, 0.0) + prior_weight)
        return tuple(np.clip(means, -1, 1).tolist())

    @property
    def numbers(self) -> int:
        return int(3 * 2**self.depth)

    def error(self, confidence: float = 0.95) -> float:
        return float(self.noise.error(confidence, entries=2 ** (self.depth + 1))) / CELLS
