"""Reports vectors in the local model: PrivUnit2, with the sphere replaced by a public list of random
directions, so that the probabilities of reports are ratios of integers.
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
from ._base import Floats, LocalRandomizer, check_range, number_of, released
from ._draws import Codes

# The nodes of the Gauss-Legendre quadrature in `_top_sum`, 500 in each of eight panels. Chosen by hand, not
# tuned: it runs once per set of parameters.
_NODES = 4000


@described("local.PrivUnit")
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivUnit(LocalRandomizer):
    """Reports one of `directions` random unit vectors, more likely one that points in the direction of the
    value: PrivUnit2, for vectors of length at most `norm`.

    The directions are derived from a public seed, which the client draws and sends, so a report is a seed and
    the index of a direction. The `cap` directions with the largest inner products with the value are the
    likely ones; by default `cap` is chosen for the smallest error. Every vector gets one more coordinate,
    with which its length is exactly `norm`; the estimate leaves it out. So lengths stay private, and the
    estimate is unbiased.

    Guarantee: one report is epsilon-DP.
    Proof:     given the seed, exactly `cap` of the indices have weight a and the others weight b, so the
               total is the same for every vector; a / b <= exp(epsilon) (`_draws.odds`). Floating point
               decides *which* directions are likely, and no ratio depends on that. Bhowmick et al. 2018,
               arXiv:1812.00984 (spherical caps); Shah et al. 2022, arXiv:2111.00092 (a list of random
               candidates instead of the sphere). Unbiased: the distribution of the directions is invariant
               under rotations, so the mean of the reported direction is c times the unit vector of the value;
               c is an integral over order statistics (`scale`).
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
        if not 0 < _require.float_or_inf(self.norm) < math.inf:
            raise _require.fail("norm", self.norm, "a number above zero that floats can hold")
        _draws.positive_epsilon(self.epsilon)
        if not self.directions:
            # 32 exp(epsilon) directions, between 2**7 and 2**12: chosen by hand, not tuned
            bits = math.ceil(min(_require.float_or_inf(self.epsilon), 60.0) / math.log(2)) + 5
            object.__setattr__(self, "directions", 1 << min(12, max(7, bits)))
        if not 2 <= self.directions <= 1 << 16:
            raise _require.fail("directions", self.directions, "from 2 to 65536")
        if not self.cap:
            epsilon = _require.float_or_inf(self.epsilon)
            object.__setattr__(self, "cap", _best_cap(self.dimension + 1, self.directions, epsilon))
        if self.cap >= self.directions:
            raise _require.fail("cap", self.cap, f"below directions = {self.directions}")
        self._weights  # noqa: B018 - refuses an epsilon that is too small for integer odds

    @property
    def _weights(self) -> tuple[int, int]:
        return _draws.odds(self.epsilon, self.cap, self.directions - self.cap)

    @property
    def ratio(self) -> Fraction:
        return Fraction(*self._weights)

    @property
    def scale(self) -> float:
        """Return c: the mean of the reported direction is c times the unit vector of the value."""
        a, b = self._weights
        share = float(Fraction(a - b, a * self.cap + b * (self.directions - self.cap)))
        return share * _top_sum(self.dimension + 1, self.directions, self.cap)

    def mean_squared_error(self, people: int) -> float:
        """Return an upper bound on the expected squared length of the error of the estimated mean of n
        people: (norm / c)² / n, where c is `scale`."""
        _require.integer(people=people, at_least=1)
        return (float(self.norm) / self.scale) ** 2 / people

    def _one(self, value: Any) -> Floats:
        """Return the unit vector of one person; what is no vector of finite numbers counts as zero."""
        is_list = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
        vector = np.array([number_of(x) for x in value]) if is_list else np.zeros(0)
        if len(vector) != self.dimension or not np.isfinite(vector).all():
            vector = np.zeros(self.dimension)
        return self._values(vector[None])

    def _values(self, array: NDArray[Any]) -> Floats:
        """Return unit vectors with one more coordinate: vectors longer than `norm` are shortened to it, and
        all are divided by `norm`."""
        if array.dtype.kind not in "fiu" or array.shape[1] != self.dimension:
            raise InvalidInput(f"values must be vectors of {self.dimension} numbers. Nothing was drawn.")
        vectors = array.astype(np.float64)
        if not np.isfinite(vectors).all():
            raise InvalidInput("values must be vectors of finite numbers. Nothing was drawn.")
        # In units of the largest coordinate (or of `norm`, if that is larger), so that nothing overflows: a
        # refusal of long vectors would tell which vectors are long.
        unit = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), float(self.norm))
        vectors = vectors / unit
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.maximum(length, float(self.norm) / unit)
        completion = np.sqrt(np.maximum(0.0, 1 - (vectors**2).sum(axis=1, keepdims=True)))
        return np.concatenate([vectors, completion], axis=1)

    def _draw(self, values: Floats, entropy: Entropy) -> Codes:
        """Return rows (seed, index of a direction). The order of draws: the seed, whether the direction is
        one of the `cap` likely ones, and which of these or of the others."""
        a, b = self._weights
        data = np.empty((len(values), 2), np.int64)
        for i, vector in enumerate(values):
            seed = int(_draws.below(_draws.LIMIT, 1, entropy)[0])
            by_product = np.argsort(
                -(_codebook(seed, self.dimension + 1, 0, self.directions) @ vector), kind="stable"
            )
            total = self.cap * a + (self.directions - self.cap) * b
            is_likely = _draws.coin(self.cap * a, total, 1, entropy)[0]
            directions = by_product[: self.cap] if is_likely else by_product[self.cap :]
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
            """Return Chebyshev's bound on the length of the error vector."""
            return math.sqrt(self.mean_squared_error(people) / (1 - confidence)) * (1 + 1e-12)

        return released(mean, event, error)


