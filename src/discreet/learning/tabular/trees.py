"""Decision trees whose splits are chosen by the exponential mechanism; for classes, with noisy counts in
their leaves."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _require, sampling
from ..._errors import InvalidInput
from ..._public import ADD_REMOVE, Public
from ..._registry import described
from ...accounting import Event, ExponentialMechanism, PureDP, compose
from ...mechanisms.noise import IntegerLaplace
from ...sampling import Entropy
from .bins import bin_codes, bin_counts, numeric_features
from .learner import Classifying, TableLearner
from .model import class_array, columns_only
from .rows import Design, Rows

Array = npt.NDArray[np.float64]
CRITERIA = ("gini", "max")
# Qualities of splits are rounded to whole multiples of 1/1024, so that the exponential mechanism is exact.
_CELLS = 1 << 10


@described("learning.TreeModel")
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeModel:
    """Predicts classes by a full binary tree: split i sends a row to node 2i + 1 (left) or 2i + 2; leaves
    hold class probabilities.

    A split is (feature, bin): of a number, rows in bins up to this one go left; of a category or boolean,
    rows in this bin.
    """

    design: Design
    public: Public
    classes: tuple[Any, ...]
    parts: int
    splits: tuple[tuple[int, int], ...]
    leaves: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", _require.listed(classes=self.classes))
        object.__setattr__(self, "splits", tuple((int(f), int(b)) for f, b in self.splits))
        object.__setattr__(self, "leaves", tuple(tuple(float(v) for v in row) for row in self.leaves))
        _require.integer(parts=self.parts, at_least=2)
        count = len(self.splits) + 1
        is_full = count & (count - 1) == 0 and len(self.leaves) == count
        if not is_full or any(len(row) != len(self.classes) for row in self.leaves):
            raise InvalidInput("a tree has 2^depth - 1 splits and a leaf for each path. Nothing was made.")
        if any(not 0 <= feature < len(self.design.features) for feature, _ in self.splits):
            raise InvalidInput("a split names a feature that the tree does not have. Nothing was made.")

    def _leaf(self, x: Any) -> npt.NDArray[np.int64]:
        return leaf_of(x, self.design, self.public, self.parts, self.splits)

    def probabilities(self, X: Any) -> Array:
        return np.array(self.leaves)[self._leaf(self.design.encode(X, self.public))]

    def scores(self, X: Any) -> Array:
        """Return class probabilities; for two classes, how far the second one's is above 1/2."""
        probabilities = self.probabilities(X)
        return probabilities[:, 1] - 0.5 if len(self.classes) == 2 else probabilities

    def losses(self, x: Any, targets: Array) -> Array:
        probabilities = np.array(self.leaves)[self._leaf(x)]
        return np.asarray(probabilities.argmax(axis=1) != targets, dtype=np.float64)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        return np.asarray(class_array(self.classes)[self.probabilities(X).argmax(axis=1)])


def leaf_of(x: Any, design: Design, public: Public, parts: int, splits: Any) -> npt.NDArray[np.int64]:
    """Return the number of the leaf that each row of coordinates is in."""
    codes = bin_codes(x, design, public, parts)
    node, numeric = np.zeros(len(codes), dtype=np.int64), np.array(numeric_features(design, public))
    for _ in range((len(splits) + 1).bit_length() - 1):
        node = 2 * node + 2 - _goes_left(codes, np.array(splits, dtype=np.int64)[node], numeric)
    return node - len(splits)


