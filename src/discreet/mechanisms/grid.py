"""Adds noise to reals that are put on a declared grid first: the result is a multiple of `step`, and nothing
finer is released.

Rounding can push the values of two neighboring datasets apart by up to one step more; the price (the
accounting `event`) includes that. Prefer statistics that round each row before adding (`Sum`): they pay
nothing for rounding.

>>> from discreet.sampling import SeededEntropy
>>> noise = GridLaplace.for_epsilon(1, step=Fraction(1, 8), sensitivity=Fraction(1, 2))
>>> noise.event.sensitivity, noise.scale
(4, Fraction(1, 2))
>>> float(noise(2.25, entropy=SeededEntropy(1)) * 8).is_integer()
True
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from .. import _require, _round
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors, as_neighbors
from .._registry import described
from .._require import Real
from ..accounting import Event
from ..sampling import Entropy
from . import calibration, noise_tails
from .arrow_columns import as_step
from .noise import IntegerGaussian, IntegerLaplace
from .protocols import Integers, Sensitivity


def round_to_grid(values: Any, step: Fraction) -> Integers:
    """Return floor(v / step + 1/2) for every real v, exactly: floats are taken at their binary value."""
    array = np.asarray(values)
    # NumPy's long doubles do not become Python floats, so they have no exact fraction here
    if array.dtype.kind not in "iufO" or array.dtype.itemsize > 8 or not _all_finite(array):
        raise InvalidInput(
            f"finite real numbers are needed (got an array of {array.dtype}). Nothing was drawn or released. "
            f"Clip the values and drop missing ones first."
        )
    half = Fraction(1, 2)
    # below 2**62, so that `noise.add` may add noise in 64 bits
    integers = [(Fraction(v) / step + half).__floor__() for v in array.ravel().tolist()]
    fits = all(-(1 << 62) < v < 1 << 62 for v in integers)
    return np.array(integers, dtype=np.int64 if fits else object).reshape(array.shape)


def _all_finite(array: Any) -> bool:
    """Return whether every entry is a finite number."""
    if array.dtype.kind == "O":
        # Integers and fractions are finite, and may be too large for `isfinite`, which makes floats of them.
        return all(
            isinstance(v, int | float | Fraction) and math.isfinite(v if isinstance(v, float) else 0)
            for v in array.flat
        )
    return bool(np.isfinite(array).all())


class _GridNoise:
    """Adds noise on integers to reals rounded to multiples of `step`; a subclass says which noise."""

    __slots__ = ()
    step: Fraction

    @property
    def on_integers(self) -> IntegerLaplace | IntegerGaussian:
        """The noise in steps."""
        raise NotImplementedError

    @property
    def event(self) -> Event:
        return self.on_integers.event

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of the noise alone; rounding adds at most half a step."""
        return float(self.step) * self.on_integers.standard_deviation

    def error(self, confidence: float = 0.95, *, entries: int = 1) -> float:
        """Return a bound on the error, of noise and rounding together, within which all of `entries` released
        values stay with probability `confidence`."""
        return _with_rounding(self.step, self.on_integers.error(confidence, entries=entries))

    def __call__(self, values: Any, /, *, entropy: Entropy) -> Any:
        return in_units(self.on_integers(round_to_grid(values, self.step), entropy=entropy), self.step)


