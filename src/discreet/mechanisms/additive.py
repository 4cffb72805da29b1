"""Adds noise: to a statistic, to reals on a grid, or to every record.

**A statistic plus noise** is the mechanism by which most questions are answered. `noisy_count`, `noisy_sum`
and `noisy_histogram` build one from a table's public facts and an epsilon; `AddNoise` takes any statistic and
any noise, and refuses noise that is priced for less than the statistic can move.

>>> from discreet._public import Bounds, Public
>>> from discreet.sampling import SeededEntropy
>>> from discreet.tables import Memory
>>> public = Public(schema={"age": Bounds(0, 100)})
>>> people = Memory({"age": [31, 45, 27, 60]}, public)
>>> total = noisy_sum(public, "age", epsilon=1)
>>> total.event.sensitivity, total.error(0.95)
(100, 300)
>>> isinstance(total(people, entropy=SeededEntropy(1)).value, int)
True

**Reals** (`GridLaplace` and its like) are put on a declared grid first: the result is a multiple of `step`,
and nothing finer is released.

Rounding can push the values of two neighboring datasets apart by up to one step more; the price (the
accounting `event`) includes that. Prefer statistics that round each row before adding (`Sum`): they pay
nothing for rounding.

>>> noise = GridLaplace.for_epsilon(1, step=Fraction(1, 8), sensitivity=Fraction(1, 2))
>>> noise.event.sensitivity, noise.scale
(4, Fraction(1, 2))
>>> float(noise(2.25, entropy=SeededEntropy(1)) * 8).is_integer()
True

**Input perturbation** adds noise to every record instead of to the answer. Every person's value gets its own
noise before anybody adds it up, so nobody has to be trusted with the exact values; in return the error grows
with the square root of the number of people. (The mechanism here simulates that on a table: it reads the
exact values.) The example shows how much:

>>> from discreet._public import REPLACE
>>> public = Public(schema={"age": Bounds(0, 100, nullable=False)}, neighbors=REPLACE, size=10_000)
>>> InputPerturbation.for_epsilon(1, public=public, column="age").error(0.95)
38417
>>> noisy_sum(public, "age", epsilon=1).error(0.95)
300
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np

from .. import _require, _round, sampling
from .._errors import InvalidInput, WrongRelation
from .._public import ADD_REMOVE, PUBLIC, REPLACE, ZERO_OUT, Neighbors, Public, require_relation
from .._registry import described
from .._require import EXACT, POSITIVE, PRICE, PROBABILITY, Real, at_least, instance_of
from ..accounting import DiscreteLaplace, Event
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns, noise, noise_scales
from .arrow_columns import as_step
from .noise import IntegerGaussian, IntegerLaplace, Noise, sqrt_down, sqrt_up
from .protocols import (
    STATISTIC,
    Integers,
    Mechanism,
    Release,
    Sensitivity,
    Statistic,
    check_source,
    integers,
    release,
)
from .statistics import Count, Histogram, Sum, contributions, length_of, step_of


def round_to_grid(values: Any, step: Fraction) -> Integers:
    """Return floor(v / step + 1/2) for every real v, exactly: floats are taken at their binary value."""
    array = np.asarray(values)
    # NumPy's long doubles do not become Python floats, so they have no exact fraction here
    _require.that(
        array.dtype.kind in "iufO" and array.dtype.itemsize <= 8 and _all_finite(array),
        f"finite real numbers are needed (got an array of {array.dtype}). Clip the values and drop "
        "missing ones first.",
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


class _GridNoise(ABC):
    """Adds noise on integers to reals rounded to multiples of `step`; a subclass says which noise."""

    __slots__ = ()
    step: Fraction

    @property
    @abstractmethod
    def on_integers(self) -> IntegerLaplace | IntegerGaussian:
        """The noise in steps."""

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

    step: Annotated[Fraction, EXACT, POSITIVE]
    scale: Annotated[Fraction, EXACT, POSITIVE]
    sensitivity: Annotated[Fraction, EXACT, POSITIVE]
    entries: Annotated[int, at_least(1)] = 1
    linf: Annotated[Fraction, EXACT, POSITIVE] | None = None
    neighbors: Neighbors = ADD_REMOVE

    @classmethod
    def for_epsilon(cls, epsilon: Real, **grid: Any) -> GridLaplace:
        """Return noise that is exactly epsilon-DP; `grid` are the fields other than `scale`."""
        draft = cls(scale=Fraction(1), **grid)
        return replace(
            draft, scale=draft.step * noise_scales.discrete_laplace(epsilon, draft.on_integers.sensitivity)
        )

    @classmethod
    @_require.check_options
    def for_rho(cls, rho: Annotated[Real, POSITIVE], **grid: Any) -> GridLaplace:
        """Return noise that is rho-zCDP through epsilon² / 2 <= rho (Bun & Steinke 2016, Prop. 1.4)."""
        return cls.for_epsilon(sqrt_down(2 * _require.exact(rho, "rho")), **grid)

    @classmethod
    @_require.check_options
    def for_privacy(
        cls, *, epsilon: Real, delta: Annotated[float, PROBABILITY] = 0.0, **grid: Any
    ) -> GridLaplace:
        """Return noise that is (epsilon, delta)-DP; Laplace noise needs no delta and uses none."""
        return cls.for_epsilon(epsilon, **grid)

    @property
    def on_integers(self) -> IntegerLaplace:
        """The noise in steps."""
        sensitivity = grid_l1(self.sensitivity / self.step, self.entries)
        if self.linf is not None:
            sensitivity = min(sensitivity, self.entries * math.ceil(self.linf / self.step))
        return IntegerLaplace(scale=self.scale / self.step, sensitivity=sensitivity, neighbors=self.neighbors)


@described("mechanisms.GridGaussian")
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

    step: Annotated[Fraction, EXACT, POSITIVE]
    variance: Annotated[Fraction, EXACT, POSITIVE]
    sensitivity: Annotated[Fraction, EXACT, POSITIVE]
    entries: Annotated[int, at_least(1)] = 1
    linf: Annotated[Fraction, EXACT, POSITIVE] | None = None
    neighbors: Neighbors = ADD_REMOVE

    @classmethod
    def for_rho(cls, rho: Real, **grid: Any) -> GridGaussian:
        """Return noise that is exactly rho-zCDP; `grid` are the fields other than `variance`."""
        draft = cls(variance=Fraction(1), **grid)
        return draft._with_noise(
            IntegerGaussian.for_rho(rho, sensitivity=draft.grid_sensitivity, neighbors=draft.neighbors)
        )

    @classmethod
    def for_privacy(cls, *, epsilon: Real, delta: float, **grid: Any) -> GridGaussian:
        """Return noise that is (epsilon, delta)-DP with the least variance that `noise_scales` can prove."""
        draft = cls(variance=Fraction(1), **grid)
        noise = IntegerGaussian.for_privacy(
            epsilon=epsilon, delta=delta, sensitivity=draft.grid_sensitivity, neighbors=draft.neighbors
        )
        return draft._with_noise(noise)

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
    l2_squared = l2**2 + entries + sqrt_up(4 * l2**2 * entries)
    widest = math.ceil(l2 if linf is None else min(l2, linf))
    return Sensitivity(linf=widest, l0=entries, l2_squared=math.floor(l2_squared))


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


@described("mechanisms.AddNoise")
class AddNoise(Mechanism):
    """Adds noise to the statistic of the source, in the statistic's own unit.

    Guarantee: the noise's event, under the relation of `public`.
    Proof:     the noise covers the statistic's sensitivity for exactly these public facts, checked when it is
               built; the source must have the same facts. Scaling the integer by its step is post-processing.
    Assumes:   the statistic's sensitivity is right (for `Trusted`: the steward's word).
    """

    public: Annotated[Public, PUBLIC]
    statistic: Annotated[Statistic, STATISTIC]
    noise: Annotated[Noise, instance_of(Noise, "noise on integers, such as IntegerLaplace")]

    def __post_init__(self) -> None:
        require_noise_for(self.public, self.noise)
        # these refuse an entry that the statistic does not have, and parts on different grids
        length_of(self.statistic, self.public), step_of(self.statistic, self.public)
        sensitivity = self.statistic.sensitivity(self.public)
        _require.that(
            self.noise.covers(sensitivity),
            f"one unit can move this statistic by {sensitivity} under {self.public.neighbors}, more than "
            f"the noise is priced for: {self.noise}. Give the noise at least that sensitivity.",
        )

    @property
    def event(self) -> Event:
        return self.noise.event

    def error(self, confidence: float = 0.95) -> Any:
        """Return a bound on the noise of all entries, in the statistic's own unit, that holds with
        probability `confidence`. It is known before any data is read.

        Clipping to the bounds and rounding to the grid are part of the statistic, not of this error.
        """
        return self._error(confidence, length_of(self.statistic, self.public) or 1)

    def _error(self, confidence: float, entries: int) -> Any:
        width = step_of(self.statistic, self.public) * self.noise.error(confidence, entries=entries)
        return int(width) if width.denominator == 1 else _round.up(width)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        exact = integers(self.statistic(source))
        noisy = in_units(self.noise(exact, entropy=entropy), step_of(self.statistic, self.public))
        entries = max(1, exact.size)
        as_declared = entries == (length_of(self.statistic, self.public) or 1)
        error = self.error if as_declared else lambda confidence: self._error(confidence, entries)
        return release(plain(noisy), event=self.event, entropy=entropy, error=error)


def laplace_noise(public: Public, epsilon: Real, sensitivity: int | Sensitivity) -> IntegerLaplace:
    """Return the discrete Laplace noise that costs epsilon under the relation of `public`."""
    return IntegerLaplace.for_epsilon(epsilon, sensitivity=sensitivity, neighbors=public.neighbors)


def require_noise_for(public: Public, noise: Noise) -> None:
    """Refuse noise that is priced for another relation than that of the table."""
    if noise.neighbors != public.neighbors:
        raise WrongRelation(
            f"the noise is priced for {noise.neighbors}, the table is protected under {public.neighbors}. "
            f"Build the noise with neighbors={public.neighbors.value!r}."
        )


def plain(values: Any) -> Any:
    """Return a single number as a Python number, a vector as an array."""
    return np.asarray(values).item() if np.ndim(values) == 0 else values


@_require.check_options
def laplace(public: Public, statistic: Annotated[Statistic, STATISTIC], *, epsilon: Real) -> AddNoise:
    """Return the statistic with discrete Laplace noise, exactly epsilon-DP under the relation of `public`."""
    noise = laplace_noise(public, epsilon, statistic.sensitivity(public))
    return AddNoise(public=public, statistic=statistic, noise=noise)


@_require.check_options
def gaussian(
    public: Public,
    statistic: Annotated[Statistic, STATISTIC],
    *,
    rho: Real | None = None,
    epsilon: Real | None = None,
    delta: float | None = None,
) -> AddNoise:
    """Return the statistic with discrete Gaussian noise: rho-zCDP, or (epsilon, delta)-DP."""
    sensitivity = statistic.sensitivity(public)
    if rho is not None and epsilon is None and delta is None:
        noise = IntegerGaussian.for_rho(rho, sensitivity=sensitivity, neighbors=public.neighbors)
    elif rho is None and epsilon is not None and delta is not None:
        noise = IntegerGaussian.for_privacy(
            epsilon=epsilon, delta=delta, sensitivity=sensitivity, neighbors=public.neighbors
        )
    else:
        raise InvalidInput("give either rho, or both epsilon and delta.")
    return AddNoise(public=public, statistic=statistic, noise=noise)


def noisy_count(public: Public, *, epsilon: Real) -> AddNoise:
    """Return the number of rows, epsilon-DP.

    Refused under `replace`, where the number of rows is public and needs no noise.
    """
    return laplace(public, Count(), epsilon=epsilon)


def noisy_sum(public: Public, column: str, *, epsilon: Real, step: Real = 1) -> AddNoise:
    """Return the sum of a bounded column, each value rounded to a multiple of `step` first; epsilon-DP."""
    return laplace(public, Sum(column, step), epsilon=epsilon)


def noisy_histogram(
    public: Public, column: str, *, epsilon: Real, edges: tuple[Real, ...] | None = None
) -> AddNoise:
    """Return counts per declared category, or per bin between public edges; epsilon-DP for all of them
    together."""
    return laplace(public, Histogram(column=column, edges=edges), epsilon=epsilon)


@described("mechanisms.InputPerturbation")
class InputPerturbation(Mechanism):
    """Adds discrete Laplace noise to each row's value, in whole steps, and releases their sum (or mean):
    input perturbation.

    Guarantee: each row's noisy value, of which only the sum is released here, has the event
               `DiscreteLaplace(scale, r)`, r being `range_of_a_row`; the release has the same event.
    Proof:     neighbors differ in one row, and only that row's noisy value has another distribution: one
               application of the Laplace mechanism. Adding the noisy values up is post-processing. Exactly
               `size` draws are made, one for each unit.
    Assumes:   the number of rows is public: refused under add_remove, where one row more means one draw more,
               and the sum over an empty table would be exact.
    """

    public: Annotated[Public, PUBLIC]
    column: str
    # the scale of the noise on each row, in steps
    scale: Annotated[Fraction, EXACT, PRICE]
    step: Annotated[Fraction, EXACT, POSITIVE] = Fraction(1)
    release_as: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        require_relation(self.public.neighbors, REPLACE, ZERO_OUT, what="input perturbation")
        self.public.declared_size("input perturbation")
        self.range_of_a_row  # noqa: B018 - refuses undeclared bounds

    @classmethod
    def for_epsilon(
        cls,
        epsilon: Real,
        *,
        public: Public,
        column: str,
        step: Real = 1,
        release_as: Literal["sum", "mean"] = "sum",
    ) -> InputPerturbation:
        """Return the mechanism for which every row's own value is epsilon-DP."""
        sensitivity = Sum(column, step).sensitivity(public).linf
        scale = noise_scales.discrete_laplace(epsilon, sensitivity)
        return cls(public=public, column=column, scale=scale, step=as_step(step), release_as=release_as)

    @property
    def range_of_a_row(self) -> int:
        """How far one row's value can move, in steps."""
        return Sum(self.column, self.step).sensitivity(self.public).linf

    @property
    def event(self) -> Event:
        return DiscreteLaplace(
            scale=self.scale, sensitivity=self.range_of_a_row, neighbors=self.public.neighbors
        )

    def error(self, confidence: float = 0.95) -> Any:
        """Return a proved bound on the error of the sum or mean, from public numbers: see
        `noise.laplace_sum_error`."""
        _require.open_probability(confidence=confidence)
        rows = self.public.declared_size("input perturbation")
        return self._in_units(noise.laplace_sum_error(self.scale, rows, 1 - confidence))

    def _in_units(self, steps: int) -> Any:
        """Return a number of steps in the column's own unit, divided by the number of rows for a mean."""
        total = steps * self.step
        if self.release_as == "mean":
            total /= self.public.declared_size("a mean")
        return int(total) if total.denominator == 1 else nearest_float(total)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        total = 0
        for part in contributions(Sum(self.column, self.step), source):
            total += arrow_columns.exact_sum(part)
        remaining = self.public.declared_size("input perturbation")
        # the noise of a row is independent of its value, so it may be drawn and added separately; 2**16 draws
        # at a time bound the memory (not tuned)
        while remaining > 0:
            draws = sampling.discrete_laplace(self.scale, min(remaining, 1 << 16), entropy)
            total += sum(draws.tolist())
            remaining -= len(draws)
        return release(self._in_units(total), event=self.event, entropy=entropy, error=self.error)
