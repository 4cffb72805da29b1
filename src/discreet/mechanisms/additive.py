"""Adds noise to a statistic: the mechanism by which most questions are answered.

`noisy_count`, `noisy_sum` and `noisy_histogram` build one from a table's public facts and an epsilon;
`AddNoise` takes any statistic and any noise, and refuses noise that is priced for less than the statistic can
move.

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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _require, _round
from .._errors import InvalidInput, WrongRelation
from .._public import Public
from .._registry import described
from .._require import Real
from ..accounting import Event
from ..sampling import Entropy
from ..tables import Source
from .arrow_columns import integers, require_public
from .grid import in_units
from .noise import IntegerGaussian, IntegerLaplace, Noise
from .protocols import Release, Statistic, check_source, is_statistic, release
from .statistics import Count, Histogram, Sum, length_of, step_of


@described("mechanisms.AddNoise")
@dataclass(frozen=True, slots=True, kw_only=True)
class AddNoise:
    """Adds noise to the statistic of the source, in the statistic's own unit.

    Guarantee: the noise's event, under the relation of `public`.
    Proof:     the noise covers the statistic's sensitivity for exactly these public facts, checked when it is
               built; the source must have the same facts. Scaling the integer by its step is post-processing.
    Assumes:   the statistic's sensitivity is right (for `Trusted`: the steward's word).
    """

    public: Public
    statistic: Statistic
    noise: Noise

    def __post_init__(self) -> None:
        if not isinstance(self.noise, Noise):
            raise _require.fail(
                "noise", type(self.noise).__name__, "noise on integers, such as IntegerLaplace"
            )
        _check_statistic(self.statistic)
        require_public(self.public)
        if self.noise.neighbors != self.public.neighbors:
            raise WrongRelation(
                f"the noise is priced for {self.noise.neighbors}, the table is protected under "
                f"{self.public.neighbors}. "
                f"Nothing was read or released. Build the noise with "
                f"neighbors={self.public.neighbors.value!r}."
            )
        # these refuse an entry that the statistic does not have, and parts on different grids
        length_of(self.statistic, self.public), step_of(self.statistic, self.public)
        sensitivity = self.statistic.sensitivity(self.public)
        if not self.noise.covers(sensitivity):
            raise InvalidInput(
                f"one unit can move this statistic by {sensitivity} under {self.public.neighbors}, more "
                f"than the noise is priced for: "
                f"{self.noise}. Nothing was read or released. Give the noise at least that sensitivity."
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


def _check_statistic(statistic: Any) -> None:
    """Refuse an object that is not a statistic, before its sensitivity is computed."""
    if not is_statistic(statistic):
        raise _require.fail("statistic", type(statistic).__name__, "a statistic, such as Count()")


def plain(values: Any) -> Any:
    """Return a single number as a Python number, a vector as an array."""
    return np.asarray(values).item() if np.ndim(values) == 0 else values


def laplace(public: Public, statistic: Statistic, *, epsilon: Real) -> AddNoise:
    """Return the statistic with discrete Laplace noise, exactly epsilon-DP under the relation of `public`."""
    _check_statistic(statistic)
    noise = IntegerLaplace.for_epsilon(
        epsilon, sensitivity=statistic.sensitivity(public), neighbors=public.neighbors
    )
    return AddNoise(public=public, statistic=statistic, noise=noise)


def gaussian(
    public: Public,
    statistic: Statistic,
    *,
    rho: Real | None = None,
    epsilon: Real | None = None,
    delta: float | None = None,
) -> AddNoise:
    """Return the statistic with discrete Gaussian noise: rho-zCDP, or (epsilon, delta)-DP."""
    _check_statistic(statistic)
    sensitivity = statistic.sensitivity(public)
    if rho is not None and epsilon is None and delta is None:
        noise = IntegerGaussian.for_rho(rho, sensitivity=sensitivity, neighbors=public.neighbors)
    elif rho is None and epsilon is not None and delta is not None:
        noise = IntegerGaussian.for_privacy(
            epsilon=epsilon, delta=delta, sensitivity=sensitivity, neighbors=public.neighbors
        )
    else:
        raise InvalidInput("give either rho, or both epsilon and delta. Nothing was read or released.")
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
