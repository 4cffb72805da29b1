"""Vectors in the local model: PrivUnit2, with its sphere replaced by a public list of random directions,
so that its privacy is integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .. import _require
from .._errors import InvalidInput
from .._registry import described
from .._require import Real
from ..accounting import Event
from ..mechanisms.protocols import Release
from ..sampling import Entropy
from . import _draws
from ._base import Floats, LocalRandomizer, check_range, released
from ._draws import Codes

# Nodes of the Gauss-Legendre quadrature over one coordinate, in eight panels of 500. No measurement on
# record: it runs once per set of parameters.
_NODES = 4000


@described("local.PrivUnit")
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivUnit(LocalRandomizer):
    """Reports one of `directions` random unit vectors, more likely one that points the same way: PrivUnit2,
    for vectors of length at most `norm`.

    The directions are drawn from a public seed that the client chooses and reports, so a report is a seed and
    a number. The `cap` directions with the largest inner product are the likely ones (by default as many as
    make the error least). A vector shorter than `norm` gets one more coordinate that makes it as long, which
    is forgotten in the estimate: so lengths stay private and the estimate unbiased.

    Guarantee: one report is epsilon-DP.
    Proof:     given the seed, exactly `cap` of the numbers have weight a and the others b, of one total,
               whatever the vector; a / b <= exp(epsilon). Floating point decides *which* directions are near,
               and no ratio depends on that. Bhowmick et al. 2018, arXiv:1812.00984 (spherical caps); Shah et
               al. 2022, arXiv:2111.00092 (a list of random candidates instead of the sphere). Unbiased: the
               distribution of the directions is invariant under rotations, so the mean report is a multiple c
               of the vector; c is an integral over order statistics (`scale`).
    Assumes:   `entropy` yields independent uniform bits.
    """

    epsilon: Real
    dimension: int
    norm: Real = 1
    directions: int = 0
    cap: int = 0

    _value_dimensions = 1

    def __post_init__(self) -> None:
        _require.integer(dimension=self.dimension, directions=self.directions, cap=self.cap, at_least=0)
        _require.integer(dimension=self.dimension, at_least=1)
        _require.positive(norm=self.norm)
        _draws.positive_epsilon(self.epsilon)
        if not self.directions:
            object.__setattr__(
                self, "directions", 1 << min(12, max(7, math.ceil(float(self.epsilon) / math.log(2)) + 5))
            )
        if not 2 <= self.directions <= 1 << 16:
            raise _require.fail("directions", self.directions, "from 2 to 65536")
        if not self.cap:
            object.__setattr__(
                self, "cap", _best_cap(self.dimension + 1, self.directions, float(self.epsilon))
            )
        if self.cap >= self.directions:
            raise _require.fail("cap", self.cap, f"below directions = {self.directions}")
        self._weights  # noqa: B018 - refuses an epsilon that integer odds cannot express

    @property
    def _weights(self) -> tuple[int, int]:
        return _draws.odds(self.epsilon, self.cap, self.directions - self.cap)

    @property
    def ratio(self) -> Fraction:
        return Fraction(*self._weights)

    @property
    def scale(self) -> float:
        """Return c: the mean of the reported direction is c times the unit vector."""
        a, b = self._weights
        share = float(Fraction(a - b, a * self.cap + b * (self.directions - self.cap)))
        return share * _top_sum(self.dimension + 1, self.directions, self.cap)

    def mean_squared_error(self, people: int) -> float:
        """Return the expected squared length of the error of the estimated mean, at most: (norm / c)² / n."""
        _require.integer(people=people, at_least=1)
        return (float(self.norm) / self.scale) ** 2 / people

    def _values(self, array: NDArray[Any]) -> Floats:
        """Return unit vectors with one more coordinate; longer vectors are shortened to `norm`."""
        if array.dtype.kind not in "fiu" or array.shape[1] != self.dimension:
            raise InvalidInput(f"values must be vectors of {self.dimension} numbers. Nothing was drawn.")
        vectors = array.astype(np.float64) / float(self.norm)
        if not np.isfinite(vectors).all():
            raise InvalidInput("values must be vectors of finite numbers. Nothing was drawn.")
        largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1.0)
        length = np.linalg.norm(vectors / largest, axis=1, keepdims=True) * largest
        vectors = vectors / np.maximum(length, 1.0)
        completion = np.sqrt(np.maximum(0.0, 1 - (vectors**2).sum(axis=1, keepdims=True)))
        return np.concatenate([vectors, completion], axis=1)

    def _draw(self, values: Floats, entropy: Entropy) -> Codes:
        a, b = self._weights
        data = np.empty((len(values), 2), np.int64)
        for i, vector in enumerate(values):
            seed = int(_draws.below(_draws.LIMIT, 1, entropy)[0])
            near = np.argsort(
                -(_codebook(seed, self.dimension + 1, 0, self.directions) @ vector), kind="stable"
            )
            inside = _draws.coin(self.cap * a, self.cap * a + (self.directions - self.cap) * b, 1, entropy)[0]
            directions = near[: self.cap] if inside else near[self.cap :]
            data[i] = seed, directions[int(_draws.below(len(directions), 1, entropy)[0])]
        return data

    def _width(self) -> int:
        return 2

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, [_draws.LIMIT, self.directions])

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        people = len(data)
        total = np.zeros(self.dimension + 1)
        for seed, number in data.tolist():
            total += _codebook(seed, self.dimension + 1, number, 1)[0]
        mean = total[: self.dimension] * (float(self.norm) / (self.scale * people))

        def error(confidence: float) -> float:
            """Return Chebyshev's bound on the length of the error."""
            return math.sqrt(self.mean_squared_error(people) / (1 - confidence)) * (1 + 1e-12)

        return released(mean, event, error)


