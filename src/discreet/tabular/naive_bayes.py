"""Fits naive Bayes from noisy counts, sums and squares by class, in one release."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from .. import _require
from .._public import Public
from .._registry import described
from .._require import LISTED
from ..accounting import Event
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.protocols import Sensitivity
from ..sampling import Entropy
from .learner import CELLS, Classifying, CoordinateLayout, by_group, exact_noise, on_grid
from .linear_model import class_array, columns_only
from .rows import Design, Rows

Array = npt.NDArray[np.float64]
# The least variance of a coordinate in [-1, 1]: a standard deviation of 1/30 of the width.
# Chosen by hand, not tuned.
_LEAST_VARIANCE = (2 / 30) ** 2


@described("learning.NaiveBayesModel")
class NaiveBayesModel:
    """Holds the probabilities of classes (`priors`) and, for each class, the mean and variance of each number
    and the probabilities of the values of each truth value and category (`chances`).

    A row of `chances` has two entries for each truth value (false, true), then one for each declared value of
    each category. The fields' names are stored in model files.
    """

    design: Design
    public: Public
    classes: Annotated[tuple[Any, ...], LISTED]
    priors: tuple[float, ...]
    means: tuple[tuple[float, ...], ...]
    variances: tuple[tuple[float, ...], ...]
    chances: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "priors", tuple(float(p) for p in self.priors))
        tables = {"means": self.means, "variances": self.variances, "chances": self.chances}
        layout = CoordinateLayout.of(self.design, self.public)
        entries = 2 * len(layout.flags) + sum(values for _, values in layout.groups)
        widths = {"means": len(layout.numbers), "variances": len(layout.numbers), "chances": entries}
        for name, table in tables.items():
            rows = tuple(tuple(float(v) for v in row) for row in table)
            object.__setattr__(self, name, rows)
            what = f"{name} must be {len(self.classes)} x {widths[name]} numbers."
            _require.that([len(row) for row in rows] == [widths[name]] * len(self.classes), what)
        _require.that(
            len(self.priors) == len(self.classes)
            and all(p > 0 for row in (self.priors, *self.variances, *self.chances) for p in row),
            "probabilities and variances must be positive.",
        )

    def scores(self, X: Any) -> Array:
        """Return the logarithm of the joint density of each row and each class, up to a constant."""
        return self._joint(self.design.encode(X, self.public))

    def _joint(self, x: Any) -> Array:
        """Return the scores of rows of coordinates.

        Guarantee: a row's scores are a function of that row.
        Proof:     they are added up column by column. numpy's elementwise operations round an entry the same
                   way at every position of an array; a matrix product, or a sum over columns, need not.
        """
        layout = CoordinateLayout.of(self.design, self.public)
        rows = np.asarray(x, np.float64)
        # one row per class, transposed at the end
        result = np.repeat(np.log(np.array(self.priors))[:, None], len(rows), axis=1)
        logs = np.log(np.array(self.chances))
        for column, values in enumerate(_indicators(rows, layout).T):
            result += logs[:, column, None] * values
        means, variances = np.array(self.means), np.array(self.variances)
        for column, values in enumerate(rows[:, layout.numbers].T):
            variance = variances[:, column, None]
            result -= ((values - means[:, column, None]) ** 2 / variance + np.log(variance)) / 2
        return np.ascontiguousarray(result.T)

    def losses(self, x: Any, targets: Array) -> Array:
        """Return 1 for each row of coordinates whose most probable class is not its own, and 0 otherwise.

        Guarantee: one row changes the sum of losses by at most 1. Proof: `_joint`.
        """
        return np.asarray(self._joint(x).argmax(axis=1) != targets, dtype=np.float64)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        return np.asarray(class_array(self.classes)[self.scores(X).argmax(axis=1)])

    def probabilities(self, X: Any) -> Array:
        joint = self.scores(X)
        return np.asarray(np.exp(joint - logsumexp(joint, axis=1, keepdims=True)))


def _indicators(x: Any, layout: CoordinateLayout) -> Array:
    """Return an indicator (0 or 1) for false and true of each truth value, and for each declared value of
    each category; all are 0 where the value is missing or undeclared."""
    columns = [np.zeros((len(x), 0))]
    for index in layout.flags:
        columns.append(np.stack([x[:, index] < 0, x[:, index] > 0], axis=1))
    columns += [x[:, start : start + count] for start, count in layout.groups]
    return np.concatenate(columns, axis=1, dtype=np.float64)


@described("learning.NaiveBayes")
@dataclass(frozen=True, kw_only=True)
class NaiveBayes(Classifying):
    """Releases, for each class, the noisy number of rows, the sums of x and of x² - 1/2 of each number x in
    [-1, 1], and the counts of each value of each truth value and category: all that Gaussian naive Bayes
    needs.

    Guarantee: `event`: one integer vector with exact noise for its `sensitivity`. The model is
               post-processing.
    Proof:     a row counts in the entries of its own class only: 1 for the row, 1 for each category or truth
               value, and for each number |x| + |x² - 1/2| <= 3/2 in l1 and x² + (x² - 1/2)² = x⁴ + 1/4 <= 5/4
               in squared l2. Entries are multiplied by CELLS; rounding to whole numbers adds at most 1/2 to
               each entry of a number. (With x² in place of x² - 1/2 the squared l2 norm would be x² + x⁴ <=
               2.) A replaced row is one removed and one added, which doubles the sensitivity.
    Accuracy:  the noise moves every entry by at most `error`, as a number of rows, with the stated
               probability.
    """

    @property
    def sensitivity(self) -> Sensitivity:
        layout = self.layout
        numbers, discrete = len(layout.numbers), len(layout.flags) + len(layout.groups)
        l1 = self.changes * (CELLS * (1 + discrete) + numbers * (3 * CELLS // 2 + 1))
        # with C = CELLS, (C + 1/2)² + (C/2 + 1/2)² bounds the squares of the two entries of a number
        squared = CELLS**2 * (1 + discrete) + numbers * (5 * CELLS**2 // 4 + 2 * CELLS + 1)
        entries = 1 + 2 * numbers + discrete
        return Sensitivity(
            linf=self.changes * CELLS, l0=self.changes * entries, l1=l1, l2_squared=self.changes**2 * squared
        )

    @cached_property
    def noise(self) -> IntegerLaplace | IntegerGaussian:
        return exact_noise(self.epsilon, self.delta, self.sensitivity, self.public)

    def _check(self) -> None:
        super()._check()
        self.noise  # noqa: B018 - price it now

    @property
    def event(self) -> Event:
        return self.noise.event

    def _statistics(self, x: Rows) -> npt.NDArray[np.int64]:
        """Return the entries of each row whose sums by class are released, in units of 1 / CELLS: 1, all x,
        all x² - 1/2, all indicators. `_model` reads them in this order."""
        numbers = np.asarray(x[:, self.layout.numbers], np.float64)
        columns = [
            np.full((len(x), 1), CELLS, dtype=np.int64),
            on_grid(numbers),
            on_grid(numbers**2 - 0.5),
            on_grid(_indicators(x, self.layout)),
        ]
        return np.concatenate(columns, axis=1)

    def fit_rows(self, x: Rows, targets: Array, entropy: Entropy) -> NaiveBayesModel:
        sums = by_group(self._statistics(x), targets, len(self.classes))
        noisy: Any = self.noise(sums, entropy=entropy)
        return self._model(noisy.astype(np.float64) / CELLS)

    def _model(self, noisy: Array) -> NaiveBayesModel:
        """Return the model of noisy sums, one row per class, in which a row of the table counts 1; this is
        post-processing."""
        layout = self.layout
        numbers, noise_deviation = len(layout.numbers), self.noise.standard_deviation / CELLS
        counts = np.maximum(noisy[:, 0], max(1.0, noise_deviation))
        means = np.clip(noisy[:, 1 : 1 + numbers] / counts[:, None], -1, 1)
        squares = np.clip(noisy[:, 1 + numbers : 1 + 2 * numbers] / counts[:, None] + 0.5, 0, 1)
        # noise may have made a variance too small: none is below two deviations of the noise of a mean square
        smallest_variance = np.minimum(1.0, np.maximum(_LEAST_VARIANCE, 2 * noise_deviation / counts))
        return NaiveBayesModel(
            design=self.design,
            public=columns_only(self.public, self.design),
            classes=self.classes,
            priors=tuple((counts / counts.sum()).tolist()),
            means=_tuples(means),
            variances=_tuples(np.maximum(squares - means**2, smallest_variance[:, None])),
            chances=_tuples(self._value_probabilities(np.maximum(noisy[:, 1 + 2 * numbers :], 0.0))),
        )

    def _value_probabilities(self, counts: Array) -> Array:
        """Return the probabilities of values in each class, after one standard deviation of the noise is
        added to every count."""
        result, start = np.ones_like(counts), 0
        smoothing = max(1.0, self.noise.standard_deviation / CELLS)
        for values in [2] * len(self.layout.flags) + [values for _, values in self.layout.groups]:
            smoothed = counts[:, start : start + values] + smoothing
            result[:, start : start + values] = smoothed / smoothed.sum(axis=1, keepdims=True)
            start += values
        return result

    @property
    def numbers(self) -> int:
        layout = self.layout
        width = 1 + 2 * len(layout.numbers) + 2 * len(layout.flags) + sum(n for _, n in layout.groups)
        return width * len(self.classes)

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on the noise of all entries, as a number of rows, which holds with this
        probability."""
        return float(self.noise.error(confidence, entries=self.numbers)) / CELLS


def _tuples(matrix: Array) -> tuple[tuple[float, ...], ...]:
    """Return a finite matrix as a tuple of rows."""
    assert math.isfinite(float(matrix.sum()))
    return tuple(tuple(row) for row in matrix.tolist())
