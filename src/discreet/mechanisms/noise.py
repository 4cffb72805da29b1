"""Adds noise to integers: the building block inside mechanisms, with its price (an accounting `event`) and
its error.

Noise on reals is in `mechanisms.grid`, which puts them on a grid first.

Every entry gets its own exact integer draw, so the last digits of a release reveal nothing, as those of
floats can. The price is that of the discrete distribution itself: the continuous one would undercharge.
Choose noise by its target (`for_epsilon`, `for_rho`, `for_privacy`) or give the scale yourself.

>>> from discreet.sampling import SeededEntropy
>>> noise = IntegerLaplace.for_epsilon(1, sensitivity=2)
>>> noise.event
DiscreteLaplace(scale=Fraction(2, 1), sensitivity=2, neighbors=<Neighbors.ADD_REMOVE: 'add_remove'>)
>>> noise.error(0.95)
6
>>> noise([10, 20, 30], entropy=SeededEntropy(1)).shape
(3,)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .. import _require, sampling
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors, as_neighbors
from .._registry import described
from .._require import Real
from ..accounting import DiscreteGaussian, DiscreteLaplace, Event, VectorDiscreteGaussian
from ..sampling import Entropy
from . import calibration, noise_tails
from .arrow_columns import integers
from .protocols import Integers, Sensitivity


@runtime_checkable
class Noise(Protocol):
    """Declares what the mechanism `AddNoise` (`mechanisms.additive`) needs of noise."""

    @property
    def neighbors(self) -> Neighbors: ...

    @property
    def event(self) -> Event: ...

    def covers(self, sensitivity: Sensitivity) -> bool: ...

    def error(self, confidence: float = 0.95, *, entries: int = 1) -> Any: ...

    def __call__(self, values: Any, /, *, entropy: Entropy) -> Any: ...


def draw(scale: Fraction, entropy: Entropy) -> int:
    """Return one draw of discrete Laplace noise, for mechanisms that compare a single number."""
    return int(sampling.discrete_laplace(scale, 1, entropy)[0])


def add(values: Integers, noise: Integers) -> Integers:
    """Return the sum of values and noise: int64 where all entries of the sum are within 2**62 of zero, Python
    integers otherwise.

    The type depends on the sum alone. If it depended on the values before noise, it would reveal on which
    side of 2**62 they are.
    """
    if values.dtype != object and _short(values) and noise.dtype != object and _short(noise):
        total = np.asarray(values + noise)
    else:
        total = np.asarray(values.astype(object) + noise.astype(object), dtype=object)
    return total.astype(np.int64 if _short(total) else object, copy=False)


def _short(values: Integers) -> bool:
    """Return whether all values are within 2**62 of zero, so that the sum of two such arrays fits 64 bits.

    The array is compared as a whole, not one value after the other until one is too large: the time would
    then depend on the values.
    """
    return bool(((values > -(1 << 62)) & (values < 1 << 62)).all())


@described("mechanisms.IntegerLaplace")
@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerLaplace:
    """Adds discrete Laplace noise, P(x) proportional to exp(-|x| / scale), to integers; `sensitivity` is in
    l1.

    Guarantee: the event `DiscreteLaplace(scale, sensitivity)`; in particular (sensitivity / scale)-DP, for
               scalars and vectors.
    Proof:     Ghosh, Roughgarden & Sundararajan 2009 (arXiv:0811.2841); the event's docstring for vectors.
    Assumes:   one unit moves the values by at most `sensitivity` in l1 under `neighbors`.
    """

    scale: Fraction
    sensitivity: int = 1
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _require.exact(self.scale, "scale"))
        _require.positive(scale=self.scale)
        _require.integer(sensitivity=self.sensitivity, at_least=0)
        object.__setattr__(self, "neighbors", as_neighbors(self.neighbors))

    @classmethod
    @_require.check_options
    def for_epsilon(
        cls, epsilon: Real, *, sensitivity: int | Sensitivity = 1, neighbors: Neighbors = ADD_REMOVE
    ) -> IntegerLaplace:
        """Return noise that is exactly epsilon-DP: scale = sensitivity / epsilon as a rational (a float
        epsilon is taken at its binary value)."""
        l1 = _require_sensitive(as_sensitivity(sensitivity).l1)
        return cls(scale=calibration.discrete_laplace(epsilon, l1), sensitivity=l1, neighbors=neighbors)

    @classmethod
    @_require.check_options
    def for_rho(
        cls, rho: Real, *, sensitivity: int | Sensitivity = 1, neighbors: Neighbors = ADD_REMOVE
    ) -> IntegerLaplace:
        """Return noise that is rho-zCDP through epsilon² / 2 <= rho (Bun & Steinke 2016, Prop. 1.4); epsilon
        is rounded down."""
        _require.positive(rho=rho)
        epsilon = noise_tails.sqrt_down(2 * _require.exact(rho, "rho"))
        return cls.for_epsilon(epsilon, sensitivity=sensitivity, neighbors=neighbors)

    @classmethod
    @_require.check_options
    def for_privacy(
        cls,
        *,
        epsilon: Real,
        delta: float = 0.0,
        sensitivity: int | Sensitivity = 1,
        neighbors: Neighbors = ADD_REMOVE,
    ) -> IntegerLaplace:
        """Return noise that is (epsilon, delta)-DP; Laplace noise needs no delta and uses none."""
        _require.probability(delta=delta)
        return cls.for_epsilon(epsilon, sensitivity=sensitivity, neighbors=neighbors)

    @property
    def event(self) -> Event:
        return DiscreteLaplace(scale=self.scale, sensitivity=self.sensitivity, neighbors=self.neighbors)

    def covers(self, sensitivity: Sensitivity) -> bool:
        """Return whether the event is a right price for a statistic of this sensitivity."""
        return _norm(sensitivity.l1) <= self.sensitivity

    @property
    def mean_squared_error(self) -> float:
        """The exact variance of the noise, 2p / (1 - p)² with p = exp(-1 / scale), to the last bits of a
        float."""
        return noise_tails.laplace_variance(self.scale)

    @property
    def standard_deviation(self) -> float:
        return math.sqrt(self.mean_squared_error)

    def error(self, confidence: float = 0.95, *, entries: int = 1) -> int:
        """Return the smallest t such that all of `entries` draws stay within t with probability `confidence`:
        exact.

        Proof: P(|X| > t) = 2 p^(t+1) / (1 + p) with p = exp(-1 / scale), and the draws are independent.
        """
        return noise_tails.laplace_error(self.scale, noise_tails.failure_per_draw(confidence, entries))

    def combined_width(self, confidence: float = 0.95) -> float:
        """Return by how many of its standard deviations a linear combination of draws is off at most, with
        probability `confidence`; see `noise_tails.laplace_width`."""
        _require.open_probability(confidence=confidence)
        return noise_tails.laplace_width(self.scale, confidence)

    def __call__(self, values: Any, /, *, entropy: Entropy) -> Integers:
        exact = integers(values)
        return add(exact, sampling.discrete_laplace(self.scale, exact.size, entropy).reshape(exact.shape))


@described("mechanisms.IntegerGaussian")
@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerGaussian:
    """Adds discrete Gaussian noise, P(x) proportional to exp(-x² / (2 variance)), to integers.

    One unit moves at most `l0` entries, each by at most `linf`. `l2_squared` is the square of the l2
    sensitivity, given where a tighter bound than l0 linf² is known. `variance` is the parameter sigma²; the
    true variance of the noise is `mean_squared_error`, which is never larger.

    Guarantee: the event is `DiscreteGaussian` if l0 is 1; `DiscreteGaussian(sensitivity=linf)`, l0 times, if
               l2_squared is l0 linf²; and `VectorDiscreteGaussian` if l2_squared is less, for which rho-zCDP
               with rho = l2_squared / (2 variance) is proved.
    Proof:     Canonne, Kamath & Steinke 2020 (arXiv:2004.00010v4), Theorems 7 and 14; the events' docstrings.
    Assumes:   the stated sensitivities, under `neighbors`.
    """

    variance: Fraction
    linf: int = 1
    l0: int = 1
    l2_squared: int | None = None
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "variance", _require.exact(self.variance, "variance"))
        _require.positive(variance=self.variance)
        bound = Sensitivity(linf=self.linf, l0=self.l0, l2_squared=self.l2_squared)
        object.__setattr__(self, "l2_squared", bound.l2_squared)
        object.__setattr__(self, "neighbors", as_neighbors(self.neighbors))

    @classmethod
    @_require.check_options
    def for_rho(
        cls, rho: Real, *, sensitivity: int | Sensitivity = 1, neighbors: Neighbors = ADD_REMOVE
    ) -> IntegerGaussian:
        """Return noise that is exactly rho-zCDP: variance = l2_squared / (2 rho) as a rational."""
        _require.positive(rho=rho)
        s = as_sensitivity(sensitivity)
        variance = Fraction(_require_sensitive(s.l2_squared)) / (2 * _require.exact(rho, "rho"))
        return cls(variance=variance, linf=s.linf, l0=s.l0, l2_squared=s.l2_squared, neighbors=neighbors)

    @classmethod
    @_require.check_options
    def for_privacy(
        cls,
        *,
        epsilon: Real,
        delta: float,
        sensitivity: int | Sensitivity = 1,
        neighbors: Neighbors = ADD_REMOVE,
    ) -> IntegerGaussian:
        """Return noise that is (epsilon, delta)-DP with the least variance that `calibration` can prove, from
        the discrete distribution itself."""
        s = as_sensitivity(sensitivity)
        _require_sensitive(s.l2_squared)
        variance = calibration.discrete_gaussian(
            epsilon, delta, linf=s.linf, l0=s.l0, l2_squared=_norm(s.l2_squared)
        )
        return cls(variance=variance, linf=s.linf, l0=s.l0, l2_squared=s.l2_squared, neighbors=neighbors)

    @property
    def event(self) -> Event:
        l2_squared = _norm(self.l2_squared)
        if self.l0 == 1:
            linf = min(self.linf, math.isqrt(l2_squared))
            return DiscreteGaussian(variance=self.variance, sensitivity=linf, neighbors=self.neighbors)
        if l2_squared == self.l0 * self.linf**2:
            entry_event = DiscreteGaussian(
                variance=self.variance, sensitivity=self.linf, neighbors=self.neighbors
            )
            return entry_event.repeated(self.l0)
        return VectorDiscreteGaussian(variance=self.variance, l2_squared=l2_squared, neighbors=self.neighbors)

    def covers(self, sensitivity: Sensitivity) -> bool:
        """Return whether the event is a right price for a statistic of this sensitivity."""
        if _norm(sensitivity.l2_squared) > _norm(self.l2_squared):
            return False
        # the other events are proved for l0 entries that each move by at most linf, not for every vector of
        # the same l2 norm
        only_l2 = isinstance(self.event, VectorDiscreteGaussian)
        return only_l2 or (sensitivity.l0 <= self.l0 and sensitivity.linf <= self.linf)

    @property
    def mean_squared_error(self) -> float:
        """The exact variance of the noise, to the last bits of a float; at most `variance` (Canonne, Kamath &
        Steinke 2020)."""
        return noise_tails.gaussian_variance(self.variance)

    @property
    def standard_deviation(self) -> float:
        return math.sqrt(self.mean_squared_error)

    def error(self, confidence: float = 0.95, *, entries: int = 1) -> int:
        """Return a t such that all of `entries` draws stay within t with probability `confidence`; see
        `noise_tails.gaussian_tail`."""
        return noise_tails.gaussian_error(self.variance, noise_tails.failure_per_draw(confidence, entries))

    def combined_width(self, confidence: float = 0.95) -> float:
        """Return by how many of its standard deviations a linear combination of draws is off at most, with
        probability `confidence`; see `noise_tails.gaussian_width`."""
        _require.open_probability(confidence=confidence)
        return noise_tails.gaussian_width(self.variance, confidence)

    def __call__(self, values: Any, /, *, entropy: Entropy) -> Integers:
        exact = integers(values)
        draws = sampling.discrete_gaussian(sigma_squared=self.variance, n=exact.size, entropy=entropy)
        return add(exact, draws.reshape(exact.shape))


def as_sensitivity(sensitivity: int | Sensitivity) -> Sensitivity:
    """Return an integer as the sensitivity of a single number; a `Sensitivity` stays as it is."""
    return sensitivity if isinstance(sensitivity, Sensitivity) else Sensitivity(linf=sensitivity)


def _norm(norm: int | None) -> int:
    # `Sensitivity` computes every norm that was not given
    assert norm is not None
    return norm


def _require_sensitive(norm: int | None) -> int:
    """Return a sensitivity above zero; refuse zero, for which no noise is needed."""
    if not norm:
        raise InvalidInput(
            "the sensitivity is 0: under this relation nobody's row moves the value, so it is public "
            "and needs no noise. Nothing was drawn."
        )
    return norm