def _codebook(seed: int, dimension: int, first: int, count: int) -> Floats:
    """Return `count` rows of the list of unit vectors that a seed names, from `first` on: normal numbers by
    inversion of Philox's raw bits.

    Public randomness: it protects nobody, but client and server must agree on it, so it is made of what
    cannot change between versions.
    """
    blocks = -(-dimension // 4)
    raw = np.random.Philox(key=seed, counter=first * blocks).random_raw(count * blocks * 4)
    # below one, to which the largest of the 2**53 numbers would be rounded
    uniform = np.minimum(((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53, 1 - 2.0**-53)
    rows = special.ndtri(uniform.reshape(count, blocks * 4)[:, :dimension])
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@lru_cache(maxsize=256)
def _top_sum(dimension: int, count: int, cap: int) -> float:
    """Return the mean of the sum of the `cap` largest of `count` independent inner products of a fixed and a
    random unit vector.

    count times the integral over s of u(s) P(Bin(count - 1, s) < cap), u(s) the inner product that is
    exceeded with probability s: one that is exceeded with probability s is among the cap largest if fewer
    than cap of the others exceed it.
    """
    end = min(1.0, (cap + 12 * math.sqrt(cap) + 60) / count)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES // 8)
    total = 0.0
    edges = np.concatenate([[0.0], end * 2.0 ** np.arange(-7, 1)])
    half = (dimension - 1) / 2
    for low, high in pairwise(edges.tolist()):
        s = low + (high - low) * (nodes + 1) / 2
        inner = 1 - 2 * special.betaincinv(half, half, s)
        total += (high - low) / 2 * float(weights @ (inner * special.bdtr(cap - 1, count - 1, s)))
    return count * total


def _best_cap(dimension: int, count: int, epsilon: float) -> int:
    """Return the cap, of sizes a factor of sqrt 2 apart, for which the mean report is longest."""
    e = math.exp(min(epsilon, 40.0))

    def mean(cap: int) -> float:
        return (e - 1) / (e * cap + count - cap) * _top_sum(dimension, count, cap)

    sizes = sorted(
        {max(1, round(count * 2.0 ** (-k / 2))) for k in range(1, 2 * count.bit_length())} - {count}
    )
    best = max(sizes, key=mean)
    return int(best)
