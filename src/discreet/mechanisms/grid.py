"""Noise on reals that are put on a declared grid first: the result is a multiple of `step`, and nothing finer leaves.

Rounding two neighboring values can push them apart by up to one step more; the price says so. Prefer statistics that round
each row before adding (`Sum`): they have no such term.

>>> from discreet.sampling import SeededEntropy
>>> noise = GridLaplace.for_epsilon(1, step=Fraction(1, 8), sensitivity=Fraction(1, 2))
>>> noise.event.sensitivity, noise.scale
(4, Fraction(1, 2))
>>> float(noise(2.25, entropy=SeededEntropy(1)) * 8).is_integer()
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .. import _require
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors, as_neighbors
from .._registry import described
from ..accounting import Event
from ..sampling import Entropy
from . import _tails, calibration
from ._columns import as_step
from .noise import IntegerGaussian, IntegerLaplace, Real
from .protocols import Integers, Sensitivity


def round_to_grid(values: Any, step: Fraction) -> Integers:
    """floor(v / step + 1/2) for every real v, exactly: floats are taken at their binary value."""
    array = np.asarray(values)
    if array.dtype.kind not in "iufO" or not _all_finite(array):
        raise InvalidInput(
            f"finite real numbers are needed (got an array of {array.dtype}). Nothing was drawn or released. "
            f"Clip the values and drop what is missing first."
        )
    half = Fraction(1, 2)
    whole = [(Fraction(v) / step + half).__floor__() for v in array.ravel().tolist()]
    fits = all(-(1 << 62) < v < 1 << 62 for v in whole)
    return np.array(whole, dtype=np.int64 if fits else object).reshape(array.shape)


def _all_finite(array: Any) -> bool:
    if array.dtype.kind == "O":
        return all(
            isinstance(v, int | float | Fraction)
            and math.isfinite(_require.float_or_inf(v) if isinstance(v, float) else 0)
            for v in array.flat
        )
    return bool(np.isfinite(array).all())


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class GridLaplace:
    """Discrete Laplace noise on reals rounded to multiples of `step`; `sensitivity` is the real l1 sensitivity.

    At most `entries` of the values may move. `scale` is in the values' own unit.

    Guarantee: the event `DiscreteLaplace(scale / step, D)` with D = ceil(sensitivity / step) + entries - 1.
    Proof:     floor(u) - floor(v) < u - v + 1, so an entry that moves by d moves by at most ceil(d / step) < d / step + 1 steps.
               Added over the at most `entries` that move this is an integer below sensitivity / step + entries.
    Assumes:   `sensitivity` bounds the values *as computed*, floating-point error included. Where it is a sum of many rows,
               `Sum(column, step)` avoids the question: it rounds before it adds.
    """

    step: Fraction
    scale: Fraction
    sensitivity: Fraction
    entries: int = 1
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", as_step(self.step))
        for name in ("scale", "sensitivity"):
            object.__setattr__(self, name, _require.exact(getattr(self, name), name))
        _require.positive(scale=self.scale, sensitivity=self.sensitivity)
        _require.integer(entries=self.entries, at_least=1)
        object.__setattr__(self, "neighbors", as_neighbors(self.neighbors))

    @classmethod
    def for_epsilon(
        cls,
        epsilon: Real,
        *,
        step: Real,
        sensitivity: Real,
        entries: int = 1,
        neighbors: Neighbors = ADD_REMOVE,
    ) -> GridLaplace:
        exact = as_step(step)
        _require.positive(sensitivity=sensitivity)
        moved = grid_l1(_require.exact(sensitivity, "sensitivity") / exact, entries)
        scale = exact * calibration.discrete_laplace(epsilon, moved)
        return cls(step=exact, scale=scale, sensitivity=Fraction(sensitivity), entries=entries, neighbors=neighbors)

    @property
    def on_integers(self) -> IntegerLaplace:
        """The noise in steps."""
        moved = grid_l1(self.sensitivity / self.step, self.entries)
        return IntegerLaplace(scale=self.scale / self.step, sensitivity=moved, neighbors=self.neighbors)

    @property
    def event(self) -> Event:
        return self.on_integers.event

    @property
    def standard_deviation(self) -> float:
        """Of the noise alone; rounding adds at most half a step."""
        return float(self.step) * self.on_integers.standard_deviation

    def error(self, confidence: float = 0.95, *, entries: int = 1) -> float:
        """Noise and rounding together."""
        return float(self.step * (self.on_integers.error(confidence, entries=entries) + Fraction(1, 2)))

    def __call__(self, values: Any, /, *, entropy: Entropy) -> Any:
        return in_units(self.on_integers(round_to_grid(values, self.step), entropy=entropy), self.step)


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class GridGaussian:
    """Discrete Gaussian noise on reals rounded to multiples of `step`; `sensitivity` is the real l2 sensitivity.

    At most `entries` of the values may move. `variance` is in the values' own unit, squared.

    Guarantee: that of `IntegerGaussian(variance / step²)` with linf = ceil(sensitivity / step), l0 = entries and
               l2 <= sensitivity / step + sqrt(entries).
    Proof:     an entry that moves by d moves by less than d / step + 1 steps; the triangle inequality in l2 over the at most
               `entries` that move. For one entry the bound is ceil(sensitivity / step).
    Assumes:   as `GridLaplace`.
    """

    step: Fraction
    variance: Fraction
    sensitivity: Fraction
    entries: int = 1
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", as_step(self.step))
        for name in ("variance", "sensitivity"):
            object.__setattr__(self, name, _require.exact(getattr(self, name), name))
        _require.positive(variance=self.variance, sensitivity=self.sensitivity)
        _require.integer(entries=self.entries, at_least=1)
        object.__setattr__(self, "neighbors", as_neighbors(self.neighbors))

    @classmethod
    def for_rho(
        cls, rho: Real, *, step: Real, sensitivity: Real, entries: int = 1, neighbors: Neighbors = ADD_REMOVE
    ) -> GridGaussian:
        moved = grid_l2(_require.exact(sensitivity, "sensitivity") / as_step(step), entries)
        noise = IntegerGaussian.for_rho(rho, sensitivity=moved, neighbors=neighbors)
        return cls._scaled(noise, as_step(step), sensitivity, entries)

    @classmethod
    def for_privacy(
        cls,
        *,
        epsilon: Real,
        delta: float,
        step: Real,
        sensitivity: Real,
        entries: int = 1,
        neighbors: Neighbors = ADD_REMOVE,
    ) -> GridGaussian:
        moved = grid_l2(_require.exact(sensitivity, "sensitivity") / as_step(step), entries)
        noise = IntegerGaussian.for_privacy(epsilon=epsilon, delta=delta, sensitivity=moved, neighbors=neighbors)
        return cls._scaled(noise, as_step(step), sensitivity, entries)

    @classmethod
    def _scaled(cls, noise: IntegerGaussian, step: Fraction, sensitivity: Real, entries: int) -> GridGaussian:
        variance = noise.variance * step**2
        return cls(
            step=step, variance=variance, sensitivity=Fraction(sensitivity), entries=entries, neighbors=noise.neighbors
        )

    @property
    def on_integers(self) -> IntegerGaussian:
        """The noise in steps."""
        s = grid_l2(self.sensitivity / self.step, self.entries)
        variance = self.variance / self.step**2
        return IntegerGaussian(
            variance=variance, linf=s.linf, l0=s.l0, l2_squared=s.l2_squared, neighbors=self.neighbors
        )

    @property
    def event(self) -> Event:
        return self.on_integers.event

    @property
    def standard_deviation(self) -> float:
        """Of the noise alone; rounding adds at most half a step."""
        return float(self.step) * self.on_integers.standard_deviation

    def error(self, confidence: float = 0.95, *, entries: int = 1) -> float:
        """Noise and rounding together."""
        return float(self.step * (self.on_integers.error(confidence, entries=entries) + Fraction(1, 2)))

    def __call__(self, values: Any, /, *, entropy: Entropy) -> Any:
        return in_units(self.on_integers(round_to_grid(values, self.step), entropy=entropy), self.step)


def grid_l1(l1: Fraction, entries: int) -> int:
    """The l1 sensitivity in whole steps, from the real one in steps: see `GridLaplace`."""
    _require.positive(sensitivity=l1)
    _require.integer(entries=entries, at_least=1)
    return math.ceil(l1) + entries - 1


def grid_l2(l2: Fraction, entries: int) -> Sensitivity:
    """All norms in whole steps, from the real l2 sensitivity in steps: see `GridGaussian`."""
    _require.positive(sensitivity=l2)
    _require.integer(entries=entries, at_least=1)
    grown = l2**2 + entries + _tails.sqrt_up(4 * l2**2 * entries)  # (l2 + sqrt(entries))²
    return Sensitivity(linf=math.ceil(l2), l0=entries, l2_squared=math.floor(grown))


def in_units(values: Integers, step: Fraction) -> Any:
    """Integers as multiples of `step`: integers if it is whole, else floats. What is released is the integer already."""
    if step.denominator == 1:
        return values if step == 1 else values.astype(object) * step.numerator
    flat = [float(int(v) * step) for v in values.ravel()]
    return np.array(flat).reshape(values.shape)