@described("mechanisms.GridLaplace")
@dataclass(frozen=True, slots=True, kw_only=True)
class GridLaplace(_GridNoise):
    """Adds discrete Laplace noise to reals rounded to multiples of `step`; `sensitivity` is the real l1
    sensitivity.

    At most `entries` of the values may move, each by at most `linf` if that is given. `scale` is in the
    values' own unit.

    Guarantee: the event `DiscreteLaplace(scale / step, D)` with D = ceil(sensitivity / step) + entries - 1,
               or entries * ceil(linf / step) where that is less.
    Proof:     floor(u) - floor(v) < u - v + 1, so an entry that moves by d moves by at most ceil(d / step) <
               d / step + 1 steps. Added over the at most `entries` that move this is an integer below
               sensitivity / step + entries.
    Assumes:   `sensitivity` bounds how far values move *as computed*, floating-point error included. Where
               it is a sum of many rows, `Sum(column, step)` avoids the question: it rounds before it adds.
    """

    step: Fraction
    scale: Fraction
    sensitivity: Fraction
    entries: int = 1
    linf: Fraction | None = None
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _check_fields(self, "scale")

    @classmethod
    def for_epsilon(
        cls,
        epsilon: Real,
        *,
        step: Real,
        sensitivity: Real,
        entries: int = 1,
        linf: Real | None = None,
        neighbors: Neighbors = ADD_REMOVE,
    ) -> GridLaplace:
        """Return noise that is exactly epsilon-DP."""
        draft = cls(
            step=as_step(step),
            scale=Fraction(1),
            sensitivity=_require.exact(sensitivity, "sensitivity"),
            entries=entries,
            linf=None if linf is None else _require.exact(linf, "linf"),
            neighbors=neighbors,
        )
        return replace(
            draft, scale=draft.step * calibration.discrete_laplace(epsilon, draft.on_integers.sensitivity)
        )

    @classmethod
    def for_rho(cls, rho: Real, *, step: Real, sensitivity: Real, **more: Any) -> GridLaplace:
        """Return noise that is rho-zCDP through epsilon² / 2 <= rho (Bun & Steinke 2016, Prop. 1.4)."""
        _require.positive(rho=rho)
        epsilon = noise_tails.sqrt_down(2 * _require.exact(rho, "rho"))
        return cls.for_epsilon(epsilon, step=step, sensitivity=sensitivity, **more)

    @classmethod
    def for_privacy(
        cls, *, epsilon: Real, delta: float = 0.0, step: Real, sensitivity: Real, **more: Any
    ) -> GridLaplace:
        """Return noise that is (epsilon, delta)-DP; Laplace noise needs no delta and uses none."""
        _require.probability(delta=delta)
        return cls.for_epsilon(epsilon, step=step, sensitivity=sensitivity, **more)

    @property
    def on_integers(self) -> IntegerLaplace:
        """The noise in steps."""
        sensitivity = grid_l1(self.sensitivity / self.step, self.entries)
        if self.linf is not None:
            sensitivity = min(sensitivity, self.entries * math.ceil(self.linf / self.step))
        return IntegerLaplace(scale=self.scale / self.step, sensitivity=sensitivity, neighbors=self.neighbors)


