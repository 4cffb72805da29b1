"""Fits decision trees whose splits are chosen by the exponential mechanism: their base class `GreedyTree`,
and classification trees, which have noisy counts of classes in their leaves.

Divides features into bins, for trees and boosting, by the facts that `Public` declares alone.

A number's bins are `parts` equal parts of its bounds, numbered upwards. A truth value has the bins 0 (false),
1 (missing) and 2 (true). A category has one bin per declared value, in their order, and a last one for a
missing or undeclared value.

Fits a regression tree with private splits and noisy means in its leaves.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from .. import _require, sampling
from .._public import ADD_REMOVE, Boolean, Bounds, Categories, Public
from .._registry import described
from .._require import LISTED, among, at_least, at_most
from ..accounting import Event, ExponentialMechanism, PureDP, compose
from ..mechanisms.additive import laplace_noise
from ..mechanisms.noise import IntegerLaplace
from ..sampling import Entropy
from .learner import CELLS, Classifying, TableLearner
from .linear_model import class_array, columns_only, in_target_unit, quarter_squared_error, target_classes
from .rows import Design, Rows

Codes = npt.NDArray[np.int32]


def bin_counts(design: Design, public: Public, parts: int) -> list[int]:
    """Return the number of bins of each feature."""
    result = []
    for name in design.features:
        fact: Any = public.fact(name)
        counts = {Bounds: parts, Boolean: 3}
        result.append(len(fact.values) + 1 if isinstance(fact, Categories) else counts[type(fact)])
    return result


def numeric_features(design: Design, public: Public) -> list[bool]:
    """Return which features are numbers, whose bins have an order."""
    return [isinstance(public.fact(name), Bounds) for name in design.features]


def bin_codes(x: Any, design: Design, public: Public, parts: int) -> Codes:
    """Return the bin of each feature (column) for each row of x, whose coordinates are those of `Design`.

    `Design` reads a missing number as 0, so that it is in the bin of the middle of its bounds.
    """
    result, column_index = np.zeros((len(x), len(design.features)), dtype=np.int32), 0
    for i, name in enumerate(design.features):
        fact: Any = public.fact(name)
        if isinstance(fact, Categories):
            values = x[:, column_index : column_index + len(fact.values)]
            result[:, i] = np.where(values.any(axis=1), values.argmax(axis=1), len(fact.values))
            column_index += len(fact.values)
            continue
        column = np.asarray(x[:, column_index], np.float64)
        if isinstance(fact, Boolean):
            # -1 is false, 0 missing and 1 true
            result[:, i] = np.sign(column).astype(np.int32) + 1
        else:
            result[:, i] = np.clip((column + 1) / 2 * parts, 0, parts - 1).astype(np.int32)
        column_index += 1
    return result


Array = npt.NDArray[np.float64]
CRITERIA = ("gini", "max")
# Qualities of splits are rounded to multiples of 1 / _CELLS, so that the exponential mechanism is exact.
# Chosen by hand, not tuned.
_CELLS = 1 << 10


@described("learning.TreeModel")
class TreeModel:
    """Predicts classes by a full binary tree: split i sends a row to node 2i + 1 (left) or 2i + 2 (right);
    leaves hold class probabilities.

    A split is (feature, bin). Bins are numbered as above, with `parts` bins of a number. For a
    number, rows in bins up to this one go left; for a category or boolean, the rows in this bin.
    """

    design: Design
    public: Public
    classes: Annotated[tuple[Any, ...], LISTED]
    parts: Annotated[int, at_least(2)]
    splits: tuple[tuple[int, int], ...]
    leaves: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", tuple((int(f), int(b)) for f, b in self.splits))
        object.__setattr__(self, "leaves", tuple(tuple(float(v) for v in row) for row in self.leaves))
        check_tree(self, all(len(row) == len(self.classes) for row in self.leaves))

    def _leaf(self, x: Any) -> npt.NDArray[np.int64]:
        return leaf_of(x, self.design, self.public, self.parts, self.splits)

    def probabilities(self, X: Any) -> Array:
        """Return the probability of each class for each row."""
        return np.array(self.leaves)[self._leaf(self.design.encode(X, self.public))]

    def scores(self, X: Any) -> Array:
        """Return class probabilities; for two classes, that of the second class minus 1/2."""
        probabilities = self.probabilities(X)
        return probabilities[:, 1] - 0.5 if len(self.classes) == 2 else probabilities

    def losses(self, x: Any, targets: Array) -> Array:
        """Return 1 for each row of coordinates whose most probable class is not its own, and 0 otherwise: a
        function of that row."""
        probabilities = np.array(self.leaves)[self._leaf(x)]
        return np.asarray(probabilities.argmax(axis=1) != targets, dtype=np.float64)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        return np.asarray(class_array(self.classes)[self.probabilities(X).argmax(axis=1)])


def check_tree(tree: TreeModel | RegressionTreeModel, fits: bool = True) -> None:
    """Refuse a tree that is not full, and splits of features or bins that its columns do not have; `fits`
    says whether each leaf is as it must be."""
    count, bins = len(tree.splits) + 1, bin_counts(tree.design, tree.public, tree.parts)
    _require.that(
        fits and count & (count - 1) == 0 and len(tree.leaves) == count,
        "a tree has 2^depth - 1 splits and a leaf for each path.",
    )
    _require.that(
        all(0 <= feature < len(bins) and 0 <= code < bins[feature] for feature, code in tree.splits),
        "a split names a feature or a bin that the tree does not have.",
    )


def leaf_of(x: Any, design: Design, public: Public, parts: int, splits: Any) -> npt.NDArray[np.int64]:
    """Return the number of the leaf that each row of coordinates is in; `splits` are those of a full tree,
    level by level."""
    codes = bin_codes(x, design, public, parts)
    node, numeric = np.zeros(len(codes), dtype=np.int64), np.array(numeric_features(design, public))
    for _ in range((len(splits) + 1).bit_length() - 1):
        node = 2 * node + 2 - _goes_left(codes, np.array(splits, dtype=np.int64)[node], numeric)
    return node - len(splits)


def _goes_left(codes: Any, splits: Any, numeric: Any) -> npt.NDArray[np.int64]:
    """Return 1 for rows that go left and 0 for all others.

    `codes` has the bin of each feature per row, `splits` the (feature, bin) of the row's node, and `numeric`
    which features are numbers.
    """
    values = codes[np.arange(len(codes)), splits[:, 0]]
    below = numeric[splits[:, 0]] & (values <= splits[:, 1])
    return np.asarray(below | (values == splits[:, 1]), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class GreedyTree(TableLearner):
    """Grows a tree level by level, with the split of every node chosen by the exponential mechanism: the base
    class of trees.

    Half of epsilon is for splits, divided evenly among the levels, and half for leaves. No delta is used.
    `parts` is the number of equal parts that a numeric feature's bounds are divided into; its splits are the
    borders between them.

    Guarantee: `event`: one exponential mechanism per level (charged as pure DP where a row is replaced), and
               `noise` on the leaves.
    Proof:     every row is in one node of each level and in one leaf, so that the nodes of a level, and the
               leaves, compose in parallel; the levels above were released before. One added row changes the
               quality of all splits of a node in the same direction, by between 0 and `_range` (subclasses
               prove it). With rounding to whole cells this is between -1 and `_range` _CELLS + 1 cells, so
               that the logarithms of probability ratios lie in an interval of length at most
               rate x (`_range` _CELLS + 2), which is the level's epsilon (bounded range, Durfee & Rogers
               2019, arXiv:1905.04273). A replaced row is one removed and one added (`changes` is 2), each for
               half of a level's epsilon.
    """

    depth: Annotated[int, at_least(1), at_most(12)] = 4
    parts: Annotated[int, at_least(2), at_most(1024)] = 16

    def _check(self) -> None:
        self.design.require_target()
        self.noise  # noqa: B018 - price it now

    @property
    @abstractmethod
    def _range(self) -> int:
        """Return the most that one added row changes the quality of a split."""

    @property
    @abstractmethod
    def noise(self) -> IntegerLaplace:
        """Return the noise on leaves, for half of epsilon."""

    @abstractmethod
    def _quality(self, sums: Array, total: Array) -> Array:
        """Return the quality of each split, from the sums of `_columns` over its left side (a row of `sums`)
        and over the whole node (`total`)."""

    @abstractmethod
    def _columns(self, targets: Array) -> Array:
        """Return the numbers of each row whose sums over a node determine the qualities of splits."""

    @property
    def level_epsilon(self) -> float:
        """Return the epsilon of one level of splits."""
        return self.epsilon / 2 / self.depth * (1 - 1e-12)

    @property
    def event(self) -> Event:
        neighbors = self.public.neighbors
        event_type = ExponentialMechanism if neighbors is ADD_REMOVE else PureDP
        level = event_type(epsilon=self.level_epsilon, neighbors=neighbors)
        return compose([level.repeated(self.depth), self.noise.event])

    @property
    def _sensitivity_cells(self) -> int:
        """Return the length of the interval of the changes of qualities by one row, in cells."""
        return self._range * _CELLS + 2

    @property
    def rate(self) -> Fraction:
        """Return the rate of the exponential mechanism: a split's weight is exp(rate x quality in cells)."""
        return Fraction(self.level_epsilon) / self.changes / self._sensitivity_cells

    def grow(self, x: Rows, targets: Array, entropy: Entropy) -> tuple[Any, npt.NDArray[np.int64]]:
        """Return the splits, and which leaf each row is in."""
        codes = bin_codes(x, self.design, self.public, self.parts).astype(np.int64)
        columns, node = self._columns(targets), np.zeros(len(codes), dtype=np.int64)
        numeric, splits = numeric_features(self.design, self.public), list[tuple[int, int]]()
        # splits are drawn node by node, also of empty nodes: their number must not depend on the data
        for level in range(self.depth):
            first_node = 2**level - 1
            for number in range(first_node, 2 * first_node + 1):
                in_node = node == number
                splits.append(self._split(codes[in_node], columns[in_node], entropy))
            node = 2 * node + 2 - _goes_left(codes, np.array(splits, dtype=np.int64)[node], np.array(numeric))
        return tuple(splits), node - (2**self.depth - 1)

    def _split(self, codes: Any, columns: Array, entropy: Entropy) -> tuple[int, int]:
        """Choose the split of one node by the exponential mechanism, from the bins and `_columns` of its
        rows."""
        candidates, qualities = list[tuple[int, int]](), []
        sizes, numeric = (
            bin_counts(self.design, self.public, self.parts),
            numeric_features(self.design, self.public),
        )
        total = columns.sum(axis=0)
        for feature, bins in enumerate(sizes):
            left_sums: Any = np.stack(
                [np.bincount(codes[:, feature], weights=c, minlength=bins) for c in columns.T], axis=1
            )
            # The left side of a numeric split has all bins up to one of them, but never all bins.
            left_sums = left_sums.cumsum(axis=0)[:-1] if numeric[feature] else left_sums
            qualities.append(np.rint(self._quality(left_sums, total) * _CELLS).astype(np.int64))
            candidates += [(feature, bin_number) for bin_number in range(len(left_sums))]
        choice = sampling.argmax_gumbel(np.concatenate(qualities), self.rate, entropy)
        return candidates[choice]