def _codebook(seed: int, dimension: int, first: int, count: int) -> Floats:
    """Return `count` rows, from index `first` on, of the list of unit vectors that belongs to a seed: normal
    numbers, by inversion of Philox's raw bits, scaled to length 1.

    This randomness is public and protects nobody. Client and server must agree on it, so it uses only
    Philox's raw bits, which do not change between versions of numpy, and must not be changed.
    """
    blocks = -(-dimension // 4)
    raw = np.random.Philox(key=seed, counter=first * blocks).random_raw(count * blocks * 4)
    # Clipped below one: the largest of the 2**53 numbers would be rounded to one, whose inverse is infinite.
    uniform = np.minimum(((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53, 1 - 2.0**-53)
    rows = special.ndtri(uniform.reshape(count, blocks * 4)[:, :dimension])
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@lru_cache(maxsize=256)
def _top_sum(dimension: int, count: int, cap: int) -> float:
    """Return the expected sum of the `cap` largest of `count` independent inner products between a fixed unit
    vector and random ones.

    It is count times the integral over s from 0 to 1 of u(s) P(Bin(count - 1, s) < cap), where u(s) is the
    inner product that a random vector exceeds with probability s. An inner product u(s) is among the cap
    largest if fewer than cap of the count - 1 others exceed it.
    """
    # Beyond `end`, more than 12 standard deviations above cap / count, the probability is negligible.
    end = min(1.0, (cap + 12 * math.sqrt(cap) + 60) / count)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES // 8)
    total = 0.0
    edges = np.concatenate([[0.0], end * 2.0 ** np.arange(-7, 1)])
    # inner products have a symmetric beta distribution with this parameter, moved to [-1, 1]
    beta = (dimension - 1) / 2
    for low, high in pairwise(edges.tolist()):
        s = low + (high - low) * (nodes + 1) / 2
        inner = 1 - 2 * special.betaincinv(beta, beta, s)
        total += (high - low) / 2 * float(weights @ (inner * special.bdtr(cap - 1, count - 1, s)))
    return count * total


def _best_cap(dimension: int, count: int, epsilon: float) -> int:
    """Return the cap, of sizes a factor of sqrt(2) apart, with the largest mean of the reported direction
    (`scale`), which gives the smallest error."""
    exp_epsilon = math.exp(min(epsilon, 40.0))

    def mean(cap: int) -> float:
        """Return `scale` for this cap, with exp(epsilon) in place of integer odds."""
        return (exp_epsilon - 1) / (exp_epsilon * cap + count - cap) * _top_sum(dimension, count, cap)

    sizes = sorted(
        {max(1, round(count * 2.0 ** (-k / 2))) for k in range(1, 2 * count.bit_length())} - {count}
    )
    best = max(sizes, key=mean)
    return int(best)
