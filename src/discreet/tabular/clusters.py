"""Fits k-means by noisy sums and counts of clusters in a few rounds of Lloyd's algorithm (DPLloyd)."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from .. import _require, sampling
from .._public import Public
from .._registry import described
from .._require import at_least, at_most
from ..accounting import Event
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.protocols import Sensitivity
from ..sampling import Entropy
from .learner import CELLS, Integers, TableLearner, by_group, exact_noise, on_grid
from .linear_model import columns_only
from .rows import Design, Rows

Array = npt.NDArray[np.float64]
# The typical size of a coordinate of a centroid, relative to the width of the domain: the constant that Su et
# al. 2016, Section 4, call rho (it has nothing to do with the rho of zCDP).
_CENTROID_SIZE = 0.225
# How many rows' distances are computed at once, which bounds memory. Chosen by hand, not tuned.
_ROWS = 1 << 14
# How many times finer the grid of centers is than the grid of rows (`CELLS`). Chosen by hand, not
# tuned; the proof of `_nearest` holds up to 64.
_FINER = 64


@described("learning.Clusters")
class Clusters:
    """Holds the centers of clusters, in coordinates of [-1, 1], and assigns rows to the nearest."""

    design: Design
    public: Public
    centers: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "centers", tuple(tuple(float(v) for v in row) for row in self.centers))
        width = self.design.width(self.public)
        fits = self.centers and all(len(row) == width for row in self.centers)
        _require.that(fits, f"centers must be rows of {width} coordinates.")

    def distances(self, X: Any) -> Array:
        """Return the distance of each row to each center."""
        squared_distances = _squared_distances(self.design.encode(X, self.public), np.array(self.centers))
        return np.asarray(np.sqrt(np.maximum(squared_distances, 0.0)))

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """Return the number of the nearest center."""
        return np.asarray(self.distances(X).argmin(axis=1))


def _squared_distances(x: Any, centers: Array) -> Array:
    """Return the squared distance of each row to each center; rounding may make it slightly negative."""
    rows = np.asarray(x, np.float64)
    lengths = np.einsum("ij,ij->i", rows, rows)[:, None]
    return np.asarray(lengths - 2 * rows @ centers.T + (centers**2).sum(axis=1))


def _nearest(cells: Integers, centers: Array) -> npt.NDArray[np.int64]:
    """Return the number of the nearest center of each row, whose coordinates are in units of 1 / CELLS.

    Guarantee: the number is a function of that row and the centers alone. Of several nearest centers it is
               the first.
    Proof:     the nearest center c of a row x is the one with the least |c|² - 2 <x, c>. With centers rounded
               to a grid that is _FINER times finer, this is a whole number in units of that grid's cell
               squared. All products and sums are whole numbers below 2^53 (for up to 2^19 coordinates), which
               double precision adds exactly in any order.
    """
    on_finer_grid = np.rint(centers * (CELLS * _FINER))
    squares = (on_finer_grid**2).sum(axis=1)
    nearest = [np.zeros(0, dtype=np.int64)]
    for start in range(0, len(cells), _ROWS):
        products = cells[start : start + _ROWS].astype(np.float64) @ on_finer_grid.T
        nearest.append((squares - 2 * _FINER * products).argmin(axis=1))
    return np.concatenate(nearest)


@described("learning.Lloyd")
class Lloyd(TableLearner):
    """Learns k-means clusters by Lloyd's algorithm with noisy sums and counts, from initial centers that do
    not depend on data (DPLloyd with the improvements of Su, Cao, Li, Bertino & Jin 2016, arXiv:1504.05998).

    `rounds` is by default the paper's: epsilon divided by the least epsilon of a useful round, but between 2
    and 7.
    A row adds its coordinates to the sums of its cluster, and `weight` to the count. Where a coordinate is at
    most 1, the paper's weight is cbrt(4 d 0.225²), with d the number of features.

    Guarantee: `event`: `rounds` integer vectors, chosen adaptively, with exact noise for their `sensitivity`.
    Proof:     a row is in one cluster. It changes that cluster's count by `weight`, and the sums by its own
               coordinates, at most CELLS for each feature, since at most one indicator of a category is 1.
               Its cluster is a function of that row and the centers alone: distances are compared as whole
               numbers (`_nearest`). The next centers are a function of what was released before; the initial
               ones are drawn from public facts. A replaced row is one removed and one added, which doubles
               the sensitivity.
    Accuracy:  the noise moves every sum of coordinates by at most `error` with the stated probability; for
               the error of the centers see the paper, Section 4.
    """

    # the largest number bounds time and memory; chosen by hand, not tuned
    clusters: Annotated[int, at_least(1), at_most(10_000)] = 8
    rounds: Annotated[int, at_least(1)] | None = None

    def _check(self) -> None:
        self.noise  # noqa: B018 - price it now

    @property
    def steps(self) -> int:
        """Return the number of rounds: `rounds`, or the paper's."""
        if self.rounds is not None:
            return self.rounds
        d = len(self.design.features)
        # the l1 norm of a row of d coordinates and its weighted count
        row_norm = d + float((4 * d * _CENTROID_SIZE**2) ** (1 / 3))
        # the least epsilon of a round in Su et al. 2016, Section 4; 500 is their constant
        round_epsilon = math.sqrt(500 * self.clusters**3 / self.size**2 * row_norm**3)
        return max(2, int(min(7.0, self.epsilon / round_epsilon)))

    @property
    def weight(self) -> int:
        """Return what a row adds to the count of its cluster, where a coordinate of 1 adds CELLS."""
        return max(1, round(CELLS * float((4 * len(self.design.features) * _CENTROID_SIZE**2) ** (1 / 3))))

    @property
    def sensitivity(self) -> Sensitivity:
        d, weight, changes = len(self.design.features), self.weight, self.changes
        return Sensitivity(
            linf=changes * max(weight, CELLS),
            l0=changes * (1 + d),
            l1=changes * (weight + d * CELLS),
            l2_squared=changes**2 * (weight**2 + d * CELLS**2),
        )

    @cached_property
    def noise(self) -> IntegerLaplace | IntegerGaussian:
        return exact_noise(self.epsilon, self.delta, self.sensitivity, self.public, self.steps)

    @property
    def event(self) -> Event:
        return self.noise.event.repeated(self.steps)

    def fit_rows(self, x: Rows, targets: Array, entropy: Entropy) -> Clusters:
        centers = self._initial_centers(entropy)
        cells = np.concatenate([np.full((len(x), 1), self.weight, dtype=np.int64), on_grid(x)], axis=1)
        for _ in range(self.steps):
            sums = by_group(cells, _nearest(cells[:, 1:], centers), self.clusters)
            noisy: Any = self.noise(sums, entropy=entropy)
            centers = self._update_centers(noisy.astype(np.float64), centers)
        return Clusters(
            design=self.design,
            public=columns_only(self.public, self.design),
            centers=tuple(tuple(row) for row in centers.tolist()),
        )

    def _update_centers(self, noisy: Array, centers: Array) -> Array:
        """Return the new centers from noisy counts and sums; a center whose noisy count is at most 1, or
        at most one standard deviation of its noise, stays where it is."""
        counts = noisy[:, 0] / self.weight
        exceeds_noise = counts > max(1.0, self.noise.standard_deviation / self.weight)
        # means of numbers and booleans are in [-1, 1], those of indicators in [0, 1]
        lower = np.zeros(centers.shape[1])
        lower[[*self.layout.numbers, *self.layout.flags]] = -1.0
        means = np.clip(noisy[:, 1:] / CELLS / np.maximum(counts, 1.0)[:, None], lower, 1.0)
        return np.where(exceeds_noise[:, None], means, centers)

    def _initial_centers(self, entropy: Entropy) -> Array:
        """Return centers that are far from each other, independently of the data (sphere packing, Section 4.1
        of the paper).

        Bisection, in 12 steps (chosen by hand, not tuned), searches the largest distance for which
        `_pack_spheres` succeeds.
        """
        # up to the diagonal of [-1, 1]^d, for d features
        low, high = 0.0, math.sqrt(4.0 * len(self.design.features))
        centers = self._points(self.clusters, entropy)
        for _ in range(12):
            distance = (low + high) / 2
            packing = self._pack_spheres(distance, entropy)
            low, high = (low, distance) if packing is None else (distance, high)
            centers = centers if packing is None else packing
        return centers

    def _pack_spheres(self, distance: float, entropy: Entropy) -> Array | None:
        """Return centers at least `distance` from each other, taken one by one from random points; None if
        there are too few such points."""
        centers = np.zeros((0, self.design.width(self.public)))
        # 20 points are tried per cluster (chosen by hand, not tuned); with more, larger distances succeed.
        for point in self._points(20 * self.clusters, entropy):
            if not len(centers) or float(_squared_distances(centers, point[None, :]).min()) >= distance**2:
                centers = np.concatenate([centers, point[None, :]])
            if len(centers) == self.clusters:
                return centers
        return None

    def _points(self, count: int, entropy: Entropy) -> Array:
        """Return random rows of coordinates: numbers and booleans uniform in [-0.75, 0.75], so that they keep
        away from the bounds, and one declared value of each category."""
        result, layout = np.zeros((count, self.design.width(self.public))), self.layout
        for column in (*layout.numbers, *layout.flags):
            result[:, column] = 0.75 * (2 * sampling.uniform_below(1 << 32, count, entropy) / 2.0**32 - 1)
        for start, values in layout.groups:
            categories = sampling.uniform_below(values, count, entropy).astype(np.int64)
            result[np.arange(count), start + categories] = 1.0
        return result

    @property
    def numbers(self) -> int:
        """Return how many numbers its model holds."""
        return self.clusters * self.design.width(self.public)

    def error(self, confidence: float = 0.95) -> float:
        entries = self.clusters * (1 + self.design.width(self.public)) * self.steps
        return float(self.noise.error(confidence, entries=entries)) / CELLS