def _goes_left(codes: Any, splits: Any, numeric: Any) -> npt.NDArray[np.int64]:
    """Return 1 for rows that go left."""
    values = codes[np.arange(len(codes)), splits[:, 0]]
    below = numeric[splits[:, 0]] & (values <= splits[:, 1])
    return np.asarray(below | (values == splits[:, 1]), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class GreedyTree(TableLearner):
    """Shares what trees need that are grown level by level: the split of every node by the exponential
    mechanism.

    Half of epsilon is for splits, the same for each level, and half for leaves. Pure: no delta is used.
    `parts`: cuts of a number are between so many equal parts of its bounds.

    Guarantee: `event`: under add_remove one exponential mechanism per level, and `noise` on the leaves.
    Proof:     the nodes of a level share out the rows, so that one row is in one node of a level and in one
               leaf (parallel composition); the tree above was released before. The quality of every split of
               a node falls by between 0 and `_range` with a row (subclasses prove it). With rounding to whole
               cells all qualities of a node move by between -1 and `_range` _CELLS + 1 cells: the range of
               the logarithms of probability ratios is at most rate x (`_range` _CELLS + 2), which is epsilon
               of the level (bounded range, Durfee & Rogers 2019, arXiv:1905.04273). A replaced row is one
               removed and one added, each for half of a level's epsilon.
    """

    depth: int = 4
    parts: int = 16

    def _check(self) -> None:
        if self.design.target is None:
            raise _require.fail("target", None, "the name of a column")
        _require.integer(depth=self.depth, at_least=1)
        _require.integer(parts=self.parts, at_least=2)
        if self.depth > 12 or self.parts > 1024:
            raise InvalidInput(
                f"depth = {self.depth}, parts = {self.parts}: at most 12 and 1024. Nothing was charged."
            )
        self.noise  # noqa: B018 - price it now

    @property
    @abstractmethod
    def _range(self) -> int:
        """Return how far one row moves the quality of a split, at most, in one direction."""

    @property
    @abstractmethod
    def noise(self) -> IntegerLaplace:
        """Return the noise on leaves, for half of epsilon."""

    @abstractmethod
    def _quality(self, sums: Array, total: Array) -> Array:
        """Return the quality of splits from the sums of `_columns` on their left sides and in the node."""

    @abstractmethod
    def _columns(self, targets: Array) -> Array:
        """Return the numbers of each row whose sums in a node decide a split."""

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
        return self._range * _CELLS + 2

    @property
    def rate(self) -> Fraction:
        """Return the factor of a cell of quality in the logarithm of a split's weight."""
        return Fraction(self.level_epsilon) / self.changes / self._sensitivity_cells

    def grow(self, x: Rows, targets: Array, entropy: Entropy) -> tuple[Any, npt.NDArray[np.int64]]:
        """Return the splits, and which leaf each row is in."""
        codes = bin_codes(x, self.design, self.public, self.parts).astype(np.int64)
        columns, node = self._columns(targets), np.zeros(len(codes), dtype=np.int64)
        numeric, splits = numeric_features(self.design, self.public), list[tuple[int, int]]()
        for level in range(self.depth):
            first_node = 2**level - 1
            for number in range(first_node, 2 * first_node + 1):
                in_node = node == number
                splits.append(self._split(codes[in_node], columns[in_node], entropy))
            node = 2 * node + 2 - _goes_left(codes, np.array(splits, dtype=np.int64)[node], np.array(numeric))
        return tuple(splits), node - (2**self.depth - 1)

    def _split(self, codes: Any, columns: Array, entropy: Entropy) -> tuple[int, int]:
        """Choose the split of one node by the exponential mechanism."""
        candidates, qualities = list[tuple[int, int]](), []
        sizes, numeric = (
            bin_counts(self.design, self.public, self.parts),
            numeric_features(self.design, self.public),
        )
        total = columns.sum(axis=0)
        for feature, bins in enumerate(sizes):
            left: Any = np.stack(
                [np.bincount(codes[:, feature], weights=c, minlength=bins) for c in columns.T], axis=1
            )
            left = left.cumsum(axis=0)[:-1] if numeric[feature] else left
            qualities.append(np.rint(self._quality(left, total) * _CELLS).astype(np.int64))
            candidates += [(feature, bin_number) for bin_number in range(len(left))]
        choice = sampling.argmax_gumbel(np.concatenate(qualities), self.rate, entropy)
        return candidates[choice]


@described("learning.PrivateTree")
@dataclass(frozen=True, kw_only=True)
class PrivateTree(GreedyTree, Classifying):
    """Learns a full classification tree of fixed `depth`, level by level (Friedman & Schuster 2010, "Data
    mining with differential privacy", Section 3): splits by the exponential mechanism, leaves with noisy
    counts of classes.

    The quality of a split is "max", the number of rows in the largest class of each side, or "gini", minus
    the impurity n - sum_c n_c² / n of each side.

    Guarantee: `event`.
    Proof:     `GreedyTree`; a row is in one count of one leaf, and a replaced one moves the counts by 2 in
               l1. Both qualities are monotone in the table: "max" grows by 0 or 1 with a row. For "gini" with
               p = n_c / n the derivative of the impurity in n_c is
               1 - 2 p_c + sum_j p_j² = (1 - p_c)² + sum_(j != c) p_j², which is between 0 and
               2 (1 - p_c)² <= 2, so that a row adds between 0 and 2. Counts are exact, and what floats
               round of a quality is below half a cell up to 2^33 rows and 500 classes, which rounding to
               whole cells does not turn into a second cell.
    Accuracy:  counts of leaves are within `error` with the stated probability.
    """

    criterion: str = "gini"

    def _check(self) -> None:
        Classifying._check(self)
        _require.one_of(CRITERIA, criterion=self.criterion)
        super()._check()

    @property
    def _range(self) -> int:
        return 2 if self.criterion == "gini" else 1

    @property
    def _sensitivity_cells(self) -> int:
        """Return the range of a quality in cells; "max" counts rows, and is not rounded."""
        return _CELLS if self.criterion == "max" else super()._sensitivity_cells

    @cached_property
    def noise(self) -> IntegerLaplace:
        return IntegerLaplace.for_epsilon(
            self.epsilon / 2, sensitivity=self.changes, neighbors=self.public.neighbors
        )

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
        """Return class probabilities, shrunk towards those of all rows where a leaf has few rows for its
        noise."""
        total = np.maximum(counts.sum(axis=0).astype(np.float64), 1.0)
        # Never zero, as the noise of a very large epsilon is: an empty leaf has the class probabilities of
        # all rows.
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