@described("mechanisms.GridGaussian")
@dataclass(frozen=True, slots=True, kw_only=True)
class GridGaussian(_GridNoise):
    """Adds discrete Gaussian noise to reals rounded to multiples of `step`; `sensitivity` is the real l2
    sensitivity.

    At most `entries` of the values may move, each by at most `linf` if that is given. `variance` is in the
    values' own unit, squared.

    Guarantee: that of `IntegerGaussian(variance / step²)` with l0 = entries, l2 <= sensitivity / step +
               sqrt(entries) and an l-infinity sensitivity of ceil(min(linf, sensitivity) / step), or
               ceil(sensitivity / step) where `linf` is not given.
    Proof:     an entry that moves by d moves by less than d / step + 1 steps; the triangle inequality in l2
               over the at most `entries` that move. For one entry l2 is the l-infinity sensitivity.
    Assumes:   as `GridLaplace`.
    """

    step: Fraction
    variance: Fraction
    sensitivity: Fraction
    entries: int = 1
    linf: Fraction | None = None
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _check_fields(self, "variance")

    @classmethod
    def for_rho(
        cls,
        rho: Real,
        *,
        step: Real,
        sensitivity: Real,
        entries: int = 1,
        linf: Real | None = None,
        neighbors: Neighbors = ADD_REMOVE,
    ) -> GridGaussian:
        """Return noise that is exactly rho-zCDP."""
        draft = cls._draft(step, sensitivity, entries, linf, neighbors)
        return draft._with_noise(
            IntegerGaussian.for_rho(rho, sensitivity=draft.grid_sensitivity, neighbors=draft.neighbors)
        )

    @classmethod
    def for_privacy(
        cls,
        *,
        epsilon: Real,
        delta: float,
        step: Real,
        sensitivity: Real,
        entries: int = 1,
        linf: Real | None = None,
        neighbors: Neighbors = ADD_REMOVE,
    ) -> GridGaussian:
        """Return noise that is (epsilon, delta)-DP with the least variance that `calibration` can prove."""
        draft = cls._draft(step, sensitivity, entries, linf, neighbors)
        noise = IntegerGaussian.for_privacy(
            epsilon=epsilon, delta=delta, sensitivity=draft.grid_sensitivity, neighbors=draft.neighbors
        )
        return draft._with_noise(noise)

    @classmethod
    def _draft(
        cls, step: Real, sensitivity: Real, entries: int, linf: Real | None, neighbors: Neighbors
    ) -> GridGaussian:
        """Return the noise with variance 1, from which its sensitivity on the grid is read."""
        return cls(
            step=as_step(step),
            variance=Fraction(1),
            sensitivity=_require.exact(sensitivity, "sensitivity"),
            entries=entries,
            linf=None if linf is None else _require.exact(linf, "linf"),
            neighbors=neighbors,
        )

    def _with_noise(self, noise: IntegerGaussian) -> GridGaussian:
        """Return the same noise with the variance of `noise`, which is in steps."""
        return replace(self, variance=noise.variance * self.step**2)

    @property
    def grid_sensitivity(self) -> Sensitivity:
        """How far one unit of privacy moves the rounded values, in steps."""
        linf = None if self.linf is None else self.linf / self.step
        return grid_l2(self.sensitivity / self.step, self.entries, linf)

    @property
    def on_integers(self) -> IntegerGaussian:
        """The noise in steps."""
        s = self.grid_sensitivity
        return IntegerGaussian(
            variance=self.variance / self.step**2,
            linf=s.linf,
            l0=s.l0,
            l2_squared=s.l2_squared,
            neighbors=self.neighbors,
        )


def grid_l1(l1: Fraction, entries: int) -> int:
    """Return the l1 sensitivity in whole steps, from the real one in steps: see `GridLaplace`."""
    return math.ceil(l1) + entries - 1


def grid_l2(l2: Fraction, entries: int, linf: Fraction | None = None) -> Sensitivity:
    """Return all norms in whole steps, from the real l2 (and l-infinity) sensitivity in steps: see
    `GridGaussian`."""
    # (l2 + sqrt(entries))², rounded down below: the rounded values move by integers
    l2_squared = l2**2 + entries + noise_tails.sqrt_up(4 * l2**2 * entries)
    widest = math.ceil(l2 if linf is None else min(l2, linf))
    return Sensitivity(linf=widest, l0=entries, l2_squared=math.floor(l2_squared))


def _check_fields(noise: Any, *names: str) -> None:
    """Check the fields; store the step, the fields in `names`, the sensitivity and `linf` as exact rationals
    above zero."""
    object.__setattr__(noise, "step", as_step(noise.step))
    for name in (*names, "sensitivity", *(() if noise.linf is None else ("linf",))):
        object.__setattr__(noise, name, _require.exact(getattr(noise, name), name))
        _require.positive(**{name: getattr(noise, name)})
    _require.integer(entries=noise.entries, at_least=1)
    object.__setattr__(noise, "neighbors", as_neighbors(noise.neighbors))


def _with_rounding(step: Fraction, steps: int) -> float:
    """Return the error of so many `steps` in the values' own unit, plus half a step for rounding to the grid;
    rounded up."""
    return _round.up(step * (steps + Fraction(1, 2)))


def in_units(values: Integers, step: Fraction) -> Any:
    """Return integers as multiples of `step`: integers if it is whole, else floats.

    The price is that of the integers; their multiples reveal no more about the data.
    """
    if step.denominator == 1:
        return values if step == 1 else values.astype(object) * step.numerator
    flat = [nearest_float(int(v) * step) for v in values.ravel()]
    return np.array(flat).reshape(values.shape)


def nearest_float(x: Fraction) -> float:
    """Return the nearest finite float: no release may fail because its noise went beyond the largest
    float."""
    return max(min(_require.float_or_inf(x), sys.float_info.max), -sys.float_info.max)
