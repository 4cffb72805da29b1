"""Releases second moments of rows once: ridge regression for every penalty and principal components follow
from them.

`SecondMoments` adds exact discrete noise to the matrix sum_i z_i z_i' of rows z = (coordinates, target).
AdaSSP (Wang 2018), ridge paths and PCA are functions of the released matrix, and cost nothing more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _require
from .._public import ADD_REMOVE, Public
from .._registry import described
from .._system import on_one_thread
from ..accounting import Event
from ..mechanisms.additive import laplace_noise
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.noise_scales import zcdp_rho
from ..mechanisms.protocols import Mechanism, Release, Sensitivity, check_source, release
from ..sampling import Entropy
from ..tables import Source
from .erm import Delta, Epsilon
from .linear_model import LinearModel, columns_only, target_classes
from .rows import Design

Array = npt.NDArray[np.float64]
# Coordinates are rounded to multiples of 1 / CELLS before they are multiplied, so that products are whole
# multiples of 1 / CELLS². Chosen by hand, not tuned.
CELLS = 1 << 10
# How many rows are multiplied at once: their sums of products, at most _ROWS CELLS² = 2^34, are exact floats.
_ROWS = 1 << 14


@described("learning.Moments")
class Moments:
    """Holds noisy second moments of the coordinates of a design, with the target as last coordinate where
    there is one.

    `upper` is the upper triangle of the matrix, row by row; `deviation` the standard deviation of the noise
    of an entry.
    """

    design: Design
    public: Public
    upper: tuple[float, ...]
    deviation: float

    @property
    def matrix(self) -> Array:
        """Return the symmetric matrix; noise may have made it indefinite."""
        width = self.design.width(self.public) + (self.design.target is not None)
        result = np.zeros((width, width))
        result[np.triu_indices(width)] = self.upper
        return np.asarray(result + np.triu(result, 1).T)

    def ridge(self, penalty: float | None = None, failure: float = 0.05) -> LinearModel:
        """Return the ridge regression of the target; any number of penalties cost nothing more.

        Without a penalty AdaSSP chooses it (Wang 2018, arXiv:1803.02596, Algorithm 2): it is the bound
        deviation sqrt(d log(2 d² / failure)) on the spectral norm of the noise, which fails with probability
        `failure`, minus the smallest eigenvalue, and at least 0; d is the number of coordinates. The paper
        releases that eigenvalue separately. Here it is the noisy matrix's, which costs nothing more, and
        differs from the true one by at most the spectral norm of the noise (Weyl).
        """
        _require.that(self.design.target is not None, "these moments have no target: measure them with one.")
        matrix = self.matrix
        gram, cross = matrix[:-1, :-1], matrix[:-1, -1]
        if penalty is None:
            width = len(gram)
            spectral_norm = self.deviation * math.sqrt(width * math.log(2 * width**2 / failure))
            penalty = max(0.0, spectral_norm - max(0.0, float(on_one_thread(np.linalg.eigvalsh)(gram)[0])))
        _require.non_negative(penalty=penalty)
        values, vectors = on_one_thread(np.linalg.eigh)(gram)
        # the true matrix has no negative eigenvalue, but noise may have made one negative: no divisor is
        # below the penalty, nor below the typical size of the noise
        floor = max(penalty, self.deviation * math.sqrt(len(gram)), 1e-12)
        weights = vectors @ ((vectors.T @ cross) / np.maximum(values + penalty, floor))
        return LinearModel(design=self.design, public=self.public, weights=(tuple(weights.tolist()),))

    @property
    def _matrix_with_count(self) -> Array:
        """Return the matrix, whose last row must be the intercept's: it holds the sums, and last the
        count."""
        _require.that(
            self.design.target is None and self.design.intercept,
            "means, covariances and principal components need moments with an intercept and without a "
            "target.",
        )
        return self.matrix

    def components(self, count: int) -> tuple[Array, Array]:
        """Return the first principal components of the covariance, as rows, and their variances, largest
        first.

        The intercept coordinate holds the noisy count and sums: the covariance is of centered rows.
        """
        covariance = self.covariance
        _require.integer(count=count, at_least=1)
        _require.must(
            count <= len(covariance), "count", count, f"at most {len(covariance)}, the number of coordinates"
        )
        values, vectors = on_one_thread(np.linalg.eigh)(covariance)
        return vectors[:, ::-1][:, :count].T, np.maximum(values[::-1][:count], 0.0)

    @property
    def mean(self) -> Array:
        """Return the means of the coordinates."""
        matrix = self._matrix_with_count
        return np.asarray(np.clip(matrix[:-1, -1] / max(1.0, float(matrix[-1, -1])), -1, 1))

    @property
    def covariance(self) -> Array:
        """Return the covariance of the coordinates; noise may have made it indefinite."""
        matrix = self._matrix_with_count
        return np.asarray(matrix[:-1, :-1] / max(1.0, float(matrix[-1, -1])) - np.outer(self.mean, self.mean))


@described("learning.SecondMoments")
@dataclass(frozen=True, kw_only=True)
class SecondMoments(Mechanism):
    """Releases sum_i z_i z_i', upper triangle, on a grid with exact discrete noise: Laplace without a delta,
    Gaussian with one.

    Guarantee: `event`: an integer vector with exact noise for its `sensitivity`.
    Proof:     a row's coordinates are rounded to whole cells q; its products q_j q_k are whole numbers and
               sums are exact. The upper triangle of q q' has l1 norm (|q|_1² + |q|_2²) / 2, and l2 norm at
               most |q|_2²; rounding moves each coordinate by at most half a cell, so
               |q|_2 <= CELLS |z|_2 + sqrt(width) / 2 and |q|_1 <= CELLS |z|_1 + width / 2. A replaced row is
               one removed and one added, which doubles the sensitivity.
    Accuracy:  noise moves every entry by at most `error` with the stated probability; AdaSSP's excess risk is
               in Wang 2018, Theorem 3.
    """

    public: Public
    design: Design
    epsilon: Epsilon
    delta: Delta = 0.0

    def __post_init__(self) -> None:
        self.design.check(self.public)
        if self.design.target is not None:
            target_classes(self.public, self.design.target, classifies=False)
        self.noise  # noqa: B018 - price it now

    @property
    def asked(self) -> tuple[float, float]:
        """Return the epsilon and the delta that the caller declared."""
        return self.epsilon, self.delta

    @property
    def width(self) -> int:
        """Return the number of rows of the matrix: coordinates, and the target."""
        return self.design.width(self.public) + (self.design.target is not None)

    @property
    def sensitivity(self) -> Sensitivity:
        l1, l2 = self.design.norms(self.public)
        if self.design.target is not None:
            l1, l2 = l1 + 1, math.hypot(l2, 1)
        l2_cells, l1_cells = CELLS * l2 + math.sqrt(self.width) / 2, CELLS * l1 + self.width / 2
        changes = 1 if self.public.neighbors is ADD_REMOVE else 2
        entries = self.width * (self.width + 1) // 2
        return Sensitivity(
            linf=changes * (CELLS + 1) ** 2,
            l0=entries,
            l1=math.ceil(changes * (l1_cells**2 + l2_cells**2) / 2 * (1 + 1e-12)),
            l2_squared=math.ceil(changes**2 * l2_cells**4 * (1 + 1e-12)),
        )

    @cached_property
    def noise(self) -> IntegerLaplace | IntegerGaussian:
        if self.delta == 0:
            return laplace_noise(self.public, self.epsilon, self.sensitivity)
        rho = zcdp_rho(self.epsilon, self.delta)
        return IntegerGaussian.for_rho(rho, sensitivity=self.sensitivity, neighbors=self.public.neighbors)

    @property
    def event(self) -> Event:
        return self.noise.event

    def _sums(self, source: Source, entropy: Entropy) -> npt.NDArray[Any]:
        """Return the exact upper triangle of sum_i z_i z_i', in units of 1 / CELLS²."""
        x, y = self.design.read(source, entropy)
        rows = x if self.design.target is None else np.concatenate([x, y[:, None]], axis=1)
        total = np.zeros((self.width, self.width), dtype=object)
        for start in range(0, len(rows), _ROWS):
            # all numbers stay far below 2^53, where floats are exact; Python integers hold the total
            cells = np.rint(rows[start : start + _ROWS].astype(np.float64) * CELLS)
            total = total + (cells.T @ cells).astype(np.int64).astype(object)
        return np.asarray(total[np.triu_indices(self.width)])

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        noisy: Any = self.noise(self._sums(source, entropy), entropy=entropy)
        value = Moments(
            design=self.design,
            public=columns_only(self.public, self.design),
            deviation=self.noise.standard_deviation / CELLS**2,
            upper=tuple(float(int(entry)) / CELLS**2 for entry in noisy),
        )
        return release(value, event=self.event, entropy=entropy, error=self.error)

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on the noise of all entries, which holds with this probability; the rounding of
        coordinates to the grid is not included."""
        entries = self.width * (self.width + 1) // 2
        return float(self.noise.error(confidence, entries=entries)) / CELLS**2