@described("learning.PrivateTree")
@dataclass(frozen=True, kw_only=True)
class PrivateTree(GreedyTree, Classifying):
    """Learns a full classification tree of fixed `depth`, level by level (Friedman & Schuster 2010, "Data
    mining with differential privacy", Section 3): splits by the exponential mechanism, leaves with noisy
    counts of classes.

    The quality of a split is "max", the number of rows in the largest class of each side, or "gini", minus
    the impurity n - sum_c n_c² / n of each side, summed over both sides. A side has n rows, n_c of them of
    class c.

    Guarantee: `event`.
    Proof:     `GreedyTree`; a row is in one count of one leaf, and a replaced one changes the counts by 2 in
               l1. Both qualities are monotone in the table: "max" grows by 0 or 1 with a row. For "gini" with
               p_c = n_c / n the derivative of the impurity in n_c is
               1 - 2 p_c + sum_j p_j² = (1 - p_c)² + sum_(j != c) p_j², which is between 0 and
               2 (1 - p_c)² <= 2, so that a row adds between 0 and 2 to the impurity. Counts are exact, and
               the rounding error of a quality is below half a cell up to 2^33 rows and 500 classes.
               Rounded to cells, a quality is then less than one cell off. Its change by a row is a whole
               number of cells, and so still within the bounds of `GreedyTree`.
    Accuracy:  the noise moves all counts of leaves by at most `error` with the stated probability.
    """

    criterion: Annotated[str, among(CRITERIA)] = "gini"

    def _check(self) -> None:
        Classifying._check(self)
        super()._check()

    @property
    def _range(self) -> int:
        return 2 if self.criterion == "gini" else 1

    @property
    def _sensitivity_cells(self) -> int:
        """Return the length of the interval of the changes in cells; "max" is a whole number of rows, and is
        not rounded."""
        return _CELLS if self.criterion == "max" else super()._sensitivity_cells

    @cached_property
    def noise(self) -> IntegerLaplace:
        return laplace_noise(self.public, self.epsilon / 2, self.changes)

    def fit_rows(self, x: Rows, targets: Array, entropy: Entropy) -> TreeModel:
        splits, leaf = self.grow(x, targets, entropy)
        k, count = len(self.classes), 2**self.depth
        exact = np.bincount(leaf * k + targets.astype(np.int64), minlength=count * k).astype(np.int64)
        noisy: Any = self.noise(exact, entropy=entropy)
        return TreeModel(
            design=self.design, public=columns_only(self.public, self.design), classes=self.classes,
            parts=self.parts, splits=splits, leaves=self._class_probabilities(noisy.reshape(count, k)),
        )  # fmt: skip

    def _class_probabilities(self, counts: Any) -> tuple[tuple[float, ...], ...]:
        """Return the class probabilities of leaves, from their noisy counts. They are shrunk towards those of
        all rows; the fewer rows a leaf has compared with the noise, the more."""
        total = np.maximum(counts.sum(axis=0).astype(np.float64), 1.0)
        # Above 0 even where a very large epsilon leaves no noise: an empty leaf has the class probabilities
        # of all rows.
        prior_weight = max(self.noise.standard_deviation, 1e-9)
        result = np.maximum(counts.astype(np.float64), 0.0) + prior_weight * total / total.sum()
        return tuple(tuple(row) for row in (result / result.sum(axis=1, keepdims=True)).tolist())

    def _columns(self, targets: Array) -> Array:
        return np.eye(len(self.classes))[targets.astype(np.int64)]

    def _quality(self, sums: Array, total: Array) -> Array:
        sides = (sums, total - sums)
        if self.criterion == "max":
            return np.asarray(sum(n.max(axis=1) for n in sides))
        return np.asarray(
            sum((n**2).sum(axis=1) / np.maximum(n.sum(axis=1), 1) - n.sum(axis=1) for n in sides)
        )

    @property
    def numbers(self) -> int:
        return int(2**self.depth * (len(self.classes) + 2))

    def error(self, confidence: float = 0.95) -> float:
        return float(self.noise.error(confidence, entries=2**self.depth * len(self.classes)))


@described("learning.RegressionTreeModel")
class RegressionTreeModel:
    """Predicts a number by a full binary tree with one number in each leaf, on the target's scale of [-1, 1];
    splits are those of `TreeModel`."""

    design: Design
    public: Public
    parts: Annotated[int, at_least(2)]
    splits: tuple[tuple[int, int], ...]
    leaves: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", tuple((int(f), int(b)) for f, b in self.splits))
        object.__setattr__(self, "leaves", tuple(float(value) for value in self.leaves))
        check_tree(self)

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

    _range: ClassVar[int] = 4

    def _check(self) -> None:
        GreedyTree._check(self)
        assert self.design.target is not None
        target_classes(self.public, self.design.target, classifies=False)

    @property
    def classes(self) -> tuple[Any, ...]:
        return ()

    @cached_property
    def noise(self) -> IntegerLaplace:
        # the other half of epsilon is for splits
        return laplace_noise(self.public, self.epsilon / 2, 2 * CELLS * self.changes)

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
