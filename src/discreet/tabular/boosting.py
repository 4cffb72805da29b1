"""Fits additive boosted trees: DP-EBM, an interpretable sum of one function per feature."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from .. import _require, sampling
from .._public import Boolean, Bounds, Categories, Public
from .._registry import described
from .._require import OPEN_PROBABILITY, POSITIVE, at_least
from ..accounting import Event, compose
from ..mechanisms.noise import IntegerGaussian
from ..mechanisms.noise_scales import zcdp_rho
from ..mechanisms.protocols import Sensitivity
from ..sampling import Entropy
from .learner import CELLS, TableLearner
from .linear_model import ScoreModel, columns_only, number_of_models, target_classes
from .rows import Design, Rows
from .trees import bin_codes, bin_counts, numeric_features

Array = npt.NDArray[np.float64]
# How many bins of equal width a number's bounds are cut into, before bins with few rows are merged. Chosen by
# hand, not tuned. Model files hold one score for each, so files written before a change could not be loaded.
PARTS = 256


@described("learning.AdditiveModel")
class AdditiveModel(ScoreModel):
    """Predicts by a sum of one step function per feature: `shapes[model][feature]` has one score for each bin
    of the feature. Bins are numbered as in the module `trees`, with `PARTS` bins of a number.

    There is one model for a number or two classes, and with more classes one for each against the rest.
    """

    design: Design
    public: Public
    shapes: tuple[tuple[tuple[float, ...], ...], ...]
    classes: tuple[Any, ...] = ()
    joint: ClassVar[bool] = False  # type: ignore[misc]

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", _require.listed(classes=self.classes))
        shapes = tuple(tuple(tuple(float(v) for v in bins) for bins in model) for model in self.shapes)
        object.__setattr__(self, "shapes", shapes)
        models, counts = number_of_models(self.classes), bin_counts(self.design, self.public, PARTS)
        what = f"an additive model of these columns has {models} x {counts} numbers."
        _require.that([[len(bins) for bins in model] for model in shapes] == [counts] * models, what)

    def scores(self, X: Any) -> Array:
        """Return one score per row, or with more than two classes one per class."""
        return self._scores(self.design.encode(X, self.public))

    def _scores(self, x: Any) -> Array:
        codes = bin_codes(x, self.design, self.public, PARTS)
        result = np.stack(
            [
                sum((np.array(bins)[codes[:, i]] for i, bins in enumerate(model)), np.zeros(len(codes)))
                for model in self.shapes
            ],
            axis=1,
        )
        return result[:, 0] if len(self.shapes) == 1 else result

    def shape(self, feature: str) -> list[tuple[Any, Any]]:
        """Return what a feature adds to the score: for each bin the pair of its value (of a number, the lower
        end of the bin; None for a missing or undeclared value) and its score, or a tuple of scores by
        class."""
        _require.must(
            feature in self.design.features, "feature", feature, f"one of {list(self.design.features)}"
        )
        index = self.design.features.index(feature)
        fact: Any = self.public.fact(feature)
        scores = [model[index] for model in self.shapes]
        values: Any = zip(*scores, strict=True) if len(scores) > 1 else scores[0]
        if isinstance(fact, Bounds):
            low, high = float(fact.lower), float(fact.upper)
            names: list[Any] = [low + (high - low) * i / PARTS for i in range(PARTS)]
        else:
            names = [False, None, True] if isinstance(fact, Boolean) else [*fact.values, None]
        return list(zip(names, values, strict=True))

    def losses(self, x: Any, targets: Array) -> Array:
        """Return the loss of each row of coordinates, within [0, 1] and a function of that row: 1 for a wrong
        class, a quarter of the squared error for a number."""
        return self._losses(self._scores(x), targets)


@described("learning.AdditiveBoosting")
class AdditiveBoosting(TableLearner):
    """Learns an additive model by DP-EBM (Nori, Caruana, Bu, Shen & Kulkarni 2021, arXiv:2106.09680,
    Algorithm 2): cyclic boosting of small random trees of one feature each.

    First every feature's histogram is released, for the share `bin_share` of rho. Adjacent bins of a number
    are merged into about `bins` groups that hold enough rows. Then, in each of `rounds` rounds and for every
    feature, its groups are divided into at most `leaves` leaves at random, independently of the data. The
    noisy sum of the residuals of each leaf, divided by its noisy count and times `learning_rate`, is added to
    the feature's function. With more than two classes one such model is fitted for each class against the
    rest. The default `learning_rate` is larger and `rounds` fewer than the paper's (0.01 and 300): the noise
    in the scores depends on their product alone, and 0.1 x 100 scored better than 0.03 x 100 on one split of
    Adult.

    Guarantee: `event`: one vector of counts, and rounds x features x models vectors of sums, each with
               exact discrete Gaussian noise; rho-zCDP in all.
    Proof:     a row is in one bin of each feature, so that it moves as many counts as there are features by 1
               each. In each step it is in one leaf, and moves that leaf's sum by its residual, which is in
               [-1, 1] and rounded to a multiple of 1 / CELLS before it is summed: at most CELLS of these
               multiples. Residuals are a function of the row and of what was released before; leaves are
               drawn independently of the data. zCDP adds up over all releases. A replaced row moves two
               leaves, or one by twice as much: the squared l2 sensitivity of the sums is at most 4 CELLS²,
               and that of the counts 4 per feature.
    Assumes:   numpy's and scipy's elementwise functions give a number the same value wherever it stands in an
               array.
    Accuracy:  the noise moves every sum of residuals of a leaf by at most `error` with the stated
               probability.
    """

    rounds: Annotated[int, at_least(1)] = 100
    learning_rate: Annotated[float, POSITIVE] = 0.1
    leaves: Annotated[int, at_least(2)] = 3
    bins: Annotated[int, at_least(2)] = 32
    bin_share: Annotated[float, OPEN_PROBABILITY] = 0.1

    def _check(self) -> None:
        self.design.require_target()
        _require.that(
            self.delta != 0,
            "boosting adds Gaussian noise thousands of times, which needs a delta above 0. Give "
            "delta=1e-6, or take LogisticRegression, which needs none.",
        )
        self.classes, self.noises, self.size  # noqa: B018 - price it now, and refuse an undeclared size

    @property
    def classes(self) -> tuple[Any, ...]:
        assert self.design.target is not None
        classifies = isinstance(self.public.fact(self.design.target), Categories | Boolean)
        return target_classes(self.public, self.design.target, classifies=classifies)

    @property
    def models(self) -> int:
        """Return the number of additive models: one, or with more than two classes one per class."""
        return 1 if len(self.classes) <= 2 else len(self.classes)

    @property
    def steps(self) -> int:
        """Return the number of releases of noisy sums."""
        return self.rounds * len(self.design.features) * self.models

    @cached_property
    def noises(self) -> tuple[IntegerGaussian, IntegerGaussian]:
        """Return the noise of the histograms, and the noise of the sums of one step."""
        # 1e-12 less, so that the rounding of the shares cannot add up to more than rho
        rho, k = zcdp_rho(self.epsilon, self.delta) * (1 - 1e-12), len(self.design.features)
        changes = self.changes
        counts = Sensitivity(linf=changes, l0=changes * k, l2_squared=changes**2 * k)
        sums = Sensitivity(linf=changes * CELLS, l0=changes, l2_squared=(changes * CELLS) ** 2)
        shares = self.bin_share, (1 - self.bin_share) / self.steps
        first, second = (
            IntegerGaussian.for_rho(rho * share, sensitivity=sensitivity, neighbors=self.public.neighbors)
            for share, sensitivity in zip(shares, (counts, sums), strict=True)
        )
        return first, second

    @property
    def event(self) -> Event:
        histogram, step = self.noises
        return compose([histogram.event, step.event.repeated(self.steps)])

    def fit_rows(self, x: Rows, targets: Array, entropy: Entropy) -> AdditiveModel:
        codes = bin_codes(x, self.design, self.public, PARTS)
        groups, counts = self._groups(codes, entropy)
        group_codes = np.stack([g[codes[:, i]] for i, g in enumerate(groups)], axis=1)
        shapes = []
        for number in range(self.models):
            labels = targets if self.models == 1 else (targets == number).astype(np.float64)
            functions = self._boost(group_codes, labels, counts, entropy)
            shapes.append(tuple(tuple(f[g].tolist()) for f, g in zip(functions, groups, strict=True)))
        return AdditiveModel(
            design=self.design,
            public=columns_only(self.public, self.design),
            shapes=tuple(shapes),
            classes=self.classes,
        )

    def _groups(self, codes: Any, entropy: Entropy) -> tuple[list[Any], list[Array]]:
        """Return, for each feature, the group of each of its bins, and the noisy number of rows of each
        group."""
        sizes = bin_counts(self.design, self.public, PARTS)
        exact = [np.bincount(codes[:, i], minlength=n).astype(np.int64) for i, n in enumerate(sizes)]
        noisy: Any = self.noises[0](np.concatenate(exact), entropy=entropy)
        deviation = math.sqrt(float(self.noises[0].variance))
        groups, counts, start = [], [], 0
        for n, numeric in zip(sizes, numeric_features(self.design, self.public), strict=True):
            feature_counts = noisy[start : start + n].astype(np.float64)
            start += n
            group = _merge_bins(feature_counts, self.size / self.bins, deviation) if numeric else np.arange(n)
            groups.append(group)
            counts.append(np.bincount(group, weights=feature_counts).astype(np.float64))
        return groups, counts

    def _boost(self, codes: Any, targets: Array, counts: list[Array], entropy: Entropy) -> list[Array]:
        """Run all rounds of boosting, and return one function per feature: an array of scores by group.

        `codes` has the group of each feature per row, and `counts` the noisy number of rows of each group.
        """
        functions = [np.zeros(len(c)) for c in counts]
        # the standard deviation of the noise, as a number of rows
        noise_rows = math.sqrt(float(self.noises[1].variance)) / CELLS
        scores = np.zeros(len(codes))
        numeric = numeric_features(self.design, self.public)
        columns = [np.ascontiguousarray(codes[:, i], dtype=np.int64) for i in range(len(counts))]
        for leaves in self._random_leaves(counts, numeric, entropy):
            for i, leaf in enumerate(leaves):
                sums = self._sums(columns[i], leaf, scores, targets)
                noisy: Any = self.noises[1](sums, entropy=entropy)
                sizes = np.bincount(leaf, weights=counts[i], minlength=len(sums))
                # a noisy count may be near 0 or negative: then the noise's deviation takes its place
                step = noisy.astype(np.float64) / CELLS / np.maximum(sizes, max(1.0, noise_rows))
                change = self.learning_rate * np.clip(step, -1, 1)[leaf]
                functions[i] += change
                scores += change[columns[i]]
        return functions

    def _sums(self, column: Any, leaf: Any, scores: Array, targets: Array) -> npt.NDArray[np.int64]:
        """Return the sum of residuals of each leaf, in units of 1 / CELLS."""
        predictions = expit(scores) if self.classes else scores
        residuals = np.rint(np.clip(targets - predictions, -1, 1) * CELLS)
        # float sums of whole numbers are exact below 2^53
        sums = np.bincount(leaf[column], weights=residuals, minlength=self.leaves)
        return np.asarray(sums, dtype=np.int64)

    def _random_leaves(
        self, counts: list[Array], numeric: list[bool], entropy: Entropy
    ) -> Iterator[list[Any]]:
        """Yield, for each round, one array per feature: the leaf of each of its groups.

        A number's leaves are intervals between random cuts; groups of any other feature, which have no order,
        are shuffled first. Draws do not depend on the data.
        """
        for _ in range(self.rounds):
            leaves = []
            for c, has_order in zip(counts, numeric, strict=True):
                cuts = np.sort(sampling.uniform_below(max(1, len(c) - 1), self.leaves - 1, entropy)) + 1
                leaf = np.searchsorted(cuts, np.arange(len(c)), side="right")
                leaves.append(leaf if has_order else leaf[sampling.permutation(len(c), entropy)])
            yield leaves

    @property
    def numbers(self) -> int:
        return self.models * sum(bin_counts(self.design, self.public, PARTS))

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on the noise of all sums of residuals, which holds with this probability."""
        return float(self.noises[1].error(confidence, entries=self.leaves * self.steps)) / CELLS


def _merge_bins(counts: Array, minimum: float, deviation: float) -> npt.NDArray[np.int64]:
    """Return the group of each bin: adjacent bins are merged until their noisy count is at least `minimum`
    and two standard deviations of its noise (`deviation` per bin); the last group may have fewer rows."""
    groups, group_count, length, number = np.zeros(len(counts), dtype=np.int64), 0.0, 0, 0
    for i, count in enumerate(counts.tolist()):
        groups[i] = number
        group_count, length = group_count + count, length + 1
        if group_count >= max(minimum, 2 * deviation * math.sqrt(length)) and i < len(counts) - 1:
            group_count, length, number = 0.0, 0, number + 1
    return groups
